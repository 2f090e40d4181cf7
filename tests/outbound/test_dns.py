"""Name look-ups in threads: slow names share few of them, and names that answered quickly have their own."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self

import pytest

from tollway.outbound.dns import OTHER_THREADS_MAX, QUICK_S, QUICK_THREADS_MAX, SLOW_FOR_S, HostResolver

PATIENCE_S = 20.0


class Resolver:
    """Names that begin with `slow`, and those in `slow`, hang until they are let go. `ran`: how often each was looked up."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.ran: Counter[str] = Counter()
        self.running = 0
        self.now_s = 1_000.0
        self.slow: set[str] = set()
        self._lock = threading.Lock()

    def resolve(self, host: str, port: int) -> list[str]:
        with self._lock:
            self.ran[host] += 1
            self.running += 1
        if host.startswith("slow") or host in self.slow:
            self.released.wait(PATIENCE_S)
        with self._lock:
            self.running -= 1
        return ["192.0.2.1"]


class Harness:
    def __init__(self, deadline_s: float) -> None:
        self.resolver = Resolver()
        self.names = HostResolver(
            self.resolver.resolve, deadline_s=deadline_s, clock=lambda: self.resolver.now_s
        )
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *told: Any) -> None:
        self.resolver.released.set()
        await self._group.__aexit__(*told)
        self.names.stop()

    async def ask(self, host: str, port: int = 443) -> list[str]:
        return await self.names.resolve(host, port)

    def begin(self, hosts: Iterable[str]) -> None:
        """Looks for them without waiting."""
        for host in hosts:
            self._group.create_task(self.ask(host))

    async def until_running(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.resolver.running != count:
                await asyncio.sleep(0.002)

    async def let_go(self) -> None:
        """What hangs ends, and what comes after it may hang again."""
        self.resolver.released.set()
        await self.until_running(0)
        await self.ask("last.example")  # the results of the earlier names are recorded now
        self.resolver.released.clear()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with Harness(PATIENCE_S) as harness:
        yield harness


def name(kind: str, count: int) -> list[str]:
    return [f"{kind}-{number}.example" for number in range(count)]


async def test_slow_names_hold_up_no_name_that_has_answered_before(harness: Harness) -> None:
    await harness.ask("good.example")
    harness.begin(name("slow", 3 * QUICK_THREADS_MAX))
    await harness.until_running(OTHER_THREADS_MAX)
    assert await harness.ask("good.example") == ["192.0.2.1"]
    assert harness.resolver.running == OTHER_THREADS_MAX


async def test_a_name_that_turned_slow_is_a_newcomer_for_a_while(harness: Harness) -> None:
    """Or slow names would take turns at being quick."""
    resolver = harness.resolver
    await harness.ask("good.example")
    await harness.ask("turncoat.example")
    resolver.slow.add("turncoat.example")
    harness.begin(["turncoat.example"])
    await harness.until_running(1)
    resolver.now_s += QUICK_S + 1.0  # so long it took
    await harness.let_go()
    resolver.slow.clear()
    for passed_s, is_newcomer in ((SLOW_FOR_S / 2, True), (SLOW_FOR_S, False)):
        resolver.now_s += passed_s
        await harness.ask("turncoat.example")  # quick again
        ran = resolver.ran["turncoat.example"]
        harness.begin(name(f"slow-{passed_s}", OTHER_THREADS_MAX))
        await harness.until_running(OTHER_THREADS_MAX)
        harness.begin(["turncoat.example"])
        for _ in range(20):
            await harness.ask("good.example")
        assert (resolver.ran["turncoat.example"] == ran) is is_newcomer
        await harness.let_go()


async def test_one_name_has_one_thread_for_all_ports(harness: Harness) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(harness.ask("slow.example", 1024 + number))
        await harness.until_running(1)
        harness.resolver.released.set()
    assert harness.resolver.ran["slow.example"] == 1


async def test_nothing_is_remembered_of_an_answer(harness: Harness) -> None:
    for _ in range(3):
        await harness.ask("good.example")
    assert harness.resolver.ran["good.example"] == 3


async def test_no_caller_waits_longer_than_the_deadline() -> None:
    async with Harness(0.02) as harness:
        with pytest.raises(OSError, match="timed out"):
            await harness.ask("slow.example")
        with pytest.raises(OSError, match="timed out"):  # it is still being looked for
            await harness.ask("slow.example")
        assert harness.resolver.ran["slow.example"] == 1


async def test_so_many_names_are_known_and_no_more(harness: Harness) -> None:
    harness.names = HostResolver(harness.resolver.resolve, deadline_s=PATIENCE_S, names_max=3)
    for host in name("good", 10):
        await harness.ask(host)
    assert [*harness.names.quick] == name("good", 10)[-3:]
