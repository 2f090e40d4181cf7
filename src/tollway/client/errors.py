"""The exceptions of the client: one class for each reason why a call or a payment failed.

    CallerFailure
    ├── GatewayRefused        the gateway refused (its code and problem document)
    ├── GatewayResponseInvalid       the gateway's response is not the requested document
    ├── GatewayUnreachable    no response arrived; `is_sent`: the request may have been served
    ├── ResponseUnreadable      the response's body does not match its content coding
    ├── NotPaid               nothing was spent
    │   ├── PriceAboveMax     the price is above the limit
    │   ├── FeeAboveMax       the network fee could be above the limit
    │   ├── BudgetExhausted   the total would exceed the budget
    │   ├── PolicyExceeded    the policy of the wallet's owner at the gateway does not cover the call
    │   ├── CannotPay         no offer that this wallet can pay, or the node refuses the transfer
    │   └── NodeUnreachable   the chain node gave no usable response
    ├── PaymentPending        the payment is signed and not usable yet; repeat later, it is never made twice
    ├── PaymentRefused        the payment is mined, and the gateway does not count it
    └── CallHeld              the outcome of a paid call is unknown, or its price is held; read `call_url`

`code` is stable. `is_retryable`: the same request can succeed later, without another payment.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tollway.errors import StorageUnavailable
from tollway.ids import TxHash

DETAIL_CHARACTERS_MAX = 4_000
_CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class CallerFailure(Exception):
    """Any failure on the caller's side."""

    code: str = "failed"
    is_retryable: bool = False

    def __init__(self, detail: str, *, transaction: TxHash | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.transaction = transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldProblem:
    """The problem of one member (`pointer`) or one query parameter (`parameter`) of a request."""

    code: str
    detail: str
    pointer: str | None = None
    parameter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayProblem:
    """A problem document of the gateway (RFC 9457). A member of a wrong type counts as absent. `code`: `unknown` for an invalid one.
    `payment_state`: none, charged, released or held."""

    status: int
    code: str
    detail: str
    title: str | None = None
    type: str | None = None
    instance: str | None = None
    request_id: str | None = None
    is_retryable: bool = False
    payment_state: str | None = None
    call_id: str | None = None
    reason: str | None = None
    retry_after_s: int | None = None
    errors: tuple[FieldProblem, ...] = ()
    document: str = field(default="{}", repr=False)
    """The whole document as JSON, with the members that this record has no field for."""

    @classmethod
    def read(cls, status: int, document: Mapping[str, object]) -> "GatewayProblem":
        """Never fails. `status`: that of the response."""
        code, retry_after_s = _read_text(document, "code"), document.get("retryAfterSeconds")
        errors = document.get("errors")
        return cls(
            status=status,
            code=code if code is not None and _CODE.fullmatch(code) else "unknown",
            detail=(_read_text(document, "detail") or f"The gateway responded with status {status}.")[
                :DETAIL_CHARACTERS_MAX
            ],
            title=_read_text(document, "title"),
            type=_read_text(document, "type"),
            instance=_read_text(document, "instance"),
            request_id=_read_text(document, "requestId"),
            is_retryable=document.get("retryable") is True,
            payment_state=_read_text(document, "paymentState"),
            call_id=_read_text(document, "callId"),
            reason=_read_text(document, "reason"),
            retry_after_s=retry_after_s if type(retry_after_s) is int else None,
            errors=tuple(_read_errors(errors if isinstance(errors, list) else [])),
            document=json.dumps(document, ensure_ascii=False),
        )


def _read_text(document: Mapping[str, object], name: str) -> str | None:
    value = document.get(name)
    return value if isinstance(value, str) else None


def _read_errors(entries: list[object]) -> Iterator[FieldProblem]:
    for entry in entries:
        if isinstance(entry, dict):
            yield FieldProblem(
                code=_read_text(entry, "code") or "unknown",
                detail=_read_text(entry, "detail") or "",
                pointer=_read_text(entry, "pointer"),
                parameter=_read_text(entry, "parameter"),
            )


class GatewayRefused(CallerFailure):
    """The gateway responded with a problem. `code`: that of the problem."""

    def __init__(self, status: int, document: Mapping[str, object]) -> None:
        self.problem = GatewayProblem.read(status, document)
        super().__init__(self.problem.detail)
        self.status = status
        self.code = self.problem.code
        self.is_retryable = self.problem.is_retryable


class GatewayResponseInvalid(CallerFailure):
    """The gateway's response is not the requested document: it is no JSON object, or a required member is missing."""

    code = "gateway_response_invalid"


class GatewayUnreachable(CallerFailure):
    """No response of the gateway arrived, or only one that does not name the state of the payment, such as a proxy's own 502. `is_sent`: the request
    may have left, so the call may be served and charged."""

    code = "gateway_unreachable"
    is_retryable = True

    def __init__(self, detail: str, *, is_sent: bool, transaction: TxHash | None = None) -> None:
        super().__init__(detail, transaction=transaction)
        self.is_sent = is_sent
        # A paid call that was sent may have been served, so the caller decides whether to run it again.
        self.is_retryable = not (is_sent and transaction is not None)


class ResponseUnreadable(CallerFailure):
    """The body of a response does not match its content coding. Its raw bytes are readable (`iter_raw`)."""

    code = "response_unreadable"


class NotPaid(CallerFailure):
    """Nothing was spent."""

    code = "not_paid"


class PriceAboveMax(NotPaid):
    """The price of the call is above the caller's limit."""

    code = "price_above_max"


class FeeAboveMax(NotPaid):
    """By the node's figures, the network fee of the payment could be above the caller's limit."""

    code = "fee_above_max"


class BudgetExhausted(NotPaid):
    """The payment would exceed the total budget of this wallet's store."""

    code = "budget_exhausted"


class PolicyExceeded(NotPaid):
    """The policy of this wallet's owner at the gateway does not cover the call. Another payment would be refused too.

    `reason`: `limit`, `other_currency`, `target_not_allowed` or `no_policy_in_force`. `limit`: the member of the policy that is used up, such as `maxPerDay`, with `left` of it,
    a decimal text in `currency`. `resets_at`: when the same call may be covered again, which is then retryable; None where time alone does not end the refusal. What the
    gateway did not name is None. `transaction`: an earlier payment, which stays credit."""

    code = "budget_exceeded"

    def __init__(
        self,
        detail: str,
        *,
        transaction: TxHash | None = None,
        reason: str | None = None,
        limit: str | None = None,
        left: str | None = None,
        currency: str | None = None,
        resets_at: datetime | None = None,
    ) -> None:
        super().__init__(detail, transaction=transaction)
        self.reason = reason
        self.limit = limit
        self.left = left
        self.currency = currency
        self.resets_at = resets_at
        self.is_retryable = resets_at is not None


class CannotPay(NotPaid):
    """There is no offer that this wallet can pay."""

    code = "cannot_pay"


class NodeUnreachable(NotPaid):
    """The chain node gave no usable response before anything was signed."""

    code = "node_unreachable"
    is_retryable = True


class PaymentPending(CallerFailure):
    """The payment is signed and stored, and not usable yet. Repeat the call: it continues with the same payment. `reason`: the code of the
    gateway's last response, such as `chain_unavailable`; None where the wallet's own node decides."""

    code = "payment_pending"
    is_retryable = True

    def __init__(self, detail: str, *, transaction: TxHash | None = None, reason: str | None = None) -> None:
        super().__init__(detail, transaction=transaction)
        self.reason = reason


class PaymentRefused(CallerFailure):
    """The gateway does not count a payment of this wallet, reports a new one as spent, or requests more than a difference. The
    call ends without another payment. A transfer that is not counted blocks its payee until it is resolved. Without a
    `transaction` the payment was an authorisation: it counts as spent until the chain shows that it can never be settled. `is_retryable`: it
    has expired, and the same request signs nothing before the chain shows that."""

    code = "payment_refused"

    def __init__(
        self,
        detail: str,
        *,
        transaction: TxHash | None,
        reason: str | None,
        is_retryable: bool = False,
    ) -> None:
        super().__init__(detail, transaction=transaction)
        self.is_retryable = is_retryable
        self.reason = reason


class CallHeld(CallerFailure):
    """The call was sent and its outcome is unknown, or such a call holds the credit that could pay. Nothing more was paid. Read
    `call_url`, or `/payments/{tx}` and `/history`; or wait: a held price is released later. `is_retryable` with an open
    authorisation: the same request sends the same authorisation again."""

    code = "call_held"

    def __init__(
        self,
        detail: str,
        *,
        transaction: TxHash | None,
        call_id: str | None,
        call_url: str | None,
        is_retryable: bool = False,
    ) -> None:
        super().__init__(detail, transaction=transaction)
        self.is_retryable = is_retryable
        self.call_id = call_id
        self.call_url = call_url


class StoreUnusable(StorageUnavailable):
    """The store cannot be used until its owner repairs it: the file is no database, is damaged or cannot be opened, or a row is of a newer
    version. Nothing is signed meanwhile."""


class HeaderInvalid(ValueError):
    """A header has an invalid name or value."""

    code = "header_invalid"


class IssuersUnusable(ValueError):
    """`SSL_CERT_FILE` or `SSL_CERT_DIR` names no certificates that can be read."""

    code = "issuers_unusable"


class HttpNotAllowed(ValueError):
    """A URL without TLS is not on loopback, and the caller did not allow it."""

    code = "http_not_allowed"
