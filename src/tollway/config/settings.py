"""Settings: one frozen model, read once from the environment and a TOML file, with every problem reported together.

The environment wins over the file, the file over the default. Only `app` and `cli` read settings; every other package receives values. Nothing is created at
import. An unknown name is an error in both sources, and a secret appears in no repr and in no error. A settings file that other users can read must not hold a
secret. Of several secret keys the first signs and encrypts, and all of them verify and decrypt.
"""

import ipaddress
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainValidator,
    Secret,
    ValidationError,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, core_schema
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tollway.chain.networks import PRESETS
from tollway.config.file_access import can_others_use
from tollway.config.networks import NetworkSettings, parse_network
from tollway.config.values import (
    Listen,
    gas_keys_name,
    is_path_like,
    parse_admin_listen,
    parse_contact,
    parse_control_workers,
    parse_database_url,
    parse_drain_notice,
    parse_hosts,
    parse_listen,
    parse_maxima,
    parse_name_servers,
    parse_number,
    parse_operator_name,
    parse_origins,
    parse_page_url,
    parse_proxies,
    parse_public_url,
    parse_rate_limit_url,
    parse_ratio,
    parse_signers,
    parse_strings,
    parse_wallets,
    rpc_name,
)
from tollway.discovery.gateway_operator import LOGO_BYTES_MAX, GatewayOperator, Logo, parse_logo
from tollway.errors import SettingsInvalid
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS, FixedLimits, Limits
from tollway.outbound.dns import NameServer
from tollway.validation import suggest

PREFIX = "TOLLWAY_"
LIMIT_PREFIX = "LIMIT_"
CONFIG_DEFAULT = Path("tollway.toml")
NAMES_SHOWN_MAX = 3

SECRET_KEY_BYTES = 32
SECRET_KEYS_MAX = 8
"""One change of the key needs two keys: the new one and the old one. A value that does not name its key is tried with each of them."""

CLIENT_NAMES = frozenset(
    {
        "ANVIL",
        "CONFIG",
        "GATEWAY",
        "RPC",
        "KEY_FILE",
        "KEY_PASSWORD",
        "PRIVATE_KEY",
        "STORE",
        "ALLOW_HTTP",
        "BUDGET",
        "MAX_DEPOSIT",
        "MAX_FEE",
        "MAX_PRICE",
        "RAIL",
        "SESSION_BUDGET",
    }
)
"""Names after the prefix that the commands of callers read. The gateway does not read them and does not refuse them."""

SecretKeys = tuple[Secret[bytes], ...]


# ---- Secret keys.


def parse_secret_keys(raw: Any) -> SecretKeys:
    """At least one key, the one in use first, with white space between keys. Raises ValueError."""
    words = raw.split() if isinstance(raw, str) else []
    if not words:
        raise ValueError("the secret key must be 64 hex digits (32 bytes)")
    if len(words) > SECRET_KEYS_MAX:
        raise ValueError(
            f"there may be {SECRET_KEYS_MAX} secret keys at most; remove those that encrypt nothing"
        )
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
    """Raises `SettingsInvalid`, also where other users may read the file."""
    try:
        if can_others_use(path):
            raise SettingsInvalid([f"secret_key_file: others may read {path}: chmod 600 {path}"])
        return parse_secret_keys(path.read_text())
    except (OSError, UnicodeDecodeError, ValueError) as exc:
        raise SettingsInvalid([f"secret_key_file: {path} cannot be used: {_reason(exc)}"]) from exc


def make_key_file(path: Path) -> None:
    """Writes one new key with mode 0600. Raises `SettingsInvalid`, also where the file exists."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as exc:
        raise SettingsInvalid([f"secret_key_file: {path} cannot be made: {_reason(exc)}"]) from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(os.urandom(SECRET_KEY_BYTES).hex() + "\n")


def _reason(exc: Exception) -> str:
    """The reason without the path, which an OSError repeats."""
    return exc.strerror or str(exc) if isinstance(exc, OSError) else str(exc)


# ---- The model.


def _parsed_by(parse: Callable[[Any], object]) -> PlainValidator:
    """A validator that reads a raw value. pydantic makes a problem of a ValueError only."""

    def validate(raw: Any) -> object:
        try:
            return parse(raw)
        except TypeError as exc:
            raise ValueError(str(exc)) from exc

    return PlainValidator(validate)


def _read_network(raw: Any) -> NetworkSettings:
    if not isinstance(raw, dict):
        raise TypeError("write each network as a [[networks]] table")
    return parse_network({**raw, "gas_keys": _read_gas_keys(raw.get("gas_keys", []))})


def _read_gas_keys(raw: Any) -> list[str]:
    """Each key in hex: as it stands, or from the file that is named. Raises ValueError without any part of a key."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        raise ValueError("gas_keys: must be a list of keys in hex, or of files with one")
    keys = [part.strip() for part in parts if part.strip()]
    return [_read_gas_key_file(Path(key)) if is_path_like(key) else key for key in keys]


def _read_gas_key_file(path: Path) -> str:
    try:
        if can_others_use(path):
            raise ValueError(f"gas_keys: {path} holds a key and others may read it: chmod 600 {path}")
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError(f"gas_keys: the file {path} cannot be used: {_reason(exc)}") from None


def _read_logo(raw: Any) -> Logo:
    """The image in the file that is named. Raises ValueError, also for what is no regular file, which could have no end."""
    path = Path(str(raw))
    try:
        if not path.is_file():
            raise ValueError(f"{path} is no file")
        with path.open("rb") as file:
            content = file.read(LOGO_BYTES_MAX + 1)
    except OSError as exc:
        raise ValueError(f"{path} cannot be used: {_reason(exc)}") from None
    try:
        return parse_logo(content)
    except ValueError as exc:
        raise ValueError(f"{path} {exc}") from None


OPERATOR_LIMITS = tuple(limit for limit in fields(Limits) if limit not in fields(FixedLimits))

CONSTANTS = frozenset(
    {
        "authorization_validity_s_max",
        "bound_validity_s",
        "catalog_reads_at_once",
        "creation_key_ttl_s",
        "creation_lease_s",
        "erc6492_gas",
        "payee_slack_s",
    }
)
"""Names of former limits that are constants beside their use."""

FIXED_NAMES = CONSTANTS | {limit.name for limit in fields(FixedLimits)}


def _make_limits_table() -> type[BaseModel]:
    """A model with the limits that an operator sets: each a number above 0 of its default's type."""
    numbers: dict[str, Any] = {
        limit.name: (
            Annotated[int | float, _parsed_by(partial(parse_number, kind=type(limit.default)))],
            limit.default,
        )
        for limit in OPERATOR_LIMITS
    }
    return create_model("LimitsTable", __config__=ConfigDict(extra="forbid"), **numbers)


LimitsTable = _make_limits_table()


def _limits_schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """`Limits` stays a plain dataclass: clients load it without pydantic."""
    return core_schema.no_info_after_validator_function(
        lambda table: Limits(**dict(table)), handler.generate_schema(LimitsTable)
    )


class Settings(BaseSettings):
    """The settings of one gateway.

    `secret_keys`: the key in use first. It encrypts and signs; the others decrypt, verify and are published beside it during a change of keys. Empty:
    `ensure_secret_key` makes or reads the file at `secret_key_file`. `unfinal_spend_max_nano`: by currency; a currency without an entry has no maximum.
    `retired_receipt_signers`: the addresses of keys that signed offers and receipts and sign no more. They stay in `did.json`, so that old receipts
    verify. `x402`, `mpp`: whether signed authorisations are accepted in these protocols, on the networks that can settle them. `channels`: whether x402
    channels are offered too.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        case_sensitive=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=False,
    )

    public_url: Annotated[str, _parsed_by(parse_public_url)] = "http://127.0.0.1:8402"
    operator_name: Annotated[str | None, _parsed_by(parse_operator_name)] = None
    operator_url: Annotated[str | None, _parsed_by(parse_page_url)] = None
    operator_contact: Annotated[str | None, _parsed_by(parse_contact)] = None
    operator_logo: Annotated[Logo | None, _parsed_by(_read_logo)] = None
    terms_url: Annotated[str | None, _parsed_by(parse_page_url)] = None
    docs_url: Annotated[str | None, _parsed_by(parse_page_url)] = None
    listen: Annotated[Listen, _parsed_by(parse_listen)] = Listen(host="127.0.0.1", port=8402)
    control_listen: Annotated[Listen, _parsed_by(parse_listen)] = Listen(host="127.0.0.1", port=8403)
    control_workers: Annotated[int, _parsed_by(parse_control_workers)] = 0
    admin_listen: Annotated[Listen | None, _parsed_by(parse_admin_listen)] = Listen(
        host="127.0.0.1", port=9402
    )
    admin_hosts: Annotated[frozenset[str], _parsed_by(parse_hosts)] = frozenset()
    operators: Annotated[frozenset[Address], _parsed_by(parse_wallets)] = frozenset()
    database_url: Annotated[Secret[str], _parsed_by(parse_database_url)] = Secret("sqlite:///tollway.sqlite3")
    rate_limit_url: Annotated[Secret[str] | None, _parsed_by(parse_rate_limit_url)] = None
    secret_keys: Annotated[SecretKeys, _parsed_by(parse_secret_keys)] = Field(
        (), validation_alias="secret_key"
    )
    secret_key_file: Path | None = None
    retired_receipt_signers: Annotated[tuple[Address, ...], _parsed_by(parse_signers)] = ()
    allow_mixed_networks: bool = False
    allow_private_endpoints: bool = False
    registration: Literal["open", "allowlist"] = "open"
    allowlist: Annotated[frozenset[Address], _parsed_by(parse_wallets)] = frozenset()
    require_bound_signature: bool = False
    require_ownership: bool = False
    name_servers: Annotated[tuple[NameServer, ...], _parsed_by(parse_name_servers)] = ()
    x402: bool = True
    mpp: bool = True
    channels: bool = False
    unfinal_spend_max_nano: Annotated[Mapping[str, int], _parsed_by(parse_maxima)] = Field(
        default_factory=lambda: MappingProxyType({}), validation_alias="unfinal_spend_max"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    call_log: Literal["all", "failures", "off"] = "failures"
    log_wallets: bool = False
    tracing: Literal["off", "otlp"] = "off"
    trace_ratio: Annotated[float, _parsed_by(parse_ratio)] = 0.01
    drain_notice_s: Annotated[float, _parsed_by(parse_drain_notice)] = 0.0
    trusted_proxies: Annotated[tuple[str, ...], _parsed_by(parse_proxies)] = ()
    mcp_origins: Annotated[frozenset[str], _parsed_by(parse_origins)] = frozenset()
    web_pages: bool = True
    networks: tuple[Annotated[NetworkSettings, _parsed_by(_read_network)], ...] = ()
    limits: Annotated[Limits, GetPydanticSchema(_limits_schema)] = DEFAULT_LIMITS

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Given values only. `load_settings` reads the sources, because each problem names the source of its value."""
        return (init_settings,)

    @property
    def operator(self) -> GatewayOperator:
        return GatewayOperator(
            name=self.operator_name,
            url=self.operator_url,
            contact=self.operator_contact,
            terms_url=self.terms_url,
            docs_url=self.docs_url,
        )

    @property
    def is_sqlite(self) -> bool:
        return self.database_url.get_secret_value().startswith("sqlite:")

    @property
    def secret_key(self) -> Secret[bytes] | None:
        """The key in use; None before `ensure_secret_key`."""
        return self.secret_keys[0] if self.secret_keys else None


def _name_of(field_name: str, field: FieldInfo) -> str:
    return str(field.validation_alias or field_name)


SETTING_NAMES = tuple(
    _name_of(name, field)
    for name, field in Settings.model_fields.items()
    if name not in ("networks", "limits")
)
"""The name of every plain setting. Beside them: `networks` and `limits`."""


# ---- Sources.


class EnvironmentSource(PydanticBaseSettingsSource):
    """A source of raw values: the variables with the prefix, joined with the networks and limits of the settings file.

    An empty variable is unset. A variable that no setting has keeps its prefix, so that the model refuses it.
    """

    def __init__(self, environment: Mapping[str, str], table: Mapping[str, Any]) -> None:
        super().__init__(Settings)
        self._table = table
        self._unread = {
            name: value
            for name, value in environment.items()
            if value and name.startswith(PREFIX) and name.removeprefix(PREFIX) not in CLIENT_NAMES
        }

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        name = _name_of(field_name, field)
        return self._take(name.upper()), name, False

    def __call__(self) -> dict[str, Any]:
        values: dict[str, Any] = {
            "networks": self._join_networks(self._table.get("networks", [])),
            "limits": self._join_limits(self._table.get("limits", {})),
        }
        for field_name, field in self.settings_cls.model_fields.items():
            if field_name not in values:
                value, name, _ = self.get_field_value(field, field_name)
                values |= {} if value is None else {name: value}
        return values | self._unread

    def _take(self, name: str) -> str | None:
        return self._unread.pop(PREFIX + name, None)

    def _join_limits(self, table: Any) -> Any:
        taken = {limit.name: self._take(LIMIT_PREFIX + limit.name.upper()) for limit in OPERATOR_LIMITS}
        if not isinstance(table, dict):
            return table  # the model refuses it
        return table | {name: value for name, value in taken.items() if value is not None}

    def _join_networks(self, tables: Any) -> Any:
        urls = {preset: self._take(rpc_name(preset)) for preset in PRESETS}
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            return tables  # the model refuses it
        joined = [dict(table) for table in tables]
        for preset in PRESETS:
            table = next((table for table in joined if table.get("preset") == preset), None)
            if urls[preset] is not None:
                if table is None:
                    joined.append(table := {"preset": preset})
                table["rpc_urls"] = urls[preset]
            if table is not None and (keys := self._take(gas_keys_name(preset))) is not None:
                table["gas_keys"] = keys
        return joined


def read_settings_file(
    environment: Mapping[str, str], config: Path | None
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The table of `config`, else of the file that `TOLLWAY_CONFIG` names, else of `tollway.toml` in the current directory if it exists; and the problems of
    the file. Raises `SettingsInvalid` where the file cannot be read or is not TOML.
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
        return []  # the model refuses it


def _has_password(raw: Any) -> bool:
    if not isinstance(raw, str):
        return False
    try:
        parts = urlsplit(raw)
        return bool(parts.password) or "password=" in parts.query
    except ValueError:
        return "@" in raw


_API_KEY = re.compile(r"[A-Za-z0-9_-]{24,}")
"""An API key in the URL of a node. Names of networks and methods are shorter."""


def _has_api_key(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return bool(_API_KEY.search(f"{parts.path}?{parts.query}"))


# ---- Rules between settings.


def check_admin_listen(*, listen: Listen, admin_listen: Listen | None) -> Iterator[str]:
    if admin_listen is not None and _is_same_listener(listen, admin_listen):
        yield f"admin_listen: {admin_listen} is where callers are served; take another port, or off"


def check_control_workers(
    *, is_sqlite: bool, control_listen: Listen, others: Sequence[Listen | None]
) -> Iterator[str]:
    """Where there are control workers. `others`: the other listeners of the gateway."""
    if is_sqlite:
        yield (
            "control_workers: processes of their own for the control plane need PostgreSQL, and the database is SQLite; "
            "set database_url to a PostgreSQL server, or control_workers to 0"
        )
    if any(other is not None and _is_same_listener(control_listen, other) for other in others):
        yield f"control_listen: {control_listen} is another listener of this gateway; take another port"


def check_admin_hosts(*, admin_listen: Listen | None, admin_hosts: frozenset[str]) -> Iterator[str]:
    """A page that a browser of the network opens must not reach the admin address under a name of its own (DNS rebinding)."""
    if admin_listen is not None and not admin_listen.is_loopback and not admin_hosts:
        yield (
            f"admin_hosts: {admin_listen} is reachable from other machines; name the hosts by which it is opened, such as "
            'admin_hosts = ["gateway-admin.internal"], or set admin_listen to 127.0.0.1:9402 or off'
        )


def check_operators(*, are_pages_on: bool, operators: frozenset[Address]) -> Iterator[str]:
    if operators and not are_pages_on:
        yield ("operators: the operator's pages are off; set admin_listen and web_pages, or remove operators")


def check_public_url(*, listen: Listen, public_url: str) -> Iterator[str]:
    if not listen.is_loopback and _is_local_only(urlsplit(public_url).hostname or ""):
        yield f"public_url: callers from outside cannot reach {public_url}; set it to the URL they use"


def _is_same_listener(one: Listen, other: Listen) -> bool:
    """Port 0 is any free port. A listener on all addresses is on each of them."""
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
        yield f"networks: chain id {chain_id} stands twice; write each network once"
    if len({network.rules.kind for network in networks}) > 1 and not allow_mixed_networks:
        yield (
            "networks: main and test networks together let test money buy real calls; drop one kind, or set "
            "allow_mixed_networks"
        )


def check_maxima(maxima: Mapping[str, int], networks: Sequence[NetworkSettings]) -> Iterator[str]:
    """A maximum of a misspelt currency leaves the intended currency without one."""
    known = {asset.symbol for network in networks for asset in network.rules.assets}
    for symbol in sorted(maxima.keys() - known):
        yield f"unfinal_spend_max: {symbol[:40]} is no currency of a configured network"


def check_registration(*, is_open: bool, has_allowlist: bool) -> Iterator[str]:
    if is_open and has_allowlist:
        yield (
            "allowlist: has no effect while registration is open; set registration = allowlist, or remove it"
        )
    if not is_open and not has_allowlist:
        yield "allowlist: registration = allowlist needs at least one wallet"


# ---- Loading.

Location = tuple[int | str, ...]

_EXPLANATIONS = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "model_type": "must be a table",
    "path_type": "must be the path of a file",
    "tuple_type": "write each network as a [[networks]] table",
}
"""Error type of pydantic -> what is wrong. The parsers of `config.values` write their own texts."""


def load_settings(
    environment: Mapping[str, str],
    *,
    config: Path | None = None,
    gas_key_files: Literal["read", "leave_out"] = "read",
) -> Settings:
    """Reads both sources. Raises `SettingsInvalid` with every problem at once.

    The file: `config`, else `TOLLWAY_CONFIG`, else `tollway.toml` in the current directory if it exists. `gas_key_files`: a command that neither signs nor names
    gas keys leaves their files out, which it may not be able to read.
    """
    table, of_file = read_settings_file(environment, config)
    values = {**table, **EnvironmentSource(environment, table)()}
    tables = values["networks"] if gas_key_files == "leave_out" else ()
    for network in tables if isinstance(tables, list) else ():
        if isinstance(network, dict) and (named := _texts(network.get("gas_keys"))):
            network["gas_keys"] = [key for key in named if not is_path_like(key)]
    settings, errors = _validate(values)
    wrong = frozenset(str(error["loc"][0]) for error in errors)
    keys, of_keys = _find_secret_keys(settings, values, wrong)
    problems = [
        *of_file,
        *(f"{_name_source(error['loc'], environment)}: {_explain(error)}" for error in errors),
        *of_keys,
        *_check_together(settings, wrong),
    ]
    if problems:
        raise SettingsInvalid(problems)
    return settings.model_copy(update=keys)


def ensure_secret_key(settings: Settings) -> Settings:
    """The settings with their secret keys. Makes the key file (mode 0600) where the gateway keeps its own key and has none."""
    if settings.secret_keys or settings.secret_key_file is None:
        return settings
    path = settings.secret_key_file
    if not path.exists():
        make_key_file(path)
    return settings.model_copy(update={"secret_keys": read_key_file(path)})


def _validate(values: Mapping[str, Any]) -> tuple[Settings, list[ErrorDetails]]:
    """The settings, with the default in place of each refused value, and the refusals."""
    # `BaseSettings` takes names that begin with an underscore as parameters of its own: the space makes them unknown.
    values = {f" {name}" if name.startswith("_") else name: value for name, value in values.items()}
    try:
        return Settings.model_validate(values), []
    except ValidationError as exc:
        errors = exc.errors(include_url=False, include_input=False)
        return Settings.model_validate(_leave_out(values, [error["loc"] for error in errors])), errors


def _leave_out(values: Mapping[str, Any], locations: Sequence[Location]) -> dict[str, Any]:
    """The values without those at `locations`: a setting, a limit, or a network."""
    whole = {location[0] for location in locations if len(location) == 1}
    parts = {location[:2] for location in locations if len(location) > 1}
    kept = {name: value for name, value in values.items() if name not in whole}
    if "limits" in kept:
        kept["limits"] = {k: v for k, v in kept["limits"].items() if ("limits", k) not in parts}
    if "networks" in kept:
        kept["networks"] = [v for i, v in enumerate(kept["networks"]) if ("networks", i) not in parts]
    return kept


def _name_source(location: Location, environment: Mapping[str, str]) -> str:
    """`TOLLWAY_LISTEN`, `listen`, `limits.headers_max` or `networks[0]`."""
    name, *rest = location
    key = LIMIT_PREFIX + str(rest[0]) if name == "limits" and rest else str(name)
    if environment.get(variable := PREFIX + key.upper()):
        return variable
    return str(name).strip() + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in rest)


def _explain(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return "must be one of: " + ", ".join(re.findall(r"'([^']+)'", context["expected"]))
        case "extra_forbidden":
            return _explain_unknown(error["loc"])
        case kind:
            return _EXPLANATIONS.get(kind, error["msg"])


def _explain_unknown(location: Location) -> str:
    name = str(location[-1]).strip()
    if name.removeprefix(PREFIX + LIMIT_PREFIX).lower() in FIXED_NAMES:
        return "this limit is fixed now; leave it out"
    if len(location) > 1:
        return f"there is no such limit{suggest(name, LimitsTable.model_fields)}"
    if not name.startswith(PREFIX):
        return f"there is no such setting{suggest(name, (*SETTING_NAMES, 'networks', 'limits'))}"
    name = name.removeprefix(PREFIX)
    for preset in PRESETS:
        if name == gas_keys_name(preset):
            return f"the network {preset} is not configured; set {PREFIX}{rpc_name(preset)} too"
    known = [key.upper() for key in SETTING_NAMES] + [
        LIMIT_PREFIX + limit.name.upper() for limit in OPERATOR_LIMITS
    ]
    known += [named(preset) for preset in PRESETS for named in (rpc_name, gas_keys_name)]
    return f"there is no such setting{suggest(name, known)}"


def _find_secret_keys(
    settings: Settings, values: Mapping[str, Any], wrong: frozenset[str]
) -> tuple[Mapping[str, Any], list[str]]:
    """The changed settings, and the problems. Reads the key file; `ensure_secret_key` makes it."""
    path = settings.secret_key_file
    if settings.secret_keys and path is not None:
        return {}, ["secret_key: set either secret_key or secret_key_file, not both"]
    if (
        path is None
        and "secret_key" not in values
        and wrong.isdisjoint(("secret_key_file", "database_url", "listen"))
    ):
        if not settings.is_sqlite or not settings.listen.is_loopback:
            return {}, [
                "secret_key: PostgreSQL and a public listen address need a key of your own; set "
                "TOLLWAY_SECRET_KEY to 64 hex digits (openssl rand -hex 32), or TOLLWAY_SECRET_KEY_FILE"
            ]
        path = Path(settings.database_url.get_secret_value().removeprefix("sqlite:///") + ".key")
        if not path.exists():
            return {"secret_key_file": path}, []
    if path is None:
        return {}, []
    try:
        return {"secret_key_file": path, "secret_keys": read_key_file(path)}, []
    except SettingsInvalid as exc:
        return {}, exc.problems


def _check_together(settings: Settings, wrong: frozenset[str]) -> Iterator[str]:
    """Runs each rule whose settings are all valid. `wrong`: the names of the refused settings."""

    def are_valid(*names: str) -> bool:
        return wrong.isdisjoint(names)

    networks, listen = settings.networks, settings.listen
    if are_valid("networks") and not networks:
        yield (
            "networks: name at least one node to read payments from, such as "
            "TOLLWAY_RPC_BASE=https://… (presets: " + ", ".join(PRESETS) + ")"
        )
    is_mixed = settings.allow_mixed_networks or not are_valid("allow_mixed_networks")
    yield from check_networks(networks, allow_mixed_networks=is_mixed)
    if are_valid("listen", "admin_listen"):
        yield from check_admin_listen(listen=listen, admin_listen=settings.admin_listen)
    if settings.control_workers and are_valid("control_listen", "listen", "admin_listen", "database_url"):
        yield from check_control_workers(
            is_sqlite=settings.is_sqlite,
            control_listen=settings.control_listen,
            others=(listen, settings.admin_listen),
        )
    if are_valid("admin_listen", "admin_hosts"):
        yield from check_admin_hosts(admin_listen=settings.admin_listen, admin_hosts=settings.admin_hosts)
    if are_valid("admin_listen", "web_pages", "operators"):
        are_pages_on = settings.web_pages and settings.admin_listen is not None
        yield from check_operators(are_pages_on=are_pages_on, operators=settings.operators)
    if are_valid("listen", "public_url"):
        yield from check_public_url(listen=listen, public_url=settings.public_url)
    if are_valid("registration", "allowlist"):
        is_open = settings.registration == "open"
        yield from check_registration(is_open=is_open, has_allowlist=bool(settings.allowlist))
    if are_valid("networks", "unfinal_spend_max") and networks:
        yield from check_maxima(settings.unfinal_spend_max_nano, networks)
