"""What is worked out once for each state of a listing, and kept while that state lasts. Bounded; no I/O, no clock.

A listing's state is known by its very object: the catalog hands out the same one until the listing has changed. (Its
revision is not enough: after a restore the same number may stand for something else.) It is not kept alive for that: a
listing may hold a document of a MiB, and the catalog says how many of those there are.
"""

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from tollway.identifiers import ListingId
from tollway.registry.listing import Listing

T = TypeVar("T")


class RevisionCache(Generic[T]):
    """Keeps at most `entries_max` things; who was not asked for longest goes first. For one event loop."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[tuple[ListingId, Hashable], tuple[weakref.ref[Listing], T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, listing: Listing, key: Hashable) -> T | None:
        """What was kept of this state of the listing under that key."""
        place = (listing.id, key)
        entry = self._entries.get(place)
        if entry is None or entry[0]() is not listing:
            return None
        self._entries.move_to_end(place)
        return entry[1]

    def put(self, listing: Listing, key: Hashable, made: T) -> T:
        """Remembers it, in place of what an older state had there; gives it back."""
        place = (listing.id, key)
        self._entries[place] = (weakref.ref(listing), made)
        self._entries.move_to_end(place)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        return made
