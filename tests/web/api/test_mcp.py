"""The ASGI application of MCP: origins, revisions, sizes, and no state between two requests."""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from tests.kit.gateway import NOW_MS, InProcessGateway, open_gateway, serve
from tests.kit.mcp import QUOTES, mount_mcp
from tests.kit.payer import Payer
from tollway.ledger.records import Dialect
from tollway.web.api.mcp import is_origin_allowed

BOTH = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(control_body_bytes_max=64 * 1024) as small:
        await small.publish(openapi=QUOTES)
        mount_mcp(small)
        yield small


def knock(gateway: InProcessGateway) -> httpx.AsyncClient:
    """A client of the application without a server in between."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app), base_url="https://gw.example.com")


def modern(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}


def modern_headers(method: str, name: str | None = None) -> dict[str, str]:
    named = {} if name is None else {"mcp-name": name}
    return {**ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": method, **named}


# ---------------------------------------------------------------------- both revisions


@BOTH
async def test_the_official_client_searches_reads_and_gets_the_terms(
    gateway: InProcessGateway, mode: Any
) -> None:
    async with serve(gateway) as port, Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        assert listed == {"search_resources", "get_api", "proxy_tool_call", "list_my_calls"}
        found = await client.call_tool("search_resources", {"query": "quotes"})
        (api,) = found.structured_content["resources"]
        details = await client.call_tool("get_api", {"apiId": api["apiId"]})
        name = details.structured_content["tools"][0]["toolName"]
        answer = await client.call_tool("proxy_tool_call", {"toolName": name, "arguments": {"asset": "ETH"}})
        assert answer.is_error
        assert answer.structured_content["accepts"]
        (text,) = answer.content
        assert json.loads(text.text)["accepts"] == answer.structured_content["accepts"]
        (text,) = details.content
        assert json.loads(text.text) == details.structured_content


@BOTH
async def test_the_operations_of_an_api_are_tools_under_its_own_url(
    gateway: InProcessGateway, mode: Any
) -> None:
    async with serve(gateway) as port, Client(f"http://127.0.0.1:{port}/mcp/api_quotes", mode=mode) as client:
        tools = (await client.list_tools()).tools
        assert sorted(tool.name.partition("_")[0] for tool in tools) == ["get", "post"]
        (get,) = [tool for tool in tools if tool.name.startswith("get")]
        assert get.input_schema["required"] == ["asset"]
        refused = await client.call_tool(get.name, {"asset": 3})
        assert (refused.is_error, refused.structured_content["code"]) == (True, "validation_failed")
        terms = await client.call_tool(get.name, {"asset": "ETH"})
        assert terms.structured_content["resource"]["url"] == f"mcp://tool/api_quotes.{get.name}"


@BOTH
async def test_many_operations_are_listed_in_pages(gateway: InProcessGateway, mode: Any) -> None:
    paths = {f"/v{number}": {"get": {"responses": {}}} for number in range(120)}
    await gateway.publish("api_many", openapi={**QUOTES, "paths": paths})
    async with serve(gateway) as port, Client(f"http://127.0.0.1:{port}/mcp/api_many", mode=mode) as client:
        page = await client.list_tools()
        sizes, names = [len(page.tools)], [tool.name for tool in page.tools]
        while page.next_cursor is not None:
            page = await client.list_tools(cursor=page.next_cursor)
            sizes.append(len(page.tools))
            names += [tool.name for tool in page.tools]
        assert (sizes, len(set(names))) == ([50, 50, 20], 120)
        with pytest.raises(MCPError, match="cursor"):
            await client.list_tools(cursor="none-of-ours")


@BOTH
async def test_there_are_no_prompts_and_no_resources(gateway: InProcessGateway, mode: Any) -> None:
    async with serve(gateway) as port, Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client:
        assert (await client.list_prompts()).prompts == []
        assert (await client.list_resources()).resources == []
        assert (await client.list_resource_templates()).resource_templates == []
        with pytest.raises(MCPError):
            await client.read_resource("mcp://nothing")
        with pytest.raises(MCPError, match="no tool"):
            await client.call_tool("nothing", {})


# ---------------------------------------------------------------------- an error of MPP, on request

LEGACY = {**ACCEPT, "mcp-protocol-version": "2025-11-25"}
BUY = {"toolName": "api_quotes.get_quote_by_asset", "arguments": {"asset": "ETH"}}


def buy(**meta: Any) -> dict[str, Any]:
    params = {"name": "proxy_tool_call", "arguments": BUY, "_meta": meta}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def test_a_client_that_accepts_mpp_gets_its_error(gateway: InProcessGateway) -> None:
    """The data of the error is the document of `_meta`, and the terms of x402 beside it."""
    async with knock(gateway) as client:
        plain = (await client.post("/mcp", json=buy(), headers=LEGACY)).json()["result"]
        asked = {**LEGACY, "accept-payment": "evm/charge"}
        error = (await client.post("/mcp", json=buy(), headers=asked)).json()["error"]
        own = (
            await client.post(
                "/mcp/api_quotes",
                json={
                    **buy(),
                    "params": {"name": "get_quote_by_asset", "arguments": {"asset": "ETH"}},
                },
                headers=asked,
            )
        ).json()["error"]
    assert (error["code"], error["message"]) == (-32042, "Payment Required")
    assert own["code"] == -32042
    (challenge,) = error["data"].pop("challenges")
    (shown,) = plain["_meta"]["org.paymentauth/payment-required"]["challenges"]
    assert challenge["request"] == shown["request"]
    assert error["data"] == {"httpStatus": 402, "x402": plain["_meta"]["x402/error"]}


@pytest.mark.parametrize(
    ("arguments", "meta"),
    [
        (BUY, {"x402/payment": {"x402Version": 2}}),
        (BUY, {"org.paymentauth/credential": {"challenge": {}, "payload": {}}}),
        ({**BUY, "paymentTx": "0x" + "ab" * 32, "paymentSignature": "0x" + "cd" * 65}, {}),
        ({"toolName": BUY["toolName"], "parameters": {"asset": "ETH", "headers": {"PAYMENT-SIGNATURE": "e30"}}}, {}),
    ],
)  # fmt: skip
async def test_the_refusal_of_a_payment_is_a_result(
    gateway: InProcessGateway, arguments: dict[str, Any], meta: dict[str, Any]
) -> None:
    call = buy(**meta)
    call["params"]["arguments"] = arguments
    async with knock(gateway) as client:
        answer = await client.post("/mcp", json=call, headers={**LEGACY, "accept-payment": "evm/charge"})
    assert answer.json()["result"]["isError"] is True


async def test_a_revision_that_reserves_the_code_of_mpp_never_gets_it(gateway: InProcessGateway) -> None:
    headers = {**modern_headers("tools/call", "proxy_tool_call"), "accept-payment": "evm/charge"}
    async with knock(gateway) as client:
        answer = await client.post(
            "/mcp", json=modern("tools/call", name="proxy_tool_call", arguments=BUY), headers=headers
        )
    result = answer.json()["result"]
    assert result["isError"] is True
    assert result["_meta"]["org.paymentauth/payment-required"]["challenges"]


async def test_a_payment_in_a_header_of_the_request_pays_the_tool(gateway: InProcessGateway) -> None:
    payer = Payer.funded(gateway, 20_000)
    for dialect in (Dialect.X402_V2, Dialect.MPP):
        shown = payer.show(await payer.quote("GET", "/quote/ETH", listing="api_quotes"), dialect)
        async with knock(gateway) as client:
            answer = await client.post("/mcp", json=buy(), headers=[*LEGACY.items(), *shown])
        result = answer.json()["result"]
        assert result["structuredContent"]["call"]["paymentState"] == "charged", result
    assert gateway.earned == 20_000


# ---------------------------------------------------------------------- no state


async def test_a_call_needs_no_handshake_and_leaves_no_session(gateway: InProcessGateway) -> None:
    """The second of two gateways gets a request whose handshake went to the first."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search_resources"}}
    async with knock(gateway) as client:
        for headers in (ACCEPT, {**ACCEPT, "mcp-protocol-version": "2025-11-25"}):
            answer = await client.post("/mcp", json=call, headers=headers)
            assert answer.status_code == 200, answer.text
            assert answer.json()["result"]["structuredContent"]["total"] == 1
            assert "mcp-session-id" not in answer.headers
            assert answer.headers["content-type"] == "application/json"


async def test_a_current_request_stands_alone(gateway: InProcessGateway) -> None:
    async with knock(gateway) as client:
        answer = await client.post(
            "/mcp",
            json=modern("tools/call", name="get_api", arguments={"apiId": "api_quotes"}),
            headers=modern_headers("tools/call", "get_api"),
        )
    assert answer.status_code == 200
    assert answer.json()["result"]["structuredContent"]["apiId"] == "api_quotes"
    assert answer.headers["x-request-id"]


async def test_lists_have_a_cache_hint(gateway: InProcessGateway) -> None:
    async with knock(gateway) as client:
        for path in ("/mcp", "/mcp/api_quotes"):
            answer = await client.post(path, json=modern("tools/list"), headers=modern_headers("tools/list"))
            result = answer.json()["result"]
            assert (result["ttlMs"], result["cacheScope"]) == (60_000, "public")


# ---------------------------------------------------------------------- refusals


async def test_only_post_is_answered(gateway: InProcessGateway) -> None:
    async with knock(gateway) as client:
        for method in ("GET", "DELETE", "PUT", "HEAD"):
            answer = await client.request(method, "/mcp", headers=ACCEPT)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_an_api_that_is_not_there_has_no_tools(gateway: InProcessGateway) -> None:
    retired = await gateway.publish("api_retired")
    await gateway.revise(retired, retired_ms=NOW_MS)
    suspended = await gateway.publish("api_suspended")
    await gateway.revise(suspended, suspended_ms=NOW_MS)
    async with knock(gateway) as client:
        for api, status, code in (
            ("api_none", 404, "api_not_found"),
            ("api_retired", 410, "api_retired"),
            ("api_suspended", 503, "api_paused"),
        ):
            answer = await client.post(
                f"/mcp/{api}", json=modern("tools/list"), headers=modern_headers("tools/list")
            )
            assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_a_body_has_a_maximum(gateway: InProcessGateway) -> None:
    large = {"name": "search_resources", "arguments": {"query": "x" * 70_000}}
    async with knock(gateway) as client:
        answer = await client.post("/mcp", json=modern("tools/call", **large), headers=ACCEPT)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]", b"[" * 60, b"7"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/api_quotes"])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28", "2099-01-01"])
async def test_refuses_a_body_that_is_not_a_message(
    gateway: InProcessGateway, body: bytes, path: str, version: str
) -> None:
    async with knock(gateway) as client:
        answer = await client.post(path, content=body, headers={**ACCEPT, "mcp-protocol-version": version})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"]["code"] < 0


@pytest.mark.parametrize("path", ["/mcp", "/mcp/api_quotes"])
@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
async def test_a_message_that_nests_deep_never_reaches_a_parser(
    gateway: InProcessGateway, path: str, version: str
) -> None:
    body = b'{"a":' * 30_000 + b"1" + b"}" * 30_000
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)  # the limit that a library sets
    try:
        async with knock(gateway) as client:
            answer = await client.post(
                path, content=body[:60_000], headers={**ACCEPT, "mcp-protocol-version": version}
            )
    finally:
        sys.setrecursionlimit(before)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


@pytest.mark.parametrize("name", ["", "x" * 10_000, "get_api\n", "\u202eapi"])
async def test_a_tool_of_any_name_is_looked_up_and_not_found(gateway: InProcessGateway, name: str) -> None:
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
    async with knock(gateway) as client:
        for path in ("/mcp", "/mcp/api_quotes"):
            answer = await client.post(path, json=call, headers=ACCEPT)
            assert answer.json()["error"]["code"] == -32602
            assert len(answer.text) < 500


ORIGINS = [
    (None, "https://gw.example.com", True),
    ("https://gw.example.com", "https://gw.example.com", True),
    ("https://gw.example.com:443", "https://gw.example.com", True),
    ("https://GW.example.com", "https://gw.example.com", True),
    ("http://gw.example.com", "https://gw.example.com", False),
    ("https://gw.example.com.evil.example", "https://gw.example.com", False),
    ("https://evil.example", "https://gw.example.com", False),
    ("http://localhost:6274", "https://gw.example.com", False),
    ("null", "https://gw.example.com", False),
    ("", "https://gw.example.com", False),
    ("https://[", "https://gw.example.com", False),
    ("https://gw.example.com:x", "https://gw.example.com", False),
    ("http://localhost:6274", "http://127.0.0.1:8402", True),
    ("http://[::1]", "http://127.0.0.1:8402", True),
    ("http://evil.example", "http://127.0.0.1:8402", False),
    ("http://127.0.0.1.evil.example", "http://127.0.0.1:8402", False),
    ("https://chat.example", "https://gw.example.com", True),
    ("https://Chat.example", "https://gw.example.com", True),
]


@pytest.mark.parametrize(("origin", "own", "is_allowed"), ORIGINS)
def test_a_page_of_another_origin_may_not_use_mcp(origin: str | None, own: str, is_allowed: bool) -> None:
    others = frozenset({"https://chat.example"})
    assert is_origin_allowed(origin, own=own, others=others) is is_allowed
    assert is_origin_allowed(origin, own=own, others=frozenset({"*"}))


async def test_refuses_another_origin_before_the_body_is_read(gateway: InProcessGateway) -> None:
    async with knock(gateway) as client:
        for path in ("/mcp", "/mcp/api_quotes"):
            answer = await client.post(
                path, content=b"{", headers={**ACCEPT, "origin": "https://evil.example"}
            )
            assert (answer.status_code, answer.json()["reason"]) == (403, "origin")
        own = {**modern_headers("tools/list"), "origin": "https://gw.example.com"}
        assert (await client.post("/mcp", json=modern("tools/list"), headers=own)).status_code == 200
