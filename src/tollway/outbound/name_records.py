"""What a name says of itself: its TXT records, asked of the system's name servers or of those that the operator names.

An answer is data only: nothing is ever dialled because of it. The library for it is loaded with the first question.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver
    from dns.resolver import Answer

TEXTS_MAX = 100
TEXT_BYTES_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServer:
    """An address and a port. It is the operator's, so that it may stand in a private network."""

    ip: str
    port: int


class TxtRecords:
    """One per process; safe to use from many tasks at once. `servers` empty: those of the system's configuration."""

    def __init__(self, servers: Sequence[NameServer] = (), *, deadline_s: float) -> None:
        self._servers = tuple(servers)
        self._deadline_s = deadline_s
        self._texts_resolver: _TxtResolver | None = None

    async def find_texts(self, name: str) -> tuple[str, ...] | None:
        """The TXT records of an ASCII name, each as one text; none when there are none. None: no name server answers."""
        if self._texts_resolver is None:
            self._texts_resolver = await asyncio.to_thread(_TxtResolver, self._servers)
        return await self._texts_resolver.resolve_texts(name, deadline_s=self._deadline_s)


class _TxtResolver:
    """The way to the name servers. Making it loads a library and reads the system's configuration: for a thread."""

    def __init__(self, servers: Sequence[NameServer]) -> None:
        from dns import (  # noqa: PLC0415 - only who asks for a proof in a name needs it
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
            self._resolver = None  # the system names none
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
    """A record of several strings is one text (RFC 7208 §3.3 reads them so, and so does everybody)."""
    found = []
    for record in list(answer)[:TEXTS_MAX]:
        whole = b"".join(record.strings)
        if len(whole) <= TEXT_BYTES_MAX:
            found.append(whole.decode("latin-1"))
    return tuple(found)
