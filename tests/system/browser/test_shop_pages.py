"""The first page and the page of an API in a browser: their columns and rows at every width, copy buttons and filters by keyboard, on paper and without scripts."""

import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.system.browser.shop import MANY, OPERATIONS, PAYEE, open_shop, visit_shop

pytestmark = pytest.mark.asyncio(loop_scope="session")

API = f"/apis/{MANY}"
CLIPBOARD = ("clipboard-read", "clipboard-write")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop() -> AsyncIterator[httpx.AsyncClient]:
    async with await open_shop() as client:
        yield client


def at(width: int, theme: str = "light", height: int = 900) -> dict[str, Any]:
    return {"viewport": {"width": width, "height": height}, "color_scheme": theme}


async def box(page: Page, selector: str) -> dict[str, float]:
    found = await page.locator(selector).first.bounding_box()
    assert found is not None, selector
    right, bottom = found["x"] + found["width"], found["y"] + found["height"]
    return {"x": found["x"], "y": found["y"], "height": found["height"], "right": right, "bottom": bottom}


@pytest.mark.parametrize(
    ("width", "theme"),
    [
        *((320, "dark"), (360, "light"), (719, "light"), (720, "dark"), (1099, "light"), (1100, "dark")),
        *((1280, "light"), (1920, "dark"), (2560, "light")),
    ],
)
async def test_both_pages_fit_every_window(
    browser: Browser, shop: httpx.AsyncClient, width: int, theme: str
) -> None:
    async with visit_shop(browser, shop, **at(width, theme)) as watched:
        for path in ("/", "/?q=weather", API, "/apis/api_3"):
            await watched.goto(path)
            await watched.check_states()


# ---- The page of an API.


@pytest.mark.parametrize("width", [1100, 1280, 1920, 2560])
async def test_a_wide_window_has_operations_panel_and_code_side_by_side(
    browser: Browser, shop: httpx.AsyncClient, width: int
) -> None:
    async with visit_shop(browser, shop, **at(width)) as watched:
        await watched.goto(API)
        head, panel, code = [await box(watched.page, one) for one in (".api-head", ".try", ".column-code")]
        assert head["right"] < panel["x"] < panel["right"] < code["x"] < code["right"] <= width
        assert head["y"] == panel["y"] == code["y"]
        await watched.page.locator("#terms").scroll_into_view_if_needed()
        for selector in (".try", ".column-code"):
            assert 0 <= (await box(watched.page, selector))["y"] <= 16, "it stays in view"


async def test_a_middle_window_has_two_columns(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop, **at(800)) as watched:
        await watched.goto(API)
        main, panel, code = [await box(watched.page, one) for one in (".column-main", ".try", ".column-code")]
        assert main["right"] < panel["x"] == code["x"]
        assert panel["bottom"] < code["y"]


async def test_a_narrow_window_has_the_panel_directly_under_the_price(
    browser: Browser, shop: httpx.AsyncClient
) -> None:
    async with visit_shop(browser, shop, **at(360)) as watched:
        await watched.goto(API)
        order = (".api-facts", ".try", ".column-code", ".column-main")
        boxes = [await box(watched.page, one) for one in order]
        assert all(above["bottom"] <= below["y"] for above, below in pairwise(boxes))
        assert boxes[1]["y"] - boxes[0]["bottom"] <= 24


async def test_the_payee_stands_once_and_whole(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop) as watched:
        await watched.goto(API)
        assert (await watched.page.locator("main").inner_text()).count(str(PAYEE)) == 1


async def test_a_reader_filters_the_operations_by_keyboard(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop) as watched:
        page = watched.page
        await watched.goto(API)
        entries = page.locator(".operations li:visible")
        await expect(entries).to_have_count(OPERATIONS)
        await page.get_by_label("Filter the operations").focus()
        await page.keyboard.type("Number 1 order")
        await expect(entries).to_have_count(12)  # 1, 10 to 19, and 21
        await expect(page.get_by_text(f"12 / {OPERATIONS}")).to_have_attribute("role", "status")
        await watched.check()
        await page.keyboard.type(" none")
        await expect(entries).to_have_count(0)
        await page.keyboard.press("Control+a")
        await page.keyboard.press("Delete")
        await expect(entries).to_have_count(OPERATIONS)
        await watched.push(".operations a")
        await expect(page).to_have_url(f"{watched.base_url}{API}?operation=get_orders_0_by_shop#try")


async def test_code_and_ids_are_copied_by_keyboard(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop, permissions=list(CLIPBOARD)) as watched:
        page = watched.page
        await watched.goto(API)
        code = await page.locator(".snippet[open] pre").text_content()
        for button, copied in (
            ("Copy: curl", code),
            ("Copy: Text of the example", '{\n  "order": 0\n}'),
            ("Copy the id", str(MANY)),
        ):
            await page.get_by_role("button", name=button).focus()
            await page.keyboard.press("Enter")
            await expect(page.locator("body > [aria-live]")).to_have_text("Copied")
            assert await watched.evaluate("navigator.clipboard.readText()") == copied
            await watched.check()
        provider = page.locator(f'[title="{PAYEE}"]')
        await expect(provider).to_have_text(f"{str(PAYEE)[:6]}…{str(PAYEE)[-4:]}")
        await page.get_by_role("button", name="Copy the address").last.click()
        assert await watched.evaluate("navigator.clipboard.readText()") == str(PAYEE)


async def test_a_long_description_unfolds(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop, **at(320, "dark")) as watched:
        await watched.goto(API)
        closed = await box(watched.page, ".api-head")
        await watched.push(".provider-words summary")
        assert (await box(watched.page, ".api-head"))["height"] > closed["height"] + 200
        await watched.check()


async def test_paper_has_no_button_and_nothing_cut(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop) as watched:
        await watched.goto(API)
        await watched.page.emulate_media(media="print")
        await expect(watched.page.locator("button:visible")).to_have_count(0)
        printed = await watched.evaluate(
            f"getComputedStyle(document.querySelector('[title=\"{PAYEE}\"]'), '::after').content"
        )
        assert printed == f'"{PAYEE}"'


async def test_without_scripts_there_is_no_dead_control(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop, java_script_enabled=False) as watched:
        await watched.goto(API)
        page = watched.page
        await expect(page.locator(".operations li")).to_have_count(OPERATIONS)
        await expect(page.locator(".copy, [type=search]")).to_have_count(0)
        await expect(page.locator(".try")).to_contain_text("Of the country")
        await watched.goto("/")
        await page.locator(".doors summary").click()
        await expect(page.locator(".doors pre")).to_contain_text("mcpServers")


# ---- The first page.


@pytest.mark.parametrize("width", [1280, 1920])
async def test_rows_are_as_high_as_a_line_of_56_px(
    browser: Browser, shop: httpx.AsyncClient, width: int
) -> None:
    async with visit_shop(browser, shop, **at(width)) as watched:
        await watched.goto("/")
        heights = await watched.evaluate(
            "[...document.querySelectorAll('.row')].map(row => row.getBoundingClientRect().height)"
        )
        assert heights == [56] * 10


async def test_a_row_leads_to_its_api_from_any_place(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop) as watched:
        page = watched.page
        await watched.goto("/")
        await page.locator(".row", has_text="Orders").locator(".row-price").click(force=True)
        await expect(page).to_have_url(watched.base_url + API)
        await watched.goto("/")
        await watched.push(f'a[href="{API}"]')
        await expect(page).to_have_url(watched.base_url + API)


async def test_the_doors_and_chips_work_by_keyboard(browser: Browser, shop: httpx.AsyncClient) -> None:
    async with visit_shop(browser, shop, permissions=list(CLIPBOARD)) as watched:
        page = watched.page
        await watched.goto("/")
        await watched.push('.doors a[href="#q"]')
        await expect(page.get_by_role("searchbox")).to_be_focused()
        await watched.goto("/")
        await watched.push(".doors summary")
        await watched.push(".doors .block .copy")
        await expect(page.locator("body > [aria-live]")).to_have_text("Copied")
        settings = json.loads(await watched.evaluate("navigator.clipboard.readText()"))
        assert settings["mcpServers"]["tollway"]["env"]["TOLLWAY_GATEWAY"] == watched.base_url
        await watched.check()
        await watched.push('.tags a[href="/?tag=weather"]')
        await expect(page.locator(".row")).to_have_count(1)
        await watched.push(".tags a[aria-current]")
        await expect(page.locator(".row")).to_have_count(10)
