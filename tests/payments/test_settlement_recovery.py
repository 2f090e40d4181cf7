"""Settlement recovery on the memory chain: the calls that it ends, the calls that wait, and concurrent recoveries."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.kit.chain import MemoryChain
from tests.kit.chain_blocks import authorizing_token
from tests.kit.ledger_records import close_of
from tests.kit.payer import CHAIN, USDC
from tests.kit.settlement import (
    HASTY,
    LISTING,
    TOKEN,
    ClaimedCall,
    SettlementHarness,
    make_gas_key,
    settlement_rules,
)
from tollway.chain.port import AuthorizationFacts, ChainFacts, NotMined, SendFault, SendRefused
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import CallState
from tollway.payments import orphans
from tollway.payments.settlement import Settled, Undecided
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S, POSTPONE_MIN_MS

ELSEWHERE = Address(b"\xee" * 20)


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        yield harness


async def test_a_mined_transaction_is_concluded(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED
    assert (await harness.ledger.audit()).is_balanced


async def test_a_transaction_that_is_not_deep_enough_waits() -> None:
    async with SettlementHarness(limits=HASTY, confirmations=((0, 2),)) as harness:
        harness.chain.is_automining = False
        call = await harness.leave_orphaned()
        await harness.mine_and_sweep()
        assert await call.read_state() is CallState.SETTLING
        harness.chain.bury(CHAIN, 1)
        await harness.sweep()
        assert await call.read_state() is CallState.CONSUMED


async def test_a_transaction_that_no_node_has_is_sent_again(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    await harness.sweep()
    assert len(set(harness.chain.broadcasts)) == 1
    assert len(harness.chain.sent(CHAIN)) == 1
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_a_call_without_a_transaction_gets_one(harness: SettlementHarness) -> None:
    call = await harness.claim()
    harness.chain.disconnect(CHAIN)
    await call.leave_orphaned()
    await harness.sweep()
    assert await harness.ledger.attempts_of(call.claim.call_id) == ()
    harness.chain.reconnect(CHAIN)
    await harness.sweep()
    (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
    assert attempt.raw in harness.chain.broadcasts
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_a_transfer_by_any_sender_pays_the_call(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    call.land()
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_a_nonce_used_for_another_payment_releases_the_call(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    call.land(payee=ELSEWHERE)
    await harness.sweep()
    assert await call.read_state() is CallState.RELEASED


async def test_a_call_is_released_only_after_expiry_and_at_depth() -> None:
    async with SettlementHarness(limits=HASTY, confirmations=((0, 3),)) as harness:
        harness.chain.is_automining = False
        payer = harness.payer()
        harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
        call = await harness.leave_orphaned(payer)
        harness.chain.mine_sent(CHAIN)
        for moment in (payer.valid_before - 1, payer.valid_before, payer.valid_before + EXPIRY_SLACK_S - 1):
            harness.chain.mine(CHAIN, time=moment)
            await harness.sweep(3)
            assert await call.read_state() is CallState.SETTLING
        harness.chain.mine(CHAIN, time=payer.valid_before + EXPIRY_SLACK_S)
        await harness.sweep(3)  # expired, but not deep enough
        assert await call.read_state() is CallState.SETTLING
        harness.chain.bury(CHAIN, 2)
        await harness.sweep()
        assert await call.read_state() is CallState.RELEASED
        assert (await harness.ledger.audit()).is_balanced


async def test_expiry_counts_at_a_second_check_only(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    harness.chain.mine(CHAIN, time=call.authorization.valid_before + EXPIRY_SLACK_S)
    await harness.sweep()
    assert await call.read_state() is CallState.SETTLING
    await harness.sweep()
    assert await call.read_state() is CallState.RELEASED


async def test_an_expired_call_gets_no_transaction(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    harness.chain.mine(CHAIN, time=call.authorization.valid_before)
    sent = len(harness.chain.broadcasts)
    await harness.sweep(3)
    assert len(harness.chain.broadcasts) == sent
    assert await call.read_state() is CallState.SETTLING


class ForgetfulChain(MemoryChain):
    """While `is_late`, its heads are new, and its states and receipts are from before any transaction."""

    is_late = False

    async def fetch_authorization(self, chain_id: ChainId, **asked: Any) -> AuthorizationFacts:
        facts = await super().fetch_authorization(chain_id, **asked)
        return replace(facts, is_used=False) if self.is_late else facts

    async def fetch_receipts(
        self, chain_id: ChainId, tx_hashes: Sequence[TxHash], **asked: Any
    ) -> dict[TxHash, ChainFacts | NotMined]:
        told = await super().fetch_receipts(chain_id, tx_hashes, **asked)
        unseen = NotMined(chain_id=chain_id, is_pending=True)
        return dict.fromkeys(told, unseen) if self.is_late else told


@pytest.mark.parametrize("slack_s", [0, EXPIRY_SLACK_S])
async def test_a_node_that_lags_for_two_checks_releases_no_paid_call(slack_s: int) -> None:
    chain = ForgetfulChain(CHAIN)
    chain.deploy(CHAIN, TOKEN, authorizing_token(USDC))
    async with SettlementHarness(limits=HASTY, chain=chain) as harness:
        chain.is_automining = False
        call = await harness.leave_orphaned()
        chain.mine_sent(CHAIN)  # paid, just in time
        chain.mine(CHAIN, time=call.authorization.valid_before + slack_s)
        chain.is_late = True
        await harness.sweep()
        chain.bury(CHAIN, 2)
        await harness.sweep()
        chain.is_late = False
        await harness.sweep()
        assert await call.read_state() is CallState.CONSUMED


async def test_an_end_that_is_not_deep_enough_yet_releases_nothing() -> None:
    """The authorisation is cancelled just before its end, and the node returns an older state."""
    chain = ForgetfulChain(CHAIN)
    chain.deploy(CHAIN, TOKEN, authorizing_token(USDC))
    async with SettlementHarness(limits=HASTY, chain=chain, confirmations=((0, 4),)) as harness:
        chain.is_automining = False
        call = await harness.leave_orphaned()
        chain.mine(CHAIN, time=call.authorization.valid_before + EXPIRY_SLACK_S)
        chain.is_late = True
        await harness.sweep()
        chain.bury(CHAIN, 2)
        call.land(payee=ELSEWHERE)
        await harness.sweep()
        assert await call.read_state() is CallState.SETTLING
        chain.bury(CHAIN, 3)
        await harness.sweep()
        assert await call.read_state() is CallState.RELEASED


async def test_a_transfer_in_the_last_block_before_expiry_pays_the_call(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.mine_sent(CHAIN)
    harness.chain.mine(CHAIN, time=call.authorization.valid_before + 100)
    await harness.sweep(2)
    assert await call.read_state() is CallState.CONSUMED


async def test_an_unavailable_chain_changes_nothing(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.disconnect(CHAIN)
    await harness.sweep(3)
    assert await call.read_state() is CallState.SETTLING


async def test_a_reverting_transfer_is_signed_a_limited_number_of_times(
    harness: SettlementHarness,
) -> None:
    payer = harness.payer()
    harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
    harness.chain.is_automining = True
    call = await harness.leave_orphaned(payer)
    await harness.sweep(5)
    assert len(await harness.ledger.attempts_of(call.claim.call_id)) == 2


async def test_calls_that_only_wait_take_no_place_in_the_batch() -> None:
    """A wallet whose transfers pass each simulation and revert in each block, and one honest caller."""
    async with SettlementHarness(limits=replace(HASTY, sweep_batch_max=2)) as harness:
        for call in await harness.claim_many(5):
            harness.chain.revert_transfer(CHAIN, call.authorization.payer, call.authorization.nonce)
            await call.leave_orphaned()
        await harness.sweep(9)
        asked = harness.chain.requests["fetch_authorization", CHAIN]
        await harness.sweep(9)
        assert harness.chain.requests["fetch_authorization", CHAIN] == asked
        harness.chain.is_automining = False
        honest = await harness.leave_orphaned()
        await harness.mine_and_sweep()
        assert await honest.read_state() is CallState.CONSUMED


async def test_a_waiting_call_is_checked_less_and_less_often(harness: SettlementHarness) -> None:
    harness.chain.is_automining = True
    (call,) = await harness.claim_many(1)
    harness.chain.revert_transfer(CHAIN, call.authorization.payer, call.authorization.nonce)
    await call.leave_orphaned()
    await harness.sweep(2)
    looks = []
    while await call.read_state() is CallState.SETTLING:
        asked = harness.chain.requests["fetch_authorization", CHAIN]
        await harness.sweep()
        if harness.chain.requests["fetch_authorization", CHAIN] > asked:
            looks.append(harness.now_ms)
        harness.pass_time(5)
        harness.chain.mine(CHAIN, time=harness.now_ms // 1000)
        await harness.gas_budget.refresh()
    ended_ms = (call.authorization.valid_before + EXPIRY_SLACK_S) * 1000
    gaps = [after - before for before, after in pairwise(looks) if after < ended_ms]
    assert gaps[0] >= POSTPONE_MIN_MS
    assert gaps == sorted(gaps)
    assert gaps[-1] > 10 * gaps[0]
    assert harness.now_ms - ended_ms <= 4 * POSTPONE_MIN_MS
    assert await call.read_state() is CallState.RELEASED


async def test_a_call_of_a_removed_network_takes_no_place_in_the_batch(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    async with harness.another() as other:
        other.rules.clear()
        await other.sweep()
        assert await harness.ledger.unsettled(limit=9) == ()
    harness.pass_time(POSTPONE_MIN_MS / 1000)
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_a_transfer_that_reverted_once_is_signed_again(harness: SettlementHarness) -> None:
    payer = harness.payer()
    harness.chain.is_automining = True
    harness.chain.revert_transfer(CHAIN, payer.address, payer.nonce)
    call = await harness.leave_orphaned(payer)
    harness.chain.allow_transfer(CHAIN, payer.address, payer.nonce)
    await harness.sweep(2)
    assert await call.read_state() is CallState.CONSUMED


async def test_a_nonce_used_outside_the_gateway_is_replaced_by_the_next(harness: SettlementHarness) -> None:
    """The gas key was used outside the gateway: the signed transaction can never be mined."""
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    async with SettlementHarness(chain=harness.chain) as elsewhere:
        harness.chain.is_automining = True
        stranger = await elsewhere.claim(elsewhere.payer(nonce=b"\x55" * 32))
        assert isinstance(await stranger.settle(), Settled)
    await harness.gas_budget.refresh()
    await harness.sweep(2)
    attempts = await harness.ledger.attempts_of(call.claim.call_id)
    assert [attempt.nonce for attempt in attempts] == [0, 1]
    assert await call.read_state() is CallState.CONSUMED


async def test_concurrent_recoveries_move_a_call_once(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    async with harness.another("b") as b, harness.another("c") as c:
        harness.chain.mine_sent(CHAIN)
        await asyncio.gather(*(one.settlement_recovery.run_once() for one in (harness, b, c)))
    assert await call.read_state() is CallState.CONSUMED
    assert (await harness.ledger.audit()).is_balanced
    (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
    (payment,) = await harness.ledger.find_payments(attempt.tx_hash)
    assert payment.value_units == payment.taken_units == 10_000


async def test_a_call_with_a_waiter_is_not_recovered(harness: SettlementHarness) -> None:
    call = await harness.claim()
    assert await call.settle() == Undecided()
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.SETTLING


@pytest.mark.parametrize(("patience_s", "state"), [(3600.0, CallState.SETTLING), (0.0, CallState.CONSUMED)])
async def test_an_undecided_call_is_orphaned_after_the_delay(
    harness: SettlementHarness, monkeypatch: pytest.MonkeyPatch, patience_s: float, state: CallState
) -> None:
    """Uses the monotonic clock, which is never set."""
    monkeypatch.setattr(orphans, "ORPHAN_AFTER_S", patience_s)
    call = await harness.claim()
    assert await call.settle() == Undecided()
    harness.chain.mine_sent(CHAIN)
    await harness.services.orphans.mark_due()
    await harness.sweep()
    assert await call.read_state() is state


async def test_an_unsafe_call_without_a_stored_response_becomes_credit(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned(method="POST")
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.RELEASED
    (attempt,) = await harness.ledger.attempts_of(call.claim.call_id)
    (payment,) = await harness.ledger.find_payments(attempt.tx_hash)
    assert (payment.value_units, payment.taken_units) == (10_000, 0)


async def test_a_call_that_fails_does_not_stop_the_others(harness: SettlementHarness) -> None:
    bad, good = await harness.claim_many(2)
    for call in (bad, good):
        await call.leave_orphaned()
    harness.chain.mine_sent(CHAIN)
    attempts_of = harness.gas.attempts_of

    async def fail(call_id: object) -> object:
        if call_id == bad.claim.call_id:
            raise RuntimeError("a bug")
        return await attempts_of(call_id)  # type: ignore[arg-type]  # a call's id

    harness.gas.attempts_of = fail  # type: ignore[method-assign,assignment]  # the fake's own hook
    await harness.sweep()
    assert await good.read_state() is CallState.CONSUMED
    assert await bad.read_state() is CallState.SETTLING


async def leave_unknown(harness: SettlementHarness, **given: Any) -> ClaimedCall:
    """The upstream got the request and never answered, and its time is over; the authorisation is still valid."""
    payer = harness.payer(valid_before=harness.now_ms // 1000 + 2 * HASTY.unknown_hold_s)
    call = await harness.claim(payer, **given)
    await harness.ledger.close(close_of(call.claim, CallState.UNKNOWN))
    harness.pass_time(HASTY.unknown_hold_s)
    harness.chain.mine(CHAIN, time=harness.now_ms // 1000)
    await harness.gas_budget.refresh()
    return call


async def test_a_call_without_an_outcome_is_never_settled_by_recovery(harness: SettlementHarness) -> None:
    call = await leave_unknown(harness)
    await harness.sweep(3)
    assert harness.chain.broadcasts == []
    assert await harness.ledger.attempts_of(call.claim.call_id) == ()
    assert await call.read_state() is CallState.UNKNOWN
    assert await harness.ledger.unsettled(limit=9) == ()  # it rests
    assert {note for note in harness.metrics if note[0] == "orphaned"} == {("orphaned", 0)}
    harness.now_ms = (call.authorization.valid_before + EXPIRY_SLACK_S) * 1000
    harness.chain.mine(CHAIN, time=harness.now_ms // 1000)
    await harness.sweep(2)
    assert await call.read_state() is CallState.RELEASED
    assert (await harness.ledger.audit()).is_balanced


@pytest.mark.parametrize(("method", "after"), [("GET", CallState.CONSUMED), ("POST", CallState.RELEASED)])
async def test_a_used_authorisation_pays_a_call_without_an_outcome_or_becomes_credit(
    harness: SettlementHarness, method: str, after: CallState
) -> None:
    call = await leave_unknown(harness, method=method)
    call.land()
    await harness.sweep()
    assert await call.read_state() is after
    assert (await harness.ledger.audit()).is_balanced


async def test_a_key_without_gas_leaves_the_call_for_later() -> None:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=SendFault.INSUFFICIENT_FUNDS))
        call = await harness.leave_orphaned()
        await harness.sweep()
        harness.chain.refuse_sends(CHAIN, None)
        await harness.sweep(2)
        assert await call.read_state() is CallState.CONSUMED


async def strand(harness: SettlementHarness) -> ClaimedCall:
    """Its gas key lost its balance after the last refresh, so no node has accepted its transaction."""
    harness.chain.fund_gas(CHAIN, make_gas_key("one").address, 1)
    harness.chain.is_automining = False
    call = await harness.leave_orphaned()
    harness.chain.is_automining = True
    return call


async def test_another_key_settles_the_calls_of_a_key_without_gas() -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    async with SettlementHarness(limits=HASTY, rules=settlement_rules(gas_keys=keys)) as harness:
        call = await strand(harness)
        await harness.gas_budget.refresh()
        await harness.sweep(3)
        assert (
            len(await harness.ledger.attempts_of(call.claim.call_id)) == 1
        )  # it may be filled again any moment
        harness.pass_time(harness.limits.fee_bump_after_s)
        await harness.gas_budget.refresh()
        await harness.sweep(2)
        assert await call.read_state() is CallState.CONSUMED
        harness.chain.fund_gas(CHAIN, keys[0].address, 10**18)
        await harness.gas_budget.refresh()
        await harness.sweep()  # the sequence goes on: what it waited for is mined, and moves nothing
        first, second = await harness.ledger.attempts_of(call.claim.call_id)
        assert [first.sender, second.sender] == [key.address for key in keys]
        told = await harness.chain.fetch_receipts(CHAIN, [first.tx_hash, second.tx_hash])
        assert [facts.succeeded for facts in told.values() if isinstance(facts, ChainFacts)] == [False, True]
        assert harness.chain.balance(CHAIN, TOKEN, call.authorization.payee) == 10_000
        assert (await harness.ledger.audit()).is_balanced


async def test_the_cost_of_a_transaction_signed_by_recovery_counts_at_once() -> None:
    async with SettlementHarness(limits=HASTY, rules=settlement_rules(listing_budget_wei=10**12)) as harness:
        call = await harness.claim()
        harness.chain.disconnect(CHAIN)
        await call.leave_orphaned()
        harness.chain.reconnect(CHAIN)
        assert harness.settlement.is_offered(USDC, 10_000, LISTING)
        await harness.sweep()
        assert not harness.settlement.is_offered(USDC, 10_000, LISTING)


async def test_the_calls_of_the_only_key_wait_for_it() -> None:
    rules = settlement_rules(gas_keys=(make_gas_key("one"),))
    async with SettlementHarness(limits=HASTY, rules=rules) as harness:
        call = await strand(harness)
        harness.pass_time(harness.limits.fee_bump_after_s)
        await harness.gas_budget.refresh()
        await harness.sweep(3)
        assert len(await harness.ledger.attempts_of(call.claim.call_id)) == 1
        harness.chain.fund_gas(CHAIN, make_gas_key("one").address, 10**18)
        await harness.gas_budget.refresh()
        await harness.sweep(2)
        assert await call.read_state() is CallState.CONSUMED


async def test_replacements_do_not_count_as_further_nonces() -> None:
    async with SettlementHarness(limits=replace(HASTY, settlement_attempts_max=2)) as harness:
        harness.chain.is_automining = False
        payer = harness.payer(valid_before=harness.now_ms // 1000 + 3_600)
        call = await harness.leave_orphaned(payer)
        for _ in range(3):
            harness.pass_time(harness.limits.fee_bump_after_s)
            await harness.gas_budget.refresh()
            await harness.sweep()
        await use_gas_key_elsewhere(harness, 1)
        await harness.sweep()
        attempts = await harness.ledger.attempts_of(call.claim.call_id)
        assert [attempt.nonce for attempt in attempts] == [0, 0, 0, 0, 1]


async def use_gas_key_elsewhere(harness: SettlementHarness, number: int) -> None:
    """Its next nonce goes to a transaction that is not in this ledger."""
    harness.chain.drop_sent(CHAIN)
    async with SettlementHarness(chain=harness.chain) as elsewhere:
        harness.chain.is_automining = True
        stranger = await elsewhere.claim(elsewhere.payer(nonce=bytes([number]) * 32))
        assert isinstance(await stranger.settle(), Settled)
        harness.chain.is_automining = False
    await harness.gas_budget.refresh()


async def test_a_call_gets_a_limited_number_of_nonces() -> None:
    """Each time the gas key's next nonce is used outside the gateway first, so the signed transaction can never be mined."""
    async with SettlementHarness(limits=replace(HASTY, settlement_attempts_max=3)) as harness:
        harness.chain.is_automining = False
        call = await harness.leave_orphaned()
        for number in range(5):
            await use_gas_key_elsewhere(harness, number + 1)
            await harness.sweep()
        attempts = await harness.ledger.attempts_of(call.claim.call_id)
        assert [attempt.nonce for attempt in attempts] == [0, 1, 2]


async def test_recovery_reads_a_batch_and_reaches_every_call() -> None:
    async with SettlementHarness(limits=replace(HASTY, sweep_batch_max=2)) as harness:
        harness.chain.is_automining = False
        calls = await harness.claim_many(3)
        for call in calls:
            await call.leave_orphaned()
        await harness.mine_and_sweep()
        assert [await call.read_state() for call in calls].count(CallState.CONSUMED) == 2
        await harness.sweep()
        assert [await call.read_state() for call in calls].count(CallState.CONSUMED) == 3


async def test_few_calls_are_recovered_at_the_same_time() -> None:
    async with SettlementHarness(limits=replace(HASTY, sweep_in_flight_max=2)) as harness:
        harness.chain.is_automining = False
        for call in await harness.claim_many(6):
            await call.settle()
            await call.mark_orphaned()
        attempts_of, together, most = harness.gas.attempts_of, 0, 0

        async def count(call_id: object) -> object:
            nonlocal together, most
            together += 1
            most = max(most, together)
            await asyncio.sleep(0)
            together -= 1
            return await attempts_of(call_id)  # type: ignore[arg-type]  # a call's id

        harness.gas.attempts_of = count  # type: ignore[method-assign,assignment]  # the fake's own hook
        await harness.sweep()
        assert most == 2


@pytest.mark.parametrize(("above_nano", "state"), [(10**7, CallState.CONSUMED), (1, CallState.SETTLING)])
async def test_one_node_is_enough_to_conclude_small_values_only(
    harness: SettlementHarness, above_nano: int, state: CallState
) -> None:
    harness.rules[CHAIN] = replace(harness.rules[CHAIN], agreement_above=(("USDC", above_nano),))
    call = await harness.leave_orphaned()
    harness.chain.mine_sent(CHAIN)
    harness.chain.leave_one_node(CHAIN)
    await harness.sweep(times=2)
    assert await call.read_state() is state
    harness.chain.reconnect(CHAIN)
    await harness.sweep()
    assert await call.read_state() is CallState.CONSUMED
