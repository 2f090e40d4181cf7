"""A chain node on loopback with a small, consistent chain that a test can change."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

Bend = Callable[[list[dict[str, Any]]], Any]


def word(number: int) -> str:
    return f"0x{number:064x}"


async def hang(_: web.BaseRequest) -> web.StreamResponse:
    """A response that never comes: for `http`."""
    await asyncio.Event().wait()
    raise AssertionError


class ScriptedNode:
    """A chain node: head 10, final 3, one transaction in block 8. `answers`: method -> result, or params -> result.

    A result of the form {"!error": {...}} becomes the error member. `bend` sees the whole batch answer before it
    leaves; `http` replaces the HTTP answer. `batch_max`, `refuse_batch`: a node that takes no more calls in one request, and its answer to
    more.
    """

    TX = word(0xABC)
    SENDER = "0x" + "a1" * 20
    RECIPIENT = "0x" + "b2" * 20
    TOKEN = "0x" + "c3" * 20

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.calls: list[tuple[str, Any]] = []
        self.bend: Bend | None = None
        self.batch_max: int | None = None
        self.refuse_batch: Callable[[list[dict[str, Any]]], web.Response] = lambda calls: web.Response(
            status=400
        )
        self.http: Callable[[Any], Awaitable[web.StreamResponse]] | None = None
        self.log = {
            "address": self.TOKEN,
            "topics": [word(1), word(2), word(3)],
            "data": word(10_000),
            "removed": False,
            "transactionHash": self.TX,
            "blockHash": word(0xB008),
        }
        self.receipt: dict[str, Any] | None = {
            "transactionHash": self.TX,
            "blockHash": word(0xB008),
            "blockNumber": "0x8",
            "status": "0x1",
            "from": self.SENDER,
            "to": self.RECIPIENT,
            "logs": [self.log],
        }
        self.transaction: dict[str, Any] | None = {
            "hash": self.TX,
            "blockHash": word(0xB008),
            "blockNumber": "0x8",
            "from": self.SENDER,
            "to": self.RECIPIENT,
            "value": "0x5",
        }
        self.blocks: dict[str, Any] = {
            "latest": self.block(10),
            "finalized": self.block(3),
            "0x8": self.block(8),
        }
        self.answers: dict[str, Any] = {
            "eth_chainId": hex(84532),
            "eth_getTransactionReceipt": lambda params: self.receipt,
            "eth_getTransactionByHash": lambda params: self.transaction,
            "eth_getBlockByNumber": lambda params: self.blocks.get(params[0]),
        }

    @staticmethod
    def block(number: int) -> dict[str, Any]:
        return {
            "number": hex(number),
            "hash": word(0xB000 + number),
            "timestamp": hex(1_700_000_000 + number),
        }

    def forget(self) -> None:
        self.receipt = self.transaction = None

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        body = json.loads(await request.read())
        calls = body if isinstance(body, list) else [body]
        self.note([call["method"] for call in calls])
        self.calls += [(call["method"], call.get("params")) for call in calls]
        if self.http is not None:
            return await self.http(request)
        if self.batch_max is not None and len(calls) > self.batch_max:
            return self.refuse_batch(calls)
        answer: Any = [self.answer(call) for call in calls]
        if not isinstance(body, list):
            (answer,) = answer
        if self.bend is not None:
            answer = self.bend(answer)
        return web.Response(body=json.dumps(answer).encode(), content_type="application/json")

    def params(self, method: str) -> list[Any]:
        """The parameters of each call of a method, in the order of their arrival."""
        return [params for called, params in self.calls if called == method]

    def note(self, methods: list[str]) -> None:
        self.batches.append(methods)

    def answer(self, call: dict[str, Any]) -> dict[str, Any]:
        result = self.answers[call["method"]]
        if callable(result):
            result = result(call["params"])
        member = "result"
        if isinstance(result, dict) and "!error" in result:
            member, result = "error", result["!error"]
        return {"jsonrpc": "2.0", "id": call["id"], member: result}
