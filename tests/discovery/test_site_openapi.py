"""The contract of the site: valid by tools of others, exact about codes and statuses, and never too long for a crawler."""

import json
import re
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tollway.discovery.operations import ApiOperation, Argument
from tollway.discovery.site_contract import PROBLEM_TYPE, QUOTE_CODES, SiteProblemKind
from tollway.discovery.site_openapi import (
    DOCUMENT_BYTES_MAX,
    FEATURED_MAX,
    FeaturedOperation,
    Site,
    build_site_openapi,
)
from tollway.errors import Code
from tollway.money import Price
from tollway.web.problems import PROBLEM_KINDS

PUBLIC_URL = "https://gw.example.com"
SITE = Site(public_url=PUBLIC_URL, version="1.2.3")
KIND_TABLE = {
    code: SiteProblemKind(status=kind.status, is_delayed=kind.retry_after_s is not None)
    for code, kind in PROBLEM_KINDS.items()
}
PAYMENT = {
    "price": {"mode": "fixed", "currency": "USD", "amount": "0.01"},
    "protocols": [{"x402": {}}],
}
METHODS = {"get", "put", "post", "delete", "options", "head", "patch"}


def build(*featured: FeaturedOperation, site: Site = SITE) -> dict[str, Any]:
    body = build_site_openapi(site, kinds=KIND_TABLE, featured=featured)
    assert len(body) <= DOCUMENT_BYTES_MAX
    document: dict[str, Any] = json.loads(body)
    return document


def sold(
    number: int = 0,
    *,
    path: str = "/quote/{symbol}",
    summary: str = "A quote",
    schema: dict[str, Any] | None = None,
) -> FeaturedOperation:
    places = {"symbol": "path", "days": "query", "body": "body"}
    arguments = tuple(
        Argument(name=name, place=place, parameter="" if place == "body" else name, is_required=True)  # type: ignore[arg-type]
        for name, place in places.items()
    )
    one = {"type": "string"} if schema is None else schema
    operation = ApiOperation(
        tool=f"post_{number:08x}",
        method="POST",
        path=path,
        summary=summary,
        description="",
        arguments=arguments,
        input_schema={"type": "object", "properties": dict.fromkeys(places, one)},
        output_schema={"type": "object"},
        body_type="application/json",
        price=Price.parse("0.01"),
    )
    return FeaturedOperation(
        listing_id=f"api_{number:026d}", title="Quotes", operation=operation, payment=PAYMENT
    )


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


def test_the_document_is_valid_and_leaves_room_for_what_is_featured() -> None:
    body = build_site_openapi(SITE, kinds=KIND_TABLE)
    assert len(body) < 56 * 1024
    document = build()
    OpenAPIV31SpecValidator(document).validate()
    assert document["servers"] == [{"url": PUBLIC_URL}]
    assert document["info"]["contact"]["url"] == f"{PUBLIC_URL}/"


UNREADABLE_ON_MPP = ("payment_malformed", "402")
"""400 on x402, without terms; with terms on MPP."""


def test_every_problem_is_declared_under_its_own_status() -> None:
    document = build()
    responses = document["components"]["responses"]
    declared: set[str] = set()
    for path, method, operation in operations(document):
        for status, answer in operation["responses"].items():
            name = answer.get("$ref", "").rpartition("/")[2]
            content = responses.get(name, {}).get("content", {})
            if PROBLEM_TYPE not in content or path.startswith("/x402/history"):
                continue
            codes = content[PROBLEM_TYPE]["schema"]["properties"]["code"]["enum"]
            named = {
                PROBLEM_KINDS[Code(code)].status for code in codes if (code, status) != UNREADABLE_ON_MPP
            }
            assert named == {int(status)}, (path, method)
            declared.update(codes)
    assert declared == {code.value for code in Code} - {Code.INTERNAL_ERROR.value}


def test_only_payment_problems_come_with_terms() -> None:
    terms = build()["components"]["responses"]["PaymentRequired"]
    told = terms["content"][PROBLEM_TYPE]["schema"]["properties"]
    assert set(told["code"]["enum"]) == {code.value for code in QUOTE_CODES}
    assert {PROBLEM_KINDS[code].status for code in QUOTE_CODES - {Code.PAYMENT_MALFORMED}} == {402}
    assert {"payment", "x402Version", "accepts", "error"} <= set(told)


def test_x402_clients_are_asked_to_sign_in_with_a_402() -> None:
    document = build()
    answer = document["paths"]["/x402/history"]["get"]["responses"]["402"]
    assert answer == {"$ref": "#/components/responses/SignInAsked"}
    assert "PAYMENT-REQUIRED" in document["components"]["responses"]["SignInAsked"]["headers"]


def test_names_of_operations_are_unique_and_every_one_says_who_may_ask() -> None:
    found = operations(build(*(sold(number) for number in range(FEATURED_MAX))))
    names = [operation["operationId"] for _, _, operation in found]
    assert len(names) == len(set(names))
    assert all("security" in operation and operation["summary"] for _, _, operation in found)


def test_what_a_path_names_is_declared() -> None:
    document = build(sold())
    shared = document["components"]["parameters"]
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            given = [*item.get("parameters", ()), *item[method].get("parameters", ())]
            told = [shared[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in given]
            in_path = {one["name"] for one in told if one["in"] == "path"}
            assert in_path == set(re.findall(r"\{([^}]+)\}", path)), path


def test_a_featured_operation_costs_something_and_has_its_schemas() -> None:
    document = build(sold())
    OpenAPIV31SpecValidator(document).validate()
    path = f"/api/v2/gateway/api_{0:026d}/quote/{{symbol}}"
    operation = document["paths"][path]["post"]
    assert operation["x-payment-info"] == PAYMENT
    assert operation["responses"]["402"] == {"$ref": "#/components/responses/PaymentRequired"}
    assert operation["responses"]["200"]["content"] == {"application/json": {"schema": {"type": "object"}}}
    assert [one["name"] for one in operation["parameters"]] == ["symbol", "days"]
    assert operation["requestBody"]["content"] == {"application/json": {"schema": {"type": "string"}}}


def featured_paths(document: dict[str, Any]) -> list[str]:
    return [path for path in document["paths"] if path.startswith("/api/v2/gateway/api_")]


def test_no_more_is_featured_than_a_crawler_reads() -> None:
    small = [sold(number, schema={}) for number in range(3 * FEATURED_MAX)]
    assert 12 <= len(featured_paths(build(*small))) <= FEATURED_MAX


@pytest.mark.parametrize("size", [2_000, 20_000, 200_000])
def test_a_schema_that_is_too_long_leaves_its_names(size: int) -> None:
    document = build(*(sold(number, schema={"enum": ["x" * size]}) for number in range(4)))
    assert len(featured_paths(document)) == 4
    last = document["paths"][featured_paths(document)[-1]]["post"]
    assert [one["name"] for one in last["parameters"]] == ["symbol", "days"]


def test_one_that_is_too_long_by_itself_is_left_out() -> None:
    assert featured_paths(build(sold(1, path="/" + "x" * 70_000), sold(2))) == [
        f"/api/v2/gateway/api_{2:026d}/quote/{{symbol}}"
    ]


def test_definitions_of_another_document_are_not_pointed_at() -> None:
    document = build(sold(schema={"$ref": "#/$defs/elsewhere"}))
    OpenAPIV31SpecValidator(document).validate()
    assert "elsewhere" not in json.dumps(document["paths"])


@pytest.mark.parametrize(
    ("contact", "told"),
    [
        ("mailto:ops@example.com", {"email": "ops@example.com"}),
        ("https://example.com/contact", {"url": "https://example.com/contact"}),
    ],
)
def test_the_operator_is_reached_as_he_says(contact: str, told: dict[str, str]) -> None:
    site = Site(public_url=PUBLIC_URL, version="1", contact=contact)
    shown = build(site=site)["info"]["contact"]
    assert {name: value for name, value in shown.items() if name != "name"} == told
