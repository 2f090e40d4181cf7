"""The reputation of listings: what measures their quality, proves who owns their endpoints and finds out whether they are
up, wired together and kept running. A part of the house. It decides nothing about a call.
"""

from collections.abc import Callable

from tollway.chores import Chores
from tollway.limits import Limits
from tollway.outbound.dialer import Dialer
from tollway.storage.database import Database
from tollway.storage.leadership import Duty, Leadership


class Reputation:
    """One per gateway."""

    def __init__(
        self, *, database: Database, dialer: Dialer, limits: Limits, now_ms: Callable[[], int]
    ) -> None:
        self._database = database
        self._dialer = dialer
        self._limits = limits
        self._now_ms = now_ms

    def start(self, chores: Chores, *, lead: Callable[[Duty], Leadership]) -> None:
        """Everything that runs beside the requests, from here on. `lead`: a candidature for a duty of one gateway."""
