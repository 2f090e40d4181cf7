"""The records of the ledger: calls, payments, authorisations, what connects them, and their states and moves. Pure.

    claimed ──> forwarding ──┬──> consumed <──> reorged
                 ^   ^       ├──> released         (mined again, or paid from the next transfer: consumed)
                 │   │       └──> unknown ──> released | consumed
                 │   └───────────────┘ a repeat of the same request
                 └── consumed, cut off by its upstream or dropped by its gateway: one repeat that gets a response
                     (dropped, and it cannot run again: unknown)

`settling` belongs to authorisations (x402, MPP), whose money moves when the upstream has answered. An authorisation pays
exactly one call: it is claimed before the call is forwarded, settled when the upstream has answered, and what it moved is
then a payment like any other. A call holds *parts*: units of the payment of its proof, and of other payments of the same
credit account where that had too little. Together they are its price while it takes from the balance, and nothing once it
is released. A `reorged` call holds less than its price; the difference is its payer's debt.

An idempotency key of one wallet names one call at every gateway. Without a key, a safe request repeats a call by its payment
and its digest. The gateway decides who may read such a call.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tollway.errors import Code
from tollway.ids import Address, CallId, ChainId, ListingId, TxHash


class CallState(StrEnum):
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
    CallState.UNKNOWN: frozenset({CallState.FORWARDING, CallState.RELEASED, CallState.CONSUMED}),
    CallState.REORGED: frozenset({CallState.CONSUMED}),
}
"""Where a call may go from each state."""

TAKING = frozenset({CallState.FORWARDING, CallState.SETTLING, CallState.CONSUMED, CallState.UNKNOWN})
"""States in which a call's price is taken from its payment. `reorged` is a debt instead."""

UNDECIDED = frozenset({CallState.SETTLING, CallState.UNKNOWN})
"""States in which it is unknown yet whether a call is paid."""


class PaymentState(StrEnum):
    """`unfinal` can be spent and can still leave the chain; `final` cannot; `gone` did."""

    UNFINAL = "unfinal"
    FINAL = "final"
    GONE = "gone"


class Rail(StrEnum):
    NONE = "none"  # a free listing
    TX = "tx"  # the first call of a payment
    CREDIT = "credit"  # every later one
    X402 = "x402"  # an authorisation, settled when the upstream has answered
    MPP = "mpp"  # the same in another dress


AUTHORIZED_RAILS = frozenset({Rail.X402, Rail.MPP})


class Delivery(StrEnum):
    """How much of the answer reached the caller."""

    COMPLETE = "complete"
    PARTIAL = "partial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payment:
    """What one transaction moved from one payer to one payee in one asset. Units are ledger units.

    `is_plain_ended`: a bound signature was shown, so the plain form no longer counts.
    `is_held`: not spendable. Recorded before a restore of the database, until the operator releases it; or nodes
    disagree about it, until they agree.
    `calls`: how many calls were ever claimed on it. A payment that is `gone` is worth what its running calls hold.
    `is_authorized`: authorisations of ours moved it. Its value is what they were for; a transfer of that kind is never
    judged as a `tx` payment.
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

    @property
    def remaining_units(self) -> int:
        return self.value_units - self.taken_units


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPayment:
    """An accepted payment on its way into the ledger."""

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
    """What the ledger knows of one transaction. `held_before_ms`: what was mined before that moment is held, unless
    `is_admitted`; the last restore of the database that is not released yet."""

    payments: tuple[Payment, ...]
    is_admitted: bool
    held_before_ms: int | None


def is_worth_more(payment: Payment, seen: NewPayment) -> bool:
    """Whether a later reading raises a recorded payment: nodes can have held logs back. Never a final payment, which is not
    read again; and the value of authorisations is known from their calls, not from the logs."""
    is_open = payment.state is PaymentState.UNFINAL and not payment.is_authorized
    return is_open and seen.value_units > payment.value_units


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One call as the ledger knows it: the content of a history record, in our own types.

    `price_units` in ledger units of `asset`; `asset` and everything of the payment are None for a free call.
    `path` carries no query. Times in milliseconds.
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


class Interruption(StrEnum):
    """The error in the record of a call whose gateway wrote no end."""

    GATEWAY_DIED = "gateway_died"
    OUTCOME_LOST = "outcome_lost"  # its gateway lives, and nothing of what it may have written is there
    NEVER_SENT = Code.STORAGE_UNAVAILABLE.value  # the code that its caller got
    ANSWER_DROPPED = Code.PAYMENT_OUTCOME_UNKNOWN.value  # the same


def is_move_allowed(before: CallState, after: CallState) -> bool:
    return after in MOVES[before]


_BEFORE_SETTLEMENT = frozenset({CallState.FORWARDING, CallState.UNKNOWN})


class Dialect(StrEnum):
    """The protocol in which a caller presented an authorisation; the answer speaks the same."""

    X402_V2 = "x402-2"
    X402_V1 = "x402-1"
    MPP = "mpp"


class AuthorizationKey(NamedTuple):
    """What the token contract keeps: a (from, nonce) is used once. `asset` is `Asset.key`."""

    chain_id: ChainId
    asset: str
    payer: Address
    nonce: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorization:
    """`TransferWithAuthorization` as it was signed. `base_units` of the token; times in unix seconds.

    `challenge_id`: of MPP's challenge, which its receipt names; empty elsewhere.
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
    key: AuthorizationKey = field(init=False, repr=False, compare=False)  # read at every step

    def __post_init__(self) -> None:
        key = AuthorizationKey(self.chain_id, self.asset, self.payer, self.nonce)
        object.__setattr__(self, "key", key)

    @property
    def asset(self) -> str:
        return "0x" + self.token.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The payer's balance in ledger units, as seen at a block: what its open authorisations may add up to."""

    balance_units: int
    block_number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementAttempt:
    """One signed transaction that carries an authorisation to its chain; stored before it is broadcast.

    `sender`: the gas key's address, `nonce`: of its sequence. A fee bump is another attempt with the same nonce.
    `raw`: the signed transaction. `fee_max_wei`: the most that it can cost. `code_hash`: of the payer's code where it has
    any; for the stores, which do not return it.
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
    """Where an authorisation's money moved: by our transaction or by anybody's."""

    tx_hash: TxHash
    block_number: int
    block_hash: bytes
    block_time: int
    is_final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizedCall:
    """The call that holds an authorisation (a `released` one does not hold it any more).

    `is_orphaned`: no caller waits for its settlement; settlement recovery finishes it. `has_stored_response`: the upstream's answer is
    stored. `is_lost`: paid, but its answer reached no caller and is not stored: the same request may run again once.
    `seen_block`: the head when it was claimed. `transfer`: where its money moved, once that is known.
    `idempotency_key`: the one that it came with. Unlike the authorisation it is never seen on a chain.
    `client_network`: a keyed hash of the network that showed the authorisation; None where none was kept.
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
    idempotency_key: str | None = None
    client_network: bytes | None = None

    @property
    def is_public(self) -> bool:
        """A transaction with this authorisation may have been sent: then it is public on the chain, with its
        signature."""
        return self.transfer is not None or self.state not in _BEFORE_SETTLEMENT


Parts = Mapping[int, int]
"""Payment id -> units held of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDebits:
    """The state of a call and what it holds."""

    state: CallState
    parts: Parts


def debits_after(after: CallState, *, parts: Parts, price_units: int, gone: Collection[int]) -> CallDebits:
    """What a call holds when it moves to `after`, given the payments that have left the chain.

    A call that costs and was paid from a gone payment becomes `reorged` at once; one whose outcome is open keeps its
    parts until it has one.
    """
    if after is CallState.RELEASED:
        return CallDebits(state=after, parts={})
    if after is not CallState.CONSUMED:
        return CallDebits(state=after, parts=parts)
    kept = {payment_id: units for payment_id, units in parts.items() if payment_id not in gone}
    is_paid = sum(kept.values()) >= price_units
    return CallDebits(state=CallState.CONSUMED if is_paid else CallState.REORGED, parts=kept)


def allocate_to_debts(units: int, *, debts: Iterable[tuple[CallId, int]]) -> dict[CallId, int]:
    """How much of `units` each debt gets, in the order given."""
    shares: dict[CallId, int] = {}
    for call_id, owed_units in debts:
        share = min(units, owed_units)
        if share <= 0:
            continue
        shares[call_id] = share
        units -= share
    return shares


SAFE_METHODS = frozenset({"GET", "HEAD"})
"""The same request may reach its upstream twice."""
UNKNOWN_DIGEST = bytes(32)
"""The digest of a request whose body was not hashed. No other request has it, so no request repeats it."""


class SettlementEnd(StrEnum):
    """How a call leaves `settling`."""

    BOUGHT = "bought"  # consumed: its caller has the answer, or finds it stored
    LOST = "lost"  # consumed, but its answer reached no caller: the same request may run again once
    CREDIT = "credit"  # released: what moved buys something else
    VOID = "void"  # released: nothing moved, and nothing will


def decide_settlement_end(
    *,
    is_moved: bool,
    is_orphaned: bool,
    has_stored_response: bool,
    method: str,
    digest: bytes,
    runs_left: int,
) -> SettlementEnd:
    """`is_orphaned`: no caller was waiting any more, so no caller got the answer. A call that cannot run again is never lost: its
    payer could not use the money again."""
    if not is_moved:
        return SettlementEnd.VOID
    if not is_orphaned or has_stored_response:
        return SettlementEnd.BOUGHT
    can_run_again = _can_run_again(method, digest, runs_left)
    return SettlementEnd.LOST if can_run_again else SettlementEnd.CREDIT


def decide_dropped_call(state: CallState, *, method: str, digest: bytes, runs_left: int) -> CallState | None:
    """The next state of a call whose answer its gateway dropped, because the write of its end failed. `state`: what the
    ledger says of that run now. None: it holds another end already, and it stays.

    `forwarding`: the write was lost, so the call is `unknown`. `consumed`: the write was committed, and only its
    acknowledgement was lost. Then the call stays `consumed`, marked as cut, where the same request may run again; where it
    may not, it is `unknown` too: held, then credit."""
    if state is CallState.FORWARDING:
        return CallState.UNKNOWN
    if state is not CallState.CONSUMED:
        return None
    return CallState.CONSUMED if _can_run_again(method, digest, runs_left) else CallState.UNKNOWN


def _can_run_again(method: str, digest: bytes, runs_left: int) -> bool:
    return method in SAFE_METHODS and digest != UNKNOWN_DIGEST and runs_left > 0


class KeyName(NamedTuple):
    """Two wallets may use the same key."""

    payer: Address
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCall:
    """The call that an idempotency key of its payer named. Its price is that of its claim, not the price of now.

    `payment_id`: the payment of its proof; `authorization`: what was to pay it instead, or has. `has_stored_response`: it
    is stored. `is_lost`: consumed, but its upstream cut the answer off, and no repeat has brought it again. `is_delivered`: how
    its answer reached the caller is written; until then somebody may still be reading it. `moved_ms`: its last move.
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
    authorization: AuthorizationKey | None = None
    has_stored_response: bool = False
    is_lost: bool = False
    is_delivered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTaken:
    """The idempotency key of this claim has named a call already, perhaps for another request. Nothing changed."""

    call: KeyedCall


class RequestName(NamedTuple):
    """The same request with the same payment."""

    payment_id: int
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call that holds a price without an outcome. Its price is that of its claim, not the price of now."""

    call_id: CallId
    state: CallState
    epoch: int
    attempts: int
    price: str
    price_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatsOpenCall:
    """The same safe request has a call that waits to run again. Nothing changed: reopen that one, and where it does not
    let itself be reopened, claim a call of its own (`Claim.is_separate_call`)."""

    call: OpenCall
