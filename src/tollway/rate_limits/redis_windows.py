"""Sliding windows on a Valkey or Redis server that several gateways share, so that a caller has one rate at all of them.

Each request has a deadline and returns None when the server does not answer. While the server is down, requests return None at
once; a background task checks when it is back. One log line reports an outage and one its end. Keys on the server expire, and are
keyed hashes: they name no wallet and no address.

Imported only where such a server is configured: the client takes a tenth of a second and some MiB.
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

from tollway.rate_limits.redis_url import REDIS_SCHEMES

_log = structlog.get_logger(__name__)

T = TypeVar("T")

CONNECTIONS_MAX = 32
PENDING_MAX = 10_000
_PROBE = RateLimitItemPerSecond(1_000, namespace="probe")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisWindowState:
    """The state of a shared window. `reset_s`: the time at which its oldest entry leaves it, in seconds since the epoch."""

    left: int
    reset_s: float


class RedisWindows:
    """The shared windows. `namespace` and `secret`: equal at all gateways that share windows; keys are hashed with the secret."""

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
        self._pending: asyncio.Queue[Callable[[], Awaitable[object]]] = asyncio.Queue(PENDING_MAX)
        self._client = Redis(connection_pool=self._pool)
        self._is_up = False
        self._is_reported = False

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def hit(self, item: RateLimitItem, *key: str) -> bool | None:
        """Returns False at the limit; None without a response of the server."""
        return await self._send_if_up(lambda: self._limiter.hit(item, self._hash(key)))

    async def peek(self, item: RateLimitItem, *key: str) -> RedisWindowState | None:
        """Counts nothing. None without a response of the server."""
        stats = await self._send_if_up(lambda: self._limiter.get_window_stats(item, self._hash(key)))
        return None if stats is None else RedisWindowState(left=stats.remaining, reset_s=stats.reset_time)

    def count_hit(self, item: RateLimitItem, *key: str) -> None:
        """Counts one more, in the background. Dropped while the server is down, and when too many are pending."""
        name = self._hash(key)
        self._enqueue(lambda: self._limiter.hit(item, name))

    def undo_hit(self, item: RateLimitItem, *key: str) -> None:
        """Removes the newest entry, in the background. Without the removal the entry leaves with its window. A moving window of `limits` is a list of times, the
        newest first."""
        window = f"{self._prefix}:{item.key_for(self._hash(key))}"
        self._enqueue(lambda: self._client.lpop(window))

    def _enqueue(self, command: Callable[[], Awaitable[object]]) -> None:
        if self._is_up and not self._pending.full():
            self._pending.put_nowait(command)

    async def open(self) -> None:
        """Checks the server, so that the first caller is counted in the shared windows. A server that is down may come up later."""
        await self.check_server()

    async def close(self) -> None:
        self._is_up = False
        await self._pool.disconnect()

    async def send_pending(self) -> None:
        """A background job: waits for a pending command and sends all of them."""
        commands = [await self._pending.get()]
        while not self._pending.empty():
            commands.append(self._pending.get_nowait())
        for command in commands:
            await self._send_if_up(command)

    async def check_server(self) -> None:
        """A background job: checks that the server answers and accepts writes, so that no caller waits for it."""
        if await self._send(lambda: self._limiter.hit(_PROBE)) is not None:
            self._mark_up()

    async def _send_if_up(self, command: Callable[[], Awaitable[T]]) -> T | None:
        return await self._send(command) if self._is_up else None

    async def _send(self, command: Callable[[], Awaitable[T]]) -> T | None:
        task = asyncio.current_task()
        assert task is not None
        cancellations = task.cancelling()
        reply: T | None = None
        try:
            async with asyncio.timeout(self._deadline_s):
                reply = await command()
        except (RedisError, OSError, ValueError) as exc:  # a TimeoutError is an OSError
            self._mark_down(exc)
        # The client can lose a cancellation; a cancelled task must not continue.
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError
        return reply

    def _mark_down(self, exc: Exception) -> None:
        is_change, self._is_up = self._is_up or not self._is_reported, False
        if is_change:
            self._is_reported = True
            self._on_change(False)
            # The text of the exception may hold the URL, and the URL a password.
            _log.warning("shared_rates_away", cause=type(exc).__name__, retry_s=self._retry_s)

    def _mark_up(self) -> None:
        if self._is_up:
            return
        self._is_up = self._is_reported = True
        self._on_change(True)
        _log.info("shared_rates_up")

    def _hash(self, key: tuple[str, ...]) -> str:
        return hashlib.blake2b("\0".join(key).encode(), key=self._secret, digest_size=16).hexdigest()


def _make_pool(url: str, deadline_s: float) -> BlockingConnectionPool:
    """A pool that connects at the first command and does not retry: the local windows decide without the server."""
    scheme, separator, rest = url.partition("://")
    return BlockingConnectionPool.from_url(
        REDIS_SCHEMES[scheme] + separator + rest,
        max_connections=CONNECTIONS_MAX,
        timeout=deadline_s,
        socket_connect_timeout=deadline_s,
        socket_timeout=deadline_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
