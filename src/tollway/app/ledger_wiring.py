"""The routes over the ledger that the pipeline of calls does not need: the calls and payments of a wallet, as lists, as files and as signed
receipts, their sums by hour and day, and the viewers who may read them."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.routing import Router

from tollway.chain.port import ChainReader
from tollway.config.settings import Settings
from tollway.gateway.call_rates import CallRateLimits
from tollway.identity.signatures import ReceiptSigner
from tollway.identity.siwe import parse_origin
from tollway.identity.viewers import BookAccess, ViewerStore
from tollway.ledger.history import CallHistory
from tollway.ledger.ledger import Ledger, PaymentLedger
from tollway.ledger.sales import PeriodBooks
from tollway.payments.held_calls import HeldCalls
from tollway.payments.transaction_lookup import TransactionStatusReader
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.moderation import Moderation
from tollway.web.auth_routes import WalletDependency
from tollway.web.book_turns import BookTurns
from tollway.web.exports import ExportServices, export_router
from tollway.web.history_routes import FindAsset, history_router, x402_history_router
from tollway.web.receipt_routes import ReceiptServices, receipt_router
from tollway.web.sums_routes import sums_router
from tollway.web.viewer_routes import viewer_router


class BookFileServices(Protocol):
    """The collaborators of the files and receipts, of those that `App` has built."""

    @property
    def settings(self) -> Settings: ...
    @property
    def call_history(self) -> CallHistory: ...
    @property
    def period_books(self) -> PeriodBooks: ...
    @property
    def ledger(self) -> Ledger: ...
    @property
    def moderation(self) -> Moderation: ...
    @property
    def rate_limiter(self) -> RateLimiter: ...


class LedgerServices(BookFileServices, Protocol):
    """The collaborators of all these routes."""

    @property
    def payments(self) -> PaymentLedger: ...
    @property
    def viewers(self) -> ViewerStore: ...
    @property
    def chains(self) -> ChainReader: ...
    @property
    def call_limits(self) -> CallRateLimits: ...


def ledger_routers(
    services: LedgerServices,
    *,
    held_calls: HeldCalls,
    wallet: WalletDependency,
    is_session_open: Callable[[Request], Awaitable[bool]],
    book_turns: BookTurns,
    find_asset: FindAsset,
    receipt_signer: ReceiptSigner,
    now_ms: Callable[[], int],
) -> list[Router]:
    """Builds the routers. `wallet` authenticates a request. `is_session_open`: whether it would do so again."""
    call_history, limits = services.call_history, services.settings.limits
    access = BookAccess(services.viewers, limits=limits, now_ms=now_ms, rate_limiter=services.rate_limiter)
    return [
        history_router(
            call_history=call_history,
            held_calls=held_calls,
            payment_ledger=services.payments,
            wallet=wallet,
            resolve_wallet=access.resolve_wallet,
            lookup=TransactionStatusReader(services.chains, quota=services.call_limits).read_status,
            find_asset=find_asset,
            now_ms=now_ms,
        ),
        *book_file_routers(
            services,
            wallet=wallet,
            is_session_open=is_session_open,
            book_turns=book_turns,
            access=access,
            find_asset=find_asset,
            receipt_signer=receipt_signer,
        ),
        x402_history_router(
            call_history=call_history,
            wallet=wallet,
            resolve_wallet=access.resolve_wallet,
            find_asset=find_asset,
            now_ms=now_ms,
        ),
        sums_router(
            books=services.period_books, wallet=wallet, resolve_wallet=access.resolve_wallet, now_ms=now_ms
        ),
        viewer_router(access=access, wallet=wallet, limits=limits, now_ms=now_ms),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class BookFilePaths:
    """The paths of the files of a wallet's books. `receipt` has the parameter `call_id`."""

    calls: str
    payments: str
    receipt: str


API_FILES = BookFilePaths(
    calls="/api/v2/history.csv",
    payments="/api/v2/payments.csv",
    receipt="/api/v2/history/{call_id}/receipt",
)
PAGE_FILES = BookFilePaths(
    calls="/my/calls.csv", payments="/my/credit.csv", receipt="/my/calls/{call_id}/receipt"
)


def book_file_routers(
    services: BookFileServices,
    *,
    wallet: WalletDependency,
    is_session_open: Callable[[Request], Awaitable[bool]],
    book_turns: BookTurns,
    access: BookAccess,
    find_asset: FindAsset,
    receipt_signer: ReceiptSigner,
    paths: BookFilePaths = API_FILES,
) -> list[Router]:
    """Builds the routers of the files and of receipts: those of the API, or with `PAGE_FILES` those that pages link to."""
    limits, public_url = services.settings.limits, services.settings.public_url
    exports = ExportServices(
        call_history=services.call_history,
        wallet=wallet,
        resolve_wallet=access.resolve_wallet,
        find_asset=find_asset,
        limits=limits,
        public_url=public_url,
        now_ms=services.ledger.shared_ms,
        clock=time.monotonic,
        is_session_open=is_session_open,
        find_block=services.moderation.find_block,
        book_turns=book_turns,
    )
    receipts = ReceiptServices(
        call_history=services.call_history,
        wallet=wallet,
        resolve_wallet=access.resolve_wallet,
        find_asset=find_asset,
        signer=receipt_signer,
        gateway=str(parse_origin(public_url)),
        public_url=public_url,
        limits=limits,
        now_ms=services.ledger.shared_ms,
    )
    return [
        export_router(exports, calls_path=paths.calls, payments_path=paths.payments),
        receipt_router(receipts, path=paths.receipt),
    ]
