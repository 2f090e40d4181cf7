"""The reputation of listings: what measures their quality, proves who owns their endpoints and finds out whether they are
up, wired together and kept running. A part of the house. It decides nothing about a call.
"""

from collections.abc import Callable
from functools import partial

from tollway.background import BackgroundTasks, TaskName, run_all
from tollway.chain.reader import ChainReader
from tollway.chores import Chores
from tollway.discovery.ownership_rounds import OwnershipRounds
from tollway.gateway.breaker import Breaker
from tollway.gateway.prober import Prober
from tollway.identity.public_origin import parse_origin
from tollway.identity.signatures import SignatureJudge
from tollway.outbound.dialer import Dialer
from tollway.outbound.name_records import NameRecords
from tollway.outbound.ownership_checker import OwnershipChecker
from tollway.registry.ownership import Challenge, Method
from tollway.registry.quality_keeper import RENEW_INTERVAL_S, QualityKeeper
from tollway.registry.quality_tally import QualityTally
from tollway.settings import Settings
from tollway.storage.database import Database
from tollway.storage.leadership import Duty, Leadership
from tollway.storage.ownership_store import OwnershipStore
from tollway.storage.quality_store import QualityStore

OWNERSHIP_INTERVAL_S = 60.0
"""Between two looks at which proofs are due."""
PROBER_RESTART_S = 1.0
"""It runs for good; should it ever fail, it is logged and begins anew."""


class Reputation:
    """One per gateway. `tally`: where the passage counts how paid calls ended. `ownerships`, `checker`: what is known of
    the owners of endpoints, and who finds it out. `breaker`: which upstreams are down."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        dialer: Dialer,
        chains: ChainReader,
        now_ms: Callable[[], int],
        background: BackgroundTasks,
    ) -> None:
        self._background = background
        self._limits = limits = settings.limits
        self.breaker = Breaker(limits=limits)
        self._prober = Prober(self.breaker, knock=dialer.knock, task=background[TaskName.UPSTREAM_PROBES])
        self.ownerships = OwnershipStore(database, now_ms=now_ms)
        self.checker = OwnershipChecker(
            dialer=dialer,
            names=NameRecords(settings.name_servers, deadline_s=limits.dns_deadline_s),
            judge=SignatureJudge(chains, limits=limits),
            gateway=str(parse_origin(settings.public_url)),
            limits=limits,
        )
        self._rounds = OwnershipRounds(
            self.ownerships,
            challenge=self.checker.challenge,
            look=self._look,
            limits=limits,
            now_ms=now_ms,
        )
        self.tally = QualityTally()
        self._quality = QualityKeeper(QualityStore(database), tally=self.tally, now_ms=now_ms)

    def start(self, chores: Chores, *, lead: Callable[[Duty], Leadership]) -> None:
        """Everything that runs beside the requests, from here on. `lead`: a candidature for a duty of one gateway."""
        chores.start(TaskName.QUALITY_WRITER, self._keep_quality)
        chores.every(TaskName.UPSTREAM_PROBES, PROBER_RESTART_S, self._prober.run)
        chores.start(TaskName.REPUTATION_ELECTION, partial(lead(Duty.REPUTATION).lead, self._lead))

    async def _keep_quality(self) -> None:
        task = self._background[TaskName.QUALITY_WRITER]
        try:
            await task.repeat(self._limits.quality_flush_s, self._quality.write_down)
        finally:
            await self._quality.finish()

    async def _lead(self) -> None:
        """What one gateway does for all."""
        quality, ownership = (
            self._background[name] for name in (TaskName.QUALITY_RENEWAL, TaskName.OWNERSHIP_CHECK)
        )
        interval_s = min(OWNERSHIP_INTERVAL_S, self._limits.ownership_recheck_s)
        renewing = partial(quality.repeat, RENEW_INTERVAL_S, self._quality.renew)
        checking = partial(ownership.repeat, interval_s, self._rounds.check_due)
        await run_all([partial(quality.supervise, renewing), partial(ownership.supervise, checking)])

    async def _look(self, challenge: Challenge) -> tuple[Method, ...]:
        return (await self.checker.find_evidence(challenge)).proved
