"""Pay and try in a browser: each rail, each step that a wallet can refuse, a changed listing, and reloads while a payment may still move.

The wallet signs with a key of the sandbox; the books and the provider's own log say what happened.
"""

import json
from hashlib import sha256
from typing import Any

import pytest
from playwright.async_api import Browser, FilePayload, Request, expect

from tests.system.browser.call_panel import Site, edit, open_panel, pay_button, run_site, site, slip, stamp
from tests.system.browser.watched_page import watch_page

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEPS = (
    "eth_requestAccounts",
    "wallet_switchEthereumChain",
    "wallet_addEthereumChain",
    "eth_signTypedData_v4",
)
DECLINED = "You declined. Nothing has moved."


# ---- Each rail.


async def test_a_call_is_paid_by_a_signature_from_a_wallet_on_the_wrong_chain(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet()
    async with watch_page(browser, site.gateway.base_url) as watched:
        page = watched.page
        await wallet.install(watched.context)
        await watched.goto("/")
        await page.get_by_role("searchbox").fill("sample")
        await page.get_by_role("button", name="Search").click()
        await page.locator(f'a[href="/apis/{site.apis["paid"]}"]').click()
        await page.get_by_label("symbol").fill("BTC")
        await page.get_by_role("button", name="Pay 0.01 USDC and call").click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(stamp(page)).to_be_in_viewport(ratio=1)
        printed = await slip(page).inner_text()
        for words in (
            "0.01 USDC",
            str(site.provider.address),
            str(wallet.accounts[0].address),
            "Sandbox",
            "HTTP 200",
            "call_",
        ):
            assert words in printed
        await expect(page.locator("[data-answer]")).to_contain_text('"symbol": "BTC"')
        link = page.locator('[data-slip] a[href^="https://explorer.example.com/tx/0x"]')
        assert await link.get_attribute("rel") == "noreferrer noopener"
        await watched.check()
    (call,) = await site.calls(wallet)
    assert (call["status"], call["payment"]["state"], call["path"]) == ("succeeded", "charged", "/quote/BTC")
    assert call["payment"]["transaction"] in printed
    counts = wallet.counts
    assert counts["eth_signTypedData_v4"] == counts["wallet_addEthereumChain"] == 1
    assert wallet.wrong == []
    await site.check_books()


@pytest.mark.parametrize(
    ("api", "target", "label", "value"),
    [
        ("paid", "/quote/BTC", "symbol", "BTC"),
        (
            "any path",
            "/status/200?x=%26&y=1",
            "Path below the endpoint, with its query",
            "/status/200?x=%26&y=1",
        ),
    ],
)
async def test_the_page_of_a_402_leads_to_the_form_of_its_call(
    browser: Browser, site: Site, api: str, target: str, label: str, value: str
) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with watch_page(browser, site.gateway.base_url) as watched:
        page = watched.page
        await wallet.install(watched.context)
        assert await watched.goto(f"/api/v2/gateway/{site.apis[api]}{target}") == 402
        await page.get_by_role("link", name="Pay and call from a wallet").click()
        await expect(page.get_by_label(label)).to_have_value(value)
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await watched.check()
    (call,) = await site.calls(wallet)
    assert (call["method"], call["path"], call["payment"]["state"]) == (
        "GET",
        target.partition("?")[0],
        "charged",
    )


async def test_a_transaction_pays_with_two_confirmations_and_its_rest_pays_the_next_call(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_label("Calls to pay for at once").fill("2")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(slip(page)).to_contain_text("0.01 USDC")
        assert wallet.counts["eth_sendTransaction"] == 1
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Credit")
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 1
    calls = await site.calls(wallet)
    assert [call["payment"]["state"] for call in calls] == ["charged", "charged"]
    assert len({call["payment"]["transaction"] for call in calls}) == 1
    await site.check_books()


async def test_the_button_is_reached_above_the_keyboard_of_a_phone(browser: Browser, site: Site) -> None:
    """The keyboard takes its height from the page (`interactive-widget`), so this is a page of the height that is left."""
    async with open_panel(browser, site, None, "free", viewport={"width": 320, "height": 260}) as watched:
        page = watched.page
        content = await page.locator("meta[name=viewport]").get_attribute("content")
        assert "interactive-widget=resizes-content" in str(content)
        await expect(pay_button(page)).to_be_enabled()  # it is dead for a moment
        await page.get_by_label("symbol").focus()
        await page.keyboard.press("Tab")
        await expect(pay_button(page)).to_be_focused()
        await expect(pay_button(page)).to_be_in_viewport(ratio=1)


async def test_credit_of_the_wallet_is_found_in_another_tab(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_role("button", name="Look for credit").click()
        await expect(slip(page)).to_contain_text("Among the newest 100 payments of this wallet, no transfer")
        await page.get_by_label("Calls to pay for at once").fill("2")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    async with open_panel(browser, site, wallet, viewport={"width": 320, "height": 800}) as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_role("button", name="Look for credit").click()
        await expect(slip(page)).to_contain_text("0.01 USDC", timeout=30_000)
        await expect(slip(page)).to_contain_text("The next call is paid from it")
        await watched.check()
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_sendTransaction"] == 1
    calls = await site.calls(wallet)
    assert len({call["payment"]["transaction"] for call in calls}) == 1
    assert len(calls) == 2
    await site.check_books()


async def test_the_confirmations_of_a_transaction_are_counted_on_the_ticket(
    browser: Browser, site: Site
) -> None:
    """Blocks come one by one here."""
    wallet = await site.wallet(chain_id=84532)
    rpc = site.cluster.driver.rpc
    await site.blocks.stop()
    try:
        async with open_panel(browser, site, wallet) as watched:
            page = watched.page
            count = slip(page).locator(".ticket-line", has_text="Confirmations")
            await page.get_by_label("a transaction on Sandbox").check()
            await pay_button(page).click()
            await expect(slip(page)).to_contain_text("Paid in")
            assert await count.count() == 0
            await rpc("evm_mine")
            await expect(count).to_contain_text("1 of 2", timeout=30_000)
            await watched.check()
            await rpc("evm_mine")
            await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
            await expect(count).to_contain_text("2 of 2")
            await expect(slip(page)).not_to_contain_text("Asking again in")
    finally:
        site.blocks.start()
    assert wallet.counts["eth_sendTransaction"] == 1


async def test_printing_the_page_of_an_api_shows_the_ticket_alone(browser: Browser, site: Site) -> None:
    """Once there is a ticket. Before it, the page prints what the API sells."""
    async with open_panel(browser, site, None, "free") as watched:
        page = watched.page
        await page.emulate_media(media="print")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await expect(page.locator("#operations")).to_be_visible()
        await page.emulate_media(media="screen")
        await expect(page.get_by_role("button", name="Print")).to_be_hidden()
        await page.get_by_role("button", name="Call").click()
        await expect(stamp(page)).to_have_text("FREE")
        await page.emulate_media(media="print")
        await expect(page.locator(".ticket")).to_be_visible()
        await expect(stamp(page)).to_be_visible()
        text = await watched.evaluate("document.body.innerText")
        for gone in ("Try it", "Operations", "Quality", "Skip", '"currency"', "endpoint"):
            assert gone not in text, gone
        await page.emulate_media(media="screen")
        await watched.evaluate("globalThis.print = () => { document.title = 'printed'; }; true")
        await page.get_by_role("button", name="Print").click()
        await expect(page).to_have_title("printed")


async def test_a_body_is_covered_by_the_signature_of_a_transaction(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet, operation="echo") as watched:
        page = watched.page
        await page.get_by_label("a transaction on Sandbox").check()
        await page.get_by_label("Body").fill('{"words": "größer – ' + "x" * 300 + '"}')
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Paid in", timeout=30_000)
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(page.locator("[data-answer]")).to_contain_text('"method": "POST"')


async def test_a_free_api_needs_no_wallet(browser: Browser, site: Site) -> None:
    async with open_panel(browser, site, None, "free") as watched:
        page = watched.page
        await page.get_by_role("button", name="Call").click()
        await expect(stamp(page)).to_have_text("FREE")
        await expect(page.locator("[data-answer]")).to_contain_text('"currency": "USD"')


async def test_a_stream_is_shown_as_it_comes(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet, operation="stream_ticks") as watched:
        page = watched.page
        await page.get_by_label("count").fill("3")
        await page.get_by_label("interval").fill("0.3")
        await pay_button(page).click()
        await expect(page.locator("[data-answer] pre")).to_contain_text('"number": 1', timeout=30_000)
        await expect(page.locator("[data-answer] pre")).to_contain_text('"number": 3', timeout=30_000)
    assert len(await site.calls(wallet)) == 1


# ---- What a wallet refuses.


@pytest.mark.parametrize("step", STEPS)
async def test_declining_leaves_nothing_in_the_books_and_one_sentence(
    browser: Browser, site: Site, step: str
) -> None:
    wallet = await site.wallet(declines={step})
    async with open_panel(
        browser, site, wallet, viewport={"width": 320, "height": 800}, color_scheme="dark"
    ) as watched:
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(DECLINED)
        assert (await slip(watched.page).inner_text()).count(DECLINED) == 1
        await watched.check()
        wallet.declines.clear()
        await pay_button(watched.page).click()
        await expect(stamp(watched.page)).to_have_text("CHARGED", timeout=30_000)
    assert len(await site.calls(wallet)) == 1


async def test_declining_a_transaction_leaves_nothing_in_the_books(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, declines={"eth_sendTransaction"})
    async with open_panel(browser, site, wallet) as watched:
        await watched.page.get_by_label("a transaction on Sandbox").check()
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(DECLINED)
        await watched.page.reload()
        await expect(pay_button(watched.page)).to_have_text("Connect a wallet, pay 0.01 USDC and call")
    assert await site.calls(wallet) == []


async def test_a_wallet_that_stays_on_another_chain_signs_nothing(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(lies=True, known={84532})
    async with open_panel(browser, site, wallet) as watched:
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text("Choose Sandbox (chain id 84532) in your wallet")
    assert wallet.counts["eth_signTypedData_v4"] == 0


async def test_an_account_that_changes_signs_nothing(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, next_account=await site.cluster.wallet())
    async with open_panel(browser, site, wallet) as watched:
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(
            "The wallet changed its account. Nothing was signed."
        )
    assert wallet.counts["eth_signTypedData_v4"] == 0


async def test_too_little_money_is_shown_before_anything_is_signed(browser: Browser, site: Site) -> None:
    from tollway.sandbox.chain import make_account

    poor = make_account("poor")
    wallet = await site.wallet(chain_id=84532, accounts=[poor])
    async with open_panel(browser, site, wallet) as watched:
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(
            "The wallet has 0 USDC and the call costs 0.01 USDC on Sandbox."
        )
        assert (await slip(watched.page).inner_text()).count(str(poor.address)) == 2
    assert wallet.counts["eth_signTypedData_v4"] == 0


async def test_without_a_wallet_the_button_leads_to_the_programs_and_nothing_else(
    browser: Browser, site: Site
) -> None:
    """Not even a field that is required is asked for."""
    async with open_panel(browser, site, None) as watched:
        page = watched.page
        sent: list[str] = []
        page.on("request", lambda request: sent.append(request.url))
        await page.get_by_label("symbol").fill("")
        await expect(pay_button(page)).to_have_text("No wallet here: call from a program")
        await expect(pay_button(page)).to_be_enabled()
        await pay_button(page).press("Enter")
        heading = page.get_by_role("heading", name="From a program")
        await expect(heading).to_be_focused()
        await pay_button(page).click()
        await expect(heading).to_be_focused()
        await expect(heading).to_be_in_viewport()
        assert await watched.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"
        await expect(page.locator("[data-no-wallet]")).to_contain_text("No wallet was found in this browser.")
        await expect(page.locator("[data-ticket]")).to_be_hidden()
        assert sent == []


async def test_the_button_names_each_step_of_a_wallet(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await expect(pay_button(page)).to_have_text("Connect a wallet, pay 0.01 USDC and call")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(pay_button(page)).to_have_text("Pay 0.01 USDC and call")


async def test_the_reader_chooses_one_of_several_wallets(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, names=("First wallet", "Second wallet"))
    async with open_panel(browser, site, wallet) as watched:
        await pay_button(watched.page).click()
        await watched.page.get_by_role("button", name="Second wallet").click()
        await expect(stamp(watched.page)).to_have_text("CHARGED", timeout=30_000)


async def test_a_silent_wallet_is_named_after_a_minute(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532, silences={"eth_requestAccounts"})
    async with watch_page(browser, site.gateway.base_url) as watched:
        await watched.page.clock.install()
        await wallet.install(watched.context)
        await watched.goto(f"/apis/{site.apis['paid']}")
        await watched.page.clock.run_for(1_000)
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text("0.01 USDC")
        await watched.page.clock.run_for(500)
        await watched.page.clock.run_for(61_000)
        await expect(slip(watched.page)).to_contain_text("Look at your wallet")


# ---- A listing that changes between the page and the click.


async def test_a_higher_price_is_asked_again(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet, "edited") as watched:
        await edit(site, pricePerRequest="0.03")
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(
            "The price is now 0.03 USDC; this page showed 0.01 USDC."
        )
        assert wallet.counts == {}
        await watched.page.get_by_role("button", name="Pay 0.03 USDC and call").click()
        await expect(stamp(watched.page)).to_have_text("CHARGED", timeout=30_000)
    (call,) = await site.calls(wallet)
    assert call["price"] == "0.03"
    await edit(site, pricePerRequest="0.01")


async def test_another_payee_stops(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet, "edited") as watched:
        other = await site.cluster.wallet()
        await edit(site, payTo=str(other.address))
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(
            "The gateway asks for another payment than this page shows."
        )
    assert wallet.counts == {}
    await edit(site, payTo=str(site.provider.address))


@pytest.mark.parametrize("way", ["a signature on Sandbox", "a transaction on Sandbox"])
async def test_another_token_stops(browser: Browser, site: Site, way: str) -> None:
    """The listing is sold for the native currency now, at the same number."""
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet, "edited") as watched:
        await watched.page.get_by_label(way).check()
        await edit(site, currency="ETH")
        await pay_button(watched.page).click()
        await expect(slip(watched.page)).to_contain_text(
            "The gateway asks for another payment than this page shows. Nothing was signed."
        )
        await watched.check()
    assert wallet.counts == {}
    assert await site.calls(wallet) == []
    await edit(site)


# ---- Reloads and outcomes that are not known yet.


async def test_a_reload_after_the_signature_sends_the_same_payment(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        paid = 0

        async def lose(route: Any) -> None:
            nonlocal paid
            if "payment-signature" in route.request.headers:
                paid += 1
                await route.abort()
            else:
                await route.continue_()

        await page.route("**/api/v2/gateway/**", lose)
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Asking again in", timeout=30_000)
        assert paid > 0
        await page.unroute("**/api/v2/gateway/**")
        await page.reload()
        await expect(slip(page)).to_contain_text("A payment of this page has no result yet.")
        watched.complaints.clear()  # the browser's lines about the lost requests
        await watched.check()
        await page.get_by_role("button", name="Ask again").click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_signTypedData_v4"] == 1
    assert len(await site.calls(wallet)) == 1


async def test_an_unknown_outcome_is_one_charge_also_after_a_reload(browser: Browser, site: Site) -> None:
    async with run_site(site.cluster, site.blocks, TOLLWAY_LIMIT_SETTLE_WAIT_S="1") as impatient:
        wallet = await impatient.wallet(chain_id=84532)
        served = impatient.cluster.provider.count("/quote/XMR")
        await impatient.blocks.stop()
        try:
            async with open_panel(browser, impatient, wallet) as watched:
                page = watched.page
                await page.get_by_label("symbol").fill("XMR")
                answers: list[int] = []
                page.on("response", lambda response: answers.append(response.status))
                await pay_button(page).click()
                await expect(slip(page)).to_contain_text("Asking again in", timeout=100_000)
                assert 503 in answers
                await page.reload()
                await page.get_by_role("button", name="Ask again").click()
                impatient.blocks.start()
                await expect(stamp(page)).to_have_text("CHARGED", timeout=60_000)
        finally:
            impatient.blocks.start()
        assert wallet.counts["eth_signTypedData_v4"] == 1
        (call,) = await impatient.calls(wallet)
        assert call["payment"]["state"] == "charged"
        assert impatient.cluster.provider.count("/quote/XMR") == served + 1
        await impatient.check_books()


async def test_a_failed_call_is_released_and_says_so_as_large_as_a_charge(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label("symbol").fill("not-a-symbol")
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("RELEASED", timeout=30_000)
        await expect(slip(page)).to_contain_text("You were not charged.")
    (call,) = await site.calls(wallet)
    assert call["payment"]["state"] == "released"


async def test_a_click_of_a_script_pays_nothing(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet) as watched:
        await expect(pay_button(watched.page)).to_be_enabled()
        await watched.evaluate(
            "document.querySelector('[data-pay]').click(), document.querySelector('.call-form').requestSubmit(), true"
        )
        await expect(watched.page.locator("[data-ticket]")).to_be_hidden()
    assert wallet.counts == {}


async def test_the_button_is_dead_for_a_moment_after_the_page_came_to_the_front(
    browser: Browser, site: Site
) -> None:
    async with open_panel(browser, site, None) as watched:
        await expect(pay_button(watched.page)).to_be_enabled()
        await watched.evaluate("dispatchEvent(new Event('focus')), true")
        assert await watched.evaluate("document.querySelector('[data-pay]').disabled")
        await expect(pay_button(watched.page)).to_be_enabled()


async def test_without_javascript_the_panel_says_what_it_needs(browser: Browser, site: Site) -> None:
    async with watch_page(browser, site.gateway.base_url, java_script_enabled=False) as watched:
        await watched.goto(f"/apis/{site.apis['paid']}")
        assert "Paying from a wallet needs JavaScript" in await watched.page.locator("#try").inner_text()
        assert not await pay_button(watched.page).is_visible()
        await watched.page.locator("#operation").select_option("echo")
        await watched.page.get_by_role("button", name="Show").click()
        assert "operation=echo" in watched.page.url


async def test_the_button_rests_after_a_call(browser: Browser, site: Site) -> None:
    """A second click that was meant for the first call must not pay again. The clock of the page stands still."""
    async with watch_page(browser, site.gateway.base_url) as watched:
        page = watched.page
        await page.clock.install(time=0)
        await watched.goto(f"/apis/{site.apis['free']}?operation=get_quote")
        await page.clock.pause_at(60_000)
        await page.get_by_role("button", name="Call").click()
        await expect(stamp(page)).to_have_text("FREE")
        await expect(page.locator("[data-answer]")).to_contain_text('"currency": "USD"')
        await page.clock.run_for(400)
        await expect(pay_button(page)).to_be_disabled()
        await page.clock.run_for(200)
        await expect(pay_button(page)).to_be_enabled()


async def test_a_call_of_the_page_carries_no_cookie(browser: Browser, site: Site) -> None:
    async with open_panel(browser, site, None, "free") as watched:
        page = watched.page
        await watched.context.add_cookies([{"name": "theme", "value": "dark", "url": site.gateway.base_url}])
        async with page.expect_request("**/api/v2/gateway/**") as waiting:
            await page.get_by_role("button", name="Call").click()
        await expect(stamp(page)).to_have_text("FREE")
        assert "cookie" not in await (await waiting.value).all_headers()


async def test_a_wallet_is_asked_for_methods_of_the_list_alone(browser: Browser, site: Site) -> None:
    async with open_panel(browser, site, None) as watched:
        wallet_module = await watched.evaluate(
            "document.querySelector('script[src*=\"/ui/\"]').src.replace(/[^/]+$/, 'wallet.js')"
        )
        answers = {}
        for method in ("eth_chainId", "eth_sign", "eth_signTransaction", "wallet_requestPermissions"):
            answers[method] = await watched.evaluate(
                f"import('{wallet_module}').then(({{ ask }}) => ask({{ provider: {{ request: async () => 'asked' }} }}, '{method}'))"
                ".catch((error) => error.message)"
            )
    assert answers.pop("eth_chainId") == "asked"
    assert answers == {method: f"this page asks no wallet for {method}" for method in answers}


# ---- Forms and files.


IMAGE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
WRITTEN = (
    b'name="language"\r\n\r\nen\r\n',
    b'name="pages"\r\n\r\n2\r\n',
    b'name="file"; filename="c%22a%0D%0At.png"',
)


@pytest.mark.parametrize("rail", ["x402", "tx"])
async def test_a_file_is_uploaded_in_the_same_bytes_without_and_with_its_payment(
    browser: Browser, site: Site, rail: str
) -> None:
    wallet = await site.wallet(chain_id=84532)
    sent: list[tuple[str, bytes]] = []

    def record(request: Request) -> None:
        if request.method == "POST" and request.url.endswith("/echo"):
            sent.append((request.headers["content-type"], request.post_data_buffer or b""))

    async with open_panel(browser, site, wallet, "uploads", operation="read_page") as watched:
        page = watched.page
        page.on("request", record)
        chosen = [FilePayload(name='c"a\r\nt.png', mimeType="image/png", buffer=IMAGE)]
        await page.get_by_label("file required").set_input_files(chosen)
        await page.get_by_label("language required").select_option("en")
        await page.get_by_label("pages").fill("[1, 2]")
        if rail == "tx":
            await page.get_by_label("a transaction on Sandbox").check()
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        answer = json.loads(await page.locator("[data-answer] pre").inner_text())
    first, *others = sent
    assert others, "one request without the payment, and at least one with it"
    assert set(others) == {first}
    content_type, body = first
    assert content_type.startswith("multipart/form-data; boundary=")
    assert IMAGE in body
    assert [part for part in WRITTEN if part not in body] == []
    assert b'name="more"' not in body, "an optional field without a file is left out"
    assert answer["body"] == {"bytes": len(body), "sha256": sha256(body).hexdigest()}
    assert ["Content-Type", content_type] in answer["headers"]
    await site.check_books()


async def test_a_form_is_written_as_its_document_says(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(declines={"eth_requestAccounts"})
    async with open_panel(browser, site, wallet, "uploads", operation="order") as watched:
        page = watched.page
        values = {
            "to": "a b&c=é~*",
            "list": "[1, 2]",
            "joined": '["x", 2]',
            "deep": '{"a": {"b": [3, null]}, "c": null}',
            "object": '{"a": 1}',
            "meta": "[4]",
        }
        for name, value in values.items():
            await page.get_by_label(name, exact=True).fill(value)
        async with page.expect_request("**/echo/orders") as asked:
            await pay_button(page).click()
        request = await asked.value
        await expect(slip(page)).to_contain_text(DECLINED)
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert request.post_data == (
        "to=a+b%26c%3D%C3%A9%7E*&list=1&list=2&joined=x%2C2&deep%5Ba%5D%5Bb%5D%5B0%5D=3"
        "&object=%7B%22a%22%3A1%7D&meta=%5B4%5D"
    )


async def test_a_file_that_is_too_large_for_the_page_sends_and_signs_nothing(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=84532)
    async with open_panel(browser, site, wallet, "uploads", operation="read_page") as watched:
        page = watched.page
        large = FilePayload(name="a.bin", mimeType="application/octet-stream", buffer=bytes(1024 * 1024))
        await page.get_by_label("file required").set_input_files([large])
        await pay_button(page).click()
        await expect(page.locator("[data-ticket]")).to_contain_text("at most 1024 KiB")
    assert wallet.counts["eth_signTypedData_v4"] == 0
