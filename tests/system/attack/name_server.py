"""A hostile name server: records that change, mix, chain, embed, hang, are missing, or are enormous. UDP and TCP on
one port. The response for a name depends on how often it was queried."""

import asyncio
import ipaddress
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset

TTL_S = 0
UDP_BYTES_MAX = 512

Answer = Sequence[str] | None
"""Addresses and names (a CNAME to be followed by us); None: no answer at all; empty: there is no such name."""


class NameServer:
    """`zone(name, times)`: the response for a name without its final dot at its n-th query (from 1)."""

    def __init__(self, zone: Callable[[str, int], Answer]) -> None:
        self._zone = zone
        self.asked: Counter[str] = Counter()

    async def run(self, host: str, port: int) -> list[asyncio.BaseTransport | asyncio.Server]:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), local_addr=(host, port))
        server = await asyncio.start_server(self._serve_stream, host, port)
        return [transport, server]

    def answer(self, wire: bytes, *, is_datagram: bool) -> bytes | None:
        question = dns.message.from_wire(wire)
        asked = question.question[0]
        name = asked.name.to_text(omit_final_dot=True).lower()
        if asked.rdtype == dns.rdatatype.A:  # a resolver asks for both kinds: once is once
            self.asked[name] += 1
        found = self._zone(name, max(1, self.asked[name]))
        if found is None:
            return None
        reply = dns.message.make_response(question)
        reply.flags |= dns.flags.RA
        if not found:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        owner = asked.name
        for one in found:
            kind = _kind_of(one)
            if kind == "CNAME":
                target = dns.name.from_text(one)
                reply.answer.append(dns.rrset.from_text(owner, TTL_S, "IN", "CNAME", target.to_text()))
                owner = target
            elif kind == dns.rdatatype.to_text(asked.rdtype):
                reply.find_rrset(
                    reply.answer,
                    owner,
                    dns.rrset.from_text(owner, TTL_S, "IN", kind, one).rdclass,
                    asked.rdtype,
                    create=True,
                ).add(dns.rrset.from_text(owner, TTL_S, "IN", kind, one)[0], TTL_S)
        told = reply.to_wire(max_size=65_535)
        if is_datagram and len(told) > UDP_BYTES_MAX:
            cut = dns.message.make_response(question)
            cut.flags |= dns.flags.TC | dns.flags.RA
            return cut.to_wire()
        return told

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                told = self.answer(await reader.readexactly(length), is_datagram=False)
                if told is not None:
                    writer.write(struct.pack("!H", len(told)) + told)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        told = self._server.answer(data, is_datagram=True)
        if told is not None and self._transport is not None:
            self._transport.sendto(told, addr)


def _kind_of(text: str) -> str:
    try:
        return "A" if ipaddress.ip_address(text).version == 4 else "AAAA"
    except ValueError:
        return "CNAME"
