"""What a query of the catalog may ask for, each kind as a set of listings that one index holds, newest first.

A facet can lead (its listings are walked) or be asked about a listing of another one; both need its index alone. SQLite
keeps no numbers about its tables, so the index is named to it; PostgreSQL chooses by its own numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
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
    or_,
    select,
    table,
    true,
)
from sqlalchemy.dialects.postgresql import TSQUERY, TSVECTOR

from tollway.registry.catalog import ListingQuery, Market
from tollway.registry.words import fold
from tollway.storage.catalog_rows import NO_OPERATIONS
from tollway.storage.catalog_tables import listing_table, network_table, tag_table

_INDEX = "ix_listing_"
_PRICE, _CURRENCY = f"{_INDEX}price", f"{_INDEX}currency"

fts_table = table(
    "listing_search", column("rowid", BigInteger), column("name"), column("description"), column("tags")
)
vector_table = table("listing_search", column("listing_seq", BigInteger), column("words", TSVECTOR))


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """`index`: which SQLite is to use to walk it, and `has_seq`: to ask it too, because its listings stand there by
    number. `rank`: the order of relevance, where there is one. `by_age`: the same set as another index holds it,
    newest first, where its own holds it in another order."""

    source: FromClause
    seq: ColumnElement[int]
    where: tuple[ColumnElement[bool], ...]
    index: str | None = None
    has_seq: bool = False
    rank: ColumnElement[Any] | None = None
    by_age: "Facet | None" = None

    def select(self, *others: ColumnElement[bool]) -> Select[Any]:
        """The numbers of its listings, in no order, of which `others` hold."""
        query = select(self.seq).select_from(self.source).where(*self.where, *others)
        return self._hinted(query) if self.index else query

    def holds(self, seq: ColumnElement[int]) -> ColumnElement[bool]:
        """Whether a listing of another facet is in this one too."""
        query: Select[Any] = (
            select(literal_column("1")).select_from(self.source).where(*self.where, self.seq == seq)
        )
        return exists(self._hinted(query) if self.has_seq else query)

    def is_within(self, other: "Facet") -> bool:
        """Whether `other`, of the same query, holds all of it."""
        return self.index == _PRICE and other.index in (_PRICE, _CURRENCY)

    def _hinted(self, query: Select[Any]) -> Select[Any]:
        return query.with_hint(self.source, f"INDEXED BY {self.index}", "sqlite")


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
    if query.provider is not None:
        facets.append(_shown("provider", has_seq=True, provider=bytes(query.provider)))
    if query.pay_to is not None:
        facets.append(_shown("payee", has_seq=True, pay_to=bytes(query.pay_to)))
    if query.currency is not None and query.price_nano_max is not None:
        facets.append(_priced(query))
    elif query.currency is not None:
        facets.append(_shown("currency", has_seq=True, currency=query.currency))
    return facets or [_shown("shown", has_seq=True)]


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


def sold_in(markets: Sequence[Market], seq: ColumnElement[int]) -> ColumnElement[bool]:
    """Active, not free, and in a market: one condition a currency, each a look into the narrow table of networks."""
    sold, network = listing_table.alias("sold"), network_table.alias("sold_on")
    chains: dict[str, list[int]] = {}
    for market in markets:
        chains.setdefault(market.currency, []).append(market.chain_id)
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
    return exists(
        select(literal_column("1"))
        .select_from(sold)
        .where(sold.c.seq == seq, sold.c.status == "active", costs, is_there)
    )


def _priced(query: ListingQuery) -> Facet:
    by_age = _shown("currency", price_nano_max=query.price_nano_max, currency=query.currency)
    return _shown("price", price_nano_max=query.price_nano_max, by_age=by_age, currency=query.currency)


def _shown(
    index: str,
    *,
    price_nano_max: int | None = None,
    has_seq: bool = False,
    by_age: Facet | None = None,
    **equal: object,
) -> Facet:
    """Listings that lists show and whose columns are equal to these values."""
    alias = listing_table.alias(f"by_{index}")
    where = [alias.c[name] == value for name, value in equal.items()]
    if price_nano_max is not None:
        where.append(alias.c.price_nano <= price_nano_max)
    return Facet(
        source=alias,
        seq=alias.c.seq,
        where=(*where, alias.c.is_shown == true()),
        index=_INDEX + index,
        has_seq=has_seq,
        by_age=by_age,
    )


def _match_fts(words: Sequence[str]) -> Facet:
    # Each word is quoted; split words hold no quote. bm25 is smaller for better hits.
    wanted = literal(" ".join(f'"{word}"' for word in words), Text)
    condition: ColumnElement[bool] = literal_column("listing_search").op("MATCH", is_comparison=True)(wanted)
    rank: ColumnElement[Any] = literal_column("bm25(listing_search, 10.0, 1.0, 5.0)")
    return Facet(source=fts_table, seq=fts_table.c.rowid, where=(condition,), rank=rank)


def _match_vectors(words: Sequence[str]) -> Facet:
    wanted = cast(literal(" & ".join(f"'{word}'" for word in words), Text), TSQUERY)
    columns = vector_table.c
    condition = columns.words.op("@@", is_comparison=True)(wanted)
    rank = desc(func.ts_rank(columns.words, wanted))
    return Facet(source=vector_table, seq=columns.listing_seq, where=(condition,), rank=rank)
