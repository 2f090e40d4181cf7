"""What a query of the catalog may ask for, each kind as a set of listings that one index holds, newest first.

A facet can lead (its listings are walked) or be asked about a listing of another one; both need its index alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    Select,
    Text,
    and_,
    cast,
    column,
    desc,
    exists,
    func,
    literal,
    literal_column,
    not_,
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from tollway.registry.catalog import TOTAL_EXACT_MAX, ListingQuery, NetworkCurrency
from tollway.registry.standing import RANK_WEIGHT_MIN, RANK_WEIGHT_SPAN, round_up_ppm
from tollway.registry.words import fold
from tollway.storage.catalog_rows import NO_OPERATIONS
from tollway.storage.catalog_tables import listing_table, network_table, tag_table
from tollway.storage.named_index import IndexHint
from tollway.storage.standing_tables import ownership_table, quality_table

_INDEX = "ix_listing_"
_SHOWN, _PRICE, _CURRENCY = (_INDEX + name for name in ("shown", "price", "currency"))
_SUCCESS, _VERIFIED = _INDEX + "quality_success", _INDEX + "ownership_verified"

fts_table = table(
    "listing_search", column("rowid", BigInteger), column("name"), column("description"), column("tags")
)
vector_table = table("listing_search", column("listing_seq", BigInteger), column("words", TSVECTOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """`index`: the one that it is walked by. `is_match`: what the words found; `rank`: its order of relevance, where the
    database knows one. Where that index holds
    the set in another order: `by_age` is the same set newest first, and `by_listing` finds one listing of it. `few`: how to
    read it when it is known to be small."""

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
        """The numbers of its listings, in no order, of which `others` hold."""
        return select(self.seq).select_from(self.source).where(*self.where, *others)

    def holds(self, seq: ColumnElement[int]) -> ColumnElement[bool]:
        """Whether a listing of another facet is in this one too. A look for each: as an EXISTS, PostgreSQL would rather
        read the whole set than look a few times."""
        by_listing = self.by_listing or self
        look: Select[Any] = select(literal_column("1")).select_from(by_listing.source)
        return look.where(*by_listing.where, by_listing.seq == seq).limit(1).scalar_subquery().is_not(None)

    @property
    def is_of_all(self) -> bool:
        """Whether it holds whatever lists show: it is worth no counting."""
        return self.index == _SHOWN

    def is_within(self, other: "Facet") -> bool:
        """Whether `other`, of the same query, holds all of it."""
        return other.is_of_all or (self.index == _PRICE and other.index in (_PRICE, _CURRENCY))


def find_facets(query: ListingQuery, words: Sequence[str], *, is_sqlite: bool) -> list[Facet]:
    """One for each thing that the query asks for; of equals, the first is the best to lead. Never none."""
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
    if query.provider is not None and is_of_currency:  # each of both may be large, and what they share small
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
    is_shown_only = bool(facets)  # by now; what follows holds listings that no list shows too
    if query.min_success_rate is not None:
        facets.append(_succeeding(query.min_success_rate))
    if query.verified:
        facets.append(_verified())
    return facets if is_shown_only else [*facets, _shown("shown")]


def in_order(query: ListingQuery) -> tuple[Facet, tuple[ColumnElement[Any], ...]]:
    """All listings in the order of a sort other than by age or relevance, and that order. Ties go the way of the sort,
    so that one index serves both columns."""
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
    """Active, not free, and in a market: one condition a currency, each a look into the narrow table of networks."""
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
    look: Select[Any] = select(literal_column("1")).select_from(sold)
    look = look.where(sold.c.seq == seq, sold.c.status == "active", costs, is_there)
    return look.limit(1).scalar_subquery().is_not(None)


def is_unverified(seq: ColumnElement[int]) -> ColumnElement[bool]:
    return not_(_verified().holds(seq))


def _priced(query: ListingQuery) -> Facet:
    """Of one currency, up to a price if there is one, by price."""
    price = _shown("price", currency=query.currency)
    most = query.price_nano_max
    if most is None:
        return price

    def cheap(facet: Facet) -> Facet:
        columns = facet.source.c
        return replace(facet, where=(*facet.where, columns.price_nano <= most))

    alias = listing_table.alias("asked")
    where = (alias.c.currency == query.currency, alias.c.is_shown == true())
    by_listing = cheap(Facet(source=alias, seq=alias.c.seq, where=where))
    return replace(
        cheap(price), by_age=cheap(_shown("currency", currency=query.currency)), by_listing=by_listing
    )


def _shown(name: str, **equal: object) -> Facet:
    """Listings that lists show and whose columns are equal to these values."""
    index = _INDEX + name
    source = IndexHint(listing_table, index)
    columns = source.c
    where = tuple(columns[key] == value for key, value in equal.items())
    return Facet(source=source, seq=columns.seq, where=(*where, columns.is_shown == true()), index=index)


def _succeeding(rate: float) -> Facet:
    """Measured, and not worse than that; hidden ones too."""
    least = round_up_ppm(rate)

    def good(source: FromClause) -> Facet:
        # What is added keeps SQLite from the index by rate, where the one by listing is meant.
        return Facet(source=source, seq=source.c.listing_seq, where=(source.c.success_ppm + 0 >= least,))

    by_rate = IndexHint(quality_table, _SUCCESS)
    return Facet(
        source=by_rate,
        seq=by_rate.c.listing_seq,
        where=(by_rate.c.success_ppm >= least,),
        index=_SUCCESS,
        by_age=good(quality_table.alias("measured")),
        by_listing=good(quality_table.alias("asked_quality")),
    )


def _verified() -> Facet:
    """Of a proved origin; hidden ones too."""
    source = IndexHint(ownership_table, _VERIFIED)
    where = (source.c.verified_ms.is_not(None),)
    return Facet(source=source, seq=source.c.listing_seq, where=where, index=_VERIFIED)


def _weigh(seq: ColumnElement[int]) -> ColumnElement[float]:
    """`rank_weight`, of the quality of a listing."""
    of = quality_table.alias("weighed")
    rate = of.c.success_ppm / literal(1_000_000.0, Double)
    factor = select(literal(RANK_WEIGHT_MIN, Double) + literal(RANK_WEIGHT_SPAN, Double) * rate * rate)
    return func.coalesce(factor.where(of.c.listing_seq == seq).scalar_subquery(), literal(1.0, Double))


def _match_fts(words: Sequence[str]) -> Facet:
    # Each word is quoted; split words hold no quote.
    wanted = literal(" ".join(f'"{word}"' for word in words), Text)
    condition: ColumnElement[bool] = literal_column("listing_search").op("MATCH", is_comparison=True)(wanted)
    return Facet(source=fts_table, seq=fts_table.c.rowid, where=(condition,), is_match=True)


def _match_vectors(words: Sequence[str]) -> Facet:
    wanted = cast(literal(" & ".join(f"'{word}'" for word in words), Text), TSQUERY)
    columns = vector_table.c
    condition = columns.words.op("@@", is_comparison=True)(wanted)
    rank = desc(func.ts_rank(columns.words, wanted) * _weigh(columns.listing_seq))
    # Its numbers say little about rare words: without a fence it would walk all listings by age for a few of them.
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
