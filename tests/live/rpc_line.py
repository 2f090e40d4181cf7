"""The line between a gateway and its node, which a test can cut at a named question, and a stall whose gateway asks its
node over it. Loaded by `conftest.py`.
"""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from tollway_live_signed_calls import QUICK, SignedCall, Stall, count_sent
from tollway_live_street import poll

SEND = "eth_sendRawTransaction"
DEADLINE_S = 60.0
SETTINGS = {
    **QUICK,
    "TOLLWAY_LIMIT_SETTLE_WAIT_S": "1.5",
    "TOLLWAY_LIMIT_WATCH_INTERVAL_S": "0.1",
    "TOLLWAY_LIMIT_GAS_REFRESH_S": "1",
}
_NUMBERS = itertools.count(1)


class RpcLine:
    """Passes JSON-RPC on. Cut, it drops every connection without an answer, as a dead node does."""

    def __init__(self, session: aiohttp.ClientSession, rpc_url: str) -> None:
        self.url = ""
        self.is_cut = False
        self.dropped = 0
        self._session = session
        self._rpc_url = rpc_url
        self._cut_before = ""
        self._cut_after = ""

    def cut_at(self, method: str, *, is_heard: bool) -> None:
        """With the next question of that kind the node dies: before it hears it, or (`is_heard`) once it has answered."""
        self._cut_after, self._cut_before = (method, "") if is_heard else ("", method)

    def mend(self) -> None:
        self.is_cut, self._cut_before, self._cut_after = False, "", ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body)
        methods = {call["method"] for call in (asked if isinstance(asked, list) else [asked])}
        if self._cut_before in methods:
            self.is_cut = True
        if self.is_cut:
            return self._drop(request)
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._rpc_url, data=body, headers=headers) as answer:
            told = web.Response(status=answer.status, body=await answer.read(), headers=headers)
        if self._cut_after in methods:
            self.is_cut = True
        return told

    def _drop(self, request: web.BaseRequest) -> web.StreamResponse:
        self.dropped += 1
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


@asynccontextmanager
async def run_rpc_line(session: aiohttp.ClientSession, rpc_url: str) -> AsyncIterator[RpcLine]:
    line = RpcLine(session, rpc_url)
    runner = web.ServerRunner(web.Server(line.handle, access_log=None), handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        line.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield line
    finally:
        await runner.cleanup()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A stall whose gateway asks its node over a line that can be cut."""

    stall: Stall
    gas: Any
    line: RpcLine

    @property
    def street(self) -> Any:
        return self.stall.street

    async def sign(self, name: str, *, method: str = "GET") -> SignedCall:
        """`name`: of a path of the provider's; each call has a number of its own."""
        body = b"{}" if method == "POST" else None
        wallet = await self.street.wallet()
        return self.stall.sign(wallet, f"{name}{next(_NUMBERS)}", method=method, body=body)

    async def wait_served(self, call: SignedCall) -> Any:
        """The answer, as soon as a repeat gets it; until then it hears that nobody knows."""
        replies: list[Any] = []

        async def is_served() -> bool:
            replies.append(await call.send())
            return bool(replies[-1].status == 200)

        await poll(is_served, deadline_s=DEADLINE_S, what="the answer that was paid for")
        for reply in replies[:-1]:
            assert_undecided(reply)
        return replies[-1]

    async def wait_offered(self) -> None:
        """The gateway has looked at its node since it was away, and sells again."""

        async def is_offered() -> bool:
            reply = await self.street.call(self.stall.gateways[0], self.stall.api_id, "/echo/offer")
            return "PAYMENT-REQUIRED" in reply.headers

        await poll(is_offered, deadline_s=DEADLINE_S, what="a 402 that takes signed payments")

    async def check_settled(self, call: SignedCall) -> None:
        """One transfer, one record, and the next one can be settled as well."""
        (moved,) = await call.transfers()
        record = await call.record()
        assert (record["status"], record["payment"]["state"]) == ("succeeded", "charged")
        assert record["payment"]["transaction"] == str(moved)
        await self.wait_offered()
        sent = await count_sent(self.street, self.gas)
        assert (await (await self.sign("/echo/next-")).send()).status == 200
        assert await count_sent(self.street, self.gas) == sent + 1
        await self.stall.check_books()


def assert_undecided(reply: Any) -> None:
    assert (reply.status, reply.code) == (503, "payment_outcome_unknown"), reply.body
    assert not reply.asks_for_money
    assert reply.json["paymentState"] == "held"
    assert reply.json["call"].endswith(reply.json["callId"])


@asynccontextmanager
async def open_trouble(street: Any, **settings: str) -> AsyncIterator[Trouble]:
    gas = await street.wallet()
    async with run_rpc_line(street.session, street.driver.rpc_url) as line:
        env = {"TOLLWAY_RPC_LOCAL": line.url, "TOLLWAY_GAS_KEYS_LOCAL": gas.private_key}
        async with street.gateway(settings={**SETTINGS, **env, **settings}) as gateway:
            yield Trouble(stall=await Stall.open(street, [gateway]), gas=gas, line=line)
