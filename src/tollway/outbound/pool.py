"""The pool of connections to upstreams: it opens them to allowed addresses only, keeps them while idle, and closes them in time.

`AddressGuard` resolves names under a deadline and checks every record and every socket (SSRF). A name with one denied record is
refused. No socket to an upstream is opened anywhere else.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from time import monotonic

from aiohappyeyeballs import AddrInfoType, start_connection

from tollway.limits import Limits
from tollway.observability.call_trace import CallTrace, find_current_trace
from tollway.outbound.connection import Connection, ReadBuffer
from tollway.outbound.dns import HostResolver
from tollway.outbound.http1 import HeadLimits
from tollway.outbound.policy import Denied, Endpoint, check_address, is_dialable_port, is_literal

RECORDS_MAX = 16  # of one DNS response
_UNSPECIFIED = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound


def lookup_host(host: str, port: int) -> list[str]:
    """Blocks, so it runs in a thread."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


class AddressGuard:
    """The resolver and socket factory of every connection (SSRF guard). It raises OSError for a denied address, like a failed dial."""

    def __init__(
        self,
        *,
        allow_private: bool,
        own_origins: frozenset[str],
        own_addresses: frozenset[str],
        own_listeners: frozenset[tuple[str, int]],
        dns_deadline_s: float,
        lookup: Callable[[str, int], list[str]],
    ) -> None:
        self._allow_private = allow_private
        self._own_origins = own_origins
        self._own_addresses = own_addresses
        self._own_listeners = own_listeners
        self._resolver = HostResolver(lookup, deadline_s=dns_deadline_s)

    async def resolve(self, host: str, port: int) -> list[str]:
        """Every address of `host`, all of them checked. Raises OSError where there is none or one is denied."""
        ips = await self._resolver.resolve(host, port)
        if not 0 < len(ips) <= RECORDS_MAX:
            raise OSError("name resolution gave no usable result")
        for ip in ips:
            self.check(ip, port)
        return ips

    def open_socket(self, addr_info: AddrInfoType) -> socket.socket:
        """A socket for an address that may be dialled. Raises OSError for any other."""
        family, kind, proto, _, address = addr_info
        if len(address) > 3 and address[3]:
            raise PermissionError("the outbound policy denies scope ids")
        self.check(str(address[0]), int(address[1]))
        return socket.socket(family, kind, proto)

    def check(self, ip: str, port: int) -> None:
        """Raises OSError unless this address and port may be dialled."""
        decision = check_address(ip, allow_private=self._allow_private, own_addresses=self._own_addresses)
        if isinstance(decision, Denied):
            raise PermissionError(f"the outbound policy denies this address ({decision.reason})")
        if not is_dialable_port(port):
            raise PermissionError("the outbound policy denies this port")
        for own_ip, own_port in self._own_listeners:
            is_local = own_ip in _UNSPECIFIED and not decision.address.is_global
            if port == own_port and (is_local or str(decision.address) == own_ip):
                raise PermissionError("the outbound policy denies this gateway itself")

    def check_origin(self, endpoint: Endpoint) -> None:
        """Raises OSError for an endpoint that is this gateway by its public origin."""
        if endpoint.origin.replace(".:", ":").removesuffix(".") in self._own_origins:
            raise PermissionError("the outbound policy denies this gateway itself")

    async def check_endpoint(self, endpoint: Endpoint) -> list[str]:
        """Resolves the host and checks every address, without connecting. Returns the addresses. Raises OSError."""
        self.check_origin(endpoint)
        if not is_literal(endpoint.host):
            return await self.resolve(endpoint.host, endpoint.port)
        address = endpoint.host.strip("[]")
        self.check(address, endpoint.port)
        return [address]

    def stop(self) -> None:
        """Does not wait: a look-up that hangs ends by itself."""
        self._resolver.stop()


POOLED_IDLE_S_MAX = 4.0  # common servers close an idle connection after 5 s; the pool closes it before
EVICTION_S = 0.5
NEXT_ADDRESS_S = 0.25  # RFC 8305 §5: the delay before the next address is tried in parallel
_CLOSE_S = 1.0


@cache
def open_tls_context() -> ssl.SSLContext:
    """The TLS context: the system's roots, host names verified, HTTP/1.1 only. Made when the first https upstream is dialled."""
    # Not `create_default_context`, which opens the file of SSLKEYLOGFILE.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    context.set_alpn_protocols(["http/1.1"])
    return context


class ConnectionPool:
    """A pool of connections, by origin. The latest connection is used first, so that the others expire."""

    def __init__(self, *, guard: AddressGuard, limits: Limits, ssl_context: ssl.SSLContext | None) -> None:
        self._guard = guard
        self._limits = limits
        self._ssl_context = ssl_context
        self._head_limits = HeadLimits(
            head_bytes=limits.upstream_head_bytes_max,
            line_bytes=limits.request_line_bytes_max,
            headers=limits.upstream_headers_max,
        )
        self._read_buffer = ReadBuffer(limits.buffer_bytes)
        self._idle: dict[str, list[Connection]] = {}
        self._open: set[Connection] = set()
        self._eviction_timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._is_closed = False

    def acquire(self, origin: str, *, idle_s_max: float) -> Connection | None:
        """An idle connection that was idle for less than `idle_s_max`; None where a new one must be opened."""
        idle = self._idle.get(origin)
        now = monotonic()
        while idle:
            connection = idle.pop()
            if not self._is_reusable(connection, now):
                connection.cut()
            elif now - connection.idle_since < idle_s_max:
                return connection
            else:
                idle.append(connection)
                return None
        return None

    def release(self, connection: Connection) -> None:
        if self._is_closed or not connection.is_open:
            connection.cut()
            return
        self._idle.setdefault(connection.origin, []).append(connection)
        if self._eviction_timer is None:
            self._eviction_timer = asyncio.get_running_loop().call_later(EVICTION_S, self._evict_idle)

    async def open(self, endpoint: Endpoint) -> Connection:
        """Opens a new connection, to an address that is checked in this call. Raises OSError and ValueError for a failed dial."""
        trace = find_current_trace()
        open_socket = self._guard.open_socket if trace is None else partial(self._open_counted, trace)
        async with asyncio.timeout(self._limits.dns_deadline_s + self._limits.connect_deadline_s):
            addresses = await self._find_addresses(endpoint)
            while True:
                peer: object = None
                try:
                    async with asyncio.timeout(self._limits.connect_deadline_s):
                        handle = await start_connection(
                            addresses,
                            happy_eyeballs_delay=NEXT_ADDRESS_S,
                            interleave=1,
                            socket_factory=open_socket,
                        )
                        peer = _find_peer(handle)
                        return await self._attach(endpoint, handle)
                except OSError:  # connected, but TLS failed: another address may work
                    others = [address for address in addresses if address[4][:2] != peer]
                    if not others or len(others) == len(addresses):
                        raise
                    addresses = others

    def _open_counted(self, trace: CallTrace, addr_info: AddrInfoType) -> socket.socket:
        """Opens a socket for a sampled call, and counts the addresses that are tried for it."""
        if trace.step is not None:
            trace.step.count("tollway.dial.addresses")
        return self._guard.open_socket(addr_info)

    async def close(self) -> None:
        self._is_closed = True
        self._idle.clear()
        if self._eviction_timer is not None:
            self._eviction_timer.cancel()
        for connection in list(self._open):
            connection.cut()
        if self._open:
            self._emptied = asyncio.get_running_loop().create_future()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await self._emptied

    async def _find_addresses(self, endpoint: Endpoint) -> list[AddrInfoType]:
        host, port = endpoint.host.strip("[]"), endpoint.port
        found = [host] if is_literal(endpoint.host) else await self._guard.resolve(host, port)
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ip, port, 0, 0))
            if ":" in ip
            else (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (ip, port))
            for ip in found
        ]

    async def _attach(self, endpoint: Endpoint, handle: socket.socket) -> Connection:
        is_tls = endpoint.scheme == "https"
        connection = Connection(
            origin=endpoint.origin,
            is_tls=is_tls,
            handle=handle,
            head_limits=self._head_limits,
            read_buffer=self._read_buffer,
            on_lost=self._forget,
        )
        self._open.add(connection)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                sock=handle,
                ssl=(self._ssl_context or open_tls_context()) if is_tls else None,
                server_hostname=endpoint.host.strip("[]").rstrip(".") if is_tls else None,
            )
            if self._is_closed:
                raise ConnectionAbortedError("this gateway is closing")
        except BaseException:
            connection.cut()
            self._forget(connection)
            handle.close()
            raise
        return connection

    def _forget(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    def _is_reusable(self, connection: Connection, now: float) -> bool:
        return (
            connection.is_open
            and now - connection.idle_since < min(POOLED_IDLE_S_MAX, connection.idle_s_max)
            and now - connection.opened_at < self._limits.connection_age_s
        )

    def _evict_idle(self) -> None:
        self._eviction_timer = None
        now = monotonic()
        for origin, idle in list(self._idle.items()):
            kept = []
            for connection in idle:
                if self._is_reusable(connection, now):
                    kept.append(connection)
                else:
                    connection.cut()
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
        if self._idle:
            self._eviction_timer = asyncio.get_running_loop().call_later(EVICTION_S, self._evict_idle)


def _find_peer(handle: socket.socket) -> object:
    try:
        return handle.getpeername()[:2]
    except OSError:
        handle.close()
        raise
