"""What the operator's page of gas shows, as a table."""

from dataclasses import replace

import pytest

from tollway.ids import Address, ChainId, ListingId
from tollway.payments.channel_claims import CLAIMS
from tollway.payments.gas import GasKeyStatus, GasSpending
from tollway.web.operator.gas import LISTINGS_SHOWN, count_days_left, format_wei, gas_json

BASE, OTHER = ChainId(8453), ChainId(10)
KEY = GasKeyStatus(
    chain_id=BASE, address=Address(b"k" * 20), balance_wei=10 * 10**18, floor_wei=10**18, is_stuck=False
)
SPENDING = GasSpending(
    chain_id=BASE, spent_wei=2 * 10**18, budget_wei=4 * 10**18, listing_budget_wei=10**18, by_listing={}
)


@pytest.mark.parametrize(
    ("spending", "keys", "days"),
    [
        (SPENDING, [KEY], 4),
        (SPENDING, [KEY, replace(KEY, balance_wei=0)], 4),
        (SPENDING, [KEY, replace(KEY, balance_wei=None)], None),
        (SPENDING, [replace(KEY, chain_id=OTHER)], 0),
        (replace(SPENDING, spent_wei=0), [KEY], None),
    ],
)
def test_days_until_the_keys_reach_their_floors(
    spending: GasSpending, keys: list[GasKeyStatus], days: int | None
) -> None:
    assert count_days_left(spending, keys) == days


def test_the_dearest_listings_come_first() -> None:
    costs = {ListingId(f"api_{number:02d}"): number * 10**18 for number in range(30)}
    (budget,) = gas_json([KEY], [replace(SPENDING, by_listing=costs)])["budgets"]
    assert len(budget["listings"]) == LISTINGS_SHOWN
    assert budget["listings"][0] == {"listing": "api_29", "spent": "29.000000"}
    assert format_wei(10**18 - 1) == "0.999999"


def test_claims_of_channels_are_of_no_listing() -> None:
    (budget,) = gas_json([KEY], [replace(SPENDING, by_listing={CLAIMS: 10**18})])["budgets"]
    assert budget["listings"] == [{"listing": None, "spent": "1.000000"}]
