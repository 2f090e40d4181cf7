"""`ChainReader` over real nodes: which node is asked, in which order, and when their word is enough.

Bare JSON-RPC batches: a payment's facts in at most two round trips. It never guesses: a node that fails, lies about its
chain or contradicts itself is passed over for the next one, and when none is left the answer is `ChainUnavailable`,
never "not mined". Sending transactions is not its business.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import aiohttp

from tollway.chain.answers import (
    Block,
    Mined,
    Unmined,
    Unusable,
    parse_block,
    parse_bytes,
    parse_call,
    parse_finalized,
    parse_mined,
)
from tollway.chain.node import Node, WrongChain, open_session
from tollway.chain.reader import ChainFacts, ContractAnswer, NotMined
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.identifiers import Address, ChainId, TxHash, format_network
from tollway.limits import Limits

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEndpoints:
    """The nodes of one chain in order of preference. Raises ValueError, never naming a URL: they may hold keys.

    `agreement_min`: how many nodes must tell the same facts before they count (k of n). Head and finality may differ
    between honest nodes; the lowest is taken.
    """

    urls: tuple[str, ...] = field(repr=False)
    agreement_min: int = 1

    def __post_init__(self) -> None:
        for position, url in enumerate(self.urls, start=1):
            if not _is_http_url(url):
                raise ValueError(f"RPC URL {position} is not an absolute http(s) URL")
        if len(set(self.urls)) != len(self.urls):
            raise ValueError("an RPC URL is given twice")
        if not 1 <= self.agreement_min <= len(self.urls):
            raise ValueError("agreement needs at least one node and no more than there are")


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class RpcReader:
    """A `ChainReader`. Open it inside the loop that uses it: `async with RpcReader(...)`, or `open` and `close`.

    `on_request(method_count)` is told of every HTTP round trip as it starts. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        chains: Mapping[ChainId, ChainEndpoints],
        *,
        limits: Limits,
        on_request: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._agreement_min = {chain_id: chain.agreement_min for chain_id, chain in chains.items()}
        self._nodes = {
            chain_id: tuple(
                Node(
                    url,
                    chain_id=chain_id,
                    position=position,
                    limits=limits,
                    clock=clock,
                    on_request=on_request,
                )
                for position, url in enumerate(chain.urls, start=1)
            )
            for chain_id, chain in chains.items()
        }

    async def open(self) -> None:
        if self._session is None:
            self._session = open_session()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def chain_ids(self) -> tuple[ChainId, ...]:
        return tuple(self._nodes)

    async def fetch_facts(self, chain_id: ChainId, tx_hash: TxHash) -> ChainFacts | NotMined:
        """The first `agreement_min` nodes that tell the same facts decide; one is enough by default.

        A node may lag behind its siblings, so "not mined" counts only when every node says so that can be reached. A
        node that failed within the last seconds is not waited for in that case.
        """

        async def read(node: Node) -> ChainFacts | NotMined:
            return await self._read_facts(node, chain_id, tx_hash)

        needed = self._agreement_min.get(chain_id, 1)
        told: list[ChainFacts] = []
        unseen: list[NotMined] = []
        failures: list[str] = []
        for node in self._in_order(chain_id):
            if len(unseen) >= needed and not told and node.is_last_choice:
                continue
            match await self._try(node, read, failures=failures, deadline_s=self._limits.rpc_deadline_s):
                case ChainFacts() as facts:
                    told.append(facts)
                    agreed = _find_agreement(told, needed)
                    if agreed is not None:
                        return agreed
                case NotMined() as answer:
                    unseen.append(answer)
        if not told and len(unseen) >= needed:
            return NotMined(chain_id=chain_id, is_pending=any(answer.is_pending for answer in unseen))
        if told:
            failures.append(f"{len(told)} of the nodes know the transaction, {needed} must agree on it")
        raise _unavailable(chain_id, failures)

    async def _read_facts(self, node: Node, chain_id: ChainId, tx_hash: TxHash) -> ChainFacts | NotMined:
        receipt, transaction, latest, finalized = await node.ask(
            self._open_session,
            [
                ("eth_getTransactionReceipt", [str(tx_hash)]),
                ("eth_getTransactionByHash", [str(tx_hash)]),
                ("eth_getBlockByNumber", ["latest", False]),
                ("eth_getBlockByNumber", ["finalized", False]),
            ],
        )
        head = parse_block(latest)
        finalized_number = parse_finalized(finalized, head=head)
        mined = parse_mined(receipt, transaction, tx_hash=tx_hash)
        if isinstance(mined, Unmined):
            return NotMined(chain_id=chain_id, is_pending=mined.is_pending)
        block = head
        if head.number != mined.block_number:
            (canonical,) = await node.ask(
                self._open_session, [("eth_getBlockByNumber", [hex(mined.block_number), False])]
            )
            block = parse_block(canonical)
        if block.number != mined.block_number:
            raise Unusable("the block is not the one that was asked for")
        # The block may have arrived after the head was read; it is then the head itself.
        if block.number > head.number:
            head = block
        return _assemble(chain_id, tx_hash, mined, block=block, head=head, finalized_number=finalized_number)

    async def call_contract(
        self,
        chain_id: ChainId,
        *,
        to: Address | None,
        calldata: bytes,
        gas: int,
        bytes_max: int,
        deadline_s: float,
    ) -> ContractAnswer:
        """The first usable node decides. Whatever the contract does wrong is `reverted`, out of gas included."""
        call: dict[str, object] = {"data": "0x" + calldata.hex(), "gas": hex(gas)}
        if to is not None:
            call["to"] = str(to)

        async def read(node: Node) -> ContractAnswer:
            (answer,) = await node.ask(self._open_session, [("eth_call", [call, "latest"])])
            reverted, payload = parse_call(answer, bytes_max=bytes_max)
            return ContractAnswer(reverted=reverted, payload=payload)

        return await self._read_first(chain_id, read, deadline_s=deadline_s)

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        async def read(node: Node) -> int:
            (code,) = await node.ask(self._open_session, [("eth_getCode", [str(address), "latest"])])
            return len(parse_bytes(code))

        return await self._read_first(chain_id, read, deadline_s=self._limits.rpc_deadline_s)

    async def check_chain(self, chain_id: ChainId) -> None:
        """Asks all nodes at once. Raises `ChainUnavailable` when fewer than `agreement_min` answer, and `ChainMismatch`
        when any of them serves another chain: that is a mistake in the settings which fail-over would hide.
        """
        failures: list[str] = []
        strays: list[str] = []

        async def check(node: Node) -> bool:
            try:
                async with node.attempt(self._limits.rpc_deadline_s):
                    await node.ask(self._open_session, [])
            except WrongChain as exc:
                strays.append(f"{node.label}: {exc}")
            except Unusable as exc:
                failures.append(f"{node.label}: {exc}")
            else:
                return True
            return False

        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(check(node)) for node in self._nodes.get(chain_id, ())]
        if strays:
            mismatch = ChainMismatch(f"a node of {format_network(chain_id)} serves another chain")
            for stray in strays:
                mismatch.add_note(stray)
            raise mismatch
        if sum(task.result() for task in checks) < self._agreement_min.get(chain_id, 1):
            raise _unavailable(chain_id, failures)

    async def _read_first(
        self, chain_id: ChainId, read: Callable[[Node], Awaitable[T]], *, deadline_s: float
    ) -> T:
        failures: list[str] = []
        for node in self._in_order(chain_id):
            answer = await self._try(node, read, failures=failures, deadline_s=deadline_s)
            if answer is not None:
                return answer
        raise _unavailable(chain_id, failures)

    async def _try(
        self,
        node: Node,
        read: Callable[[Node], Awaitable[T]],
        *,
        failures: list[str],
        deadline_s: float,
    ) -> T | None:
        """None when the node's answer cannot be used; the reason joins `failures`."""
        try:
            async with node.attempt(deadline_s):
                return await read(node)
        except Unusable as exc:
            failures.append(f"{node.label}: {exc}")
            return None

    def _in_order(self, chain_id: ChainId) -> list[Node]:
        return sorted(self._nodes.get(chain_id, ()), key=lambda node: node.is_last_choice)

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the reader is not open"
        return self._session


def _assemble(
    chain_id: ChainId, tx_hash: TxHash, mined: Mined, *, block: Block, head: Block, finalized_number: int
) -> ChainFacts:
    return ChainFacts(
        chain_id=chain_id,
        tx_hash=tx_hash,
        succeeded=mined.succeeded,
        sender=mined.sender,
        recipient=mined.recipient,
        value=mined.value,
        logs=mined.logs,
        block_number=mined.block_number,
        block_hash=mined.block_hash,
        block_time=block.time,
        canonical_hash=block.block_hash,
        head_number=head.number,
        head_time=head.time,
        finalized_number=finalized_number,
    )


def _find_agreement(told: list[ChainFacts], needed: int) -> ChainFacts | None:
    """The facts that the newest answer shares with enough others, seen from the most cautious of them."""
    alike = [facts for facts in told if _strip_progress(facts) == _strip_progress(told[-1])]
    if len(alike) < needed:
        return None
    slowest = min(alike, key=lambda facts: facts.head_number)
    return replace(slowest, finalized_number=min(facts.finalized_number for facts in alike))


def _strip_progress(facts: ChainFacts) -> ChainFacts:
    """Without what honest nodes may differ in."""
    return replace(facts, head_number=0, head_time=0, finalized_number=0)


def _unavailable(chain_id: ChainId, failures: list[str]) -> ChainUnavailable:
    """The detail is public, so the nodes' names and faults go into notes, which only the operator's log shows."""
    exc = ChainUnavailable(f"no node of {format_network(chain_id)} gave a usable answer")
    for failure in failures or ["no node is configured"]:
        exc.add_note(failure)
    return exc
