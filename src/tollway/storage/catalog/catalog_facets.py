"""The facets of a search in SQL: each condition of a query is a set of listings in one index, newest first, or in the order of a sort."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
)

from tollway.registry.catalog import TOTAL_EXACT_MAX, ListingQuery, NetworkCurrency
from tollway.registry.quality import round_up_ppm
from tollway.registry.search_tokens import fold
from tollway.storage.catalog.catalog_tables import (
    NO_OPERATIONS,
    listing_table,
    network_table,
    ownership_table,
    quality_table,
    tag_table,
)
from tollway.storage.catalog.search_blocks import (
    currency_feature,
    list_rate_features,
    network_feature,
    tag_feature,
)
from tollway.storage.engine.statements import hint_index

_INDEX = "ix_listing_"
_SHOWN, _PRICE, _CURRENCY = (_INDEX + name for name in ("shown", "price", "currency"))
_SUCCESS, _VERIFIED = _INDEX + "quality_success", _INDEX + "ownership_verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """A set of listings that one condition selects. `index`: the index that a walk uses. `by_age`, `by_listing`: the same set newest first, and the same set for the
    test of one listing, when `index` has another order. `features`: of the visible listings of the set, in the index of words (`search_blocks`); with `is_exact` of no others."""

    source: FromClause
    seq: ColumnElement[int]
    where: tuple[ColumnElement[bool], ...]
    index: str | None = None
    by_age: "Facet | None" = None
    by_listing: "Facet | None" = None
    features: tuple[str, ...] = ()
    is_exact: bool = True

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
        of_tag = (tags.c.tag == fold(query.tag),)
        facets.append(
            Facet(source=tags, seq=tags.c.listing_seq, where=of_tag, features=(tag_feature(fold(query.tag)),))
        )
    if query.network is not None:
        nets = network_table.alias("networked")
        where = (nets.c.chain_id == query.network,)
        features = (network_feature(query.network),)
        facets.append(Facet(source=nets, seq=nets.c.listing_seq, where=where, features=features))
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
        of_currency = _shown("currency", currency=query.currency)
        facets.append(replace(of_currency, features=(currency_feature(query.currency),)))
    # The facets below also contain listings that are not visible.
    is_visible_only = bool(facets) or query.words is not None
    if query.min_success_rate is not None:
        facets.append(_succeeding(query.min_success_rate))
    if query.verified:
        facets.append(_verified())
    return facets if is_visible_only else [*facets, _shown("shown")]


def in_order(query: ListingQuery) -> tuple[Facet, tuple[ColumnElement[Any], ...]]:
    """The facet of all listings in the order of a sort by name or price, and that order."""
    every = _shown("name") if query.sort == "name" else _priced(query)
    return every, order_columns(query, every.source)


def order_columns(query: ListingQuery, source: FromClause) -> tuple[ColumnElement[Any], ...]:
    """The order of a sort by name or price. Ties have the direction of the sort, so that one index serves both columns."""
    columns = source.c
    if query.sort == "name":
        return columns.name_key, columns.seq
    if query.sort == "-price":
        return desc(columns.price_nano), desc(columns.seq)
    return columns.price_nano, columns.seq


# One for a process: an alias has every column of its table, and it and its columns refer to each other, which only the collector frees.
_SOLD, _SOLD_ON = listing_table.alias("sold"), network_table.alias("sold_on")


def sold_in(network_currencies: Sequence[NetworkCurrency], seq: ColumnElement[int]) -> ColumnElement[bool]:
    """A condition: the listing is active, not free, and sold in one of these currencies on one of its networks. One condition for each currency,
    each a search in the narrow table of networks."""
    sold, network = _SOLD, _SOLD_ON
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


_OWNED = ownership_table.alias("owned")


def is_owned_by_another(seq: ColumnElement[int]) -> ColumnElement[bool]:
    """A condition: the listing has no proof, and another wallet owns the origin of its endpoint."""
    known = select(_OWNED.c.owned_by_another).where(_OWNED.c.listing_seq == seq)
    return known.scalar_subquery().is_(True)


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
    features, is_exact = list_rate_features(least)
    return Facet(
        source=by_rate,
        seq=by_rate.c.listing_seq,
        where=(by_rate.c.success_ppm >= least,),
        index=_SUCCESS,
        by_age=good(quality_table.alias("measured")),
        by_listing=good(quality_table.alias("asked_quality")),
        features=features,
        is_exact=is_exact,
    )


def _verified() -> Facet:
    """Contains listings that are not visible."""
    source = hint_index(ownership_table, _VERIFIED)
    where = (source.c.verified_ms.is_not(None),)
    return Facet(source=source, seq=source.c.listing_seq, where=where, index=_VERIFIED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
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


def select_newest(
    hits: Hits, condition: Callable[[ColumnElement[int]], ColumnElement[bool]] | None = None
) -> Select[Any]:
    lead, replaced = hits.lead, None
    if lead.by_age is not None and hits.lead_size > TOTAL_EXACT_MAX:
        lead, replaced = lead.by_age, lead
    found = hits.select_by(lead, instead_of=replaced).order_by(desc(lead.seq))
    return found if condition is None else found.where(condition(lead.seq))


def select_in_order(hits: Hits) -> Select[Any]:
    every, order = in_order(hits.query)
    if hits.lead_size > TOTAL_EXACT_MAX or (hits.is_one_set and every.is_within(hits.lead)):
        same = next((facet for facet in hits.facets if every.is_within(facet)), None)
        return hits.select_by(every, instead_of=same).order_by(*order)
    # Few listings: their rows are read and sorted.
    few = hits.select().subquery()
    columns = every.source.c
    return select(columns.seq).join(few, few.c[0] == columns.seq).order_by(*order)


def count_up_to_cap(connection: Connection, found: Select[Any]) -> int:
    return count_up_to(connection, found, TOTAL_EXACT_MAX + 1)


def count_up_to(connection: Connection, found: Select[Any], most: int) -> int:
    capped = found.order_by(None).limit(most).subquery()
    return connection.scalar(select(func.count()).select_from(capped)) or 0
