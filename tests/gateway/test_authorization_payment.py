"""Calls that an authorisation pays, from the 402 to the receipt: the response, the ledger and the transfers for each outcome at the
upstream and on the chain. Chain and ledger are the models in memory; everything else is real."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.kit.gateway import NOW_MS, PAY_TO, USDC, InProcessGateway, open_gateway
from tests.kit.payer import (
    CHAIN,
    Payer,
    has_terms,
    read_receipt,
)
from tests.kit.upstream import Arrived, hang_up, held, plain, raw
from tests.kit.waits import until
from tollway.chain.port import ContractResult
from tollway.ledger.records import CallState, Delivery, Dialect, Rail
from tollway.registry.listing import ChargeOn

PRICE = 10_000
TARGET = "/quote?x=1"
DIALECTS = list(Dialect)
NONCE = b"\x42" * 32


@pytest.fixture
def settle_wait_s() -> float:
    """Short: some settlements here are to stay undecided."""
    return 1.0


WAITING = pytest.mark.parametrize("settle_wait_s", [600.0], ids=["waiting"])
"""Of tests whose settlement is decided: on a busy machine that takes longer than the short wait."""


@pytest.fixture
async def gateway(settle_wait_s: float) -> AsyncIterator[InProcessGateway]:
    limits = {"failed_calls_per_window": 3, "lookups_per_minute": 1_000, "response_bytes_max": 1_000}
    async with open_gateway(settle_wait_s=settle_wait_s, **limits) as small:
        yield small


@pytest.fixture
async def payer(gateway: InProcessGateway) -> Payer:
    """With money for ten calls of the one listing."""
    await gateway.publish()
    return Payer.funded(gateway, 10 * PRICE)


# ---------------------------------------------------------------------- paid


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_pays_in_every_dialect_and_the_receipt_has_the_same_dialect(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    answer = await payer.buy("POST", "/quote?x=1", dialect, chunks=[b'{"q":1}'])
    assert (answer.status, answer.body) == (200, b"ok")
    headers = answer.headers
    assert headers["tollway-payment-state"] == "charged"
    assert headers["tollway-price"] == "0.01 USDC"
    assert "tollway-credit-remaining" not in headers
    assert headers["proxy-status"] == '"gw.example.com"; received-status=200'
    assert not has_terms(answer)
    (call,) = await payer.history()
    assert (call.id, call.state) == (headers["tollway-call-id"], CallState.CONSUMED)
    assert call.rail is (Rail.MPP if dialect is Dialect.MPP else Rail.X402)
    assert (call.price_units, call.payer, call.pay_to) == (PRICE, payer.address, PAY_TO)
    assert (call.http_status, call.upstream_status, call.delivery) == (200, 200, Delivery.COMPLETE)
    receipt = read_receipt(answer, dialect)
    assert receipt.get("transaction", receipt.get("reference")) == str(call.tx_hash)
    assert (gateway.earned, payer.balance, gateway.transfers) == (PRICE, 9 * PRICE, 1)
    assert call.tx_hash is not None
    (payment,) = await gateway.ledger.find_payments(call.tx_hash)
    assert (payment.value_units, payment.taken_units, payment.is_authorized) == (PRICE, PRICE, True)
    await gateway.check_balanced()
    (arrived,) = gateway.upstream.arrived
    assert (bytes(arrived.body), arrived.target) == (b'{"q":1}', "/base/quote?x=1")
    assert not arrived.names & {"payment-signature", "x-payment", "authorization"}


async def test_the_receipts_say_what_their_protocols_want(gateway: InProcessGateway, payer: Payer) -> None:
    v2 = read_receipt(await payer.buy(), Dialect.X402_V2)
    assert v2 == {
        "success": True,
        "transaction": v2["transaction"],
        "network": "eip155:84532",
        "payer": str(payer.address),
        "amount": str(PRICE),
    }
    v1 = read_receipt(await payer.buy(dialect=Dialect.X402_V1), Dialect.X402_V1)
    assert (v1["success"], v1["network"], v1["payer"]) == (True, "base-sepolia", str(payer.address))
    asked = await payer.quote()
    mpp = read_receipt(await gateway.ask("GET", TARGET, payer.show(asked, Dialect.MPP)), Dialect.MPP)
    assert (mpp["status"], mpp["method"], mpp["chainId"]) == ("success", "evm", 84532)
    assert f'id="{mpp["challengeId"]}"' in asked.headers["www-authenticate"]
    assert len({v2["transaction"], v1["transaction"], mpp["reference"]}) == 3


async def test_no_credential_of_a_payment_goes_upstream_even_when_a_listing_forwards_authorization(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish(forward_headers=("Authorization", "X-Own"))
    payer = Payer.funded(gateway, PRICE)
    answer = await payer.buy(dialect=Dialect.MPP, headers=[("X-Own", "1")])
    assert answer.status == 200
    (arrived,) = gateway.upstream.arrived
    assert arrived.find("x-own") == "1"
    assert arrived.find("authorization") is None


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_pays_for_head_and_for_an_answer_without_a_body(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect
) -> None:
    answer = await payer.buy("HEAD", TARGET, dialect)
    assert (answer.status, answer.body) == (200, b"")
    gateway.upstream.answer = raw(b"HTTP/1.1 204 None\r\n\r\n")
    answer = await payer.buy("GET", TARGET, dialect)
    assert (answer.status, answer.body) == (204, b"")
    assert read_receipt(answer, dialect)
    assert gateway.earned == 2 * PRICE


async def test_a_small_price_per_operation_is_charged_exactly(
    gateway: InProcessGateway, payer: Payer
) -> None:
    answers = [await payer.buy() for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert (gateway.earned, gateway.transfers, gateway.served) == (3 * PRICE, 3, 3)
    assert len({answer.headers["tollway-call-id"] for answer in answers}) == 3
    await gateway.check_balanced()


async def test_the_body_waits_at_the_upstream_until_the_money_has_moved(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """The head is settled before a byte of the body is here."""
    body_may_go = asyncio.Event()

    gateway.upstream.answer = held(body_may_go, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok")
    asked = await payer.quote()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.ask("GET", TARGET, payer.show(asked)))
        await until(lambda: gateway.earned == PRICE)
        body_may_go.set()
    assert asking.result().body == b"ok"


# ---------------------------------------------------------------------- an answer that does not cost


@pytest.mark.parametrize("status", [500, 404, 301, 503])
async def test_an_answer_that_does_not_cost_is_passed_through_and_never_settled(
    gateway: InProcessGateway, payer: Payer, status: int
) -> None:
    gateway.upstream.answer = plain(b"sorry", status=status)
    asked = await payer.quote()
    shown = payer.show(asked)
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.body) == (status, b"sorry")
    assert answer.headers["tollway-payment-state"] == "released"
    assert not has_terms(answer)
    assert "payment-response" not in answer.headers
    assert (gateway.transfers, gateway.earned) == (0, 0)
    (call,) = await payer.history()
    assert (call.state, call.rail) == (CallState.RELEASED, Rail.X402)
    # The same authorisation is still good, and pays now.
    gateway.upstream.answer = plain()
    assert (await gateway.ask("GET", TARGET, shown)).status == 200
    assert (gateway.transfers, gateway.earned, gateway.served) == (1, PRICE, 2)
    await gateway.check_balanced()


@pytest.mark.parametrize(
    ("status", "is_paid"), [(404, True), (200, True), (500, False), (401, False), (429, False)]
)
async def test_the_listing_decides_which_statuses_cost(
    gateway: InProcessGateway, status: int, is_paid: bool
) -> None:
    await gateway.publish(charge_on=ChargeOn.ANSWERED)
    payer = Payer.funded(gateway, PRICE)
    gateway.upstream.answer = plain(status=status)
    answer = await payer.buy()
    assert answer.status == status
    assert answer.headers["tollway-payment-state"] == ("charged" if is_paid else "released")
    assert gateway.earned == PRICE * is_paid


async def test_an_upstreams_own_402_costs_nothing_and_requires_no_payment(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = plain(
        b"{}", status=402, headers=("PAYMENT-REQUIRED: e30=", "WWW-Authenticate: Payment id=x")
    )
    answer = await payer.buy()
    assert (answer.status, answer.problem["code"]) == (502, "upstream_payment_required")
    assert answer.problem["paymentState"] == "released"
    assert not has_terms(answer)
    assert (gateway.transfers, gateway.earned) == (0, 0)


async def test_failed_calls_have_a_budget_on_this_rail_too(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.upstream.answer = plain(status=500)
    asked = await payer.quote()
    for _ in range(3):
        assert (await gateway.ask("GET", TARGET, payer.show(asked))).status == 500
    answer = await gateway.ask("GET", TARGET, payer.show(asked))
    assert (answer.status, answer.problem["code"]) == (429, "failed_call_budget_exhausted")
    assert not has_terms(answer)
    assert gateway.served == 3


# ---------------------------------------------------------------------- bytes sent, no head


async def test_without_a_head_it_is_unknown_and_a_safe_call_runs_again_under_its_claim(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote())
    unknown = await gateway.ask("GET", TARGET, shown)
    assert (unknown.status, unknown.problem["paymentState"]) == (504, "held")
    assert not has_terms(unknown)
    gateway.upstream.answer = plain()
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (200, "charged")
    assert answer.headers["tollway-call-id"] == unknown.headers["tollway-call-id"]
    assert (gateway.served, gateway.earned, gateway.transfers) == (2, PRICE, 1)
    await gateway.check_balanced()


async def test_without_a_head_an_unsafe_call_is_held_and_gets_no_402(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote("POST"))
    assert (await gateway.ask("POST", TARGET, shown)).status == 504
    answer = await gateway.ask("POST", TARGET, shown)
    assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
    assert answer.problem["paymentState"] == "held"
    assert not has_terms(answer)
    assert (gateway.served, gateway.transfers) == (1, 0)


async def test_an_unknown_call_gets_no_402_when_its_authorisation_is_not_valid_any_more(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = hang_up
    shown = payer.show(await payer.quote())
    unknown = await gateway.ask("GET", TARGET, shown)
    payer.fund(0)
    held = await gateway.ask("GET", TARGET, shown)
    assert (held.status, held.problem["code"]) == (409, "payment_already_used")
    payer.fund(PRICE)
    gateway.chain.set_fees(CHAIN, base_fee_wei=10**13, tip_wei=1)
    await gateway.settlement.gas_budget.refresh()
    withdrawn = await gateway.ask("GET", TARGET, shown)
    assert (withdrawn.status, withdrawn.problem["code"]) == (409, "payment_already_used")
    gateway.now_ms += 600_000
    await gateway.settlement.gas_budget.refresh()
    late = await gateway.ask("GET", TARGET, shown)
    assert (late.status, late.problem["code"]) == (409, "payment_already_used")
    for answer in (held, withdrawn, late):
        assert answer.problem["paymentState"] == "held"
        assert answer.problem["callId"] == unknown.headers["tollway-call-id"]
        assert not has_terms(answer)
    assert gateway.served == 1


# ---------------------------------------------------------------------- look-ups


async def test_one_authorisation_that_is_released_again_and_again_buys_few_look_ups() -> None:
    """Six listings of the caller's own, whose API never answers with anything that costs."""
    async with open_gateway() as gateway:
        names = [f"api_{number}" for number in range(6)]
        for name in names:
            await gateway.publish(name)
        payer = Payer.funded(gateway, PRICE)
        gateway.upstream.answer = plain(status=503)
        shown = payer.show(await payer.quote(listing=names[0]))
        before = gateway.chain.request_count
        answers = [await gateway.ask("GET", TARGET, shown, listing=name) for name in names for _ in range(20)]
        questions = gateway.chain.request_count - before
    assert [answer.status for answer in answers[:30]] == [503] * 30
    assert {answer.status for answer in answers[30:]} == {429}
    assert {answer.problem["code"] for answer in answers[30:]} == {"rate_limited"}
    assert not any(has_terms(answer) for answer in answers[30:])
    assert questions == 30
    assert (gateway.earned, gateway.transfers) == (0, 0)


async def test_calls_that_are_charged_are_not_limited_by_their_look_ups() -> None:
    async with open_gateway(lookups_per_minute=3) as gateway:
        await gateway.publish()
        payer = Payer.funded(gateway, 12 * PRICE)
        asked = await payer.quote()
        one_by_one = [await gateway.ask("GET", TARGET, payer.show(asked)) for _ in range(6)]
        at_once = await asyncio.gather(*(gateway.ask("GET", TARGET, payer.show(asked)) for _ in range(6)))
    assert {answer.status for answer in (*one_by_one, *at_once)} == {200}
    assert gateway.earned == 12 * PRICE


# ---------------------------------------------------------------------- races


async def test_front_run_is_paid(gateway: InProcessGateway, payer: Payer) -> None:
    asked = await payer.quote()

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        assert USDC.token is not None
        gateway.chain.settle_by_third_party(
            CHAIN, USDC.token, payer=payer.address, payee=PAY_TO, base_units=PRICE, nonce=NONCE
        )
        await plain()(arrived, writer)

    gateway.upstream.answer = answer
    bought = await gateway.ask("GET", TARGET, payer.show(asked, nonce=NONCE))
    assert (bought.status, bought.headers["tollway-payment-state"]) == (200, "charged")
    assert (gateway.earned, gateway.transfers) == (PRICE, 0)
    (call,) = await payer.history()
    assert read_receipt(bought, Dialect.X402_V2)["transaction"] == str(call.tx_hash)
    await gateway.check_balanced()


@WAITING
async def test_fifty_with_one_authorisation_make_one_call_and_one_transfer(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = payer.show(await payer.quote())
    may_answer = asyncio.Event()
    gateway.upstream.answer = held(may_answer)
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(gateway.ask("GET", TARGET, shown)) for _ in range(50)]
        await until(lambda: sum(task.done() for task in asking) == 49)
        may_answer.set()
    answers = [task.result() for task in asking]
    assert sorted({answer.status for answer in answers}) == [200, 409]
    assert [answer.status for answer in answers].count(200) == 1
    assert not any(has_terms(answer) for answer in answers if answer.status != 200)
    assert (gateway.served, gateway.earned, gateway.transfers) == (1, PRICE, 1)
    await gateway.check_balanced()


async def test_fifty_authorisations_on_a_balance_for_seven_buy_seven(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payer = Payer.funded(gateway, 7 * PRICE + PRICE - 1)
    asked = await payer.quote()
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(gateway.ask("GET", TARGET, payer.show(asked), client=f"203.0.113.{number}"))
            for number in range(50)
        ]
    answers = [task.result() for task in asking]
    bought = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    assert len(bought) == 7
    told = {(one.status, one.problem["code"], one.problem["reason"]) for one in refused}
    assert told == {(402, "payment_verification_failed", "insufficient_balance")}
    assert (gateway.served, gateway.earned, payer.balance) == (7, 7 * PRICE, PRICE - 1)
    await gateway.check_balanced()


async def test_one_authorisation_at_two_listings_buys_one_call(gateway: InProcessGateway) -> None:
    await gateway.publish("api_quotes")
    await gateway.publish("api_others")
    payer = Payer.funded(gateway, 2 * PRICE)
    shown = payer.show(await payer.quote())
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(gateway.ask("GET", TARGET, shown, listing=name))
            for name in ("api_quotes", "api_others")
        ]
    assert sorted(task.result().status for task in asking) == [200, 409]
    (refused,) = (task.result() for task in asking if task.result().status == 409)
    assert refused.problem["reason"] == "authorization_used"
    assert not has_terms(refused)
    later = await gateway.ask("GET", "/other", shown, listing="api_others")
    assert (later.status, later.problem["code"]) == (409, "payment_already_used")
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_a_request_overtaken_by_the_same_authorisation_gets_no_402(
    gateway: InProcessGateway, payer: Payer
) -> None:
    """The ledger has no claim when the second request arrives, and the chain look-up refuses it afterwards."""
    may_answer = asyncio.Event()

    gateway.upstream.answer = held(may_answer)
    chain = gateway.chain
    shown = payer.show(await payer.quote(), nonce=NONCE)
    async with asyncio.TaskGroup() as group:
        chain.barrier = gate_of_second = asyncio.Event()
        before = chain.request_count
        second = group.create_task(gateway.ask("GET", TARGET, shown))
        await until(lambda: chain.request_count > before)
        chain.barrier = None
        first = group.create_task(gateway.ask("GET", TARGET, shown))
        await until(lambda: gateway.served == 1)
        chain.refuse_transfer(CHAIN, payer.address, NONCE)
        gate_of_second.set()
        answer = await second
        chain.allow_transfer(CHAIN, payer.address, NONCE)
        may_answer.set()
    assert (answer.status, answer.problem["code"]) == (409, "idempotency_in_progress")
    assert not has_terms(answer)
    assert first.result().status == 200
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_a_debt_is_paid_before_anything_new_is_bought(gateway: InProcessGateway, payer: Payer) -> None:
    new = gateway.sample_payment(is_final=False)
    (payment,) = await gateway.ledger.record_payments([new], now_ms=gateway.now_ms)
    assert (await gateway.ask("GET", TARGET, gateway.plain_proof(payment.tx_hash))).status == 200
    assert await gateway.ledger.mark_gone(payment.id, now_ms=gateway.now_ms) == PRICE
    answer = await payer.buy()
    assert (answer.status, answer.problem["code"]) == (403, "payer_in_debt")
    assert not has_terms(answer)
    assert (gateway.served, gateway.earned) == (1, 0)


async def test_what_may_be_spent_before_it_is_final_has_a_limit_on_this_rail_too(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.ledger._unfinal_max_nano = {"USDC": 1}
    answer = await payer.buy()
    assert (answer.status, answer.problem["code"]) == (409, "payment_pending")
    assert (answer.problem["reason"], answer.problem["paymentState"]) == ("not_final", "none")
    assert not has_terms(answer)
    assert (gateway.served, gateway.transfers) == (0, 0)


@pytest.mark.parametrize("valid_for_s", [65, 300])
async def test_a_contract_wallet_that_signs_again_gets_no_402(
    gateway: InProcessGateway, payer: Payer, valid_for_s: int
) -> None:
    """A passkey never signs the same twice: neither the claimed signature nor one that recovers, and yet its money."""
    yes = ContractResult(reverted=False, payload=bytes.fromhex("1626ba7e") + bytes(28))
    gateway.chain.deploy(CHAIN, payer.address, lambda calldata: yes)
    gateway.stop_mining()
    asked, nonce, ends_s = await payer.quote("POST"), b"\x33" * 32, NOW_MS // 1000 + valid_for_s
    first = payer.show(asked, nonce=nonce, valid_before=ends_s, edit=signed_with("aa" * 80))
    assert (await gateway.ask("POST", TARGET, first)).status == 503
    gateway.now_ms += 35_000
    second = payer.show(asked, nonce=nonce, valid_before=ends_s, edit=signed_with("bb" * 80))
    again = await gateway.ask("POST", TARGET, second)
    assert (again.status, again.problem["code"]) == (409, "payment_already_used")
    assert not has_terms(again)
    assert again.problem["callIds"] == []


def signed_with(signature: str) -> Callable[[dict[str, Any]], None]:
    def edit(content: dict[str, Any]) -> None:
        content["payload"]["signature"] = "0x" + signature

    return edit
