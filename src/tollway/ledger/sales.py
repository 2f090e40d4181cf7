"""The sums of the ledger by hour and day: what listings earned, what a wallet spent. The rules are pure; `PeriodBooks` is the read port.

Each sum is of one period, one group, one asset and one state. Charged, released, held and reorged are four states and never a sign, and
no sum adds two assets. What was refunded of the charged calls stands beside their sum. A call belongs to the hour in which it was made, in UTC, in every state that it has later. Calls that a wallet
made to its own listings count: they are in the ledger, and sums equal its calls. (The measured quality of a listing leaves them out.)

A *closed* hour is stored beside the ledger (`storage.sales`). The current hours are read from the calls. A move of a call of a closed hour
leaves a mark in its own transaction, and the hour is written again. A move within an open hour leaves none, so that a call costs no write
more.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from tollway.ids import Address, ListingId
from tollway.ledger.records import CallState

K = TypeVar("K", bound=Hashable)
Step = Literal["hour", "day"]
SumGroup = Literal["api", "provider", "wallet"]
SumState = Literal["charged", "released", "held", "reorged"]

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
STEP_MS: dict[Step, int] = {"hour": HOUR_MS, "day": DAY_MS}

SUM_STATES: dict[CallState, SumState] = {
    CallState.FORWARDING: "held",
    CallState.SETTLING: "held",
    CallState.UNKNOWN: "held",
    CallState.CONSUMED: "charged",
    CallState.RELEASED: "released",
    CallState.REORGED: "reorged",
}
"""What happened to the price of a call, by the state of the call."""

CLOSE_DELAY_MS = 600_000
"""From the end of an hour until it is closed. By then nearly every call of the hour has ended: a response has 300 s at most."""
UNMARKED_MS = 300_000
"""For so long after the end of an hour, a write of a call of that hour leaves no mark. The rest of `CLOSE_DELAY_MS` is the margin between a write that
leaves no mark and the read that closes the hour. It covers the age of the shared clock at a gateway (at most half a lease), the retries of
a transaction that the database rolls back, and the deadlines of its statements: together less than two minutes."""
HOURS_KEPT_MS = 90 * DAY_MS
"""Hours that are older become days."""
LAST_LOOK_MS = 25 * HOUR_MS
"""So long after its end an hour is written once more, when the last hold of its unknown calls has lapsed. During a rolling upgrade the older release
writes no marks; this second write includes its moves."""


def floor_to(step_ms: int, ms: int) -> int:
    return ms - ms % step_ms


def ceil_to(step_ms: int, ms: int) -> int:
    return -(-ms // step_ms) * step_ms


def is_hour_unmarked(created_ms: int, *, now_ms: int) -> bool:
    """Whether a write of a call that was made at `created_ms` leaves no mark, because its hour cannot be closed yet. Both in shared time."""
    return now_ms < created_ms - created_ms % HOUR_MS + HOUR_MS + UNMARKED_MS


def closable_until(now_ms: int) -> int:
    """The end of the last hour that can be closed at `now_ms`."""
    return floor_to(HOUR_MS, now_ms - CLOSE_DELAY_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SumQuery:
    """The range of a question: whole steps from `from_ms` up to `to_ms`, which is not in it."""

    wallet: Address
    step: Step
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SalesQuery(SumQuery):
    listing_id: ListingId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingQuery(SumQuery):
    group_by: SumGroup = "api"


@dataclass(frozen=True, slots=True, kw_only=True)
class SumKey:
    """The asset of a sum, by the facts of its calls. `chain_id` None: calls of free listings, which have no asset and no units."""

    chain_id: int | None
    asset: str | None
    currency: str
    decimals: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSum:
    """Calls of one state, and the sum of their prices in ledger units. A sum of many prices may exceed 64 bits."""

    calls: int = 0
    units: int = 0

    def plus(self, other: "CallSum") -> "CallSum":
        return CallSum(calls=self.calls + other.calls, units=self.units + other.units)


@dataclass(frozen=True, slots=True, kw_only=True)
class AssetTotal:
    """The sums of rows of one asset by state, and what came back of the charged calls, which stay charged. The one place that adds rows and that gives the net."""

    by_state: Mapping[SumState, CallSum] = field(default_factory=dict)
    refunded: CallSum = CallSum()

    @property
    def calls(self) -> int:
        """The calls of all states."""
        return sum(one.calls for one in self.by_state.values())

    @property
    def net_units(self) -> int:
        """What is left of the charges."""
        return self.of("charged").units - self.refunded.units

    def of(self, state: SumState) -> CallSum:
        return self.by_state.get(state, CallSum())

    def plus(self, other: "AssetTotal") -> "AssetTotal":
        states = dict.fromkeys([*self.by_state, *other.by_state])
        return AssetTotal(
            by_state={state: self.of(state).plus(other.of(state)) for state in states},
            refunded=self.refunded.plus(other.refunded),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSum:
    """One row: the sums of one period, one group and one asset, by state. `group`: the id of a listing, or the address of a wallet as text. `name`: of
    the listing, today; None for another group."""

    start_ms: int
    group: str
    name: str | None
    key: SumKey
    by_state: dict[SumState, CallSum]
    refunded: CallSum = CallSum()
    """What the provider gave back of the charged calls; they stay charged."""

    @property
    def total(self) -> AssetTotal:
        return AssetTotal(by_state=self.by_state, refunded=self.refunded)


def add_by(rows: Iterable[GroupSum], name: Callable[[GroupSum], K]) -> dict[K, AssetTotal]:
    """The totals of the rows of each name, in the order of the rows. A name has one asset."""
    totals: dict[K, AssetTotal] = {}
    for row in rows:
        totals[name(row)] = totals.get(name(row), AssetTotal()).plus(row.total)
    return totals


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodSums:
    """The answer: newest period first. `as_of_ms`: the moment that the sums are true of; None for the moment of the question.

    `complete_from_ms`: sums of periods that begin before it are lower bounds, or missing, because a limit of the question was reached; None
    where all are whole."""

    rows: tuple[GroupSum, ...]
    as_of_ms: int | None = None
    complete_from_ms: int | None = None


class PeriodBooks(Protocol):
    async def sales(self, query: SalesQuery) -> PeriodSums: ...

    async def spending(self, query: SpendingQuery) -> PeriodSums: ...
