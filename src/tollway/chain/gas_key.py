"""The gas key: the only key that a gateway holds. It signs transactions which carry payers' authorisations to their
token, and pays their gas.

It never sends, picks no nonce and no fee, and shows its secret nowhere. What it signs moves no value of its own
(`value` is 0); it is for the settlement to see that calldata comes from an authorisation and from nothing else.
"""

from dataclasses import dataclass, field
from typing import Self

import coincurve

from tollway.chain.rlp_items import decode_item, encode_item
from tollway.identifiers import Address, ChainId, TxHash, keccak256

_KEY_DIGITS = 64
_TYPE_2 = b"\x02"
_FIELDS, _ACCESS_LIST = (
    12,
    8,
)  # of a signed one: how many, and where the list is that comes after the calldata


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTransaction:
    """Ready to be broadcast by anybody, so it is to be stored before it is."""

    raw: bytes = field(repr=False)
    tx_hash: TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFields:
    """What a signed transaction asks for. Prices per gas in wei."""

    nonce: int
    to: Address
    calldata: bytes
    gas: int
    max_fee_wei: int
    tip_wei: int


class GasKey:
    """Signing takes a twentieth of a millisecond and touches nothing shared: safe to use from many tasks at once."""

    __slots__ = ("_key", "address")

    def __init__(self, key: coincurve.PrivateKey) -> None:
        self._key = key
        self.address = Address(keccak256(key.public_key.format(compressed=False)[1:])[12:])

    @classmethod
    def parse(cls, text: str) -> Self:
        """A private key: 64 hex digits, with or without `0x`. Raises ValueError, which never repeats the text."""
        digits = text.removeprefix("0x")
        if len(digits) != _KEY_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise ValueError("a gas key is 32 bytes in hex")
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
        """An EIP-1559 transaction without value. `max_fee_wei` and `tip_wei` are prices per gas; the tip never exceeds
        the whole."""
        tip_wei = min(tip_wei, max_fee_wei)
        # EIP-2718, EIP-1559: value 0, and an empty access list.
        fields: list[int | bytes | list[bytes]] = [
            chain_id,
            nonce,
            tip_wei,
            max_fee_wei,
            gas,
            bytes(to),
            0,
            calldata,
            [],
        ]
        digest = keccak256(_TYPE_2 + encode_item(fields))
        signature = self._key.sign_recoverable(digest, hasher=None)
        r, s = (int.from_bytes(word, "big") for word in (signature[:32], signature[32:64]))
        raw = _TYPE_2 + encode_item([*fields, signature[64], r, s])
        return SignedTransaction(raw=raw, tx_hash=TxHash(keccak256(raw)))


def read_transaction(raw: bytes) -> TransactionFields:
    """The fields of a transaction that `GasKey.sign` made. Raises ValueError on any other bytes."""
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
