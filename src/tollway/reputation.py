"""The reputation of listings: what measures their quality, proves who owns their endpoints and finds out whether they are
up, wired together and kept running. A part of the house. It decides nothing about a call.
"""

from collections.abc import Callable
from functools import partial

from tollway.background import BackgroundTasks, TaskName, run_all
from tollway.chain.reader import ChainReader
from tollway.chores import BackgroundTaskGroup
from tollway.discovery.ownership_rounds import OwnershipRecheck
from tollway.gateway.breaker import CircuitBreaker
from tollway.gateway.prober import HealthCheck
from tollway.identity.public_origin import parse_origin
from tollway.identity.signatures import SignatureVerifier
from tollway.outbound.dialer import HttpClient
from tollway.outbound.name_records import TxtRecords
from tollway.outbound.ownership_checker import OwnershipChecker
from tollway.registry.ownership import Challenge, Method
from tollway.registry.quality_keeper import RENEW_INTERVAL_S, QualityRecorder
from tollway.registry.quality_tally import QualityTally
from tollway.settings import Settings
from tollway.storage.database import Database
from tollway.storage.leadership import Duty, Leadership
from tollway.storage.ownership_store import OwnershipStore
from tollway.storage.quality_store import QualityStore

OWNERSHIP_INTERVAL_S = 60.0
"""Between two looks at which proofs are due."""
HEALTH_CHECK_RESTART_S = 1.0
"""It runs for good; should it ever fail, it is logged and begins anew."""


class ReputationServices:
    """One per gateway. `tally`: where the gateway counts how paid calls ended. `ownerships`, `checker`: what is known of
    the owners of endpoints, and who finds it out. `breaker`: which upstreams are down."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        http_client: HttpClient,
        chains: ChainReader,
        now_ms: Callable[[], int],
        background: BackgroundTasks,
    ) -> None:
        self._background = background
        self._limits = limits = settings.limits
        self.breaker = CircuitBreaker(limits=limits)
        self._prober = HealthCheck(
            self.breaker,
            check_connection=http_client.check_connection,
            task=background[TaskName.UPSTREAM_PROBES],
        )
        self.ownerships = OwnershipStore(database, now_ms=now_ms)
        self.checker = OwnershipChecker(
            http_client=http_client,
            txt_records=TxtRecords(settings.name_servers, deadline_s=limits.dns_deadline_s),
            verifier=SignatureVerifier(chains, limits=limits),
            gateway=str(parse_origin(settings.public_url)),
            limits=limits,
        )
        self._ownership_recheck = OwnershipRecheck(
            self.ownerships,
            challenge=self.checker.challenge,
            check=self._check_ownership,
            limits=limits,
            now_ms=now_ms,
        )
        self.tally = QualityTally()
        self._quality_recorder = QualityRecorder(QualityStore(database), tally=self.tally, now_ms=now_ms)

    def start(self, tasks: BackgroundTaskGroup, *, lead: Callable[[Duty], Leadership]) -> None:
        """Everything that runs beside the requests, from here on. `lead`: a candidature for a duty of one gateway."""
        tasks.start(TaskName.QUALITY_WRITER, self._keep_quality)
        tasks.start_periodic(TaskName.UPSTREAM_PROBES, HEALTH_CHECK_RESTART_S, self._prober.run)
        tasks.start(TaskName.REPUTATION_ELECTION, partial(lead(Duty.REPUTATION).lead, self._run_elected))

    async def _keep_quality(self) -> None:
        task = self._background[TaskName.QUALITY_WRITER]
        try:
            await task.repeat(self._limits.quality_flush_s, self._quality_recorder.write_counts)
        finally:
            await self._quality_recorder.finish()

    async def _run_elected(self) -> None:
        """What one gateway does for all."""
        quality, ownership = (
            self._background[name] for name in (TaskName.QUALITY_RENEWAL, TaskName.OWNERSHIP_CHECK)
        )
        interval_s = min(OWNERSHIP_INTERVAL_S, self._limits.ownership_recheck_s)
        renewing = partial(quality.repeat, RENEW_INTERVAL_S, self._quality_recorder.refresh_sums)
        checking = partial(ownership.repeat, interval_s, self._ownership_recheck.check_due)
        await run_all([partial(quality.supervise, renewing), partial(ownership.supervise, checking)])

    async def _check_ownership(self, challenge: Challenge) -> tuple[Method, ...]:
        return (await self.checker.find_evidence(challenge)).proved
