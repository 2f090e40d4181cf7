"""`ChainReader`, `SettlementChain` and `WatchedChain` over real nodes: which questions are asked, and what their answers mean together.

Bare JSON-RPC batches: a payment's facts in at most two round trips, an authorisation's in one. It never guesses: what
no node says clearly is `ChainUnavailable`, never "not mined" and never "not sent". It signs nothing, and sends only what
it is handed.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp

from tollway.chain.node import Node, open_session
from tollway.chain.node_panel import NodePanel
from tollway.chain.questions import (
    offer_transaction,
    read_account,
    read_authorization,
    read_authorization_ends,
    read_block_hashes,
    read_call,
    read_code_size,
    read_fees,
    read_receipts,
    read_tip,
)
from tollway.chain.reader import (
    AccountFacts,
    AuthorizationFacts,
    BlockHashes,
    ChainFacts,
    ContractAnswer,
    Disputed,
    Fees,
    NotMined,
    SendRefused,
    Tip,
    Trust,
)
from tollway.chain.receipts import BlockTally, Tally
from tollway.errors import ChainUnavailable
from tollway.identifiers import Address, ChainId, TxHash
from tollway.limits import Limits

_RECEIPTS_PER_BATCH_MAX = 40
"""Many nodes take a hundred calls a batch; a receipt takes two."""
_BLOCKS_PER_BATCH_MAX = 20
"""A block without its transactions still names their hashes: some ten kilobytes, and a megabyte on the busiest chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEndpoints:
    """The nodes of one chain in order of preference. Raises ValueError, never naming a URL: they may hold keys.

    `agreement_min`: how many nodes must tell the same facts before they count (k of n). Head and finality may differ
    between honest nodes; the lowest is taken. `is_by_value`: only where the asker says so (`Trust`); a network whose
    small payments need one node stays in use when one node is left.
    """

    urls: tuple[str, ...] = field(repr=False)
    agreement_min: int = 1
    is_by_value: bool = False

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
    """A `WatchedChain`. Open it inside the loop that uses it: `async with RpcReader(...)`, or `open` and `close`.

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

        def make_panel(chain_id: ChainId, chain: ChainEndpoints) -> NodePanel:
            nodes = [
                Node(
                    url,
                    chain_id=chain_id,
                    position=position,
                    limits=limits,
                    clock=clock,
                    on_request=on_request,
                )
                for position, url in enumerate(chain.urls, start=1)
            ]
            return NodePanel(
                chain_id, nodes, agreement_min=chain.agreement_min, is_by_value=chain.is_by_value
            )

        self._panels = {chain_id: make_panel(chain_id, chain) for chain_id, chain in chains.items()}

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
        return tuple(self._panels)

    async def fetch_facts(
        self, chain_id: ChainId, tx_hash: TxHash, *, trust: Trust = Trust.AGREED
    ) -> ChainFacts | NotMined:
        """The first nodes that tell the same facts decide, as many as `trust` takes."""
        return (await self._fetch_batch(chain_id, (tx_hash,), trust))[tx_hash]

    async def fetch_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], *, trust: Trust = Trust.AGREED
    ) -> dict[TxHash, ChainFacts | NotMined]:
        found: dict[TxHash, ChainFacts | NotMined] = {}
        for start in range(0, len(tx_hashes), _RECEIPTS_PER_BATCH_MAX):
            try:
                batch = tx_hashes[start : start + _RECEIPTS_PER_BATCH_MAX]
                found |= await self._fetch_batch(chain_id, batch, trust)
            except ChainUnavailable:
                if not found:
                    raise
                break
        return found

    async def _fetch_batch(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], trust: Trust
    ) -> dict[TxHash, ChainFacts | NotMined]:
        """Never an empty answer."""
        failures: list[str] = []
        tallies = await self._tally_batch(chain_id, tx_hashes, trust, failures)
        outcomes = {tx_hash: tally.outcome for tx_hash, tally in tallies.items()}
        found = {tx_hash: outcome for tx_hash, outcome in outcomes.items() if outcome is not None}
        if not found:
            panel = self._panel(chain_id)
            if told := max(len(tally.told) for tally in tallies.values()):
                needed = panel.count_needed(trust)
                failures.append(f"{told} of the nodes know the transaction, {needed} must agree on it")
            raise panel.unavailable(
                failures, is_disputed=any(tally.is_disputed for tally in tallies.values())
            )
        return found

    async def _tally_batch(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], trust: Trust, failures: list[str]
    ) -> dict[TxHash, Tally]:
        """Each node is asked only about what its siblings left open."""
        panel = self._panel(chain_id)
        needed = panel.count_needed(trust)
        tallies = {tx_hash: Tally(chain_id=chain_id, needed=needed) for tx_hash in dict.fromkeys(tx_hashes)}
        for node in panel.in_order:
            asked = [
                tx_hash
                for tx_hash, tally in tallies.items()
                if tally.wants(is_last_choice=node.is_last_choice)
            ]
            if not asked:
                continue

            async def read(
                node: Node, asked: Sequence[TxHash] = asked
            ) -> dict[TxHash, ChainFacts | NotMined]:
                return await read_receipts(node, self._open_session, chain_id, asked)

            answers = await panel.attempt(
                node, read, failures=failures, deadline_s=self._limits.rpc_deadline_s
            )
            for tx_hash, answer in (answers or {}).items():
                tallies[tx_hash].add(answer)
        return tallies

    async def review_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash]
    ) -> dict[TxHash, ChainFacts | NotMined | Disputed]:
        found: dict[TxHash, ChainFacts | NotMined | Disputed] = {}
        failures: list[str] = []
        for start in range(0, len(tx_hashes), _RECEIPTS_PER_BATCH_MAX):
            batch = tx_hashes[start : start + _RECEIPTS_PER_BATCH_MAX]
            tallies = await self._tally_batch(chain_id, batch, Trust.AGREED, failures)
            outcomes = {
                tx_hash: Disputed() if tally.is_disputed else tally.outcome
                for tx_hash, tally in tallies.items()
            }
            told = {tx_hash: outcome for tx_hash, outcome in outcomes.items() if outcome is not None}
            if not told:
                break  # no node answers: the others would wait for the same
            found |= told
        if tx_hashes and not found:
            raise self._panel(chain_id).unavailable(failures)
        return found

    async def fetch_tip(self, chain_id: ChainId) -> Tip:
        """Honest nodes may differ in both; the lowest is taken."""

        async def read(node: Node) -> Tip:
            return await read_tip(node, self._open_session)

        told = await self._panel(chain_id).ask_alike(
            read, essence=lambda tip: None, trust=Trust.AGREED, deadline_s=self._limits.rpc_deadline_s
        )
        final = [tip.finalized_number for tip in told if tip.finalized_number is not None]
        return Tip(
            head_number=min(tip.head_number for tip in told),
            finalized_number=min(final) if len(final) == len(told) else None,
        )

    async def fetch_block_hashes(self, chain_id: ChainId, numbers: Sequence[int]) -> BlockHashes:
        known: dict[int, bytes | None] = {}
        disputed: set[int] = set()
        failures: list[str] = []
        heights = sorted(set(numbers))
        for start in range(0, len(heights), _BLOCKS_PER_BATCH_MAX):
            batch = heights[start : start + _BLOCKS_PER_BATCH_MAX]
            tallies = await self._tally_blocks(chain_id, batch, failures)
            told = {
                number: tally.agreed for number, tally in tallies.items() if tally.agreed or tally.is_missing
            }
            doubts = {number for number, tally in tallies.items() if tally.is_disputed}
            if not told and not doubts:
                break  # no node answers: the others would wait for the same
            known |= told
            disputed |= doubts
        if heights and not known and not disputed:
            raise self._panel(chain_id).unavailable(failures)
        return BlockHashes(known=known, disputed=frozenset(disputed))

    async def _tally_blocks(
        self, chain_id: ChainId, numbers: Sequence[int], failures: list[str]
    ) -> dict[int, BlockTally]:
        panel = self._panel(chain_id)
        tallies = {number: BlockTally(needed=panel.count_needed(Trust.AGREED)) for number in numbers}
        for node in panel.in_order:
            asked = [
                number for number, tally in tallies.items() if tally.wants(is_last_choice=node.is_last_choice)
            ]
            if not asked:
                continue

            async def read(node: Node, asked: Sequence[int] = asked) -> dict[int, bytes | None]:
                return await read_block_hashes(node, self._open_session, asked)

            answers = await panel.attempt(
                node, read, failures=failures, deadline_s=self._limits.rpc_deadline_s
            )
            for number, block_hash in (answers or {}).items():
                tallies[number].add(block_hash)
        return tallies

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
        """Nodes must agree, whatever the value: it is not known yet, and a lie would let a stranger spend a wallet's
        credit. Whatever the contract does wrong is `reverted`, out of gas included."""

        async def read(node: Node) -> ContractAnswer:
            return await read_call(
                node, self._open_session, to=to, calldata=calldata, gas=gas, bytes_max=bytes_max
            )

        panel = self._panel(chain_id)
        alike = await panel.ask_alike(
            read,
            essence=lambda answer: None if answer.reverted else answer.payload,
            trust=Trust.AGREED,
            deadline_s=deadline_s,
        )
        return alike[0]

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        async def read(node: Node) -> int:
            return await read_code_size(node, self._open_session, address)

        return await self._panel(chain_id).ask_first(read, deadline_s=self._limits.rpc_deadline_s)

    async def check_chain(self, chain_id: ChainId) -> None:
        async def read(node: Node) -> object:
            return await node.ask(self._open_session, [])

        await self._panel(chain_id).check(read, deadline_s=self._limits.rpc_deadline_s)

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
        valid_after: int = 0,
        trust: Trust = Trust.AGREED,
    ) -> AuthorizationFacts:
        """As many nodes as `trust` takes must say the same of the payer and of the transfer. Of head and gas the most
        cautious is taken."""

        async def read(node: Node) -> AuthorizationFacts:
            return await read_authorization(
                node,
                self._open_session,
                chain_id,
                token=token,
                payer=payer,
                nonce=nonce,
                sender=sender,
                calldata=calldata,
                gas=gas,
                valid_after=valid_after,
                bytes_max=self._limits.erc1271_bytes_max,
            )

        def essence(facts: AuthorizationFacts) -> object:
            return (
                facts.code_hash,
                facts.balance,
                facts.is_used,
                facts.simulation.reverted,
                facts.gas_estimate is None,
            )

        alike = await self._panel(chain_id).ask_alike(
            read, essence=essence, trust=trust, deadline_s=self._limits.rpc_deadline_s
        )
        slowest = min(alike, key=lambda facts: facts.head_number)
        gas_estimates = [facts.gas_estimate for facts in alike if facts.gas_estimate is not None]
        return replace(slowest, gas_estimate=max(gas_estimates, default=None))

    async def find_authorization_use(
        self,
        chain_id: ChainId,
        *,
        token: Address,
        payer: Address,
        nonce: bytes,
        from_block: int,
        trust: Trust = Trust.AGREED,
    ) -> TxHash | None:
        """The first node that knows one decides: what it did is for its receipt to say. "None" counts like "not mined":
        when every node says so that can be reached."""
        panel = self._panel(chain_id)
        needed = panel.count_needed(trust)

        async def read(node: Node) -> list[TxHash]:
            return await read_authorization_ends(
                node, self._open_session, token=token, payer=payer, nonce=nonce, from_block=from_block
            )

        failures: list[str] = []
        unseen = 0
        for node in panel.in_order:
            if unseen >= needed and node.is_last_choice:
                continue
            found = await panel.attempt(node, read, failures=failures, deadline_s=self._limits.rpc_deadline_s)
            if found:
                return found[-1]
            unseen += found is not None
        if unseen < needed:
            raise panel.unavailable(failures)
        return None

    async def fetch_fees(self, chain_id: ChainId) -> Fees:
        """The first usable node decides, so its word is to be capped by whoever pays by it."""

        async def read(node: Node) -> Fees:
            return await read_fees(node, self._open_session, chain_id)

        return await self._panel(chain_id).ask_first(read, deadline_s=self._limits.rpc_deadline_s)

    async def fetch_account(self, chain_id: ChainId, address: Address) -> AccountFacts:
        """The lowest of what as many nodes say as the least payment needs: they need not be equally far."""

        async def read(node: Node) -> AccountFacts:
            return await read_account(node, self._open_session, address)

        panel = self._panel(chain_id)
        told = await panel.ask_alike(
            read,
            essence=lambda account: None,
            trust=panel.least_trust,
            deadline_s=self._limits.rpc_deadline_s,
        )
        return AccountFacts(
            balance_wei=min(account.balance_wei for account in told),
            mined_nonce=min(account.mined_nonce for account in told),
        )

    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        panel = self._panel(chain_id)
        refusals: list[SendRefused] = []
        failures: list[str] = []
        for node in panel.in_order:
            answer = await self._offer(panel, node, raw, failures)
            if answer is True:
                return None
            if isinstance(answer, SendRefused):
                refusals.append(answer)
        if not refusals:
            raise panel.unavailable(failures)
        return refusals[0]

    async def resend_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        panel = self._panel(chain_id)
        failures: list[str] = []
        answers = await asyncio.gather(*(self._offer(panel, node, raw, failures) for node in panel.in_order))
        if True in answers:
            return None
        refusal = next((answer for answer in answers if isinstance(answer, SendRefused)), None)
        if refusal is None:
            raise panel.unavailable(failures)
        return refusal

    async def _offer(
        self, panel: NodePanel, node: Node, raw: bytes, failures: list[str]
    ) -> SendRefused | bool | None:
        """True: the node has it. None: it gave no clear word."""

        async def offer(node: Node) -> SendRefused | bool:
            return await offer_transaction(node, self._open_session, raw) or True

        return await panel.attempt(node, offer, failures=failures, deadline_s=self._limits.rpc_deadline_s)

    def _panel(self, chain_id: ChainId) -> NodePanel:
        return self._panels.get(chain_id) or NodePanel(chain_id, ())

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "the reader is not open"
        return self._session
