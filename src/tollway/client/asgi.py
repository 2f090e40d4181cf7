"""An ASGI middleware for providers: it passes on only requests that the gateway forwarded for the provider's own listings.

    verifier = ForwardedVerifier("https://gateway.example.com", endpoint="https://api.example.com/v1", api_ids=["api_…"])
    app = AsgiForwardedMiddleware(app, verifier)                     # any ASGI application
    app.add_middleware(AsgiForwardedMiddleware, verifier=verifier)   # FastAPI, Starlette

The application finds the verified call in `scope["tollway.forwarded"]`: its id, its listing and the wallet that paid. The application runs after the
whole body has arrived and matches the signature. A refused request gets a problem document: 401, or 503 while the gateway's keys cannot be read.

The middleware must see the target as it is in the request line, so it stands before everything that rewrites paths.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import quote

from tollway.client.provider import (
    BODY_BYTES_MAX,
    FORWARDED_KEY,
    IDENTITY_HEADERS,
    OPEN_PATHS,
    Forwarded,
    ForwardedRefused,
    ForwardedVerifier,
    RefusedResponse,
)

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiReceive = Callable[[], Awaitable[AsgiMessage]]
AsgiSend = Callable[[AsgiMessage], Awaitable[None]]
AsgiApplication = Callable[[AsgiScope, AsgiReceive, AsgiSend], Awaitable[None]]

POLICY_VIOLATION = 1008
_PATH_SAFE = "/:@!$&'()*+,;=-._~"


class AsgiForwardedMiddleware:
    """Passes on forwarded requests and refuses all others. One verifier serves all requests of a process."""

    def __init__(
        self,
        app: AsgiApplication,
        verifier: ForwardedVerifier,
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        """`body_bytes_max`: of a body, which is kept in memory until it is checked. `open_paths`: decoded paths that need no signature; a request
        to them arrives without the headers that name a call."""
        self._app = app
        self._verifier = verifier
        self._body_bytes_max = body_bytes_max
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        match scope["type"]:
            case "lifespan":
                await self._app(scope, receive, send)
            case "http" if scope["path"] in self._open_paths:
                await self._app(_remove_identity(scope), receive, send)
            case "http":
                await self._serve(scope, receive, send)
            case _:  # the gateway forwards no upgrade
                await receive()
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})

    async def _serve(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        try:
            # In a thread, because the verifier may fetch the gateway's keys.
            forwarded = await asyncio.to_thread(
                self._verifier.verify_head, scope["method"], _read_target(scope), scope["headers"]
            )
            body = await self._read_body(receive)
            if body is None:
                return
            forwarded.check_body(body)
            await asyncio.to_thread(self._verifier.accept, forwarded)
        except ForwardedRefused as refused:
            await _send_refusal(RefusedResponse.build(refused), send, has_body=scope["method"] != "HEAD")
            return
        await self._pass_on(scope, receive, send, forwarded, body)

    async def _read_body(self, receive: AsgiReceive) -> bytes | None:
        """The whole body; None where the client has left. Raises ForwardedRefused above the maximum."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > self._body_bytes_max:
                raise ForwardedRefused(
                    "body_too_large", f"The body must have at most {self._body_bytes_max} bytes."
                )
            if not message.get("more_body", False):
                return bytes(body)

    async def _pass_on(
        self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend, forwarded: Forwarded, body: bytes
    ) -> None:
        unread: list[AsgiMessage] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_checked() -> AsgiMessage:
            return unread.pop() if unread else await receive()

        await self._app({**scope, FORWARDED_KEY: forwarded}, receive_checked, send)


def _read_target(scope: AsgiScope) -> str:
    """Path and query as in the request line. A server without `raw_path` gives only the decoded path: where its encoding was another one, the
    signature does not match and the request is refused."""
    raw_path = scope.get("raw_path")
    path = quote(scope["path"], safe=_PATH_SAFE) if raw_path is None else raw_path.decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


def _remove_identity(scope: AsgiScope) -> AsgiScope:
    headers = [
        (name, value)
        for name, value in scope["headers"]
        if name.decode("latin-1").lower() not in IDENTITY_HEADERS
    ]
    return {**scope, "headers": headers}


async def _send_refusal(response: RefusedResponse, send: AsgiSend, *, has_body: bool) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body if has_body else b""})
