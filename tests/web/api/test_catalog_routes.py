"""`GET /facets` and `GET /apis/{apiId}/stats` over a store: shapes, limits and refusals."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.listings import sample_listing
from tests.kit.routes import NOW_MS, RouteHarness
from tollway.ids import Address, ChainId, ListingId
from tollway.registry.quality import FAILED, bucket_of, day_of
from tollway.web.api.catalog_routes import catalog_router
from tollway.web.api.discovery_routes import CACHE_MS

TODAY = day_of(NOW_MS)
QUOTES = sample_listing(
    provider=Address(b"\xaa" * 20),
    id=ListingId("api_quotes"),
    name="Quotes",
    tags=("data", "prices"),
    networks=(ChainId(8453), ChainId(10)),
)


class Harness(RouteHarness):
    async def get(self, path: str) -> Any:
        answer = await self.client.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "public, max-age=60"
        return answer.json()


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    async with harness.open(catalog_router):
        await harness.catalog.publish(QUOTES)
        yield harness


async def test_facets_have_counts_by_tag_currency_and_network(harness: Harness) -> None:
    assert await harness.get("/api/v2/facets") == {
        "tags": [{"tag": "data", "count": 1}, {"tag": "prices", "count": 1}],
        "currencies": [{"currency": "USDC", "count": 1}],
        "networks": [{"network": "eip155:10", "count": 1}, {"network": "eip155:8453", "count": 1}],
        "total": 1,
    }
    assert (await harness.get("/api/v2/facets?q=quotes"))["total"] == 1
    assert await harness.get("/api/v2/facets?q=nothing") == {
        "tags": [],
        "currencies": [],
        "networks": [],
        "total": 0,
    }


async def test_facets_are_cached_for_seconds_by_their_words(harness: Harness) -> None:
    await harness.get("/api/v2/facets")
    await harness.stores.catalog.publish(
        sample_listing(provider=Address(b"\xaa" * 20), id=ListingId("api_2"))
    )
    assert (await harness.get("/api/v2/facets"))["total"] == 1
    assert (await harness.get("/api/v2/facets?q=weather"))["total"] == 1
    harness.ticks_ms += CACHE_MS
    assert (await harness.get("/api/v2/facets"))["total"] == 2


@pytest.mark.parametrize(
    ("query", "code"),
    [("words=x", "unknown"), ("q=" + "x" * 257, "too_long"), ("q=a&q=b", "duplicate"), ("q=%ff", "encoding")],
)
async def test_a_wrong_parameter_is_refused(harness: Harness, query: str, code: str) -> None:
    answer = await harness.client.get(f"/api/v2/facets?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (422, code)


async def test_stats_have_each_of_the_last_30_days(harness: Harness) -> None:
    fast, slow = bucket_of(10), bucket_of(300)
    await harness.quality.add(
        {(QUOTES.id, fast): 18, (QUOTES.id, slow): 2, (QUOTES.id, FAILED): 5}, day=TODAY
    )
    await harness.quality.add({(QUOTES.id, FAILED): 1}, day=TODAY - 29)
    await harness.quality.add({(QUOTES.id, fast): 7}, day=TODAY - 30)
    stats = await harness.get("/api/v2/apis/api_quotes/stats")
    assert stats["id"] == "api_quotes"
    first, *between, last = stats["days"]
    assert first == {"day": "2026-10-23", "calls": 1, "successes": 0, "p50Ms": None, "p95Ms": None}
    assert (last["day"], last["calls"], last["successes"], last["p50Ms"]) == ("2026-11-21", 25, 20, 10)
    assert 280 <= last["p95Ms"] <= 320
    assert len(between) == 28
    assert {(day["calls"], day["p50Ms"]) for day in between} == {(0, None)}


async def test_stats_of_an_unknown_listing_are_not_found(harness: Harness) -> None:
    answer = await harness.client.get("/api/v2/apis/api_nobody/stats")
    assert (answer.status_code, answer.json()["code"]) == (404, "api_not_found")
