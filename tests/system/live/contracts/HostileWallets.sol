// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @dev Anybody may spend through these wallets, so that a test can let them pay.
abstract contract OpenWallet {
    receive() external payable {}

    function execute(address to, uint256 value, bytes calldata payload) external returns (bytes memory) {
        (bool ok, bytes memory answer) = to.call{value: value}(payload);
        require(ok, "OpenWallet: the call failed");
        return answer;
    }
}

/// @title Burns whatever gas it is given.
contract GasBurnerWallet is OpenWallet {
    function isValidSignature(bytes32, bytes calldata) external pure returns (bytes4) {
        uint256 turns;
        while (true) {
            unchecked {
                ++turns;
            }
        }
        return 0x1626ba7e;
    }
}

/// @title Says yes, in a megabyte.
contract ReturnBombWallet is OpenWallet {
    function isValidSignature(bytes32, bytes calldata) external pure returns (bytes4) {
        assembly {
            mstore(0, shl(224, 0x1626ba7e))
            return(0, 1048576)
        }
    }
}

/// @title Says yes to everything.
contract YesWallet is OpenWallet {
    function isValidSignature(bytes32, bytes calldata) external pure returns (bytes4) {
        return 0x1626ba7e;
    }
}

/// @title Answers with the right four bytes in the wrong place.
contract MisalignedWallet is OpenWallet {
    function isValidSignature(bytes32, bytes calldata) external pure returns (uint256) {
        return 0x1626ba7e;
    }
}

/// @title Answers with the right four bytes and not the 28 that belong behind them.
contract ShortWallet is OpenWallet {
    function isValidSignature(bytes32, bytes calldata) external pure returns (bytes4) {
        assembly {
            mstore(0, shl(224, 0x1626ba7e))
            return(0, 4)
        }
    }
}

/// @title Reverts, and puts the right answer into the revert.
contract RevertingWallet is OpenWallet {
    function isValidSignature(bytes32, bytes calldata) external pure returns (bytes4) {
        assembly {
            mstore(0, shl(224, 0x1626ba7e))
            revert(0, 32)
        }
    }
}

/// @title Says no until anybody asks it to say yes.
contract SwitchWallet is OpenWallet {
    bool public agreed;

    function agree() external {
        agreed = true;
    }

    function isValidSignature(bytes32, bytes calldata) external view returns (bytes4) {
        return agreed ? bytes4(0x1626ba7e) : bytes4(0xffffffff);
    }
}
