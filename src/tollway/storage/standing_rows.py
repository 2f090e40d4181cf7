"""What is known of listings beside their words, read from its two tables. It measures and proves nothing."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, select

from tollway.registry.standing import Quality, Reputation
from tollway.storage.catalog_tables import listing_table
from tollway.storage.standing_tables import ownership_table, quality_table


def find_reputations(connection: Connection, which: ColumnElement[bool]) -> dict[int, Reputation]:
    """By the listing's number, of those that are there. One statement; `which` must be a look into an index of listings."""
    listing, quality, ownership = listing_table.c, quality_table.c, ownership_table.c
    joined = listing_table.outerjoin(quality_table, quality.listing_seq == listing.seq).outerjoin(
        ownership_table, ownership.listing_seq == listing.seq
    )
    columns = (quality.calls, quality.success_ppm, quality.p50_ms, quality.p95_ms, ownership.verified_ms)
    rows = connection.execute(select(listing.seq, *columns).select_from(joined).where(which))
    return {row.seq: _read_reputation(row) for row in rows}


def _read_reputation(row: Any) -> Reputation:
    quality = None
    if row.calls is not None:
        quality = Quality(calls=row.calls, success_ppm=row.success_ppm, p50_ms=row.p50_ms, p95_ms=row.p95_ms)
    return Reputation(quality=quality, verified_ms=row.verified_ms)
