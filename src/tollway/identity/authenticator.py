"""Authenticates requests to the control plane: finds the wallet that a request proves, by one or more of three proofs.

Every proof in the request must be valid, and all must name one wallet; only then the nonces are spent. Permissions of the wallet are
checked elsewhere. Of the body only the digest is read.

An EOA is one account on all chains. A contract wallet is identified by its address alone too, so it counts only
where its chain is configured here (two contracts with one address on two chains are one account).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from tollway.errors import Code, Problem, Refusal, refuse
from tollway.identity.http_signatures import HttpProof, SignedRequest, read_http_proofs
from tollway.identity.sessions import Session, SessionStore, SignIn
from tollway.identity.siwe import HOST_CHARACTERS_MAX, PublicOrigin, SignInProof, read_siwx
from tollway.ids import Address, ChainId
from tollway.limits import Limits
from tollway.rate_limits.limiter import Quota, RateLimiter

__all__ = ["Authenticator", "Identity", "SignedRequest"]

CREATE_PATH = "/api/v2/apis"

NONCE_RETENTION_SLACK_MS = 60_000
"""A request that is verified in its last valid moment spends its nonce a little later."""

T = TypeVar("T")
ProofMethod = Literal["erc8128", "session", "siwx"]
_SAFE_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """With several proofs, `method` and `chain_id` are those of the strongest proof: a signed request covers the whole request, a session covers
    nothing."""

    address: Address
    method: ProofMethod
    chain_id: ChainId | None


class Authenticator:
    def __init__(
        self,
        store: SessionStore,
        sign_in: SignIn,
        *,
        origin: PublicOrigin,
        limits: Limits,
        now_ms: Callable[[], int],
        rate_limiter: RateLimiter,
    ) -> None:
        self._store = store
        self._sign_in = sign_in
        self._origin = origin
        self._limits = limits
        self._now_ms = now_ms
        # Each signed request leaves a row until its nonce has expired.
        self._signed = Quota(
            "signed-requests",
            "signed requests",
            amount=limits.signed_requests_per_minute,
            per="minute",
            rate_limiter=rate_limiter,
        )

    async def authenticate(self, request: SignedRequest) -> Identity:
        """Raises `Refusal` (a 401 code; `invalid_request` for a repeated header; `rate_limited` for too many chain look-ups or signed requests),
        `ChainUnavailable` where only a chain can decide, and `StorageUnavailable`."""
        return await self._authenticate(request, token=read_bearer(request))

    async def authenticate_call(self, request: SignedRequest) -> Identity:
        """The wallet of a gateway call, by ERC-8128 or `SIGN-IN-WITH-X` only. There `Authorization` belongs to
        the payment or to the upstream, so a session never counts. Raises as `authenticate` does."""
        return await self._authenticate(request, token=None)

    async def is_session_open(self, request: SignedRequest) -> bool:
        """Whether the session of an authenticated request is still open. True for a request without one: its signature was for it alone."""
        token = read_bearer(request)
        try:
            return token is None or await self._sign_in.find_session(token) is not None
        except Refusal:
            return False

    async def _authenticate(self, request: SignedRequest, *, token: str | None) -> Identity:
        now_ms = self._now_ms()
        identity, http_proofs, siwx = await self._verify(request, token=token, now_ms=now_ms)
        await self._spend_nonces(request, http_proofs, siwx, now_ms=now_ms)
        return identity

    async def verify_head(self, request: SignedRequest) -> None:
        """The body is not read yet. Spends no nonce, so `authenticate` must follow. Raises as `authenticate` does."""
        await self._verify(request, token=read_bearer(request), now_ms=self._now_ms())

    async def _verify(
        self, request: SignedRequest, *, token: str | None, now_ms: int
    ) -> tuple[Identity, tuple[HttpProof, ...], SignInProof | None]:
        http_proofs = _raise_problem(
            read_http_proofs(request, origin=self._origin, limits=self._limits, now_ms=now_ms)
        )
        siwx = self._read_siwx(request)
        for proof in http_proofs:
            await self._verify_http(proof, request)
        if siwx is not None:
            await self._sign_in.verify(siwx, client_address=request.client_address, now_ms=now_ms)
        session = None if token is None else await self._sign_in.find_session(token)
        return _find_common_identity(http_proofs, siwx, session), http_proofs, siwx

    def _read_siwx(self, request: SignedRequest) -> SignInProof | None:
        header = _find_single_header(request, "sign-in-with-x")
        if header is None:
            return None
        if not is_siwx_possible(request):
            raise refuse(
                code=Code.INVALID_SIGNATURE,
                detail="SIGN-IN-WITH-X is accepted for reads and for publishing only. Sign this request (ERC-8128).",
                reason="siwx_not_accepted_here",
            )
        return _raise_problem(read_siwx(header))

    async def _verify_http(self, proof: HttpProof, request: SignedRequest) -> None:
        if not await self._sign_in.is_signed_by(
            proof.address,
            proof.digest,
            proof.signature,
            chain_id=proof.chain_id,
            client_address=request.client_address,
        ):
            raise refuse(
                code=Code.INVALID_SIGNATURE,
                detail="The signature is not of the wallet in keyid, or the request changed after it was signed. "
                f"The public_url of this gateway is {self._origin}{_name_other_host(request, self._origin)}: "
                f"sign {self._origin.authority} as @authority.",
                reason="signature_mismatch",
            )

    async def _spend_nonces(
        self,
        request: SignedRequest,
        http_proofs: tuple[HttpProof, ...],
        siwx: SignInProof | None,
        *,
        now_ms: int,
    ) -> None:
        if http_proofs:
            await self._signed.check(http_proofs[0].address, client_address=request.client_address)
        for proof in http_proofs:
            if not await self._store.remember_signature_nonce(
                proof.keyid, proof.nonce, expires_ms=proof.expires_ms + NONCE_RETENTION_SLACK_MS
            ):
                raise refuse(
                    code=Code.NONCE_REUSED,
                    detail="This nonce was used before. Sign each request with a new nonce.",
                    reason="nonce_reused",
                )
            # Only after the nonce is spent: a replay of another wallet's request must not use up the quota of that wallet.
            self._signed.count(proof.address, client_address=request.client_address)
        if siwx is not None:
            uris = None if request.method in _SAFE_METHODS else (f"{self._origin}{CREATE_PATH}",)
            await self._sign_in.spend_nonce(siwx.message, uris=uris, now_ms=now_ms)


def _name_other_host(request: SignedRequest, origin: PublicOrigin) -> str:
    """The host of the request, where it is not that of the public URL."""
    host = "".join(request.field_lines("host")).lower()
    return (
        f", and the request came for {host[:HOST_CHARACTERS_MAX]}"
        if host not in ("", origin.authority)
        else ""
    )


def is_siwx_possible(request: SignedRequest) -> bool:
    """`SIGN-IN-WITH-X` covers neither method nor body, so it counts for reads, and for a create with a nonce issued for that URI."""
    is_create = request.method == "POST" and request.raw_path == CREATE_PATH.encode()
    return is_create or request.method in _SAFE_METHODS


def _find_common_identity(
    http_proofs: tuple[HttpProof, ...], siwx: SignInProof | None, session: Session | None
) -> Identity:
    identities = [
        Identity(address=proof.address, method="erc8128", chain_id=proof.chain_id) for proof in http_proofs
    ]
    if siwx is not None:
        message = siwx.message
        identities.append(Identity(address=message.signer, method="siwx", chain_id=message.chain_id))
    if session is not None:
        identities.append(Identity(address=session.address, method="session", chain_id=session.chain_id))
    if not identities:
        raise refuse(
            code=Code.AUTHENTICATION_REQUIRED,
            detail="Prove a wallet: sign the request (ERC-8128), sign in for a session, or send SIGN-IN-WITH-X.",
        )
    if any(other.address != identities[0].address for other in identities):
        raise refuse(
            code=Code.CONFLICTING_IDENTITIES,
            detail="The request carries proofs of different wallets. Send proofs of one wallet.",
        )
    return identities[0]


def read_bearer(request: SignedRequest) -> str | None:
    header = _find_single_header(request, "authorization")
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else None


def _find_single_header(request: SignedRequest, name: str) -> str | None:
    lines = request.field_lines(name)
    if len(lines) > 1:
        raise refuse(
            code=Code.INVALID_REQUEST, detail=f"The header {name} occurs more than once. Send it once."
        )
    return lines[0] if lines else None


def _raise_problem(outcome: T | Problem) -> T:
    if isinstance(outcome, Problem):
        raise Refusal(outcome)
    return outcome
