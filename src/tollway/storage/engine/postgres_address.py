"""The address of a PostgreSQL database, parsed from a URL: one server, or several of which one accepts writes.

The text of an address never contains the password.
"""

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

PORT = 5432
HOSTS_MAX = 8

_SCHEMES = ("postgresql", "postgresql+asyncpg")
_WRITABLE, _ANY = "read-write", "any"
_SESSIONS = (_ANY, "primary", _WRITABLE)
"""Without the values that select a standby, because a gateway writes."""
_OPTIONS = (
    "application_name",
    "gsslib",
    "krbsrvname",
    "options",
    "passfile",
    "ssl",
    "ssl_max_protocol_version",
    "ssl_min_protocol_version",
    "sslcert",
    "sslcrl",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
)
_HOST = re.compile(r"\[[0-9A-Fa-f:.]+\]|[^\[\]:,@/\s]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresHost:
    """A server: a name, an IP address, or the folder of a socket (`/run/postgresql`)."""

    name: str
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAddress:
    """The address of a database. `hosts`: in the order of the tries. `session`: the required kind of server (libpq's
    target_session_attrs). `options`: the other parameters of the URL, most of them for TLS."""

    hosts: tuple[PostgresHost, ...]
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    session: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, url: str) -> "PostgresAddress":
        """Parses `postgresql://user:password@h1:p1,h2:p2/name?sslmode=…`; hosts may also be `?host=h1:p1&host=h2:p2`. Raises ValueError
        without the URL, which may contain a password."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ValueError("must begin with postgresql://")
        netloc, path, query = _split(rest)
        identity, _, hosts_text = netloc.rpartition("@")
        user, _, password = identity.partition(":")
        named: dict[str, list[str]] = {}
        for key, value in parse_qsl(query, keep_blank_values=True):
            named.setdefault(key, []).append(value)
        texts = [one for one in hosts_text.split(",") if one]
        if "host" in named:
            if texts:
                raise ValueError("name the hosts before the path, or as host=…, not both")
            texts = [one for part in named.pop("host") for one in part.split(",")]
        ports = [one for part in named.pop("port", []) for one in part.split(",")]
        hosts = _parse_hosts(texts, ports)
        session = named.pop("target_session_attrs", [_WRITABLE if len(hosts) > 1 else _ANY])[-1]
        if session not in _SESSIONS:
            raise ValueError("target_session_attrs: a gateway writes; one of: " + ", ".join(_SESSIONS))
        for key in named:
            if key not in _OPTIONS:
                raise ValueError(f"there is no such parameter of a PostgreSQL URL: {key}")
        options = {("sslmode" if key == "ssl" else key): values[-1] for key, values in named.items()}
        return cls(
            hosts=hosts,
            user=unquote(user) or None,
            password=unquote(password) or None,
            database=unquote(path) or None,
            session=session,
            options=tuple(options.items()),
        )

    @property
    def dsn(self) -> str:
        return "postgresql:///?" + urlencode(self.options)

    def __str__(self) -> str:
        """The hosts and the database without any secret, for logs and `doctor`."""
        return f"{','.join(map(str, self.hosts))}/{self.database or ''}"


def _split(rest: str) -> tuple[str, str, str]:
    """Splits host part, path and query. A URL parser cannot parse several hosts with ports, so it gets path and query only."""
    netloc, slash, tail = rest.partition("/")
    if not slash:
        netloc, mark, tail = rest.partition("?")
        return netloc, "", tail if mark else ""
    parts = urlsplit("/" + tail)
    return netloc, parts.path.removeprefix("/"), parts.query


def _parse_hosts(texts: list[str], ports: list[str]) -> tuple[PostgresHost, ...]:
    texts = texts or ["localhost"]
    if len(texts) > HOSTS_MAX:
        raise ValueError(f"at most {HOSTS_MAX} hosts")
    if len(ports) not in (0, 1, len(texts)):
        raise ValueError("as many ports as hosts, or one for all")
    shared = ports * len(texts) if len(ports) == 1 else ports
    hosts = []
    for position, part in enumerate(texts):
        part = unquote(part)
        if part.startswith("/"):
            name, port = part, ""
        else:
            name, separator, port = part.rpartition(":") if not part.endswith("]") else (part, "", "")
            name, port = (name, port) if separator else (part, "")
            if not _HOST.fullmatch(name) or not name:
                raise ValueError("a host is a name, an IPv4 address or an IPv6 address in brackets")
        port = port or (shared[position] if shared else "")
        if port and (not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65_536):
            raise ValueError("a port is a number from 1 to 65535")
        hosts.append(
            PostgresHost(name=name.removeprefix("[").removesuffix("]"), port=int(port) if port else PORT)
        )
    return tuple(hosts)
