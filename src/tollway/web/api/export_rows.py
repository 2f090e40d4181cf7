"""The columns of `/history.csv` and `/payments.csv`, and their rows. A row has what the record of the JSON list has, and the amount as a decimal number too.

A state is a column and never a sign: the amount of a released, held or reorged call is its price. `docs/accounting.md` explains each column.
"""

from collections.abc import Mapping
from typing import Any

from tollway.csv_text import csv_line
from tollway.ledger.history import ListedPayment
from tollway.ledger.records import CallRecord
from tollway.money import Asset, format_decimal
from tollway.web.api.context import FindAsset
from tollway.web.api.history_routes import call_json, find_call_asset, name_quantities, payment_members
from tollway.web.http.query import format_time

CALL_COLUMNS = (
    *("callId", "createdAt", "completedAt", "apiId", "apiName", "method", "path"),
    *("status", "httpStatus", "upstreamStatus", "error"),
    *("state", "amount", "currency", "units", "asset", "network", "rail", "transaction", "heldUntil"),
    *("payer", "provider", "payee", "idempotencyKey", "requestId"),
    *("priceMax", "quantities"),
    *("channel", "claimState"),
    *("refundedAmount", "refundedUnits", "refundTransaction", "refundKind"),
)

PAYMENT_COLUMNS = (
    *("transaction", "minedAt", "recordedAt", "network", "asset", "currency", "payer", "payee"),
    *("amount", "units", "credit", "creditUnits", "state", "reason", "kind"),
)


def write_call(call: CallRecord, find_asset: FindAsset) -> str:
    """The line of a call, in the order of `CALL_COLUMNS`."""
    record = call_json(call, find_asset)
    payment: Mapping[str, Any] = record["payment"]
    asset = find_call_asset(call, find_asset)
    members = {
        **record,
        "callId": record["id"],
        "state": payment["state"],
        "amount": "0" if asset is None else asset.format_units(call.due_units),
        "units": payment["amount"],
        "asset": payment["asset"],
        "network": payment["network"],
        "rail": payment["rail"],
        "transaction": payment["transaction"],
        "heldUntil": payment.get("heldUntil"),
        "payee": payment["payTo"],
        "priceMax": record.get("priceMax"),
        "channel": payment.get("channel"),
        "claimState": payment.get("claimState"),
        "quantities": ";".join(f"{unit}={quantity}" for unit, quantity in name_quantities(call)) or None,
    }
    refund: Mapping[str, Any] = record.get("refund", {})
    members |= {
        "refundedAmount": refund.get("value"),
        "refundedUnits": refund.get("amount"),
        "refundTransaction": refund.get("transaction"),
        "refundKind": refund.get("kind"),
    }
    return csv_line(members[name] for name in CALL_COLUMNS)


def write_payment(listed: ListedPayment, find_asset: FindAsset) -> str:
    """The line of a payment, in the order of `PAYMENT_COLUMNS`. Amounts of an asset that is no longer configured are empty: its decimals are unknown."""
    payment = listed.payment
    members = payment_members(
        payment,
        find_asset,
        is_restored=listed.is_restored,
        is_held_by_call=listed.has_unknown_call,
    )
    asset = find_asset(payment.chain_id, payment.asset)
    cells = {
        **members,
        "minedAt": format_time(payment.block_time * 1000),
        "recordedAt": format_time(listed.recorded_ms),
        "currency": None if asset is None else asset.symbol,
        "amount": _decimal(members["amount"], asset),
        "units": members["amount"],
        "credit": _decimal(members["credit"], asset),
        "creditUnits": members["credit"],
        "kind": members.get("kind", "payment"),
    }
    return csv_line(cells[name] for name in PAYMENT_COLUMNS)


def _decimal(units: str | None, asset: Asset | None) -> str | None:
    return None if units is None or asset is None else format_decimal(int(units), decimals=asset.decimals)
