"""The settings file: which one it is, and whether it may hold what it holds. What others may read must not hold a secret.

It names no value of the file, ever; only the settings that have one.
"""

import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tollway.errors import SettingsInvalid
from tollway.setting_values import is_path_like, parse_strings

CONFIG_DEFAULT = Path("tollway.toml")
NAMES_SHOWN_MAX = 3

_API_KEY = re.compile(r"[A-Za-z0-9_-]{24,}")
"""What providers of nodes put into their URLs. Names of networks and methods are shorter."""


def read_settings_file(
    environment: Mapping[str, str], config: Path | None
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """What stands in `config`, else in what `TOLLWAY_CONFIG` names, else in `tollway.toml` in the current directory where
    there is one; and what is wrong with the file. Raises `SettingsInvalid` where nothing of it can be read.
    """
    named = config or (Path(environment["TOLLWAY_CONFIG"]) if environment.get("TOLLWAY_CONFIG") else None)
    path = named or CONFIG_DEFAULT
    if named is None and not path.exists():
        return {}, ()
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            table = tomllib.load(file)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        reason = exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)
        raise SettingsInvalid([f"{path}: {reason}"]) from exc
    return table, tuple(_check_mode(path, table) if mode & stat.S_IROTH else ())


def _check_mode(path: Path, table: Mapping[str, Any]) -> Iterator[str]:
    secrets = list(find_secrets(table))
    if secrets:
        names = ", ".join(secrets[:NAMES_SHOWN_MAX]) + (", …" if secrets[NAMES_SHOWN_MAX:] else "")
        advice = f"chmod 640 {path.name}, or set it in the environment"
        yield f"{path}: others may read it, and it holds a secret ({names}): {advice}"


def find_secrets(table: Mapping[str, Any]) -> Iterator[str]:
    """The names of the settings of a file whose values are secret, whether they are well formed or not."""
    if table.get("secret_key"):
        yield "secret_key"
    for name in ("database_url", "rate_limit_url"):
        if _has_password(table.get(name)):
            yield name
    networks = table.get("networks")
    for position, network in enumerate(networks if isinstance(networks, list) else ()):
        if isinstance(network, dict):
            yield from (f"networks[{position}].{name}" for name in _find_secrets_of_network(network))


def _find_secrets_of_network(network: Mapping[str, Any]) -> Iterator[str]:
    if any(not is_path_like(key) for key in _texts(network.get("gas_keys"))):
        yield "gas_keys"
    if any(_has_password(url) or _has_api_key(url) for url in _texts(network.get("rpc_urls"))):
        yield "rpc_urls"
    facilitator = network.get("facilitator")
    if isinstance(facilitator, dict):
        yield from (
            f"facilitator.{name}" for name in ("verify_headers", "settle_headers") if facilitator.get(name)
        )


def _texts(raw: Any) -> list[str]:
    try:
        return parse_strings(raw or [])
    except ValueError:
        return []  # whoever parses it says so


def _has_password(raw: Any) -> bool:
    if not isinstance(raw, str):
        return False
    try:
        parts = urlsplit(raw)
        return bool(parts.password) or "password=" in parts.query
    except ValueError:
        return "@" in raw


def _has_api_key(url: str) -> bool:
    """A URL of a node whose path or query holds a key."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return bool(_API_KEY.search(f"{parts.path}?{parts.query}"))
