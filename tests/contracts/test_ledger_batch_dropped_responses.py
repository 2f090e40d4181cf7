"""The end of a charged call cannot be written: its caller gets 503 `held`, and the response is dropped. No caller pays twice or without a
response, whether or not the end was committed, and wherever the request is repeated.

Each row: how the call is paid and named, which write fails, whether it was committed all the same; and what the same
request gets at once, after settlement recovery, and after the hold.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.databases import open_database
from tests.kit.gateway import InProcessGateway
from tests.kit.ledger_records import (
    NOW_MS,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
)
from tests.kit.payer import Payer, has_terms
from tests.kit.storage_faults import ConcurrentCalls, Fault, FaultyGateway, FaultyLedger, open_faulty_gateways
from tests.kit.waits import DEADLINE_S
from tollway.errors import StorageUnavailable
from tollway.gateway import proxy
from tollway.ledger.records import CallState, Delivery, RepeatsOpenCall
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database

PRICE = 10_000
TARGET = "/quote?x=1"
KEY = [("Idempotency-Key", "one")]
HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000


SERVED = "200"
UNKNOWN = "payment_outcome_unknown"
CREDIT = "authorization_became_credit"


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `name`: rail, method, `key` where the request has one, and the write that fails, lost or committed (`landed`).
    `soon`: the response to the same request at once: 200, or the code of a refusal. `swept`: its response after settlement
    recovery. `held`: the call is released after the hold, and its price is credit."""

    name: str
    soon: str
    swept: str = ""
    held: bool = False

    @property
    def rail(self) -> str:
        return self.name.split()[0]

    @property
    def method(self) -> str:
        return self.name.split()[1]

    @property
    def has_key(self) -> bool:
        return "key" in self.name.split()

    @property
    def fault(self) -> Fault:
        return Fault(number=2 if "conclude" in self.name else 1, landed=self.name.endswith("landed"))


ROWS = (
    # A transaction: the close is the only write.
    Row("tx GET lost", SERVED),
    Row("tx GET landed", SERVED),
    Row("tx HEAD landed", SERVED),
    Row("tx GET key lost", SERVED),
    Row("tx GET key landed", SERVED),
    Row("tx POST key lost", SERVED),
    Row("tx POST key landed", SERVED),
    Row("tx POST lost", "payment_already_used", held=True),
    Row("tx POST landed", "payment_already_used", held=True),
    # An authorisation: the call goes to `settling`, the transfer is made, the call is concluded.
    Row("x402 GET settle lost", SERVED),
    Row("x402 GET settle landed", UNKNOWN, swept=SERVED),
    Row("x402 GET conclude lost", UNKNOWN, swept=SERVED),
    Row("x402 GET conclude landed", SERVED),
    Row("x402 GET key settle lost", SERVED),
    Row("x402 GET key settle landed", UNKNOWN, swept=SERVED),
    Row("x402 GET key conclude lost", UNKNOWN, swept=SERVED),
    Row("x402 GET key conclude landed", SERVED),
    Row("x402 POST key settle lost", SERVED),
    Row("x402 POST key settle landed", UNKNOWN, swept=CREDIT),
    Row("x402 POST key conclude lost", UNKNOWN, swept=CREDIT),
    Row("x402 POST key conclude landed", SERVED),
    Row("x402 POST settle lost", "authorization_used", swept="authorization_used"),
    Row("x402 POST settle landed", UNKNOWN, swept=CREDIT),
    Row("x402 POST conclude lost", UNKNOWN, swept=CREDIT),
    Row("x402 POST conclude landed", "authorization_used", held=True),
)


@dataclass(slots=True, kw_only=True)
class Harness:
    """One caller with one request. `answers`: how often it got the response."""

    gateways: list[FaultyGateway]
    row: Row
    headers: list[tuple[str, str]] = field(default_factory=list)
    payment: Any = None

    @property
    def gateway(self) -> InProcessGateway:
        return self.gateways[0].gateway

    async def pay(self) -> None:
        if self.row.rail == "tx":
            self.payment = await self.gateway.pay(PRICE)
            self.headers += self.gateway.plain_proof(self.payment.tx_hash)
        else:
            payer = Payer(wallet=self.gateway.wallet, gateway=self.gateway)
            payer.fund(10 * PRICE)
            self.headers += payer.show(await payer.quote("GET", TARGET))
        if self.row.has_key:
            self.headers += KEY

    def open(self, at: int = 0) -> Exchange:
        chunks = [b"order"] if self.row.method == "POST" else []
        return self.gateways[at].gateway.open(self.row.method, TARGET, self.headers, chunks)

    async def ask(self, at: int = 0) -> Exchange:
        return await self.gateways[at].gateway.run(self.open(at))

    async def lose(self, *, leaves: bool = False) -> None:
        """The response is dropped; its caller gets 503, or has left before."""
        self.gateways[0].fail_at(self.row.fault)
        exchange = self.open()
        if leaves:
            exchange.leave()
        await self.gateways[0].gateway.run(exchange)
        assert self.gateways[0].database.is_away, "the fault did not happen"
        if not leaves:
            assert exchange.status == 503
            assert exchange.headers["tollway-payment-state"] == "held"
            if self.row.method != "HEAD":
                assert exchange.problem["code"] == "payment_outcome_unknown"
                assert not has_terms(exchange)
        self.gateways[0].reconnect()

    async def sweep(self) -> None:
        """Runs the periodic recovery of a gateway."""
        await self.gateways[0].ledger.recover(now_ms=self.gateways[0].clock.ms)
        for _ in range(2):  # the first sends it, the second finds it
            await self.gateway.settlement.sweep()

    async def wait_hold(self) -> None:
        for gateway in self.gateways:
            await gateway.ledger.renew_ownership(now_ms=gateway.clock.ms)
        self.gateways[0].clock.ms += HOLD_MS + 1
        await self.gateways[0].ledger.renew_ownership(now_ms=self.gateways[0].clock.ms)
        await self.gateways[0].ledger.recover(now_ms=self.gateways[0].clock.ms)

    async def call(self) -> Any:
        (call,) = await self.gateway.history()
        return call

    async def check_paid_once(self) -> None:
        call = await self.call()
        assert call.state is CallState.CONSUMED
        assert self.gateway.served == 2, "the run that was dropped, and its one repeat"
        if self.row.rail == "tx":
            assert await self.gateway.remaining_units(self.payment) == 0
        else:
            assert (self.gateway.earned, self.gateway.transfers) == (PRICE, 1)

    async def check_credit(self) -> None:
        """The price buys another call."""
        call = await self.call()
        assert (call.state, self.gateway.served) == (CallState.RELEASED, 1)
        payments = await self.gateway.ledger.find_payments(call.tx_hash)
        assert [one.remaining_units for one in payments] == [PRICE]


def told(answer: Exchange) -> str:
    if answer.status == 200:
        return SERVED
    if not answer.body:  # to HEAD
        return {409: "payment_already_used"}[answer.status]
    assert not has_terms(answer)
    return str(answer.problem.get("reason") or answer.problem["code"])


async def play(row: Row, gateways: list[FaultyGateway], *, at: int, leaves: bool, is_written: bool) -> None:
    harness = Harness(gateways=gateways, row=row)
    await harness.pay()
    await harness.lose(leaves=leaves)
    if is_written:
        await gateways[0].ledger._group_commit.write_late()
    answer = await harness.ask(at)
    assert told(answer) == row.soon
    if row.swept:
        await harness.sweep()
        answer = await harness.ask(at)
        assert told(answer) == row.swept
    if answer.status == 200:
        assert answer.headers["tollway-call-id"] == (await harness.call()).id
        assert answer.headers["tollway-payment-state"] == "charged"
        await harness.check_paid_once()
        if row.rail == "tx" and not row.has_key:
            assert told(await harness.ask(at)) == "payment_already_used"  # one repeat, not two
            await harness.check_paid_once()
        if row.has_key:
            again = await harness.ask(1 - at if len(gateways) > 1 else at)
            assert again.headers["idempotency-replayed"] == "true"
            await harness.check_paid_once()
    elif row.held:
        call = await harness.call()
        assert call.state is CallState.UNKNOWN
        await harness.wait_hold()
        await harness.check_credit()
    elif row.swept == CREDIT:
        await harness.check_credit()
    else:
        assert (harness.gateway.earned, harness.gateway.transfers) == (0, 0), "nothing has moved"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_the_same_gateway_a_dropped_answer_is_paid_once_or_not_at_all(
    database: Database, row: Row
) -> None:
    """Without a wait: late entries are written before the repeat is decided."""
    async with open_faulty_gateways(database, ["one"]) as gateways:
        await play(row, gateways, at=0, leaves=False, is_written=False)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_a_caller_that_left_before_its_answer_was_dropped_pays_once_or_not_at_all(
    sqlite_url: str, row: Row, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite alone: whether the caller is still there changes no statement."""
    # Also a slow dial is followed by the claim.
    monkeypatch.setattr(proxy, "DISCONNECT_CHECK_AFTER_S", DEADLINE_S)
    async with open_database(sqlite_url) as database, open_faulty_gateways(database, ["one"]) as gateways:
        await play(row, gateways, at=0, leaves=True, is_written=False)


@pytest.mark.parametrize(
    ("name", "delivery"), [("tx GET landed", Delivery.PARTIAL), ("tx POST landed", None)]
)
async def test_a_dropped_answer_was_not_delivered_although_its_close_said_so(
    database: Database, name: str, delivery: Delivery | None
) -> None:
    row = next(row for row in ROWS if row.name == name)
    async with open_faulty_gateways(database, ["one"]) as gateways:
        harness = Harness(gateways=gateways, row=row)
        await harness.pay()
        await harness.lose()
        await gateways[0].ledger._group_commit.write_late()
        call = await harness.call()
        assert (call.delivery, call.request_bytes, call.response_bytes) == (delivery, None, None)


@pytest.mark.postgres
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
async def test_at_another_gateway_too_once_the_first_has_written(
    postgres_database: Database, row: Row
) -> None:
    async with open_faulty_gateways(postgres_database, ["one", "two"]) as gateways:
        await play(row, gateways, at=1, leaves=False, is_written=True)


# ---------------------------------------------------------------------- before an answer is dropped


@pytest.mark.parametrize("landed", [False, True], ids=["lost", "landed"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("rail", ["tx", "x402"])
async def test_a_close_is_tried_again_before_its_answer_is_dropped(
    database: Database, rail: str, number: int, landed: bool
) -> None:
    """`number`: the first write that fails. Of a settled call the first stores the transaction, the second concludes."""
    row = Row(f"{rail} GET lost", SERVED)
    async with open_faulty_gateways(database, ["one"], close_patience_s=60.0, retry_s=0.001) as gateways:
        harness = Harness(gateways=gateways, row=row)
        await harness.pay()
        gateways[0].fail_writes_at_head(writes=8, landed=landed, first=number)
        answer = await harness.ask()
        assert (answer.status, answer.body) == (200, b"rare")
        assert answer.headers["tollway-payment-state"] == "charged"
        gateways[0].reconnect()
        call = await harness.call()
        assert (call.state, harness.gateway.served) == (CallState.CONSUMED, 1)
        if rail == "x402":
            assert (harness.gateway.earned, harness.gateway.transfers) == (PRICE, 1)


async def test_the_retries_of_a_close_end(database: Database) -> None:
    row = Row("tx GET lost", SERVED)
    async with open_faulty_gateways(database, ["one"], close_patience_s=0.05, retry_s=0.001) as gateways:
        harness = Harness(gateways=gateways, row=row)
        await harness.pay()
        await harness.lose()
        assert (await harness.ask()).status == 200
        await harness.check_paid_once()


# ---------------------------------------------------------------------- late entries and concurrent requests


@asynccontextmanager
async def open_ledger(database: Database) -> AsyncIterator[FaultyLedger]:
    ledger = FaultyLedger(database)
    yield ledger
    ledger.reconnect()
    await ledger.close()
    assert (await ledger.ledger.audit()).wrong == ()


async def lose_close(ledger: FaultyLedger, claim: Any) -> None:
    await ledger.ledger.claim(claim)
    ledger.database.is_away = True
    with pytest.raises(StorageUnavailable):
        await ledger.ledger.close(close_of(claim))
    ledger.reconnect()


async def test_a_claim_beside_a_late_close_finds_it_written(database: Database) -> None:
    """The payment has units left, so only the batch of the claim searches the call."""
    async with open_ledger(database) as ledger:
        payment = await ledger.pay(10)
        claim = claim_on(payment, 1)
        await lose_close(ledger, claim)
        again = await ledger.ledger.claim(claim_on(payment, 1, digest=claim.digest))
        assert isinstance(again, RepeatsOpenCall)
        assert (again.call.call_id, again.call.state) == (claim.call_id, CallState.UNKNOWN)


async def test_what_its_provider_has_decided_is_not_dropped_later(database: Database) -> None:
    """The drop was committed, and its acknowledgement lost; its provider decides before it is tried again."""
    async with open_ledger(database) as ledger:
        payment = await ledger.pay(10)
        claim = claim_on(payment)
        await lose_close(ledger, claim)
        ledger.database.fail_after = ledger.disconnect_after_commit
        await ledger.ledger._group_commit.write_late()
        ledger.reconnect()
        assert await ledger.ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS)
        await ledger.ledger._group_commit.write_late()
        assert await ledger.ledger.find_open_call(payment.id, claim.digest) is None
        assert (await ledger.ledger.find_call(claim.call_id)).state is CallState.CONSUMED


async def test_a_settlement_that_came_too_late_moves_nothing(database: Database) -> None:
    async with open_ledger(database) as ledger:
        claim = authorized_claim(authorization_of(4))
        await ledger.ledger.claim(claim)
        ledger.database.is_away = True
        close = close_of(claim, CallState.SETTLING)
        with pytest.raises(StorageUnavailable):
            await ledger.ledger.settle(close, attempt=attempt_of(claim, 0), digest=None)
        ledger.reconnect()
        await ledger.ledger._group_commit.write_late()
        assert await ledger.ledger.attempts_of(claim.call_id) == ()
        assert (await ledger.ledger.find_authorized_call(claim.authorization.key)).state is CallState.UNKNOWN


async def test_a_lost_call_has_no_outdated_state_while_writes_fail(database: Database) -> None:
    """A full disk can still be read: a repeat gets 503, not the charged state of the call."""
    async with open_ledger(database) as ledger:
        claim = claim_on(await ledger.pay(10), idempotency_key="k")
        await ledger.ledger.claim(claim)
        ledger.database.fail_after = ledger.disconnect_after_commit
        with pytest.raises(StorageUnavailable):
            await ledger.ledger.close(close_of(claim))
        ledger.reconnect()
        ledger.database.fail_before = lambda: True
        with pytest.raises(StorageUnavailable):
            await ledger.ledger.find_keyed_call(claim.payer, "k", since_ms=0)
        ledger.database.fail_before = lambda: False
        found = await ledger.ledger.find_keyed_call(claim.payer, "k", since_ms=0)
        assert (found.state, found.is_lost) == (CallState.CONSUMED, True)


# ---------------------------------------------------------------------- a real server, whose sessions end

ROUNDS = 40
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.mark.postgres
@pytest.mark.parametrize("patience_s", [60.0, 0.0])
@pytest.mark.parametrize("how", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_sessions_that_end_between_head_and_close_lose_no_response(
    operator: Any, postgres_database: Database, how: str, patience_s: float
) -> None:
    async def trouble() -> None:
        for _ in range(ROUNDS):
            await operator.execute(f"SELECT {how}(pid) {OTHERS}")

    async with open_faulty_gateways(
        postgres_database, ["one"], close_patience_s=patience_s, retry_s=0.01
    ) as gateways:
        calls = ConcurrentCalls(gateways=gateways)
        await calls.prepare()
        answers = await calls.run_during(trouble)
        dropped = await calls.retry_dropped(answers)
        assert patience_s == 0.0 or dropped == 0
        await calls.check(dropped=dropped)
