"""Pay by transaction where the wallet replaces or drops it: the panel asks the gateway, takes the other hash, and pays anew only after the reader has given the transfer up."""

import pytest
from playwright.async_api import Browser, Page, expect

from tests.browser.call_panel import Site, open_panel, pay_button, site, slip, stamp

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNKNOWN = "The network does not know this transfer"


async def send_and_reload(page: Page) -> None:
    await page.get_by_label("a transaction on Sandbox").check()
    await pay_button(page).click()
    await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
    await page.reload()
    await expect(page.get_by_label("Transaction hash")).to_be_hidden()
    await page.get_by_role("button", name="Ask again").click()
    await expect(slip(page)).to_contain_text(UNKNOWN, timeout=30_000)
    await expect(page.get_by_label("Transaction hash")).to_be_visible()


async def test_a_replaced_transaction_is_paid_once_under_its_other_hash(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, replaces=True)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await send_and_reload(page)
        await watched.check()
        await page.get_by_role("button", name="Ask again").click()
        await expect(slip(page).get_by_text(UNKNOWN)).to_have_count(2, timeout=30_000)
        await page.get_by_label("Transaction hash").fill(wallet.sent[0])
        await page.get_by_role("button", name="Ask again").click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(page.get_by_label("Transaction hash")).to_be_hidden()
    assert wallet.counts["eth_sendTransaction"] == 1
    (call,) = await site.calls(wallet)
    assert call["payment"]["transaction"] == wallet.sent[0]
    await site.check_books()


async def test_a_dropped_transaction_is_paid_anew_after_the_reader_gave_it_up(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=84532, drops=True)
    async with open_panel(
        browser, site, wallet, viewport={"width": 320, "height": 800}, color_scheme="dark"
    ) as watched:
        page = watched.page
        await send_and_reload(page)
        await watched.check()
        assert wallet.counts["eth_sendTransaction"] == 1
        wallet.drops = False
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_label("My wallet shows no transfer").check()
        await page.get_by_role("button", name="Ask again").click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 2
    (call,) = await site.calls(wallet)
    assert call["payment"]["transaction"] == wallet.sent[0]
    await site.check_books()


async def test_declining_to_sign_in_loses_nothing(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, replaces=True, declines={"personal_sign"})
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
        await page.reload()
        await page.get_by_role("button", name="Ask again").click()
        await expect(slip(page)).to_contain_text("You declined", timeout=30_000)
        wallet.declines.clear()
        await page.get_by_role("button", name="Ask again").click()
        await expect(slip(page)).to_contain_text(UNKNOWN, timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 1
    assert await site.calls(wallet) == []
