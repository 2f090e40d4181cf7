"""The snapshot of blocked wallets follows other processes. The contract of the port: tests/contracts/test_moderation.py."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import insert, text

from tests.kit.ledger_records import operator_origin
from tollway.errors import StorageUnavailable
from tollway.ids import Address
from tollway.storage.database import Database, connect_database, metadata
from tollway.storage.identity_store import ModerationStore, wallet_block_table
from tollway.storage.operator_acts import OperatorActStore, operator_act_table

ALICE, BOB = Address(b"a" * 20), Address(b"b" * 20)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = connect_database(f"sqlite:///{tmp_path}/tollway.sqlite3")
    await database.open()
    tables = [wallet_block_table, operator_act_table]
    await database.write(lambda connection: metadata.create_all(connection, tables=tables))
    yield database
    await database.close()


async def write_old_block(database: Database) -> None:
    """A block of the release before, whose note was for operators alone."""
    row = {"wallet": bytes(BOB), "reason": "told us lies", "since_ms": 1}
    await database.write(lambda connection: connection.execute(insert(wallet_block_table), row))


async def test_a_block_by_another_process_is_visible_after_a_refresh(database: Database) -> None:
    here, there = ModerationStore(database), ModerationStore(database)
    await there.block(ALICE, origin=operator_origin(1, reason="spam"))
    assert here.find_block(ALICE) is None
    await here.refresh()
    block = here.find_block(ALICE)
    assert block is not None
    assert block.shown_reason == "spam"
    await here.refresh()
    assert here.find_block(ALICE) is block  # read once
    await there.unblock(ALICE, origin=operator_origin(2))
    await there.block(ALICE, origin=operator_origin(3, reason="more spam"))
    await here.refresh()
    block = here.find_block(ALICE)
    assert block is not None
    assert block.shown_reason == "more spam"


async def test_the_note_of_a_block_without_an_act_is_not_shown(database: Database) -> None:
    await write_old_block(database)
    moderation = ModerationStore(database)
    await moderation.refresh()
    block = moderation.find_block(BOB)
    assert block is not None
    assert (block.reason, block.shown_reason) == ("told us lies", "")


async def test_on_tables_of_the_release_before_blocks_are_read_and_none_is_made(database: Database) -> None:
    await write_old_block(database)
    await database.write(lambda connection: connection.execute(text("DROP TABLE operator_act")))
    moderation, acts = ModerationStore(database), OperatorActStore(database)
    await moderation.refresh()
    assert moderation.find_block(BOB) is not None
    for change in (
        moderation.block(ALICE, origin=operator_origin()),
        moderation.unblock(BOB, origin=operator_origin()),
    ):
        with pytest.raises(StorageUnavailable) as refused:
            await change
        assert "tollway gateway migrate" in refused.value.problem.detail
    assert [block.wallet for block in await moderation.list_blocked()] == [BOB]
    assert await acts.list_acts(limit=5) == ()
    assert await acts.log_new() == 0
