"""TXT records of a name, from a name server on loopback with chosen responses."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from tollway.outbound.dns import TEXT_BYTES_MAX, TEXTS_MAX, NameServer, TxtRecords

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


async def ask(answer: Answerer, *, deadline_s: float = 5.0) -> tuple[str, ...] | None:
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
        (lambda question: b"garbage", None),
    ],
    ids=("two", "split", "odd bytes", "too long", "none", "no such name", "failure", "refused", "garbage"),
)
async def test_records_are_returned_as_texts(answer: Answerer, found: tuple[str, ...] | None) -> None:
    assert len(LONG) * 5 > TEXT_BYTES_MAX
    told = await ask(answer, deadline_s=1.0)
    assert (told and tuple(sorted(told))) == found  # records have no order


async def test_so_many_texts_are_read_and_no_more() -> None:
    many = texts(*(f'"{number}"' for number in range(TEXTS_MAX + 5)))
    assert len(await ask(many) or ()) == TEXTS_MAX


async def test_a_silent_server_is_waited_for_until_the_deadline() -> None:
    async with asyncio.timeout(20):
        assert await ask(lambda question: None, deadline_s=0.2) is None


async def test_the_exact_name_is_resolved_without_a_suffix() -> None:
    async with run_server(code(dns.rcode.NXDOMAIN)) as (address, server):
        names = TxtRecords([address], deadline_s=5.0)
        await names.find_texts(NAME)
        await names.find_texts(NAME + ".")
        assert server.asked == [f"{NAME}. IN TXT"] * 2


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".com", "é.example.com" * 40])
async def test_a_name_that_is_none_has_no_texts(name: str) -> None:
    async with run_server(texts('"one"')) as (address, _):
        assert not await TxtRecords([address], deadline_s=1.0).find_texts(name)


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
    assert await TxtRecords(deadline_s=5.0).find_texts(NAME) is None
    async with run_server(texts('"one"')) as (address, _):
        assert await TxtRecords([address], deadline_s=5.0).find_texts(NAME) == ("one",)
