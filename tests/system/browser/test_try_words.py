"""The words of the panel that pays, in a language whose words are 40 % longer: each state of the ticket on a phone, and no English left in it.

A gateway in a process of its own has the catalogs of the package alone, so the words of its page are lengthened on the way to the browser.
"""

import html
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from playwright.async_api import Browser, Route, expect

from tests.kit.listings import sample_listing
from tests.kit.message_catalog import PSEUDO, LongWords
from tests.kit.pages import PageHarness
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import SELLER
from tests.system.browser.call_panel import CHAIN, Site, edit, open_panel, pay_button, site, slip, stamp
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage, answer_by, watch_page
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.web.pages.call_form import WORDS

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

PHONE = {"width": 320, "height": 800}
LONG = LongWords()
WORDS_OF_PAGE = re.compile(r'data-words="([^"]*)"')


def lengthen(document: str) -> str:
    """The page with long words for its module."""
    (found,) = WORDS_OF_PAGE.findall(document)
    words = {key: LONG.gettext(text) for key, text in json.loads(html.unescape(found)).items()}
    return document.replace(found, html.escape(json.dumps(words)))


@asynccontextmanager
async def open_long(
    browser: Browser, site: Site, wallet: WalletDouble | None, api: str = "paid", **more: Any
) -> AsyncIterator[WatchedPage]:
    async def answer(route: Route) -> None:
        if route.request.resource_type != "document":
            await route.continue_()
            return
        response = await route.fetch()
        await route.fulfill(response=response, body=lengthen(await response.text()))

    async with open_panel(browser, site, wallet, api, viewport=PHONE, **more) as watched:
        await watched.context.route("**/apis/**", answer)
        await watched.page.reload()
        yield watched


def said(key: str, *given: str) -> str:
    text = LONG.gettext(WORDS[key])
    for position, value in enumerate(given):
        text = text.replace(f"{{{position}}}", value)
    return text


async def test_a_paid_call_is_shown_in_long_words(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_long(browser, site, wallet) as watched:
        page = watched.page
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text(said("CHARGED"), timeout=30_000)
        printed = await slip(page).inner_text()
        for key in ("price", "to", "from", "network", "answer", "callId", "transaction"):
            assert said(key) in printed
        assert said("sending") not in printed
        assert said("charged", "0.01 USDC") in printed
        await expect(pay_button(page)).to_have_text(said("pay", "0.01 USDC"))


async def test_a_transaction_and_its_credit_are_shown_in_long_words(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_long(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_label("Calls to pay for at once").fill("2")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text(said("CHARGED"), timeout=30_000)
        printed = await slip(page).inner_text()
        for key in ("total", "sent", "left"):
            assert said(key) in printed
        await watched.check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text(said("credit"))
        await expect(stamp(page)).to_have_text(said("CHARGED"), timeout=30_000)


@pytest.mark.parametrize(
    ("api", "changes", "sentence"),
    [
        ("free", None, said("FREE")),
        ("paid", {"declines": {"eth_signTypedData_v4"}}, said("declined")),
        ("paid", {"chain_id": 1, "lies": True, "known": {CHAIN}}, said("wrongChain", "Sandbox", str(CHAIN))),
    ],
    ids=("free", "declined", "wrong chain"),
)
async def test_every_end_fits_in_long_words(
    browser: Browser, site: Site, api: str, changes: dict[str, Any] | None, sentence: str
) -> None:
    wallet = None if changes is None else await site.wallet(**{"chain_id": CHAIN, **changes})
    async with open_long(browser, site, wallet, api) as watched:
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(sentence)


async def test_a_higher_price_and_a_released_call_are_shown_in_long_words(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_long(browser, site, wallet, "edited") as watched:
        page = watched.page
        await edit(site, pricePerRequest="0.03")
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text(said("dearer", "0.03 USDC", "0.01 USDC"))
        await watched.check()
        await page.get_by_label("symbol").fill("not-a-symbol")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text(said("RELEASED"), timeout=30_000)
        await expect(slip(page)).to_contain_text(said("released"))
    await edit(site)


async def test_public_pages_fit_in_long_words(browser: Browser) -> None:
    """The pages themselves, from an application in this process that has the language."""
    harness = PageHarness(catalogs={"en": LONG, PSEUDO: LONG})
    listing = sample_listing(provider=SELLER.address, name="Weather of the open sea", openapi=SAMPLE_DOCUMENT)
    await harness.catalog.publish(listing)
    async with (
        harness.open_pages() as client,
        watch_page(browser, PUBLIC_URL, viewport=PHONE, locale=PSEUDO) as watched,
    ):
        await watched.context.route("**/*", answer_by(client))
        for path in (
            *("/", "/?q=nothing", "/?maxPrice=abc", "/status", "/problems", "/problems/payment-pending"),
            *(f"/apis/{listing.id}", f"/providers/{listing.provider}", "/nowhere"),
        ):
            await watched.goto(path)
            assert await watched.page.locator("html").get_attribute("lang") == PSEUDO
            await watched.check()
