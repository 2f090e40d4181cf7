"""The pages of a signed-in reader: the way in and out, calls and their ticket, credit, viewers. They show what `/api/v2` answers to the same wallet."""

import csv
import re
from html import unescape
from io import StringIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.kit.call_rows import call_record_row
from tests.kit.ledger_records import claim_on, close_of, new_payment
from tests.kit.metering import sample_metering
from tests.kit.pages import PROFILE, RULES, PageReader
from tests.kit.routes import find_asset_in
from tests.kit.signed_in import (
    MIXED,
    NOW_MS,
    OTHER,
    READER,
    SELLER,
    TEXTS,
    THIRD,
    USDC,
    SignedInHarness,
)
from tollway.errors import Code
from tollway.identity.page_sessions import USE_INTERVAL_MS
from tollway.identity.signatures import eip191_digest
from tollway.identity.viewers import DAY_MS, Viewer
from tollway.ids import Address, CallId
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.registry.metering import Measured, write_formulas, write_measured
from tollway.web.api.history_routes import call_json
from tollway.web.api.viewer_routes import read_until
from tollway.web.http.query import parse_time
from tollway.web.pages.my_routes import choose_destination, end_of_day, suggest_until
from tollway.web.pages.page_session import PAGE_COOKIE, make_form_token

# ---- The way in and out.


async def test_a_wallet_signs_in_and_comes_back_to_where_it_was(harness: SignedInHarness) -> None:
    answer = await harness.browser.get("/my/calls?status=unknown")
    assert answer.status_code == 303
    there = urlsplit(answer.headers["location"])
    assert (there.path, parse_qs(there.query)) == ("/signin", {"to": ["/my/calls?status=unknown"]})
    page = await harness.read(answer.headers["location"])
    assert "Sign in with your wallet" in page.words
    answer = await harness.sign_in(to="/my/calls?status=unknown")
    assert answer.status_code == 303
    there = await harness.browser.get(answer.headers["location"])
    assert (there.status_code, there.headers["location"]) == (303, "/my/calls?status=unknown")
    assert "; Path=/; Secure; HttpOnly; SameSite=Lax" in answer.headers["set-cookie"]
    assert str(READER.address)[:6] in (await harness.read("/my/calls")).words
    assert (await harness.browser.get("/signin")).headers["location"] == "/my"


async def test_the_sign_in_says_that_a_browser_kept_no_cookie(harness: SignedInHarness) -> None:
    """As over http beyond loopback, where a browser drops a `Secure` cookie."""
    assert "did not keep" not in (await harness.read("/signin")).words
    answer = await harness.sign_in(to="/my/credit")
    harness.browser.cookies.clear()
    page = await harness.read(answer.headers["location"])
    assert "your browser did not keep the session" in page.words
    await harness.sign_in(to="/my/credit")
    again = await harness.browser.get(answer.headers["location"])
    assert (again.status_code, again.headers["location"]) == (303, "/my/credit")


@pytest.mark.parametrize("path", ["/my/nothing", "/my/calls/call_none", "/my/calls/call_none/receipt"])
async def test_a_page_that_is_not_found_names_the_wallet_of_the_session(
    harness: SignedInHarness, path: str
) -> None:
    await harness.sign_in()
    answer = await harness.browser.get(path)
    page = PageReader(answer.text)
    assert (answer.status_code, answer.headers["cache-control"]) == (404, "private, no-store")
    assert "Cookie" in answer.headers["vary"]
    account = f"{str(READER.address)[:6]}…{str(READER.address)[-4:]}"
    assert account in page.words
    assert "sign in" not in page.words.lower()
    harness.browser.cookies.clear()
    assert account not in (await harness.browser.get(path)).text


async def test_a_public_page_is_the_same_text_with_and_without_a_session(harness: SignedInHarness) -> None:
    """It never reads the cookie, so it says neither that a reader is signed in nor the opposite."""
    paths = ("/", "/status", "/docs", "/problems", "/problems/call-not-found", "/apis/api_none")

    async def read_all() -> list[str]:
        answers = [await harness.browser.get(path) for path in paths]
        return [re.sub(r"req_[0-9a-f]+", "", answer.text) for answer in answers]

    signed_out = await read_all()
    await harness.sign_in()
    assert await read_all() == signed_out
    assert [path for path, text in zip(paths, signed_out, strict=True) if "sign in" in text.lower()] == []


async def test_signing_out_ends_the_session_at_the_gateway(harness: SignedInHarness) -> None:
    await harness.sign_in()
    answer = await harness.post("/signout", {})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    harness.browser.cookies.set(PAGE_COOKIE.name, harness.token, domain="gw.example.com")
    assert (await harness.browser.get("/my/calls")).status_code == 303


@pytest.mark.parametrize(
    ("to", "there"),
    [
        ("", "/my"),
        ("/my", "/my"),
        ("/my/calls/call_1?wallet=0xab", "/my/calls/call_1?wallet=0xab"),
        ("/my?x=1", "/my?x=1"),
        ("https://evil.example/my", "/my"),
        ("//evil.example/my", "/my"),
        ("/my\\evil", "/my"),
        ("/mything", "/my"),
        ("/signout", "/my"),
        ("/my/../api/v2/gateway/api_1/r", "/my"),
        ("/my/%2e%2E/api/v2/gateway/api_1/r", "/my"),
        ("/my/./calls", "/my"),
        ("/my/calls?from=..", "/my/calls?from=.."),
        ("/my/\r\nSet-Cookie: x", "/my"),
        ("javascript:alert(1)", "/my"),
    ],
)
def test_a_sign_in_leads_to_a_page_of_the_reader_alone(to: str, there: str) -> None:
    assert choose_destination(to) == there


async def test_a_message_of_the_api_signs_nobody_in(harness: SignedInHarness) -> None:
    message = await harness.message_for(READER, None)
    signature = "0x" + READER.sign(eip191_digest(message.encode())).hex()
    answer = await harness.post("/signin", {"message": message, "signature": signature})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("fields", "headers", "status"),
    [
        ({"message": "m", "signature": "0x12"}, {}, 401),
        ({"message": "m", "signature": "sig"}, {}, 401),
        ({}, {}, 401),
        ({"message": "m", "signature": "0x12"}, {"Sec-Fetch-Site": "cross-site"}, 400),
    ],
    ids=("no message of this gateway", "no signature", "no field", "another site"),
)
async def test_other_forms_sign_nobody_in(
    harness: SignedInHarness, fields: dict[str, str], headers: dict[str, str], status: int
) -> None:
    answer = await harness.post("/signin", fields, **headers)
    assert answer.status_code == status
    assert "set-cookie" not in answer.headers


async def test_the_cookie_counts_on_pages_alone(harness: SignedInHarness) -> None:
    await harness.sign_in()
    answer = await harness.browser.get("/api/v2/history")
    assert answer.status_code == 401
    answer = await harness.browser.get(
        "/api/v2/history", headers={"Authorization": f"Bearer {harness.token}"}
    )
    assert answer.json()["code"] == Code.SESSION_EXPIRED


async def test_a_page_of_a_reader_is_never_stored_compressed_or_framed(harness: SignedInHarness) -> None:
    await harness.sign_in()
    answer = await harness.browser.get("/my/calls")
    assert answer.headers["cache-control"] == "private, no-store"
    assert answer.headers["vary"] == "Cookie"
    assert "content-encoding" not in answer.headers
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_form_without_a_session_changes_nothing(harness: SignedInHarness) -> None:
    await harness.services.write_calls({"state": "unknown", "taken_units": 10_000})
    await harness.sign_in(SELLER)
    token, harness.token = harness.token, ""
    harness.browser.cookies.clear()
    fields = {"outcome": "consumed", "confirmed": "yes", "form_token": make_form_token(token, RESOLUTION)}
    answer = await harness.post("/my/calls/call_0/resolution", fields)
    assert answer.status_code == 401
    call = await harness.services.call_history.find_call(CallId("call_0"))
    assert call is not None
    assert call.state is CallState.UNKNOWN


async def test_an_unused_session_ends(harness: SignedInHarness) -> None:
    await harness.sign_in()
    harness.services.now_ms += DEFAULT_LIMITS.page_session_idle_s * 1000 - USE_INTERVAL_MS
    assert (await harness.browser.get("/my/calls")).status_code == 200
    harness.services.now_ms += DEFAULT_LIMITS.page_session_idle_s * 1000
    assert (await harness.browser.get("/my/calls")).status_code == 303


# ---- Calls.

STAMPS = ["free", "charged", "reorged", "held", "released", "charged"]


async def test_calls_are_listed_newest_first_with_what_became_of_their_money(
    harness: SignedInHarness,
) -> None:
    await harness.services.write_calls(*MIXED, {"payer": OTHER.address, "listing_name": "Foreign"})
    await harness.sign_in()
    answer = await harness.browser.get("/my/calls")
    stamps = [part.split('"')[0] for part in answer.text.split('class="row-stamp ')[1:]]
    assert stamps == STAMPS
    page = PageReader(answer.text)
    assert "6 calls" in page.words
    assert "Foreign" not in page.text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "status=failed",
        "status=unknown",
        "apiId=api_2",
        "role=provider",
        "from=2027-01-15&to=2027-01-15",
        "to=2020-01-01",
    ],
)
async def test_the_list_and_its_file_have_the_same_rows(harness: SignedInHarness, query: str) -> None:
    await harness.services.write_calls(*MIXED)
    await harness.sign_in()
    answer = await harness.browser.get(f"/my/calls?{query}")
    shown = [part.split('"')[0] for part in answer.text.split('title="call_')[1:]]
    if not shown:
        assert "/my/calls.csv" not in answer.text
        return
    link = answer.text.split('href="/my/calls.csv')[1].split('"')[0].replace("&amp;", "&")
    file = await harness.browser.get(f"/my/calls.csv{link}")
    rows = list(csv.DictReader(StringIO(file.text)))
    assert [row["callId"].removeprefix("call_") for row in rows] == shown


@pytest.mark.parametrize("path", ["/my/calls.csv", "/my/credit.csv", "/my/calls/call_0/receipt"])
async def test_a_file_of_a_reader_is_for_this_origin_alone_and_never_stored(
    harness: SignedInHarness, path: str
) -> None:
    await harness.services.write_calls({**MIXED[0], "delivery": "complete", "completed_ms": NOW_MS})
    await harness.sign_in()
    answer = await harness.browser.get(path)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "no-store" in answer.headers["cache-control"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/signin", 400),
        ("GET", "/signin", 200),
        ("PUT", "/signin", 405),
        ("POST", "/signout", 401),
        ("GET", "/my", 303),
        ("GET", "/my/calls/call_1.x", 303),
        ("GET", "/my/nothing", 404),
        ("POST", "/my/calls/call_0/resolution", 401),
        ("GET", "/my/calls.csv", 401),
        ("PUT", "/apis/api_1", 405),
        ("GET", "/apis/api_1", 404),
        ("GET", "/problems/nothing", 404),
        ("DELETE", "/", 405),
    ],
)
async def test_no_page_of_another_site_reads_the_sign_in_or_a_problem_of_a_page(
    harness: SignedInHarness, method: str, path: str, status: int
) -> None:
    for accept in ("application/json", "text/html"):
        headers = {"Origin": "https://other.example", "Accept": accept}
        answer = await harness.browser.request(method, path, headers=headers)
        assert answer.status_code == status, accept
        assert not [name for name in answer.headers if name.startswith("access-control")], accept


async def test_a_sign_in_itself_has_no_cors_header(harness: SignedInHarness) -> None:
    for answer in (await harness.sign_in(), await harness.browser.get("/signin")):
        assert answer.status_code == 303
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("path", ["/signin", "/signout", "/my", "/my/wallets", "/m%79/wallets"])
async def test_a_preflight_of_a_private_path_allows_no_other_origin(
    harness: SignedInHarness, path: str
) -> None:
    headers = {"Origin": "https://other.example", "Access-Control-Request-Method": "POST"}
    answer = await harness.browser.options(path, headers=headers)
    assert answer.status_code == 204
    assert not [name for name in answer.headers if name.startswith("access-control")]
    public = await harness.browser.options("/api/v2/history", headers=headers)
    assert public.headers["access-control-allow-origin"] == "*"


async def test_a_second_sign_in_ends_the_session_that_the_browser_had(harness: SignedInHarness) -> None:
    await harness.sign_in()
    first = harness.token
    message = await harness.message_for(SELLER)
    signature = "0x" + SELLER.sign(eip191_digest(message.encode())).hex()
    refused = await harness.post("/signin", {"message": message, "signature": "0x12"})
    assert refused.status_code == 401
    assert (await harness.browser.get("/my/calls")).status_code == 200
    harness.browser.cookies.set(PAGE_COOKIE.name, first, domain="gw.example.com")
    answer = await harness.post("/signin", {"message": message, "signature": signature})
    assert answer.status_code == 303, answer.text
    second = answer.cookies[PAGE_COOKIE.name]
    harness.browser.cookies.clear()
    for token, status in ((first, 303), (second, 200)):
        shown = await harness.browser.get("/my/calls", headers={"Cookie": f"{PAGE_COOKIE.name}={token}"})
        assert shown.status_code == status


async def test_a_query_with_too_many_fields_is_refused(harness: SignedInHarness) -> None:
    await harness.sign_in()
    answer = await harness.browser.get("/my/calls?" + "&".join(["a=1"] * 101))
    assert answer.status_code == 400


async def test_a_file_needs_the_session(harness: SignedInHarness) -> None:
    assert (await harness.browser.get("/my/calls.csv")).status_code == 401
    assert (await harness.browser.get("/my/credit.csv")).status_code == 401


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("status=odd", "status"),
        ("from=yesterday", "from"),
        ("colour=red", "colour"),
        ("role=owner", "role"),
    ],
)
async def test_a_filter_that_is_not_understood_is_marked(
    harness: SignedInHarness, query: str, sentence: str
) -> None:
    await harness.sign_in()
    page = await harness.read(f"/my/calls?{query}", 422)
    assert "The filter was not understood" in page.words
    assert f"error-{sentence}" in page.ids or f"{sentence}:" in page.words


async def test_pages_go_back_and_forth_and_a_new_call_moves_no_row(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*({"state": "released"} for _ in range(120)))
    await harness.sign_in()
    first = await harness.browser.get("/my/calls")
    older = first.text.split('rel="next" href="')[1].split('"')[0].replace("&amp;", "&")
    rows = [call_record_row(500, **{**TEXTS, "payer": READER.address, "created_ms": NOW_MS + 60_000})]
    await harness.services.write_rows(rows)
    harness.services.now_ms += 120_000
    second = await harness.browser.get(older)
    ids = [part.split('"')[0] for part in (first.text + second.text).split('title="call_')[1:]]
    assert ids == [str(number) for number in range(119, 59, -1)]
    assert 'rel="prev"' in second.text


@pytest.mark.parametrize("start", ["/my/calls", "/my/calls?status=failed", "/my/sales?state=held"])
async def test_every_row_is_reached_by_older_and_again_by_newer(harness: SignedInHarness, start: str) -> None:
    """By cursor: 10,000 rows are no border."""
    mine = {"provider": READER.address} if "held" in start else {}
    state = {"state": "unknown", "taken_units": 10_000} if "held" in start else {"state": "released"}
    await harness.services.write_calls(*({**state, **mine} for _ in range(95)))
    await harness.sign_in()
    await walk(harness, start, [30, 30, 30, 5])


async def test_every_payment_is_reached_by_older_and_again_by_newer(harness: SignedInHarness) -> None:
    """Also where two payments are in one transaction."""
    for number in range(35):
        for payee in (SELLER.address, OTHER.address):
            await harness.services.ledger.record_payments(
                [
                    new_payment(
                        10_000,
                        f"tx {number}",
                        payer=READER.address,
                        payee=payee,
                        chain_id=RULES.chain_id,
                        asset=USDC.key,
                        block_time=1_000 + number,
                    )
                ],
                now_ms=NOW_MS,
            )
    await harness.sign_in()
    await walk(harness, "/my/credit", [30, 30, 10])


async def walk(harness: SignedInHarness, start: str, sizes: list[int]) -> None:
    """Follows `older` to the last page and `newer` back to the first one."""
    pages, path = [], start
    while path:
        pages.append((await harness.browser.get(path)).text)
        path = find_page(pages[-1], "next")
    assert [text.count("<tr>") - 1 for text in pages] == sizes
    assert all("offset=" not in text for text in pages)
    back = pages[-1]
    for text in reversed(pages[:-1]):
        back = (await harness.browser.get(find_page(back, "prev"))).text
        assert read_rows(back) == read_rows(text)
    assert find_page(back, "prev") == ""


def find_page(text: str, relation: str) -> str:
    """The address of the newer or the older page; empty without one."""
    _, _, rest = text.partition(f'rel="{relation}" href="')
    return unescape(rest.partition('"')[0])


def read_rows(text: str) -> str:
    return text.partition("<tbody>")[2].partition("</tbody>")[0]


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("before=call_nowhere", "No row is older"),
        ("offset=30", "The filter was not understood"),
        ("before=" + "x" * 65, "The filter was not understood"),
    ],
)
async def test_the_page_of_a_place_that_does_not_exist_says_so(
    harness: SignedInHarness, query: str, sentence: str
) -> None:
    await harness.services.write_calls(*MIXED)
    await harness.sign_in()
    answer = await harness.browser.get(f"/my/calls?{query}")
    words = PageReader(answer.text).words
    assert "This wallet has made no call yet" not in words
    assert sentence in words


async def test_the_file_of_an_older_page_is_the_whole_list(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*({"state": "released"} for _ in range(40)))
    await harness.sign_in()
    older = find_page((await harness.browser.get("/my/calls")).text, "next")
    page = await harness.read(older)
    file = await harness.browser.get(find_link(page, "/my/calls.csv"))
    assert len(list(csv.DictReader(StringIO(file.text)))) == 40


async def test_an_empty_list_says_what_would_be_there(harness: SignedInHarness) -> None:
    await harness.sign_in()
    assert "This wallet has made no call yet" in (await harness.read("/my/calls")).words
    assert "Your APIs have no calls yet" in (await harness.read("/my/calls?role=provider")).words
    assert "No call matches this filter" in (await harness.read("/my/calls?status=failed")).words
    assert "No payment yet" in (await harness.read("/my/credit")).words


# ---- The ticket of a call.

RESOLUTION = "/my/calls/{call_id}/resolution"


async def test_the_ticket_is_shown_to_payer_and_provider_only(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*MIXED)
    for wallet, status in ((READER, 200), (SELLER, 200), (OTHER, 404)):
        await harness.sign_in(wallet)
        assert (await harness.browser.get("/my/calls/call_0")).status_code == status
        assert (await harness.browser.get("/my/calls/call_77")).status_code == 404


async def test_the_ticket_has_the_members_of_the_record(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*MIXED)
    await harness.sign_in()
    for number in range(len(MIXED)):
        call = await harness.services.call_history.find_call(CallId(f"call_{number}"))
        assert call is not None
        record = call_json(call, find_asset_in(RULES.assets))
        text = (await harness.read(f"/my/calls/call_{number}")).text
        payment = record["payment"]
        for shown in (
            record["id"],
            record["price"],
            record["requestId"],
            payment["transaction"],
            payment["payTo"],
        ):
            assert shown is None or shown in text


@pytest.mark.parametrize(
    ("rail", "is_paid", "is_credit"),
    [
        ("tx", True, True),
        ("credit", True, True),
        ("x402", False, False),
        ("mpp", False, False),
        ("x402", True, True),  # the transfer was seen after its call had been given up
    ],
)
async def test_a_released_ticket_speaks_of_credit_only_where_money_moved(
    harness: SignedInHarness, rail: str, is_paid: bool, is_credit: bool
) -> None:
    payment = await harness.services.record_payment(30_000)
    paid_by = {"payment_id": payment.id} if is_paid else {}
    await harness.services.write_calls({"state": "released", "rail": rail, **paid_by})
    await harness.sign_in()
    words = (await harness.read("/my/calls/call_0")).words
    assert ("The price is credit again." in words) is is_credit
    assert ("The signed payment was not used." in words) is not is_credit


METERED = {
    "price": "0.01",
    "price_units": 10_000,
    "metering": write_formulas((sample_metering(),)),
    "upstream_status": 200,
}


@pytest.mark.parametrize(
    ("measured", "state", "words"),
    [
        (
            {"actual_units": 236, "quantities": write_measured(Measured(((40, 7),)))},
            "charged",
            "Price up to 0.01 USDC Cost 0.000236 USDC prompt token 40 completion token 7 Came back 0.009764 USDC",
        ),
        (
            {"actual_units": 10_000, "quantities": write_measured(Measured((None,)))},
            "charged",
            "Price up to 0.01 USDC Cost 0.01 USDC Came back 0 USDC",
        ),
        ({"quantities": ""}, "held", "Price up to 0.01 USDC"),
    ],
)
async def test_the_ticket_of_a_metered_call_has_its_maximum_its_cost_and_what_came_back(
    harness: SignedInHarness, measured: dict[str, Any], state: str, words: str
) -> None:
    await harness.services.write_calls({**METERED, **measured})
    await harness.sign_in()
    ticket = await harness.read("/my/calls/call_0")
    assert words in ticket.words
    assert state.upper() in ticket.words
    assert ("The response has not ended." in ticket.words) is (state == "held")
    assert "nothing tells whether it was served" not in ticket.words
    row = (await harness.read("/my/calls")).words
    assert ("0.000236" if measured.get("actual_units") == 236 else "0.01") in row


async def test_the_ticket_names_the_block_of_its_transaction(harness: SignedInHarness) -> None:
    payment = await harness.services.record_payment(30_000)
    claim = claim_on(payment, 10_000, payer=READER.address, provider=SELLER.address)
    await harness.services.ledger.claim(claim)
    for wallet in (READER, SELLER):
        await harness.sign_in(wallet)
        words = (await harness.read(f"/my/calls/{claim.call_id}")).words
        assert f"Block {payment.block_number}" in words
    await harness.services.write_calls(MIXED[5])
    await harness.sign_in()
    assert "Block" not in (await harness.read("/my/calls/call_0")).words


@pytest.mark.parametrize(
    "path",
    [
        *("/my", "/my/calls", "/my/calls/call_0", "/my/credit", "/my/spending", "/my/wallets"),
        *("/my/apis", "/my/apis/new", "/my/apis/api_1", "/my/sales", "/my/sales?state=held"),
    ],
)
async def test_a_page_says_that_storage_is_away_in_the_frame_of_the_pages(
    harness: SignedInHarness, path: str
) -> None:
    await harness.sign_in()
    harness.services.stores.database.is_away = True
    answer = await harness.browser.get(path)
    assert (answer.status_code, answer.headers["cache-control"]) == (503, "private, no-store")
    assert int(answer.headers["retry-after"]) > 0
    page = PageReader(answer.text)
    assert "main" in page.ids
    assert path in page.addresses  # to try again
    harness.services.stores.database.is_away = False
    assert (await harness.browser.get(path)).status_code in (200, 404)


@pytest.mark.parametrize("outcome", ["consumed", "released"])
async def test_the_provider_decides_a_held_call_once(harness: SignedInHarness, outcome: str) -> None:
    payment = await harness.services.record_payment(10_000)
    claim = claim_on(payment, 10_000, payer=READER.address, provider=SELLER.address)
    await harness.services.ledger.claim(claim)
    await harness.services.ledger.close(close_of(claim, CallState.UNKNOWN, upstream_status=None))
    path = f"/my/calls/{claim.call_id}"
    await harness.sign_in()
    assert "Decide this call" not in (await harness.read(path)).words
    refused = await harness.post(
        f"{path}/resolution", {"outcome": outcome, "confirmed": "yes"}, route=RESOLUTION
    )
    assert refused.status_code == 403
    await harness.sign_in(SELLER)
    assert "Decide this call" in (await harness.read(path)).words
    for fields in ({"outcome": outcome}, {"outcome": "spent", "confirmed": "yes"}, {"confirmed": "yes"}):
        assert (await harness.post(f"{path}/resolution", fields, route=RESOLUTION)).status_code == 422
    decided = await harness.post(
        f"{path}/resolution", {"outcome": outcome, "confirmed": "yes"}, route=RESOLUTION
    )
    assert (decided.status_code, decided.headers["location"]) == (303, path)
    assert "Decide this call" not in (await harness.read(path)).words
    call = await harness.services.call_history.find_call(claim.call_id)
    assert call is not None
    assert call.state is CallState(outcome)


# ---- Credit.


async def test_credit_shows_payments_and_what_is_left(harness: SignedInHarness) -> None:
    payment = await harness.services.record_payment(30_000)
    claim = claim_on(payment, 10_000, payer=READER.address, provider=SELLER.address)
    await harness.services.ledger.claim(claim)
    await harness.sign_in()
    page = await harness.read("/my/credit")
    assert f"0.03 {USDC.symbol}" in page.words
    assert "0.02" in page.words
    assert PROFILE.name in page.words
    one = await harness.read(f"/my/credit/{payment.tx_hash}")
    assert claim.call_id in one.text
    await harness.sign_in(OTHER)
    await harness.read(f"/my/credit/{payment.tx_hash}", 404)


async def test_a_payee_sees_what_it_received_without_a_link_to_the_payers_page(
    harness: SignedInHarness,
) -> None:
    payment = await harness.services.record_payment(30_000)
    await harness.sign_in(SELLER)
    page = await harness.read("/my/credit?role=provider")
    payer = str(READER.address)
    assert f"{payer[:6]}…{payer[-4:]}" in page.words
    assert f"/my/credit/{payment.tx_hash}" not in page.addresses


# ---- Viewers.


async def test_an_owner_reads_the_wallets_that_named_her_and_no_other(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*MIXED)
    await harness.sign_in(OTHER)
    await harness.read(f"/my/calls?wallet={READER.address}", 404)
    await harness.sign_in(READER)
    allowed = await harness.post("/my/wallets", {"address": str(OTHER.address), "until": "2027-02-01"})
    assert (allowed.status_code, allowed.headers["location"]) == (303, "/my/wallets")
    assert str(OTHER.address) in (await harness.read("/my/wallets")).text
    await harness.sign_in(OTHER)
    for page in ("/my", "/my/wallets", "/my/calls", "/my/credit", "/my/spending"):
        assert str(READER.address) not in (await harness.read(page)).text, "not before she has read its books"
    assert "6 calls" in (await harness.read(f"/my/calls?wallet={READER.address}")).words
    for page in ("/my", "/my/wallets", "/my/calls", "/my/credit", "/my/spending"):
        assert str(READER.address) in (await harness.read(page)).text
    await harness.read(f"/my/calls/call_0?wallet={READER.address}")
    await harness.read(f"/my/calls?wallet={SELLER.address}", 404)
    await harness.sign_in(READER)
    await harness.post("/my/wallets/withdrawal", {"address": str(OTHER.address)})
    await harness.sign_in(OTHER)
    await harness.read(f"/my/calls?wallet={READER.address}", 404)


async def test_an_owner_declines_a_permission_on_the_page(harness: SignedInHarness) -> None:
    for wallet in (READER, SELLER):
        await harness.name_viewer(wallet, OTHER)
    await harness.sign_in(OTHER)
    assert f"Decline {READER.address}" in (await harness.read("/my/wallets")).words
    declined = await harness.post("/my/wallets/refusal", {"address": str(READER.address)})
    assert (declined.status_code, declined.headers["location"]) == (303, "/my/wallets")
    page = (await harness.read("/my/wallets")).text
    assert str(READER.address) not in page
    assert str(SELLER.address) in page
    await harness.read(f"/my/calls?wallet={READER.address}", 404)


async def test_an_owner_reads_a_bound_wallet_without_its_permission(harness: SignedInHarness) -> None:
    """Both see that on the page, and neither ends it there: unbinding does."""
    await harness.services.write_calls(*MIXED)
    await harness.bind_owner(READER, OTHER)
    await harness.sign_in(READER)
    page = await harness.read("/my/wallets")
    assert f"{OTHER.address} your owner, as long as this wallet is bound" in page.words
    assert "Withdraw" not in page.words
    await harness.sign_in(OTHER)
    page = await harness.read("/my/wallets")
    assert f"{READER.address} as long as it is bound to you" in page.words
    assert "Decline" not in page.words
    for path in ("/my", "/my/calls", "/my/credit", "/my/spending"):
        assert str(READER.address) in (await harness.read(path)).text
    assert "6 calls" in (await harness.read(f"/my/calls?wallet={READER.address}")).words
    await harness.services.budgets.revoke_policy(
        OTHER.address, READER.address, nonce=2, is_unbinding=True, now_ms=NOW_MS
    )
    await harness.read(f"/my/calls?wallet={READER.address}", 404)


async def test_a_menu_and_a_page_have_the_newest_wallets(harness: SignedInHarness) -> None:
    """And the wallet whose books are read, however old its permission is."""
    named = [Address(bytes([number]) * 20) for number in range(1, 61)]
    for number, wallet in enumerate(named):
        until_ms = NOW_MS + DAY_MS
        given = Viewer(wallet=wallet, viewer=OTHER.address, since_ms=NOW_MS, until_ms=until_ms)
        await harness.services.viewers.put(given, most=1)
        await harness.services.viewers.accept(wallet, OTHER.address, now_ms=NOW_MS + number)
    await harness.sign_in(OTHER)
    for path in ("/my/wallets", "/my/calls", "/my/credit", "/my/spending", "/my"):
        page = (await harness.read(path)).text
        shown = {wallet for wallet in named if str(wallet) in page}
        assert shown == set(named[-DEFAULT_LIMITS.menu_wallets_max :]), path
    oldest = (await harness.read(f"/my/calls?wallet={named[0]}")).text
    assert str(named[0]) in oldest


@pytest.mark.parametrize(
    "path",
    [
        "/my",
        "/my/calls",
        "/my/calls/call_0",
        "/my/credit",
        "/my/credit/0x" + "ab" * 32,
        "/my/spending",
    ],
)
async def test_a_page_about_a_wallet_that_is_not_yours_is_not_found(
    harness: SignedInHarness, path: str
) -> None:
    """The same page whether the wallet has calls or none, so a page tells no stranger which wallets are customers."""
    await harness.services.write_calls(*MIXED)
    await harness.sign_in(OTHER)
    pages = [await harness.read(f"{path}?wallet={wallet.address}", 404) for wallet in (READER, THIRD)]
    words = [page.words for page in pages]
    assert words[0].replace(str(READER.address), "") == words[1].replace(str(THIRD.address), "")


@pytest.mark.parametrize("is_bound", [False, True], ids=["named", "bound"])
async def test_an_owner_follows_the_links_of_an_agents_books(
    harness: SignedInHarness, is_bound: bool
) -> None:
    """From the lists of an agent to a ticket, its receipt and the calls of a payment: every link keeps whose books it shows."""
    payment = await harness.services.record_payment(30_000)
    claim = claim_on(payment, 10_000, payer=READER.address, provider=SELLER.address)
    await harness.services.ledger.claim(claim)
    await harness.services.ledger.close(close_of(claim, CallState.CONSUMED))
    harness.services.now_ms += DEFAULT_LIMITS.receipt_wait_s * 1000
    await (harness.bind_owner if is_bound else harness.name_viewer)(READER, OTHER)
    await harness.sign_in(OTHER)
    calls = await harness.read(f"/my/calls?wallet={READER.address}")
    ticket = await harness.read(find_link(calls, "/my/calls/"))
    receipt = await harness.browser.get(find_link(ticket, "/receipt"))
    assert (receipt.status_code, receipt.json()["payload"]["callId"]) == (200, claim.call_id)
    assert "All calls" in ticket.words
    back = await harness.read(find_link(ticket, "/my/calls?"))
    assert find_link(back, f"{claim.call_id}?wallet=")
    credit = await harness.read(f"/my/credit?wallet={READER.address}")
    paid = await harness.read(find_link(credit, "/my/credit/"))
    assert claim.call_id in (await harness.read(find_link(paid, "/my/calls/"))).text
    assert find_link(await harness.read(find_link(paid, "/my/credit?")), str(payment.tx_hash))
    none = await harness.read(f"/my/calls?wallet={READER.address}&status=failed")
    assert find_link(await harness.read(find_link(none, "/my/calls?role=")), claim.call_id)


def find_link(page: PageReader, part: str) -> str:
    """The first link of the page whose path or query has this part."""
    return next(link for link in page.addresses if part in link)


@pytest.mark.parametrize(
    ("address", "until", "field"),
    [
        ("0x12", "2027-02-01", "address"),
        (str(READER.address), "2027-02-01", "address"),
        (str(OTHER.address), "2020-01-01", "until"),
        (str(OTHER.address), "soon", "until"),
        (str(OTHER.address), "2099-01-01", "until"),
    ],
    ids=("no address", "itself", "in the past", "no day", "too far ahead"),
)
async def test_a_permission_that_is_not_good_is_marked_at_its_field(
    harness: SignedInHarness, address: str, until: str, field: str
) -> None:
    await harness.sign_in(READER)
    answer = await harness.post("/my/wallets", {"address": address, "until": until})
    assert answer.status_code == 422
    assert f'id="error-{field}"' in answer.text
    assert f'value="{address}"' in answer.text
    assert "Only you." in PageReader(answer.text).words


@pytest.mark.parametrize("days_max", [1, 30, 365, 366, DEFAULT_LIMITS.viewer_days_max])
@pytest.mark.parametrize("time", ["00:00:00.000Z", "12:00:00.000Z", "23:59:59.998Z"])
def test_the_suggested_day_of_a_permission_is_accepted_to_its_end(days_max: int, time: str) -> None:
    now_ms = parse_time(f"2026-11-28T{time}")
    suggested = suggest_until(now_ms, days_max=days_max)
    assert read_until({"until": end_of_day(suggested)}, now_ms=now_ms, days_max=days_max) > now_ms


HOSTILE = '"><script>alert(1)</script>\u202e'


async def test_a_viewer_reads_calls_that_the_wallet_sold_and_no_sums_of_its_sales(
    harness: SignedInHarness,
) -> None:
    """As `/my/wallets` says it."""
    await harness.services.write_calls({**MIXED[0], "listing_name": "Sold by another"})
    await harness.name_viewer(SELLER, OTHER)
    await harness.sign_in(OTHER)
    sold = await harness.read(f"/my/calls?role=provider&wallet={SELLER.address}")
    assert "1 call" in sold.words
    assert "Sold by another" in sold.words or "api_1" in sold.words
    assert "No sales in the last 30 days" in (await harness.read("/my/sales")).words
    assert (await harness.browser.get(f"/my/sales?wallet={SELLER.address}")).status_code == 422
    assert "those that you sell" in (await harness.read("/my/wallets")).words


async def test_words_of_providers_are_escaped(harness: SignedInHarness) -> None:
    await harness.services.write_calls(
        {
            **MIXED[0],
            "listing_name": HOSTILE,
            "method": "GET",
            "path": f"/{HOSTILE}",
            "request_id": HOSTILE,
            "idempotency_key": HOSTILE,
        }
    )
    await harness.sign_in()
    for path in ("/my/calls", "/my/calls/call_0"):
        page = await harness.browser.get(path)
        assert "<script>alert" not in page.text
        assert "\u202e" not in page.text
        assert not PageReader(page.text).handlers


@pytest.mark.parametrize(
    ("path", "focused"),
    [
        ("/my/calls?from=x&status=odd", "status"),
        ("/my/spending?to=x&from=y", "from"),
        ("/my/sales?step=week&apiId=" + "a" * 65, "apiId"),
        ("/my/credit?to=x", "to"),
    ],
)
async def test_the_focus_goes_to_the_first_field_with_an_error(
    harness: SignedInHarness, path: str, focused: str
) -> None:
    await harness.sign_in()
    answer = await harness.browser.get(path)
    assert answer.status_code == 422
    (tag,) = re.findall(r"<[^>]* autofocus[^>]*>", answer.text)
    assert f'id="{focused}"' in tag
