"""Rows of the ledger's tables to records of the ledger. Nothing else."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from tollway.identifiers import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.call import CallRecord, CallState, Delivery, Payment, PaymentState, Rail

PAYMENT_COLUMNS = (
    "id",
    "chain_id",
    "tx_hash",
    "asset",
    "payer",
    "payee",
    "value_units",
    "taken_units",
    "state",
    "block_number",
    "block_hash",
    "block_time",
    "is_plain_ended",
    "is_held",
    "calls",
    "is_authorized",
)
"""In the order of `parse_payment_row`."""


def parse_payment(row: Row[Any]) -> Payment:
    """`parse_payment_row` of a row that has more columns, or has them in another order."""
    return parse_payment_row([getattr(row, name) for name in PAYMENT_COLUMNS])


def parse_payment_row(row: Sequence[Any]) -> Payment:
    """A gone payment is worth what its running calls still hold of it, so nothing is left to spend."""
    (
        payment_id,
        chain_id,
        tx_hash,
        asset,
        payer,
        payee,
        value_units,
        taken_units,
        state_name,
        block_number,
        block_hash,
        block_time,
        is_plain_ended,
        is_held,
        calls,
        is_authorized,
    ) = row
    state = PaymentState(state_name)
    return Payment(
        id=payment_id,
        chain_id=ChainId(chain_id),
        tx_hash=TxHash(tx_hash),
        asset=asset,
        payer=Address(payer),
        payee=Address(payee),
        value_units=taken_units if state is PaymentState.GONE else value_units,
        taken_units=taken_units,
        state=state,
        block_number=block_number,
        block_hash=bytes(block_hash),
        block_time=block_time,
        is_plain_ended=bool(is_plain_ended),
        is_held=bool(is_held),
        calls=calls,
        is_authorized=bool(is_authorized),
    )


def parse_call(row: Row[Any]) -> CallRecord:
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
        currency=row.currency,
        chain_id=None if row.chain_id is None else ChainId(row.chain_id),
        asset=row.asset,
        decimals=row.decimals,
        tx_hash=None if row.tx_hash is None else TxHash(row.tx_hash),
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
    )
