"""How a payment becomes final, or is found to have left its chain. The part of `Ledger` for it.

A block decides for all its payments: its number and hash are what the ledger compares with the chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tollway.identifiers import ChainId
from tollway.ledger.call import Payment


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinalBlock:
    """A block that holds payments which are not final. `is_agreed`: the receipts of all of them were read again since
    they were recorded (`mark_checked`); not a part of what makes two of them equal."""

    chain_id: ChainId
    number: int
    block_hash: bytes
    is_agreed: bool = field(compare=False)


class Finality(Protocol):
    """Safe to call from many tasks and gateways at once. Raises `StorageUnavailable`."""

    async def unfinal_blocks(
        self, chain_id: ChainId, *, after: UnfinalBlock | None, limit: int
    ) -> tuple[UnfinalBlock, ...]:
        """The blocks of payments that are `unfinal`, each once, by number and hash; those behind `after`."""
        ...

    async def unfinal_in(
        self, block: UnfinalBlock, *, after_id: int, limit: int, is_unchecked_only: bool = False
    ) -> tuple[Payment, ...]:
        """The `unfinal` payments of that block by ascending id, above `after_id`. `is_unchecked_only`: those whose receipts
        were not read again since they were recorded, raised or came back."""
        ...

    async def gone_payments(
        self, chain_id: ChainId, *, after_id: int, limit: int, now_ms: int
    ) -> tuple[Payment, ...]:
        """Payments that are `gone` for less than a day, by ascending id, above `after_id`."""
        ...

    async def finish_block(self, block: UnfinalBlock, *, is_checked_only: bool, now_ms: int) -> int:
        """`unfinal` -> `final` for all payments of that block, in one statement. Returns how many. What is held because
        nodes disagree stays `unfinal` until `free_disputed`: it would be held for ever.

        `is_checked_only`: only those whose receipts were read again. Written, not flushed: what is lost is found again."""
        ...

    async def mark_checked(
        self, payment_ids: Sequence[int], *, block_number: int, block_hash: bytes, now_ms: int
    ) -> None:
        """The receipts of these payments were read again, and say that they are in that block. Changes only what is
        `unfinal`. Written, not flushed."""
        ...

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        """The transaction left the chain: value 0, its spent calls `reorged`. Returns the debt in ledger units."""
        ...

    async def hold_disputed(self, payment_ids: Sequence[int]) -> int:
        """Nodes disagree about these payments: what is unspent of them cannot be spent until `free_disputed`. Only what
        is `unfinal`, and is not held yet. Returns how many."""
        ...

    async def held_unfinal(self, chain_id: ChainId, *, limit: int) -> tuple[Payment, ...]:
        """The `unfinal` payments that are held because nodes disagree. None while balances are held after a restore:
        then the operator's release frees them."""
        ...

    async def free_disputed(self, payment_ids: Sequence[int]) -> int:
        """Nodes agree about these payments again. Frees nothing while balances are held after a restore. Returns how many."""
        ...
