"""A listing and its terms over time, the ways to pay it, and what of its provider's document it offers. Pure.

Times are integer milliseconds since the epoch (UTC). What is derived from one state of a listing is cached with it (`RevisionCache`): the catalog
returns the same object until the listing changes. The payment options are the same in a listing's details, in agent documents and in a 402.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, Literal, TypeVar

from tollway.ids import Address, ChainId, ListingId
from tollway.money import Asset, Price
from tollway.registry.header_names import STANDARD_HEADERS, is_header_name, is_reserved_header
from tollway.registry.openapi import DocumentParameter, ProviderDocument, walk_operations
from tollway.registry.paths import priced_verb

DESCRIBED_CHARACTERS_MAX = 100_000
"""So much of what a document describes a version of the terms records: its methods and paths together."""


class ChargeOn(StrEnum):
    """Which answers of the upstream cost."""

    SUCCESS = "success"
    """2xx and 304."""
    ANSWERED = "answered"
    """2xx to 4xx, except 401, 402, 403, 407, 408, 425 and 429: those say that the gateway or its load was refused."""


_UNCHARGED_STATUSES = frozenset({401, 402, 403, 407, 408, 425, 429})


def is_charged(charge_on: ChargeOn, upstream_status: int) -> bool:
    """Whether an upstream's answer with that status costs."""
    if 200 <= upstream_status <= 299 or upstream_status == 304:
        return True
    if charge_on is ChargeOn.SUCCESS:
        return False
    return 200 <= upstream_status <= 499 and upstream_status not in _UNCHARGED_STATUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A price of its own for one method and path template, such as `GET /v1/cities/{city}`."""

    method: str
    path: str
    price: Price


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAuth:
    """A secret that each upstream call carries. Written once, never shown again. `value` None: it is stored, and opens with
    none of the gateway's keys; without it nothing may be called."""

    location: Literal["header", "query"]
    name: str
    value: str | None = field(repr=False)

    def reveal(self) -> str:
        """Of a listing that is served."""
        assert self.value is not None
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """At most `calls` calls per payer in `per_s` seconds."""

    calls: int
    per_s: int


ForwardSignature = Literal["ed25519", "none"]
"""How the gateway signs the calls that it forwards. `none`: their upstream cannot verify that they come from the gateway."""

TermsStatus = Literal["active", "paused", "suspended", "retired", "unrecorded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One version of what a listing sells and for how much, and the time in which it was in force.

    `until_ms` is None while it still is. `networks` stand in the listing's order of preference. `described`: method and
    path of each operation of the provider's document, where `other_paths` makes it decide what is served; else empty.
    `status`: `unrecorded` for a version of older tables, which do not say what was sold.
    """

    price: Price
    currency: str
    networks: tuple[ChainId, ...]
    pay_to: Address
    operations: tuple[Operation, ...]
    other_paths: Literal["serve", "refuse"]
    methods: tuple[str, ...]  # empty: any method
    described: tuple[tuple[str, str], ...]
    charge_on: ChargeOn
    status: TermsStatus
    since_ms: int
    until_ms: int | None

    @property
    def is_active(self) -> bool:
        """False for a version that refused each call: it sets no price."""
        return self.status == "active"

    def is_in_force_since(self, moment_ms: int) -> bool:
        """True when this version was in force at any time from `moment_ms` until now."""
        return self.until_ms is None or self.until_ms >= moment_ms


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Listing:
    """One API for sale, as it is now. `endpoint` is the URL as the provider gave it.

    `revision` grows with every change. `retired_ms` and `suspended_ms` are None for a listing that is served.
    """

    id: ListingId
    provider: Address
    name: str
    description: str
    endpoint: str
    price: Price
    currency: str
    pay_to: Address
    networks: tuple[ChainId, ...]
    methods: tuple[str, ...]  # empty: any method
    tags: tuple[str, ...]
    operations: tuple[Operation, ...]
    other_paths: Literal["serve", "refuse"]
    charge_on: ChargeOn
    timeout_s: int
    forward_headers: tuple[str, ...]
    upstream_auth: UpstreamAuth | None
    openapi: Mapping[str, Any] | None
    openapi_url: str | None
    signature: Literal["any", "bound"]
    rate_limit: RateLimit | None
    status: Literal["active", "paused"]
    forward_signature: ForwardSignature
    created_ms: int
    updated_ms: int
    revision: int
    retired_ms: int | None = None
    suspended_ms: int | None = None

    def current_terms(self, *, since_ms: int) -> Terms:
        """The version that this state of the listing puts in force at `since_ms`."""
        return Terms(
            price=self.price,
            currency=self.currency,
            networks=self.networks,
            pay_to=self.pay_to,
            operations=self.operations,
            other_paths=self.other_paths,
            methods=self.methods,
            described=self._list_described(),
            charge_on=self.charge_on,
            status=self._find_status(),
            since_ms=since_ms,
            until_ms=None,
        )

    def _list_described(self) -> tuple[tuple[str, str], ...]:
        """In the order of the document, up to the maximum."""
        if self.other_paths == "serve" or self.openapi is None:
            return ()
        remaining, found = DESCRIBED_CHARACTERS_MAX, []
        for operation in walk_operations(self.openapi):
            remaining -= len(operation.method) + len(operation.path)
            if remaining < 0:
                break
            found.append((operation.method, operation.path))
        return tuple(found)

    def _find_status(self) -> TermsStatus:
        if self.retired_ms is not None:
            return "retired"
        return self.status if self.suspended_ms is None else "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A listing with the versions of its terms that may still count, newest first (the current one is the first)."""

    listing: Listing
    versions: tuple[Terms, ...]


ConfirmationsFor = Callable[[Asset, int], int]
"""How deep a payment of so many ledger units of an asset must lie."""


IsOffered = Callable[[Asset, int], bool]
"""Whether an authorisation over so many ledger units of an asset can be settled here, now."""

SETTLEMENT_MARGIN_S = 60
"""How much longer than the upstream's own time an authorisation is asked to be valid: half to reach us, half to settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOption:
    """One way to pay: one transfer of `amount_base_units` of `asset` to `pay_to`.

    Rail `tx`: by a transaction of the caller's own, that deep. Rail `x402`: by a signed authorisation, valid for
    `max_timeout_s` from now.
    """

    rail: Literal["tx", "x402"]
    asset: Asset
    amount_base_units: int
    pay_to: Address
    confirmations: int
    max_timeout_s: int | None = None


def list_payment_options(
    terms: Terms | Listing,
    price: Price,
    *,
    assets: Iterable[Asset],
    confirmations_for: ConfirmationsFor,
    timeout_s: int,
    is_offered: IsOffered,
) -> tuple[PaymentOption, ...]:
    """Every way to pay `price`: in the order of the listing's networks, then of `assets`; for each asset a transaction
    of the caller's own, then an authorisation where the token takes one and `is_offered` says so."""
    found: list[PaymentOption] = []
    for option in list_transaction_options(terms, price, assets=assets, confirmations_for=confirmations_for):
        found.append(option)
        if option.asset.domain is not None and is_offered(option.asset, price.units_in(option.asset)):
            found.append(replace(option, rail="x402", max_timeout_s=timeout_s + SETTLEMENT_MARGIN_S))
    return tuple(found)


def list_transaction_options(
    terms: Terms | Listing, price: Price, *, assets: Iterable[Asset], confirmations_for: ConfirmationsFor
) -> tuple[PaymentOption, ...]:
    """Every asset in which `price` can be paid by a transaction of the caller's own.

    In the order of the listing's networks, then of `assets`. Empty for a free price: nothing is to be paid.
    """
    if price.is_free:
        return ()
    payable = payable_assets(assets, currency=terms.currency, networks=terms.networks)
    return tuple(
        PaymentOption(
            rail="tx",
            asset=asset,
            amount_base_units=asset.to_base_units(price.units_in(asset)),
            pay_to=terms.pay_to,
            confirmations=confirmations_for(asset, price.units_in(asset)),
        )
        for asset in payable
    )


def payable_assets(
    assets: Iterable[Asset], *, currency: str, networks: Iterable[ChainId]
) -> tuple[Asset, ...]:
    """The assets that count as that currency, in the order of the networks."""
    known = tuple(assets)
    return tuple(
        asset
        for chain_id in networks
        for asset in known
        if asset.chain_id == chain_id and asset.symbol == currency
    )


_IGNORED_HEADERS = frozenset({"accept", "content-type", "authorization"})
"""OpenAPI 3.1 §4.8.12.1: definitions of these are ignored."""


def accepts_method(methods: Sequence[str], method: str) -> bool:
    """`methods`: a listing's. HEAD is where GET is."""
    return not methods or method in methods or priced_verb(method) in methods


def is_sent_by_caller(listing: Listing, parameter: DocumentParameter) -> bool:
    """Not what the gateway adds by itself, nor a header that belongs to HTTP or to the gateway."""
    auth, lower = listing.upstream_auth, parameter.name.lower()
    if auth is not None and lower == auth.name.lower():
        return False
    if parameter.place != "header":
        return True
    return is_header_name(lower) and lower not in _IGNORED_HEADERS and not is_reserved_header(lower)


def has_documented_operations(content: Mapping[str, Any] | None, methods: Sequence[str]) -> bool:
    """Whether a document names anything that a listing of those methods would serve."""
    operations = ProviderDocument(content or {}).operations
    return any(accepts_method(methods, operation.method) for operation in operations)


def list_unforwarded(listing: Listing, *, most: int) -> list[str]:
    """Headers that the document has a caller send, and that would not reach the upstream: the first few."""
    passed = {name.lower() for name in (*STANDARD_HEADERS, *listing.forward_headers)}
    document = ProviderDocument(listing.openapi or {})
    found: dict[str, str] = {}
    for operation in document.operations:
        for parameter in document.list_parameters(operation):
            lower = parameter.name.lower()
            if parameter.place == "header" and lower not in passed and is_sent_by_caller(listing, parameter):
                found.setdefault(lower, parameter.name)
        if len(found) >= most:
            break
    return list(found.values())[:most]


T = TypeVar("T")


class RevisionCache(Generic[T]):
    """Keeps at most `entries_max` things; who was not asked for longest goes first. For one event loop."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[tuple[ListingId, Hashable], tuple[weakref.ref[Listing], T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, listing: Listing, key: Hashable) -> T | None:
        """What was kept of this state of the listing under that key."""
        place = (listing.id, key)
        entry = self._entries.get(place)
        if entry is None or entry[0]() is not listing:
            return None
        self._entries.move_to_end(place)
        return entry[1]

    def put(self, listing: Listing, key: Hashable, made: T) -> T:
        """Remembers it, in place of what an older state had there; gives it back."""
        place = (listing.id, key)
        self._entries[place] = (weakref.ref(listing), made)
        self._entries.move_to_end(place)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        return made
