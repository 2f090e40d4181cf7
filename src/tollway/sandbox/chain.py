"""A test chain for the demo and the live tests: the anvil binary as a child of this process, a driver of its JSON-RPC, compiled contracts, a test
dollar and funded wallets.

It must never listen beyond loopback, leave a process or a file behind, or end a process that it did not start. It must never be used with a main
network: it signs with every key and pays every fee. Its keys are made for one chain. It compiles nothing: an artifact is a file of the package, and a
test compares it with its source.
"""

import asyncio
import ctypes
import itertools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any, Self

import aiohttp
import coincurve

from tollway.chain.channel_contract import DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT
from tollway.chain.port import Log
from tollway.chain.signer import derive_address, sign_transaction
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.money import Asset, TokenDomain
from tollway.sandbox.anvil_binary import AnvilUnavailable, find_anvil


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of a contract. `signature`: its canonical text, such as `transfer(address,uint256)`."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def signature(self) -> str:
        return f"{self.name}({','.join(self.inputs)})"

    def encode(self, arguments: Iterable[Any]) -> bytes:
        """Selector and arguments, as calldata. Raises ValueError or TypeError on arguments of the wrong type."""
        return keccak256(self.signature.encode())[:4] + encode_values(self.inputs, list(arguments))

    def decode(self, answer: bytes) -> Any:
        """A single output as itself, several as a tuple, none as None. Raises ValueError for other data."""
        values = decode_values(self.outputs, answer)
        return values[0] if len(values) == 1 else values or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A compiled contract. `creation_code` deploys it; `runtime_code` is then the code at its address."""

    name: str
    functions: tuple[Function, ...]
    constructor_inputs: tuple[str, ...]
    creation_code: bytes
    runtime_code: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises KeyError or ValueError when `text` is not an artifact of this package."""
        raw = json.loads(text)
        entries = raw["abi"]
        return cls(
            name=raw["contractName"],
            functions=tuple(
                Function(name=e["name"], inputs=_read_types(e["inputs"]), outputs=_read_types(e["outputs"]))
                for e in entries
                if e["type"] == "function"
            ),
            constructor_inputs=next(
                (_read_types(e["inputs"]) for e in entries if e["type"] == "constructor"), ()
            ),
            creation_code=bytes.fromhex(raw["bytecode"][2:]),
            runtime_code=bytes.fromhex(raw["deployedBytecode"][2:]),
        )

    def function(self, name: str) -> Function:
        """Finds a function by its name, or by its signature when functions share the name. Raises LookupError unless exactly one matches."""
        found = [f for f in self.functions if name in (f.name, f.signature)]
        if len(found) != 1:
            raise LookupError(f"{self.name} has {len(found)} functions called {name}")
        return found[0]

    def encode_creation(self, arguments: Iterable[Any] = ()) -> bytes:
        return self.creation_code + encode_values(self.constructor_inputs, list(arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    artifact: Artifact
    address: Address


def load_artifact(path: Traversable) -> Artifact:
    return Artifact.parse(path.read_text(encoding="utf-8"))


def load_test_usdc() -> Artifact:
    """The test token: ERC-20 and EIP-3009, name `USDC`, version `2`, 6 decimals; every key can mint it."""
    return load_artifact(files("tollway.sandbox") / "contracts" / "TestUSDC.json")


def load_channel_contracts() -> tuple[Contract, Contract]:
    """Stand-ins for the settlement contract of payment channels and its deposit collector, at their public addresses."""
    folder = files("tollway.sandbox") / "contracts"
    return (
        Contract(artifact=load_artifact(folder / "TestBatchSettlement.json"), address=SETTLEMENT_CONTRACT),
        Contract(artifact=load_artifact(folder / "TestDepositCollector.json"), address=DEPOSIT_COLLECTOR),
    )


_WORD, _ADDRESS_BYTES = 32, 20
_SIZED = re.compile(r"(uint|bytes)([1-9][0-9]*)")


def encode_values(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """Contract ABI encoding of `uintN`, `bytesN`, `bool`, `address` (bytes or text), `bytes`, `string`, and arrays of them without
    a fixed length. Shorter values of `bytesN` are padded with zeros. Raises ValueError or TypeError for other values."""
    heads, tail = b"", b""
    for kind, value in zip(types, values, strict=True):
        encoded = _encode(kind, value)
        if _is_dynamic(kind):
            heads += (_WORD * len(types) + len(tail)).to_bytes(_WORD, "big")
            tail += encoded
        else:
            heads += encoded
    return heads + tail


def decode_values(types: Sequence[str], payload: bytes) -> tuple[Any, ...]:
    """Decodes the values of `encode_values`, except arrays. Raises ValueError for a payload that is too short or has other types."""
    return tuple(_decode(kind, payload, _WORD * place) for place, kind in enumerate(types))


def _is_dynamic(kind: str) -> bool:
    return kind in ("bytes", "string") or kind.endswith("[]")


def _encode(kind: str, value: Any) -> bytes:
    if kind.endswith("[]"):
        return len(value).to_bytes(_WORD, "big") + encode_values([kind[:-2]] * len(value), value)
    if kind in ("bytes", "string"):
        raw = value.encode() if kind == "string" else bytes(value)
        return len(raw).to_bytes(_WORD, "big") + raw + bytes(-len(raw) % _WORD)
    if kind == "address":
        address = value if isinstance(value, bytes) else Address.parse(value)
        if len(address) != _ADDRESS_BYTES:
            raise ValueError("an address has 20 bytes")
        return address.rjust(_WORD, b"\0")
    if kind == "bool":
        return bool(value).to_bytes(_WORD, "big")
    name, size = _parse_sized(kind)
    if name == "bytes":
        if len(value) > size:
            raise ValueError(f"{len(value)} bytes do not fit into {kind}")
        return bytes(value).ljust(_WORD, b"\0")
    if not 0 <= value < 1 << size:
        raise ValueError(f"{value} does not fit into {kind}")
    return int(value).to_bytes(_WORD, "big")


def _decode(kind: str, payload: bytes, start: int) -> Any:
    word = _slice(payload, start, _WORD)
    number = int.from_bytes(word, "big")
    if kind in ("bytes", "string"):
        length = int.from_bytes(_slice(payload, number, _WORD), "big")
        raw = _slice(payload, number + _WORD, length)
        return raw.decode() if kind == "string" else raw
    if kind == "address":
        if any(word[:-_ADDRESS_BYTES]):
            raise ValueError("an address has 20 bytes")
        return str(Address(word[-_ADDRESS_BYTES:]))
    if kind == "bool":
        if number > 1:
            raise ValueError("a bool is 0 or 1")
        return number == 1
    name, size = _parse_sized(kind)
    if name == "bytes":
        if any(word[size:]):
            raise ValueError(f"more bytes than {kind} has")
        return word[:size]
    if number >> size:
        raise ValueError(f"{number} does not fit into {kind}")
    return number


def _slice(payload: bytes, start: int, length: int) -> bytes:
    if start + length > len(payload):
        raise ValueError("the answer is shorter than it says")
    return payload[start : start + length]


def _parse_sized(kind: str) -> tuple[str, int]:
    """`uint` and its bits, or `bytes` and their number."""
    found = _SIZED.fullmatch(kind)
    if found is None:
        raise ValueError(f"{kind} is not encoded here")
    return found[1], int(found[2])


def _read_types(parameters: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(parameter["type"] for parameter in parameters)


_DEADLINE_S = 10.0
_RECEIPT_POLL_S = 0.002
_FEE_MAX_WEI = 100 * 10**9
_TIP_WEI = 10**9
_CALL_GAS = 500_000
_CREATION_GAS = 5_000_000


class RpcRefused(Exception):
    """The node returned an error, which may be a revert; `payload` is its revert data, empty without any."""

    def __init__(self, method: str, code: int, message: str, payload: bytes) -> None:
        super().__init__(f"{method}: {message} ({code})")
        self.code = code
        self.payload = payload


@dataclass(frozen=True, slots=True, kw_only=True)
class MinedReceipt:
    """`contract`: of a transaction that created one."""

    tx_hash: TxHash
    succeeded: bool
    sender: Address
    contract: Address | None
    block_number: int
    block_hash: bytes
    gas_used: int
    logs: tuple[Log, ...]


class ChainDriver:
    """A client of a node's JSON-RPC, with the transactions that a sandbox needs.

    Transactions of one key must be sent one after another: the driver asks the node for each nonce, unless the caller gives it. Every wait has a
    deadline (`TimeoutError`); an error response raises `RpcRefused`.
    """

    def __init__(self, session: aiohttp.ClientSession, rpc_url: str, chain_id: ChainId) -> None:
        self._session = session
        self._ids = itertools.count(1)
        self.rpc_url = rpc_url
        self.chain_id = chain_id

    async def rpc(self, method: str, *params: Any, deadline_s: float = _DEADLINE_S) -> Any:
        """Returns the `result` of the response."""
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
                _parse_hex(payload) if isinstance(payload, str) else b"",
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
        """Broadcasts a call of `function` (its name, or its signature when functions share the name). A revert shows in the receipt, not here."""
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
        """Signs and broadcasts a transaction without waiting for its block. `to` None creates a contract."""
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
        """Signs a transaction without sending it: its raw bytes and its hash."""
        signer = coincurve.PrivateKey(key)
        if nonce is None:
            address = str(derive_address(signer))
            nonce = int(await self.rpc("eth_getTransactionCount", address, "pending"), 16)
        signed = sign_transaction(
            signer,
            chain_id=self.chain_id,
            nonce=nonce,
            to=to,
            value=value,
            calldata=payload,
            gas=gas,
            max_fee_wei=_FEE_MAX_WEI,
            tip_wei=_TIP_WEI,
        )
        return signed.raw, signed.tx_hash

    async def deploy(self, artifact: Artifact, *arguments: Any, key: bytes) -> Contract:
        """Returns when the contract is mined."""
        payload = artifact.encode_creation(arguments)
        receipt = await self.wait_receipt(
            await self.send(key=key, to=None, payload=payload, gas=_CREATION_GAS)
        )
        if receipt.contract is None or not receipt.succeeded:
            raise RuntimeError(f"{artifact.name} was not created")
        return Contract(artifact=artifact, address=receipt.contract)

    async def call(self, contract: Contract, function: str, *arguments: Any) -> Any:
        """Sends `eth_call` at the latest block."""
        entry = contract.artifact.function(function)
        request = {"to": str(contract.address), "data": "0x" + entry.encode(arguments).hex()}
        return entry.decode(_parse_hex(await self.rpc("eth_call", request, "latest")))

    async def wait_receipt(self, tx_hash: TxHash, *, deadline_s: float = _DEADLINE_S) -> MinedReceipt:
        """Polls until the transaction is mined and all responses of the node agree on its block. Raises TimeoutError after the deadline."""
        deadline = time.monotonic() + deadline_s
        while True:
            raw = await self.rpc("eth_getTransactionReceipt", str(tx_hash))
            # A busy node returns a receipt shortly before its other responses have the transaction.
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
        """Saves the whole state; `revert` restores it once."""
        return str(await self.rpc("evm_snapshot"))

    async def revert(self, snapshot: str) -> None:
        if not await self.rpc("evm_revert", snapshot):
            raise LookupError(f"no snapshot {snapshot}")

    async def reorg(self, depth: int, transactions: Iterable[tuple[bytes, int]] = ()) -> None:
        """Replaces the last `depth` blocks by others of the same height. Their transactions are dropped, except the given raw ones: each is mined again in the new
        block with its index (0 is the oldest)."""
        pairs = [["0x" + raw.hex(), index] for raw, index in transactions]
        await self.rpc("anvil_reorg", depth, pairs)

    async def set_native_balance(self, address: Address, value: int) -> None:
        await self.rpc("anvil_setBalance", str(address), hex(value))

    async def set_code(self, address: Address, code: bytes) -> None:
        await self.rpc("anvil_setCode", str(address), "0x" + code.hex())


def _parse_hex(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _parse_receipt(raw: dict[str, Any]) -> MinedReceipt:
    created = raw.get("contractAddress")
    return MinedReceipt(
        tx_hash=TxHash.parse(raw["transactionHash"]),
        succeeded=int(raw["status"], 16) == 1,
        sender=Address.parse(raw["from"]),
        contract=Address.parse(created) if created else None,
        block_number=int(raw["blockNumber"], 16),
        block_hash=_parse_hex(raw["blockHash"]),
        gas_used=int(raw["gasUsed"], 16),
        logs=tuple(_parse_logs(raw["logs"])),
    )


def _parse_logs(raws: Iterable[dict[str, Any]]) -> Iterable[Log]:
    for raw in raws:
        yield Log(
            address=Address.parse(raw["address"]),
            topics=tuple(_parse_hex(topic) for topic in raw["topics"]),
            payload=_parse_hex(raw["data"]),
            removed=bool(raw.get("removed", False)),
        )


SANDBOX_CHAIN_ID = ChainId(84532)
"""The chain id of Base Sepolia: unmodified clients refuse unknown chains."""

_LISTENING = re.compile(rb"Listening on 127\.0\.0\.1:([0-9]+)")
_START_DEADLINE_S = 15.0
_STOP_DEADLINE_S = 3.0
_POLL_S = 0.005
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Anvil:
    rpc_url: str
    chain_id: ChainId
    pid: int


@asynccontextmanager
async def run_anvil(*, port: int = 0, chain_id: ChainId = SANDBOX_CHAIN_ID) -> AsyncIterator[Anvil]:
    """Starts anvil, waits until it responds, and stops it at the end. `port` 0 takes any free one.

    The finalized block is two below the head (an epoch has one slot), so that it moves within a test. The child is in the process group of this process; on
    Linux the kernel kills it when this process dies. Raises `AnvilUnavailable` without a binary, when the port is in use, or when anvil does not
    respond in time.
    """
    binary = find_anvil()
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(prefix="anvil-") as states:
        process = _spawn(binary, port=port, chain_id=chain_id, output=output, states=states)
        try:
            anvil = await _wait_until_ready(process, output, chain_id)
            yield anvil
        finally:
            await _stop(process)


def _spawn(
    binary: Path, *, port: int, chain_id: ChainId, output: IO[bytes], states: str
) -> subprocess.Popen[bytes]:
    """`states`: the folder of the states of old blocks. Without it they stay below the home of the user for good, gigabytes of a long run."""
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--chain-id", str(chain_id), "--accounts", "1"]
    arguments += ["--slots-in-an-epoch", "1", "--color", "never", "--cache-path", states]
    return subprocess.Popen(
        [str(binary), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_kill_with_parent(),  # two system calls; the library is loaded before the fork
    )


def _kill_with_parent() -> Callable[[], None] | None:
    """A function for the child before it becomes anvil: on Linux the kernel kills it when this process dies; None on other systems."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def set_death_signal() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died between fork and prctl
            os._exit(1)

    return set_death_signal


async def _wait_until_ready(process: subprocess.Popen[bytes], output: IO[bytes], chain_id: ChainId) -> Anvil:
    deadline = time.monotonic() + _START_DEADLINE_S
    while (port := _read_port(output)) is None:
        if process.poll() is not None:
            raise AnvilUnavailable(f"anvil stopped at once: {_last_line(output)}")
        if time.monotonic() > deadline:
            raise AnvilUnavailable(
                f"anvil did not start within {_START_DEADLINE_S:.0f} s; run the command again"
            )
        await asyncio.sleep(_POLL_S)
    rpc_url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession() as session:
        driver = ChainDriver(session, rpc_url, chain_id)
        served = int(await driver.rpc("eth_chainId"), 16)
        if served != chain_id:
            raise AnvilUnavailable(f"port {port} serves chain {served}, not {chain_id}")
        # Anvil would log each request to a file without a reader.
        await driver.rpc("anvil_setLoggingEnabled", False)
    return Anvil(rpc_url=rpc_url, chain_id=chain_id, pid=process.pid)


def _read_port(output: IO[bytes]) -> int | None:
    match = _LISTENING.search(os.pread(output.fileno(), 65_536, 0))
    return int(match[1]) if match else None


def _last_line(output: IO[bytes]) -> str:
    lines = os.pread(output.fileno(), 65_536, 0).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


async def _stop(process: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, and SIGKILL after a deadline. Reaps the child even when the stop is cancelled."""
    process.terminate()
    deadline = time.monotonic() + _STOP_DEADLINE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:  # noqa: ASYNC110 -- a process, not an event
            await asyncio.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=_STOP_DEADLINE_S)


USDC_ADDRESS = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")

ROLES = ("provider", "caller", "stranger", "gas")
START_ETH_WEI = 10 * 10**18
START_USDC_UNITS = 1_000 * 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class FundedAccount:
    """A funded wallet of the sandbox. `key` is its private key, 32 bytes."""

    role: str
    address: Address
    key: bytes = field(repr=False)

    @property
    def private_key(self) -> str:
        """The key in the form of wallets and of the sandbox file: `0x` + 64 hex digits."""
        return "0x" + self.key.hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Playground:
    """A chain with the sandbox's token and accounts. `token` is the contract; `usdc` and `native` are the assets of the ledger."""

    rpc_url: str
    token: Contract
    usdc: Asset
    native: Asset
    accounts: tuple[FundedAccount, ...]

    def account(self, role: str) -> FundedAccount:
        """Raises LookupError for a role without an account."""
        for account in self.accounts:
            if account.role == role:
                return account
        raise LookupError(f"no account with the role {role}")


def make_account(role: str) -> FundedAccount:
    key = secrets.token_bytes(32)
    return FundedAccount(role=role, address=derive_address(coincurve.PrivateKey(key)), key=key)


async def prepare_playground(driver: ChainDriver, *, roles: Iterable[str] = ROLES) -> Playground:
    """Deploys the token and the contracts of payment channels, gives each role a new wallet with 10 ETH and 1,000 USDC, and waits until all
    of it is mined."""
    token = Contract(artifact=load_test_usdc(), address=USDC_ADDRESS)
    for contract in (token, *load_channel_contracts()):
        await driver.set_code(contract.address, contract.artifact.runtime_code)
    accounts = tuple(make_account(role) for role in roles)
    await fund_accounts(driver, token, accounts)
    chain_id = driver.chain_id
    return Playground(
        rpc_url=driver.rpc_url,
        token=token,
        usdc=Asset(
            chain_id=chain_id,
            token=token.address,
            symbol="USDC",
            decimals=6,
            domain=TokenDomain(name="USDC", version="2"),
        ),
        native=Asset(chain_id=chain_id, token=None, symbol="ETH", decimals=18),
        accounts=accounts,
    )


async def fund_accounts(driver: ChainDriver, token: Contract, accounts: Iterable[FundedAccount]) -> None:
    """Gives each wallet 10 ETH and 1,000 USDC. A new key mints the dollars of each wallet, so that the nonce of the wallet stays at zero and all can be
    funded at once."""

    async def fund(account: FundedAccount) -> None:
        minter = keccak256(account.key)
        await driver.set_native_balance(account.address, START_ETH_WEI)
        await driver.set_native_balance(derive_address(coincurve.PrivateKey(minter)), START_ETH_WEI)
        minted = await driver.transact(token, "mint", account.address, START_USDC_UNITS, key=minter)
        receipt = await driver.wait_receipt(minted)
        if not receipt.succeeded:
            raise RuntimeError(f"the mint of test dollars for {account.address} failed")

    async with asyncio.TaskGroup() as group:
        for account in accounts:
            group.create_task(fund(account))
