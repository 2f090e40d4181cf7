"""The table of outcomes: for each event the state in the ledger, the response to the caller, and whether the same proof works again.
The log of the upstream is checked too."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import PUBLIC_URL, InProcessGateway, open_gateway
from tests.kit.ports import find_free_port
from tests.kit.upstream import Answerer, Arrived, hang_up, held, plain, raw, say_nothing, stalled
from tests.kit.waits import until
from tollway.errors import ChainUnavailable, TollwayError
from tollway.gateway.circuit_breaker import HealthCheck
from tollway.ledger.ledger import Close, Closed, Fenced
from tollway.ledger.records import CallState, Delivery
from tollway.money import Price
from tollway.registry.listing import ChargeOn

CUT = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(upload_bytes_max=300_000) as small:
        yield small


async def states(gateway: InProcessGateway) -> list[CallState]:
    """Of the payer's calls, oldest first."""
    await gateway.check_balanced()
    return [call.state for call in reversed(await gateway.history())]


@contextlib.asynccontextmanager
async def running(gateway: InProcessGateway, exchange: Exchange) -> AsyncIterator[asyncio.Task[Exchange]]:
    async with asyncio.TaskGroup() as group:
        yield group.create_task(gateway.run(exchange))


async def check_works_again(gateway: InProcessGateway, proof: Any) -> None:
    gateway.upstream.answer = plain(b"at last")
    before = len(gateway.upstream.arrived)
    answer = await gateway.ask(headers=proof)
    assert (answer.status, answer.body) == (200, b"at last")
    assert len(gateway.upstream.arrived) == before + 1
    await gateway.check_balanced()


# ---------------------------------------------------------------------- nothing was sent


async def test_a_dial_that_fails_leaves_no_row_and_the_proof_works_again(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(endpoint=f"http://127.0.0.1:{find_free_port()}")
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash)
    answer = await gateway.ask(headers=proof)
    assert (answer.status, answer.problem["code"]) == (502, "upstream_unreachable")
    assert answer.problem["paymentState"] == answer.headers["tollway-payment-state"] == "released"
    assert answer.headers["proxy-status"] == '"gw.example.com"; error=destination_unavailable'
    assert "tollway-call-id" not in answer.headers
    assert await states(gateway) == []
    await gateway.revise(listing, endpoint=gateway.upstream.url)
    await check_works_again(gateway, proof)


async def test_a_request_that_cannot_be_written_leaves_no_row(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash)
    answer = await gateway.ask(headers=[*proof, ("accept", "a\x01b")])
    assert (answer.status, answer.problem["code"]) == (400, "invalid_request")
    assert answer.problem["paymentState"] == answer.headers["tollway-payment-state"] == "released"
    assert answer.headers["proxy-status"] == '"gw.example.com"; error=http_request_denied'
    assert await states(gateway) == []
    await check_works_again(gateway, proof)


async def test_a_free_call_that_fails_to_dial_speaks_of_no_payment(gateway: InProcessGateway) -> None:
    await gateway.publish(endpoint=f"http://127.0.0.1:{find_free_port()}", price=Price.parse("0"))
    answer = await gateway.ask()
    assert (answer.status, answer.problem["paymentState"]) == (502, "none")


async def test_a_crowded_upstream_is_not_dialled() -> None:
    async with open_gateway(in_flight_per_origin_max=1) as gateway:
        await gateway.publish()
        gateway.upstream.answer = say_nothing
        proof = await gateway.plain_payment(20_000)
        first = gateway.open(headers=proof)
        with contextlib.suppress(asyncio.CancelledError):
            async with running(gateway, first) as task:
                await until(lambda: len(gateway.upstream.arrived) == 1)
                answer = await gateway.ask("GET", "/other", proof)
                task.cancel()
        assert (answer.status, answer.problem["code"]) == (503, "overloaded")
        assert answer.problem["paymentState"] == "released"
        assert answer.headers["retry-after"]
        assert len(gateway.upstream.arrived) == 1


async def test_a_database_lost_during_the_claim_sends_nothing(gateway: InProcessGateway) -> None:
    await gateway.publish()
    proof = await gateway.plain_payment(50_000)
    for _ in range(2):
        assert (await gateway.ask(headers=proof)).status == 200
    gateway.ledger.away = True  # the payment is known by now, so that the claim is the first to meet it
    answer = await gateway.ask(headers=proof)
    assert (answer.status, answer.problem["code"]) == (503, "storage_unavailable")
    assert (answer.problem["paymentState"], answer.headers["retry-after"]) == ("held", "1")
    assert "payment" not in answer.problem
    assert len(gateway.upstream.arrived) == 2
    gateway.ledger.away = False
    await check_works_again(gateway, proof)


# ---------------------------------------------------------------------- sent, and no head


async def test_a_reset_before_the_head_is_held_and_names_the_call(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = hang_up
    payment = await gateway.pay()
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.problem["code"]) == (504, "upstream_timeout")
    assert answer.problem["paymentState"] == answer.headers["tollway-payment-state"] == "held"
    call_id = answer.headers["tollway-call-id"]
    assert answer.problem["callId"] == call_id
    assert answer.problem["call"] == f"{PUBLIC_URL}/api/v2/history/{call_id}"
    assert answer.headers["proxy-status"] == '"gw.example.com"; error=connection_terminated'
    assert await states(gateway) == [CallState.UNKNOWN]
    assert await gateway.remaining_units(payment) == 0
    assert len(gateway.upstream.arrived) == 1


async def test_a_head_that_does_not_come_in_time_is_held(gateway: InProcessGateway) -> None:
    await gateway.publish(timeout_s=0.05)
    gateway.upstream.answer = say_nothing
    answer = await gateway.ask(headers=await gateway.plain_payment())
    assert (answer.status, answer.problem["code"]) == (504, "upstream_timeout")
    assert answer.problem["paymentState"] == "held"
    assert answer.headers["proxy-status"] == '"gw.example.com"; error=http_response_timeout'
    assert await states(gateway) == [CallState.UNKNOWN]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 000 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nBad Name: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    ],
    ids=["099", "000", "101", "999", "two-lengths", "bad-name", "huge-header", "not-http"],
)
async def test_an_answer_that_is_no_http_is_502_and_held(gateway: InProcessGateway, head: bytes) -> None:
    await gateway.publish()
    gateway.upstream.answer = raw(head)
    answer = await gateway.ask(headers=await gateway.plain_payment())
    assert (answer.status, answer.problem["code"]) == (502, "upstream_bad_response")
    assert answer.problem["paymentState"] == "held"
    assert await states(gateway) == [CallState.UNKNOWN]


@pytest.mark.parametrize("form", ["plain", "bound", "same nonce"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_safe_repeat_runs_under_the_same_claim(
    gateway: InProcessGateway, form: str, method: str
) -> None:
    """Although the payment has credit for more calls."""
    await gateway.publish()
    gateway.upstream.answer = hang_up
    payment = await gateway.pay(30_000)
    proofs = {
        "plain": [gateway.plain_proof(payment.tx_hash)] * 2,
        "bound": [gateway.bound_proof(payment.tx_hash, method=method, target="/q") for _ in range(2)],
        "same nonce": [gateway.bound_proof(payment.tx_hash, method=method, target="/q")] * 2,
    }[form]
    first = await gateway.ask(method, "/q", proofs[0])
    gateway.upstream.answer = plain(b"late")
    second = await gateway.ask(method, "/q", proofs[1])
    assert (first.status, second.status) == (504, 200)
    assert first.headers["tollway-call-id"] == second.headers["tollway-call-id"]
    assert second.headers["tollway-payment-state"] == "charged"
    assert await states(gateway) == [CallState.CONSUMED]
    assert await gateway.remaining_units(payment) == 20_000
    assert len(gateway.upstream.arrived) == 2


@pytest.mark.parametrize("failing", [hang_up, raw(CUT, close=True)], ids=["no head", "half an answer"])
async def test_a_safe_repeat_on_a_well_known_payment_runs_under_the_same_claim(
    gateway: InProcessGateway, failing: Any
) -> None:
    """The ledger is not read for a payment in use; its open call is cached."""
    await gateway.publish()
    payment = await gateway.pay(50_000)
    proof = gateway.plain_proof(payment.tx_hash)
    for _ in range(2):
        await gateway.ask("GET", "/before", proof)
    gateway.upstream.answer = failing
    first = await gateway.ask("GET", "/q", proof)
    gateway.upstream.answer = plain(b"late")
    second = await gateway.ask("GET", "/q", proof)
    assert (second.status, second.body) == (200, b"late")
    assert first.headers["tollway-call-id"] == second.headers["tollway-call-id"]
    assert await gateway.remaining_units(payment) == 20_000


async def test_a_repeat_after_a_restart_runs_under_the_same_claim(gateway: InProcessGateway) -> None:
    """A new process has no cached open call; it reads the ledger on the first request with a payment."""
    await gateway.publish()
    gateway.upstream.answer = hang_up
    payment = await gateway.pay(30_000)
    proof = gateway.plain_proof(payment.tx_hash)
    await gateway.ask("GET", "/q", proof)
    again = InProcessGateway(gateway.upstream, limits=gateway.limits, before=gateway)
    gateway.upstream.answer = plain(b"late")
    try:
        assert (await again.ask("GET", "/q", proof)).status == 200
    finally:
        await again.http_client.close()
    assert await states(gateway) == [CallState.CONSUMED]
    assert await gateway.remaining_units(payment) == 20_000


async def test_an_ended_plain_form_repeats_no_call(gateway: InProcessGateway) -> None:
    """A plain signature is the same for every call of its payment, so any holder of one could fetch the response."""
    await gateway.publish()
    gateway.upstream.answer = hang_up
    payment = await gateway.pay(30_000)
    first = await gateway.ask("GET", "/q", gateway.bound_proof(payment.tx_hash, target="/q"))
    gateway.upstream.answer = plain(b"late")
    answer = await gateway.ask("GET", "/q", gateway.plain_proof(payment.tx_hash))
    assert (first.status, answer.status) == (504, 400)
    assert answer.problem["reason"] == "bound_signature_required"
    assert await states(gateway) == [CallState.UNKNOWN]
    assert len(gateway.upstream.arrived) == 1


CUT_SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"d" * 199_999


@pytest.mark.parametrize(
    ("failing", "state"),
    [(hang_up, CallState.UNKNOWN), (raw(CUT_SHORT, close=True), CallState.CONSUMED)],
    ids=["no head", "half an answer"],
)
async def test_a_repeat_that_is_broken_off_gives_nothing_of_the_first_run_back(
    gateway: InProcessGateway, failing: Any, state: CallState
) -> None:
    await gateway.publish()
    payment, body = await gateway.pay(), b"x" * 100_000
    gateway.upstream.answer = failing

    def prove() -> list[tuple[str, str]]:
        return gateway.bound_proof(payment.tx_hash, target="/q", body=body, promises=True)

    await gateway.ask("GET", "/q", prove(), [body])
    assert await states(gateway) == [state]
    exchange = gateway.open("GET", "/q", prove(), [body[:25_000]] * 2, length=len(body), is_open=True)
    async with running(gateway, exchange):
        await until(lambda: len(gateway.upstream.arrived) == 2)
        exchange.leave()
    assert exchange.problem["paymentState"] == ("held" if state is CallState.UNKNOWN else "charged")
    assert await states(gateway) == [state]
    assert await gateway.remaining_units(payment) == 0


@pytest.mark.parametrize("units", [10_000, 15_000])
@pytest.mark.parametrize("is_same", [True, False])
async def test_no_request_gets_a_402_while_a_call_holds_the_payment(
    gateway: InProcessGateway, units: int, is_same: bool
) -> None:
    """Also by a process without that call in memory."""
    await gateway.publish()
    gateway.upstream.answer = hang_up
    proof = await gateway.plain_payment(units)
    await gateway.ask("POST", "/q", proof, [b"a"])
    again = InProcessGateway(gateway.upstream, limits=gateway.limits, before=gateway)
    try:
        answer = await again.ask("POST", "/q" if is_same else "/r", proof, [b"a"])
    finally:
        await again.http_client.close()
    assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
    assert answer.problem["paymentState"] == "held"
    assert "payment" not in answer.problem
    assert len(gateway.upstream.arrived) == 1


@pytest.mark.parametrize("units", [10_000, 15_000])
async def test_no_request_gets_a_402_while_a_call_runs(gateway: InProcessGateway, units: int) -> None:
    await gateway.publish()
    gateway.upstream.answer = say_nothing
    proof = await gateway.plain_payment(units)
    async with running(gateway, gateway.open("POST", "/q", proof, [b"a"])) as task:
        await until(lambda: len(gateway.upstream.arrived) == 1)
        answer = await gateway.ask("POST", "/q", proof, [b"a"])
        task.cancel()
    assert (answer.status, answer.problem["paymentState"]) == (409, "held")
    assert "payment" not in answer.problem


async def test_another_request_is_no_repeat(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = hang_up
    payment = await gateway.pay(30_000)
    proof = gateway.plain_proof(payment.tx_hash)
    await gateway.ask("GET", "/q", proof)
    gateway.upstream.answer = plain()
    assert (await gateway.ask("GET", "/q?x", proof)).status == 200
    assert await states(gateway) == [CallState.UNKNOWN, CallState.CONSUMED]
    assert await gateway.remaining_units(payment) == 10_000


async def test_a_safe_request_runs_three_times_at_most(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = hang_up
    proof = await gateway.plain_payment()
    answers = [(await gateway.ask(headers=proof)).status for _ in range(4)]
    assert answers == [504, 504, 504, 409]
    assert len(gateway.upstream.arrived) == 3
    assert await states(gateway) == [CallState.UNKNOWN]


async def test_a_post_is_not_repeated(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = hang_up
    proof = await gateway.plain_payment()
    assert (await gateway.ask("POST", "", proof, [b"body"])).status == 504
    gateway.upstream.answer = plain()
    answer = await gateway.ask("POST", "", proof, [b"body"])
    assert (answer.status, answer.problem["code"]) == (409, "payment_already_used")
    assert answer.problem["paymentState"] == "held"
    assert len(gateway.upstream.arrived) == 1
    assert await states(gateway) == [CallState.UNKNOWN]


async def test_a_nonce_buys_once(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay(30_000)
    proof = gateway.bound_proof(payment.tx_hash)
    first = await gateway.ask(headers=proof)
    answer = await gateway.ask(headers=proof)
    assert (answer.status, answer.problem["code"]) == (401, "nonce_reused")
    assert answer.problem["callId"] == first.headers["tollway-call-id"]
    assert answer.problem["paymentState"] == "charged"
    assert "payment" not in answer.problem
    assert len(gateway.upstream.arrived) == 1
    assert await gateway.remaining_units(payment) == 20_000


async def test_a_nonce_of_a_released_call_counts_again(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain(status=500)
    payment = await gateway.pay()
    proof = gateway.bound_proof(payment.tx_hash)
    assert (await gateway.ask(headers=proof)).status == 500
    await check_works_again(gateway, proof)


async def test_a_nonce_of_a_running_call_gets_in_progress(gateway: InProcessGateway) -> None:
    await gateway.publish()
    release = asyncio.Event()

    gateway.upstream.answer = held(release)
    payment = await gateway.pay(30_000)
    proof = gateway.bound_proof(payment.tx_hash)
    async with running(gateway, gateway.open(headers=proof)) as first:
        await until(lambda: len(gateway.upstream.arrived) == 1)
        second = await gateway.ask(headers=proof)
        release.set()
    assert (await first).status == 200
    assert (second.status, second.problem["code"]) == (409, "idempotency_in_progress")
    assert second.headers["retry-after"] == "1"
    assert len(gateway.upstream.arrived) == 1


# ---------------------------------------------------------------------- the request breaks off


BIG = [b"a" * 65_536, b"b" * 65_536, b"c" * 1_000]


async def test_a_promised_body_that_differs_is_cut_before_its_end(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.is_body_read_first = False
    gateway.upstream.answer = say_nothing
    payment = await gateway.pay()
    body = b"".join(BIG)
    proof = gateway.bound_proof(payment.tx_hash, method="POST", body=body, promises=True)
    for is_chunked in (True, False):
        answer = await gateway.ask("POST", "", proof, [*BIG[:2], b"d" * 1_000], is_chunked=is_chunked)
        assert (answer.status, answer.problem["reason"]) == (400, "body_hash_mismatch")
        assert answer.problem["paymentState"] == "released"
        await until(lambda: gateway.upstream.ended == gateway.upstream.accepted)
        assert not [seen for seen in gateway.upstream.arrived if seen.is_whole or b"d" in seen.body]
    assert await states(gateway) == [CallState.RELEASED] * 2
    gateway.upstream.is_body_read_first, gateway.upstream.answer = True, plain()
    assert (await gateway.ask("POST", "", proof, BIG, is_chunked=True)).status == 200
    assert gateway.upstream.arrived[-1].body == body
    assert await gateway.remaining_units(payment) == 0


async def test_a_streamed_body_over_the_limit_is_cut_and_released(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.is_body_read_first = False
    gateway.upstream.answer = say_nothing
    proof = await gateway.plain_payment()
    answer = await gateway.ask("POST", "", proof, [b"x" * 65_536] * 5, is_chunked=True)
    assert (answer.status, answer.problem["code"]) == (413, "payload_too_large")
    assert answer.problem["paymentState"] == "released"
    await until(lambda: gateway.upstream.ended == gateway.upstream.accepted)
    assert not gateway.upstream.arrived[0].is_whole
    assert await states(gateway) == [CallState.RELEASED]


async def test_a_body_that_comes_too_slowly_is_cut_and_released() -> None:
    async with open_gateway(body_rate_grace_s=0.2) as gateway:
        await gateway.publish()
        gateway.upstream.is_body_read_first = False
        gateway.upstream.answer = say_nothing
        proof = await gateway.plain_payment()
        exchange = gateway.open("POST", "", proof, [b"x"], is_chunked=True, is_open=True)
        answer = await gateway.run(exchange)
        assert (answer.status, answer.problem["reason"]) == (400, "body_too_slow")
        assert answer.headers["connection"] == "close"
        assert await states(gateway) == [CallState.RELEASED]


async def test_a_call_is_released_when_its_caller_leaves_before_the_request_is_complete(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    gateway.upstream.is_body_read_first = False
    gateway.upstream.answer = say_nothing
    proof = await gateway.plain_payment()
    exchange = gateway.open("POST", "", proof, [b"x" * 70_000], is_chunked=True, is_open=True)
    async with running(gateway, exchange):
        await until(lambda: len(gateway.upstream.arrived) == 1)
        exchange.leave()
    assert (exchange.status, exchange.problem["reason"]) == (400, "body_broken_off")  # to whom it may concern
    assert exchange.problem["paymentState"] == "released"
    await until(lambda: gateway.upstream.ended == gateway.upstream.accepted)
    assert not gateway.upstream.arrived[0].is_whole
    assert await states(gateway) == [CallState.RELEASED]
    assert gateway.outcomes == ["abandoned"]
    gateway.upstream.is_body_read_first = True
    await check_works_again(gateway, proof)


async def test_a_caller_gone_before_the_claim_leaves_no_row(gateway: InProcessGateway) -> None:
    await gateway.publish()
    exchange = gateway.open("POST", "", await gateway.plain_payment(), [b"x"], is_open=True, length=10)
    exchange.leave()
    await gateway.run(exchange)
    assert (exchange.problem["reason"], exchange.problem["paymentState"]) == ("body_broken_off", "none")
    assert await states(gateway) == []
    assert not gateway.upstream.arrived


# ---------------------------------------------------------------------- the caller is gone


@pytest.mark.parametrize(("status", "state"), [(200, CallState.CONSUMED), (500, CallState.RELEASED)])
async def test_a_caller_gone_before_the_head_is_closed_by_the_head_all_the_same(
    gateway: InProcessGateway, status: int, state: CallState
) -> None:
    await gateway.publish()
    release = asyncio.Event()

    async def answer_later(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(f"HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        await asyncio.Event().wait()

    gateway.upstream.answer = answer_later
    exchange = gateway.open(headers=await gateway.plain_payment())
    async with running(gateway, exchange):
        await until(lambda: len(gateway.upstream.arrived) == 1)
        exchange.leave()
        release.set()
    await until(lambda: gateway.upstream.ended == 1)
    assert await states(gateway) == [state]
    (call,) = await gateway.history()
    assert call.delivery is Delivery.PARTIAL


async def test_a_caller_gone_in_the_middle_pays_and_the_upstream_is_cut(gateway: InProcessGateway) -> None:
    await gateway.publish()

    gateway.upstream.answer = stalled(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    exchange = gateway.open(headers=await gateway.plain_payment())
    async with running(gateway, exchange):
        await until(lambda: exchange.body == b"hello")
        assert gateway.upstream.ended == 0
        exchange.leave()
    await until(lambda: gateway.upstream.ended == 1)
    assert not exchange.is_ended
    assert await states(gateway) == [CallState.CONSUMED]
    (call,) = await gateway.history()
    assert (call.delivery, call.response_bytes) == (Delivery.PARTIAL, 5)


# ---------------------------------------------------------------------- the answer breaks off


CUT_ANSWERS = {
    "chunked": CUT,
    "short length": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
    "long length": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nhello",
    "nothing of it": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
}


@pytest.mark.parametrize("head", CUT_ANSWERS.values(), ids=CUT_ANSWERS)
@pytest.mark.parametrize(
    ("answer_with", "idle_s"),
    [(lambda head: raw(head, close=True), 30.0), (stalled, 0.3)],
    ids=["closed", "silent"],
)
async def test_an_answer_cut_by_the_upstream_breaks_visibly(
    head: bytes, answer_with: Callable[[bytes], Answerer], idle_s: float
) -> None:
    async with open_gateway(chunk_idle_s=idle_s) as gateway:
        await gateway.publish()
        gateway.upstream.answer = answer_with(head)
        payment = await gateway.pay()
        answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
        assert answer.status == 200
        assert not answer.is_ended
        assert answer.body in (b"", b"hello")
        assert await states(gateway) == [CallState.CONSUMED]
        (call,) = await gateway.history()
        assert (call.delivery, call.response_bytes) == (Delivery.PARTIAL, len(answer.body))
        assert await gateway.remaining_units(payment) == 0


@pytest.mark.parametrize("units", [10_000, 50_000])
async def test_a_call_with_a_cut_response_may_be_repeated_once(gateway: InProcessGateway, units: int) -> None:
    await gateway.publish()
    gateway.upstream.answer = raw(CUT_ANSWERS["chunked"], close=True)
    payment = await gateway.pay(units)
    proof = gateway.plain_proof(payment.tx_hash)
    first = await gateway.ask(headers=proof)
    second = await gateway.ask(headers=proof)
    assert first.headers["tollway-call-id"] == second.headers["tollway-call-id"]
    assert await gateway.remaining_units(payment) == units - 10_000
    third = await gateway.ask(headers=proof)
    assert third.status == (409 if units == 10_000 else 200)
    assert len(await gateway.history()) == (1 if units == 10_000 else 2)


async def test_a_repeat_of_a_charged_call_that_gets_no_head_leaves_it_charged(
    gateway: InProcessGateway,
) -> None:
    """Else the clock would give the price of an answer back that had come but for its end."""
    await gateway.publish()
    gateway.upstream.answer = raw(CUT_ANSWERS["chunked"], close=True)
    payment = await gateway.pay()
    proof = gateway.plain_proof(payment.tx_hash)
    await gateway.ask(headers=proof)
    gateway.upstream.answer = hang_up
    told = await gateway.ask(headers=proof)
    assert (told.status, told.problem["paymentState"]) == (504, "charged")
    assert await states(gateway) == [CallState.CONSUMED]
    assert await gateway.remaining_units(payment) == 0


async def test_a_repeat_of_a_charged_call_that_gets_no_head_is_not_the_one_repeat(
    gateway: InProcessGateway,
) -> None:
    """Else a caller pays for an answer that never comes. Three runs in all, as of a call without an outcome."""
    await gateway.publish()
    gateway.upstream.answer = raw(CUT_ANSWERS["chunked"], close=True)
    proof = gateway.plain_proof((await gateway.pay()).tx_hash)
    await gateway.ask(headers=proof)
    gateway.upstream.answer = hang_up
    assert (await gateway.ask(headers=proof)).status == 504
    gateway.upstream.answer = plain(b"rare")
    again = await gateway.ask(headers=proof)
    assert (again.status, again.body) == (200, b"rare")
    assert (await gateway.ask(headers=proof)).status == 409
    assert await states(gateway) == [CallState.CONSUMED]


async def test_a_charged_call_runs_three_times_at_most(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = raw(CUT_ANSWERS["chunked"], close=True)
    proof = gateway.plain_proof((await gateway.pay()).tx_hash)
    await gateway.ask(headers=proof)
    gateway.upstream.answer = hang_up
    assert [(await gateway.ask(headers=proof)).status for _ in range(3)] == [504, 504, 409]
    assert len(gateway.upstream.arrived) == 3
    assert await states(gateway) == [CallState.CONSUMED]


async def test_a_cut_answer_to_a_post_is_not_repeated(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = raw(CUT_ANSWERS["chunked"], close=True)
    proof = await gateway.plain_payment()
    assert (await gateway.ask("POST", headers=proof)).status == 200
    assert (await gateway.ask("POST", headers=proof)).status == 409
    assert len(gateway.upstream.arrived) == 1


async def test_a_caller_that_cuts_its_own_upload_gets_no_repeat(gateway: InProcessGateway) -> None:
    """A GET with a body that never ends, answered early: leaving breaks the answer, by the caller's doing."""
    await gateway.publish()
    gateway.upstream.is_body_read_first = False

    gateway.upstream.answer = stalled(CUT_ANSWERS["chunked"])
    payment = await gateway.pay()
    body = b"x" * 70_000
    proof = gateway.bound_proof(payment.tx_hash, body=body, promises=True)
    exchange = gateway.open(
        "GET", "", proof, [body[:66_000], body[66_000:69_000]], is_chunked=True, is_open=True
    )
    async with running(gateway, exchange):
        await until(lambda: exchange.body == b"hello")
        exchange.leave()
    assert await states(gateway) == [CallState.CONSUMED]
    answer = await gateway.ask("GET", "", proof, [body], is_chunked=True)
    assert answer.problem["code"] == "nonce_reused"
    assert len(gateway.upstream.arrived) == 1


# ---------------------------------------------------------------------- the ledger at the close


class FencedLedger:
    """Closes nothing: another gateway has moved the call on."""

    def __init__(self, ledger: Any, answer: Closed | Fenced | None) -> None:
        self._ledger = ledger
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def close(self, close: Close) -> Closed | Fenced:
        if self._answer is None:
            self._ledger.away = True
            return await self._ledger.close(close)  # type: ignore[no-any-return]
        return self._answer


@pytest.mark.parametrize("answer", [Fenced(), None], ids=["fenced", "books away"])
async def test_an_answer_whose_close_fails_is_withheld_and_held(
    gateway: InProcessGateway, answer: Fenced | None
) -> None:
    await gateway.publish()
    gateway.transaction_rail.ledger = FencedLedger(gateway.ledger, answer)
    told = await gateway.ask(headers=await gateway.plain_payment())
    assert (told.status, told.problem["code"]) == (503, "payment_outcome_unknown")
    assert told.problem["paymentState"] == told.headers["tollway-payment-state"] == "held"
    assert told.problem["call"].endswith(told.headers["tollway-call-id"])
    assert told.headers["retry-after"] == "5"
    assert "payment" not in told.problem
    gateway.ledger.away = False
    assert await states(gateway) == [CallState.UNKNOWN if answer is None else CallState.FORWARDING]


async def test_a_release_that_cannot_be_written_is_not_promised(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.transaction_rail.ledger = FencedLedger(gateway.ledger, None)
    gateway.upstream.is_body_read_first = False
    gateway.upstream.answer = say_nothing
    payment = await gateway.pay()
    body = [b"x" * 70_000, b"y"]
    proof = gateway.bound_proof(payment.tx_hash, method="POST", body=b"other", promises=True)
    told = await gateway.ask("POST", "", proof, body, is_chunked=True)
    assert (told.status, told.problem["paymentState"]) == (503, "held")


async def test_a_stop_in_the_middle_leaves_nothing_running(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = say_nothing
    proof = await gateway.plain_payment()
    async with running(gateway, gateway.open(headers=proof)) as task:
        await until(lambda: len(gateway.upstream.arrived) == 1)
        task.cancel()
    assert await states(gateway) == [CallState.UNKNOWN]
    await until(lambda: gateway.upstream.ended == 1)
    (call,) = await gateway.history()
    assert call.error == "shutdown"


async def test_a_bug_behind_the_claim_is_held_and_answered(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain()
    payment = await gateway.pay()
    claim = gateway.ledger.claim

    async def claim_and_fail(*given: Any) -> Any:
        await claim(*given)
        raise ZeroDivisionError

    gateway.ledger.claim = claim_and_fail  # type: ignore[method-assign]
    with capture_logs() as logs:
        told = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert [line["event"] for line in logs] == ["call_ended", "call_failed"]
    assert (told.status, told.problem["code"]) == (500, "internal_error")
    assert told.problem["paymentState"] == "held"
    assert not gateway.upstream.arrived


@pytest.mark.parametrize(
    ("step", "failure", "state", "is_named"),
    [
        ("claim", TollwayError("broken"), CallState.FORWARDING, False),
        ("claim", ChainUnavailable(), CallState.FORWARDING, False),
        ("close", TollwayError("broken"), CallState.CONSUMED, False),
        ("close", ChainUnavailable(), CallState.CONSUMED, True),
    ],
)
async def test_a_failure_behind_the_claim_that_no_step_explains_is_held(
    gateway: InProcessGateway, step: str, failure: TollwayError, state: CallState, is_named: bool
) -> None:
    """The claim, or the end of the call, is written, and the gateway then fails. `none` would let the caller pay again. A defect (`internal_error`) names no call."""
    await gateway.publish()
    gateway.upstream.answer = plain()
    payment = await gateway.pay()
    write = getattr(gateway.ledger, step)

    async def write_and_fail(*given: Any) -> Any:
        await write(*given)
        raise failure

    setattr(gateway.ledger, step, write_and_fail)  # a fault of the model of the ledger
    told = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert told.problem["code"] == failure.problem.code.value
    assert told.problem["paymentState"] == told.headers["tollway-payment-state"] == "held"
    (call,) = await gateway.history()
    assert call.state is state
    assert told.problem.get("callId") == (str(call.id) if is_named else None)


# ---------------------------------------------------------------------- bodies and heads, whole


@pytest.mark.parametrize(("key", "delivery"), [(None, Delivery.COMPLETE), ("one", None)])
async def test_under_a_key_the_end_of_the_body_is_written_behind_its_stored_response(
    gateway: InProcessGateway, key: str | None, delivery: Delivery | None
) -> None:
    """Without a key the close of a short response records its complete delivery. With one, a repeat that comes in between waits for the stored
    response."""
    written: list[Close] = []
    close = gateway.ledger.close

    async def close_and_note(entry: Close) -> Any:
        written.append(entry)
        return await close(entry)

    await gateway.publish()
    gateway.ledger.close = close_and_note  # type: ignore[method-assign]  # looks at what the proxy writes
    proof = await gateway.plain_payment(20_000)
    headers = proof if key is None else [*proof, ("Idempotency-Key", key)]
    gateway.upstream.answer = plain(b"whole")
    assert (await gateway.ask(headers=headers)).body == b"whole"
    (entry,) = written
    assert (None if entry.finish is None else entry.finish.delivery) is delivery
    (call,) = await gateway.history()
    assert (call.delivery, call.response_bytes) == (Delivery.COMPLETE, 5)


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        (plain(b""), None),
        (plain(b"x" * 1_000), None),
        (plain(b"x" * 16_384), None),
        (plain(b"x" * 65_537), "65537"),
        (raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nxx\r\n0\r\n\r\n"), None),
        (raw(b"HTTP/1.1 200 OK\r\n\r\nxyz", close=True), None),
    ],
    ids=["empty", "small", "just small", "large", "chunked", "until the end"],
)
async def test_forwards_a_whole_body(gateway: InProcessGateway, answer: Any, length: str | None) -> None:
    """A length goes on only with a streamed body: beside a single message it is the server's to know."""
    await gateway.publish()
    gateway.upstream.answer = answer
    told = await gateway.ask(headers=await gateway.plain_payment())
    assert told.status == 200
    assert told.is_ended
    assert told.headers.get("content-length") == length
    (call,) = await gateway.history()
    assert (call.delivery, call.response_bytes) == (Delivery.COMPLETE, len(told.body))


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(gateway: InProcessGateway, status: int) -> None:
    await gateway.publish()
    gateway.upstream.answer = raw(f"HTTP/1.1 {status} X\r\nETag: a\r\n\r\n".encode())
    told = await gateway.ask(headers=await gateway.plain_payment())
    assert (told.status, told.body, told.headers["etag"]) == (status, b"", "a")
    assert told.is_ended


async def test_head_shows_the_length_and_no_body(gateway: InProcessGateway) -> None:
    await gateway.publish()
    gateway.upstream.answer = plain(b"x" * 1_234)
    told = await gateway.ask("HEAD", headers=await gateway.plain_payment())
    assert (told.status, told.body, told.headers["content-length"]) == (200, b"", "1234")
    assert told.headers["tollway-payment-state"] == "charged"


@pytest.mark.parametrize("chunks", [[b"x" * 100], BIG], ids=["small", "large"])
@pytest.mark.parametrize("is_chunked", [True, False])
@pytest.mark.parametrize("form", ["plain", "bound", "promised"])
async def test_passes_a_request_body_on(
    gateway: InProcessGateway, chunks: Sequence[bytes], is_chunked: bool, form: str
) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    body = b"".join(chunks)
    proof = {
        "plain": gateway.plain_proof(payment.tx_hash),
        "bound": gateway.bound_proof(payment.tx_hash, method="PUT", body=body),
        "promised": gateway.bound_proof(payment.tx_hash, method="PUT", body=body, promises=True),
    }[form]
    assert (await gateway.ask("PUT", "", proof, chunks, is_chunked=is_chunked)).status == 200
    (arrived,) = gateway.upstream.arrived
    assert bytes(arrived.body) == body
    assert ("content-length" in arrived.names) != ("transfer-encoding" in arrived.names)
    (call,) = await gateway.history()
    assert call.request_bytes == len(body)


async def test_an_early_answer_to_an_upload_is_passed_on(gateway: InProcessGateway) -> None:
    await gateway.publish(charge_on=ChargeOn.ANSWERED)
    gateway.upstream.is_body_read_first = False
    gateway.upstream.answer = plain(b"enough", status=413)
    proof = await gateway.plain_payment()
    exchange = gateway.open("POST", "", proof, [b"x" * 70_000], is_chunked=True, is_open=True)
    answer = await gateway.run(exchange)
    assert (answer.status, answer.body) == (413, b"enough")
    assert await states(gateway) == [CallState.CONSUMED]


async def test_a_call_to_an_upstream_that_is_down_gets_no_402(gateway: InProcessGateway) -> None:
    listing = await gateway.publish(endpoint=f"http://127.0.0.1:{find_free_port()}", methods=("GET",))
    payment = await gateway.pay(100_000)
    for _ in range(gateway.limits.dial_failures_max):
        failed = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
        assert failed.problem["code"] == "upstream_unreachable"
    for answer in (
        await gateway.ask(),
        await gateway.ask("POST"),
        await gateway.ask(headers=gateway.plain_proof(payment.tx_hash)),
    ):
        assert (answer.status, answer.problem["code"]) == (503, "upstream_unavailable")
        assert "payment" not in answer.problem
        assert answer.headers["retry-after"] == "10"
        assert answer.headers["proxy-status"] == '"gw.example.com"; error=destination_unavailable'
    assert await states(gateway) == []
    gateway.now_ms += 10_000
    await gateway.revise(listing, endpoint=gateway.upstream.url)
    await check_works_again(gateway, gateway.plain_proof(payment.tx_hash))


async def test_an_upstream_that_is_down_sells_nothing_until_a_probe_has_reached_it() -> None:
    """Not even after its pause: the probe finds out, and no caller does."""
    async with open_gateway(dial_failures_max=1, dial_pause_s=0.01) as gateway:
        url = f"http://127.0.0.1:{find_free_port()}"
        await gateway.publish(endpoint=url, methods=("GET",))
        proof = await gateway.plain_payment()
        assert (await gateway.ask(headers=proof)).problem["code"] == "upstream_unreachable"
        await asyncio.sleep(0.02)
        for answer in (await gateway.ask(), await gateway.ask(headers=proof)):
            assert answer.problem["code"] == "upstream_unavailable"
        health_check = HealthCheck(
            gateway.breaker, check_connection=gateway.http_client.check_connection, tick_s=0.001
        )
        async with asyncio.TaskGroup() as group:
            probing = group.create_task(health_check.run())
            await until(lambda: not gateway.breaker.find_due())  # it was probed, and the connection failed
            assert (await gateway.ask()).problem["code"] == "upstream_unavailable"
            server = await asyncio.start_server(
                gateway.upstream.serve, "127.0.0.1", int(url.rpartition(":")[2])
            )
            await until(lambda: gateway.breaker.wait_s(url) is None)
            probing.cancel()
        assert gateway.upstream.arrived == [], "a probe sends nothing"
        assert (await gateway.ask()).status == 402
        assert (await gateway.ask(headers=proof)).status == 200
        server.close()


async def test_an_upload_that_stops_before_it_is_whole_is_released(gateway: InProcessGateway) -> None:
    await gateway.publish(timeout_s=1)
    exchange = gateway.open(
        "POST", "/x", await gateway.plain_payment(10_000), [b"x" * 40_000], length=200_000, is_open=True
    )
    await gateway.run(exchange)
    assert exchange.problem["paymentState"] == "released"
    assert [call.state for call in await gateway.history()] == [CallState.RELEASED]
