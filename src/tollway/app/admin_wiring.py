"""Builds the application of the admin address from the parts of the gateway."""

import secrets

from starlette.types import ASGIApp

from tollway.app.asgi_wiring import CheckReady
from tollway.app.page_wiring import describe_money
from tollway.app.parts import GatewayParts
from tollway.identity.admin_sessions import AdminSignIn
from tollway.identity.siwe import parse_origin
from tollway.payments.transaction_inspection import TransactionInspector
from tollway.storage.operator.operator_reads import BookFigures, OpenCallStore, record_audit
from tollway.storage.operator.operator_writes import SqlAdminSessions
from tollway.web.api.context import WebContext
from tollway.web.operator.chains import NetworkChannels
from tollway.web.operator.operator_app import SECTIONS, AdminApp, AdminHosts
from tollway.web.operator.operator_context import AdminContext
from tollway.web.operator.operator_routes import admin_router
from tollway.web.operator.sign_in import AdminSignInPages
from tollway.web.operator.transactions import AdminTransactions
from tollway.web.pages.assets import PageAssets, asset_router, read_assets
from tollway.web.pages.markdown import read_runbooks
from tollway.web.pages.renderer import PageRenderer


def build_admin_app(
    parts: GatewayParts, metrics: ASGIApp, *, web: WebContext, check_ready: CheckReady
) -> ASGIApp:
    """`metrics` alone where the pages are switched off."""
    settings, listen, database = parts.settings, parts.settings.admin_listen, parts.database
    if not settings.web_pages or listen is None:
        return metrics
    assets = read_assets(logo=settings.operator_logo)
    sign_in = AdminSignIn(
        SqlAdminSessions(database),
        parts.sign_in,
        operators=settings.operators,
        public_origin=parse_origin(settings.public_url),
        now_ms=web.now_ms,
        entropy=secrets.token_bytes,
    )
    gas_budget = parts.settlement_services.gas_budget
    fleet, channels = parts.fleet_view, parts.channel_figures

    async def list_channels() -> tuple[NetworkChannels, ...]:
        return () if channels is None else await channels.list_networks()

    pages = admin_router(
        AdminContext(
            web=web,
            sign_in=AdminSignInPages(sign_in, web.sign_in_limit, limits=settings.limits),
            moderation=parts.moderation,
            operator_ledger=parts.operator_ledger,
            entries=parts.audit_log,
            open_calls=OpenCallStore(database, limits=settings.limits),
            transactions=AdminTransactions(
                TransactionInspector(
                    parts.transaction_verifier.lookup,
                    parts.payments,
                    rules=parts.rules,
                    quota=parts.call_limits,
                ),
                rules=parts.rules,
                profiles=web.profiles,
            ),
            books=BookFigures(database),
            record_audit=lambda report: record_audit(
                database, differences=len(report.wrong), now_ms=web.now_ms()
            ),
            runbooks=read_runbooks(),
            gateway_name=parse_origin(settings.public_url).authority,
            own_id=fleet.owner_id,
            check_ready=check_ready,
            count_in_flight=lambda: parts.shedder.running,
            list_gas_keys=gas_budget.list_keys,
            list_gas_spending=gas_budget.list_spending,
            fleet=fleet.figures,
            list_nodes=fleet.list_nodes,
            list_channels=list_channels,
            list_gateways=fleet.list_gateways,
            find_leaders=fleet.find_leaders,
            find_increase=fleet.find_increase,
            find_risks=fleet.find_risks,
        )
    )
    pages.routes.extend(asset_router(assets).routes)
    return AdminApp(
        metrics=metrics,
        pages=pages,
        hosts=AdminHosts(listen_host=listen.host, port=listen.port, names=settings.admin_hosts),
        sign_in=sign_in,
        renderer=_make_renderer(parts, assets, web=web),
        public_url=settings.public_url,
        entropy=secrets.token_bytes,
    )


def _make_renderer(parts: GatewayParts, assets: PageAssets, *, web: WebContext) -> PageRenderer:
    return PageRenderer(
        assets,
        public_url="",
        test_money=describe_money(parts.rules),
        now_ms=web.now_ms,
        sections=SECTIONS,
        operator=parts.settings.operator,
    )
