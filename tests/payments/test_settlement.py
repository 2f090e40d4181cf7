"""Settlement on the memory chain: a row for each outcome, and the failures at each step."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.chain_blocks import parse_sent
from tests.kit.ledger_records import close_of
from tests.kit.narrowing import of_type
from tests.kit.payer import CHAIN, TIMEOUT_S, USDC, requirement_of
from tests.kit.settlement import (
    HASTY,
    LISTING,
    SettlementHarness,
    make_gas_key,
    settlement_rules,
)
from tests.kit.waits import until
from tollway.chain.networks import UNIT_NANO
from tollway.chain.port import SendFault, SendRefused
from tollway.errors import ChainUnavailable, Code, Problem, StorageUnavailable
from tollway.ids import Address, ChainId, keccak256
from tollway.ledger.ledger import Fenced, NonceUnavailable
from tollway.ledger.records import CallState, Cover
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.settlement import NotSettled, Settled, Undecided
from tollway.payments.wire import AuthorizationReason

ELSEWHERE = Address(b"\xee" * 20)


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness() as harness:
        yield harness


@pytest.fixture
async def hasty() -> AsyncIterator[SettlementHarness]:
    """Limits for transactions that are not mined in time."""
    async with SettlementHarness(limits=HASTY) as harness:
        yield harness


# ---- Outcomes.


async def test_the_transfer_is_made_once_and_the_call_is_consumed(harness: SettlementHarness) -> None:
    call = await harness.claim()
    outcome = of_type(Settled, await call.settle())
    assert await call.read_state() is CallState.CONSUMED
    (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
    assert outcome.transfer.tx_hash == attempt.tx_hash
    assert len(harness.chain.broadcasts) == 1
    assert harness.chain.balance(CHAIN, call.authorization.token, call.authorization.payee) == 10_000
    (payment,) = await harness.ledger.find_payments(attempt.tx_hash)
    assert (payment.value_units, payment.taken_units) == (10_000, 10_000)
    assert (await harness.ledger.audit()).is_balanced


async def test_the_transaction_is_stored_before_it_is_broadcast(harness: SettlementHarness) -> None:
    call = await harness.claim()
    stored: list[int] = []
    send = harness.chain.send_transaction

    async def watch(chain_id: Any, raw: bytes) -> SendRefused | None:
        stored.append(len(await harness.ledger.attempts_of(call.claim.call_id)))
        assert await call.read_state() is CallState.SETTLING
        return await send(chain_id, raw)

    harness.chain.send_transaction = watch  # type: ignore[method-assign]  # the fake's own hook
    assert isinstance(await call.settle(), Settled)
    assert stored == [1]


@pytest.mark.parametrize("trouble", ["refused", "no money", "expired"])
async def test_a_refused_simulation_fails_the_settlement(harness: SettlementHarness, trouble: str) -> None:
    payer = harness.payer(balance=0 if trouble == "no money" else 10**9)
    call = await harness.claim(payer)
    if trouble == "refused":
        harness.chain.refuse_transfer(CHAIN, payer.address, payer.nonce)
    if trouble == "expired":
        harness.chain.mine(CHAIN, time=payer.valid_before)
    outcome = await call.settle()
    reasons = {
        "refused": AuthorizationReason.SIMULATION_FAILED,
        "no money": AuthorizationReason.INSUFFICIENT_BALANCE,
        "expired": AuthorizationReason.EXPIRED,
    }
    assert outcome == NotSettled(reason=reasons[trouble].value)
    assert await call.read_state() is CallState.RELEASED
    assert harness.chain.broadcasts == []
    assert await harness.gas.next_nonce(CHAIN, make_gas_key().address) == 0


async def test_a_front_run_by_the_same_transfer_pays_the_call(harness: SettlementHarness) -> None:
    call = await harness.claim()
    call.land()
    assert isinstance(await call.settle(), Settled)
    assert await call.read_state() is CallState.CONSUMED
    assert harness.chain.broadcasts == []
    assert await harness.ledger.attempts_of(call.claim.call_id) == ()


async def test_a_nonce_that_paid_another_payee_fails_the_settlement(harness: SettlementHarness) -> None:
    call = await harness.claim()
    call.land(payee=ELSEWHERE)
    assert await call.settle() == NotSettled(reason=AuthorizationReason.ALREADY_USED.value)
    assert await call.read_state() is CallState.RELEASED


async def test_a_cancelled_authorisation_fails_the_settlement(harness: SettlementHarness) -> None:
    call = await harness.claim()
    one = call.authorization
    harness.chain.cancel_authorization(CHAIN, one.token, payer=one.payer, nonce=one.nonce)
    assert isinstance(await call.settle(), NotSettled)


async def test_a_use_that_is_not_deep_enough_decides_nothing() -> None:
    async with SettlementHarness(limits=HASTY, confirmations=((0, 2),)) as harness:
        call = await harness.claim()
        call.land()
        assert await call.settle() == Undecided()
        assert await call.read_state() is CallState.SETTLING


async def test_a_front_run_between_simulation_and_block_pays_the_call(harness: SettlementHarness) -> None:
    """The gateway's transaction reverts, but another one has made the transfer."""
    harness.chain.is_automining = False
    call = await harness.claim()
    async with asyncio.TaskGroup() as group:
        settling = group.create_task(call.settle())
        await until(lambda: harness.chain.broadcasts)
        call.land()
        harness.chain.mine_sent(CHAIN)
    outcome = of_type(Settled, settling.result())
    (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
    assert outcome.transfer.tx_hash != attempt.tx_hash


async def test_a_broadcast_transaction_that_reverts_is_undecided(hasty: SettlementHarness) -> None:
    harness = hasty
    payer = harness.payer()
    call = await harness.claim(payer)
    harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
    assert await call.settle() == Undecided()
    assert await call.read_state() is CallState.SETTLING


async def test_a_transaction_not_mined_by_the_deadline_is_undecided(hasty: SettlementHarness) -> None:
    harness = hasty
    harness.chain.is_automining = False
    call = await harness.claim()
    assert await call.settle() == Undecided()
    assert await call.read_state() is CallState.SETTLING
    (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
    assert harness.chain.broadcasts == [attempt.raw, attempt.raw]  # a node may have dropped the first


@pytest.mark.parametrize("fault", list(SendFault))
async def test_a_node_that_refuses_decides_nothing(hasty: SettlementHarness, fault: SendFault) -> None:
    harness = hasty
    call = await harness.claim()
    harness.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=fault))
    assert await call.settle() == Undecided()
    assert await call.read_state() is CallState.SETTLING
    is_keys_fault = fault in (SendFault.INSUFFICIENT_FUNDS, SendFault.NONCE_TOO_LOW)
    assert harness.settlement.is_offered(USDC, 10_000, LISTING) is not is_keys_fault


async def test_a_transaction_whose_send_response_is_lost_is_followed(harness: SettlementHarness) -> None:
    harness.chain.loses_send_responses = True
    assert isinstance(await (await harness.claim()).settle(), Settled)


async def test_an_unavailable_chain_before_signing_leaves_a_call_without_a_transaction(
    harness: SettlementHarness,
) -> None:
    call = await harness.claim()
    harness.chain.disconnect(CHAIN)
    assert await call.settle() == Undecided()
    assert await call.read_state() is CallState.SETTLING
    assert await harness.ledger.attempts_of(call.claim.call_id) == ()


@pytest.mark.parametrize(
    "method", ["fetch_authorization", "send_transaction", "fetch_receipts", "find_authorization_use"]
)
async def test_an_unavailable_chain_at_any_step_never_fails_the_settlement(
    hasty: SettlementHarness, method: str
) -> None:
    harness = hasty
    payer = harness.payer()
    call = await harness.claim(payer)
    harness.chain.is_automining = method == "find_authorization_use"
    if harness.chain.is_automining:
        harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
    ask = getattr(harness.chain, method)

    async def leave(*arguments: Any, **options: Any) -> Any:
        harness.chain.disconnect(CHAIN)
        return await ask(*arguments, **options)

    setattr(harness.chain, method, leave)
    assert await call.settle() == Undecided()
    assert await call.read_state() is CallState.SETTLING


async def test_waits_for_the_depth_that_the_value_requires() -> None:
    async with SettlementHarness(confirmations=((0, 1), (10**6, 3))) as harness:
        call = await harness.claim()
        async with asyncio.TaskGroup() as group:
            settling = group.create_task(call.settle())
            await until(lambda: harness.chain.broadcasts)
            harness.chain.bury(CHAIN, 1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not settling.done()
            harness.chain.bury(CHAIN, 1)
        assert isinstance(settling.result(), Settled)


async def test_a_depth_not_reached_by_the_deadline_is_undecided() -> None:
    async with SettlementHarness(limits=HASTY, confirmations=((0, 1), (10**6, 3))) as harness:
        assert await (await harness.claim()).settle() == Undecided()


async def test_a_call_moved_by_another_gateway_is_fenced(harness: SettlementHarness) -> None:
    call = await harness.claim()
    order = call.order()
    fenced = replace(order, close=replace(order.close, epoch=7))
    assert await harness.settlement.settle(fenced) == Fenced()
    assert harness.chain.broadcasts == []
    assert harness.gas_budget.sequences(CHAIN)[0].issue_nonce().nonce == 0  # it took none
    assert isinstance(await (await harness.claim(harness.payer(nonce=b"\x08" * 32))).settle(), Settled)


async def test_an_unavailable_ledger_sends_nothing_and_the_call_becomes_orphaned(
    harness: SettlementHarness,
) -> None:
    call = await harness.claim()
    harness.ledger.away = True
    with pytest.raises(StorageUnavailable):
        await call.settle()
    assert harness.chain.broadcasts == []
    with pytest.raises(StorageUnavailable):
        await harness.services.orphans.mark_due()
    harness.ledger.away = False
    await harness.services.orphans.mark_due()
    assert await call.read_state() is CallState.UNKNOWN


@pytest.mark.parametrize(("gas_max", "gas"), [(400_000, 90_000), (70_000, 70_000)])
async def test_gas_is_limited_in_simulation_and_in_what_is_signed(gas_max: int, gas: int) -> None:
    async with SettlementHarness(limits=replace(DEFAULT_LIMITS, settlement_gas_max=gas_max)) as harness:
        call = await harness.claim()
        asked: list[int] = []
        ask = harness.chain.fetch_authorization

        async def watch(chain_id: Any, **options: Any) -> Any:
            asked.append(options["gas"])
            return await ask(chain_id, **options)

        harness.chain.fetch_authorization = watch  # type: ignore[method-assign]  # the fake's own hook
        assert isinstance(await call.settle(), Settled)
        assert asked == [gas_max]
        assert parse_sent(harness.chain.broadcasts[0]).gas == gas


# ---- Lanes.


async def test_fifty_settlements_on_one_key_get_fifty_nonces_in_order(harness: SettlementHarness) -> None:
    calls = await harness.claim_many(50)
    outcomes = await asyncio.gather(*(call.settle() for call in calls))
    assert all(isinstance(outcome, Settled) for outcome in outcomes)
    attempts = [one for call in calls for one in await harness.ledger.attempts_of(call.claim.call_id)]
    assert sorted(attempt.nonce for attempt in attempts) == list(range(50))
    assert (await harness.ledger.audit()).is_balanced


async def test_a_nonce_taken_by_another_gateway_is_replaced_by_the_next(harness: SettlementHarness) -> None:
    other = harness.another()
    async with other:
        first, second = await harness.claim_many(2)
        third = await other.claim(other.payer(nonce=keccak256(b"third")))
        assert isinstance(await first.settle(), Settled)
        assert isinstance(await third.settle(), Settled)  # it believes that the sequence starts at 0
        assert isinstance(await second.settle(), Settled)
    assert len(harness.chain.broadcasts) == 3


async def test_two_gateways_on_one_key_leave_no_missing_nonce(harness: SettlementHarness) -> None:
    async with harness.another() as other:
        mine = await harness.claim_many(10)
        theirs = [await other.claim(other.payer(nonce=keccak256(b"their %d" % n))) for n in range(10)]
        calls = [call for pair in zip(mine, theirs, strict=True) for call in pair]
        outcomes = await asyncio.gather(*(call.settle() for call in calls))
    assert all(isinstance(outcome, Settled) for outcome in outcomes)
    assert await harness.gas.next_nonce(CHAIN, make_gas_key().address) == 20


async def test_a_call_that_gets_no_nonce_stays_in_settling(harness: SettlementHarness) -> None:
    call = await harness.claim()
    settle_in_ledger = harness.ledger.settle

    async def refuse(close: Any, *, attempt: Any, digest: Any) -> Any:
        if attempt is not None:
            return NonceUnavailable(next_nonce=attempt.nonce + 1)
        return await settle_in_ledger(close, attempt=None, digest=digest)

    harness.ledger.settle = refuse  # type: ignore[method-assign]  # the fake's own hook
    assert await call.settle() == Undecided()
    assert harness.chain.broadcasts == []
    assert await call.read_state() is CallState.SETTLING


async def test_the_least_busy_key_above_its_floor_signs() -> None:
    keys = (make_gas_key("poor"), make_gas_key("busy"), make_gas_key("free"))
    async with SettlementHarness(rules=settlement_rules(gas_keys=keys)) as harness:
        harness.chain.fund_gas(CHAIN, keys[0].address, 1)
        await harness.gas_budget.refresh()
        harness.gas_budget.sequences(CHAIN)[1].in_flight = 5
        call = await harness.claim()
        await call.settle()
        (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
        assert attempt.sender == keys[2].address


async def test_recovery_finishes_a_settlement_cancelled_at_any_step(harness: SettlementHarness) -> None:
    harness.chain.is_automining = False
    call = await harness.claim()
    async with asyncio.TaskGroup() as group:
        settling = group.create_task(call.settle())
        await until(lambda: harness.chain.broadcasts)
        settling.cancel()
    harness.chain.mine_sent(CHAIN)
    await harness.services.orphans.mark_due()
    await harness.settlement_recovery.run_once()
    assert await call.read_state() is CallState.CONSUMED
    assert len(harness.chain.broadcasts) == 1


# ---- The check before the call.


@pytest.mark.parametrize("end", ["settled", "failed", "undecided", "undecided before it was sent"])
async def test_each_outcome_is_one_line_in_the_log_without_secrets(
    hasty: SettlementHarness, end: str
) -> None:
    call = await hasty.claim(hasty.payer(balance=0 if end == "failed" else 10**9))
    hasty.chain.is_automining = end == "settled"
    if end == "undecided before it was sent":
        hasty.chain.disconnect(CHAIN)
    with capture_logs() as lines:
        outcome = await call.settle()
    (line,) = [line for line in lines if line["event"] == "settlement_ended"]
    attempts = await hasty.ledger.attempts_of(call.claim.call_id)
    assert line == {
        "event": "settlement_ended",
        "log_level": "info",
        "outcome": end.split()[0],
        "call_id": call.claim.call_id,
        "network": USDC.network,
        "transaction": str(attempts[0].tx_hash) if attempts else None,
        "reason": outcome.reason if isinstance(outcome, NotSettled) else None,
    }
    assert call.authorization.signature.hex() not in str(lines)


async def test_a_call_moved_by_another_gateway_is_not_counted(harness: SettlementHarness) -> None:
    call = await harness.claim()
    await harness.ledger.close(close_of(call.claim, CallState.RELEASED))
    with capture_logs() as lines:
        assert isinstance(await call.settle(), Fenced)
    assert [line for line in lines if line["event"] == "settlement_ended"] == []


async def test_a_valid_authorisation_is_covered_after_one_round_trip(harness: SettlementHarness) -> None:
    before = harness.chain.request_count
    assert await harness.check(harness.payer(balance=25_000).authorize()) == Cover(
        balance_units=25_000, block_number=harness.chain.head(CHAIN).number
    )
    assert harness.chain.request_count == before + 1


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"base_units": 9_999}, Code.PAYMENT_VERIFICATION_FAILED),
        ({"payee": ELSEWHERE}, Code.PAYMENT_VERIFICATION_FAILED),
        ({"valid_before": 1_800_000_000}, Code.PAYMENT_EXPIRED),
        ({"valid_after": 1_800_000_100}, Code.PAYMENT_VERIFICATION_FAILED),
        ({"balance": 9_999}, Code.PAYMENT_VERIFICATION_FAILED),
    ],
)
async def test_an_authorisation_that_would_not_pay_is_refused(
    harness: SettlementHarness, change: Any, code: Code
) -> None:
    refused = of_type(Problem, await harness.check(harness.payer(**change).authorize()))
    assert refused.code is code


async def test_paying_callers_are_never_limited(harness: SettlementHarness) -> None:
    authorization = harness.payer().authorize()
    for _ in range(harness.limits.lookups_per_minute + 5):
        with harness.settlement.open_lookup("192.0.2.1") as lookup:
            checked = await harness.settlement.check(
                authorization, requirement_of(), timeout_s=TIMEOUT_S, lookup=lookup, listing_id=LISTING
            )
            lookup.give_back()
        assert isinstance(checked, Cover)


async def test_look_ups_of_one_authorisation_without_charged_calls_are_limited(
    harness: SettlementHarness,
) -> None:
    payer = harness.payer()
    before = harness.chain.request_count
    told = [await harness.check(payer.authorize()) for _ in range(harness.limits.lookups_per_minute + 5)]
    assert [one.code for one in told if isinstance(one, Problem)] == [Code.RATE_LIMITED] * 5
    assert harness.chain.request_count == before + harness.limits.lookups_per_minute


async def test_look_ups_of_worthless_authorisations_are_limited(harness: SettlementHarness) -> None:
    junk = harness.payer(balance=0)
    for _ in range(harness.limits.lookups_per_minute):
        await harness.check(junk.authorize())
    before = harness.chain.request_count
    refused = of_type(Problem, await harness.check(junk.authorize()))
    assert refused.code is Code.RATE_LIMITED
    assert harness.chain.request_count == before


async def test_worthless_authorisations_in_a_wallets_name_do_not_use_its_quota(
    harness: SettlementHarness,
) -> None:
    owner = harness.payer()
    forged = replace(owner.authorize(), signature=b"\x01" * 64 + b"\x1b")
    for number in range(harness.limits.lookups_per_minute + 1):
        await harness.check(forged, f"198.51.100.{number}")
    assert isinstance(await harness.check(owner.authorize()), Cover)


async def test_an_unavailable_chain_is_not_a_refusal(harness: SettlementHarness) -> None:
    payer = harness.payer()
    harness.chain.disconnect(CHAIN)
    with pytest.raises(ChainUnavailable):
        await harness.check(payer.authorize())


async def test_the_settlement_deadline_is_a_limit() -> None:
    """A caller waits for `settle_wait_s` and for the required blocks above."""
    async with SettlementHarness(limits=replace(HASTY, settle_wait_s=0.001)) as harness:
        harness.chain.is_automining = False
        assert await (await harness.claim()).settle() == Undecided()


async def test_a_depth_beyond_the_deadline_is_not_offered() -> None:
    """A hundred dollars need twelve blocks of twelve seconds; small sums need two."""
    rules, steps = settlement_rules(block_time_s=12.0), ((0, 2), (100 * UNIT_NANO, 12))
    async with SettlementHarness(rules=rules, confirmations=steps) as harness:
        assert harness.settlement.is_offered(USDC, 100 * 10**6 - 1, LISTING)
        assert not harness.settlement.is_offered(USDC, 100 * 10**6, LISTING)
        assert not harness.settlement.is_offered(replace(USDC, chain_id=ChainId(1)), 10**6, LISTING)
    patient = replace(DEFAULT_LIMITS, settle_wait_s_max=152.0)
    async with SettlementHarness(rules=rules, confirmations=steps, limits=patient) as harness:
        assert harness.settlement.is_offered(USDC, 100 * 10**6, LISTING)


async def test_waits_as_long_as_the_required_depth_takes() -> None:
    slow = settlement_rules(block_time_s=20.0)  # beyond the deadline of the first block, and of this test
    async with (
        SettlementHarness(rules=slow, limits=HASTY, confirmations=((0, 3),)) as harness,
    ):
        call = await harness.claim()
        settling = asyncio.get_running_loop().create_task(call.settle())
        await until(lambda: harness.chain.requests["fetch_receipts", CHAIN] >= 30)
        assert not settling.done()
        harness.chain.bury(CHAIN, 3)
        assert isinstance(await settling, Settled)


# ---- One node's word, and that of several. A call costs 0.01.


@pytest.mark.parametrize(("above_nano", "is_settled"), [(10**7, True), (10**7 - 1, False)])
async def test_one_node_is_enough_to_settle_small_values_only(
    harness: SettlementHarness, above_nano: int, is_settled: bool
) -> None:
    harness.rules[CHAIN] = replace(harness.rules[CHAIN], agreement_above=(("USDC", above_nano),))
    call = await harness.claim()
    harness.chain.leave_one_node(CHAIN)
    outcome = await call.settle()
    assert isinstance(outcome, Settled if is_settled else Undecided)
    assert len(harness.chain.broadcasts) == is_settled
    assert (await harness.ledger.audit()).is_balanced


async def test_the_receipt_of_a_large_value_needs_agreement(hasty: SettlementHarness) -> None:
    hasty.rules[CHAIN] = replace(hasty.rules[CHAIN], agreement_above=(("USDC", 1),))
    call = await hasty.claim()
    send = hasty.chain.send_transaction

    async def send_and_lose_a_node(chain_id: Any, raw: bytes) -> SendRefused | None:
        hasty.chain.leave_one_node(CHAIN)
        return await send(chain_id, raw)

    hasty.chain.send_transaction = send_and_lose_a_node  # type: ignore[method-assign]  # the fake's own hook
    assert isinstance(await call.settle(), Undecided)
    assert len(set(hasty.chain.broadcasts)) == 1
    assert await call.read_state() is CallState.SETTLING


async def test_the_check_of_a_large_value_needs_agreement(harness: SettlementHarness) -> None:
    harness.chain.leave_one_node(CHAIN)
    harness.rules[CHAIN] = replace(harness.rules[CHAIN], agreement_above=(("USDC", 10**7),))
    assert isinstance(await harness.check(harness.payer().authorize()), Cover)
    harness.rules[CHAIN] = replace(harness.rules[CHAIN], agreement_above=(("USDC", 10**7 - 1),))
    with pytest.raises(ChainUnavailable):
        await harness.check(harness.payer("another").authorize())
