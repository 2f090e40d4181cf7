"""Drives a test chain: sends, deploys, calls, mines, winds back. For the demo and the live tests.

Must never be used against a main network: it signs with whatever key it is handed and pays any fee.
"""

import asyncio
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
from eth_account import Account
from hexbytes import HexBytes

from tollway.chain.port import Log
from tollway.ids import Address, ChainId, TxHash
from tollway.sandbox.artifacts import Artifact, Contract

_DEADLINE_S = 10.0
_RECEIPT_POLL_S = 0.002
_FEE_MAX_WEI = 100 * 10**9
_TIP_WEI = 10**9
_CALL_GAS = 500_000
_CREATION_GAS = 5_000_000


class RpcRefused(Exception):
    """The node answered with an error, a revert included; `payload` is the revert data where it gave some."""

    def __init__(self, method: str, code: int, message: str, payload: bytes) -> None:
        super().__init__(f"{method}: {message} ({code})")
        self.code = code
        self.payload = payload


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedReceipt:
    """What became of a mined transaction. `contract` is set when it created one."""

    tx_hash: TxHash
    succeeded: bool
    sender: Address
    contract: Address | None
    block_number: int
    block_hash: bytes
    gas_used: int
    logs: tuple[Log, ...]


class ChainDriver:
    """A node's JSON-RPC and the few transactions that a practice ground needs.

    Transactions of one key are to be sent one after another: the nonce is asked from the node each time, unless the
    caller gives it. Every wait has a deadline (`TimeoutError`); an answer that is an error raises `RpcRefused`.
    """

    def __init__(self, session: aiohttp.ClientSession, rpc_url: str, chain_id: ChainId) -> None:
        self._session = session
        self._ids = itertools.count(1)
        self.rpc_url = rpc_url
        self.chain_id = chain_id

    async def rpc(self, method: str, *params: Any, deadline_s: float = _DEADLINE_S) -> Any:
        """One JSON-RPC request; its `result`."""
        request = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params}
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        async with self._session.post(self.rpc_url, json=request, timeout=timeout) as response:
            answer = await response.json()
        if (error := answer.get("error")) is not None:
            payload = error.get("data")
            raise RpcRefused(
                method,
                error["code"],
                error["message"],
                HexBytes(payload) if isinstance(payload, str) else b"",
            )
        return answer["result"]

    async def send_native(self, *, key: bytes, to: Address, value: int, gas: int = _CALL_GAS) -> TxHash:
        return await self.send(key=key, to=to, value=value, gas=gas)

    async def send_token(self, *, key: bytes, token: Contract, to: Address, amount: int) -> TxHash:
        return await self.transact(token, "transfer", to, amount, key=key)

    async def transact(
        self,
        contract: Contract,
        function: str,
        *arguments: Any,
        key: bytes,
        value: int = 0,
        gas: int = _CALL_GAS,
    ) -> TxHash:
        """Broadcasts a call of `function` (name, or signature where the name has several forms). Fails on chain, not
        here, when the contract reverts."""
        payload = contract.artifact.function(function).encode(arguments)
        return await self.send(key=key, to=contract.address, value=value, payload=payload, gas=gas)

    async def send(
        self,
        *,
        key: bytes,
        to: Address | None,
        value: int = 0,
        payload: bytes = b"",
        gas: int = _CALL_GAS,
        nonce: int | None = None,
    ) -> TxHash:
        """Signs and broadcasts; does not wait for the block. `to` None creates a contract."""
        raw, _ = await self.sign(key=key, to=to, value=value, payload=payload, gas=gas, nonce=nonce)
        return TxHash.parse(await self.rpc("eth_sendRawTransaction", "0x" + raw.hex()))

    async def sign(
        self,
        *,
        key: bytes,
        to: Address | None,
        value: int = 0,
        payload: bytes = b"",
        gas: int = _CALL_GAS,
        nonce: int | None = None,
    ) -> tuple[bytes, TxHash]:
        """A raw transaction and its hash, not yet sent."""
        account = Account.from_key(key)
        if nonce is None:
            nonce = int(await self.rpc("eth_getTransactionCount", account.address, "pending"), 16)
        fields: dict[str, Any] = {
            "type": 2,
            "chainId": self.chain_id,
            "nonce": nonce,
            "value": value,
            "data": payload,
            "gas": gas,
            "maxFeePerGas": _FEE_MAX_WEI,
            "maxPriorityFeePerGas": _TIP_WEI,
        }
        if to is not None:
            fields["to"] = str(to)
        signed = account.sign_transaction(fields)
        return bytes(signed.raw_transaction), TxHash(signed.hash)

    async def deploy(self, artifact: Artifact, *arguments: Any, key: bytes) -> Contract:
        """Creates a contract and waits until it stands."""
        payload = artifact.encode_creation(arguments)
        receipt = await self.wait_receipt(
            await self.send(key=key, to=None, payload=payload, gas=_CREATION_GAS)
        )
        if receipt.contract is None or not receipt.succeeded:
            raise RuntimeError(f"{artifact.name} was not created")
        return Contract(artifact=artifact, address=receipt.contract)

    async def call(self, contract: Contract, function: str, *arguments: Any) -> Any:
        """Reads by `eth_call` at the latest block."""
        entry = contract.artifact.function(function)
        request = {"to": str(contract.address), "data": "0x" + entry.encode(arguments).hex()}
        return entry.decode(HexBytes(await self.rpc("eth_call", request, "latest")))

    async def wait_receipt(self, tx_hash: TxHash, *, deadline_s: float = _DEADLINE_S) -> MinedReceipt:
        """Polls until the transaction is mined, and its block is the one that the node shows everywhere. Raises
        TimeoutError when it is not within the deadline."""
        deadline = time.monotonic() + deadline_s
        while True:
            raw = await self.rpc("eth_getTransactionReceipt", str(tx_hash))
            # A busy node shows a receipt a moment before the transaction is mined by its other answers.
            if raw is not None and await self._is_settled(tx_hash, raw["blockNumber"]):
                return _parse_receipt(raw)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{tx_hash} was not mined in time")
            await asyncio.sleep(_RECEIPT_POLL_S)

    async def _is_settled(self, tx_hash: TxHash, block_number: str) -> bool:
        transaction = await self.rpc("eth_getTransactionByHash", str(tx_hash))
        block = await self.rpc("eth_getBlockByNumber", block_number, False)
        return block is not None and transaction is not None and transaction["blockNumber"] == block_number

    async def fetch_native_balance(self, address: Address) -> int:
        return int(await self.rpc("eth_getBalance", str(address), "latest"), 16)

    async def mine(self, blocks: int = 1) -> None:
        await self.rpc("anvil_mine", hex(blocks))

    async def snapshot(self) -> str:
        """Remembers the whole state; `revert` goes back to it, once."""
        return str(await self.rpc("evm_snapshot"))

    async def revert(self, snapshot: str) -> None:
        if not await self.rpc("evm_revert", snapshot):
            raise LookupError(f"no snapshot {snapshot}")

    async def reorg(self, depth: int, transactions: Iterable[tuple[bytes, int]] = ()) -> None:
        """Replaces the last `depth` blocks by others of the same height. Their transactions are gone, except the raw
        ones given with the index of the new block (0 is the oldest) that mines them again."""
        pairs = [["0x" + raw.hex(), index] for raw, index in transactions]
        await self.rpc("anvil_reorg", depth, pairs)

    async def set_native_balance(self, address: Address, value: int) -> None:
        await self.rpc("anvil_setBalance", str(address), hex(value))

    async def set_code(self, address: Address, code: bytes) -> None:
        await self.rpc("anvil_setCode", str(address), "0x" + code.hex())


def _parse_receipt(raw: dict[str, Any]) -> MinedReceipt:
    created = raw.get("contractAddress")
    return MinedReceipt(
        tx_hash=TxHash.parse(raw["transactionHash"]),
        succeeded=int(raw["status"], 16) == 1,
        sender=Address.parse(raw["from"]),
        contract=Address.parse(created) if created else None,
        block_number=int(raw["blockNumber"], 16),
        block_hash=bytes(HexBytes(raw["blockHash"])),
        gas_used=int(raw["gasUsed"], 16),
        logs=tuple(_parse_logs(raw["logs"])),
    )


def _parse_logs(raws: Iterable[dict[str, Any]]) -> Iterable[Log]:
    for raw in raws:
        yield Log(
            address=Address.parse(raw["address"]),
            topics=tuple(bytes(HexBytes(topic)) for topic in raw["topics"]),
            payload=bytes(HexBytes(raw["data"])),
            removed=bool(raw.get("removed", False)),
        )
