"""The cache that is bounded by entries and by bytes, over random histories, and in its single rules."""

import random

import pytest

from tollway.bounded_cache import BoundedCache, BoundedDict


def make_cache(
    *, entries_max: int = 3, bytes_max: int = 10, entry_bytes_max: int = 6
) -> BoundedCache[str, int]:
    return BoundedCache(entries_max=entries_max, bytes_max=bytes_max, entry_bytes_max=entry_bytes_max)


def test_the_least_recently_used_entry_goes_first() -> None:
    cache = make_cache()
    for number, key in enumerate("abc"):
        assert cache.put(key, number, size_bytes=1)
    cache.touch("a")
    cache.put("d", 3, size_bytes=1)
    assert [cache.find(key) for key in "abcd"] == [0, None, 2, 3]
    with pytest.raises(KeyError):
        cache.touch("b")


def test_a_bounded_dictionary_ends_what_was_written_least_recently() -> None:
    known: BoundedDict[str, int] = BoundedDict(entries_max=3)
    for number, key in enumerate("abcad"):
        known[key] = number
    assert list(known.items()) == [("c", 2), ("a", 3), ("d", 4)]


def test_as_many_entries_go_as_the_bytes_of_a_new_one_need() -> None:
    cache = make_cache()
    for number, key in enumerate("abc"):
        cache.put(key, number, size_bytes=3)
    cache.put("d", 3, size_bytes=6)
    assert [cache.find(key) for key in "abcd"] == [None, None, 2, 3]
    assert (len(cache), cache.total_bytes) == (2, 9)


@pytest.mark.parametrize(("bytes_max", "size_bytes"), [(10, 7), (5, 6)])
def test_an_entry_that_is_too_large_is_not_stored_and_ends_the_older_one(
    bytes_max: int, size_bytes: int
) -> None:
    cache = make_cache(bytes_max=bytes_max)
    cache.put("a", 1, size_bytes=2)
    cache.put("b", 2, size_bytes=2)
    assert not cache.put("a", 3, size_bytes=size_bytes)
    assert (cache.find("a"), cache.find("b"), cache.total_bytes) == (None, 2, 2)


def test_an_entry_that_is_written_again_has_its_new_size() -> None:
    cache = make_cache()
    for size_bytes in (5, 2, 4):
        cache.put("a", size_bytes, size_bytes=size_bytes)
        assert (cache.find("a"), cache.total_bytes, len(cache)) == (size_bytes, size_bytes, 1)
    cache.drop("a")
    cache.drop("a")
    assert (cache.total_bytes, len(cache)) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_both_bounds_hold_in_every_history(seed: int) -> None:
    drawn = random.Random(seed)
    cache = make_cache(entries_max=8, bytes_max=60, entry_bytes_max=20)
    sizes: dict[str, int] = {}
    for number in range(2_000):
        key, size_bytes = str(drawn.randrange(30)), drawn.randrange(25)
        if drawn.random() < 0.1:
            cache.drop(key)
        elif cache.find(key) is not None and drawn.random() < 0.5:
            cache.touch(key)
        elif cache.put(key, number, size_bytes=size_bytes):
            assert cache.find(key) == number
            sizes[key] = size_bytes
        else:
            assert (size_bytes > 20, cache.find(key)) == (True, None)
        stored = [key for key in sizes if cache.find(key) is not None]
        assert len(stored) == len(cache) <= 8
        assert sum(sizes[key] for key in stored) == cache.total_bytes <= 60
