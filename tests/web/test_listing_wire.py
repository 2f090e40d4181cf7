"""The options to pay as JSON. (Lists and details are tested with their routes.)"""

from tollway.identifiers import Address
from tollway.registry.pricing import Option
from tollway.testing.authorization_samples import USDC
from tollway.web.listing_wire import option_json

PAYEE = Address(b"\xaa" * 20)
SAME = {
    "network": "eip155:84532",
    "chainId": 84532,
    "asset": "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e",
    "token": "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
    "symbol": "USDC",
    "decimals": 6,
    "amount": "10000",
    "payTo": str(PAYEE),
}


def test_a_transaction_of_the_callers_own() -> None:
    option = Option(rail="tx", asset=USDC, amount_base_units=10_000, pay_to=PAYEE, confirmations=2)
    assert option_json(option) == {
        "rail": "tx",
        **SAME,
        "confirmations": 2,
        "headers": ["X-Payment-Tx", "X-Signature"],
    }


def test_an_authorisation_says_the_same_numbers_and_what_to_sign() -> None:
    option = Option(
        rail="x402", asset=USDC, amount_base_units=10_000, pay_to=PAYEE, confirmations=2, max_timeout_s=90
    )
    assert option_json(option) == {
        "rail": "x402",
        "version": 2,
        "header": "PAYMENT-SIGNATURE",
        **SAME,
        "maxTimeoutSeconds": 90,
        "extra": {"name": "USDC", "version": "2"},
    }
