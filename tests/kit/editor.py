"""The editor of a listing (`/my/apis`): a form that is valid, and what its pages show."""

import re
from collections.abc import Mapping
from html import unescape

import httpx

from tests.kit.pages import PageReader
from tests.kit.signed_in import USDC, SignedInHarness
from tollway.ids import ListingId
from tollway.registry.listing import Listing
from tollway.storage.catalog.catalog_tables import listing_table
from tollway.web.pages.listing_form import TABLE_CALL, TABLE_PRICE

NEW, ONE = "/my/apis/new", "/my/apis/{api_id}"
DOCUMENT = (
    '{"openapi": "3.1.0", "info": {"title": "W", "version": "1"}, "paths": {"/cities/{city}": {"get":'
    ' {"summary": "Weather of a city", "parameters": [{"name": "city", "in": "path", "required": true,'
    ' "schema": {"type": "string"}}], "responses": {"200": {"description": "ok"}}}}}}'
)
GOOD = {
    "name": "Weather",
    "description": "Weather of cities.\r\nEvery hour.",
    "tags": "weather, forecast",
    "endpoint": "https://api.example.com/v1",
    "methods": "GET, POST",
    "timeoutSeconds": "20",
    "forwardHeaders": "X-Region",
    "upstreamAuth.in": "header",
    "upstreamAuth.name": "X-Api-Key",
    "upstreamAuth.value": "hunter2-secret",
    "forwardSignature": "ed25519",
    "pricePerRequest": "0.01",
    "currency": USDC.symbol,
    "payTo": "",
    "chargeOn": "success",
    "operations": "GET /cities/{city} 0.02\r\n\r\nPOST /reports 0.5",
    "otherPaths": "serve",
    "signature": "any",
    "rateLimit.calls": "100",
    "rateLimit.perSeconds": "60",
    "status": "active",
    "openapiUrl": "",
    "openapi": DOCUMENT,
}
HOSTILE = '"><script>alert(1)</script>'


def field_of(answer: httpx.Response, name: str) -> str:
    """The value of an input of the page."""
    return answer.text.split(f'name="{name}"')[1].split('value="')[1].split('"')[0].replace("&#34;", '"')


def error_of(answer: httpx.Response, name: str) -> str:
    mark = f'id="error-{name}">'
    assert mark in answer.text, f"{name} is not marked"
    return PageReader(answer.text.split(mark)[1].split("</p>")[0]).words


def list_prices(answer: httpx.Response) -> list[tuple[str, str]]:
    """The rows of the table of operations: each call with the price of its own."""
    row = r'name="operationCall" value="([^"]*)"><input id="price-[0-9]+" name="operationPrice"(?: value="([^"]*)")?'
    return [(unescape(call), price) for call, price in re.findall(row, answer.text)]


async def open_form(harness: SignedInHarness, path: str = "/my/apis/new") -> dict[str, str]:
    """The hidden fields of the editor."""
    page = await harness.browser.get(path)
    name = "key" if path == "/my/apis/new" else "etag"
    return {name: field_of(page, name)}


async def submit(
    harness: SignedInHarness, path: str = NEW, *, act: str = "write", **changes: str
) -> httpx.Response:
    """Sends the form of a new listing; or of the stored one at that path, without its secret and its document. `changes`: what is different about `GOOD`."""
    kept = {} if path == NEW else {"upstreamAuth.value": "", "openapi": ""}
    form = {**GOOD, **kept, **await open_form(harness, path), **changes}
    return await harness.post(path, {**form, "act": act}, route=NEW if path == NEW else ONE)


async def publish(harness: SignedInHarness, **changes: str) -> Listing:
    answer = await submit(harness, **changes)
    assert answer.status_code == 303, PageReader(answer.text).words
    api_id, _, done = answer.headers["location"].removeprefix("/my/apis/").partition("?")
    assert done == "done=published"
    return await stored(harness, api_id)


async def stored(harness: SignedInHarness, api_id: str) -> Listing:
    entry = await harness.services.stores.catalog.find(ListingId(api_id))
    assert entry is not None
    return entry.listing


async def count_listings(harness: SignedInHarness) -> int:
    return len(await harness.services.stores.read_rows(listing_table))


async def post_table(
    harness: SignedInHarness,
    path: str,
    rows: Mapping[str, str],
    route: str = "/my/apis/new",
    **fields: str,
) -> httpx.Response:
    """Sends the form with a table of operations: fields that repeat."""
    table = {TABLE_CALL: list(rows), TABLE_PRICE: list(rows.values())}
    return await harness.post(path, {**fields, **table}, route=route)
