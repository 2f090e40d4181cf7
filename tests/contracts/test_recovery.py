"""Recovery after a crash: open calls, lost closes, a restored file, an imbalance; and a real kill -9."""

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from tests.kit.clocks import Clock
from tests.kit.ledger_records import NOW_MS, claim_on, close_of, operator_origin, tx_hash
from tests.kit.ledger_steps import outlive, pay
from tests.kit.sql_ledger import SqlLedger
from tests.kit.waits import DEADLINE_S
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import Claimed, Closed, Fenced, Unspendable
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.engine.postgres import COMMAND_TIMEOUT_S
from tollway.storage.ledger import ledger_store
from tollway.storage.ledger.recovery import (
    OWNER_KEPT_MS,
    AbandonedCall,
    prune_owners,
    read_shared_clock,
    recover_calls,
)
from tollway.storage.operator.restore_detection import mark_as_backup, mark_path

HOLD_MS = 86_400_000
LIFE_ONE: Callable[[Connection], str] = lambda _: "life-1"  # noqa: E731
LIFE_TWO: Callable[[Connection], str] = lambda _: "life-2"  # noqa: E731
NO_MARK: Callable[[Connection], str] = lambda _: ""  # noqa: E731


LEASE_MS = int(DEFAULT_LIMITS.owner_lease_s * 1000)


class Gateway:
    """The ledger of one gateway, from start to stop."""

    def __init__(self, database: Database, owner_id: str = "one", **options: Any) -> None:
        self.ledger: Any = SqlLedger(database, owner_id=owner_id, now_ms=lambda: NOW_MS, **options)

    async def __aenter__(self) -> Any:
        self._task = asyncio.get_running_loop().create_task(self.ledger.run())
        await self.ledger.open()
        return self.ledger

    async def __aexit__(self, *_: object) -> None:
        self.ledger.stop()
        await self._task


async def execute(database: Database, sql: str, **values: object) -> None:
    await database.write(lambda c: c.execute(text(sql), values))


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        (LIFE_ONE, LIFE_ONE, CallState.RELEASED),  # the process was killed: all its closes are stored
        (LIFE_ONE, LIFE_TWO, CallState.UNKNOWN),  # the machine lost power: the last closes may be lost
        (NO_MARK, NO_MARK, CallState.UNKNOWN),  # unknown
    ],
)
async def test_the_clock_releases_unless_a_power_loss_may_have_lost_the_close(
    database: Database, before: Any, after: Any, ends: CallState
) -> None:
    clock = Clock(NOW_MS)
    async with Gateway(database, boot_mark=before, shared_clock=clock.read_shared) as one:
        claim = claim_on(await pay(one))
        await one.claim(claim)
    async with Gateway(database, "two", boot_mark=after, shared_clock=clock.read_shared) as two:
        await outlive(clock, two)
        await two.recover(now_ms=NOW_MS)
        assert (await two.find_call(claim.call_id)).state is CallState.UNKNOWN
        await two.recover(now_ms=NOW_MS + HOLD_MS)
        assert (await two.find_call(claim.call_id)).state is ends
        resolved = await two.resolve(claim.call_id, CallState.RELEASED, now_ms=NOW_MS)
        assert resolved is (CallState.RELEASED if ends is CallState.UNKNOWN else None)
        assert (await two.audit()).wrong == ()


async def test_a_doubt_that_a_power_loss_left_outlives_a_repeat(database: Database) -> None:
    """Its first response may have reached the caller, so a second run without a response releases nothing."""
    clock = Clock(NOW_MS)
    async with Gateway(database, boot_mark=LIFE_ONE, shared_clock=clock.read_shared) as one:
        claim = claim_on(await pay(one))
        await one.claim(claim)
    async with Gateway(database, "two", boot_mark=LIFE_TWO, shared_clock=clock.read_shared) as two:
        await outlive(clock, two)
        await two.recover(now_ms=NOW_MS)
        assert isinstance(await two.reopen(claim.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    async with Gateway(database, "three", boot_mark=LIFE_TWO, shared_clock=clock.read_shared) as three:
        await outlive(clock, three)
        await three.recover(now_ms=NOW_MS)  # the second run stayed open too
        await three.recover(now_ms=NOW_MS + HOLD_MS)
        assert (await three.find_call(claim.call_id)).state is CallState.UNKNOWN
        assert isinstance(await three.reopen(claim.call_id, epoch=2, now_ms=NOW_MS), Claimed)
        await three.close(close_of(claim, CallState.UNKNOWN, epoch=3))
        await three.recover(now_ms=NOW_MS + HOLD_MS)
        assert (await three.find_call(claim.call_id)).state is CallState.UNKNOWN


async def test_a_close_that_the_database_server_lost_does_not_strand_the_call(database: Database) -> None:
    async with Gateway(database) as one:
        claim = claim_on(await pay(one))
        await one.claim(claim)
        await one.close(close_of(claim))
        assert await one.recover(now_ms=NOW_MS) == 0
        await execute(database, "UPDATE call SET state = 'forwarding'")  # as after a crash of the server
        assert await one.recover(now_ms=NOW_MS) == 1
        record = await one.find_call(claim.call_id)
        assert (record.state, record.error) == (CallState.UNKNOWN, "outcome_lost")
        assert await one.recover(now_ms=NOW_MS + 2 * HOLD_MS) == 0


async def test_recovery_does_not_change_calls_that_are_claimed_or_closed_at_the_same_time(
    database: Database,
) -> None:
    async with Gateway(database) as one:
        payment = await pay(one, 1000)

        async def call() -> None:
            claim = claim_on(payment)
            assert isinstance(await one.claim(claim), Claimed)
            assert not isinstance(await one.close(close_of(claim)), Fenced)

        rounds = (one.recover(now_ms=NOW_MS) for _ in range(10))
        outcomes = await asyncio.gather(*(call() for _ in range(100)), *rounds)
        assert outcomes[100:] == [0] * 10


async def test_what_moved_on_since_it_was_found_is_left_alone(database: Database) -> None:
    async with Gateway(database) as one:
        claim = claim_on(await pay(one))
        await one.claim(claim)
        for epoch, before in ((2, CallState.FORWARDING), (1, CallState.UNKNOWN), (1, CallState.CONSUMED)):
            stale = AbandonedCall(call_id=claim.call_id, epoch=epoch, before=before, after=CallState.RELEASED)
            assert await database.write(partial(recover_calls, abandoned=[stale], now_ms=NOW_MS)) == [], stale
            assert (await one.find_call(claim.call_id)).state is CallState.FORWARDING, stale


@pytest.mark.postgres
async def test_a_gateway_that_renews_is_alive_with_any_clock_of_its_own(postgres_database: Database) -> None:
    clock = Clock(NOW_MS)
    async with (
        Gateway(postgres_database, shared_clock=clock.read_shared) as one,
        Gateway(postgres_database, "two", shared_clock=clock.read_shared) as two,
    ):
        claim = claim_on(await pay(one))
        await one.claim(claim)
        await outlive(clock, one, two)
        assert await two.recover(now_ms=NOW_MS + HOLD_MS) == 0
        await outlive(clock, two)
        assert await two.recover(now_ms=1) == 1


@pytest.mark.postgres
async def test_the_shared_clock_is_the_database_s(postgres_database: Database) -> None:
    first = await postgres_database.read(lambda connection: read_shared_clock(connection, 1))
    assert NOW_MS // 10 < first <= await postgres_database.read(lambda c: read_shared_clock(c, 1))


@pytest.mark.postgres
async def test_a_stall_of_all_gateways_fences_none(postgres_database: Database) -> None:
    clock, lapses = Clock(NOW_MS), []
    options = {"shared_clock": clock.read_shared, "on_lapse": lambda: lapses.append(1)}
    async with (
        Gateway(postgres_database, **options) as one,
        Gateway(postgres_database, "two", **options) as two,
    ):
        claim = claim_on(await pay(one))
        await one.claim(claim)
        await outlive(clock, one, two)
        assert not lapses
        clock.ms += 2 * LEASE_MS  # no gateway could renew
        assert await two.recover(now_ms=NOW_MS) == 0
        with capture_logs() as logs:
            await two.renew_ownership(now_ms=NOW_MS)
        assert await two.recover(now_ms=NOW_MS) == 0
        assert [entry["event"] for entry in logs] == ["owner_lease_lapsed"]
        assert lapses == [1]
        await outlive(clock, one, two)
        assert await two.recover(now_ms=NOW_MS) == 0
        assert isinstance(await one.close(close_of(claim)), Closed)


async def test_a_renewal_that_hangs_is_given_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_store, "RENEW_TIMEOUT_S", 0)
    with pytest.raises(StorageUnavailable):
        await Gateway(database).ledger.renew_ownership(now_ms=NOW_MS)


def test_the_lease_outlives_every_timeout_of_the_database() -> None:
    assert DEFAULT_LIMITS.owner_lease_s >= 2 * COMMAND_TIMEOUT_S
    assert DEFAULT_LIMITS.owner_lease_s / 2 > ledger_store.RENEW_TIMEOUT_S + DEFAULT_LIMITS.owner_renew_s
    # A gateway recovers after its own first lease: all calls have ended within a minute of the last restart.
    assert DEFAULT_LIMITS.owner_lease_s + 2 * DEFAULT_LIMITS.recovery_interval_s < 60


async def test_rows_of_stopped_gateways_are_deleted_unless_they_have_open_calls(database: Database) -> None:
    clock = Clock(NOW_MS)
    async with Gateway(database, "busy", shared_clock=clock.read_shared) as busy:
        await busy.claim(claim_on(await pay(busy)))
    async with Gateway(database, "idle", shared_clock=clock.read_shared):
        pass
    clock.ms += OWNER_KEPT_MS
    async with Gateway(database, "late", shared_clock=clock.read_shared):
        assert await owners(database) >= {"idle"}
    clock.ms += 1
    ledger = Gateway(database, "new", shared_clock=clock.read_shared).ledger
    await ledger.renew_ownership(now_ms=NOW_MS)
    await execute(database, "UPDATE call SET state = 'forwarding'")
    await database.write(lambda c: prune_owners(c, "new", now_ms=NOW_MS, shared_clock=clock.read_shared))
    assert await owners(database) == {"busy", "late", "new"}


async def owners(database: Database) -> set[str]:
    found = await database.read(lambda c: c.execute(text("SELECT id FROM gateway_owner")).scalars().all())
    return set(found)


async def test_the_audit_finds_an_imbalance(database: Database) -> None:
    async with Gateway(database) as one:
        payment = await pay(one)
        for _ in range(2):
            await one.claim(claim_on(payment, 3))
        helped = claim_on(await pay(one, 3, "short"), 5)
        assert isinstance(await one.claim(helped), Claimed)
        assert (await one.audit()).is_balanced
        await execute(
            database, "UPDATE payment SET taken_units = taken_units - 1 WHERE id = :id", id=payment.id
        )
        (line,) = (await one.audit()).wrong
        assert str(payment.tx_hash) in line
        await execute(
            database, "UPDATE payment SET taken_units = taken_units + 1 WHERE id = :id", id=payment.id
        )
        await execute(database, "DELETE FROM call_topup")
        assert len((await one.audit()).wrong) == 2  # the payment that completed a price, and its call


async def test_the_audit_names_sums_that_no_column_can_hold(database: Database) -> None:
    """Wrong rows, but rows that a database can have: the audit must not fail over them."""
    async with Gateway(database) as one:
        payment = await pay(one, 2**63 - 1)
        for _ in range(6):
            await one.claim(claim_on(payment, 1))
        await execute(database, f"UPDATE call SET price_units = {2**62}, taken_units = {2**62}")
        await execute(database, "UPDATE payment SET taken_units = value_units")
        (line,) = (await one.audit()).wrong
        assert line.endswith(f"{2**63 - 1} taken of {2**63 - 1}, its calls hold {6 * 2**62}")
        # A call that holds more than a column can hold.
        (call_id, *_) = await database.read(lambda c: c.execute(text("SELECT id FROM call")).scalars().all())
        topup = "INSERT INTO call_topup (call_id, payment_id, units) VALUES (:call, :payment, :units)"
        await execute(database, topup, call=call_id, payment=payment.id, units=2**63 - 1)
        payment_line, call_line = (await one.audit()).wrong
        assert payment_line.endswith(f"its calls hold {6 * 2**62 + 2**63 - 1}")
        assert call_line == f"call {call_id} is forwarding at {2**62} and holds {2**62 + 2**63 - 1}"


async def test_a_payment_that_was_debited_outside_the_ledger_is_not_overspent(database: Database) -> None:
    async with Gateway(database) as one:
        payment = await pay(one)
        await execute(database, "UPDATE payment SET taken_units = 10")
        assert not isinstance(await one.claim(claim_on(payment)), Claimed)


# Restores


async def restarted(path: Path, owner_id: str, job: Any) -> Any:
    database = SqliteDatabase(path)
    async with Gateway(database, owner_id) as ledger:
        outcome = await job(ledger)
    await database.close()
    return outcome


async def held_before(ledger: Any) -> int | None:
    recorded = await ledger.find_transaction(tx_hash("any"))
    ms: int | None = recorded.held_before_ms
    return ms


async def test_a_restored_file_holds_its_balances_until_released(sqlite_url: str, tmp_path: Path) -> None:
    path, backup = tmp_path / "tollway.sqlite3", tmp_path / "backup"
    payment = await restarted(path, "one", pay)
    shutil.copyfile(path, backup)
    outcome = await restarted(path, "two", lambda ledger: ledger.claim(claim_on(payment)))
    assert isinstance(outcome, Claimed)  # an ordinary restart
    shutil.copyfile(backup, path)

    async def look(ledger: Any) -> None:
        assert await held_before(ledger) == NOW_MS
        assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=True)
        assert await ledger.release_held(origin=operator_origin()) == 1
        assert isinstance(await ledger.claim(claim_on(payment)), Claimed)

    await restarted(path, "three", look)

    async def look_again(ledger: Any) -> None:
        assert await held_before(ledger) is None
        assert (await ledger.audit()).held_payments == ()

    await restarted(path, "four", look_again)


async def test_a_new_file_beside_an_old_mark_is_a_restore(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "tollway.sqlite3"
    mark_path(path).write_text("7\n")
    assert await restarted(path, "one", held_before) == NOW_MS


@pytest.mark.parametrize("has_mark", [True, False])
async def test_a_copy_in_the_place_of_a_database_is_a_restore(
    sqlite_url: str, tmp_path: Path, has_mark: bool
) -> None:
    path = tmp_path / "tollway.sqlite3"
    await restarted(path, "one", pay)
    database = SqliteDatabase(path)
    await database.write(mark_as_backup)
    await database.close()
    if not has_mark:
        mark_path(path).unlink()
    with capture_logs() as logs:
        assert await restarted(path, "two", held_before) == NOW_MS
    assert [entry["event"] for entry in logs] == ["database_restored"]
    assert int(mark_path(path).read_text()) > 0


@pytest.mark.parametrize("mark", [None, "", "garbage"])
async def test_a_lost_mark_is_not_a_restore(sqlite_url: str, tmp_path: Path, mark: str | None) -> None:
    path = tmp_path / "tollway.sqlite3"
    await restarted(path, "one", pay)
    mark_path(path).unlink()
    if mark is not None:
        mark_path(path).write_text(mark)
    assert await restarted(path, "two", held_before) is None
    assert int(mark_path(path).read_text()) > 1


# kill -9

CHILD = """
import asyncio, sys
from pathlib import Path
from tollway.ledger.ledger import Claimed
from tollway.ledger.records import CallState
from tests.kit.sql_ledger import SqlLedger
from tollway.storage.engine.database import SqliteDatabase
from tests.kit.ledger_records import NOW_MS, claim_on, close_of, new_payment

async def call(ledger, payment, price):
    while True:
        claim = claim_on(payment, price)
        if not isinstance(await ledger.claim(claim), Claimed):
            return
        print("claimed", claim.call_id, flush=True)
        after = CallState.RELEASED if price == 2 else CallState.CONSUMED
        await ledger.close(close_of(claim, after))
        print(after.value, claim.call_id, flush=True)

async def main():
    ledger = SqlLedger(SqliteDatabase(Path(sys.argv[1])), owner_id="child", now_ms=lambda: NOW_MS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ledger.run())
        await ledger.open()
        payments = await ledger.record_payments([new_payment(10**9, f"tx{n}") for n in range(4)], now_ms=NOW_MS)
        for number in range(16):
            tasks.create_task(call(ledger, payments[number % 4], number % 3 + 1))

asyncio.run(main())
"""


async def test_the_ledger_balances_after_kill_9(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "tollway.sqlite3"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    lines: list[bytes] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(lines) < 2_000:
            line = await child.stdout.readline()
            assert line, "the child ended by itself"
            lines.append(line)
        child.send_signal(signal.SIGKILL)
        lines += (await child.stdout.read()).splitlines(keepends=True)
        await child.wait()
    told = {}
    for line in lines:
        if line.endswith(b"\n"):
            state, call_id = line.decode().split()
            told[call_id] = state

    async def look(ledger: Any) -> None:
        report = await ledger.audit()
        assert (report.wrong, report.payments) == ((), 4)
        for call_id, state in told.items():
            record = await ledger.find_call(call_id)
            assert record is not None, "an acknowledged claim is gone"
            if state != "claimed":
                assert record.state == state, "an acknowledged close is gone"
            else:
                assert record.state is not CallState.FORWARDING
        (payment,) = await ledger.find_payments(tx_hash("tx0"))
        assert isinstance(await ledger.claim(claim_on(payment, call_id="call_after")), Claimed)

    await restarted(path, "parent", look)
