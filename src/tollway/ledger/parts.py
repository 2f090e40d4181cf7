"""What a call holds of which payments, and what its moves do to that. Pure.

A call holds *parts*: units of the payment that was shown, and of its siblings where that had too little. Together
they are its price while it takes from the balance, and nothing once it is released. A `reorged` call holds less
than its price; the difference is its payer's debt.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tollway.identifiers import CallId
from tollway.ledger.call import CallState

Parts = Mapping[int, int]
"""Payment id -> units held of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDebits:
    """The state of a call and what it holds."""

    state: CallState
    parts: Parts


def debits_after(after: CallState, *, parts: Parts, price_units: int, gone: Collection[int]) -> CallDebits:
    """What a call holds when it moves to `after`, given the payments that have left the chain.

    A call that costs and was paid from a gone payment becomes `reorged` at once; one whose outcome is open keeps its
    parts until it has one.
    """
    if after is CallState.RELEASED:
        return CallDebits(state=after, parts={})
    if after is not CallState.CONSUMED:
        return CallDebits(state=after, parts=parts)
    kept = {payment_id: units for payment_id, units in parts.items() if payment_id not in gone}
    is_paid = sum(kept.values()) >= price_units
    return CallDebits(state=CallState.CONSUMED if is_paid else CallState.REORGED, parts=kept)


def allocate_to_debts(units: int, *, debts: Iterable[tuple[CallId, int]]) -> dict[CallId, int]:
    """How much of `units` each debt gets, in the order given."""
    shares: dict[CallId, int] = {}
    for call_id, owed_units in debts:
        share = min(units, owed_units)
        if share <= 0:
            continue
        shares[call_id] = share
        units -= share
    return shares
