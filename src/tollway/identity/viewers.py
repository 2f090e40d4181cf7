"""Viewers: wallets that may read the calls, payments and spending of another wallet until a date. Reading only: a viewer resolves and pays nothing.

Each agent's wallet names the owner's wallet once, and the owner reads all of them with one key. The owner to whom a wallet is bound (`ledger/budgets`) is its viewer without
that, as long as it is bound. A wallet that has not named the reader, whose permission has ended or was deleted, and a wallet that never made a call get the same refusal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tollway.errors import Code, Problem, Refusal, refuse
from tollway.ids import Address
from tollway.ledger.budgets import Budget, BudgetLedger
from tollway.limits import Limits
from tollway.rate_limits.limiter import Quota, RateLimiter

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A permission: `viewer` reads the books of `wallet` from `since_ms` until `until_ms`; None: as long as the wallet is bound to it as its owner. `accepted_ms`: when the
    viewer first read them; until then the permission is in none of its lists."""

    wallet: Address
    viewer: Address
    since_ms: int
    until_ms: int | None
    accepted_ms: int | None = None


class ViewerStore(Protocol):
    """The stored permissions; each has an end. A change is durable and counts at every gateway at once."""

    async def put(self, viewer: Viewer, *, most: int) -> Viewer | None:
        """Stores a permission, or its new end; `since_ms` and `accepted_ms` of a permission that has not ended stay. None, and nothing is stored, where the wallet has `most`
        others that have not ended."""
        ...

    async def delete(self, wallet: Address, viewer: Address) -> None: ...

    async def find(self, wallet: Address, viewer: Address, *, now_ms: int) -> Viewer | None: ...

    async def accept(self, wallet: Address, viewer: Address, *, now_ms: int) -> None:
        """Writes the moment of the acceptance, once."""
        ...

    async def list_viewers(self, wallet: Address, *, now_ms: int) -> tuple[Viewer, ...]:
        """The permissions that a wallet gave and that have not ended, oldest first."""
        ...

    async def list_wallets(self, viewer: Address, *, now_ms: int, limit: int) -> tuple[Viewer, ...]:
        """The permissions that a wallet got and accepted and that have not ended, the last accepted first."""
        ...


class BookAccess:
    """Decides whose books a request reads. Each decision reads the database, so an end counts at every gateway at once. `refusal`: of a wallet that has not
    named the reader."""

    def __init__(
        self,
        viewers: ViewerStore,
        budgets: BudgetLedger,
        *,
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
        refusal: Problem | None = None,
    ) -> None:
        self._viewers = viewers
        self._budgets = budgets
        self._limits = limits
        # Wallets cost nothing, and each permission is a row that another wallet has not asked for.
        self._quota = Quota(
            "permissions",
            "permissions to read",
            amount=limits.permissions_per_hour,
            per="hour",
            rate_limiter=rate_limiter,
        )
        self._now_ms = now_ms
        self._refusal = NOT_VIEWER if refusal is None else refusal

    async def resolve_wallet(self, reader: Address, named: Address | None) -> Address:
        """The wallet whose books are read. Raises Refusal where it has not named the reader, and is not bound to it. The first read accepts the permission."""
        if named is None or named == reader:
            return reader
        now_ms = self._now_ms()
        permission = await self._viewers.find(named, reader, now_ms=now_ms)
        if permission is None:
            bound = await self._budgets.find_binding(named)
            if bound is None or bound.owner != reader:
                raise Refusal(self._refusal)
        elif permission.accepted_ms is None:
            await self._viewers.accept(named, reader, now_ms=now_ms)
        return named

    async def allow(self, wallet: Address, viewer: Address, *, until_ms: int, client_address: str) -> Viewer:
        """Stores a permission. `until_ms` is in the future and at most `viewer_days_max` ahead (the caller has checked it). Raises Refusal (422) beyond
        `viewers_max`, and (429) beyond `permissions_per_hour`."""
        await self._quota.charge(wallet, client_address=client_address)
        since_ms = self._now_ms()
        new = Viewer(wallet=wallet, viewer=viewer, since_ms=since_ms, until_ms=until_ms)
        stored = await self._viewers.put(new, most=self._limits.viewers_max)
        if stored is None:
            raise refuse(
                code=Code.VALIDATION_FAILED,
                detail=f"A wallet names at most {self._limits.viewers_max} viewers. Delete one first.",
                reason="too_many_viewers",
            )
        return stored

    async def withdraw(self, wallet: Address, viewer: Address) -> None:
        await self._viewers.delete(wallet, viewer)

    async def decline(self, viewer: Address, wallet: Address) -> None:
        await self._viewers.delete(wallet, viewer)

    async def list_viewers(self, wallet: Address) -> tuple[Viewer, ...]:
        """The owner of the wallet first."""
        bound = await self._budgets.find_binding(wallet)
        owner = () if bound is None else (_view_as_owner(bound),)
        return _merge(owner, await self._viewers.list_viewers(wallet, now_ms=self._now_ms()))

    async def list_wallets(self, viewer: Address) -> tuple[tuple[Viewer, ...], bool]:
        """The wallets that the viewer may read and has read, the newest `viewed_wallets_max`; and whether there are more."""
        return await self._list_newest(viewer, self._limits.viewed_wallets_max)

    async def list_menu(self, viewer: Address) -> tuple[tuple[Viewer, ...], bool]:
        """The same for a page: the newest `menu_wallets_max`."""
        return await self._list_newest(viewer, self._limits.menu_wallets_max)

    async def _list_newest(self, viewer: Address, most: int) -> tuple[tuple[Viewer, ...], bool]:
        bound = await self._budgets.list_bound(viewer, limit=most + 1)
        named = await self._viewers.list_wallets(viewer, now_ms=self._now_ms(), limit=most + 1)
        found = sorted(_merge(map(_view_as_owner, bound), named), key=lambda one: -(one.accepted_ms or 0))
        return tuple(found[:most]), len(found) > most


def _view_as_owner(bound: Budget) -> Viewer:
    assert bound.bound_ms is not None
    return Viewer(
        wallet=bound.agent,
        viewer=bound.owner,
        since_ms=bound.bound_ms,
        until_ms=None,
        accepted_ms=bound.bound_ms,
    )


def _merge(owned: Iterable[Viewer], named: Iterable[Viewer]) -> tuple[Viewer, ...]:
    """Both, and each pair of wallets once: what the owner reads does not end with a permission."""
    found = {(one.wallet, one.viewer): one for one in owned}
    for one in named:
        found.setdefault((one.wallet, one.viewer), one)
    return tuple(found.values())


NOT_VIEWER = Problem(
    code=Code.NOT_VIEWER,
    detail="This wallet may not read the books of the wallet in `wallet`. Its owner lets you read them with PUT /api/v2/viewers/{your address}.",
)
