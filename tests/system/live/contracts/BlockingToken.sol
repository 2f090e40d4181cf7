// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Stands in front of a token, as the proxy of USDC does. `transfer` moves nothing to listed wallets, and keeps a fee.
/// @dev Its code is put at the address of the token, and the code of the token at `LOGIC`. The storage stays that of the token.
contract BlockingToken {
    address private constant LOGIC = address(0xB10C);
    bytes32 private constant LIST = keccak256("BlockingToken.list");
    bytes32 private constant FEE = keccak256("BlockingToken.fee");

    function setBlocked(address account, bool isBlocked) external {
        bytes32 slot = keccak256(abi.encode(account, LIST));
        assembly ("memory-safe") {
            sstore(slot, isBlocked)
        }
    }

    function setFee(uint256 fee) external {
        bytes32 slot = FEE;
        assembly ("memory-safe") {
            sstore(slot, fee)
        }
    }

    fallback() external {
        bytes memory call = msg.data;
        if (msg.sig == bytes4(keccak256("transfer(address,uint256)"))) {
            (address to, uint256 value) = abi.decode(msg.data[4:], (address, uint256));
            bytes32 slot = keccak256(abi.encode(to, LIST));
            bytes32 feeSlot = FEE;
            bool isBlocked;
            uint256 fee;
            assembly ("memory-safe") {
                isBlocked := sload(slot)
                fee := sload(feeSlot)
            }
            require(!isBlocked, "BlockingToken: the wallet is blocked");
            call = abi.encodeWithSelector(msg.sig, to, value - fee);
        }
        (bool ok, bytes memory returned) = LOGIC.delegatecall(call);
        assembly ("memory-safe") {
            if iszero(ok) { revert(add(returned, 32), mload(returned)) }
            return(add(returned, 32), mload(returned))
        }
    }
}
