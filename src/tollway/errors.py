"""Named failures. Each has a stable, public code; which HTTP status a code gets is known to `web/problems.py` alone.

A *refusal* is a `Problem` that a function returns. Where a refusal has to cross several functions it travels as a
`Refusal` exception. An operational failure (a database that is away, a chain that does not answer) is one of the
other exceptions; adapters raise them `from` the foreign error.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar


class Code(StrEnum):
    """Every public error code (docs: the table of errors)."""

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
    WALLET_BLOCKED = "wallet_blocked"
    NOT_PROVIDER = "not_provider"
    OWNERSHIP_UNVERIFIED = "ownership_unverified"
    API_NOT_FOUND = "api_not_found"
    CALL_NOT_FOUND = "call_not_found"
    PAYMENT_NOT_FOUND = "payment_not_found"
    ROUTE_NOT_FOUND = "route_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    PAYMENT_ALREADY_USED = "payment_already_used"
    PAYMENT_TOO_OLD = "payment_too_old"
    PAYMENT_HELD = "payment_held"
    PAYMENT_PENDING = "payment_pending"
    IDEMPOTENCY_IN_PROGRESS = "idempotency_in_progress"
    ALREADY_EXISTS = "already_exists"
    API_RETIRED = "api_retired"
    PRECONDITION_FAILED = "precondition_failed"
    PRICE_ABOVE_MAX = "price_above_max"
    VALIDATION_FAILED = "validation_failed"
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
    UPSTREAM_TIMEOUT = "upstream_timeout"
    LOOP_DETECTED = "loop_detected"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldError:
    """One thing wrong with one field of a body (`pointer`, RFC 6901) or one `parameter` of the query or header."""

    code: str
    detail: str
    pointer: str | None = None
    parameter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What went wrong, free of HTTP: the content of an RFC 9457 problem before it gets a status.

    `payment_state`: `none`, `charged`, `released` or `held`; None where no payment was in sight.
    `members`: further public members of the body (such as `payment`, `debt`), already in wire form.
    """

    code: Code
    detail: str
    reason: str | None = None
    errors: tuple[FieldError, ...] = ()
    retry_after_s: int | None = None
    call_id: str | None = None
    payment_state: str | None = None
    members: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


def describe_rate(policy: str, *, limit: int, window_s: int) -> Mapping[str, object]:
    """The `members` of a problem that names a rate: its `RateLimit` headers are made from them
    (draft-ietf-httpapi-ratelimit-headers-10). `policy`: a plain name such as `registrations`."""
    return {"rateLimit": {"policy": policy, "limit": limit, "windowSeconds": window_s}}


class TollwayError(Exception):
    """Any failure of ours. `problem` is what the asker may read."""

    code: ClassVar[Code] = Code.INTERNAL_ERROR

    def __init__(self, detail: str | None = None, *, problem: Problem | None = None) -> None:
        self.problem = problem or Problem(code=self.code, detail=detail or (self.__doc__ or "").strip())
        super().__init__(self.problem.detail)


class Refusal(TollwayError):
    """The request is refused, for the reason that `problem` gives."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem=problem)


class StorageUnavailable(TollwayError):
    """The books cannot be read or written right now."""

    code = Code.STORAGE_UNAVAILABLE


class ChainUnavailable(TollwayError):
    """No chain node gave a usable answer."""

    code = Code.CHAIN_UNAVAILABLE


class NodesDisagree(ChainUnavailable):
    """Enough chain nodes answered, and they do not tell the same of what was asked. Other questions may have answers."""


class ChainMismatch(ChainUnavailable):
    """A configured chain node serves another chain."""


class EndpointNotAllowed(TollwayError):
    """The outbound policy does not let this gateway dial that endpoint."""

    code = Code.ENDPOINT_NOT_ALLOWED


class UpstreamUnreachable(TollwayError):
    """The provider's API could not be reached; nothing was sent."""

    code = Code.UPSTREAM_UNREACHABLE
    sent: ClassVar[bool] = False  # no byte of the request left


class UpstreamBadResponse(TollwayError):
    """The provider's API answered with something that is not HTTP, or broke off before its head."""

    code = Code.UPSTREAM_BAD_RESPONSE
    sent: ClassVar[bool] = True  # bytes of the request may have left


class UpstreamTimeout(TollwayError):
    """The provider's API did not answer in time."""

    code = Code.UPSTREAM_TIMEOUT
    sent: ClassVar[bool] = True  # bytes of the request may have left


class SettingsInvalid(TollwayError):
    """The settings cannot be used; `problems` names every reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))
