"""Ownership of a listing's origin: the content that its provider publishes there, the result of a check, and the port of their store. Pure.

A proof is read from the origin's server or from DNS, never from a request: a client can sign the name of any origin. A proof is about one wallet, one
origin and one gateway, so a copy of it proves nothing for another wallet.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self

from tollway.errors import Code, Problem
from tollway.ids import Address, ChainId, ListingId
from tollway.registry.listing import Listing
from tollway.registry.listing_warnings import ListingWarning

Method = Literal["wellKnown", "dns", "signature"]
METHODS: tuple[Method, ...] = ("wellKnown", "dns", "signature")
"""In order of preference: with several proofs the first of them is reported."""

WELL_KNOWN_PATH = "/.well-known/tollway-verification"
DOCUMENT_PATH = "/openapi.json"
DOCUMENT_MEMBERS = ("x-discovery", "x-agentcash-provenance")
"""Members of an OpenAPI document that contain `ownershipProofs`, as crawlers of paid APIs read them. The gateway's own document has the first."""
DNS_LABEL = "_tollway"
PROOFS_MAX = 8
"""The maximum number of signatures of one document that are verified: each can cost a call to a contract wallet on its chain."""

_TAG = "tollway-verification="
_PURPOSE = b"tollway ownership\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """The content that proves that `origin` belongs to `provider`. `host` None: the origin is an IP address, which has no DNS name.
    `origin` empty: today's rules refuse the endpoint, and no proof is possible.

    `content`: a line of the file or a DNS TXT record. `networks`: the chains on which `pay_to` may be a contract wallet.
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

    def is_met_by(self, texts: Sequence[str]) -> bool:
        """Whether one of the lines of a file or of the TXT records is `content`. Others may be beside it."""
        return any(text.strip() == self.content for text in texts)

    def is_another_met_by(self, texts: Sequence[str]) -> bool:
        """Whether one of the lines, which are not `content`, is the line of another listing: of another wallet, origin or gateway."""
        return any(text.strip().startswith(_TAG) for text in texts)


def make_content(gateway: str, *, provider: Address, origin: str) -> str:
    """The line that a provider publishes at an origin. `gateway`: its public origin. It contains no secret: to publish
    it takes control of the origin, and each wallet has a line of its own."""
    message = _PURPOSE + f"{gateway}\n{provider}\n{origin}".encode()
    token = base64.urlsafe_b64encode(hashlib.sha256(message).digest()).rstrip(b"=")
    return _TAG + token.decode()


def find_signatures(document: object) -> tuple[str, ...]:
    """The ownership proofs of an OpenAPI document. Their form is not checked."""
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
    """The result of the checks of a listing's origin. `verified_ms`: the time of the last proof; None without a valid
    one. `failures`: consecutive checks that found no proof. `signer`: the signer, where `method` is a signature.
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
    """The ownership after a check. A proof ends when `failures_max` consecutive checks do not find it."""
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
    return ownership.origin == origin and ownership.signer in (None, pay_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaim:
    """The part of a listing that a proof is about."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginOwner:
    """The listing whose proof of an origin counts, and its wallet."""

    listing_id: ListingId
    provider: Address


class Ownerships(Protocol):
    """The store of ownerships. Every method is atomic, and durable when it returns."""

    async def find(self, listing_id: ListingId) -> Ownership | None:
        """The ownership; None when it was never checked, or when there is no such listing."""
        ...

    async def record_check(
        self, challenge: Challenge, proved: Iterable[Method], *, now_ms: int, failures_max: int
    ) -> Ownership | None:
        """Returns None, and writes nothing, when the listing is retired or has changed in a member of its `OwnershipClaim`."""
        ...

    async def find_due(self, *, before_ms: int, limit: int) -> tuple[OwnershipClaim, ...]:
        """Proved listings whose last check is older than `before_ms`, oldest check first."""
        ...

    async def find_owner(self, origin: str) -> OriginOwner | None:
        """Of several listings with a proof of this origin, the oldest counts that is not suspended."""
        ...

    async def is_verified(self, listing_id: ListingId) -> bool:
        """Cheap: every call reads it. A change counts within a second."""
        ...


UNVERIFIED = Problem(
    code=Code.OWNERSHIP_UNVERIFIED,
    detail="The provider has not proved the ownership of this API's endpoint, so the gateway does not sell it. Choose another API.",
    payment_state="none",
)
OWNED_BY_ANOTHER = Problem(
    code=Code.ALREADY_EXISTS,
    detail="Another wallet has proved the ownership of this origin. Publish with that wallet, or remove its proof from the origin.",
)
OWNED_WARNING = ListingWarning(
    code="endpoint_owned_by_another",
    detail="Another wallet has proved the ownership of this endpoint's origin. Callers read that, and searches list your API behind the others, until you prove it "
    "too. GET /api/v2/apis/{apiId}/ownership returns the ways to prove it; the proof of the other wallet may stay beside yours.",
    pointer="/endpoint",
)
UNVERIFIED_WARNING = ListingWarning(
    code="ownership_unverified",
    detail="The listing is neither listed nor called until you prove the ownership of the endpoint's origin. "
    "GET /api/v2/apis/{apiId}/ownership returns the ways to prove it.",
    pointer="/endpoint",
)
