"""The pages of a provider: the editor with its dry run, ownership, pause, retirement, held calls and sales."""

import csv
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from decimal import Decimal
from html import unescape
from io import StringIO
from typing import Any

import httpx
import pytest

from tests.kit.call_rows import call_record_row
from tests.kit.editor import (
    DOCUMENT,
    GOOD,
    HOSTILE,
    ONE,
    count_listings,
    error_of,
    field_of,
    list_prices,
    open_form,
    post_table,
    publish,
    stored,
    submit,
)
from tests.kit.ledger_records import claim_on, close_of
from tests.kit.listings import sample_listing
from tests.kit.pages import PageReader
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import (
    DAY_MS,
    NOW_MS,
    OTHER,
    READER,
    SELLER,
    TEXTS,
    USDC,
    SignedInHarness,
    open_signed_in,
)
from tollway.errors import Code, Problem, Refusal
from tollway.gateway.trial import TrialResult
from tollway.identity.http_signatures import encode_base64url
from tollway.ids import CallId, ListingId
from tollway.ledger.records import CallState
from tollway.ledger.sales import SUM_STATES
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.registry.listing import Listing
from tollway.registry.ownership import make_content
from tollway.registry.quality import Quality, Reputation
from tollway.web.http.admission import PROBES_PER_LISTING
from tollway.web.http.query import format_time
from tollway.web.pages.page_session import make_form_token
from tollway.web.pages.selling_views import LISTINGS_MAX


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    async with open_signed_in() as harness:
        await harness.sign_in(SELLER)
        yield harness


# ---- Test calls.


def make_result(**changes: Any) -> TrialResult:
    given = {
        "status": 200,
        "headers": [],
        "dropped": {},
        "body": b'{"weather": "rain"}',
        "is_cut": False,
        "latency_ms": 41,
        "call_id": CallId("call_1"),
        "is_charged": True,
        "price": Price.parse("0.02"),
        "currency": USDC.symbol,
    }
    return TrialResult(**{**given, **changes})


async def try_call(harness: SignedInHarness, listing: Listing, **fields: str) -> httpx.Response:
    given = {"method": "GET", "path": "/cities/oslo?x=1", "body": "", **fields}
    return await harness.post(f"/my/apis/{listing.id}/trial", given, route="/my/apis/{api_id}/trial")


async def test_a_new_listing_names_its_next_steps(harness: SignedInHarness) -> None:
    secret = {name: "" for name in GOOD if name.startswith("upstreamAuth")}
    listing = await publish(harness, **secret)
    page = await harness.read(f"/my/apis/{listing.id}?done=published")
    for words in (
        "Published. Next:",
        "Make a test call",
        "Prove that the endpoint is yours",
        "without payment",
    ):
        assert words in page.words
    assert {"#trial", "#ownership", "/my/webhooks", f"/apis/{listing.id}"} <= set(page.addresses)
    protected = await publish(harness, name="Weather with a secret")
    assert "without payment" not in (await harness.read(f"/my/apis/{protected.id}?done=published")).words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("HTTP 200", "41 ms", "a caller pays 0.02", '{"weather": "rain"}')),
        ({"is_charged": False, "status": 503}, ("HTTP 503", "a caller does not pay for it")),
        ({"body": HOSTILE.encode()}, (HOSTILE,)),
        ({"body": b"a\xe2\x80\xaeb\x00c"}, ("abc",)),
        ({"body": b"\xff\xfe"}, ("2 bytes that are no text",)),
        ({"body": b"x" * 60_000, "is_cut": True}, ("The rest is not shown.",)),
        ({"dropped": {"x-a": "it names the gateway"}}, ("x-a", "it names the gateway")),
        (
            {"price_max": Price.parse("1"), "quantities": (("token", 1_200), ("image", 1))},
            ("a caller pays 0.02", "The response states: 1,200 × token, 1 × image"),
        ),
        ({"price_max": Price.parse("1")}, ("a caller pays 0.02", "The response states no quantity")),
    ],
)
async def test_a_test_call_shows_what_a_caller_would_get(
    harness: SignedInHarness, changes: dict[str, Any], words: tuple[str, ...]
) -> None:
    listing = await publish(harness)
    harness.services.trials.outcome = make_result(**changes)
    answer = await try_call(harness, listing)
    assert answer.status_code == 200
    page = PageReader(answer.text)
    assert [one for one in words if one not in page.words] == []
    assert HOSTILE not in answer.text
    assert len(answer.content) < 40_000
    (sent,) = harness.services.trials.requests
    assert (sent.method, sent.target.signed) == ("GET", "/cities/oslo?x=1")


@pytest.mark.parametrize(
    ("fields", "outcome", "words", "requests"),
    [
        ({"method": "TRACE"}, None, "TRACE does not go through a gateway", 0),
        ({"method": ""}, None, "method", 0),
        ({"path": "cities"}, None, "from its slash on", 0),
        ({"path": "/" + "a" * 9_000}, None, "characters", 0),
        ({}, Refusal(Problem(code=Code.UPSTREAM_TIMEOUT, detail="It was silent.")), "It was silent.", 1),
    ],
)
async def test_a_test_call_without_a_response_says_why(
    harness: SignedInHarness, fields: dict[str, str], outcome: Exception | None, words: str, requests: int
) -> None:
    listing = await publish(harness)
    harness.services.trials.outcome = outcome or make_result()
    answer = await try_call(harness, listing, **fields)
    page = PageReader(answer.text)
    assert words in page.words.split("Test call")[1]
    assert len(harness.services.trials.requests) == requests


async def test_another_wallet_makes_no_test_call(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    await harness.sign_in(OTHER)
    assert (await try_call(harness, listing)).status_code == 404
    assert harness.services.trials.requests == []


# ---- The editor.


async def test_a_form_becomes_a_listing_with_every_member(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    assert listing.provider == listing.pay_to == SELLER.address
    assert listing.description == "Weather of cities.\nEvery hour."
    assert listing.tags == ("weather", "forecast")
    assert listing.methods == ("GET", "POST")
    assert [(one.method, one.path, one.price.text) for one in listing.operations] == [
        ("GET", "/cities/{city}", "0.02"),
        ("POST", "/reports", "0.5"),
    ]
    assert listing.upstream_auth is not None
    assert listing.upstream_auth.value == "hunter2-secret"
    assert listing.rate_limit is not None
    assert (listing.rate_limit.calls, listing.rate_limit.per_s, listing.timeout_s) == (100, 60, 20)
    assert listing.openapi is not None
    assert listing.networks == (USDC.chain_id,)
    page = await harness.read("/my/apis")
    assert "Weather" in page.words
    assert "endpoint not proved" in page.words


async def test_a_check_writes_nothing_and_shows_addresses_and_operations(harness: SignedInHarness) -> None:
    harness.services.addresses["api.example.com"] = ["198.51.100.4", "2001:db8::1"]
    hidden = await open_form(harness)
    answer = await harness.post("/my/apis/new", {**GOOD, **hidden, "act": "check"})
    assert answer.status_code == 200
    words = PageReader(answer.text).words
    for shown in (
        "198.51.100.4",
        "2001:db8::1",
        "GET /cities/{city}",
        "Weather of a city",
        "2 operations are sold",
        str(SELLER.address),
    ):
        assert shown in words
    assert list_prices(answer) == [("GET /cities/{city}", "0.02"), ("POST /reports", "0.5")]
    assert await count_listings(harness) == 0
    assert field_of(answer, "key") == hidden["key"]


FOUND = json.dumps(
    {**json.loads(DOCUMENT), "info": {"title": "Sea\u202e weather", "description": "Waves.\n\nWind."}}
)


async def check_address(harness: SignedInHarness, **changes: str) -> httpx.Response:
    """Sends the first step: an address and a price."""
    first = dict.fromkeys(("name", "description", "openapi", "operations"), "")
    return await submit(harness, act="check", **{**first, **changes})


@pytest.mark.parametrize(
    ("endpoint", "place", "document"),
    [
        ("https://api.example.com", "https://api.example.com/openapi.json", FOUND),
        ("https://api.example.com/v1/", "https://api.example.com/v1/openapi.json", FOUND),
        (
            "https://api.example.com/v1",
            "https://api.example.com/openapi.json",
            FOUND.replace('"info"', '"servers": [{"url": "https://api.example.com/v1"}], "info"'),
        ),
    ],
)
async def test_a_check_of_an_address_finds_its_document(
    harness: SignedInHarness, endpoint: str, place: str, document: str
) -> None:
    """The name, the description and the operations come from the document, and stand in the second step."""
    harness.services.documents[place] = document.encode()
    answer = await check_address(harness, endpoint=endpoint)
    assert answer.status_code == 200
    words = PageReader(answer.text).words
    assert f"Your document was found: {place}" in words
    assert field_of(answer, "openapiUrl") == place
    assert field_of(answer, "name") == "Sea weather"
    assert "Waves.\n\nWind.</textarea>" in answer.text
    assert list_prices(answer) == [("GET /cities/{city}", "")]
    assert await count_listings(harness) == 0
    second = {name: field_of(answer, name) for name in ("key", "name", "openapiUrl")}
    written = await harness.post(
        "/my/apis/new", {**GOOD, "openapi": "", "endpoint": endpoint, **second, "act": "write"}
    )
    listing = await stored(harness, written.headers["location"].removeprefix("/my/apis/").partition("?")[0])
    assert (listing.name, listing.openapi_url) == ("Sea weather", place)


@pytest.mark.parametrize(
    ("documents", "reason"),
    [
        ({}, "could not be fetched"),
        ({"https://api.example.com/v1/openapi.json": '{"swagger": "2.0"}'}, "Swagger 2.0"),
        ({"https://api.example.com/v1/openapi.json": "<html>"}, "JSON"),
        ({"https://api.example.com/openapi.json": FOUND}, "no server with the path /v1"),
    ],
)
async def test_a_check_without_a_document_says_so_and_goes_on(
    harness: SignedInHarness, documents: Mapping[str, str], reason: str
) -> None:
    harness.services.documents |= {url: text.encode() for url, text in documents.items()}
    answer = await check_address(harness)
    assert answer.status_code == 200
    words = PageReader(answer.text).words
    assert "No OpenAPI document was found." in words
    for url in ("https://api.example.com/v1/openapi.json", "https://api.example.com/openapi.json"):
        assert url in words
    assert reason in words
    assert "Checked: it can be published as it is." in words
    assert (field_of(answer, "name"), field_of(answer, "openapiUrl")) == ("api.example.com", "")


async def test_no_document_is_looked_for_where_one_is_given_or_the_endpoint_is_refused(
    harness: SignedInHarness,
) -> None:
    harness.services.documents["https://api.example.com/v1/openapi.json"] = FOUND.encode()
    given = await check_address(harness, openapi=DOCUMENT)
    assert (field_of(given, "name"), field_of(given, "openapiUrl")) == ("W", "")
    refused = await check_address(harness, endpoint="https://10.0.0.1/")
    assert refused.status_code == 422
    assert "openapi.json:" not in PageReader(refused.text).words


async def test_a_form_without_a_name_is_published_with_that_of_its_document_or_host(
    harness: SignedInHarness,
) -> None:
    url = "https://docs.example.com/weather.json"
    harness.services.documents[url] = FOUND.encode()
    for changes, name in (
        ({"openapi": "", "openapiUrl": url}, "Sea weather"),
        ({"openapi": DOCUMENT}, "W"),
        ({"openapi": "", "endpoint": "https://plain.example.com/v1"}, "plain.example.com"),
    ):
        assert (await publish(harness, **{**changes, "name": ""})).name == name


async def test_a_search_for_a_document_counts_against_the_probes_of_its_client() -> None:
    """Each URL that it tries is a probe, and the dry run another one."""
    async with open_signed_in(replace(DEFAULT_LIMITS, registrations_per_hour=1)) as harness:
        await harness.sign_in(SELLER)
        codes = [(await check_address(harness)).status_code for _ in range(4)]
    assert codes == [200] * (PROBES_PER_LISTING // 3) + [429]


async def test_the_table_has_the_operations_of_the_document_and_sets_their_prices(
    harness: SignedInHarness,
) -> None:
    """Address, price, check; then a price for one operation, and the others have the price of a call."""
    harness.services.addresses["api.example.com"] = ["198.51.100.4"]
    first = {**GOOD, "operations": "", **await open_form(harness)}
    checked = await harness.post("/my/apis/new", {**first, "act": "check"})
    assert list_prices(checked) == [("GET /cities/{city}", "")]
    wrong = await post_table(harness, "/my/apis/new", {"GET /cities/{city}": "cheap"}, **first, act="check")
    assert error_of(wrong, "price-1").startswith("a price is")
    assert list_prices(wrong) == [("GET /cities/{city}", "cheap")]
    prices = {"GET /cities/{city}": " 0.04 "}
    written = await post_table(
        harness, "/my/apis/new", prices, **{**first, "operations": "POST /reports 0.5"}, act="write"
    )
    path = written.headers["location"].partition("?")[0]
    listing = await stored(harness, path.rpartition("/")[2])
    assert [(one.path, one.price.text) for one in listing.operations] == [
        ("/cities/{city}", "0.04"),
        ("/reports", "0.5"),
    ]
    page = await harness.browser.get(path)
    assert list_prices(page) == [("GET /cities/{city}", "0.04"), ("POST /reports", "0.5")]
    cleared = await post_table(
        harness,
        path,
        {"GET /cities/{city}": "", "POST /reports": "0.5"},
        "/my/apis/{api_id}",
        **{**first, "operations": "", "etag": field_of(page, "etag"), "upstreamAuth.value": ""},
        act="write",
    )
    assert cleared.status_code == 303
    listing = await stored(harness, listing.id)
    assert [one.path for one in listing.operations] == ["/reports"]


async def test_an_error_of_a_price_marks_its_row_and_its_field(harness: SignedInHarness) -> None:
    first = {**GOOD, "openapi": "", "operations": "GET /d/ free", **await open_form(harness)}
    rows = {"GET /a": "0.1", "GET /b": "cheap", "GET /c": "-1"}
    answer = await post_table(harness, "/my/apis/new", rows, **first, act="check")
    assert answer.status_code == 422
    for number in (2, 3):
        assert error_of(answer, f"price-{number}").startswith("a price is")
        (field,) = re.findall(f'<input id="price-{number}"[^>]*>', answer.text)
        assert f'aria-invalid="true" aria-describedby="error-price-{number}"' in field
        assert ("autofocus" in field) is (number == 2)
        assert f'<a href="#price-{number}">GET /{"abc"[number - 1]}</a>' in answer.text
    assert 'id="error-price-1"' not in answer.text
    assert answer.text.count('<tr class="wrong-row">') == 2
    assert error_of(answer, "operations").startswith("GET /d/: ")


@pytest.mark.parametrize(
    "rows",
    [
        {"GET": "0.1"},
        {HOSTILE: "0.1"},
        {"GET /a b c": "0.1"},
        {"GET /a\r\nGET /b 0.2": "0.1"},
        {"": "0.1"},
        {"GET /" + "a" * 10_000: "1"},
        {f"GET /{number}": "1" for number in range(180)},
    ],
)
async def test_a_hostile_table_is_refused_or_harmless(harness: SignedInHarness, rows: dict[str, str]) -> None:
    first = {**GOOD, "operations": "", **await open_form(harness)}
    answer = await post_table(harness, "/my/apis/new", rows, **first, act="check")
    assert answer.status_code in (200, 413, 422), answer.status_code
    assert HOSTILE not in answer.text
    assert await count_listings(harness) == 0


async def test_three_errors_are_marked_at_their_fields_and_repaired(harness: SignedInHarness) -> None:
    wrong = {
        "pricePerRequest": "cheap",
        "endpoint": "ftp://api.example.com",
        "operations": "GET /cities/{city} 0.02\r\n\r\nFETCH reports 0.5",
    }
    for act in ("check", "write"):
        answer = await submit(harness, act=act, **wrong)
        assert answer.status_code == 422
        error_of(answer, "pricePerRequest")
        error_of(answer, "endpoint")
        assert error_of(answer, "operations").startswith("FETCH reports: ")
        assert 'aria-describedby="error-pricePerRequest hint-pricePerRequest"' in answer.text
        assert field_of(answer, "name") == "Weather"
        assert "FETCH reports 0.5" in answer.text
    assert await count_listings(harness) == 0
    await publish(harness, key=field_of(answer, "key"))
    assert await count_listings(harness) == 1


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"name": "a" * 121}, "name", "120"),
        ({"tags": "a, \u202eb"}, "tags", "“"),
        ({"methods": "GET fetch"}, "methods", "“fetch” must be"),
        ({"timeoutSeconds": "soon"}, "timeoutSeconds", "integer"),
        ({"timeoutSeconds": "301"}, "timeoutSeconds", "300"),
        ({"payTo": "0x12"}, "payTo", ""),
        ({"rateLimit.perSeconds": ""}, "rateLimit.perSeconds", ""),
        ({"rateLimit.calls": "many"}, "rateLimit.calls", ""),
        ({"upstreamAuth.value": ""}, "upstreamAuth.value", ""),
        ({"upstreamAuth.in": ""}, "upstreamAuth.in", ""),
        ({"upstreamAuth.name": "Host"}, "upstreamAuth.name", "belongs"),
        ({"networks": "eip155:5"}, "networks", "not accepted"),
        ({"openapi": "{"}, "openapi", "JSON"),
        ({"openapi": '{"swagger": "2.0"}'}, "openapi", "Swagger"),
        ({"openapi": "", "openapiUrl": "https://api.example.com/o.json"}, "openapiUrl", "fetched"),
        ({"operations": "GET /a"}, "operations", "GET /a: price"),
        ({"currency": "EUR"}, "currency", "one of"),
        ({"endpoint": "https://10.0.0.1/"}, "endpoint", ""),
        ({"endpoint": "https://gone.example/"}, "endpoint", "resolve"),
    ],
)
async def test_each_member_has_its_error_at_its_field(
    harness: SignedInHarness, change: dict[str, str], field: str, words: str
) -> None:
    harness.services.addresses["gone.example"] = []
    answer = await submit(harness, **change)
    assert answer.status_code in (400, 403, 422)
    assert words in error_of(answer, field)
    assert await count_listings(harness) == 0


async def test_the_secret_of_forwarded_calls_is_shown_once(harness: SignedInHarness) -> None:
    """By the save that makes it, with a button that copies it: of a new listing, and of one that chooses it later."""
    hidden = await open_form(harness)
    shared = {"forwardSignature": "hmac-sha256", "act": "write"}
    answer = await harness.post("/my/apis/new", {**GOOD, **hidden, **shared})
    assert answer.status_code == 200
    assert "Published. Next:" in PageReader(answer.text).words
    (api_id,) = set(re.findall(r"/my/apis/(api_[a-z0-9]+)", answer.text))
    path = f"/my/apis/{api_id}"

    async def save(choice: str) -> httpx.Response:
        return await submit(harness, path, forwardSignature=choice)

    secrets = [await find_shown_secret(harness, answer, api_id)]
    again = await harness.post("/my/apis/new", {**GOOD, **hidden, **shared})
    assert again.headers["location"] == f"{path}?done=published", "the form that is sent twice"
    assert (await save("hmac-sha256")).headers["location"] == f"{path}?done=saved", "the secret stays"
    assert (await save("ed25519")).status_code == 303
    secrets.append(await find_shown_secret(harness, await save("hmac-sha256"), api_id))
    assert len(set(secrets)) == 2
    for page in (path, "/my/apis", f"/apis/{api_id}"):
        text = (await harness.browser.get(page)).text
        assert [secret for secret in secrets if secret in text] == []


async def find_shown_secret(harness: SignedInHarness, answer: httpx.Response, api_id: str) -> str:
    (shown,) = re.findall(r'data-copy="Copy: Secret"><code>([^<]+)</code>', answer.text)
    secret = (await stored(harness, api_id)).forward_secret
    assert secret is not None
    assert shown == encode_base64url(secret)
    assert answer.headers["cache-control"] in ("no-store", "private, no-store")
    return str(shown)


async def test_names_in_the_filter_of_the_sales_are_cleaned(harness: SignedInHarness) -> None:
    """Names of the reader's own listings, and the id that an address brings."""
    await harness.catalog.publish(
        sample_listing(provider=READER.address, id=ListingId("api_1"), name="Quo\u202etes")
    )
    await harness.sign_in()
    answer = await harness.browser.get("/my/sales?apiId=api_%E2%80%AE2")
    assert "\u202e" not in PageReader(answer.text).text
    assert "Quotes" in PageReader(answer.text).words


async def test_more_listings_than_a_page_are_reached_and_the_pages_go_back_as_they_came(
    harness: SignedInHarness,
) -> None:
    for number in range(2 * LISTINGS_MAX + 5):
        await harness.catalog.publish(
            sample_listing(provider=READER.address, id=ListingId(f"api_{number}"), created_ms=number + 1)
        )
    await harness.sign_in()
    seen, path, steps = [], "/my/apis", []
    while path:
        steps.append(path)
        page = await harness.read(path)
        seen.append([link for link in page.addresses if re.fullmatch(r"/my/apis/api_[0-9]+", link)])
        path = next(
            (link for link in page.addresses if link == f"/my/apis?offset={len(steps) * LISTINGS_MAX}"), ""
        )
    assert [len(links) for links in seen] == [LISTINGS_MAX, LISTINGS_MAX, 5]
    assert len({link for links in seen for link in links}) == 2 * LISTINGS_MAX + 5
    assert f"/my/apis?offset={LISTINGS_MAX}" in (await harness.read(steps[2])).addresses
    back = await harness.browser.get(steps[1])
    assert 'rel="prev" href="/my/apis"' in back.text


async def test_a_held_call_of_a_later_moment_moves_no_row_and_the_days_stay_in_the_links(
    harness: SignedInHarness,
) -> None:
    held = {"state": "unknown", "taken_units": 10_000, "provider": READER.address}
    await harness.services.write_calls(*(held for _ in range(40)))
    await harness.sign_in()
    first = await harness.browser.get("/my/sales?state=held&from=2027-01-01")
    older = unescape(first.text.split('rel="next" href="')[1].split('"')[0])
    rows = [call_record_row(500, **{**TEXTS, **held, "payer": OTHER.address, "created_ms": NOW_MS + 60_000})]
    await harness.services.write_rows(rows)
    harness.services.now_ms += 120_000
    page = await harness.read(older)
    assert "40 held calls" in page.words
    sales = await harness.read("/my/sales?from=2027-01-10&to=2027-01-20&apiId=api_1")
    assert "/my/sales?state=held&apiId=api_1&from=2027-01-10&to=2027-01-20" in sales.addresses


async def test_a_form_that_is_sent_twice_publishes_once(harness: SignedInHarness) -> None:
    form = {**GOOD, **await open_form(harness), "act": "write"}
    first = await harness.post("/my/apis/new", form)
    again = await harness.post("/my/apis/new", form)
    assert first.headers["location"] == again.headers["location"]
    changed = await harness.post("/my/apis/new", {**form, "name": "Other"})
    assert changed.status_code == 422 or changed.status_code == 409
    assert "Nothing was created" in PageReader(changed.text).words
    assert field_of(changed, "key") != form["key"]
    assert await count_listings(harness) == 1


async def test_an_edit_against_a_stale_version_shows_both(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    mine = await open_form(harness, path)
    other = await submit(harness, path, pricePerRequest="0.03")
    assert other.headers["location"] == f"{path}?done=saved"
    answer = await submit(harness, path, **mine, name="Mine")
    assert answer.status_code == 412
    words = PageReader(answer.text).words
    assert "Price of a call stored now: 0.03 in your form: 0.01" in words
    assert "Name stored now: Weather in your form: Mine" in words
    assert "Tags stored" not in words
    assert (await stored(harness, listing.id)).revision == 2
    saved = await submit(harness, path, etag=field_of(answer, "etag"), name="Mine")
    assert saved.status_code == 303
    now = await stored(harness, listing.id)
    assert (now.name, now.price.text, now.revision) == ("Mine", "0.01", 3)
    assert now.openapi is not None, "an empty document keeps the stored one"


async def test_a_form_without_the_version_that_it_shows_saves_nothing(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    answer = await harness.post(f"/my/apis/{listing.id}", {**GOOD, "act": "write"}, route=ONE)
    assert answer.status_code == 412
    assert (await stored(harness, listing.id)).revision == 1


async def test_the_stored_secret_is_on_no_page_and_stays(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    page = await harness.browser.get(path)
    assert "hunter2" not in page.text
    assert "A secret is stored" in PageReader(page.text).words
    for act in ("check", "write"):
        assert "hunter2" not in (await submit(harness, path, act=act)).text
    auth = (await stored(harness, listing.id)).upstream_auth
    assert auth is not None
    assert auth.value == "hunter2-secret"
    moved = await submit(harness, path, endpoint="https://other.example.com/")
    assert "must be given again" in error_of(moved, "upstreamAuth.value")
    await submit(harness, path, **{"upstreamAuth.in": "", "upstreamAuth.name": ""})
    assert (await stored(harness, listing.id)).upstream_auth is None


async def test_a_typed_secret_comes_back_on_no_page_and_is_asked_for_again(harness: SignedInHarness) -> None:
    """Without the question the stored secret would stay after the new one was typed, checked and saved."""
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    typed = {"upstreamAuth.value": "another-secret"}
    for act, price, status in (("check", "0.02", 200), ("write", "x", 422)):
        answer = await submit(harness, path, act=act, pricePerRequest=price, **typed)
        assert answer.status_code == status
        assert "another-secret" not in answer.text
        assert "Type it again before you check or save." in PageReader(answer.text).words
        assert field_of(answer, "upstreamAuth.again") == "yes"
    again = {"upstreamAuth.again": "yes", "pricePerRequest": "0.02"}
    assert "type the secret again" in error_of(await submit(harness, path, **again), "upstreamAuth.value")
    assert (await stored(harness, listing.id)).revision == 1
    assert (await submit(harness, path, **again, **typed)).status_code == 303
    auth = (await stored(harness, listing.id)).upstream_auth
    assert auth is not None
    assert auth.value == "another-secret"
    assert "upstreamAuth.again" not in (await harness.browser.get(path)).text


@pytest.mark.parametrize(
    ("changes", "focused"),
    [
        ({"pricePerRequest": "cheap", "endpoint": "ftp://x"}, "endpoint"),
        ({"operations": "FETCH reports", "name": "a" * 121}, "name"),
        ({"networks": "eip155:1"}, "networks"),
    ],
)
async def test_the_focus_goes_to_the_first_error(
    harness: SignedInHarness, changes: dict[str, str], focused: str
) -> None:
    answer = await submit(harness, act="check", **changes)
    assert answer.status_code == 422
    (tag,) = re.findall(r"<[^>]* autofocus[^>]*>", answer.text)
    assert f'id="{focused}"' in tag


async def test_a_document_is_fetched_replaced_and_removed(harness: SignedInHarness) -> None:
    url = "https://api.example.com/openapi.json"
    harness.services.documents[url] = DOCUMENT.encode()
    listing = await publish(harness, openapi="", openapiUrl=url)
    assert listing.openapi is not None
    path = f"/my/apis/{listing.id}"
    harness.services.documents[url] = DOCUMENT.replace("Weather of a city", "Newer").encode()
    await submit(harness, path, openapiUrl=url)
    assert (await stored(harness, listing.id)).revision == 1, "nothing changed"
    await submit(harness, path, openapiUrl=url, fetchDocument="yes")
    assert "Newer" in str((await stored(harness, listing.id)).openapi)
    await submit(harness, path, openapiUrl=url, removeDocument="yes")
    now = await stored(harness, listing.id)
    assert (now.openapi, now.openapi_url) == (None, None)


async def test_a_provider_pauses_resumes_and_retires(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    for status, done in (("paused", "paused"), ("active", "resumed")):
        answer = await harness.post(f"{path}/status", {"status": status}, route=f"{ONE}/status")
        assert answer.headers["location"] == f"{path}?done={done}"
        assert (await stored(harness, listing.id)).status == status
        assert done.capitalize() in (await harness.read(f"{path}?done={done}")).words
    assert (
        await harness.post(f"{path}/status", {"status": "gone"}, route=f"{ONE}/status")
    ).status_code == 422
    refused = await harness.post(f"{path}/retirement", {}, route=f"{ONE}/retirement")
    assert refused.status_code == 422
    assert (await stored(harness, listing.id)).retired_ms is None
    answer = await harness.post(f"{path}/retirement", {"confirmed": "yes"}, route=f"{ONE}/retirement")
    assert answer.headers["location"] == "/my/apis?done=retired"
    assert (await stored(harness, listing.id)).retired_ms is not None
    assert "You sell no API yet" in (await harness.read("/my/apis?done=retired")).words
    await harness.read(path, 410)


async def test_a_provider_proves_the_ownership_of_its_endpoint(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    content = make_content(PUBLIC_URL, provider=SELLER.address, origin="https://api.example.com:443")
    page = await harness.read(path)
    assert "_tollway.api.example.com" in page.words
    line = next(word for word in page.words.split() if word.startswith("tollway-verification="))
    answer = await harness.post(f"{path}/ownership", {}, route=f"{ONE}/ownership")
    words = PageReader(answer.text).words
    assert answer.status_code == 200
    assert "File: not reachable" in words
    assert "DNS record: not found" in words
    assert len(line) == len(content)
    harness.services.texts["_tollway.api.example.com"] = (line,)
    assert f'action="{path}/ownership#ownership"' in answer.text, "the result is in view"
    assert f'data-copy="Copy the line">{line}<' in answer.text
    answer = await harness.post(f"{path}/ownership", {}, route=f"{ONE}/ownership")
    assert "DNS record: ✓ proved" in PageReader(answer.text).words
    assert "✓ endpoint proved by a DNS record" in (await harness.read(path)).words
    assert "✓ endpoint proved" in (await harness.read("/my/apis")).words


async def test_the_line_of_another_listing_is_named(harness: SignedInHarness) -> None:
    """It is not "not found": the provider's own line goes beside it."""
    listing = await publish(harness)
    theirs = make_content(PUBLIC_URL, provider=OTHER.address, origin="https://api.example.com")
    harness.services.texts["_tollway.api.example.com"] = ("v=spf1 -all", theirs)
    answer = await harness.post(f"/my/apis/{listing.id}/ownership", {}, route=f"{ONE}/ownership")
    words = PageReader(answer.text).words
    assert "DNS record: has the line of another listing" in words
    assert theirs not in words
    assert "✓ proved" not in words


async def test_a_provider_reads_that_another_wallet_has_proved_the_endpoint(
    harness: SignedInHarness,
) -> None:
    """At a check, after a publication and a save, and as long as it is so. Nothing is refused."""
    theirs = sample_listing(provider=OTHER.address, id=ListingId("api_theirs"), endpoint=GOOD["endpoint"])
    await harness.catalog.publish(theirs)
    await harness.services.stores.set_reputation(theirs.id, Reputation(verified_ms=1))
    checked = await submit(harness, act="check")
    assert checked.status_code == 200
    assert "endpoint owned by another Another wallet has proved" in PageReader(checked.text).words
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    checked = await submit(harness, path, act="check")
    assert "endpoint owned by another" in PageReader(checked.text).words
    saved = await submit(harness, path, description="Other.")
    for place in (f"{path}?done=published", saved.headers["location"]):
        page = await harness.read(place)
        assert "Another wallet has proved that this endpoint is its own: api_theirs." in page.words
        assert {"/apis/api_theirs", "#ownership"} <= set(page.addresses)
    assert "endpoint proved by another API" in (await harness.read("/my/apis")).words
    line = make_content(PUBLIC_URL, provider=SELLER.address, origin="https://api.example.com")
    harness.services.texts["_tollway.api.example.com"] = (line,)
    answer = await harness.post(f"{path}/ownership", {}, route=f"{ONE}/ownership")
    assert "Another wallet" not in PageReader(answer.text).words


@pytest.mark.parametrize("wallet", [OTHER, READER])
async def test_a_listing_of_another_wallet_is_not_found(harness: SignedInHarness, wallet: Any) -> None:
    listing = await publish(harness)
    path = f"/my/apis/{listing.id}"
    etag = await open_form(harness, path)
    await harness.sign_in(wallet)
    await harness.read(path, 404)
    fields = {**GOOD, **etag, "act": "write", "status": "paused", "confirmed": "yes"}
    for tail in ("", "/status", "/retirement", "/ownership"):
        answer = await harness.post(path + tail, fields, route=ONE + tail)
        assert answer.status_code == 404
    assert await stored(harness, listing.id) == listing
    assert "Weather" not in (await harness.read("/my/apis")).words


FORMS = ("/my/apis/new", ONE, f"{ONE}/status", f"{ONE}/retirement", f"{ONE}/ownership")


@pytest.mark.parametrize("lack", ["session", "token", "token of another form", "origin", "site"])
async def test_a_form_counts_with_session_token_and_origin_only(harness: SignedInHarness, lack: str) -> None:
    listing = await publish(harness)
    hidden = await open_form(harness) | await open_form(harness, f"/my/apis/{listing.id}")
    fields = {**GOOD, **hidden, "name": "Forged", "status": "paused", "confirmed": "yes", "act": "write"}
    headers: dict[str, str] = {}
    status = 400
    if lack == "session":
        harness.browser.cookies.clear()
        status = 401
    elif lack == "token":
        fields["form_token"] = ""
    elif lack == "token of another form":
        fields["form_token"] = make_form_token(harness.token, "/my/wallets")
    elif lack == "origin":
        headers = {"Sec-Fetch-Site": "cross-site"}
    else:
        headers = {"Sec-Fetch-Site": "same-site"}
    found = {}
    for route in FORMS:
        path = route.replace("{api_id}", listing.id)
        found[route] = (await harness.post(path, fields, route=route, **headers)).status_code
    assert found == dict.fromkeys(FORMS, status)
    assert await stored(harness, listing.id) == listing
    assert await count_listings(harness) == 1


async def test_a_blocked_wallet_publishes_and_edits_nothing(harness: SignedInHarness) -> None:
    listing = await publish(harness)
    hidden = await open_form(harness)
    etag = await open_form(harness, f"/my/apis/{listing.id}")
    harness.services.blocked.add(SELLER.address)
    assert (await harness.post("/my/apis/new", {**GOOD, **hidden, "act": "write"})).status_code == 403
    for tail in ("", "/status"):
        fields = {**GOOD, **etag, "name": "No", "status": "paused", "act": "write"}
        assert (
            await harness.post(f"/my/apis/{listing.id}{tail}", fields, route=ONE + tail)
        ).status_code == 403
    assert await stored(harness, listing.id) == listing


async def test_words_of_a_listing_are_escaped(harness: SignedInHarness) -> None:
    hidden = await open_form(harness)
    hostile = dict.fromkeys(GOOD, HOSTILE) | hidden | {"act": "check"}
    answer = await harness.post("/my/apis/new", hostile)
    assert "<script>alert" not in answer.text
    listing = await publish(harness, name=HOSTILE, description=HOSTILE, tags=HOSTILE[:32])
    held = {"listing_id": listing.id, "state": "unknown", "taken_units": 10_000}
    await harness.services.write_calls({**held, "listing_name": HOSTILE, "path": f"/{HOSTILE}"})
    for path in (
        "/my/apis",
        f"/my/apis/{listing.id}",
        "/my/sales",
        "/my/sales?state=held",
        f"/my/sales?apiId={HOSTILE}",
    ):
        page = await harness.browser.get(path)
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert not PageReader(page.text).handlers


# ---- Sales.


def sold(number: int, state: str, units: int, *, days_ago: int = 0, **changes: Any) -> dict[str, Any]:
    taken = 0 if state in ("released", "reorged") else units
    own = {"price_units": units, "taken_units": taken, "state": state, "listing_name": "Weather"}
    shared = {**TEXTS, "payer": READER.address, "created_ms": NOW_MS - days_ago * DAY_MS}
    return call_record_row(number, **{**shared, **own, **changes})


STATES = ("consumed", "released", "unknown", "reorged", "settling", "forwarding")
MIXED = [
    *(sold(number, STATES[number % 6], 10_001 * (number + 1), days_ago=number % 9) for number in range(40)),
    *(
        sold(100 + number, STATES[number % 4], 7 + number, listing_id="api_2", listing_name="Other")
        for number in range(8)
    ),
    sold(
        200, "consumed", 0, chain_id=None, asset=None, rail="none", price="0", currency="", listing_id="api_3"
    ),
    sold(300, "consumed", 5_000, provider=OTHER.address, listing_id="api_9", listing_name="Foreign"),
]


def add_books(rows: list[dict[str, Any]]) -> dict[tuple[str, str], int]:
    """Units by listing and state, from the rows of calls."""
    books: dict[tuple[str, str], int] = {}
    for row in rows:
        if row["provider"] == SELLER.address:
            key = (row["listing_id"], SUM_STATES[CallState(row["state"])])
            books[key] = books.get(key, 0) + row["price_units"]
    return {key: units for key, units in books.items() if units}


@pytest.mark.parametrize("step", ["day", "hour"])
async def test_sales_add_up_to_the_books_to_the_unit(harness: SignedInHarness, step: str) -> None:
    await harness.services.write_rows(MIXED)
    first = format_time(NOW_MS - 10 * DAY_MS)[:10]
    answer = await harness.browser.get(f"/my/sales?step={step}&from={first}")
    link = answer.text.split('href="/my/sales.csv')[1].split('"')[0].replace("&amp;", "&")
    rows = list(csv.DictReader(StringIO((await harness.browser.get(f"/my/sales.csv{link}")).text)))
    sums: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row["apiId"], row["state"])
        sums[key] = sums.get(key, 0) + int(row["units"])
        assert Decimal(row["amount"]) * 10**USDC.decimals == int(row["units"])
    books = add_books(MIXED)
    assert {key: units for key, units in sums.items() if units} == books
    words = PageReader(answer.text).words
    assert "5 Jan, 00:00 – 15 Jan, " in words  # with its day, although it is today
    for state in ("charged", "released", "held", "reorged"):
        total = sum(units for (_, one), units in books.items() if one == state)
        assert f"{state} {USDC.format_units(total)}" in words
    assert "Free calls" in words
    assert "Foreign" not in words


async def test_each_column_of_the_sales_is_that_of_its_listing(harness: SignedInHarness) -> None:
    listing = await publish(harness, name="Weather")
    quality = Quality(calls=400, success_ppm=990_000, p50_ms=31, p95_ms=87)
    await harness.services.stores.set_reputation(listing.id, Reputation(quality=quality))
    own = {"listing_id": listing.id}
    other = {"listing_id": "api_2"}
    rows = [
        *(sold(number, "consumed", 10_000, **own) for number in range(5)),
        *(sold(10 + number, "released", 20_000, **own) for number in range(2)),
        sold(20, "unknown", 30_000, **own),
        sold(21, "reorged", 40_000, **own),
        sold(22, "consumed", 1_000, **other),
    ]
    await harness.services.write_rows(rows)
    table = (await harness.browser.get("/my/sales")).text.partition("sums-table")[2]
    heads = re.findall(r"<th scope=\"col\"[^>]*>(.*?)</th>", table.partition("</thead>")[0])
    assert [PageReader(one).words for one in heads] == [
        *("API", "Calls", "Failed", "p95, 30 days", "Charged", "Released", "Held", "Reorged")
    ]
    shown = [PageReader(row).words for row in re.findall(r"<tr><th.*?</tr>", table, re.DOTALL)]
    assert shown[-2:] == [
        "Weather 9 2 (22.2 %) 87 ms 0.050 0.04 0.03 0.04",
        "api_2 1 0 (0.0 %) – 0.001 – – –",
    ]
    assert "the range above does not change it" in table


async def test_a_decision_and_a_release_move_money_between_columns(harness: SignedInHarness) -> None:
    payment = await harness.services.record_payment(50_000)
    ledger = harness.services.ledger
    claims = [
        claim_on(payment, 10_000, payer=READER.address, provider=SELLER.address, created_ms=NOW_MS + number)
        for number in range(3)
    ]
    for claim, state in zip(claims, (CallState.CONSUMED, CallState.RELEASED, CallState.UNKNOWN), strict=True):
        await ledger.claim(claim)
        await ledger.close(close_of(claim, state, upstream_status=None))
    words = (await harness.read("/my/sales")).words
    assert "charged 0.01 " in words
    assert "released 0.01 held 0.01 1 call" in words
    held = await harness.read("/my/sales?state=held")
    assert "1 held call" in held.words
    assert f"/my/calls/{claims[2].call_id}" in held.addresses
    resolution = f"/my/calls/{claims[2].call_id}/resolution"
    decided = await harness.post(
        resolution, {"outcome": "consumed", "confirmed": "yes"}, route="/my/calls/{call_id}/resolution"
    )
    assert decided.status_code == 303
    words = (await harness.read("/my/sales")).words
    assert "charged 0.02 " in words
    assert "released 0.01 held 0 " in words
    assert "No held call" in (await harness.read("/my/sales?state=held")).words


async def test_the_chart_has_the_numbers_of_its_table(harness: SignedInHarness) -> None:
    rows = [sold(1, "consumed", 30_000), sold(2, "released", 10_000), sold(3, "unknown", 5_000, days_ago=1)]
    await harness.services.write_rows(rows)
    answer = await harness.browser.get("/my/sales")
    assert '<th scope="row">2027-01-15</th><td>0.03</td><td>0.01</td><td>0</td>' in answer.text
    assert '<th scope="row">2027-01-14</th><td>0</td><td>0</td><td>0.005</td>' in answer.text
    assert 'role="img"' in answer.text
    assert "as a table" in PageReader(answer.text).words


@pytest.mark.parametrize(
    "query", ["", "apiId=api_2", "step=hour", "from=2027-01-10&to=2027-01-12", "state=held"]
)
async def test_the_file_has_the_filter_of_the_screen(harness: SignedInHarness, query: str) -> None:
    await harness.services.write_rows(MIXED)
    answer = await harness.browser.get(f"/my/sales?{query}")
    name = "/my/calls.csv" if "held" in query else "/my/sales.csv"
    link = answer.text.split(f'href="{name}')[1].split('"')[0].replace("&amp;", "&")
    file = await harness.browser.get(name + link)
    rows = list(csv.DictReader(StringIO(file.text)))
    assert rows
    if "held" in query:
        assert answer.text.count("Decide<") == len(rows)
        assert {row["state"] for row in rows} == {"held"}
        return
    assert file.headers["content-disposition"].startswith('attachment; filename="tollway-sales-')
    shown = {one for one in ("api_1", "api_2", "api_3") if f">{one}</a>" in answer.text}
    assert {row["apiId"] for row in rows} == shown
    calls = sum(int(row["calls"]) for row in rows)
    table = answer.text.split('data-label="Calls">')[1:]
    assert sum(int(one.split("<")[0].replace(",", "")) for one in table) == calls


@pytest.mark.parametrize(
    "query",
    [
        "from=x",
        "step=week",
        "state=odd",
        "from=2027-02-01&to=2027-01-01",
        "colour=red",
        "step=hour&from=2026-01-01",
    ],
)
async def test_a_filter_of_sales_that_is_not_understood_is_marked(
    harness: SignedInHarness, query: str
) -> None:
    page = await harness.read(f"/my/sales?{query}", 422)
    assert "The filter was not understood" in page.words


async def test_pages_of_selling_need_the_session(harness: SignedInHarness) -> None:
    harness.browser.cookies.clear()
    for path in ("/my/apis", "/my/apis/new", "/my/apis/api_1", "/my/sales"):
        assert (await harness.browser.get(path)).status_code == 303
    assert (await harness.browser.get("/my/sales.csv")).status_code == 401


async def test_empty_pages_say_what_would_be_there(harness: SignedInHarness) -> None:
    assert "You sell no API yet" in (await harness.read("/my/apis")).words
    assert "No sales in the last 30 days" in (await harness.read("/my/sales")).words
    assert "No call in this range" in (await harness.read("/my/sales?apiId=api_2")).words
    assert "No held call" in (await harness.read("/my/sales?state=held")).words
