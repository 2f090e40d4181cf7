"""The few token standards that a payment touches, as bytes: ERC-20, EIP-3009 events, ERC-1271.

Pure slicing, no I/O. It says what a receipt's logs claim; whether that is a payment is the verdict's business.
It never trusts a log by its shape alone: the emitting contract must be the token that the caller names.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tollway.chain.reader import Log
from tollway.identifiers import Address, keccak256

TRANSFER_TOPIC = keccak256(b"Transfer(address,address,uint256)")
AUTHORIZATION_USED_TOPIC = keccak256(b"AuthorizationUsed(address,bytes32)")

ERC1271_MAGIC = keccak256(b"isValidSignature(bytes32,bytes)")[:4]
"""The selector of ERC-1271's only function, and also its "yes"."""

_TRANSFER_SELECTOR = keccak256(b"transfer(address,uint256)")[:4]
_BALANCE_OF_SELECTOR = keccak256(b"balanceOf(address)")[:4]
_WORD = 32
_PAD = bytes(12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One ERC-20 movement, in base units of the token."""

    sender: Address
    recipient: Address
    base_units: int


def parse_transfers(logs: Iterable[Log], *, token: Address) -> tuple[Transfer, ...]:
    """The ERC-20 transfers that `token` itself reported, in the order of the receipt.

    Strict, because each one is worth money: three topics (ERC-721 has four), one word of payload, clean address
    words, not removed. Anything else is left out, never repaired.
    """
    return tuple(
        Transfer(
            sender=Address(log.topics[1][12:]),
            recipient=Address(log.topics[2][12:]),
            base_units=int.from_bytes(log.payload, "big"),
        )
        for log in logs
        if log.address == token and not log.removed and _is_transfer(log)
    )


def _is_transfer(log: Log) -> bool:
    return (
        len(log.topics) == 3
        and log.topics[0] == TRANSFER_TOPIC
        and all(len(topic) == _WORD and topic[:12] == _PAD for topic in log.topics[1:])
        and len(log.payload) == _WORD
    )


def authorizers(logs: Iterable[Log], token: Address) -> frozenset[Address]:
    """Who moved `token` in this receipt by a signed authorisation (EIP-3009 `AuthorizationUsed`).

    Lenient where `parse_transfers` is strict: a name in this set *refuses* transfers, so an odd payload or a
    missing nonce must not hide the event.
    """
    return frozenset(
        Address(log.topics[1][-20:])
        for log in logs
        if log.address == token
        and len(log.topics) >= 2
        and log.topics[0] == AUTHORIZATION_USED_TOPIC
        and len(log.topics[1]) == _WORD
    )


def encode_transfer(*, recipient: Address, base_units: int) -> bytes:
    """Calldata of ERC-20 `transfer(address,uint256)`. Raises OverflowError outside 0..2^256-1."""
    return _TRANSFER_SELECTOR + _PAD + recipient + base_units.to_bytes(_WORD, "big")


def encode_balance_of(owner: Address) -> bytes:
    """Calldata of ERC-20 `balanceOf(address)`; its answer goes to `parse_uint256`."""
    return _BALANCE_OF_SELECTOR + _PAD + owner


def parse_uint256(payload: bytes) -> int:
    """The one word that a `uint256` getter returns. Raises ValueError on any other length."""
    if len(payload) != _WORD:
        raise ValueError("a uint256 is one word of 32 bytes")
    return int.from_bytes(payload, "big")


def encode_is_valid_signature(*, digest: bytes, signature: bytes) -> bytes:
    """Calldata of ERC-1271 `isValidSignature(bytes32,bytes)`; its answer goes to `is_signature_valid`."""
    if len(digest) != _WORD:
        raise ValueError("a digest is 32 bytes")
    offset, length = (number.to_bytes(_WORD, "big") for number in (2 * _WORD, len(signature)))
    return ERC1271_MAGIC + digest + offset + length + signature + bytes(-len(signature) % _WORD)


def is_signature_valid(payload: bytes) -> bool:
    """ERC-1271's "yes": a whole first word, the magic value left-aligned and zeros after it.

    A bare four bytes, a dirty word or an empty answer (no code at the address) are all "no".
    """
    return payload[:_WORD] == ERC1271_MAGIC + bytes(_WORD - len(ERC1271_MAGIC))
