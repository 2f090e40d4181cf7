"""The renderer of the pages, and the routes of the signed-in ones: pages about the ledger, with the files that they link to."""

from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.routing import Router

from tollway.app.ledger_wiring import PAGE_FILES, BookFileServices, book_file_routers
from tollway.chain.networks import ChainRules
from tollway.config.settings import Settings
from tollway.identity.page_sessions import PageSessionStore, PageSignIn
from tollway.identity.sessions import SignIn
from tollway.identity.signatures import ReceiptSigner
from tollway.identity.siwe import PublicOrigin
from tollway.identity.viewers import BookAccess, ViewerStore
from tollway.ids import ChainId
from tollway.ledger.ledger import PaymentLedger
from tollway.limits import Limits
from tollway.payments.held_calls import HeldCalls
from tollway.rate_limits.limiter import Quota
from tollway.web.admission import SignInRateLimit
from tollway.web.book_turns import BookTurns
from tollway.web.history_routes import FindAsset
from tollway.web.my_routes import NOT_YOURS, MyServices, my_router
from tollway.web.my_sums_routes import SumServices, my_sums_router
from tollway.web.page_assets import read_assets
from tollway.web.page_renderer import PageRenderer, TestMoney
from tollway.web.page_routes import PageServices
from tollway.web.page_session import PageAccess
from tollway.web.selling_routes import ProviderServices, SellingServices, selling_router


class SignedInServices(BookFileServices, Protocol):
    """The collaborators of these routes, of those that `App` has built."""

    @property
    def page_sessions(self) -> PageSessionStore: ...
    @property
    def sign_in(self) -> SignIn: ...
    @property
    def payments(self) -> PaymentLedger: ...
    @property
    def viewers(self) -> ViewerStore: ...


def make_page_renderer(
    settings: Settings, rules: Mapping[ChainId, ChainRules], *, origin: PublicOrigin
) -> PageRenderer | None:
    """None where the settings say that the gateway has no pages."""
    if not settings.web_pages:
        return None
    return PageRenderer(read_assets(), public_url=str(origin), test_money=describe_money(rules))


def describe_money(rules: Mapping[ChainId, ChainRules]) -> TestMoney:
    """Which of the networks are test networks."""
    kinds = {one.kind for one in rules.values()}
    return "none" if "test" not in kinds else "some" if "main" in kinds else "all"


def signed_in_routers(
    services: SignedInServices,
    public: PageServices,
    *,
    held_calls: HeldCalls,
    origin: PublicOrigin,
    rate_limit: SignInRateLimit,
    quota: Quota,
    book_turns: BookTurns,
    find_asset: FindAsset,
    receipt_signer: ReceiptSigner,
    selling: ProviderServices,
    entropy: Callable[[int], bytes],
) -> list[Router]:
    """`public`: the collaborators of the public pages. `selling`: those of the routes of listings."""
    limits, now_ms = services.settings.limits, public.now_ms
    sign_in = PageSignIn(
        services.page_sessions, services.sign_in, origin=origin, limits=limits, now_ms=now_ms, entropy=entropy
    )
    access = make_page_access(sign_in, public.renderer, origin=origin, limits=limits, quota=quota)
    books = _make_book_access(services, now_ms)
    mine = MyServices(
        renderer=public.renderer,
        sign_in=sign_in,
        access=access,
        rate_limit=rate_limit,
        call_history=services.call_history,
        held_calls=held_calls,
        payment_ledger=services.payments,
        books=books,
        find_asset=find_asset,
        profiles=public.profiles,
        limits=limits,
        now_ms=now_ms,
    )
    sums = SumServices(
        access=access,
        books=books,
        calls_max=limits.spending_calls_max,
        call_history=services.call_history,
        period_books=services.period_books,
        catalog=public.documents.catalog,
        find_asset=find_asset,
        profiles=public.profiles,
        now_ms=now_ms,
    )
    own_sales = SellingServices(
        provider=selling,
        access=access,
        books=services.period_books,
        call_history=services.call_history,
        find_asset=find_asset,
        profiles=public.profiles,
        now_ms=now_ms,
    )
    return [
        my_router(mine),
        my_sums_router(sums),
        selling_router(own_sales),
        *book_file_routers(
            services,
            wallet=access.authenticate,
            is_session_open=access.has_session,
            book_turns=book_turns,
            access=books,
            find_asset=find_asset,
            receipt_signer=receipt_signer,
            paths=PAGE_FILES,
        ),
    ]


def _make_book_access(services: SignedInServices, now_ms: Callable[[], int]) -> BookAccess:
    return BookAccess(
        services.viewers,
        limits=services.settings.limits,
        now_ms=now_ms,
        rate_limiter=services.rate_limiter,
        refusal=NOT_YOURS,
    )


def make_page_access(
    sign_in: PageSignIn, renderer: PageRenderer, *, origin: PublicOrigin, limits: Limits, quota: Quota
) -> PageAccess:
    """`quota`: of authenticated requests, that of the API too."""
    bytes_max = limits.control_body_bytes_max
    return PageAccess(sign_in, renderer, origins=[str(origin)], form_bytes_max=bytes_max, quota=quota)
