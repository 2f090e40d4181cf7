"""Listings for tests: a plain one (`sample_listing`), and one as the discovery documents show it (`show_listing`), without a
gateway behind it. Every field can be given.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tollway.discovery.listing_view import ListingView, list_prices
from tollway.discovery.operations import ApiOperation, list_operations
from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, Price, TokenDomain
from tollway.registry.listing import ChargeOn, Listing
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation
from tollway.web.listing_json import ListingEncoder
from tollway.web.query import format_time

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


def show_listing(
    *,
    reputation: Reputation = UNKNOWN_REPUTATION,
    chains: int = 1,
    is_offered: Callable[[Asset, int, ListingId], bool] = lambda asset, units, listing_id: True,
    sold: Sequence[ApiOperation] | None = None,
    has_mpp: bool = True,
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
    )
    operations = list_operations(listing) if sold is None else tuple(sold)
    return ListingView(
        listing=listing,
        operations=operations,
        details=encoder.details(listing, reputation),
        options={price.nano: encoder.options(listing, price) for price in list_prices(listing, operations)},
        public_url=public_url,
        verified_at=None if reputation.verified_ms is None else format_time(reputation.verified_ms),
        has_mpp=has_mpp,
        is_bound_only=is_bound_only,
    )
