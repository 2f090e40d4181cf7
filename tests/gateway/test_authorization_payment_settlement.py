"""Calls whose settlement fails or stays undecided: a failed settlement may get a 402, an undecided one never does, and its response
is stored for a repeat with the same proof."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.gateway import USDC, InProcessGateway, open_gateway
from tests.kit.payer import (
    CHAIN,
    Payer,
    decode_header,
    has_terms,
    read_receipt,
)
from tests.kit.upstream import Arrived, plain
from tests.kit.waits import until
from tollway.ledger.records import CallState, Dialect

PRICE = 10_000
TARGET = "/quote?x=1"
DIALECTS = list(Dialect)
NONCE = b"\x42" * 32


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(settle_wait_s=0.05, failed_calls_per_window=3, response_bytes_max=1_000) as small:
        yield small


@pytest.fixture
async def payer(gateway: InProcessGateway) -> Payer:
    """With money for ten calls of the one listing."""
    await gateway.publish()
    return Payer.funded(gateway, 10 * PRICE)


# ---------------------------------------------------------------------- settlement surely failed


async def refuse_at_the_head(gateway: InProcessGateway, payer: Payer) -> None:
    """The wallet is emptied while the upstream works."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        payer.fund(0)
        await plain(b"secret answer")(arrived, writer)

    gateway.upstream.answer = answer


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_settlement_refused_in_simulation_is_no_payment_and_no_answer(
    gateway: InProcessGateway, payer: Payer, dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollway.outbound.pool.POOLED_IDLE_S_MAX", 0.05)
    await refuse_at_the_head(gateway, payer)
    answer = await payer.buy("GET", TARGET, dialect)
    assert (answer.status, answer.problem["code"]) == (402, "payment_settlement_failed")
    assert answer.problem["reason"] == "insufficient_balance"
    assert answer.headers["tollway-payment-state"] == "released"
    assert has_terms(answer)
    assert b"secret answer" not in answer.body
    if dialect is not Dialect.MPP:
        failure = read_receipt(answer, dialect)
        assert (failure["success"], failure["errorReason"]) == (False, "insufficient_balance")
    (call,) = await payer.history()
    assert (call.state, call.error) == (CallState.RELEASED, "payment_settlement_failed")
    assert answer.problem["callId"] == answer.headers["tollway-call-id"] == call.id
    assert (gateway.transfers, gateway.earned) == (0, 0)
    await until(lambda: gateway.upstream.ended == gateway.upstream.accepted)  # its stream is dropped
    await gateway.check_balanced()


async def test_a_failed_settlement_leaves_no_call_in_flight() -> None:
    """The upstream would go on for ever, and takes one call at a time."""
    async with open_gateway(in_flight_per_origin_max=1) as gateway:
        await gateway.publish()
        payer = Payer.funded(gateway, PRICE)

        async def endless(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
            payer.fund(0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nsome")
            await asyncio.Event().wait()

        gateway.upstream.answer = endless
        assert (await payer.buy()).status == 402
        gateway.upstream.answer = plain()
        payer.fund(PRICE)
        assert (await payer.buy()).status == 200


async def test_a_failed_settlement_is_a_failed_call(gateway: InProcessGateway, payer: Payer) -> None:
    asked = await payer.quote()
    for _ in range(3):
        payer.fund(PRICE)
        await refuse_at_the_head(gateway, payer)
        assert (await gateway.ask("GET", TARGET, payer.show(asked))).status == 402
    payer.fund(PRICE)
    answer = await gateway.ask("GET", TARGET, payer.show(asked))
    assert (answer.status, answer.problem["code"]) == (429, "failed_call_budget_exhausted")


async def test_terms_after_a_failed_settlement_are_fresh_and_good(
    gateway: InProcessGateway, payer: Payer
) -> None:
    await refuse_at_the_head(gateway, payer)
    refused = await payer.buy()
    gateway.upstream.answer = plain()
    payer.fund(PRICE)
    assert (await gateway.ask("GET", TARGET, payer.show(refused))).status == 200
    assert (gateway.earned, gateway.transfers) == (PRICE, 1)


async def test_an_authorisation_taken_back_while_the_upstream_works_is_surely_unpaid(
    gateway: InProcessGateway, payer: Payer
) -> None:
    asked = await payer.quote()
    nonce = b"\x42" * 32

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        assert USDC.token is not None
        gateway.chain.cancel_authorization(CHAIN, USDC.token, payer=payer.address, nonce=nonce)
        await plain()(arrived, writer)

    gateway.upstream.answer = answer
    refused = await gateway.ask("GET", TARGET, payer.show(asked, nonce=nonce))
    assert (refused.status, refused.problem["code"]) == (402, "payment_settlement_failed")
    assert (gateway.transfers, gateway.earned) == (0, 0)


# ---------------------------------------------------------------------- settlement undecided


def go_away_at_the_head(gateway: InProcessGateway) -> None:
    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        gateway.chain.disconnect(CHAIN)
        await plain(headers=("X-Kind: rare",))(arrived, writer)

    gateway.upstream.answer = answer


def never_mined(gateway: InProcessGateway, payer: Payer, nonce: bytes) -> None:
    gateway.stop_mining()


def away(gateway: InProcessGateway, payer: Payer, nonce: bytes) -> None:
    go_away_at_the_head(gateway)


def reverted(gateway: InProcessGateway, payer: Payer, nonce: bytes) -> None:
    gateway.chain.revert_transfer(CHAIN, payer.address, nonce)


def unheard(gateway: InProcessGateway, payer: Payer, nonce: bytes) -> None:
    gateway.stop_mining()
    gateway.chain.loses_send_responses = True


TROUBLE = [never_mined, away, reverted, unheard]


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_undecided_settlement_gets_no_402_and_the_same_proof_gets_the_response(
    gateway: InProcessGateway, payer: Payer, trouble: Any, dialect: Dialect
) -> None:
    gateway.upstream.answer = plain(b"rare", headers=("X-Kind: rare",))
    asked = await payer.quote()
    given: dict[str, Any] = (
        {} if dialect is Dialect.MPP else {"nonce": NONCE}
    )  # MPP's comes from the challenge
    nonce = nonce_of(payer.show(asked, dialect, **given))
    shown = payer.show(asked, dialect, nonce=nonce)
    trouble(gateway, payer, nonce)
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.problem["code"]) == (503, "payment_outcome_unknown")
    assert answer.problem["paymentState"] == answer.headers["tollway-payment-state"] == "held"
    call_id = answer.headers["tollway-call-id"]
    assert answer.problem["call"] == f"https://gw.example.com/api/v2/history/{call_id}"
    assert answer.headers["retry-after"]
    assert not has_terms(answer)
    assert not {"payment-response", "x-payment-response", "payment-receipt"} & set(answer.headers)
    (call,) = await payer.history()
    assert (call.id, call.state) == (call_id, CallState.SETTLING)
    # Until it is decided the same proof hears the same.
    again = await gateway.ask("GET", TARGET, shown)
    assert (again.status, again.problem["code"]) == (503, "payment_outcome_unknown")
    assert again.problem["callId"] == call_id
    assert not has_terms(again)
    assert gateway.served == 1
    await gateway.check_balanced()
    # A gateway at which its rail is off has no terms for it either.
    off = InProcessGateway(
        gateway.upstream, limits=gateway.limits, before=gateway, has_mpp=False, has_x402=False
    )
    for method in ("GET", "POST"):
        refused = await off.ask(method, TARGET, shown)
        assert (refused.status, refused.problem["paymentState"]) == (503 if method == "GET" else 409, "held")
        assert not has_terms(refused)
    unclaimed = await off.ask("GET", TARGET, payer.show(await payer.quote(), dialect))
    assert (unclaimed.status, unclaimed.problem["code"]) == (402, "payment_method_unsupported")
    assert has_terms(unclaimed)
    await off.http_client.close()
    # Then it gets the answer, free.
    gateway.chain.loses_send_responses = False
    gateway.chain.allow_transfer(CHAIN, payer.address, nonce)
    await gateway.recover_chain()
    await gateway.recover_chain()
    stored = await gateway.ask("GET", TARGET, shown)
    assert (stored.status, stored.headers["idempotency-replayed"]) == (200, "true")
    assert stored.headers["x-kind"] == "rare"
    assert stored.headers["tollway-call-id"] == call_id
    assert stored.headers["tollway-payment-state"] == "charged"
    receipt = read_receipt(stored, dialect)
    (call,) = await payer.history()
    assert receipt.get("transaction", receipt.get("reference")) == str(call.tx_hash)
    assert call.state is CallState.CONSUMED
    assert (gateway.served, gateway.earned) == (1, PRICE)
    await gateway.check_balanced()


def nonce_of(shown: list[tuple[str, str]]) -> bytes:
    content = decode_header(shown[0][1].removeprefix("Payment ").encode())
    payload = content["payload"]
    return bytes.fromhex(payload.get("authorization", payload)["nonce"][2:])


async def test_an_answer_of_head_is_replayed_without_a_body(gateway: InProcessGateway, payer: Payer) -> None:
    asked = await payer.quote("HEAD")
    shown = payer.show(asked)
    gateway.stop_mining()
    assert (await gateway.ask("HEAD", TARGET, shown)).status == 503
    await gateway.recover_chain()
    stored = await gateway.ask("HEAD", TARGET, shown)
    assert (stored.status, stored.body) == (200, b"")
    assert (gateway.served, gateway.earned) == (1, PRICE)


async def test_an_undecided_call_counts_against_the_budget(gateway: InProcessGateway, payer: Payer) -> None:
    gateway.stop_mining()
    asked = await payer.quote()
    for _ in range(3):
        assert (await gateway.ask("GET", TARGET, payer.show(asked))).status == 503
    assert (await gateway.ask("GET", TARGET, payer.show(asked))).status == 429


async def test_an_expired_authorisation_that_moved_nothing_is_released_and_may_get_a_402(
    gateway: InProcessGateway, payer: Payer
) -> None:
    asked = await payer.quote()
    shown = payer.show(asked)
    go_away_at_the_head(gateway)
    assert (await gateway.ask("GET", TARGET, shown)).status == 503
    chain = gateway.chain
    chain.reconnect(CHAIN)
    gateway.now_ms += 600_000
    for _ in range(2):
        chain.mine(CHAIN, time=gateway.now_ms // 1000)
        await gateway.settlement.sweep()
    (call,) = await payer.history()
    assert call.state is CallState.RELEASED
    await gateway.settlement.gas_budget.refresh()
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.problem["code"]) == (402, "payment_expired")
    assert has_terms(answer)
    assert (gateway.earned, gateway.served) == (0, 1)


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_without_a_stored_answer_an_unsafe_call_is_given_up_and_its_money_is_credit(
    gateway: InProcessGateway, payer: Payer, method: str
) -> None:
    gateway.upstream.answer = plain(b"x" * 2_000)  # too large to be stored
    asked = await payer.quote(method)
    shown = payer.show(asked)
    gateway.stop_mining()
    assert (await gateway.ask(method, TARGET, shown, [b"{}"])).status == 503
    await gateway.recover_chain()
    (call,) = await payer.history()
    assert (call.state, gateway.earned) == (CallState.RELEASED, PRICE)
    # A repeat with the same authorisation gets the outcome and no 402, even after the authorisation has expired.
    for _ in range(2):
        answer = await gateway.ask(method, TARGET, shown, [b"{}"])
        assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
        assert answer.problem["reason"] == "authorization_became_credit"
        assert answer.problem["transaction"] == str(call.tx_hash)
        assert answer.problem["paymentState"] == "released"
        assert not has_terms(answer)
        gateway.now_ms += 600_000
        await gateway.settlement.gas_budget.refresh()
    assert call.tx_hash is not None
    (payment,) = await gateway.ledger.find_payments(call.tx_hash)
    assert payment.remaining_units == PRICE
    gateway.upstream.answer = plain()
    bought = await gateway.ask(method, TARGET, gateway.plain_proof(call.tx_hash), [b"{}"])
    assert bought.status == 200
    assert await gateway.remaining_units(payment) == 0
    await gateway.check_balanced()


async def test_without_a_stored_answer_a_safe_call_runs_again_once_under_its_claim(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = plain(b"x" * 2_000)
    asked = await payer.quote()
    shown = payer.show(asked)
    gateway.stop_mining()
    unknown = await gateway.ask("GET", TARGET, shown)
    await gateway.recover_chain()
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.body) == (200, b"x" * 2_000)
    assert answer.headers["tollway-call-id"] == unknown.headers["tollway-call-id"]
    assert answer.headers["tollway-payment-state"] == "charged"
    assert read_receipt(answer, Dialect.X402_V2)["success"]
    assert (gateway.served, gateway.earned, gateway.transfers) == (2, PRICE, 1)
    spent = await gateway.ask("GET", TARGET, shown)
    assert (spent.status, spent.problem["code"]) == (409, "payment_already_used")
    assert spent.problem["paymentState"] == "charged"
    assert not has_terms(spent)
    assert gateway.served == 2
    await gateway.check_balanced()


async def test_a_repeat_that_fails_at_the_upstream_makes_the_money_credit(
    gateway: InProcessGateway, payer: Payer
) -> None:
    gateway.upstream.answer = plain(b"x" * 2_000)
    asked = await payer.quote()
    shown = payer.show(asked)
    gateway.stop_mining()
    await gateway.ask("GET", TARGET, shown)
    await gateway.recover_chain()
    gateway.upstream.answer = plain(status=500)
    answer = await gateway.ask("GET", TARGET, shown)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (500, "released")
    (call,) = await payer.history()
    assert (call.state, gateway.transfers) == (CallState.RELEASED, 1)
    told = await gateway.ask("GET", TARGET, shown)
    assert (told.status, told.problem["reason"]) == (409, "authorization_became_credit")
    assert not has_terms(told)
    await gateway.check_balanced()


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_a_response_to_a_body_without_a_digest_is_not_stored(
    gateway: InProcessGateway, method: str
) -> None:
    """The upstream answers before the body is whole: no repeat could ever be recognised, so the money is credit."""
    await gateway.publish()
    payer = Payer.funded(gateway, PRICE)
    gateway.upstream.is_body_read_first = False
    shown = payer.show(await payer.quote(method))
    gateway.stop_mining()
    exchange = gateway.open(method, TARGET, shown, [b"x" * 100_000], length=200_000, is_open=True)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.run(exchange))
        await until(lambda: len(gateway.chain.broadcasts) > 0)
        exchange.give(b"x" * 100_000)
        exchange.finish()
    assert asking.result().status == 503
    await gateway.recover_chain()
    (call,) = await payer.history()
    assert (call.state, gateway.earned) == (CallState.RELEASED, PRICE)
    assert call.tx_hash is not None
    (payment,) = await gateway.ledger.find_payments(call.tx_hash)
    assert payment.remaining_units == PRICE
    await gateway.check_balanced()


async def test_a_database_lost_during_settling_leaves_unknown_calls_that_recover(
    gateway: InProcessGateway, payer: Payer
) -> None:
    shown = payer.show(await payer.quote())

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        gateway.ledger.away = True
        await plain()(arrived, writer)

    gateway.upstream.answer = answer
    unknown = await gateway.ask("GET", TARGET, shown)
    assert (unknown.status, unknown.problem["code"]) == (503, "payment_outcome_unknown")
    assert not has_terms(unknown)
    away = await gateway.ask("GET", TARGET, shown)
    assert (away.status, away.problem["code"]) == (503, "storage_unavailable")
    assert not has_terms(away)
    gateway.ledger.away = False
    await gateway.settlement.sweep()
    (call,) = await payer.history()
    assert (call.state, gateway.transfers) == (CallState.UNKNOWN, 0)
    gateway.upstream.answer = plain()
    again = await gateway.ask("GET", TARGET, shown)
    assert (again.status, again.headers["tollway-call-id"]) == (200, call.id)
    assert (gateway.served, gateway.earned, gateway.transfers) == (2, PRICE, 1)
    await gateway.check_balanced()
