"""Why a call or a payment did not come to its end, by name, so that callers can catch exactly what they mean.

    CallerFailure
    ├── GatewayRefused        the gateway said no (its code and problem document)
    ├── AnswerMalformed       the gateway's answer is not the document that was asked for
    ├── GatewayUnreachable    no answer came; `is_sent` tells whether it may have been served
    ├── AnswerUnreadable      the answer came, and its content coding is not what it says
    ├── NotPaid               nothing was spent
    │   ├── PriceAboveMax     dearer than the caller allows
    │   ├── FeeAboveMax       its network fee could be higher than the caller allows
    │   ├── BudgetExhausted   the total would exceed the budget
    │   └── CannotPay         no offer that this wallet can pay, or the node refuses the transfer
    ├── PaymentPending        our payment is on its way; ask again later, it is never made twice
    ├── PaymentRefused        our payment is mined, yet the gateway does not count it
    └── CallHeld              the outcome of a paid call is unknown, or its money is held; ask `call_url`

`code` is stable. `is_retryable`: the same request later can succeed, without another payment.
"""

import re
from collections.abc import Mapping

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


class GatewayRefused(CallerFailure):
    """The gateway answered with a problem. `problem` is its document (RFC 9457). A code that is none is `unknown`."""

    def __init__(self, status: int, problem: Mapping[str, object]) -> None:
        detail, code = problem.get("detail"), problem.get("code")
        is_detail = isinstance(detail, str) and detail != ""
        super().__init__(
            str(detail)[:DETAIL_CHARACTERS_MAX] if is_detail else f"The gateway answered {status}."
        )
        self.status = status
        self.problem = problem
        self.code = code if isinstance(code, str) and _CODE.fullmatch(code) else "unknown"
        self.is_retryable = problem.get("retryable") is True


class AnswerMalformed(CallerFailure):
    """The gateway's answer is not the document that was asked for: no JSON object, or without a member that it must have."""

    code = "answer_malformed"


class GatewayUnreachable(CallerFailure):
    """No answer came from the gateway."""

    code = "gateway_unreachable"
    is_retryable = True

    def __init__(self, detail: str, *, is_sent: bool, transaction: TxHash | None = None) -> None:
        super().__init__(detail, transaction=transaction)
        self.is_sent = is_sent
        # A paid call that left may have been served: whether to run it again is for the caller to decide.
        self.is_retryable = not (is_sent and transaction is not None)


class AnswerUnreadable(CallerFailure):
    """The body of an answer has a content coding that is not what it says. Its bytes are there (`iter_raw`)."""

    code = "answer_unreadable"


class NotPaid(CallerFailure):
    """Nothing was spent."""

    code = "not_paid"


class PriceAboveMax(NotPaid):
    """The call costs more than the caller allows."""

    code = "price_above_max"


class FeeAboveMax(NotPaid):
    """By the word of the node, the network fee of the payment could be higher than the caller allows."""

    code = "fee_above_max"


class BudgetExhausted(NotPaid):
    """The payment would exceed the total budget of this wallet's store."""

    code = "budget_exhausted"


class CannotPay(NotPaid):
    """No offer that this wallet can pay."""

    code = "cannot_pay"


class NodeUnreachable(NotPaid):
    """The chain node gave no usable answer before anything was signed."""

    code = "node_unreachable"
    is_retryable = True


class PaymentPending(CallerFailure):
    """Our payment is signed and stored, and not usable yet. Repeat the call: it continues with the same payment."""

    code = "payment_pending"
    is_retryable = True


class PaymentRefused(CallerFailure):
    """The gateway does not count a payment of ours, calls a fresh one spent, or asks for more than a difference. The
    call ends without another payment; a transfer that is not counted blocks its payee until it is resolved. Without a
    `transaction` it was an authorisation: it counts as spent until the chain shows that it can never be cashed."""

    code = "payment_refused"

    def __init__(self, detail: str, *, transaction: TxHash | None, reason: str | None) -> None:
        super().__init__(detail, transaction=transaction)
        self.reason = reason


class CallHeld(CallerFailure):
    """The call left and its outcome is unknown, or what could pay it is held by such a call. Nothing more was paid. Ask
    `call_url`, or `/payments/{tx}` and `/history`; or wait: held prices come back. `is_retryable` with an open
    authorisation: the same request again shows the same one."""

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
    """The store cannot be used until its owner does something: it is no database or a damaged one, a row holds what this
    version does not know, or the file cannot be opened. Nothing is signed meanwhile."""


class HeaderInvalid(ValueError):
    """A header's name or value that no request can have."""

    code = "header_invalid"


class HttpNotAllowed(ValueError):
    """A URL without TLS that is not on loopback, and that the caller did not allow."""

    code = "http_not_allowed"
