"""Buckets, percentiles, and the least number of calls of a quality."""

from dataclasses import replace

import pytest

from tests.kit.listings import sample_listing
from tests.kit.metering import sample_metering
from tollway.ids import Address, ListingId
from tollway.money import Price
from tollway.registry.listing import Operation
from tollway.registry.quality import (
    CALLS_MIN,
    COSTS_FROM,
    FAILED,
    TALLY_KEYS_MAX,
    Bucket,
    CostShare,
    Quality,
    QualityTally,
    bucket_of,
    cost_bucket,
    day_of,
    first_day,
    latency_of,
    list_costs,
    number_operation,
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


# ---- What metered calls cost.

CHAT = number_operation("POST", "/chat")


def cost(percent: int, *, operation: int = CHAT) -> Bucket:
    return cost_bucket(operation, units=percent, max_units=100)


@pytest.mark.parametrize(
    ("units", "max_units", "percent"),
    [(0, 3, 0), (1, 3, 33), (2, 3, 67), (3, 3, 100), (1, 1_000, 0), (5, 1_000, 1), (10**17, 10**17, 100)],
)
def test_a_cost_counts_to_the_nearest_per_cent(units: int, max_units: int, percent: int) -> None:
    assert cost_bucket(CHAT, units=units, max_units=max_units) == cost(percent)


def test_every_bucket_of_a_cost_fits_its_column_and_is_no_class_of_a_call() -> None:
    assert cost(0, operation=0) == COSTS_FROM > bucket_of(24 * 3_600_000)
    assert cost(100, operation=2**20 - 1) < 2**31
    assert len({number_operation("", ""), number_operation("GET", "/a"), number_operation("POST", "/a")}) == 3


@pytest.mark.parametrize(
    ("counts", "costs"),
    [
        ({cost(10): 19}, ()),
        ({cost(10): 19, cost(10, operation=7): 1}, ()),
        ({cost(10): 20}, (CostShare(operation=CHAT, calls=20, mean_percent=10, p95_percent=10),)),
        (
            {cost(0): 10, cost(30): 9, cost(100): 1},
            (CostShare(operation=CHAT, calls=20, mean_percent=18, p95_percent=30),),
        ),
        (
            {cost(1, operation=7): 20, cost(99): 21},
            (
                CostShare(operation=CHAT, calls=21, mean_percent=99, p95_percent=99),
                CostShare(operation=7, calls=20, mean_percent=1, p95_percent=1),
            ),
        ),
    ],
)
def test_costs_are_summed_for_each_operation_beside_the_quality(
    counts: dict[Bucket, int], costs: tuple[CostShare, ...]
) -> None:
    assert summarise(counts) is None
    quality = Quality(calls=20, success_ppm=1_000_000, p50_ms=10, p95_ms=10, costs=costs)
    assert summarise({FAST: 20, **counts}) == quality


def test_the_costs_of_a_listing_are_those_of_its_metered_prices() -> None:
    chat = Operation(method="POST", path="/chat", price=Price.parse("0.02"), metering=sample_metering())
    fixed = Operation(method="GET", path="/chat", price=Price.parse("0.02"))
    share = CostShare(operation=CHAT, calls=20, mean_percent=1, p95_percent=1)
    own = replace(share, operation=number_operation("", ""))
    quality = Quality(calls=60, success_ppm=1, p50_ms=1, p95_ms=1, costs=(share, own))
    listing = sample_listing(provider=Address(b"\xaa" * 20), operations=(fixed, chat))
    assert list_costs(listing, quality) == [(chat, share)]
    assert list_costs(replace(listing, metering=sample_metering()), quality) == [(None, own), (chat, share)]
    assert list_costs(listing, None) == []
