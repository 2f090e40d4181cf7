"""Clocks that a test sets."""

from dataclasses import dataclass

from sqlalchemy import Connection


@dataclass(slots=True)
class StoppedClock:
    """A monotonic clock in seconds that a test sets."""

    s: float = 0.0

    def __call__(self) -> float:
        return self.s


@dataclass(slots=True)
class Clock:
    """A clock of a gateway in milliseconds; `read_shared` is the same time as the clock of a database."""

    ms: int

    def __call__(self) -> int:
        return self.ms

    def read_shared(self, _connection: Connection, _now_ms: int) -> int:
        return self.ms
