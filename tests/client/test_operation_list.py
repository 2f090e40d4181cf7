"""The operations of a listing after a request that none of them serves: of the document and with prices of their own, the nearest first."""

from typing import Any

import pytest

from tollway.client.operation_list import (
    OPERATIONS_MAX,
    OfferedOperation,
    find_near_operation,
    list_operations,
    order_by_similarity,
    serves,
)

OPERATIONS = [
    OfferedOperation(method=method, path=path, price="0.01 USDC")
    for method, path in (
        ("GET", "/quote/{symbol}"),
        ("GET", "/quotes"),
        ("POST", "/echo"),
        ("GET", "/v1/cities/{city}/weather"),
    )
]


@pytest.mark.parametrize(
    ("method", "path", "near"),
    [
        ("GET", "/qoute/ETH", "GET /quote/ETH"),
        ("GET", "quote/ETH?x=1", None),  # it exists
        ("POST", "/quote/ETH", "GET /quote/ETH"),
        ("GET", "/echo", "POST /echo"),
        ("GET", "/Quotes", "GET /quotes"),
        ("GET", "/v1/city/Bern/weather", "GET /v1/cities/Bern/weather"),
        ("GET", "/something/else/entirely", None),
        ("GET", "", None),
    ],
)
def test_the_nearest_operation_of_a_wrong_request(method: str, path: str, near: str | None) -> None:
    assert find_near_operation(OPERATIONS, method=method, path=path) == near
    if near is not None:
        assert near.startswith(order_by_similarity(OPERATIONS, method=method, path=path)[0].method)
        assert not serves(OPERATIONS, method=method, path=path)


def lines(**details: Any) -> list[str]:
    return [
        one.describe() for one in list_operations({"currency": "USDC", "pricePerRequest": "0.01", **details})
    ]


def test_a_metered_price_is_a_maximum() -> None:
    priced = {"method": "GET", "path": "/a", "pricePerRequest": "0.02"}
    operations = [priced, {**priced, "path": "/b", "metering": {}}]
    assert lines(operations=operations) == ["GET /a  0.02 USDC", "GET /b  up to 0.02 USDC"]
    words = ["/cities/{name}", "up to 0.01 USDC"]
    assert lines(openapi={"paths": {words[0]: {"get": {}}}}, metering={}) == [f"GET {'  '.join(words)}"]


DOCUMENT = {
    "paths": {
        "/words": {"get": {}, "parameters": []},
        "/ocr": {"post": {}},
        "/cities/{name}": {"get": {}, "delete": {}},
        "/cities/bern/weather": {"get": {}},
    }
}


def test_operations_of_the_document_are_listed_with_the_price_that_a_call_costs() -> None:
    priced = [
        {"method": "POST", "path": "/ocr", "pricePerRequest": "0.05"},
        {"method": "GET", "path": "/cities/{city}", "pricePerRequest": "0.02"},
        {"method": "GET", "path": "/{a}/{b}/weather", "pricePerRequest": "0.03"},
        {"method": "GET", "path": "/cities/{b}/{c}", "pricePerRequest": "0.04"},
        {"method": "POST", "path": "/translate", "pricePerRequest": "0"},
    ]
    assert lines(openapi=DOCUMENT, operations=priced) == [
        "GET /words  0.01 USDC",
        "POST /ocr  0.05 USDC",
        "GET /cities/{name}  0.02 USDC",
        "DELETE /cities/{name}  0.01 USDC",
        "GET /cities/bern/weather  0.04 USDC",
        "GET /{a}/{b}/weather  0.03 USDC",
        "GET /cities/{b}/{c}  0.04 USDC",
        "POST /translate  0 USDC",
    ]


def test_methods_that_the_listing_does_not_serve_are_left_out() -> None:
    assert [line.split()[0] for line in lines(openapi=DOCUMENT, methods=["POST"])] == ["POST"]


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"operations": "x", "openapi": []},
        {"operations": [1, None], "openapi": {"paths": []}},
        {
            "openapi": {
                "paths": {"words": {"get": {}}, "/a" * 200: {"get": {}}, "/b": [], "/c": {"get": 1, "x": {}}}
            }
        },
    ],
)
def test_what_cannot_be_read_is_left_out(details: dict[str, Any]) -> None:
    assert lines(**details) == []


def test_the_number_is_bounded_and_texts_are_safe() -> None:
    paths = {f"/p{number}": {"get": {}} for number in range(OPERATIONS_MAX + 5)}
    assert len(lines(openapi={"paths": paths})) == OPERATIONS_MAX
    (line,) = lines(openapi={"paths": {"/a\x1b[2J": {"get": {}}}})
    assert "\x1b" not in line
