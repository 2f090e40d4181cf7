"""The routes over the ledger that the pipeline of calls does not need: the calls and payments of a wallet, as lists and as files."""

import time
from collections.abc import Callable

from starlette.routing import Router

from tollway.ids import ChainId
from tollway.ledger.history import CallHistory
from tollway.ledger.ledger import Ledger, PaymentLedger
from tollway.limits import Limits
from tollway.money import Asset
from tollway.web.auth_routes import WalletDependency
from tollway.web.exports import ExportServices, export_router
from tollway.web.history_routes import LookUpTransaction, history_router, x402_history_router


def ledger_routers(
    *,
    call_history: CallHistory,
    ledger: Ledger,
    payment_ledger: PaymentLedger,
    wallet: WalletDependency,
    lookup: LookUpTransaction,
    find_asset: Callable[[ChainId, str], Asset | None],
    limits: Limits,
    public_url: str,
    now_ms: Callable[[], int],
) -> list[Router]:
    """Builds the routers. `wallet` authenticates a request; `lookup` reads a transaction that the ledger does not know."""
    exports = ExportServices(
        call_history=call_history,
        wallet=wallet,
        find_asset=find_asset,
        limits=limits,
        public_url=public_url,
        now_ms=now_ms,
        clock=time.monotonic,
    )
    return [
        history_router(
            call_history=call_history,
            ledger=ledger,
            payment_ledger=payment_ledger,
            wallet=wallet,
            lookup=lookup,
            find_asset=find_asset,
            now_ms=now_ms,
        ),
        export_router(exports),
        x402_history_router(call_history=call_history, wallet=wallet, find_asset=find_asset, now_ms=now_ms),
    ]
