"""Turns of the expensive reads of the control plane: lists, searches, documents, pages, and what a wallet reads of its books, exports included.

One pool serves all kinds, so that all of them together get no more of the event loop and of the threads of the database than one kind alone. Paid calls take no turn.
Each kind that waits gets the next turn in rotation, and within a kind each holder: the wallet of books, else the client address. A holder has one turn at once, so
one with many readers delays its own reads. A read of books waits for its turn when its wallet is proved, any other when it arrives; both leave it when the response
starts: from then on only the client's speed counts. The requests in flight bound those that wait (`LoadShedder`); none is refused here.

What runs of them on the event loop is bounded by `loop_share`, with all other requests of the control plane.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.ids import Address
from tollway.rate_limits.limiter import client_bucket

READS_AT_ONCE = 2
"""Reads that are built at once. The event loop serves a paid call between two slices of each; one more takes as much of the interpreter as a paid call gets."""

SLICE_ROWS = 100
"""Rows that a read of a book takes from the database and encodes before other requests run: about a millisecond of the event loop."""

READ_METHODS = ("GET", "HEAD")

ReadKind = Literal["books", "exports", "catalog", "pages", "searches"]
Holder = Address | str
"""A wallet, or the bucket of a client address."""

_BOOK_PATHS = (
    *("/api/v2/history", "/api/v2/payments", "/api/v2/spending", "/api/v2/sales"),
    *("/api/v2/viewers", "/api/v2/webhooks", "/x402/history", "/my"),
)
_CATALOG_PATHS = (
    *("/api/v2/apis", "/api/v2/facets", "/x402/discovery"),
    *("/openapi.json", "/llms.txt", "/.well-known/api-catalog", "/sitemap.xml"),
)
_PAGE_PATHS = ("/apis/", "/providers/", "/docs", "/status", "/problems", "/signin")
_TURN = "read_turn"


class ReadTurns:
    """A semaphore with one turn for a holder. Kinds that wait are served in rotation, their holders too, the reads of one holder in order of arrival. For one event loop."""

    def __init__(self, at_once: int = READS_AT_ONCE) -> None:
        self._free = at_once
        self._reading: set[Holder] = set()
        self._waiting: OrderedDict[ReadKind, OrderedDict[Holder, deque[asyncio.Future[None]]]] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Reads that wait for a turn."""
        return sum(len(waiters) for holders in self._waiting.values() for waiters in holders.values())

    @asynccontextmanager
    async def turn(self, kind: ReadKind, holder: Holder) -> AsyncIterator[None]:
        """A turn for the duration of the block."""
        await self.acquire(kind, holder)
        try:
            yield
        finally:
            self.release(holder)

    async def acquire(self, kind: ReadKind, holder: Holder) -> None:
        """Waits for a turn. `release` must follow."""
        if self._free and holder not in self._reading:
            self._give(holder)
            return
        given = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(kind, OrderedDict()).setdefault(holder, deque()).append(given)
        try:
            await given
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():  # given in the moment of the cancellation
                self.release(holder)
            raise

    def release(self, holder: Holder) -> None:
        """Ends the turn of the holder, and gives it to the next one that waits and reads nothing."""
        self._reading.discard(holder)
        self._free += 1
        while self._free and (following := self._find_next()) is not None:
            kind, next_holder = following
            given = self._take_waiter(kind, next_holder)
            if not given.done():
                self._give(next_holder)
                given.set_result(None)

    def _give(self, holder: Holder) -> None:
        self._free -= 1
        self._reading.add(holder)

    def _find_next(self) -> tuple[ReadKind, Holder] | None:
        """At most `READS_AT_ONCE` holders of a kind are passed over: those that read."""
        return next(
            (
                (kind, holder)
                for kind, holders in self._waiting.items()
                for holder in holders
                if holder not in self._reading
            ),
            None,
        )

    def _take_waiter(self, kind: ReadKind, holder: Holder) -> asyncio.Future[None]:
        """The first waiter of the holder. The holder, and the kind, are the last ones from now on."""
        holders = self._waiting.pop(kind)
        waiters = holders.pop(holder)
        given = waiters.popleft()
        if waiters:
            holders[holder] = waiters
        if holders:
            self._waiting[kind] = holders
        return given


class _RequestTurn:
    """The turn of one request."""

    __slots__ = ("_holder", "_kind", "_turns")

    def __init__(self, turns: ReadTurns, kind: ReadKind) -> None:
        self._turns = turns
        self._kind = kind
        self._holder: Holder | None = None

    async def enter(self, holder: Holder) -> None:
        if self._holder is None:
            await self._turns.acquire(self._kind, holder)
            self._holder = holder

    def leave(self) -> None:
        if self._holder is not None:
            holder, self._holder = self._holder, None
            self._turns.release(holder)


class ReadLimit:
    """Gives each expensive read a turn, and ends the turn when the response starts. A read of books waits for it once its wallet is proved (`enter_turn`)."""

    def __init__(self, app: ASGIApp, *, turns: ReadTurns) -> None:
        self._app = app
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = kind_of_read(scope)
        if kind is None:
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        turn = state[_TURN] = _RequestTurn(self._turns, kind)

        async def send_and_leave(message: Message) -> None:
            if message["type"] == "http.response.start":
                turn.leave()
            await send(message)

        try:
            if kind != "books":
                await turn.enter(client_bucket(state.get("client_address", "")))
            await self._app(scope, receive, send_and_leave)
        finally:
            turn.leave()


def kind_of_read(scope: Scope) -> ReadKind | None:
    """The kind of an expensive read. None for any other request. By the decoded path, as the router reads it."""
    if scope["type"] != "http" or scope["method"] not in READ_METHODS:
        return None
    path: str = scope["path"]
    if path.startswith(_BOOK_PATHS):
        return "books"
    if path.startswith(_CATALOG_PATHS):
        return "catalog"
    return "pages" if path == "/" or path.startswith(_PAGE_PATHS) else None


async def enter_turn(scope: Scope, wallet: Address) -> None:
    """Waits for the turn of a read of books. Does nothing for another request."""
    turn: _RequestTurn | None = scope.get("state", {}).get(_TURN)
    if turn is not None:
        await turn.enter(wallet)


def leave_turn(scope: Scope) -> None:
    """Ends the turn before the response starts, where the rest of the request waits for another server."""
    turn: _RequestTurn | None = scope.get("state", {}).get(_TURN)
    if turn is not None:
        turn.leave()
