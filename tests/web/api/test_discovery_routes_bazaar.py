"""The listings as an x402 bazaar: only what can be settled now, in the format of stock clients; an invalid query names its parameter."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from x402.extensions.bazaar.facilitator_client import _parse_list_response, _parse_search_response
from x402.schemas import PaymentRequirements

from tests.kit.listings import sample_listing
from tests.kit.routes import ALICE, BOB, PUBLIC_URL, RouteHarness
from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, ListingId
from tollway.money import UNITS_MAX, Asset, Price, TokenDomain
from tollway.registry.listing import Listing, Operation
from tollway.web.api.discovery_routes import bazaar_router

BASE, OPTIMISM = ChainId(8453), ChainId(10)
DOMAIN = TokenDomain(name="USD Coin", version="2")
USDC = Asset(chain_id=BASE, token=Address(b"\x01" * 20), symbol="USDC", decimals=6, domain=DOMAIN)
OTHER_USDC = Asset(chain_id=OPTIMISM, token=Address(b"\x02" * 20), symbol="USDC", decimals=6, domain=DOMAIN)
PLAIN = Asset(chain_id=OPTIMISM, token=Address(b"\x03" * 20), symbol="USDT", decimals=6)
ETHER = Asset(chain_id=BASE, token=None, symbol="ETH", decimals=18)
RULES = {
    BASE: ChainRules(chain_id=BASE, kind="main", confirmations=((0, 1),), assets=(USDC, ETHER)),
    OPTIMISM: ChainRules(chain_id=OPTIMISM, kind="main", confirmations=((0, 1),), assets=(OTHER_USDC, PLAIN)),
}
WEATHER = sample_listing(
    id=ListingId("api_weather"),
    provider=ALICE,
    name="Weather Pro",
    description="Forecasts for any city",
    endpoint="https://api.example.com/v1",
    networks=(BASE,),
    tags=("weather",),
    created_ms=1_795_239_000_000,
)


class Harness(RouteHarness):
    """The routes over a catalog in memory. `spent`: listings that cannot be settled now."""

    def __init__(self) -> None:
        super().__init__(rules=RULES)
        self.dry: set[ChainId] = set()
        self.units_min, self.units_max = 1, UNITS_MAX
        self.spent: set[ListingId] = set()

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        is_priced = self.units_min <= units <= self.units_max
        return asset.chain_id not in self.dry and is_priced and listing_id not in self.spent

    async def publish(self, name: str, **changes: Any) -> Listing:
        listing = replace(WEATHER, id=ListingId(f"api_{name}"), name=name, **changes)
        await self.stores.catalog.publish(listing)
        return listing

    async def ask(self, path: str, **parameters: object) -> dict[str, Any]:
        answer = await self.client.get(f"/x402/discovery/{path}", params=parameters)
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content

    async def names(self, **parameters: object) -> list[str]:
        """The names on a page of resources, after a check that a search with the same filter finds the same."""
        listed = (await self.ask("resources", **parameters))["items"]
        found = (await self.ask("search", query="forecasts", **parameters))["resources"]
        names = [item["resource"].rpartition("_")[2] for item in listed]
        assert {item["resource"].rpartition("_")[2] for item in found} == set(names)
        return names


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    harness = Harness()
    async with harness.open(bazaar_router):
        yield harness


async def test_a_listing_is_a_resource_that_stock_clients_parse(harness: Harness) -> None:
    await harness.stores.catalog.publish(WEATHER)
    page = await harness.ask("resources")
    assert page["x402Version"] == 2
    assert page["pagination"] == {"limit": 20, "offset": 0, "total": 1}
    [item] = _parse_list_response(page).items
    assert (item.resource, item.type) == (f"{PUBLIC_URL}/api/v2/gateway/api_weather", "http")
    assert (item.x402_version, item.last_updated) == (2, "2026-11-21T05:30:00.000Z")
    assert (item.service_name, item.tags) == ("Weather Pro", ["weather"])
    assert set(item.extensions or ()) == {"bazaar"}
    [accepted] = [PaymentRequirements.model_validate(one) for one in item.accepts or ()]
    assert (accepted.scheme, accepted.network, accepted.amount) == ("exact", "eip155:8453", "10000")
    assert (accepted.pay_to, accepted.asset) == (str(ALICE), str(USDC.token))
    assert accepted.max_timeout_seconds == 90

    found = await harness.ask("search", query="weather")
    assert found["resources"] == page["items"]
    assert "null" not in str(page)
    searched = _parse_search_response(found)
    assert searched.partial_results is False
    assert searched.pagination is not None
    assert (searched.pagination.limit, searched.pagination.cursor) == (20, None)


async def test_contains_only_what_can_be_settled_now(harness: Harness) -> None:
    await harness.publish("base")
    await harness.publish("both", networks=(OPTIMISM, BASE))
    await harness.publish("cheap", price=Price.parse("0.0001"))
    await harness.publish("ether", currency="ETH", price=Price.parse("1"))
    await harness.publish("tether", currency="USDT", networks=(OPTIMISM,))
    await harness.publish("free", price=Price.parse("0"))
    await harness.publish("paused", status="paused")
    retired = await harness.publish("retired")
    await harness.stores.catalog.revise(replace(retired, retired_ms=1), expected_revision=1)
    assert await harness.names() == ["cheap", "both", "base"]
    harness.units_min = 1_000
    assert await harness.names() == ["both", "base"]
    harness.spent = {ListingId("api_base")}
    assert await harness.names() == ["both"]
    harness.dry = {BASE}
    [both] = (await harness.ask("resources"))["items"]
    assert [one["network"] for one in both["accepts"]] == ["eip155:10"]
    harness.dry = {BASE, OPTIMISM}
    assert (await harness.ask("resources"))["pagination"]["total"] == 0


async def test_listings_of_an_unsettled_network_take_no_room_on_a_page(harness: Harness) -> None:
    await harness.publish("other", networks=(OPTIMISM,))
    for number in range(5):
        await harness.publish(f"base{number}")
    harness.dry = {BASE}
    page = await harness.ask("resources", limit=1)
    assert [item["resource"].rpartition("_")[2] for item in page["items"]] == ["other"]
    assert page["pagination"]["total"] == 1


async def test_operations_have_their_own_price(harness: Harness) -> None:
    priced = Operation(method="GET", path="/cities", price=Price.parse("0.5"))
    free = Operation(method="GET", path="/cities", price=Price.parse("0"))
    await harness.publish("only", operations=(priced,), other_paths="refuse", price=Price.parse("0"))
    await harness.publish("beside", operations=(priced,))
    await harness.publish("given", operations=(free,), other_paths="refuse")
    prices = {
        item["resource"]: item["accepts"][0]["amount"] for item in (await harness.ask("resources"))["items"]
    }
    assert prices == {
        f"{PUBLIC_URL}/api/v2/gateway/api_only/cities": "500000",
        f"{PUBLIC_URL}/api/v2/gateway/api_beside": "10000",
    }


FILTERS: list[tuple[dict[str, str], list[str]]] = [
    ({}, ["other", "mine"]),
    ({"type": "http"}, ["other", "mine"]),
    ({"type": "mcp"}, []),
    ({"payTo": str(BOB)}, ["other"]),
    ({"payTo": str(BOB).lower()}, ["other"]),
    ({"payTo": "0x" + "00" * 20}, []),
    ({"scheme": "exact"}, ["other", "mine"]),
    ({"scheme": "upto"}, []),
    ({"network": "eip155:10"}, ["other"]),
    ({"network": "eip155:1"}, []),
    ({"network": "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp"}, []),
    ({"extensions": "bazaar"}, ["other", "mine"]),
    ({"extensions": "sign-in-with-x"}, []),
    ({"type": "http", "scheme": "exact", "network": "eip155:8453", "payTo": str(ALICE)}, ["mine"]),
    ({"network": "eip155:8453", "payTo": str(BOB)}, []),
]


async def test_filters(harness: Harness) -> None:
    await harness.publish("mine")
    await harness.publish("other", pay_to=BOB, networks=(OPTIMISM,))
    for parameters, names in FILTERS:
        assert await harness.names(**parameters) == names, parameters


async def test_pages_by_offset(harness: Harness) -> None:
    for number in range(5):
        await harness.publish(str(number))
    page = await harness.ask("resources", limit=2, offset=3)
    assert [item["resource"][-1] for item in page["items"]] == ["1", "0"]
    assert page["pagination"] == {"limit": 2, "offset": 3, "total": 5}
    assert (await harness.ask("resources", offset=10_000))["items"] == []


async def test_a_cursor_continues_a_search_over_retired_listings(harness: Harness) -> None:
    for number in range(5):
        await harness.publish(str(number))
    harness.spent = {ListingId("api_4"), ListingId("api_3")}  # the whole first page
    seen, cursor = [], {}
    for _ in range(3):
        page = await harness.ask("search", query="forecasts", limit=2, **cursor)
        seen.append([item["resource"][-1] for item in page["resources"]])
        cursor = {"cursor": page["pagination"]["cursor"]}
    assert seen == [[], ["2", "1"], ["0"]]
    assert cursor == {"cursor": None}


async def test_a_search_without_known_words_finds_nothing(harness: Harness) -> None:
    await harness.publish("berlin", description="Trains of Berlin")
    for words, count in (("trains berlin", 1), ("TRAINS", 1), ("planes", 0), ("", 0), ("* OR ''", 0)):
        assert len((await harness.ask("search", query=words))["resources"]) == count, words


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("resources?limit=0", "limit"),
        ("resources?limit=101", "limit"),
        ("resources?limit=1.5", "limit"),
        ("resources?offset=-1", "offset"),
        ("resources?offset=10001", "offset"),
        ("resources?type=ftp", "type"),
        ("resources?payTo=0x12", "payTo"),
        ("resources?network=base", "network"),
        ("resources?network=eip155:x", "network"),
        ("resources?network=", "network"),
        ("resources?scheme=" + "x" * 65, "scheme"),
        ("resources?extensions=" + "x" * 65, "extensions"),
        ("resources?asset=0x12", "asset"),
        ("resources?query=x", "query"),
        ("resources?limit=1&limit=2", "limit"),
        ("search", "query"),
        ("search?query=" + "x" * 257, "query"),
        ("search?query=x&cursor=0", "cursor"),
        ("search?query=x&cursor=abc", "cursor"),
        ("search?query=x&cursor=99999", "cursor"),
        ("search?query=x&offset=1", "offset"),
    ],
)
async def test_a_wrong_parameter_is_named(harness: Harness, path: str, parameter: str) -> None:
    answer = await harness.client.get(f"/x402/discovery/{path}")
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert [error["parameter"] for error in answer.json()["errors"]] == [parameter]
    assert harness.stores.database.reads == 0


async def test_answers_head_and_refuses_writes(harness: Harness) -> None:
    for path in ("resources", "search?query=x"):
        answer = await harness.client.head(f"/x402/discovery/{path}")
        assert (answer.status_code, answer.content) == (200, b"")
        assert (await harness.client.post(f"/x402/discovery/{path}")).status_code == 405


async def test_a_network_is_open_if_any_price_can_be_settled(harness: Harness) -> None:
    """Neither a minimum price nor slow confirmations of high prices close a network for other prices."""
    await harness.publish("dear", price=Price.parse("5"))
    harness.units_min, harness.units_max = 5_000_000, 10_000_000
    assert await harness.names() == ["dear"]
    harness.units_max = UNITS_MAX
    harness.units_min = UNITS_MAX + 1
    assert await harness.names() == []
