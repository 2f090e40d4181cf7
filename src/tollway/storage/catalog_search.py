"""Pages of the catalog: filters, order, full text and totals as SQL, for both dialects.

Words are split and folded by `registry/words.py` before they come here, so both databases find the same listings.

Nothing here reads a table for a page of it. Each thing that a query asks for is a set that an index holds (see
`catalog_facets.py`). The smallest leads, counted as far as totals are; the others are asked about each of its listings.
Only a sort of a large set goes the other way: the index in that order leads, and every set is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, desc, func, insert, select, text

from tollway.registry.catalog import TOTAL_EXACT_MAX, ListingQuery
from tollway.registry.listing import Listing
from tollway.registry.standing import rate_weight
from tollway.registry.words import query_words, rank_fields, searched_texts, split_words
from tollway.storage.catalog_facets import (
    Facet,
    find_facets,
    fts_table,
    in_order,
    is_unverified,
    sold_in,
    vector_table,
)
from tollway.storage.catalog_tables import total_table
from tollway.storage.standing_tables import quality_table

RANKED_MAX = 1_000
"""`relevance` ranks this many of the newest hits; older ones follow, newest first. Ranking costs some ten microseconds a hit."""

_WEIGHTS = "ADB"  # of name, description, tags: PostgreSQL's classes, A the heaviest
_WORD_POSITION_MAX = 16_383  # of a tsvector


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hits:
    """The listings that a query finds, before order and page. `lead` is the smallest of `facets`, and `lead_size` its
    size as far as it was counted. `matched`: those in which the words stand, if the query has any."""

    facets: Sequence[Facet]
    lead: Facet
    lead_size: int
    query: ListingQuery
    matched: Facet | None = None

    def select(self) -> Select[Any]:
        return self.select_by(self.lead)

    def select_by(self, lead: Facet, *, instead_of: Facet | None = None) -> Select[Any]:
        """Their numbers, in no order, with that one leading."""
        others = [
            facet.holds(lead.seq) for facet in self.facets if facet is not lead and facet is not instead_of
        ]
        if self.query.network_currencies is not None:
            others.append(sold_in(self.query.network_currencies, lead.seq))
        if self.query.verified is False:
            others.append(is_unverified(lead.seq))
        return lead.select(*others)

    @property
    def is_one_set(self) -> bool:
        return (
            len(self.facets) == 1
            and self.query.network_currencies is None
            and self.query.verified is not False
        )


def find_page(connection: Connection, query: ListingQuery) -> tuple[list[int], int, bool]:
    """Numbers of the listings of a page, the total, and whether that is only a lower bound."""
    words = query_words(query.words) if query.words is not None else ()
    if query.network_currencies == () or (
        query.words is not None and not words
    ):  # nothing is found by no word
        return [], 0, False
    facets = find_facets(query, words, is_sqlite=connection.dialect.name == "sqlite")
    hits = _begin_with_smallest(connection, query, facets)
    total, is_lower_bound = _count(connection, hits)
    if query.start >= total and not is_lower_bound:
        return [], total, False
    return _page(connection, hits), total, is_lower_bound


def _begin_with_smallest(connection: Connection, query: ListingQuery, facets: Sequence[Facet]) -> _Hits:
    if _is_unfiltered(query):
        return _Hits(facets=facets, lead=facets[0], lead_size=TOTAL_EXACT_MAX + 1, query=query)
    sizes = [
        TOTAL_EXACT_MAX + 1 if facet.is_of_all else _count_up_to_cap(connection, facet.select())
        for facet in facets
    ]
    smallest = min(range(len(facets)), key=sizes.__getitem__)
    size, lead = sizes[smallest], facets[smallest]
    others = [facet for facet in facets if facet is not lead]
    if lead.few is not None and size <= TOTAL_EXACT_MAX:
        lead = lead.few
    matched = next((facet for facet in facets if facet.is_match), None)
    return _Hits(facets=[lead, *others], lead=lead, lead_size=size, query=query, matched=matched)


def _count(connection: Connection, hits: _Hits) -> tuple[int, bool]:
    if _is_unfiltered(hits.query):
        return connection.scalar(select(total_table.c.shown)) or 0, False
    total = hits.lead_size if hits.is_one_set else _count_up_to_cap(connection, hits.select())
    return min(total, TOTAL_EXACT_MAX), total > TOTAL_EXACT_MAX


def _count_up_to_cap(connection: Connection, found: Select[Any]) -> int:
    capped = found.limit(TOTAL_EXACT_MAX + 1).subquery()
    return connection.scalar(select(func.count()).select_from(capped)) or 0


def _is_unfiltered(query: ListingQuery) -> bool:
    anything = ListingQuery(page=query.page, limit=query.limit, skip=query.skip, sort=query.sort)
    return query == anything


def _page(connection: Connection, hits: _Hits) -> list[int]:
    query = hits.query
    if query.sort == "relevance" and hits.matched is not None:
        return _ranked_page(connection, hits, hits.matched)
    found = _newest(hits) if query.sort in ("newest", "relevance") else _sorted(hits)
    return list(connection.scalars(found.limit(query.limit).offset(query.start)))


def _newest(hits: _Hits) -> Select[Any]:
    lead = hits.lead
    if lead.by_age is not None and hits.lead_size > TOTAL_EXACT_MAX:
        return hits.select_by(lead.by_age, instead_of=lead).order_by(desc(lead.by_age.seq))
    return hits.select_by(lead).order_by(desc(lead.seq))


def _sorted(hits: _Hits) -> Select[Any]:
    every, order = in_order(hits.query)
    if hits.lead_size > TOTAL_EXACT_MAX or (hits.is_one_set and every.is_within(hits.lead)):
        same = next((facet for facet in hits.facets if every.is_within(facet)), None)
        return hits.select_by(every, instead_of=same).order_by(*order)
    # Few enough to sort; their rows are read for it.
    few = hits.select().subquery()
    columns = every.source.c
    return select(columns.seq).join(few, few.c[0] == columns.seq).order_by(*order)


def _ranked_page(connection: Connection, hits: _Hits, matched: Facet) -> list[int]:
    """The newest hits by rank, and after them the others by age."""
    offset, limit = hits.query.start, hits.query.limit
    newest = _newest(hits)
    seqs: list[int] = []
    if offset < RANKED_MAX:
        count = min(limit, RANKED_MAX - offset)
        if matched.rank is None:
            ranked = _rank_texts(connection, hits, connection.scalars(newest.limit(RANKED_MAX)).all())
            seqs += ranked[offset : offset + count]
        else:
            found = _rank(connection, hits, matched, newest.limit(RANKED_MAX))
            seqs += connection.scalars(found.limit(count).offset(offset))
    if offset + limit > RANKED_MAX:
        start = max(offset, RANKED_MAX)
        seqs += connection.scalars(newest.limit(offset + limit - start).offset(start))
    return seqs


def _rank(connection: Connection, hits: _Hits, matched: Facet, newest: Select[Any]) -> Select[Any]:
    if hits.is_one_set:
        oldest = connection.scalar(newest.limit(1).offset(RANKED_MAX - 1))
        found = matched.select() if oldest is None else matched.select(matched.seq >= oldest)
    else:
        found = matched.select(matched.seq.in_(list(connection.scalars(newest))))
    assert matched.rank is not None
    return found.order_by(matched.rank, desc(matched.seq))


def _rank_texts(connection: Connection, hits: _Hits, seqs: Sequence[int]) -> list[int]:
    """On SQLite, whose own rank is made anew for each row that is asked for by its number: from all hits of its words."""
    words = query_words(hits.query.words or "")
    quality, fts = quality_table.c, fts_table.c
    graded = select(quality.listing_seq, quality.success_ppm).where(quality.listing_seq.in_(seqs))
    weights = {row.listing_seq: rate_weight(row.success_ppm) for row in connection.execute(graded)}
    texts = select(fts.rowid, fts.name, fts.description, fts.tags).where(fts.rowid.in_(seqs))
    ranks = {
        rowid: rank_fields([field.split() for field in fields], words) * weights.get(rowid, 1.0)
        for rowid, *fields in connection.execute(texts)
    }
    return sorted(seqs, key=lambda seq: (-ranks[seq], -seq))


def write_search(connection: Connection, seq: int, listing: Listing) -> None:
    """Makes a listing findable by its words."""
    fields = [split_words(field) for field in searched_texts(listing)]
    if connection.dialect.name == "sqlite":
        row = dict(zip(("name", "description", "tags"), (" ".join(words) for words in fields), strict=True))
        connection.execute(insert(fts_table).values(rowid=seq, **row))
        return
    statement = text(
        "INSERT INTO listing_search (listing_seq, words) VALUES (:seq, CAST(:words AS tsvector))"
    )
    connection.execute(statement, {"seq": seq, "words": to_vector(fields)})


def erase_search(connection: Connection, seq: int) -> None:
    is_sqlite = connection.dialect.name == "sqlite"
    if is_sqlite:
        connection.execute(delete(fts_table).where(fts_table.c.rowid == seq))
    else:
        connection.execute(delete(vector_table).where(vector_table.c.listing_seq == seq))


def to_vector(fields: Sequence[Sequence[str]]) -> str:
    """The text form of a tsvector: each word with its position and its field's weight. Split words hold no quote."""
    position = 0
    parts = []
    for words, weight in zip(fields, _WEIGHTS, strict=True):
        for word in words:
            position = min(position + 1, _WORD_POSITION_MAX)
            parts.append(f"'{word}':{position}{weight}")
    return " ".join(parts)
