"""Proved ownership in SQL: what `registry/ownership.py` promises, on both dialects. It looks at no origin itself.

A proof is written under a lock on its listing, and an edit that ends one does so in its own transaction
(`end_stale_proof`): what was found out about an old endpoint never counts for a new one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, text, update

from tollway.identifiers import Address, ListingId
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.registry.listing import Listing
from tollway.registry.ownership import Challenge, Method, Ownership, OwnershipClaim, apply_check, is_still_of
from tollway.storage.catalog_rows import read_networks
from tollway.storage.catalog_tables import listing_table
from tollway.storage.database import Database
from tollway.storage.standing_tables import IS_VERIFIED, ownership_table

FRESH_MS = 1_000
"""A change by another gateway counts after this long at the latest."""
LISTINGS_KEPT = 10_000


@dataclass(slots=True)
class _CachedOwnership:
    is_verified: bool
    checked_ms: int


class OwnershipStore:
    """`Ownerships` over a `Database`. Safe to call from many tasks and, on PostgreSQL, from many gateways at once."""

    def __init__(self, database: Database, *, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms
        self._seen: OrderedDict[ListingId, _CachedOwnership] = OrderedDict()

    async def find(self, listing_id: ListingId) -> Ownership | None:
        return await self._database.read(lambda connection: _find(connection, listing_id))

    async def record_check(
        self, challenge: Challenge, proved: Iterable[Method], *, now_ms: int, failures_max: int
    ) -> Ownership | None:
        found = tuple(proved)
        try:
            return await self._database.write(
                lambda connection: _record_check(
                    connection, challenge, found, now_ms=now_ms, failures_max=failures_max
                )
            )
        finally:
            self._seen.pop(challenge.listing_id, None)  # also when the outcome is unknown

    async def find_due(self, *, before_ms: int, limit: int) -> tuple[OwnershipClaim, ...]:
        return await self._database.read(lambda connection: find_due(connection, before_ms, limit))

    async def find_owner(self, origin: str) -> Address | None:
        return await self._database.read(lambda connection: find_owner(connection, origin))

    async def is_verified(self, listing_id: ListingId) -> bool:
        now_ms = self._now_ms()
        seen = self._seen.get(listing_id)
        if seen is not None and 0 <= now_ms - seen.checked_ms < FRESH_MS:
            return seen.is_verified
        self._seen.pop(listing_id, None)
        ownership = await self.find(listing_id)
        seen = _CachedOwnership(ownership is not None and ownership.is_verified, now_ms)
        self._seen[listing_id] = seen
        while len(self._seen) > LISTINGS_KEPT:
            self._seen.popitem(last=False)
        return seen.is_verified


def end_stale_proof(connection: Connection, seq: int, listing: Listing) -> None:
    """A listing has changed: what was proved of another origin, or signed by another payee, does not count any more. Of a
    retired one nothing is kept, so that its origin is free."""
    named = ownership_table.c.listing_seq == seq
    row = connection.execute(select(ownership_table).where(named)).one_or_none()
    if row is None:
        return
    is_kept = is_still_of(_read(row), origin=_find_origin(listing.endpoint), pay_to=listing.pay_to)
    if listing.retired_ms is not None or not is_kept:
        connection.execute(delete(ownership_table).where(named))


def _find(connection: Connection, listing_id: ListingId) -> Ownership | None:
    owned, listing = ownership_table.c, listing_table.c
    query = select(ownership_table).join(listing_table, listing.seq == owned.listing_seq)
    row = connection.execute(query.where(listing.id == listing_id)).one_or_none()
    return None if row is None else _read(row)


def _record_check(
    connection: Connection,
    challenge: Challenge,
    proved: tuple[Method, ...],
    *,
    now_ms: int,
    failures_max: int,
) -> Ownership | None:
    listing = listing_table.c
    about = select(listing.seq, listing.provider, listing.pay_to, listing.endpoint)
    listing_query = about.where(
        listing.id == challenge.listing_id, listing.retired_ms.is_(None)
    ).with_for_update()
    row = connection.execute(listing_query).one_or_none()
    if row is None or _is_changed(row, challenge):
        return None
    named = ownership_table.c.listing_seq == row.seq
    known = connection.execute(select(ownership_table).where(named)).one_or_none()
    before = None if known is None else _read(known)
    after = apply_check(before, challenge, proved, now_ms=now_ms, failures_max=failures_max)
    values = {
        "origin": after.origin,
        "method": after.method,
        "signer": None if after.signer is None else bytes(after.signer),
        "verified_ms": after.verified_ms,
        "checked_ms": after.checked_ms,
        "failures": after.failures,
    }
    if known is None:
        connection.execute(insert(ownership_table).values(listing_seq=row.seq, **values))
    else:
        connection.execute(update(ownership_table).where(named).values(values))
    return after


def _is_changed(row: Any, challenge: Challenge) -> bool:
    return (row.provider, row.pay_to) != (bytes(challenge.provider), bytes(challenge.pay_to)) or (
        _find_origin(row.endpoint) != challenge.origin
    )


def find_due(connection: Connection, before_ms: int, limit: int) -> tuple[OwnershipClaim, ...]:
    owned, listing = ownership_table.c, listing_table.c
    columns = (listing.id, listing.provider, listing.pay_to, listing.networks, listing.endpoint)
    due = (
        select(*columns)
        .join(ownership_table, owned.listing_seq == listing.seq)
        .where(text(IS_VERIFIED), owned.checked_ms < before_ms)
        .order_by(owned.checked_ms, owned.listing_seq)
        .limit(limit)
    )
    return tuple(
        OwnershipClaim(
            listing_id=ListingId(row.id),
            provider=Address(row.provider),
            pay_to=Address(row.pay_to),
            networks=read_networks(row.networks),
            endpoint=row.endpoint,
        )
        for row in connection.execute(due)
    )


def find_owner(connection: Connection, origin: str) -> Address | None:
    owned, listing = ownership_table.c, listing_table.c
    oldest = (
        select(listing.provider)
        .join(ownership_table, owned.listing_seq == listing.seq)
        .where(text(IS_VERIFIED), owned.origin == origin)
        .order_by(owned.listing_seq)
        .limit(1)
    )
    provider = connection.scalar(oldest)
    return None if provider is None else Address(provider)


def _find_origin(endpoint: str) -> str:
    parsed = parse_endpoint(endpoint, allow_private=True)
    return parsed.origin if isinstance(parsed, Endpoint) else ""


def _read(row: Row[Any]) -> Ownership:
    return Ownership(
        origin=row.origin,
        method=row.method,
        signer=None if row.signer is None else Address(row.signer),
        verified_ms=row.verified_ms,
        checked_ms=row.checked_ms,
        failures=row.failures,
    )
