"""The ASGI application: dispatches each request, and holds the list of the middleware of the control plane.

Gateway calls go to the raw call app and pass no framework; all other requests go to Starlette. This module does not depend on listings or payments.
"""

from collections.abc import Callable, Iterable, Sequence

from starlette.applications import Starlette
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from tollway.limits import Limits
from tollway.observability.telemetry import Metrics
from tollway.web.http.admission import LoadShedder
from tollway.web.http.loop_share import ControlPlaneShare
from tollway.web.http.middleware import (
    UNLIMITED_PATHS,
    AccessLog,
    BodyLimits,
    HeadWithoutBody,
    OverloadLimit,
    RequestHeadCheck,
    RequestId,
    ResponseHeaders,
    answer_preflight,
    is_preflight,
    parse_proxies,
)
from tollway.web.http.page_response import PrivateResponses
from tollway.web.http.problems import ChallengeHeaders, ErrorBoundary, RendersProblems, install_handlers
from tollway.web.http.read_turns import ReadLimit, ReadTurns

PAID_PREFIXES = ("/api/v2/gateway/", "/mcp", "/api/v2/channels/")
"""Calls, MCP (whose tools make calls), and refunds of payment channels (which send transactions): the paths that pay or settle."""

GATEWAY_PREFIX = b"/api/v2/gateway/"


def build_app(
    *,
    call_app: ASGIApp | None,
    routers: Sequence[Router],
    public_url: str,
    limits: Limits,
    clock: Callable[[], float],
    entropy: Callable[[int], bytes],
    shedder: LoadShedder,
    read_turns: ReadTurns | None = None,
    challenge: ChallengeHeaders | None = None,
    metrics: Metrics | None = None,
    trusted_proxies: Iterable[str] = (),
    problem_pages: RendersProblems | None = None,
) -> ASGIApp:
    """Builds the ASGI app of the whole service. `call_app` None: this process serves no calls. `routers` carry their full paths; `clock` is monotonic, in seconds. `problem_pages`: None where the gateway has no pages.
    `read_turns`: those that exports and agents take too; None: turns of their own."""
    control_plane = Starlette(routes=[route for router in routers for route in router.routes])
    control_plane.router.redirect_slashes = False  # the redirect would trust Host
    install_handlers(control_plane, public_url, challenge, problem_pages)

    app: ASGIApp = control_plane  # from the inside out:
    app = ReadLimit(app, turns=ReadTurns() if read_turns is None else read_turns)
    app = RequestHeadCheck(app, limits=limits, public_url=public_url)
    app = ControlPlaneShare(app, share=shedder.loop, unpaced=(*PAID_PREFIXES, *UNLIMITED_PATHS))
    app = OverloadLimit(app, shedder=shedder, public_url=public_url, metrics=metrics)
    app = BodyLimits(app, limits=limits, clock=clock, budget=shedder.bodies)
    app = HeadWithoutBody(app)
    app = ErrorBoundary(app, public_url=public_url)
    app = ResponseHeaders(app)
    app = PrivateResponses(app)
    app = AccessLog(app, clock=clock, metrics=metrics)
    app = RequestId(app, entropy=entropy, trusted_proxies=parse_proxies(trusted_proxies))
    return Dispatcher(
        call_app=app
        if call_app is None
        else ErrorBoundary(call_app, public_url=public_url, payment_state="held"),
        control_app=app,
        lifespan_app=control_plane,
    )


class Dispatcher:
    """Dispatches on the raw path. The server forwards no WebSocket; the dispatcher closes one that arrives all the same."""

    def __init__(self, *, call_app: ASGIApp, control_app: ASGIApp, lifespan_app: ASGIApp) -> None:
        self._call_app = call_app
        self._control_app = control_app
        self._lifespan_app = lifespan_app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
            if scope["method"] == "OPTIONS" and is_preflight(scope):
                await answer_preflight(scope, send)
            elif raw_path.startswith(GATEWAY_PREFIX) and scope["method"] != "CONNECT":
                await self._call_app(scope, receive, send)
            else:
                await self._control_app(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan_app(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1000})
