"""The ASGI middleware: the application sees only requests that the gateway forwarded for this provider, with their whole body."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.kit.forwarded_requests import (
    AUTHORITY,
    BODY,
    NOW_S,
    PAYER,
    TARGET,
    KnownGateway,
    sign_forwarded,
)
from tollway.client.asgi import AsgiForwardedMiddleware
from tollway.client.provider import OPEN_PATHS
from tollway.gateway.request_signing import BodyCoverage, UpstreamSigner
from tollway.registry.ownership import WELL_KNOWN_PATH


class Api:
    """An ASGI application that records the calls that reach it."""

    def __init__(self) -> None:
        self.served: list[dict[str, Any]] = []
        self.started: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.started.append(scope["type"])
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.served.append({"body": body, "scope": scope})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})


class Provider:
    """An API behind the middleware, and the gateway that it knows."""

    def __init__(self, **options: Any) -> None:
        self.api = Api()
        self.gateway = KnownGateway()
        remember = options.pop("remember", None)
        verifier = self.gateway.open_verifier(remember=remember)
        self.app = AsgiForwardedMiddleware(self.api, verifier, **options)

    async def post(self, target: str = TARGET, *, headers: Any, content: Any = BODY) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url=f"https://{AUTHORITY}") as http:
            return await http.post(target, headers=headers, content=content)


@pytest.fixture
def provider() -> Provider:
    return Provider()


def check_refused(provider: Provider, response: httpx.Response, status: int, reason: str) -> None:
    assert (response.status_code, response.json()["code"]) == (status, reason)
    assert response.json()["status"] == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert ("www-authenticate" in response.headers) == (status == 401)
    assert ("retry-after" in response.headers) == (status == 503)
    assert provider.api.served == []


async def test_a_forwarded_call_reaches_the_application(provider: Provider) -> None:
    response = await provider.post(headers=sign_forwarded())
    assert response.text == "served"
    (served,) = provider.api.served
    forwarded = served["scope"]["tollway.forwarded"]
    assert (forwarded.call_id, forwarded.api_id, forwarded.payer) == ("call_1", "api_1", str(PAYER))
    assert served["body"] == BODY


@pytest.mark.parametrize(
    ("headers", "target", "content", "reason"),
    [
        ([], TARGET, BODY, "signature_missing"),
        ([("tollway-call-id", "call_1"), ("tollway-payer", str(PAYER))], TARGET, BODY, "signature_missing"),
        (sign_forwarded(), "/v1/quote?x=+a", BODY, "bad_signature"),
        (sign_forwarded(), "/v1/quot%65?x=%20a", BODY, "bad_signature"),
        (sign_forwarded(), "/v1/quote", BODY, "bad_signature"),
        (sign_forwarded(method="PUT"), TARGET, BODY, "bad_signature"),
        (sign_forwarded(authority="other.example.com"), TARGET, BODY, "bad_signature"),
        (sign_forwarded(api_id="api_2"), TARGET, BODY, "wrong_listing"),
        (sign_forwarded(created_s=NOW_S - 3_600), TARGET, BODY, "expired"),
        (sign_forwarded(created_s=NOW_S + 3_600), TARGET, BODY, "created_in_future"),
        (sign_forwarded(signer=UpstreamSigner.derive([b"\x09" * 32])), TARGET, BODY, "unknown_key"),
        (sign_forwarded(), TARGET, b'{"a":2}', "digest_mismatch"),
        (sign_forwarded(), TARGET, b"", "digest_mismatch"),
        (sign_forwarded(b""), TARGET, b"more", "body_not_covered"),
        (sign_forwarded(coverage=BodyCoverage(length=4)), TARGET, b"12345", "bad_signature"),
    ],
)
async def test_another_request_is_refused(provider: Provider, headers, target, content, reason) -> None:
    check_refused(provider, await provider.post(target, headers=headers, content=content), 401, reason)


async def test_a_body_whose_length_is_signed_is_counted(provider: Provider) -> None:
    """The header may name the signed length while more bytes arrive: the server counts nothing under HTTP/2."""
    head = [*sign_forwarded(coverage=BodyCoverage(length=4)), ("content-length", "4")]
    sent = await exchange(provider, head, [b"12", b"345"])
    assert (sent[0]["status"], b"length_mismatch" in sent[1]["body"]) == (401, True)
    await exchange(provider, head, [b"12", b"34"])
    assert [served["body"] for served in provider.api.served] == [b"1234"]


async def exchange(
    provider: Provider, head: list[tuple[str, str]], chunks: list[bytes], *, method: str = "POST"
) -> list[Any]:
    """The messages of the middleware for a request whose body arrives in these chunks."""
    path, _, query = TARGET.partition("?")
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in head],
    }
    unread = [
        {"type": "http.request", "body": chunk, "more_body": place < len(chunks) - 1}
        for place, chunk in enumerate(chunks)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return unread.pop(0) if unread else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await provider.app(scope, receive, send)
    return sent


async def test_a_client_that_leaves_gets_nothing_and_uses_no_nonce(provider: Provider) -> None:
    assert await exchange(provider, sign_forwarded(), []) == []
    assert (await provider.post(headers=sign_forwarded())).status_code == 200


async def test_a_refused_head_has_no_body(provider: Provider) -> None:
    start, body = await exchange(provider, [], [b""], method="HEAD")
    assert (start["status"], body["body"]) == (401, b"")


async def test_a_call_counts_once(provider: Provider) -> None:
    assert (await provider.post(headers=sign_forwarded())).status_code == 200
    again = await provider.post(headers=sign_forwarded())
    assert (again.status_code, again.json()["code"]) == (401, "replayed")
    assert len(provider.api.served) == 1


async def test_a_refused_copy_of_the_head_does_not_keep_the_call_out(provider: Provider) -> None:
    check_refused(
        provider, await provider.post(headers=sign_forwarded(), content=b"x"), 401, "digest_mismatch"
    )
    assert (await provider.post(headers=sign_forwarded())).status_code == 200


async def test_processes_can_share_the_memory_of_nonces() -> None:
    used: set[str] = set()

    def remember(nonce: str, forget_s: float) -> bool:
        is_new = nonce not in used
        used.add(nonce)
        return is_new

    first, second = Provider(remember=remember), Provider(remember=remember)
    assert (await first.post(headers=sign_forwarded())).status_code == 200
    check_refused(second, await second.post(headers=sign_forwarded()), 401, "replayed")


async def test_a_large_body_is_refused_before_it_is_kept() -> None:
    provider = Provider(body_bytes_max=10)
    body = b"x" * 11
    check_refused(
        provider, await provider.post(headers=sign_forwarded(body), content=body), 413, "body_too_large"
    )
    read: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(b"x" * 6)
            yield read[-1]

    response = await provider.post(headers=sign_forwarded(body), content=endless())
    check_refused(provider, response, 413, "body_too_large")
    assert len(read) == 2
    assert (await provider.post(headers=sign_forwarded(body[:10]), content=body[:10])).status_code == 200


async def test_without_the_keys_every_call_is_refused_for_a_while(provider: Provider) -> None:
    provider.gateway.signer = None
    response = await provider.post(headers=sign_forwarded())
    check_refused(provider, response, 503, "keys_unavailable")


async def test_an_open_path_needs_no_signature_and_names_no_call(provider: Provider) -> None:
    assert frozenset({WELL_KNOWN_PATH}) == OPEN_PATHS
    claimed = [
        ("Tollway-Payer", str(PAYER)),
        ("Tollway-Call-Id", "c"),
        ("Tollway-Api-Id", "a"),
        ("X-Own", "1"),
    ]
    assert (await provider.post(WELL_KNOWN_PATH, headers=claimed)).status_code == 200
    (served,) = provider.api.served
    names = {name.decode().lower() for name, _ in served["scope"]["headers"]}
    assert "x-own" in names
    assert not any(name.startswith("tollway-") for name in names)
    assert "tollway.forwarded" not in served["scope"]


@pytest.mark.parametrize("target", ["/healthz/x", "/a/healthz", "/healthzz", WELL_KNOWN_PATH])
async def test_only_the_very_path_is_open(target: str) -> None:
    provider = Provider(open_paths={"/healthz"})
    assert (await provider.post("/healthz", headers=[])).status_code == 200
    provider.api.served.clear()
    check_refused(provider, await provider.post(target, headers=[]), 401, "signature_missing")


async def test_a_web_socket_is_closed_and_the_lifespan_passes(provider: Provider) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await provider.app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    await provider.app({"type": "lifespan"}, receive, send)
    assert (sent, provider.api.started) == ([{"type": "websocket.close", "code": 1008}], ["lifespan"])


async def test_a_server_without_a_raw_path_loses_no_safety(provider: Provider) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await provider.app({**scope, "raw_path": None}, receive, send)

    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=f"https://{AUTHORITY}") as http:
        served = await http.post(TARGET, headers=sign_forwarded(), content=BODY)
        odd = sign_forwarded(target="/v1/quot%65?x=%20a", nonce="cd" * 16)
        refused = await http.post("/v1/quot%65?x=%20a", headers=odd, content=BODY)
    assert (served.status_code, refused.status_code) == (200, 401)


async def test_frameworks_take_it_as_any_middleware() -> None:
    async def quote(request: Request) -> JSONResponse:
        forwarded = request.scope["tollway.forwarded"]
        return JSONResponse({"payer": forwarded.payer, "body": await request.json()})

    app = Starlette(routes=[Route("/v1/quote", quote, methods=["POST"])])
    app.add_middleware(AsgiForwardedMiddleware, verifier=KnownGateway().open_verifier())
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url=f"https://{AUTHORITY}"
    ) as http:
        served = await http.post(TARGET, headers=sign_forwarded(), content=BODY)
        stranger = await http.post(TARGET, content=BODY)
    assert (served.json(), stranger.status_code) == ({"payer": str(PAYER), "body": {"a": 1}}, 401)
