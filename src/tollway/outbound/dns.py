"""DNS: addresses of names from the system's resolver, in threads and under a deadline; TXT records from name servers.

It checks no address and caches no result. A look-up that hangs holds its thread for as long as the system waits, far beyond the deadline, and any provider may
list slow names. So names whose last look-up was quick have threads of their own. TXT records decide no address to dial; the
library for them is loaded with the first query.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tollway.bounded_cache import BoundedDict

QUICK_THREADS_MAX = 32
OTHER_THREADS_MAX = 16
"""Threads for names whose last look-up was quick, and for all others."""

QUICK_S = 1.0
SLOW_FOR_S = 300.0
"""For this time after a slow look-up a name does not count as quick, even if later look-ups are quick."""

NAMES_MAX = 10_000
"""The maximum of names in each of the two lists, quick and slow."""

Lookup = Callable[[str, int], list[str]]


class HostResolver:
    """Used from one event loop. `lookup` blocks. `clock`: monotonic seconds, read in threads as well."""

    def __init__(
        self,
        lookup: Lookup,
        *,
        deadline_s: float,
        clock: Callable[[], float] = time.monotonic,
        names_max: int = NAMES_MAX,
    ) -> None:
        self._lookup = lookup
        self._deadline_s = deadline_s
        self._clock = clock
        # Not the default thread pool: a slow name server must not block the other users of that pool.
        self._quick_threads = ThreadPoolExecutor(QUICK_THREADS_MAX, thread_name_prefix="resolver")
        self._other_threads = ThreadPoolExecutor(OTHER_THREADS_MAX, thread_name_prefix="resolver-newcomer")
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._quick: BoundedDict[str, None] = BoundedDict(entries_max=names_max)
        self._slow_until_s: BoundedDict[str, float] = BoundedDict(entries_max=names_max)

    @property
    def quick(self) -> tuple[str, ...]:
        """The names with a quick last look-up, the latest at the end."""
        return tuple(self._quick)

    async def resolve(self, host: str, port: int) -> list[str]:
        """All addresses of a name. Concurrent calls for one name share one look-up. Raises OSError where it fails."""
        running = self._running.get(host)
        if running is None:
            threads = self._quick_threads if host in self._quick else self._other_threads
            loop = asyncio.get_running_loop()
            running = self._running[host] = loop.run_in_executor(threads, self._look_up, loop, host, port)
            running.add_done_callback(partial(self._remove_running, host))
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.shield(running)
        except TimeoutError as exc:
            raise OSError("name resolution timed out") from exc
        except (OSError, UnicodeError) as exc:
            raise OSError("name resolution failed") from exc

    def _look_up(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
        """Runs in a thread. Only the duration of the look-up counts, not the wait for a thread."""
        began_s = self._clock()
        try:
            return self._lookup(host, port)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._record_time, host, self._clock() - began_s)

    def _record_time(self, host: str, took_s: float) -> None:
        now_s = self._clock()
        if took_s > QUICK_S:
            self._quick.pop(host, None)
            self._slow_until_s[host] = now_s + SLOW_FOR_S
        elif self._slow_until_s.get(host, 0.0) <= now_s:
            self._slow_until_s.pop(host, None)
            self._quick[host] = None

    def _remove_running(self, host: str, lookup: asyncio.Future[list[str]]) -> None:
        self._running.pop(host, None)
        if not lookup.cancelled():
            lookup.exception()  # retrieved, because every waiter may have timed out before it

    def stop(self) -> None:
        """Shuts the threads down without waiting; a look-up that hangs ends by itself."""
        for threads in (self._quick_threads, self._other_threads):
            threads.shutdown(wait=False, cancel_futures=True)


if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.resolver import Answer

TEXTS_MAX = 100
TEXT_BYTES_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServer:
    """The address and port of a name server. The operator sets it, so it may be in a private network."""

    ip: str
    port: int


class TxtRecords:
    """Reads TXT records. `servers` empty: those of the system's configuration."""

    def __init__(self, servers: Sequence[NameServer] = (), *, deadline_s: float) -> None:
        self._servers = tuple(servers)
        self._deadline_s = deadline_s
        self._texts_resolver: _TxtResolver | None = None

    async def find_texts(self, name: str) -> tuple[str, ...] | None:
        """The TXT records of an ASCII name, each as one text; empty where there are none. None: no name server responds."""
        if self._texts_resolver is None:
            self._texts_resolver = await asyncio.to_thread(_TxtResolver, self._servers)
        return await self._texts_resolver.resolve_texts(name, deadline_s=self._deadline_s)


class _TxtResolver:
    """Queries the name servers. Its constructor loads a library and reads the system's configuration, so it runs in a thread."""

    def __init__(self, servers: Sequence[NameServer]) -> None:
        from dns import (  # noqa: PLC0415 - needed only where ownership is proved by a TXT record
            asyncresolver,
            exception,
            nameserver,
            resolver,
        )

        self._no_answer = (resolver.NXDOMAIN, resolver.NoAnswer)
        self._failures = (exception.DNSException, OSError)
        self._resolver: Resolver | None
        try:
            self._resolver = asyncresolver.Resolver(configure=not servers)
        except self._failures:
            self._resolver = None  # the system has no name server
        if self._resolver is not None and servers:
            self._resolver.nameservers = [
                nameserver.Do53Nameserver(server.ip, server.port) for server in servers
            ]

    async def resolve_texts(self, name: str, *, deadline_s: float) -> tuple[str, ...] | None:
        if self._resolver is None:
            return None
        try:
            async with asyncio.timeout(deadline_s):
                absolute = name.rstrip(".") + "."
                return _read_texts(await self._resolver.resolve(absolute, "TXT", lifetime=deadline_s))
        except self._no_answer:
            return ()
        except (*self._failures, TimeoutError):
            return None


def _read_texts(answer: "Answer") -> tuple[str, ...]:
    """Joins the strings of each record into one text (RFC 7208 §3.3)."""
    found = []
    for record in list(answer)[:TEXTS_MAX]:
        whole = b"".join(record.strings)
        if len(whole) <= TEXT_BYTES_MAX:
            found.append(whole.decode("latin-1"))
    return tuple(found)
