"""The catalog: the ports through which listings, idempotency keys of `POST /apis` and blocked wallets are stored. Stores in SQL and in
memory pass one contract suite each.

A key of `POST /apis` is held by one request at a time, under a lease. A listing and its stored response are written in one transaction
(`Catalog.publish_once`): a key without a response is a listing that does not exist.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

from tollway.errors import Code, Problem
from tollway.ids import Address, ChainId, ListingId
from tollway.registry.listing import CatalogEntry, Listing, Terms
from tollway.registry.quality import UNKNOWN_REPUTATION, Reputation


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCreation:
    """What a request to create a listing came with. `fingerprint`: SHA-256 of its body."""

    wallet: Address
    key: str
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationBegun:
    """The key is this request's until its lease ends; `claim` is the proof."""

    wallet: Address
    key: str
    claim: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationInProgress:
    """The same request is running. `wait_s`: by then it has ended, or lost the key."""

    wait_s: int


@dataclass(frozen=True, slots=True)
class OtherRequest:
    """The key came with another body before."""


@dataclass(frozen=True, slots=True)
class TooManyKeys:
    """The wallet has as many keys in the ledger as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreationResponse:
    """What was answered when the listing was created. `body` None: it was too long to keep, or was dropped
    for newer ones when all that are kept came to `creation_answers_bytes_max`."""

    listing_id: ListingId
    location: str
    etag: str
    body: bytes | None


CreationOutcome = CreationBegun | CreationInProgress | OtherRequest | TooManyKeys | CreationResponse


class Creations(Protocol):
    """Every method is atomic, and raises `StorageUnavailable` when the store is away or does not know keys yet."""

    async def begin(self, request: KeyedCreation, *, claim: bytes) -> CreationOutcome:
        """Takes the key, or says what became of it. Of many who ask at once, at any gateway, one gets `CreationBegun`. A key
        whose lease has ended without a listing, or that is older than `creation_key_ttl_s`, is free again."""
        ...

    async def give_up(self, begun: CreationBegun) -> None:
        """Frees the key, unless a listing was created under it or somebody else has taken it meanwhile."""
        ...

    async def prune(self) -> int:
        """Forgets keys older than `creation_key_ttl_s`."""
        ...


TOTAL_EXACT_MAX = 10_000
"""Totals of filtered lists are counted up to here; beyond, the total is a lower bound."""

TERMS_RETENTION_S = 2 * 86_400 + 7_200
"""How long ended terms ride along in a `CatalogEntry`: a payment's age (24 h), its payee memory (24 h), and some slack."""

Sort = Literal["newest", "price", "-price", "name", "relevance"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCurrency:
    """A network and a currency in which something is sold."""

    chain_id: ChainId
    currency: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingQuery:
    """A page of the catalog. `page` is 1-based. `words`: full text over name, description and tags; every word must
    stand in one of them (whole words, see `words.py`), and text without any word finds nothing.

    `newest` is the order of publishing; ties of `price` and `name` go oldest first, of `-price` and `relevance` newest
    first. `relevance` is that of the words, weighed by measured quality (`app.wiring.rank_weight`). `tag` is compared without
    case, accents and width. `min_success_rate`, from 0 to 1, finds only listings whose quality is measured; `verified`
    those whose ownership is proved, or is not. `skip`: how many are passed over before the first page.

    `network_currencies`: only active listings that cost something (whole, or one of their operations) and are sold in one of these;
    in none of no markets.
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
    sort: Sort = "newest"
    skip: int = 0

    @property
    def start(self) -> int:
        """How many listings stand before this page."""
        return self.skip + (self.page - 1) * self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingMatch:
    """One listing of a page, without its `openapi` and `upstream_auth` (None): a page must not read a hundred
    documents, nor open a secret. `match`: which fields the words were found in (`name`, `description`, `tags`)."""

    listing: Listing
    match: tuple[str, ...] = ()
    reputation: Reputation = UNKNOWN_REPUTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingPage:
    found: tuple[ListingMatch, ...]
    total: int
    is_lower_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised:
    listing: Listing


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionConflict:
    """Somebody else changed the listing first; `revision` is the one it has now."""

    revision: int


class Catalog(Protocol):
    """Every method is atomic and durable when it returns, and raises `StorageUnavailable` when the store is away."""

    async def publish(self, listing: Listing) -> None:
        """Adds a listing and its first terms."""
        ...

    async def publish_once(self, listing: Listing, *, under: CreationBegun, answer: CreationResponse) -> bool:
        """`publish`, and in the same transaction the answer under its idempotency key. False when the key is somebody
        else's by now: then nothing was written."""
        ...

    async def revise(self, listing: Listing, *, expected_revision: int) -> Revised | RevisionConflict:
        """Replaces a listing that still has `expected_revision`; new terms begin when they differ from the last.

        The stored revision is `expected_revision` + 1, whatever the record carries. A listing with `retired_ms` or
        `suspended_ms` set is how retiring and suspending are written.
        """
        ...

    async def find(self, listing_id: ListingId) -> CatalogEntry | None:
        """The listing with its recent terms, retired and suspended ones included. Cheap: the hot path asks it for
        every call. A change by this process shows at once, one by another process within a second."""
        ...

    async def terms_since(self, listing_id: ListingId, moment_ms: int) -> tuple[Terms, ...]:
        """All versions that were in force at any time since `moment_ms`, newest first."""
        ...

    async def reputation(self, listing_id: ListingId) -> Reputation:
        """What is known of a listing beside its words; `UNKNOWN_REPUTATION` of one that is not there. One look into an
        index. Measured quality may be a minute behind the calls."""
        ...

    async def search(self, query: ListingQuery) -> ListingPage:
        """A page of active, paused, never of retired or suspended listings."""
        ...

    async def is_payee_shared(self, pay_to: Address, provider: Address) -> bool:
        """True when a listing of another provider names the same payee."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedWallet:
    wallet: Address
    reason: str
    since_ms: int


class Moderation(Protocol):
    """Raises `StorageUnavailable` when the store is away, except `is_blocked`, which asks nobody."""

    def is_blocked(self, wallet: Address) -> bool:
        """Cheap; for every call. A block by this process shows at once, one by another after `refresh`."""
        ...

    async def refresh(self) -> None:
        """Reads the blocks anew. Run every second."""
        ...

    async def block(self, wallet: Address, *, reason: str, now_ms: int) -> bool:
        """False when the wallet was blocked already; then its reason and moment stay."""
        ...

    async def unblock(self, wallet: Address) -> bool:
        """False when the wallet was not blocked."""
        ...

    async def list_blocked(self) -> tuple[BlockedWallet, ...]:
        """Every block, oldest first."""
        ...


def check_registration(
    provider: Address,
    *,
    allowlist: Collection[Address] | None,
    is_blocked: bool,
) -> Problem | None:
    """May this wallet publish here? None when it may. `allowlist` None: anybody may who is not blocked."""
    if is_blocked:
        return BLOCKED
    if allowlist is not None and provider not in allowlist:
        return Problem(
            code=Code.NOT_PROVIDER,
            detail="Only wallets that the operator has admitted may publish here.",
            reason="not_on_allowlist",
        )
    return None


BLOCKED = Problem(code=Code.WALLET_BLOCKED, detail="The operator of this gateway has blocked this wallet.")
