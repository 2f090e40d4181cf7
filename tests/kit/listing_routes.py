"""The routes of listings over a catalog in memory, with fakes around them."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.kit.listings import find_block_in
from tests.kit.stores import ControlStores
from tollway.errors import Code, EndpointNotAllowed, Problem, Refusal
from tollway.ids import Address, ChainId, ListingId
from tollway.limits import Limits
from tollway.money import Asset
from tollway.outbound.policy import Endpoint
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.draft import DraftRules
from tollway.registry.listing import Listing
from tollway.web.admission import LoadShedder
from tollway.web.app import build_app
from tollway.web.auth_routes import read_body
from tollway.web.idempotent_create import IdempotentCreate
from tollway.web.listing_edits import ListingEdits, ListingServices, make_endpoint_check
from tollway.web.listing_json import ListingEncoder
from tollway.web.listing_routes import listing_router

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
BASE, OPTIMISM = ChainId(8453), ChainId(10)
USDC = Address.parse("0x833589fcd6edb6e08f4c7c32d4f71b54bda02913")
OTHER_USDC = Address.parse("0x0b2C639c533813f4Aa9D7837CAf62653d097Ff85")
ASSETS = (
    Asset(chain_id=BASE, token=USDC, symbol="USDC", decimals=6),
    Asset(chain_id=BASE, token=None, symbol="ETH", decimals=18),
    Asset(chain_id=OPTIMISM, token=OTHER_USDC, symbol="USDC", decimals=6),
)
PUBLIC_URL = "https://gw.example.com"
APIS = "/api/v2/apis"
BODY: dict[str, Any] = {
    "name": "Weather",
    "pricePerRequest": "0.010",
    "currency": "USDC",
    "endpoint": "https://api.example.com/v1/",
}
SEVEN = {"id", "name", "provider", "pricePerRequest", "currency", "endpoint", "description"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wallet:
    address: Address


async def no_calls(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError


@dataclass
class ListingRoutesHarness:
    """The routes with fakes around them, and the recorded calls of the fakes."""

    client: httpx.AsyncClient
    stores: ControlStores
    probed: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    documents: dict[str, bytes] = field(default_factory=dict)
    blocked: set[Address] = field(default_factory=set)
    denied_hosts: set[str] = field(default_factory=set)
    on_probe: Callable[[Endpoint], Awaitable[None]] | None = None
    open_hosts: set[str] = field(default_factory=set)
    now_ms: int = 1_700_000_000_123
    app: ASGIApp = no_calls

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        wallet: Address | None = ALICE,
        headers: Mapping[str, str] = {},
        raw: bytes | None = None,
    ) -> httpx.Response:
        proof = {} if wallet is None else {"x-test-wallet": str(wallet)}
        content: dict[str, Any] = {"json": body} if body is not None else {}
        if raw is not None:
            content = {"content": raw}
        return await self.client.request(method, path, headers={**proof, **headers}, **content)

    async def publish(self, wallet: Address = ALICE, **changes: Any) -> dict[str, Any]:
        answer = await self.send("POST", APIS, {**BODY, **changes}, wallet=wallet)
        assert answer.status_code == 201, answer.text
        created: dict[str, Any] = answer.json()
        return created

    async def stored(self, listing_id: str) -> Listing:
        entry = await self.stores.catalog.find(ListingId(listing_id))
        assert entry is not None
        return entry.listing


async def authenticate(request: Request) -> Wallet:
    await read_body(request, bytes_max=2 * 1024 * 1024)
    name = request.headers.get("x-test-wallet")
    if name is None:
        raise Refusal(Problem(code=Code.AUTHENTICATION_REQUIRED, detail="Who are you?"))
    return Wallet(address=Address.parse(name))


@asynccontextmanager
async def open_listing_routes(
    *, more_routers: Sequence[Router] = (), **overrides: Any
) -> AsyncIterator[ListingRoutesHarness]:
    """The routes behind a client. `overrides`: members of `ListingServices`."""
    stores = ControlStores()
    catalog = stores.catalog
    async with httpx.AsyncClient(base_url="http://gateway.test") as client:
        harness = ListingRoutesHarness(client=client, stores=stores)

        async def check_endpoint(endpoint: Endpoint) -> None:
            harness.probed.append(endpoint.href)
            if harness.on_probe is not None:
                await harness.on_probe(endpoint)
            if endpoint.host in harness.denied_hosts:
                raise EndpointNotAllowed("The endpoint leads to addresses that this gateway does not call.")

        async def fetch(url: str) -> bytes:
            harness.fetched.append(url)
            if url not in harness.documents:
                raise EndpointNotAllowed("no")
            return harness.documents[url]

        async def is_unprotected(endpoint: Endpoint) -> bool:
            return endpoint.host in harness.open_hosts

        numbers = iter(range(10_000))
        services = ListingServices(
            catalog=catalog,
            rules=DraftRules(
                assets=ASSETS,
                main_networks=frozenset({BASE, OPTIMISM}),
                allow_private_endpoints=False,
                check_endpoint=make_endpoint_check(allow_private=False),
            ),
            encoder=ListingEncoder(
                public_url=PUBLIC_URL,
                assets=ASSETS,
                confirmations_for=lambda asset, units: 3 if asset.token is None else 1,
            ),
            limits=Limits(registrations_per_hour=3, edits_per_hour=40),
            authenticate=authenticate,
            check_endpoint=check_endpoint,
            find_block=find_block_in(harness.blocked),
            allowlist=None,
            now_ms=lambda: harness.now_ms,
            creations=IdempotentCreate(stores.creations, limits=Limits(), entropy=os.urandom),
            entropy=lambda size: next(numbers).to_bytes(size, "big"),
            rate_limiter=RateLimiter(),
            is_unprotected=is_unprotected,
            fetch_document=fetch,
        )
        services = replace(services, **overrides)
        app = build_app(
            call_app=no_calls,
            routers=[listing_router(services, ListingEdits(services)), *more_routers],
            public_url=PUBLIC_URL,
            limits=Limits(),
            clock=lambda: 0.0,
            entropy=lambda size: bytes(size),
            shedder=LoadShedder(limits=Limits(), clock=lambda: 0.0, read_memory_bytes=lambda: 0),
        )
        harness.app = app
        client._transport = httpx.ASGITransport(app=app)
        yield harness


def code_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    code: str = answer.json()["code"]
    return code


def places_of(answer: httpx.Response) -> list[str]:
    return [error.get("pointer", error.get("parameter")) for error in answer.json()["errors"]]
