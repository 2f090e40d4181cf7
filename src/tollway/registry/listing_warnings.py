"""Warnings about a valid listing: prices and currencies that stock clients do not pay, headers that do not pass, and what a provider's OpenAPI document
loses (another base path, operations and references that cannot be read). Pure.

A listing is never refused for these: what remains is sold. Without a warning the provider finds the loss when a caller pays for an operation that answers 404, or
when an agent sees an operation without its parameters.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tollway.ids import ChainId
from tollway.money import Asset, Price
from tollway.registry.document_fit import list_left_out
from tollway.registry.listing import Listing, list_unforwarded, list_unreturned, payable_assets
from tollway.registry.metering import offer
from tollway.registry.openapi import METHODS, list_in, read_path, resolve_in, resolve_pointer
from tollway.registry.text import join_lines

HEADERS_NAMED_MAX = 5

_STOCK_PRICE_NANO_MAX = 10**9
"""Stock x402 clients pay at most one dollar a call by default."""

# The networks on which they accept USDC by default and for which a preset exists (x402 core 2.27, x402-py 2.25).
_STOCK_USDC_NETWORKS = frozenset(ChainId(number) for number in (1, 137, 8453, 42161, 84532, 421614))


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingWarning:
    """A warning about a valid listing: `code` for machines, `detail` for people, `pointer` (RFC 6901) to the field."""

    code: str
    detail: str
    pointer: str


PAYTO_SHARED = ListingWarning(
    code="payto_shared",
    detail="A listing of another provider has the same payTo. A payment to this wallet can be used there too.",
    pointer="/payTo",
)
METERED = ListingWarning(
    code="metered_by_transaction",
    detail="Callers pay a metered price by a transaction of their own: stock x402 and MPP clients sign an amount, and cannot be charged less.",
    pointer="/metering",
)
ENDPOINT_UNPROTECTED = ListingWarning(
    code="endpoint_unprotected",
    detail="The endpoint answers without the listing's secret, so callers can use it without payment. Require the secret there.",
    pointer="/endpoint",
)


def list_warnings(listing: Listing, assets: Iterable[Asset]) -> tuple[ListingWarning, ...]:
    return (
        *_warn_about_price(listing, assets),
        *_warn_about_headers(listing),
        *_warn_about_document(listing),
    )


def _warn_about_headers(listing: Listing) -> tuple[ListingWarning, ...]:
    found = []
    if names := list_unforwarded(listing, most=HEADERS_NAMED_MAX):
        detail = f"The document requires or allows headers that forwardHeaders does not contain: {', '.join(names)}."
        found.append(ListingWarning(code="header_not_forwarded", detail=detail, pointer="/forwardHeaders"))
    if names := list_unreturned(listing, most=HEADERS_NAMED_MAX):
        detail = f"The document has response headers that no caller gets: {', '.join(names)}."
        found.append(ListingWarning(code="header_not_returned", detail=detail, pointer="/openapi"))
    return tuple(found)


def _warn_about_price(listing: Listing, assets: Iterable[Asset]) -> tuple[ListingWarning, ...]:
    offered = [offer(listing), *map(offer, listing.operations)]
    found = []
    if any(one.metering is not None for one in offered):
        found.append(METERED)
    prices = [one.price for one in offered if one.metering is None]
    if all(price.is_free for price in prices):
        return tuple(found)
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


NAMED_MAX, NAME_CHARACTERS_MAX = 5, 80

_DATA_MEMBERS = frozenset({"example", "examples", "default", "enum", "const"})
"""Members whose values are data of the API. A `$ref` in them is no reference."""


def _warn_about_document(listing: Listing) -> tuple[ListingWarning, ...]:
    document = listing.openapi
    if not document:
        return ()
    found = (
        _warn_about_servers(listing, document),
        _warn_about_operations(document),
        _warn_about_references(document),
        _warn_about_length(document),
    )
    return tuple(warning for warning in found if warning is not None)


def _warn_about_servers(listing: Listing, document: Mapping[str, Any]) -> ListingWarning | None:
    """The first server counts where none of them has the base path of the endpoint."""
    paths = list_base_paths(document)
    endpoint = urlsplit(listing.endpoint)
    own = endpoint.path.rstrip("/")
    if not paths or own in paths:
        return None
    proposed = f"{endpoint.scheme}://{endpoint.netloc}{paths[0]}"
    detail = (
        f"The servers of the document have the base path `{_name(paths[0]) or '/'}`, and the endpoint has `{own or '/'}`. The gateway calls "
        f"the endpoint, followed by the path of the operation. If the operations lie under the base path of the document, set the endpoint "
        f"to {_name(proposed)}."
    )
    return ListingWarning(code="servers_differ", detail=detail, pointer="/endpoint")


def list_base_paths(document: Mapping[str, Any]) -> list[str]:
    """The paths of the servers of a document, without their final slashes; those that cannot be read are left out."""
    return [path for server in list_in(document, "servers") if (path := _read_base_path(server)) is not None]


def _read_base_path(server: object) -> str | None:
    """The path of a server object, without its final slash; variables have their defaults. None where it cannot be read."""
    url = server.get("url") if isinstance(server, Mapping) else None
    if not isinstance(url, str):
        return None
    variables = server.get("variables") if isinstance(server, Mapping) else None
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        default = variable.get("default") if isinstance(variable, Mapping) else None
        if isinstance(default, str):
            url = url.replace("{" + str(name) + "}", default)
    try:
        path = urlsplit(url).path.rstrip("/")
    except ValueError:
        return None
    return path if path.startswith("/") or not path else "/" + path


def _warn_about_operations(document: Mapping[str, Any]) -> ListingWarning | None:
    ignored = list(_find_ignored_operations(document))
    if not ignored:
        return None
    detail = (
        f"{len(ignored)} {'operations of the document are' if len(ignored) > 1 else 'operation of the document is'} not part of the listing, "
        f"because a path cannot be read: {_list_names(ignored)}. A path begins with `/`, has no query, no `.` or `..` segment, and no two "
        "variables side by side."
    )
    return ListingWarning(code="operations_ignored", detail=detail, pointer="/openapi")


def _find_ignored_operations(document: Mapping[str, Any]) -> Iterator[str]:
    paths = document.get("paths")
    for path, raw in paths.items() if isinstance(paths, Mapping) else ():
        entry = resolve_in(document, raw)
        if entry is not None and read_path(path) is None and not str(path).startswith("x-"):
            yield from (f"{method} {path}" for method in METHODS if isinstance(entry.get(method), Mapping))


def _warn_about_references(document: Mapping[str, Any]) -> ListingWarning | None:
    ignored = [
        reference
        for reference in dict.fromkeys(_find_references(document))
        if resolve_pointer(document, reference) is None
    ]
    if not ignored:
        return None
    detail = (
        f"{len(ignored)} {'references of the document lead' if len(ignored) > 1 else 'reference of the document leads'} outside it or to nothing, "
        f"and {'are' if len(ignored) > 1 else 'is'} left out: {_list_names(ignored)}. Bundle the document into one file: the gateway follows no "
        "reference to another one."
    )
    return ListingWarning(code="references_ignored", detail=detail, pointer="/openapi")


def _find_references(document: Mapping[str, Any]) -> Iterator[str]:
    """Every `$ref` of the document in its order, repeated ones included. Not recursive: a document may nest as deep as its parser allows."""
    pending: list[object] = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending.extend(reversed(value))
        elif isinstance(value, Mapping):
            reference = value.get("$ref")
            if isinstance(reference, str):
                yield reference
            pending.extend(value[name] for name in reversed(value) if name not in _DATA_MEMBERS)


def _list_names(names: list[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(f"`{_name(name)}`" for name in names[:NAMED_MAX]) + (
        f" and {more} more" if more > 0 else ""
    )


def _name(text: str) -> str:
    return join_lines(text)[:NAME_CHARACTERS_MAX]


def _warn_about_length(document: Mapping[str, Any]) -> ListingWarning | None:
    lost = list_left_out(document)
    if not lost:
        return None
    detail = (
        f"The document is too long to store whole. Left out: {', '.join(lost)}. Every operation stays with its parameters and its request "
        "body. Publish a shorter document if callers need what is left out."
    )
    return ListingWarning(code="document_shortened", detail=detail, pointer="/openapiUrl")
