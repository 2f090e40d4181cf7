"""Identifiers of wallets, chains, transactions, listings and calls. Each is parsed once on input and formatted once on output.

Pure: `format_id` gets time and randomness as arguments.
"""

import re
from functools import lru_cache
from typing import NewType, Protocol, Self

try:  # 1 µs a hash, on the platforms of its wheels
    from sha3 import keccak_256
except ImportError:  # 5 µs
    from Crypto.Hash import keccak

    def keccak_256(message: bytes = b"") -> "KeccakHash":
        return keccak.new(digest_bits=256, data=message)


ChainId = NewType("ChainId", int)

Network = NewType("Network", str)
"""A CAIP-2 network name such as `eip155:8453`."""

ListingId = NewType("ListingId", str)
CallId = NewType("CallId", str)

_ADDRESS = re.compile(r"0[xX][0-9a-fA-F]{40}")
_HASH = re.compile(r"0[xX][0-9a-fA-F]{64}")
_NETWORK = re.compile(r"eip155:(0|[1-9][0-9]{0,14})")
_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(high + low for high in _CROCKFORD for low in _CROCKFORD)
_SHIFTS = tuple(range(120, -10, -10))


def keccak256(message: bytes) -> bytes:
    """The Ethereum hash: Keccak-256, not the NIST SHA3-256."""
    digest: bytes = keccak_256(message).digest()
    return digest


class KeccakHash(Protocol):
    """A running hash of a message in parts. No `update` may follow `digest`."""

    def update(self, part: bytes, /) -> object: ...

    def digest(self) -> bytes: ...


def start_keccak256() -> KeccakHash:
    running: KeccakHash = keccak_256()
    return running


class Address(bytes):
    """An address of a wallet or contract: 20 raw bytes. Its text form is EIP-55."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accepts `0x` and 40 hex digits; digits of mixed case must have the EIP-55 checksum. Raises ValueError on anything else."""
        if not _ADDRESS.fullmatch(text):
            raise ValueError("an address is 0x followed by 40 hex digits")
        address = cls(bytes.fromhex(text[2:]))
        digits = text[2:]
        is_mixed = digits != digits.lower() and digits != digits.upper()
        if is_mixed and digits != str(address)[2:]:
            raise ValueError("the address has a wrong EIP-55 checksum")
        return address

    def __str__(self) -> str:
        return _checksum(self)

    def __repr__(self) -> str:
        return f"Address({self})"


@lru_cache(maxsize=16_384)
def _checksum(address: bytes) -> str:
    """EIP-55. Cached: the hash costs more than a whole row of a history."""
    digits = address.hex()
    nibbles = keccak256(digits.encode()).hex()
    return "0x" + "".join(c.upper() if n > "7" else c for c, n in zip(digits, nibbles, strict=False))


ZERO_ADDRESS = Address(20)


class TxHash(bytes):
    """A transaction hash: 32 raw bytes. Its text form is `0x` + 64 lower-case hex digits."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accepts `0x` and 64 hex digits in any case. Raises ValueError on anything else."""
        if not _HASH.fullmatch(text):
            raise ValueError("a transaction hash is 0x followed by 64 hex digits")
        return cls(bytes.fromhex(text[2:]))

    def __str__(self) -> str:
        return "0x" + self.hex()

    def __repr__(self) -> str:
        return f"TxHash({self})"


class ChannelId(bytes):
    """The id of an x402 payment channel: 32 raw bytes. Its text form is `0x` + 64 lower-case hex digits."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accepts `0x` and 64 hex digits in any case. Raises ValueError on anything else."""
        if not _HASH.fullmatch(text):
            raise ValueError("a channel id is 0x followed by 64 hex digits")
        return cls(bytes.fromhex(text[2:]))

    def __str__(self) -> str:
        return "0x" + self.hex()

    def __repr__(self) -> str:
        return f"ChannelId({self})"


def parse_network(text: str) -> ChainId:
    """`eip155:8453` -> 8453 (CAIP-2). Raises ValueError on other namespaces and spellings."""
    match = _NETWORK.fullmatch(text)
    if match is None:
        raise ValueError("a network is eip155: followed by a decimal chain id")
    return ChainId(int(match[1]))


def format_network(chain_id: ChainId) -> Network:
    """8453 -> `eip155:8453` (CAIP-2)."""
    return Network(f"eip155:{chain_id}")


METHOD_LENGTH_MAX = 32
"""Characters of an HTTP method. The longest registered method has 17 (UPDATEREDIRECTREF)."""
REFUND_CALLS_MAX = 100  # ids of calls that one refund names
IDEMPOTENCY_KEY_MAX = 255


def read_idempotency_key(value: bytes) -> str:
    """The key of an `Idempotency-Key` header: UTF-8 text, with or without the quotes of a structured field, since both spellings are in use. Does not check
    the length; `is_idempotency_key` does."""
    text = value.decode()
    is_quoted = len(text) >= 2 and text[0] == text[-1] == '"'
    return text[1:-1] if is_quoted else text


def is_idempotency_key(key: str) -> bool:
    return 0 < len(key) <= IDEMPOTENCY_KEY_MAX and is_storable(key)


def is_storable(text: str) -> bool:
    """True for text that a text column of each database can hold: without NUL (PostgreSQL) and without a lone surrogate (UTF-8)."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def format_id(prefix: str, *, now_ms: int, entropy: bytes) -> str:
    """`prefix_` + 26 characters that sort by time: 48 bits of milliseconds, then 80 bits of `entropy` (10 bytes)."""
    number = (now_ms & ((1 << 48) - 1)) << 80 | int.from_bytes(entropy[:10], "big")
    return prefix + "_" + "".join([_PAIRS[(number >> shift) & 1023] for shift in _SHIFTS])


ID_ENTROPY_BITS = 30
"""How many bits of an id's entropy `read_id_entropy` returns: its first six characters."""
_ENTROPY_CHARACTERS, _ENTROPY_READ = 16, 6


def read_id_entropy(text: str) -> int:
    """The first 30 bits of the entropy of an id that `format_id` wrote. Another character than those of ids counts as 0."""
    tail, number = text[-_ENTROPY_CHARACTERS:], 0
    for character in tail[:_ENTROPY_READ]:
        number = number << 5 | max(0, _CROCKFORD.find(character))
    return number
