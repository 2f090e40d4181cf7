"""Arguments become a request: equal arguments make equal bytes, and no value leaves its place in the URL."""

from typing import Any

import pytest

from tollway.discovery.operations import ApiOperation, Argument
from tollway.discovery.requests import ToolRequest, make_request
from tollway.errors import FieldError
from tollway.money import Price


def argument(name: str, place: Any = "query", **given: Any) -> Argument:
    styles: dict[str, Any] = {"style": "form", "is_exploded": True} if place == "query" else {}
    parameter = "" if place == "body" else name
    fields: dict[str, Any] = {"parameter": parameter, "is_required": False, **styles}
    return Argument(name=name, place=place, **{**fields, **given})


def operation(*arguments: Argument, **given: Any) -> ApiOperation:
    fields: dict[str, Any] = {
        "tool": "get_1",
        "method": "GET",
        "path": "/v1/{city}",
        "summary": "",
        "description": "",
        "input_schema": {},
        "output_schema": None,
        "body_type": None,
        "price": Price.parse("0.01"),
    }
    return ApiOperation(arguments=arguments, **{**fields, **given})


def make(sold: ApiOperation, arguments: dict[str, Any]) -> ToolRequest:
    request = make_request(sold, arguments)
    assert isinstance(request, ToolRequest), request
    return request


CITY = argument("city", "path", is_required=True, style="simple")

TARGETS: list[tuple[tuple[Argument, ...], dict[str, Any], str]] = [
    ((CITY,), {"city": "Berlin"}, "/v1/Berlin"),
    ((CITY,), {"city": "a/../b"}, "/v1/a%2F..%2Fb"),
    ((CITY,), {"city": "a?b#c%"}, "/v1/a%3Fb%23c%25"),
    ((CITY,), {"city": "Zürich"}, "/v1/Z%C3%BCrich"),
    ((CITY,), {"city": 7}, "/v1/7"),
    ((CITY,), {"city": ["a", "b"]}, "/v1/a,b"),
    ((CITY, argument("n")), {"city": "x", "n": 3}, "/v1/x?n=3"),
    ((CITY, argument("n")), {"city": "x", "n": None}, "/v1/x"),
    ((CITY, argument("ok")), {"city": "x", "ok": True}, "/v1/x?ok=true"),
    ((CITY, argument("f")), {"city": "x", "f": 0.5}, "/v1/x?f=0.5"),
    ((CITY, argument("q")), {"city": "x", "q": "a b&c=d"}, "/v1/x?q=a%20b%26c%3Dd"),
    ((CITY, argument("n")), {"city": "x", "n": [1, 2]}, "/v1/x?n=1&n=2"),
    ((CITY, argument("n", is_exploded=False)), {"city": "x", "n": [1, "a,b"]}, "/v1/x?n=1,a%2Cb"),
    (
        (CITY, argument("n", style="pipeDelimited", is_exploded=False)),
        {"city": "x", "n": [1, 2]},
        "/v1/x?n=1%7C2",
    ),
    ((CITY, argument("n", is_exploded=False)), {"city": "x", "n": []}, "/v1/x"),
    ((CITY, argument("n")), {"city": "x", "n": {"b": 2, "a": 1}}, "/v1/x?a=1&b=2"),
    (
        (CITY, argument("n", style="deepObject")),
        {"city": "x", "n": {"b": 2, "a": 1}},
        "/v1/x?n%5Ba%5D=1&n%5Bb%5D=2",
    ),
    ((CITY, argument("n", is_exploded=False)), {"city": "x", "n": {"b": 2, "a": 1}}, "/v1/x?n=a,1,b,2"),
]


@pytest.mark.parametrize(("arguments", "given", "target"), TARGETS)
def test_arguments_stand_where_the_document_puts_them(
    arguments: tuple[Argument, ...], given: dict[str, Any], target: str
) -> None:
    assert make(operation(*arguments), given).target == target


@pytest.mark.parametrize("city", ["", ".", "..", None, []])
def test_a_part_of_the_path_is_never_empty_nor_dots(city: Any) -> None:
    refused = make_request(operation(CITY), {"city": city})
    assert isinstance(refused, FieldError)
    assert refused.pointer == "/city"


def test_the_order_of_arguments_and_of_members_makes_no_difference() -> None:
    sold = operation(
        argument("b"), argument("a"), argument("body", "body"), path="/v1", body_type="application/json"
    )
    first = make(sold, {"a": 1, "b": 2, "body": {"x": 1, "y": {"p": 1, "q": 2}}})
    assert first == make(sold, {"body": {"y": {"q": 2, "p": 1}, "x": 1}, "b": 2, "a": 1})
    assert first.body == b'{"x":1,"y":{"p":1,"q":2}}'


@pytest.mark.parametrize(
    ("media_type", "content", "body"),
    [
        ("application/json", {"a": "é"}, '{"a":"é"}'.encode()),
        ("application/json", None, b"null"),
        ("application/merge-patch+json", [1], b"[1]"),
        ("application/x-www-form-urlencoded", {"b": [1, 2], "a": "x y"}, b"a=x+y&b=1&b=2"),
        ("application/x-www-form-urlencoded", "a=1", b"a=1"),
        ("text/csv", "a;b\n", b"a;b\n"),
    ],
)
def test_a_body_is_encoded_by_its_media_type(media_type: str, content: Any, body: bytes) -> None:
    sold = operation(argument("body", "body"), path="", method="POST", body_type=media_type)
    request = make(sold, {"body": content})
    assert request.body == body
    assert request.headers == (("content-type", media_type),)


def test_without_a_body_there_is_no_media_type() -> None:
    sold = operation(argument("body", "body"), path="", method="POST", body_type="application/json")
    assert make(sold, {}) == ToolRequest(method="POST", rest="")


def test_headers_hold_printable_ascii_only() -> None:
    sold = operation(argument("Range", "header"), path="")
    assert make(sold, {"Range": "bytes=0-1"}).headers == (("Range", "bytes=0-1"),)
    for value in ("a\r\nX-Payment-Tx: 1", "é", "\x00"):
        assert isinstance(make_request(sold, {"Range": value}), FieldError)


@pytest.mark.parametrize("value", ["\ud800", {"a": "\ud800"}, float("nan")])
def test_values_that_no_request_can_carry_are_refused(value: Any) -> None:
    sold = operation(argument("body", "body"), path="", method="POST", body_type="application/json")
    refused = make_request(sold, {"body": value})
    assert isinstance(refused, FieldError)
    assert (refused.code, refused.pointer) == ("unwritable", "/body")


@pytest.mark.parametrize(
    ("arguments", "method", "target"),
    [
        ({}, "GET", ""),
        ({"path": "/v1/x"}, "GET", "/v1/x"),
        ({"path": "v1/x"}, "GET", "/v1/x"),
        ({"path": "/v1/x?a=1", "query": {"b": "2"}}, "GET", "/v1/x?a=1&b=2"),
        ({"path": "/a b", "method": "DELETE"}, "DELETE", "/a%20b"),
        ({"path": "/a%20b"}, "GET", "/a%20b"),
    ],
)
def test_the_caller_chooses_the_request_of_an_undocumented_listing(
    arguments: dict[str, Any], method: str, target: str
) -> None:
    request = make(operation(path="", is_any=True), arguments)
    assert (request.method, request.target, request.body) == (method, target, b"")


def test_an_undocumented_listing_takes_any_json() -> None:
    request = make(operation(path="", is_any=True), {"method": "POST", "body": [1]})
    assert (request.body, request.headers) == (b"[1]", (("content-type", "application/json"),))
