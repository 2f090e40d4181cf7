"""The operator's pages over a whole gateway: content, what a form needs, and that each change is an entry."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import insert, text

from tests.kit.admin_pages import (
    ALICE,
    LISTING,
    ORIGIN,
    PAGES,
    SAME_ORIGIN,
    TX,
    list_audit_entries,
    open_browser,
    run_admin_app,
    send_form,
    sign_in,
)
from tests.kit.ledger_channels import buy, config_of, facts_of
from tests.kit.ledger_records import NOW_MS, new_payment, operator_origin
from tests.kit.pages import PageReader
from tests.kit.sql_ledger import SqlLedger
from tests.kit.waits import bounded
from tollway.app.lifecycle import App
from tollway.ids import ChainId, keccak256
from tollway.ledger.ledger import AuditReport
from tollway.payments.gas import GasKeyStatus
from tollway.storage.engine.database import write_retried
from tollway.storage.ledger.ledger_tables import owner_table, payment_table
from tollway.storage.operator.operator_reads import record_audit
from tollway.web.http.query import format_time


@pytest.fixture
async def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    monkeypatch.chdir(tmp_path)
    async with run_admin_app(TOLLWAY_GAS_KEYS_SANDBOX="11" * 32) as app:
        yield app


@pytest.fixture
async def browser(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with open_browser(app) as client:
        yield client


# ---- Pages.


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_is_private_and_in_its_frame(
    app: App, browser: httpx.AsyncClient, path: str
) -> None:
    await sign_in(app, browser)
    answer = await browser.get(path, headers={"accept-encoding": "gzip"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert "content-encoding" not in answer.headers
    assert f"script-src {ORIGIN}/ui/" in answer.headers["content-security-policy"]
    assert answer.text.count("<h1") == 1
    assert f'<a href="{path}" aria-current="page">' in answer.text
    assert "alice@gw-1" in answer.text
    assert "<b>Quotes" not in answer.text
    for asset in re.findall(r'(?:href|src)="(/ui/[^"]+)"', answer.text):
        assert (await browser.get(asset)).status_code == 200


async def test_the_overview_names_what_needs_an_operator_the_worst_first(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)
    await app.operator_ledger.mark_restored(origin=operator_origin())
    answer = (await browser.get("/admin/api/overview")).json()
    levels = [finding["level"] for finding in answer["findings"]]
    assert levels == sorted(levels, key=["stopped", "money", "degraded", "upkeep"].index)
    alerts = [finding["alert"] for finding in answer["findings"]]
    assert alerts[0] == "ChainAway"  # the node of this test is away
    assert "DatabaseWentBack" in alerts
    assert answer["figures"]["heldPayments"] == "1"
    page = (await browser.get("/")).text
    assert page.index("No node of") < page.index("Payments held: 1")
    for name, value in answer["figures"].items():
        if name not in ("asOf", "inFlight", "window"):
            assert f'data-live="figures.{name}">{value}<' in page
    (gateway,) = answer["gateways"]
    assert (gateway["isThis"], gateway["isAlive"]) == (True, True)
    assert gateway["leads"] == "sweeper, watcher, reputation, webhooks"


async def test_gateways_that_ended_stand_apart_from_those_that_are_alive(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    assert "<details" not in (await browser.get("/")).text.partition('id="figures"')[2]
    now_ms = app.ledger.shared_ms()
    rows = [
        {"id": f"{number}ended", "started_ms": number, "seen_ms": now_ms - 3_600_000, "boot_mark": "x"}
        for number in range(3)
    ]
    await write_retried(app.database, lambda connection: connection.execute(insert(owner_table), rows))
    content = (await browser.get("/admin/api/overview")).json()
    assert content["figures"]["gatewaysAlive"] == "1"
    assert not [one for one in content["findings"] if one["alert"] == "VersionsDiffer"]
    alive, _, ended = (await browser.get("/")).text.partition('id="figures"')[2].partition("<details")
    assert "3 gateways ended or are silent, in the last day" in ended
    assert (app.ledger.owner_id in alive, app.ledger.owner_id in ended) == (True, False)
    for place, one in enumerate(content["gateways"]):
        part = alive if one["isAlive"] else ended
        assert f'data-live="gateways.{place}.id">{one["id"]}<' in part


async def test_each_finding_leads_to_its_runbook(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    page = (await browser.get("/")).text
    assert re.search('<a href="/runbooks/ChainAway"[^>]*>ChainAway</a>', page)
    for path in re.findall(r'href="(/runbooks/\w+)"', page):
        shown = await browser.get(path)
        assert shown.status_code == 200
        assert "Is money at risk" in shown.text
    for path in ("/runbooks/README", "/runbooks/Unknown", "/runbooks/..%2fREADME"):
        assert (await browser.get(path)).status_code == 404


async def test_chains_have_their_nodes_by_number(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    await app.node_health.find_wrong_chain_nodes()  # the node of this test is away
    (network,) = (await browser.get("/admin/api/chains")).json()["networks"]
    (node,) = network["nodes"]
    assert (node["number"], node["host"], node["state"]) == (1, "127.0.0.1", "failing")
    assert node["errors"] >= 1
    assert node["lastError"].startswith("the request failed")
    page = (await browser.get("/chains")).text
    assert node["lastError"] in page


async def test_chains_have_their_channels_and_the_withdrawals_in_sight(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    assert "Payment channels" not in (await browser.get("/chains")).text
    usdc = next(asset for rules in app.rules.values() for asset in rules.assets if asset.token is not None)
    ledger: Any = SqlLedger(app.database, owner_id="one", now_ms=lambda: NOW_MS)
    async with asyncio.TaskGroup() as group:
        writer = group.create_task(ledger.run())
        await ledger.open()
        for name in ("first", "second"):
            config = config_of(name, token=usdc.token)
            opened = await ledger.open_channel(
                usdc.chain_id, keccak256(config.salt), config, facts_of(50_000), decimals=6, now_ms=NOW_MS
            )
            await buy(ledger, opened, 10_000, asset=usdc.key)
        going = facts_of(50_000, block_number=200, withdrawal_amount=1, withdrawal_since_s=1)
        await ledger.renew_channel(opened.key, going, now_ms=NOW_MS)
        writer.cancel()
    (network,) = (await browser.get("/admin/api/chains")).json()["networks"]
    assert network["channels"] == [
        {
            "currency": "USDC",
            "channels": 2,
            "unclaimed": "0.02",
            "claimed": "0",
            "withdrawing": 1,
            "withdrawingUnclaimed": "0.01",
        }
    ]
    words = PageReader((await browser.get("/chains")).text).words
    assert "Payment channels in USDC Channels with money 2 Charged and not claimed 0.02" in words
    assert "Withdrawals in sight 1 0.01 not claimed" in words


async def test_books_have_the_last_audit_of_a_command(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    assert (await browser.get("/admin/api/books")).json()["lastAudit"] is None
    assert "none is recorded" in (await browser.get("/books")).text
    await record_audit(app.database, differences=2, now_ms=NOW_MS)
    last = (await browser.get("/admin/api/books")).json()["lastAudit"]
    assert last == {"ended": format_time(NOW_MS), "differences": 2}
    page = (await browser.get("/books")).text
    assert 'data-live="lastAudit.differences">2<' in page
    assert last["ended"] in page


async def test_books_list_held_payments_seals_and_sizes(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    (payment,) = await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)
    await app.operator_ledger.mark_restored(origin=operator_origin())
    books = (await browser.get("/admin/api/books")).json()
    (held,) = books["held"]
    assert (books["heldPayments"], held["transaction"]) == ("1", str(payment.tx_hash))
    assert (held["payer"], held["payTo"]) == (str(payment.payer), str(payment.payee))
    assert {one["kind"]: one["noKey"] for one in books["encrypted_values"]} == {"secrets": 0, "responses": 0}
    tables = {one["name"]: one["rows"] for one in books["tables"]}
    assert tables["payment"] == 1
    page = (await browser.get("/books")).text
    for shown in (held["transaction"], held["payer"], held["payTo"], books["size"]):
        assert shown in page


async def test_the_lane_of_each_gas_key_is_shown(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    keys = (
        GasKeyStatus(
            chain_id=ChainId(84532), address=ALICE, balance_wei=None, floor_wei=1, is_stuck=False, unmined=3
        ),
    )
    app.settlement_services.gas_budget.list_keys = lambda: keys  # type: ignore[method-assign]  # stands for a node that responds
    async with open_browser(app) as client:
        client.headers["cookie"] = browser.headers["cookie"]
        (key,) = (await client.get("/admin/api/gas")).json()["keys"]
        assert (key["unmined"], key["balance"]) == (3, None)
        assert 'data-live="keys.0.unmined" data-none="not read yet">3<' in (await client.get("/gas")).text


async def test_an_audit_whose_end_cannot_be_recorded_shows_its_result(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    await app.database.write(lambda connection: connection.execute(text("DROP TABLE audit_run")))
    await app.database.write(
        lambda connection: connection.execute(
            text("CREATE VIEW audit_run AS SELECT 1 AS id, 0 AS ended_ms, 0 AS differences")
        )
    )
    await send_form(browser, "/books", "/admin/api/audit")
    page = (await browser.get("/books")).text
    assert "the ledger balances" in page
    assert "is not recorded" in page


@pytest.mark.parametrize("path", ["/", "/chains", "/gas", "/books"])
async def test_each_refreshed_figure_is_in_the_json_of_its_page(
    app: App, browser: httpx.AsyncClient, path: str
) -> None:
    await sign_in(app, browser)
    await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)
    page = (await browser.get(path)).text
    source = re.search(r'data-live-switch="([^"]+)"', page)
    assert source is not None
    content = (await browser.get(source[1])).json()
    paths = re.findall(r'data-live="([^"]+)"', page)
    assert len(paths) > 3
    for one in paths:
        found: Any = content
        for name in one.split("."):
            if one.startswith("lastAudit.") and found is None:
                break  # no audit yet
            found = found[int(name) if isinstance(found, list) else name]
        assert not isinstance(found, dict | list), one


# ---- Changes.


async def test_listings_have_their_price_their_calls_and_their_state(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    price = f"{LISTING.price.text} {LISTING.currency}"
    served = PageReader((await browser.get("/listings")).text).words.partition("Served")[2]
    assert f"{LISTING.name} {price} a call active few calls in 30 days" in served
    await app.catalog.revise(replace(LISTING, status="paused"), expected_revision=LISTING.revision)
    assert " paused " in PageReader((await browser.get("/listings")).text).words
    await send_form(browser, "/listings", SUSPENSION, reason="under review")
    suspended = PageReader((await browser.get("/listings")).text).words.partition("Served")[0]
    assert f"{LISTING.name} {price} suspended since" in suspended


SUSPENSION = f"/admin/api/listings/{LISTING.id}/suspension"
BLOCK = f"/admin/api/wallets/{ALICE}/block"
ACTOR = "alice@gw-1 (page)"


async def test_each_change_is_an_act_of_the_session(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)
    await app.operator_ledger.mark_restored(origin=operator_origin())
    name = app.settings.public_url.partition("://")[2]
    for page, action, fields in (
        ("/listings", SUSPENSION, {"reason": "under review"}),
        ("/listings", SUSPENSION, {"reason": "checked"}),
        ("/wallets", "/admin/api/wallets/block", {"address": str(ALICE), "reason": "stolen key"}),
        ("/wallets", BLOCK, {}),
        ("/books", "/admin/api/admissions", {"transaction": str(TX)}),
        ("/books", "/admin/api/release", {"gateway": name, "reason": "looked"}),
    ):
        answer = await send_form(browser, page, action, **fields)
        assert answer.status_code == 303, answer.text
    assert (await list_audit_entries(app))[:6] == [
        ("release_balances", "ledger", ACTOR, "looked"),
        ("admit_transaction", str(TX), ACTOR, ""),
        ("unblock_wallet", str(ALICE), ACTOR, ""),
        ("block_wallet", str(ALICE), ACTOR, "stolen key"),
        ("restore_listing", LISTING.id, ACTOR, "checked"),
        ("suspend_listing", LISTING.id, ACTOR, "under review"),
    ]
    shown = (await browser.get("/audit-log")).text
    assert shown.index("release_balances") < shown.index("suspend_listing")


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"sec-fetch-site": "cross-site"}, {}),
        ({"origin": "http://evil.example"}, {}),
        ({}, {}),
        (SAME_ORIGIN, {"form_token": "0" * 64}),
        (SAME_ORIGIN, {"do": "destroy"}),
        (SAME_ORIGIN, {"reason": "x" * 201}),
        (SAME_ORIGIN, {"reason": "hidden\u202etext"}),
    ],
)
async def test_a_form_that_does_not_count_changes_nothing(
    app: App, browser: httpx.AsyncClient, headers: dict[str, str], fields: dict[str, str]
) -> None:
    await sign_in(app, browser)
    for page, action in (("/listings", SUSPENSION), ("/wallets", "/admin/api/wallets/block")):
        answer = await send_form(browser, page, action, headers, **{"address": str(ALICE), **fields})
        assert answer.status_code == 400, answer.text
        assert "Nothing was changed" in answer.text
    assert await list_audit_entries(app) == []
    assert await app.moderation.list_blocked() == ()


async def test_a_form_by_its_origin_alone_counts(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    answer = await send_form(browser, "/listings", SUSPENSION, {"origin": ORIGIN})
    assert answer.status_code == 303


async def test_balances_are_released_with_the_name_of_the_gateway_only(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)
    await app.operator_ledger.mark_restored(origin=operator_origin())
    before = await list_audit_entries(app)
    answer = await send_form(browser, "/books", "/admin/api/release", gateway="another.example")
    assert answer.status_code == 400
    assert await list_audit_entries(app) == before


async def test_an_audit_runs_in_the_background_and_its_result_is_shown(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    assert (await send_form(browser, "/books", "/admin/api/audit")).status_code == 303
    page = (await browser.get("/books")).text
    assert "the ledger balances" in page
    assert (await browser.get("/admin/api/books")).json()["lastAudit"]["differences"] == 0
    assert "0 payments, 0 calls" in page


async def test_unknown_listings_and_malformed_values_are_explained(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    wrong_wallet = await send_form(browser, "/wallets", "/admin/api/wallets/block", address="0x12")
    wrong_transaction = await send_form(browser, "/books", "/admin/api/admissions", transaction="0x12")
    assert (wrong_wallet.status_code, wrong_transaction.status_code) == (400, 400)
    assert (await browser.get("/admin/api/calls?state=x")).status_code == 400
    assert await list_audit_entries(app) == []


@pytest.mark.parametrize(
    "path",
    [
        SUSPENSION,
        "/admin/api/wallets/block",
        BLOCK,
        "/admin/api/audit",
        "/admin/api/admissions",
        "/admin/api/release",
    ],
)
async def test_a_form_counts_with_the_token_of_its_route_only(
    app: App, browser: httpx.AsyncClient, path: str
) -> None:
    await sign_in(app, browser)
    page = (await browser.get("/")).text
    (other,) = re.findall(r'name="form_token" value="([0-9a-f]{64})"', page)  # of the sign-out
    name = app.settings.public_url.partition("://")[2]
    fields = {"do": "block" if "wallets" in path else "suspend", "address": str(ALICE), "gateway": name}
    for token in (other, ""):
        answer = await browser.post(
            path, data={**fields, "transaction": str(TX), "form_token": token}, headers=SAME_ORIGIN
        )
        assert answer.status_code == 400
        assert "older session" in answer.text
    assert await list_audit_entries(app) == []


async def test_a_form_that_is_too_long_is_refused_unread(app: App, browser: httpx.AsyncClient) -> None:
    await sign_in(app, browser)
    answer = await send_form(browser, "/books", "/admin/api/admissions", transaction="0x" + "a" * 9_000)
    assert answer.status_code == 413


async def test_balances_of_a_ledger_that_does_not_balance_stay_held(
    app: App, browser: httpx.AsyncClient
) -> None:
    await sign_in(app, browser)
    await app.payments.record_payments([new_payment(10)], now_ms=NOW_MS)
    await app.operator_ledger.mark_restored(origin=operator_origin())
    await app.database.write(
        lambda connection: connection.execute(payment_table.update().values(taken_units=1))
    )
    before = await list_audit_entries(app)
    name = app.settings.public_url.partition("://")[2]
    answer = await send_form(browser, "/books", "/admin/api/release", gateway=name)
    assert answer.status_code == 400
    assert "does not balance" in answer.text
    assert await list_audit_entries(app) == before
    assert (await browser.get("/admin/api/books")).json()["heldPayments"] == "1"


class PausedLedger:
    """A ledger whose audits wait."""

    def __init__(self) -> None:
        self.started = 0
        self.is_going_on = asyncio.Event()
        self.is_started = asyncio.Event()

    async def audit(self) -> AuditReport:
        self.started += 1
        self.is_started.set()
        await self.is_going_on.wait()
        return AuditReport(payments=7, calls=0, wrong=(), held_calls=(), held_payments=())


async def test_one_audit_runs_at_a_time(app: App) -> None:
    app.operator_ledger = ledger = PausedLedger()  # type: ignore[assignment]  # the pages ask it for audits alone
    async with open_browser(app) as browser, asyncio.TaskGroup() as group:
        await sign_in(app, browser)
        first = group.create_task(send_form(browser, "/books", "/admin/api/audit"))
        await bounded(ledger.is_started.wait())
        assert "An audit runs since" in (await browser.get("/books")).text
        second = group.create_task(send_form(browser, "/books", "/admin/api/audit"))
        await asyncio.wait({second}, timeout=5)
        assert ledger.started == 1
        ledger.is_going_on.set()
        assert (await first).status_code == (await second).status_code == 303
        assert "7 payments" in (await browser.get("/books")).text
