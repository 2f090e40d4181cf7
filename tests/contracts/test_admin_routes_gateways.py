"""An entry on the pages of one gateway counts at another one after one refresh and after the age of its cache: under two seconds."""

import os

from tests.kit.clocks import Clock
from tests.kit.ledger_records import NOW_MS, operator_origin
from tests.kit.listings import sample_listing
from tests.kit.narrowing import existing
from tollway.app.lifecycle import MODERATION_INTERVAL_S
from tollway.ids import Address
from tollway.registry.listing import Listing
from tollway.registry.moderation import restore_listing, suspend_listing
from tollway.storage.accounts.identity_store import ModerationStore
from tollway.storage.catalog.catalog_store import FRESH_MS, CatalogStore
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer

ALICE = Address(b"a" * 20)
LISTING = sample_listing(provider=ALICE)
WITHIN_MS = 2_000


async def test_a_change_reaches_a_second_gateway_within_two_seconds(database: Database) -> None:
    clock = Clock(NOW_MS)
    here, there = (
        CatalogStore(database, sealer=Sealer(b"\x07" * 32, entropy=os.urandom), now_ms=clock)
        for _ in range(2)
    )
    await here.publish(LISTING)
    for change, is_suspended in ((suspend_listing, True), (restore_listing, False)):
        before = await there.find(LISTING.id)  # in its cache
        assert before is not None
        assert (before.listing.suspended_ms is not None) is not is_suspended
        assert isinstance(await change(here, LISTING.id, origin=operator_origin(clock.ms)), Listing)
        clock.ms += FRESH_MS
        after = existing(await there.find(LISTING.id))
        assert (after.listing.suspended_ms is not None) is is_suspended
    assert FRESH_MS <= WITHIN_MS

    blocks, others = ModerationStore(database), ModerationStore(database)
    await blocks.block(ALICE, origin=operator_origin())
    await others.refresh()
    assert others.find_block(ALICE) is not None
    assert MODERATION_INTERVAL_S * 1000 <= WITHIN_MS
