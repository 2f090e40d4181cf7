"""Compiled statements that every SQLite engine of a process shares.

Each gateway that a test starts has two engines, and each engine compiles the statements that it runs: without this, that is a tenth of the processor's time of
`make quick`. The key of a compiled statement contains the dialect, so dialects of one class are equal here: no engine of this project has options of a dialect."""

from typing import Any

from sqlalchemy import Engine
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.util import LRUCache

COMPILED: LRUCache[Any, Any] = LRUCache(10_000)


def share_compiled_statements() -> None:
    """Every SQLite engine that is made from now on takes its compiled statements from `COMPILED`. Call it once in a process."""
    make = Engine.__init__

    def make_sharing(self: Engine, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        if isinstance(self.dialect, SQLiteDialect):
            self.update_execution_options(compiled_cache=COMPILED)

    SQLiteDialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    SQLiteDialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    Engine.__init__ = make_sharing  # type: ignore[method-assign]
