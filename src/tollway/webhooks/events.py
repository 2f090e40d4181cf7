"""The events that webhooks deliver: their types, which move of a call is which event, and the data of each type. Pure.

An event belongs to wallets: the provider and the payer of a call, the payee and the payer of a payment, the provider of a listing, the owner and the agent of a budget. Its row is
written in the transaction that made it true (`storage/webhooks/webhook_events.py`). The data is thin: ids, amounts and states, never a body, a query or a
secret. The history has the rest.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tollway.ids import Address, TxHash, format_network
from tollway.ledger.budgets import Budget
from tollway.ledger.records import CallRecord, CallState, Payment, Rail
from tollway.money import Asset
from tollway.spending_policy import LIMITS


class EventType(StrEnum):
    """The types that an endpoint may name, as on the wire."""

    CALL_CHARGED = "call.charged"
    CALL_HELD = "call.held"
    CALL_RESOLVED = "call.resolved"
    CALL_REFUNDED = "call.refunded"
    CALL_REFUND_REVERSED = "call.refund_reversed"
    PAYMENT_CREDITED = "payment.credited"
    PAYMENT_REORGED = "payment.reorged"
    LISTING_DOWN = "listing.down"
    LISTING_OWNERSHIP_LOST = "listing.ownership_lost"
    BUDGET_REACHED = "budget.reached"


BATCH, CHALLENGE, GAP = "batch", "webhook.challenge", "webhook.gap"
"""Further types of messages. An endpoint does not name them: a batch has events of its types, and every endpoint gets the other two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event of one wallet that is not written yet. `subject`: the id of its call or listing, the number of its payment, both of a refund, or a budget (`budget_subject`). `state`: of the
    subject, as the event made it. `units`: of a payment, in ledger units."""

    id: str
    wallet: Address
    type: EventType
    subject: str
    state: str | None
    units: int | None
    at_ms: int


def call_event_of(
    before: CallState, after: CallState, *, rail: str, cut: str, attempts: int
) -> EventType | None:
    """The event of a move of a call; None for a move that is no event. A free call has none. `cut`: 'repeated' for a call that was charged before
    its current run: its second charge is the same charge."""
    if rail == Rail.NONE.value:
        return None
    match after:
        case CallState.CONSUMED if before is CallState.UNKNOWN:
            return EventType.CALL_RESOLVED
        case CallState.CONSUMED if before is not CallState.REORGED and cut != "repeated":
            return EventType.CALL_CHARGED
        case CallState.UNKNOWN:
            return EventType.CALL_HELD
        case CallState.RELEASED if before is CallState.UNKNOWN or (attempts > 1 and cut == ""):
            # A repeat of a held call that ends without a charge: the hold is over.
            return EventType.CALL_RESOLVED
        case _:
            return None


# ---- The data of each type.

_PAYMENT_STATES = {
    CallState.CONSUMED.value: "charged",
    CallState.RELEASED.value: "released",
    CallState.UNKNOWN.value: "held",
}


def call_data(call: CallRecord, *, state: str, created_at: str) -> dict[str, Any]:
    """The data of an event of a call: members of the record of `/history`, with the state that the event made."""
    asset = asset_of_call(call)
    return {
        "callId": call.id,
        "apiId": call.listing_id,
        "provider": str(call.provider),
        "payer": None if call.payer is None else str(call.payer),
        "price": call.due_price,
        "currency": call.currency,
        "httpStatus": call.http_status,
        "payment": {
            "state": _PAYMENT_STATES[state],
            "rail": call.rail.value,
            "network": None if asset is None else asset.network,
            "asset": None if asset is None else asset.caip19,
            "transaction": None if call.tx_hash is None else str(call.tx_hash),
            "amount": None if asset is None else str(asset.to_base_units(call.due_units)),
            "payTo": None if call.pay_to is None else str(call.pay_to),
        },
        "createdAt": created_at,
    }


def refund_data(
    call: CallRecord, *, units: int, tx_hash: TxHash, is_credit: bool, created_at: str
) -> dict[str, Any]:
    """The data of `call.refunded` and `call.refund_reversed`: those of the charged call, and what came back or was taken back."""
    asset = asset_of_call(call)
    return {
        **call_data(call, state=CallState.CONSUMED.value, created_at=created_at),
        "refund": {
            "amount": None if asset is None else str(asset.to_base_units(units)),
            "transaction": str(tx_hash),
            "isCredit": is_credit,
        },
    }


def asset_of_call(call: CallRecord) -> Asset | None:
    if call.chain_id is None or call.asset is None:
        return None
    token = None if call.asset == "native" else Address.parse(call.asset)
    return Asset(chain_id=call.chain_id, token=token, symbol=call.currency, decimals=call.decimals)


def payment_data(payment: Payment, asset: Asset | None, *, state: str, units: int) -> dict[str, Any]:
    """The data of an event of a payment: members of the record of `/payments`. `units`: its value in ledger units. `asset` None: it is no longer
    configured, and the decimals of its amounts are unknown."""
    network = format_network(payment.chain_id)
    reference = "slip44:60" if payment.asset == "native" else f"erc20:{payment.asset}"
    return {
        "transaction": str(payment.tx_hash),
        "network": network,
        "asset": f"{network}/{reference}",
        "payer": str(payment.payer),
        "payee": str(payment.payee),
        "state": state,
        "amount": None if asset is None else str(asset.to_base_units(units)),
        "value": None if asset is None else asset.format_units(units),
        "currency": None if asset is None else asset.symbol,
    }


def listing_data(listing_id: str, name: str, provider: Address, *, state: str) -> dict[str, Any]:
    """The data of an event of a listing. `state`: `down` or `unverified`."""
    return {"apiId": listing_id, "apiName": name, "provider": str(provider), "state": state}


def budget_subject(budget: Budget, *, until_ms: int | None) -> str:
    """What an event says of a budget: another policy may replace this one before the event is sent. `budget_data` reads it."""
    return f"{budget.owner} {budget.agent} {budget.nonce} {'' if until_ms is None else until_ms}"


def budget_data(subject: str, *, state: str, format_time: Callable[[int], str]) -> dict[str, Any]:
    """The data of `budget.reached`. `state`: the limit that was reached, or another reason of a refusal."""
    owner, agent, nonce, until_ms = subject.split(" ")
    is_limit = state in LIMITS
    return {
        "owner": owner,
        "agent": agent,
        "nonce": int(nonce),
        "reason": "limit" if is_limit else state,
        "limit": state if is_limit else None,
        "resetsAt": format_time(int(until_ms)) if until_ms else None,
    }


def gap_data(*, from_at: str, to_at: str) -> dict[str, Any]:
    """The data of `webhook.gap`: the events of this range of time were not kept for the endpoint."""
    return {"from": from_at, "to": to_at}
