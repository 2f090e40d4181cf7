"""The fields of a form as a document describes them: each form of a file, each composition, a real FastAPI application, and documents that want to be endless."""

import base64
import json
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI, Form, UploadFile
from pydantic import BaseModel

from tests.kit.listings import show_listing
from tests.kit.narrowing import existing, of_type
from tests.kit.openapi_documents import openapi_document, request_body
from tollway.discovery.agent_document import AGENT_BYTES_MAX, describe_for_agents, json_size
from tollway.discovery.argument_check import check_arguments
from tollway.discovery.form_fields import FIELDS_MAX
from tollway.discovery.operations import SCHEMA_WEIGHT_MAX, ApiOperation
from tollway.discovery.requests import ToolRequest, example_arguments, example_json, make_request
from tollway.discovery.tools import input_schema_of
from tollway.limits import DEFAULT_LIMITS

GATEWAY = "https://gw.example.com/api/v2/gateway/api_1"
MULTIPART, URLENCODED = "multipart/form-data", "application/x-www-form-urlencoded"
FILE_SCHEMA = {"type": "string", "contentEncoding": "base64"}
BINARY = {"type": "string", "format": "binary"}


def sold(schema: Any, media_type: str = MULTIPART, *, version: str = "3.1.0", **more: Any) -> ApiOperation:
    entry = {} if schema is None else {"schema": schema}
    entry |= {name: more.pop(name) for name in ("encoding",) if name in more}
    paths = {"/a": {"post": {"requestBody": {"required": True, "content": {media_type: entry}}}}}
    document = openapi_document(paths, version, **more)
    (operation,) = show_listing(openapi=document).operations
    return operation


def fields_of(operation: ApiOperation) -> dict[str, Any]:
    return dict(operation.input_schema["properties"]["body"].get("properties", {}))


def make(operation: ApiOperation, body: Any) -> ToolRequest:
    assert check_arguments(input_schema_of(operation), {"body": body}) == ()
    return of_type(ToolRequest, make_request(operation, {"body": body}))


FILES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (BINARY, {}, "file"),
    ({"type": "string", "contentMediaType": "application/octet-stream"}, {}, "file"),
    ({"type": "string", "contentMediaType": "image/png"}, {}, "file"),
    ({"type": ["string", "null"], "format": "binary"}, {}, "file"),
    ({"type": "file"}, {}, "file"),
    ({"$ref": "#/components/schemas/File"}, {}, "file"),
    ({"anyOf": [BINARY, {"type": "null"}]}, {}, "file"),
    ({"allOf": [{"$ref": "#/components/schemas/File"}]}, {}, "file"),
    ({}, {"contentType": "image/png"}, "file"),
    ({"type": "array", "items": BINARY}, {}, "files"),
    ({"anyOf": [{"type": "array", "items": BINARY}, {"type": "null"}]}, {}, "files"),
    ({"type": "string"}, {}, ""),
    ({"type": "string"}, {"contentType": "image/png"}, ""),
    ({}, {}, ""),
    ({}, {"contentType": "text/csv"}, ""),
    ({"type": "string", "format": "byte"}, {}, ""),
    ({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}, {}, ""),
    ({"type": "string", "contentMediaType": "application/json"}, {}, ""),
    ({"type": "array", "items": {"type": "string"}}, {}, ""),
    ({"type": "object", "properties": {"a": BINARY}}, {}, ""),
]


@pytest.mark.parametrize(("schema", "encoding", "kind"), FILES)
def test_a_file_is_found_in_each_form(schema: Any, encoding: dict[str, Any], kind: str) -> None:
    operation = sold(
        {"properties": {"f": schema}},
        encoding={"f": encoding},
        components={"schemas": {"File": BINARY}},
    )
    (field,) = operation.form_fields
    assert (field.is_file, field.is_list) == (kind != "", kind == "files")
    described = fields_of(operation)["f"]
    if kind:
        one = described["items"] if kind == "files" else described
        assert {name: one[name] for name in FILE_SCHEMA} == FILE_SCHEMA
        assert "format" not in one


def test_the_fields_of_each_composition_are_described() -> None:
    operation = sold(
        {
            "allOf": [
                {"$ref": "#/components/schemas/Base"},
                {"type": "object", "required": ["b"], "properties": {"b": {"type": "integer"}}},
            ],
            "oneOf": [{"properties": {"c": {"type": "boolean"}}, "required": ["c"]}],
            "properties": {"d": {"$ref": "#/components/schemas/Unit"}},
        },
        components={
            "schemas": {
                "Base": {"properties": {"a": {"type": "string"}}, "required": ["a"]},
                "Unit": {"enum": ["C", "F"]},
            }
        },
    )
    body = operation.input_schema["properties"]["body"]
    assert body["properties"].keys() == {"a", "b", "c", "d"}
    assert sorted(body["required"]) == ["a", "b"]
    assert operation.input_schema["$defs"] == {"Unit": {"enum": ["C", "F"]}}
    jsonschema.Draft202012Validator.check_schema(operation.input_schema)


def test_encoding_says_how_a_field_is_written() -> None:
    schema = {
        "properties": {
            "meta": {"type": "object"},
            "tags": {"type": "array"},
            "deep": {"type": "object"},
            "photo": BINARY,
        }
    }
    encoding = {
        "meta": {"contentType": "application/json"},
        "tags": {"style": "form", "explode": False},
        "deep": {"style": "deepObject", "explode": True},
        "photo": {"contentType": "image/png, image/jpeg, image/*"},
        "other": {"contentType": "bad\r\nX: 1"},
    }
    operation = sold(schema, URLENCODED, encoding=encoding)
    by_name = {field.name: field for field in operation.form_fields}
    assert by_name["meta"].media_types == ("application/json",)
    assert (by_name["tags"].is_exploded, by_name["deep"].style) == (False, "deepObject")
    assert by_name["photo"].media_types == ("image/png", "image/jpeg")
    assert "Types: image/png, image/jpeg." in fields_of(operation)["photo"]["description"]
    request = make(operation, {"meta": {"b": 1}, "tags": [1, 2], "deep": {"a": {"b": 3}}})
    assert request.body == b"meta=%7B%22b%22%3A1%7D&tags=1%2C2&deep%5Ba%5D%5Bb%5D=3"


@pytest.mark.parametrize("schema", [None, {}, True, {"type": "object"}, {"$ref": "#/nowhere"}, "text", []])
def test_a_form_without_fields_takes_any(schema: Any) -> None:
    for media_type in (MULTIPART, URLENCODED):
        operation = sold(schema, media_type)
        assert operation.form_fields == ()
        request = make(operation, {"any": "thing"})
        assert b"thing" in request.body
        assert request.headers[0][1].startswith(media_type)
        assert check_arguments(input_schema_of(operation), {"body": "a=1"}) != (), media_type


def test_form_is_chosen_before_text_and_json_before_both() -> None:
    def chosen(*types: str) -> str | None:
        content = {name: {"schema": {"type": "object"}} for name in types}
        document = {"openapi": "3.1.0", "paths": {"/a": {"post": {"requestBody": {"content": content}}}}}
        (operation,) = show_listing(openapi=document).operations
        return operation.body_type

    assert chosen("application/xml", URLENCODED, "application/json") == "application/json"
    assert chosen("application/xml", MULTIPART) == MULTIPART
    assert chosen("text/csv", "application/xml") == "text/csv"


@pytest.mark.parametrize(
    ("media_type", "schema", "is_file"),
    [
        ("application/octet-stream", None, True),
        ("application/octet-stream", BINARY, True),
        ("image/png", {"type": "string", "contentMediaType": "image/png"}, True),
        ("audio/wav", None, True),
        ("application/xml", None, False),
        ("text/csv", None, False),
        ("application/x-own", {"type": "string"}, False),
    ],
)
def test_a_body_of_bytes_is_a_file(media_type: str, schema: Any, is_file: bool) -> None:
    operation = sold(schema, media_type)
    assert operation.is_body_file == is_file
    request = make(operation, "dGV4dA==")
    assert request.body == (b"text" if is_file else b"dGV4dA==")
    assert request.headers == (("content-type", media_type),)
    assert example_json(operation, GATEWAY) is None


# ---- Examples.


@pytest.mark.parametrize(
    ("media_type", "schema", "body"),
    [
        (
            URLENCODED,
            {"properties": {"to": {"type": "string", "examples": ["a b"]}}, "required": ["to"]},
            "to=a+b",
        ),
        (MULTIPART, {"properties": {"f": BINARY}, "required": ["f"]}, None),
        (MULTIPART, {"properties": {"f": BINARY, "n": {"default": 1}}}, True),
        ("application/xml", {"type": "string"}, None),
        ("text/plain", {"type": "string"}, "text"),
        ("application/json", {"type": "string", "examples": ["@/etc/passwd"]}, None),
    ],
)
def test_an_example_can_be_sent_as_it_is(media_type: str, schema: Any, body: Any) -> None:
    operation = sold(schema, media_type)
    arguments = existing(example_arguments(operation))
    jsonschema.validate(arguments, input_schema_of(operation))
    example = example_json(operation, GATEWAY)
    if body is None:
        assert example is None
        return
    assert example is not None
    request = of_type(ToolRequest, make_request(operation, arguments))
    assert (example["body"].encode(), example["headers"]) == (request.body, dict(request.headers))
    assert body in (True, example["body"])


# ---- A FastAPI application.


class Order(BaseModel):
    asset: str
    units: int = 1


def build_application() -> FastAPI:
    app = FastAPI()

    @app.post("/ocr")
    async def read_page(
        file: UploadFile,
        language: Annotated[str, Form()],
        pages: Annotated[list[int] | None, Form()] = None,
        more: list[UploadFile] | None = None,
    ) -> dict[str, Any]:
        one = {"name": file.filename, "type": file.content_type, "bytes": (await file.read()).hex()}
        others = [other.filename for other in more or ()]
        return {"file": one, "language": language, "pages": pages, "more": others}

    @app.post("/orders")
    def order(order: Order) -> Order:
        return order

    @app.post("/login")
    def sign_in(user: Annotated[str, Form()], days: Annotated[int, Form(ge=1)] = 1) -> dict[str, Any]:
        return {"user": user, "days": days}

    return app


APP = build_application()


def operation_of(path: str) -> ApiOperation:
    return next(one for one in show_listing(openapi=APP.openapi()).operations if one.path == path)


async def send(request: ToolRequest) -> Any:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(APP), base_url="https://api.example.com"
    ) as http:
        response = await http.request(
            request.method, request.target, headers=list(request.headers), content=request.body
        )
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        (
            "/ocr",
            {
                "file": "data:image/png;name=page%201.png;base64,iVBORw==",
                "language": "de",
                "pages": [1, 2],
                "more": ["AA==", "data:;name=b.txt;base64,AA=="],
            },
            {
                "file": {"name": "page 1.png", "type": "image/png", "bytes": "89504e47"},
                "language": "de",
                "pages": [1, 2],
                "more": ["more", "b.txt"],
            },
        ),
        (
            "/ocr",
            {"file": base64.b64encode(b"\0").decode(), "language": "x"},
            {
                "file": {"name": "file", "type": "application/octet-stream", "bytes": "00"},
                "language": "x",
                "pages": None,
                "more": [],
            },
        ),
        ("/orders", {"asset": "ETH"}, {"asset": "ETH", "units": 1}),
        ("/login", {"user": "a&b=c é", "days": 3}, {"user": "a&b=c é", "days": 3}),
    ],
)
async def test_fastapi_reads_what_an_agent_means(path: str, body: Any, answer: Any) -> None:
    assert await send(make(operation_of(path), body)) == answer


def test_a_body_behind_a_reference_is_described() -> None:
    assert fields_of(operation_of("/ocr")).keys() == {"file", "language", "pages", "more"}
    assert sorted(operation_of("/ocr").input_schema["properties"]["body"]["required"]) == ["file", "language"]
    order = operation_of("/orders").input_schema
    assert order["properties"]["body"] == {"$ref": "#/$defs/Order"}
    assert order["$defs"]["Order"]["properties"].keys() == {"asset", "units"}
    assert [error.code for error in check_arguments(order, {"body": {"units": "x"}})] == ["required", "type"]


async def test_examples_of_fastapi_can_be_sent() -> None:
    assert example_json(operation_of("/ocr"), GATEWAY) is None
    for path in ("/orders", "/login"):
        operation = operation_of(path)
        example, arguments = example_json(operation, GATEWAY), example_arguments(operation)
        assert example is not None
        assert arguments is not None
        request = of_type(ToolRequest, make_request(operation, arguments))
        await send(request)


def test_the_agent_document_has_the_fields() -> None:
    first, *_ = describe_for_agents(show_listing(openapi=APP.openapi()), DEFAULT_LIMITS)
    assert json_size(first) <= AGENT_BYTES_MAX
    entry = next(one for one in first["operations"] if one["path"] == "/ocr")
    assert entry["bodyType"] == MULTIPART
    assert entry["inputSchema"]["properties"]["body"]["properties"]["file"]["contentEncoding"] == "base64"
    assert "example" not in entry


def test_an_example_with_parts_has_their_boundary() -> None:
    schema = {"properties": {"note": {"type": "string", "examples": ["x"]}}, "required": ["note"]}
    body = request_body(schema, MULTIPART, required=True)
    view = show_listing(openapi=openapi_document({"/a": {"post": {"requestBody": body}}}))
    first, *_ = describe_for_agents(view, DEFAULT_LIMITS)
    example = first["operations"][0]["example"]
    request = of_type(ToolRequest, make_request(view.operations[0], {"body": {"note": "x"}}))
    assert (dict(request.headers), request.body.decode()) == (example["headers"], example["body"])


# ---- Hostile documents.

CIRCLE = {"A": {"$ref": "#/components/schemas/A"}, "B": {"allOf": [{"$ref": "#/components/schemas/B"}]}}
DEEP: dict[str, Any] = {"properties": {"x": {"type": "string"}}}
for _ in range(50):
    DEEP = {"allOf": [DEEP, DEEP], "anyOf": [DEEP, DEEP]}
BRANCHING: dict[str, Any] = {"type": "string"}
for _ in range(50):
    BRANCHING = {"anyOf": [BRANCHING] * 10}

HOSTILE: list[Any] = [
    {"properties": {f"field{number}": {"type": "string"} for number in range(10_000)}},
    {"properties": {f"file{number}": BINARY for number in range(10_000)}},
    {"properties": {f"f{number}": {"$ref": "#/components/schemas/B"} for number in range(1_000)}},
    {"properties": {f"f{number}": BRANCHING for number in range(500)}},
    {"$ref": "#/components/schemas/A"},
    {"$ref": "#/components/schemas/B"},
    {"properties": {"f": {"$ref": "#/components/schemas/A"}, "g": {"$ref": "#/components/schemas/B"}}},
    DEEP,
    {"properties": {"f": {"enum": ["x" * 1_000] * 900}, "g": BINARY}},
    {"properties": {'a"b': {}, "a\r\nX-Evil: 1": {}, "a\0": {}, "a\\b": BINARY, "x" * 500: {}, "ok": {}}},
    {"properties": {"f": {"description": "</script>\u202e" * 500, "format": "binary"}}},
    {"properties": 5, "required": {"a": 1}, "allOf": "x", "anyOf": [None, 5]},
    {"properties": {"f": None, "g": 5, "h": []}},
]


@pytest.mark.parametrize("schema", HOSTILE)
@pytest.mark.parametrize("media_type", [MULTIPART, URLENCODED])
def test_a_hostile_form_is_bounded(schema: Any, media_type: str) -> None:
    operation = sold(
        schema, media_type, components={"schemas": CIRCLE}, encoding={"f": {"style": []}, "g": 5}
    )
    written = json.dumps(operation.input_schema, ensure_ascii=False)
    assert len(written) <= 2 * SCHEMA_WEIGHT_MAX
    assert len(operation.form_fields) <= FIELDS_MAX
    assert not {"\r", "\0", "\u202e", "\\r", "\\u0000"} & {*written, *written.split('"')}
    assert not any("\r" in field.name or "\\" in field.name for field in operation.form_fields)
    jsonschema.Draft202012Validator.check_schema(operation.input_schema)
    check_arguments(input_schema_of(operation), {"body": {"f": "x"}})
    example_json(operation, GATEWAY)
    assert isinstance(make_request(operation, {"body": {"other": "x"}}), ToolRequest)


def test_required_fields_are_described_before_others() -> None:
    properties = {f"field{number}": {"type": "string"} for number in range(1_000)}
    operation = sold({"properties": properties, "required": ["field999"]})
    assert next(iter(fields_of(operation))) == "field999"
    assert operation.input_schema["properties"]["body"]["required"] == ["field999"]


def test_a_long_field_keeps_its_name_and_a_file_its_form() -> None:
    long = {"enum": ["x" * 100 + str(number) for number in range(500)]}
    found = fields_of(sold({"properties": {"long": long, "last": {"type": "integer"}, "f": BINARY}}))
    assert found["long"] == {}
    assert found["last"] == {"type": "integer"}
    assert found["f"]["contentEncoding"] == "base64"
