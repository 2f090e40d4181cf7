"""Group commit: callers that leave, batches that fail, unavailable databases, gateways that race."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs

from tests.kit.databases import open_database
from tests.kit.ledger_records import (
    NOW_MS,
    PAYER,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    tx_hash,
)
from tests.kit.storage_faults import NEVER_S, FaultyLedger, once, start
from tests.kit.waits import until
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import Claimed, Closed, Exhausted, Fenced, NonceUsed
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.advisory_locks import STRIPES
from tollway.storage.engine.database import Database
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.ledger.authorizations import LOCK_SPACE
from tollway.storage.ledger.batch_wait import BATCH_WAIT_ABOVE, BATCH_WAIT_RECENT_MS

pytestmark = pytest.mark.dialects


@pytest.fixture
def ledger(faulty_ledger: FaultyLedger) -> FaultyLedger:
    return faulty_ledger


async def states(ledger: FaultyLedger) -> list[str]:
    query = text("SELECT state FROM call ORDER BY created_ms")
    found: list[str] = await ledger.database.read(lambda c: list(c.execute(query).scalars()))
    return found


@pytest.mark.parametrize(("worth", "price"), [(10, 1), (1, 1), (9, 2)])
async def test_fifty_claims_in_one_batch_get_what_the_payment_is_worth(
    ledger: FaultyLedger, worth: int, price: int
) -> None:
    payment = await ledger.pay(worth)
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.sizes == [1])
    claims = [start(ledger.ledger.claim(claim_on(payment, price))) for _ in range(50)]
    await asyncio.sleep(0)
    ledger.database.before.set()
    outcomes = await asyncio.gather(*claims)
    await plug
    assert ledger.sizes[:2] == [
        1,
        50,
    ]  # on PostgreSQL the statement of plain claims is tried before the decision
    assert sum(isinstance(one, Claimed) for one in outcomes) == worth // price
    assert outcomes[-1] == Exhausted(remaining_units=worth % price, held_units=worth - worth % price)


async def test_a_batch_carries_so_many_at_most(database: Database) -> None:
    ledger = FaultyLedger(database, limits=Limits(claim_batch_max=20))
    await ledger.ledger.open()
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.sizes == [1])
    claims = [start(ledger.ledger.claim(claim_on(None))) for _ in range(50)]
    await asyncio.sleep(0)
    ledger.database.before.set()
    assert all(isinstance(one, Claimed) for one in await asyncio.gather(plug, *claims))
    assert ledger.sizes == [1, 20, 20, 10]
    await ledger.close()


async def run_full_batches(ledger: FaultyLedger, callers: int) -> list[Any]:
    """Runs so many claims in one batch, with all their closes but one in the queue."""
    claims = [claim_on(None) for _ in range(callers)]
    await asyncio.gather(*(ledger.ledger.claim(one) for one in claims))
    closes = [start(ledger.ledger.close(close_of(one))) for one in claims[:-1]]
    await asyncio.sleep(0)
    return [*closes, claims[-1]]


@pytest.fixture
async def patient(sqlite_url: str) -> AsyncIterator[FaultyLedger]:
    """A ledger whose writer waits for callers without a timeout. On SQLite, where one queue has claims and closes."""
    async with open_database(sqlite_url) as database:
        it = FaultyLedger(database, batch_wait_s=NEVER_S)
        await it.ledger.open()
        yield it
        await it.close()
        assert (await it.ledger.audit()).wrong == ()


@pytest.mark.parametrize(
    ("callers", "sizes"),
    [(1, [1, 1]), (BATCH_WAIT_ABOVE, [8, 7, 1]), (BATCH_WAIT_ABOVE + 1, [9, 9]), (32, [32, 32])],
)
async def test_the_writer_waits_for_the_callers_of_its_last_batch_when_there_are_many(
    patient: FaultyLedger, callers: int, sizes: list[int]
) -> None:
    *closes, last = await run_full_batches(patient, callers)
    if callers <= BATCH_WAIT_ABOVE:
        await asyncio.gather(*closes)
    await patient.ledger.close(close_of(last))
    await asyncio.gather(*closes)
    assert patient.sizes == sizes


async def test_new_callers_count_too(patient: FaultyLedger) -> None:
    *closes, _ = await run_full_batches(patient, 10)
    await patient.ledger.claim(claim_on(None))
    await asyncio.gather(*closes)
    assert patient.sizes == [10, 10]


async def test_callers_that_waited_after_the_last_batch_count(patient: FaultyLedger) -> None:
    patient.database.before.clear()
    first = start(patient.ledger.claim(claim := claim_on(None)))
    await until(lambda: patient.sizes == [1])
    others = [start(patient.ledger.claim(claim_on(None))) for _ in range(9)]
    await asyncio.sleep(0)
    patient.database.before.set()
    await first
    assert patient.sizes == [1]
    await patient.ledger.close(close_of(claim))
    await asyncio.gather(*others)
    assert patient.sizes == [1, 10]


async def test_a_caller_long_after_a_large_batch_does_not_wait_for_others(patient: FaultyLedger) -> None:
    await asyncio.gather(*(patient.ledger.claim(claim_on(None)) for _ in range(10)))
    patient.ticks_ms += BATCH_WAIT_RECENT_MS
    await patient.ledger.claim(claim_on(None))
    assert patient.sizes == [10, 1]


async def test_the_wait_for_the_callers_of_the_last_batch_has_a_maximum(database: Database) -> None:
    ledger = FaultyLedger(database, batch_wait_s=0.0)
    await ledger.ledger.open()
    *closes, _ = await run_full_batches(ledger, 10)
    await asyncio.gather(*closes)
    assert ledger.sizes == [10, 9]
    await ledger.close()


@pytest.mark.postgres
async def test_a_statement_queue_waits_for_the_callers_of_its_own_last_batch(postgres_url: str) -> None:
    """It does not wait for callers in the other queue."""
    async with open_database(postgres_url) as database:
        ledger = FaultyLedger(database, batch_wait_s=NEVER_S)
        await ledger.ledger.open()
        await ledger.ledger.claim(claim_on(None))  # afterwards the terms of such calls are known
        claims = [claim_on(None) for _ in range(10)]
        await asyncio.gather(*(ledger.ledger.claim(one) for one in claims))
        more = [start(ledger.ledger.claim(claim_on(None))) for _ in range(9)]
        await asyncio.gather(*(ledger.ledger.close(close_of(one)) for one in claims))
        assert not any(one.done() for one in more)
        await ledger.ledger.claim(claim_on(None))
        await asyncio.gather(*more)
        assert ledger.sizes == [1, 10, 10, 10]
        await ledger.close()


async def test_a_writer_that_stops_waits_for_no_batch_wait(patient: FaultyLedger) -> None:
    *closes, _ = await run_full_batches(patient, 10)
    patient.ledger.stop()
    await asyncio.gather(*closes)
    assert patient.sizes == [10, 9]


async def test_closes_and_claims_of_one_batch_see_each_other(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(2)
    first, second = claim_on(payment, 2), claim_on(payment, 2)
    await ledger.ledger.claim(first)
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.database.begun > 0 and len(ledger.sizes) == 2)
    jobs = [
        start(ledger.ledger.claim(second)),
        start(ledger.ledger.close(close_of(first, CallState.RELEASED))),
    ]
    await asyncio.sleep(0)
    ledger.database.before.set()
    claimed, closed = await asyncio.gather(*jobs)
    await plug
    assert (isinstance(claimed, Claimed), isinstance(closed, Closed)) == (True, True)


async def test_a_finish_waits_for_others_and_costs_no_commit_of_its_own(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(2)
    first, second = claim_on(payment, 1), claim_on(payment, 1)
    await ledger.ledger.claim(first)
    await ledger.ledger.claim(second)
    await ledger.ledger.close(close_of(first))
    ledger.ledger.finish(finish_of(first))
    await ledger.ledger.close(close_of(second))
    assert ledger.sizes == [1, 1, 1, 2]


async def test_a_finish_of_a_cut_response_waits_for_no_other_entry(database: Database) -> None:
    ledger = FaultyLedger(database, finish_delay_s=3_600)
    await ledger.ledger.open()
    payment = await ledger.pay(2)
    first = claim_on(payment, 1)
    await ledger.ledger.claim(first)
    await ledger.ledger.close(close_of(first))
    ledger.ledger.finish(replace(finish_of(first), is_cut=True))
    await until(lambda: ledger.sizes == [1, 1, 1])
    await ledger.close()


async def test_a_finish_without_others_is_written_all_the_same(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(2)
    first = claim_on(payment, 1)
    await ledger.ledger.claim(first)
    await ledger.ledger.close(close_of(first))
    ledger.ledger.finish(finish_of(first))
    await until(lambda: ledger.sizes == [1, 1, 1])
    await ledger.ledger.claim(claim_on(payment, 1))  # behind it
    record = await ledger.ledger.find_call(first.call_id)
    assert record is not None
    assert record.delivery is not None


async def test_a_finish_that_is_due_during_a_commit_is_written_after_it(database: Database) -> None:
    ledger = FaultyLedger(database, finish_delay_s=0.0)
    await ledger.ledger.open()
    payment = await ledger.pay(2)
    first = claim_on(payment, 1)
    await ledger.ledger.claim(first)
    await ledger.ledger.close(close_of(first))
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.sizes == [1, 1, 1])
    ledger.ledger.finish(finish_of(first))
    await asyncio.sleep(0.01)  # its deadline has passed, while the commit before it still runs
    ledger.database.before.set()
    await plug
    await until(lambda: ledger.sizes == [1, 1, 1, 1])
    await ledger.close()


async def test_finishes_behind_a_full_batch_are_written_without_another_entry(database: Database) -> None:
    ledger = FaultyLedger(database, limits=Limits(claim_batch_max=2))
    await ledger.ledger.open()
    claims = [claim_on(None) for _ in range(3)]
    for claim in claims:
        await ledger.ledger.claim(claim)
        await ledger.ledger.close(close_of(claim))
    for claim in claims:
        ledger.ledger.finish(finish_of(claim))
    await until(lambda: ledger.sizes == [1] * 6 + [2, 1])
    await ledger.close()


# Callers that leave


async def test_a_claim_withdrawn_before_its_batch_leaves_no_row(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(2)
    ledger.database.before.clear()
    plug = start(ledger.ledger.claim(claim_on(None)))
    await until(lambda: ledger.sizes == [1])
    claim = start(ledger.ledger.claim(claim_on(payment)))
    await asyncio.sleep(0)
    claim.cancel()
    ledger.database.before.set()
    await plug
    await asyncio.gather(claim, return_exceptions=True)
    assert claim.cancelled()
    await ledger.close()
    assert await states(ledger) == ["forwarding"]


@pytest.mark.parametrize("gate", ["before", "after"])
async def test_a_claim_left_while_its_batch_is_written_is_released(ledger: FaultyLedger, gate: str) -> None:
    payment = await ledger.pay(2)
    getattr(ledger.database, gate).clear()
    written = ledger.database.committed if gate == "after" else ledger.database.begun
    claim = start(ledger.ledger.claim(claim_on(payment)))
    await until(lambda: (ledger.database.committed if gate == "after" else ledger.database.begun) > written)
    claim.cancel()
    await asyncio.gather(claim, return_exceptions=True)
    assert claim.cancelled()
    getattr(ledger.database, gate).set()
    await ledger.close()
    assert await states(ledger) == ["released"]


async def test_a_claim_left_between_its_commit_and_its_answer_is_released(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(2)
    tasks: list[asyncio.Task[Any]] = []

    async def claim_and_stop_the_other() -> None:
        await ledger.ledger.claim(claim_on(payment))
        tasks[1].cancel()  # its result is set, and its task has not run since

    tasks += [start(claim_and_stop_the_other()), start(ledger.ledger.claim(claim_on(payment)))]
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[1].cancelled()
    await ledger.close()
    assert ledger.sizes == [2, 1]
    assert sorted(await states(ledger)) == ["forwarding", "released"]


async def test_a_repeat_left_in_flight_goes_back_to_unknown(ledger: FaultyLedger) -> None:
    claim = claim_on(await ledger.pay(2))
    await ledger.ledger.claim(claim)
    await ledger.ledger.close(close_of(claim, CallState.UNKNOWN))
    ledger.database.after.clear()
    committed = ledger.database.committed
    repeat = start(ledger.ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS))
    await until(lambda: ledger.database.committed > committed)
    repeat.cancel()
    await asyncio.gather(repeat, return_exceptions=True)
    await ledger.close()
    assert await states(ledger) == ["unknown"]


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
async def test_a_close_is_written_although_its_caller_left_and_its_response_reached_no_caller(
    ledger: FaultyLedger, moment: str, after: CallState, ends: tuple[str, str]
) -> None:
    claim = claim_on(await ledger.pay(2))
    await ledger.ledger.claim(claim)
    gate = ledger.database.after if moment == "committed" else ledger.database.before
    gate.clear()
    begun, committed = ledger.database.begun, ledger.database.committed
    close = start(ledger.ledger.close(close_of(claim, after)))
    await asyncio.sleep(0)
    if moment == "written":
        await until(lambda: ledger.database.begun > begun)
    elif moment == "committed":
        await until(lambda: ledger.database.committed > committed)
    close.cancel()
    await asyncio.gather(close, return_exceptions=True)
    await ledger.close()
    query = text("SELECT state, cut FROM call")
    assert await ledger.database.read(lambda c: tuple(c.execute(query).one())) == ends


async def test_claims_cancelled_at_any_moment_never_stay_open(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(1000)
    for turns in range(40):
        claim = claim_on(payment)
        task = start(ledger.ledger.claim(claim))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(outcome, Claimed):
            await ledger.ledger.close(close_of(claim))
    await ledger.close()
    assert set(await states(ledger)) <= {"released", "consumed"}


# Batches that fail


BEYOND_COLUMN = 2**70  # larger than an integer column of either database


async def test_one_bad_entry_does_not_fail_the_others(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)
    good, twin, odd = claim_on(payment), claim_on(payment), claim_on(None)
    await ledger.ledger.claim(twin)
    await ledger.ledger.claim(odd)
    jobs = [
        ledger.ledger.claim(claim_on(payment)),
        ledger.ledger.close(close_of(odd, http_status=BEYOND_COLUMN)),
        ledger.ledger.claim(claim_on(payment, call_id=twin.call_id)),
        ledger.ledger.claim(good),
        ledger.ledger.close(close_of(twin)),
    ]
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(one) for one in outcomes] == [
        Claimed,
        StorageUnavailable,
        StorageUnavailable,
        Claimed,
        Closed,
    ]
    await ledger.ledger.recover(now_ms=NOW_MS)
    assert sorted(await states(ledger)) == ["consumed", "forwarding", "forwarding", "unknown"]
    assert await ledger.ledger.close(close_of(good)) == Closed(remaining_units=7)


async def test_one_bad_entry_of_a_batch_costs_a_few_more_writes(ledger: FaultyLedger) -> None:
    """A batch is halved until the bad entry is alone: 64 entries take 1 + 2 * 6 writes in place of 1 + 64."""
    payment, odd = await ledger.pay(100), claim_on(None)
    await ledger.ledger.claim(odd)
    begun = ledger.database.begun
    claims = [ledger.ledger.claim(claim_on(payment)) for _ in range(63)]
    bad = ledger.ledger.close(close_of(odd, http_status=BEYOND_COLUMN))
    outcomes = await asyncio.gather(*claims[:40], bad, *claims[40:], return_exceptions=True)
    assert [type(one) for one in outcomes].index(StorageUnavailable) == 40
    assert [type(one) for one in outcomes].count(Claimed) == 63
    assert ledger.database.begun - begun <= 1 + 2 * 6 + 1  # and the read of its call


async def test_one_bad_recording_does_not_fail_those_that_are_written_with_it(ledger: FaultyLedger) -> None:
    plug = start(ledger.pay(1, "plug"))
    await asyncio.sleep(0)
    jobs = [ledger.pay(7, "a"), ledger.pay(7, "b", block_number=BEYOND_COLUMN), ledger.pay(7, "c")]
    outcomes = await asyncio.gather(*jobs, return_exceptions=True)
    await plug
    assert [getattr(one, "value_units", type(one)) for one in outcomes] == [7, ValueRefused, 7]
    assert await ledger.ledger.find_payments(tx_hash("b")) == ()


async def test_a_value_that_no_column_holds_is_no_outage(ledger: FaultyLedger) -> None:
    """PostgreSQL reports SQLSTATE class 22; SQLite's driver raises its own error."""
    odd = claim_on(None)
    await ledger.ledger.claim(odd)
    with capture_logs() as lines, pytest.raises(StorageUnavailable):
        await ledger.ledger.close(close_of(odd, http_status=BEYOND_COLUMN))
    assert {line["event"] for line in lines} == {"ledger_batch_failed", "ledger_entry_refused"}


async def test_a_finish_is_written_after_its_close_where_the_batch_is_halved(ledger: FaultyLedger) -> None:
    """The close is written after the others, because the claim in its part is bad; the finish waits for it."""
    payment = await ledger.pay(10)
    cut, twin = claim_on(payment), claim_on(payment)
    await ledger.ledger.claim(cut)
    await ledger.ledger.claim(twin)
    close = start(ledger.ledger.close(close_of(cut)))
    again = start(ledger.ledger.claim(claim_on(payment, call_id=twin.call_id)))
    others = [start(ledger.ledger.claim(claim_on(payment))) for _ in range(2)]
    await asyncio.sleep(0)
    ledger.ledger.finish(finish_of(cut, is_cut=True))
    outcomes = await asyncio.gather(close, again, *others, return_exceptions=True)
    assert [type(one) for one in outcomes] == [Closed, StorageUnavailable, Claimed, Claimed]
    await ledger.ledger.claim(claim_on(None))  # behind the finish
    repeat = await ledger.ledger.find_open_call(payment.id, cut.digest)
    assert repeat is not None  # the upstream cut the response, so the same request may run once more


async def test_a_commit_with_a_lost_answer_is_read_and_not_repeated(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)
    done = claim_on(payment)
    stuck = claim_on(payment)
    await ledger.ledger.claim(done)
    await ledger.ledger.claim(stuck)
    await ledger.ledger.close(close_of(stuck, CallState.UNKNOWN))
    ledger.database.fail_after = once()
    outcomes = await asyncio.gather(
        ledger.ledger.claim(claim_on(payment, 3)),
        ledger.ledger.claim(claim_on(payment, 9)),
        ledger.ledger.close(close_of(done)),
        ledger.ledger.reopen(stuck.call_id, epoch=1, now_ms=NOW_MS),
    )
    assert [type(one) for one in outcomes] == [Claimed, Exhausted, Closed, Claimed]
    assert outcomes[3].epoch == 2
    assert sorted(await states(ledger)) == ["consumed", "forwarding", "forwarding"]
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 0


async def test_claims_whose_commit_lost_its_answer_are_granted_once(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)
    ledger.database.fail_after = once()
    outcomes = await asyncio.gather(*(ledger.ledger.claim(claim_on(payment)) for _ in range(4)))
    assert [one.remaining_units for one in outcomes] == [6] * 4
    assert await states(ledger) == ["forwarding"] * 4
    assert (await ledger.ledger.audit()).wrong == ()


async def test_a_batch_that_was_not_written_is_written_again(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)
    ledger.database.fail_before = once()
    outcomes = await asyncio.gather(*(ledger.ledger.claim(claim_on(payment)) for _ in range(5)))
    assert [type(one) for one in outcomes] == [Claimed] * 5
    assert len(await states(ledger)) == 5


async def test_a_claim_of_unknown_outcome_is_released_when_the_database_is_back(ledger: FaultyLedger) -> None:
    claim = claim_on(await ledger.pay(10))

    def disconnect_after_commit() -> bool:
        ledger.database.is_away = True
        return True

    ledger.database.fail_after = disconnect_after_commit
    with pytest.raises(StorageUnavailable):
        await ledger.ledger.claim(claim)
    ledger.database.is_away, ledger.database.fail_after = False, lambda: False
    assert await states(ledger) == ["forwarding"]
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 1
    assert await states(ledger) == ["released"]
    assert (await ledger.ledger.find_call(claim.call_id)).error == "storage_unavailable"


@pytest.mark.parametrize(
    ("before", "ends"), [(CallState.UNKNOWN, "released"), (CallState.CONSUMED, "consumed")]
)
async def test_a_repeat_of_unknown_outcome_goes_back_to_where_it_was(
    ledger: FaultyLedger, before: CallState, ends: str
) -> None:
    claim = claim_on(await ledger.pay(10))
    await ledger.ledger.claim(claim)
    await ledger.ledger.close(close_of(claim, before, error="told"))
    await ledger.database.write(lambda c: c.execute(text("UPDATE call SET cut = 'cut'")))

    def disconnect_after_commit() -> bool:
        ledger.database.is_away = True
        return True

    ledger.database.fail_after = disconnect_after_commit
    with pytest.raises(StorageUnavailable):
        await ledger.ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS)
    ledger.database.is_away, ledger.database.fail_after = False, lambda: False
    assert await states(ledger) == ["forwarding"]
    assert await ledger.ledger.recover(now_ms=NOW_MS) == 1
    assert await states(ledger) == [before.value]
    assert (await ledger.ledger.find_call(claim.call_id)).error == "told"  # the repeat has no result
    await ledger.ledger.recover(now_ms=NOW_MS + DEFAULT_LIMITS.unknown_hold_s * 1000)
    assert await states(ledger) == [ends]


@pytest.mark.parametrize(
    ("after", "ends"),
    [
        (CallState.CONSUMED, "unknown"),  # its response was dropped
        (CallState.RELEASED, "released"),
        (CallState.UNKNOWN, "unknown"),
    ],
)
async def test_a_close_that_found_no_database_is_written_later(
    ledger: FaultyLedger, after: CallState, ends: str
) -> None:
    claim = claim_on(await ledger.pay(10))
    await ledger.ledger.claim(claim)
    ledger.database.is_away = True
    with pytest.raises(StorageUnavailable):
        await ledger.ledger.close(close_of(claim, after))
    ledger.database.is_away = False
    await ledger.ledger.recover(now_ms=NOW_MS)
    assert await states(ledger) == [ends]


async def test_all_callers_fail_at_once_while_the_database_is_unavailable(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(100)
    begun = ledger.database.begun
    ledger.database.is_away = True
    outcomes = await asyncio.gather(
        *(ledger.ledger.claim(claim_on(payment)) for _ in range(50)), return_exceptions=True
    )
    ledger.database.is_away = False
    assert {type(one) for one in outcomes} == {StorageUnavailable}
    assert ledger.database.begun - begun <= 2


async def test_after_the_stop_nothing_is_claimed_and_every_caller_gets_an_outcome(database: Database) -> None:
    ledger = FaultyLedger(database)
    payment = await ledger.pay(10)
    running = claim_on(payment)
    await ledger.ledger.claim(running)
    close = start(ledger.ledger.close(close_of(running)))
    await asyncio.sleep(0)
    await ledger.close()
    assert isinstance(await close, Closed)
    with pytest.raises(StorageUnavailable):
        await ledger.ledger.claim(claim_on(payment))


# Gateways that race


@pytest.mark.parametrize("worth", [1, 10])
async def test_two_gateways_share_one_payment(pair: list[FaultyLedger], worth: int) -> None:
    for number in range(5):
        name = f"tx{number}"
        payment = await pair[0].pay(worth, name)
        outcomes = await asyncio.gather(*(ledger.ledger.claim(claim_on(payment)) for ledger in pair * 25))
        assert sum(isinstance(one, Claimed) for one in outcomes) == worth
        (payment,) = await pair[1].ledger.find_payments(tx_hash(name))
        assert payment.remaining_units == 0


async def test_two_gateways_repair_each_others_siblings_without_deadlock(pair: list[FaultyLedger]) -> None:
    payments = [await pair[0].pay(7, f"tx{number}") for number in range(20)]
    claims = [(pair[n % 2], claim_on(one, 10)) for n, one in enumerate([*payments, *payments[::-1]])]
    outcomes = await asyncio.gather(*(ledger.ledger.claim(claim) for ledger, claim in claims))
    assert sum(isinstance(one, Claimed) for one in outcomes) == 14
    closes = [
        ledger.ledger.close(close_of(claim, CallState.RELEASED))
        for (ledger, claim), one in zip(claims, outcomes, strict=True)
        if isinstance(one, Claimed)
    ]
    await asyncio.gather(*closes)
    report = await pair[0].ledger.audit()
    assert (report.wrong, report.payments) == ((), 20)
    rests = [(await pair[0].ledger.find_payments(one.tx_hash))[0].remaining_units for one in payments]
    assert rests == [7] * 20


@pytest.mark.postgres
async def test_an_unfinal_maximum_locks_only_the_payment_of_the_proof(
    operator: Any, postgres_database: Database
) -> None:
    """A wallet may have thousands of unfinal payments."""
    ledger = FaultyLedger(postgres_database, unfinal_max_nano={"USDC": 10_000})
    await ledger.ledger.open()
    other, shown = [await ledger.pay(10, name, is_final=False) for name in ("other", "shown")]
    async with operator.transaction():
        await operator.execute("SELECT id FROM payment WHERE id = $1 FOR UPDATE", other.id)
        assert isinstance(await ledger.ledger.claim(claim_on(shown)), Claimed)
    await ledger.close()


@pytest.mark.postgres
async def test_claims_with_an_unfinal_maximum_take_turns_by_wallet(
    operator: Any, postgres_database: Database
) -> None:
    """Each claim sums the commits of the others: two claims at the same time would not see each other."""
    ledger = FaultyLedger(postgres_database, unfinal_max_nano={"USDC": 10_000})
    await ledger.ledger.open()
    payment = await ledger.pay(10, is_final=False)
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
    async with operator.transaction():
        for stripe in range(STRIPES):
            await operator.execute("SELECT pg_advisory_xact_lock($1, $2)", LOCK_SPACE, stripe)
        claiming = start(ledger.ledger.claim(claim_on(payment)))
        await until(lambda: claiming.done() or operator.fetchval(waiting))
        assert not claiming.done()
    assert isinstance(await claiming, Claimed)
    await ledger.close()


async def test_a_nonce_counts_once_over_gateways_and_payments_of_a_transaction(
    pair: list[FaultyLedger],
) -> None:
    for number in range(5):
        both = [new_payment(9, f"tx{number}"), new_payment(9, f"tx{number}", asset="native")]
        payments = await pair[0].ledger.record_payments(both, now_ms=NOW_MS)
        nonce = bytes([number]) * 32
        jobs = [
            ledger.ledger.claim(claim_on(payment, nonce=nonce))
            for ledger in pair
            for payment in payments
            for _ in range(5)
        ]
        outcomes = await asyncio.gather(*jobs)
        kinds = [type(one) for one in outcomes]
        assert (kinds.count(Claimed), kinds.count(NonceUsed)) == (1, 19)


async def test_two_gateways_pay_a_debt_once(pair: list[FaultyLedger]) -> None:
    payment = await pair[0].pay(10, is_final=False)
    claim = claim_on(payment, 10)
    await pair[0].ledger.claim(claim)
    await pair[0].ledger.close(close_of(claim))
    await pair[1].ledger.mark_gone(payment.id, now_ms=NOW_MS)
    fresh = await asyncio.gather(*(pair[n % 2].pay(4, f"tx{n}") for n in range(6)))
    assert sum(one.remaining_units for one in fresh) == 14
    assert await pair[0].ledger.debts(PAYER) == ()


async def test_one_of_two_gateways_wins_a_repeat(pair: list[FaultyLedger]) -> None:
    claim = claim_on(await pair[0].pay(10))
    await pair[0].ledger.claim(claim)
    await pair[0].ledger.close(close_of(claim, CallState.UNKNOWN))
    outcomes = await asyncio.gather(
        *(ledger.ledger.reopen(claim.call_id, epoch=1, now_ms=NOW_MS) for ledger in pair * 5)
    )
    kinds = [type(one) for one in outcomes]
    assert (kinds.count(Claimed), kinds.count(Fenced)) == (1, 9)


async def test_what_comes_after_the_end_fails_at_once(ledger: FaultyLedger) -> None:
    claim = claim_on(await ledger.pay(10))
    await ledger.ledger.claim(claim)
    await ledger.close()
    for late in (
        ledger.ledger.close(close_of(claim)),
        ledger.ledger.claim(claim_on(await ledger.pay(10, "more"))),
    ):
        with pytest.raises(StorageUnavailable):
            await late
    ledger.ledger.finish(finish_of(claim))


async def test_waits_until_every_call_is_closed_or_the_timeout(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(100)
    first, second = claim_on(payment), claim_on(payment)
    await asyncio.gather(ledger.ledger.claim(first), ledger.ledger.claim(second))
    await ledger.ledger.wait_closed(timeout_s=0)  # returns while two calls are open
    waiting = start(ledger.ledger.wait_closed(timeout_s=60))
    await ledger.ledger.close(close_of(first))
    assert not waiting.done()
    await ledger.ledger.close(close_of(second, CallState.UNKNOWN))
    await waiting
