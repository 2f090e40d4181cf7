"""The listing of a request: the current one, or a refusal with its reason."""

from dataclasses import replace

import pytest

from tests.kit.listings import sample_listing
from tests.kit.stores import open_catalog
from tollway.errors import Code, Refusal
from tollway.ids import Address, ListingId
from tollway.registry.catalog import Catalog
from tollway.web.api.listing_edits import find_listing, find_public_listing

LISTING = sample_listing(provider=Address(b"\xaa" * 20))


@pytest.fixture
def catalog() -> Catalog:
    return open_catalog(now_ms=lambda: 0)


async def test_returns_a_listing(catalog: Catalog) -> None:
    await catalog.publish(LISTING)
    assert await find_listing(catalog, LISTING.id) == LISTING
    assert await find_public_listing(catalog, LISTING.id) == LISTING


async def test_refuses_an_unknown_listing(catalog: Catalog) -> None:
    with pytest.raises(Refusal) as refused:
        await find_public_listing(catalog, ListingId("api_none"))
    assert refused.value.problem.code is Code.API_NOT_FOUND


async def test_refuses_a_retired_listing(catalog: Catalog) -> None:
    await catalog.publish(replace(LISTING, retired_ms=5))
    with pytest.raises(Refusal) as refused:
        await find_listing(catalog, LISTING.id)
    assert refused.value.problem.code is Code.API_RETIRED


async def test_a_suspended_listing_is_not_public_and_its_provider_can_edit_it(catalog: Catalog) -> None:
    suspended = replace(LISTING, suspended_ms=5)
    await catalog.publish(suspended)
    assert await find_listing(catalog, LISTING.id) == suspended
    with pytest.raises(Refusal) as refused:
        await find_public_listing(catalog, LISTING.id)
    assert (refused.value.problem.code, refused.value.problem.reason) == (Code.API_PAUSED, "suspended")
