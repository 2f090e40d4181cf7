"""The quality of a listing, measured from its paid calls: the class of an outcome, counts by day in buckets, sums over 30 days, and
the port of their store. Pure.

A failure counts only where the upstream caused it, or where the caller was charged: otherwise a competitor could lower the rate without cost.
No call depends on this module.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NewType, Protocol

from tollway.errors import Code
from tollway.ids import Address, ListingId
from tollway.registry.listing import ChargeOn, Listing, Operation, is_charged

RANK_WEIGHT_MIN, RANK_WEIGHT_SPAN = 0.5, 0.75
"""The weight of relevance is `RANK_WEIGHT_MIN + RANK_WEIGHT_SPAN * rate²`, for a success rate from 0 to 1: 1.25 where no call failed,
1 at a rate of 0.82 and for a listing without measurement, 0.5 where every call failed. So measured quality orders listings of
similar relevance and does not outweigh relevance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostShare:
    """What the metered calls of one operation cost in practice, in per cent of their maximum. `operation`: its number (`number_operation`)."""

    operation: int
    calls: int
    mean_percent: int
    p95_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """The quality of the paid calls of 30 days, without those that the provider paid for. `success_ppm`: successful calls per
    million. The latencies are those of the upstream in successful calls; None without any. `costs`: of metered operations with enough calls."""

    calls: int
    success_ppm: int
    p50_ms: int | None
    p95_ms: int | None
    costs: tuple[CostShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reputation:
    """The quality and the ownership of a listing. `quality` None: too few calls. `verified_ms`: the time of the last proof of the
    endpoint's origin; None without a valid one. `is_owned_by_another`: without one, while another wallet has proved that origin."""

    quality: Quality | None = None
    verified_ms: int | None = None
    is_owned_by_another: bool = False

    @property
    def is_verified(self) -> bool:
        return self.verified_ms is not None


UNKNOWN_REPUTATION = Reputation()


def rate_weight(success_ppm: int) -> float:
    rate = success_ppm / 1_000_000
    return RANK_WEIGHT_MIN + RANK_WEIGHT_SPAN * rate * rate


UNPROVED_SHARE = 0.5
"""What the score of a listing counts whose provider has not proved the endpoint."""
_SCORE_SCALE = 1_000


def score_listing(*, calls: int, success_ppm: int, is_verified: bool) -> int:
    """The place of a listing in lists without words, the highest first: proved × quality × calls of 30 days. The calls are those of `Quality`, without
    those that the provider paid for; they count by their logarithm, so that a hundredfold of them does not outweigh their failures."""
    share = 1.0 if is_verified else UNPROVED_SHARE
    return round(_SCORE_SCALE * share * (success_ppm / 1_000_000) ** 2 * math.log2(1 + calls))


def round_up_ppm(rate: float) -> int:
    """The least `success_ppm` that is not below a rate. It is rounded first, because 0.29 has no exact binary form."""
    return math.ceil(round(rate * 1_000_000, 6))


DAYS = 30
"""The UTC days that count, today included."""
CALLS_MIN = 20
"""The least number of calls for which a listing has a quality."""
COSTS_MAX = 20
"""The most operations of a listing whose costs are shown."""
TALLY_KEYS_MAX = 50_000
"""The maximum number of counters in memory, which is reached when the store is unavailable; further ones are not counted."""

Bucket = NewType("Bucket", int)
"""The class of an ended call: 0 for a failure; a number above 0 for a success within a range of latencies; from `COSTS_FROM` on the operation of a metered call, and
what it cost in per cent of its maximum, which is counted beside its class."""
QualityCounts = Mapping[tuple[ListingId, Bucket], int]

FAILED = Bucket(0)
COSTS_FROM = Bucket(1_000)
_SHARES = 101  # 0 to 100 per cent
_OPERATION_BITS = 20

_EXACT = 16  # milliseconds up to here have a bucket each
_PARTS_BITS = 3  # beyond, each doubling has 8 buckets: the error of a latency is at most a sixteenth
_DAY_MS = 86_400_000


def day_of(now_ms: int) -> int:
    return now_ms // _DAY_MS


def first_day(today: int) -> int:
    return today - DAYS + 1


def bucket_of(latency_ms: int) -> Bucket:
    if latency_ms < _EXACT:
        return Bucket(1 + max(latency_ms, 0))
    shift = latency_ms.bit_length() - 1 - _PARTS_BITS
    part = (latency_ms >> shift) - (1 << _PARTS_BITS)
    doublings = latency_ms.bit_length() - _EXACT.bit_length()
    return Bucket(1 + _EXACT + (doublings << _PARTS_BITS) + part)


def latency_of(bucket: Bucket) -> int:
    """The middle of a bucket, in milliseconds."""
    place = bucket - 1
    if place < _EXACT:
        return place
    doublings, part = divmod(place - _EXACT, 1 << _PARTS_BITS)
    shift = _EXACT.bit_length() - 1 - _PARTS_BITS + doublings
    return (((1 << _PARTS_BITS) + part) << shift) + (1 << shift >> 1)


def number_operation(method: str, path: str) -> int:
    """The number of an operation in buckets: 20 bits of a hash, because a listing has few metered operations. The price of the listing itself: both empty."""
    digest = hashlib.sha256(f"{method} {path}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> (32 - _OPERATION_BITS)


def cost_bucket(operation: int, *, units: int, max_units: int) -> Bucket:
    """The bucket of what a metered call cost, to the nearest per cent of its maximum."""
    percent = (200 * units + max_units) // (2 * max_units)
    return Bucket(COSTS_FROM + operation * _SHARES + percent)


def summarise_costs(counts: Mapping[Bucket, int]) -> tuple[CostShare, ...]:
    """The operations with at least `CALLS_MIN` measured calls; at most `COSTS_MAX`, those with the most calls."""
    by_operation: dict[int, dict[int, int]] = {}
    for bucket, count in sorted(counts.items()):
        if bucket >= COSTS_FROM:
            operation, percent = divmod(bucket - COSTS_FROM, _SHARES)
            by_operation.setdefault(operation, {})[percent] = count
    costs = [
        CostShare(
            operation=operation,
            calls=sum(shares.values()),
            mean_percent=round(
                sum(percent * count for percent, count in shares.items()) / sum(shares.values())
            ),
            p95_percent=_find_rank(shares, 95) or 0,
        )
        for operation, shares in by_operation.items()
        if sum(shares.values()) >= CALLS_MIN
    ]
    return tuple(sorted(costs, key=lambda one: (-one.calls, one.operation))[:COSTS_MAX])


def list_costs(listing: Listing, quality: Quality | None) -> list[tuple[Operation | None, CostShare]]:
    """What the metered prices of a listing cost in practice: its own first (None), then those of its operations."""
    known = {one.operation: one for one in (() if quality is None else quality.costs)}
    sold: list[tuple[Operation | None, int]] = []
    if listing.metering is not None:
        sold.append((None, number_operation("", "")))
    sold += [
        (one, number_operation(one.method, one.path))
        for one in listing.operations
        if one.metering is not None
    ]
    return [(operation, known[number]) for operation, number in sold if number in known]


def summarise(counts: Mapping[Bucket, int]) -> Quality | None:
    """Returns None for fewer calls than `CALLS_MIN`."""
    costs = summarise_costs(counts)
    counts = {bucket: count for bucket, count in counts.items() if bucket < COSTS_FROM}
    calls = sum(counts.values())
    if calls < CALLS_MIN:
        return None
    succeeded = {bucket: count for bucket, count in sorted(counts.items()) if bucket != FAILED}
    return Quality(
        calls=calls,
        success_ppm=sum(succeeded.values()) * 1_000_000 // calls,
        p50_ms=_percentile(succeeded, 50),
        p95_ms=_percentile(succeeded, 95),
        costs=costs,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DayQuality:
    """The paid calls of one UTC day (`day`: since the epoch), without those that the provider paid for. The latencies as in `Quality`."""

    day: int
    calls: int
    successes: int
    p50_ms: int | None
    p95_ms: int | None


def summarise_days(counts: Mapping[int, Mapping[Bucket, int]], *, today: int) -> list[DayQuality]:
    """The days that count, oldest first, with days without calls."""
    return [_summarise_day(day, counts.get(day, {})) for day in range(first_day(today), today + 1)]


def _summarise_day(day: int, counts: Mapping[Bucket, int]) -> DayQuality:
    succeeded = {bucket: count for bucket, count in sorted(counts.items()) if bucket != FAILED}
    return DayQuality(
        day=day,
        calls=sum(counts.values()),
        successes=sum(succeeded.values()),
        p50_ms=_percentile(succeeded, 50),
        p95_ms=_percentile(succeeded, 95),
    )


def _percentile(ordered: Mapping[Bucket, int], percent: int) -> int | None:
    """The least latency that is not exceeded in so many per cent of the calls."""
    bucket = _find_rank(ordered, percent)
    return None if bucket is None else latency_of(Bucket(bucket))


def _find_rank(ordered: Mapping[Any, int], percent: int) -> int | None:
    """The least key that is not exceeded in so many per cent of the calls (nearest rank); None without calls."""
    rank = -(-sum(ordered.values()) * percent // 100)
    for key, count in ordered.items():
        rank -= count
        if rank <= 0:
            return int(key)
    return None


class QualityTally:
    """The counts of one process that are not written yet. For one event loop."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[ListingId, Bucket], int] = {}

    def count_call(self, listing_id: ListingId, bucket: Bucket) -> None:
        """Every paid call runs it."""
        key = (listing_id, bucket)
        known = self._counts.get(key)
        if known is not None:
            self._counts[key] = known + 1
        elif len(self._counts) < TALLY_KEYS_MAX:
            self._counts[key] = 1

    def take_counts(self) -> QualityCounts:
        """The tally then starts at zero."""
        taken, self._counts = self._counts, {}
        return taken

    def restore_counts(self, counts: QualityCounts) -> None:
        for key, count in counts.items():
            if key in self._counts or len(self._counts) < TALLY_KEYS_MAX:
                self._counts[key] = self._counts.get(key, 0) + count


class QualityRecords(Protocol):
    """The store of counts. Every method is atomic. Writes are not flushed: a crash of the machine may lose them."""

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        """Adds calls of that day. `Catalog.reputation` and lists show them after `update_sums`."""
        ...

    async def update_sums(self, listing_ids: Collection[ListingId], *, today: int) -> Mapping[ListingId, int]:
        """Sums the days up to today into the published quality of these listings. Returns the number of calls of each; unknown
        listings are left out. Of concurrent updates the last one includes all counts added before it."""
        ...

    async def read_days(self, listing_id: ListingId, *, today: int) -> Mapping[int, Mapping[Bucket, int]]:
        """The classes of calls by day, without what metered ones cost."""
        ...

    async def count_by_day(
        self, listing_ids: Collection[ListingId], *, today: int
    ) -> Mapping[ListingId, Sequence[int]]:
        """The calls of each of these listings on each day that counts, the oldest first. Listings without a call are left out."""
        ...

    async def find_outdated(self, *, today: int, count_max: int) -> tuple[ListingId, ...]: ...

    async def forget(self, *, today: int, rows_max: int) -> int:
        """Returns the number of deleted rows."""
        ...


_GOOD_BELOW = 400
_UPSTREAM_FAULTS = frozenset(
    {Code.UPSTREAM_TIMEOUT.value, Code.UPSTREAM_BAD_RESPONSE.value, Code.UPSTREAM_UNREACHABLE.value}
)


def classify(
    listing: Listing,
    payer: Address | None,
    *,
    payment_state: str,
    upstream_status: int | None,
    upstream_latency_ms: int | None,
    error: str | None,
) -> Bucket | None:
    """The bucket of an ended call; None when it says nothing about the upstream.

    `payer`: that of a paid call that repeats no other; None for any other call. `payment_state`: `charged`, `released` or
    `held`. `upstream_status` None: no response, for the reason `error`. None for a call that was free, that its own provider paid
    for, that repeats another, whose caller disconnected or whose gateway failed; and for an uncharged response that the caller caused.
    """
    if payer is None or payer in (listing.provider, listing.pay_to):
        return None
    if upstream_status is None:
        # A released price means an incomplete request, which a caller can cause too.
        return FAILED if payment_state == "held" and error in _UPSTREAM_FAULTS else None
    if payment_state == "charged":
        return bucket_of(upstream_latency_ms or 0) if upstream_status < _GOOD_BELOW else FAILED
    return None if is_charged(ChargeOn.ANSWERED, upstream_status) else FAILED
