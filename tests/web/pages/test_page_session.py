"""The cookie of a page session, and what makes a form count."""

from urllib.parse import urlencode

import pytest
from starlette.requests import Request

from tollway.errors import Code, Refusal
from tollway.web.pages.page_session import FIELDS_MAX, FORM_TYPE, PAGE_COOKIE, make_form_token, read_form

ORIGIN = "https://gw.example.com"
TOKEN = "t" * 43
ROUTE = "/my/apis/{apiId}"
GOOD = {"sec-fetch-site": "same-origin", "content-type": FORM_TYPE}
FIELDS = {"form_token": make_form_token(TOKEN, ROUTE), "name": "Quotes", "description": ""}


def request_with(headers: dict[str, str], body: bytes = b"") -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    lines = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": lines, "query_string": b""}, receive)


async def read(
    headers: dict[str, str], fields: object = FIELDS, *, token: str | None = TOKEN, route: str = ROUTE
):
    body = fields if isinstance(fields, bytes) else urlencode(fields, doseq=True).encode()
    return await read_form(
        request_with(headers, body), session_token=token, route=route, origins=[ORIGIN], bytes_max=65_536
    )


@pytest.mark.parametrize(
    "headers",
    [
        GOOD,
        {"origin": ORIGIN, "content-type": FORM_TYPE},
        {**GOOD, "content-type": f"{FORM_TYPE}; charset=UTF-8"},
    ],
    ids=("by Fetch Metadata", "by Origin", "with a parameter"),
)
async def test_a_form_of_this_site_and_session_counts(headers: dict[str, str]) -> None:
    assert await read(headers) == {"name": ["Quotes"], "description": [""]}


@pytest.mark.parametrize(
    ("headers", "fields", "route"),
    [
        ({**GOOD, "sec-fetch-site": "cross-site"}, FIELDS, ROUTE),
        ({**GOOD, "sec-fetch-site": "same-site"}, FIELDS, ROUTE),
        ({**GOOD, "sec-fetch-site": "none"}, FIELDS, ROUTE),
        ({**GOOD, "sec-fetch-site": "cross-site", "origin": ORIGIN}, FIELDS, ROUTE),
        ({"content-type": FORM_TYPE}, FIELDS, ROUTE),
        ({"content-type": FORM_TYPE, "origin": "https://evil.example"}, FIELDS, ROUTE),
        ({"content-type": FORM_TYPE, "origin": "null"}, FIELDS, ROUTE),
        ({**GOOD, "content-type": "text/plain"}, FIELDS, ROUTE),
        ({"sec-fetch-site": "same-origin"}, FIELDS, ROUTE),
        (GOOD, {"name": "Quotes"}, ROUTE),
        (GOOD, {**FIELDS, "form_token": ""}, ROUTE),
        (GOOD, {**FIELDS, "form_token": make_form_token("u" * 43, ROUTE)}, ROUTE),
        (GOOD, FIELDS, "/my/apis/{apiId}/retire"),
        (GOOD, {**FIELDS, "form_token": [FIELDS["form_token"]] * 2}, ROUTE),
        (GOOD, {**FIELDS, "form_token": "é"}, ROUTE),
        (GOOD, b"name=%ff", ROUTE),
        (GOOD, b"name=\xff", ROUTE),
        (GOOD, b"&".join([b"a=1"] * (FIELDS_MAX + 1)), ROUTE),
    ],
    ids=(
        *("another site", "a sibling site", "no site", "another site that names this origin"),
        *("no word of where", "another origin", "an opaque origin", "another encoding", "no encoding"),
        *("no form token", "an empty one", "of another session", "of another route", "twice", "not ASCII"),
        *("no UTF-8", "raw bytes", "too many fields"),
    ),
)
async def test_every_other_form_is_refused(headers: dict[str, str], fields: object, route: str) -> None:
    with pytest.raises(Refusal) as caught:
        await read(headers, fields, route=route)
    assert caught.value.problem.reason == "form_refused"


async def test_a_form_that_opens_a_session_needs_the_origin_alone() -> None:
    assert await read(GOOD, {"message": "m"}, token=None) == {"message": ["m"]}
    with pytest.raises(Refusal):
        await read({**GOOD, "sec-fetch-site": "cross-site"}, {"message": "m"}, token=None)


def test_the_cookie_belongs_to_this_host_and_no_script_reads_it() -> None:
    assert PAGE_COOKIE.set(TOKEN, max_age_s=43_200) == (
        f"__Host-tollway={TOKEN}; Max-Age=43200; Path=/; Secure; HttpOnly; SameSite=Lax"
    )
    assert PAGE_COOKIE.clear() == "__Host-tollway=; Max-Age=0; Path=/; Secure; HttpOnly; SameSite=Lax"


@pytest.mark.parametrize(
    ("cookie", "found"),
    [
        (f"__Host-tollway={TOKEN}", TOKEN),
        (f"theme=dark; __Host-tollway={TOKEN}; lang=en", TOKEN),
        ("theme=dark", None),
        ("__Host-tollway=", None),
        (f"__Host-tollway={TOKEN}; __Host-tollway={TOKEN}", None),
        (f"x__Host-tollway={TOKEN}", None),
    ],
)
def test_the_cookie_is_read_once_or_not_at_all(cookie: str, found: str | None) -> None:
    assert PAGE_COOKIE.read(request_with({"cookie": cookie})) == found


async def test_a_form_has_a_maximum_size() -> None:
    with pytest.raises(Refusal) as caught:
        await read(GOOD, {**FIELDS, "name": "n" * 65_536})
    assert caught.value.problem.code is Code.PAYLOAD_TOO_LARGE
