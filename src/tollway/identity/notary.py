"""The notary: the gateway's own signature under what it promises and what it has received. Never under a payment.

Its key is made from the gateway's secret, so all gateways of one public URL sign as one, and nothing more has to be kept.
"""

import hmac
from typing import Self

import coincurve

from tollway.identifiers import Address, keccak256

_PURPOSE = b"tollway offers and receipts"


class ReceiptSigner:
    """Signing touches nothing shared: safe to use from many tasks at once. `address` is published."""

    __slots__ = ("_key", "address")

    def __init__(self, key: coincurve.PrivateKey) -> None:
        self._key = key
        self.address = Address(keccak256(key.public_key.format(compressed=False)[1:])[12:])

    @classmethod
    def derive(cls, secret: bytes) -> Self:
        """The same signer from the same secret, always."""
        return cls(coincurve.PrivateKey(hmac.digest(secret, _PURPOSE, "sha256")))

    def __repr__(self) -> str:
        return f"ReceiptSigner({self.address})"

    def sign(self, digest: bytes) -> bytes:
        """65 bytes r || s || v over a 32-byte digest, s low, v 27 or 28."""
        signature = self._key.sign_recoverable(digest, hasher=None)
        return signature[:64] + bytes((signature[64] + 27,))
