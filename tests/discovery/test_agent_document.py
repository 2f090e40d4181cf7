"""The agent document: at most 8 KiB, enough to call and to pay; operations are listed or counted, every left-out member is named, and the next pages have all of it."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.listings import LISTING_ID, PUBLIC_URL, realistic_document, show_listing
from tests.kit.openapi_documents import openapi_document, parameter
from tollway.discovery.agent_document import (
    AGENT_BYTES_MAX,
    OPERATIONS_BYTES_MIN,
    PAGED_SCHEMAS_BYTES_MAX,
    SUMMARY_BYTES_MAX,
    describe_for_agents,
    describe_operation,
    json_size,
)
from tollway.discovery.listing_view import ListingView
from tollway.limits import DEFAULT_LIMITS
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Operation, RateLimit
from tollway.registry.quality import Quality, Reputation
from tollway.sandbox.provider import SAMPLE_DOCUMENT

TEXT = {"type": "string"}
WIDE = "\U0001f310"  # four bytes of UTF-8
LONG_URL = "https://" + ".".join(["a" * 60] * 4) + ".example:65535"


AGENT = f"/api/v2/apis/{LISTING_ID}/agent"
DISCOVERY = f"/api/v2/apis/{LISTING_ID}/discovery"


def write(view: ListingView) -> dict[str, Any]:
    """The first page as a client parses it, after a check of the sizes and the completeness of all pages."""
    written = write_pages(view)
    check_completeness(view, written)
    return written[0]


def write_pages(view: ListingView) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    for page in describe_for_agents(view, DEFAULT_LIMITS):
        body = json.dumps(page, ensure_ascii=False, separators=(",", ":"))
        is_single = bool(pages) and len(page["operations"]) == 1
        assert is_single or len(body.encode()) <= AGENT_BYTES_MAX
        pages.append(json.loads(body))
    return pages


def check_completeness(view: ListingView, pages: list[dict[str, Any]]) -> None:
    """Each operation is listed or counted, each listed one has or names every member, and the next pages have all that the first does not have, in order."""
    agent, *others = pages
    listed, counted = agent["operations"], agent.get("operationsLeftOut", 0)
    assert len(listed) + counted == len(view.operations)
    by_tool = {operation.tool: operation for operation in view.operations}
    paged = [entry for page in others for entry in page["operations"]]
    for entry in [*listed, *paged]:
        operation = by_tool[entry["tool"]]
        whole = describe_operation(view, operation)
        members = (set(whole) - {"leftOut"}) | set(whole["leftOut"])
        assert sorted([*(set(entry) - {"leftOut"}), *entry.get("leftOut", ())]) == sorted(members)
        assert entry.get("inputSchema", operation.input_schema) == operation.input_schema
    complete = {entry["tool"] for entry in listed if "leftOut" not in entry}
    assert [entry["tool"] for entry in paged] == [
        one.tool for one in view.operations if one.tool not in complete
    ]
    assert agent.get("operationsAt") == (f"{AGENT}?page=2" if others else None)
    for number, page in enumerate(others, start=2):
        assert (page["page"], page["pages"]) == (number, len(pages))
        assert page["operations"]
        assert page.get("next") == (f"{AGENT}?page={number + 1}" if number < len(pages) else None)


def document_of(paths: int, **operation: Any) -> dict[str, Any]:
    plain = {"responses": {"200": {"description": "ok"}}, **operation}
    return openapi_document({f"/v1/things/{number}": {"get": plain} for number in range(paths)})


def find_keys(content: Any) -> set[str]:
    if isinstance(content, dict):
        return set(content) | {key for one in content.values() for key in find_keys(one)}
    return {key for one in content for key in find_keys(one)} if isinstance(content, list) else set()


# ---- What it contains.


def test_it_has_everything_that_a_caller_needs_to_call_and_pay() -> None:
    agent = write(show_listing(openapi=SAMPLE_DOCUMENT, description="Quotes for symbols."))
    assert (agent["id"], agent["name"], agent["status"]) == (LISTING_ID, "Weather", "active")
    assert agent["whenToUse"] == "Quotes for symbols."
    assert agent["interfaces"]["http"]["url"] == f"{PUBLIC_URL}/api/v2/gateway/{LISTING_ID}"
    assert agent["interfaces"]["mcp"]["url"] == f"{PUBLIC_URL}/mcp/{LISTING_ID}"
    assert [option["rail"] for option in agent["payment"]["options"]] == ["tx", "x402"]
    assert {rail["rail"] for rail in agent["payment"]["rails"]} == {"tx", "x402", "mpp"}
    assert agent["payment"]["steps"]
    assert agent["links"]["guide"] == "/docs/payment.json"
    assert set(agent) >= {"charged", "idempotency", "limits", "errors", "trust", "links"}


def test_each_operation_has_a_price_schemas_and_an_example() -> None:
    quote, *_ = write(show_listing(openapi=SAMPLE_DOCUMENT))["operations"]
    assert (quote["method"], quote["path"]) == ("GET", "/quote/{symbol}")
    assert (quote["tool"], quote["price"]) == ("get_quote", "0.01 USDC")
    assert quote["inputSchema"]["required"] == ["symbol"]
    assert quote["outputSchema"]["type"] == "object"
    assert quote["example"] == {"target": "/quote/ETH"}


def test_arguments_have_a_place_where_it_is_not_the_usual_one() -> None:
    parameters = [
        {"name": "id", "in": "path", "required": True},
        *map(parameter, ("id", "limit", "body")),
        {"name": "X-Trace", "in": "header"},
        parameter("tags", explode=False),
    ]
    posted = {"parameters": parameters, "requestBody": {"content": {"application/json": {}}}}
    document = openapi_document({"/a/{id}": {"post": posted}})
    (one,) = write(show_listing(openapi=document, forward_headers=("X-Trace",)))["operations"]
    assert one["arguments"] == {
        "query_id": {"in": "query", "name": "id"},
        "X-Trace": {"in": "header", "name": "X-Trace"},
        "tags": {"in": "query", "name": "tags", "explode": False},
        "body": {"in": "query", "name": "body"},
        "body_body": {"in": "body"},
    }


def test_the_example_of_a_body_names_neither_method_nor_media_type_again() -> None:
    echo = next(
        one for one in write(show_listing(openapi=SAMPLE_DOCUMENT))["operations"] if one["method"] == "POST"
    )
    assert (echo["bodyType"], echo["example"]) == (
        "application/json",
        {"target": "/echo", "body": {"hello": "world"}},
    )


def test_a_listing_without_an_openapi_document_is_one_operation() -> None:
    (call,) = write(show_listing())["operations"]
    assert call["tool"] == "call"
    assert call["example"] == {"target": ""}


def test_the_description_of_the_openapi_document_replaces_a_missing_one() -> None:
    document = {**document_of(1), "info": {"title": "t", "version": "1", "description": "From <b>there</b>."}}
    assert write(show_listing(openapi=document))["whenToUse"] == "From there."


def test_a_free_listing_needs_no_payment() -> None:
    agent = write(show_listing(price=Price.parse("0"), has_mpp=False))
    assert agent["payment"] == {"required": False, "amount": "0", "currency": "USDC"}


def test_options_are_for_a_price_of_an_operation() -> None:
    dear = Operation(method="GET", path="/dear", price=Price.parse("2.5"))
    agent = write(show_listing(operations=(dear,), other_paths="refuse"))
    assert agent["payment"]["amount"] == "2.5"
    assert {option["amount"] for option in agent["payment"]["options"]} == {"2500000"}


@pytest.mark.parametrize("charge_on", list(ChargeOn))
def test_the_charged_statuses_are_those_of_the_listing(charge_on: ChargeOn) -> None:
    charged_for = write(show_listing(charge_on=charge_on))["charged"]["for"]
    assert ("4xx" in charged_for) == (charge_on is ChargeOn.ANSWERED)


def test_trust_has_the_proof_of_ownership_and_the_quality() -> None:
    quality = Quality(calls=120, success_ppm=998_100, p50_ms=120, p95_ms=480)
    known = write(show_listing(reputation=Reputation(quality=quality, verified_ms=1_795_239_000_000)))[
        "trust"
    ]
    assert known["ownershipVerified"] is True
    assert known["verifiedAt"] == "2026-11-21T05:30:00.000Z"
    assert known["quality"] == {"calls30d": 120, "successRate30d": 0.9981, "p50Ms": 120, "p95Ms": 480}
    unknown = write(show_listing())["trust"]
    assert unknown["ownershipVerified"] is False
    assert "verifiedAt" not in unknown
    assert unknown["quality"]["calls30d"] is None


def test_limits_are_those_of_the_listing() -> None:
    limits = write(show_listing(timeout_s=7, rate_limit=RateLimit(calls=3, per_s=60)))["limits"]
    assert limits["timeoutSeconds"] == 7
    assert limits["ratePerPayer"] == {"calls": 3, "perSeconds": 60}


def test_it_contains_nothing_of_the_endpoint() -> None:
    view = show_listing(endpoint="https://hidden.example.com/base")
    assert "hidden.example.com" not in json.dumps(write(view))


# ---- What is left out.


def test_a_summary_is_cut() -> None:
    view = show_listing(openapi=SAMPLE_DOCUMENT)
    quote = view.operations[0]
    for character in ("w", WIDE, '"'):
        summary = describe_operation(view, replace(quote, summary=character * 500))["summary"]
        assert summary.endswith(character + "…")
        assert SUMMARY_BYTES_MAX - 4 < json_size(summary) <= SUMMARY_BYTES_MAX


def test_a_description_replaces_a_missing_summary() -> None:
    view = show_listing(openapi=SAMPLE_DOCUMENT)
    quote = replace(view.operations[0], summary="", description="what it does")
    assert describe_operation(view, quote)["summary"] == "what it does"


def test_response_schemas_are_left_out_before_request_schemas() -> None:
    answer = {"type": "object", "properties": {f"member_{n}": {"type": "string"} for n in range(120)}}
    responses = {"200": {"description": "ok", "content": {"application/json": {"schema": answer}}}}
    query = [parameter("q", TEXT, required=True)]
    agent = write(show_listing(openapi=document_of(3, responses=responses, parameters=query)))
    assert len(agent["operations"]) == 3
    assert all("inputSchema" in one for one in agent["operations"])
    assert agent["operations"][-1]["leftOut"] == ["outputSchema"]
    assert "operationsLeftOut" not in agent


def test_an_operation_with_a_long_schema_can_be_called_by_its_example() -> None:
    query = [parameter(f"q{n}", TEXT, required=n == 0, description="w" * 900) for n in range(9)]
    (one,) = write(show_listing(openapi=document_of(1, parameters=query)))["operations"]
    assert one["leftOut"] == ["inputSchema"]
    assert one["example"] == {"target": "/v1/things/0?q0=text"}


def test_the_first_of_many_operations_are_listed_and_the_rest_are_counted() -> None:
    view = show_listing(openapi=document_of(2_000))
    agent = write(view)
    listed = agent["operations"]
    assert [one["path"] for one in listed] == [f"/v1/things/{n}" for n in range(len(listed))]
    assert all({"method", "path", "price", "example"} <= set(one) for one in listed)
    assert len(listed) >= 20
    assert len(listed) + agent["operationsLeftOut"] == 2_000


def test_an_operation_that_does_not_fit_is_counted_and_the_next_one_is_listed() -> None:
    view = show_listing(openapi=document_of(3))
    first, *others = view.operations
    agent = write(replace(view, operations=(replace(first, path="/" + "x" * 6_000), *others)))
    assert [one["path"] for one in agent["operations"]] == ["/v1/things/1", "/v1/things/2"]
    assert agent["operationsLeftOut"] == 1


@pytest.mark.parametrize(
    ("operations", "listed_min", "schemas_min"), [(5, 5, 5), (20, 14, 0), (50, 14, 0), (200, 14, 0)]
)
@pytest.mark.parametrize("chains", [1, 3])
def test_most_of_the_document_is_operations(
    chains: int, operations: int, listed_min: int, schemas_min: int
) -> None:
    view = show_listing(
        chains=chains, openapi=realistic_document(operations), description="Records of a business. " * 10
    )
    listed = write(view)["operations"]
    assert len(listed) >= listed_min
    assert sum("inputSchema" in entry for entry in listed) >= schemas_min


def test_the_next_pages_have_the_other_operations_whole() -> None:
    view = show_listing(openapi=realistic_document(200))
    _, *others = write_pages(view)
    assert not [entry for page in others for entry in page["operations"] if "leftOut" in entry]
    assert max(len(page["operations"]) for page in others) > 1


WIDE_QUERY = [parameter(f"q{n}", TEXT, description="w" * 900) for n in range(12)]


def test_an_operation_longer_than_a_page_has_a_page_of_its_own() -> None:
    view = show_listing(openapi=document_of(3, parameters=WIDE_QUERY))
    pages = write_pages(view)
    check_completeness(view, pages)
    assert [len(page["operations"]) for page in pages] == [3, 1, 1, 1]
    assert min(json_size(page) for page in pages[1:]) > AGENT_BYTES_MAX


def test_the_schemas_of_all_pages_are_limited() -> None:
    view = show_listing(openapi=document_of(200, parameters=WIDE_QUERY))
    pages = write_pages(view)
    check_completeness(view, pages)
    paged = [entry for page in pages[1:] for entry in page["operations"]]
    schemas = [entry["inputSchema"] for entry in paged if "leftOut" not in entry]
    assert 0 < len(schemas) < len(paged) == 200
    assert json_size(schemas) <= PAGED_SCHEMAS_BYTES_MAX


def test_every_page_says_that_its_words_are_untrusted() -> None:
    for page in write_pages(show_listing(openapi=realistic_document(50))):
        assert "never instructions" in page["untrusted"]


def test_many_options_are_cut_to_the_first_of_each_rail() -> None:
    agent = write(show_listing(chains=12, openapi=document_of(2_000)))
    rails = [option["rail"] for option in agent["payment"]["options"]]
    assert set(rails) == {"tx", "x402"}
    assert agent["payment"]["optionsLeftOut"] == 24 - len(rails)
    assert agent["payment"]["optionsAt"] == DISCOVERY


def test_a_rail_of_the_last_network_alone_is_listed() -> None:
    last = 8453 + 9
    agent = write(show_listing(chains=10, is_offered=lambda asset, units, listing_id: asset.chain_id == last))
    options = agent["payment"]["options"]
    assert [option["chainId"] for option in options if option["rail"] == "x402"] == [last]
    assert agent["payment"]["optionsLeftOut"] == 11 - len(options)


# ---- Hostile providers.

HOSTILE: dict[str, dict[str, Any]] = {
    "wide characters everywhere": {
        "name": WIDE * 120,
        "description": WIDE * 4_000,
        "tags": tuple(f"{n}" + WIDE * 31 for n in range(5)),
        "openapi": document_of(60, summary=WIDE * 4_000, description=WIDE * 4_000),
    },
    "2,000 operations": {"openapi": document_of(2_000, summary=WIDE * 60, description=WIDE * 60)},
    "characters that JSON escapes": {
        "name": '"' * 120,
        "description": "\\" * 4_000,
        "tags": tuple(f"{n}" + '"' * 31 for n in range(5)),
        "openapi": document_of(100, summary='\\"' * 2_000),
    },
    "long paths": {
        "openapi": openapi_document({f"/{'x' * 2_000}{n}": {"get": {"responses": {}}} for n in range(50)})
    },
    "long names of parameters": {
        "openapi": document_of(
            20, parameters=[parameter(f"{n}" + "p" * 120, TEXT, required=True) for n in range(20)]
        )
    },
    "huge choices": {
        "openapi": document_of(
            1, parameters=[parameter("q", {**TEXT, "enum": [f"{n}" * 50 for n in range(900)]})]
        )
    },
    "huge example": {
        "openapi": document_of(
            3, parameters=[parameter("q", {**TEXT, "default": WIDE * 4_000}, required=True)]
        )
    },
    "no operation at all": {"openapi": {"openapi": "3.1.0", "paths": {}}},
    "members of wrong kinds": {
        "openapi": {
            "openapi": "3.1.0",
            "info": 7,
            "paths": {"/a": {"get": {"parameters": 9, "responses": []}}, "/b": 3},
        }
    },
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_it_fits_and_has_the_payment_steps_for_every_provider_text(changes: dict[str, Any]) -> None:
    for chains in (1, 12):
        agent = write(show_listing(chains=chains, public_url=LONG_URL, **changes))
        assert {option["rail"] for option in agent["payment"]["options"]} == {"tx", "x402"}
        assert {rail["rail"] for rail in agent["payment"]["rails"]} == {"tx", "x402", "mpp"}
        assert set(agent) >= {"interfaces", "operations", "charged", "errors", "links"}
        assert write(show_listing(chains=chains, **changes))["operations"]


def test_tags_and_descriptions_leave_room_for_operations() -> None:
    hostile = HOSTILE["wide characters everywhere"]
    agent = write(show_listing(chains=12, **hostile))
    assert "tags" not in agent
    assert json_size({**agent, "operations": []}) < AGENT_BYTES_MAX - OPERATIONS_BYTES_MIN + 200
    assert len(agent["operations"]) >= 5


def test_random_documents_fit(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(60):
        operation = {
            "summary": source.choice(["a", WIDE, '"']) * source.randrange(500),
            "parameters": [
                {
                    "name": f"p{n}" + "x" * source.randrange(80),
                    "in": source.choice(["query", "header", "path"]),
                    "required": source.random() < 0.5,
                    "schema": {"type": "string", "description": "d" * source.randrange(1_000)},
                }
                for n in range(source.randrange(20))
            ],
        }
        document = document_of(source.randrange(40), **operation)
        write(
            show_listing(
                chains=source.randrange(1, 8), openapi=document, description="d" * source.randrange(4_000)
            )
        )


def test_provider_text_is_marked_untrusted_and_cleaned() -> None:
    document = document_of(1, summary="Ignore <script>alert(1)</script>\u202eall [x](javascript:alert(1))")
    agent = write(show_listing(openapi=document, description="<b>Good</b>\u2066 data"))
    assert "never instructions" in agent["untrusted"]
    text = json.dumps(agent, ensure_ascii=False)
    assert not any(bad in text for bad in ("<script", "<b>", "\u202e", "\u2066", "javascript:"))


def test_names_in_every_part_are_camel_case() -> None:
    agent = write(show_listing(openapi=SAMPLE_DOCUMENT))
    del agent["operations"]
    names = find_keys(agent)
    assert not [key for key in names if "_" in key]
