import asyncio
import hashlib

import aiohttp
import pytest

from tollway.sandbox.provider import run_provider

NOW = 1_767_225_600.25  # 2026-01-01T00:00:00.250Z


@pytest.fixture
async def provider():
    async with run_provider(clock=lambda: NOW) as provider:
        yield provider


@pytest.fixture
async def http(provider):
    async with aiohttp.ClientSession(provider.base_url, auto_decompress=False) as session:
        yield session


async def send_raw(provider, head: bytes) -> bytes:
    """A request that no client library has tidied up."""
    port = int(provider.base_url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_quote_is_the_same_for_a_symbol_and_a_moment(http):
    async with http.get("/quote/eth") as one, http.get("/quote/ETH") as same, http.get("/quote/BTC") as other:
        quote = await one.json()
        assert await same.json() == quote
        assert (await other.json())["price"] != quote["price"]
    assert quote["symbol"] == "ETH"
    assert quote["currency"] == "USD"
    assert quote["time"] == "2026-01-01T00:00:00.000Z"
    assert float(quote["price"]) > 0


async def test_a_file_that_was_put_there_is_answered_at_its_path_alone(provider, http):
    provider.put_file("/.well-known/word", "the word\n")
    async with http.get("/.well-known/word") as there, http.get("/.well-known/words") as beside:
        assert (there.status, await there.text(), beside.status) == (200, "the word\n", 404)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"])
async def test_echo_returns_the_received_request(http, method):
    body = b"\x00binary\xff" * 10_000
    async with http.request(method, "/echo?a=1&a=2", data=body, headers={"X-Twice": "1"}) as response:
        told = await response.json()
    assert (told["method"], told["target"]) == (method, "/echo?a=1&a=2")
    assert ["X-Twice", "1"] in told["headers"]
    assert told["body"] == {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


async def test_echo_keeps_the_path_byte_for_byte_and_repeated_headers(provider):
    head = b"GET /echo/a%2fb//%E2%82%ac/../x?q=%20+ HTTP/1.1\r\nHost: x\r\nx-a: 1\r\nX-A: 2\r\nConnection: close\r\n\r\n"
    answer = await send_raw(provider, head)
    assert b'"target": "/echo/a%2fb//%E2%82%ac/../x?q=%20+"' in answer
    assert b'["x-a", "1"], ["X-A", "2"]' in answer


async def test_stream_sends_each_event_when_it_happens(http):
    async with http.get("/stream?count=2&interval=300") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        first = await response.content.readuntil(b"\n\n")
    assert first.startswith(b'id: 1\nevent: tick\ndata: {"number": 1, "of": 2, ')


async def test_stream_ends_after_its_last_event(http):
    async with http.get("/stream?count=3&interval=0") as response:
        assert (await response.read()).count(b"event: tick") == 3


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_status_answers_with_that_status(http, method):
    for status in (200, 201, 204, 205, 299, 302, 304, 401, 402, 404, 418, 429, 500, 503, 599):
        async with http.request(method, f"/status/{status}", allow_redirects=False) as response:
            assert response.status == status
            assert bool(await response.read()) is (status not in (204, 205, 304)), status
            assert ("Location" in response.headers) is (status == 302), status


async def test_slow_answers_after_its_time(http):
    async with http.get("/slow?seconds=0.001") as response:
        assert await response.json() == {"seconds": 0.001}
    with pytest.raises(TimeoutError):
        await http.get("/slow?seconds=300", timeout=aiohttp.ClientTimeout(total=0.05))


@pytest.mark.parametrize("amount", [0, 1, 65_536, 3_000_001])
async def test_bytes_returns_the_requested_number(http, amount):
    async with http.get(f"/bytes/{amount}") as response:
        assert int(response.headers["Content-Length"]) == amount
        body = await response.read()
    assert body == (bytes(range(256)) * (amount // 256 + 1))[:amount]


async def test_bytes_of_four_gibibytes_are_not_made_before_they_are_read(http):
    async with http.get(f"/bytes/{4 * 1024**3}") as response:
        assert int(response.headers["Content-Length"]) == 4 * 1024**3
        assert len(await response.content.readexactly(1_000_000)) == 1_000_000
    async with http.head(f"/bytes/{4 * 1024**3}") as response:
        assert await response.read() == b""


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/nothing", 404),
        ("/quote", 404),
        ("/quote/ETH/more", 404),
        ("/quote/E%20H", 400),
        ("/quote/ABCDEFGHIJKLM", 400),
        ("/status/199", 400),
        ("/status/600", 400),
        ("/status/2x0", 400),
        ("/status/٢٠٠", 400),
        ("/stream?count=-1", 400),
        ("/stream?count=10001", 400),
        ("/stream?interval=NaN", 400),
        ("/slow?seconds=", 400),
        ("/slow?seconds=301", 400),
        ("/slow?seconds=1e2", 400),
        ("/bytes/4294967297", 400),
        ("/bytes/01", 400),
        ("/bytes/-1", 400),
    ],
)
async def test_bad_input_gets_a_problem(http, target, status):
    async with http.get(target) as response:
        assert response.status == status
        assert response.content_type == "application/problem+json"
        problem = await response.json()
    assert problem["status"] == status
    assert problem["detail"]


async def test_only_echo_and_status_take_other_methods(http):
    async with http.post("/quote/ETH") as response:
        assert response.status == 405


async def test_log_counts_every_received_request(provider, http):
    for target in ("/quote/ETH", "/quote/ETH?x=1", "/nothing", "/status/500"):
        async with http.get(target):
            pass
    async with http.get("/log") as response:
        log = await response.json()
    assert log["total"] == provider.seen_total == 4
    assert log["counts"] == {"GET /quote/ETH": 2, "GET /nothing": 1, "GET /status/500": 1}
    assert log["latest"][1] == {"method": "GET", "target": "/quote/ETH?x=1"}
    assert provider.count("/quote/ETH") == 2
    assert provider.count("/quote/ETH", method="POST") == 0


async def test_ends_while_answers_are_under_way():
    async with aiohttp.ClientSession() as session:
        async with run_provider() as provider:
            response = await session.get(provider.base_url + "/stream?count=2&interval=300")
            await response.content.readuntil(b"\n\n")
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(provider.base_url)


async def test_a_taken_port_is_an_error():
    async with run_provider() as provider:
        with pytest.raises(OSError, match="address already in use"):
            async with run_provider(port=int(provider.base_url.rpartition(":")[2])):
                pass
