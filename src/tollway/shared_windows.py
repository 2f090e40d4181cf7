"""Sliding windows on a Valkey or Redis server that several gateways ask: so that a caller has one rate at all of them.

It answers within its deadline or says that nobody could. While the server is away nobody waits for it: whoever asks is
told so at once, and a chore finds out when it is back. One log line tells of an outage and one of its end. What it
writes there is short-lived, and names nobody: keys are keyed hashes.

Loaded only where such a server is named: its client takes a tenth of a second and some MiB.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from limits import RateLimitItem, RateLimitItemPerSecond
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tollway.windows_url import WINDOWS_SCHEMES

_log = structlog.get_logger(__name__)

T = TypeVar("T")

CONNECTIONS_MAX = 32
NOTES_MAX = 10_000
_PROBE = RateLimitItemPerSecond(1_000, namespace="probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A window as it is now. `reset_s`: when its oldest entry leaves it, in seconds since the epoch."""

    left: int
    reset_s: float


class SharedWindows:
    """One per process. Safe to use from many tasks at once. `namespace`: gateways that share windows give the same one;
    `secret`: what the names in keys are hashed with, the same at all of them."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str,
        secret: bytes,
        deadline_s: float,
        retry_s: float,
        on_change: Callable[[bool], None] = lambda is_up: None,
    ) -> None:
        self._pool = _make_pool(url, deadline_s)
        self._prefix = f"tollway:{namespace}"
        self._storage = RedisStorage(
            "async+redis://",
            implementation="redispy",
            key_prefix=self._prefix,
            connection_pool=self._pool,  # type: ignore[arg-type] # limits' stub knows plain values only
        )
        self._limiter = MovingWindowRateLimiter(self._storage)
        self._secret = hmac.digest(secret, b"tollway shared rates", "sha256")
        self._deadline_s = deadline_s
        self._retry_s = retry_s
        self._on_change = on_change
        self._notes: asyncio.Queue[Callable[[], Awaitable[object]]] = asyncio.Queue(NOTES_MAX)
        self._client = Redis(connection_pool=self._pool)
        self._is_up = False
        self._was_told = False

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def hit(self, item: RateLimitItem, *key: str) -> bool | None:
        """Whether one more was within the limit, and so counted; None when nobody could say."""
        return await self._ask(lambda: self._limiter.hit(item, self._hash(key)))

    async def look(self, item: RateLimitItem, *key: str) -> Standing | None:
        """Counts nothing; None when nobody could say."""
        stats = await self._ask(lambda: self._limiter.get_window_stats(item, self._hash(key)))
        return None if stats is None else Standing(left=stats.remaining, reset_s=stats.reset_time)

    def note(self, item: RateLimitItem, *key: str) -> None:
        """One more, told by the chore. What comes while the server is away, or faster than it counts, is dropped."""
        name = self._hash(key)
        self._enqueue(lambda: self._limiter.hit(item, name))

    def give_back(self, item: RateLimitItem, *key: str) -> None:
        """Takes back the newest entry; by the chore, and dropped like a note: then it leaves with its window. A moving window
        of `limits` is a list of times, the newest first."""
        window = f"{self._prefix}:{item.key_for(self._hash(key))}"
        self._enqueue(lambda: self._client.lpop(window))

    def _enqueue(self, question: Callable[[], Awaitable[object]]) -> None:
        if self._is_up and not self._notes.full():
            self._notes.put_nowait(question)

    async def open(self) -> None:
        """The first look, so that the first caller is counted where the others are. A server that is away may come
        later."""
        await self.mend()

    async def close(self) -> None:
        self._is_up = False
        await self._pool.disconnect()

    async def pass_on(self) -> None:
        """A chore: waits until something was noted, and passes on all that was."""
        notes = [await self._notes.get()]
        while not self._notes.empty():
            notes.append(self._notes.get_nowait())
        for note in notes:
            await self._ask(note)

    async def mend(self) -> None:
        """A chore: whether the server is there and takes writes, so that no caller has to find out."""
        if await self._try(lambda: self._limiter.hit(_PROBE)) is not None:
            self._rise()

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T | None:
        return await self._try(question) if self._is_up else None

    async def _try(self, question: Callable[[], Awaitable[T]]) -> T | None:
        task = asyncio.current_task()
        assert task is not None
        asked_to_leave = task.cancelling()
        answer: T | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                answer = await question()
        except (RedisError, OSError, ValueError) as exc:  # a TimeoutError is an OSError
            self._fall(exc)
        # The client can lose a cancellation; whoever left must not go on.
        if task.cancelling() > asked_to_leave:
            raise asyncio.CancelledError
        return answer

    def _fall(self, exc: Exception) -> None:
        is_news, self._is_up = self._is_up or not self._was_told, False
        if is_news:
            self._was_told = True
            self._on_change(False)
            # The exception's own words may hold the URL, and that a password.
            _log.warning("shared_rates_away", cause=type(exc).__name__, retry_s=self._retry_s)

    def _rise(self) -> None:
        if self._is_up:
            return
        self._is_up = self._was_told = True
        self._on_change(True)
        _log.info("shared_rates_up")

    def _hash(self, key: tuple[str, ...]) -> str:
        return hashlib.blake2b("\0".join(key).encode(), key=self._secret, digest_size=16).hexdigest()


def _make_pool(url: str, deadline_s: float) -> BlockingConnectionPool:
    """Connects when first asked. A failure is not tried again: the windows of the process stand in for it."""
    scheme, separator, rest = url.partition("://")
    return BlockingConnectionPool.from_url(
        WINDOWS_SCHEMES[scheme] + separator + rest,
        max_connections=CONNECTIONS_MAX,
        timeout=deadline_s,
        socket_connect_timeout=deadline_s,
        socket_timeout=deadline_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
