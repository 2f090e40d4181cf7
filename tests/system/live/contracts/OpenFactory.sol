// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Deploys any code at an address known before (CREATE2), and runs whatever its caller wants with it.
/// @dev What an operator allows with a factory whose calldata names the code, such as that of Safe.
contract OpenFactory {
    function create(bytes memory code, bytes32 salt) public returns (address made) {
        assembly ("memory-safe") {
            made := create2(0, add(code, 32), mload(code), salt)
        }
        require(made != address(0), "OpenFactory: not created");
    }

    function addressOf(bytes memory code, bytes32 salt) external view returns (address) {
        return address(
            uint160(uint256(keccak256(abi.encodePacked(hex"ff", address(this), salt, keccak256(code)))))
        );
    }

    /// @dev A wallet that exists is left as it is.
    function createOnce(bytes memory code, bytes32 salt, address made) external {
        if (made.code.length == 0) create(code, salt);
    }

    function createAndCall(bytes memory code, bytes32 salt, address to, bytes memory payload) external {
        create(code, salt);
        (bool ok,) = to.call(payload);
        require(ok, "OpenFactory: the call failed");
    }

    /// @dev A call of a node's is made at no price; a transaction has one.
    function createUnlessItCosts(bytes memory code, bytes32 salt) external {
        uint256 turns;
        while (tx.gasprice > 0) {
            unchecked {
                ++turns;
            }
        }
        create(code, salt);
    }

    function createWithLongAnswer(bytes memory code, bytes32 salt) external {
        create(code, salt);
        assembly {
            return(0, 8192)
        }
    }
}
