"""The public pages in a browser: accessible and narrow enough in every state, whole without JavaScript, small, and silent under their policy."""

import contextlib
import functools
import html
import http.server
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route

from tests.kit.threaded_server import serve_in_thread
from tests.system.browser.small_png import write_png
from tests.system.browser.watched_page import WatchedPage, watch_page
from tollway.sandbox.provider import SAMPLE_DOCUMENT

pytestmark = pytest.mark.asyncio(loop_scope="session")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A gateway with listings. `paths`: of each page, by its name."""

    cluster: Any
    gateway: Any
    provider: Any
    api_id: str
    paths: dict[str, str]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    """Its operator has a name without a space and a wide logo, which no page may be wider for."""
    gas = await cluster.wallet()
    logo = tmp_path_factory.mktemp("operator") / "logo.png"
    logo.write_bytes(write_png(bytes((11, 93, 75, 255)) * 400 * 40, width=400))
    operator = {
        "TOLLWAY_OPERATOR_NAME": "W" * 80,
        "TOLLWAY_OPERATOR_URL": "https://operator.example",
        "TOLLWAY_OPERATOR_CONTACT": "mailto:ops@operator.example",
        "TOLLWAY_OPERATOR_LOGO": str(logo),
        "TOLLWAY_TERMS_URL": "https://operator.example/terms",
    }
    settings = {"TOLLWAY_GAS_KEYS_SANDBOX": gas.private_key, **operator}
    async with cluster.gateway(settings=settings) as gateway:
        provider = await cluster.wallet()
        api_id = await cluster.publish(
            gateway,
            provider,
            name="Sample quotes",
            description="Quotes that mean nothing.\n\nA second paragraph, with a <b>tag</b>.",
            tags=["quotes", "sample"],
            openapi=SAMPLE_DOCUMENT,
        )
        for number in range(24):
            price = "0" if number % 5 == 0 else f"0.{number + 1:02d}"
            await cluster.publish(
                gateway, provider, name=f"Listing {number} " + "long " * 12, pricePerRequest=price
            )
        paths = {
            "search": "/",
            "results": "/?q=listing&tag=&sort=price",
            "empty": "/?q=nothing",
            "error": "/?maxPrice=abc&minSuccessRate=7",
            "api": f"/apis/{api_id}",
            "operation": f"/apis/{api_id}?operation=echo",
            "api not found": "/apis/api_none",
            "provider": f"/providers/{provider.address}",
            "status": "/status",
            "reference": "/docs",
            "reference of an operation": "/docs/operations/createApi",
            "reference of a schema": "/docs/schemas/ListingDraft",
            "problems": "/problems",
            "problem": "/problems/payment-outcome-unknown",
            "not found": "/nowhere",
            "payment required": f"/api/v2/gateway/{api_id}/quote/ETH",
        }
        yield Site(cluster=cluster, gateway=gateway, provider=provider, api_id=api_id, paths=paths)


@contextlib.asynccontextmanager
async def open_page(
    browser: Browser, site: Site, *, theme: Any = "light", width: int = 1280, **more: Any
) -> AsyncIterator[WatchedPage]:
    options = {"color_scheme": theme, "viewport": {"width": width, "height": 800}, **more}
    async with watch_page(browser, site.gateway.base_url, **options) as watched:
        yield watched


@pytest.mark.parametrize(("theme", "width", "half"), [("dark", 1280, 0), ("light", 320, 1)])
async def test_pages_are_accessible_and_fit_beside_the_corners(
    browser: Browser, site: Site, theme: str, width: int, half: int
) -> None:
    """The corners of theme and width are those of `test_corner_states`."""
    async with open_page(browser, site, theme=theme, width=width) as watched:
        for path in list(site.paths.values())[half::2]:
            await watched.goto(path)
            await watched.check_states()


async def test_the_theme_switch_is_kept_by_a_cookie(browser: Browser, site: Site) -> None:
    async with open_page(browser, site) as watched:
        await watched.goto("/")
        await watched.page.get_by_role("button", name="Dark").click()
        await watched.check()
        assert await watched.page.locator("html").get_attribute("data-theme") == "dark"
        await watched.goto("/status")
        assert await watched.page.locator("html").get_attribute("data-theme") == "dark"
        await watched.page.get_by_role("button", name="Light").click()
        await watched.goto("/problems")
        assert await watched.page.locator("html").get_attribute("data-theme") == "light"


async def test_pages_are_whole_without_javascript(browser: Browser, site: Site) -> None:
    async with open_page(browser, site, java_script_enabled=False) as watched:
        page = watched.page
        await watched.goto("/")
        await page.get_by_role("searchbox").fill("quotes")
        await page.get_by_role("button", name="Search").click()
        await page.get_by_role("link", name="Sample quotes").click()
        assert await page.locator("h1").inner_text() == "Sample quotes"
        await page.get_by_role("link", name="POST /echo").click()
        assert "operation=" in page.url
        address = str(site.provider.address)
        await page.get_by_role("link", name=f"{address[:6]}…{address[-4:]}").click()
        assert "Sells 25 APIs" in await page.locator("main").inner_text()
        await page.get_by_role("link", name="next").click()
        assert await page.get_by_role("link", name="previous").count() == 1
        assert await page.get_by_role("button", name="Dark").count() == 0, (
            "a switch that needs JavaScript is hidden"
        )
        assert watched.complaints == []


async def test_the_keyboard_alone_reaches_an_operation(browser: Browser, site: Site) -> None:
    async with open_page(browser, site) as watched:
        page = watched.page
        await watched.goto("/?q=sample")
        await page.keyboard.press("Tab")
        assert await page.locator(":focus").inner_text() == "Skip to the content"
        await page.keyboard.press("Enter")
        for _ in range(30):
            await page.keyboard.press("Tab")
            if await page.locator(":focus").inner_text() == "Sample quotes":
                break
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/apis/*")
        assert await page.locator("h1").inner_text() == "Sample quotes"


async def test_the_words_of_a_page_may_be_longer(browser: Browser, site: Site) -> None:
    """Words that are 40 % longer, as in other languages, make no page wider than a phone."""
    async with open_page(browser, site, width=320) as watched:
        for path in site.paths.values():
            await watched.goto(path)
            await watched.evaluate(
                "(() => { const w = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); const all = [];"
                " while (w.nextNode()) all.push(w.currentNode);"
                " for (const n of all) n.data = n.data.replace(/[a-zA-Z]{3,}/g, t => t + 'x'.repeat(Math.ceil(t.length * .4)));"
                " return true; })()"
            )
            wider = await watched.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert wider == 0, path


@pytest.fixture
def embedding_url() -> Iterator[str]:
    """A page of another origin, without a policy, that shows words, and the URL of its query in a frame."""

    class Embedding(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            framed = parse_qs(urlsplit(self.path).query).get("frame", [])
            frames = "".join(f'<iframe src="{html.escape(one)}"></iframe>' for one in framed)
            body = f"<!doctype html><title>Another site</title>Words of Tollway.{frames}".encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Writes no log."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Embedding)
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/"


@pytest.mark.parametrize(
    ("name", "is_framed"), [("status", False), ("search", False), ("reference", False), (None, True)]
)
async def test_a_page_in_a_frame_of_another_site_stays_empty(
    browser: Browser, site: Site, embedding_url: str, name: str | None, is_framed: bool
) -> None:
    """None: a page without a policy is shown, so the frame itself works."""
    framed = embedding_url if name is None else site.gateway.base_url + site.paths[name]
    query = urlencode({"frame": framed})
    async with open_page(browser, site) as watched:
        await watched.page.goto(f"{embedding_url}?{query}", wait_until="load")
        (frame,) = watched.page.frames[1:]
        text = await frame.locator("body").inner_text()
        assert ("Tollway" in text) == is_framed, text
        refusals = [one for one in watched.complaints if "Content Security Policy" in one]
        assert bool(refusals) != is_framed, watched.complaints


async def test_a_script_of_an_api_does_not_run_on_a_page(browser: Browser, site: Site) -> None:
    """Responses of strangers' APIs have the origin of the pages. The policy names scripts by path. A script in the markup is not fetched."""
    source = f"/api/v2/gateway/{site.api_id}/x.js"
    async with open_page(browser, site) as watched:
        fetched: list[str] = []

        async def answer(route: Route) -> None:
            fetched.append(route.request.url)
            await route.fulfill(content_type="text/javascript", body="document.title = 'run'")

        await watched.page.route(f"**{source}", answer)
        await watched.page.route("**/status", functools.partial(_add_script, source=source))
        await watched.goto("/status")
        assert await watched.page.locator("script[data-stranger]").count() == 1
        assert any("Content Security Policy" in one and source in one for one in watched.complaints)
        assert fetched == []
        assert await watched.page.title() != "run"


async def _add_script(route: Route, *, source: str) -> None:
    """Adds a script to the markup of a page, and leaves its headers."""
    response = await route.fetch()
    script = f'<script data-stranger src="{source}"></script></body>'
    await route.fulfill(response=response, body=(await response.text()).replace("</body>", script))
