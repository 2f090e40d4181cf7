"""Everything beside the API: pages, documents, health, problems, the Bazaar, and tools over MCP."""

import json
import re

from tests.system.transcripts.harness import API, Harness
from tests.system.transcripts.payer import V2, quote, show
from tests.system.transcripts.signing import Account, decode, sign_request

PROVIDER, ALICE = Account("provider"), Account("alice")


def play(harness: Harness) -> None:
    operations = [{"method": "GET", "path": "/echo/{word}", "pricePerRequest": "0.02"}]
    api = harness.publish(
        PROVIDER, name="Shown", description="An <b>API</b>.", tags=["one"], operations=operations
    )
    free = harness.publish(PROVIDER, name="Free", pricePerRequest="0")
    play_pages(harness)
    play_bazaar(harness, api)
    play_mcp(harness, api, free)


def play_pages(harness: Harness) -> None:
    with harness.section("pages and documents"):
        pages = (
            "/",
            "/llms.txt",
            "/robots.txt",
            "/favicon.svg",
            "/.well-known/api-catalog",
            "/.well-known/security.txt",
            "/.well-known/did.json",
            "/.well-known/http-message-signatures-directory",
            "/openapi.json",
            "/docs",
            "/docs/payment.json",
            "/api/v2/networks",
            "/api/v2/facets",
            "/api/v2/facets?q=shown",
            "/docs/nothing.css",
            "/healthz",
            "/readyz",
            "/problems",
        )
        for page in pages:
            answer = harness.ask(page, "GET", page)
            tag = answer.find("ETag")
            if tag:
                harness.ask(f"{page}, unchanged", "GET", page, [("If-None-Match", tag)])
            harness.ask(f"HEAD {page}", "HEAD", page)
        harness.ask("no such page", "GET", "/nothing")
        harness.ask("no such path", "GET", API + "/nothing")
        harness.ask("a slash too much", "GET", API + "/apis/")
        harness.ask("another method", "POST", "/healthz")
        harness.ask("another method of the API", "PATCH", API + "/history")
        harness.ask("TRACE", "TRACE", "/")
        harness.ask(
            "HTML of a browser",
            "GET",
            "/",
            [("Accept", "text/html,*/*;q=0.8"), ("Sec-Fetch-Mode", "navigate")],
        )
        preflight = [("Origin", "https://page.example"), ("Access-Control-Request-Method", "PUT")]
        harness.ask(
            "preflight",
            "OPTIONS",
            API + "/apis",
            [*preflight, ("Access-Control-Request-Headers", "authorization")],
        )
        harness.ask("from a page", "GET", API + "/apis?limit=1", [("Origin", "https://page.example")])
        harness.ask("metrics are not here", "GET", "/metrics")

    with harness.section("a page for each problem"):
        listed = harness.ask("", "GET", "/problems", is_recorded=False)
        for name in sorted(set(re.findall(r'/problems/([a-z-]+)"', listed.body.decode()))):
            harness.ask(name, "GET", f"/problems/{name}")
        harness.ask("unknown", "GET", "/problems/unknown")


def play_bazaar(harness: Harness, api: str) -> None:
    with harness.section("the Bazaar"):
        for query in ("", "?limit=1", "?limit=1&offset=1", "?type=http", "?limit=x"):
            harness.ask(f"resources {query}", "GET", f"/x402/discovery/resources{query}")
        for query in ("?query=shown", "?query=nothing", "", "?query=shown&limit=1"):
            harness.ask(f"search {query}", "GET", f"/x402/discovery/search{query}")


def play_mcp(harness: Harness, api: str, free: str) -> None:
    numbers = iter(range(1, 1_000))

    def speak(
        title: str,
        method: str,
        params: object = None,
        *,
        path: str = "/mcp",
        more: list[tuple[str, str]] | None = None,
    ):  # type: ignore[no-untyped-def]
        content = {"jsonrpc": "2.0", "id": next(numbers), "method": method}
        if params is not None:
            content["params"] = params
        headers = [
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
            ("MCP-Protocol-Version", "2025-06-18"),
            *(more or []),
        ]
        return harness.ask(title, "POST", path, headers, json.dumps(content).encode())

    def use(title: str, name: str, arguments: object, **options: object):  # type: ignore[no-untyped-def]
        return speak(title, "tools/call", {"name": name, "arguments": arguments}, **options)  # type: ignore[arg-type]

    hello = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "agent", "version": "1"},
    }
    with harness.section("tools over MCP"):
        speak("hello", "initialize", hello)
        speak("ping", "ping")
        speak("tools", "tools/list")
        speak("an unknown method", "nothing/here")
        use("search", "search_resources", {"query": "shown"})
        use("describe", "get_api", {"apiId": api})
        use("describe nothing", "get_api", {"apiId": "api_00000000000000000000000000"})
        use("an unknown tool", "nothing", {})
        use("bad arguments", "get_api", {"colour": "red"})
        use("a negative limit", "search_resources", {"query": "x", "limit": -1})
        use("my calls, unsigned", "list_my_calls", {})
        told = use("describe", "get_api", {"apiId": api}).json["result"]["structuredContent"]
        tool = next(iter(re.findall(r"api_[0-9a-z]{26}\.[A-Za-z0-9_.-]+", json.dumps(told))))
        named = {"toolName": tool, "arguments": {"word": "hello"}}
        use("an unpaid call", "proxy_tool_call", named)
        use("a call without its argument", "proxy_tool_call", {"toolName": tool, "arguments": {}})
        use("a call of nothing", "proxy_tool_call", {"toolName": "api_00000000000000000000000000.x"})
        use("a free call", "proxy_tool_call", {"toolName": f"{free}.call", "arguments": {}})
        asked = quote(harness, api, "/echo/hello")
        meta = {"x402/payment": decode(show(harness, ALICE, asked, V2)[0][1])}
        paid = {"name": "proxy_tool_call", "arguments": named, "_meta": meta}
        speak("paid by x402", "tools/call", paid)
        speak("the same again", "tools/call", paid)
        signed = sign_request(ALICE, "POST", "/mcp", b"", now_s=harness.clock.now_s, label="mcp")
        use("my calls, signed for another body", "list_my_calls", {}, more=signed)

    with harness.section("one API over MCP"):
        speak("hello", "initialize", hello, path=f"/mcp/{api}")
        speak("tools", "tools/list", path=f"/mcp/{api}")
        speak("of an unknown API", "tools/list", path="/mcp/api_00000000000000000000000000")
        harness.ask("GET", "GET", "/mcp", [("Accept", "text/event-stream")])
        harness.ask("DELETE", "DELETE", "/mcp")
        harness.ask(
            "no JSON",
            "POST",
            "/mcp",
            [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")],
            b"{",
        )
        harness.ask("another media type", "POST", "/mcp", [("Content-Type", "text/plain")], b"{}")
        speak("from a page", "ping", more=[("Origin", "https://page.example")])
