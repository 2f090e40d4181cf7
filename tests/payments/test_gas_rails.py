"""Withdrawn rails: each reason is counted, and logged once when it begins and once when it ends."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.chain_blocks import authorizing_token
from tests.kit.payer import CHAIN, USDC
from tests.kit.settlement import (
    LISTING,
    TOKEN,
    ScriptedFacilitator,
    SettlementHarness,
    facilitator_at,
    make_gas_key,
    settlement_rules,
)
from tollway.limits import DEFAULT_LIMITS
from tollway.money import TokenDomain
from tollway.payments.facilitator import FacilitatorClient
from tollway.payments.gas import (
    CHECKS_UNTIL_STALE,
    CLAIM_RESERVE_FACTOR,
    NO_METRICS,
    RailStatus,
    SettlementMetrics,
    WithdrawalReason,
    WithdrawnRail,
)
from tollway.payments.settlement import Settled

KEY = make_gas_key().address
NETWORK = {"chain_id": CHAIN}


def withdrawn(harness: SettlementHarness) -> set[object]:
    """The reasons that the latest refresh counted."""
    counts = {note[2]: note[3] for note in harness.metrics if note[0] == "withdrawn"}
    return {reason for reason, count in counts.items() if count}


def lose_chain(harness: SettlementHarness) -> None:
    harness.chain.disconnect(CHAIN)
    harness.pass_time(CHECKS_UNTIL_STALE * DEFAULT_LIMITS.gas_refresh_s + 1)


CAUSES: list[
    tuple[WithdrawalReason, Callable[[SettlementHarness], None], Callable[[SettlementHarness], None]]
] = [
    (WithdrawalReason.GAS_UNKNOWN, lose_chain, lambda harness: harness.chain.reconnect(CHAIN)),
    (
        WithdrawalReason.GAS_TOO_DEAR,
        lambda harness: harness.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=1),
        lambda harness: harness.chain.set_fees(CHAIN, base_fee_wei=10**6, tip_wei=1),
    ),
    (
        WithdrawalReason.GAS_KEYS_LOW,
        lambda harness: harness.chain.fund_gas(CHAIN, KEY, 10**15 - 1),
        lambda harness: harness.chain.fund_gas(CHAIN, KEY, 10**15),
    ),
]


@pytest.mark.parametrize(("reason", "cause", "cure"), CAUSES, ids=[reason.value for reason, _, _ in CAUSES])
async def test_a_withdrawn_network_is_logged_once_and_when_it_is_back(
    reason: WithdrawalReason,
    cause: Callable[[SettlementHarness], None],
    cure: Callable[[SettlementHarness], None],
) -> None:
    async with SettlementHarness() as harness:
        assert withdrawn(harness) == set()
        cause(harness)
        with capture_logs() as lines:
            await harness.gas_budget.refresh()
            await harness.gas_budget.refresh()
        assert not harness.gas_budget.is_offered(USDC, 10_000, LISTING)
        assert withdrawn(harness) == {reason}
        told = {"log_level": "warning", "event": "rail_withdrawn", **NETWORK, "reason": reason.value}
        assert [line for line in lines if line["event"] == "rail_withdrawn"] == [told]
        cure(harness)
        with capture_logs() as lines:
            await harness.gas_budget.refresh()
            await harness.gas_budget.refresh()
        assert harness.gas_budget.is_offered(USDC, 10_000, LISTING)
        assert withdrawn(harness) == set()
        told = {"log_level": "info", "event": "rail_is_back", **NETWORK, "reason": reason.value}
        assert [line for line in lines if line["event"] == "rail_is_back"] == [told]


async def test_a_low_key_is_logged_once() -> None:
    async with SettlementHarness() as harness:
        harness.chain.fund_gas(CHAIN, KEY, 1)
        with capture_logs() as lines:
            for _ in range(3):
                await harness.gas_budget.refresh()
        assert [line["event"] for line in lines].count("gas_key_low") == 1


async def test_a_token_with_another_domain_than_configured_is_logged() -> None:
    harness = SettlementHarness()
    domain = TokenDomain(name="Another", version="9")
    harness.chain.deploy(CHAIN, TOKEN, authorizing_token(replace(USDC, domain=domain)))
    with capture_logs() as lines:
        async with harness:
            pass
    assert withdrawn(harness) == {WithdrawalReason.TOKEN}
    (line,) = [line for line in lines if line["event"] == "rail_withdrawn"]
    assert line["subject"] == str(TOKEN)


async def test_a_spent_listing_budget_withdraws_the_listing_and_not_its_network() -> None:
    async with SettlementHarness(rules=settlement_rules(listing_budget_wei=1)) as harness:
        assert harness.gas_budget.is_offered(USDC, 10_000, LISTING)
        assert isinstance(await (await harness.claim()).settle(), Settled)
        with capture_logs() as lines:
            await harness.gas_budget.refresh()
        assert withdrawn(harness) == {WithdrawalReason.LISTING_BUDGET}
        (line,) = [line for line in lines if line["event"] == "rail_withdrawn"]
        assert (line["reason"], line["subject"]) == ("listing_gas_budget", LISTING)


async def test_a_spent_network_budget_is_logged() -> None:
    async with SettlementHarness(rules=settlement_rules(network_budget_wei=1)) as harness:
        assert isinstance(await (await harness.claim()).settle(), Settled)
        await harness.gas_budget.refresh()
        assert withdrawn(harness) == {WithdrawalReason.NETWORK_BUDGET}


async def test_gas_does_not_count_where_a_facilitator_settles() -> None:
    rules, line = settlement_rules(gas_keys=(), facilitator=facilitator_at()), ScriptedFacilitator()
    facilitators = {CHAIN: FacilitatorClient(facilitator_at(), line)}
    async with SettlementHarness(rules=rules, facilitators=facilitators) as harness:
        harness.chain.set_fees(CHAIN, base_fee_wei=10**15, tip_wei=1)
        await harness.gas_budget.refresh()
        assert withdrawn(harness) == set()
        lose_chain(harness)
        await harness.gas_budget.refresh()
        assert withdrawn(harness) == {WithdrawalReason.GAS_UNKNOWN}


async def test_an_unavailable_facilitator_withdraws_its_network() -> None:
    rules, line = settlement_rules(gas_keys=(), facilitator=facilitator_at()), ScriptedFacilitator()
    facilitators = {CHAIN: FacilitatorClient(facilitator_at(), line)}
    line.status = None
    async with SettlementHarness(rules=rules, facilitators=facilitators) as harness:
        assert withdrawn(harness) == {WithdrawalReason.FACILITATOR_AWAY}
        line.status = 200
        await harness.gas_budget.refresh()
        assert withdrawn(harness) == set()


def test_each_reason_of_each_network_is_counted_from_the_start() -> None:
    counted: dict[tuple[Any, Any], int] = {}
    withdrawals = RailStatus(
        [CHAIN],
        SettlementMetrics(
            withdrawn=lambda chain_id, reason, count: counted.update({(chain_id, reason): count})
        ),
    )
    withdrawals.update([], now_ms=1)
    assert counted == {(CHAIN, reason): 0 for reason in WithdrawalReason}
    withdrawals.update(
        [WithdrawnRail(CHAIN, WithdrawalReason.LISTING_BUDGET, name) for name in "ab"], now_ms=2
    )
    assert counted[CHAIN, WithdrawalReason.LISTING_BUDGET] == 2


def test_a_withdrawn_rail_keeps_the_time_at_which_it_was_found_first() -> None:
    withdrawals = RailStatus([CHAIN], NO_METRICS)
    gas, token = (
        WithdrawnRail(CHAIN, reason) for reason in (WithdrawalReason.GAS_TOO_DEAR, WithdrawalReason.TOKEN)
    )
    withdrawals.update([gas], now_ms=1)
    withdrawals.update([gas, token], now_ms=2)
    assert withdrawals.withdrawn_since_ms == {gas: 1, token: 2}
    withdrawals.update([token], now_ms=3)
    withdrawals.update([gas], now_ms=4)
    assert withdrawals.withdrawn_since_ms == {gas: 4}


# ---- The reserve for claims of channels.


async def test_below_the_reserve_for_claims_nothing_new_is_offered_and_claims_go_on() -> None:
    """Deposits of channels are settlements, so they stop with them."""
    async with SettlementHarness() as harness:
        budget = harness.gas_budget
        fees = budget.latest_fees(CHAIN)
        assert fees is not None
        gas = 10**9
        reserve_wei = CLAIM_RESERVE_FACTOR * gas * fees.price_wei
        assert reserve_wei > harness.settlement_rules.gas_floor_wei
        harness.chain.fund_gas(CHAIN, KEY, reserve_wei - 1)
        await budget.refresh()
        assert harness.is_offered()
        budget.reserve_claims(CHAIN, gas=gas)
        assert ("claim_reserve", CHAIN, reserve_wei) in harness.metrics
        assert budget.claim_reserve_wei(CHAIN) == reserve_wei
        assert [key.floor_wei for key in budget.list_keys()] == [reserve_wei]
        assert not harness.is_offered()
        assert budget.choose_sequence(CHAIN) is None
        assert budget.choose_sequence(CHAIN, is_claimed=True) is not None
        await budget.refresh()
        assert WithdrawnRail(CHAIN, WithdrawalReason.GAS_KEYS_LOW) in budget.withdrawn_since_ms
        harness.chain.fund_gas(CHAIN, KEY, reserve_wei)
        await budget.refresh()
        assert harness.is_offered()


async def test_the_reserve_follows_the_gas_price_and_never_lowers_the_floor() -> None:
    async with SettlementHarness() as harness:
        budget = harness.gas_budget
        budget.reserve_claims(CHAIN, gas=1)
        assert harness.is_offered()
        budget.reserve_claims(CHAIN, gas=10**6)
        before_wei = budget.claim_reserve_wei(CHAIN)
        harness.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=0)
        await budget.refresh()
        assert budget.claim_reserve_wei(CHAIN) == CLAIM_RESERVE_FACTOR * 10**6 * 10**8 != before_wei
