"""The records of the ledger: calls, payments, authorisations, what connects them, and their states and moves. Pure.

    claimed ──> forwarding ──┬──> consumed <──> reorged
                 ^   ^       ├──> released         (mined again, or paid from the next transfer: consumed)
                 │   │       └──> unknown ──> released | consumed | settling
                 │   └───────────────┘ a repeat of the same request
                 └── consumed, with a response that its upstream cut or its gateway dropped: repeats until one gets a response
                     (dropped, and it cannot run again: unknown)

`settling` is a state of calls that an authorisation (x402, MPP) pays. An authorisation pays exactly one call: it is claimed before
the call is forwarded and settled after the upstream's response, and its transfer is then recorded as a payment. Where no response came,
the provider may decide that the call was served: `unknown` -> `settling`, without an upstream status. A call holds *parts*:
units of the payment of its proof, and of other payments of the same credit account where that payment has too little. The parts sum
up to its price in every state that takes the price, and to nothing once it is released. A `reorged` call holds less than its price;
the difference is a debt of its payer.

An idempotency key of a wallet names one call at every gateway. Without a key, a safe request repeats a call by its payment and its
digest. The gateway package decides which request may read such a call.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tollway.chain.channel_contract import ChannelConfig
from tollway.errors import Code
from tollway.ids import Address, CallId, ChainId, ChannelId, ListingId, TxHash
from tollway.money import LEDGER_DECIMALS_MAX, format_decimal


class CallState(StrEnum):
    """The state of a call; `MOVES` lists the allowed moves."""

    FORWARDING = "forwarding"
    SETTLING = "settling"
    CONSUMED = "consumed"
    RELEASED = "released"
    UNKNOWN = "unknown"
    REORGED = "reorged"


MOVES: dict[CallState, frozenset[CallState]] = {
    CallState.FORWARDING: frozenset(
        {CallState.SETTLING, CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN}
    ),
    CallState.SETTLING: frozenset({CallState.CONSUMED, CallState.RELEASED}),
    CallState.CONSUMED: frozenset({CallState.REORGED, CallState.FORWARDING, CallState.UNKNOWN}),
    CallState.RELEASED: frozenset(),
    CallState.UNKNOWN: frozenset(
        {CallState.FORWARDING, CallState.SETTLING, CallState.RELEASED, CallState.CONSUMED}
    ),
    CallState.REORGED: frozenset({CallState.CONSUMED}),
}

TAKING = frozenset({CallState.FORWARDING, CallState.SETTLING, CallState.CONSUMED, CallState.UNKNOWN})
"""States in which the price of a call is taken from its payment. A `reorged` call is a debt instead."""

UNDECIDED = frozenset({CallState.SETTLING, CallState.UNKNOWN})
"""States in which it is not decided whether a call is paid."""


class PaymentState(StrEnum):
    """The state of a payment. `unfinal`: can be spent, and can still leave the chain. `final`: cannot leave it. `gone`: has left it."""

    UNFINAL = "unfinal"
    FINAL = "final"
    GONE = "gone"


class Rail(StrEnum):
    """The way in which a call was paid, as its row records it."""

    NONE = "none"  # a free listing
    TX = "tx"  # the first call of a payment
    CREDIT = "credit"  # every later call of a payment
    X402 = "x402"  # an authorisation, settled after the response of the upstream
    MPP = "mpp"  # an authorisation in the MPP dialect
    CHANNEL = "channel"  # a voucher over a channel


AUTHORIZED_RAILS = frozenset({Rail.X402, Rail.MPP})
SETTLED_RAILS = AUTHORIZED_RAILS | {Rail.CHANNEL}
"""Rails whose call may have no payment before a transfer is settled: that of an authorisation, or of the deposit with a voucher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The measured end of a metered call: its price in ledger units, at most the maximum of its claim, and the quantities behind it
    (`registry.metering.write_measured`)."""

    actual_units: int
    quantities: str


class Delivery(StrEnum):
    COMPLETE = "complete"
    PARTIAL = "partial"


NO_BLOCK = b"\x00" * 32
"""The block of a payment that is on no chain. No block has this hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """The value that one transaction moved from one payer to one payee in one asset, in ledger units.

    `is_plain_ended`: a bound signature was used, so plain signatures are not accepted any more.
    `is_held`: not spendable. Either recorded before a restore of the database, until the operator releases it; or disputed by the
    nodes of the chain, until they agree.
    `calls`: the number of claims ever granted on it. The value of a `gone` payment is what its running calls hold.
    `is_authorized`: settled authorisations of this gateway moved it. Its value is the sum of their amounts; the verifier never
    accepts such a transfer as a `tx` payment. `is_escrow`: the balance of a channel, or a deposit into one. It is never credit.
    `is_refund`: a transfer by which a provider gave prices back (`ledger.refunds`). Its value is taken by its refunds, so it is never credit.
    """

    id: int
    chain_id: ChainId
    tx_hash: TxHash
    asset: str  # Asset.key
    payer: Address
    payee: Address
    value_units: int
    taken_units: int
    state: PaymentState
    block_number: int
    block_hash: bytes
    block_time: int
    is_plain_ended: bool = False
    is_held: bool = False
    calls: int = 0
    is_authorized: bool = False
    is_escrow: bool = False
    is_refund: bool = False

    @property
    def remaining_units(self) -> int:
        return self.value_units - self.taken_units

    @property
    def is_given_back(self) -> bool:
        """Credit by which a provider refunded a call: nothing was paid for it, and it is on no chain."""
        return self.block_hash == NO_BLOCK and not self.is_escrow


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPayment:
    chain_id: ChainId
    tx_hash: TxHash
    asset: str
    payer: Address
    payee: Address
    value_units: int
    block_number: int
    block_hash: bytes
    block_time: int
    is_final: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTransaction:
    """The recorded facts of one transaction. `held_before_ms`: the last restore of the database that is not released yet; payments mined
    before it are held, unless `is_admitted`."""

    payments: tuple[Payment, ...]
    is_admitted: bool
    held_before_ms: int | None


def is_worth_more(payment: Payment, seen: NewPayment) -> bool:
    """Whether a later read raises the value of a recorded payment: nodes may have returned incomplete logs. False for a final payment,
    which is not read again, for authorisations, whose value comes from their calls and not from logs, and for the transfer of a refund."""
    is_open = payment.state is PaymentState.UNFINAL and not payment.is_authorized and not payment.is_refund
    return is_open and seen.value_units > payment.value_units


class ClaimState(StrEnum):
    """Where the price of a call on a channel is. `unclaimed`: charged, and in the escrow for all that the chain knows; `claimed`: the contract counts it for the
    provider; `settled`: the contract has paid it to the provider; `lost`: the escrow does not cover it any more."""

    UNCLAIMED = "unclaimed"
    CLAIMED = "claimed"
    SETTLED = "settled"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRefund:
    """What the provider of a call gave back of its price: by a transfer, or as credit, which `tx_hash` then names as a payment. Ledger units of the call's asset."""

    units: int
    tx_hash: TxHash
    is_credit: bool
    is_final: bool
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """A call in the ledger, with the members of a history record.

    `price_units`: ledger units of `asset`. `asset` and all members of the payment are None for a free call. `path` has no query. Times
    in milliseconds.
    """

    id: CallId
    listing_id: ListingId
    listing_name: str
    provider: Address
    payer: Address | None
    method: str
    path: str
    state: CallState
    rail: Rail
    price: str
    price_units: int
    currency: str
    chain_id: ChainId | None
    asset: str | None
    decimals: int
    tx_hash: TxHash | None
    pay_to: Address | None
    http_status: int | None
    upstream_status: int | None
    request_bytes: int | None
    response_bytes: int | None
    latency_ms: int | None
    upstream_latency_ms: int | None
    delivery: Delivery | None
    idempotency_key: str | None
    request_id: str
    error: str | None
    created_ms: int
    completed_ms: int | None
    moved_ms: int
    """The moment in which the state was written last, on the clock that the gateways of a ledger share."""
    held_until_ms: int | None = None
    """The time from which the clock releases the price of an unknown call; None for another call, and where only its provider, the chain or a
    repeat can decide it."""
    actual_units: int | None = None
    quantities: str | None = None
    metering: str | None = None
    """Of a metered call its price, once that is known, the quantities behind it, and its formulas; `price` and `price_units` are then its maximum.
    `quantities` is empty until the price is known. None at a fixed price."""
    channel_id: bytes | None = None
    """The channel of a call that a voucher pays, once its deposit is concluded, where it has one. It has no `tx_hash`."""
    claim_state: ClaimState | None = None
    """Of a charged call on a channel; None for other calls, and for one that cost nothing. The history derives it (`ledger.channels.decide_claim_state`)."""
    refund: CallRefund | None = None
    """The refund in force."""

    @property
    def due_units(self) -> int:
        """What the call takes: its actual price; its maximum where that is not known."""
        return self.price_units if self.actual_units is None else self.actual_units

    @property
    def due_price(self) -> str:
        """`due_units` as a decimal number of the currency."""
        if self.actual_units is None:
            return self.price
        return format_decimal(self.actual_units, decimals=min(self.decimals, LEDGER_DECIMALS_MAX))

    @property
    def is_unmeasured(self) -> bool:
        """The call is charged and its response has not ended, so its maximum is held."""
        return self.state is CallState.CONSUMED and self.quantities == ""


class Interruption(StrEnum):
    """The `error` of a call whose end its gateway did not write."""

    GATEWAY_DIED = "gateway_died"
    OUTCOME_LOST = "outcome_lost"  # its gateway is alive, but the write of the end was lost
    NEVER_SENT = Code.STORAGE_UNAVAILABLE.value  # the code in the response to the caller
    ANSWER_DROPPED = Code.PAYMENT_OUTCOME_UNKNOWN.value  # the code in the response to the caller


def is_move_allowed(before: CallState, after: CallState) -> bool:
    return after in MOVES[before]


_BEFORE_SETTLEMENT = frozenset({CallState.FORWARDING, CallState.UNKNOWN})


class Dialect(StrEnum):
    """The protocol of an authorisation; the response uses the same."""

    X402_V2 = "x402-2"
    X402_V1 = "x402-1"
    MPP = "mpp"


class AuthorizationKey(NamedTuple):
    """The identity of an authorisation: the token contract accepts each (from, nonce) once. `asset` is `Asset.key`."""

    chain_id: ChainId
    asset: str
    payer: Address
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDeposit:
    """What an authorisation pays into: a channel. `salt`: 32 bytes, of the authorisation's nonce."""

    config: ChannelConfig
    channel_id: ChannelId
    salt: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """A signed `TransferWithAuthorization` (EIP-3009), or the `ReceiveWithAuthorization` of a deposit. `base_units`: of the token; times in unix seconds.

    `signature`: as it was presented, also in the wrapper of a wallet that is not deployed (ERC-6492): the transaction is built from it.
    `challenge_id`: the id of the MPP challenge, which the receipt names; empty in other dialects. `deposit`: of a deposit, whose payee is the collector
    of the channel contract; its call costs less than it moves.
    """

    chain_id: ChainId
    token: Address
    payer: Address
    payee: Address
    base_units: int
    valid_after: int
    valid_before: int
    nonce: bytes
    signature: bytes = field(repr=False)
    dialect: Dialect
    challenge_id: str = ""
    deposit: ChannelDeposit | None = None
    key: AuthorizationKey = field(
        init=False, repr=False, compare=False
    )  # a field, because every step reads it

    def __post_init__(self) -> None:
        key = AuthorizationKey(self.chain_id, self.asset, self.payer, self.nonce)
        object.__setattr__(self, "key", key)

    @property
    def asset(self) -> str:
        return "0x" + self.token.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The payer's balance at a block, in ledger units: the maximum sum of its open authorisations."""

    balance_units: int
    block_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementAttempt:
    """A signed transaction that settles an authorisation. It is stored before it is broadcast.

    `sender`: the address of the gas key; `nonce`: of its sequence. A fee bump is a further attempt with the same nonce.
    `raw`: the signed transaction. `fee_max_wei`: its maximum cost. `code_hash`: the hash of the payer's code, where it has code,
    or what stands for it (`Deployment.code_hash`); written by the stores, and not returned.
    """

    chain_id: ChainId
    tx_hash: TxHash
    call_id: CallId
    listing_id: ListingId
    sender: Address
    nonce: int
    raw: bytes = field(repr=False)
    fee_max_wei: int
    created_ms: int
    code_hash: bytes | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledTransfer:
    """The transfer of an authorisation, in a transaction of this gateway or of any other sender."""

    tx_hash: TxHash
    block_number: int
    block_hash: bytes
    block_time: int
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedCall:
    """A call with its authorisation. A `released` call does not hold its authorisation any more.

    `is_orphaned`: no caller waits for the settlement, so settlement recovery finishes it. `has_stored_response`: the upstream's response
    is stored. `is_lost`: paid, but the response reached no caller and is not stored, so the same request may run again once.
    `seen_block`: the head of the chain at the claim. `transfer`: the transaction of the transfer, once it is known. `moved_ms`: as of a `CallRecord`.
    `idempotency_key`: the key of the claiming request. Unlike the authorisation it never becomes public on a chain.
    `client_network`: a keyed hash of the claiming request's network; None where none was stored.
    """

    authorization: Authorization
    call_id: CallId
    listing_id: ListingId
    method: str
    digest: bytes
    state: CallState
    epoch: int
    attempts: int
    price: str
    price_units: int
    is_orphaned: bool
    is_lost: bool
    has_stored_response: bool
    seen_block: int
    transfer: TxHash | None
    created_ms: int
    moved_ms: int
    idempotency_key: str | None = None
    client_network: bytes | None = None

    @property
    def is_public(self) -> bool:
        """Whether a transaction with this authorisation may have been broadcast: its signature is then public."""
        return self.transfer is not None or self.state not in _BEFORE_SETTLEMENT


Parts = Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDebits:
    state: CallState
    parts: Parts


def trim_parts(parts: Parts, due_units: int, *, newest_first: Sequence[int]) -> Parts:
    """The parts of a call that takes no more than `due_units`. The rest goes back to the payments in that order; the payment of the proof is its last."""
    left = dict(parts)
    excess_units = sum(left.values()) - due_units
    for payment_id in newest_first:
        returned_units = min(max(excess_units, 0), left.get(payment_id, 0))
        excess_units -= returned_units
        left[payment_id] = left.get(payment_id, 0) - returned_units
    return {payment_id: units for payment_id, units in left.items() if units}


def debits_after(after: CallState, *, parts: Parts, price_units: int, gone: Collection[int]) -> CallDebits:
    """The state and the parts of a call that moves to `after`. `price_units`: what it owes. `gone`: the payments that have left the chain.

    A charged call that a gone payment paid becomes `reorged` at once. A call without an outcome keeps its parts.
    """
    if after is CallState.RELEASED:
        return CallDebits(state=after, parts={})
    if after is not CallState.CONSUMED:
        return CallDebits(state=after, parts=parts)
    kept = {payment_id: units for payment_id, units in parts.items() if payment_id not in gone}
    is_paid = sum(kept.values()) >= price_units
    return CallDebits(state=CallState.CONSUMED if is_paid else CallState.REORGED, parts=kept)


SAFE_METHODS = frozenset({"GET", "HEAD"})
"""Methods whose request may reach the upstream twice."""
UNKNOWN_DIGEST = bytes(32)
"""The digest of a request whose body was not hashed. No request has this digest, so none repeats such a call."""


class SettlementEnd(StrEnum):
    BOUGHT = "bought"  # consumed: the caller has the response, or it is stored, or the provider decided so
    LOST = "lost"  # consumed, but the response reached no caller: the same request may run again once
    CREDIT = "credit"  # released: the transfer is the payer's credit
    VOID = "void"  # released: there is no transfer, and there will be none


def decide_resolution(outcome: CallState, *, is_unpaid: bool) -> CallState:
    """The next state of an `unknown` call that its provider decides: `released` or `consumed`. `is_unpaid`: an authorisation pays the call, and its
    money has not moved. To charge such a call is to settle it: only the chain ends it."""
    if outcome not in (CallState.RELEASED, CallState.CONSUMED):
        raise ValueError("an unknown call is resolved to released or consumed")
    return CallState.SETTLING if outcome is CallState.CONSUMED and is_unpaid else outcome


def is_charged_by_provider(state: CallState, upstream_status: int | None) -> bool:
    """The call has no upstream status: every other settlement follows the head of a response."""
    return state is CallState.SETTLING and upstream_status is None


def decide_settlement_end(
    *,
    is_moved: bool,
    is_orphaned: bool,
    is_charged_by_provider: bool = False,
    has_stored_response: bool,
    is_deposit: bool,
    method: str,
    digest: bytes,
    runs_left: int,
) -> SettlementEnd:
    """Decides the end of a call in `settling`. `is_orphaned`: no caller waited, so no caller got the response. A call that cannot run again
    becomes credit and not lost: else the payer could not use the money. So does one that came with a deposit: the balance of its channel pays the repeat, whose
    voucher a charge would refuse. `is_charged_by_provider`: the provider decided that the call was served."""
    if not is_moved:
        return SettlementEnd.VOID
    if not is_orphaned or has_stored_response or is_charged_by_provider:
        return SettlementEnd.BOUGHT
    can_run_again = not is_deposit and _can_run_again(method, digest, runs_left)
    return SettlementEnd.LOST if can_run_again else SettlementEnd.CREDIT


def decide_dropped_call(state: CallState, *, method: str, digest: bytes, runs_left: int) -> CallState | None:
    """The next state of a call whose response its gateway dropped, because the write of its end failed. `state`: the state of that run in
    the ledger now. None: the ledger has another end, which stays.

    `forwarding`: the write was lost, so the call becomes `unknown`. `consumed`: the write was committed, and only its acknowledgement
    was lost. The call then stays `consumed`, marked as cut, where the same request may run again. Where it may not, it becomes
    `unknown` too: its price is held, and later credit."""
    if state is CallState.FORWARDING:
        return CallState.UNKNOWN
    if state is not CallState.CONSUMED:
        return None
    return CallState.CONSUMED if _can_run_again(method, digest, runs_left) else CallState.UNKNOWN


def _can_run_again(method: str, digest: bytes, runs_left: int) -> bool:
    return method in SAFE_METHODS and digest != UNKNOWN_DIGEST and runs_left > 0


class KeyName(NamedTuple):
    """An idempotency key of one wallet. Two wallets may use the same key."""

    payer: Address
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCall:
    """The call that an idempotency key names. Its price is the price of its claim, not the current price.

    `payment_id`: the payment of its proof; `authorization`: the authorisation that pays it instead. `has_stored_response`: the response
    is stored. `is_lost`: consumed, but the upstream cut the response, and no repeat has delivered it. `is_delivered`: the delivery of
    the response is recorded; before that a task may still be reading it. `moved_ms`: the time of its last move. `metering`, `actual_units`: as of a
    `CallRecord`.
    """

    call_id: CallId
    listing_id: ListingId
    digest: bytes
    state: CallState
    epoch: int
    price: str
    price_units: int
    payment_id: int | None
    moved_ms: int
    metering: str | None = None
    actual_units: int | None = None
    authorization: AuthorizationKey | None = None
    has_stored_response: bool = False
    is_lost: bool = False
    is_delivered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTaken:
    """A refused claim: its idempotency key names a call already, maybe of another request. Nothing changed."""

    call: KeyedCall


class RequestName(NamedTuple):
    """The identity of a request without a key: its payment and its digest."""

    payment_id: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that holds a price without an outcome. Its price is the price of its claim, not the current price. `metering`, `actual_units`: as of a
    `CallRecord`."""

    call_id: CallId
    state: CallState
    epoch: int
    attempts: int
    price: str
    price_units: int
    metering: str | None = None
    actual_units: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatsOpenCall:
    """A refused claim: the same safe request has an open call that may run again. Nothing changed. Next, reopen that call; where the
    ledger refuses that, claim a new call (`Claim.is_separate_call`)."""

    call: OpenCall
