"""PostgreSQL is stopped, killed, and replaced by its standby; disks are full and databases read-only: while callers
call.

During it every response is a 503. Afterwards the gateways serve again by themselves, every call that reached the
upstream has its record, none was sent twice, and none was sent without a claim.
"""

import asyncio
import contextlib
import itertools
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.gateway_cluster import API, PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.ports import find_low_port
from tests.kit.postgres_pair import run_pair
from tests.kit.scripted_upstream import ALWAYS, run_scripted_upstream
from tests.kit.waits import DEADLINE_S
from tests.long.torture.measures import Progress, stopwatch

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

CALLERS = 4
BACK_DEADLINE_S = 30.0 if os.environ.get("TORTURE") == "long" else DEADLINE_S
PAUSE_S = 0.05
"""Of a caller who was told to come back later; a real one waits for what `Retry-After` says."""
QUICK = {
    "TEST_LIMIT_OWNER_RENEW_S": "0.3",
    "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.5",
}
ONLY_LONG = pytest.mark.long_form
LOG_FULL_BYTES = 2 * 1024 * 1024
AWAY, UNKNOWN = (503, "storage_unavailable"), (503, "payment_outcome_unknown")
_RUNS = (f"run{number}" for number in itertools.count(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """Callers with one payment each; each call has its own path and is made once."""

    cluster: Any
    processes: list[Any]
    upstream: Any
    api_id: str
    payers: list[Any]
    payments: list[Any]
    run: str
    progress: Progress = field(default_factory=Progress)
    served: list[tuple[str, str]] = field(default_factory=list)
    refused: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    async def ask(self, number: int, path: str, *, method: str = "GET") -> Any:
        payer, tx_hash = self.payers[number], self.payments[number]
        process = self.processes[number % len(self.processes)]
        url = f"{process.base_url}{API}/gateway/{self.api_id}{path}"
        return await self.cluster.send(url, method=method, headers=plain(payer, tx_hash))

    async def _call_on(self, number: int) -> None:
        for turn in itertools.count():
            path, method = f"/echo/{self.run}/{number}/{turn}", ("GET", "POST")[turn % 2]
            reply = await self.ask(number, path, method=method)
            if reply.status == 200:
                self.served.append((method, path))
                self.progress.add()
                continue
            assert not reply.asks_for_money, reply.body
            self.refused[method, path] = (reply.status, reply.code)
            await asyncio.sleep(PAUSE_S)

    @contextlib.asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """The last payer does not call: its payment stays unseen."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._call_on(number)) for number in range(len(self.payers) - 1)]
            await self.wait_served(what="calls before the trouble")
            yield
            for task in tasks:
                task.cancel()

    async def wait_served(self, *, what: str) -> None:
        await self.progress.wait_more(20, deadline_s=BACK_DEADLINE_S, what=what)

    async def wait_trouble(self) -> None:
        """Returns when a caller was refused and no gateway is ready."""
        await self.wait_refused()
        for process in self.processes:
            await poll(lambda process=process: self._is_unready(process), what="an unready gateway")

    async def wait_refused(self) -> None:
        goal = len(self.refused) + 5
        await poll(lambda: len(self.refused) > goal, what="refusals")

    async def _is_unready(self, process: Any) -> bool:
        reply = await self.cluster.send(process.base_url + "/readyz")
        return (reply.status, reply.code) == AWAY and not reply.json["checks"]["storage"]

    async def wait_back(self) -> None:
        for process in self.processes:
            await process.wait_ready()
        await self.wait_served(what="calls after the trouble")

    async def show_unseen(self) -> Any:
        """Presents a payment that no gateway has seen."""
        return await self.ask(len(self.payers) - 1, f"/echo/{self.run}/unseen")

    async def check(self) -> Counter[str]:
        """Counts the states of the calls. `held`: calls whose outcome was lost with the power; only their provider
        can resolve them."""
        gateway = self.processes[0]
        assert (await self.show_unseen()).status == 200
        await poll(lambda: self._is_settled(gateway), what="recovery")
        seen = {key: count for key, count in self.upstream.heads.items() if f"/{self.run}/" in key[1]}
        assert set(seen.values()) <= {1}, "sent twice"
        states: dict[tuple[str, str], str] = {}
        for payer, tx_hash in zip(self.payers, self.payments, strict=True):
            calls = await self.cluster.history(gateway, payer)
            assert len(calls) < 1000
            own = {(call["method"], call["path"]): call["payment"]["state"] for call in calls}
            assert len(own) == len(calls), "two records for one call"
            states |= own
            taken = sum(PRICE_UNITS for state in own.values() if state != "released")
            shown = await self.cluster.payment(gateway, payer, tx_hash)
            assert int(shown["credit"]) == int(shown["amount"]) - taken
        taking = {key for key, state in states.items() if state in ("charged", "held")}
        assert set(seen) <= taking, "sent without a record"
        assert {key for key, state in states.items() if state == "charged"} <= set(seen), (
            "charged, never sent"
        )
        assert set(self.served) <= taking, "an answer without a record"
        unclaimed = {key for key, told in self.refused.items() if told == AWAY}
        assert not unclaimed & set(seen), "sent, and told that nothing was taken"
        assert set(self.refused.values()) <= {AWAY, UNKNOWN}
        assert (await self.cluster.audit(gateway)).wrong == ()
        return Counter(states.values())

    async def _is_settled(self, gateway: Any) -> bool:
        pending = [await self.cluster.history(gateway, one, "&status=pending") for one in self.payers]
        return not any(pending)


class Place:
    """Gateways on one database, an upstream, and a listing; each case has its own callers."""

    def __init__(
        self, cluster: Any, processes: list[Any], upstream: Any, *, provider: Any, api_id: str
    ) -> None:
        self.cluster, self.processes, self.upstream = cluster, processes, upstream
        self.provider, self.api_id = provider, api_id

    async def gather(self) -> Callers:
        payers = await self.cluster.wallets(CALLERS + 1)
        payments = await self.cluster.pay_in_bulk(payers, self.provider.address, each=5_000)
        return Callers(
            cluster=self.cluster,
            processes=self.processes,
            upstream=self.upstream,
            api_id=self.api_id,
            payers=payers,
            payments=payments,
            run=next(_RUNS),
        )


@contextlib.asynccontextmanager
async def open_place(
    cluster: Any, database_url: str, *, gateways: int, settings: dict[str, str] | None = None
) -> AsyncIterator[Place]:
    processes = cluster.gateways(gateways, database_url=database_url, settings={**QUICK, **(settings or {})})
    async with run_scripted_upstream(turns_default=ALWAYS) as upstream, processes as opened:
        provider = await cluster.wallet()
        api_id = await cluster.publish(opened[0], provider, endpoint=upstream.url)
        yield Place(cluster, opened, upstream, provider=provider, api_id=api_id)


async def test_a_full_disk_under_sqlite_serves_nothing_unpaid(cluster: Any, torture: Any) -> None:
    """By a limit on the file size of the gateway's process."""
    path = cluster.folder / "full.sqlite3"
    async with open_place(cluster, f"sqlite:///{path}", gateways=1) as place:
        pid = place.processes[0].pid
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        refused, states = 0, Counter[str]()
        for _ in range(torture.pick(short=1, long=5)):
            callers = await place.gather()
            async with callers.calling():
                # Smaller than the size at which SQLite reuses the log from its start: a larger disk would never be full.
                full = min(os.path.getsize(f"{path}-wal"), LOG_FULL_BYTES)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (full, hard))
                await callers.wait_trouble()
                unseen = await callers.show_unseen()
                assert (unseen.status, unseen.code) == AWAY
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
                await callers.wait_back()
            refused += len(callers.refused)
            states += await callers.check()
        log = place.processes[0].read_log()
        assert ("storage_away" in log, "disk_error" in log or "disk_full" in log) == (True, True)
        torture.tell(refused=refused, **states)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair() -> AsyncIterator[Any]:
    async with run_pair(find_low_port) as it:
        await it.replicate()
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(cluster: Any, pair: Any) -> AsyncIterator[Place]:
    """Two gateways on the pair."""
    async with open_place(cluster, pair.url, gateways=2) as it:
        yield it


@pytest.mark.postgres
@ONLY_LONG
async def test_a_restart_of_the_database_costs_nothing_but_time(
    place: Place, pair: Any, torture: Any
) -> None:
    kinds = ["stop", "kill"] * 4
    states: Counter[str] = Counter()
    back_s, refused = [], 0
    for kind in kinds:
        callers = await place.gather()
        async with callers.calling():
            await (pair.primary.stop() if kind == "stop" else pair.primary.kill())
            await callers.wait_trouble()
            unseen = await callers.show_unseen()
            assert (unseen.status, unseen.code) == AWAY
            assert "Retry-After" in unseen.headers
            await pair.primary.start()
            with stopwatch() as measured:
                await callers.wait_back()
                back_s.append(measured())
        states += await callers.check()
        refused += len(callers.refused)
    torture.tell(restarts=len(kinds), refused=refused, back_s_max=round(max(back_s), 2), **states)


@pytest.mark.postgres
@ONLY_LONG
async def test_a_read_only_database_serves_nothing_unpaid(place: Place, pair: Any, torture: Any) -> None:
    callers = await place.gather()
    async with callers.calling():
        await pair.primary.ask(
            "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"
        )
        await callers.wait_trouble()
        reached = sum(place.upstream.heads.values())
        refused = len(callers.refused)
        await poll(lambda: len(callers.refused) > refused + 10, what="refusals")
        assert sum(place.upstream.heads.values()) == reached
        await pair.primary.ask(
            "SET default_transaction_read_only = off",
            "ALTER SYSTEM RESET default_transaction_read_only",
            "SELECT pg_reload_conf()",
        )
        await callers.wait_back()
    torture.tell(refused=len(callers.refused), **await callers.check())
    assert "is read-only" in "".join(process.read_log() for process in place.processes)


@pytest.mark.postgres
@ONLY_LONG
async def test_a_full_disk_of_the_database_server_serves_nothing_unpaid(
    place: Place, pair: Any, torture: Any
) -> None:
    """By a limit on the file size, which needs neither a mount nor rights; the table of calls reaches it."""
    await pair.primary.ask("ALTER TABLE call SET (fillfactor = 10)", "SELECT 1")
    callers = await place.gather()
    async with callers.calling():
        size = "SELECT pg_relation_size('call')"
        await poll(lambda: _is_above(pair, size, 1_200_000), what="a table of some size")
        pair.primary.limit_files(await pair.primary.ask(size))
        await callers.wait_refused()
        pair.primary.limit_files(None)
        await callers.wait_back()
    torture.tell(refused=len(callers.refused), **await callers.check())
    logs = "".join(process.read_log() for process in place.processes)
    assert "File too large" in logs


async def _is_above(pair: Any, question: str, bound: int) -> bool:
    return bool(await pair.primary.ask(question) > bound)


@pytest.mark.postgres
async def test_the_standby_takes_over_and_no_claim_is_lost(place: Place, pair: Any, torture: Any) -> None:
    """The last test on the pair, because it stops the primary."""
    callers = await place.gather()
    async with callers.calling():
        await pair.primary.kill()
        await callers.wait_trouble()
        unseen = await callers.show_unseen()
        assert (unseen.status, unseen.code) == AWAY
        pair.promote()
        with stopwatch() as measured:
            await callers.wait_back()
            back_s = round(measured(), 2)
    torture.tell(refused=len(callers.refused), back_s=back_s, **await callers.check())
