"""Lanes that go on: what is lost is sent again, and what a lane waits for is offered more, whatever its call became."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.kit.authorizations import CHAIN, USDC
from tests.kit.chain_transfers import parse_sent
from tests.kit.settlement_scene import (
    HASTY,
    LISTING,
    ClaimedCall,
    SettlingScene,
    make_gas_key,
    settlement_rules,
)
from tollway.chain.reader import SendFault, SendRefused
from tollway.identifiers import keccak256
from tollway.ledger.call import CallState
from tollway.payments.gas_lane import LOOKS_UNTIL_STUCK
from tollway.payments.lane_keeper import GAP_MAX, OPEN_MAX
from tollway.payments.settlement import Settled, Undecided
from tollway.payments.settlement_signing import read_offer
from tollway.payments.settling_notes import WithdrawalReason
from tollway.payments.sweeper import EXPIRY_SLACK_S

KEY = make_gas_key().address


@pytest.fixture
async def scene() -> AsyncIterator[SettlingScene]:
    async with SettlingScene(limits=HASTY) as scene:
        scene.chain.is_automining = False
        yield scene


async def leave_adrift(scene: SettlingScene, **given: object) -> ClaimedCall:
    call = await scene.claim(**given)  # type: ignore[arg-type]  # fields of a claim
    assert await scene.settlement.settle(call.order()) == Undecided()
    assert await call.set_adrift()
    return call


async def sweep(scene: SettlingScene, times: int = 1) -> None:
    for _ in range(times):
        await scene.sweeper.run_once()


async def wait_and_sweep(scene: SettlingScene, times: int = 1) -> None:
    """So long that what waits is due each time."""
    for _ in range(times):
        scene.pass_time(scene.limits.fee_bump_after_s)
        await scene.tank.refresh()
        await sweep(scene)


async def attempts_of(call: ClaimedCall) -> Any:
    return await call.scene.book.attempts_of(call.claim.call_id)


async def let_expire(scene: SettlingScene, call: ClaimedCall) -> None:
    """Its transaction was never mined, and its authorisation is over."""
    scene.now_ms = (call.authorization.valid_before + EXPIRY_SLACK_S) * 1000
    scene.chain.mine(CHAIN, time=scene.now_ms // 1000)
    await scene.tank.refresh()
    for _ in range(3):
        await sweep(scene)
        scene.chain.bury(CHAIN, 1)
    assert await call.read_state() is CallState.RELEASED


# ---- What a lane waits for.


async def test_what_had_to_be_sent_again_is_not_offered_more_at_once(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    await wait_and_sweep(scene)
    assert len(await attempts_of(call)) == 1


async def test_a_transaction_that_waits_too_long_is_offered_more(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    await wait_and_sweep(scene)
    first, second = await attempts_of(call)
    assert first.nonce == second.nonce
    before, after = read_offer(first), read_offer(second)
    assert after.max_fee_wei * 8 >= before.max_fee_wei * 9
    assert after.tip_wei * 8 >= before.tip_wei * 9
    assert [sent.tx_hash for sent in scene.chain.sent(CHAIN)] == [second.tx_hash]
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_what_was_just_offered_more_has_its_time(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    await wait_and_sweep(scene)
    scene.pass_time(scene.limits.fee_bump_after_s - 1)
    await sweep(scene, 3)
    assert len(await attempts_of(call)) == 2


async def test_a_clock_that_is_set_back_keeps_no_lane_waiting(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.pass_time(-3_600)
    await sweep(scene)
    assert len(await attempts_of(call)) == 2
    await sweep(scene)
    assert len(await attempts_of(call)) == 2  # from now on by the clock as it is


async def test_one_that_no_node_takes_at_its_price_is_offered_more(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    scene.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=10**6)
    await sweep(scene)
    assert len(await attempts_of(call)) == 1
    await wait_and_sweep(scene)
    first, second = await attempts_of(call)
    assert first.nonce == second.nonce
    assert [sent.tx_hash for sent in scene.chain.sent(CHAIN)] == [second.tx_hash]


@pytest.mark.parametrize("fault", [SendFault.INSUFFICIENT_FUNDS, SendFault.OTHER, SendFault.NONCE_TOO_LOW])
async def test_more_is_not_offered_where_money_does_not_help(scene: SettlingScene, fault: SendFault) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    scene.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=fault))
    await wait_and_sweep(scene, 2)
    assert len(await attempts_of(call)) == 1


async def test_one_that_waits_for_another_of_its_lane_is_not_offered_more(scene: SettlingScene) -> None:
    first, second = await scene.claim_many(2)
    for call in (first, second):
        assert await scene.settlement.settle(call.order()) == Undecided()
        await call.set_adrift()
    await wait_and_sweep(scene)
    assert [len(await attempts_of(call)) for call in (first, second)] == [2, 1]


async def test_it_is_offered_more_while_its_caller_still_waits_too(scene: SettlingScene) -> None:
    call = await scene.claim()
    assert await scene.settlement.settle(call.order()) == Undecided()
    await wait_and_sweep(scene)
    assert len(await attempts_of(call)) == 2


async def test_nothing_is_ever_offered_above_the_ceiling() -> None:
    rules = settlement_rules(gas_price_max_wei=22 * 10**6)  # the first offer is 21 million
    async with SettlingScene(limits=HASTY, rules=rules) as scene:
        scene.chain.is_automining = False
        call = await leave_adrift(scene)
        with capture_logs() as lines:
            await wait_and_sweep(scene, 5)
        assert len(await attempts_of(call)) == 1
        assert [line["event"] for line in lines].count("lane_waits_at_ceiling") == 1


async def test_only_the_ceiling_ends_what_a_lane_offers() -> None:
    """Neither how often it was raised, nor how many of one nonce are listed at once."""
    rules = settlement_rules(gas_price_max_wei=10**12)
    async with SettlingScene(limits=HASTY, rules=rules) as scene:
        scene.chain.is_automining = False
        payer = scene.payer(valid_before=scene.now_ms // 1000 + 86_400)
        call = await scene.claim(payer)
        assert await scene.settlement.settle(call.order()) == Undecided()
        times = OPEN_MAX + 5
        await wait_and_sweep(scene, times)
        attempts = await attempts_of(call)
        assert len(attempts) == times + 1
        assert [sent.tx_hash for sent in scene.chain.sent(CHAIN)] == [attempts[-1].tx_hash]
        assert read_offer(attempts[-1]).max_fee_wei <= 10**12


async def test_what_a_node_knows_is_not_sent_again(scene: SettlingScene) -> None:
    await leave_adrift(scene)
    scene.pass_time(10)
    sent = len(scene.chain.broadcasts)
    await sweep(scene, 3)
    assert len(scene.chain.broadcasts) == sent


async def test_what_was_just_sent_has_its_time_to_arrive(scene: SettlingScene) -> None:
    first, second = await scene.claim_many(2)
    assert await scene.settlement.settle(first.order()) == Undecided()
    scene.pass_time(10)
    assert await scene.settlement.settle(second.order()) == Undecided()
    scene.chain.drop_sent(CHAIN)
    await sweep(scene)
    assert [sent.nonce for sent in scene.chain.sent(CHAIN)] == [0]


# ---- Whatever became of its call.


async def test_a_hole_in_a_lane_is_filled_though_its_own_call_is_decided(scene: SettlingScene) -> None:
    first = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    first.land()
    await sweep(scene)
    assert await first.read_state() is CallState.CONSUMED
    scene.pass_time(10)
    await sweep(scene)
    (sent,) = scene.chain.sent(CHAIN)
    assert sent.sender == KEY


async def test_a_lane_is_freed_when_its_first_call_has_expired(scene: SettlingScene) -> None:
    """Gas became ten times dearer and stays so; what was offered before is never mined."""
    first = await leave_adrift(scene)
    scene.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=10**6)
    await let_expire(scene, first)
    behind = await scene.claim(scene.payer(nonce=b"\x02" * 32, valid_before=scene.now_ms // 1000 + 3_600))
    assert await scene.settlement.settle(behind.order()) == Undecided()
    await behind.set_adrift()
    await wait_and_sweep(scene, 2)
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await behind.read_state() is CallState.CONSUMED
    assert await first.read_state() is CallState.RELEASED
    assert (await scene.book.audit()).is_balanced


async def test_what_can_pay_nothing_any_more_is_replaced_by_nothing(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=10**6)
    await let_expire(scene, call)
    await wait_and_sweep(scene)
    *_, filler = await attempts_of(call)
    sent = parse_sent(filler.raw)
    assert (sent.sender, sent.recipient, sent.calldata, sent.nonce) == (KEY, KEY, b"", 0)
    assert filler.raw in scene.chain.broadcasts
    await wait_and_sweep(scene)
    dearer = parse_sent((await attempts_of(call))[-1].raw)
    assert (dearer.recipient, dearer.calldata) == (KEY, b"")
    assert dearer.max_fee_wei > sent.max_fee_wei


async def test_what_no_node_takes_is_replaced_by_nothing_once_it_is_over(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    scene.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=SendFault.OTHER))
    await let_expire(scene, call)
    await wait_and_sweep(scene)
    filler = parse_sent((await attempts_of(call))[-1].raw)
    assert (filler.recipient, filler.calldata) == (KEY, b"")


async def test_what_could_still_pay_is_offered_more_as_it_is(scene: SettlingScene) -> None:
    """Its call has ended by a transfer that a reorganisation took back: the same transaction pays for it again."""
    scene.chain.is_automining = True
    call = await scene.claim(scene.payer(valid_before=scene.now_ms // 1000 + 3_600))
    assert isinstance(await scene.settlement.settle(call.order()), Settled)
    scene.chain.is_automining = False
    scene.chain.reorg(CHAIN, 1)
    scene.chain.set_fees(CHAIN, base_fee_wei=10**8, tip_wei=10**6)
    await wait_and_sweep(scene)
    first, second = await attempts_of(call)
    assert parse_sent(second.raw).calldata == parse_sent(first.raw).calldata
    scene.chain.mine_sent(CHAIN)
    assert scene.chain.balance(CHAIN, call.authorization.token, call.authorization.payee) == 10_000


async def test_what_a_deep_reorganisation_took_back_is_sent_again_by_a_process_that_never_saw_it(
    scene: SettlingScene,
) -> None:
    scene.chain.is_automining = True
    call = await scene.claim(scene.payer(valid_before=scene.now_ms // 1000 + 3_600))
    assert isinstance(await scene.settlement.settle(call.order()), Settled)
    for _ in range(5):
        await scene.tank.refresh()
    assert await scene.gas.open_attempts(CHAIN, KEY, limit=9) == ()
    scene.chain.is_automining = False
    scene.chain.reorg(CHAIN, 1)
    async with scene.another() as later:
        later.pass_time(10)
        await sweep(later)
        assert len(scene.chain.sent(CHAIN)) == 1


async def test_several_keepers_at_once_offer_the_same(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    async with scene.another("b") as other:
        for one in (scene, other):
            one.pass_time(one.limits.fee_bump_after_s)
            await one.tank.refresh()
        await sweep(scene)
        await sweep(other)
    assert len(await attempts_of(call)) == 2


async def test_a_lane_that_fails_does_not_stop_the_others() -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    async with SettlingScene(limits=HASTY, rules=settlement_rules(gas_keys=keys)) as scene:
        scene.chain.is_automining = False
        for number in range(2):
            scene.tank.lanes(CHAIN)[number].in_flight -= 1  # the least busy
            call = await scene.claim(scene.payer(nonce=keccak256(b"%d" % number)))
            assert await scene.settlement.settle(call.order()) == Undecided()
            scene.tank.lanes(CHAIN)[number].in_flight += 1
        scene.chain.drop_sent(CHAIN)
        scene.pass_time(10)
        open_attempts = scene.gas.open_attempts

        async def fail(chain_id: Any, sender: Any, *, limit: int) -> Any:
            if sender == keys[0].address:
                raise RuntimeError("a bug")
            return await open_attempts(chain_id, sender, limit=limit)

        scene.gas.open_attempts = fail  # type: ignore[method-assign]  # the fake's own hook
        await sweep(scene)
        assert [sent.sender for sent in scene.chain.sent(CHAIN)] == [keys[1].address]


# ---- Lanes that do not move.


async def look_often(scene: SettlingScene) -> None:
    """So many looks as it takes until what does not move is known to be stuck."""
    for _ in range(LOOKS_UNTIL_STUCK + 1):
        await scene.tank.refresh()
        scene.pass_time(scene.limits.gas_refresh_s)
    await scene.tank.refresh()


def long_payer(scene: SettlingScene, number: int = 1) -> Any:
    return scene.payer(nonce=bytes([number]) * 32, valid_before=scene.now_ms // 1000 + 3_600)


def is_offered(scene: SettlingScene) -> bool:
    return scene.tank.is_offered(USDC, 10_000, LISTING)


async def test_a_key_whose_nonces_do_not_move_is_neither_offered_nor_chosen(scene: SettlingScene) -> None:
    first = await leave_adrift(scene, payer=long_payer(scene))
    await look_often(scene)
    assert not is_offered(scene)
    assert scene.tank.choose_lane(CHAIN, is_claimed=True) is None
    late = await leave_adrift(scene, payer=long_payer(scene, 2))
    assert await attempts_of(late) == ()  # it does not queue up behind the first
    scene.chain.mine_sent(CHAIN)
    await scene.tank.refresh()
    assert is_offered(scene)
    await sweep(scene)
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert [await call.read_state() for call in (first, late)] == [CallState.CONSUMED] * 2


async def test_another_key_is_chosen_whose_nonces_move_and_carries_what_waits() -> None:
    keys = (make_gas_key("one"), make_gas_key("two"))
    async with SettlingScene(limits=HASTY, rules=settlement_rules(gas_keys=keys)) as scene:
        scene.chain.is_automining = False
        call = await leave_adrift(scene, payer=long_payer(scene))
        await look_often(scene)
        assert is_offered(scene)
        lane = scene.tank.choose_lane(CHAIN)
        assert lane is not None
        assert lane.key.address == keys[1].address
        assert withdrawn_keys(scene) == 1
        await sweep(scene)
        assert {one.sender for one in await attempts_of(call)} == {key.address for key in keys}
        first, *_ = await attempts_of(call)
        scene.chain.drop_sent(
            CHAIN, *(s.tx_hash for s in scene.chain.sent(CHAIN) if s.sender == first.sender)
        )
        scene.chain.mine_sent(CHAIN)
        await sweep(scene)
        assert await call.read_state() is CallState.CONSUMED


def withdrawn_keys(scene: SettlingScene) -> int:
    """How many rails the latest look counted as withdrawn for want of progress."""
    counts = [note[3] for note in scene.told if note[:3] == ("withdrawn", CHAIN, WithdrawalReason.LANE_STUCK)]
    return int(str(counts[-1]))


async def test_missing_nonces_below_what_waits_are_filled(scene: SettlingScene) -> None:
    """A node once counted two transactions that nobody has sent; a call waits behind them."""
    await scene.gas.raise_nonce(CHAIN, KEY, 2)
    call = await leave_adrift(scene, payer=long_payer(scene))
    assert [one.nonce for one in await attempts_of(call)] == [2]
    await sweep(scene, 3)
    assert [sent.nonce for sent in scene.chain.sent(CHAIN)] == [2]
    await look_often(scene)
    with capture_logs() as lines:
        await sweep(scene, 3)
    assert [line["nonce"] for line in lines if line["event"] == "lane_nonce_filled"] == [0, 1]
    fillers = [one for one in await attempts_of(call) if one.nonce < 2]
    assert [(parse_sent(one.raw).recipient, parse_sent(one.raw).calldata) for one in fillers] == [
        (KEY, b"")
    ] * 2
    assert {one.raw for one in fillers} <= set(scene.chain.broadcasts)
    scene.chain.mine_sent(CHAIN)
    await scene.tank.refresh()
    assert is_offered(scene)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED
    assert (await scene.book.audit()).is_balanced


async def test_a_filler_is_no_attempt_to_settle(scene: SettlingScene) -> None:
    """It is mined and pays nothing, and its call is neither given up nor thought to wait for it."""
    await scene.gas.raise_nonce(CHAIN, KEY, 5)
    call = await leave_adrift(scene, payer=long_payer(scene))
    await look_often(scene)
    await sweep(scene)
    fillers = [one.tx_hash for one in await attempts_of(call) if one.nonce < 5]
    assert len(fillers) == 5
    scene.chain.mine_sent(CHAIN, *fillers)
    scene.chain.drop_sent(CHAIN)
    scene.pass_time(10)
    await sweep(scene, 2)
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_a_lane_that_passed_nonces_for_nothing_goes_back(scene: SettlingScene) -> None:
    await scene.gas.raise_nonce(CHAIN, KEY, 10**9)
    await look_often(scene)
    assert not is_offered(scene)
    await sweep(scene)
    assert await scene.gas.next_nonce(CHAIN, KEY) == 0
    await scene.tank.refresh()
    assert is_offered(scene)
    scene.chain.is_automining = True
    assert isinstance(await scene.settlement.settle((await scene.claim()).order()), Settled)


async def test_a_gap_that_is_too_wide_is_told_and_costs_no_gas(scene: SettlingScene) -> None:
    await scene.gas.raise_nonce(CHAIN, KEY, GAP_MAX + 1)
    call = await leave_adrift(scene, payer=long_payer(scene))
    await look_often(scene)
    with capture_logs() as lines:
        await sweep(scene)
    assert "lane_gap_too_wide" in [line["event"] for line in lines]
    assert len(await attempts_of(call)) == 1


async def test_what_a_stuck_lane_waits_for_goes_to_all_nodes_though_one_knows_it(
    scene: SettlingScene,
) -> None:
    call = await leave_adrift(scene, payer=long_payer(scene))
    (attempt,) = await attempts_of(call)
    scene.chain.resent.clear()
    await sweep(scene, 3)
    assert scene.chain.resent == []
    await look_often(scene)
    await sweep(scene)
    assert attempt.raw in scene.chain.resent


# ---- Gateways that stand still.


async def test_what_another_gateway_signed_and_never_sent_keeps_no_call_waiting() -> None:
    """It stands still between its commit and its broadcast. Whoever waits behind its nonce sends it."""
    limits = replace(HASTY, settle_wait_s=0.4)
    async with SettlingScene(limits=limits) as scene, scene.another("still") as still:
        first = await still.claim(long_payer(still))
        send = scene.chain.send_transaction

        async def stand_still(chain_id: Any, raw: bytes) -> None:
            return None

        scene.chain.send_transaction = stand_still  # type: ignore[assignment]  # the fake's own hook
        scene.chain.resend_transaction = stand_still  # type: ignore[assignment]
        assert await still.settlement.settle(first.order()) == Undecided()
        scene.chain.send_transaction = send  # type: ignore[method-assign]
        del scene.chain.resend_transaction
        second = await scene.claim(long_payer(scene, 2))
        assert isinstance(await scene.settlement.settle(second.order()), Settled)
        assert [one.nonce for one in await attempts_of(second)] == [1]
