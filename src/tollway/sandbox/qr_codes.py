"""What the API of the demo sells: a QR code of a text, as PNG, SVG or text (ISO/IEC 18004, by segno). Like the sample provider, it contains nothing about gateways or payment."""

from collections.abc import Mapping
from http import HTTPStatus
from io import BytesIO, StringIO
from typing import Any

import segno
from aiohttp import web

from tollway.sandbox import completions
from tollway.sandbox.provider import SAMPLE_DOCUMENT, BadInput, document_parameter

PATH = "/qr"
TEXT_LENGTH_MAX = 500
FORMATS = {"png": "image/png", "svg": "image/svg+xml", "text": "text/plain"}
_SCALE = 8

QR_DOCUMENT: Mapping[str, Any] = {
    **SAMPLE_DOCUMENT,
    "info": {
        "title": "QR codes and quotes",
        "version": "1.0.0",
        "description": "QR codes of any text, quotes that mean nothing, an echo, a stream of events, completions of chats.",
    },
    "paths": {
        PATH: {
            "get": {
                "operationId": "makeQrCode",
                "summary": "A QR code of a text",
                "parameters": [
                    {
                        **document_parameter(
                            "text",
                            "query",
                            {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": TEXT_LENGTH_MAX,
                                "examples": ["Hello, world"],
                            },
                            "what a camera reads from the code",
                        ),
                        "required": True,
                    },
                    document_parameter(
                        "format",
                        "query",
                        {"type": "string", "enum": list(FORMATS), "default": "png"},
                        "png, svg, or text for a terminal",
                    ),
                ],
                "responses": {
                    "200": {"description": "The code", "content": {kind: {} for kind in FORMATS.values()}}
                },
            }
        },
        **SAMPLE_DOCUMENT["paths"],
        completions.PATH: completions.OPERATION,
    },
}


def respond_qr(query: Mapping[str, str]) -> web.Response:
    """The code of `text` in `format`. Raises BadInput."""
    text, kind = query.get("text", ""), query.get("format", "png")
    if not 0 < len(text) <= TEXT_LENGTH_MAX:
        raise BadInput(HTTPStatus.BAD_REQUEST, f"text has 1 to {TEXT_LENGTH_MAX} characters")
    if kind not in FORMATS:
        raise BadInput(HTTPStatus.BAD_REQUEST, f"format is one of {', '.join(FORMATS)}")
    try:
        code = segno.make_qr(text)
    except (ValueError, UnicodeError) as exc:
        raise BadInput(HTTPStatus.BAD_REQUEST, "no QR code holds this text") from exc
    if kind == "text":
        lines = StringIO()
        code.terminal(lines, compact=True)
        return web.Response(text=lines.getvalue(), content_type=FORMATS[kind])
    picture = BytesIO()
    code.save(picture, kind=kind, scale=_SCALE)
    return web.Response(body=picture.getvalue(), content_type=FORMATS[kind])
