"""Rules: the outcome of a payment by the gateway's response to a signed call. Pure.

They never pay and never send. A response without a rule goes to the caller unchanged.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tollway.client.call_io import (
    CallIo,
    GatewayResponse,
    OwnVoucher,
    PaymentProgress,
    SignedAuthorization,
    Transfer,
    TransferState,
)
from tollway.client.errors import CallHeld, PaymentPending, PolicyExceeded, PriceAboveMax
from tollway.client.quote import parse_amount, read_missing
from tollway.client.transfer import InsufficientCredit, Patience
from tollway.errors import Code
from tollway.ids import TxHash

REPEAT_CODES = frozenset(
    {
        Code.PAYMENT_PENDING.value,
        Code.CHAIN_UNAVAILABLE.value,
        Code.STORAGE_UNAVAILABLE.value,
        Code.OVERLOADED.value,
        Code.IDEMPOTENCY_IN_PROGRESS.value,
    }
)
"""Codes without a decision: the client sends the same headers again after `Retry-After`. Their nonce counts once, so no repeat is
charged twice."""

RETRY_AFTER_S = 2
RETRY_AFTER_MAX_S = 60

REJECTED_CODES = frozenset(
    {
        Code.PAYMENT_VERIFICATION_FAILED.value,
        Code.PAYMENT_TOO_OLD.value,
        Code.PAYER_MISMATCH.value,
        Code.PAYER_IN_DEBT.value,
        Code.PAYMENT_REQUIRED.value,  # although a payment was sent: this gateway ignores the headers
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
"""Refusals that say nothing about an earlier request of the same call, with any payment state."""

KEY_USED = "idempotency_key_used"

REFUSED_CODES = frozenset({Code.PAYMENT_VERIFICATION_FAILED.value, Code.PAYMENT_TOO_OLD.value})
"""Refusals of the payment itself, not of the wallet or the request: stored until a later call shows otherwise."""


@dataclass(slots=True, kw_only=True)
class RepeatWait:
    """The pauses of one signed call between its repeats, on every rail. `chain_s`: those since the chain of the gateway is away, without a break."""

    patience: Patience
    waited_s: float = 0.0
    chain_s: float = 0.0

    def next_pause_s(self, response: GatewayResponse) -> float | None:
        """Seconds until the same request is sent again, by `Retry-After`; None where the call has waited long enough for such a response."""
        named_s = response.retry_after_s
        pause_s = RETRY_AFTER_S if named_s is None else min(named_s, RETRY_AFTER_MAX_S)
        self.waited_s += pause_s
        self.chain_s = self.chain_s + pause_s if is_chain_away(response) else 0.0
        is_over = self.waited_s > self.patience.wait_s or self.chain_s > self.patience.chain_wait_s
        return None if is_over else pause_s


def is_chain_away(response: GatewayResponse) -> bool:
    """Whether the gateway cannot check a payment, because its chain nodes do not respond. It has settled and forwarded nothing then."""
    return response.code == Code.CHAIN_UNAVAILABLE.value


async def report_notice(
    io: CallIo, payment: Transfer | SignedAuthorization | OwnVoucher, response: GatewayResponse
) -> None:
    """Passes the gateway's words on while the call waits."""
    await io.report_progress(PaymentProgress(payment=payment, notice=quote_refusal(response)))


def quote_refusal(response: GatewayResponse) -> str:
    """The gateway's code and words."""
    return f"The gateway responds {response.code or response.status}: {read_detail(response)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The end of a call: the head of its response, and the transfer, the authorisation or the voucher that it carried (none: the call
    was free, or refused for another reason)."""

    response: GatewayResponse
    transfer: Transfer | None = None
    authorization: SignedAuthorization | None = None
    voucher: OwnVoucher | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentExhausted:
    """The payment has no credit left for this call. `is_ours`: it has paid other calls of this wallet."""

    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditHeld:
    """Calls without an outcome hold the rest of the payment. It may be released, so nothing else is paid."""

    transfer: Transfer
    response: GatewayResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentRejected:
    response: GatewayResponse
    reason: str | None


PaymentOutcome = CallResult | PaymentExhausted | CreditHeld | InsufficientCredit | PaymentRejected


async def decide_outcome(io: CallIo, transfer: Transfer, response: GatewayResponse) -> PaymentOutcome:
    """The outcome of a payment by the response to its call. An unknown code goes to the caller."""
    code = response.code
    if code == Code.PAYMENT_ALREADY_USED.value:
        if is_key_used(response):
            raise build_call_held(response, transaction=transfer.tx_hash)
        if (response.problem or {}).get("paymentState") == "held":  # it may become credit again
            return CreditHeld(transfer=transfer, response=response)
        served = await io.count_served_calls(transfer.tx_hash)
        await io.record_transfer_state(transfer.tx_hash, TransferState.CONFIRMED, 0)
        return PaymentExhausted(is_ours=served > 0)
    if code == Code.PAYMENT_INSUFFICIENT.value:
        missing = read_missing(response.problem or {}, transfer.asset)
        return InsufficientCredit(transfer=transfer, missing=missing, response=response)
    if code in REJECTED_CODES:
        if code in REFUSED_CODES:
            await io.record_transfer_state(transfer.tx_hash, TransferState.REFUSED)
        reason = (response.problem or {}).get("reason")
        return PaymentRejected(response=response, reason=reason if isinstance(reason, str) else None)
    if code == Code.PRICE_ABOVE_MAX.value:
        raise PriceAboveMax(read_detail(response), transaction=transfer.tx_hash)
    if response.is_measured_later:
        # What is left is known at the end of the body. The stored rest stays, which may be too high; the next response corrects it.
        await io.record_transfer_state(transfer.tx_hash, TransferState.CONFIRMED, is_served=True)
        return CallResult(response=response, transfer=transfer)
    if _is_held(response) or code == Code.NONCE_REUSED.value:
        raise build_call_held(response, transaction=transfer.tx_hash)
    if code in REPEAT_CODES or code == Code.PAYMENT_HELD.value:
        raise PaymentPending(
            f"{quote_refusal(response)} {advise_repeat(transfer)}",
            transaction=transfer.tx_hash,
            reason=code,
        )
    rest = _read_rest(transfer, response)
    is_served = response.headers.get("tollway-payment-state") == "charged"
    if is_served or rest is not None or transfer.state is TransferState.REFUSED:
        state = TransferState.CONFIRMED
        await io.record_transfer_state(transfer.tx_hash, state, rest, is_served=is_served)
    return CallResult(response=response, transfer=transfer)


def build_policy_exceeded(result: CallResult) -> PolicyExceeded:
    """The failure of a call that the policy of the wallet's owner does not cover. A member in another form counts as absent."""
    problem, transfer = result.response.problem or {}, result.transfer
    return PolicyExceeded(
        read_detail(result.response),
        transaction=None if transfer is None else transfer.tx_hash,
        reason=_read_text(problem, "reason", _WORD),
        limit=_read_text(problem, "limit", _WORD),
        left=_read_text(problem, "left", _DECIMAL),
        currency=_read_text(problem, "currency", _SYMBOL),
        resets_at=_read_moment(problem.get("resetsAt")),
    )


_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,18})?")
_SYMBOL = re.compile(r"[A-Za-z][A-Za-z0-9.\-]{0,31}")
_WORD = re.compile(r"[A-Za-z_]{1,32}")


def _read_text(problem: Mapping[str, object], name: str, form: re.Pattern[str]) -> str | None:
    value = problem.get(name)
    return value if isinstance(value, str) and form.fullmatch(value) else None


def _read_moment(value: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
        return None if moment is None or moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def is_key_used(response: GatewayResponse) -> bool:
    """Whether the idempotency key is used, and not the payment: its call has no stored response."""
    return (response.problem or {}).get("reason") == KEY_USED


def _is_held(response: GatewayResponse) -> bool:
    text = (response.problem or {}).get("paymentState")
    is_passing = response.code in REPEAT_CODES and response.code != Code.STORAGE_UNAVAILABLE.value
    is_held = response.headers.get("tollway-payment-state") == "held" or text == "held"
    return is_held and not is_passing and response.code != Code.PAYMENT_HELD.value


def build_call_held(
    response: GatewayResponse,
    detail: str | None = None,
    *,
    transaction: TxHash | None = None,
    is_retryable: bool = False,
) -> CallHeld:
    """The failure of a call that holds its price, with the call that the response names. `detail`: instead of that of the response."""
    problem = response.problem or {}
    call_id = problem.get("callId") or response.headers.get("tollway-call-id")
    call_url = problem.get("call")
    return CallHeld(
        detail or read_detail(response),
        transaction=transaction,
        call_id=str(call_id) if call_id else None,
        call_url=str(call_url) if call_url else None,
        is_retryable=is_retryable,
    )


def _read_rest(transfer: Transfer, response: GatewayResponse) -> int | None:
    """The rest of the payment in base units: by the gateway's header, or the stored rest minus the price."""
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
    return str(
        (response.problem or {}).get("detail") or f"The gateway responded with status {response.status}."
    )


def names_outcome(response: GatewayResponse) -> bool:
    """Whether a response gives the outcome of a call that was sent before: a response of the upstream, or a refusal with
    the state of this call's price. A request for another payment or for a new signature does not."""
    if response.problem is None or response.code == Code.NONCE_REUSED.value:
        return True
    is_named = response.problem.get("paymentState") in ("charged", "released", "held")
    return is_named and response.code not in NO_OUTCOME_CODES


def advise_repeat(transfer: Transfer) -> str:
    """Advice about a call that the gateway has not decided."""
    return (
        f"The payment {transfer.tx_hash} of {transfer.describe()} stays usable. Repeat the same request later: it uses "
        "this payment, and nothing is paid again."
    )


def advise_lookup(transfer: Transfer) -> str:
    """Advice about a call that may have been served."""
    return f"Check /payments/{transfer.tx_hash} and /history before you repeat it or pay."
