"""Storage and chain are taken away under each background task of a gateway and given back: each goes on, says what failed,
and runs well again.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from limits import RateLimitItem, RateLimitItemPerSecond
from prometheus_client import generate_latest

from tests.kit.chain import MemoryChain
from tests.kit.fixed_limits import load_with_fixed_limits
from tests.kit.ledger_records import (
    NOW_MS,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    new_payment,
)
from tests.kit.waits import DEADLINE_S
from tollway.app.lifecycle import App
from tollway.config.settings import Settings
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId, ListingId, TxHash
from tollway.ledger.ledger import Claim
from tollway.ledger.records import CallState
from tollway.observability.background import BackgroundTask, TaskName
from tollway.rate_limits.redis_windows import RedisWindows
from tollway.registry.quality import bucket_of
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.engine.statements import Work

CHAIN = ChainId(84532)
NOBODY = "127.0.0.1:1"
WINDOW = RateLimitItemPerSecond(1)
FAST = bucket_of(10)
STRAY = close_of(authorized_claim(authorization_of()), CallState.SETTLING)


class FaultyDatabase(SqliteDatabase):
    """Takes and gives nothing while it is away."""

    is_away = False

    async def read(self, work: Work[Any], *, is_long: bool = False) -> Any:
        self._answer()
        return await super().read(work, is_long=is_long)

    async def write(self, work: Work[Any], *, flush: bool = True, is_long: bool = False) -> Any:
        self._answer()
        return await super().write(work, flush=flush, is_long=is_long)

    def _answer(self) -> None:
        if self.is_away:
            raise StorageUnavailable


class FaultyChain(MemoryChain):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


class FaultyWindows(RedisWindows):
    """A server for shared rates without a server."""

    is_away = False

    async def check_server(self) -> None:
        if self.is_away:
            raise OSError
        self._is_up = True

    async def send_pending(self) -> None:
        await self._pending.get()
        await self.check_server()

    def count_hit_always(self, item: RateLimitItem, *key: str) -> None:
        """Also while the server is away, as one that was noted just before."""
        self._is_up = True
        self.count_hit(item, *key)


class FaultyApp(App):
    """A gateway of which everything that background tasks need can be taken away."""

    database: FaultyDatabase
    redis_windows: FaultyWindows

    def _connect_database(self) -> Database:
        return FaultyDatabase(Path(self.settings.database_url.get_secret_value().removeprefix("sqlite:///")))

    def _make_chains(self) -> Any:
        chain = FaultyChain(CHAIN)
        chain.mine(CHAIN)
        return chain

    def _make_redis_windows(self) -> RedisWindows:
        assert self.settings.rate_limit_url is not None
        url = self.settings.rate_limit_url.get_secret_value()
        return FaultyWindows(url, namespace="test", secret=b"k", deadline_s=1.0, retry_s=1.0)

    def disconnect(self, *, is_away: bool) -> None:
        self.database.is_away = self.redis_windows.is_away = is_away
        chain: Any = self.chains
        (chain.disconnect if is_away else chain.reconnect)(CHAIN)


QUICK = {
    "TEST_LIMIT_GAS_REFRESH_S": "0.01",
    "TEST_LIMIT_WATCH_INTERVAL_S": "0.01",
    "TEST_LIMIT_QUALITY_FLUSH_S": "0.01",
}


def settings(folder: Path) -> Settings:
    given = {
        "RPC_SANDBOX": f"http://{NOBODY}",
        "DATABASE_URL": f"sqlite:///{folder}/books.sqlite3",
        "GAS_KEYS_SANDBOX": "0x" + "11" * 32,
        "RATE_LIMIT_URL": f"redis://{NOBODY}",
    }
    return load_with_fixed_limits({**{f"TOLLWAY_{name}": value for name, value in given.items()}, **QUICK})


class Observer:
    """Lets an outage come and go over one gateway, and looks at each of its background tasks meanwhile."""

    def __init__(self, app: FaultyApp) -> None:
        self.app = app
        self.running_before: set[TaskName] = set()
        self.failed: set[TaskName] = set()
        self.ran_without: set[TaskName] = set()
        self.ran_after: set[TaskName] = set()
        self.is_ready_again = False
        self.metrics = ""
        self.ended: tuple[TaskName, ...] = ()

    async def watch(self) -> None:
        (payment,) = await self.app.payments.record_payments([new_payment(1)], now_ms=NOW_MS)
        claims = (claim_on(payment, 2) for _ in itertools.count())  # too dear, so that none stays open
        async with asyncio.TaskGroup() as group:
            feeding = [group.create_task(self._claim_on(claims)), group.create_task(self._follow())]
            await self._pass_outage()
            for task in feeding:
                task.cancel()
        self.ended = self.app.background.ended
        self.is_ready_again = all((await self.app.check_ready()).values())
        self.metrics = generate_latest(self.app.metrics.registry).decode()

    async def _pass_outage(self) -> None:
        """To its end, unless a task does not do as the table says: then what comes after it is not waited for."""
        fails, others = find_failing(), find_others()
        self.running_before = await self._wait(lambda task: task.is_running, set(TABLE))
        self.app.disconnect(is_away=True)
        marks = self._mark()
        self.failed = await self._wait(lambda task: task.failures >= 2, fails)
        self.ran_without = await self._wait(
            lambda task: task.succeeded_s > marks[task.name] and not task.failures, others
        )
        self.app.disconnect(is_away=False)
        if not (self.failed >= fails and self.ran_without >= others):
            return
        marks = self._mark()
        self.ran_after = await self._wait(
            lambda task: task.succeeded_s > marks[task.name] and not task.failures, fails | others
        )

    def _mark(self) -> dict[TaskName, float]:
        return {task.name: task.succeeded_s for task in self.app.background}

    async def _wait(self, condition: Callable[[BackgroundTask], bool], names: set[TaskName]) -> set[TaskName]:
        """Those of which the condition held, once it has held of all that did not end, or not for a long time."""
        met: set[TaskName] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEADLINE_S):
                while not met.union(self.app.background.ended) >= names:
                    self._give_work()
                    met |= {task.name for task in self.app.background if condition(task)}
                    await asyncio.sleep(0.005)
        return met

    def _give_work(self) -> None:
        app = self.app
        for task in app.background:
            task.wake()
        app.redis_windows.count_hit_always(WINDOW, "a")
        app.reputation_services.tally.count_call(ListingId("api_1"), FAST)
        app.settlement_services.settlement._orphans.add(STRAY, is_waited_for=False)

    async def _claim_on(self, claims: Iterator[Claim]) -> None:
        for claim in claims:
            with contextlib.suppress(StorageUnavailable):
                await self.app.ledger.claim(claim)
            await asyncio.sleep(0.01)

    async def _follow(self) -> None:
        """A transaction that is never mined."""
        await self.app.settlement_services._receipt_poller.wait_mined(
            CHAIN, TxHash(32), sender=Address(20), depth=1
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`fails`: the outage fails its runs; otherwise they are good without what is away. `holds`: its one run is as long
    as its gateway leads."""

    fails: bool = True
    holds: bool = False


TABLE = {
    TaskName.RESPONSE_PRUNING: Row(),
    TaskName.BLOCKED_WALLETS: Row(),
    TaskName.LEDGER_WRITER: Row(),
    TaskName.CALL_RECOVERY: Row(),
    TaskName.CHAIN_CHECK: Row(fails=False),
    TaskName.FLEET_FIGURES: Row(),
    TaskName.GAS_CHECK: Row(),
    TaskName.LEASE_RENEWAL: Row(),
    TaskName.LOOP_DELAY: Row(fails=False),
    TaskName.METRIC_SAMPLES: Row(fails=False),
    TaskName.AUDIT_ENTRY_LOG: Row(),
    TaskName.OWNERSHIP_CHECK: Row(),
    TaskName.PAYMENT_CHECK: Row(),
    TaskName.QUALITY_RENEWAL: Row(),
    TaskName.QUALITY_WRITER: Row(),
    TaskName.READINESS_NOTE: Row(fails=False),
    TaskName.RECEIPT_POLLING: Row(fails=False),
    TaskName.REPUTATION_ELECTION: Row(fails=False, holds=True),
    TaskName.SALES_WRITER: Row(),
    TaskName.SCHEMA_CHECK: Row(),
    TaskName.SEARCH_VECTORS: Row(),
    TaskName.SESSION_PRUNING: Row(),
    TaskName.SETTLEMENT_HANDOVER: Row(),
    TaskName.SETTLEMENT_SWEEP: Row(),
    TaskName.SHARED_RATES_CHECK: Row(),
    TaskName.SHARED_RATES_WRITER: Row(),
    TaskName.SWEEPER_ELECTION: Row(fails=False, holds=True),
    TaskName.UPSTREAM_PROBES: Row(fails=False),
    TaskName.WATCHER_ELECTION: Row(fails=False, holds=True),
    TaskName.WEBHOOK_DELIVERY: Row(),
    TaskName.WEBHOOK_ENDPOINTS: Row(),
    TaskName.WEBHOOK_LISTINGS: Row(fails=False),
    TaskName.WEBHOOKS_ELECTION: Row(fails=False, holds=True),
}
ELSEWHERE = frozenset({TaskName.SERVICE_WATCHDOG, TaskName.CONTROL_WORKERS})
"""Tasks of a gateway under a service manager, and of one with control workers; they use neither database nor chain."""


def find_failing() -> set[TaskName]:
    return {name for name, row in TABLE.items() if row.fails}


def find_others() -> set[TaskName]:
    """Whose runs are good without what is away."""
    return {name for name, row in TABLE.items() if not row.fails and not row.holds}


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Observer:
    async def observe() -> Observer:
        async with FaultyApp(settings(tmp_path_factory.mktemp("outage"))) as app:
            observer = Observer(app)
            await observer.watch()
            return observer

    return asyncio.run(observe())


def test_the_table_has_every_background_task() -> None:
    """A new task has a new name: it is named here, or this fails."""
    assert set(TABLE) | ELSEWHERE == set(TaskName)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_a_background_task_outlives_an_outage(outage: Observer, name: TaskName) -> None:
    row = TABLE[name]
    assert name in outage.running_before
    assert name in (outage.failed if row.fails else outage.ran_without) or row.holds
    assert name not in outage.ended
    assert name in outage.ran_after or row.holds
    assert f'tollway_background_task_failures{{task="{name}"}} 0.0' in outage.metrics
    assert f'tollway_background_task_age_seconds{{task="{name}"}}' in outage.metrics


def test_the_gateway_is_ready_again(outage: Observer) -> None:
    assert outage.is_ready_again
    assert "tollway_background_tasks_ended 0.0" in outage.metrics


async def test_a_background_task_that_ended_is_on_readyz_and_in_the_metrics(tmp_path: Path) -> None:
    async def end() -> None:
        raise RuntimeError("a mistake in a loop")

    async with FaultyApp(settings(tmp_path)) as app:
        await app.background[TaskName.GAS_CHECK].supervise(end)
        transport = httpx.ASGITransport(app.asgi_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8402") as client:
            answer = await client.get("/readyz")
        text = generate_latest(app.metrics.registry).decode()
    assert (answer.status_code, answer.json()["checks"]["background"]) == (503, False)
    assert answer.json()["detail"] == "Not ready: background"
    assert "tollway_background_tasks_ended 1.0" in text
