"""One idempotency key has one outcome: a call without a response runs again under its claim with any method, and a
paid call gets no 402 in place of any other refusal of the repeat."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway
from tests.kit.payer import Payer, has_terms, is_replayed
from tests.kit.storage_faults import BlindLedger
from tests.kit.upstream import hang_up, held, plain, raw
from tests.kit.waits import until
from tests.model.ledger import MemoryLedger
from tollway.ids import Address
from tollway.ledger.records import CallState, Dialect
from tollway.money import Price

PRICE = 10_000
TARGET = "/orders"
KEY = [("Idempotency-Key", "one")]
NEEDED = {"name": "x", "in": "query", "required": True, "schema": {"type": "string"}}
REQUIRING_X = {
    "openapi": "3.1.0",
    "paths": {TARGET: {"post": {"parameters": [NEEDED]}}},
}


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(response_reading_s=20) as small:
        await small.publish()
        yield small


class Harness:
    """A caller that pays in one of five ways, and shows the same, or something fresh."""

    def __init__(self, gateway: InProcessGateway, payer: Payer, rail: str) -> None:
        self._gateway = gateway
        self._payer = payer
        self._rail = rail
        self._shown: list[Any] = []

    async def ask(
        self, body: bytes = b"{}", *, key: Any = KEY, method: str = "POST", is_fresh: bool = False
    ) -> Exchange:
        if is_fresh or not self._shown or self._rail == "bound":
            self._shown = await self.prove(body, method)
        chunks = [body] if body else []
        return await self._gateway.ask(method, TARGET, [*self._shown, *key], chunks)

    async def prove(self, body: bytes, method: str = "POST") -> list[Any]:
        if self._rail in ("plain", "bound"):
            self._payment = getattr(self, "_payment", None) or await self._gateway.pay(5 * PRICE)
            tx_hash = self._payment.tx_hash
            if self._rail == "plain":
                return [*self._gateway.plain_proof(tx_hash)]
            return [*self._gateway.bound_proof(tx_hash, method=method, target=TARGET, body=body)]
        asked = await self._payer.quote(method, TARGET)
        return self._payer.show(asked, Dialect(self._rail))

    @property
    def is_by_transaction(self) -> bool:
        return self._rail in ("plain", "bound")

    async def paid(self) -> int:
        if self.is_by_transaction:
            return 5 * PRICE - await self._gateway.remaining_units(self._payment)
        return self._gateway.earned


RAILS = ["plain", "bound", *(dialect.value for dialect in Dialect)]


@pytest.fixture(params=RAILS)
def harness(request: pytest.FixtureRequest, gateway: InProcessGateway, payer: Payer) -> Harness:
    return Harness(gateway, payer, request.param)


def told(answer: Exchange) -> tuple[int, str]:
    assert not has_terms(answer)
    return answer.status, answer.problem["code"]


# ---------------------------------------------------------------------- sent, and no answer


async def test_under_a_key_an_unsafe_call_without_an_answer_runs_again_under_its_claim(
    gateway: InProcessGateway, harness: Harness
) -> None:
    gateway.upstream.answer = hang_up
    lost = await harness.ask()
    assert told(lost) == (504, "upstream_timeout")
    assert lost.headers["tollway-payment-state"] == "held"
    gateway.upstream.answer = plain(b"done")
    again = await harness.ask()
    assert (again.status, again.body, is_replayed(again)) == (200, b"done", False)
    assert again.headers["tollway-call-id"] == lost.headers["tollway-call-id"]
    last = await harness.ask()
    assert (last.body, is_replayed(last)) == (b"done", True)
    assert (gateway.served, await harness.paid()) == (2, PRICE)
    assert len(await gateway.history()) == 1
    await gateway.check_balanced()


async def test_without_a_key_an_unsafe_call_without_an_answer_is_held(
    gateway: InProcessGateway, harness: Harness
) -> None:
    gateway.upstream.answer = hang_up
    assert told(await harness.ask(key=())) == (504, "upstream_timeout")
    gateway.upstream.answer = plain()
    again = await harness.ask(key=())
    if again.status == 200:  # a payment worth five pays for another call; the first stays held
        assert len(await gateway.history()) == 2
    else:
        assert told(again) == (409, "payment_already_used")
        assert gateway.served == 1
    assert CallState.UNKNOWN in {call.state for call in await gateway.history()}


async def test_it_runs_three_times_at_most_and_is_held_then(
    gateway: InProcessGateway, harness: Harness
) -> None:
    gateway.upstream.answer = hang_up
    for _ in range(3):
        assert told(await harness.ask()) == (504, "upstream_timeout")
    for _ in range(2):
        answer = await harness.ask()
        assert told(answer) == (409, "payment_already_used")
        assert answer.problem["paymentState"] == "held"
    assert gateway.served == 3
    (call,) = await gateway.history()
    assert call.state is CallState.UNKNOWN


async def test_an_authorisation_that_is_signed_anew_runs_it_again_and_stays_unused(
    gateway: InProcessGateway, payer: Payer
) -> None:
    harness = Harness(gateway, payer, Dialect.X402_V2.value)
    gateway.upstream.answer = hang_up
    lost = await harness.ask()
    gateway.upstream.answer = plain(b"done")
    again = await harness.ask(is_fresh=True)
    assert (again.status, again.body) == (200, b"done")
    assert again.headers["tollway-call-id"] == lost.headers["tollway-call-id"]
    assert (gateway.served, gateway.transfers, gateway.earned) == (2, 1, PRICE)
    bought = await harness.ask(key=())  # the second one is still good
    assert (bought.status, is_replayed(bought), gateway.transfers) == (200, False, 2)


async def test_in_another_dialect_or_with_another_payment_it_is_held_and_nothing_is_taken(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = hang_up
    lost = await Harness(gateway, payer, Dialect.X402_V2.value).ask()
    for rail in ("plain", "bound", Dialect.MPP.value):
        other = Harness(gateway, payer, rail)
        answer = await other.ask()
        assert told(answer) == (409, "payment_already_used")
        assert answer.problem["reason"] == "idempotency_key_used"
        assert answer.problem["callId"] == lost.headers["tollway-call-id"]
        assert await other.paid() == 0
    first = [*await gateway.plain_payment(PRICE), ("Idempotency-Key", "two")]
    assert (await gateway.ask("POST", TARGET, first, [b"{}"])).status == 504
    answer = await gateway.ask(
        "POST",
        TARGET,
        [*gateway.plain_proof((await gateway.pay(PRICE)).tx_hash), ("Idempotency-Key", "two")],
        [b"{}"],
    )
    assert told(answer) == (409, "payment_already_used")
    assert gateway.served == 2


async def test_another_request_under_the_key_of_an_open_call_is_refused(
    gateway: InProcessGateway, harness: Harness
) -> None:
    gateway.upstream.answer = hang_up
    assert (await harness.ask()).status == 504
    assert told(await harness.ask(b"[]", is_fresh=True)) == (422, "idempotency_key_reused")
    assert gateway.served == 1


async def test_another_key_is_another_call_while_the_first_is_open(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """Else its answer would be under the key of the first, and the second would buy it once more."""
    harness = Harness(gateway, payer, "plain")
    gateway.upstream.answer = hang_up
    lost = await harness.ask(method="GET", body=b"")
    gateway.upstream.answer = plain()
    two = [("Idempotency-Key", "two")]
    other = await harness.ask(method="GET", body=b"", key=two)
    assert other.headers["tollway-call-id"] != lost.headers["tollway-call-id"]
    assert is_replayed(await harness.ask(method="GET", body=b"", key=two))
    assert (await harness.ask(method="GET", body=b"")).headers["tollway-call-id"] == lost.headers[
        "tollway-call-id"
    ]
    assert await harness.paid() == 2 * PRICE


# ---------------------------------------------------------------------- answered in part


CUT = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhalf", close=True)


@pytest.mark.parametrize(("method", "runs_again"), [("GET", True), ("POST", False)])
async def test_an_answer_that_its_upstream_cut_short_is_repeated_where_the_method_is_safe(
    gateway: InProcessGateway, harness: Harness, method: str, runs_again: bool
) -> None:
    gateway.upstream.answer = CUT
    first = await harness.ask(b"", method=method)
    assert (first.status, first.is_ended) == (200, False)
    gateway.upstream.answer = plain(b"whole")
    again = await harness.ask(b"", method=method)
    if runs_again:
        assert (again.status, again.body) == (200, b"whole")
        assert is_replayed(await harness.ask(b"", method=method))
    else:
        assert told(again) == (409, "payment_already_used")
        assert again.problem["callId"] == first.headers["tollway-call-id"]
    assert (gateway.served, await harness.paid()) == (1 + runs_again, PRICE)
    await gateway.check_balanced()


async def test_while_an_answer_is_read_its_repeat_is_in_progress_and_then_gets_it(
    gateway: InProcessGateway, harness: Harness
) -> None:
    may_go_on = asyncio.Event()

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"
    gateway.upstream.answer = held(may_go_on, head + b"x" * 50_000, b"y" * 50_000)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(harness.ask())
        await until(lambda: gateway.served == 1)
        await until(lambda: any(call.state is CallState.CONSUMED for call in _calls(gateway)))
        again = await harness.ask()
        may_go_on.set()
    assert told(again) == (409, "idempotency_in_progress")
    assert again.problem["paymentState"] == "charged"
    assert first.result().status == 200
    assert (await harness.ask()).body == first.result().body
    assert (gateway.served, await harness.paid()) == (1, PRICE)


async def test_a_response_that_is_read_for_too_long_is_reported_as_not_stored(
    gateway: InProcessGateway, harness: Harness
) -> None:
    """Its gateway may have died over it."""
    reading_ms = int(gateway.limits.response_reading_s * 1000)
    first = await harness.ask()
    (call,) = _calls(gateway)
    call.finish = None  # the crash
    gateway.ledger.rows.answers.clear()
    gateway.now_ms += reading_ms - 1
    assert told(await harness.ask()) == (409, "idempotency_in_progress")
    gateway.now_ms += 1
    gone = await harness.ask()
    assert told(gone) == (409, "payment_already_used")
    assert gone.problem["callId"] == first.headers["tollway-call-id"]
    assert gone.problem["paymentState"] == "charged"


def _calls(gateway: InProcessGateway) -> list[Any]:
    return list(gateway.ledger.rows.calls.values())


async def test_an_answer_that_was_dropped_is_not_bought_twice(
    gateway: InProcessGateway, harness: Harness
) -> None:
    first = await harness.ask()
    gateway.ledger.rows.answers.clear()
    again = await harness.ask()
    assert told(again) == (409, "payment_already_used")
    assert again.problem["callId"] == first.headers["tollway-call-id"]
    assert (gateway.served, await harness.paid()) == (1, PRICE)


# ---------------------------------------------------------------------- nothing speaks against a repeat


async def test_a_repeat_goes_before_the_budget_of_failed_calls(
    gateway: InProcessGateway, harness: Harness
) -> None:
    assert (await harness.ask()).status == 200
    gateway.upstream.answer = plain(status=500)
    for number in range(20):
        await harness.ask(key=[("Idempotency-Key", f"fails {number}")], is_fresh=True)
    assert told(await harness.ask(key=(), is_fresh=True)) == (429, "failed_call_budget_exhausted")
    assert is_replayed(await harness.ask())


async def test_a_repeat_goes_before_what_the_call_costs_by_now(
    gateway: InProcessGateway, harness: Harness
) -> None:
    assert (await harness.ask()).status == 200
    await gateway.revise(gateway.sample("api_quotes"), price=Price.parse("7"))
    gateway.now_ms += 3_600_000
    await gateway.settlement.gas_budget.refresh()
    assert is_replayed(await harness.ask())
    assert is_replayed(await harness.ask(is_fresh=True))


async def test_a_repeat_goes_before_the_balance_of_its_wallet(gateway: InProcessGateway) -> None:
    payer = Payer.funded(gateway, PRICE)
    harness = Harness(gateway, payer, Dialect.X402_V2.value)
    assert (await harness.ask()).status == 200
    assert payer.balance == 0
    assert is_replayed(await harness.ask(is_fresh=True))
    assert (gateway.served, gateway.transfers) == (1, 1)


async def test_a_repeat_goes_before_the_chain(gateway: InProcessGateway, payer: Payer) -> None:
    assert (await Harness(gateway, payer, "bound").ask()).status == 200
    unseen = gateway.sample_payment().tx_hash  # it would have to be looked up
    shown = gateway.bound_proof(unseen, method="POST", target=TARGET, body=b"{}")
    assert is_replayed(await gateway.ask("POST", TARGET, [*shown, *KEY], [b"{}"]))


async def test_an_expired_authorisation_opens_no_key(gateway: InProcessGateway, payer: Payer) -> None:
    """Old authorisations are public on the chain."""
    asked = await payer.quote("POST", TARGET)
    assert (await Harness(gateway, payer, Dialect.X402_V2.value).ask()).status == 200
    old = payer.show(asked)
    gateway.now_ms += 3_600_000
    await gateway.settlement.gas_budget.refresh()
    answer = await gateway.ask("POST", TARGET, [*old, *KEY], [b"{}"])
    assert "idempotency-replayed" not in answer.headers
    assert answer.status == 402


async def test_an_open_call_requires_no_payment_in_another_currency(
    gateway: InProcessGateway, payer: Payer
) -> None:
    harness = Harness(gateway, payer, "plain")
    gateway.upstream.answer = hang_up
    assert (await harness.ask()).status == 504
    await gateway.revise(gateway.sample("api_quotes"), currency="EURC")
    gateway.now_ms += 3_600_000
    answer = await harness.ask()
    assert told(answer) == (504, "upstream_timeout")  # it has run again, at the price that it had
    assert answer.problem["paymentState"] == "held"
    assert len(await gateway.history()) == 1


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize(("length", "status"), [(1, 200), (255, 200), (256, 400)])
async def test_a_key_has_255_characters_at_most(
    gateway: InProcessGateway, harness: Harness, length: int, status: int
) -> None:
    assert (await harness.ask(key=[("Idempotency-Key", "k" * length)])).status == status


@pytest.mark.parametrize("key", ["\0", "k\0"])
async def test_a_key_without_a_column_that_holds_it_is_refused(
    gateway: InProcessGateway, harness: Harness, key: str
) -> None:
    """HTTP/1.1 cannot carry NUL; an argument of MCP can."""
    answer = await harness.ask(key=[("Idempotency-Key", key)])
    assert told(answer) == (400, "invalid_request")
    assert gateway.served == 0


async def test_a_key_is_forgotten_after_a_day(gateway: InProcessGateway, payer: Payer) -> None:
    harness = Harness(gateway, payer, "plain")
    assert (await harness.ask()).status == 200
    gateway.now_ms += 86_400_001
    assert not is_replayed(await harness.ask())
    assert gateway.served == 2


# ---------------------------------------------------------------------- another gateway was faster


@pytest.fixture
async def blind(gateway: InProcessGateway) -> AsyncIterator[InProcessGateway]:
    before = InProcessGateway(gateway.upstream, limits=gateway.limits)
    before.ledger = BlindLedger(now_ms=lambda: NOW_MS, limits=gateway.limits)
    blind = InProcessGateway(gateway.upstream, limits=gateway.limits, before=before)
    await blind.publish()
    async with blind.settlement.running():
        yield blind
    await blind.http_client.close()


FRESH = ["plain", "bound", Dialect.X402_V2.value]


@pytest.fixture(params=FRESH)
def blind_harness(request: pytest.FixtureRequest, blind: InProcessGateway) -> Harness:
    payer = Payer.funded(blind, 10 * PRICE)
    return Harness(blind, payer, request.param)


async def test_a_claim_that_was_overtaken_in_the_ledger_gets_the_outcome_of_a_repeat(
    blind: InProcessGateway, blind_harness: Harness
) -> None:
    assert (await blind_harness.ask()).status == 200
    (standing, *_) = blind_caller_states(blind)
    paid_before = standing.paid
    assert is_replayed(await blind_harness.ask(is_fresh=True))
    assert told(await blind_harness.ask(b"[]", is_fresh=True)) == (422, "idempotency_key_reused")
    assert (blind.served, await blind_harness.paid()) == (1, PRICE)
    assert standing.paid == paid_before  # a replay does not count as a paid call
    await blind.check_balanced()


def blind_caller_states(blind: InProcessGateway) -> list[Any]:
    failures = blind.access.failures
    return list(failures._states.values())


async def test_a_claim_that_was_overtaken_by_a_running_call_gets_in_progress(
    blind: InProcessGateway, blind_harness: Harness
) -> None:
    may_answer = asyncio.Event()

    blind.upstream.answer = held(may_answer)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(blind_harness.ask())
        await until(lambda: blind.served == 1)
        again = await blind_harness.ask(is_fresh=True)
        may_answer.set()
    assert told(again) == (409, "idempotency_in_progress")
    assert (first.result().status, blind.served) == (200, 1)


async def test_a_claim_that_was_overtaken_by_an_unanswered_call_runs_it_or_is_held(
    blind: InProcessGateway, blind_harness: Harness
) -> None:
    blind.upstream.answer = hang_up
    lost = await blind_harness.ask()
    blind.upstream.answer = plain()
    again = await blind_harness.ask(is_fresh=True)
    if again.status == 200:
        assert again.headers["tollway-call-id"] == lost.headers["tollway-call-id"]
        assert await blind_harness.paid() == PRICE
    else:
        assert told(again) == (409, "payment_already_used")
        assert blind.served == 1


class LateLedger(MemoryLedger):
    """Another gateway runs each call again a moment before this one does."""

    async def reopen(self, call_id: Any, **options: Any) -> Any:
        await super().reopen(call_id, **options)
        return await super().reopen(call_id, **options)


@pytest.mark.parametrize("rail", FRESH)
async def test_a_repeat_that_was_overtaken_by_another_gets_in_progress(
    gateway: InProcessGateway, rail: str
) -> None:
    before = InProcessGateway(gateway.upstream, limits=gateway.limits)
    before.ledger = LateLedger(now_ms=lambda: NOW_MS, limits=gateway.limits)
    late = InProcessGateway(gateway.upstream, limits=gateway.limits, before=before)
    await late.publish()
    async with late.settlement.running():
        payer = Payer.funded(late, 10 * PRICE)
        harness = Harness(late, payer, rail)
        late.upstream.answer = hang_up
        assert told(await harness.ask()) == (504, "upstream_timeout")
        assert told(await harness.ask()) == (409, "idempotency_in_progress")
    await late.http_client.close()


# ---------------------------------------------------------------------- which proof opens the call of a key

ELSEWHERE = Address(b"\x77" * 20)


@pytest.fixture(params=[plain(b"secret"), hang_up], ids=["answered", "open"])
async def secret(request: pytest.FixtureRequest, gateway: InProcessGateway, payer: Payer) -> Exchange:
    """A 402; after it the wallet's call under the key was answered, or is open."""
    asked = await payer.quote("POST", TARGET)
    gateway.upstream.answer = request.param
    await Harness(gateway, payer, Dialect.X402_V2.value).ask()
    gateway.upstream.answer = plain(b"secret")
    return asked


@pytest.mark.parametrize("dialect", Dialect)
async def test_an_authorisation_for_another_payee_opens_no_key(
    gateway: InProcessGateway, payer: Payer, secret: Exchange, dialect: Dialect
) -> None:
    """The payee of an authorisation has a copy of it, and it may be fresh."""
    foreign = payer.show(secret, dialect, payee=ELSEWHERE, base_units=1)
    answer = await gateway.ask("POST", TARGET, [*foreign, *KEY], [b"{}"])
    assert (answer.status, gateway.served) == (402, 1)
    assert b"secret" not in answer.body


async def test_an_authorisation_for_an_earlier_payee_and_price_opens_its_wallets_keys(
    gateway: InProcessGateway, payer: Payer
) -> None:
    harness = Harness(gateway, payer, Dialect.X402_V2.value)
    old = payer.show(await payer.quote("POST", TARGET))
    assert (await harness.ask()).status == 200
    await gateway.revise(gateway.sample("api_quotes"), price=Price.parse("7"), pay_to=ELSEWHERE)
    assert is_replayed(await gateway.ask("POST", TARGET, [*old, *KEY], [b"{}"]))


# ---------------------------------------------------------------------- its listing has changed


async def change(gateway: InProcessGateway, *, is_long_ago: bool = True, **changes: Any) -> None:
    """`is_long_ago`: nothing of before counts any more, and no authorisation either."""
    await gateway.revise(gateway.sample("api_quotes"), **changes)
    gateway.now_ms += 3_600_000 if is_long_ago else 1_000
    await gateway.settlement.gas_budget.refresh()


CLOSED: list[dict[str, Any]] = [
    {"status": "paused"},
    {"retired_ms": NOW_MS},
    {"methods": ("GET",)},
    {"openapi": REQUIRING_X},
    {"operations": (), "other_paths": "refuse"},
]


@pytest.mark.parametrize("changes", CLOSED, ids=lambda one: next(iter(one)))
async def test_a_stored_response_is_delivered_in_every_state_of_its_listing(
    gateway: InProcessGateway, harness: Harness, changes: dict[str, Any]
) -> None:
    assert (await harness.ask()).status == 200
    await change(gateway, **changes)
    assert is_replayed(await harness.ask())
    refused = await harness.ask(key=[("Idempotency-Key", "two")], is_fresh=harness.is_by_transaction)
    assert refused.status >= 400
    assert (gateway.served, await harness.paid()) == (1, PRICE)


@pytest.mark.parametrize("changes", CLOSED, ids=lambda one: next(iter(one)))
async def test_a_closed_listing_runs_nothing_again(
    gateway: InProcessGateway, payer: Payer, changes: dict[str, Any]
) -> None:
    harness = Harness(gateway, payer, "plain")
    gateway.upstream.answer = hang_up
    assert (await harness.ask()).status == 504
    await change(gateway, **changes)
    assert (await harness.ask()).problem["code"] not in ("payment_already_used", "upstream_timeout")
    assert gateway.served == 1


@pytest.mark.parametrize("is_answered", [True, False])
async def test_under_its_key_a_call_that_was_paid_is_the_same_call_when_its_listing_is_free(
    gateway: InProcessGateway, harness: Harness, is_answered: bool
) -> None:
    gateway.upstream.answer = plain() if is_answered else hang_up
    first = await harness.ask()
    gateway.upstream.answer = plain(b"done")
    await change(gateway, price=Price.parse("0"), is_long_ago=harness.is_by_transaction)
    again = await harness.ask()
    assert (again.status, is_replayed(again)) == (200, is_answered)
    assert again.headers["tollway-call-id"] == first.headers["tollway-call-id"]
    assert is_replayed(await harness.ask())
    assert (gateway.served, await harness.paid()) == (2 - is_answered, PRICE)
    other = await harness.ask(key=[("Idempotency-Key", "two")])
    assert (other.status, is_replayed(other), await harness.paid()) == (200, False, PRICE)
    await gateway.check_balanced()


async def test_a_free_call_is_refused_a_key_that_is_taken(
    gateway: InProcessGateway, harness: Harness
) -> None:
    assert (await harness.ask()).status == 200
    await change(gateway, price=Price.parse("0"))
    assert told(await harness.ask(b"[]"))[1] in ("idempotency_key_reused", "payment_already_used")
    gateway.ledger.rows.answers.clear()
    assert told(await harness.ask()) == (409, "payment_already_used")
    assert gateway.served == 1


@pytest.mark.parametrize("size", [2_000_000, 100])
async def test_a_free_call_that_shows_a_payment_and_a_new_key_is_free(
    gateway: InProcessGateway, harness: Harness, size: int
) -> None:
    await harness.ask(b"x")
    shown = await harness.prove(b"x" * size)
    await change(gateway, price=Price.parse("0"), is_long_ago=False)
    two = [("Idempotency-Key", "two")]
    answer = await gateway.ask("POST", TARGET, [*shown, *two], [b"x" * size])
    assert (answer.status, gateway.upstream.arrived[-1].body) == (200, b"x" * size)


async def test_a_free_call_with_a_key_and_a_payment_that_is_none_is_free(gateway: InProcessGateway) -> None:
    await gateway.publish("api_free", price=Price.parse("0"))
    for junk in (("X-Payment-Tx", "0x00"), ("PAYMENT-SIGNATURE", "?"), ("X-PAYMENT", "?")):
        assert (await gateway.ask("POST", TARGET, [junk, *KEY], [b"{}"], listing="api_free")).status == 200


async def test_an_open_call_runs_again_at_its_own_price(gateway: InProcessGateway, harness: Harness) -> None:
    gateway.upstream.answer = hang_up
    most = ("Tollway-Max-Price", "0.01")
    lost = await harness.ask(key=[*KEY, most])
    await change(gateway, price=Price.parse("7"), is_long_ago=harness.is_by_transaction)
    gateway.upstream.answer = plain(b"done")
    again = await harness.ask(key=[*KEY, most])
    assert (again.status, again.body) == (200, b"done")
    assert again.headers["tollway-call-id"] == lost.headers["tollway-call-id"]
    assert again.headers["tollway-price"] == "0.01 USDC"
    assert await harness.paid() == PRICE
