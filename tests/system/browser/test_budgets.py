"""An owner and her agent over a whole gateway, through pages and wallets: a policy is checked, signed, accepted, used up, revoked and unbound; and set by the keyboard alone."""

from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.kit.gateway_cluster import plain
from tests.system.browser.test_selling_keyboard import Keyboard
from tests.system.browser.test_signed_in_pages import make_wallet
from tests.system.browser.test_viewers import sign_in
from tests.system.browser.watched_page import WatchedPage, watch_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOLDS = ("Revoke: buys nothing", "Unbind: no owner, no limit")


async def fill(page: Page, **fields: str) -> None:
    for name, text in fields.items():
        await page.locator(f'[name="{name}"]').fill(text)
    await page.get_by_role("button", name="Check").click()


async def end(watched: WatchedPage, agent: str, fold: str, act: str) -> None:
    await watched.goto(f"/my/budgets/{agent}")
    await watched.page.get_by_text(fold).click()
    await watched.check()
    await watched.page.get_by_role("button", name=f"{act} with Test wallet").click()


async def test_an_owner_sets_an_agent_accepts_spends_and_is_refused(browser: Browser, cluster: Any) -> None:
    provider = await cluster.wallet()
    owner_wallet, agent_wallet, stranger = [await make_wallet(cluster) for _ in range(3)]
    owner, agent = (str(one.accounts[0].address) for one in (owner_wallet, agent_wallet))
    async with cluster.gateway() as gateway:
        api_id = await cluster.publish(gateway, provider)
        paid = plain(
            agent_wallet.accounts[0],
            await cluster.send_tokens(agent_wallet.accounts[0], provider.address, 100_000),
        )

        async def call() -> tuple[int, str]:
            reply = await cluster.call(gateway, api_id, "/quote/ETH", headers=paid)
            return reply.status, reply.json["reason"] if reply.code else reply.state

        async with (
            watch_page(browser, gateway.base_url) as owners,
            watch_page(browser, gateway.base_url) as agents,
        ):
            page = owners.page
            await owner_wallet.install(owners.context)
            await agent_wallet.install(agents.context)

            # A contradiction stands at its field, and the wallet stays closed.
            await sign_in(owners, "/my/budgets")
            await fill(page, agent=agent, maxPerCall="0.02", maxPerDay="0.01")
            await expect(page.locator("#error-maxPerCall")).to_have_text("must not be above “A day”")
            await expect(page.locator("#maxPerCall")).to_be_focused()
            await owners.check_states()
            await fill(page, maxPerCall="0.01")
            await expect(page.get_by_role("heading", level=1)).to_have_text("Sign the budget")
            await owners.check_states()
            assert owner_wallet.counts["eth_signTypedData_v4"] == 0

            # Another account, and a person who says no: nothing is sent.
            button, status = (
                page.get_by_role("button", name="Sign with Test wallet"),
                page.get_by_role("status"),
            )
            own, owner_wallet.accounts = owner_wallet.accounts, stranger.accounts
            await button.click()
            await expect(status).to_contain_text(f"Choose {owner} in it")
            owner_wallet.accounts = own
            owner_wallet.declines.add("eth_signTypedData_v4")
            await button.click()
            await expect(status).to_have_text("You declined. Nothing was signed.")
            owner_wallet.declines.clear()
            await owners.check()
            await button.click()
            await expect(page.get_by_role("status")).to_contain_text("It counts once the agent accepts you")
            await owners.check_states()
            assert await call() == (200, "charged")  # not bound yet

            # The agent accepts.
            await sign_in(agents, "/my/budgets")
            await agents.check_states()
            await agents.page.get_by_role("link", name=f"Look and accept {owner}").click()
            await agents.check_states()
            await agents.page.get_by_role("button", name="Accept with Test wallet").click()
            await expect(agents.page.get_by_role("status")).to_contain_text("Accepted.")
            await agents.check_states()

            # One call is bought, and the next one is beyond the day.
            assert await call() == (200, "charged")
            assert await call() == (403, "limit")
            await owners.goto(f"/my/budgets/{agent}")
            await expect(page.get_by_role("row", name="A day")).to_contain_text("0.01")
            await expect(page.get_by_role("row", name="A day").get_by_role("cell").nth(2)).to_have_text("0")
            await agents.goto("/my/spending")
            await expect(agents.page.locator("main")).to_contain_text("0 of 0.01 USDC today until")

            # A policy changed holds from the next call on, without another acceptance.
            await fill(page, maxPerDay="0.02")
            await page.get_by_role("button", name="Sign with Test wallet").click()
            await expect(page.get_by_role("status")).to_have_text("Stored. It counts from the next call on.")
            assert await call() == (200, "charged")

            await end(owners, agent, FOLDS[0], "Revoke")
            await expect(page.get_by_role("status").first).to_contain_text("this wallet buys nothing here")
            await owners.check_states()
            assert await call() == (403, "no_policy_in_force")
            await end(owners, agent, FOLDS[1], "Unbind")
            await expect(page.get_by_role("status").first).to_contain_text("Unbound.")
            await owners.check_states()
            assert await call() == (200, "charged")
    assert owner_wallet.wrong == agent_wallet.wrong == []


async def test_the_keyboard_alone_sets_a_budget(browser: Browser, cluster: Any) -> None:
    wallet = await make_wallet(cluster)
    agent = str((await cluster.wallet()).address)
    async with cluster.gateway() as gateway, watch_page(browser, gateway.base_url) as watched:
        page, keys = watched.page, Keyboard(watched)
        await wallet.install(watched.context)
        await watched.goto("/my/budgets")
        await expect(page.get_by_role("button", name="Test wallet")).to_be_visible()
        await keys.push("#signin-wallets button")
        await page.wait_for_url("**/my/budgets")
        await keys.write("agent", agent)
        await keys.write("maxPerCall", "7")
        await keys.write("maxPerDay", "5")
        await keys.push("form[action='/my/budgets'] .main-button")
        await expect(page.locator("#error-maxPerCall")).to_be_visible()
        assert await keys.focused() == "maxPerCall"
        await keys.press("Control+A")
        await page.keyboard.insert_text("0.05")
        await keys.push("form[action='/my/budgets'] .main-button")
        await expect(page.get_by_role("button", name="Sign with Test wallet")).to_be_visible()
        await keys.push("[data-wallets] button")
        await expect(page.get_by_role("status")).to_contain_text("It counts once the agent accepts you")
        await watched.check_states()
