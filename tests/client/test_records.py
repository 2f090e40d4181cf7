"""Records: the gateway's JSON becomes typed values, and a response that does not fit is an error with its place."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime

import pytest

from tests.kit.listings import show_listing
from tollway.client import records
from tollway.client.errors import FieldProblem, GatewayProblem, GatewayRefused, GatewayResponseInvalid
from tollway.client.record_reader import read_record
from tollway.client.records import (
    CallPage,
    DeliveryPage,
    FacetCounts,
    GatewayStatus,
    ListingDetails,
    ListingNotice,
    ListingStats,
    NetworkList,
    OwnershipStatus,
    PaymentStatus,
    SearchPage,
    WebhookList,
    WebhookStatus,
    read_agent_document,
)

LISTED = {
    "id": "api_1",
    "name": "Quotes",
    "provider": "0xCc",
    "pricePerRequest": "0.01",
    "currency": "USDC",
    "endpoint": "https://api.example.com",
    "description": "",
}
OPTION = {
    "rail": "tx",
    "network": "eip155:84532",
    "chainId": 84532,
    "asset": "eip155:84532/slip44:60",
    "symbol": "ETH",
    "decimals": 18,
    "amount": "123456789012345678901234567890",
    "payTo": "0xBb",
    "confirmations": 1,
    "headers": ["X-Payment-Tx", "X-Signature"],
}
DETAILS = {
    **LISTED,
    "openapi": {"openapi": "3.1.0"},
    "operations": [{"method": "GET", "path": "/a/{b}", "pricePerRequest": "0.02"}],
    "upstreamAuth": {"in": "header", "name": "X-Key", "set": True},
    "rateLimit": {"calls": 5, "perSeconds": 60},
    "pricing": {"mode": "fixed", "amount": "0.01", "currency": "USDC", "options": [OPTION]},
    "quality": {"calls30d": 40, "successRate30d": 1, "p50Ms": None, "p95Ms": 7},
    "verified": True,
    "links": {"self": "https://gw.test/a", "new": "https://gw.test/b"},
    "createdAt": "2026-11-23T20:00:00.123Z",
    "updatedAt": "2026-11-23T21:00:00.000+01:00",
    "revision": 3,
    "warnings": [{"code": "payto_shared", "detail": "It is.", "pointer": "/payTo"}],
}
CALL = {
    "id": "call_1",
    "apiId": "api_1",
    "status": "succeeded",
    "method": "GET",
    "path": "/quote",
    "price": "0.01",
    "currency": "USDC",
    "payment": {"state": "charged", "amount": "10000", "payTo": None},
    "createdAt": "2026-11-23T20:00:00.123Z",
    "httpStatus": 200,
}


def test_a_listing_is_read_with_all_its_parts():
    listing = read_record(ListingDetails, DETAILS)
    assert (listing.id, listing.price_per_request, listing.is_verified) == ("api_1", "0.01", True)
    assert [(one.method, one.path, one.price_per_request) for one in listing.operations] == [
        ("GET", "/a/{b}", "0.02")
    ]
    assert listing.upstream_auth is not None
    assert (listing.upstream_auth.location, listing.upstream_auth.is_set) == ("header", True)
    assert listing.rate_limit is not None
    assert listing.rate_limit.per_seconds == 60
    assert listing.pricing is not None
    (option,) = listing.pricing.options
    assert (option.amount, option.token, option.chain_id) == (123456789012345678901234567890, None, 84532)
    assert (listing.quality.calls, listing.quality.success_rate, listing.quality.p50_ms) == (40, 1.0, None)
    assert listing.links.listing == "https://gw.test/a"
    assert listing.created_at == datetime(2026, 11, 23, 20, 0, 0, 123_000, tzinfo=UTC)
    assert listing.updated_at == datetime(2026, 11, 23, 20, 0, tzinfo=UTC)
    assert listing.warnings == (ListingNotice(code="payto_shared", detail="It is.", pointer="/payTo"),)


def test_a_listing_of_an_older_gateway_takes_defaults():
    listing = read_record(ListingDetails, LISTED)
    assert (listing.status, listing.operations, listing.pricing, listing.revision) == (
        "active",
        (),
        None,
        None,
    )


def test_what_this_gateway_writes_is_read():
    details = show_listing(chains=3).details
    listing = read_record(ListingDetails, details)
    assert (listing.id, listing.price_per_request) == (details["id"], details["pricePerRequest"])
    assert listing.pricing is not None
    assert [str(one.amount) for one in listing.pricing.options] == [
        option["amount"] for option in details["pricing"]["options"]
    ]


def test_pages_and_payments_are_read():
    page = {"apis": [{**LISTED, "match": ["name"]}], "total": 10_000, "page": 1, "limit": 20}
    found = read_record(SearchPage, {**page, "totalIsLowerBound": True})
    assert (found.apis[0].match, found.total, found.is_total_lower_bound) == (("name",), 10_000, True)
    calls = {"calls": [CALL], "total": 1, "limit": 50, "offset": 0, "asOf": "2026-11-23T20:00:00.123Z"}
    (call,) = read_record(CallPage, calls).calls
    assert (call.payment.amount, call.payment.pay_to, call.http_status, call.error) == (
        10_000,
        None,
        200,
        None,
    )
    payment = {"transaction": "0x12", "state": "spent", "amount": None, "credit": "0", "calls": ["call_1"]}
    status = read_record(PaymentStatus, payment)
    assert (status.amount, status.credit, status.calls) == (None, 0, ("call_1",))


def test_the_ways_to_prove_ownership_are_read():
    challenge = {
        "wellKnown": {"url": "https://a/b", "content": "c"},
        "dns": None,
        "signature": {"url": "u", "pointer": "/x", "message": "m", "signer": "0x"},
    }
    status = read_record(
        OwnershipStatus,
        {
            "origin": "https://a",
            "state": "unverified",
            "method": None,
            "verifiedAt": None,
            "challenge": challenge,
        },
    )
    assert status.challenge is not None
    assert status.challenge.well_known is not None
    assert (status.challenge.well_known.content, status.challenge.dns) == ("c", None)


def test_an_agent_document_keeps_its_whole_text():
    document = {
        "id": "api_1",
        "name": "Quotes",
        "operations": [{"method": "GET", "path": "/a", "price": {}}],
        "x": "ä",
    }
    read = read_agent_document(document)
    assert (read.operations[0].path, '"x": "ä"' in read.text) == ("/a", True)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"id": None}, "/id is missing"),
        ({"id": 7}, "/id is no text"),
        ({"tags": "a"}, "/tags is no list"),
        ({"tags": [1]}, "/tags/0 is no text"),
        ({"operations": [{}]}, "/operations/0/method is missing"),
        ({"operations": [None]}, "/operations/0 is no object"),
        ({"upstreamAuth": []}, "/upstreamAuth is no object"),
        ({"revision": True}, "/revision is no integer"),
        ({"revision": 1.0}, "/revision is no integer"),
        ({"revision": "9" * 79}, "/revision is no integer"),
        ({"revision": "-1"}, "/revision is no integer"),
        ({"revision": "٣"}, "/revision is no integer"),
        ({"verified": 1}, "/verified is no boolean"),
        ({"quality": {"successRate30d": "1"}}, "/quality/successRate30d is no number"),
        ({"createdAt": "yesterday"}, "/createdAt is no time"),
        ({"createdAt": 0}, "/createdAt is no time"),
        ({"createdAt": "0001-01-01T00:00:00+01:00"}, "/createdAt is no time"),
    ],
)
def test_a_response_that_does_not_fit_names_its_place(changes: Mapping[str, object], place: str):
    with pytest.raises(GatewayResponseInvalid) as failed:
        read_record(ListingDetails, {**DETAILS, **changes})
    assert place in failed.value.detail


@pytest.mark.parametrize("document", [None, [], "x", 1])
def test_a_response_that_is_no_object_is_malformed(document):
    with pytest.raises(GatewayResponseInvalid, match="is no object"):
        read_record(SearchPage, document)


def test_a_time_without_a_zone_is_no_moment():
    with pytest.raises(GatewayResponseInvalid, match="/createdAt is no time"):
        read_record(ListingDetails, {**DETAILS, "createdAt": "2026-11-23T20:00:00"})


# ---- Problems.


def test_a_refusal_carries_its_problem():
    failure = GatewayRefused(
        422,
        {
            "code": "validation_failed",
            "title": "t",
            "detail": "d",
            "requestId": "req_1",
            "retryable": True,
            "paymentState": "none",
            "retryAfterSeconds": 3,
            "errors": [{"pointer": "/name", "code": "too_long", "detail": "long"}, 7],
        },
    )
    problem = failure.problem
    assert (problem.code, problem.request_id, problem.is_retryable) == ("validation_failed", "req_1", True)
    assert problem.errors == (FieldProblem(code="too_long", detail="long", pointer="/name"),)
    assert (problem.retry_after_s, problem.payment_state, failure.detail) == (3, "none", "d")


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"code": 1, "detail": [], "errors": {}, "retryAfterSeconds": "x", "retryable": "yes"},
        {"code": "NO"},
    ],
)
def test_a_problem_never_fails(document):
    problem = GatewayProblem.read(500, document)
    assert (problem.code, problem.errors, problem.retry_after_s) == ("unknown", (), None)
    assert (problem.detail, problem.is_retryable) == ("The gateway responded with status 500.", False)


# ---- All of them.


def list_records() -> list[type]:
    return [
        kind
        for kind in vars(records).values()
        if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == records.__name__
    ]


def test_a_record_is_frozen_and_holds_no_raw_json():
    raw = ("dict", "Mapping", "list", "Any", "object")
    kinds = list_records()
    assert [kind.__name__ for kind in kinds if not kind.__dataclass_params__.frozen] == []
    assert [
        f"{kind.__name__}.{field.name}"
        for kind in kinds
        for field in dataclasses.fields(kind)
        if any(word in str(field.type) for word in raw)
    ] == []


# ---- Counts of the catalog, networks, status.


def test_a_network_is_read_with_its_assets() -> None:
    usdc = {
        "asset": "eip155:8453/erc20:0x01",
        "symbol": "USDC",
        "token": "0x01",
        "decimals": 6,
        "domain": {"name": "USD Coin", "version": "2"},
        "rails": ["tx", "x402"],
        "confirmations": [{"amountMin": "0", "confirmations": 1}],
    }
    ether = {
        "asset": "eip155:8453/slip44:60",
        "symbol": "ETH",
        "decimals": 18,
        "rails": [],
        "confirmations": [],
    }
    network = {
        "network": "eip155:8453",
        "chainId": 8453,
        "name": "Base",
        "kind": "main",
        "nativeCurrency": {"symbol": "ETH", "decimals": 18},
        "explorerUrl": None,
        "walletRpcUrl": "https://rpc.example",
        "reachable": True,
        "rails": ["tx", "x402"],
        "assets": [usdc, ether],
    }
    (found,) = read_record(NetworkList, {"networks": [network]}).networks
    assert (found.chain_id, found.name, found.rails, found.reachable) == (8453, "Base", ("tx", "x402"), True)
    assert (found.explorer_url, found.wallet_rpc_url) == (None, "https://rpc.example")
    token, native = found.assets
    assert (token.token, token.domain and token.domain.version) == ("0x01", "2")
    assert (native.token, native.domain) == (None, None)
    assert token.confirmations[0].confirmations == 1


def test_a_status_has_the_time_since_when_a_rail_is_withdrawn() -> None:
    withdrawn = {"rails": ["x402"], "reason": "gas_too_dear", "since": "2026-11-21T05:30:00.000Z"}
    network = {
        "network": "eip155:8453",
        "chainId": 8453,
        "name": "Base",
        "reachable": False,
        "unreachableSince": None,
        "rails": [],
        "withdrawn": [withdrawn],
    }
    status = read_record(
        GatewayStatus, {"version": "1.2.3", "asOf": "2026-11-21T05:31:00.000Z", "networks": [network]}
    )
    (found,) = status.networks
    assert (found.unreachable_since, found.withdrawn[0].reason) == (None, "gas_too_dear")
    assert (status.as_of - found.withdrawn[0].since).total_seconds() == 60


def test_counts_and_days_are_read() -> None:
    facets = {"tags": [{"tag": "a", "count": 2}], "currencies": [], "networks": [], "total": 2}
    assert read_record(FacetCounts, facets).tags[0].count == 2
    day = {"day": "2026-11-21", "calls": 3, "successes": 2, "p50Ms": 10, "p95Ms": None}
    stats = read_record(ListingStats, {"id": "api_1", "days": [day]})
    assert (stats.days[0].p50_ms, stats.days[0].p95_ms) == (10, None)


def test_a_further_page_of_an_agent_document_has_operations_only() -> None:
    page = {"id": "api_1", "page": 2, "pages": 3, "operations": [{"method": "GET", "path": "/a"}]}
    found = read_agent_document(page)
    assert (found.page, found.pages, found.name, len(found.operations)) == (2, 3, "", 1)


# ---- Webhooks.

WEBHOOK = {
    "id": "wh_1",
    "url": "https://owner.example/hooks",
    "types": ["call.charged", "call.held"],
    "state": "unconfirmed",
    "reason": None,
    "secret": {"scheme": "v1", "set": True},
    "activeFrom": None,
    "gap": None,
    "pending": 0,
    "dead": 0,
    "createdAt": "2026-11-21T05:30:00.000Z",
}
DELIVERY = {
    "eventId": "evt_1",
    "type": "call.charged",
    "timestamp": "2026-11-21T05:30:00.000Z",
    "state": "dead",
    "messageId": "evt_2",
    "attempts": 8,
    "nextAttemptAt": None,
    "lastAttemptAt": "2026-11-22T05:30:00.000Z",
    "lastStatus": 503,
    "lastError": None,
}


def test_a_new_webhook_has_its_secret_and_a_listed_one_has_not() -> None:
    created = read_record(
        WebhookStatus, {**WEBHOOK, "secret": {"scheme": "v1", "set": True, "value": "whsec_AAAA"}}
    )
    assert created.secret is not None
    assert (created.secret.scheme, created.secret.value) == ("v1", "whsec_AAAA")
    assert "whsec_AAAA" not in repr(created), "a log that prints the record has no secret"
    (listed,) = read_record(WebhookList, {"webhooks": [WEBHOOK], "limit": 10}).webhooks
    assert listed.secret is not None
    assert (listed.secret.set, listed.secret.value) == (True, None)
    unsigned = read_record(WebhookStatus, {**WEBHOOK, "secret": None})
    assert (unsigned.secret, unsigned.active_from, unsigned.reason) == (None, None, None)


def test_a_stopped_webhook_has_its_reason_and_its_gap() -> None:
    gap = {"from": "2026-11-21T06:00:00.000Z", "to": None}
    found = read_record(
        WebhookStatus,
        {
            **WEBHOOK,
            "state": "stopped",
            "reason": "too_many_pending",
            "activeFrom": "2026-11-21T05:30:05.000Z",
            "gap": gap,
            "pending": 10_000,
            "dead": 2,
        },
    )
    assert (found.state, found.reason, found.pending, found.dead) == (
        "stopped",
        "too_many_pending",
        10_000,
        2,
    )
    assert found.active_from == datetime(2026, 11, 21, 5, 30, 5, tzinfo=UTC)
    assert found.created_at == datetime(2026, 11, 21, 5, 30, tzinfo=UTC)
    assert found.gap is not None
    assert (found.gap.from_at, found.gap.to_at) == (datetime(2026, 11, 21, 6, tzinfo=UTC), None)


def test_a_delivery_is_read_with_its_last_attempt() -> None:
    waiting = {**DELIVERY, "state": "pending", "messageId": None, "attempts": 0, "lastAttemptAt": None}
    dead, pending = read_record(DeliveryPage, {"deliveries": [DELIVERY, waiting]}).deliveries
    assert (dead.event_id, dead.type, dead.state, dead.attempts) == ("evt_1", "call.charged", "dead", 8)
    assert (dead.last_status, dead.last_error, dead.next_attempt_at) == (503, None, None)
    assert dead.last_attempt_at == datetime(2026, 11, 22, 5, 30, tzinfo=UTC)
    assert (pending.state, pending.message_id, pending.last_attempt_at) == ("pending", None, None)


@pytest.mark.parametrize(
    ("kind", "document", "place"),
    [
        (
            WebhookList,
            {"webhooks": [{**WEBHOOK, "types": "call.held"}], "limit": 10},
            "/webhooks/0/types is no list",
        ),
        (WebhookList, {"webhooks": [WEBHOOK]}, "/limit is missing"),
        (WebhookStatus, {**WEBHOOK, "activeFrom": "soon"}, "/activeFrom is no time"),
        (WebhookStatus, {**WEBHOOK, "secret": {"set": True}}, "/secret/scheme is missing"),
        (WebhookStatus, {**WEBHOOK, "gap": {"to": None}}, "/gap/from is missing"),
        (
            DeliveryPage,
            {"deliveries": [{**DELIVERY, "attempts": "many"}]},
            "/deliveries/0/attempts is no integer",
        ),
        (DeliveryPage, {"deliveries": [{**DELIVERY, "eventId": None}]}, "/deliveries/0/eventId is missing"),
    ],
)
def test_a_webhook_that_does_not_fit_names_its_place(
    kind: type, document: Mapping[str, object], place: str
) -> None:
    with pytest.raises(GatewayResponseInvalid) as failed:
        read_record(kind, document)
    assert place in failed.value.detail
