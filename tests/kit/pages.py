"""The public pages over stores in memory, without a chain: what page tests ask, and a parser that reads a page as a browser does."""

from collections.abc import Mapping
from gettext import NullTranslations
from html.parser import HTMLParser
from typing import Any

import httpx

from tests.kit.routes import PUBLIC_URL, RouteHarness
from tollway.chain.networks import PRESETS, NetworkProfile
from tollway.discovery.gateway_operator import UNNAMED, GatewayOperator, Logo
from tollway.web.pages.assets import asset_router, read_assets
from tollway.web.pages.page_problems import ProblemPages
from tollway.web.pages.public_routes import page_router
from tollway.web.pages.renderer import PageRenderer

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


class PageHarness(RouteHarness):
    """The routes of the pages over a catalog in memory. `away_s`: of the network. `catalogs`: those of the package, unless given. `operator`, `logo`: of the
    settings."""

    def __init__(
        self,
        catalogs: Mapping[str, NullTranslations] | None = None,
        *,
        operator: GatewayOperator = UNNAMED,
        logo: Logo | None = None,
        **given: Any,
    ) -> None:
        self.away_s: float | None = None
        self.renderer = PageRenderer(
            read_assets(logo=logo),
            public_url=PUBLIC_URL,
            test_money="all",
            now_ms=lambda: self.context.now_ms(),
            catalogs=catalogs,
            operator=operator,
        )
        made = {
            "rules": {RULES.chain_id: RULES},
            "profiles": {RULES.chain_id: PROFILE},
            "away_s": lambda chain_id: self.away_s,
            "settled_rails": {"x402": self.is_offered},
            "has_pages": True,
            "operator": operator,
        }
        super().__init__(**{**made, **given})

    def open_pages(self) -> httpx.AsyncClient:
        return self.open(
            lambda context: page_router(context, self.renderer),
            lambda _: asset_router(self.renderer.assets),
            base_url="http://evil.test",
            headers={"Accept": BROWSER["Accept"]},
            problem_pages=ProblemPages(self.renderer),
        )


_BLOCKS = frozenset({"td", "th", "li", "dd", "dt", "p", "div", "option", "summary", "pre", "h1", "h2", "h3"})


class PageReader(HTMLParser):
    """The tags, addresses, handlers, ids and text of a page. The canonical URL is no address that a browser loads or follows."""

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
        is_canonical = tag == "link" and ("rel", "canonical") in attrs
        for name, value in attrs:
            if name.startswith("on") or name == "style":
                self.handlers.append(name)
            if name in ("href", "src", "action", "formaction", "poster", "data") and not is_canonical:
                self.addresses.append(value or "")
            if name == "id":
                self.ids.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def words(self) -> str:
        return " ".join(self.text.split())
