"""What the tools of MCP need of the gateway: the catalog, the ledger's call history, the door of gateway calls. Names only;
whoever serves MCP is given one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp

from tollway.ledger.statement import CallHistory
from tollway.registry.catalog import Catalog
from tollway.web.authentication import WalletDependency
from tollway.web.history_routes import FindAsset
from tollway.web.listing_wire import ListingEncoder


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServices:
    """`call_app`: the ASGI application of gateway calls. `wallet` proves who asks. `public_url` without a final slash.
    `origin`: of the gateway, as signatures name it. `origins`: web origins beside it whose pages may use MCP; `*` is any."""

    catalog: Catalog
    encoder: ListingEncoder
    call_history: CallHistory
    call_app: ASGIApp
    wallet: WalletDependency
    find_asset: FindAsset
    now_ms: Callable[[], int]
    public_url: str
    origin: str
    body_bytes_max: int
    origins: frozenset[str] = frozenset()
