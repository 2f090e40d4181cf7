"""What is asked of a payment that has nothing left, before anybody dials for it: in memory, on SQLite, on PostgreSQL."""

from typing import Any

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, new_payment
from tollway.ledger.book import Claimed, Exhausted, InDebt, NonceUsed
from tollway.ledger.call import CallState

NONCE = b"\x07" * 32


async def paid(book: Any, value_units: int, name: str = "tx", **fields: Any) -> Any:
    (payment,) = await book.record_payments([new_payment(value_units, name, **fields)], now_ms=NOW_MS)
    return payment


async def spend(book: Any, payment: Any) -> None:
    claim = claim_on(payment, payment.value_units)
    assert isinstance(await book.claim(claim), Claimed)
    await book.close(close_of(claim))


async def test_tells_without_a_claim_what_a_spent_payment_would_answer(book: Any) -> None:
    payment = await paid(book, 8)
    asked = claim_on(payment, 4)
    assert await book.find_spent(asked) is None  # the books would grant it
    first = claim_on(payment, 4, nonce=NONCE)
    second = claim_on(payment, 4)
    for claim in (first, second):
        assert isinstance(await book.claim(claim), Claimed)
    assert await book.find_spent(asked) == Exhausted(rest_units=0, held_units=8)
    await book.close(close_of(first))
    assert await book.find_spent(asked) == Exhausted(rest_units=0, held_units=4)
    shown_twice = claim_on(payment, 4, nonce=NONCE)
    assert await book.find_spent(shown_twice) == NonceUsed(call_id=first.call_id, state=CallState.CONSUMED)
    assert await book.find_spent(shown_twice) == await book.claim(shown_twice)
    assert await book.find_spent(asked) == await book.claim(asked)
    await book.close(close_of(second, CallState.RELEASED))
    assert await book.find_spent(asked) is None
    assert isinstance(await book.claim(asked), Claimed)


async def test_what_a_debtor_is_told_is_left_to_his_claim(book: Any) -> None:
    payment = await paid(book, 4)
    await spend(book, payment)
    lost = await paid(book, 4, "lost", is_final=False)
    await spend(book, lost)
    await book.mark_gone(lost.id, now_ms=NOW_MS)
    assert await book.find_spent(claim_on(payment, 4)) is None
    assert await book.claim(claim_on(payment, 4)) == InDebt(units=4)


async def test_what_is_told_of_a_payment_that_is_gone_is_left_to_the_claim(book: Any) -> None:
    payment = await paid(book, 4, is_final=False)
    await spend(book, payment)
    await book.mark_gone(payment.id, now_ms=NOW_MS)
    assert await book.find_spent(claim_on(payment, 4)) is None
