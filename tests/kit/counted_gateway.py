"""A whole gateway behind its own server, in this process, whose work is counted: `run_counted_gateway`. Loaded by `conftest.py`.

Everything that a gateway does by the clock it does at its start and then not again (`QUIET`, `stop_clocks`). Nothing is counted before that is done, so a count
is the same on a slow machine.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from tests.kit.fixed_limits import load_with_fixed_limits, name_variable
from tests.kit.gateway_cluster import PRICE_UNITS, bound, plain
from tests.kit.gateway_process import answers, poll
from tests.kit.ports import find_low_port
from tests.kit.upstream import LoopbackUpstream, run_upstream
from tests.kit.work_counter import (
    Work,
    WorkCounter,
    count_postgres,
    count_recoveries,
    count_rpc,
    count_sqlite,
)
from tollway.app.lifecycle import App
from tollway.app.runtime import now_ms
from tollway.observability.background import TaskName

QUIET = {
    name_variable(name): value
    for name, value in {
        "OWNER_LEASE_S": "3600",
        "OWNER_RENEW_S": "900",
        "GAS_REFRESH_S": "900",
        "LEADER_POLL_S": "900",
        "LEADER_LEASE_S": "1800",
        "FREE_CALLS_PER_MINUTE": "100000",
    }.items()
}
"""The first rounds of a gateway are its last ones."""
ON_DEMAND = frozenset(
    {
        TaskName.CONTROL_WORKERS,
        TaskName.LEDGER_WRITER,
        TaskName.RECEIPT_POLLING,
        TaskName.REPUTATION_ELECTION,
        TaskName.SERVICE_WATCHDOG,
        TaskName.SHARED_RATES_CHECK,
        TaskName.SHARED_RATES_WRITER,
        TaskName.SWEEPER_ELECTION,
        TaskName.UPSTREAM_PROBES,
        TaskName.WATCHER_ELECTION,
        TaskName.WEBHOOKS_ELECTION,
    }
)
"""Background tasks that do nothing before there is work, or whose run lasts as long as this gateway leads. Each other one has a first round."""
ROUND_S = 3_600.0
DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedGateway:
    """A gateway in this process, a new provider, and a new caller with tokens."""

    cluster: Any
    app: App
    upstream: LoopbackUpstream
    counter: WorkCounter
    base_url: str
    public_url: str
    provider: Any
    caller: Any
    api_id: str
    free_id: str

    async def call(self, headers: Any = (), *, api_id: str | None = None, rest: str = "/quote/ETH") -> Any:
        return await self.cluster.call(self, api_id or self.api_id, rest, headers=headers)

    async def count(self, ask: Callable[[], Awaitable[Any]], *, finishes: int = 1) -> Work:
        """The work of what `ask` does, to its last write; `finishes`: calls that it begins."""
        with self.counter.counting() as span:
            await ask()

            def is_over() -> bool:
                return self.counter.open == 0 and span.take().count(r"UPDATE call .*delivery") >= finishes

            await poll(is_over, what="the last write of a call")
            return span.take()

    async def pay(self, calls: int = 1) -> Any:
        return await self.cluster.send_tokens(self.caller, self.provider.address, calls * PRICE_UNITS)

    def plain(self, tx_hash: Any) -> Any:
        """The headers that show this payment in the plain form."""
        return plain(self.caller, tx_hash)

    def bound(self, tx_hash: Any) -> Any:
        """The headers that show this payment for one GET of `/quote/ETH`."""
        chain_id = self.cluster.driver.chain_id
        gateway: Any = self
        return bound(self.caller, tx_hash, gateway, self.api_id, "/quote/ETH", chain_id=chain_id)


def stop_clocks(app: App) -> None:
    """No background task begins a second round, unless it is woken. Nothing that a gateway has in memory gets older: the listings, which a call would read again
    (decision 14), and the set of wallets with a webhook."""
    for task in app.background:
        vars(task)["pause"] = partial(_pause_long, task.pause)
    stopped_ms, stopped_s = now_ms(), time.monotonic()
    vars(app.catalog)["_now_ms"] = lambda: stopped_ms
    vars(app.events)["_clock"] = lambda: stopped_s


async def _pause_long(pause: Callable[[float], Awaitable[None]], seconds: float) -> None:
    await pause(max(seconds, ROUND_S))


@contextlib.asynccontextmanager
async def run_app(env: dict[str, str]) -> AsyncIterator[App]:
    async with App(load_with_fixed_limits(env)) as app:
        stop_clocks(app)
        serving = asyncio.get_running_loop().create_task(app.serve())
        try:
            await app.server.wait_up()
            yield app
        finally:
            app.stop()
            await serving


def has_done_first_rounds(app: App) -> bool:
    """Whether this gateway leads every duty and has run every periodic task once, for itself or as the leader."""
    return all(task.has_succeeded for task in app.background if task.name not in ON_DEMAND)


@contextlib.asynccontextmanager
async def run_counted_gateway(
    cluster: Any, dialect: Literal["sqlite", "postgresql"]
) -> AsyncIterator[CountedGateway]:
    """A gateway on a new database, with a listing at the price of the cluster and a free one."""
    counter = WorkCounter()
    port = find_low_port()
    url = f"http://127.0.0.1:{port}"
    provider, caller, gas = await cluster.wallets(3)
    async with contextlib.AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(run_upstream())
        rpc_url = await stack.enter_async_context(count_rpc(cluster.session, cluster.driver.rpc_url, counter))
        stack.enter_context(count_recoveries(counter))
        if dialect == "sqlite":
            database_url = f"sqlite:///{cluster.folder}/work.sqlite3"
            stack.enter_context(count_sqlite(counter))
        else:
            database_url = await stack.enter_async_context(
                count_postgres(await cluster.make_postgres(), counter)
            )
        env = cluster.environment(database_url=database_url, public_url=url, port=port, settings=QUIET)
        env |= {"TOLLWAY_RPC_SANDBOX": rpc_url, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key}
        app = await stack.enter_async_context(run_app(env))
        it = CountedGateway(
            cluster=cluster,
            app=app,
            upstream=upstream,
            counter=counter,
            base_url=url,
            public_url=url,
            provider=provider,
            caller=caller,
            api_id="",
            free_id="",
        )
        await poll(lambda: answers(port, "/readyz"), what="readiness")
        await poll(lambda: has_done_first_rounds(app), what="the first rounds of all tasks")
        api_id = await cluster.publish(it, provider, endpoint=upstream.url)
        free_id = await cluster.publish(it, provider, endpoint=upstream.url, pricePerRequest="0")
        object.__setattr__(it, "api_id", api_id)
        object.__setattr__(it, "free_id", free_id)
        yield it
