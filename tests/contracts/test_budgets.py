"""The contract of `BudgetLedger`, and of `Ledger` for wallets that are bound to an owner: every rail counts, what comes back goes back, and no window is overspent."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.contracts.test_metered_calls import MAX, METERING, charge, metered_claim, usage_of
from tests.kit.budget_crowd import run_crowd
from tests.kit.budgets import OTHER_OWNER, OWNER, bind, policy_of, store
from tests.kit.ledger_channels import (
    buy,
    deposit_claim,
    end_call,
    open_call,
    open_channel,
    open_deposit,
    reread,
    voucher_claim,
)
from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
)
from tests.kit.ledger_steps import conclude, learn_terms, pay, settle
from tests.kit.narrowing import of_type
from tollway.ids import Address, ListingId
from tollway.ledger.budgets import Budget, NoBudget, NonceTooLow, TooManyPending
from tollway.ledger.channels import ChannelBusy
from tollway.ledger.ledger import BudgetExceeded, Claimed, NonceUsed
from tollway.ledger.records import CallState, KeyTaken
from tollway.money import UNITS_MAX, format_decimal
from tollway.spending_policy import LIMITS
from tollway.storage.engine.database import Database

pytestmark = pytest.mark.dialects

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
STRANGER = Address(b"\x55" * 20)
MICRO = 1_000
"""A unit of USDC in 10^-9."""


async def spent(ledger: Any, agent: Address = PAYER) -> tuple[int, int, int, int]:
    """Hour, day, month and total of the wallet, in units of USDC."""
    found = await ledger.find_binding(agent)
    sums = (found.hour.spent_nano, found.day.spent_nano, found.month.spent_nano, found.total_nano)
    hour, day, month, total = (nano // MICRO for nano in sums)
    return hour, day, month, total


# ---- The claim.


async def test_a_wallet_spends_up_to_its_limit_and_is_told_what_is_left(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxPerDay="0.00001"))
    await learn_terms(ledger)
    assert isinstance(await ledger.claim(claim_on(payment, 6)), Claimed)
    refused = await ledger.claim(claim_on(payment, 5))
    until_ms = NOW_MS - NOW_MS % DAY_MS + DAY_MS
    assert refused == BudgetExceeded(
        reason="limit", limit="maxPerDay", left_nano=4 * MICRO, currency="USDC", until_ms=until_ms
    )
    assert await spent(ledger) == (6, 6, 6, 6)
    assert isinstance(await ledger.claim(claim_on(payment, 4)), Claimed)
    assert isinstance(await ledger.claim(claim_on(payment, 1)), BudgetExceeded)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"maxPerCall": "0.000004"}, "maxPerCall"),
        ({"maxPerHour": "0.000004"}, "maxPerHour"),
        ({"maxPerDay": "0.000004"}, "maxPerDay"),
        ({"maxPerMonth": "0.000004"}, "maxPerMonth"),
        ({"maxTotal": "0.000004"}, "maxTotal"),
        ({"maxPerDay": "0.0000049999"}, "maxPerDay"),
        ({"maxPerCall": "0.000001", "maxTotal": "0.000002"}, "maxTotal"),
        *(({limit: "0"}, limit) for limit in LIMITS),
        ({"maxPerDay": "0.0000000009"}, "maxPerDay"),
    ],
)
async def test_each_limit_refuses_what_is_above_it(ledger: Any, limits: dict[str, str], reason: str) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(**limits))
    refused = of_type(BudgetExceeded, await ledger.claim(claim_on(payment, 5)))
    assert refused.limit == reason
    assert await spent(ledger) == (0, 0, 0, 0)
    assert (await ledger.find_payments(payment.tx_hash))[0].taken_units == 0


@pytest.mark.parametrize(
    ("members", "fields", "reason"),
    [
        ({}, {"currency": "EURC"}, "other_currency"),
        ({"allow": ("tag:quotes",)}, {}, "target_not_allowed"),
        ({"allow": ("tag:quotes",)}, {"tags": ("quotes",)}, None),
        ({"allow": ("api:api_1",)}, {}, None),
        ({"allow": ("api:api_1",)}, {"listing_id": ListingId("api_2")}, "target_not_allowed"),
        ({"deny": ("api:api_1",)}, {}, "target_not_allowed"),
        ({"allow": ("tag:quotes",), "deny": ("api:api_1",)}, {"tags": ("quotes",)}, "target_not_allowed"),
        ({"allow": (f"provider:{Address(bytes([0xCC] * 20))}",)}, {}, None),
        ({"not_before": NOW_MS // 1000 + 1}, {}, "no_policy_in_force"),
        ({"not_after": NOW_MS // 1000}, {}, "no_policy_in_force"),
        ({"not_after": NOW_MS // 1000 - 86_400}, {}, "no_policy_in_force"),
    ],
)
async def test_a_policy_decides_what_is_bought(
    ledger: Any, members: dict[str, Any], fields: dict[str, Any], reason: str | None
) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal="1", **members))
    outcome = await ledger.claim(claim_on(payment, 5, **fields))
    assert (outcome.reason if isinstance(outcome, BudgetExceeded) else None) == reason


async def test_free_calls_and_calls_of_other_wallets_are_no_spending(ledger: Any) -> None:
    other = await pay(ledger, 10, "other", payer=STRANGER)
    await bind(ledger, policy_of(maxTotal="0"))
    await learn_terms(ledger)
    for claim in (claim_on(None), claim_on(other, 5)):
        assert isinstance(await ledger.claim(claim), Claimed)
    assert await spent(ledger) == (0, 0, 0, 0)


async def test_a_released_call_goes_back_to_its_windows_and_an_unknown_one_does_not(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxPerDay="0.00001"))
    await ledger.claim(first := claim_on(payment, 6))
    await ledger.claim(second := claim_on(payment, 4))
    await ledger.close(close_of(first, CallState.RELEASED))
    assert await spent(ledger) == (4, 4, 4, 4)
    await ledger.close(close_of(second, CallState.UNKNOWN, http_status=None, upstream_status=None))
    assert await spent(ledger) == (4, 4, 4, 4)
    await ledger.resolve(second.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert await spent(ledger) == (0, 0, 0, 0)
    await ledger.claim(third := claim_on(payment, 10))
    await ledger.close(close_of(third))
    assert await spent(ledger) == (10, 10, 10, 10)


async def test_what_comes_back_later_leaves_the_total_and_no_new_window(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxPerHour="0.00001"))
    await ledger.claim(early := claim_on(payment, 6))
    await ledgers.set_clocks(NOW_MS + HOUR_MS, ledger)
    await ledger.claim(claim_on(payment, 10))
    assert await spent(ledger) == (10, 16, 16, 16)
    await ledger.close(close_of(early, CallState.RELEASED))
    assert await spent(ledger) == (10, 10, 10, 10)


@pytest.mark.parametrize(
    ("limit", "last", "spent_after"),
    [
        ("maxPerHour", (2027, 3, 14, 14, 59), (10, 16, 16, 16)),
        ("maxPerDay", (2027, 3, 14, 23, 59), (10, 10, 16, 16)),
        ("maxPerMonth", (2027, 2, 28, 23, 59), (10, 10, 10, 16)),
        ("maxPerMonth", (2028, 2, 29, 23, 59), (10, 10, 10, 16)),
        ("maxPerMonth", (2100, 2, 28, 23, 59), (10, 10, 10, 16)),
        ("maxPerMonth", (2027, 4, 30, 23, 59), (10, 10, 10, 16)),
        ("maxPerMonth", (2027, 12, 31, 23, 59), (10, 10, 10, 16)),
    ],
)
async def test_a_window_ends_with_its_last_millisecond(
    ledgers: Any, limit: str, last: tuple[int, ...], spent_after: tuple[int, ...]
) -> None:
    """A call of the last millisecond that is released after it leaves the total, and nothing of the next window."""
    ledger = await ledgers.gateway("one")
    payment = await pay(ledger, 100)
    last_ms = int(datetime(*last, second=59, tzinfo=UTC).timestamp()) * 1000 + 999  # type: ignore[arg-type]  # a moment
    await bind(ledger, policy_of(**{limit: "0.00001"}, not_after=last_ms // 1000 + 86_400))
    await ledgers.set_clocks(last_ms, ledger)
    early = claim_on(payment, 6)
    assert isinstance(await ledger.claim(early), Claimed)
    refused = of_type(BudgetExceeded, await ledger.claim(claim_on(payment, 5)))
    assert (refused.limit, refused.until_ms) == (limit, last_ms + 1)
    await ledgers.set_clocks(last_ms + 1, ledger)
    assert isinstance(await ledger.claim(claim_on(payment, 10)), Claimed)
    assert await spent(ledger) == spent_after
    await ledger.close(close_of(early, CallState.RELEASED))
    hour, day, month, total = (one - 6 if one == 16 else one for one in spent_after)
    assert await spent(ledger) == (hour, day, month, total) == (10, 10, 10, 10)
    assert isinstance(await ledger.claim(claim_on(payment, 1)), BudgetExceeded)


@pytest.mark.parametrize(
    ("decimals", "units", "nano"),
    [(0, 1, 10**9), (2, 1, 10**7), (6, 1, 1_000), (9, 1, 1), (18, 1, 1), (36, 1, 1)],
)
async def test_a_ledger_unit_costs_what_it_is_of_the_currency(
    ledger: Any, decimals: int, units: int, nano: int
) -> None:
    """The ledger keeps nine decimals of a token with more."""
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal=format_decimal(2 * nano, decimals=9)))
    for outcome in (Claimed, Claimed, BudgetExceeded):
        assert isinstance(await ledger.claim(claim_on(payment, units, decimals=decimals)), outcome)
    assert (await ledger.find_binding(PAYER)).total_nano == 2 * nano


async def test_no_sum_of_costs_leaves_64_bits(ledger: Any) -> None:
    """A limit is at most what a balance can hold; a cost may be above it, and so may the sum of two."""
    whole = UNITS_MAX // 10**9
    payment = await pay(ledger, UNITS_MAX)
    await bind(ledger, policy_of(maxPerCall=str(whole)))
    refused = await ledger.claim(claim_on(payment, UNITS_MAX, decimals=6))
    assert of_type(BudgetExceeded, refused).limit == "maxPerCall"
    assert isinstance(await ledger.claim(claim_on(payment, whole, decimals=0)), Claimed)
    refused = await ledger.claim(claim_on(payment, whole, decimals=0))
    assert of_type(BudgetExceeded, refused).limit == "maxTotal"
    assert (await ledger.find_binding(PAYER)).total_nano == whole * 10**9


async def test_a_metered_call_counts_its_maximum_and_then_its_price(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxPerDay="0.00003"))
    first = metered_claim(payment)
    assert isinstance(await ledger.claim(first), Claimed)
    assert isinstance(await ledger.claim(metered_claim(payment)), BudgetExceeded)
    assert (await spent(ledger))[3] == MAX
    await charge(ledger, first)
    ledger.finish(finish_of(first, usage=usage_of(2)))
    await ledger.claim(claim_on(None))
    actual_units = usage_of(2).actual_units
    assert await spent(ledger) == (actual_units,) * 4
    assert isinstance(await ledger.claim(metered_claim(payment)), Claimed)


async def test_an_authorization_counts_once_and_comes_back_when_it_is_not_settled(ledger: Any) -> None:
    await bind(ledger, policy_of(maxPerDay="0.00001"))
    await ledger.claim(paid := authorized_claim(authorization_of(6)))
    assert isinstance(await ledger.claim(authorized_claim(authorization_of(5))), BudgetExceeded)
    await settle(ledger, paid)
    await conclude(ledger, paid)
    assert await spent(ledger) == (6, 6, 6, 6)
    await ledger.claim(failed := authorized_claim(authorization_of(4), balance_units=10**9))
    await ledger.close(close_of(failed, CallState.RELEASED))
    assert await spent(ledger) == (6, 6, 6, 6)


async def test_the_calls_of_a_channel_count_and_its_deposit_does_not(ledger: Any) -> None:
    await bind(ledger, policy_of(maxPerDay="0.00003"))
    channel = await open_channel(ledger, balance=1_000)
    first = deposit_claim(channel, deposit_units=500, price_units=10)
    assert isinstance(await ledger.claim(first), Claimed)
    assert await spent(ledger) == (10, 10, 10, 10)
    await ledger.close(close_of(first, CallState.RELEASED))
    assert await spent(ledger) == (0, 0, 0, 0)
    await buy(ledger, channel, 20)
    assert isinstance(await ledger.claim(voucher_claim(await reread(ledger, channel), 11)), BudgetExceeded)
    assert (await reread(ledger, channel)).announced == 20
    await buy(ledger, channel, 10)
    assert await spent(ledger) == (30, 30, 30, 30)


@pytest.mark.parametrize(
    ("end", "after", "counted_units"),
    [
        pytest.param({}, CallState.CONSUMED, usage_of(2).actual_units, id="bought"),
        pytest.param({"is_orphaned": True}, CallState.RELEASED, 0, id="credit"),
        pytest.param({"transfer": None}, CallState.RELEASED, 0, id="void"),
    ],
)
async def test_a_price_that_is_known_before_the_deposit_settles_counts_from_its_end_on(
    ledger: Any, end: dict[str, Any], after: CallState, counted_units: int
) -> None:
    await bind(ledger, policy_of(maxPerDay="0.00003"))
    channel = await open_channel(ledger, balance=1_000)
    claim = await open_deposit(ledger, channel, price_units=MAX, price="0.00002", metering=METERING)
    await settle(ledger, claim, None, is_metered=True, usage=usage_of(2))
    assert await spent(ledger) == (MAX,) * 4
    if "is_orphaned" in end:
        assert await ledger.mark_orphaned(claim.call_id, epoch=1) is True
    assert await conclude(ledger, claim, **end) is after
    assert await spent(ledger) == (counted_units,) * 4


async def test_a_call_of_unknown_outcome_says_first_that_it_has_the_channel(ledger: Any) -> None:
    """So that the next voucher releases it, which gives back what it counts."""
    await bind(ledger, policy_of(maxPerDay="0.00001"))
    channel = await open_channel(ledger)
    lost = await open_call(ledger, channel)
    await end_call(ledger, lost, CallState.UNKNOWN)
    again = voucher_claim(await reread(ledger, channel), 10)
    assert await ledger.claim(again) == ChannelBusy(call_id=lost.call_id, state=CallState.UNKNOWN)
    await ledger.resolve(lost.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert isinstance(await ledger.claim(again), Claimed)
    assert await spent(ledger) == (10,) * 4


async def test_a_repeat_counts_once_and_gets_its_call_beyond_the_limit(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxPerDay="0.000005"))
    claim = claim_on(payment, 5, idempotency_key="key", nonce=b"\x01" * 32, ends_plain=True)
    assert isinstance(await ledger.claim(claim), Claimed)
    assert isinstance(await ledger.claim(claim_on(payment, 5, idempotency_key="key")), KeyTaken)
    used = claim_on(payment, 5, nonce=b"\x01" * 32, ends_plain=True)
    assert isinstance(await ledger.claim(used), NonceUsed)
    assert await spent(ledger) == (5, 5, 5, 5)


async def test_calls_of_one_batch_see_what_the_calls_before_them_spent(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await learn_terms(ledger)
    await bind(ledger, policy_of(maxPerDay="0.000005"))
    outcomes = await asyncio.gather(*(ledger.claim(claim_on(payment, 2)) for _ in range(6)))
    assert sum(isinstance(one, Claimed) for one in outcomes) == 2
    assert await spent(ledger) == (4, 4, 4, 4)


# ---- Policies.


async def test_revoking_holds_from_the_next_claim_on_and_leaves_the_wallet_bound(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal="1"))
    assert isinstance(await ledger.claim(claim_on(payment, 1)), Claimed)
    revoked = await ledger.revoke_policy(OWNER, PAYER, nonce=2, is_unbinding=False, now_ms=NOW_MS)
    assert isinstance(revoked, Budget)
    refused = await ledger.claim(claim_on(payment, 1))
    assert refused == BudgetExceeded(reason="no_policy_in_force")
    assert isinstance(await store(ledger, policy_of(maxTotal="1", nonce=3)), Budget)
    assert isinstance(await ledger.claim(claim_on(payment, 1)), Claimed)
    assert await spent(ledger) == (2, 2, 2, 2)
    await ledger.revoke_policy(OWNER, PAYER, nonce=4, is_unbinding=True, now_ms=NOW_MS)
    assert await ledger.find_binding(PAYER) is None
    assert isinstance(await ledger.claim(claim_on(payment, 5)), Claimed)


async def test_a_new_policy_goes_on_with_what_was_spent(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxPerDay="0.00001"))
    await ledger.claim(claim_on(payment, 8))
    await store(ledger, policy_of(maxPerDay="0.000005", nonce=2))
    assert isinstance(await ledger.claim(claim_on(payment, 1)), BudgetExceeded)
    await store(ledger, policy_of(maxPerDay="0.00002", nonce=3))
    assert isinstance(await ledger.claim(claim_on(payment, 12)), Claimed)


async def test_what_comes_back_after_a_new_binding_changes_nothing(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal="1"))
    await ledger.claim(old := claim_on(payment, 8))
    await ledger.revoke_policy(OWNER, PAYER, nonce=2, is_unbinding=True, now_ms=NOW_MS)
    await bind(ledger, policy_of(maxTotal="1", nonce=3), NOW_MS + 1, nonce=2)
    await ledger.close(close_of(old, CallState.RELEASED))
    assert await spent(ledger) == (0, 0, 0, 0)


async def test_a_policy_in_another_currency_begins_to_count_at_zero(ledger: Any) -> None:
    """And what comes back of the calls in the first currency does not lower what the second one counts."""
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal="0.00001"))
    await ledger.claim(first := claim_on(payment, 8))
    await store(ledger, policy_of(maxTotal="0.000003", currency="EURC", nonce=2))
    assert await spent(ledger) == (0, 0, 0, 0)
    refused = await ledger.claim(claim_on(payment, 1))
    assert refused == BudgetExceeded(reason="other_currency", currency="EURC")
    assert isinstance(await ledger.claim(claim_on(payment, 2, currency="EURC")), Claimed)
    await ledger.close(close_of(first, CallState.RELEASED))
    assert await spent(ledger) == (2, 2, 2, 2)
    assert isinstance(await ledger.claim(claim_on(payment, 2, currency="EURC")), BudgetExceeded)
    # Also where the policy was revoked in between, and when the first currency returns.
    await ledger.revoke_policy(OWNER, PAYER, nonce=3, is_unbinding=False, now_ms=NOW_MS)
    await store(ledger, policy_of(maxTotal="1", currency="EURC", nonce=4))
    assert await spent(ledger) == (2, 2, 2, 2)
    await ledger.revoke_policy(OWNER, PAYER, nonce=5, is_unbinding=False, now_ms=NOW_MS)
    await store(ledger, policy_of(maxTotal="1", nonce=6))
    assert await spent(ledger) == (0, 0, 0, 0)


async def test_counters_that_begin_again_by_a_slow_clock_give_nothing_back(ledger: Any) -> None:
    """The acceptance has the time of its gateway; the claim before it had that of the database."""
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal="1"))
    await ledger.claim(old := claim_on(payment, 8))
    await ledger.revoke_policy(OWNER, PAYER, nonce=2, is_unbinding=True, now_ms=NOW_MS)
    await bind(ledger, policy_of(maxTotal="1", owner=OTHER_OWNER), NOW_MS - HOUR_MS)
    await ledger.claim(claim_on(payment, 3))
    await ledger.close(close_of(old, CallState.RELEASED))
    assert await spent(ledger) == (3, 3, 3, 3)


@pytest.mark.parametrize("owner", [OWNER, OTHER_OWNER], ids=["same owner", "another owner"])
@pytest.mark.parametrize("late_ms", [0, 5, -HOUR_MS], ids=["at once", "behind", "an hour later"])
async def test_a_binding_begins_after_everything_that_counted_before(
    ledger: Any, owner: Address, late_ms: int
) -> None:
    """Also within one millisecond, for another owner, and once more: what comes back leaves no counter of the new binding."""
    payment = await pay(ledger, 100)
    await bind(ledger, policy_of(maxTotal="1"))
    await ledger.claim(old := claim_on(payment, 8))
    now_ms = NOW_MS - late_ms
    for nonce in (2, 4):
        bound_to = (await ledger.find_binding(PAYER)).owner
        unbinding = {"nonce": nonce, "is_unbinding": True, "now_ms": now_ms}
        assert isinstance(await ledger.revoke_policy(bound_to, PAYER, **unbinding), Budget)
        await bind(ledger, policy_of(owner=owner, maxTotal="1", nonce=nonce + 1), now_ms, nonce=nonce)
    assert isinstance(await ledger.claim(claim_on(payment, 3)), Claimed)
    await ledger.close(close_of(old, CallState.RELEASED))
    assert await spent(ledger) == (3, 3, 3, 3)


async def test_nonces_rise_and_the_same_policy_again_changes_nothing(ledger: Any) -> None:
    policy = policy_of(maxTotal="1", nonce=5)
    stored = await store(ledger, policy)
    assert await store(ledger, policy, NOW_MS + 5) == stored
    for nonce in (4, 5):
        assert await store(ledger, policy_of(maxTotal="2", nonce=nonce)) == NonceTooLow(nonce=5)
        revoked = await ledger.revoke_policy(OWNER, PAYER, nonce=nonce, is_unbinding=False, now_ms=NOW_MS)
        assert revoked == NonceTooLow(nonce=5)
    await ledger.accept_owner(PAYER, OWNER, nonce=7, now_ms=NOW_MS)
    await ledger.revoke_policy(OWNER, PAYER, nonce=6, is_unbinding=True, now_ms=NOW_MS)
    assert await store(ledger, policy) == NonceTooLow(nonce=6)
    await store(ledger, policy_of(maxTotal="1", nonce=8))
    assert await ledger.accept_owner(PAYER, OWNER, nonce=7, now_ms=NOW_MS) == NonceTooLow(nonce=7)
    assert isinstance(await ledger.accept_owner(PAYER, OWNER, nonce=8, now_ms=NOW_MS), Budget)


async def test_a_wallet_has_one_owner_and_the_first_acceptance_counts(ledger: Any) -> None:
    await store(ledger, policy_of(maxTotal="1"))
    await store(ledger, policy_of(maxTotal="9", owner=OTHER_OWNER))
    assert await ledger.find_binding(PAYER) is None
    listed = await ledger.list_budgets(PAYER, limit=10)
    assert {one.state_at(NOW_MS) for one in listed} == {"pending"}
    outcomes = await asyncio.gather(
        *(ledger.accept_owner(PAYER, owner, nonce=1, now_ms=NOW_MS) for owner in (OTHER_OWNER, OWNER))
    )
    assert sorted(type(one).__name__ for one in outcomes) == ["BoundToAnother", "Budget"]
    bound = await ledger.find_binding(PAYER)
    assert (await ledger.list_budgets(PAYER, limit=10))[0] == bound
    assert await ledger.accept_owner(STRANGER, OWNER, nonce=1, now_ms=NOW_MS) == NoBudget()
    unbinding = {"nonce": 2, "is_unbinding": True, "now_ms": NOW_MS}
    assert await ledger.revoke_policy(STRANGER, PAYER, **unbinding) == NoBudget()


async def test_pending_policies_are_bounded_and_dropped_in_time(ledger: Any) -> None:
    agents = [Address(bytes([number] * 20)) for number in range(1, 4)]
    for agent in agents[:2]:
        await store(ledger, policy_of(agent=agent, maxTotal="1"), pending_max=2)
    assert await store(ledger, policy_of(agent=agents[2], maxTotal="1"), pending_max=2) == TooManyPending()
    again = await store(ledger, policy_of(agent=agents[0], maxTotal="2", nonce=2), pending_max=2)
    assert isinstance(again, Budget)
    await ledger.accept_owner(agents[0], OWNER, nonce=1, now_ms=NOW_MS)
    await store(ledger, policy_of(agent=agents[2], maxTotal="1"), NOW_MS + 5, pending_max=2)
    assert await ledger.prune_pending(before_ms=NOW_MS + 5) == 1
    assert {one.agent for one in await ledger.list_owned(OWNER, limit=10)} == {agents[0], agents[2]}


async def test_two_gateways_that_store_the_last_pending_policies_store_no_more(
    ledgers: Any, ledger: Any
) -> None:
    both = (ledger, await ledgers.gateway("two"))
    agents = [Address(bytes([number]) * 20) for number in range(1, 9)]
    policies = [policy_of(agent=agent, maxTotal="1") for agent in agents]
    stored = await asyncio.gather(
        *(store(both[n % 2], policy, pending_max=2) for n, policy in enumerate(policies))
    )
    assert sum(isinstance(one, Budget) for one in stored) == 2
    assert stored.count(TooManyPending()) == 6


async def test_a_revocation_outlives_the_policies_that_are_dropped(ledger: Any) -> None:
    """Also one of a policy that no agent accepted: else the revoked policy could be stored again."""
    policy = policy_of(maxTotal="1")
    await store(ledger, policy)
    await ledger.revoke_policy(OWNER, PAYER, nonce=2, is_unbinding=False, now_ms=NOW_MS)
    assert await ledger.prune_pending(before_ms=NOW_MS + 1) == 0
    assert await store(ledger, policy) == NonceTooLow(nonce=2)


# ---- Two gateways.


async def test_parallel_claims_never_overspend_a_day(database: Database) -> None:
    """Claims at two gateways with releases, unknown outcomes, metered ends, and twenty policies in the middle. The budget has counted what the calls hold."""
    crowd = await run_crowd(database, calls=300, seed=7)
    assert crowd.overspent == []
    assert crowd.granted
    assert crowd.refused
    assert crowd.counted_units == crowd.total_units
