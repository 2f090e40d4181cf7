"""The rules of the create and update body as tables: accepted bodies, and refused bodies with the pointers and codes of their errors."""

from dataclasses import replace
from typing import Any

import pytest

from tests.kit.narrowing import of_type
from tollway.chain.channel_contract import DEPOSIT_COLLECTOR, SETTLEMENT_CONTRACT
from tollway.errors import FieldError
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, Price
from tollway.registry.draft import Draft, DraftRules, EndpointFault, create_listing, edit_listing, parse_draft
from tollway.registry.listing import ChargeOn, Listing, Operation, RateLimit, UpstreamAuth

ALICE = Address(b"\xaa" * 20)
MAIN, OTHER, TEST = ChainId(8453), ChainId(56), ChainId(84532)
TOKEN = Address(b"\x11" * 20)
RULES = DraftRules(
    assets=(
        Asset(chain_id=MAIN, token=TOKEN, symbol="USDC", decimals=6),
        Asset(chain_id=OTHER, token=TOKEN, symbol="USDC", decimals=18),
        Asset(chain_id=TEST, token=TOKEN, symbol="USDC", decimals=6),
        Asset(chain_id=MAIN, token=None, symbol="ETH", decimals=18),
        Asset(chain_id=TEST, token=TOKEN, symbol="TEST", decimals=2),
    ),
    main_networks=frozenset({MAIN, OTHER}),
    allow_private_endpoints=False,
    check_endpoint=lambda text: {
        "https://bad.example.com": EndpointFault(detail="is badly written", is_policy=False),
        "https://inside.example.com": EndpointFault(detail="leads inside", is_policy=True),
    }.get(text),
)
BODY: dict[str, Any] = {
    "name": "Weather",
    "pricePerRequest": "0.01",
    "currency": "USDC",
    "endpoint": "https://api.example.com/v1",
}
SECRET = {"in": "header", "name": "X-Key", "value": "s3cret"}
DOCUMENT = {"openapi": "3.0.0", "paths": {"/a": {"get": {}}}}
MANY_PATHS: dict[str, Any] = {f"/a{number}": {"get": {}} for number in range(2_001)}


def accepted(body: object, *, rules: DraftRules = RULES, previous: Listing | None = None) -> Draft:
    return of_type(Draft, parse_draft(body, rules, previous=previous))


def refused(body: object, *, rules: DraftRules = RULES, previous: Listing | None = None) -> list[str]:
    parsed = of_type(tuple, parse_draft(body, rules, previous=previous))
    assert all(error.detail and error.code for error in parsed)
    return [f"{error.pointer} {error.code}" for error in parsed]


def test_the_least_body_takes_every_default() -> None:
    assert accepted(BODY) == Draft(
        name="Weather",
        description="",
        endpoint="https://api.example.com/v1",
        price=Price.parse("0.01"),
        currency="USDC",
        pay_to=None,
        networks=(MAIN, OTHER),
        methods=(),
        tags=(),
        operations=(),
        other_paths="serve",
        charge_on=ChargeOn.SUCCESS,
        timeout_s=30,
        forward_headers=(),
        upstream_auth=None,
        openapi=None,
        openapi_url=None,
        is_document_wanted=False,
        signature="any",
        rate_limit=None,
        status="active",
        forward_signature="ed25519",
    )


def test_the_fullest_body() -> None:
    draft = accepted(
        {
            **BODY,
            "description": "Line one\nline two\t– “ok” 👨‍👩‍👧",
            "payTo": "0x" + "bb" * 20,
            "networks": ["eip155:84532", "eip155:8453"],
            "methods": ["GET", "POST"],
            "tags": ["weather", "Köln 2"],
            "openapi": {"openapi": "3.1.0"},
            "operations": [{"method": "GET", "path": "/v1/{city}", "pricePerRequest": "0"}],
            "otherPaths": "refuse",
            "chargeOn": "answered",
            "timeoutSeconds": 300,
            "forwardHeaders": ["Authorization", "X-Api-Version"],
            "upstreamAuth": SECRET,
            "signature": "bound",
            "rateLimit": {"calls": 10, "perSeconds": 60},
            "status": "paused",
            "forwardSignature": "none",
        }
    )
    assert draft.pay_to == Address(b"\xbb" * 20)
    assert draft.networks == (TEST, MAIN)
    assert draft.operations == (Operation(method="GET", path="/v1/{city}", price=Price.parse("0")),)
    assert draft.upstream_auth == UpstreamAuth(location="header", name="X-Key", value="s3cret")
    assert draft.rate_limit == RateLimit(calls=10, per_s=60)
    assert (draft.signature, draft.status, draft.other_paths) == ("bound", "paused", "refuse")
    assert (draft.charge_on, draft.timeout_s) == (ChargeOn.ANSWERED, 300)
    assert draft.forward_signature == "none"


ACCEPTED: list[dict[str, Any]] = [
    {"name": "x"},
    {"name": "n" * 120},
    {"name": "Погода 天気 ☔"},
    {"description": ""},
    {"description": "d" * 4_000},
    {"description": "a\r\nb"},
    {"pricePerRequest": "0"},
    {"pricePerRequest": "0.000001"},
    {"pricePerRequest": "9223372036"},
    {"pricePerRequest": "0.000000001", "networks": ["eip155:56"]},
    {"pricePerRequest": "0.000000001", "currency": "ETH"},
    {"currency": "TEST", "pricePerRequest": "1.25"},  # no main network has it: the test one is the default
    {"payTo": "0x" + "AB" * 20},
    {"methods": []},
    {"methods": ["PROPFIND", "M-SEARCH"]},
    {"tags": []},
    {"tags": ["t" * 32, "b", "c", "d", "e"]},
    {"operations": []},
    {"operations": [], "otherPaths": "refuse"},  # serves nothing, explicitly
    {"timeoutSeconds": 1},
    {"forwardHeaders": [f"X-{number}" for number in range(20)]},
    {"forwardHeaders": ["authorization"]},
    {"upstreamAuth": None, "openapi": None, "openapiUrl": None, "rateLimit": None},
    {"upstreamAuth": {**SECRET, "in": "query", "name": "api_key"}},
    {"upstreamAuth": {**SECRET, "name": "Authorization", "value": "Bearer a b"}},
    {"rateLimit": {"calls": 1, "perSeconds": 86_400}},
    {"forwardSignature": "ed25519"},
    {"openapi": {"openapi": "3.0"}},
    {"openapi": {"openapi": "3.2.0-rc1", "x": ["\u0000"]}},
    {"openapiUrl": "https://api.example.com/openapi.json?v=1"},
    {"openapiUrl": "http://[2001:db8::1]:8080"},
    {"otherPaths": "refuse", "openapi": DOCUMENT},
    {"otherPaths": "refuse", "openapi": DOCUMENT, "methods": ["GET"]},
    {
        "otherPaths": "refuse",
        "openapiUrl": "https://api.example.com/openapi.json",
    },  # looked at when it is there
]


def test_accepts() -> None:
    for changes in ACCEPTED:
        accepted({**BODY, **changes})


PRICES = "1e3 -1 01 0.0000000001 NaN +1 .5 1. 0x1 1,5 1_000 ٣ ² Infinity 00 0. 1.0.0 9223372037 0.0000001"
RESERVED = """
Connection TE Trailer Transfer-Encoding Upgrade Keep-Alive Proxy-Authorization Content-Length Host Cookie Set-Cookie
Expect X-Payment X-Payment-Tx X-Signature X-Signature-Params PAYMENT-SIGNATURE Tollway-Max-Price SIGN-IN-WITH-X
Signature-Input CDN-Loop X-Forwarded-For Via X-HTTP-Method-Override
"""

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    *[({"pricePerRequest": price}, ["/pricePerRequest price"]) for price in PRICES.split()],
    *[
        ({"pricePerRequest": price}, ["/pricePerRequest price"])
        for price in ("", " 1", "1 ", "1\n", "1" * 33, "0.0100000")
    ],
    ({"pricePerRequest": 1}, ["/pricePerRequest type"]),
    ({"pricePerRequest": None}, ["/pricePerRequest type"]),
    ({"pricePerRequest": "1" * 100}, ["/pricePerRequest too_long"]),
    ({"pricePerRequest": "0.001", "currency": "TEST"}, ["/pricePerRequest price"]),
    ({"pricePerRequest": "0.0000001", "networks": ["eip155:56", "eip155:8453"]}, ["/pricePerRequest price"]),
    ({"name": ""}, ["/name too_short"]),
    ({"name": "  "}, ["/name too_short"]),
    ({"name": "n" * 121}, ["/name too_long"]),
    ({"name": None}, ["/name type"]),
    ({"name": ["x"]}, ["/name type"]),
    ({"name": "a\nb"}, ["/name bad_character"]),
    ({"name": "a\x00b"}, ["/name bad_character"]),
    ({"name": "a\x7fb"}, ["/name bad_character"]),
    ({"name": "a\x85b"}, ["/name bad_character"]),
    ({"name": "evil\u202egpj.exe"}, ["/name bad_character"]),
    ({"name": "a\u2066b"}, ["/name bad_character"]),
    ({"name": "a\u200bb"}, ["/name bad_character"]),
    ({"name": "a\u2028b"}, ["/name bad_character"]),
    ({"name": "\U000e0041"}, ["/name bad_character"]),
    ({"name": "\ufeffx"}, ["/name bad_character"]),
    ({"description": "d" * 4_001}, ["/description too_long"]),
    ({"description": 1}, ["/description type"]),
    ({"description": "a\x1b[31m"}, ["/description bad_character"]),
    ({"description": "a\u202e"}, ["/description bad_character"]),
    ({"currency": "DOGE"}, ["/currency unknown_value"]),
    ({"currency": "usdc"}, ["/currency unknown_value"]),
    ({"currency": 1}, ["/currency unknown_value"]),
    ({"currency": ["USDC"]}, ["/currency unknown_value"]),
    ({"endpoint": "https://bad.example.com"}, ["/endpoint endpoint"]),
    ({"endpoint": "https://inside.example.com"}, ["/endpoint endpoint_not_allowed"]),
    ({"endpoint": ""}, ["/endpoint too_short"]),
    ({"endpoint": {}}, ["/endpoint type"]),
    ({"endpoint": "https://" + "a" * 2_048}, ["/endpoint too_long"]),
    ({"payTo": "0x12"}, ["/payTo address"]),
    ({"payTo": "alice.eth"}, ["/payTo address"]),
    ({"payTo": "0x833589fCD6eDb6E08f4c7C32D4f71b54bDA02913"}, ["/payTo address"]),  # checksum
    ({"payTo": "0x" + "00" * 20}, ["/payTo address"]),
    ({"payTo": "0x" + "11" * 20}, ["/payTo address"]),  # the token itself
    ({"payTo": str(SETTLEMENT_CONTRACT)}, ["/payTo address"]),
    ({"payTo": str(DEPOSIT_COLLECTOR)}, ["/payTo address"]),
    ({"payTo": None}, ["/payTo type"]),
    ({"networks": []}, ["/networks too_few"]),
    ({"networks": "eip155:8453"}, ["/networks type"]),
    ({"networks": ["base"]}, ["/networks/0 network"]),
    ({"networks": ["eip155:8453", "eip155:1"]}, ["/networks/1 network"]),
    ({"networks": ["eip155:8453", "eip155:8453"]}, ["/networks/1 duplicate"]),
    ({"networks": [8453]}, ["/networks/0 type"]),
    ({"networks": ["eip155:56"], "currency": "ETH"}, ["/networks/0 network"]),
    ({"networks": [f"eip155:{number}" for number in range(33)]}, ["/networks too_many"]),
    ({"methods": ["get"]}, ["/methods/0 method"]),
    ({"methods": ["GET", "CONNECT", "TRACE"]}, ["/methods/1 method", "/methods/2 method"]),
    ({"methods": ["G T"]}, ["/methods/0 method"]),
    ({"methods": ["GET", "GET"]}, ["/methods/1 duplicate"]),
    ({"methods": None}, ["/methods type"]),
    ({"methods": ["A" * 33]}, ["/methods/0 too_long"]),
    ({"methods": [f"M{number}" for number in range(17)]}, ["/methods too_many"]),
    ({"tags": ["a", "b", "c", "d", "e", "f"]}, ["/tags too_many"]),
    ({"tags": ["t" * 33]}, ["/tags/0 too_long"]),
    ({"tags": [""]}, ["/tags/0 too_short"]),
    ({"tags": [" a"]}, ["/tags/0 tag"]),
    ({"tags": ["a", "A"]}, ["/tags/1 duplicate"]),
    ({"tags": ["a\tb"]}, ["/tags/0 bad_character"]),
    ({"operations": {}}, ["/operations type"]),
    ({"operations": ["GET /"]}, ["/operations/0 type"]),
    (
        {"operations": [{}]},
        [
            "/operations/0/method required",
            "/operations/0/path required",
            "/operations/0/pricePerRequest required",
        ],
    ),
    (
        {"operations": [{"method": "GET", "path": "/", "pricePerRequest": "1e3", "free": True}]},
        ["/operations/0/free unknown_field", "/operations/0/pricePerRequest price"],
    ),
    (
        {"operations": [{"method": "HEAD", "path": "v1", "pricePerRequest": "0.0000001"}]},
        ["/operations/0/pricePerRequest price", "/operations/0/method method", "/operations/0/path path"],
    ),
    (
        {
            "operations": [
                {"method": "GET", "path": "/{a}", "pricePerRequest": "1"},
                {"method": "GET", "path": "/{b}", "pricePerRequest": "2"},
            ]
        },
        ["/operations/1 duplicate"],
    ),
    (
        {"methods": ["GET"], "operations": [{"method": "PUT", "path": "/", "pricePerRequest": "1"}]},
        ["/operations/0/method method"],
    ),
    ({"otherPaths": "refuse"}, ["/otherPaths conflict"]),
    ({"otherPaths": "deny"}, ["/otherPaths unknown_value"]),
    ({"chargeOn": "always"}, ["/chargeOn unknown_value"]),
    ({"timeoutSeconds": 0}, ["/timeoutSeconds out_of_range"]),
    ({"timeoutSeconds": 301}, ["/timeoutSeconds out_of_range"]),
    ({"timeoutSeconds": 10**100}, ["/timeoutSeconds out_of_range"]),
    ({"timeoutSeconds": 1.5}, ["/timeoutSeconds type"]),
    ({"timeoutSeconds": True}, ["/timeoutSeconds type"]),
    ({"timeoutSeconds": "30"}, ["/timeoutSeconds type"]),
    ({"forwardHeaders": [f"X-{number}" for number in range(21)]}, ["/forwardHeaders too_many"]),
    *[({"forwardHeaders": [name]}, ["/forwardHeaders/0 header"]) for name in RESERVED.split()],
    *[({"forwardHeaders": [name.lower()]}, ["/forwardHeaders/0 header"]) for name in RESERVED.split()],
    ({"forwardHeaders": ["X Y"]}, ["/forwardHeaders/0 header"]),
    ({"forwardHeaders": ["X_Y"]}, ["/forwardHeaders/0 header"]),
    ({"forwardHeaders": ["X-Y:"]}, ["/forwardHeaders/0 header"]),
    ({"forwardHeaders": ["X-Ü"]}, ["/forwardHeaders/0 header"]),
    ({"forwardHeaders": ["X-A", "x-a"]}, ["/forwardHeaders/1 duplicate"]),
    ({"forwardHeaders": ["X-" + "a" * 127]}, ["/forwardHeaders/0 too_long"]),
    *[
        ({"upstreamAuth": {**SECRET, "name": name}}, ["/upstreamAuth/name header"])
        for name in RESERVED.split()
    ],
    ({"upstreamAuth": "secret"}, ["/upstreamAuth type"]),
    (
        {"upstreamAuth": {}},
        ["/upstreamAuth/in unknown_value", "/upstreamAuth/name required", "/upstreamAuth/value required"],
    ),
    ({"upstreamAuth": {**SECRET, "in": "cookie"}}, ["/upstreamAuth/in unknown_value"]),
    ({"upstreamAuth": {**SECRET, "set": True}}, ["/upstreamAuth/set unknown_field"]),
    ({"upstreamAuth": {**SECRET, "value": ""}}, ["/upstreamAuth/value too_short"]),
    ({"upstreamAuth": {**SECRET, "value": "a\r\nX-Evil: 1"}}, ["/upstreamAuth/value bad_character"]),
    ({"upstreamAuth": {**SECRET, "value": " a"}}, ["/upstreamAuth/value bad_character"]),
    ({"upstreamAuth": {**SECRET, "value": "ü"}}, ["/upstreamAuth/value bad_character"]),
    ({"upstreamAuth": {**SECRET, "value": "a" * 4_097}}, ["/upstreamAuth/value too_long"]),
    ({"upstreamAuth": {**SECRET, "in": "query", "name": "a&b"}}, ["/upstreamAuth/name name"]),
    ({"upstreamAuth": SECRET, "forwardHeaders": ["x-key"]}, ["/forwardHeaders conflict"]),
    ({"upstreamAuth": SECRET, "endpoint": "http://api.example.com"}, ["/endpoint endpoint"]),
    ({"signature": "none"}, ["/signature unknown_value"]),
    ({"status": "retired"}, ["/status unknown_value"]),
    *[
        ({"forwardSignature": value}, ["/forwardSignature unknown_value"])
        for value in ("", "Ed25519", "None", "rsa", None, False, ["none"])
    ],
    (
        {"rateLimit": {"calls": 0, "perSeconds": 0}},
        ["/rateLimit/calls out_of_range", "/rateLimit/perSeconds out_of_range"],
    ),
    ({"rateLimit": {"calls": 1}}, ["/rateLimit/perSeconds type"]),
    ({"rateLimit": {"calls": 1, "perSeconds": 1, "burst": 2}}, ["/rateLimit/burst unknown_field"]),
    ({"rateLimit": 5}, ["/rateLimit type"]),
    ({"openapi": "3.1.0"}, ["/openapi type"]),
    ({"openapi": {}}, ["/openapi openapi"]),
    ({"openapi": {"openapi": 3.1}}, ["/openapi openapi"]),
    ({"openapi": {"openapi": "3.3.0"}}, ["/openapi openapi"]),
    ({"openapi": {"swagger": "2.0"}}, ["/openapi openapi"]),
    ({"openapi": {"openapi": "3.0.0", "paths": []}}, ["/openapi openapi"]),
    ({"openapi": {"openapi": "3.0.0", "paths": MANY_PATHS}}, ["/openapi openapi"]),
    ({"openapi": {"openapi": "3.0.0", "x": "\ud800"}}, ["/openapi openapi"]),
    ({"otherPaths": "refuse", "openapi": {"openapi": "3.0.0", "paths": {}}}, ["/otherPaths conflict"]),
    ({"otherPaths": "refuse", "openapi": {"openapi": "2"}}, ["/openapi openapi"]),
    ({"otherPaths": "refuse", "openapi": DOCUMENT, "methods": ["POST"]}, ["/otherPaths conflict"]),
    ({"openapi": {"openapi": "3.1.0", "x": "ü" * 524_288}}, ["/openapi openapi"]),
    ({"openapiUrl": "ftp://x.example.com/a"}, ["/openapiUrl url"]),
    ({"openapiUrl": "https://user:pw@x.example.com/a"}, ["/openapiUrl url"]),
    ({"openapiUrl": "https://x.example.com/a#b"}, ["/openapiUrl url"]),
    ({"openapiUrl": "https://x.example.com/a b"}, ["/openapiUrl url"]),
    ({"openapiUrl": "/openapi.json"}, ["/openapiUrl url"]),
    ({"openapiUrl": 1}, ["/openapiUrl type"]),
    ({"id": "api_x"}, ["/id unknown_field"]),
    ({"Name": "x"}, ["/Name unknown_field"]),
    ({"a/b~c": 1}, ["/a~1b~0c unknown_field"]),
]


def test_refuses() -> None:
    for changes, errors in REFUSED:
        assert refused({**BODY, **changes}) == errors, changes


@pytest.mark.parametrize("field", ["name", "pricePerRequest", "currency", "endpoint"])
def test_a_required_field_is_reported(field: str) -> None:
    body = {name: value for name, value in BODY.items() if name != field}
    assert refused(body) == [f"/{field} required"]


@pytest.mark.parametrize("body", [None, [], "x", 1, True])
def test_a_body_is_an_object(body: object) -> None:
    assert refused(body) == [" type"]


def test_all_errors_are_reported_at_once_up_to_a_limit() -> None:
    errors = refused({"name": "", "timeoutSeconds": 0, "pricePerRequest": "x", "status": 1, "extra": 1})
    assert len(errors) == 7
    flood = refused({f"unknown{number}": 1 for number in range(10_000)})
    assert len(flood) <= 100


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("payto", "; did you mean payTo?"),
        ("forward_signature", "; did you mean forwardSignature?"),
        ("forwardSignatures", "; did you mean forwardSignature?"),
        ("colour", "no such field"),
    ],
)
def test_a_misspelt_field_names_the_nearest_one(name: str, ending: str) -> None:
    parsed = of_type(tuple, parse_draft({**BODY, name: "x"}, RULES, previous=None))
    assert [error.pointer for error in parsed] == [f"/{name}"]
    assert parsed[0].detail.endswith(ending)


def test_a_huge_unknown_name_is_not_echoed() -> None:
    parsed = of_type(tuple, parse_draft({**BODY, "x" * 100_000: 1}, RULES, previous=None))
    assert len(parsed[0].pointer or "") < 100


def test_private_endpoints_may_carry_secrets_in_the_clear() -> None:
    body = {**BODY, "endpoint": "http://127.0.0.1:9000", "upstreamAuth": SECRET}
    assert refused(body) == ["/endpoint endpoint"]
    assert accepted(body, rules=replace(RULES, allow_private_endpoints=True)).upstream_auth is not None


# ---- Updates.


def published(**changes: Any) -> Listing:
    body = {**BODY, "upstreamAuth": SECRET, "openapi": {"openapi": "3.1.0"}, **changes}
    draft = replace(accepted(body), openapi_url="https://x.example.com/o.json")
    return create_listing(draft, listing_id=ListingId("api_1"), provider=ALICE, now_ms=1_000)


def test_absent_secret_and_document_stay_in_an_update() -> None:
    previous = published()
    draft = accepted(BODY, previous=previous)
    assert draft.upstream_auth == previous.upstream_auth
    assert draft.openapi == previous.openapi
    assert draft.openapi_url == previous.openapi_url
    assert not draft.is_document_wanted


def test_null_removes_a_secret_and_a_document() -> None:
    draft = accepted(
        {**BODY, "upstreamAuth": None, "openapi": None, "openapiUrl": None}, previous=published()
    )
    assert (draft.upstream_auth, draft.openapi, draft.openapi_url) == (None, None, None)
    assert not draft.is_document_wanted


def test_other_absent_fields_take_their_default_in_an_update() -> None:
    previous = published(
        description="d", tags=["t"], timeoutSeconds=5, payTo="0x" + "bb" * 20, status="paused"
    )
    listing = edit_listing(accepted(BODY, previous=previous), previous, now_ms=2_000)
    assert (listing.description, listing.tags, listing.timeout_s) == ("", (), 30)
    assert (listing.pay_to, listing.status) == (ALICE, "active")


def test_a_kept_secret_still_needs_https() -> None:
    body = {**BODY, "endpoint": "http://api.example.com"}
    assert refused(body, previous=published()) == ["/upstreamAuth/value required", "/endpoint endpoint"]
    accepted({**body, "upstreamAuth": None}, previous=published())


def test_a_kept_secret_still_excludes_its_header() -> None:
    assert refused({**BODY, "forwardHeaders": ["X-KEY"]}, previous=published()) == [
        "/forwardHeaders conflict"
    ]


@pytest.mark.parametrize(
    ("changes", "is_wanted"),
    [
        ({}, False),
        ({"openapiUrl": "https://x.example.com/a"}, True),
        ({"openapiUrl": "https://x.example.com/a", "openapi": {"openapi": "3.1.0"}}, False),
        ({"openapiUrl": "https://x.example.com/a", "openapi": None}, True),
        ({"openapiUrl": None}, False),
    ],
)
def test_a_document_is_fetched_for_a_url_without_a_document(changes: dict[str, Any], is_wanted: bool) -> None:
    assert accepted({**BODY, **changes}).is_document_wanted is is_wanted


def test_a_new_listing_belongs_to_and_pays_its_provider() -> None:
    listing = published()
    assert (listing.provider, listing.pay_to) == (ALICE, ALICE)
    assert (listing.created_ms, listing.updated_ms, listing.revision) == (1_000, 1_000, 1)


def test_an_edit_keeps_the_provider_the_creation_time_and_a_suspension() -> None:
    previous = replace(published(), suspended_ms=1_500, revision=7)
    listing = edit_listing(accepted({**BODY, "name": "New"}, previous=previous), previous, now_ms=2_000)
    assert (listing.id, listing.provider, listing.created_ms) == (previous.id, ALICE, 1_000)
    assert (listing.updated_ms, listing.revision, listing.suspended_ms) == (2_000, 8, 1_500)
    assert listing.name == "New"


def test_a_secret_is_not_in_a_repr() -> None:
    assert "s3cret" not in repr(accepted({**BODY, "upstreamAuth": SECRET}))


def test_errors_are_records() -> None:
    parsed = parse_draft({**BODY, "name": ""}, RULES, previous=None)
    assert parsed == (FieldError(code="too_short", detail="must not be empty", pointer="/name"),)
