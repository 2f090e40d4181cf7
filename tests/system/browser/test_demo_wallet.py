"""The first minute: the link that the demo prints, a click, and a paid call with its stamp, in a browser without any wallet."""

import struct
import zlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from tests.system.browser.call_panel import pay_button, slip, stamp
from tests.system.browser.watched_page import WatchedPage, watch_page
from tollway.cli.demo_run import DemoEnvironment, DemoOptions, open_environment
from tollway.sandbox.tour import Tour
from tollway.web.pages.assets import read_assets

pytestmark = pytest.mark.asyncio(loop_scope="session")


class RunningDemo:
    """A demo in this process, with the API of its walk-through."""

    def __init__(self, environment: DemoEnvironment, api_id: str) -> None:
        self.wallet = environment.demo_wallet
        self.address = str(environment.playground.account("browser").address)
        self.key = environment.playground.account("browser").private_key
        self.base_url = environment.gateway_url
        self.path = f"/apis/{api_id}"

    def link(self) -> str:
        return self.path + self.wallet.make_fragment()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def demo() -> AsyncIterator[RunningDemo]:
    options = DemoOptions(is_once=False, port=0, chain_port=0, sandbox_file=None)
    async with open_environment(options) as environment:
        tour = Tour(
            gateway_url=environment.gateway_url,
            upstream_url=environment.provider.base_url,
            put_file=environment.provider.put_file,
            driver=environment.driver,
            playground=environment.playground,
            http=environment.http,
            report=lambda event: None,
            claim=environment.claim,
        )
        yield RunningDemo(environment, (await tour.run()).api_id)


async def pay(page: Page) -> None:
    """The answer that was paid is a QR code, drawn on the page, and no scroll is needed to see it."""
    await pay_button(page).click()
    await expect(stamp(page)).to_have_text("CHARGED")
    picture = page.get_by_role("img", name="The picture of the answer")
    await expect(picture).to_be_in_viewport(ratio=1)
    await expect(stamp(page)).to_be_in_viewport(ratio=1)
    box = await picture.bounding_box()
    assert box is not None
    assert box["width"] == box["height"] > 200
    await expect(slip(page).locator(".ticket-note")).to_have_text(["You were charged 0.01 USDC."])


@pytest.mark.parametrize("size", [(1280, 720), (1440, 900), (900, 700), (360, 640)])
async def test_a_link_and_a_click_pay_a_call(
    browser: Browser, demo: RunningDemo, size: tuple[int, int]
) -> None:
    window = {"width": size[0], "height": size[1]}
    async with watch_page(browser, demo.base_url, viewport=window) as watched:
        page = watched.page
        await watched.goto(demo.link())
        await expect(page.locator("[data-demo-wallet]")).to_contain_text(demo.address)
        assert page.url == demo.base_url + demo.path  # the token has left the address bar
        await watched.check()
        await pay(page)
        assert demo.address in await slip(page).inner_text()
        await watched.check()
        await page.reload()  # the session is of the tab
        await pay(page)
        stored = await watched.evaluate(
            "JSON.stringify({...sessionStorage, ...localStorage}) + document.cookie"
        )
        assert demo.key[2:] not in stored + await page.content()


async def test_a_transaction_and_a_sign_in_use_the_same_wallet(browser: Browser, demo: RunningDemo) -> None:
    async with watch_page(browser, demo.base_url) as watched:
        page = watched.page
        await watched.goto(demo.link())
        await expect(page.locator("[data-demo-wallet]")).to_be_visible()
        await page.get_by_label("a transaction on").check()
        await pay(page)
        await watched.goto("/my/calls")
        await page.get_by_role("button", name="Demo wallet").click()
        await page.wait_for_url("**/my/calls")
        await expect(page.locator("main")).to_contain_text("charged")
        await watched.check()


async def test_a_used_link_says_where_the_next_one_is(browser: Browser, demo: RunningDemo) -> None:
    link = demo.link()
    async with watch_page(browser, demo.base_url) as first, watch_page(browser, demo.base_url) as second:
        await first.goto(link)
        await expect(first.page.locator("[data-demo-wallet]")).to_contain_text(demo.address)
        await second.goto(link)
        await expect(second.page.locator("[data-demo-wallet]")).to_contain_text("printed a new one")
        await second.check()
        await expect(pay_button(second.page)).to_have_text("No wallet here: call from a program")


def make_png(width: int, height: int) -> bytes:
    """A PNG that says it has this size, with the pixels of one row."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((min(width, 4096) + 1) * min(height, 64)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("picture", "width"),
    [
        (make_png(3, 2), 3),
        (make_png(2048, 2), 2048),
        (make_png(2049, 2), None),
        (make_png(1, 1 << 31), None),
        (make_png(0, 1), None),
        (make_png(3, 2)[:30], None),
        (make_png(3, 2)[:12], None),
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", None),
        (b"", None),
    ],
)
async def test_a_hostile_picture_is_not_drawn(
    browser: Browser, demo: RunningDemo, picture: bytes, width: int | None
) -> None:
    async with watch_page(browser, demo.base_url) as watched:
        await watched.goto(demo.path)
        found = await watched.evaluate(
            f"import('{read_assets().path_of('picture.js')}').then(one => one.drawPicture(new Blob([new Uint8Array({list(picture)})]), 'x')).then(one => one && one.width)"
        )
        assert found == width


async def test_a_page_of_another_origin_reaches_no_wallet(browser: Browser, demo: RunningDemo) -> None:
    """The chain's node on another port of this machine stands for any other site."""
    async with watch_page(browser, demo.base_url) as watched:
        await watched.goto(demo.link())
        await expect(watched.page.locator("[data-demo-wallet]")).to_contain_text(demo.address)
        session = await watched.evaluate("JSON.parse(sessionStorage['tollway demo wallet']).session")
        await reach_from_elsewhere(watched, demo, session)


async def reach_from_elsewhere(watched: WatchedPage, demo: RunningDemo, session: str) -> None:
    elsewhere = demo.base_url.replace("127.0.0.1", "evil.localhost")
    await watched.page.route(
        f"{elsewhere}/", lambda route: route.fulfill(body="<title>x</title>", content_type="text/html")
    )
    await watched.page.goto(f"{elsewhere}/")
    body = f'{{"session": "{session}", "method": "personal_sign", "params": ["0x00", "{demo.address}"]}}'
    for mode in ("cors", "no-cors"):
        outcome = await watched.evaluate(
            f"fetch('{demo.base_url}/my/demo-wallet', {{method: 'POST', mode: '{mode}', body: `{body}`}}).then(a => a.type + a.status, () => 'blocked')"
        )
        assert outcome in ("blocked", "opaque0")
