"""JSON and OpenAPI documents made to cost much more than they weigh, each as large as the control plane lets in."""

import json
from collections.abc import Iterator
from typing import Any

BYTES_MAX = 2_000_000
ROOM = 4_000
"""What stands around a filling."""


def list_bombs() -> dict[str, bytes]:
    """By name; none is longer than `DIRECTORY_BYTES_MAX`."""
    return {**dict(_plain()), **{name: _draft(document) for name, document in _documents()}}


def _fill(piece: str, *, size: int = BYTES_MAX - ROOM) -> str:
    return piece * (size // len(piece))


def _plain() -> Iterator[tuple[str, bytes]]:
    yield "deep lists", b"[" * BYTES_MAX
    yield "deep objects", (b'{"a":' * (BYTES_MAX // 5))
    yield "many lists", ('{"tags":[' + _fill("[],") + "[]]}").encode()
    yield "many objects", ('{"tags":[' + _fill("{},") + "{}]}").encode()
    yield "many numbers", ('{"tags":[' + _fill("1,") + "1]}").encode()
    yield "many nulls", ('{"tags":[' + _fill("null,") + "null]}").encode()
    yield "many short texts", ('{"tags":[' + _fill('"ab",') + '"ab"]}').encode()
    yield "many members", ("{" + ",".join(f'"{number:x}":0' for number in range(190_000)) + "}").encode()
    yield "as many members as may be", ("{" + ",".join(f'"{n:x}":0' for n in range(65_000)) + "}").encode()
    yield "as many lists as may be", ('{"tags":[' + "[]," * 32_000 + "[]]}").encode()
    yield "one member again", ("{" + _fill('"a":1,') + '"a":1}').encode()
    yield "one long number", ('{"pricePerRequest":' + _fill("9") + "}").encode()
    yield "many long numbers", ('{"tags":[' + _fill("9" * 120 + ",") + "1]}").encode()
    yield "one long text", ('{"name":"' + _fill("a") + '"}').encode()
    yield "escapes", ('{"name":"' + _fill("\\u0001") + '"}').encode()
    yield "wide letters", ('{"name":"' + _fill("\U0001f600", size=BYTES_MAX // 4 - ROOM) + '"}').encode()
    yield "half pairs", ('{"name":"' + _fill("\\ud800") + '"}').encode()
    yield "no end of a text", ('{"name":"' + _fill('\\"')).encode()
    yield "blanks", (b" " * (BYTES_MAX - 2)) + b"{}"


def _documents() -> Iterator[tuple[str, dict[str, Any]]]:
    yield "many paths", {"paths": {f"/{number:x}": {"get": {}} for number in range(21_000)}}
    yield "many methods", {"paths": {f"/{number}": _OPERATIONS for number in range(3_000)}}
    yield "a circle of references", {
        "components": {"schemas": {"A": {"$ref": "#/components/schemas/B"}, "B": {"$ref": "#/components/schemas/A"}}},
        "paths": {"/a": {"post": _takes({"$ref": "#/components/schemas/A"})}},
    }  # fmt: skip
    yield (
        "references that double",
        {
            "components": {"schemas": {f"L{number}": _doubled(number) for number in range(30)}},
            "paths": {"/a": {"post": _takes({"$ref": "#/components/schemas/L29"})}},
        },
    )
    yield (
        "a pattern that never ends",
        {
            "paths": {"/a": {"post": _takes({"type": "string", "pattern": "(a+)+$"})}},
        },
    )
    yield "a large enum", {"paths": {"/a": {"post": _takes({"enum": list(range(65_000))})}}}
    yield (
        "many parameters",
        {"paths": {"/a": {"get": {"parameters": [_parameter(number) for number in range(12_500)]}}}},
    )
    yield "a long path", {"paths": {"/" + "{a}" * 60_000: {"get": {}}}}
    yield (
        "one schema in many places",
        {
            "components": {
                "schemas": {"Big": {"properties": {str(n): {"type": "string"} for n in range(2_000)}}}
            },
            "paths": {f"/{n}": {"post": _takes({"$ref": "#/components/schemas/Big"})} for n in range(3_000)},
        },
    )


def _doubled(number: int) -> dict[str, Any]:
    if number == 0:
        return {"type": "string"}
    below = {"$ref": f"#/components/schemas/L{number - 1}"}
    return {"type": "object", "properties": {"a": below, "b": below}}


def _takes(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def _parameter(number: int) -> dict[str, Any]:
    return {"name": str(number), "in": "query", "schema": {"type": "string"}}


_OPERATIONS = {method: {"summary": "a"} for method in ("get", "put", "post", "delete", "patch")}


def _draft(document: dict[str, Any]) -> bytes:
    told = {"openapi": "3.1.0", "info": {"title": "Bomb", "version": "1"}, **document}
    draft = {
        "name": "Bomb",
        "pricePerRequest": "0.01",
        "currency": "USDC",
        "endpoint": "http://11.0.0.1:9001/",
        "openapi": told,
    }
    raw = json.dumps(draft, separators=(",", ":")).encode()
    if len(raw) > BYTES_MAX:
        raise ValueError(f"a document of {len(raw)} bytes never gets in")
    return raw
