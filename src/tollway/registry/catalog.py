"""The catalog: the ports through which listings and idempotency keys of `POST /apis` are stored.

A key of `POST /apis` is held by one request at a time, under a lease. A listing and its stored response are written in one transaction
(`Catalog.publish_once`): a key without a response is a listing that does not exist.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from tollway.audit_log import AuditEntry
from tollway.ids import Address, ChainId, ListingId
from tollway.registry.listing import CatalogEntry, Listing, Terms
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation

CREATION_KEY_TTL_S = 86_400


HeadTimes = Mapping[ChainId, int]
"""The time of the newest block of some networks, in unix seconds."""
NO_HEADS: HeadTimes = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCreation:
    """A request to create a listing, with its idempotency key. `fingerprint`: SHA-256 of its body."""

    wallet: Address
    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationBegun:
    """A lease of the key: this request holds it until the lease ends. `claim` proves it."""

    wallet: Address
    key: str
    claim: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationInProgress:
    """The same request is running. After `wait_s` it has ended or has lost the key."""

    wait_s: int


@dataclass(frozen=True, slots=True)
class OtherRequest:
    """The key was used with another body."""


@dataclass(frozen=True, slots=True)
class TooManyKeys:
    """The wallet has `creation_keys_max` keys already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationResponse:
    """The response to the create of a listing. `body` None: it was too long to store, or it was deleted because all stored
    bodies together reached `creation_responses_bytes_max`."""

    listing_id: ListingId
    location: str
    etag: str
    body: bytes | None


CreationOutcome = CreationBegun | CreationInProgress | OtherRequest | TooManyKeys | CreationResponse


class Creations(Protocol):
    """The store of idempotency keys of `POST /apis`. Every method is atomic."""

    async def begin(self, request: KeyedCreation, *, claim: bytes) -> CreationOutcome:
        """Takes the key, or returns its state. Of concurrent requests at all gateways one gets `CreationBegun`. A key
        is free again when its lease ended without a listing, or when it is older than `CREATION_KEY_TTL_S`."""
        ...

    async def release(self, begun: CreationBegun) -> None:
        """Frees the key, unless a listing was created under it or another request has taken it since."""
        ...

    async def prune(self) -> int:
        """Returns the number of deleted keys."""
        ...


FACET_VALUES_MAX = 50
TOTAL_EXACT_MAX = 10_000
"""The limit to which totals of filtered lists are counted; beyond it, the total is a lower bound."""

TERMS_RETENTION_S = 2 * 86_400 + 7_200
"""How long a `CatalogEntry` contains ended terms: the maximum age of a payment (24 h), the time for which an old payee counts (24 h), and slack."""

Sort = Literal["recommended", "relevance", "newest", "price", "-price", "name"]

SCORED_IN_TURN = 4
"""In the order `recommended`, so many listings with a score stand before each one without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCurrency:
    """A currency on a network, as listings are sold in it."""

    chain_id: ChainId
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingQuery:
    """A page of the catalog. `page` is 1-based. `words`: full text over name, description, tags, operations and domain
    (`search_tokens.py`); a text without any word finds nothing.

    `relevance` finds listings with some of the words, those with all of them first, by the rank of the words times the weight of measured
    quality (`quality.rate_weight`). The other orders find listings with all words or, where there are none, with some.
    `recommended` has the listings with a score (`quality.score_listing`), the highest first, and after each `SCORED_IN_TURN` of them one
    without a score, the newest first; with words it is `relevance`, and without words `relevance` is `recommended`. `newest` is the order of
    publishing; ties of `price` and `name` go oldest first, of all others newest first. `tag` is compared without case, accents and width.
    `min_success_rate`, from 0 to 1, finds only listings whose quality is measured; `verified` True only listings whose ownership is proved,
    False only the others. `skip`: the number of listings before the first page.

    `network_currencies`: only active listings that have a price (their own, or of an operation) and are sold in one of these;
    an empty tuple finds nothing.
    """

    page: int = 1
    limit: int = 20
    words: str | None = None
    provider: Address | None = None
    currency: str | None = None
    network: ChainId | None = None
    tag: str | None = None
    price_nano_max: int | None = None
    min_success_rate: float | None = None
    verified: bool | None = None
    pay_to: Address | None = None
    network_currencies: tuple[NetworkCurrency, ...] | None = None
    sort: Sort = "recommended"
    skip: int = 0

    @property
    def is_ranked(self) -> bool:
        return self.sort in ("relevance", "recommended")

    @property
    def start(self) -> int:
        return self.skip + (self.page - 1) * self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingMatch:
    """One listing of a page. Its `openapi` and `upstream_auth` are None: a page must not read a hundred documents, nor
    decrypt a secret. `match`: the fields that contain some of the words (`search_tokens.FIELDS`)."""

    listing: Listing
    match: tuple[str, ...] = ()
    reputation: Reputation = UNKNOWN_REPUTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A word of a search that no visible listing has, and the word that was searched in its place."""

    word: str
    replacement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingPage:
    """`total`: the listings of all pages. With words, `total_all`: those of the query that have all words, counted to `TOTAL_EXACT_MAX`; `words`: the words
    that were searched, folded, without those that say nothing, and after `corrections`."""

    found: tuple[ListingMatch, ...]
    total: int
    is_lower_bound: bool = False
    total_all: int = 0
    words: tuple[str, ...] = ()
    corrections: tuple[Correction, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    listing: Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionConflict:
    """Another edit came first; `revision` is the current one."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFacets:
    """Counts of the listings of a search by tag, currency and network, the most frequent first, each at most `FACET_VALUES_MAX` values. `total`: the counted
    listings, the newest of a larger search (`is_lower_bound`). A listing of several tags or networks counts for each."""

    tags: tuple[tuple[str, int], ...] = ()
    currencies: tuple[tuple[str, int], ...] = ()
    networks: tuple[tuple[ChainId, int], ...] = ()
    total: int = 0
    is_lower_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingRange:
    """The public listings of a range of publication numbers: each with the time of its last edit, in the order of publication. `last_number`: the highest number
    of all listings, 0 without one."""

    listings: tuple[tuple[ListingId, int], ...]
    last_number: int


class PayeeTerms(NamedTuple):
    """A payee of a listing that is not retired, with one of its networks and its currency."""

    pay_to: Address
    chain_id: ChainId
    currency: str


class Catalog(Protocol):
    """The store of listings and their terms. Every method is atomic, and durable when it returns."""

    async def publish(self, listing: Listing, *, heads: HeadTimes = NO_HEADS) -> None:
        """Adds a listing and its first terms. `heads`: read just before, of its networks."""
        ...

    async def publish_once(
        self,
        listing: Listing,
        *,
        under: CreationBegun,
        answer: CreationResponse,
        heads: HeadTimes = NO_HEADS,
    ) -> bool:
        """Writes the listing as `publish` does and, in the same transaction, the response under its idempotency key. False, and
        nothing written, when another request holds the key."""
        ...

    async def revise(
        self,
        listing: Listing,
        *,
        expected_revision: int,
        audit_entry: AuditEntry | None = None,
        heads: HeadTimes = NO_HEADS,
    ) -> Revised | RevisionConflict:
        """Replaces a listing that has `expected_revision`; new terms begin when they differ from the last ones.

        The new terms begin, and the last ones end, at the time of the ledger's clock: the clocks of gateways differ, and an edit must
        not end a price before its callers have seen the next one. `heads`: read just before, where the edit changes `payTo`.
        The stored revision is `expected_revision` + 1; the one of the record does not count. To retire or suspend a listing, set
        `retired_ms` or `suspended_ms`. `audit_entry`: the entry of the audit log about the change, recorded in its transaction. A suspension
        has the time and the reason of its audit entry (`suspended_ms`, `suspended_reason`).
        """
        ...

    async def find(self, listing_id: ListingId) -> CatalogEntry | None:
        """The listing with its recent terms, also a retired or suspended one. Cheap: every gateway call reads it. A change by
        this process counts at once, a change by another process within a second."""
        ...

    async def terms_since(self, listing_id: ListingId, moment_ms: int) -> tuple[Terms, ...]:
        """The newest version comes first."""
        ...

    async def list_payee_heads(self, entry: CatalogEntry, chain_id: ChainId) -> Mapping[Address, int]:
        """The time of the network's head, in unix seconds, as each payee of the entry's versions began: the earliest of each. A payee
        is missing where no node returned it."""
        ...

    async def reputation(self, listing_id: ListingId) -> Reputation:
        """The measured quality and the ownership of a listing; `UNKNOWN_REPUTATION` when there is no such listing. One read of an
        index. Measured quality can be a minute behind the calls."""
        ...

    async def search(self, query: ListingQuery) -> ListingPage:
        """A page of active and paused listings; it never contains retired or suspended ones."""
        ...

    async def list_range(self, first: int, last: int) -> ListingRange:
        """The active and paused listings whose number is from `first` to `last`. A listing keeps its number, so that it stays in one range. Reads no
        document."""
        ...

    async def list_own(
        self, provider: Address, *, limit: int, offset: int, only_suspended: bool = False
    ) -> tuple[ListingMatch, ...]:
        """The listings of a provider that are not retired: the newest first, and after them the suspended ones. Also those whose ownership is not proved,
        where searches return proved listings only. `only_suspended`: the suspended ones alone."""
        ...

    async def count_facets(self, words: str | None) -> CatalogFacets:
        """Counts the visible listings that match the words, all without words; at most the newest `TOTAL_EXACT_MAX`."""
        ...

    async def is_payee_shared(self, pay_to: Address, provider: Address) -> bool:
        """True when a listing of another provider names the same payee."""
        ...

    async def list_suspended(self) -> tuple["SuspendedListing", ...]:
        """The suspended listings that are not retired, the latest suspension first, at most `SUSPENDED_MAX`."""
        ...


SUSPENDED_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedListing:
    id: ListingId
    name: str
    provider: Address
    suspended_ms: int
    price: str
    currency: str
    reason: str = ""
