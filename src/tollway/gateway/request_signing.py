"""The gateway's signature of each forwarded call (RFC 9421), with its own key or with the secret of a listing. A provider verifies with it that a call comes
from this gateway, and for which listing and payer. The messages of webhooks have a signature of the same key. Pure.

Every call runs this code, so the signature base is built directly. Time and nonce are parameters. The signature covers no payment
data, and a private key never leaves this module.
"""

import hashlib
import hmac
import re
from binascii import b2a_base64
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Self
from uuid import UUID

from nacl.bindings import crypto_sign, crypto_sign_BYTES, crypto_sign_seed_keypair

from tollway.identity.http_signatures import (
    ALGORITHM,
    API_ID,
    CALL_ID,
    PAYER,
    SHARED_ALGORITHM,
    TAG,
    encode_base64url,
    thumbprint,
)
from tollway.ids import Address
from tollway.per_call_record import per_call_record

LABEL = "tollway"
DIRECTORY_TAG = "http-message-signatures-directory"
WEBHOOK_TAG = "tollway-webhook"
WEBHOOK_FIELDS = ("content-type", "webhook-id", "webhook-timestamp")
"""The fields of a message that its signature covers, besides its method, its URL and its digest."""

VALID_S = 60
"""The validity of a signature. The connection is open when a call is signed, so its head arrives at once; the rest allows for clock
differences. A provider must remember each nonce for this time."""

DIRECTORY_VALID_S = 600
"""The validity of a directory signature. A cache may serve the directory for five minutes."""

WEBHOOK_VALID_S = 300
"""The validity of a message's signature, the tolerance of Standard Webhooks."""

NONCE_BYTES = 16
_PURPOSE = b"tollway upstream signature"
_DECLARED_LENGTH_MAX = 512
_DIGEST = r"(?:sha-256=:[A-Za-z0-9+/]{43}=:|sha-512=:[A-Za-z0-9+/]{86}==:)"
_DECLARED_DIGEST = re.compile(rf"{_DIGEST}(?:[ \t]*,[ \t]*{_DIGEST})?")

SignedBody = bytes | AsyncIterator[bytes] | None


@per_call_record
class BodyCoverage:
    """The part of a signature that covers the body: its digest, else its length, else neither."""

    digest: str | None = None
    length: int | None = None


NO_COVERAGE = BodyCoverage()


def cover_body(body: SignedBody, *, length: int | None, declared: bytes | None) -> BodyCoverage:
    """Chooses the coverage of a body: the digest of a whole body; for a stream the caller's valid `Content-Digest` (`declared`), else its
    length where known. Without a body, no coverage."""
    if not body:
        return NO_COVERAGE
    if isinstance(body, bytes):
        return BodyCoverage(digest=format_digest(body))
    digest = _read_declared_digest(declared)
    return BodyCoverage(digest=digest) if digest is not None else BodyCoverage(length=length)


def format_digest(body: bytes) -> str:
    """RFC 9530."""
    return f"sha-256=:{b2a_base64(hashlib.sha256(body).digest(), newline=False).decode()}:"


def _read_declared_digest(declared: bytes | None) -> str | None:
    """The declared digest, where it is sha-256 or sha-512; any other counts as none (RFC 9530 §2)."""
    if declared is None or len(declared) > _DECLARED_LENGTH_MAX:
        return None
    text = declared.decode("latin-1").strip(" \t")
    return text if _DECLARED_DIGEST.fullmatch(text) else None


def name_call(*, api_id: str, call_id: str, payer: Address | None) -> list[tuple[str, str]]:
    """Builds the headers that identify a call. Every forwarded call has them. Without a signature they prove nothing.

    `payer` None: a free call.
    """
    headers = [(CALL_ID, call_id), (API_ID, api_id)]
    if payer is not None:
        headers.append((PAYER, str(payer)))
    return headers


def forwards_idempotency_key(forward_headers: Sequence[str]) -> bool:
    """Whether a listing with these `forwardHeaders` gets the `Idempotency-Key` of `UpstreamSigner.name_repeat`."""
    return any(name.lower() == "idempotency-key" for name in forward_headers)


class SigningKey:
    """An Ed25519 key, derived from a secret key of the gateway. `keyid` and `jwk` are published."""

    __slots__ = ("_secret_key", "jwk", "keyid")

    def __init__(self, seed: bytes) -> None:
        # The same bytes as `cryptography`, in two thirds of its time.
        public_key, self._secret_key = crypto_sign_seed_keypair(seed)
        x = encode_base64url(public_key)
        self.keyid = thumbprint(x)
        self.jwk = {
            "kty": "OKP",
            "crv": "Ed25519",
            "x": x,
            "kid": self.keyid,
            "use": "sig",
            "alg": "EdDSA",
        }

    @classmethod
    def derive(cls, secret: bytes) -> Self:
        """Derives the key deterministically, so all gateways with the same secret sign with the same key."""
        return cls(hmac.digest(secret, _PURPOSE, "sha256"))

    def __repr__(self) -> str:
        return f"SigningKey({self.keyid})"

    def hash(self, text: bytes) -> bytes:
        """A keyed hash: only gateways with this key can compute it."""
        return hmac.digest(self._secret_key, text, "sha256")

    def sign(self, base: bytes) -> str:
        """Signs `base`; returns a byte sequence of RFC 9651."""
        signature = crypto_sign(base, self._secret_key)[:crypto_sign_BYTES]
        return f":{b2a_base64(signature, newline=False).decode()}:"


class UpstreamSigner:
    """Signs forwarded calls with the first key. All keys are published, so that a key can be replaced while calls are in flight.

    Safe to use from many tasks at once.
    """

    __slots__ = ("_tail", "keys")

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self.keys = tuple(keys)
        self._tail = f'";keyid="{self.keys[0].keyid}";alg="{ALGORITHM}";tag="{TAG}"'

    @classmethod
    def derive(cls, secrets: Sequence[bytes]) -> Self:
        """`secrets`: at least one secret key, the current one first."""
        return cls([SigningKey.derive(secret) for secret in secrets])

    def sign(
        self,
        *,
        method: str,
        authority: str,
        target: str,
        api_id: str,
        call_id: str,
        payer: Address | None,
        body: BodyCoverage,
        created_s: int,
        nonce: str,
        secret: bytes | None = None,
    ) -> list[tuple[str, str]]:
        """Builds the headers that identify and sign a forwarded call. `authority` and `target`: as sent. `secret`: of the listing, which then
        signs with HMAC-SHA-256 (RFC 9421 §3.3.3) in place of the key; the id of the listing names it.

        `payer` None: a free call. The path and the query of RFC 9421 §2.2 are those of the request line, byte for byte; a missing query
        counts as an empty one.
        """
        path, _, query = target.partition("?")
        names = '("@method" "@authority" "@path" "@query" "tollway-call-id" "tollway-api-id"'
        lines = (
            f'"@method": {method}\n"@authority": {authority}\n"@path": {path}\n"@query": ?{query}\n'
            f'"tollway-call-id": {call_id}\n"tollway-api-id": {api_id}\n'
        )
        headers = name_call(api_id=api_id, call_id=call_id, payer=payer)
        if payer is not None:
            names += ' "tollway-payer"'
            lines += f'"tollway-payer": {payer}\n'
        if body.digest is not None:
            names += ' "content-digest"'
            lines += f'"content-digest": {body.digest}\n'
            headers.append(("Content-Digest", body.digest))
        elif body.length is not None:
            names += ' "content-length"'
            lines += f'"content-length": {body.length}\n'
        tail = self._tail if secret is None else f'";keyid="{api_id}";alg="{SHARED_ALGORITHM}";tag="{TAG}"'
        params = f'{names});created={created_s};expires={created_s + VALID_S};nonce="{nonce}{tail}'
        base = f'{lines}"@signature-params": {params}'.encode()
        signature = self.keys[0].sign(base) if secret is None else sign_shared(base, secret)
        headers.append(("Signature-Input", f"{LABEL}={params}"))
        headers.append(("Signature", f"{LABEL}={signature}"))
        return headers

    def name_repeat(self, key: str, *, api_id: str, payer: Address | None, client: str) -> tuple[str, str]:
        """Builds the `Idempotency-Key` of a forwarded call: a UUID (RFC 9562 §5.8) of the caller's key, the listing and the payer.

        A repeat of a call has the same UUID at every gateway, so that an API which may have processed the call does not process it twice.
        The API sees one client, the gateway: with the callers' own keys it would return the response that one caller paid for to
        another caller with the same key. `payer` None: a free call; `client`, its network, takes the place of the payer, in a hash
        that hides it.
        """
        caller = self.keys[0].hash(client.encode()) if payer is None else bytes(payer)
        digest = hashlib.sha256(b"\0".join((api_id.encode(), caller.hex().encode(), key.encode()))).digest()
        number = int.from_bytes(digest[:16], "big") & ~(0xF << 76 | 0b11 << 62) | 8 << 76 | 0b10 << 62
        return "Idempotency-Key", str(UUID(int=number))

    def sign_webhook(
        self, *, url: str, headers: Mapping[str, str], body: bytes, created_s: int, nonces: Sequence[str]
    ) -> list[tuple[str, str]]:
        """Builds the headers that sign a message of a webhook. `url`: as registered, the receiver's target URI. `headers`: the `WEBHOOK_FIELDS`.
        `nonces`: one for each key. Each key signs, the current one first, so that a receiver with an older key directory can verify too."""
        digest = format_digest(body)
        values = {name.lower(): value for name, value in headers.items()}
        fields = "".join(f'"{name}": {values[name]}\n' for name in WEBHOOK_FIELDS)
        named = " ".join(f'"{name}"' for name in WEBHOOK_FIELDS)
        lines = f'"@method": POST\n"@target-uri": {url}\n"content-digest": {digest}\n{fields}'
        inputs, signatures = [], []
        for number, (key, nonce) in enumerate(zip(self.keys, nonces, strict=True), 1):
            label = LABEL if number == 1 else f"{LABEL}{number}"
            params = (
                f'("@method" "@target-uri" "content-digest" {named});created={created_s};'
                f'expires={created_s + WEBHOOK_VALID_S};nonce="{nonce}";keyid="{key.keyid}";'
                f'alg="{ALGORITHM}";tag="{WEBHOOK_TAG}"'
            )
            base = f'{lines}"@signature-params": {params}'
            inputs.append(f"{label}={params}")
            signatures.append(f"{label}={key.sign(base.encode())}")
        return [
            ("Content-Digest", digest),
            ("Signature-Input", ", ".join(inputs)),
            ("Signature", ", ".join(signatures)),
        ]

    def describe(self) -> dict[str, list[dict[str, str]]]:
        """The key directory: a JWK set (RFC 7517 §5), the current key first."""
        return {"keys": [key.jwk for key in self.keys]}

    def sign_directory(self, *, authority: str, created_s: int, nonce: str) -> dict[str, str]:
        """Builds the signature headers of the key directory. Each key signs the authority that publishes it, so that another site cannot
        publish it as its own key (draft-meunier-webbotauth-httpsig-directory)."""
        inputs, signatures = [], []
        for number, key in enumerate(self.keys, 1):
            params = (
                f'("@authority";req);created={created_s};expires={created_s + DIRECTORY_VALID_S};nonce="{nonce}";'
                f'keyid="{key.keyid}";alg="{ALGORITHM}";tag="{DIRECTORY_TAG}"'
            )
            base = f'"@authority";req: {authority}\n"@signature-params": {params}'
            inputs.append(f"sig{number}={params}")
            signatures.append(f"sig{number}={key.sign(base.encode())}")
        return {"Signature-Input": ", ".join(inputs), "Signature": ", ".join(signatures)}


def sign_shared(base: bytes, secret: bytes) -> str:
    """HMAC-SHA-256 of `base`; returns a byte sequence of RFC 9651."""
    return f":{b2a_base64(hmac.digest(secret, base, 'sha256'), newline=False).decode()}:"
