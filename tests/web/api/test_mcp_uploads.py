"""Uploads by the unmodified official MCP client: a paid call of a FastAPI endpoint, which the gateway's form reaches; what comes back in a coding and in a charset."""

import base64
import gzip
from asyncio import StreamWriter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Form, UploadFile
from mcp.client.client import Client

from tests.kit.gateway import InProcessGateway, open_gateway, serve
from tests.kit.mcp import mount_mcp, pay_x402
from tests.kit.upstream import Arrived, plain
from tollway.discovery.tool_results import PAYMENT
from tollway.discovery.tools import TOOL_RESPONSE_BYTES_MAX

BOTH = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
APP = FastAPI()


@APP.post("/base/ocr")
async def read_page(file: UploadFile, language: Annotated[str, Form()]) -> dict[str, Any]:
    return {"name": file.filename, "type": file.content_type, "size": file.size, "language": language}


DOCUMENT = {**APP.openapi(), "paths": {"/ocr": APP.openapi()["paths"]["/base/ocr"]}}
FILE = "data:image/png;name=page.png;base64," + base64.b64encode(bytes(range(256))).decode()


async def ask_app(arrived: Arrived, writer: StreamWriter) -> None:
    """Passes a request to the application as it came."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(APP), base_url="http://api.example.com"
    ) as http:
        answer = await http.request(
            arrived.method, arrived.target, headers=list(arrived.headers), content=bytes(arrived.body)
        )
    headers = (f"Content-Type: {answer.headers['content-type']}",)
    await plain(answer.content, status=answer.status_code, headers=headers)(arrived, writer)


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway() as small:
        await small.publish(openapi=DOCUMENT)
        mount_mcp(small)
        small.upstream.answer = ask_app
        yield small


@BOTH
async def test_an_agent_pays_for_an_upload(gateway: InProcessGateway, mode: Any) -> None:
    async with serve(gateway) as port, Client(f"http://127.0.0.1:{port}/mcp/api_quotes", mode=mode) as client:
        (tool,) = (await client.list_tools()).tools
        body = tool.input_schema["properties"]["body"]
        assert body["properties"]["file"]["contentEncoding"] == "base64"
        assert sorted(body["required"]) == ["file", "language"]
        arguments = {"body": {"file": FILE, "language": "de"}}
        for wrong in ({"language": "de"}, {"file": "no base64!", "language": "de"}):
            refused = await client.call_tool(tool.name, {"body": wrong})
            assert refused.structured_content["code"] == "validation_failed"
            assert refused.structured_content["paymentState"] == "none"
        terms = await client.call_tool(tool.name, arguments)
        payment = pay_x402(gateway, terms.structured_content)
        answer = await client.call_tool(tool.name, arguments, meta={PAYMENT: payment})
    assert not answer.is_error, answer.structured_content
    assert answer.structured_content["body"] == {
        "name": "page.png",
        "type": "image/png",
        "size": 256,
        "language": "de",
    }
    assert gateway.earned == 10_000
    (arrived,) = gateway.upstream.arrived
    assert arrived.find("accept-encoding") == "identity"


@pytest.mark.parametrize(
    ("content", "headers", "shown"),
    [
        (
            gzip.compress(b'{"a":"x"}'),
            ("Content-Type: application/json", "Content-Encoding: gzip"),
            ("json", {"a": "x"}),
        ),
        ("Zürich".encode("latin-1"), ("Content-Type: text/plain; charset=iso-8859-1",), ("text", "Zürich")),
        (
            gzip.compress(bytes(TOOL_RESPONSE_BYTES_MAX + 1)),
            ("Content-Type: text/plain", "Content-Encoding: gzip"),
            ("none", None),
        ),
    ],
    ids=["gzip", "latin-1", "bomb"],
)
async def test_a_response_is_read_in_its_coding_and_charset(
    gateway: InProcessGateway, content: bytes, headers: tuple[str, ...], shown: tuple[str, Any]
) -> None:
    gateway.upstream.answer = plain(content, headers=headers)
    async with serve(gateway) as port, Client(f"http://127.0.0.1:{port}/mcp/api_quotes") as client:
        (tool,) = (await client.list_tools()).tools
        arguments = {"body": {"file": FILE, "language": "de"}}
        terms = await client.call_tool(tool.name, arguments)
        payment = pay_x402(gateway, terms.structured_content)
        answer = await client.call_tool(tool.name, arguments, meta={PAYMENT: payment})
    found = answer.structured_content
    assert (found["bodyFormat"], found.get("body")) == shown
    assert answer.is_error == (shown[0] == "none")
