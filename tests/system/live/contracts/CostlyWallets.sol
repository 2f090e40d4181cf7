// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Says yes where it is only asked, and burns whatever it is given where it counts.
/// @dev A question of a node's is asked at no price; a transaction has one.
contract TwoFacedWallet {
    function isValidSignature(bytes32, bytes calldata) external view returns (bytes4) {
        uint256 turns;
        while (tx.gasprice > 0) {
            unchecked {
                ++turns;
            }
        }
        return 0x1626ba7e;
    }
}

/// @title Says yes to everything, and takes 200,000 gas to think about it.
contract ThirstyWallet {
    function isValidSignature(bytes32, bytes calldata) external view returns (bytes4) {
        uint256 start = gasleft();
        uint256 turns;
        while (start - gasleft() < 200_000) {
            unchecked {
                ++turns;
            }
        }
        return 0x1626ba7e;
    }
}

/// @title Says yes until it is told to say no.
contract FickleWallet {
    bool public refuses;

    function refuse() external {
        refuses = true;
    }

    function isValidSignature(bytes32, bytes calldata) external view returns (bytes4) {
        return refuses ? bytes4(0xffffffff) : bytes4(0x1626ba7e);
    }
}
