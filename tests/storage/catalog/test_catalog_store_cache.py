"""The cache of listings: at most a second old, never older than an own write, bounded."""

from dataclasses import replace

import pytest

from tests.kit.listings import sample_listing
from tollway.ids import Address, ListingId
from tollway.registry.listing import CatalogEntry
from tollway.storage.catalog.catalog_store import FRESH_MS, REFRESH_MS, ListingCache

ID = ListingId("api_1")
START = 1_000_000


def make_entry(listing_id: str = ID, *, revision: int = 1) -> CatalogEntry:
    listing = sample_listing(id=ListingId(listing_id), provider=Address(20), revision=revision)
    return CatalogEntry(listing=listing, versions=())


@pytest.fixture
def cache() -> ListingCache:
    """With one entry, as of START."""
    return filled()


def filled() -> ListingCache:
    cache = ListingCache()
    cache.keep(make_entry(), weight=0, read_ms=START, writes=0)
    return cache


def test_serves_what_is_fresh(cache: ListingCache) -> None:
    assert cache.find(ID, now_ms=START) == make_entry()
    assert cache.find(ID, now_ms=START + REFRESH_MS - 1) == make_entry()
    assert cache.find(ListingId("api_2"), now_ms=START) is None


def test_one_caller_checks_while_the_others_get_the_cached_entry(cache: ListingCache) -> None:
    assert cache.find(ID, now_ms=START + REFRESH_MS) == "stale"
    assert cache.find(ID, now_ms=START + REFRESH_MS) == make_entry()
    assert cache.find(ID, now_ms=START + FRESH_MS) == "stale"  # never older than a second


@pytest.mark.parametrize("look_ms", [0, 1, 300, 700, 1_500])
@pytest.mark.parametrize("interval_ms", [1, 7, 100, 499, 600])
def test_no_entry_is_served_a_second_after_a_change(
    cache: ListingCache, look_ms: int, interval_ms: int
) -> None:
    """Another gateway changes the listing repeatedly; this one reads it in intervals, and checks take time."""
    changed_ms = {1: START}
    looks: list[tuple[int, int, int]] = []  # begin, end, revision
    for now_ms in range(START, START + 6_000, interval_ms):
        if (now_ms - START) // 1_300 >= len(changed_ms):
            changed_ms[len(changed_ms) + 1] = now_ms
        for look in [look for look in looks if look[1] <= now_ms]:
            looks.remove(look)
            began_ms, _, revision = look
            if cache.confirm(ID, revision, read_ms=began_ms, writes=0) is None:
                cache.keep(make_entry(revision=revision), weight=0, read_ms=began_ms, writes=0)
        found = cache.find(ID, now_ms=now_ms)
        if isinstance(found, CatalogEntry):
            newer = changed_ms.get(found.listing.revision + 1)
            assert newer is None or now_ms - newer < FRESH_MS
        else:
            looks.append((now_ms, now_ms + look_ms, len(changed_ms)))
    assert len(changed_ms) > 3


def test_the_promised_second() -> None:
    assert REFRESH_MS < FRESH_MS == 1_000


def test_after_a_failed_check_the_next_caller_checks(cache: ListingCache) -> None:
    assert cache.find(ID, now_ms=START + REFRESH_MS) == "stale"
    cache.end_check(ID)
    assert cache.find(ID, now_ms=START + REFRESH_MS) == "stale"


def test_a_confirmed_entry_is_fresh_since_the_begin_of_the_check(cache: ListingCache) -> None:
    later = START + REFRESH_MS
    assert cache.find(ID, now_ms=later) == "stale"
    assert cache.confirm(ID, 1, read_ms=later, writes=0) == make_entry()
    assert cache.find(ID, now_ms=later + REFRESH_MS - 1) == make_entry()
    assert cache.find(ID, now_ms=later + REFRESH_MS) == "stale"


def test_another_revision_is_dropped() -> None:
    for revision in (2, None):
        cache = filled()
        assert cache.confirm(ID, revision, read_ms=START, writes=0) is None
        assert cache.find(ID, now_ms=START) is None


def test_a_clock_that_steps_back_makes_stale() -> None:
    assert filled().find(ID, now_ms=START - 1) == "stale"


def test_an_own_write_is_visible_at_once(cache: ListingCache) -> None:
    cache.forget(ID)
    assert cache.find(ID, now_ms=START) is None


def test_a_read_before_an_own_write_is_not_kept_after_it(cache: ListingCache) -> None:
    writes = cache.writes
    cache.forget(ID)
    cache.keep(make_entry(), weight=0, read_ms=START, writes=writes)
    assert cache.find(ID, now_ms=START) is None
    cache.keep(make_entry(revision=2), weight=0, read_ms=START, writes=cache.writes)
    assert cache.confirm(ID, 2, read_ms=START, writes=writes) is None


def test_the_least_recently_used_entry_is_dropped_first() -> None:
    cache = ListingCache(entries_max=2)
    for name in ("api_1", "api_2"):
        cache.keep(make_entry(name), weight=0, read_ms=START, writes=0)
    cache.find(ListingId("api_1"), now_ms=START)
    cache.keep(make_entry("api_3"), weight=0, read_ms=START, writes=0)
    assert len(cache) == 2
    assert cache.find(ListingId("api_2"), now_ms=START) is None
    assert cache.find(ListingId("api_1"), now_ms=START) is not None


def test_the_sizes_of_documents_are_bounded() -> None:
    cache = ListingCache(bytes_max=100)
    for number in range(4):
        cache.keep(make_entry(f"api_{number}"), weight=40, read_ms=START, writes=0)
    assert len(cache) == 2
    cache.keep(make_entry("api_3"), weight=10, read_ms=START, writes=0)  # replaced, not added
    cache.keep(make_entry("api_4"), weight=50, read_ms=START, writes=0)
    assert len(cache) == 3
    cache.keep(make_entry("api_5"), weight=101, read_ms=START, writes=0)
    assert len(cache) == 3


def test_after_a_restore_no_older_entry_is_served() -> None:
    cache = ListingCache()
    cache.keep(make_entry(), weight=1, read_ms=START, writes=0)
    cache.forget_all()
    assert cache.find(ID, now_ms=START) is None
    cache.keep(make_entry(), weight=1, read_ms=START, writes=0)  # read before
    assert len(cache) == 0


def test_a_newer_revision_replaces_the_entry(cache: ListingCache) -> None:
    newer = replace(make_entry(), listing=replace(make_entry().listing, revision=2))
    cache.keep(newer, weight=0, read_ms=START, writes=0)
    assert cache.find(ID, now_ms=START) == newer
