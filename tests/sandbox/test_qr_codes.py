"""What the demo sells: QR codes in three formats, and a refusal for every text that none can hold."""

import json
import re
import struct
from collections.abc import AsyncIterator

import aiohttp
import pytest
from openapi_spec_validator import validate

from tollway.sandbox.provider import run_provider
from tollway.sandbox.qr_codes import PATH, QR_DOCUMENT, TEXT_LENGTH_MAX, respond_qr


@pytest.fixture
async def shop() -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        run_provider(document=QR_DOCUMENT, products={PATH: respond_qr}) as provider,
        aiohttp.ClientSession(provider.base_url) as http,
    ):
        yield http


def test_the_document_is_valid_openapi_and_names_no_payment() -> None:
    text = json.dumps(QR_DOCUMENT)
    validate(json.loads(text))
    assert not re.search(r"pay|gateway|tollway|402", text, re.IGNORECASE)
    assert next(iter(QR_DOCUMENT["paths"])) == PATH  # the page of the API begins with it


@pytest.mark.parametrize(
    ("query", "kind", "begins"),
    [
        ("text=Hello", "image/png", b"\x89PNG\r\n\x1a\n"),
        ("text=Hello&format=svg", "image/svg+xml", b"<?xml"),
        ("text=Hello&format=text", "text/plain", "\u2588".encode()),
        ("text=" + "x" * TEXT_LENGTH_MAX, "image/png", b"\x89PNG"),
        ("text=%E2%82%AC%F0%9F%98%80%E2%80%AE&format=png", "image/png", b"\x89PNG"),
    ],
)
async def test_a_text_becomes_a_code(
    shop: aiohttp.ClientSession, query: str, kind: str, begins: bytes
) -> None:
    async with shop.get(f"{PATH}?{query}") as answer:
        assert (answer.status, answer.content_type) == (200, kind)
        body = await answer.read()
    assert body.startswith(begins)
    if kind == "image/png":
        width, height = struct.unpack(">II", body[16:24])
        assert width == height < 2048


@pytest.mark.parametrize("query", ["", "text=", "text=" + "x" * (TEXT_LENGTH_MAX + 1), "text=a&format=pdf"])
async def test_another_request_is_refused(shop: aiohttp.ClientSession, query: str) -> None:
    async with shop.get(f"{PATH}?{query}") as answer:
        assert (answer.status, answer.content_type) == (400, "application/problem+json")


async def test_the_paths_of_the_sample_provider_stay(shop: aiohttp.ClientSession) -> None:
    async with shop.get("/openapi.json") as document:
        assert await document.json() == QR_DOCUMENT
    async with shop.get("/quote/ETH") as quote:
        assert quote.status == 200
