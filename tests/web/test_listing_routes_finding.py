"""Which listing a request means: one that is there and not withdrawn, or a refusal that says why."""

from dataclasses import replace

import pytest

from tests.kit.listings import sample_listing
from tests.kit.stores import open_catalog
from tollway.errors import Code, Refusal
from tollway.ids import Address, ListingId
from tollway.registry.catalog import Catalog
from tollway.web.listing_routes import find_listing, find_public_listing

LISTING = sample_listing(provider=Address(b"\xaa" * 20))


@pytest.fixture
def catalog() -> Catalog:
    return open_catalog(now_ms=lambda: 0)


async def test_one_that_is_there_is_found(catalog: Catalog) -> None:
    await catalog.publish(LISTING)
    assert await find_listing(catalog, LISTING.id) == LISTING
    assert await find_public_listing(catalog, LISTING.id) == LISTING


async def test_an_unknown_one_is_refused(catalog: Catalog) -> None:
    with pytest.raises(Refusal) as refused:
        await find_public_listing(catalog, ListingId("api_none"))
    assert refused.value.problem.code is Code.API_NOT_FOUND


async def test_a_retired_one_is_gone(catalog: Catalog) -> None:
    await catalog.publish(replace(LISTING, retired_ms=5))
    with pytest.raises(Refusal) as refused:
        await find_listing(catalog, LISTING.id)
    assert refused.value.problem.code is Code.API_RETIRED


async def test_a_suspended_one_is_shown_to_nobody_and_stays_its_providers(catalog: Catalog) -> None:
    suspended = replace(LISTING, suspended_ms=5)
    await catalog.publish(suspended)
    assert await find_listing(catalog, LISTING.id) == suspended
    with pytest.raises(Refusal) as refused:
        await find_public_listing(catalog, LISTING.id)
    assert (refused.value.problem.code, refused.value.problem.reason) == (Code.API_PAUSED, "suspended")
