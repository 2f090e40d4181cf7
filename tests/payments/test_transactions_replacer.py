"""Nonce sequences that continue: lost transactions are resent, and the first unmined one is replaced, in every state
of its call."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.chain_blocks import parse_sent
from tests.kit.payer import CHAIN
from tests.kit.settlement import (
    HASTY,
    ClaimedCall,
    SettlementHarness,
    make_gas_key,
    settlement_rules,
)
from tollway.chain.port import SendFault, SendRefused
from tollway.ids import keccak256
from tollway.ledger.records import CallState
from tollway.payments.gas import WithdrawalReason
from tollway.payments.nonces import CHECKS_UNTIL_STUCK
from tollway.payments.settlement import Settled, Undecided
from tollway.payments.settlement_recovery import EXPIRY_SLACK_S
from tollway.payments.transactions import GAP_MAX, OPEN_MAX, read_fees

KEY = make_gas_key().address


@pytest.fixture
async def harness() -> AsyncIterator[SettlementHarness]:
    async with SettlementHarness(limits=HASTY) as harness:
        harness.chain.is_automining = False
        yield harness


async def wait_and_sweep(harness: SettlementHarness, times: int = 1) -> None:
    """A step after which a waiting transaction is due again."""
    for _ in range(times):
        harness.pass_time(harness.limits.fee_bump_after_s)
        await harness.gas_budget.refresh()
        await harness.sweep()


async def attempts_of(call: ClaimedCall) -> Any:
    return await call.harness.ledger.attempts_of(call.claim.call_id)


async def let_expire(harness: SettlementHarness, call: ClaimedCall) -> None:
    """Its transaction was never mined, and its authorisation has expired."""
    harness.now_ms = (call.authorization.valid_before + EXPIRY_SLACK_S) * 1000
    harness.chain.mine(CHAIN, time=harness.now_ms // 1000)
    await harness.gas_budget.refresh()
    for _ in range(3):
        await harness.sweep()
        harness.chain.bury(CHAIN, 1)
    assert await call.read_state() is CallState.RELEASED


# ---- What a sequence waits for.


async def test_a_resent_transaction_is_not_replaced_at_once(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    await wait_and_sweep(harness)
    assert len(await attempts_of(call)) == 1


async def test_a_transaction_that_waits_too_long_is_replaced(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    await wait_and_sweep(harness)
    first, second = await attempts_of(call)
    assert first.nonce == second.nonce
    before, after = read_fees(first), read_fees(second)
    assert after.max_fee_wei * 8 >= before.max_fee_wei * 9
    assert after.tip_wei * 8 >= before.tip_wei * 9
    assert [sent.tx_hash for sent in harness.chain.sent(CHAIN)] == [second.tx_hash]
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_a_recent_replacement_is_not_replaced(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    await wait_and_sweep(harness)
    harness.pass_time(harness.limits.fee_bump_after_s - 1)
    await harness.sweep(3)
    assert len(await attempts_of(call)) == 2


async def test_a_clock_that_is_set_back_delays_no_replacement(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.pass_time(-3_600)
    await harness.sweep()
    assert len(await attempts_of(call)) == 2
    await harness.sweep()
    assert len(await attempts_of(call)) == 2  # from now on by the clock as it is


async def test_an_underpriced_transaction_is_replaced(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    harness.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=10**6)
    await harness.sweep()
    assert len(await attempts_of(call)) == 1
    await wait_and_sweep(harness)
    first, second = await attempts_of(call)
    assert first.nonce == second.nonce
    assert [sent.tx_hash for sent in harness.chain.sent(CHAIN)] == [second.tx_hash]


@pytest.mark.parametrize("fault", [SendFault.INSUFFICIENT_FUNDS, SendFault.OTHER, SendFault.NONCE_TOO_LOW])
async def test_a_transaction_refused_for_another_reason_is_not_replaced(
    harness: SettlementHarness, fault: SendFault
) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    harness.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=fault))
    await wait_and_sweep(harness, 2)
    assert len(await attempts_of(call)) == 1


async def test_a_transaction_behind_another_is_not_replaced(harness: SettlementHarness) -> None:
    first, second = await harness.claim_many(2)
    for call in (first, second):
        await call.leave_orphaned()
    await wait_and_sweep(harness)
    assert [len(await attempts_of(call)) for call in (first, second)] == [2, 1]


async def test_a_transaction_is_replaced_while_its_caller_waits(harness: SettlementHarness) -> None:
    call = await harness.claim()
    assert await call.settle() == Undecided()
    await wait_and_sweep(harness)
    assert len(await attempts_of(call)) == 2


async def test_no_replacement_exceeds_the_maximum_price() -> None:
    rules = settlement_rules(gas_price_max_wei=22 * 10**6)  # the first offer is 21 million
    async with SettlementHarness(limits=HASTY, rules=rules) as harness:
        harness.chain.is_automining = False
        call = await harness.leave_orphaned()
        with capture_logs() as lines:
            await wait_and_sweep(harness, 5)
        assert len(await attempts_of(call)) == 1
        assert [line["event"] for line in lines].count("lane_waits_at_ceiling") == 1


async def test_replacements_continue_up_to_the_maximum_price() -> None:
    """The number of replacements and the size of the list do not limit the price."""
    rules = settlement_rules(gas_price_max_wei=10**12)
    async with SettlementHarness(limits=HASTY, rules=rules) as harness:
        harness.chain.is_automining = False
        payer = harness.payer(valid_before=harness.now_ms // 1000 + 86_400)
        call = await harness.claim(payer)
        assert await call.settle() == Undecided()
        times = OPEN_MAX + 5
        await wait_and_sweep(harness, times)
        attempts = await attempts_of(call)
        assert len(attempts) == times + 1
        assert [sent.tx_hash for sent in harness.chain.sent(CHAIN)] == [attempts[-1].tx_hash]
        assert read_fees(attempts[-1]).max_fee_wei <= 10**12


async def test_a_pending_transaction_is_not_sent_again(harness: SettlementHarness) -> None:
    await harness.leave_orphaned()
    harness.pass_time(10)
    sent = len(harness.chain.broadcasts)
    await harness.sweep(3)
    assert len(harness.chain.broadcasts) == sent


async def test_a_recent_transaction_is_not_sent_again(harness: SettlementHarness) -> None:
    first, second = await harness.claim_many(2)
    assert await first.settle() == Undecided()
    harness.pass_time(10)
    assert await second.settle() == Undecided()
    harness.chain.drop_sent(CHAIN)
    await harness.sweep()
    assert [sent.nonce for sent in harness.chain.sent(CHAIN)] == [0]


# ---- In every state of its call.


async def test_a_lost_transaction_is_resent_although_its_call_has_ended(harness: SettlementHarness) -> None:
    first = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    first.land()
    await harness.sweep()
    assert await first.read_state() is CallState.CONSUMED
    harness.pass_time(10)
    await harness.sweep()
    (sent,) = harness.chain.sent(CHAIN)
    assert sent.sender == KEY


async def test_an_expired_first_transaction_is_replaced(harness: SettlementHarness) -> None:
    """The gas price rises tenfold and stays; transactions at the old price are never mined."""
    first = await harness.leave_orphaned()
    harness.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=10**6)
    await let_expire(harness, first)
    behind = await harness.claim(
        harness.payer(nonce=b"\x02" * 32, valid_before=harness.now_ms // 1000 + 3_600)
    )
    assert await behind.settle() == Undecided()
    await behind.mark_orphaned()
    await wait_and_sweep(harness, 2)
    await harness.mine_and_sweep()
    assert await behind.read_state() is CallState.CONSUMED
    assert await first.read_state() is CallState.RELEASED
    assert (await harness.ledger.audit()).is_balanced


async def test_an_expired_transaction_is_replaced_by_a_filler(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=10**6)
    await let_expire(harness, call)
    await wait_and_sweep(harness)
    *_, filler = await attempts_of(call)
    sent = parse_sent(filler.raw)
    assert (sent.sender, sent.recipient, sent.calldata, sent.nonce) == (KEY, KEY, b"", 0)
    assert filler.raw in harness.chain.broadcasts
    await wait_and_sweep(harness)
    replacement = parse_sent((await attempts_of(call))[-1].raw)
    assert (replacement.recipient, replacement.calldata) == (KEY, b"")
    assert replacement.max_fee_wei > sent.max_fee_wei


async def test_a_refused_transaction_is_replaced_by_a_filler_after_expiry(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    harness.chain.drop_sent(CHAIN)
    harness.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=SendFault.OTHER))
    await let_expire(harness, call)
    await wait_and_sweep(harness)
    filler = parse_sent((await attempts_of(call))[-1].raw)
    assert (filler.recipient, filler.calldata) == (KEY, b"")


async def test_a_valid_transaction_is_replaced_by_itself_at_a_higher_price(
    harness: SettlementHarness,
) -> None:
    """Its call ended by a transfer that a reorganisation removed: the same transaction pays for it again."""
    harness.chain.is_automining = True
    call = await harness.claim(harness.payer(valid_before=harness.now_ms // 1000 + 3_600))
    assert isinstance(await call.settle(), Settled)
    harness.chain.is_automining = False
    harness.chain.reorg(CHAIN, 1)
    harness.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=10**6)
    await wait_and_sweep(harness)
    first, second = await attempts_of(call)
    assert parse_sent(second.raw).calldata == parse_sent(first.raw).calldata
    harness.chain.mine_sent(CHAIN)
    assert harness.chain.balance(CHAIN, call.authorization.token, call.authorization.payee) == 10_000


async def test_a_transaction_removed_by_a_deep_reorganisation_is_sent_again(
    harness: SettlementHarness,
) -> None:
    harness.chain.is_automining = True
    call = await harness.claim(harness.payer(valid_before=harness.now_ms // 1000 + 3_600))
    assert isinstance(await call.settle(), Settled)
    for _ in range(5):
        await harness.gas_budget.refresh()
    assert await harness.gas.open_attempts(CHAIN, KEY, limit=9) == ()
    harness.chain.is_automining = False
    harness.chain.reorg(CHAIN, 1)
    async with harness.another() as later:
        later.pass_time(10)
        await later.sweep()
        assert len(harness.chain.sent(CHAIN)) == 1


async def test_concurrent_replacers_sign_the_same_replacement(harness: SettlementHarness) -> None:
    call = await harness.leave_orphaned()
    async with harness.another("b") as other:
        for one in (harness, other):
            one.pass_time(one.limits.fee_bump_after_s)
            await one.gas_budget.refresh()
        await harness.sweep()
        await other.sweep()
    assert len(await attempts_of(call)) == 2


async def test_a_sequence_that_fails_does_not_stop_the_others() -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    async with SettlementHarness(limits=HASTY, rules=settlement_rules(gas_keys=keys)) as harness:
        harness.chain.is_automining = False
        for number in range(2):
            harness.gas_budget.sequences(CHAIN)[number].in_flight -= 1  # the least busy
            call = await harness.claim(harness.payer(nonce=keccak256(b"%d" % number)))
            assert await call.settle() == Undecided()
            harness.gas_budget.sequences(CHAIN)[number].in_flight += 1
        harness.chain.drop_sent(CHAIN)
        harness.pass_time(10)
        open_attempts = harness.gas.open_attempts

        async def fail(chain_id: Any, sender: Any, *, limit: int) -> Any:
            if sender == keys[0].address:
                raise RuntimeError("a bug")
            return await open_attempts(chain_id, sender, limit=limit)

        harness.gas.open_attempts = fail  # type: ignore[method-assign]  # the fake's own hook
        await harness.sweep()
        assert [sent.sender for sent in harness.chain.sent(CHAIN)] == [keys[1].address]


# ---- Lanes that do not move.


async def look_often(harness: SettlementHarness) -> None:
    """Checks until a sequence that does not move counts as stuck."""
    for _ in range(CHECKS_UNTIL_STUCK + 1):
        await harness.gas_budget.refresh()
        harness.pass_time(harness.limits.gas_refresh_s)
    await harness.gas_budget.refresh()


def long_payer(harness: SettlementHarness, number: int = 1) -> Any:
    return harness.payer(nonce=bytes([number]) * 32, valid_before=harness.now_ms // 1000 + 3_600)


async def test_a_stuck_key_is_neither_offered_nor_chosen(
    harness: SettlementHarness,
) -> None:
    first = await harness.leave_orphaned(payer=long_payer(harness))
    await look_often(harness)
    assert not harness.is_offered()
    assert harness.gas_budget.choose_sequence(CHAIN, is_claimed=True) is None
    late = await harness.leave_orphaned(payer=long_payer(harness, 2))
    assert await attempts_of(late) == ()  # it does not queue up behind the first
    harness.chain.mine_sent(CHAIN)
    await harness.gas_budget.refresh()
    assert harness.is_offered()
    await harness.sweep()
    await harness.mine_and_sweep()
    assert [await call.read_state() for call in (first, late)] == [CallState.CONSUMED] * 2


async def test_another_key_settles_the_calls_of_a_stuck_key() -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    async with SettlementHarness(limits=HASTY, rules=settlement_rules(gas_keys=keys)) as harness:
        harness.chain.is_automining = False
        call = await harness.leave_orphaned(payer=long_payer(harness))
        await look_often(harness)
        assert harness.is_offered()
        sequence = harness.gas_budget.choose_sequence(CHAIN)
        assert sequence is not None
        assert sequence.key.address == keys[1].address
        assert withdrawn_keys(harness) == 1
        await harness.sweep()
        assert {one.sender for one in await attempts_of(call)} == {key.address for key in keys}
        first, *_ = await attempts_of(call)
        harness.chain.drop_sent(
            CHAIN, *(s.tx_hash for s in harness.chain.sent(CHAIN) if s.sender == first.sender)
        )
        await harness.mine_and_sweep()
        assert await call.read_state() is CallState.CONSUMED


def withdrawn_keys(harness: SettlementHarness) -> int:
    """The rails that the latest refresh counted as stuck."""
    counts = [
        note[3] for note in harness.metrics if note[:3] == ("withdrawn", CHAIN, WithdrawalReason.NONCE_GAP)
    ]
    return int(str(counts[-1]))


async def test_missing_nonces_below_waiting_transactions_are_filled(harness: SettlementHarness) -> None:
    """A node once counted two transactions that were never sent; a call waits behind them."""
    await harness.gas.raise_nonce(CHAIN, KEY, 2)
    call = await harness.leave_orphaned(payer=long_payer(harness))
    assert [one.nonce for one in await attempts_of(call)] == [2]
    await harness.sweep(3)
    assert [sent.nonce for sent in harness.chain.sent(CHAIN)] == [2]
    await look_often(harness)
    with capture_logs() as lines:
        await harness.sweep(3)
    assert [line["nonce"] for line in lines if line["event"] == "lane_nonce_filled"] == [0, 1]
    fillers = [one for one in await attempts_of(call) if one.nonce < 2]
    assert [(parse_sent(one.raw).recipient, parse_sent(one.raw).calldata) for one in fillers] == [
        (KEY, b"")
    ] * 2
    assert {one.raw for one in fillers} <= set(harness.chain.broadcasts)
    harness.chain.mine_sent(CHAIN)
    await harness.gas_budget.refresh()
    assert harness.is_offered()
    await harness.sweep()
    assert await call.read_state() is CallState.CONSUMED
    assert (await harness.ledger.audit()).is_balanced


async def test_a_filler_is_not_a_settlement_attempt(harness: SettlementHarness) -> None:
    """The filler is mined and pays nothing; its call neither ends nor waits for it."""
    await harness.gas.raise_nonce(CHAIN, KEY, 5)
    call = await harness.leave_orphaned(payer=long_payer(harness))
    await look_often(harness)
    await harness.sweep()
    fillers = [one.tx_hash for one in await attempts_of(call) if one.nonce < 5]
    assert len(fillers) == 5
    harness.chain.mine_sent(CHAIN, *fillers)
    harness.chain.drop_sent(CHAIN)
    harness.pass_time(10)
    await harness.sweep(2)
    await harness.mine_and_sweep()
    assert await call.read_state() is CallState.CONSUMED


async def test_a_sequence_ahead_of_the_chain_goes_back(harness: SettlementHarness) -> None:
    await harness.gas.raise_nonce(CHAIN, KEY, 10**9)
    await look_often(harness)
    assert not harness.is_offered()
    await harness.sweep()
    assert await harness.gas.next_nonce(CHAIN, KEY) == 0
    await harness.gas_budget.refresh()
    assert harness.is_offered()
    harness.chain.is_automining = True
    assert isinstance(await (await harness.claim()).settle(), Settled)


async def test_a_gap_that_is_too_wide_is_logged_and_costs_no_gas(harness: SettlementHarness) -> None:
    await harness.gas.raise_nonce(CHAIN, KEY, GAP_MAX + 1)
    call = await harness.leave_orphaned(payer=long_payer(harness))
    await look_often(harness)
    with capture_logs() as lines:
        await harness.sweep()
    assert "lane_gap_too_wide" in [line["event"] for line in lines]
    assert len(await attempts_of(call)) == 1


async def test_the_first_transaction_of_a_stuck_sequence_goes_to_all_nodes(
    harness: SettlementHarness,
) -> None:
    call = await harness.leave_orphaned(payer=long_payer(harness))
    (attempt,) = await attempts_of(call)
    harness.chain.resent.clear()
    await harness.sweep(3)
    assert harness.chain.resent == []
    await look_often(harness)
    await harness.sweep()
    assert attempt.raw in harness.chain.resent


# ---- Gateways that stand still.


async def test_an_unsent_transaction_of_another_gateway_is_sent_by_a_waiting_call() -> None:
    """The gateway pauses between its commit and its broadcast. The call behind its nonce sends the transaction."""
    async with SettlementHarness(limits=HASTY) as harness, harness.another("still") as still:
        harness.chain.is_automining = False
        first = await still.claim(long_payer(still))
        send = harness.chain.send_transaction

        async def stand_still(chain_id: Any, raw: bytes) -> None:
            return None

        harness.chain.send_transaction = stand_still  # type: ignore[assignment]  # the fake's own hook
        harness.chain.resend_transaction = stand_still  # type: ignore[assignment]
        assert await first.settle() == Undecided()
        harness.chain.is_automining = True
        harness.chain.send_transaction = send  # type: ignore[method-assign]
        del harness.chain.resend_transaction
        second = await harness.claim(long_payer(harness, 2))
        assert isinstance(await second.settle(), Settled)
        assert [one.nonce for one in await attempts_of(second)] == [1]
