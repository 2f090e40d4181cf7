"""A listing, its terms over time, the ways to pay it, and the operations of its provider's document. Pure.

Times are integer milliseconds since the epoch (UTC). Values derived from one state of a listing are cached with it (`RevisionCache`): the catalog
returns the same object until the listing changes. The payment options are the same in a listing's details, in agent documents and in a 402.
"""

import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urlsplit

from tollway.bounded_cache import BoundedDict
from tollway.ids import Address, ChainId, ListingId, format_network
from tollway.money import Asset, Price
from tollway.registry.header_names import ALWAYS_FORWARDED, is_control_header, is_header_name
from tollway.registry.listing_fields import FIELDS, Kind
from tollway.registry.metering import Metering, OfferedPrice, write_metering
from tollway.registry.openapi import DocumentParameter, ProviderDocument, walk_operations
from tollway.registry.paths import priced_verb
from tollway.registry.response_headers import find_dropped

DESCRIBED_CHARACTERS_MAX = 100_000
"""The maximum length of the methods and paths of a document, together, that a version of the terms records as text; of each further
operation it records a digest."""
_DIGEST_CHARACTERS = 16


class ChargeOn(StrEnum):
    """The responses of the upstream for which the caller is charged."""

    SUCCESS = "success"
    """2xx and 304."""
    ANSWERED = "answered"
    """2xx to 4xx, except 401, 402, 403, 407, 408, 425 and 429: with those the upstream refuses the gateway or its load."""


_UNCHARGED_STATUSES = frozenset({401, 402, 403, 407, 408, 425, 429})


def is_charged(charge_on: ChargeOn, upstream_status: int) -> bool:
    if 200 <= upstream_status <= 299 or upstream_status == 304:
        return True
    if charge_on is ChargeOn.SUCCESS:
        return False
    return 200 <= upstream_status <= 499 and upstream_status not in _UNCHARGED_STATUSES


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A price of its own, for one method and path template such as `GET /v1/cities/{city}`. `metering`: its own formula; without one its price is fixed."""

    method: str
    path: str
    price: Price
    metering: Metering | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamAuth:
    """A secret that each upstream request carries. No response ever contains it. `value` None: it is stored, and none of the
    gateway's keys decrypts it (`Listing.is_secret_lost`)."""

    location: Literal["header", "query"]
    name: str
    value: str | None = field(repr=False)

    def reveal(self) -> str:
        """The listing is served, so the secret is decrypted."""
        assert self.value is not None
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """At most `calls` calls per payer in `per_s` seconds."""

    calls: int
    per_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCalls:
    """The first `count` calls of each wallet are free; with `per_s` in each period of so many seconds, which begins with the wallet's first call."""

    count: int
    per_s: int | None = None


ForwardSignature = Literal["ed25519", "hmac-sha256", "none"]
"""The signature of forwarded calls. `hmac-sha256`: with a secret that the provider shares. `none`: the upstream cannot verify that they come from the gateway."""

TermsStatus = Literal["active", "paused", "suspended", "retired"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """One version of a listing's operations, prices and payee, and the time in which it was in force.

    `until_ms` is None for the version in force. `networks` are in the listing's order of preference. `described`: method and
    path of each operation of the provider's document, where `other_paths` is `refuse`; else empty. `described_digests`: of the
    operations beyond `DESCRIBED_CHARACTERS_MAX` (`digest_operation`).
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
    described_digests: tuple[str, ...] = ()
    metering: Metering | None = None
    free_calls: FreeCalls | None = None

    @property
    def is_active(self) -> bool:
        """False for a version that refused all calls: its price does not count."""
        return self.status == "active"

    def is_in_force_since(self, moment_ms: int) -> bool:
        return self.until_ms is None or self.until_ms >= moment_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingMembers:
    """What the provider of a listing sets (`listing_fields`), but `pay_to`. `endpoint` is the URL as the provider wrote it."""

    name: str
    description: str
    endpoint: str
    price: Price
    currency: str
    networks: tuple[ChainId, ...]
    methods: tuple[str, ...]  # empty: any method
    tags: tuple[str, ...]
    operations: tuple[Operation, ...]
    other_paths: Literal["serve", "refuse"]
    charge_on: ChargeOn
    timeout_s: int
    forward_headers: tuple[str, ...]
    upstream_auth: UpstreamAuth | None
    openapi: Mapping[str, Any] | None = field(repr=False)
    openapi_url: str | None
    signature: Literal["any", "bound"]
    rate_limit: RateLimit | None
    status: Literal["active", "paused"]
    forward_signature: ForwardSignature
    contact: str | None = None  # `mailto:` or https
    website: str | None = None  # https, as `terms_url`
    terms_url: str | None = None
    metering: Metering | None = None  # the formula of `price`, which then is the maximum
    free_calls: FreeCalls | None = None


def list_links(listing: ListingMembers) -> dict[str, str]:
    """The links of the provider that it has set, by member. Their form is checked, and nothing else: the pages behind them are untrusted."""
    given = {"website": listing.website, "contact": listing.contact, "terms": listing.terms_url}
    return {name: url for name, url in given.items() if url is not None}


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Listing(ListingMembers):
    """The current state of one API for sale.

    `revision` grows with each change. `retired_ms` and `suspended_ms` are None for a listing that is served. `suspended_reason`: the reason that the
    operator gave for the suspension, read with the listing and written with the audit entry. `forward_secret`: of a listing whose calls are signed with
    `hmac-sha256`; one response shows it to the provider, and no other.
    """

    id: ListingId
    provider: Address
    pay_to: Address
    created_ms: int
    updated_ms: int
    revision: int
    retired_ms: int | None = None
    suspended_ms: int | None = None
    suspended_reason: str = ""
    forward_secret: bytes | None = field(default=None, repr=False)
    is_secret_lost: bool = field(init=False)
    """Whether a secret of this listing is stored and none of the gateway's keys decrypts it; then the listing must not be called."""

    def __post_init__(self) -> None:
        is_auth_lost = self.upstream_auth is not None and self.upstream_auth.value is None
        is_shared_lost = self.has_shared_secret and self.forward_secret is None
        object.__setattr__(self, "is_secret_lost", is_auth_lost or is_shared_lost)

    @property
    def has_shared_secret(self) -> bool:
        """Whether forwarded calls are signed with a secret that the provider has too."""
        return self.forward_signature == "hmac-sha256"

    def current_terms(self, *, since_ms: int) -> Terms:
        described, digests = self._list_described()
        return Terms(
            price=self.price,
            metering=self.metering,
            free_calls=self.free_calls,
            currency=self.currency,
            networks=self.networks,
            pay_to=self.pay_to,
            operations=self.operations,
            other_paths=self.other_paths,
            methods=self.methods,
            described=described,
            described_digests=digests,
            charge_on=self.charge_on,
            status=self._find_status(),
            since_ms=since_ms,
            until_ms=None,
        )

    def _list_described(self) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        """Operations in the order of the document, up to the maximum length, and the digests of the others."""
        if self.other_paths == "serve" or self.openapi is None:
            return (), ()
        remaining, found, digests = DESCRIBED_CHARACTERS_MAX, [], []
        for operation in walk_operations(self.openapi):
            remaining -= len(operation.method) + len(operation.path)
            if remaining >= 0:
                found.append((operation.method, operation.path))
            else:
                digests.append(digest_operation(operation.method, operation.path))
        return tuple(found), tuple(digests)

    def _find_status(self) -> TermsStatus:
        if self.retired_ms is not None:
            return "retired"
        return self.status if self.suspended_ms is None else "suspended"


def write_members(listing: Listing) -> dict[str, Any]:
    """The members that the provider has set, as the details of the listing have them: of a secret only whether it is stored."""
    return {
        field.member: _WRITE.get(field.kind, _as_it_is)(getattr(listing, field.attribute)) for field in FIELDS
    }


def _as_it_is(value: Any) -> Any:
    return value


def _write_rate_limit(limit: RateLimit | None) -> dict[str, Any] | None:
    return None if limit is None else {"calls": limit.calls, "perSeconds": limit.per_s}


def write_free_calls(free_calls: FreeCalls | None) -> dict[str, Any] | None:
    """`perSeconds` only where the calls come back."""
    if free_calls is None:
        return None
    period = {} if free_calls.per_s is None else {"perSeconds": free_calls.per_s}
    return {"count": free_calls.count, **period}


def _write_operation(operation: Operation) -> dict[str, Any]:
    """`metering` only where the price is metered."""
    written = {"method": operation.method, "path": operation.path, "pricePerRequest": operation.price.text}
    formula = _write_formula(operation.metering)
    return written if formula is None else {**written, "metering": formula}


def _write_formula(metering: Metering | None) -> dict[str, Any] | None:
    return None if metering is None else write_metering(metering)


def _write_secret(auth: UpstreamAuth | None) -> dict[str, Any] | None:
    return None if auth is None else {"in": auth.location, "name": auth.name, "set": auth.value is not None}


_WRITE: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.PRICE: lambda price: price.text,
    Kind.ADDRESS: str,
    Kind.CHOICE: str,
    Kind.WORDS: list,
    Kind.PHRASES: list,
    Kind.NETWORKS: lambda networks: [format_network(chain_id) for chain_id in networks],
    Kind.METERING: _write_formula,
    Kind.OPERATIONS: lambda operations: [_write_operation(one) for one in operations],
    Kind.RATE_LIMIT: _write_rate_limit,
    Kind.FREE_CALLS: write_free_calls,
    Kind.SECRET: _write_secret,
}


def digest_operation(method: str, path: str) -> str:
    """The digest of one operation of a document. Only the provider chooses what it is made from, so 64 bits are enough."""
    return sha256(f"{method} {path}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_CHARACTERS]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A listing with the versions of its terms that can still price a payment, newest first; the first is in force."""

    listing: Listing
    versions: tuple[Terms, ...]


ConfirmationsFor = Callable[[Asset, int], int]
"""The confirmations that a payment of so many ledger units of an asset needs."""


IsOffered = Callable[[Asset, int], bool]
"""Whether this gateway can settle an authorisation over so many ledger units of an asset now."""

SETTLEMENT_MARGIN_S = 60
"""The time beyond the upstream's timeout for which an authorisation must be valid: half to reach the gateway, half to settle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOption:
    """One way to pay: one transfer of `amount_base_units` of `asset` to `pay_to`.

    Rail `tx`: a transaction of the caller's own, with so many confirmations. Rail `x402`: a signed authorisation, valid for
    `max_timeout_s` from now.
    """

    rail: Literal["tx", "x402", "channel"]
    asset: Asset
    amount_base_units: int
    pay_to: Address
    confirmations: int
    max_timeout_s: int | None = None
    channel: Mapping[str, Any] | None = None
    """Of the rail `channel`: what a client needs to open one, as the protocol names it."""


def list_payment_options(
    terms: Terms | Listing,
    offered: OfferedPrice,
    *,
    assets: Iterable[Asset],
    confirmations_for: ConfirmationsFor,
    timeout_s: int,
    is_offered: IsOffered,
    channels: Mapping[Asset, Mapping[str, Any]],
) -> tuple[PaymentOption, ...]:
    """All ways to pay a price, in the order of the listing's networks, then of `assets`: for each asset a transaction
    of the caller's own, then an authorisation where the token supports it and `is_offered` is true, then a channel where `channels` has the asset. A metered price has no authorisation: it cannot take
    less than was signed."""
    price = offered.price
    found: list[PaymentOption] = []
    for option in list_transaction_options(terms, price, assets=assets, confirmations_for=confirmations_for):
        found.append(option)
        signed = replace(option, rail="x402", max_timeout_s=timeout_s + SETTLEMENT_MARGIN_S)
        is_fixed = offered.metering is None and option.asset.domain is not None
        if is_fixed and is_offered(option.asset, price.units_in(option.asset)):
            found.append(signed)
        if option.asset in channels:
            found.append(replace(signed, rail="channel", channel=channels[option.asset]))
    return tuple(found)


def list_transaction_options(
    terms: Terms | Listing, price: Price, *, assets: Iterable[Asset], confirmations_for: ConfirmationsFor
) -> tuple[PaymentOption, ...]:
    """The ways to pay `price` by a transaction of the caller's own, one for each asset.

    In the order of the listing's networks, then of `assets`. Empty for a price of zero.
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
    """The networks decide the order."""
    known = tuple(assets)
    return tuple(
        asset
        for chain_id in networks
        for asset in known
        if asset.chain_id == chain_id and asset.symbol == currency
    )


_IGNORED_HEADERS = frozenset({"accept", "content-type"})
"""OpenAPI 3.1 §4.8.12.1: parameters with these names are ignored, and `Authorization`, which is a control header here."""


def accepts_method(methods: Sequence[str], method: str) -> bool:
    """Whether a listing with those `methods` serves the method. GET includes HEAD; empty `methods` include all."""
    return not methods or method in methods or priced_verb(method) in methods


def is_sent_by_caller(listing: Listing, parameter: DocumentParameter) -> bool:
    """Whether the caller sends this parameter: the gateway does not add it, and it is no control header of the gateway."""
    auth, lower = listing.upstream_auth, parameter.name.lower()
    if auth is not None and lower == auth.name.lower():
        return False
    if parameter.place != "header":
        return True
    return is_header_name(lower) and lower not in _IGNORED_HEADERS and not is_control_header(lower)


def is_offered(listing: Listing, parameter: DocumentParameter) -> bool:
    """Whether a description of the API offers this parameter: the caller sends it, and the gateway forwards it."""
    if not is_sent_by_caller(listing, parameter):
        return False
    return parameter.place != "header" or parameter.name.lower() in _list_forwarded(listing)


def _list_forwarded(listing: Listing) -> frozenset[str]:
    """The names are in lower case."""
    return frozenset(name.lower() for name in (*ALWAYS_FORWARDED, *listing.forward_headers))


def has_documented_operations(content: Mapping[str, Any] | None, methods: Sequence[str]) -> bool:
    operations = ProviderDocument(content or {}).operations
    return any(accepts_method(methods, operation.method) for operation in operations)


def list_unforwarded(listing: Listing, *, most: int) -> list[str]:
    """The first headers that the document has a caller send and that the gateway does not forward, at most `most`."""
    passed = _list_forwarded(listing)
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


def list_unreturned(listing: Listing, *, most: int) -> list[str]:
    """The first response headers of the document that no caller gets, at most `most`, in lower case. Framing is left out."""
    document = ProviderDocument(listing.openapi or {})
    found: dict[str, None] = {}
    for operation in document.operations:
        for name in document.list_response_headers(operation):
            row = find_dropped(name)
            if row is not None and row.group != "framing":
                found[name] = None
        if len(found) >= most:
            break
    return list(found)[:most]


T = TypeVar("T")


class RevisionCache(Generic[T]):
    """A cache of values derived from listings, of at most `entries_max`; the least recently used goes first. For one event loop."""

    def __init__(self, entries_max: int) -> None:
        self._entries: BoundedDict[tuple[ListingId, Hashable], tuple[weakref.ref[Listing], T]] = BoundedDict(
            entries_max=entries_max
        )

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, listing: Listing, key: Hashable) -> T | None:
        """The value of this state of the listing under that key; None when it is not cached."""
        place = (listing.id, key)
        entry = self._entries.get(place)
        if entry is None or entry[0]() is not listing:
            return None
        self._entries.move_to_end(place)
        return entry[1]

    def put(self, listing: Listing, key: Hashable, made: T) -> T:
        """The value of an older state goes."""
        self._entries[listing.id, key] = (weakref.ref(listing), made)
        return made


# ---- The secret of an edited listing.


def moves_secret(given: Mapping[str, Any], previous: Listing) -> bool:
    """Whether an edit moves the endpoint to another origin and keeps the stored secret, which the gateway would send there. `given`: the members that
    the provider sent, of a whole body, a patch or a form."""
    auth = given.get("upstreamAuth", {})
    keeps_secret = (
        previous.upstream_auth is not None and isinstance(auth, Mapping) and auth.get("value") is None
    )
    return keeps_secret and _is_moved(given.get("endpoint"), previous)


def _is_moved(endpoint: object, previous: Listing) -> bool:
    if not isinstance(endpoint, str) or endpoint == previous.endpoint:
        return False
    return _read_origin(endpoint) != _read_origin(previous.endpoint)


def _read_origin(url: str) -> tuple[str, str] | None:
    """Scheme and authority; None for a malformed URL. Two spellings of one origin count as two: the secret is then asked for once more."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts.scheme, parts.netloc.lower()
