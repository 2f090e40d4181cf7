"""Signed offers and receipts, verified as a client with eth-account or viem does."""

import json
from dataclasses import replace
from typing import Any

from eth_account import Account
from eth_account.messages import encode_typed_data
from jsonschema import Draft202012Validator

from tests.kit.payer import NOW_S, USDC, requirement_of
from tollway.ids import Address, ChainId, TxHash, keccak256
from tollway.payments.offer_receipt import OFFERS, OFFERS_EXTENSION, describe_receipt, sign_offers
from tollway.payments.payment_required import JsonTemplate

URL = "https://gw.example.com/api/v2/gateway/api_1/quote?city=Wien"
KEY = Account.from_key(keccak256(b"a gateway"))
OFFER = ("version", "resourceUrl", "scheme", "network", "asset", "payTo", "amount", "validUntil")
RECEIPT = ("version", "network", "resourceUrl", "payer", "issuedAt", "transaction")


def sign(digest: bytes) -> bytes:
    return bytes(KEY.unsafe_sign_hash(digest).signature)


def signer_of(signed: dict[str, Any], domain: str, name: str, fields: tuple[str, ...]) -> str:
    numbers = ("version", "validUntil", "issuedAt")
    signable = encode_typed_data(
        domain_data={"name": domain, "version": "1", "chainId": 1},
        message_types={
            name: [{"name": field, "type": "uint256" if field in numbers else "string"} for field in fields]
        },
        message_data=signed["payload"],
    )
    return str(Account.recover_message(signable, signature=signed["signature"]))


def test_every_requirement_has_an_offer_signed_by_the_gateways_key() -> None:
    elsewhere = requirement_of(replace(USDC, chain_id=ChainId(8453)))
    offers = sign_offers(
        [requirement_of(), elsewhere], resource_url=URL, now_s=NOW_S + 0.5, valid_s=600, sign=sign
    )
    extension = json.loads(JsonTemplate(OFFERS_EXTENSION).fill({OFFERS: json.dumps(offers).encode()}))
    Draft202012Validator(extension["schema"]).validate(extension["info"])
    assert extension["info"]["offers"] == offers
    assert [(one["format"], one["acceptIndex"]) for one in offers] == [("eip712", 0), ("eip712", 1)]
    assert offers[1]["payload"] == {
        "version": 1,
        "resourceUrl": URL,
        "scheme": "exact",
        "network": "eip155:8453",
        "asset": str(USDC.token),
        "payTo": str(elsewhere.pay_to),
        "amount": "10000",
        "validUntil": NOW_S + 600,
    }
    assert {signer_of(one, "x402 offer", "Offer", OFFER) for one in offers} == {KEY.address}


def test_a_receipt_is_signed_by_the_same_key() -> None:
    extension = describe_receipt(
        resource_url=URL,
        network_chain_id=ChainId(84532),
        payer=Address(b"\x12" * 20),
        transaction=TxHash(b"\xab" * 32),
        issued_s=NOW_S,
        sign=sign,
    )
    Draft202012Validator(extension["schema"]).validate(extension["info"])
    receipt = extension["info"]["receipt"]
    assert receipt["payload"]["issuedAt"] == NOW_S
    assert set(receipt["payload"]) == set(RECEIPT)
    assert signer_of(receipt, "x402 receipt", "Receipt", RECEIPT) == KEY.address


def test_the_signature_covers_every_field_of_an_offer() -> None:
    (offer,) = sign_offers([requirement_of()], resource_url=URL, now_s=NOW_S, valid_s=600, sign=sign)
    for field in OFFER:
        value = offer["payload"][field]
        changed = {**offer["payload"], field: value + 1 if isinstance(value, int) else value + "0"}
        assert signer_of({**offer, "payload": changed}, "x402 offer", "Offer", OFFER) != KEY.address
