"""Listings for tests: a plain one (`sample_listing`), and one as the discovery documents show it (`show_listing`), without a
gateway behind it. Every field can be given.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from tollway.discovery.listing_view import ListingView, list_prices
from tollway.discovery.operations import ApiOperation, list_operations
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, Price, TokenDomain
from tollway.registry.listing import ChargeOn, Listing
from tollway.registry.moderation import BlockedWallet
from tollway.registry.ownership import Challenge, OwnershipClaim
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation
from tollway.web.api.listing_json import ListingEncoder
from tollway.web.http.query import format_time

PUBLIC_URL = "https://gw.example.com"
PROVIDER = Address(b"\xaa" * 20)
LISTING_ID = ListingId("api_01kaj0000000000000000000000")


def sample_listing(*, provider: Address, created_ms: int = 1, **changes: Any) -> Listing:
    """One call at 0.01 USDC on Base Sepolia, paid to the provider; never changed since it was made."""
    plain = Listing(
        id=ListingId("api_1"),
        provider=provider,
        name="Weather",
        description="",
        endpoint="https://api.example.com",
        price=Price.parse("0.01"),
        currency="USDC",
        pay_to=provider,
        networks=(ChainId(84532),),
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
        signature="any",
        rate_limit=None,
        status="active",
        forward_signature="ed25519",
        created_ms=created_ms,
        updated_ms=created_ms,
        revision=1,
    )
    return replace(plain, **changes)


def sample_operation(**changes: Any) -> ApiOperation:
    """GET / at 0.01, without arguments."""
    plain = ApiOperation(
        tool="get_1",
        method="GET",
        path="/",
        summary="",
        description="",
        arguments=(),
        input_schema={},
        output_schema=None,
        body_type=None,
        price=Price.parse("0.01"),
    )
    return replace(plain, **changes)


def make_challenge(claim: OwnershipClaim) -> Challenge:
    """What a check of an ownership looks for, with the whole endpoint as its origin."""
    return Challenge(
        listing_id=claim.listing_id,
        origin=claim.endpoint,
        host=None,
        provider=claim.provider,
        pay_to=claim.pay_to,
        networks=claim.networks,
        content="line",
    )


def sample_assets(chains: int) -> tuple[Asset, ...]:
    """USDC on so many networks; each takes authorisations."""
    domain = TokenDomain(name="USD Coin", version="2")
    return tuple(
        Asset(
            chain_id=ChainId(8453 + number),
            token=Address(bytes([number + 1]) * 20),
            symbol="USDC",
            decimals=6,
            domain=domain,
        )
        for number in range(chains)
    )


CHANNEL = {"minDeposit": "250000", "receiverAuthorizer": str(PROVIDER), "withdrawDelay": 900}
"""What the option of a channel has beside those of an authorisation."""


def show_listing(
    *,
    reputation: Reputation = UNKNOWN_REPUTATION,
    chains: int = 1,
    is_offered: Callable[[Asset, int, ListingId], bool] = lambda asset, units, listing_id: True,
    sold: Sequence[ApiOperation] | None = None,
    has_mpp: bool = True,
    has_channels: bool = False,
    is_bound_only: bool = False,
    public_url: str = PUBLIC_URL,
    **changes: Any,
) -> ListingView:
    """`changes`: what is different about the sample listing. `sold`: in place of what its document says."""
    assets = sample_assets(chains)
    networks = tuple(asset.chain_id for asset in assets)
    listing: Listing = sample_listing(
        provider=PROVIDER,
        **{"id": LISTING_ID, "networks": networks, "created_ms": 1_795_239_000_000, **changes},
    )
    encoder = ListingEncoder(
        public_url=public_url,
        assets=assets,
        confirmations_for=lambda asset, units: 1,
        is_offered=is_offered,
        find_channels=lambda listing, price: dict.fromkeys(assets, CHANNEL) if has_channels else {},
    )
    operations = list_operations(listing) if sold is None else tuple(sold)
    return ListingView(
        listing=listing,
        operations=operations,
        details=encoder.details(listing, reputation),
        options={one: encoder.options(listing, one) for one in list_prices(listing, operations)},
        public_url=public_url,
        verified_at=None if reputation.verified_ms is None else format_time(reputation.verified_ms),
        has_mpp=has_mpp,
        is_bound_only=is_bound_only,
    )


_RESOURCES = (
    "quotes",
    "orders",
    "customers",
    "invoices",
    "shipments",
    "products",
    "stores",
    "refunds",
    "alerts",
    "reports",
)
_ACTIONS = (
    ("get", "/v1/{name}", "list", "List {name}, newest first, with filters"),
    ("post", "/v1/{name}", "create", "Create one of the {name} and return it with its id"),
    ("get", "/v1/{name}/{{id}}", "get", "One of the {name} by its id"),
    ("patch", "/v1/{name}/{{id}}", "update", "Change some fields of one of the {name}"),
    ("get", "/v1/{name}/{{id}}/history", "getHistoryOf", "The changes of one of the {name} over time"),
)


def realistic_document(operations: int) -> dict[str, Any]:
    """An OpenAPI document of a usual business API: lists with filters, records with about ten members, shared schemas. About 1 KB for each operation."""
    paths: dict[str, Any] = {}
    for number in range(operations):
        method, path, verb, summary = _ACTIONS[number % len(_ACTIONS)]
        group = number // len(_ACTIONS)
        name = _RESOURCES[group % len(_RESOURCES)] + (
            str(group // len(_RESOURCES) + 1) if group >= len(_RESOURCES) else ""
        )
        parameters = _FILTERS if verb in ("list", "getHistoryOf") else ()
        operation: dict[str, Any] = {
            "operationId": verb + name.capitalize(),
            "summary": summary.format(name=name),
            "parameters": [*([_RECORD_ID] if "{{id}}" in path else []), *parameters],
            "responses": {
                "200": {
                    "description": "ok",
                    "content": {"application/json": {"schema": _ANSWERS[verb in ("list", "getHistoryOf")]}},
                }
            },
        }
        if method in ("post", "patch"):
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Draft"}}},
            }
        paths.setdefault(path.format(name=name), {})[method] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Business", "version": "1"},
        "paths": paths,
        "components": {"schemas": _SCHEMAS},
    }


_RECORD_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "The id, such as rec_01h",
    "schema": {"type": "string", "examples": ["rec_01h"]},
}
_FILTERS = (
    {
        "name": "limit",
        "in": "query",
        "description": "Records on a page",
        "schema": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    },
    {
        "name": "cursor",
        "in": "query",
        "description": "The next page, as the page before says",
        "schema": {"type": "string"},
    },
    {"name": "status", "in": "query", "schema": {"type": "string", "enum": ["open", "paid", "closed"]}},
)
_DRAFT_MEMBERS: dict[str, Any] = {
    "title": {"type": "string", "maxLength": 120, "examples": ["Two boxes"]},
    "amount": {"type": "string", "description": "A decimal number", "examples": ["12.50"]},
    "currency": {"type": "string", "enum": ["EUR", "USD"]},
    "dueDate": {"type": "string", "format": "date"},
    "notes": {"type": "string", "description": "For people; not processed"},
}
_SCHEMAS: dict[str, Any] = {
    "Draft": {"type": "object", "required": ["title", "amount", "currency"], "properties": _DRAFT_MEMBERS},
    "Record": {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            **_DRAFT_MEMBERS,
            "status": {"type": "string", "enum": ["open", "paid", "closed"]},
            "createdAt": {"type": "string", "format": "date-time"},
            "updatedAt": {"type": "string", "format": "date-time"},
        },
    },
    "Page": {
        "type": "object",
        "properties": {
            "records": {"type": "array", "items": {"$ref": "#/components/schemas/Record"}},
            "next": {"type": "string"},
        },
    },
}
_ANSWERS = ({"$ref": "#/components/schemas/Record"}, {"$ref": "#/components/schemas/Page"})


def find_block_in(
    blocked: Collection[Address], *, reason: str = ""
) -> Callable[[Address], BlockedWallet | None]:
    """`find_block` of a gateway that has blocked these wallets; the collection may change."""

    def find_block(wallet: Address) -> BlockedWallet | None:
        if wallet not in blocked:
            return None
        return BlockedWallet(wallet=wallet, reason=reason, since_ms=1)

    return find_block
