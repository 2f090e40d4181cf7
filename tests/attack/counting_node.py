"""A chain node that has a few payments and nothing else, and counts its requests. Its blocks follow the clock."""

import json
import time
from collections import Counter
from typing import Any

from aiohttp import web

from tollway.ids import Address, TxHash, keccak256

CHAIN_ID = 8453
BLOCK_S = 2
START_BLOCK = 1_000
_TRANSFER = keccak256(b"Transfer(address,address,uint256)")


def _word(number: int) -> str:
    return f"0x{number:064x}"


class CountingNode:
    """`methods`: the number of requests by method; `strange`: of those for an unknown transaction."""

    def __init__(self, token: Address) -> None:
        self.methods: Counter[str] = Counter()
        self.strange: Counter[str] = Counter()
        self._token = token
        self._started_s = int(time.time()) - 60
        self._receipts: dict[str, dict[str, Any]] = {}

    async def run(self, port: int) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(self._serve, access_log=None), handle_signals=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    def pay(self, tx_hash: TxHash, *, payer: Address, payee: Address, base_units: int) -> None:
        """A transfer in the newest block."""
        number = self._head()
        place = {"blockHash": _word(number), "blockNumber": hex(number)}
        log = {
            "address": str(self._token),
            "topics": ["0x" + _TRANSFER.hex(), "0x" + payer.hex().zfill(64), "0x" + payee.hex().zfill(64)],
            "data": _word(base_units),
            "removed": False,
            "transactionHash": str(tx_hash),
            **place,
        }
        self._receipts[str(tx_hash)] = {
            "transactionHash": str(tx_hash),
            "status": "0x1",
            "from": str(payer),
            "to": str(self._token),
            "logs": [log],
            **place,
        }

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        calls = asked if isinstance(asked, list) else [asked]
        told = [self._answer(call) for call in calls]
        body = json.dumps(told if isinstance(asked, list) else told[0]).encode()
        return web.Response(body=body, content_type="application/json")

    def _answer(self, call: dict[str, Any]) -> dict[str, Any]:
        method, params = call["method"], call.get("params") or []
        self.methods[method] += 1
        known = {"jsonrpc": "2.0", "id": call["id"]}
        match method:
            case "eth_chainId":
                return {**known, "result": hex(CHAIN_ID)}
            case "eth_blockNumber":
                return {**known, "result": hex(self._head())}
            case "eth_getBlockByNumber":
                return {**known, "result": self._block(params[0])}
            case "eth_getTransactionReceipt" | "eth_getTransactionByHash":
                return {**known, "result": self._find(method, params[0])}
        return {**known, "error": {"code": -32601, "message": "the method does not exist"}}

    def _find(self, method: str, tx_hash: str) -> dict[str, Any] | None:
        receipt = self._receipts.get(tx_hash)
        if receipt is None:
            self.strange[method] += 1
            return None
        if method == "eth_getTransactionReceipt":
            return receipt
        names = ("blockHash", "blockNumber", "from", "to")
        return {"hash": tx_hash, "value": "0x0", **{name: receipt[name] for name in names}}

    def _head(self) -> int:
        return START_BLOCK + (int(time.time()) - self._started_s) // BLOCK_S

    def _block(self, name: str) -> dict[str, Any]:
        heights = {"latest": self._head(), "pending": self._head() + 1, "finalized": self._head() - 5}
        number = heights[name] if name in heights else int(name, 16)
        at_s = self._started_s + (number - START_BLOCK) * BLOCK_S
        return {
            "number": hex(number),
            "hash": _word(number),
            "timestamp": hex(at_s),
            "baseFeePerGas": hex(10**7),
        }
