"""Hostile texts on every page of the operator in a browser: names, reasons, errors, actors, answers of nodes and the address line stay text."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Dialog
from sqlalchemy import Connection, insert

from tests.kit.admin_pages import HOST, ORIGIN, PAGES, keep_cookie, open_browser, run_admin_app, send_form
from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import NOW_MS, new_payment
from tests.kit.listings import sample_listing
from tests.system.attack.test_text import STRINGS
from tests.system.browser.watched_page import answer_by, watch_page
from tollway.app.lifecycle import App
from tollway.app.runtime import now_ms
from tollway.audit_log import AuditOrigin
from tollway.identity.admin_sessions import create_code
from tollway.ids import Address, ListingId, keccak256
from tollway.ledger.ledger import AuditReport
from tollway.registry.moderation import suspend_listing
from tollway.storage.ledger.ledger_tables import owner_table
from tollway.storage.operator.operator_reads import gateway_build_table
from tollway.storage.operator.operator_writes import SqlAdminSessions

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXTS = tuple(STRINGS.values())
SUSPENDED = len(TEXTS) // 2
MARKUP = STRINGS["HTML, an attribute"]
HIDDEN = re.compile(r"[\u202a-\u202e\u2066-\u2069\u200b\u2060\ufeff\x00-\x08\x0b-\x1f\x7f-\x9f]")


class HostileLedger:
    """A ledger whose audit finds differences with hostile lines. They are lines of this program, so no character is hidden."""

    async def audit(self) -> AuditReport:
        return AuditReport(
            payments=1, calls=1, wrong=tuple(filter(str.isprintable, TEXTS)), held_calls=(), held_payments=()
        )


async def answer_with_errors(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A node that answers every JSON-RPC batch with hostile errors."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    asked = json.loads(await reader.readexactly(int(length[1]) if length else 0))
    calls = asked if isinstance(asked, list) else [asked]
    error = {"code": -32000, "message": MARKUP, "data": MARKUP}
    body = json.dumps([{"jsonrpc": "2.0", "id": one["id"], "error": error} for one in calls]).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        % len(body)
    )
    writer.write(body)
    await writer.drain()
    writer.close()


def insert_ended_gateways(connection: Connection, seen_ms: int) -> None:
    """Three gateways that ended. Their texts are a name of a machine and of a release, so no character is hidden."""
    names = [f"ended{number}" for number in range(3)]
    ends = {"started_ms": 1, "seen_ms": seen_ms, "boot_mark": "x"}
    connection.execute(insert(owner_table), [{"id": name, **ends} for name in names])
    build = {"name": MARKUP, "version": MARKUP, "schema_revision": MARKUP}
    connection.execute(insert(gateway_build_table), [{"owner_id": name, **build} for name in names])


async def fill(app: App) -> None:
    """Every text in every place that a page of the operator shows, past the checks that refuse it at the door."""
    rows: list[dict[str, Any]] = []
    for number, text in enumerate(TEXTS):
        wallet = Address(keccak256(text.encode())[12:])
        origin = AuditOrigin(actor=text, at_ms=NOW_MS + number, reason=text)
        listing = sample_listing(provider=wallet, id=ListingId(f"api_h{number}"), name=text, description=text)
        await app.catalog.publish(listing)
        if number < SUSPENDED:
            await suspend_listing(app.catalog, listing.id, origin=origin)
        await app.moderation.block(wallet, origin=origin)
        given = {"listing_name": text, "error": text, "path": text}
        rows.append(call_record_row(number, **given, state="unknown" if number % 2 else "settling"))
    await app.database.write(lambda connection: insert_calls(connection, rows))
    await app.database.write(lambda connection: insert_ended_gateways(connection, now_ms() - 3_600_000))
    await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    app: App
    client: httpx.AsyncClient


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    node = await asyncio.start_server(answer_with_errors, "127.0.0.1", 0)
    port = node.sockets[0].getsockname()[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        async with node, run_admin_app(TOLLWAY_RPC_SANDBOX=f"http://127.0.0.1:{port}") as app:
            await fill(app)
            app.operator_ledger = HostileLedger()  # type: ignore[assignment]  # the pages ask it for audits alone
            async with open_browser(app) as client:
                store = SqlAdminSessions(app.database)
                code = await create_code(
                    store, actor=MARKUP, now_ms=now_ms(), entropy=lambda size: b"c" * size
                )
                headers = {"sec-fetch-site": "same-origin"}
                keep_cookie(client, await client.post("/enter", data={"code": code}, headers=headers))
                yield Site(app=app, client=client)


async def watch_hostile(browser: Browser, site: Site, paths: list[str]) -> None:
    """Opens each path and checks it."""
    dialogs: list[str] = []

    async def note_dialog(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        await dialog.dismiss()

    async with watch_page(browser, ORIGIN) as watched:
        page = watched.page
        await watched.context.route(
            "**/*", answer_by(site.client, host=HOST, cookie=site.client.headers["cookie"])
        )
        page.on("dialog", note_dialog)

        async def check() -> None:
            await watched.check()
            assert dialogs == []
            for link in await page.locator("[href]").all():
                href = await link.get_attribute("href") or ""
                assert re.match(r"#|/(?!/)|http://127\.0\.0\.1:8402/problems/[a-z-]+$", href), href
            for script in await page.locator("script").all():
                assert (await script.get_attribute("src") or "").startswith("/ui/")
            for name in ("img", "iframe", "[onerror]", "[onload]", "[style]"):
                assert await page.locator(f"{name}:not(svg *)").count() == 0, name
            assert HIDDEN.search(unescape(await page.content())) is None

        for path in paths:
            await watched.goto(path)
            if path == "/":
                await page.get_by_text("3 gateways ended or are silent").click()
            await check()


async def test_texts_on_every_page_stay_text(browser: Browser, site: Site) -> None:
    await watch_hostile(browser, site, [*PAGES, "/runbooks", "/unknown"])
    listings = (await site.client.get("/listings")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in listings
    assert "<script>alert" not in listings
    assert "&lt;img src=x onerror=alert(1)" in (await site.client.get("/audit-log")).text
    assert "&lt;img src=x onerror=alert(1)" in (await site.client.get("/calls")).text


async def test_lines_of_an_audit_stay_text(browser: Browser, site: Site) -> None:
    assert (await send_form(site.client, "/books", "/admin/api/audit")).status_code == 303
    await watch_hostile(browser, site, ["/books"])
    assert "&lt;img src=x onerror=alert(1)" in (await site.client.get("/books")).text


async def test_words_of_the_address_line_stay_text(browser: Browser, site: Site) -> None:
    paths = []
    for name in (
        "HTML, a script",
        "HTML, an attribute",
        "HTML, an end",
        "bidi, an override",
        "NUL",
        "templates",
    ):
        for page, field in (("/listings", "q"), ("/enter", "code"), ("/calls", "transaction")):
            paths.append(f"{page}?{httpx.QueryParams({field: STRINGS[name]})}")
    await watch_hostile(browser, site, paths)
