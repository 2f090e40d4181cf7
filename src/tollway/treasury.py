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
from tollway.chores import Chores
from tollway.identifiers import ChainId, format_network
from tollway.identity.public_origin import PublicOrigin
from tollway.ledger.book import Book
from tollway.limits import Limits
from tollway.outbound.facilitator_line import FacilitatorLine
from tollway.payments.follower import Follower
from tollway.payments.gas_tank import GasTank
from tollway.payments.mpp import Challenger
from tollway.payments.remote_facilitator import RemoteFacilitator
from tollway.payments.settlement import Settlement
from tollway.payments.settlement_rules import SettlementRules
from tollway.payments.settling_notes import SILENT, SettlingNotes
from tollway.payments.sweeper import Sweeper
from tollway.rates import Rates
from tollway.storage.answer_store import AnswerStore
from tollway.storage.database import Database
from tollway.storage.gas_store import GasStore
from tollway.storage.leadership import Leadership
from tollway.storage.sealer import Sealer
from tollway.telemetry import Metrics

PRUNE_INTERVAL_S = 300.0


class Treasury:
    """One per gateway. `settlement_rules`: of the networks where authorisations may be taken."""

    def __init__(
        self,
        *,
        database: Database,
        sealer: Sealer,
        book: Book,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        settlement_rules: Mapping[ChainId, SettlementRules],
        limits: Limits,
        now_ms: Callable[[], int],
        rates: Rates,
        background: BackgroundTasks,
        notes: SettlingNotes = SILENT,
    ) -> None:
        self._background = background
        self._book = book
        self._limits = limits
        self._notes = notes
        self._line = FacilitatorLine(limits=limits)
        self.answers = AnswerStore(database, sealer=sealer, limits=limits)
        gas = GasStore(database)
        facilitators = {
            chain_id: RemoteFacilitator(one.facilitator, self._line)
            for chain_id, one in settlement_rules.items()
            if one.facilitator is not None
        }
        self.tank = GasTank(
            rules=settlement_rules,
            assets=[asset for one in rules.values() for asset in one.assets],
            chains=chains,
            gas=gas,
            limits=limits,
            clock=time.monotonic,
            now_ms=now_ms,
            facilitators=facilitators,
            notes=notes,
            task=background[TaskName.GAS_CHECK],
        )
        self._follower = Follower(chains, tuple(rules), task=background[TaskName.RECEIPT_POLLING])
        self.settlement = Settlement(
            book=book,
            gas=gas,
            chains=chains,
            rules=rules,
            tank=self.tank,
            follower=self._follower,
            facilitators=facilitators,
            limits=limits,
            now_ms=now_ms,
            rates=rates,
            notes=notes,
        )
        self._sweeper = Sweeper(
            book=book,
            gas=gas,
            chains=chains,
            rules=rules,
            tank=self.tank,
            facilitators=facilitators,
            limits=limits,
            now_ms=now_ms,
            notes=notes,
        )

    async def open(self) -> None:
        """The first look at gas, so that the first 402 offers what can be settled. A chain that is away may come later."""
        await self._line.open()
        await self.tank.refresh()

    async def close(self) -> None:
        await self._line.close()

    def start(self, chores: Chores, *, sweeping: Leadership) -> None:
        """What has to run beside the calls. Its own strays each gateway sets adrift itself; one sweeps for all."""
        sweep = partial(self._background[TaskName.SETTLEMENT_SWEEP].supervise, self._sweep)
        chores.start(TaskName.GAS_CHECK, self.tank.run)
        chores.start(TaskName.RECEIPT_POLLING, self._follower.run)
        chores.every(TaskName.SETTLEMENT_HANDOVER, self._limits.sweep_interval_s, self.settlement.mend)
        chores.start(TaskName.SWEEPER_ELECTION, partial(sweeping.lead, sweep))
        chores.every(TaskName.ANSWER_PRUNING, PRUNE_INTERVAL_S, self._prune)

    async def _sweep(self) -> None:
        task = self._background[TaskName.SETTLEMENT_SWEEP]
        try:
            await task.repeat(self._limits.sweep_interval_s, self._sweeper.run_once)
        finally:
            self._notes.adrift(0)  # whoever sweeps next counts them

    async def _prune(self) -> None:
        await self.answers.prune(now_ms=self._book.shared_ms())


def make_challenger(secret_keys: Sequence[bytes], origin: PublicOrigin) -> Challenger:
    """Every gateway of one public URL makes and knows the same challenges (MPP). The first key makes them."""
    secret, *others = [hmac.digest(key, b"tollway mpp challenge", "sha256") for key in secret_keys]
    return Challenger(secret=secret, realm=origin.authority, other_secrets=tuple(others))


def make_notes(metrics: Metrics) -> SettlingNotes:
    """Every room of settling counts into these series."""
    return SettlingNotes(
        end=lambda chain_id, end: metrics.settlements.labels(format_network(chain_id), end.value).inc(),
        mined=lambda chain_id, seconds: metrics.settlement_seconds.labels(format_network(chain_id)).observe(
            max(0.0, seconds)
        ),
        balance=lambda chain_id, key, wei: metrics.gas_key_balance.labels(
            format_network(chain_id), str(key)
        ).set(wei),
        lane=lambda chain_id, key, length: metrics.gas_lane_length.labels(
            format_network(chain_id), str(key)
        ).set(length),
        adrift=metrics.calls_adrift.set,
        withdrawn=lambda chain_id, reason, count: metrics.rails_withdrawn.labels(
            format_network(chain_id), reason.value
        ).set(count),
    )
