"""What an answer to a signed call means for the payment that was shown. Pure.

It never pays and never sends; everything that it does not know is handed to the caller as it is.
"""

from dataclasses import dataclass

from tollway.client.errors import CallHeld, PaymentPending, PriceAboveMax
from tollway.client.quote import parse_amount, read_missing
from tollway.client.steps import (
    CountServedCalls,
    Flow,
    GatewayResponse,
    RecordTransferState,
    SignedAuthorization,
    Transfer,
    TransferState,
)
from tollway.client.transfer import InsufficientCredit
from tollway.errors import Code

REPEAT_CODES = frozenset(
    {
        Code.PAYMENT_PENDING.value,
        Code.CHAIN_UNAVAILABLE.value,
        Code.STORAGE_UNAVAILABLE.value,
        Code.OVERLOADED.value,
        Code.IDEMPOTENCY_IN_PROGRESS.value,
    }
)
"""Not yet: the same headers again, after `Retry-After`. The nonce in them counts once, so no retry is charged twice."""

REJECTED_CODES = frozenset(
    {
        Code.PAYMENT_VERIFICATION_FAILED.value,
        Code.PAYMENT_TOO_OLD.value,
        Code.PAYER_MISMATCH.value,
        Code.PAYER_IN_DEBT.value,
        Code.PAYMENT_REQUIRED.value,  # shown and yet asked for: this gateway does not see our headers
    }
)

NO_OUTCOME_CODES = (
    REJECTED_CODES
    | REPEAT_CODES
    | {
        Code.PAYMENT_ALREADY_USED.value,
        Code.PAYMENT_INSUFFICIENT.value,
        Code.PRICE_ABOVE_MAX.value,
        Code.SIGNATURE_EXPIRED.value,
    }
)
"""Refusals that tell nothing of an earlier sending of the same call, whatever payment state they name."""

KEY_USED = "idempotency_key_used"

REFUSED_CODES = frozenset({Code.PAYMENT_VERIFICATION_FAILED.value, Code.PAYMENT_TOO_OLD.value})
"""Said about the payment itself, not about the wallet or the way: kept in mind until a later call proves otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """How a call ended: the head of its answer, and what it was shown: a payment, or an authorisation (neither: it
    was free, or refused for another reason)."""

    response: GatewayResponse
    transfer: Transfer | None = None
    authorization: SignedAuthorization | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentExhausted:
    """This payment has nothing left for this call. `is_ours`: other calls of this wallet were served for it."""

    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditHeld:
    """What is left of this payment is held by calls without an outcome. It may come back, so nothing else is paid."""

    transfer: Transfer
    response: GatewayResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRejected:
    response: GatewayResponse
    reason: str | None


PaymentOutcome = CallResult | PaymentExhausted | CreditHeld | InsufficientCredit | PaymentRejected


def decide_outcome(transfer: Transfer, response: GatewayResponse) -> Flow[PaymentOutcome]:
    """What the answer to a signed call means for its payment. Everything unknown is handed to the caller."""
    code = response.code
    if code == Code.PAYMENT_ALREADY_USED.value:
        if is_key_used(response):
            raise build_call_held(transfer, response)
        if (response.problem or {}).get("paymentState") == "held":  # it may come back as credit
            return CreditHeld(transfer=transfer, response=response)
        served = yield CountServedCalls(tx_hash=transfer.tx_hash)
        yield RecordTransferState(tx_hash=transfer.tx_hash, state=TransferState.CONFIRMED, rest=0)
        return PaymentExhausted(is_ours=isinstance(served, int) and served > 0)
    if code == Code.PAYMENT_INSUFFICIENT.value:
        missing = read_missing(response.problem or {}, transfer.asset)
        return InsufficientCredit(transfer=transfer, missing=missing, response=response)
    if code in REJECTED_CODES:
        if code in REFUSED_CODES:
            yield RecordTransferState(tx_hash=transfer.tx_hash, state=TransferState.REFUSED)
        reason = (response.problem or {}).get("reason")
        return PaymentRejected(response=response, reason=reason if isinstance(reason, str) else None)
    if code == Code.PRICE_ABOVE_MAX.value:
        raise PriceAboveMax(read_detail(response), transaction=transfer.tx_hash)
    if _is_held(response) or code == Code.NONCE_REUSED.value:
        raise build_call_held(transfer, response)
    if code in REPEAT_CODES or code == Code.PAYMENT_HELD.value:
        raise PaymentPending(read_detail(response), transaction=transfer.tx_hash)
    rest = _read_rest(transfer, response)
    is_served = response.headers.get("tollway-payment-state") == "charged"
    if is_served or rest is not None or transfer.state is TransferState.REFUSED:
        state = TransferState.CONFIRMED
        yield RecordTransferState(tx_hash=transfer.tx_hash, state=state, rest=rest, is_served=is_served)
    return CallResult(response=response, transfer=transfer)


def is_key_used(response: GatewayResponse) -> bool:
    """What is used is the idempotency key: its call has no answer to give out. That says nothing of what was shown."""
    return (response.problem or {}).get("reason") == KEY_USED


def _is_held(response: GatewayResponse) -> bool:
    text = (response.problem or {}).get("paymentState")
    is_passing = response.code in REPEAT_CODES and response.code != Code.STORAGE_UNAVAILABLE.value
    is_held = response.headers.get("tollway-payment-state") == "held" or text == "held"
    return is_held and not is_passing and response.code != Code.PAYMENT_HELD.value


def build_call_held(transfer: Transfer, response: GatewayResponse, detail: str | None = None) -> CallHeld:
    problem = response.problem or {}
    call_id = problem.get("callId") or response.headers.get("tollway-call-id")
    call_url = problem.get("call")
    return CallHeld(
        detail or read_detail(response),
        transaction=transfer.tx_hash,
        call_id=str(call_id) if call_id else None,
        call_url=str(call_url) if call_url else None,
    )


def _read_rest(transfer: Transfer, response: GatewayResponse) -> int | None:
    """What is left by the gateway's own headers, in base units: its word, or our belief minus the price."""
    decimals = transfer.asset.decimals
    text = response.headers.get("tollway-credit-remaining", "").partition(" ")
    rest = parse_amount(text[0], decimals=decimals) if text[2] == transfer.asset.symbol else None
    if rest is not None:
        return min(rest, transfer.amount)
    if response.headers.get("tollway-payment-state") != "charged":
        return None
    price = parse_amount(response.headers.get("tollway-price", "").partition(" ")[0], decimals=decimals)
    return None if price is None else max(0, transfer.rest - price)


def read_detail(response: GatewayResponse) -> str:
    return str((response.problem or {}).get("detail") or f"The gateway answered {response.status}.")


def names_outcome(response: GatewayResponse) -> bool:
    """Whether an answer tells what became of a call that was sent before: the answer itself, or a refusal that names
    the state of this call's price. That another payment is due, or a fresh signature, tells nothing of it."""
    if response.problem is None or response.code == Code.NONCE_REUSED.value:
        return True
    is_named = response.problem.get("paymentState") in ("charged", "released", "held")
    return is_named and response.code not in NO_OUTCOME_CODES


def advise_lookup(transfer: Transfer) -> str:
    """What a caller can do about a call that may have been served."""
    return f"Look at /payments/{transfer.tx_hash} and at /history before you repeat it or pay."
