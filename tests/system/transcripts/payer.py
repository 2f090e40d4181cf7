"""A client of x402 and MPP: reads a recorded 402 and signs what it asks for, or something else where a section wants that."""

import copy
from collections.abc import Callable
from typing import Any

from tests.system.transcripts.harness import Harness, Headers
from tests.system.transcripts.signing import Account, decode, encode, keccak256, nonce, sign_authorization
from tests.system.transcripts.wire import Answer

V2, V1, MPP = "x402 v2", "x402 v1", "mpp"
DIALECTS = (V2, V1, MPP)

Edit = Callable[[Any], object]


class Quote:
    """What a 402 asks for."""

    def __init__(self, answer: Answer) -> None:
        assert answer.status == 402, (answer.status, answer.body)
        self.required = decode(answer.find("PAYMENT-REQUIRED") or "")
        self.v1 = answer.json["accepts"][0]
        scheme, _, rest = (answer.find("WWW-Authenticate") or "").partition(" ")
        assert scheme == "Payment", scheme
        self.challenge = {
            name: value.strip('"') for name, _, value in (part.partition("=") for part in rest.split(", "))
        }

    @property
    def accepted(self) -> Any:
        return self.required["accepts"][0]


def quote(harness: Harness, api_id: str, rest: str = "/echo", *, method: str = "GET") -> Quote:
    """Not recorded."""
    return Quote(harness.call("", api_id, rest, method=method, is_recorded=False))


def show(
    harness: Harness,
    account: Account,
    asked: Quote,
    dialect: str = V2,
    *,
    edit: Edit | None = None,
    payer: str | None = None,
    spoil: bool = False,
    valid_s: int | None = None,
    **changes: str,
) -> Headers:
    """The header that pays. `changes`: of the signed fields; `edit`: of the message around them, after signing; `payer`: a
    contract wallet whose owner signs; `spoil`: the signature is of something else; `valid_s`: until when."""
    accepted, now_s = asked.accepted, harness.clock.now_s
    is_mpp = dialect == MPP
    once = (
        keccak256((asked.challenge["id"] + asked.challenge["realm"]).encode())
        if is_mpp
        else nonce("authorization " + harness.next_label())
    )
    if is_mpp:
        harness.node.random.add("0x" + once.hex())
        harness.recorder.learn("authorization nonce", once.hex())
    fields = {
        "from": payer or account.address,
        "to": accepted["payTo"],
        "value": accepted["amount"],
        "validAfter": "0" if is_mpp else str(now_s - 600),
        "validBefore": str(now_s + (valid_s or accepted["maxTimeoutSeconds"])),
        "nonce": "0x" + once.hex(),
        **changes,
    }
    signed = {**fields, "value": "1"} if spoil else fields
    signature = sign_authorization(account, signed) + ("01" if payer else "")
    content: Any
    if is_mpp:
        content = {
            "challenge": asked.challenge,
            "payload": {"type": "authorization", **fields, "signature": signature},
        }
    else:
        payload = {"signature": signature, "authorization": fields}
        content = {"x402Version": 1, "scheme": "exact", "network": "base-sepolia", "payload": payload}
        if dialect == V2:
            content = {
                "x402Version": 2,
                "resource": asked.required["resource"],
                "accepted": copy.deepcopy(accepted),
                "payload": payload,
            }
    if edit is not None:
        edit(content)
    return dress(dialect, encode(content, is_urlsafe=is_mpp))


def dress(dialect: str, encoded: str) -> Headers:
    if dialect == MPP:
        return [("Authorization", f"Payment {encoded}")]
    return [({V2: "PAYMENT-SIGNATURE", V1: "X-PAYMENT"}[dialect], encoded)]
