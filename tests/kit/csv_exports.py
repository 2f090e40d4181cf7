"""`/history.csv` and `/payments.csv` over a database, read as an accountant reads them, and their sums beside the sums of the ledger."""

import csv
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
from sqlalchemy import Connection, func, select
from starlette.applications import Starlette
from starlette.requests import Request

from tests.kit.routes import PUBLIC_URL, make_context
from tollway.identity.authenticator import Identity
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.storage.engine.database import Database
from tollway.storage.ledger.history import HistoryStore
from tollway.storage.ledger.ledger_audit import audit
from tollway.storage.ledger.ledger_tables import call_table, call_terms_table, payment_table
from tollway.web.api.exports import export_router
from tollway.web.http.problems import install_handlers
from tollway.web.http.read_turns import enter_turn

WALLET_HEADER = "wallet"
STATES = {
    "forwarding": "held",
    "settling": "held",
    "unknown": "held",
    "consumed": "charged",
    "released": "released",
    "reorged": "reorged",
}

Sums = Counter[tuple[str, str]]
"""Units of the ledger by state and asset."""


def export_app(
    call_history: object, *, now_ms: int, open_sessions: Callable[[], bool] = lambda: True, **given: Any
) -> Starlette:
    """The routes of the exports. A header names the wallet. `open_sessions`: whether a session is open at the moment of the question. `given`: members of the context."""

    async def is_session_open(request: Request) -> bool:
        return open_sessions()

    async def authenticate(request: Request) -> Identity:
        address = Address(bytes.fromhex(request.headers[WALLET_HEADER]))
        await enter_turn(request.scope, address)
        return Identity(address=address, method="session", chain_id=None)

    context = make_context(
        call_history=call_history,
        authenticate=authenticate,
        is_session_open=is_session_open,
        now_ms=lambda: now_ms,
        **given,
    )
    app = Starlette(routes=export_router(context).routes)
    install_handlers(app, PUBLIC_URL)
    return app


async def fetch(app: Starlette, path: str, wallet: Address, *, method: str = "GET") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=PUBLIC_URL) as client:
        return await client.request(method, path, headers={WALLET_HEADER: wallet.hex()})


async def read_rows(app: Starlette, path: str, wallet: Address) -> list[dict[str, str]]:
    """The rows of all pages, by the names of their columns."""
    rows: list[dict[str, str]] = []
    following: str | None = f"{PUBLIC_URL}/api/v2/{path}"
    while following is not None:
        response = await fetch(app, following, wallet)
        assert response.status_code == 200, response.text
        rows += csv.DictReader(io.StringIO(response.text, newline=""), strict=True)
        following = response.links["next"]["url"] if "next" in response.links else None
    return rows


async def assert_exports_equal_ledger(database: Database, *, now_ms: int, page_rows: int = 50) -> Sums:
    """Sums the exports of every payer and of every provider, and compares both with the rows of the ledger and its audit. Gives the sums. Where a gateway
    still moves calls, it compares again."""
    assert (await database.read(audit)).wrong == ()
    for _ in range(TRIES):
        ledger = await database.read(_read_ledger)
        found = await _sum_exports(database, ledger, now_ms=now_ms, page_rows=page_rows)
        if await database.read(_read_ledger) == ledger:
            break
    for role in ("payer", "provider"):
        assert found[role] == ledger.sums, role
    # The amount of a gone payment is what its calls hold of it, and it has no credit.
    assert {asset: units for (_, asset), units in found["paid"].items() if units} == {
        asset: units for asset, units in ledger.taken.items() if units
    }
    return ledger.sums


TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ledger:
    """The sums of the rows. `wallets`: by role; `taken`: units that calls took from payments, by asset; what is in a channel is in no list of
    payments."""

    assets: dict[tuple[int, str], Asset]
    wallets: dict[str, set[Address]]
    sums: Sums
    taken: Counter[str]


async def _sum_exports(
    database: Database, ledger: _Ledger, *, now_ms: int, page_rows: int
) -> dict[str, Sums]:
    def find_asset(chain_id: ChainId, key: str) -> Asset | None:
        return ledger.assets.get((chain_id, key))

    app = export_app(HistoryStore(database, limits=DEFAULT_LIMITS), now_ms=now_ms, find_asset=find_asset)
    found: dict[str, Sums] = {role: Counter() for role in ledger.wallets}
    for role in ("payer", "provider"):
        for wallet in ledger.wallets[role]:
            rows = await read_rows(app, f"history.csv?role={role}&limit={page_rows}", wallet)
            assert len({row["callId"] for row in rows}) == len(rows)
            for row in rows:
                if row["state"] != "none":
                    found[role][row["state"], row["asset"]] += int(row["units"])
    for wallet in ledger.wallets["paid"]:
        for row in await read_rows(app, f"payments.csv?limit={page_rows}", wallet):
            found["paid"]["", row["asset"]] += int(row["units"]) - int(row["creditUnits"])
    return found


def _read_ledger(connection: Connection) -> _Ledger:
    calls, terms, payments = call_table.c, call_terms_table.c, payment_table.c
    known = select(terms.chain_id, terms.asset, terms.currency, terms.decimals).where(
        terms.asset.is_not(None)
    )
    assets = {
        (row.chain_id, row.asset): Asset(
            chain_id=ChainId(row.chain_id),
            token=None if row.asset == "native" else Address.parse(row.asset),
            symbol=row.currency,
            decimals=row.decimals,
        )
        for row in connection.execute(known)
    }
    unused = select(payments.chain_id, payments.asset).distinct()
    for chain_id, key in connection.execute(unused):
        token = None if key == "native" else Address.parse(key)
        assets.setdefault(
            (chain_id, key), Asset(chain_id=ChainId(chain_id), token=token, symbol="USDC", decimals=6)
        )
    wallets = {
        role: {Address(one) for one in connection.execute(select(column).distinct()).scalars() if one}
        for role, column in (("payer", calls.payer), ("provider", calls.provider), ("paid", payments.payer))
    }
    sums: Sums = Counter()
    by_state = (
        select(
            calls.state,
            terms.chain_id,
            terms.asset,
            func.sum(func.coalesce(calls.actual_units, calls.price_units)),
        )
        .join_from(call_table, call_terms_table, terms.id == calls.terms_id)
        .where(terms.asset.is_not(None), calls.payer.is_not(None))
        .group_by(calls.state, terms.chain_id, terms.asset)
    )
    for state, chain_id, key, units in connection.execute(by_state):
        asset = assets[chain_id, key]
        sums[STATES[state], asset.caip19] += asset.to_base_units(int(units))
    taken: Counter[str] = Counter()
    by_asset = (
        select(payments.chain_id, payments.asset, func.sum(payments.taken_units))
        .where(~payments.is_escrow)
        .group_by(payments.chain_id, payments.asset)
    )
    for chain_id, key, units in connection.execute(by_asset):
        asset = assets[chain_id, key]
        taken[asset.caip19] += asset.to_base_units(int(units))
    return _Ledger(assets=assets, wallets=wallets, sums=sums, taken=taken)
