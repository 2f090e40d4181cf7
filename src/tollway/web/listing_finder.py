"""Which listing a request means, for every route that shows one: there, not withdrawn, not suspended, or a refusal."""

from tollway.errors import Code, Problem, Refusal
from tollway.identifiers import ListingId
from tollway.registry.catalog import Catalog
from tollway.registry.listing import Listing

_NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="There is no API with this id.")
_RETIRED = Problem(code=Code.API_RETIRED, detail="The provider has retired this API.")
_SUSPENDED = Problem(code=Code.API_PAUSED, detail="The operator has suspended this API.", reason="suspended")


async def find_listing(catalog: Catalog, listing_id: ListingId) -> Listing:
    """As it is now, suspended or not. Raises Refusal: `api_not_found`, `api_retired`."""
    entry = await catalog.find(listing_id)
    if entry is None:
        raise Refusal(_NOT_FOUND)
    if entry.listing.retired_ms is not None:
        raise Refusal(_RETIRED)
    return entry.listing


async def find_public_listing(catalog: Catalog, listing_id: ListingId) -> Listing:
    """One that may be shown to anybody. Raises Refusal: also `api_paused` for what the operator has suspended."""
    listing = await find_listing(catalog, listing_id)
    if listing.suspended_ms is not None:
        raise Refusal(_SUSPENDED)
    return listing
