"""The gas key: the only key that a gateway holds. It signs transactions which carry payers' authorisations to their
token, and pays their gas.

It never sends, picks no nonce and no fee, and shows its secret nowhere. What it signs moves no value of its own
(`value` is 0); it is for the settlement to see that calldata comes from an authorisation and from nothing else.
"""

from dataclasses import dataclass, field
from typing import Self

from eth_account import Account
from eth_account.signers.local import LocalAccount

from tollway.identifiers import Address, ChainId, TxHash

_KEY_DIGITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTransaction:
    """Ready to be broadcast by anybody, so it is to be stored before it is."""

    raw: bytes = field(repr=False)
    tx_hash: TxHash


class GasKey:
    """Signing takes under a millisecond and touches nothing shared: safe to use from many tasks at once."""

    __slots__ = ("_account", "address")

    def __init__(self, account: LocalAccount) -> None:
        self._account = account
        self.address = Address.parse(account.address)

    @classmethod
    def parse(cls, text: str) -> Self:
        """A private key: 64 hex digits, with or without `0x`. Raises ValueError, which never repeats the text."""
        digits = text.removeprefix("0x")
        if len(digits) != _KEY_DIGITS or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise ValueError("a gas key is 32 bytes in hex")
        try:
            return cls(Account.from_key(bytes.fromhex(digits)))
        except Exception:  # noqa: BLE001 - eth-keys has many, and their texts show the key
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
        signed = self._account.sign_transaction(
            {
                "type": 2,
                "chainId": chain_id,
                "nonce": nonce,
                "to": bytes(to),
                "value": 0,
                "data": calldata,
                "gas": gas,
                "maxFeePerGas": max_fee_wei,
                "maxPriorityFeePerGas": min(tip_wei, max_fee_wei),
            }
        )
        return SignedTransaction(raw=bytes(signed.raw_transaction), tx_hash=TxHash(signed.hash))
