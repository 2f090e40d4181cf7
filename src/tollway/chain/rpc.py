"""The adapter of `ChainReader`, `SettlementChain` and `WatchedChain` for real nodes: reads nodes and combines their responses.

Bare JSON-RPC batches: the facts of a payment take at most two round trips, those of an authorisation one. An unclear result is
`ChainUnavailable`, never "not mined" and never "not sent". The adapter signs nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import aiohttp

from tollway.chain.nodes import NodeObserver, NodePool, NodeStatus, RpcNode, open_session
from tollway.chain.port import (
    AccountFacts,
    AuthorizationFacts,
    BlockHashes,
    ChainFacts,
    ChainTip,
    ContractResult,
    Disputed,
    EscrowFacts,
    Fees,
    NotMined,
    Quorum,
    SendRefused,
)
from tollway.chain.requests import (
    read_account,
    read_authorization,
    read_authorization_ends,
    read_block_hashes,
    read_call,
    read_changed_channels,
    read_channel,
    read_code_size,
    read_fees,
    read_head,
    read_receipts,
    read_tip,
    submit_transaction,
)
from tollway.chain.responses import BlockVotes, TransactionVotes, Votes
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, ChannelId, TxHash
from tollway.limits import Limits

K = TypeVar("K")
R = TypeVar("R")

_RECEIPTS_PER_BATCH_MAX = 40
"""Many nodes accept a hundred calls per batch; a receipt needs two."""
_BLOCKS_PER_BATCH_MAX = 20
"""A block without transactions still lists their hashes: about ten kilobytes, and a megabyte on the busiest chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEndpoints:
    """The nodes of one chain in order of preference. Raises ValueError without a URL in its text: a URL may hold a key.

    `agreement_min`: how many nodes must return the same facts (k of n). Head and finality may differ between honest nodes; the
    lowest value counts. `is_by_value`: small values need one node only (`Quorum.ONE`), so the network stays in use when one node is
    left.
    """

    urls: tuple[str, ...] = field(repr=False)
    agreement_min: int = 1
    is_by_value: bool = False

    def __post_init__(self) -> None:
        for position, url in enumerate(self.urls, start=1):
            if not _is_http_url(url):
                raise ValueError(f"RPC URL {position} is not an absolute http(s) URL")
        if len(set(self.urls)) != len(self.urls):
            raise ValueError("an RPC URL is listed twice")
        if not 1 <= self.agreement_min <= len(self.urls):
            raise ValueError("agreement needs at least one node and at most the number of RPC URLs")


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class RpcReader:
    """A `WatchedChain`. `open` and `close` (or `async with`) run in the event loop that uses it.

    `on_request(method_count)` is called at the start of every HTTP round trip; `observer` gets the outcome of each batch. `clock`:
    monotonic seconds.
    """

    def __init__(
        self,
        chains: Mapping[ChainId, ChainEndpoints],
        *,
        limits: Limits,
        on_request: Callable[[int], None] | None = None,
        observer: NodeObserver | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None

        def make_pool(chain_id: ChainId, chain: ChainEndpoints) -> NodePool:
            nodes = [
                RpcNode(
                    url,
                    chain_id=chain_id,
                    position=position,
                    limits=limits,
                    clock=clock,
                    on_request=on_request,
                    observer=observer,
                )
                for position, url in enumerate(chain.urls, start=1)
            ]
            return NodePool(chain_id, nodes, agreement_min=chain.agreement_min, is_by_value=chain.is_by_value)

        self._pools = {chain_id: make_pool(chain_id, chain) for chain_id, chain in chains.items()}

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
        return tuple(self._pools)

    async def fetch_facts(
        self, chain_id: ChainId, tx_hash: TxHash, *, quorum: Quorum = Quorum.AGREED
    ) -> ChainFacts | NotMined:
        """The facts on which as many nodes as `quorum` needs agree first."""
        return (await self._fetch_batch(chain_id, (tx_hash,), quorum))[tx_hash]

    async def fetch_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], *, quorum: Quorum = Quorum.AGREED
    ) -> dict[TxHash, ChainFacts | NotMined]:
        found: dict[TxHash, ChainFacts | NotMined] = {}
        for start in range(0, len(tx_hashes), _RECEIPTS_PER_BATCH_MAX):
            try:
                batch = tx_hashes[start : start + _RECEIPTS_PER_BATCH_MAX]
                found |= await self._fetch_batch(chain_id, batch, quorum)
            except ChainUnavailable:
                if not found:
                    raise
                break
        return found

    async def _fetch_batch(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], quorum: Quorum
    ) -> dict[TxHash, ChainFacts | NotMined]:
        """The results are never empty."""
        failures: list[str] = []
        votes_of = await self._collect_votes(chain_id, tx_hashes, quorum, failures)
        outcomes = {tx_hash: votes.outcome for tx_hash, votes in votes_of.items()}
        found = {tx_hash: outcome for tx_hash, outcome in outcomes.items() if outcome is not None}
        if not found:
            pool = self._pool(chain_id)
            if reports := max(len(votes.reports) for votes in votes_of.values()):
                needed = pool.count_needed(quorum)
                failures.append(f"{reports} of the nodes have the transaction, {needed} must agree on it")
            raise pool.unavailable(
                failures, is_disputed=any(votes.is_disputed for votes in votes_of.values())
            )
        return found

    async def _collect_votes(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], quorum: Quorum, failures: list[str]
    ) -> dict[TxHash, TransactionVotes]:
        needed = self._pool(chain_id).count_needed(quorum)
        votes_of = {
            tx_hash: TransactionVotes(chain_id=chain_id, needed=needed)
            for tx_hash in dict.fromkeys(tx_hashes)
        }
        await self._collect(
            chain_id,
            votes_of,
            lambda undecided, node: read_receipts(node, self._open_session, chain_id, undecided),
            failures,
        )
        return votes_of

    async def _collect(
        self,
        chain_id: ChainId,
        votes_of: Mapping[K, Votes[R]],
        read: Callable[[Sequence[K], RpcNode], Awaitable[Mapping[K, R]]],
        failures: list[str],
    ) -> None:
        """Reads from each node only what the nodes before it left open."""
        pool = self._pool(chain_id)
        reported: list[tuple[RpcNode, K, R]] = []
        for node in pool.in_order:
            undecided = [
                key
                for key, votes in votes_of.items()
                if votes.needs_another_node(is_deferred=node.is_deferred)
            ]
            if not undecided:
                continue
            reports = await pool.attempt(
                node,
                partial(read, undecided),
                failures=failures,
                deadline_s=self._limits.rpc_deadline_s,
            )
            for key, report in (reports or {}).items():
                votes_of[key].add(report)
                reported.append((node, key, report))
        for node, key, report in reported if len(pool.in_order) > 1 else ():
            if votes_of[key].is_contradicted_by(report):
                node.note_disagreement()

    async def review_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash]
    ) -> dict[TxHash, ChainFacts | NotMined | Disputed]:
        found: dict[TxHash, ChainFacts | NotMined | Disputed] = {}
        failures: list[str] = []
        for start in range(0, len(tx_hashes), _RECEIPTS_PER_BATCH_MAX):
            batch = tx_hashes[start : start + _RECEIPTS_PER_BATCH_MAX]
            votes_of = await self._collect_votes(chain_id, batch, Quorum.AGREED, failures)
            outcomes = {
                tx_hash: Disputed() if votes.is_disputed else votes.outcome
                for tx_hash, votes in votes_of.items()
            }
            reports = {tx_hash: outcome for tx_hash, outcome in outcomes.items() if outcome is not None}
            if not reports:
                break  # no node responds: every further batch would wait for its deadline
            found |= reports
        if tx_hashes and not found:
            raise self._pool(chain_id).unavailable(failures)
        return found

    async def fetch_tip(self, chain_id: ChainId) -> ChainTip:
        """The lowest head and final block of the nodes, and their latest time: honest nodes may differ in all."""
        read = partial(read_tip, session=self._open_session)
        reports = await self._pool(chain_id).read_agreeing(
            read, compared=lambda tip: None, quorum=Quorum.AGREED, deadline_s=self._limits.rpc_deadline_s
        )
        final = [tip.finalized_number for tip in reports if tip.finalized_number is not None]
        return ChainTip(
            head_number=min(tip.head_number for tip in reports),
            head_time=max(tip.head_time for tip in reports),
            finalized_number=min(final) if len(final) == len(reports) else None,
        )

    async def fetch_block_hashes(self, chain_id: ChainId, numbers: Sequence[int]) -> BlockHashes:
        known: dict[int, bytes | None] = {}
        disputed: set[int] = set()
        failures: list[str] = []
        heights = sorted(set(numbers))
        for start in range(0, len(heights), _BLOCKS_PER_BATCH_MAX):
            batch = heights[start : start + _BLOCKS_PER_BATCH_MAX]
            votes_of = await self._collect_block_votes(chain_id, batch, failures)
            reports = {
                number: votes.agreed for number, votes in votes_of.items() if votes.agreed or votes.is_missing
            }
            doubts = {number for number, votes in votes_of.items() if votes.is_disputed}
            if not reports and not doubts:
                break  # no node responds: every further batch would wait for its deadline
            known |= reports
            disputed |= doubts
        if heights and not known and not disputed:
            raise self._pool(chain_id).unavailable(failures)
        return BlockHashes(known=known, disputed=frozenset(disputed))

    async def _collect_block_votes(
        self, chain_id: ChainId, numbers: Sequence[int], failures: list[str]
    ) -> dict[int, BlockVotes]:
        needed = self._pool(chain_id).count_needed(Quorum.AGREED)
        votes_of = {number: BlockVotes(needed=needed) for number in numbers}
        await self._collect(
            chain_id,
            votes_of,
            lambda undecided, node: read_block_hashes(node, self._open_session, undecided),
            failures,
        )
        return votes_of

    async def fetch_changed_channels(
        self, chain_id: ChainId, *, from_block: int, to_block: int
    ) -> frozenset[ChannelId]:
        """The union of the required nodes: one that hides a withdrawal must not suffice."""
        read = partial(
            read_changed_channels, session=self._open_session, from_block=from_block, to_block=to_block
        )
        reports = await self._pool(chain_id).read_agreeing(
            read,
            compared=lambda changed: None,
            quorum=Quorum.AGREED,
            deadline_s=self._limits.rpc_deadline_s,
        )
        return frozenset().union(*reports)

    async def call_contract(
        self,
        chain_id: ChainId,
        *,
        to: Address | None,
        calldata: bytes,
        gas: int,
        bytes_max: int,
        deadline_s: float,
    ) -> ContractResult:
        """The result on which the nodes agree. The value is unknown yet, and a false result would let another caller spend a wallet's
        credit, so one node is never enough. Every failure of the contract is `reverted`, also out of gas."""
        read = partial(
            read_call, session=self._open_session, to=to, calldata=calldata, gas=gas, bytes_max=bytes_max
        )
        pool = self._pool(chain_id)
        agreeing = await pool.read_agreeing(
            read,
            compared=lambda result: None if result.reverted else result.payload,
            quorum=Quorum.AGREED,
            deadline_s=deadline_s,
        )
        return agreeing[0]

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        read = partial(read_code_size, session=self._open_session, address=address)
        return await self._pool(chain_id).read_first(read, deadline_s=self._limits.rpc_deadline_s)

    def list_nodes(self, chain_id: ChainId) -> tuple[NodeStatus, ...]:
        """Reads the last status, without a request. Returns nothing for an unknown network."""
        return self._pool(chain_id).statuses

    async def check_chain(self, chain_id: ChainId) -> None:
        async def read(node: RpcNode) -> None:
            await read_head(node, self._open_session)

        await self._pool(chain_id).check(read, deadline_s=self._limits.rpc_deadline_s)

    async def fetch_authorization(
        self,
        chain_id: ChainId,
        *,
        token: Address,
        payer: Address,
        nonce: bytes,
        sender: Address,
        calldata: bytes,
        gas: int,
        to: Address | None = None,
        valid_after: int = 0,
        quorum: Quorum = Quorum.AGREED,
    ) -> AuthorizationFacts:
        """As many nodes as `quorum` needs must agree on the payer and the transfer. The lowest head and the highest gas estimate of
        them count."""
        read = partial(
            read_authorization,
            session=self._open_session,
            chain_id=chain_id,
            token=token,
            payer=payer,
            nonce=nonce,
            sender=sender,
            to=to or token,
            calldata=calldata,
            gas=gas,
            valid_after=valid_after,
            bytes_max=self._limits.erc1271_bytes_max,
        )

        def compared(facts: AuthorizationFacts) -> object:
            return (
                facts.code_hash,
                facts.balance,
                facts.is_used,
                facts.simulation.reverted,
                facts.gas_estimate is None,
            )

        agreeing = await self._pool(chain_id).read_agreeing(
            read, compared=compared, quorum=quorum, deadline_s=self._limits.rpc_deadline_s
        )
        slowest = min(agreeing, key=attrgetter("head_number"))
        gas_estimates = [facts.gas_estimate for facts in agreeing if facts.gas_estimate is not None]
        gas_estimate = max(gas_estimates, default=None)
        return (
            slowest if slowest.gas_estimate == gas_estimate else replace(slowest, gas_estimate=gas_estimate)
        )

    async def find_authorization_use(
        self,
        chain_id: ChainId,
        *,
        token: Address,
        payer: Address,
        nonce: bytes,
        from_block: int,
        quorum: Quorum = Quorum.AGREED,
    ) -> TxHash | None:
        """The result of the first node that has a transaction; its receipt decides what it did. None counts like "not mined": only
        when every reachable node reports it."""
        pool = self._pool(chain_id)
        needed = pool.count_needed(quorum)

        read = partial(
            read_authorization_ends,
            session=self._open_session,
            token=token,
            payer=payer,
            nonce=nonce,
            from_block=from_block,
        )
        failures: list[str] = []
        unseen = 0
        for node in pool.in_order:
            if unseen >= needed and node.is_deferred:
                continue
            found = await pool.attempt(node, read, failures=failures, deadline_s=self._limits.rpc_deadline_s)
            if found:
                return found[-1]
            unseen += found is not None
        if unseen < needed:
            raise pool.unavailable(failures)
        return None

    async def fetch_channel(
        self,
        chain_id: ChainId,
        channel: ChannelId,
        *,
        confirmations: int = 1,
        quorum: Quorum = Quorum.AGREED,
    ) -> EscrowFacts:
        """As many nodes as `quorum` needs must agree on the state. The lowest head of them counts."""
        read = partial(
            read_channel,
            session=self._open_session,
            chain_id=chain_id,
            channel=channel,
            confirmations=confirmations,
        )
        agreeing = await self._pool(chain_id).read_agreeing(
            read,
            compared=lambda facts: (facts.state, facts.confirmed_balance),
            quorum=quorum,
            deadline_s=self._limits.rpc_deadline_s,
        )
        return min(agreeing, key=lambda facts: facts.head_number)

    async def fetch_fees(self, chain_id: ChainId) -> Fees:
        """The fees of the first usable node. The settlement caps them by the operator's maximum, because one node may report too much."""
        read = partial(read_fees, session=self._open_session, chain_id=chain_id)
        return await self._pool(chain_id).read_first(read, deadline_s=self._limits.rpc_deadline_s)

    async def fetch_account(self, chain_id: ChainId, address: Address) -> AccountFacts:
        """The lowest values of as many nodes as the smallest payment needs: nodes may have different heads."""
        read = partial(read_account, session=self._open_session, address=address)
        pool = self._pool(chain_id)
        reports = await pool.read_agreeing(
            read,
            compared=lambda account: None,
            quorum=pool.least_quorum,
            deadline_s=self._limits.rpc_deadline_s,
        )
        return AccountFacts(
            balance_wei=min(account.balance_wei for account in reports),
            mined_nonce=min(account.mined_nonce for account in reports),
        )

    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        pool = self._pool(chain_id)
        refusals: list[SendRefused] = []
        failures: list[str] = []
        for node in pool.in_order:
            outcome = await self._submit(pool, node, raw, failures)
            if outcome is True:
                return None
            if isinstance(outcome, SendRefused):
                refusals.append(outcome)
        if not refusals:
            raise pool.unavailable(failures)
        return refusals[0]

    async def resend_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        pool = self._pool(chain_id)
        failures: list[str] = []
        outcomes = await asyncio.gather(*(self._submit(pool, node, raw, failures) for node in pool.in_order))
        if True in outcomes:
            return None
        refusal = next((outcome for outcome in outcomes if isinstance(outcome, SendRefused)), None)
        if refusal is None:
            raise pool.unavailable(failures)
        return refusal

    async def _submit(
        self, pool: NodePool, node: RpcNode, raw: bytes, failures: list[str]
    ) -> SendRefused | bool | None:
        """Sends a transaction to one node. True: the node has it. None: its response was not clear."""

        async def submit(node: RpcNode) -> SendRefused | bool:
            return await submit_transaction(node, self._open_session, raw) or True

        return await pool.attempt(node, submit, failures=failures, deadline_s=self._limits.rpc_deadline_s)

    def _pool(self, chain_id: ChainId) -> NodePool:
        return self._pools.get(chain_id) or NodePool(chain_id, ())

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the reader is not open"
        return self._session
