"""The contract of `Moderation`, on both dialects, and its snapshot of blocked wallets in each process."""

import pytest

from tests.kit.ledger_records import operator_origin
from tests.kit.narrowing import existing
from tollway.ids import Address
from tollway.registry.moderation import Moderation
from tollway.storage.accounts.identity_store import ModerationStore
from tollway.storage.engine.database import Database

ALICE, BOB = Address(b"a" * 20), Address(b"b" * 20)


@pytest.fixture
def moderation(database: Database) -> Moderation:
    return ModerationStore(database)


async def test_a_block_holds_at_once_until_it_is_lifted(moderation: Moderation) -> None:
    assert moderation.find_block(ALICE) is None
    assert await moderation.block(ALICE, origin=operator_origin(1, reason="spam"))
    block = existing(moderation.find_block(ALICE))
    assert (block.wallet, block.since_ms, block.reason) == (ALICE, 1, "spam")
    assert moderation.find_block(BOB) is None
    assert await moderation.unblock(ALICE, origin=operator_origin(2))
    assert moderation.find_block(ALICE) is None


async def test_blocking_twice_keeps_the_first_reason(moderation: Moderation) -> None:
    await moderation.block(ALICE, origin=operator_origin(1, reason="spam"))
    assert not await moderation.block(ALICE, origin=operator_origin(2, reason="other"))
    assert [(block.reason, block.since_ms) for block in await moderation.list_blocked()] == [("spam", 1)]


async def test_a_second_block_has_its_own_reason(moderation: Moderation) -> None:
    await moderation.block(ALICE, origin=operator_origin(1, reason="spam"))
    await moderation.unblock(ALICE, origin=operator_origin(2))
    await moderation.block(ALICE, origin=operator_origin(3, reason="stolen key"))
    assert existing(moderation.find_block(ALICE)).reason == "stolen key"


async def test_unblocking_a_stranger_reports_it(moderation: Moderation) -> None:
    assert not await moderation.unblock(BOB, origin=operator_origin())


async def test_blocks_are_listed_oldest_first(moderation: Moderation) -> None:
    await moderation.block(BOB, origin=operator_origin(1))
    await moderation.block(ALICE, origin=operator_origin(2))
    assert [block.wallet for block in await moderation.list_blocked()] == [BOB, ALICE]


async def test_a_block_by_another_process_is_visible_after_a_refresh(database: Database) -> None:
    here, there = ModerationStore(database), ModerationStore(database)
    await there.block(ALICE, origin=operator_origin(1, reason="spam"))
    assert here.find_block(ALICE) is None
    await here.refresh()
    block = existing(here.find_block(ALICE))
    assert block.reason == "spam"
    await there.unblock(ALICE, origin=operator_origin(2))
    await there.block(ALICE, origin=operator_origin(3, reason="more spam"))
    await here.refresh()
    assert existing(here.find_block(ALICE)).reason == "more spam"
