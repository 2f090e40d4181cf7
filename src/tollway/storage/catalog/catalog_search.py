"""Searches of the catalog: filters, order, full text and totals as SQL, for both dialects.

`registry` splits, stems and ranks the words of a search, so both databases find the same listings in the same order.

No page reads a whole table. Each condition of a query is a facet: a set of listings in one index, newest first. The smallest facet leads (it
is counted up to the maximum of totals), and the other facets are tested for each of its listings. For a sort of a large set the index
in that order leads, and every facet is tested. A search by relevance ranks at most `RANKED_MAX` candidates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    and_,
    desc,
    exists,
    func,
    literal_column,
    not_,
    or_,
    select,
    true,
    tuple_,
    union_all,
)

from tollway.ids import ChainId
from tollway.registry.catalog import (
    FACET_VALUES_MAX,
    SCORED_IN_TURN,
    TOTAL_EXACT_MAX,
    CatalogFacets,
    ListingQuery,
    NetworkCurrency,
)
from tollway.registry.meaning import Proposed
from tollway.registry.quality import rate_weight, round_up_ppm
from tollway.registry.search_rank import Term, measure_rarity, order_candidates, rank_words
from tollway.registry.search_tokens import fold, query_words
from tollway.storage.catalog.catalog_tables import (
    NO_OPERATIONS,
    listing_table,
    network_table,
    ownership_table,
    quality_table,
    tag_table,
    total_table,
)
from tollway.storage.catalog.catalog_words import Understood, match_terms, read_weights, understand
from tollway.storage.engine.statements import Prepared, Within, hint_index

_INDEX = "ix_listing_"
_SHOWN, _PRICE, _CURRENCY = (_INDEX + name for name in ("shown", "price", "currency"))
_SUCCESS, _VERIFIED = _INDEX + "quality_success", _INDEX + "ownership_verified"
_SCORE = _INDEX + "quality_score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A set of listings that one condition selects. `index`: the index that a walk uses. `by_age`, `by_listing`: the same set newest first, and the same set for the
    test of one listing, when `index` has another order. `few`: the same set for a read when it is known to be small."""

    source: FromClause
    seq: ColumnElement[int]
    where: tuple[ColumnElement[bool], ...]
    index: str | None = None
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


def find_facets(query: ListingQuery) -> list[Facet]:
    """The facets of a query but for its words, one or more without words. Of facets with equal size the first one leads best."""
    facets: list[Facet] = []
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
    is_visible_only = bool(facets) or query.words is not None
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


def _match(terms: Sequence[Term], *, needs_all: bool, is_sqlite: bool) -> Facet:
    source, seq, condition = match_terms(terms, needs_all=needs_all, is_sqlite=is_sqlite)
    if is_sqlite:
        return Facet(source=source, seq=seq, where=(condition,))
    # PostgreSQL's estimates for rare words are poor: without this LIMIT it would walk all listings by age for a few matches.
    fenced = select(seq).where(condition).limit(TOTAL_EXACT_MAX).subquery("matched")
    few = Facet(source=fenced, seq=fenced.c.listing_seq, where=())
    return Facet(source=source, seq=seq, where=(condition,), few=few)


RANKED_MAX = 500
"""How many candidates `relevance` ranks. Of more listings the older ones follow, newest first. Ranking costs some microseconds for each candidate and
term, which is most of the cost of a search for frequent words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hits:
    """The listings that a query finds, before order and page. `lead`: the smallest of `facets`. `lead_size`: its counted size."""

    facets: Sequence[Facet]
    lead: Facet
    lead_size: int
    query: ListingQuery

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage:
    """The row numbers of a page, and what `ListingPage` says of it."""

    seqs: Sequence[int] = ()
    total: int = 0
    is_lower_bound: bool = False
    total_all: int = 0
    understood: Understood = field(default_factory=Understood)


def find_page(connection: Connection, query: ListingQuery, proposed: Sequence[Proposed] = ()) -> FoundPage:
    """`proposed`: listings that a search by relevance finds by meaning, where they are visible and pass the filters."""
    # A search without words finds no listing.
    if query.network_currencies == () or (query.words is not None and not query_words(query.words)):
        return FoundPage()
    search = _begin(connection, query)
    if query.words is None:
        hits = search.find_all()
        total, is_lower_bound = _count(connection, hits)
        if query.start >= total and not is_lower_bound:
            return FoundPage(total=total)
        page = _recommended(connection, hits) if query.is_ranked else _page(connection, hits)
        return FoundPage(seqs=page, total=total, is_lower_bound=is_lower_bound)
    return _find_words(connection, search, proposed if query.is_ranked else ())


def _find_words(connection: Connection, search: "_Search", proposed: Sequence[Proposed]) -> FoundPage:
    query, understood = search.query, search.understood
    with_all = search.find_terms(connection, understood.terms, needs_all=True)
    total_all, is_all_bound = _count(connection, with_all)
    hits, total, is_lower_bound = with_all, total_all, is_all_bound
    if len(understood.terms) > 1 and (query.is_ranked or not total_all):
        hits = search.find_terms(connection, understood.terms, needs_all=False)
        total, is_lower_bound = _count(connection, hits)
    proposed, by_meaning = _select_proposed(connection, search, proposed)
    total += len(by_meaning)
    seqs: Sequence[int] = ()
    if query.start < total or is_lower_bound:
        if query.is_ranked:
            seqs = _ranked_page(connection, search, proposed, by_meaning, with_all=with_all, with_some=hits)
        else:
            seqs = _page(connection, hits)
    return FoundPage(
        seqs=seqs, total=total, is_lower_bound=is_lower_bound, total_all=total_all, understood=understood
    )


def _select_proposed(
    connection: Connection, search: "_Search", proposed: Sequence[Proposed]
) -> tuple[list[Proposed], list[int]]:
    """Those that are visible and pass the filters; and the row numbers of those among them that have none of the terms."""
    if not proposed:
        return [], []
    listing = listing_table.alias("proposed")
    where = (listing.c.seq.in_([one.seq for one in proposed]), listing.c.is_shown == true())
    facets = [Facet(source=listing, seq=listing.c.seq, where=where), *(facet for facet, _ in search.filters)]
    hits = _Hits(facets=facets, lead=facets[0], lead_size=len(proposed), query=search.query)
    terms = search.understood.terms
    matched = _match(terms, needs_all=False, is_sqlite=connection.dialect.name == "sqlite")
    rows = connection.execute(hits.select().add_columns(matched.holds(listing.c.seq)))
    has_terms: dict[int, bool] = {seq: bool(is_matched) for seq, is_matched in rows}
    found = [one for one in proposed if one.seq in has_terms]
    return found, [one.seq for one in found if not has_terms[one.seq]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """A query with the sizes of its filters, and its understood words."""

    query: ListingQuery
    filters: Sequence[tuple[Facet, int]]
    understood: Understood

    def find_all(self) -> _Hits:
        return self._lead_by_smallest(self.filters)

    def find_terms(self, connection: Connection, terms: Sequence[Term], *, needs_all: bool) -> _Hits:
        """The listings of the filters that have all of the terms, or some."""
        matched = _match(terms, needs_all=needs_all, is_sqlite=connection.dialect.name == "sqlite")
        size = dict(zip(self.understood.terms, self.understood.counts, strict=True)).get(terms[0])
        if size is None or len(terms) > 1:
            size = _count_up_to_cap(connection, matched.select())
        return self._lead_by_smallest([(matched, size), *self.filters])

    def _lead_by_smallest(self, sized: Sequence[tuple[Facet, int]]) -> _Hits:
        lead, size = min(sized, key=lambda one: one[1])
        others = [facet for facet, _ in sized if facet is not lead]
        if lead.few is not None and size <= TOTAL_EXACT_MAX:
            lead = lead.few
        return _Hits(facets=[lead, *others], lead=lead, lead_size=size, query=self.query)


def _begin(connection: Connection, query: ListingQuery) -> _Search:
    facets = find_facets(query)
    if _is_unfiltered(query):
        return _Search(query=query, filters=[(facets[0], TOTAL_EXACT_MAX + 1)], understood=Understood())
    filters = [
        (facet, TOTAL_EXACT_MAX + 1 if facet.is_of_all else _count_up_to_cap(connection, facet.select()))
        for facet in facets
    ]
    understood = Understood()
    if query.words is not None:
        understood = understand(connection, query.words, _count_term)
    return _Search(query=query, filters=filters, understood=understood)


def _count_term(connection: Connection, term: Term) -> int:
    matched = _match([term], needs_all=True, is_sqlite=connection.dialect.name == "sqlite")
    return _count_up_to_cap(connection, matched.select())


def count_facets(
    connection: Connection, query: ListingQuery, proposed: Sequence[Proposed] = ()
) -> CatalogFacets:
    """The counts of the listings of a query by tag, currency and network; with words, of those with some of them and of those that are proposed by meaning.
    Like a page, it reads no whole table: it takes the row numbers of the newest `TOTAL_EXACT_MAX` listings, and looks up their tags and networks in the
    narrow tables by listing."""
    found = _select_newest(connection, query, proposed)
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


def _select_newest(
    connection: Connection, query: ListingQuery, proposed: Sequence[Proposed]
) -> tuple[Select[Any], int, bool] | None:
    """Counts the total as `find_page` does. Returns None when the query finds nothing."""
    if query.words is not None and not query_words(query.words):
        return None
    search = _begin(connection, query)
    if query.words is None:
        hits = search.find_all()
    else:
        hits = search.find_terms(connection, search.understood.terms, needs_all=False)
    total, is_lower_bound = _count(connection, hits)
    newest = _newest(hits).limit(TOTAL_EXACT_MAX)
    _, more = _select_proposed(connection, search, proposed)
    if more:
        found, listing = newest.subquery(), listing_table.alias("proposed_only")
        newest = select(
            union_all(select(found.c[0]), select(listing.c.seq).where(listing.c.seq.in_(more))).subquery()
        )
    return newest, total + len(more), is_lower_bound


def _count(connection: Connection, hits: _Hits) -> tuple[int, bool]:
    if _is_unfiltered(hits.query):
        return connection.scalar(select(total_table.c.shown)) or 0, False
    total = hits.lead_size if hits.is_one_set else _count_up_to_cap(connection, hits.select())
    return min(total, TOTAL_EXACT_MAX), total > TOTAL_EXACT_MAX


def _count_up_to_cap(connection: Connection, found: Select[Any]) -> int:
    return _count_up_to(connection, found, TOTAL_EXACT_MAX + 1)


def _count_up_to(connection: Connection, found: Select[Any], most: int) -> int:
    capped = found.order_by(None).limit(most).subquery()
    return connection.scalar(select(func.count()).select_from(capped)) or 0


def _is_unfiltered(query: ListingQuery) -> bool:
    anything = ListingQuery(page=query.page, limit=query.limit, skip=query.skip, sort=query.sort)
    return query == anything


def _page(connection: Connection, hits: _Hits) -> Sequence[int]:
    query = hits.query
    found = _newest(hits) if query.sort == "newest" else _sorted(hits)
    return connection.scalars(found.limit(query.limit).offset(query.start)).all()


def _newest(
    hits: _Hits, condition: Callable[[ColumnElement[int]], ColumnElement[bool]] | None = None
) -> Select[Any]:
    lead, replaced = hits.lead, None
    if lead.by_age is not None and hits.lead_size > TOTAL_EXACT_MAX:
        lead, replaced = lead.by_age, lead
    found = hits.select_by(lead, instead_of=replaced).order_by(desc(lead.seq))
    return found if condition is None else found.where(condition(lead.seq))


def _sorted(hits: _Hits) -> Select[Any]:
    every, order = in_order(hits.query)
    if hits.lead_size > TOTAL_EXACT_MAX or (hits.is_one_set and every.is_within(hits.lead)):
        same = next((facet for facet in hits.facets if every.is_within(facet)), None)
        return hits.select_by(every, instead_of=same).order_by(*order)
    # Few listings: their rows are read and sorted.
    few = hits.select().subquery()
    columns = every.source.c
    return select(columns.seq).join(few, few.c[0] == columns.seq).order_by(*order)


# ---- The order of relevance.


def _ranked_page(
    connection: Connection,
    search: _Search,
    proposed: Sequence[Proposed],
    by_meaning: Sequence[int],
    *,
    with_all: _Hits,
    with_some: _Hits,
) -> Sequence[int]:
    """`by_meaning`: those of the proposed listings that have none of the terms."""
    query = search.query
    candidates = _list_candidates(connection, search, with_all)
    ranked = _rank(connection, search.understood, candidates, proposed)
    page = ranked[query.start : query.start + query.limit]
    missing = query.limit - len(page)
    if missing and len(candidates) == RANKED_MAX:
        by_words = [seq for seq in ranked if seq not in by_meaning]
        start = max(0, query.start - len(ranked))
        page += _list_unranked(connection, by_words, with_some, start=start, limit=missing)
    return page


def _list_unranked(
    connection: Connection, ranked: Sequence[int], hits: _Hits, *, start: int, limit: int
) -> Sequence[int]:
    """The part of a page behind the ranked listings: the others, newest first. `ranked`: all are among `hits`. `start`: so many of the others stand on pages before."""
    rows = connection.scalars(_newest(hits).limit(limit + len(ranked)).offset(start)).all()
    listed = frozenset(ranked)
    others = [seq for seq in rows if seq not in listed]
    # So many of the rows before these are ranked and took no place.
    passed = sum(seq > rows[0] for seq in ranked) if rows else 0
    return others[passed : passed + limit]


def _list_candidates(connection: Connection, search: _Search, with_all: _Hits) -> list[int]:
    """At most `RANKED_MAX` listings: the newest with all terms and, when these are fewer, the newest with each term, the rarest term first."""
    found = dict.fromkeys(connection.scalars(_newest(with_all).limit(RANKED_MAX)))
    understood = search.understood
    terms = [term for term, count in zip(understood.terms, understood.counts, strict=True) if count]
    counts = dict(zip(understood.terms, understood.counts, strict=True))
    for term in sorted(terms, key=counts.__getitem__) if len(understood.terms) > 1 else ():
        if len(found) >= RANKED_MAX:
            break
        hits = search.find_terms(connection, [term], needs_all=True)
        found |= dict.fromkeys(connection.scalars(_newest(hits).limit(RANKED_MAX)))
    return list(found)[:RANKED_MAX]


def _rank(
    connection: Connection, understood: Understood, seqs: Sequence[int], proposed: Sequence[Proposed]
) -> list[int]:
    every = list(dict.fromkeys([*seqs, *(one.seq for one in proposed)]))
    if not every:
        return []
    listings = connection.scalar(select(total_table.c.shown)) or 0
    rarities = [measure_rarity(count, listings) for count in understood.counts]
    factors = {seq: rate_weight(ppm) for seq, ppm in _RATES.fetch(connection, seqs=every)}
    ranks = []
    for seq, weights in (read_weights(connection, seqs) if seqs else {}).items():
        rank = rank_words(weights, understood.terms, rarities)
        ranks.append((seq, rank._replace(score=rank.score * factors.get(seq, 1.0))))
    return order_candidates(
        ranks, [(one.seq, one.similarity * factors.get(one.seq, 1.0)) for one in proposed]
    )


_RATES = Prepared(
    select(quality_table.c.listing_seq, quality_table.c.success_ppm).where(
        Within(quality_table.c.listing_seq, "seqs")
    )
)


# ---- The order without words.


def _recommended(connection: Connection, hits: _Hits) -> Sequence[int]:
    """Two sets without a common listing, with a score and without, each in the order of an index, take their places in turn. A set that ends
    leaves its places to the other."""
    start, end = hits.query.start, hits.query.start + hits.query.limit
    last_scored = _find_last_scored(connection, hits)
    scored, unscored = _scored(hits, last_scored), _unscored(hits, last_scored)
    scored_count = _count_up_to(connection, scored, _scored_places(end))
    unscored_count = _count_up_to(connection, unscored, end - min(_scored_places(end), scored_count))

    def scored_before(place: int) -> int:
        return max(min(_scored_places(place), scored_count), place - unscored_count)

    first, last = scored_before(start), scored_before(end)
    rows = iter(connection.scalars(scored.limit(last - first).offset(first)).all())
    new = iter(connection.scalars(unscored.limit(end - last - start + first).offset(start - first)).all())
    page = (
        next(rows if scored_before(at + 1) > scored_before(at) else new, None) for at in range(start, end)
    )
    return [seq for seq in page if seq is not None]


def _scored_places(place: int) -> int:
    """The places for listings with a score before this one, while both sets last."""
    return place - place // (SCORED_IN_TURN + 1)


SCORED_MAX = 10_000
"""In a large filtered set, so many listings with the highest scores of the catalog have a place by their score. All of them are tested when few
meet the filters."""


def _find_last_scored(connection: Connection, hits: _Hits) -> tuple[int, int] | None:
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


def _scored(hits: _Hits, last_scored: tuple[int, int] | None) -> Select[Any]:
    by_score = hint_index(quality_table, _SCORE)
    columns = by_score.c
    order = (desc(columns.score), desc(columns.listing_seq))
    if hits.lead_size > TOTAL_EXACT_MAX:
        where = _has_place(columns, last_scored)
        every = Facet(source=by_score, seq=columns.listing_seq, where=where, index=_SCORE)
        return hits.select_by(every).order_by(*order)
    # Few listings: their rows are read and sorted.
    few, quality = hits.select().subquery(), quality_table.c
    found = select(quality.listing_seq).join(few, few.c[0] == quality.listing_seq)
    return found.order_by(desc(quality.score), desc(quality.listing_seq))


def _unscored(hits: _Hits, last_scored: tuple[int, int] | None) -> Select[Any]:
    graded = quality_table.alias("graded")
    with_score: Select[Any] = select(literal_column("1")).select_from(graded)
    with_score = with_score.where(*_has_place(graded.c, last_scored))
    return _newest(
        hits, lambda seq: with_score.where(graded.c.listing_seq == seq).limit(1).scalar_subquery().is_(None)
    )
