"""The URL of the rate server, parsed without loading redis. `redis_windows` uses it."""

import re
from urllib.parse import parse_qs, urlsplit

REDIS_SCHEMES = {
    "redis": "redis",
    "rediss": "rediss",
    "unix": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
"""Scheme in settings -> scheme of the client, which knows only the older name of the protocol."""


def parse_redis_url(text: str) -> str:
    """Checks the URL and returns it. Raises ValueError without any part of the URL, which may hold a password."""
    try:
        parts = urlsplit(text)
        query = parse_qs(parts.query, strict_parsing=bool(parts.query))
        is_somewhere = parts.path.startswith("/") if parts.scheme == "unix" else bool(parts.hostname)
        is_plain = parts.scheme == "unix" or re.fullmatch(r"(/\d{0,4})?", parts.path) is not None
        is_known = parts.scheme in REDIS_SCHEMES and parts.port != 0 and query.keys() <= {"db"}
    except ValueError:
        is_known = is_somewhere = is_plain = False
    if not (is_known and is_somewhere and is_plain) or any(not db.isdecimal() for db in query.get("db", ())):
        raise ValueError(
            "must be redis://user:password@host:port/0 (or rediss, valkey, valkeys), or unix:///path?db=0"
        )
    return text
