"""The table of outcomes, row by row: a gateway is killed, its caller leaves, or its upstream fails, at each named
point of a call, on each rail and on both databases. Each row names the requests at the upstream, the state in the
ledger, the response, the response to the same request again, and that to another request with the same payment.

One gateway halts calls where their paths say so and is killed once for all of them; the next gateway serves the rest.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select

from tests.kit.authorization_payer import MPP, AuthorizationPayer, Header, Quote
from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.fault_injection import POINTS, find_mark
from tests.kit.gateway_cluster import API, plain
from tests.kit.gateway_process import GatewayProcess, poll
from tests.kit.process_dump import dump_gateway, dump_postgres
from tests.kit.raw_callers import RawCaller, RawResponse
from tests.kit.scripted_upstream import REST, ScriptedUpstream, run_scripted_upstream
from tests.kit.signed_calls import LEASE_S, QUICK, RENEWS_OFTEN, PaidListing
from tests.long.torture.outcome_table import (
    FAILED,
    KILLED,
    LEFT,
    LEFT_HALTED,
    ORDER,
    RUNNING,
    SERVED,
    UPLOAD,
    USED,
    Row,
)
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_tables import call_table

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

IS_LONG = os.environ.get("TORTURE") == "long"
DEADLINE_S = 60.0
UNHURRIED = {"TOLLWAY_LIMIT_HEADER_DEADLINE_S": "120", "TEST_LIMIT_RESPONSE_READING_S": "6000"}
"""No connection of ours is closed while it idles; and what was being read when a gateway died is still said to be read when
the test comes back for it."""
TOO_LONG_S = 0.5
"""A dial that takes so long is a reason to see whether somebody still waits."""
PATIENCE_S = 2 * DEADLINE_S
"""A caller listens for longer than anybody waits for the others: the deadline that passes first names its cause."""
CANCELLED_S = 1.0 if IS_LONG else DEADLINE_S
"""So soon an upstream whose caller has left is left too: a second, held where the machine has nothing else to do."""
DIFFERENT = "/echo/another"

_NUMBERS = itertools.count(1)


TABLE = (KILLED, LEFT, LEFT_HALTED, FAILED)
PLACES = ("tx on sqlite", "x402 on sqlite", "tx on postgresql")
MORE_PLACES = ("x402 on postgresql", "mpp on sqlite", "mpp on postgresql")
"""In the long form too."""


def rows_at(place: str, rows: list[Row]) -> list[Row]:
    """All rows in the long form. In the short form the first place has all rows, and each other place one of three of
    a point: they differ in the rail or the database, and not in the method."""
    if place.startswith("mpp"):  # a challenge is for one listing, and here two listings are called
        rows = [row for row in rows if row.act]
    if IS_LONG or place == PLACES[0]:
        return rows
    share = PLACES.index(place)
    points = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row.text)]
    return [point[(number + share) % len(point)] for number, point in enumerate(points)]


CASES = [
    pytest.param(
        place, row, id=f"{place}: {row.id}", marks=[pytest.mark.postgres] * place.endswith("postgresql")
    )
    for place in (*PLACES, *(MORE_PLACES if IS_LONG else ()))
    for rows in TABLE
    for row in rows_at(place, rows)
]


@dataclass(slots=True, kw_only=True)
class CallCase:
    """One case of a row: its caller, its request, and the responses."""

    row: Row
    payer: Any
    shown: list[tuple[str, str]]
    path: str
    told: RawResponse | None = None
    is_answered: bool = False  # at least the head arrived

    @property
    def is_answered_wrongly(self) -> bool:
        """The call has a response that it must not have, and will not reach its point."""
        return self.told is not None and (self.row.told is None or self.told.status != self.row.told)

    @property
    def body(self) -> bytes:
        if self.row.sends is not None:
            return UPLOAD
        return ORDER if self.row.method == "POST" else b""


@dataclass(slots=True, kw_only=True)
class Place:
    """A gateway on one database. `closed_id` is a listing whose endpoint has no listener."""

    cluster: Any
    upstream: ScriptedUpstream
    gateway: GatewayProcess
    stall: PaidListing
    closed_id: str
    rail: str
    dump: str = ""  # the state at the first failure

    async def case(self, rows: list[Row]) -> list[CallCase]:
        """A case with its own wallet and a payment worth one call."""
        payers = await self.cluster.wallets(len(rows))
        cases = [self._make(row, payer) for row, payer in zip(rows, payers, strict=True)]
        if self.rail == "tx":
            hashes = await self.cluster.pay_in_bulk(payers, self.stall.provider.address)
            shown = [plain(payer, tx_hash) for payer, tx_hash in zip(payers, hashes, strict=True)]
        else:
            shown = [[await self._sign(case)] for case in cases]
        for case, headers in zip(cases, shown, strict=True):
            case.shown[:0] = headers
        return cases

    async def _sign(self, case: CallCase) -> Header:
        if self.rail == "x402":
            return self.stall.sign(case.payer, "/").header
        quote = Quote.read(await self.call(case))  # valid for this route only
        payer = AuthorizationPayer(
            cluster=self.cluster, gateway=self.gateway, api_id=self.stall.api_id, signer=case.payer
        )
        return payer.show(quote, MPP, valid_before=int(time.time()) + 3_600)

    def _make(self, row: Row, payer: Any) -> CallCase:
        number = next(_NUMBERS)
        path = f"/{row.act or 'echo'}/{number}" + (f"/halt/{row.halt}" if row.halt else "")
        key = [("Idempotency-Key", f"order-{number}")] if row.is_keyed else []
        return CallCase(row=row, payer=payer, shown=key, path=path)

    async def send(self, case: CallCase, *, bytes_max: int | None = None) -> RawCaller:
        api_id = self.stall.api_id if case.row.act else self.closed_id
        return await RawCaller.send(
            self.gateway.port,
            f"{API}/gateway/{api_id}{case.path}",
            case.shown,
            method=case.row.method,
            body=case.body,
            bytes_max=bytes_max,
        )

    async def call(self, case: CallCase, path: str = "") -> Any:
        return await self.cluster.call(
            self.gateway,
            self.stall.api_id,
            path or case.path,
            method=case.row.method,
            headers=case.shown if not path else case.shown[: -1 if case.row.is_keyed else None],
            content=case.body or None,
        )

    async def record(self, case: CallCase) -> Any:
        calls = await self.cluster.history(self.gateway, case.payer)
        assert len(calls) <= 1, calls
        return calls[0] if calls else None

    async def judge(
        self, killed: list[Row], left: list[Row], left_halted: list[Row], failed: list[Row]
    ) -> dict[str, Exception | None]:
        found: dict[str, Exception | None] = {}

        async def find(case: CallCase, bring: Any = None) -> None:
            found[case.row.id] = None
            try:
                async with self.dumped_on_failure():
                    if bring is not None:
                        await bring(case)
                    await self.check(case)
            except Exception as exc:
                found[case.row.id] = exc

        every = [await self.case(rows) for rows in (killed, left, left_halted, failed)]
        halted, leaving, leaving_halted, failing = every
        self.restart(halts=True)
        await self.gateway.wait_ready()
        await asyncio.gather(*(self.leave_halted(case) for case in leaving_halted))
        await self.halt(halted)
        await asyncio.gather(*(find(case, self.leave) for case in leaving))
        await asyncio.gather(
            *(find(case) for case in (*halted, *leaving_halted)), *(find(case, self.fail) for case in failing)
        )
        await self.check_ledger()
        return found

    # ---- To its point.

    async def halt(self, cases: list[CallCase]) -> None:
        """Every call reaches its point; the gateway is killed there, and others replace it."""
        async with asyncio.TaskGroup() as group:
            for case in cases:
                group.create_task(self._halt(case))
            async with self.dumped_on_failure():  # before the group cancels its callers
                await self._wait_there(cases)
            self.restart()
        await self.gateway.wait_ready()
        url = self.gateway.env["TOLLWAY_DATABASE_URL"]
        if not url.startswith("sqlite"):  # there recovery waits for no lease
            await pass_lease(url, lease_s=LEASE_S, renewing=1)
        for case in cases:
            if case.row.state is not None:
                await self._wait_decided(case)

    async def _wait_there(self, cases: list[CallCase]) -> None:
        """Names the calls that are not at their points at the deadline, or that have a response already."""
        missing: list[CallCase] = []

        def are_there() -> bool:
            missing[:] = [case for case in cases if not self._is_there(case)]
            return not missing or any(case.is_answered_wrongly for case in missing)

        with contextlib.suppress(AssertionError):
            await poll(are_there, what="every call at its point")
        told = "\n".join(f"{case.row.id}: {case.path}, told {case.told}" for case in missing)
        assert not missing, f"{len(missing)} of {len(cases)} calls are not at their points:\n{told}"

    @contextlib.asynccontextmanager
    async def dumped_on_failure(self) -> AsyncIterator[None]:
        """Stores the state of the gateway, its database and the chain at the first failure. An outer one keeps what
        an inner one has not stored."""
        try:
            yield
        except Exception as exc:
            if not self.dump:
                self.dump = f"---- {time.ctime()} {exc!r}\n"  # a later failure does not replace it
                self.dump += await self._dump()
            raise

    async def _dump(self) -> str:
        """Writes the reason for what cannot be read."""
        url, parts = self.gateway.env["TOLLWAY_DATABASE_URL"], [dump_gateway(self.gateway)]
        if not url.startswith("sqlite"):
            parts.append(dump_postgres(url))
        parts.append(self.cluster.driver.rpc("txpool_inspect"))
        return "\n".join(map(str, await asyncio.gather(*parts, return_exceptions=True)))

    def restart(self, *, halts: bool = False) -> None:
        env = self.gateway.env
        for name in POINTS:
            env.pop(name, None)
        if halts:
            env.update(POINTS)
        self.gateway.kill_and_restart()

    async def _halt(self, case: CallCase) -> None:
        caller = await self.send(case, bytes_max=case.row.sends)
        async with self.dumped_on_failure():
            if case.row.act == "hold":
                await caller.hear(b"\r\n\r\n", deadline_s=PATIENCE_S)
                case.is_answered = True
            case.told = await caller.listen(deadline_s=PATIENCE_S)

    def _is_there(self, case: CallCase) -> bool:
        row, key = case.row, (case.row.method, case.path)
        if row.halt:
            return self._mark(case).exists() and (row.told is None or case.told is not None)
        if row.act == "hold":
            return case.is_answered
        return (self.upstream.heads if row.act == "deaf" else self.upstream.wholes)[key] == 1

    def _mark(self, case: CallCase) -> Path:
        return find_mark(self.cluster.folder, case.path)

    async def leave_halted(self, case: CallCase) -> None:
        """The caller leaves while the gateway is halted; then the gateway continues."""
        row, mark = case.row, self._mark(case)
        caller = await self.send(case)
        await poll(mark.exists, what=f"{case.path} there")
        if row.act != "hold":
            caller.leave()
        case.told = RawResponse(status=None, is_whole=False)
        if row.halt == "dialled":
            await poll(lambda: is_old(mark), what="a dial that takes too long")
            if row.act != "hold":
                pid = self.gateway.pid
                what = "a server that has seen its caller leave"
                await poll(lambda: not caller.is_known_to(pid), what=what)
        mark.with_suffix(".go").touch()
        if row.act == "hold":
            await caller.hear(b"\r\n\r\n")
            caller.leave()
            left = self.upstream.left
            await poll(lambda: case.path in left, what="the upstream left")
        if row.state is not None:
            await self._wait_decided(case)

    async def _wait_decided(self, case: CallCase) -> None:
        await poll(lambda: self._is_decided(case), what=f"the end of {case.path}")

    async def _is_decided(self, case: CallCase) -> bool:
        record = await self.record(case)
        return record is not None and record["status"] != "pending"

    async def leave(self, case: CallCase) -> None:
        row, upstream, key = case.row, self.upstream, (case.row.method, case.path)
        caller = await self.send(case, bytes_max=row.sends)
        if row.act == "hold":
            await caller.hear(b"\r\n\r\n")
        arrived = upstream.heads if row.sends is not None else upstream.wholes
        await poll(lambda: arrived[key] == 1, what=f"{case.path} at the upstream")
        caller.leave()
        case.told = RawResponse(status=row.told, is_whole=True)
        if row.act == "late":
            upstream.let(case.path)
        if row.is_keyed:
            upstream.let(case.path + (REST if row.act == "late" else ""))
        else:
            deadline_s = CANCELLED_S if row.act == "hold" else DEADLINE_S  # the other acts settle first
            await poll(lambda: case.path in upstream.left, deadline_s=deadline_s, what="the upstream left")

    async def fail(self, case: CallCase) -> None:
        caller = await self.send(case)
        if case.row.act == "cut":
            await caller.hear(b"\r\n\r\n")
            self.upstream.let(case.path)
        case.told = await caller.listen()

    # ---- What is found.

    async def check(self, case: CallCase) -> None:
        """Checks every column of the row; afterwards nothing is left of the payment."""
        row, count = case.row, self.upstream.count
        assert case.told is not None
        if row.told is not None:
            assert (case.told.status, case.told.is_whole) == (row.told, not row.is_cut), case.told
        if row.code is not None:
            self._check_problem(row, case.told)
        if row.state is not None:
            await self._wait_decided(case)
        before = await self.record(case)
        assert (before and before["payment"]["state"]) == row.state, before
        if row.delivery is not None:
            assert await self._wait_delivered(before["id"]) == row.delivery
        assert count(case.path, row.method) == row.seen[0]
        if not row.is_free:
            await self._check_different(case)

        reply = await self._repeat(case)

        assert (reply.status, reply.code) == row.again, reply.body
        assert (reply.headers.get("Idempotency-Replayed") == "true") is row.is_replayed
        assert count(case.path, row.method) == row.seen[1]
        if row.again != SERVED:
            assert not reply.asks_for_money
            assert reply.json["callId"] == before["id"]
        elif not row.is_free:  # under its claim
            assert reply.headers["Tollway-Call-Id"] == before["id"]
        if row.is_free:
            await self._check_different(case)

    async def _repeat(self, case: CallCase) -> Any:
        """The same request; a response that is still being stored arrives a moment later."""
        replies: list[Any] = []

        async def is_final() -> bool:
            replies.append(await self.call(case))
            return not case.row.is_replayed or (replies[-1].status, replies[-1].code) != RUNNING

        await poll(is_final, what=f"a final answer to {case.path}")
        return replies[-1]

    async def _wait_delivered(self, call_id: str) -> str:
        """Waits for the end of the delivery, which is written lazily and is not in the history."""
        query = select(call_table.c.delivery).where(call_table.c.id == call_id)
        database = connect_database(self.gateway.env["TOLLWAY_DATABASE_URL"])
        try:
            return await poll(
                lambda: database.read(lambda connection: connection.execute(query).scalar_one()),
                what=f"the finish of {call_id}",
            )
        finally:
            await database.close()

    def _check_problem(self, row: Row, told: RawResponse) -> None:
        problem = told.problem
        assert problem["code"] == row.code
        assert "payment" not in problem
        assert problem["paymentState"] == ("held" if row.state == "held" else "released")
        if row.state == "held":
            assert problem["call"].endswith(problem["callId"])

    async def _check_different(self, case: CallCase) -> None:
        """A spent or held payment buys nothing else, and no response requests more."""
        reply = await self.call(case, DIFFERENT)
        assert (reply.status, reply.code) == USED, reply.body
        assert not reply.asks_for_money
        assert self.upstream.count(DIFFERENT, case.row.method) == 0

    async def check_ledger(self) -> None:
        assert (await self.cluster.audit(self.gateway)).wrong == ()


def is_old(mark: Path) -> bool:
    return time.time() - mark.stat().st_mtime > TOO_LONG_S


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def upstream() -> AsyncIterator[ScriptedUpstream]:
    async with run_scripted_upstream() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_shop(cluster: Any, upstream: ScriptedUpstream) -> AsyncIterator[Any]:
    """One gateway for each kind of database, opened on first use."""
    async with contextlib.AsyncExitStack() as stack:
        shops: dict[str, tuple[GatewayProcess, PaidListing, str]] = {}
        nobody = stack.enter_context(socket.socket())
        nobody.bind(("127.0.0.1", 0))  # a port without a listener

        async def open_it(database: str) -> tuple[GatewayProcess, PaidListing, str]:
            if database in shops:
                return shops[database]
            (gas,) = await cluster.wallets(1)
            settings = {**QUICK, **RENEWS_OFTEN, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key, **UNHURRIED}
            url = f"sqlite:///{cluster.folder}/points.sqlite3"
            if database == "postgresql":
                url = await cluster.make_postgres()
                await set_database_clock(url, skew_s=0)
            (process,) = await stack.enter_async_context(
                cluster.gateways(1, database_url=url, settings=settings)
            )
            stall = await PaidListing.open(cluster, [process], endpoint=upstream.url)
            closed = await cluster.publish(
                process, stall.provider, endpoint=f"http://127.0.0.1:{nobody.getsockname()[1]}"
            )
            shops[database] = process, stall, closed
            return shops[database]

        yield open_it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge_place(cluster: Any, upstream: ScriptedUpstream, open_shop: Any) -> Any:
    """Runs all cases of a place at once, and once. Returns the faults of each row by its id, and the dump of the
    first failure."""
    judged: dict[str, tuple[dict[str, Exception | None], str]] = {}

    async def judge(name: str) -> tuple[dict[str, Exception | None], str]:
        if name not in judged:
            rail, _, database = name.split(" ")
            process, stall, closed = await open_shop(database)
            judging = Place(
                cluster=cluster, upstream=upstream, gateway=process, stall=stall, closed_id=closed, rail=rail
            )
            try:
                async with judging.dumped_on_failure():
                    found = await judging.judge(*(rows_at(name, rows) for rows in TABLE))
            except Exception:
                print(judging.dump)
                raise
            judged[name] = found, judging.dump
        return judged[name]

    return judge


@pytest.mark.parametrize(("place", "row"), CASES)
async def test_the_table_holds(judge_place: Any, place: str, row: Row) -> None:
    found, dump = await judge_place(place)
    wrong = found[row.id]
    if wrong is not None:
        print(dump)
        raise wrong


async def test_every_row_is_pointed_at(torture: Any) -> None:
    points = {case.values[1].text for case in CASES}
    assert points == {row.text for rows in TABLE for row in rows}
    torture.tell(points=len(points), cases=len(CASES))
