"""The contract of `Finality` for transfers that a reorganisation moved to another transaction."""

import asyncio
from typing import Any

import pytest

from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    new_payment,
    operator_origin,
    transfer_in,
    tx_hash,
)
from tests.kit.ledger_steps import assert_balanced, read_state
from tollway.ids import Address
from tollway.ledger.ledger import Claimed, Closed, NotCovered
from tollway.ledger.records import CallState, PaymentState


async def settled(ledger: Any, price_units: int = 4, name: str = "settled", **fields: Any) -> Any:
    """A call whose authorisation was settled in that transaction; a POST without a response, so the payment is
    credit."""
    claim = authorized_claim(authorization_of(price_units), **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.settle(close_of(claim, CallState.SETTLING), attempt=None, digest=None)
    is_orphaned = claim.method == "POST"
    if is_orphaned:
        await ledger.mark_orphaned(claim.call_id, epoch=1)
    ends = await ledger.conclude(
        claim.call_id, epoch=1, transfer=transfer_in(name), is_orphaned=is_orphaned, now_ms=NOW_MS
    )
    assert ends is (CallState.RELEASED if is_orphaned else CallState.CONSUMED)
    return claim


async def move_transfer(ledger: Any, claim: Any, to: str = "elsewhere", **fields: Any) -> Any:
    before = fields.pop("before", "settled")
    transfer = transfer_in(to, **{"block_number": 105, "block_hash": b"\x09" * 32, **fields})
    return await ledger.move_transfer(claim.call_id, before=tx_hash(before), transfer=transfer, now_ms=NOW_MS)


async def payment(ledger: Any, name: str) -> Any:
    (found,) = await ledger.find_payments(tx_hash(name))
    return found


async def balance(ledger: Any, name: str) -> tuple[int, int]:
    found = await payment(ledger, name)
    return (found.value_units, found.taken_units)


@pytest.mark.parametrize("is_final", [False, True])
async def test_a_call_stays_paid_when_its_units_move_to_another_payment(ledger: Any, is_final: bool) -> None:
    claim = await settled(ledger)
    assert await move_transfer(ledger, claim, is_final=is_final) is True
    there = await payment(ledger, "elsewhere")
    assert (there.value_units, there.taken_units, there.calls, there.is_authorized) == (4, 4, 1, True)
    assert there.state is (PaymentState.FINAL if is_final else PaymentState.UNFINAL)
    assert (there.block_number, there.block_hash) == (105, b"\x09" * 32)
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.tx_hash) == (CallState.CONSUMED, tx_hash("elsewhere"))
    assert (await ledger.find_authorized_call(claim.authorization.key)).transfer == tx_hash("elsewhere")
    assert await ledger.spending_calls(there.id, limit=9) == (claim.call_id,)
    left = await payment(ledger, "settled")
    assert (left.value_units, left.taken_units) == (0, 0)
    assert await ledger.mark_gone(left.id, now_ms=NOW_MS) == 0
    assert (await read_state(ledger, claim), await ledger.debts(PAYER)) == (CallState.CONSUMED, ())
    await assert_balanced(ledger)


async def test_a_debt_ends_when_another_payment_covers_it(ledger: Any) -> None:
    claim = await settled(ledger)
    await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS)
    assert [debt.units for debt in await ledger.debts(PAYER)] == [4]
    assert await move_transfer(ledger, claim) is True
    assert (await read_state(ledger, claim), await ledger.debts(PAYER)) == (CallState.CONSUMED, ())
    assert await balance(ledger, "elsewhere") == (4, 4)
    (back,) = await ledger.record_payments([new_payment(4, "settled")], now_ms=NOW_MS)
    assert (back.value_units, back.remaining_units) == (0, 0)  # units that moved away do not count twice
    await assert_balanced(ledger)


async def test_what_was_paid_twice_because_of_it_is_credit(ledger: Any) -> None:
    claim = await settled(ledger)
    await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS)
    await ledger.record_payments([new_payment(4, "the debt")], now_ms=NOW_MS)
    assert (await read_state(ledger, claim), await ledger.debts(PAYER)) == (CallState.CONSUMED, ())
    assert await move_transfer(ledger, claim) is True
    assert (await balance(ledger, "elsewhere"), await balance(ledger, "the debt")) == ((4, 0), (4, 4))
    assert isinstance(await ledger.claim(claim_on(await payment(ledger, "elsewhere"), 4)), Claimed)
    await assert_balanced(ledger)


async def test_an_older_debt_of_the_account_is_paid_first(ledger: Any) -> None:
    (lost,) = await ledger.record_payments([new_payment(3, "lost", is_final=False)], now_ms=NOW_MS)
    owing = claim_on(lost, 3)
    await ledger.claim(owing)
    await ledger.close(close_of(owing))
    claim = await settled(ledger)
    for name in ("lost", "settled"):
        await ledger.mark_gone((await payment(ledger, name)).id, now_ms=NOW_MS)
    assert await move_transfer(ledger, claim) is True
    assert (await read_state(ledger, owing), await read_state(ledger, claim)) == (
        CallState.CONSUMED,
        CallState.REORGED,
    )
    assert [debt.units for debt in await ledger.debts(PAYER)] == [3]
    await assert_balanced(ledger)


async def test_credit_moves_with_the_authorisation_that_it_came_from(ledger: Any) -> None:
    claim = await settled(ledger, method="POST")
    spent = claim_on(await payment(ledger, "settled"), 3)
    await ledger.claim(spent)
    await ledger.close(close_of(spent))
    assert await move_transfer(ledger, claim) is True
    assert await balance(ledger, "elsewhere") == (4, 3)
    assert await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS) == 0
    assert (await read_state(ledger, claim), await read_state(ledger, spent)) == (
        CallState.RELEASED,
        CallState.CONSUMED,
    )
    assert await ledger.spending_calls((await payment(ledger, "elsewhere")).id, limit=9) == (spent.call_id,)
    assert isinstance(await ledger.claim(claim_on(await payment(ledger, "elsewhere"), 1)), Claimed)
    await assert_balanced(ledger)


async def test_credit_that_was_gone_pays_for_what_it_had_bought(ledger: Any) -> None:
    claim = await settled(ledger, method="POST")
    spent = claim_on(await payment(ledger, "settled"), 3)
    await ledger.claim(spent)
    await ledger.close(close_of(spent))
    assert await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS) == 3
    assert await move_transfer(ledger, claim) is True
    assert (await read_state(ledger, spent), await ledger.debts(PAYER)) == (CallState.CONSUMED, ())
    assert await balance(ledger, "elsewhere") == (4, 3)
    await assert_balanced(ledger)


async def test_only_the_own_part_of_a_transaction_moves(ledger: Any) -> None:
    """Any sender may put several authorisations into one transaction, and only some of them into the next one."""
    first, second, credit = (
        await settled(ledger, 4),
        await settled(ledger, 3),
        await settled(ledger, 2, method="POST"),
    )
    spent = claim_on(await payment(ledger, "settled"), 1)
    await ledger.claim(spent)
    assert await move_transfer(ledger, first) is True
    assert (await balance(ledger, "settled"), await balance(ledger, "elsewhere")) == ((5, 4), (4, 4))
    assert await move_transfer(ledger, credit, "third") is True
    assert (await balance(ledger, "settled"), await balance(ledger, "third")) == ((3, 3), (2, 1))
    await assert_balanced(ledger)
    assert await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS) == 3
    assert (await read_state(ledger, first), await read_state(ledger, second)) == (
        CallState.CONSUMED,
        CallState.REORGED,
    )
    assert await ledger.close(close_of(spent)) == Closed(remaining_units=0)
    await assert_balanced(ledger)


async def test_two_that_meet_in_one_transaction_are_one_payment(ledger: Any) -> None:
    first, second = await settled(ledger, 4), await settled(ledger, 3, "another")
    assert await move_transfer(ledger, first) is True
    assert await move_transfer(ledger, second, before="another") is True
    there = await payment(ledger, "elsewhere")
    assert (there.value_units, there.taken_units, there.calls) == (7, 7, 2)
    assert set(await ledger.spending_calls(there.id, limit=9)) == {first.call_id, second.call_id}
    await assert_balanced(ledger)


async def test_what_is_sorted_out_may_be_moved_back(ledger: Any) -> None:
    claim = await settled(ledger)
    assert await move_transfer(ledger, claim) is True
    await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS)
    assert await move_transfer(ledger, claim, "settled", before="elsewhere", block_number=106) is True
    back = await payment(ledger, "settled")
    assert (back.state, back.block_number, back.value_units, back.taken_units) == (
        PaymentState.UNFINAL,
        106,
        4,
        4,
    )
    assert await ledger.mark_gone((await payment(ledger, "elsewhere")).id, now_ms=NOW_MS) == 0
    assert (await read_state(ledger, claim), await balance(ledger, "elsewhere")) == (
        CallState.CONSUMED,
        (0, 0),
    )
    await assert_balanced(ledger)


async def test_a_call_that_runs_again_during_a_move_keeps_its_own_end(ledger: Any) -> None:
    claim = authorized_claim(authorization_of(4))
    await ledger.claim(claim)
    await ledger.settle(close_of(claim, CallState.SETTLING), attempt=None, digest=None)
    await ledger.mark_orphaned(claim.call_id, epoch=1)
    await ledger.conclude(claim.call_id, epoch=1, transfer=transfer_in(), is_orphaned=True, now_ms=NOW_MS)
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    assert await move_transfer(ledger, claim) is True
    assert (await balance(ledger, "elsewhere"), await read_state(ledger, claim)) == (
        (4, 4),
        CallState.FORWARDING,
    )
    await ledger.mark_gone((await payment(ledger, "settled")).id, now_ms=NOW_MS)
    assert await ledger.close(close_of(claim, epoch=2)) == Closed(remaining_units=0)
    assert (await read_state(ledger, claim), await ledger.debts(PAYER)) == (CallState.CONSUMED, ())
    await assert_balanced(ledger)


async def test_a_balance_that_was_seen_before_it_moved_there_does_not_count_it_again(ledger: Any) -> None:
    claim = await settled(ledger)  # in block 101
    await move_transfer(ledger, claim)  # in block 105
    stale = authorized_claim(authorization_of(4), balance_units=4, block_number=104)
    assert await ledger.claim(stale) == NotCovered(held_units=4)
    fresh = authorized_claim(authorization_of(4), balance_units=4, block_number=105)
    assert isinstance(await ledger.claim(fresh), Claimed)


async def test_what_is_held_after_a_restore_stays_held(ledger: Any) -> None:
    claim = await settled(ledger, method="POST")
    await ledger.mark_restored(origin=operator_origin())
    assert await move_transfer(ledger, claim) is True
    assert (await payment(ledger, "elsewhere")).is_held
    await ledger.release_held(origin=operator_origin())
    assert not (await payment(ledger, "elsewhere")).is_held


async def test_a_transfer_that_the_ledger_does_not_know_changes_nothing(ledger: Any) -> None:
    claim, open_claim = await settled(ledger), authorized_claim(authorization_of(4))
    await ledger.claim(open_claim)
    stranger = authorized_claim(authorization_of(4))
    assert await move_transfer(ledger, claim, before="another") is False
    assert await move_transfer(ledger, claim, "settled") is False
    assert await move_transfer(ledger, open_claim) is False
    assert await move_transfer(ledger, stranger) is False
    assert await balance(ledger, "settled") == (4, 4)
    assert await ledger.find_payments(tx_hash("elsewhere")) == ()
    await assert_balanced(ledger)


async def test_one_of_many_concurrent_moves_succeeds(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await settled(one)
    outcomes = await asyncio.gather(*(move_transfer(ledger, claim) for ledger in (one, two) * 5))
    assert sorted(outcomes) == [False] * 9 + [True]
    assert await balance(one, "elsewhere") == (4, 4)
    await assert_balanced(one)


async def test_moves_and_claims_that_race_keep_the_balance(ledgers: Any) -> None:
    """One gateway spends credit while another moves its transfer."""
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await settled(one, 20, method="POST")
    place = await payment(one, "settled")

    async def spend() -> None:
        spent = claim_on(place, 1)
        if isinstance(await one.claim(spent), Claimed):
            assert isinstance(await one.close(close_of(spent)), Closed)

    await asyncio.gather(
        *(spend() for _ in range(10)), move_transfer(two, claim), *(spend() for _ in range(10))
    )
    there, left = await balance(one, "elsewhere"), await balance(one, "settled")
    assert (there[0], left) == (20, (0, 0))
    await assert_balanced(one)


async def test_names_the_authorisations_that_made_a_payment(ledger: Any) -> None:
    first, second = await settled(ledger, 4), await settled(ledger, 3, method="POST")
    place = await payment(ledger, "settled")
    await ledger.claim(claim_on(place, 1))
    other = authorized_claim(
        authorization_of(4, payer=Address(b"\x03" * 20))
    )  # another payment in the same block
    await ledger.claim(other)
    await ledger.settle(close_of(other, CallState.SETTLING), attempt=None, digest=None)
    await ledger.conclude(other.call_id, epoch=1, transfer=transfer_in(), is_orphaned=False, now_ms=NOW_MS)
    found = await ledger.authorizations_in(place.id, limit=9)
    assert [one.call_id for one in found] == [first.call_id, second.call_id]
    assert found[0].authorization == first.authorization
    assert [one.call_id for one in await ledger.authorizations_in(place.id, limit=1)] == [first.call_id]
    await move_transfer(ledger, first)
    assert [one.call_id for one in await ledger.authorizations_in(place.id, limit=9)] == [second.call_id]
    there = await payment(ledger, "elsewhere")
    assert [one.call_id for one in await ledger.authorizations_in(there.id, limit=9)] == [first.call_id]
    assert await ledger.authorizations_in(999, limit=9) == ()
