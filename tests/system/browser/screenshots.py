"""Makes the pictures of the documentation: `python -m tests.system.browser.screenshots [FOLDER]` writes those of `docs/images`, or the same into FOLDER. Also
the picture of previews, which the pages name as `og:image`: `preview` in place of FOLDER makes that alone.

Each is the whole page of a real gateway (`shown_gateway`) in Chromium. A page that is wider than its window, or complains, makes no picture.
"""

import argparse
import asyncio
import base64
import contextlib
import json
import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.system.browser.chromium import ROOT, find_browser, find_node
from tests.system.browser.shown_gateway import HOST, QUOTES, READER, VISITOR, ShownGateway, run_shown_gateway
from tests.system.browser.small_png import write_png
from tests.system.browser.wallet_double import WalletDouble
from tests.system.browser.watched_page import WatchedPage, watch_page
from tollway.sandbox.chain import FundedAccount
from tollway.web.pages.assets import UI_FOLDER

IMAGES = ROOT / "docs" / "images"
WIDTHS = {1280: 800, 320: 640}
"""Heights of the windows."""
THEMES = ("light", "dark")
WAIT_MS = 30_000
CALLS_DAYS = 3
"""How many days back the list of calls begins: a page of thirty rows is too tall on a phone."""

_DECODE = """async encoded => {
  const bytes = Uint8Array.from(atob(encoded), one => one.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: "image/png" }));
  const context = new OffscreenCanvas(picture.width, picture.height).getContext("2d");
  context.drawImage(picture, 0, 0);
  const pixels = new Uint8Array(context.getImageData(0, 0, picture.width, picture.height).data.buffer);
  const parts = [];
  for (let start = 0; start < pixels.length; start += 32768)
    parts.push(String.fromCharCode(...pixels.subarray(start, start + 32768)));
  return [picture.width, btoa(parts.join(""))];
}"""

_RENAME = """(() => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replace(%s, %s);
  return true;
})()"""


PREVIEW = UI_FOLDER / "preview.png"
PREVIEW_WIDTH, PREVIEW_HEIGHT = 1200, 630
"""The size that previews of links expect (Open Graph)."""
_CARD = """<body style="margin:0;height:630px;display:flex;flex-direction:column;justify-content:center;gap:28px;background:#faf8f4;color:#1d1a16;font:44px system-ui;padding-left:96px">
<svg viewBox="0 0 24 24" width="200" height="200" fill="none" stroke="#1d1a16" stroke-width="2" stroke-linecap="square"><path d="M4 21V8h5v13M2.5 21.5h8"/>
<path d="M6.5 11.5H22" stroke="#0b5d4b" stroke-width="2.6"/><circle cx="6.5" cy="5" r="1.8" fill="#0b5d4b" stroke="none"/></svg>
<b style="font-size:104px;letter-spacing:-2px">Tollway</b><span>HTTP APIs that are paid per request</span></body>"""


# ---- What is shown.


async def show_search(watched: WatchedPage, shown: ShownGateway) -> None:
    await watched.goto("/")


async def show_paid_call(watched: WatchedPage, shown: ShownGateway) -> None:
    await install_wallet(watched, shown, VISITOR)
    await watched.goto(f"/apis/{shown.ids[QUOTES.name]}")
    await watched.page.locator("[data-pay]").click()
    await expect(watched.page.locator(".ticket .stamp")).to_have_text("CHARGED", timeout=WAIT_MS)
    await expect(watched.page.locator("[data-answer] pre")).to_contain_text("price")


async def show_overview(watched: WatchedPage, shown: ShownGateway) -> None:
    await sign_in(watched, shown, "/my")


async def show_calls(watched: WatchedPage, shown: ShownGateway) -> None:
    since = datetime.fromtimestamp(time.time(), UTC) - timedelta(days=CALLS_DAYS)
    await sign_in(watched, shown, f"/my/calls?from={since:%Y-%m-%d}")


async def show_call(watched: WatchedPage, shown: ShownGateway) -> None:
    await sign_in(watched, shown, "/my/calls")
    await watched.page.locator(".call-rows a").first.click()
    await expect(watched.page.locator(".ticket .stamp")).to_have_text("CHARGED")


async def show_sales(watched: WatchedPage, shown: ShownGateway) -> None:
    await sign_in(watched, shown, "/my/sales")


async def show_operator(watched: WatchedPage, shown: ShownGateway) -> None:
    await watched.page.goto(await shown.make_link())
    await watched.page.get_by_role("button", name="Sign in").click()
    await expect(watched.page.get_by_role("heading", level=1)).to_have_text("What needs an operator")


Show = Callable[[WatchedPage, ShownGateway], Awaitable[None]]
PAGES: dict[str, Show] = {
    "my": show_overview,
    "calls": show_calls,
    "ticket": show_call,
    "sales": show_sales,
    "search": show_search,
    "pay": show_paid_call,
}
PICTURES: dict[str, tuple[Show, int, str]] = {
    f"{name}-{width}-{theme}.png": (show, width, theme)
    for name, show in PAGES.items()
    for width in WIDTHS
    for theme in THEMES
} | {f"operator-1280-{theme}.png": (show_operator, 1280, theme) for theme in THEMES}
"""The page, the width of its window and the theme of every file. The call of `pay` comes after the pages that it would change."""


async def install_wallet(watched: WatchedPage, shown: ShownGateway, account: FundedAccount) -> None:
    driver = shown.cluster.driver
    wallet = WalletDouble(driver=driver, accounts=[account], chain_id=int(driver.chain_id))
    await wallet.install(watched.context)


async def sign_in(watched: WatchedPage, shown: ShownGateway, path: str) -> None:
    await install_wallet(watched, shown, READER)
    await watched.goto(path)
    await watched.page.get_by_role("button", name="Test wallet").click()
    await watched.page.wait_for_url(f"**{path}")


# ---- The pictures.


async def make_pictures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    async with run_shown_gateway() as shown, open_browser() as browser:
        blank = await browser.new_page()
        for name, (show, width, theme) in PICTURES.items():
            picture = await take_picture(browser, blank, shown, show=show, width=width, theme=theme)
            (folder / name).write_bytes(picture)
            print(f"{name}: {len(picture):,} bytes")


async def make_preview() -> None:
    async with open_browser() as browser:
        card, blank = await browser.new_page(), await browser.new_page()
        await card.set_viewport_size({"width": PREVIEW_WIDTH, "height": PREVIEW_HEIGHT})
        await card.set_content(_CARD)
        _, pixels = await blank.evaluate(_DECODE, base64.b64encode(await card.screenshot()).decode())
    PREVIEW.write_bytes(write_png(base64.b64decode(pixels), width=PREVIEW_WIDTH))


@contextlib.asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    os.environ.setdefault("PLAYWRIGHT_NODEJS_PATH", find_node())
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**find_browser().launch_options())
        yield browser
        await browser.close()


async def take_picture(
    browser: Browser, blank: Page, shown: ShownGateway, *, show: Show, width: int, theme: Any
) -> bytes:
    base_url = shown.admin_url if show is show_operator else shown.gateway.base_url
    window = {"width": width, "height": WIDTHS[width]}
    async with watch_page(browser, base_url, color_scheme=theme, viewport=window) as watched:
        await show(watched, shown)
        await watched.check()
        await watched.page.mouse.move(0, 0)
        await watched.evaluate("document.activeElement.blur(), scrollTo(0, 0), true")
        await watched.evaluate(_RENAME % (json.dumps(platform.node() + ":"), json.dumps(HOST + ":")))
        written = await watched.page.screenshot(full_page=True, animations="disabled")
    real_width, pixels = await blank.evaluate(_DECODE, base64.b64encode(written).decode())
    assert real_width == width
    return write_png(base64.b64decode(pixels), width=width)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.system.browser.screenshots")
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES, help="where the pictures are written")
    folder = parser.parse_args().folder
    asyncio.run(make_preview() if folder == Path("preview") else make_pictures(folder))


if __name__ == "__main__":
    main()
