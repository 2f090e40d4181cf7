"""A streamed body that its upstream cuts, to a caller that takes its bytes slowly: whether the same request may run again free."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.types import Message

from tests.kit.asgi_exchange import Exchange, HeaderPairs
from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.upstream import Arrived, plain
from tollway.gateway.response_body import CALLER_WAIT_MS_MAX
from tollway.ledger.records import CallState

PRICE = 10_000
CREDIT = 5 * PRICE
PIECES = 4
PIECE_BYTES = 500_000


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish()
        yield small


async def send_pieces_and_break(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
    """Each piece is larger than one read of the gateway."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
    for _ in range(PIECES):
        writer.write(b"x" * PIECE_BYTES)
        await writer.drain()
    raise ConnectionAbortedError


async def ask_slowly(gateway: InProcessGateway, proof: HeaderPairs, waits_ms: list[int]) -> Exchange:
    """A call whose caller takes each message with bytes after one of these waits, and further ones at once."""
    exchange = gateway.open(headers=proof)
    left = iter(waits_ms)

    async def send(message: Message) -> None:
        if message.get("body"):
            gateway.now_ms += next(left, 0)
        await exchange.send(message)

    await gateway.calls(exchange.scope, exchange.receive, send)
    assert (exchange.status, exchange.is_ended) == (200, False)
    return exchange


@pytest.mark.parametrize(
    ("waits_ms", "charged"),
    [
        ([0], 1),
        ([CALLER_WAIT_MS_MAX], 1),
        ([CALLER_WAIT_MS_MAX + 1], 2),
        ([CALLER_WAIT_MS_MAX // 2, CALLER_WAIT_MS_MAX // 2, 2], 2),
        ([-60_000, CALLER_WAIT_MS_MAX], 1),
    ],
    ids=["at once", "within the limit", "over the limit", "over the limit in all", "a clock set back"],
)
async def test_a_cut_after_long_waits_for_the_caller_allows_no_repeat(
    gateway: InProcessGateway, waits_ms: list[int], charged: int
) -> None:
    payment = await gateway.pay(CREDIT)
    proof = gateway.plain_proof(payment.tx_hash)
    gateway.upstream.answer = send_pieces_and_break
    await ask_slowly(gateway, proof, waits_ms)
    gateway.upstream.answer = plain(b"whole")
    again = await gateway.ask(headers=proof)
    assert (again.status, again.body) == (200, b"whole")
    assert await gateway.remaining_units(payment) == CREDIT - charged * PRICE
    assert {call.state for call in await gateway.history()} == {CallState.CONSUMED}
    assert len(await gateway.history()) == charged
