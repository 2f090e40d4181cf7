"""Group commit in doubt: which callers may send upstream when one of several writes failed, took too long, or was undone by a power cut."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tests.kit.ledger_records import NOW_MS, claim_on, close_of
from tests.kit.storage_faults import FaultyLedger, once, start
from tests.kit.waits import DEADLINE_S, until
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import Claimed, Closed, Fenced
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine import database as database_module
from tollway.storage.engine import postgres as postgres_module
from tollway.storage.engine.database import connect_database

pytestmark = pytest.mark.dialects

HALF_LEASE_MS = int(DEFAULT_LIMITS.owner_lease_s * 500)
HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000


@pytest.fixture
def ledger(faulty_ledger: FaultyLedger) -> FaultyLedger:
    return faulty_ledger


async def states(ledger: FaultyLedger) -> list[str]:
    query = text("SELECT state FROM call ORDER BY created_ms, id")
    found: list[str] = await ledger.database.read(lambda c: list(c.execute(query).scalars()))
    return found


async def make_unknown(ledger: FaultyLedger) -> Any:
    """A keyed call that was sent once and has no response."""
    claim = claim_on(await ledger.pay(10), method="POST", idempotency_key="k")
    await ledger.ledger.claim(claim)
    await ledger.ledger.close(close_of(claim, CallState.UNKNOWN))
    return claim


def reopen(ledger: FaultyLedger, claim: Any, *, epoch: int = 1) -> Any:
    return ledger.ledger.reopen(claim.call_id, epoch=epoch, now_ms=NOW_MS)


async def lose_close(ledger: FaultyLedger, claim: Any) -> None:
    """A power cut of the database server takes the last commit that was not flushed."""
    query = text("UPDATE call SET state = 'forwarding', upstream_status = NULL WHERE id = :id")
    await ledger.database.write(lambda c: c.execute(query, {"id": claim.call_id}))


# Two requests that run one call again


async def test_a_repeat_whose_write_failed_is_not_taken_for_the_one_that_runs(ledger: FaultyLedger) -> None:
    claim = await make_unknown(ledger)
    assert isinstance(await reopen(ledger, claim), Claimed)
    ledger.database.fail_before = once()
    assert await reopen(ledger, claim) == Fenced()


async def test_a_repeat_whose_write_failed_is_not_taken_for_one_that_ran_and_was_undone(
    ledger: FaultyLedger,
) -> None:
    claim = await make_unknown(ledger)
    assert isinstance(await reopen(ledger, claim), Claimed)
    done = replace(close_of(claim), epoch=2)
    assert isinstance(await ledger.ledger.close(done), Closed)
    await lose_close(ledger, claim)
    ledger.database.fail_before = once()
    assert await reopen(ledger, claim) == Fenced()


async def test_a_repeat_whose_write_failed_is_not_taken_for_one_that_recovery_ends(
    ledger: FaultyLedger,
) -> None:
    """The first repeat was written although its caller got a failure: recovery ends it, and does not end the second
    one."""
    claim = await make_unknown(ledger)
    ledger.database.fail_after = ledger.disconnect_after_commit
    with pytest.raises(StorageUnavailable):
        await reopen(ledger, claim)
    ledger.reconnect()
    ledger.database.fail_before = once()
    assert await reopen(ledger, claim) == Fenced()
    await ledger.ledger.recover(now_ms=NOW_MS)
    assert await states(ledger) == ["unknown"]
    assert isinstance(await reopen(ledger, claim, epoch=2), Claimed)


async def test_of_two_repeats_after_a_lost_answer_one_runs(ledger: FaultyLedger) -> None:
    claim = await make_unknown(ledger)
    ledger.database.fail_after = once()
    outcomes = await asyncio.gather(reopen(ledger, claim), reopen(ledger, claim))
    assert [type(one) for one in outcomes] == [Claimed, Fenced]


# A doubt that is over


async def test_a_repeat_that_was_served_is_in_doubt_no_more(ledger: FaultyLedger) -> None:
    """A power cut undid its close: its outcome is unknown, and the clock does not release its price."""
    claim = await make_unknown(ledger)
    ledger.database.fail_before = lambda: True
    with pytest.raises(StorageUnavailable):
        await reopen(ledger, claim)
    ledger.database.fail_before = lambda: False
    assert isinstance(await reopen(ledger, claim), Claimed)
    await ledger.ledger.close(replace(close_of(claim), epoch=2))
    await lose_close(ledger, claim)
    await ledger.ledger.recover(now_ms=NOW_MS)
    assert await states(ledger) == ["unknown"]
    await ledger.ledger.recover(now_ms=NOW_MS + HOLD_MS)
    assert await states(ledger) == ["unknown"]


async def test_a_repeat_that_fails_does_not_put_the_running_one_in_doubt(ledger: FaultyLedger) -> None:
    claim = await make_unknown(ledger)
    assert isinstance(await reopen(ledger, claim), Claimed)
    ledger.database.fail_before = lambda: True
    with pytest.raises(StorageUnavailable):
        await reopen(ledger, claim)
    ledger.database.fail_before = lambda: False
    await ledger.ledger.close(replace(close_of(claim), epoch=2))
    await lose_close(ledger, claim)
    await ledger.ledger.recover(now_ms=NOW_MS)
    await ledger.ledger.recover(now_ms=NOW_MS + HOLD_MS)
    assert await states(ledger) == ["unknown"]


# Writes that hang while reads go on


async def test_when_only_writes_fail_the_second_failure_fails_every_entry(
    ledger: FaultyLedger,
) -> None:
    payment = await ledger.pay(100)
    begun = ledger.database.begun
    ledger.database.fail_before = lambda: True
    claims = (ledger.ledger.claim(claim_on(payment)) for _ in range(50))
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    ledger.database.fail_before = lambda: False
    assert {type(one) for one in outcomes} == {StorageUnavailable}
    assert ledger.database.begun - begun == 2


async def test_entries_that_fail_one_by_one_have_so_much_time_together(ledger: FaultyLedger) -> None:
    """Another transaction holds the row of a payment: each claim on it waits, and other writes succeed."""
    payment = await ledger.pay(100)
    begun = ledger.database.begun

    def fails() -> bool:
        number = ledger.database.begun - begun
        ledger.ticks_ms += 4_000
        return number % 2 == 1  # the batch and each entry fail; the probe write succeeds

    ledger.database.fail_before = fails
    claims = (ledger.ledger.claim(claim_on(payment)) for _ in range(50))
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    ledger.database.fail_before = lambda: False
    assert {type(one) for one in outcomes} == {StorageUnavailable}
    assert ledger.database.begun - begun <= 8


@pytest.mark.postgres
async def test_a_standby_that_is_gone_is_waited_for_twice_not_by_each(
    postgres_url: str, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "COMMAND_TIMEOUT_S", 1.0)
    database = connect_database(postgres_url)
    ledger = FaultyLedger(database)
    payment = await ledger.pay(100)
    try:
        await set_standby(operator, "nobody")
        begun = ledger.database.begun
        claims = (ledger.ledger.claim(claim_on(payment)) for _ in range(12))
        outcomes = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(one) for one in outcomes} == {StorageUnavailable}
        assert ledger.database.begun - begun == 2
    finally:
        await set_standby(operator, "")
        await ledger.close()
        await database.close()


async def set_standby(operator: Any, name: str) -> None:
    await operator.execute("SET synchronous_commit = local")
    await operator.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
    await operator.execute("SELECT pg_reload_conf()")
    shown = "SELECT current_setting('synchronous_standby_names') = $1"
    await until(lambda: operator.fetchval(shown, name))


async def test_a_file_that_another_process_writes_is_waited_for_twice_not_by_each(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_TIMEOUT_MS", 100)
    database, other = connect_database(sqlite_url), connect_database(sqlite_url)
    ledger = FaultyLedger(database)
    payment = await ledger.pay(100)
    is_written, is_done = threading.Event(), threading.Event()

    def write_for_long(connection: Connection) -> None:
        is_written.set()
        is_done.wait(timeout=DEADLINE_S)

    writing = start(other.write(write_for_long))
    await until(is_written.is_set)
    begun = ledger.database.begun
    claims = (ledger.ledger.claim(claim_on(payment)) for _ in range(12))
    outcomes = await asyncio.gather(*claims, return_exceptions=True)
    assert {type(one) for one in outcomes} == {StorageUnavailable}
    assert ledger.database.begun - begun == 2
    is_done.set()
    await writing
    await ledger.close()
    await other.close()
    await database.close()


# A grant that came late


async def test_a_claim_granted_after_half_a_lease_is_undone(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)
    ledger.database.after.clear()
    claim = start(ledger.ledger.claim(claim_on(payment)))
    committed = ledger.database.committed
    await until(lambda: ledger.database.committed > committed)
    ledger.ticks_ms += HALF_LEASE_MS + 1
    ledger.database.after.set()
    with pytest.raises(StorageUnavailable):
        await claim
    await ledger.close()
    assert await states(ledger) == ["released"]


async def test_a_claim_whose_caller_slept_after_its_commit_is_given_back(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)

    async def claim_and_stall() -> None:
        await ledger.ledger.claim(claim_on(payment))
        ledger.ticks_ms += (
            HALF_LEASE_MS + 1
        )  # the result of the other call is set, and its task has not run since

    both = asyncio.gather(claim_and_stall(), ledger.ledger.claim(claim_on(payment)), return_exceptions=True)
    _, late = await both
    assert isinstance(late, StorageUnavailable)
    await ledger.close()
    assert sorted(await states(ledger)) == ["forwarding", "released"]


async def test_a_repeat_granted_after_half_a_lease_returns_to_unknown(ledger: FaultyLedger) -> None:
    claim = await make_unknown(ledger)
    ledger.database.after.clear()
    committed = ledger.database.committed
    repeat = start(reopen(ledger, claim))
    await until(lambda: ledger.database.committed > committed)
    ledger.ticks_ms += HALF_LEASE_MS + 1
    ledger.database.after.set()
    with pytest.raises(StorageUnavailable):
        await repeat
    await ledger.close()
    assert await states(ledger) == ["unknown"]


async def test_a_claim_within_half_a_lease_is_granted(ledger: FaultyLedger) -> None:
    payment = await ledger.pay(10)
    ledger.database.after.clear()
    claim = start(ledger.ledger.claim(claim_on(payment)))
    committed = ledger.database.committed
    await until(lambda: ledger.database.committed > committed)
    ledger.ticks_ms += HALF_LEASE_MS
    ledger.database.after.set()
    assert isinstance(await claim, Claimed)


def fail_writes(ledger: FaultyLedger, count: int) -> Any:
    end = ledger.database.begun + count
    return lambda: ledger.database.begun < end


async def test_a_second_end_of_a_call_whose_end_is_late_does_not_keep_the_writer_busy(
    ledger: FaultyLedger,
) -> None:
    """Otherwise it would wait behind the late one while the database is unavailable, and the writer would retry
    without a pause."""
    claim = claim_on(await ledger.pay(10))
    await ledger.ledger.claim(claim)
    unknown = close_of(claim, CallState.UNKNOWN, upstream_status=None)
    ledger.database.fail_before = fail_writes(ledger, 50)
    begun = ledger.database.begun
    for _ in range(2):
        with pytest.raises(StorageUnavailable):
            await ledger.ledger.close(unknown)
    assert ledger.database.begun - begun < 9
    ledger.database.fail_before = lambda: False
    await ledger.ledger.recover(now_ms=NOW_MS)
    assert await states(ledger) == ["unknown"]


async def test_the_ledger_stops_while_a_second_end_waits_and_the_database_is_unavailable(
    ledger: FaultyLedger,
) -> None:
    claim = claim_on(await ledger.pay(10))
    await ledger.ledger.claim(claim)
    unknown = close_of(claim, CallState.UNKNOWN, upstream_status=None)
    ledger.database.fail_before = fail_writes(ledger, 50)
    begun = ledger.database.begun
    ends = [start(ledger.ledger.close(unknown)) for _ in range(2)]
    ledger.ledger.stop()
    told = await asyncio.gather(*ends, return_exceptions=True)
    assert [type(one) for one in told] == [StorageUnavailable, StorageUnavailable]
    assert ledger.database.begun - begun < 9


# A batch that a statement queue hands over


async def test_an_entry_behind_a_failed_batch_is_written_next(ledger: FaultyLedger) -> None:
    claim = claim_on(await ledger.pay(10), method="POST", idempotency_key="k")
    ledger.ledger._group_commit.take_over_failed([], StorageUnavailable())
    assert isinstance(await ledger.ledger.claim(claim), Claimed)
