"""A response of the upstream is lost after the request was sent: the caller gets a 504 with the id of the call, the
price is held, and no caller gets a 402. A safe request runs again under its claim, an unsafe one does not, and one
with an idempotency key has one outcome at every gateway."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import update

from tests.kit.gateway_cluster import PRICE_UNITS, plain
from tests.kit.gateway_process import poll
from tests.kit.scripted_upstream import ScriptedUpstream, run_scripted_upstream
from tests.kit.signed_calls import LONG_LIVED, QUICK, PaidListing
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.ledger_tables import call_table

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.postgres,
    pytest.mark.timeout(600),
]

LOSSES = ("silent", "stall", "reset", "half", "close")
"""How an answer gets lost; the first two take as long as the listing lets its upstream take."""
TIMEOUT_S = 1
PATIENT_S = 300
"""The two deadlines of a listing: while responses are lost, and from then on, so that no pause of the machine loses another one."""
CROWD = 20
DAY_MS = 24 * 3600 * 1000
UNHURRIED = {"TOLLWAY_LIMIT_HEADER_DEADLINE_S": "120"}
"""No connection of ours is closed while it idles."""
ORDER = b'{"order": 1}'
_NUMBERS = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harness:
    """Two gateways on one PostgreSQL and one name, and an upstream that loses responses."""

    cluster: Any
    upstream: ScriptedUpstream
    stall: PaidListing

    @property
    def gateways(self) -> list[Any]:
        return self.stall.gateways

    async def wait_longer(self) -> None:
        """From now on both gateways wait longer for the upstream than any machine pauses."""
        cluster, api_id = self.cluster, self.stall.api_id
        draft = cluster.draft(endpoint=self.upstream.url, timeoutSeconds=PATIENT_S)
        path = f"/apis/{api_id}"
        changed = await cluster.control(self.gateways[0], self.stall.provider, "PUT", path, draft)
        assert changed.status == 200, changed.body

        async def is_known(gateway: Any) -> bool:
            shown = await cluster.control(gateway, self.stall.provider, "GET", path)
            return bool(shown.json["timeoutSeconds"] == PATIENT_S)

        for gateway in self.gateways:
            await poll(partial(is_known, gateway), what="the longer deadline")

    async def make_calls(self, rail: str, count: int, **options: Any) -> "list[Lost]":
        payers = await self.cluster.wallets(count)
        if rail == "x402":
            shown = [[self.stall.sign(payer, "/").header] for payer in payers]
        else:
            hashes = await self.cluster.pay_in_bulk(payers, self.stall.provider.address)
            shown = [plain(payer, tx_hash) for payer, tx_hash in zip(payers, hashes, strict=True)]
        return [
            Lost(harness=self, payer=payer, shown=headers, number=next(_NUMBERS), **options)
            for payer, headers in zip(payers, shown, strict=True)
        ]

    async def resolve(self, call_id: str, outcome: str) -> Any:
        path = f"/history/{call_id}/resolution"
        return await self.cluster.control(
            self.gateways[0], self.stall.provider, "POST", path, {"outcome": outcome}
        )

    async def let_a_day_go_by(self, call_id: str) -> None:
        """Moves the clock of the ledger by a day."""
        aged = update(call_table).where(call_table.c.id == call_id)
        aged = aged.values(moved_ms=call_table.c.moved_ms - DAY_MS)
        database = connect_database(self.gateways[0].env["TOLLWAY_DATABASE_URL"])
        try:
            await database.write(lambda connection: connection.execute(aged))
        finally:
            await database.close()

    async def check_ledger(self) -> None:
        assert (await self.cluster.audit(self.gateways[0])).wrong == ()
        await self.cluster.check_exports(self.gateways[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """One request with one payment, whose first response is lost."""

    harness: Harness
    payer: Any
    shown: list[tuple[str, str]]
    number: int
    loss: str = "reset"
    method: str = "GET"
    key: str | None = None

    @property
    def path(self) -> str:
        return f"/{self.loss}/{self.number}"

    @property
    def seen(self) -> int:
        return self.harness.upstream.count(self.path, self.method)

    async def send(self, at: int = 0, *, path: str | None = None) -> Any:
        key = [("Idempotency-Key", f"{self.key}-{self.number}")] if self.key and path is None else []
        return await self.harness.cluster.call(
            self.harness.gateways[at],
            self.harness.stall.api_id,
            path or self.path,
            method=self.method,
            headers=[*self.shown, *key],
            content=ORDER if self.method == "POST" else None,
        )

    async def lose(self, at: int = 0) -> str:
        """Loses the response; returns the call's id."""
        reply = await self.send(at)
        assert (reply.status, reply.code, reply.state) == (504, "upstream_timeout", "held"), reply.body
        told = reply.json
        assert told["paymentState"] == "held"
        assert not reply.asks_for_money
        record = await self.record(at)
        assert told["call"].endswith(f"/history/{record['id']}")
        assert (record["id"], record["status"]) == (told["callId"], "unknown")
        assert record["payment"]["state"] == "held"
        return str(record["id"])

    async def record(self, at: int = 0) -> Any:
        (call,) = await self.harness.cluster.history(self.harness.gateways[at], self.payer)
        return call

    async def wait_settled(self) -> None:
        """Returns when the call that its provider charged is ended by its transfer. A repeat meanwhile is no demand for money."""
        reply = await self.send(1)
        assert not reply.asks_for_money
        assert reply.status in (409, 503), reply.body

        async def is_charged() -> bool:
            record = await self.record(1)
            return bool(record["payment"]["state"] == "charged" and record["payment"]["transaction"])

        await poll(is_charged, what="the settlement of the charge")

    async def check_refused(self, reply: Any, call_id: str, state: str) -> None:
        assert (reply.status, reply.code) == (409, "payment_already_used"), reply.body
        assert (reply.json["callId"], reply.json["paymentState"]) == (call_id, state)
        assert not reply.asks_for_money

    async def check_held(self, call_id: str) -> None:
        """Checks that the payment buys nothing else, at either gateway."""
        for at in (0, 1):
            await self.check_refused(await self.send(at, path="/echo/other"), call_id, "held")

    async def check_charged_once(self, call_id: str) -> None:
        record = await self.record(1)
        assert (record["id"], record["payment"]["state"]) == (call_id, "charged")
        await self.check_refused(await self.send(path="/echo/other"), call_id, "charged")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedGateways:
    gateways: list[Any]
    upstream: ScriptedUpstream


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(cluster: Any) -> AsyncIterator[SharedGateways]:
    (gas,) = await cluster.wallets(1)
    settings = {**QUICK, **LONG_LIVED, "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key, **UNHURRIED}
    url = await cluster.make_postgres()
    async with (
        run_scripted_upstream() as upstream,
        cluster.gateways(2, database_url=url, settings=settings) as gateways,
    ):
        yield SharedGateways(gateways=gateways, upstream=upstream)


@pytest_asyncio.fixture(loop_scope="module")
async def harness(cluster: Any, shared: SharedGateways) -> Harness:
    """With a listing of its own."""
    stall = await PaidListing.open(
        cluster, shared.gateways, endpoint=shared.upstream.url, timeoutSeconds=TIMEOUT_S
    )
    return Harness(cluster=cluster, upstream=shared.upstream, stall=stall)


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_safe_request_runs_again_under_its_claim(harness: Harness, torture: Any, rail: str) -> None:
    losses = LOSSES * torture.pick(short=1, long=4)
    calls = await harness.make_calls(rail, len(losses))

    async def suffer(call: Lost, call_id: str) -> None:
        await call.check_held(call_id)
        again = await call.send(1)
        assert (again.status, again.state) == (200, "charged"), again.body
        assert (again.headers["Tollway-Call-Id"], call.seen) == (call_id, 2)
        await call.check_charged_once(call_id)

    await _suffer(harness, calls, losses, suffer)
    await harness.check_ledger()
    torture.tell(lost=len(calls), served_again=len(calls))


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_an_unsafe_request_does_not_run_again_and_its_provider_decides(
    harness: Harness, torture: Any, rail: str
) -> None:
    losses = LOSSES * torture.pick(short=1, long=4)
    calls = await harness.make_calls(rail, len(losses), method="POST")

    async def suffer(call: Lost, call_id: str) -> None:
        await call.check_held(call_id)
        for at in (0, 1):
            await call.check_refused(await call.send(at), call_id, "held")
        outcome = "consumed" if call.number % 2 else "released"
        resolved = await harness.resolve(call_id, outcome)
        is_settled_first = rail == "x402" and outcome == "consumed"
        assert resolved.status == (202 if is_settled_first else 200), resolved.body
        assert call.seen == 1
        if is_settled_first:
            assert (resolved.json["status"], resolved.json["payment"]["state"]) == ("pending", "held")
            await call.wait_settled()
        if outcome == "consumed":
            await call.check_charged_once(call_id)
            assert call.seen == 1
            return
        assert (await call.record())["payment"]["state"] == "released"
        other = await call.send(1, path="/echo/other")
        assert (other.status, other.state) == (200, "charged"), other.body

    await _suffer(harness, calls, losses, suffer)
    await harness.check_ledger()
    torture.tell(lost=len(calls), served_again=0)


@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_under_a_key_twenty_repeats_at_two_gateways_have_one_outcome(
    harness: Harness, torture: Any, rail: str
) -> None:
    losses = torture.pick(short=("reset", "silent"), long=LOSSES * 2)
    calls = await harness.make_calls(rail, len(losses), method="POST", key="order")

    async def suffer(call: Lost, call_id: str) -> None:
        await call.check_held(call_id)
        replies = await asyncio.gather(*(call.send(number % 2) for number in range(CROWD)))
        assert call.seen == 2, "the one that was lost, and one more"
        assert not any(reply.asks_for_money for reply in replies)
        others = {(reply.status, reply.code) for reply in replies if reply.status != 200}
        assert others <= {(409, "idempotency_in_progress"), (503, "payment_outcome_unknown")}, others
        fresh = [reply for reply in replies if reply.status == 200 and not _is_replayed(reply)]
        assert len(fresh) == 1
        later = await asyncio.gather(*(call.send(number % 2) for number in range(CROWD)))
        assert all(_is_replayed(reply) for reply in later), [reply.body for reply in later]
        assert {reply.body for reply in (*fresh, *later)} == {fresh[0].body}
        assert {reply.headers["Tollway-Call-Id"] for reply in (*fresh, *later)} == {call_id}
        assert call.seen == 2
        await call.check_charged_once(call_id)

    await _suffer(harness, calls, losses, suffer)
    await harness.check_ledger()
    torture.tell(lost=len(calls), repeats=2 * CROWD * len(calls), outcomes=len(calls))


@pytest.mark.parametrize(("method", "key"), [("GET", None), ("POST", "order")])
async def test_a_request_is_sent_three_times_at_most_and_then_held_for_a_day(
    harness: Harness, method: str, key: str | None
) -> None:
    (call,) = await harness.make_calls("tx", 1, method=method, key=key)
    harness.upstream.turns[call.path] = 9
    call_ids = {await call.lose(at) for at in (0, 1, 0)}
    (call_id,) = call_ids
    for at in (1, 0):
        await call.check_refused(await call.send(at), call_id, "held")
    assert call.seen == 3
    await harness.wait_longer()
    await harness.let_a_day_go_by(call_id)

    async def is_released() -> bool:
        return bool((await call.record())["payment"]["state"] == "released")

    await poll(is_released, what="the release after a day")
    other = await call.send(1, path="/echo/other")
    assert (other.status, other.state) == (200, "charged"), other.body
    payments = await harness.cluster.control(harness.gateways[0], call.payer, "GET", "/payments")
    assert [payment["amount"] for payment in payments.json["payments"]] == [str(PRICE_UNITS)]
    await harness.check_ledger()


def _is_replayed(reply: Any) -> bool:
    return reply.status == 200 and reply.headers.get("Idempotency-Replayed") == "true"


async def _suffer(harness: Harness, calls: list[Lost], losses: Any, suffer: Any) -> None:
    """Loses the response of every call; then `suffer` gets each of them with its id."""
    lost = [replace(call, loss=loss) for call, loss in zip(calls, losses, strict=True)]
    call_ids = await asyncio.gather(*(call.lose() for call in lost))
    await harness.wait_longer()
    async with asyncio.TaskGroup() as group:
        for call, call_id in zip(lost, call_ids, strict=True):
            group.create_task(suffer(call, call_id))
