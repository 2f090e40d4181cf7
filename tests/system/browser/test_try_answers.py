"""Pay and try in a browser, third part: answers that are not the gateway's, redirects, forged terms, the total of a transfer, and a wallet that moves to another chain at the last moment.

What the page does not know it does not say, and a payment that may have moved is never signed anew unless the reader asks for it.
"""

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.system.browser.call_panel import (
    CHAIN,
    OTHER_CHAIN,
    Site,
    open_panel,
    pay_button,
    site,
    slip,
    stamp,
)

__all__ = ["site"]

pytestmark = pytest.mark.asyncio(loop_scope="session")

CALLS = "**/api/v2/gateway/**"
BY_TRANSACTION = "a transaction on Sandbox"
NOT_KNOWN = "This answer does not say what became of the payment."
NOT_CHARGED = "You were not charged"
INTERNAL = {"code": "internal_error", "requestId": "req_1", "title": "Internal error", "detail": "Report it."}
LOST = {
    "a page of a proxy": {"status": 502, "content_type": "text/html", "body": "<h1>Bad gateway</h1>"},
    "a limit of a proxy": {"status": 429, "content_type": "text/html", "body": "<h1>Slow down</h1>"},
    "an internal error": {
        "status": 500,
        "headers": {
            "content-type": "application/problem+json",
            "tollway-payment-state": "none",
            "proxy-status": '"gateway"; error=proxy_internal_error',
        },
        "body": json.dumps(INTERNAL),
    },
}


async def replace_answers(
    page: Page, change: Callable[[Any], Awaitable[dict[str, Any]]], *, is_paid: bool
) -> None:
    """Requests with (or without) a payment still reach the gateway; their answers are replaced by what `change` makes of them."""

    async def answer(route: Any) -> None:
        if ("payment-signature" in route.request.headers) != is_paid:
            await route.continue_()
            return
        response = await route.fetch()
        await route.fulfill(**await change(response))

    await page.route(CALLS, answer)


@pytest.mark.parametrize("name", LOST)
async def test_an_answer_that_is_no_outcome_of_the_gateway_keeps_the_payment(
    browser: Browser, site: Site, name: str
) -> None:
    wallet = await site.wallet(chain_id=CHAIN)

    async def lose(response: Any) -> dict[str, Any]:
        return LOST[name]

    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await replace_answers(page, lose, is_paid=True)
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text(NOT_KNOWN, timeout=30_000)
        await expect(slip(page)).to_contain_text("Asking again in")
        await expect(slip(page)).not_to_contain_text(NOT_CHARGED)
        await expect(stamp(page)).to_have_count(0)
        await page.unroute(CALLS)
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
    assert wallet.counts["eth_signTypedData_v4"] == 1
    assert len(await site.calls(wallet)) == 1
    await site.check_books()


async def test_code_in_the_words_of_a_refusal_is_code_and_never_markup(browser: Browser, site: Site) -> None:
    refusal = {**INTERNAL, "code": "wallet_blocked", "detail": "`<b>key</b>` is <i>stolen</i>: `debt` ` left"}
    wallet = await site.wallet(chain_id=CHAIN)

    async def refuse(response: Any) -> dict[str, Any]:
        return {**LOST["an internal error"], "status": 403, "body": json.dumps(refusal)}

    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await replace_answers(page, refuse, is_paid=False)
        await pay_button(page).click()
        note = slip(page).locator(".ticket-note.bad")
        await expect(note).to_have_text("Internal error. <b>key</b> is <i>stolen</i>: debt ` left")
        await expect(note.locator("code")).to_have_text(["<b>key</b>", "debt"])
        await expect(note.locator("b, i")).to_have_count(0)


async def test_a_redirect_says_nothing_of_the_charge_and_is_paid_again_by_choice_alone(
    browser: Browser, site: Site
) -> None:
    wallet = await site.wallet(chain_id=CHAIN)
    async with open_panel(browser, site, wallet, "any path", operation="call") as watched:
        page = watched.page
        await page.get_by_label("Path below the endpoint").fill("/status/302")
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("The answer is a redirect", timeout=30_000)
        await expect(slip(page).locator('a[href="/my/calls"]')).to_be_visible()
        await expect(slip(page)).not_to_contain_text(NOT_CHARGED)
        await expect(stamp(page)).to_have_count(0)
        await page.reload()
        await expect(page.get_by_label("Pay for a new call")).to_be_visible()
        await watched.check()
        await pay_button(page).click()
        await expect(slip(page).locator(".bad")).to_have_count(1)
        assert wallet.counts["eth_signTypedData_v4"] == len(await site.calls(wallet)) == 1
        await page.get_by_label("Path below the endpoint").fill("/quote/ETH")
        await page.get_by_label("Pay for a new call").check()
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("CHARGED", timeout=30_000)
        await expect(page.get_by_label("Pay for a new call")).to_be_hidden()
    assert wallet.counts["eth_signTypedData_v4"] == len(await site.calls(wallet)) == 2
    await site.check_books()


async def test_a_redirect_without_a_payment_is_no_free_answer(browser: Browser, site: Site) -> None:
    async def redirect(response: Any) -> dict[str, Any]:
        return {"status": 302, "headers": {"location": "/elsewhere"}}

    async with open_panel(browser, site, None, "free") as watched:
        page = watched.page
        await replace_answers(page, redirect, is_paid=False)
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("The answer is a redirect")
        await expect(stamp(page)).to_have_count(0)
        await expect(pay_button(page)).to_have_text("Call")


# ---- Terms.


async def test_terms_are_shown_by_their_units_and_not_by_their_words(browser: Browser, site: Site) -> None:
    """The amount in words and the amount that is signed could differ: only what is signed is printed."""
    wallet = await site.wallet(chain_id=CHAIN)

    async def embellish(response: Any) -> dict[str, Any]:
        terms = await response.json()
        terms["payment"] |= {"amount": "0.000001", "currency": "CENT"}
        for option in terms["payment"]["options"]:
            option["amount"] = "1000000000"
        return {"response": response, "body": json.dumps(terms)}

    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await replace_answers(page, embellish, is_paid=False)
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("The price is now 1000 USDC; this page showed 0.01 USDC.")
        await expect(pay_button(page)).to_have_text("Connect a wallet, pay 1000 USDC and call")
        await expect(slip(page)).not_to_contain_text("CENT")
    assert wallet.counts == {}


async def test_terms_of_a_provider_open_no_wallet(browser: Browser, site: Site) -> None:
    """A relayed answer can look like a 402 of the gateway. It lacks the header that only the gateway writes."""
    wallet = await site.wallet(chain_id=CHAIN)

    async def forge(response: Any) -> dict[str, Any]:
        relayed = {**response.headers, "proxy-status": '"gateway"; received-status=402'}
        return {"response": response, "headers": relayed}

    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await replace_answers(page, forge, is_paid=False)
        await pay_button(page).click()
        await expect(stamp(page)).to_have_text("FREE")
        await expect(page.locator("[data-answer]")).to_contain_text("payment_required")
    assert wallet.counts == {}


@pytest.mark.parametrize("place", ["body", "header"])
async def test_terms_in_another_token_are_not_signed(browser: Browser, site: Site, place: str) -> None:
    """Also where only the header, which holds what is signed, names another token than the page."""
    wallet = await site.wallet(chain_id=CHAIN)
    other = "0x" + "ab" * 20

    async def change(response: Any) -> dict[str, Any]:
        terms = await response.json()
        if place == "body":
            for option in terms["payment"]["options"]:
                option["token"] = other
            return {"response": response, "body": json.dumps(terms)}
        required = json.loads(base64.b64decode(response.headers["payment-required"]))
        for one in required["accepts"]:
            one["asset"] = other
        header = base64.b64encode(json.dumps(required).encode()).decode()
        return {"response": response, "headers": {**response.headers, "payment-required": header}}

    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await replace_answers(page, change, is_paid=False)
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("asks for another payment than this page shows")
    assert wallet.counts["eth_signTypedData_v4"] == 0
    assert await site.calls(wallet) == []


# ---- What the wallet is asked for.


async def test_the_total_of_a_transfer_is_shown_before_the_wallet_opens(browser: Browser, site: Site) -> None:
    wallet = await site.wallet(chain_id=CHAIN, declines={"eth_requestAccounts"})
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        calls = page.get_by_label("Calls to pay for at once")
        await page.get_by_label(BY_TRANSACTION).check()
        await calls.fill("700")
        await expect(pay_button(page)).to_have_text("Connect a wallet, pay 7 USDC and call")
        assert await calls.get_attribute("autocomplete") == "off"
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("You declined. Nothing has moved.")
        await expect(slip(page).locator(".ticket-line", has_text="Total")).to_contain_text("7 USDC")
        await page.get_by_label("a signature on Sandbox").check()
        await expect(pay_button(page)).to_have_text("Connect a wallet, pay 0.01 USDC and call")
    assert wallet.counts["eth_sendTransaction"] == 0


@pytest.mark.parametrize("way", ["a signature on Sandbox", BY_TRANSACTION])
async def test_a_wallet_that_moves_to_another_chain_signs_and_sends_nothing(
    browser: Browser, site: Site, way: str
) -> None:
    wallet = await site.wallet(chain_id=CHAIN, last_chain=OTHER_CHAIN)
    async with open_panel(browser, site, wallet) as watched:
        page = watched.page
        await page.get_by_label(way).check()
        await pay_button(page).click()
        await expect(slip(page)).to_contain_text("Choose Sandbox (chain id 84532) in your wallet")
        await expect(pay_button(page)).to_have_text("Pay 0.01 USDC and call")
    assert wallet.counts["eth_signTypedData_v4"] == wallet.counts["eth_sendTransaction"] == 0
