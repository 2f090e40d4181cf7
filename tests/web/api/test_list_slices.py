"""Pages of listings are written in slices, so that a paid call that arrives meanwhile waits for a slice and not for a page."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.routing import Router

from tests.kit.listings import sample_listing
from tests.kit.routes import ALICE, RouteHarness
from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, TokenDomain
from tollway.web.api import discovery_routes
from tollway.web.api.context import WebContext
from tollway.web.api.discovery_routes import bazaar_router
from tollway.web.api.listing_json import SLICE_LISTINGS, ListingEncoder
from tollway.web.api.listing_routes import listing_router

BASE = ChainId(8453)
USDC = Asset(
    chain_id=BASE,
    token=Address(b"\x01" * 20),
    symbol="USDC",
    decimals=6,
    domain=TokenDomain(name="USD Coin", version="2"),
)
RULES = {BASE: ChainRules(chain_id=BASE, kind="main", confirmations=((0, 1),), assets=(USDC,))}
LISTING = sample_listing(provider=ALICE, endpoint="https://api.example.com/v1", networks=(BASE,))
COUNT = 3 * SLICE_LISTINGS


class LoopIterations:
    """Counts what happens between two iterations of the event loop."""

    def __init__(self) -> None:
        self.most = 0
        self.total = 0
        self._since = 0

    def counting(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            self._since += 1
            self.total += 1
            self.most = max(self.most, self._since)
            return work(*args, **options)

        return count

    async def run(self) -> None:
        while True:
            self._since = 0
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("router", "path", "owner", "name"),
    [
        (listing_router, "/api/v2/apis", ListingEncoder, "item"),
        (bazaar_router, "/x402/discovery/resources", discovery_routes, "describe_for_bazaar"),
    ],
    ids=["list", "bazaar"],
)
async def test_other_requests_run_between_two_slices_of_a_page(
    monkeypatch: pytest.MonkeyPatch, router: Callable[[WebContext], Router], path: str, owner: Any, name: str
) -> None:
    iterations = LoopIterations()
    monkeypatch.setattr(owner, name, iterations.counting(getattr(owner, name)))
    harness = RouteHarness(rules=RULES, is_offered=lambda asset, units, listing_id: True)
    async with harness.open(router):
        for number in range(COUNT):
            await harness.stores.catalog.publish(replace(LISTING, id=ListingId(f"api_{number}")))
        async with asyncio.TaskGroup() as group:
            others = group.create_task(iterations.run())
            answer = await harness.client.get(path, params={"limit": COUNT})
            others.cancel()
    assert answer.status_code == 200, answer.text
    assert iterations.total == COUNT
    assert 0 < iterations.most <= SLICE_LISTINGS
