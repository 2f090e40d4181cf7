"""Caches of a gateway under test that are full after a few hundred calls, so that its memory shows what grows without a bound.

`TEST_CACHE_ENTRIES` in the environment of the gateway is how many entries each of them may hold. What they answer stays the same.
"""

from collections.abc import Mapping
from typing import Any

from tollway import bounded_cache
from tollway.rate_limits import windows
from tollway.storage.ledger import group_commit

ENTRIES = "TEST_CACHE_ENTRIES"


def install(environment: Mapping[str, str]) -> None:
    if ENTRIES not in environment:
        return
    entries_max = int(environment[ENTRIES])
    for kind in (bounded_cache.BoundedDict, bounded_cache.BoundedCache):
        _bound(kind, entries_max)
    vars(group_commit)["REOPENED_MAX"] = entries_max
    vars(windows)["SWEEP_AFTER"] = entries_max


def _bound(kind: Any, entries_max: int) -> None:
    begin = kind.__init__

    def begin_small(self: Any, **options: int) -> None:
        begin(self, **{**options, "entries_max": min(options["entries_max"], entries_max)})

    kind.__init__ = begin_small
