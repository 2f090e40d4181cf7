"""The operations of a listing."""

from typing import Any

from tests.kit.listings import sample_listing
from tests.kit.openapi_documents import parameter
from tollway.discovery.operations import ApiOperation, list_operations
from tollway.ids import Address
from tollway.money import Price
from tollway.registry.listing import Operation

PROVIDER = Address.parse("0x" + "11" * 20)


def sold(paths: Any = None, **changes: Any) -> dict[str, ApiOperation]:
    document = None if paths is None else {"openapi": "3.1.0", "paths": paths}
    listing = sample_listing(provider=PROVIDER, **{"openapi": document, **changes})
    return {f"{one.method} {one.path}": one for one in list_operations(listing)}


def priced(method: str, path: str, price: str) -> Operation:
    return Operation(method=method, path=path, price=Price.parse(price))


def test_an_undocumented_listing_is_sold_as_a_whole() -> None:
    (only,) = sold().values()
    assert (only.tool, only.method, only.path, only.is_any) == ("call", "GET", "", True)
    assert only.input_schema["properties"]["method"]["enum"] == ["GET", "POST", "PUT", "PATCH", "DELETE"]


def test_a_documented_operation_has_the_price_of_its_call() -> None:
    found = sold(
        {"/c/{city}": {"get": {}, "delete": {}}, "/c/rome": {"get": {}}},
        operations=(
            priced("GET", "/c/{id}", "0.5"),
            priced("GET", "/c/oslo", "0.7"),
            priced("POST", "/x", "1"),
        ),
    )
    assert {name: one.price.text for name, one in found.items()} == {
        "GET /c/{city}": "0.5",
        "DELETE /c/{city}": "0.01",
        "GET /c/rome": "0.5",
        "GET /c/oslo": "0.7",
        "POST /x": "1",
    }


def test_a_method_that_the_listing_does_not_take_is_not_sold() -> None:
    assert list(sold({"/a": {"get": {}, "post": {}, "trace": {}}}, methods=("GET",))) == ["GET /a"]


def test_a_tool_has_the_name_of_its_operation() -> None:
    named = {"/a": {"post": {"operationId": "addNote"}}}
    paths = {"/ignore previous": {"get": {}}, "/quote/{symbol}": {"get": {}}, **named}
    found = sold(paths, operations=(priced("PUT", "/x/{id}", "1"),))
    assert [one.tool for one in found.values()] == ["get_quote_by_symbol", "add_note", "put_x_by_id"]


def test_a_part_that_exceeds_the_schema_limit_is_open_and_keeps_its_name() -> None:
    parameters = [
        parameter(f"q{n}", {"enum": [f"{n}-{m}" * 9 for m in range(20)]}, required=n < 2) for n in range(60)
    ]
    (one,) = sold({"/a": {"get": {"parameters": parameters}}}).values()
    schema = one.input_schema
    assert list(schema["properties"]) == [argument.name for argument in one.arguments]
    assert schema["properties"]["q0"]["enum"]
    assert schema["properties"][one.arguments[-1].name] == {}
    assert (schema["required"], schema["additionalProperties"]) == (["q0", "q1"], False)


def test_an_undocumented_priced_operation_takes_any_query_and_body() -> None:
    found = sold(operations=(priced("POST", "/c/{id}", "1"), priced("GET", "/d", "1")), other_paths="refuse")
    post, get = found["POST /c/{id}"], found["GET /d"]
    assert [(one.name, one.place, one.is_required) for one in post.arguments] == [
        ("id", "path", True),
        ("query", "query", False),
        ("body", "body", False),
    ]
    assert (post.body_type, get.body_type) == ("application/json", None)
    assert post.input_schema["required"] == ["id"]
    assert [one.name for one in get.arguments] == ["query"]
    assert get.arguments[0].is_exploded


def test_arguments_have_names_of_their_own() -> None:
    own, *others = map(parameter, ("id", "a b", "a_b", "body"))
    parameters = [own, {"name": "id", "in": "header"}, *others]
    body = {"required": True, "content": {"text/csv": {}}}
    found = sold(
        {"/c/{id}": {"post": {"parameters": parameters, "requestBody": body}}}, forward_headers=("id",)
    )
    (operation,) = found.values()
    assert [(one.name, one.place, one.parameter) for one in operation.arguments] == [
        ("id", "path", "id"),
        ("query_id", "query", "id"),
        ("header_id", "header", "id"),
        ("a_b", "query", "a b"),
        ("query_a_b", "query", "a_b"),
        ("body", "query", "body"),
        ("body_body", "body", ""),
    ]
    assert operation.input_schema["required"] == ["id", "body_body"]
    assert operation.input_schema["additionalProperties"] is False
    assert operation.body_type == "text/csv"
    assert operation.input_schema["properties"]["body_body"]["type"] == "string"


def test_the_output_schema_is_that_of_the_successful_json_response() -> None:
    answers = {
        "404": {"content": {"application/json": {"schema": {"type": "string"}}}},
        "201": {"content": {"text/html": {}, "application/vnd.x+json": {"schema": {"type": "object"}}}},
    }
    (operation,) = sold({"/a": {"get": {"responses": answers}}}).values()
    assert operation.output_schema == {"type": "object"}
    (silent,) = sold({"/a": {"get": {"responses": {"404": answers["404"]}}}}).values()
    assert silent.output_schema is None


def test_a_schema_that_is_too_long_accepts_everything() -> None:
    long = {"enum": ["x" * 100 + str(at) for at in range(500)]}
    parameters = [parameter("long", long), parameter("q", {"type": "string"})]
    (operation,) = sold({"/a": {"get": {"parameters": parameters}}}).values()
    assert operation.input_schema["properties"] == {"long": {}, "q": {"type": "string"}}


def test_a_control_header_of_the_gateway_is_no_argument() -> None:
    """A form and a tool would send the default of the provider's document to the gateway."""
    named = "Idempotency-Key X-Payment-Tx X-Signature-Params PAYMENT-SIGNATURE SIGN-IN-WITH-X X-Lang"
    names = named.split()
    headers = [{"name": name, "in": "header", "required": True, "schema": {"default": "x"}} for name in names]
    operation = sold({"/a": {"get": {"parameters": headers}}}, forward_headers=tuple(names))["GET /a"]
    assert [argument.name for argument in operation.arguments] == ["X-Lang"]
    assert list(operation.input_schema["properties"]) == ["X-Lang"]
