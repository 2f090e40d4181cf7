"""A safe request whose call has no outcome is told of that call by the books, at whichever gateway it is shown again."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, finish_of, new_payment, tx_hash
from tollway.ledger.book import Claimed, Fenced
from tollway.ledger.call import CallState
from tollway.ledger.open_calls import CallOpen

DIGEST = b"\x05" * 32


async def paid(book: Any, value_units: int = 10, name: str = "tx") -> Any:
    (payment,) = await book.record_payments([new_payment(value_units, name)], now_ms=NOW_MS)
    return payment


async def rest(book: Any, name: str = "tx") -> int:
    (payment,) = await book.find_payments(tx_hash(name))
    return int(payment.rest_units)


def same(payment: Any, **fields: Any) -> Any:
    return claim_on(payment, 4, **{"digest": DIGEST, **fields})


async def leave_open(book: Any, payment: Any, **fields: Any) -> Any:
    """A call of the request that every test here repeats, without an outcome."""
    claim = same(payment, **fields)
    assert isinstance(await book.claim(claim), Claimed)
    await book.close(close_of(claim, CallState.UNKNOWN))
    return claim


async def test_the_same_request_is_told_of_it_at_every_gateway_and_pays_nothing(
    books: Any, book: Any
) -> None:
    payment = await paid(book)
    await leave_open(book, payment)
    open_call = await book.find_repeat(payment.id, DIGEST)
    for gateway in (book, await books.gateway("two")):
        for _ in range(2):
            assert await gateway.claim(same(payment)) == CallOpen(call=open_call)
    assert await rest(book) == 6


async def test_it_is_reopened_elsewhere_and_meanwhile_the_same_request_is_another_call(
    books: Any, book: Any
) -> None:
    other, payment = await books.gateway("two"), await paid(book)
    claim = await leave_open(book, payment)
    told = (await other.claim(same(payment))).call
    again = await other.reopen(told.call_id, epoch=told.epoch, now_ms=NOW_MS)
    assert isinstance(again, Claimed)
    assert await book.reopen(told.call_id, epoch=told.epoch, now_ms=NOW_MS) == Fenced()
    assert isinstance(await book.claim(same(payment)), Claimed)
    assert await rest(book) == 2
    await other.close(close_of(claim, epoch=again.epoch))
    assert (await book.audit()).wrong == ()


OTHERS: dict[str, dict[str, Any]] = {
    "another request": {"digest": b"\x06" * 32},
    "unsafe": {"method": "POST"},
    "keyed": {"idempotency_key": "one"},
    "it would not run again": {"is_anew": True},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
async def test_every_other_claim_is_granted_beside_it(book: Any, fields: dict[str, Any]) -> None:
    payment = await paid(book)
    await leave_open(book, payment)
    assert isinstance(await book.claim(same(payment, **fields)), Claimed)


@pytest.mark.parametrize("after", [CallState.RELEASED, CallState.CONSUMED])
async def test_once_it_is_decided_the_same_request_is_another_call(book: Any, after: CallState) -> None:
    payment = await paid(book)
    claim = await leave_open(book, payment)
    await book.resolve(claim.call_id, after, now_ms=NOW_MS)
    assert isinstance(await book.claim(same(payment)), Claimed)


async def test_another_payment_is_for_another_call(book: Any) -> None:
    await leave_open(book, await paid(book))
    assert isinstance(await book.claim(same(await paid(book, name="other"))), Claimed)


async def test_a_claim_that_was_refused_for_it_may_be_made_anew_under_its_id(book: Any) -> None:
    payment = await paid(book)
    await leave_open(book, payment)
    claim = same(payment)
    assert isinstance(await book.claim(claim), CallOpen)
    assert isinstance(await book.claim(replace(claim, is_anew=True)), Claimed)


async def test_an_answer_that_its_upstream_cut_short_is_run_again_at_once_and_once(book: Any) -> None:
    """How it ended is written without a hurry; the claim right behind it sees it all the same."""
    payment = await paid(book)
    claim = same(payment)
    await book.claim(claim)
    await book.close(close_of(claim))
    book.finish(finish_of(claim, is_cut=True))
    told = await book.claim(same(payment))
    assert isinstance(told, CallOpen)
    assert (told.call.call_id, told.call.state) == (claim.call_id, CallState.CONSUMED)
    again = await book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    assert isinstance(again, Claimed)
    await book.close(close_of(claim, epoch=again.epoch))
    book.finish(finish_of(claim, is_cut=True, epoch=again.epoch))
    assert isinstance(await book.claim(same(payment)), Claimed)


async def test_a_repeat_of_a_cut_answer_that_gets_no_head_leaves_it_open(book: Any) -> None:
    payment = await paid(book)
    claim = same(payment)
    await book.claim(claim)
    await book.close(close_of(claim))
    book.finish(finish_of(claim, is_cut=True))
    for epoch in (1, 2):
        told = await book.claim(same(payment))
        assert isinstance(told, CallOpen)
        assert (told.call.call_id, told.call.state) == (claim.call_id, CallState.CONSUMED)
        again = await book.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS)
        assert isinstance(again, Claimed)
        await book.close(close_of(claim, epoch=again.epoch, upstream_status=None))
    assert await book.find_repeat(payment.id, claim.digest) is None  # it has run three times
    assert await book.reopen(claim.call_id, epoch=3, now_ms=NOW_MS) == Fenced()
    assert isinstance(await book.claim(same(payment)), Claimed)


async def test_a_race_at_two_gateways_for_one_open_call_reopens_it_once(books: Any, book: Any) -> None:
    both, payment = (book, await books.gateway("two")), await paid(book, 1_000)
    open_claim = await leave_open(book, payment)

    async def repeat(gateway: Any) -> Any:
        claim = same(payment)
        outcome = await gateway.claim(claim)
        if isinstance(outcome, CallOpen):
            return await gateway.reopen(outcome.call.call_id, epoch=outcome.call.epoch, now_ms=NOW_MS)
        return outcome

    outcomes = await asyncio.gather(*(repeat(both[n % 2]) for n in range(20)))
    reopened = [one for one in outcomes if isinstance(one, Claimed) and one.epoch == 2]
    granted = [one for one in outcomes if isinstance(one, Claimed) and one.epoch == 1]
    assert len(reopened) == 1
    assert await rest(book) == 1_000 - 4 * (1 + len(granted))
    assert (await book.find_call(open_claim.call_id)).state is CallState.FORWARDING
    assert (await book.audit()).wrong == ()


@pytest.mark.parametrize(
    "books", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
async def test_a_batch_looks_once_and_only_for_claims_that_may_repeat_something(
    books: Any, book: Any
) -> None:
    payment = await paid(book, 1_000)
    seen: Counter[str] = Counter()

    def count(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        seen["looked"] += "call.payment_id, call.digest" in " ".join(sql.split())
        seen["granted"] += sql.startswith("INSERT INTO call ")

    engine = getattr(books.database, "_write_engine", None) or books.database._engine
    engine = getattr(engine, "sync_engine", engine)
    event.listen(engine, "before_cursor_execute", count)
    for fields in ({"method": "POST"}, {"idempotency_key": "one"}, {"is_anew": True}):
        await book.claim(claim_on(payment, 1, **fields))
    await book.claim(claim_on(None))
    assert (seen["looked"], seen["granted"]) == (0, 4)
    await asyncio.gather(*(book.claim(claim_on(payment, 1)) for _ in range(50)))
    assert 0 < seen["looked"] == seen["granted"] - 4
