"""A verifier for providers: verifies that a gateway forwarded a request, for one of the provider's own listings.

    verifier = ForwardedVerifier("https://gateway.example.com", endpoint="https://api.example.com/v1", api_ids=["api_…"])
    forwarded = verifier.verify("GET", "/v1/quote?x=1", headers)    # or ForwardedRefused

RFC 9421, Ed25519, or HMAC-SHA-256 for a listing whose secret is in `secrets`. A request that is not proved valid is refused. The host comes from `endpoint`, never from the request: otherwise
a call that the gateway signed for another provider's API would be accepted.

The gateway's keys are fetched from its directory when they are needed, and cached. An unknown key causes a new fetch, but not for
every request. Only Ed25519 keys count, each under its thumbprint; their names in the directory do not count.
"""

import hashlib
import hmac
import threading
import time
from base64 import urlsafe_b64decode
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import httpx
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic_core import from_json, to_json

from tollway.client.deadline import fetch_bounded
from tollway.client.message_signature import (
    SignatureClaim,
    SignatureFieldsInvalid,
    Text,
    collect_fields,
    decode_text,
    read_claim,
    read_digests,
)
from tollway.identity.http_signatures import API_ID, CALL_ID, PAYER, SHARED_ALGORITHM, TAG, thumbprint

DIRECTORY_PATH = "/.well-known/http-message-signatures-directory"
FETCH_DEADLINE_S = 5.0
DIRECTORY_BYTES_MAX = 65_536
KEYS_MAX = 32

REFRESH_S = 3_600.0
"""The age at which the directory is fetched again. A key that the gateway has removed counts for this long."""
KEYS_KEPT_S = 86_400.0
"""The maximum age of the last directory while no newer one can be fetched."""
BETWEEN_FETCHES_S = 10.0
AFTER_FAILURE_S = 5.0

Keys = dict[str, Ed25519PublicKey]


class KeysUnavailable(Exception):
    """The directory cannot be read, and the cached keys do not include this one."""


class KeyDirectory:
    """A cache of the keys of one gateway. Safe to use from many threads; one of them fetches."""

    def __init__(
        self,
        gateway: str,
        *,
        fetch: Callable[[str], bytes] | None = None,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gateway`: its public URL. `fetch` takes a URL and returns the body of a 200, or raises. Raises ValueError for a URL without TLS
        that is not on loopback: an attacker on the network could replace the keys."""
        self._url = check_origin(gateway) + DIRECTORY_PATH
        self._fetch = fetch or fetch_document
        self._ticks_s = ticks_s
        self._keys: Keys = {}
        self._read_s: float | None = None
        self._next_s: float | None = None
        self._is_failed = False
        self._lock = threading.Lock()

    def find(self, keyid: str) -> Ed25519PublicKey | None:
        """The key with this id; None where the gateway publishes no such key. Raises KeysUnavailable."""
        key = self._known(keyid)
        if key is not None and not self._is_due():
            return key
        if key is not None:
            if self._lock.acquire(
                blocking=False
            ):  # a caller with a cached key does not wait for a newer directory
                try:
                    self._refresh()
                finally:
                    self._lock.release()
            key = self._known(keyid)
        else:
            with self._lock:
                key = self._known(keyid)
                if key is None:
                    self._refresh()
                    key = self._known(keyid)
        if key is None and (self._is_failed or self._read_s is None):
            raise KeysUnavailable("The gateway's key directory cannot be read.")
        return key

    def _known(self, keyid: str) -> Ed25519PublicKey | None:
        is_kept = self._read_s is not None and self._ticks_s() - self._read_s < KEYS_KEPT_S
        return self._keys.get(keyid) if is_kept else None

    def _is_due(self) -> bool:
        return self._read_s is None or self._ticks_s() - self._read_s >= REFRESH_S

    def _refresh(self) -> None:
        """Fetches the directory, unless that was tried a moment ago. After a failure the last directory stays in force."""
        if self._next_s is not None and self._ticks_s() < self._next_s:
            return
        try:
            self._keys = read_directory(self._fetch(self._url))
            self._read_s, self._is_failed = self._ticks_s(), False
        except (OSError, ValueError, httpx.HTTPError):
            self._is_failed = True
        self._next_s = self._ticks_s() + (AFTER_FAILURE_S if self._is_failed else BETWEEN_FETCHES_S)


def check_origin(gateway: str) -> str:
    """The origin of the URL: `scheme://host[:port]`. Raises ValueError unless it is https or on loopback."""
    parts = urlsplit(gateway)
    if parts.scheme == "https" and parts.hostname:
        return f"https://{parts.netloc}"
    if parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname):
        return f"http://{parts.netloc}"
    raise ValueError("the URL of the gateway must be https, or on loopback")


def is_loopback(host: str) -> bool:
    """Whether a host is in 127.0.0.0/8, ::1 or `localhost`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def fetch_document(url: str) -> bytes:
    """Fetches a small document. Raises OSError, httpx.HTTPError."""
    status, body = fetch_bounded("GET", url, deadline_s=FETCH_DEADLINE_S, bytes_max=DIRECTORY_BYTES_MAX)
    if not 200 <= status <= 299:
        raise OSError(f"{url} responds with status {status}")
    return body


def read_directory(body: bytes) -> Keys:
    """The Ed25519 keys of a JWK set; other keys are ignored. Raises ValueError."""
    document = from_json(body)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError("no JWK set")
    keys: Keys = {}
    for jwk in listed:
        if isinstance(jwk, dict) and (jwk.get("kty"), jwk.get("crv")) == ("OKP", "Ed25519"):
            x = jwk.get("x")
            if isinstance(x, str):
                keys[thumbprint(x)] = Ed25519PublicKey.from_public_bytes(urlsafe_b64decode(x + "="))
    return keys


SECRET_BYTES_MIN = 32
"""A shorter secret is a part of one."""
CLOCK_SLACK_S = 10
"""How far the clocks of gateway and provider may differ."""
VALID_S_MAX = 300
NONCES_MAX = 200_000

IDENTITY_HEADERS = frozenset({CALL_ID.lower(), API_ID.lower(), PAYER.lower()})
"""The headers that name a call. Without a verified signature they are of no worth, so a middleware removes them."""
_CALL_ID, _API_ID, _PAYER = CALL_ID.lower(), API_ID.lower(), PAYER.lower()
REQUIRED = ("@method", "@authority", "@path", "@query", _CALL_ID, _API_ID)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_DIGESTS: dict[str, Callable[[bytes], bytes]] = {
    "sha-256": lambda body: hashlib.sha256(body).digest(),
    "sha-512": lambda body: hashlib.sha512(body).digest(),
}

ReceivedHeaders = Mapping[Any, Any] | Iterable[tuple[Text, Text]]


class ForwardedRefused(Exception):
    """The request is not proved to be forwarded by the gateway for this provider. `reason`: one word for logs.

    `is_temporary`: the request could not be checked; respond with 503 rather than 401.
    """

    def __init__(self, reason: str, detail: str, *, is_temporary: bool = False) -> None:
        self.reason = reason
        self.is_temporary = is_temporary
        super().__init__(detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """A verified forwarded request. `payer`: the wallet that pays (EIP-55); None: a free call.

    `covers`: the signed part of the body: its `digest`, its `length`, or `nothing`.
    """

    call_id: str
    api_id: str
    payer: str | None
    covers: str
    _signed_value: str = field(default="", repr=False)
    _accepts_streamed: bool = field(default=False, repr=False)
    _nonce: str = field(default="", repr=False, compare=False)
    _forget_s: float = field(default=0.0, repr=False, compare=False)

    def check_body(self, body: bytes) -> None:
        """Raises ForwardedRefused unless this is the signed body, as far as the signature covers it."""
        if self.covers == "digest":
            _check_digest(self._signed_value, body)
        elif self.covers == "length":
            if self._signed_value != str(len(body)):
                raise ForwardedRefused(
                    "length_mismatch", "The length of the body differs from the signed length."
                )
        elif body and not self._accepts_streamed:
            raise ForwardedRefused("body_not_covered", "The signature covers no part of the body.")


BODY_BYTES_MAX = 32 * 1024 * 1024
"""The maximum of a body that a middleware reads before it passes the request on, by default that of the gateway."""
OPEN_PATHS = frozenset({"/.well-known/tollway-verification"})
"""The paths that a middleware serves without a signature by default: the gateway reads the proof of ownership there, unsigned."""
FORWARDED_KEY = "tollway.forwarded"
"""The key of the verified call in an ASGI scope or a WSGI environment."""
RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedResponse:
    """The response of a middleware to a request that it refuses: a problem document (RFC 9457)."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @classmethod
    def build(cls, refused: ForwardedRefused) -> "RefusedResponse":
        """401 for a request that is not proved; 503 where it could not be checked; 413 for a body above the maximum."""
        status = 413 if refused.reason == "body_too_large" else 503 if refused.is_temporary else 401
        title = HTTPStatus(status).phrase
        body = to_json(
            {
                "type": "about:blank",
                "title": title,
                "status": status,
                "detail": str(refused),
                "code": refused.reason,
            }
        )
        headers = [
            ("content-type", "application/problem+json"),
            ("content-length", str(len(body))),
            ("cache-control", "no-store"),
        ]
        if status == HTTPStatus.UNAUTHORIZED:
            headers.append(("www-authenticate", f'Signature realm="{TAG}"'))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("retry-after", str(RETRY_AFTER_S)))
        return cls(status=status, reason=title, headers=tuple(headers), body=body)


class NonceCache:
    """A cache of used nonces, each until its signature expires. For one process and all of its threads."""

    def __init__(self, *, now_s: Callable[[], float] = time.time, most: int = NONCES_MAX) -> None:
        self._now_s = now_s
        self._most = most
        self._seen: set[str] = set()
        self._expiring: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()

    def __call__(self, nonce: str, forget_s: float) -> bool:
        """True for the first use of a nonce. `forget_s`: it is kept until then (unix seconds). Raises ForwardedRefused where the cache
        is full: a nonce that is not stored could count twice."""
        with self._lock:
            now_s = self._now_s()
            while self._expiring and self._expiring[0][0] < now_s:
                self._seen.discard(self._expiring.popleft()[1])
            if nonce in self._seen:
                return False
            if len(self._seen) >= self._most:
                raise ForwardedRefused("memory_full", "Too many calls arrive at once.", is_temporary=True)
            self._seen.add(nonce)
            self._expiring.append((forget_s, nonce))
            return True


class ForwardedVerifier:
    """Verifies requests of one gateway to one host. Safe to use from many threads. It may fetch the gateway's keys (5 s at most)."""

    def __init__(
        self,
        gateway: str,
        *,
        endpoint: str,
        api_ids: Iterable[str],
        secrets: Mapping[str, str | Iterable[str]] = MappingProxyType({}),
        accept_streamed: bool = False,
        remember: Callable[[str, float], bool] | None = None,
        fetch: Callable[[str], bytes] | None = None,
        now_s: Callable[[], float] = time.time,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gateway`: its public URL. `endpoint`: the endpoint of your listings; its host counts. `api_ids`: your listings. Any wallet can
        publish a listing with your endpoint and be paid for it, so other ids are refused. `secrets`: by id, the `forwardSecret` of a listing that
        has one, or several while you change it.

        `accept_streamed`: also accept bodies without a length, which the signature does not cover. `remember`: a shared replacement of
        `NonceCache`, for several processes. Raises ValueError.
        """
        self._authority = _read_authority(endpoint)
        self._api_ids = frozenset([api_ids] if isinstance(api_ids, str) else api_ids)
        if not self._api_ids:
            raise ValueError("api_ids must name at least one listing")
        self._secrets = {api_id: _decode_secrets(given) for api_id, given in secrets.items()}
        self._accepts_streamed = accept_streamed
        self._now_s = now_s
        self._remember = remember or NonceCache(now_s=now_s)
        self._directory = KeyDirectory(gateway, fetch=fetch, ticks_s=ticks_s)

    def verify(
        self, method: str, target: Text, headers: ReceivedHeaders, body: bytes | None = b""
    ) -> Forwarded:
        """Verifies a request. `target`: path and query as in the request line, not decoded; or the whole URL. `headers`: all of them, as a
        mapping or as pairs. `body` None: pass it to `check_body` later. Raises ForwardedRefused."""
        forwarded = self.verify_head(method, target, headers)
        if body is not None:
            forwarded.check_body(body)
        self.accept(forwarded)
        return forwarded

    def verify_head(self, method: str, target: Text, headers: ReceivedHeaders) -> Forwarded:
        """Verifies all of a request but its body and that it is the first of its nonce. Check the body next (`check_body`), then `accept` it: a
        refused request uses no nonce, so a copy of its head cannot keep the real request out. Raises ForwardedRefused."""
        try:
            fields = collect_fields(headers)
            claim = read_claim(fields)
            values = claim.read_values(fields, self._derive(method, decode_text(target)))
        except SignatureFieldsInvalid as exc:
            raise ForwardedRefused(exc.reason, str(exc)) from exc
        _check_coverage(claim, fields)
        self._check_times(claim)
        self._check_signature(claim, claim.write_base(values))
        is_other = claim.algorithm == SHARED_ALGORITHM and claim.keyid != values[_API_ID]
        if values[_API_ID] not in self._api_ids or is_other:
            raise ForwardedRefused("wrong_listing", "The call is for a listing that is not in api_ids.")
        return self._build_forwarded(claim, values)

    def accept(self, forwarded: Forwarded) -> None:
        """Uses the nonce of a request that `verify_head` has verified. Raises ForwardedRefused for the second request with it."""
        if not self._remember(forwarded._nonce, forwarded._forget_s):
            raise ForwardedRefused("replayed", "The nonce of the request was used before.")

    def _derive(self, method: str, target: str) -> dict[str, str]:
        """The derived components of RFC 9421 §2.2."""
        path, _, query = _cut_origin(target).partition("?")
        return {
            "@method": method,
            "@authority": self._authority,
            "@path": path,
            "@query": f"?{query}",
        }

    def _check_times(self, claim: SignatureClaim) -> None:
        now_s = self._now_s()
        if not claim.created_s < claim.expires_s <= claim.created_s + VALID_S_MAX:
            raise ForwardedRefused(
                "validity_too_long", f"The signature must be valid for at most {VALID_S_MAX} s."
            )
        if claim.created_s > now_s + CLOCK_SLACK_S:
            raise ForwardedRefused("created_in_future", "The signature was created in the future.")
        if now_s > claim.expires_s + CLOCK_SLACK_S:
            raise ForwardedRefused("expired", "The signature has expired.")

    def _check_signature(self, claim: SignatureClaim, base: bytes) -> None:
        if claim.algorithm == SHARED_ALGORITHM:
            self._check_shared(claim, base)
            return
        try:
            key = self._directory.find(claim.keyid)
        except KeysUnavailable as exc:
            raise ForwardedRefused("keys_unavailable", str(exc), is_temporary=True) from exc
        if key is None:
            raise ForwardedRefused("unknown_key", "The gateway does not publish the key of this signature.")
        try:
            key.verify(claim.signature, base)
        except InvalidSignature as exc:
            raise ForwardedRefused("bad_signature", "The signature is not valid for this request.") from exc

    def _check_shared(self, claim: SignatureClaim, base: bytes) -> None:
        secrets = self._secrets.get(claim.keyid, ())
        if not secrets:
            raise ForwardedRefused("unknown_key", "secrets has none for the listing of this signature.")
        if not any(
            hmac.compare_digest(hmac.digest(secret, base, "sha256"), claim.signature) for secret in secrets
        ):
            raise ForwardedRefused("bad_signature", "The signature is not valid for this request.")

    def _build_forwarded(self, claim: SignatureClaim, values: Mapping[str, str]) -> Forwarded:
        covers = "nothing"
        if "content-digest" in values:
            covers = "digest"
        elif "content-length" in values:
            covers = "length"
        return Forwarded(
            call_id=values[_CALL_ID],
            api_id=values[_API_ID],
            payer=values.get(_PAYER),
            covers=covers,
            _signed_value=values.get(f"content-{covers}", ""),
            _accepts_streamed=self._accepts_streamed,
            _nonce=claim.nonce,
            _forget_s=claim.expires_s + CLOCK_SLACK_S,
        )


def _decode_secrets(given: str | Iterable[str]) -> tuple[bytes, ...]:
    """The secrets of one listing. Raises ValueError."""
    texts = [given] if isinstance(given, str) else list(given)
    try:
        secrets = tuple(urlsafe_b64decode(text + "=" * (-len(text) % 4)) for text in texts)
    except ValueError:
        secrets = ()
    if not secrets or any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise ValueError("secrets must have the forwardSecret of each listing, as the gateway wrote it")
    return secrets


def _cut_origin(target: str) -> str:
    """The path and query of a URL; its host does not count."""
    if target.startswith("/") or "://" not in target:
        return target
    rest = target.partition("://")[2]
    place = min((at for at in (rest.find("/"), rest.find("?")) if at >= 0), default=len(rest))
    return rest[place:] if rest[place:].startswith("/") else f"/{rest[place:]}"


def _read_authority(endpoint: str) -> str:
    """The authority as the gateway writes `Host`. Raises ValueError."""
    parts = urlsplit(endpoint)
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or not parts.hostname.isascii():
        raise ValueError("endpoint must be the http(s) URL of your listings, with its host in ASCII")
    host = parts.hostname.removesuffix(".")
    host = f"[{host}]" if ":" in host else host
    is_usual = parts.port in (None, _DEFAULT_PORTS[parts.scheme])
    return host if is_usual else f"{host}:{parts.port}"


def _check_coverage(claim: SignatureClaim, fields: Mapping[str, list[str]]) -> None:
    missing = [name for name in REQUIRED if name not in claim.names]
    if missing:
        raise ForwardedRefused("components_missing", f"The signature must also cover {', '.join(missing)}.")
    if _PAYER in fields and _PAYER not in claim.names:
        raise ForwardedRefused("payer_not_covered", f"The signature does not cover {PAYER}.")


def _check_digest(header: str, body: bytes) -> None:
    """Every digest of a known algorithm must match (RFC 9530), and there must be at least one."""
    try:
        digests = read_digests(header)
    except SignatureFieldsInvalid as exc:
        raise ForwardedRefused(exc.reason, str(exc)) from exc
    known = [(digest, _DIGESTS[name]) for name, digest in digests.items() if name in _DIGESTS]
    if not known:
        raise ForwardedRefused("digest_unsupported", "Content-Digest has neither sha-256 nor sha-512.")
    for digest, compute in known:
        if not hmac.compare_digest(digest, compute(body)):
            raise ForwardedRefused("digest_mismatch", "The body does not match the signed digest.")
