"""Idempotency keys of `POST /apis`: one key of a wallet, one listing, however often and wherever the request is sent.
A port; `storage/creation_store.py` keeps the keys in SQL, `tests/model` in memory. Both pass one contract suite.

A key is held by one creation at a time, under a lease, so that one whose gateway died does not hold it for ever. That
the listing was created and what was answered are written in one transaction (`Catalog.publish_once`): a key without an
answer is a listing that does not exist.
"""

from dataclasses import dataclass
from typing import Protocol

from tollway.identifiers import Address, ListingId


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
