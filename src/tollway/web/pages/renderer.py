"""Renders the pages: one Jinja2 environment with autoescape and strict names, the frame around every page, and the headers of every page.

A template gets frozen records and holds no logic but loops and conditions; it never marks text as safe. Providers' words pass the filter `line`, or are cleaned before they
come here; all are escaped here.
Another listener or another group of pages makes a renderer of its own, with its own `sections` in the navigation.
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from gettext import NullTranslations
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.types import Scope

from tollway.discovery.gateway_operator import UNNAMED, GatewayOperator
from tollway.discovery.safe_text import clean_line
from tollway.money import format_decimal
from tollway.registry.metering import describe_metering
from tollway.web.http.page_response import PageResponse, accepts_gzip
from tollway.web.http.problems import split_code
from tollway.web.http.query import format_time
from tollway.web.pages.assets import DEMO_MODULE, PageAssets
from tollway.web.pages.chart_svg import outline_spark
from tollway.web.pages.figures import align_amounts, keep_amounts, split_time
from tollway.web.pages.languages import choose_language, read_catalogs
from tollway.web.pages.messages import MessageEnvironment

TEMPLATES = Path(__file__).parent / "templates"
HTML = "text/html; charset=utf-8"
CACHE_PUBLIC = "private, max-age=60"
CACHE_NEVER = "no-store"
VARY = "Cookie, Accept-Language, Accept-Encoding"
THEME_COOKIE, LANGUAGE_COOKIE = "theme", "lang"
GZIP_LEVEL = 6
OK = 200
FILTERS = {
    "line": clean_line,
    "time": format_time,
    "split_time": split_time,
    "decimal": format_decimal,
    "aligned": align_amounts,
    "with_amounts": keep_amounts,
    "split_code": split_code,
    "spark": outline_spark,
    "formula": describe_metering,
}

_BELOW = {"/": "/apis/", "/my": None, "/my/sales": None}
"""Where the pages below an entry of a navigation begin, if not at its own path. None for no page: `/my` is an overview, beside `/my/calls` and the others."""
_PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=()"
_LOOPBACK = ("http://127.0.0.1", "http://localhost")

TestMoney = Literal["none", "some", "all"]
"""Which of the gateway's networks are test networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """An entry of the navigation. `label`: a key of the catalog of messages. `tabs`: the pages of the section, the first one at its own `href`; empty for a section without."""

    href: str
    label: str
    tabs: "Sequence[Section]" = ()


HELD_SALES = "/my/sales?state=held"
PUBLIC_SECTIONS = (
    Section(href="/", label="Find"),
    Section(
        href="/my",
        label="My calls",
        tabs=(
            Section(href="/my", label="Overview"),
            Section(href="/my/calls", label="Calls"),
            Section(href="/my/credit", label="Credit"),
            Section(href="/my/spending", label="Spending"),
            Section(href="/my/budgets", label="Budgets"),
            Section(href="/my/wallets", label="Wallets"),
        ),
    ),
    Section(
        href="/my/selling",
        label="My APIs",
        tabs=(
            Section(href="/my/selling", label="Overview"),
            Section(href="/my/apis", label="APIs"),
            Section(href="/my/sales", label="Sales"),
            Section(href=HELD_SALES, label="Held"),
            Section(href="/my/webhooks", label="Webhooks"),
        ),
    ),
    Section(href="/status", label="Status"),
    Section(href="/docs", label="Docs"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every page has around its content. `current`: the path of the page, or the `href` of its entry in the navigation. `languages`: those that the reader may
    choose among. `account`: the wallet of a signed-in reader, whole; None without one."""

    sections: Sequence[Section]
    current: str
    theme: str
    language: str
    languages: Sequence[str]
    test_money: TestMoney
    request_id: str
    now_ms: int
    account: str | None
    operator: GatewayOperator
    logo_path: str | None
    canonical: str = ""
    """The URL of a public page without its query, for search engines and previews; empty for other pages and for refusals."""
    picture: str = ""
    """The URL of the picture of previews."""

    @property
    def site_name(self) -> str:
        return self.operator.name or "Tollway"

    def place_in(self, section: Section) -> str:
        """The value of `aria-current` for a link of a navigation: `page` for this page, `true` where this page is below it or is another tab of it, else empty."""
        if self.current == section.href:
            return "page"
        below = _BELOW.get(section.href, f"{section.href}/")
        is_below = below is not None and self.current.startswith(below)
        return "true" if is_below or any(self.place_in(tab) for tab in section.tabs) else ""

    @property
    def section(self) -> Section | None:
        """The section of this page; None for a page of none."""
        return next((one for one in self.sections if self.place_in(one)), None)


class PageRenderer:
    """Renders templates into responses. Safe to call from many tasks at once. `public_url` without a final slash. `catalogs`: the words of each language.
    `now_ms`: the time of a page; a moment of the same day is written without its day."""

    def __init__(
        self,
        assets: PageAssets,
        *,
        public_url: str,
        test_money: TestMoney,
        now_ms: Callable[[], int],
        sections: Sequence[Section] = PUBLIC_SECTIONS,
        operator: GatewayOperator = UNNAMED,
        catalogs: Mapping[str, NullTranslations] | None = None,
    ) -> None:
        self.assets = assets
        self._sections = tuple(sections)
        self._test_money = test_money
        self._now_ms = now_ms
        self.operator = operator
        self._public_url = public_url
        self._policy = content_security_policy(public_url)
        self._environments = {
            language: _make_environment(assets, words)
            for language, words in (read_catalogs() if catalogs is None else catalogs).items()
        }

    def with_origin(self, public_url: str) -> "PageRenderer":
        """The same renderer for another origin: its templates and words are shared, and the policy names that origin."""
        other = copy(self)
        other._policy = content_security_policy(public_url)
        return other

    def render(
        self,
        scope: Scope,
        template: str,
        *,
        account: str | None = None,
        canonical: str = "",
        current: str | None = None,
        **records: Any,
    ) -> str:
        """The page as HTML. `records`: what the template names, beside `frame`. `current`: the entry of the navigation that the page is; None: that of its path."""
        language = choose_language(
            chosen=_read_cookie(scope, LANGUAGE_COOKIE),
            accept_language=_read_header(scope, b"accept-language"),
            available=self._environments,
        )
        theme = _read_cookie(scope, THEME_COOKIE)
        frame = Frame(
            sections=self._sections,
            current=scope["path"] if current is None else current,
            theme=theme if theme in ("light", "dark") else "",
            language=language,
            languages=tuple(self._environments),
            test_money=self._test_money,
            request_id=str((scope.get("state") or {}).get("request_id", "")),
            now_ms=self._now_ms(),
            account=account,
            canonical=canonical,
            picture=self._public_url + self.assets.path_of("preview.png"),
            operator=self.operator,
            logo_path=self.assets.logo_path,
        )
        return str(self._environments[language].get_template(template).render(frame=frame, **records))

    def respond(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        account: str | None = None,
        headers: Mapping[str, str] | None = None,
        path: str | None = None,
        **records: Any,
    ) -> PageResponse:
        """A public page. It is compressed where the client reads gzip. `path`: that of its canonical URL; None: that of the request."""
        own_path = quote(request.scope["path"] if path is None else path)
        canonical = f"{self._public_url}{own_path}" if status == OK else ""
        html = self.render(request.scope, template, account=account, canonical=canonical, **records)
        body = html.encode()
        own = {**self.headers(), "Cache-Control": CACHE_PUBLIC, "Vary": VARY, **(headers or {})}
        if accepts_gzip(request.headers.get("accept-encoding", "")):
            own["Content-Encoding"] = "gzip"
            body = gzip.compress(body, GZIP_LEVEL, mtime=0)
        return PageResponse(body, status_code=status, media_type=HTML, headers=own)

    def respond_private(
        self,
        request: Request,
        template: str,
        *,
        account: str | None,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        current: str | None = None,
        **records: Any,
    ) -> PageResponse:
        """A page of a signed-in reader: never stored, and never compressed, because its length would show a secret beside chosen text (BREACH)."""
        html = self.render(request.scope, template, account=account, current=current, **records)
        body = html.encode()
        own = {**self.headers(), "Cache-Control": CACHE_NEVER, **(headers or {})}
        return PageResponse(body, status_code=status, media_type=HTML, headers=own)

    def headers(self) -> dict[str, str]:
        """The security headers of every page."""
        return {
            "Content-Security-Policy": self._policy,
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "X-Frame-Options": "DENY",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Permissions-Policy": _PERMISSIONS,
        }


def content_security_policy(public_url: str) -> str:
    """The policy of every page. Scripts and styles are named by path and never `'self'`: responses of providers' APIs have the same origin.

    `script-src-elem` repeats `script-src` for MetaMask in Firefox. A gateway on loopback is opened as `127.0.0.1` and as `localhost`.
    """
    files = " ".join(f"{origin}/ui/" for origin in list_origins(public_url))
    return (
        f"default-src 'none'; script-src {files}; script-src-elem {files}; style-src {files}; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def list_origins(public_url: str) -> list[str]:
    """The origins under which a browser opens the gateway: on loopback, both of its names."""
    origins = [public_url]
    for name, other in (_LOOPBACK, _LOOPBACK[::-1]):
        if public_url == name or public_url.startswith(name + ":"):
            origins.append(other + public_url.removeprefix(name))
    return origins


@lru_cache(maxsize=16)
def _make_environment(assets: PageAssets, words: NullTranslations) -> Environment:
    """The renderers of the same files and words share their compiled templates."""
    environment = MessageEnvironment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    environment.install(words)
    for name in ("safe", "xmlattr", "tojson", "urlize"):  # filters that return markup
        del environment.filters[name]
    environment.filters.update(FILTERS)
    environment.filters["translate_words"] = partial(_translate_words, words)
    globals_: dict[str, Any] = {
        "asset": assets.path_of,
        "has_demo_wallet": assets.find(DEMO_MODULE) is not None,
    }
    environment.globals.update(globals_)
    return environment


def _translate_words(catalog: NullTranslations, words: Mapping[str, str]) -> str:
    """The messages of a module in the language of the page, as JSON for a `data-` attribute."""
    return json.dumps({key: catalog.gettext(text) for key, text in words.items()}, ensure_ascii=False)


def _read_cookie(scope: Scope, wanted: str) -> str:
    """The value of a cookie that holds no secret; empty without it."""
    for name, value in scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, _, chosen = pair.strip().partition("=")
                if key == wanted:
                    return str(chosen)
    return ""


def _read_header(scope: Scope, wanted: bytes) -> str:
    return b",".join(value for name, value in scope["headers"] if name == wanted).decode("latin-1")
