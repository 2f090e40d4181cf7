"""A repeat of a safe request finds its open call in the ledger, at every gateway."""

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event

from tests.kit.ledger_records import NOW_MS, claim_on, close_of, finish_of
from tests.kit.ledger_steps import pay, read_rest
from tests.kit.narrowing import of_type
from tollway.ledger.ledger import Claimed, Fenced
from tollway.ledger.records import CallState, RepeatsOpenCall

DIGEST = b"\x05" * 32


def same(payment: Any, **fields: Any) -> Any:
    return claim_on(payment, 4, **{"digest": DIGEST, **fields})


async def leave_open(ledger: Any, payment: Any, **fields: Any) -> Any:
    """An open call of the request that every test here repeats."""
    claim = same(payment, **fields)
    assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.close(close_of(claim, CallState.UNKNOWN))
    return claim


async def test_the_same_request_gets_the_open_call_at_every_gateway_and_pays_nothing(
    ledgers: Any, ledger: Any
) -> None:
    payment = await pay(ledger)
    await leave_open(ledger, payment)
    open_call = await ledger.find_open_call(payment.id, DIGEST)
    for gateway in (ledger, await ledgers.gateway("two")):
        for _ in range(2):
            assert await gateway.claim(same(payment)) == RepeatsOpenCall(call=open_call)
    assert await read_rest(ledger) == 6


async def test_while_the_call_runs_again_elsewhere_the_same_request_is_another_call(
    ledgers: Any, ledger: Any
) -> None:
    other, payment = await ledgers.gateway("two"), await pay(ledger)
    claim = await leave_open(ledger, payment)
    told = (await other.claim(same(payment))).call
    again = of_type(Claimed, await other.reopen(told.call_id, epoch=told.epoch, now_ms=NOW_MS))
    assert await ledger.reopen(told.call_id, epoch=told.epoch, now_ms=NOW_MS) == Fenced()
    assert isinstance(await ledger.claim(same(payment)), Claimed)
    assert await read_rest(ledger) == 2
    await other.close(close_of(claim, epoch=again.epoch))
    assert (await ledger.audit()).wrong == ()


OTHERS: dict[str, dict[str, Any]] = {
    "another request": {"digest": b"\x06" * 32},
    "unsafe": {"method": "POST"},
    "keyed": {"idempotency_key": "one"},
    "it would not run again": {"is_separate_call": True},
}


async def test_every_other_claim_is_granted_beside_it(ledger: Any) -> None:
    for name, fields in OTHERS.items():
        payment = await pay(ledger, name=name)
        await leave_open(ledger, payment)
        assert isinstance(await ledger.claim(same(payment, **fields)), Claimed), name


async def test_once_it_is_decided_the_same_request_is_another_call(ledger: Any) -> None:
    for after in (CallState.RELEASED, CallState.CONSUMED):
        payment = await pay(ledger, name=after)
        claim = await leave_open(ledger, payment)
        await ledger.resolve(claim.call_id, after, now_ms=NOW_MS)
        assert isinstance(await ledger.claim(same(payment)), Claimed), after


async def test_another_payment_is_for_another_call(ledger: Any) -> None:
    await leave_open(ledger, await pay(ledger))
    assert isinstance(await ledger.claim(same(await pay(ledger, name="other"))), Claimed)


async def test_a_claim_that_was_refused_for_it_may_be_made_anew_under_its_id(ledger: Any) -> None:
    payment = await pay(ledger)
    await leave_open(ledger, payment)
    claim = same(payment)
    assert isinstance(await ledger.claim(claim), RepeatsOpenCall)
    assert isinstance(await ledger.claim(replace(claim, is_separate_call=True)), Claimed)


async def test_an_answer_that_its_upstream_cut_short_is_run_again_at_once_and_once(ledger: Any) -> None:
    """The finish is written with a delay; a claim immediately after it still sees it."""
    payment = await pay(ledger)
    claim = same(payment)
    await ledger.claim(claim)
    await ledger.close(close_of(claim))
    ledger.finish(finish_of(claim, is_cut=True))
    told = of_type(RepeatsOpenCall, await ledger.claim(same(payment)))
    assert (told.call.call_id, told.call.state) == (claim.call_id, CallState.CONSUMED)
    again = of_type(Claimed, await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS))
    await ledger.close(close_of(claim, epoch=again.epoch))
    ledger.finish(finish_of(claim, is_cut=True, epoch=again.epoch))
    assert isinstance(await ledger.claim(same(payment)), Claimed)


async def test_a_claim_immediately_after_a_cut_response_finds_it(ledger: Any) -> None:
    """On PostgreSQL plain claims and ends have their own sessions; a cut is still written before later claims."""
    payment = await pay(ledger, 1_000)
    for _ in range(30):  # the terms of the first call are not known yet
        claim = same(payment)
        assert isinstance(await ledger.claim(claim), Claimed)
        await ledger.close(close_of(claim))
        ledger.finish(finish_of(claim, is_cut=True))
        assert isinstance(await ledger.claim(same(payment)), RepeatsOpenCall)
        again = await ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
        await ledger.close(close_of(claim, epoch=again.epoch))


async def test_a_repeat_of_a_cut_answer_that_gets_no_head_leaves_it_open(ledger: Any) -> None:
    payment = await pay(ledger)
    claim = same(payment)
    await ledger.claim(claim)
    await ledger.close(close_of(claim))
    ledger.finish(finish_of(claim, is_cut=True))
    for epoch in (1, 2):
        told = of_type(RepeatsOpenCall, await ledger.claim(same(payment)))
        assert (told.call.call_id, told.call.state) == (claim.call_id, CallState.CONSUMED)
        again = of_type(Claimed, await ledger.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS))
        await ledger.close(close_of(claim, epoch=again.epoch, upstream_status=None))
    assert await ledger.find_open_call(payment.id, claim.digest) is None  # it has run three times
    assert await ledger.reopen(claim.call_id, epoch=3, now_ms=NOW_MS) == Fenced()
    assert isinstance(await ledger.claim(same(payment)), Claimed)


async def test_a_race_at_two_gateways_for_one_open_call_reopens_it_once(ledgers: Any, ledger: Any) -> None:
    both, payment = (ledger, await ledgers.gateway("two")), await pay(ledger, 1_000)
    open_claim = await leave_open(ledger, payment)

    async def repeat(gateway: Any) -> Any:
        claim = same(payment)
        outcome = await gateway.claim(claim)
        if isinstance(outcome, RepeatsOpenCall):
            return await gateway.reopen(outcome.call.call_id, epoch=outcome.call.epoch, now_ms=NOW_MS)
        return outcome

    outcomes = await asyncio.gather(*(repeat(both[n % 2]) for n in range(20)))
    reopened = [one for one in outcomes if isinstance(one, Claimed) and one.epoch == 2]
    granted = [one for one in outcomes if isinstance(one, Claimed) and one.epoch == 1]
    assert len(reopened) == 1
    assert await read_rest(ledger) == 1_000 - 4 * (1 + len(granted))
    assert (await ledger.find_call(open_claim.call_id)).state is CallState.FORWARDING
    assert (await ledger.audit()).wrong == ()


@pytest.mark.parametrize(
    "ledgers", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], indirect=True
)
async def test_a_batch_searches_open_calls_once_and_only_for_claims_that_may_repeat_one(
    ledgers: Any, ledger: Any
) -> None:
    payment = await pay(ledger, 1_000)
    seen: Counter[str] = Counter()

    def count(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        seen["looked"] += "call.payment_id, call.digest" in " ".join(sql.split())
        seen["granted"] += sql.startswith("INSERT INTO call ")

    engine = getattr(ledgers.database, "_write_engine", None) or ledgers.database._engine
    engine = getattr(engine, "sync_engine", engine)
    event.listen(engine, "before_cursor_execute", count)
    # The terms of these calls are not known yet, so the statement of plain claims grants none.
    for fields in ({"method": "POST"}, {"idempotency_key": "one"}, {"is_separate_call": True}):
        await ledger.claim(claim_on(payment, 1, listing_name=str(fields), **fields))
    await ledger.claim(claim_on(None, listing_name="free"))
    assert (seen["looked"], seen["granted"]) == (0, 4)
    await asyncio.gather(*(ledger.claim(claim_on(payment, 1, listing_name="new")) for _ in range(50)))
    assert 0 < seen["looked"] == seen["granted"] - 4
