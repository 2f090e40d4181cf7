"""Searches of the catalog with words: which listings have all of them or some, and in which order.

The words and most filters are features of the index (`search_blocks`), and are joined here, block by block, the newest first. Another filter with few listings is read
and joined as well; one with many is tested in SQL for the listings that have the words. A search by relevance ranks at most `RANKED_MAX` candidates.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from sqlalchemy import ColumnElement, Connection, func, or_, select

from tollway.registry.catalog import TOTAL_EXACT_MAX, ListingQuery
from tollway.registry.meaning import Proposed
from tollway.registry.quality import rate_weight
from tollway.registry.search_rank import Term, matched_fields, measure_rarity, order_candidates, rank_words
from tollway.storage.catalog.catalog_facets import (
    Facet,
    Hits,
    count_up_to_cap,
    find_facets,
    is_unverified,
    order_columns,
    select_in_order,
    sold_in,
)
from tollway.storage.catalog.catalog_tables import (
    listing_table,
    ownership_table,
    quality_table,
    search_table,
    total_table,
)
from tollway.storage.catalog.catalog_words import Understood, read_weights, understand
from tollway.storage.catalog.search_blocks import Bits, FeatureBlocks, collect_blocks, list_newest
from tollway.storage.engine.statements import Prepared, Within, list_numbers

RANKED_MAX = 500
"""How many candidates `relevance` ranks. Of more listings the older ones follow, newest first. Ranking costs some microseconds for each candidate and
term, which is most of the cost of a search for frequent words."""

TESTED_MIN, TESTED_MAX = 500, 16_000
"""How many listings the first statement of a search tests with the large filters, and the largest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPage:
    """The row numbers of a page, and what `ListingPage` says of it."""

    seqs: Sequence[int] = ()
    total: int = 0
    is_lower_bound: bool = False
    total_all: int = 0
    understood: Understood = field(default_factory=Understood)


def find_words(connection: Connection, query: ListingQuery, proposed: Sequence[Proposed]) -> FoundPage:
    """The query has words. `proposed`: listings that are found by meaning, where they are visible and pass the filters."""
    search = WordSearch(connection, query)
    understood = search.understood
    hits = with_all = search.find_terms(understood.terms, needs_all=True)
    total, is_lower_bound = with_all.count()
    total_all = total
    if len(understood.terms) > 1 and (query.is_ranked or not total_all):
        hits = search.find_terms(understood.terms, needs_all=False)
        total, is_lower_bound = hits.count()
    proposed, by_meaning = search.select_proposed(proposed)
    total += len(by_meaning)
    seqs: Sequence[int] = ()
    if query.start < total or is_lower_bound:
        if query.is_ranked:
            seqs = _ranked_page(search, proposed, by_meaning, with_all=with_all, with_some=hits)
        elif query.sort == "newest":
            seqs = hits.list_newest(query.limit, skip=query.start)
        else:
            seqs = _sorted_page(search, hits, total=None if is_lower_bound else total)
    return FoundPage(
        seqs=seqs, total=total, is_lower_bound=is_lower_bound, total_all=total_all, understood=understood
    )


class WordSearch:
    """A query with words: its understood terms and its filters. `features`, `few` and `tested` are the filters by the way in which they are joined."""

    def __init__(self, connection: Connection, query: ListingQuery) -> None:
        self.connection = connection
        self.query = query
        self.blocks = FeatureBlocks(connection)
        self.features: list[tuple[str, ...]] = []
        self.few: list[Mapping[int, Bits]] = []
        self.tested: list[Facet] = []
        self.filters = find_facets(query)
        for facet in self.filters:
            if facet.features:
                self.features.append(facet.features)
                self.tested += [] if facet.is_exact else [facet]
            elif count_up_to_cap(connection, facet.select()) > TOTAL_EXACT_MAX:
                self.tested.append(facet)
            else:
                self.few.append(collect_blocks(connection.scalars(facet.select())))
        assert query.words is not None
        self.understood = understand(connection, query.words, self._count_terms)

    def _count_terms(self, terms: Sequence[Term]) -> list[int]:
        """Without the filters."""
        counts = dict.fromkeys(terms, 0)
        for window in self.blocks.windows:
            counted = [term for term, count in counts.items() if count <= TOTAL_EXACT_MAX]
            self.blocks.read(_list_stems(counted), window)
            for term in counted:
                counts[term] += sum(map(int.bit_count, self.blocks.select(term.stems, window).values()))
        return [min(counts[term], TOTAL_EXACT_MAX + 1) for term in terms]

    def find_terms(self, terms: Sequence[Term], *, needs_all: bool) -> "WordHits":
        return WordHits(self, terms, needs_all=needs_all)

    def order_by_rarity(self, terms: Sequence[Term]) -> list[Term]:
        counts = dict(zip(self.understood.terms, self.understood.counts, strict=True))
        return sorted(terms, key=counts.__getitem__)

    def select_proposed(self, proposed: Sequence[Proposed]) -> tuple[list[Proposed], list[int]]:
        """Those that are visible and pass the filters; and the row numbers of those among them that have none of the terms."""
        # Only visible listings have weights.
        weights = read_weights(self.connection, [one.seq for one in proposed])
        passed = self.test(list(weights), self.filters)
        found = [one for one in proposed if one.seq in passed]
        terms = self.understood.terms
        return found, [one.seq for one in found if not matched_fields(weights[one.seq], terms)]

    @property
    def has_tests(self) -> bool:
        return bool(self.tested) or self.query.network_currencies is not None or self.query.verified is False

    def test(self, seqs: Sequence[int], facets: Sequence[Facet]) -> frozenset[int]:
        """Those of the listings that are in each facet, and pass the filters that are no facets."""
        numbers = list_numbers(self.connection, seqs)
        number = numbers.c[0]
        conditions: list[ColumnElement[bool]] = [facet.holds(number) for facet in facets]
        if self.query.network_currencies is not None:
            conditions.append(sold_in(self.query.network_currencies, number))
        if self.query.verified is False:
            conditions.append(is_unverified(number))
        if not conditions or not seqs:
            return frozenset(seqs)
        return frozenset(self.connection.scalars(select(number).select_from(numbers).where(*conditions)))


class WordHits:
    """The listings with all of the terms, or with some, that pass the filters of the search: newest first."""

    def __init__(self, search: WordSearch, terms: Sequence[Term], *, needs_all: bool) -> None:
        self._search = search
        self._terms = search.order_by_rarity(terms)
        self._needs_all = needs_all
        self._passed: list[int] = []
        self._tests = self._test()

    def count(self) -> tuple[int, bool]:
        """Their number up to `TOTAL_EXACT_MAX`, and whether there are more."""
        if self._search.has_tests:
            total = len(self._list_passed(TOTAL_EXACT_MAX + 1))
        else:
            total = 0
            for _, bits in self._walk():
                total += bits.bit_count()
                if total > TOTAL_EXACT_MAX:
                    break
        return min(total, TOTAL_EXACT_MAX), total > TOTAL_EXACT_MAX

    def list_newest(self, limit: int, *, skip: int = 0) -> list[int]:
        """The row numbers of at most `limit` of them."""
        if self._search.has_tests:
            return self._list_passed(skip + limit)[skip:]
        return list(islice(list_newest(self._walk(), skip=skip), limit))

    def _walk(self) -> Iterator[tuple[int, Bits]]:
        """The newest block first. Without the filters that are tested in SQL."""
        groups: list[Collection[str]] = [term.stems for term in self._terms]
        if not self._needs_all:
            groups = [_list_stems(self._terms)]
        groups += self._search.features
        for window in self._search.blocks.windows:
            yield from sorted(self._join(window, groups).items(), reverse=True)

    def _join(self, window: range, groups: Sequence[Collection[str]]) -> dict[int, Bits]:
        """The listings with some feature of each group. The first group is read for the window, each other one for the blocks that are left."""
        found: dict[int, Bits] | None = None
        for few in self._search.few:
            of_window = {block: few[block] for block in window if block in few}
            found = of_window if found is None else _intersect(found, of_window)
        for group in groups:
            listings = self._search.blocks.select(group, window, found)
            found = listings if found is None else _intersect(found, listings)
        return found or {}

    def _list_passed(self, most: int) -> list[int]:
        while len(self._passed) < most and (passed := next(self._tests, None)) is not None:
            self._passed += passed
        return self._passed[:most]

    def _test(self) -> Iterator[list[int]]:
        """Those that pass the filters in SQL, each statement testing twice as many as the one before."""
        seqs, size = list_newest(self._walk()), TESTED_MIN
        while tested := list(islice(seqs, size)):
            passed = self._search.test(tested, self._search.tested)
            yield [seq for seq in tested if seq in passed]
            size = min(2 * size, TESTED_MAX)

    def to_facet(self) -> Facet:
        """The listings with the words, for the test of one listing."""
        connection = self._search.connection
        weights = search_table.alias("worded")
        position = func.instr if connection.dialect.name == "sqlite" else func.strpos

        def has(term: Term) -> ColumnElement[bool]:
            return or_(*(position(weights.c.weights, f" {one}=") > 0 for one in term.stems))

        has_terms = [has(term) for term in self._terms]
        where = has_terms if self._needs_all else [or_(*has_terms)]
        return Facet(source=weights, seq=weights.c.listing_seq, where=tuple(where))


def _list_stems(terms: Sequence[Term]) -> list[str]:
    return list(dict.fromkeys(one for term in terms for one in term.stems))


def _intersect(one: Mapping[int, Bits], other: Mapping[int, Bits]) -> dict[int, Bits]:
    joined = {block: bits & other.get(block, 0) for block, bits in one.items()}
    return {block: bits for block, bits in joined.items() if bits}


# ---- The order of a sort.


def _sorted_page(search: WordSearch, hits: WordHits, *, total: int | None) -> Sequence[int]:
    """Sorts few listings; of many, reads all listings in the order of an index, and tests each. `total`: None if it is larger than what is counted."""
    connection, query = search.connection, search.query
    shown = connection.scalar(select(total_table.c.shown)) or 0
    # One listing in shown / total passes the test.
    if total is not None and total * total < (query.start + query.limit) * shown:
        numbers, seq = list_numbers(connection, hits.list_newest(total)), listing_table.c.seq
        found = select(seq).join(numbers, numbers.c[0] == seq).order_by(*order_columns(query, listing_table))
    else:
        worded = hits.to_facet()
        facets = [worded, *search.filters]
        found = select_in_order(Hits(facets=facets, lead=worded, lead_size=TOTAL_EXACT_MAX + 1, query=query))
    return connection.scalars(found.limit(query.limit).offset(query.start)).all()


# ---- The order of relevance.


def _ranked_page(
    search: WordSearch,
    proposed: Sequence[Proposed],
    by_meaning: Sequence[int],
    *,
    with_all: WordHits,
    with_some: WordHits,
) -> Sequence[int]:
    """`by_meaning`: those of the proposed listings that have none of the terms."""
    query = search.query
    candidates = _list_candidates(search, with_all)
    ranked = _rank(search.connection, search.understood, candidates, proposed)
    page = ranked[query.start : query.start + query.limit]
    missing = query.limit - len(page)
    if missing and len(candidates) == RANKED_MAX:
        by_words = [seq for seq in ranked if seq not in by_meaning]
        start = max(0, query.start - len(ranked))
        page += _list_unranked(by_words, with_some, start=start, limit=missing)
    return page


def _list_unranked(ranked: Sequence[int], hits: WordHits, *, start: int, limit: int) -> Sequence[int]:
    """The part of a page behind the ranked listings: the others, newest first. `ranked`: all are among `hits`. `start`: so many of the others stand on pages before."""
    rows = hits.list_newest(limit + len(ranked), skip=start)
    listed = frozenset(ranked)
    others = [seq for seq in rows if seq not in listed]
    # So many of the rows before these are ranked and took no place.
    passed = sum(seq > rows[0] for seq in ranked) if rows else 0
    return others[passed : passed + limit]


def _list_candidates(search: WordSearch, with_all: WordHits) -> list[int]:
    """At most `RANKED_MAX` listings: the newest with all terms and, when these are fewer, the newest with each term, the rarest term first."""
    found = dict.fromkeys(with_all.list_newest(RANKED_MAX))
    terms = search.understood.terms
    for term in search.order_by_rarity(terms) if len(terms) > 1 else ():
        if len(found) >= RANKED_MAX:
            break
        found |= dict.fromkeys(search.find_terms([term], needs_all=True).list_newest(RANKED_MAX))
    return list(found)[:RANKED_MAX]


def _rank(
    connection: Connection, understood: Understood, seqs: Sequence[int], proposed: Sequence[Proposed]
) -> list[int]:
    every = list(dict.fromkeys([*seqs, *(one.seq for one in proposed)]))
    if not every:
        return []
    listings = connection.scalar(select(total_table.c.shown)) or 0
    rarities = [measure_rarity(count, listings) for count in understood.counts]
    standings = _STANDINGS.fetch(connection, seqs=every)
    factors = {seq: rate_weight(ppm) for seq, _, ppm in standings if ppm is not None}
    ranks = []
    for seq, weights in read_weights(connection, seqs).items():
        rank = rank_words(weights, understood.terms, rarities)
        ranks.append((seq, rank._replace(score=rank.score * factors.get(seq, 1.0))))
    return order_candidates(
        ranks,
        [(one.seq, one.similarity * factors.get(one.seq, 1.0)) for one in proposed],
        last={seq for seq, is_owned_by_another, _ in standings if is_owned_by_another},
    )


_STANDINGS = Prepared(
    select(ownership_table.c.listing_seq, ownership_table.c.owned_by_another, quality_table.c.success_ppm)
    .select_from(
        ownership_table.outerjoin(quality_table, quality_table.c.listing_seq == ownership_table.c.listing_seq)
    )
    .where(Within(ownership_table.c.listing_seq, "seqs"))
)
