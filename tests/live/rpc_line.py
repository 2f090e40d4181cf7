"""The line between a gateway and its node, which a test can cut at a named question. Loaded by `conftest.py`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

SEND = "eth_sendRawTransaction"


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
