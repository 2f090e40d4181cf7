"""The snapshot of blocked wallets follows other processes. The contract of the port: tests/contracts/test_moderation.py."""

from pathlib import Path

from tollway.ids import Address
from tollway.storage.database import connect_database, metadata
from tollway.storage.identity_store import ModerationStore, wallet_block_table

ALICE = Address(b"a" * 20)


async def test_a_block_by_another_process_is_visible_after_a_refresh(tmp_path: Path) -> None:
    database = connect_database(f"sqlite:///{tmp_path}/tollway.sqlite3")
    await database.open()
    try:
        await database.write(lambda connection: metadata.create_all(connection, tables=[wallet_block_table]))
        here, there = ModerationStore(database), ModerationStore(database)
        await there.block(ALICE, reason="spam", now_ms=1)
        assert not here.is_blocked(ALICE)
        await here.refresh()
        assert here.is_blocked(ALICE)
    finally:
        await database.close()
