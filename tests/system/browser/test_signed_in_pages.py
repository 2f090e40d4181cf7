"""The pages of a signed-in reader in a browser: accessible and narrow enough in every state, whole without JavaScript, small, and silent under their policy.

The pages are those of `tests.kit.signed_in`, over a database that has calls in every state: requests of the browser are answered by the application in this process.
The sign-in itself runs against a gateway in a process of its own, with a wallet.
"""

import contextlib
import csv
from collections.abc import AsyncIterator
from dataclasses import dataclass
from gettext import NullTranslations
from io import StringIO
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.kit.listings import sample_listing
from tests.kit.message_catalog import PSEUDO, LongWords
from tests.kit.payer import KeyWallet
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import (
    DAY_MS,
    MIXED,
    NOW_MS,
    OTHER,
    READER,
    SELLER,
    THIRD,
    SignedInHarness,
    open_signed_in,
)
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage, answer_by, watch_page
from tollway.web.pages.page_session import PAGE_COOKIE

pytestmark = pytest.mark.asyncio(loop_scope="session")

FREE = {"free": "none", "failed": "none"}
"""The words of the list for the state `none` of the file: a call that moves no money."""
STAMPS = ("CHARGED", "RELEASED", "HELD", "REORGED", "FAILED", "FREE")
FAILED = {**MIXED[5], "state": "unknown", "http_status": None, "upstream_status": None}
FULL = {
    "overview": "/my",
    "calls": "/my/calls",
    "calls sold": "/my/calls?role=provider",
    "credit": "/my/credit",
    "spending": "/my/spending",
    "spending by API": "/my/spending?groupBy=api",
    "spending by wallet": "/my/spending?groupBy=wallet",
    "wallets": "/my/wallets",
}
CORNERS = {
    "no call": "/my/calls?to=2020-01-01",
    "no spending": "/my/spending?from=2026-01-01&to=2026-01-03",
    "calls, not understood": "/my/calls?status=odd&from=yesterday",
    "spending, not understood": "/my/spending?from=2020-01-01&groupBy=colour",
    "no such call": "/my/calls/call_99",
    "not a viewer": f"/my/calls?wallet={THIRD.address}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The pages, and a client that brings no cookie of its own. `tickets`: the path of a call by its stamp. `tokens`: of sessions, by wallet."""

    harness: SignedInHarness
    client: httpx.AsyncClient
    tickets: dict[str, str]
    payment: str
    tokens: dict[KeyWallet, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with open_signed_in(catalogs={"en": NullTranslations(), PSEUDO: LongWords()}) as harness:
        payment = await harness.services.record_payment(230_000)
        states = (MIXED[0], MIXED[1], MIXED[2], MIXED[3], FAILED, MIXED[5])
        await harness.services.write_calls(*states)
        names = ("Sample quotes", "Weather of the open sea, hour by hour", ("Long " * 20).strip())
        for number in range(70):
            changed = {
                "created_ms": NOW_MS - number * DAY_MS // 4,
                "listing_name": names[number % 3],
                "listing_id": f"api_{number % 3}",
                "path": "/v1/quotes/" + "ETH" * (number % 9),
                "price": f"0.0{number % 4 + 1}",
                "price_units": 10_000 * (number % 4 + 1),
                "taken_units": 10_000 * (number % 4 + 1),
            }
            await harness.services.write_calls({**MIXED[0], **changed})
        for number, agent in enumerate((SELLER, THIRD)):
            await harness.services.write_calls(
                *({**MIXED[0], "payer": agent.address, "pay_to": OTHER.address} for _ in range(number + 2))
            )
        await harness.catalog.publish(sample_listing(provider=READER.address))
        await harness.name_viewer(SELLER, READER)
        await harness.name_viewer(READER, OTHER)
        await harness.name_viewer(SELLER, OTHER)
        tokens = {}
        for wallet in (READER, SELLER, OTHER, THIRD):
            await harness.sign_in(wallet)
            tokens[wallet] = harness.token
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=harness.app), base_url=PUBLIC_URL
        ) as client:
            yield Site(
                harness=harness,
                client=client,
                tickets={stamp: f"/my/calls/call_{number}" for number, stamp in enumerate(STAMPS)},
                payment=f"/my/credit/{payment.tx_hash}",
                tokens=tokens,
            )


@contextlib.asynccontextmanager
async def open_page(
    browser: Browser,
    site: Site,
    *,
    wallet: KeyWallet | None = READER,
    theme: Any = "light",
    width: int = 1280,
    **more: Any,
) -> AsyncIterator[WatchedPage]:
    options = {"color_scheme": theme, "viewport": {"width": width, "height": 800}, **more}
    async with watch_page(browser, PUBLIC_URL, **options) as watched:
        await watched.context.route("**/*", answer_by(site.client))
        if wallet is not None:
            cookie = {
                "name": PAGE_COOKIE.name,
                "value": site.tokens[wallet],
                "secure": True,
                "httpOnly": True,
            }
            await watched.context.add_cookies([{**cookie, "url": PUBLIC_URL}])  # type: ignore[typeddict-item]
        yield watched


@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 320)])
async def test_tickets_in_every_stamp_are_accessible_and_fit(
    browser: Browser, site: Site, theme: str, width: int
) -> None:
    async with open_page(browser, site, theme=theme, width=width) as watched:
        for stamp, path in site.tickets.items():
            assert await watched.goto(path) == 200
            await expect(watched.page.locator(".ticket .stamp")).to_have_text(stamp)
            await watched.check_states()


@pytest.mark.parametrize(("theme", "width"), [("light", 320), ("dark", 1280)])
async def test_empty_and_refused_pages_are_accessible_and_fit(
    browser: Browser, site: Site, theme: str, width: int
) -> None:
    async with open_page(browser, site, theme=theme, width=width) as watched:
        for path in CORNERS.values():
            await watched.goto(path)
            await watched.check_states()
    async with open_page(browser, site, wallet=THIRD, theme=theme, width=width) as watched:
        for path in ("/my/credit", "/my/wallets", "/my/calls?role=provider"):
            assert await watched.goto(path) == 200
            await watched.check_states()


async def test_the_provider_decides_a_held_call_after_a_second_question(browser: Browser, site: Site) -> None:
    await site.harness.services.write_calls({**MIXED[2], "provider": READER.address})
    held = (await site.client.get("/my/calls?role=provider&status=unknown", headers=_as(site, READER))).text
    path = held.partition('<th scope="row"><a href="')[2].partition('"')[0]
    async with open_page(browser, site, width=320) as watched:
        page = watched.page
        await watched.goto(path)
        await expect(page.get_by_role("button", name="Yes, it was served")).to_be_hidden()
        await page.get_by_text("It was served: take the price").click()
        await watched.check()
        await expect(page.get_by_role("button", name="Yes, it was served")).to_be_visible()


async def test_pages_are_whole_without_javascript(browser: Browser, site: Site) -> None:
    async with open_page(browser, site, java_script_enabled=False) as watched:
        page = watched.page
        await watched.goto("/my")
        await page.get_by_role("link", name="Spending by day").click()
        await page.get_by_text("Filters", exact=True).click()
        await page.get_by_label("From, UTC").fill("2027-01-10")
        await page.get_by_role("button", name="Apply").click()
        await page.get_by_role("link", name="By API").click()
        assert "from=2027-01-10" in page.url
        assert "groupBy=api" in page.url
        assert await page.get_by_role("rowheader", name="api_0").count() == 1
        await page.get_by_role("navigation", name="My calls").get_by_role("link", name="Calls").click()
        await page.get_by_text("Filters", exact=True).click()
        await page.get_by_label("Status").select_option("unknown")
        await page.get_by_role("button", name="Apply").click()
        await page.locator(".call-rows a").first.click()
        await expect(page.locator(".ticket .stamp")).to_be_visible()
        assert watched.complaints == []


async def test_words_that_are_longer_make_no_page_wider_than_a_phone(browser: Browser, site: Site) -> None:
    """In a language whose words are 40 % longer."""
    async with open_page(browser, site, width=320, locale=PSEUDO) as watched:
        for path in (*FULL.values(), site.payment, *site.tickets.values(), *CORNERS.values()):
            await watched.goto(path)
            assert await watched.page.locator("html").get_attribute("lang") == PSEUDO
            wider = await watched.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wider == 0, path


async def test_a_reader_changes_the_language(browser: Browser, site: Site) -> None:
    async with open_page(browser, site) as watched:
        await watched.goto("/my")
        await watched.page.get_by_role("button", name=PSEUDO).click()
        await expect(watched.page.locator("html")).to_have_attribute("lang", PSEUDO)
        await watched.goto("/my/spending")
        await expect(watched.page.locator("html")).to_have_attribute("lang", PSEUDO)
        await watched.check()


async def test_printing_shows_the_ticket_alone(browser: Browser, site: Site) -> None:
    async with open_page(browser, site) as watched:
        await watched.goto(site.tickets["CHARGED"])
        await watched.evaluate("globalThis.print = () => { document.title = 'printed'; }; true")
        await watched.page.get_by_role("button", name="Print").click()
        await expect(watched.page).to_have_title("printed")
        await watched.page.emulate_media(media="print")
        await expect(watched.page.locator(".ticket")).to_be_visible()
        for hidden in (".top", ".mine", ".bottom", ".slip-links", ".test-money"):
            assert await watched.page.locator(hidden).first.is_hidden(), hidden


async def test_an_owner_sees_two_agents_that_named_her_until_one_ends_it(
    browser: Browser, site: Site
) -> None:
    """Through pages alone: the agents name her and withdraw it on `/my/wallets`. Nothing of a third wallet is ever hers."""
    for agent in (READER, SELLER):
        await name_reader(browser, site, agent, OTHER)
    async with open_page(browser, site, wallet=OTHER) as watched:
        page = watched.page
        assert await list_named(watched) == {str(READER.address), str(SELLER.address)}
        await watched.goto("/my/spending?groupBy=wallet")
        shown = await page.locator(".labelled tbody th").all_inner_texts()
        assert set(shown) == {str(READER.address), str(SELLER.address)}
        assert str(THIRD.address) not in await page.content()
        await watched.goto(f"/my/calls?wallet={READER.address}")
        await compare_file(site, watched, OTHER)
        for path in ("calls", "credit", "spending"):
            assert await watched.goto(f"/my/{path}?wallet={THIRD.address}") == 404
        await withdraw_reader(browser, site, READER, OTHER)
        for path in ("calls", "calls?status=failed", "credit", "spending"):
            joint = "&" if "?" in path else "?"
            assert await watched.goto(f"/my/{path}{joint}wallet={READER.address}") == 404
            await watched.check()
        assert await list_named(watched) == {str(SELLER.address)}
        await watched.goto("/my/spending?groupBy=wallet")
        assert await page.locator(".labelled tbody th").all_inner_texts() == [str(SELLER.address)]
        assert str(READER.address) not in await page.content()
        await watched.goto(f"/my/calls?wallet={SELLER.address}")
        await compare_file(site, watched, OTHER)
        await name_reader(browser, site, READER, OTHER)
        assert await list_named(watched) == {str(SELLER.address)}
        await read_named(watched, READER)
        assert await list_named(watched) == {str(READER.address), str(SELLER.address)}


async def test_an_owner_reads_the_tickets_of_an_agent(browser: Browser, site: Site) -> None:
    """From the row of a list to the ticket, its receipt and back, without a word about whose books they are."""
    async with open_page(browser, site, wallet=OTHER) as watched:
        page = watched.page
        for path in ("/my/calls", "/my/credit"):
            await watched.goto(f"{path}?wallet={READER.address}")
            await page.locator("tbody th a").first.click()
            await page.wait_for_url(f"**{path}/**")
            await expect(page.get_by_role("heading", level=1)).to_have_text(
                "Ticket of a call" if path == "/my/calls" else "Payment"
            )
            await watched.check()
            await page.get_by_role(
                "link", name="All calls" if path == "/my/calls" else "All payments"
            ).click()
            await expect(page.locator("tbody th a").first).to_be_visible()
            assert str(READER.address) in page.url


async def name_reader(browser: Browser, site: Site, wallet: KeyWallet, viewer: KeyWallet) -> None:
    """The wallet lets another one read its books, on its own page."""
    async with open_page(browser, site, wallet=wallet) as watched:
        page = watched.page
        await watched.goto("/my/wallets")
        await page.get_by_label("Address", exact=True).fill(str(viewer.address))
        await page.get_by_label("Until the end of, UTC").fill("2027-01-20")
        await page.get_by_role("button", name="Allow").click()
        await expect(page.locator(".permissions").last).to_contain_text(str(viewer.address))


async def withdraw_reader(browser: Browser, site: Site, wallet: KeyWallet, viewer: KeyWallet) -> None:
    async with open_page(browser, site, wallet=wallet) as watched:
        await watched.goto("/my/wallets")
        await watched.page.get_by_role("button", name=f"Withdraw {viewer.address}").click()
        await expect(watched.page.get_by_text("Only you.")).to_be_visible()


async def read_named(watched: WatchedPage, wallet: KeyWallet) -> None:
    """The reader opens the books of a wallet that has named it, by the form of its own page."""
    await watched.goto("/my/wallets")
    await watched.page.get_by_label("Its address").fill(str(wallet.address))
    await watched.page.get_by_role("button", name="Read", exact=True).click()
    await expect(watched.page.get_by_role("link", name="CSV of this list")).to_be_visible()


async def list_named(watched: WatchedPage) -> set[str]:
    """The wallets whose books the reader may read, by its own page."""
    await watched.goto("/my/wallets")
    return set(await watched.page.locator("section:first-of-type .permissions .address").all_inner_texts())


async def compare_file(site: Site, watched: WatchedPage, wallet: KeyWallet) -> None:
    """The rows of the list, over all of its pages, are those of its file."""
    link = watched.page.get_by_role("link", name="CSV of this list")
    file = await site.client.get(await link.get_attribute("href") or "", headers=_as(site, wallet))
    listed = await read_list(watched)
    assert listed
    assert listed == read_file(file.text)


def read_file(text: str) -> list[list[str]]:
    """Of each row of `history.csv`: id, time, API, response, price, state."""
    return [
        [
            row["callId"],
            row["createdAt"],
            row["apiName"],
            row["httpStatus"] or "–",
            row["amount"],
            row["state"],
        ]
        for row in csv.DictReader(StringIO(text))
    ]


async def read_list(watched: WatchedPage) -> list[list[str]]:
    """The same of the list of calls, over all of its pages."""
    page, listed = watched.page, []
    while True:
        for row in await page.locator("tbody tr").all():
            head = row.locator("th a")
            cells = await row.locator("td").all_inner_texts()
            listed.append(
                [
                    await head.get_attribute("title") or "",
                    await head.locator("time").get_attribute("datetime") or "",
                    cells[0],
                    cells[2],
                    cells[3].partition(" ")[0].replace("–", "0"),
                    FREE.get(cells[4], cells[4]),
                ]
            )
        older = page.get_by_role("link", name="older")
        if not await older.count():
            return listed
        await older.click()


def _as(site: Site, wallet: KeyWallet) -> dict[str, str]:
    return {"cookie": f"{PAGE_COOKIE.name}={site.tokens[wallet]}", "accept": "text/html"}


# ---- The way in, with a wallet.


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(cluster: Any) -> AsyncIterator[Any]:
    async with cluster.gateway() as gateway:
        yield gateway


async def make_wallet(cluster: Any, **changes: Any) -> WalletDouble:
    given = {"accounts": [await cluster.wallet()], "chain_id": int(cluster.driver.chain_id), **changes}
    return WalletDouble(driver=cluster.driver, **given)


async def test_a_wallet_signs_in_by_keyboard_and_out_again(
    browser: Browser, cluster: Any, gateway: Any
) -> None:
    wallet = await make_wallet(cluster)
    address = str(wallet.accounts[0].address)
    async with watch_page(browser, gateway.base_url) as watched:
        page = watched.page
        await wallet.install(watched.context)
        await watched.goto("/my/spending?groupBy=api")
        assert "/signin" in page.url
        await watched.check()
        await page.get_by_role("button", name="Test wallet").focus()
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/my/spending?groupBy=api")
        await watched.check()
        assert await page.locator(".account").get_attribute("title") == address
        await watched.goto("/my")
        await expect(page.get_by_text("No call this month.")).to_be_visible()
        await watched.check()
        await page.get_by_role("button", name="Sign out").click()
        await page.wait_for_url(gateway.base_url + "/")
        await watched.goto("/my")
        assert "/signin" in page.url
    assert wallet.wrong == []
    assert set(wallet.counts) == {"eth_requestAccounts", "eth_chainId", "personal_sign"}


@pytest.mark.parametrize("step", ["eth_requestAccounts", "personal_sign"])
async def test_declining_signs_nothing(browser: Browser, cluster: Any, gateway: Any, step: str) -> None:
    wallet = await make_wallet(cluster, declines={step})
    async with watch_page(browser, gateway.base_url, viewport={"width": 320, "height": 800}) as watched:
        page = watched.page
        await wallet.install(watched.context)
        await watched.goto("/signin")
        await page.get_by_role("button", name="Test wallet").click()
        await expect(page.get_by_role("status")).to_have_text("You declined. Nothing was signed.")
        await watched.check()
        wallet.declines.clear()
        await page.get_by_role("button", name="Test wallet").click()
        await page.wait_for_url("**/my")


async def test_a_page_under_another_name_asks_the_wallet_for_no_signature(
    browser: Browser, cluster: Any, gateway: Any
) -> None:
    wallet = await make_wallet(cluster)
    other_name = gateway.base_url.replace("127.0.0.1", "localhost")
    async with watch_page(browser, other_name) as watched:
        await wallet.install(watched.context)
        await watched.goto("/signin")
        await watched.page.get_by_role("button", name="Test wallet").click()
        await expect(watched.page.get_by_role("status")).to_contain_text("names another site than this one")
        await watched.check()
    assert "personal_sign" not in wallet.counts


async def test_a_lost_cookie_is_shown_at_the_sign_in(browser: Browser, site: Site) -> None:
    async with open_page(browser, site, wallet=None, width=320) as watched:
        await watched.goto("/signin?signed=yes&to=%2Fmy")
        await expect(watched.page.get_by_role("alert")).to_contain_text("did not keep the session")
        await watched.check()


async def test_a_browser_without_a_wallet_says_what_to_do(browser: Browser, gateway: Any) -> None:
    async with watch_page(browser, gateway.base_url) as watched:
        await watched.goto("/signin")
        await expect(watched.page.get_by_role("status")).to_contain_text("This browser has no wallet.")
        await watched.check()
    async with watch_page(browser, gateway.base_url, java_script_enabled=False) as watched:
        await watched.goto("/signin")
        await expect(watched.page.get_by_text("A wallet needs JavaScript.")).to_be_visible()
        assert watched.complaints == []
