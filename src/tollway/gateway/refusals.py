"""Every refusal of the passage in words: what is wrong, and what to do about it. Which status a code gets is not known
here; which of them may carry terms (the law about 402) is.
"""

from collections.abc import Sequence

from tollway.errors import Code, FieldError, Problem
from tollway.gateway.exchange import Declined, IncomingCall, Offer
from tollway.identifiers import CallId
from tollway.ledger.call import CallState, Payment
from tollway.money import Asset, Price
from tollway.payments.terms import Due
from tollway.registry.listing import Shelf

OTHER_RAILS = frozenset({b"payment-signature", b"x-payment"})


def find_closed(shelf: Shelf | None, call: IncomingCall) -> Problem | None:
    """In the order of the contract: 404, 410, 503, 405; before any question of money."""
    if shelf is None:
        return NOT_FOUND
    listing = shelf.listing
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
    if (
        listing.methods
        and _priced_method(call.method) not in listing.methods
        and call.method not in listing.methods
    ):
        return Problem(
            code=Code.METHOD_NOT_ALLOWED,
            detail=f"This API takes {', '.join(listing.methods)}.",
            payment_state="none",
            members={"allow": list(listing.methods)},
        )
    return None


def _priced_method(method: str) -> str:
    """HEAD costs what GET costs."""
    return "GET" if method == "HEAD" else method


def find_other_rail(call: IncomingCall) -> Problem | None:
    for name, value in call.headers:
        if name in OTHER_RAILS or (name == b"authorization" and value[:8].lower() == b"payment "):
            return Problem(
                code=Code.INVALID_REQUEST,
                detail="The request shows more than one kind of payment; send one.",
                reason="more_than_one_rail",
                payment_state="none",
            )
    return None


def check_price_max(call: IncomingCall, due: Due) -> Problem | None:
    text = call.find_header(b"tollway-max-price")
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
    if due.price.nano <= price_max.nano:
        return None
    return Problem(
        code=Code.PRICE_ABOVE_MAX,
        detail=f"The call costs {due.price.text} {due.asset.symbol}, more than the {price_max.text} that was allowed.",
        payment_state="released",
    )


def ask_payment(offer: Offer) -> Problem:
    listing = offer.shelf.listing
    return Problem(
        code=Code.PAYMENT_REQUIRED,
        detail=f"This call costs {offer.price.text} {listing.currency}. Send the amount to payTo on one of the networks "
        "in payment.options, then repeat the call with X-Payment-Tx and X-Signature.",
        payment_state="none",
    )


def decline(problem: Problem, offer: Offer) -> Declined:
    """Terms ride along only with refusals that may ask for money."""
    if problem.code in _ASKING:
        return Declined(problem=problem, offer=offer)
    return Declined(problem=problem)


def insufficient(payment: Payment, asset: Asset, due: Due, *, rest_units: int) -> Problem:
    """Some value, less than the price; sending the difference is enough."""
    there, missing = asset.format_units(rest_units), asset.format_units(due.units - rest_units)
    return Problem(
        code=Code.PAYMENT_INSUFFICIENT,
        detail=f"{there} {asset.symbol} is left and the call costs {due.price.text}; send the missing {missing} "
        f"{asset.symbol} to {payment.payee} and show either transaction.",
        payment_state="released",
        members={"available": there, "missing": missing, "currency": asset.symbol},
    )


def already_used(call_ids: Sequence[CallId], *, is_unsettled: bool) -> Problem:
    """Nothing is left. Never with terms: whoever pays by itself would pay twice."""
    detail = "All of this payment's value is spent."
    if is_unsettled:
        detail = (
            "What is left of this payment is held by a call whose outcome is unknown; ask for its record."
        )
    return Problem(
        code=Code.PAYMENT_ALREADY_USED,
        detail=detail,
        call_id=call_ids[0] if call_ids else None,
        payment_state="held" if is_unsettled else "charged",
        members={"callIds": list(call_ids)},
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


_ASKING = frozenset({Code.PAYMENT_REQUIRED, Code.PAYMENT_INSUFFICIENT, Code.PAYMENT_VERIFICATION_FAILED})
NOT_FOUND = Problem(code=Code.API_NOT_FOUND, detail="There is no API of this id.", payment_state="none")
UNREACHABLE = Problem(
    code=Code.UPSTREAM_UNREACHABLE,
    detail="The provider's API could not be reached; nothing was sent.",
    payment_state="released",
)
BOUND_REQUIRED = Problem(
    code=Code.INVALID_REQUEST,
    detail="This payment or API counts only with a signature bound to the request: X-Signature-Params is missing.",
    reason="bound_signature_required",
    errors=(FieldError(code="missing", detail="is required here", parameter="X-Signature-Params"),),
    payment_state="released",
)
OTHER_CURRENCY = Problem(
    code=Code.PAYMENT_VERIFICATION_FAILED,
    detail="The payment is in a currency that this listing no longer asks for.",
    reason="wrong_token",
    payment_state="none",
)
HELD = Problem(
    code=Code.PAYMENT_HELD,
    detail="The payment is held since this gateway's books were restored, until the operator releases it.",
    payment_state="held",
)
GONE = Problem(
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
