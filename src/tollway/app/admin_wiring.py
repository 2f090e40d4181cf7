"""Builds the application of the admin address from the parts of the gateway."""

import secrets
from collections.abc import Callable

from starlette.types import ASGIApp

from tollway.app.fleet_view import FleetView
from tollway.app.wiring import Services
from tollway.config.settings import Settings
from tollway.identity.admin_sessions import AdminSignIn
from tollway.identity.siwe import parse_origin
from tollway.payments.transaction_inspection import TransactionInspector
from tollway.storage.database import Database
from tollway.storage.operator_acts import OperatorActStore, OperatorStore, SqlAdminSessions
from tollway.storage.operator_reads import BookFigures, OpenCallStore, record_audit
from tollway.web.admin_app import SECTIONS, AdminApp, AdminHosts
from tollway.web.admin_overview import OverviewServices
from tollway.web.admin_routes import AdminServices, admin_router
from tollway.web.admin_sign_in import AdminSignInPages
from tollway.web.admin_transactions import AdminTransactions
from tollway.web.admission import SignInRateLimit
from tollway.web.network_routes import NetworkServices
from tollway.web.page_assets import asset_router, read_assets
from tollway.web.page_renderer import PageRenderer, TestMoney
from tollway.web.runbook import read_runbooks


def build_admin_app(
    metrics: ASGIApp,
    *,
    settings: Settings,
    services: Services,
    networks: NetworkServices,
    fleet: FleetView,
    operator_ledger: OperatorStore,
    acts: OperatorActStore,
    database: Database,
    gateway_name: str,
    test_money: TestMoney,
    now_ms: Callable[[], int],
) -> ASGIApp:
    """`/metrics` alone where the pages are switched off."""
    listen = settings.admin_listen
    if not settings.web_pages or listen is None:
        return metrics
    assets = read_assets()
    sign_in = AdminSignIn(
        SqlAdminSessions(database),
        services.sign_in,
        operators=settings.operators,
        public_origin=parse_origin(settings.public_url),
        now_ms=now_ms,
        entropy=secrets.token_bytes,
    )
    rate_limit = SignInRateLimit(limits=settings.limits, rate_limiter=services.rate_limiter)
    open_calls = OpenCallStore(database, limits=settings.limits)
    pages = admin_router(
        AdminServices(
            sign_in=AdminSignInPages(sign_in, rate_limit, limits=settings.limits),
            networks=networks,
            catalog=services.catalog,
            moderation=services.moderation,
            operator_ledger=operator_ledger,
            acts=acts,
            open_calls=open_calls,
            transactions=AdminTransactions(
                TransactionInspector(
                    services.transaction_verifier.lookup,
                    services.payments,
                    rules=services.rules,
                    quota=services.call_limits,
                ),
                rules=services.rules,
                profiles=networks.profiles,
            ),
            books=BookFigures(database),
            record_audit=lambda report: record_audit(
                database, differences=len(report.wrong), now_ms=now_ms()
            ),
            overview=_make_overview(services, networks, fleet, open_calls, now_ms=now_ms),
            gateway_name=gateway_name,
            public_url=settings.public_url,
            runbooks=read_runbooks(),
            now_ms=now_ms,
        )
    )
    pages.routes.extend(asset_router(assets).routes)
    renderer = PageRenderer(assets, public_url="", test_money=test_money, sections=SECTIONS)
    return AdminApp(
        metrics=metrics,
        pages=pages,
        hosts=AdminHosts(listen_host=listen.host, port=listen.port, names=settings.admin_hosts),
        sign_in=sign_in,
        renderer=renderer,
        public_url=settings.public_url,
        entropy=secrets.token_bytes,
    )


def _make_overview(
    services: Services,
    networks: NetworkServices,
    fleet: FleetView,
    open_calls: OpenCallStore,
    *,
    now_ms: Callable[[], int],
) -> OverviewServices:
    async def count_suspended() -> int:
        return len(await services.catalog.list_suspended())

    async def count_blocked() -> int:
        return len(await services.moderation.list_blocked())

    gas_budget = services.settlement_services.gas_budget
    return OverviewServices(
        check_ready=services.check_ready,
        networks=networks,
        list_nodes=fleet.list_nodes,
        list_gas_keys=gas_budget.list_keys,
        list_gas_spending=gas_budget.list_spending,
        fleet=fleet.figures,
        list_gateways=fleet.list_gateways,
        find_leaders=fleet.find_leaders,
        count_held_payments=open_calls.count_held_payments,
        count_suspended=count_suspended,
        count_blocked=count_blocked,
        count_in_flight=lambda: services.shedder.running,
        find_increase=fleet.find_increase,
        find_risks=fleet.find_risks,
        own_id=fleet.owner_id,
        now_ms=now_ms,
    )
