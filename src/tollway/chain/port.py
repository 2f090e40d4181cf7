"""What the gateway may read from a chain and send to it, the facts it gets back, and the quota of look-ups: ports.

`chain/rpc.py` asks real nodes; the tests hold a chain in memory. Facts are parsed and frozen; no raw JSON leaves an adapter.
A look-up is made on behalf of a caller, so a quota counts it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tollway.ids import Address, ChainId, TxHash


class LookupQuota(Protocol):
    """Counts look-ups on chains, per client address and per signer. Nothing about money depends on it."""

    @property
    def lookups_per_minute(self) -> int: ...

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        """One more. None when it is allowed, else the seconds to wait."""
        ...

    def give_back(self, *, client_address: str, signer: str) -> None:
        """Takes back one that was allowed: it found a valid payment."""
        ...

    def count_unresolved(self, *, client_address: str, signer: str) -> None:
        """One that was allowed had no answer: it counts for a shorter time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One event of a receipt. `topics` and `payload` are raw bytes, exactly as many as the node gave."""

    address: Address
    topics: tuple[bytes, ...]
    payload: bytes
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """All that a verdict may know about one mined transaction, as one node saw it at one moment.

    `succeeded`: receipt status 1. `value` in base units of the native currency. Times are unix seconds.
    `canonical_hash`: the hash of the block that the chain now has at `block_number`. `fee_wei`: what its sender paid
    for it, None where the node does not say.
    """

    chain_id: ChainId
    tx_hash: TxHash
    succeeded: bool
    sender: Address
    recipient: Address | None
    value: int
    logs: tuple[Log, ...]
    block_number: int
    block_hash: bytes
    block_time: int
    canonical_hash: bytes
    head_number: int
    head_time: int
    finalized_number: int
    fee_wei: int | None = None

    @property
    def confirmations(self) -> int:
        """The block itself counts as the first (head - block + 1)."""
        return self.head_number - self.block_number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMined:
    """The node answered and knows no mined transaction of this hash. `is_pending`: it waits in the pool."""

    chain_id: ChainId
    is_pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Disputed:
    """Enough nodes answered about a transaction, and too few of them the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTip:
    """The lowest head, and the lowest final block, of as many nodes as the network asks for. `finalized_number` None: one
    of them knows no `finalized` block."""

    head_number: int
    finalized_number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHashes:
    """What a chain has at some heights. `known`: the hash of the block, or None where the chain has no block so high.
    `disputed`: heights about which nodes disagree. A height about which nothing can be said is in neither."""

    known: Mapping[int, bytes | None]
    disputed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    """What an `eth_call` returned: `payload` capped at the limit that was asked for, or a revert."""

    reverted: bool
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationFacts:
    """All that is to be known about an EIP-3009 authorisation before it is settled, as one node saw it at one moment.

    `code_size`: of the payer; 0 for a plain wallet, and then without a `code_hash` (keccak256). `balance` in base units of the token. `is_used`: the token's own
    `authorizationState`. `simulation`: of the transfer itself, as of the head or of the block that would come next;
    `gas_estimate` None where it reverts.
    """

    chain_id: ChainId
    head_number: int
    head_time: int
    code_size: int
    balance: int
    is_used: bool
    simulation: ContractResult
    gas_estimate: int | None
    code_hash: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fees:
    """EIP-1559, in wei: the base fee of the latest block, and the tip that the node suggests."""

    chain_id: ChainId
    base_fee_wei: int
    tip_wei: int

    @property
    def price_wei(self) -> int:
        """What one unit of gas costs now."""
        return self.base_fee_wei + self.tip_wei


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """A gas key on its chain: its balance, and how many of its transactions are mined."""

    balance_wei: int
    mined_nonce: int


class Quorum(StrEnum):
    """Whose word a reading has to rest on: what may be lost by a lie decides (`ChainRules.quorum_for`)."""

    ONE = "one"  # the first usable node's
    AGREED = "agreed"  # that of as many nodes as the network asks for (`agreement_min`)


class SendFault(StrEnum):
    """Why a node does not take a transaction, as far as it can be told."""

    NONCE_TOO_LOW = "nonce_too_low"  # another transaction of this nonce is mined
    UNDERPRICED = (
        "underpriced"  # the pool holds another one of this nonce that pays as much, or its fee is too low
    )
    INSUFFICIENT_FUNDS = "insufficient_funds"  # of the sender, for gas
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRefused:
    """Every node that answered refused a transaction and did not know it afterwards. One that did not answer may still
    have taken it. `reason` is for the log; it never repeats a node's own text, which may hold its key."""

    reason: str
    fault: SendFault = SendFault.OTHER


class ChainReader(Protocol):
    """Reads one or more chains. Safe to call from many tasks at once.

    Every method raises `ChainUnavailable` when no configured node of that chain gave a usable, consistent answer
    within its deadline. An answer is never guessed.
    """

    @property
    def chain_ids(self) -> tuple[ChainId, ...]:
        """The chains that are configured."""
        ...

    async def fetch_facts(
        self, chain_id: ChainId, tx_hash: TxHash, *, quorum: Quorum = Quorum.AGREED
    ) -> ChainFacts | NotMined:
        """Everything about one transaction in at most two round trips (one JSON-RPC batch each)."""
        ...

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
        """`eth_call` at the latest block; `to` None runs `calldata` as deployment code (ERC-6492)."""
        ...

    async def fetch_code_size(self, chain_id: ChainId, address: Address) -> int:
        """How many bytes of code stand at `address` now; 0 for a plain wallet."""
        ...

    async def check_chain(self, chain_id: ChainId) -> None:
        """Asks the nodes which chain they serve. Raises `ChainUnavailable` when none serves `chain_id`."""
        ...


class SettlementChain(ChainReader, Protocol):
    """What settling needs beside reading. The same promises."""

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
        quorum: Quorum = Quorum.AGREED,
    ) -> AuthorizationFacts:
        """In one round trip. `calldata`: the transfer (`tokens.encode_transfer_with_authorization`), simulated as sent by
        `sender` with at most `gas`, at the head's time.

        `valid_after`: the token's own. Where a chain has been idle its head is older than that, though its next block
        will not be: then the transfer is simulated once more at the first moment that the token would take it, and
        counts if the node says that its next block comes no earlier (one more round trip)."""
        ...

    async def fetch_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], *, quorum: Quorum = Quorum.AGREED
    ) -> dict[TxHash, ChainFacts | NotMined]:
        """`fetch_facts` for many transactions in the same two round trips. One about which nothing can be said yet is
        left out; raises `ChainUnavailable` only when that are all of them."""
        ...

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
        """The transaction that ended this authorisation's life since that block: the token reported
        `AuthorizationUsed(payer, nonce)` in it, or `AuthorizationCanceled`.

        Whether it moved the money is for its receipt to say (`tokens.has_settled`): a payer may also have cancelled the
        nonce, or used it for another payee. None: no node that answered knows one.
        """
        ...

    async def fetch_fees(self, chain_id: ChainId) -> Fees: ...

    async def fetch_account(self, chain_id: ChainId, address: Address) -> AccountFacts: ...

    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        """Hands a signed transaction to the nodes of the chain in turn until one takes it; never sends it twice to one
        of them by itself. None: one has taken it, or knew it already. Raises `ChainUnavailable` when nobody gave a
        clear word: then it may be on its way."""
        ...

    async def resend_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        """Hands a transaction that was sent before to every node of the chain: the one that took it may have dropped it,
        or tell no other node. The same answers as of `send_transaction`."""
        ...


class WatchedChain(SettlementChain, Protocol):
    """What the watcher needs beside settling. The same promises; always by the word of as many nodes as the network asks
    for."""

    async def fetch_tip(self, chain_id: ChainId) -> ChainTip:
        """In one round trip for each node that is needed."""
        ...

    async def fetch_block_hashes(self, chain_id: ChainId, numbers: Sequence[int]) -> BlockHashes:
        """In a few round trips, some heights in each. Raises `ChainUnavailable` when nothing can be said of any."""
        ...

    async def review_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash]
    ) -> dict[TxHash, ChainFacts | NotMined | Disputed]:
        """`fetch_receipts`, with the transactions about which nodes disagree."""
        ...
