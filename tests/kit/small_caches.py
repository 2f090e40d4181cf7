"""Caches of a gateway under test that are full after a few hundred calls, so that its memory shows what grows without a bound.

`TEST_CACHE_ENTRIES` in the environment of the gateway is how many entries each of them may hold. What they answer stays the same.
"""

import sys
from collections.abc import Mapping
from functools import _lru_cache_wrapper, lru_cache
from typing import Any

from tollway import bounded_cache
from tollway.rate_limits import windows
from tollway.storage.engine import database
from tollway.storage.ledger import group_commit

ENTRIES = "TEST_CACHE_ENTRIES"
PAGES_KIB = 256
"""Of the pages of a file of SQLite, for each connection."""


def install(environment: Mapping[str, str]) -> None:
    if ENTRIES not in environment:
        return
    entries_max = int(environment[ENTRIES])
    for kind in (bounded_cache.BoundedDict, bounded_cache.BoundedCache):
        _bound(kind, entries_max)
    vars(group_commit)["REOPENED_MAX"] = entries_max
    vars(windows)["SWEEP_AFTER"] = entries_max
    vars(database)["CACHE_KIB"] = PAGES_KIB
    _shrink_functions(entries_max)


def _bound(kind: Any, entries_max: int) -> None:
    begin = kind.__init__

    def begin_small(self: Any, **options: int) -> None:
        begin(self, **{**options, "entries_max": min(options["entries_max"], entries_max)})

    kind.__init__ = begin_small


def _shrink_functions(entries_max: int) -> None:
    """Of the functions with a cache, in each module that has their name."""
    smaller: dict[int, Any] = {}
    modules = [vars(module) for name, module in list(sys.modules.items()) if name.startswith("tollway")]
    for names in modules:
        for name, found in list(names.items()):
            if isinstance(found, _lru_cache_wrapper) and (found.cache_info().maxsize or 0) > entries_max:
                if id(found) not in smaller:
                    smaller[id(found)] = lru_cache(maxsize=entries_max)(found.__wrapped__)
                names[name] = smaller[id(found)]
