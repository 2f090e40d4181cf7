"""Viewers: wallets that may read the calls, payments and spending of another wallet until a date. Reading only: a viewer resolves and pays nothing.

Each agent's wallet names the owner's wallet once, and the owner reads all of them with one key. A wallet that has not named the reader, whose permission has ended or was
deleted, and a wallet that never made a call get the same refusal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tollway.errors import Code, Problem, Refusal
from tollway.ids import Address
from tollway.limits import Limits

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A permission: `viewer` reads the books of `wallet` from `since_ms` until `until_ms`."""

    wallet: Address
    viewer: Address
    since_ms: int
    until_ms: int


class ViewerStore(Protocol):
    """The stored permissions. A change is durable and counts at every gateway at once. Raises `StorageUnavailable`."""

    async def put(self, viewer: Viewer, *, most: int) -> Viewer | None:
        """Stores a permission, or its new end; `since_ms` of a permission that has not ended stays. None, and nothing is stored, where the wallet has `most`
        others that have not ended."""
        ...

    async def delete(self, wallet: Address, viewer: Address) -> None: ...

    async def is_viewer(self, wallet: Address, viewer: Address, *, now_ms: int) -> bool: ...

    async def list_viewers(self, wallet: Address, *, now_ms: int) -> tuple[Viewer, ...]:
        """The permissions that a wallet gave and that have not ended, oldest first."""
        ...

    async def list_wallets(self, viewer: Address, *, now_ms: int, limit: int) -> tuple[Viewer, ...]:
        """The permissions that a wallet got and that have not ended, oldest first."""
        ...


class BookAccess:
    """Decides whose books a request reads. Each decision reads the database, so an end counts at every gateway at once. `refusal`: of a wallet that has not
    named the reader."""

    def __init__(
        self,
        viewers: ViewerStore,
        *,
        limits: Limits,
        now_ms: Callable[[], int],
        refusal: Problem | None = None,
    ) -> None:
        self._viewers = viewers
        self._limits = limits
        self._now_ms = now_ms
        self._refusal = NOT_VIEWER if refusal is None else refusal

    async def resolve_wallet(self, reader: Address, named: Address | None) -> Address:
        """The wallet whose books are read: the reader's own, or the named one. Raises Refusal where it has not named the reader."""
        if named is None or named == reader:
            return reader
        if not await self._viewers.is_viewer(named, reader, now_ms=self._now_ms()):
            raise Refusal(self._refusal)
        return named

    async def allow(self, wallet: Address, viewer: Address, *, until_ms: int) -> Viewer:
        """Stores a permission. `until_ms` is in the future and at most `viewer_days_max` ahead (the caller has checked it). Raises Refusal (422) beyond
        `viewers_max`."""
        since_ms = self._now_ms()
        new = Viewer(wallet=wallet, viewer=viewer, since_ms=since_ms, until_ms=until_ms)
        stored = await self._viewers.put(new, most=self._limits.viewers_max)
        if stored is None:
            raise Refusal(
                Problem(
                    code=Code.VALIDATION_FAILED,
                    detail=f"A wallet names at most {self._limits.viewers_max} viewers. Delete one first.",
                    reason="too_many_viewers",
                )
            )
        return stored

    async def withdraw(self, wallet: Address, viewer: Address) -> None:
        await self._viewers.delete(wallet, viewer)

    async def list_viewers(self, wallet: Address) -> tuple[Viewer, ...]:
        return await self._viewers.list_viewers(wallet, now_ms=self._now_ms())

    async def list_wallets(self, viewer: Address) -> tuple[tuple[Viewer, ...], bool]:
        """The wallets that the viewer may read, the oldest `viewed_wallets_max`; and whether there are more."""
        most = self._limits.viewed_wallets_max
        found = await self._viewers.list_wallets(viewer, now_ms=self._now_ms(), limit=most + 1)
        return found[:most], len(found) > most


NOT_VIEWER = Problem(
    code=Code.NOT_VIEWER,
    detail="This wallet may not read the books of the wallet in `wallet`. Its owner lets you read them with PUT /api/v2/viewers/{your address}.",
)
