"""Receipts of signed payments in each dialect; in x402 v2 with the signature of the gateway."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from tests.kit.gateway import PUBLIC_URL, USDC, InProcessGateway, open_gateway
from tests.kit.ledger_records import authorization_of
from tests.kit.payer import KeyWallet, Payer, decode_header, read_receipt
from tests.kit.proxy_requests import sample_request
from tests.kit.routes import make_context
from tollway.gateway.messages import ProxyRequest
from tollway.gateway.receipts import ReceiptWriter, write_plain_receipt
from tollway.gateway.target import PATH_LENGTH_MAX
from tollway.identity.signatures import ReceiptSigner
from tollway.ids import TxHash
from tollway.ledger.records import Dialect
from tollway.payments.call_receipt import sign_call_receipt
from tollway.payments.offer_receipt import OFFER_RECEIPT
from tollway.web.api.receipt_routes import describe_call

TX = TxHash(b"\x07" * 32)
NOTARY = ReceiptSigner.derive(b"n" * 32)
MOVED_MS = 1_799_999_998_999
BUYER = KeyWallet.named("buyer").address


def request() -> ProxyRequest:
    return sample_request(rest="/q%2f", query="x=1")


def receipts(receipt_signer: ReceiptSigner | None) -> ReceiptWriter:
    return ReceiptWriter(
        public_url="https://gw.example.com", receipt_signer=receipt_signer, now_ms=lambda: 1_800_000_000_000
    )


def test_the_notary_signs_for_the_url_the_payer_and_the_transaction() -> None:
    name, value = receipts(NOTARY).write_receipt(
        TX, request=request(), authorization=authorization_of(), moved_ms=MOVED_MS
    )
    assert name == b"payment-response"
    told = decode_header(value)
    signed = told["extensions"][OFFER_RECEIPT]["info"]["receipt"]
    payload = signed["payload"]
    assert payload["resourceUrl"] == "https://gw.example.com/api/v2/gateway/api_quotes/q%2f"
    assert payload["issuedAt"] == MOVED_MS // 1000
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
    name, value = receipts(NOTARY).write_receipt(
        TX, request=request(), authorization=authorization, moved_ms=MOVED_MS
    )
    assert name == header
    assert "extensions" not in decode_header(value)


def test_a_receipt_is_signed_only_with_the_moment_of_the_charge() -> None:
    _, value = receipts(NOTARY).write_receipt(
        TX, request=request(), authorization=authorization_of(), moved_ms=None
    )
    assert "extensions" not in decode_header(value)


def test_a_path_is_signed_as_the_ledger_keeps_it() -> None:
    long = sample_request(rest="/" + "a" * (PATH_LENGTH_MAX + 9))
    _, value = receipts(NOTARY).write_receipt(
        TX, request=long, authorization=authorization_of(), moved_ms=MOVED_MS
    )
    url = decode_header(value)["extensions"][OFFER_RECEIPT]["info"]["receipt"]["payload"]["resourceUrl"]
    assert url == "https://gw.example.com/api/v2/gateway/api_quotes/" + "a" * (PATH_LENGTH_MAX - 1)


def test_without_a_notary_nothing_is_signed() -> None:
    _, value = receipts(None).write_receipt(
        TX, request=request(), authorization=authorization_of(), moved_ms=MOVED_MS
    )
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


@pytest.fixture
async def gateway() -> AsyncIterator[InProcessGateway]:
    async with open_gateway(receipt_signer=NOTARY) as small:
        yield small


def read_signed(answer: Any) -> dict[str, Any]:
    signed: dict[str, Any] = read_receipt(answer, Dialect.X402_V2)["extensions"][OFFER_RECEIPT]["info"][
        "receipt"
    ]
    return signed


async def test_the_receipt_of_the_response_is_a_part_of_the_receipt_of_the_call(
    gateway: InProcessGateway,
) -> None:
    await gateway.publish()
    payer = Payer.funded(gateway, 100_000)
    shown = payer.show(await payer.quote(target="/quote?city=Wien"))
    gateway.now_ms += 999  # the next second is near
    answer = await gateway.ask("GET", "/quote?city=Wien", [*shown, ("Idempotency-Key", "one")])
    assert answer.status == 200
    (call,) = await payer.history()
    context = make_context(public_url=PUBLIC_URL, limits=gateway.limits)
    whole = sign_call_receipt(describe_call(call, USDC, context), kid="", has_x402=True, sign=NOTARY.sign)
    assert read_signed(answer) == whole["x402"]
    assert whole["payload"]["resourceUrl"].endswith("/api_quotes/quote")
    gateway.now_ms += 5_000  # a repeat gets the same receipt, not one of now
    again = await gateway.ask("GET", "/quote?city=Wien", [*shown, ("Idempotency-Key", "one")])
    assert again.headers.get("idempotency-replayed") == "true", again.problem
    assert read_signed(again) == whole["x402"]
