"""The pages of a provider in a browser: the flow of the editor without JavaScript, and every state accessible and narrow enough."""

import contextlib
import os
from collections.abc import AsyncIterator
from gettext import NullTranslations
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.listings import sample_listing
from tests.kit.message_catalog import PSEUDO, LongWords
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import DAY_MS, MIXED, NOW_MS, OTHER, SELLER, USDC, open_signed_in
from tests.system.browser.test_signed_in_pages import Site, open_page
from tests.system.browser.watched_page import WatchedPage
from tollway.ids import ListingId
from tollway.registry.quality import Reputation
from tollway.web.pages.page_session import PAGE_COOKIE
from tollway.webhooks.messages import Echo
from tollway.webhooks.schedule import Response

pytestmark = pytest.mark.asyncio(loop_scope="session")

CORNERS = (("light", 1280), ("dark", 320), ("light", 320))
DOCUMENT = (
    '{"openapi": "3.1.0", "info": {"title": "W", "version": "1"}, "paths": {"/cities/{city}": {"get":'
    ' {"summary": "Weather of a city"}}, "/reports": {"post": {"summary": "A report over several days"}}}}'
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with open_signed_in(catalogs={"en": NullTranslations(), PSEUDO: LongWords()}) as harness:
        states = ("consumed", "released", "unknown", "reorged", "consumed", "consumed")
        for number in range(60):
            units = 10_000 * (number % 7 + 1)
            state = states[number % 6]
            changed = {
                "state": state,
                "created_ms": NOW_MS - number * DAY_MS // 3,
                "listing_id": f"api_{number % 3}",
                "price_units": units,
                "taken_units": 0 if state in ("released", "reorged") else units,
            }
            await harness.services.write_calls({**MIXED[0], **changed})
        await harness.sign_in(SELLER)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=harness.app), base_url=PUBLIC_URL, follow_redirects=True
        ) as client:  # a browser does not follow a redirect that a route of its own answers
            client.cookies.set(PAGE_COOKIE.name, harness.token, domain="gw.example.com")
            yield Site(harness=harness, client=client, tickets={}, payment="", tokens={SELLER: harness.token})


async def look(watched: WatchedPage, name: str) -> None:
    """Checks the page in this state. `TOLLWAY_SHOTS`: a folder for pictures to look at."""
    await watched.check()
    if folder := os.environ.get("TOLLWAY_SHOTS"):
        size = watched.page.viewport_size
        assert size is not None
        await watched.page.screenshot(path=f"{folder}/{name}-{size['width']}.png", full_page=True)


async def fill(watched: WatchedPage, **fields: str) -> None:
    """Writes fields, and opens the part of the form that has one."""
    for name, text in fields.items():
        fold = watched.page.locator(f'details:not([open]):has([name="{name}"]) > summary')
        if await fold.count():
            await fold.click()
        await watched.page.locator(f'[name="{name}"]').fill(text)


@contextlib.asynccontextmanager
async def open_as_provider(
    browser: Browser, site: Site, theme: Any, width: int, **more: Any
) -> AsyncIterator[WatchedPage]:
    async with open_page(browser, site, wallet=SELLER, theme=theme, width=width, **more) as watched:
        yield watched


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_a_provider_publishes_repairs_edits_pauses_and_retires(
    browser: Browser, site: Site, theme: str, width: int
) -> None:
    async with open_as_provider(browser, site, theme, width, java_script_enabled=True) as watched:
        page = watched.page
        await watched.goto("/my/apis")
        await look(watched, f"none-{theme}")
        await page.get_by_role("link", name="Publish an API").first.click()
        await look(watched, f"new-{theme}")
        await fill(
            watched,
            name="Weather of the open sea",
            endpoint="ftp://x",
            pricePerRequest="cheap",
            openapi=DOCUMENT,
            operations="FETCH reports",
        )
        await page.get_by_role("button", name="Check").click()
        assert await page.locator(".editor .field-error").count() == 3
        await look(watched, f"errors-{theme}")
        await fill(
            watched,
            endpoint="https://api.example.com/v1",
            pricePerRequest="0.01",
            operations="POST /reports 0.5",
        )
        await page.get_by_role("button", name="Check").click()
        assert "203.0.113.7" in await page.locator("main").inner_text()
        await expect(page.locator(".editor details[open]")).to_have_count(1)
        await expect(page.locator('[name="name"]')).to_be_visible()
        price = page.get_by_label("GET /cities/{city}")
        await price.fill("cheap")
        await page.get_by_role("button", name="Check").click()
        await expect(price).to_be_focused()
        await expect(price).to_have_attribute("aria-invalid", "true")
        await expect(price).to_have_accessible_description("a price is a decimal string such as 0.01")
        await look(watched, f"price-{theme}")
        await price.fill("0.05")
        await page.get_by_role("button", name="Check").click()
        await price.fill("0.04")
        await look(watched, f"checked-{theme}")
        await expect(page.get_by_role("button", name="Publish")).to_be_in_viewport()
        await page.get_by_role("button", name="Publish").click()
        assert "Published." in await page.locator("[role=status]").inner_text()
        await look(watched, f"published-{theme}")
        await expect(page.get_by_label("GET /cities/{city}")).to_have_value("0.04")
        etag = page.locator('[name="etag"]')
        stale = await etag.get_attribute("value")
        await fill(watched, pricePerRequest="0.02")
        await page.get_by_role("button", name="Save").click()
        await expect(page.get_by_role("status")).to_contain_text("Saved.")
        await watched.evaluate(f"document.querySelector('[name=etag]').value = {stale!r}")
        await fill(watched, pricePerRequest="0.03")
        await page.get_by_role("button", name="Save").click()
        assert "Nothing was saved" in await page.get_by_role("alert").inner_text()
        await look(watched, f"stale-{theme}")
        await page.get_by_role("button", name="Pause").click()
        assert "Paused." in await page.locator("[role=status]").inner_text()
        await page.get_by_role("button", name="Check now").click()
        assert page.url.endswith("/ownership#ownership")
        await expect(page.locator(".evidence")).to_be_in_viewport()
        await expect(page.get_by_role("button", name="Copy the line")).to_be_visible()
        await look(watched, f"ownership-{theme}")
        await watched.goto("/my/apis")
        await look(watched, f"list-{theme}")
        await page.get_by_role("link", name="Weather of the open sea").click()
        await page.get_by_text("Retire it for good").click()
        await page.get_by_role("button", name="Yes, retire").click()
        assert "You sell no API yet" in await page.locator("main").inner_text()


@pytest.mark.parametrize(("theme", "width", "has_scripts"), [("light", 320, False), ("dark", 1280, True)])
async def test_an_address_and_a_price_are_enough(
    browser: Browser, site: Site, theme: str, width: int, has_scripts: bool
) -> None:
    """The check finds the document of the endpoint, and the second step has its name and its operations."""
    url = f"https://{theme}.example.com/v1/openapi.json"
    site.harness.services.documents[url] = DOCUMENT.replace('"W"', '"Weather of the land"').encode()
    async with open_as_provider(browser, site, theme, width, java_script_enabled=has_scripts) as watched:
        page = watched.page
        await watched.goto("/my/apis/new")
        await expect(page.locator('[name="name"]')).to_be_hidden()
        await fill(watched, endpoint=f"https://{theme}.example.com/v1", pricePerRequest="0.01")
        await page.get_by_role("button", name="Check").click()
        await expect(page.get_by_role("status").first).to_contain_text(url)
        await expect(page.locator('[name="name"]')).to_have_value("Weather of the land")
        await expect(page.get_by_label("POST /reports")).to_be_visible()
        if has_scripts:
            await look(watched, f"found-{theme}")
        await fill(watched, endpoint="https://none.example.com", openapiUrl="", name="")
        await page.get_by_role("button", name="Check").click()
        await expect(page.get_by_role("status").first).to_contain_text("No OpenAPI document was found.")
        await expect(page.locator('[name="name"]')).to_have_value("none.example.com")
        if has_scripts:
            await look(watched, f"not-found-{theme}")
        assert watched.complaints == []


@pytest.mark.parametrize(
    ("theme", "width", "has_scripts"), [("light", 1280, True), ("dark", 320, True), ("light", 320, False)]
)
async def test_a_price_by_use_is_set_row_by_row(
    browser: Browser, site: Site, theme: str, width: int, has_scripts: bool
) -> None:
    """Of the listing and of one operation: rows are added, repaired, and read as callers read them."""
    async with open_as_provider(browser, site, theme, width, java_script_enabled=has_scripts) as watched:
        page = watched.page

        async def look_at(name: str) -> None:
            if has_scripts:
                await look(watched, f"formula-{name}-{theme}")

        await watched.goto("/my/apis/new")
        await fill(watched, name=f"By use {width}", endpoint="https://api.example.com/v1", openapi=DOCUMENT)
        await fill(watched, pricePerRequest="0.02", **{"metering.0.unit": "token"})
        await fill(watched, **{"metering.0.unitPrice": "cheap", "metering.0.json": "/usage/total_tokens"})
        await fill(watched, **{"metering.count": "3"})
        await page.get_by_role("button", name="Publish").click()
        await expect(page.get_by_role("group", name="Part 3")).to_be_visible()
        await expect(page.locator('[name="metering.2.unit"]')).to_be_focused()
        await expect(page.get_by_label("One unit").first).to_have_value("token")
        await look_at("rows")
        await page.get_by_role("button", name="Check").click()
        price = page.get_by_role("group", name="Part 1").get_by_label("Price", exact=True)
        await expect(price).to_be_focused()
        await expect(price).to_have_attribute("aria-invalid", "true")
        await look_at("error")
        await price.fill("0.000002")
        await page.get_by_role("button", name="Check").click()
        await page.get_by_label("Formula of an operation").select_option("GET /cities/{city}")
        await page.get_by_label("GET /cities/{city}", exact=True).fill("0.05")
        await page.get_by_role("button", name="Check").click()
        own = page.get_by_role("group", name="GET /cities/{city}")
        await own.get_by_label("One unit").fill("byte")
        await own.get_by_label("Price", exact=True).fill("0.00001")
        await own.get_by_label("The bytes of the body").check()
        await page.get_by_role("button", name="Check").click()
        await expect(own).to_contain_text("Callers read: up to 0.05 USDC: 0.01 per 1,000 bytes")
        await expect(page.get_by_role("group", name="The price of a call")).to_contain_text(
            "Callers read: up to 0.02 USDC: 0.002 per 1,000 tokens"
        )
        await look_at("checked")
        await page.get_by_role("button", name="Publish").click()
        await expect(page.locator(".price-rows")).to_contain_text("up to 0.05 USDC: 0.01 per 1,000 bytes")
        await look_at("published")
        assert watched.complaints == []


async def test_a_proof_and_a_secret_are_copied(browser: Browser, site: Site) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    async with open_as_provider(browser, site, "light", 1280, permissions=permissions) as watched:
        page = watched.page
        await watched.goto("/my/apis/new")
        await fill(watched, endpoint="https://copied.example.com", pricePerRequest="0")
        await page.get_by_role("button", name="Publish").click()
        await page.get_by_role("button", name="Copy the line").click()
        line = await watched.evaluate("navigator.clipboard.readText()")
        await expect(page.locator("section[aria-labelledby=ownership]")).to_contain_text(line)
        assert line.startswith("tollway-verification=")
        await watched.goto("/my/webhooks")
        await page.locator("#url").fill("https://copied.example.com/hook")
        await page.get_by_role("button", name="Add").click()
        await page.get_by_role("button", name="Copy: Secret").click()
        secret = await watched.evaluate("navigator.clipboard.readText()")
        assert secret == await page.locator("section[aria-labelledby=registered] pre").inner_text()
        await page.get_by_role("link", name="Its state and deliveries").click()
        await page.get_by_text("Remove this receiver").click()
        await page.get_by_role("button", name="Yes, remove it").click()


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 1280)])
async def test_an_endpoint_of_another_wallet_and_a_shared_secret_are_shown(
    browser: Browser, site: Site, theme: str, width: int
) -> None:
    endpoint = f"https://{theme}-theirs.example.com"
    theirs = sample_listing(
        provider=OTHER.address,
        id=ListingId(f"api_{theme}_theirs"),
        name=f"Original {theme}",
        endpoint=endpoint,
    )
    await site.harness.catalog.publish(theirs)
    await site.harness.services.stores.set_reputation(theirs.id, Reputation(verified_ms=1))
    async with open_as_provider(browser, site, theme, width) as watched:
        page = watched.page
        await watched.goto("/my/apis/new")
        await fill(watched, endpoint=endpoint, pricePerRequest="0", name=f"Copy {theme}")
        await page.get_by_role("button", name="Check").click()
        await expect(page.locator("#checked + p")).to_contain_text("endpoint owned by another")
        await look(watched, f"owned-check-{theme}")
        await page.locator('details:has([name="forwardSignature"]) > summary').click()
        await page.locator('[name="forwardSignature"]').select_option("hmac-sha256")
        await page.get_by_role("button", name="Publish").click()
        await expect(page.get_by_role("button", name="Copy: Secret")).to_be_visible()
        await expect(page.locator(".api-head .notice.bad")).to_contain_text(str(theirs.id))
        await look(watched, f"secret-{theme}")
        await page.get_by_role("link", name="Its public page", exact=True).click()
        await expect(page.locator(".api-head")).to_contain_text("endpoint proved by another API")
        await look(watched, f"copy-{theme}")
        await page.get_by_role("link", name="the API of that wallet").click()
        await expect(page.locator("h1")).to_have_text(f"Original {theme}")
        await watched.goto(f"/?q={theme}")
        await expect(page.locator(".rows h3")).to_have_text([f"Original {theme}", f"Copy {theme}"])
        await look(watched, f"copy-row-{theme}")


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 1280)])
async def test_a_webhook_shows_its_challenge(browser: Browser, site: Site, theme: str, width: int) -> None:
    webhooks = site.harness.services.webhooks
    endpoint = await webhooks.register(SELLER.address, url=f"https://{theme}.example.com/hook")
    async with open_as_provider(browser, site, theme, width) as watched:
        for echo, response, words in (
            (Echo.NONE, Response(status=404), "HTTP 404"),
            (Echo.WALLET, Response(status=200), "with the challenge"),
        ):
            await webhooks.echo(endpoint, echo, response)
            await watched.goto(f"/my/webhooks/{endpoint.id}")
            await expect(watched.page.locator("section[aria-labelledby=challenge]")).to_contain_text(words)
            await look(watched, f"challenge-{response.status}-{theme}")
    await webhooks.store.remove(SELLER.address, endpoint.id)


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 1280)])
@pytest.mark.parametrize(
    "path",
    ["/my/sales", "/my/sales?step=hour", "/my/sales?state=held", "/my/sales?from=x", "/my/sales?apiId=api_9"],
)
async def test_sales_are_accessible_and_narrow(
    browser: Browser, site: Site, path: str, theme: str, width: int
) -> None:
    async with open_as_provider(browser, site, theme, width) as watched:
        await watched.goto(path)
        await look(watched, f"sales{''.join(c for c in path[9:] if c.isalnum())}-{theme}")
        for table in await watched.page.get_by_text("as a table").all():
            await table.click()
        await watched.check()


async def test_words_of_another_language_make_no_page_wider(browser: Browser, site: Site) -> None:
    async with open_as_provider(browser, site, "light", 320, locale=PSEUDO) as watched:
        for path in ("/my/apis", "/my/apis/new", "/my/sales", "/my/sales?state=held"):
            await watched.goto(path)
            await watched.check()


@pytest.mark.parametrize(("theme", "width", "has_scripts"), [("light", 320, False), ("dark", 1280, True)])
async def test_a_test_call_and_webhooks_work_with_and_without_javascript(
    browser: Browser, site: Site, theme: str, width: int, has_scripts: bool
) -> None:
    async with open_as_provider(browser, site, theme, width, java_script_enabled=has_scripts) as watched:
        page = watched.page
        name = f"Tried {width}"
        await watched.goto("/my/apis/new")
        await fill(watched, name=name, endpoint=f"https://{width}.example.com", pricePerRequest="0")
        await page.get_by_role("button", name="Publish").click()
        await page.get_by_role("link", name="Make a test call").click()
        await page.get_by_role("button", name="Call").click()
        assert "could not be reached" in await page.locator("section[aria-labelledby=trial]").inner_text()
        if has_scripts:
            await look(watched, f"trial-{theme}")
        await watched.goto("/my/webhooks")
        await page.locator("#url").fill("http://owner.example/")
        await page.get_by_role("button", name="Add").click()
        assert "https" in await page.locator(".field-error").inner_text()
        await page.locator("#url").fill(f"https://{width}.example.com/hook")
        await page.get_by_role("button", name="Add").click()
        assert "whsec_" in await page.locator("section[aria-labelledby=registered] pre").inner_text()
        if has_scripts:
            await look(watched, f"webhooks-{theme}")
        await page.get_by_role("link", name="Its state and deliveries").click()
        assert "No event yet." in await page.locator("main").inner_text()
        await page.get_by_text("Remove this receiver").click()
        if has_scripts:
            await look(watched, f"webhook-{theme}")
        await page.get_by_role("button", name="Yes, remove it").click()
        assert "Removed." in await page.get_by_role("status").inner_text()
        assert watched.complaints == []


async def test_the_editor_works_without_javascript(browser: Browser, site: Site) -> None:
    async with open_as_provider(browser, site, "light", 1280, java_script_enabled=False) as watched:
        await watched.goto("/my/apis/new")
        await fill(watched, name="Plain", endpoint="https://api.example.com", pricePerRequest="0")
        await watched.page.get_by_role("button", name="Publish").click()
        assert "Published." in await watched.page.locator("[role=status]").inner_text()
        assert USDC.symbol in await watched.page.locator("#currency").inner_text()
        assert watched.complaints == []
