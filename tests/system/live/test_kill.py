"""A gateway is killed between any two steps of a call, or stopped, while others call through it. After a restart on
the same database the ledger balances, no caller has paid for nothing, and each payer can read the state of each
payment."""

import asyncio
import contextlib
import itertools
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.kit.databases import pass_lease, set_database_clock
from tests.kit.fault_injection import POINTS
from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.signed_calls import LEASE_S, RENEWS_OFTEN
from tests.kit.upstream import raw, run_upstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOAD = 4
WARM_CALLS = 12
QUICK_RECOVERY = {**RENEWS_OFTEN, "TEST_LIMIT_RECOVERY_INTERVAL_S": "0.2"}
_RUNS = (f"run{number}" for number in itertools.count(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerGroup:
    """Callers that go on until the gateway is gone. `served`: paths with a complete response; `cut`: paths with an
    incomplete one."""

    cluster: Any
    gateway: Any
    api_id: str
    payers: list[Any]
    payments: list[Any]
    run: str
    served: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)

    async def call_on(self, number: int, rest: str = "") -> None:
        headers = plain(self.payers[number], self.payments[number])
        for turn in itertools.count():
            path = f"/echo/{self.run}/{number}/{turn}"
            try:
                reply = await self.cluster.call(self.gateway, self.api_id, path + rest, headers=headers)
            except (aiohttp.ClientError, OSError):
                self.cut.append(path)
                return
            assert reply.status == 200, reply.body
            self.served.append(path)

    @contextlib.asynccontextmanager
    async def calling(self) -> Any:
        """Inside, all callers call; at the end each of them has noticed that the gateway is gone."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self.payers)):
                group.create_task(self.call_on(number))
            await poll(lambda: len(self.served) >= WARM_CALLS, what="a crowd that is served")
            yield

    async def check(self, gateway: Any) -> None:
        """Checks the result of each call at the next gateway."""
        seen = Counter(seen.path for seen in self.cluster.provider.seen)
        for payer, tx_hash in zip(self.payers, self.payments, strict=True):
            calls = await calls_on(self.cluster, gateway, payer, tx_hash)
            states = Counter(call["payment"]["state"] for call in calls)
            records = {call["path"]: call for call in calls}
            assert set(states) <= {"charged", "held", "released"}
            for path, call in records.items():
                state = call["payment"]["state"]
                assert seen[path] <= 1
                assert state != "charged" or seen[path] == 1, "charged for what was never sent"
                if state == "held":
                    assert call["status"] == "unknown"
            mine = [path for path in self.served if path in records]
            assert all(records[path]["status"] == "succeeded" for path in mine)
            shown = await self.cluster.payment(gateway, payer, tx_hash)
            taken = (states["charged"] + states["held"]) * PRICE_UNITS
            assert int(shown["credit"]) == int(shown["amount"]) - taken
            assert set(shown["calls"]) <= {call["id"] for call in calls}
        charged = sum(1 for path in self.served if seen[path] == 1)
        assert charged == len(self.served)


class RestartedGateways:
    """Gateways one after another on one database: each start follows the kill of the one before."""

    def __init__(self, cluster: Any, database_url: str) -> None:
        self.cluster = cluster
        self.database_url = database_url
        self.api_id = ""
        self._gateway: Any = None
        self._stack = contextlib.AsyncExitStack()

    async def gateway(self) -> Any:
        """The running one."""
        if self._gateway is None or not self._gateway.is_running:
            await self._stack.aclose()
            self._gateway = await self._stack.enter_async_context(
                self.cluster.gateway(database_url=self.database_url, settings={**QUICK_RECOVERY, **POINTS})
            )
        return self._gateway

    async def pass_lease(self) -> None:
        """Lets the lease of the killed gateway end, where one gateway runs. On SQLite recovery waits for no lease."""
        if not self.database_url.startswith("sqlite"):
            await pass_lease(self.database_url, lease_s=LEASE_S, renewing=1)

    async def start_callers(self, wallets: list[Any]) -> tuple[Any, Any, CallerGroup]:
        """The gateway, a payment worth one call of the first caller, and a group of the others."""
        provider, caller, *payers = wallets
        gateway = await self.gateway()
        if not self.api_id:
            self.api_id = await self.cluster.publish(gateway, provider)
        tx_hash, *payments = await asyncio.gather(
            self.cluster.send_tokens(caller, provider.address, PRICE_UNITS),
            *(self.cluster.send_tokens(payer, provider.address, 5_000 * PRICE_UNITS) for payer in payers),
        )
        group_of_callers = CallerGroup(
            cluster=self.cluster,
            gateway=gateway,
            api_id=self.api_id,
            payers=payers,
            payments=payments,
            run=next(_RUNS),
        )
        return gateway, tx_hash, group_of_callers

    async def aclose(self) -> None:
        await self._stack.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def wallets(cluster: Any) -> list[Any]:
    return await cluster.wallets(LOAD + 2)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lines(cluster: Any) -> AsyncIterator[Any]:
    """One `RestartedGateways` for each kind of database, made on first use."""
    async with contextlib.AsyncExitStack() as stack:
        made: dict[str, RestartedGateways] = {}

        async def find(kind: str) -> RestartedGateways:
            if kind not in made:
                url = f"sqlite:///{cluster.folder}/line.sqlite3"
                if kind == "postgresql":
                    url = await cluster.make_postgres()
                    await set_database_clock(url, skew_s=0)
                line = RestartedGateways(cluster, url)
                made[kind] = await stack.enter_async_context(contextlib.aclosing(line))
            return made[kind]

        yield find


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The expected result of a kill at one step: requests at the upstream, the state of the payment (None: no
    record), and the response to the same request sent again."""

    seen: int
    state: str | None
    again: tuple[int, str | None]
    seen_after: int


SERVED = (200, None)
USED = (409, "payment_already_used")
FATES = {
    ("GET", "before-claim"): Fate(seen=0, state=None, again=SERVED, seen_after=1),
    ("GET", "claimed"): Fate(seen=0, state="held", again=SERVED, seen_after=1),
    ("GET", "sent-no-head"): Fate(seen=1, state="held", again=SERVED, seen_after=2),
    ("POST", "sent-no-head"): Fate(seen=1, state="held", again=USED, seen_after=1),
    ("GET", "at-head"): Fate(seen=1, state="held", again=SERVED, seen_after=2),
    ("GET", "closed"): Fate(seen=1, state="charged", again=USED, seen_after=1),
    ("GET", "mid-body"): Fate(seen=1, state="charged", again=USED, seen_after=1),
    ("GET", "unfinished"): Fate(seen=1, state="charged", again=USED, seen_after=1),
}
CASES = [("sqlite", *case) for case in FATES] + [
    pytest.param("postgresql", "GET", point, marks=pytest.mark.postgres)
    for point in ("claimed", "sent-no-head", "closed")
]


@pytest.mark.parametrize(("database", "method", "point"), CASES)
async def test_kill_9_leaves_every_payment_spent_spendable_or_held(
    cluster: Any, wallets: list[Any], lines: Any, database: str, method: str, point: str
) -> None:
    line, caller, fate = await lines(database), wallets[1], FATES[method, point]
    first, tx_hash, group_of_callers = await line.start_callers(wallets)
    path, headers = f"/echo/{group_of_callers.run}/kill/{point}", plain(caller, tx_hash)
    async with group_of_callers.calling():
        # It is killed while it holds the response, or after it has sent it.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await cluster.call(first, line.api_id, path, method=method, headers=headers)
        assert await first.wait_ended() == -signal.SIGKILL
    assert cluster.provider.count(path) == fate.seen

    gateway = await line.gateway()
    await line.pass_lease()
    await wait_recovered(cluster, gateway, [caller, *group_of_callers.payers])
    report = await cluster.audit(gateway)
    assert report.wrong == ()
    await group_of_callers.check(gateway)
    calls = await calls_on(cluster, gateway, caller, tx_hash)
    assert [call["payment"]["state"] for call in calls] == ([] if fate.state is None else [fate.state])
    assert [call["id"] in report.held_calls for call in calls] == [fate.state == "held"] * len(calls)

    reply = await cluster.call(gateway, line.api_id, path, method=method, headers=headers)
    assert (reply.status, reply.code) == fate.again, reply.body
    assert cluster.provider.count(path) == fate.seen_after
    (after,) = await calls_on(cluster, gateway, caller, tx_hash)  # a repeat runs under the existing claim
    assert not calls or after["id"] == calls[0]["id"]
    assert after["payment"]["state"] == (fate.state if fate.again == USED else "charged")
    if fate.again == USED:
        assert (reply.json["callId"], reply.json["paymentState"]) == (after["id"], fate.state)
        assert not reply.asks_for_money
    assert (await cluster.audit(gateway)).wrong == ()


METERING = {
    "base": "0.001",
    "parts": [{"unit": "token", "unitPrice": "0.0001", "quantity": {"sse": "/usage/total_tokens"}}],
}
STREAM = raw(
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n",
    *(b'24\r\ndata: {"usage":{"total_tokens":%d}}\n\n\r\n' % number for number in range(1, 4)),
    b"0\r\n\r\n",
)
"""Three events, which report 1, 2 and 3 tokens."""
METERED_FATES = {
    "claimed": ("held", "0.01"),
    "sent-no-head": ("held", "0.01"),
    "at-head": ("held", "0.01"),
    "closed": ("charged", "0.001"),
    "mid-body": ("charged", "0.001"),
    "unfinished": ("charged", "0.001"),
}
"""The state of the payment and the price by the point of the kill: the maximum is held, or the base is taken, because the use of the response is lost."""


@pytest.mark.parametrize("point", METERED_FATES)
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_kill_9_of_a_metered_stream_holds_the_maximum_or_takes_the_base(
    cluster: Any, wallets: list[Any], lines: Any, database: str, point: str
) -> None:
    line, (provider, caller, *_), (state, price) = await lines(database), wallets, METERED_FATES[point]
    gateway = await line.gateway()
    async with run_upstream() as upstream:
        upstream.answer = STREAM
        api_id = await cluster.publish(gateway, provider, endpoint=upstream.url, metering=METERING)
        tx_hash = await cluster.send_tokens(caller, provider.address, PRICE_UNITS)
        headers = plain(caller, tx_hash)
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await cluster.call(gateway, api_id, f"/{next(_RUNS)}/kill/{point}", headers=headers)
        assert await gateway.wait_ended() == -signal.SIGKILL
        gateway = await line.gateway()
        await line.pass_lease()
        await wait_recovered(cluster, gateway, [caller])

        async def find_call() -> Any:
            (call,) = await calls_on(cluster, gateway, caller, tx_hash)
            return call if call["payment"]["state"] == state else None

        call = await poll(find_call, what=f"the state {state}")
        assert (call["price"], call["priceMax"]) == (price, "0.01")
        shown = await cluster.payment(gateway, caller, tx_hash)
        assert int(shown["credit"]) == (0 if state == "held" else PRICE_UNITS - 1_000)
        assert (await cluster.audit(gateway)).wrong == ()


@pytest.mark.postgres
async def test_a_running_gateway_ends_the_calls_of_a_killed_one(
    cluster: Any, wallets: list[Any], lines: Any
) -> None:
    line, caller, point = await lines("postgresql"), wallets[1], "sent-no-head"
    first, tx_hash, group_of_callers = await line.start_callers(wallets)
    other = cluster.gateway(
        database_url=line.database_url, public_url=first.public_url, settings=QUICK_RECOVERY
    )
    async with other as living:
        path, headers = f"/echo/{group_of_callers.run}/kill/{point}", plain(caller, tx_hash)
        async with group_of_callers.calling():
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await cluster.call(first, line.api_id, path, headers=headers)
            assert await first.wait_ended() == -signal.SIGKILL
        await line.pass_lease()
        await wait_recovered(cluster, living, [caller, *group_of_callers.payers])
        await group_of_callers.check(living)
        (call,) = await calls_on(cluster, living, caller, tx_hash)
        assert (call["status"], call["payment"]["state"]) == ("unknown", "held")
        assert (await cluster.audit(living)).wrong == ()
        assert (await cluster.call(living, line.api_id, path, headers=headers)).status == 200
        (after,) = await calls_on(cluster, living, caller, tx_hash)
        assert (after["id"], after["payment"]["state"]) == (call["id"], "charged")


async def calls_on(cluster: Any, gateway: Any, payer: Any, tx_hash: Any) -> list[Any]:
    calls = await cluster.history(gateway, payer)
    return [call for call in calls if call["payment"]["transaction"] == str(tx_hash)]


async def wait_recovered(cluster: Any, gateway: Any, people: list[Any]) -> None:
    """Returns when no call of the killed gateway is `forwarding`."""

    async def is_settled() -> bool:
        pending = [await cluster.history(gateway, one, "&status=pending") for one in people]
        return not any(pending)

    await poll(is_settled, what="recovery")


async def test_sigterm_under_load_loses_nothing(cluster: Any, wallets: list[Any], lines: Any) -> None:
    line = await lines("sqlite")
    gateway, _, group_of_callers = await line.start_callers(wallets)
    caller, api_id = wallets[1], line.api_id
    tx_hash = await cluster.send_tokens(caller, wallets[0].address, 10 * PRICE_UNITS)
    headers, before = plain(caller, tx_hash), cluster.provider.count("/slow")
    async with group_of_callers.calling(), asyncio.TaskGroup() as group:
        slow = [
            group.create_task(cluster.call(gateway, api_id, f"/slow?seconds=0.5&n={number}", headers=headers))
            for number in range(10)
        ]
        await poll(lambda: cluster.provider.count("/slow") == before + 10, what="ten calls under way")
        assert await gateway.stop() == 0
    assert [task.result().status for task in slow] == [200] * 10  # in flight: finished

    after = await line.gateway()
    assert (await cluster.audit(after)).wrong == ()
    await group_of_callers.check(after)
    for payer, paid in zip(
        [caller, *group_of_callers.payers], [tx_hash, *group_of_callers.payments], strict=True
    ):
        records = await calls_on(cluster, after, payer, paid)
        assert {call["status"] for call in records} == {"succeeded"}
        # A call without a response was not started, so it was not paid.
        assert not {call["path"] for call in records} & set(group_of_callers.cut)
