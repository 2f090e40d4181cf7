"""The ASGI app of gateway calls: what it parses, what it limits, and how it ends an incomplete response."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import CALLS, InProcessGateway, open_gateway
from tests.kit.upstream import Arrived, plain, say_nothing
from tests.kit.waits import until
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.messages import ClientGone, ProblemResponse
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.web.calls.gateway_app import PACED_CODES, IncomingBody, is_paced
from tollway.web.http.admission import BodyBudget

FREE = Price.parse("0")


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(in_flight_per_address_max=2, request_line_bytes_max=200) as small:
        yield small


# ---------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("raw_path", "status", "code"),
    [
        (CALLS.encode(), 404, "route_not_found"),
        (CALLS.encode() + b"/x", 404, "route_not_found"),
        (CALLS.encode() + b"api_nothing", 404, "api_not_found"),
        (CALLS.encode() + b"api%5fquotes", 404, "api_not_found"),
        (CALLS.encode() + b"api_quotes/\xff", 400, "invalid_request"),
        (CALLS.encode() + b"api_quotes/" + b"a" * 200, 400, "invalid_request"),
        (CALLS.encode() + b"api_quotes/a%00b", 400, "invalid_request"),
        (b"*", 400, "invalid_request"),
    ],
)
async def test_refuses_paths_without_an_api(
    gateway: InProcessGateway, raw_path: bytes, status: int, code: str
) -> None:
    await gateway.publish()
    exchange = gateway.open()
    exchange.scope["raw_path"] = raw_path
    answer = await gateway.run(exchange)
    assert (answer.status, answer.problem["code"]) == (status, code)
    assert answer.problem["instance"].isascii()


@pytest.mark.parametrize(("length", "status", "rows"), [(32, 200, 1), (33, 400, 0)])
async def test_a_method_has_at_most_32_characters(
    gateway: InProcessGateway, length: int, status: int, rows: int
) -> None:
    """A longer method fits no row: PostgreSQL would fail every claim of the same batch."""
    await gateway.publish(price=FREE)
    answer = await gateway.ask("M" * length)
    assert answer.status == status
    if status != 200:
        assert answer.problem["code"] == "invalid_request"
    assert len(gateway.ledger._rows.calls) == rows


async def test_an_unreadable_query_is_refused(gateway: InProcessGateway) -> None:
    await gateway.publish()
    exchange = gateway.open()
    exchange.scope["query_string"] = b"\xff"
    assert (await gateway.run(exchange)).problem["code"] == "invalid_request"


# ---------------------------------------------------------------------- capacity


async def test_limits_concurrent_calls_of_an_address(gateway: InProcessGateway) -> None:
    await gateway.publish(price=FREE)
    gateway.upstream.answer = say_nothing
    waiting = [gateway.open(), gateway.open()]
    with contextlib.suppress(asyncio.CancelledError):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(gateway.run(exchange)) for exchange in waiting]
            await until(lambda: len(gateway.upstream.arrived) == 2)
            refused = await gateway.ask()
            assert (refused.status, refused.problem["code"]) == (503, "overloaded")
            assert refused.headers["retry-after"] == "1"
            gateway.upstream.answer = plain()
            assert (await gateway.ask(client="203.0.113.9")).status == 200
            for task in tasks:
                task.cancel()
    assert len(gateway.upstream.arrived) == 3
    assert (await gateway.ask()).status == 200  # the slots are free again


async def test_a_refused_call_waits_for_its_share_of_the_event_loop_and_other_calls_do_not(
    gateway: InProcessGateway,
) -> None:
    """A free call, a quote, and an API that does not exist."""
    await gateway.publish(price=FREE)
    await gateway.publish("api_priced")
    share = gateway.shedder.loop
    now_s = share.clock()
    share.clock = lambda: now_s
    share.spend(1.0)
    async with asyncio.TaskGroup() as group:
        refused = group.create_task(gateway.ask("M" * 33))
        assert (await gateway.ask()).status == 200
        for name, status in (("api_priced", 402), ("api_nothing", 404)):
            other = gateway.open()
            other.scope["raw_path"] = f"{CALLS}{name}".encode()
            assert (await gateway.run(other)).status == status
        await asyncio.sleep(0.01)
        assert not refused.done()
        now_s += 10.0
    assert refused.result().problem["code"] == "invalid_request"


@pytest.mark.parametrize(
    ("code", "state", "waits"),
    [
        (Code.INVALID_REQUEST, None, True),
        (Code.RATE_LIMITED, "none", True),
        (Code.INVALID_REQUEST, "charged", False),
        (Code.API_NOT_FOUND, None, False),
        (Code.PAYMENT_REQUIRED, "none", False),
        (Code.PAYMENT_ALREADY_USED, "none", False),
        (Code.UPSTREAM_TIMEOUT, "held", False),
        (Code.STORAGE_UNAVAILABLE, "none", False),
    ],
)
def test_only_the_answer_to_a_request_that_is_itself_at_fault_waits(
    code: Code, state: str | None, waits: bool
) -> None:
    problem = Problem(code=code, detail="No.", payment_state=state)
    assert (code in PACED_CODES and is_paced(ProblemResponse(problem=problem))) is waits


async def test_buffered_bodies_share_one_budget() -> None:
    """Each body lacks its last byte, and its call needs the whole body."""
    async with open_gateway(held_bodies_bytes_max=3_600_000) as gateway:
        await gateway.publish(methods=("GET", "POST"))
        key = ("Idempotency-Key", "one")
        proof = [*gateway.plain_proof((await gateway.pay()).tx_hash), key]
        most = [b"x" * 860_000]
        waiting = [
            gateway.open(
                "POST", headers=proof, chunks=most, length=860_001, is_open=True, client=f"192.0.2.{one}"
            )
            for one in range(3)
        ]
        async with asyncio.TaskGroup() as group:
            for exchange in waiting:
                group.create_task(gateway.run(exchange))
            await until(lambda: gateway.shedder.bodies.reserved_bytes > 2_300_000)
            refused = await gateway.ask("POST", headers=proof, chunks=[b"x" * 500_000], client="192.0.2.9")
            assert (refused.status, refused.problem["code"]) == (503, "overloaded")
            assert (refused.problem["reason"], refused.problem["paymentState"]) == ("bodies", "none")
            for exchange in waiting:
                exchange.leave()
        assert gateway.shedder.bodies.reserved_bytes == 0


async def test_bodies_of_strangers_leave_the_memory_of_proven_calls() -> None:
    """The signature covers the body, so its wallet is known only after the last byte."""
    async with open_gateway(held_bodies_bytes_max=3_600_000) as gateway:
        await gateway.publish(methods=("GET", "POST"))
        proof = gateway.bound_proof((await gateway.pay()).tx_hash, method="POST")
        most = [b"x" * 280_000]
        waiting = [
            gateway.open(
                "POST", headers=proof, chunks=most, length=860_001, is_open=True, client=f"192.0.2.{one}"
            )
            for one in range(4)
        ]
        async with asyncio.TaskGroup() as group:
            for exchange in waiting:
                group.create_task(gateway.run(exchange))
            await until(lambda: gateway.shedder.bodies.unproven.reserved_bytes > 850_000)
            refused = await gateway.ask("POST", headers=proof, chunks=[b"x" * 280_000], client="192.0.2.9")
            assert (refused.status, refused.problem["reason"]) == (503, "bodies")
            plain_proof = gateway.plain_proof((await gateway.pay()).tx_hash)
            shown = [*plain_proof, ("Idempotency-Key", "one")]
            served = await gateway.ask("POST", headers=shown, chunks=[b"x" * 860_000], client="192.0.2.9")
            assert served.status == 200, served.body
            for exchange in waiting:
                exchange.leave()


async def test_a_full_gateway_refuses_calls_unread(gateway: InProcessGateway) -> None:
    await gateway.publish(price=FREE)
    while gateway.shedder.enter(f"address {gateway.shedder.running}") is None:
        pass
    refused = await gateway.ask()
    assert (refused.status, refused.problem["code"]) == (503, "overloaded")
    assert refused.headers["retry-after"] == "2"
    assert refused.problem["paymentState"] == refused.headers["tollway-payment-state"] == "none"
    assert not gateway.upstream.arrived
    assert gateway.outcomes == ["overloaded"]
    gateway.shedder.leave("address 0")
    assert (await gateway.ask()).status == 200
    gateway.shedder.leave("address 1")


# ---------------------------------------------------------------------- responses


class Failing:
    """A gateway that fails."""

    def __init__(self, exc: Exception) -> None:
        self.exc = exc

    async def handle(self, call: object) -> Any:
        raise self.exc


async def test_an_exception_is_logged_once_and_the_response_does_not_contain_its_text(
    gateway: InProcessGateway,
) -> None:
    gateway.calls._gateway = Failing(ZeroDivisionError("secret"))  # type: ignore[assignment]
    with capture_logs() as logs:
        answer = await gateway.ask()
    assert [line["event"] for line in logs] == ["call_failed"]
    assert (answer.status, answer.problem["code"]) == (500, "internal_error")
    assert answer.problem["paymentState"] == "held"
    assert b"secret" not in answer.body


async def test_an_operational_failure_has_its_own_code(gateway: InProcessGateway) -> None:
    await gateway.publish()
    payment = await gateway.pay()
    gateway.ledger.away = True
    answer = await gateway.ask(headers=gateway.plain_proof(payment.tx_hash))
    assert (answer.status, answer.problem["code"]) == (503, "storage_unavailable")


async def test_a_response_head_that_the_server_refuses_releases_the_connection(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish(price=FREE)
    gateway.upstream.answer = plain(b"x" * 100_000)

    class Refusing(Exchange):
        async def send(self, message: Any) -> None:
            raise RuntimeError("unsupported message")

    exchange = gateway.open()
    refusing = Refusing(exchange.scope, (), is_open=False)
    with pytest.raises(RuntimeError):
        await gateway.run(refusing)
    assert gateway.http_client._in_flight == {}


async def test_the_head_of_a_streamed_response_is_sent_before_its_first_byte(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish(price=FREE)
    go = asyncio.Event()

    async def tell(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await go.wait()
        writer.write(b"2\r\nok\r\n0\r\n\r\n")

    gateway.upstream.answer = tell
    exchange = gateway.open()
    async with asyncio.TaskGroup() as group:
        group.create_task(gateway.run(exchange))
        await until(lambda: len(exchange.sent) == 2)
        assert exchange.sent[1] == {"type": "http.response.body", "body": b"", "more_body": True}
        go.set()
    assert (exchange.body, exchange.is_ended) == (b"ok", True)


async def test_a_large_response_is_sent_in_small_messages(gateway: InProcessGateway) -> None:
    """The server queues several messages for a slow client."""
    body = bytes(range(256)) * 4096  # 1 MiB
    gateway.upstream.answer = plain(body)
    await gateway.publish(price=FREE)
    answer = await gateway.ask()
    sizes = [len(message["body"]) for message in answer.sent if message["type"] == "http.response.body"]
    assert answer.body == body
    assert max(sizes) <= gateway.limits.buffer_bytes


async def test_a_stalled_write_ends_the_stream() -> None:
    async with open_gateway(write_stall_s=0.05) as gateway:
        await gateway.publish(price=FREE)
        gateway.upstream.answer = plain(b"x" * 1_000_000)

        class Stalled(Exchange):
            async def send(self, message: Any) -> None:
                await super().send(message)
                if len(self.sent) > 3:
                    await asyncio.Event().wait()

        exchange = gateway.open()
        stalled = await gateway.run(Stalled(exchange.scope, (), is_open=False))
        assert not stalled.is_ended
        assert gateway.http_client._in_flight == {}


# ---------------------------------------------------------------------- request bodies


def body(
    *messages: dict[str, Any],
    headers: tuple[tuple[bytes, bytes], ...] = (),
    clock: Callable[[], float] = lambda: 0.0,
    **limits: Any,
) -> IncomingBody:
    """No time passes for its sender by `clock`, so only a part that never comes is too slow."""
    inbox = list(messages)

    async def receive() -> dict[str, Any]:
        if not inbox:
            await asyncio.Event().wait()
        return inbox.pop(0)

    bounds = replace(DEFAULT_LIMITS, **limits)
    return IncomingBody(
        receive, headers, bounds, budget=BodyBudget(bounds), client_address="192.0.2.1", clock=clock
    )


def part(chunk: bytes, *, is_last: bool = False) -> dict[str, Any]:
    return {"type": "http.request", "body": chunk, "more_body": not is_last}


GONE = {"type": "http.disconnect"}
CHUNKED = ((b"transfer-encoding", b"chunked"),)


def sized(size: int) -> tuple[tuple[bytes, bytes], ...]:
    return ((b"content-length", str(size).encode()),)


@pytest.mark.parametrize(
    ("headers", "is_present", "length"),
    [
        ((), False, 0),
        (sized(0), False, 0),
        (sized(5), True, 5),
        (CHUNKED, True, None),
        (((b"content-length", b"x"),), False, 0),
    ],
)
def test_the_head_decides_whether_a_body_follows(headers: Any, is_present: bool, length: int | None) -> None:
    incoming = body(headers=headers)
    assert (incoming.is_present, incoming.length, incoming.is_finished) == (
        is_present,
        length,
        not is_present,
    )


@pytest.mark.parametrize("codings", [[b"chunked", b"chunked"], [b"gzip, chunked"], [b"identity"], [b""]])
async def test_a_refused_coding_ends_the_connection(codings: list[bytes]) -> None:
    incoming = body(part(b"ab", is_last=True), headers=[(b"transfer-encoding", coding) for coding in codings])
    assert incoming.is_present
    assert not await incoming.drop_rest(), "the connection closes"


async def test_returns_the_chunks_and_then_the_end() -> None:
    incoming = body(part(b"ab"), part(b""), part(b"c"), part(b"", is_last=True), headers=sized(3))
    assert [await incoming.read_chunk() for _ in range(4)] == [b"ab", b"c", b"", b""]
    assert (incoming.bytes_read, incoming.is_finished, incoming.is_broken) == (3, True, False)


async def test_a_disconnect_after_the_declared_length_is_a_complete_body() -> None:
    incoming = body(part(b"ab"), part(b"c"), GONE, headers=sized(3))
    assert [await incoming.read_chunk() for _ in range(3)] == [b"ab", b"c", b""]
    assert (incoming.is_finished, incoming.is_broken) == (True, False)


async def test_a_disconnect_in_the_middle_is_an_incomplete_body() -> None:
    incoming = body(part(b"ab"), GONE, headers=sized(3))
    assert await incoming.read_chunk() == b"ab"
    with pytest.raises(ClientGone):
        await incoming.read_chunk()
    assert (incoming.is_finished, incoming.is_broken) == (False, True)


@pytest.mark.parametrize(
    ("messages", "size", "has_disconnected"),
    [
        ((GONE,), 0, True),
        ((part(b"ab"), GONE), 2, True),
        ((part(b"ab"),), 2, False),
        ((part(b"ab"), GONE), 3, False),  # the body itself reports the disconnect to its reader
    ],
)
async def test_detects_a_disconnect_so_far(
    messages: tuple[Any, ...], size: int, has_disconnected: bool
) -> None:
    incoming = body(*messages, headers=sized(size))
    if size:
        await incoming.read_chunk()
    assert await incoming.has_disconnected() is has_disconnected


async def test_a_body_that_came_fast_may_pause_for_the_window_only() -> None:
    """33 MB at once earn no more than a pause of ten seconds."""
    now_s = [0.0]
    pauses = [0.1, 9.0, 2.0, 0.1]

    async def receive() -> dict[str, Any]:
        now_s[0] += pauses.pop(0)
        return part(b"x" * 33_000_000 if len(pauses) == 3 else b"x")

    budget = BodyBudget(DEFAULT_LIMITS)
    incoming = IncomingBody(
        receive, CHUNKED, DEFAULT_LIMITS, budget=budget, client_address="192.0.2.1", clock=lambda: now_s[0]
    )
    assert len(await incoming.read_chunk()) == 33_000_000
    for _ in range(2):
        assert await incoming.read_chunk() == b"x"
    with pytest.raises(Refusal) as refused:
        await incoming.read_chunk()
    assert refused.value.problem.reason == "body_too_slow"
    assert pauses == [0.1]


async def test_a_stalled_body_is_too_slow_and_a_fast_one_earns_time() -> None:
    slow = body(part(b"a"), headers=sized(2), body_rate_grace_s=0.02)
    assert await slow.read_chunk() == b"a"
    with pytest.raises(Refusal) as refused:
        await slow.read_chunk()
    assert refused.value.problem.reason == "body_too_slow"
    fast = body(part(b"a" * 10_000), headers=sized(20_000), body_rate_grace_s=0.02, body_rate_bytes_min=100)
    await fast.read_chunk()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await fast.read_chunk()


async def test_the_time_of_the_upstream_does_not_count_against_the_client() -> None:
    now_s = [0.0]
    incoming = body(part(b"a"), part(b"b"), headers=sized(2), clock=lambda: now_s[0])
    assert await incoming.read_chunk() == b"a"
    now_s[0] += 3600.0
    assert await incoming.read_chunk() == b"b"


@pytest.mark.parametrize(
    ("messages", "headers", "is_usable"),
    [
        ([], (), True),
        ([part(b"x" * 4), part(b"", is_last=True)], sized(4), True),
        ([part(b"x" * 4), part(b"", is_last=True)], CHUNKED, True),
        ([part(b"x" * 4)], sized(11), False),
        ([part(b"x" * 6), part(b"x" * 5), part(b"", is_last=True)], CHUNKED, False),
        ([part(b"x" * 4), GONE], sized(5), False),
        ([part(b"x" * 4)], sized(5), False),
        ([], (*sized(5), (b"expect", b"100-continue")), False),
    ],
)
async def test_discards_the_rest_of_a_refused_body_up_to_a_limit(
    messages: list[dict[str, Any]], headers: Any, is_usable: bool
) -> None:
    incoming = body(*messages, headers=headers, refused_body_bytes_max=10, body_rate_grace_s=0.02)
    assert await incoming.drop_rest() == is_usable


async def test_does_not_discard_while_another_task_reads() -> None:
    incoming = body(headers=sized(5))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(incoming.read_chunk())
        await asyncio.sleep(0)
        assert not await incoming.drop_rest()
        reading.cancel()


async def test_does_not_discard_after_a_cancelled_read() -> None:
    reads = 0

    async def receive() -> Any:
        nonlocal reads
        reads += 1
        await asyncio.Event().wait()

    bounds = replace(DEFAULT_LIMITS, body_rate_grace_s=0.02)
    incoming = IncomingBody(receive, sized(5), bounds, budget=BodyBudget(bounds), client_address="192.0.2.1")
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(incoming.read_chunk())
        await asyncio.sleep(0)
        reading.cancel()
    assert not await incoming.drop_rest()
    assert reads == 1


async def test_waits_for_a_disconnect() -> None:
    incoming = body(part(b"", is_last=True), GONE)
    await incoming.wait_disconnect()
