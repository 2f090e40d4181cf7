"""Sign-in of a person to the pages, and the port of the store of page sessions (`PageSessionStore`).

A page session is a row of its own table and never a session of the API: the token of a page never counts as `Authorization: Bearer`, and a nonce for the page `/signin`
opens nothing else. It ends after `page_session_ttl_s`, or earlier when no page used it for `page_session_idle_s`. The store has the SHA-256 of a token, never the token.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tollway.identity.sessions import (
    SIGN_IN_PAGE_PATH,
    SignIn,
    SignInChallenge,
    format_token,
    hash_token,
)
from tollway.identity.siwe import PublicOrigin
from tollway.ids import Address, ChainId
from tollway.limits import Limits

USE_INTERVAL_MS = 60_000
"""How often a use of a session is written at most: one write a minute, however many pages a reader opens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSession:
    """A session of one wallet on the pages. `chain_id`: from the signed message. `used_ms`: when a page used it last, to the minute."""

    token_hash: bytes = field(repr=False)
    address: Address
    chain_id: ChainId
    created_ms: int
    used_ms: int
    expires_ms: int


class PageSessionStore(Protocol):
    """A store of page sessions. Every method is atomic."""

    async def put_page_session(self, session: PageSession) -> None: ...

    async def find_page_session(self, token_hash: bytes) -> PageSession | None:
        """The session, also an ended one, until it is pruned; None when it is unknown or closed."""
        ...

    async def mark_page_session_used(self, token_hash: bytes, *, now_ms: int) -> None:
        """Writes the moment of a use. It never moves back. Does nothing for an unknown session."""
        ...

    async def delete_page_session(self, token_hash: bytes) -> None:
        """Does nothing for an unknown session."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPageSession:
    """A page session that was just opened. `token` goes into one cookie and is stored nowhere."""

    token: str = field(repr=False)
    address: Address
    expires_in_s: int


class PageSignIn:
    """The sign-in to the pages of one gateway. `entropy(n)` returns n random bytes that are fit for secrets."""

    def __init__(
        self,
        store: PageSessionStore,
        sign_in: SignIn,
        *,
        origin: PublicOrigin,
        limits: Limits,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._sign_in = sign_in
        self.uri = f"{origin}{SIGN_IN_PAGE_PATH}"
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy

    async def create_challenge(self) -> SignInChallenge:
        """Issues a nonce that counts for a page session only."""
        return await self._sign_in.create_challenge(self.uri)

    async def open_session(
        self, *, text: str, signature: bytes, client_address: str, replaced: str | None = None
    ) -> NewPageSession:
        """Opens a page session for the wallet that signed. `replaced`: the token that the browser had, whose session ends first. Raises what `SignIn.prove` raises."""
        message = await self._sign_in.prove(
            text=text, signature=signature, uris=(self.uri,), client_address=client_address
        )
        if replaced is not None:  # the browser forgets its token, so nothing else can end that session
            await self.close_session(replaced)
        now_ms = self._now_ms()
        token = format_token(self._entropy(32))
        token_hash = hash_token(token)
        assert token_hash is not None
        await self._store.put_page_session(
            PageSession(
                token_hash=token_hash,
                address=message.signer,
                chain_id=message.chain_id,
                created_ms=now_ms,
                used_ms=now_ms,
                expires_ms=now_ms + self._limits.page_session_ttl_s * 1000,
            )
        )
        return NewPageSession(
            token=token, address=message.signer, expires_in_s=self._limits.page_session_ttl_s
        )

    async def find_session(self, token: str) -> PageSession | None:
        """The open session of a token, marked as used; None for an unknown, closed or ended one."""
        token_hash = hash_token(token)
        session = None if token_hash is None else await self._store.find_page_session(token_hash)
        now_ms = self._now_ms()
        if session is None or not is_open(session, idle_s=self._limits.page_session_idle_s, now_ms=now_ms):
            return None
        if now_ms - session.used_ms >= USE_INTERVAL_MS:
            await self._store.mark_page_session_used(session.token_hash, now_ms=now_ms)
        return session

    async def close_session(self, token: str) -> None:
        """Does nothing for an unknown session."""
        token_hash = hash_token(token)
        if token_hash is not None:
            await self._store.delete_page_session(token_hash)


def is_open(session: PageSession, *, idle_s: int, now_ms: int) -> bool:
    """True before the session expires, and while less than `idle_s` have passed since its last use."""
    return now_ms < session.expires_ms and now_ms < session.used_ms + idle_s * 1000
