"""The tables of the catalog, of measured quality and of proved ownership, and the parsers of their rows.

This module defines columns; `registry/` decides their meaning. `listing_values` contains neither the upstream secret nor the OpenAPI
document. `listing` has every listing; `listing_tag`, `listing_network`, `listing_search` and `search_block` have only visible listings, so that a
filter walks no others. `registry` splits, stems and weighs words, not the database.
"""

import json
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from tollway.ids import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.listing import ChargeOn, FreeCalls, Listing, Operation, RateLimit, Terms, UpstreamAuth
from tollway.registry.listing_fields import BY_COLUMN, FIELDS, Kind, ListingField
from tollway.registry.metering import Metering, read_metering, write_metering
from tollway.registry.quality import CostShare, Quality, Reputation
from tollway.registry.search_tokens import fold
from tollway.storage.engine.database import add_statement, metadata, partial_index
from tollway.storage.engine.statements import Prepared, Within

_RowId = BigInteger().with_variant(Integer, "sqlite")
_Exact = Text().with_variant(Text(collation="C"), "postgresql")
"""A text that both dialects compare by code point, so that they sort in the same order."""


def _listing_seq(name: str) -> Column[int]:
    key = ForeignKey("listing.seq", name=f"fk_{name}_listing")
    return Column("listing_seq", BigInteger, key, nullable=False)


_COLUMN_TYPES: Mapping[Kind, TypeEngine[Any]] = {
    Kind.TEXT: Text(),
    Kind.LINES: Text(),
    Kind.URL: Text(),
    Kind.CHOICE: String(16),
    Kind.NUMBER: Integer(),
    Kind.WORDS: Text(),
    Kind.PHRASES: Text(),
    Kind.CURRENCY: String(32),
    Kind.ADDRESS: LargeBinary(20),
    Kind.NETWORKS: Text(),
    Kind.OPERATIONS: Text(),
    Kind.METERING: Text(),
}
"""The type of the column of a field. Fields of the other kinds are in several columns, or in a table of their own."""


def _list_columns(field: ListingField) -> Iterator[Column[Any]]:
    if field.kind in _COLUMN_TYPES:
        yield Column(
            field.attribute, _COLUMN_TYPES[field.kind], nullable=field.kind in (Kind.URL, Kind.METERING)
        )
    if field.attribute == "name":
        yield Column("name_key", _Exact, nullable=False)
    elif field.kind is Kind.PRICE:
        yield Column("price", String(40), nullable=False)
        yield Column("price_nano", BigInteger, nullable=False)
    elif field.kind is Kind.SECRET:
        yield Column("auth_location", String(10))
        yield Column("auth_name", Text)
        yield Column("auth_sealed", LargeBinary)
    elif field.kind is Kind.RATE_LIMIT:
        yield Column("rate_calls", Integer)
        yield Column("rate_per_s", Integer)
    elif field.kind is Kind.FREE_CALLS:
        yield from _list_free_columns()


def _list_free_columns() -> Iterator[Column[Any]]:
    yield Column("free_count", Integer)
    yield Column("free_per_s", Integer)


IS_SUSPENDED = "suspended_ms IS NOT NULL AND retired_ms IS NULL"

listing_table = Table(
    "listing",
    metadata,
    Column("seq", _RowId, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False),
    Column("provider", LargeBinary(20), nullable=False),
    *(column for field in BY_COLUMN for column in _list_columns(field)),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("retired_ms", BigInteger),
    Column("suspended_ms", BigInteger),
    Column("is_shown", Boolean, nullable=False),
    Column("forward_sealed", LargeBinary),
    UniqueConstraint("id", name="uq_listing_id"),
    CheckConstraint("price_nano >= 0", name="price_not_negative"),
    CheckConstraint("revision >= 1", name="revision_positive"),
    Index("ix_listing_shown", "is_shown", "seq"),
    Index("ix_listing_name", "is_shown", "name_key", "seq"),
    Index("ix_listing_provider", "provider", "is_shown", "seq"),
    Index("ix_listing_provider_currency", "provider", "currency", "is_shown", "seq"),
    Index("ix_listing_currency", "currency", "is_shown", "seq"),
    Index("ix_listing_price", "currency", "is_shown", "price_nano", "seq"),
    Index("ix_listing_pay_to", "pay_to", "is_shown", "provider"),
    Index("ix_listing_payee", "pay_to", "is_shown", "seq"),
    partial_index("ix_listing_suspended", IS_SUSPENDED, "suspended_ms"),
)

search_table = Table(
    "listing_search",
    metadata,
    Column(
        "listing_seq",
        BigInteger().with_variant(Integer, "sqlite"),
        ForeignKey("listing.seq", name="fk_listing_search_listing"),
        nullable=False,
        autoincrement=False,
    ),
    Column("weights", Text, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_search"),
)
"""The words of each visible listing with their weights (`search_rank.weigh_words`)."""

block_table = Table(
    "search_block",
    metadata,
    Column("feature", _Exact, nullable=False),
    Column("block", BigInteger, nullable=False),
    Column("listings", LargeBinary, nullable=False),
    PrimaryKeyConstraint("feature", "block", name="pk_search_block"),
    sqlite_with_rowid=False,
)
"""The visible listings that have a feature, by block of their row numbers (`search_blocks.py`). No row is empty."""

IS_WORD = "spelling = word"
"""The index and the query have the same literal text."""

spelling_table = Table(
    "search_spelling",
    metadata,
    Column("spelling", _Exact, nullable=False),
    Column("word", _Exact, nullable=False),
    PrimaryKeyConstraint("spelling", "word", name="pk_search_spelling"),
    partial_index("ix_search_spelling_word", IS_WORD, "word"),
    sqlite_with_rowid=False,
)
"""The words of listings, each as itself and without one of its letters (`search_rank.list_spellings`): a misspelled word and the right one have one of
these in common. A word goes with the last listing that has its stem."""

# A separate table, because a page of a hundred listings must not read a hundred documents.
document_table = Table(
    "listing_document",
    metadata,
    _listing_seq("listing_document"),
    Column("openapi", Text, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_document"),
)

terms_table = Table(
    "listing_terms",
    metadata,
    _listing_seq("listing_terms"),
    Column("version", BigInteger, nullable=False),
    Column("price", String(40), nullable=False),
    Column("price_nano", BigInteger, nullable=False),
    Column("currency", String(32), nullable=False),
    Column("networks", Text, nullable=False),
    Column("pay_to", LargeBinary(20), nullable=False),
    Column("operations", Text, nullable=False),
    Column("charge_on", String(10), nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger),
    Column("other_paths", String(10), nullable=False),
    Column("methods", Text, nullable=False),
    Column("described", Text, nullable=False),
    Column("status", String(10), nullable=False),
    Column("metering", Text),
    *_list_free_columns(),
    PrimaryKeyConstraint("listing_seq", "version", name="pk_listing_terms"),
    CheckConstraint("until_ms IS NULL OR until_ms >= since_ms", name="ends_after_it_begins"),
)

# The time of a network's head as a version with a new payTo began, in unix seconds, where a node returned it.
payee_head_table = Table(
    "listing_payee_head",
    metadata,
    _listing_seq("listing_payee_head"),
    Column("version", BigInteger, nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("head_s", BigInteger, nullable=False),
    PrimaryKeyConstraint("listing_seq", "version", "chain_id", name="pk_listing_payee_head"),
)

tag_table = Table(
    "listing_tag",
    metadata,
    Column("tag", Text, nullable=False),
    _listing_seq("listing_tag"),
    PrimaryKeyConstraint("tag", "listing_seq", name="pk_listing_tag"),
    Index("ix_listing_tag_listing", "listing_seq"),
)

network_table = Table(
    "listing_network",
    metadata,
    Column("chain_id", BigInteger, nullable=False),
    _listing_seq("listing_network"),
    PrimaryKeyConstraint("chain_id", "listing_seq", name="pk_listing_network"),
    Index("ix_listing_network_listing", "listing_seq"),
)

# One row with the number of visible listings, so that a total counts no table. `vector_changes`: the number of the last change of `listing_vector`.
total_table = Table(
    "listing_total",
    metadata,
    Column("id", Integer, nullable=False),
    Column("shown", BigInteger, nullable=False),
    Column("vector_changes", BigInteger, nullable=False),
    PrimaryKeyConstraint("id", name="pk_listing_total"),
    CheckConstraint("id = 1 AND shown >= 0", name="one_row"),
)
add_statement(total_table, "INSERT INTO listing_total (id, shown, vector_changes) VALUES (1, 0, 0)")


def lock_total(connection: Connection) -> None:
    """Changes of the index of words, and of the owners of origins, happen one after the other. A transaction locks the row of its listing before."""
    connection.execute(update(total_table).values(shown=total_table.c.shown))


IS_DUE = "due_revision IS NOT NULL"

listing_vector_table = Table(
    "listing_vector",
    metadata,
    _listing_seq("listing_vector"),
    Column("bits", LargeBinary, nullable=False),
    Column("change", BigInteger, nullable=False),
    Column("due_revision", BigInteger),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_vector"),
    Index("ix_listing_vector_change", "change"),
    partial_index("ix_listing_vector_due", IS_DUE, "listing_seq"),
)
"""The vectors of a listing, for search by meaning. `bits`: of all its vectors; empty while it has none, and when it is not visible. `change`: grows with each
change of `bits`, and no lower number is committed later. `due_revision`: the revision of the listing that is to be embedded."""


IS_VERIFIED = "verified_ms IS NOT NULL"
IS_UNPROVED = "verified_ms IS NULL"
"""The indexes and the queries have the same literal texts."""

quality_day_table = Table(
    "listing_quality_day",
    metadata,
    Column("listing_id", String(64), nullable=False),
    Column("day", Integer, nullable=False),
    Column("bucket", Integer, nullable=False),
    Column("calls", BigInteger, nullable=False),
    PrimaryKeyConstraint("listing_id", "day", "bucket", name="pk_listing_quality_day"),
    Index("ix_listing_quality_day_day", "day"),
    sqlite_with_rowid=False,
)
"""Paid calls of a listing by day since the epoch (UTC) and by bucket of their outcome (`registry/quality.py` defines the buckets)."""

quality_table = Table(
    "listing_quality",
    metadata,
    Column(
        "listing_seq",
        BigInteger().with_variant(Integer, "sqlite"),
        ForeignKey("listing.seq", name="fk_listing_quality_listing"),
        nullable=False,
        autoincrement=False,
    ),
    Column("calls", BigInteger, nullable=False),
    Column("success_ppm", Integer, nullable=False),
    Column("p50_ms", BigInteger),
    Column("p95_ms", BigInteger),
    Column("costs", Text),
    Column("day", Integer, nullable=False),
    Column("score", BigInteger, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_quality"),
    Index("ix_listing_quality_success", "success_ppm", "listing_seq"),
    Index("ix_listing_quality_score", "score", "listing_seq"),
    Index("ix_listing_quality_stale", "day", "listing_seq"),
)
"""The sums of the last 30 days as of `day`, for listings with enough calls. `score`: their place in lists without words (`quality.score_listing`). `costs`: of metered operations, as JSON."""

ownership_table = Table(
    "listing_ownership",
    metadata,
    Column(
        "listing_seq",
        BigInteger().with_variant(Integer, "sqlite"),
        ForeignKey("listing.seq", name="fk_listing_ownership_listing"),
        nullable=False,
        autoincrement=False,
    ),
    Column("origin", String(300), nullable=False),
    Column("method", String(20)),
    Column("signer", LargeBinary(20)),
    Column("verified_ms", BigInteger),
    Column("checked_ms", BigInteger),
    Column("failures", Integer, nullable=False),
    Column("owned_by_another", Boolean, nullable=False),
    PrimaryKeyConstraint("listing_seq", name="pk_listing_ownership"),
    partial_index("ix_listing_ownership_origin", IS_VERIFIED, "origin", "listing_seq"),
    partial_index("ix_listing_ownership_unproved", IS_UNPROVED, "origin", "listing_seq"),
    partial_index("ix_listing_ownership_due", IS_VERIFIED, "checked_ms", "listing_seq"),
    partial_index("ix_listing_ownership_verified", IS_VERIFIED, "listing_seq"),
)
"""One row for each listing that is not retired. `checked_ms`: None before the first check. `failures`: the number of checks without a proof since the last
proof. `owned_by_another`: the listing has no proof, and the origin has an owner (`reputation_store.find_owner`) with another wallet. It changes under the lock of
`listing_total`."""


_EMPTY = "[]"
NO_OPERATIONS = _EMPTY


def listing_values(listing: Listing) -> dict[str, Any]:
    """Every column of a listing except its row number and its sealed secrets."""
    auth, limit = listing.upstream_auth, listing.rate_limit
    return {
        "id": listing.id,
        "provider": bytes(listing.provider),
        **{name: write(getattr(listing, name)) for name, write, _ in _STORED},
        "name_key": name_key(listing),
        "price": listing.price.text,
        "price_nano": listing.price.nano,
        "auth_location": auth.location if auth else None,
        "auth_name": auth.name if auth else None,
        "rate_calls": limit.calls if limit else None,
        "rate_per_s": limit.per_s if limit else None,
        **_write_free(listing.free_calls),
        "created_ms": listing.created_ms,
        "updated_ms": listing.updated_ms,
        "revision": listing.revision,
        "retired_ms": listing.retired_ms,
        "suspended_ms": listing.suspended_ms,
        "is_shown": is_shown(listing),
    }


def read_listing(
    row: Any,
    *,
    auth: UpstreamAuth | None,
    openapi: Mapping[str, Any] | None,
    forward_secret: bytes | None = None,
) -> Listing:
    """Parses a row with the columns of the table by name. `auth`, `forward_secret`: the opened secrets, which the row does not contain."""
    limit = None
    if row.rate_calls is not None:
        limit = RateLimit(calls=row.rate_calls, per_s=row.rate_per_s)
    stored = {name: read(getattr(row, name)) for name, _, read in _STORED}
    return Listing(
        id=ListingId(row.id),
        provider=Address(row.provider),
        **{**stored, "charge_on": ChargeOn(row.charge_on)},
        price=Price(text=row.price, nano=row.price_nano),
        upstream_auth=auth,
        openapi=openapi,
        forward_secret=forward_secret,
        rate_limit=limit,
        free_calls=_read_free(row),
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        revision=row.revision,
        retired_ms=row.retired_ms,
        suspended_ms=row.suspended_ms,
    )


_DIGEST = ""
"""In place of a method in `listing_terms.described`: the text beside it is the digest of an operation."""


def terms_values(terms: Terms) -> dict[str, Any]:
    return {
        "price": terms.price.text,
        "price_nano": terms.price.nano,
        "metering": _write_formula(terms.metering),
        "currency": terms.currency,
        "networks": _write(terms.networks),
        "pay_to": bytes(terms.pay_to),
        "operations": _write_operations(terms.operations),
        "other_paths": terms.other_paths,
        "methods": _write(terms.methods),
        "described": _write([*terms.described, *((_DIGEST, digest) for digest in terms.described_digests)]),
        "charge_on": terms.charge_on.value,
        "status": terms.status,
        **_write_free(terms.free_calls),
        "since_ms": terms.since_ms,
        "until_ms": terms.until_ms,
    }


def read_terms(row: Row[Any]) -> Terms:
    described = [(method, path) for method, path in json.loads(row.described)]
    return Terms(
        price=Price(text=row.price, nano=row.price_nano),
        metering=_read_formula(row.metering),
        currency=row.currency,
        networks=read_networks(row.networks),
        pay_to=Address(row.pay_to),
        operations=_read_operations(row.operations),
        other_paths=row.other_paths,
        methods=_read_texts(row.methods),
        described=tuple(one for one in described if one[0] != _DIGEST),
        described_digests=tuple(digest for method, digest in described if method == _DIGEST),
        charge_on=ChargeOn(row.charge_on),
        status=row.status,
        free_calls=_read_free(row),
        since_ms=row.since_ms,
        until_ms=row.until_ms,
    )


def _write_free(free_calls: FreeCalls | None) -> dict[str, int | None]:
    if free_calls is None:
        return {"free_count": None, "free_per_s": None}
    return {"free_count": free_calls.count, "free_per_s": free_calls.per_s}


def _read_free(row: Any) -> FreeCalls | None:
    return None if row.free_count is None else FreeCalls(count=row.free_count, per_s=row.free_per_s)


def is_shown(listing: Listing) -> bool:
    """True when searches return the listing: also a paused one, but no retired or suspended one."""
    return listing.retired_ms is None and listing.suspended_ms is None


def name_key(listing: Listing) -> str:
    return fold(listing.name)


def write_document(openapi: Mapping[str, Any]) -> str:
    return json.dumps(openapi, ensure_ascii=False, separators=(",", ":"))


def read_document(text: str | None) -> Mapping[str, Any] | None:
    return None if text is None else cast(dict[str, Any], json.loads(text))


def _write(values: Sequence[object]) -> str:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _read_texts(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text)) if text != _EMPTY else ()


def read_networks(text: str) -> tuple[ChainId, ...]:
    return tuple(ChainId(number) for number in json.loads(text))


def _write_operations(operations: Sequence[Operation]) -> str:
    """The formula of a metered operation stands behind its price."""
    return _write(
        [
            [op.method, op.path, op.price.text, op.price.nano]
            + ([] if op.metering is None else [write_metering(op.metering)])
            for op in operations
        ]
    )


def _read_operations(text: str) -> tuple[Operation, ...]:
    if text == NO_OPERATIONS:
        return ()
    return tuple(
        Operation(
            method=method,
            path=path,
            price=Price(text=price, nano=nano),
            metering=read_metering(formula[0]) if formula else None,
        )
        for method, path, price, nano, *formula in json.loads(text)
    )


def _write_formula(metering: Metering | None) -> str | None:
    return (
        None
        if metering is None
        else json.dumps(write_metering(metering), ensure_ascii=False, separators=(",", ":"))
    )


def _read_formula(text: str | None) -> Metering | None:
    return None if text is None else read_metering(json.loads(text))


def _as_it_is(value: Any) -> Any:
    return value


_CODECS: Mapping[Kind, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    Kind.CHOICE: (str, _as_it_is),
    Kind.WORDS: (_write, _read_texts),
    Kind.PHRASES: (_write, _read_texts),
    Kind.ADDRESS: (bytes, Address),
    Kind.NETWORKS: (_write, read_networks),
    Kind.OPERATIONS: (_write_operations, _read_operations),
    Kind.METERING: (_write_formula, _read_formula),
}
_STORED = tuple(
    (field.attribute, *_CODECS.get(field.kind, (_as_it_is, _as_it_is)))
    for field in FIELDS
    if field.kind in _COLUMN_TYPES
)
"""Attribute and column of each field in one column, what writes its value, and what reads it."""

_REPUTED = listing_table.outerjoin(
    quality_table, quality_table.c.listing_seq == listing_table.c.seq
).outerjoin(ownership_table, ownership_table.c.listing_seq == listing_table.c.seq)
_REPUTATION_COLUMNS = (
    *(quality_table.c[name] for name in ("calls", "success_ppm", "p50_ms", "p95_ms", "costs")),
    *(ownership_table.c[name] for name in ("verified_ms", "owned_by_another")),
)
_PUBLIC_COLUMNS = tuple(
    one for one in listing_table.c if not one.name.startswith(("auth_", "forward_sealed"))
)
_ListingRow = namedtuple("_ListingRow", [one.name for one in _PUBLIC_COLUMNS])  # type: ignore[misc]  # the names are those of the table
_READ_LISTINGS = Prepared(
    select(*_PUBLIC_COLUMNS, *_REPUTATION_COLUMNS)
    .select_from(_REPUTED)
    .where(Within(listing_table.c.seq, "seqs"))
)
_READ_REPUTATION = Prepared(
    select(*_REPUTATION_COLUMNS).select_from(_REPUTED).where(listing_table.c.id == bindparam("id"))
)


def read_listings(connection: Connection, seqs: Sequence[int]) -> dict[int, tuple[Listing, Reputation]]:
    """The listings with these row numbers and their reputations, without secrets and documents, with one statement."""
    if not seqs:
        return {}
    width, found = len(_PUBLIC_COLUMNS), {}
    for values in _READ_LISTINGS.fetch(connection, seqs=list(seqs)):
        row = _ListingRow._make(values[:width])
        found[values[0]] = read_listing(row, auth=None, openapi=None), _read_reputation(values[width:])
    return found


def find_reputation(connection: Connection, listing_id: ListingId) -> Reputation | None:
    rows = _READ_REPUTATION.fetch(connection, id=listing_id)
    return _read_reputation(rows[0]) if rows else None


def _read_reputation(values: Sequence[Any]) -> Reputation:
    calls, success_ppm, p50_ms, p95_ms, costs, verified_ms, owned_by_another = values
    quality = None
    if calls is not None:
        quality = Quality(
            calls=calls, success_ppm=success_ppm, p50_ms=p50_ms, p95_ms=p95_ms, costs=_read_costs(costs)
        )
    return Reputation(quality=quality, verified_ms=verified_ms, is_owned_by_another=bool(owned_by_another))


def write_costs(costs: Sequence[CostShare]) -> str | None:
    """The column `costs`: operation, calls, mean and p95 of each; None without any."""
    rows = [(one.operation, one.calls, one.mean_percent, one.p95_percent) for one in costs]
    return json.dumps(rows, separators=(",", ":")) if rows else None


def _read_costs(text: str | None) -> tuple[CostShare, ...]:
    rows = [] if text is None else json.loads(text)
    return tuple(
        CostShare(operation=operation, calls=calls, mean_percent=mean, p95_percent=p95)
        for operation, calls, mean, p95 in rows
    )
