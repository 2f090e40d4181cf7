"""The contract of `Ledger`: in memory, on SQLite, on PostgreSQL."""

import asyncio
from dataclasses import fields, replace
from typing import Any

import pytest
from sqlalchemy import String

from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    USDC,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    tx_hash,
    wait_finished,
)
from tests.kit.ledger_steps import assert_balanced, pay, read_rest, read_state
from tests.model.rows import Debt
from tollway.ids import Address
from tollway.ledger.claims import TEXT_LENGTH_MAX
from tollway.ledger.ledger import (
    Claim,
    Claimed,
    Closed,
    Exhausted,
    Fenced,
    InDebt,
    NonceUsed,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.records import TAKING, CallState, Delivery, OpenCall, PaymentState, Rail
from tollway.ledger.refunds import CallsRefunded
from tollway.limits import Limits
from tollway.storage.ledger.ledger_tables import call_table, call_terms_table

HOUR_MS = 3_600_000
NONCE = b"\x07" * 32


async def bring(ledger: Any, payment: Any, to: CallState, price_units: int = 4) -> Any:
    """Makes a call in that state."""
    claim = claim_on(payment, price_units)
    assert isinstance(await ledger.claim(claim), Claimed)
    if to is CallState.REORGED:
        await ledger.close(close_of(claim))
        await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    elif to is not CallState.FORWARDING:
        await ledger.close(close_of(claim, to))
    assert await read_state(ledger, claim) is to
    return claim


# Payments


async def test_records_a_payment_once(ledger: Any) -> None:
    first = await pay(ledger, 10)
    again = await pay(ledger, 10)
    assert first == again
    assert await ledger.find_payments(tx_hash("tx")) == (first,)
    assert (first.value_units, first.taken_units, first.state) == (10, 0, PaymentState.FINAL)


OTHER_ACCOUNTS: list[dict[str, Any]] = [
    {"chain_id": 1},
    {"asset": "native"},
    {"payer": Address(b"\x01" * 20)},
    {"payee": Address(b"\x02" * 20)},
]


async def test_every_part_of_the_key_makes_another_payment(ledger: Any) -> None:
    payments = [new_payment(10), *(new_payment(5, **other) for other in OTHER_ACCOUNTS)]
    recorded = await ledger.record_payments(payments, now_ms=NOW_MS)
    assert [one.value_units for one in recorded] == [10, 5, 5, 5, 5]
    assert len(await ledger.find_payments(tx_hash("tx"))) == 5


async def test_refuses_an_amount_that_no_balance_holds(ledger: Any) -> None:
    for units in (-1, 2**63):
        with pytest.raises(ValueError, match="2\\^63"):
            await pay(ledger, units)
    payment = await pay(ledger, 2**63 - 1)
    for units in (-1, 2**63):
        with pytest.raises(ValueError, match="2\\^63"):
            await ledger.claim(claim_on(payment, units))
    assert isinstance(await ledger.claim(claim_on(payment, 2**63 - 1)), Claimed)


BEYOND_A_ROW: list[tuple[dict[str, Any], str]] = [
    ({"call_id": "c" * 65}, "call_id"),
    ({"listing_id": "a" * 65}, "listing_id"),
    ({"method": "M" * 33}, "method"),
    ({"price": "1" * 41}, "price"),
    ({"currency": "C" * 33}, "currency"),
    ({"asset": "0x" + "a" * 41}, "asset"),
    ({"request_id": "r" * 129}, "request_id"),
    ({"listing_name": "a\0b"}, "listing_name"),
    ({"path": "/a\0b"}, "path"),
    ({"path": "/\ud800"}, "path"),
    ({"idempotency_key": "\0"}, "idempotency_key"),
    ({"decimals": 2**31}, "decimals"),
    ({"created_ms": 2**63}, "moment"),
    ({"chain_id": 2**63}, "chain"),
]


async def test_refuses_a_claim_that_no_row_holds(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    for changes, named in BEYOND_A_ROW:
        with pytest.raises(ValueError, match=named):
            await ledger.claim(claim_on(payment, **changes))
        assert await ledger.find_payments(payment.tx_hash) == (payment,), named
    assert isinstance(await ledger.claim(claim_on(payment, method="M" * 32, path="/" + "a" * 4_000)), Claimed)
    await assert_balanced(ledger)


def test_the_texts_of_a_claim_have_the_length_of_their_columns() -> None:
    filled = {field.name for field in fields(Claim)} | {"id"}
    texts = {
        {"id": "call_id"}.get(column.name, column.name): getattr(column.type, "length", None)
        for column in (*call_table.columns, *call_terms_table.columns)
        if isinstance(column.type, String) and column.name in filled
    }
    assert texts == TEXT_LENGTH_MAX


# Claims


async def test_a_claim_takes_the_price_and_opens_the_call(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    claim = claim_on(payment, 4, nonce=NONCE, idempotency_key="key")
    assert await ledger.claim(claim) == Claimed(epoch=1, remaining_units=6, rail=Rail.TX)
    assert await ledger.claim(claim_on(payment, 4)) == Claimed(epoch=1, remaining_units=2, rail=Rail.CREDIT)
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.rail, record.tx_hash) == (CallState.FORWARDING, Rail.TX, payment.tx_hash)
    assert (record.price_units, record.payer, record.idempotency_key) == (4, PAYER, "key")
    await assert_balanced(ledger)


async def test_a_free_call_takes_nothing(ledger: Any) -> None:
    claim = claim_on(None)
    assert await ledger.claim(claim) == Claimed(epoch=1, remaining_units=0, rail=Rail.NONE)
    assert await ledger.close(close_of(claim)) == Closed(remaining_units=None)
    assert await read_state(ledger, claim) is CallState.CONSUMED


async def test_a_refused_claim_leaves_no_row(ledger: Any) -> None:
    payment = await pay(ledger, 3)
    claim = claim_on(payment, 4)
    assert await ledger.claim(claim) == Exhausted(remaining_units=3)
    assert await ledger.find_call(claim.call_id) is None
    assert await read_rest(ledger) == 3


async def test_an_unknown_payment_buys_nothing(ledger: Any) -> None:
    payment = await pay(ledger, 3)
    assert await ledger.claim(claim_on(replace(payment, id=99))) == Unspendable(is_held=False)
    stranger = claim_on(payment, payer=Address(b"\x09" * 20))
    assert await ledger.claim(stranger) == Unspendable(is_held=False)


@pytest.mark.parametrize("worth", [1, 10])
async def test_fifty_callers_get_what_the_payment_is_worth(ledger: Any, worth: int) -> None:
    payment = await pay(ledger, worth)
    outcomes = await asyncio.gather(*(ledger.claim(claim_on(payment)) for _ in range(50)))
    assert sum(isinstance(one, Claimed) for one in outcomes) == worth
    assert sum(one == Exhausted(remaining_units=0, held_units=worth) for one in outcomes) == 50 - worth
    assert await read_rest(ledger) == 0
    await assert_balanced(ledger)


async def test_a_refused_claim_does_not_stop_a_cheaper_one(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    outcomes = await asyncio.gather(*(ledger.claim(claim_on(payment, price)) for price in (8, 5, 2)))
    assert [isinstance(one, Claimed) for one in outcomes] == [True, False, True]
    assert isinstance(outcomes[1], Exhausted)
    assert outcomes[1].remaining_units == 2
    await assert_balanced(ledger)


async def test_a_nonce_counts_once_unless_its_call_was_released(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    first, second, third = (claim_on(payment, nonce=NONCE) for _ in range(3))
    assert isinstance(await ledger.claim(first), Claimed)
    assert await ledger.claim(second) == NonceUsed(call_id=first.call_id, state=CallState.FORWARDING)
    await ledger.close(close_of(first, CallState.RELEASED))
    assert isinstance(await ledger.claim(second), Claimed)
    await ledger.close(close_of(second, CallState.UNKNOWN))
    assert await ledger.claim(third) == NonceUsed(call_id=second.call_id, state=CallState.UNKNOWN)
    assert await read_rest(ledger) == 9


async def test_a_nonce_counts_once_among_claims_at_the_same_moment(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    outcomes = await asyncio.gather(*(ledger.claim(claim_on(payment, nonce=NONCE)) for _ in range(5)))
    assert [type(one) for one in outcomes] == [Claimed] + [NonceUsed] * 4
    other = await pay(ledger, 10, "other")
    assert isinstance(await ledger.claim(claim_on(other, nonce=NONCE)), Claimed)


async def test_a_bound_signature_ends_the_plain_form(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    assert isinstance(await ledger.claim(claim_on(payment, is_plain=True)), Claimed)
    assert isinstance(await ledger.claim(claim_on(payment, ends_plain=True)), Claimed)
    assert await ledger.claim(claim_on(payment, is_plain=True)) == PlainEnded()
    (payment,) = await ledger.find_payments(payment.tx_hash)
    assert (payment.is_plain_ended, payment.remaining_units) == (True, 8)


async def test_a_refused_bound_claim_does_not_end_the_plain_form(ledger: Any) -> None:
    payment = await pay(ledger, 1)
    assert await ledger.claim(claim_on(payment, 5, ends_plain=True)) == Exhausted(remaining_units=1)
    assert isinstance(await ledger.claim(claim_on(payment, is_plain=True)), Claimed)


# Siblings: (values of the payments, price, shown) -> what each has left, or None when refused, and what was there
SIBLINGS = [
    ((6, 4), 10, 0, (0, 0)),
    ((6, 4), 10, 1, (0, 0)),
    ((6, 5), 10, 0, (0, 1)),
    ((6, 3), 10, 0, 9),
    ((6, 10), 10, 0, 6),  # the other payment could pay a call alone
    ((2, 3, 4, 9), 10, 3, (1, 3, 4, 0)),  # oldest first
    ((10, 3), 10, 0, (0, 3)),  # nothing is missing, so the other payment stays unchanged
]


async def test_the_difference_comes_from_small_siblings_oldest_first(ledger: Any) -> None:
    for number, row in enumerate(SIBLINGS, start=1):
        values, price, shown, expected = row
        names = [f"tx {number} {place}" for place in range(len(values))]
        account = {"payer": Address(bytes([number]) * 20)}
        payments = [
            await pay(ledger, value, name, block_number=100 + place, **account)
            for place, (value, name) in enumerate(zip(values, names, strict=True))
        ]
        claim = claim_on(payments[shown], price)
        outcome = await ledger.claim(claim)
        rests = tuple([await read_rest(ledger, name) for name in names])
        if isinstance(expected, int):
            assert (outcome, rests) == (Exhausted(remaining_units=expected), values), row
        else:
            assert isinstance(outcome, Claimed), row
            assert (outcome.remaining_units, rests) == (rests[shown], expected), row
        await assert_balanced(ledger)
        await ledger.close(close_of(claim, CallState.RELEASED))
        assert tuple([await read_rest(ledger, name) for name in names]) == values, row
        await assert_balanced(ledger)


async def test_only_payments_of_the_same_account_add_to_a_price(ledger: Any) -> None:
    payment = await pay(ledger, 6)
    for number, other in enumerate(OTHER_ACCOUNTS):
        await pay(ledger, 4, f"other {number}", **other)
    assert await ledger.claim(claim_on(payment, 10)) == Exhausted(remaining_units=6)


async def test_a_spent_payment_is_not_repaired(ledger: Any) -> None:
    payment = await pay(ledger, 1)
    await pay(ledger, 3, "other")
    await ledger.claim(claim_on(payment, 1))
    assert await ledger.claim(claim_on(payment, 2)) == Exhausted(remaining_units=0, held_units=1)


async def test_an_exhausted_claim_gets_the_units_that_calls_without_an_outcome_hold(ledger: Any) -> None:
    held_units = {
        CallState.FORWARDING: 4,
        CallState.UNKNOWN: 4,
        CallState.CONSUMED: 0,
        CallState.RELEASED: 0,
    }
    for number, (before, units) in enumerate(held_units.items(), start=1):
        payment = await pay(ledger, 5, before, payer=Address(bytes([number]) * 20))
        await bring(ledger, payment, before)
        outcome = await ledger.claim(claim_on(payment, 10))
        assert outcome == Exhausted(remaining_units=await read_rest(ledger, before), held_units=units), before


async def test_held_units_include_those_of_calls_on_other_payments(ledger: Any) -> None:
    payment, other = await pay(ledger, 6), await pay(ledger, 7, "other")
    assert isinstance(await ledger.claim(claim_on(other, 10)), Claimed)
    assert await ledger.claim(claim_on(payment, 5)) == Exhausted(remaining_units=3, held_units=3)


async def test_a_plain_signature_does_not_open_a_sibling_that_ended_its_plain_form(ledger: Any) -> None:
    payment, other = await pay(ledger, 6), await pay(ledger, 5, "other")
    await ledger.claim(claim_on(other, 1, ends_plain=True))
    assert await ledger.claim(claim_on(payment, 10, is_plain=True)) == Exhausted(remaining_units=6)
    assert isinstance(await ledger.claim(claim_on(payment, 10)), Claimed)


async def test_many_short_claims_share_the_siblings_without_overspending(ledger: Any) -> None:
    payments = [await pay(ledger, 7, f"tx{n}") for n in range(10)]
    outcomes = await asyncio.gather(*(ledger.claim(claim_on(one, 10)) for one in payments * 2))
    assert sum(isinstance(one, Claimed) for one in outcomes) == 7
    await assert_balanced(ledger)


async def test_unfinal_value_is_limited_per_payer(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one", unfinal_max_nano={"USDC": 5_000})
    first = await pay(ledger, 10, "a", is_final=False)
    second = await pay(ledger, 10, "b", is_final=False)
    final = await pay(ledger, 10, "c")
    stranger = await pay(ledger, 10, "d", is_final=False, payer=Address(b"\x01" * 20))
    assert isinstance(await ledger.claim(claim_on(first, 3)), Claimed)
    assert await ledger.claim(claim_on(second, 3)) == UnfinalLimit()
    assert isinstance(await ledger.claim(claim_on(second, 2)), Claimed)
    assert await ledger.claim(claim_on(first, 1)) == UnfinalLimit()
    assert isinstance(await ledger.claim(claim_on(final, 9)), Claimed)
    assert isinstance(await ledger.claim(claim_on(stranger, 5)), Claimed)
    for block in await ledger.unfinal_blocks(first.chain_id, after=None, limit=9):
        await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS)
    assert isinstance(await ledger.claim(claim_on(first, 3)), Claimed)


async def test_a_provider_that_gives_money_back_has_spent_nothing(ledgers: Any) -> None:
    """Its wallet may buy too: an unfinal transfer of a refund takes nothing of what it may spend before its payments are final."""
    ledger = await ledgers.gateway("one", unfinal_max_nano={"USDC": 5_000})
    sold = claim_on(await pay(ledger, 5, "sold"), 5)
    assert isinstance(await ledger.claim(sold), Claimed)
    await ledger.close(close_of(sold))
    transfer = new_payment(5, "back", payer=sold.pay_to, payee=sold.payer, is_final=False)
    based_on = await ledger.find_transaction(transfer.tx_hash)
    refunded = await ledger.record_refund(transfer, [sold.call_id], based_on=based_on, now_ms=NOW_MS)
    assert refunded == CallsRefunded(units=(5,))
    own = await pay(ledger, 5, "own", payer=sold.pay_to, payee=Address(b"\x02" * 20), is_final=False)
    assert isinstance(await ledger.claim(claim_on(own, 5)), Claimed)
    await assert_balanced(ledger)


async def test_unfinal_value_of_any_size_is_summed_exactly(ledgers: Any) -> None:
    """Two balances of 2^63 - 1 are more than a signed 64-bit sum holds."""
    ledger = await ledgers.gateway("one", unfinal_max_nano={"USDC": 5_000})
    for name in ("a", "b"):
        most = await pay(ledger, 2**63 - 1, name, is_final=False)
        unlimited = claim_on(most, 2**63 - 1, currency="OTHER")
        assert isinstance(await ledger.claim(unlimited), Claimed)
    third = await pay(ledger, 10, "c", is_final=False)
    assert await ledger.claim(claim_on(third, 1)) == UnfinalLimit()
    assert isinstance(await ledger.claim(claim_on(await pay(ledger, 10, "d"), 1)), Claimed)


# Moves


async def test_a_call_that_succeeded_has_an_end_before_its_answer_has_streamed(ledger: Any) -> None:
    """Its gateway may be killed before the finish is written; then the end is the moment of the head."""
    claim = claim_on(await pay(ledger, 10))
    await ledger.claim(claim)
    await ledger.close(close_of(claim))
    assert (await ledger.find_call(claim.call_id)).completed_ms == NOW_MS
    ledger.finish(finish_of(claim, completed_ms=NOW_MS + 90))
    await wait_finished(ledger, claim.call_id)
    assert (await ledger.find_call(claim.call_id)).completed_ms == NOW_MS + 90


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED])
async def test_a_close_that_carries_the_end_of_the_body_writes_both_at_once(
    ledger: Any, after: CallState
) -> None:
    apart, together = [claim_on(await pay(ledger, 10, name)) for name in "ab"]
    for claim in (apart, together):
        await ledger.claim(claim)
    await ledger.close(close_of(apart, after))
    ledger.finish(finish_of(apart))
    await ledger.close(close_of(together, after, finish=finish_of(together)))
    record = await ledger.find_call(together.call_id)
    assert (record.delivery, record.request_bytes, record.response_bytes, record.completed_ms) == (
        Delivery.COMPLETE,
        3,
        1000,
        NOW_MS + 50,
    )
    await wait_finished(ledger, apart.call_id)
    same = {"id": "", "tx_hash": None, "request_id": "", "created_ms": 0}
    assert replace(await ledger.find_call(apart.call_id), **same) == replace(record, **same)


async def test_a_call_that_was_cut_and_repeated_has_an_end_when_its_provider_decides(ledger: Any) -> None:
    """It keeps the status of its first run, so it counts as succeeded."""
    claim = claim_on(await pay(ledger, 10))
    await ledger.claim(claim)
    await ledger.close(close_of(claim))
    ledger.finish(finish_of(claim, is_cut=True))
    await wait_finished(ledger, claim.call_id)
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=2))
    assert await ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS + 7) is CallState.CONSUMED
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.completed_ms) == (CallState.CONSUMED, NOW_MS + 7)


CLOSING = (CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN)


async def test_a_close_moves_the_call_and_only_a_release_gives_back(ledger: Any) -> None:
    for after in CLOSING:
        claim = claim_on(await pay(ledger, 10, after), 4)
        await ledger.claim(claim)
        left = 6 if after in TAKING else 10
        assert await ledger.close(close_of(claim, after, error="why")) == Closed(remaining_units=left)
        record = await ledger.find_call(claim.call_id)
        ended = (record.state, record.upstream_status, record.latency_ms, record.error)
        assert ended == (after, 200, 12, "why")
        assert await read_rest(ledger, after) == left, after
        await assert_balanced(ledger)


ENDED = (*CLOSING, CallState.REORGED)
"""The last one leaves a debt to the next claims of the payer."""


async def test_a_close_of_what_is_not_forwarding_is_fenced(ledger: Any) -> None:
    for before in ENDED:
        claim = await bring(ledger, await pay(ledger, 10, before, is_final=False), before)
        record, left = await ledger.find_call(claim.call_id), await read_rest(ledger, before)
        for after in CLOSING:
            outcome = await ledger.close(close_of(claim, after, upstream_status=500))
            assert outcome == Fenced(), (before, after)
            assert await ledger.find_call(claim.call_id) == record, (before, after)
            assert await read_rest(ledger, before) == left, (before, after)
            await assert_balanced(ledger)


async def test_no_close_ends_in_a_state_that_is_not_an_end(ledger: Any) -> None:
    claim = await bring(ledger, await pay(ledger, 10), CallState.FORWARDING)
    for after in (CallState.FORWARDING, CallState.REORGED):
        with pytest.raises(ValueError, match="never ends"):
            await ledger.close(close_of(claim, after))
        assert await read_state(ledger, claim) is CallState.FORWARDING, after


async def test_a_close_by_another_gateway_or_epoch_is_fenced(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await bring(one, await pay(one, 10), CallState.FORWARDING)
    assert await two.close(close_of(claim)) == Fenced()
    assert await one.close(close_of(claim, epoch=2)) == Fenced()
    assert await one.close(close_of(claim_on(None))) == Fenced()
    assert await read_state(one, claim) is CallState.FORWARDING


async def test_only_an_unknown_call_is_reopened(ledger: Any) -> None:
    for before in (CallState.FORWARDING, CallState.CONSUMED, CallState.RELEASED, CallState.REORGED):
        claim = await bring(ledger, await pay(ledger, 10, before, is_final=False), before)
        record = await ledger.find_call(claim.call_id)
        assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced(), before
        assert await ledger.find_call(claim.call_id) == record, before


async def test_a_reopened_call_keeps_its_claim_and_has_a_new_epoch(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    payment = await pay(one, 10)
    claim = await bring(one, payment, CallState.UNKNOWN)
    assert await two.reopen(claim.call_id, epoch=2, now_ms=NOW_MS) == Fenced()
    assert await two.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Claimed(
        epoch=2, remaining_units=6, rail=Rail.TX, before=CallState.UNKNOWN
    )
    assert await one.close(close_of(claim)) == Fenced()
    assert await one.close(close_of(claim, epoch=2)) == Fenced()
    assert await two.close(close_of(claim, epoch=2)) == Closed(remaining_units=6)
    await assert_balanced(one)


async def test_a_plain_signature_reopens_nothing_once_the_plain_form_has_ended(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    claim = await bring(ledger, payment, CallState.UNKNOWN)
    await ledger.claim(claim_on(payment, 1, ends_plain=True))
    assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS, is_plain=True) == Fenced()
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)


async def test_a_repeat_that_is_not_sent_goes_back_to_consumed_with_what_the_first_run_brought(
    ledger: Any,
) -> None:
    claim = await bring(ledger, await pay(ledger, 10), CallState.CONSUMED)
    ledger.finish(finish_of(claim, is_cut=True))
    outcome = await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert outcome.before is CallState.CONSUMED
    back = close_of(claim, epoch=2, http_status=None, upstream_status=None, error="caller_gone")
    assert await ledger.close(back) == Closed(remaining_units=6)
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.upstream_status, record.error) == (CallState.CONSUMED, 200, None)
    assert record.completed_ms is not None
    again = await ledger.reopen(claim.call_id, epoch=2, now_ms=NOW_MS)
    assert (again.epoch, again.before) == (3, CallState.CONSUMED)  # its response has not arrived yet
    assert await ledger.close(close_of(claim, epoch=3)) == Closed(remaining_units=6)
    assert await ledger.reopen(claim.call_id, epoch=3, now_ms=NOW_MS) == Fenced()
    await assert_balanced(ledger)


async def test_one_of_many_repeats_wins(ledger: Any) -> None:
    claim = await bring(ledger, await pay(ledger, 10), CallState.UNKNOWN)
    repeats = (ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) for _ in range(10))
    outcomes = await asyncio.gather(*repeats)
    assert sum(isinstance(one, Claimed) for one in outcomes) == 1
    assert await ledger.close(close_of(claim, epoch=2)) == Closed(remaining_units=6)


async def test_a_call_is_attempted_three_times_at_most(ledger: Any) -> None:
    claim = await bring(ledger, await pay(ledger, 10), CallState.UNKNOWN)
    for epoch in (1, 2):
        assert isinstance(await ledger.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS), Claimed)
        await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=epoch + 1))
    assert await ledger.reopen(claim.call_id, epoch=3, now_ms=NOW_MS) == Fenced()


async def test_finds_the_open_call_of_the_same_request(ledger: Any) -> None:
    payment, digest = await pay(ledger, 10), b"\x05" * 32
    claim = claim_on(payment, 4, digest=digest)
    assert await ledger.find_open_call(payment.id, digest) is None
    await ledger.claim(claim)
    found = OpenCall(
        call_id=claim.call_id,
        state=CallState.FORWARDING,
        epoch=1,
        attempts=1,
        price="0.01",
        price_units=4,
    )
    assert await ledger.find_open_call(payment.id, digest) == found
    assert await ledger.find_open_call(payment.id, b"\x06" * 32) is None
    assert await ledger.find_open_call(payment.id + 1, digest) is None
    await ledger.close(close_of(claim, CallState.UNKNOWN))
    assert await ledger.find_open_call(payment.id, digest) == replace(found, state=CallState.UNKNOWN)
    await ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS)
    assert await ledger.find_open_call(payment.id, digest) is None


async def test_an_answer_cut_by_its_upstream_may_be_repeated_once(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    claim = await bring(ledger, payment, CallState.CONSUMED)
    ledger.finish(finish_of(claim))
    assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
    ledger.finish(finish_of(claim, is_cut=True))
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await ledger.close(close_of(claim, epoch=2))
    ledger.finish(finish_of(claim, is_cut=True, epoch=2))
    assert await ledger.reopen(claim.call_id, epoch=2, now_ms=NOW_MS) == Fenced()
    assert await ledger.find_open_call(payment.id, claim.digest) is None
    assert await read_rest(ledger) == 6


async def test_a_finish_is_kept_with_the_call(ledger: Any) -> None:
    claim = await bring(ledger, await pay(ledger, 10), CallState.CONSUMED)
    ledger.finish(finish_of(claim, response_bytes=77))
    ledger.finish(finish_of(claim, epoch=9, response_bytes=1))
    await wait_finished(ledger, claim.call_id)
    record = await ledger.find_call(claim.call_id)
    assert (record.response_bytes, record.completed_ms) == (77, NOW_MS + 50)


@pytest.mark.parametrize("after", [CallState.RELEASED, CallState.CONSUMED])
async def test_the_provider_decides_unknown_calls_only(ledger: Any, after: CallState) -> None:
    for before in (CallState.FORWARDING, *ENDED):
        claim = await bring(ledger, await pay(ledger, 10, before, is_final=False), before)
        left = await read_rest(ledger, before)
        is_unknown = before is CallState.UNKNOWN
        decided = await ledger.resolve(claim.call_id, after, now_ms=NOW_MS)
        assert decided is (after if is_unknown else None), before
        assert await read_state(ledger, claim) is (after if is_unknown else before)
        assert await read_rest(ledger, before) == (10 if is_unknown and after is CallState.RELEASED else left)
        await assert_balanced(ledger)


# Recovery


async def test_calls_of_a_killed_gateway_become_unknown_and_are_fenced(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await bring(one, await pay(one, 10), CallState.FORWARDING)
    await ledgers.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    assert await two.recover(now_ms=NOW_MS) == 0
    assert await one.close(close_of(claim)) == Fenced()
    assert (await two.audit()).held_calls == (claim.call_id,)
    assert await read_rest(two) == 6


async def test_a_record_has_the_error_of_a_dead_gateway_until_a_run_ends(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await bring(one, await pay(one, 10), CallState.UNKNOWN)
    assert isinstance(await one.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await ledgers.bury("one")
    await two.recover(now_ms=NOW_MS)
    assert (await two.find_call(claim.call_id)).error == "gateway_died"
    assert isinstance(await two.reopen(claim.call_id, epoch=2, now_ms=NOW_MS), Claimed)
    await two.close(close_of(claim, epoch=3))
    assert (await two.find_call(claim.call_id)).error is None


async def test_a_record_keeps_the_error_of_a_dead_gateway_after_a_release(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await bring(one, await pay(one, 10), CallState.FORWARDING)
    await ledgers.bury("one")
    await two.recover(now_ms=NOW_MS)
    assert await two.resolve(claim.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert (await two.find_call(claim.call_id)).error == "gateway_died"


async def test_calls_of_a_living_gateway_stay(ledgers: Any) -> None:
    one = await ledgers.gateway("one")
    claim = await bring(one, await pay(one, 10), CallState.FORWARDING)
    assert await one.recover(now_ms=NOW_MS) == 0
    assert await read_state(one, claim) is CallState.FORWARDING


async def test_an_unknown_call_gives_its_price_back_after_its_time(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one", limits=Limits(unknown_hold_s=3600))
    claim = await bring(ledger, await pay(ledger, 10), CallState.UNKNOWN)
    assert await ledger.recover(now_ms=NOW_MS + HOUR_MS - 1) == 0
    assert await ledger.recover(now_ms=NOW_MS + HOUR_MS) == 1
    assert await read_state(ledger, claim) is CallState.RELEASED
    assert await read_rest(ledger) == 10
    await assert_balanced(ledger)


# Reorganisations


async def test_a_payment_that_left_the_chain_is_worth_nothing(ledger: Any) -> None:
    payment = await pay(ledger, 10, is_final=False)
    claim = await bring(ledger, payment, CallState.CONSUMED)
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 4
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 0
    assert await read_state(ledger, claim) is CallState.REORGED
    assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=False)
    assert await ledger.debts(PAYER) == (Debt(chain_id=CHAIN, asset=USDC, payee=PAYEE, units=4),)
    (payment,) = await ledger.find_payments(payment.tx_hash)
    assert (payment.state, payment.value_units, payment.remaining_units) == (PaymentState.GONE, 0, 0)
    await assert_balanced(ledger)


async def test_a_debt_is_paid_from_older_credit_of_the_same_account_before_a_claim(ledger: Any) -> None:
    lost, here = await pay(ledger, 10, is_final=False), await pay(ledger, 20, "here")
    owing = await bring(ledger, lost, CallState.CONSUMED)
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    outcome = await ledger.claim(claim_on(here, 4))
    assert isinstance(outcome, Claimed)
    assert (outcome.remaining_units, await ledger.debts(PAYER)) == (12, ())
    assert await read_state(ledger, owing) is CallState.CONSUMED
    await assert_balanced(ledger)


async def test_a_claim_names_the_debt_that_no_credit_pays(ledger: Any) -> None:
    lost, here = await pay(ledger, 30, is_final=False), await pay(ledger, 9, "here")
    elsewhere = [
        await pay(ledger, 20, f"elsewhere {n}", **one)
        for n, one in enumerate(
            ({"payee": Address(b"\x02" * 20)}, {"asset": "native"}, {"chain_id": 1}, {"payer": PAYEE})
        )
    ]
    held = await pay(ledger, 7, "held", is_final=False)
    await ledger.hold_disputed([held.id])
    owing = [await bring(ledger, lost, CallState.CONSUMED) for _ in range(5)]
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    for _ in range(2):
        assert await ledger.claim(claim_on(here, 4)) == InDebt(units=20 - 9)
    ends = [CallState.CONSUMED] * 2 + [CallState.REORGED] * 3
    assert [await read_state(ledger, one) for one in owing] == ends
    for payment in elsewhere:
        assert isinstance(await ledger.claim(claim_on(payment, 4)), Claimed)
    await pay(ledger, 15, "mending")
    assert await ledger.debts(PAYER) == ()
    (mending,) = await ledger.find_payments(tx_hash("mending"))
    assert isinstance(await ledger.claim(claim_on(mending, 4)), Claimed)
    await assert_balanced(ledger)


async def test_credit_that_a_debt_uses_up_leaves_a_claim_without_units_and_without_a_demand(
    ledger: Any,
) -> None:
    lost, here = await pay(ledger, 4, is_final=False), await pay(ledger, 4, "here")
    await bring(ledger, lost, CallState.CONSUMED)
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    assert await ledger.claim(claim_on(here, 4)) == Exhausted(remaining_units=0)
    assert await ledger.debts(PAYER) == ()


async def test_an_authorised_claim_is_granted_where_credit_pays_the_debt(ledger: Any) -> None:
    lost = await pay(ledger, 4, is_final=False)
    owing = await bring(ledger, lost, CallState.CONSUMED)
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    assert await ledger.claim(authorized_claim(authorization_of(1))) == InDebt(units=4)
    await pay(ledger, 3, "part")
    assert await ledger.claim(authorized_claim(authorization_of(1))) == InDebt(units=1)
    here = await pay(ledger, 10, "here", is_final=False)
    assert (here.remaining_units, await read_state(ledger, owing)) == (9, CallState.CONSUMED)
    again = await bring(ledger, here, CallState.CONSUMED)
    await pay(ledger, 8, "later")
    await ledger.mark_gone(here.id, now_ms=NOW_MS)
    assert [debt.units for debt in await ledger.debts(PAYER)] == [5]
    assert isinstance(await ledger.claim(authorized_claim(authorization_of(1))), Claimed)
    assert await read_state(ledger, again) is CallState.CONSUMED
    assert await read_rest(ledger, "later") == 3
    await assert_balanced(ledger)


async def test_claims_at_once_share_the_payment_of_a_debt(ledger: Any) -> None:
    lost, here = await pay(ledger, 10, is_final=False), await pay(ledger, 8, "here")
    await bring(ledger, lost, CallState.CONSUMED)
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    outcomes = await asyncio.gather(*(ledger.claim(claim_on(here, 2)) for _ in range(3)))
    assert sorted(type(one).__name__ for one in outcomes) == ["Claimed", "Claimed", "Exhausted"]
    await assert_balanced(ledger)


async def test_a_debt_that_a_close_makes_counts_for_the_next_claim(ledger: Any) -> None:
    lost, here = await pay(ledger, 10, is_final=False), await pay(ledger, 7, "here")
    running = await bring(ledger, lost, CallState.FORWARDING)
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    assert isinstance(await ledger.claim(claim_on(here, 4)), Claimed)
    await ledger.close(close_of(running))
    assert await ledger.claim(claim_on(here, 1)) == InDebt(units=1)
    await assert_balanced(ledger)


async def test_a_final_payment_cannot_leave(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 0
    assert await ledger.find_payments(payment.tx_hash) == (payment,)


async def test_a_payment_that_is_mined_again_takes_its_calls_back(ledger: Any) -> None:
    payment = await pay(ledger, 10, is_final=False)
    claim = await bring(ledger, payment, CallState.REORGED)
    back = await pay(ledger, 10, is_final=False, block_number=107)
    assert (back.id, back.state, back.remaining_units, back.block_number) == (
        payment.id,
        PaymentState.UNFINAL,
        6,
        107,
    )
    assert await read_state(ledger, claim) is CallState.CONSUMED
    assert await ledger.debts(PAYER) == ()
    assert isinstance(await ledger.claim(claim_on(back, 6)), Claimed)
    await assert_balanced(ledger)


async def test_the_next_transfer_pays_the_debt_first_and_in_parts(ledger: Any) -> None:
    payment = await pay(ledger, 10, is_final=False)
    calls = [await bring(ledger, payment, CallState.CONSUMED) for _ in range(2)]
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert (await pay(ledger, 3, "a")).remaining_units == 0
    assert (await ledger.debts(PAYER))[0].units == 5
    assert [await read_state(ledger, one) for one in calls] == [CallState.REORGED] * 2
    assert (await pay(ledger, 9, "b")).remaining_units == 4
    assert await ledger.debts(PAYER) == ()
    assert [await read_state(ledger, one) for one in calls] == [CallState.CONSUMED] * 2
    await assert_balanced(ledger)
    assert (
        await pay(ledger, 10, is_final=False)
    ).remaining_units == 10  # mined again: its whole value is credit now
    await assert_balanced(ledger)


async def test_transfers_into_another_account_pay_no_debt(ledger: Any) -> None:
    payment = await pay(ledger, 10, is_final=False)
    await bring(ledger, payment, CallState.REORGED)
    for name, other in (
        ("a", {"payee": Address(b"\x02" * 20)}),
        ("b", {"asset": "native"}),
        ("c", {"chain_id": 1}),
    ):
        assert (await pay(ledger, 9, name, **other)).remaining_units == 9
    assert (await ledger.debts(PAYER))[0].units == 4


async def test_a_call_that_runs_while_its_payment_leaves(ledger: Any) -> None:
    for after, ends, debt_units in (
        (CallState.RELEASED, CallState.RELEASED, 0),
        (CallState.UNKNOWN, CallState.UNKNOWN, 0),
        (CallState.CONSUMED, CallState.REORGED, 4),
    ):
        payment = await pay(ledger, 10, after, is_final=False)
        claim = await bring(ledger, payment, CallState.FORWARDING)
        assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 0
        assert await read_state(ledger, claim) is CallState.FORWARDING
        assert isinstance(await ledger.close(close_of(claim, after)), Closed)
        assert await read_state(ledger, claim) is ends
        assert sum(debt.units for debt in await ledger.debts(PAYER)) == debt_units, after
        assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
        await assert_balanced(ledger)


async def test_a_call_that_a_gone_sibling_helped_owes_that_part(ledger: Any) -> None:
    shown, helper = await pay(ledger, 6, "a"), await pay(ledger, 4, "b", is_final=False)
    claim = await bring(ledger, shown, CallState.CONSUMED, 10)
    assert await ledger.mark_gone(helper.id, now_ms=NOW_MS) == 4
    assert await read_state(ledger, claim) is CallState.REORGED
    assert (await ledger.debts(PAYER))[0].units == 4
    assert await read_rest(ledger, "a") == 0
    await pay(ledger, 4, "b", is_final=False)
    assert await read_state(ledger, claim) is CallState.CONSUMED
    await assert_balanced(ledger)


async def test_lists_the_calls_that_spend_a_payment(ledger: Any) -> None:
    payment, helper = await pay(ledger, 10), await pay(ledger, 2, "b")
    first = await bring(ledger, payment, CallState.CONSUMED)
    second = await bring(ledger, payment, CallState.RELEASED)
    third = await bring(ledger, payment, CallState.FORWARDING, 4)
    fourth = await bring(ledger, payment, CallState.CONSUMED, 3)
    ids = [one.call_id for one in (fourth, third, second, first)]
    assert await ledger.calls_of(payment.id, limit=9) == tuple(ids)
    assert await ledger.spending_calls(payment.id, limit=9) == (ids[0], ids[1], ids[3])
    assert await ledger.spending_calls(payment.id, limit=1) == (ids[0],)
    assert await ledger.spending_calls(helper.id, limit=9) == (ids[0],)
    assert await ledger.calls_of(helper.id, limit=9) == (ids[0],)


async def test_lists_the_calls_of_unknown_outcome_that_hold_units_of_a_payment(ledger: Any) -> None:
    payment, helper = await pay(ledger, 10), await pay(ledger, 4, "b")
    for to in (CallState.CONSUMED, CallState.RELEASED, CallState.FORWARDING):
        await bring(ledger, payment, to, 1)
    older = await bring(ledger, payment, CallState.UNKNOWN, 4)
    newer = await bring(ledger, payment, CallState.UNKNOWN, 8)  # the other payment completes the price
    assert await ledger.unknown_calls(payment.id, limit=9) == (newer.call_id, older.call_id)
    assert len(await ledger.unknown_calls(payment.id, limit=1)) == 1
    assert await ledger.unknown_calls(helper.id, limit=9) == (newer.call_id,)
    assert await ledger.resolve(newer.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert await ledger.unknown_calls(payment.id, limit=9) == (older.call_id,)
    assert await ledger.unknown_calls(helper.id, limit=9) == ()
