"""The pages of a signed-in reader: the way in and out, calls and their ticket, credit, viewers. They show what `/api/v2` answers to the same wallet."""

import asyncio
import csv
from collections.abc import AsyncIterator
from dataclasses import replace
from io import StringIO
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import coincurve
import httpx
import pytest

from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import claim_on, close_of, new_payment
from tests.kit.pages import BROWSER, PROFILE, PUBLIC_URL, RULES, PageHarness, PageReader, no_calls
from tests.kit.payer import KeyWallet
from tests.kit.sql_ledger import SqlLedger
from tollway.app.page_wiring import signed_in_routers
from tollway.chain.port import ContractResult
from tollway.config.settings import Settings
from tollway.errors import Code
from tollway.identity.authenticator import Authenticator
from tollway.identity.page_sessions import USE_INTERVAL_MS
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import ReceiptSigner, SignatureVerifier, eip191_digest
from tollway.identity.siwe import parse_origin
from tollway.ids import Address, CallId
from tollway.ledger.records import CallState, Payment
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.rate_limits.limiter import RateLimiter
from tollway.storage.history import HistoryStore
from tollway.storage.identity_store import SqlPageSessions, SqlSessions
from tollway.storage.payments import PaymentLedgerStore
from tollway.storage.viewer_store import SqlViewers
from tollway.web.admission import LoadShedder, SignInRateLimit
from tollway.web.app import build_app
from tollway.web.auth_routes import make_wallet_dependency, signin_router
from tollway.web.history_routes import call_json, history_router
from tollway.web.my_routes import choose_destination
from tollway.web.page_problems import ProblemPages
from tollway.web.page_renderer import PageRenderer
from tollway.web.page_session import PAGE_COOKIE, make_form_token

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
USDC = RULES.assets[0]
READER = KeyWallet(key=coincurve.PrivateKey(b"\x31" * 32))
OTHER = KeyWallet(key=coincurve.PrivateKey(b"\x32" * 32))
SELLER = KeyWallet(key=coincurve.PrivateKey(b"\x33" * 32))
TEXTS = {
    "chain_id": RULES.chain_id,
    "asset": USDC.key,
    "price": "0.01",
    "price_units": 10_000,
    "pay_to": SELLER.address,
    "provider": SELLER.address,
}


class Services:
    """The stores behind the pages, over one database in memory."""

    def __init__(self, harness: PageHarness) -> None:
        database = harness.stores.database
        self.now_ms = NOW_MS + 10_000
        self.settings = Settings(public_url=PUBLIC_URL)
        self.database = database
        self.ledger = SqlLedger(database, owner_id="one", now_ms=lambda: self.now_ms)
        self.call_history = HistoryStore(database, limits=DEFAULT_LIMITS)
        self.payments = PaymentLedgerStore(database)
        self.page_sessions = SqlPageSessions(database)
        self.sessions = SqlSessions(database)
        self.viewers = SqlViewers(database)
        drawn = iter(range(1, 1_000))
        self.entropy = lambda size: next(drawn).to_bytes(size, "big")
        self.sign_in = SignIn(
            self.sessions,
            SignatureVerifier(NoChain(), limits=DEFAULT_LIMITS),
            Unmetered(),
            origin=parse_origin(PUBLIC_URL),
            limits=DEFAULT_LIMITS,
            now_ms=lambda: self.now_ms,
            entropy=self.entropy,
        )

    async def write_calls(self, *changes: dict[str, Any]) -> None:
        shared = {**TEXTS, "payer": READER.address, "http_status": None, "upstream_status": None}
        shared |= {"tx_hash": None, "error": None}
        rows = [call_record_row(number, **{**shared, **one}) for number, one in enumerate(changes)]
        await self.database.write(lambda connection: insert_calls(connection, rows))

    async def record_payment(self, units: int) -> Payment:
        new = new_payment(
            units, payer=READER.address, payee=SELLER.address, chain_id=RULES.chain_id, asset=USDC.key
        )
        (payment,) = await self.ledger.record_payments([new], now_ms=self.now_ms)
        return payment


class NoChain:
    chain_ids = (RULES.chain_id,)

    async def call_contract(self, chain_id: Any, **asked: object) -> ContractResult:
        return ContractResult(reverted=False, payload=b"")


class Unmetered:
    lookups_per_minute = 30

    async def charge(self, *, client_address: str, signer: str) -> int | None:
        return None


def find_asset(chain_id: Any, key: str) -> Any:
    return next((one for one in RULES.assets if one.key == key), None)


class SignedInHarness:
    """A browser of the signed-in pages, and the API beside them."""

    def __init__(self) -> None:
        pages = PageHarness()
        self.services = Services(pages)
        services = self.services
        public = replace(pages.services(), now_ms=lambda: services.now_ms)
        self.renderer: PageRenderer = public.renderer
        rate_limit = SignInRateLimit(limits=DEFAULT_LIMITS, rate_limiter=RateLimiter())
        authenticator = Authenticator(
            services.sessions,
            services.sign_in,
            origin=parse_origin(PUBLIC_URL),
            limits=DEFAULT_LIMITS,
            now_ms=lambda: services.now_ms,
            rate_limiter=RateLimiter(),
        )

        async def own_books(reader: Address, named: Address | None) -> Address:
            return reader

        app = build_app(
            call_app=no_calls,
            routers=[
                signin_router(services.sign_in, rate_limit, limits=DEFAULT_LIMITS),
                history_router(
                    call_history=services.call_history,
                    ledger=services.ledger,
                    payment_ledger=services.payments,
                    wallet=make_wallet_dependency(authenticator, body_bytes_max=65_536),
                    resolve_wallet=own_books,
                    lookup=None,  # type: ignore[arg-type]  # no test asks for a transaction that the ledger does not have
                    find_asset=find_asset,
                    now_ms=lambda: services.now_ms,
                ),
                *signed_in_routers(
                    services,
                    public,
                    origin=parse_origin(PUBLIC_URL),
                    rate_limit=rate_limit,
                    find_asset=find_asset,
                    receipt_signer=ReceiptSigner.derive(b"\x01" * 32),
                    entropy=services.entropy,
                ),
            ],
            public_url=PUBLIC_URL,
            limits=Limits(),
            clock=lambda: 0.0,
            entropy=lambda size: bytes(size),
            shedder=LoadShedder(limits=Limits(), clock=lambda: 0.0, read_memory_bytes=lambda: 0),
            problem_pages=ProblemPages(self.renderer),
        )
        self.browser = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url=PUBLIC_URL,
            headers=BROWSER,
            follow_redirects=False,
        )
        self.token = ""

    async def message_for(self, wallet: KeyWallet, uri: str | None = f"{PUBLIC_URL}/signin") -> str:
        asked = {"address": str(wallet.address), "chainId": RULES.chain_id, "uri": uri}
        return str((await self.browser.post("/api/v2/auth/nonce", json=asked)).json()["message"])

    async def post(
        self, path: str, fields: dict[str, str], *, route: str | None = None, **headers: str
    ) -> httpx.Response:
        """Posts a form as a browser does from a page of this origin."""
        route = path if route is None else route
        given = {"form_token": make_form_token(self.token, route), **fields} if self.token else fields
        own = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Sec-Fetch-Site": "same-origin",
            **headers,
        }
        return await self.browser.post(path, content=urlencode(given), headers=own)

    async def sign_in(self, wallet: KeyWallet = READER, *, to: str = "") -> httpx.Response:
        self.token = ""
        self.browser.cookies.clear()
        message = await self.message_for(wallet)
        signature = "0x" + wallet.sign(eip191_digest(message.encode())).hex()
        # A browser normalises the line breaks of a field.
        answer = await self.post(
            "/signin", {"message": message.replace("\n", "\r\n"), "signature": signature, "to": to}
        )
        self.token = answer.cookies.get(PAGE_COOKIE.name, "")
        return answer

    async def read(self, path: str, status: int = 200) -> PageReader:
        answer = await self.browser.get(path)
        assert answer.status_code == status, answer.text
        return PageReader(answer.text)


@pytest.fixture
async def harness() -> AsyncIterator[SignedInHarness]:
    harness = SignedInHarness()
    writer = asyncio.get_running_loop().create_task(harness.services.ledger.run())
    await harness.services.ledger.open()
    async with harness.browser:
        yield harness
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)


# ---- The way in and out.


async def test_a_wallet_signs_in_and_comes_back_to_where_it_was(harness: SignedInHarness) -> None:
    answer = await harness.browser.get("/my/calls?status=unknown")
    assert answer.status_code == 303
    there = urlsplit(answer.headers["location"])
    assert (there.path, parse_qs(there.query)) == ("/signin", {"to": ["/my/calls?status=unknown"]})
    page = await harness.read(answer.headers["location"])
    assert "Sign in with your wallet" in page.words
    answer = await harness.sign_in(to="/my/calls?status=unknown")
    assert (answer.status_code, answer.headers["location"]) == (303, "/my/calls?status=unknown")
    assert "; Path=/; Secure; HttpOnly; SameSite=Lax" in answer.headers["set-cookie"]
    assert str(READER.address)[:6] in (await harness.read("/my/calls")).words
    assert (await harness.browser.get("/signin")).headers["location"] == "/my"


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
    assert answer.headers["cache-control"] == "no-store"
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

MIXED = (
    {
        "state": "consumed",
        "taken_units": 10_000,
        "http_status": 200,
        "upstream_status": 200,
        "tx_hash": b"\x01" * 32,
    },
    {"state": "released", "http_status": 502, "upstream_status": 502},
    {"state": "unknown", "taken_units": 10_000, "error": "upstream_timeout"},
    {"state": "reorged", "taken_units": 0, "http_status": 200, "upstream_status": 200},
    {
        "state": "consumed",
        "taken_units": 10_000,
        "http_status": 404,
        "upstream_status": 404,
        "listing_id": "api_2",
    },
    {
        "state": "consumed",
        "price_units": 0,
        "price": "0",
        "chain_id": None,
        "asset": None,
        "rail": "none",
        "http_status": 200,
        "upstream_status": 200,
    },
)
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
    await harness.services.database.write(lambda connection: insert_calls(connection, rows))
    harness.services.now_ms += 120_000
    second = await harness.browser.get(older)
    ids = [part.split('"')[0] for part in (first.text + second.text).split('title="call_')[1:]]
    assert ids == [str(number) for number in range(119, 19, -1)]
    assert 'rel="prev"' in second.text


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
        record = call_json(call, find_asset)
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


# ---- Viewers.


async def test_an_owner_reads_the_wallets_that_named_her_and_no_other(harness: SignedInHarness) -> None:
    await harness.services.write_calls(*MIXED)
    await harness.sign_in(OTHER)
    await harness.read(f"/my/calls?wallet={READER.address}", 403)
    await harness.sign_in(READER)
    allowed = await harness.post("/my/wallets", {"address": str(OTHER.address), "until": "2027-02-01"})
    assert (allowed.status_code, allowed.headers["location"]) == (303, "/my/wallets")
    assert str(OTHER.address) in (await harness.read("/my/wallets")).text
    await harness.sign_in(OTHER)
    assert str(READER.address) in (await harness.read("/my/wallets")).text
    assert "6 calls" in (await harness.read(f"/my/calls?wallet={READER.address}")).words
    await harness.read(f"/my/calls/call_0?wallet={READER.address}")
    await harness.read(f"/my/calls?wallet={SELLER.address}", 403)
    await harness.sign_in(READER)
    await harness.post("/my/wallets/withdrawal", {"address": str(OTHER.address)})
    await harness.sign_in(OTHER)
    await harness.read(f"/my/calls?wallet={READER.address}", 403)


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


HOSTILE = '"><script>alert(1)</script>\u202e'


async def test_words_of_providers_are_escaped(harness: SignedInHarness) -> None:
    await harness.services.write_calls(
        {**MIXED[0], "listing_name": HOSTILE, "method": "GET", "path": f"/{HOSTILE}", "request_id": HOSTILE}
    )
    await harness.sign_in()
    for path in ("/my/calls", "/my/calls/call_0"):
        page = await harness.browser.get(path)
        assert "<script>alert" not in page.text
        assert "\u202e" not in page.text
        assert not PageReader(page.text).handlers
