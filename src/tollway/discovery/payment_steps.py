"""How a call is paid, for a reader that knows nothing of this gateway: in plain words, and in a form that a program can
carry out. One entry for each rail that is open. Pure.

In the machine form, `{name}` stands for the member `name` of the chosen option, or for what the words of that rail say.
No step ever tells a reader to pay again where a payment may still move money.
"""

from typing import Any

from tollway.discovery.shown_listing import ListingView
from tollway.limits import Limits

_PAID_CALL = (
    "PaidCall(string gateway,string apiId,string method,string target,bytes32 bodyHash,bytes32 transaction,"
    "uint256 validUntil,bytes32 nonce)"
)
_AUTHORIZATION = (
    "TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,"
    "bytes32 nonce)"
)


def list_rails(view: ListingView, rails: frozenset[str], limits: Limits) -> list[dict[str, Any]]:
    """`rails`: of the options to pay (`tx`, `x402`); MPP is added where it is open, because it settles what x402 does."""
    found: list[dict[str, Any]] = []
    if "x402" in rails:
        found.append(_x402())
    if view.has_mpp:
        found.append(_mpp())
    if "tx" in rails:
        found.append(_tx(view, limits))
    return found


def _x402() -> dict[str, Any]:
    return {
        "rail": "x402",
        "gas": "none",
        "steps": [
            "An x402 client does all of it, given the URL. By hand:",
            "Sign eip712 with the paying wallet: {from} its address, {validBefore} now + maxTimeoutSeconds (unix s), {nonce} "
            "32 random bytes.",
            "Send the request with the header: base64 of the JSON payload. One authorisation pays one call.",
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


def _mpp() -> dict[str, Any]:
    return {
        "rail": "mpp",
        "method": "evm",
        "intent": "charge",
        "steps": [
            "An MPP client does all of it: answer a WWW-Authenticate: Payment challenge of the 402 with Authorization: "
            "Payment, type authorization.",
        ],
    }


def _tx(view: ListingView, limits: Limits) -> dict[str, Any]:
    bound = (
        "Sign eip712 with the wallet that paid: {method} in capitals, {target} path and query after the http url, {bodyHash} keccak256 "
        f"of the body, {{validUntil}} at most now + {limits.bound_validity_s} (unix s), {{nonce}} 32 random bytes."
    )
    plain = " Or personal_sign the hash (66 characters) and leave X-Signature-Params out."
    return {
        "rail": "tx",
        "gas": "yours",
        "steps": [
            "Transfer amount base units of token (native currency if none) to payTo on chainId; more pays for more calls.",
            "Wait for confirmations; the block with the transfer counts.",
            bound if view.is_bound_only else bound + plain,
            "Send the request with the headers. For the next call: the same hash, a new signature.",
        ],
        "eip712": {
            "domain": {"name": "Tollway", "version": "1", "chainId": "{chainId}"},
            "type": _PAID_CALL,
            "message": {
                "gateway": view.public_url,
                "apiId": view.listing.id,
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
