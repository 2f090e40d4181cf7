"""The catalog in SQL: the port of `registry/catalog.py` on both dialects, with one set of statements.

The rules of listings are in `registry/`. Secrets are encrypted before they reach a row, and decrypted only for `find`.

`ListingCache` keeps listings for paid calls without a query: bounded in number and bytes, at most a second old. It takes no lock and
does no I/O.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import structlog
from sqlalchemy import Connection, Row, Select, delete, exists, func, insert, not_, select, text, update
from sqlalchemy.exc import IntegrityError

from tollway.audit_log import AuditAction, AuditEntry
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId, ListingId
from tollway.limits import MIB
from tollway.registry.catalog import (
    NO_HEADS,
    SUSPENDED_MAX,
    TERMS_RETENTION_S,
    CatalogFacets,
    CreationBegun,
    CreationResponse,
    HeadTimes,
    ListingMatch,
    ListingPage,
    ListingQuery,
    ListingRange,
    PayeeTerms,
    Revised,
    RevisionConflict,
    SuspendedListing,
)
from tollway.registry.listing import CatalogEntry, Listing, Terms, UpstreamAuth
from tollway.registry.meaning import Proposed
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation
from tollway.registry.search_rank import matched_fields, weigh_words
from tollway.registry.search_tokens import fold
from tollway.storage.catalog.catalog_facets import is_unverified
from tollway.storage.catalog.catalog_search import count_facets, find_page, find_payee_terms
from tollway.storage.catalog.catalog_tables import (
    IS_SUSPENDED,
    document_table,
    find_reputation,
    is_shown,
    listing_table,
    listing_values,
    network_table,
    payee_head_table,
    read_document,
    read_listing,
    read_listings,
    read_terms,
    tag_table,
    terms_table,
    terms_values,
    total_table,
    write_document,
)
from tollway.storage.catalog.catalog_words import (
    Understood,
    erase_spellings,
    read_weights,
    take_weights,
    write_spellings,
    write_weights,
)
from tollway.storage.catalog.creation_store import finish_creation
from tollway.storage.catalog.listing_vectors import mark_vectors
from tollway.storage.catalog.reputation_store import begin_ownership, renew_ownership
from tollway.storage.catalog.search_blocks import change_features, list_features
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.statements import T, Work
from tollway.storage.ledger.recovery import SharedClock, read_shared_clock
from tollway.storage.operator.operator_writes import TARGETS_MAX, find_reasons, record_audit_entry
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog

if TYPE_CHECKING:
    from tollway.storage.catalog.meaning_search import MeaningSearch

FRESH_MS = 1_000
"""The longest time until a change by another process is visible."""

REFRESH_MS = 500
"""From this age on, one caller checks the revision while the others get the cached entry, so that a busy listing costs one read."""

ENTRIES_MAX = 4_096
DOCUMENT_BYTES_MAX = 64 * MIB


@dataclass(slots=True, kw_only=True)
class _CachedListing:
    catalog_entry: CatalogEntry
    weight: int
    checked_ms: int
    is_checking: bool = False


class ListingCache:
    """A cache of listings. `writes`: the number of changes by this process; a read that began before a change is not kept after it."""

    def __init__(self, *, entries_max: int = ENTRIES_MAX, bytes_max: int = DOCUMENT_BYTES_MAX) -> None:
        self._entries: OrderedDict[ListingId, _CachedListing] = OrderedDict()
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._weight = 0
        self.writes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, listing_id: ListingId, *, now_ms: int) -> CatalogEntry | Literal["stale"] | None:
        """The entry when it is fresh. `stale`: the caller must check its revision and call `confirm` or `end_check`. None: not cached."""
        entry = self._entries.get(listing_id)
        if entry is None:
            return None
        self._entries.move_to_end(listing_id)
        age_ms = now_ms - entry.checked_ms
        if 0 <= age_ms < REFRESH_MS or (0 <= age_ms < FRESH_MS and entry.is_checking):
            return entry.catalog_entry
        entry.is_checking = True
        return "stale"

    def confirm(
        self, listing_id: ListingId, revision: int | None, *, read_ms: int, writes: int
    ) -> CatalogEntry | None:
        """Ends a check that began at `read_ms`. Returns the entry when it has `revision`; otherwise drops it."""
        entry = self._entries.get(listing_id)
        if entry is None:
            return None
        if writes != self.writes or revision != entry.catalog_entry.listing.revision:
            self._drop(listing_id)
            return None
        entry.checked_ms = read_ms
        entry.is_checking = False
        return entry.catalog_entry

    def end_check(self, listing_id: ListingId) -> None:
        """Ends a failed check: the next caller checks again."""
        if entry := self._entries.get(listing_id):
            entry.is_checking = False

    def keep(self, entry: CatalogEntry, *, weight: int, read_ms: int, writes: int) -> None:
        """Adds an entry, unless this process has changed a listing since the read began. `weight`: the size of its document."""
        if writes != self.writes or weight > self._bytes_max:
            return
        self._drop(entry.listing.id)
        self._entries[entry.listing.id] = _CachedListing(
            catalog_entry=entry, weight=weight, checked_ms=read_ms
        )
        self._weight += weight
        while len(self._entries) > self._entries_max or self._weight > self._bytes_max:
            self._drop(next(iter(self._entries)))

    def forget(self, listing_id: ListingId) -> None:
        self.writes += 1
        self._drop(listing_id)

    def forget_all(self) -> None:
        """After a restore one revision number may mean two versions of a listing."""
        self.writes += 1
        self._entries.clear()
        self._weight = 0

    def _drop(self, listing_id: ListingId) -> None:
        entry = self._entries.pop(listing_id, None)
        if entry is not None:
            self._weight -= entry.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptFacets:
    """The counts of the whole catalog, which every view of the search needs. They are kept as long as a listing may be, and not after a change by this process."""

    facets: CatalogFacets
    read_ms: int
    writes: int


ID_LENGTH_MAX = 64

_log = structlog.get_logger(__name__)

_Sealed = Mapping[str, bytes | None]
"""The column of the sealed secret; empty to leave the stored secret unchanged."""


class CatalogStore:
    def __init__(
        self,
        database: Database,
        *,
        sealer: Sealer,
        now_ms: Callable[[], int],
        only_verified: bool = False,
        events: EventLog = NO_EVENTS,
        shared_clock: SharedClock = read_shared_clock,
        meaning: "MeaningSearch | None" = None,
    ) -> None:
        """`only_verified`: searches return only listings with proved ownership. `events`: of proofs that an edit ends. `meaning`: proposes
        listings beside those that the words find."""
        self._meaning = meaning
        self._events = events
        self._only_verified = only_verified
        self._database = database
        self._sealer = sealer
        self._now_ms = now_ms
        self._shared_clock = shared_clock
        self._cache = ListingCache()
        self._facets: _KeptFacets | None = None

    def clear_cache(self) -> None:
        self._cache.forget_all()
        if self._meaning is not None:
            self._meaning.forget()

    async def publish(self, listing: Listing, *, heads: HeadTimes = NO_HEADS) -> None:
        sealed = self._seal(listing)

        def work(connection: Connection) -> None:
            now_ms = self._shared_clock(connection, listing.created_ms)
            _publish(connection, listing, sealed, heads, now_ms=now_ms)

        await self._add(listing, work)

    async def publish_once(
        self,
        listing: Listing,
        *,
        under: CreationBegun,
        answer: CreationResponse,
        heads: HeadTimes = NO_HEADS,
    ) -> bool:
        sealed = self._seal(listing)

        def work(connection: Connection) -> bool:
            if not finish_creation(connection, under, answer):
                return False
            now_ms = self._shared_clock(connection, listing.created_ms)
            _publish(connection, listing, sealed, heads, now_ms=now_ms)
            return True

        return await self._add(listing, work)

    async def revise(
        self,
        listing: Listing,
        *,
        expected_revision: int,
        audit_entry: AuditEntry | None = None,
        heads: HeadTimes = NO_HEADS,
    ) -> Revised | RevisionConflict:
        sealed = self._seal(listing)

        def work(connection: Connection) -> Revised | RevisionConflict:
            outcome = _revise(
                connection,
                listing,
                sealed,
                expected_revision,
                heads,
                events=self._events,
                now_ms=self._shared_clock(connection, listing.updated_ms),
            )
            if audit_entry is not None and isinstance(outcome, Revised):
                record_audit_entry(connection, audit_entry)
            return outcome

        try:
            return await write_retried(self._database, work)
        finally:
            # Also when the outcome is unknown.
            self._cache.forget(listing.id)

    async def find(self, listing_id: ListingId) -> CatalogEntry | None:
        read_ms = self._now_ms()
        cached = self._cache.find(listing_id, now_ms=read_ms)
        if isinstance(cached, CatalogEntry):
            return cached
        if not _is_plausible(listing_id):
            return None
        writes = self._cache.writes
        if cached == "stale":
            try:
                revision = await self._database.read(
                    lambda connection: _find_revision(connection, listing_id)
                )
            finally:
                self._cache.end_check(listing_id)
            confirmed = self._cache.confirm(listing_id, revision, read_ms=read_ms, writes=writes)
            if confirmed is not None:
                return confirmed
            writes = self._cache.writes
        since_ms = read_ms - TERMS_RETENTION_S * 1000
        load = partial(self._load, listing_id=listing_id, since_ms=since_ms)
        found = await self._database.read(load)
        if found is None:
            return None
        entry, weight = found
        self._cache.keep(entry, weight=weight, read_ms=read_ms, writes=writes)
        return entry

    async def terms_since(self, listing_id: ListingId, moment_ms: int) -> tuple[Terms, ...]:
        if not _is_plausible(listing_id):
            return ()

        def work(connection: Connection) -> tuple[Terms, ...]:
            seq = connection.scalar(select(listing_table.c.seq).where(listing_table.c.id == listing_id))
            if seq is None:
                return ()
            return _load_terms(connection, seq, moment_ms)

        return await self._database.read(work)

    async def list_payee_heads(self, entry: CatalogEntry, chain_id: ChainId) -> Mapping[Address, int]:
        head, terms = payee_head_table.c, terms_table.c
        is_same_version = (terms.listing_seq == head.listing_seq) & (terms.version == head.version)
        statement = (
            select(terms.pay_to, func.min(head.head_s))
            .join_from(payee_head_table, terms_table, is_same_version)
            .join(listing_table, listing_table.c.seq == head.listing_seq)
            .where(listing_table.c.id == entry.listing.id, head.chain_id == chain_id)
            .where(terms.since_ms >= entry.versions[-1].since_ms)
            .group_by(terms.pay_to)
        )

        def work(connection: Connection) -> dict[Address, int]:
            return {Address(pay_to): head_s for pay_to, head_s in connection.execute(statement)}

        return await self._database.read(work)

    async def reputation(self, listing_id: ListingId) -> Reputation:
        if not _is_plausible(listing_id):
            return UNKNOWN_REPUTATION

        def work(connection: Connection) -> Reputation:
            return find_reputation(connection, listing_id) or UNKNOWN_REPUTATION

        return await self._database.read(work)

    async def search(self, query: ListingQuery) -> ListingPage:
        if self._only_verified:
            if query.verified is False:
                return ListingPage(found=(), total=0)
            query = replace(query, verified=True)

        proposed = await self._propose(query)
        return await self._database.read(partial(_search, query=query, proposed=proposed))

    async def _propose(self, query: ListingQuery) -> Sequence[Proposed]:
        if self._meaning is None or query.words is None or not query.is_ranked:
            return ()
        return await self._meaning.propose(query.words)

    async def list_range(self, first: int, last: int) -> ListingRange:
        columns = listing_table.c
        shown = select(columns.id, columns.updated_ms).where(
            columns.is_shown.is_(True), columns.seq.between(first, last)
        )
        if self._only_verified:
            shown = shown.where(not_(is_unverified(columns.seq)))

        def work(connection: Connection) -> ListingRange:
            rows = connection.execute(shown.order_by(columns.seq)).all()
            last_number = connection.scalar(select(func.max(columns.seq))) or 0
            return ListingRange(
                listings=tuple((ListingId(row.id), row.updated_ms) for row in rows), last_number=last_number
            )

        return await self._database.read(work)

    async def list_own(
        self, provider: Address, *, limit: int, offset: int, only_suspended: bool = False
    ) -> tuple[ListingMatch, ...]:
        columns = listing_table.c
        statement = (
            select(columns.seq)
            .where(columns.provider == bytes(provider), columns.retired_ms.is_(None))
            .order_by(columns.is_shown.desc(), columns.seq.desc())
            .limit(limit)
            .offset(offset)
        )
        if only_suspended:
            statement = statement.where(columns.suspended_ms.is_not(None))
        return await self._database.read(
            lambda connection: _read_matches(connection, connection.scalars(statement).all())
        )

    async def count_facets(self, words: str | None) -> CatalogFacets:
        read_ms, writes = self._now_ms(), self._cache.writes
        kept = self._facets if words is None else None
        if kept is not None and kept.writes == writes and 0 <= read_ms - kept.read_ms < FRESH_MS:
            return kept.facets
        query = ListingQuery(words=words, verified=True if self._only_verified else None)
        proposed = await self._propose(query)
        facets = await self._database.read(partial(count_facets, query=query, proposed=proposed))
        if words is None:
            self._facets = _KeptFacets(facets=facets, read_ms=read_ms, writes=writes)
        return facets

    async def is_payee_shared(self, pay_to: Address, provider: Address) -> bool:
        listing = listing_table.c
        whose = (listing.pay_to == bytes(pay_to), listing.is_shown.is_(True))
        # Two ranges of an index: a condition <> would walk all listings of the provider.
        others = [
            select(exists().where(*whose, side))
            for side in (listing.provider < bytes(provider), listing.provider > bytes(provider))
        ]
        return await self._database.read(lambda connection: any(connection.scalar(query) for query in others))

    async def find_payee_terms(self, payees: Collection[Address]) -> frozenset[PayeeTerms]:
        """Those of these payees, of all listings that are not retired."""
        return await self._database.read(partial(find_payee_terms, payees=payees))

    async def list_suspended(self) -> tuple[SuspendedListing, ...]:
        def work(connection: Connection) -> tuple[SuspendedListing, ...]:
            rows = connection.execute(select_suspended()).all()
            reasons: dict[tuple[str, int], str] = {}
            for start in range(0, len(rows), TARGETS_MAX):
                moments = [(row.id, row.suspended_ms) for row in rows[start : start + TARGETS_MAX]]
                reasons |= find_reasons(connection, AuditAction.SUSPEND_LISTING, moments)
            return tuple(
                SuspendedListing(
                    id=ListingId(row.id),
                    name=row.name,
                    provider=Address(row.provider),
                    suspended_ms=row.suspended_ms,
                    price=row.price,
                    currency=row.currency,
                    reason=reasons.get((row.id, row.suspended_ms), ""),
                )
                for row in rows
            )

        return await self._database.read(work)

    async def _add(self, listing: Listing, work: Work[T]) -> T:
        try:
            return await write_retried(self._database, work)
        except IntegrityError as exc:
            raise StorageUnavailable("The listing's id is taken.") from exc
        finally:
            self._cache.forget(listing.id)

    def _seal(self, listing: Listing) -> _Sealed:
        """The sealed secrets. One that does not open is left out and stays, because its key may be configured again."""
        auth, secret = listing.upstream_auth, listing.forward_secret
        sealed: dict[str, bytes | None] = {}
        if auth is None:
            sealed["auth_sealed"] = None
        elif auth.value is not None:
            label = secret_label(listing.id, auth.location, auth.name)
            sealed["auth_sealed"] = self._sealer.seal(auth.value.encode(), label=label)
        if not listing.has_shared_secret or listing.retired_ms is not None:
            sealed["forward_sealed"] = None
        elif secret is not None:
            sealed["forward_sealed"] = self._sealer.seal(secret, label=forward_label(listing.id))
        return sealed

    def _load(
        self, connection: Connection, listing_id: ListingId, since_ms: int
    ) -> tuple[CatalogEntry, int] | None:
        listing = listing_table.c
        joined = listing_table.outerjoin(document_table, document_table.c.listing_seq == listing.seq)
        row = connection.execute(
            select(listing_table, document_table.c.openapi)
            .select_from(joined)
            .where(listing.id == listing_id)
        ).one_or_none()
        if row is None:
            return None
        record = read_listing(
            row,
            auth=self._open_auth(row),
            forward_secret=self._open(row.id, row.forward_sealed, label=forward_label(row.id)),
            openapi=read_document(row.openapi),
        )
        if row.suspended_ms is not None:
            moment = (row.id, row.suspended_ms)
            reasons = find_reasons(connection, AuditAction.SUSPEND_LISTING, [moment])
            record = replace(record, suspended_reason=reasons.get(moment, ""))
        versions = _load_terms(connection, row.seq, since_ms)
        return CatalogEntry(listing=record, versions=versions), len(row.openapi or "")

    def _open_auth(self, row: Row[Any]) -> UpstreamAuth | None:
        if row.auth_sealed is None:
            return None
        label = secret_label(row.id, row.auth_location, row.auth_name)
        value = self._open(row.id, row.auth_sealed, label=label)
        return UpstreamAuth(
            location=row.auth_location, name=row.auth_name, value=None if value is None else value.decode()
        )

    def _open(self, listing_id: str, sealed: bytes | None, *, label: bytes) -> bytes | None:
        """Opens a secret. One that does not open is logged and None; its provider can set another."""
        if sealed is None:
            return None
        try:
            return self._sealer.open(sealed, label=label)
        except StorageUnavailable:
            _log.error("listing_secret_lost", listing=listing_id, advice="tollway gateway secrets")
            return None


def select_suspended() -> Select[Any]:
    """The suspended listings, those of the last suspension first."""
    columns = listing_table.c
    return (
        select(
            *(columns.id, columns.name, columns.provider, columns.suspended_ms, columns.price),
            columns.currency,
        )
        .where(text(IS_SUSPENDED))
        .order_by(columns.suspended_ms.desc(), columns.id)
        .limit(SUSPENDED_MAX)
    )


def _is_plausible(listing_id: ListingId) -> bool:
    """False for a text that cannot be the id of a listing, so that arbitrary paths do not reach the database."""
    return 0 < len(listing_id) <= ID_LENGTH_MAX and listing_id.isprintable()


def secret_label(listing_id: ListingId, location: str, name: str) -> bytes:
    """The label of a listing's secret (associated data of its encryption)."""
    return f"{listing_id}\n{location}\n{name}".encode()


def forward_label(listing_id: str) -> bytes:
    """The label of the secret that signs the forwarded calls of a listing."""
    return f"{listing_id}\nforward".encode()


def _publish(
    connection: Connection, listing: Listing, sealed: _Sealed, heads: HeadTimes, *, now_ms: int
) -> None:
    values = {**listing_values(listing), **sealed}
    seq = connection.scalar(insert(listing_table).values(values).returning(listing_table.c.seq))
    assert seq is not None
    _write_document(connection, seq, listing)
    _begin_terms(connection, seq, 1, listing.current_terms(since_ms=now_ms), heads)
    if is_shown(listing):
        _index_listing(connection, seq, listing)
        mark_vectors(connection, seq, revision=listing.revision, is_shown=True)
    begin_ownership(connection, seq, listing)


def _revise(
    connection: Connection,
    listing: Listing,
    sealed: _Sealed,
    expected_revision: int,
    heads: HeadTimes,
    *,
    events: EventLog,
    now_ms: int,
) -> Revised | RevisionConflict:
    values = {**listing_values(listing), **sealed, "revision": expected_revision + 1}
    columns = listing_table.c
    found = select(columns.seq, columns.revision, columns.is_shown, columns.currency)
    row = connection.execute(found.where(columns.id == listing.id).with_for_update()).one_or_none()
    if row is None:
        return RevisionConflict(revision=0)
    moved = connection.execute(
        update(listing_table)
        .where(listing_table.c.id == listing.id, listing_table.c.revision == expected_revision)
        .values(values)
    )
    if moved.rowcount == 0:
        return RevisionConflict(revision=row.revision)
    connection.execute(delete(document_table).where(document_table.c.listing_seq == row.seq))
    _write_document(connection, row.seq, listing)
    _renew_terms(connection, row.seq, listing, heads, now_ms=now_ms)
    if row.is_shown or is_shown(listing):
        _index_listing(connection, row.seq, listing, was_shown=row.is_shown, currency=row.currency)
        mark_vectors(connection, row.seq, revision=expected_revision + 1, is_shown=is_shown(listing))
    renew_ownership(connection, row.seq, listing, was_shown=row.is_shown, events=events, now_ms=now_ms)
    stored = connection.execute(select(listing_table).where(listing_table.c.seq == row.seq)).one()
    revised = read_listing(
        stored, auth=listing.upstream_auth, forward_secret=listing.forward_secret, openapi=listing.openapi
    )
    # The reason of a suspension stands in its entry, not in this row.
    reason = listing.suspended_reason if revised.suspended_ms is not None else ""
    return Revised(listing=replace(revised, suspended_reason=reason))


def _write_document(connection: Connection, seq: int, listing: Listing) -> None:
    if listing.openapi is not None:
        values = {"listing_seq": seq, "openapi": write_document(listing.openapi)}
        connection.execute(insert(document_table).values(values))


def _renew_terms(
    connection: Connection, seq: int, listing: Listing, heads: HeadTimes, *, now_ms: int
) -> None:
    """Ends the current version of the terms and begins another one when the listing sells other operations or has other prices."""
    terms = terms_table.c
    newest = select(terms_table).where(terms.listing_seq == seq)
    row = connection.execute(newest.order_by(terms.version.desc()).limit(1)).one()
    last = read_terms(row)
    # The clock may step back, but a version must not end before its begin.
    now_ms = max(now_ms, last.since_ms)
    if listing.current_terms(since_ms=last.since_ms) == last:
        return
    ended = update(terms_table).where(terms.listing_seq == seq, terms.version == row.version)
    connection.execute(ended.values(until_ms=now_ms))
    _begin_terms(connection, seq, row.version + 1, listing.current_terms(since_ms=now_ms), heads)


def _begin_terms(connection: Connection, seq: int, version: int, terms: Terms, heads: HeadTimes) -> None:
    values = {"listing_seq": seq, "version": version, **terms_values(terms)}
    connection.execute(insert(terms_table).values(values))
    if heads:
        of_version = {"listing_seq": seq, "version": version}
        rows = [{**of_version, "chain_id": chain_id, "head_s": head_s} for chain_id, head_s in heads.items()]
        connection.execute(insert(payee_head_table), rows)


def _load_terms(connection: Connection, seq: int, since_ms: int) -> tuple[Terms, ...]:
    terms = terms_table.c
    counting = (terms.listing_seq == seq, terms.until_ms.is_(None) | (terms.until_ms >= since_ms))
    rows = connection.execute(select(terms_table).where(*counting).order_by(terms.version.desc()))
    return tuple(read_terms(row) for row in rows)


def _index_listing(
    connection: Connection, seq: int, listing: Listing, *, was_shown: bool = False, currency: str = ""
) -> None:
    """`currency`: that of the listing before, if it was visible. The first statement locks the row of `listing_total`, so that publications and edits at the same time change the
    rows of one word one after the other."""
    moved = is_shown(listing) - was_shown
    connection.execute(update(total_table).values(shown=total_table.c.shown + moved))
    before = _take_features(connection, seq, currency) if was_shown else ()
    after = _write_features(connection, seq, listing) if is_shown(listing) else ()
    gone = change_features(connection, seq, before=before, after=after)
    erase_spellings(connection, gone)


def _write_features(connection: Connection, seq: int, listing: Listing) -> set[str]:
    tags, networks = {fold(tag) for tag in listing.tags}, dict.fromkeys(listing.networks)
    if tags:
        connection.execute(insert(tag_table), [{"tag": tag, "listing_seq": seq} for tag in sorted(tags)])
    if networks:
        rows = [{"chain_id": chain_id, "listing_seq": seq} for chain_id in networks]
        connection.execute(insert(network_table), rows)
    weights = weigh_words(listing)
    write_weights(connection, seq, weights)
    write_spellings(connection, listing)
    return list_features(weights, tags=tags, networks=networks, currency=listing.currency)


def _take_features(connection: Connection, seq: int, currency: str) -> set[str]:
    tags = connection.scalars(
        delete(tag_table).where(tag_table.c.listing_seq == seq).returning(tag_table.c.tag)
    ).all()
    networks = connection.scalars(
        delete(network_table).where(network_table.c.listing_seq == seq).returning(network_table.c.chain_id)
    ).all()
    return list_features(take_weights(connection, seq), tags=tags, networks=networks, currency=currency)


def _find_revision(connection: Connection, listing_id: ListingId) -> int | None:
    return connection.scalar(select(listing_table.c.revision).where(listing_table.c.id == listing_id))


def _search(connection: Connection, query: ListingQuery, proposed: Sequence[Proposed]) -> ListingPage:
    page = find_page(connection, query, proposed)
    return ListingPage(
        found=_read_matches(connection, page.seqs, page.understood),
        total=page.total,
        is_lower_bound=page.is_lower_bound,
        total_all=page.total_all,
        words=tuple(term.word for term in page.understood.terms),
        corrections=page.understood.corrections,
    )


def _read_matches(
    connection: Connection, seqs: Sequence[int], understood: Understood | None = None
) -> tuple[ListingMatch, ...]:
    found = read_listings(connection, seqs)
    terms = () if understood is None else understood.terms
    weights = read_weights(connection, seqs) if terms else {}
    return tuple(
        ListingMatch(
            listing=listing,
            match=matched_fields(weights.get(seq, ""), terms),
            reputation=reputation,
        )
        for seq, (listing, reputation) in ((seq, found[seq]) for seq in seqs)
    )
