"""The routes over the ledger that the pipeline of calls does not need: the calls and payments of a wallet, as lists, as files and as signed
receipts, their sums by hour and day, and the viewers who may read them."""

import time
from collections.abc import Callable
from typing import Protocol

from starlette.routing import Router

from tollway.chain.port import ChainReader
from tollway.config.settings import Settings
from tollway.gateway.access import CallRateLimits
from tollway.identity.signatures import ReceiptSigner
from tollway.identity.siwe import parse_origin
from tollway.identity.viewers import BookAccess, ViewerStore
from tollway.ledger.history import CallHistory
from tollway.ledger.ledger import Ledger, PaymentLedger
from tollway.ledger.sales import PeriodBooks
from tollway.payments.transaction_lookup import TransactionStatusReader
from tollway.web.auth_routes import WalletDependency
from tollway.web.exports import ExportServices, export_router
from tollway.web.history_routes import FindAsset, history_router, x402_history_router
from tollway.web.receipt_routes import ReceiptServices, receipt_router
from tollway.web.sums_routes import sums_router
from tollway.web.viewer_routes import viewer_router


class LedgerServices(Protocol):
    """The collaborators of these routes, of those that `App` has built."""

    @property
    def settings(self) -> Settings: ...
    @property
    def call_history(self) -> CallHistory: ...
    @property
    def period_books(self) -> PeriodBooks: ...
    @property
    def ledger(self) -> Ledger: ...
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
    wallet: WalletDependency,
    find_asset: FindAsset,
    receipt_signer: ReceiptSigner,
    now_ms: Callable[[], int],
) -> list[Router]:
    """Builds the routers. `wallet` authenticates a request."""
    call_history, limits = services.call_history, services.settings.limits
    access = BookAccess(services.viewers, limits=limits, now_ms=now_ms)
    exports = ExportServices(
        call_history=call_history,
        wallet=wallet,
        resolve_wallet=access.resolve_wallet,
        find_asset=find_asset,
        limits=limits,
        public_url=services.settings.public_url,
        now_ms=now_ms,
        clock=time.monotonic,
    )
    receipts = ReceiptServices(
        call_history=call_history,
        wallet=wallet,
        resolve_wallet=access.resolve_wallet,
        find_asset=find_asset,
        signer=receipt_signer,
        gateway=str(parse_origin(services.settings.public_url)),
        public_url=services.settings.public_url,
        limits=limits,
        now_ms=services.ledger.shared_ms,
    )
    return [
        history_router(
            call_history=call_history,
            ledger=services.ledger,
            payment_ledger=services.payments,
            wallet=wallet,
            resolve_wallet=access.resolve_wallet,
            lookup=TransactionStatusReader(services.chains, quota=services.call_limits).read_status,
            find_asset=find_asset,
            now_ms=now_ms,
        ),
        export_router(exports),
        receipt_router(receipts),
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
