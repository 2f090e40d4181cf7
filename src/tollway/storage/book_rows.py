"""Rows of the books' tables to records of the ledger. Nothing else."""

from typing import Any

from sqlalchemy import Row

from tollway.identifiers import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.call import CallRecord, CallState, Delivery, Payment, PaymentState, Rail


def parse_payment(row: Row[Any]) -> Payment:
    """A gone payment is worth what its running calls still hold of it, so nothing is left to spend."""
    state = PaymentState(row.state)
    return Payment(
        id=row.id,
        chain_id=ChainId(row.chain_id),
        tx_hash=TxHash(row.tx_hash),
        asset=row.asset,
        payer=Address(row.payer),
        payee=Address(row.payee),
        value_units=row.taken_units if state is PaymentState.GONE else row.value_units,
        taken_units=row.taken_units,
        state=state,
        block_number=row.block_number,
        block_hash=bytes(row.block_hash),
        block_time=row.block_time,
        is_plain_ended=row.is_plain_ended,
        is_held=row.is_held,
        calls=row.calls,
        is_authorized=row.is_authorized,
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
