"""The problems with which the gateway refuses a call. Each `detail` says what happened and what the caller does next.

This module decides which codes may carry a quote: none that may mean moved money. The HTTP status of a code is in `web/http/problems.py`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache

from tollway.errors import (
    Code,
    FieldError,
    Problem,
    Refusal,
    TollwayError,
    UpstreamBadResponse,
    UpstreamTimeout,
)
from tollway.gateway.messages import CallRefused, ClientGone, Headers, ProblemResponse, ProxyRequest, Quote
from tollway.identity.siwe import HOST_CHARACTERS_MAX
from tollway.ids import IDEMPOTENCY_KEY_MAX, Address, CallId, TxHash, is_idempotency_key, read_idempotency_key
from tollway.ledger.ledger import BudgetExceeded, Claim
from tollway.ledger.records import CallState
from tollway.money import LEDGER_DECIMALS_MAX, Asset, Price, format_decimal
from tollway.registry.listing import CatalogEntry, write_free_calls
from tollway.registry.metering import offer
from tollway.registry.moderation import BlockedWallet, describe_block, describe_suspension

STANDARD_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

KEY_HEADER = b"idempotency-key"
PRICE_MAX_HEADER = b"tollway-max-price"
_OTHER_RAILS = frozenset({b"payment-signature", b"x-payment"})
_PAYS = re.compile(rb"payment(?:\s|$)", re.I)
# The response to TRACE contains the request, the listing's secret included (RFC 9110 §9.3.8).
_NEVER_SERVED = frozenset({"TRACE", "CONNECT"})


def check_listing(
    entry: CatalogEntry,
    request: ProxyRequest,
    *,
    find_wait_s: Callable[[], int | None] = lambda: None,
) -> Problem | None:
    """Checks that the listing accepts calls, in the order of the HTTP contract: 410, 503, 405. Payments are checked later.
    `find_wait_s`: seconds until an upstream that is down is tried again."""
    listing = entry.listing
    if listing.retired_ms is not None:
        return Problem(
            code=Code.API_RETIRED,
            detail="The provider has retired this API. Choose another one.",
            payment_state="none",
        )
    if listing.suspended_ms is not None:
        return Problem(
            code=Code.API_PAUSED,
            detail=f"{describe_suspension(listing)} Choose another API; do not pay for this one.",
            reason="suspended",
            is_lasting=True,
            payment_state="none",
        )
    if listing.status == "paused":
        return Problem(
            code=Code.API_PAUSED,
            detail="The provider has paused this API. Try again later, and do not pay before that.",
            retry_after_s=60,
            payment_state="none",
        )
    if listing.is_secret_lost:
        return Problem(
            code=Code.STORAGE_UNAVAILABLE,
            detail="The gateway cannot decrypt the secret of the provider's API and sent nothing. Report it to the operator; do not pay for this API.",
            is_lasting=True,
            payment_state="none",
        )
    wait_s = find_wait_s()
    if wait_s is not None:
        return Problem(
            code=Code.UPSTREAM_UNAVAILABLE,
            detail="The provider's API is down, and the gateway sent nothing. Try again after Retry-After, and do not pay before that.",
            retry_after_s=wait_s,
            payment_state="none",
        )
    return check_method(listing.methods, request.method)


def check_method(methods: Sequence[str], method: str) -> Problem | None:
    """Checks that the listing serves the method. Methods are case-sensitive (RFC 9110 §9.1): a method in lower case would be another
    method upstream."""
    is_served = not methods or method in methods or _priced_method(method) in methods
    if is_served and method == method.upper() and method not in _NEVER_SERVED:
        return None
    allowed = list(methods or STANDARD_METHODS)
    return Problem(
        code=Code.METHOD_NOT_ALLOWED,
        detail=f"This API does not support the method. Use one of: {', '.join(allowed)}.",
        payment_state="none",
        members={"allow": allowed},
    )


def _priced_method(method: str) -> str:
    """The method whose price counts: HEAD costs the same as GET."""
    return "GET" if method == "HEAD" else method


def explain_other_host(problem: Problem, request: ProxyRequest, *, origin: str) -> Problem:
    """Adds the gateway's public URL to the refusal of a bound signature where the request names another host. The signature covers the public URL
    (`origin`), so a client that signs the URL it calls signs for another gateway."""
    host = (request.find_header(b"host") or b"").decode("latin-1").lower()
    if problem.code is not Code.PAYER_MISMATCH or not host or host == origin.partition("://")[2]:
        return problem
    return replace(
        problem,
        detail=f"{problem.detail} The public_url of this gateway is {origin}, and the request came for {host[:HOST_CHARACTERS_MAX]}: "
        f"sign for {origin}.",
    )


def check_rails(request: ProxyRequest) -> Problem | None:
    """Refuses a request with more than one signed payment, in any dialect. The same value in both headers of x402 is one payment."""
    payments = [
        (name, value)
        for name, value in request.headers
        if name in _OTHER_RAILS or (name == b"authorization" and _PAYS.match(value) is not None)
    ]
    is_in_both_headers = len(dict(payments)) == 2 and len({value for _, value in payments}) == 1
    return MORE_THAN_ONE_RAIL if len(payments) > 1 and not is_in_both_headers else None


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
    value = request.find_header(KEY_HEADER)
    return None if value is None else read_idempotency_key(value)


def check_price_max(
    request: ProxyRequest, price: Price, asset: Asset, *, is_metered: bool = False
) -> Problem | None:
    """The refusal of a price above `Tollway-Max-Price`; None without that header. `is_metered`: the price is the maximum of a metered call."""
    text = request.find_header(PRICE_MAX_HEADER)
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
        detail=f"The call costs {'up to ' if is_metered else ''}{price.text} {asset.symbol}, more than the {price_max.text} of Tollway-Max-Price. Raise or remove the "
        "maximum, then send the request again.",
        payment_state="released",
    )


def check_held_price_max(
    request: ProxyRequest,
    asset: Asset,
    *,
    call_id: CallId,
    price: str,
    state: CallState,
    is_metered: bool = False,
) -> Problem | None:
    """`check_price_max` for a call that would run again under its claim, at the price that it holds."""
    problem = check_price_max(request, Price.parse(price), asset, is_metered=is_metered)
    if problem is None:
        return None
    payment_state = "charged" if state is CallState.CONSUMED else "held"
    return replace(problem, call_id=call_id, payment_state=payment_state)


def explain(error: TollwayError) -> ProblemResponse:
    """The response to a refusal, or to a failure of storage, of a chain or of the upstream."""
    headers = error.headers if isinstance(error, CallRefused) else []
    return ProblemResponse(problem=error.problem, headers=headers)


def explain_quoted(refusal: Refusal, quote: Quote, request: ProxyRequest) -> ProblemResponse:
    """The response to the refusal of a call with a known price. The quote goes only with codes that may ask for a payment.

    An unreadable x402 payment gets no quote: the HTTP transport of x402 requires a 400, and x402 clients sign a new payment for
    each 402. An unreadable MPP credential gets the quote (Payment HTTP authentication scheme: 402)."""
    problem = refusal.problem
    is_quoted = may_quote(problem)
    if problem.code is Code.PAYMENT_MALFORMED:
        is_quoted = _has_credential(request)
    headers: Headers = []
    if isinstance(refusal, CallRefused):
        headers, is_quoted = refusal.headers, is_quoted and not refusal.is_corrective
    return ProblemResponse(problem=problem, quote=quote if is_quoted else None, headers=headers)


def require_payment(quote: Quote) -> ProblemResponse:
    """The 402 for a call that costs money and carries no payment: the price, and how to pay it."""
    listing = quote.entry.listing
    other = (
        " Or sign a payment with an x402 or MPP client, as the headers describe."
        if quote.requirements
        else ""
    )
    costs, kept = f"{quote.price.text} {listing.currency}", ""
    if quote.metering is not None:
        costs = offer(quote).describe(listing.currency)
        kept = " What the call does not use stays as your credit."
    members: dict[str, object] = {}
    free, free_calls = "", listing.free_calls
    if free_calls is not None:
        period = "" if free_calls.per_s is None else f" in {free_calls.per_s} seconds"
        free = (
            f" The first {free_calls.count} calls of a wallet{period} are free: sign the request (ERC-8128), or send "
            "SIGN-IN-WITH-X."
        )
        members["freeCalls"] = write_free_calls(free_calls)
    problem = Problem(
        code=Code.PAYMENT_REQUIRED,
        detail=f"This call costs {costs}. Send the amount to payTo on one of the networks "
        f"in payment.options, then repeat the call with X-Payment-Tx and X-Signature.{kept}{other}{free}",
        payment_state="none",
        members=members,
    )
    return ProblemResponse(problem=problem, quote=quote)


def _has_credential(request: ProxyRequest) -> bool:
    return any(name == b"authorization" and _PAYS.match(value) is not None for name, value in request.headers)


def may_quote(problem: Problem) -> bool:
    """A held payment may be charged yet: its caller is asked for no other one."""
    return problem.code in _QUOTED_CODES and problem.payment_state != "held"


def insufficient(claim: Claim, asset: Asset, *, remaining_units: int) -> Problem:
    """The payment has credit left, but less than the price. The caller sends the difference."""
    available = asset.format_units(remaining_units)
    missing = asset.format_units(claim.price_units - remaining_units)
    maximum = "" if claim.metering is None else "up to "
    return Problem(
        code=Code.PAYMENT_INSUFFICIENT,
        detail=f"The credit is {available} {asset.symbol} and the call costs {maximum}{claim.price}. Send the missing {missing} "
        f"{asset.symbol} to {claim.pay_to}, then repeat the call with either transaction.",
        payment_state="released",
        members={"available": available, "missing": missing, "currency": asset.symbol},
    )


def already_used(call_ids: Sequence[CallId], *, is_unsettled: bool) -> Problem:
    """The payment has no credit left, or too little while other calls hold some of it. Without a quote: an automatic client
    would pay twice."""
    detail = "All value of this payment is spent. Pay again for another call."
    if is_unsettled:
        detail = (
            "A call that is running, or whose outcome is unknown, holds the rest of this payment. Read that call in your "
            "history, and do not pay again before it has an outcome."
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
        detail="A payment of this wallet left the chain after it had paid for calls, and no credit is left to pay them. Send `debt` to `payTo` first, then repeat the call.",
        payment_state="none",
        members={
            "debt": asset.format_units(units),
            "currency": asset.symbol,
            "network": asset.network,
            "payTo": str(payee),
        },
    )


def exceed_budget(refused: BudgetExceeded, *, payment_state: str) -> Problem:
    """The refusal of a wallet by the policy of its owner. It never asks for a payment: another one would be refused too. The members are in the words of `detail` too, which
    a model reads."""
    left = format_decimal(refused.left_nano, decimals=LEDGER_DECIMALS_MAX)
    until = None if refused.until_ms is None else datetime.fromtimestamp(refused.until_ms // 1000, UTC)
    members: dict[str, object] = {}
    if refused.currency is not None:
        members["currency"] = refused.currency
    if refused.limit is not None:
        members |= {"limit": refused.limit, "left": left}
    if until is not None:
        members["resetsAt"] = until.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return Problem(
        code=Code.BUDGET_EXCEEDED,
        detail=_BUDGET_DETAILS[refused.reason].format(
            left=left,
            limit=refused.limit,
            currency=refused.currency,
            until="" if until is None else f" until {until:%Y-%m-%d %H:%M:%S} UTC",
        ),
        reason=refused.reason,
        is_lasting=refused.until_ms is None,
        payment_state=payment_state,
        members=members,
    )


_BUDGET_DETAILS = {
    "no_policy_in_force": "The owner of this wallet has no policy in force here{until}, so the wallet buys nothing. Ask the owner for one; do not pay again.",
    "other_currency": "The policy of this wallet's owner is in {currency} and covers no other currency. Pay in {currency}, or ask the owner.",
    "target_not_allowed": "The policy of this wallet's owner does not allow this API. Choose another one, or ask the owner.",
    "limit": "The call costs more than the policy of this wallet's owner has left: {left} {currency} of {limit}{until}. Choose a cheaper call, wait where an end is given, or ask the owner; do not pay again.",
}


def nonce_used(call_id: CallId, state: CallState) -> Problem:
    if state in (CallState.FORWARDING, CallState.SETTLING):
        return Problem(
            code=Code.IDEMPOTENCY_IN_PROGRESS,
            detail="A call with this signature is still running. After Retry-After, send the same request with the same proof.",
            retry_after_s=1,
            call_id=call_id,
            payment_state="held",
        )
    return Problem(
        code=Code.NONCE_REUSED,
        detail="This signature has paid for a call already. Sign the next request with a fresh nonce.",
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
NOT_FOUND = Problem(
    code=Code.API_NOT_FOUND,
    detail="No API has this id. GET /api/v2/apis lists all APIs.",
    payment_state="none",
)
UNREACHABLE = Problem(
    code=Code.UPSTREAM_UNREACHABLE,
    detail="The gateway could not connect to the provider's API and sent nothing. Send the same request again, or report it to "
    "the provider.",
    payment_state="none",
)
OTHER_CURRENCY = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="The payment is in a currency that this listing does not accept any more. Pay one of the options in the terms.",
    reason="wrong_token",
    payment_state="none",
)
HELD = Problem(
    code=Code.PAYMENT_HELD,
    detail="The payment cannot be spent at present: nodes of its chain disagree about it, or the operator restored an older database "
    "and has not released it yet. Send the same request later, or ask the operator; do not pay again.",
    payment_state="held",
)
REST_HELD = replace(
    HELD,
    detail="The credit of this payment is less than the price, and a payment that would complete it cannot be spent at present: nodes of its "
    "chain disagree about it, or the operator restored an older database and has not released it yet. Send the same request later, or ask "
    "the operator; do not pay again.",
)
REORGED = Problem(
    code=Code.PAYMENT_PENDING,
    detail="The transaction has left the chain. Once it is mined again, send the same request with the same proof.",
    reason="reorged",
    retry_after_s=10,
    payment_state="none",
)
UNFINAL_LIMIT = Problem(
    code=Code.PAYMENT_PENDING,
    detail="This wallet has spent the maximum of value that is not final on the chain yet. After Retry-After, send the same request.",
    reason="not_final",
    retry_after_s=30,
    payment_state="released",
)
OUTCOME_UNKNOWN = Problem(
    code=Code.PAYMENT_OUTCOME_UNKNOWN,
    detail="The provider's API may have processed the call, but the outcome is not known yet. Read the call in your history, or "
    "repeat the same request after Retry-After; do not pay again.",
    retry_after_s=5,
)
UPSTREAM_PAYMENT_REQUIRED = Problem(
    code=Code.UPSTREAM_PAYMENT_REQUIRED,
    detail="The provider's API requires a payment of its own from the gateway. Nothing was charged; report it to the provider.",
)
MORE_THAN_ONE_RAIL = Problem(
    code=Code.INVALID_REQUEST,
    detail="The request carries more than one payment. Send one of them.",
    reason="more_than_one_rail",
    payment_state="none",
)
NO_OPERATION = Problem(
    code=Code.ROUTE_NOT_FOUND,
    detail="This API serves only its listed operations, and this is none of them. Check the path against the API document.",
    payment_state="none",
)
LOOP = Problem(
    code=Code.LOOP_DETECTED,
    detail="This call has passed through this gateway already: the endpoint of the listing leads back to it. Report it to the provider.",
    payment_state="none",
)


def explain_block(block: BlockedWallet) -> Problem:
    """The refusal of a call that a blocked wallet pays for."""
    return Problem(
        code=Code.WALLET_BLOCKED,
        detail=f"{describe_block(block)} Ask the operator, or use another wallet.",
        payment_state="none",
    )


def explain_failure(exc: TollwayError | ClientGone) -> Problem:
    """The problem of a call without a response. All failures to connect get the same text: the caller learns nothing about the
    upstream's network."""
    if isinstance(exc, ClientGone):
        return Problem(
            code=Code.INVALID_REQUEST,
            detail="The client closed the connection before the request was complete.",
        )
    if isinstance(exc, UpstreamBadResponse) and isinstance(exc.__cause__, OSError):
        return Problem(
            code=Code.UPSTREAM_TIMEOUT,
            detail=f"The provider's API closed the connection before it responded. {_AFTER_SENDING}",
            reason="connection_lost",
        )
    if isinstance(exc, UpstreamBadResponse | UpstreamTimeout):
        return replace(exc.problem, detail=f"{exc.problem.detail} {_AFTER_SENDING}")
    return exc.problem


_AFTER_SENDING = "Where `paymentState` is `held`, read the call in your history and do not pay again; else send the request again."


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


PROXY_ERRORS_KEPT = 256
"""Pairs of a code and a reason; there are fewer."""
_PROXY_ERRORS_BY_REASON = {
    "connection_lost": "connection_terminated",
    "response_head_too_large": "http_response_header_section_size",
}


@lru_cache(maxsize=PROXY_ERRORS_KEPT)
def name_proxy_error(code: Code, reason: str | None) -> str:
    """The registered error type of a problem (RFC 9209 §2.3)."""
    if reason in _PROXY_ERRORS_BY_REASON:
        return _PROXY_ERRORS_BY_REASON[reason]
    return _PROXY_ERRORS.get(code, "http_request_denied")


def authorization_used(call_id: CallId | None, state: CallState) -> Problem:
    """The authorisation pays another call, or this call, which cannot run again. Without a quote."""
    is_unsettled = state in (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)
    detail = "This authorisation has paid for a call already. Sign a new one for another call."
    if is_unsettled:
        detail = (
            "A call that is running, or whose outcome is unknown, holds this authorisation. Read that call in your history, "
            "and do not pay again before it has an outcome."
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
    """The authorisation is public on its chain, so it does not prove the payer any more. Without a quote."""
    return replace(
        authorization_used(call_id, state),
        detail="This authorisation may be public on its chain, so it does not prove the caller any more. Repeat the same request "
        "with the idempotency key of the first request, from the network of the first request, or with a proof of the paying "
        "wallet (ERC-8128 or SIGN-IN-WITH-X). Do not pay again.",
    )


def authorization_became_credit(call_id: CallId, transaction: TxHash) -> Problem:
    """The settlement moved the money after the call had been given up, so the money is credit."""
    return Problem(
        code=Code.PAYMENT_ALREADY_USED,
        detail="The authorisation was settled after its call had been given up, and its value is credit now. Repeat the "
        f"call with X-Payment-Tx: {transaction} and X-Signature. Do not pay again.",
        reason="authorization_became_credit",
        call_id=call_id,
        payment_state="released",
        members={"callIds": [call_id], "transaction": str(transaction)},
    )


def key_used(call_id: CallId, state: CallState) -> Problem:
    """The key names a call without a stored response. The payment of this request stays unused."""
    is_unsettled = state in (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN)
    detail = (
        "The call of this idempotency key is paid, and its response is not stored or has expired. Read that call in your "
        "history; for another call, use a fresh key."
    )
    if is_unsettled:
        detail = "The outcome of this idempotency key's call is not known yet. Read that call in your history, and do not pay again."
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
    """The same request is running. `payment_state` `charged`: its response costs and is still being read."""
    return Problem(
        code=Code.IDEMPOTENCY_IN_PROGRESS,
        detail="The same request is still running. After Retry-After, send it again with the same proof.",
        retry_after_s=1,
        call_id=call_id,
        payment_state=payment_state,
    )


RAIL_WITHDRAWN = Problem(
    code=Code.PAYMENT_METHOD_UNSUPPORTED,
    detail="This gateway cannot settle signed payments of this amount on this network at present. Nothing was spent; pay with "
    "another option of the terms.",
    reason="rail_withdrawn",
    payment_state="none",
)
NOT_COVERED = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="The wallet's balance does not cover this payment and the payments of its running calls. Wait for these calls, or add to "
    "the balance, then send the request again.",
    reason="insufficient_balance",
    payment_state="none",
)
KEY_REUSED = Problem(
    code=Code.IDEMPOTENCY_KEY_REUSED,
    detail="This wallet has used the idempotency key for another request. Nothing was spent; use a fresh key.",
    payment_state="none",
)
BUSY_CHANNEL = Problem(
    code=Code.CHANNEL_BUSY,
    detail="Another call has this channel. Send the same request again after Retry-After; for calls at once, open several channels (`salt`).",
    retry_after_s=1,
    payment_state="none",
)
WITHDRAWING_CHANNEL = Problem(
    code=Code.CHANNEL_BUSY,
    detail="A withdrawal of this channel has begun, so it takes no call until the withdrawal has ended. Pay with another option of the terms.",
    reason="withdrawal_pending",
    retry_after_s=60,
    payment_state="none",
)
DRAINING_CHANNEL = Problem(
    code=Code.CHANNEL_BUSY,
    detail="This channel is from before a restore of the gateway's database, or a refund of it has failed. The gateway claims what its calls owe; ask for the rest at the refund URL of the "
    "channel, and pay with another option of the terms.",
    reason="channel_draining",
    retry_after_s=60,
    payment_state="none",
)
UNCLAIMED_MAX = Problem(
    code=Code.CHANNEL_BUSY,
    detail="This payer owes the maximum that the gateway allows before the next claim on the chain. Send the same request again after Retry-After.",
    reason="unclaimed_max",
    retry_after_s=30,
    payment_state="none",
)
UNPAID_RECEIVER = Problem(
    code=Code.CHANNEL_BUSY,
    detail="The token refuses to pay the receiver of this channel now, so the channel takes no call. Pay with another option of the terms.",
    reason="receiver_refused",
    retry_after_s=60,
    payment_state="none",
)
DEPOSITS_WITHDRAWN = Problem(
    code=Code.CHANNEL_BUSY,
    detail="This gateway has no gas for a deposit on this network now. Nothing was spent: send the same request again after Retry-After, or pay with another option of the terms. A channel with a balance takes calls.",
    reason="gas",
    retry_after_s=60,
    payment_state="none",
)
