"""`PATCH /apis/{apiId}`: media type, precondition, the order of refusals, versions, and races; and what PUT says of what it drops."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.kit.listing_routes import (
    APIS,
    BASE,
    BODY,
    OPTIMISM,
    ListingRoutesHarness,
    open_listing_routes,
)
from tests.kit.routes import ALICE, BOB, code_of, places_of
from tollway.ids import ChainId
from tollway.outbound.policy import Endpoint

MERGE = {"content-type": "application/merge-patch+json"}
OPERATIONS = [
    {"method": "GET", "path": "/a", "pricePerRequest": "0.5"},
    {"method": "POST", "path": "/b", "pricePerRequest": "0.7"},
]
FULL: dict[str, Any] = {
    "description": "of today",
    "tags": ["weather"],
    "operations": OPERATIONS,
    "timeoutSeconds": 9,
    "upstreamAuth": {"in": "header", "name": "X-Key", "value": "s3cret"},
}


@pytest.fixture
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[ListingRoutesHarness]:
    async with open_listing_routes(**getattr(request, "param", {})) as harness:
        yield harness


async def test_changes_what_it_names_and_nothing_else(harness: ListingRoutesHarness) -> None:
    created = await harness.publish(**FULL)
    path, before = f"{APIS}/{created['id']}", await harness.stored(created["id"])
    harness.now_ms += 1_000
    answer = await harness.send("PATCH", path, {"pricePerRequest": "0.02"}, headers=MERGE)
    assert answer.status_code == 200
    after = await harness.stored(created["id"])
    assert after == replace(before, price=after.price, revision=2, updated_ms=harness.now_ms)
    assert after.price.text == "0.02"
    assert [one["code"] for one in answer.json()["warnings"]] == ["operation_prices_kept"]
    shown = await harness.send("GET", path)
    assert shown.headers["etag"] == answer.headers["etag"]
    assert shown.json() == {name: value for name, value in answer.json().items() if name != "warnings"}
    assert "s3cret" not in answer.text
    assert harness.probed == ["https://api.example.com/v1/"]  # by the create


@pytest.mark.parametrize("patch", [{}, {"name": "Weather"}, {"payTo": str(ALICE).lower()}, {"tags": []}])
async def test_a_patch_that_changes_nothing_makes_no_revision(
    harness: ListingRoutesHarness, patch: dict[str, Any]
) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    etag = (await harness.send("GET", path)).headers["etag"]
    harness.now_ms += 1_000
    answer = await harness.send("PATCH", path, patch, headers=MERGE)
    assert (answer.status_code, answer.headers["etag"], answer.json()["revision"]) == (200, etag, 1)
    entry = await harness.stores.catalog.find(created["id"])
    assert entry is not None
    assert (len(entry.versions), entry.listing.updated_ms) == (1, 1_700_000_000_123)


async def test_a_change_of_terms_is_one_version(harness: ListingRoutesHarness) -> None:
    created = await harness.publish()
    harness.now_ms += 1_000
    patch = {"pricePerRequest": "0.02", "operations": OPERATIONS}
    assert (await harness.send("PATCH", f"{APIS}/{created['id']}", patch, headers=MERGE)).status_code == 200
    entry = await harness.stores.catalog.find(created["id"])
    assert entry is not None
    assert [(terms.price.text, len(terms.operations)) for terms in entry.versions] == [
        ("0.02", 2),
        ("0.010", 0),
    ]


async def test_the_heads_of_networks_are_read_where_a_payee_begins() -> None:
    asked: list[tuple[ChainId, ...]] = []

    async def read_heads(chain_ids: Sequence[ChainId]) -> dict[ChainId, int]:
        asked.append(tuple(chain_ids))
        return dict.fromkeys(chain_ids, 1_700_000_000 - 100 - len(asked))

    async with open_listing_routes(read_heads=read_heads) as harness:
        created = await harness.publish(networks=["eip155:8453"])
        path, catalog = f"{APIS}/{created['id']}", harness.stores.catalog
        for patch in (
            {"pricePerRequest": "0.02"},
            {"networks": ["eip155:10", "eip155:8453"]},
            {"payTo": str(BOB)},
            {"payTo": str(BOB), "description": "the same payee"},
        ):
            harness.now_ms += 1_000
            assert (await harness.send("PATCH", path, patch, headers=MERGE)).status_code == 200
        assert asked == [(BASE,), (OPTIMISM,), (OPTIMISM, BASE)]
        entry = await catalog.find(created["id"])
        assert entry is not None
        first_s, added_s, changed_s = (1_700_000_000 - 100 - number for number in (1, 2, 3))
        assert await catalog.list_payee_heads(entry, BASE) == {ALICE: first_s, BOB: changed_s}
        assert await catalog.list_payee_heads(entry, OPTIMISM) == {ALICE: added_s, BOB: changed_s}
        keyed = await harness.send("POST", APIS, BODY, headers={"idempotency-key": "a key of this request"})
        assert (keyed.status_code, len(asked)) == (201, 4)
        entry = await catalog.find(keyed.json()["id"])
        assert entry is not None
        assert set(await catalog.list_payee_heads(entry, BASE)) == {ALICE}


@pytest.mark.parametrize(
    "content_type", ["application/json", "text/plain", "application/merge-patch+json; charset=utf-8", None]
)
async def test_takes_one_media_type_and_names_it(
    harness: ListingRoutesHarness, content_type: str | None
) -> None:
    created = await harness.publish()
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await harness.send("PATCH", f"{APIS}/{created['id']}", raw=b'{"name":"x"}', headers=headers)
    assert (answer.status_code, code_of(answer)) == (415, "unsupported_media_type")
    assert answer.headers["accept-patch"] == "application/merge-patch+json"
    assert (await harness.stored(created["id"])).revision == 1


async def test_options_names_the_method_and_its_media_type(harness: ListingRoutesHarness) -> None:
    answer = await harness.send("OPTIONS", f"{APIS}/api_x")
    assert answer.headers["allow"] == "GET, HEAD, PUT, PATCH, DELETE"
    assert answer.headers["accept-patch"] == "application/merge-patch+json"
    assert "accept-patch" not in (await harness.send("OPTIONS", APIS)).headers
    refused = await harness.send("POST", APIS, raw=b"{}", headers={"content-type": "text/plain"})
    assert (refused.status_code, "accept-patch" in refused.headers) == (415, False)


@pytest.mark.parametrize(
    ("raw", "status", "code"),
    [
        (b"", 400, "invalid_request"),
        (b"{rubbish", 400, "invalid_request"),
        (b'{"name": "a", "name": "b"}', 400, "invalid_request"),
        (b'{"a":' * 100_000, 400, "invalid_request"),
        (b'{"tags": [' + b"0," * 70_000 + b"0]}", 400, "invalid_request"),
        (b"[]", 422, "validation_failed"),
        (b'"name"', 422, "validation_failed"),
        (b"null", 422, "validation_failed"),
        (b'{"name": null}', 422, "validation_failed"),
        (b'{"quality": null}', 422, "validation_failed"),
        (b'{"endpoint": "https://10.0.0.1/"}', 422, "endpoint_not_allowed"),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
async def test_refuses_a_body_that_is_no_patch_of_a_listing(
    harness: ListingRoutesHarness, raw: bytes, status: int, code: str
) -> None:
    created = await harness.publish()
    answer = await harness.send("PATCH", f"{APIS}/{created['id']}", raw=raw, headers=MERGE)
    assert (answer.status_code, code_of(answer)) == (status, code)
    assert (await harness.stored(created["id"])).revision == 1


async def test_refusals_come_in_the_order_of_rfc_9110(harness: ListingRoutesHarness) -> None:
    """RFC 9110 §13.2.1: a precondition does not count where the request fails before its content is processed."""
    created = await harness.publish()
    path, stale = f"{APIS}/{created['id']}", {"if-match": '"r9-x"'}
    steps: list[tuple[int, str, dict[str, Any]]] = [
        (401, path, {"wallet": None, "raw": b"{"}),
        (404, f"{APIS}/api_x", {"raw": b"{", "headers": stale}),
        (403, path, {"wallet": BOB, "raw": b"{", "headers": stale}),
        (415, path, {"raw": b"{", "headers": stale}),
        (400, path, {"raw": b"{", "headers": {**MERGE, **stale}}),
        (412, path, {"raw": b'{"name": null}', "headers": {**MERGE, **stale}}),
        (422, path, {"raw": b'{"name": null}', "headers": {**MERGE, "if-match": '"r1-x"'}}),
    ]
    for status, where, options in steps:
        assert (await harness.send("PATCH", where, **options)).status_code == status


async def test_refuses_a_blocked_wallet_and_a_retired_api(harness: ListingRoutesHarness) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    harness.blocked.add(ALICE)
    assert code_of(await harness.send("PATCH", path, {"name": "x"}, headers=MERGE)) == "wallet_blocked"
    harness.blocked.clear()
    await harness.send("DELETE", path)
    assert code_of(await harness.send("PATCH", path, {"name": "x"}, headers=MERGE)) == "api_retired"


@pytest.mark.parametrize("is_same", [True, False])
async def test_if_match_guards_a_patch(harness: ListingRoutesHarness, is_same: bool) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    etag = (await harness.send("GET", path)).headers["etag"]
    if not is_same:
        await harness.send("PUT", path, BODY)
    answer = await harness.send("PATCH", path, {"name": "x"}, headers={**MERGE, "if-match": etag})
    assert answer.status_code == (200 if is_same else 412)
    assert (await harness.stored(created["id"])).name == ("x" if is_same else "Weather")


@pytest.mark.parametrize(("headers", "status"), [({}, 200), ({"if-match": '"r1-x"'}, 412)])
async def test_an_overtaken_patch_is_merged_onto_the_newer_state(
    harness: ListingRoutesHarness, headers: dict[str, str], status: int
) -> None:
    created = await harness.publish()
    listing = await harness.stored(created["id"])

    async def overtake() -> None:
        await harness.stores.catalog.revise(replace(listing, description="newer"), expected_revision=1)

    harness.stores.database.before_write = overtake
    path = f"{APIS}/{created['id']}"
    answer = await harness.send("PATCH", path, {"name": "x"}, headers={**MERGE, **headers})
    assert answer.status_code == status
    after = await harness.stored(created["id"])
    assert (after.description, after.name) == ("newer", "x" if status == 200 else "Weather")


async def test_a_dead_endpoint_stops_only_its_own_patch(harness: ListingRoutesHarness) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    harness.denied_hosts |= {"api.example.com", "inside.example.com"}
    assert (await harness.send("PATCH", path, {"name": "x"}, headers=MERGE)).status_code == 200
    moved = await harness.send("PATCH", path, {"endpoint": "https://inside.example.com"}, headers=MERGE)
    assert (moved.status_code, code_of(moved)) == (422, "endpoint_not_allowed")


async def test_a_kept_secret_does_not_move_to_another_origin(harness: ListingRoutesHarness) -> None:
    created = await harness.publish(**FULL)
    path, patch = f"{APIS}/{created['id']}", {"endpoint": "https://other.example.com"}
    answer = await harness.send("PATCH", path, patch, headers=MERGE)
    assert (answer.status_code, places_of(answer)) == (422, ["/upstreamAuth/value"])
    assert "other.example.com" not in " ".join(harness.probed)
    given = {**patch, "upstreamAuth": {"value": "n3w"}}
    assert (await harness.send("PATCH", path, given, headers=MERGE)).status_code == 200


@pytest.mark.parametrize("method", ["PUT", "PATCH", "PATCH?dryRun=true"])
@pytest.mark.parametrize(
    ("auth", "is_refused"),
    [
        ({}, True),  # left out: kept
        ({"upstreamAuth": {"in": "header", "name": "X-Other", "value": None}}, True),
        ({"upstreamAuth": {"in": "header", "name": "X-Other", "value": "n3w"}}, False),
        ({"upstreamAuth": None}, False),
    ],
)
async def test_no_edit_moves_a_kept_secret_to_another_origin(
    harness: ListingRoutesHarness, method: str, auth: dict[str, Any], is_refused: bool
) -> None:
    created = await harness.publish(**FULL)
    verb, _, query = method.partition("?")
    path = f"{APIS}/{created['id']}" + (f"?{query}" if query else "")
    whole = {**BODY, **FULL}
    del whole["upstreamAuth"]
    before = await harness.stored(created["id"])
    body = {**(whole if verb == "PUT" else {}), "endpoint": "https://other.example.com", **auth}
    headers = MERGE if verb == "PATCH" else {}
    answer = await harness.send(verb, path, body, headers=headers)
    if not is_refused:
        assert answer.status_code == 200, answer.text
        return
    assert answer.status_code == 422
    assert "/upstreamAuth/value" in places_of(answer)
    assert "other.example.com" not in " ".join(harness.probed)
    assert await harness.stored(created["id"]) == before


async def test_a_replacement_at_the_same_origin_keeps_the_secret(harness: ListingRoutesHarness) -> None:
    created = await harness.publish(**FULL)
    whole = {**BODY, **FULL}
    del whole["upstreamAuth"]
    answer = await harness.send(
        "PUT", f"{APIS}/{created['id']}", {**whole, "endpoint": "https://api.example.com/v9"}
    )
    assert answer.status_code == 200, answer.text
    stored = await harness.stored(created["id"])
    assert stored.upstream_auth is not None
    assert stored.upstream_auth.value == FULL["upstreamAuth"]["value"]


async def test_a_dry_run_shows_the_listing_and_writes_nothing(harness: ListingRoutesHarness) -> None:
    created = await harness.publish(**FULL)
    path = f"{APIS}/{created['id']}"
    before = await harness.stored(created["id"])
    answer = await harness.send("PATCH", path + "?dryRun=true", {"operations": None}, headers=MERGE)
    shown = answer.json()
    assert (answer.status_code, shown["dryRun"], shown["operations"]) == (200, True, [])
    assert [warning["code"] for warning in shown["warnings"]] == ["operations_dropped"]
    answer = await harness.send("PATCH", path + "?dryRun=true", {"pricePerRequest": "0.02"}, headers=MERGE)
    assert [warning["code"] for warning in answer.json()["warnings"]] == ["operation_prices_kept"]
    assert await harness.stored(created["id"]) == before
    assert (await harness.send("PATCH", path + "?dryrun=1", {}, headers=MERGE)).status_code == 422


async def test_a_document_is_fetched_from_its_new_url(harness: ListingRoutesHarness) -> None:
    created = await harness.publish()
    url = "https://docs.example.com/o.json"
    harness.documents[url] = b'{"openapi": "3.1.0", "paths": {"/a": {"get": {}}}}'
    answer = await harness.send("PATCH", f"{APIS}/{created['id']}", {"openapiUrl": url}, headers=MERGE)
    assert (answer.status_code, harness.fetched) == (200, [url])
    harness.documents[url] = b'{"openapi": "3.1.0", "paths": {"/b": {"get": {}}}}'
    answer = await harness.send("PATCH", f"{APIS}/{created['id']}", {"openapiUrl": url}, headers=MERGE)
    assert list(answer.json()["openapi"]["paths"]) == ["/b"]


async def test_patches_per_wallet_and_hour_are_limited(harness: ListingRoutesHarness) -> None:
    created = await harness.publish()
    path = f"{APIS}/{created['id']}"
    for number in range(40):
        sent = {"name": f"n{number}"} if number % 2 else {}
        assert (await harness.send("PATCH", path, sent, headers=MERGE)).status_code == 200
    answer = await harness.send("PATCH", path, {"name": "last"}, headers=MERGE)
    assert (answer.status_code, code_of(answer)) == (429, "rate_limited")
    assert answer.headers["ratelimit-policy"] == '"edits";q=40;w=3600'


async def test_dry_runs_per_address_and_hour_are_limited(harness: ListingRoutesHarness) -> None:
    """A dry run can send a request to the endpoint."""
    created = await harness.publish()
    path = f"{APIS}/{created['id']}?dryRun=true"
    statuses = [(await harness.send("PATCH", path, {}, headers=MERGE)).status_code for _ in range(30)]
    assert statuses == [200] * 29 + [429]


# ---- PUT.


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, ["operations_dropped"]),
        ({"operations": OPERATIONS[:1]}, ["operations_dropped"]),
        ({"operations": OPERATIONS}, []),
    ],
)
async def test_an_update_that_drops_operations_warns(
    harness: ListingRoutesHarness, changes: dict[str, Any], codes: list[str]
) -> None:
    created = await harness.publish(operations=OPERATIONS)
    answer = await harness.send("PUT", f"{APIS}/{created['id']}", {**BODY, **changes})
    warnings = answer.json()["warnings"]
    assert [warning["code"] for warning in warnings] == codes
    assert all("POST /b" in warning["detail"] for warning in warnings)


async def test_every_refused_patch_leaves_the_endpoint_alone(harness: ListingRoutesHarness) -> None:
    created = await harness.publish()
    probed = list(harness.probed)

    async def fail(endpoint: Endpoint) -> None:
        raise AssertionError(endpoint)

    harness.on_probe = fail
    await harness.send("PATCH", f"{APIS}/{created['id']}", {"timeoutSeconds": 0}, headers=MERGE)
    assert harness.probed == probed
