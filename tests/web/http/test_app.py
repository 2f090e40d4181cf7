"""The ASGI app as a whole: the dispatch of requests, and the headers of every response."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs

from tollway.limits import Limits
from tollway.observability.telemetry import Metrics
from tollway.web.http.admission import LoadShedder
from tollway.web.http.app import build_app

PUBLIC_URL = "https://gw.example.com"


async def call_app(scope: Scope, receive: Receive, send: Send) -> None:
    if b"bug" in scope["raw_path"]:
        raise RuntimeError("in the passage")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-by", b"call")]})
    await send({"type": "http.response.body", "body": scope["raw_path"]})


def roomy_gauge(**changes: int) -> LoadShedder:
    return LoadShedder(limits=Limits(**changes), clock=lambda: 0.0, read_memory_bytes=lambda: 0)


def make_app(
    metrics: Metrics | None = None,
    limits: Limits | None = None,
    shedder: LoadShedder | None = None,
    note: Callable[[], None] = lambda: None,
) -> ASGIApp:
    async def list_apis(request: Request) -> JSONResponse:
        return JSONResponse({"method": request.method, "client": request.state.client_address})

    async def create(request: Request) -> JSONResponse:
        return JSONResponse({"bytes": len(await request.body())})

    async def show(request: Request) -> JSONResponse:
        note()
        return JSONResponse({"id": request.path_params["api_id"]})

    async def bug(_request: Request) -> JSONResponse:
        raise RuntimeError("oh")

    router = Router(
        [
            Route("/api/v2/apis", list_apis, methods=["GET"]),
            Route("/api/v2/apis", create, methods=["POST"]),
            Route("/api/v2/apis/{api_id}", show, methods=["GET"]),
            Route("/api/v2/bug", bug, methods=["GET"]),
            Route("/my/bug", bug, methods=["GET"]),
        ]
    )

    ticks = itertools.count()
    return build_app(
        call_app=call_app,
        routers=[router],
        public_url=PUBLIC_URL,
        limits=limits or Limits(),
        clock=lambda: next(ticks) / 1000,
        entropy=lambda size: bytes(range(size)),
        shedder=shedder or roomy_gauge(),
        metrics=metrics,
        trusted_proxies=("10.0.0.0/8",),
    )


async def ask(method: str, path: str, app: ASGIApp | None = None, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app or make_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
        return await client.request(method, path, **more)


@pytest.mark.parametrize(
    ("method", "path", "status", "by_call"),
    [
        ("GET", "/api/v2/apis", 200, False),
        ("GET", "/api/v2/apis/", 404, False),
        ("GET", "/api/v2/apis/api_1", 200, False),
        ("GET", "/api/v2/gateway/api_1", 200, True),
        ("BREW", "/api/v2/gateway/api_1/%2e%2e/x", 200, True),
        ("OPTIONS", "/api/v2/gateway/api_1", 200, True),
        ("GET", "/api/v2/gateway", 404, False),
        ("GET", "/api/v2/%67ateway/api_1", 404, False),
        ("GET", "/api/v2/gatewayx/api_1", 404, False),
        ("GET", "/api/v1/apis", 404, False),
        ("GET", "/docs", 404, False),
        ("GET", "/openapi.json", 404, False),
        ("PATCH", "/api/v2/apis", 405, False),
        ("CONNECT", "/api/v2/gateway/api_1", 400, False),
    ],
)
async def test_dispatches_gateway_calls_by_the_raw_path(
    method: str, path: str, status: int, by_call: bool
) -> None:
    answer = await ask(method, path)
    assert answer.status_code == status
    assert ("x-by" in answer.headers) is by_call
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_gateway_call_keeps_its_path_byte_for_byte() -> None:
    assert (await ask("GET", "/api/v2/gateway/a/%2Fb//c")).content == b"/api/v2/gateway/a/%2Fb//c"


@pytest.mark.parametrize(("path", "state"), [("/api/v2/gateway/bug", "held"), ("/api/v2/bug", None)])
async def test_an_exception_in_either_app_is_one_log_line_and_a_problem(path: str, state: str | None) -> None:
    """A call may have been claimed before its app failed, so its answer says that the price may be held."""
    with capture_logs() as logs:
        answer = await ask("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    assert answer.headers.get("tollway-payment-state") == state
    assert answer.json()["paymentState"] == (state or "none")
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["unhandled_error"]


async def test_a_failed_private_page_has_no_cors_header() -> None:
    answer = await ask("GET", "/my/bug", headers={"Origin": "https://other.example"})
    assert answer.status_code == 500
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert (await ask("GET", "/api/v2/bug")).headers["access-control-allow-origin"] == "*"


async def test_every_get_route_answers_head_without_a_body() -> None:
    answer = await ask("HEAD", "/api/v2/apis")
    same = await ask("GET", "/api/v2/apis")
    assert answer.status_code == 200
    assert answer.content == b""
    assert "content-length" in answer.headers
    assert same.json()["method"] == "GET"
    assert (await ask("HEAD", "/nowhere")).content == b""


async def test_a_405_lists_head() -> None:
    assert (await ask("DELETE", "/api/v2/apis")).headers["allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("path", ["/api/v2/apis", "/nowhere", "/api/v2/bug"])
async def test_every_response_has_its_id_cors_and_security_headers(path: str) -> None:
    answer = await ask("GET", path, headers={"origin": "https://app.example"})
    assert answer.headers["x-request-id"] == "req_" + bytes(range(12)).hex()
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "PAYMENT-REQUIRED" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert len(answer.headers.get_list("access-control-allow-origin")) == 1
    assert len(answer.headers.get_list("x-request-id")) == 1


@pytest.mark.parametrize(
    ("given", "is_recorded"),
    [("abcdefgh", True), ("a.b-c_d1", True), ("short", False), ("a" * 65, False), ("with space", False), ("ab\tcdefgh", False)],
)  # fmt: skip
async def test_a_valid_request_id_is_kept(given: str, is_recorded: bool) -> None:
    answer = await ask("GET", "/nowhere", headers={"x-request-id": given})
    assert (answer.headers["x-request-id"] == given) is is_recorded
    assert answer.json()["requestId"] == answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/api/v2/apis", "/api/v2/gateway/api_1", "/nowhere"])
async def test_a_preflight_is_answered_free(path: str) -> None:
    answer = await ask(
        "OPTIONS",
        path,
        headers={
            "origin": "https://app.example",
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-payment-tx, x-signature",
        },
    )
    assert answer.status_code == 204
    assert answer.headers["access-control-allow-headers"] == "x-payment-tx, x-signature"
    assert "POST" in answer.headers["access-control-allow-methods"]


async def test_one_log_line_without_query_or_header_values() -> None:
    with capture_logs() as logs:
        await ask("GET", "/api/v2/apis?key=hush", headers={"authorization": "Bearer hush"})
    (line,) = logs
    assert (line["event"], line["method"], line["path"], line["status"]) == (
        "request",
        "GET",
        "/api/v2/apis",
        200,
    )
    assert "hush" not in repr(line)


async def test_metrics_are_labelled_by_route_and_never_by_path() -> None:
    metrics = Metrics(CollectorRegistry())
    app = make_app(metrics)
    await ask("GET", "/api/v2/apis/api_1", app)
    await ask("BREW", "/very/unknown", app)
    text = generate_latest(metrics.registry).decode()
    assert 'http_route="/api/v2/apis/{api_id}"' in text
    assert 'http_request_method="_OTHER",http_response_status_code="404",http_route="unmatched"' in text
    assert "very/unknown" not in text
    assert "BREW" not in text


async def test_lifespan_events_reach_the_framework() -> None:
    sent: list[str] = []
    incoming = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(incoming)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await make_app()({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_websocket_is_closed() -> None:
    sent: list[str] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await make_app()({"type": "websocket", "path": "/api/v2/apis"}, receive, send)
    assert sent == ["websocket.close"]


async def test_a_full_gateway_refuses_with_a_delay_and_answers_health_checks() -> None:
    shedder = roomy_gauge(in_flight_max=2)
    app = make_app(shedder=shedder)
    assert shedder.enter("10.0.0.1") is None
    answer = await ask("POST", "/api/v2/apis", app, content=b"x" * 1_000)
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == str(answer.json()["retryAfterSeconds"])
    assert answer.headers["x-request-id"] == answer.json()["requestId"]
    assert shedder.running == 1
    assert (
        await ask("GET", "/healthz", app)
    ).status_code == 404  # passes the limit; this app has no such route
    shedder.leave("10.0.0.1")
    assert (await ask("GET", "/api/v2/apis", app)).status_code == 200
    assert shedder.running == 0


async def test_a_health_check_waits_for_no_share_of_the_event_loop() -> None:
    shedder = roomy_gauge()
    app = make_app(shedder=shedder)
    shedder.loop.calls += 1
    shedder.loop.spend(1.0)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(ask("GET", "/api/v2/apis", app))
        assert (await ask("GET", "/healthz", app)).status_code == 404  # this app has no such route
        assert not waiting.done()
        waiting.cancel()


async def test_limits_concurrent_requests_of_an_address_on_the_control_plane() -> None:
    shedder = roomy_gauge(in_flight_per_address_max=1)
    app = make_app(shedder=shedder)
    shedder.enter("127.0.0.1")
    answer = await ask("GET", "/api/v2/apis", app)
    assert (answer.status_code, answer.json()["reason"]) == (503, "address")
    proxied = {"x-forwarded-for": "203.0.113.9"}
    assert (await ask("GET", "/api/v2/apis", app, headers=proxied)).status_code == 503


async def test_an_exception_releases_the_slot_of_its_request() -> None:
    shedder = roomy_gauge()
    await ask("GET", "/api/v2/bug", make_app(shedder=shedder))
    assert shedder.running == 0


async def test_requests_of_the_control_plane_begin_one_by_one() -> None:
    turn, begun = 0, []
    app = make_app(note=lambda: begun.append(turn))

    async def ask_and_stop() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(ask("GET", f"/api/v2/apis/api_{number}", app))
        counting.cancel()

    async with asyncio.TaskGroup() as group:
        group.create_task(ask_and_stop())

        async def count_turns() -> None:
            nonlocal turn
            while True:
                await asyncio.sleep(0)
                turn += 1

        counting = group.create_task(count_turns())
    assert begun == sorted(set(begun))
    assert len(begun) == 10
