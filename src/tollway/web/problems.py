"""Problem responses (RFC 9457): the one table from error code to HTTP status and title, the texts of `/problems/{code}`, and the handlers that
turn refusals and failures into responses.

The control plane uses `install_handlers`, the gateway app uses `render_problem`. A response never contains a stack trace, an upstream URL or a secret.
This module decides nothing about a payment.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import quote

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tollway.errors import Code, FieldError, Problem, TollwayError
from tollway.gateway.headers import EXPOSED_HEADERS
from tollway.web.json import encode_visible_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemPage:
    meaning: str
    remedy: str


def _problem_page(meaning: str, remedy: str) -> ProblemPage:
    return ProblemPage(meaning=meaning, remedy=remedy)


_SIGN_ANEW = "Make a fresh signature and send the request again."
_SAME_PROOF = "Send the same request with the same proof again after Retry-After. Do not pay a second time."
_RETRY_OR_TELL_PROVIDER = (
    "The payment stays yours: credit, or a signed one unused. Try again, or tell the provider."
)

PROBLEM_PAGES: Mapping[Code, ProblemPage] = MappingProxyType(
    {
        Code.INVALID_REQUEST: _problem_page(
            "The request cannot be read: broken JSON or path, a malformed or duplicated header, more than one way to "
            "pay, or a head over the limits.",
            "The detail names the part. Correct it; nothing was spent.",
        ),
        Code.AUTHENTICATION_REQUIRED: _problem_page(
            "This needs the proof of a wallet and none was sent.",
            "Sign the request (ERC-8128), open a session, or answer the sign-in challenge in the headers.",
        ),
        Code.INVALID_SIGNATURE: _problem_page(
            "The proof of the wallet does not hold: signature, covered parts or key do not fit the request.",
            _SIGN_ANEW,
        ),
        Code.SIGNATURE_EXPIRED: _problem_page(
            "The signature is outside the time in which it counts.",
            "Check your clock, then make a fresh signature. On a gateway call the payment is still yours.",
        ),
        Code.NONCE_REUSED: _problem_page(
            "This nonce was used before, or this gateway did not give it out.",
            "Take a fresh nonce. On a gateway call the detail names the call that the nonce bought.",
        ),
        Code.SESSION_EXPIRED: _problem_page("The session is over or was ended.", "Sign in again."),
        Code.CONFLICTING_IDENTITIES: _problem_page(
            "The request carries proofs of different wallets.", "Send the proofs of one wallet only."
        ),
        Code.PAYMENT_REQUIRED: _problem_page(
            "This call costs money and no payment was shown.",
            "Pay one of the options in the body, then repeat the call with the proof.",
        ),
        Code.PAYMENT_MALFORMED: _problem_page(
            "The payment header (x402 or MPP) cannot be read, or has a member that its protocol does not have. "
            "Nothing was spent.",
            "`detail` names what is wrong with it; repeat the call without a payment, and make the header from the "
            "terms of that answer. An unreadable MPP credential gets 402 with the terms.",
        ),
        Code.PAYMENT_EXPIRED: _problem_page(
            "The authorisation, or the challenge it answers, ends too early to be settled. Nothing was spent.",
            "Sign a new one with the times that the terms ask for, and check your clock.",
        ),
        Code.PAYMENT_METHOD_UNSUPPORTED: _problem_page(
            "This listing does not take that scheme, network or token, or not at present. Nothing was spent.",
            "Pay by one of the ways that the terms offer.",
        ),
        Code.PAYMENT_SETTLEMENT_FAILED: _problem_page(
            "The API answered, but the payment surely did not move any money, so the answer was dropped.",
            "`reason` says why. Mend that (mostly the balance), then pay anew.",
        ),
        Code.PAYMENT_INSUFFICIENT: _problem_page(
            "The payment counts, but it is less than the price.",
            "Send the difference to the same payee and repeat the call; what is there already stays yours.",
        ),
        Code.PAYMENT_VERIFICATION_FAILED: _problem_page(
            "The payment does not pay for this: another payee, token, chain or amount, or it failed. `reason` says which.",
            "Check the payment against the options, and pay as they say.",
        ),
        Code.PAYER_MISMATCH: _problem_page(
            "X-Signature is not by the wallet that paid.",
            "Sign with the wallet that the transfer came from. Nothing was spent.",
        ),
        Code.PAYER_IN_DEBT: _problem_page(
            "A transaction that paid for earlier calls left the chain, so these calls are owed.",
            "Send `debt` to `payTo` on `network`; the next transfer pays it first.",
        ),
        Code.WALLET_BLOCKED: _problem_page(
            "The operator of this gateway does not serve this wallet.", "Ask the operator."
        ),
        Code.NOT_PROVIDER: _problem_page(
            "Only the provider of this listing, or only wallets that the operator has admitted, may do that.",
            "Use the wallet that published the listing; where only admitted wallets may publish, ask the operator.",
        ),
        Code.OWNERSHIP_UNVERIFIED: _problem_page(
            "Its provider has not proved yet that the endpoint is theirs, and this gateway sells nothing before.",
            "Choose another listing. If it is yours: GET /api/v2/apis/{apiId}/ownership says what to do.",
        ),
        Code.API_NOT_FOUND: _problem_page("There is no listing with this id.", "Look it up in the list of APIs."),
        Code.CALL_NOT_FOUND: _problem_page(
            "There is no such call, or it is not yours to see.", "Look it up in your history."
        ),
        Code.PAYMENT_NOT_FOUND: _problem_page(
            "Nothing is known about this transaction.", "Check the hash, the network and the wallet."
        ),
        Code.ROUTE_NOT_FOUND: _problem_page("Nothing lives at this path.", "Check the path against the API document."),
        Code.METHOD_NOT_ALLOWED: _problem_page(
            "This path exists, but not with this method.", "Use a method that the Allow header names."
        ),
        Code.PAYLOAD_TOO_LARGE: _problem_page(
            "The body is over the limit.", "Send less. For a large body of a bound call, add bodyHash."
        ),
        Code.UNSUPPORTED_MEDIA_TYPE: _problem_page(
            "The body is of a kind that is not read here.", "Send application/json."
        ),
        Code.PAYMENT_ALREADY_USED: _problem_page(
            "All value of this payment is spent, or held by a call that has no outcome yet.",
            "`callId` names what it bought. While `paymentState` is `held`, wait and do not pay again; else pay anew if you want another call.",
        ),
        Code.PAYMENT_TOO_OLD: _problem_page(
            "The transaction is too old to be shown for the first time.",
            "Ask the operator or the provider to admit it.",
        ),
        Code.PAYMENT_HELD: _problem_page(
            "Nodes of the chain disagree about this payment, or the database was restored to an older moment; it waits until "
            "they agree, or until the operator has checked it.",
            "Wait, or ask the operator. Do not pay again.",
        ),
        Code.PAYMENT_PENDING: _problem_page(
            "The transaction is not mined yet, or not deep enough for its value.", _SAME_PROOF
        ),
        Code.IDEMPOTENCY_IN_PROGRESS: _problem_page("The same request is still running.", _SAME_PROOF),
        Code.ALREADY_EXISTS: _problem_page(
            "It exists already; or another wallet has proved that the endpoint's origin is theirs.",
            "Look at what is there before you create another.",
        ),
        Code.API_RETIRED: _problem_page(
            "The provider has retired this listing.", "Choose another. What you paid stays in your history."
        ),
        Code.PRECONDITION_FAILED: _problem_page(
            "It changed since you last read it, or is not in the state that this needs.",
            "Read it again, then decide.",
        ),
        Code.PRICE_ABOVE_MAX: _problem_page(
            "The call costs more than your Tollway-Max-Price.",
            "Raise the maximum or leave it. Nothing was spent.",
        ),
        Code.VALIDATION_FAILED: _problem_page(
            "The request can be read, but breaks a rule; `errors` names each field.", "Correct the fields."
        ),
        Code.ENDPOINT_NOT_ALLOWED: _problem_page(
            "This gateway does not dial that endpoint: private or reserved address, port, or scheme.",
            "Use a public http(s) address.",
        ),
        Code.IDEMPOTENCY_KEY_REUSED: _problem_page(
            "This Idempotency-Key was used for another request.", "Use a fresh key."
        ),
        Code.RATE_LIMITED: _problem_page("Too many requests.", "Wait as long as Retry-After says."),
        Code.FAILED_CALL_BUDGET_EXHAUSTED: _problem_page(
            "Too many of your calls to this listing, or to all listings together, ended without being billed.",
            "Wait as long as Retry-After says. Your payments stay yours.",
        ),
        Code.INTERNAL_ERROR: _problem_page(
            "Something went wrong in the gateway. `paymentState` says what became of the payment.",
            "Look at the call in your history, and tell the operator the request id.",
        ),
        Code.UPSTREAM_UNREACHABLE: _problem_page(
            "The provider's API could not be reached; nothing was sent.", _RETRY_OR_TELL_PROVIDER
        ),
        Code.UPSTREAM_BAD_RESPONSE: _problem_page("The provider's API gave an answer that is not HTTP.", _RETRY_OR_TELL_PROVIDER),
        Code.UPSTREAM_PAYMENT_REQUIRED: _problem_page(
            "The provider's API itself asked for a payment; that is not yours to make.",
            "Tell the provider. Your payment stays yours: credit, or a signed one unused.",
        ),
        Code.PAYMENT_OUTCOME_UNKNOWN: _problem_page(
            "It is not known yet whether the payment, or the call that holds it, went through.",
            _SAME_PROOF + " The call in your history says how it ended.",
        ),
        Code.CHAIN_UNAVAILABLE: _problem_page(
            "No chain node gave a usable answer, so the payment cannot be judged yet.", _SAME_PROOF
        ),
        Code.STORAGE_UNAVAILABLE: _problem_page(
            "The books cannot be read or written right now.", _SAME_PROOF
        ),
        Code.API_PAUSED: _problem_page(
            "The provider has paused this listing, or the operator has suspended it.",
            "Try again later. Do not pay now.",
        ),
        Code.UPSTREAM_UNAVAILABLE: _problem_page(
            "The provider's API is known to be down.", "Try again later. Do not pay now."
        ),
        Code.OVERLOADED: _problem_page("This gateway has more work than it can do.", _SAME_PROOF),
        Code.UPSTREAM_TIMEOUT: _problem_page(
            "The provider's API did not answer in time. Where it may have acted, the price is held, not lost.",
            "Look at the call in your history before you decide anything.",
        ),
        Code.LOOP_DETECTED: _problem_page(
            "The listing's endpoint leads back to this gateway.", "Tell the provider."
        ),
    }
)  # fmt: skip


PROBLEM_TYPE = b"application/problem+json"

OK, CREATED, NO_CONTENT = 200, 201, 204
"""The statuses of answers that are no problem, for those who have to name one."""

FORBIDDEN = 403
"""What the MCP transport asks for where a page of another origin knocks; no code of ours means that alone."""

RenderedProblem = tuple[int, list[tuple[bytes, bytes]], bytes]
"""Status, headers (lower-case names) and body."""

ChallengeHeaders = Callable[[Request], Awaitable[Sequence[tuple[str, str]]]]
"""Makes the headers of a 401: `WWW-Authenticate`, `Accept-Signature`, the sign-in challenge."""

SIGN_IN_CHALLENGE = "PAYMENT-REQUIRED"
"""The header of a 401 in which x402 clients look for what to sign."""

CHALLENGED_BY_402 = "challenged_by_402"
"""In `scope["state"]`: who asks understands a sign-in challenge only where it comes as a 402 (`web/auth_routes.py`)."""

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
    """What is the same for every problem of one code.

    `is_retryable`: the very same request, sent again later, can succeed. `retry_after_s`: sent where the problem
    names no delay of its own.
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
        Code.WALLET_BLOCKED: _permanent(403, "Wallet blocked"),
        Code.NOT_PROVIDER: _permanent(403, "Not the provider"),
        Code.OWNERSHIP_UNVERIFIED: _permanent(403, "Ownership not verified"),
        Code.API_NOT_FOUND: _permanent(404, "API not found"),
        Code.CALL_NOT_FOUND: _permanent(404, "Call not found"),
        Code.PAYMENT_NOT_FOUND: _permanent(404, "Payment not found"),
        Code.ROUTE_NOT_FOUND: _permanent(404, "Route not found"),
        Code.METHOD_NOT_ALLOWED: _permanent(405, "Method not allowed"),
        Code.PAYLOAD_TOO_LARGE: _permanent(413, "Payload too large"),
        Code.UNSUPPORTED_MEDIA_TYPE: _permanent(415, "Unsupported media type"),
        Code.PAYMENT_ALREADY_USED: _permanent(409, "Payment already used"),
        Code.PAYMENT_TOO_OLD: _permanent(409, "Payment too old"),
        Code.PAYMENT_HELD: _transient(409, "Payment held"),
        Code.PAYMENT_PENDING: _transient(409, "Payment pending", 2),
        Code.IDEMPOTENCY_IN_PROGRESS: _transient(409, "Same request still running", 2),
        Code.ALREADY_EXISTS: _permanent(409, "Already exists"),
        Code.API_RETIRED: _permanent(410, "API retired"),
        Code.PRECONDITION_FAILED: _permanent(412, "Precondition failed"),
        Code.PRICE_ABOVE_MAX: _permanent(412, "Price above your maximum"),
        Code.VALIDATION_FAILED: _permanent(422, "Validation failed"),
        Code.ENDPOINT_NOT_ALLOWED: _permanent(422, "Endpoint not allowed"),
        Code.IDEMPOTENCY_KEY_REUSED: _permanent(422, "Idempotency key reused"),
        Code.RATE_LIMITED: _transient(429, "Rate limited", 60),
        Code.FAILED_CALL_BUDGET_EXHAUSTED: _transient(429, "Too many failed calls", 600),
        Code.INTERNAL_ERROR: _permanent(500, "Internal error"),
        Code.UPSTREAM_UNREACHABLE: _transient(502, "Upstream unreachable"),
        Code.UPSTREAM_BAD_RESPONSE: _transient(502, "Bad response from upstream"),
        Code.UPSTREAM_PAYMENT_REQUIRED: _permanent(502, "Upstream asked for a payment of its own"),
        Code.PAYMENT_OUTCOME_UNKNOWN: _transient(503, "Payment outcome unknown", 5),
        Code.CHAIN_UNAVAILABLE: _transient(503, "Chain unavailable", 3),
        Code.STORAGE_UNAVAILABLE: _transient(503, "Storage unavailable", 3),
        Code.API_PAUSED: _transient(503, "API paused", 300),
        Code.UPSTREAM_UNAVAILABLE: _transient(503, "Upstream unavailable", 30),
        Code.OVERLOADED: _transient(503, "Overloaded", 2),
        Code.UPSTREAM_TIMEOUT: _transient(504, "Upstream timed out"),
        Code.LOOP_DETECTED: _permanent(508, "Loop detected"),
    }
)


def status_of(code: Code) -> int:
    """The HTTP status of an error code."""
    return PROBLEM_KINDS[code].status


def problem_type(code: Code, *, public_url: str) -> str:
    """The URI of a kind of problem; it resolves to a page."""
    return f"{public_url}/problems/{code.value.replace('_', '-')}"


def render_problem(
    problem: Problem,
    *,
    public_url: str,
    request_id: str,
    instance: str,
    status: int | None = None,
    encoded: bytes = b"",
) -> RenderedProblem:
    """An RFC 9457 answer. `instance`: a URI reference to what failed, usually the path of the request. `status`: only
    where it is not the one of the code. `encoded`: a JSON object of more members, none of them one of a problem's."""
    kind = PROBLEM_KINDS[problem.code]
    status = kind.status if status is None else status
    retry_after_s = problem.retry_after_s if problem.retry_after_s is not None else kind.retry_after_s
    content: dict[str, object] = {
        "type": problem_type(problem.code, public_url=public_url),
        "title": kind.title,
        "status": status,
        "detail": problem.detail,
        "instance": instance,
        "code": problem.code.value,
        "requestId": request_id,
        "retryable": kind.is_retryable,
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
    headers += _rate_limit_headers(problem.members.get("rateLimit"), retry_after_s)
    return status, headers, body


def _rate_limit_headers(rate: object, retry_after_s: int | None) -> list[tuple[bytes, bytes]]:
    """From what `errors.describe_rate` wrote into the members of the problem."""
    if not isinstance(rate, Mapping):
        return []
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
    """The id that the middleware gave this request; empty where none ran."""
    state: Mapping[str, object] = scope.get("state") or {}
    return str(state.get("request_id", ""))


def instance_of(scope: Scope) -> str:
    """The raw path of the request as a URI reference, without its query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return quote(raw.split(b"?", 1)[0], safe=_PATH_SAFE)


def install_handlers(app: Starlette, public_url: str, challenge: ChallengeHeaders | None = None) -> None:
    """Makes every failure of `app` a problem: refusals, unknown routes and methods, and bugs."""

    async def answer(request: Request, problem: Problem, more: Sequence[tuple[str, str]] = ()) -> Response:
        status = status_of(problem.code)
        if status == 401 and challenge is not None:
            offered = await challenge(request)
            sign_in = [(name, value) for name, value in offered if name == SIGN_IN_CHALLENGE]
            if sign_in and (request.scope.get("state") or {}).get(CHALLENGED_BY_402):
                status, offered = 402, sign_in
            more = (*more, *offered)
        return _to_response(problem, request.scope, public_url=public_url, more=more, status=status)

    async def on_failure(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, TollwayError)
        if exc.problem.code is Code.INTERNAL_ERROR:
            _log.error("internal_error", path=instance_of(request.scope), exc_info=exc)
        return await answer(request, exc.problem)

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        if exc.status_code == 405:
            allowed = ", ".join(_allowed_methods(request))
            problem = Problem(
                code=Code.METHOD_NOT_ALLOWED,
                detail=f"{request.method} is not possible here; possible: {allowed}.",
            )
            return await answer(request, problem, [("allow", allowed)])
        return await answer(request, _framework_problem(exc.status_code))

    app.add_exception_handler(TollwayError, on_failure)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_middleware(ErrorBoundary, public_url=public_url)


class ErrorBoundary:
    """Answers what nobody caught with a bare 500 problem, and logs it once with its traceback.

    After the head has gone out the answer just stops, which the server shows as a broken connection.
    """

    def __init__(self, app: ASGIApp, *, public_url: str) -> None:
        self._app = app
        self._public_url = public_url

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
            return  # nobody is left to answer
        except Exception as exc:  # noqa: BLE001 - the outermost handler: logged, answered
            _log.error("unhandled_error", path=instance_of(scope), is_started=is_started, exc_info=exc)
            if not is_started:
                problem = Problem(
                    code=Code.INTERNAL_ERROR, detail="Something went wrong here; it was logged."
                )
                await _to_response(problem, scope, public_url=self._public_url)(scope, receive, send)


def _to_response(
    problem: Problem,
    scope: Scope,
    *,
    public_url: str,
    more: Sequence[tuple[str, str]] = (),
    status: int | None = None,
) -> Response:
    status, headers, body = render_problem(
        problem,
        public_url=public_url,
        request_id=request_id_of(scope),
        instance=instance_of(scope),
        status=status,
    )
    response = Response(status_code=status)
    response.raw_headers = headers + [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in more
    ]
    response.body = b"" if scope.get("method") == "HEAD" else body
    return response


def _allowed_methods(request: Request) -> list[str]:
    # Starlette names only the methods of the first route that has this path; ask every route for every method.
    routes = request.app.router.routes
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]


def _framework_problem(status: int) -> Problem:
    """Starlette's own refusals. What has no row here is a broken request or a bug of ours."""
    if status == 404:
        return Problem(code=Code.ROUTE_NOT_FOUND, detail="Nothing lives at this path.")
    if status == 413:
        return Problem(code=Code.PAYLOAD_TOO_LARGE, detail="The body is larger than this gateway takes.")
    if status == 415:
        return Problem(code=Code.UNSUPPORTED_MEDIA_TYPE, detail="Send the body as application/json.")
    if 400 <= status < 500:
        return Problem(code=Code.INVALID_REQUEST, detail="The request could not be read.")
    return Problem(code=Code.INTERNAL_ERROR, detail="Something went wrong here; it was logged.")


def describe_errors(errors: Sequence[FieldError]) -> str:
    """One sentence that names what is wrong, for `detail`."""
    places = ", ".join(dict.fromkeys(error.parameter or error.pointer or "the body" for error in errors))
    return f"Not valid: {places}."
