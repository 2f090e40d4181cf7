"""MCP in front of an in-process gateway: the dependencies of its tools, one request without a socket, and the application.

A request proves a wallet by the header `x-test-wallet`; real proofs of wallets are tested in `tests/identity`.
"""

import asyncio
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from tests.kit.gateway import PUBLIC_URL, RULES, InProcessGateway
from tollway.errors import Code, Problem, Refusal
from tollway.identity.authenticator import Identity
from tollway.ids import Address
from tollway.web.app import build_app
from tollway.web.book_turns import BookTurns
from tollway.web.listing_json import ListingEncoder
from tollway.web.mcp import mcp_router
from tollway.web.mcp_gateway import McpRequest, McpServices

CLIENT = "203.0.113.9"
QUOTES: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {"title": "Quotes", "version": "1"},
    "paths": {
        "/quote/{asset}": {
            "get": {
                "summary": "The price of an asset",
                "parameters": [
                    {"name": "asset", "in": "path", "required": True, "schema": {"type": "string"}},
                    {"name": "days", "in": "query", "schema": {"type": "integer", "minimum": 1}},
                ],
                "responses": {"200": {"description": "It"}},
            }
        },
        "/orders": {
            "post": {
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"type": "object", "required": ["asset"]}}},
                },
                "responses": {"200": {"description": "It"}},
            }
        },
    },
}


def mcp_services(gateway: InProcessGateway, **given: Any) -> McpServices:
    services = McpServices(
        catalog=gateway.catalog,
        encoder=ListingEncoder(
            public_url=PUBLIC_URL,
            assets=RULES.assets,
            confirmations_for=RULES.confirmations_for,
            is_offered=lambda asset, units, listing_id: asset.domain is not None,
        ),
        call_history=gateway.ledger,
        call_app=gateway.calls,
        wallet=prove_wallet,
        find_asset=lambda chain_id, key: next((one for one in RULES.assets if one.key == key), None),
        now_ms=lambda: gateway.now_ms,
        public_url=PUBLIC_URL,
        origin=PUBLIC_URL,
        body_bytes_max=gateway.limits.control_body_bytes_max,
        book_turns=BookTurns(),
    )
    return replace(services, **given)


async def prove_wallet(request: Request) -> Identity:
    told = request.headers.get("x-test-wallet")
    if told is None:
        raise Refusal(Problem(code=Code.AUTHENTICATION_REQUIRED, detail="No wallet was proved."))
    return Identity(address=Address.parse(told), method="session", chain_id=None)


def mcp_request(*headers: tuple[str, str], client: str = CLIENT) -> McpRequest:
    """One MCP request, as the door hands it to the tools. It has a `Host`, whether the headers give one or not."""
    given = {"host": "gw.example.com"} | {name.lower(): value for name, value in headers}
    scope: Scope = {
        "type": "http",
        "method": "POST",
        "scheme": "https",
        "path": "/mcp",
        "raw_path": b"/mcp",
        "query_string": b"",
        "server": ("gw.example.com", 443),
        "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }
    return McpRequest(
        request=Request(scope), request_id="req_12345678", client_address=client, disconnected=asyncio.Event()
    )


def mount_mcp(gateway: InProcessGateway, **given: Any) -> None:
    """The gateway's application, with MCP in it."""
    gateway.app = build_app(
        call_app=gateway.calls,
        routers=[mcp_router(mcp_services(gateway, **given))],
        public_url=PUBLIC_URL,
        limits=gateway.limits,
        clock=lambda: gateway.now_ms / 1000,
        entropy=lambda size: b"\x05" * size,
        shedder=gateway.shedder,
    )
