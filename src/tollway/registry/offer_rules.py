"""The rules of what a listing asks: currency, networks, price, payee, methods, and a price per operation. Pure."""

import re

from tollway.identifiers import ZERO_ADDRESS, Address, ChainId, parse_network
from tollway.money import Price
from tollway.registry.draft_rules import DraftRules
from tollway.registry.form import ObjectReader
from tollway.registry.listing import Operation
from tollway.registry.operation_path import find_path_fault, path_shape
from tollway.registry.pricing import payable_assets

PATH_LENGTH_MAX = 2_048
METHODS_MAX = 16
PRICED_OPERATIONS_MAX = 200
NETWORKS_MAX = 32

# Upper case, because methods are case-sensitive and nobody's API answers `get` (RFC 9110 §9.1).
_METHOD = re.compile(r"[A-Z][A-Z0-9-]{0,31}")
_TUNNELS = frozenset({"CONNECT", "TRACE"})


def read_currency(reader: ObjectReader, rules: DraftRules) -> str | None:
    if not reader.has("currency"):
        reader.refuse("currency", "required", "is required")
        return None
    return reader.one_of("currency", tuple(dict.fromkeys(asset.symbol for asset in rules.assets)))


def read_networks(reader: ObjectReader, rules: DraftRules, currency: str | None) -> tuple[ChainId, ...]:
    if not reader.has("networks"):
        return rules.default_networks(currency) if currency else ()
    accepted = rules.networks_of(currency) if currency else ()
    networks = []
    texts = reader.texts("networks", count_max=NETWORKS_MAX, length_max=32)
    for pointer, text in texts or ():
        try:
            chain_id = parse_network(text)
        except ValueError as exc:
            reader.refuse_at(pointer, "network", str(exc))
            continue
        networks.append(chain_id)
        if currency and chain_id not in accepted:
            reader.refuse_at(pointer, "network", f"{currency} is not accepted on {text}")
    if reader.is_empty("networks"):
        reader.refuse("networks", "too_few", "must name at least one network")
    return tuple(networks)


def find_decimals_max(rules: DraftRules, currency: str | None, networks: tuple[ChainId, ...]) -> int | None:
    """The least that the ledger keeps over the assets the listing can be paid in; None when there are none."""
    payable = payable_assets(rules.assets, currency=currency or "", networks=networks)
    return min((asset.ledger_decimals for asset in payable), default=None)


def read_price(reader: ObjectReader, decimals_max: int | None, *, is_required: bool) -> Price | None:
    if is_required and not reader.has("pricePerRequest"):
        reader.refuse("pricePerRequest", "required", "is required")
        return None
    price = reader.parsed("pricePerRequest", Price.parse, code="price", length_max=64)
    if price is not None and decimals_max is not None and price.decimals > decimals_max:
        reader.refuse("pricePerRequest", "price", f"must have at most {decimals_max} decimals")
    return price


def read_pay_to(reader: ObjectReader, rules: DraftRules) -> Address | None:
    if not reader.has("payTo"):
        return None
    pay_to = reader.parsed("payTo", Address.parse, code="address", length_max=64)
    if pay_to == ZERO_ADDRESS:
        reader.refuse("payTo", "address", "must not be the zero address: nobody can spend from it")
    elif pay_to is not None and any(asset.token == pay_to for asset in rules.assets):
        reader.refuse("payTo", "address", "must be a wallet, not a token contract")
    return pay_to


def read_methods(reader: ObjectReader) -> tuple[str, ...]:
    if not reader.has("methods"):
        return ()
    methods = reader.texts("methods", count_max=METHODS_MAX, length_max=32) or []
    for pointer, method in methods:
        _check_method(reader, pointer, method)
    return tuple(method for _, method in methods)


def _check_method(reader: ObjectReader, pointer: str, method: str) -> None:
    if not _METHOD.fullmatch(method):
        reader.refuse_at(pointer, "method", "must be an HTTP method in upper case")
    elif method in _TUNNELS:
        reader.refuse_at(pointer, "method", f"{method} does not go through a gateway")


def read_operations(
    reader: ObjectReader, decimals_max: int | None, methods: tuple[str, ...]
) -> tuple[Operation, ...]:
    if not reader.has("operations"):
        return ()
    operations = []
    seen: set[tuple[str, str]] = set()
    for pointer, row in reader.readers("operations", count_max=PRICED_OPERATIONS_MAX) or ():
        operation = _operation(row, pointer, decimals_max)
        if operation is None:
            continue
        key = (operation.method, path_shape(operation.path))
        if key in seen:
            reader.refuse_at(pointer, "duplicate", "another operation has the same method and path")
        elif methods and operation.method not in methods:
            reader.refuse_at(f"{pointer}/method", "method", "is not among the listing's methods")
        seen.add(key)
        operations.append(operation)
    return tuple(operations)


def _operation(row: ObjectReader, pointer: str, decimals_max: int | None) -> Operation | None:
    row.refuse_unknown(("method", "path", "pricePerRequest"))
    method = row.required_text("method", length_max=32)
    path = row.required_text("path", length_max=PATH_LENGTH_MAX)
    price = read_price(row, decimals_max, is_required=True)
    if method == "HEAD":
        row.refuse("method", "method", "HEAD costs what GET costs")
    elif method is not None:
        _check_method(row, f"{pointer}/method", method)
    fault = find_path_fault(path) if path is not None else None
    if fault is not None:
        row.refuse("path", "path", fault)
    if method is None or path is None or price is None:
        return None
    return Operation(method=method, path=path, price=price)
