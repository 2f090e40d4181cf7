"""Buckets, percentiles, and the least number of calls of a quality."""

import pytest

from tollway.ids import ListingId
from tollway.registry.quality import (
    CALLS_MIN,
    FAILED,
    TALLY_KEYS_MAX,
    Bucket,
    Quality,
    QualityTally,
    bucket_of,
    day_of,
    first_day,
    latency_of,
    summarise,
)

ONE, TWO = ListingId("api_1"), ListingId("api_2")


def test_the_error_of_a_bucket_is_at_most_a_sixteenth() -> None:
    before = FAILED
    for latency_ms in [*range(2_000), *range(2_000, 400_000, 37)]:
        bucket = bucket_of(latency_ms)
        assert bucket in (before, before + 1) or latency_ms >= 2_000
        assert bucket >= before
        assert abs(latency_of(bucket) - latency_ms) * 16 <= latency_ms, latency_ms
        before = bucket
    assert bucket_of(-5) == bucket_of(0) == 1  # a clock that was set back
    assert before < 150  # so few rows a day


def test_buckets_have_distinct_latencies() -> None:
    told = [latency_of(Bucket(number)) for number in range(1, 150)]
    assert told == sorted(set(told))
    assert [bucket_of(latency_ms) for latency_ms in told] == list(range(1, 150))


FAST, SLOW, SLOWEST = bucket_of(10), bucket_of(100), bucket_of(1_000)
SUMS: list[tuple[dict[Bucket, int], Quality | None]] = [
    ({}, None),
    ({FAST: 19}, None),
    ({FAST: 10, FAILED: 9}, None),
    ({FAST: 20}, Quality(calls=20, success_ppm=1_000_000, p50_ms=10, p95_ms=10)),
    ({FAILED: 20}, Quality(calls=20, success_ppm=0, p50_ms=None, p95_ms=None)),
    ({FAST: 15, FAILED: 5}, Quality(calls=20, success_ppm=750_000, p50_ms=10, p95_ms=10)),
    ({SLOWEST: 1, FAST: 19}, Quality(calls=20, success_ppm=1_000_000, p50_ms=10, p95_ms=10)),
    (
        {SLOWEST: 2, FAST: 18},
        Quality(calls=20, success_ppm=1_000_000, p50_ms=10, p95_ms=latency_of(SLOWEST)),
    ),
    (
        {FAST: 10, SLOW: 11, FAILED: 1},
        Quality(calls=22, success_ppm=954_545, p50_ms=latency_of(SLOW), p95_ms=latency_of(SLOW)),
    ),
    ({FAST: 2_999_999, FAILED: 1}, Quality(calls=3_000_000, success_ppm=999_999, p50_ms=10, p95_ms=10)),
]


@pytest.mark.parametrize(("counts", "quality"), SUMS)
def test_sums(counts: dict[Bucket, int], quality: Quality | None) -> None:
    assert summarise(counts) == quality


def test_thirty_days_count_including_today() -> None:
    today = day_of(1_800_000_000_000)
    assert today - first_day(today) == 29
    assert day_of(today * 86_400_000) == today == day_of((today + 1) * 86_400_000 - 1)
    assert CALLS_MIN == 20


def test_a_tally_counts_until_it_is_taken() -> None:
    tally = QualityTally()
    for _ in range(3):
        tally.count_call(ONE, FAST)
    tally.count_call(ONE, FAILED)
    tally.count_call(TWO, FAST)
    taken = tally.take_counts()
    assert taken == {(ONE, FAST): 3, (ONE, FAILED): 1, (TWO, FAST): 1}
    assert tally.take_counts() == {}
    tally.count_call(ONE, FAST)
    tally.restore_counts(taken)
    assert tally.take_counts() == {(ONE, FAST): 4, (ONE, FAILED): 1, (TWO, FAST): 1}


def test_a_tally_that_is_not_written_is_bounded() -> None:
    tally = QualityTally()
    for number in range(TALLY_KEYS_MAX + 10):
        tally.count_call(ListingId(f"api_{number}"), FAST)
    tally.count_call(ListingId("api_0"), FAST)
    taken = tally.take_counts()
    assert (len(taken), taken[ListingId("api_0"), FAST]) == (TALLY_KEYS_MAX, 2)
    for number in range(5):
        tally.count_call(ListingId(f"new_{number}"), FAST)
    tally.restore_counts(taken)
    assert len(tally.take_counts()) == TALLY_KEYS_MAX
