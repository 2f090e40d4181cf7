"""The wallet of the demo: a page of this gateway gets signatures of the process that made the key. The key is in no page, no file and no setting.

Only `tollway demo` gives such a wallet to a gateway, and only a gateway whose networks are all the sandbox takes it (`app.page_wiring`). The demo prints a link with a token in its fragment, which
no server and no log receives. The page exchanges the token, once, for a session of its tab, and each request of the wallet shows that session.
"""

import base64
import hmac
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tollway.errors import Code, Problem, Refusal
from tollway.ids import Address, ChainId
from tollway.web.api.auth_routes import read_body
from tollway.web.http.json import encode_visible_json, parse_json_object
from tollway.web.http.page_response import PageResponse
from tollway.web.pages.page_session import is_from_origin
from tollway.web.pages.renderer import CACHE_NEVER

SESSION_PATH, REQUEST_PATH = "/my/demo-wallet/session", "/my/demo-wallet"
FRAGMENT = "#demo-wallet="
SECRET_BYTES = 32
SESSIONS_MAX = 16
BODY_BYTES_MAX = 16_384


class WalletRefused(Exception):
    """The wallet does not sign or send this; the text says why."""


class DemoSigner(Protocol):
    """A wallet of the sandbox. `respond`: the result of an EIP-1193 method; raises `WalletRefused`."""

    @property
    def address(self) -> Address: ...

    @property
    def chain_id(self) -> ChainId: ...

    async def respond(self, method: str, params: Sequence[object]) -> object: ...


class DemoWallet:
    """The tokens and sessions of a demo's wallet, kept as hashes in memory. `on_opened` is called after each use of a token, which makes it void."""

    def __init__(self, signer: DemoSigner, *, entropy: Callable[[int], bytes]) -> None:
        self.signer = signer
        self.on_opened: Callable[[], None] = lambda: None
        self._entropy = entropy
        self._token: bytes | None = None
        self._sessions: deque[bytes] = deque(maxlen=SESSIONS_MAX)

    def make_fragment(self) -> str:
        """The end of a link that opens the wallet once. It makes the link before void."""
        token = self._make_secret()
        self._token = _hash(token)
        return FRAGMENT + token

    def open_session(self, token: str) -> str | None:
        """The secret of a new session; None unless the token is that of the last link, unused. The oldest session ends beyond `SESSIONS_MAX`."""
        if self._token is None or not hmac.compare_digest(_hash(token), self._token):
            return None
        self._token = None
        session = self._make_secret()
        self._sessions.append(_hash(session))
        self.on_opened()
        return session

    def has_session(self, session: str) -> bool:
        given = _hash(session)
        return any(hmac.compare_digest(given, known) for known in self._sessions)

    def _make_secret(self) -> str:
        return base64.urlsafe_b64encode(self._entropy(SECRET_BYTES)).rstrip(b"=").decode()


def _hash(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


# ---- The routes.


def demo_wallet_router(wallet: DemoWallet, *, origins: Sequence[str]) -> Router:
    routes = _DemoRoutes(wallet, origins)
    return Router(
        [
            Route(SESSION_PATH, routes.open_session, methods=["POST"]),
            Route(REQUEST_PATH, routes.respond, methods=["POST"]),
        ]
    )


@dataclass(frozen=True, slots=True)
class _DemoRoutes:
    """The paths are below `/my`, so no response and no preflight of them has CORS headers. No cookie is read."""

    wallet: DemoWallet
    origins: Sequence[str]

    async def open_session(self, request: Request) -> Response:
        given = await self._read(request)
        token = given.get("token")
        session = self.wallet.open_session(token) if isinstance(token, str) else None
        if session is None:
            raise Refusal(_NO_TOKEN)
        signer = self.wallet.signer
        return _respond({"session": session, "address": str(signer.address), "chainId": signer.chain_id})

    async def respond(self, request: Request) -> Response:
        given = await self._read(request)
        session, method, params = given.get("session"), given.get("method"), given.get("params")
        if not isinstance(session, str) or not self.wallet.has_session(session):
            raise Refusal(_NO_SESSION)
        if not isinstance(method, str) or not isinstance(params, list):
            raise Refusal(_refuse("A request of the wallet has `method` (a text) and `params` (an array)."))
        try:
            return _respond({"result": await self.wallet.signer.respond(method, params)})
        except WalletRefused as refused:
            raise Refusal(_refuse(str(refused))) from refused

    async def _read(self, request: Request) -> dict[str, object]:
        """The JSON of a page of this gateway. Raises Refusal for every other sender."""
        if not is_from_origin(request, self.origins):
            raise Refusal(_refuse("The demo's wallet serves pages of this gateway alone."))
        return parse_json_object(await read_body(request, bytes_max=BODY_BYTES_MAX))


def _respond(content: dict[str, object]) -> Response:
    headers = {"Cache-Control": CACHE_NEVER, "Cross-Origin-Resource-Policy": "same-origin"}
    return PageResponse(encode_visible_json(content), media_type="application/json", headers=headers)


def _refuse(detail: str) -> Problem:
    return Problem(code=Code.INVALID_REQUEST, detail=detail, reason="demo_wallet_refused")


_NO_TOKEN = Problem(
    code=Code.SESSION_EXPIRED,
    detail="This link has opened the demo's wallet once, or it is of an earlier demo. Open the newest link in the demo's terminal.",
)
_NO_SESSION = Problem(
    code=Code.SESSION_EXPIRED,
    detail="The session of the demo's wallet has ended. Open the newest link in the demo's terminal.",
)
