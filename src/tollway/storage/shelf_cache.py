"""What the hot path knows of listings without asking the database: a bounded memory of shelves, fresh to a second.

It holds no lock and does no I/O: the store asks it what may be served, and tells it what it read or wrote.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from tollway.identifiers import ListingId
from tollway.limits import MIB
from tollway.registry.listing import CatalogEntry

FRESH_MS = 1_000
"""A change by another process shows after this long at the latest."""

REFRESH_MS = 500
"""From this age on, one of the askers looks; the others are served meanwhile, so that a busy listing costs one read."""

ENTRIES_MAX = 4_096
DOCUMENT_BYTES_MAX = 64 * MIB


@dataclass(slots=True, kw_only=True)
class _CachedListing:
    entry: CatalogEntry
    weight: int
    checked_ms: int
    is_checking: bool = False


class ListingCache:
    """`writes` counts this process's own changes; what was read before one of them is not kept after it."""

    def __init__(self, *, entries_max: int = ENTRIES_MAX, bytes_max: int = DOCUMENT_BYTES_MAX) -> None:
        self._entries: OrderedDict[ListingId, _CachedListing] = OrderedDict()
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._weight = 0
        self.writes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, listing_id: ListingId, *, now_ms: int) -> CatalogEntry | Literal["stale"] | None:
        """The shelf when it may be served. `stale`: known, and the asker must look whether it has changed."""
        entry = self._entries.get(listing_id)
        if entry is None:
            return None
        self._entries.move_to_end(listing_id)
        age_ms = now_ms - entry.checked_ms
        if 0 <= age_ms < REFRESH_MS or (0 <= age_ms < FRESH_MS and entry.is_checking):
            return entry.entry
        entry.is_checking = True
        return "stale"

    def confirm(
        self, listing_id: ListingId, revision: int | None, *, read_ms: int, writes: int
    ) -> CatalogEntry | None:
        """After a look that began at `read_ms`: the shelf when it still has that revision, else it is dropped."""
        entry = self._entries.get(listing_id)
        if entry is None:
            return None
        if writes != self.writes or revision != entry.entry.listing.revision:
            self._drop(listing_id)
            return None
        entry.checked_ms = read_ms
        entry.is_checking = False
        return entry.entry

    def end_check(self, listing_id: ListingId) -> None:
        """The look failed: the next asker looks for itself."""
        if entry := self._entries.get(listing_id):
            entry.is_checking = False

    def keep(self, entry: CatalogEntry, *, weight: int, read_ms: int, writes: int) -> None:
        """Remembers what was read, unless this process has written since the read began."""
        if writes != self.writes or weight > self._bytes_max:
            return
        self._drop(entry.listing.id)
        self._entries[entry.listing.id] = _CachedListing(entry=entry, weight=weight, checked_ms=read_ms)
        self._weight += weight
        while len(self._entries) > self._entries_max or self._weight > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def forget(self, listing_id: ListingId) -> None:
        """This process has changed the listing."""
        self.writes += 1
        self._drop(listing_id)

    def forget_all(self) -> None:
        """The database is another one: a revision there may be of another listing."""
        self.writes += 1
        self._entries.clear()
        self._weight = 0

    def _drop(self, listing_id: ListingId) -> None:
        entry = self._entries.pop(listing_id, None)
        if entry is not None:
            self._weight -= entry.weight
