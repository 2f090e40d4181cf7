"""Addresses of names, asked of the system's resolver in threads, under a deadline. It judges none and remembers no answer.

A look-up that hangs holds its thread for as long as the system waits, far beyond the deadline, and anybody may list names that
are slow. So names that answered quickly when they were last asked have threads of their own, which no other name gets.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

QUICK_THREADS_MAX = 32
OTHER_THREADS_MAX = 16
"""Threads for names that answered quickly, and for all others."""

QUICK_S = 1.0
SLOW_FOR_S = 300.0
"""So long a name that was slow is a newcomer, however quickly it answers meanwhile."""

NAMES_MAX = 10_000
"""So many names are known as quick, and as slow."""

Lookup = Callable[[str, int], list[str]]


class HostResolver:
    """One per process, used from one event loop. `lookup` blocks. `clock`: monotonic seconds, read in threads as well."""

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
        self._names_max = names_max
        # Not the default pool: a slow name server must not starve what else runs there.
        self._quick_threads = ThreadPoolExecutor(QUICK_THREADS_MAX, thread_name_prefix="resolver")
        self._other_threads = ThreadPoolExecutor(OTHER_THREADS_MAX, thread_name_prefix="resolver-newcomer")
        self._running: dict[str, asyncio.Future[list[str]]] = {}
        self._quick: OrderedDict[str, None] = OrderedDict()
        self._slow_until_s: OrderedDict[str, float] = OrderedDict()

    @property
    def quick(self) -> tuple[str, ...]:
        """Names that have threads of their own, the one that answered last at the end."""
        return tuple(self._quick)

    async def resolve(self, host: str, port: int) -> list[str]:
        """All addresses. Calls that need the same name at once share one look-up; raises OSError where it fails."""
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
        """In a thread. What counts is how long the name took, not how long it waited for its turn."""
        began_s = self._clock()
        try:
            return self._lookup(host, port)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
                loop.call_soon_threadsafe(self._record_time, host, self._clock() - began_s)

    def _record_time(self, host: str, took_s: float) -> None:
        now_s = self._clock()
        if took_s > QUICK_S:
            self._quick.pop(host, None)
            self._slow_until_s[host] = now_s + SLOW_FOR_S
            self._move_to_end(self._slow_until_s, host)
        elif self._slow_until_s.get(host, 0.0) <= now_s:
            self._slow_until_s.pop(host, None)
            self._quick[host] = None
            self._move_to_end(self._quick, host)

    def _move_to_end(self, names: OrderedDict[str, None] | OrderedDict[str, float], host: str) -> None:
        names.move_to_end(host)
        if len(names) > self._names_max:
            names.popitem(last=False)

    def _remove_running(self, host: str, lookup: asyncio.Future[list[str]]) -> None:
        self._running.pop(host, None)
        if not lookup.cancelled():
            lookup.exception()  # seen, although whoever waited may have given up before it came

    def stop(self) -> None:
        """Lets the threads go; a look-up that hangs ends by itself."""
        for threads in (self._quick_threads, self._other_threads):
            threads.shutdown(wait=False, cancel_futures=True)
