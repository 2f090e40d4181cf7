"""The form of a ticket that refunds its call, in a browser: the wallet of the provider sends the price, or credit is given; both sides see what came back."""

import contextlib
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, expect

from tests.kit.gateway_cluster import plain
from tests.system.browser.call_panel import CHAIN, Site, edit, site
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage, watch_page
from tollway.sandbox.chain import FundedAccount

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRICE_UNITS = 10_000


async def charge(site: Site, api: str = "paid") -> tuple[str, FundedAccount]:
    """A charged call of 0.01 USDC, and its payer."""
    payer, cluster = await site.cluster.wallet(), site.cluster
    sent = await cluster.send_tokens(payer, site.provider.address, PRICE_UNITS)
    await cluster.driver.mine(3)
    reply = await cluster.call(site.gateway, site.apis[api], "/quote/BTC", headers=plain(payer, sent))
    assert reply.status == 200, reply.body
    (call,) = await cluster.history(site.gateway, payer)
    return str(call["id"]), payer


@contextlib.asynccontextmanager
async def open_ticket(
    browser: Browser, site: Site, call_id: str, wallet: WalletDouble
) -> AsyncIterator[WatchedPage]:
    """The ticket of a call, read by this wallet, which has signed in."""
    async with watch_page(browser, site.gateway.base_url) as watched:
        await wallet.install(watched.context)
        await watched.goto("/signin")
        await watched.page.locator("#signin-wallets button").first.click()
        await watched.page.wait_for_url("**/my**")
        await watched.goto(f"/my/calls/{call_id}")
        yield watched
        await watched.check()
    assert wallet.wrong == []


async def balance_of(site: Site, account: FundedAccount) -> int:
    data = "0x70a08231" + bytes(12).hex() + account.address.hex()
    call = {"to": str(site.cluster.playground.token.address), "data": data}
    return int(await site.cluster.driver.rpc("eth_call", call, "latest"), 16)


async def read_receipt(site: Site, call_id: str, account: FundedAccount) -> dict[str, object]:
    reply = await site.cluster.control(site.gateway, account, "GET", f"/history/{call_id}/receipt")
    assert reply.status == 200, reply.body
    return dict(reply.json)


async def test_the_wallet_of_the_provider_refunds_and_both_sides_see_it(browser: Browser, site: Site) -> None:
    """One transfer of the price to the payer. The ticket has the amount and the transaction, and the receipt a credit note."""
    call_id, payer = await charge(site)
    wallet = WalletDouble(driver=site.cluster.driver, accounts=[site.provider], chain_id=CHAIN)
    before = await balance_of(site, payer)
    async with open_ticket(browser, site, call_id, wallet) as watched:
        page = watched.page
        await expect(page.locator("main")).to_contain_text("Send 0.01 USDC to the payer")
        await site.blocks.stop()
        try:
            await page.locator("#refund-wallets button").click()
            await expect(page.locator("#refund-status")).to_contain_text("Sent.")
            await site.cluster.driver.mine(5)
            await expect(page.locator(".ticket")).to_contain_text("Refunded")
        finally:
            site.blocks.start()
        await expect(page.locator("#refund")).to_have_count(0)
        (sent,) = wallet.sent
        link = page.locator(f'.ticket a[href="https://explorer.example.com/tx/{sent}"]')
        await expect(link).to_have_count(1)
        await expect(page.locator(".ticket")).to_contain_text("0.01 USDC")
    assert await balance_of(site, payer) - before == PRICE_UNITS
    reader = WalletDouble(driver=site.cluster.driver, accounts=[payer], chain_id=CHAIN)
    async with open_ticket(browser, site, call_id, reader) as watched:
        await expect(watched.page.locator(".ticket")).to_contain_text("Refunded")
        await expect(watched.page.locator("#refund")).to_have_count(0)
    receipt = await read_receipt(site, call_id, payer)
    assert sent in str(receipt["creditNote"])
    await site.check_books()


async def test_credit_is_given_by_a_second_button_and_pays_after_a_change_of_pay_to(
    browser: Browser, site: Site
) -> None:
    """No wallet is asked. The credit stands at the former payee, which still counts at the API of the call."""
    call_id, payer = await charge(site, "edited")
    await edit(site, payTo=str((await site.cluster.wallet()).address))
    wallet = WalletDouble(driver=site.cluster.driver, accounts=[site.provider], chain_id=CHAIN)
    async with open_ticket(browser, site, call_id, wallet) as watched:
        page = watched.page
        await page.get_by_text("Give credit instead").click()
        await page.get_by_role("button", name="Yes, give 0.01 USDC as credit at my APIs.").click()
        await expect(page.locator(".ticket")).to_contain_text("Refunded by")
        await expect(page.locator(".ticket")).to_contain_text("credit")
        await expect(page.locator("#refund")).to_have_count(0)
    assert wallet.counts["eth_sendTransaction"] == 0
    assert "credit" in str((await read_receipt(site, call_id, payer))["creditNote"])
    (call,) = await site.cluster.history(site.gateway, payer)
    paid = plain(payer, call["refund"]["transaction"])
    again = await site.cluster.call(site.gateway, site.apis["edited"], "/quote/BTC", headers=paid)
    assert again.status == 200, again.body
    await site.check_books()


async def test_a_wallet_that_is_not_the_providers_sends_nothing(browser: Browser, site: Site) -> None:
    call_id, payer = await charge(site)
    wallet = WalletDouble(driver=site.cluster.driver, accounts=[site.provider], chain_id=CHAIN)
    async with open_ticket(browser, site, call_id, wallet) as watched:
        wallet.accounts = [await site.cluster.wallet()]
        await watched.page.locator("#refund-wallets button").click()
        status = watched.page.locator("#refund-status")
        await expect(status).to_contain_text("A transfer of this wallet refunds no call of yours.")
        wallet.accounts, wallet.declines = [site.provider], {"eth_sendTransaction"}
        await watched.page.locator("#refund-wallets button").click()
        await expect(status).to_have_text("You declined. Nothing was sent.")
    assert wallet.sent == []
    (call,) = await site.cluster.history(site.gateway, payer)
    assert "refund" not in call


async def test_a_transfer_that_refunds_nothing_is_explained(browser: Browser, site: Site) -> None:
    """The payment of the call itself: the payer sent it."""
    call_id, payer = await charge(site)
    (call,) = await site.cluster.history(site.gateway, payer)
    wallet = WalletDouble(driver=site.cluster.driver, accounts=[site.provider], chain_id=CHAIN)
    async with open_ticket(browser, site, call_id, wallet) as watched:
        await watched.page.get_by_label("Hash of the transfer").fill(call["payment"]["transaction"])
        await watched.page.get_by_role("button", name="Record the refund").click()
        await expect(watched.page.locator("main")).to_contain_text("Nothing is refunded")
