"""The x402 settlement contract of payment channels: its addresses, its records and its errors. Pure.

Source: x402 `batch-settlement` on EVM. Both contracts have one address on every chain.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from tollway.ids import Address, keccak256

SETTLEMENT_CONTRACT = Address.parse("0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003")
"""x402BatchSettlement: it holds the escrow of all channels."""

DEPOSIT_COLLECTOR = Address.parse("0x4020806089470a89826cB9fB1f4059150b550004")
"""ERC3009DepositCollector: the payee of a deposit's authorisation. Only the settlement contract may call it."""

WITHDRAW_DELAYS_S = range(900, 2_592_000 + 1)
"""The delays that the settlement contract accepts."""

CHANNEL_AMOUNT_MAX = 2**128 - 1
"""The largest amount of the settlement contract (uint128), in base units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """The parties and terms of a channel. Every field is part of its id, so none ever changes. `salt`: 32 bytes."""

    payer: Address
    payer_authorizer: Address
    receiver: Address
    receiver_authorizer: Address
    token: Address
    withdraw_delay: int
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One row of a claim: the voucher of a channel, and the cumulative amount that its receiver claims of it.

    `ceiling`: what the payer signed. `total_claimed`: at most the ceiling; the contract skips a row that is not above what it has
    claimed already. Both in base units of the token.
    """

    config: ChannelConfig
    ceiling: int
    signature: bytes = field(repr=False)
    total_claimed: int


class ContractError(StrEnum):
    """Why the settlement contract reverts: the names of its errors. Those of ECDSA are a voucher whose signature no key makes."""

    INVALID_CHANNEL = "InvalidChannel"
    ZERO_DEPOSIT = "ZeroDeposit"
    DEPOSIT_OVERFLOW = "DepositOverflow"
    DEPOSIT_COLLECTION_FAILED = "DepositCollectionFailed"
    INVALID_COLLECTOR = "InvalidCollector"
    WITHDRAW_DELAY_OUT_OF_RANGE = "WithdrawDelayOutOfRange"

    EMPTY_BATCH = "EmptyBatch"
    INVALID_SIGNATURE = "InvalidSignature"
    NOT_RECEIVER_AUTHORIZER = "NotReceiverAuthorizer"
    NOT_AUTHORIZED_TO_CLAIM = "NotAuthorizedToClaim"
    CLAIM_EXCEEDS_CEILING = "ClaimExceedsCeiling"
    CLAIM_EXCEEDS_BALANCE = "ClaimExceedsBalance"
    ECDSA_INVALID_SIGNATURE = "ECDSAInvalidSignature"
    ECDSA_INVALID_LENGTH = "ECDSAInvalidSignatureLength"
    ECDSA_INVALID_S = "ECDSAInvalidSignatureS"

    NOT_AUTHORIZED_TO_REFUND = "NotAuthorizedToRefund"
    INVALID_REFUND_NONCE = "InvalidRefundNonce"
    ZERO_REFUND = "ZeroRefund"

    NOTHING_TO_WITHDRAW = "NothingToWithdraw"
    WITHDRAWAL_ALREADY_PENDING = "WithdrawalAlreadyPending"
    WITHDRAW_AMOUNT_EXCEEDS_AVAILABLE = "WithdrawAmountExceedsAvailable"
    NOT_AUTHORIZED_TO_FINALIZE = "NotAuthorizedToFinalizeWithdraw"
    WITHDRAWAL_NOT_PENDING = "WithdrawalNotPending"
    WITHDRAW_DELAY_NOT_ELAPSED = "WithdrawDelayNotElapsed"


_ERROR_ARGUMENTS = {
    ContractError.ECDSA_INVALID_LENGTH: "uint256",
    ContractError.ECDSA_INVALID_S: "bytes32",
}
_ERRORS = {
    keccak256(f"{error.value}({_ERROR_ARGUMENTS.get(error, '')})".encode())[:4]: error
    for error in ContractError
}


def parse_contract_error(payload: bytes) -> ContractError | None:
    """The error in the payload of a reverted call; None for other payloads, such as the reason of a token."""
    return _ERRORS.get(payload[:4])


_DEPOSIT_SELECTOR = keccak256(
    b"deposit((address,address,address,address,address,uint40,bytes32),uint128,address,bytes)"
)[:4]
_WORD = 32
_CONFIG_WORDS = 7


def encode_config(config: ChannelConfig) -> bytes:
    """The seven words of a config: a static tuple of the ABI."""
    return b"".join(
        _pad(member)
        for member in (
            config.payer,
            config.payer_authorizer,
            config.receiver,
            config.receiver_authorizer,
            config.token,
            config.withdraw_delay.to_bytes(_WORD, "big"),
            config.salt,
        )
    )


def encode_deposit(
    config: ChannelConfig,
    *,
    amount: int,
    valid_after: int,
    valid_before: int,
    salt: bytes,
    signature: bytes,
) -> bytes:
    """Calldata of `deposit`, with the payer's authorisation as the data of the collector. Any account may send it. Raises OverflowError for a field that
    does not fit its word."""
    offset = (_CONFIG_WORDS + 3) * _WORD
    data = b"".join(
        (
            valid_after.to_bytes(_WORD, "big"),
            valid_before.to_bytes(_WORD, "big"),
            _pad(salt),
            (4 * _WORD).to_bytes(_WORD, "big"),
            _encode_bytes(signature),
        )
    )
    return b"".join(
        (
            _DEPOSIT_SELECTOR,
            encode_config(config),
            amount.to_bytes(_WORD, "big"),
            _pad(DEPOSIT_COLLECTOR),
            offset.to_bytes(_WORD, "big"),
            _encode_bytes(data),
        )
    )


def read_deposit_valid_before(calldata: bytes) -> int:
    """`validBefore` of the authorisation in the calldata of a deposit."""
    start = 4 + (_CONFIG_WORDS + 3 + 1 + 1) * _WORD
    return int.from_bytes(calldata[start : start + _WORD], "big")


def _pad(member: bytes) -> bytes:
    return member.rjust(_WORD, b"\0")


def _encode_bytes(content: bytes) -> bytes:
    """Length and content, padded to words."""
    return len(content).to_bytes(_WORD, "big") + content + bytes(-len(content) % _WORD)
