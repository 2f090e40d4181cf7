"""The navigation: five sections, the tabs of a section, and the place of each page in them. It is the same for every reader."""

import re

import pytest

from tests.kit.pages import BROWSER, PageHarness, PageReader
from tests.kit.signed_in import READER, open_signed_in
from tollway.discovery.gateway_operator import GatewayOperator
from tollway.web.pages.renderer import PUBLIC_SECTIONS, Frame

SECTIONS = {"/": "Find", "/my": "My calls", "/my/selling": "My APIs", "/status": "Status", "/docs": "Docs"}
CALL_TABS = ["/my", "/my/calls", "/my/credit", "/my/spending", "/my/budgets", "/my/wallets"]
API_TABS = ["/my/selling", "/my/apis", "/my/sales", "/my/sales?state=held", "/my/webhooks"]
LINK = re.compile(r'<a href="([^"]*)"(?: aria-current="(page|true)")?>')


def links_of(page: str, name: str) -> dict[str, str]:
    """The links of a navigation, with the value of `aria-current`."""
    found = page.partition(f'<nav aria-label="{name}">')[2] or page.partition(f' aria-label="{name}">')[2]
    return dict(LINK.findall(found.partition("</nav>")[0]))


def frame_at(path: str) -> Frame:
    return Frame(
        sections=PUBLIC_SECTIONS,
        current=path,
        theme="",
        language="en",
        languages=(),
        test_money="none",
        request_id="",
        account=None,
        operator=GatewayOperator(),
        logo_path=None,
        now_ms=0,
    )


@pytest.mark.parametrize(
    ("path", "section", "tab"),
    [
        ("/", ("/", "page"), None),
        ("/apis/api_1", ("/", "true"), None),
        ("/status", ("/status", "page"), None),
        ("/docs/operations/createApi", ("/docs", "true"), None),
        ("/my", ("/my", "page"), ("/my", "page")),
        ("/my/calls", ("/my", "true"), ("/my/calls", "page")),
        ("/my/calls/call_1", ("/my", "true"), ("/my/calls", "true")),
        ("/my/credit/0x12", ("/my", "true"), ("/my/credit", "true")),
        ("/my/selling", ("/my/selling", "page"), ("/my/selling", "page")),
        ("/my/apis/new", ("/my/selling", "true"), ("/my/apis", "true")),
        ("/my/sales", ("/my/selling", "true"), ("/my/sales", "page")),
        ("/my/sales?state=held", ("/my/selling", "true"), ("/my/sales?state=held", "page")),
        ("/problems", None, None),
        ("/signin", None, None),
        ("/mylar", None, None),
    ],
)
def test_a_page_has_one_place_in_the_navigation(
    path: str, section: tuple[str, str] | None, tab: tuple[str, str] | None
) -> None:
    frame = frame_at(path)
    assert {one.href: one.label for one in frame.sections} == SECTIONS
    places = [(one.href, frame.place_in(one)) for one in frame.sections if frame.place_in(one)]
    assert places == ([] if section is None else [section])
    tabs = () if frame.section is None else frame.section.tabs
    assert [(one.href, frame.place_in(one)) for one in tabs if frame.place_in(one)] == (
        [] if tab is None else [tab]
    )


async def test_every_tab_leads_to_a_page_that_marks_it() -> None:
    async with open_signed_in() as harness:
        await harness.sign_in(READER)
        for section, name, tabs in (("/my", "My calls", CALL_TABS), ("/my/selling", "My APIs", API_TABS)):
            for tab in tabs:
                page = (await harness.browser.get(tab, headers=BROWSER)).text
                assert list(links_of(page, "Main")) == list(SECTIONS)
                assert links_of(page, "Main")[section] == ("page" if tab == section else "true"), tab
                assert links_of(page, name) == {one: "page" if one == tab else "" for one in tabs}
                assert '<button class="quiet-button">Sign out</button>' in page
                assert f'title="{READER.address}"' in page


async def test_a_public_page_of_a_signed_in_reader_is_the_same_page() -> None:
    async with open_signed_in() as harness:
        await harness.sign_in(READER)
        for path in ("/", "/status", "/docs", "/problems", "/nowhere"):
            cookie = harness.browser.headers.get("cookie", "")
            own = (await harness.browser.get(path, headers=BROWSER)).text
            harness.browser.cookies.clear()
            other = (await harness.browser.get(path, headers={**BROWSER, "cookie": ""})).text
            strip = re.compile(r"req_[0-9a-f]+")
            assert strip.sub("", own) == strip.sub("", other), (path, cookie)
            assert "Sign in" not in PageReader(own).words


async def test_the_documentation_of_the_settings_is_one_click_away_on_every_page() -> None:
    url = "https://docs.rain.example/"
    async with PageHarness(operator=GatewayOperator(docs_url=url)).open_pages() as client:
        for path in ("/", "/status", "/docs", "/problems", "/nowhere"):
            text = (await client.get(path, headers=BROWSER)).text
            assert f'<a href="{url}" rel="noreferrer noopener">Documentation</a>' in text
    async with PageHarness().open_pages() as client:
        assert "Documentation" not in PageReader((await client.get("/")).text).words
