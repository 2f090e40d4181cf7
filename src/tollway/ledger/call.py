"""A paid call and its states. The one table of states and moves; every rule about them lives here. Pure.

    claimed ──> forwarding ──┬──> consumed <──> reorged
                 ^   ^       ├──> released         (mined again, or paid from the next transfer: consumed)
                 │   │       └──> unknown ──> released | consumed
                 │   └───────────────┘ a repeat of the same request
                 └── consumed, cut off by its upstream or dropped by its gateway: one repeat that gets an answer
                     (dropped, and it cannot run again: unknown)

`settling` belongs to authorisations (x402, MPP), whose money moves when the upstream has answered.
"""

from dataclasses import dataclass
from enum import StrEnum

from tollway.errors import Code
from tollway.identifiers import Address, CallId, ChainId, ListingId, TxHash


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
"""States in which nobody can say yet whether a call is paid for."""


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
    """Whether what is told of a recorded payment now raises it: nodes may have kept logs back. Never what is final, which
    nobody looks at again; and what authorisations were for is known from their calls, not from the logs."""
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
    """What the record of a call gives as its error where its gateway told no end of it."""

    GATEWAY_DIED = "gateway_died"
    OUTCOME_LOST = "outcome_lost"  # its gateway lives, and nothing of what it may have written is there
    NEVER_SENT = Code.STORAGE_UNAVAILABLE.value  # as its caller was told
    ANSWER_DROPPED = Code.PAYMENT_OUTCOME_UNKNOWN.value  # the same


def is_move_allowed(before: CallState, after: CallState) -> bool:
    return after in MOVES[before]
