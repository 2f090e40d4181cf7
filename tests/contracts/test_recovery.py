"""What a crash leaves behind: stranded calls, lost closes, a restored file, an imbalance; and a real kill -9."""

import asyncio
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text

from tollway.ledger.book import Claimed, Fenced, Unspendable
from tollway.ledger.call import CallState
from tollway.storage.book_store import BookStore
from tollway.storage.database import Database, SqliteDatabase
from tollway.storage.operator_notes import mark_path
from tollway.storage.recovery import Stranded, settle
from tollway.testing.book_samples import NOW_MS, claim_on, close_of, new_payment, tx_hash

HOLD_MS = 86_400_000
LIFE_ONE: Callable[[Connection], str] = lambda _: "life-1"  # noqa: E731
LIFE_TWO: Callable[[Connection], str] = lambda _: "life-2"  # noqa: E731
NO_MARK: Callable[[Connection], str] = lambda _: ""  # noqa: E731


class Gateway:
    """One gateway's books, from start to stop."""

    def __init__(self, database: Database, owner_id: str = "one", **options: Any) -> None:
        self.book: Any = BookStore(database, owner_id=owner_id, now_ms=lambda: NOW_MS, **options)

    async def __aenter__(self) -> Any:
        self._task = asyncio.get_running_loop().create_task(self.book.run())
        await self.book.open()
        return self.book

    async def __aexit__(self, *_: object) -> None:
        self.book.stop()
        await self._task


async def paid(book: Any, value_units: int = 10, name: str = "tx") -> Any:
    (payment,) = await book.record_payments([new_payment(value_units, name)], now_ms=NOW_MS)
    return payment


async def execute(database: Database, sql: str, **values: object) -> None:
    await database.write(lambda c: c.execute(text(sql), values))


async def die(database: Database, owner_id: str) -> None:
    await execute(database, "UPDATE gateway_owner SET seen_ms = 0 WHERE id = :id", id=owner_id)


@pytest.mark.parametrize(
    ("before", "after", "ends"),
    [
        (LIFE_ONE, LIFE_ONE, CallState.RELEASED),  # a process died: its closes are all there
        (LIFE_ONE, LIFE_TWO, CallState.UNKNOWN),  # the machine died: the last closes may be lost
        (NO_MARK, NO_MARK, CallState.UNKNOWN),  # nobody can tell
    ],
)
async def test_the_clock_releases_unless_a_power_loss_may_have_lost_the_close(
    database: Database, before: Any, after: Any, ends: CallState
) -> None:
    async with Gateway(database, boot_mark=before) as one:
        claim = claim_on(await paid(one))
        await one.claim(claim)
    await die(database, "one")
    async with Gateway(database, "two", boot_mark=after) as two:
        assert (await two.find_call(claim.call_id)).state is CallState.UNKNOWN
        await two.recover(now_ms=NOW_MS + HOLD_MS)
        assert (await two.find_call(claim.call_id)).state is ends
        assert await two.resolve(claim.call_id, CallState.RELEASED, now_ms=NOW_MS) is (
            ends is CallState.UNKNOWN
        )
        assert (await two.audit()).wrong == ()


async def test_a_close_that_the_database_server_lost_does_not_strand_the_call(database: Database) -> None:
    async with Gateway(database) as one:
        claim = claim_on(await paid(one))
        await one.claim(claim)
        await one.close(close_of(claim))
        assert await one.recover(now_ms=NOW_MS) == 0
        await execute(database, "UPDATE call SET state = 'forwarding'")  # as after a crash of the server
        assert await one.recover(now_ms=NOW_MS) == 1
        assert (await one.find_call(claim.call_id)).state is CallState.UNKNOWN
        assert await one.recover(now_ms=NOW_MS + 2 * HOLD_MS) == 0


async def test_recovery_leaves_alone_what_is_claimed_or_closed_meanwhile(database: Database) -> None:
    async with Gateway(database) as one:
        payment = await paid(one, 1000)

        async def call() -> None:
            claim = claim_on(payment)
            assert isinstance(await one.claim(claim), Claimed)
            assert not isinstance(await one.close(close_of(claim)), Fenced)

        rounds = (one.recover(now_ms=NOW_MS) for _ in range(10))
        outcomes = await asyncio.gather(*(call() for _ in range(100)), *rounds)
        assert outcomes[100:] == [0] * 10


@pytest.mark.parametrize(
    ("epoch", "before"), [(2, CallState.FORWARDING), (1, CallState.UNKNOWN), (1, CallState.CONSUMED)]
)
async def test_what_moved_on_since_it_was_found_is_left_alone(
    database: Database, epoch: int, before: CallState
) -> None:
    async with Gateway(database) as one:
        claim = claim_on(await paid(one))
        await one.claim(claim)
        stale = Stranded(call_id=claim.call_id, epoch=epoch, before=before, after=CallState.RELEASED)
        assert await database.write(lambda c: settle(c, [stale], now_ms=NOW_MS)) == 0
        assert (await one.find_call(claim.call_id)).state is CallState.FORWARDING


@pytest.mark.postgres
async def test_a_gateway_that_renews_is_alive_whatever_its_clock_says(postgres_url: str) -> None:
    from tollway.storage.database import connect_database

    database = connect_database(postgres_url)
    async with Gateway(database) as one, Gateway(database, "two") as two:
        claim = claim_on(await paid(one))
        await one.claim(claim)
        await one.renew_ownership(now_ms=1)
        assert await two.recover(now_ms=NOW_MS + HOLD_MS) == 0
        await die(database, "one")
        assert await two.recover(now_ms=1) == 1
    await database.close()


async def test_the_audit_finds_an_imbalance(database: Database) -> None:
    async with Gateway(database) as one:
        payment = await paid(one)
        for _ in range(2):
            await one.claim(claim_on(payment, 3))
        helped = claim_on(await paid(one, 3, "short"), 5)
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
        assert len((await one.audit()).wrong) == 2  # the payment that helped, and the call that it helped


async def test_a_payment_debited_behind_the_books_back_is_not_overspent(database: Database) -> None:
    async with Gateway(database) as one:
        payment = await paid(one)
        await execute(database, "UPDATE payment SET taken_units = 10")
        assert not isinstance(await one.claim(claim_on(payment)), Claimed)


# Restores


async def restarted(path: Path, owner_id: str, job: Any) -> Any:
    database = SqliteDatabase(path)
    async with Gateway(database, owner_id) as book:
        outcome = await job(book)
    await database.close()
    return outcome


async def test_a_restored_file_holds_its_balances_until_released(sqlite_url: str, tmp_path: Path) -> None:
    path, backup = tmp_path / "tollway.sqlite3", tmp_path / "backup"
    payment = await restarted(path, "one", paid)
    shutil.copyfile(path, backup)
    outcome = await restarted(path, "two", lambda book: book.claim(claim_on(payment)))
    assert isinstance(outcome, Claimed)  # an ordinary restart
    shutil.copyfile(backup, path)

    async def look(book: Any) -> None:
        assert await book.restored_before_ms() == NOW_MS
        assert await book.claim(claim_on(payment)) == Unspendable(is_held=True)
        assert await book.release_held() == 1
        assert isinstance(await book.claim(claim_on(payment)), Claimed)

    await restarted(path, "three", look)

    async def look_again(book: Any) -> None:
        assert await book.restored_before_ms() is None
        assert (await book.audit()).held_payments == ()

    await restarted(path, "four", look_again)


async def test_a_new_file_beside_an_old_mark_is_a_restore(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "tollway.sqlite3"
    mark_path(path).write_text("7\n")
    assert await restarted(path, "one", lambda book: book.restored_before_ms()) == NOW_MS


@pytest.mark.parametrize("mark", [None, "", "garbage"])
async def test_a_lost_mark_is_not_a_restore(sqlite_url: str, tmp_path: Path, mark: str | None) -> None:
    path = tmp_path / "tollway.sqlite3"
    await restarted(path, "one", paid)
    mark_path(path).unlink()
    if mark is not None:
        mark_path(path).write_text(mark)
    assert await restarted(path, "two", lambda book: book.restored_before_ms()) is None
    assert int(mark_path(path).read_text()) > 1


# kill -9

CHILD = """
import asyncio, sys
from pathlib import Path
from tollway.ledger.book import Claimed
from tollway.ledger.call import CallState
from tollway.storage.book_store import BookStore
from tollway.storage.database import SqliteDatabase
from tollway.testing.book_samples import NOW_MS, claim_on, close_of, new_payment

async def call(book, payment, price):
    while True:
        claim = claim_on(payment, price)
        if not isinstance(await book.claim(claim), Claimed):
            return
        print("claimed", claim.call_id, flush=True)
        after = CallState.RELEASED if price == 2 else CallState.CONSUMED
        await book.close(close_of(claim, after))
        print(after.value, claim.call_id, flush=True)

async def main():
    book = BookStore(SqliteDatabase(Path(sys.argv[1])), owner_id="child", now_ms=lambda: NOW_MS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(book.run())
        await book.open()
        payments = await book.record_payments([new_payment(10**9, f"tx{n}") for n in range(4)], now_ms=NOW_MS)
        for number in range(16):
            tasks.create_task(call(book, payments[number % 4], number % 3 + 1))

asyncio.run(main())
"""


async def test_the_books_balance_after_kill_9(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "tollway.sqlite3"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    lines: list[bytes] = []
    async with asyncio.timeout(60):
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

    async def look(book: Any) -> None:
        report = await book.audit()
        assert (report.wrong, report.payments) == ((), 4)
        for call_id, state in told.items():
            record = await book.find_call(call_id)
            assert record is not None, "an acknowledged claim is gone"
            if state != "claimed":
                assert record.state == state, "an acknowledged close is gone"
            else:
                assert record.state is not CallState.FORWARDING
        (payment,) = await book.find_payments(tx_hash("tx0"))
        assert isinstance(await book.claim(claim_on(payment, call_id="call_after")), Claimed)

    await restarted(path, "parent", look)
