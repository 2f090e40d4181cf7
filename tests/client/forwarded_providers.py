"""An API behind the ASGI middleware, and one behind the WSGI middleware, each with the gateway that it knows."""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic_core import from_json

from tests.kit.forwarded_requests import AUTHORITY, BODY, TARGET, KnownGateway, Pairs
from tollway.client.asgi import AsgiForwardedMiddleware
from tollway.client.wsgi import WsgiForwardedMiddleware


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request that reached the application. `names`: of its headers, in lower case."""

    body: bytes
    names: frozenset[str]
    forwarded: Any
    environ: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        return from_json(self.body) if self.status >= 400 else {}

    @property
    def code(self) -> object:
        return self.problem.get("code")


class AsgiProvider:
    """`started`: the types of the connections that reached the application."""

    def __init__(self, **options: Any) -> None:
        self.served: list[Served] = []
        self.started: list[str] = []
        self.gateway = KnownGateway()
        verifier = self.gateway.open_verifier(remember=options.pop("remember", None))
        self.app = AsgiForwardedMiddleware(self._serve, verifier, **options)

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        self.started.append(scope["type"])
        if scope["type"] != "http":
            return
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body += message.get("body", b"")
            is_whole = not message.get("more_body")
        names = frozenset(name.decode().lower() for name, _ in scope["headers"])
        forwarded = scope.get("tollway.forwarded")
        self.served.append(Served(body=body, names=names, forwarded=forwarded, environ=scope))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})

    async def post(
        self, target: str = TARGET, *, headers: Pairs, content: Any = BODY, method: str = "POST"
    ) -> Reply:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{AUTHORITY}") as http:
            got = await http.request(method, target, headers=headers, content=content)
        return Reply(status=got.status_code, headers=dict(got.headers), body=got.content)


class WsgiProvider:
    def __init__(self, **options: Any) -> None:
        self.served: list[Served] = []
        self.gateway = KnownGateway()
        verifier = self.gateway.open_verifier(remember=options.pop("remember", None))
        self.app = WsgiForwardedMiddleware(self._serve, verifier, **options)

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        names = frozenset(
            name.removeprefix("HTTP_").replace("_", "-").lower()
            for name in environ
            if name.startswith("HTTP_")
        )
        forwarded = environ.get("tollway.forwarded")
        self.served.append(Served(body=body, names=names, forwarded=forwarded, environ=environ))
        start_response("200 OK", [])
        return [b"served"]

    async def post(
        self,
        target: str = TARGET,
        *,
        headers: Pairs,
        content: bytes = BODY,
        method: str = "POST",
        **environ: Any,
    ) -> Reply:
        """`environ`: changes; None removes a member."""
        path, _, query = target.partition("?")
        request: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "RAW_URI": target,
            "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": io.BytesIO(content),
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers},
            **environ,
        }
        heads: list[tuple[str, Pairs]] = []
        present = {name: value for name, value in request.items() if value is not None}
        chunks = self.app(present, lambda status, headers: heads.append((status, headers)))
        ((status, fields),) = heads
        return Reply(status=int(status.partition(" ")[0]), headers=dict(fields), body=b"".join(chunks))


Provider = AsgiProvider | WsgiProvider
