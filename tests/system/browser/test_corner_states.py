"""Every page in its corner states: with rows in a wide light window and in a narrow dark one, empty, and as an error. In each axe finds nothing, nothing scrolls sideways, and the
page makes no report of its policy and no request to another host.
"""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.ledger_records import tx_hash
from tests.kit.signed_in import OTHER, READER, SELLER, THIRD
from tests.system.browser.corner_site import (
    HELD_CALLS,
    METERED,
    METERED_CALL,
    OWN,
    RETIRED,
    SAMPLE,
    STAMPS,
    CornerSite,
    at_corner,
    open_admin,
    run_corner_site,
)
from tests.system.browser.watched_page import WatchedPage

pytestmark = pytest.mark.asyncio(loop_scope="session")

WIDE, NARROW = ("light", 1280), ("dark", 320)
CORNERS = (WIDE, NARROW)
Rows = dict[str, tuple[str, int, str]]
"""Pages by name: the path, the status, and words that the page has in this state."""

PUBLIC_FULL: Rows = {
    "search": ("/", 200, "25 APIs"),
    "results": ("/?q=listing&tag=&sort=price&currency=USDC", 200, "Listing 17"),
    "API": (f"/apis/{SAMPLE}", 200, "A second paragraph"),
    "operation": (f"/apis/{SAMPLE}?operation=echo", 200, "POST /echo"),
    "metered API": (f"/apis/{METERED}?operation=get_quote", 200, "0.002 per 1,000 prompt tokens"),
    "metered operation": (f"/apis/{METERED}?operation=echo", 200, "up to 0.03 USDC"),
    "provider": (f"/providers/{SELLER.address}", 200, "Sells"),
    "provider of a metered API": (f"/providers/{READER.address}", 200, "up to"),
    "status": ("/status", 200, "eip155:84532"),
    "reference": ("/docs", 200, "Create a listing of an API"),
    "guide": ("/docs/guides/calling", 200, "Have a wallet in this browser"),
    "questions": ("/docs/guides/questions", 200, "Do I need ETH?"),
    "reference of an operation": ("/docs/operations/createApi", 200, "Create a listing of an API"),
    "reference of a schema": ("/docs/schemas/ListingDraft", 200, "ListingDraft"),
    "problems": ("/problems", 200, "payment_outcome_unknown"),
    "problem": ("/problems/payment-outcome-unknown", 200, "payment_outcome_unknown"),
    "sign in": ("/signin", 200, "Sign in"),
    "sign in, without the cookie": ("/signin?signed=yes&to=%2Fmy", 200, "did not keep the session"),
}
PUBLIC_EMPTY: Rows = {
    "search": ("/", 200, "Nothing is for sale here yet"),
    "results": ("/?q=nothing", 200, "Nothing was found"),
    "provider": (f"/providers/{THIRD.address}", 200, "Sells nothing here"),
    "status": ("/status", 200, "eip155:84532"),
}
NO_ROUTE = "route_not_found"
PUBLIC_ERRORS: Rows = {
    "filters": ("/?maxPrice=abc&minSuccessRate=7", 422, "a price is a decimal string"),
    "API": ("/apis/api_none", 404, "api_not_found"),
    "retired API": (f"/apis/{RETIRED}", 410, "api_retired"),
    "provider": ("/providers/0x12", 404, NO_ROUTE),
    "problem": ("/problems/none", 404, NO_ROUTE),
    "reference of an operation": ("/docs/operations/none", 404, NO_ROUTE),
    "reference of a schema": ("/docs/schemas/none", 404, NO_ROUTE),
    "path": ("/nowhere", 404, NO_ROUTE),
    "call without a payment": (f"/api/v2/gateway/{SAMPLE}/quote/ETH", 402, "0.01 USDC"),
    "metered call without a payment": (f"/api/v2/gateway/{METERED}/quote/ETH", 402, "up to 0.02 USDC"),
    "call of a retired API": (f"/api/v2/gateway/{RETIRED}/quote", 410, "api_retired"),
    "call of no API": ("/api/v2/gateway/api_none/quote", 404, "api_not_found"),
}
AWAY = "storage_unavailable"
PUBLIC_AWAY: Rows = {path: (path, 503, AWAY) for path in ("/", "/apis/api_1", f"/providers/{SELLER.address}")}

MY_FULL: Rows = {
    "overview": ("/my", 200, "USDC"),
    "overview of sales": ("/my/selling", 200, "USDC"),
    "calls": ("/my/calls", 200, "Weather of the open sea"),
    "calls sold": ("/my/calls?role=provider", 200, "34 calls"),
    "credit": ("/my/credit", 200, "0.23"),
    "spending": ("/my/spending", 200, "USDC"),
    "spending by API": ("/my/spending?groupBy=api", 200, "38 calls"),
    "spending by provider": ("/my/spending?groupBy=provider", 200, str(SELLER.address)),
    "spending by wallet": ("/my/spending?groupBy=wallet", 200, str(READER.address)),
    "sales": ("/my/sales", 200, "charged"),
    "sales by hour": ("/my/sales?step=hour", 200, "charged"),
    "held calls": ("/my/sales?state=held", 200, "held calls"),
    "APIs": ("/my/apis", 200, "Long Long"),
    "new API": ("/my/apis/new", 200, "Publish"),
    "API": (f"/my/apis/{OWN}", 200, "Ownership"),
    "metered API": (f"/my/apis/{METERED}", 200, "Callers read: up to 0.02 USDC"),
    "metered ticket": (f"/my/calls/{METERED_CALL}", 200, "Came back"),
    "wallets": ("/my/wallets", 200, str(OTHER.address)),
    "budgets": ("/my/budgets", 200, "revoked: buys nothing"),
    "budget": (f"/my/budgets/{OTHER.address}", 200, "Change the budget"),
    "acceptance": (f"/my/budgets/acceptance?owner={SELLER.address}", 200, "The policy of this owner"),
    **{f"ticket, {stamp}": (f"/my/calls/call_{number}", 200, stamp) for number, stamp in enumerate(STAMPS)},
    "ticket to decide": (f"/my/calls/{HELD_CALLS[0]}", 200, "Decide this call"),
}
MY_EMPTY: Rows = {
    "overview": ("/my", 200, "No call this month."),
    "overview of sales": ("/my/selling", 200, "This wallet sells no API."),
    "calls": ("/my/calls", 200, "This wallet has made no call yet"),
    "calls sold": ("/my/calls?role=provider", 200, "Your APIs have no calls yet"),
    "credit": ("/my/credit", 200, "No payment yet"),
    "spending": ("/my/spending", 200, "No call from"),
    "spending by wallet": ("/my/spending?groupBy=wallet", 200, "No call from"),
    "sales": ("/my/sales", 200, "No sales in the last 30 days"),
    "held calls": ("/my/sales?state=held", 200, "No held call"),
    "APIs": ("/my/apis", 200, "You sell no API yet"),
    "wallets": ("/my/wallets", 200, "You have read the books of no other wallet."),
    "budgets": ("/my/budgets", 200, "You have signed no policy."),
}
MY_ERRORS: Rows = {
    "calls": ("/my/calls?status=odd&from=yesterday", 422, "The filter was not understood"),
    "spending": ("/my/spending?from=2020-01-01&groupBy=colour", 422, "groupBy"),
    "sales": ("/my/sales?from=x", 422, "The filter was not understood"),
    "held calls": ("/my/sales?state=held&from=x", 422, "The filter was not understood"),
    "call": ("/my/calls/call_none", 404, "call_not_found"),
    "credit": ("/my/credit/0x12", 400, "invalid_request"),
    "API": ("/my/apis/api_none", 404, "api_not_found"),
    "budget": (f"/my/budgets/{THIRD.address}", 404, "budget_not_found"),
    "books of another wallet": (f"/my/calls?wallet={THIRD.address}", 404, NO_ROUTE),
}
MY_AWAY: Rows = {path: (path, 503, AWAY) for path in ("/my", "/my/calls", "/my/sales", "/my/apis/new")}

ADMIN_FULL: Rows = {
    "overview": ("/", 200, "Payments held"),
    "chains": ("/chains", 200, "127.0.0.1"),
    "gas": ("/gas", 200, "Signed, not mined"),
    "calls": ("/calls", 200, HELD_CALLS[0]),
    "transaction": (f"/calls?transaction={tx_hash('tx')}", 200, "No node gave a usable answer"),
    "listings": ("/listings", 200, "Restore Listing 12"),
    "search of listings": ("/listings?q=quotes", 200, "Suspend Sample quotes"),
    "wallets": ("/wallets", 200, "Unblock"),
    "books": ("/books", 200, "Release all held balances"),
    "acts": ("/audit-log", 200, "suspend_listing"),
    "runbooks": ("/runbooks", 200, "ChainAway"),
    "runbook": ("/runbooks/StorageAway", 200, "Is money at risk"),
    "link": ("/enter?code=odd", 200, "The link counts once"),
    "no link": ("/enter", 200, "tollway gateway admin link"),
}
ADMIN_EMPTY: Rows = {
    "overview": ("/", 200, "No node of"),
    "chains": ("/chains", 200, "not reachable"),
    "gas": ("/gas", 200, "This gateway has no gas key"),
    "calls": ("/calls", 200, "No call has an unknown outcome."),
    "listings": ("/listings", 200, "No listing is suspended."),
    "wallets": ("/wallets", 200, "No wallet is blocked."),
    "books": ("/books", 200, "none is recorded"),
    "acts": ("/audit-log", 200, "The audit log is empty."),
}
ADMIN_ERRORS: Rows = {
    "path": ("/nowhere", 404, "not_found"),
    "runbook": ("/runbooks/Unknown", 404, NO_ROUTE),
    "transaction": ("/calls?transaction=0x12", 400, "invalid_request"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CornerSite]:
    async with run_corner_site(tmp_path_factory.mktemp("corners")) as site:
        yield site


async def visit(watched: WatchedPage, rows: Rows) -> None:
    """Checks each page as it came and with everything open."""
    for path, status, words in rows.values():
        answered = await watched.goto(path)
        assert answered == status, (path, answered)
        await expect(watched.page.locator("body")).to_contain_text(words)
        await watched.check_states()


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_public_pages_with_rows(browser: Browser, site: CornerSite, theme: Any, width: int) -> None:
    async with site.open_public(browser, site.full.public, **at_corner(theme, width)) as watched:
        await visit(watched, PUBLIC_FULL)


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_pages_of_a_reader_with_rows(
    browser: Browser, site: CornerSite, theme: Any, width: int
) -> None:
    token = site.full.tokens[READER]
    async with site.open_public(browser, site.full.public, token=token, **at_corner(theme, width)) as watched:
        await visit(watched, MY_FULL | {"payment": (f"/my/credit/{site.payment}", 200, "Payment")})


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_pages_of_the_operator_with_rows(
    browser: Browser, site: CornerSite, theme: Any, width: int
) -> None:
    async with open_admin(browser, site.full.admin, **at_corner(theme, width)) as watched:
        await visit(watched, ADMIN_FULL)


async def test_public_pages_without_rows(browser: Browser, site: CornerSite) -> None:
    async with site.open_public(browser, site.empty.public, **at_corner(*NARROW)) as watched:
        await visit(watched, PUBLIC_EMPTY)


async def test_pages_of_a_reader_without_rows(browser: Browser, site: CornerSite) -> None:
    token = site.empty.tokens[THIRD]
    async with site.open_public(browser, site.empty.public, token=token, **at_corner(*NARROW)) as watched:
        await visit(watched, MY_EMPTY)


async def test_pages_of_the_operator_without_rows(browser: Browser, site: CornerSite) -> None:
    async with open_admin(browser, site.empty.admin, **at_corner(*NARROW)) as watched:
        await visit(watched, ADMIN_EMPTY)


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_errors(browser: Browser, site: CornerSite, theme: Any, width: int) -> None:
    options = at_corner(theme, width)
    async with site.open_public(browser, site.full.public, **options) as watched:
        await visit(watched, PUBLIC_ERRORS)
    token = site.full.tokens[READER]
    async with site.open_public(browser, site.full.public, token=token, **options) as watched:
        await visit(watched, MY_ERRORS)
    async with open_admin(browser, site.full.admin, **options) as watched:
        await visit(watched, ADMIN_ERRORS)
        await watched.goto("/books")
        await watched.page.get_by_label("Type the name of this gateway").fill("another")
        await watched.page.get_by_role("button", name="Release all held balances").click()
        await expect(watched.page.locator("main")).to_contain_text("Nothing was changed.")
        await watched.check_states()


@pytest.mark.parametrize(("theme", "width"), CORNERS)
async def test_storage_that_is_away(browser: Browser, site: CornerSite, theme: Any, width: int) -> None:
    options = at_corner(theme, width)
    for client, rows in ((site.away_public, PUBLIC_AWAY), (site.away_mine, MY_AWAY)):
        async with site.open_public(browser, client, token=site.full.tokens[READER], **options) as watched:
            await visit(watched, rows)
    async with open_admin(browser, site.away_admin, **options) as watched:
        await visit(watched, {"any": ("/enter", 503, AWAY)})


async def test_an_operator_without_a_session(browser: Browser, site: CornerSite) -> None:
    async with open_admin(browser, site.stranger, **at_corner(*NARROW)) as watched:
        await visit(watched, {path: (path, 401, "tollway gateway admin link") for path in ("/", "/books")})


@pytest.mark.parametrize(("theme", "width", "call"), [(*WIDE, HELD_CALLS[1]), (*NARROW, HELD_CALLS[2])])
async def test_a_decided_ticket(
    browser: Browser, site: CornerSite, theme: Any, width: int, call: str
) -> None:
    token = site.full.tokens[READER]
    async with site.open_public(browser, site.full.public, token=token, **at_corner(theme, width)) as watched:
        page = watched.page
        await watched.goto(f"/my/calls/{call}")
        await page.get_by_text("It was not: give it back").click()
        await watched.check()
        await page.get_by_role("button", name="Yes, it was not served").click()
        await expect(page.locator(".ticket .stamp")).to_have_text("RELEASED")
        await expect(page.get_by_text("Decide this call")).to_be_hidden()
        await watched.check_states()
