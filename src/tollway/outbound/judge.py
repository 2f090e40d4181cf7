"""The way out, the judge at work: resolves names under a deadline, judges every record and every single socket.

A name whose answer holds one denied record is refused whole. The resolver is asked once per new connection, the socket
factory for each address that is dialled, literal ones included; no socket to an upstream is made anywhere else.
"""

import socket
from collections.abc import Callable

from aiohappyeyeballs import AddrInfoType

from tollway.outbound.name_lookups import HostResolver
from tollway.outbound.policy import Denied, Endpoint, check_address, is_dialable_port, is_literal

RECORDS_MAX = 16  # of one DNS answer; more is no honest server
_UNSPECIFIED = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, never bound


def lookup_host(host: str, port: int) -> list[str]:
    """All addresses of a name, from the system's resolver. Blocks: for a thread."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(row[4][0]) for row in found))


class AddressGuard:
    """Resolver and socket factory of every connection. What it denies it raises as OSError: a failed dial."""

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
        """Every address of `host`, all of them judged. Raises OSError when there is none or one is denied."""
        ips = await self._resolver.resolve(host, port)
        if not 0 < len(ips) <= RECORDS_MAX:
            raise OSError("name resolution gave no usable answer")
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
        verdict = check_address(ip, allow_private=self._allow_private, own_addresses=self._own_addresses)
        if isinstance(verdict, Denied):
            raise PermissionError(f"the outbound policy denies this address ({verdict.reason})")
        if not is_dialable_port(port):
            raise PermissionError("the outbound policy denies this port")
        for own_ip, own_port in self._own_listeners:
            is_local = own_ip in _UNSPECIFIED and not verdict.address.is_global
            if port == own_port and (is_local or str(verdict.address) == own_ip):
                raise PermissionError("the outbound policy denies this gateway itself")

    def check_origin(self, endpoint: Endpoint) -> None:
        """Raises OSError for an endpoint that is this gateway under its public name."""
        default = 443 if endpoint.scheme == "https" else 80
        port = "" if endpoint.port == default else f":{endpoint.port}"
        if f"{endpoint.scheme}://{endpoint.host.removesuffix('.')}{port}" in self._own_origins:
            raise PermissionError("the outbound policy denies this gateway itself")

    async def check_endpoint(self, endpoint: Endpoint) -> None:
        """Resolves and judges all of it, without connecting. Raises OSError."""
        self.check_origin(endpoint)
        if is_literal(endpoint.host):
            self.check(endpoint.host.strip("[]"), endpoint.port)
        else:
            await self.resolve(endpoint.host, endpoint.port)

    def stop(self) -> None:
        """Lets the threads go; a look-up that hangs ends by itself."""
        self._resolver.stop()
