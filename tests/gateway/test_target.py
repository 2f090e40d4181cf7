"""Tables of targets: bytes unchanged, traversal refused in every reading, prices matched on one normal form."""

from dataclasses import dataclass

import pytest

from tests.kit.narrowing import of_type
from tollway.errors import Code, Problem
from tollway.gateway.target import (
    Target,
    add_query_secret,
    build_upstream_target,
    match_operation,
    normal_path,
    split_target,
)
from tollway.outbound.policy import Endpoint, parse_endpoint


def _endpoint(text: str) -> Endpoint:
    return of_type(Endpoint, parse_endpoint(text, allow_private=False))


BASE = _endpoint("https://api.example.com/v1/")


@pytest.mark.parametrize(
    ("raw", "query", "expected", "signed"),
    [
        (b"/api/v2/gateway/api_1", b"", ("api_1", "", ""), ""),
        (b"/api/v2/gateway/api_1/", b"", ("api_1", "/", ""), "/"),
        (
            b"/api/v2/gateway/api_1/a%2Fb//c;d",
            b"x=%20&y",
            ("api_1", "/a%2Fb//c;d", "x=%20&y"),
            "/a%2Fb//c;d?x=%20&y",
        ),
        (b"/api/v2/gateway/api_1", b"q", ("api_1", "", "q"), "?q"),
        ("/api/v2/gateway/api_1/é".encode(), b"", ("api_1", "/é", ""), "/é"),
    ],
)
def test_splits_the_raw_path_without_decoding(
    raw: bytes, query: bytes, expected: tuple[str, str, str], signed: str
) -> None:
    target = of_type(Target, split_target(raw, query))
    assert (target.api_id, target.rest, target.query) == expected
    assert target.signed == signed


@pytest.mark.parametrize(
    "raw",
    [b"/api/v2/gateway", b"/api/v2/gateway/", b"/api/v2/gateway//x", b"/api/v2/apis", b"/API/v2/gateway/a"],
)
def test_other_paths_are_no_gateway_call(raw: bytes) -> None:
    assert split_target(raw, b"") is None


@pytest.mark.parametrize(
    ("raw", "query"), [(b"/api/v2/gateway/a/\xff", b""), (b"/api/v2/gateway/a/", b"\xc0\xaf")]
)
def test_refuses_bytes_that_are_not_utf8(raw: bytes, query: bytes) -> None:
    refused = of_type(Problem, split_target(raw, query))
    assert refused.code is Code.INVALID_REQUEST


KEPT = [
    "/x",
    "/",
    "//",
    "/a//b/",
    "/a%2Fb",
    "/a%2fb",
    "/a%20b",
    "/a+b;v=1,2",
    "/%zz",
    "/%",
    "/100%25",
    "/%E2%82%AC",
    "/é",
    "/.well-known/x",
    "/...",
    "/..a",
    "/a..",
    "/a/./b",
    "/a/../b",
    "/a/%2e%2e/b",
    "/a%2f..%2fb",
    "/a;x=../b",
    "/a%5Cb",
    "/|^[]{}'\"<>`",
    "/a:b@c!$&'()*,=~-_",
]


@pytest.mark.parametrize("query", ["", "q=%2e%2e/../;&&é\\"])
def test_forwards_the_bytes_that_were_sent(query: str) -> None:
    after = f"?{query}" if query else ""
    targets = [build_upstream_target(BASE, rest, query) for rest in KEPT]
    assert targets == [f"/v1{rest}{after}" for rest in KEPT]


@pytest.mark.parametrize(
    ("endpoint", "rest", "query", "expected"),
    [
        ("https://a.example", "", "", "/"),
        ("https://a.example", "", "q=1", "/?q=1"),
        ("https://a.example", "/x", "", "/x"),
        ("https://a.example/", "", "", "/"),
        ("https://a.example/", "/", "", "/"),
        ("https://a.example/v1", "", "", "/v1"),
        ("https://a.example/v1", "/", "", "/v1/"),
        ("https://a.example/v1/", "", "", "/v1/"),
        ("https://a.example/v1/", "/x", "", "/v1/x"),
        ("https://a.example/p%2fq", "/x", "", "/p%2fq/x"),
    ],
)
def test_an_empty_rest_is_the_endpoint_itself(endpoint: str, rest: str, query: str, expected: str) -> None:
    assert build_upstream_target(_endpoint(endpoint), rest, query) == expected


ESCAPES = [
    "/..",
    "/../",
    "/../v2",
    "/../v1/x",
    "/a/../../v2",
    "/./../v2",
    "//../v2",
    "/a//../../v2",
    "/%2e%2e",
    "/%2E%2E/v2",
    "/.%2e/v2",
    "/%2e./v2",
    "/%252e%252e/v2",
    "/%25%32%65%25%32%65/v2",
    "/..%2fv2",
    "/..%2Fv2",
    "/..%252fv2",
    "/%2e%2e%2fv2",
    "/%252e%252e%252fv2",
    "/a%2f..%2f..%2fv2",
    "/..%5cv2",
    "/..%5Cv2",
    "/..%255cv2",
    "/%5c..%5cv2",
    "/..;/v2",
    "/..;v=1/v2",
    "/%2e%2e;v=1/v2",
    "/..%3b/v2",
    "/..%253bx/v2",
    "/a/..;/..;/v2",
    "/..\\v2",
    "/a\\b",
    "/%c0%ae%c0%ae/v2",
    "/..%c0%afv2",
    "/%e0%80%ae%e0%80%ae/v2",
    "/%u002e%u002e/v2",
    "/%25u002e%25u002e/v2",
    "/%00",
    "/x%00.json",
    "/%2500",
    "/%0d%0aX-Evil:1",
    "/%0a",
    "/%250a",
    "/%09",
    "/%7f",
    "/a b",
    "/a\tb",
    "/a\r\nb",
    "/a\x00",
    "/a#b",
    "/a?b",
    "x",
    "@evil.example/",
    ".evil.example/",
    ":80@evil.example/",
]


@pytest.mark.parametrize(
    "endpoint", ["https://a.example/v1/", "https://a.example", "https://a.example/a/b/c"]
)
def test_refuses_a_path_that_could_leave_the_endpoint(endpoint: str) -> None:
    outcomes = {rest: build_upstream_target(_endpoint(endpoint), rest, "") for rest in ESCAPES}
    assert [
        (rest, outcome)
        for rest, outcome in outcomes.items()
        if not (isinstance(outcome, Problem) and outcome.code is Code.INVALID_REQUEST)
    ] == []


@pytest.mark.parametrize("query", ["a b", "a\nb", "a#b", "\x00", "a\x7f"])
def test_refuses_a_query_that_would_break_the_request_line(query: str) -> None:
    assert isinstance(build_upstream_target(BASE, "/x", query), Problem)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", "api_key=s%26%3D%20"),
        ("a=1&b", "a=1&b&api_key=s%26%3D%20"),
        ("api_key=mine", "api_key=s%26%3D%20"),
        ("a=1&%61pi_key=x&b=2&api_key", "a=1&b=2&api_key=s%26%3D%20"),
        ("API_KEY=x", "API_KEY=x&api_key=s%26%3D%20"),
        ("a=%2F&&", "a=%2F&&&api_key=s%26%3D%20"),
    ],
)
def test_the_listings_secret_replaces_the_callers_parameter(query: str, expected: str) -> None:
    assert add_query_secret(query, name="api_key", value="s&= ") == expected


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        ("/a//b///", "/a/b"),
        ("/%61/%7Eb", "/a/~b"),
        ("/a%2fb", "/a%2Fb"),
        ("/a;v=1/b;c;d", "/a/b"),
        ("/A/b", "/A/b"),
        ("/%zz", "/%zz"),
    ],
)
def test_the_normal_form_of_a_path(rest: str, expected: str) -> None:
    assert normal_path(rest) == expected


@dataclass(frozen=True)
class Op:
    method: str
    path: str
    price: int
    metering: str | None = None


OPERATIONS = [
    Op("GET", "/v1/cities", 1),
    Op("GET", "/v1/cities/{city}", 2),
    Op("GET", "/v1/cities/top", 3),
    Op("GET", "/v1/cities/{city}.json", 4),
    Op("POST", "/v1/cities/{city}", 5),
    Op("GET", "/v1/{kind}/{id}", 6),
    Op("GET", "/v1/{kind}/{id}/full", 7),
    Op("GET", "/admin", 8),
    Op("PUT", "/caf%C3%A9/", 9),
]


@pytest.mark.parametrize(
    ("method", "rest", "price"),
    [
        ("GET", "/v1/cities", 1),
        ("GET", "/v1/cities/", 1),
        ("GET", "/v1//cities", 1),
        ("GET", "/v1/%63ities;x=1", 1),
        ("HEAD", "/v1/cities", 1),
        ("get", "/v1/cities", 1),
        ("GET", "/v1/cities/berlin", 2),
        ("GET", "/v1/cities/new%20york", 2),
        ("GET", "/v1/cities/top", 3),
        ("GET", "/v1/cities/oslo.json", 4),
        ("POST", "/v1/cities/top", 5),
        ("GET", "/v1/rivers/elbe", 6),
        ("HEAD", "/v1/rivers/elbe/full", 7),
        ("PUT", "/caf%c3%a9", 9),
        ("GET", "/v1/rivers", None),
        ("DELETE", "/v1/cities", None),
        ("GET", "/v1/cities/a/b", None),
        ("GET", "/", None),
        ("GET", "", None),
    ],
)
def test_the_most_specific_operation_wins(method: str, rest: str, price: int | None) -> None:
    found = match_operation(OPERATIONS, method, rest)
    assert not isinstance(found, Problem)
    assert (found.price if found is not None else None) == price


@pytest.mark.parametrize(
    ("method", "rest"),
    [
        ("GET", "/Admin"),
        ("GET", "/ADMIN/"),
        ("HEAD", "/aDmin"),
        ("GET", "/V1/cities"),
        ("GET", "/v1/cities/TOP"),
        ("GET", "/v1%2Fcities"),
        ("GET", "/v1%5ccities"),
        ("GET", "/v1%252fcities"),
        ("GET", "/%2561dmin"),
        ("GET", "/v1/rivers%2Felbe"),
        ("GET", "/v1/rivers/elbe%2Ffull"),
        ("GET", "/x/../admin"),
        ("GET", "/v1/x/%2e%2e/cities"),
        ("GET", "/./admin"),
        ("GET", "/admin%3bx"),
    ],
)
def test_refuses_a_path_that_another_server_would_price_differently(method: str, rest: str) -> None:
    refused = of_type(Problem, match_operation(OPERATIONS, method, rest))
    assert refused.code is Code.INVALID_REQUEST


def test_one_price_leaves_nothing_to_confuse() -> None:
    operations = [Op("GET", "/v1/{x}", 1), Op("GET", "/v1/list", 1)]
    assert match_operation(operations, "GET", "/v1/LIST") == operations[0]
    metered = [operations[0], Op("GET", "/v1/list", 1, metering="a formula")]
    assert isinstance(match_operation(metered, "GET", "/v1/LIST"), Problem)
    assert match_operation([], "GET", "/v1/%2e%2e/x") is None
