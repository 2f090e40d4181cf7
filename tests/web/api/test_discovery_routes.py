"""The four documents of one API over HTTP: contents, caching and refusals."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.kit.listings import realistic_document, sample_listing
from tests.kit.metering import LONGEST, TOKENS, TOKENS_IN_WORDS, sample_metering
from tests.kit.routes import PUBLIC_URL, RouteHarness
from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, Price, TokenDomain
from tollway.registry.listing import Listing, Operation, UpstreamAuth
from tollway.registry.quality import Quality, Reputation
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.api.discovery_routes import (
    CACHE_MS,
    Document,
    DocumentCache,
    discovery_router,
)

BASE = ChainId(8453)
ALICE = Address(b"\xaa" * 20)
USDC = Asset(
    chain_id=BASE,
    token=Address(b"\x01" * 20),
    symbol="USDC",
    decimals=6,
    domain=TokenDomain(name="USD Coin", version="2"),
)
RULES = {BASE: ChainRules(chain_id=BASE, kind="main", confirmations=((0, 1),), assets=(USDC,))}
QUOTES = sample_listing(
    provider=ALICE,
    id=ListingId("api_quotes"),
    name="Quotes",
    description="A price for every symbol",
    endpoint="https://hidden.example.com/base",
    networks=(BASE,),
    openapi=SAMPLE_DOCUMENT,
    upstream_auth=UpstreamAuth(location="header", name="X-Secret-Name", value="hush"),
    created_ms=1_795_239_000_000,
)
API = "/api/v2/apis/api_quotes"
DOCUMENTS = ("discovery", "agent", "openapi.json", "llms.txt")


class Harness(RouteHarness):
    """The routes over a catalog in memory. `mpp`: whether MPP can settle what x402 can."""

    def __init__(self, **given: Any) -> None:
        super().__init__(rules=RULES, is_mpp_offered=self.is_mpp_offered, **given)
        self.mpp = True
        self.units_checked: list[int] = []

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        self.units_checked.append(units)
        return self.settles

    def is_mpp_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        return self.mpp and self.settles

    async def get(self, document: str, **headers: str) -> httpx.Response:
        return await self.client.get(f"{API}/{document}", headers=headers)

    async def edit(self, **changes: Any) -> None:
        entry = await self.catalog.find(QUOTES.id)
        assert entry is not None
        edited: Listing = replace(entry.listing, **changes)
        await self.catalog.revise(edited, expected_revision=entry.listing.revision)


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    harness = Harness(**getattr(request, "param", {}))
    async with harness.open(discovery_router):
        await harness.catalog.publish(QUOTES)
        yield harness


# ---- Contents.


async def test_the_discovery_document_has_all_members(harness: Harness) -> None:
    answer = await harness.get("discovery")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    content = answer.json()
    assert content["gatewayUrl"] == f"{PUBLIC_URL}/api/v2/gateway/api_quotes"
    assert [option["rail"] for option in content["pricing"]["options"]] == ["tx", "x402"]
    assert content["openapi"] == (await harness.get("openapi.json")).json()
    assert content["bazaar"]["resource"].startswith(content["gatewayUrl"])
    quote = content["operations"][0]
    assert quote["url"] == content["gatewayUrl"] + "/quote/{symbol}"
    assert quote["mcpTool"].startswith("api_quotes.get_")
    assert quote["inputSchema"]["required"] == ["symbol"]
    documented = content["openapi"]["paths"]["/quote/{symbol}"]["get"]
    assert quote["operationId"] == documented["operationId"]


async def test_the_agent_document_is_small(harness: Harness) -> None:
    answer = await harness.get("agent")
    assert len(answer.content) <= 8 * 1024
    assert answer.json()["interfaces"]["http"]["url"] == f"{PUBLIC_URL}/api/v2/gateway/api_quotes"


async def test_the_openapi_document_has_prices_and_the_gateway_as_server(harness: Harness) -> None:
    answer = await harness.get("openapi.json")
    assert answer.headers["content-type"] == "application/openapi+json"
    content = answer.json()
    assert content["servers"] == [{"url": f"{PUBLIC_URL}/api/v2/gateway/api_quotes"}]
    quote = content["paths"]["/quote/{symbol}"]["get"]
    assert {"mpp", "x402"} == {name for protocol in quote["x-payment-info"]["protocols"] for name in protocol}
    assert "402" in quote["responses"]


async def test_without_a_document_server_and_path_make_the_endpoint_for_readers_of_the_first_server(
    harness: Harness,
) -> None:
    await harness.edit(openapi=None)
    content = (await harness.get("openapi.json")).json()
    assert content["servers"] == [{"url": f"{PUBLIC_URL}/api/v2/gateway"}]
    assert list(content["paths"]) == ["/api_quotes"]
    assert "servers" not in content["paths"]["/api_quotes"]


async def test_the_text_is_markdown(harness: Harness) -> None:
    answer = await harness.get("llms.txt")
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    assert answer.text.startswith("# Quotes\n")
    assert len(answer.text) < 4_000


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_no_document_contains_the_endpoint_or_its_secret(harness: Harness, document: str) -> None:
    text = (await harness.get(document)).text
    assert not any(secret in text for secret in ("hidden.example.com", "X-Secret-Name", "hush"))


async def test_the_document_contains_quality_and_ownership(harness: Harness) -> None:
    quality = Quality(calls=40, success_ppm=1_000_000, p50_ms=9, p95_ms=20)
    await harness.stores.set_reputation(QUOTES.id, Reputation(quality=quality, verified_ms=1_795_239_000_000))
    content = (await harness.get("discovery")).json()
    assert (content["verified"], content["verifiedAt"]) == (True, "2026-11-21T05:30:00.000Z")
    assert content["quality"]["calls30d"] == 40
    assert (await harness.get("agent")).json()["trust"]["quality"] == content["quality"]
    assert "40 paid calls" in (await harness.get("llms.txt")).text


async def test_an_unavailable_rail_is_in_no_document(harness: Harness) -> None:
    harness.settles = False
    content = (await harness.get("discovery")).json()
    assert [option["rail"] for option in content["pricing"]["options"]] == ["tx"]
    assert content["bazaar"] is None
    rails = (await harness.get("agent")).json()["payment"]["rails"]
    assert [rail["rail"] for rail in rails] == ["tx"]


async def test_mpp_has_a_switch_of_its_own(harness: Harness) -> None:
    harness.mpp = False
    rails = (await harness.get("agent")).json()["payment"]["rails"]
    assert [rail["rail"] for rail in rails] == ["x402", "tx"]


async def test_a_listing_with_bound_signatures_describes_no_others(harness: Harness) -> None:
    harness.settles = False  # so that the document has the form of a transaction
    assert "personal_sign the hash" in (await harness.get("agent")).text
    await harness.edit(signature="bound")
    answer = await harness.get("agent")
    assert "personal_sign the hash" not in answer.text
    assert answer.json()["payment"]["rails"][0]["signature"] == "bound"


@pytest.mark.parametrize("harness", [{"is_bound_required": True}], indirect=True)
async def test_bound_signatures_of_the_operator_are_described(harness: Harness) -> None:
    assert [rail.get("signature") for rail in (await harness.get("agent")).json()["payment"]["rails"]] == [
        None,
        None,
        "bound",
    ]


async def test_two_listings_have_different_documents(harness: Harness) -> None:
    await harness.stores.catalog.publish(replace(QUOTES, id=ListingId("api_other"), name="Other"))
    for document in DOCUMENTS:
        mine = await harness.get(document)
        other = await harness.client.get(f"/api/v2/apis/api_other/{document}")
        assert "api_quotes" in mine.text
        assert "api_other" in other.text
        assert "api_quotes" not in other.text


async def test_prices_of_operations_come_with_their_options(harness: Harness) -> None:
    await harness.edit(
        operations=(Operation(method="GET", path="/quote/{symbol}", price=Price.parse("0.5")),)
    )
    content = (await harness.get("discovery")).json()
    assert content["operations"][0]["price"] == {"mode": "fixed", "amount": "0.5", "currency": "USDC"}
    (other,) = content["pricing"]["otherPrices"]
    assert (other["amount"], {option["amount"] for option in other["options"]}) == ("0.5", {"500000"})


async def test_the_documents_of_a_metered_listing_say_up_to_and_offer_no_authorisation(
    harness: Harness,
) -> None:
    await harness.edit(price=Price.parse("0.02"), metering=sample_metering())
    cost = f"up to 0.02 USDC: {TOKENS_IN_WORDS}"
    members = {"mode": "metered", "amount": "0.02", "currency": "USDC"}
    members |= {"formula": TOKENS_IN_WORDS, "metering": TOKENS}
    content = (await harness.get("discovery")).json()
    assert [option["rail"] for option in content["pricing"].pop("options")] == ["tx"]
    assert content["pricing"] == content["operations"][0]["price"] == members
    assert content["bazaar"] is None
    agent = (await harness.get("agent")).json()
    assert {**members, "metering": None}.items() <= {**agent["payment"], "metering": None}.items()
    assert "metering" not in agent["payment"]
    assert [rail["rail"] for rail in agent["payment"]["rails"]] == ["tx"]
    assert {operation["price"] for operation in agent["operations"]} == {cost}
    assert f"Price: {cost}, if not said otherwise." in (await harness.get("llms.txt")).text
    documented = (await harness.get("openapi.json")).json()["paths"]["/quote/{symbol}"]["get"]
    assert documented["x-payment-info"] == {
        "price": {"mode": "dynamic", "currency": "USD", "min": "0.0001", "max": "0.02"},
        "formula": TOKENS_IN_WORDS,
        "metering": TOKENS,
        "protocols": [],
    }


async def test_the_longest_formula_leaves_the_documents_their_size(harness: Harness) -> None:
    await harness.edit(price=Price.parse("0.02"), metering=sample_metering(parts=LONGEST["parts"]))
    agent = await harness.get("agent")
    assert len(agent.content) <= 8 * 1024
    assert agent.json()["payment"]["mode"] == "metered"
    assert len((await harness.get("llms.txt")).text) <= 3_999


@pytest.mark.parametrize("status", ["active", "paused"])
async def test_the_document_of_a_paused_listing_has_its_status(harness: Harness, status: str) -> None:
    await harness.edit(status=status)
    assert (await harness.get("agent")).json()["status"] == status
    assert (await harness.get("discovery")).json()["status"] == status


# ---- Caching.


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_documents_are_cacheable_for_a_minute_and_have_a_validator(
    harness: Harness, document: str
) -> None:
    first = await harness.get(document)
    etag = first.headers["etag"]
    assert first.headers["cache-control"] == "public, max-age=60"
    assert f'<{PUBLIC_URL}{API}>; rel="describes"' in first.headers["link"]
    for tag in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await harness.get(document, **{"If-None-Match": tag})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert (await harness.get(document, **{"If-None-Match": '"other"'})).status_code == 200


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_head_answers_like_get_without_a_body(harness: Harness, document: str) -> None:
    got = await harness.get(document)
    head = await harness.client.head(f"{API}/{document}")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-type", "content-length", "cache-control"):
        assert head.headers[name] == got.headers[name]


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_an_edit_changes_the_document_and_its_tag_at_once(harness: Harness, document: str) -> None:
    before = await harness.get(document)
    await harness.edit(name="Better Quotes")
    after = await harness.get(document)
    assert "Better Quotes" in after.text
    assert after.headers["etag"] != before.headers["etag"]


async def test_a_written_document_is_cached_for_seconds(harness: Harness) -> None:
    await harness.get("agent")
    harness.settles = False
    assert len((await harness.get("agent")).json()["payment"]["options"]) == 2
    harness.ticks_ms += CACHE_MS
    assert len((await harness.get("agent")).json()["payment"]["options"]) == 1


# ---- Refusals.


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [({"retired_ms": 5}, 410, "api_retired"), ({"suspended_ms": 5}, 503, "api_paused")],
)
async def test_a_retired_or_suspended_listing_has_no_documents(
    harness: Harness, document: str, changes: dict[str, Any], status: int, code: str
) -> None:
    await harness.get(document)  # a cached document is not served either
    await harness.edit(**changes)
    answer = await harness.get(document)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert "cache-control" not in answer.headers or "max-age" not in answer.headers["cache-control"]


@pytest.mark.parametrize("document", DOCUMENTS)
async def test_an_unknown_listing_has_no_documents(harness: Harness, document: str) -> None:
    answer = await harness.client.get(f"/api/v2/apis/api_none/{document}")
    assert (answer.status_code, answer.json()["code"]) == (404, "api_not_found")


async def test_other_methods_are_refused(harness: Harness) -> None:
    answer = await harness.client.post(f"{API}/agent", json={})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


async def test_a_document_of_two_thousand_operations_is_served(harness: Harness) -> None:
    operation = {"summary": "\U0001f310" * 40, "responses": {"200": {"description": "ok"}}}
    paths = {f"/v1/{number}/{{id}}": {"get": operation} for number in range(2_000)}
    await harness.edit(openapi={"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": paths})
    assert len((await harness.get("agent")).content) <= 8 * 1024
    assert len((await harness.get("llms.txt")).text) < 4_000
    content = json.loads((await harness.get("discovery")).content)
    assert len(content["operations"]) == len(content["openapi"]["paths"]) == 2_000


# ---- Pages of the agent document.


async def test_the_pages_of_the_agent_document_have_every_operation(harness: Harness) -> None:
    await harness.edit(openapi=realistic_document(60))
    first = await harness.get("agent")
    assert (await harness.get("agent?page=1")).content == first.content
    path, seen, tags = (
        first.json()["operationsAt"],
        {one["tool"] for one in first.json()["operations"]},
        set(),
    )
    while path is not None:
        answer = await harness.client.get(path)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=60")
        assert len(answer.content) <= 8 * 1024
        again = await harness.client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
        seen |= {one["tool"] for one in answer.json()["operations"]}
        tags.add(answer.headers["etag"])
        path = answer.json().get("next")
    assert len(seen) == 60
    assert len(tags) == answer.json()["pages"] - 1


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("page=0", "out_of_range"),
        ("page=2", "out_of_range"),
        ("page=10001", "out_of_range"),
        ("page=-1", "out_of_range"),
        ("page=two", "not_a_number"),
        ("page=\u0662", "not_a_number"),
        ("page=1&page=1", "duplicate"),
        ("from=2", "unknown"),
    ],
)
async def test_a_page_that_does_not_exist_is_refused(harness: Harness, query: str, code: str) -> None:
    await harness.edit(openapi=None)
    answer = await harness.get(f"agent?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [error["code"] for error in answer.json()["errors"]] == [code]


async def test_all_pages_are_of_one_revision(harness: Harness) -> None:
    await harness.edit(openapi=realistic_document(60))
    assert (await harness.get("agent?page=2")).json()["operations"]
    await harness.edit(openapi=None)
    assert (await harness.get("agent?page=2")).status_code == 422


async def test_pages_are_written_once_and_count_for_the_size_of_the_cache() -> None:
    written = []
    page = Document(body=b"x" * 40, etag='"2"')

    async def write() -> Document:
        written.append(1)
        return Document(body=b"x" * 40, etag='"1"', next_pages=(page, page))

    for bytes_max, writes in ((200, 1), (100, 2)):
        written.clear()
        cache = DocumentCache(ticks_ms=lambda: 0, bytes_max=bytes_max)
        for _ in range(2):
            await cache.get_or_write("agent", 1, write)
        assert len(written) == writes
