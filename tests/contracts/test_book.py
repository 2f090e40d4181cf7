"""What every keeper of the books promises: in memory, on SQLite, on PostgreSQL."""

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
    claim_on,
    close_of,
    finish_of,
    new_payment,
    tx_hash,
)
from tollway.identifiers import Address
from tollway.ledger.book import (
    Claim,
    Claimed,
    Closed,
    Debt,
    Exhausted,
    Fenced,
    InDebt,
    NonceUsed,
    PlainEnded,
    UnfinalLimit,
    Unspendable,
)
from tollway.ledger.call import TAKING, CallState, PaymentState, Rail
from tollway.ledger.claims import TEXT_LENGTH_MAX
from tollway.ledger.open_calls import OpenCall
from tollway.limits import Limits
from tollway.storage.book_tables import call_table

HOUR_MS = 3_600_000
NONCE = b"\x07" * 32


async def paid(book: Any, value_units: int, name: str = "tx", **fields: Any) -> Any:
    (payment,) = await book.record_payments([new_payment(value_units, name, **fields)], now_ms=NOW_MS)
    return payment


async def rest(book: Any, name: str = "tx") -> int:
    (payment,) = await book.find_payments(tx_hash(name))
    return payment.rest_units


async def state(book: Any, call_id: Any) -> CallState:
    return (await book.find_call(call_id)).state


async def bring(book: Any, payment: Any, to: CallState, price_units: int = 4) -> Any:
    """A call in that state."""
    claim = claim_on(payment, price_units)
    assert isinstance(await book.claim(claim), Claimed)
    if to is CallState.REORGED:
        await book.close(close_of(claim))
        await book.mark_gone(payment.id, now_ms=NOW_MS)
    elif to is not CallState.FORWARDING:
        await book.close(close_of(claim, to))
    assert await state(book, claim.call_id) is to
    return claim


async def assert_balanced(book: Any) -> None:
    report = await book.audit()
    assert report.wrong == ()


# Payments


async def test_records_a_payment_once(book: Any) -> None:
    first = await paid(book, 10)
    again = await paid(book, 10)
    assert first == again
    assert await book.find_payments(tx_hash("tx")) == (first,)
    assert (first.value_units, first.taken_units, first.state) == (10, 0, PaymentState.FINAL)


@pytest.mark.parametrize(
    "other",
    [
        {"chain_id": 1},
        {"asset": "native"},
        {"payer": Address(b"\x01" * 20)},
        {"payee": Address(b"\x02" * 20)},
    ],
)
async def test_every_part_of_the_key_makes_another_payment(book: Any, other: dict[str, Any]) -> None:
    recorded = await book.record_payments([new_payment(10), new_payment(5, **other)], now_ms=NOW_MS)
    assert [one.value_units for one in recorded] == [10, 5]
    assert len(await book.find_payments(tx_hash("tx"))) == 2


@pytest.mark.parametrize("units", [-1, 2**63])
async def test_refuses_an_amount_that_no_balance_holds(book: Any, units: int) -> None:
    with pytest.raises(ValueError, match="2\\^63"):
        await paid(book, units)
    payment = await paid(book, 2**63 - 1)
    with pytest.raises(ValueError, match="2\\^63"):
        await book.claim(claim_on(payment, units))
    assert isinstance(await book.claim(claim_on(payment, 2**63 - 1)), Claimed)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
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
    ],
)
async def test_refuses_a_claim_that_no_row_holds(book: Any, changes: dict[str, Any], named: str) -> None:
    payment = await paid(book, 10)
    claim = claim_on(payment, **changes)
    with pytest.raises(ValueError, match=named):
        await book.claim(claim)
    assert await book.find_payments(payment.tx_hash) == (payment,)
    assert isinstance(await book.claim(claim_on(payment, method="M" * 32, path="/" + "a" * 4_000)), Claimed)
    await assert_balanced(book)


def test_the_texts_of_a_claim_have_the_length_of_their_columns() -> None:
    filled = {field.name for field in fields(Claim)} | {"id"}
    texts = {
        {"id": "call_id"}.get(column.name, column.name): getattr(column.type, "length", None)
        for column in call_table.columns
        if isinstance(column.type, String) and column.name in filled
    }
    assert texts == TEXT_LENGTH_MAX


# Claims


async def test_a_claim_takes_the_price_and_opens_the_call(book: Any) -> None:
    payment = await paid(book, 10)
    claim = claim_on(payment, 4, nonce=NONCE, idempotency_key="key")
    assert await book.claim(claim) == Claimed(epoch=1, rest_units=6, rail=Rail.TX)
    assert await book.claim(claim_on(payment, 4)) == Claimed(epoch=1, rest_units=2, rail=Rail.CREDIT)
    record = await book.find_call(claim.call_id)
    assert (record.state, record.rail, record.tx_hash) == (CallState.FORWARDING, Rail.TX, payment.tx_hash)
    assert (record.price_units, record.payer, record.idempotency_key) == (4, PAYER, "key")
    await assert_balanced(book)


async def test_a_free_call_takes_nothing(book: Any) -> None:
    claim = claim_on(None)
    assert await book.claim(claim) == Claimed(epoch=1, rest_units=0, rail=Rail.NONE)
    assert await book.close(close_of(claim)) == Closed(rest_units=None)
    assert await state(book, claim.call_id) is CallState.CONSUMED


async def test_a_refused_claim_leaves_no_row(book: Any) -> None:
    payment = await paid(book, 3)
    claim = claim_on(payment, 4)
    assert await book.claim(claim) == Exhausted(rest_units=3)
    assert await book.find_call(claim.call_id) is None
    assert await rest(book) == 3


async def test_an_unknown_payment_buys_nothing(book: Any) -> None:
    payment = await paid(book, 3)
    assert await book.claim(claim_on(replace(payment, id=99))) == Unspendable(is_held=False)
    stranger = claim_on(payment, payer=Address(b"\x09" * 20))
    assert await book.claim(stranger) == Unspendable(is_held=False)


@pytest.mark.parametrize("worth", [1, 10])
async def test_fifty_callers_get_what_the_payment_is_worth(book: Any, worth: int) -> None:
    payment = await paid(book, worth)
    outcomes = await asyncio.gather(*(book.claim(claim_on(payment)) for _ in range(50)))
    assert sum(isinstance(one, Claimed) for one in outcomes) == worth
    assert sum(one == Exhausted(rest_units=0, held_units=worth) for one in outcomes) == 50 - worth
    assert await rest(book) == 0
    await assert_balanced(book)


async def test_a_claim_that_is_too_dear_does_not_stop_a_cheaper_one(book: Any) -> None:
    payment = await paid(book, 10)
    outcomes = await asyncio.gather(*(book.claim(claim_on(payment, price)) for price in (8, 5, 2)))
    assert [isinstance(one, Claimed) for one in outcomes] == [True, False, True]
    assert isinstance(outcomes[1], Exhausted)
    assert outcomes[1].rest_units == 2
    await assert_balanced(book)


async def test_a_nonce_counts_once_unless_its_call_was_released(book: Any) -> None:
    payment = await paid(book, 10)
    first, second, third = (claim_on(payment, nonce=NONCE) for _ in range(3))
    assert isinstance(await book.claim(first), Claimed)
    assert await book.claim(second) == NonceUsed(call_id=first.call_id, state=CallState.FORWARDING)
    await book.close(close_of(first, CallState.RELEASED))
    assert isinstance(await book.claim(second), Claimed)
    await book.close(close_of(second, CallState.UNKNOWN))
    assert await book.claim(third) == NonceUsed(call_id=second.call_id, state=CallState.UNKNOWN)
    assert await rest(book) == 9


async def test_a_nonce_counts_once_among_claims_at_the_same_moment(book: Any) -> None:
    payment = await paid(book, 10)
    outcomes = await asyncio.gather(*(book.claim(claim_on(payment, nonce=NONCE)) for _ in range(5)))
    assert [type(one) for one in outcomes] == [Claimed] + [NonceUsed] * 4
    other = await paid(book, 10, "other")
    assert isinstance(await book.claim(claim_on(other, nonce=NONCE)), Claimed)


async def test_a_bound_signature_ends_the_plain_form(book: Any) -> None:
    payment = await paid(book, 10)
    assert isinstance(await book.claim(claim_on(payment, is_plain=True)), Claimed)
    assert isinstance(await book.claim(claim_on(payment, ends_plain=True)), Claimed)
    assert await book.claim(claim_on(payment, is_plain=True)) == PlainEnded()
    (payment,) = await book.find_payments(payment.tx_hash)
    assert (payment.is_plain_ended, payment.rest_units) == (True, 8)


async def test_a_refused_bound_claim_does_not_end_the_plain_form(book: Any) -> None:
    payment = await paid(book, 1)
    assert await book.claim(claim_on(payment, 5, ends_plain=True)) == Exhausted(rest_units=1)
    assert isinstance(await book.claim(claim_on(payment, is_plain=True)), Claimed)


# Siblings: (values of the payments, price, shown) -> what each has left, or None when refused, and what was there
SIBLINGS = [
    ((6, 4), 10, 0, (0, 0)),
    ((6, 4), 10, 1, (0, 0)),
    ((6, 5), 10, 0, (0, 1)),
    ((6, 3), 10, 0, 9),
    ((6, 10), 10, 0, 6),  # the other could pay a call alone: somebody's prepayment
    ((2, 3, 4, 9), 10, 3, (1, 3, 4, 0)),  # oldest first
    ((10, 3), 10, 0, (0, 3)),  # nothing short, nothing touched
]


@pytest.mark.parametrize(("values", "price", "shown", "expected"), SIBLINGS)
async def test_the_difference_comes_from_small_siblings_oldest_first(
    book: Any, values: tuple[int, ...], price: int, shown: int, expected: Any
) -> None:
    payments = [await paid(book, value, f"tx{n}", block_number=100 + n) for n, value in enumerate(values)]
    claim = claim_on(payments[shown], price)
    outcome = await book.claim(claim)
    rests = tuple([await rest(book, f"tx{n}") for n in range(len(values))])
    if isinstance(expected, int):
        assert outcome == Exhausted(rest_units=expected)
        assert rests == values
    else:
        assert isinstance(outcome, Claimed)
        assert (outcome.rest_units, rests) == (rests[shown], expected)
    await assert_balanced(book)
    await book.close(close_of(claim, CallState.RELEASED))
    assert tuple([await rest(book, f"tx{n}") for n in range(len(values))]) == values
    await assert_balanced(book)


@pytest.mark.parametrize(
    "other",
    [
        {"payer": Address(b"\x01" * 20)},
        {"payee": Address(b"\x02" * 20)},
        {"asset": "native"},
        {"chain_id": 1},
    ],
)
async def test_only_the_same_purse_repairs(book: Any, other: dict[str, Any]) -> None:
    payment = await paid(book, 6)
    await paid(book, 4, "other", **other)
    assert await book.claim(claim_on(payment, 10)) == Exhausted(rest_units=6)


async def test_a_spent_payment_is_not_repaired(book: Any) -> None:
    payment = await paid(book, 1)
    await paid(book, 3, "other")
    await book.claim(claim_on(payment, 1))
    assert await book.claim(claim_on(payment, 2)) == Exhausted(rest_units=0, held_units=1)


@pytest.mark.parametrize(
    ("before", "held_units"),
    [
        (CallState.FORWARDING, 4),
        (CallState.UNKNOWN, 4),
        (CallState.CONSUMED, 0),
        (CallState.RELEASED, 0),
    ],
)
async def test_a_claim_that_finds_too_little_is_told_what_calls_without_an_outcome_hold(
    book: Any, before: CallState, held_units: int
) -> None:
    payment = await paid(book, 5)
    await bring(book, payment, before)
    outcome = await book.claim(claim_on(payment, 10))
    assert outcome == Exhausted(rest_units=await rest(book), held_units=held_units)


async def test_what_a_call_on_another_payment_holds_of_this_one_is_told_too(book: Any) -> None:
    payment, other = await paid(book, 6), await paid(book, 7, "other")
    assert isinstance(await book.claim(claim_on(other, 10)), Claimed)
    assert await book.claim(claim_on(payment, 5)) == Exhausted(rest_units=3, held_units=3)


async def test_a_plain_signature_does_not_open_a_sibling_that_ended_its_plain_form(book: Any) -> None:
    payment, other = await paid(book, 6), await paid(book, 5, "other")
    await book.claim(claim_on(other, 1, ends_plain=True))
    assert await book.claim(claim_on(payment, 10, is_plain=True)) == Exhausted(rest_units=6)
    assert isinstance(await book.claim(claim_on(payment, 10)), Claimed)


async def test_many_short_claims_share_the_siblings_without_overspending(book: Any) -> None:
    payments = [await paid(book, 7, f"tx{n}") for n in range(10)]
    outcomes = await asyncio.gather(*(book.claim(claim_on(one, 10)) for one in payments * 2))
    assert sum(isinstance(one, Claimed) for one in outcomes) == 7
    await assert_balanced(book)


async def test_unfinal_value_is_limited_per_payer(books: Any) -> None:
    book = await books.gateway("one", unfinal_max_nano={"USDC": 5_000})
    first = await paid(book, 10, "a", is_final=False)
    second = await paid(book, 10, "b", is_final=False)
    final = await paid(book, 10, "c")
    stranger = await paid(book, 10, "d", is_final=False, payer=Address(b"\x01" * 20))
    assert isinstance(await book.claim(claim_on(first, 3)), Claimed)
    assert await book.claim(claim_on(second, 3)) == UnfinalLimit()
    assert isinstance(await book.claim(claim_on(second, 2)), Claimed)
    assert await book.claim(claim_on(first, 1)) == UnfinalLimit()
    assert isinstance(await book.claim(claim_on(final, 9)), Claimed)
    assert isinstance(await book.claim(claim_on(stranger, 5)), Claimed)
    for block in await book.unfinal_blocks(first.chain_id, after=None, limit=9):
        await book.finish_block(block, is_read_only=False, now_ms=NOW_MS)
    assert isinstance(await book.claim(claim_on(first, 3)), Claimed)


async def test_unfinal_value_of_any_size_is_summed_exactly(books: Any) -> None:
    """Two balances of 2^63 - 1 are more than a signed 64-bit sum holds."""
    book = await books.gateway("one", unfinal_max_nano={"USDC": 5_000})
    for name in ("a", "b"):
        most = await paid(book, 2**63 - 1, name, is_final=False)
        unlimited = claim_on(most, 2**63 - 1, currency="OTHER")
        assert isinstance(await book.claim(unlimited), Claimed)
    third = await paid(book, 10, "c", is_final=False)
    assert await book.claim(claim_on(third, 1)) == UnfinalLimit()
    assert isinstance(await book.claim(claim_on(await paid(book, 10, "d"), 1)), Claimed)


# Moves


async def test_a_call_that_succeeded_has_an_end_before_its_answer_has_streamed(book: Any) -> None:
    """Its gateway may die before the finish is written; then the moment of the head is what is known of its end."""
    claim = claim_on(await paid(book, 10))
    await book.claim(claim)
    await book.close(close_of(claim))
    assert (await book.find_call(claim.call_id)).completed_ms == NOW_MS
    book.finish(finish_of(claim, completed_ms=NOW_MS + 90))
    await book.claim(claim_on(None))  # behind it
    assert (await book.find_call(claim.call_id)).completed_ms == NOW_MS + 90


async def test_a_call_that_was_cut_and_repeated_has_an_end_when_its_provider_decides(book: Any) -> None:
    """It keeps the status of its first run, so it says that it succeeded."""
    claim = claim_on(await paid(book, 10))
    await book.claim(claim)
    await book.close(close_of(claim))
    book.finish(finish_of(claim, is_cut=True))
    await book.claim(claim_on(None))  # behind it
    assert isinstance(await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await book.close(close_of(claim, CallState.UNKNOWN, epoch=2))
    assert await book.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS + 7) is True
    record = await book.find_call(claim.call_id)
    assert (record.state, record.completed_ms) == (CallState.CONSUMED, NOW_MS + 7)


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN])
async def test_a_close_moves_the_call_and_only_a_release_gives_back(book: Any, after: CallState) -> None:
    payment = await paid(book, 10)
    claim = claim_on(payment, 4)
    await book.claim(claim)
    left = 6 if after in TAKING else 10
    assert await book.close(close_of(claim, after, error="why")) == Closed(rest_units=left)
    record = await book.find_call(claim.call_id)
    assert (record.state, record.upstream_status, record.latency_ms, record.error) == (after, 200, 12, "why")
    assert await rest(book) == left
    await assert_balanced(book)


ENDED = [CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN, CallState.REORGED]


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN])
@pytest.mark.parametrize("before", ENDED)
async def test_a_close_of_what_is_not_forwarding_is_fenced(
    book: Any, before: CallState, after: CallState
) -> None:
    claim = await bring(book, await paid(book, 10, is_final=False), before)
    record, left = await book.find_call(claim.call_id), await rest(book)
    assert await book.close(close_of(claim, after, upstream_status=500)) == Fenced()
    assert (await book.find_call(claim.call_id), await rest(book)) == (record, left)
    await assert_balanced(book)


@pytest.mark.parametrize("after", [CallState.FORWARDING, CallState.REORGED])
async def test_no_close_ends_in_a_state_that_is_not_an_end(book: Any, after: CallState) -> None:
    claim = await bring(book, await paid(book, 10), CallState.FORWARDING)
    with pytest.raises(ValueError, match="never ends"):
        await book.close(close_of(claim, after))
    assert await state(book, claim.call_id) is CallState.FORWARDING


async def test_a_close_by_another_gateway_or_epoch_is_fenced(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await bring(one, await paid(one, 10), CallState.FORWARDING)
    assert await two.close(close_of(claim)) == Fenced()
    assert await one.close(close_of(claim, epoch=2)) == Fenced()
    assert await one.close(close_of(claim_on(None))) == Fenced()
    assert await state(one, claim.call_id) is CallState.FORWARDING


@pytest.mark.parametrize(
    "before", [CallState.FORWARDING, CallState.CONSUMED, CallState.RELEASED, CallState.REORGED]
)
async def test_only_an_unknown_call_is_reopened(book: Any, before: CallState) -> None:
    claim = await bring(book, await paid(book, 10, is_final=False), before)
    record = await book.find_call(claim.call_id)
    assert await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
    assert await book.find_call(claim.call_id) == record


async def test_a_reopened_call_keeps_its_claim_and_has_a_new_epoch(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    payment = await paid(one, 10)
    claim = await bring(one, payment, CallState.UNKNOWN)
    assert await two.reopen(claim.call_id, epoch=2, now_ms=NOW_MS) == Fenced()
    assert await two.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Claimed(
        epoch=2, rest_units=6, rail=Rail.TX, before=CallState.UNKNOWN
    )
    assert await one.close(close_of(claim)) == Fenced()
    assert await one.close(close_of(claim, epoch=2)) == Fenced()
    assert await two.close(close_of(claim, epoch=2)) == Closed(rest_units=6)
    await assert_balanced(one)


async def test_a_plain_signature_reopens_nothing_once_the_plain_form_has_ended(book: Any) -> None:
    payment = await paid(book, 10)
    claim = await bring(book, payment, CallState.UNKNOWN)
    await book.claim(claim_on(payment, 1, ends_plain=True))
    assert await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS, is_plain=True) == Fenced()
    assert isinstance(await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)


async def test_a_repeat_that_is_not_sent_goes_back_to_consumed_with_what_the_first_run_brought(
    book: Any,
) -> None:
    claim = await bring(book, await paid(book, 10), CallState.CONSUMED)
    book.finish(finish_of(claim, is_cut=True))
    outcome = await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert outcome.before is CallState.CONSUMED
    back = close_of(claim, epoch=2, http_status=None, upstream_status=None, error="caller_gone")
    assert await book.close(back) == Closed(rest_units=6)
    record = await book.find_call(claim.call_id)
    assert (record.state, record.upstream_status, record.error) == (CallState.CONSUMED, 200, None)
    assert record.completed_ms is not None
    again = await book.reopen(claim.call_id, epoch=2, now_ms=NOW_MS)
    assert (again.epoch, again.before) == (3, CallState.CONSUMED)  # its answer is still to come
    assert await book.close(close_of(claim, epoch=3)) == Closed(rest_units=6)
    assert await book.reopen(claim.call_id, epoch=3, now_ms=NOW_MS) == Fenced()
    await assert_balanced(book)


async def test_one_of_many_repeats_wins(book: Any) -> None:
    claim = await bring(book, await paid(book, 10), CallState.UNKNOWN)
    repeats = (book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) for _ in range(10))
    outcomes = await asyncio.gather(*repeats)
    assert sum(isinstance(one, Claimed) for one in outcomes) == 1
    assert await book.close(close_of(claim, epoch=2)) == Closed(rest_units=6)


async def test_a_call_is_attempted_three_times_at_most(book: Any) -> None:
    claim = await bring(book, await paid(book, 10), CallState.UNKNOWN)
    for epoch in (1, 2):
        assert isinstance(await book.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS), Claimed)
        await book.close(close_of(claim, CallState.UNKNOWN, epoch=epoch + 1))
    assert await book.reopen(claim.call_id, epoch=3, now_ms=NOW_MS) == Fenced()


async def test_finds_the_open_call_of_the_same_request(book: Any) -> None:
    payment, digest = await paid(book, 10), b"\x05" * 32
    claim = claim_on(payment, 4, digest=digest)
    assert await book.find_repeat(payment.id, digest) is None
    await book.claim(claim)
    found = OpenCall(
        call_id=claim.call_id,
        state=CallState.FORWARDING,
        epoch=1,
        attempts=1,
        price="0.01",
        price_units=4,
    )
    assert await book.find_repeat(payment.id, digest) == found
    assert await book.find_repeat(payment.id, b"\x06" * 32) is None
    assert await book.find_repeat(payment.id + 1, digest) is None
    await book.close(close_of(claim, CallState.UNKNOWN))
    assert await book.find_repeat(payment.id, digest) == replace(found, state=CallState.UNKNOWN)
    await book.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS)
    assert await book.find_repeat(payment.id, digest) is None


async def test_an_answer_cut_by_its_upstream_may_be_repeated_once(book: Any) -> None:
    payment = await paid(book, 10)
    claim = await bring(book, payment, CallState.CONSUMED)
    book.finish(finish_of(claim))
    assert await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
    book.finish(finish_of(claim, is_cut=True))
    assert isinstance(await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await book.close(close_of(claim, epoch=2))
    book.finish(finish_of(claim, is_cut=True, epoch=2))
    assert await book.reopen(claim.call_id, epoch=2, now_ms=NOW_MS) == Fenced()
    assert await book.find_repeat(payment.id, claim.digest) is None
    assert await rest(book) == 6


async def test_a_finish_is_kept_with_the_call(book: Any) -> None:
    claim = await bring(book, await paid(book, 10), CallState.CONSUMED)
    book.finish(finish_of(claim, response_bytes=77))
    book.finish(finish_of(claim, epoch=9, response_bytes=1))
    await book.claim(claim_on(None))  # goes with a later batch
    record = await book.find_call(claim.call_id)
    assert (record.response_bytes, record.completed_ms) == (77, NOW_MS + 50)


@pytest.mark.parametrize("after", [CallState.RELEASED, CallState.CONSUMED])
@pytest.mark.parametrize("before", [*ENDED, CallState.FORWARDING])
async def test_the_provider_decides_unknown_calls_only(
    book: Any, before: CallState, after: CallState
) -> None:
    claim = await bring(book, await paid(book, 10, is_final=False), before)
    left = await rest(book)
    is_unknown = before is CallState.UNKNOWN
    assert await book.resolve(claim.call_id, after, now_ms=NOW_MS) is is_unknown
    assert await state(book, claim.call_id) is (after if is_unknown else before)
    assert await rest(book) == (10 if is_unknown and after is CallState.RELEASED else left)
    await assert_balanced(book)


# Recovery


async def test_calls_of_a_dead_gateway_become_unknown_and_are_fenced(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await bring(one, await paid(one, 10), CallState.FORWARDING)
    await books.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    assert await two.recover(now_ms=NOW_MS) == 0
    assert await one.close(close_of(claim)) == Fenced()
    assert (await two.audit()).held_calls == (claim.call_id,)
    assert await rest(two) == 6


async def test_a_record_says_that_its_gateway_died_until_a_run_ends(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await bring(one, await paid(one, 10), CallState.UNKNOWN)
    assert isinstance(await one.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    await books.bury("one")
    await two.recover(now_ms=NOW_MS)
    assert (await two.find_call(claim.call_id)).error == "gateway_died"
    assert isinstance(await two.reopen(claim.call_id, epoch=2, now_ms=NOW_MS), Claimed)
    await two.close(close_of(claim, epoch=3))
    assert (await two.find_call(claim.call_id)).error is None


async def test_a_record_still_says_so_when_the_price_is_given_back(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await bring(one, await paid(one, 10), CallState.FORWARDING)
    await books.bury("one")
    await two.recover(now_ms=NOW_MS)
    assert await two.resolve(claim.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert (await two.find_call(claim.call_id)).error == "gateway_died"


async def test_calls_of_a_living_gateway_stay(books: Any) -> None:
    one = await books.gateway("one")
    claim = await bring(one, await paid(one, 10), CallState.FORWARDING)
    assert await one.recover(now_ms=NOW_MS) == 0
    assert await state(one, claim.call_id) is CallState.FORWARDING


async def test_an_unknown_call_gives_its_price_back_after_its_time(books: Any) -> None:
    book = await books.gateway("one", limits=Limits(unknown_hold_s=3600))
    claim = await bring(book, await paid(book, 10), CallState.UNKNOWN)
    assert await book.recover(now_ms=NOW_MS + HOUR_MS - 1) == 0
    assert await book.recover(now_ms=NOW_MS + HOUR_MS) == 1
    assert await state(book, claim.call_id) is CallState.RELEASED
    assert await rest(book) == 10
    await assert_balanced(book)


# Reorganisations


async def test_a_payment_that_left_the_chain_is_worth_nothing(book: Any) -> None:
    payment = await paid(book, 10, is_final=False)
    claim = await bring(book, payment, CallState.CONSUMED)
    assert await book.mark_gone(payment.id, now_ms=NOW_MS) == 4
    assert await book.mark_gone(payment.id, now_ms=NOW_MS) == 0
    assert await state(book, claim.call_id) is CallState.REORGED
    assert await book.claim(claim_on(payment)) == Unspendable(is_held=False)
    assert await book.debts(PAYER) == (Debt(chain_id=CHAIN, asset=USDC, payee=PAYEE, units=4),)
    (payment,) = await book.find_payments(payment.tx_hash)
    assert (payment.state, payment.value_units, payment.rest_units) == (PaymentState.GONE, 0, 0)
    await assert_balanced(book)


async def test_a_payer_in_debt_buys_nothing_with_what_is_in_the_same_purse(book: Any) -> None:
    lost = await paid(book, 10, is_final=False)
    here = await paid(book, 20, "here")
    elsewhere = [
        await paid(book, 20, f"elsewhere {n}", **one)
        for n, one in enumerate(
            ({"payee": Address(b"\x02" * 20)}, {"asset": "native"}, {"chain_id": 1}, {"payer": PAYEE})
        )
    ]
    await bring(book, lost, CallState.CONSUMED)
    await book.mark_gone(lost.id, now_ms=NOW_MS)
    assert await book.claim(claim_on(here, 4)) == InDebt(units=4)
    for payment in elsewhere:
        assert isinstance(await book.claim(claim_on(payment, 4)), Claimed)
    await paid(book, 4, "mending")
    assert isinstance(await book.claim(claim_on(here, 4)), Claimed)


async def test_a_debt_that_a_close_makes_counts_for_the_next_claim(book: Any) -> None:
    lost, here = await paid(book, 10, is_final=False), await paid(book, 20, "here")
    running = await bring(book, lost, CallState.FORWARDING)
    await book.mark_gone(lost.id, now_ms=NOW_MS)
    assert isinstance(await book.claim(claim_on(here, 4)), Claimed)
    await book.close(close_of(running))
    assert await book.claim(claim_on(here, 4)) == InDebt(units=4)


async def test_a_final_payment_cannot_leave(book: Any) -> None:
    payment = await paid(book, 10)
    assert await book.mark_gone(payment.id, now_ms=NOW_MS) == 0
    assert await book.find_payments(payment.tx_hash) == (payment,)


async def test_a_payment_that_is_mined_again_takes_its_calls_back(book: Any) -> None:
    payment = await paid(book, 10, is_final=False)
    claim = await bring(book, payment, CallState.REORGED)
    back = await paid(book, 10, is_final=False, block_number=107)
    assert (back.id, back.state, back.rest_units, back.block_number) == (
        payment.id,
        PaymentState.UNFINAL,
        6,
        107,
    )
    assert await state(book, claim.call_id) is CallState.CONSUMED
    assert await book.debts(PAYER) == ()
    assert isinstance(await book.claim(claim_on(back, 6)), Claimed)
    await assert_balanced(book)


async def test_the_next_transfer_pays_the_debt_first_and_in_parts(book: Any) -> None:
    payment = await paid(book, 10, is_final=False)
    calls = [await bring(book, payment, CallState.CONSUMED) for _ in range(2)]
    await book.mark_gone(payment.id, now_ms=NOW_MS)
    assert (await paid(book, 3, "a")).rest_units == 0
    assert (await book.debts(PAYER))[0].units == 5
    assert [await state(book, one.call_id) for one in calls] == [CallState.REORGED] * 2
    assert (await paid(book, 9, "b")).rest_units == 4
    assert await book.debts(PAYER) == ()
    assert [await state(book, one.call_id) for one in calls] == [CallState.CONSUMED] * 2
    await assert_balanced(book)
    assert (await paid(book, 10, is_final=False)).rest_units == 10  # mined again: all of it is credit now
    await assert_balanced(book)


async def test_transfers_into_another_purse_pay_no_debt(book: Any) -> None:
    payment = await paid(book, 10, is_final=False)
    await bring(book, payment, CallState.REORGED)
    for name, other in (
        ("a", {"payee": Address(b"\x02" * 20)}),
        ("b", {"asset": "native"}),
        ("c", {"chain_id": 1}),
    ):
        assert (await paid(book, 9, name, **other)).rest_units == 9
    assert (await book.debts(PAYER))[0].units == 4


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        (CallState.CONSUMED, CallState.REORGED),
        (CallState.RELEASED, CallState.RELEASED),
        (CallState.UNKNOWN, CallState.UNKNOWN),
    ],
)
async def test_a_call_that_runs_while_its_payment_leaves(
    book: Any, after: CallState, ends: CallState
) -> None:
    payment = await paid(book, 10, is_final=False)
    claim = await bring(book, payment, CallState.FORWARDING)
    assert await book.mark_gone(payment.id, now_ms=NOW_MS) == 0
    assert await state(book, claim.call_id) is CallState.FORWARDING
    assert isinstance(await book.close(close_of(claim, after)), Closed)
    assert await state(book, claim.call_id) is ends
    assert sum(debt.units for debt in await book.debts(PAYER)) == (4 if ends is CallState.REORGED else 0)
    assert await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
    await assert_balanced(book)


async def test_a_call_that_a_gone_sibling_helped_owes_that_part(book: Any) -> None:
    shown, helper = await paid(book, 6, "a"), await paid(book, 4, "b", is_final=False)
    claim = await bring(book, shown, CallState.CONSUMED, 10)
    assert await book.mark_gone(helper.id, now_ms=NOW_MS) == 4
    assert await state(book, claim.call_id) is CallState.REORGED
    assert (await book.debts(PAYER))[0].units == 4
    assert await rest(book, "a") == 0
    await paid(book, 4, "b", is_final=False)
    assert await state(book, claim.call_id) is CallState.CONSUMED
    await assert_balanced(book)


# The operator and the house


async def test_balances_are_held_after_a_restore_until_released(book: Any) -> None:
    payment = await paid(book, 10)
    assert (await book.find_recorded(tx_hash("a"))).held_before_ms is None
    await book.note_restored(now_ms=NOW_MS)
    assert (await book.find_recorded(tx_hash("a"))).held_before_ms == NOW_MS
    assert await book.claim(claim_on(payment)) == Unspendable(is_held=True)
    assert (await book.audit()).held_payments == (str(payment.tx_hash),)
    later = await paid(book, 10, "later")
    assert isinstance(await book.claim(claim_on(later)), Claimed)
    assert await book.release_held() == 1
    assert (await book.find_recorded(tx_hash("a"))).held_before_ms is None
    assert isinstance(await book.claim(claim_on(payment)), Claimed)


async def test_an_admitted_transaction_is_remembered(book: Any) -> None:
    await book.admit(tx_hash("a"), now_ms=NOW_MS)
    await book.admit(tx_hash("a"), now_ms=NOW_MS)
    assert (await book.find_recorded(tx_hash("a"))).is_admitted
    assert not (await book.find_recorded(tx_hash("b"))).is_admitted


async def test_downtime_is_the_time_between_notes_that_are_far_apart(book: Any) -> None:
    assert await book.downtime_ms(since_ms=0, now_ms=NOW_MS) == 0
    for ms in (0, 60_000, 160_000, 160_001, 100):
        await book.note_ready(now_ms=NOW_MS + ms)
    at = {"now_ms": NOW_MS + 200_000}
    assert await book.downtime_ms(since_ms=NOW_MS - 1, **at) == 100_000
    assert await book.downtime_ms(since_ms=NOW_MS + 100_000, **at) == 60_000
    assert await book.downtime_ms(since_ms=NOW_MS + 170_000, **at) == 0
    assert await book.downtime_ms(since_ms=NOW_MS + 150_000, now_ms=NOW_MS + 300_001) == 10_000 + 140_000


async def test_tells_which_calls_spend_a_payment(book: Any) -> None:
    payment, helper = await paid(book, 10), await paid(book, 2, "b")
    first = await bring(book, payment, CallState.CONSUMED)
    second = await bring(book, payment, CallState.RELEASED)
    third = await bring(book, payment, CallState.FORWARDING, 4)
    fourth = await bring(book, payment, CallState.CONSUMED, 3)
    ids = [one.call_id for one in (fourth, third, second, first)]
    assert await book.calls_of(payment.id, limit=9) == tuple(ids)
    assert await book.spending_calls(payment.id, limit=9) == (ids[0], ids[1], ids[3])
    assert await book.spending_calls(payment.id, limit=1) == (ids[0],)
    assert await book.spending_calls(helper.id, limit=9) == (ids[0],)
    assert await book.calls_of(helper.id, limit=9) == (ids[0],)


async def test_tells_which_calls_without_an_outcome_hold_something_of_a_payment(book: Any) -> None:
    payment, helper = await paid(book, 10), await paid(book, 4, "b")
    for to in (CallState.CONSUMED, CallState.RELEASED, CallState.FORWARDING):
        await bring(book, payment, to, 1)
    older = await bring(book, payment, CallState.UNKNOWN, 4)
    newer = await bring(book, payment, CallState.UNKNOWN, 8)  # helped out by the other payment
    assert await book.unknown_calls(payment.id, limit=9) == (newer.call_id, older.call_id)
    assert len(await book.unknown_calls(payment.id, limit=1)) == 1
    assert await book.unknown_calls(helper.id, limit=9) == (newer.call_id,)
    assert await book.resolve(newer.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert await book.unknown_calls(payment.id, limit=9) == (older.call_id,)
    assert await book.unknown_calls(helper.id, limit=9) == ()
