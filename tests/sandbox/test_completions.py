"""The completion API of the sandbox: whole and streamed answers in the shape of OpenAI's, and the use that they report."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tollway.sandbox.completions import BODY_BYTES_MAX, PATH, respond_completion
from tollway.sandbox.provider import run_provider

CHAT = [{"role": "system", "content": "be short"}, {"role": "user", "content": "one two three"}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


@pytest.fixture
async def model() -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        run_provider(services={PATH: respond_completion}) as provider,
        aiohttp.ClientSession(provider.base_url) as http,
    ):
        yield http


async def complete(model: aiohttp.ClientSession, **asked: Any) -> str:
    async with model.post(PATH, json={"messages": CHAT, **asked}) as answer:
        assert answer.status == 200
        return await answer.text()


async def test_a_whole_completion_reports_its_use(model: aiohttp.ClientSession) -> None:
    answer = json.loads(await complete(model))
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "three two one"}
    assert answer["usage"] == USAGE


async def test_a_limit_of_tokens_ends_the_completion(model: aiohttp.ClientSession) -> None:
    answer = json.loads(await complete(model, max_tokens=2))
    assert (answer["choices"][0]["message"]["content"], answer["usage"]["completion_tokens"]) == (
        "three two",
        2,
    )


@pytest.mark.parametrize(
    ("options", "usage"), [({}, None), ({"include_usage": False}, None), ({"include_usage": True}, USAGE)]
)
async def test_a_stream_reports_its_use_where_it_is_asked_for(
    model: aiohttp.ClientSession, options: dict[str, bool], usage: dict[str, int] | None
) -> None:
    text = await complete(model, stream=True, stream_options=options)
    *events, end = text.removesuffix("\n\n").split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    words = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert ("".join(words), end) == ("three two one", "data: [DONE]")
    assert chunks[-1].get("usage") == usage


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages": []}',
        b'{"messages": [1]}',
        b'{"messages": [{"content": 1}]}',
        b'{"messages": [{"content": "a"}], "max_tokens": 0}',
        b'{"messages": [{"content": "%s"}]}' % (b"x" * BODY_BYTES_MAX),
    ],
)
async def test_another_request_is_refused(model: aiohttp.ClientSession, body: bytes) -> None:
    async with model.post(PATH, data=body) as answer:
        assert (answer.status, answer.content_type) == (400, "application/problem+json")
