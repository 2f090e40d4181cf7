"""Ports of the chain: what the gateway reads from a chain and sends to it, the facts that it receives, and the quota of look-ups.

`chain/rpc.py` is the adapter for real nodes; the tests have a chain in memory. Facts are parsed and frozen; no raw JSON leaves an
adapter. A look-up is made on behalf of a caller, so a quota counts it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tollway.ids import Address, ChainId, ChannelId, TxHash


class LookupQuota(Protocol):
    """Limits look-ups on chains, per client address and per signer. No money depends on it."""

    @property
    def lookups_per_minute(self) -> int: ...

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        """Returns None when the look-up is allowed, otherwise the seconds to wait."""
        ...

    def give_back(self, *, client_address: str, signer: str) -> None:
        """Uncounts a look-up that found a valid payment."""
        ...

    def count_unresolved(self, *, client_address: str, signer: str) -> None:
        """Records that a counted look-up had no response: it counts for a shorter time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """One event of a receipt. `topics` and `payload` are the raw bytes of the node's response."""

    address: Address
    topics: tuple[bytes, ...]
    payload: bytes
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """The facts about one mined transaction, as one node returned them at one moment. The rules use nothing else.

    `succeeded`: receipt status 1. `value` in base units of the native currency. Times are unix seconds.
    `canonical_hash`: the hash of the block that the chain has at `block_number` now. `fee_wei`: the fee that the sender paid, None
    where the node does not return it.
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
        """The number of confirmations; the transaction's own block counts as the first (head - block + 1)."""
        return self.head_number - self.block_number + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NotMined:
    """The node has no mined transaction with this hash. `is_pending`: the transaction waits in the node's pool."""

    chain_id: ChainId
    is_pending: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Disputed:
    """Enough nodes reported a transaction, but too few reports are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTip:
    """The lowest head and the lowest final block of as many nodes as the network requires. `finalized_number` None: one of them has
    no `finalized` block. `head_time`: the latest time of their heads, in unix seconds."""

    head_number: int
    head_time: int
    finalized_number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHashes:
    """The blocks of a chain at some heights. `known`: the hash of the block, or None where the chain has no block at that height.
    `disputed`: heights at which nodes disagree. A height with too few reports is in neither."""

    known: Mapping[int, bytes | None]
    disputed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    """The result of an `eth_call`: `payload`, cut at the requested limit, or a revert."""

    reverted: bool
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationFacts:
    """The facts about an EIP-3009 authorisation before its settlement, as one node returned them at one moment.

    `code_size`, `code_hash` (keccak256): of the payer's code; 0 and None for a plain wallet. `balance` in base units of the token.
    `is_used`: the token's `authorizationState`. `simulation`: of the transfer, at the head or at the time of the next block;
    `gas_estimate` is None where it reverts.
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
class EscrowState:
    """What the settlement contract stores of a channel at one block.

    `balance`: everything deposited, less refunds and withdrawals; claims do not lower it. `withdrawal` and `withdrawal_initiated_at` (unix
    seconds): of the pending withdrawal, 0 without one.
    """

    balance: int
    total_claimed: int
    withdrawal: int
    withdrawal_initiated_at: int
    refund_nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EscrowFacts:
    """The facts about a payment channel, as one node returned them: its state at the block `head_number`, and the lower of its balances there
    and at the block that has as many confirmations as requested."""

    chain_id: ChainId
    head_number: int
    head_time: int
    state: EscrowState
    confirmed_balance: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fees:
    """EIP-1559 prices per gas in wei: the base fee of the latest block, and the tip that the node suggests."""

    chain_id: ChainId
    base_fee_wei: int
    tip_wei: int

    @property
    def price_wei(self) -> int:
        return self.base_fee_wei + self.tip_wei


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountFacts:
    """The account of a gas key on its chain. `mined_nonce`: the number of its mined transactions, and so its first nonce that is not mined."""

    balance_wei: int
    mined_nonce: int


class Quorum(StrEnum):
    """How many nodes must agree on a report. The value that a false report could cost decides (`ChainRules.quorum_for`)."""

    ONE = "one"  # the first usable response
    AGREED = "agreed"  # equal reports of as many nodes as the network requires (`agreement_min`)


class SendFault(StrEnum):
    """Why a node refuses a transaction, as far as its error says."""

    NONCE_TOO_LOW = "nonce_too_low"  # another transaction of this nonce is mined
    UNDERPRICED = "underpriced"  # the fee is too low, or the pool has another transaction of this nonce
    INSUFFICIENT_FUNDS = "insufficient_funds"  # of the sender, for gas
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRefused:
    """Every node that responded refused the transaction and did not have it afterwards. A node that did not respond may have
    accepted it. `reason` is for the log; it never contains a node's own text, which may hold the node's key."""

    reason: str
    fault: SendFault = SendFault.OTHER


class ChainReader(Protocol):
    """Reads one or more chains.

    Every method raises `ChainUnavailable` when no configured node of that chain returned a usable, consistent response within its deadline.
    """

    @property
    def chain_ids(self) -> tuple[ChainId, ...]: ...

    async def fetch_facts(
        self, chain_id: ChainId, tx_hash: TxHash, *, quorum: Quorum = Quorum.AGREED
    ) -> ChainFacts | NotMined:
        """The facts about one transaction, in at most two round trips (one JSON-RPC batch each)."""
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
        """The number of bytes of code at `address` now; 0 for a plain wallet."""
        ...

    async def check_chain(self, chain_id: ChainId) -> None:
        """Raises `ChainUnavailable` when too few nodes respond, and `ChainMismatch` when a node serves another chain."""
        ...


class SettlementChain(ChainReader, Protocol):
    """The reads and transactions of settlements. The promises of `ChainReader` hold."""

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
        """The facts about an authorisation, in one round trip. The transfer `calldata` (`tokens.encode_transfer_with_authorization`) is
        simulated as sent by `sender` with at most `gas`, at the head's time. `to`: the contract that makes the transfer among other
        calls (`multicall.encode_calls`); None: the token.

        The head of an idle chain can be older than `valid_after`, although its next block is not. Then a second round trip simulates
        the transfer at the first time that the token accepts it. That result counts if the node's next block is not earlier."""
        ...

    async def fetch_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], *, quorum: Quorum = Quorum.AGREED
    ) -> dict[TxHash, ChainFacts | NotMined]:
        """As `fetch_facts`, in the same two round trips. Leaves out a transaction without enough reports; raises only when all are left out."""
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
        """The transaction since that block in which the token logged `AuthorizationUsed(payer, nonce)` or `AuthorizationCanceled`.

        Its receipt decides whether it made the transfer (`tokens.has_settled`): a payer may also have cancelled the nonce, or used it
        for another payee. None: no node that responded has such a transaction.
        """
        ...

    async def fetch_channel(
        self,
        chain_id: ChainId,
        channel: ChannelId,
        *,
        confirmations: int = 1,
        quorum: Quorum = Quorum.AGREED,
    ) -> EscrowFacts:
        """The facts about a payment channel, in two round trips: the head, then the state at exactly that block. A channel that never had a
        deposit has a state of zeros. Raises `ChainUnavailable` also where the chain has no settlement contract."""
        ...

    async def fetch_fees(self, chain_id: ChainId) -> Fees: ...

    async def fetch_account(self, chain_id: ChainId, address: Address) -> AccountFacts: ...

    async def send_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        """Sends a signed transaction to the nodes of the chain in turn until one accepts it; never sends it to one node twice.
        None: a node accepted it or had it already. Raises `ChainUnavailable` when no node gave a clear response: then a node may have
        accepted it."""
        ...

    async def resend_transaction(self, chain_id: ChainId, raw: bytes) -> SendRefused | None:
        """To every node of the chain: the node that accepted the transaction may have dropped it. Returns as `send_transaction`."""
        ...


class WatchedChain(SettlementChain, Protocol):
    """The reads of the reorg watcher. The promises of `SettlementChain` hold; as many nodes as the network requires must agree."""

    async def fetch_tip(self, chain_id: ChainId) -> ChainTip:
        """The head and the final block, in one round trip per required node."""
        ...

    async def fetch_block_hashes(self, chain_id: ChainId, numbers: Sequence[int]) -> BlockHashes:
        """The blocks at these heights, in a few round trips. Raises `ChainUnavailable` when no height has enough reports."""
        ...

    async def fetch_changed_channels(
        self, chain_id: ChainId, *, from_block: int, to_block: int
    ) -> frozenset[ChannelId]:
        """The channels with a deposit, a claim, a refund or a withdrawal in these blocks, of every payer and receiver: each that one of the
        required nodes names. An event only names a channel; `fetch_channel` reads its state. Raises `ChainUnavailable` when too few nodes
        have these blocks."""
        ...

    async def review_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash]
    ) -> dict[TxHash, ChainFacts | NotMined | Disputed]:
        """`fetch_receipts`, including the transactions about which nodes disagree."""
        ...
