"""`/mcp` and `/mcp/{apiId}`: the ASGI application of MCP (streamable HTTP).

It checks the origin and the size of a request, loads the MCP server on the first one, and detects a disconnect of the client. The tools are in `mcp_tools`.
"""

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tollway.errors import Code, Problem
from tollway.web.api.auth_routes import client_address_of, read_body
from tollway.web.api.context import WebContext
from tollway.web.api.mcp_gateway import BufferedReceive, McpRequest
from tollway.web.http.json import check_json_limits
from tollway.web.http.problems import FORBIDDEN, instance_of, render_problem, request_id_of

if TYPE_CHECKING:
    from tollway.web.api.mcp_tools import McpServer

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


def mcp_router(context: WebContext) -> Router:
    """The two MCP routes as raw ASGI: the SDK reads the request and writes the response."""
    app = McpApp(context)
    return Router([Route(path, endpoint=app, methods=["POST"]) for path in ("/mcp", "/mcp/{apiId}")])


class McpApp:
    """The ASGI application of both paths. Between two requests it keeps only the loaded server."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._server: McpServer | None = None
        self._loading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if not is_origin_allowed(
            request.headers.get("origin"), own=self._context.public_url, others=self._context.mcp_origins
        ):
            await self._refuse_origin(scope, send)
            return
        body = await read_body(request, bytes_max=self._context.limits.control_body_bytes_max)
        check_json_limits(body)  # the SDK's parser relies on Python's recursion limit, which a library raises
        mcp_request = McpRequest(
            request=request,
            request_id=request_id_of(scope),
            client_address=client_address_of(request),
            disconnected=asyncio.Event(),
        )
        server = await self._open()
        api_id = scope["path_params"].get("apiId")
        api = None if api_id is None else await server.find_api(api_id)
        replay = BufferedReceive(body, mcp_request.disconnected).receive
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_wait_gone(receive, mcp_request.disconnected))
            try:
                if api is None:
                    await server.serve_gateway(mcp_request, scope, replay, send)
                else:
                    await server.serve_api(api, mcp_request, scope, replay, send)
            finally:
                watcher.cancel()

    async def _open(self) -> "McpServer":
        """The MCP server. The first request loads it in a thread, so that other requests continue."""
        if self._server is None:
            async with self._loading:
                if self._server is None:
                    self._server = await asyncio.to_thread(_load, self._context)
        return self._server

    async def _refuse_origin(self, scope: Scope, send: Send) -> None:
        status, headers, body = render_problem(
            _FOREIGN_ORIGIN,
            public_url=self._context.public_url,
            request_id=request_id_of(scope),
            instance=instance_of(scope),
            status=FORBIDDEN,
        )
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _load(context: WebContext) -> "McpServer":
    from tollway.web.api.mcp_tools import McpServer  # noqa: PLC0415 - the SDK takes a second and many MiB

    return McpServer(context)


async def _wait_gone(receive: Receive, disconnected: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    disconnected.set()


def is_origin_allowed(origin: str | None, *, own: str, others: frozenset[str]) -> bool:
    """Whether a page of this origin may use MCP. Clients that are no browsers send no origin.

    A page of another origin must not reach a gateway on the machine of its reader (DNS rebinding).
    """
    if origin is None or "*" in others or origin.lower() in others:
        return True
    here, there = urlsplit(own), _split(origin)
    if there is None:
        return False
    if here.hostname in _LOOPBACK:
        return there.hostname in _LOOPBACK
    return (there.scheme, there.hostname, _port(there)) == (here.scheme, here.hostname, _port(here))


def _split(origin: str) -> SplitResult | None:
    try:
        parts = urlsplit(origin)
        _ = parts.port
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") and parts.hostname else None


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


_FOREIGN_ORIGIN = Problem(
    code=Code.INVALID_REQUEST,
    detail="Pages of this origin may not use MCP. The operator can allow the origin (setting mcp_origins).",
    reason="origin",
)
