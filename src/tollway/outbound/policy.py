"""The rules of the outbound policy: which endpoint may be listed, and which address may be dialled. Pure.

It checks texts and addresses; it never resolves a name and never opens a socket. Unusual forms of a host (`0x7f.1`, full-width
digits) are not checked as text: one WHATWG parser turns them into an address, and the address is checked.
"""

import ipaddress
import re
from dataclasses import dataclass

import ada_url

ENDPOINT_CHARS_MAX = 2048
HOST_CHARS_MAX = 253

AnyAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
AnyNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    address: AnyAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """The address may not be dialled. `reason` is for the log, never for a caller."""

    reason: str


def _table(rows: dict[str, str]) -> tuple[tuple[AnyNetwork, str], ...]:
    return tuple((ipaddress.ip_network(network), reason) for network, reason in rows.items())


# Always denied. The first match counts, so narrow rows come first.
_NEVER = _table(
    {
        # Cloud metadata services, which return machine credentials. Several lie inside ranges that a development gateway may open.
        "169.254.169.254/32": "metadata",
        "169.254.169.253/32": "metadata",
        "169.254.169.123/32": "metadata",
        "169.254.170.2/32": "metadata",
        "169.254.170.23/32": "metadata",
        "169.254.0.23/32": "metadata",
        "169.254.42.42/32": "metadata",
        "100.100.100.200/32": "metadata",
        "168.63.129.16/32": "metadata",
        "192.0.0.192/32": "metadata",
        "fd00:ec2::/32": "metadata",
        "fd20:ce::254/128": "metadata",
        "fd00:42::42/128": "metadata",
        "fd00:c1::a9fe:a9fe/128": "metadata",
        "fe80::a9fe:a9fe/128": "metadata",
        # IPv4 special-purpose registry, less the ranges of _PRIVATE.
        "0.0.0.0/8": "unspecified",
        "192.0.0.0/24": "protocol_assignment",
        "192.0.2.0/24": "documentation",
        "198.51.100.0/24": "documentation",
        "203.0.113.0/24": "documentation",
        "192.31.196.0/24": "as112",
        "192.52.193.0/24": "amt",
        "192.88.99.0/24": "relay_6to4",
        "192.175.48.0/24": "as112",
        "198.18.0.0/15": "benchmarking",
        "224.0.0.0/4": "multicast",
        "255.255.255.255/32": "broadcast",
        "240.0.0.0/4": "reserved",
        # IPv6: every address outside 2000::/3 and _PRIVATE is denied below; these rows name the reason, or deny parts of 2000::/3.
        "::/128": "unspecified",
        "::ffff:0:0/96": "embedded_ipv4",
        "::ffff:0:0:0/96": "embedded_ipv4",
        "64:ff9b::/96": "embedded_ipv4",
        "64:ff9b:1::/48": "embedded_ipv4",
        "2002::/16": "embedded_ipv4",
        "2001::/32": "embedded_ipv4",
        "2001::/23": "protocol_assignment",
        "2001:db8::/32": "documentation",
        "2620:4f:8000::/48": "as112",
        "3ffe::/16": "reserved",
        "3fff::/20": "documentation",
        "5f00::/16": "segment_routing",
        "100::/64": "discard",
        "fec0::/10": "site_local",
        "ff00::/8": "multicast",
    }
)

# Denied unless the operator runs a development gateway (`allow_private_endpoints`).
_PRIVATE = _table(
    {
        "127.0.0.0/8": "loopback",
        "10.0.0.0/8": "private",
        "172.16.0.0/12": "private",
        "192.168.0.0/16": "private",
        "169.254.0.0/16": "link_local",
        "100.64.0.0/10": "shared",
        "::1/128": "loopback",
        "fc00::/7": "private",
        "fe80::/10": "link_local",
    }
)

_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})  # RFC 5214: the interface identifier carries an IPv4 address


def check_address(
    ip: str, *, allow_private: bool, own_addresses: frozenset[str] = frozenset()
) -> Allowed | Denied:
    """Checks whether an address may be dialled. Only global unicast may; an embedded IPv4 address is denied, not decoded.

    `ip`: an address from a resolver or a parsed URL, without brackets. `own_addresses`: the gateway's own,
    in canonical text form. `allow_private` allows loopback, private and link-local ranges and no others.
    """
    if "%" in ip:
        return Denied(reason="scope_id")
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return Denied(reason="not_an_address")
    if str(address) in own_addresses:
        return Denied(reason="own_address")
    if reason := _find_reason(address, _NEVER):
        return Denied(reason=reason)
    if reason := _find_reason(address, _PRIVATE):
        return Allowed(address=address) if allow_private else Denied(reason=reason)
    if isinstance(address, ipaddress.IPv6Address):
        if address not in _GLOBAL_UNICAST:
            return Denied(reason="not_global_unicast")
        if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
            return Denied(reason="embedded_ipv4")
    return Allowed(address=address)


def _find_reason(address: AnyAddress, table: tuple[tuple[AnyNetwork, str], ...]) -> str | None:
    return next((reason for network, reason in table if address in network), None)


def is_dialable_port(port: int) -> bool:
    """80, 443 and the unprivileged ports. The other ports belong to mail, file and remote-shell servers."""
    return port in (80, 443) or 1024 <= port <= 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A parsed endpoint of a listing.

    `host`: ASCII, lower case, IPv6 in brackets. `path`: exactly as the provider wrote it (may be empty);
    `base_path`: the same without its final slash. `origin`: without the default port of the scheme.
    """

    scheme: str
    host: str
    port: int
    path: str
    base_path: str
    origin: str

    @property
    def href(self) -> str:
        """The endpoint as a URL: normalised host, unchanged path."""
        return self.origin + self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointRefused:
    """A text that is no endpoint for this gateway. `reason` is for programs, `detail` for the provider."""

    reason: str
    detail: str


_SHAPE = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#\\]+)(?P<path>/[^?#]*)?", re.I)
_PATH = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_UNCLEAN = re.compile(r"[\x00-\x20\x7f-\xa0\\]")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# `.`, `..` and their percent-encoded forms, at any depth of encoding, also before a matrix parameter.
_DOT = r"(?:\.|%(?:25)*2e)"
_DOT_SEGMENT = re.compile(rf"(?:^|/|%(?:25)*(?:2f|5c)){_DOT}{{1,2}}(?=/|;|%(?:25)*(?:2f|5c|3b)|$)", re.I)
_HIDDEN_CONTROL = re.compile(r"%(?:25)*(?:[01][0-9a-f]|7f)", re.I)


def parse_endpoint(text: str, *, allow_private: bool) -> Endpoint | EndpointRefused:
    """Parses an absolute http(s) URL without userinfo, query and fragment, whose host may be dialled.

    A literal address is checked here; a name is checked at each resolution (`HttpClient`). The path stays as
    written: percent-encoding is kept, dot segments and backslashes are refused, because upstream and gateway could read
    them differently.
    """
    if len(text) > ENDPOINT_CHARS_MAX:
        return _refused("too_long", f"An endpoint must have at most {ENDPOINT_CHARS_MAX} characters.")
    if _UNCLEAN.search(text):
        return _refused(
            "bad_character", "An endpoint must not contain spaces, control characters or backslashes."
        )
    if "#" in text:
        return _refused("fragment", "An endpoint must not have a fragment.")
    if "?" in text:
        return _refused("query", "An endpoint must not have a query.")
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        return _refused("not_absolute", "An endpoint must be an absolute http or https URL.")
    if shape["scheme"].lower() not in ("http", "https"):
        return _refused("scheme", "An endpoint must be an http or https URL.")
    if "@" in shape["authority"]:
        return _refused("userinfo", "An endpoint must not contain a user name or password. Use upstreamAuth.")
    path = shape["path"] or ""
    if not _PATH.fullmatch(path) or _DOT_SEGMENT.search(path) or _HIDDEN_CONTROL.search(path):
        return _refused(
            "path", "The endpoint's path contains dot segments, or characters that must be percent-encoded."
        )
    return _parse_origin(text, path, allow_private=allow_private)


def _parse_origin(text: str, path: str, *, allow_private: bool) -> Endpoint | EndpointRefused:
    try:
        url = ada_url.URL(text)
    except ValueError:
        return _refused("host", "The endpoint's host or port is not valid.")
    scheme = url.protocol.rstrip(":")
    port = int(url.port or (443 if scheme == "https" else 80))
    if not is_dialable_port(port):
        return _refused("port", "The port of an endpoint must be 80, 443, or 1024 and above.")
    host = url.hostname
    if is_literal(host):
        if isinstance(check_address(host.strip("[]"), allow_private=allow_private), Denied):
            return _refused("address", "The endpoint's address is not public.")
    elif not _is_name(host):
        return _refused("host", "The endpoint's host is not a valid name.")
    elif not allow_private and _is_private_name(host):
        return _refused("address", "The endpoint's host is not public.")
    return Endpoint(
        scheme=scheme,
        host=host,
        port=port,
        path=path,
        base_path=path.removesuffix("/"),
        origin=url.origin,
    )


def is_literal(host: str) -> bool:
    return host.startswith("[") or host.rsplit(".", 1)[-1].isdigit()


def _is_name(host: str) -> bool:
    name = host.removesuffix(".")
    return 0 < len(name) <= HOST_CHARS_MAX and all(_LABEL.fullmatch(label) for label in name.split("."))


def _is_private_name(host: str) -> bool:
    # Names of RFC 6761 and RFC 8375 never resolve to public addresses, and must not be sent to a resolver.
    name = host.removesuffix(".")
    return "." not in name or name.endswith((".localhost", ".local", ".internal", ".home.arpa"))


def _refused(reason: str, detail: str) -> EndpointRefused:
    return EndpointRefused(reason=reason, detail=detail)
