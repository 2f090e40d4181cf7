"""A receipt of a charged call, as in the vectors of the format: the key of Foundry's account 1, a gateway on loopback."""

from typing import Any

import coincurve

from tollway.identity.did_document import PublishedSigners, describe_signers, key_id
from tollway.identity.signatures import ReceiptSigner
from tollway.payments.call_receipt import X402_FIELDS, sign_call_receipt

AUTHORITY = "127.0.0.1:8402"
SIGNER = ReceiptSigner(
    coincurve.PrivateKey(bytes.fromhex("59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d"))
)
KEYS = PublishedSigners(authority=AUTHORITY, addresses=frozenset({SIGNER.address}))
DID_DOCUMENT = describe_signers(authority=AUTHORITY, signers=[SIGNER.address])

CALL_RECEIPT: dict[str, str | int] = {
    "version": 1,
    "network": "eip155:84532",
    "resourceUrl": f"http://{AUTHORITY}/api/v2/gateway/api_7k2m9q",
    "payer": "0x70997970C51812dc3A010C7d01b50e0d17dc79C8",
    "issuedAt": 1795356000,
    "transaction": "0x" + "11" * 32,
    "gateway": f"http://{AUTHORITY}",
    "callId": "call_01",
    "apiId": "api_7k2m9q",
    "operation": "GET /v1/quote",
    "payee": "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC",
    "asset": "eip155:84532/erc20:0x036cbd53842c5426634e7929541ec2318f3dcf7e",
    "decimals": 6,
    "currency": "USDC",
    "price": "0.01",
    "amount": "10000",
    "quantities": "",
    "rail": "x402",
    "channel": "",
    "state": "charged",
    "httpStatus": 200,
    "createdAt": 1795355999,
    "completedAt": 1795356000,
}
X402_RECEIPT = {field: CALL_RECEIPT[field] for field in X402_FIELDS}


def signed_receipt(*, has_x402: bool = True) -> dict[str, Any]:
    return sign_call_receipt(CALL_RECEIPT, kid=key_id(AUTHORITY), has_x402=has_x402, sign=SIGNER.sign)
