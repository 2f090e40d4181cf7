"""A page of a browser that collects what must not happen: CSP reports, requests to other hosts, console errors. And what is checked in every state of a page.

Under the pages' policy `evaluate` of text fails, so axe and measurements run through CDP, which may pass the policy; tests of flows never switch it off.
"""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, BrowserContext, CDPSession, Page, Route, expect

ROOT = Path(__file__).parents[3]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
AXE_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
STATUS_LINE = "Failed to load resource: the server responded with a status of"
"""The browser's own line about a 4xx or 5xx. It is no error of a page."""
TABS_MAX = 60


@dataclass(kw_only=True)
class WatchedPage:
    """`base_url`: of the gateway. `complaints`: what must stay empty."""

    page: Page
    context: BrowserContext
    devtools: CDPSession
    base_url: str
    complaints: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    async def goto(self, path: str) -> int:
        answer = await self.page.goto(self.base_url + path)
        assert answer is not None
        return answer.status

    async def evaluate(self, script: str) -> Any:
        """The value of an expression, outside of the page's policy."""
        answer = await self.devtools.send(
            "Runtime.evaluate",
            {
                "expression": script,
                "awaitPromise": True,
                "returnByValue": True,
                "allowUnsafeEvalBlockedByCSP": True,
            },
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def tab_to(self, selector: str) -> None:
        """Presses Tab until the element has the focus. Every element on the way shows that it has it."""
        for _ in range(TABS_MAX):
            await self.page.keyboard.press("Tab")
            is_visible = await self.evaluate(
                "(() => { const style = getComputedStyle(document.activeElement); "
                "return style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2; })()"
            )
            assert is_visible, await self.evaluate("document.activeElement.outerHTML.slice(0, 200)")
            if await self.evaluate(f"document.activeElement.matches({selector!r})"):
                return
        raise AssertionError(f"{TABS_MAX} times Tab did not reach {selector}")

    async def push(self, selector: str) -> None:
        """Goes to a button, a link or a fold by Tab, and presses Enter."""
        await self.tab_to(selector)
        await self.page.keyboard.press("Enter")

    async def check(self) -> None:
        """In any state of the page: axe finds nothing, nothing scrolls sideways, and there are no complaints."""
        await (
            self.page.wait_for_load_state()
        )  # a click may have led here: without its styles a page is another one
        found = await self.find_violations()
        assert not found, "\n".join([self.page.url, *found])
        width = await self.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert width == 0, f"{self.page.url} is {width} px wider than its window"
        assert not self.complaints, self.complaints

    async def check_states(self) -> None:
        """The page as it came, and with everything open that can be open at once."""
        await self.check()
        closed = self.page.locator("details:not([open]) > summary:visible")
        count = await closed.count()
        for _ in range(count):
            if await closed.count():  # of `details` with one name, opening one closes another
                await closed.first.click()
        if count:
            await self.check()

    async def find_violations(self) -> list[str]:
        """What axe-core finds, each with the first element."""
        await self.evaluate(AXE.read_text() + "; true")
        options = json.dumps({"runOnly": list(AXE_TAGS), "resultTypes": ["violations"]})
        found = await self.evaluate(
            f"axe.run(document, {options}).then(r => JSON.stringify(r.violations.map(v => "
            "v.id + ': ' + v.help + ' at ' + v.nodes.map(n => n.html + n.failureSummary).slice(0, 2).join(' | '))))"
        )
        return list(json.loads(found))


@contextlib.asynccontextmanager
async def watch_page(browser: Browser, base_url: str, **options: Any) -> AsyncIterator[WatchedPage]:
    """A page in a context of its own. `options`: of the context, such as `viewport` and `color_scheme`."""
    options.setdefault("viewport", {"width": 1280, "height": 900})
    context = await browser.new_context(reduced_motion="reduce", **options)
    context.set_default_timeout(15_000)
    page = await context.new_page()
    devtools = await context.new_cdp_session(page)
    watched = WatchedPage(page=page, context=context, devtools=devtools, base_url=base_url)

    def note_console(message: Any) -> None:
        if message.type == "error" and not message.text.startswith(STATUS_LINE):
            watched.complaints.append(message.text)

    def note_request(request: Any) -> None:
        if not request.url.startswith((base_url + "/", "blob:", "data:")):
            watched.complaints.append(f"request to {request.url}")

    def note_size(event: dict[str, Any]) -> None:
        watched.sizes[event["requestId"]] = int(event["encodedDataLength"])

    page.on("console", note_console)
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.on("request", note_request)
    devtools.on("Network.loadingFinished", note_size)
    await devtools.send("Network.enable")
    try:
        yield watched
    finally:
        await context.close()


@contextlib.asynccontextmanager
async def watch_operator_page(browser: Browser, link: str, **options: Any) -> AsyncIterator[WatchedPage]:
    """The first page of an operator that a link of `tollway gateway admin link` signs in."""
    admin_url, enter, code = link.partition("/enter?code=")
    async with watch_page(browser, admin_url, **options) as watched:
        await watched.goto(enter + code)
        await watched.check()
        await watched.page.get_by_role("button", name="Sign in").click()
        await expect(watched.page.get_by_role("heading", level=1)).to_have_text("What needs an operator")
        yield watched


def answer_by(client: httpx.AsyncClient, **own: str) -> Callable[[Route], Awaitable[None]]:
    """Answers requests of a browser by the application of a client, with these headers in place of the browser's. A redirect of a form is followed here: a browser
    follows none that a route of its own answers."""

    async def answer(route: Route) -> None:
        request = route.request
        given = await request.all_headers()
        headers = {name: value for name, value in given.items() if not name.startswith(":")} | own
        if request.is_navigation_request():  # a route sees requests before the browser adds these
            headers |= {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
        found = await client.request(
            request.method, request.url, headers=headers, content=request.post_data_buffer
        )
        if found.status_code == 303:
            lead = {name: value for name, value in headers.items() if not name.startswith("content-")}
            found = await client.get(found.headers["location"], headers=lead)
        sent = {name: value for name, value in found.headers.items() if name != "content-encoding"}
        await route.fulfill(status=found.status_code, headers=sent, body=found.content)

    return answer
