"""Receipts of signed payments in each dialect; in x402 v2 with the signature of the gateway."""

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.kit.gateway import USDC
from tests.kit.ledger_records import authorization_of
from tests.kit.payer import KeyWallet, decode_header
from tests.kit.proxy_requests import sample_request
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.receipts import ReceiptWriter, write_plain_receipt
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import TxHash
from tollway.ledger.records import Dialect
from tollway.payments.offer_receipt import OFFER_RECEIPT

TX = TxHash(b"\x07" * 32)
NOTARY = ReceiptSigner.derive(b"n" * 32)
BUYER = KeyWallet.named("buyer").address


def request() -> ProxyRequest:
    return sample_request(rest="/q%2f", query="x=1")


def receipts(receipt_signer: ReceiptSigner | None) -> ReceiptWriter:
    return ReceiptWriter(
        public_url="https://gw.example.com", receipt_signer=receipt_signer, now_ms=lambda: 1_800_000_000_000
    )


def test_the_notary_signs_for_the_url_the_payer_and_the_transaction() -> None:
    name, value = receipts(NOTARY).write_receipt(TX, request=request(), authorization=authorization_of())
    assert name == b"payment-response"
    told = decode_header(value)
    signed = told["extensions"][OFFER_RECEIPT]["info"]["receipt"]
    payload = signed["payload"]
    assert payload["resourceUrl"] == "https://gw.example.com/api/v2/gateway/api_quotes/q%2f?x=1"
    assert (payload["transaction"], payload["payer"]) == (str(TX), str(authorization_of().payer))
    fields = ("network", "resourceUrl", "payer", "transaction")
    message = encode_typed_data(
        {"name": "x402 receipt", "version": "1", "chainId": 1},
        {
            "Receipt": [
                {"name": "version", "type": "uint256"},
                {"name": "network", "type": "string"},
                {"name": "resourceUrl", "type": "string"},
                {"name": "payer", "type": "string"},
                {"name": "issuedAt", "type": "uint256"},
                {"name": "transaction", "type": "string"},
            ]
        },
        payload,
    )
    assert all(isinstance(payload[field], str) for field in fields)
    assert Account.recover_message(message, signature=signed["signature"]) == str(NOTARY.address)


@pytest.mark.parametrize(
    ("dialect", "header"), [(Dialect.X402_V1, b"x-payment-response"), (Dialect.MPP, b"payment-receipt")]
)
def test_other_dialects_know_no_signed_receipt(dialect: Dialect, header: bytes) -> None:
    authorization = authorization_of(dialect=dialect)
    name, value = receipts(NOTARY).write_receipt(TX, request=request(), authorization=authorization)
    assert name == header
    assert "extensions" not in decode_header(value)


def test_without_a_notary_nothing_is_signed() -> None:
    _, value = receipts(None).write_receipt(TX, request=request(), authorization=authorization_of())
    assert "extensions" not in decode_header(value)


def test_a_transaction_gets_the_shape_of_x402() -> None:
    name, value = write_plain_receipt(TX, payer=BUYER, chain_id=USDC.chain_id, base_units=10_000)
    assert name == b"payment-response"
    assert decode_header(value) == {
        "success": True,
        "transaction": str(TX),
        "network": "eip155:84532",
        "payer": str(BUYER),
        "amount": "10000",
    }
