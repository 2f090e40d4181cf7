"""The rounds of a soak. A round is a time of paid calls on every rail, and one disturbance of their gateways in its middle. A round has an upstream, listings,
payers and channels of its own; at its end each caller knows how each of its calls ended, and ledger, upstream, payers and chain agree.
"""

import asyncio
import itertools
import random
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.kit.databases import (
    create_database,
    drop_database,
    open_database,
    pass_lease,
    write_newer_migrations,
)
from tests.kit.fault_injection import MIGRATIONS
from tests.kit.gateway_cluster import audit_with_sums
from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.node_proxy import NodeProxy
from tests.kit.postgres_programs import run_program
from tests.kit.scripted_upstream import ALWAYS, run_scripted_upstream
from tests.kit.signed_calls import LEASE_S
from tests.long.torture.channel_load import ChannelLoad
from tests.long.torture.kill_load import KINDS, KillLoad
from tests.long.torture.measures import AT_ONCE, Pace
from tollway.storage.engine.migrate import upgrade
from tollway.storage.ledger.channel_totals import ChannelTotalsStore

DISTURBANCES = ("restart", "kill", "node", "backup", "key", "upgrade")
"""Each once, in this order."""
REPEATED = ("nothing", "node", "backup")
"""In turn, until the end: no gateway is restarted any more, so its memory can be compared."""
ROUND_S_MAX = 120.0
HALF_PER_S_MIN = 4.0
"""Where the first round was too short to measure a rate."""
MOVED = ("tx", "x402")
"""The kinds whose every call moves tokens on the chain."""
MOVED_PER_S = 4.0
"""So many of those calls a second: the chain node keeps a state for each block."""
ANSWERS_WITHOUT_NODE = 20
PROGRESS_DEADLINE_S = 120.0
SETTLED_WITHIN_S = 120.0
SECRET_KEY = "TOLLWAY_SECRET_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round measured. `memory_kib`: resident memory of each gateway at the end of its load. `income_units`: what
    its providers have got on the chain, in base units."""

    disturbance: str
    answers: int
    per_s: float
    memory_kib: list[int]
    income_units: int


@dataclass(slots=True, kw_only=True)
class Soak:
    """Gateways on one database, and the rounds that they have passed. `passes_lease`: by the clock of the database; else a lease of a killed gateway ends by
    itself."""

    cluster: Any
    processes: list[GatewayProcess]
    url: str
    node: NodeProxy
    folder: Path
    dice: random.Random
    callers: int
    passes_lease: bool
    rounds: list[Round] = field(default_factory=list)
    _names: Any = field(default_factory=itertools.count)

    @property
    def is_postgres(self) -> bool:
        return self.url.startswith("postgresql")

    async def run(self, *, seconds: float) -> None:
        """A round at full load; its rate gives the half load of all others."""
        count = max(1 + len(DISTURBANCES) + 1, round(seconds / ROUND_S_MAX))
        repeated = itertools.cycle(REPEATED)
        await self.run_round("nothing", seconds=seconds / count, pace=AT_ONCE)
        half = max(self.rounds[0].per_s / 2, HALF_PER_S_MIN)
        for disturbance in DISTURBANCES:
            await self.run_round(disturbance, seconds=seconds / count, pace=Pace(half))
        for _ in range(count - len(self.rounds)):
            await self.run_round(next(repeated), seconds=seconds / count, pace=Pace(half))

    async def run_round(self, disturbance: str, *, seconds: float, pace: Pace) -> None:
        wallets = await self.cluster.wallets(self.callers)
        async with run_scripted_upstream(turns_default=ALWAYS) as upstream:
            channels = await ChannelLoad.start(self.cluster, self.processes, upstream, dice=self._child())
            load = await KillLoad.start(
                self.cluster, self.processes, upstream, url=self.url, dice=self._child()
            )
            per_s, memory_kib = await self._blow(
                load, channels, wallets, disturbance, seconds=seconds, pace=pace
            )
            for process in self.processes:
                await process.wait_ready()
            await load.finish()
            await channels.finish()
            await load.wait_settled(deadline_s=SETTLED_WITHIN_S)
            answers = load.answered.count + channels.answered.count
            await load.check_upstream()
            await load.check_payers(self.processes[-1])
            settled = await load.check_chain()
            in_channels = await channels.check()
        if disturbance == "key":
            await self._forget_old_key()
        report = await self.cluster.audit(self.processes[0])
        assert report.wrong == (), report.wrong
        self.rounds.append(
            Round(
                disturbance=disturbance,
                answers=answers,
                per_s=per_s,
                memory_kib=memory_kib,
                income_units=load.paid["units"] + settled + in_channels["charged"],
            )
        )

    async def _blow(
        self,
        load: KillLoad,
        channels: ChannelLoad,
        wallets: list[Any],
        disturbance: str,
        *,
        seconds: float,
        pace: Pace,
    ) -> tuple[float, list[int]]:
        """All callers call, and the disturbance begins after a third of the time. Returns the answers a second, and the memory of each gateway while they call."""
        is_over, started_s = False, time.monotonic()
        moved = Pace(MOVED_PER_S)
        async with asyncio.TaskGroup() as group:
            for _ in range(self.callers):
                for kind in KINDS:
                    of_kind = moved if kind in MOVED else pace
                    group.create_task(load.call_on(kind, self._child(), lambda: is_over, pace=of_kind))
            for wallet in wallets:
                group.create_task(channels.call_on(wallet, self._child(), lambda: is_over, pace=pace))
            await asyncio.sleep(seconds / 3)
            await self._find_disturbance(disturbance)(load)
            await asyncio.sleep(max(0.0, started_s + seconds - time.monotonic()))
            answers = load.answered.count + channels.answered.count
            per_s = answers / (time.monotonic() - started_s)
            for process in self.processes:
                await process.wait_ready()
            memory_kib = [process.memory_kib("VmRSS") for process in self.processes]
            is_over = True
            if disturbance == "kill" and self.passes_lease:
                await pass_lease(self.url, lease_s=LEASE_S, renewing=len(self.processes))
            await load.wait_settled(deadline_s=SETTLED_WITHIN_S)
        return per_s, memory_kib

    def _find_disturbance(self, name: str) -> Callable[[KillLoad], Awaitable[None]]:
        return {
            "nothing": self._disturb_nothing,
            "restart": self._restart,
            "kill": self._kill,
            "node": self._take_node,
            "backup": self._back_up,
            "key": self._change_key,
            "upgrade": self._upgrade,
        }[name]

    # ---- Disturbances.

    async def _disturb_nothing(self, load: KillLoad) -> None: ...

    async def _restart(self, load: KillLoad) -> None:
        await self._roll({})

    async def _kill(self, load: KillLoad) -> None:
        self.dice.choice(self.processes).kill_and_restart()

    async def _take_node(self, load: KillLoad) -> None:
        """The chain node fails, hangs and is gone; between these it serves."""
        for take_away in (self.node.fail, self.node.hang, partial(setattr, self.node, "is_cut", True)):
            take_away()
            try:
                await load.answered.wait_more(
                    ANSWERS_WITHOUT_NODE, deadline_s=PROGRESS_DEADLINE_S, what="answers without a node"
                )
            finally:
                self.node.mend()

    async def _back_up(self, load: KillLoad) -> None:
        """The copy has a balanced ledger."""
        if self.is_postgres:
            await self._dump_and_restore()
            return
        told = await self._operate("backup", str(self.folder / f"soak-{next(self._names)}.backup"))
        assert told["balanced"], told

    async def _dump_and_restore(self) -> None:
        number = next(self._names)
        dump, name = self.folder / f"soak-{number}.dump", f"soak_restored_{number}"
        restored = await create_database(self.url, name, template=None)
        for program, *arguments in (
            ("pg_dump", "--format=custom", f"--file={dump}", self.url),
            ("pg_restore", "--exit-on-error", f"--dbname={restored}", str(dump)),
        ):
            await asyncio.to_thread(run_program, program, *arguments, user=None)
        async with open_database(restored) as database:
            report = await database.read(audit_with_sums, is_long=True)
        assert report.wrong == (), report.wrong
        await drop_database(self.url, name)

    async def _change_key(self, load: KillLoad) -> None:
        """As the operator's page says, up to the moment in which the old key may leave (`_forget_old_key`)."""
        old, new = self.processes[0].env[SECRET_KEY], secrets.token_hex(32)
        await self._roll({SECRET_KEY: f"{old}\n{new}"})
        await self._roll({SECRET_KEY: f"{new}\n{old}"})
        await self._operate("secrets", "reencrypt")

    async def _forget_old_key(self) -> None:
        """Once every challenge is answered, and the ledger has the claim of every channel."""
        async with open_database(self.url) as database:
            totals = ChannelTotalsStore(database)

            async def is_claimed() -> bool:
                return not any(total.unclaimed_units for total in await totals.list_totals())

            await poll(is_claimed, what="the claim of every channel in the ledger")
        await self._roll({SECRET_KEY: self.processes[0].env[SECRET_KEY].split()[0]})

    async def _upgrade(self, load: KillLoad) -> None:
        """To the release after this one: PostgreSQL is migrated while gateways serve, SQLite by the gateway that starts."""
        newer = write_newer_migrations(Path(tempfile.mkdtemp(dir=self.folder)))
        if self.is_postgres:
            async with open_database(self.url) as database:
                await upgrade(database, migrations=newer)
        await self._roll({MIGRATIONS: str(newer)})

    async def _roll(self, settings: dict[str, str]) -> None:
        """Restarts the gateways one after the other with these settings, as an operator does."""
        for process in self.processes:
            assert await process.stop() == 0, process.read_log()[-4_000:]
            process.env.update(settings)
            process.start()
            await process.wait_ready()

    async def _operate(self, *arguments: str) -> Any:
        exit_code, told = await self.cluster.operate(self.processes[0], *arguments)
        assert exit_code == 0, told
        return told

    def _child(self) -> random.Random:
        """A random generator of its own, so that other draws do not change its numbers."""
        return random.Random(self.dice.getrandbits(64))
