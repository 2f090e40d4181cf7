"""A proxy between a gateway and its node, which a test can cut at a named question, and which can hang, fail, lag and lie."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

SEND = "eth_sendRawTransaction"
_NUMBERS = itertools.count(1)


Call = dict[str, Any]
Bend = Callable[[list[Call], list[Call]], list[Call]]
"""What a lying node makes of the answers to a batch: (questions as they came, honest answers) -> its answers."""


class NodeProxy:
    """Passes JSON-RPC on. Cut, it drops every connection without an answer, as a dead node does; `hang`, `fail` and `lie`
    are other bad days of a node. Where it `is_final` no more, only the first block is: all others may still be replaced."""

    def __init__(self, session: aiohttp.ClientSession, rpc_url: str) -> None:
        self.url = ""
        self.is_cut = False
        self._session = session
        self._rpc_url = rpc_url
        self._cut_before = ""
        self._cut_after = ""
        self._is_back: asyncio.Event | None = None
        self._is_failing = False
        self._bend: Bend | None = None
        self._translate: dict[str, str] = {}
        self._lag_blocks = 0
        self.is_final = True

    def hang(self) -> None:
        """It takes every question and answers none."""
        self._is_back = asyncio.Event()

    def fail(self) -> None:
        """It answers each with HTTP status 500."""
        self._is_failing = True

    def lag(self, blocks: int) -> None:
        """It is that far behind: what was mined since waits in its pool."""
        self._lag_blocks = blocks

    def lie(self, bend: Bend) -> None:
        self._bend = bend

    def rename(self, told: str, real: str) -> None:
        """Returns the results of `real` for every request about `told`: such as a receipt for a transaction that was
        never sent."""
        self._translate = {told.removeprefix("0x"): real.removeprefix("0x")}

    def cut_at(self, method: str, *, is_heard: bool) -> None:
        """With the next question of that kind the node dies: before it hears it, or (`is_heard`) once it has answered."""
        self._cut_after, self._cut_before = (method, "") if is_heard else ("", method)

    def mend(self) -> None:
        self.is_cut, self._cut_before, self._cut_after = False, "", ""
        if self._is_back is not None:
            self._is_back.set()
        self._is_back, self._is_failing, self._bend, self._lag_blocks = None, False, None, 0
        self._translate = {}

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body)
        methods = {call["method"] for call in (asked if isinstance(asked, list) else [asked])}
        if self._cut_before in methods:
            self.is_cut = True
        if self.is_cut:
            return self._drop(request)
        if self._is_back is not None:
            await self._is_back.wait()
            return self._drop(request)
        if self._is_failing:
            return web.Response(status=500)
        headers = {"Content-Type": "application/json"}
        if not self.is_final:
            body = body.replace(b'"finalized"', b'"0x0"')
        for told, real in self._translate.items():
            body = body.replace(told.encode(), real.encode())
        if self._lag_blocks:
            answers = json.dumps(await self._answer_late(asked)).encode()
            return web.Response(body=answers, headers=headers)
        status, answers = await self._forward(body)
        for told, real in self._translate.items():
            answers = answers.replace(real.encode(), told.encode())
        if self._bend is not None:
            answers = json.dumps(self._bend(asked, json.loads(answers))).encode()
        if self._cut_after in methods:
            self.is_cut = True
        return web.Response(status=status, body=answers, headers=headers)

    async def _forward(self, body: bytes) -> tuple[int, bytes]:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._rpc_url, data=body, headers=headers) as answer:
            return answer.status, await answer.read()

    async def _answer_late(self, asked: list[Call]) -> list[Call]:
        """As a node whose head is `lag` blocks old."""
        _, told = await self._forward(json.dumps([_question("eth_blockNumber")]).encode())
        head = int(json.loads(told)[0]["result"], 16) - self._lag_blocks
        asked = [{**call, "params": _as_of(call["params"], head)} for call in asked]
        _, told = await self._forward(json.dumps(asked).encode())
        answers = {answer["id"]: answer for answer in json.loads(told)}
        return [{**answers[call["id"]], **_hide(call["method"], answers[call["id"]], head)} for call in asked]

    def _drop(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


def _question(method: str, *params: object) -> Call:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _as_of(params: Any, head: int) -> list[Any]:
    heights = {"latest": hex(head), "pending": hex(head), "finalized": hex(max(0, head - 2))}
    return [heights.get(one, one) if isinstance(one, str) else one for one in params]


def _hide(method: str, answer: Call, head: int) -> Call:
    """What is younger than `head` it has not seen: no receipt, and a transaction without a block."""
    result = answer.get("result")
    if method == "eth_blockNumber":
        return {"result": hex(head)}
    if not isinstance(result, dict) or result.get("blockNumber") is None:
        return {}
    if int(result["blockNumber"], 16) <= head:
        return {}
    is_receipt = method == "eth_getTransactionReceipt"
    return {"result": None if is_receipt else {**result, "blockNumber": None, "blockHash": None}}


def answer_null(asked: list[Call], answers: list[Call]) -> list[Call]:
    """It knows its chain and nothing else."""
    ids = {call["id"] for call in asked if call["method"] == "eth_chainId"}
    return [answer if answer["id"] in ids else {**answer, "result": None} for answer in answers]


def answer_for_another_chain(asked: list[Call], answers: list[Call]) -> list[Call]:
    ids = {call["id"] for call in asked if call["method"] == "eth_chainId"}
    return [{**answer, "result": "0x1"} if answer["id"] in ids else answer for answer in answers]


def answer_with(real: int, told: int) -> Bend:
    """Replaces each amount (a word of 32 bytes) of `real` by the one of `told`."""
    words = f"{real:064x}", f"{told:064x}"

    def bend(asked: list[Call], answers: list[Call]) -> list[Call]:
        bent: list[Call] = json.loads(json.dumps(answers).replace(*words))
        return bent

    return bend


def name_nodes(
    folder: Path, proxies: Sequence[NodeProxy], *, agreement_min: int = 1, above: str | None = None
) -> dict[str, str]:
    """Settings of a gateway that reads its nodes through these proxies."""
    urls = ",".join(proxy.url for proxy in proxies)
    config = folder / f"nodes-{next(_NUMBERS)}.toml"
    value = "" if above is None else f'agreement_above = {{USDC = "{above}"}}\n'
    config.write_text(f'[[networks]]\npreset = "sandbox"\nagreement_min = {agreement_min}\n{value}')
    return {"TOLLWAY_RPC_SANDBOX": urls, "TOLLWAY_CONFIG": str(config)}


@asynccontextmanager
async def run_node_proxy(session: aiohttp.ClientSession, rpc_url: str) -> AsyncIterator[NodeProxy]:
    line = NodeProxy(session, rpc_url)
    runner = web.ServerRunner(web.Server(line.handle, access_log=None), handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        line.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield line
    finally:
        await runner.cleanup()
