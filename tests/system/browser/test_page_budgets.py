"""What each page weighs in a browser, counted by the DevTools protocol at a gateway in a process of its own: requests, and bytes of HTML, scripts and styles on the wire.

Public pages and files are compressed; pages of a reader and of the operator never are, so they count whole. The reader and the provider have more of everything than a page shows.
"""

import gzip
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.kit.budgets import bind, policy_of, store
from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.gateway_cluster import plain, sign_text
from tests.kit.ports import find_low_port
from tests.kit.signed_in import DAY_MS, MIXED
from tests.system.browser.watched_page import WatchedPage, watch_operator_page, watch_page
from tollway.ids import Address
from tollway.spending_policy import LIMITS
from tollway.storage.engine.database import connect_database
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.web.pages.assets import UI_FOLDER
from tollway.web.pages.page_session import PAGE_COOKIE

pytestmark = pytest.mark.asyncio(loop_scope="session")

BUDGETS = {"requests": 6, "Document": 20_000, "Script": 20_000, "Stylesheet": 12_000}
"""The types of resources are those of the protocol."""
ALL_JS_BYTES_MAX = 40_000
CALLS = 240
AGENT = b"\x0a" * 19 + b"\x00"
PARAMETERS = [{"name": "symbol", "in": "path", "required": True, "schema": {"type": "string"}}]
LONG_DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Quotes", "version": "1"},
    "paths": {
        f"/quotes/{number}/{{symbol}}": {
            "get": {
                "summary": f"The price of a coin in a currency, source {number}",
                "parameters": PARAMETERS,
            }
        }
        for number in range(120)
    },
}
PUBLIC = (
    "search",
    "page of 100",
    "results",
    "error",
    "api",
    "provider",
    "status",
    "reference",
    "reference of an operation",
    "reference of a schema",
    "problems",
    "problem",
    "sign in",
)
READERS = {
    "overview": "/my",
    "calls": "/my/calls",
    "ticket": "/my/calls/call_0",
    "credit": "/my/credit",
    "spending": "/my/spending",
    "spending by API": "/my/spending?groupBy=api",
    "spending by provider": "/my/spending?groupBy=provider",
    "spending by wallet": "/my/spending?groupBy=wallet",
    "wallets": "/my/wallets",
    "budgets": "/my/budgets",
}
PROVIDERS = {
    "overview": "/my",
    "calls sold": "/my/calls?role=provider",
    "APIs": "/my/apis",
    "new API": "/my/apis/new",
    "sales": "/my/sales",
    "sales by hour": "/my/sales?step=hour",
    "held calls": "/my/sales?state=held",
}
OPERATORS = (
    "/",
    "/chains",
    "/gas",
    "/calls",
    "/listings",
    "/wallets",
    "/books",
    "/audit-log",
    "/runbooks",
    "/runbooks/StorageAway",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A gateway whose tables are full. `big`: the listing with a long document. `payment`: a transaction of the reader."""

    cluster: Any
    gateway: Any
    provider: Any
    reader: Any
    big: str
    payment: str
    admin_url: str

    def path_of(self, name: str) -> str:
        return {
            "search": "/",
            "page of 100": "/?limit=100",
            "results": "/?q=listing&sort=price",
            "error": "/?maxPrice=abc",
            "api": f"/apis/{self.big}",
            "provider": f"/providers/{self.provider.address}",
            "status": "/status",
            "reference": "/docs",
            "reference of an operation": "/docs/operations/createApi",
            "reference of a schema": "/docs/schemas/ListingDraft",
            "problems": "/problems",
            "problem": "/problems/payment-outcome-unknown",
            "sign in": "/signin",
        }[name]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Any) -> AsyncIterator[Site]:
    gas, provider, reader = [await cluster.wallet() for _ in range(3)]
    url, port = f"sqlite:///{cluster.folder}/budgets.sqlite3", find_low_port()
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{port}",
        "TOLLWAY_LIMIT_REGISTRATIONS_PER_HOUR": "1000",
    }
    async with cluster.gateway(database_url=url, settings=settings) as gateway:
        for number in range(110):
            await cluster.publish(
                gateway,
                provider,
                name=f"Listing {number} of a provider with many",
                tags=[f"tag {number % 40}"],
            )
        big = await cluster.publish(gateway, provider, name="Quotes of many coins", openapi=LONG_DOCUMENT)
        payment = await cluster.send_tokens(reader, provider.address, 20_000)
        paid = await cluster.call(gateway, big, "/quotes/1/ETH", headers=plain(reader, payment))
        assert paid.state in ("charged", "released"), paid.body
    await fill_books(url, cluster, provider=provider, reader=reader)
    await fill_budgets(url, reader=reader)
    async with cluster.gateway(database_url=url, settings=settings) as gateway:
        yield Site(
            cluster=cluster,
            gateway=gateway,
            provider=provider,
            reader=reader,
            big=big,
            payment=str(payment),
            admin_url=f"http://127.0.0.1:{port}",
        )


async def fill_books(url: str, cluster: Any, *, provider: Any, reader: Any) -> None:
    """Calls in every state, of more APIs than a table has rows, over a month."""
    texts = {
        "provider": provider.address,
        "payer": reader.address,
        "pay_to": provider.address,
        "chain_id": cluster.driver.chain_id,
        "asset": str(cluster.playground.token.address).lower(),
        "price": "0.01",
    }
    now_ms = int(time.time() * 1000)
    rows = [
        call_record_row(
            number,
            **{
                **texts,
                "http_status": None,
                "upstream_status": None,
                "tx_hash": None,
                "error": None,
                **MIXED[number % 4],
            },
            price_units=10_000,
            listing_id=f"api_{number % 40:024d}",
            listing_name=f"Listing {number % 40} of a provider with many",
            path="/quotes/1/ETH",
            created_ms=now_ms - number * 25 * DAY_MS // CALLS,
        )
        for number in range(CALLS)
    ]
    database = connect_database(url)
    await database.open()
    await database.write(lambda connection: insert_calls(connection, rows))
    await database.close()


async def fill_budgets(url: str, *, reader: Any) -> None:
    """More agents than a page has, each with every limit; more owners that sign for the reader than a page has."""
    database = connect_database(url)
    await database.open()
    budgets, now_ms = BudgetStore(database), int(time.time() * 1000)
    shared: dict[str, Any] = {
        **dict.fromkeys(LIMITS, "1234.567891"),
        "not_after": now_ms // 1000 + 86_400,
        "allow": (f"provider:{Address(AGENT)}", "tag:quotes"),
    }
    for number in range(20):
        other = Address(AGENT[:-1] + bytes([number]))
        await bind(budgets, policy_of(owner=reader.address, agent=other, **shared), now_ms)
        await store(budgets, policy_of(owner=other, agent=reader.address, **shared), now_ms)
    await database.close()


async def weigh(watched: WatchedPage, path: str) -> Mapping[str, int]:
    """The bytes of bodies on the wire by type of resource, and the number of requests, of one load with an empty cache."""
    await watched.devtools.send("Network.clearBrowserCache")
    kinds: dict[str, str] = {}
    heads: dict[str, int] = {}
    weights: dict[str, int] = defaultdict(int)

    def note_head(event: dict[str, Any]) -> None:
        kinds[event["requestId"]] = event["type"]
        heads[event["requestId"]] = int(event["response"]["encodedDataLength"])

    def note_end(event: dict[str, Any]) -> None:
        weights[kinds[event["requestId"]]] += int(event["encodedDataLength"]) - heads[event["requestId"]]
        weights["requests"] += 1

    watched.devtools.on("Network.responseReceived", note_head)
    watched.devtools.on("Network.loadingFinished", note_end)
    assert await watched.goto(path) in (200, 422), await watched.page.locator("body").inner_text()
    await watched.page.wait_for_load_state("networkidle")
    watched.devtools.remove_listener("Network.responseReceived", note_head)
    watched.devtools.remove_listener("Network.loadingFinished", note_end)
    print(path, dict(weights))
    return weights


async def keep_budgets(watched: WatchedPage, paths: Iterable[str]) -> None:
    above = {}
    for path in paths:
        weights = await weigh(watched, path)
        assert watched.page.url == watched.base_url + path
        # A page without them was not counted.
        assert min(weights["requests"], weights["Document"], weights["Stylesheet"], weights["Script"]) > 0, (
            path
        )
        if any(weights[kind] > most for kind, most in BUDGETS.items()):
            above[path] = weights
    assert not above
    assert not watched.complaints


async def sign_in(site: Site, account: Any) -> str:
    """The token of a page session of the wallet."""
    base = site.gateway.base_url
    async with httpx.AsyncClient(base_url=base) as client:
        asked = {
            "address": str(account.address),
            "chainId": int(site.cluster.driver.chain_id),
            "uri": f"{base}/signin",
        }
        message = (await client.post("/api/v2/auth/nonce", json=asked)).json()["message"]
        fields = {"message": message, "signature": sign_text(account, message), "to": ""}
        answer = await client.post("/signin", data=fields, headers={"Sec-Fetch-Site": "same-origin"})
        return str(answer.cookies[PAGE_COOKIE.name])


async def test_public_pages_keep_their_budgets(browser: Browser, site: Site) -> None:
    async with watch_page(browser, site.gateway.base_url) as watched:
        await keep_budgets(watched, map(site.path_of, PUBLIC))


@pytest.mark.parametrize("side", ["reader", "provider"])
async def test_pages_of_a_reader_keep_their_budgets_uncompressed(
    browser: Browser, site: Site, side: str
) -> None:
    account = site.reader if side == "reader" else site.provider
    own = {"payment": f"/my/credit/{site.payment}", "budget": f"/my/budgets/{Address(AGENT)}"}
    paths = (
        {**READERS, **own}
        if side == "reader"
        else {**PROVIDERS, "API with a long document": f"/my/apis/{site.big}"}
    )
    async with watch_page(browser, site.gateway.base_url) as watched:
        cookie = {
            "name": PAGE_COOKIE.name,
            "value": await sign_in(site, account),
            "secure": True,
            "httpOnly": True,
        }
        # Browsers take a `Secure` cookie for http on loopback; the protocol wants an https URL for it.
        secure_url = site.gateway.base_url.replace("http:", "https:")
        await watched.context.add_cookies([{**cookie, "url": secure_url}])  # type: ignore[typeddict-item]
        await keep_budgets(watched, paths.values())


async def test_pages_of_the_operator_keep_their_budgets_uncompressed(browser: Browser, site: Site) -> None:
    exit_code, output = await site.cluster.operate(site.gateway, "admin", "link")
    assert exit_code == 0, output
    async with watch_operator_page(browser, output["link"]) as watched:
        await keep_budgets(watched, OPERATORS)


async def test_the_modules_together_keep_their_budget() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in UI_FOLDER.glob("*.js")}
    assert sum(sizes.values()) <= ALL_JS_BYTES_MAX, sizes
