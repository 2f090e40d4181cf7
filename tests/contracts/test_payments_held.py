"""Credit that a small payment would complete, while that payment is held: it is there, so no caller is asked for it again."""

from typing import Any

import pytest

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, operator_origin
from tests.kit.ledger_steps import pay
from tests.kit.payer import has_terms
from tests.kit.storage_faults import open_faulty_gateways
from tollway.ids import Address
from tollway.ledger.ledger import Claimed, Exhausted, Unspendable
from tollway.ledger.records import CallState
from tollway.storage.engine.database import Database

UNFINAL = {"is_final": False}


SIBLINGS: list[tuple[list[tuple[int, bool]], Exhausted | None]] = [
    ([(4, True)], Exhausted(remaining_units=6, held_units=4, is_payment_held=True)),
    ([(2, True), (2, True)], Exhausted(remaining_units=6, held_units=4, is_payment_held=True)),
    ([(2, True), (2, False)], Exhausted(remaining_units=8, held_units=2, is_payment_held=True)),
    # More is missing than is held: the payer sends what is missing.
    ([(3, True)], Exhausted(remaining_units=6)),
    # A prepayment of its own completes no other.
    ([(10, True)], Exhausted(remaining_units=6)),
    ([(2, False), (2, False)], None),
    ([(2, False), (9, True), (2, False)], None),
]
"""Value of each other payment and whether it is held -> the refusal of a price of 10 on a payment of 6."""


async def test_held_siblings_that_complete_the_price_are_held_units(ledger: Any) -> None:
    for number, (siblings, refusal) in enumerate(SIBLINGS, start=1):
        account = {"payer": Address(bytes([number]) * 20)}
        shown = await pay(ledger, 6, f"{number} shown", **account)
        others = [
            await pay(ledger, value, f"{number} sibling {place}", **account, **UNFINAL)
            for place, (value, _) in enumerate(siblings)
        ]
        held = [other.id for other, (_, is_held) in zip(others, siblings, strict=True) if is_held]
        await ledger.hold_disputed(held)
        outcome = await ledger.claim(claim_on(shown, 10))
        assert isinstance(outcome, Claimed) if refusal is None else outcome == refusal, siblings
        assert (await ledger.audit()).wrong == ()


async def test_a_held_sibling_completes_the_price_once_it_is_free(ledger: Any) -> None:
    shown, other = await pay(ledger, 6), await pay(ledger, 4, "other", **UNFINAL)
    await ledger.hold_disputed([other.id])
    assert isinstance(await ledger.claim(claim_on(shown, 10)), Exhausted)
    await ledger.free_disputed([other.id])
    assert isinstance(await ledger.claim(claim_on(shown, 10)), Claimed)


async def test_a_sibling_that_left_its_chain_is_not_held(ledger: Any) -> None:
    shown, other = await pay(ledger, 6), await pay(ledger, 4, "other", **UNFINAL)
    await ledger.hold_disputed([other.id])
    await ledger.mark_gone(other.id, now_ms=NOW_MS)
    assert await ledger.claim(claim_on(shown, 10)) == Exhausted(remaining_units=6)


async def test_a_held_sibling_whose_plain_form_ended_is_none_for_a_plain_signature(ledger: Any) -> None:
    shown, other = await pay(ledger, 6), await pay(ledger, 5, "other", **UNFINAL)
    await ledger.claim(bound := claim_on(other, 1, ends_plain=True))
    await ledger.close(close_of(bound))
    await ledger.hold_disputed([other.id])
    assert await ledger.claim(claim_on(shown, 10, is_plain=True)) == Exhausted(remaining_units=6)
    assert await ledger.claim(claim_on(shown, 10)) == Exhausted(
        remaining_units=6, held_units=4, is_payment_held=True
    )


async def test_units_that_a_call_holds_are_held_units_beside_those_of_a_sibling(ledger: Any) -> None:
    shown, other = await pay(ledger, 8), await pay(ledger, 5, "other", **UNFINAL)
    await ledger.claim(running := claim_on(shown, 3))
    await ledger.close(close_of(running, CallState.UNKNOWN, http_status=None, upstream_status=None))
    await ledger.hold_disputed([other.id])
    assert await ledger.claim(claim_on(shown, 10)) == Exhausted(
        remaining_units=5, held_units=8, is_payment_held=True
    )


async def test_after_a_restore_the_claimed_payment_is_held_itself(ledger: Any) -> None:
    shown = await pay(ledger, 6)
    await pay(ledger, 4, "other")
    await ledger.mark_restored(origin=operator_origin())
    assert await ledger.claim(claim_on(shown, 10)) == Unspendable(is_held=True)


@pytest.mark.parametrize("presented", [0, 1])
async def test_no_caller_is_asked_for_what_is_held(database: Database, presented: int) -> None:
    """Whichever of the two payments the caller presents."""
    async with open_faulty_gateways(database, ["one"]) as (one,):
        gateway = one.gateway
        payments = [await gateway.pay(6_000)]
        new = gateway.sample_payment(value_units=4_000, is_final=False)
        payments += await gateway.ledger.record_payments([new], now_ms=gateway.now_ms)
        await one.ledger.hold_disputed([payments[1].id])
        answer = await gateway.ask(headers=gateway.plain_proof(payments[presented].tx_hash))
        assert (answer.status, answer.problem["code"]) == (409, "payment_held")
        assert answer.problem["paymentState"] == "held"
        assert not has_terms(answer)
        await one.ledger.free_disputed([payments[1].id])
        assert (await gateway.ask(headers=gateway.plain_proof(payments[0].tx_hash))).status == 200
