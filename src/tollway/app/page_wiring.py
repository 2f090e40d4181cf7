"""The renderer and the routes of the pages."""

from collections.abc import Mapping
from dataclasses import replace

from starlette.routing import Router

from tollway.app.runtime import now_ms
from tollway.chain.networks import ChainRules
from tollway.config.settings import Settings
from tollway.errors import SettingsInvalid
from tollway.identity.page_sessions import PageSessionStore, PageSignIn
from tollway.identity.siwe import PublicOrigin, parse_origin
from tollway.identity.viewers import BookAccess, ViewerStore
from tollway.ids import ChainId
from tollway.web.api.auth_routes import make_wallet_quota
from tollway.web.api.context import WebContext
from tollway.web.api.exports import export_router
from tollway.web.api.receipt_routes import receipt_router
from tollway.web.pages.assets import asset_router, read_assets
from tollway.web.pages.budget_pages import budget_page_router
from tollway.web.pages.demo_wallet import DemoWallet, demo_wallet_router
from tollway.web.pages.my_routes import NOT_YOUR_CALL, NOT_YOURS, my_router
from tollway.web.pages.my_sums_routes import my_sums_router
from tollway.web.pages.page_session import PageAccess
from tollway.web.pages.public_routes import page_router
from tollway.web.pages.refund_pages import refund_page_router
from tollway.web.pages.renderer import PageRenderer, TestMoney, list_origins
from tollway.web.pages.selling_routes import selling_router
from tollway.web.pages.webhook_pages import webhook_page_router

DEMO_PRESET = "sandbox"


def make_page_renderer(
    settings: Settings,
    rules: Mapping[ChainId, ChainRules],
    *,
    origin: PublicOrigin,
    demo_wallet: DemoWallet | None,
) -> PageRenderer | None:
    """Returns None where the settings switch the pages off. Raises SettingsInvalid for a demo's wallet beside any network but the sandbox."""
    if demo_wallet is not None:
        _check_demo(settings)
    if not settings.web_pages:
        return None
    logo = settings.operator_logo
    return PageRenderer(
        read_assets(logo=logo) if demo_wallet is None else read_assets(logo=logo, left_out=()),
        public_url=str(origin),
        test_money=describe_money(rules),
        now_ms=now_ms,
        operator=settings.operator,
    )


def _check_demo(settings: Settings) -> None:
    """The wallet of a demo signs for every page of this gateway: it is refused where money has a value, or where another machine reaches the gateway."""
    others = [network.name for network in settings.networks if network.name != DEMO_PRESET]
    problems = [f"networks: the wallet of the demo serves the sandbox alone, not {name}" for name in others]
    if not settings.listen.is_loopback:
        problems.append("listen: the wallet of the demo serves this machine alone, so listen on 127.0.0.1")
    if problems:
        raise SettingsInvalid(problems)


def describe_money(rules: Mapping[ChainId, ChainRules]) -> TestMoney:
    kinds = {one.kind for one in rules.values()}
    return "none" if "test" not in kinds else "some" if "main" in kinds else "all"


def page_routers(
    context: WebContext,
    renderer: PageRenderer,
    *,
    sessions: PageSessionStore,
    viewers: ViewerStore,
    demo_wallet: DemoWallet | None = None,
) -> list[Router]:
    """The pages of all readers, and those of a signed-in one, with the files that they link to."""
    access = _make_access(context, renderer, sessions)
    mine = replace(
        context,
        authenticate=access.authenticate,
        is_session_open=access.has_session,
        book_access=BookAccess(
            viewers,
            context.budgets,
            limits=context.limits,
            now_ms=context.now_ms,
            rate_limiter=context.rate_limiter,
            refusal=NOT_YOURS,
        ),
    )
    return [
        page_router(context, renderer),
        asset_router(renderer.assets),
        my_router(mine, access),
        my_sums_router(mine, access),
        budget_page_router(mine, access),
        selling_router(mine, access),
        webhook_page_router(mine, access),
        refund_page_router(mine, access, refusal=NOT_YOUR_CALL),
        export_router(mine, calls_path="/my/calls.csv", payments_path="/my/credit.csv"),
        receipt_router(mine, path="/my/calls/{call_id}/receipt", refusal=NOT_YOUR_CALL),
        *([demo_wallet_router(demo_wallet, origins=list_origins(context.origin))] if demo_wallet else []),
        Router([access.missing()]),
    ]


def _make_access(context: WebContext, renderer: PageRenderer, sessions: PageSessionStore) -> PageAccess:
    sign_in = PageSignIn(
        sessions,
        context.sign_in,
        origin=parse_origin(context.public_url),
        limits=context.limits,
        now_ms=context.now_ms,
        entropy=context.entropy,
    )
    return PageAccess(
        sign_in,
        renderer,
        origins=[context.origin],
        form_bytes_max=context.limits.control_body_bytes_max,
        quota=make_wallet_quota(limits=context.limits, rate_limiter=context.rate_limiter),
    )
