"""The quality of listings in SQL: what `registry/quality_book.py` promises, on both dialects.

The counts of a day are only ever added to, in the order of their key, so gateways that write at once wait for each
other and never in a circle. A sum knows all that was added before: on PostgreSQL it is made under a lock on its listing's
row; on SQLite, where there is one gateway, one is made after the other, and what it reads is not read by the one writer,
whom calls wait for.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert as insert_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_sqlite

from tollway.identifiers import ListingId
from tollway.registry.quality_tally import Bucket, QualityCounts, first_day, summarise
from tollway.storage.catalog_tables import listing_table
from tollway.storage.database import Database
from tollway.storage.standing_tables import quality_day_table, quality_table

_Sums = dict[ListingId, tuple[int, dict[Bucket, int]]]
"""The listing's number, and its calls of 30 days by bucket."""


class QualityStore:
    """A `QualityRecords` over a `Database`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._summing = asyncio.Lock()

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        rows = [
            {"listing_id": listing_id, "day": day, "bucket": bucket, "calls": calls}
            for (listing_id, bucket), calls in sorted(counts.items())
        ]
        if rows:
            await self._database.write(lambda connection: _add(connection, rows), flush=False)

    async def update_sums(self, listing_ids: Collection[ListingId], *, today: int) -> Mapping[ListingId, int]:
        if not listing_ids:
            return {}
        wanted = list(listing_ids)
        if self._database.dialect == "sqlite":
            async with self._summing:
                sums = await self._database.read(lambda connection: _read_sums(connection, wanted, today))
                await self._database.write(
                    lambda connection: _write_sums(connection, sums, today), flush=False
                )
        else:
            sums = await self._database.write(
                lambda connection: _sum_up_alone(connection, wanted, today), flush=False
            )
        return {listing_id: sum(counts.values()) for listing_id, (_, counts) in sums.items()}

    async def find_outdated(self, *, today: int, count_max: int) -> tuple[ListingId, ...]:
        quality, listing = quality_table.c, listing_table.c
        outdated = (
            select(listing.id)
            .join_from(quality_table, listing_table, quality.listing_seq == listing.seq)
            .where(quality.day < today)
            .order_by(quality.day, quality.listing_seq)
            .limit(count_max)
        )
        found = await self._database.read(lambda connection: connection.scalars(outdated).all())
        return tuple(ListingId(listing_id) for listing_id in found)

    async def forget(self, *, today: int, rows_max: int) -> int:
        columns = quality_day_table.c
        key = (columns.listing_id, columns.day, columns.bucket)
        old = select(*key).where(columns.day < first_day(today)).order_by(columns.day).limit(rows_max)

        def work(connection: Connection) -> int:
            return connection.execute(delete(quality_day_table).where(tuple_(*key).in_(old))).rowcount

        return await self._database.write(work, flush=False)


def _insert(connection: Connection, table: Any) -> Any:
    return (insert_sqlite if connection.dialect.name == "sqlite" else insert_postgresql)(table)


def _add(connection: Connection, rows: list[dict[str, Any]]) -> None:
    more = _insert(connection, quality_day_table)
    known = quality_day_table.c.calls
    more = more.on_conflict_do_update(
        index_elements=("listing_id", "day", "bucket"), set_={"calls": known + more.excluded.calls}
    )
    connection.execute(more, rows)


def _sum_up_alone(connection: Connection, wanted: list[ListingId], today: int) -> _Sums:
    found = select(listing_table.c.id).where(listing_table.c.id.in_(wanted)).order_by(listing_table.c.id)
    # Others that sum up wait here; no call does, and no edit of anything but the listing itself.
    connection.execute(found.with_for_update(key_share=True)).all()
    sums = _read_sums(connection, wanted, today)
    _write_sums(connection, sums, today)
    return sums


def _read_sums(connection: Connection, wanted: list[ListingId], today: int) -> _Sums:
    listing, counted = listing_table.c, quality_day_table.c
    known = connection.execute(select(listing.id, listing.seq).where(listing.id.in_(wanted)))
    sums: _Sums = {ListingId(row.id): (row.seq, {}) for row in known}
    added = (
        select(counted.listing_id, counted.bucket, func.sum(counted.calls).label("calls"))
        .where(counted.listing_id.in_(list(sums)), counted.day >= first_day(today))
        .group_by(counted.listing_id, counted.bucket)
    )
    for row in connection.execute(added) if sums else ():
        sums[row.listing_id][1][row.bucket] = int(row.calls)
    return sums


def _write_sums(connection: Connection, sums: _Sums, today: int) -> None:
    for seq, counts in sums.values():
        _write_sum(connection, seq, counts, today=today)


def _write_sum(connection: Connection, seq: int, counts: Mapping[Bucket, int], *, today: int) -> None:
    quality = summarise(counts)
    if quality is None:
        connection.execute(delete(quality_table).where(quality_table.c.listing_seq == seq))
        return
    values = {
        "calls": quality.calls,
        "success_ppm": quality.success_ppm,
        "p50_ms": quality.p50_ms,
        "p95_ms": quality.p95_ms,
        "day": today,
    }
    one = _insert(connection, quality_table).values(listing_seq=seq, **values)
    connection.execute(one.on_conflict_do_update(index_elements=("listing_seq",), set_=values))
