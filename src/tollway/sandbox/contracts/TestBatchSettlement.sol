// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

interface IToken {
    function balanceOf(address account) external view returns (uint256);
    function transfer(address to, uint256 value) external returns (bool);
}

interface ICollector {
    function collect(address payer, address token, uint256 amount, bytes32 channelId, bytes calldata collectorData)
        external;
}

interface IContractSigner {
    function isValidSignature(bytes32 digest, bytes calldata signature) external view returns (bytes4);
}

/// @title Payment channels for the sandbox: the interface and the money rules of x402BatchSettlement.
/// @notice Stands in for the public contract, so that unmodified clients sign for it. Never deploy it where money is real.
/// @dev No constructor, no immutables, no initial storage: the runtime code can be put at the public address of a test
///      chain as it is. The EIP-712 domain is therefore computed at each call. There is no lock against re-entry: the
///      sandbox's token calls nothing but ERC-1271 views.
contract TestBatchSettlement {
    struct ChannelConfig {
        address payer;
        address payerAuthorizer;
        address receiver;
        address receiverAuthorizer;
        address token;
        uint40 withdrawDelay;
        bytes32 salt;
    }

    struct Channel {
        uint128 balance;
        uint128 totalClaimed;
    }

    struct Withdrawal {
        uint128 amount;
        uint40 initiatedAt;
    }

    struct Receiver {
        uint128 totalClaimed;
        uint128 totalSettled;
    }

    struct Voucher {
        ChannelConfig channel;
        uint128 maxClaimableAmount;
    }

    struct VoucherClaim {
        Voucher voucher;
        bytes signature;
        uint128 totalClaimed;
    }

    error InvalidChannel();
    error ZeroDeposit();
    error DepositOverflow();
    error InvalidSignature();
    error NotReceiverAuthorizer();
    error NotAuthorizedToClaim();
    error NotAuthorizedToRefund();
    error ClaimExceedsCeiling();
    error ClaimExceedsBalance();
    error WithdrawalAlreadyPending();
    error WithdrawalNotPending();
    error NotAuthorizedToFinalizeWithdraw();
    error WithdrawDelayNotElapsed();
    error NothingToWithdraw();
    error WithdrawAmountExceedsAvailable();
    error WithdrawDelayOutOfRange();
    error EmptyBatch();
    error DepositCollectionFailed();
    error InvalidCollector();
    error InvalidRefundNonce();
    error ZeroRefund();
    error ECDSAInvalidSignature();
    error ECDSAInvalidSignatureLength(uint256 length);
    error ECDSAInvalidSignatureS(bytes32 s);
    error SafeERC20FailedOperation(address token);

    event ChannelCreated(bytes32 indexed channelId, ChannelConfig config);
    event ChannelClosed(bytes32 indexed channelId, ChannelConfig config);
    event Deposited(bytes32 indexed channelId, address indexed sender, uint128 amount, uint128 newBalance);
    event Claimed(bytes32 indexed channelId, address indexed sender, uint128 claimAmount, uint128 newTotalClaimed);
    event Settled(address indexed receiver, address indexed token, address indexed sender, uint128 amount);
    event Refunded(bytes32 indexed channelId, address indexed sender, uint128 amount);
    event WithdrawInitiated(bytes32 indexed channelId, uint128 amount, uint40 finalizeAfter);
    event WithdrawFinalized(bytes32 indexed channelId, address indexed sender, uint128 amount);

    uint40 public constant MIN_WITHDRAW_DELAY = 900;
    uint40 public constant MAX_WITHDRAW_DELAY = 2_592_000;

    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant CONFIG_TYPEHASH = keccak256(
        "ChannelConfig(address payer,address payerAuthorizer,address receiver,address receiverAuthorizer,address token,uint40 withdrawDelay,bytes32 salt)"
    );
    bytes32 private constant VOUCHER_TYPEHASH = keccak256("Voucher(bytes32 channelId,uint128 maxClaimableAmount)");
    bytes32 private constant ENTRY_TYPEHASH =
        keccak256("ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)");
    bytes32 private constant BATCH_TYPEHASH = keccak256(
        "ClaimBatch(ClaimEntry[] claims)ClaimEntry(bytes32 channelId,uint128 maxClaimableAmount,uint128 totalClaimed)"
    );
    bytes32 private constant REFUND_TYPEHASH = keccak256("Refund(bytes32 channelId,uint256 nonce,uint128 amount)");
    uint256 private constant HALF_ORDER = 0x7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a0;

    mapping(bytes32 => Channel) public channels;
    mapping(bytes32 => Withdrawal) public pendingWithdrawals;
    mapping(bytes32 => uint256) public refundNonce;
    mapping(address => mapping(address => Receiver)) public receivers;

    // ---- Deposit.

    function deposit(ChannelConfig calldata config, uint128 amount, address collector, bytes calldata collectorData)
        external
    {
        bool hasParties = config.payer != address(0) && config.receiver != address(0)
            && config.receiverAuthorizer != address(0) && config.token != address(0);
        require(hasParties, InvalidChannel());
        require(
            config.withdrawDelay >= MIN_WITHDRAW_DELAY && config.withdrawDelay <= MAX_WITHDRAW_DELAY,
            WithdrawDelayOutOfRange()
        );
        require(amount > 0, ZeroDeposit());
        require(collector != address(0), InvalidCollector());

        bytes32 id = getChannelId(config);
        Channel storage channel = channels[id];
        bool isNew = channel.balance == 0 && channel.totalClaimed == 0;
        require(amount <= type(uint128).max - channel.balance, DepositOverflow());
        channel.balance += amount;
        _collect(config, amount, collector, id, collectorData);
        if (isNew) emit ChannelCreated(id, config);
        emit Deposited(id, msg.sender, amount, channel.balance);
    }

    /// @dev Exactly the amount must arrive: a token that takes a fee is refused.
    function _collect(
        ChannelConfig calldata config, uint128 amount, address collector, bytes32 id, bytes calldata collectorData
    ) private {
        uint256 expected = IToken(config.token).balanceOf(address(this)) + amount;
        ICollector(collector).collect(config.payer, config.token, amount, id, collectorData);
        require(IToken(config.token).balanceOf(address(this)) == expected, DepositCollectionFailed());
    }

    // ---- Claim and settle.

    function claim(VoucherClaim[] calldata rows) external {
        require(rows.length > 0, EmptyBatch());
        for (uint256 i = 0; i < rows.length; i++) {
            require(_isReceiverSide(rows[i].voucher.channel), NotAuthorizedToClaim());
            _claim(rows[i]);
        }
    }

    function claimWithSignature(VoucherClaim[] calldata rows, bytes calldata signature) external {
        require(rows.length > 0, EmptyBatch());
        address authorizer = rows[0].voucher.channel.receiverAuthorizer;
        require(_isSignedBy(authorizer, getClaimBatchDigest(rows), signature), InvalidSignature());
        for (uint256 i = 0; i < rows.length; i++) {
            require(rows[i].voucher.channel.receiverAuthorizer == authorizer, NotReceiverAuthorizer());
            _claim(rows[i]);
        }
    }

    /// @dev A row that claims no more than before is skipped, whatever its signature is; any other fault reverts the batch.
    function _claim(VoucherClaim calldata row) private {
        ChannelConfig calldata config = row.voucher.channel;
        bytes32 id = getChannelId(config);
        Channel storage channel = channels[id];
        if (row.totalClaimed <= channel.totalClaimed) return;
        require(row.totalClaimed <= row.voucher.maxClaimableAmount, ClaimExceedsCeiling());
        require(row.totalClaimed <= channel.balance, ClaimExceedsBalance());

        bytes32 digest = getVoucherDigest(id, row.voucher.maxClaimableAmount);
        bool isSigned = config.payerAuthorizer == address(0)
            ? _isSignedBy(config.payer, digest, row.signature)
            : _recover(digest, row.signature) == config.payerAuthorizer;
        require(isSigned, InvalidSignature());

        uint128 added = row.totalClaimed - channel.totalClaimed;
        channel.totalClaimed = row.totalClaimed;
        receivers[config.receiver][config.token].totalClaimed += added;
        emit Claimed(id, msg.sender, added, row.totalClaimed);
    }

    function settle(address receiver, address token) external {
        Receiver storage counted = receivers[receiver][token];
        uint128 due = counted.totalClaimed - counted.totalSettled;
        if (due == 0) return;
        counted.totalSettled = counted.totalClaimed;
        _pay(token, receiver, due);
        emit Settled(receiver, token, msg.sender, due);
    }

    // ---- Refund.

    function refund(ChannelConfig calldata config, uint128 amount) external {
        require(_isReceiverSide(config), NotAuthorizedToRefund());
        _refund(config, getChannelId(config), amount);
    }

    function refundWithSignature(
        ChannelConfig calldata config, uint128 amount, uint256 nonce, bytes calldata signature
    ) external {
        bytes32 id = getChannelId(config);
        require(nonce == refundNonce[id], InvalidRefundNonce());
        bytes32 digest = getRefundDigest(id, nonce, amount);
        require(_isSignedBy(config.receiverAuthorizer, digest, signature), InvalidSignature());
        _refund(config, id, amount);
    }

    /// @dev The nonce is used also where nothing is left to refund; then there is no event.
    function _refund(ChannelConfig calldata config, bytes32 id, uint128 amount) private {
        require(amount > 0, ZeroRefund());
        refundNonce[id]++;
        uint128 refunded = _min(amount, _free(id));
        if (refunded == 0) return;
        channels[id].balance -= refunded;

        Withdrawal storage pending = pendingWithdrawals[id];
        if (refunded >= pending.amount) {
            delete pendingWithdrawals[id];
        } else {
            pending.amount -= refunded;
        }
        emit Refunded(id, msg.sender, refunded);
        _emitIfClosed(config, id);
        _pay(config.token, config.payer, refunded);
    }

    // ---- Withdraw.

    function initiateWithdraw(ChannelConfig calldata config, uint128 amount) external {
        require(_isPayerSide(config), InvalidChannel());
        require(amount > 0, NothingToWithdraw());
        bytes32 id = getChannelId(config);
        require(pendingWithdrawals[id].initiatedAt == 0, WithdrawalAlreadyPending());
        require(amount <= _free(id), WithdrawAmountExceedsAvailable());
        uint40 begun = uint40(block.timestamp);
        pendingWithdrawals[id] = Withdrawal({amount: amount, initiatedAt: begun});
        emit WithdrawInitiated(id, amount, begun + config.withdrawDelay);
    }

    function finalizeWithdraw(ChannelConfig calldata config) external {
        require(_isPayerSide(config), NotAuthorizedToFinalizeWithdraw());
        bytes32 id = getChannelId(config);
        Withdrawal memory pending = pendingWithdrawals[id];
        require(pending.initiatedAt != 0, WithdrawalNotPending());
        require(block.timestamp >= pending.initiatedAt + config.withdrawDelay, WithdrawDelayNotElapsed());
        delete pendingWithdrawals[id];
        uint128 withdrawn = _min(pending.amount, _free(id));
        channels[id].balance -= withdrawn;
        emit WithdrawFinalized(id, msg.sender, withdrawn);
        _emitIfClosed(config, id);
        if (withdrawn > 0) _pay(config.token, config.payer, withdrawn);
    }

    // ---- All or nothing.

    function multicall(bytes[] calldata calls) external returns (bytes[] memory results) {
        results = new bytes[](calls.length);
        for (uint256 i = 0; i < calls.length; i++) {
            (bool ok, bytes memory returned) = address(this).delegatecall(calls[i]);
            if (!ok) {
                assembly ("memory-safe") {
                    revert(add(returned, 32), mload(returned))
                }
            }
            results[i] = returned;
        }
    }

    // ---- Typed data (EIP-712).

    function getChannelId(ChannelConfig calldata config) public view returns (bytes32) {
        return _typedDigest(keccak256(abi.encode(CONFIG_TYPEHASH, config)));
    }

    function getVoucherDigest(bytes32 channelId, uint128 maxClaimableAmount) public view returns (bytes32) {
        return _typedDigest(keccak256(abi.encode(VOUCHER_TYPEHASH, channelId, maxClaimableAmount)));
    }

    function getRefundDigest(bytes32 channelId, uint256 nonce, uint128 amount) public view returns (bytes32) {
        return _typedDigest(keccak256(abi.encode(REFUND_TYPEHASH, channelId, nonce, amount)));
    }

    function getClaimBatchDigest(VoucherClaim[] calldata rows) public view returns (bytes32) {
        bytes32[] memory entries = new bytes32[](rows.length);
        for (uint256 i = 0; i < rows.length; i++) {
            bytes32 id = getChannelId(rows[i].voucher.channel);
            uint128 ceiling = rows[i].voucher.maxClaimableAmount;
            entries[i] = keccak256(abi.encode(ENTRY_TYPEHASH, id, ceiling, rows[i].totalClaimed));
        }
        return _typedDigest(keccak256(abi.encode(BATCH_TYPEHASH, keccak256(abi.encodePacked(entries)))));
    }

    /// @dev ERC-5267.
    function eip712Domain()
        external
        view
        returns (
            bytes1 fields, string memory name, string memory version, uint256 chainId, address verifyingContract,
            bytes32 salt, uint256[] memory extensions
        )
    {
        return (hex"0f", "x402 Batch Settlement", "1", block.chainid, address(this), bytes32(0), new uint256[](0));
    }

    function _typedDigest(bytes32 structHash) private view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                DOMAIN_TYPEHASH, keccak256("x402 Batch Settlement"), keccak256("1"), block.chainid, address(this)
            )
        );
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }

    // ---- Parties, sums, signatures.

    function _isReceiverSide(ChannelConfig calldata config) private view returns (bool) {
        return msg.sender == config.receiver || msg.sender == config.receiverAuthorizer;
    }

    function _isPayerSide(ChannelConfig calldata config) private view returns (bool) {
        return msg.sender == config.payer || msg.sender == config.payerAuthorizer;
    }

    function _free(bytes32 id) private view returns (uint128) {
        return channels[id].balance - channels[id].totalClaimed;
    }

    function _min(uint128 a, uint128 b) private pure returns (uint128) {
        return a < b ? a : b;
    }

    function _emitIfClosed(ChannelConfig calldata config, bytes32 id) private {
        if (channels[id].balance == 0 && channels[id].totalClaimed == 0) emit ChannelClosed(id, config);
    }

    function _pay(address token, address to, uint128 amount) private {
        require(IToken(token).transfer(to, amount), SafeERC20FailedOperation(token));
    }

    /// @dev Code at the signer's address decides by ERC-1271; without code its key must have signed.
    function _isSignedBy(address signer, bytes32 digest, bytes calldata signature) private view returns (bool) {
        if (signer.code.length > 0) {
            (bool ok, bytes memory answer) =
                signer.staticcall(abi.encodeCall(IContractSigner.isValidSignature, (digest, signature)));
            return ok && answer.length >= 32
                && abi.decode(answer, (bytes32)) == bytes32(IContractSigner.isValidSignature.selector);
        }
        if (signature.length != 65 || uint256(bytes32(signature[32:64])) > HALF_ORDER) return false;
        address recovered =
            ecrecover(digest, uint8(signature[64]), bytes32(signature[:32]), bytes32(signature[32:64]));
        return recovered != address(0) && recovered == signer;
    }

    function _recover(bytes32 digest, bytes calldata signature) private pure returns (address recovered) {
        require(signature.length == 65, ECDSAInvalidSignatureLength(signature.length));
        bytes32 s = bytes32(signature[32:64]);
        require(uint256(s) <= HALF_ORDER, ECDSAInvalidSignatureS(s));
        recovered = ecrecover(digest, uint8(signature[64]), bytes32(signature[:32]), s);
        require(recovered != address(0), ECDSAInvalidSignature());
    }
}
