"""The contract of the site: the document is valid OpenAPI, has the codes, statuses and limits of the code, and stays short enough for crawlers."""

import json
import re
from dataclasses import replace
from typing import Any, get_args

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from tollway.discovery.forms import FormField
from tollway.discovery.gateway_operator import GatewayOperator
from tollway.discovery.listing_view import MCP_REVISIONS
from tollway.discovery.operations import ApiOperation, Argument
from tollway.errors import Code
from tollway.ledger.history import HistoryRole, HistoryStatus
from tollway.ledger.records import Rail
from tollway.money import Price
from tollway.outbound.policy import ENDPOINT_CHARS_MAX
from tollway.registry import draft, metering, metering_body
from tollway.registry.catalog import Sort
from tollway.web.api import exports, history_routes, listing_routes, sums_routes, webhook_routes
from tollway.web.http.contract import (
    CONTRACT_PATH,
    DOCUMENT_BYTES_MAX,
    FEATURED_MAX,
    PROBLEM_MEDIA_TYPE,
    FeaturedOperation,
    Site,
    SiteContract,
    describe_featured,
    load_contract,
)
from tollway.web.http.problems import PROBLEM_KINDS
from tollway.web.http.query import QueryModel
from tollway.webhooks.endpoints import DeliveryState
from tollway.webhooks.events import EventType

PUBLIC_URL = "https://gw.example.com"
SITE = Site(public_url=PUBLIC_URL, version="1.2.3")
TEXT = CONTRACT_PATH.read_text()
PAYMENT = {
    "price": {"mode": "fixed", "currency": "USD", "amount": "0.01"},
    "protocols": [{"x402": {}}],
}
METHODS = {"get", "put", "post", "delete", "options", "head", "patch"}


def build(*featured: FeaturedOperation, site: Site = SITE) -> dict[str, Any]:
    body = SiteContract(site).build(featured)
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


# ---- The document.


@pytest.mark.parametrize("is_list", [False, True])
def test_a_file_of_a_featured_operation_is_bytes_over_http(is_list: bool) -> None:
    file: dict[str, Any] = {"type": "string", "contentEncoding": "base64"}
    described = {"type": "array", "items": file} if is_list else file
    schema = {"type": "object", "properties": {"f": described, "n": {"type": "integer"}}}
    one = sold(schema=schema)
    operation = replace(
        one.operation,
        body_type="multipart/form-data",
        form_fields=(FormField(name="f", is_file=True, is_list=is_list), FormField(name="n")),
    )
    _, written = describe_featured(replace(one, operation=operation), has_schemas=True)
    fields = written["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    file_over_http = {"type": "string", "contentMediaType": "application/octet-stream"}
    assert fields["f"] == ({"type": "array", "items": file_over_http} if is_list else file_over_http)
    assert fields["n"] == {"type": "integer"}
    whole = replace(one.operation, body_type="image/png", is_body_file=True)
    _, written = describe_featured(replace(one, operation=whole), has_schemas=True)
    assert written["requestBody"]["content"] == {"image/png": {"schema": file_over_http}}


def test_the_document_is_valid_and_leaves_room_for_featured_operations() -> None:
    assert len(SiteContract(SITE).build()) < 60 * 1024
    OpenAPIV31SpecValidator(build()).validate()


def test_the_process_fills_in_its_version_and_public_url() -> None:
    document = build()
    assert document["servers"] == [{"url": PUBLIC_URL}]
    assert document["info"]["version"] == "1.2.3"
    assert document["info"]["contact"]["url"] == f"{PUBLIC_URL}/"
    assert document["x-service-info"]["docs"]["apiReference"] == f"{PUBLIC_URL}/docs"
    assert document["x-agentcash-guidance"] == {"llmsTxtUrl": f"{PUBLIC_URL}/llms.txt"}


@pytest.mark.parametrize(
    ("contact", "written"),
    [
        ("mailto:ops@example.com", {"email": "ops@example.com"}),
        ("https://example.com/contact", {"url": "https://example.com/contact"}),
    ],
)
def test_the_contact_is_the_configured_one(contact: str, written: dict[str, str]) -> None:
    site = Site(public_url=PUBLIC_URL, version="1", operator=GatewayOperator(contact=contact))
    found = build(site=site)["info"]["contact"]
    assert {name: value for name, value in found.items() if name != "name"} == written


def test_the_contract_names_its_operator_and_terms() -> None:
    operator = GatewayOperator(
        name="Rain", url="https://rain.example", terms_url="https://rain.example/terms"
    )
    found = build(site=Site(public_url=PUBLIC_URL, version="1", operator=operator))["info"]
    assert found["contact"] == {"name": "Rain", "url": "https://rain.example"}
    assert found["termsOfService"] == "https://rain.example/terms"


def test_a_second_build_is_the_same() -> None:
    contract = SiteContract(SITE)
    featured = [sold(number) for number in range(3)]
    assert contract.build(featured) == contract.build(featured)
    assert contract.build() == SiteContract(SITE).build()


UNREADABLE_ON_MPP = ("payment_malformed", "402")
"""`payment_malformed` is a 400 without a quote on x402, and comes with a quote on MPP."""


def test_every_problem_is_declared_under_the_status_of_its_code() -> None:
    document = build()
    responses = document["components"]["responses"]
    declared: set[str] = set()
    for path, method, operation in operations(document):
        for status, response in operation["responses"].items():
            name = response.get("$ref", "").rpartition("/")[2]
            content = responses.get(name, {}).get("content", {})
            if PROBLEM_MEDIA_TYPE not in content or status == "default" or path.startswith("/x402/history"):
                continue
            codes = content[PROBLEM_MEDIA_TYPE]["schema"]["properties"]["code"]["enum"]
            named = {
                PROBLEM_KINDS[Code(code)].status for code in codes if (code, status) != UNREADABLE_ON_MPP
            }
            assert named == {int(status)}, (path, method)
            declared.update(codes)
    assert declared == {code.value for code in Code} - {Code.INTERNAL_ERROR.value}


def test_only_payment_problems_have_a_quote() -> None:
    quote = build()["components"]["responses"]["PaymentRequired"]
    members = quote["content"][PROBLEM_MEDIA_TYPE]["schema"]["properties"]
    codes = {Code(code) for code in members["code"]["enum"]}
    assert {PROBLEM_KINDS[code].status for code in codes - {Code.PAYMENT_MALFORMED}} == {402}
    assert all(code.startswith("payment_") for code in codes)
    assert {"payment", "x402Version", "accepts", "error"} <= set(members)


def test_x402_clients_get_a_402_as_the_challenge_to_sign_in() -> None:
    document = build()
    response = document["paths"]["/x402/history"]["get"]["responses"]["402"]
    assert response == {"$ref": "#/components/responses/SignInRequired"}
    assert "PAYMENT-REQUIRED" in document["components"]["responses"]["SignInRequired"]["headers"]


@pytest.mark.parametrize("path", ["/history", "/history/{callId}"])
def test_the_history_of_x402_clients_differs_in_its_402_alone(path: str) -> None:
    paths = build()["paths"]
    own, other = paths["/api/v2" + path]["get"], paths["/x402" + path]["get"]
    assert other["responses"].pop("402")
    for name in ("operationId", "summary"):
        assert other.pop(name).startswith(own.pop(name))
    assert own == other


def test_operation_ids_are_unique_and_every_operation_has_a_security() -> None:
    """Its own, or that of the document: a proof of a wallet by any of three kinds."""
    document = build(*(sold(number) for number in range(FEATURED_MAX)))
    assert [list(kind) for kind in document["security"]] == [["session"], ["signedRequest"], ["signInWithX"]]
    found = operations(document)
    names = [operation["operationId"] for _, _, operation in found]
    assert len(names) == len(set(names))
    assert all(operation["summary"] for _, _, operation in found)


def test_the_parameters_of_a_path_are_declared() -> None:
    document = build(sold())
    shared = document["components"]["parameters"]
    for path, item in document["paths"].items():
        for method in METHODS & set(item):
            given = [*item.get("parameters", ()), *item[method].get("parameters", ())]
            read = [shared[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in given]
            in_path = {one["name"] for one in read if one["in"] == "path"}
            assert in_path == set(re.findall(r"\{([^}]+)\}", path)), path


# ---- The file.


def test_the_file_has_no_extension_of_its_own_left_in_the_document() -> None:
    assert "x-problem" not in json.dumps(build())


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("call_not_found", "call_lost", "'call_lost' is not a valid Code"),
        ("loop_detected", "overloaded", "no operation declares loop_detected"),
        ("[$wallet,", "[$walet,", r"x-problem-sets has no set \$walet"),
        ("openapi: ", "openapi: !tag ", "must not use tags"),
    ],
)
def test_refuses_a_file_that_differs_from_the_table_of_codes(old: str, new: str, reason: str) -> None:
    assert old in TEXT
    with pytest.raises(ValueError, match=reason):
        load_contract(TEXT.replace(old, new).encode(), SITE)


def declared(document: dict[str, Any], path: str, method: str) -> list[dict[str, Any]]:
    """The parameters of an operation, those of the components included."""
    shared = document["components"]["parameters"]
    return [
        shared[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
        for one in document["paths"][path][method]["parameters"]
    ]


APIS, HISTORY, PAYMENTS = "/api/v2/apis", "/api/v2/history", "/api/v2/payments"
DELIVERIES = "/api/v2/webhooks/{webhookId}/deliveries"
PARAMETER_LIMITS = {
    (APIS, "page", "maximum"): listing_routes.PAGE_MAX,
    (APIS, "limit", "maximum"): listing_routes.LIMIT_MAX,
    (APIS, "limit", "default"): listing_routes.LIMIT_DEFAULT,
    (APIS, "q", "maxLength"): listing_routes.SEARCH_LENGTH_MAX,
    (APIS, "currency", "maxLength"): listing_routes.CURRENCY_LENGTH_MAX,
    (APIS, "tag", "maxLength"): listing_routes.TAG_LENGTH_MAX,
    (APIS, "sort", "enum"): list(get_args(Sort)),
    (HISTORY, "limit", "maximum"): history_routes.HISTORY_LIMIT_MAX,
    (HISTORY, "limit", "default"): history_routes.HISTORY_LIMIT_DEFAULT,
    (HISTORY, "status", "enum"): list(get_args(HistoryStatus)),
    (HISTORY, "role", "enum"): list(get_args(HistoryRole)),
    (PAYMENTS, "limit", "maximum"): history_routes.PAYMENTS_LIMIT_MAX,
    (PAYMENTS, "limit", "default"): history_routes.HISTORY_LIMIT_DEFAULT,
    (f"{PAYMENTS}.csv", "limit", "maximum"): exports.PAGE_ROWS_MAX,
    (f"{HISTORY}.csv", "limit", "default"): exports.PAGE_ROWS_MAX,
    (DELIVERIES, "limit", "maximum"): webhook_routes.DELIVERIES_LIMIT_MAX,
    (DELIVERIES, "state", "enum"): list(DeliveryState),
}


def test_a_limit_of_a_parameter_is_the_limit_of_the_code() -> None:
    document = build()
    found = {}
    for path, name, keyword in PARAMETER_LIMITS:
        (schema,) = [one["schema"] for one in declared(document, path, "get") if one["name"] == name]
        found[path, name, keyword] = schema[keyword]
    assert found == PARAMETER_LIMITS


@pytest.mark.parametrize(
    ("path", "method", "model"),
    [
        (APIS, "get", listing_routes.ListingParameters),
        (APIS, "post", listing_routes.DryRunParameters),
        (f"{APIS}/{{apiId}}", "patch", listing_routes.DryRunParameters),
        (HISTORY, "get", history_routes.HistoryParameters),
        (PAYMENTS, "get", history_routes.PaymentParameters),
        (f"{HISTORY}.csv", "get", exports.CallExportParameters),
        (f"{PAYMENTS}.csv", "get", exports.PaymentExportParameters),
        ("/api/v2/sales", "get", sums_routes.SalesParameters),
        ("/api/v2/spending", "get", sums_routes.SpendingParameters),
        (DELIVERIES, "get", webhook_routes.DeliveryParameters),
    ],
)
def test_a_route_declares_the_parameters_of_its_model(
    path: str, method: str, model: type[QueryModel]
) -> None:
    names = [one["name"] for one in declared(build(), path, method) if one["in"] == "query"]
    assert sorted(names) == sorted(model.member_names())


COMPONENT_LIMITS = {
    "parameters/offset/schema/maximum": history_routes.OFFSET_MAX,
    "schemas/Call/properties/status/enum": list(get_args(HistoryStatus)),
    "schemas/Call/properties/payment/properties/rail/enum": [rail.value for rail in Rail],
    "schemas/RateLimit/properties/calls/maximum": draft.RATE_CALLS_MAX,
    "schemas/RateLimit/properties/perSeconds/maximum": draft.RATE_PER_S_MAX,
    "schemas/Metering/properties/parts/maxItems": metering.PARTS_MAX,
    "schemas/Metering/properties/parts/items/properties/unit/maxLength": metering_body.UNIT_LENGTH_MAX,
    "schemas/Metering/properties/parts/items/properties/per/maximum": metering.PER_MAX,
    "schemas/ListingDraft/properties/name/maxLength": draft.NAME_LENGTH_MAX,
    "schemas/ListingDraft/properties/description/maxLength": draft.DESCRIPTION_LENGTH_MAX,
    "schemas/ListingDraft/properties/endpoint/maxLength": draft.URL_LENGTH_MAX,
    "schemas/ListingDraft/properties/networks/maxItems": draft.NETWORKS_MAX,
    "schemas/ListingDraft/properties/methods/maxItems": draft.METHODS_MAX,
    "schemas/ListingDraft/properties/tags/maxItems": draft.TAGS_MAX,
    "schemas/ListingDraft/properties/tags/items/maxLength": draft.TAG_LENGTH_MAX,
    "schemas/ListingDraft/properties/operations/maxItems": draft.PRICED_OPERATIONS_MAX,
    "schemas/ListingDraft/properties/timeoutSeconds/default": draft.TIMEOUT_S_DEFAULT,
    "schemas/ListingDraft/properties/timeoutSeconds/maximum": draft.TIMEOUT_S_MAX,
    "schemas/ListingDraft/properties/forwardHeaders/maxItems": draft.FORWARD_HEADERS_MAX,
    "schemas/ListingDraft/properties/forwardHeaders/items/maxLength": draft.HEADER_NAME_LENGTH_MAX,
}


def test_a_webhook_names_the_types_of_the_code() -> None:
    body = build()["paths"]["/api/v2/webhooks"]["post"]["requestBody"]["content"]["application/json"]
    members = body["schema"]["properties"]
    assert members["types"]["items"]["enum"] == list(EventType)
    assert members["url"]["maxLength"] == ENDPOINT_CHARS_MAX
    assert set(members) == set(webhook_routes.WebhookBody.member_names())


def test_a_limit_of_a_component_is_the_limit_of_the_code() -> None:
    components, found = build()["components"], {}
    for place in COMPONENT_LIMITS:
        found[place] = components
        for step in place.split("/"):
            found[place] = found[place][step]
    assert found == COMPONENT_LIMITS


def test_the_contract_names_the_revisions_of_mcp() -> None:
    description = build()["paths"]["/mcp"]["post"]["description"]
    assert re.findall(r"\d{4}-\d{2}-\d{2}", description) == list(MCP_REVISIONS)


# ---- Featured operations.


def test_a_featured_operation_has_a_price_and_its_schemas() -> None:
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


def test_the_document_leaves_room_for_featured_operations() -> None:
    assert len(SiteContract(SITE).build()) <= DOCUMENT_BYTES_MAX - 2_000


def test_the_document_features_no_more_than_a_crawler_reads() -> None:
    small = [sold(number, schema={}) for number in range(3 * FEATURED_MAX)]
    assert 6 <= len(featured_paths(build(*small))) <= FEATURED_MAX


@pytest.mark.parametrize("size", [2_000, 20_000, 200_000])
def test_an_operation_without_room_for_its_schemas_keeps_its_names(size: int) -> None:
    document = build(*(sold(number, schema={"enum": ["x" * size]}) for number in range(4)))
    assert len(featured_paths(document)) == 4
    last = document["paths"][featured_paths(document)[-1]]["post"]
    assert [one["name"] for one in last["parameters"]] == ["symbol", "days"]


def test_an_operation_that_is_too_long_is_left_out() -> None:
    assert featured_paths(build(sold(1, path="/" + "x" * 70_000), sold(2))) == [
        f"/api/v2/gateway/api_{2:026d}/quote/{{symbol}}"
    ]


def test_no_reference_leads_to_definitions_of_another_document() -> None:
    document = build(sold(schema={"$ref": "#/$defs/elsewhere"}))
    OpenAPIV31SpecValidator(document).validate()
    assert "elsewhere" not in json.dumps(document["paths"])
