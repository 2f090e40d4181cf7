"""The sequences of the gas keys: which nonce comes next, which transactions are on their way, what they cost. A port;
`storage/gas_store.py` keeps it in SQL.

A nonce is taken in the very transaction that stores the hash of what is signed with it (`Ledger.settle`,
`Ledger.add_attempt`). A nonce that nothing is stored for can be missing only after `raise_nonce` believed a wrong count, or
after a chain lost what others had sent with the same key; `Ledger.add_attempt` fills it, or `lower_nonce` takes it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tollway.identifiers import Address, ChainId, ListingId
from tollway.ledger.authorization import SettlementAttempt


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceUnavailable:
    """Another transaction has this key's nonce, or it is not the next one. Nothing changed."""

    next_nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRecord:
    """Transactions for payers with one and the same code (contract wallets, delegated accounts): how many were signed, and
    how many of them reverted in their block."""

    signed: int
    reverted: int


class GasLedger(Protocol):
    """Safe to use from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def next_nonce(self, chain_id: ChainId, sender: Address) -> int:
        """The nonce that the sequence's next transaction takes; 0 for a sequence that was never used."""
        ...

    async def raise_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        """Lets the sequence go on at `nonce` or later (the chain counts further than we do); returns what holds."""
        ...

    async def lower_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        """Lets the sequence go on at `nonce` again where nothing of ours waits with that nonce or a later one: the chain never
        counted as far as the sequence did. Returns what holds."""
        ...

    async def open_attempts(
        self, chain_id: ChainId, sender: Address, *, limit: int
    ) -> tuple[SettlementAttempt, ...]:
        """Attempts whose nonce is not known to be mined, by nonce, those of one nonce oldest first."""
        ...

    async def mark_mined(self, chain_id: ChainId, sender: Address, *, below: int) -> None:
        """Every nonce under `below` is mined: its attempts are closed."""
        ...

    async def reopen(self, chain_id: ChainId, sender: Address, *, since_nonce: int, since_ms: int) -> None:
        """From `since_nonce` on nothing is known to be mined any more: of what was made since then the attempts are
        open again."""
        ...

    async def record_cost(self, attempt: SettlementAttempt, *, cost_wei: int) -> None:
        """What a mined attempt really cost, for the listing's budget."""
        ...

    async def gas_spent_wei(self, chain_id: ChainId, *, since_ms: int) -> Mapping[ListingId, int]:
        """What settling has cost, or may cost, since then, by listing; only those that cost anything. Attempts of one
        nonce count once."""
        ...

    # ---- Payers with code: attempts with a `code_hash`.

    async def record_wallet_cost(
        self, attempt: SettlementAttempt, *, cost_wei: int, is_reverted: bool
    ) -> None:
        """What a mined attempt cost and whether it reverted, where its payer has code; otherwise nothing happens."""
        ...

    async def wallet_gas_wei(self, chain_id: ChainId, *, since_ms: int) -> Mapping[ListingId, int]:
        """The part of `gas_spent_wei` that settling for payers with code has cost, or may cost."""
        ...

    async def reverting_codes(self, chain_id: ChainId, *, since_ms: int) -> Mapping[bytes, CodeRecord]:
        """By code hash, of the codes that have reverted since then."""
        ...
