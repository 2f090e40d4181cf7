"""How the paid calls of a listing went, counted: by day in buckets, summed up over 30 days. Pure.

It does not decide which calls count (`gateway/appraisal.py` does), and nothing about a call depends on it.
"""

from collections.abc import Mapping
from typing import NewType

from tollway.identifiers import ListingId
from tollway.registry.standing import Quality

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
