"""What every keeper of the books promises between an answer that costs and the money that moved for it."""

import asyncio
from typing import Any

import pytest

from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    USDC,
    attempt_of,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    transfer_in,
    tx_hash,
)
from tollway.errors import StorageUnavailable
from tollway.identifiers import Address
from tollway.ledger.book import POSTPONED_MS_MAX, Claimed, Closed, Exhausted, Fenced
from tollway.ledger.call import CallState, PaymentState, Rail
from tollway.ledger.gas import LaneTaken
from tollway.ledger.kept_answers import StoredAnswer
from tollway.ledger.settled import UNRECOGNISABLE
from tollway.ledger.statement import HistoryQuery
from tollway.limits import DEFAULT_LIMITS, Limits

ANSWER = StoredAnswer(status=200, headers=((b"content-type", b"text/plain"),), body=b"hello")
SETTLED = Closed(rest_units=None)
HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000


async def opened(book: Any, price_units: int = 4, **fields: Any) -> Any:
    claim = authorized_claim(authorization_of(price_units), **fields)
    assert isinstance(await book.claim(claim), Claimed)
    return claim


async def settle(book: Any, claim: Any, nonce: int | None = 0, **fields: Any) -> Any:
    attempt = None if nonce is None else attempt_of(claim, nonce)
    return await book.settle(close_of(claim, CallState.SETTLING, **fields), attempt=attempt, digest=None)


async def settling(book: Any, price_units: int = 4, nonce: int | None = 0, **fields: Any) -> Any:
    claim = await opened(book, price_units, **fields)
    assert await settle(book, claim, nonce) == SETTLED
    return claim


async def adrift(book: Any, **fields: Any) -> Any:
    claim = await settling(book, nonce=None, **fields)
    assert await book.set_adrift(claim.call_id, epoch=1) is True
    return claim


async def conclude(book: Any, claim: Any, name: str = "settled", **fields: Any) -> Any:
    options = {"epoch": 1, "transfer": transfer_in(name), "is_adrift": False, "now_ms": NOW_MS}
    return await book.conclude(claim.call_id, **{**options, **fields})


async def state(book: Any, claim: Any) -> CallState:
    record = await book.find_call(claim.call_id)
    found: CallState = record.state
    return found


async def assert_balanced(book: Any) -> None:
    assert (await book.audit()).wrong == ()


# To settling


async def test_an_answer_that_costs_goes_to_settling_with_its_transaction(book: Any) -> None:
    claim = await opened(book)
    attempt = attempt_of(claim, fee_max_wei=2**80)
    close = close_of(claim, CallState.SETTLING, upstream_status=201, upstream_latency_ms=7)
    assert await book.settle(close, attempt=attempt, digest=b"\x08" * 32) == SETTLED
    found = await book.find_authorized(claim.authorization.key)
    assert (found.state, found.is_adrift, found.transfer) == (CallState.SETTLING, False, None)
    assert found.digest == b"\x08" * 32
    record = await book.find_call(claim.call_id)
    assert (record.state, record.upstream_status, record.latency_ms) == (CallState.SETTLING, 201, 12)
    assert (record.tx_hash, record.completed_ms) == (None, None)
    assert await book.attempts_of(claim.call_id) == (attempt,)
    page = await book.history(HistoryQuery(wallet=PAYER, status="pending"))
    assert [call.id for call in page.calls] == [claim.call_id]
    await assert_balanced(book)


async def test_a_call_may_settle_before_there_is_a_transaction(book: Any) -> None:
    claim = await settling(book, nonce=None)
    assert await book.attempts_of(claim.call_id) == ()
    assert (await book.find_authorized(claim.authorization.key)).digest == claim.digest


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN])
async def test_to_settle_leads_to_settling_only(book: Any, after: CallState) -> None:
    claim = await opened(book)
    with pytest.raises(ValueError, match="settl"):
        await book.settle(close_of(claim, after), attempt=None, digest=None)
    assert await state(book, claim) is CallState.FORWARDING


async def test_only_an_authorised_call_settles(book: Any) -> None:
    (payment,) = await book.record_payments([new_payment(10)], now_ms=NOW_MS)
    for claim in (claim_on(payment), claim_on(None)):
        await book.claim(claim)
        assert await settle(book, claim) == Fenced()
        assert await state(book, claim) is CallState.FORWARDING


async def test_to_settle_by_another_gateway_epoch_or_twice_is_fenced(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await opened(one)
    assert await settle(two, claim) == Fenced()
    assert await settle(one, claim, epoch=2) == Fenced()
    assert await settle(one, authorized_claim(authorization_of())) == Fenced()
    assert await one.attempts_of(claim.call_id) == ()
    assert await settle(one, claim) == SETTLED
    assert await settle(one, claim, 1) == Fenced()
    assert await one.close(close_of(claim)) == Fenced()
    assert len(await one.attempts_of(claim.call_id)) == 1


async def test_an_audit_lists_what_is_settling_as_held(books: Any) -> None:
    """Its price and its answer hang in the air as those of an unknown call do."""
    book = await books.gateway("one")
    first, second = await settling(book), await adrift(book)
    assert (await book.audit()).held_calls == (first.call_id, second.call_id)
    await conclude(book, first)
    assert (await book.audit()).held_calls == (second.call_id,)
    await conclude(book, second, "later", is_adrift=True)
    assert (await book.audit()).held_calls == ()


async def test_the_latency_of_a_settled_call_includes_its_settlement(books: Any) -> None:
    """12 ms until the head, then 250 until the receipt; whom nobody waited for was answered before."""
    book = await books.gateway("one")
    waited, left = await settling(book, nonce=None), await adrift(book)
    books.clock.ms += 250
    await conclude(book, waited, now_ms=books.clock.ms)
    await conclude(book, left, "swept", is_adrift=True, now_ms=books.clock.ms)
    found = [(await book.find_call(claim.call_id)).latency_ms for claim in (waited, left)]
    assert found == [262, 12]


# Lanes


async def test_consecutive_nonces_settle_in_order(book: Any) -> None:
    claims = [await opened(book) for _ in range(10)]
    outcomes = await asyncio.gather(*(settle(book, claim, nonce) for nonce, claim in enumerate(claims)))
    assert outcomes == [SETTLED] * 10


@pytest.mark.parametrize("nonce", [0, 2, 7])
async def test_a_nonce_that_is_not_the_next_one_changes_nothing(book: Any, nonce: int) -> None:
    await settling(book, nonce=0)
    claim = await opened(book)
    assert await settle(book, claim, nonce) == LaneTaken(next_nonce=1)
    assert await state(book, claim) is CallState.FORWARDING
    assert await book.attempts_of(claim.call_id) == ()
    assert await settle(book, claim, 1) == SETTLED


async def test_one_of_many_settlements_gets_the_nonce(book: Any) -> None:
    claims = [await opened(book) for _ in range(10)]
    outcomes = await asyncio.gather(*(settle(book, claim, 0) for claim in claims))
    assert [one == SETTLED for one in outcomes].count(True) == 1
    assert outcomes.count(LaneTaken(next_nonce=1)) == 9


async def test_every_key_and_chain_has_a_lane_of_its_own(book: Any) -> None:
    await settling(book, nonce=0)
    for number, other in enumerate(({"sender": PAYEE}, {"chain_id": 1})):
        claim = await opened(book)
        attempt = attempt_of(claim, 0, f"lane {number}", **other)
        settled = await book.settle(close_of(claim, CallState.SETTLING), attempt=attempt, digest=None)
        assert settled == SETTLED


async def test_a_fee_bump_takes_the_same_nonce_and_a_second_try_the_next(book: Any) -> None:
    claim = await settling(book, nonce=0)
    bump = attempt_of(claim, 0, "bump", created_ms=NOW_MS + 1)
    second = attempt_of(claim, 1, "second", created_ms=NOW_MS + 2)
    assert await book.add_attempt(bump) is True
    assert await book.add_attempt(second) is True
    assert await book.add_attempt(second) is True  # the same again, whose answer was lost
    assert await book.add_attempt(attempt_of(claim, 3)) == LaneTaken(next_nonce=2)
    other = await settling(book, nonce=2)
    assert await book.add_attempt(attempt_of(other, 0, "foreign")) == LaneTaken(next_nonce=3)
    assert [one.tx_hash for one in await book.attempts_of(claim.call_id)] == [
        attempt_of(claim, 0).tx_hash,
        bump.tx_hash,
        second.tx_hash,
    ]


@pytest.mark.parametrize("before", [CallState.FORWARDING, CallState.CONSUMED, CallState.RELEASED])
async def test_an_attempt_is_added_while_the_call_settles_only(book: Any, before: CallState) -> None:
    claim = await opened(book)
    if before is not CallState.FORWARDING:
        await settle(book, claim, None)
        await conclude(book, claim, transfer=transfer_in() if before is CallState.CONSUMED else None)
    assert await state(book, claim) is before
    assert await book.add_attempt(attempt_of(claim, 0)) is False
    assert await book.attempts_of(claim.call_id) == ()
    assert await settle(book, await opened(book), 0) == SETTLED


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED])
async def test_what_a_lane_waits_for_is_replaced_whatever_its_call_has_become(
    book: Any, after: CallState
) -> None:
    claim = await settling(book, nonce=0)
    filler = attempt_of(claim, 0, "filler", created_ms=NOW_MS + 1)
    await conclude(book, claim, transfer=transfer_in() if after is CallState.CONSUMED else None)
    assert await book.add_attempt(filler) is False
    assert await book.add_attempt(filler, is_filling=True) is True
    assert await book.add_attempt(filler, is_filling=True) is True  # the same again, whose answer was lost
    assert len(await book.attempts_of(claim.call_id)) == 2
    assert await state(book, claim) is after
    assert (await book.audit()).is_balanced
    assert await settle(book, await opened(book), 1) == SETTLED


async def test_filling_takes_no_nonce_that_another_call_has_or_that_comes_next(book: Any) -> None:
    claim = await settling(book, nonce=0)
    other = await settling(book, nonce=1)
    assert await book.add_attempt(attempt_of(claim, 2), is_filling=True) is False
    assert await book.add_attempt(attempt_of(claim, 1, "foreign"), is_filling=True) is False
    for elsewhere in ({"sender": PAYEE}, {"chain_id": 1}):
        attempt = attempt_of(claim, 0, "elsewhere", **elsewhere)
        assert await book.add_attempt(attempt, is_filling=True) is False
    ghost = attempt_of(claim, 0, "ghost", call_id="call_unknown")
    assert await book.add_attempt(ghost, is_filling=True) is False
    assert [len(await book.attempts_of(one.call_id)) for one in (claim, other)] == [1, 1]
    assert await settle(book, await opened(book), 2) == SETTLED


# Conclusions of the gateway that waits


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("is_final", [False, True])
async def test_money_that_moved_is_a_payment_that_this_call_took(
    book: Any, method: str, is_final: bool
) -> None:
    claim = await settling(book, method=method)
    transfer = transfer_in(is_final=is_final)
    assert await conclude(book, claim, transfer=transfer) is CallState.CONSUMED
    (payment,) = await book.find_payments(transfer.tx_hash)
    assert (payment.chain_id, payment.asset, payment.payer, payment.payee) == (CHAIN, USDC, PAYER, PAYEE)
    assert (payment.value_units, payment.taken_units, payment.calls) == (4, 4, 1)
    assert payment.state is (PaymentState.FINAL if is_final else PaymentState.UNFINAL)
    assert (payment.block_number, payment.block_hash) == (transfer.block_number, transfer.block_hash)
    assert (payment.block_time, payment.is_authorized) == (transfer.block_time, True)
    record = await book.find_call(claim.call_id)
    assert (record.state, record.rail, record.tx_hash) == (CallState.CONSUMED, Rail.X402, transfer.tx_hash)
    found = await book.find_authorized(claim.authorization.key)
    assert (found.state, found.transfer, found.is_lost) == (CallState.CONSUMED, transfer.tx_hash, False)
    assert await book.spending_calls(payment.id, limit=9) == (claim.call_id,)
    assert await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
    await assert_balanced(book)


async def test_a_settled_transfer_buys_nothing_else(book: Any) -> None:
    claim = await settling(book)
    await conclude(book, claim)
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert await book.claim(claim_on(payment)) == Exhausted(rest_units=0)
    (again,) = await book.record_payments([new_payment(4, "settled")], now_ms=NOW_MS)
    assert (again.id, again.rest_units, again.is_authorized) == (payment.id, 0, True)


async def test_a_settlement_that_surely_failed_releases_the_call(book: Any) -> None:
    claim = await settling(book)
    assert await conclude(book, claim, transfer=None) is CallState.RELEASED
    record = await book.find_call(claim.call_id)
    assert (record.tx_hash, record.completed_ms) == (None, NOW_MS)
    assert (await book.audit()).payments == 0
    await assert_balanced(book)


async def test_authorisations_in_one_transaction_add_up(book: Any) -> None:
    """Anybody may put several authorisations into one transaction; for the books they are one payment."""
    claims = [await settling(book, price, nonce=n) for n, price in enumerate((4, 3, 2))]
    done = await asyncio.gather(*(conclude(book, claim) for claim in claims))
    assert done == [CallState.CONSUMED] * 3
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.taken_units, payment.calls) == (9, 9, 3)
    assert len(await book.spending_calls(payment.id, limit=9)) == 3
    await assert_balanced(book)


@pytest.mark.parametrize("is_credit", [False, True])
async def test_authorisations_that_add_up_to_more_than_64_bits_are_refused(
    book: Any, is_credit: bool
) -> None:
    """2^62 + 2^62: an integer out of range on PostgreSQL, a float on SQLite. `is_credit`: no call takes what has moved."""
    first, beyond, small = [
        await settling(book, units, None, balance_units=2**64, method="POST") for units in (2**62, 2**62, 5)
    ]
    if is_credit:
        for claim in (first, beyond, small):
            await book.set_adrift(claim.call_id, epoch=1)
    end = CallState.RELEASED if is_credit else CallState.CONSUMED
    assert await conclude(book, first, is_adrift=is_credit) is end
    both = (conclude(book, one, is_adrift=is_credit) for one in (beyond, small))
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert (type(outcomes[0]), outcomes[1]) == (StorageUnavailable, end)
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.taken_units) == (2**62 + 5, 0 if is_credit else 2**62 + 5)
    assert type(payment.value_units) is int
    assert await state(book, beyond) is CallState.SETTLING
    await assert_balanced(book)


async def test_a_call_that_succeeded_has_an_end_before_its_answer_has_streamed(book: Any) -> None:
    """Its gateway may die before the finish is written."""
    claim = await settling(book)
    assert await conclude(book, claim, now_ms=NOW_MS + 7) is CallState.CONSUMED
    assert (await book.find_call(claim.call_id)).completed_ms == NOW_MS + 7
    book.finish(finish_of(claim, completed_ms=NOW_MS + 90))
    await book.claim(claim_on(None))  # behind it
    assert (await book.find_call(claim.call_id)).completed_ms == NOW_MS + 90


async def test_the_same_transaction_on_another_chain_or_purse_is_another_payment(book: Any) -> None:
    await conclude(book, await settling(book, nonce=None))
    for other in ({"chain_id": 1}, {"payee": Address(b"\x02" * 20)}, {"payer": Address(b"\x03" * 20)}):
        claim = authorized_claim(authorization_of(4, **other))
        await book.claim(claim)
        await settle(book, claim, None)
        assert await conclude(book, claim) is CallState.CONSUMED
    assert [one.value_units for one in await book.find_payments(tx_hash("settled"))] == [4] * 4


@pytest.mark.parametrize("wrong", [{"epoch": 2}, {"is_adrift": True}])
async def test_a_conclusion_of_another_epoch_or_form_finds_nothing(book: Any, wrong: dict[str, Any]) -> None:
    claim = await settling(book)
    assert await conclude(book, claim, **wrong) is None
    assert await state(book, claim) is CallState.SETTLING
    assert await book.find_payments(tx_hash("settled")) == ()


async def test_another_gateway_concludes_only_what_is_adrift(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await settling(one)
    assert await conclude(two, claim) is None
    assert await conclude(two, claim, is_adrift=True) is None
    assert await two.set_adrift(claim.call_id, epoch=1) is False
    assert await one.set_adrift(claim.call_id, epoch=2) is False
    assert await one.set_adrift(claim.call_id, epoch=1) is True
    assert await one.set_adrift(claim.call_id, epoch=1) is False
    assert await conclude(one, claim) is None
    assert await conclude(two, claim, is_adrift=True) is CallState.CONSUMED
    assert await conclude(one, claim, is_adrift=True) is None
    await assert_balanced(one)


@pytest.mark.parametrize("before", [CallState.FORWARDING, CallState.CONSUMED, CallState.RELEASED])
async def test_only_what_settles_is_concluded(book: Any, before: CallState) -> None:
    claim = await opened(book)
    if before is not CallState.FORWARDING:
        await settle(book, claim, None)
        await conclude(book, claim, transfer=transfer_in() if before is CallState.CONSUMED else None)
    for form in (False, True):
        assert await conclude(book, claim, "other", is_adrift=form) is None
    assert await book.set_adrift(claim.call_id, epoch=1) is False
    assert await state(book, claim) is before
    assert await book.find_payments(tx_hash("other")) == ()


# Adrift


async def test_calls_adrift_are_looked_at_least_recently_looked_at_first(books: Any) -> None:
    book = await books.gateway("one")
    await settling(book, nonce=None)
    claims = [await adrift(book) for _ in range(3)]
    ids = [claim.call_id for claim in claims]
    first = await book.unsettled(limit=2)
    assert [one.call_id for one in first] == ids[:2]
    assert (first[0].is_adrift, first[0].state) == (True, CallState.SETTLING)
    assert first[0].authorization == claims[0].authorization
    books.clock.ms += 1
    assert [one.call_id for one in await book.unsettled(limit=1)] == [ids[2]]
    books.clock.ms += 1
    assert [one.call_id for one in await book.unsettled(limit=2)] == ids[:2]
    await conclude(book, claims[0], is_adrift=True)
    assert {one.call_id for one in await book.unsettled(limit=9)} == set(ids[1:])


async def test_a_call_that_is_postponed_has_its_turn_later_and_takes_nobody_elses(books: Any) -> None:
    book = await books.gateway("one")
    idle, busy = [await adrift(book) for _ in range(2)]
    waiting = await settling(book, nonce=None)
    for claim in (idle, waiting):  # of one that is not adrift there is nothing to postpone
        await book.postpone(claim.call_id, until_ms=NOW_MS + 100)
    for _ in range(3):
        books.clock.ms += 1
        assert [one.call_id for one in await book.unsettled(limit=1)] == [busy.call_id]
    await book.set_adrift(waiting.call_id, epoch=1)
    assert [one.call_id for one in await book.unsettled(limit=1)] == [waiting.call_id]
    books.clock.ms = NOW_MS + 99
    assert idle.call_id not in {one.call_id for one in await book.unsettled(limit=9)}
    books.clock.ms += 1
    assert idle.call_id in {one.call_id for one in await book.unsettled(limit=9)}


@pytest.mark.parametrize(
    ("method", "is_stored", "ends", "is_lost"),
    [
        ("POST", True, CallState.CONSUMED, False),
        ("GET", True, CallState.CONSUMED, False),
        ("GET", False, CallState.CONSUMED, True),
        ("HEAD", False, CallState.CONSUMED, True),
        ("POST", False, CallState.RELEASED, False),
        ("DELETE", False, CallState.RELEASED, False),
    ],
)
async def test_what_becomes_of_a_call_adrift_whose_money_moved(
    books: Any, method: str, is_stored: bool, ends: CallState, is_lost: bool
) -> None:
    book = await books.gateway("one")
    claim = await adrift(book, method=method)
    if is_stored:
        assert await books.answers().keep(claim.call_id, PAYER, ANSWER, now_ms=NOW_MS)
    assert await conclude(book, claim, is_adrift=True) is ends
    found = await book.find_authorized(claim.authorization.key)
    assert (found.state, found.is_lost, found.has_answer, found.is_adrift) == (
        ends,
        is_lost,
        is_stored,
        False,
    )
    assert found.transfer == tx_hash("settled")
    record = await book.find_call(claim.call_id)
    assert (record.tx_hash, record.completed_ms) == (tx_hash("settled"), NOW_MS)
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.rest_units) == (4, 0 if ends is CallState.CONSUMED else 4)
    await assert_balanced(book)


async def test_what_nobody_can_ask_for_again_is_credit(book: Any) -> None:
    """Its body was streamed, and was not known at the head: whoever shows the same again could not be recognised."""
    claim = await adrift(book, method="GET", digest=UNRECOGNISABLE)
    assert await conclude(book, claim, is_adrift=True) is CallState.RELEASED
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert payment.rest_units == 4
    known = await opened(book, method="GET", digest=UNRECOGNISABLE)
    await book.settle(close_of(known, CallState.SETTLING), attempt=None, digest=b"\x08" * 32)
    await book.set_adrift(known.call_id, epoch=1)
    assert await conclude(book, known, "another", is_adrift=True) is CallState.CONSUMED


async def test_what_has_run_as_often_as_it_may_is_credit(books: Any) -> None:
    book = await books.gateway("one", limits=Limits(attempts_max=2))
    claim = await opened(book)
    await book.close(close_of(claim, CallState.UNKNOWN))
    assert isinstance(await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    assert await settle(book, claim, None, epoch=2) == SETTLED
    await book.set_adrift(claim.call_id, epoch=2)
    assert await conclude(book, claim, epoch=2, is_adrift=True) is CallState.RELEASED


async def test_a_call_adrift_whose_money_never_moves_is_released(book: Any) -> None:
    claim = await adrift(book)
    assert await conclude(book, claim, is_adrift=True, transfer=None) is CallState.RELEASED
    assert (await book.audit()).payments == 0
    assert await book.unsettled(limit=9) == ()


async def test_a_lost_call_runs_again_once_and_stays_charged(book: Any) -> None:
    claim = await adrift(book)
    await conclude(book, claim, is_adrift=True)
    reopened = await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert reopened == Claimed(epoch=2, rest_units=0, rail=Rail.X402, before=CallState.CONSUMED)
    assert await settle(book, claim, epoch=2) == Fenced()  # its money has moved
    assert await book.close(close_of(claim, epoch=2)) == Closed(rest_units=0)
    book.finish(finish_of(claim, epoch=2, is_cut=True))
    assert await book.reopen(claim.call_id, epoch=2, now_ms=NOW_MS) == Fenced()
    assert (await book.find_authorized(claim.authorization.key)).is_lost is False
    await assert_balanced(book)


async def test_a_lost_call_that_runs_again_does_not_count_against_the_balance(book: Any) -> None:
    claim = await adrift(book)
    await conclude(book, claim, is_adrift=True)
    await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    other = authorized_claim(authorization_of(4), balance_units=4, block_number=101)
    assert isinstance(await book.claim(other), Claimed)


async def test_a_repeat_of_a_lost_call_may_end_unknown_and_be_decided_by_the_provider(book: Any) -> None:
    claim = await adrift(book)
    await conclude(book, claim, is_adrift=True)
    await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    await book.close(close_of(claim, CallState.UNKNOWN, epoch=2))
    assert await book.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS) is True
    await assert_balanced(book)


async def test_what_an_unanswered_call_moved_is_credit_of_its_payer(book: Any) -> None:
    claim = await adrift(book, method="POST")
    await conclude(book, claim, is_adrift=True)
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert await book.claim(claim_on(payment, 3)) == Claimed(epoch=1, rest_units=1, rail=Rail.TX)
    assert await book.spending_calls(payment.id, limit=9) != (claim.call_id,)
    await assert_balanced(book)


async def test_credit_pays_the_debt_of_its_purse_first(book: Any) -> None:
    (lost,) = await book.record_payments([new_payment(3, "lost", is_final=False)], now_ms=NOW_MS)
    owing, claim = claim_on(lost, 3), await adrift(book, method="POST")
    await book.claim(owing)
    await book.close(close_of(owing))
    await book.mark_gone(lost.id, now_ms=NOW_MS)
    assert [debt.units for debt in await book.debts(PAYER)] == [3]
    await conclude(book, claim, is_adrift=True)
    assert await book.debts(PAYER) == ()
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert payment.rest_units == 1
    assert await state(book, owing) is CallState.CONSUMED
    await assert_balanced(book)


async def test_one_of_many_sweepers_concludes(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await adrift(one, method="POST")
    outcomes = await asyncio.gather(
        *(conclude(book, claim, is_adrift=True) for book in (one, two) for _ in range(5))
    )
    assert sorted(outcomes, key=str) == [None] * 9 + [CallState.RELEASED]
    (payment,) = await one.find_payments(tx_hash("settled"))
    assert payment.value_units == 4


# Unknown


async def unknown(book: Any, **fields: Any) -> Any:
    """Sent, and no head came; its authorisation may have moved its money all the same."""
    claim = await opened(book, **fields)
    await book.close(close_of(claim, CallState.UNKNOWN, http_status=504, upstream_status=None))
    return claim


async def test_an_unknown_call_waits_for_a_look_once_its_time_is_over(books: Any) -> None:
    book = await books.gateway("one")
    claim, fresh = await unknown(book), await unknown(book)
    paid = await adrift(book)  # its money has moved: nothing waits for a look there
    await conclude(book, paid, is_adrift=True)
    await book.reopen(paid.call_id, epoch=1, now_ms=NOW_MS)
    await book.close(close_of(paid, CallState.UNKNOWN, epoch=2))
    books.clock.ms += HOLD_MS - 1
    await book.reopen(fresh.call_id, epoch=1, now_ms=NOW_MS)
    await book.close(close_of(fresh, CallState.UNKNOWN, epoch=2))
    assert await book.unsettled(limit=9) == ()
    books.clock.ms += 1
    (found,) = await book.unsettled(limit=9)
    assert await book.recover(now_ms=books.clock.ms) == 1  # the one that is paid
    assert (found.call_id, found.state, found.is_adrift, found.transfer) == (
        claim.call_id,
        CallState.UNKNOWN,
        False,
        None,
    )


async def test_calls_adrift_and_unknown_ones_take_turns(books: Any) -> None:
    book = await books.gateway("one")
    one, two = await unknown(book), await unknown(book)
    books.clock.ms += HOLD_MS
    three = await adrift(book)
    ids = [one.call_id, two.call_id, three.call_id]
    assert [found.call_id for found in await book.unsettled(limit=2)] == ids[:2]
    books.clock.ms += 1
    assert [found.call_id for found in await book.unsettled(limit=1)] == ids[2:]
    await book.postpone(one.call_id, until_ms=books.clock.ms + 10)
    books.clock.ms += 9
    assert [found.call_id for found in await book.unsettled(limit=9)] == [ids[1], ids[2]]
    books.clock.ms += 1
    assert {found.call_id for found in await book.unsettled(limit=9)} == set(ids)


@pytest.mark.parametrize(("ahead_ms", "is_due"), [(POSTPONED_MS_MAX, False), (POSTPONED_MS_MAX + 1, True)])
async def test_what_a_clock_set_back_has_put_far_off_is_due(book: Any, ahead_ms: int, is_due: bool) -> None:
    claim = await adrift(book)
    await book.postpone(claim.call_id, until_ms=NOW_MS + ahead_ms)
    assert len(await book.unsettled(limit=9)) == is_due


async def test_a_call_that_was_postponed_while_unknown_is_looked_at_when_it_is_adrift(book: Any) -> None:
    claim = await unknown(book)
    await book.postpone(claim.call_id, until_ms=NOW_MS * 2)
    await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    await settle(book, claim, None, epoch=2)
    await book.set_adrift(claim.call_id, epoch=2)
    assert [found.call_id for found in await book.unsettled(limit=9)] == [claim.call_id]


@pytest.mark.parametrize(
    ("fields", "ends", "is_lost"),
    [
        ({"method": "GET"}, CallState.CONSUMED, True),
        ({"method": "POST"}, CallState.RELEASED, False),
        ({"method": "GET", "digest": UNRECOGNISABLE}, CallState.RELEASED, False),
    ],
)
async def test_what_moved_for_an_unknown_call_is_a_payment(
    books: Any, fields: dict[str, Any], ends: CallState, is_lost: bool
) -> None:
    """Whoever looks at the chain may conclude it at once: only the look in vain has to wait."""
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await unknown(one, **fields)
    assert await conclude(two, claim, is_adrift=True) is ends
    assert await conclude(two, claim, "other", is_adrift=True) is None
    found = await one.find_authorized(claim.authorization.key)
    assert (found.state, found.is_lost, found.transfer) == (ends, is_lost, tx_hash("settled"))
    (payment,) = await one.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.rest_units) == (4, 0 if is_lost else 4)
    assert await one.find_payments(tx_hash("other")) == ()
    outcome = await one.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert isinstance(outcome, Claimed) is is_lost
    await assert_balanced(one)


async def test_an_unknown_call_for_which_nothing_ever_moves_is_released(book: Any) -> None:
    claim = await unknown(book)
    assert await conclude(book, claim, transfer=None, is_adrift=True) is CallState.RELEASED
    assert isinstance(await book.claim(authorized_claim(claim.authorization)), Claimed)
    await assert_balanced(book)


async def test_an_unknown_call_is_concluded_only_as_it_was_seen(book: Any) -> None:
    """It may run again between the look and the conclusion; and one that has a payment is not asked about."""
    claim = await unknown(book)
    assert await conclude(book, claim) is None  # nobody waits for it
    assert await conclude(book, claim, is_adrift=True, epoch=2) is None
    await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    for epoch in (1, 2):
        assert await conclude(book, claim, is_adrift=True, epoch=epoch) is None
    assert await state(book, claim) is CallState.FORWARDING
    paid = await adrift(book)
    await conclude(book, paid, "paid", is_adrift=True)
    await book.reopen(paid.call_id, epoch=1, now_ms=NOW_MS)
    await book.close(close_of(paid, CallState.UNKNOWN, epoch=2))
    assert await conclude(book, paid, "other", is_adrift=True, epoch=2) is None
    assert await book.find_payments(tx_hash("other")) == ()
    await assert_balanced(book)


# Recovery


async def test_what_a_dead_gateway_was_settling_is_adrift(books: Any) -> None:
    one, two = await books.gateway("one"), await books.gateway("two")
    claim = await settling(one)
    await books.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    assert await two.recover(now_ms=NOW_MS) == 0
    assert [found.call_id for found in await two.unsettled(limit=9)] == [claim.call_id]
    assert await conclude(one, claim) is None
    assert await conclude(two, claim, is_adrift=True) is CallState.CONSUMED
    await assert_balanced(two)


async def test_what_a_living_gateway_is_settling_stays(books: Any) -> None:
    one = await books.gateway("one")
    claim = await settling(one)
    assert await one.recover(now_ms=NOW_MS) == 0
    assert await one.unsettled(limit=9) == ()
    assert await conclude(one, claim) is CallState.CONSUMED


# Reorganisations


async def test_a_settled_transfer_that_left_the_chain_is_a_debt_until_it_is_back(book: Any) -> None:
    claim = await settling(book)
    await conclude(book, claim)
    (payment,) = await book.find_payments(tx_hash("settled"))
    (block,) = await book.unfinal_blocks(payment.chain_id, after=None, limit=9)
    assert [one.id for one in await book.unfinal_in(block, after_id=0, limit=9)] == [payment.id]
    assert await book.mark_gone(payment.id, now_ms=NOW_MS) == 4
    assert await state(book, claim) is CallState.REORGED
    assert [debt.units for debt in await book.debts(PAYER)] == [4]
    await assert_balanced(book)
    back = new_payment(999, "settled", is_final=False, block_number=107)
    (again,) = await book.record_payments([back], now_ms=NOW_MS)
    assert (again.id, again.value_units, again.rest_units) == (payment.id, 4, 0)
    assert (again.is_authorized, again.block_number) == (True, 107)
    assert await state(book, claim) is CallState.CONSUMED
    assert await book.debts(PAYER) == ()
    await assert_balanced(book)


async def test_credit_that_left_the_chain_and_came_back_is_worth_the_same(book: Any) -> None:
    claim = await adrift(book, method="POST")
    await conclude(book, claim, is_adrift=True)
    (payment,) = await book.find_payments(tx_hash("settled"))
    assert await book.mark_gone(payment.id, now_ms=NOW_MS) == 0
    (gone,) = await book.find_payments(tx_hash("settled"))
    assert (gone.state, gone.rest_units) == (PaymentState.GONE, 0)
    (back,) = await book.record_payments([new_payment(0, "settled")], now_ms=NOW_MS)
    assert (back.state, back.rest_units) == (PaymentState.FINAL, 4)
    await assert_balanced(book)


async def test_a_second_authorisation_of_a_transaction_that_is_gone_owes_until_it_is_back(book: Any) -> None:
    first, second = await settling(book, 4, nonce=0), await settling(book, 3, nonce=1)
    await conclude(book, first)
    (payment,) = await book.find_payments(tx_hash("settled"))
    await book.mark_gone(payment.id, now_ms=NOW_MS)
    assert await conclude(book, second) is CallState.REORGED
    assert [debt.units for debt in await book.debts(PAYER)] == [7]
    await assert_balanced(book)
    (back,) = await book.record_payments([new_payment(0, "settled")], now_ms=NOW_MS)
    assert (back.value_units, back.rest_units) == (7, 0)
    assert [await state(book, one) for one in (first, second)] == [CallState.CONSUMED] * 2
    await assert_balanced(book)


async def test_credit_in_a_transaction_that_is_gone_pays_no_debt_until_it_is_back(book: Any) -> None:
    first = await settling(book, 4, nonce=0)
    second = await settling(book, 3, nonce=1, method="POST")
    await book.set_adrift(second.call_id, epoch=1)
    await conclude(book, first)
    (payment,) = await book.find_payments(tx_hash("settled"))
    await book.mark_gone(payment.id, now_ms=NOW_MS)
    assert await conclude(book, second, is_adrift=True) is CallState.RELEASED
    assert [debt.units for debt in await book.debts(PAYER)] == [4]
    await assert_balanced(book)
    (back,) = await book.record_payments([new_payment(0, "settled")], now_ms=NOW_MS)
    assert (back.value_units, back.rest_units, await book.debts(PAYER)) == (7, 3, ())
    await assert_balanced(book)


async def test_history_names_transaction_and_payee_of_an_authorised_call(book: Any) -> None:
    claim = await settling(book, listing_id="api_7")
    await conclude(book, claim)
    page = await book.history(HistoryQuery(wallet=PAYER, status="succeeded"))
    (record,) = page.calls
    assert (record.pay_to, record.tx_hash, record.asset) == (PAYEE, tx_hash("settled"), USDC)
    assert (record.rail, record.chain_id) == (Rail.X402, CHAIN)
    (payment,) = await book.payments_of(PAYER, limit=9, offset=0)
    assert await book.calls_of(payment.id, limit=9) == (claim.call_id,)


async def test_a_stored_answer_is_told_with_its_call(books: Any) -> None:
    book = await books.gateway("one")
    claim = await opened(book, idempotency_key="key")
    await books.answers().keep(claim.call_id, PAYER, ANSWER, now_ms=NOW_MS)
    assert (await book.find_authorized(claim.authorization.key)).has_answer is True
    assert (await book.find_keyed(PAYER, "key", since_ms=0)).has_answer is True
    books.clock.ms += 24 * 3_600_000
    assert (await book.find_authorized(claim.authorization.key)).has_answer is False
    assert (await book.find_keyed(PAYER, "key", since_ms=0)).has_answer is False
