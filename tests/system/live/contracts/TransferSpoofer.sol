// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Moves nothing and says that it did: the events of a token, from an address that is none.
contract TransferSpoofer {
    event Transfer(address indexed from, address indexed to, uint256 value);
    event AuthorizationUsed(address indexed authorizer, bytes32 indexed nonce);

    function spoofTransfer(address from, address to, uint256 value, uint256 times) external {
        for (uint256 i = 0; i < times; ++i) emit Transfer(from, to, value);
    }

    function spoofAuthorization(address authorizer, bytes32 nonce) external {
        emit AuthorizationUsed(authorizer, nonce);
    }

    /// @notice The Transfer topic with a fourth topic and no data, as an ERC-721 token logs it.
    function spoofIndexedTransfer(address from, address to, uint256 value) external {
        bytes32 topic = keccak256("Transfer(address,address,uint256)");
        assembly {
            log4(0, 0, topic, from, to, value)
        }
    }
}
