"""Who owns the origin that a listing leads to: what its provider is asked to put there, and what becomes of a proof.

Pure, and a port. An origin is proved by what its server or its name says, never by what somebody sends to us: whoever
can only sign may sign the name of any origin. A proof is about one wallet, one origin and one gateway, so that a copy of
it proves nothing for anybody else.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

from tollway.errors import Code, Problem
from tollway.ids import Address, ChainId, ListingId
from tollway.registry.draft import ListingWarning
from tollway.registry.listing import Listing

Method = Literal["wellKnown", "dns", "signature"]
METHODS: tuple[Method, ...] = ("wellKnown", "dns", "signature")
"""Where several proofs are there, the first of them is named."""

WELL_KNOWN_PATH = "/.well-known/tollway-verification"
DOCUMENT_PATH = "/openapi.json"
DOCUMENT_MEMBERS = ("x-discovery", "x-agentcash-provenance")
"""Members of an OpenAPI document that hold `ownershipProofs`, as crawlers of paid APIs read them; the first is ours."""
DNS_LABEL = "_tollway"
PROOFS_MAX = 8
"""Signatures of one document that are looked at: a contract wallet is asked on its chain about each."""

_TAG = "tollway-verification="
_PURPOSE = b"tollway ownership\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """What proves that `origin` is `provider`'s. `host` None: the origin is an address, which has no name to ask about.
    `origin` empty: the endpoint is none by today's rules, and nothing proves it.

    `content`: a line of the file or a text of the name. `networks`: where a contract wallet at `pay_to` may stand.
    """

    listing_id: ListingId
    origin: str
    host: str | None
    provider: Address
    pay_to: Address
    networks: tuple[ChainId, ...]
    content: str

    @property
    def file_url(self) -> str:
        return self.origin + WELL_KNOWN_PATH

    @property
    def document_url(self) -> str:
        return self.origin + DOCUMENT_PATH

    @property
    def dns_name(self) -> str | None:
        return None if self.host is None else f"{DNS_LABEL}.{self.host}"

    def is_met_by(self, texts: Iterable[str]) -> bool:
        """Whether one of the lines of a file, or of the texts of a name, is ours. Others may stand beside it."""
        return any(text.strip() == self.content for text in texts)


def make_content(gateway: str, *, provider: Address, origin: str) -> str:
    """The line that a provider puts at an origin. `gateway`: its public origin. No secret is in it, so that none has to be
    kept for it: whoever can put up a line has the origin, and anybody may ask for one about himself."""
    message = _PURPOSE + f"{gateway}\n{provider}\n{origin}".encode()
    token = base64.urlsafe_b64encode(hashlib.sha256(message).digest()).rstrip(b"=")
    return _TAG + token.decode()


def find_signatures(document: object) -> tuple[str, ...]:
    """The ownership proofs of an OpenAPI document, as texts of any kind."""
    if not isinstance(document, Mapping):
        return ()
    found: list[str] = []
    for name in DOCUMENT_MEMBERS:
        member: Any = document.get(name)
        proofs = member.get("ownershipProofs") if isinstance(member, Mapping) else None
        if isinstance(proofs, list):
            found += [proof for proof in proofs if isinstance(proof, str)]
    return tuple(found[:PROOFS_MAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What is known about the origin of a listing. `verified_ms`: when it was last proved; None when it is not, or not any
    more. `failures`: checks in a row that found no proof. `signer`: who signed, where `method` is a signature.
    """

    origin: str
    method: Method | None
    signer: Address | None
    verified_ms: int | None
    checked_ms: int
    failures: int

    @property
    def is_verified(self) -> bool:
        return self.verified_ms is not None


def apply_check(
    before: Ownership | None,
    challenge: Challenge,
    proved: Iterable[Method],
    *,
    now_ms: int,
    failures_max: int,
) -> Ownership:
    """What is known after a look. A proof that is missing for the `failures_max`th time in a row is no more."""
    found = frozenset(proved)
    method = next((method for method in METHODS if method in found), None)
    if before is not None and before.origin != challenge.origin:
        before = None
    if method is not None:
        return Ownership(
            origin=challenge.origin,
            method=method,
            signer=challenge.pay_to if method == "signature" else None,
            verified_ms=now_ms,
            checked_ms=now_ms,
            failures=0,
        )
    if before is None:
        before = Ownership(
            origin=challenge.origin, method=None, signer=None, verified_ms=None, checked_ms=now_ms, failures=0
        )
    failures = before.failures + 1
    return replace(
        before,
        verified_ms=before.verified_ms if failures < failures_max else None,
        checked_ms=now_ms,
        failures=failures,
    )


def is_still_of(ownership: Ownership, *, origin: str, pay_to: Address) -> bool:
    """Whether what is known holds for a listing that leads there and pays that wallet."""
    return ownership.origin == origin and ownership.signer in (None, pay_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaim:
    """Of a listing, what a proof is about."""

    listing_id: ListingId
    provider: Address
    pay_to: Address
    networks: tuple[ChainId, ...]
    endpoint: str

    @classmethod
    def of(cls, listing: Listing) -> Self:
        return cls(
            listing_id=listing.id,
            provider=listing.provider,
            pay_to=listing.pay_to,
            networks=listing.networks,
            endpoint=listing.endpoint,
        )


class Ownerships(Protocol):
    """Where it is kept. Every method is atomic, durable when it returns, and raises `StorageUnavailable`."""

    async def find(self, listing_id: ListingId) -> Ownership | None:
        """None: never checked, or there is no such listing."""
        ...

    async def record_check(
        self, challenge: Challenge, proved: Iterable[Method], *, now_ms: int, failures_max: int
    ) -> Ownership | None:
        """Writes what a check found. None, and nothing written, when the listing has changed since in what the proof is
        about, or is retired."""
        ...

    async def find_due(self, *, before_ms: int, limit: int) -> tuple[OwnershipClaim, ...]:
        """Proved listings that were last checked before that, the longest ago first."""
        ...

    async def find_owner(self, origin: str) -> Address | None:
        """The provider of the oldest listing for which this origin is proved."""
        ...

    async def is_verified(self, listing_id: ListingId) -> bool:
        """Cheap; for every call. A change counts within a second."""
        ...


UNVERIFIED = Problem(
    code=Code.OWNERSHIP_UNVERIFIED,
    detail="The provider has not proved yet that this API's endpoint is theirs; until then nothing is sold here.",
    payment_state="none",
)
OWNED_BY_ANOTHER = Problem(
    code=Code.ALREADY_EXISTS,
    detail="Another wallet has proved that this origin is theirs. Publish with that wallet, or let its proof end.",
)
UNVERIFIED_WARNING = ListingWarning(
    code="ownership_unverified",
    detail="The listing is neither shown nor called until you have proved that the endpoint's origin is yours: "
    "GET /api/v2/apis/{apiId}/ownership says how.",
    pointer="/endpoint",
)
