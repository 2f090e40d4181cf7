"""Every refusal of a call as a problem: what is wrong, and what to do about it.

The HTTP status of a code is not known here; which codes may carry a quote (the law about 402) is. No refusal that may mean moved money carries a quote.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from tollway.errors import Code, FieldError, Problem, Refusal, TollwayError, UpstreamBadResponse
from tollway.gateway.messages import CallRefused, ClientGone, ProblemResponse, ProxyRequest, Quote
from tollway.ids import IDEMPOTENCY_KEY_MAX, Address, CallId, TxHash, is_idempotency_key, read_idempotency_key
from tollway.ledger.ledger import Claim
from tollway.ledger.records import CallState
from tollway.money import Asset, Price
from tollway.registry.listing import CatalogEntry, Listing

STANDARD_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

_OTHER_RAILS = frozenset({b"payment-signature", b"x-payment"})
_PAYS = re.compile(rb"payment(?:\s|$)", re.I)
# TRACE answers with the request as it came, the listing's secret included (RFC 9110 §9.3.8).
_NEVER_SERVED = frozenset({"TRACE", "CONNECT"})


def check_listing(
    entry: CatalogEntry | None,
    request: ProxyRequest,
    *,
    find_wait_s: Callable[[Listing], int | None] = lambda _: None,
) -> Problem | None:
    """In the order of the contract: 404, 410, 503, 405; before any question of money. `find_wait_s`: until an upstream
    that is known to be down is tried again."""
    if entry is None:
        return NOT_FOUND
    listing = entry.listing
    if listing.retired_ms is not None:
        return Problem(
            code=Code.API_RETIRED, detail="The provider has retired this API.", payment_state="none"
        )
    if listing.suspended_ms is not None:
        return Problem(
            code=Code.API_PAUSED,
            detail="The operator has suspended this API.",
            reason="suspended",
            retry_after_s=3600,
            payment_state="none",
        )
    if listing.status == "paused":
        return Problem(
            code=Code.API_PAUSED,
            detail="The provider has paused this API.",
            retry_after_s=60,
            payment_state="none",
        )
    if listing.upstream_auth is not None and listing.upstream_auth.value is None:
        return Problem(
            code=Code.STORAGE_UNAVAILABLE,
            detail="The secret that the provider's API asks for cannot be opened; nothing was sent.",
            payment_state="none",
        )
    wait_s = find_wait_s(listing)
    if wait_s is not None:
        return Problem(
            code=Code.UPSTREAM_UNAVAILABLE,
            detail="The provider's API could not be reached lately; nothing was sent.",
            retry_after_s=wait_s,
            payment_state="none",
        )
    return check_method(listing.methods, request.method)


def check_method(methods: Sequence[str], method: str) -> Problem | None:
    """Methods are case-sensitive (RFC 9110 §9.1): one in lower case would be another method upstream than here."""
    is_served = not methods or method in methods or _priced_method(method) in methods
    if is_served and method == method.upper() and method not in _NEVER_SERVED:
        return None
    allowed = list(methods or STANDARD_METHODS)
    return Problem(
        code=Code.METHOD_NOT_ALLOWED,
        detail=f"This API takes {', '.join(allowed)}.",
        payment_state="none",
        members={"allow": allowed},
    )


def _priced_method(method: str) -> str:
    """HEAD costs what GET costs."""
    return "GET" if method == "HEAD" else method


def check_rails(request: ProxyRequest) -> Problem | None:
    """One signed payment at most, in any dialect."""
    rails = 0
    for name, value in request.headers:
        rails += name in _OTHER_RAILS or (name == b"authorization" and _PAYS.match(value) is not None)
    return MORE_THAN_ONE_RAIL if rails > 1 else None


def check_idempotency_key(request: ProxyRequest) -> Problem | None:
    key = find_idempotency_key(request)
    if key is None or is_idempotency_key(key):
        return None
    detail = f"must have 1 to {IDEMPOTENCY_KEY_MAX} characters, none of them NUL"
    return Problem(
        code=Code.INVALID_REQUEST,
        detail=f"Idempotency-Key {detail}.",
        errors=(FieldError(code="malformed", detail=detail, parameter="Idempotency-Key"),),
        payment_state="none",
    )


def find_idempotency_key(request: ProxyRequest) -> str | None:
    value = request.find_header(b"idempotency-key")
    return None if value is None else read_idempotency_key(value)


def check_price_max(request: ProxyRequest, price: Price, asset: Asset) -> Problem | None:
    text = request.find_header(b"tollway-max-price")
    if text is None:
        return None
    try:
        price_max = Price.parse(text.decode("ascii"))
    except ValueError:
        detail = "must be a decimal string such as 0.01"
        return Problem(
            code=Code.INVALID_REQUEST,
            detail=f"Tollway-Max-Price {detail}.",
            errors=(FieldError(code="malformed", detail=detail, parameter="Tollway-Max-Price"),),
            payment_state="none",
        )
    if price.nano <= price_max.nano:
        return None
    return Problem(
        code=Code.PRICE_ABOVE_MAX,
        detail=f"The call costs {price.text} {asset.symbol}, more than the {price_max.text} that was allowed.",
        payment_state="released",
    )


def check_held_price_max(
    request: ProxyRequest, asset: Asset, *, call_id: CallId, price: str, state: CallState
) -> Problem | None:
    """`check_price_max` for a call that holds its price already and would run again at it."""
    problem = check_price_max(request, Price.parse(price), asset)
    if problem is None:
        return None
    payment_state = "charged" if state is CallState.CONSUMED else "held"
    return replace(problem, call_id=call_id, payment_state=payment_state)


def explain(error: TollwayError) -> ProblemResponse:
    """What the caller gets for a refusal, or for a failure of storage, of a chain or of the upstream."""
    headers = error.headers if isinstance(error, CallRefused) else []
    return ProblemResponse(problem=error.problem, headers=headers)


def explain_quoted(refusal: Refusal, quote: Quote, request: ProxyRequest) -> ProblemResponse:
    """The same for a call whose price is known: the quote stands beside a code that may ask for money, and beside no other.

    An x402 payment that cannot be read gets none: the HTTP transport of x402 answers it with 400, and its clients
    sign a new payment for each 402. A credential of MPP gets it (Payment HTTP authentication scheme: 402)."""
    problem = refusal.problem
    is_quoted = may_quote(problem)
    if problem.code is Code.PAYMENT_MALFORMED:
        is_quoted = _has_credential(request)
    headers = refusal.headers if isinstance(refusal, CallRefused) else []
    return ProblemResponse(problem=problem, quote=quote if is_quoted else None, headers=headers)


def require_payment(quote: Quote) -> ProblemResponse:
    """The 402 of a call that costs and shows no payment: the price, and what to do."""
    listing = quote.entry.listing
    other = " Or let a client of x402 or MPP sign for it: the headers say how." if quote.requirements else ""
    problem = Problem(
        code=Code.PAYMENT_REQUIRED,
        detail=f"This call costs {quote.price.text} {listing.currency}. Send the amount to payTo on one of the networks "
        f"in payment.options, then repeat the call with X-Payment-Tx and X-Signature.{other}",
        payment_state="none",
    )
    return ProblemResponse(problem=problem, quote=quote)


def _has_credential(request: ProxyRequest) -> bool:
    return any(name == b"authorization" and _PAYS.match(value) is not None for name, value in request.headers)


def may_quote(problem: Problem) -> bool:
    return problem.code in _QUOTED_CODES


def insufficient(claim: Claim, asset: Asset, *, remaining_units: int) -> Problem:
    """Some value, less than the price; sending the difference is enough."""
    there = asset.format_units(remaining_units)
    missing = asset.format_units(claim.price_units - remaining_units)
    return Problem(
        code=Code.PAYMENT_INSUFFICIENT,
        detail=f"{there} {asset.symbol} is left and the call costs {claim.price}; send the missing {missing} "
        f"{asset.symbol} to {claim.pay_to} and show either transaction.",
        payment_state="released",
        members={"available": there, "missing": missing, "currency": asset.symbol},
    )


def already_used(call_ids: Sequence[CallId], *, is_unsettled: bool) -> Problem:
    """Nothing is left, or too little while something is held. Never with terms: whoever pays by itself would pay
    twice."""
    detail = "All of this payment's value is spent."
    if is_unsettled:
        detail = (
            "What is left of this payment is held by a call that is still running, or whose outcome is unknown; "
            "ask for its record, and do not pay again."
        )
    return Problem(
        code=Code.PAYMENT_ALREADY_USED,
        detail=detail,
        retry_after_s=5 if is_unsettled else None,
        call_id=call_ids[0] if call_ids else None,
        payment_state="held" if is_unsettled else "charged",
        members={"callIds": list(call_ids)},
    )


def in_debt_to(payee: Address | None, asset: Asset, units: int) -> Problem:
    return Problem(
        code=Code.PAYER_IN_DEBT,
        detail="A payment of this wallet left the chain after it had bought calls; pay what is owed first.",
        payment_state="none",
        members={
            "debt": asset.format_units(units),
            "currency": asset.symbol,
            "network": asset.network,
            "payTo": str(payee),
        },
    )


def nonce_used(call_id: CallId, state: CallState) -> Problem:
    if state in (CallState.FORWARDING, CallState.SETTLING):
        return Problem(
            code=Code.IDEMPOTENCY_IN_PROGRESS,
            detail="A call with this very signature is still running.",
            retry_after_s=1,
            call_id=call_id,
            payment_state="held",
        )
    return Problem(
        code=Code.NONCE_REUSED,
        detail="This signature has bought a call already; sign the next one with a nonce of its own.",
        call_id=call_id,
        payment_state="held" if state is CallState.UNKNOWN else "charged",
    )


_QUOTED_CODES = frozenset(
    {
        Code.PAYMENT_REQUIRED,
        Code.PAYMENT_MALFORMED,
        Code.PAYMENT_EXPIRED,
        Code.PAYMENT_METHOD_UNSUPPORTED,
        Code.PAYMENT_SETTLEMENT_FAILED,
        Code.PAYMENT_INSUFFICIENT,
        Code.PAYMENT_VERIFICATION_FAILED,
    }
)
NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="There is no API of this id.", payment_state="none")
UNREACHABLE = Problem(
    code=Code.UPSTREAM_UNREACHABLE,
    detail="The provider's API could not be reached; nothing was sent.",
    payment_state="none",
)
OTHER_CURRENCY = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="The payment is in a currency that this listing no longer asks for.",
    reason="wrong_token",
    payment_state="none",
)
HELD = Problem(
    code=Code.PAYMENT_HELD,
    detail="The payment is held: nodes of its chain disagree about it, and it is free when they agree; or this gateway's"
    " books were restored, and it is free when the operator releases it.",
    payment_state="held",
)
REORGED = Problem(
    code=Code.PAYMENT_PENDING,
    detail="The transaction has left the chain; it counts again once it is mined again.",
    reason="reorged",
    retry_after_s=10,
    payment_state="none",
)
UNFINAL_LIMIT = Problem(
    code=Code.PAYMENT_PENDING,
    detail="This wallet has spent as much value as may be spent before it is final on the chain.",
    reason="not_final",
    retry_after_s=30,
    payment_state="released",
)
OUTCOME_UNKNOWN = Problem(
    code=Code.PAYMENT_OUTCOME_UNKNOWN,
    detail="The call was carried out, but the books cannot say yet what became of its payment. Ask for the call's "
    "record; do not pay again.",
    retry_after_s=5,
)
UPSTREAM_PAYMENT_REQUIRED = Problem(
    code=Code.UPSTREAM_PAYMENT_REQUIRED,
    detail="The provider's API asked for a payment of its own; nothing was charged.",
)
MORE_THAN_ONE_RAIL = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request shows more than one kind of payment; send one.",
    reason="more_than_one_rail",
    payment_state="none",
)
NO_OPERATION = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="This API serves its listed operations only.",
    payment_state="none",
)
LOOP = Problem(
    code=Code.LOOP_DETECTED,
    detail="This call has passed through this gateway already.",
    payment_state="none",
)
BLOCKED = Problem(
    code=Code.WALLET_BLOCKED,
    detail="The operator of this gateway has blocked this wallet.",
    payment_state="none",
)


def explain_failure(exc: TollwayError | ClientGone) -> Problem:
    """What the caller may read about a call without an answer. All dial failures look alike."""
    if isinstance(exc, ClientGone):
        return Problem(code=Code.INVALID_REQUEST, detail="The caller left before the request was whole.")
    if isinstance(exc, UpstreamBadResponse) and isinstance(exc.__cause__, OSError):
        return Problem(
            code=Code.UPSTREAM_TIMEOUT,
            detail="The provider's API broke the connection before it answered.",
            reason="connection_lost",
        )
    return exc.problem


_PROXY_ERRORS = {
    Code.UPSTREAM_UNREACHABLE: "destination_unavailable",
    Code.UPSTREAM_TIMEOUT: "http_response_timeout",
    Code.UPSTREAM_BAD_RESPONSE: "http_protocol_error",
    Code.OVERLOADED: "connection_limit_reached",
    Code.UPSTREAM_UNAVAILABLE: "destination_unavailable",
    Code.STORAGE_UNAVAILABLE: "proxy_internal_error",
    Code.CHAIN_UNAVAILABLE: "proxy_internal_error",
    Code.PAYMENT_OUTCOME_UNKNOWN: "proxy_internal_error",
    Code.INTERNAL_ERROR: "proxy_internal_error",
    Code.LOOP_DETECTED: "proxy_loop_detected",
}


def name_proxy_error(problem: Problem) -> str:
    """RFC 9209 §2.3: the registered error types."""
    if problem.reason == "connection_lost":
        return "connection_terminated"
    return _PROXY_ERRORS.get(problem.code, "http_request_denied")


def authorization_used(call_id: CallId | None, state: CallState) -> Problem:
    """It pays another call, or this one in a way that cannot be run again. Never with terms."""
    is_unsettled = state in (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)
    detail = "This authorisation has paid a call already; sign a new one for another call."
    if is_unsettled:
        detail = (
            "This authorisation is held by a call that is still running, or whose outcome is unknown; ask for its "
            "record, and do not pay again."
        )
    return Problem(
        code=Code.PAYMENT_ALREADY_USED,
        detail=detail,
        reason="authorization_used",
        retry_after_s=5 if is_unsettled else None,
        call_id=call_id,
        payment_state="held" if is_unsettled else "charged",
        members={"callIds": [] if call_id is None else [call_id]},
    )


def authorization_public(call_id: CallId, state: CallState) -> Problem:
    """Everybody can read it on its chain by now, so it alone opens nothing. Never with terms."""
    return replace(
        authorization_used(call_id, state),
        detail="This authorisation may be public on its chain, so it does not open its call alone. Repeat the same request "
        "with the idempotency key that it came with, from the network that it came from, or with a proof of the paying "
        "wallet (ERC-8128 or SIGN-IN-WITH-X). Do not pay again.",
    )


def authorization_became_credit(call_id: CallId, transaction: TxHash) -> Problem:
    """Its money moved when nobody could be given the answer any more."""
    return Problem(
        code=Code.PAYMENT_ALREADY_USED,
        detail="The money of this authorisation has moved after its call was given up, and is credit now: repeat the "
        f"call with X-Payment-Tx: {transaction} and X-Signature. Do not pay again.",
        reason="authorization_became_credit",
        call_id=call_id,
        payment_state="released",
        members={"callIds": [call_id], "transaction": str(transaction)},
    )


def key_used(call_id: CallId, state: CallState) -> Problem:
    """The key's call has no answer to give out (any more). What was shown with it now stays unused."""
    is_unsettled = state in (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)
    detail = (
        "The call of this idempotency key is paid, and its answer is not stored (any more): see its record."
    )
    if is_unsettled:
        detail = (
            "The outcome of this idempotency key's call is unknown: see its record, and do not pay again."
        )
    return Problem(
        code=Code.PAYMENT_ALREADY_USED,
        detail=detail,
        reason="idempotency_key_used",
        retry_after_s=5 if is_unsettled else None,
        call_id=call_id,
        payment_state="held" if is_unsettled else "charged",
        members={"callIds": [call_id]},
    )


def in_progress(call_id: CallId, *, payment_state: str = "held") -> Problem:
    """`charged`: its answer costs and is still being read."""
    return Problem(
        code=Code.IDEMPOTENCY_IN_PROGRESS,
        detail="This very request is still running; ask again in a moment with the same proof.",
        retry_after_s=1,
        call_id=call_id,
        payment_state=payment_state,
    )


RAIL_WITHDRAWN = Problem(
    code=Code.PAYMENT_METHOD_UNSUPPORTED,
    detail="This gateway cannot settle signed payments of this amount on this network at present; nothing was spent.",
    reason="rail_withdrawn",
    payment_state="none",
)
NOT_COVERED = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="The wallet's balance does not cover this payment beside those of its calls that are on their way.",
    reason="insufficient_balance",
    payment_state="none",
)
KEY_REUSED = Problem(
    code=Code.IDEMPOTENCY_KEY_REUSED,
    detail="This wallet has used the idempotency key for another request; nothing was spent.",
    payment_state="none",
)
