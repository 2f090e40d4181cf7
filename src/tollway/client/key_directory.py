"""The keys by which a gateway signs what it forwards, as it publishes them: fetched when they are needed, and kept.

A key that is not known is looked for once more, but not each time that somebody invents one. Only Ed25519 keys count, each
under the name that follows from it: what the directory calls it decides nothing.
"""

import threading
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic_core import from_json

from tollway.client.deadline import fetch_bounded
from tollway.identity.http_signatures import thumbprint

DIRECTORY_PATH = "/.well-known/http-message-signatures-directory"
FETCH_DEADLINE_S = 5.0
DIRECTORY_BYTES_MAX = 65_536
KEYS_MAX = 32

REFRESH_S = 3_600.0
"""So long after its end a key that the gateway has given up counts on."""
KEYS_KEPT_S = 86_400.0
"""So long the last directory is believed when no newer one can be had."""
BETWEEN_FETCHES_S = 10.0
AFTER_FAILURE_S = 5.0

Keys = dict[str, Ed25519PublicKey]


class KeysUnavailable(Exception):
    """The directory cannot be read, and what was known of it does not help."""


class KeyDirectory:
    """Of one gateway. Safe to use from many threads; one of them fetches."""

    def __init__(
        self,
        gateway: str,
        *,
        fetch: Callable[[str], bytes] | None = None,
        ticks_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`gateway`: its public URL. `fetch` gets a URL and gives the body of a 200, or raises. Raises ValueError for a URL
        by which anybody on the way could publish keys of his own."""
        self._url = check_origin(gateway) + DIRECTORY_PATH
        self._fetch = fetch or fetch_document
        self._ticks_s = ticks_s
        self._keys: Keys = {}
        self._read_s: float | None = None
        self._next_s: float | None = None
        self._is_failed = False
        self._lock = threading.Lock()

    def find(self, keyid: str) -> Ed25519PublicKey | None:
        """None: the gateway publishes no such key. Raises KeysUnavailable."""
        key = self._known(keyid)
        if key is not None and not self._is_due():
            return key
        if key is not None:
            if self._lock.acquire(
                blocking=False
            ):  # whoever knows his key does not wait for a newer directory
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
        """Unless that was tried a moment ago. A directory that cannot be read leaves the last one in force."""
        if self._next_s is not None and self._ticks_s() < self._next_s:
            return
        try:
            self._keys = read_directory(self._fetch(self._url))
            self._read_s, self._is_failed = self._ticks_s(), False
        except (OSError, ValueError, httpx.HTTPError):
            self._is_failed = True
        self._next_s = self._ticks_s() + (AFTER_FAILURE_S if self._is_failed else BETWEEN_FETCHES_S)


def check_origin(gateway: str) -> str:
    """`scheme://host[:port]`. Raises ValueError unless it is https, or on this very machine."""
    parts = urlsplit(gateway)
    if parts.scheme == "https" and parts.hostname:
        return f"https://{parts.netloc}"
    if parts.scheme == "http" and parts.hostname and is_loopback(parts.hostname):
        return f"http://{parts.netloc}"
    raise ValueError("the gateway's URL is https, or on loopback")


def is_loopback(host: str) -> bool:
    """127.0.0.0/8, ::1, `localhost`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def fetch_document(url: str) -> bytes:
    """A small document. Raises OSError, httpx.HTTPError."""
    status, body = fetch_bounded("GET", url, deadline_s=FETCH_DEADLINE_S, bytes_max=DIRECTORY_BYTES_MAX)
    if not 200 <= status <= 299:
        raise OSError(f"{url} answers {status}")
    return body


def read_directory(body: bytes) -> Keys:
    """Of a JWK set the Ed25519 keys; others stand there for somebody else. Raises ValueError."""
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
