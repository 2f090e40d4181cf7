"""The operator's pages in a browser: from the link of the command to a suspended listing, accessible and narrow enough on every page."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from tests.kit.ports import find_low_port
from tests.system.browser.watched_page import watch_operator_page, watch_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

WALLET = "0x" + "ab" * 20
REFRESH_MS = 10_000
FRESH = re.compile("are refreshed")
STALE = "The last refresh failed, and the figures are old. Load the page again."
HIDE = "Object.defineProperty(document, 'hidden', {{ configurable: true, get: () => {0} }}); true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A gateway with a listing, and its admin address."""

    cluster: Any
    gateway: Any
    api_id: str
    admin_url: str

    async def make_link(self) -> str:
        exit_code, output = await self.cluster.operate(self.gateway, "admin", "link")
        assert exit_code == 0, output
        return str(output["link"])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Any) -> AsyncIterator[Site]:
    gas = await cluster.wallet()
    port = find_low_port()
    settings = {
        "TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key,
        "TOLLWAY_ADMIN_LISTEN": f"127.0.0.1:{port}",
    }
    async with cluster.gateway(settings=settings) as gateway:
        api_id = await cluster.publish(gateway, await cluster.wallet(), name="Sample quotes " + "long " * 12)
        yield Site(cluster=cluster, gateway=gateway, api_id=api_id, admin_url=f"http://127.0.0.1:{port}")


async def test_an_operator_suspends_and_restores_a_listing_and_blocks_a_wallet(
    browser: Browser, site: Site
) -> None:
    async with watch_operator_page(browser, await site.make_link()) as watched:
        page = watched.page
        await watched.goto("/listings")
        await page.locator("summary", has_text="Suspend Sample quotes").click()
        await page.get_by_label("Reason").first.fill("under review")
        await page.get_by_role("button", name="Suspend", exact=True).click()
        await expect(page.get_by_role("button", name="Restore Sample quotes")).to_be_visible()
        await watched.check()
        reply = await site.cluster.call(site.gateway, site.api_id, "/echo")
        assert (reply.status, reply.code) == (503, "api_paused")
        assert '"under review"' in reply.json["detail"]
        await page.get_by_role("button", name="Restore Sample quotes").click()
        await expect(page.get_by_text("No listing is suspended.")).to_be_visible()
        await watched.goto("/wallets")
        await page.get_by_label("Address", exact=True).fill(WALLET)
        await page.get_by_role("button", name="Block").click()
        await expect(page.get_by_role("button", name="Unblock")).to_be_visible()
        await watched.check()
        await watched.goto("/audit-log")
        for entry in ("suspend_listing", "restore_listing", "block_wallet"):
            await expect(page.get_by_text(entry)).to_be_visible()
        await watched.check()


@pytest.mark.parametrize(
    ("path", "figure"),
    [
        ("/", "figures.callsPerSecond"),
        ("/", "gateways.0.version"),
        ("/chains", "networks.0.nodes.0.requests"),
        ("/gas", "keys.0.unmined"),
        ("/books", "tables.0.rows"),
    ],
)
async def test_figures_are_refreshed_in_front_until_the_button_stops_it(
    browser: Browser, site: Site, path: str, figure: str
) -> None:
    async with watch_operator_page(browser, await site.make_link()) as watched:
        page, sent = watched.page, []

        async def answer(route: Route) -> None:
            sent.append(route.request.url)
            response = await route.fetch()
            content = found = await response.json()
            *parents, name = figure.split(".")
            for parent in parents:
                found = found[int(parent) if isinstance(found, list) else parent]
            found[name] = f"refreshed {len(sent)}"
            await route.fulfill(response=response, json=content)

        await page.clock.install()
        await page.route("**/admin/api/*", answer)
        assert await watched.goto(path) == 200
        shown = page.locator(f'[data-live="{figure}"]')
        await page.clock.fast_forward(REFRESH_MS)
        await expect(shown).to_have_text("refreshed 1")
        await watched.check()
        await watched.evaluate(HIDE.format("true"))
        await page.clock.fast_forward(REFRESH_MS)
        await watched.evaluate(HIDE.format("false"))
        await page.clock.fast_forward(REFRESH_MS)
        await expect(shown).to_have_text("refreshed 2")  # none while the tab was behind another one
        await page.get_by_role("button", name="Stop refreshing").click()
        start = page.get_by_role("button", name="Refresh every 10 s")
        await expect(start).to_be_visible()
        await page.clock.fast_forward(REFRESH_MS)
        assert len(sent) == 2
        await start.click()
        await expect(shown).to_have_text("refreshed 3")
        note = page.locator("[data-live-note]")
        await expect(note).to_have_text(FRESH)
        await page.unroute("**/admin/api/*")
        await page.route("**/admin/api/*", lambda route: route.fulfill(status=401))  # an ended session
        await page.clock.fast_forward(REFRESH_MS)
        await expect(note).to_have_text(STALE)
        await watched.check()
        await page.unroute("**/admin/api/*")
        await page.clock.fast_forward(REFRESH_MS)
        await expect(note).to_have_text(FRESH)


async def test_findings_and_trends_are_refreshed_like_figures(browser: Browser, site: Site) -> None:
    """A list is drawn again when its items change, with links of its own; one that does not change keeps the focus."""
    finding = {
        "level": "stopped",
        "text": "<b>No node</b>",
        "alert": "ChainAway",
        "command": None,
        "page": "/chains",
    }
    command = {
        "level": "upkeep",
        "text": "Old",
        "alert": None,
        "command": "tollway gateway doctor",
        "page": None,
    }
    answers = [[finding, command], [finding, command], []]
    usual = ["0.25", "0.25", None]
    async with watch_operator_page(browser, await site.make_link()) as watched:
        page = watched.page

        async def answer(route: Route) -> None:
            response = await route.fetch()
            content = await response.json()
            content["findings"] = answers.pop(0)
            content["trends"]["callsPerSecond"] = {"usual": usual.pop(0), "outline": "M0 16v-9h5v9z"}
            content["outside"]["unknownCalls"] = bool(content["findings"])
            await route.fulfill(response=response, json=content)

        await page.clock.install()
        await page.route("**/admin/api/overview", answer)
        await watched.goto("/")
        findings = page.locator("[data-live-list] > li")
        await page.clock.fast_forward(REFRESH_MS)
        await expect(findings).to_have_count(2)
        await expect(findings.first).to_contain_text("stopped <b>No node</b>")
        await expect(findings.first.get_by_role("link", name="ChainAway")).to_have_attribute(
            "href", "/runbooks/ChainAway"
        )
        await expect(findings.first.get_by_role("link", name="Look")).to_have_attribute("href", "/chains")
        await expect(findings.last.get_by_role("link")).to_have_count(0)
        await expect(findings.last.locator("code")).to_have_text("tollway gateway doctor")
        await expect(page.locator("[data-live-outline]").first).to_have_attribute("d", "M0 16v-9h5v9z")
        trend = page.locator('[data-live="trends.callsPerSecond.usual"]')
        tile = page.locator(".totals > div", has_text="Calls of unknown outcome")
        await expect(trend).to_have_text("0.25")
        await expect(tile).to_contain_text("▲ above normal")
        await watched.check()
        await findings.first.get_by_role("link", name="Look").focus()
        await page.clock.fast_forward(REFRESH_MS)
        await expect(findings.first.get_by_role("link", name="Look")).to_be_focused()
        await page.clock.fast_forward(REFRESH_MS)
        await expect(page.get_by_text("Nothing needs you now")).to_be_visible()
        await expect(findings).to_have_count(0)
        await expect(trend).to_be_hidden()
        await expect(tile.locator(".outside")).to_be_hidden()
        await watched.check()


async def test_the_keyboard_alone_suspends_restores_blocks_and_audits(browser: Browser, site: Site) -> None:
    async with watch_operator_page(browser, await site.make_link()) as watched:
        page = watched.page
        await watched.push('nav a[href="/listings"]')
        await page.wait_for_url("**/listings")
        await watched.push("details summary")
        await watched.tab_to('[id^="suspend-"]')
        await page.keyboard.type("under review")
        await watched.push('[action$="/suspension"] button')
        await expect(page.get_by_role("button", name="Restore Sample quotes")).to_be_visible()
        await watched.push('[action$="/suspension"] button')
        await expect(page.get_by_text("No listing is suspended.")).to_be_visible()
        await watched.push('nav a[href="/wallets"]')
        await page.wait_for_url("**/wallets")
        await watched.tab_to("#address")
        await page.keyboard.type(WALLET)
        await watched.push('[action="/admin/api/wallets/block"] button')
        await expect(page.get_by_role("button", name="Unblock")).to_be_visible()
        await watched.push('[action$="/block"] button')
        await expect(page.get_by_role("button", name="Unblock")).to_be_hidden()
        await watched.push('nav a[href="/books"]')
        await page.wait_for_url("**/books")
        await watched.push('[action="/admin/api/audit"] button')
        await expect(page.get_by_text("This gateway process has run no audit")).to_be_hidden()


async def test_without_javascript_the_figures_are_there_and_no_button_promises_more(
    browser: Browser, site: Site
) -> None:
    async with watch_page(browser, site.admin_url, java_script_enabled=False) as watched:
        await watched.goto((await site.make_link()).removeprefix(site.admin_url))
        await watched.page.get_by_role("button", name="Sign in").click()
        for path in ("/", "/chains", "/gas", "/books"):
            assert await watched.goto(path) == 200
            await expect(watched.page.locator("[data-live]").first).to_have_text(re.compile("."))
            await expect(watched.page.locator("[data-live-switch]")).to_be_hidden()


async def test_signing_out_ends_the_session(browser: Browser, site: Site) -> None:
    async with watch_operator_page(browser, await site.make_link()) as watched:
        await watched.page.get_by_role("button", name="Sign out").click()
        await expect(watched.page.get_by_text("tollway gateway admin link")).to_be_visible()
        assert await watched.goto("/") == 401
