"""Every page of a gateway in its corner states, in this process: an application with rows of every kind, one without any, and one whose storage is away.

A browser's requests are answered by these applications (`answer_by`). Both kinds of pages are there: those of the public address and those of the operator.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from playwright.async_api import Browser
from sqlalchemy import Connection, update

from tests.kit.admin_pages import (
    HOST,
    LISTING,
    ORIGIN,
    open_browser,
    open_failing_browser,
    run_admin_app,
    sign_in,
)
from tests.kit.budgets import bind, policy_of, store
from tests.kit.call_rows import call_record_row, insert_calls
from tests.kit.ledger_records import new_payment
from tests.kit.listings import sample_listing
from tests.kit.metering import LONGEST, sample_metering
from tests.kit.pages import BROWSER, PageHarness
from tests.kit.payer import KeyWallet
from tests.kit.routes import PUBLIC_URL
from tests.kit.signed_in import DAY_MS, MIXED, OTHER, READER, RULES, SELLER, TEXTS, THIRD, USDC
from tests.kit.signed_in import open_signed_in as open_signed_in_pages
from tests.system.browser.watched_page import WatchedPage, answer_by, watch_page
from tollway.app.lifecycle import App
from tollway.app.runtime import now_ms
from tollway.audit_log import AuditOrigin
from tollway.errors import StorageUnavailable
from tollway.identity.signatures import eip191_digest
from tollway.identity.viewers import Viewer
from tollway.ids import Address, ListingId
from tollway.ledger.records import Payment
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.registry.listing import Operation
from tollway.registry.metering import Measured, read_metering, write_formulas, write_measured
from tollway.registry.moderation import suspend_listing
from tollway.sandbox.provider import SAMPLE_DOCUMENT
from tollway.storage.ledger.ledger_tables import payment_table
from tollway.storage.operator.operator_reads import record_audit
from tollway.web.pages.page_session import PAGE_COOKIE

SAMPLE, OWN, RETIRED = ListingId("api_sample"), ListingId("api_own"), ListingId("api_retired")
METERED = ListingId("api_metered")
"""Sold by the reader: by the token, and one operation by the longest formula."""
STAMPS = ("CHARGED", "RELEASED", "HELD", "REORGED", "FAILED", "FREE")
FAILED = {**MIXED[5], "state": "unknown", "http_status": None, "upstream_status": None}
STATES = (MIXED[0], MIXED[1], MIXED[2], MIXED[3], FAILED, MIXED[5])
"""Of the calls `call_0` to `call_5`, in the order of the stamps."""
HELD_CALLS = tuple(f"call_{number}" for number in range(6, 10))
"""Calls that the reader sold and may decide."""
METERED_CALL = "call_73"
LONG_NAME = ("Long " * 14).strip()
NUMBERS = range(10, 34)
"""Of the other listings. The first three are suspended."""
WALLETS = (READER, OTHER, THIRD)


@dataclass(frozen=True, slots=True, kw_only=True)
class CornerApp:
    """The two addresses of one gateway. `tokens`: of the sessions of wallets. `admin`: a client with the cookie of a session."""

    public: httpx.AsyncClient
    admin: httpx.AsyncClient
    tokens: dict[KeyWallet, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CornerSite:
    """`payment`: a transaction that is credit of the reader. `stranger`: at the operator's address, without a session. `away_admin`, `away_mine`, `away_public`: addresses whose storage is away."""

    full: CornerApp
    empty: CornerApp
    payment: str
    stranger: httpx.AsyncClient
    away_public: httpx.AsyncClient
    away_mine: httpx.AsyncClient
    away_admin: httpx.AsyncClient

    @contextlib.asynccontextmanager
    async def open_public(
        self,
        browser: Browser,
        client: httpx.AsyncClient,
        *,
        token: str | None = None,
        **options: Any,
    ) -> AsyncIterator[WatchedPage]:
        """A window of the public address. `token`: of a session."""
        async with watch_page(browser, PUBLIC_URL, **options) as watched:
            await watched.context.route("**/*", answer_by(client))
            if token is not None:
                cookie: Any = {"name": PAGE_COOKIE.name, "value": token, "secure": True, "httpOnly": True}
                await watched.context.add_cookies([{**cookie, "url": PUBLIC_URL}])
            yield watched


@contextlib.asynccontextmanager
async def open_admin(
    browser: Browser, client: httpx.AsyncClient, **options: Any
) -> AsyncIterator[WatchedPage]:
    """A window of the operator's address, in the session of the client."""
    own = {"host": HOST, "cookie": client.headers.get("cookie", "")}
    async with watch_page(browser, ORIGIN, **options) as watched:
        await watched.context.route("**/*", answer_by(client, **own))
        yield watched


def at_corner(theme: Literal["light", "dark"], width: int) -> dict[str, Any]:
    """The options of a window."""
    return {"color_scheme": theme, "viewport": {"width": width, "height": 800}}


@contextlib.asynccontextmanager
async def run_corner_site(folder: Path) -> AsyncIterator[CornerSite]:
    async with contextlib.AsyncExitStack() as stack:
        apps = {}
        for name in ("full", "empty"):
            # The files of an application are in the current folder.
            place = folder / name
            place.mkdir()
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.chdir(place)
            settings = {
                "TOLLWAY_PUBLIC_URL": PUBLIC_URL,
                "TOLLWAY_DATABASE_URL": f"sqlite:///{place}/books.sqlite3",
            }
            if name == "full":
                settings["TOLLWAY_GAS_KEYS_SANDBOX"] = "11" * 32
            apps[name] = await stack.enter_async_context(run_admin_app(**settings))
        payment = await fill(apps["full"])
        await retire(apps["empty"], LISTING.id)
        yield CornerSite(
            full=await stack.enter_async_context(_open_clients(apps["full"])),
            empty=await stack.enter_async_context(_open_clients(apps["empty"])),
            payment=str(payment.tx_hash),
            stranger=await stack.enter_async_context(open_browser(apps["full"])),
            away_public=await stack.enter_async_context(_open_away_public()),
            away_mine=await stack.enter_async_context(_open_away_mine()),
            away_admin=await stack.enter_async_context(open_failing_browser(StorageUnavailable("away"))),
        )


@contextlib.asynccontextmanager
async def _open_clients(app: App) -> AsyncIterator[CornerApp]:
    transport = httpx.ASGITransport(app.asgi_app)
    async with (
        httpx.AsyncClient(transport=transport, base_url=PUBLIC_URL) as public,
        open_browser(app) as admin,
    ):
        await sign_in(app, admin)
        yield CornerApp(
            public=public,
            admin=admin,
            tokens={wallet: await _open_session(public, wallet) for wallet in WALLETS},
        )


async def _open_session(client: httpx.AsyncClient, wallet: KeyWallet) -> str:
    """Signs a wallet in as its page does. The token of the session."""
    asked = {"address": str(wallet.address), "chainId": RULES.chain_id, "uri": f"{PUBLIC_URL}/signin"}
    message = (await client.post("/api/v2/auth/nonce", json=asked)).json()["message"]
    fields = {
        "message": message,
        "signature": "0x" + wallet.sign(eip191_digest(message.encode())).hex(),
        "to": "",
    }
    answer = await client.post("/signin", data=fields, headers={**BROWSER, "Sec-Fetch-Site": "same-origin"})
    token = answer.cookies[PAGE_COOKIE.name]
    client.cookies.clear()
    return token


# ---- Storage that is away.


@contextlib.asynccontextmanager
async def _open_away_public() -> AsyncIterator[httpx.AsyncClient]:
    harness = PageHarness()
    harness.stores.database.is_away = True
    async with harness.open_pages() as client:
        yield client


@contextlib.asynccontextmanager
async def _open_away_mine() -> AsyncIterator[httpx.AsyncClient]:
    async with open_signed_in_pages() as harness:
        harness.services.stores.database.is_away = True
        yield harness.browser
        harness.services.stores.database.is_away = False


# ---- Rows.


async def retire(app: App, listing_id: ListingId) -> None:
    entry = await app.catalog.find(listing_id)
    assert entry is not None
    listing = entry.listing
    await app.catalog.revise(replace(listing, retired_ms=now_ms()), expected_revision=listing.revision)


async def fill(app: App) -> Payment:
    """Listings of two providers, calls in every state as payer and as provider, credit that a restore holds, permissions, and acts of the operator. The credit."""
    now = now_ms()
    await _publish(app, now)
    # Before the calls: a later payment would pay for the call whose own payment left the chain.
    (payment,) = await app.payments.record_payments(
        [
            new_payment(
                230_000,
                payer=READER.address,
                payee=SELLER.address,
                chain_id=RULES.chain_id,
                asset=USDC.key,
            )
        ],
        now_ms=now,
    )
    await _write_calls(app, now)
    for wallet, viewer in ((OTHER, READER), (READER, SELLER)):
        permission = Viewer(
            wallet=wallet.address, viewer=viewer.address, since_ms=now, until_ms=now + 7 * DAY_MS
        )
        await app.viewers.put(permission, most=DEFAULT_LIMITS.viewers_max)
        await app.viewers.accept(wallet.address, viewer.address, now_ms=now)
    await _write_budgets(app, now)
    origin = AuditOrigin(actor="alice@desk.example", at_ms=now, reason="its answers are under review " * 4)
    for number in NUMBERS[:3]:
        await suspend_listing(app.catalog, ListingId(f"api_{number}"), origin=origin)
        await app.moderation.block(Address(bytes([number + 1]) * 20), origin=origin)
    await app.operator_ledger.mark_restored(origin=origin)
    await record_audit(app.database, differences=2, now_ms=now)
    await app.node_health.find_wrong_chain_nodes()
    assert isinstance(payment, Payment)
    return payment


async def _publish(app: App, now: int) -> None:
    shared: dict[str, Any] = {"networks": (RULES.chain_id,)}
    sample = sample_listing(
        provider=SELLER.address,
        id=SAMPLE,
        name="Sample quotes",
        description="Quotes that mean nothing.\n\nA second paragraph, with a <b>tag</b>.",
        tags=("quotes", "sample"),
        openapi=SAMPLE_DOCUMENT,
        created_ms=now,
        **shared,
    )
    await app.catalog.publish(sample)
    await app.catalog.publish(sample_listing(provider=READER.address, id=OWN, name=LONG_NAME, **shared))
    metered = sample_listing(
        provider=READER.address,
        id=METERED,
        name="Sample completions",
        price=Price.parse("0.02"),
        metering=sample_metering(),
        operations=(
            Operation(
                method="POST", path="/echo", price=Price.parse("0.03"), metering=read_metering(LONGEST)
            ),
        ),
        openapi=SAMPLE_DOCUMENT,
        **shared,
    )
    await app.catalog.publish(metered)
    for number in NUMBERS:
        one = sample_listing(
            provider=SELLER.address,
            id=ListingId(f"api_{number}"),
            name=f"Listing {number} {LONG_NAME}",
            **shared,
        )
        await app.catalog.publish(one)
    await app.catalog.publish(sample_listing(provider=SELLER.address, id=RETIRED, **shared))
    await retire(app, RETIRED)


async def _write_budgets(app: App, now: int) -> None:
    """The reader has agents in each state, an owner of its own, and a policy to accept."""
    limits = {"maxPerCall": "0.000001", "maxPerHour": "10", "maxPerDay": "100", "maxPerMonth": "1000.5"}
    limits["maxTotal"] = "123456789.123456"
    shared: dict[str, Any] = {"gateway": PUBLIC_URL, "not_after": now // 1000 + 86_400}
    targets = {"allow": (f"provider:{SELLER.address}", f"tag:{'quotes' * 5}"), "deny": (f"api:{SAMPLE}",)}
    own = policy_of(owner=READER.address, agent=OTHER.address, nonce=1, **limits, **targets, **shared)
    await bind(app.budgets, own, now)
    for number in NUMBERS[:4]:
        agent = Address(bytes([number]) * 20)
        one = policy_of(owner=READER.address, agent=agent, maxPerDay="5", **shared)
        await (store if number % 2 else bind)(app.budgets, one, now)
        if number % 4 == 0:
            await app.budgets.revoke_policy(READER.address, agent, nonce=2, is_unbinding=False, now_ms=now)
    await bind(app.budgets, policy_of(owner=THIRD.address, agent=READER.address, **limits, **shared), now)
    waiting = policy_of(owner=SELLER.address, agent=READER.address, maxTotal="5", **shared)
    await store(app.budgets, waiting, now)


async def _write_calls(app: App, now: int) -> None:
    """The payment of the calls that the reader may decide has left its chain: to charge one is a debt."""
    held_units = 10_000 * len(HELD_CALLS)
    new = new_payment(
        held_units,
        "gone",
        payer=SELLER.address,
        payee=READER.address,
        chain_id=RULES.chain_id,
        asset=USDC.key,
    )
    (gone,) = await app.payments.record_payments([new], now_ms=now)
    assert isinstance(gone, Payment)
    paid = {**TEXTS, "payer": READER.address, "http_status": None, "upstream_status": None, "tx_hash": None}
    sold = {"payer": SELLER.address, "provider": READER.address, "pay_to": READER.address, "listing_id": OWN}
    changes: list[dict[str, Any]] = [*STATES]
    changes += [{**MIXED[2], **sold, "taken_units": 10_000, "payment_id": gone.id} for _ in HELD_CALLS]
    for number in range(60):
        units = 10_000 * (number % 4 + 1)
        changed = {
            **MIXED[0],
            "created_ms": now - number * DAY_MS // 4,
            "listing_name": ("Sample quotes", "Weather of the open sea, hour by hour", LONG_NAME)[number % 3],
            "listing_id": f"api_{NUMBERS[number % 3]}",
            "path": "/v1/quotes/" + "ETH" * (number % 9),
            "price_units": units,
            "taken_units": units,
        }
        changes.append({**changed, **(sold if number % 2 else {})})
    changes += [{**MIXED[2], "payer": OTHER.address, "state": "settling"} for _ in range(3)]
    formula = read_metering(LONGEST)
    by_use = {
        "listing_id": METERED,
        "price": "0.03",
        "price_units": 30_000,
        "actual_units": 30_000,
        "taken_units": 30_000,
        "upstream_status": 200,
        "metering": write_formulas((formula,)),
        "quantities": write_measured(Measured(((10**18 - 1,) * len(formula.parts),))),
    }
    changes.append({**MIXED[0], **by_use})
    rows = [
        call_record_row(
            number,
            **{**paid, "error": None, "payment_id": None, "created_ms": now - number, "moved_ms": now, **one},
        )
        for number, one in enumerate(changes)
    ]
    taken = {"taken_units": held_units, "calls": len(HELD_CALLS), "state": "gone", "gone_ms": now}

    def write(connection: Connection) -> None:
        insert_calls(connection, rows)
        connection.execute(update(payment_table).where(payment_table.c.id == gone.id).values(taken))

    await app.database.write(write)
