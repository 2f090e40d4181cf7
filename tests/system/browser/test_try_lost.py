"""Pay by transaction where the wallet replaces or drops it: the panel asks the gateway, takes the other hash, and pays anew only after the reader has given the transfer up.

The first transfer is never forgotten before it is known to have failed or another one has paid: no node has to know a transfer that is on its way.
"""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.system.browser.call_panel import (
    Site,
    let_minutes_pass,
    open_panel,
    pay_button,
    set_clock_back,
    site,
    slip,
    stamp,
)
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage
from tollway.web.pages.call_form import WORDS

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNKNOWN = "The gateway's nodes do not know this transfer"
NONE_SENT = "My wallet shows no transfer"
POLLS_MAX = 300
PROBLEM = {"requestId": "req_1", "status": 429, "type": "about:blank"}
PROVIDER_FAILED = {
    "status": 502,
    "headers": {
        "content-type": "application/problem+json",
        "tollway-payment-state": "released",
        "tollway-credit-remaining": "0.03 USDC",
        "proxy-status": '"gateway"; error=http_protocol_error',
    },
    "body": json.dumps(
        {
            **PROBLEM,
            "code": "upstream_bad_response",
            "title": "Bad response from upstream",
            "detail": "Not HTTP.",
        }
    ),
}
REFUSALS = {
    "another site": (
        {"json": {"domain": "elsewhere.example", "message": "Sign in", "nonce": "1"}},
        WORDS["otherDomain"],
    ),
    "too many": (
        {
            "status": 429,
            "json": {**PROBLEM, "code": "rate_limited", "detail": "Too many sign-ins from this address."},
        },
        "Too many sign-ins from this address.",
    ),
}


def again_button(page: Page) -> Any:
    return page.get_by_role("button", name="Ask again")


async def read_payment(watched: WatchedPage) -> dict[str, Any]:
    """What the page has stored of its payment."""
    key = "Object.keys(sessionStorage).find((key) => key.endsWith(' payment'))"
    return dict(await watched.evaluate(f"JSON.parse(sessionStorage.getItem({key}) ?? '{{}}')"))


async def send_and_reload(page: Page) -> None:
    await page.get_by_label("a transaction on Sandbox").check()
    await pay_button(page).click()
    await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
    await page.reload()
    await expect(page.get_by_label("Transaction hash")).to_be_hidden()
    await again_button(page).click()
    await expect(slip(page)).to_contain_text(UNKNOWN, timeout=30_000)
    await expect(page.get_by_label("Transaction hash")).to_be_visible()


async def send_and_wait(page: Page) -> None:
    """Until the page offers to give the transfer up."""
    await set_clock_back(page)
    await send_and_reload(page)
    await expect(page.get_by_label(NONE_SENT)).to_be_hidden()
    await let_minutes_pass(page)
    await again_button(page).click()
    await expect(page.get_by_label(NONE_SENT)).to_be_visible(timeout=30_000)


async def check_paid_once(site: Site, wallet: WalletDouble, *, sent: int = 1) -> None:
    """One call is paid, by the transaction that was mined. `sent`: how many the wallet was asked for."""
    assert wallet.counts["eth_sendTransaction"] == sent
    (call,) = await site.calls(wallet)
    assert call["payment"]["transaction"] == wallet.sent[0]
    await site.check_books()


async def test_a_replaced_transaction_is_paid_once_under_its_other_hash(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, replaces=True)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await send_and_reload(page)
        await watched.check()
        await again_button(page).click()
        await expect(slip(page).locator(".ticket-line", has_text="Network")).to_have_count(2, timeout=30_000)
        await expect(slip(page).get_by_text(UNKNOWN)).to_have_count(1, timeout=30_000)
        await page.get_by_label("Transaction hash").fill(wallet.sent[0])
        await again_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(page.get_by_label("Transaction hash")).to_be_hidden()
    await check_paid_once(site, wallet)


async def test_a_dropped_transaction_is_paid_anew_after_the_reader_gave_it_up(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=84532, drops=True)
    async with open_panel(
        browser, site, wallet, viewport={"width": 320, "height": 800}, color_scheme="dark"
    ) as watched:
        page = watched.page
        await send_and_wait(page)
        await watched.check()
        assert wallet.counts["eth_sendTransaction"] == 1
        wallet.drops = False
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_label(NONE_SENT).check()
        await again_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    await check_paid_once(site, wallet, sent=2)


async def test_declining_to_sign_in_loses_nothing(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, replaces=True, declines={"personal_sign"})
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
        await page.reload()
        await again_button(page).click()
        await expect(slip(page)).to_contain_text("You declined", timeout=30_000)
        wallet.declines.clear()
        await again_button(page).click()
        await expect(slip(page)).to_contain_text(UNKNOWN, timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 1
    assert await site.calls(wallet) == []


@pytest.mark.parametrize("refused", REFUSALS)
async def test_a_sign_in_that_the_gateway_refuses_says_why_and_loses_nothing(
    browser: Browser, site: Site, refused: str
) -> None:
    wallet = await site.wallet(chain_id=84532, replaces=True)
    answer, sentence = REFUSALS[refused]
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.route("**/api/v2/auth/nonce", lambda route: route.fulfill(**answer))
        await page.get_by_label("a transaction on Sandbox").check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
        await page.reload()
        await again_button(page).click()
        await expect(slip(page)).to_contain_text(sentence, timeout=30_000)
        await expect(slip(page)).not_to_contain_text(WORDS["unreachable"])
        await page.unroute("**/api/v2/auth/nonce")
        await again_button(page).click()
        await expect(slip(page)).to_contain_text(UNKNOWN, timeout=30_000)
    assert wallet.counts["personal_sign"] == 1
    assert wallet.counts["eth_sendTransaction"] == 1


# ---- A second payment must not be made, and the first must not be forgotten.


async def test_what_was_entered_for_one_payment_does_not_touch_the_next(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, replaces=True)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await send_and_wait(page)
        await page.get_by_label(NONE_SENT).check()
        await page.get_by_label("Transaction hash").fill(wallet.sent[0])
        await again_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        wallet.replaces, wallet.drops = False, True
        await page.get_by_label("a transaction on Sandbox").check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
        lost = (await read_payment(watched))["transaction"]
        for _ in range(POLLS_MAX):  # the page waits a minute for the receipt
            await page.clock.run_for(1_000)
            if await pay_button(page).text_content() == "Ask again":
                break
        await again_button(page).click()
        await expect(slip(page)).to_contain_text(UNKNOWN, timeout=30_000)
        await expect(page.get_by_label("Transaction hash")).to_have_value("")
        await expect(page.get_by_label(NONE_SENT)).not_to_be_checked()
        await again_button(page).click()
        await expect(slip(page).locator(".ticket-line", has_text="Network")).to_have_count(3, timeout=30_000)
        await expect(slip(page).get_by_text(UNKNOWN)).to_have_count(1, timeout=30_000)
        assert (await read_payment(watched))["transaction"] == lost
        await page.clock.set_system_time(datetime.now(UTC))
        await page.get_by_label("Transaction hash").fill(wallet.sent[0])
        await again_button(page).click()
        await expect(slip(page)).to_contain_text("All value of this payment is spent", timeout=30_000)
        await expect(slip(page)).to_contain_text("first transfer is kept")
        assert (await read_payment(watched))["transaction"] == lost
    assert wallet.counts["eth_sendTransaction"] == 2
    assert len(await site.calls(wallet)) == 1


@pytest.mark.parametrize(
    ("amount", "sentence"),
    [(1, "first transfer is kept"), (10**12, "The transaction that you entered failed")],
    ids=["pays another wallet", "failed"],
)
async def test_an_entered_transaction_that_does_not_pay_leaves_the_first_transfer(
    browser: Browser, site: Site, amount: int, sentence: str
) -> None:
    wallet = await site.wallet(chain_id=84532, holds=True)
    stranger = await site.cluster.wallet()
    other = await site.cluster.send_tokens(stranger, stranger.address, amount)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await send_and_reload(page)
        await page.get_by_label("Transaction hash").fill(str(other))
        await again_button(page).click()
        await expect(slip(page)).to_contain_text(sentence, timeout=30_000)
        await watched.check()
        assert (await read_payment(watched))["transaction"] == wallet.sent[0]
        await page.reload()
        await wallet.release()
        await again_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    await check_paid_once(site, wallet)


async def test_an_entered_transaction_that_was_accepted_stays_when_the_provider_fails(
    browser: Browser, site: Site
) -> None:
    """The gateway accepted the entered transaction, and the provider failed: the price is credit of that transaction, and the first one may be dead."""
    wallet = await site.wallet(chain_id=84532, holds=True)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await send_and_reload(page)
        entered = await site.cluster.send_tokens(wallet.accounts[0], site.provider.address, 30_000)
        await page.route(
            "**/api/v2/gateway/**",
            lambda route: (
                route.fulfill(**PROVIDER_FAILED)
                if route.request.headers.get("x-payment-tx") == str(entered)
                else route.continue_()
            ),
        )
        await page.get_by_label("Transaction hash").fill(str(entered))
        await again_button(page).click()
        await expect(stamp(page)).to_have_text("RELEASED", timeout=30_000)
        await expect(slip(page)).not_to_contain_text("first transfer is kept")
        assert await read_payment(watched) == {}
        await page.unroute("**/api/v2/gateway/**")
        await page.get_by_label("a transaction on Sandbox").check()
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 1
    (call,) = await site.calls(wallet)
    assert call["payment"]["transaction"] == str(entered)
    await site.check_books()


async def test_a_transfer_that_comes_after_it_was_given_up_pays_the_call(
    browser: Browser, site: Site
) -> None:
    """Nodes that do not know a transfer prove nothing: a private relay shows it to none before it is mined."""
    wallet = await site.wallet(chain_id=84532, holds=True)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await send_and_wait(page)
        await page.get_by_label(NONE_SENT).check()
        await site.blocks.stop()
        try:
            await wallet.release()
            await again_button(page).click()
            await expect(slip(page)).to_contain_text("The transfer waits on its network", timeout=30_000)
            await expect(page.get_by_label(NONE_SENT)).to_be_hidden()
        finally:
            site.blocks.start()
        await site.cluster.driver.rpc("evm_mine")  # the transfer is in a block before the page asks
        await again_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    await check_paid_once(site, wallet)
