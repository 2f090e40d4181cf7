"""An internal call: what it takes from the MCP request, what it leaves out, and how its response is collected."""

import asyncio
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from tests.kit.mcp import mcp_request
from tests.kit.waits import bounded
from tollway.discovery.requests import ToolRequest
from tollway.errors import Refusal
from tollway.ids import ListingId
from tollway.web.api.mcp_gateway import McpRequest, make_internal_call

API = ListingId("api_1")


class RecordingApp:
    """An ASGI application that records its request and sends a given response."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages
        self.scope: Scope = {}
        self.body = b""
        self.saw_the_caller_leave = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.body = (await receive())["body"]
        for message in self.messages:
            await send(message)

    @property
    def headers(self) -> dict[str, str]:
        pairs = [(name.decode(), value.decode()) for name, value in self.scope["headers"]]
        assert len({name for name, _ in pairs}) == len(pairs), "doubled"
        return dict(pairs)


def start(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def piece(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def make(
    app: Any,
    request: ToolRequest | None = None,
    at: McpRequest | None = None,
    bytes_max: int = 100,
    **controls: str,
) -> Any:
    return await make_internal_call(
        app,
        API,
        request or ToolRequest(method="GET", rest="/v1", query="a=1"),
        controls=controls.items(),
        mcp_request=at or mcp_request(),
        bytes_max=bytes_max,
    )


async def test_the_internal_request_equals_one_over_http() -> None:
    app = RecordingApp(start(), piece(b"ok"))
    sent = ToolRequest(
        method="POST", rest="/v1/a%2Fb", query="a=1", headers=(("Content-Type", "text/csv"),), body=b"x;y"
    )
    await make(app, sent, mcp_request(("host", "gw.example.com")))
    scope = app.scope
    assert (scope["method"], scope["raw_path"]) == ("POST", b"/api/v2/gateway/api_1/v1/a%2Fb")
    assert scope["query_string"] == b"a=1"
    assert app.body == b"x;y"
    assert app.headers == {
        "content-type": "text/csv",
        "host": "gw.example.com",
        "x-request-id": "req_12345678",
        "accept": "application/json, */*;q=0.8",
        "accept-encoding": "identity",
        "content-length": "3",
    }


async def test_takes_address_trace_and_loop_header_of_the_mcp_request_only() -> None:
    app = RecordingApp(start(), piece(b""))
    outer = mcp_request(
        ("user-agent", "agent/1"),
        ("traceparent", "00-aa-bb-01"),
        ("cdn-loop", "other.example"),
        ("x-forwarded-for", "198.51.100.1"),
        ("authorization", "Bearer secret"),
        ("cookie", "a=b"),
        ("payment-signature", "x"),
        ("x-payment-tx", "0x1"),
        ("idempotency-key", "k"),
        ("content-type", "application/json"),
        client="192.0.2.7",
    )
    await make(app, at=outer)
    assert app.scope["client"] == ("192.0.2.7", 0)
    assert app.headers.keys() - {"accept", "accept-encoding"} == {
        *("host", "user-agent", "traceparent", "cdn-loop", "x-request-id")
    }


@pytest.mark.parametrize(
    "name",
    [
        "X-Payment-Tx",
        "PAYMENT-SIGNATURE",
        "Host",
        "Cookie",
        "Tollway-Max-Price",
        "Idempotency-Key",
        "Transfer-Encoding",
        "X-Forwarded-For",
    ],
)
async def test_an_argument_never_becomes_a_control_header(name: str) -> None:
    app = RecordingApp(start(), piece(b""))
    await make(app, ToolRequest(method="GET", rest="", headers=((name, "x"),)))
    assert app.headers.get(name.lower()) == ("gw.example.com" if name == "Host" else None)


async def test_an_argument_replaces_a_header_of_the_mcp_request() -> None:
    app = RecordingApp(start(), piece(b""))
    sent = ToolRequest(method="GET", rest="", headers=(("Accept-Language", "de"), ("Accept", "text/csv")))
    await make(app, sent, mcp_request(("accept-language", "en")))
    assert (app.headers["accept-language"], app.headers["accept"]) == ("de", "text/csv")


async def test_controls_become_headers() -> None:
    app = RecordingApp(start(), piece(b""))
    await make(app, **{"x-payment-tx": "0x1"})
    assert app.headers["x-payment-tx"] == "0x1"


async def test_the_answer_is_collected_in_pieces() -> None:
    app = RecordingApp(
        start((b"ETag", b"1"), (b"link", b"a"), (b"link", b"b"), status=201),
        piece(b"a", more=True),
        piece(b"b"),
    )
    answer = await make(app)
    assert (answer.status, answer.headers, answer.body) == (201, {"etag": "1", "link": "a, b"}, b"ab")
    assert answer.is_whole


@pytest.mark.parametrize(
    ("pieces", "is_whole", "is_too_large"),
    [
        ([piece(b"x" * 100)], True, False),
        ([piece(b"x" * 101)], False, True),
        ([piece(b"x" * 60, more=True), piece(b"x" * 60)], False, True),
        ([piece(b"x" * 60, more=True)], False, False),
        ([], False, False),
    ],
)
async def test_a_too_large_or_incomplete_response_is_not_whole(
    pieces: list[dict[str, Any]], is_whole: bool, is_too_large: bool
) -> None:
    answer = await make(RecordingApp(start(), *pieces))
    assert (answer.is_whole, answer.is_too_large) == (is_whole, is_too_large)
    assert answer.body == b"" or not is_too_large


async def test_a_too_large_response_disconnects() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(start())
        await send(piece(b"x" * 200, more=True))
        assert (await receive())["type"] == "http.disconnect"

    assert (await make(endless)).is_too_large


async def test_a_disconnect_of_the_mcp_request_disconnects_the_internal_call() -> None:
    left = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        left.set()
        await send(start())

    here = mcp_request()
    async with asyncio.TaskGroup() as group:
        group.create_task(make(waiting, at=here))
        await asyncio.sleep(0)
        assert not left.is_set()
        here.disconnected.set()
        await bounded(left.wait())


async def test_a_missing_response_is_an_internal_error() -> None:
    with pytest.raises(Refusal) as caught:
        await make(RecordingApp())
    assert (caught.value.problem.code, caught.value.problem.payment_state) == ("internal_error", "held")
