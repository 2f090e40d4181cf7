"""The routes of the registry, of the books, of the pages and of the operator over one database, in process: no server, no chain, no cache of sums.

A header names the wallet of an API request, a cookie that of a page. The clock stands at the end of the filled calls.
"""

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from scale_rows import DECIMALS, END_MS, NETWORKS, RARE_CHAIN, TOKENS
from starlette.applications import Starlette
from starlette.requests import Request

from tests.kit.admin_pages import HOST, OneSession
from tests.kit.routes import NamedBooks, make_context
from tollway.app.page_wiring import page_routers
from tollway.chain.networks import PRESETS, ChainRules, NetworkProfile
from tollway.identity.admin_sessions import AdminSignIn
from tollway.identity.authenticator import Identity
from tollway.identity.page_sessions import PageSession
from tollway.identity.sessions import format_token, hash_token
from tollway.ids import Address, ChainId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.observability.metric_table import DURATION_BUCKETS_S
from tollway.observability.recent_metrics import MetricsSample
from tollway.storage.accounts.identity_store import ModerationStore
from tollway.storage.accounts.viewer_store import SqlViewers
from tollway.storage.catalog.catalog_store import CatalogStore
from tollway.storage.catalog.reputation_store import OwnershipStore, QualityStore
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.budget_store import BudgetStore
from tollway.storage.ledger.history import HistoryStore
from tollway.storage.ledger.period_books import PeriodBookStore
from tollway.storage.operator.operator_reads import BookFigures, FleetFiguresStore, OpenCallStore
from tollway.storage.operator.operator_writes import AuditLogStore
from tollway.web.api.discovery_routes import discovery_router
from tollway.web.api.exports import export_router
from tollway.web.api.history_routes import history_router
from tollway.web.api.listing_routes import listing_router
from tollway.web.api.provider_documents import ProviderDocuments
from tollway.web.api.sums_routes import sums_router
from tollway.web.http.problems import install_handlers
from tollway.web.operator.operator_app import ADMIN_COOKIE, AdminApp, AdminHosts
from tollway.web.operator.operator_context import AdminContext
from tollway.web.operator.operator_routes import admin_router
from tollway.web.operator.sign_in import AdminSignInPages
from tollway.web.operator.transactions import AdminTransactions
from tollway.web.pages.assets import read_assets
from tollway.web.pages.page_session import PAGE_COOKIE
from tollway.web.pages.renderer import PageRenderer

URL = "http://127.0.0.1:8402"
CHAINS = tuple(dict.fromkeys((*itertools.chain(*NETWORKS), RARE_CHAIN)))
RULES: dict[ChainId, ChainRules] = {
    chain_id: replace(
        PRESETS["base"].rules(),
        chain_id=chain_id,
        native_confirmations=(),
        assets=tuple(
            Asset(chain_id=chain_id, token=token, symbol=symbol, decimals=DECIMALS[symbol])
            for symbol, token in TOKENS.items()
        ),
    )
    for chain_id in CHAINS
}
PROFILES = {
    chain_id: NetworkProfile(
        name=f"Chain {chain_id}",
        native_symbol="ETH",
        native_decimals=18,
        explorer_url=None,
        wallet_rpc_url=None,
    )
    for chain_id in CHAINS
}


_NO_CALLS = (0,) * (len(DURATION_BUCKETS_S) + 1)
NO_TRAFFIC = MetricsSample(
    seconds=60.0,
    calls={},
    refusals={},
    lease_lapses={},
    node_requests={},
    node_disagreements={},
    channel_steps={},
    phases={},
    upstream=_NO_CALLS,
    commits=_NO_CALLS,
    loop_delay=_NO_CALLS,
)


class WalletSessions:
    """A page session for each wallet, in memory: the store of sessions is not measured."""

    def __init__(self) -> None:
        self._sessions: dict[bytes, PageSession] = {}

    def name_cookie(self, wallet: Address) -> bytes:
        token = format_token(wallet.rjust(32, b"\0"))
        token_hash = hash_token(token)
        assert token_hash is not None
        self._sessions[token_hash] = PageSession(
            token_hash=token_hash,
            address=wallet,
            chain_id=CHAINS[0],
            created_ms=END_MS,
            used_ms=END_MS,
            expires_ms=END_MS + 3_600_000,
        )
        return f"{PAGE_COOKIE.name}={token}; {ADMIN_COOKIE.name}={token}".encode()

    async def find_page_session(self, token_hash: bytes) -> PageSession | None:
        return self._sessions.get(token_hash)

    async def put_page_session(self, session: PageSession) -> None: ...

    async def mark_page_session_used(self, token_hash: bytes, *, now_ms: int) -> None: ...

    async def delete_page_session(self, token_hash: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """`public`: of clients and pages; `operator`: of the admin address. `sessions`: of both."""

    public: Any
    operator: Any
    sessions: WalletSessions


def routes_over(database: Database, meaning: Any) -> Routes:
    sealer = Sealer(b"1" * 32, entropy=os.urandom)
    sessions, viewers = WalletSessions(), SqlViewers(database)
    catalog = CatalogStore(database, sealer=sealer, now_ms=lambda: END_MS, meaning=meaning)
    context = make_context(
        public_url=URL,
        limits=replace(DEFAULT_LIMITS, authenticated_requests_per_minute=10**9),
        rules=RULES,
        profiles=PROFILES,
        has_pages=True,
        catalog=catalog,
        quality=QualityStore(database),
        ownerships=OwnershipStore(database, now_ms=lambda: END_MS),
        budgets=BudgetStore(database),
        documents=ProviderDocuments(_fetch_nothing),
        authenticate=_prove_wallet,
        call_history=HistoryStore(database, limits=DEFAULT_LIMITS),
        period_books=PeriodBookStore(database),
        book_access=NamedBooks(),
        now_ms=lambda: END_MS,
        is_mpp_offered=lambda *_: False,
        ticks_ms=itertools.count(0, 1_000_000).__next__,  # so that no cached value stays valid
    )
    renderer = PageRenderer(read_assets(), public_url=URL, test_money="none", now_ms=lambda: END_MS)
    routers = (
        listing_router(context),
        discovery_router(context),
        history_router(context),
        sums_router(context),
        export_router(context),
        *page_routers(context, renderer, sessions=sessions, viewers=viewers),
    )
    public = Starlette(routes=[route for router in routers for route in router.routes])
    install_handlers(public, URL)
    operator = AdminApp(
        metrics=public,
        pages=admin_router(_operator_context(context, database, sealer)),
        hosts=AdminHosts(listen_host="127.0.0.1", port=int(HOST.rpartition(":")[2]), names=()),
        sign_in=cast(AdminSignIn, OneSession()),
        renderer=renderer,
        public_url=URL,
        entropy=os.urandom,
    )
    return Routes(public=public, operator=operator, sessions=sessions)


async def _prove_wallet(request: Request) -> Identity:
    address = Address(bytes.fromhex(request.headers["wallet"]))
    return Identity(address=address, method="session", chain_id=None)


async def _fetch_nothing(url: str) -> bytes:
    raise AssertionError(f"no document is fetched: {url}")


def _operator_context(web: Any, database: Database, sealer: Sealer) -> AdminContext:
    """What the operator's pages read of the ledger; everything of the process and of the chains is empty."""

    async def nothing() -> Sequence[Any]:
        return ()

    async def ready() -> dict[str, bool]:
        return {}

    unused = cast(Any, None)
    return AdminContext(
        web=web,
        sign_in=AdminSignInPages(cast(AdminSignIn, OneSession()), web.sign_in_limit, limits=web.limits),
        moderation=ModerationStore(database),
        operator_ledger=unused,
        entries=AuditLogStore(database),
        open_calls=OpenCallStore(database, limits=DEFAULT_LIMITS),
        transactions=AdminTransactions(unused, rules=RULES, profiles=PROFILES),
        books=BookFigures(database),
        record_audit=unused,
        runbooks={},
        gateway_name="bench",
        own_id="gateway-1",
        check_ready=ready,
        count_in_flight=lambda: 0,
        list_gas_keys=tuple,
        list_gas_spending=tuple,
        fleet=FleetFiguresStore(database, sealer=sealer, has_other_keys=False, now_ms=lambda: END_MS),
        list_nodes=tuple,
        list_channels=nothing,
        list_gateways=nothing,
        find_leaders=nothing,
        find_increase=lambda _: NO_TRAFFIC,
        find_risks=nothing,
    )
