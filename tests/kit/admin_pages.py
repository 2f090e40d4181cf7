"""The operator's pages of a whole gateway, in one process, as a browser with the cookie of a session uses them."""

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import httpx
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from tests.kit.ledger_records import tx_hash
from tests.kit.listings import sample_listing
from tests.kit.routes import PUBLIC_URL
from tollway.app.lifecycle import App
from tollway.app.runtime import now_ms
from tollway.config.settings import load_settings
from tollway.identity.admin_sessions import AdminSession, AdminSignIn, create_code
from tollway.ids import Address
from tollway.storage.operator.operator_writes import SqlAdminSessions
from tollway.web.operator.operator_app import ADMIN_COOKIE, AdminApp, AdminHosts
from tollway.web.pages.assets import asset_router, read_assets
from tollway.web.pages.renderer import PageRenderer

HOST = "127.0.0.1:9402"
ORIGIN = f"http://{HOST}"
ALICE = Address(b"a" * 20)
LISTING = sample_listing(provider=ALICE, name="<b>Quotes</b>")
TX = tx_hash("old")
PAGES = ("/", "/chains", "/gas", "/calls", "/listings", "/wallets", "/books", "/audit-log")
PAGES_BESIDE = ("/runbooks", "/runbooks/ChainAway")
"""Pages that the navigation does not name."""
API = ("/admin/api/overview", "/admin/api/chains", "/admin/api/gas", "/admin/api/calls", "/admin/api/books")
SAME_ORIGIN = {"sec-fetch-site": "same-origin"}


@asynccontextmanager
async def run_admin_app(**environment: str) -> AsyncIterator[App]:
    """A gateway in the current folder, whose node is away, with one listing. `environment`: more settings."""
    settings = load_settings(
        {
            "TOLLWAY_RPC_SANDBOX": "http://127.0.0.1:1",
            "TOLLWAY_ADMIN_HOSTS": "gw-admin.internal",
            **environment,
        }
    )
    async with App(settings) as app:
        await app.catalog.publish(LISTING)
        yield app


def open_browser(app: App) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app.build_admin_app()), base_url=ORIGIN)


class OneSession:
    """A sign-in where every token is of one session."""

    has_wallets = False

    async def find_session(self, token: str) -> AdminSession:
        return AdminSession(token_hash=b"", actor="operator@host", created_ms=0, expires_ms=1)


def open_failing_browser(error: Exception) -> httpx.AsyncClient:
    """At an admin address whose pages fail with `error`. Every cookie has a session; open paths need none."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise error

    renderer = PageRenderer(read_assets(), public_url=PUBLIC_URL, test_money="none", now_ms=now_ms)
    app = AdminApp(
        metrics=fail,
        pages=Router(asset_router(renderer.assets).routes, default=fail),
        hosts=AdminHosts(listen_host="127.0.0.1", port=9402, names=()),
        sign_in=cast(AdminSignIn, OneSession()),
        renderer=renderer,
        public_url=PUBLIC_URL,
        entropy=lambda size: bytes(size),
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ORIGIN)


async def make_code(app: App) -> str:
    store = SqlAdminSessions(app.database)
    return await create_code(store, actor="alice@gw-1", now_ms=now_ms(), entropy=os.urandom)


async def enter(browser: httpx.AsyncClient, code: str) -> httpx.Response:
    return await browser.post("/enter", data={"code": code}, headers=SAME_ORIGIN)


async def sign_in(app: App, browser: httpx.AsyncClient) -> None:
    answer = await enter(browser, await make_code(app))
    keep_cookie(browser, answer)


def keep_cookie(browser: httpx.AsyncClient, answer: httpx.Response) -> None:
    """Of the answer that opened a session."""
    assert (answer.status_code, answer.headers["location"]) == (303, "/"), answer.text
    # The client of the tests keeps no `Secure` cookie of plain http, so it is set by hand.
    token = re.match(rf"{ADMIN_COOKIE.name}=([^;]+);", answer.headers["set-cookie"])
    assert token is not None
    browser.headers["cookie"] = f"{ADMIN_COOKIE.name}={token[1]}"


async def send_form(
    browser: httpx.AsyncClient, page: str, action: str, headers: dict[str, str] | None = None, **fields: str
) -> httpx.Response:
    """Fills in the form of a page whose action is `action`, with its hidden fields."""
    text = (await browser.get(page)).text
    form = re.search(rf'<form[^>]*action="{re.escape(action)}".*?</form>', text, re.S)
    assert form is not None, f"{page} has no form for {action}"
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form[0]))
    return await browser.post(
        action, data={**hidden, **fields}, headers=SAME_ORIGIN if headers is None else headers
    )


async def list_audit_entries(app: App) -> list[tuple[str, str, str, str]]:
    entries = await app.audit_log.list_audit_entries(limit=20)
    return [(entry.kind, entry.target, entry.origin.actor, entry.origin.reason) for entry in entries]
