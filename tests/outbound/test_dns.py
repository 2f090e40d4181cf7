"""Name look-ups in threads: slow names share few of them, and names that answered quickly have their own."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from tests.kit.waits import until
from tollway.outbound.dns import (
    OTHER_THREADS_MAX,
    QUICK_S,
    QUICK_THREADS_MAX,
    SLOW_FOR_S,
    TEXT_BYTES_MAX,
    TEXTS_MAX,
    HostResolver,
    NameServer,
    TxtRecords,
)

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
        await until(lambda: self.resolver.running == count)

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


# ---- TXT records of a name, from a name server on loopback with chosen responses.


NAME = "_tollway.api.example.com"

Answerer = Callable[[dns.message.Message], dns.message.Message | bytes | None]


class Server(asyncio.DatagramProtocol):
    def __init__(self, answer: Answerer) -> None:
        self.answer = answer
        self.asked: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = dns.message.from_wire(data)
        self.asked.append(question.question[0].to_text())
        answer = self.answer(question)
        if answer is not None:
            wire = answer if isinstance(answer, bytes) else answer.to_wire(max_size=65_535)
            self.transport.sendto(wire, addr)  # type: ignore[attr-defined] # a datagram transport


@asynccontextmanager
async def run_server(answer: Answerer) -> AsyncIterator[tuple[NameServer, Server]]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: Server(answer), ("127.0.0.1", 0))
    try:
        yield NameServer(ip="127.0.0.1", port=transport.get_extra_info("sockname")[1]), server
    finally:
        transport.close()


def texts(*records: str) -> Answerer:
    def answer(question: dns.message.Message) -> dns.message.Message:
        told = dns.message.make_response(question)
        if records:
            told.answer.append(dns.rrset.from_text(question.question[0].name, 60, "IN", "TXT", *records))
        return told

    return answer


def code(rcode: dns.rcode.Rcode) -> Answerer:
    def answer(question: dns.message.Message) -> dns.message.Message:
        told = dns.message.make_response(question)
        told.set_rcode(rcode)
        return told

    return answer


async def ask(answer: Answerer, *, deadline_s: float = 60.0) -> tuple[str, ...] | None:
    async with run_server(answer) as (address, _):
        return await TxtRecords([address], deadline_s=deadline_s).find_texts(NAME)


LONG = '"' + "x" * 255 + '" '


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (texts('"one"', '"two words"'), ("one", "two words")),
        (texts('"in " "two strings"'), ("in two strings",)),
        (texts(r'"\255\000"'), ("\xff\x00",)),
        (texts(LONG * 5, '"short"'), ("short",)),
        (texts(), ()),
        (code(dns.rcode.NXDOMAIN), ()),
        (code(dns.rcode.SERVFAIL), None),
        (code(dns.rcode.REFUSED), None),
    ],
    ids=("two", "split", "odd bytes", "too long", "none", "no such name", "failure", "refused"),
)
async def test_records_are_returned_as_texts(answer: Answerer, found: tuple[str, ...] | None) -> None:
    assert len(LONG) * 5 > TEXT_BYTES_MAX
    told = await ask(answer)
    assert (told and tuple(sorted(told))) == found  # records have no order


async def test_so_many_texts_are_read_and_no_more() -> None:
    many = texts(*(f'"{number}"' for number in range(TEXTS_MAX + 5)))
    assert len(await ask(many) or ()) == TEXTS_MAX


@pytest.mark.parametrize(
    "answer", [lambda question: None, lambda question: b"garbage"], ids=["silent", "garbage"]
)
async def test_a_server_without_an_answer_is_waited_for_until_the_deadline(answer: Answerer) -> None:
    assert await ask(answer, deadline_s=0.2) is None


async def test_the_exact_name_is_resolved_without_a_suffix() -> None:
    async with run_server(code(dns.rcode.NXDOMAIN)) as (address, server):
        names = TxtRecords([address], deadline_s=60.0)
        await names.find_texts(NAME)
        await names.find_texts(NAME + ".")
        assert server.asked == [f"{NAME}. IN TXT"] * 2


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".com", "é.example.com" * 40])
async def test_a_name_that_is_none_has_no_texts(name: str) -> None:
    async with run_server(texts('"one"')) as (address, _):
        assert not await TxtRecords([address], deadline_s=60.0).find_texts(name)


async def test_without_configured_servers_those_of_the_system_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a name server in the system's configuration the result comes at once; configured servers need no system."""
    import dns.resolver

    empty = tmp_path / "resolv.conf"
    empty.write_text("")
    original = dns.resolver.BaseResolver.read_resolv_conf
    monkeypatch.setattr(
        dns.resolver.BaseResolver, "read_resolv_conf", lambda self, file: original(self, str(empty))
    )
    assert await TxtRecords(deadline_s=60.0).find_texts(NAME) is None
    async with run_server(texts('"one"')) as (address, _):
        assert await TxtRecords([address], deadline_s=60.0).find_texts(NAME) == ("one",)
