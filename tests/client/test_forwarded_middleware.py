"""Both middlewares: the application sees only requests that the gateway forwarded for this provider, with their whole body."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.client.forwarded_providers import AsgiProvider, Provider, Reply, WsgiProvider
from tests.kit.forwarded_requests import BODY, NOW_S, PAYER, TARGET, sign_forwarded
from tollway.client.provider import OPEN_PATHS
from tollway.gateway.request_signing import BodyCoverage, UpstreamSigner
from tollway.registry.ownership import WELL_KNOWN_PATH

Make = Callable[..., Provider]


@pytest.fixture(params=[AsgiProvider, WsgiProvider], ids=["asgi", "wsgi"])
def make(request: pytest.FixtureRequest) -> Make:
    make: Make = request.param
    return make


@pytest.fixture
def provider(make: Make) -> Provider:
    return make()


def check_refused(provider: Provider, reply: Reply, status: int, reason: str) -> None:
    assert (reply.status, reply.code, reply.problem.get("status")) == (status, reason, status)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["content-length"] == str(len(reply.body))
    assert reply.headers["cache-control"] == "no-store"
    assert ("www-authenticate" in reply.headers) == (status == 401)
    assert reply.headers.get("retry-after") == ("5" if status == 503 else None)
    assert provider.served == []


async def test_a_forwarded_call_reaches_the_application(provider: Provider) -> None:
    assert (await provider.post(headers=sign_forwarded())).body == b"served"
    (served,) = provider.served
    forwarded = served.forwarded
    assert (forwarded.call_id, forwarded.api_id, forwarded.payer) == ("call_1", "api_1", str(PAYER))
    assert served.body == BODY


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
        ([*sign_forwarded(payer=None), ("tollway-payer", str(PAYER))], TARGET, BODY, "payer_not_covered"),
    ],
)
async def test_another_request_is_refused(
    provider: Provider, headers: Any, target: str, content: bytes, reason: str
) -> None:
    check_refused(provider, await provider.post(target, headers=headers, content=content), 401, reason)


async def test_a_call_counts_once(provider: Provider) -> None:
    assert (await provider.post(headers=sign_forwarded())).status == 200
    again = await provider.post(headers=sign_forwarded())
    assert (again.status, again.code) == (401, "replayed")
    assert len(provider.served) == 1


async def test_a_refused_copy_of_the_head_does_not_keep_the_call_out(provider: Provider) -> None:
    refused = await provider.post(headers=sign_forwarded(), content=b"x")
    check_refused(provider, refused, 401, "digest_mismatch")
    assert (await provider.post(headers=sign_forwarded())).status == 200


async def test_processes_can_share_the_memory_of_nonces(make: Make) -> None:
    used: set[str] = set()

    def remember(nonce: str, forget_s: float) -> bool:
        is_new = nonce not in used
        used.add(nonce)
        return is_new

    first, second = make(remember=remember), make(remember=remember)
    assert (await first.post(headers=sign_forwarded())).status == 200
    check_refused(second, await second.post(headers=sign_forwarded()), 401, "replayed")


async def test_a_large_body_is_refused(make: Make) -> None:
    provider, body = make(body_bytes_max=10), b"x" * 11
    refused = await provider.post(headers=sign_forwarded(body), content=body)
    check_refused(provider, refused, 413, "body_too_large")
    assert (await provider.post(headers=sign_forwarded(body[:10]), content=body[:10])).status == 200


async def test_without_the_keys_every_call_is_refused_for_a_while(provider: Provider) -> None:
    provider.gateway.signer = None
    check_refused(provider, await provider.post(headers=sign_forwarded()), 503, "keys_unavailable")


async def test_an_open_path_needs_no_signature_and_names_no_call(provider: Provider) -> None:
    assert frozenset({WELL_KNOWN_PATH}) == OPEN_PATHS
    claimed = [
        ("Tollway-Payer", str(PAYER)),
        ("Tollway-Call-Id", "c"),
        ("Tollway-Api-Id", "a"),
        ("X-Own", "1"),
    ]
    assert (await provider.post(WELL_KNOWN_PATH, headers=claimed)).status == 200
    (served,) = provider.served
    assert "x-own" in served.names
    assert not any(name.startswith("tollway-") for name in served.names)
    assert served.forwarded is None


@pytest.mark.parametrize("target", ["/healthz/x", "/a/healthz", "/healthzz", WELL_KNOWN_PATH])
async def test_only_the_very_path_is_open(make: Make, target: str) -> None:
    provider = make(open_paths={"/healthz"})
    assert (await provider.post("/healthz", headers=[])).status == 200
    provider.served.clear()
    check_refused(provider, await provider.post(target, headers=[]), 401, "signature_missing")


async def test_a_refused_head_has_no_body(provider: Provider) -> None:
    reply = await provider.post(headers=[], method="HEAD")
    assert (reply.status, reply.body, int(reply.headers["content-length"]) > 0) == (401, b"", True)
