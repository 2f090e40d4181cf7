"""What the door remembers: nonces given out, sessions opened, request signatures already used.

A port with its records; `storage/session_store.py` keeps them in SQL, `tests/model` in memory. Both pass one
contract suite. Nothing here judges a signature, and no token is ever kept: only its SHA-256.
"""

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import Protocol

from tollway.identifiers import Address, ChainId

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInNonce:
    """A nonce that we made. `uri` None: given to somebody who named no URI; it opens a session or reads."""

    nonce: str
    uri: str | None
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A wallet that signed in. `chain_id`: the chain that the message named. `token_hash`: SHA-256 of the token."""

    token_hash: bytes = field(repr=False)
    address: Address
    chain_id: ChainId
    created_ms: int
    expires_ms: int


class SessionStore(Protocol):
    """Every method is atomic and raises `StorageUnavailable` when the store is away. Many may call at once."""

    async def issue_nonce(self, nonce: SignInNonce) -> None:
        """Remembers a nonce of ours until it is taken or expires."""
        ...

    async def take_nonce(self, nonce: str, *, now_ms: int) -> SignInNonce | None:
        """Of all who ask, one gets it, once, before it expires; None for everybody else. Durable when it returns."""
        ...

    async def put_session(self, session: Session) -> None: ...

    async def find_session(self, token_hash: bytes, *, now_ms: int) -> Session | None:
        """A session that was opened, not closed, and has not expired."""
        ...

    async def delete_session(self, token_hash: bytes) -> None:
        """Closes a session; no difference where there is none."""
        ...

    async def remember_signature_nonce(self, keyid: str, nonce: str, *, expires_ms: int) -> bool:
        """True for the first who shows this pair, False for everybody after. Durable when it returns."""
        ...

    async def prune(self, *, now_ms: int) -> int:
        """Forgets what has expired by itself; how many rows that were."""
        ...


def format_token(entropy: bytes) -> str:
    """32 random bytes as a bearer token: 43 characters."""
    return base64.urlsafe_b64encode(entropy).rstrip(b"=").decode()


def hash_token(token: str) -> bytes | None:
    """What is kept of a token; None for text that cannot be one of ours."""
    return hashlib.sha256(token.encode()).digest() if _TOKEN.fullmatch(token) else None
