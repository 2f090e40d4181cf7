"""Refusals of signed payments (x402, MPP) and of idempotency keys, in words. None of those that may mean moved money
carries terms.
"""

from dataclasses import replace

from tollway.errors import Code, Problem
from tollway.identifiers import CallId, TxHash
from tollway.ledger.call import CallState


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
