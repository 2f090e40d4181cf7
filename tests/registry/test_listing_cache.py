"""What is remembered of a listing is of its state as it is, and never more than so much."""

import gc
import weakref
from dataclasses import replace

from tests.kit.listings import sample_listing
from tollway.ids import Address, ListingId
from tollway.registry.listing import RevisionCache

LISTING = sample_listing(provider=Address(b"\x01" * 20))


def test_it_gives_back_what_was_kept_of_this_state_under_this_key() -> None:
    memory: RevisionCache[str] = RevisionCache(10)
    assert memory.find(LISTING, "a") is None
    assert memory.put(LISTING, "a", "made") == "made"
    assert (memory.find(LISTING, "a"), memory.find(LISTING, "b")) == ("made", None)


def test_another_state_of_the_listing_knows_nothing_even_under_the_same_revision() -> None:
    memory: RevisionCache[str] = RevisionCache(10)
    memory.put(LISTING, "a", "made")
    for other in (replace(LISTING, revision=2), replace(LISTING), replace(LISTING, id=ListingId("api_2"))):
        assert memory.find(other, "a") is None


def test_a_newer_state_takes_the_place_of_the_older_one() -> None:
    memory: RevisionCache[str] = RevisionCache(10)
    memory.put(LISTING, "a", "old")
    changed = replace(LISTING, revision=2)
    memory.put(changed, "a", "new")
    assert (memory.find(LISTING, "a"), memory.find(changed, "a"), len(memory)) == (None, "new", 1)


def test_what_was_not_asked_for_longest_goes_first() -> None:
    memory: RevisionCache[int] = RevisionCache(2)
    memory.put(LISTING, "a", 1)
    memory.put(LISTING, "b", 2)
    assert memory.find(LISTING, "a") == 1
    memory.put(LISTING, "c", 3)
    assert [memory.find(LISTING, key) for key in "abc"] == [1, None, 3]


def test_a_listing_is_not_kept_alive() -> None:
    """It may hold a document of a MiB."""
    memory: RevisionCache[str] = RevisionCache(10)
    other = replace(LISTING)
    memory.put(other, "a", "made")
    seen = weakref.ref(other)
    del other
    gc.collect()
    assert seen() is None
    assert memory.find(LISTING, "a") is None
