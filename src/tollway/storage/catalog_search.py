"""Pages of the catalog: filters, order, full text and totals as SQL, for both dialects.

Words are split and folded by `registry/words.py` before they come here, so both databases find the same listings.
Every page starts from the narrowest table that the query names (words, then tag, then network), newest first by the
number that all of them share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Text,
    and_,
    cast,
    column,
    delete,
    desc,
    exists,
    func,
    insert,
    literal,
    literal_column,
    or_,
    select,
    table,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from tollway.registry.catalog import TOTAL_EXACT_MAX, ListingQuery, Market
from tollway.registry.listing import Listing
from tollway.registry.words import fold, query_words, searched_texts, split_words
from tollway.storage.catalog_rows import NO_OPERATIONS
from tollway.storage.catalog_tables import listing_table, network_table, tag_table, total_table

RANKED_MAX = 1_000
"""`relevance` ranks this many of the newest hits; older ones follow, newest first. Ranking costs a microsecond a hit."""

_WEIGHTS = "ADB"  # of name, description, tags: PostgreSQL's classes, A the heaviest
_WORD_POSITION_MAX = 16_383  # of a tsvector

_fts = table(
    "listing_search", column("rowid", BigInteger), column("name"), column("description"), column("tags")
)
_vectors = table("listing_search", column("listing_seq", BigInteger), column("words", TSVECTOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hits:
    """The listings that a query finds, before order and page."""

    select: Select[Any]
    seq: ColumnElement[int]
    rank: ColumnElement[Any] | None


def find_page(connection: Connection, query: ListingQuery) -> tuple[list[int], int, bool]:
    """Numbers of the listings of a page, the total, and whether that is only a lower bound."""
    words = query_words(query.words) if query.words is not None else ()
    # Nothing is measured or verified yet, so nothing meets these filters; nor is anything found by no word.
    if query.min_success_rate is not None or query.verified or (query.words is not None and not words):
        return [], 0, False
    if query.markets == ():
        return [], 0, False
    hits = _find_hits(query, words, is_sqlite=connection.dialect.name == "sqlite")
    total, is_lower_bound = _count(connection, query, hits)
    offset = query.start
    if offset >= total and not is_lower_bound:
        return [], total, False
    if query.sort == "relevance" and hits.rank is not None:
        return _ranked_page(connection, hits, offset, query.limit), total, is_lower_bound
    page = hits.select.order_by(*_order(query, hits)).limit(query.limit).offset(offset)
    return list(connection.scalars(page)), total, is_lower_bound


def _find_hits(query: ListingQuery, words: Sequence[str], *, is_sqlite: bool) -> _Hits:
    """Joins the tables that the query needs, the first of them leading."""
    source: FromClause | None = None
    seq: ColumnElement[int] | None = None
    rank: ColumnElement[Any] | None = None
    conditions: list[ColumnElement[bool]] = []
    if words:
        source, seq, condition, rank = _match_fts(words) if is_sqlite else _match_vectors(words)
        conditions.append(condition)
    for side, wanted in ((tag_table, _wanted_tag(query)), (network_table, _wanted_network(query))):
        if wanted is not None:
            conditions.append(wanted)
            source = side if source is None else source.join(side, side.c.listing_seq == seq)
            seq = side.c.listing_seq if seq is None else seq
    listing = listing_table.c
    if source is None or seq is None:
        source, seq = listing_table, listing.seq
        conditions.append(listing.is_shown == true())
    elif _needs_listing(query):
        source = source.join(listing_table, listing.seq == seq)
    if query.provider is not None:
        conditions.append(listing.provider == bytes(query.provider))
    if query.currency is not None:
        conditions.append(listing.currency == query.currency)
    if query.price_nano_max is not None:
        conditions.append(listing.price_nano <= query.price_nano_max)
    if query.pay_to is not None:
        conditions.append(listing.pay_to == bytes(query.pay_to))
    if query.markets is not None:
        conditions += _sold_in(query.markets, seq)
    return _Hits(select=select(seq).select_from(source).where(*conditions), seq=seq, rank=rank)


def _wanted_tag(query: ListingQuery) -> ColumnElement[bool] | None:
    return None if query.tag is None else tag_table.c.tag == fold(query.tag)


def _wanted_network(query: ListingQuery) -> ColumnElement[bool] | None:
    return None if query.network is None else network_table.c.chain_id == query.network


def _sold_in(markets: Sequence[Market], seq: ColumnElement[int]) -> list[ColumnElement[bool]]:
    """Active, not free, and in a market: one condition a currency, each a look into the narrow table of networks."""
    listing = listing_table.c
    chains: dict[str, list[int]] = {}
    for market in markets:
        chains.setdefault(market.currency, []).append(market.chain_id)
    network = network_table.alias()  # the query may already start from that table
    return [
        listing.status == "active",
        or_(listing.price_nano > 0, listing.operations != NO_OPERATIONS),
        or_(
            *(
                and_(
                    listing.currency == currency,
                    exists().where(network.c.listing_seq == seq, network.c.chain_id.in_(chain_ids)),
                )
                for currency, chain_ids in chains.items()
            )
        ),
    ]


def _needs_listing(query: ListingQuery) -> bool:
    filters = (query.provider, query.currency, query.price_nano_max, query.pay_to, query.markets)
    return query.sort in ("price", "-price", "name") or any(wanted is not None for wanted in filters)


def _match_fts(
    words: Sequence[str],
) -> tuple[FromClause, ColumnElement[int], ColumnElement[bool], ColumnElement[Any]]:
    # Each word is quoted; split words hold no quote. bm25 is smaller for better hits.
    condition: ColumnElement[bool] = literal_column("listing_search").op("MATCH", is_comparison=True)(
        literal(" ".join(f'"{word}"' for word in words), Text)
    )
    rank: ColumnElement[Any] = literal_column("bm25(listing_search, 10.0, 1.0, 5.0)")
    return _fts, _fts.c.rowid, condition, rank


def _match_vectors(
    words: Sequence[str],
) -> tuple[FromClause, ColumnElement[int], ColumnElement[bool], ColumnElement[Any]]:
    wanted = cast(literal(" & ".join(f"'{word}'" for word in words), Text), TSQUERY)
    condition = _vectors.c.words.op("@@", is_comparison=True)(wanted)
    return _vectors, _vectors.c.listing_seq, condition, desc(func.ts_rank(_vectors.c.words, wanted))


def _order(query: ListingQuery, hits: _Hits) -> tuple[ColumnElement[Any], ...]:
    # Ties go the way of the sort, so that one index serves both columns.
    listing = listing_table.c
    if query.sort == "price":
        return listing.price_nano, hits.seq
    if query.sort == "-price":
        return desc(listing.price_nano), desc(hits.seq)
    if query.sort == "name":
        return listing.name_key, hits.seq
    return (desc(hits.seq),)


def _count(connection: Connection, query: ListingQuery, hits: _Hits) -> tuple[int, bool]:
    anything = ListingQuery(
        page=query.page, limit=query.limit, skip=query.skip, sort=query.sort, verified=query.verified
    )
    if query == anything:
        return connection.scalar(select(total_table.c.shown)) or 0, False
    capped = hits.select.limit(TOTAL_EXACT_MAX + 1).subquery()
    total = connection.scalar(select(func.count()).select_from(capped)) or 0
    return min(total, TOTAL_EXACT_MAX), total > TOTAL_EXACT_MAX


def _ranked_page(connection: Connection, hits: _Hits, offset: int, limit: int) -> list[int]:
    """The newest hits by rank, and after them the others by age."""
    assert hits.rank is not None
    newest = hits.select.order_by(desc(hits.seq))
    seqs: list[int] = []
    if offset < RANKED_MAX:
        oldest = connection.scalar(newest.limit(1).offset(RANKED_MAX - 1))
        ranked = hits.select if oldest is None else hits.select.where(hits.seq >= oldest)
        page = (
            ranked.order_by(hits.rank, desc(hits.seq)).limit(min(limit, RANKED_MAX - offset)).offset(offset)
        )
        seqs += connection.scalars(page)
    if offset + limit > RANKED_MAX:
        start = max(offset, RANKED_MAX)
        seqs += connection.scalars(newest.limit(offset + limit - start).offset(start))
    return seqs


def write_search(connection: Connection, seq: int, listing: Listing) -> None:
    """Makes a listing findable by its words."""
    fields = [split_words(field) for field in searched_texts(listing)]
    if connection.dialect.name == "sqlite":
        row = dict(zip(("name", "description", "tags"), (" ".join(words) for words in fields), strict=True))
        connection.execute(insert(_fts).values(rowid=seq, **row))
        return
    statement = text(
        "INSERT INTO listing_search (listing_seq, words) VALUES (:seq, CAST(:words AS tsvector))"
    )
    connection.execute(statement, {"seq": seq, "words": to_vector(fields)})


def erase_search(connection: Connection, seq: int) -> None:
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        connection.execute(delete(_fts).where(_fts.c.rowid == seq))
    else:
        connection.execute(delete(_vectors).where(_vectors.c.listing_seq == seq))


def to_vector(fields: Sequence[Sequence[str]]) -> str:
    """The text form of a tsvector: each word with its position and its field's weight. Split words hold no quote."""
    position = 0
    parts = []
    for words, weight in zip(fields, _WEIGHTS, strict=True):
        for word in words:
            position = min(position + 1, _WORD_POSITION_MAX)
            parts.append(f"'{word}':{position}{weight}")
    return " ".join(parts)
