"""Listings for tests of any room: a plain one, and whatever a test says is different about it."""

from dataclasses import replace
from typing import Any

from tollway.identifiers import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Listing


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
        created_ms=created_ms,
        updated_ms=created_ms,
        revision=1,
    )
    return replace(plain, **changes)
