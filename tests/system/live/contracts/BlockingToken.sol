// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Stands in front of a token, as the proxy of USDC does, and keeps a list of wallets to which `transfer` moves nothing.
/// @dev Its code is put at the address of the token, and the code of the token at `LOGIC`. The storage stays that of the token.
contract BlockingToken {
    address private constant LOGIC = address(0xB10C);
    bytes32 private constant LIST = keccak256("BlockingToken.list");

    function setBlocked(address account, bool isBlocked) external {
        bytes32 slot = keccak256(abi.encode(account, LIST));
        assembly ("memory-safe") {
            sstore(slot, isBlocked)
        }
    }

    fallback() external {
        if (msg.sig == bytes4(keccak256("transfer(address,uint256)"))) {
            (address to,) = abi.decode(msg.data[4:], (address, uint256));
            bytes32 slot = keccak256(abi.encode(to, LIST));
            bool isBlocked;
            assembly ("memory-safe") {
                isBlocked := sload(slot)
            }
            require(!isBlocked, "BlockingToken: the wallet is blocked");
        }
        (bool ok, bytes memory returned) = LOGIC.delegatecall(msg.data);
        assembly ("memory-safe") {
            if iszero(ok) { revert(add(returned, 32), mload(returned)) }
            return(add(returned, 32), mload(returned))
        }
    }
}
