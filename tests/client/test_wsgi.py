"""The WSGI middleware alone. What both middlewares hold is in `test_forwarded_middleware.py`."""

import io
from typing import Any

import pytest

from tests.client.forwarded_providers import WsgiProvider
from tests.kit.forwarded_requests import BODY, TARGET, sign_forwarded
from tollway.gateway.request_signing import BodyCoverage


@pytest.fixture
def provider() -> WsgiProvider:
    return WsgiProvider()


async def test_a_body_that_ends_early_is_refused(provider: WsgiProvider) -> None:
    headers = sign_forwarded(coverage=BodyCoverage(length=4))
    reply = await provider.post(headers=headers, content=b"123", CONTENT_LENGTH="4")
    assert (reply.status, reply.code, provider.served) == (401, "length_mismatch", [])


@pytest.mark.parametrize(
    ("length", "code"),
    [
        *((text, "malformed") for text in ("-1", "x", "+7", "\u0667", "\u00b2")),
        (None, "digest_mismatch"),
    ],
)
async def test_a_body_without_a_length_that_is_a_number_is_refused(
    provider: WsgiProvider, length: str | None, code: str
) -> None:
    """Without one there is no body."""
    reply = await provider.post(headers=sign_forwarded(), CONTENT_LENGTH=length)
    assert (reply.status, reply.code, provider.served) == (401, code, [])


async def test_a_chunked_body_is_read_where_the_server_ends_it(provider: WsgiProvider) -> None:
    ended: dict[str, Any] = {"CONTENT_LENGTH": None, "wsgi.input_terminated": True}
    assert (await provider.post(headers=sign_forwarded(), **ended)).body == b"served"
    (served,) = provider.served
    assert (served.body, served.environ["CONTENT_LENGTH"]) == (BODY, str(len(BODY)))


async def test_no_more_of_a_large_body_is_read_than_the_maximum() -> None:
    provider, content = WsgiProvider(body_bytes_max=10), io.BytesIO(b"x" * 1_000)
    claimed: dict[str, Any] = {"CONTENT_LENGTH": "1000", "wsgi.input": content}
    reply = await provider.post(headers=sign_forwarded(b"x" * 11), **claimed)
    assert (reply.code, content.tell(), provider.served) == ("body_too_large", 11, [])


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
async def test_the_target_is_that_of_the_request_line(
    provider: WsgiProvider, environ: dict[str, Any], status: int
) -> None:
    assert (await provider.post(headers=sign_forwarded(), **environ)).status == status
