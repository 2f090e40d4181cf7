"""Pay and try in a browser, second part: by keyboard alone, the ticket of every outcome in the corner states, answers that are no text, and transactions whose hash or success never comes."""

from decimal import Decimal
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.system.browser.call_panel import (
    CHAIN,
    Site,
    let_minutes_pass,
    open_panel,
    pay_button,
    set_clock_back,
    site,
    slip,
    stamp,
)
from tests.system.browser.watched_page import WatchedPage, watch_page

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

KEEP_BLOB_TYPES = (
    "(() => { const make = URL.createObjectURL; window.blobTypes = [];"
    " URL.createObjectURL = (blob) => { blobTypes.push(blob.type); return make.call(URL, blob); }; return true; })()"
)
"""Keeps the media type of each file that the page offers."""
BY_TRANSACTION = "a transaction on Sandbox"
SHAPES = {
    "CHARGED": ("double", "You were charged 0.01 USDC."),
    "RELEASED": ("dashed", "You were not charged."),
    "HELD": ("dotted", "The price is held until the outcome of the call is known."),
}


async def test_the_keyboard_alone_finds_an_api_and_pays(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(names=("First wallet", "Second wallet"))
    async with watch_page(browser, site.gateway.base_url) as watched:
        page = watched.page
        await wallet.install(watched.context)
        await watched.goto("/")
        await watched.tab_to("input[type=search]")
        await page.keyboard.type("sample")
        await page.keyboard.press("Enter")
        link = f'a[href="/apis/{site.apis["paid"]}"]'
        await expect(page.locator(link).first).to_be_visible()
        await watched.tab_to(link)
        await page.keyboard.press("Enter")
        await expect(pay_button(page)).to_be_enabled()
        await watched.tab_to("[data-parameter=symbol]")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("BTC")
        await watched.tab_to("[data-pay]")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Second wallet")).to_be_visible()
        await watched.tab_to(".ticket-choices button")
        await page.keyboard.press("Space")
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(page.locator("[data-answer]")).to_contain_text('"symbol": "BTC"')
        await watched.tab_to("[data-answer] pre")
        await watched.check()
    assert len(await site.calls(wallet)) == 1


async def look_at_stamp(watched: WatchedPage) -> dict[str, Any]:
    return dict(
        await watched.evaluate(
            "(() => { const stamp = document.querySelector('.ticket .stamp'), style = getComputedStyle(stamp); "
            "return { size: style.fontSize, shape: style.borderTopStyle, height: stamp.offsetHeight }; })()"
        )
    )


@pytest.mark.parametrize(("theme", "width"), [("dark", 320), ("light", 1280)])
async def test_the_ticket_of_every_outcome_fits_and_is_as_large(
    browser: Browser, site: Site, theme: str, width: int
) -> None:
    """A call that is charged, one that is released, and one whose outcome is unknown: the stamp differs by its word and its shape, not by its size."""
    wallet = await site.wallet(chain_id=CHAIN)
    stamps = {}
    viewport = {"width": width, "height": 800}
    async with open_panel(
        browser, site, wallet, "any path", operation="call", color_scheme=theme, viewport=viewport
    ) as watched:
        page = watched.page
        for api, path, word in (
            ("any path", "/quote/ETH", "CHARGED"),
            ("any path", "/status/500", "RELEASED"),
            ("garbled", "/", "HELD"),
        ):
            await watched.goto(f"/apis/{site.apis[api]}?operation=call")
            await page.get_by_label("Path below the endpoint").fill(path)
            await pay_button(page).click()
            await expect(stamp(page)).to_have_text(word, timeout=30_000)
            shape, sentence = SHAPES[word]
            await expect(slip(page)).to_contain_text(sentence)
            await watched.check()
            stamps[word] = await look_at_stamp(watched)
            assert stamps[word]["shape"] == shape
        await expect(pay_button(page)).to_have_text("Ask again")
        assert "`" not in await slip(page).inner_text()
    assert len({one["size"] for one in stamps.values()}) == 1
    heights = [one["height"] for one in stamps.values()]
    assert max(heights) - min(heights) <= 2, "the frames differ by a pixel on each side"
    assert [call["payment"]["state"] for call in await site.calls(wallet)] == ["held", "released", "charged"]


async def test_a_held_call_is_not_paid_again_after_a_reload(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_panel(browser, site, wallet, "garbled", operation="call") as watched:
        page = watched.page
        await page.get_by_label("Path below the endpoint").fill("/")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("HELD", timeout=30_000)
        await page.reload()
        await expect(slip(page)).to_contain_text("A payment of this page has no result yet.")
        await page.get_by_role("button", name="Ask again").click()
        await expect(stamp(page)).to_have_text("HELD", timeout=30_000)
    assert wallet.counts["eth_signTypedData_v4"] == 1
    assert len(await site.calls(wallet)) == 1


async def test_an_answer_that_is_no_text_is_a_download(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_panel(browser, site, wallet, "any path", operation="call") as watched:
        page = watched.page
        await watched.evaluate(KEEP_BLOB_TYPES)
        await page.get_by_label("Path below the endpoint").fill("/bytes/1000")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        link = page.get_by_role("link", name="Download the answer (1000 bytes)")
        assert await page.locator("[data-answer] pre").count() == 0
        assert await watched.evaluate("blobTypes.join()") == "application/octet-stream"
        async with page.expect_download() as waiting:
            await link.click()
        download = await waiting.value
        assert (await download.path()).read_bytes() == (bytes(range(256)) * 4)[:1000]
        assert download.suggested_filename.startswith("answer")
        assert not watched.complaints


# ---- Transactions whose hash or success never comes.


async def lose_a_transaction(page: Page, wallet: Any) -> None:
    """Pays by a transaction; the page is loaded again before the wallet has answered."""
    await page.get_by_label(BY_TRANSACTION).check()
    await pay_button(page).click()
    await expect(slip(page)).to_contain_text("Sandbox")
    while not wallet.counts["eth_sendTransaction"]:
        await page.wait_for_timeout(20)
    await page.reload()
    await expect(slip(page)).to_contain_text("The page was closed while your wallet sent a payment.")


async def test_a_transaction_whose_hash_never_came_pays_by_its_hash(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN, loses={"eth_sendTransaction"})
    async with open_panel(
        browser, site, wallet, viewport={"width": 320, "height": 800}, color_scheme="dark"
    ) as watched:
        page = watched.page
        await lose_a_transaction(page, wallet)
        await watched.check()
        await page.get_by_role("button", name="Ask again").click()
        await expect(slip(page).locator(".bad")).to_contain_text("enter its transaction hash")
        await page.get_by_label("Transaction hash").fill(wallet.sent[0])
        await page.get_by_role("button", name="Ask again").click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 1
    (call,) = await site.calls(wallet)
    assert call["payment"]["transaction"] == wallet.sent[0]
    await site.check_books()


async def test_a_transaction_that_was_never_sent_may_be_sent_by_a_second_click(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=CHAIN, silences={"eth_sendTransaction"})
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await set_clock_back(page)
        await lose_a_transaction(page, wallet)
        await expect(page.get_by_label("My wallet shows no transfer")).to_be_hidden()
        wallet.silences.clear()
        await let_minutes_pass(page)
        await page.get_by_role("button", name="Ask again").click()
        await page.get_by_label("My wallet shows no transfer").check()
        await page.get_by_label(BY_TRANSACTION).check()
        await page.get_by_role("button", name="Ask again").click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert len(wallet.sent) == 1
    assert len(await site.calls(wallet)) == 1


async def test_a_transaction_that_reverted_pays_nothing(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN, overspends=True)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label(BY_TRANSACTION).check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text(
            "The transaction failed. Only its network fee was paid.", timeout=30_000
        )
        await expect(pay_button(page)).to_have_text("Pay 0.01 USDC and call")
        await expect(stamp(page)).to_have_count(0)
        await watched.check()
        wallet.overspends = False
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    (call,) = await site.calls(wallet)
    assert call["payment"]["transaction"] == wallet.sent[1]
    await site.check_books()


# ---- A metered price.


async def test_a_metered_call_shows_its_maximum_its_cost_and_what_came_back(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_panel(browser, site, wallet, "metered") as watched:
        page = watched.page
        await expect(pay_button(page)).to_have_text("Connect a wallet, pay up to 0.01 USDC and call")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        text = await slip(page).inner_text()
    (call,) = await site.calls(wallet)
    assert (call["payment"]["rail"], call["priceMax"]) == ("tx", "0.01")
    back = Decimal("0.01") - Decimal(call["price"])
    assert Decimal("0.001") < Decimal(call["price"]) < Decimal("0.01")
    for line in ("up to 0.01 USDC", f"You were charged {call['price']} USDC.", f"{back.normalize():f} USDC"):
        assert line in text
    await site.check_books()


async def test_a_metered_stream_is_held_until_its_end_and_not_paid_again(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_panel(browser, site, wallet, "metered", operation="stream_ticks") as watched:
        page = watched.page
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("HELD", timeout=30_000)
        await expect(slip(page)).to_contain_text("0.01 USDC is held until the answer ends.")
        await expect(page.locator("[data-answer]")).to_contain_text('"number": 3')
        await page.reload()
        await expect(pay_button(page)).to_have_text("Connect a wallet, pay up to 0.01 USDC and call")
    (call,) = await site.calls(wallet)
    assert call["payment"]["state"] == "charged"
    assert Decimal(call["price"]) < Decimal("0.01")
    await site.check_books()
