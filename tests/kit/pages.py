"""The public pages over stores in memory, without a chain: what page tests ask, and a parser that reads a page as a browser does."""

from collections.abc import Mapping
from gettext import NullTranslations
from html.parser import HTMLParser

import httpx
from starlette.types import Receive, Scope, Send

from tests.kit.stores import ControlStores
from tollway.chain.networks import PRESETS, NetworkProfile
from tollway.limits import Limits
from tollway.storage.reputation_store import QualityStore
from tollway.web.admission import LoadShedder
from tollway.web.app import build_app
from tollway.web.discovery_routes import BazaarServices, DocumentServices
from tollway.web.listing_json import ListingEncoder
from tollway.web.network_routes import NetworkServices
from tollway.web.page_assets import asset_router, read_assets
from tollway.web.page_problems import ProblemPages
from tollway.web.page_renderer import PageRenderer
from tollway.web.page_routes import PageServices, page_router

PUBLIC_URL = "https://gw.example.com"
NOW_MS = 1_795_239_000_000
RULES = PRESETS["sandbox"].rules()
PROFILE = NetworkProfile(
    name="Sandbox", native_symbol="ETH", native_decimals=18, explorer_url=None, wallet_rpc_url=None
)
BROWSER = {
    "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Site": "none",
}


class PageHarness:
    """The routes of the pages over a catalog in memory. `settles`: whether authorisations are taken; `away_s`: of the network. `catalogs`: those of the package, unless given."""

    def __init__(self, catalogs: Mapping[str, NullTranslations] | None = None) -> None:
        self.stores = ControlStores(now_ms=lambda: NOW_MS)
        self.catalog = self.stores.catalog
        self.quality = QualityStore(self.stores.database)
        self.settles = True
        self.away_s: float | None = None
        self.renderer = PageRenderer(
            read_assets(), public_url=PUBLIC_URL, test_money="all", catalogs=catalogs
        )

    def services(self) -> PageServices:
        encoder = ListingEncoder(
            public_url=PUBLIC_URL,
            assets=RULES.assets,
            confirmations_for=RULES.confirmations_for,
            is_offered=lambda asset, units, listing_id: self.settles,
        )
        rules = {RULES.chain_id: RULES}
        documents = DocumentServices(
            catalog=self.catalog,
            encoder=encoder,
            bazaar=BazaarServices(
                catalog=self.catalog,
                rules=rules,
                is_offered=lambda asset, units, listing_id: self.settles,
                public_url=PUBLIC_URL,
            ),
            limits=Limits(),
            is_mpp_offered=lambda asset, units, listing_id: self.settles,
            is_bound_required=False,
            ticks_ms=lambda: 0,
        )
        networks = NetworkServices(
            rules=rules,
            profiles={RULES.chain_id: PROFILE},
            away_s=lambda chain_id: self.away_s,
            settled_rails={"x402": lambda asset, units, listing_id: self.settles},
            withdrawn_since_ms=dict,
            version="1.2.3",
            now_ms=lambda: NOW_MS,
        )
        return PageServices(
            renderer=self.renderer,
            documents=documents,
            networks=networks,
            quality=self.quality,
            currencies=("USDC",),
            now_ms=lambda: NOW_MS,
        )

    def open(self) -> httpx.AsyncClient:
        app = build_app(
            call_app=no_calls,
            routers=[page_router(self.services()), asset_router(self.renderer.assets)],
            public_url=PUBLIC_URL,
            limits=Limits(),
            clock=lambda: 0.0,
            entropy=lambda size: bytes(size),
            shedder=LoadShedder(limits=Limits(), clock=lambda: 0.0, read_memory_bytes=lambda: 0),
            problem_pages=ProblemPages(self.renderer),
        )
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app),
            base_url="http://evil.test",
            follow_redirects=False,
            headers={"Accept": BROWSER["Accept"]},
        )


async def no_calls(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError


_BLOCKS = frozenset({"td", "th", "li", "dd", "dt", "p", "div", "option", "summary", "pre", "h1", "h2", "h3"})


class PageReader(HTMLParser):
    """The tags, addresses, handlers, ids and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in _BLOCKS:
            self.text += " "
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name in ("href", "src", "action", "formaction", "poster", "data"):
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())
