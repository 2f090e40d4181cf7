"""The snapshot of blocked wallets follows other processes. The contract of the port: tests/contracts/test_moderation.py."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.ledger_records import operator_origin
from tollway.ids import Address
from tollway.storage.database import Database, connect_database, metadata
from tollway.storage.identity_store import ModerationStore, wallet_block_table
from tollway.storage.operator_acts import operator_act_table

ALICE = Address(b"a" * 20)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = connect_database(f"sqlite:///{tmp_path}/tollway.sqlite3")
    await database.open()
    tables = [wallet_block_table, operator_act_table]
    await database.write(lambda connection: metadata.create_all(connection, tables=tables))
    yield database
    await database.close()


async def test_a_block_by_another_process_is_visible_after_a_refresh(database: Database) -> None:
    here, there = ModerationStore(database), ModerationStore(database)
    await there.block(ALICE, origin=operator_origin(1, reason="spam"))
    assert here.find_block(ALICE) is None
    await here.refresh()
    block = here.find_block(ALICE)
    assert block is not None
    assert block.reason == "spam"
    await there.unblock(ALICE, origin=operator_origin(2))
    await there.block(ALICE, origin=operator_origin(3, reason="more spam"))
    await here.refresh()
    block = here.find_block(ALICE)
    assert block is not None
    assert block.reason == "more spam"
