"""What every keeper of the books promises about money that a reorganisation moved to another transaction."""

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
    transfer_in,
    tx_hash,
)
from tollway.identifiers import Address
from tollway.ledger.book import Claimed, Closed, NotCovered
from tollway.ledger.call import CallState, PaymentState


async def settled(book: Any, price_units: int = 4, name: str = "settled", **fields: Any) -> Any:
    """A call whose authorisation moved its money in that transaction; a POST got no answer, so it is credit."""
    claim = authorized_claim(authorization_of(price_units), **fields)
    assert isinstance(await book.claim(claim), Claimed)
    await book.settle(close_of(claim, CallState.SETTLING), attempt=None, digest=None)
    is_adrift = claim.method == "POST"
    if is_adrift:
        await book.set_adrift(claim.call_id, epoch=1)
    ends = await book.conclude(
        claim.call_id, epoch=1, transfer=transfer_in(name), is_adrift=is_adrift, now_ms=NOW_MS
    )
    assert ends is (CallState.RELEASED if is_adrift else CallState.CONSUMED)
    return claim


async def relocate(book: Any, claim: Any, to: str = "elsewhere", **fields: Any) -> Any:
    before = fields.pop("before", "settled")
    transfer = transfer_in(to, **{"block_number": 105, "block_hash": b"\x09" * 32, **fields})
    return await book.relocate(claim.call_id, before=tx_hash(before), transfer=transfer, now_ms=NOW_MS)


async def payment(book: Any, name: str) -> Any:
    (found,) = await book.find_payments(tx_hash(name))
    return found


async def balance(book: Any, name: str) -> tuple[int, int]:
    found = await payment(book, name)
    return (found.value_units, found.taken_units)


async def state(book: Any, claim: Any) -> CallState:
    found: CallState = (await book.find_call(claim.call_id)).state
    return found


async def assert_balanced(book: Any) -> None:
    assert (await book.audit()).wrong == ()


@pytest.mark.parametrize("is_final", [False, True])
async def test_a_call_stays_paid_where_its_money_is_now(book: Any, is_final: bool) -> None:
    claim = await settled(book)
    assert await relocate(book, claim, is_final=is_final) is True
    there = await payment(book, "elsewhere")
    assert (there.value_units, there.taken_units, there.calls, there.is_authorized) == (4, 4, 1, True)
    assert there.state is (PaymentState.FINAL if is_final else PaymentState.UNFINAL)
    assert (there.block_number, there.block_hash) == (105, b"\x09" * 32)
    record = await book.find_call(claim.call_id)
    assert (record.state, record.tx_hash) == (CallState.CONSUMED, tx_hash("elsewhere"))
    assert (await book.find_authorized(claim.authorization.key)).transfer == tx_hash("elsewhere")
    assert await book.spending_calls(there.id, limit=9) == (claim.call_id,)
    left = await payment(book, "settled")
    assert (left.value_units, left.taken_units) == (0, 0)
    assert await book.mark_gone(left.id, now_ms=NOW_MS) == 0
    assert (await state(book, claim), await book.debts(PAYER)) == (CallState.CONSUMED, ())
    await assert_balanced(book)


async def test_a_debt_ends_when_the_money_is_found_elsewhere(book: Any) -> None:
    claim = await settled(book)
    await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS)
    assert [debt.units for debt in await book.debts(PAYER)] == [4]
    assert await relocate(book, claim) is True
    assert (await state(book, claim), await book.debts(PAYER)) == (CallState.CONSUMED, ())
    assert await balance(book, "elsewhere") == (4, 4)
    (back,) = await book.record_payments([new_payment(4, "settled")], now_ms=NOW_MS)
    assert (back.value_units, back.rest_units) == (0, 0)  # what moved away is not there twice
    await assert_balanced(book)


async def test_what_was_paid_twice_because_of_it_is_credit(book: Any) -> None:
    claim = await settled(book)
    await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS)
    await book.record_payments([new_payment(4, "the debt")], now_ms=NOW_MS)
    assert (await state(book, claim), await book.debts(PAYER)) == (CallState.CONSUMED, ())
    assert await relocate(book, claim) is True
    assert (await balance(book, "elsewhere"), await balance(book, "the debt")) == ((4, 0), (4, 4))
    assert isinstance(await book.claim(claim_on(await payment(book, "elsewhere"), 4)), Claimed)
    await assert_balanced(book)


async def test_an_older_debt_of_the_purse_is_paid_first(book: Any) -> None:
    (lost,) = await book.record_payments([new_payment(3, "lost", is_final=False)], now_ms=NOW_MS)
    owing = claim_on(lost, 3)
    await book.claim(owing)
    await book.close(close_of(owing))
    claim = await settled(book)
    for name in ("lost", "settled"):
        await book.mark_gone((await payment(book, name)).id, now_ms=NOW_MS)
    assert await relocate(book, claim) is True
    assert (await state(book, owing), await state(book, claim)) == (CallState.CONSUMED, CallState.REORGED)
    assert [debt.units for debt in await book.debts(PAYER)] == [3]
    await assert_balanced(book)


async def test_credit_goes_along_with_what_was_bought_for_it(book: Any) -> None:
    claim = await settled(book, method="POST")
    spent = claim_on(await payment(book, "settled"), 3)
    await book.claim(spent)
    await book.close(close_of(spent))
    assert await relocate(book, claim) is True
    assert await balance(book, "elsewhere") == (4, 3)
    assert await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS) == 0
    assert (await state(book, claim), await state(book, spent)) == (CallState.RELEASED, CallState.CONSUMED)
    assert await book.spending_calls((await payment(book, "elsewhere")).id, limit=9) == (spent.call_id,)
    assert isinstance(await book.claim(claim_on(await payment(book, "elsewhere"), 1)), Claimed)
    await assert_balanced(book)


async def test_credit_that_was_gone_pays_for_what_it_had_bought(book: Any) -> None:
    claim = await settled(book, method="POST")
    spent = claim_on(await payment(book, "settled"), 3)
    await book.claim(spent)
    await book.close(close_of(spent))
    assert await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS) == 3
    assert await relocate(book, claim) is True
    assert (await state(book, spent), await book.debts(PAYER)) == (CallState.CONSUMED, ())
    assert await balance(book, "elsewhere") == (4, 3)
    await assert_balanced(book)


async def test_only_its_own_part_of_a_transaction_goes_along(book: Any) -> None:
    """Anybody may put several authorisations into one transaction, and only some of them into the next."""
    first, second, credit = (
        await settled(book, 4),
        await settled(book, 3),
        await settled(book, 2, method="POST"),
    )
    spent = claim_on(await payment(book, "settled"), 1)
    await book.claim(spent)
    assert await relocate(book, first) is True
    assert (await balance(book, "settled"), await balance(book, "elsewhere")) == ((5, 4), (4, 4))
    assert await relocate(book, credit, "third") is True
    assert (await balance(book, "settled"), await balance(book, "third")) == ((3, 3), (2, 1))
    await assert_balanced(book)
    assert await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS) == 3
    assert (await state(book, first), await state(book, second)) == (CallState.CONSUMED, CallState.REORGED)
    assert await book.close(close_of(spent)) == Closed(rest_units=0)
    await assert_balanced(book)


async def test_two_that_meet_in_one_transaction_are_one_payment(book: Any) -> None:
    first, second = await settled(book, 4), await settled(book, 3, "another")
    assert await relocate(book, first) is True
    assert await relocate(book, second, before="another") is True
    there = await payment(book, "elsewhere")
    assert (there.value_units, there.taken_units, there.calls) == (7, 7, 2)
    assert set(await book.spending_calls(there.id, limit=9)) == {first.call_id, second.call_id}
    await assert_balanced(book)


async def test_what_is_sorted_out_may_be_moved_back(book: Any) -> None:
    claim = await settled(book)
    assert await relocate(book, claim) is True
    await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS)
    assert await relocate(book, claim, "settled", before="elsewhere", block_number=106) is True
    back = await payment(book, "settled")
    assert (back.state, back.block_number, back.value_units, back.taken_units) == (
        PaymentState.UNFINAL,
        106,
        4,
        4,
    )
    assert await book.mark_gone((await payment(book, "elsewhere")).id, now_ms=NOW_MS) == 0
    assert (await state(book, claim), await balance(book, "elsewhere")) == (CallState.CONSUMED, (0, 0))
    await assert_balanced(book)


async def test_a_call_that_runs_again_meanwhile_ends_as_it_ends(book: Any) -> None:
    claim = authorized_claim(authorization_of(4))
    await book.claim(claim)
    await book.settle(close_of(claim, CallState.SETTLING), attempt=None, digest=None)
    await book.set_adrift(claim.call_id, epoch=1)
    await book.conclude(claim.call_id, epoch=1, transfer=transfer_in(), is_adrift=True, now_ms=NOW_MS)
    assert isinstance(await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    assert await relocate(book, claim) is True
    assert (await balance(book, "elsewhere"), await state(book, claim)) == ((4, 4), CallState.FORWARDING)
    await book.mark_gone((await payment(book, "settled")).id, now_ms=NOW_MS)
    assert await book.close(close_of(claim, epoch=2)) == Closed(rest_units=0)
    assert (await state(book, claim), await book.debts(PAYER)) == (CallState.CONSUMED, ())
    await assert_balanced(book)


async def test_a_balance_that_was_seen_before_it_moved_there_does_not_count_it_again(book: Any) -> None:
    claim = await settled(book)  # in block 101
    await relocate(book, claim)  # in block 105
    stale = authorized_claim(authorization_of(4), balance_units=4, block_number=104)
    assert await book.claim(stale) == NotCovered(held_units=4)
    fresh = authorized_claim(authorization_of(4), balance_units=4, block_number=105)
    assert isinstance(await book.claim(fresh), Claimed)


async def test_what_is_held_after_a_restore_stays_held(book: Any) -> None:
    claim = await settled(book, method="POST")
    await book.note_restored(now_ms=NOW_MS)
    assert await relocate(book, claim) is True
    assert (await payment(book, "elsewhere")).is_held
    await book.release_held()
    assert not (await payment(book, "elsewhere")).is_held


async def test_what_the_books_do_not_know_there_changes_nothing(book: Any) -> None:
    claim, open_claim = await settled(book), authorized_claim(authorization_of(4))
    await book.claim(open_claim)
    stranger = authorized_claim(authorization_of(4))
    assert await relocate(book, claim, before="another") is False
    assert await relocate(book, claim, "settled") is False
    assert await relocate(book, open_claim) is False
    assert await relocate(book, stranger) is False
    assert await balance(book, "settled") == (4, 4)
    assert await book.find_payments(tx_hash("elsewhere")) == ()
    await assert_balanced(book)


async def test_one_of_many_who_see_it_moves_it(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await settled(one)
    outcomes = await asyncio.gather(*(relocate(book, claim) for book in (one, two) * 5))
    assert sorted(outcomes) == [False] * 9 + [True]
    assert await balance(one, "elsewhere") == (4, 4)
    await assert_balanced(one)


async def test_moves_and_claims_that_race_keep_the_balance(books: Any) -> None:
    """Credit is spent at one gateway while another finds that it lies elsewhere."""
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await settled(one, 20, method="POST")
    place = await payment(one, "settled")

    async def spend() -> None:
        spent = claim_on(place, 1)
        if isinstance(await one.claim(spent), Claimed):
            assert isinstance(await one.close(close_of(spent)), Closed)

    await asyncio.gather(*(spend() for _ in range(10)), relocate(two, claim), *(spend() for _ in range(10)))
    there, left = await balance(one, "elsewhere"), await balance(one, "settled")
    assert (there[0], left) == (20, (0, 0))
    await assert_balanced(one)


async def test_names_the_authorisations_that_made_a_payment(book: Any) -> None:
    first, second = await settled(book, 4), await settled(book, 3, method="POST")
    place = await payment(book, "settled")
    await book.claim(claim_on(place, 1))
    other = authorized_claim(authorization_of(4, payer=Address(b"\x03" * 20)))  # another payment in it
    await book.claim(other)
    await book.settle(close_of(other, CallState.SETTLING), attempt=None, digest=None)
    await book.conclude(other.call_id, epoch=1, transfer=transfer_in(), is_adrift=False, now_ms=NOW_MS)
    found = await book.authorizations_in(place.id, limit=9)
    assert [one.call_id for one in found] == [first.call_id, second.call_id]
    assert found[0].authorization == first.authorization
    assert [one.call_id for one in await book.authorizations_in(place.id, limit=1)] == [first.call_id]
    await relocate(book, first)
    assert [one.call_id for one in await book.authorizations_in(place.id, limit=9)] == [second.call_id]
    there = await payment(book, "elsewhere")
    assert [one.call_id for one in await book.authorizations_in(there.id, limit=9)] == [first.call_id]
    assert await book.authorizations_in(999, limit=9) == ()
