"""Payments that have paid for very many calls, on both databases: each transaction of a reorganisation is small, and each end between two of them can be continued."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import func, select, update

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import CHAIN, NOW_MS, PAYEE, USDC, claim_on, close_of
from tests.kit.storage_faults import FaultyLedger
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import Claimed, Unspendable
from tollway.ledger.records import CallState, PaymentState
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database
from tollway.storage.ledger import locked_rows
from tollway.storage.ledger.ledger_tables import account_debt_table, call_table, payment_table

CALLS_MAX = DEFAULT_LIMITS.moved_calls_max
SIZES = [1_001, 20_000, 60_000]


@asynccontextmanager
async def large_payment(database: Database, calls: int, *, spare_units: int = 0) -> AsyncIterator[Any]:
    """A ledger with an unfinal payment that `calls` charged calls of one unit have spent, but for `spare_units`."""
    faulty = FaultyLedger(database)
    payment = await faulty.pay(calls + spare_units, "large", is_final=False)
    shared = {"chain_id": CHAIN, "asset": USDC, "pay_to": PAYEE, "payment_id": payment.id, "taken_units": 1}
    rows = [call_record_row(number, **shared) for number in range(calls)]

    def fill(connection: Any) -> None:
        insert_calls(connection, rows)
        spent = update(payment_table).where(payment_table.c.id == payment.id)
        connection.execute(spent.values(taken_units=calls, calls=calls))

    await database.write(fill, is_long=True)
    try:
        yield faulty, payment
    finally:
        await faulty.close()


async def count_states(database: Database) -> dict[str, int]:
    query = select(call_table.c.state, func.count()).group_by(call_table.c.state)
    return dict(await database.read(lambda c: c.execute(query).all()))  # type: ignore[arg-type]  # rows of two


async def kept_debt(database: Database) -> int:
    return await database.read(lambda c: c.scalar(select(account_debt_table.c.units)) or 0)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each transaction locks."""
    sizes: list[int] = []
    lock_calls = locked_rows.LockedRows.lock_calls

    def count(self: Any, call_ids: Any) -> Any:
        sizes.append(len(call_ids))
        return lock_calls(self, call_ids)

    monkeypatch.setattr(locked_rows.LockedRows, "lock_calls", count)
    return sizes


@pytest.mark.timeout(300)
@pytest.mark.parametrize("calls", SIZES)
async def test_a_reorganisation_and_a_return_move_all_calls_in_small_transactions(
    database: Database, moved: list[int], calls: int
) -> None:
    async with large_payment(database, calls, spare_units=7) as (faulty, payment):
        ledger, begun = faulty.ledger, faulty.database.begun
        assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == calls
        chunks = calls // CALLS_MAX + 1
        assert faulty.database.begun - begun == 1 + chunks
        assert (max(moved), sum(moved)) == (CALLS_MAX, calls)
        assert await count_states(database) == {"reorged": calls}
        assert await kept_debt(database) == calls
        moved.clear()
        # Back in another block: it pays for all its calls, and nothing is owed.
        back = await faulty.pay(calls + 7, "large", is_final=False, block_number=107)
        assert (back.state, back.remaining_units) == (PaymentState.UNFINAL, 7)
        assert (max(moved), sum(moved)) == (CALLS_MAX, calls)
        assert (await count_states(database), await kept_debt(database)) == ({"consumed": calls}, 0)
        assert isinstance(await ledger.claim(claim_on(back, 7)), Claimed)
        assert (await ledger.audit()).is_right


@pytest.mark.parametrize("calls", [1_001, 5_000])
async def test_what_an_end_between_two_transactions_leaves_is_continued(
    database: Database, calls: int
) -> None:
    async with large_payment(database, calls) as (faulty, payment):
        ledger = faulty.ledger
        commits = iter([False, False, True])
        faulty.database.fail_after = lambda: next(commits, False)
        with pytest.raises(StorageUnavailable):
            await ledger.mark_gone(payment.id, now_ms=NOW_MS)
        assert await count_states(database) == {"reorged": 2 * CALLS_MAX, "consumed": calls - 2 * CALLS_MAX}
        assert await ledger.claim(claim_on(payment)) == Unspendable(is_held=False)
        assert (await ledger.audit()).is_right
        assert await ledger.mark_gone(payment.id, now_ms=NOW_MS) == 0
        assert await ledger.continue_moves(CHAIN, now_ms=NOW_MS) == calls - 2 * CALLS_MAX
        assert await ledger.continue_moves(CHAIN, now_ms=NOW_MS) == 0
        assert (await count_states(database), await kept_debt(database)) == ({"reorged": calls}, calls)
        assert (await ledger.audit()).is_right


@pytest.mark.parametrize(("value_units", "owed_units"), [(1_501, 0), (900, 601)])
async def test_a_payment_returns_before_all_its_calls_are_moved(
    database: Database, value_units: int, owed_units: int
) -> None:
    """With its value its other calls stay paid; with less, all are moved first, so that its value is what it is."""
    async with large_payment(database, 1_501) as (faulty, payment):
        commits = iter([False, True])
        faulty.database.fail_after = lambda: next(commits, False)
        with pytest.raises(StorageUnavailable):
            await faulty.ledger.mark_gone(payment.id, now_ms=NOW_MS)
        back = await faulty.pay(value_units, "large", is_final=False, block_number=107)
        assert (back.state, back.value_units, back.remaining_units) == (PaymentState.UNFINAL, value_units, 0)
        assert await kept_debt(database) == owed_units
        assert (await faulty.ledger.audit()).is_right


async def test_a_running_call_ends_as_a_debt_while_the_others_are_moved(database: Database) -> None:
    async with large_payment(database, 1_001, spare_units=1) as (faulty, payment):
        claim = claim_on(payment)
        assert isinstance(await faulty.ledger.claim(claim), Claimed)
        commits = iter([True])
        faulty.database.fail_after = lambda: next(commits, False)
        with pytest.raises(StorageUnavailable):
            await faulty.ledger.mark_gone(payment.id, now_ms=NOW_MS)
        closed = await faulty.ledger.close(close_of(claim))
        assert (closed.is_reorged, closed.remaining_units) == (True, 0)
        assert (await faulty.ledger.find_call(claim.call_id)).state is CallState.REORGED
        assert await kept_debt(database) == 1
        assert await faulty.ledger.continue_moves(CHAIN, now_ms=NOW_MS) == 1_001
        assert await kept_debt(database) == 1_002
        assert (await faulty.ledger.audit()).is_right
