"""Signs digests and EIP-1559 transactions with a secp256k1 key; the gas key of a gateway; and RLP, the encoding of transactions. Pure.

The gas key signs the transactions that carry payers' authorisations to their token, and pays their gas. It sends nothing, chooses no
nonce and no fee, and never exposes its secret. Its transactions move no value (`value` is 0); the settlement ensures that the
calldata comes only from an authorisation, and from the deployment of its wallet where that has no code yet.

RLP encodes byte strings, whole numbers, and lists of them. The decoder is strict: every item has one encoding, and other
encodings are refused. Source: Yellow Paper, appendix B. (The `rlp` package would add a quarter of a second of imports to every
start of a gateway.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import coincurve

from tollway.ids import Address, ChainId, TxHash, keccak256

Item = bytes | list["Item"]

_SHORT_MAX = 55
_BYTES_PREFIX, _LIST_PREFIX = 0x80, 0xC0


def encode_item(item: bytes | int | Sequence[bytes | int | Sequence[bytes]]) -> bytes:
    """Encodes an item. A number becomes its big-endian bytes without leading zeros; 0 becomes an empty string."""
    if isinstance(item, int):
        item = item.to_bytes((item.bit_length() + 7) // 8, "big")
    if not isinstance(item, bytes):
        inside = b"".join([encode_item(one) for one in item])
        return _prefix(_LIST_PREFIX, len(inside)) + inside
    if len(item) == 1 and item[0] < _BYTES_PREFIX:
        return item
    return _prefix(_BYTES_PREFIX, len(item)) + item


def decode_item(raw: bytes) -> Item:
    """Raises ValueError unless `raw` is exactly one item."""
    item, end = _read(raw, 0, len(raw))
    if end != len(raw):
        raise ValueError("there is more than one item")
    return item


def _prefix(kind: int, length: int) -> bytes:
    if length <= _SHORT_MAX:
        return bytes((kind + length,))
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((kind + _SHORT_MAX + len(size),)) + size


def _read(raw: bytes, start: int, limit: int) -> tuple[Item, int]:
    if start >= limit:
        raise ValueError("an item is truncated")
    first = raw[start]
    if first < _BYTES_PREFIX:
        return raw[start : start + 1], start + 1
    kind = _LIST_PREFIX if first >= _LIST_PREFIX else _BYTES_PREFIX
    begin, end = _measure(raw, start, first - kind, limit)
    if kind == _BYTES_PREFIX:
        if end - begin == 1 and raw[begin] < _BYTES_PREFIX:
            raise ValueError("a byte below 0x80 must not have a prefix")
        return raw[begin:end], end
    items: list[Item] = []
    while begin < end:
        item, begin = _read(raw, begin, end)
        items.append(item)
    return items, end


def _measure(raw: bytes, start: int, length: int, limit: int) -> tuple[int, int]:
    begin = start + 1
    if length > _SHORT_MAX:
        size = raw[begin : begin + length - _SHORT_MAX]
        begin += len(size)
        length = int.from_bytes(size, "big")
        if length <= _SHORT_MAX or size[0] == 0:
            raise ValueError("a length is not in its shortest form")
    if begin + length > limit:
        raise ValueError("an item is truncated")
    return begin, begin + length


_KEY_DIGITS = 64
_TYPE_2 = b"\x02"
_FIELDS, _ACCESS_LIST = 12, 8
"""The number of fields of a signed transaction, and the index of the access list, which follows the calldata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTransaction:
    """A signed transaction. Every holder can broadcast it, so the ledger stores it before it is sent."""

    raw: bytes = field(repr=False)
    tx_hash: TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFields:
    """The prices are per gas, in wei."""

    nonce: int
    to: Address
    calldata: bytes
    gas: int
    max_fee_wei: int
    tip_wei: int


def derive_address(key: coincurve.PrivateKey) -> Address:
    return Address(keccak256(key.public_key.format(compressed=False)[1:])[12:])


def sign_digest(key: coincurve.PrivateKey, digest: bytes) -> bytes:
    """Signs a 32-byte digest: 65 bytes, r, s (low), v (27 or 28). The same digest has the same signature (RFC 6979)."""
    signature = key.sign_recoverable(digest, hasher=None)
    return signature[:64] + bytes((27 + signature[64],))


def sign_transaction(
    key: coincurve.PrivateKey,
    *,
    chain_id: ChainId,
    nonce: int,
    to: Address | None,
    value: int,
    calldata: bytes,
    gas: int,
    max_fee_wei: int,
    tip_wei: int,
) -> SignedTransaction:
    """Signs an EIP-1559 transaction with an empty access list. `to` None creates a contract; `value` in wei; `max_fee_wei` and `tip_wei` are
    prices per gas. Source: EIP-2718, EIP-1559."""
    fields: list[int | bytes | list[bytes]] = [
        chain_id,
        nonce,
        tip_wei,
        max_fee_wei,
        gas,
        bytes(to or b""),
        value,
        calldata,
        [],
    ]
    signature = key.sign_recoverable(keccak256(_TYPE_2 + encode_item(fields)), hasher=None)
    r, s = (int.from_bytes(word, "big") for word in (signature[:32], signature[32:64]))
    raw = _TYPE_2 + encode_item([*fields, signature[64], r, s])
    return SignedTransaction(raw=raw, tx_hash=TxHash(keccak256(raw)))


class GasKey:
    """A private key that signs transactions. A signature takes 0.05 ms. `without_key`: its address alone, for a process that signs nothing."""

    __slots__ = ("_key", "address")

    def __init__(self, key: coincurve.PrivateKey) -> None:
        self._key: coincurve.PrivateKey | None = key
        self.address = derive_address(key)

    def without_key(self) -> Self:
        """The same address, whose `sign` raises RuntimeError."""
        watched = object.__new__(type(self))
        watched._key, watched.address = None, self.address
        return watched

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a private key: 64 hex digits, with or without `0x`. Raises ValueError, whose text never contains the input."""
        digits = text.removeprefix("0x")
        if len(digits) != _KEY_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise ValueError("a gas key must be 32 bytes in hex")
        try:
            return cls(coincurve.PrivateKey(bytes.fromhex(digits)))
        except ValueError:
            raise ValueError("the number is not a private key") from None

    def __repr__(self) -> str:
        return f"<GasKey {self.address}>"

    def sign(
        self,
        *,
        chain_id: ChainId,
        nonce: int,
        to: Address,
        calldata: bytes,
        gas: int,
        max_fee_wei: int,
        tip_wei: int,
    ) -> SignedTransaction:
        """The transaction has no value. `max_fee_wei` and `tip_wei` are prices per gas; a tip above the maximum is lowered to it."""
        if self._key is None:
            raise RuntimeError(f"this process has no key of {self.address}")
        return sign_transaction(
            self._key,
            chain_id=chain_id,
            nonce=nonce,
            to=to,
            value=0,
            calldata=calldata,
            gas=gas,
            max_fee_wei=max_fee_wei,
            tip_wei=min(tip_wei, max_fee_wei),
        )


def read_transaction(raw: bytes) -> TransactionFields:
    """The fields of a transaction that `GasKey.sign` made. Raises ValueError for other bytes."""
    if raw[:1] != _TYPE_2:
        raise ValueError("not an EIP-1559 transaction")
    try:
        items = decode_item(raw[1:])
    except ValueError as exc:
        raise ValueError("not a transaction") from exc
    fields = (
        [item for item in items[:_ACCESS_LIST] if isinstance(item, bytes)] if isinstance(items, list) else []
    )
    if len(items) != _FIELDS or len(fields) != _ACCESS_LIST:
        raise ValueError("not an EIP-1559 transaction")
    _, nonce, tip_wei, max_fee_wei, gas, to, _, calldata = fields
    return TransactionFields(
        nonce=int.from_bytes(nonce, "big"),
        to=Address(to),
        calldata=calldata,
        gas=int.from_bytes(gas, "big"),
        max_fee_wei=int.from_bytes(max_fee_wei, "big"),
        tip_wei=int.from_bytes(tip_wei, "big"),
    )
