"""The treasury: everything that settles authorisations, wired together, opened and kept running. A part of the house.

The gas keys live here and nowhere else. It decides nothing about a call; a gateway without a gas key or a facilitator
has one all the same, which offers nothing.
"""

import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tollway.background import BackgroundTasks, TaskName
from tollway.chain.reader import SettlementChain
from tollway.chain.rules import ChainRules
from tollway.chores import BackgroundTaskGroup
from tollway.identifiers import ChainId, format_network
from tollway.identity.public_origin import PublicOrigin
from tollway.ledger.book import Ledger
from tollway.limits import Limits
from tollway.outbound.facilitator_line import HttpFacilitatorTransport
from tollway.payments.follower import ReceiptPoller
from tollway.payments.gas_tank import GasBudget
from tollway.payments.mpp import Challenger
from tollway.payments.remote_facilitator import FacilitatorClient
from tollway.payments.settlement import Settlement
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.settling_notes import NO_METRICS, SettlementMetrics
from tollway.payments.sweeper import SettlementRecovery
from tollway.rates import RateLimiter
from tollway.storage.answer_store import ResponseStore
from tollway.storage.database import Database
from tollway.storage.gas_store import GasStore
from tollway.storage.leadership import Leadership
from tollway.storage.sealer import Sealer
from tollway.telemetry import Metrics

PRUNE_INTERVAL_S = 300.0


class SettlementServices:
    """One per gateway. `settlement_rules`: of the networks where authorisations may be taken."""

    def __init__(
        self,
        *,
        database: Database,
        sealer: Sealer,
        ledger: Ledger,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        settlement_rules: Mapping[ChainId, SettlementRules],
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
        background: BackgroundTasks,
        metrics: SettlementMetrics = NO_METRICS,
    ) -> None:
        self._background = background
        self._ledger = ledger
        self._limits = limits
        self._metrics = metrics
        self._facilitator_http = HttpFacilitatorTransport(limits=limits)
        self.stored_responses = ResponseStore(database, sealer=sealer, limits=limits)
        gas = GasStore(database)
        facilitators = {
            chain_id: FacilitatorClient(one.facilitator, self._facilitator_http)
            for chain_id, one in settlement_rules.items()
            if one.facilitator is not None
        }
        self.gas_budget = GasBudget(
            rules=settlement_rules,
            assets=[asset for one in rules.values() for asset in one.assets],
            chains=chains,
            gas=gas,
            limits=limits,
            clock=time.monotonic,
            now_ms=now_ms,
            facilitators=facilitators,
            metrics=metrics,
            task=background[TaskName.GAS_CHECK],
        )
        self._receipt_poller = ReceiptPoller(chains, tuple(rules), task=background[TaskName.RECEIPT_POLLING])
        self.settlement = Settlement(
            ledger=ledger,
            gas=gas,
            chains=chains,
            rules=rules,
            gas_budget=self.gas_budget,
            receipt_poller=self._receipt_poller,
            facilitators=facilitators,
            limits=limits,
            now_ms=now_ms,
            rate_limiter=rate_limiter,
            metrics=metrics,
        )
        self._settlement_recovery = SettlementRecovery(
            ledger=ledger,
            gas=gas,
            chains=chains,
            rules=rules,
            gas_budget=self.gas_budget,
            facilitators=facilitators,
            limits=limits,
            now_ms=now_ms,
            metrics=metrics,
        )

    async def open(self) -> None:
        """The first look at gas, so that the first 402 offers what can be settled. A chain that is away may come later."""
        await self._facilitator_http.open()
        await self.gas_budget.refresh()

    async def close(self) -> None:
        await self._facilitator_http.close()

    def start(self, tasks: BackgroundTaskGroup, *, sweeping: Leadership) -> None:
        """What has to run beside the calls. Its own strays each gateway marks orphaned itself; one sweeps for all."""
        sweep = partial(self._background[TaskName.SETTLEMENT_SWEEP].supervise, self._sweep)
        tasks.start(TaskName.GAS_CHECK, self.gas_budget.run)
        tasks.start(TaskName.RECEIPT_POLLING, self._receipt_poller.run)
        tasks.start_periodic(
            TaskName.SETTLEMENT_HANDOVER, self._limits.sweep_interval_s, self.settlement.mark_due_orphans
        )
        tasks.start(TaskName.SWEEPER_ELECTION, partial(sweeping.lead, sweep))
        tasks.start_periodic(TaskName.ANSWER_PRUNING, PRUNE_INTERVAL_S, self._prune)

    async def _sweep(self) -> None:
        task = self._background[TaskName.SETTLEMENT_SWEEP]
        try:
            await task.repeat(self._limits.sweep_interval_s, self._settlement_recovery.run_once)
        finally:
            self._metrics.orphaned(0)  # whoever sweeps next counts them

    async def _prune(self) -> None:
        await self.stored_responses.prune(now_ms=self._ledger.shared_ms())


def make_mpp_challenger(secret_keys: Sequence[bytes], origin: PublicOrigin) -> Challenger:
    """Every gateway of one public URL makes and knows the same challenges (MPP). The first key makes them."""
    secret, *others = [hmac.digest(key, b"tollway mpp challenge", "sha256") for key in secret_keys]
    return Challenger(secret=secret, realm=origin.authority, other_secrets=tuple(others))


def make_settlement_metrics(metrics: Metrics) -> SettlementMetrics:
    """The metrics that settlement writes to."""
    return SettlementMetrics(
        end=lambda chain_id, end: metrics.settlements.labels(format_network(chain_id), end.value).inc(),
        mined=lambda chain_id, seconds: metrics.settlement_seconds.labels(format_network(chain_id)).observe(
            max(0.0, seconds)
        ),
        balance=lambda chain_id, key, wei: metrics.gas_key_balance.labels(
            format_network(chain_id), str(key)
        ).set(wei),
        unmined=lambda chain_id, key, length: metrics.gas_lane_length.labels(
            format_network(chain_id), str(key)
        ).set(length),
        orphaned=metrics.calls_adrift.set,
        withdrawn=lambda chain_id, reason, count: metrics.rails_withdrawn.labels(
            format_network(chain_id), reason.value
        ).set(count),
    )
