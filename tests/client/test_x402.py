"""The x402 offers of a gateway, and the gateway's parser of the client's payment: both sides of the wire, and wrong values."""

import base64
import json

import pytest

from tests.kit.narrowing import existing
from tollway.client.wallet import Wallet
from tollway.client.x402 import TIMEOUT_MAX_S, X402Offer, read_receipt, read_x402_offers
from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.records import Dialect
from tollway.money import Asset, Price, TokenDomain
from tollway.payments.authorization_check import match_requirement, parse_presented
from tollway.payments.eip3009 import recover_signer
from tollway.payments.mpp import ChallengeRoute
from tollway.payments.payment_required import ERROR, PaymentRequiredEncoder, encode_failure, encode_receipt
from tollway.payments.pricing import PaymentRequirement
from tollway.payments.x402 import Resource
from tollway.registry.listing import ChargeOn

CHAIN = ChainId(84532)
TOKEN = Address.parse("0x036CbD53842c5426634e7929541eC2318f3dCF7e")
PAYEE = Address(b"\x22" * 20)
DOMAIN = TokenDomain(name="USDC", version="2")
USDC = Asset(chain_id=CHAIN, token=TOKEN, symbol="USDC", decimals=6, domain=DOMAIN)
NOW_S = 1_700_000_000
REQUIREMENT = PaymentRequirement(
    asset=USDC,
    price=Price.parse("0.01"),
    units=10_000,
    pay_to=PAYEE,
    charge_on=ChargeOn.SUCCESS,
    max_timeout_s=90,
)
ACCEPTED = {
    "scheme": "exact",
    "network": "eip155:84532",
    "amount": "10000",
    "asset": str(TOKEN),
    "payTo": str(PAYEE),
    "maxTimeoutSeconds": 90,
    "extra": {"name": "USDC", "version": "2"},
}
OPTION = {
    "rail": "x402",
    "version": 2,
    "header": "PAYMENT-SIGNATURE",
    "network": "eip155:84532",
    "chainId": 84532,
    "token": str(TOKEN),
    "symbol": "USDC",
    "decimals": 6,
    "amount": "10000",
    "payTo": str(PAYEE),
    "maxTimeoutSeconds": 90,
    "extra": {"name": "USDC", "version": "2"},
}


def in_base64(document: object) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def required(*accepts: object, **members: object) -> dict[str, str]:
    return {"payment-required": in_base64({"x402Version": 2, "accepts": list(accepts), **members})}


def body(*options: object) -> dict[str, object]:
    return {"code": "payment_required", "payment": {"options": list(options)}}


def route() -> ChallengeRoute:
    return ChallengeRoute(api_id="api_1", method="GET", target=b"/quote/ETH")


def test_the_gateways_own_requirement_is_parsed_signed_and_accepted() -> None:
    form = PaymentRequiredEncoder(
        [REQUIREMENT],
        Resource(url="", description="d", mime_type="", service_name="", tags=()),
        extensions={"bazaar": {"info": {"a": 1}, "schema": {"type": "object"}}},
    )
    url = "https://gw.test/api/v2/gateway/api_1"
    headers = {"payment-required": form.encode_required(url, {ERROR: b'"payment_required"'}).decode()}
    (offer,) = read_x402_offers(headers, body(OPTION))
    wallet = Wallet.from_key(b"\x11" * 32)
    signed = wallet.sign_authorization(
        offer, USDC, gateway="https://gw.test", now_s=NOW_S, nonce=b"\x0c" * 32
    )
    shown = parse_presented(
        [(b"payment-signature", signed.proof.encode())], challenger=None, find_route=route, now_s=NOW_S
    )
    requirement, authorization = match_requirement(shown, [REQUIREMENT])
    assert requirement == REQUIREMENT
    assert recover_signer(authorization, DOMAIN) == wallet.address == authorization.payer
    assert (authorization.valid_after, authorization.valid_before) == (0, NOW_S + 90)
    assert (authorization.nonce, authorization.dialect) == (b"\x0c" * 32, Dialect.X402_V2)
    echoed = json.loads(base64.b64decode(signed.proof))
    asked = json.loads(base64.b64decode(headers["payment-required"]))
    assert echoed["accepted"] == asked["accepts"][0]
    assert (echoed["resource"], echoed["extensions"]) == (asked["resource"], asked["extensions"])
    assert signed.proof not in repr(signed)


OFFER = X402Offer(
    chain_id=CHAIN,
    token=TOKEN,
    symbol="USDC",
    decimals=6,
    amount=10_000,
    pay_to=PAYEE,
    timeout_s=90,
    domain=DOMAIN,
    accepted=json.dumps(ACCEPTED, separators=(",", ":")),
)


def without(told: dict[str, object], *names: str) -> dict[str, object]:
    return {name: value for name, value in told.items() if name not in names}


@pytest.mark.parametrize(
    "headers",
    [required(ACCEPTED), {}, {"payment-required": required(ACCEPTED)["payment-required"].rstrip("=")}],
)
def test_header_and_option_say_the_same_and_either_is_enough(headers: dict[str, str]) -> None:
    assert read_x402_offers(headers, body(OPTION)) == (OFFER,)


def test_a_header_alone_leaves_the_token_to_be_known_from_elsewhere() -> None:
    (offer,) = read_x402_offers(required(ACCEPTED), {})
    assert (offer.symbol, offer.decimals, offer.amount) == (None, None, 10_000)


def test_offers_keep_the_gateways_order_and_leave_out_what_cannot_be_kept() -> None:
    other = {**ACCEPTED, "network": "eip155:8453"}
    found = read_x402_offers(required({**ACCEPTED, "scheme": "upto"}, other, "x", ACCEPTED), {})
    assert [offer.chain_id for offer in found] == [8453, 84532]


@pytest.mark.parametrize(
    "lie",
    [{"amount": "9999"}, {"amount": "1"}, {"payTo": "0x" + "33" * 20}],
)
def test_a_header_that_differs_from_the_body_is_no_offer(lie: dict[str, object]) -> None:
    assert read_x402_offers(required({**ACCEPTED, **lie}), body(OPTION)) == ()
    assert read_x402_offers(required(ACCEPTED), body({**OPTION, **lie})) == ()


@pytest.mark.parametrize(
    "told",
    [
        {**ACCEPTED, "scheme": "upto"},
        {**ACCEPTED, "network": "base-sepolia"},
        {**ACCEPTED, "network": "solana:x"},
        {**ACCEPTED, "asset": "USDC"},
        {**ACCEPTED, "payTo": "0x12"},
        {**ACCEPTED, "amount": 10_000},
        {**ACCEPTED, "amount": "0"},
        {**ACCEPTED, "amount": "-1"},
        {**ACCEPTED, "amount": "1" * 79},
        {**ACCEPTED, "maxTimeoutSeconds": 0},
        {**ACCEPTED, "maxTimeoutSeconds": TIMEOUT_MAX_S + 1},
        {**ACCEPTED, "maxTimeoutSeconds": True},
        {**ACCEPTED, "maxTimeoutSeconds": "90"},
        {**ACCEPTED, "extra": None},
        {**ACCEPTED, "extra": {"name": "USDC"}},
        {**ACCEPTED, "extra": {"name": "U" * 129, "version": "2"}},
        {**ACCEPTED, "extra": {**ACCEPTED["extra"], "paymentFlow": "upfront"}},
        {**ACCEPTED, "extra": {**ACCEPTED["extra"], "assetTransferMethod": "permit2"}},
        without(ACCEPTED, "asset"),
        without(ACCEPTED, "payTo"),
        [],
    ],
)
def test_a_requirement_that_makes_no_sense_is_no_offer(told: object) -> None:
    assert read_x402_offers(required(told), {}) == ()


@pytest.mark.parametrize(
    "header",
    [
        "",
        "!",
        "a" * 20_000,
        in_base64([]),
        in_base64({"x402Version": 1, "accepts": [ACCEPTED]}),
        in_base64({"x402Version": 2}),
        in_base64({"x402Version": 2, "accepts": "x"}),
        base64.b64encode(b"[" * 9_000).decode(),
        base64.b64encode(b"\xff\xfe").decode(),
        in_base64({"x402Version": 2, "accepts": [ACCEPTED]}) + ", x",
    ],
)
def test_an_unreadable_header_offers_nothing(header: str) -> None:
    assert read_x402_offers({"payment-required": header}, body(OPTION)) == ()


@pytest.mark.parametrize("change", [{"symbol": 1}, {"decimals": "6"}, {"decimals": True}, {"token": None}])
def test_an_option_without_a_required_member_is_no_offer(change: dict[str, object]) -> None:
    assert read_x402_offers({}, body({**OPTION, **change})) == ()


def test_other_rails_are_left_to_others() -> None:
    assert read_x402_offers({}, body({**OPTION, "rail": "tx"}, {**OPTION, "rail": "mpp"})) == ()


def test_receipts_are_read_as_our_gateway_writes_them() -> None:
    payer = Address(b"\x01" * 20)
    name, value = encode_receipt(
        Dialect.X402_V2,
        transaction=TxHash(b"\x0a" * 32),
        network_chain_id=CHAIN,
        payer=payer,
        base_units=10_000,
        now=NOW_S,
    )
    receipt = existing(read_receipt({name.decode().lower(): value.decode()}))
    assert (receipt.is_success, receipt.transaction) == (True, TxHash(b"\x0a" * 32))
    assert (receipt.network, receipt.payer, receipt.amount) == ("eip155:84532", str(payer), "10000")
    failure = encode_failure(
        Dialect.X402_V2, reason="insufficient_balance", network_chain_id=CHAIN, payer=payer
    )
    assert failure is not None
    refused = existing(read_receipt({failure[0].decode().lower(): failure[1].decode()}))
    assert (refused.is_success, refused.transaction, refused.reason) == (False, None, "insufficient_balance")


@pytest.mark.parametrize("told", ["", "x", in_base64([]), in_base64({"success": "true"}), in_base64({})])
def test_an_invalid_receipt_is_none(told: str) -> None:
    assert read_receipt({"payment-response": told}) is None


def test_a_receipt_keeps_no_invalid_hash_and_no_long_text() -> None:
    told = {"success": True, "transaction": "0x12", "network": "n" * 999, "amount": "1e3", "payer": 7}
    receipt = existing(read_receipt({"payment-response": in_base64(told)}))
    assert (receipt.transaction, receipt.amount, receipt.payer) == (None, None, None)
    assert receipt.network == "n" * 128
