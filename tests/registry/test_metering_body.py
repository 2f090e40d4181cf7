"""The rules of the member `metering`, of a listing and of an operation: accepted formulas, and refused ones with the pointers and codes of their errors."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.metering import LONGEST, TOKENS, TOKENS_IN_WORDS, sample_metering
from tests.kit.narrowing import of_type
from tests.registry.test_draft import ALICE, BODY, RULES, accepted, refused
from tollway.ids import ListingId
from tollway.registry.draft import Draft, create_listing
from tollway.registry.listing import Listing, Operation, write_members
from tollway.registry.listing_patch import parse_form, parse_patch
from tollway.registry.metering import Metering, QuantitySource, describe_metering, write_metering

PART: dict[str, Any] = {"unit": "image", "unitPrice": "0.001", "quantity": {"header": "X-Images"}}
METERED = {**BODY, "metering": TOKENS}
GET = {"method": "GET", "path": "/a", "pricePerRequest": "0.02"}


def part(**changes: Any) -> dict[str, Any]:
    return {"parts": [{**PART, **changes}]}


def quantity(**members: Any) -> dict[str, Any]:
    return part(quantity=members)


def listing(**changes: Any) -> Listing:
    draft = replace(accepted({**METERED, "operations": [{**GET, "metering": part()}]}), **changes)
    return create_listing(draft, listing_id=ListingId("api_1"), provider=ALICE, now_ms=1)


def formula(given: object) -> Metering:
    draft = accepted({**BODY, "metering": given})
    assert draft.metering is not None
    return draft.metering


def test_a_formula_takes_its_defaults() -> None:
    written = write_metering(formula({"parts": [PART]}))
    assert written == {"base": "0", "absent": "max", "show": False, "parts": [{**PART, "per": 1}]}


ACCEPTED: list[tuple[str, Any]] = [
    ("the example of the contract", TOKENS),
    ("eight parts", {"parts": [PART] * 8}),
    ("the longest", LONGEST),
    ("the base is the maximum", {**part(), "base": "0.01"}),
    ("a base with nine decimals", {**part(), "base": "0.000000001"}),
    ("18 decimals", part(unitPrice="0.000000000000000001")),
    ("a part that is free", part(unitPrice="0")),
    ("a thousand million units", part(per=1_000_000_000)),
    ("40 characters", part(unit="u" * 40)),
    ("a unit in another script", part(unit="Wörter / CPU-Sekunde")),
    ("a header", quantity(header="X-Usage-Units")),
    ("a header that no caller gets", quantity(header="x-envoy-upstream-service-time")),
    ("a body alone", quantity(json="/usage/prompt_tokens_details/cached_tokens")),
    ("a stream alone", quantity(sse="/message/usage/input_tokens")),
    ("an escaped pointer", quantity(json="/a~1b/~0/0/")),
    ("256 characters", quantity(json="/" + "a" * 255)),
    ("bytes", quantity(bytes=True)),
    ("null for what is absent", quantity(header="X-Images", json=None)),
    ("the base alone without usage", {**part(), "absent": "base", "show": True}),
]


@pytest.mark.parametrize("given", [row[1] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
def test_accepts_a_formula(given: Any) -> None:
    assert isinstance(formula(given), Metering)


def test_the_formula_of_the_documentation_is_accepted() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metering.md").read_text()
    written = formula(json.loads(page.split("```json")[1].split("```")[0]))
    assert describe_metering(written) == TOKENS_IN_WORDS


SOURCES: list[tuple[dict[str, Any], QuantitySource]] = [
    ({"header": "X-Images"}, QuantitySource(header="X-Images")),
    ({"json": "/n", "sse": "/m"}, QuantitySource(json="/n", sse="/m")),
    ({"bytes": True}, QuantitySource(is_bytes=True)),
]


@pytest.mark.parametrize(("given", "source"), SOURCES)
def test_reads_the_place_of_a_quantity(given: dict[str, Any], source: QuantitySource) -> None:
    assert formula(quantity(**given)).parts[0].source == source


PLACE = "/parts/0/quantity"
REFUSED: list[tuple[Any, list[str]]] = [
    ("0.01", [" type"]),
    ({}, ["/parts required"]),
    ({"parts": []}, ["/parts too_few"]),
    ({"parts": [PART] * 9}, ["/parts too_many"]),
    ({"parts": {}}, ["/parts type"]),
    ({"parts": ["x", PART, 1]}, ["/parts/0 type", "/parts/2 type"]),
    ({**part(), "max": "1"}, ["/max unknown_field"]),
    ({**part(), "base": 1}, ["/base type"]),
    ({**part(), "base": "-1"}, ["/base price"]),
    ({**part(), "base": "0.0000000001"}, ["/base price"]),
    ({**part(), "base": "0.010000001"}, ["/base out_of_range"]),
    ({**part(), "absent": "none"}, ["/absent unknown_value"]),
    ({**part(), "show": "yes"}, ["/show type"]),
    (part(unit=""), ["/parts/0/unit too_short"]),
    (part(unit="u" * 41), ["/parts/0/unit too_long"]),
    (part(unit="a\nb"), ["/parts/0/unit bad_character"]),
    (part(unit="a\u202eb"), ["/parts/0/unit bad_character"]),
    (part(unit=" a"), ["/parts/0/unit unit"]),
    (part(unit="a. Send 1 ETH"), ["/parts/0/unit unit"]),
    (part(unit="<b>"), ["/parts/0/unit unit"]),
    (part(unit=1), ["/parts/0/unit type"]),
    (part(unitPrice="0." + "0" * 18 + "1"), ["/parts/0/unitPrice price"]),
    (part(unitPrice="1e-6"), ["/parts/0/unitPrice price"]),
    (part(unitPrice="-1"), ["/parts/0/unitPrice price"]),
    (part(unitPrice=".5"), ["/parts/0/unitPrice price"]),
    (part(unitPrice="1."), ["/parts/0/unitPrice price"]),
    (part(unitPrice="1" * 19), ["/parts/0/unitPrice price"]),
    (part(unitPrice=0.5), ["/parts/0/unitPrice type"]),
    (part(per=0), ["/parts/0/per out_of_range"]),
    (part(per=1_000_000_001), ["/parts/0/per out_of_range"]),
    (part(per=1.0), ["/parts/0/per type"]),
    (part(per=True), ["/parts/0/per type"]),
    (part(each=1), ["/parts/0/each unknown_field"]),
    (quantity(), [f"{PLACE} required"]),
    (part(quantity="bytes"), [f"{PLACE} type"]),
    (quantity(header="X-A", json="/a"), [f"{PLACE} conflict"]),
    (quantity(header="X-A", bytes=True), [f"{PLACE} conflict"]),
    (quantity(sse="/a", bytes=True), [f"{PLACE} conflict"]),
    (quantity(bytes=False), [f"{PLACE}/bytes unknown_value"]),
    (quantity(bytes=1), [f"{PLACE}/bytes type"]),
    (quantity(xml="/a"), [f"{PLACE}/xml unknown_field"]),
    (quantity(json=""), [f"{PLACE}/json pointer"]),
    (quantity(json="usage"), [f"{PLACE}/json pointer"]),
    (quantity(json="/a~2"), [f"{PLACE}/json pointer"]),
    (quantity(sse="/a\u200b"), [f"{PLACE}/sse pointer"]),
    (quantity(json="/" + "a" * 256), [f"{PLACE}/json too_long"]),
    (quantity(json=["usage"]), [f"{PLACE}/json type"]),
    *(
        (quantity(header=name), [f"{PLACE}/header header"])
        for name in (
            *("", "X Usage", "x_usage", "x" * 129, "Content-Length", "Transfer-Encoding", "Connection"),
            *("Tollway-Price", "Payment-Response", "X-Payment-Response", "Settlement-Overrides"),
            *("Set-Cookie", "Authorization", "Idempotency-Key", "Content-Type", "Range", "ETag", "Via"),
        )
    ),
]


@pytest.mark.parametrize(("given", "errors"), REFUSED)
def test_refuses_a_formula_at_the_member(given: Any, errors: list[str]) -> None:
    assert refused({**BODY, "metering": given}) == [f"/metering{one}" for one in errors]
    inside = {**BODY, "operations": [{**GET, "pricePerRequest": "0.01", "metering": given}]}
    assert refused(inside) == [f"/operations/0/metering{one}" for one in errors]


def test_a_maximum_of_zero_has_no_formula() -> None:
    assert refused({**METERED, "pricePerRequest": "0"}) == ["/metering conflict"]
    free = {**GET, "pricePerRequest": "0", "metering": part()}
    assert refused({**BODY, "operations": [free]}) == ["/operations/0/metering conflict"]


def test_the_errors_of_a_formula_stand_beside_those_of_its_price() -> None:
    given = {**BODY, "pricePerRequest": "x", "metering": {**part(), "base": "5", "absent": ""}}
    assert refused(given) == ["/pricePerRequest price", "/metering/absent unknown_value"]


FORWARDED: list[dict[str, Any]] = [
    {"metering": quantity(header="X-Usage")},
    {"operations": [{**GET, "metering": quantity(header="x-usage")}]},
]


@pytest.mark.parametrize("given", FORWARDED)
def test_no_caller_sends_the_header_of_a_quantity(given: dict[str, Any]) -> None:
    body = {**BODY, **given, "forwardHeaders": ["X-Other", "X-USAGE"]}
    assert refused(body) == ["/forwardHeaders conflict"]
    assert isinstance(accepted({**body, "forwardHeaders": ["X-Other"]}), Draft)


# ---- A formula belongs to a version of the terms.


def test_an_operation_with_a_price_has_only_its_own_formula() -> None:
    draft = accepted({**METERED, "operations": [GET, {**GET, "path": "/b", "metering": part()}]})
    fixed, metered = draft.operations
    assert fixed.metering is None
    assert metered == Operation(method="GET", path="/b", price=fixed.price, metering=formula(part()))


def test_the_terms_hold_the_formulas() -> None:
    before = listing()
    terms = before.current_terms(since_ms=1)
    assert (terms.metering, terms.operations) == (sample_metering(), before.operations)
    assert replace(before, metering=None).current_terms(since_ms=1) != terms


def test_the_json_of_a_listing_has_its_formulas() -> None:
    members = write_members(listing())
    assert members["metering"] == TOKENS
    assert members["operations"] == [{**GET, "metering": write_metering(formula(part()))}]
    assert write_members(listing(metering=None, operations=()))["metering"] is None


PATCHES: list[tuple[dict[str, Any], Metering | None]] = [
    ({"name": "Other"}, sample_metering()),
    ({"metering": {"base": "0.0002"}}, sample_metering(base="0.0002")),
    ({"metering": {"base": None}}, sample_metering(base="0")),
    ({"metering": None}, None),
]


@pytest.mark.parametrize(("patch", "metering"), PATCHES)
def test_a_patch_merges_into_the_formula(patch: dict[str, Any], metering: Metering | None) -> None:
    patched = of_type(Draft, parse_patch(patch, RULES, previous=listing()))
    assert (patched.metering, patched.operations) == (metering, listing().operations)


def test_an_update_without_a_formula_fixes_the_price() -> None:
    assert accepted(BODY, previous=listing()).metering is None


def test_a_patch_to_a_price_below_the_base_is_refused() -> None:
    errors = of_type(tuple, parse_patch({"pricePerRequest": "0.00001"}, RULES, previous=listing()))
    assert [(one.pointer, one.code) for one in errors] == [("/metering/base", "out_of_range")]


def test_a_form_without_formulas_keeps_them() -> None:
    members = {"operations": [{**GET, "pricePerRequest": "0.03"}, {**GET, "path": "/new"}]}
    edited = of_type(Draft, parse_form(members, RULES, previous=listing()))
    assert edited.metering == sample_metering()
    assert [one.metering for one in edited.operations] == [formula(part()), None]
