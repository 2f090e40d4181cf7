"""The transport to a facilitator: bounded in time and size, without proxies and redirects, and without foreign error texts."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.kit.upstream import LoopbackUpstream, hang_up, plain, run_upstream, say_nothing
from tollway.errors import ChainUnavailable
from tollway.limits import DEFAULT_LIMITS, KIB
from tollway.payments.facilitator import HttpFacilitatorTransport

HEADERS = (("Authorization", "Bearer hush"),)


@pytest.fixture
async def upstream() -> AsyncIterator[LoopbackUpstream]:
    async with run_upstream() as upstream:
        yield upstream


@pytest.fixture
async def line() -> AsyncIterator[HttpFacilitatorTransport]:
    limits = replace(DEFAULT_LIMITS, facilitator_deadline_s=0.2, facilitator_answer_bytes_max=KIB)
    line = HttpFacilitatorTransport(limits=limits)
    await line.open()
    yield line
    await line.close()


async def test_posts_json_with_the_given_headers(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    upstream.answer = plain(b'{"isValid": true}')
    assert await line.post(upstream.url + "/verify", b"{}", headers=HEADERS) == b'{"isValid": true}'
    (arrived,) = upstream.arrived
    assert (arrived.method, arrived.target, bytes(arrived.body)) == ("POST", "/verify", b"{}")
    assert arrived.find("Authorization") == "Bearer hush"
    assert arrived.find("Content-Type") == "application/json"


async def test_returns_the_body_of_a_refusal(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    upstream.answer = plain(b'{"success": false}', status=402)
    assert await line.post(upstream.url, b"{}", headers=()) == b'{"success": false}'


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_a_server_error_raises(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, status: int
) -> None:
    upstream.answer = plain(b'{"isValid": true}', status=status)
    with pytest.raises(ChainUnavailable):
        await line.post(upstream.url, b"{}", headers=())
    with pytest.raises(ChainUnavailable):
        await line.fetch_status(upstream.url, headers=())


@pytest.mark.parametrize("status", [200, 204, 302, 401, 404])
async def test_fetch_status_returns_the_status_of_a_get(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, status: int
) -> None:
    upstream.answer = plain(b"", status=status)
    assert await line.fetch_status(upstream.url + "/supported", headers=HEADERS) == status
    (arrived,) = upstream.arrived
    assert (arrived.method, arrived.target) == ("GET", "/supported")
    assert arrived.find("Authorization") == "Bearer hush"


async def test_fetch_status_raises_without_a_response(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    for trouble in (hang_up, say_nothing):
        upstream.answer = trouble
        with pytest.raises(ChainUnavailable):
            await line.fetch_status(upstream.url, headers=())


async def test_follows_no_redirect_and_keeps_no_cookie(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream
) -> None:
    upstream.answer = plain(b"", status=307, headers=(f"Location: {upstream.url}/there", "Set-Cookie: a=b"))
    assert await line.post(upstream.url + "/here", b"{}", headers=()) == b""
    assert await line.post(upstream.url + "/here", b"{}", headers=()) == b""
    assert [arrived.target for arrived in upstream.arrived] == ["/here", "/here"]
    assert upstream.arrived[1].find("Cookie") is None


async def test_uses_no_proxy_of_the_environment(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert await line.post(upstream.url, b"{}", headers=()) == b"ok"


@pytest.mark.parametrize("size", [KIB, KIB + 1])
async def test_a_response_has_a_maximum_size(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, size: int
) -> None:
    upstream.answer = plain(b"x" * size)
    if size == KIB:
        assert len(await line.post(upstream.url, b"{}", headers=())) == KIB
        return
    with pytest.raises(ChainUnavailable):
        await line.post(upstream.url, b"{}", headers=())


@pytest.mark.parametrize("answer", [hang_up, say_nothing])
async def test_a_hanging_facilitator_is_unavailable_and_gets_one_request(
    line: HttpFacilitatorTransport, upstream: LoopbackUpstream, answer: object
) -> None:
    upstream.answer = answer  # type: ignore[assignment]  # one of the answerers
    with pytest.raises(ChainUnavailable) as told:
        await line.post(upstream.url, b"{}", headers=HEADERS)
    assert len(upstream.arrived) == 1
    assert "hush" not in str(told.value)
    assert upstream.url not in str(told.value)


async def test_a_refused_connection_is_unavailable(line: HttpFacilitatorTransport) -> None:
    with pytest.raises(ChainUnavailable):
        await line.post("http://127.0.0.1:9/verify", b"{}", headers=())
