"""Searches of the catalog: filters, order, full text and totals as SQL, for both dialects.

`registry` splits and folds the words of a search, so both databases find the same listings.

No page reads a whole table. Each condition of a query is a facet: a set of listings in one index, newest first. The smallest facet leads (it
is counted up to the maximum of totals), and the other facets are tested for each of its listings. For a sort of a large set the index
in that order leads, and every facet is tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Double,
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
    not_,
    or_,
    select,
    table,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from tollway.ids import ChainId
from tollway.registry.catalog import (
    FACET_VALUES_MAX,
    TOTAL_EXACT_MAX,
    CatalogFacets,
    ListingQuery,
    NetworkCurrency,
)
from tollway.registry.listing import Listing
from tollway.registry.quality import RANK_WEIGHT_MIN, RANK_WEIGHT_SPAN, rate_weight, round_up_ppm
from tollway.registry.search_tokens import fold, query_words, rank_fields, searched_texts, split_words
from tollway.storage.catalog.catalog_tables import (
    NO_OPERATIONS,
    listing_table,
    network_table,
    ownership_table,
    quality_table,
    tag_table,
    total_table,
)
from tollway.storage.engine.statements import hint_index

_INDEX = "ix_listing_"
_SHOWN, _PRICE, _CURRENCY = (_INDEX + name for name in ("shown", "price", "currency"))
_SUCCESS, _VERIFIED = _INDEX + "quality_success", _INDEX + "ownership_verified"

fts_table = table(
    "listing_search", column("rowid", BigInteger), column("name"), column("description"), column("tags")
)
vector_table = table("listing_search", column("listing_seq", BigInteger), column("words", TSVECTOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A set of listings that one condition selects. `index`: the index that a walk uses. `is_match`: the set of the full-text search. `rank`: the
    order of relevance, when the database computes it. `by_age`, `by_listing`: the same set newest first, and the same set for the
    test of one listing, when `index` has another order. `few`: the same set for a read when it is known to be small."""

    source: FromClause
    seq: ColumnElement[int]
    where: tuple[ColumnElement[bool], ...]
    index: str | None = None
    is_match: bool = False
    rank: ColumnElement[Any] | None = None
    by_age: "Facet | None" = None
    by_listing: "Facet | None" = None
    few: "Facet | None" = None

    def select(self, *others: ColumnElement[bool]) -> Select[Any]:
        return select(self.seq).select_from(self.source).where(*self.where, *others)

    def holds(self, seq: ColumnElement[int]) -> ColumnElement[bool]:
        """A condition: a listing of another facet is in this facet too. A scalar subquery for each listing, because PostgreSQL may turn an EXISTS
        into a read of the whole set."""
        by_listing = self.by_listing or self
        exists_query: Select[Any] = select(literal_column("1")).select_from(by_listing.source)
        return (
            exists_query.where(*by_listing.where, by_listing.seq == seq)
            .limit(1)
            .scalar_subquery()
            .is_not(None)
        )

    @property
    def is_of_all(self) -> bool:
        return self.index == _SHOWN

    def is_within(self, other: "Facet") -> bool:
        return other.is_of_all or (self.index == _PRICE and other.index in (_PRICE, _CURRENCY))


def find_facets(query: ListingQuery, words: Sequence[str], *, is_sqlite: bool) -> list[Facet]:
    """The facets of a query, one or more. Of facets with equal size the first one leads best."""
    facets: list[Facet] = []
    if words:
        facets.append(_match_fts(words) if is_sqlite else _match_vectors(words))
    if query.tag is not None:
        tags = tag_table.alias("tagged")
        facets.append(Facet(source=tags, seq=tags.c.listing_seq, where=(tags.c.tag == fold(query.tag),)))
    if query.network is not None:
        nets = network_table.alias("networked")
        where = (nets.c.chain_id == query.network,)
        facets.append(Facet(source=nets, seq=nets.c.listing_seq, where=where))
    is_of_currency = query.currency is not None and query.price_nano_max is None
    # Each of the two sets may be large and their intersection small.
    if query.provider is not None and is_of_currency:
        both = {"provider": bytes(query.provider), "currency": query.currency}
        facets.append(_shown("provider_currency", **both))
    elif query.provider is not None:
        facets.append(_shown("provider", provider=bytes(query.provider)))
    if query.pay_to is not None:
        facets.append(_shown("payee", pay_to=bytes(query.pay_to)))
    if query.currency is not None and query.price_nano_max is not None:
        facets.append(_priced(query))
    elif query.currency is not None and query.provider is None:
        facets.append(_shown("currency", currency=query.currency))
    # The facets below also contain listings that are not visible.
    is_visible_only = bool(facets)
    if query.min_success_rate is not None:
        facets.append(_succeeding(query.min_success_rate))
    if query.verified:
        facets.append(_verified())
    return facets if is_visible_only else [*facets, _shown("shown")]


def in_order(query: ListingQuery) -> tuple[Facet, tuple[ColumnElement[Any], ...]]:
    """The facet of all listings in the order of a sort by name or price, and that order. Ties have the direction of the sort, so that one index
    serves both columns."""
    if query.sort == "name":
        every = _shown("name")
        columns = every.source.c
        return every, (columns.name_key, columns.seq)
    every = _priced(query)
    columns = every.source.c
    if query.sort == "-price":
        return every, (desc(columns.price_nano), desc(columns.seq))
    return every, (columns.price_nano, columns.seq)


def sold_in(network_currencies: Sequence[NetworkCurrency], seq: ColumnElement[int]) -> ColumnElement[bool]:
    """A condition: the listing is active, not free, and sold in one of these currencies on one of its networks. One condition for each currency,
    each a search in the narrow table of networks."""
    sold, network = listing_table.alias("sold"), network_table.alias("sold_on")
    chains: dict[str, list[int]] = {}
    for network_currency in network_currencies:
        chains.setdefault(network_currency.currency, []).append(network_currency.chain_id)
    is_there = or_(
        *(
            and_(
                sold.c.currency == currency,
                exists().where(network.c.listing_seq == sold.c.seq, network.c.chain_id.in_(chain_ids)),
            )
            for currency, chain_ids in chains.items()
        )
    )
    costs = or_(sold.c.price_nano > 0, sold.c.operations != NO_OPERATIONS)
    exists_query: Select[Any] = select(literal_column("1")).select_from(sold)
    exists_query = exists_query.where(sold.c.seq == seq, sold.c.status == "active", costs, is_there)
    return exists_query.limit(1).scalar_subquery().is_not(None)


def is_unverified(seq: ColumnElement[int]) -> ColumnElement[bool]:
    return not_(_verified().holds(seq))


def _priced(query: ListingQuery) -> Facet:
    """The facet of a currency, with a maximum price if the query has one, ordered by price."""
    price = _shown("price", currency=query.currency)
    most = query.price_nano_max
    if most is None:
        return price

    def cheap(facet: Facet) -> Facet:
        columns = facet.source.c
        return replace(facet, where=(*facet.where, columns.price_nano <= most))

    alias = listing_table.alias("priced_listing")
    where = (alias.c.currency == query.currency, alias.c.is_shown == true())
    by_listing = cheap(Facet(source=alias, seq=alias.c.seq, where=where))
    return replace(
        cheap(price), by_age=cheap(_shown("currency", currency=query.currency)), by_listing=by_listing
    )


def _shown(name: str, **equal: object) -> Facet:
    index = _INDEX + name
    source = hint_index(listing_table, index)
    columns = source.c
    where = tuple(columns[key] == value for key, value in equal.items())
    return Facet(source=source, seq=columns.seq, where=(*where, columns.is_shown == true()), index=index)


def _succeeding(rate: float) -> Facet:
    """Contains listings that are not visible."""
    least = round_up_ppm(rate)

    def good(source: FromClause) -> Facet:
        # The `+ 0` keeps SQLite from the index by rate; it must use the index by listing.
        return Facet(source=source, seq=source.c.listing_seq, where=(source.c.success_ppm + 0 >= least,))

    by_rate = hint_index(quality_table, _SUCCESS)
    return Facet(
        source=by_rate,
        seq=by_rate.c.listing_seq,
        where=(by_rate.c.success_ppm >= least,),
        index=_SUCCESS,
        by_age=good(quality_table.alias("measured")),
        by_listing=good(quality_table.alias("asked_quality")),
    )


def _verified() -> Facet:
    """Contains listings that are not visible."""
    source = hint_index(ownership_table, _VERIFIED)
    where = (source.c.verified_ms.is_not(None),)
    return Facet(source=source, seq=source.c.listing_seq, where=where, index=_VERIFIED)


def _weigh(seq: ColumnElement[int]) -> ColumnElement[float]:
    of = quality_table.alias("weighed")
    rate = of.c.success_ppm / literal(1_000_000.0, Double)
    factor = select(literal(RANK_WEIGHT_MIN, Double) + literal(RANK_WEIGHT_SPAN, Double) * rate * rate)
    return func.coalesce(factor.where(of.c.listing_seq == seq).scalar_subquery(), literal(1.0, Double))


def _match_fts(words: Sequence[str]) -> Facet:
    # Each word is quoted; split words contain no quotes.
    wanted = literal(" ".join(f'"{word}"' for word in words), Text)
    condition: ColumnElement[bool] = literal_column("listing_search").op("MATCH", is_comparison=True)(wanted)
    return Facet(source=fts_table, seq=fts_table.c.rowid, where=(condition,), is_match=True)


def _match_vectors(words: Sequence[str]) -> Facet:
    wanted = cast(literal(" & ".join(f"'{word}'" for word in words), Text), TSQUERY)
    columns = vector_table.c
    condition = columns.words.op("@@", is_comparison=True)(wanted)
    rank = desc(func.ts_rank(columns.words, wanted) * _weigh(columns.listing_seq))
    # PostgreSQL's estimates for rare words are poor: without this LIMIT it would walk all listings by age for a few matches.
    fenced = select(columns.listing_seq).where(condition).limit(TOTAL_EXACT_MAX).subquery("matched")
    few = Facet(source=fenced, seq=fenced.c.listing_seq, where=())
    return Facet(
        source=vector_table,
        seq=columns.listing_seq,
        where=(condition,),
        is_match=True,
        rank=rank,
        few=few,
    )


RANKED_MAX = 1_000
"""How many of the newest matches `relevance` ranks; older ones follow, newest first. Ranking costs some ten microseconds for each match."""

# PostgreSQL's weight classes of name, description and tags; A is the heaviest.
_WEIGHTS = "ADB"
# The largest position in a tsvector.
_WORD_POSITION_MAX = 16_383


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hits:
    """The listings that a query finds, before order and page. `lead`: the smallest of `facets`. `lead_size`: its counted size. `matched`: the facet
    of the full-text search, None without words."""

    facets: Sequence[Facet]
    lead: Facet
    lead_size: int
    query: ListingQuery
    matched: Facet | None = None

    def select(self) -> Select[Any]:
        return self.select_by(self.lead)

    def select_by(self, lead: Facet, *, instead_of: Facet | None = None) -> Select[Any]:
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
    words = query_words(query.words) if query.words is not None else ()
    # A search without words finds no listing.
    if query.network_currencies == () or (query.words is not None and not words):
        return [], 0, False
    facets = find_facets(query, words, is_sqlite=connection.dialect.name == "sqlite")
    hits = _begin_with_smallest(connection, query, facets)
    total, is_lower_bound = _count(connection, hits)
    if query.start >= total and not is_lower_bound:
        return [], total, False
    return _page(connection, hits), total, is_lower_bound


def count_facets(connection: Connection, query: ListingQuery) -> CatalogFacets:
    """The counts of the listings of a query by tag, currency and network. Like a page, it reads no whole table: it takes the row numbers of the newest
    `TOTAL_EXACT_MAX` listings, and looks up their tags and networks in the narrow tables by listing."""
    found = _select_newest(connection, query)
    if found is None:
        return CatalogFacets()
    newest, total, is_lower_bound = found
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


def _select_newest(connection: Connection, query: ListingQuery) -> tuple[Select[Any], int, bool] | None:
    """Counts the total as `find_page` does. Returns None when the query finds nothing."""
    words = query_words(query.words) if query.words is not None else ()
    if query.words is not None and not words:
        return None
    facets = find_facets(query, words, is_sqlite=connection.dialect.name == "sqlite")
    hits = _begin_with_smallest(connection, query, facets)
    total, is_lower_bound = _count(connection, hits)
    return _newest(hits).limit(TOTAL_EXACT_MAX), total, is_lower_bound


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
    # Few listings: their rows are read and sorted.
    few = hits.select().subquery()
    columns = every.source.c
    return select(columns.seq).join(few, few.c[0] == columns.seq).order_by(*order)


def _ranked_page(connection: Connection, hits: _Hits, matched: Facet) -> list[int]:
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
    """Used with SQLite: its own rank is computed from all matches again for each row that is selected by its number."""
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
    """The text of a tsvector: each word with its position and the weight of its field. Split words contain no quotes."""
    position = 0
    parts = []
    for words, weight in zip(fields, _WEIGHTS, strict=True):
        for word in words:
            position = min(position + 1, _WORD_POSITION_MAX)
            parts.append(f"'{word}':{position}{weight}")
    return " ".join(parts)
