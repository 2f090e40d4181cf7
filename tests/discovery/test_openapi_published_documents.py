"""Documents in the shapes of published ones, small and our own: each is listed with its operations and warnings, and every document made of it is valid.

The shapes are those of 25 published documents that were tried: of model providers, clouds, weather services, generators (FastAPI, springdoc, NestJS,
Swashbuckle), and the examples of the OpenAPI project.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.kit.listings import PROVIDER, sample_listing, show_listing
from tollway.discovery.agent_document import AGENT_BYTES_MAX, describe_for_agents, json_size
from tollway.discovery.listing_documents import TEXT_LENGTH_MAX, write_listing_text
from tollway.discovery.openapi import build_openapi
from tollway.discovery.tools import api_tool
from tollway.errors import Refusal
from tollway.limits import DEFAULT_LIMITS
from tollway.registry.listing_warnings import list_warnings
from tollway.web.api.provider_documents import ProviderDocuments


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """`text`: as a server sends it. `operations`: each with the names of its arguments, or `*` where the tests of forms and of headers name them.
    `codes`: of the warnings. `refusal`: of a document that is none."""

    name: str
    text: str
    operations: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    refusal: str | None = None


DOCUMENTS = (
    Published(
        name="a model provider: 3.1, code samples in extensions, a stream, a discriminator",
        text=json.dumps({
            "openapi": "3.1.0", "info": {"title": "Models", "version": "2.3.0"}, "servers": [{"url": "https://api.example.com"}],
            "security": [{"key": []}], "x-groups": [{"id": "chat"}],
            "paths": {"/chat": {"post": {
                "operationId": "createChat", "x-samples": {"examples": [{"request": {"curl": "curl https://api.example.com/chat"}}]},
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ChatRequest"}}}},
                "responses": {"200": {"description": "OK", "content": {
                    "application/json": {"schema": {"$ref": "#/components/schemas/Chat"}},
                    "text/event-stream": {"schema": {"$ref": "#/components/schemas/Chat"}}}}}}}},
            "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}, "schemas": {
                "ChatRequest": {"type": "object", "required": ["model"], "x-meta": {"example": "{}"}, "properties": {
                    "model": {"anyOf": [{"type": "string"}, {"type": "string", "enum": ["small", "large"]}]},
                    "content": {"oneOf": [{"$ref": "#/components/schemas/Text"}, {"$ref": "#/components/schemas/Image"}],
                                "discriminator": {"propertyName": "type", "mapping": {"text": "#/components/schemas/Text"}}},
                    "temperature": {"type": ["number", "null"], "minimum": 0, "maximum": 2, "default": 1}}},
                "Text": {"type": "object", "properties": {"type": {"const": "text"}}},
                "Image": {"type": "object", "properties": {"type": {"const": "image"}}},
                "Chat": {"type": "object", "properties": {"id": {"type": "string"}, "next": {"$ref": "#/components/schemas/Chat"}}}}}}),
        operations=("POST /chat body",),
    ),
    Published(
        name="a vector database: 3.0 with nullable references in anyOf",
        text=json.dumps({
            "openapi": "3.0.1", "info": {"title": "Vectors", "version": "master"},
            "paths": {"/collections/{collection_name}/points/search": {"post": {
                "operationId": "search_points", "tags": ["search"],
                "parameters": [{"name": "collection_name", "in": "path", "required": True, "schema": {"type": "string"}},
                               {"name": "timeout", "in": "query", "schema": {"type": "integer", "minimum": 1}}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Search"}}}},
                "responses": {"default": {"description": "error"}, "4XX": {"description": "error"}}}}},
            "components": {"schemas": {
                "Search": {"type": "object", "required": ["vector"], "properties": {
                    "vector": {"type": "array", "items": {"type": "number", "format": "float"}},
                    "filter": {"anyOf": [{"$ref": "#/components/schemas/Filter"}, {"nullable": True}]}}},
                "Filter": {"type": "object", "properties": {"must": {"type": "array", "items": {"$ref": "#/components/schemas/Filter"}}},
                           "additionalProperties": False}}}}),
        operations=("POST /collections/{collection_name}/points/search collection_name timeout body",),
    ),
    Published(
        name="a weather service: 3.0 in YAML, parameters by reference, two variables in a segment",
        text="""
            openapi: 3.0.3
            info: {title: Weather, version: 1.11.0}
            servers: [{url: "https://api.weather.example", description: Production server}]
            paths:
              /gridpoints/{wfo}/{x},{y}/forecast:
                parameters: [{$ref: "#/components/parameters/Office"}, {$ref: "#/components/parameters/X"}, {$ref: "#/components/parameters/Y"}]
                get:
                  operationId: gridpoint_forecast
                  responses:
                    "200": {description: A forecast, content: {application/geo+json: {schema: {type: object}}, application/ld+json: {schema: {type: object}}}}
                    default: {$ref: "#/components/responses/Error"}
            components:
              parameters:
                Office: {name: wfo, in: path, required: true, schema: {type: string, enum: [AKQ, ALY]}}
                X: {name: x, in: path, required: true, schema: {type: integer, minimum: 0}}
                Y: {name: y, in: path, required: true, schema: {type: integer, minimum: 0}}
              responses:
                Error: {description: An error, content: {application/problem+json: {schema: {type: object}}}}
            """,
        operations=("GET /gridpoints/{wfo}/{x},{y}/forecast wfo x y",),
    ),
    Published(
        name="a cloud: operations by references to other files, a path without a slash",
        text="""
            openapi: 3.0.0
            info: {title: Cloud, version: "2.0", description: {$ref: "description.yml#/introduction"}}
            servers: [{url: "https://api.cloud.example"}]
            paths:
              /v2/1-clicks:
                get: {$ref: "resources/1-clicks/oneClicks_list.yml"}
              <upload_url>:
                put: {$ref: "resources/upload.yml"}
            """,
        operations=("GET /v2/1-clicks",),
        codes=("operations_ignored", "references_ignored"),
    ),
    Published(
        name="hypermedia of a generator for Java: any media type, links, recursion",
        text=json.dumps({
            "openapi": "3.0.1", "info": {"title": "OpenAPI definition", "version": "v0"}, "servers": [{"url": "http://localhost:8080"}],
            "paths": {"/people/search/findByName": {"get": {
                "tags": ["person-search-controller"], "operationId": "executeSearch-person-get",
                "parameters": [{"name": "sort", "in": "query", "required": False, "schema": {"type": "array", "items": {"type": "string"}}},
                               {"name": "Accept-Language", "in": "header", "schema": {"type": "string"}}],
                "responses": {"200": {"description": "OK", "content": {"*/*": {"schema": {"type": "object"}},
                    "application/hal+json": {"schema": {"$ref": "#/components/schemas/EntityModelPerson"}}}}}}}},
            "components": {"schemas": {
                "EntityModelPerson": {"type": "object", "properties": {"_links": {"$ref": "#/components/schemas/Links"},
                    "friends": {"type": "array", "items": {"$ref": "#/components/schemas/EntityModelPerson"}}}},
                "Links": {"type": "object", "additionalProperties": {"$ref": "#/components/schemas/Link"}},
                "Link": {"type": "object", "properties": {"href": {"type": "string"}, "templated": {"type": "boolean"}}}}}}),
        operations=("GET /people/search/findByName sort Accept-Language",),
    ),
    Published(
        name="one operation with long lists of choices in a query, without explode",
        text="""
            openapi: 3.1.0
            info: {title: Forecast, version: "1"}
            paths:
              /v1/forecast:
                servers: [{url: "https://forecast.example"}]
                get:
                  tags: [Weather]
                  parameters:
                    - {name: hourly, in: query, explode: false, schema: {type: array, items: {type: string, enum: [temperature_2m, rain, snowfall]}}}
                    - {name: latitude, in: query, required: true, schema: {type: number, format: float}}
                    - {name: longitude, in: query, required: true, schema: {type: number, format: float}}
                  responses: {"200": {description: OK}, "400": {description: Bad Request}}
            """,
        operations=("GET /v1/forecast hourly latitude longitude",),
    ),
    Published(
        name="a generator for TypeScript: allOf, names with brackets, versions in paths",
        text=json.dumps({
            "openapi": "3.0.0", "info": {"title": "Cats", "description": "", "version": "1.0", "contact": {}}, "tags": [], "servers": [],
            "paths": {
                "/api/v1/cats/{id}": {"get": {"operationId": "CatsController_findOne[0]", "parameters": [
                    {"name": "id", "required": True, "in": "path", "schema": {"type": "string"}},
                    {"name": "header", "in": "header", "required": False, "schema": {"default": "test", "type": "string"}}],
                    "responses": {"200": {"description": ""}}, "security": [{"basic": []}]}},
                "/api/v1/cats": {"post": {"operationId": "CatsController_create", "parameters": [],
                    "requestBody": {"required": True, "content": {"application/json": {"schema": {"allOf": [
                        {"$ref": "#/components/schemas/Animal"}, {"type": "object", "properties": {"age": {"type": "number"}}}]}}}},
                    "responses": {"201": {"description": ""}}}}},
            "components": {"schemas": {"Animal": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}}}}),
        operations=("GET /api/v1/cats/{id} *", "POST /api/v1/cats body"),
        codes=("header_not_forwarded",),
    ),
    Published(
        name="a generator for .NET: three media types for one body, $ref beside a description",
        text=json.dumps({
            "openapi": "3.1.1", "info": {"title": "Api", "version": "v1"},
            "paths": {"/Orders": {"post": {"tags": ["Orders"], "requestBody": {"content": {
                kind: {"schema": {"$ref": "#/components/schemas/Order", "description": "The order"}}
                for kind in ("application/json", "text/json", "application/*+json")}},
                "responses": {"200": {"description": "OK"}}}}},
            "components": {"schemas": {"Order": {"required": ["id"], "type": "object", "properties": {
                "id": {"pattern": "^-?(?:0|[1-9]\\d*)$", "type": ["integer", "string"], "format": "int32"},
                "status": {"enum": [0, 1, 2], "type": "integer", "format": "int32"}}, "additionalProperties": False}}}}),
        operations=("POST /Orders body",),
    ),
    Published(
        name="a generator for Python: bodies by reference, an upload, null in anyOf",
        text=json.dumps({
            "openapi": "3.1.0", "info": {"title": "FastAPI", "version": "0.1.0"},
            "paths": {
                "/words": {"get": {"summary": "Words", "operationId": "words_words_get", "parameters": [
                    {"name": "q", "in": "query", "required": True, "schema": {"type": "string", "title": "Q"}},
                    {"name": "lang", "in": "query", "required": False, "schema": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "Lang"}}],
                    "responses": {"200": {"description": "Successful Response", "content": {"application/json": {"schema": {}}}}}}},
                "/ocr": {"post": {"operationId": "ocr_ocr_post", "requestBody": {"required": True, "content": {
                    "multipart/form-data": {"schema": {"$ref": "#/components/schemas/Body_ocr_ocr_post"}}}},
                    "responses": {"422": {"description": "Validation Error"}}}}},
            "components": {"schemas": {"Body_ocr_ocr_post": {"type": "object", "title": "Body_ocr_ocr_post", "required": ["file"], "properties": {
                "file": {"type": "string", "contentMediaType": "application/octet-stream", "title": "File"}}}}}}),
        operations=("GET /words q lang", "POST /ocr *"),
    ),
    Published(
        name="a pet store: a base path in servers, a form, an upload, XML names, tags",
        text="""
            openapi: 3.0.4
            info: {title: Pets, version: 1.0.27, license: {name: Apache 2.0, url: "https://example.com/license"}}
            externalDocs: {url: "https://example.com"}
            servers: [{url: /api/v3}]
            paths:
              /pet/{petId}/uploadImage:
                post:
                  operationId: uploadFile
                  parameters:
                    - {name: petId, in: path, required: true, schema: {type: integer, format: int64}}
                  requestBody: {content: {application/octet-stream: {schema: {type: string, format: binary}}}}
                  responses: {"200": {description: done, headers: {X-Rate-Limit: {schema: {type: integer}}}}}
                  security: [{auth: ["write:pets"]}]
              /pet/findByStatus:
                get:
                  parameters:
                    - {name: status, in: query, explode: true, schema: {type: string, default: available, enum: [available, sold]}}
                  responses:
                    "200": {description: done, content: {application/xml: {schema: {type: array, items: {$ref: "#/components/schemas/Pet"}}}}}
            components:
              schemas:
                Pet: {type: object, required: [name], properties: {name: {type: string, example: doggie}}, xml: {name: pet}}
              securitySchemes:
                auth: {type: oauth2, flows: {implicit: {authorizationUrl: "https://example.com/oauth", scopes: {"write:pets": modify}}}}
            """,
        operations=("POST /pet/{petId}/uploadImage *", "GET /pet/findByStatus status"),
        codes=("servers_differ",),
    ),
    Published(
        name="a data set: variables in servers, a form with defaults",
        text="""
            openapi: 3.0.1
            servers: [{url: "{scheme}://developer.example/ds-api", variables: {scheme: {enum: [https, http], default: https}}}]
            info: {title: Data Set, version: 1.0.0}
            paths:
              /{dataset}/{version}/records:
                post:
                  operationId: perform-search
                  parameters:
                    - {name: version, in: path, required: true, schema: {type: string, default: v1}}
                    - {name: dataset, in: path, required: true, schema: {type: string, default: oa_citations}}
                  requestBody:
                    content:
                      application/x-www-form-urlencoded:
                        schema: {type: object, required: [criteria], properties: {criteria: {type: string, default: "*:*"}, rows: {type: integer, default: 100}}}
                  responses: {"200": {description: done}}
            """,
        operations=("POST /{dataset}/{version}/records *",),
        codes=("servers_differ",),
    ),
    Published(
        name="callbacks and links",
        text="""
            openapi: 3.0.0
            info: {title: Callbacks, version: 1.0.0}
            paths:
              /streams:
                post:
                  parameters:
                    - {name: callbackUrl, in: query, required: true, schema: {type: string, format: uri, example: "https://example.com"}}
                  responses: {"201": {description: subscribed, links: {next: {operationRef: "#/paths/~1streams/post", parameters: {id: "$response.body#/id"}}}}}
                  callbacks: {onData: {"{$request.query.callbackUrl}/data": {post: {responses: {"202": {description: taken}}}}}}
            """,
        operations=("POST /streams callbackUrl",),
    ),
    Published(
        name="webhooks and no paths: there is nothing to call but the API itself",
        text="""
            openapi: 3.1.0
            info: {title: Webhooks, version: 1.0.0}
            webhooks: {newPet: {post: {requestBody: {content: {application/json: {schema: {$ref: "#/components/schemas/Pet"}}}}}}}
            components: {schemas: {Pet: {type: object}}}
            """,
        operations=("the API as a whole",),
    ),
    Published(
        name="tags of 3.2 with a parent, and a method of 3.2",
        text="""
            openapi: 3.2.0
            info: {title: Tags, version: 1.0.0}
            tags: [{name: account, summary: Account, kind: nav}, {name: update, parent: account}]
            paths:
              /accounts:
                get: {tags: [update], responses: {"200": {description: done}}}
                query: {responses: {"200": {description: done}}}
                additionalOperations: {COPY: {responses: {"200": {description: done}}}}
            """,
        operations=("GET /accounts",),
    ),
    Published(
        name="examples without schemas",
        text="""
            openapi: 3.0.0
            info: {title: Versions, version: v2}
            paths:
              /:
                get:
                  operationId: listVersionsv2
                  responses:
                    "200": {description: 200 response, content: {application/json: {examples: {foo: {value: {versions: [{status: CURRENT}]}}}}}}
              /v2:
                get: {responses: {"203": {description: 203 response, content: {application/json: {examples: {foo: {value: {}}}}}}}}
            """,
        operations=("GET /", "GET /v2"),
    ),
    Published(
        name="a museum: parameters with patterns, a deprecated operation, an image",
        text="""
            openapi: 3.1.0
            info: {title: Museum, version: 1.2.1}
            paths:
              /tickets/{ticketId}/qr:
                get:
                  deprecated: true
                  parameters:
                    - {name: ticketId, in: path, required: true, schema: {$ref: "#/components/schemas/TicketId"}}
                    - {name: startDate, in: query, schema: {type: string, format: date, default: today, pattern: '^\\d{4}-\\d{2}-\\d{2}$'}}
                  responses: {"200": {description: The ticket, content: {image/png: {schema: {$ref: "#/components/schemas/Image"}}}}}
            components:
              schemas:
                TicketId: {type: string, format: uuid, examples: [a54a57ca-36f8-421b-a6b4-2e8f26858a4c]}
                Image: {type: string, format: binary}
            """,
        operations=("GET /tickets/{ticketId}/qr ticketId startDate",),
    ),
    Published(
        name="a game: parameters of 3.1 that share a schema of a number",
        text="""
            openapi: 3.1.0
            info: {title: Tic Tac Toe, version: 1.0.0}
            paths:
              /board/{row}/{column}:
                parameters: [{$ref: "#/components/parameters/row"}, {$ref: "#/components/parameters/column"}]
                put:
                  requestBody: {required: true, content: {application/json: {schema: {$ref: "#/components/schemas/mark"}}}}
                  responses: {"200": {description: OK, content: {application/json: {schema: {type: string, enum: [".", X, O]}}}}}
            components:
              parameters:
                row: {name: row, in: path, required: true, schema: {$ref: "#/components/schemas/coordinate"}}
                column: {name: column, in: path, required: true, schema: {$ref: "#/components/schemas/coordinate"}}
              schemas:
                coordinate: {type: integer, minimum: 1, maximum: 3, example: 1}
                mark: {type: string, enum: [".", X, O]}
            """,
        operations=("PUT /board/{row}/{column} row column body",),
    ),
    Published(
        name="anchors and merge keys",
        text="""
            openapi: 3.0.3
            info: {title: Anchors, version: "1"}
            x-common: &common
              parameters: [{name: limit, in: query, schema: {type: integer}}]
              responses: {"200": {description: done}}
            paths:
              /a: {get: {<<: *common, summary: A}}
              /b: {get: *common}
            """,
        operations=("GET /a limit", "GET /b limit"),
    ),
    Published(
        name="Swagger 2.0",
        text='{"swagger": "2.0", "info": {"title": "Pets", "version": "1"}, "basePath": "/api", "paths": {}}',
        refusal="is Swagger 2.0; convert it to OpenAPI 3.0 or later",
    ),
    Published(name="a version that is a number", text="openapi: 3.0\npaths: {}", refusal='write `openapi: "3.0.3"`'),
    Published(name="a page in place of a document", text="<!doctype html><html><body>Sign in</body></html>", refusal="must be an object"),
)  # fmt: skip


async def read_document(text: str) -> Mapping[str, Any]:
    async def fetch(url: str) -> bytes:
        return text.encode()

    return await ProviderDocuments(fetch).read("https://api.example.com/openapi")


def name_operations(view: Any) -> tuple[str, ...]:
    """Each with the names of its arguments."""
    return tuple(
        "the API as a whole"
        if one.is_any
        else " ".join([one.method, one.path, *(argument.name for argument in one.arguments)])
        for one in view.operations
    )


@pytest.mark.parametrize(
    "published", [one for one in DOCUMENTS if one.refusal is None], ids=lambda one: one.name
)
async def test_a_document_of_a_published_shape_is_listed(published: Published) -> None:
    document = await read_document(published.text)
    view = show_listing(openapi=document)
    names = name_operations(view)
    for name, expected in zip(names, published.operations, strict=True):
        if expected.endswith(" *"):
            assert name.startswith(expected.removesuffix(" *"))
        else:
            assert name == expected
    warnings = list_warnings(sample_listing(provider=PROVIDER, openapi=document), ())
    assert tuple(sorted({one.code for one in warnings} - {"unusual_currency"})) == published.codes
    validate(
        build_openapi(
            view.listing, gateway_url=view.gateway_url, options_at=lambda offered: view.options[offered]
        )
    )
    for operation in view.operations:
        tool = api_tool(view.listing, operation)
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["type"] == "object"
        if operation.output_schema is not None:
            Draft202012Validator.check_schema(operation.output_schema)
    assert json_size(describe_for_agents(view, DEFAULT_LIMITS)[0]) <= AGENT_BYTES_MAX
    assert len(write_listing_text(view)) <= TEXT_LENGTH_MAX


@pytest.mark.parametrize(
    "published", [one for one in DOCUMENTS if one.refusal is not None], ids=lambda one: one.name
)
async def test_what_is_no_document_is_refused_with_its_cause(published: Published) -> None:
    with pytest.raises(Refusal) as refused:
        await read_document(published.text)
    assert published.refusal is not None
    assert published.refusal in refused.value.problem.detail
