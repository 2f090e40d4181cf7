"""Parsers of the values of settings. Each raises ValueError or TypeError; none reads a file or the network."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from pydantic import Secret

from tollway.discovery.safe_text import clean_line
from tollway.identity.siwe import parse_origin
from tollway.ids import Address
from tollway.money import Price
from tollway.outbound.dns import NameServer
from tollway.rate_limits.redis_url import parse_redis_url
from tollway.registry.text import CONTACT_EXAMPLE, PAGE_EXAMPLE, is_contact, is_page_url
from tollway.storage.engine.postgres_address import PostgresAddress

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_public_url(raw: Any) -> str:
    text = str(raw)
    parts = urlsplit(text)
    is_web = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    if not is_web or not text.isprintable() or parts.port == 0:
        raise ValueError("must be an http(s) URL such as https://gateway.example.com")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError("must be an origin, without path, query or fragment")
    return str(parse_origin(text))


NAME_LENGTH_MAX = 80


def parse_contact(raw: Any) -> str:
    """Where the operator is reached: it stands on every page, in `security.txt` and in the contract."""
    text = str(raw)
    if not is_contact(text):
        raise ValueError(f"must be such as {CONTACT_EXAMPLE}")
    return text


def parse_page_url(raw: Any) -> str:
    """A page of the operator, which the pages of the gateway link to."""
    text = str(raw)
    if not is_page_url(text):
        raise ValueError(f"must be an https URL such as {PAGE_EXAMPLE}")
    return text


def parse_operator_name(raw: Any) -> str:
    """A name that pages, Markdown and a terminal show as it is written."""
    if not isinstance(raw, str) or not raw or clean_line(raw, NAME_LENGTH_MAX) != raw:
        raise ValueError(
            f"must be one line of 1 to {NAME_LENGTH_MAX} characters, without markup, control or bidi characters"
        )
    return raw


_LISTEN = re.compile(r"(?:\[([0-9a-fA-F:.]+(?:%[A-Za-z0-9._-]+)?)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")


def parse_listen(raw: Any) -> Listen:
    match = _LISTEN.fullmatch(str(raw))
    if match is None or int(match[3]) > 65_535:
        raise ValueError("must be host:port, such as 127.0.0.1:8402 or [::1]:8402")
    return Listen(host=match[1] or match[2], port=int(match[3]))


def parse_admin_listen(raw: Any) -> Listen | None:
    return None if raw is False or str(raw).lower() == "off" else parse_listen(raw)


def parse_database_url(raw: Any) -> Secret[str]:
    text = str(raw)
    if not re.match(r"(sqlite:///[^:]|postgresql(\+asyncpg)?://)", text):
        raise ValueError("must be sqlite:///file or postgresql://user:password@host/name")
    if text.startswith("postgresql"):
        PostgresAddress.parse(text)
    return Secret(text)


def parse_rate_limit_url(raw: Any) -> Secret[str]:
    return Secret(parse_redis_url(str(raw)))


def parse_ratio(raw: Any) -> float:
    share = 0.0 if str(raw) in ("0", "0.0") else float(parse_number(raw, float))
    if share > 1:
        raise ValueError("must be a share from 0 to 1, such as 0.01")
    return share


DRAIN_NOTICE_S_MAX = 300


def parse_drain_notice(raw: Any) -> float:
    """Seconds from 0 to `DRAIN_NOTICE_S_MAX`."""
    seconds = 0.0 if str(raw) in ("0", "0.0") else float(parse_number(raw, float))
    if seconds > DRAIN_NOTICE_S_MAX:
        raise ValueError(f"must be {DRAIN_NOTICE_S_MAX} seconds at most")
    return seconds


CONTROL_WORKERS_MAX = 16


def parse_control_workers(raw: Any) -> int:
    """A number of processes from 0 to `CONTROL_WORKERS_MAX`."""
    count = 0 if str(raw) == "0" else int(parse_number(raw, int))
    if count > CONTROL_WORKERS_MAX:
        raise ValueError(f"must be {CONTROL_WORKERS_MAX} processes at most")
    return count


def parse_number(raw: Any, kind: type) -> Any:
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    text = str(raw) if is_number or isinstance(raw, str) else ""
    if not re.fullmatch(r"[0-9]{1,15}" if kind is int else r"[0-9]{1,15}(\.[0-9]{1,9})?", text):
        raise ValueError("must be a whole number" if kind is int else "must be a number")
    if not float(text):
        raise ValueError("must be more than 0")
    return kind(text)


def one_of(*options: str) -> Callable[[Any], Any]:
    def parse(raw: Any) -> str:
        if raw not in options:
            raise ValueError("must be one of: " + ", ".join(options))
        return str(raw)

    return parse


def parse_strings(raw: Any) -> list[str]:
    """A TOML list of strings, or one text with commas."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("must be a list of strings")
    return [part.strip() for part in parts if part.strip()]


def parse_wallets(raw: Any) -> frozenset[Address]:
    return frozenset(Address.parse(text) for text in parse_strings(raw))


RETIRED_SIGNERS_MAX = 50
"""Together with those of the secret keys fewer than a verifier of receipts reads."""


def parse_signers(raw: Any) -> tuple[Address, ...]:
    signers = tuple(dict.fromkeys(Address.parse(text) for text in parse_strings(raw)))
    if len(signers) > RETIRED_SIGNERS_MAX:
        raise ValueError(f"there may be {RETIRED_SIGNERS_MAX} retired keys at most")
    return signers


def parse_proxies(raw: Any) -> tuple[str, ...]:
    networks = [_unmap(ipaddress.ip_network(text)) for text in parse_strings(raw)]
    if any(network.prefixlen == 0 for network in networks):
        raise ValueError(
            "all addresses as proxies would let every caller choose its client address; name the proxies"
        )
    return tuple(str(network) for network in networks)


def _unmap(network: IpNetwork) -> IpNetwork:
    """Clients are known by their IPv4 address, also where a socket for both families writes it as IPv6."""
    first = network.network_address
    if not isinstance(first, ipaddress.IPv6Address) or first.ipv4_mapped is None or network.prefixlen < 96:
        return network
    return ipaddress.IPv4Network((first.ipv4_mapped, network.prefixlen - 96))


def is_path_like(text: str) -> bool:
    """True for the name of a file: text with a slash or a dot. A wrong key must not be read as a file name, which errors contain."""
    return "/" in text or "." in text


def parse_origins(raw: Any) -> frozenset[str]:
    """Web origins as browsers send them, such as `https://chat.example.com`; `*` is any."""
    origins = frozenset(text.lower().rstrip("/") for text in parse_strings(raw))
    for origin in origins - {"*"}:
        parts = urlsplit(origin)
        is_web = parts.scheme in ("http", "https") and parts.netloc
        if not is_web or f"{parts.scheme}://{parts.netloc}" != origin:
            raise ValueError(f"{origin} is no web origin such as https://chat.example.com")
    return origins


def parse_hosts(raw: Any) -> frozenset[str]:
    """Host names without a port, such as `gateway-admin.internal`."""
    hosts = frozenset(text.lower() for text in parse_strings(raw))
    for host in hosts:
        if not re.fullmatch(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\]", host):
            raise ValueError(f"{host[:80]} is no host name such as gateway-admin.internal")
    return hosts


def parse_name_servers(raw: Any) -> tuple[NameServer, ...]:
    """Addresses, each with a port or the usual one: `192.0.2.53`, `192.0.2.53:5353`, `[2001:db8::53]:5353`."""
    return tuple(_parse_name_server(text) for text in parse_strings(raw))


def _parse_name_server(text: str) -> NameServer:
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+))(?::([0-9]{1,5}))?|([0-9a-fA-F:.]+)", text)
    if match is None or not 0 < int(match[3] or 53) <= 65_535:
        raise ValueError(f"{text[:60]} is not an address of a name server, such as 192.0.2.53:53")
    address = ipaddress.ip_address(match[1] or match[2] or match[4])
    return NameServer(ip=str(address), port=int(match[3] or 53))


def parse_maxima(raw: Any) -> Mapping[str, int]:
    """`{USDC = "100"}`, or `USDC:100,ETH:0.05`."""
    pairs = _parse_pairs(raw) if isinstance(raw, str) else raw
    if not isinstance(pairs, dict):
        raise TypeError('must be a table such as {USDC = "100"}')
    return MappingProxyType({str(symbol): Price.parse(str(value)).nano for symbol, value in pairs.items()})


def _parse_pairs(raw: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in parse_strings(raw):
        symbol, separator, value = part.partition(":")
        if not separator:
            raise ValueError("must be such as USDC:100,ETH:0.05")
        if symbol in pairs:
            raise ValueError(f"{symbol[:40]} stands twice")
        pairs[symbol] = value
    return pairs


def rpc_name(preset: str) -> str:
    return "RPC_" + preset.upper().replace("-", "_")


def gas_keys_name(preset: str) -> str:
    return "GAS_KEYS_" + preset.upper().replace("-", "_")
