"""What refunds of channels may cost the operator: the payer pays nothing for them, and can open any number of channels."""

from dataclasses import replace

import pytest

from tests.kit.channel_refunds import DEPOSIT, FUNDS, RefundHarness
from tests.kit.databases import open_database
from tests.kit.payer import CHAIN, USDC
from tests.kit.settlement import LISTING, settlement_rules
from tollway.errors import Problem, Refusal
from tollway.ids import keccak256
from tollway.payments.channel_refunds import AWAY
from tollway.payments.gas import BUDGET_WINDOW_MS

BUDGET_WEI = 10**15
CHANNELS = 12


@pytest.mark.parametrize(
    "budget",
    [
        {"listing_budget_wei": BUDGET_WEI},
        {"network_budget_wei": BUDGET_WEI},
    ],
    ids=["that of a listing", "that of the network"],
)
async def test_refunds_cost_no_more_than_the_budget(sqlite_url: str, budget: dict[str, int]) -> None:
    async with (
        open_database(sqlite_url) as database,
        RefundHarness(database, settlement=settlement_rules(**budget)).running() as harness,
    ):
        outcomes = [await open_and_refund(harness, number) for number in range(CHANNELS)]
        refunds = outcomes.count(DEPOSIT)
        assert outcomes == [DEPOSIT] * refunds + [AWAY] * (CHANNELS - refunds)
        spent_wei = await spend_of(harness)
        assert 1 < refunds < CHANNELS
        assert BUDGET_WEI <= spent_wei < BUDGET_WEI * (refunds + 1) / refunds
        assert harness.sent_count == refunds

        await harness.pass_time(BUDGET_WINDOW_MS + 1)
        assert (await harness.refund(ceiling=0)).base_units == DEPOSIT


async def test_the_gas_of_refunds_takes_nothing_from_a_listing(sqlite_url: str) -> None:
    rules = settlement_rules(listing_budget_wei=BUDGET_WEI)
    async with (
        open_database(sqlite_url) as database,
        RefundHarness(database, settlement=rules).running() as harness,
    ):
        outcomes = [await open_and_refund(harness, number) for number in range(CHANNELS)]
        assert outcomes[-1] == AWAY
        assert harness.services.gas_budget.is_offered(USDC, 10**6, LISTING)


async def open_and_refund(harness: RefundHarness, number: int) -> int | Problem:
    """Another channel of the wallet with a deposit of its own, and what its refund pays back."""
    salt = keccak256(b"%d" % number)
    harness.payer = replace(harness.payer, salt=salt)
    harness.chain.fund(CHAIN, harness.payer.config.token, harness.payer.address, FUNDS)
    harness.deposit(salt=salt)
    facts = await harness.fetch_facts()
    await harness.ledger.open_channel(
        CHAIN, harness.payer.channel_id, harness.payer.config, facts, decimals=6, now_ms=harness.now_ms
    )
    await harness.pass_time(1)
    try:
        return (await harness.refund(ceiling=0)).base_units
    except Refusal as refusal:
        return refusal.problem
    finally:
        await harness.pass_time(1)


async def spend_of(harness: RefundHarness) -> int:
    (spending,) = harness.services.gas_budget.list_spending()
    return spending.spent_wei
