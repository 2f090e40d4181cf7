"""The calls as records: one row of the call, its terms, the payment of its proof and its refund in force."""

from typing import Any

from sqlalchemy import FromClause, Row, Select, and_, select, text

from tollway.ids import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.records import CallRecord, CallRefund, CallState, ClaimState, Delivery, PaymentState, Rail
from tollway.storage.ledger.ledger_tables import (
    call_refund_table,
    call_table,
    call_terms_table,
    payment_table,
)


def select_records(calls: FromClause = call_table) -> Select[Any]:
    """`calls`: the table of calls, or a subquery with all its columns."""
    own, terms = calls.c, call_terms_table.c
    return select(
        *(own[name] for name in _RECORD_COLUMNS),
        *(terms[name] for name in _RECORD_TERMS),
        payment_table.c.tx_hash,
        *(_refunds.c[name].label(f"refund_{name}") for name in _REFUND_COLUMNS),
        _refund_payments.c.tx_hash.label("refund_tx_hash"),
        _refund_payments.c.state.label("refund_state"),
    ).select_from(
        calls.join(call_terms_table, terms.id == own.terms_id)
        .outerjoin(payment_table, payment_table.c.id == own.payment_id)
        .outerjoin(_refunds, and_(_refunds.c.call_id == own.id, text("NOT refund.is_reversed")))
        .outerjoin(_refund_payments, _refund_payments.c.id == _refunds.c.payment_id)
    )


_refunds, _refund_payments = call_refund_table.alias("refund"), payment_table.alias("refund_payment")
_REFUND_COLUMNS = ("units", "is_credit", "created_ms")


_RECORD_COLUMNS = (
    "id",
    "provider",
    "payer",
    "path",
    "state",
    "rail",
    "price_units",
    "actual_units",
    "quantities",
    "http_status",
    "upstream_status",
    "request_bytes",
    "response_bytes",
    "latency_ms",
    "upstream_latency_ms",
    "delivery",
    "idempotency_key",
    "request_id",
    "error",
    "created_ms",
    "completed_ms",
    "moved_ms",
    "clock_releases",
    "payment_id",
)
_RECORD_TERMS = (
    "listing_id",
    "listing_name",
    "method",
    "price",
    "currency",
    "chain_id",
    "asset",
    "decimals",
    "pay_to",
    "metering",
)


def parse_call(row: Row[Any], *, unknown_hold_ms: int, claim_state: ClaimState | None = None) -> CallRecord:
    is_unpaid = row.payment_id is None and row.rail in ("x402", "mpp", "channel")
    is_on_channel = row.rail == Rail.CHANNEL.value
    is_released = row.state == CallState.UNKNOWN.value and row.clock_releases and not is_unpaid
    return CallRecord(
        id=CallId(row.id),
        listing_id=ListingId(row.listing_id),
        listing_name=row.listing_name,
        provider=Address(row.provider),
        payer=None if row.payer is None else Address(row.payer),
        method=row.method,
        path=row.path,
        state=CallState(row.state),
        rail=Rail(row.rail),
        price=row.price,
        price_units=row.price_units,
        actual_units=row.actual_units,
        quantities=row.quantities,
        metering=row.metering,
        currency=row.currency,
        chain_id=None if row.chain_id is None else ChainId(row.chain_id),
        asset=row.asset,
        decimals=row.decimals,
        tx_hash=None if row.tx_hash is None or is_on_channel else TxHash(row.tx_hash),
        channel_id=bytes(row.tx_hash) if row.tx_hash is not None and is_on_channel else None,
        claim_state=claim_state,
        pay_to=None if row.pay_to is None else Address(row.pay_to),
        http_status=row.http_status,
        upstream_status=row.upstream_status,
        request_bytes=row.request_bytes,
        response_bytes=row.response_bytes,
        latency_ms=row.latency_ms,
        upstream_latency_ms=row.upstream_latency_ms,
        delivery=None if row.delivery is None else Delivery(row.delivery),
        idempotency_key=row.idempotency_key,
        request_id=row.request_id,
        error=row.error,
        created_ms=row.created_ms,
        completed_ms=row.completed_ms,
        moved_ms=row.moved_ms,
        held_until_ms=row.moved_ms + unknown_hold_ms if is_released else None,
        refund=None if row.refund_units is None else _parse_refund(row),
    )


def _parse_refund(row: Row[Any]) -> CallRefund:
    return CallRefund(
        units=row.refund_units,
        tx_hash=TxHash(row.refund_tx_hash),
        is_credit=bool(row.refund_is_credit),
        is_final=row.refund_state == PaymentState.FINAL.value,
        created_ms=row.refund_created_ms,
    )
