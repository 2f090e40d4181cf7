"""Where HTML replaces a JSON problem: a table of clients, real headers of each, at gateway calls and at paths without a page."""

import re

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import InProcessGateway
from tests.kit.pages import BROWSER
from tests.kit.upstream import plain as upstream_answer
from tollway.money import Price
from tollway.web.http.page_response import accepts_gzip, is_navigation, is_page_path, names_html
from tollway.web.pages.kept_call import TARGET_LENGTH_MAX

Headers = list[tuple[bytes, bytes]]


def headers(**given: str) -> Headers:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]


CHROMIUM = [(name.lower().encode(), value.encode()) for name, value in BROWSER.items()]
CLIENTS: dict[str, tuple[Headers, bool]] = {
    "Chromium navigates": (CHROMIUM, True),
    "Firefox navigates": (
        headers(
            accept="text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            sec_fetch_dest="document",
            sec_fetch_mode="navigate",
            sec_fetch_site="none",
            sec_fetch_user="?1",
            upgrade_insecure_requests="1",
        ),
        True,
    ),
    "curl": (headers(user_agent="curl/8.14.1", accept="*/*"), False),
    "Python requests": (
        headers(user_agent="python-requests/2.32.5", accept_encoding="gzip, deflate", accept="*/*"),
        False,
    ),
    "httpx": (headers(accept="*/*", accept_encoding="gzip", user_agent="python-httpx/0.28.1"), False),
    "undici fetch": (
        headers(accept="*/*", accept_language="*", sec_fetch_mode="cors", user_agent="node"),
        False,
    ),
    "@x402/fetch": (headers(accept="*/*", sec_fetch_mode="cors", user_agent="node"), False),
    "@x402/axios": (headers(accept="application/json, text/plain, */*", user_agent="axios/1.21.1"), False),
    "x402-fetch": (headers(accept="*/*", sec_fetch_mode="cors"), False),
    "mppx": (headers(accept="*/*", sec_fetch_mode="cors"), False),
    "x402 for Python": (headers(accept="*/*", user_agent="python-httpx/0.28.1"), False),
    "no Accept": ([], False),
    "a crawler with a browser's Accept": (
        headers(accept=BROWSER["Accept"], user_agent="Mozilla/5.0 (compatible; Crawler/1.0)"),
        False,
    ),
    "fetch of a page": (headers(accept="*/*", sec_fetch_mode="cors", sec_fetch_dest="empty"), False),
    "an image of a page": (
        headers(accept="text/html,image/*", sec_fetch_mode="no-cors", sec_fetch_dest="image"),
        False,
    ),
    "a frame": (headers(accept="text/html", sec_fetch_mode="navigate", sec_fetch_dest="iframe"), False),
    "HTML refused": (
        headers(accept="text/html;q=0, */*", sec_fetch_mode="navigate", sec_fetch_dest="document"),
        False,
    ),
    "no navigation": (
        headers(accept="text/html", sec_fetch_mode="same-origin", sec_fetch_dest="document"),
        False,
    ),
    "any type": (headers(accept="*/*", sec_fetch_mode="navigate", sec_fetch_dest="document"), False),
}
PROOFS = (
    b"x-payment-tx",
    b"x-payment-network",
    b"x-signature",
    b"x-signature-params",
    b"payment-signature",
    b"x-payment",
    b"signature",
    b"signature-input",
    b"sign-in-with-x",
    b"authorization",
    b"idempotency-key",
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_only_a_browser_that_navigates_is_shown_html(method: str) -> None:
    found = {
        client: is_navigation({"method": method, "headers": sent}) for client, (sent, _) in CLIENTS.items()
    }
    assert found == {client: is_html and method != "POST" for client, (_, is_html) in CLIENTS.items()}


def test_a_request_with_a_proof_is_no_navigation() -> None:
    requests = {name: {"method": "GET", "headers": [*CHROMIUM, (name, b"x")]} for name in PROOFS}
    assert [name for name, scope in requests.items() if is_navigation(scope)] == []


def text_of(sent: Headers) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in sent]


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_402_is_html_for_a_browser_and_the_same_json_for_all_others(
    gateway: InProcessGateway, client: str
) -> None:
    sent, is_html = CLIENTS[client]
    listing = await gateway.publish()
    plain = await gateway.ask(target="/quote")
    shown = await gateway.ask(target="/quote", headers=text_of(sent))
    assert plain.status == shown.status == 402
    assert is_page(shown) == is_html
    if not is_html:
        assert shown.problem["code"] == "payment_required"
        assert "vary" not in shown.headers
        return
    own = {"content-type", "content-length", "cache-control", "www-authenticate", "payment-required"}
    kept = {
        name: value
        for name, value in plain.headers.items()
        if name not in own and not name.startswith("access-control-")
    }
    assert kept.items() <= shown.headers.items()
    assert {"www-authenticate", "payment-required", "content-security-policy"} <= shown.headers.keys()
    assert shown.headers["cache-control"] == "no-store"
    assert shown.headers["vary"] == "Accept, Sec-Fetch-Dest, Sec-Fetch-Mode"
    assert shown.headers["content-length"] == str(len(shown.body))
    assert b"0.01 USDC" in shown.body
    assert b"req_test" in shown.body
    assert f'href="/apis/{listing.id}?method=GET&amp;target=%2Fquote#try"'.encode() in shown.body


@pytest.mark.parametrize(
    ("target", "kept"),
    [
        (
            "/quote/a%2Fb?x=%26&y=%3Cb%3E",
            "?method=GET&amp;target=%2Fquote%2Fa%252Fb%3Fx%3D%2526%26y%3D%253Cb%253E#try",
        ),
        ("", "?method=GET&amp;target=#try"),
        ("/" + "x" * TARGET_LENGTH_MAX, ""),
    ],
)
async def test_a_402_leads_to_a_form_with_its_call(gateway: InProcessGateway, target: str, kept: str) -> None:
    listing = await gateway.publish()
    shown = await gateway.ask(target=target, headers=text_of(CHROMIUM))
    (link,) = re.findall(rf'href="/apis/{listing.id}([^"]*)"', shown.body.decode())
    assert link == kept


@pytest.mark.parametrize("listing", ["api_none", "x"])
async def test_a_404_of_a_gateway_call_is_html_for_a_browser(gateway: InProcessGateway, listing: str) -> None:
    shown = await gateway.ask(headers=text_of(CHROMIUM), listing=listing)
    assert (shown.status, is_page(shown)) == (404, True)
    assert not is_page(await gateway.ask(listing=listing))


async def test_a_410_of_a_gateway_call_is_html_for_a_browser(gateway: InProcessGateway) -> None:
    await gateway.publish(retired_ms=1)
    shown = await gateway.ask(headers=text_of(CHROMIUM))
    assert (shown.status, is_page(shown)) == (410, True)
    assert b"api_retired" in shown.body
    plain = await gateway.ask()
    assert (plain.status, is_page(plain), plain.problem["code"]) == (410, False, "api_retired")


async def test_other_refusals_of_gateway_calls_stay_json(gateway: InProcessGateway) -> None:
    await gateway.publish(status="paused")
    shown = await gateway.ask(headers=text_of(CHROMIUM))
    assert (shown.status, is_page(shown)) == (503, False)


async def test_a_head_of_a_browser_has_the_headers_of_the_page(gateway: InProcessGateway) -> None:
    await gateway.publish()
    shown = await gateway.ask("HEAD", headers=text_of(CHROMIUM))
    assert (shown.status, is_page(shown), shown.body) == (402, True, b"")


async def test_a_response_of_an_api_is_never_replaced(gateway: InProcessGateway) -> None:
    await gateway.publish(price=Price.parse("0"))
    gateway.upstream.answer = upstream_answer(
        b"{}", status=404, headers=("content-type: application/problem+json",)
    )
    shown = await gateway.ask(headers=text_of(CHROMIUM))
    assert (shown.status, shown.body) == (404, b"{}")
    assert shown.headers["content-type"] == "application/problem+json"


def is_page(exchange: Exchange) -> bool:
    return exchange.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("path", "is_page_of_ours"),
    [
        ("/", True),
        ("/apis/api_1", True),
        ("/apis", False),
        ("/status", True),
        ("/statuses", False),
        ("/my", True),
        ("/my/calls", True),
        ("/mystery", False),
        ("/problems/x", True),
        ("/api/v2/apis", False),
        ("/docs", False),
        ("/docs/operations/listing-create", True),
        ("/docs/schemas/Listing", True),
        ("/docs/payment.json", False),
    ],
)
def test_the_paths_of_pages(path: str, is_page_of_ours: bool) -> None:
    assert is_page_path(path) == is_page_of_ours


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.0", False),
        ("identity", False),
        ("xgzip", False),
        ("", False),
    ],
)
def test_gzip_is_used_where_it_is_named(header: str, wanted: bool) -> None:
    assert accepts_gzip(header) == wanted


def test_html_is_named_not_implied() -> None:
    assert names_html("text/html;level=1")
    assert not names_html("*/*, text/*")
