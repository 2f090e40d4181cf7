"""The WSGI middleware: the application sees only requests that the gateway forwarded for this provider, with their whole body."""

import io
from collections.abc import Iterable
from typing import Any

import pytest
from pydantic_core import from_json

from tests.kit.forwarded_requests import BODY, NOW_S, PAYER, TARGET, KnownGateway, Pairs, sign_forwarded
from tollway.client.provider import OPEN_PATHS
from tollway.client.wsgi import WsgiForwardedMiddleware
from tollway.gateway.request_signing import BodyCoverage, UpstreamSigner


class Reply:
    """What a WSGI server would send."""

    def __init__(self, status: str, headers: Pairs, body: bytes) -> None:
        self.status = int(status.partition(" ")[0])
        self.headers = dict(headers)
        self.body = body

    @property
    def code(self) -> object:
        return from_json(self.body)["code"]


class WsgiProvider:
    """A WSGI application behind the middleware. `served`: the environments that reached it, with their bodies."""

    def __init__(self, **options: Any) -> None:
        self.served: list[dict[str, Any]] = []
        self.gateway = KnownGateway()
        verifier = self.gateway.open_verifier(remember=options.pop("remember", None))
        self.app = WsgiForwardedMiddleware(self._serve, verifier, **options)

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        self.served.append({**environ, "body": body})
        start_response("200 OK", [])
        return [b"served"]

    def post(self, target: str = TARGET, *, headers: Pairs, content: bytes = BODY, **environ: Any) -> Reply:
        """`environ`: changes; None removes a member."""
        path, _, query = target.partition("?")
        request: dict[str, Any] = {
            "REQUEST_METHOD": "POST",
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
        return Reply(*heads[0], b"".join(chunks))


@pytest.fixture
def provider() -> WsgiProvider:
    return WsgiProvider()


def check_refused(provider: WsgiProvider, reply: Reply, status: int, reason: str) -> None:
    assert (reply.status, reply.code) == (status, reason)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["content-length"] == str(len(reply.body))
    assert ("www-authenticate" in reply.headers) == (status == 401)
    assert provider.served == []


def test_a_forwarded_call_reaches_the_application(provider: WsgiProvider) -> None:
    assert provider.post(headers=sign_forwarded()).body == b"served"
    (served,) = provider.served
    forwarded = served["tollway.forwarded"]
    assert (forwarded.call_id, forwarded.api_id, forwarded.payer) == ("call_1", "api_1", str(PAYER))
    assert served["body"] == BODY


@pytest.mark.parametrize(
    ("headers", "target", "content", "reason"),
    [
        ([], TARGET, BODY, "signature_missing"),
        ([("tollway-call-id", "call_1"), ("tollway-payer", str(PAYER))], TARGET, BODY, "signature_missing"),
        (sign_forwarded(), "/v1/quote?x=+a", BODY, "bad_signature"),
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
def test_another_request_is_refused(provider: WsgiProvider, headers, target, content, reason) -> None:
    check_refused(provider, provider.post(target, headers=headers, content=content), 401, reason)


def test_a_body_that_ends_early_is_refused(provider: WsgiProvider) -> None:
    headers = sign_forwarded(coverage=BodyCoverage(length=4))
    reply = provider.post(headers=headers, content=b"123", CONTENT_LENGTH="4")
    check_refused(provider, reply, 401, "length_mismatch")


@pytest.mark.parametrize("length", ["-1", "x", "+7", "\u0667", "\u00b2"])
def test_a_length_that_is_no_number_is_refused(provider: WsgiProvider, length: str) -> None:
    check_refused(provider, provider.post(headers=sign_forwarded(), CONTENT_LENGTH=length), 401, "malformed")


def test_a_chunked_body_is_read_where_the_server_ends_it(provider: WsgiProvider) -> None:
    ended = {"CONTENT_LENGTH": None, "wsgi.input_terminated": True}
    assert provider.post(headers=sign_forwarded(), **ended).body == b"served"
    (served,) = provider.served
    assert (served["body"], served["CONTENT_LENGTH"]) == (BODY, str(len(BODY)))


def test_a_body_without_a_length_is_no_body(provider: WsgiProvider) -> None:
    check_refused(
        provider, provider.post(headers=sign_forwarded(), CONTENT_LENGTH=None), 401, "digest_mismatch"
    )


def test_a_call_counts_once(provider: WsgiProvider) -> None:
    assert provider.post(headers=sign_forwarded()).status == 200
    assert provider.post(headers=sign_forwarded()).code == "replayed"
    assert len(provider.served) == 1


def test_a_refused_copy_of_the_head_does_not_keep_the_call_out(provider: WsgiProvider) -> None:
    check_refused(provider, provider.post(headers=sign_forwarded(), content=b"x"), 401, "digest_mismatch")
    assert provider.post(headers=sign_forwarded()).status == 200


def test_a_large_body_is_refused_before_it_is_kept() -> None:
    provider = WsgiProvider(body_bytes_max=10)
    body, content = b"x" * 11, io.BytesIO(b"x" * 1_000)
    claimed = {"CONTENT_LENGTH": "1000", "wsgi.input": content}
    check_refused(provider, provider.post(headers=sign_forwarded(body), **claimed), 413, "body_too_large")
    assert content.tell() == 11
    assert provider.post(headers=sign_forwarded(body[:10]), content=body[:10]).status == 200


def test_without_the_keys_every_call_is_refused_for_a_while(provider: WsgiProvider) -> None:
    provider.gateway.signer = None
    reply = provider.post(headers=sign_forwarded())
    check_refused(provider, reply, 503, "keys_unavailable")
    assert reply.headers["retry-after"] == "5"


def test_an_open_path_needs_no_signature_and_names_no_call(provider: WsgiProvider) -> None:
    (path,) = OPEN_PATHS
    claimed = [
        ("Tollway-Payer", str(PAYER)),
        ("Tollway-Call-Id", "c"),
        ("Tollway-Api-Id", "a"),
        ("X-Own", "1"),
    ]
    assert provider.post(path, headers=claimed).status == 200
    (served,) = provider.served
    assert served["HTTP_X_OWN"] == "1"
    assert not any(name.startswith("HTTP_TOLLWAY") for name in served)
    assert "tollway.forwarded" not in served


def test_a_refused_head_has_no_body(provider: WsgiProvider) -> None:
    reply = provider.post(headers=[], REQUEST_METHOD="HEAD")
    assert (reply.status, reply.body, int(reply.headers["content-length"]) > 0) == (401, b"", True)


def test_only_the_very_path_is_open() -> None:
    provider = WsgiProvider(open_paths={"/healthz"})
    check_refused(provider, provider.post("/healthz/x", headers=[]), 401, "signature_missing")
    assert provider.post("/healthz", headers=[]).status == 200


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"RAW_URI": None, "REQUEST_URI": TARGET}, 200),
        ({"RAW_URI": None, "REQUEST_URI": f"http://127.0.0.1:8000{TARGET}"}, 200),
        ({"RAW_URI": None}, 200),
        ({"RAW_URI": None, "SCRIPT_NAME": "/v1", "PATH_INFO": "/quote"}, 200),
        ({"RAW_URI": None, "PATH_INFO": "/v1/other"}, 401),
    ],
)
def test_the_target_is_that_of_the_request_line(provider: WsgiProvider, environ, status: int) -> None:
    assert provider.post(headers=sign_forwarded(), **environ).status == status
