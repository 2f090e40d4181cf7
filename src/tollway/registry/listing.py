"""What is for sale: a listing, its terms over time, and the rules a provider's text must meet.

Pure. Times are integer milliseconds since the epoch (UTC).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from tollway.identifiers import Address, ChainId, ListingId
from tollway.money import Price
from tollway.registry.openapi_document import walk_operations

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
