"""The cache of values derived from a listing: per state of the listing, and bounded."""

import gc
import weakref
from dataclasses import replace

from tests.kit.listings import sample_listing
from tollway.ids import Address, ListingId
from tollway.registry.listing import RevisionCache

LISTING = sample_listing(provider=Address(b"\x01" * 20))


def test_returns_the_value_of_this_state_and_key() -> None:
    memory: RevisionCache[str] = RevisionCache(10)
    assert memory.find(LISTING, "a") is None
    assert memory.put(LISTING, "a", "made") == "made"
    assert (memory.find(LISTING, "a"), memory.find(LISTING, "b")) == ("made", None)


def test_another_object_with_the_same_revision_has_no_value() -> None:
    memory: RevisionCache[str] = RevisionCache(10)
    memory.put(LISTING, "a", "made")
    for other in (replace(LISTING, revision=2), replace(LISTING), replace(LISTING, id=ListingId("api_2"))):
        assert memory.find(other, "a") is None


def test_a_newer_state_replaces_the_older_one() -> None:
    memory: RevisionCache[str] = RevisionCache(10)
    memory.put(LISTING, "a", "old")
    changed = replace(LISTING, revision=2)
    memory.put(changed, "a", "new")
    assert (memory.find(LISTING, "a"), memory.find(changed, "a"), len(memory)) == (None, "new", 1)


def test_the_least_recently_used_value_is_evicted() -> None:
    memory: RevisionCache[int] = RevisionCache(2)
    memory.put(LISTING, "a", 1)
    memory.put(LISTING, "b", 2)
    assert memory.find(LISTING, "a") == 1
    memory.put(LISTING, "c", 3)
    assert [memory.find(LISTING, key) for key in "abc"] == [1, None, 3]


def test_the_cache_holds_no_reference_to_a_listing() -> None:
    """It may hold a document of a MiB."""
    memory: RevisionCache[str] = RevisionCache(10)
    other = replace(LISTING)
    memory.put(other, "a", "made")
    seen = weakref.ref(other)
    del other
    gc.collect()
    assert seen() is None
    assert memory.find(LISTING, "a") is None
