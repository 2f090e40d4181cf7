"""Every page with rows in a browser without JavaScript: its heading, words and links are there, no button is dead, and forms work."""

import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.signed_in import OTHER, READER
from tests.system.browser.corner_site import HELD_CALLS, CornerSite, open_admin, run_corner_site
from tests.system.browser.test_corner_states import ADMIN_FULL, MY_FULL, PUBLIC_FULL, Rows
from tests.system.browser.watched_page import WatchedPage
from tollway.ids import Address

VIEWER = str(Address(b"\x33" * 20))
"""A wallet that may read nothing yet."""

pytestmark = pytest.mark.asyncio(loop_scope="session")

WALLET = "0x" + "ab" * 20


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CornerSite]:
    async with run_corner_site(tmp_path_factory.mktemp("scripts")) as site:
        yield site


async def read_page(watched: WatchedPage, path: str) -> tuple[str, set[str]]:
    """The heading, and the addresses that the main part leads to."""
    await watched.goto(path)
    main = watched.page.locator("main")
    links = {
        re.sub(r"asOf=[^&]*", "", await one.get_attribute("href") or "")  # the time of the request
        for one in await main.get_by_role("link").all()
    }
    return await main.get_by_role("heading", level=1).inner_text(), links


async def compare(scripted: WatchedPage, plain: WatchedPage, rows: Rows) -> None:
    """A page has the same content without scripts. A button that is shown sends a form."""
    for path, status, words in rows.values():
        heading, links = await read_page(scripted, path)
        plain_heading, plain_links = await read_page(plain, path)
        assert (plain_heading, links - plain_links) == (heading, set()), path
        assert status == 200
        await expect(plain.page.locator("body")).to_contain_text(words)
        assert await plain.page.locator("button:visible:not(form button)").count() == 0, path
        assert await plain.page.locator("form button[type=button]:visible").count() == 0, path
    assert (scripted.complaints, plain.complaints) == ([], [])


@pytest.mark.parametrize("rows", [PUBLIC_FULL, MY_FULL], ids=["public", "reader"])
async def test_pages_are_whole(browser: Browser, site: CornerSite, rows: Rows) -> None:
    token = None if rows is PUBLIC_FULL else site.full.tokens[READER]
    public = site.full.public
    async with (
        site.open_public(browser, public, token=token) as scripted,
        site.open_public(browser, public, token=token, java_script_enabled=False) as plain,
    ):
        await compare(scripted, plain, rows)


async def test_pages_of_the_operator_are_whole(browser: Browser, site: CornerSite) -> None:
    admin = site.full.admin
    async with (
        open_admin(browser, admin) as scripted,
        open_admin(browser, admin, java_script_enabled=False) as plain,
    ):
        await compare(scripted, plain, ADMIN_FULL)


async def test_forms_of_a_reader_work(browser: Browser, site: CornerSite) -> None:
    token = site.full.tokens[READER]
    async with site.open_public(browser, site.full.public, token=token, java_script_enabled=False) as watched:
        page = watched.page
        await watched.goto("/my/sales")
        await page.get_by_text("Filters", exact=True).click()
        await page.locator("[name=step]").select_option("hour")
        await page.get_by_role("button", name="Apply").click()
        assert "step=hour" in page.url
        await watched.goto("/my/credit")
        await page.locator("tbody th a").first.click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("Payment")
        await watched.goto("/my/wallets")
        await page.get_by_label("Address", exact=True).fill(VIEWER)
        await page.get_by_role("button", name="Allow").click()
        await page.get_by_role("button", name=f"Withdraw {VIEWER}").click()
        await expect(page.get_by_role("button", name=f"Withdraw {VIEWER}")).to_have_count(0)
        assert await page.get_by_text(str(OTHER.address)).count() > 0
        await watched.goto("/my/sales?state=held")
        await expect(page.get_by_role("heading", name=f"{len(HELD_CALLS)} held calls")).to_be_visible()
        for question, answer, stamp in (
            # The payment of this call has left its chain, so its price is owed.
            ("It was served: take the price", "Yes, it was served", "REORGED"),
            ("It was not: give it back", "Yes, it was not served", "RELEASED"),
        ):
            await watched.goto("/my/sales?state=held")
            await page.locator("tbody a").first.click()
            await page.get_by_text(question).click()
            await page.get_by_role("button", name=answer).click()
            await expect(page.locator(".ticket .stamp")).to_have_text(stamp)
        await watched.goto("/my/sales?state=held")
        await expect(page.get_by_role("heading", name=f"{len(HELD_CALLS) - 2} held calls")).to_be_visible()
        assert watched.complaints == []


async def test_forms_of_the_operator_work(browser: Browser, site: CornerSite) -> None:
    async with open_admin(browser, site.full.admin, java_script_enabled=False) as watched:
        page = watched.page
        await watched.goto("/listings")
        await page.get_by_role("searchbox").fill("quotes")
        await page.get_by_role("button", name="Search").click()
        await page.locator("summary", has_text="Suspend Sample quotes").click()
        await page.get_by_role("button", name="Suspend", exact=True).click()
        await page.get_by_role("button", name="Restore Sample quotes").click()
        await expect(page.get_by_role("button", name="Restore Sample quotes")).to_have_count(0)
        await watched.goto("/wallets")
        await page.get_by_label("Address", exact=True).fill(WALLET)
        await page.get_by_role("button", name="Block", exact=True).click()
        await page.get_by_role("button", name=re.compile(f"Unblock {WALLET}", re.I)).click()
        await expect(page.get_by_role("button", name=re.compile(f"Unblock {WALLET}", re.I))).to_have_count(0)
        await watched.goto("/calls")
        await page.get_by_label("Read one transaction again").fill(site.payment)
        await page.get_by_role("button", name="Read the chains").click()
        await expect(page.get_by_role("heading", name=site.payment[:10])).to_be_visible()
        await watched.goto("/books")
        await page.locator("#transaction").fill(site.payment)
        await page.get_by_role("button", name="Admit").click()
        await expect(page.locator("main")).to_contain_text("admit_transaction")
        await watched.goto("/books")
        await page.get_by_role("button", name="Run the audit").click()
        await expect(page.locator("main")).not_to_contain_text("has run no audit from this page")
        assert watched.complaints == []
