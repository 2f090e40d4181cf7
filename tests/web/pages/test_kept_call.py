"""The call of a 402 in the form of its API: the fields of an operation where their request is that call again, else the call as it is."""

from typing import Any

import pytest

from tests.kit.listings import show_listing
from tollway.discovery.requests import ToolRequest, make_request
from tollway.money import Price
from tollway.registry.listing import Operation
from tollway.web.pages.kept_call import TARGET_LENGTH_MAX, FilledCall, KeptCall, fill_call, keep_call


def in_query(name: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": schema}


DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "x", "version": "1"},
    "paths": {
        "/quote/{symbol}": {
            "get": {
                "operationId": "quote",
                "parameters": [
                    {
                        "name": "symbol",
                        "in": "path",
                        "required": True,
                        "schema": {"type": "string"},
                        "example": "ETH",
                    },
                    {**in_query("days", type="integer", default=7)},
                    {**in_query("unit", enum=["USD", "EUR"])},
                    {**in_query("tag", type="array", items={"type": "string"})},
                    {"name": "X-Trace", "in": "header", "schema": {"type": "string", "default": "on"}},
                ],
                "responses": {},
            },
            "delete": {"operationId": "drop", "responses": {}},
        },
        "/quote/best": {"get": {"operationId": "best", "responses": {}}},
        "/a.{kind}": {"get": {"operationId": "kind", "responses": {}}},
        "/{a}{b}": {"get": {"operationId": "two", "responses": {}}},
    },
}
VIEW = show_listing(
    openapi=DOCUMENT,
    operations=(Operation(method="GET", path="/quote/{symbol}", price=Price.parse("0.05")),),
    forward_headers=("X-Trace",),
)


def fill(target: str, method: str = "GET") -> FilledCall:
    call = keep_call(method, target)
    assert call is not None
    return fill_call(VIEW.listing, VIEW.operations, call)


@pytest.mark.parametrize(
    ("target", "tool", "values"),
    [
        ("/quote/BTC", "quote", {"symbol": "BTC"}),
        ("/quote/BTC?days=3&unit=EUR", "quote", {"symbol": "BTC", "days": "3", "unit": "EUR"}),
        ("/quote/a%2Fb%20c", "quote", {"symbol": "a/b c"}),
        ("/quote/BTC?tag=a&tag=b%26c", "quote", {"symbol": "BTC", "tag": ["a", "b&c"]}),
        ("/quote/best", "best", {}),
        ("/a.json", "kind", {"kind": "json"}),
    ],
)
def test_a_described_call_fills_its_operation(target: str, tool: str, values: dict[str, Any]) -> None:
    filled = fill(target)
    assert (filled.operation.tool, filled.is_whole) == (tool, False)
    in_header = {"X-Trace": "on"} if tool == "quote" else {}
    assert filled.values == values | in_header
    request = make_request(filled.operation, values)
    assert isinstance(request, ToolRequest)
    assert sorted(request.target) == sorted(target)


@pytest.mark.parametrize(
    ("target", "price"),
    [
        ("/other/path?x=1", "0.01"),  # no operation
        ("/quote/BTC?unknown=1", "0.05"),  # a parameter that no field has
        ("/quote/BTC?days=", "0.05"),  # an empty field is not sent
        ("/quote/BTC?days=soon", "0.05"),  # a field of numbers
        ("/quote/BTC?unit=GBP", "0.05"),  # no choice of the field
        ("/quote/BTC?days=1&days=2", "0.05"),  # one field, two values
        ("/quote/BTC/", "0.05"),  # another path
        ("/ab", "0.01"),  # an ambiguous template
        ("?x=1", "0.01"),
        ("", "0.01"),
    ],
)
def test_another_call_is_kept_as_it_is(target: str, price: str) -> None:
    filled = fill(target)
    assert (filled.is_whole, filled.operation.is_any, filled.operation.method) == (True, True, "GET")
    assert filled.operation.price.text == price


def test_the_method_chooses_the_operation() -> None:
    assert fill("/quote/BTC", "DELETE").operation.tool == "drop"
    assert fill("/quote/BTC", "HEAD").operation.tool == "quote"
    assert fill("/quote/BTC", "POST").is_whole


@pytest.mark.parametrize("target", ["//x\n", "quote", "/ä", "/a b", "#x", "/" + "x" * TARGET_LENGTH_MAX])
def test_a_target_that_no_form_sends_is_not_kept(target: str) -> None:
    assert keep_call("GET", target) is None


def test_a_kept_call_is_that_of_a_form() -> None:
    assert keep_call("HEAD", "/x?y") == KeptCall(method="GET", target="/x?y")
