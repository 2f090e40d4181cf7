"""Settings: read once from the environment and a TOML file, frozen, with every problem reported together.

The environment wins over the file, the file over the default. An unknown key is an error in both. Only `app` and `cli` read settings; every other package
receives values. Nothing is created at import, and a secret never appears in a repr or an error. A settings file that other users can read must not hold a
secret. Of several secret keys the first signs and encrypts, and all verify and decrypt.
"""

import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from tollway.chain.networks import PRESETS
from tollway.config.networks import NetworkSettings, parse_network
from tollway.config.values import (
    Listen,
    Secret,
    gas_keys_name,
    is_path_like,
    one_of,
    parse_admin_listen,
    parse_contact,
    parse_database_url,
    parse_flag,
    parse_listen,
    parse_maxima,
    parse_name_servers,
    parse_number,
    parse_origins,
    parse_proxies,
    parse_public_url,
    parse_rate_limit_url,
    parse_strings,
    parse_wallets,
    rpc_name,
    suggest,
)
from tollway.errors import SettingsInvalid
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.outbound.dns import NameServer

KEY_BYTES = 32

KEYS_MAX = 8
"""More than one old key is a rotation that was never finished; each costs a try where a value names no key."""

SecretKeys = tuple[Secret[bytes], ...]


def parse_secret_keys(raw: Any) -> SecretKeys:
    """At least one key, the one in use first; between keys stands any white space. Raises ValueError."""
    words = raw.split() if isinstance(raw, str) else []
    if not words:
        raise ValueError("the secret key must be 64 hex digits (32 bytes)")
    if len(words) > KEYS_MAX:
        raise ValueError(f"there may be {KEYS_MAX} secret keys at most; take out those that nothing is under")
    keys = tuple(_parse_key(word, position) for position, word in enumerate(words, 1))
    if len(set(keys)) < len(keys):
        raise ValueError("a secret key stands twice; write each once, the one in use first")
    return keys


def _parse_key(word: str, position: int) -> Secret[bytes]:
    which = "the secret key" if position == 1 else f"secret key {position}"
    if not re.fullmatch(r"[0-9a-fA-F]{64}", word):
        raise ValueError(f"{which} must be 64 hex digits (32 bytes)")
    key = bytes.fromhex(word)
    if len(set(key)) < 8:
        raise ValueError(f"{which} is no random number; make one with: openssl rand -hex 32")
    return Secret(key)


def read_key_file(path: Path) -> SecretKeys:
    """Raises `SettingsInvalid`, also where others may read the file."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SettingsInvalid([f"secret_key_file: others may read {path}: chmod 600 {path}"])
        return parse_secret_keys(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        raise SettingsInvalid([f"secret_key_file: {path} cannot be used: {_reason(exc)}"]) from exc


def make_key_file(path: Path) -> None:
    """One new key, for its owner's eyes alone. Raises `SettingsInvalid`, also where there is a file already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise SettingsInvalid([f"secret_key_file: {path} cannot be made: {_reason(exc)}"]) from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(os.urandom(KEY_BYTES).hex() + "\n")


def _reason(exc: Exception) -> str:
    """Says what is wrong, without the path that an OSError repeats."""
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)


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
        raise SettingsInvalid([f"{path}: {_reason(exc)}"]) from exc
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


def check_listeners(*, listen: Listen, admin_listen: Listen | None, public_url: str) -> Iterator[str]:
    """Where callers come in, and where the operator does."""
    if admin_listen is not None and _is_same_listener(listen, admin_listen):
        yield f"admin_listen: {admin_listen} is where callers are served; take another port, or off"
    if not listen.is_loopback and _is_local_only(urlsplit(public_url).hostname or ""):
        yield f"public_url: callers from outside cannot reach {public_url}; set it to the URL they use"


def _is_same_listener(one: Listen, other: Listen) -> bool:
    """Port 0 is whichever is free. On all addresses is on each of them."""
    hosts = {one.host, other.host}
    is_everywhere = not hosts.isdisjoint(("0.0.0.0", "::"))  # noqa: S104 - compared, not bound
    return one.port == other.port != 0 and (len(hosts) == 1 or is_everywhere)


def _is_local_only(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def check_networks(networks: Sequence[NetworkSettings], *, allow_mixed_networks: bool) -> Iterator[str]:
    chains = [network.rules.chain_id for network in networks]
    for chain_id in sorted({chain for chain in chains if chains.count(chain) > 1}):
        yield f"networks: chain id {chain_id} stands twice"
    if len({network.rules.kind for network in networks}) > 1 and not allow_mixed_networks:
        yield (
            "networks: main and test networks together let test money buy real calls; drop one kind, or set "
            "allow_mixed_networks"
        )


def check_maxima(maxima: Mapping[str, int], networks: Sequence[NetworkSettings]) -> Iterator[str]:
    """A maximum under a misspelt currency would leave the right one without any."""
    known = {asset.symbol for network in networks for asset in network.rules.assets}
    for symbol in sorted(maxima.keys() - known if networks else ()):
        yield f"unfinal_spend_max: {symbol[:40]} is no currency of a configured network"


def check_registration(*, is_open: bool, has_allowlist: bool) -> Iterator[str]:
    if is_open and has_allowlist:
        yield "allowlist: keeps nobody out while registration is open; set registration = allowlist, or drop it"
    if not is_open and not has_allowlist:
        yield "allowlist: registration = allowlist needs at least one wallet"


def check_limits(limits: Limits) -> Iterator[str]:
    """A lease that is renewed too late lapses between two renewals, and the others take over what is alive."""
    if limits.owner_renew_s * 2 > limits.owner_lease_s:
        yield "limits: owner_renew_s must be at most half of owner_lease_s, or a living gateway counts as dead"
    if limits.leader_poll_s >= limits.leader_lease_s:
        yield "limits: leader_poll_s must be less than leader_lease_s, or nobody leads for long"


T = TypeVar("T")

PREFIX = "TOLLWAY_"
ADMIN_LISTEN_DEFAULT = "127.0.0.1:9402"

KEYS = (
    "public_url",
    "contact",
    "listen",
    "admin_listen",
    "database_url",
    "rate_limit_url",
    "secret_key",
    "secret_key_file",
    "allow_mixed_networks",
    "allow_private_endpoints",
    "registration",
    "allowlist",
    "require_bound_signature",
    "require_ownership",
    "name_servers",
    "x402",
    "mpp",
    "unfinal_spend_max",
    "log_level",
    "log_format",
    "trusted_proxies",
    "mcp_origins",
)
"""Every plain setting. Beside them: `networks` and `limits`."""

CLIENT_KEYS = frozenset(
    {
        "CONFIG",
        "GATEWAY",
        "RPC",
        "KEY_FILE",
        "KEY_PASSWORD",
        "PRIVATE_KEY",
        "STORE",
        "ALLOW_HTTP",
        "BUDGET",
        "MAX_FEE",
        "MAX_PRICE",
        "RAIL",
        "SESSION_BUDGET",
    }
)
"""Names after the prefix that other commands read; here they are neither used nor an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`secret_key` None: `ensure_secret_key` makes or reads the file at `secret_key_file`. It is the key in use: it
    seals and signs. `other_secret_keys` open, verify and are published beside it, while one takes the other's place.

    `unfinal_spend_max_nano`: by currency; a currency that is not named has no maximum. `x402`, `mpp`: whether signed
    authorisations are taken in these dialects at all, on the networks that can settle them.
    """

    public_url: str
    listen: Listen
    admin_listen: Listen | None
    database_url: Secret[str]
    secret_key: Secret[bytes] | None
    secret_key_file: Path | None
    networks: tuple[NetworkSettings, ...]
    other_secret_keys: SecretKeys = ()
    contact: str | None = None
    rate_limit_url: Secret[str] | None = None
    allow_mixed_networks: bool = False
    allow_private_endpoints: bool = False
    registration: Literal["open", "allowlist"] = "open"
    allowlist: frozenset[Address] = frozenset()
    require_bound_signature: bool = False
    require_ownership: bool = False
    name_servers: tuple[NameServer, ...] = ()
    x402: bool = True
    mpp: bool = True
    unfinal_spend_max_nano: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    limits: Limits = DEFAULT_LIMITS
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    trusted_proxies: tuple[str, ...] = ()
    mcp_origins: frozenset[str] = frozenset()

    @property
    def is_sqlite(self) -> bool:
        return self.database_url.reveal().startswith("sqlite:")

    @property
    def secret_keys(self) -> SecretKeys:
        """All of them, the one in use first; none before `ensure_secret_key`."""
        return () if self.secret_key is None else (self.secret_key, *self.other_secret_keys)


def load_settings(environment: Mapping[str, str], *, config: Path | None = None) -> Settings:
    """Reads everything that was set. Raises `SettingsInvalid` with every problem at once.

    The file: `config`, else `TOLLWAY_CONFIG`, else `tollway.toml` in the current directory where there is one.
    """
    from_file, of_file = read_settings_file(environment, config)
    problems = [*of_file]
    reader = _SettingsReader(environment, from_file, problems)
    settings = reader.read()
    _check_together(settings, problems)
    if problems:
        raise SettingsInvalid(problems)
    return settings


def ensure_secret_key(settings: Settings) -> Settings:
    """The settings with their secret key, made now (mode 0600) where the gateway keeps its own and has none yet."""
    if settings.secret_key is not None or settings.secret_key_file is None:
        return settings
    path = settings.secret_key_file
    if not path.exists():
        make_key_file(path)
    first, *others = read_key_file(path)
    return replace(settings, secret_key=first, other_secret_keys=tuple(others))


class _SettingsReader:
    """Turns two sources of raw values into Settings; what is wrong goes to `problems`."""

    def __init__(
        self, environment: Mapping[str, str], from_file: Mapping[str, Any], problems: list[str]
    ) -> None:
        self._environment = {
            name.removeprefix(PREFIX): value
            for name, value in environment.items()
            if value and name.startswith(PREFIX) and name.removeprefix(PREFIX) not in CLIENT_KEYS
        }
        self._file = from_file
        self._problems = problems

    def read(self) -> Settings:
        self._refuse_unknown()
        database_url = self._read_value(
            "database_url", parse_database_url, Secret("sqlite:///tollway.sqlite3")
        )
        listen = self._read_value("listen", parse_listen, Listen(host="127.0.0.1", port=8402))
        admin_listen: Listen | None = parse_admin_listen(ADMIN_LISTEN_DEFAULT)
        admin_listen = self._read_value("admin_listen", parse_admin_listen, admin_listen)
        keys, key_file = self._read_secret_keys(database_url, listen)
        return Settings(
            public_url=self._read_value("public_url", parse_public_url, "http://127.0.0.1:8402"),
            contact=self._read_value("contact", parse_contact, None),
            listen=listen,
            admin_listen=admin_listen,
            database_url=database_url,
            rate_limit_url=self._read_value("rate_limit_url", parse_rate_limit_url, None),
            secret_key=keys[0] if keys else None,
            secret_key_file=key_file,
            other_secret_keys=keys[1:],
            networks=self._read_networks(),
            allow_mixed_networks=self._read_value("allow_mixed_networks", parse_flag, False),
            allow_private_endpoints=self._read_value("allow_private_endpoints", parse_flag, False),
            registration=self._read_value("registration", one_of("open", "allowlist"), "open"),
            allowlist=self._read_value("allowlist", parse_wallets, frozenset()),
            require_bound_signature=self._read_value("require_bound_signature", parse_flag, False),
            require_ownership=self._read_value("require_ownership", parse_flag, False),
            name_servers=self._read_value("name_servers", parse_name_servers, ()),
            x402=self._read_value("x402", parse_flag, True),
            mpp=self._read_value("mpp", parse_flag, True),
            unfinal_spend_max_nano=self._read_value("unfinal_spend_max", parse_maxima, MappingProxyType({})),
            limits=self._read_limits(),
            log_level=self._read_value("log_level", one_of("debug", "info", "warning", "error"), "info"),
            log_format=self._read_value("log_format", one_of("auto", "json", "console"), "auto"),
            trusted_proxies=self._read_value("trusted_proxies", parse_proxies, ()),
            mcp_origins=self._read_value("mcp_origins", parse_origins, frozenset()),
        )

    def _read_value(self, name: str, parse: Callable[[Any], T], default: T) -> T:
        source = PREFIX + name.upper()
        raw = self._environment.get(name.upper())
        if raw is None:
            source, raw = name, self._file.get(name)
        if raw is None:
            return default
        try:
            return parse(raw)
        except (ValueError, TypeError) as exc:
            self._problems.append(f"{source}: {exc}")
            return default

    def _refuse_unknown(self) -> None:
        known = {*KEYS, "networks", "limits"}
        for name in self._file:
            if name not in known:
                self._problems.append(f"{name}: there is no such setting{suggest(name, known)}")
        plain = {key.upper() for key in KEYS}
        plain |= {"LIMIT_" + entry.name.upper() for entry in fields(Limits)}
        plain |= {named(preset) for preset in PRESETS for named in (rpc_name, gas_keys_name)}
        for name in self._environment:
            if name not in plain:
                hint = suggest(name, plain)
                self._problems.append(f"{PREFIX}{name}: there is no such setting{hint}")

    def _read_secret_keys(self, database_url: Secret[str], listen: Listen) -> tuple[SecretKeys, Path | None]:
        none: SecretKeys = ()
        keys = self._read_value("secret_key", parse_secret_keys, none)
        path = self._read_value("secret_key_file", Path, None)
        if keys and path is not None:
            self._problems.append("secret_key: set either secret_key or secret_key_file, not both")
        url = database_url.reveal()
        is_given = any(name.startswith("SECRET_KEY") for name in self._environment) or any(
            name.startswith("secret_key") for name in self._file
        )
        if not is_given:
            if not url.startswith("sqlite:") or not listen.is_loopback:
                self._problems.append(
                    "secret_key: PostgreSQL and a public listen address need a key of your own; set "
                    "TOLLWAY_SECRET_KEY to 64 hex digits (openssl rand -hex 32), or TOLLWAY_SECRET_KEY_FILE"
                )
                return (), None
            path = Path(url.removeprefix("sqlite:///") + ".key")
            if not path.exists():
                return (), path  # ensure_secret_key makes it
        if not keys and path is not None:
            try:
                keys = read_key_file(path)
            except SettingsInvalid as exc:
                self._problems.extend(exc.problems)
        return keys, path

    def _read_limits(self) -> Limits:
        table = self._file.get("limits", {})
        if not isinstance(table, dict):
            self._problems.append("limits: must be a table")
            table = {}
        kinds = {entry.name: type(getattr(DEFAULT_LIMITS, entry.name)) for entry in fields(Limits)}
        raw = {name: (f"limits.{name}", value) for name, value in table.items()}
        for name in kinds:
            variable = "LIMIT_" + name.upper()
            if variable in self._environment:
                raw[name] = (PREFIX + variable, self._environment[variable])
        changes: dict[str, Any] = {}
        for name, (source, value) in raw.items():
            if name not in kinds:
                self._problems.append(f"{source}: there is no such limit{suggest(name, kinds)}")
                continue
            try:
                changes[name] = parse_number(value, kinds[name])
            except ValueError as exc:
                self._problems.append(f"{source}: {exc}")
        return replace(DEFAULT_LIMITS, **changes)

    def _read_networks(self) -> tuple[NetworkSettings, ...]:
        tables = self._file.get("networks", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._problems.append("networks: write each network as a [[networks]] table")
            tables = []
        wanted = [dict(table) for table in tables]
        for preset in PRESETS:
            urls = self._environment.get(rpc_name(preset))
            if urls is None:
                continue
            table = next((table for table in wanted if table.get("preset") == preset), None)
            if table is None:
                table = {"preset": preset}
                wanted.append(table)
            table["rpc_urls"] = urls
        self._add_gas_keys(wanted)
        networks = []
        for position, table in enumerate(wanted):
            try:
                table["gas_keys"] = _read_gas_keys(table.get("gas_keys", []))
                networks.append(parse_network(table))
            except (ValueError, TypeError) as exc:
                self._problems.append(f"networks[{position}]: {exc}")
        self._require_network(wanted)
        return tuple(networks)

    def _add_gas_keys(self, wanted: list[dict[str, Any]]) -> None:
        for preset in PRESETS:
            keys = self._environment.get(gas_keys_name(preset))
            table = next((table for table in wanted if table.get("preset") == preset), None)
            if keys is not None and table is not None:
                table["gas_keys"] = keys
            elif keys is not None:
                self._problems.append(
                    f"{PREFIX}{gas_keys_name(preset)}: the network {preset} is not configured"
                )

    def _require_network(self, wanted: list[dict[str, Any]]) -> None:
        if not wanted:
            self._problems.append(
                "networks: name at least one node to read payments from, such as "
                "TOLLWAY_RPC_BASE=https://… (presets: " + ", ".join(PRESETS) + ")"
            )


def _read_gas_keys(raw: Any) -> list[str]:
    """Each key in hex: as it stands, or from the file that is named. Raises ValueError without a word of any key."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("gas_keys: must be a list of keys in hex, or of files with one")
    keys = [part.strip() for part in parts if part.strip()]
    return [_read_gas_key_file(Path(key)) if is_path_like(key) else key for key in keys]


def _read_gas_key_file(path: Path) -> str:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ValueError(f"gas_keys: {path} holds a key and others may read it: chmod 600 {path}")
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"gas_keys: the file {path} cannot be used: {_reason(exc)}") from None


def _check_together(settings: Settings, problems: list[str]) -> None:
    is_open, maxima = settings.registration == "open", settings.unfinal_spend_max_nano
    listen, admin_listen, public_url = settings.listen, settings.admin_listen, settings.public_url
    problems += [
        *check_networks(settings.networks, allow_mixed_networks=settings.allow_mixed_networks),
        *check_listeners(listen=listen, admin_listen=admin_listen, public_url=public_url),
        *check_registration(is_open=is_open, has_allowlist=bool(settings.allowlist)),
        *check_maxima(maxima, settings.networks),
        *check_limits(settings.limits),
    ]
