"""The routes of listings over a catalog in memory: permissions, responses, and the order of refusals."""

from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from tests.kit.ledger_records import operator_origin
from tests.kit.listing_routes import (
    APIS,
    BODY,
    OTHER_USDC,
    SEVEN,
    USDC,
    open_listing_routes,
)
from tests.kit.listing_routes import ListingRoutesHarness as Harness
from tests.kit.routes import ALICE, BOB, PUBLIC_URL, code_of, places_of
from tests.kit.stores import open_catalog
from tollway.identity.http_signatures import encode_base64url
from tollway.ids import Address, ListingId
from tollway.outbound.policy import Endpoint
from tollway.registry.catalog import Revised
from tollway.registry.moderation import restore_listing, suspend_listing
from tollway.registry.ownership import OriginOwner
from tollway.registry.quality import Quality, Reputation
from tollway.storage.catalog.creation_store import creation_table


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    async with open_listing_routes(**getattr(request, "param", {})) as harness:
        yield harness


# ---- Create.


async def test_create_answers_the_created_api(harness: Harness) -> None:
    answer = await harness.send("POST", APIS, BODY)
    assert answer.status_code == 201
    created = answer.json()
    assert created["id"].startswith("api_")
    assert answer.headers["location"] == f"{PUBLIC_URL}{APIS}/{created['id']}"
    assert answer.headers["etag"].startswith('"r1-')
    assert created == {
        "id": created["id"],
        "name": "Weather",
        "provider": str(ALICE),
        "pricePerRequest": "0.010",
        "currency": "USDC",
        "endpoint": "https://api.example.com/v1/",
        "description": "",
        "payTo": str(ALICE),
        "networks": ["eip155:8453", "eip155:10"],
        "methods": [],
        "tags": [],
        "openapi": None,
        "openapiUrl": None,
        "metering": None,
        "operations": [],
        "otherPaths": "serve",
        "chargeOn": "success",
        "timeoutSeconds": 30,
        "forwardHeaders": [],
        "upstreamAuth": None,
        "signature": "any",
        "rateLimit": None,
        "freeCalls": None,
        "status": "active",
        "forwardSignature": "ed25519",
        "contact": None,
        "website": None,
        "terms": None,
        "pricing": {
            "mode": "fixed",
            "amount": "0.010",
            "currency": "USDC",
            "options": [
                {
                    "rail": "tx",
                    "network": "eip155:8453",
                    "chainId": 8453,
                    "asset": f"eip155:8453/erc20:{str(USDC).lower()}",
                    "token": str(USDC),
                    "symbol": "USDC",
                    "decimals": 6,
                    "amount": "10000",
                    "payTo": str(ALICE),
                    "confirmations": 1,
                    "headers": ["X-Payment-Tx", "X-Signature"],
                },
                {
                    "rail": "tx",
                    "network": "eip155:10",
                    "chainId": 10,
                    "asset": f"eip155:10/erc20:{str(OTHER_USDC).lower()}",
                    "token": str(OTHER_USDC),
                    "symbol": "USDC",
                    "decimals": 6,
                    "amount": "10000",
                    "payTo": str(ALICE),
                    "confirmations": 1,
                    "headers": ["X-Payment-Tx", "X-Signature"],
                },
            ],
        },
        "quality": {"calls30d": None, "successRate30d": None, "p50Ms": None, "p95Ms": None},
        "verified": False,
        "links": created["links"],
        "createdAt": "2023-11-14T22:13:20.123Z",
        "updatedAt": "2023-11-14T22:13:20.123Z",
        "revision": 1,
        "warnings": [],
    }
    assert created["links"]["self"] == answer.headers["location"]
    assert created["links"]["gateway"] == f"{PUBLIC_URL}/api/v2/gateway/{created['id']}"
    assert harness.probed == ["https://api.example.com/v1/"]


async def test_details_contain_the_reputation(harness: Harness) -> None:
    created = await harness.publish()
    url = f"{APIS}/{created['id']}"
    before = await harness.client.get(url)
    assert before.json()["quality"]["calls30d"] is None
    quality = Quality(calls=21, success_ppm=999_999, p50_ms=40, p95_ms=None)
    await harness.stores.set_reputation(created["id"], Reputation(quality=quality, verified_ms=7))
    after = await harness.client.get(url, headers={"If-None-Match": before.headers["etag"]})
    assert after.status_code == 200
    # Not every call succeeded, so the rate is below 1.
    shown = {"calls30d": 21, "successRate30d": 0.999999, "p50Ms": 40, "p95Ms": None}
    assert after.json()["quality"] == shown
    assert after.json()["verified"] is True
    edited = await harness.send("PUT", url, BODY)
    assert (edited.json()["quality"], edited.json()["verified"]) == (shown, True)


async def test_a_native_option_has_no_token(harness: Harness) -> None:
    created = await harness.publish(currency="ETH", pricePerRequest="0.000001")
    (option,) = created["pricing"]["options"]
    assert "token" not in option
    assert option["asset"] == "eip155:8453/slip44:60"
    assert (option["amount"], option["decimals"], option["confirmations"]) == ("1000000000000", 18, 3)


async def test_a_free_listing_has_no_options(harness: Harness) -> None:
    created = await harness.publish(pricePerRequest="0")
    assert created["pricing"]["options"] == []


async def test_no_response_contains_the_secret(harness: Harness) -> None:
    secret = {"in": "header", "name": "X-Key", "value": "hush-hush"}
    created = await harness.send("POST", APIS, {**BODY, "upstreamAuth": secret})
    listing_id = created.json()["id"]
    answers = [
        created,
        await harness.send("GET", f"{APIS}/{listing_id}"),
        await harness.send("GET", APIS),
        await harness.send("PUT", f"{APIS}/{listing_id}", BODY),
    ]
    for answer in answers:
        assert "hush-hush" not in answer.text
    assert answers[1].json()["upstreamAuth"] == {"in": "header", "name": "X-Key", "set": True}
    kept = (await harness.stored(listing_id)).upstream_auth
    assert kept is not None
    assert kept.value == "hush-hush"


async def test_a_secret_that_cannot_be_decrypted_is_reported_and_can_be_set_again(harness: Harness) -> None:
    secret = {"in": "header", "name": "X-Key", "value": "hush-hush"}
    listing_id = (await harness.send("POST", APIS, {**BODY, "upstreamAuth": secret})).json()["id"]
    stored = await harness.stored(listing_id)
    other = open_catalog(harness.stores.database, now_ms=lambda: 0, key=b"\x08" * 32)
    assert isinstance(await other.revise(stored, expected_revision=stored.revision), Revised)
    harness.stores.catalog.clear_cache()
    url = f"{APIS}/{listing_id}"
    shown = {"in": "header", "name": "X-Key", "set": False}
    assert (await harness.send("GET", url)).json()["upstreamAuth"] == shown
    assert (await harness.send("PUT", url, BODY)).json()["upstreamAuth"] == shown
    again = await harness.send("PUT", url, {**BODY, "upstreamAuth": secret})
    assert again.json()["upstreamAuth"] == {**shown, "set": True}
    assert (await harness.send("DELETE", url)).status_code == 204


JSON, INVALID = "application/json", (400, "invalid_request")
UNREADABLE = {
    "no body": (JSON, b"", INVALID),
    "not JSON": (JSON, b"name=Weather", INVALID),
    "depth bomb": (JSON, b'{"a":' * 100_000, INVALID),
    "NaN": (JSON, b'{"pricePerRequest": NaN}', INVALID),
    "duplicate member": (JSON, b'{"name": "a", "name": "b"}', INVALID),
    "another media type": ("text/plain", b"{}", (415, "unsupported_media_type")),
}


@pytest.mark.parametrize(("media_type", "raw", "refusal"), UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_refuses_a_body_that_is_no_json(
    harness: Harness, media_type: str, raw: bytes, refusal: tuple[int, str]
) -> None:
    answer = await harness.send("POST", APIS, raw=raw, headers={"content-type": media_type})
    assert (answer.status_code, code_of(answer)) == refusal
    assert (await harness.send("GET", APIS)).json()["total"] == 0


@pytest.mark.parametrize(
    ("body", "code", "pointers"),
    [
        ([], "validation_failed", [""]),
        ({}, "validation_failed", ["/name", "/currency", "/pricePerRequest", "/endpoint"]),
        ({**BODY, "price": 1, "a/b~c": 2}, "validation_failed", ["/price", "/a~1b~0c"]),
        ({**BODY, "pricePerRequest": "1e3"}, "validation_failed", ["/pricePerRequest"]),
        ({**BODY, "endpoint": "file:///etc/passwd"}, "validation_failed", ["/endpoint"]),
        ({**BODY, "endpoint": "https://127.0.0.1/"}, "endpoint_not_allowed", ["/endpoint"]),
        ({**BODY, "endpoint": "https://api.example.com:22/"}, "endpoint_not_allowed", ["/endpoint"]),
        ({**BODY, "endpoint": "https://10.0.0.1/", "name": ""}, "validation_failed", ["/name", "/endpoint"]),
    ],
)
async def test_refuses_a_body_with_every_pointer(
    harness: Harness, body: object, code: str, pointers: list[str]
) -> None:
    answer = await harness.send("POST", APIS, body)
    assert (answer.status_code, code_of(answer)) == (422, code)
    assert places_of(answer) == pointers
    assert harness.probed == []
    assert (await harness.send("GET", APIS)).json()["total"] == 0


async def test_refuses_an_endpoint_in_a_private_network(harness: Harness) -> None:
    harness.denied_hosts.add("api.example.com")
    answer = await harness.send("POST", APIS, BODY)
    assert (answer.status_code, code_of(answer)) == (422, "endpoint_not_allowed")
    assert (await harness.send("GET", APIS)).json()["total"] == 0


async def test_authentication_comes_before_the_body(harness: Harness) -> None:
    for method, path in (("POST", APIS), ("PUT", f"{APIS}/api_x"), ("DELETE", f"{APIS}/api_x")):
        answer = await harness.send(method, path, raw=b"{rubbish", wallet=None)
        assert (answer.status_code, code_of(answer)) == (401, "authentication_required")


async def test_refuses_a_blocked_wallet(harness: Harness) -> None:
    created = await harness.publish()
    harness.blocked.add(ALICE)
    for method, path in (("POST", APIS), ("PUT", f"{APIS}/{created['id']}")):
        answer = await harness.send(method, path, BODY)
        assert (answer.status_code, code_of(answer)) == (403, "wallet_blocked")
    assert (await harness.stored(created["id"])).revision == 1


@pytest.mark.parametrize("harness", [{"allowlist": frozenset({BOB})}], indirect=True)
async def test_an_allowlist_lets_only_its_wallets_publish(harness: Harness) -> None:
    answer = await harness.send("POST", APIS, BODY, wallet=ALICE)
    assert (answer.status_code, code_of(answer)) == (403, "not_provider")
    assert answer.json()["reason"] == "not_on_allowlist"
    await harness.publish(wallet=BOB)


async def test_creates_per_wallet_and_hour_are_limited_and_only_created_listings_count(
    harness: Harness,
) -> None:
    for _ in range(5):
        assert (await harness.send("POST", APIS, {})).status_code == 422
        assert (await harness.send("POST", APIS + "?dryRun=true", BODY)).status_code == 200
    for _ in range(3):
        await harness.publish()
    answer = await harness.send("POST", APIS, BODY)
    assert (answer.status_code, code_of(answer)) == (429, "rate_limited")
    assert 0 < int(answer.headers["retry-after"]) <= 3600
    assert answer.headers["ratelimit-policy"] == '"registrations";q=3;w=3600'
    assert answer.headers["ratelimit"].startswith('"registrations";r=0;t=')
    await harness.publish(wallet=BOB)
    assert (await harness.send("GET", APIS)).json()["total"] == 4


async def test_checks_for_a_draft_count_also_when_the_draft_is_refused(harness: Harness) -> None:
    harness.denied_hosts.add("inside.example.com")
    inside = {**BODY, "endpoint": "https://inside.example.com/"}
    for _ in range(15):  # ten looks for each of three listings
        assert (await harness.send("POST", APIS + "?dryRun=true", BODY)).status_code == 200
        assert (await harness.send("POST", APIS, inside, wallet=BOB)).status_code == 422
    for wallet in (ALICE, BOB):
        answer = await harness.send("POST", APIS + "?dryRun=true", BODY, wallet=wallet)
        assert (answer.status_code, code_of(answer)) == (429, "rate_limited")
        assert answer.headers["ratelimit-policy"] == '"endpoint-probes";q=30;w=3600'
        assert 0 < int(answer.headers["retry-after"]) <= 3600
    assert len(harness.probed) == 30


async def test_edits_per_wallet_and_hour_are_limited_and_only_valid_ones_count(harness: Harness) -> None:
    created = await harness.publish()
    place = f"{APIS}/{created['id']}"
    for number in range(45):
        assert (await harness.send("PUT", place, {})).status_code == 422
        if number < 40:
            assert (
                await harness.send("PUT", place, {**BODY, "name": f"Weather {number}"})
            ).status_code == 200
    answer = await harness.send("PUT", place, BODY)
    assert (answer.status_code, code_of(answer)) == (429, "rate_limited")
    assert answer.headers["ratelimit-policy"] == '"edits";q=40;w=3600'
    assert 0 < int(answer.headers["retry-after"]) <= 3600
    assert (await harness.send("GET", place)).json()["name"] == "Weather 39"


async def test_an_edit_without_a_check_of_the_endpoint_is_not_counted_as_one(harness: Harness) -> None:
    created = await harness.publish()
    for number in range(35):
        answer = await harness.send("PUT", f"{APIS}/{created['id']}", {**BODY, "name": f"Weather {number}"})
        assert answer.status_code == 200


async def test_a_dry_run_checks_the_draft_and_writes_nothing(harness: Harness) -> None:
    answer = await harness.send("POST", APIS + "?dryRun=true", BODY)
    assert answer.status_code == 200
    assert answer.json()["id"] is None
    assert answer.json()["warnings"] == []
    assert "location" not in answer.headers
    assert harness.probed == ["https://api.example.com/v1/"]
    assert (await harness.send("GET", APIS)).json()["total"] == 0
    assert (await harness.send("POST", APIS + "?dryRun=true", {})).status_code == 422


async def test_a_dry_run_shows_what_an_agent_will_read(harness: Harness) -> None:
    shown = (await harness.send("POST", APIS + "?dryRun=true", BODY)).json()
    assert shown["agent"]["name"] == "Weather"
    assert shown["agent"]["interfaces"]["http"]["url"] == f"{PUBLIC_URL}/api/v2/gateway/{{apiId}}"
    created = await harness.publish()
    assert "agent" not in created


async def find_addresses(endpoint: Endpoint) -> list[str]:
    return ["203.0.113.7", "2001:db8::7"]


@pytest.mark.parametrize("harness", [{"find_addresses": find_addresses}], indirect=True)
async def test_a_dry_run_shows_the_addresses_that_the_gateway_would_call(harness: Harness) -> None:
    """What the page of the editor shows of a check is in the response of the API too."""
    shown = (await harness.send("POST", APIS + "?dryRun=true", BODY)).json()
    assert shown["endpointAddresses"] == ["203.0.113.7", "2001:db8::7"]
    assert "endpointAddresses" not in await harness.publish()


@pytest.mark.parametrize("query", ["dryRun=1", "dryRun=", "dry=true", "dryRun=true&dryRun=true"])
async def test_refuses_unknown_parameters_of_a_create(harness: Harness, query: str) -> None:
    answer = await harness.send("POST", f"{APIS}?{query}", BODY)
    assert (answer.status_code, code_of(answer)) == (422, "validation_failed")


async def test_warnings(harness: Harness) -> None:
    await harness.publish(wallet=BOB)
    harness.open_hosts.add("api.example.com")
    created = await harness.publish(payTo=str(BOB), pricePerRequest="2")
    assert [warning["code"] for warning in created["warnings"]] == [
        "price_above_client_default",
        "payto_shared",
        "endpoint_unprotected",
    ]
    assert "warnings" not in (await harness.send("GET", f"{APIS}/{created['id']}")).json()


async def test_a_document_is_fetched_once(harness: Harness) -> None:
    url = "https://api.example.com/openapi.json"
    harness.documents[url] = b'{"openapi": "3.1.0", "info": {"title": "x"}}'
    created = await harness.publish(openapiUrl=url)
    assert created["openapi"] == {"openapi": "3.1.0", "info": {"title": "x"}}
    await harness.send("GET", f"{APIS}/{created['id']}")
    await harness.send("PUT", f"{APIS}/{created['id']}", BODY)
    assert harness.fetched == [url]
    assert (await harness.stored(created["id"])).openapi == created["openapi"]


YAML = b"""
openapi: 3.0.1
paths:
  /v1/cities/{city}:
    get: {responses: {200: {description: yes}}}
"""


async def test_a_document_may_be_yaml(harness: Harness) -> None:
    url = "https://api.example.com/openapi.yaml"
    harness.documents[url] = YAML
    created = await harness.publish(openapiUrl=url, otherPaths="refuse")
    operation = {"get": {"responses": {"200": {"description": "yes"}}}}
    assert created["openapi"] == {"openapi": "3.0.1", "paths": {"/v1/cities/{city}": operation}}


@pytest.mark.parametrize(
    ("document", "member", "said"),
    [
        (b'{"swagger": "2.0"}', "openapiUrl", "Swagger 2.0"),
        (b"swagger: '2.0'", "openapiUrl", "Swagger 2.0"),
        (b"openapi: 3.0.1\nx: &a [1]\ny: *b", "openapiUrl", "names nothing before it"),
        (b"{}", "openapiUrl", "OpenAPI"),
        (None, "openapiUrl", ""),
        (b"<html>", "openapiUrl", ""),
        (b"[]", "openapiUrl", ""),
        (b'{"openapi": "2.0"}', "openapiUrl", ""),
        (b'{"a":' * 10_000, "openapiUrl", ""),
        (b'{"openapi": "3.0.1", "paths": {}}', "otherPaths", ""),  # it documents no operation
    ],
)
async def test_the_refusal_of_a_document_has_its_reason(
    harness: Harness, document: bytes | None, member: str, said: str
) -> None:
    url = "https://api.example.com/openapi.json"
    harness.documents |= {} if document is None else {url: document}
    answer = await harness.send("POST", APIS, {**BODY, "openapiUrl": url, "otherPaths": "refuse"})
    assert (answer.status_code, code_of(answer)) == (422, "validation_failed")
    assert places_of(answer) == [f"/{member}"]
    assert said in answer.json()["detail"]


# ---- Read.


async def test_details_carry_a_strong_etag_and_answer_304(harness: Harness) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    first = await harness.send("GET", path, wallet=None)
    etag = first.headers["etag"]
    assert etag.startswith('"r1-')
    assert f'<{PUBLIC_URL}{path}/agent>; rel="describedby"' in first.headers["link"]
    created.pop("warnings")
    assert first.json() == created
    for header in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await harness.send("GET", path, headers={"if-none-match": header})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert (await harness.send("GET", path, headers={"if-none-match": '"r2-x"'})).status_code == 200


async def test_head_answers_like_get_without_a_body(harness: Harness) -> None:
    created = await harness.publish()
    for path in (APIS, f"{APIS}/{created['id']}"):
        get, head = await harness.send("GET", path), await harness.send("HEAD", path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))
    assert (await harness.send("HEAD", f"{APIS}/api_none")).status_code == 404


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
@pytest.mark.parametrize("listing_id", ["api_none", "%00", "x" * 300, "%E2%80%AE"])
async def test_an_unknown_id_is_404(harness: Harness, method: str, listing_id: str) -> None:
    answer = await harness.send(method, f"{APIS}/{listing_id}", BODY if method == "PUT" else None)
    assert (answer.status_code, code_of(answer)) == (404, "api_not_found")


async def test_a_provider_alone_lists_its_suspended_listings(harness: Harness) -> None:
    created = await harness.publish()
    await harness.publish(name="Served")
    listing = await harness.stored(created["id"])
    await harness.stores.catalog.revise(replace(listing, suspended_ms=1), expected_revision=1)
    path = f"{APIS}?suspended=true"
    own = await harness.send("GET", path, wallet=ALICE)
    assert ([one["id"] for one in own.json()["apis"]], own.json()["total"]) == ([created["id"]], 1)
    assert (await harness.send("GET", path, wallet=BOB)).json()["apis"] == []
    assert (await harness.send("GET", path, wallet=None)).status_code == 401
    for query in ("suspended=false", "suspended=true&page=2", "suspended=true&q=x"):
        refused = await harness.send("GET", f"{APIS}?{query}", wallet=ALICE)
        assert (refused.status_code, code_of(refused)) == (422, "validation_failed"), query


async def test_a_suspended_api_is_refused(harness: Harness) -> None:
    created = await harness.publish()
    listing = await harness.stored(created["id"])
    await harness.stores.catalog.revise(replace(listing, suspended_ms=1), expected_revision=1)
    answer = await harness.send("GET", f"{APIS}/{created['id']}")
    assert (answer.status_code, code_of(answer), answer.json()["reason"]) == (503, "api_paused", "suspended")
    assert (answer.json()["retryable"], "retry-after" in answer.headers) == (False, False)
    written = await harness.send("PUT", f"{APIS}/{created['id']}", BODY)
    assert written.status_code == 200
    assert written.json()["suspension"] == {"since": "1970-01-01T00:00:00.001Z", "reason": None}
    assert (await harness.stored(created["id"])).suspended_ms == 1  # an edit does not lift it


async def test_a_suspension_has_the_reason_of_the_operator(harness: Harness) -> None:
    url = f"{APIS}/{(created := await harness.publish())['id']}"
    assert "suspension" not in created
    origin = operator_origin(1, reason="under review")
    await suspend_listing(harness.stores.catalog, ListingId(created["id"]), origin=origin)
    answer = await harness.send("GET", url)
    assert answer.json()["detail"] == (
        'The operator has suspended this API. The reason of the operator: "under review".'
    )
    for _ in range(2):  # the second edit changes nothing
        written = await harness.send("PUT", url, BODY)
        assert written.json()["suspension"] == {
            "since": "1970-01-01T00:00:00.001Z",
            "reason": "under review",
        }
    await restore_listing(harness.stores.catalog, ListingId(created["id"]), origin=operator_origin(2))
    assert "suspension" not in (await harness.send("GET", url)).json()


# ---- Update.


async def test_update_replaces_and_counts(harness: Harness) -> None:
    created = await harness.publish(description="old", tags=["a"], timeoutSeconds=5)
    harness.now_ms += 1_000
    answer = await harness.send("PUT", f"{APIS}/{created['id']}", {**BODY, "name": "Renamed"})
    assert answer.status_code == 200
    updated = answer.json()
    assert (updated["name"], updated["description"], updated["tags"]) == ("Renamed", "", [])
    assert (updated["timeoutSeconds"], updated["revision"]) == (30, 2)
    assert (updated["createdAt"], updated["updatedAt"]) == (
        "2023-11-14T22:13:20.123Z",
        "2023-11-14T22:13:21.123Z",
    )
    shown = await harness.send("GET", f"{APIS}/{created['id']}")
    assert shown.headers["etag"] == answer.headers["etag"]
    assert shown.json() == {name: value for name, value in updated.items() if name != "warnings"}
    assert harness.probed == ["https://api.example.com/v1/"]  # the endpoint is the same


async def test_an_update_switches_the_signature_of_forwarded_calls_and_back(harness: Harness) -> None:
    created = await harness.publish(forwardSignature="none")
    path = f"{APIS}/{created['id']}"
    assert created["forwardSignature"] == "none"
    tags = {(await harness.send("GET", path)).headers["etag"]}
    steps = [
        ({"forwardSignature": "ed25519"}, "ed25519"),
        ({"forwardSignature": "none"}, "none"),
        ({}, "ed25519"),
    ]
    for revision, (fields, expected) in enumerate(steps, 2):
        updated = (await harness.send("PUT", path, {**BODY, **fields})).json()
        assert (updated["forwardSignature"], updated["revision"]) == (expected, revision)
        assert (await harness.stored(created["id"])).forward_signature == expected
        tags.add((await harness.send("GET", path)).headers["etag"])
    assert len(tags) == 4


async def test_the_secret_of_forwarded_calls_is_shown_once_and_stays(harness: Harness) -> None:
    created = await harness.publish(forwardSignature="hmac-sha256")
    path, first = f"{APIS}/{created['id']}", created["forwardSecret"]
    assert encode_base64url((await harness.stored(created["id"])).forward_secret) == first
    assert len(urlsafe_b64decode(first + "=")) == 32
    kept = (
        await harness.send("PUT", path, {**BODY, "forwardSignature": "hmac-sha256", "name": "Other"})
    ).json()
    assert "forwardSecret" not in kept
    assert encode_base64url((await harness.stored(created["id"])).forward_secret) == first
    shown = await harness.send("GET", path)
    assert "forwardSecret" not in shown.json()
    assert first not in shown.text
    plain = (await harness.send("PUT", path, BODY)).json()
    assert "forwardSecret" not in plain
    assert (await harness.stored(created["id"])).forward_secret is None
    again = (await harness.send("PUT", path, {**BODY, "forwardSignature": "hmac-sha256"})).json()
    assert again["forwardSecret"] not in ("", first)
    assert (await harness.send("DELETE", path)).status_code == 204
    assert (await harness.stored(created["id"])).forward_secret is None


async def test_a_secret_of_forwarded_calls_that_does_not_open_stays_until_another_is_chosen(
    harness: Harness,
) -> None:
    shared = {"forwardSignature": "hmac-sha256"}
    path = f"{APIS}/{(await harness.publish(**shared))['id']}"
    listing_id = path.rpartition("/")[2]
    stored = await harness.stored(listing_id)
    other = open_catalog(harness.stores.database, now_ms=lambda: 0, key=b"\x08" * 32)
    assert isinstance(await other.revise(stored, expected_revision=1), Revised)
    harness.stores.catalog.clear_cache()
    assert (await harness.stored(listing_id)).is_secret_lost
    renamed = (await harness.send("PUT", path, {**BODY, **shared, "name": "Renamed"})).json()
    assert "forwardSecret" not in renamed
    kept = await other.find(ListingId(listing_id))
    assert kept is not None
    assert (kept.listing.name, kept.listing.forward_secret) == ("Renamed", stored.forward_secret)
    await harness.send("PUT", path, BODY)
    assert "forwardSecret" in (await harness.send("PUT", path, {**BODY, **shared})).json()
    assert not (await harness.stored(listing_id)).is_secret_lost


async def test_a_dry_run_makes_no_secret(harness: Harness) -> None:
    answer = await harness.send("POST", f"{APIS}?dryRun=true", {**BODY, "forwardSignature": "hmac-sha256"})
    assert (answer.status_code, "forwardSecret" in answer.json()) == (200, False)


async def test_update_probes_a_new_endpoint(harness: Harness) -> None:
    created = await harness.publish()
    harness.denied_hosts.add("inside.example.com")
    body = {**BODY, "endpoint": "https://inside.example.com"}
    answer = await harness.send("PUT", f"{APIS}/{created['id']}", body)
    assert (answer.status_code, code_of(answer)) == (422, "endpoint_not_allowed")
    assert (await harness.stored(created["id"])).endpoint == BODY["endpoint"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_only_the_provider_may_change_it(harness: Harness, method: str) -> None:
    created = await harness.publish()
    before = await harness.stored(created["id"])
    answer = await harness.send(method, f"{APIS}/{created['id']}", raw=b"{rubbish", wallet=BOB)
    assert (answer.status_code, code_of(answer)) == (403, "not_provider")
    assert await harness.stored(created["id"]) == before


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_if_match_guards_an_edit(harness: Harness, method: str) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    etag = (await harness.send("GET", path)).headers["etag"]
    await harness.send("PUT", path, BODY)
    body = BODY if method == "PUT" else None
    for stale in (etag, f"W/{etag}", '"r2"x', "rubbish", ""):
        answer = await harness.send(method, path, body, headers={"if-match": stale})
        assert (answer.status_code, code_of(answer)) == (412, "precondition_failed"), stale
    assert (await harness.stored(created["id"])).revision == 2
    etag = (await harness.send("GET", path)).headers["etag"]
    weak = await harness.send(method, path, body, headers={"if-match": f"W/{etag}"})
    assert weak.status_code == 412
    answer = await harness.send(method, path, body, headers={"if-match": f'"r9-a", {etag}'})
    assert answer.status_code == (200 if method == "PUT" else 204)


async def test_if_match_star_matches_any_revision(harness: Harness) -> None:
    created = await harness.publish()
    answer = await harness.send("PUT", f"{APIS}/{created['id']}", BODY, headers={"if-match": "*"})
    assert answer.status_code == 200


async def test_an_edit_is_repeated_on_the_newer_state(harness: Harness) -> None:
    created = await harness.publish(upstreamAuth={"in": "query", "name": "k", "value": "one"})
    path, listing = f"{APIS}/{created['id']}", await harness.stored(created["id"])

    async def overtake() -> None:
        await harness.stores.catalog.revise(replace(listing, name="overtaker"), expected_revision=1)

    harness.stores.database.before_write = overtake
    answer = await harness.send("PUT", path, BODY)
    assert (answer.status_code, answer.json()["revision"]) == (200, 3)


# ---- Retire.


async def test_a_retired_api_is_gone_everywhere(harness: Harness) -> None:
    created = await harness.publish(upstreamAuth={"in": "query", "name": "k", "value": "one"})
    path = f"{APIS}/{created['id']}"
    answer = await harness.send("DELETE", path)
    assert (answer.status_code, answer.content) == (204, b"")
    for method in ("GET", "PUT", "DELETE"):
        answer = await harness.send(method, path, BODY if method == "PUT" else None)
        assert (answer.status_code, code_of(answer)) == (410, "api_retired")
    assert (await harness.send("GET", APIS)).json()["total"] == 0
    assert (await harness.stored(created["id"])).upstream_auth is None


# ---- List.


async def test_a_list_holds_exactly_the_seven_fields(harness: Harness) -> None:
    await harness.publish(tags=["weather"])
    content = (await harness.send("GET", APIS, wallet=None)).json()
    assert set(content) == {"apis", "total", "page", "limit"}
    assert (content["total"], content["page"], content["limit"]) == (1, 1, 20)
    assert set(content["apis"][0]) == SEVEN
    content = (await harness.send("GET", APIS + "?q=weather")).json()
    assert set(content["apis"][0]) == SEVEN | {"match"}
    assert content["apis"][0]["match"] == ["name", "tags"]
    assert set((await harness.send("GET", APIS + "?q=%20")).json()["apis"][0]) == SEVEN


def links_of(answer: httpx.Response) -> dict[str, str]:
    return {rel: str(link["url"]) for link in answer.links.values() if (rel := link.get("rel")) is not None}


async def test_pages_are_linked(harness: Harness) -> None:
    for wallet in (ALICE, ALICE, ALICE, BOB, BOB):
        await harness.publish(wallet=wallet)
    start = f"{PUBLIC_URL}{APIS}?"
    answer = await harness.send("GET", APIS + "?currency=USDC&limit=2")
    assert links_of(answer) == {
        "first": start + "currency=USDC&limit=2&page=1",
        "next": start + "currency=USDC&limit=2&page=2",
        "last": start + "currency=USDC&limit=2&page=3",
    }
    answer = await harness.send("GET", APIS + "?limit=2&page=3")
    assert set(links_of(answer)) == {"first", "prev", "last"}
    assert len(answer.json()["apis"]) == 1
    past = await harness.send("GET", APIS + "?limit=2&page=9")
    assert (past.status_code, past.json()["apis"], past.json()["total"]) == (200, [], 5)
    assert links_of(past)["prev"] == start + "limit=2&page=3"
    assert "next" not in links_of(past)


async def test_links_keep_odd_parameters_harmless(harness: Harness) -> None:
    answer = await harness.send("GET", APIS + "?q=%3E%22%0d%0aX-Evil:1%E2%82%AC")
    assert answer.status_code == 200
    assert "x-evil" not in answer.headers
    assert links_of(answer)["first"] == f"{PUBLIC_URL}{APIS}?q=%3E%22%0D%0AX-Evil%3A1%E2%82%AC&page=1"


BAD_QUERIES = [
    ("page=0", "page"),
    ("page=-1", "page"),
    ("page=1.0", "page"),
    ("page=", "page"),
    ("page=%D9%A1", "page"),  # an Arabic digit one
    ("page=1000001", "page"),
    ("page=99999999999999999999", "page"),
    ("limit=0", "limit"),
    ("limit=101", "limit"),
    ("limit=10000", "limit"),
    ("limit=ten", "limit"),
    ("limit=5&limit=6", "limit"),
    ("sort=best", "sort"),
    ("sort=price", "sort"),
    ("sort=-price", "sort"),
    ("sort=relevance", "sort"),
    ("sort=relevance&q=%20", "sort"),
    ("maxPrice=1", "maxPrice"),
    ("maxPrice=1e3&currency=USDC", "maxPrice"),
    ("maxPrice=-1&currency=USDC", "maxPrice"),
    ("provider=0x12", "provider"),
    ("provider=vitalik.eth", "provider"),
    ("network=base", "network"),
    ("network=eip155:01", "network"),
    ("tag=%00", "tag"),
    ("tag=", "tag"),
    ("currency=%E2%80%AE", "currency"),
    ("minSuccessRate=1.1", "minSuccessRate"),
    ("minSuccessRate=NaN", "minSuccessRate"),
    ("verified=yes", "verified"),
    ("cursor=1", "cursor"),
    ("Page=1", "Page"),
    ("q=%FF", "q"),
    ("q=" + "a" * 257, "q"),
]


@pytest.mark.parametrize(("query", "parameter"), BAD_QUERIES)
async def test_a_wrong_parameter_is_reported(harness: Harness, query: str, parameter: str) -> None:
    answer = await harness.send("GET", f"{APIS}?{query}")
    assert (answer.status_code, code_of(answer)) == (422, "validation_failed")
    assert places_of(answer) == [parameter]
    assert harness.stores.database.reads == 0


async def test_all_wrong_parameters_are_reported_at_once(harness: Harness) -> None:
    answer = await harness.send("GET", APIS + "?page=0&limit=10000&colour=red")
    assert sorted(places_of(answer)) == ["colour", "limit", "page"]


async def test_filters_reach_the_catalog(harness: Harness) -> None:
    await harness.publish(name="cheap", tags=["food"], networks=["eip155:10"])
    await harness.publish(name="dear", pricePerRequest="3", payTo=str(BOB))
    await harness.publish(wallet=BOB, name="ether", currency="ETH")

    async def names(query: str) -> list[str]:
        return [api["name"] for api in (await harness.send("GET", f"{APIS}?{query}")).json()["apis"]]

    assert await names("") == ["ether", "dear", "cheap"]
    assert await names(f"provider={str(BOB).lower()}") == ["ether"]
    assert await names("currency=USDC&sort=price") == ["cheap", "dear"]
    assert await names("currency=USDC&sort=-price") == ["dear", "cheap"]
    assert await names("currency=USDC&maxPrice=0.01") == ["cheap"]
    assert await names("network=eip155:10") == ["dear", "cheap"]
    assert await names("tag=food") == ["cheap"]
    assert await names("sort=name") == ["cheap", "dear", "ether"]
    assert await names("q=dear&sort=relevance") == ["dear"]
    assert await names("verified=true") == []
    assert await names("verified=false&limit=100&page=1") == ["ether", "dear", "cheap"]
    assert await names("minSuccessRate=0.9") == []


async def test_other_methods_are_named(harness: Harness) -> None:
    answer = await harness.send("PATCH", APIS)
    assert (answer.status_code, code_of(answer)) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    answer = await harness.send("POST", f"{APIS}/api_x", BODY)
    assert answer.headers["allow"] == "GET, HEAD, PUT, PATCH, DELETE"


# ---- The same creation twice.


def keyed(key: str = "order-1") -> dict[str, str]:
    return {"idempotency-key": key}


async def test_the_same_creation_twice_is_one_listing_and_one_answer(harness: Harness) -> None:
    first = await harness.send("POST", APIS, BODY, headers=keyed())
    second = await harness.send("POST", APIS, BODY, headers=keyed())
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.content == first.content
    for name in ("location", "etag", "content-type"):
        assert second.headers[name] == first.headers[name]
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert (await harness.send("GET", APIS)).json()["total"] == 1
    assert len(harness.probed) == 1, "nothing is looked at again"


async def test_a_repeat_of_a_creation_is_not_counted_and_returns_the_first_response(harness: Harness) -> None:
    first = await harness.send("POST", APIS, BODY, headers=keyed())
    await harness.send("PUT", f"{APIS}/{first.json()['id']}", {**BODY, "name": "Other"})
    for _ in range(5):  # three may be created in an hour
        assert (await harness.send("POST", APIS, BODY, headers=keyed())).content == first.content


async def test_another_body_under_the_key_creates_nothing(harness: Harness) -> None:
    await harness.send("POST", APIS, BODY, headers=keyed())
    answer = await harness.send("POST", APIS, {**BODY, "name": "Other"}, headers=keyed())
    assert (answer.status_code, code_of(answer)) == (422, "idempotency_key_reused")
    assert (await harness.send("GET", APIS)).json()["total"] == 1


async def test_a_key_belongs_to_one_wallet(harness: Harness) -> None:
    first = await harness.send("POST", APIS, BODY, headers=keyed())
    second = await harness.send("POST", APIS, BODY, headers=keyed(), wallet=BOB)
    assert (second.status_code, second.json()["provider"]) == (201, str(BOB))
    assert second.json()["id"] != first.json()["id"]


async def test_a_creation_that_was_refused_keeps_no_key(harness: Harness) -> None:
    harness.denied_hosts.add("api.example.com")
    assert (await harness.send("POST", APIS, BODY, headers=keyed())).status_code == 422
    harness.denied_hosts.clear()
    assert (await harness.send("POST", APIS, {**BODY, "name": 7}, headers=keyed())).status_code == 422
    assert (await harness.send("POST", APIS, BODY, headers=keyed())).status_code == 201


async def test_a_dry_run_keeps_nothing_under_its_key(harness: Harness) -> None:
    path = APIS + "?dryRun=true"
    assert (await harness.send("POST", path, {**BODY, "name": "Other"}, headers=keyed())).status_code == 200
    created = await harness.send("POST", APIS, BODY, headers=keyed())
    assert created.status_code == 201
    assert (await harness.send("POST", path, BODY, headers=keyed())).json()["dryRun"] is True


async def test_a_repeat_of_a_running_creation_is_refused(harness: Harness) -> None:
    answers = []

    async def ask_again(endpoint: Endpoint) -> None:
        answers.append(await harness.send("POST", APIS, BODY, headers=keyed()))

    harness.on_probe = ask_again
    assert (await harness.send("POST", APIS, BODY, headers=keyed())).status_code == 201
    (repeat,) = answers
    assert (repeat.status_code, code_of(repeat)) == (409, "idempotency_in_progress")
    assert repeat.headers["retry-after"] == "60"
    assert (await harness.send("GET", APIS)).json()["total"] == 1


async def test_a_creation_that_lost_its_key_creates_nothing(harness: Harness) -> None:
    async def take_the_key(endpoint: Endpoint) -> None:
        await harness.stores.clear(creation_table)

    harness.on_probe = take_the_key
    answer = await harness.send("POST", APIS, BODY, headers=keyed())
    assert (answer.status_code, code_of(answer)) == (409, "idempotency_in_progress")
    assert (await harness.send("GET", APIS)).json()["total"] == 0


async def test_without_the_table_of_keys_only_creations_with_a_key_are_refused(harness: Harness) -> None:
    harness.stores.creation_database.is_away = True
    answer = await harness.send("POST", APIS, BODY, headers=keyed())
    assert (answer.status_code, code_of(answer)) == (503, "storage_unavailable")
    assert (await harness.send("GET", APIS)).json()["total"] == 0
    assert (await harness.send("POST", APIS, BODY)).status_code == 201


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_malformed_key_is_refused(harness: Harness, key: str) -> None:
    answer = await harness.send("POST", APIS, BODY, headers=keyed(key))
    assert (answer.status_code, code_of(answer)) == (400, "invalid_request")
    assert places_of(answer) == ["Idempotency-Key"]


# ---- Where the operator requires ownership.

HOLDERS: dict[str, Address] = {"https://held.example.com": BOB, "https://mine.example.com": ALICE}


class ProvedOrigins:
    """The owners of `HOLDERS`."""

    async def find_owner(self, origin: str) -> OriginOwner | None:
        provider = HOLDERS.get(origin)
        return None if provider is None else OriginOwner(listing_id=ListingId("api_held"), provider=provider)


REQUIRED = {"requires_ownership": True, "ownerships": ProvedOrigins()}


@pytest.mark.parametrize("harness", [REQUIRED], indirect=True)
@pytest.mark.parametrize(
    ("endpoint", "code"),
    [
        ("https://held.example.com/v1", "already_exists"),
        ("https://HELD.example.com:443", "already_exists"),
        ("https://held.example.com:8443/v1", None),
        ("https://mine.example.com/v1", None),
        ("https://free.example.com/v1", None),
    ],
)
async def test_an_origin_that_another_wallet_has_proved_cannot_be_published(
    harness: Harness, endpoint: str, code: str | None
) -> None:
    for path, made in ((APIS, 201), (APIS + "?dryRun=true", 200)):
        answer = await harness.send("POST", path, {**BODY, "endpoint": endpoint})
        assert answer.status_code == (made if code is None else 409)
        assert answer.json().get("code") == code


@pytest.mark.parametrize("harness", [REQUIRED], indirect=True)
async def test_a_listing_cannot_move_to_an_origin_that_another_wallet_has_proved(harness: Harness) -> None:
    created = await harness.publish(endpoint="https://mine.example.com/v1")
    moved = {**BODY, "endpoint": "https://held.example.com/v1"}
    answer = await harness.send("PUT", f"{APIS}/{created['id']}", moved)
    assert (answer.status_code, code_of(answer)) == (409, "already_exists")
    assert (await harness.stored(created["id"])).endpoint == "https://mine.example.com/v1"


@pytest.mark.parametrize("harness", [REQUIRED], indirect=True)
async def test_a_create_without_a_proof_warns_that_the_listing_is_not_served(harness: Harness) -> None:
    created = await harness.publish()
    assert [one["code"] for one in created["warnings"]] == ["ownership_unverified"]
    await harness.stores.set_reputation(ListingId(created["id"]), Reputation(verified_ms=1))
    edited = await harness.send("PUT", f"{APIS}/{created['id']}", BODY)
    assert edited.json()["warnings"] == []


@pytest.mark.parametrize("harness", [{"ownerships": ProvedOrigins()}], indirect=True)
async def test_without_the_setting_every_origin_can_be_published_with_a_warning_of_its_owner(
    harness: Harness,
) -> None:
    """The first that proved an origin may not be its owner, so no listing is refused."""
    for endpoint, codes in (
        ("https://held.example.com/v1", ["endpoint_owned_by_another"]),
        ("https://mine.example.com/v1", []),
        ("https://free.example.com/v1", []),
    ):
        body = {**BODY, "endpoint": endpoint}
        tried = await harness.send("POST", APIS + "?dryRun=true", body)
        assert [one["code"] for one in tried.json()["warnings"]] == codes
        created = await harness.publish(endpoint=endpoint)
        assert [one["code"] for one in created["warnings"]] == codes
        edited = await harness.send("PUT", f"{APIS}/{created['id']}", {**body, "description": "Other."})
        assert [one["code"] for one in edited.json()["warnings"]] == codes
