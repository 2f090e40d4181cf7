"""Problems: one status for each code, RFC 9457 bodies, and an answer for every kind of failure."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import http_sf
import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from structlog.testing import capture_logs

import tollway
from tollway.errors import Code, FieldError, Problem, Refusal, StorageUnavailable, describe_rate
from tollway.web.http.problems import (
    PROBLEM_KINDS,
    install_handlers,
    problem_type,
    render_problem,
    split_code,
    status_of,
)

PUBLIC_URL = "https://gw.example.com"

STATUSES = {
    400: "invalid_request payment_malformed",
    401: "authentication_required invalid_signature signature_expired nonce_reused session_expired conflicting_identities",
    402: "payment_required payment_expired payment_method_unsupported payment_settlement_failed "
    "payment_insufficient payment_verification_failed",
    403: "payer_mismatch payer_in_debt budget_exceeded wallet_blocked not_provider not_viewer ownership_unverified",
    404: "api_not_found call_not_found payment_not_found route_not_found webhook_not_found budget_not_found",
    405: "method_not_allowed",
    409: "payment_already_used payment_too_old payment_held payment_pending idempotency_in_progress already_exists "
    "webhook_limit_reached call_not_refundable refund_transfer_used",
    410: "api_retired",
    412: "precondition_failed price_above_max",
    413: "payload_too_large",
    415: "unsupported_media_type",
    422: "validation_failed endpoint_not_allowed idempotency_key_reused refund_transfer_refused",
    429: "rate_limited failed_call_budget_exhausted",
    500: "internal_error",
    502: "upstream_unreachable upstream_bad_response upstream_payment_required",
    503: "payment_outcome_unknown chain_unavailable storage_unavailable api_paused upstream_unavailable overloaded "
    "channel_busy",
    504: "upstream_timeout",
    508: "loop_detected",
}


def render(problem: Problem) -> tuple[int, dict[str, str], dict[str, object]]:
    status, headers, body = render_problem(
        problem, public_url=PUBLIC_URL, request_id="req_12345678", instance="/api/v2/apis"
    )
    return status, {name.decode(): value.decode() for name, value in headers}, json.loads(body)


def test_every_code_has_exactly_the_status_of_the_contract() -> None:
    told = {Code(code): status for status, codes in STATUSES.items() for code in codes.split()}
    assert {code: status_of(code) for code in Code} == told
    assert set(PROBLEM_KINDS) == set(Code)


def test_body_carries_every_standing_member() -> None:
    status, headers, body = render(Problem(code=Code.API_NOT_FOUND, detail="No such API."))
    assert status == 404
    assert body == {
        "type": "https://gw.example.com/problems/api-not-found",
        "title": "API not found",
        "status": 404,
        "detail": "No such API.",
        "instance": "/api/v2/apis",
        "code": "api_not_found",
        "requestId": "req_12345678",
        "retryable": False,
        "paymentState": "none",
    }
    assert headers["content-type"] == "application/problem+json"
    assert headers["cache-control"] == "no-store"


def test_extra_members_are_returned_and_never_replace_the_fixed_ones() -> None:
    _, _, body = render(
        Problem(
            code=Code.PAYMENT_ALREADY_USED,
            detail="Spent.",
            reason="exhausted",
            call_id="call_1",
            payment_state="charged",
            errors=(FieldError(code="range", detail="too much", pointer="/a"),),
            members={"status": 200, "debt": "0.01"},
        )
    )
    assert body["status"] == 409
    assert body["debt"] == "0.01"
    assert body["reason"] == "exhausted"
    assert body["callId"] == "call_1"
    assert body["paymentState"] == "charged"
    assert body["errors"] == [{"pointer": "/a", "code": "range", "detail": "too much"}]


TRANSIENT = [code for code in Code if status_of(code) in (429, 503)]


def test_has_retry_after_on_every_429_and_503() -> None:
    failing = []
    for code in TRANSIENT:
        _, headers, body = render(Problem(code=code, detail="wait"))
        found = (headers.get("retry-after"), body["retryable"])
        if found != (str(body["retryAfterSeconds"]), True):
            failing.append((code, found))
    assert failing == []


def test_a_refusal_that_time_does_not_end_has_no_retry_after() -> None:
    failing = []
    for code in TRANSIENT:
        _, headers, body = render(Problem(code=code, detail="no", retry_after_s=7, is_lasting=True))
        if "retry-after" in headers or "retryAfterSeconds" in body or body["retryable"] is not False:
            failing.append(code)
    assert failing == []


SOURCES = Path(tollway.__file__).parent
WAITING = re.compile(r"again (later|after)|later, or|\blater\.|after Retry-After", re.IGNORECASE)


def find_problems() -> Iterator[tuple[str, dict[str, ast.expr]]]:
    """The arguments of each `Problem(…)` of the package, with its place."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("Problem", "refuse")
            ):
                given = {word.arg: word.value for word in node.keywords if word.arg is not None}
                yield f"{path.relative_to(SOURCES)}:{node.lineno}", given


def test_no_refusal_that_time_does_not_end_asks_to_wait() -> None:
    """Read from the source, because a text is put together where it is raised."""
    seen = 0
    for place, given in find_problems():
        code, detail = given.get("code"), given.get("detail")
        is_named = (
            isinstance(code, ast.Attribute) and isinstance(code.value, ast.Name) and code.value.id == "Code"
        )
        if not is_named or detail is None:
            continue
        assert isinstance(code, ast.Attribute)
        if PROBLEM_KINDS[Code[code.attr]].is_retryable and "is_lasting" not in given:
            continue
        words = [part.value for part in ast.walk(detail) if isinstance(part, ast.Constant)]
        assert not [text for text in words if isinstance(text, str) and WAITING.search(text)], place
        delay = given.get("retry_after_s")  # a payment that a running call holds has one on a condition
        assert delay is None or isinstance(delay, ast.IfExp), place
        seen += 1
    assert seen > 60


def test_pending_payment_asks_to_wait_as_long_as_the_problem_says() -> None:
    _, headers, body = render(Problem(code=Code.PAYMENT_PENDING, detail="not yet", retry_after_s=7))
    assert (headers["retry-after"], body["retryAfterSeconds"]) == ("7", 7)


RATE_CODES = frozenset(STATUSES[429].split())


@pytest.mark.parametrize("code", sorted(RATE_CODES))
@pytest.mark.parametrize(
    ("limit", "window_s", "wait_s"), [(1, 1, 1), (60, 60, 59), (1_000_000, 86_400, 86_400)]
)
def test_the_three_headers_of_a_rate_say_the_same(code: str, limit: int, window_s: int, wait_s: int) -> None:
    problem = Problem(
        code=Code(code),
        detail="Too many.",
        retry_after_s=wait_s,
        members=describe_rate("some-rate", limit=limit, window_s=window_s),
    )
    status, headers, body = render_problem(problem, public_url=PUBLIC_URL, request_id="r", instance="/x")
    told = {
        name.decode(): http_sf.parse(value, tltype="list") for name, value in headers if b"ratelimit" in name
    }
    assert status == 429
    assert told["ratelimit-policy"] == [("some-rate", {"q": limit, "w": window_s})]
    assert told["ratelimit"] == [("some-rate", {"r": 0, "t": wait_s})]
    assert dict(headers)[b"retry-after"] == str(wait_s).encode()
    assert json.loads(body)["retryAfterSeconds"] == wait_s


def test_rate_limit_headers_come_from_the_members() -> None:
    _, headers, _ = render(
        Problem(
            code=Code.RATE_LIMITED,
            detail="slow down",
            retry_after_s=30,
            members=describe_rate("registrations", limit=100, window_s=3600),
        )
    )
    assert headers["ratelimit-policy"] == '"registrations";q=100;w=3600'
    assert headers["ratelimit"] == '"registrations";r=0;t=30'


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("plain", [("plain", False)]),
        ("`a` and `b`.", [("a", True), (" and ", False), ("b", True), (".", False)]),
        ("an open ` mark", [("an open ` mark", False)]),
        ("``", [("``", False)]),
        ("`two\nlines`", [("`two\nlines`", False)]),
        ("`<script>`", [("<script>", True)]),  # a part is no markup: the page escapes it
    ],
)
def test_code_stands_between_backticks(text: str, parts: list[tuple[str, bool]]) -> None:
    assert split_code(text) == parts


def test_type_uses_dashes() -> None:
    assert problem_type(Code.PRICE_ABOVE_MAX, public_url=PUBLIC_URL).endswith("/problems/price-above-max")


def make_app() -> Starlette:
    async def read(request: Request) -> JSONResponse:
        return JSONResponse({"number": request.path_params["number"]})

    async def refuse(_request: Request) -> JSONResponse:
        raise Refusal(Problem(code=Code.AUTHENTICATION_REQUIRED, detail="Prove a wallet."))

    async def away(_request: Request) -> JSONResponse:
        raise StorageUnavailable

    async def bug(_request: Request) -> JSONResponse:
        raise RuntimeError("password=hunter2")

    async def challenge(request: Request) -> list[tuple[str, str]]:
        return [("WWW-Authenticate", "Bearer"), ("WWW-Authenticate", "SIWX")]

    app = Starlette(
        routes=[
            Route("/api/v2/things/{number}", read, methods=["GET"]),
            Route("/api/v2/things/{number}", read, methods=["PUT"]),
            Route("/api/v2/refuse", refuse, methods=["GET"]),
            Route("/api/v2/away", away, methods=["GET"]),
            Route("/api/v2/bug", bug, methods=["GET"]),
        ]
    )
    app.router.redirect_slashes = False
    install_handlers(app, PUBLIC_URL, challenge=challenge)
    return app


async def ask(method: str, path: str, **more: object) -> httpx.Response:
    transport = httpx.ASGITransport(make_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://gw") as client:
        return await client.request(method, path, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "route_not_found"),
        ("GET", "/api/v2/things/1/", 404, "route_not_found"),
        ("POST", "/api/v2/things/1", 405, "method_not_allowed"),
        ("BREW", "/api/v2/things/1", 405, "method_not_allowed"),
        ("GET", "/api/v2/refuse", 401, "authentication_required"),
        ("GET", "/api/v2/away", 503, "storage_unavailable"),
        ("GET", "/api/v2/bug", 500, "internal_error"),
    ],
)
async def test_every_failure_is_a_problem(method: str, path: str, status: int, code: str) -> None:
    answer = await ask(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == code
    assert answer.json()["instance"] == path


async def test_405_names_the_methods_of_every_route_at_that_path() -> None:
    answer = await ask("DELETE", "/api/v2/things/1")
    assert answer.headers["allow"] == "GET, HEAD, PUT"


async def test_401_carries_the_challenge_and_nothing_else_does() -> None:
    assert (await ask("GET", "/api/v2/refuse")).headers.get_list("www-authenticate") == ["Bearer", "SIWX"]
    assert "www-authenticate" not in (await ask("GET", "/nowhere")).headers


async def test_a_defect_is_logged_once_with_its_traceback_and_never_returned() -> None:
    with capture_logs() as logs:
        answer = await ask("GET", "/api/v2/bug")
    assert "hunter2" not in answer.text
    assert [entry["event"] for entry in logs] == ["unhandled_error"]
    assert isinstance(logs[0]["exc_info"], RuntimeError)


async def test_instance_shows_the_path_as_it_was_sent_without_its_query() -> None:
    answer = await ask("GET", "/no%2Fwhere/%C3%A9?secret=1")
    assert answer.json()["instance"] == "/no%2Fwhere/%C3%A9"
