"""What a provider should know about a listing that is well formed and still may not do what he expects. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tollway.identifiers import ChainId
from tollway.money import Asset, Price
from tollway.registry.listing import Listing
from tollway.registry.offered_operations import list_unforwarded
from tollway.registry.pricing import payable_assets

HEADERS_NAMED_MAX = 5

_STOCK_PRICE_NANO_MAX = 10**9
"""Stock x402 clients pay at most one dollar a call unless their owner allows more."""

# Where they know USDC by default, among the networks that a preset exists for (x402 core 2.27, x402-py 2.25).
_STOCK_USDC_NETWORKS = frozenset(ChainId(number) for number in (1, 137, 8453, 42161, 84532, 421614))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingWarning:
    """A warning: `code` for machines, `detail` for people, `pointer` (RFC 6901) to the field it is about."""

    code: str
    detail: str
    pointer: str


PAYTO_SHARED = ListingWarning(
    code="payto_shared",
    detail="Another provider's listing names the same wallet. A payment to it can be shown there too.",
    pointer="/payTo",
)
ENDPOINT_UNPROTECTED = ListingWarning(
    code="endpoint_unprotected",
    detail="The endpoint answers without the listing's secret, so that anybody can call it unpaid.",
    pointer="/endpoint",
)


def list_warnings(listing: Listing, assets: Iterable[Asset]) -> tuple[ListingWarning, ...]:
    """Warnings that follow from the listing alone."""
    return (*_warn_about_price(listing, assets), *_warn_about_headers(listing))


def _warn_about_headers(listing: Listing) -> tuple[ListingWarning, ...]:
    names = list_unforwarded(listing, most=HEADERS_NAMED_MAX)
    if not names:
        return ()
    detail = f"The document has callers send headers that forwardHeaders does not name: {', '.join(names)}."
    return (ListingWarning(code="header_not_forwarded", detail=detail, pointer="/forwardHeaders"),)


def _warn_about_price(listing: Listing, assets: Iterable[Asset]) -> tuple[ListingWarning, ...]:
    prices = [listing.price, *(operation.price for operation in listing.operations)]
    if all(price.is_free for price in prices):
        return ()
    found = []
    payable = payable_assets(assets, currency=listing.currency, networks=listing.networks)
    if not any(_is_stock(asset) for asset in payable):
        found.append(
            ListingWarning(
                code="unusual_currency",
                detail="Stock x402 clients do not pay in this currency on these networks by default.",
                pointer="/currency",
            )
        )
    elif _highest_price(prices).nano > _STOCK_PRICE_NANO_MAX:
        found.append(
            ListingWarning(
                code="price_above_client_default",
                detail="Stock x402 clients pay at most 1 dollar a call by default.",
                pointer="/pricePerRequest",
            )
        )
    return tuple(found)


def _is_stock(asset: Asset) -> bool:
    return asset.symbol == "USDC" and asset.token is not None and asset.chain_id in _STOCK_USDC_NETWORKS


def _highest_price(prices: Iterable[Price]) -> Price:
    return max(prices, key=lambda price: price.nano)
