"""Whole calls whose settlement does not simply succeed: what is surely unpaid may ask again, what is undecided never does, and
its answer waits for whoever shows the same proof.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.accounts import CHAIN
from tests.kit.authorizations import decode_header
from tests.kit.gateway import USDC, SmallGateway, open_gateway
from tests.kit.payer import (
    SmallPayer,
    come_back,
    earned,
    has_terms,
    read_receipt,
    served,
    stop_mining,
    transfers,
)
from tests.kit.upstream import Arrived, plain, until
from tollway.ledger.authorization import Dialect
from tollway.ledger.call import CallState

PRICE = 10_000
TARGET = "/quote?x=1"
DIALECTS = list(Dialect)
NONCE = b"\x42" * 32


@pytest.fixture
async def gate() -> AsyncIterator[SmallGateway]:
    async with open_gateway(settle_wait_s=0.05, failed_calls_per_window=3, answer_bytes_max=1_000) as small:
        yield small


@pytest.fixture
async def payer(gate: SmallGateway) -> SmallPayer:
    """With money for ten calls of the one listing."""
    await gate.publish()
    payer = SmallPayer(buyer=gate.buyer, gate=gate)
    payer.fund(10 * PRICE)
    return payer


# ---------------------------------------------------------------------- settlement surely failed


async def refuse_at_the_head(gate: SmallGateway, payer: SmallPayer) -> None:
    """The wallet is emptied while the upstream works."""

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        payer.fund(0)
        await plain(b"secret answer")(arrived, writer)

    gate.upstream.answer = answer


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_settlement_refused_in_simulation_is_no_payment_and_no_answer(
    gate: SmallGateway, payer: SmallPayer, dialect: Dialect
) -> None:
    await refuse_at_the_head(gate, payer)
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
    assert (transfers(gate), earned(gate)) == (0, 0)
    await until(lambda: gate.upstream.ended == gate.upstream.accepted)  # its stream is dropped
    await gate.check_balanced()


async def test_a_failed_settlement_leaves_no_call_in_flight() -> None:
    """The upstream would go on for ever, and takes one call at a time."""
    async with open_gateway(in_flight_per_origin_max=1) as gate:
        await gate.publish()
        payer = SmallPayer(buyer=gate.buyer, gate=gate)
        payer.fund(PRICE)

        async def endless(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
            payer.fund(0)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nsome")
            await asyncio.Event().wait()

        gate.upstream.answer = endless
        assert (await payer.buy()).status == 402
        gate.upstream.answer = plain()
        payer.fund(PRICE)
        assert (await payer.buy()).status == 200


async def test_a_failed_settlement_is_a_failed_call(gate: SmallGateway, payer: SmallPayer) -> None:
    asked = await payer.quote()
    for _ in range(3):
        payer.fund(PRICE)
        await refuse_at_the_head(gate, payer)
        assert (await gate.ask("GET", TARGET, payer.show(asked))).status == 402
    payer.fund(PRICE)
    answer = await gate.ask("GET", TARGET, payer.show(asked))
    assert (answer.status, answer.problem["code"]) == (429, "failed_call_budget_exhausted")


async def test_terms_after_a_failed_settlement_are_fresh_and_good(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    await refuse_at_the_head(gate, payer)
    refused = await payer.buy()
    gate.upstream.answer = plain()
    payer.fund(PRICE)
    assert (await gate.ask("GET", TARGET, payer.show(refused))).status == 200
    assert (earned(gate), transfers(gate)) == (PRICE, 1)


async def test_an_authorisation_taken_back_while_the_upstream_works_is_surely_unpaid(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    asked = await payer.quote()
    nonce = b"\x42" * 32

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        assert USDC.token is not None
        gate.settling.street.cancel_authorization(CHAIN, USDC.token, payer=payer.address, nonce=nonce)
        await plain()(arrived, writer)

    gate.upstream.answer = answer
    refused = await gate.ask("GET", TARGET, payer.show(asked, nonce=nonce))
    assert (refused.status, refused.problem["code"]) == (402, "payment_settlement_failed")
    assert (transfers(gate), earned(gate)) == (0, 0)


# ---------------------------------------------------------------------- settlement undecided


def go_away_at_the_head(gate: SmallGateway) -> None:
    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        gate.settling.street.take_away(CHAIN)
        await plain(headers=("X-Kind: rare",))(arrived, writer)

    gate.upstream.answer = answer


def never_mined(gate: SmallGateway, payer: SmallPayer, nonce: bytes) -> None:
    stop_mining(gate)


def away(gate: SmallGateway, payer: SmallPayer, nonce: bytes) -> None:
    go_away_at_the_head(gate)


def reverted(gate: SmallGateway, payer: SmallPayer, nonce: bytes) -> None:
    gate.settling.street.doom_transfer(CHAIN, payer.address, nonce)


def unheard(gate: SmallGateway, payer: SmallPayer, nonce: bytes) -> None:
    stop_mining(gate)
    gate.settling.street.is_deaf = True


TROUBLE = [never_mined, away, reverted, unheard]


@pytest.mark.parametrize("trouble", TROUBLE)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_undecided_settlement_is_never_asked_to_be_paid_again_and_the_same_proof_gets_the_answer(
    gate: SmallGateway, payer: SmallPayer, trouble: Any, dialect: Dialect
) -> None:
    gate.upstream.answer = plain(b"rare", headers=("X-Kind: rare",))
    asked = await payer.quote()
    given: dict[str, Any] = (
        {} if dialect is Dialect.MPP else {"nonce": NONCE}
    )  # MPP's comes from the challenge
    nonce = nonce_of(payer.show(asked, dialect, **given))
    shown = payer.show(asked, dialect, nonce=nonce)
    trouble(gate, payer, nonce)
    answer = await gate.ask("GET", TARGET, shown)
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
    again = await gate.ask("GET", TARGET, shown)
    assert (again.status, again.problem["code"]) == (503, "payment_outcome_unknown")
    assert again.problem["callId"] == call_id
    assert not has_terms(again)
    assert served(gate) == 1
    await gate.check_balanced()
    # Then it gets the answer, free.
    gate.settling.street.is_deaf = False
    gate.settling.street.spare_transfer(CHAIN, payer.address, nonce)
    await come_back(gate)
    await come_back(gate)
    stored = await gate.ask("GET", TARGET, shown)
    assert (stored.status, stored.headers["idempotency-replayed"]) == (200, "true")
    assert stored.headers["x-kind"] == "rare"
    assert stored.headers["tollway-call-id"] == call_id
    assert stored.headers["tollway-payment-state"] == "charged"
    receipt = read_receipt(stored, dialect)
    (call,) = await payer.history()
    assert receipt.get("transaction", receipt.get("reference")) == str(call.tx_hash)
    assert call.state is CallState.CONSUMED
    assert (served(gate), earned(gate)) == (1, PRICE)
    await gate.check_balanced()


def nonce_of(shown: list[tuple[str, str]]) -> bytes:
    content = decode_header(shown[0][1].removeprefix("Payment ").encode())
    payload = content["payload"]
    return bytes.fromhex(payload.get("authorization", payload)["nonce"][2:])


async def test_an_answer_of_head_is_replayed_without_a_body(gate: SmallGateway, payer: SmallPayer) -> None:
    asked = await payer.quote("HEAD")
    shown = payer.show(asked)
    stop_mining(gate)
    assert (await gate.ask("HEAD", TARGET, shown)).status == 503
    await come_back(gate)
    stored = await gate.ask("HEAD", TARGET, shown)
    assert (stored.status, stored.body) == (200, b"")
    assert (served(gate), earned(gate)) == (1, PRICE)


async def test_an_undecided_call_counts_against_the_budget(gate: SmallGateway, payer: SmallPayer) -> None:
    stop_mining(gate)
    asked = await payer.quote()
    for _ in range(3):
        assert (await gate.ask("GET", TARGET, payer.show(asked))).status == 503
    assert (await gate.ask("GET", TARGET, payer.show(asked))).status == 429


async def test_an_expired_authorisation_that_moved_nothing_is_released_and_may_ask_again(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    asked = await payer.quote()
    shown = payer.show(asked)
    go_away_at_the_head(gate)
    assert (await gate.ask("GET", TARGET, shown)).status == 503
    street = gate.settling.street
    street.bring_back(CHAIN)
    gate.now_ms += 600_000
    for _ in range(2):
        street.mine(CHAIN, time=gate.now_ms // 1000)
        await gate.settling.sweep()
    (call,) = await payer.history()
    assert call.state is CallState.RELEASED
    await gate.settling.tank.refresh()
    answer = await gate.ask("GET", TARGET, shown)
    assert (answer.status, answer.problem["code"]) == (402, "payment_expired")
    assert has_terms(answer)
    assert (earned(gate), served(gate)) == (0, 1)


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_without_a_stored_answer_an_unsafe_call_is_given_up_and_its_money_is_credit(
    gate: SmallGateway, payer: SmallPayer, method: str
) -> None:
    gate.upstream.answer = plain(b"x" * 2_000)  # too large to be stored
    asked = await payer.quote(method)
    shown = payer.show(asked)
    stop_mining(gate)
    assert (await gate.ask(method, TARGET, shown, [b"{}"])).status == 503
    await come_back(gate)
    (call,) = await payer.history()
    assert (call.state, earned(gate)) == (CallState.RELEASED, PRICE)
    # The same authorisation is told what became of it, and never asked to pay: not even when it is long expired.
    for _ in range(2):
        answer = await gate.ask(method, TARGET, shown, [b"{}"])
        assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
        assert answer.problem["reason"] == "authorization_became_credit"
        assert answer.problem["transaction"] == str(call.tx_hash)
        assert answer.problem["paymentState"] == "released"
        assert not has_terms(answer)
        gate.now_ms += 600_000
        await gate.settling.tank.refresh()
    assert call.tx_hash is not None
    (payment,) = await gate.book.find_payments(call.tx_hash)
    assert payment.rest_units == PRICE
    gate.upstream.answer = plain()
    bought = await gate.ask(method, TARGET, gate.plain_proof(call.tx_hash), [b"{}"])
    assert bought.status == 200
    assert await gate.rest_units(payment) == 0
    await gate.check_balanced()


async def test_without_a_stored_answer_a_safe_call_runs_again_once_under_its_claim(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    gate.upstream.answer = plain(b"x" * 2_000)
    asked = await payer.quote()
    shown = payer.show(asked)
    stop_mining(gate)
    unknown = await gate.ask("GET", TARGET, shown)
    await come_back(gate)
    answer = await gate.ask("GET", TARGET, shown)
    assert (answer.status, answer.body) == (200, b"x" * 2_000)
    assert answer.headers["tollway-call-id"] == unknown.headers["tollway-call-id"]
    assert answer.headers["tollway-payment-state"] == "charged"
    assert read_receipt(answer, Dialect.X402_V2)["success"]
    assert (served(gate), earned(gate), transfers(gate)) == (2, PRICE, 1)
    spent = await gate.ask("GET", TARGET, shown)
    assert (spent.status, spent.problem["code"]) == (409, "payment_already_used")
    assert spent.problem["paymentState"] == "charged"
    assert not has_terms(spent)
    assert served(gate) == 2
    await gate.check_balanced()


async def test_a_repeat_that_fails_at_the_upstream_makes_the_money_credit(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    gate.upstream.answer = plain(b"x" * 2_000)
    asked = await payer.quote()
    shown = payer.show(asked)
    stop_mining(gate)
    await gate.ask("GET", TARGET, shown)
    await come_back(gate)
    gate.upstream.answer = plain(status=500)
    answer = await gate.ask("GET", TARGET, shown)
    assert (answer.status, answer.headers["tollway-payment-state"]) == (500, "released")
    (call,) = await payer.history()
    assert (call.state, transfers(gate)) == (CallState.RELEASED, 1)
    told = await gate.ask("GET", TARGET, shown)
    assert (told.status, told.problem["reason"]) == (409, "authorization_became_credit")
    assert not has_terms(told)
    await gate.check_balanced()


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_an_answer_to_a_body_that_nobody_can_name_again_is_not_kept(
    gate: SmallGateway, method: str
) -> None:
    """The upstream answers before the body is whole: no repeat could ever be recognised, so the money is credit."""
    await gate.publish()
    payer = SmallPayer(buyer=gate.buyer, gate=gate)
    payer.fund(PRICE)
    gate.upstream.is_body_read_first = False
    shown = payer.show(await payer.quote(method))
    stop_mining(gate)
    exchange = gate.open(method, TARGET, shown, [b"x" * 100_000], length=200_000, is_open=True)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gate.run(exchange))
        await until(lambda: len(gate.settling.street.broadcasts) > 0)
        exchange.give(b"x" * 100_000)
        exchange.finish()
    assert asking.result().status == 503
    await come_back(gate)
    (call,) = await payer.history()
    assert (call.state, earned(gate)) == (CallState.RELEASED, PRICE)
    assert call.tx_hash is not None
    (payment,) = await gate.book.find_payments(call.tx_hash)
    assert payment.rest_units == PRICE
    await gate.check_balanced()


async def test_books_that_break_off_while_settling_are_unknown_and_mended(
    gate: SmallGateway, payer: SmallPayer
) -> None:
    shown = payer.show(await payer.quote())

    async def answer(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        gate.book.away = True
        await plain()(arrived, writer)

    gate.upstream.answer = answer
    unknown = await gate.ask("GET", TARGET, shown)
    assert (unknown.status, unknown.problem["code"]) == (503, "payment_outcome_unknown")
    assert not has_terms(unknown)
    away = await gate.ask("GET", TARGET, shown)
    assert (away.status, away.problem["code"]) == (503, "storage_unavailable")
    assert not has_terms(away)
    gate.book.away = False
    await gate.settling.sweep()
    (call,) = await payer.history()
    assert (call.state, transfers(gate)) == (CallState.UNKNOWN, 0)
    gate.upstream.answer = plain()
    again = await gate.ask("GET", TARGET, shown)
    assert (again.status, again.headers["tollway-call-id"]) == (200, call.id)
    assert (served(gate), earned(gate), transfers(gate)) == (2, PRICE, 1)
    await gate.check_balanced()
