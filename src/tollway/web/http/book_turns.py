"""Turns of the reads of a wallet's books: its calls, payments, sums, viewers, webhooks, and the pages that show them.

Two reads at once build their responses, one of each wallet; the others wait, and the wallets that wait get the next turn in rotation. So a wallet with many readers
delays its own reads. A request waits for its turn when its wallet is proved, and leaves it when its response starts: from then on only the client's speed counts.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.ids import Address
from tollway.web.http.admission import READ_METHODS

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
    """A semaphore with one turn for a wallet. Waiting wallets are served in rotation, the reads of one wallet in order of arrival. For one event loop."""

    def __init__(self, at_once: int = BOOK_READS_AT_ONCE) -> None:
        self._free = at_once
        self._reading: set[Address] = set()
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
            self.release(wallet)

    async def acquire(self, wallet: Address) -> None:
        """Waits for a turn. `release` must follow."""
        if self._free and wallet not in self._reading:
            self._give(wallet)
            return
        given = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(wallet, deque()).append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():  # given in the moment of the cancellation
                self.release(wallet)
            raise

    def release(self, wallet: Address) -> None:
        """Ends the turn of the wallet, and gives it to the next one that waits and reads nothing."""
        self._reading.discard(wallet)
        self._free += 1
        while self._free and (following := self._find_next()) is not None:
            waiters = self._waiting.pop(following)
            given = waiters.popleft()
            if waiters:
                self._waiting[following] = waiters
            if not given.done():
                self._give(following)
                given.set_result(None)

    def _give(self, wallet: Address) -> None:
        self._free -= 1
        self._reading.add(wallet)

    def _find_next(self) -> Address | None:
        return next((wallet for wallet in self._waiting if wallet not in self._reading), None)


class _RequestTurn:
    """The turn of one request."""

    __slots__ = ("_turns", "_wallet")

    def __init__(self, turns: BookTurns) -> None:
        self._turns = turns
        self._wallet: Address | None = None

    async def enter(self, wallet: Address) -> None:
        if self._wallet is None:
            await self._turns.acquire(wallet)
            self._wallet = wallet

    def leave(self) -> None:
        if self._wallet is not None:
            wallet, self._wallet = self._wallet, None
            self._turns.release(wallet)


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
