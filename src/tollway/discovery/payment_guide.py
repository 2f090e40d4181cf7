"""The payment guide of a gateway: how a program pays for calls, repeats them and reads its bill. One JSON document for all listings. Pure.

Each rail has its steps in words and, but for MPP, a form that a program fills in: `{name}` stands for that member of the chosen option or of the agent document, or
for the result of a step. An agent document has the form of one rail, so a program with that document alone can pay; the others are here.

No step advises a second payment while a payment can still move money.
"""

from typing import Any

from tollway.discovery.listing_view import MCP_REVISIONS
from tollway.limits import Limits
from tollway.payments.proof import BOUND_VALIDITY_S

GUIDE_PATH = "/docs/payment.json"

_PAID_CALL = (
    "PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,"
    "uint256 validUntil,bytes32 nonce)"
)
_AUTHORIZATION = (
    "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,"
    "bytes32 nonce)"
)


def describe_payment(public_url: str, limits: Limits) -> dict[str, Any]:
    """`public_url` without a final slash."""
    return {
        "what": "How to pay for the APIs of this gateway, for programs. In a form {name} is that member of the chosen option or of the "
        "agent document ({id}, {origin}), or the result of a step.",
        "origin": public_url,
        "steps": [
            "Send the request without a payment: a 402 has the current price and every option.",
            "Choose an option, follow the steps of its rail, send the same request with the payment.",
            "Tollway-Payment-State of the response is charged, released (the credit is back), held (not known yet) or none; "
            "Tollway-Call-Id names the call.",
        ],
        "otherPrices": "The amount of an option for another price is price x 10^decimals.",
        "cap": "Tollway-Max-Price: <decimal> refuses a call with a higher price, before payment.",
        "rails": [x402_rail(), mpp_rail(), channel_rail(), transaction_rail(is_bound_only=False)],
        "boundOnly": "Where the rail tx of an agent document has signature bound, personal_sign is refused.",
        "idempotency": {
            "header": "Idempotency-Key",
            "hours": limits.response_ttl_s // 3_600,
            "rule": "The same key, wallet and request get the stored response and no second charge.",
        },
        "errors": {
            "format": "application/problem+json",
            "catalog": "/problems/{code-with-dashes}",
            "retry": "Where retryable is true: after Retry-After, with the same proof and the same Idempotency-Key.",
            "pay": "On 402 only; never on 409, 503, 504 or a lost response.",
            "failedCalls": f"{limits.failed_calls_per_window} in {limits.failed_calls_window_s // 60} minutes, then 429.",
        },
        "mcp": {
            "transport": "streamable-http",
            "revisions": list(MCP_REVISIONS),
            "tools": "An API's own server has each operation by its tool name; /mcp calls it by proxy_tool_call, toolName <id>.<tool>.",
            "payment": "_meta x402/payment or org.paymentauth/credential, or the header of that payment on the POST, or (bound form) arguments paymentTx, "
            "paymentSignature, paymentSignatureParams",
        },
        "quality": "Measured from paid calls by others; null: fewer than 20.",
        "history": {
            "calls": "/api/v2/history",
            "payments": "/api/v2/payments",
            "auth": [
                "ERC-8128 (RFC 9421): keyid erc8128:<chainId>:<address>; covers @authority @method @path, @query if any; "
                f"created, expires <= {limits.signed_request_ttl_s} s, nonce",
                "or POST /api/v2/auth/nonce {address, chainId}, personal_sign its message, POST /api/v2/auth/session {message, "
                "signature}: Bearer accessToken",
                "or SIGN-IN-WITH-X at /x402/history",
            ],
        },
    }


# ---- The rails.


def x402_rail() -> dict[str, Any]:
    return {
        "rail": "x402",
        "gas": "none",
        "steps": [
            "An x402 client does all of it. By hand: sign eip712; {from} is your wallet, {validBefore} now + maxTimeoutSeconds "
            "(unix s), {nonce} 32 random bytes. Send the header: base64 of the JSON payload. One signature pays one call.",
        ],
        "eip712": {
            "domain": {
                "name": "{extra.name}",
                "version": "{extra.version}",
                "chainId": "{chainId}",
                "verifyingContract": "{token}",
            },
            "type": _AUTHORIZATION,
            "message": {
                "from": "{from}",
                "to": "{payTo}",
                "value": "{amount}",
                "validAfter": "0",
                "validBefore": "{validBefore}",
                "nonce": "{nonce}",
            },
        },
        "header": "PAYMENT-SIGNATURE",
        "payload": {
            "x402Version": 2,
            "accepted": {
                "scheme": "exact",
                "network": "{network}",
                "amount": "{amount}",
                "asset": "{token}",
                "payTo": "{payTo}",
                "maxTimeoutSeconds": "{maxTimeoutSeconds}",
                "extra": "{extra}",
            },
            "payload": {"signature": "{signature}", "authorization": "{message}"},
        },
    }


def mpp_rail() -> dict[str, Any]:
    return {
        "rail": "mpp",
        "method": "evm",
        "intent": "charge",
        "steps": [
            "An MPP client does all of it: it responds to a WWW-Authenticate: Payment challenge of the 402 with Authorization: "
            "Payment, type authorization.",
        ],
    }


def channel_rail() -> dict[str, Any]:
    return {
        "rail": "channel",
        "scheme": "batch-settlement",
        "gas": "none",
        "steps": [
            "An x402 client with this scheme does all of it: one deposit of extra.minDeposit or more, then a voucher for each call."
        ],
    }


def transaction_rail(*, is_bound_only: bool) -> dict[str, Any]:
    """`is_bound_only`: the plain form of `X-Signature` is refused."""
    bound = (
        "Sign eip712 with the wallet that paid: {method} in capitals, {target} path and query after the http url, {bodyHash} keccak256 "
        f"of the body, {{validUntil}} at most now + {BOUND_VALIDITY_S} (unix s), {{nonce}} 32 random bytes."
    )
    plain = " Or personal_sign the hash (66 characters) and leave X-Signature-Params out."
    return {
        "rail": "tx",
        "gas": "yours",
        "steps": [
            "Transfer amount base units of token (native currency if none) to payTo on chainId; more pays for more calls.",
            "Wait for confirmations; the block with the transfer counts.",
            bound if is_bound_only else bound + plain,
            "Send the request with the headers. For the next call: the same hash, a new signature.",
        ],
        "eip712": {
            "domain": {"name": "Tollway", "version": "1", "chainId": "{chainId}"},
            "type": _PAID_CALL,
            "message": {
                "gateway": "{origin}",
                "apiId": "{id}",
                "method": "{method}",
                "target": "{target}",
                "bodyHash": "{bodyHash}",
                "transaction": "{transaction}",
                "validUntil": "{validUntil}",
                "nonce": "{nonce}",
            },
        },
        "headers": {
            "X-Payment-Tx": "{transaction}",
            "X-Signature": "{signature}",
            "X-Signature-Params": "v=1;validUntil={validUntil};nonce={nonce};bodyHash={bodyHash}",
        },
    }
