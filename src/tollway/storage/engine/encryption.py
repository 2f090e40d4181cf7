"""Encryption at rest of upstream secrets and stored responses: AES-256-GCM with the operator's keys.

The first key seals and every key opens, so that the key can change while gateways serve. A sealed value is bound to its label (associated data): it does not
open in another row. This module writes no log, and the `repr` of a sealer is empty.

Version 1 of a sealed value names no key: version, nonce, ciphertext and tag. Version 2 has eight bytes that identify the key after the version. With one key
alone, values are sealed in version 1: the previous release reads no other version and may serve from the same database.
"""

import hmac
from collections.abc import Callable, Sequence
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tollway.errors import Code, Problem, StorageUnavailable

KEY_BYTES = 32
_NONCE_BYTES = 12
_NAME_BYTES = 8
_BARE, _NAMED = b"\x01", b"\x02"
_WRONG_KEY = Problem(
    code=Code.STORAGE_UNAVAILABLE,
    detail="A stored secret does not open with this gateway's key. Report it to the operator.",
    is_lasting=True,
)


class KeyAge(Enum):
    """Which of the configured keys opens a value: the first, an older one, or none (`LOST`)."""

    CURRENT = "current"
    OLDER = "older"
    LOST = "lost"
    """Sealed with an unknown key, altered, or copied from another row."""


class Sealer:
    """Seals with `key`, and opens with `key` and `others`; 32 bytes each. `entropy` returns random bytes, so that a nonce is never used twice."""

    def __init__(self, key: bytes, *, entropy: Callable[[int], bytes], others: Sequence[bytes] = ()) -> None:
        if any(len(each) != KEY_BYTES for each in (key, *others)):
            raise ValueError(f"the key must have {KEY_BYTES} bytes")
        self._ciphers = {_name(each): AESGCM(each) for each in (key, *others)}
        self._current = _name(key)
        self._entropy = entropy

    def __repr__(self) -> str:
        return "Sealer(…)"

    def seal(self, plain: bytes, *, label: bytes) -> bytes:
        nonce = self._entropy(_NONCE_BYTES)
        head = _BARE if len(self._ciphers) == 1 else _NAMED + self._current
        return head + nonce + self._ciphers[self._current].encrypt(nonce, plain, head + label)

    def open(self, sealed: bytes, *, label: bytes) -> bytes:
        """Raises `StorageUnavailable` for a value that is altered, or sealed with an unknown key or another label."""
        opened = self._open(sealed, label)
        if opened is None:
            raise StorageUnavailable(problem=_WRONG_KEY)
        return opened[1]

    def find_key_age(self, sealed: bytes, *, label: bytes) -> KeyAge:
        opened = self._open(sealed, label)
        if opened is None:
            return KeyAge.LOST
        return KeyAge.CURRENT if opened[0] == self._current else KeyAge.OLDER

    def _open(self, sealed: bytes, label: bytes) -> tuple[bytes, bytes] | None:
        """The name of the key that opens it, and the plain value; None when no key does."""
        head = sealed[: 1 + _NAME_BYTES] if sealed[:1] == _NAMED else _BARE
        if not sealed.startswith(head):
            return None
        names = self._ciphers if head == _BARE else (head[1:],)
        nonce, body = sealed[len(head) :][:_NONCE_BYTES], sealed[len(head) + _NONCE_BYTES :]
        for name in names:
            cipher = self._ciphers.get(name)
            try:
                if cipher is not None:
                    return name, cipher.decrypt(nonce, body, head + label)
            except (InvalidTag, ValueError):
                continue
        return None


def _name(key: bytes) -> bytes:
    """Identifies a key without revealing it."""
    return hmac.digest(key, b"tollway seal key", "sha256")[:_NAME_BYTES]
