"""A `Moderation` in memory, for tests and play. Passes the same contract suite as the one in SQL."""

from tollway.ids import Address
from tollway.registry.catalog import BlockedWallet


class MemoryModeration:
    """Nothing survives the process."""

    def __init__(self) -> None:
        self._blocks: dict[Address, BlockedWallet] = {}

    def is_blocked(self, wallet: Address) -> bool:
        return wallet in self._blocks

    async def refresh(self) -> None:
        """There is nothing to read anew."""

    async def block(self, wallet: Address, *, reason: str, now_ms: int) -> bool:
        if wallet in self._blocks:
            return False
        self._blocks[wallet] = BlockedWallet(wallet=wallet, reason=reason, since_ms=now_ms)
        return True

    async def unblock(self, wallet: Address) -> bool:
        return self._blocks.pop(wallet, None) is not None

    async def list_blocked(self) -> tuple[BlockedWallet, ...]:
        return tuple(sorted(self._blocks.values(), key=lambda block: (block.since_ms, block.wallet)))
