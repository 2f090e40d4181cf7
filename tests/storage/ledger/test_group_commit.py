"""The cost of a single entry between its caller and the writer, in turns of the event loop and in transactions: numbers that do not depend on
the machine."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.kit.ledger_records import NOW_MS, claim_on, close_of
from tests.kit.sql_ledger import SqlLedger
from tests.kit.stores import InlineDatabase


async def count_turns(job: Coroutine[Any, Any, object]) -> int:
    """Counts the turns of the loop until `job` is done, without any other wait."""
    running = asyncio.get_running_loop().create_task(job)
    turns = 0
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
        assert turns < 100
    await running
    return turns


async def test_a_single_entry_takes_few_turns_of_the_loop_and_one_transaction() -> None:
    """One turn to submit the entry, one for the writer, and one for the caller."""
    database = InlineDatabase()
    ledger = SqlLedger(database, owner_id="one", now_ms=lambda: NOW_MS)  # type: ignore[arg-type]  # a fake
    writing = asyncio.get_running_loop().create_task(ledger.run())
    await ledger.open()
    for _ in range(3):
        claim = claim_on(None)
        before = database.writes
        assert await count_turns(ledger.claim(claim)) <= 3
        assert await count_turns(ledger.close(close_of(claim))) <= 3
        assert database.writes - before == 2
    ledger.stop()
    await writing
    await database.close()
