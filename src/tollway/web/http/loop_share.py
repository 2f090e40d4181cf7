"""The part of the event loop that the control plane takes while there are calls.

Calls and the control plane run on one event loop, so a paid call waits for each request that runs before it. `LoopShare` counts the time that requests of the control plane
and refused calls take, and lets the next of them begin, or go on, while their part of the loop lasts. Other calls and health checks never wait here, and no request is refused.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send

SHARE = 1 / 4
"""Seconds of each second, while there are calls."""

BURST_S = 0.005
"""What may run at once after a rest."""

DEBT_S_MAX = 0.1
"""A longer stretch, such as one in which the machine stood still, does not count in full."""

WAITING_MAX = 100
"""Beyond these a request does not wait: each that waits is one of the requests in flight, whose number is limited."""

CALLS_S = 1.0
"""So long after the last look that found a new call the loop is shared. A call is any request to the path of calls."""

REFUSED_CALL_S = 0.0004
"""What a refused call takes of the loop, about."""

_STATE = "loop_share"


class LoopShare:
    """A bucket of seconds of the event loop. For one event loop.

    One request begins or goes on in each iteration of the loop, in the order of arrival, and none while the bucket is empty. Without calls the bucket is full at each look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic, in seconds."""
        self.calls = 0
        """Counted by the call app: calls that have begun."""
        self.clock = clock
        self._calls_seen = 0
        self._is_shared_until_s = clock()
        self.left_s = BURST_S
        self._filled_s = clock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_turn_taken = False

    async def wait(self) -> None:
        """Waits for a turn."""
        given = self._ask()
        if given is not None:
            await given

    async def wait_refused(self) -> None:
        """The turn of a refused call. A client that sends calls to be refused waits here for each answer."""
        self.spend(REFUSED_CALL_S)
        await self.wait()

    def measure(self, run: Coroutine[Any, Any, None]) -> "MeasuredRun":
        return MeasuredRun(run, self)

    def pause(self) -> asyncio.Future[None] | None:
        """What a coroutine yields to its task to go on at its next turn."""
        given = self._ask()
        return None if given is None else next(given.__await__())

    def spend(self, seconds: float) -> None:
        self.left_s = max(self.left_s - seconds, -DEBT_S_MAX)

    def _ask(self) -> asyncio.Future[None] | None:
        """None: the turn is given."""
        loop = asyncio.get_running_loop()
        if not self._is_turn_taken:
            self._is_turn_taken = True
            lack_s = self._fill()
            if lack_s <= 0:
                loop.call_soon(self._give_turn, loop)
                return None
            loop.call_later(lack_s, self._give_turn, loop)
        elif len(self._waiting) >= WAITING_MAX:
            return None
        given = loop.create_future()
        self._waiting.append(given)
        return given

    def _give_turn(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._waiting[0].done():  # the request has ended
            self._waiting.popleft()
        if not self._waiting:
            self._is_turn_taken = False
        elif (lack_s := self._fill()) > 0:
            loop.call_later(lack_s, self._give_turn, loop)
        else:
            self._waiting.popleft().set_result(None)
            loop.call_soon(self._give_turn, loop)

    def _fill(self) -> float:
        """Fills the bucket by the time since the last look. Gives the seconds until it is no longer empty."""
        now_s = self.clock()
        if self.calls != self._calls_seen:
            self._calls_seen = self.calls
            self._is_shared_until_s = now_s + CALLS_S
        is_shared = now_s < self._is_shared_until_s
        filled_s = self.left_s + (now_s - self._filled_s) * SHARE
        self.left_s = min(BURST_S, filled_s) if is_shared else BURST_S
        self._filled_s = now_s
        return -self.left_s / SHARE


class MeasuredRun(Generator[Any, None, None]):
    """An awaitable that runs a coroutine and counts its time. Where the coroutine gives way (`asyncio.sleep(0)`), it goes on at its next turn."""

    __slots__ = ("_run", "_share")

    def __init__(self, run: Coroutine[Any, Any, None], share: LoopShare) -> None:
        self._run = run
        self._share = share

    def __await__(self) -> Generator[Any, None, None]:
        return self

    def send(self, value: None) -> Any:
        return self._go_on(self._run.send, value)

    def throw(self, *given: Any) -> Any:
        return self._go_on(self._run.throw, *given)

    def _go_on(self, resume: Callable[..., Any], *given: Any) -> Any:
        began_s = self._share.clock()
        try:
            awaited = resume(*given)
        finally:
            self._share.spend(self._share.clock() - began_s)
        return self._share.pause() if awaited is None else awaited


class ControlPlaneShare:
    """Middleware: a request of the control plane begins at its turn, and its time is counted."""

    def __init__(self, app: ASGIApp, *, share: LoopShare, unpaced: tuple[str, ...]) -> None:
        """`unpaced`: the beginnings of paths whose requests never wait."""
        self._app = app
        self._share = share
        self._unpaced = unpaced

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(self._unpaced):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})[_STATE] = self._share
        await self._share.wait()
        run = cast("Coroutine[Any, Any, None]", self._app(scope, receive, send))
        await self._share.measure(run)


async def run_in_share(scope: Scope, run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs a part of a request that has a task of its own."""
    share: LoopShare | None = scope.get("state", {}).get(_STATE)
    await (run() if share is None else share.measure(run()))
