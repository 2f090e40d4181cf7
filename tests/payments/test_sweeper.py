"""The sweeper on the twins: what it finishes, what it leaves, and that several of them do no harm."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tollway.chain.reader import SendFault, SendRefused
from tollway.identifiers import Address
from tollway.ledger.call import CallState
from tollway.payments.settlement import Settled, Undecided
from tollway.payments.settlement_signing import read_offer
from tollway.testing.authorization_samples import CHAIN
from tollway.testing.settling_scene import HASTY, ClaimedCall, SettlingScene, make_gas_key, settlement_rules

ELSEWHERE = Address(b"\xee" * 20)


@pytest.fixture
async def scene() -> AsyncIterator[SettlingScene]:
    async with SettlingScene(limits=HASTY) as scene:
        scene.chain.is_automining = False
        yield scene


async def leave_adrift(scene: SettlingScene, **given: object) -> ClaimedCall:
    """Signed, broadcast, not mined by the deadline, and nobody waits any more."""
    call = await scene.claim(**given)  # type: ignore[arg-type]  # fields of a claim
    assert await scene.settlement.settle(call.order()) == Undecided()
    assert await call.set_adrift()
    return call


async def sweep(scene: SettlingScene, times: int = 1) -> None:
    for _ in range(times):
        await scene.sweeper.run_once()


async def test_what_was_mined_meanwhile_is_concluded(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED
    assert (await scene.book.audit()).is_balanced


async def test_what_is_not_deep_enough_waits() -> None:
    async with SettlingScene(limits=HASTY, confirmations=((0, 2),)) as scene:
        scene.chain.is_automining = False
        call = await leave_adrift(scene)
        scene.chain.mine_sent(CHAIN)
        await sweep(scene)
        assert await call.read_state() is CallState.SETTLING
        scene.chain.bury(CHAIN, 1)
        await sweep(scene)
        assert await call.read_state() is CallState.CONSUMED


async def test_a_transaction_that_no_node_knows_is_sent_again(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    await sweep(scene)
    assert len(set(scene.chain.broadcasts)) == 1
    assert len(scene.chain.sent(CHAIN)) == 1
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_what_had_to_be_sent_again_is_not_offered_more_at_once(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    scene.pass_time(scene.limits.fee_bump_after_s)
    await scene.tank.refresh()
    await sweep(scene)
    assert len(await scene.book.attempts_of(call.claim.call_id)) == 1


async def test_a_call_without_a_transaction_gets_one(scene: SettlingScene) -> None:
    call = await scene.claim()
    scene.chain.take_away(CHAIN)
    assert await scene.settlement.settle(call.order()) == Undecided()
    await call.set_adrift()
    await sweep(scene)
    assert await scene.book.attempts_of(call.claim.call_id) == ()
    scene.chain.bring_back(CHAIN)
    await sweep(scene)
    (attempt,) = await scene.book.attempts_of(call.claim.call_id)
    assert attempt.raw in scene.chain.broadcasts
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_whoever_landed_it_paid(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    call.land()
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_a_nonce_used_otherwise_is_released(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    call.land(payee=ELSEWHERE)
    await sweep(scene)
    assert await call.read_state() is CallState.RELEASED


async def test_nothing_is_released_before_its_time_and_then_at_depth_only() -> None:
    async with SettlingScene(limits=HASTY, confirmations=((0, 3),)) as scene:
        scene.chain.is_automining = False
        payer = scene.payer()
        scene.chain.doom_transfer(CHAIN, payer.address, payer.nonce)
        call = await scene.claim(payer)
        assert await scene.settlement.settle(call.order()) == Undecided()
        await call.set_adrift()
        scene.chain.mine_sent(CHAIN)
        scene.chain.mine(CHAIN, time=payer.valid_before - 1)
        await sweep(scene, 3)
        assert await call.read_state() is CallState.SETTLING
        scene.chain.mine(CHAIN, time=payer.valid_before)
        await sweep(scene, 3)  # expired, but not deep enough
        assert await call.read_state() is CallState.SETTLING
        scene.chain.bury(CHAIN, 2)
        await sweep(scene)
        assert await call.read_state() is CallState.RELEASED
        assert (await scene.book.audit()).is_balanced


async def test_expiry_is_believed_at_a_second_look_only(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    scene.chain.mine(CHAIN, time=call.authorization.valid_before)
    await sweep(scene)
    assert await call.read_state() is CallState.SETTLING
    await sweep(scene)
    assert await call.read_state() is CallState.RELEASED


async def test_one_that_landed_in_the_last_block_before_its_end_is_paid(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.mine_sent(CHAIN)
    scene.chain.mine(CHAIN, time=call.authorization.valid_before + 100)
    await sweep(scene, 2)
    assert await call.read_state() is CallState.CONSUMED


async def test_a_chain_away_changes_nothing(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.take_away(CHAIN)
    await sweep(scene, 3)
    assert await call.read_state() is CallState.SETTLING


async def test_a_transaction_that_waits_too_long_is_offered_more(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.pass_time(scene.limits.fee_bump_after_s)
    await scene.tank.refresh()
    await sweep(scene)
    first, second = await scene.book.attempts_of(call.claim.call_id)
    assert first.nonce == second.nonce
    before, after = read_offer(first)[0], read_offer(second)[0]
    assert after.max_fee_wei * 8 >= before.max_fee_wei * 9
    assert after.tip_wei * 8 >= before.tip_wei * 9
    assert [sent.tx_hash for sent in scene.chain.sent(CHAIN)] == [second.tx_hash]
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_one_that_no_node_takes_at_its_price_is_offered_more(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    scene.chain.set_fees(CHAIN, base_fee_wei=10**9, tip_wei=10**6)
    await sweep(scene)
    assert len(await scene.book.attempts_of(call.claim.call_id)) == 1
    scene.pass_time(scene.limits.fee_bump_after_s)
    await scene.tank.refresh()
    await sweep(scene)
    first, second = await scene.book.attempts_of(call.claim.call_id)
    assert first.nonce == second.nonce
    assert [sent.tx_hash for sent in scene.chain.sent(CHAIN)] == [second.tx_hash]


async def test_one_that_waits_for_another_of_its_lane_is_not_offered_more(scene: SettlingScene) -> None:
    first, second = await scene.claim_many(2)
    for call in (first, second):
        assert await scene.settlement.settle(call.order()) == Undecided()
        await call.set_adrift()
    scene.pass_time(scene.limits.fee_bump_after_s)
    await scene.tank.refresh()
    await sweep(scene)
    assert len(await scene.book.attempts_of(first.claim.call_id)) == 2
    assert len(await scene.book.attempts_of(second.claim.call_id)) == 1


async def test_what_a_node_knows_is_not_sent_again(scene: SettlingScene) -> None:
    await leave_adrift(scene)
    scene.pass_time(10)
    sent = len(scene.chain.broadcasts)
    await sweep(scene, 3)
    assert len(scene.chain.broadcasts) == sent


async def test_a_fee_is_raised_only_so_often_and_never_above_the_ceiling() -> None:
    rules = settlement_rules(gas_price_max_wei=22 * 10**6)  # the first offer is 21 million
    async with SettlingScene(limits=HASTY, rules=rules) as scene:
        scene.chain.is_automining = False
        call = await leave_adrift(scene)
        for _ in range(5):
            scene.pass_time(scene.limits.fee_bump_after_s)
            await scene.tank.refresh()
            await sweep(scene)
        assert len(await scene.book.attempts_of(call.claim.call_id)) == 1
    async with SettlingScene(limits=HASTY) as scene:
        scene.chain.is_automining = False
        call = await leave_adrift(scene)
        for _ in range(scene.limits.settlement_attempts_max + 3):
            scene.pass_time(scene.limits.fee_bump_after_s)
            await scene.tank.refresh()
            await sweep(scene)
        attempts = await scene.book.attempts_of(call.claim.call_id)
        assert len(attempts) == scene.limits.settlement_attempts_max


async def test_a_transfer_that_keeps_reverting_is_not_paid_for_again_and_again(scene: SettlingScene) -> None:
    payer = scene.payer()
    scene.chain.doom_transfer(CHAIN, payer.address, payer.nonce)
    scene.chain.is_automining = True
    call = await scene.claim(payer)
    assert await scene.settlement.settle(call.order()) == Undecided()
    await call.set_adrift()
    await sweep(scene, 5)
    assert len(await scene.book.attempts_of(call.claim.call_id)) == 2


async def test_one_that_reverted_by_chance_is_tried_once_more(scene: SettlingScene) -> None:
    payer = scene.payer()
    scene.chain.is_automining = True
    scene.chain.doom_transfer(CHAIN, payer.address, payer.nonce)
    call = await scene.claim(payer)
    assert await scene.settlement.settle(call.order()) == Undecided()
    await call.set_adrift()
    scene.chain.spare_transfer(CHAIN, payer.address, payer.nonce)
    await sweep(scene, 2)
    assert await call.read_state() is CallState.CONSUMED


async def test_a_nonce_lost_to_a_stranger_is_signed_under_the_next(scene: SettlingScene) -> None:
    """Somebody used the gas key elsewhere: what was signed can never be mined."""
    call = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    async with SettlingScene(chain=scene.chain) as elsewhere:
        scene.chain.is_automining = True
        stranger = await elsewhere.claim(elsewhere.payer(nonce=b"\x55" * 32))
        assert isinstance(await elsewhere.settlement.settle(stranger.order()), Settled)
    await scene.tank.refresh()
    await sweep(scene, 2)
    attempts = await scene.book.attempts_of(call.claim.call_id)
    assert [attempt.nonce for attempt in attempts] == [0, 1]
    assert await call.read_state() is CallState.CONSUMED


async def test_a_hole_in_a_lane_is_filled_though_its_own_call_is_decided(scene: SettlingScene) -> None:
    first = await leave_adrift(scene)
    scene.chain.drop_sent(CHAIN)
    first.land()
    await sweep(scene)
    assert await first.read_state() is CallState.CONSUMED
    scene.pass_time(10)
    await sweep(scene)
    assert len(scene.chain.sent(CHAIN)) == 1
    assert make_gas_key().address == scene.chain.sent(CHAIN)[0].sender


async def test_several_sweepers_at_once_move_a_call_once(scene: SettlingScene) -> None:
    call = await leave_adrift(scene)
    async with scene.another("b") as b, scene.another("c") as c:
        scene.chain.mine_sent(CHAIN)
        await asyncio.gather(*(one.sweeper.run_once() for one in (scene, b, c)))
    assert await call.read_state() is CallState.CONSUMED
    assert (await scene.book.audit()).is_balanced
    (attempt,) = await scene.book.attempts_of(call.claim.call_id)
    (payment,) = await scene.book.find_payments(attempt.tx_hash)
    assert payment.value_units == payment.taken_units == 10_000


async def test_a_call_that_somebody_waits_for_is_not_touched(scene: SettlingScene) -> None:
    call = await scene.claim()
    assert await scene.settlement.settle(call.order()) == Undecided()
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.SETTLING


async def test_nobody_came_back_for_an_undecided_one_so_it_goes_adrift(scene: SettlingScene) -> None:
    call = await scene.claim()
    assert await scene.settlement.settle(call.order()) == Undecided()
    scene.chain.mine_sent(CHAIN)
    await scene.settlement.mend()
    await sweep(scene)
    assert await call.read_state() is CallState.SETTLING
    scene.pass_time(301)
    await scene.settlement.mend()
    await sweep(scene)
    assert await call.read_state() is CallState.CONSUMED


async def test_an_unsafe_call_without_an_answer_becomes_credit(scene: SettlingScene) -> None:
    call = await leave_adrift(scene, method="POST")
    scene.chain.mine_sent(CHAIN)
    await sweep(scene)
    assert await call.read_state() is CallState.RELEASED
    (attempt,) = await scene.book.attempts_of(call.claim.call_id)
    (payment,) = await scene.book.find_payments(attempt.tx_hash)
    assert (payment.value_units, payment.taken_units) == (10_000, 0)


async def test_one_call_that_cannot_be_looked_at_does_not_stop_the_others(scene: SettlingScene) -> None:
    bad, good = await scene.claim_many(2)
    for call in (bad, good):
        assert await scene.settlement.settle(call.order()) == Undecided()
        await call.set_adrift()
    scene.chain.mine_sent(CHAIN)
    attempts_of = scene.book.attempts_of

    async def fail(call_id: object) -> object:
        if call_id == bad.claim.call_id:
            raise RuntimeError("a bug")
        return await attempts_of(call_id)  # type: ignore[arg-type]  # a call's id

    scene.book.attempts_of = fail  # type: ignore[method-assign,assignment]  # the fake's own hook
    await sweep(scene)
    assert await good.read_state() is CallState.CONSUMED
    assert await bad.read_state() is CallState.SETTLING


async def test_a_key_without_money_leaves_the_call_for_later() -> None:
    async with SettlingScene(limits=HASTY) as scene:
        scene.chain.refuse_sends(CHAIN, SendRefused(reason="no", fault=SendFault.INSUFFICIENT_FUNDS))
        call = await leave_adrift(scene)
        await sweep(scene)
        scene.chain.refuse_sends(CHAIN, None)
        await sweep(scene, 2)
        assert await call.read_state() is CallState.CONSUMED


async def test_one_look_takes_so_many_and_all_have_their_turn() -> None:
    async with SettlingScene(limits=replace(HASTY, sweep_batch_max=2)) as scene:
        scene.chain.is_automining = False
        calls = await scene.claim_many(3)
        for call in calls:
            assert await scene.settlement.settle(call.order()) == Undecided()
            await call.set_adrift()
        scene.chain.mine_sent(CHAIN)
        await sweep(scene)
        assert [await call.read_state() for call in calls].count(CallState.CONSUMED) == 2
        await sweep(scene)
        assert [await call.read_state() for call in calls].count(CallState.CONSUMED) == 3


async def test_no_more_than_a_few_calls_are_looked_at_together() -> None:
    async with SettlingScene(limits=replace(HASTY, sweep_in_flight_max=2)) as scene:
        scene.chain.is_automining = False
        for call in await scene.claim_many(6):
            await scene.settlement.settle(call.order())
            await call.set_adrift()
        attempts_of, together, most = scene.book.attempts_of, 0, 0

        async def count(call_id: object) -> object:
            nonlocal together, most
            together += 1
            most = max(most, together)
            await asyncio.sleep(0)
            together -= 1
            return await attempts_of(call_id)  # type: ignore[arg-type]  # a call's id

        scene.book.attempts_of = count  # type: ignore[method-assign,assignment]  # the fake's own hook
        await sweep(scene)
        assert most == 2
