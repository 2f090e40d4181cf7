"""Signed offers and receipts of the gateway (x402 extension `offer-receipt`, format `eip712`). Pure: the caller passes a `Sign`.

An offer states the price of a resource and until when it holds; a receipt states that the resource was paid and delivered.
Source: the x402 extension `offer-receipt`, version 1; its EIP-712 domains name chain 1 on every network.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tollway.ids import Address, ChainId, TxHash, format_network
from tollway.payments.call_receipt import VERSION, Sign, hash_type, sign_x402_receipt, x402_digest
from tollway.payments.payment_required import TemplateSlot
from tollway.payments.pricing import PaymentRequirement

OFFER_RECEIPT = "offer-receipt"

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
_OFFER_TYPE = hash_type("Offer", _OFFER_FIELDS)


def sign_offers(
    requirements: Sequence[PaymentRequirement], *, resource_url: str, now_s: float, valid_s: int, sign: Sign
) -> list[dict[str, Any]]:
    """One offer for each requirement, in the order of `accepts`. `valid_s`: how long the price is guaranteed."""
    offers = []
    for index, requirement in enumerate(requirements):
        offer: dict[str, str | int] = {
            "version": VERSION,
            "resourceUrl": resource_url,
            "scheme": requirement.scheme,
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


def describe_receipt(
    *,
    resource_url: str,
    network_chain_id: ChainId,
    payer: Address,
    transaction: TxHash,
    issued_s: int,
    sign: Sign,
) -> dict[str, Any]:
    """The extension of a settlement response: the receipt of x402. `resource_url`: without its query, as in the receipt of the call.
    `issued_s`: the second in which the ledger wrote the state of the call."""
    receipt: dict[str, str | int] = {
        "version": VERSION,
        "network": format_network(network_chain_id),
        "resourceUrl": resource_url,
        "payer": str(payer),
        "issuedAt": issued_s,
        "transaction": str(transaction),
    }
    signed = sign_x402_receipt(receipt, sign=sign)
    return {"info": {"receipt": signed}, "schema": _RECEIPT_SCHEMA}


def offer_digest(offer: dict[str, str | int]) -> bytes:
    """EIP-712 `Offer` under the domain `x402 offer`."""
    return x402_digest("x402 offer", _OFFER_TYPE, _OFFER_FIELDS, offer)


def _schema(name: str, kind: dict[str, str]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: kind}, "required": [name]}


_RECEIPT_SCHEMA = _schema("receipt", {"type": "object"})

OFFERS = TemplateSlot("offers")
OFFERS_EXTENSION: Mapping[str, Any] = MappingProxyType(
    {"info": {"offers": OFFERS}, "schema": _schema("offers", {"type": "array"})}
)
