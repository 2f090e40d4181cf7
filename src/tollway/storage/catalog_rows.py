"""Listings and terms as rows of the catalog, and back. Columns are enumerated; the secret and the document are not here."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Row

from tollway.identifiers import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.listing import ChargeOn, Listing, Operation, RateLimit, Terms, UpstreamAuth
from tollway.registry.words import fold

NO_OPERATIONS = "[]"
"""How a listing without operations stands in its column."""


def listing_values(listing: Listing) -> dict[str, Any]:
    """Every column of a listing but its number and its sealed secret."""
    auth, limit = listing.upstream_auth, listing.rate_limit
    return {
        "id": listing.id,
        "provider": bytes(listing.provider),
        "name": listing.name,
        "name_key": name_key(listing),
        "description": listing.description,
        "endpoint": listing.endpoint,
        "price": listing.price.text,
        "price_nano": listing.price.nano,
        "currency": listing.currency,
        "pay_to": bytes(listing.pay_to),
        "networks": _write(listing.networks),
        "methods": _write(listing.methods),
        "tags": _write(listing.tags),
        "operations": _write_operations(listing.operations),
        "other_paths": listing.other_paths,
        "charge_on": listing.charge_on.value,
        "timeout_s": listing.timeout_s,
        "forward_headers": _write(listing.forward_headers),
        "auth_location": auth.location if auth else None,
        "auth_name": auth.name if auth else None,
        "openapi_url": listing.openapi_url,
        "signature": listing.signature,
        "rate_calls": limit.calls if limit else None,
        "rate_per_s": limit.per_s if limit else None,
        "status": listing.status,
        "created_ms": listing.created_ms,
        "updated_ms": listing.updated_ms,
        "revision": listing.revision,
        "retired_ms": listing.retired_ms,
        "suspended_ms": listing.suspended_ms,
        "is_shown": is_shown(listing),
    }


def read_listing(row: Row[Any], *, auth: UpstreamAuth | None, openapi: Mapping[str, Any] | None) -> Listing:
    """The listing of a row. `auth`: with the opened secret, which is not here."""
    limit = None
    if row.rate_calls is not None:
        limit = RateLimit(calls=row.rate_calls, per_s=row.rate_per_s)
    return Listing(
        id=ListingId(row.id),
        provider=Address(row.provider),
        name=row.name,
        description=row.description,
        endpoint=row.endpoint,
        price=Price(text=row.price, nano=row.price_nano),
        currency=row.currency,
        pay_to=Address(row.pay_to),
        networks=read_networks(row.networks),
        methods=_read_texts(row.methods),
        tags=_read_texts(row.tags),
        operations=_read_operations(row.operations),
        other_paths=row.other_paths,
        charge_on=ChargeOn(row.charge_on),
        timeout_s=row.timeout_s,
        forward_headers=_read_texts(row.forward_headers),
        upstream_auth=auth,
        openapi=openapi,
        openapi_url=row.openapi_url,
        signature=row.signature,
        rate_limit=limit,
        status=row.status,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        revision=row.revision,
        retired_ms=row.retired_ms,
        suspended_ms=row.suspended_ms,
    )


def terms_values(terms: Terms) -> dict[str, Any]:
    """Every column of a version but its listing and its number."""
    return {
        "price": terms.price.text,
        "price_nano": terms.price.nano,
        "currency": terms.currency,
        "networks": _write(terms.networks),
        "pay_to": bytes(terms.pay_to),
        "operations": _write_operations(terms.operations),
        "other_paths": terms.other_paths,
        "methods": _write(terms.methods),
        "described": _write(terms.described),
        "charge_on": terms.charge_on.value,
        "status": terms.status,
        "since_ms": terms.since_ms,
        "until_ms": terms.until_ms,
    }


def read_terms(row: Row[Any]) -> Terms:
    """A version of which no status is recorded sets no price once it has ended: what it sold is not known."""
    return Terms(
        price=Price(text=row.price, nano=row.price_nano),
        currency=row.currency,
        networks=read_networks(row.networks),
        pay_to=Address(row.pay_to),
        operations=_read_operations(row.operations),
        other_paths=row.other_paths or "refuse",
        methods=_read_texts(row.methods or "[]"),
        described=tuple((method, path) for method, path in json.loads(row.described or "[]")),
        charge_on=ChargeOn(row.charge_on),
        status=row.status or "unrecorded",
        since_ms=row.since_ms,
        until_ms=row.until_ms,
    )


def is_shown(listing: Listing) -> bool:
    """Whether lists show it: paused ones too, retired and suspended ones never."""
    return listing.retired_ms is None and listing.suspended_ms is None


def name_key(listing: Listing) -> str:
    """What `sort=name` compares."""
    return fold(listing.name)


def write_document(openapi: Mapping[str, Any]) -> str:
    return json.dumps(openapi, ensure_ascii=False, separators=(",", ":"))


def read_document(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else cast(dict[str, Any], json.loads(text))


def _write(values: Sequence[object]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _read_texts(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def read_networks(text: str) -> tuple[ChainId, ...]:
    return tuple(ChainId(number) for number in json.loads(text))


def _write_operations(operations: Sequence[Operation]) -> str:
    return _write([[op.method, op.path, op.price.text, op.price.nano] for op in operations])


def _read_operations(text: str) -> tuple[Operation, ...]:
    return tuple(
        Operation(method=method, path=path, price=Price(text=price, nano=nano))
        for method, path, price, nano in json.loads(text)
    )
