"""Routes over stores in memory, behind a client: the collaborators of the routes, an application over chosen routers, and requests of wallets.

A request proves a wallet by the header `x-test-wallet`; real proofs of wallets are tested in `tests/identity`.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

import httpx
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.kit.listings import find_block_in
from tests.kit.stores import ControlStores
from tollway.chain.networks import ChainRules
from tollway.discovery.gateway_operator import UNNAMED
from tollway.errors import Code, Problem, Refusal
from tollway.identity.authenticator import Identity
from tollway.identity.viewers import NOT_VIEWER
from tollway.ids import Address, ChainId, ListingId
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Asset
from tollway.outbound.policy import Endpoint
from tollway.rate_limits.limiter import RateLimiter
from tollway.registry.catalog import NO_HEADS, HeadTimes
from tollway.registry.draft import DraftRules
from tollway.storage.catalog.reputation_store import QualityStore
from tollway.web.api.auth_routes import read_body
from tollway.web.api.context import FindAsset, WalletDependency, WebContext
from tollway.web.api.idempotent_create import IdempotentCreate
from tollway.web.api.listing_edits import make_endpoint_check
from tollway.web.api.listing_json import ListingEncoder, is_never_offered
from tollway.web.http.admission import LoadShedder, SignInRateLimit
from tollway.web.http.app import build_app
from tollway.web.http.read_turns import ReadTurns

ALICE, BOB = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
PUBLIC_URL = "https://gw.example.com"
NOW_MS = 1_795_239_000_000  # 2026-11-21
BODY_BYTES_MAX = 2 * 1024 * 1024


class NotGiven:
    """A member that a test did not give. A route that uses it fails."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        raise AssertionError(f"the test gives the context no {self._name}")

    def __call__(self, *_: object, **__: object) -> Any:
        raise AssertionError(f"the test gives the context no {self._name}")


def make_context(**given: Any) -> WebContext:
    """The collaborators of the routes. `given`: members by name; `assets`: of the encoder, the drafts and `find_asset`, those of `rules` by default; `is_offered`: of the encoder."""
    rules: Mapping[ChainId, ChainRules] = given.setdefault("rules", {})
    assets = given.pop("assets", tuple(asset for one in rules.values() for asset in one.assets))
    is_offered = given.pop("is_offered", is_never_offered)
    made: dict[str, Any] = {
        "public_url": PUBLIC_URL,
        "version": "1.2.3",
        "operator": UNNAMED,
        "limits": DEFAULT_LIMITS,
        "allow_private": False,
        "has_pages": False,
        "is_bound_required": False,
        "allowlist": None,
        "mcp_origins": frozenset(),
        "now_ms": lambda: NOW_MS,
        "ticks_ms": lambda: 0,
        "clock": lambda: 0.0,
        "entropy": os.urandom,
        "authenticate": authenticate,
        "is_session_open": stay_open,
        "rate_limiter": RateLimiter(),
        "find_block": find_block_in(()),
        "profiles": {},
        "find_asset": find_asset_in(assets),
        "away_s": lambda chain_id: None,
        "settled_rails": {},
        "withdrawn_since_ms": dict,
        "is_mpp_offered": is_never_offered,
        "is_unprotected": is_protected,
        "read_heads": read_no_heads,
        "requires_ownership": False,
        "book_access": NamedBooks(),
        "read_turns": ReadTurns(),
    }
    made |= given
    public_url, limits, allow_private = made["public_url"], made["limits"], made["allow_private"]
    derived = {
        "origin": public_url,
        "shared_ms": made["now_ms"],
        "sign_in_limit": SignInRateLimit(limits=limits, rate_limiter=made["rate_limiter"]),
        "encoder": ListingEncoder(
            public_url=public_url,
            assets=assets,
            confirmations_for=lambda asset, units: (
                rules[asset.chain_id].confirmations_for(asset, units) if asset.chain_id in rules else 1
            ),
            is_offered=is_offered,
        ),
        "draft_rules": DraftRules(
            assets=assets,
            main_networks=frozenset(
                asset.chain_id
                for asset in assets
                if asset.chain_id not in rules or rules[asset.chain_id].kind == "main"
            ),
            allow_private_endpoints=allow_private,
            check_endpoint=make_endpoint_check(allow_private=allow_private),
        ),
    }
    missing = {field.name: NotGiven(field.name) for field in fields(WebContext)}
    return WebContext(**{**missing, **derived, **made})


def make_app(context: WebContext, *routers: Router, **given: Any) -> ASGIApp:
    """The application over these routers. `given`: other arguments of `build_app`."""
    limits = context.limits
    return build_app(
        **{
            "call_app": no_calls,
            "routers": routers,
            "public_url": context.public_url,
            "limits": limits,
            "clock": context.clock,
            "entropy": bytes,
            "shedder": LoadShedder(limits=limits, clock=time.monotonic, read_memory_bytes=lambda: 0),
            **given,
        }
    )


def open_client(app: ASGIApp, *, base_url: str = PUBLIC_URL, **given: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url=base_url, follow_redirects=False, **given)


class RouteHarness:
    """Routes over stores in memory, behind a client. `now_ms`, `ticks_ms`: the clocks. `blocked`: wallets that the operator has blocked. `settles`: whether an authorization can be
    settled now."""

    client: httpx.AsyncClient
    app: ASGIApp

    def __init__(self, *, stores: ControlStores | None = None, **given: Any) -> None:
        """`stores`: those of this test unless given. `given`: members of the context."""
        self.now_ms, self.ticks_ms = NOW_MS, 0
        self.settles = True
        self.blocked: set[Address] = set()
        self.stores = ControlStores(now_ms=lambda: self.now_ms) if stores is None else stores
        self.catalog = self.stores.catalog
        self.quality = QualityStore(self.stores.database)
        limits = given.get("limits", DEFAULT_LIMITS)
        made = {
            "now_ms": lambda: self.now_ms,
            "ticks_ms": lambda: self.ticks_ms,
            "find_block": find_block_in(self.blocked),
            "is_offered": self.is_offered,
            "is_mpp_offered": self.is_offered,
            "catalog": self.catalog,
            "quality": self.quality,
            "ownerships": self.stores.ownerships,
            "creations": IdempotentCreate(self.stores.creations, limits=limits, entropy=os.urandom),
        }
        self.context = make_context(**{**made, **given})

    def is_offered(self, asset: Asset, units: int, listing_id: ListingId) -> bool:
        return self.settles

    def open(
        self,
        *routers: Callable[[WebContext], Router],
        base_url: str = PUBLIC_URL,
        headers: Mapping[str, str] = {},
        **given: Any,
    ) -> httpx.AsyncClient:
        """A client of the application over these routers, which is then `self.client`. `given`: other arguments of `build_app`."""
        self.app = make_app(self.context, *(make(self.context) for make in routers), **given)
        self.client = open_client(self.app, base_url=base_url, headers=headers)
        return self.client

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        wallet: Address | None = ALICE,
        headers: Mapping[str, str] = {},
        raw: bytes | None = None,
    ) -> httpx.Response:
        """A request of a wallet. `body`: sent as JSON; `raw`: sent as it is."""
        content: dict[str, Any] = {"json": body} if body is not None else {}
        if raw is not None:
            content = {"content": raw}
        proof = {} if wallet is None else {"x-test-wallet": str(wallet)}
        return await self.client.request(method, path, headers={**proof, **headers}, **content)


async def authenticate(request: Request) -> Identity:
    await read_body(request, bytes_max=BODY_BYTES_MAX)
    return await prove_wallet(request)


async def prove_wallet(request: Request) -> Identity:
    """The wallet that the header names. Reads no body."""
    name = request.headers.get("x-test-wallet")
    return await authenticate_as(None if name is None else Address.parse(name))(request)


def authenticate_as(wallet: Address | None) -> WalletDependency:
    """Every request proves this wallet; None: no request proves one."""

    async def prove(request: Request) -> Identity:
        if wallet is None:
            raise Refusal(Problem(code=Code.AUTHENTICATION_REQUIRED, detail="No wallet was proved."))
        return Identity(address=wallet, method="session", chain_id=None)

    return prove


class NamedBooks:
    """The permissions to read the books of other wallets. `viewers`: pairs of a reader and a wallet that has named it."""

    def __init__(self, viewers: Collection[tuple[Address, Address]] = ()) -> None:
        self._viewers = viewers

    async def resolve_wallet(self, reader: Address, named: Address | None) -> Address:
        if named not in (None, reader) and (reader, named) not in self._viewers:
            raise Refusal(NOT_VIEWER)
        return named or reader


def find_asset_in(assets: Sequence[Asset]) -> FindAsset:
    return lambda chain_id, key: next(
        (asset for asset in assets if (asset.chain_id, asset.key) == (chain_id, key)), None
    )


async def stay_open(request: Request) -> bool:
    return True


async def is_protected(endpoint: Endpoint) -> bool:
    return False


async def read_no_heads(chain_ids: Sequence[ChainId]) -> HeadTimes:
    return NO_HEADS


async def no_calls(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotImplementedError


def code_of(answer: httpx.Response) -> str:
    assert answer.headers["content-type"] == "application/problem+json"
    code: str = answer.json()["code"]
    return code


def places_of(answer: httpx.Response) -> list[str]:
    return [error.get("pointer", error.get("parameter")) for error in answer.json()["errors"]]
