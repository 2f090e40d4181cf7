"""The reputation of listings: what measures their quality, proves who owns their endpoints and finds out whether they are
up, wired together and kept running. A part of the house. It decides nothing about a call.
"""

import asyncio
from collections.abc import Callable

from tollway.chores import Chores, repeat
from tollway.limits import Limits
from tollway.outbound.dialer import Dialer
from tollway.registry.quality_keeper import RENEW_INTERVAL_S, QualityKeeper
from tollway.registry.quality_tally import QualityTally
from tollway.storage.database import Database
from tollway.storage.leadership import Duty, Leadership
from tollway.storage.quality_store import QualityStore


class Reputation:
    """One per gateway. `tally`: where the passage counts how paid calls ended."""

    def __init__(
        self, *, database: Database, dialer: Dialer, limits: Limits, now_ms: Callable[[], int]
    ) -> None:
        self._database = database
        self._dialer = dialer
        self._limits = limits
        self._now_ms = now_ms
        self.tally = QualityTally()
        self._quality = QualityKeeper(QualityStore(database), tally=self.tally, now_ms=now_ms)

    def start(self, chores: Chores, *, lead: Callable[[Duty], Leadership]) -> None:
        """Everything that runs beside the requests, from here on. `lead`: a candidature for a duty of one gateway."""
        chores.start(self._keep_quality())
        chores.start(lead(Duty.REPUTATION).lead(self._lead))

    async def _keep_quality(self) -> None:
        try:
            await repeat(self._limits.quality_flush_s, self._quality.write_down)
        finally:
            await self._quality.finish()

    async def _lead(self) -> None:
        """What one gateway does for all."""
        async with asyncio.TaskGroup() as group:
            group.create_task(repeat(RENEW_INTERVAL_S, self._quality.renew))
