"""An owner and her agents over a whole gateway, through pages and wallets alone: two agents name her and one ends it; a third one never does. The file that the browser
downloads is the list on the screen, row by row, for each filter."""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from tests.kit.gateway_cluster import plain
from tests.system.browser.test_signed_in_pages import make_wallet, read_file, read_list
from tests.system.browser.watched_page import WatchedPage, watch_page
from tollway.sandbox.chain import FundedAccount

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS = ("/quote/ETH", "/quote/BTC", "/quote/ETH", "/status/500", "/status/404")
FILTERS = (
    ("", 6),
    ("&status=succeeded", 3),
    ("&status=failed", 2),
    ("&status=unknown", 1),
    ("&status=failed&to=2020-01-01", 0),
    ("&from=2020-01-01&status=unknown", 1),
    ("&apiId={api}", 6),
    ("&apiId={api}&status=succeeded", 3),
    ("&apiId=api_other", 0),
    ("&role=provider", 0),
)
"""Each with the number of calls of an agent that it matches."""


async def use_apis(cluster: Any, gateway: Any, provider: FundedAccount, agent: FundedAccount) -> str:
    """Calls in every state that the agent pays, one of them held."""
    draft = cluster.draft(name="Any path")
    api_id = str(await cluster.publish(gateway, provider, **draft))
    paid = plain(agent, await cluster.send_tokens(agent, provider.address, 100_000))
    for path in CALLS:
        await cluster.call(gateway, api_id, path, headers=paid)
    await cluster.control(gateway, provider, "PUT", f"/apis/{api_id}", {**draft, "timeoutSeconds": 1})
    held = await cluster.call(gateway, api_id, "/slow?seconds=60", headers=paid)
    assert held.state == "held", held.body
    return api_id


async def sign_in(watched: WatchedPage, path: str) -> None:
    await watched.goto(path)
    await watched.page.get_by_role("button", name="Test wallet").click()
    await watched.page.wait_for_url(f"**{path}")


async def download(watched: WatchedPage, name: str) -> str:
    async with watched.page.expect_download() as downloading:
        await watched.page.get_by_role("link", name=name).click()
    path: Path = await (await downloading.value).path()
    return path.read_text("utf-8")


async def compare(watched: WatchedPage, path: str, count: int) -> None:
    await watched.goto(path)
    link = watched.page.get_by_role("link", name="CSV of this list")
    rows = read_file(await download(watched, "CSV of this list")) if await link.count() else []
    assert await read_list(watched) == rows
    assert len(rows) == count


async def test_two_agents_name_an_owner_one_ends_it_and_a_third_never_does(
    browser: Browser, cluster: Any
) -> None:
    provider = await cluster.wallet()
    wallets = [await make_wallet(cluster) for _ in range(4)]
    owner, first, second, third = (str(wallet.accounts[0].address) for wallet in wallets)
    async with cluster.gateway() as gateway:
        apis = {
            address: await use_apis(cluster, gateway, provider, wallet.accounts[0])
            for address, wallet in zip((first, second, third), wallets[1:], strict=True)
        }
        for wallet in wallets[1:3]:  # each agent on its own page
            async with watch_page(browser, gateway.base_url) as watched:
                await wallet.install(watched.context)
                await sign_in(watched, "/my/wallets")
                await watched.page.get_by_label("Address", exact=True).fill(owner)
                await watched.page.get_by_role("button", name="Allow").click()
                await expect(watched.page.locator(".permissions .address")).to_have_text([owner])
        async with watch_page(browser, gateway.base_url) as watched:
            page = watched.page
            await wallets[0].install(watched.context)
            await sign_in(watched, "/my/wallets")
            readable = page.locator(".permissions .address")
            for count, agent in enumerate((first, second)):
                await expect(readable).to_have_count(count)
                await page.get_by_label("Its address").fill(agent)
                await page.get_by_role("button", name="Read", exact=True).click()
                await page.wait_for_url(f"**/my/calls?wallet={agent}")
                await watched.goto("/my/wallets")
            assert set(await readable.all_inner_texts()) == {first, second}
            for agent in (first, second):
                for query, count in FILTERS:
                    await compare(watched, f"/my/calls?wallet={agent}{query.format(api=apis[agent])}", count)
            assert await watched.goto(f"/my/calls?wallet={third}") == 404
            async with watch_page(browser, gateway.base_url) as other:
                await wallets[1].install(other.context)
                await sign_in(other, "/my/wallets")
                await other.page.get_by_role("button", name=f"Withdraw {owner}").click()
                await expect(other.page.get_by_text("Only you.")).to_be_visible()
            assert await watched.goto(f"/my/calls?wallet={first}") == 404
            await watched.goto("/my/wallets")
            await expect(readable).to_have_text([second])
            await watched.goto("/my/spending?groupBy=wallet")
            await expect(page.locator(".labelled tbody th")).to_have_text([second])
            assert first not in await page.content()
            assert third not in await page.content()
            await compare(watched, f"/my/calls?wallet={second}", 6)
    assert [wallet.wrong for wallet in wallets] == [[]] * 4
