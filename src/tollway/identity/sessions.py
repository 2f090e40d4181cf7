"""Sign-in (`SignIn`) and the port of the store of nonces and sessions (`SessionStore`).

Sign-in issues nonces, opens a session for a signed EIP-4361 message, and closes sessions. It does not check what a wallet may do. The store has
the SHA-256 of a token, never the token. `storage` implements the port in SQL, the test kit in memory; both pass one contract suite.
"""

import base64
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from tollway.chain.port import LookupQuota
from tollway.errors import Code, FieldError, Problem, Refusal, describe_rate, refuse
from tollway.identity.signatures import SignatureVerifier
from tollway.identity.siwe import (
    STATEMENT,
    PublicOrigin,
    SignInMessage,
    SignInProof,
    check_sign_in,
    format_moment,
    format_sign_in,
    parse_sign_in,
)
from tollway.ids import Address, ChainId
from tollway.limits import Limits

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInNonce:
    """`uri`: the only URI whose messages may use the nonce; None: a message that opens a session or signs a read may use it."""

    nonce: str
    uri: str | None
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session of one wallet. `chain_id`: from the signed message. `token_hash`: SHA-256 of the token."""

    token_hash: bytes = field(repr=False)
    address: Address
    chain_id: ChainId
    created_ms: int
    expires_ms: int


class SessionStore(Protocol):
    """A store of nonces and sessions. Every method is atomic."""

    async def issue_nonce(self, nonce: SignInNonce) -> None: ...

    async def take_nonce(self, nonce: str, *, now_ms: int) -> SignInNonce | None:
        """Removes a nonce and returns it. None for a nonce that is unknown, expired or already taken. Durable when it returns."""
        ...

    async def put_session(self, session: Session) -> None: ...

    async def find_session(self, token_hash: bytes, *, now_ms: int) -> Session | None:
        """Returns None for an unknown, closed or expired session."""
        ...

    async def delete_session(self, token_hash: bytes) -> None:
        """Does nothing for an unknown session."""
        ...

    async def remember_signature_nonce(self, keyid: str, nonce: str, *, expires_ms: int) -> bool:
        """True for the first use of this pair, False for every later one. Durable when it returns."""
        ...

    async def prune(self, *, now_ms: int) -> int:
        """Returns the number of deleted rows."""
        ...


def format_token(entropy: bytes) -> str:
    """Formats 32 random bytes as a bearer token of 43 characters."""
    return base64.urlsafe_b64encode(entropy).rstrip(b"=").decode()


def hash_token(token: str) -> bytes | None:
    """The stored hash of a token; None for text that cannot be a token of this gateway."""
    return hashlib.sha256(token.encode()).digest() if _TOKEN.fullmatch(token) else None


def read_message(text: str) -> SignInMessage:
    """Raises `Refusal` (`invalid_signature`)."""
    try:
        return parse_sign_in(text)
    except ValueError as exc:
        detail = f"The message is not valid: {exc}. Sign the text that the nonce response contains."
        problem = Problem(code=Code.INVALID_SIGNATURE, detail=detail, reason="invalid_siwx_payload")
        raise Refusal(problem) from exc


SESSION_PATH = "/api/v2/auth/session"
SIGN_IN_PAGE_PATH = "/signin"
"""The page where a person signs in. A nonce for its URI opens a page session and counts nowhere else."""
URI_CHARACTERS_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInChallenge:
    """A new nonce, and the fields of a message that uses it."""

    nonce: str
    domain: str
    uri: str
    issued_ms: int
    expires_ms: int
    statement: str = STATEMENT

    def format_message(self, *, address: Address, chain_id: ChainId) -> str:
        """The EIP-4361 text for that wallet to sign."""
        return format_sign_in(
            SignInMessage(
                domain=self.domain,
                address=str(address),
                statement=self.statement,
                uri=self.uri,
                chain_id=chain_id,
                nonce=self.nonce,
                issued_at=format_moment(self.issued_ms),
                expiration_time=format_moment(self.expires_ms),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession:
    """A session that was just opened. `token` goes into one response and is stored nowhere."""

    token: str = field(repr=False)
    address: Address
    expires_in_s: int


class SignIn:
    """The sign-in of one gateway. `entropy(n)` returns n random bytes that are fit for secrets."""

    def __init__(
        self,
        store: SessionStore,
        verifier: SignatureVerifier,
        lookup_quota: LookupQuota,
        *,
        origin: PublicOrigin,
        limits: Limits,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._store = store
        self._verifier = verifier
        self._lookup_quota = lookup_quota
        self._origin = origin
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy

    def at_origin(self, origin: PublicOrigin) -> "SignIn":
        """The same sign-in for another origin of this gateway, such as the admin address: its messages name that origin, and so do its nonces."""
        return SignIn(
            self._store,
            self._verifier,
            self._lookup_quota,
            origin=origin,
            limits=self._limits,
            now_ms=self._now_ms,
            entropy=self._entropy,
        )

    async def create_challenge(self, uri: str | None = None) -> SignInChallenge:
        """Issues a nonce. With `uri` it counts only in messages with exactly that URI, which must be under the public origin.

        Raises Refusal (`validation_failed`) for another URI.
        """
        if uri is not None and (len(uri) > URI_CHARACTERS_MAX or not self._origin.is_origin_of(uri)):
            wrong = FieldError(code="origin", detail=f"must be a URI under {self._origin}", pointer="/uri")
            raise refuse(
                code=Code.VALIDATION_FAILED,
                detail="These fields are not valid: /uri. Correct them; `errors` says how.",
                errors=(wrong,),
            )
        now_ms = self._now_ms()
        challenge = SignInChallenge(
            nonce=self._entropy(16).hex(),
            domain=self._origin.authority,
            uri=uri if uri is not None else f"{self._origin}{SESSION_PATH}",
            issued_ms=now_ms,
            expires_ms=now_ms + self._limits.nonce_ttl_s * 1000,
        )
        await self._store.issue_nonce(
            SignInNonce(nonce=challenge.nonce, uri=uri, expires_ms=challenge.expires_ms)
        )
        return challenge

    async def open_session(self, *, text: str, signature: bytes, client_address: str) -> NewSession:
        """Opens a session for the wallet that signed. Raises what `prove` raises."""
        uris = (None, f"{self._origin}{SESSION_PATH}")
        message = await self.prove(text=text, signature=signature, uris=uris, client_address=client_address)
        now_ms = self._now_ms()
        token = format_token(self._entropy(32))
        token_hash = hash_token(token)
        assert token_hash is not None
        await self._store.put_session(
            Session(
                token_hash=token_hash,
                address=message.signer,
                chain_id=message.chain_id,
                created_ms=now_ms,
                expires_ms=now_ms + self._limits.session_ttl_s * 1000,
            )
        )
        return NewSession(token=token, address=message.signer, expires_in_s=self._limits.session_ttl_s)

    async def prove(
        self, *, text: str, signature: bytes, uris: tuple[str | None, ...], client_address: str
    ) -> SignInMessage:
        """The signed message, verified, with its nonce spent. `uris`: as in `spend_nonce`. Raises Refusal; the nonce is then unspent, unless the nonce
        itself was refused.

        Raises `ChainUnavailable` when only a chain can verify the signature and its nodes are unavailable.
        """
        message = read_message(text)
        now_ms = self._now_ms()
        proof = SignInProof(message=message, signature=signature)
        await self.verify(proof, client_address=client_address, now_ms=now_ms)
        await self.spend_nonce(message, uris=uris, now_ms=now_ms)
        return message

    async def close_session(self, token: str) -> None:
        """Closes the session. Raises Refusal (`session_expired`) for a token without an open session."""
        await self.find_session(token)
        token_hash = hash_token(token)
        assert token_hash is not None
        await self._store.delete_session(token_hash)

    async def find_session(self, token: str) -> Session:
        """Raises Refusal (`session_expired`) for an unknown, closed or expired session."""
        token_hash = hash_token(token)
        if token_hash is not None:
            session = await self._store.find_session(token_hash, now_ms=self._now_ms())
            if session is not None:
                return session
        raise refuse(code=Code.SESSION_EXPIRED, detail="The session is unknown or has ended. Sign in again.")

    async def verify(self, proof: SignInProof, *, client_address: str, now_ms: int) -> None:
        """Raises Refusal unless the message is for this gateway, valid now, and signed by the wallet that it names."""
        message = proof.message
        problem = check_sign_in(message, origin=self._origin, limits=self._limits, now_ms=now_ms)
        if problem is not None:
            raise Refusal(problem)
        if not await self.is_signed_by(
            message.signer,
            message.digest,
            proof.signature,
            chain_id=message.chain_id,
            client_address=client_address,
        ):
            raise refuse(
                code=Code.INVALID_SIGNATURE,
                detail="The message was not signed by the wallet that it names.",
                reason="invalid_siwx_signature",
            )

    async def is_signed_by(
        self, address: Address, digest: bytes, signature: bytes, *, chain_id: ChainId, client_address: str
    ) -> bool:
        """Verifies a signature of a key, of a contract, or of a contract that is not deployed yet (ERC-6492). Only chain look-ups
        count against the quotas. Raises Refusal (`rate_limited`) when the quota of the client address or of the wallet is used up, and
        `ChainUnavailable`."""
        if self._verifier.is_chain_needed(address, digest, signature, [chain_id]):
            wait_s = await self._lookup_quota.charge(client_address=client_address, signer=str(address))
            if wait_s is not None:
                raise refuse(
                    code=Code.RATE_LIMITED,
                    detail="Too many signatures that only a chain can verify. Sign in again after Retry-After.",
                    retry_after_s=wait_s,
                    members=describe_rate(
                        "lookups", limit=self._lookup_quota.lookups_per_minute, window_s=60
                    ),
                )
        return await self._verifier.is_signed_for_authentication(address, digest, signature, [chain_id])

    async def spend_nonce(
        self, message: SignInMessage, *, uris: tuple[str | None, ...] | None, now_ms: int
    ) -> None:
        """Spends the nonce of a verified message. `uris`: the nonce must have been issued for one of these; None: for any URI but that of the
        sign-in page. A nonce that was issued for a URI counts only in a message with that URI.

        Raises Refusal (`nonce_reused`; `invalid_signature` where the nonce was issued for another URI).
        """
        taken = await self._store.take_nonce(message.nonce, now_ms=now_ms)
        if taken is None:
            raise refuse(
                code=Code.NONCE_REUSED,
                detail="The nonce is unknown, has expired, or was used. Request a new nonce.",
                reason="invalid_siwx_nonce",
            )
        is_elsewhere = taken.uri is not None and taken.uri != message.uri
        is_refused = (
            taken.uri == f"{self._origin}{SIGN_IN_PAGE_PATH}" if uris is None else taken.uri not in uris
        )
        if is_elsewhere or is_refused:
            raise refuse(
                code=Code.INVALID_SIGNATURE,
                detail="The nonce was issued for another URI. Request a nonce for this URI.",
                reason="invalid_siwx_uri_mismatch",
            )
