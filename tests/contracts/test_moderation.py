"""The contract of `Moderation`, on both dialects."""

from collections.abc import AsyncIterator

import pytest

from tollway.ids import Address
from tollway.registry.catalog import Moderation
from tollway.storage.database import connect_database
from tollway.storage.identity_store import ModerationStore

ALICE, BOB = Address(b"a" * 20), Address(b"b" * 20)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def moderation(request: pytest.FixtureRequest) -> AsyncIterator[Moderation]:
    fixture = "sqlite_url" if request.param == "sqlite" else "postgres_url"
    database = connect_database(request.getfixturevalue(fixture))
    await database.open()
    yield ModerationStore(database)
    await database.close()


async def test_a_block_holds_at_once_until_it_is_lifted(moderation: Moderation) -> None:
    assert not moderation.is_blocked(ALICE)
    assert await moderation.block(ALICE, reason="spam", now_ms=1)
    assert moderation.is_blocked(ALICE)
    assert not moderation.is_blocked(BOB)
    assert await moderation.unblock(ALICE)
    assert not moderation.is_blocked(ALICE)


async def test_blocking_twice_keeps_the_first_reason(moderation: Moderation) -> None:
    await moderation.block(ALICE, reason="spam", now_ms=1)
    assert not await moderation.block(ALICE, reason="other", now_ms=2)
    assert [(block.reason, block.since_ms) for block in await moderation.list_blocked()] == [("spam", 1)]


async def test_unblocking_a_stranger_reports_it(moderation: Moderation) -> None:
    assert not await moderation.unblock(BOB)


async def test_blocks_are_listed_oldest_first(moderation: Moderation) -> None:
    await moderation.block(BOB, reason="", now_ms=1)
    await moderation.block(ALICE, reason="", now_ms=2)
    assert [block.wallet for block in await moderation.list_blocked()] == [BOB, ALICE]
