"""Searches of the catalog without words: filters, order and totals as SQL, for both dialects; and the counts beside a search.

No page reads a whole table. The smallest facet of a query leads (it is counted up to the maximum of totals), and the other facets are tested for each of its
listings. For a sort of a large set the index in that order leads, and every facet is tested. `word_search` finds the listings of a search with words.
"""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    desc,
    func,
    literal_column,
    not_,
    select,
    tuple_,
)

from tollway.ids import Address, ChainId
from tollway.registry.catalog import (
    FACET_VALUES_MAX,
    SCORED_IN_TURN,
    TOTAL_EXACT_MAX,
    CatalogFacets,
    ListingQuery,
    PayeeTerms,
)
from tollway.registry.meaning import Proposed
from tollway.registry.search_tokens import query_words
from tollway.storage.catalog.catalog_facets import (
    Facet,
    Hits,
    count_up_to,
    count_up_to_cap,
    find_facets,
    is_owned_by_another,
    select_in_order,
    select_newest,
)
from tollway.storage.catalog.catalog_tables import (
    listing_table,
    network_table,
    quality_table,
    read_networks,
    tag_table,
    total_table,
)
from tollway.storage.catalog.word_search import FoundPage, WordSearch, find_words
from tollway.storage.engine.statements import hint_index, list_numbers

_SCORE = "ix_listing_quality_score"


def find_page(connection: Connection, query: ListingQuery, proposed: Sequence[Proposed] = ()) -> FoundPage:
    """`proposed`: listings that a search by relevance finds by meaning, where they are visible and pass the filters."""
    # A search without words finds no listing.
    if query.network_currencies == () or (query.words is not None and not query_words(query.words)):
        return FoundPage()
    if query.words is not None:
        return find_words(connection, query, proposed if query.is_ranked else ())
    hits = _find_hits(connection, query)
    total, is_lower_bound = _count(connection, hits)
    if query.start >= total and not is_lower_bound:
        return FoundPage(total=total)
    page = _recommended(connection, hits, total) if query.is_ranked else _page(connection, hits)
    return FoundPage(seqs=page, total=total, is_lower_bound=is_lower_bound)


def _find_hits(connection: Connection, query: ListingQuery) -> Hits:
    """The smallest facet leads."""
    facets = find_facets(query)
    sizes = [
        TOTAL_EXACT_MAX + 1 if facet.is_of_all else count_up_to_cap(connection, facet.select())
        for facet in facets
    ]
    size = min(sizes)
    return Hits(facets=facets, lead=facets[sizes.index(size)], lead_size=size, query=query)


def count_facets(
    connection: Connection, query: ListingQuery, proposed: Sequence[Proposed] = ()
) -> CatalogFacets:
    """The counts of the listings of a query by tag, currency and network; with words, of those with some of them and of those that are proposed by meaning.
    Like a page, it reads no whole table: it takes the row numbers of the newest `TOTAL_EXACT_MAX` listings, and looks up their tags and networks in the
    narrow tables by listing."""
    if query.words is not None and not query_words(query.words):
        return CatalogFacets()
    newest, total, is_lower_bound = _select_newest(connection, query, proposed)
    seqs = newest.cte("found")
    tagged = hint_index(tag_table, "ix_listing_tag_listing")
    networked = hint_index(network_table, "ix_listing_network_listing")
    tags = _count_values(connection, seqs, tagged, tagged.c.tag, tagged.c.listing_seq)
    networks = _count_values(connection, seqs, networked, networked.c.chain_id, networked.c.listing_seq)
    listing = listing_table.c
    return CatalogFacets(
        tags=tags,
        currencies=_count_values(connection, seqs, listing_table, listing.currency, listing.seq),
        networks=tuple((ChainId(chain_id), count) for chain_id, count in networks),
        total=min(total, TOTAL_EXACT_MAX),
        is_lower_bound=is_lower_bound or total > TOTAL_EXACT_MAX,
    )


def _count_values(
    connection: Connection, seqs: Any, source: FromClause, value: ColumnElement[Any], seq: ColumnElement[int]
) -> tuple[tuple[Any, int], ...]:
    count = func.count().label("listings")
    counted = (
        select(value, count)
        .select_from(seqs.join(source, seqs.c[0] == seq))
        .group_by(value)
        .order_by(desc(count), value)
        .limit(FACET_VALUES_MAX)
    )
    return tuple((row[0], int(row[1])) for row in connection.execute(counted))


def _select_newest(
    connection: Connection, query: ListingQuery, proposed: Sequence[Proposed]
) -> tuple[Select[Any], int, bool]:
    """Counts the total as `find_page` does."""
    if query.words is None:
        hits = _find_hits(connection, query)
        return (select_newest(hits).limit(TOTAL_EXACT_MAX), *_count(connection, hits))
    search = WordSearch(connection, query)
    found = search.find_terms(search.understood.terms, needs_all=False)
    total, is_lower_bound = found.count()
    _, more = search.select_proposed(proposed)
    numbers = list_numbers(connection, [*found.list_newest(TOTAL_EXACT_MAX), *more])
    return select(numbers.c[0]), total + len(more), is_lower_bound


def _count(connection: Connection, hits: Hits) -> tuple[int, bool]:
    if _is_unfiltered(hits.query):
        return connection.scalar(select(total_table.c.shown)) or 0, False
    total = hits.lead_size if hits.is_one_set else count_up_to_cap(connection, hits.select())
    return min(total, TOTAL_EXACT_MAX), total > TOTAL_EXACT_MAX


def _is_unfiltered(query: ListingQuery) -> bool:
    anything = ListingQuery(page=query.page, limit=query.limit, skip=query.skip, sort=query.sort)
    return query == anything


def _page(connection: Connection, hits: Hits) -> Sequence[int]:
    query = hits.query
    found = select_newest(hits) if query.sort == "newest" else select_in_order(hits)
    return connection.scalars(found.limit(query.limit).offset(query.start)).all()


# ---- The order without words.


def _recommended(connection: Connection, hits: Hits, total: int) -> Sequence[int]:
    """Two sets without a common listing, with a score and without, each in the order of an index, take their places in turn. A set that ends
    leaves its places to the other. Listings whose endpoint another wallet owns stand behind both, the newest first."""
    start, end = hits.query.start, hits.query.start + hits.query.limit
    last_scored = _find_last_scored(connection, hits)
    scored, unscored = _scored(hits, last_scored), _unscored(hits, last_scored)
    scored_count = count_up_to(connection, scored, _scored_places(end))
    unscored_count = count_up_to(connection, unscored, end - min(_scored_places(end), scored_count))

    def scored_before(place: int) -> int:
        return max(min(_scored_places(place), scored_count), place - unscored_count)

    first, last = scored_before(start), scored_before(end)
    rows = iter(connection.scalars(scored.limit(last - first).offset(first)).all())
    new = iter(connection.scalars(unscored.limit(end - last - start + first).offset(start - first)).all())
    page = (
        next(rows if scored_before(at + 1) > scored_before(at) else new, None) for at in range(start, end)
    )
    found = [seq for seq in page if seq is not None]
    if start + len(found) < min(end, total):
        # Both sets have ended, so their counts are exact.
        before = max(0, start - scored_count - unscored_count)
        owned = select_newest(hits, is_owned_by_another).limit(end - start - len(found)).offset(before)
        found += connection.scalars(owned)
    return found


def _scored_places(place: int) -> int:
    """The places for listings with a score before this one, while both sets last."""
    return place - place // (SCORED_IN_TURN + 1)


SCORED_MAX = 10_000
"""In a large filtered set, so many listings with the highest scores of the catalog have a place by their score. All of them are tested when few
meet the filters."""


def _find_last_scored(connection: Connection, hits: Hits) -> tuple[int, int] | None:
    """Score and row number of the first listing whose score has no place in the list; None where each has."""
    if hits.lead_size <= TOTAL_EXACT_MAX or _is_unfiltered(hits.query):
        return None
    columns = hint_index(quality_table, _SCORE).c
    by_score = select(columns.score, columns.listing_seq).order_by(
        desc(columns.score), desc(columns.listing_seq)
    )
    row = connection.execute(by_score.limit(1).offset(SCORED_MAX)).one_or_none()
    return None if row is None else (row.score, row.listing_seq)


def _has_place(columns: Any, last_scored: tuple[int, int] | None) -> tuple[ColumnElement[bool], ...]:
    return () if last_scored is None else (tuple_(columns.score, columns.listing_seq) > last_scored,)


def _scored(hits: Hits, last_scored: tuple[int, int] | None) -> Select[Any]:
    by_score = hint_index(quality_table, _SCORE)
    columns = by_score.c
    order = (desc(columns.score), desc(columns.listing_seq))
    if hits.lead_size > TOTAL_EXACT_MAX:
        where = (*_has_place(columns, last_scored), not_(is_owned_by_another(columns.listing_seq)))
        every = Facet(source=by_score, seq=columns.listing_seq, where=where, index=_SCORE)
        return hits.select_by(every).order_by(*order)
    # Few listings: their rows are read and sorted.
    few, quality = hits.select().subquery(), quality_table.c
    found = select(quality.listing_seq).join(few, few.c[0] == quality.listing_seq)
    found = found.where(not_(is_owned_by_another(quality.listing_seq)))
    return found.order_by(desc(quality.score), desc(quality.listing_seq))


_GRADED = quality_table.alias("graded")


def _unscored(hits: Hits, last_scored: tuple[int, int] | None) -> Select[Any]:
    with_score: Select[Any] = select(literal_column("1")).select_from(_GRADED)
    with_score = with_score.where(*_has_place(_GRADED.c, last_scored))
    return select_newest(
        hits,
        lambda seq: and_(
            with_score.where(_GRADED.c.listing_seq == seq).limit(1).scalar_subquery().is_(None),
            not_(is_owned_by_another(seq)),
        ),
    )


def find_payee_terms(connection: Connection, *, payees: Collection[Address]) -> frozenset[PayeeTerms]:
    """The terms of these payees, of all listings that are not retired."""
    columns = listing_table.c
    query = (
        select(columns.pay_to, columns.networks, columns.currency)
        .where(columns.pay_to.in_(sorted(map(bytes, payees))), columns.retired_ms.is_(None))
        .distinct()
    )
    return frozenset(
        PayeeTerms(Address(row.pay_to), chain_id, row.currency)
        for row in connection.execute(query)
        for chain_id in read_networks(row.networks)
    )
