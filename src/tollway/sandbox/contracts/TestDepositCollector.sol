// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

interface IAuthorizedToken {
    function receiveWithAuthorization(
        address from, address to, uint256 value, uint256 validAfter, uint256 validBefore, bytes32 nonce,
        bytes calldata signature
    ) external;
    function transfer(address to, uint256 value) external returns (bool);
}

/// @title Deposits by EIP-3009 for the sandbox: the interface of ERC3009DepositCollector.
/// @notice Takes what the payer authorised for one channel, and passes it on to the settlement contract.
/// @dev Without constructor and immutables, as TestBatchSettlement: the address of that contract is the public one.
contract TestDepositCollector {
    address public constant x402BatchSettlement = 0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003;

    error OnlyX402BatchSettlement();
    error SafeERC20FailedOperation(address token);

    /// @dev The nonce of the authorisation is made of the channel, so that the deposit cannot go to another one.
    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata collectorData)
        external
    {
        require(msg.sender == x402BatchSettlement, OnlyX402BatchSettlement());
        (uint256 validAfter, uint256 validBefore, uint256 salt, bytes memory signature) =
            abi.decode(collectorData, (uint256, uint256, uint256, bytes));
        bytes32 nonce = keccak256(abi.encode(channelId, salt));
        IAuthorizedToken(token).receiveWithAuthorization(
            payer, address(this), amount, validAfter, validBefore, nonce, signature
        );
        require(IAuthorizedToken(token).transfer(x402BatchSettlement, amount), SafeERC20FailedOperation(token));
    }
}
