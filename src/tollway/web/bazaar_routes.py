"""`/x402/discovery/resources` and `/x402/discovery/search`: our listings in the shape of an x402 facilitator's bazaar, so
that the clients of its SDKs can browse them. Reads only.

Only what can be paid by an authorisation at this moment is shown. A page is cut by the catalog; what the gas tank has
withdrawn since then is left out of it, so a page may hold less than `limit`, and no more is read for it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request

from tollway.chain.rules import ChainRules
from tollway.discovery.bazaar import (
    BAZAAR,
    LIMIT_DEFAULT,
    LIMIT_MAX,
    RESOURCE_TYPE,
    ResourceFilter,
    choose_representative_call,
    describe_resource,
    resources_json,
    search_json,
)
from tollway.errors import Problem
from tollway.gateway.target import match_operation
from tollway.identifiers import Address, ChainId, ListingId, Network, format_network, parse_network
from tollway.money import UNITS_MAX, Asset
from tollway.payments.requirement import PaymentRequirement, current_requirements
from tollway.payments.terms import OperationPrice
from tollway.registry.catalog import Catalog, ListingPage, ListingQuery, NetworkCurrency
from tollway.registry.listing import Listing
from tollway.web.wire import QueryParameters

OFFSET_MAX = 10_000
QUERY_LENGTH_MAX = 256
_FILTER_LENGTH_MAX = 64
_FILTERS = ("type", "payTo", "scheme", "network", "extensions", "limit")
_NETWORK = re.compile(r"[-a-z0-9]{3,8}:[-_a-zA-Z0-9]{1,32}")
_CURSOR = re.compile(r"[1-9][0-9]{0,4}")
ANY_RESOURCE = ResourceFilter()
_NO_LISTING = ListingId("")
_PROBE_UNITS = tuple(1 << power for power in range(UNITS_MAX.bit_length()))
"""Prices from the least to the dearest. What is too cheap to be worth its gas, and what is so dear that nobody waits for
its depth, closes no network for what lies between."""

IsOffered = Callable[[Asset, int, ListingId], bool]
"""Whether so many ledger units of an asset can be settled now for a listing (`Settlement.is_offered`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BazaarServices:
    """What the bazaar needs. `public_url` without a final slash; `rules` of every configured network."""

    catalog: Catalog
    rules: Mapping[ChainId, ChainRules]
    is_offered: IsOffered
    public_url: str


def bazaar_router(services: BazaarServices) -> APIRouter:
    """Two routes under `/x402/discovery`; a client is given `{publicUrl}/x402` as its facilitator."""
    router = APIRouter(prefix="/x402/discovery")

    @router.get("/resources")
    async def list_resources(request: Request) -> dict[str, Any]:
        query = QueryParameters(request.scope["query_string"], known=(*_FILTERS, "offset"))
        wanted, limit = _read_filter(query), _read_limit(query)
        offset = query.integer("offset", default=0, least=0, most=OFFSET_MAX)
        query.finish()
        page = await _find_page(services, wanted, ListingQuery(limit=limit, skip=offset))
        return resources_json(_records(services, wanted, page), limit=limit, offset=offset, total=page.total)

    @router.get("/search")
    async def search(request: Request) -> dict[str, Any]:
        query = QueryParameters(request.scope["query_string"], known=(*_FILTERS, "query", "cursor"))
        wanted, limit = _read_filter(query), _read_limit(query)
        words = query.text("query", length_max=QUERY_LENGTH_MAX)
        if not query.has("query"):
            query.refuse("query", "required", "must be given")
        start = query.parsed("cursor", _parse_cursor) or 0
        query.finish()
        asked = ListingQuery(limit=limit, skip=start, words=words, sort="relevance")
        page = await _find_page(services, wanted, asked)
        has_more = page.total > start + limit or (page.is_lower_bound and len(page.found) == limit)
        is_cut = has_more and start + limit > OFFSET_MAX
        return search_json(
            _records(services, wanted, page),
            limit=limit,
            cursor=str(start + limit) if has_more and not is_cut else None,
            is_partial=is_cut,
        )

    return router


async def _find_page(services: BazaarServices, wanted: ResourceFilter, asked: ListingQuery) -> ListingPage:
    """The listings that are sold on a network where authorisations are settled now."""
    network_currencies = tuple(
        network_currency
        for network_currency in _open_markets(services)
        if _is_wanted(network_currency, wanted)
    )
    if wanted.is_impossible or wanted.extension not in (None, BAZAAR) or not network_currencies:
        return ListingPage(found=(), total=0)
    network = network_currencies[0].chain_id if wanted.network is not None else None
    return await services.catalog.search(
        ListingQuery(
            limit=asked.limit,
            skip=asked.skip,
            words=asked.words,
            sort=asked.sort,
            network=network,
            pay_to=wanted.pay_to,
            network_currencies=network_currencies,
        )
    )


def _open_markets(services: BazaarServices) -> tuple[NetworkCurrency, ...]:
    """Where any price could be settled for a listing that has cost no gas yet. What fails even there (a key below its
    floor, gas too dear, no domain) would empty page after page."""
    assets = (asset for rules in services.rules.values() for asset in rules.assets)
    return tuple(
        dict.fromkeys(
            NetworkCurrency(chain_id=asset.chain_id, currency=asset.symbol)
            for asset in assets
            if asset.domain is not None
            and any(services.is_offered(asset, units, _NO_LISTING) for units in _PROBE_UNITS)
        )
    )


def _is_wanted(network_currency: NetworkCurrency, wanted: ResourceFilter) -> bool:
    return wanted.network in (None, format_network(network_currency.chain_id))


def _records(services: BazaarServices, wanted: ResourceFilter, page: ListingPage) -> list[dict[str, Any]]:
    records = (describe_for_bazaar(services, found.listing, wanted) for found in page.found)
    return [record for record in records if record is not None and wanted.has_extension(record)]


def describe_for_bazaar(
    services: BazaarServices, listing: Listing, wanted: ResourceFilter = ANY_RESOURCE
) -> dict[str, Any] | None:
    """The record of a listing; None when nothing that can be settled now meets what is wanted."""
    requirements = tuple(
        one
        for one in _list_requirements(services, listing)
        if one.units <= UNITS_MAX and services.is_offered(one.asset, one.units, listing.id)
    )
    if not wanted.is_met_by(requirements):
        return None
    gateway_url = f"{services.public_url}/api/v2/gateway/{listing.id}"
    return describe_resource(listing, requirements, gateway_url=gateway_url)


def _list_requirements(services: BazaarServices, listing: Listing) -> tuple[PaymentRequirement, ...]:
    """What the call that stands for the listing costs, in every way; nothing for a free one."""
    entry = choose_representative_call(listing)
    operation = match_operation(listing.operations, entry.method, entry.path)
    if isinstance(operation, Problem):
        return ()
    operation_price = OperationPrice(
        terms=listing.current_terms(since_ms=listing.updated_ms),
        price=listing.price if operation is None else operation.price,
    )
    return current_requirements(operation_price, services.rules, timeout_s=listing.timeout_s)


# ---- The query.


def _read_filter(query: QueryParameters) -> ResourceFilter:
    """What is well formed but not ours (another type, scheme, network or extension) finds nothing; it is no mistake."""
    network = query.parsed("network", _parse_network)
    return ResourceFilter(
        kind=query.choice("type", (RESOURCE_TYPE, "mcp")),
        pay_to=query.parsed("payTo", Address.parse),
        scheme=query.text("scheme", length_max=_FILTER_LENGTH_MAX),
        network=network,
        extension=query.text("extensions", length_max=_FILTER_LENGTH_MAX),
    )


def _read_limit(query: QueryParameters) -> int:
    return query.integer("limit", default=LIMIT_DEFAULT, least=1, most=LIMIT_MAX)


def _parse_network(text: str) -> Network:
    """CAIP-2; one of another namespace than eip155 is a network all the same."""
    if not _NETWORK.fullmatch(text):
        raise ValueError("a network is written like eip155:8453")
    return format_network(parse_network(text)) if text.startswith("eip155:") else Network(text)


def _parse_cursor(text: str) -> int:
    if not _CURSOR.fullmatch(text) or int(text) > OFFSET_MAX:
        raise ValueError("must be a cursor that a search gave")
    return int(text)
