"""Encodes the calls of the x402 settlement contract of payment channels, and parses its results, events and errors. Pure.

Both contracts have one address on every chain that has them; `has_channel_contracts` checks it through the port. Amounts are base units of
the token of the channel, below 2^128. The shape of a log alone proves nothing: only logs of the settlement contract itself count.
Source: x402 `batch-settlement` on EVM.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tollway.chain.abi_words import (
    WORD,
    Dynamic,
    compute_selector,
    encode_arguments,
    encode_array,
    encode_bytes,
    read_bytes,
    read_number,
    split_array,
    word,
)
from tollway.chain.port import ChainReader, EscrowState, Log
from tollway.ids import Address, ChainId, ChannelId, keccak256
from tollway.money import TokenDomain

SETTLEMENT_CONTRACT = Address.parse("0x4020074e9dF2ce1deE5A9C1b5c3f541D02a10003")
"""x402BatchSettlement: it holds the escrow of all channels."""

DEPOSIT_COLLECTOR = Address.parse("0x4020806089470a89826cB9fB1f4059150b550004")
"""ERC3009DepositCollector: the payee of a deposit's authorisation. Only the settlement contract may call it."""

WITHDRAW_DELAYS_S = range(900, 2_592_000 + 1)
"""The delays that the settlement contract accepts."""

CHANNEL_DOMAIN = TokenDomain(name="x402 Batch Settlement", version="1")
"""The EIP-712 domain of the settlement contract."""

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


# ---- Calls.

_CONFIG = "(address,address,address,address,address,uint40,bytes32)"
_CLAIM = f"(({_CONFIG},uint128),bytes,uint128)"
_DEPOSIT = compute_selector(f"deposit({_CONFIG},uint128,address,bytes)")
_CLAIM_WITH_SIGNATURE = compute_selector(f"claimWithSignature({_CLAIM}[],bytes)")
_SETTLE = compute_selector("settle(address,address)")
_REFUND_WITH_SIGNATURE = compute_selector(f"refundWithSignature({_CONFIG},uint128,uint256,bytes)")
_INITIATE_WITHDRAW = compute_selector(f"initiateWithdraw({_CONFIG},uint128)")
_FINALIZE_WITHDRAW = compute_selector(f"finalizeWithdraw({_CONFIG})")
_MULTICALL = compute_selector("multicall(bytes[])")


def encode_deposit(
    config: ChannelConfig,
    *,
    base_units: int,
    valid_after: int,
    valid_before: int,
    salt: bytes,
    signature: bytes,
) -> bytes:
    """Pulls the deposit by the payer's authorisation (EIP-3009); any account may send it.

    A signature of 65 bytes that ends with 0 or 1 is passed with 27 or 28, because tokens accept no other. Every other one is passed as it is.
    """
    if len(signature) == _ECDSA_BYTES and signature[-1] < 2:
        signature = signature[:-1] + bytes([signature[-1] + 27])
    collected = encode_arguments(word(valid_after), word(valid_before), word(salt), encode_bytes(signature))
    return _DEPOSIT + encode_arguments(
        encode_config(config), word(base_units), word(DEPOSIT_COLLECTOR), encode_bytes(collected)
    )


def read_deposit_valid_before(calldata: bytes) -> int | None:
    """`validBefore` of the authorisation in the calldata of a deposit; None for another call of the contract."""
    if calldata[:4] != _DEPOSIT:
        return None
    return read_number(read_bytes(calldata[4:], _DEPOSIT_DATA), WORD)


def read_refund_nonce(calldata: bytes) -> int | None:
    """The nonce of the refund in the calldata of a multicall; None for one without a refund, and for another call of the contract."""
    if calldata[:4] != _MULTICALL:
        return None
    calls = [read_bytes(element, 0) for element in split_array(calldata[4:])]
    refund = next((call for call in calls if call[:4] == _REFUND_WITH_SIGNATURE), None)
    return None if refund is None else read_number(refund[4:], _REFUND_NONCE_WORD)


def encode_claim(rows: Sequence[ClaimRow], *, signature: bytes) -> bytes:
    """`claimWithSignature`: one fault in one row reverts all of them. `signature`: of the `receiver_authorizer` of all rows."""
    claims = [
        Dynamic(
            encode_arguments(
                encode_config(row.config) + word(row.ceiling),
                encode_bytes(row.signature),
                word(row.total_claimed),
            )
        )
        for row in rows
    ]
    return _CLAIM_WITH_SIGNATURE + encode_arguments(encode_array(claims), encode_bytes(signature))


def encode_settle(*, receiver: Address, token: Address) -> bytes:
    """Pays what was claimed and not settled of all channels of that receiver and token. With nothing due it does nothing."""
    return _SETTLE + word(receiver) + word(token)


def encode_refund(config: ChannelConfig, *, base_units: int, nonce: int, signature: bytes) -> bytes:
    """`refundWithSignature`: pays the payer at most what is not claimed. It uses the nonce also where nothing is left."""
    return _REFUND_WITH_SIGNATURE + encode_arguments(
        encode_config(config), word(base_units), word(nonce), encode_bytes(signature)
    )


def encode_initiate_withdraw(config: ChannelConfig, *, base_units: int) -> bytes:
    """Sent by the payer or the payer's authorizer."""
    return _INITIATE_WITHDRAW + encode_config(config) + word(base_units)


def encode_finalize_withdraw(config: ChannelConfig) -> bytes:
    """Sent by the payer or the payer's authorizer, `withdraw_delay` seconds after the withdrawal began."""
    return _FINALIZE_WITHDRAW + encode_config(config)


def encode_multicall(calls: Sequence[bytes]) -> bytes:
    """Several calls of the settlement contract in one, all or nothing, in this order. `calls`: their calldata."""
    return _MULTICALL + encode_arguments(encode_array([encode_bytes(call) for call in calls]))


def encode_config(config: ChannelConfig) -> bytes:
    """The seven words of a config, the same in calldata and in EIP-712."""
    return b"".join(
        (
            word(config.payer),
            word(config.payer_authorizer),
            word(config.receiver),
            word(config.receiver_authorizer),
            word(config.token),
            word(config.withdraw_delay),
            word(config.salt),
        )
    )


_ECDSA_BYTES = 65
_DEPOSIT_DATA = (7 + 3) * WORD
"""The place of the collector's data among the arguments of a deposit, after the config, the amount, the collector and the offset."""

_REFUND_NONCE_WORD = (7 + 1) * WORD
"""The place of the nonce among the arguments of a refund, after the config and the amount."""

# ---- Views.

_CHANNELS = compute_selector("channels(bytes32)")
_PENDING_WITHDRAWALS = compute_selector("pendingWithdrawals(bytes32)")
_REFUND_NONCE = compute_selector("refundNonce(bytes32)")
_RECEIVERS = compute_selector("receivers(address,address)")
EIP712_DOMAIN_CALL = compute_selector("eip712Domain()")
COLLECTS_FOR_CALL = compute_selector("x402BatchSettlement()")


def encode_channel_state(channel: ChannelId) -> bytes:
    """One call for the whole state, so that its members are of one block. `parse_channel_state` parses its result."""
    return encode_multicall([view + channel for view in (_CHANNELS, _PENDING_WITHDRAWALS, _REFUND_NONCE)])


def parse_channel_state(payload: bytes) -> EscrowState:
    """Raises ValueError for other payloads, such as that of an address without code."""
    amounts, pending, nonce = (read_bytes(element, 0) for element in split_array(payload))
    if (len(amounts), len(pending), len(nonce)) != (2 * WORD, 2 * WORD, WORD):
        raise ValueError("the state of a channel is two words, two words and one word")
    return EscrowState(
        balance=_read_amount(amounts, 0),
        total_claimed=_read_amount(amounts, WORD),
        withdrawal=_read_amount(pending, 0),
        withdrawal_initiated_at=read_number(pending, WORD),
        refund_nonce=read_number(nonce, 0),
    )


def encode_receiver_totals(*, receiver: Address, token: Address) -> bytes:
    """Calldata of `receivers(address,address)`; `parse_receiver_totals` parses its result."""
    return _RECEIVERS + word(receiver) + word(token)


def parse_receiver_totals(payload: bytes) -> tuple[int, int]:
    """What was claimed for a receiver in a token, and what of it was settled. Raises ValueError for other payloads."""
    if len(payload) != 2 * WORD:
        raise ValueError("the totals of a receiver are two words")
    return _read_amount(payload, 0), _read_amount(payload, WORD)


def encode_channel_sums(channels: Sequence[ChannelId]) -> bytes:
    """One call for what many channels hold and have claimed; `parse_channel_sums` parses its result."""
    return encode_multicall([_CHANNELS + channel for channel in channels])


def parse_channel_sums(payload: bytes, count: int) -> list[int]:
    """What each of these channels has claimed. Raises ValueError for other payloads."""
    return [_read_amount(element, WORD) for element in _split_words(payload, count)]


def encode_receiver_sums(receivers: Sequence[tuple[Address, Address]]) -> bytes:
    """One call for the totals of many receivers, each in a token; `parse_receiver_sums` parses its result."""
    return encode_multicall(
        [encode_receiver_totals(receiver=receiver, token=token) for receiver, token in receivers]
    )


def parse_receiver_sums(payload: bytes, count: int) -> list[tuple[int, int]]:
    """As `parse_receiver_totals`, for each. Raises ValueError for other payloads."""
    return [parse_receiver_totals(element) for element in _split_words(payload, count)]


def _split_words(payload: bytes, count: int) -> list[bytes]:
    elements = [read_bytes(element, 0) for element in split_array(payload)]
    if len(elements) != count or any(len(element) != 2 * WORD for element in elements):
        raise ValueError("each element of the result is two words")
    return elements


async def has_channel_contracts(chains: ChainReader, chain_id: ChainId, *, deadline_s: float) -> bool:
    """Whether both contracts are on this chain: the settlement contract with its EIP-712 domain (ERC-5267), the collector that deposits into it."""

    async def read(to: Address, calldata: bytes) -> bytes:
        result = await chains.call_contract(
            chain_id,
            to=to,
            calldata=calldata,
            gas=_GETTER_GAS,
            bytes_max=_GETTER_BYTES_MAX,
            deadline_s=deadline_s,
        )
        return b"" if result.reverted else result.payload

    domain = await read(SETTLEMENT_CONTRACT, EIP712_DOMAIN_CALL)
    collects_for = await read(DEPOSIT_COLLECTOR, COLLECTS_FOR_CALL)
    return domain == encode_domain(chain_id) and collects_for == word(SETTLEMENT_CONTRACT)


_GETTER_GAS = 100_000
_GETTER_BYTES_MAX = 1_024
_DOMAIN_FIELDS = b"\x0f"
"""ERC-5267: name, version, chain id and contract; no salt."""


def encode_domain(chain_id: ChainId) -> bytes:
    """What `eip712Domain()` returns (ERC-5267)."""
    return encode_arguments(
        _DOMAIN_FIELDS.ljust(WORD, b"\0"),
        encode_bytes(CHANNEL_DOMAIN.name.encode()),
        encode_bytes(CHANNEL_DOMAIN.version.encode()),
        word(chain_id),
        word(SETTLEMENT_CONTRACT),
        word(0),
        encode_array([]),
    )


def _read_amount(payload: bytes, start: int) -> int:
    amount = read_number(payload, start)
    if amount > CHANNEL_AMOUNT_MAX:
        raise ValueError("an amount of a channel is below 2^128")
    return amount


# ---- Events.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDeposited:
    channel_id: ChannelId
    base_units: int
    balance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelClaimed:
    """`base_units`: what this claim added."""

    channel_id: ChannelId
    base_units: int
    total_claimed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSettled:
    """Of all channels of a receiver and a token, also those of other gateways."""

    receiver: Address
    token: Address
    base_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelRefunded:
    channel_id: ChannelId
    base_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawInitiated:
    """`finalize_after`: unix seconds."""

    channel_id: ChannelId
    base_units: int
    finalize_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawFinalized:
    channel_id: ChannelId
    base_units: int


ChannelEvent = (
    ChannelDeposited
    | ChannelClaimed
    | ReceiverSettled
    | ChannelRefunded
    | WithdrawInitiated
    | WithdrawFinalized
)

DEPOSITED_TOPIC = keccak256(b"Deposited(bytes32,address,uint128,uint128)")
CLAIMED_TOPIC = keccak256(b"Claimed(bytes32,address,uint128,uint128)")
SETTLED_TOPIC = keccak256(b"Settled(address,address,address,uint128)")
REFUNDED_TOPIC = keccak256(b"Refunded(bytes32,address,uint128)")
WITHDRAW_INITIATED_TOPIC = keccak256(b"WithdrawInitiated(bytes32,uint128,uint40)")
WITHDRAW_FINALIZED_TOPIC = keccak256(b"WithdrawFinalized(bytes32,address,uint128)")

CHANNEL_TOPICS = (
    DEPOSITED_TOPIC,
    CLAIMED_TOPIC,
    REFUNDED_TOPIC,
    WITHDRAW_INITIATED_TOPIC,
    WITHDRAW_FINALIZED_TOPIC,
)
"""The events after which a channel covers more or fewer calls. The first indexed value of each is the channel. A receiver may claim himself, with a
voucher that a claim of the gateway has published."""

_EVENT_SHAPES = {
    DEPOSITED_TOPIC: (3, 2),
    CLAIMED_TOPIC: (3, 2),
    SETTLED_TOPIC: (4, 1),
    REFUNDED_TOPIC: (3, 1),
    WITHDRAW_INITIATED_TOPIC: (2, 2),
    WITHDRAW_FINALIZED_TOPIC: (3, 1),
}
"""Topics and words of the payload."""


def parse_channel_events(logs: Iterable[Log]) -> tuple[ChannelEvent, ...]:
    """The events that the settlement contract itself logged, in the order of the receipt. Other logs are left out, never repaired."""
    return tuple(
        _parse_event(log)
        for log in logs
        if log.address == SETTLEMENT_CONTRACT and not log.removed and _is_channel_event(log)
    )


def _is_channel_event(log: Log) -> bool:
    if not log.topics or log.topics[0] not in _EVENT_SHAPES:
        return False
    topics, words = _EVENT_SHAPES[log.topics[0]]
    return (
        len(log.topics) == topics
        and len(log.payload) == words * WORD
        and all(len(topic) == WORD for topic in log.topics)
        and all(read_number(log.payload, place * WORD) <= CHANNEL_AMOUNT_MAX for place in range(words))
    )


def _parse_event(log: Log) -> ChannelEvent:
    kind, subject = log.topics[0], log.topics[1]
    channel_id, base_units = ChannelId(subject), read_number(log.payload, 0)
    if kind == SETTLED_TOPIC:
        return ReceiverSettled(
            receiver=Address(subject[12:]), token=Address(log.topics[2][12:]), base_units=base_units
        )
    if kind == REFUNDED_TOPIC:
        return ChannelRefunded(channel_id=channel_id, base_units=base_units)
    if kind == WITHDRAW_FINALIZED_TOPIC:
        return WithdrawFinalized(channel_id=channel_id, base_units=base_units)
    second = read_number(log.payload, WORD)
    if kind == DEPOSITED_TOPIC:
        return ChannelDeposited(channel_id=channel_id, base_units=base_units, balance=second)
    if kind == CLAIMED_TOPIC:
        return ChannelClaimed(channel_id=channel_id, base_units=base_units, total_claimed=second)
    assert kind == WITHDRAW_INITIATED_TOPIC
    return WithdrawInitiated(channel_id=channel_id, base_units=base_units, finalize_after=second)


# ---- Errors.


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
ERROR_SELECTORS = {
    error: compute_selector(f"{error.value}({_ERROR_ARGUMENTS.get(error, '')})") for error in ContractError
}
_ERRORS = {selector: error for error, selector in ERROR_SELECTORS.items()}


def parse_contract_error(payload: bytes) -> ContractError | None:
    """The error in the payload of a reverted call; None for other payloads, such as the reason of a token."""
    return _ERRORS.get(payload[:4])
