"""The warnings about what a document loses in its listing: base paths, operations and references."""

from typing import Any

import pytest

from tests.kit.listings import PROVIDER, sample_listing
from tollway.money import Price
from tollway.registry.listing_warnings import NAMED_MAX, list_warnings

FREE = Price.parse("0")


def warn(document: dict[str, Any], *, endpoint: str = "https://x.example.com") -> dict[str, str]:
    subject = sample_listing(
        provider=PROVIDER, price=FREE, endpoint=endpoint, openapi={"openapi": "3.1.0", **document}
    )
    return {warning.code: warning.detail for warning in list_warnings(subject, ())}


def server(url: str, **variables: str) -> dict[str, Any]:
    return {"url": url, "variables": {name: {"default": value} for name, value in variables.items()}}


@pytest.mark.parametrize(
    ("endpoint", "servers", "proposed"),
    [
        ("https://x.example.com", [server("/api/v3")], "https://x.example.com/api/v3"),
        ("https://x.example.com/", [server("https://petstore.example/api/v3/")], "https://x.example.com/api/v3"),
        ("https://x.example.com:8443/v1", [server("/v2")], "https://x.example.com:8443/v2"),
        ("https://x.example.com/v1", [server("https://{host}/{base}", host="a.example", base="v2")], "https://x.example.com/v2"),
        ("https://x.example.com/v1", [server("https://x.example.com")], "https://x.example.com"),
        ("https://x.example.com", [server("v2")], "https://x.example.com/v2"),
        ("https://x.example.com/v1", [server("/v2"), server("https://other.example/v1")], None),
        ("https://x.example.com/v1/", [server("/v1")], None),
        ("https://x.example.com", [server("/")], None),
        ("https://x.example.com", [], None),
        ("https://x.example.com", ["/v2", {"url": 5}, {"url": "http://[::1"}], None),
    ],
)  # fmt: skip
def test_another_base_path_is_named_with_the_endpoint_that_has_it(
    endpoint: str, servers: list[Any], proposed: str | None
) -> None:
    found = warn({"servers": servers}, endpoint=endpoint)
    assert set(found) == (set() if proposed is None else {"servers_differ"})
    if proposed is not None:
        assert found["servers_differ"].endswith(f"set the endpoint to {proposed}.")


def test_operations_whose_path_cannot_be_read_are_counted_and_named() -> None:
    paths = {
        "/fine": {"get": {}},
        "no-slash": {"get": {}, "post": {}},
        "/a?b=1": {"put": {}},
        "/{x=a/*}": {"get": {}},
        "/<upload\u202e_url>": {"put": {}},
        "/a/../b": {"get": {}},
        "/{a}{b}": {"get": {}},
        "x-internal": {"get": {}},
    }
    detail = warn({"paths": paths})["operations_ignored"]
    assert detail.startswith("7 operations of the document are not part of the listing")
    assert (
        "`get no-slash`, `post no-slash`, `put /a?b=1`, `get /{x=a/*}`, `put /<upload_url>` and 2 more"
        in detail
    )
    assert "/fine" not in detail
    assert "x-internal" not in detail


def test_references_that_lead_nowhere_are_counted_and_named_once() -> None:
    document = {
        "paths": {
            "/a": {"$ref": "paths/a.yml"},
            "/b": {"get": {"parameters": [{"$ref": "#/components/parameters/P"}, {"$ref": "#/components/parameters/Q"}]}},
            "/c": {"get": {"requestBody": {"content": {"application/json": {"example": {"$ref": "data"}}}}}},
            "/d": {"$ref": "paths/a.yml"},
        },
        "components": {"parameters": {"P": {"name": "p", "in": "query"}}},
    }  # fmt: skip
    assert warn(document) == {
        "references_ignored": "2 references of the document lead outside it or to nothing, and are left out: "
        "`paths/a.yml`, `#/components/parameters/Q`. Bundle the document into one file: the gateway follows no reference to another one."
    }


def test_a_warning_names_a_few() -> None:
    paths = {f"/{number}": {"$ref": f"{number}.yml"} for number in range(650)}
    detail = warn({"paths": paths})["references_ignored"]
    assert detail.startswith("650 references")
    assert detail.count(".yml") == NAMED_MAX
    assert f"and {650 - NAMED_MAX} more" in detail


def test_a_whole_document_has_no_warning() -> None:
    document = {"servers": [server("/")], "paths": {"/a": {"get": {}, "head": {}}, "/b/{c}": {"post": {}}}}
    assert warn(document) == {}
    assert list_warnings(sample_listing(provider=PROVIDER, price=FREE), ()) == ()


def test_untrusted_documents_raise_nothing() -> None:
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"a": [deep]}
    for document in (
        deep,
        {"servers": {"url": 1}},
        {"paths": [1]},
        {"paths": {"/a": 5}},
        {"servers": [{"url": "/x", "variables": {"a": 1}}]},
    ):
        warn(document)
