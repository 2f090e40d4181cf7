"""The event `listing.ownership_lost`: an ended proof of ownership is one event of its provider, in the transaction that ended it."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.ledger_records import PROVIDER
from tests.kit.listings import make_challenge, sample_listing
from tests.kit.stores import make_sealer
from tests.kit.webhooks import WebhookHarness
from tollway.ids import Address, ListingId
from tollway.limits import Limits
from tollway.registry.catalog import Revised, RevisionConflict
from tollway.registry.listing import Listing
from tollway.registry.ownership import Challenge, Method, OwnershipClaim
from tollway.registry.ownership_recheck import OwnershipRecheck
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.reputation_store import OwnershipStore
from tollway.storage.engine.database import Database
from tollway.webhooks.events import EventType

LOST = EventType.LISTING_OWNERSHIP_LOST
ORIGIN, OTHER = "https://api.example.com", "https://other.example.com"
LIMITS = Limits(ownership_recheck_s=100.0, ownership_failures_max=2)
ROUND_MS = 100_001


class Registry:
    """The listings, proofs and webhooks of one gateway. `proved`: what each origin proves now."""

    def __init__(self, database: Database) -> None:
        self.webhooks = WebhookHarness(database)
        given: Any = {"now_ms": self.webhooks.read_now_ms, "events": self.webhooks.events}
        self.catalog = CatalogStore(database, sealer=make_sealer(), **given)
        self.ownerships = OwnershipStore(database, **given)
        self.proved: dict[str, tuple[Method, ...]] = {}
        self.recheck = OwnershipRecheck(
            self.ownerships,
            challenge=make_challenge,
            check=self._check,
            limits=LIMITS,
            now_ms=self.webhooks.read_now_ms,
        )

    async def _check(self, challenge: Challenge) -> tuple[Method, ...]:
        return self.proved.get(challenge.origin, ())

    async def prove(self, name: str, *, method: Method = "dns", origin: str = ORIGIN) -> Listing:
        listing = sample_listing(id=ListingId(name), provider=PROVIDER, name=name, endpoint=origin)
        await self.catalog.publish(listing)
        challenge = make_challenge(OwnershipClaim.of(listing))
        await self.ownerships.record_check(
            challenge, [method], now_ms=self.webhooks.now_ms, failures_max=LIMITS.ownership_failures_max
        )
        return listing

    async def check_all(self) -> None:
        self.webhooks.now_ms += ROUND_MS
        await self.recheck.check_due()

    async def edit(
        self, listing: Listing, *, expected_revision: int | None = None, **changes: Any
    ) -> Revised | RevisionConflict:
        revision = listing.revision if expected_revision is None else expected_revision
        return await self.catalog.revise(replace(listing, **changes), expected_revision=revision)

    async def lost(self) -> list[tuple[str, Address, str, str | None]]:
        return [
            (event.type, Address(event.wallet), event.subject, event.state)
            for event in await self.webhooks.new_events()
        ]


@pytest.fixture
async def registry(database: Database) -> Registry:
    it = Registry(database)
    await it.webhooks.store.refresh()
    return it


async def test_the_recheck_that_ends_a_proof_is_one_event_of_its_listing(registry: Registry) -> None:
    await registry.webhooks.activate(types=(LOST,))
    await registry.prove("api_kept")
    await registry.prove("api_lost", origin=OTHER)
    registry.proved = {ORIGIN: ("dns",)}
    await registry.check_all()
    assert await registry.lost() == [], "one failure ends no proof"
    await registry.check_all()
    assert await registry.lost() == [(LOST, PROVIDER, "api_lost", "unverified")]
    await registry.check_all()
    assert len(await registry.lost()) == 1, "a proof ends once"

    await registry.webhooks.outbox.spread_events()
    (delivery,) = await registry.webhooks.deliveries()
    sent = json.loads(delivery.data)
    assert (delivery.type, sent["apiId"], sent["apiName"], sent["state"]) == (
        LOST,
        "api_lost",
        "api_lost",
        "unverified",
    )


EDITS: list[tuple[Method, dict[str, Any], bool]] = [
    ("dns", {"endpoint": OTHER}, True),
    ("signature", {"pay_to": Address(b"\xbb" * 20)}, True),
    ("dns", {"pay_to": Address(b"\xbb" * 20)}, False),
    ("dns", {"name": "Other"}, False),
    ("dns", {"endpoint": OTHER, "retired_ms": 5}, False),
    ("dns", {"suspended_ms": 5}, False),
]


async def test_an_edit_that_ends_a_proof_is_an_event_of_a_listing_for_sale(registry: Registry) -> None:
    await registry.webhooks.activate(types=(LOST,))
    for number, (method, changes, is_lost) in enumerate(EDITS):
        listing = await registry.prove(f"api_{number}", method=method)
        assert isinstance(await registry.edit(listing, **changes), Revised)
        expected = [(LOST, PROVIDER, listing.id, "unverified")] if is_lost else []
        assert await registry.lost() == expected, (method, changes)
        await registry.webhooks.outbox.spread_events()  # the next row sees its own events only


async def test_an_edit_of_an_older_revision_ends_no_proof_and_is_no_event(registry: Registry) -> None:
    await registry.webhooks.activate(types=(LOST,))
    listing = await registry.prove("api_1")
    outcome = await registry.edit(listing, expected_revision=listing.revision + 1, endpoint=OTHER)
    assert isinstance(outcome, RevisionConflict)
    assert await registry.ownerships.is_verified(listing.id)
    assert await registry.lost() == []


async def test_a_proof_that_failed_already_is_not_lost_again(registry: Registry) -> None:
    await registry.webhooks.activate(types=(LOST,))
    listing = await registry.prove("api_1")
    for _ in range(LIMITS.ownership_failures_max):
        await registry.check_all()
    assert len(await registry.lost()) == 1
    await registry.edit(listing, endpoint=OTHER)
    assert len(await registry.lost()) == 1


async def test_a_provider_without_an_endpoint_of_that_type_has_no_row(registry: Registry) -> None:
    await registry.webhooks.activate(types=(EventType.LISTING_DOWN,))
    listing = await registry.prove("api_1")
    await registry.edit(listing, endpoint=OTHER)
    assert await registry.lost() == []
