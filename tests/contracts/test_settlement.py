"""The contract of `Ledger` for settlements: from the charged response to the transfer."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYEE,
    PAYER,
    PROVIDER,
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
    wait_finished,
)
from tests.kit.ledger_steps import assert_balanced, conclude, open_authorized, pay, read_state, settle
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId
from tollway.ledger.history import HistoryQuery, PaymentQuery
from tollway.ledger.ledger import (
    POSTPONED_MS_MAX,
    Claimed,
    Closed,
    Exhausted,
    Fenced,
    NonceUnavailable,
    StoredResponse,
)
from tollway.ledger.records import UNKNOWN_DIGEST, CallState, PaymentState, Rail
from tollway.limits import DEFAULT_LIMITS, Limits

ANSWER = StoredResponse(status=200, headers=((b"content-type", b"text/plain"),), body=b"hello")
SETTLED = Closed(remaining_units=None)
HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000


async def settling(ledger: Any, price_units: int = 4, nonce: int | None = 0, **fields: Any) -> Any:
    claim = await open_authorized(ledger, price_units, **fields)
    assert await settle(ledger, claim, nonce) == SETTLED
    return claim


async def orphaned(ledger: Any, **fields: Any) -> Any:
    claim = await settling(ledger, nonce=None, **fields)
    assert await ledger.mark_orphaned(claim.call_id, epoch=1) is True
    return claim


# To settling


async def test_a_charged_response_goes_to_settling_with_its_transaction(ledger: Any) -> None:
    claim = await open_authorized(ledger)
    attempt = attempt_of(claim, fee_max_wei=2**80)
    close = close_of(claim, CallState.SETTLING, upstream_status=201, upstream_latency_ms=7)
    assert await ledger.settle(close, attempt=attempt, digest=b"\x08" * 32) == SETTLED
    found = await ledger.find_authorized_call(claim.authorization.key)
    assert (found.state, found.is_orphaned, found.transfer) == (CallState.SETTLING, False, None)
    assert found.digest == b"\x08" * 32
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.upstream_status, record.latency_ms) == (CallState.SETTLING, 201, 12)
    assert (record.tx_hash, record.completed_ms) == (None, None)
    assert await ledger.attempts_of(claim.call_id) == (attempt,)
    page = await ledger.history(HistoryQuery(wallet=PAYER, status="pending"))
    assert [call.id for call in page.calls] == [claim.call_id]
    await assert_balanced(ledger)


async def test_a_call_may_settle_before_there_is_a_transaction(ledger: Any) -> None:
    claim = await settling(ledger, nonce=None)
    assert await ledger.attempts_of(claim.call_id) == ()
    assert (await ledger.find_authorized_call(claim.authorization.key)).digest == claim.digest


async def test_to_settle_leads_to_settling_only(ledger: Any) -> None:
    claim = await open_authorized(ledger)
    for after in (CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN):
        with pytest.raises(ValueError, match="settl"):
            await ledger.settle(close_of(claim, after), attempt=None, digest=None)
        assert await read_state(ledger, claim) is CallState.FORWARDING


async def test_only_an_authorised_call_settles(ledger: Any) -> None:
    payment = await pay(ledger, 10)
    for claim in (claim_on(payment), claim_on(None)):
        await ledger.claim(claim)
        assert await settle(ledger, claim) == Fenced()
        assert await read_state(ledger, claim) is CallState.FORWARDING


async def test_to_settle_by_another_gateway_epoch_or_twice_is_fenced(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await open_authorized(one)
    assert await settle(two, claim) == Fenced()
    assert await settle(one, claim, epoch=2) == Fenced()
    assert await settle(one, authorized_claim(authorization_of())) == Fenced()
    assert await one.attempts_of(claim.call_id) == ()
    assert await settle(one, claim) == SETTLED
    assert await settle(one, claim, 1) == Fenced()
    assert await one.close(close_of(claim)) == Fenced()
    assert len(await one.attempts_of(claim.call_id)) == 1


async def test_an_audit_lists_what_is_settling_as_held(ledgers: Any) -> None:
    """Its price and its response are undecided, as those of an unknown call."""
    ledger = await ledgers.gateway("one")
    first, second = await settling(ledger), await orphaned(ledger)
    assert (await ledger.audit()).held_calls == (first.call_id, second.call_id)
    await conclude(ledger, first)
    assert (await ledger.audit()).held_calls == (second.call_id,)
    await conclude(ledger, second, "later", is_orphaned=True)
    assert (await ledger.audit()).held_calls == ()


async def test_the_latency_of_a_settled_call_includes_its_settlement(ledgers: Any) -> None:
    """12 ms until the head, then 250 ms until the receipt; without a waiting caller only the first part counts."""
    ledger = await ledgers.gateway("one")
    waited, left = await settling(ledger, nonce=None), await orphaned(ledger)
    ledgers.clock.ms += 250
    await conclude(ledger, waited, now_ms=ledgers.clock.ms)
    await conclude(ledger, left, "swept", is_orphaned=True, now_ms=ledgers.clock.ms)
    found = [(await ledger.find_call(claim.call_id)).latency_ms for claim in (waited, left)]
    assert found == [262, 12]


# Lanes


async def test_consecutive_nonces_settle_in_order(ledger: Any) -> None:
    claims = [await open_authorized(ledger) for _ in range(10)]
    outcomes = await asyncio.gather(*(settle(ledger, claim, nonce) for nonce, claim in enumerate(claims)))
    assert outcomes == [SETTLED] * 10


async def test_a_nonce_that_is_not_the_next_one_changes_nothing(ledger: Any) -> None:
    await settling(ledger, nonce=0)
    claim = await open_authorized(ledger)
    for nonce in (0, 2, 7):
        assert await settle(ledger, claim, nonce) == NonceUnavailable(next_nonce=1)
        assert await read_state(ledger, claim) is CallState.FORWARDING
        assert await ledger.attempts_of(claim.call_id) == ()
    assert await settle(ledger, claim, 1) == SETTLED


async def test_one_of_many_settlements_gets_the_nonce(ledger: Any) -> None:
    claims = [await open_authorized(ledger) for _ in range(10)]
    outcomes = await asyncio.gather(*(settle(ledger, claim, 0) for claim in claims))
    assert [one == SETTLED for one in outcomes].count(True) == 1
    assert outcomes.count(NonceUnavailable(next_nonce=1)) == 9


async def test_every_signer_and_chain_has_its_own_nonces(ledger: Any) -> None:
    await settling(ledger, nonce=0)
    for number, other in enumerate(({"sender": PAYEE}, {"chain_id": 1})):
        claim = await open_authorized(ledger)
        attempt = attempt_of(claim, 0, f"lane {number}", **other)
        settled = await ledger.settle(close_of(claim, CallState.SETTLING), attempt=attempt, digest=None)
        assert settled == SETTLED


async def test_a_fee_bump_takes_the_same_nonce_and_a_second_try_the_next(ledger: Any) -> None:
    claim = await settling(ledger, nonce=0)
    bump = attempt_of(claim, 0, "bump", created_ms=NOW_MS + 1)
    second = attempt_of(claim, 1, "second", created_ms=NOW_MS + 2)
    assert await ledger.add_attempt(bump) is True
    assert await ledger.add_attempt(second) is True
    assert await ledger.add_attempt(second) is True  # the same entry again, after its response was lost
    assert await ledger.add_attempt(attempt_of(claim, 3)) == NonceUnavailable(next_nonce=2)
    other = await settling(ledger, nonce=2)
    assert await ledger.add_attempt(attempt_of(other, 0, "foreign")) == NonceUnavailable(next_nonce=3)
    assert [one.tx_hash for one in await ledger.attempts_of(claim.call_id)] == [
        attempt_of(claim, 0).tx_hash,
        bump.tx_hash,
        second.tx_hash,
    ]


NOT_SETTLING = (CallState.FORWARDING, CallState.CONSUMED, CallState.RELEASED)


async def bring(ledger: Any, to: CallState) -> Any:
    """Makes a call in that state of `NOT_SETTLING`."""
    claim = await open_authorized(ledger)
    if to is not CallState.FORWARDING:
        await settle(ledger, claim, None)
        await conclude(ledger, claim, transfer=transfer_in() if to is CallState.CONSUMED else None)
    assert await read_state(ledger, claim) is to
    return claim


async def test_an_attempt_is_added_while_the_call_settles_only(ledger: Any) -> None:
    for before in NOT_SETTLING:
        claim = await bring(ledger, before)
        assert await ledger.add_attempt(attempt_of(claim, 0)) is False, before
        assert await ledger.attempts_of(claim.call_id) == (), before
    assert await settle(ledger, await open_authorized(ledger), 0) == SETTLED


@pytest.mark.parametrize("after", [CallState.CONSUMED, CallState.RELEASED])
async def test_an_open_nonce_is_replaced_in_every_state_of_its_call(ledger: Any, after: CallState) -> None:
    claim = await settling(ledger, nonce=0)
    filler = attempt_of(claim, 0, "filler", created_ms=NOW_MS + 1)
    await conclude(ledger, claim, transfer=transfer_in() if after is CallState.CONSUMED else None)
    assert await ledger.add_attempt(filler) is False
    assert await ledger.add_attempt(filler, is_filling=True) is True
    assert (
        await ledger.add_attempt(filler, is_filling=True) is True
    )  # the same entry again, after its response was lost
    assert len(await ledger.attempts_of(claim.call_id)) == 2
    assert await read_state(ledger, claim) is after
    assert (await ledger.audit()).is_balanced
    assert await settle(ledger, await open_authorized(ledger), 1) == SETTLED


async def test_filling_takes_no_nonce_that_another_call_has_or_that_comes_next(ledger: Any) -> None:
    claim = await settling(ledger, nonce=0)
    other = await settling(ledger, nonce=1)
    assert await ledger.add_attempt(attempt_of(claim, 2), is_filling=True) is False
    assert await ledger.add_attempt(attempt_of(claim, 1, "foreign"), is_filling=True) is False
    for elsewhere in ({"sender": PAYEE}, {"chain_id": 1}):
        attempt = attempt_of(claim, 0, "elsewhere", **elsewhere)
        assert await ledger.add_attempt(attempt, is_filling=True) is False
    ghost = attempt_of(claim, 0, "ghost", call_id="call_unknown")
    assert await ledger.add_attempt(ghost, is_filling=True) is False
    assert [len(await ledger.attempts_of(one.call_id)) for one in (claim, other)] == [1, 1]
    assert await settle(ledger, await open_authorized(ledger), 2) == SETTLED


# Conclusions of the gateway that waits


async def test_a_settled_transfer_is_a_payment_taken_by_its_call(ledger: Any) -> None:
    for method, is_final in (("GET", False), ("GET", True), ("POST", False), ("POST", True)):
        claim = await settling(ledger, nonce=None, method=method)
        transfer = transfer_in(f"{method} {is_final}", is_final=is_final)
        assert await conclude(ledger, claim, transfer=transfer) is CallState.CONSUMED
        (payment,) = await ledger.find_payments(transfer.tx_hash)
        assert (payment.chain_id, payment.asset, payment.payer, payment.payee) == (CHAIN, USDC, PAYER, PAYEE)
        assert (payment.value_units, payment.taken_units, payment.calls) == (4, 4, 1)
        assert payment.state is (PaymentState.FINAL if is_final else PaymentState.UNFINAL)
        assert (payment.block_number, payment.block_hash) == (transfer.block_number, transfer.block_hash)
        assert (payment.block_time, payment.is_authorized) == (transfer.block_time, True)
        record = await ledger.find_call(claim.call_id)
        ended = (record.state, record.rail, record.tx_hash)
        assert ended == (CallState.CONSUMED, Rail.X402, transfer.tx_hash)
        found = await ledger.find_authorized_call(claim.authorization.key)
        assert (found.state, found.transfer, found.is_lost) == (CallState.CONSUMED, transfer.tx_hash, False)
        assert await ledger.spending_calls(payment.id, limit=9) == (claim.call_id,)
        assert await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) == Fenced()
        await assert_balanced(ledger)


async def test_a_settled_transfer_buys_nothing_else(ledger: Any) -> None:
    claim = await settling(ledger)
    await conclude(ledger, claim)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert await ledger.claim(claim_on(payment)) == Exhausted(remaining_units=0)
    again = await pay(ledger, 4, "settled")
    assert (again.id, again.remaining_units, again.is_authorized) == (payment.id, 0, True)


async def test_a_settlement_that_failed_finally_releases_the_call(ledger: Any) -> None:
    claim = await settling(ledger)
    assert await conclude(ledger, claim, transfer=None) is CallState.RELEASED
    record = await ledger.find_call(claim.call_id)
    assert (record.tx_hash, record.completed_ms) == (None, NOW_MS)
    assert (await ledger.audit()).payments == 0
    await assert_balanced(ledger)


async def test_authorisations_in_one_transaction_add_up(ledger: Any) -> None:
    """Any sender may put several authorisations into one transaction; in the ledger they are one payment."""
    claims = [await settling(ledger, price, nonce=n) for n, price in enumerate((4, 3, 2))]
    done = await asyncio.gather(*(conclude(ledger, claim) for claim in claims))
    assert done == [CallState.CONSUMED] * 3
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.taken_units, payment.calls) == (9, 9, 3)
    assert len(await ledger.spending_calls(payment.id, limit=9)) == 3
    await assert_balanced(ledger)


@pytest.mark.parametrize("is_credit", [False, True])
async def test_authorisations_that_add_up_to_more_than_64_bits_are_refused(
    ledger: Any, is_credit: bool
) -> None:
    """2^62 + 2^62: an integer out of range on PostgreSQL, a float on SQLite. `is_credit`: no call takes what has moved."""
    first, beyond, small = [
        await settling(ledger, units, None, balance_units=2**64, method="POST") for units in (2**62, 2**62, 5)
    ]
    if is_credit:
        for claim in (first, beyond, small):
            await ledger.mark_orphaned(claim.call_id, epoch=1)
    end = CallState.RELEASED if is_credit else CallState.CONSUMED
    assert await conclude(ledger, first, is_orphaned=is_credit) is end
    both = (conclude(ledger, one, is_orphaned=is_credit) for one in (beyond, small))
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    assert (type(outcomes[0]), outcomes[1]) == (StorageUnavailable, end)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert (payment.value_units, payment.taken_units) == (2**62 + 5, 0 if is_credit else 2**62 + 5)
    assert type(payment.value_units) is int
    assert await read_state(ledger, beyond) is CallState.SETTLING
    await assert_balanced(ledger)


async def test_a_call_that_succeeded_has_an_end_before_its_answer_has_streamed(ledger: Any) -> None:
    """Its gateway may die before the finish is written."""
    claim = await settling(ledger)
    assert await conclude(ledger, claim, now_ms=NOW_MS + 7) is CallState.CONSUMED
    assert (await ledger.find_call(claim.call_id)).completed_ms == NOW_MS + 7
    ledger.finish(finish_of(claim, completed_ms=NOW_MS + 90))
    await wait_finished(ledger, claim.call_id)
    assert (await ledger.find_call(claim.call_id)).completed_ms == NOW_MS + 90


async def test_the_same_transaction_on_another_chain_or_account_is_another_payment(ledger: Any) -> None:
    await conclude(ledger, await settling(ledger, nonce=None))
    for other in ({"chain_id": 1}, {"payee": Address(b"\x02" * 20)}, {"payer": Address(b"\x03" * 20)}):
        claim = authorized_claim(authorization_of(4, **other))
        await ledger.claim(claim)
        await settle(ledger, claim, None)
        assert await conclude(ledger, claim) is CallState.CONSUMED
    assert [one.value_units for one in await ledger.find_payments(tx_hash("settled"))] == [4] * 4


async def test_a_conclusion_of_another_epoch_or_form_finds_nothing(ledger: Any) -> None:
    claim = await settling(ledger)
    for wrong in ({"epoch": 2}, {"is_orphaned": True}):
        assert await conclude(ledger, claim, **wrong) is None, wrong
        assert await read_state(ledger, claim) is CallState.SETTLING, wrong
        assert await ledger.find_payments(tx_hash("settled")) == (), wrong


async def test_another_gateway_concludes_only_orphaned_calls(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await settling(one)
    assert await conclude(two, claim) is None
    assert await conclude(two, claim, is_orphaned=True) is None
    assert await two.mark_orphaned(claim.call_id, epoch=1) is False
    assert await one.mark_orphaned(claim.call_id, epoch=2) is False
    assert await one.mark_orphaned(claim.call_id, epoch=1) is True
    assert await one.mark_orphaned(claim.call_id, epoch=1) is False
    assert await conclude(one, claim) is None
    assert await conclude(two, claim, is_orphaned=True) is CallState.CONSUMED
    assert await conclude(one, claim, is_orphaned=True) is None
    await assert_balanced(one)


async def test_only_what_settles_is_concluded(ledger: Any) -> None:
    for before in NOT_SETTLING:
        claim = await bring(ledger, before)
        for form in (False, True):
            assert await conclude(ledger, claim, "other", is_orphaned=form) is None, before
        assert await ledger.mark_orphaned(claim.call_id, epoch=1) is False, before
        assert await read_state(ledger, claim) is before
        assert await ledger.find_payments(tx_hash("other")) == (), before


# Adrift


async def test_orphaned_calls_are_taken_least_recently_checked_first(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    await settling(ledger, nonce=None)
    claims = [await orphaned(ledger) for _ in range(3)]
    ids = [claim.call_id for claim in claims]
    first = await ledger.unsettled(limit=2)
    assert [one.call_id for one in first] == ids[:2]
    assert (first[0].is_orphaned, first[0].state) == (True, CallState.SETTLING)
    assert first[0].authorization == claims[0].authorization
    ledgers.clock.ms += 1
    assert [one.call_id for one in await ledger.unsettled(limit=1)] == [ids[2]]
    ledgers.clock.ms += 1
    assert [one.call_id for one in await ledger.unsettled(limit=2)] == ids[:2]
    await conclude(ledger, claims[0], is_orphaned=True)
    assert {one.call_id for one in await ledger.unsettled(limit=9)} == set(ids[1:])


async def test_a_postponed_call_is_taken_later_and_delays_no_other_call(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    idle, busy = [await orphaned(ledger) for _ in range(2)]
    waiting = await settling(ledger, nonce=None)
    for claim in (idle, waiting):  # a call that is not orphaned cannot be postponed
        await ledger.postpone(claim.call_id, until_ms=NOW_MS + 100)
    for _ in range(3):
        ledgers.clock.ms += 1
        assert [one.call_id for one in await ledger.unsettled(limit=1)] == [busy.call_id]
    await ledger.mark_orphaned(waiting.call_id, epoch=1)
    assert [one.call_id for one in await ledger.unsettled(limit=1)] == [waiting.call_id]
    ledgers.clock.ms = NOW_MS + 99
    assert idle.call_id not in {one.call_id for one in await ledger.unsettled(limit=9)}
    ledgers.clock.ms += 1
    assert idle.call_id in {one.call_id for one in await ledger.unsettled(limit=9)}


ORPHANED_ENDS = [
    ("POST", True, CallState.CONSUMED, False),
    ("GET", True, CallState.CONSUMED, False),
    ("GET", False, CallState.CONSUMED, True),
    ("HEAD", False, CallState.CONSUMED, True),
    ("POST", False, CallState.RELEASED, False),
    ("DELETE", False, CallState.RELEASED, False),
]
"""Method, whether its response is stored -> the end, and whether the response is lost."""


async def test_the_end_of_an_orphaned_call_with_a_transfer(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    for row in ORPHANED_ENDS:
        method, is_stored, ends, is_lost = row
        claim = await orphaned(ledger, method=method)
        if is_stored:
            assert await ledgers.answers().keep(
                claim.call_id, ANSWER, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS
            )
        assert await conclude(ledger, claim, str(row), is_orphaned=True) is ends, row
        found = await ledger.find_authorized_call(claim.authorization.key)
        assert (found.state, found.is_lost, found.is_orphaned) == (ends, is_lost, False), row
        assert (found.has_stored_response, found.transfer) == (is_stored, tx_hash(str(row))), row
        record = await ledger.find_call(claim.call_id)
        assert (record.tx_hash, record.completed_ms) == (tx_hash(str(row)), NOW_MS), row
        (payment,) = await ledger.find_payments(tx_hash(str(row)))
        left = 0 if ends is CallState.CONSUMED else 4
        assert (payment.value_units, payment.remaining_units) == (4, left), row
        await assert_balanced(ledger)


async def test_a_call_that_no_request_can_repeat_becomes_credit(ledger: Any) -> None:
    """Its body was streamed and unknown at the claim: a repeat of the request could not be recognised."""
    claim = await orphaned(ledger, method="GET", digest=UNKNOWN_DIGEST)
    assert await conclude(ledger, claim, is_orphaned=True) is CallState.RELEASED
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert payment.remaining_units == 4
    known = await open_authorized(ledger, method="GET", digest=UNKNOWN_DIGEST)
    await ledger.settle(close_of(known, CallState.SETTLING), attempt=None, digest=b"\x08" * 32)
    await ledger.mark_orphaned(known.call_id, epoch=1)
    assert await conclude(ledger, known, "another", is_orphaned=True) is CallState.CONSUMED


async def test_what_has_run_as_often_as_it_may_is_credit(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one", limits=Limits(attempts_max=2))
    claim = await open_authorized(ledger)
    await ledger.close(close_of(claim, CallState.UNKNOWN))
    assert isinstance(await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    assert await settle(ledger, claim, None, epoch=2) == SETTLED
    await ledger.mark_orphaned(claim.call_id, epoch=2)
    assert await conclude(ledger, claim, epoch=2, is_orphaned=True) is CallState.RELEASED


async def test_an_orphaned_call_without_a_transfer_is_released(ledger: Any) -> None:
    claim = await orphaned(ledger)
    assert await conclude(ledger, claim, is_orphaned=True, transfer=None) is CallState.RELEASED
    assert (await ledger.audit()).payments == 0
    assert await ledger.unsettled(limit=9) == ()


async def test_a_lost_call_runs_again_once_and_stays_charged(ledger: Any) -> None:
    claim = await orphaned(ledger)
    await conclude(ledger, claim, is_orphaned=True)
    reopened = await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert reopened == Claimed(epoch=2, remaining_units=0, rail=Rail.X402, before=CallState.CONSUMED)
    assert await settle(ledger, claim, epoch=2) == Fenced()  # its transfer is made
    assert await ledger.close(close_of(claim, epoch=2)) == Closed(remaining_units=0)
    ledger.finish(finish_of(claim, epoch=2, is_cut=True))
    assert await ledger.reopen(claim.call_id, epoch=2, now_ms=NOW_MS) == Fenced()
    assert (await ledger.find_authorized_call(claim.authorization.key)).is_lost is False
    await assert_balanced(ledger)


async def test_a_lost_call_that_runs_again_does_not_count_against_the_balance(ledger: Any) -> None:
    claim = await orphaned(ledger)
    await conclude(ledger, claim, is_orphaned=True)
    await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    other = authorized_claim(authorization_of(4), balance_units=4, block_number=101)
    assert isinstance(await ledger.claim(other), Claimed)


async def test_a_repeat_of_a_lost_call_may_end_unknown_and_be_decided_by_the_provider(ledger: Any) -> None:
    claim = await orphaned(ledger)
    await conclude(ledger, claim, is_orphaned=True)
    await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    await ledger.close(close_of(claim, CallState.UNKNOWN, epoch=2))
    assert await ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS) is CallState.CONSUMED
    await assert_balanced(ledger)


async def test_what_an_unanswered_call_moved_is_credit_of_its_payer(ledger: Any) -> None:
    claim = await orphaned(ledger, method="POST")
    await conclude(ledger, claim, is_orphaned=True)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert await ledger.claim(claim_on(payment, 3)) == Claimed(epoch=1, remaining_units=1, rail=Rail.TX)
    assert await ledger.spending_calls(payment.id, limit=9) != (claim.call_id,)
    await assert_balanced(ledger)


async def test_credit_pays_the_debt_of_its_account_first(ledger: Any) -> None:
    lost = await pay(ledger, 3, "lost", is_final=False)
    owing, claim = claim_on(lost, 3), await orphaned(ledger, method="POST")
    await ledger.claim(owing)
    await ledger.close(close_of(owing))
    await ledger.mark_gone(lost.id, now_ms=NOW_MS)
    assert [debt.units for debt in await ledger.debts(PAYER)] == [3]
    await conclude(ledger, claim, is_orphaned=True)
    assert await ledger.debts(PAYER) == ()
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert payment.remaining_units == 1
    assert await read_state(ledger, owing) is CallState.CONSUMED
    await assert_balanced(ledger)


async def test_one_of_many_recoveries_concludes(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await orphaned(one, method="POST")
    outcomes = await asyncio.gather(
        *(conclude(ledger, claim, is_orphaned=True) for ledger in (one, two) for _ in range(5))
    )
    assert sorted(outcomes, key=str) == [None] * 9 + [CallState.RELEASED]
    (payment,) = await one.find_payments(tx_hash("settled"))
    assert payment.value_units == 4


# Unknown


async def unknown(ledger: Any, **fields: Any) -> Any:
    """A call that was sent and has no response head; its authorisation may have been settled."""
    claim = await open_authorized(ledger, **fields)
    await ledger.close(close_of(claim, CallState.UNKNOWN, http_status=504, upstream_status=None))
    return claim


async def test_an_unknown_call_is_taken_after_its_hold(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    claim, fresh = await unknown(ledger), await unknown(ledger)
    paid = await orphaned(ledger)  # its transfer is made: no check is due
    await conclude(ledger, paid, is_orphaned=True)
    await ledger.reopen(paid.call_id, epoch=1, now_ms=NOW_MS)
    await ledger.close(close_of(paid, CallState.UNKNOWN, epoch=2))
    ledgers.clock.ms += HOLD_MS - 1
    await ledger.reopen(fresh.call_id, epoch=1, now_ms=NOW_MS)
    await ledger.close(close_of(fresh, CallState.UNKNOWN, epoch=2))
    assert await ledger.unsettled(limit=9) == ()
    ledgers.clock.ms += 1
    (found,) = await ledger.unsettled(limit=9)
    assert await ledger.recover(now_ms=ledgers.clock.ms) == 1  # the call with a transfer
    assert (found.call_id, found.state, found.is_orphaned, found.transfer) == (
        claim.call_id,
        CallState.UNKNOWN,
        False,
        None,
    )


async def test_orphaned_and_unknown_calls_share_one_queue(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    one, two = await unknown(ledger), await unknown(ledger)
    ledgers.clock.ms += HOLD_MS
    three = await orphaned(ledger)
    ids = [one.call_id, two.call_id, three.call_id]
    assert [found.call_id for found in await ledger.unsettled(limit=2)] == ids[:2]
    ledgers.clock.ms += 1
    assert [found.call_id for found in await ledger.unsettled(limit=1)] == ids[2:]
    await ledger.postpone(one.call_id, until_ms=ledgers.clock.ms + 10)
    ledgers.clock.ms += 9
    assert [found.call_id for found in await ledger.unsettled(limit=9)] == [ids[1], ids[2]]
    ledgers.clock.ms += 1
    assert {found.call_id for found in await ledger.unsettled(limit=9)} == set(ids)


async def test_what_a_clock_set_back_has_put_far_off_is_due(ledger: Any) -> None:
    claim = await orphaned(ledger)
    for ahead_ms, is_due in ((POSTPONED_MS_MAX, False), (POSTPONED_MS_MAX + 1, True)):
        await ledger.postpone(claim.call_id, until_ms=NOW_MS + ahead_ms)
        assert len(await ledger.unsettled(limit=9)) == is_due


async def test_a_call_that_was_postponed_while_unknown_is_taken_at_once_when_it_is_orphaned(
    ledger: Any,
) -> None:
    claim = await unknown(ledger)
    await ledger.postpone(claim.call_id, until_ms=NOW_MS * 2)
    await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    await settle(ledger, claim, None, epoch=2)
    await ledger.mark_orphaned(claim.call_id, epoch=2)
    assert [found.call_id for found in await ledger.unsettled(limit=9)] == [claim.call_id]


UNKNOWN_ENDS: list[tuple[dict[str, Any], CallState, bool]] = [
    ({"method": "GET"}, CallState.CONSUMED, True),
    ({"method": "POST"}, CallState.RELEASED, False),
    ({"method": "GET", "digest": UNKNOWN_DIGEST}, CallState.RELEASED, False),
]


async def test_what_moved_for_an_unknown_call_is_a_payment(ledgers: Any) -> None:
    """A call with a result on the chain is concluded at once; only a check without a result is postponed."""
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    for fields, ends, is_lost in UNKNOWN_ENDS:
        claim = await unknown(one, **fields)
        assert await conclude(two, claim, str(fields), is_orphaned=True) is ends
        assert await conclude(two, claim, "other", is_orphaned=True) is None
        found = await one.find_authorized_call(claim.authorization.key)
        assert (found.state, found.is_lost, found.transfer) == (ends, is_lost, tx_hash(str(fields)))
        (payment,) = await one.find_payments(tx_hash(str(fields)))
        assert (payment.value_units, payment.remaining_units) == (4, 0 if is_lost else 4), fields
        assert await one.find_payments(tx_hash("other")) == (), fields
        outcome = await one.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
        assert isinstance(outcome, Claimed) is is_lost, fields
        await assert_balanced(one)


async def test_an_unknown_call_for_which_nothing_ever_moves_is_released(ledger: Any) -> None:
    claim = await unknown(ledger)
    assert await conclude(ledger, claim, transfer=None, is_orphaned=True) is CallState.RELEASED
    assert isinstance(await ledger.claim(authorized_claim(claim.authorization)), Claimed)
    await assert_balanced(ledger)


async def test_an_unknown_call_is_concluded_only_as_it_was_seen(ledger: Any) -> None:
    """It may run again between the check and the conclude; a call with a payment is not taken."""
    claim = await unknown(ledger)
    assert await conclude(ledger, claim) is None  # no caller waits for it
    assert await conclude(ledger, claim, is_orphaned=True, epoch=2) is None
    await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    for epoch in (1, 2):
        assert await conclude(ledger, claim, is_orphaned=True, epoch=epoch) is None
    assert await read_state(ledger, claim) is CallState.FORWARDING
    paid = await orphaned(ledger)
    await conclude(ledger, paid, "paid", is_orphaned=True)
    await ledger.reopen(paid.call_id, epoch=1, now_ms=NOW_MS)
    await ledger.close(close_of(paid, CallState.UNKNOWN, epoch=2))
    assert await conclude(ledger, paid, "other", is_orphaned=True, epoch=2) is None
    assert await ledger.find_payments(tx_hash("other")) == ()
    await assert_balanced(ledger)


# Recovery


async def test_the_settling_calls_of_a_stopped_gateway_are_orphaned(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    claim = await settling(one)
    await ledgers.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    assert await two.recover(now_ms=NOW_MS) == 0
    assert [found.call_id for found in await two.unsettled(limit=9)] == [claim.call_id]
    assert await conclude(one, claim) is None
    assert await conclude(two, claim, is_orphaned=True) is CallState.CONSUMED
    await assert_balanced(two)


async def test_what_a_living_gateway_is_settling_stays(ledgers: Any) -> None:
    one = await ledgers.gateway("one")
    claim = await settling(one)
    assert await one.recover(now_ms=NOW_MS) == 0
    assert await one.unsettled(limit=9) == ()
    assert await conclude(one, claim) is CallState.CONSUMED


# Reorganisations


async def test_a_settled_transfer_that_left_the_chain_is_a_debt_until_it_is_back(ledger: Any) -> None:
    claim = await settling(ledger)
    await conclude(ledger, claim)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    (block,) = await ledger.unfinal_blocks(payment.chain_id, after=None, limit=9)
    assert [one.id for one in await ledger.unfinal_in(block, after_id=0, limit=9)] == [payment.id]
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 4
    assert await read_state(ledger, claim) is CallState.REORGED
    assert [debt.units for debt in await ledger.debts(PAYER)] == [4]
    await assert_balanced(ledger)
    back = new_payment(999, "settled", is_final=False, block_number=107)
    (again,) = await ledger.record_payments([back], now_ms=NOW_MS)
    assert (again.id, again.value_units, again.remaining_units) == (payment.id, 4, 0)
    assert (again.is_authorized, again.block_number) == (True, 107)
    assert await read_state(ledger, claim) is CallState.CONSUMED
    assert await ledger.debts(PAYER) == ()
    await assert_balanced(ledger)


async def test_credit_that_left_the_chain_and_came_back_is_worth_the_same(ledger: Any) -> None:
    claim = await orphaned(ledger, method="POST")
    await conclude(ledger, claim, is_orphaned=True)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 0
    (gone,) = await ledger.find_payments(tx_hash("settled"))
    assert (gone.state, gone.remaining_units) == (PaymentState.GONE, 0)
    back = await pay(ledger, 0, "settled")
    assert (back.state, back.remaining_units) == (PaymentState.FINAL, 4)
    await assert_balanced(ledger)


async def test_a_second_authorisation_of_a_transaction_that_is_gone_owes_until_it_is_back(
    ledger: Any,
) -> None:
    first, second = await settling(ledger, 4, nonce=0), await settling(ledger, 3, nonce=1)
    await conclude(ledger, first)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await conclude(ledger, second) is CallState.REORGED
    assert [debt.units for debt in await ledger.debts(PAYER)] == [7]
    await assert_balanced(ledger)
    back = await pay(ledger, 0, "settled")
    assert (back.value_units, back.remaining_units) == (7, 0)
    assert [await read_state(ledger, one) for one in (first, second)] == [CallState.CONSUMED] * 2
    await assert_balanced(ledger)


async def test_credit_in_a_transaction_that_is_gone_pays_no_debt_until_it_is_back(ledger: Any) -> None:
    first = await settling(ledger, 4, nonce=0)
    second = await settling(ledger, 3, nonce=1, method="POST")
    await ledger.mark_orphaned(second.call_id, epoch=1)
    await conclude(ledger, first)
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    assert await conclude(ledger, second, is_orphaned=True) is CallState.RELEASED
    assert [debt.units for debt in await ledger.debts(PAYER)] == [4]
    await assert_balanced(ledger)
    back = await pay(ledger, 0, "settled")
    assert (back.value_units, back.remaining_units, await ledger.debts(PAYER)) == (7, 3, ())
    await assert_balanced(ledger)


async def test_history_names_transaction_and_payee_of_an_authorised_call(ledger: Any) -> None:
    claim = await settling(ledger, listing_id="api_7")
    await conclude(ledger, claim)
    page = await ledger.history(HistoryQuery(wallet=PAYER, status="succeeded"))
    (record,) = page.calls
    assert (record.pay_to, record.tx_hash, record.asset) == (PAYEE, tx_hash("settled"), USDC)
    assert (record.rail, record.chain_id) == (Rail.X402, CHAIN)
    (listed,) = await ledger.read_payments(PaymentQuery(wallet=PAYER))
    assert await ledger.calls_of(listed.payment.id, limit=9) == (claim.call_id,)


async def test_an_authorised_call_reports_its_stored_response(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    claim = await open_authorized(ledger, idempotency_key="key")
    await ledgers.answers().keep(claim.call_id, ANSWER, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    assert (await ledger.find_authorized_call(claim.authorization.key)).has_stored_response is True
    assert (await ledger.find_keyed_call(PAYER, "key", since_ms=0)).has_stored_response is True
    ledgers.clock.ms += 24 * 3_600_000
    assert (await ledger.find_authorized_call(claim.authorization.key)).has_stored_response is False
    assert (await ledger.find_keyed_call(PAYER, "key", since_ms=0)).has_stored_response is False


WRAPPED = b"\x01" * 96 + bytes.fromhex("6492" * 16)


async def test_a_wallet_has_an_open_deployment_while_a_wrapped_transaction_of_another_call_is_settling(
    ledger: Any,
) -> None:
    async def has_open(call: Any, **fields: Any) -> bool:
        wallet = {"chain_id": CHAIN, "payer": PAYER, **fields}
        found: bool = await ledger.has_open_deployment(call.call_id, **wallet)
        return found

    async def open_wrapped(nonce: int | None) -> Any:
        authorization = replace(authorization_of(4), signature=WRAPPED)
        claim = authorized_claim(authorization)
        assert isinstance(await ledger.claim(claim), Claimed)
        assert await settle(ledger, claim, nonce) == SETTLED
        return claim

    plain, unsent = await settling(ledger), await open_wrapped(None)
    assert not await has_open(plain)
    sent = await open_wrapped(1)
    assert [await has_open(one) for one in (plain, unsent, sent)] == [True, True, False]
    assert not await has_open(plain, chain_id=ChainId(1))
    assert not await has_open(plain, payer=Address(b"\x77" * 20))
    assert await conclude(ledger, sent, transfer=None) is CallState.RELEASED
    assert not await has_open(plain)
