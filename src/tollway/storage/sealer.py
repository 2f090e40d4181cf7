"""Encryption at rest of the secrets that providers entrust to the gateway: AES-256-GCM under one key of the operator.

A seal is bound to its label, so that a sealed value moved to another row does not open. It never logs, and its `repr`
shows nothing.
"""

from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tollway.errors import StorageUnavailable

KEY_BYTES = 32
_NONCE_BYTES = 12
_VERSION = b"\x01"


class Sealer:
    """Seals and opens with one 32-byte `key`. `entropy` gives random bytes; a nonce is never used twice."""

    def __init__(self, key: bytes, *, entropy: Callable[[int], bytes]) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"the key must have {KEY_BYTES} bytes")
        self._cipher = AESGCM(key)
        self._entropy = entropy

    def __repr__(self) -> str:
        return "Sealer(…)"

    def seal(self, plain: bytes, *, label: bytes) -> bytes:
        """Version, nonce, ciphertext and tag."""
        nonce = self._entropy(_NONCE_BYTES)
        return _VERSION + nonce + self._cipher.encrypt(nonce, plain, _VERSION + label)

    def open(self, sealed: bytes, *, label: bytes) -> bytes:
        """Raises `StorageUnavailable` when it was sealed under another key or label, or altered."""
        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _VERSION:
                raise InvalidTag
            return self._cipher.decrypt(nonce, body, _VERSION + label)
        except (InvalidTag, ValueError) as exc:
            detail = "A stored secret does not open with this gateway's key."
            raise StorageUnavailable(detail) from exc
