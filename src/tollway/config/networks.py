"""The settings of a network: assets, confirmations, nodes, and the limits of settlement costs.

Pure parsers: each raises ValueError or TypeError and reads no file.
"""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import Secret

from tollway.chain.multicall import MULTICALL3
from tollway.chain.networks import (
    FINALITY_DEPTH,
    PRESETS,
    ChainRules,
    ConfirmationSteps,
    NetworkPreset,
    NetworkProfile,
)
from tollway.chain.signer import GasKey
from tollway.config.values import one_of, parse_number, parse_strings
from tollway.ids import ZERO_ADDRESS, Address, ChainId
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.settlement_rules import (
    BLOCK_TIME_S,
    NETWORK_BUDGET_FACTOR,
    WEI_PER_NANO,
    FacilitatorRules,
    SettlementRules,
    is_development_key,
    settlement_defaults,
)
from tollway.validation import suggest

NETWORK_MEMBERS = (
    "preset",
    "chain_id",
    "kind",
    "rpc_urls",
    "agreement_min",
    "agreement_above",
    "confirmations",
    "native_confirmations",
    "finality_depth",
    "assets",
    "gas_keys",
    "settlement_min",
    "native_price",
    "gas_price_max_gwei",
    "gas_floor",
    "listing_gas_budget",
    "gas_budget",
    "block_time_s",
    "wallet_factories",
    "facilitator",
    "name",
    "explorer_url",
    "wallet_rpc_url",
)
ASSET_MEMBERS = ("symbol", "token", "decimals", "name", "version")
FACILITATOR_MEMBERS = ("url", "verify_headers", "settle_headers")
GAS_KEYS_MAX = 32
FACTORIES_MAX = 32
DOMAIN_TEXT_MAX = 64
PROFILE_NAME_MAX = 40

_SYMBOL = re.compile(r"[A-Za-z0-9.]{1,16}")
_PUBLIC_URL = re.compile(r"https?://[^\s?#@\\]{1,300}", re.A)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,8192}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSettings:
    """A network with the URLs of its nodes. A URL often holds an API key, so it is a secret. `settlement`: the keys and cost limits of settling authorisations;
    there may be no key. `profile`: what `GET /networks` says beside the rules."""

    name: str
    rules: ChainRules
    rpc_urls: tuple[Secret[str], ...]
    block_time_s: float
    settlement: SettlementRules
    profile: NetworkProfile
    agreement_min: int = 1


def parse_network(table: dict[str, Any]) -> NetworkSettings:
    for key in table:
        if key not in NETWORK_MEMBERS:
            raise ValueError(f"there is no such setting of a network: {key}{suggest(key, NETWORK_MEMBERS)}")
    name: str | None = table.get("preset")
    if name is not None and name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; known: " + ", ".join(PRESETS))
    preset = PRESETS[name] if name is not None else None
    if preset is not None and ("chain_id" in table or "kind" in table):
        raise ValueError("a preset has its own chain_id and kind; leave them out")
    chain_id = preset.chain_id if preset else ChainId(parse_number(table.get("chain_id"), int))
    kind = preset.kind if preset else one_of("main", "test")(table.get("kind", "main"))
    assets = tuple(_parse_asset(asset, chain_id, preset) for asset in table.get("assets", []))
    steps, native_steps = table.get("confirmations"), table.get("native_confirmations")
    rules = ChainRules(
        chain_id=chain_id,
        kind="main" if kind == "main" else "test",
        assets=assets or (preset.assets if preset else ()),
        confirmations=_parse_steps(steps) if steps else (preset.confirmations if preset else ((0, 1),)),
        native_confirmations=_parse_steps(native_steps)
        if native_steps
        else (preset.native_confirmations if preset and not steps else ()),
        agreement_above=_parse_agreement_above(table),
        finality_depth=_parse_finality_depth(table, preset),
    )
    if not rules.assets:
        raise ValueError('assets: name at least one, such as {symbol = "USDC", token = "0x…", decimals = 6}')
    rpc_urls = _parse_rpc_urls(table.get("rpc_urls"))
    agreement_min = parse_number(table.get("agreement_min", 1), int)
    if agreement_min > len(rpc_urls):
        raise ValueError(
            f"agreement_min: {agreement_min} nodes cannot agree where rpc_urls names {len(rpc_urls)}"
        )
    if rules.agreement_above is not None and agreement_min < 2:
        raise ValueError(
            "agreement_above: says for which values agreement_min holds, so that must be 2 or more"
        )
    block_time_s = preset.block_time_s if preset else BLOCK_TIME_S
    if "block_time_s" in table:
        block_time_s = parse_number(table["block_time_s"], float)
    return NetworkSettings(
        name=name or str(rules.network),
        rules=rules,
        rpc_urls=rpc_urls,
        block_time_s=block_time_s,
        settlement=_parse_settlement(table, rules, preset, block_time_s),
        profile=_parse_profile(table, rules, preset),
        agreement_min=agreement_min,
    )


def _parse_profile(table: dict[str, Any], rules: ChainRules, preset: NetworkPreset | None) -> NetworkProfile:
    """The names and public URLs of the network. An empty URL removes that of the preset."""
    natives = [asset for asset in (*rules.assets, *(preset.assets if preset else ())) if asset.token is None]
    name = table.get("name", (preset.display_name or preset.name) if preset else str(rules.network))
    if not isinstance(name, str) or not 0 < len(name) <= PROFILE_NAME_MAX or not name.isprintable():
        raise ValueError(f"name: must be a text of 1 to {PROFILE_NAME_MAX} printable characters")
    return NetworkProfile(
        name=name,
        native_symbol=natives[0].symbol if natives else None,
        native_decimals=natives[0].decimals if natives else None,
        explorer_url=_parse_public_url(table, "explorer_url", preset.explorer_url if preset else None),
        wallet_rpc_url=_parse_public_url(table, "wallet_rpc_url", preset.wallet_rpc_url if preset else None),
    )


def _parse_public_url(table: dict[str, Any], key: str, default: str | None) -> str | None:
    value = table.get(key, default)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isascii() or not _PUBLIC_URL.fullmatch(value):
        raise ValueError(
            f"{key}: must be an http(s) URL without user, query and fragment; every client can read it"
        )
    return value.rstrip("/")


def _parse_finality_depth(table: dict[str, Any], preset: NetworkPreset | None) -> int:
    """In blocks. Without preset and setting: more than any known network needs, and never fewer than the confirmations of any payment."""
    if "finality_depth" in table:
        depth: int = parse_number(table["finality_depth"], int)
        return depth
    if preset is not None and "confirmations" not in table and "native_confirmations" not in table:
        return preset.finality_depth
    steps = [_parse_steps(table[key]) for key in ("confirmations", "native_confirmations") if table.get(key)]
    deepest = max((depth for one in steps for _, depth in one), default=1)
    return max(deepest, preset.finality_depth if preset else FINALITY_DEPTH)


def _parse_agreement_above(table: dict[str, Any]) -> tuple[tuple[str, int], ...] | None:
    """`{USDC = "100"}`; ChainRules checks the names."""
    raw = table.get("agreement_above")
    if raw is None:
        return None
    if not isinstance(raw, dict) or not raw:
        raise ValueError('agreement_above: must be a table such as {USDC = "100"}')
    try:
        return tuple((symbol, Price.parse(str(value)).nano) for symbol, value in raw.items())
    except ValueError as exc:
        raise ValueError('agreement_above: each value is a decimal number such as "100"') from exc


def _parse_settlement(
    table: dict[str, Any], rules: ChainRules, preset: NetworkPreset | None, block_time_s: float
) -> SettlementRules:
    defaults = settlement_defaults(rules.chain_id, rules.kind)

    def read(name: str, default: str) -> int:
        """Returns the value in 10^-9 of its unit."""
        try:
            return Price.parse(str(table.get(name, default))).nano
        except ValueError as exc:
            raise ValueError(f"{name}: must be a decimal number such as {default}") from exc

    gas_keys = _parse_gas_keys(table.get("gas_keys", []), is_main=rules.kind == "main")
    facilitator = _parse_facilitator(table["facilitator"]) if "facilitator" in table else None
    if gas_keys and facilitator is not None:
        raise ValueError("gas_keys: a facilitator settles with its own keys; set either one or the other")
    listing_budget_wei = read("listing_gas_budget", defaults.listing_gas_budget) * WEI_PER_NANO
    native_price_nano = None
    if "native_price" in table or defaults.native_price is not None:
        native_price_nano = read("native_price", defaults.native_price or "3000")
    network_budget_wei = NETWORK_BUDGET_FACTOR * listing_budget_wei
    if "gas_budget" in table:
        network_budget_wei = read("gas_budget", "0.5") * WEI_PER_NANO
    return SettlementRules(
        chain_id=rules.chain_id,
        gas_keys=gas_keys,
        min_nano=read("settlement_min", defaults.settlement_min),
        is_min_own="settlement_min" in table,
        native_price_nano=native_price_nano,
        gas_price_max_wei=read("gas_price_max_gwei", defaults.gas_price_max_gwei),
        gas_floor_wei=read("gas_floor", defaults.gas_floor) * WEI_PER_NANO,
        listing_budget_wei=listing_budget_wei,
        network_budget_wei=network_budget_wei,
        block_time_s=block_time_s,
        wallet_factories=_parse_factories(table, rules, preset),
        facilitator=facilitator,
    )


def _parse_factories(
    table: dict[str, Any], rules: ChainRules, preset: NetworkPreset | None
) -> tuple[Address, ...]:
    """The contracts that may deploy a paying wallet; `[]` allows none. The payer composes the call, so a token or Multicall3 is refused."""
    if "wallet_factories" not in table:
        return preset.wallet_factories if preset else ()
    texts = parse_strings(table["wallet_factories"])
    if len(texts) > FACTORIES_MAX:
        raise ValueError(f"wallet_factories: at most {FACTORIES_MAX}")
    others = {MULTICALL3, ZERO_ADDRESS, *(asset.token for asset in rules.assets)}
    factories = []
    for position, text in enumerate(texts):
        try:
            factory = Address.parse(text)
        except ValueError as exc:
            raise ValueError(f"wallet_factories[{position}]: {exc}") from None
        if factory in others:
            raise ValueError(
                f"wallet_factories[{position}]: {factory} is no wallet factory; name a contract that only deploys wallets"
            )
        if factory in factories:
            raise ValueError(f"wallet_factories[{position}] stands twice")
        factories.append(factory)
    return tuple(factories)


def _parse_gas_keys(raw: Any, *, is_main: bool) -> tuple[GasKey, ...]:
    """Keys in hex. `config.settings` has replaced the names of files by their keys."""
    texts = parse_strings(raw)
    if len(texts) > GAS_KEYS_MAX:
        raise ValueError(f"gas_keys: at most {GAS_KEYS_MAX}")
    keys = []
    for position, text in enumerate(texts):
        try:
            key = GasKey.parse(text)
        except ValueError as exc:
            raise ValueError(f"gas_keys[{position}]: {exc}") from None
        if is_main and is_development_key(key.address):
            raise ValueError(
                f"gas_keys[{position}]: {key.address} is a public development key; use a key of your own on a main network"
            )
        keys.append(key)
    if len({key.address for key in keys}) != len(keys):
        raise ValueError("gas_keys: a key stands twice")
    return tuple(keys)


def _parse_facilitator(raw: Any) -> FacilitatorRules:
    if not isinstance(raw, dict) or not set(raw) <= set(FACILITATOR_MEMBERS):
        raise ValueError("facilitator: must be a table with " + ", ".join(FACILITATOR_MEMBERS))
    url = raw.get("url")
    parts = urlsplit(url if isinstance(url, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ValueError("facilitator.url: must be an http(s) URL without userinfo")
    if parts.query or parts.fragment:
        raise ValueError("facilitator.url: without query and fragment")
    return FacilitatorRules(
        url=str(url),
        verify_headers=_parse_headers("verify_headers", raw.get("verify_headers", {})),
        settle_headers=_parse_headers("settle_headers", raw.get("settle_headers", {})),
    )


def _parse_headers(name: str, raw: Any) -> tuple[tuple[str, str], ...]:
    """`{Authorization = "Bearer …"}`. An error never repeats a value."""
    if not isinstance(raw, dict):
        raise TypeError(f'facilitator.{name}: must be a table such as {{Authorization = "Bearer …"}}')
    for header, value in raw.items():
        if (
            not _HEADER_NAME.fullmatch(header)
            or not isinstance(value, str)
            or not _HEADER_VALUE.fullmatch(value)
        ):
            raise ValueError(f"facilitator.{name}: {header!r} is not a header with a text value")
    return tuple(raw.items())


def _parse_asset(raw: Any, chain_id: ChainId, preset: NetworkPreset | None) -> Asset:
    if not isinstance(raw, dict) or not set(raw) <= set(ASSET_MEMBERS):
        raise ValueError("assets: each must be a table with " + ", ".join(ASSET_MEMBERS))
    symbol = raw.get("symbol")
    if not isinstance(symbol, str) or not _SYMBOL.fullmatch(symbol):
        raise ValueError("an asset's symbol has 1 to 16 letters and digits")
    decimals = raw.get("decimals", 18 if "token" not in raw else None)
    if not isinstance(decimals, int) or not 0 <= decimals <= 36:
        raise ValueError(f"{symbol}: decimals must be a whole number from 0 to 36")
    token = Address.parse(raw["token"]) if "token" in raw else None
    domain = _parse_domain(raw, symbol)
    if domain is None and preset is not None and token is not None:
        domain = next((asset.domain for asset in preset.assets if asset.token == token), None)
    if domain is not None and token is None:
        raise ValueError(f"{symbol}: a native currency takes no authorisations; leave name and version out")
    return Asset(chain_id=chain_id, token=token, symbol=symbol, decimals=decimals, domain=domain)


def _parse_domain(raw: dict[str, Any], symbol: str) -> TokenDomain | None:
    """`name` and `version` of the token's EIP-712 domain: both, or neither."""
    texts = [raw.get(key) for key in ("name", "version")]
    if texts == [None, None]:
        return None
    name, version = (
        text if isinstance(text, str) and 0 < len(text) <= DOMAIN_TEXT_MAX else None for text in texts
    )
    if name is None or version is None:
        raise ValueError(f"{symbol}: name and version of its EIP-712 domain go together, as texts")
    return TokenDomain(name=name, version=version)


def _parse_steps(raw: Any) -> ConfirmationSteps:
    """`3`, or `[["0", 1], ["100", 10]]`: from this value on (in the currency), this many confirmations."""
    if isinstance(raw, int):
        return ((0, raw),)
    if not isinstance(raw, list) or not all(isinstance(step, list) and len(step) == 2 for step in raw):
        raise ValueError('confirmations: a number, or steps such as [["0", 1], ["100", 10]]')
    return tuple((Price.parse(str(value)).nano, parse_number(depth, int)) for value, depth in raw)


def _parse_rpc_urls(raw: Any) -> tuple[Secret[str], ...]:
    urls = parse_strings(raw or [])
    for position, url in enumerate(urls):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"rpc_urls[{position}] is not an http(s) URL")  # the URL itself may hold a key
        if url in urls[:position]:  # the same node twice would count as two nodes that agree
            raise ValueError(f"rpc_urls[{position}] stands twice")
    if not urls:
        raise ValueError("rpc_urls: name at least one node")
    return tuple(Secret(url) for url in urls)
