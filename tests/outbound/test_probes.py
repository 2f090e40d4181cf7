"""Requests of the gateway itself to a provider's server."""

import socket
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tollway.errors import EndpointNotAllowed, UpstreamBadResponse, UpstreamUnreachable
from tollway.limits import DEFAULT_LIMITS
from tollway.outbound.client import HttpClient
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.outbound.probes import DOCUMENT_BYTES_MAX, Fetcher


@pytest.fixture
async def server() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        status = int(request.match_info["status"])
        headers = {"Location": "/200"} if status == 302 else {}
        return web.Response(status=status, headers=headers, body=b"x" * int(request.query.get("size", "4")))

    app = web.Application()
    app.router.add_get("/{status}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[Fetcher]:
    http_client = HttpClient(limits=DEFAULT_LIMITS, allow_private=True)
    yield Fetcher(http_client)
    await http_client.close()


@pytest.fixture
def nobody() -> str:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def endpoint_of(url: str) -> Endpoint:
    endpoint = parse_endpoint(url, allow_private=True)
    assert isinstance(endpoint, Endpoint)
    return endpoint


async def test_a_document_comes_whole(fetcher: Fetcher, server: str) -> None:
    assert await fetcher.fetch_document(server + "/200") == b"xxxx"


@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("/404", "responded with status 404"),
        ("/302", "responded with status 302 and the location /200"),
        ("/500", "responded with status 500"),
        (f"/200?size={DOCUMENT_BYTES_MAX + 1}", f"is larger than {DOCUMENT_BYTES_MAX} bytes"),
    ],
)
async def test_no_document_is_a_failure_with_its_cause_and_no_redirect_is_followed(
    fetcher: Fetcher, server: str, path: str, cause: str
) -> None:
    with pytest.raises(UpstreamBadResponse, match=cause):
        await fetcher.fetch_document(server + path)


async def test_a_url_that_may_not_be_dialled_is_refused(fetcher: Fetcher) -> None:
    with pytest.raises(EndpointNotAllowed):
        await fetcher.fetch_document("file:///etc/passwd")


async def test_a_server_that_is_not_there_is_unreachable(fetcher: Fetcher, nobody: str) -> None:
    with pytest.raises(UpstreamUnreachable):
        await fetcher.fetch_document(nobody + "/openapi.json")


@pytest.mark.parametrize(("status", "is_unprotected"), [(200, True), (204, True), (401, False), (404, False)])
async def test_an_endpoint_that_answers_without_the_secret_is_unprotected(
    fetcher: Fetcher, server: str, status: int, is_unprotected: bool
) -> None:
    assert await fetcher.is_unprotected(endpoint_of(f"{server}/{status}")) is is_unprotected


async def test_an_unreachable_endpoint_does_not_count_as_unprotected(fetcher: Fetcher, nobody: str) -> None:
    assert not await fetcher.is_unprotected(endpoint_of(nobody))
