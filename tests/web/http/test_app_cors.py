"""CORS: every origin may read every response, without credentials, for all headers of the upstream. A matrix of
origins, methods and kinds of response. Source: Fetch §3.2; the HTTP contract, "Gateway call"."""

from collections.abc import AsyncIterator

import pytest

from tests.kit.asgi_exchange import Exchange
from tests.kit.gateway import InProcessGateway
from tests.kit.upstream import plain, run_upstream
from tollway.gateway.headers import EXPOSED_HEADERS
from tollway.limits import Limits
from tollway.money import Price

ORIGINS = (
    "https://app.example",
    "http://localhost:3000",
    "null",
    "https://evil.example",
    "chrome-extension://abc",
    "",
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
CREDENTIALS = "access-control-allow-credentials"
FREE = Price.parse("0")


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with run_upstream() as upstream:
        gateway = InProcessGateway(upstream, limits=Limits(free_calls_per_minute=1_000))
        try:
            yield gateway
        finally:
            await gateway.http_client.close()


def check_open_to_all(answer: Exchange, name: object) -> None:
    assert answer.headers["access-control-allow-origin"] == "*", name  # `headers` refuses a repeated header
    assert CREDENTIALS not in answer.headers, name


@pytest.mark.parametrize("origin", ORIGINS)
async def test_every_response_allows_any_origin_without_credentials(
    gateway: InProcessGateway, origin: str
) -> None:
    await gateway.publish()
    await gateway.publish("api_free", price=FREE)
    for method in METHODS:
        for listing, statuses in (("api_quotes", {402}), ("api_free", {200}), ("api_nowhere", {404})):
            answer = await gateway.ask(method, "/q", [("Origin", origin)], listing=listing)
            name = (method, listing)
            assert answer.status in statuses, name
            check_open_to_all(answer, name)
            assert answer.headers["access-control-expose-headers"] == EXPOSED_HEADERS, name


HOSTILE = (
    "Access-Control-Allow-Origin: https://evil.example",
    "Access-Control-Allow-Credentials: true",
    "Access-Control-Expose-Headers: Set-Cookie",
    "Access-Control-Allow-Origin: null",
)


async def test_cors_headers_of_an_upstream_are_replaced(gateway: InProcessGateway) -> None:
    await gateway.publish(price=FREE)
    gateway.upstream.answer = plain(b"hello", headers=HOSTILE)
    answer = await gateway.ask("GET", "/q", [("Origin", "https://evil.example")])
    assert (answer.status, answer.body) == (200, b"hello")
    check_open_to_all(answer, "hostile")
    assert answer.headers["access-control-expose-headers"] == EXPOSED_HEADERS


REQUESTED = (
    "x-payment-tx, x-signature",
    "authorization",
    "idempotency-key,payment-signature",
    "*",
    "",
    "x" * 3_000,
    "a\x01b",
    "a;b",
    "é",
)


@pytest.mark.parametrize("requested", REQUESTED)
async def test_a_preflight_is_free_reaches_no_upstream_and_echoes_only_plain_names(
    gateway: InProcessGateway, requested: str
) -> None:
    await gateway.publish()
    for origin in ORIGINS:
        for method in (*METHODS, "BREW", "x y"):
            for listing in ("api_quotes", "api_nowhere"):
                headers = [("Origin", origin), ("Access-Control-Request-Method", method)]
                headers += [
                    ("Access-Control-Request-Headers", requested),
                    ("Cookie", "a=b"),
                    ("X-Payment-Tx", "junk"),
                ]
                answer = gateway.open("OPTIONS", "/q", headers, listing=listing)
                await gateway.app(answer.scope, answer.receive, answer.send)
                name = (origin, method, listing)
                assert (answer.status, answer.body) == (204, b""), name
                check_open_to_all(answer, name)
                allowed = answer.headers["access-control-allow-headers"]
                assert allowed in (requested, "*"), name
                assert allowed.isascii(), name
                assert allowed.isprintable(), name
                assert len(allowed) <= 2_048, name
    assert not gateway.upstream.arrived
    assert gateway.outcomes == []


async def test_options_without_origin_or_requested_method_is_a_call(gateway: InProcessGateway) -> None:
    await gateway.publish()
    for headers in ([], [("Origin", "https://a.example")], [("Access-Control-Request-Method", "GET")]):
        assert (await gateway.ask("OPTIONS", "/q", headers)).status == 402
