"""A chain node that has a few payments and nothing else, and counts its requests. Its blocks follow the clock."""

import time
from collections import Counter, defaultdict
from typing import Any

from aiohttp import web

from tests.kit.scripted_node import ScriptedNode, word
from tollway.ids import Address, TxHash, keccak256

CHAIN_ID = 8453
BLOCK_S = 2
START_BLOCK = 1_000
_TRANSFER = keccak256(b"Transfer(address,address,uint256)")
_UNKNOWN = {"!error": {"code": -32601, "message": "the method does not exist"}}


class CountingNode(ScriptedNode):
    """`methods`: the number of requests by method; `strange`: of those for an unknown transaction."""

    def __init__(self, token: Address) -> None:
        super().__init__()
        self.methods: Counter[str] = Counter()
        self.strange: Counter[str] = Counter()
        self._token = token
        self._started_s = int(time.time()) - 60
        self._receipts: dict[str, dict[str, Any]] = {}
        self.answers = defaultdict(
            lambda: _UNKNOWN,
            {
                "eth_chainId": hex(CHAIN_ID),
                "eth_blockNumber": lambda params: hex(self._head()),
                "eth_getBlockByNumber": lambda params: self._block(params[0]),
                "eth_getTransactionReceipt": lambda params: self._find(
                    "eth_getTransactionReceipt", params[0]
                ),
                "eth_getTransactionByHash": lambda params: self._find("eth_getTransactionByHash", params[0]),
            },
        )

    def note(self, methods: list[str]) -> None:
        self.methods.update(methods)

    async def run(self, port: int) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(self.serve, access_log=None), handle_signals=False)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    def pay(self, tx_hash: TxHash, *, payer: Address, payee: Address, base_units: int) -> None:
        """A transfer in the newest block."""
        number = self._head()
        place = {"blockHash": word(number), "blockNumber": hex(number)}
        log = {
            "address": str(self._token),
            "topics": ["0x" + _TRANSFER.hex(), "0x" + payer.hex().zfill(64), "0x" + payee.hex().zfill(64)],
            "data": word(base_units),
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
            "hash": word(number),
            "timestamp": hex(at_s),
            "baseFeePerGas": hex(10**7),
        }
