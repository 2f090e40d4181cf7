"""The door's memory without a database, held to the same contract suite as the real one. One process, one loop."""

from tollway.identity.sessions import Session, SignInNonce


class MemorySessions:
    """A `SessionStore` that forgets everything when it goes."""

    def __init__(self) -> None:
        self._nonces: dict[str, SignInNonce] = {}
        self._sessions: dict[bytes, Session] = {}
        self._used: dict[tuple[str, str], int] = {}

    async def issue_nonce(self, nonce: SignInNonce) -> None:
        self._nonces[nonce.nonce] = nonce

    async def take_nonce(self, nonce: str, *, now_ms: int) -> SignInNonce | None:
        known = self._nonces.get(nonce)
        if known is None or known.expires_ms <= now_ms:
            return None
        return self._nonces.pop(nonce)

    async def put_session(self, session: Session) -> None:
        self._sessions[session.token_hash] = session

    async def find_session(self, token_hash: bytes, *, now_ms: int) -> Session | None:
        session = self._sessions.get(token_hash)
        return session if session is not None and session.expires_ms > now_ms else None

    async def delete_session(self, token_hash: bytes) -> None:
        self._sessions.pop(token_hash, None)

    async def remember_signature_nonce(self, keyid: str, nonce: str, *, expires_ms: int) -> bool:
        if (keyid, nonce) in self._used:
            return False
        self._used[keyid, nonce] = expires_ms
        return True

    async def prune(self, *, now_ms: int) -> int:
        before = len(self._nonces) + len(self._sessions) + len(self._used)
        self._nonces = {key: nonce for key, nonce in self._nonces.items() if nonce.expires_ms > now_ms}
        self._sessions = {key: kept for key, kept in self._sessions.items() if kept.expires_ms > now_ms}
        self._used = {key: expires_ms for key, expires_ms in self._used.items() if expires_ms > now_ms}
        return before - len(self._nonces) - len(self._sessions) - len(self._used)
