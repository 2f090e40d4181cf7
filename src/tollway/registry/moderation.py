"""Whom the operator does not serve, and who may publish. A port and one rule; `storage/moderation_store.py` keeps the
blocked wallets in SQL. Suspending a listing is a matter of the catalog.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from tollway.errors import Code, Problem
from tollway.identifiers import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedWallet:
    wallet: Address
    reason: str
    since_ms: int


class Moderation(Protocol):
    """Raises `StorageUnavailable` when the store is away, except `is_blocked`, which asks nobody."""

    def is_blocked(self, wallet: Address) -> bool:
        """Cheap; for every call. A block by this process shows at once, one by another after `refresh`."""
        ...

    async def refresh(self) -> None:
        """Reads the blocks anew. Run every second."""
        ...

    async def block(self, wallet: Address, *, reason: str, now_ms: int) -> bool:
        """False when the wallet was blocked already; then its reason and moment stay."""
        ...

    async def unblock(self, wallet: Address) -> bool:
        """False when the wallet was not blocked."""
        ...

    async def list_blocked(self) -> tuple[BlockedWallet, ...]:
        """Every block, oldest first."""
        ...


def check_registration(
    provider: Address,
    *,
    allowlist: Collection[Address] | None,
    is_blocked: bool,
) -> Problem | None:
    """May this wallet publish here? None when it may. `allowlist` None: anybody may who is not blocked."""
    if is_blocked:
        return BLOCKED
    if allowlist is not None and provider not in allowlist:
        return Problem(
            code=Code.NOT_PROVIDER,
            detail="Only wallets that the operator has admitted may publish here.",
            reason="not_on_allowlist",
        )
    return None


BLOCKED = Problem(code=Code.WALLET_BLOCKED, detail="The operator of this gateway has blocked this wallet.")
