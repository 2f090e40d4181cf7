"""Group commit: callers that leave, batches that fail, databases that go away, gateways that race."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    tx_hash,
)
from tests.kit.paused_ledger import Desk, once, start, until
from tollway.errors import StorageUnavailable
from tollway.ledger.book import Claimed, Closed, Exhausted, Fenced, NonceUsed
from tollway.ledger.call import CallState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage import group_commit
from tollway.storage.authorization_store import LOCK_SPACE
from tollway.storage.database import Database, connect_database
from tollway.storage.outage import ValueRefused
from tollway.storage.turns import STRIPES


@pytest.fixture
async def desk(database: Database) -> AsyncIterator[Desk]:
    it = Desk(database)
    await it.book.open()
    yield it
    await it.close()
    assert (await it.book.audit()).wrong == ()


async def states(desk: Desk) -> list[str]:
    query = text("SELECT state FROM call ORDER BY created_ms")
    found: list[str] = await desk.gate.read(lambda c: list(c.execute(query).scalars()))
    return found


@pytest.mark.parametrize(("worth", "price"), [(10, 1), (1, 1), (9, 2)])
async def test_fifty_claims_in_one_batch_get_what_the_payment_is_worth(
    desk: Desk, worth: int, price: int
) -> None:
    payment = await desk.pay(worth)
    desk.gate.before.clear()
    plug = start(desk.book.claim(claim_on(None)))
    await until(lambda: desk.sizes == [1])
    claims = [start(desk.book.claim(claim_on(payment, price))) for _ in range(50)]
    await asyncio.sleep(0)
    desk.gate.before.set()
    outcomes = await asyncio.gather(*claims)
    await plug
    assert desk.sizes == [1, 50]
    assert sum(isinstance(one, Claimed) for one in outcomes) == worth // price
    assert outcomes[-1] == Exhausted(rest_units=worth % price, held_units=worth - worth % price)


async def test_a_batch_carries_so_many_at_most(database: Database) -> None:
    desk = Desk(database, limits=Limits(claim_batch_max=20))
    await desk.book.open()
    desk.gate.before.clear()
    plug = start(desk.book.claim(claim_on(None)))
    await until(lambda: desk.sizes == [1])
    claims = [start(desk.book.claim(claim_on(None))) for _ in range(50)]
    await asyncio.sleep(0)
    desk.gate.before.set()
    assert all(isinstance(one, Claimed) for one in await asyncio.gather(plug, *claims))
    assert desk.sizes == [1, 20, 20, 10]
    await desk.close()


async def test_closes_and_claims_of_one_batch_see_each_other(desk: Desk) -> None:
    payment = await desk.pay(2)
    first, second = claim_on(payment, 2), claim_on(payment, 2)
    await desk.book.claim(first)
    desk.gate.before.clear()
    plug = start(desk.book.claim(claim_on(None)))
    await until(lambda: desk.gate.begun > 0 and len(desk.sizes) == 2)
    jobs = [start(desk.book.claim(second)), start(desk.book.close(close_of(first, CallState.RELEASED)))]
    await asyncio.sleep(0)
    desk.gate.before.set()
    claimed, closed = await asyncio.gather(*jobs)
    await plug
    assert (isinstance(claimed, Claimed), isinstance(closed, Closed)) == (True, True)


async def test_a_finish_waits_for_company_and_costs_no_commit_of_its_own(desk: Desk) -> None:
    payment = await desk.pay(2)
    first = claim_on(payment, 1)
    await desk.book.claim(first)
    await desk.book.close(close_of(first))
    desk.book.finish(finish_of(first))
    await desk.book.claim(claim_on(payment, 1))
    assert desk.sizes == [1, 1, 2]


async def test_a_finish_that_tells_of_a_cut_answer_waits_for_nobody(desk: Desk, monkeypatch: Any) -> None:
    monkeypatch.setattr(group_commit, "COMPANY_S", 3_600)
    payment = await desk.pay(2)
    first = claim_on(payment, 1)
    await desk.book.claim(first)
    await desk.book.close(close_of(first))
    desk.book.finish(replace(finish_of(first), is_cut=True))
    await until(lambda: desk.sizes == [1, 1, 1])


async def test_a_finish_without_company_is_written_all_the_same(desk: Desk) -> None:
    payment = await desk.pay(2)
    first = claim_on(payment, 1)
    await desk.book.claim(first)
    await desk.book.close(close_of(first))
    desk.book.finish(finish_of(first))
    await until(lambda: desk.sizes == [1, 1, 1])
    await desk.book.claim(claim_on(payment, 1))  # behind it
    record = await desk.book.find_call(first.call_id)
    assert record is not None
    assert record.delivery is not None


async def test_a_finish_whose_time_comes_while_a_commit_runs_is_written_behind_it(
    desk: Desk, monkeypatch: Any
) -> None:
    monkeypatch.setattr(group_commit, "COMPANY_S", 0.0)
    payment = await desk.pay(2)
    first = claim_on(payment, 1)
    await desk.book.claim(first)
    await desk.book.close(close_of(first))
    desk.gate.before.clear()
    plug = start(desk.book.claim(claim_on(None)))
    await until(lambda: desk.sizes == [1, 1, 1])
    desk.book.finish(finish_of(first))
    await asyncio.sleep(0.01)  # its time is up: the commit before it still runs
    desk.gate.before.set()
    await plug
    await until(lambda: desk.sizes == [1, 1, 1, 1])


# Callers who leave


async def test_a_claim_withdrawn_before_its_batch_leaves_no_row(desk: Desk) -> None:
    payment = await desk.pay(2)
    desk.gate.before.clear()
    plug = start(desk.book.claim(claim_on(None)))
    await until(lambda: desk.sizes == [1])
    claim = start(desk.book.claim(claim_on(payment)))
    await asyncio.sleep(0)
    claim.cancel()
    desk.gate.before.set()
    await plug
    await asyncio.gather(claim, return_exceptions=True)
    assert claim.cancelled()
    await desk.close()
    assert await states(desk) == ["forwarding"]


@pytest.mark.parametrize("gate", ["before", "after"])
async def test_a_claim_left_while_its_batch_is_written_is_released(desk: Desk, gate: str) -> None:
    payment = await desk.pay(2)
    getattr(desk.gate, gate).clear()
    written = desk.gate.committed if gate == "after" else desk.gate.begun
    claim = start(desk.book.claim(claim_on(payment)))
    await until(lambda: (desk.gate.committed if gate == "after" else desk.gate.begun) > written)
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)
    assert claim.cancelled()
    getattr(desk.gate, gate).set()
    await desk.close()
    assert await states(desk) == ["released"]


async def test_a_claim_left_between_its_commit_and_its_answer_is_released(desk: Desk) -> None:
    payment = await desk.pay(2)
    tasks: list[asyncio.Task[Any]] = []

    async def claim_and_stop_the_other() -> None:
        await desk.book.claim(claim_on(payment))
        tasks[1].cancel()  # its answer is set already, and it has not run since

    tasks += [start(claim_and_stop_the_other()), start(desk.book.claim(claim_on(payment)))]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].cancelled()
    await desk.close()
    assert desk.sizes == [2, 1]
    assert sorted(await states(desk)) == ["forwarding", "released"]


async def test_a_repeat_left_in_flight_goes_back_to_unknown(desk: Desk) -> None:
    claim = claim_on(await desk.pay(2))
    await desk.book.claim(claim)
    await desk.book.close(close_of(claim, CallState.UNKNOWN))
    desk.gate.after.clear()
    committed = desk.gate.committed
    repeat = start(desk.book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS))
    await until(lambda: desk.gate.committed > committed)
    repeat.cancel()
    await asyncio.gather(repeat, return_exceptions=True)
    await desk.close()
    assert await states(desk) == ["unknown"]


@pytest.mark.parametrize(
    ("moment", "after", "ends"),
    [
        ("queued", CallState.CONSUMED, ("unknown", "")),
        ("written", CallState.CONSUMED, ("consumed", "cut")),
        ("committed", CallState.CONSUMED, ("consumed", "cut")),
        ("queued", CallState.RELEASED, ("released", "")),
        ("written", CallState.RELEASED, ("released", "")),
    ],
)
async def test_a_close_is_written_although_its_caller_left_and_its_answer_reached_nobody(
    desk: Desk, moment: str, after: CallState, ends: tuple[str, str]
) -> None:
    claim = claim_on(await desk.pay(2))
    await desk.book.claim(claim)
    gate = desk.gate.after if moment == "committed" else desk.gate.before
    gate.clear()
    begun, committed = desk.gate.begun, desk.gate.committed
    close = start(desk.book.close(close_of(claim, after)))
    await asyncio.sleep(0)
    if moment == "written":
        await until(lambda: desk.gate.begun > begun)
    elif moment == "committed":
        await until(lambda: desk.gate.committed > committed)
    close.cancel()
    await asyncio.gather(close, return_exceptions=True)
    await desk.close()
    query = text("SELECT state, cut FROM call")
    assert await desk.gate.read(lambda c: tuple(c.execute(query).one())) == ends


async def test_claims_cancelled_at_any_moment_never_stay_open(desk: Desk) -> None:
    payment = await desk.pay(1000)
    for turns in range(40):
        claim = claim_on(payment)
        task = start(desk.book.claim(claim))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, Claimed):
            await desk.book.close(close_of(claim))
    await desk.close()
    assert set(await states(desk)) <= {"released", "consumed"}


# Batches that fail


BEYOND_COLUMN = 2**70  # no integer column of either database holds it


async def test_one_bad_entry_does_not_fail_the_others(desk: Desk) -> None:
    payment = await desk.pay(10)
    good, twin, odd = claim_on(payment), claim_on(payment), claim_on(None)
    await desk.book.claim(twin)
    await desk.book.claim(odd)
    jobs = [
        desk.book.claim(claim_on(payment)),
        desk.book.close(close_of(odd, http_status=BEYOND_COLUMN)),
        desk.book.claim(claim_on(payment, call_id=twin.call_id)),
        desk.book.claim(good),
        desk.book.close(close_of(twin)),
    ]
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(one) for one in outcomes] == [
        Claimed,
        StorageUnavailable,
        StorageUnavailable,
        Claimed,
        Closed,
    ]
    await desk.book.recover(now_ms=NOW_MS)
    assert sorted(await states(desk)) == ["consumed", "forwarding", "forwarding", "unknown"]
    assert await desk.book.close(close_of(good)) == Closed(rest_units=7)


async def test_one_bad_entry_of_a_batch_costs_a_few_more_writes(desk: Desk) -> None:
    """A batch is halved until the bad entry is alone: 64 entries take 1 + 2 * 6 writes in place of 1 + 64."""
    payment, odd = await desk.pay(100), claim_on(None)
    await desk.book.claim(odd)
    begun = desk.gate.begun
    claims = [desk.book.claim(claim_on(payment)) for _ in range(63)]
    bad = desk.book.close(close_of(odd, http_status=BEYOND_COLUMN))
    outcomes = await asyncio.gather(*claims[:40], bad, *claims[40:], return_exceptions=True)
    assert [type(one) for one in outcomes].index(StorageUnavailable) == 40
    assert [type(one) for one in outcomes].count(Claimed) == 63
    assert desk.gate.begun - begun <= 1 + 2 * 6 + 1  # and what its call is instead


async def test_one_bad_recording_does_not_fail_those_that_are_written_with_it(desk: Desk) -> None:
    plug = start(desk.pay(1, "plug"))
    await asyncio.sleep(0)
    jobs = [desk.pay(7, "a"), desk.pay(7, "b", block_number=BEYOND_COLUMN), desk.pay(7, "c")]
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    await plug
    assert [getattr(one, "value_units", type(one)) for one in outcomes] == [7, ValueRefused, 7]
    assert await desk.book.find_payments(tx_hash("b")) == ()


async def test_a_value_that_no_column_holds_is_no_outage(desk: Desk) -> None:
    """PostgreSQL says so with SQLSTATE class 22; SQLite's driver with an error of its own."""
    odd = claim_on(None)
    await desk.book.claim(odd)
    with capture_logs() as lines, pytest.raises(StorageUnavailable):
        await desk.book.close(close_of(odd, http_status=BEYOND_COLUMN))
    assert {line["event"] for line in lines} == {"books_batch_failed", "books_entry_refused"}


async def test_a_finish_is_written_after_its_close_where_the_batch_is_halved(desk: Desk) -> None:
    """The close comes back behind the others, because the claim beside it is bad; the finish waits for it."""
    payment = await desk.pay(10)
    cut, twin = claim_on(payment), claim_on(payment)
    await desk.book.claim(cut)
    await desk.book.claim(twin)
    close = start(desk.book.close(close_of(cut)))
    again = start(desk.book.claim(claim_on(payment, call_id=twin.call_id)))
    others = [start(desk.book.claim(claim_on(payment))) for _ in range(2)]
    await asyncio.sleep(0)
    desk.book.finish(finish_of(cut, is_cut=True))
    outcomes = await asyncio.gather(close, again, *others, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Closed, StorageUnavailable, Claimed, Claimed]
    await desk.book.claim(claim_on(None))  # behind the finish
    repeat = await desk.book.find_repeat(payment.id, cut.digest)
    assert repeat is not None  # cut by its upstream, so the same request may run once more


async def test_a_commit_whose_answer_was_lost_is_looked_up_not_repeated(desk: Desk) -> None:
    payment = await desk.pay(10)
    done = claim_on(payment)
    stuck = claim_on(payment)
    await desk.book.claim(done)
    await desk.book.claim(stuck)
    await desk.book.close(close_of(stuck, CallState.UNKNOWN))
    desk.gate.fail_after = once()
    outcomes = await asyncio.gather(
        desk.book.claim(claim_on(payment, 3)),
        desk.book.claim(claim_on(payment, 9)),
        desk.book.close(close_of(done)),
        desk.book.reopen(stuck.call_id, epoch=1, now_ms=NOW_MS),
    )
    assert [type(one) for one in outcomes] == [Claimed, Exhausted, Closed, Claimed]
    assert outcomes[3].epoch == 2
    assert sorted(await states(desk)) == ["consumed", "forwarding", "forwarding"]
    assert await desk.book.recover(now_ms=NOW_MS) == 0


async def test_a_batch_that_was_not_written_is_written_again(desk: Desk) -> None:
    payment = await desk.pay(10)
    desk.gate.fail_before = once()
    outcomes = await asyncio.gather(*(desk.book.claim(claim_on(payment)) for _ in range(5)))
    assert [type(one) for one in outcomes] == [Claimed] * 5
    assert len(await states(desk)) == 5


async def test_a_claim_of_unknown_outcome_is_released_when_the_database_is_back(desk: Desk) -> None:
    claim = claim_on(await desk.pay(10))

    def go_away() -> bool:
        desk.gate.is_away = True
        return True

    desk.gate.fail_after = go_away
    with pytest.raises(StorageUnavailable):
        await desk.book.claim(claim)
    desk.gate.is_away, desk.gate.fail_after = False, lambda: False
    assert await states(desk) == ["forwarding"]
    assert await desk.book.recover(now_ms=NOW_MS) == 1
    assert await states(desk) == ["released"]
    assert (await desk.book.find_call(claim.call_id)).error == "storage_unavailable"


@pytest.mark.parametrize(
    ("before", "ends"), [(CallState.UNKNOWN, "released"), (CallState.CONSUMED, "consumed")]
)
async def test_a_repeat_of_unknown_outcome_goes_back_to_where_it_was(
    desk: Desk, before: CallState, ends: str
) -> None:
    claim = claim_on(await desk.pay(10))
    await desk.book.claim(claim)
    await desk.book.close(close_of(claim, before, error="told"))
    await desk.gate.write(lambda c: c.execute(text("UPDATE call SET cut = 'cut'")))

    def go_away() -> bool:
        desk.gate.is_away = True
        return True

    desk.gate.fail_after = go_away
    with pytest.raises(StorageUnavailable):
        await desk.book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    desk.gate.is_away, desk.gate.fail_after = False, lambda: False
    assert await states(desk) == ["forwarding"]
    assert await desk.book.recover(now_ms=NOW_MS) == 1
    assert await states(desk) == [before.value]
    assert (await desk.book.find_call(claim.call_id)).error == "told"  # nothing came of the repeat
    await desk.book.recover(now_ms=NOW_MS + DEFAULT_LIMITS.unknown_hold_s * 1000)
    assert await states(desk) == [ends]


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        (CallState.CONSUMED, "unknown"),  # its answer was dropped
        (CallState.RELEASED, "released"),
        (CallState.UNKNOWN, "unknown"),
    ],
)
async def test_a_close_that_found_no_database_is_written_later(
    desk: Desk, after: CallState, ends: str
) -> None:
    claim = claim_on(await desk.pay(10))
    await desk.book.claim(claim)
    desk.gate.is_away = True
    with pytest.raises(StorageUnavailable):
        await desk.book.close(close_of(claim, after))
    desk.gate.is_away = False
    await desk.book.recover(now_ms=NOW_MS)
    assert await states(desk) == [ends]


async def test_everybody_hears_at_once_that_the_database_is_away(desk: Desk) -> None:
    payment = await desk.pay(100)
    begun = desk.gate.begun
    desk.gate.is_away = True
    outcomes = await asyncio.gather(
        *(desk.book.claim(claim_on(payment)) for _ in range(50)), return_exceptions=True
    )
    desk.gate.is_away = False
    assert {type(one) for one in outcomes} == {StorageUnavailable}
    assert desk.gate.begun - begun <= 2


async def test_after_the_stop_nothing_is_claimed_and_nobody_waits_forever(database: Database) -> None:
    desk = Desk(database)
    payment = await desk.pay(10)
    running = claim_on(payment)
    await desk.book.claim(running)
    close = start(desk.book.close(close_of(running)))
    await asyncio.sleep(0)
    await desk.close()
    assert isinstance(await close, Closed)
    with pytest.raises(StorageUnavailable):
        await desk.book.claim(claim_on(payment))


# Gateways that race


@pytest.mark.parametrize("worth", [1, 10])
async def test_two_gateways_share_one_payment(database: Database, worth: int) -> None:
    desks = [Desk(database, "one"), Desk(database, "two")]
    for number in range(5):
        name = f"tx{number}"
        payment = await desks[0].pay(worth, name)
        outcomes = await asyncio.gather(*(desk.book.claim(claim_on(payment)) for desk in desks * 25))
        assert sum(isinstance(one, Claimed) for one in outcomes) == worth
        (payment,) = await desks[1].book.find_payments(tx_hash(name))
        assert payment.rest_units == 0
    for desk in desks:
        await desk.close()
    assert (await desks[0].book.audit()).wrong == ()


async def test_two_gateways_repair_each_others_siblings_without_deadlock(database: Database) -> None:
    desks = [Desk(database, "one"), Desk(database, "two")]
    payments = [await desks[0].pay(7, f"tx{number}") for number in range(20)]
    claims = [(desks[n % 2], claim_on(one, 10)) for n, one in enumerate([*payments, *payments[::-1]])]
    outcomes = await asyncio.gather(*(desk.book.claim(claim) for desk, claim in claims))
    assert sum(isinstance(one, Claimed) for one in outcomes) == 14
    closes = [
        desk.book.close(close_of(claim, CallState.RELEASED))
        for (desk, claim), one in zip(claims, outcomes, strict=True)
        if isinstance(one, Claimed)
    ]
    await asyncio.gather(*closes)
    for desk in desks:
        await desk.close()
    report = await desks[0].book.audit()
    assert (report.wrong, report.payments) == ((), 20)
    rests = [(await desks[0].book.find_payments(one.tx_hash))[0].rest_units for one in payments]
    assert rests == [7] * 20


@pytest.mark.postgres
async def test_an_unfinal_maximum_locks_no_payment_but_the_shown_one(postgres_url: str) -> None:
    """A wallet may have thousands that are not final."""
    operator, database = await asyncpg.connect(postgres_url), connect_database(postgres_url)
    desk = Desk(database, unfinal_max_nano={"USDC": 10_000})
    await desk.book.open()
    other, shown = [await desk.pay(10, name, is_final=False) for name in ("other", "shown")]
    async with operator.transaction():
        await operator.execute("SELECT id FROM payment WHERE id = $1 FOR UPDATE", other.id)
        assert isinstance(await desk.book.claim(claim_on(shown)), Claimed)
    await desk.close()
    await database.close()
    await operator.close()


@pytest.mark.postgres
async def test_claims_with_an_unfinal_maximum_take_turns_by_wallet(postgres_url: str) -> None:
    """Each sums what the others have committed: of two at once, one would not see the other."""
    operator, database = await asyncpg.connect(postgres_url), connect_database(postgres_url)
    desk = Desk(database, unfinal_max_nano={"USDC": 10_000})
    await desk.book.open()
    payment = await desk.pay(10, is_final=False)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with operator.transaction():
        for stripe in range(STRIPES):
            await operator.execute("SELECT pg_advisory_xact_lock($1, $2)", LOCK_SPACE, stripe)
        claiming = start(desk.book.claim(claim_on(payment)))
        while not (claiming.done() or await operator.fetchval(waiting)):
            await asyncio.sleep(0.01)
        assert not claiming.done()
    assert isinstance(await claiming, Claimed)
    await desk.close()
    await database.close()
    await operator.close()


async def test_a_nonce_counts_once_over_gateways_and_payments_of_a_transaction(database: Database) -> None:
    desks = [Desk(database, "one"), Desk(database, "two")]
    for number in range(5):
        both = [new_payment(9, f"tx{number}"), new_payment(9, f"tx{number}", asset="native")]
        payments = await desks[0].book.record_payments(both, now_ms=NOW_MS)
        nonce = bytes([number]) * 32
        jobs = [
            desk.book.claim(claim_on(payment, nonce=nonce))
            for desk in desks
            for payment in payments
            for _ in range(5)
        ]
        outcomes = await asyncio.gather(*jobs)
        kinds = [type(one) for one in outcomes]
        assert (kinds.count(Claimed), kinds.count(NonceUsed)) == (1, 19)
    for desk in desks:
        await desk.close()


async def test_two_gateways_pay_a_debt_once(database: Database) -> None:
    desks = [Desk(database, "one"), Desk(database, "two")]
    payment = await desks[0].pay(10, is_final=False)
    claim = claim_on(payment, 10)
    await desks[0].book.claim(claim)
    await desks[0].book.close(close_of(claim))
    await desks[1].book.mark_gone(payment.id, now_ms=NOW_MS)
    fresh = await asyncio.gather(*(desks[n % 2].pay(4, f"tx{n}") for n in range(6)))
    assert sum(one.rest_units for one in fresh) == 14
    assert await desks[0].book.debts(PAYER) == ()
    for desk in desks:
        await desk.close()
    assert (await desks[0].book.audit()).wrong == ()


async def test_one_of_two_gateways_wins_a_repeat(database: Database) -> None:
    desks = [Desk(database, "one"), Desk(database, "two")]
    claim = claim_on(await desks[0].pay(10))
    await desks[0].book.claim(claim)
    await desks[0].book.close(close_of(claim, CallState.UNKNOWN))
    outcomes = await asyncio.gather(
        *(desk.book.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) for desk in desks * 5)
    )
    kinds = [type(one) for one in outcomes]
    assert (kinds.count(Claimed), kinds.count(Fenced)) == (1, 9)
    for desk in desks:
        await desk.close()


async def test_what_comes_after_the_end_fails_at_once(desk: Desk) -> None:
    claim = claim_on(await desk.pay(10))
    await desk.book.claim(claim)
    await desk.close()
    for late in (desk.book.close(close_of(claim)), desk.book.claim(claim_on(await desk.pay(10, "more")))):
        with pytest.raises(StorageUnavailable):
            await late
    desk.book.finish(finish_of(claim))


async def test_waits_until_every_call_is_closed_and_no_longer_than_told(desk: Desk) -> None:
    payment = await desk.pay(100)
    first, second = claim_on(payment), claim_on(payment)
    await asyncio.gather(desk.book.claim(first), desk.book.claim(second))
    await desk.book.wait_closed(timeout_s=0)  # comes back although two are open
    waiting = start(desk.book.wait_closed(timeout_s=60))
    await desk.book.close(close_of(first))
    assert not waiting.done()
    await desk.book.close(close_of(second, CallState.UNKNOWN))
    await waiting
