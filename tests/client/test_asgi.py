"""The ASGI middleware alone. What both middlewares hold is in `test_forwarded_middleware.py`."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.client.forwarded_providers import AsgiProvider
from tests.kit.forwarded_requests import AUTHORITY, BODY, PAYER, TARGET, KnownGateway, Pairs, sign_forwarded
from tollway.client.asgi import AsgiForwardedMiddleware
from tollway.gateway.request_signing import BodyCoverage


async def exchange(provider: AsgiProvider, head: Pairs, chunks: list[bytes]) -> list[Any]:
    """The messages of the middleware for a request whose body arrives in these chunks."""
    path, _, query = TARGET.partition("?")
    scope = {
        "type": "http",
        "method": "POST",
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


async def test_a_body_whose_length_is_signed_is_counted() -> None:
    """The header may name the signed length while more bytes arrive: the server counts nothing under HTTP/2."""
    provider = AsgiProvider()
    head = [*sign_forwarded(coverage=BodyCoverage(length=4)), ("content-length", "4")]
    sent = await exchange(provider, head, [b"12", b"345"])
    assert (sent[0]["status"], b"length_mismatch" in sent[1]["body"]) == (401, True)
    await exchange(provider, head, [b"12", b"34"])
    assert [served.body for served in provider.served] == [b"1234"]


async def test_a_client_that_leaves_gets_nothing_and_uses_no_nonce() -> None:
    provider = AsgiProvider()
    assert await exchange(provider, sign_forwarded(), []) == []
    assert (await provider.post(headers=sign_forwarded())).status == 200


async def test_a_large_body_is_refused_before_it_is_read() -> None:
    provider, read = AsgiProvider(body_bytes_max=10), []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            read.append(b"x" * 6)
            yield read[-1]

    reply = await provider.post(headers=sign_forwarded(b"x" * 11), content=endless())
    assert (reply.status, reply.code, len(read), provider.served) == (413, "body_too_large", 2, [])


async def test_a_web_socket_is_closed_and_the_lifespan_passes() -> None:
    provider, sent = AsgiProvider(), []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await provider.app({"type": "websocket", "path": "/", "headers": []}, receive, send)
    await provider.app({"type": "lifespan"}, receive, send)
    assert (sent, provider.started) == ([{"type": "websocket.close", "code": 1008}], ["lifespan"])


async def test_a_server_without_a_raw_path_loses_no_safety() -> None:
    provider = AsgiProvider()

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
