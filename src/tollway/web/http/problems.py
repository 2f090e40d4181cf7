"""Problem responses (RFC 9457): the one table from error code to HTTP status and title, the texts of `/problems/{code}`, and the handlers that
turn refusals and failures into responses.

The control plane uses `install_handlers`, the gateway app uses `render_problem`. A response never contains a stack trace, an upstream URL or a secret.
The state of a payment comes with the problem and is rendered unchanged.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.errors import Code, FieldError, Problem, Refusal, TollwayError, refuse
from tollway.gateway.headers import EXPOSED_HEADERS
from tollway.web.http.json import encode_visible_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemPage:
    """The texts of `/problems/{code}`: what happened (`meaning`), and what the caller does next (`remedy`)."""

    meaning: str
    remedy: str


def _problem_page(meaning: str, remedy: str) -> ProblemPage:
    return ProblemPage(meaning=meaning, remedy=remedy)


_CODE = re.compile(r"`([^`\n]+)`")
_SIGN_ANEW = "Sign the request again with a fresh signature and send it."
_SAME_PROOF = "After Retry-After, send the same request with the same proof. Do not pay a second time."
_BY_PAYMENT_STATE = (
    "With `released`, send the same request again: the payment is unspent. With `held`, repeat a GET, or any request with an Idempotency-Key, "
    "with the same proof; else read the call that `callId` names in your history. Do not pay again."
)

PROBLEM_PAGES: Mapping[Code, ProblemPage] = MappingProxyType(
    {
        Code.INVALID_REQUEST: _problem_page(
            "The request cannot be read: broken JSON or path, a malformed or duplicated header, more than one payment, or headers over the limits. Nothing was spent.",
            "Correct the part that `detail` names, then send the request again.",
        ),
        Code.AUTHENTICATION_REQUIRED: _problem_page(
            "The request needs the proof of a wallet and carries none.",
            "Sign the request (ERC-8128), open a session, or answer the sign-in challenge in the headers.",
        ),
        Code.INVALID_SIGNATURE: _problem_page(
            "The wallet proof is not valid: its signature, its covered components or its key do not match the request.",
            _SIGN_ANEW,
        ),
        Code.SIGNATURE_EXPIRED: _problem_page(
            "The signature is not valid yet, or not any more. On a gateway call the payment is unspent.",
            "Check the clock, then sign the request again.",
        ),
        Code.NONCE_REUSED: _problem_page(
            "The nonce was used before, or this gateway did not issue it.",
            "Sign again with a fresh nonce. On a gateway call `callId` names the call that used the nonce.",
        ),
        Code.SESSION_EXPIRED: _problem_page(
            "The session has expired or was ended.",
            "Sign in again.",
        ),
        Code.CONFLICTING_IDENTITIES: _problem_page(
            "The request carries proofs of different wallets.",
            "Send the proofs of one wallet only.",
        ),
        Code.PAYMENT_REQUIRED: _problem_page(
            "The call costs money and the request carries no payment.",
            "Pay one of the options in the body, then send the request again with the proof.",
        ),
        Code.PAYMENT_MALFORMED: _problem_page(
            "The payment header (x402 or MPP) cannot be read, or has a member that its protocol does not define. Nothing was spent.",
            "`detail` names the error. Send the request without a payment, and build the header from the terms in that response. An unreadable MPP credential gets 402 with the terms.",
        ),
        Code.PAYMENT_EXPIRED: _problem_page(
            "The authorisation, or the MPP challenge that it answers, expires too early to be settled. Nothing was spent.",
            "Check the clock, then sign a new authorisation with the times that the terms require.",
        ),
        Code.PAYMENT_METHOD_UNSUPPORTED: _problem_page(
            "The listing does not accept this scheme, network or token, or this gateway cannot settle it at present. Nothing was spent.",
            "Pay with one of the options in the terms.",
        ),
        Code.PAYMENT_SETTLEMENT_FAILED: _problem_page(
            "The provider's API responded, but the settlement failed and moved no money. The gateway dropped the response.",
            "`reason` names the cause, mostly the wallet's balance. Correct it, then pay again.",
        ),
        Code.PAYMENT_INSUFFICIENT: _problem_page(
            "The payment is valid, but its credit is less than the price. The credit is unspent.",
            "Send the difference to the same payee, then send the request again.",
        ),
        Code.PAYMENT_VERIFICATION_FAILED: _problem_page(
            "The payment does not pay for this call: it has another payee, token, network or amount, or its transaction failed. `reason` says which.",
            "Compare the payment with the options, then pay one of them.",
        ),
        Code.PAYER_MISMATCH: _problem_page(
            "The signer of X-Signature is not the wallet that paid. Nothing was spent.",
            "Sign with the wallet that sent the transfer.",
        ),
        Code.PAYER_IN_DEBT: _problem_page(
            "A transaction that paid for earlier calls left the chain, so the wallet owes the price of these calls.",
            "Send `debt` to `payTo` on `network`. The gateway deducts the debt from that transfer first.",
        ),
        Code.BUDGET_EXCEEDED: _problem_page(
            "The policy of this wallet's owner does not cover the call: `left` remains of `limit` until `resetsAt`. Nothing was spent.",
            "Wait, choose a cheaper call, or ask the owner. Do not pay again.",
        ),
        Code.WALLET_BLOCKED: _problem_page(
            "The operator of this gateway has blocked this wallet.",
            "Ask the operator, or use another wallet.",
        ),
        Code.NOT_PROVIDER: _problem_page(
            "The wallet is not the provider of this listing, or the operator has not admitted the wallet.",
            "Use the wallet that published the listing. Where only admitted wallets may publish, ask the operator.",
        ),
        Code.NOT_VIEWER: _problem_page(
            "The wallet in `wallet` has not named this wallet as its viewer, or the permission has ended. A wallet without any call gets the same response.",
            "Name the viewer with the other wallet: PUT /api/v2/viewers/{address}. Leave `wallet` out to read your own books.",
        ),
        Code.OWNERSHIP_UNVERIFIED: _problem_page(
            "The provider has not proved ownership of the endpoint yet, and this gateway requires that proof.",
            "Choose another listing. As the provider, read the steps at GET /api/v2/apis/{apiId}/ownership.",
        ),
        Code.API_NOT_FOUND: _problem_page(
            "No listing has this id.",
            "Look up the id in the list of APIs.",
        ),
        Code.CALL_NOT_FOUND: _problem_page(
            "No call has this id, or another wallet made the call.",
            "Look up the id in your history.",
        ),
        Code.PAYMENT_NOT_FOUND: _problem_page(
            "This gateway has no record of the transaction.",
            "Check the hash, the network and the wallet.",
        ),
        Code.WEBHOOK_NOT_FOUND: _problem_page(
            "This wallet has no webhook of this id, or the webhook has no such event.",
            "List your webhooks, and the deliveries of one. Delivered events are listed for a week.",
        ),
        Code.BUDGET_NOT_FOUND: _problem_page(
            "There is no such policy, or this wallet is neither its owner nor its agent.",
            "Sign one as the owner: PUT /api/v2/budgets/{agent}.",
        ),
        Code.ROUTE_NOT_FOUND: _problem_page(
            "The path does not exist.",
            "Check the path against the API document.",
        ),
        Code.METHOD_NOT_ALLOWED: _problem_page(
            "The path exists, but not with this method.",
            "Use a method that the Allow header names.",
        ),
        Code.PAYLOAD_TOO_LARGE: _problem_page(
            "The body is over the limit.",
            "Send a smaller body. For a large body with a bound signature, add bodyHash.",
        ),
        Code.UNSUPPORTED_MEDIA_TYPE: _problem_page(
            "The gateway does not read this media type.",
            "Send application/json.",
        ),
        Code.PAYMENT_ALREADY_USED: _problem_page(
            "All value of the payment is spent (`paymentState` is `charged`), or a call without an outcome holds it (`held`).",
            "With `held`, read the call that `callId` names in your history, and do not pay again before it has an outcome. With `charged`, pay again for another call.",
        ),
        Code.PAYMENT_TOO_OLD: _problem_page(
            "The transaction is too old to be presented for the first time, or it was mined before its payee became the `payTo` of the listing (`reason` is `before_listing`).",
            "Do not pay again. Ask the operator or the provider to admit it.",
        ),
        Code.PAYMENT_HELD: _problem_page(
            "The payment cannot be spent at present: nodes of the chain disagree about it, or the operator restored an older database and has not released it yet.",
            "Send the same request with the same proof later, or ask the operator. Do not pay again.",
        ),
        Code.PAYMENT_PENDING: _problem_page(
            "The transaction is not mined yet, or has too few confirmations for its value.",
            _SAME_PROOF,
        ),
        Code.CALL_NOT_REFUNDABLE: _problem_page(
            "The call was free, is not charged, is refunded already, or has another payer than the first call of the request. `reason` says which.",
            "Read the calls in your history, and leave out the one that `callId` names.",
        ),
        Code.REFUND_TRANSFER_USED: _problem_page("It paid, or refunded other calls.", "Send another."),
        Code.IDEMPOTENCY_IN_PROGRESS: _problem_page(
            "The same request, or the call that a receipt is of, is still running.",
            _SAME_PROOF,
        ),
        Code.ALREADY_EXISTS: _problem_page(
            "The resource exists already, another wallet has proved ownership of the endpoint's origin, or the URL of the webhook gets events of another wallet.",
            "Read the existing resource before you create another.",
        ),
        Code.WEBHOOK_LIMIT_REACHED: _problem_page(
            "The wallet has as many webhooks as a wallet may have, or its client address as many unconfirmed ones. Nothing was registered.",
            "Remove a webhook that you do not need, or let one webhook get several types.",
        ),
        Code.API_RETIRED: _problem_page(
            "The provider has retired this listing.",
            "Choose another listing. Your calls and payments stay in your history.",
        ),
        Code.PRECONDITION_FAILED: _problem_page(
            "The resource has changed since you last read it, or is not in the required state.",
            "Read the resource again, then decide.",
        ),
        Code.PRICE_ABOVE_MAX: _problem_page(
            "The call costs more than your Tollway-Max-Price. Nothing was spent by this request.",
            "Raise or remove the maximum, then send the request again.",
        ),
        Code.VALIDATION_FAILED: _problem_page(
            "The request can be read, but breaks a rule. `errors` names each field.",
            "Correct the fields, then send the request again.",
        ),
        Code.REFUND_TRANSFER_REFUSED: _problem_page(
            "The transfer refunds nothing: it has another sender, recipient, token or network, is older than the call, failed, or does not fit the prices. `reason` says which.",
            "Send at most the price of the calls, in their asset and on their network, from `payTo` to their payer.",
        ),
        Code.ENDPOINT_NOT_ALLOWED: _problem_page(
            "This gateway does not connect to that endpoint: its address is private or reserved, or its port or scheme is not allowed.",
            "Use a public http(s) address.",
        ),
        Code.IDEMPOTENCY_KEY_REUSED: _problem_page(
            "The wallet has used this Idempotency-Key for another request.",
            "Use a fresh key.",
        ),
        Code.RATE_LIMITED: _problem_page(
            "The requests exceed a rate limit.",
            "Send the request again after Retry-After.",
        ),
        Code.FAILED_CALL_BUDGET_EXHAUSTED: _problem_page(
            "Too many of your calls to this listing, or to all listings together, ended without a charge. Your payments are unspent.",
            "Send the request again after Retry-After.",
        ),
        Code.INTERNAL_ERROR: _problem_page(
            "The gateway failed because of a defect. `paymentState` gives the state of the payment.",
            "Read the call in your history, and report the request id to the operator.",
        ),
        Code.UPSTREAM_UNREACHABLE: _problem_page(
            "The gateway could not connect to the provider's API and sent nothing. The payment is unspent.",
            "Send the same request again, or report the failure to the provider.",
        ),
        Code.UPSTREAM_BAD_RESPONSE: _problem_page(
            "The provider's API sent a response that is not valid HTTP. `paymentState` is `held` where the API may have processed the request.",
            _BY_PAYMENT_STATE,
        ),
        Code.UPSTREAM_PAYMENT_REQUIRED: _problem_page(
            "The provider's API requires a payment of its own from the gateway. Nothing was charged.",
            "Report the failure to the provider. Your payment is unspent.",
        ),
        Code.PAYMENT_OUTCOME_UNKNOWN: _problem_page(
            "The gateway does not know yet how the call, or the settlement of its payment, ended. The payment is held meanwhile.",
            _SAME_PROOF + " The record of the call in your history gives the outcome.",
        ),
        Code.CHAIN_UNAVAILABLE: _problem_page(
            "No node of the chain gave a valid response, so the gateway could not verify the payment.",
            _SAME_PROOF,
        ),
        Code.STORAGE_UNAVAILABLE: _problem_page(
            "The gateway cannot read or write its database at present.",
            _SAME_PROOF,
        ),
        Code.API_PAUSED: _problem_page(
            "The provider has paused this listing, or the operator has suspended it (`reason` `suspended`).",
            "Paused: try again after Retry-After. Suspended: only the operator ends it, so choose another API. Do not pay before that.",
        ),
        Code.UPSTREAM_UNAVAILABLE: _problem_page(
            "The provider's API is down, and the gateway sent nothing.",
            "Try again after Retry-After. Do not pay before that.",
        ),
        Code.OVERLOADED: _problem_page(
            "The gateway is overloaded and did not handle the request.",
            _SAME_PROOF,
        ),
        Code.CHANNEL_BUSY: _problem_page(
            "The payment channel takes no call now: another call has it, a withdrawal has begun, its payer owes the maximum until the next claim, or a deposit has no gas (`reason`).",
            "After Retry-After, send the same request with the same voucher. For calls at once, open several channels. Do not pay a second time.",
        ),
        Code.UPSTREAM_TIMEOUT: _problem_page(
            "The provider's API did not respond in time, or closed the connection first. `paymentState` is `held` where the API may have processed the request.",
            _BY_PAYMENT_STATE,
        ),
        Code.LOOP_DETECTED: _problem_page(
            "The endpoint of the listing leads back to this gateway.",
            "Report the failure to the provider.",
        ),
    }
)


PROBLEM_TYPE = b"application/problem+json"

OK, CREATED, ACCEPTED, NO_CONTENT = 200, 201, 202, 204
"""Statuses of successful responses, for modules that must not contain numbers."""

FORBIDDEN = 403
"""The status that the MCP transport requires for a request from a page of another origin. No error code of the gateway stands for it alone."""

RenderedProblem = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers (lower-case names) and body."""

MERGE_PATCH_TYPE = "application/merge-patch+json"
"""The only media type of a PATCH (RFC 7396 §4)."""

ACCEPT_PATCH = ("accept-patch", MERGE_PATCH_TYPE)
"""The header of a 415 to a PATCH, and of a 405 on a path that supports PATCH, which OPTIONS gets (RFC 5789 §2.2, §3.1)."""

ChallengeHeaders = Callable[[Request], Awaitable[Sequence[tuple[str, str]]]]
"""Builds the headers of a 401: `WWW-Authenticate`, `Accept-Signature`, the sign-in challenge."""


class RendersProblems(Protocol):
    """Renders a problem as a page for a person (`web/pages/page_problems.py`); None where the request gets the JSON."""

    def render(
        self, problem: Problem, scope: Scope, *, status: int, headers: list[tuple[bytes, bytes]]
    ) -> tuple[list[tuple[bytes, bytes]], bytes] | None: ...


SIGN_IN_CHALLENGE = "PAYMENT-REQUIRED"
"""The header of a 401 that carries the sign-in challenge for x402 clients."""

CHALLENGED_BY_402 = "challenged_by_402"
"""A flag in `scope["state"]`: clients of this route read a sign-in challenge only from a 402 (`web/api/auth_routes.py`)."""

_HEADERS = (
    (b"content-type", PROBLEM_TYPE),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", EXPOSED_HEADERS.encode()),
)
_PATH_SAFE = "/%:@!$&'()*+,;=~-._"
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemKind:
    """The constants of one error code.

    `is_retryable`: the same request, sent again later, can succeed. `retry_after_s`: the default of Retry-After, for problems
    without a delay of their own.
    """

    status: int
    title: str
    is_retryable: bool = False
    retry_after_s: int | None = None


def _permanent(status: int, title: str) -> ProblemKind:
    return ProblemKind(status=status, title=title)


def _transient(status: int, title: str, retry_after_s: int | None = None) -> ProblemKind:
    return ProblemKind(status=status, title=title, is_retryable=True, retry_after_s=retry_after_s)


PROBLEM_KINDS: Mapping[Code, ProblemKind] = MappingProxyType(
    {
        Code.INVALID_REQUEST: _permanent(400, "Invalid request"),
        Code.AUTHENTICATION_REQUIRED: _permanent(401, "Authentication required"),
        Code.INVALID_SIGNATURE: _permanent(401, "Invalid signature"),
        Code.SIGNATURE_EXPIRED: _permanent(401, "Signature expired"),
        Code.NONCE_REUSED: _permanent(401, "Nonce already used"),
        Code.SESSION_EXPIRED: _permanent(401, "Session expired"),
        Code.CONFLICTING_IDENTITIES: _permanent(401, "Conflicting identities"),
        Code.PAYMENT_REQUIRED: _permanent(402, "Payment required"),
        Code.PAYMENT_MALFORMED: _permanent(400, "Payment malformed"),
        Code.PAYMENT_EXPIRED: _permanent(402, "Payment expired"),
        Code.PAYMENT_METHOD_UNSUPPORTED: _permanent(402, "Payment method unsupported"),
        Code.PAYMENT_SETTLEMENT_FAILED: _permanent(402, "Payment settlement failed"),
        Code.PAYMENT_INSUFFICIENT: _permanent(402, "Payment insufficient"),
        Code.PAYMENT_VERIFICATION_FAILED: _permanent(402, "Payment verification failed"),
        Code.PAYER_MISMATCH: _permanent(403, "Signed by another wallet than the payer"),
        Code.PAYER_IN_DEBT: _permanent(403, "Payer in debt"),
        Code.BUDGET_EXCEEDED: _transient(403, "Budget exceeded"),
        Code.WALLET_BLOCKED: _permanent(403, "Wallet blocked"),
        Code.NOT_PROVIDER: _permanent(403, "Not the provider"),
        Code.NOT_VIEWER: _permanent(403, "Not a viewer of that wallet"),
        Code.OWNERSHIP_UNVERIFIED: _permanent(403, "Ownership not verified"),
        Code.API_NOT_FOUND: _permanent(404, "API not found"),
        Code.CALL_NOT_FOUND: _permanent(404, "Call not found"),
        Code.PAYMENT_NOT_FOUND: _permanent(404, "Payment not found"),
        Code.WEBHOOK_NOT_FOUND: _permanent(404, "Webhook not found"),
        Code.BUDGET_NOT_FOUND: _permanent(404, "Budget not found"),
        Code.ROUTE_NOT_FOUND: _permanent(404, "Route not found"),
        Code.METHOD_NOT_ALLOWED: _permanent(405, "Method not allowed"),
        Code.PAYLOAD_TOO_LARGE: _permanent(413, "Payload too large"),
        Code.UNSUPPORTED_MEDIA_TYPE: _permanent(415, "Unsupported media type"),
        Code.PAYMENT_ALREADY_USED: _permanent(409, "Payment already used"),
        Code.PAYMENT_TOO_OLD: _permanent(409, "Payment too old"),
        Code.PAYMENT_HELD: _transient(409, "Payment held"),
        Code.PAYMENT_PENDING: _transient(409, "Payment pending", 2),
        Code.CALL_NOT_REFUNDABLE: _permanent(409, "Call not refundable"),
        Code.REFUND_TRANSFER_USED: _permanent(409, "Transfer already used"),
        Code.IDEMPOTENCY_IN_PROGRESS: _transient(409, "Same request still running", 2),
        Code.ALREADY_EXISTS: _permanent(409, "Already exists"),
        Code.WEBHOOK_LIMIT_REACHED: _permanent(409, "Too many webhooks"),
        Code.API_RETIRED: _permanent(410, "API retired"),
        Code.PRECONDITION_FAILED: _permanent(412, "Precondition failed"),
        Code.PRICE_ABOVE_MAX: _permanent(412, "Price above your maximum"),
        Code.VALIDATION_FAILED: _permanent(422, "Validation failed"),
        Code.REFUND_TRANSFER_REFUSED: _permanent(422, "Transfer refunds nothing"),
        Code.ENDPOINT_NOT_ALLOWED: _permanent(422, "Endpoint not allowed"),
        Code.IDEMPOTENCY_KEY_REUSED: _permanent(422, "Idempotency key reused"),
        Code.RATE_LIMITED: _transient(429, "Rate limited", 60),
        Code.FAILED_CALL_BUDGET_EXHAUSTED: _transient(429, "Too many failed calls", 600),
        Code.INTERNAL_ERROR: _permanent(500, "Internal error"),
        Code.UPSTREAM_UNREACHABLE: _transient(502, "Upstream unreachable"),
        Code.UPSTREAM_BAD_RESPONSE: _transient(502, "Bad response from upstream"),
        Code.UPSTREAM_PAYMENT_REQUIRED: _permanent(502, "Upstream requires a payment of its own"),
        Code.PAYMENT_OUTCOME_UNKNOWN: _transient(503, "Payment outcome unknown", 5),
        Code.CHAIN_UNAVAILABLE: _transient(503, "Chain unavailable", 3),
        Code.STORAGE_UNAVAILABLE: _transient(503, "Storage unavailable", 3),
        Code.API_PAUSED: _transient(503, "API paused", 300),
        Code.UPSTREAM_UNAVAILABLE: _transient(503, "Upstream unavailable", 30),
        Code.OVERLOADED: _transient(503, "Overloaded", 2),
        Code.CHANNEL_BUSY: _transient(503, "Channel busy", 1),
        Code.UPSTREAM_TIMEOUT: _transient(504, "Upstream timed out"),
        Code.LOOP_DETECTED: _permanent(508, "Loop detected"),
    }
)


def status_of(code: Code) -> int:
    """The HTTP status of an error code."""
    return PROBLEM_KINDS[code].status


def problem_name(code: Code) -> str:
    """The name of a code under `/problems/`."""
    return code.value.replace("_", "-")


@lru_cache(maxsize=len(Code))
def problem_type(code: Code, *, public_url: str) -> str:
    """The `type` URI of an error code. It resolves to the page of the code."""
    return f"{public_url}/problems/{problem_name(code)}"


def split_code(text: str) -> list[tuple[str, bool]]:
    """The parts of a sentence, each with whether it is code (between backticks). No part is markup: a page escapes each."""
    return [(part, position % 2 == 1) for position, part in enumerate(_CODE.split(text)) if part]


def find_retry(problem: Problem) -> tuple[bool, int | None]:
    """Whether the same request, sent again later, can succeed; and the seconds of Retry-After: of the problem, else of its code. None: the
    response has no such header."""
    if problem.is_lasting:
        return False, None
    kind = PROBLEM_KINDS[problem.code]
    return kind.is_retryable, kind.retry_after_s if problem.retry_after_s is None else problem.retry_after_s


def render_problem(
    problem: Problem,
    *,
    public_url: str,
    request_id: str,
    instance: str,
    status: int | None = None,
    encoded: bytes = b"",
) -> RenderedProblem:
    """Renders a problem as an RFC 9457 response. `instance`: a URI reference, usually the path of the request. `status`: replaces
    the status of the code. `encoded`: an encoded JSON object with further members, which must not repeat a member of the problem."""
    kind = PROBLEM_KINDS[problem.code]
    status = kind.status if status is None else status
    is_retryable, retry_after_s = find_retry(problem)
    content: dict[str, object] = {
        "type": problem_type(problem.code, public_url=public_url),
        "title": kind.title,
        "status": status,
        "detail": problem.detail,
        "instance": instance,
        "code": problem.code.value,
        "requestId": request_id,
        "retryable": is_retryable,
        "paymentState": problem.payment_state or "none",
    }
    if problem.errors:
        content["errors"] = [_field_error_json(error) for error in problem.errors]
    if retry_after_s is not None:
        content["retryAfterSeconds"] = retry_after_s
    if problem.call_id is not None:
        content["callId"] = problem.call_id
    if problem.reason is not None:
        content["reason"] = problem.reason
    content = {**problem.members, **content}
    body = encode_visible_json(content).encode("utf-8", "replace")
    if encoded:
        body = encoded[:-1] + b"," + body[1:]
    headers = [
        *_HEADERS,
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", request_id.encode("latin-1", "replace")),
    ]
    if retry_after_s is not None:
        headers.append((b"retry-after", str(retry_after_s).encode()))
    rate = problem.members.get("rateLimit")
    if isinstance(rate, Mapping):
        headers += _rate_limit_headers(rate, retry_after_s)
    return status, headers, body


def _rate_limit_headers(rate: Mapping[str, object], retry_after_s: int | None) -> list[tuple[bytes, bytes]]:
    """RateLimit headers, from the member that `errors.describe_rate` builds."""
    policy = rate["policy"]
    return [
        (b"ratelimit-policy", f'"{policy}";q={rate["limit"]};w={rate["windowSeconds"]}'.encode()),
        (b"ratelimit", f'"{policy}";r=0;t={retry_after_s or rate["windowSeconds"]}'.encode()),
    ]


def _field_error_json(error: FieldError) -> dict[str, str]:
    place = {"pointer": error.pointer, "parameter": error.parameter}
    return {
        **{name: value for name, value in place.items() if value is not None},
        "code": error.code,
        "detail": error.detail,
    }


def request_id_of(scope: Scope) -> str:
    """The request id of the middleware; empty where no middleware ran."""
    state: Mapping[str, object] = scope.get("state") or {}
    return str(state.get("request_id", ""))


def instance_of(scope: Scope) -> str:
    """The raw path of the request as a URI reference, without its query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return quote(raw.split(b"?", 1)[0], safe=_PATH_SAFE)


def install_handlers(
    app: Starlette,
    public_url: str,
    challenge: ChallengeHeaders | None = None,
    pages: RendersProblems | None = None,
) -> None:
    """Installs handlers that turn every failure of `app` into a problem: refusals, unknown routes and methods, defects. `pages`: shows problems to people."""

    async def answer(request: Request, problem: Problem, more: Sequence[tuple[str, str]] = ()) -> Response:
        status = status_of(problem.code)
        if status == 401 and challenge is not None:
            offered = await challenge(request)
            sign_in = [(name, value) for name, value in offered if name == SIGN_IN_CHALLENGE]
            if sign_in and (request.scope.get("state") or {}).get(CHALLENGED_BY_402):
                status, offered = 402, sign_in
            more = (*more, *offered)
        return to_response(
            problem, request.scope, public_url=public_url, more=more, status=status, pages=pages
        )

    async def on_failure(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, TollwayError)
        if exc.problem.code is Code.INTERNAL_ERROR:
            _log.error("internal_error", path=instance_of(request.scope), exc_info=exc)
        is_patch_refused = exc.problem.code is Code.UNSUPPORTED_MEDIA_TYPE and request.method == "PATCH"
        return await answer(request, exc.problem, [ACCEPT_PATCH] if is_patch_refused else [])

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        if exc.status_code == 405:
            methods = _allowed_methods(request)
            allowed = ", ".join(methods)
            problem = Problem(
                code=Code.METHOD_NOT_ALLOWED,
                detail=f"This path does not support {request.method}. Use one of: {allowed}.",
            )
            patchable = (ACCEPT_PATCH,) if "PATCH" in methods else ()
            return await answer(request, problem, [("allow", allowed), *patchable])
        return await answer(request, _framework_problem(exc.status_code))

    app.add_exception_handler(TollwayError, on_failure)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(ErrorBoundary, public_url=public_url, pages=pages)


class ErrorBoundary:
    """Middleware that answers an unhandled exception with a 500 problem, and logs it once with its traceback.

    Once the response has started, it only stops sending; the server then closes the connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        public_url: str,
        pages: RendersProblems | None = None,
        payment_state: str | None = None,
    ) -> None:
        """`payment_state`: what a failure says of a payment; None for an app that takes none."""
        self._app = app
        self._public_url = public_url
        self._pages = pages
        self._payment_state = payment_state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        def watching_send(message: Message) -> Awaitable[None]:
            nonlocal is_started
            is_started = is_started or message["type"] == "http.response.start"
            return send(message)

        try:
            await self._app(scope, receive, watching_send)
        except ClientDisconnect:
            return  # no client is left to answer
        except Exception as exc:  # noqa: BLE001 - the outermost handler: logged, answered
            _log.error("unhandled_error", path=instance_of(scope), is_started=is_started, exc_info=exc)
            if not is_started:
                problem = Problem(
                    code=Code.INTERNAL_ERROR,
                    detail="The gateway failed and logged the error. Report the request id to the operator.",
                    payment_state=self._payment_state,
                )
                more = (
                    () if self._payment_state is None else (("tollway-payment-state", self._payment_state),)
                )
                response = to_response(
                    problem, scope, public_url=self._public_url, more=more, pages=self._pages
                )
                await response(scope, receive, send)


def to_response(
    problem: Problem,
    scope: Scope,
    *,
    public_url: str,
    more: Sequence[tuple[str, str]] = (),
    status: int | None = None,
    pages: RendersProblems | None = None,
) -> Response:
    status, headers, body = render_problem(
        problem,
        public_url=public_url,
        request_id=request_id_of(scope),
        instance=instance_of(scope),
        status=status,
    )
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in more]
    page = None if pages is None else pages.render(problem, scope, status=status, headers=headers)
    if page is not None:
        headers, body = page
    response = Response(status_code=status)
    response.raw_headers = headers
    response.body = b"" if scope.get("method") == "HEAD" else body
    return response


def _allowed_methods(request: Request) -> list[str]:
    # Starlette reports only the methods of the first route with this path, so every route is matched with every method.
    routes = request.app.router.routes
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _framework_problem(status: int) -> Problem:
    """The problem for an error of Starlette. Any other 4xx is an unreadable request, anything else a defect."""
    if status == 404:
        return Problem(
            code=Code.ROUTE_NOT_FOUND, detail="No resource has this path. See /docs for all paths."
        )
    if status == 413:
        return Problem(
            code=Code.PAYLOAD_TOO_LARGE,
            detail="The body is larger than this gateway accepts. Send a smaller body.",
        )
    if status == 415:
        return Problem(
            code=Code.UNSUPPORTED_MEDIA_TYPE,
            detail="The gateway does not read this media type. Send the body as application/json.",
        )
    if 400 <= status < 500:
        return Problem(
            code=Code.INVALID_REQUEST, detail="The request cannot be read. Correct it, then send it again."
        )
    return Problem(
        code=Code.INTERNAL_ERROR,
        detail="The gateway failed and logged the error. Report the request id to the operator.",
    )


def refuse_fields(*errors: FieldError) -> Refusal:
    """The refusal (422) of a body or a query with these errors."""
    return refuse(code=Code.VALIDATION_FAILED, detail=describe_errors(errors), errors=errors)


def describe_errors(errors: Sequence[FieldError]) -> str:
    """The `detail` of a validation problem: names the invalid fields."""
    places = ", ".join(dict.fromkeys(error.parameter or error.pointer or "the body" for error in errors))
    return f"These fields are not valid: {places}. Correct them; `errors` says how."
