"""Batches that change debts and budgets lock the debts first, also with claims in the same batch, so two gateways do not end in a deadlock. On PostgreSQL: SQLite has one
writer at a time."""

import asyncio
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection

from tests.contracts.test_webhook_locks import CountingDatabase
from tests.kit.budgets import bind, policy_of
from tests.kit.ledger_records import NOW_MS, PAYER, claim_on, close_of
from tests.kit.ledger_steps import pay
from tests.kit.sql_ledger import SqlLedger
from tests.kit.waits import wait_blocked
from tollway.ids import Address
from tollway.ledger.ledger import Claim, Claimed, Closed
from tollway.ledger.records import CallState
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.ledger.call_terms import KnownTerms
from tollway.storage.ledger.ledger_batch import BatchRules, Entry, LedgerBatch

pytestmark = [pytest.mark.dialects, pytest.mark.postgres]

OTHER = Address(b"\x44" * 20)


async def run_batch(database: Any, owner_id: str, entries: Sequence[Entry]) -> list[Any]:
    """One batch of a gateway, in one transaction, which is tried again after a deadlock."""
    rules = BatchRules(owner_id=owner_id, attempts_max=3, unfinal_max_nano={}, response_ttl_ms=1)

    def work(connection: Connection) -> list[Any]:
        batch = LedgerBatch(
            connection,
            rules,
            now_ms=NOW_MS,
            ahead_ms=0,
            is_retry=False,
            others=frozenset(),
            retried=frozenset(),
            accounts=frozenset(),
            known_terms=KnownTerms(),
        )
        return batch.run(entries)

    return await write_retried(database, work)


async def open_calls(ledger: Any, name: str) -> tuple[Claim, Claim]:
    """A call whose charge will be a debt of PAYER, because its payment has left the chain, and one whose release goes back to the budget."""
    gone = await pay(ledger, 5, f"{name} gone", is_final=False)
    owing, released = claim_on(gone, 5), claim_on(await pay(ledger, 5, f"{name} stays"), 5)
    for claim in (owing, released):
        assert isinstance(await ledger.claim(claim), Claimed)
    await ledger.mark_gone(gone.id, now_ms=NOW_MS)
    return owing, released


@pytest.mark.parametrize("held", ["budget", "account_debt"])
@pytest.mark.parametrize("is_mixed_first", [True, False])
async def test_a_batch_with_claims_and_one_without_end_without_a_deadlock(
    postgres_database: Database, operator: asyncpg.Connection, held: str, is_mixed_first: bool
) -> None:
    """Both change one debt and one budget, and wait for another session that holds one of the two rows."""
    ledgers = [SqlLedger(postgres_database, owner_id=name, now_ms=lambda: NOW_MS) for name in ("one", "two")]
    tasks = [asyncio.get_running_loop().create_task(one.run()) for one in ledgers]
    for one in ledgers:
        await one.open()
    await bind(ledgers[0], policy_of(maxTotal="1"))
    mixed, moves = [await open_calls(one, name) for one, name in zip(ledgers, "ab", strict=True)]
    debt = await pay(ledgers[0], 1, "debt", is_final=False)
    await ledgers[0].claim(spent := claim_on(debt, 1))
    await ledgers[0].close(close_of(spent))
    await ledgers[0].mark_gone(debt.id, now_ms=NOW_MS)
    third = await pay(ledgers[0], 5, "third", payer=OTHER)
    for one in ledgers:
        one.stop()
    await asyncio.gather(*tasks)

    def ends(calls: tuple[Claim, Claim]) -> list[Entry]:
        return [close_of(calls[0]), close_of(calls[1], CallState.RELEASED)]

    counting: Any = CountingDatabase(postgres_database)
    batches = [
        ("one", [*ends(mixed), claim_on(third, 5, payer=OTHER)]),
        ("two", ends(moves)),
    ]
    if not is_mixed_first:
        batches.reverse()
    running = []
    async with operator.transaction():
        await operator.execute(f"SELECT * FROM {held} FOR UPDATE")
        for number, (owner_id, entries) in enumerate(batches, 1):
            batch = run_batch(counting, owner_id, entries)
            running.append(asyncio.get_running_loop().create_task(batch))
            await wait_blocked(postgres_database, number)
    outcomes = await asyncio.gather(*running)
    assert counting.rolled_back == 0
    closed = [one for of_batch in outcomes for one in of_batch if isinstance(one, Closed)]
    assert [one.is_reorged for one in closed] == [True, False, True, False]
    bound = await ledgers[0].find_binding(PAYER)
    assert bound.total_nano == 11_000
    assert sum(one.units for one in await ledgers[0].debts(PAYER)) == 11
    assert (await ledgers[0].audit()).wrong == ()
