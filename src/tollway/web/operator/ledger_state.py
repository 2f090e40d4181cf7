"""What the operator's page of the books shows: the last audit, encrypted_values by key, sizes of the large tables, and held payments. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tollway.chain.networks import ChainRules, NetworkProfile, find_asset
from tollway.ids import ChainId, format_network
from tollway.observability.fleet import BookSizes, EncryptedValues, HeldPayment
from tollway.web.http.query import format_time
from tollway.web.operator.findings import count

_KIB = 1024
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def books_json(
    *,
    last_audit: tuple[int, int] | None,
    held_count: int,
    held: Sequence[HeldPayment],
    encrypted_values: Sequence[EncryptedValues],
    sizes: BookSizes,
    rules: Mapping[ChainId, ChainRules],
    profiles: Mapping[ChainId, NetworkProfile],
) -> dict[str, Any]:
    """`last_audit`: when it ended and how many differences it found, of any gateway, page or command. `held_count` is counted to 10,000, so a text says "at least"; `held` has the first of them."""
    return {
        "lastAudit": None
        if last_audit is None
        else {"ended": format_time(last_audit[0]), "differences": last_audit[1]},
        "heldPayments": count(held_count, 10_000),
        "held": [_held_json(one, rules, profiles) for one in held],
        "encrypted_values": [
            {
                "kind": one.kind,
                "firstKey": one.current,
                "olderKeys": one.older,
                "noKey": one.lost,
                "isWhole": one.is_whole,
            }
            for one in encrypted_values
        ],
        "size": format_size(sizes.size_bytes),
        "tables": [
            {
                "name": table.name,
                "rows": table.rows,
                "size": None if table.size_bytes is None else format_size(table.size_bytes),
                "oldest": None if table.oldest_ms is None else format_time(table.oldest_ms),
            }
            for table in sizes.tables
        ],
    }


def format_size(size_bytes: int) -> str:
    """Rounded down to a tenth."""
    number, unit = size_bytes, 0
    while number >= _KIB * _KIB and unit < len(_UNITS) - 2:
        number, unit = number // _KIB, unit + 1
    if number < _KIB:
        return f"{number} {_UNITS[unit]}"
    tenths = number * 10 // _KIB
    return f"{tenths // 10}.{tenths % 10} {_UNITS[unit + 1]}"


def _held_json(
    held: HeldPayment, rules: Mapping[ChainId, ChainRules], profiles: Mapping[ChainId, NetworkProfile]
) -> dict[str, Any]:
    """`credit`: in the currency; None where the settings do not have the asset any more."""
    profile = profiles.get(held.chain_id)
    asset = find_asset(rules, held.chain_id, held.asset)
    return {
        "network": format_network(held.chain_id),
        "transaction": str(held.tx_hash),
        "explorer": None if profile is None else profile.link_transaction(held.tx_hash),
        "payer": str(held.payer),
        "payTo": str(held.payee),
        "credit": None if asset is None else asset.format_units(held.units),
        "currency": None if asset is None else asset.symbol,
        "asset": held.asset,
        "recorded": format_time(held.recorded_ms),
    }
