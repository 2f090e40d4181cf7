// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

interface IToken {
    function transferFrom(address from, address to, uint256 value) external returns (bool);
    function transferWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        bytes memory signature
    ) external;
}

/// @title Several transfers in one transaction: many from one payer, one from each of many, or there and back again.
/// @dev The payers approve this contract first.
contract TransferBundler {
    function transferMany(IToken token, address[] calldata from, address[] calldata to, uint256[] calldata values)
        external
    {
        for (uint256 i = 0; i < from.length; ++i) require(token.transferFrom(from[i], to[i], values[i]), "refused");
    }

    /// @notice One authorised transfer and one ordinary transfer of the same payer, in one receipt.
    function relayAndTransfer(
        IToken token, address from, address to, uint256 value, uint256 validBefore, bytes32 nonce,
        bytes calldata signature, uint256 extra
    ) external {
        token.transferWithAuthorization(from, to, value, 0, validBefore, nonce, signature);
        if (extra > 0) require(token.transferFrom(from, to, extra), "refused");
    }
}
