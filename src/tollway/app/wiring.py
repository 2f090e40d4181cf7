"""The parts of a gateway that are made of several: settlement, and reputation of listings. Built by `app/parts.py`.

It creates collaborators and hands them to each other; it decides nothing about a call. Settlement keys live in `SettlementServices` only.
"""

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial

from tollway.app.channel_wiring import ChannelParts, ChannelServices
from tollway.app.runtime import BackgroundTaskGroup
from tollway.app.webhooks import WebhookServices
from tollway.chain.networks import ChainRules
from tollway.chain.nodes import ChainsWithNodes
from tollway.chain.port import ChainReader
from tollway.config.settings import Settings
from tollway.gateway.circuit_breaker import CircuitBreaker, HealthCheck
from tollway.identity.signatures import SignatureVerifier
from tollway.identity.siwe import parse_origin
from tollway.ids import ChainId
from tollway.ledger.ledger import GasLedger, Ledger
from tollway.limits import Limits
from tollway.observability.background import BackgroundTasks, TaskName, run_all
from tollway.observability.call_trace import TraceSampler
from tollway.outbound.client import HttpClient
from tollway.outbound.dns import TxtRecords
from tollway.outbound.probes import OwnershipChecker
from tollway.payments.facilitator import FacilitatorClient, HttpFacilitatorTransport
from tollway.payments.gas import NO_METRICS, GasBudget, SettlementMetrics
from tollway.payments.held_calls import HeldCalls
from tollway.payments.orphans import Orphans
from tollway.payments.receipts import ReceiptPoller
from tollway.payments.settlement import Settlement
from tollway.payments.settlement_recovery import SettlementRecovery
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.transactions import TransactionReplacer
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.ownership import Challenge, Method
from tollway.registry.ownership_recheck import OwnershipRecheck
from tollway.registry.quality import QualityTally
from tollway.registry.quality_recorder import REFRESH_INTERVAL_S, QualityRecorder
from tollway.storage.catalog.reputation_store import OwnershipStore, QualityStore
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.leadership import Duty, Leadership
from tollway.storage.ledger.closed_periods import ClosedPeriods
from tollway.storage.ledger.idempotency import ResponseStore
from tollway.storage.ledger.recovery import read_shared_clock

PRUNE_INTERVAL_S = 300.0


class SettlementServices:
    """`settlement_rules`: of the networks that accept authorisations."""

    def __init__(
        self,
        *,
        database: Database,
        sealer: Sealer,
        ledger: Ledger,
        gas_ledger: GasLedger,
        chains: ChainsWithNodes,
        rules: Mapping[ChainId, ChainRules],
        settlement_rules: Mapping[ChainId, SettlementRules],
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
        background: BackgroundTasks,
        metrics: SettlementMetrics = NO_METRICS,
        traces: TraceSampler | None = None,
        channels: ChannelParts | None = None,
    ) -> None:
        """`channels` None: they are off."""
        self._background, self._metrics = background, metrics
        self._ledger, self._limits = ledger, limits
        self._chains, self._rules, self._now_ms = chains, rules, now_ms
        self._facilitator_http = HttpFacilitatorTransport(limits=limits)
        self.stored_responses = ResponseStore(database, sealer=sealer, limits=limits)
        facilitators = self._make_facilitators(settlement_rules)
        self.gas_budget = gas_budget = GasBudget(
            rules=settlement_rules,
            assets=[asset for one in rules.values() for asset in one.assets],
            chains=chains,
            gas_ledger=gas_ledger,
            limits=limits,
            clock=time.monotonic,
            now_ms=now_ms,
            facilitators=facilitators,
            metrics=metrics,
            task=background[TaskName.GAS_CHECK],
        )
        self._receipt_poller = ReceiptPoller(chains, tuple(rules), task=background[TaskName.RECEIPT_POLLING])
        self._orphans = Orphans(ledger)
        replacer = TransactionReplacer(gas_ledger, chains, gas_budget, limits=limits, now_ms=now_ms)
        self.settlement = Settlement(
            ledger=ledger,
            gas_ledger=gas_ledger,
            chains=chains,
            rules=rules,
            gas_budget=gas_budget,
            replacer=replacer,
            receipt_poller=self._receipt_poller,
            facilitators=facilitators,
            orphans=self._orphans,
            limits=limits,
            now_ms=now_ms,
            rate_limiter=rate_limiter,
            metrics=metrics,
        )
        self._settlement_recovery = SettlementRecovery(
            ledger=ledger,
            gas_ledger=gas_ledger,
            chains=chains,
            rules=rules,
            gas_budget=gas_budget,
            replacer=replacer,
            facilitators=facilitators,
            limits=limits,
            now_ms=now_ms,
            metrics=metrics,
            traces=traces,
        )
        self.channels = None if channels is None else self._make_channels(channels, gas_ledger)

    @cached_property
    def held_calls(self) -> HeldCalls:
        return HeldCalls(
            ledger=self._ledger,
            chains=self._chains,
            rules=self._rules,
            gas_budget=self.gas_budget,
            open_lookup=self.settlement.open_lookup,
            limits=self._limits,
            now_ms=self._now_ms,
        )

    def _make_channels(self, parts: ChannelParts, gas_ledger: GasLedger) -> ChannelServices:
        return ChannelServices(
            parts,
            gas_ledger=gas_ledger,
            chains=self._chains,
            rules=self._rules,
            gas_budget=self.gas_budget,
            receipt_poller=self._receipt_poller,
            limits=self._limits,
            now_ms=self._now_ms,
            metrics=self._metrics,
        )

    def _make_facilitators(
        self, settlement_rules: Mapping[ChainId, SettlementRules]
    ) -> dict[ChainId, FacilitatorClient]:
        return {
            chain_id: FacilitatorClient(one.facilitator, self._facilitator_http)
            for chain_id, one in settlement_rules.items()
            if one.facilitator is not None
        }

    async def open(self) -> None:
        """Reads the gas prices, so that the first 402 offers what can be settled. A chain that is unavailable may come back later."""
        await self._facilitator_http.open()
        await self.gas_budget.refresh()
        if self.channels is not None:
            await self.channels.open()

    async def close(self) -> None:
        await self._facilitator_http.close()

    def start(self, tasks: BackgroundTaskGroup, *, recovery_leadership: Leadership) -> None:
        """Starts the background tasks. Each gateway marks its own orphaned settlements; one gateway recovers those of all."""
        sweep = partial(self._background[TaskName.SETTLEMENT_SWEEP].supervise, self._sweep)
        tasks.start(TaskName.GAS_CHECK, self.gas_budget.run)
        tasks.start(TaskName.RECEIPT_POLLING, self._receipt_poller.run)
        tasks.start_periodic(TaskName.SETTLEMENT_HANDOVER, self._limits.sweep_interval_s, self._check_own)
        tasks.start(TaskName.SWEEPER_ELECTION, partial(recovery_leadership.lead, sweep))
        tasks.start_periodic(TaskName.RESPONSE_PRUNING, PRUNE_INTERVAL_S, self._prune)

    def follow(self, tasks: BackgroundTaskGroup) -> None:
        """Starts the tasks that read what can be settled, for a process that settles nothing."""
        tasks.start(TaskName.GAS_CHECK, self.gas_budget.run)
        if self.channels is not None:
            interval_s = self._limits.sweep_interval_s
            tasks.start_periodic(TaskName.SETTLEMENT_HANDOVER, interval_s, self.channels.refresh)

    async def _check_own(self) -> None:
        """What each gateway does for itself: it hands its settlements over, and looks whether it may offer channels."""
        await self._orphans.mark_due()
        if self.channels is not None:
            await self.channels.refresh()

    async def _sweep(self) -> None:
        task = self._background[TaskName.SETTLEMENT_SWEEP]
        try:
            await task.repeat(self._limits.sweep_interval_s, self._sweep_once)
        finally:
            self._metrics.orphaned(0)  # the next leader counts them

    async def _sweep_once(self) -> None:
        """The recovery replaces the transactions of claims too, so both run in one gateway."""
        await self._settlement_recovery.run_once()
        if self.channels is not None:
            await self.channels.run_once()

    async def _prune(self) -> None:
        await self.stored_responses.prune(now_ms=self._ledger.shared_ms())


OWNERSHIP_INTERVAL_S = 60.0
"""Between two reads of the proofs that are due for a check."""
HEALTH_CHECK_RESTART_S = 1.0
"""The health check runs until the gateway stops. After a failure it starts again."""


class ReputationServices:
    """The objects of quality, ownership, closed hours and upstream health, one per gateway. `tally`: counts of outcomes of paid calls. `ownerships`: stored proofs of the owners of
    endpoints; `checker` finds them. `breaker`: the upstreams that are down."""

    def __init__(
        self,
        settings: Settings,
        *,
        database: Database,
        http_client: HttpClient,
        chains: ChainReader,
        now_ms: Callable[[], int],
        ledger_ms: Callable[[], int],
        background: BackgroundTasks,
        webhooks: WebhookServices,
    ) -> None:
        self._background = background
        self._limits = limits = settings.limits
        self.breaker = CircuitBreaker(limits=limits, on_down=webhooks.note_down)
        self._prober = HealthCheck(
            self.breaker,
            check_connection=http_client.check_connection,
            task=background[TaskName.UPSTREAM_PROBES],
        )
        self.ownerships = OwnershipStore(database, now_ms=now_ms, events=webhooks.events)
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
        self._closed_periods = ClosedPeriods(
            database,
            read_clock=lambda connection: read_shared_clock(connection, now_ms()),
            ledger_ms=ledger_ms,
        )
        self.tally = QualityTally()
        self.quality = QualityStore(database)
        self._quality_recorder = QualityRecorder(self.quality, tally=self.tally, now_ms=now_ms)

    def start(self, tasks: BackgroundTaskGroup, *, lead: Callable[[Duty], Leadership]) -> None:
        tasks.start(TaskName.QUALITY_WRITER, self._keep_quality)
        self.probe(tasks)
        tasks.start(TaskName.REPUTATION_ELECTION, partial(lead(Duty.REPUTATION).lead, self._run_elected))

    def probe(self, tasks: BackgroundTaskGroup) -> None:
        """Starts the task that finds upstreams that are back."""
        tasks.start_periodic(TaskName.UPSTREAM_PROBES, HEALTH_CHECK_RESTART_S, self._prober.run)

    async def _keep_quality(self) -> None:
        task = self._background[TaskName.QUALITY_WRITER]
        try:
            await task.repeat(self._limits.quality_flush_s, self._quality_recorder.write_counts)
        finally:
            await self._quality_recorder.finish()

    async def _run_elected(self) -> None:
        ownership_s = min(OWNERSHIP_INTERVAL_S, self._limits.ownership_recheck_s)
        rounds = (
            (TaskName.QUALITY_RENEWAL, REFRESH_INTERVAL_S, self._quality_recorder.refresh_sums),
            (TaskName.OWNERSHIP_CHECK, ownership_s, self._ownership_recheck.check_due),
            (TaskName.SALES_WRITER, self._limits.sales_interval_s, self._closed_periods.write_due),
        )
        tasks = ((self._background[name], interval_s, job) for name, interval_s, job in rounds)
        await run_all(
            [
                partial(task.supervise, partial(task.repeat, interval_s, job))
                for task, interval_s, job in tasks
            ]
        )

    async def _check_ownership(self, challenge: Challenge) -> tuple[Method, ...]:
        return (await self.checker.find_evidence(challenge)).proved
