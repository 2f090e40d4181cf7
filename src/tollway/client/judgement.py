"""What an answer to a signed call means for the payment that was shown. Pure.

It never pays and never sends; everything that it does not know is handed to the caller as it is.
"""

from dataclasses import dataclass

from tollway.client.checkout import Short
from tollway.client.failures import CallHeld, PaymentPending, PriceAboveMax
from tollway.client.quote import parse_amount, read_missing
from tollway.client.steps import (
    Answer,
    CountServed,
    Flow,
    Learn,
    SignedAuthorization,
    Transfer,
    TransferState,
)
from tollway.errors import Code

SAME_PROOF_AGAIN = frozenset(
    {
        Code.PAYMENT_PENDING.value,
        Code.CHAIN_UNAVAILABLE.value,
        Code.STORAGE_UNAVAILABLE.value,
        Code.OVERLOADED.value,
        Code.IDEMPOTENCY_IN_PROGRESS.value,
    }
)
"""Not yet: the same headers again, after `Retry-After`. The nonce in them counts once, so no retry is charged twice."""

NOT_COUNTED = frozenset(
    {
        Code.PAYMENT_VERIFICATION_FAILED.value,
        Code.PAYMENT_TOO_OLD.value,
        Code.PAYER_MISMATCH.value,
        Code.PAYER_IN_DEBT.value,
        Code.PAYMENT_REQUIRED.value,  # shown and yet asked for: this gateway does not see our headers
    }
)

NO_OUTCOME = (
    NOT_COUNTED
    | SAME_PROOF_AGAIN
    | {
        Code.PAYMENT_ALREADY_USED.value,
        Code.PAYMENT_INSUFFICIENT.value,
        Code.PRICE_ABOVE_MAX.value,
        Code.SIGNATURE_EXPIRED.value,
    }
)
"""Refusals that tell nothing of an earlier sending of the same call, whatever payment state they name."""

KEY_USED = "idempotency_key_used"

MARKED_REFUSED = frozenset({Code.PAYMENT_VERIFICATION_FAILED.value, Code.PAYMENT_TOO_OLD.value})
"""Said about the payment itself, not about the wallet or the way: kept in mind until a later call proves otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """How a call ended: the head of its answer, and what it was shown: a payment, or an authorisation (neither: it
    was free, or refused for another reason)."""

    answer: Answer
    transfer: Transfer | None = None
    authorization: SignedAuthorization | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """This payment has nothing left for this call. `is_ours`: other calls of this wallet were served for it."""

    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """What is left of this payment is held by calls without an outcome. It may come back, so nothing else is paid."""

    transfer: Transfer
    answer: Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCounted:
    answer: Answer
    reason: str | None


Verdict = Paid | Spent | Busy | Short | NotCounted


def judge(transfer: Transfer, answer: Answer) -> Flow[Verdict]:
    """What the answer to a signed call means for its payment. Everything unknown is handed to the caller."""
    code = answer.code
    if code == Code.PAYMENT_ALREADY_USED.value:
        if is_key_used(answer):
            raise call_held(transfer, answer)
        if (answer.problem or {}).get("paymentState") == "held":  # it may come back as credit
            return Busy(transfer=transfer, answer=answer)
        served = yield CountServed(tx_hash=transfer.tx_hash)
        yield Learn(tx_hash=transfer.tx_hash, state=TransferState.CONFIRMED, rest=0)
        return Spent(is_ours=isinstance(served, int) and served > 0)
    if code == Code.PAYMENT_INSUFFICIENT.value:
        missing = read_missing(answer.problem or {}, transfer.asset)
        return Short(transfer=transfer, missing=missing, answer=answer)
    if code in NOT_COUNTED:
        if code in MARKED_REFUSED:
            yield Learn(tx_hash=transfer.tx_hash, state=TransferState.REFUSED)
        reason = (answer.problem or {}).get("reason")
        return NotCounted(answer=answer, reason=reason if isinstance(reason, str) else None)
    if code == Code.PRICE_ABOVE_MAX.value:
        raise PriceAboveMax(tell_detail(answer), transaction=transfer.tx_hash)
    if _is_held(answer) or code == Code.NONCE_REUSED.value:
        raise call_held(transfer, answer)
    if code in SAME_PROOF_AGAIN or code == Code.PAYMENT_HELD.value:
        raise PaymentPending(tell_detail(answer), transaction=transfer.tx_hash)
    rest = _read_rest(transfer, answer)
    is_served = answer.headers.get("tollway-payment-state") == "charged"
    if is_served or rest is not None or transfer.state is TransferState.REFUSED:
        state = TransferState.CONFIRMED
        yield Learn(tx_hash=transfer.tx_hash, state=state, rest=rest, is_served=is_served)
    return Paid(answer=answer, transfer=transfer)


def is_key_used(answer: Answer) -> bool:
    """What is used is the idempotency key: its call has no answer to give out. That says nothing of what was shown."""
    return (answer.problem or {}).get("reason") == KEY_USED


def _is_held(answer: Answer) -> bool:
    told = (answer.problem or {}).get("paymentState")
    is_passing = answer.code in SAME_PROOF_AGAIN and answer.code != Code.STORAGE_UNAVAILABLE.value
    is_held = answer.headers.get("tollway-payment-state") == "held" or told == "held"
    return is_held and not is_passing and answer.code != Code.PAYMENT_HELD.value


def call_held(transfer: Transfer, answer: Answer, detail: str | None = None) -> CallHeld:
    problem = answer.problem or {}
    call_id = problem.get("callId") or answer.headers.get("tollway-call-id")
    call_url = problem.get("call")
    return CallHeld(
        detail or tell_detail(answer),
        transaction=transfer.tx_hash,
        call_id=str(call_id) if call_id else None,
        call_url=str(call_url) if call_url else None,
    )


def _read_rest(transfer: Transfer, answer: Answer) -> int | None:
    """What is left by the gateway's own headers, in base units: its word, or our belief minus the price."""
    decimals = transfer.asset.decimals
    told = answer.headers.get("tollway-credit-remaining", "").partition(" ")
    rest = parse_amount(told[0], decimals=decimals) if told[2] == transfer.asset.symbol else None
    if rest is not None:
        return min(rest, transfer.amount)
    if answer.headers.get("tollway-payment-state") != "charged":
        return None
    price = parse_amount(answer.headers.get("tollway-price", "").partition(" ")[0], decimals=decimals)
    return None if price is None else max(0, transfer.rest - price)


def tell_detail(answer: Answer) -> str:
    return str((answer.problem or {}).get("detail") or f"The gateway answered {answer.status}.")


def is_outcome(answer: Answer) -> bool:
    """Whether an answer tells what became of a call that was sent before: the answer itself, or a refusal that names
    the state of this call's price. That another payment is due, or a fresh signature, tells nothing of it."""
    if answer.problem is None or answer.code == Code.NONCE_REUSED.value:
        return True
    is_told = answer.problem.get("paymentState") in ("charged", "released", "held")
    return is_told and answer.code not in NO_OUTCOME


def look_up(transfer: Transfer) -> str:
    """What a caller can do about a call that may have been served."""
    return f"Look at /payments/{transfer.tx_hash} and at /history before you repeat it or pay."
