"""The contract of `Ledger` for metered calls: the claim takes the maximum, the end of the response decides the price, and the rest goes back."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, finish_of, wait_finished
from tests.kit.ledger_steps import assert_balanced, pay, read_rest, read_state
from tests.kit.storage_faults import FaultyLedger, once
from tests.kit.waits import DEADLINE_S, until
from tollway.ledger.ledger import Claim, Claimed, Closed, Exhausted
from tollway.ledger.records import CallState, Usage
from tollway.money import Price
from tollway.registry.metering import (
    BASE,
    Measured,
    MeteredPart,
    Metering,
    QuantitySource,
    compute_cost,
    write_formulas,
    write_measured,
)
from tollway.storage.engine.database import Database

MAX = 20
"""Units of USDC: 0.00002."""
FORMULA = Metering(
    base=Price.parse("0.000003"),
    absent="max",
    shows_header=True,
    parts=(
        MeteredPart(
            unit="token", unit_price_atto=10**12, per=1, source=QuantitySource(json="/usage/total_tokens")
        ),
    ),
)
"""Three units, and one for each token."""
METERING = write_formulas((FORMULA,))
BASE_UNITS = 3


def usage_of(tokens: int | None) -> Usage:
    measured = Measured((None if tokens is None else (tokens,),))
    cost = compute_cost((FORMULA,), measured, max_units=MAX, decimals=6)
    return Usage(actual_units=cost.units, quantities=write_measured(measured))


def metered_claim(payment: Any, **fields: Any) -> Claim:
    return claim_on(payment, MAX, price="0.00002", metering=METERING, **fields)


async def open_metered(ledger: Any, payment: Any, **fields: Any) -> Claim:
    claim = metered_claim(payment, **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    return claim


async def charge(ledger: Any, claim: Claim, **fields: Any) -> Closed:
    closed = await ledger.close(close_of(claim, is_metered=True, **fields))
    assert isinstance(closed, Closed)
    return closed


async def charged(ledger: Any, payment: Any, **fields: Any) -> Claim:
    """A call whose head has come, and whose body streams."""
    claim = await open_metered(ledger, payment, **fields)
    await charge(ledger, claim)
    return claim


async def end(ledger: Any, claim: Claim, tokens: int | None, **fields: Any) -> None:
    ledger.finish(finish_of(claim, usage=usage_of(tokens), **fields))
    await wait_finished(ledger, claim.call_id)


@pytest.mark.parametrize(
    ("tokens", "taken"),
    [
        pytest.param(0, BASE_UNITS, id="an explicit 0 is a value"),
        pytest.param(5, 8, id="below the maximum"),
        pytest.param(17, MAX, id="at the maximum"),
        pytest.param(10**17, MAX, id="above the maximum"),
        pytest.param(None, MAX, id="absent"),
    ],
)
@pytest.mark.parametrize("is_at_the_head", [True, False])
async def test_the_end_of_the_response_decides_the_price(
    ledger: Any, tokens: int | None, taken: int, *, is_at_the_head: bool
) -> None:
    payment = await pay(ledger, 100)
    claim = await open_metered(ledger, payment)
    assert await read_rest(ledger) == 100 - MAX
    usage = usage_of(tokens)
    if is_at_the_head:
        closed = await charge(ledger, claim, finish=finish_of(claim, usage=usage))
        assert closed.remaining_units == 100 - taken
    else:
        closed = await charge(ledger, claim)
        assert closed.remaining_units == 100 - MAX
        record = await ledger.find_call(claim.call_id)
        assert (record.is_unmeasured, record.due_units) == (True, MAX)
        await assert_balanced(ledger)
        await end(ledger, claim, tokens)
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.is_unmeasured) == (CallState.CONSUMED, False)
    assert (record.price_units, record.actual_units, record.due_units) == (MAX, taken, taken)
    assert (record.metering, record.quantities) == (METERING, usage.quantities)
    assert record.response_bytes == 1000
    assert await read_rest(ledger) == 100 - taken
    await assert_balanced(ledger)


async def test_a_call_that_does_not_cost_takes_nothing(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await open_metered(ledger, payment)
    await ledger.close(close_of(claim, CallState.RELEASED, is_metered=True))
    assert await read_rest(ledger) == 100
    await assert_balanced(ledger)


async def test_the_rest_goes_first_to_the_newest_payment_that_helped(ledger: Any) -> None:
    proof = await pay(ledger, 6, "proof", block_number=103)
    await pay(ledger, 7, "older", block_number=101)
    await pay(ledger, 9, "newer", block_number=102)
    claim = await charged(ledger, proof)
    rests = [await read_rest(ledger, name) for name in ("proof", "older", "newer")]
    assert rests == [0, 0, 2]
    await end(ledger, claim, 7)  # 10 of 20 units
    rests = [await read_rest(ledger, name) for name in ("proof", "older", "newer")]
    assert rests == [0, 3, 9]
    await assert_balanced(ledger)


async def test_a_price_is_written_once(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await charged(ledger, payment)
    await end(ledger, claim, 5)
    ledger.finish(finish_of(claim, usage=usage_of(0), response_bytes=7))
    await charged(ledger, payment)  # a claim behind it
    record = await ledger.find_call(claim.call_id)
    assert record.actual_units == 8
    await assert_balanced(ledger)


async def test_a_finish_of_an_earlier_run_changes_no_price(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await open_metered(ledger, payment)
    await ledger.close(close_of(claim, CallState.UNKNOWN, upstream_status=None, is_metered=True))
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    ledger.finish(finish_of(claim, usage=usage_of(0)))
    await ledger.close(close_of(claim, epoch=2, is_metered=True))
    await end(ledger, claim, 4, epoch=2)
    assert (await ledger.find_call(claim.call_id)).actual_units == 7
    await assert_balanced(ledger)


async def test_a_repeat_of_a_cut_response_keeps_the_price_of_the_first_run(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await charged(ledger, payment)
    base = Usage(actual_units=BASE_UNITS, quantities=write_measured(BASE))
    await ledger.finish_cut(finish_of(claim, is_cut=True, usage=base))
    assert await read_rest(ledger) == 100 - BASE_UNITS
    assert (await ledger.find_open_call(payment.id, claim.digest)).actual_units == BASE_UNITS
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await ledger.close(close_of(claim, epoch=2, is_metered=True))
    await end(ledger, claim, 17, epoch=2)
    assert (await ledger.find_call(claim.call_id)).actual_units == BASE_UNITS
    assert await read_rest(ledger) == 100 - BASE_UNITS
    await assert_balanced(ledger)


async def test_a_claim_that_a_difference_could_pay_is_not_asked_for_money(ledger: Any) -> None:
    payment = await pay(ledger, MAX)
    claim = await charged(ledger, payment)
    refused = await ledger.claim(metered_claim(payment))
    assert refused == Exhausted(remaining_units=0, held_units=MAX)
    await end(ledger, claim, 0)
    refused = await ledger.claim(metered_claim(payment))
    assert refused == Exhausted(remaining_units=MAX - BASE_UNITS, held_units=0)


async def test_a_debt_falls_with_the_price(ledger: Any) -> None:
    payment = await pay(ledger, 100, is_final=False)
    claim = await charged(ledger, payment)
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == MAX
    assert await read_state(ledger, claim) is CallState.REORGED
    await assert_balanced(ledger)
    await end(ledger, claim, 1)
    assert [debt.units for debt in await ledger.debts(payment.payer)] == [BASE_UNITS + 1]
    await assert_balanced(ledger)
    await pay(ledger, 9, "again")
    assert await read_state(ledger, claim) is CallState.CONSUMED
    assert await read_rest(ledger, "again") == 9 - BASE_UNITS - 1
    await assert_balanced(ledger)


async def test_a_debt_without_a_price_left_is_none(ledger: Any) -> None:
    proof = await pay(ledger, 6, "proof", block_number=103, is_final=False)
    await pay(ledger, 15, "helped", block_number=101)
    claim = await charged(ledger, proof)
    await ledger.mark_gone(proof.id, now_ms=NOW_MS)
    assert await read_state(ledger, claim) is CallState.REORGED
    await end(ledger, claim, 7)  # 10 units, and the other payment holds 14
    assert await read_state(ledger, claim) is CallState.CONSUMED
    assert await read_rest(ledger, "helped") == 5
    assert await ledger.debts(proof.payer) == ()
    await assert_balanced(ledger)


async def test_what_a_provider_charges_without_a_response_is_the_base(ledger: Any) -> None:
    payment = await pay(ledger, 100)
    claim = await open_metered(ledger, payment)
    await ledger.close(close_of(claim, CallState.UNKNOWN, upstream_status=None, is_metered=True))
    assert await read_rest(ledger) == 100 - MAX
    resolved = await ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS)
    assert resolved is CallState.CONSUMED
    assert await read_rest(ledger) == 100 - BASE_UNITS
    await assert_balanced(ledger)


async def test_a_response_of_a_dead_gateway_takes_the_base(ledgers: Any) -> None:
    ledger, other = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await charged(ledger, await pay(ledger, 100))
    await ledgers.bury("one")
    await other.recover(now_ms=NOW_MS)
    record = await other.find_call(claim.call_id)
    assert (record.state, record.actual_units) == (CallState.CONSUMED, BASE_UNITS)
    assert await read_rest(other) == 100 - BASE_UNITS
    await assert_balanced(other)


# ---- What only a database can lose.


async def test_a_streaming_response_is_not_recovered_by_its_own_gateway(faulty_ledger: FaultyLedger) -> None:
    ledger = faulty_ledger.ledger
    claim = await charged(ledger, await faulty_ledger.pay(100))
    await ledger.recover(now_ms=NOW_MS)
    assert (await ledger.find_call(claim.call_id)).is_unmeasured
    await end(ledger, claim, 5)
    assert (await ledger.find_call(claim.call_id)).actual_units == 8


async def test_a_usage_waits_for_a_database_that_is_away(database: Database) -> None:
    faulty = FaultyLedger(database, retry_s=0.01)
    await faulty.ledger.open()
    claim = await charged(faulty.ledger, await faulty.pay(100))
    faulty.database.is_away = True
    faulty.ledger.finish(finish_of(claim, usage=usage_of(5)))
    await until(faulty.ledger._group_commit.has_late)
    faulty.reconnect()
    await wait_finished(faulty.ledger, claim.call_id)
    assert (await faulty.ledger.find_call(claim.call_id)).actual_units == 8
    await faulty.close()


async def test_a_usage_whose_commit_lost_its_answer_is_written_once(database: Database) -> None:
    faulty = FaultyLedger(database, retry_s=0.01)
    await faulty.ledger.open()
    claim = await charged(faulty.ledger, await faulty.pay(100))
    faulty.database.fail_after = faulty.disconnect_after_commit
    faulty.ledger.finish(finish_of(claim, usage=usage_of(5)))
    await until(faulty.ledger._group_commit.has_late)
    faulty.reconnect()
    await until(lambda: not faulty.ledger._group_commit.has_late())
    assert await read_rest(faulty.ledger) == 92
    await assert_balanced(faulty.ledger)
    await faulty.close()


@pytest.mark.parametrize("is_at_the_head", [True, False])
async def test_a_close_whose_commit_lost_its_answer_returns_what_is_left(
    database: Database, is_at_the_head: bool
) -> None:
    faulty = FaultyLedger(database, retry_s=0.01, patience_s=60.0)
    await faulty.ledger.open()
    claim = await open_metered(faulty.ledger, await faulty.pay(100))
    finish = finish_of(claim, usage=usage_of(5))
    faulty.database.fail_after = once()
    closed = await charge(faulty.ledger, claim, finish=finish if is_at_the_head else None)
    assert closed.remaining_units == (92 if is_at_the_head else 100 - MAX)
    faulty.ledger.finish(finish)
    await faulty.ledger.wait_closed(timeout_s=DEADLINE_S)
    await wait_finished(faulty.ledger, claim.call_id)
    assert await read_rest(faulty.ledger) == 92
    await faulty.close()


async def test_many_ends_of_one_payment_are_one_sum(faulty_ledger: FaultyLedger) -> None:
    ledger = faulty_ledger.ledger
    payment = await faulty_ledger.pay(100 * MAX)
    claims = [await charged(ledger, payment) for _ in range(50)]
    for number, claim in enumerate(claims):
        ledger.finish(finish_of(claim, usage=usage_of(number % 20)))
    await asyncio.gather(*(wait_finished(ledger, claim.call_id) for claim in claims))
    taken = sum(min(MAX, BASE_UNITS + number % 20) for number in range(50))
    assert await read_rest(ledger) == 100 * MAX - taken


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("UPDATE call SET quantities = '[[6]]'", "took 8, and its formula gives 9"),
        ("UPDATE call SET actual_units = 7, quantities = '[[4]]'", "at 7 and holds 8"),
        ("UPDATE call SET quantities = '[]'", "took 8, and its formula gives 3"),
    ],
)
async def test_the_audit_computes_each_price_again(database: Database, statement: str, line: str) -> None:
    faulty = FaultyLedger(database)
    await faulty.ledger.open()
    claim = await charged(faulty.ledger, await faulty.pay(100))
    await end(faulty.ledger, claim, 5)
    await database.write(lambda c: c.execute(text(statement)))
    wrong = (await faulty.ledger.audit()).wrong
    assert any(line in one for one in wrong), wrong
    await faulty.close()


async def test_the_call_of_another_price_has_terms_of_its_own(faulty_ledger: FaultyLedger) -> None:
    payment = await faulty_ledger.pay(100)
    claims = [
        await open_metered(faulty_ledger.ledger, payment),
        claim_on(payment, MAX, price="0.00002"),
        replace(metered_claim(payment), metering=write_formulas((replace(FORMULA, absent="base"),))),
    ]
    for claim in claims[1:]:
        assert isinstance(await faulty_ledger.ledger.claim(claim), Claimed)
    found = [await faulty_ledger.ledger.find_call(claim.call_id) for claim in claims]
    assert [one.metering for one in found] == [one.metering for one in claims]
    assert [one.quantities for one in found] == ["", None, ""]
