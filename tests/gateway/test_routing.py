"""Table of routing: the first problem in the order of the HTTP contract, else the route."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.gateway import gateway_listing
from tests.kit.narrowing import of_type
from tests.kit.proxy_requests import sample_request
from tollway.errors import Code, Problem
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.routing import RequestSchemas, Route, Router
from tollway.money import Price
from tollway.outbound.policy import Endpoint
from tollway.registry.listing import CatalogEntry, Operation, UpstreamAuth

LISTING = gateway_listing()
CITY = Operation(method="GET", path="/v1/cities/{city}", price=Price.parse("0.02"))
FREE = Operation(method="GET", path="/v1/cities/{city}", price=Price.parse("0"))
LOST = UpstreamAuth(location="header", name="X-Key", value=None)
HIDDEN = {"endpoint": "http://169.254.169.254/latest"}


def request(rest: str = "/v1/cities/rome", method: str = "GET") -> ProxyRequest:
    return sample_request(method, rest, "x=1")


def find(
    asked: ProxyRequest,
    *,
    older: tuple[Operation, ...] | None = None,
    wait_s: int | None = None,
    **changes: Any,
) -> Route | Problem:
    listing = replace(LISTING, **changes)
    versions = [listing.current_terms(since_ms=0)]
    if older is not None:
        versions.append(replace(versions[0], operations=older))
    router = Router(wait_s=lambda endpoint: wait_s, allow_private=False, schemas=RequestSchemas())
    return router.match(CatalogEntry(listing=listing, versions=tuple(versions)), asked)


def opened(found: Route | Problem) -> Route:
    assert isinstance(found, Route), found
    return found


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"status": "paused", "methods": ("POST",), **HIDDEN}, Code.API_PAUSED),
        ({"status": "paused", "upstream_auth": LOST}, Code.API_PAUSED),
        ({"upstream_auth": LOST, "wait_s": 3, "methods": ("POST",), **HIDDEN}, Code.STORAGE_UNAVAILABLE),
        ({"wait_s": 3, "methods": ("POST",), "other_paths": "refuse"}, Code.UPSTREAM_UNAVAILABLE),
        ({"methods": ("POST",), "other_paths": "refuse", **HIDDEN}, Code.METHOD_NOT_ALLOWED),
        ({"other_paths": "refuse", **HIDDEN}, Code.ROUTE_NOT_FOUND),
        (HIDDEN, Code.UPSTREAM_UNREACHABLE),
        ({"wait_s": 3, **HIDDEN}, Code.UPSTREAM_UNREACHABLE),  # no connection was attempted
    ],
)
def test_reports_a_closed_listing_in_the_order_of_the_contract(changes: dict[str, Any], code: Code) -> None:
    problem = of_type(Problem, find(request(), **{"endpoint": "https://api.example.com/base", **changes}))
    assert problem.code is code


def test_an_open_one_leads_to_its_endpoint_byte_for_byte() -> None:
    opening = opened(find(request("/a%2Fb//c"), endpoint="https://api.example.com/base/"))
    assert opening.target == "/base/a%2Fb//c?x=1"
    assert isinstance(opening.endpoint, Endpoint)
    assert opening.endpoint.origin == "https://api.example.com"


@pytest.mark.parametrize(
    ("operations", "older", "prices"),
    [
        ((), None, ["0.01"]),
        ((CITY,), None, ["0.02"]),
        ((CITY,), (), ["0.02", "0.01"]),
        ((), (CITY,), ["0.01", "0.02"]),
        ((FREE,), (CITY,), ["0", "0.02"]),
    ],
)
def test_lists_the_price_of_each_version_of_the_terms_the_current_one_first(
    operations: tuple[Operation, ...], older: tuple[Operation, ...] | None, prices: list[str]
) -> None:
    opening = opened(
        find(request(), operations=operations, older=older, endpoint="https://api.example.com/base")
    )
    assert [operation_price.price.text for operation_price in opening.operation_prices] == prices
    assert opening.is_free == (prices[0] == "0")


@pytest.mark.parametrize(
    ("method", "older", "is_sold"),
    [
        ("GET", {}, True),
        ("GET", {"methods": ("GET",)}, True),
        ("HEAD", {"methods": ("GET",)}, True),
        ("POST", {"methods": ("GET",)}, False),
        ("GET", {"status": "paused"}, False),
        ("GET", {"status": "suspended"}, False),
        ("GET", {"status": "retired"}, False),
        ("GET", {"other_paths": "refuse"}, False),
        ("GET", {"other_paths": "refuse", "operations": (CITY,)}, True),
        ("HEAD", {"other_paths": "refuse", "operations": (CITY,)}, True),
        ("POST", {"other_paths": "refuse", "operations": (CITY,)}, False),
        ("GET", {"other_paths": "refuse", "described": (("GET", "/v1/cities/{name}"),)}, True),
        ("HEAD", {"other_paths": "refuse", "described": (("GET", "/v1/cities/{name}"),)}, True),
        ("POST", {"other_paths": "refuse", "described": (("GET", "/v1/cities/{name}"),)}, False),
        ("GET", {"other_paths": "refuse", "described": (("GET", "/v1/cities"),)}, False),
        (
            "HEAD",  # that version took no GET, so the document of its time described nothing that it served
            {"other_paths": "refuse", "methods": ("HEAD",), "described": (("GET", "/v1/cities/{name}"),)},
            False,
        ),
        ("GET", {"described": (("GET", "/v1/cities"),)}, True),
    ],
)
def test_a_version_that_would_have_refused_the_call_sets_no_price(
    method: str, older: dict[str, Any], is_sold: bool
) -> None:
    listing = replace(LISTING, price=Price.parse("7"), endpoint="https://api.example.com")
    current = listing.current_terms(since_ms=1)
    before = replace(current, price=Price.parse("0.5"), since_ms=0, until_ms=1, **older)
    router = Router(wait_s=lambda endpoint: None, allow_private=False, schemas=RequestSchemas())
    entry = CatalogEntry(listing=listing, versions=(current, before))
    for _ in range(2):  # what a version described is worked out once
        opening = opened(router.match(entry, request(method=method)))
        assert [operation_price.terms for operation_price in opening.operation_prices] == [current, before][
            : 1 + is_sold
        ]


def test_a_paused_listing_sells_nothing_at_the_price_of_before() -> None:
    listing = replace(LISTING, status="paused", endpoint="https://api.example.com")
    before = replace(listing, status="active").current_terms(since_ms=0)
    versions = (listing.current_terms(since_ms=1), replace(before, until_ms=1))
    router = Router(wait_s=lambda endpoint: None, allow_private=False, schemas=RequestSchemas())
    problem = of_type(Problem, router.match(CatalogEntry(listing=listing, versions=versions), request()))
    assert problem.code is Code.API_PAUSED


DOCUMENT = {
    "openapi": "3.1.0",
    "paths": {
        "/v1/cities/{city}": {"get": {}, "post": {}},
        "/v1/Cities/all": {"get": {}},
        "/v1/tiles/{z}/{x}.{format}": {"get": {}},
        "/v1/only": {"head": {}},
    },
}


@pytest.mark.parametrize(
    ("method", "rest", "price"),
    [
        ("GET", "/v1/cities/rome", "0.01"),
        ("HEAD", "/v1/cities/rome", "0.01"),
        ("POST", "/v1/cities/rome/", "0.01"),
        ("GET", "//v1/%63ities;a=1/all", "0.01"),
        ("GET", "/v1/tiles/3/4.png", "0.01"),
        ("GET", "/v1/priced/9", "0.5"),
        ("HEAD", "/v1/only", "0.01"),
        ("GET", "/v1/only", Code.ROUTE_NOT_FOUND),
        ("DELETE", "/v1/cities/rome", Code.ROUTE_NOT_FOUND),
        ("GET", "/v1/cities", Code.ROUTE_NOT_FOUND),
        ("GET", "", Code.ROUTE_NOT_FOUND),
        ("GET", "/v1/tiles/3/png", Code.ROUTE_NOT_FOUND),
        ("GET", "/v1/cities/rome%2Fsecret", Code.INVALID_REQUEST),
        ("GET", "/v1/cities/..%2f..%2fadmin", Code.INVALID_REQUEST),
        ("GET", "/v1/cities/x%5c..%5c..%5cadmin", Code.INVALID_REQUEST),
        ("GET", "/v1/priced/..%252f..%252fadmin", Code.INVALID_REQUEST),
    ],
)
def test_a_listing_that_refuses_other_paths_serves_what_is_documented_or_priced(
    method: str, rest: str, price: str | Code
) -> None:
    priced = Operation(method="GET", path="/v1/priced/{id}", price=Price.parse("0.5"))
    found = find(
        request(rest, method=method),
        other_paths="refuse",
        operations=(priced,),
        openapi=DOCUMENT,
        endpoint="https://api.example.com",
    )
    if isinstance(found, Problem):
        assert found.code is price
    else:
        assert found.operation_prices[0].price.text == price


def test_the_document_serves_no_method_that_the_listing_does_not_take() -> None:
    open_host = {"other_paths": "refuse", "openapi": DOCUMENT, "endpoint": "https://api.example.com"}
    assert isinstance(find(request(), methods=("GET",), **open_host), Route)
    problem = of_type(Problem, find(request(method="POST"), methods=("GET",), **open_host))
    assert problem.code is Code.METHOD_NOT_ALLOWED
