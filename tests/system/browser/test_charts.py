"""Charts in a browser: the value of a bar stands above it under a pointer, a finger and the focus, and no label reaches another one. No script is needed."""

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.kit.signed_in import READER
from tests.system.browser.corner_site import CornerSite, at_corner, run_corner_site
from tests.system.browser.watched_page import WatchedPage

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHARTS = ("/my", "/my/selling", "/my/sales", "/my/spending")
VALUE = ": 0.0"
GUTTER = 44
"""2.75 rem in pixels."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CornerSite]:
    async with run_corner_site(tmp_path_factory.mktemp("charts")) as site:
        yield site


def open_mine(site: CornerSite, browser: Browser, width: int, **options: Any) -> Any:
    token = site.full.tokens[READER]
    return site.open_public(
        browser, site.full.public, token=token, **{**at_corner("light", width), **options}
    )


SEEN = """[...document.querySelectorAll('.readings i')].map(bar => {
  const value = getComputedStyle(bar, '::after');
  return value.content.startsWith('"') && value.display !== 'none' ? [bar.title, value.content.slice(1, -1)] : null;
}).filter(one => one)"""


async def read_values(watched: WatchedPage) -> list[list[str]]:
    """The title and the visible value of each bar that shows its value."""
    return list(await watched.evaluate(SEEN))


async def test_a_value_stands_above_its_bar_under_a_pointer_and_the_focus(
    browser: Browser, site: CornerSite
) -> None:
    async with open_mine(site, browser, 1280, java_script_enabled=False) as watched:
        await watched.goto("/my/sales")
        bars = watched.page.locator(".readings [title]")
        assert await read_values(watched) == []
        for number in (0, -1):
            await bars.nth(number).hover()
            title = await bars.nth(number).get_attribute("title")
            assert await read_values(watched) == [[title, title]]
            assert VALUE in (title or "")
        await watched.page.mouse.move(0, 0)
        await bars.nth(0).focus()
        for number in (0, 1, 2):
            title = await bars.nth(number).get_attribute("title")
            assert await read_values(watched) == [[title, title]]
            await watched.page.keyboard.press("Tab")
        await bars.nth(0).hover()
        assert len(await read_values(watched)) == 1  # the pointer, not also the focus


async def test_a_finger_shows_a_value(browser: Browser, site: CornerSite) -> None:
    async with open_mine(site, browser, 360, has_touch=True, is_mobile=True) as watched:
        await watched.goto("/my/sales")
        for number in (0, -1):
            await watched.page.locator(".readings [title]").nth(number).tap()
            assert len(await read_values(watched)) == 1
            await watched.check()


@pytest.mark.parametrize("width", [360, 720, 1280, 2560])
async def test_no_label_reaches_another_one_or_the_bars(
    browser: Browser, site: CornerSite, width: int
) -> None:
    async with open_mine(site, browser, width) as watched:
        for path in CHARTS:
            await watched.goto(path)
            boxes = await watched.evaluate(
                "[...document.querySelectorAll('.plot')].map(plot => { const box = one => { const r = one.getBoundingClientRect(); "
                "return [r.left, r.right, r.top, r.bottom]; }; return { picture: box(plot.querySelector('.picture')), "
                "plot: box(plot), figure: box(plot.parentElement), marks: [...plot.querySelectorAll('.marks text')].map(box), "
                "dates: [...plot.querySelectorAll('.picture > text')].map(box), steps: plot.querySelectorAll('.readings i').length }; })"
            )
            assert boxes
            for chart in boxes:
                left, right, _, _ = chart["picture"]
                assert left - chart["plot"][0] >= GUTTER
                assert abs(right - chart["figure"][1]) < 1  # the whole width
                assert 1 <= len(chart["marks"]) <= 4
                assert all(chart["plot"][0] <= mark[0] and mark[1] < left for mark in chart["marks"]), chart[
                    "marks"
                ]
                dates = chart["dates"]
                assert len(dates) >= min(2, chart["steps"]) >= 1  # a month has one bar on its first day
                for before, after in itertools.pairwise(dates):
                    assert before[1] + 4 <= after[0], (path, dates)
                assert dates[-1][1] <= right
