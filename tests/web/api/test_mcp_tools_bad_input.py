"""Random MCP requests, with members of the tools in wrong places: each gets a response, none raises, and none is charged."""

import json
import random
from typing import Any

import httpx

from tests.kit.gateway import InProcessGateway, open_gateway
from tests.kit.mcp import QUOTES, mount_mcp
from tollway.money import Price

REQUESTS = 200
INTERNAL_ERROR = -32603
TOOLS = ("search_resources", "get_api", "proxy_tool_call", "list_my_calls")
ATOMS: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 10**30, 1e308, float("nan"), "", "x", "\ud800", "\u202e", "a" * 300),
    *("api_quotes", "api_free", "0x" + "ab" * 32, "v=1;validUntil=9;nonce=0x" + "00" * 32, "GET", "../.."),
    *("/quote/ETH", "%zz", "\r\nX: y", "from-50", "\N{LATIN SMALL LETTER E WITH ACUTE}"),
)
NAMES = (
    *(
        "toolName",
        "arguments",
        "apiId",
        "cursor",
        "query",
        "limit",
        "paymentTx",
        "paymentSignature",
        "maxPrice",
    ),
    *(
        "paymentSignatureParams",
        "paymentNetwork",
        "idempotencyKey",
        "asset",
        "days",
        "method",
        "path",
        "body",
    ),
    *(
        "x402/payment",
        "x402Version",
        "payload",
        "accepted",
        "from",
        "before",
        "callId",
        "minSuccessRate",
        "page",
    ),
)
OF_A_CALL = (
    "arguments",
    "paymentTx",
    "paymentSignature",
    "paymentSignatureParams",
    "idempotencyKey",
    "maxPrice",
)


class Chance:
    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def is_so(self, often: float) -> bool:
        return self.dice.random() < often

    def value(self, depth: int = 0) -> Any:
        if depth > 3 or self.is_so(0.6):
            return self.dice.choice(ATOMS)
        if self.is_so(0.5):
            return [self.value(depth + 1) for _ in range(self.dice.randint(0, 3))]
        return self.members(NAMES, depth + 1)

    def members(self, names: tuple[str, ...], depth: int = 0) -> dict[str, Any]:
        return {self.dice.choice(names): self.value(depth) for _ in range(self.dice.randint(0, 4))}

    def params(self, name: str, operations: list[str]) -> Any:
        arguments = self.members(NAMES)
        if name == "proxy_tool_call" and self.is_so(0.7):
            arguments = {**self.members(OF_A_CALL), "toolName": self.dice.choice(operations)}
            if self.is_so(0.7):
                arguments["arguments"] = self.members(("asset", "days", "body", "method", "path", "query"))
        params: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": {}}
        if self.is_so(0.3):
            params["_meta"] = {"x402/payment": self.value()}
        for member in ("_meta", "arguments"):
            if self.is_so(0.05):
                params[member] = self.value()
        return self.value() if self.is_so(0.02) else params


async def test_no_random_request_raises_or_is_charged(seed: int) -> None:
    chance = Chance(seed)
    async with open_gateway() as gateway:
        operations = await publish(gateway)
        paths = {f"/mcp/{api}": tuple(tools) for api, tools in operations.items()}
        named = [f"{api}.{tool}" for api, tools in operations.items() for tool in tools]
        transport = httpx.ASGITransport(gateway.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="https://gw.example.com") as client:
            for _ in range(REQUESTS):
                path = chance.dice.choice(("/mcp", *paths))
                name = chance.dice.choice(paths.get(path, TOOLS))
                params = chance.params(name, named)
                answer = await send(
                    client, path, "tools/call", params, is_current=chance.is_so(0.5), gateway=gateway
                )
                reply = answer.json() if answer.content else {}
                result = reply.get("result") or {}
                assert answer.status_code < 500, (params, answer.text)
                assert reply.get("error", {}).get("code") != INTERNAL_ERROR, params
                assert (result.get("structuredContent") or {}).get("code") != "internal_error", params
        await gateway.check_balanced()
        assert [call for call in await gateway.history() if call.price_units] == []


async def publish(gateway: InProcessGateway) -> dict[str, list[str]]:
    """Three listings, and the names of their tools."""
    free = Price.parse("0")
    await gateway.publish(openapi=QUOTES)
    await gateway.publish("api_free", openapi=QUOTES, price=free)
    await gateway.publish("api_bare", price=free)
    mount_mcp(gateway)
    found = {}
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="https://gw.example.com") as client:
        for api in ("api_quotes", "api_free", "api_bare"):
            answer = await send(
                client, f"/mcp/{api}", "tools/list", {"_meta": {}}, is_current=True, gateway=gateway
            )
            found[api] = [tool["name"] for tool in answer.json()["result"]["tools"]]
    return found


async def send(
    client: httpx.AsyncClient,
    path: str,
    method: str,
    params: Any,
    *,
    is_current: bool,
    gateway: InProcessGateway,
) -> httpx.Response:
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "x-test-wallet": str(gateway.wallet.address),
    }
    if is_current:
        headers |= {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        members = params if isinstance(params, dict) else {}
        if isinstance(members.get("name"), str) and members["name"].isascii():
            headers["mcp-name"] = members["name"]
        if isinstance(members.get("_meta"), dict):
            members["_meta"] |= {
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": {},
            }
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await client.post(path, content=json.dumps(message).encode(), headers=headers)
