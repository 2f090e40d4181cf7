"""The gateway's public origin: the one name under which wallets sign for it.

It comes from the configuration and never from `Host` or a forwarded header, so nobody can make a signature for
another gateway count here. Pure.
"""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicOrigin:
    """`authority`: lower case, without the scheme's own port. It is `@authority` of RFC 9421 and `domain` of EIP-4361."""

    scheme: str
    authority: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    def is_origin_of(self, uri: str) -> bool:
        """True for this origin itself and for every URI under it."""
        origin = str(self)
        return uri == origin or uri.startswith((origin + "/", origin + "?", origin + "#"))


def parse_origin(public_url: str) -> PublicOrigin:
    """`https://gw.example.com/` -> its origin. Raises ValueError on anything but scheme, host and port."""
    parts = urlsplit(public_url)
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("the public URL begins with http:// or https://")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("the public URL has a scheme, a host and a port, nothing else")
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    if not _HOST.fullmatch(host):
        raise ValueError("the public URL has no usable host")
    port = parts.port
    is_default = port is None or port == _DEFAULT_PORTS[parts.scheme]
    return PublicOrigin(scheme=parts.scheme, authority=host if is_default else f"{host}:{port}")
