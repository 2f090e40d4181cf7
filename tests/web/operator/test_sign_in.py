"""Wallets of the setting `operators` at the admin address: their nonces, their messages, and who else is refused."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.kit.admin_pages import (
    API,
    LISTING,
    ORIGIN,
    SAME_ORIGIN,
    keep_cookie,
    list_audit_entries,
    open_browser,
    run_admin_app,
    send_form,
    sign_in,
)
from tests.kit.payer import KeyWallet
from tollway.app.lifecycle import App
from tollway.identity.signatures import eip191_digest
from tollway.identity.siwe import format_sign_in, parse_sign_in
from tollway.web.operator.operator_app import ADMIN_COOKIE, NONCE_PATH, SESSION_PATH

OPERATOR, OTHER = KeyWallet.named("operator"), KeyWallet.named("another wallet")
PUBLIC = "http://127.0.0.1:8402"
PROXIED = "https://gw-admin.internal"
SUSPENSION = f"/admin/api/listings/{LISTING.id}/suspension"
HERE = {**SAME_ORIGIN, "origin": ORIGIN}


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.chdir(tmp_path)
    async with run_admin_app(TOLLWAY_OPERATORS=str(OPERATOR.address)) as app:
        yield app


@pytest.fixture
async def browser(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with open_browser(app) as client:
        yield client


@pytest.fixture
async def public(app: App) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app.asgi_app)
    async with httpx.AsyncClient(transport=transport, base_url=PUBLIC) as client:
        yield client


async def ask_message(browser: httpx.AsyncClient, wallet: KeyWallet = OPERATOR) -> str:
    body = {"address": str(wallet.address), "chainId": 84532}
    answer = await browser.post(NONCE_PATH, json=body, headers=HERE)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["message"])


def sign(text: str, wallet: KeyWallet = OPERATOR) -> str:
    return "0x" + wallet.sign(eip191_digest(text.encode())).hex()


async def show(browser: httpx.AsyncClient, text: str, wallet: KeyWallet = OPERATOR) -> httpx.Response:
    fields = {"message": text.replace("\n", "\r\n"), "signature": sign(text, wallet)}
    return await browser.post(SESSION_PATH, data=fields, headers=HERE)


async def test_a_wallet_of_operators_signs_in_and_its_acts_have_its_address(
    app: App, browser: httpx.AsyncClient
) -> None:
    page = await browser.get("/")
    assert page.status_code == 401
    assert f'action="{SESSION_PATH}"' in page.text
    text = await ask_message(browser)
    message = parse_sign_in(text)
    assert (message.domain, message.uri) == ("127.0.0.1:9402", ORIGIN)
    answer = await show(browser, text)
    assert "SameSite=Strict" in answer.headers["set-cookie"]
    keep_cookie(browser, answer)
    assert str(OPERATOR.address) in (await browser.get("/")).text
    changed = await send_form(browser, "/listings", SUSPENSION, reason="under review")
    assert changed.status_code == 303
    assert await list_audit_entries(app) == [
        ("suspend_listing", LISTING.id, f"{OPERATOR.address} (page)", "under review")
    ]


async def test_behind_a_proxy_with_tls_the_message_names_its_origin(browser: httpx.AsyncClient) -> None:
    headers = {**SAME_ORIGIN, "origin": PROXIED, "host": "gw-admin.internal"}
    body = {"address": str(OPERATOR.address), "chainId": 1}
    text = (await browser.post(NONCE_PATH, json=body, headers=headers)).json()["message"]
    assert parse_sign_in(text).uri == PROXIED
    fields = {"message": text, "signature": sign(text)}
    assert (await browser.post(SESSION_PATH, data=fields, headers=HERE)).status_code == 401
    text = (await browser.post(NONCE_PATH, json=body, headers=headers)).json()["message"]
    fields = {"message": text, "signature": sign(text)}
    assert (await browser.post(SESSION_PATH, data=fields, headers=headers)).status_code == 303


async def test_without_operators_wallets_have_no_routes_and_no_button(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with run_admin_app() as app, open_browser(app) as browser:
        for _ in range(2):
            for path in (NONCE_PATH, SESSION_PATH):
                assert (await browser.post(path, headers=HERE)).status_code == 404
            await sign_in(app, browser)
        page = (await browser.get("/enter")).text
        assert SESSION_PATH not in page
        assert "signin.js" not in page


async def test_another_wallet_opens_no_session(browser: httpx.AsyncClient) -> None:
    answer = await show(browser, await ask_message(browser, OTHER), OTHER)
    assert answer.status_code == 401
    assert "The setting operators does not contain this wallet" in answer.text
    assert "set-cookie" not in answer.headers
    forged = await show(browser, await ask_message(browser), OTHER)
    assert forged.status_code == 401
    assert "was not signed by the key of the wallet" in forged.text


async def test_a_message_counts_once(browser: httpx.AsyncClient) -> None:
    text = await ask_message(browser)
    assert [(await show(browser, text)).status_code for _ in range(2)] == [303, 401]


@pytest.mark.parametrize("uri", [None, f"{PUBLIC}/signin", f"{PUBLIC}/", PUBLIC])
async def test_a_nonce_of_the_public_listener_counts_at_no_page_of_the_operator(
    browser: httpx.AsyncClient, public: httpx.AsyncClient, uri: str | None
) -> None:
    nonce = (await public.post("/api/v2/auth/nonce", json={"uri": uri})).json()["nonce"]
    text = format_sign_in(replace(parse_sign_in(await ask_message(browser)), nonce=nonce))
    answer = await show(browser, text)
    assert answer.status_code == 401
    assert "issued for another URI" in answer.text


async def test_the_public_listener_issues_no_nonce_for_the_admin_origin(public: httpx.AsyncClient) -> None:
    answer = await public.post("/api/v2/auth/nonce", json={"uri": ORIGIN})
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")


@pytest.mark.parametrize("way", ["session", "page", "header"])
async def test_a_nonce_of_the_operators_pages_counts_nowhere_else(
    browser: httpx.AsyncClient, public: httpx.AsyncClient, way: str
) -> None:
    uri = {"session": "/api/v2/auth/session", "page": "/signin", "header": "/api/v2/history"}[way]
    own = parse_sign_in(await ask_message(browser))
    message = replace(own, domain="127.0.0.1:8402", uri=PUBLIC + uri)
    text = format_sign_in(message)
    fields = {"message": text, "signature": sign(text)}
    match way:
        case "session":
            answer = await public.post(uri, json=fields)
        case "page":
            answer = await public.post(uri, data=fields, headers=SAME_ORIGIN)
        case _:
            payload = {
                "domain": message.domain,
                "address": message.address,
                "statement": message.statement,
                "uri": message.uri,
                "version": "1",
                "chainId": f"eip155:{message.chain_id}",
                "type": "eip191",
                "nonce": message.nonce,
                "issuedAt": message.issued_at,
                "expirationTime": message.expiration_time,
                "signature": fields["signature"],
            }
            header = base64.b64encode(json.dumps(payload).encode()).decode()
            answer = await public.get(uri, headers={"sign-in-with-x": header})
    assert answer.status_code == 401, answer.text
    assert "issued for another URI" in answer.text
    assert (await show(browser, format_sign_in(own))).status_code == 401  # and it is spent


async def test_a_name_at_which_callers_are_served_has_no_sign_in_of_wallets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a nonce of the public listener can name the same URI."""
    monkeypatch.chdir(tmp_path)
    environment = {"TOLLWAY_OPERATORS": str(OPERATOR.address), "TOLLWAY_PUBLIC_URL": PROXIED}
    async with run_admin_app(**environment) as app, open_browser(app) as browser:
        headers = {**SAME_ORIGIN, "origin": PROXIED, "host": "gw-admin.internal"}
        answer = await browser.post(NONCE_PATH, json={}, headers=headers)
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert "another name of admin_hosts" in answer.json()["detail"]
        text = await ask_message(browser)
        text = text.replace("127.0.0.1:9402", "gw-admin.internal").replace("http://", "https://")
        fields = {"message": text, "signature": sign(text)}
        assert (await browser.post(SESSION_PATH, data=fields, headers=headers)).status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        {},
        SAME_ORIGIN,
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ORIGIN, "sec-fetch-site": "cross-site"},
        {"origin": "http://gw-admin.internal"},
        {**SAME_ORIGIN, "origin": "http://evil.example"},
        {"origin": f"https://gw-admin.internal:{99999}", "host": "gw-admin.internal:99999"},
    ],
)
async def test_a_request_of_another_origin_gets_neither_nonce_nor_session(
    browser: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    assert (await browser.post(NONCE_PATH, json={}, headers=headers)).status_code == 400
    text = await ask_message(browser)
    fields = {"message": text, "signature": sign(text)}
    assert (await browser.post(SESSION_PATH, data=fields, headers=headers)).status_code == 400


async def test_a_body_that_is_not_understood_is_a_problem_in_json(browser: httpx.AsyncClient) -> None:
    for body in ({"address": "0x12"}, {"uri": ORIGIN}, {"chainId": "one"}):
        answer = await browser.post(NONCE_PATH, json=body, headers=HERE)
        assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
        assert answer.json()["errors"]


async def test_nonces_and_sessions_of_one_address_are_limited(app: App, browser: httpx.AsyncClient) -> None:
    for _ in range(app.settings.limits.nonces_per_minute):
        assert (await browser.post(NONCE_PATH, json={}, headers=HERE)).status_code == 200
        assert (await browser.post(SESSION_PATH, data={"signature": ""}, headers=HERE)).status_code == 401
    answer = await browser.post(NONCE_PATH, json={}, headers=HERE)
    assert (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    assert (await browser.post(SESSION_PATH, data={"signature": ""}, headers=HERE)).status_code == 429


@pytest.mark.parametrize("signature", ["0x01", "0x" + "ab" * 100, "0x" + "6492" * 16])
async def test_only_a_key_signs_in(browser: httpx.AsyncClient, signature: str) -> None:
    """The node of this test is away, and it does not matter: an operator enters while nodes fail, and no node vouches for a wallet."""
    fields = {"message": await ask_message(browser), "signature": signature}
    answer = await browser.post(SESSION_PATH, data=fields, headers=HERE)
    assert answer.status_code == 401
    assert "Contract wallets do not sign in" in answer.text
    assert "set-cookie" not in answer.headers


async def test_figures_stay_behind_the_session(browser: httpx.AsyncClient) -> None:
    keep_cookie(browser, await show(browser, await ask_message(browser)))
    for path in API:
        assert (await browser.get(path)).status_code == 200
    browser.headers["cookie"] = f"{ADMIN_COOKIE.name}={'A' * 43}"
    assert (await browser.get(API[0])).status_code == 401


async def test_an_unknown_path_is_explained(browser: httpx.AsyncClient) -> None:
    keep_cookie(browser, await show(browser, await ask_message(browser)))
    answer = await browser.get("/unknown")
    assert answer.status_code == 404
    assert "There is no such page" in answer.text
