"""A completion API in the shape of OpenAI's chat completions, for the demo and for tests: its model answers with the words of the last message in reverse order, and
counts each word as a token. Like the sample provider, it contains nothing about gateways or payment."""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web
from pydantic_core import from_json

from tollway.sandbox.provider import BadInput

PATH = "/v1/chat/completions"
BODY_BYTES_MAX = 64 * 1024
MODEL = "reverse-1"
_CREATED_S = 1_700_000_000
_ID = "chatcmpl-1"

OPERATION: Mapping[str, Any] = {
    "post": {
        "operationId": "complete",
        "summary": "The words of the last message in reverse order",
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "required": ["messages"],
                        "properties": {
                            "model": {"type": "string", "default": MODEL},
                            "messages": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "object",
                                    "required": ["role", "content"],
                                    "properties": {
                                        "role": {"type": "string"},
                                        "content": {"type": "string"},
                                    },
                                },
                            },
                            "max_tokens": {"type": "integer", "minimum": 1},
                            "stream": {"type": "boolean", "default": False},
                            "stream_options": {"type": "object"},
                        },
                        "examples": [{"messages": [{"role": "user", "content": "one two three"}]}],
                    }
                }
            },
        },
        "responses": {
            "200": {
                "description": "The completion, or its chunks as events",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            }
        },
    }
}
"""The path item of `PATH` in an OpenAPI document."""


async def respond_completion(request: web.BaseRequest) -> web.StreamResponse:
    """A completion, whole or as a stream of chunks. As with OpenAI, a stream has `usage` only with `stream_options.include_usage`. Raises BadInput."""
    asked = _read_body(await request.content.read(BODY_BYTES_MAX))
    words = _read_words(asked)
    reply = [*reversed(words[-1])][: _read_limit(asked)]
    usage = {
        "prompt_tokens": sum(map(len, words)),
        "completion_tokens": len(reply),
        "total_tokens": sum(map(len, words)) + len(reply),
    }
    if asked.get("stream") is not True:
        message = {"role": "assistant", "content": " ".join(reply)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({**_head("chat.completion"), "choices": [choice], "usage": usage})
    options = asked.get("stream_options")
    has_usage = isinstance(options, dict) and options.get("include_usage") is True
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    for chunk in _list_chunks(reply, usage if has_usage else None):
        await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def _list_chunks(reply: list[str], usage: Mapping[str, int] | None) -> Iterator[dict[str, Any]]:
    for number, word in enumerate(reply):
        content = word if number == 0 else f" {word}"
        choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
        yield {**_head("chat.completion.chunk"), "choices": [choice]}
    yield {
        **_head("chat.completion.chunk"),
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
    }
    if usage is not None:
        yield {**_head("chat.completion.chunk"), "choices": [], "usage": usage}


def _head(kind: str) -> dict[str, Any]:
    return {"id": _ID, "object": kind, "created": _CREATED_S, "model": MODEL}


def _read_body(body: bytes) -> Mapping[str, Any]:
    try:
        asked = from_json(body)
    except ValueError as exc:
        raise BadInput(HTTPStatus.BAD_REQUEST, "the body is no JSON") from exc
    if not isinstance(asked, dict):
        raise BadInput(HTTPStatus.BAD_REQUEST, "the body is no JSON object")
    return asked


def _read_words(asked: Mapping[str, Any]) -> list[list[str]]:
    """The words of each message."""
    messages = asked.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadInput(HTTPStatus.BAD_REQUEST, "messages is a list with a message")
    contents = [one.get("content") if isinstance(one, dict) else None for one in messages]
    if not all(isinstance(content, str) for content in contents):
        raise BadInput(HTTPStatus.BAD_REQUEST, "each message has a content, which is text")
    return [str(content).split() for content in contents]


def _read_limit(asked: Mapping[str, Any]) -> int | None:
    limit = asked.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise BadInput(HTTPStatus.BAD_REQUEST, "max_tokens is a whole number from 1 on")
    return limit
