"""Proved ownership and measured quality of listings in SQL: the ports of `registry/ownership.py` and `registry/quality.py` on both dialects.

Ownership: this module fetches no origin. A proof is written under a lock of its listing. An edit that ends a proof does so in the same
transaction (`renew_ownership`): a proof for an old endpoint never counts for a new one. Each unproved listing says whether another wallet owns its origin: that
is written when a listing is published or moved, and when a proof begins or ends to count, so that a search reads it with the listing.

Quality: the counts of a day only grow, and are written in the order of their key, so that gateways that write at the same time do not
deadlock. A sum contains all earlier additions. On PostgreSQL it is made under a lock of its listing's row. On SQLite, with one gateway,
sums are made one after another, and their reads run outside the writer, which calls wait for.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import (
    Connection,
    Row,
    bindparam,
    delete,
    false,
    func,
    insert,
    not_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as insert_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_sqlite

from tollway.bounded_cache import BoundedDict
from tollway.ids import Address, ListingId
from tollway.outbound.policy import Endpoint, parse_endpoint
from tollway.registry.listing import Listing
from tollway.registry.ownership import (
    Challenge,
    Method,
    OriginOwner,
    Ownership,
    OwnershipClaim,
    apply_check,
    is_still_of,
)
from tollway.registry.quality import COSTS_FROM, Bucket, QualityCounts, first_day, score_listing, summarise
from tollway.storage.catalog.catalog_tables import (
    IS_UNPROVED,
    IS_VERIFIED,
    is_shown,
    listing_table,
    lock_total,
    ownership_table,
    quality_day_table,
    quality_table,
    read_networks,
    write_costs,
)
from tollway.storage.catalog.search_blocks import change_features, rate_feature
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import Prepared
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog, write_events
from tollway.webhooks.events import EventType

FRESH_MS = 1_000
"""The longest time until a change by another gateway counts."""
LISTINGS_KEPT = 10_000


@dataclass(slots=True)
class _CachedOwnership:
    is_verified: bool
    checked_ms: int


class OwnershipStore:
    def __init__(
        self, database: Database, *, now_ms: Callable[[], int], events: EventLog = NO_EVENTS
    ) -> None:
        self._database = database
        self._events = events
        self._now_ms = now_ms
        self._seen: BoundedDict[ListingId, _CachedOwnership] = BoundedDict(entries_max=LISTINGS_KEPT)

    async def find(self, listing_id: ListingId) -> Ownership | None:
        return await self._database.read(lambda connection: _find(connection, listing_id))

    async def record_check(
        self, challenge: Challenge, proved: Iterable[Method], *, now_ms: int, failures_max: int
    ) -> Ownership | None:
        found = tuple(proved)
        try:
            return await write_retried(
                self._database,
                lambda connection: _record_check(
                    connection,
                    challenge,
                    found,
                    now_ms=now_ms,
                    failures_max=failures_max,
                    events=self._events,
                ),
            )
        finally:
            # Also when the outcome is unknown.
            self._seen.pop(challenge.listing_id, None)

    async def find_due(self, *, before_ms: int, limit: int) -> tuple[OwnershipClaim, ...]:
        return await self._database.read(lambda connection: find_due(connection, before_ms, limit))

    async def find_owner(self, origin: str) -> OriginOwner | None:
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
        return seen.is_verified


def begin_ownership(connection: Connection, seq: int, listing: Listing) -> None:
    """Writes the row of a new listing. Call it in the transaction that publishes it, after its row of `listing_total`."""
    connection.execute(
        insert(ownership_table).values(listing_seq=seq, **_values_of_unproved(connection, listing))
    )


def renew_ownership(
    connection: Connection,
    seq: int,
    listing: Listing,
    *,
    was_shown: bool,
    events: EventLog,
    now_ms: int,
) -> None:
    """Ends the proof of a changed listing when it is for another origin or was signed by another payee, and deletes the row of a retired listing, so
    that its origin is free. A listing that is still for sale has lost its ownership then, which is an event. Call it in the transaction of the change, after
    the row of `listing_total`."""
    named = ownership_table.c.listing_seq == seq
    row = connection.execute(select(ownership_table).where(named)).one_or_none()
    if row is None:
        return
    origin = _find_origin(listing.endpoint)
    is_proved = row.verified_ms is not None
    is_kept = is_still_of(_read(row), origin=origin, pay_to=listing.pay_to)
    if listing.retired_ms is not None:
        connection.execute(delete(ownership_table).where(named))
    elif not is_kept:
        connection.execute(
            update(ownership_table).where(named).values(_values_of_unproved(connection, listing))
        )
    if is_proved and (listing.retired_ms is not None or not is_kept):
        update_score(connection, seq)
    if is_proved and (listing.retired_ms is not None or not is_kept or was_shown != is_shown(listing)):
        _mark_owned(connection, row.origin)
    if is_proved and not is_kept and listing.retired_ms is None:
        _write_loss(connection, listing.id, listing.provider, events=events, now_ms=now_ms)


def _values_of_unproved(connection: Connection, listing: Listing) -> dict[str, Any]:
    origin = _find_origin(listing.endpoint)
    owner = find_owner(connection, origin)
    return {
        "origin": origin,
        "method": None,
        "signer": None,
        "verified_ms": None,
        "checked_ms": None,
        "failures": 0,
        "owned_by_another": owner is not None and owner.provider != listing.provider,
    }


def _mark_owned(connection: Connection, origin: str) -> None:
    """Writes which unproved listings of an origin have another wallet as its owner. Call it where a proof of the origin begins or ends to count, under the lock of
    `listing_total`: a listing that is published at the same time finds the owner, or is found here."""
    owner = find_owner(connection, origin)
    owned, listing = ownership_table.c, listing_table.c
    is_owned = false() if owner is None else listing.provider != bytes(owner.provider)
    changed = (
        select(owned.listing_seq)
        .join(listing_table, listing.seq == owned.listing_seq)
        .where(text(IS_UNPROVED), owned.origin == origin, owned.owned_by_another != is_owned)
    )
    connection.execute(
        update(ownership_table)
        .where(owned.listing_seq.in_(changed))
        .values(owned_by_another=not_(owned.owned_by_another))
    )


def _find(connection: Connection, listing_id: ListingId) -> Ownership | None:
    owned, listing = ownership_table.c, listing_table.c
    query = select(ownership_table).join(listing_table, listing.seq == owned.listing_seq)
    query = query.where(listing.id == listing_id, owned.checked_ms.is_not(None))
    row = connection.execute(query).one_or_none()
    return None if row is None else _read(row)


def _record_check(
    connection: Connection,
    challenge: Challenge,
    proved: tuple[Method, ...],
    *,
    now_ms: int,
    failures_max: int,
    events: EventLog,
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
    known = connection.execute(select(ownership_table).where(named)).one()
    before = None if known.checked_ms is None else _read(known)
    after = apply_check(before, challenge, proved, now_ms=now_ms, failures_max=failures_max)
    is_moved = after.is_verified != (before is not None and before.is_verified)
    if is_moved:
        lock_total(connection)
    values = {
        "origin": after.origin,
        "method": after.method,
        "signer": None if after.signer is None else bytes(after.signer),
        "verified_ms": after.verified_ms,
        "checked_ms": after.checked_ms,
        "failures": after.failures,
    }
    if after.is_verified:
        values["owned_by_another"] = False
    connection.execute(update(ownership_table).where(named).values(values))
    if is_moved:
        update_score(connection, row.seq)
        _mark_owned(connection, challenge.origin)
    if before is not None and before.is_verified and not after.is_verified:
        _write_loss(connection, challenge.listing_id, challenge.provider, events=events, now_ms=now_ms)
    return after


def _write_loss(
    connection: Connection, listing_id: ListingId, provider: Address, *, events: EventLog, now_ms: int
) -> None:
    lost = events.make_events(
        EventType.LISTING_OWNERSHIP_LOST, (provider,), subject=listing_id, state="unverified", at_ms=now_ms
    )
    if lost:
        write_events(connection, lost)


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


def find_owner(connection: Connection, origin: str) -> OriginOwner | None:
    owned, listing = ownership_table.c, listing_table.c
    oldest = (
        select(listing.id, listing.provider)
        .join(ownership_table, owned.listing_seq == listing.seq)
        .where(text(IS_VERIFIED), owned.origin == origin, listing.is_shown.is_(True))
        .order_by(owned.listing_seq)
        .limit(1)
    )
    row = connection.execute(oldest).one_or_none()
    return None if row is None else OriginOwner(listing_id=ListingId(row.id), provider=Address(row.provider))


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


_DAY = quality_day_table.c
_READ_DAYS = Prepared(
    select(_DAY.day, _DAY.bucket, _DAY.calls).where(
        _DAY.listing_id == bindparam("listing_id"),
        _DAY.day.between(bindparam("first"), bindparam("last")),
        _DAY.bucket < COSTS_FROM,
    )
)

_Sums = dict[ListingId, tuple[int, dict[Bucket, int]]]
"""The row number of each listing, and its calls of 30 days by bucket."""


class QualityStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._summing = asyncio.Lock()

    async def add(self, counts: QualityCounts, *, day: int) -> None:
        rows = [
            {"listing_id": listing_id, "day": day, "bucket": bucket, "calls": calls}
            for (listing_id, bucket), calls in sorted(counts.items())
        ]
        if rows:
            await write_retried(self._database, partial(_add, rows=rows), flush=False)

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
            sums = await write_retried(
                self._database, lambda connection: _sum_up_alone(connection, wanted, today), flush=False
            )
        return {
            listing_id: sum(calls for bucket, calls in counts.items() if bucket < COSTS_FROM)
            for listing_id, (_, counts) in sums.items()
        }

    async def read_days(self, listing_id: ListingId, *, today: int) -> Mapping[int, Mapping[Bucket, int]]:
        values = {"listing_id": listing_id, "first": first_day(today), "last": today}
        rows = await self._database.read(lambda connection: _READ_DAYS.fetch(connection, **values))
        days: dict[int, dict[Bucket, int]] = {}
        for day, bucket, calls in rows:
            days.setdefault(day, {})[Bucket(bucket)] = int(calls)
        return days

    async def count_by_day(
        self, listing_ids: Collection[ListingId], *, today: int
    ) -> Mapping[ListingId, Sequence[int]]:
        first = first_day(today)
        sums = (
            select(_DAY.listing_id, _DAY.day, func.sum(_DAY.calls))
            .where(
                _DAY.listing_id.in_(sorted(listing_ids)),
                _DAY.day.between(first, today),
                _DAY.bucket < COSTS_FROM,
            )
            .group_by(_DAY.listing_id, _DAY.day)
        )
        rows = await self._database.read(lambda connection: connection.execute(sums).all())
        counts: dict[ListingId, list[int]] = {}
        for listing_id, day, calls in rows:
            days = counts.setdefault(ListingId(listing_id), [0] * (today - first + 1))
            days[day - first] = int(calls)
        return counts

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
    # Other sums of these listings wait here; calls do not, nor edits of other rows.
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
    seqs = sorted(seq for seq, _ in sums.values())
    before = _read_rates(connection, seqs)
    for seq, counts in sums.values():
        _write_sum(connection, seq, counts, today=today)
    after = _read_rates(connection, seqs)
    changed = [seq for seq in seqs if before.get(seq) != after.get(seq)]
    if changed:
        lock_total(connection)
    for seq in changed:
        change_features(connection, seq, before=before.get(seq, ()), after=after.get(seq, ()))


def _read_rates(connection: Connection, seqs: Sequence[int]) -> dict[int, tuple[str]]:
    """The feature of the success rate, by row number."""
    quality = quality_table.c
    rows = connection.execute(
        select(quality.listing_seq, quality.success_ppm).where(quality.listing_seq.in_(seqs))
    )
    return {row.listing_seq: (rate_feature(row.success_ppm),) for row in rows}


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
        "costs": write_costs(quality.costs),
        "day": today,
        "score": 0,
    }
    one = _insert(connection, quality_table).values(listing_seq=seq, **values)
    connection.execute(one.on_conflict_do_update(index_elements=("listing_seq",), set_=values))
    update_score(connection, seq)


def update_score(connection: Connection, seq: int) -> None:
    """Computes the score of a listing from its quality and its proof. Call it in the transaction that changes one of them, under the lock of its row."""
    quality, owned = quality_table.c, ownership_table.c
    known = (
        select(quality.calls, quality.success_ppm, owned.verified_ms)
        .join_from(quality_table, ownership_table, owned.listing_seq == quality.listing_seq, isouter=True)
        .where(quality.listing_seq == seq)
    )
    row = connection.execute(known).one_or_none()
    if row is None:
        return
    score = score_listing(
        calls=row.calls, success_ppm=row.success_ppm, is_verified=row.verified_ms is not None
    )
    connection.execute(update(quality_table).where(quality.listing_seq == seq).values(score=score))
