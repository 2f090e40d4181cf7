"""The first presentation of a payment: how many round trips to the chain node it costs, and the time beyond them.

A proxy between gateway and node counts: one HTTP request is one round trip, with any number of JSON-RPC requests.
"""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from gateways import PATH, SHOWN_FROM_ONE_ADDRESS, Gateway, open_session
from throughput import summarise


class CountingLine:
    """A proxy that forwards JSON-RPC and records the start and end of each round trip."""

    def __init__(self, session: aiohttp.ClientSession, rpc_url: str) -> None:
        self.url = ""
        self.trips: list[tuple[float, float]] = []
        self._session = session
        self._rpc_url = rpc_url

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        start = time.perf_counter()
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._rpc_url, data=await request.read(), headers=headers) as answer:
            body = await answer.read()
        self.trips.append((start, time.perf_counter()))
        return web.Response(status=answer.status, body=body, headers=headers)


@asynccontextmanager
async def counting(rpc_url: str) -> AsyncIterator[CountingLine]:
    async with aiohttp.ClientSession() as session:
        line = CountingLine(session, rpc_url)
        runner = web.ServerRunner(web.Server(line.handle, access_log=None), handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            line.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield line
        finally:
            await runner.cleanup()


def covered_s(trips: list[tuple[float, float]]) -> float:
    """The time in which at least one round trip was running."""
    total, reached = 0.0, 0.0
    for start, end in sorted(trips):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


async def show_first(gateway: Gateway, line: CountingLine, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """Presents one payment after another, each for the first time. A periodic round trip of the gateway during a call
    counts as one of that call: read the median and the maximum."""
    counts, beyond, whole, again = [], [], [], []
    payments = list(gateway.payments)
    for number in range(0, len(payments), SHOWN_FROM_ONE_ADDRESS):
        async with open_session(number // SHOWN_FROM_ONE_ADDRESS) as session:
            async with session.get(gateway.url + "/healthz"):
                pass  # the connection is open before the timing
            for payment in payments[number : number + SHOWN_FROM_ONE_ADDRESS]:
                headers = payment.sign()
                mark = len(line.trips)
                first_s = await ask(session, gateway, headers)
                trips = line.trips[mark:]
                again_s = await ask(session, gateway, headers)
                counts.append(len(trips))
                whole.append(first_s * 1000)
                again.append(again_s * 1000)
                beyond.append((first_s - covered_s(trips)) * 1000)
    tell(f"first presentation: {summarise(counts)} round trips, {summarise(beyond)} ms beyond them")
    return {
        "payments": len(payments),
        "roundTrips": summarise(counts, 0),
        "wholeMs": summarise(whole),
        "beyondRoundTripsMs": summarise(beyond),
        "sameCallOnCreditMs": summarise(again),
    }


async def ask(
    session: aiohttp.ClientSession, gateway: Gateway, headers: tuple[tuple[str, str], ...]
) -> float:
    start = time.perf_counter()
    async with session.get(gateway.url + gateway.path + PATH, headers=headers) as answer:
        body = await answer.read()
        if answer.status != 200:
            raise RuntimeError(body.decode())
    return time.perf_counter() - start
