"""A catalog of ten APIs as its readers see it, in this process: names, hosts, prices, quality and calls of every kind, and one API with many operations.

A browser's requests are answered by these pages (`answer_by`). There is no gateway behind them: nothing can be called.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from playwright.async_api import Browser

from tests.kit.listings import sample_listing
from tests.kit.pages import PageHarness
from tests.kit.routes import NOW_MS, PUBLIC_URL
from tests.system.browser.watched_page import WatchedPage, answer_by, watch_page
from tollway.ids import Address, ListingId
from tollway.money import Price
from tollway.registry.quality import Quality, Reputation, bucket_of, day_of
from tollway.sandbox.provider import SAMPLE_DOCUMENT

MANY = ListingId("api_many")
OPERATIONS = 24
PAYEE = Address(bytes([7]) * 20)
LONG = "Long description " * 60
_PATHS: dict[str, Any] = {
    f"/orders/{number}/{{shop}}": {
        "get": {
            "summary": f"Order number {number}",
            "parameters": [
                {
                    "name": "shop",
                    "in": "path",
                    "required": True,
                    "description": "Of the country",
                    "schema": {"type": "string", "examples": ["EE"]},
                }
            ],
            "responses": {"200": {"content": {"application/json": {"example": {"order": number}}}}},
        }
    }
    for number in range(OPERATIONS)
}
_ROWS = (
    ("Weather of the open sea", "Wind, waves and rain, hour by hour.", "weather marine", "0.02", 2_430),
    ("Random numbers", "From the noise of a diode.", "science", "0", 0),
    ("Long name " * 9, LONG[:900], "one two three four", "123.456789", 7),
    ("OCR", "", "text images", "0.06", 720),
    *((f"Listing {number}", "One of many.", "many", "0.001", number) for number in range(5)),
)


async def open_shop() -> httpx.AsyncClient:
    harness = PageHarness()
    for number, (name, description, tags, price, calls) in enumerate(_ROWS):
        listing = sample_listing(
            provider=PAYEE,
            id=ListingId(f"api_{number}"),
            name=name.strip(),
            description=description,
            tags=tuple(tags.split()),
            endpoint=f"https://{'api.' * (number + 1)}example.com/v1",
            price=Price.parse(price),
            status="paused" if name == "OCR" else "active",
        )
        await harness.catalog.publish(listing)
        if calls:
            quality = Quality(calls=calls, success_ppm=992_000, p50_ms=41, p95_ms=87) if calls > 100 else None
            verified_ms = NOW_MS if number % 2 else None
            reputation = Reputation(quality=quality, verified_ms=verified_ms)
            await harness.stores.set_reputation(listing.id, reputation)
            await harness.quality.add({(listing.id, bucket_of(41)): calls}, day=day_of(NOW_MS) - number)
    document = {**SAMPLE_DOCUMENT, "paths": _PATHS}
    await harness.catalog.publish(
        sample_listing(
            provider=PAYEE,
            id=MANY,
            name="Orders",
            description=LONG,
            tags=("orders", "business"),
            openapi=document,
            price=Price.parse("0.01"),
        )
    )
    return harness.open_pages()


@contextlib.asynccontextmanager
async def visit_shop(
    browser: Browser, client: httpx.AsyncClient, **options: Any
) -> AsyncIterator[WatchedPage]:
    async with watch_page(browser, PUBLIC_URL, **options) as watched:
        await watched.context.route("**/*", answer_by(client))
        yield watched
