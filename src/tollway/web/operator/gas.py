"""What the operator's page of gas shows: the keys, and what is spent of the budgets. Pure."""

from collections.abc import Sequence
from typing import Any

from tollway.ids import format_network
from tollway.payments.gas import GasKeyStatus, GasSpending

LISTINGS_SHOWN = 20


def gas_json(keys: Sequence[GasKeyStatus], spending: Sequence[GasSpending]) -> dict[str, Any]:
    """The keys and the budgets of all networks. Amounts are decimal text in the native currency of their network.

    A cost is the maximum of a transaction until its receipt is read, so that a budget is never spent beyond what is shown.
    """
    return {
        "keys": [_key_json(key) for key in keys],
        "budgets": [_budget_json(one, keys) for one in spending],
    }


def count_days_left(spending: GasSpending, keys: Sequence[GasKeyStatus]) -> int | None:
    """For how many days the balances of a network's keys last above their floors, at the cost of the last 24 hours, rounded down. None without a cost, or before
    every balance was read."""
    left_wei = 0
    for key in keys:
        if key.chain_id == spending.chain_id:
            if key.balance_wei is None:
                return None
            left_wei += max(0, key.balance_wei - key.floor_wei)
    return left_wei // spending.spent_wei if spending.spent_wei else None


def format_wei(wei: int) -> str:
    """In units of 10^18 wei, with six digits, rounded down."""
    return f"{wei // 10**18}.{wei % 10**18 // 10**12:06d}"


def _key_json(key: GasKeyStatus) -> dict[str, Any]:
    return {
        "network": format_network(key.chain_id),
        "address": str(key.address),
        "balance": None if key.balance_wei is None else format_wei(key.balance_wei),
        "isLow": key.balance_wei is not None and key.balance_wei < key.floor_wei,
        "floor": format_wei(key.floor_wei),
        "unmined": key.unmined,
        "isStuck": key.is_stuck,
    }


def _budget_json(spending: GasSpending, keys: Sequence[GasKeyStatus]) -> dict[str, Any]:
    """The dearest listings first. `listing` None: claims of channels, which are of no listing."""
    dearest = sorted(spending.by_listing.items(), key=lambda found: (-found[1], found[0]))
    return {
        "network": format_network(spending.chain_id),
        "spent": format_wei(spending.spent_wei),
        "budget": format_wei(spending.budget_wei),
        "daysLeft": count_days_left(spending, keys),
        "listingBudget": format_wei(spending.listing_budget_wei),
        "listings": [
            {"listing": listing_id or None, "spent": format_wei(wei)}
            for listing_id, wei in dearest[:LISTINGS_SHOWN]
        ],
    }
