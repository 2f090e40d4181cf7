"""An open call as the operator's pages show it: where its price goes, what it waits for and until when, and which provider to write to. Pure."""

from typing import Any

from tollway.ledger.records import CallRecord, CallState
from tollway.registry.text import drop_refused_characters
from tollway.web.query import format_time


def show_line(text: str) -> str:
    """A provider's or an operator's words in one line, without hidden characters, for a page that escapes them. What an operator moderates keeps its markup, as text."""
    return " ".join(drop_refused_characters(text).split())


def call_json(call: CallRecord) -> dict[str, Any]:
    """An open call for an operator. `waitsFor`: `transaction` (settlement recovery reads the chain until it is decided), `clock` (its provider decides, else the price
    comes back at `heldUntil`), or `provider` (nothing but its provider, the chain or a repeat decides it)."""
    return {
        "id": call.id,
        "listing": call.listing_id,
        "listingName": show_line(call.listing_name),
        "provider": str(call.provider),
        "payer": None if call.payer is None else str(call.payer),
        "price": call.price,
        "currency": call.currency,
        "rail": call.rail.value,
        "transaction": None if call.tx_hash is None else str(call.tx_hash),
        "since": format_time(call.created_ms),
        "waitsFor": find_wait(call),
        "heldUntil": None if call.held_until_ms is None else format_time(call.held_until_ms),
        "error": None if call.error is None else show_line(call.error),
    }


def find_wait(call: CallRecord) -> str:
    """What an open call waits for."""
    if call.state is CallState.SETTLING:
        return "transaction"
    return "provider" if call.held_until_ms is None else "clock"
