"""An open call as the operator's pages show it: where its price goes, what it waits for and until when, and which provider to write to. Pure."""

from typing import Any

from tollway.ledger.records import CallRecord, CallState
from tollway.registry.text import join_lines
from tollway.web.http.query import format_time


def call_json(call: CallRecord) -> dict[str, Any]:
    """An open call for an operator. `waitsFor`: `transaction` (settlement recovery reads the chain until it is decided), `deadline` (its provider decides, else the price
    comes back at `heldUntil`), or `provider` (nothing but its provider, the chain or a repeat decides it)."""
    return {
        "id": call.id,
        "listing": call.listing_id,
        "listingName": join_lines(call.listing_name),
        "provider": str(call.provider),
        "payer": None if call.payer is None else str(call.payer),
        "price": call.price,
        "currency": call.currency,
        "rail": call.rail.value,
        "transaction": None if call.tx_hash is None else str(call.tx_hash),
        "since": format_time(call.created_ms),
        "waitsFor": find_wait(call),
        "heldUntil": None if call.held_until_ms is None else format_time(call.held_until_ms),
        "error": None if call.error is None else join_lines(call.error),
    }


def find_wait(call: CallRecord) -> str:
    """What an open call waits for."""
    if call.state is CallState.SETTLING:
        return "transaction"
    return "provider" if call.held_until_ms is None else "deadline"
