"""Signed offers and receipts of the gateway (x402 extension `offer-receipt`, format `eip712`). Pure: the caller passes a `Sign`.

An offer states the price of a resource and until when it holds; a receipt states that the resource was paid and delivered.
Source: the x402 extension `offer-receipt`, version 1; its EIP-712 domains name chain 1 on every network.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from tollway.ids import Address, ChainId, TxHash, format_network, keccak256
from tollway.payments.payment_required import TemplateSlot
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.x402 import SCHEME

OFFER_RECEIPT = "offer-receipt"
_VERSION = 1

Sign = Callable[[bytes], bytes]
"""A 32-byte digest -> 65 bytes r || s || v with v 27 or 28, by the gateway's published key."""

_OFFER_FIELDS = {
    "version": "uint256",
    "resourceUrl": "string",
    "scheme": "string",
    "network": "string",
    "asset": "string",
    "payTo": "string",
    "amount": "string",
    "validUntil": "uint256",
}
_RECEIPT_FIELDS = {
    "version": "uint256",
    "network": "string",
    "resourceUrl": "string",
    "payer": "string",
    "issuedAt": "uint256",
    "transaction": "string",
}
_DOMAIN_TYPE = keccak256(b"EIP712Domain(string name,string version,uint256 chainId)")


def sign_offers(
    requirements: Sequence[PaymentRequirement], *, resource_url: str, now_s: float, valid_s: int, sign: Sign
) -> list[dict[str, Any]]:
    """The offers of `OFFERS_EXTENSION`: one for each requirement, in the order of `accepts`. `valid_s`: how long the price is
    guaranteed."""
    offers = []
    for index, requirement in enumerate(requirements):
        offer: dict[str, str | int] = {
            "version": _VERSION,
            "resourceUrl": resource_url,
            "scheme": SCHEME,
            "network": requirement.network,
            "asset": str(requirement.asset.token),
            "payTo": str(requirement.pay_to),
            "amount": str(requirement.base_units),
            "validUntil": int(now_s) + valid_s,
        }
        signature = sign(offer_digest(offer))
        offers.append(
            {
                "format": "eip712",
                "acceptIndex": index,
                "payload": offer,
                "signature": "0x" + signature.hex(),
            }
        )
    return offers


def sign_receipt(
    *,
    resource_url: str,
    network_chain_id: ChainId,
    payer: Address,
    transaction: TxHash,
    now_s: float,
    sign: Sign,
) -> dict[str, Any]:
    """The extension of a settlement response."""
    receipt: dict[str, str | int] = {
        "version": _VERSION,
        "network": format_network(network_chain_id),
        "resourceUrl": resource_url,
        "payer": str(payer),
        "issuedAt": int(now_s),
        "transaction": str(transaction),
    }
    signed = {
        "format": "eip712",
        "payload": receipt,
        "signature": "0x" + sign(receipt_digest(receipt)).hex(),
    }
    return {"info": {"receipt": signed}, "schema": _schema("receipt", {"type": "object"})}


def offer_digest(offer: dict[str, str | int]) -> bytes:
    """The digest of an offer: EIP-712 `Offer` under the domain `x402 offer`."""
    return _digest("x402 offer", "Offer", _OFFER_FIELDS, offer)


def receipt_digest(receipt: dict[str, str | int]) -> bytes:
    """The digest of a receipt: EIP-712 `Receipt` under the domain `x402 receipt`."""
    return _digest("x402 receipt", "Receipt", _RECEIPT_FIELDS, receipt)


def _digest(domain: str, name: str, fields: dict[str, str], values: dict[str, str | int]) -> bytes:
    described = ",".join([f"{kind} {field}" for field, kind in fields.items()])
    words = [_hash_text(f"{name}({described})"), *[_encode(values[field]) for field in fields]]
    return keccak256(b"\x19\x01" + _hash_domain(domain) + keccak256(b"".join(words)))


@cache  # two domains exist
def _hash_domain(domain: str) -> bytes:
    return keccak256(_DOMAIN_TYPE + _encode(domain) + _encode("1") + _encode(1))


def _encode(value: str | int) -> bytes:
    return value.to_bytes(32, "big") if isinstance(value, int) else _hash_text(value)


@lru_cache(maxsize=1024)
def _hash_text(text: str) -> bytes:
    """Cached, because networks, tokens, wallets and amounts repeat."""
    return keccak256(text.encode())


def _schema(name: str, kind: dict[str, str]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: kind}, "required": [name]}


OFFERS = TemplateSlot("offers")
OFFERS_EXTENSION: Mapping[str, Any] = MappingProxyType(
    {"info": {"offers": OFFERS}, "schema": _schema("offers", {"type": "array"})}
)
"""The extension of a 402."""
