"""What the operator's pages say of chains and gas, as tables."""

from dataclasses import replace

import pytest

from tollway.chain.nodes import NodeStatus
from tollway.ids import Address, ChainId, ListingId
from tollway.payments.gas import GasKeyStatus, GasSpending, WithdrawalReason, WithdrawnRail
from tollway.web.admin_chains import NodeFigures, chain_json
from tollway.web.admin_gas import LISTINGS_SHOWN, count_days_left, format_wei, gas_json

BASE, OTHER = ChainId(8453), ChainId(10)
STATUS = NodeStatus(
    position=1,
    host="a.example",
    head_number=10,
    head_time_s=100,
    failure="",
    failed_s=None,
    is_deferred=False,
)
GOOD = NodeFigures(status=STATUS, requests={"ok": 3}, disagreements=0)
BAD = NodeFigures(
    status=replace(
        STATUS, position=2, head_number=8, head_time_s=88, failure="slow", failed_s=2.0, is_deferred=True
    ),
    requests={"ok": 1, "timeout": 2, "error": 3, "other_chain": 4},
    disagreements=5,
)
KEY = GasKeyStatus(
    chain_id=BASE, address=Address(b"k" * 20), balance_wei=10 * 10**18, floor_wei=10**18, is_stuck=False
)
SPENDING = GasSpending(
    chain_id=BASE, spent_wei=2 * 10**18, budget_wei=4 * 10**18, listing_budget_wei=10**18, by_listing={}
)


def test_a_network_has_its_nodes_and_its_own_withdrawn_rails() -> None:
    withdrawn = {
        WithdrawnRail(BASE, WithdrawalReason.LISTING_BUDGET, "api_1"): 1_000,
        WithdrawnRail(OTHER, WithdrawalReason.GAS_UNKNOWN): 1_000,
    }
    found = chain_json({"chainId": 8453, "name": "Base"}, [GOOD, BAD], withdrawn, now_ms=10_000)
    assert found["withdrawn"] == [
        {"reason": "listing_gas_budget", "subject": "api_1", "since": "1970-01-01T00:00:01.000Z"}
    ]
    good, bad = found["nodes"]
    assert (good["lagSeconds"], good["lastError"], good["lastErrorSince"]) == (0, None, None)
    assert (bad["lagSeconds"], bad["deadlineMisses"], bad["errors"], bad["requests"]) == (12, 2, 7, 10)
    assert (bad["state"], bad["lastError"], bad["lastErrorSince"]) == (
        "failing",
        "slow",
        "1970-01-01T00:00:08.000Z",
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
