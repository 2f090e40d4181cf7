"""Sign-in to the operator's pages by a code that a command prints, and the port of the store of codes and sessions.

Access to the machine makes an operator: a user who can run `tollway gateway admin link` gets a code that counts once, within five minutes. A session lasts eight
hours and has the user and host of the command, so that each act on a page has an actor. The store has SHA-256 hashes, never a code or a token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tollway.identity.sessions import format_token, hash_token

CODE_TTL_S = 300
SESSION_TTL_S = 8 * 3_600
ENTRY_PATH = "/enter"
"""The page of the link: its form spends the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSession:
    """A session on the operator's pages. `actor`: the user and host that asked for the link."""

    token_hash: bytes = field(repr=False)
    actor: str
    created_ms: int
    expires_ms: int


class AdminSessionStore(Protocol):
    """A store of codes and sessions. Every method is atomic and raises `StorageUnavailable`. Safe to use from many tasks and gateways at once."""

    async def put_code(self, code_hash: bytes, *, actor: str, expires_ms: int) -> None: ...

    async def spend_code(self, code_hash: bytes, *, token_hash: bytes, now_ms: int, expires_ms: int) -> bool:
        """Deletes the code and opens a session of its actor, in one transaction. False for an unknown, spent or expired code; of concurrent calls one gets
        True. Deletes what has expired."""
        ...

    async def find_admin_session(self, token_hash: bytes, *, now_ms: int) -> AdminSession | None:
        """None for an unknown, closed or expired session."""
        ...

    async def delete_admin_session(self, token_hash: bytes) -> None: ...


async def create_code(
    store: AdminSessionStore, *, actor: str, now_ms: int, entropy: Callable[[int], bytes]
) -> str:
    """A new code for one sign-in. `entropy(n)`: n random bytes that are fit for secrets."""
    code = format_token(entropy(32))
    code_hash = hash_token(code)
    assert code_hash is not None
    await store.put_code(code_hash, actor=actor, expires_ms=now_ms + CODE_TTL_S * 1000)
    return code


class AdminSignIn:
    """The sign-in of operators at one gateway. Safe to use from many tasks at once."""

    def __init__(
        self, store: AdminSessionStore, *, now_ms: Callable[[], int], entropy: Callable[[int], bytes]
    ) -> None:
        self._store = store
        self._now_ms = now_ms
        self._entropy = entropy

    async def open_session(self, code: str) -> str | None:
        """Spends the code and returns the token of a new session; None where the code does not count."""
        code_hash = hash_token(code)
        if code_hash is None:
            return None
        token = format_token(self._entropy(32))
        token_hash, now_ms = hash_token(token), self._now_ms()
        assert token_hash is not None
        is_spent = await self._store.spend_code(
            code_hash, token_hash=token_hash, now_ms=now_ms, expires_ms=now_ms + SESSION_TTL_S * 1000
        )
        return token if is_spent else None

    async def find_session(self, token: str) -> AdminSession | None:
        token_hash = hash_token(token)
        if token_hash is None:
            return None
        return await self._store.find_admin_session(token_hash, now_ms=self._now_ms())

    async def close_session(self, session: AdminSession) -> None:
        await self._store.delete_admin_session(session.token_hash)
