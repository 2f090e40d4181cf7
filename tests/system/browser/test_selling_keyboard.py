"""A provider with a keyboard and a wallet, over a whole gateway: signs in, publishes by form with a document, repairs three errors, proves the endpoint, edits an older version,
pauses, and decides a held call. Every element that gets the focus on the way shows it, and the focus goes to the first error."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.gateway_cluster import plain
from tests.kit.upstream import Arrived, LoopbackUpstream, run_upstream
from tests.kit.upstream import plain as answered
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage, watch_page

pytestmark = pytest.mark.asyncio(loop_scope="session")

WELL_KNOWN = "/.well-known/tollway-verification"
DOCUMENT = json.dumps(
    {
        "openapi": "3.1.0",
        "info": {"title": "Weather", "version": "1"},
        "paths": {
            "/cities/{city}": {"get": {"summary": "Weather of a city"}},
            "/slow": {"get": {"summary": "Weather of a year"}},
        },
    }
)


@pytest_asyncio.fixture(loop_scope="session")
async def upstream() -> AsyncIterator[LoopbackUpstream]:
    async with run_upstream() as upstream:
        yield upstream


class Keyboard:
    """A reader without a mouse."""

    def __init__(self, watched: WatchedPage) -> None:
        self._watched = watched
        self.press = watched.page.keyboard.press
        self.push = watched.push

    async def write(self, name: str, text: str) -> None:
        """Goes to a field and writes it anew."""
        await self._watched.tab_to(f'[name="{name}"]')
        await self.press("Control+A")
        await self._watched.page.keyboard.insert_text(text)

    async def focused(self) -> str:
        return str(await self._watched.evaluate("document.activeElement.id"))


async def test_the_keyboard_alone_publishes_proves_edits_pauses_and_decides(
    browser: Browser, cluster: Any, upstream: LoopbackUpstream
) -> None:
    provider, caller = await cluster.wallets(2)
    wallet = WalletDouble(driver=cluster.driver, accounts=[provider], chain_id=int(cluster.driver.chain_id))
    async with cluster.gateway() as gateway, watch_page(browser, gateway.base_url) as watched:
        page, keys = watched.page, Keyboard(watched)
        await wallet.install(watched.context)

        # Signs in, from the page that needs it.
        await watched.goto("/my/apis/new")
        await expect(page.get_by_role("button", name="Test wallet")).to_be_visible()
        await keys.push("#signin-wallets button")
        await page.wait_for_url("**/my/apis/new")

        # Three errors: the focus is on the first one, and each is repaired where it is.
        await keys.write("endpoint", "ftp://x")
        await keys.write("pricePerRequest", "cheap")
        await keys.push("details:has([name=name]) > summary")
        await keys.write("name", "Weather of the open sea")
        await keys.push("details:has([name=operations]) > summary")
        await keys.write("operations", "FETCH reports")
        await keys.push("details:has([name=timeoutSeconds]) > summary")
        await keys.write("timeoutSeconds", "1")
        await keys.push("details:has([name=openapi]) > summary")
        await keys.write("openapi", DOCUMENT)
        await keys.push('button[value="check"]')
        await expect(page.locator(".editor .field-error")).to_have_count(3)
        assert await keys.focused() == "endpoint"
        await watched.check()
        await keys.press("Control+A")
        await page.keyboard.insert_text(upstream.url)
        await keys.write("pricePerRequest", "0.01")
        await keys.write("operations", "GET /cities/{city} 0.02")
        await keys.push('button[value="check"]')
        await expect(page.locator("#checked")).to_be_visible()
        await expect(page.locator("main")).to_contain_text("127.0.0.1")
        await keys.push('button[value="write"]')
        await expect(page.get_by_role("status")).to_contain_text("Published.")
        api_id = page.url.rpartition("/")[2].partition("?")[0]

        # Proves the endpoint by a file.
        contents = await page.locator("section[aria-labelledby=ownership] code.address").all_inner_texts()
        (line,) = [text for text in contents if text.startswith("tollway")]

        async def serve(arrived: Arrived, writer: asyncio.StreamWriter) -> None:
            if arrived.target == WELL_KNOWN:
                await answered(line.encode() + b"\n")(arrived, writer)
            elif arrived.target == "/slow":
                await asyncio.Event().wait()
            else:
                await answered(b"{}")(arrived, writer)

        upstream.answer = serve
        await keys.push('form[action*="/ownership"] button')
        await expect(page.locator(".evidence")).to_contain_text("proved")
        await watched.check()

        # A test call costs nothing. The focus after the check is behind it.
        await watched.goto(f"/my/apis/{api_id}")
        await keys.write("path", "/cities/oslo")
        await keys.push('form[action*="/trial"] .actions button')
        await expect(page.locator("section[aria-labelledby=trial]")).to_contain_text("HTTP 200")
        await watched.check()
        await watched.goto(f"/my/apis/{api_id}")

        # An edit of an older version shows both, and the form is kept.
        draft = cluster.draft(endpoint=upstream.url, timeoutSeconds=1, description="Written by a program.")
        reply = await cluster.control(gateway, provider, "PUT", f"/apis/{api_id}", draft)
        assert reply.status == 200, reply.body
        await keys.write("pricePerRequest", "0.03")
        await keys.push('button[value="write"]')
        await expect(page.get_by_role("alert")).to_contain_text("Nothing was saved")
        assert await keys.focused() == "changed"
        await watched.check()
        await expect(page.locator("#pricePerRequest")).to_have_value("0.03")
        await keys.push('button[value="write"]')
        await expect(page.get_by_role("status")).to_contain_text("Saved.")

        # A call without a response is held until its provider decides.
        paid = await cluster.send_tokens(caller, provider.address, 30_000)
        held = await cluster.call(gateway, api_id, "/slow", headers=plain(caller, paid))
        assert (held.status, held.state) == (504, "held"), held.body
        await keys.push('form[action$="/status"] button')
        await expect(page.get_by_role("status")).to_contain_text("Paused.")
        await keys.push('.mine a[href="/my/sales"]')
        await page.wait_for_url("**/my/sales")
        await keys.push('a[href^="/my/sales?state=held"]')
        await page.wait_for_url("**/my/sales?state=held**")
        await keys.push("tbody a")
        await page.wait_for_url("**/my/calls/**")
        await keys.push("details[name=decision] > summary")
        await watched.check()
        await keys.push('form[action$="/resolution"] button')
        await expect(page.locator(".ticket .stamp")).to_have_text("CHARGED")
        await watched.check()
        (call,) = await cluster.history(gateway, caller)
        assert (call["id"], call["payment"]["state"]) == (held.json["callId"], "charged")
    assert wallet.wrong == []
