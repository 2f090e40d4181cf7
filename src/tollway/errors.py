"""Failures with stable, public codes. `web/http/problems.py` alone maps a code to an HTTP status.

A *refusal* is a `Problem`. A rule returns it; the pipeline raises it inside `Refusal`. An operational failure (the database or the chain is unavailable) is one of
the other exceptions; adapters raise it `from` the foreign error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar


class Code(StrEnum):
    """Every public error code, as in `docs/errors.md`."""

    INVALID_REQUEST = "invalid_request"
    AUTHENTICATION_REQUIRED = "authentication_required"
    INVALID_SIGNATURE = "invalid_signature"
    SIGNATURE_EXPIRED = "signature_expired"
    NONCE_REUSED = "nonce_reused"
    SESSION_EXPIRED = "session_expired"
    CONFLICTING_IDENTITIES = "conflicting_identities"
    PAYMENT_REQUIRED = "payment_required"
    PAYMENT_MALFORMED = "payment_malformed"
    PAYMENT_EXPIRED = "payment_expired"
    PAYMENT_METHOD_UNSUPPORTED = "payment_method_unsupported"
    PAYMENT_SETTLEMENT_FAILED = "payment_settlement_failed"
    PAYMENT_INSUFFICIENT = "payment_insufficient"
    PAYMENT_VERIFICATION_FAILED = "payment_verification_failed"
    PAYER_MISMATCH = "payer_mismatch"
    PAYER_IN_DEBT = "payer_in_debt"
    BUDGET_EXCEEDED = "budget_exceeded"
    WALLET_BLOCKED = "wallet_blocked"
    NOT_PROVIDER = "not_provider"
    NOT_VIEWER = "not_viewer"
    OWNERSHIP_UNVERIFIED = "ownership_unverified"
    API_NOT_FOUND = "api_not_found"
    CALL_NOT_FOUND = "call_not_found"
    PAYMENT_NOT_FOUND = "payment_not_found"
    WEBHOOK_NOT_FOUND = "webhook_not_found"
    BUDGET_NOT_FOUND = "budget_not_found"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    PAYMENT_ALREADY_USED = "payment_already_used"
    PAYMENT_TOO_OLD = "payment_too_old"
    PAYMENT_HELD = "payment_held"
    PAYMENT_PENDING = "payment_pending"
    CALL_NOT_REFUNDABLE = "call_not_refundable"
    REFUND_TRANSFER_USED = "refund_transfer_used"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    ALREADY_EXISTS = "already_exists"
    WEBHOOK_LIMIT_REACHED = "webhook_limit_reached"
    API_RETIRED = "api_retired"
    PRECONDITION_FAILED = "precondition_failed"
    PRICE_ABOVE_MAX = "price_above_max"
    VALIDATION_FAILED = "validation_failed"
    REFUND_TRANSFER_REFUSED = "refund_transfer_refused"
    ENDPOINT_NOT_ALLOWED = "endpoint_not_allowed"
    IDEMPOTENCY_KEY_REUSED = "idempotency_key_reused"
    RATE_LIMITED = "rate_limited"
    FAILED_CALL_BUDGET_EXHAUSTED = "failed_call_budget_exhausted"
    INTERNAL_ERROR = "internal_error"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_BAD_RESPONSE = "upstream_bad_response"
    UPSTREAM_PAYMENT_REQUIRED = "upstream_payment_required"
    PAYMENT_OUTCOME_UNKNOWN = "payment_outcome_unknown"
    CHAIN_UNAVAILABLE = "chain_unavailable"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    API_PAUSED = "api_paused"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    OVERLOADED = "overloaded"
    CHANNEL_BUSY = "channel_busy"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    LOOP_DETECTED = "loop_detected"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """An error of one field of a body (`pointer`, RFC 6901), or of one `parameter` of the query or the headers."""

    code: str
    detail: str
    pointer: str | None = None
    parameter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The content of an RFC 9457 problem, without its HTTP status.

    `payment_state`: `none`, `charged`, `released` or `held`; None where the request shows no payment. `is_lasting`: time alone does not end the
    refusal, so the response is not retryable and has no Retry-After, also with a code that has one otherwise.
    `members`: further public members of the body (such as `payment`, `debt`), in wire form.
    """

    code: Code
    detail: str
    reason: str | None = None
    errors: tuple[FieldError, ...] = ()
    retry_after_s: int | None = None
    is_lasting: bool = False
    call_id: str | None = None
    payment_state: str | None = None
    members: Mapping[str, object] = field(default_factory=partial(MappingProxyType, {}))


def describe_rate(policy: str, *, limit: int, window_s: int) -> Mapping[str, object]:
    """The `members` of a problem that names a rate, from which the `RateLimit` headers are made (draft-ietf-httpapi-ratelimit-headers-10).
    `policy`: a plain name such as `registrations`."""
    return {"rateLimit": {"policy": policy, "limit": limit, "windowSeconds": window_s}}


class TollwayError(Exception):
    """The base class of failures. `problem`: the part that the caller may read."""

    code: ClassVar[Code] = Code.INTERNAL_ERROR

    def __init__(self, detail: str | None = None, *, problem: Problem | None = None) -> None:
        self.problem = problem or Problem(code=self.code, detail=detail or (self.__doc__ or "").strip())
        super().__init__(self.problem.detail)


class Refusal(TollwayError):
    """The request is refused. `problem` is the reason."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem=problem)


def refuse(*, code: Code, detail: str, **more: Any) -> Refusal:
    """The refusal with a `Problem` of these members."""
    return Refusal(Problem(code=code, detail=detail, **more))


class StorageUnavailable(TollwayError):
    """The database cannot be read or written now. Repeat the request later."""

    code = Code.STORAGE_UNAVAILABLE


class ChainUnavailable(TollwayError):
    """No chain node sent a usable response. Repeat the request later."""

    code = Code.CHAIN_UNAVAILABLE


class NodesDisagree(ChainUnavailable):
    """Enough chain nodes responded, and their responses differ. Other requests may succeed."""


class ChainMismatch(ChainUnavailable):
    """A configured chain node serves another chain."""


class EndpointNotAllowed(TollwayError):
    """The outbound policy of this gateway forbids that endpoint."""

    code = Code.ENDPOINT_NOT_ALLOWED


class UpstreamUnreachable(TollwayError):
    """The gateway could not connect to the provider's API and sent nothing. Send the same request again, or report it to the provider."""

    code = Code.UPSTREAM_UNREACHABLE
    sent: ClassVar[bool] = False  # no byte of the request left


class UpstreamBadResponse(TollwayError):
    """The provider's API sent a response that is not HTTP, or closed the connection before the head was complete."""

    code = Code.UPSTREAM_BAD_RESPONSE
    sent: ClassVar[bool] = True  # bytes of the request may have left


class UpstreamTimeout(TollwayError):
    """The provider's API did not respond before the deadline."""

    code = Code.UPSTREAM_TIMEOUT
    sent: ClassVar[bool] = True  # bytes of the request may have left


class SettingsInvalid(TollwayError):
    """The settings cannot be used; `problems` names every reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))
