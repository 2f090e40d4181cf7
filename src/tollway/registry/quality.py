"""The quality of a listing, measured from its paid calls: which outcome counts as what, counts by day in buckets, sums over 30 days, and
the port of their store. Pure.

A failure counts only where it is the upstream's own, or where it cost the caller something: otherwise a competitor could lower the rate for free.
No call depends on anything here.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NewType, Protocol

from tollway.errors import Code
from tollway.ids import Address, ListingId
from tollway.registry.listing import ChargeOn, Listing, is_charged

RANK_WEIGHT_MIN, RANK_WEIGHT_SPAN = 0.5, 0.75
"""Relevance is multiplied by `RANK_WEIGHT_MIN + RANK_WEIGHT_SPAN * rate²`, for a success rate from 0 to 1: by 1.25 where no call failed,
by 1 at a rate of 0.82 and for a listing that is not measured, by 0.5 where every call failed. So measured quality decides
among listings that fit about as well, and never makes one fit that does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Measured from the paid calls of 30 days, without those that the provider paid for. `success_ppm`: millionths of
    the calls. The latencies are those of the upstream, of the calls that succeeded; None when none did."""

    calls: int
    success_ppm: int
    p50_ms: int | None
    p95_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reputation:
    """`quality` None: too few calls to say anything. `verified_ms`: when the ownership of the endpoint's origin was last
    proved; None when it is not, or not any more."""

    quality: Quality | None = None
    verified_ms: int | None = None

    @property
    def is_verified(self) -> bool:
        return self.verified_ms is not None


UNKNOWN_REPUTATION = Reputation()


def rank_weight(quality: Quality | None) -> float:
    """By what the relevance of a listing is multiplied."""
    return 1.0 if quality is None else rate_weight(quality.success_ppm)


def rate_weight(success_ppm: int) -> float:
    rate = success_ppm / 1_000_000
    return RANK_WEIGHT_MIN + RANK_WEIGHT_SPAN * rate * rate


def round_up_ppm(rate: float) -> int:
    """The least `success_ppm` that is not below a rate. Rounded first: 0.29 is no binary number."""
    return math.ceil(round(rate * 1_000_000, 6))


DAYS = 30
"""UTC days that count, today included."""
CALLS_MIN = 20
"""Fewer say nothing."""
TALLY_KEYS_MAX = 50_000
"""Listings and buckets that a tally holds while nobody can write them down; what is more is not counted."""

Bucket = NewType("Bucket", int)
"""How a call ended: 0 failed; above, it succeeded, within a range of latencies."""
QualityCounts = Mapping[tuple[ListingId, Bucket], int]

FAILED = Bucket(0)

_EXACT = 16  # milliseconds up to here have a bucket each
_PARTS_BITS = 3  # from there on, each doubling has 8: what a bucket says is at most a sixteenth off
_DAY_MS = 86_400_000


def day_of(now_ms: int) -> int:
    """The UTC day since the epoch."""
    return now_ms // _DAY_MS


def first_day(today: int) -> int:
    return today - DAYS + 1


def bucket_of(latency_ms: int) -> Bucket:
    """The bucket of a call that succeeded."""
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


def summarise(counts: Mapping[Bucket, int]) -> Quality | None:
    """What the calls of 30 days say; None when they are too few."""
    calls = sum(counts.values())
    if calls < CALLS_MIN:
        return None
    succeeded = {bucket: count for bucket, count in sorted(counts.items()) if bucket != FAILED}
    return Quality(
        calls=calls,
        success_ppm=sum(succeeded.values()) * 1_000_000 // calls,
        p50_ms=_percentile(succeeded, 50),
        p95_ms=_percentile(succeeded, 95),
    )


def _percentile(ordered: Mapping[Bucket, int], percent: int) -> int | None:
    """The least latency that so many per cent of the calls do not exceed (nearest rank)."""
    rank = -(-sum(ordered.values()) * percent // 100)
    for bucket, count in ordered.items():
        rank -= count
        if rank <= 0:
            return latency_of(bucket)
    return None


class QualityTally:
    """What one process has counted and not yet written down. Only of one event loop."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[tuple[ListingId, Bucket], int] = {}

    def count_call(self, listing_id: ListingId, bucket: Bucket) -> None:
        """One call more. It is on every paid call's way."""
        key = (listing_id, bucket)
        known = self._counts.get(key)
        if known is not None:
            self._counts[key] = known + 1
        elif len(self._counts) < TALLY_KEYS_MAX:
            self._counts[key] = 1

    def take_counts(self) -> QualityCounts:
        """Everything; from now on it is the taker's."""
        taken, self._counts = self._counts, {}
        return taken

    def restore_counts(self, counts: QualityCounts) -> None:
        """What could not be written down."""
        for key, count in counts.items():
            if key in self._counts or len(self._counts) < TALLY_KEYS_MAX:
                self._counts[key] = self._counts.get(key, 0) + count


class QualityRecords(Protocol):
    """Safe to call from many gateways at once. Every method is atomic and raises `StorageUnavailable` when the store is
    away. What a crash of the machine takes of it is lost: nothing here is worth a flush."""

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        """More calls, of that day. `Catalog.standing` and lists show them after `update_sums`."""
        ...

    async def update_sums(self, listing_ids: Collection[ListingId], *, today: int) -> Mapping[ListingId, int]:
        """Makes what is shown of these listings what the days up to today say. Gives how many calls that were; those that
        are no listings are left out. Of several at once, the last knows what all had added before."""
        ...

    async def find_outdated(self, *, today: int, count_max: int) -> tuple[ListingId, ...]:
        """Listings whose sums are of an earlier day."""
        ...

    async def forget(self, *, today: int, rows_max: int) -> int:
        """Drops what is older than counts any more; how much was dropped."""
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
    """`payer`: of a paid call that repeats no other; None for any other call. `payment_state`: `charged`, `released` or
    `held`, where the call has ended. `upstream_status` None: no answer came, for the reason that `error` names.

    None for what says nothing: a call that was free, that its own provider paid for, or that repeats another; whose
    caller left, or whose gateway failed; and an answer that is the caller's own fault and that the caller did not pay.
    """
    if payer is None or payer in (listing.provider, listing.pay_to):
        return None
    if upstream_status is None:
        # With the price given back, the request was not whole: that is in the caller's power too.
        return FAILED if payment_state == "held" and error in _UPSTREAM_FAULTS else None
    if payment_state == "charged":
        return bucket_of(upstream_latency_ms or 0) if upstream_status < _GOOD_BELOW else FAILED
    return None if is_charged(ChargeOn.ANSWERED, upstream_status) else FAILED
