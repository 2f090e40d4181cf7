"""A catalog in memory: the twin of `storage/catalog_store.py`, held to the same contract suite. Nothing survives it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.kit.memory_creations import MemoryCreations
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ListingId
from tollway.registry.catalog import (
    TOTAL_EXACT_MAX,
    CreationBegun,
    CreationResponse,
    ListingMatch,
    ListingPage,
    ListingQuery,
    NetworkCurrency,
    Revised,
    RevisionConflict,
)
from tollway.registry.listing import CatalogEntry, Listing, Terms
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation, rank_weight, round_up_ppm
from tollway.registry.search_tokens import (
    contains_all,
    fold,
    matched_fields,
    query_words,
    rank_fields,
    searched_texts,
    split_words,
)


@dataclass(slots=True, kw_only=True)
class _Kept:
    seq: int
    listing: Listing
    versions: tuple[Terms, ...]  # newest first


class MemoryCatalog:
    """Keeps every version of the terms for ever, so `find` needs no clock. `standings`: what tests say is known."""

    def __init__(self, creations: MemoryCreations | None = None) -> None:
        self.creations = creations or MemoryCreations()
        self._kept: dict[ListingId, _Kept] = {}
        self.standings: dict[ListingId, Reputation] = {}
        self.searches = 0

    async def publish(self, listing: Listing) -> None:
        if listing.id in self._kept:
            raise StorageUnavailable("The listing's id is taken.")
        versions = (listing.current_terms(since_ms=listing.created_ms),)
        self._kept[listing.id] = _Kept(seq=len(self._kept) + 1, listing=listing, versions=versions)

    async def publish_once(self, listing: Listing, *, under: CreationBegun, answer: CreationResponse) -> bool:
        if listing.id in self._kept:
            raise StorageUnavailable("The listing's id is taken.")
        if not self.creations.finish(under, answer):
            return False
        await self.publish(listing)
        return True

    async def revise(self, listing: Listing, *, expected_revision: int) -> Revised | RevisionConflict:
        kept = self._kept.get(listing.id)
        if kept is None:
            return RevisionConflict(revision=0)
        if kept.listing.revision != expected_revision:
            return RevisionConflict(revision=kept.listing.revision)
        kept.listing = replace(listing, revision=expected_revision + 1)
        last, *older = kept.versions
        if listing.current_terms(since_ms=last.since_ms) != last:
            now_ms = max(listing.updated_ms, last.since_ms)
            ended = replace(last, until_ms=now_ms)
            kept.versions = (listing.current_terms(since_ms=now_ms), ended, *older)
        return Revised(listing=kept.listing)

    async def find(self, listing_id: ListingId) -> CatalogEntry | None:
        kept = self._kept.get(listing_id)
        return None if kept is None else CatalogEntry(listing=kept.listing, versions=kept.versions)

    async def terms_since(self, listing_id: ListingId, moment_ms: int) -> tuple[Terms, ...]:
        kept = self._kept.get(listing_id)
        versions = kept.versions if kept is not None else ()
        return tuple(terms for terms in versions if terms.is_in_force_since(moment_ms))

    async def reputation(self, listing_id: ListingId) -> Reputation:
        return self.standings.get(listing_id, UNKNOWN_REPUTATION)

    async def search(self, query: ListingQuery) -> ListingPage:
        self.searches += 1
        words = query_words(query.words) if query.words is not None else ()
        hits = [
            kept
            for kept in self._kept.values()
            if _is_hit(kept.listing, query, words) and _has_standing(self._standing(kept), query)
        ]
        hits.sort(key=lambda kept: -kept.seq)
        if query.sort == "price":
            hits.sort(key=lambda kept: (kept.listing.price.nano, kept.seq))
        elif query.sort == "-price":
            hits.sort(key=lambda kept: (-kept.listing.price.nano, -kept.seq))
        elif query.sort == "name":
            hits.sort(key=lambda kept: (fold(kept.listing.name), kept.seq))
        elif query.sort == "relevance":
            hits.sort(
                key=lambda kept: -_rank(kept.listing, words) * rank_weight(self._standing(kept).quality)
            )
        start = query.start
        found = tuple(
            ListingMatch(
                listing=replace(kept.listing, upstream_auth=None, openapi=None),
                match=matched_fields(kept.listing, words) if words else (),
                reputation=self._standing(kept),
            )
            for kept in hits[start : start + query.limit]
        )
        is_capped = len(hits) > TOTAL_EXACT_MAX and _is_filtered(query)
        total = TOTAL_EXACT_MAX if is_capped else len(hits)
        return ListingPage(found=found, total=total, is_lower_bound=is_capped)

    def _standing(self, kept: _Kept) -> Reputation:
        return self.standings.get(kept.listing.id, UNKNOWN_REPUTATION)

    async def is_payee_shared(self, pay_to: Address, provider: Address) -> bool:
        return any(
            kept.listing.pay_to == pay_to and kept.listing.provider != provider and _is_shown(kept.listing)
            for kept in self._kept.values()
        )


def _is_shown(listing: Listing) -> bool:
    return listing.retired_ms is None and listing.suspended_ms is None


def _is_hit(listing: Listing, query: ListingQuery, words: tuple[str, ...]) -> bool:
    return (
        _is_shown(listing)
        and (query.words is None or contains_all(searched_texts(listing), words))
        and (query.provider is None or listing.provider == query.provider)
        and (query.currency is None or listing.currency == query.currency)
        and (query.network is None or query.network in listing.networks)
        and (query.tag is None or fold(query.tag) in {fold(tag) for tag in listing.tags})
        and (query.price_nano_max is None or listing.price.nano <= query.price_nano_max)
        and (query.pay_to is None or listing.pay_to == query.pay_to)
        and (query.network_currencies is None or _is_sold_in(listing, query.network_currencies))
    )


def _has_standing(reputation: Reputation, query: ListingQuery) -> bool:
    rate, quality = query.min_success_rate, reputation.quality
    is_good = rate is None or (quality is not None and quality.success_ppm >= round_up_ppm(rate))
    return is_good and query.verified in (None, reputation.is_verified)


def _is_sold_in(listing: Listing, network_currencies: Sequence[NetworkCurrency]) -> bool:
    is_paid = bool(listing.operations) or not listing.price.is_free
    own = {NetworkCurrency(chain_id=chain_id, currency=listing.currency) for chain_id in listing.networks}
    return listing.status == "active" and is_paid and not own.isdisjoint(network_currencies)


def _rank(listing: Listing, words: tuple[str, ...]) -> float:
    return rank_fields([split_words(text) for text in searched_texts(listing)], words)


def _is_filtered(query: ListingQuery) -> bool:
    filters = (query.words, query.provider, query.currency, query.network, query.tag, query.price_nano_max)
    reputation = (query.min_success_rate, query.verified)
    return any(
        wanted is not None for wanted in (*filters, *reputation, query.pay_to, query.network_currencies)
    )
