"""The operator's pages in a browser: everything by keyboard alone, wallets of the operators, and one transaction read from a real chain."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.gateway_cluster import plain
from tests.kit.ports import find_low_port
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import watch_operator_page, watch_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

CORNERS = [("light", 1280), ("dark", 320)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A gateway with a listing and with `operator` in its settings."""

    cluster: Any
    gateway: Any
    provider: Any
    operator: Any
    api_id: str
    admin_url: str

    async def operate(self, *arguments: str) -> Any:
        exit_code, output = await self.cluster.operate(self.gateway, "admin", *arguments)
        assert exit_code == 0, output
        return output

    async def list_audit_entries(self) -> list[tuple[str, str, str]]:
        """Act, actor and reason of each, the newest first."""
        entries = (await self.operate("log"))["entries"]
        return [(entry["action"], entry["actor"], entry["reason"]) for entry in entries]

    def make_wallet(self, account: Any = None, **changes: Any) -> WalletDouble:
        given = {"accounts": [account or self.operator], "chain_id": int(self.cluster.driver.chain_id)}
        return WalletDouble(driver=self.cluster.driver, **{**given, **changes})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Any) -> AsyncIterator[Site]:
    port = find_low_port()
    operator, provider = await cluster.wallets(2)
    settings = {
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{port}",
        "TOLLWAY_OPERATORS": str(operator.address),
    }
    async with cluster.gateway(settings=settings) as gateway:
        yield Site(
            cluster=cluster,
            gateway=gateway,
            provider=provider,
            operator=operator,
            api_id=await cluster.publish(gateway, provider, name="Sample quotes"),
            admin_url=f"http://127.0.0.1:{port}",
        )


async def test_the_keyboard_alone_enters_suspends_restores_audits_and_leaves(
    browser: Browser, site: Site
) -> None:
    link = (await site.operate("link"))["link"]
    async with watch_page(browser, site.admin_url) as watched:
        page = watched.page
        await watched.goto(link.removeprefix(site.admin_url))
        await watched.push('form[action="/enter"] button')
        await expect(page.get_by_role("heading", level=1)).to_have_text("What needs an operator")
        await watched.push('nav a[href="/listings"]')
        await expect(page.get_by_role("heading", level=1)).to_have_text("Listings")
        await watched.push("details summary")
        await watched.tab_to("details[open] input[name=reason]")
        await page.keyboard.type("under review")
        await watched.push("details[open] form button")
        await expect(page.get_by_role("button", name="Restore Sample quotes")).to_be_visible()
        reply = await site.cluster.call(site.gateway, site.api_id, "/echo")
        assert (reply.status, reply.code) == (503, "api_paused")
        await watched.check()
        await watched.tab_to("[aria-labelledby=suspended] input[name=reason]")
        await page.keyboard.type("checked")
        await watched.push("[aria-labelledby=suspended] form button")
        await expect(page.get_by_text("No listing is suspended.")).to_be_visible()
        reply = await site.cluster.call(site.gateway, site.api_id, "/echo")
        assert reply.status == 402
        await watched.push('nav a[href="/books"]')
        await expect(page.get_by_role("heading", level=1)).to_have_text("Books")
        await expect(page.get_by_text("has run no audit from this page")).to_be_visible()
        await watched.push('form[action="/admin/api/audit"] button')
        await expect(page.get_by_text("has run no audit from this page")).to_be_hidden()
        for _ in range(20):  # the audit runs beside the page, which a reader loads again
            if await page.get_by_text("the ledger balances").count():
                break
            await watched.goto("/books")
        await expect(page.get_by_text("the ledger balances")).to_be_visible()
        await watched.check()
        await watched.push('form[action="/signout"] button')
        await expect(page.get_by_text("tollway gateway admin link")).to_be_visible()
        assert await watched.goto("/") == 401
    (restored, suspended) = (await site.list_audit_entries())[:2]
    assert (restored[0], restored[2]) == ("restore_listing", "checked")
    assert (suspended[0], suspended[2]) == ("suspend_listing", "under review")
    for _, actor, _ in (restored, suspended):
        assert actor.endswith(" (page)")
        assert "@" in actor


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_a_wallet_of_the_operators_signs_in_by_keyboard(
    browser: Browser, site: Site, theme: Any, width: int
) -> None:
    wallet = site.make_wallet(declines={"personal_sign"})
    options = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    async with watch_page(browser, site.admin_url, **options) as watched:
        page = watched.page
        await wallet.install(watched.context)
        assert await watched.goto("/") == 401
        await expect(page.get_by_role("button", name="Test wallet")).to_be_visible()
        await watched.check()
        await watched.push("#signin-wallets button")
        await expect(page.get_by_role("status")).to_have_text("You declined. Nothing was signed.")
        await expect(page.locator("#signin-text")).to_contain_text(f"URI: {site.admin_url}")
        await watched.check()
        wallet.declines.clear()
        await page.get_by_role("button", name="Test wallet").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("What needs an operator")
        await expect(page.get_by_text(str(site.operator.address))).to_be_visible()
        await watched.check()
        await watched.goto("/wallets")
        await page.get_by_label("Address", exact=True).fill("0x" + f"{width:040x}")
        await page.get_by_role("button", name="Block", exact=True).click()
        await expect(page.get_by_role("button", name="Unblock").first).to_be_visible()
        await watched.goto("/audit-log")
        await watched.check()
        await page.get_by_role("button", name="Sign out").click()
        assert await watched.goto("/") == 401
    assert (await site.list_audit_entries())[0][:2] == ("block_wallet", f"{site.operator.address} (page)")
    assert wallet.wrong == []
    assert set(wallet.counts) == {"eth_requestAccounts", "eth_chainId", "personal_sign"}


async def test_another_wallet_reads_that_it_is_no_operator(browser: Browser, site: Site) -> None:
    wallet = site.make_wallet(site.provider)
    async with watch_page(browser, site.admin_url) as watched:
        await wallet.install(watched.context)
        await watched.goto("/")
        await watched.page.get_by_role("button", name="Test wallet").click()
        await expect(watched.page.get_by_text("does not contain this wallet")).to_be_visible()
        await watched.check()
        assert await watched.goto("/") == 401


async def test_under_another_name_the_message_names_that_name(browser: Browser, site: Site) -> None:
    """The message names the host in the address line, which the page compares before the wallet signs."""
    wallet = site.make_wallet()
    other = site.admin_url.replace("127.0.0.1", "localhost")
    async with watch_page(browser, other) as watched:
        page = watched.page
        await wallet.install(watched.context)
        await watched.goto("/")
        await page.get_by_role("button", name="Test wallet").click()
        await expect(page.get_by_role("heading", level=1)).to_have_text("What needs an operator")
    (text,) = (
        bytes.fromhex(params[0][2:]).decode() for method, params in wallet.asked if method == "personal_sign"
    )
    assert text.startswith(other.removeprefix("http://") + " wants you to sign in")
    assert f"URI: {other}" in text


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_a_transaction_is_read_anew(browser: Browser, site: Site, theme: Any, width: int) -> None:
    payer = await site.cluster.wallet()
    tx_hash = await site.cluster.send_tokens(payer, site.provider.address, 20_000)
    options = {"color_scheme": theme, "viewport": {"width": width, "height": 800}}
    link = (await site.operate("link"))["link"]
    async with watch_operator_page(browser, link, **options) as watched:
        page = watched.page
        await watched.goto("/calls")
        await page.get_by_label("Read one transaction again").fill(str(tx_hash))
        await page.get_by_role("button", name="Read the chains").click()
        await expect(page.get_by_text("The ledger has no payment of this transaction.")).to_be_visible()
        await expect(page.get_by_role("region", name="Transfers on")).to_contain_text("0.02 USDC")
        await watched.check()
        reply = await site.cluster.call(site.gateway, site.api_id, "/echo", headers=plain(payer, tx_hash))
        assert reply.status == 200, reply.json
        await page.get_by_role("button", name="Read the chains").click()
        table = page.get_by_role("region", name="Payments of the transaction in the ledger")
        await expect(table).to_contain_text("✓ 0.02 USDC")
        await expect(table).to_contain_text("0.01 USDC")
        await watched.check()
        await page.get_by_label("Read one transaction again").fill("0x" + "ab" * 32)
        await page.get_by_role("button", name="Read the chains").click()
        await expect(page.get_by_text("The nodes do not know this transaction.")).to_be_visible()
        await watched.check()
