"""Debts of very many calls, on both databases: paid from credit in small transactions, kept as a sum, compared by the audit."""

import pytest
from sqlalchemy import update

from tests.contracts.test_gone_payments import CALLS_MAX, kept_debt, large_payment, moved
from tests.kit.ledger_records import NOW_MS, PAYER, claim_on
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import Claimed, InDebt
from tollway.storage.engine.database import Database
from tollway.storage.ledger.ledger_tables import account_debt_table

__all__ = ["moved"]


async def test_a_kept_debt_of_another_account_stays(database: Database) -> None:
    """The payment of one account changes no other row."""
    async with large_payment(database, 3) as (faulty, payment):
        await faulty.ledger.mark_gone(payment.id, now_ms=NOW_MS)
        await faulty.pay(9, "of another payer", payer=b"\x07" * 20)
        assert await kept_debt(database) == 3
        await faulty.pay(2, "of the debtor")
        assert await kept_debt(database) == 1
        assert (await faulty.ledger.audit()).is_right


async def test_a_return_whose_payment_of_debts_ended_early_demands_nothing(database: Database) -> None:
    async with large_payment(database, 1_501, spare_units=5) as (faulty, payment):
        await faulty.ledger.mark_gone(payment.id, now_ms=NOW_MS)
        commits = iter([False, True])
        faulty.database.fail_after = lambda: next(commits, False)
        with pytest.raises(StorageUnavailable):
            await faulty.pay(1_506, "large", is_final=False, block_number=107)
        assert await kept_debt(database) == 1_501 - CALLS_MAX
        outcome = await faulty.ledger.claim(claim_on(payment, 2))
        assert isinstance(outcome, Claimed)
        assert (outcome.remaining_units, await kept_debt(database)) == (3, 0)
        assert (await faulty.ledger.audit()).is_right


async def test_the_claim_of_a_debtor_reads_no_call_and_names_what_is_left(
    database: Database, moved: list[int]
) -> None:
    async with large_payment(database, 1_501) as (faulty, payment):
        await faulty.ledger.mark_gone(payment.id, now_ms=NOW_MS)
        small = await faulty.pay(1_000, "small")
        assert small.remaining_units == 0
        moved.clear()
        begun = faulty.database.begun
        for _ in range(2):
            assert await faulty.ledger.claim(claim_on(small)) == InDebt(units=501)
        assert sum(moved) == 0
        assert faulty.database.begun - begun <= 4
        assert [debt.units for debt in await faulty.ledger.debts(PAYER)] == [501]


async def test_the_audit_names_a_debt_that_is_not_what_the_calls_lack(database: Database) -> None:
    async with large_payment(database, 3) as (faulty, payment):
        await faulty.ledger.mark_gone(payment.id, now_ms=NOW_MS)
        await database.write(lambda c: c.execute(update(account_debt_table).values(units=4)))
        (line,) = (await faulty.ledger.audit()).wrong
        assert line.endswith("is 4, its reorged calls lack 3")
