"""The routes of listings over a catalog in memory, with fakes around them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import Router

from tests.kit.routes import ALICE, PUBLIC_URL, RouteHarness
from tollway.errors import EndpointNotAllowed
from tollway.ids import Address, ChainId, ListingId
from tollway.limits import Limits
from tollway.money import Asset
from tollway.outbound.policy import Endpoint
from tollway.registry.listing import Listing
from tollway.web.api.context import WebContext
from tollway.web.api.listing_json import ListingEncoder, is_never_offered
from tollway.web.api.listing_routes import listing_router
from tollway.web.api.provider_documents import ProviderDocuments

BASE, OPTIMISM = ChainId(8453), ChainId(10)
USDC = Address.parse("0x833589fcd6edb6e08f4c7c32d4f71b54bda02913")
OTHER_USDC = Address.parse("0x0b2C639c533813f4Aa9D7837CAf62653d097Ff85")
ASSETS = (
    Asset(chain_id=BASE, token=USDC, symbol="USDC", decimals=6),
    Asset(chain_id=BASE, token=None, symbol="ETH", decimals=18),
    Asset(chain_id=OPTIMISM, token=OTHER_USDC, symbol="USDC", decimals=6),
)
APIS = "/api/v2/apis"
BODY: dict[str, Any] = {
    "name": "Weather",
    "pricePerRequest": "0.010",
    "currency": "USDC",
    "endpoint": "https://api.example.com/v1/",
}
SEVEN = {"id", "name", "provider", "pricePerRequest", "currency", "endpoint", "description"}


class ListingRoutesHarness(RouteHarness):
    """The routes of listings with fakes around them. `probed`, `fetched`: the endpoints and documents that were requested; `documents`: by URL. `denied_hosts`: that the outbound
    policy refuses; `open_hosts`: that answer without the listing's secret."""

    def __init__(self, **given: Any) -> None:
        self.probed: list[str] = []
        self.fetched: list[str] = []
        self.documents: dict[str, bytes] = {}
        self.denied_hosts: set[str] = set()
        self.open_hosts: set[str] = set()
        self.on_probe: Callable[[Endpoint], Awaitable[None]] | None = None
        numbers = iter(range(10_000))
        made = {
            "assets": ASSETS,
            "is_offered": is_never_offered,
            "is_mpp_offered": is_never_offered,
            "limits": Limits(registrations_per_hour=3, edits_per_hour=40),
            "entropy": lambda size: next(numbers).to_bytes(size, "big"),
            "encoder": ListingEncoder(
                public_url=PUBLIC_URL,
                assets=ASSETS,
                confirmations_for=lambda asset, units: 3 if asset.token is None else 1,
            ),
            "check_endpoint": self._check_endpoint,
            "find_addresses": self._find_no_addresses,
            "is_unprotected": self._is_unprotected,
            "documents": ProviderDocuments(self._fetch),
        }
        super().__init__(**{**made, **given})
        self.now_ms = 1_700_000_000_123

    async def _check_endpoint(self, endpoint: Endpoint) -> None:
        self.probed.append(endpoint.href)
        if self.on_probe is not None:
            await self.on_probe(endpoint)
        if endpoint.host in self.denied_hosts:
            raise EndpointNotAllowed("The endpoint leads to addresses that this gateway does not call.")

    async def _find_no_addresses(self, endpoint: Endpoint) -> tuple[str, ...]:
        return ()

    async def _is_unprotected(self, endpoint: Endpoint) -> bool:
        return endpoint.host in self.open_hosts

    async def _fetch(self, url: str) -> bytes:
        self.fetched.append(url)
        if url not in self.documents:
            raise EndpointNotAllowed("no")
        return self.documents[url]

    async def publish(self, wallet: Address = ALICE, **changes: Any) -> dict[str, Any]:
        answer = await self.send("POST", APIS, {**BODY, **changes}, wallet=wallet)
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def stored(self, listing_id: str) -> Listing:
        entry = await self.catalog.find(ListingId(listing_id))
        assert entry is not None
        return entry.listing


@asynccontextmanager
async def open_listing_routes(
    *more_routers: Callable[[WebContext], Router], **given: Any
) -> AsyncIterator[ListingRoutesHarness]:
    """The routes behind a client. `given`: members of the context."""
    harness = ListingRoutesHarness(**given)
    async with harness.open(listing_router, *more_routers):
        yield harness
