"""Turns of the reads of a wallet's books: its calls, payments, sums, viewers, webhooks, and the pages that show them.

A few reads at once build their responses; the others wait, and the wallets that wait get the next turn in rotation. So a wallet with many readers delays its own
reads. A request waits for its turn when its wallet is proved, and leaves it when its response starts: from then on only the client's speed counts.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.ids import Address
from tollway.web.admission import READ_METHODS

BOOK_READS_AT_ONCE = 2
"""Reads of books that are built at once. The event loop serves a paid call between two slices of each."""

SLICE_ROWS = 100
"""Rows that a read of a book takes from the database and encodes before other requests run: about a millisecond of the event loop."""

_BOOK_PATHS = (
    *("/api/v2/history", "/api/v2/payments", "/api/v2/spending", "/api/v2/sales"),
    *("/api/v2/viewers", "/api/v2/webhooks", "/x402/history", "/my"),
)
_TURN = "book_turn"


class BookTurns:
    """A semaphore whose waiters are served in rotation by wallet, those of one wallet in order of arrival. For one event loop."""

    def __init__(self, at_once: int = BOOK_READS_AT_ONCE) -> None:
        self._free = at_once
        self._waiting: OrderedDict[Address, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Reads that wait for a turn."""
        return sum(len(waiters) for waiters in self._waiting.values())

    @asynccontextmanager
    async def turn(self, wallet: Address) -> AsyncIterator[None]:
        """A turn for the duration of the block."""
        await self.acquire(wallet)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, wallet: Address) -> None:
        """Waits for a turn. `release` must follow."""
        if self._free:
            self._free -= 1
            return
        given = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wallet, deque()).append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():  # given in the moment of the cancellation
                self.release()
            raise

    def release(self) -> None:
        """Gives the turn to the next wallet that waits."""
        while self._waiting:
            wallet, waiters = self._waiting.popitem(last=False)
            given = waiters.popleft()
            if waiters:
                self._waiting[wallet] = waiters
            if not given.done():
                given.set_result(None)
                return
        self._free += 1


class _RequestTurn:
    """The turn of one request."""

    __slots__ = ("_is_held", "_turns")

    def __init__(self, turns: BookTurns) -> None:
        self._turns = turns
        self._is_held = False

    async def enter(self, wallet: Address) -> None:
        if not self._is_held:
            await self._turns.acquire(wallet)
            self._is_held = True

    def leave(self) -> None:
        if self._is_held:
            self._is_held = False
            self._turns.release()


class BookReadLimit:
    """Gives each read of a book a turn to wait for (`enter_turn`), and ends the turn when the response starts."""

    def __init__(self, app: ASGIApp, *, turns: BookTurns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_book_read(scope):
            await self._app(scope, receive, send)
            return
        turn = scope.setdefault("state", {})[_TURN] = _RequestTurn(self._turns)

        async def send_and_leave(message: Message) -> None:
            if message["type"] == "http.response.start":
                turn.leave()
            await send(message)

        try:
            await self._app(scope, receive, send_and_leave)
        finally:
            turn.leave()


def is_book_read(scope: Scope) -> bool:
    """Whether the request reads the books of a wallet. By the decoded path, as the router reads it."""
    return (
        scope["type"] == "http" and scope["method"] in READ_METHODS and scope["path"].startswith(_BOOK_PATHS)
    )


async def enter_turn(scope: Scope, wallet: Address) -> None:
    """Waits for the turn of a read of a book. Does nothing for another request."""
    turn: _RequestTurn | None = scope.get("state", {}).get(_TURN)
    if turn is not None:
        await turn.enter(wallet)


def leave_turn(scope: Scope) -> None:
    """Ends the turn before the response starts, where the rest of the request waits for another server."""
    turn: _RequestTurn | None = scope.get("state", {}).get(_TURN)
    if turn is not None:
        turn.leave()
