"""The early refusal of claims on payments without units: in memory, on SQLite, on PostgreSQL."""

from typing import Any

from tests.kit.ledger_records import NOW_MS, claim_on, close_of
from tests.kit.ledger_steps import pay
from tollway.ledger.ledger import Claimed, Exhausted, InDebt, NonceUsed
from tollway.ledger.records import CallState

NONCE = b"\x07" * 32


async def spend(ledger: Any, payment: Any) -> None:
    claim = claim_on(payment, payment.value_units)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim))


async def test_finds_the_refusal_of_a_spent_payment_without_a_claim(ledger: Any) -> None:
    payment = await pay(ledger, 8)
    asked = claim_on(payment, 4)
    assert await ledger.find_exhausted(asked) is None  # the ledger would grant it
    first = claim_on(payment, 4, nonce=NONCE)
    second = claim_on(payment, 4)
    for claim in (first, second):
        assert isinstance(await ledger.claim(claim), Claimed)
    assert await ledger.find_exhausted(asked) == Exhausted(remaining_units=0, held_units=8)
    await ledger.close(close_of(first))
    assert await ledger.find_exhausted(asked) == Exhausted(remaining_units=0, held_units=4)
    shown_twice = claim_on(payment, 4, nonce=NONCE)
    assert await ledger.find_exhausted(shown_twice) == NonceUsed(
        call_id=first.call_id, state=CallState.CONSUMED
    )
    assert await ledger.find_exhausted(shown_twice) == await ledger.claim(shown_twice)
    assert await ledger.find_exhausted(asked) == await ledger.claim(asked)
    await ledger.close(close_of(second, CallState.RELEASED))
    assert await ledger.find_exhausted(asked) is None
    assert isinstance(await ledger.claim(asked), Claimed)


async def test_decides_nothing_for_a_payer_in_debt(ledger: Any) -> None:
    payment = await pay(ledger, 4)
    await spend(ledger, payment)
    lost = await pay(ledger, 4, "lost", is_final=False)
    await spend(ledger, lost)
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    assert await ledger.find_exhausted(claim_on(payment, 4)) is None
    assert await ledger.claim(claim_on(payment, 4)) == InDebt(units=4)


async def test_decides_nothing_for_a_gone_payment(ledger: Any) -> None:
    payment = await pay(ledger, 4, is_final=False)
    await spend(ledger, payment)
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await ledger.find_exhausted(claim_on(payment, 4)) is None
