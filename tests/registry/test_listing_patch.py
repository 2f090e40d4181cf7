"""Merge patches of listings: RFC 7396 by its own examples, the rules that are stricter, and the dropped operations."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.listings import sample_listing
from tests.kit.narrowing import of_type
from tests.kit.payer import USDC
from tollway.ids import Address
from tollway.money import Price
from tollway.registry.draft import Draft, DraftRules, ListingBody, edit_listing, parse_draft
from tollway.registry.listing import ChargeOn, Listing, Operation, RateLimit, UpstreamAuth
from tollway.registry.listing_patch import (
    KEPT_MEMBERS,
    list_dropped_operations,
    list_members,
    merge_patch,
    parse_patch,
    warn_about_dropped,
    warn_about_edit,
)

PROVIDER, PAYEE = Address(b"\xaa" * 20), Address(b"\xbb" * 20)
RULES = DraftRules(
    assets=(USDC,),
    main_networks=frozenset({USDC.chain_id}),
    allow_private_endpoints=False,
    check_endpoint=lambda endpoint: None,
)
DOCUMENT = {"openapi": "3.1.0", "paths": {"/a": {"get": {}}}}
SECRET = UpstreamAuth(location="header", name="X-Key", value="s3cret")


def operation(method: str, path: str, price: str = "0.5") -> Operation:
    return Operation(method=method, path=path, price=Price.parse(price))


FULL = sample_listing(
    provider=PROVIDER,
    networks=(USDC.chain_id,),
    description="Weather of today",
    price=Price.parse("0.010"),
    pay_to=PAYEE,
    methods=("GET", "POST"),
    tags=("weather",),
    operations=(operation("GET", "/a/{id}"), operation("POST", "/b")),
    other_paths="refuse",
    charge_on=ChargeOn.ANSWERED,
    timeout_s=9,
    forward_headers=("X-Trace",),
    upstream_auth=SECRET,
    openapi=DOCUMENT,
    openapi_url="https://api.example.com/openapi.json",
    signature="bound",
    rate_limit=RateLimit(calls=3, per_s=60),
    status="paused",
    forward_signature="none",
)
"""No member has its default."""


def patched(patch: dict[str, Any], listing: Listing = FULL) -> Listing:
    draft = of_type(Draft, parse_patch(patch, RULES, previous=listing))
    return replace(edit_listing(draft, listing, now_ms=1), revision=listing.revision)


def refusals(patch: dict[str, Any], listing: Listing = FULL) -> list[tuple[str | None, str]]:
    errors = of_type(tuple, parse_patch(patch, RULES, previous=listing))
    return [(error.pointer, error.code) for error in errors]


# ---- RFC 7396.


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merges_as_the_examples_of_the_rfc(target: object, patch: object, result: object) -> None:
    """RFC 7396, appendix A."""
    assert merge_patch(target, patch) == result


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=12,
)


@given(target=JSON, patch=JSON)
def test_a_patch_twice_is_the_patch_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


# ---- The patch of a listing.


def test_the_target_has_every_member_of_the_create_body() -> None:
    assert {*list_members(FULL), *KEPT_MEMBERS} == set(ListingBody.member_names())


@pytest.mark.parametrize("listing", [FULL, sample_listing(provider=PROVIDER, networks=(USDC.chain_id,))])
def test_the_target_describes_the_listing(listing: Listing) -> None:
    draft = of_type(Draft, parse_draft(list_members(listing), RULES, previous=listing))
    edited = edit_listing(draft, listing, now_ms=listing.updated_ms)
    assert replace(edited, revision=listing.revision) == listing


@pytest.mark.parametrize(
    ("patch", "changes"),
    [
        ({}, {}),
        ({"pricePerRequest": "0.02"}, {"price": Price.parse("0.02")}),
        ({"name": "Climate"}, {"name": "Climate"}),
        ({"tags": ["sun", "rain"]}, {"tags": ("sun", "rain")}),
        (
            {"operations": [{"method": "GET", "path": "/c", "pricePerRequest": "1"}]},
            {"operations": (operation("GET", "/c", "1"),)},
        ),
        ({"rateLimit": {"calls": 5}}, {"rate_limit": RateLimit(calls=5, per_s=60)}),
        ({"rateLimit": None}, {"rate_limit": None}),
        ({"upstreamAuth": {"value": "n3w"}}, {"upstream_auth": replace(SECRET, value="n3w")}),
        ({"upstreamAuth": {"name": "X-Other"}}, {"upstream_auth": replace(SECRET, name="X-Other")}),
        ({"upstreamAuth": None}, {"upstream_auth": None}),
        ({"openapi": None}, {"openapi": None}),
        ({"openapiUrl": None}, {"openapi_url": None}),
        ({"payTo": None}, {"pay_to": PROVIDER}),
        ({"timeoutSeconds": None, "description": None}, {"timeout_s": 30, "description": ""}),
        ({"status": "active"}, {"status": "active"}),
        ({"networks": None}, {}),
        ({"endpoint": "https://api.example.com/v2"}, {"endpoint": "https://api.example.com/v2"}),
        (
            {"endpoint": "https://other.example.com", "upstreamAuth": {"value": "n3w"}},
            {"endpoint": "https://other.example.com", "upstream_auth": replace(SECRET, value="n3w")},
        ),
        (
            {"endpoint": "https://other.example.com", "upstreamAuth": None},
            {"endpoint": "https://other.example.com", "upstream_auth": None},
        ),
    ],
    ids=str,
)
def test_changes_what_it_names_and_nothing_else(patch: dict[str, Any], changes: dict[str, Any]) -> None:
    assert patched(patch) == replace(FULL, **changes)


@pytest.mark.parametrize("patch", [{}, {"openapi": None}])
def test_a_url_of_a_document_has_it_fetched_again(patch: dict[str, Any]) -> None:
    draft = of_type(Draft, parse_patch({**patch, "openapiUrl": FULL.openapi_url}, RULES, previous=FULL))
    assert draft.is_document_wanted


UNSET = sample_listing(provider=PROVIDER, networks=(USDC.chain_id,))


@pytest.mark.parametrize(
    ("listing", "patch", "found"),
    [
        (FULL, {"name": None}, [("/name", "required")]),
        (
            FULL,
            {"currency": None, "endpoint": None, "pricePerRequest": None},
            [("/currency", "required"), ("/pricePerRequest", "required"), ("/endpoint", "required")],
        ),
        (FULL, {"revision": 4}, [("/revision", "unknown_field")]),
        (FULL, {"revision": None, "a/b": None}, [("/revision", "unknown_field"), ("/a~1b", "unknown_field")]),
        (FULL, {"openapi": DOCUMENT}, [("/openapi", "not_patchable")]),
        (FULL, {"openapi": {"paths": None}}, [("/openapi", "not_patchable")]),
        (FULL, {"upstreamAuth": {"set": True}}, [("/upstreamAuth/set", "unknown_field")]),
        (FULL, {"upstreamAuth": "Bearer"}, [("/upstreamAuth", "type")]),
        (UNSET, {"rateLimit": {"calls": 5}}, [("/rateLimit/perSeconds", "type")]),
        (FULL, {"endpoint": "https://other.example.com"}, [("/upstreamAuth/value", "required")]),
        (FULL, {"endpoint": "http://api.example.com"}, [("/upstreamAuth/value", "required")]),
        (FULL, {"endpoint": "https://api.example.com:8443"}, [("/upstreamAuth/value", "required")]),
        (
            FULL,
            {"endpoint": "https://other.example.com", "upstreamAuth": {"name": "X-Other"}},
            [("/upstreamAuth/value", "required")],
        ),
        (
            FULL,
            {"tags": ["a"] * 6, "timeoutSeconds": 0},
            [("/tags", "too_many"), ("/timeoutSeconds", "out_of_range")],
        ),
        (FULL, {"operations": None, "openapi": None}, [("/otherPaths", "conflict")]),
    ],
    ids=str,
)
def test_refuses_with_every_pointer(
    listing: Listing, patch: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    assert set(found) <= set(refusals(patch, listing))


def test_a_secret_that_cannot_be_decrypted_must_be_given_again() -> None:
    sealed = replace(FULL, upstream_auth=replace(SECRET, value=None))
    assert ("/upstreamAuth/value", "required") in refusals({"upstreamAuth": {"name": "X-Other"}}, sealed)
    assert patched({"name": "Climate"}, sealed) == replace(sealed, name="Climate")


def test_unknown_nulls_are_bounded() -> None:
    assert len(refusals({f"x{number}": None for number in range(1_000)})) == 20


# ---- Dropped operations.


@pytest.mark.parametrize(
    ("operations", "dropped"),
    [
        (FULL.operations, []),
        ((), ["GET /a/{id}", "POST /b"]),
        ((operation("GET", "/a/{other}", "9"), operation("POST", "/b")), []),
        ((operation("GET", "/b"), operation("GET", "/a/{id}")), ["POST /b"]),
    ],
)
def test_an_operation_is_dropped_by_method_and_shape(
    operations: tuple[Operation, ...], dropped: list[str]
) -> None:
    found = list_dropped_operations(replace(FULL, operations=operations), FULL)
    assert [f"{one.method} {one.path}" for one in found] == dropped


@pytest.mark.parametrize(("count", "said"), [(1, "GET /0."), (5, "GET /4."), (8, "GET /4 and 3 more.")])
def test_the_warning_names_the_first_operations(count: int, said: str) -> None:
    (warning,) = warn_about_dropped(operation("GET", f"/{number}") for number in range(count))
    assert (warning.code, warning.pointer) == ("operations_dropped", "/operations")
    assert said in warning.detail
    assert warn_about_dropped(()) == ()


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"price": Price.parse("0.03")}, ["GET /a/{id} 0.5 USDC", "POST /b 1 USDC"]),
        ({"price": Price.parse("0.5")}, ["POST /b 1 USDC"]),
        ({"price": Price.parse("0.03"), "operations": (operation("GET", "/a/{n}", "0.5"), operation("POST", "/b", "2"))},
         ["GET /a/{n} 0.5 USDC"]),
        ({"price": Price.parse("0.03"), "operations": (operation("GET", "/new", "0.5"),)}, []),
        ({"price": Price.parse("0.03"), "operations": ()}, []),
        ({"price": Price.parse("0.010")}, []),
        ({"name": "other"}, []),
    ],
)  # fmt: skip
def test_a_new_price_names_the_operations_that_keep_their_own(
    changes: dict[str, Any], kept: list[str]
) -> None:
    before = replace(
        FULL,
        price=Price.parse("0.01"),
        currency="USDC",
        operations=(operation("GET", "/a/{id}", "0.5"), operation("POST", "/b", "1")),
    )
    found = {one.code: one for one in warn_about_edit(replace(before, **changes), before)}
    assert ("operation_prices_kept" in found) is bool(kept)
    if kept:
        warning = found["operation_prices_kept"]
        assert f"which they keep: {', '.join(kept)}." in warning.detail
        assert warning.pointer == "/operations"
