"""The main pages of each role from 320 to 2,560 px, in print, and without scripts."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.signed_in import OTHER, READER
from tests.system.browser.corner_site import (
    METERED,
    METERED_CALL,
    SAMPLE,
    CornerSite,
    at_corner,
    open_admin,
    run_corner_site,
)
from tests.system.browser.watched_page import WatchedPage

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDTHS = (320, 360, 720, 1100, 1920, 2560)
PUBLIC = ("/", f"/apis/{SAMPLE}", f"/apis/{METERED}?operation=echo", "/status", "/docs")
MINE = (
    "/my",
    "/my/calls",
    "/my/budgets",
    f"/my/budgets/{OTHER.address}",
    "/my/selling",
    "/my/apis",
    "/my/sales",
    "/my/sales?state=held",
)
METERED_PAGES = (f"/my/apis/{METERED}", f"/my/calls/{METERED_CALL}")
OPERATOR = ("/", "/chains", "/gas", "/calls", "/listings", "/wallets", "/books", "/audit-log")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CornerSite]:
    async with run_corner_site(tmp_path_factory.mktemp("widths")) as site:
        yield site


async def check_widths(watched: WatchedPage, paths: tuple[str, ...]) -> None:
    for path in paths:
        assert await watched.goto(path) == 200
        for width in WIDTHS:
            await watched.page.set_viewport_size({"width": width, "height": 800})
            wider = await watched.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wider == 0, (path, width)
            assert await watched.evaluate("document.querySelector('main').getBoundingClientRect().width") > 0
        await watched.page.emulate_media(media="print")
        await expect(watched.page.locator("h1")).to_be_visible()
        for frame in (".top", ".bottom", "nav"):
            assert await watched.page.locator(f"{frame}:visible").count() == 0, (path, frame)
        await watched.page.emulate_media(media="screen")


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_no_page_is_wider_than_its_window(browser: Browser, site: CornerSite, theme: Any) -> None:
    options = at_corner(theme, 1280)
    async with site.open_public(browser, site.full.public, **options) as watched:
        await check_widths(watched, PUBLIC)
    token = site.full.tokens[READER]
    async with site.open_public(browser, site.full.public, token=token, **options) as watched:
        await check_widths(watched, MINE + METERED_PAGES)
    async with open_admin(browser, site.full.admin, **options) as watched:
        await check_widths(watched, OPERATOR)


async def test_every_page_is_reached_without_scripts(browser: Browser, site: CornerSite) -> None:
    """From the first page of a reader, by the links of the bar and of the tabs alone."""
    options = {**at_corner("light", 360), "java_script_enabled": False}
    async with site.open_public(
        browser, site.full.public, token=site.full.tokens[READER], **options
    ) as watched:
        await watched.goto("/my")
        page = watched.page
        for section, tabs in (
            ("My calls", ("Calls", "Credit", "Spending", "Wallets", "Overview")),
            ("My APIs", ("APIs", "Sales", "Held", "Overview")),
        ):
            await page.get_by_role("navigation", name="Main").get_by_role("link", name=section).click()
            for tab in tabs:
                link = page.get_by_role("navigation", name=section).get_by_role("link", name=tab, exact=True)
                await link.click()
                await expect(link).to_have_attribute("aria-current", "page")
        await expect(page.locator(".theme-switch")).to_be_hidden()
        assert watched.complaints == []


async def test_the_theme_is_a_symbol_with_a_label(browser: Browser, site: CornerSite) -> None:
    async with site.open_public(browser, site.full.public, **at_corner("light", 360)) as watched:
        await watched.goto("/")
        await watched.page.get_by_role("button", name="Dark theme").click()
        await expect(watched.page.get_by_role("button", name="Light theme")).to_be_visible()
        await watched.check()
