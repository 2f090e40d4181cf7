"""MCP in front of an in-process gateway: the dependencies of its tools, one request without a socket, and the application.

A request proves a wallet by the header `x-test-wallet`; real proofs of wallets are tested in `tests/identity`.
"""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from tests.kit.gateway import PUBLIC_URL, RULES, InProcessGateway
from tests.kit.payer import CHAIN, Payer
from tests.kit.routes import make_app, make_context, prove_wallet
from tollway.web.api.context import WebContext
from tollway.web.api.mcp import mcp_router
from tollway.web.api.mcp_gateway import McpRequest

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


def mcp_context(gateway: InProcessGateway, **given: Any) -> WebContext:
    made: dict[str, Any] = {
        "rules": {RULES.chain_id: RULES},
        "limits": gateway.limits,
        "catalog": gateway.catalog,
        "is_offered": lambda asset, units, listing_id: asset.domain is not None,
        "call_history": gateway.ledger,
        "authenticate": prove_wallet,
        "call_app": gateway.calls,
        "now_ms": lambda: gateway.now_ms,
        "clock": lambda: gateway.now_ms / 1000,
        "public_url": PUBLIC_URL,
    }
    return make_context(**{**made, **given})


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
    context = mcp_context(gateway, **given)
    gateway.app = make_app(
        context,
        mcp_router(context),
        call_app=gateway.calls,
        entropy=lambda size: b"\x05" * size,
        shedder=gateway.shedder,
    )


def pay_x402(gateway: InProcessGateway, terms: dict[str, Any]) -> dict[str, Any]:
    """The payment of an x402 client in `_meta`: signed for the first of `accepts`, with the resource of the terms."""
    payer = Payer.funded(gateway, 10_000)
    (accepted,) = terms["accepts"]
    signed = payer.sign(accepted, chain_id=CHAIN, amount=accepted["amount"])
    return {
        "x402Version": 2,
        "resource": terms["resource"],
        "accepted": accepted,
        "payload": signed.payload(),
        "extensions": terms.get("extensions", {}),
    }
