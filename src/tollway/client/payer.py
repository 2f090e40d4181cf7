"""The payer: one call, from the first request to its answer, paying on the way. A generator without I/O.

It yields steps (`client/steps.py`) and is sent their outcomes, so the synchronous and the asynchronous client, and the
tests, drive the very same flow. It has no clock, no randomness and no key.

Rules it keeps:

* nothing is paid that exceeds what the caller allows, by amounts that the gateway cannot talk up;
* a payment is on disk before anybody can see it, and a payee with an unresolved payment of ours is not paid again;
* only a 402 of the gateway itself can lead to a payment; an answer relayed from an upstream never does;
* at most one payment and one payment of a difference are made for one call.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tollway.client.checkout import Rules, Short, pay_offer
from tollway.client.failures import (
    CallHeld,
    CannotPay,
    GatewayUnreachable,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
)
from tollway.client.quote import Offer, parse_amount, read_missing, read_offers
from tollway.client.steps import (
    Answer,
    Broken,
    Flow,
    Headers,
    Learn,
    Pause,
    Recall,
    Send,
    SignCall,
    Transfer,
    TransferState,
)
from tollway.client.transfer import Purse, settle
from tollway.errors import Code
from tollway.identifiers import TxHash

PAYMENTS_MAX = 2
CREDITS_MAX = 8
ROUNDS_MAX = 500
PREPAY_MAX = 100_000
SENDS_MAX = 60
BROKEN_RETRIES_MAX = 2
RETRY_AFTER_S = 2
RETRY_AFTER_MAX_S = 60

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

MARKED_REFUSED = frozenset({Code.PAYMENT_VERIFICATION_FAILED.value, Code.PAYMENT_TOO_OLD.value})
"""Said about the payment itself, not about the wallet or the way: kept in mind until a later call proves otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """How a call ended: the head of its answer, and the payment that bought it (None: it was free, or not served)."""

    answer: Answer
    transfer: Transfer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spent:
    """This payment has nothing left for this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _NotCounted:
    answer: Answer
    reason: str | None


_Verdict = Paid | _Spent | Short | _NotCounted


def pay_flow(purse: Purse, rules: Rules) -> Flow[Paid]:
    """One call. Ends with its answer, whatever that says, or raises a `CallerFailure`."""
    if not 1 <= rules.prepay <= PREPAY_MAX:
        raise ValueError(f"prepay is a number of calls from 1 to {PREPAY_MAX}")
    queue = list((yield from _recall()))
    tried: set[TxHash] = set()
    made: set[TxHash] = set()
    refused: list[tuple[Transfer, _NotCounted]] = []
    offers: tuple[Offer, ...] | None = None
    is_recalled = False
    short: Short | None = None
    for _ in range(ROUNDS_MAX):
        if queue:
            transfer = queue.pop(0)
            if transfer.tx_hash in tried:
                continue
            tried.add(transfer.tx_hash)
            verdict = yield from _spend(transfer, rules)
            match verdict:
                case Paid():
                    return verdict
                case Short():
                    offers = read_offers(verdict.problem) or offers
                    short = verdict
                case _NotCounted():
                    refused.append((transfer, verdict))
                case _Spent():
                    pass
                case None if transfer.tx_hash in made:
                    raise CannotPay("The transfer failed on the chain.", transaction=transfer.tx_hash)
        elif offers is None:
            answer = yield from _ask_terms(rules)
            if answer.code != Code.PAYMENT_REQUIRED.value:
                return Paid(answer=answer)
            offers = read_offers(answer.problem or {})
        elif not is_recalled:
            queue = list((yield from _recall(offers)))
            is_recalled = True
        else:
            _raise_if_refused(refused, offers)
            if len(made) == PAYMENTS_MAX:
                break
            payment = yield from pay_offer(offers, short, purse, rules, frozenset(tried))
            if payment.transfer.tx_hash in tried:  # unresolved, and the gateway has just said no to it
                break
            if payment.is_new:
                made.add(payment.transfer.tx_hash)
            if payment.is_spoken_for:  # it will be spent by the call that made it; then it is our turn to pay
                yield from settle(payment.transfer, rules.patience)
                is_recalled = False
                continue
            queue = [payment.transfer]
            short = None
    raise PaymentPending(
        "Other calls of this wallet spent what was paid for this one. Repeat it, or pay for more calls at once."
    )


def free_flow(rules: Rules) -> Flow[Paid]:
    """One call without a wallet: whatever costs nothing."""
    answer = yield from _send_unsigned(rules)
    if answer.code == Code.PAYMENT_REQUIRED.value:
        raise CannotPay(f"{_detail(answer)} There is no wallet to pay with.")
    return Paid(answer=answer)


def _recall(offers: Iterable[Offer] = ()) -> Flow[tuple[Transfer, ...]]:
    known = yield Recall(payees=tuple(dict.fromkeys(offer.pay_to for offer in offers)))
    assert isinstance(known, tuple)
    return tuple(entry for entry in known if isinstance(entry, Transfer))[:CREDITS_MAX]


def _raise_if_refused(refused: Sequence[tuple[Transfer, _NotCounted]], offers: Sequence[Offer]) -> None:
    """A payee that holds money of ours which the gateway does not count is not sent more."""
    for transfer, verdict in refused:
        if any(offer.pay_to == transfer.pay_to for offer in offers):
            problem = verdict.answer.problem or {}
            raise PaymentRefused(
                f"The gateway does not count the payment {transfer.tx_hash} of {transfer.describe()}: "
                f"{problem.get('detail') or verdict.answer.code}",
                transaction=transfer.tx_hash,
                reason=verdict.reason,
            )


# ---- Without a payment.


def _ask_terms(rules: Rules) -> Flow[Answer]:
    """The unsigned call. A `HEAD` gets no body with its 402, so the terms are asked by the `GET` of the same price."""
    answer = yield from _send_unsigned(rules)
    if answer.is_bare_402:
        asked = yield Send(method="GET")
        if isinstance(asked, Answer):
            return asked
    return answer


def _send_unsigned(rules: Rules) -> Flow[Answer]:
    cap = rules.max_price.text_for(None)
    headers: Headers = () if cap is None else (("Tollway-Max-Price", cap),)
    broken: Broken | None = None
    for _ in range(1 + (BROKEN_RETRIES_MAX if rules.is_repeatable else 0)):
        outcome = yield Send(headers=headers)
        if isinstance(outcome, Answer):
            if outcome.code == Code.PRICE_ABOVE_MAX.value:
                raise PriceAboveMax(_detail(outcome))
            return outcome
        assert isinstance(outcome, Broken)
        broken = outcome
    assert broken is not None
    raise GatewayUnreachable(broken.detail, is_sent=broken.is_sent)


# ---- With a payment that exists.


def _spend(transfer: Transfer, rules: Rules) -> Flow[_Verdict | None]:
    """Calls with this payment. None: it turned out to be worth nothing."""
    state = yield from settle(transfer, rules.patience)
    if state not in (TransferState.CONFIRMED, TransferState.REFUSED):
        return None
    answer = yield from _send_signed(transfer, rules)
    return (yield from _judge(transfer, answer))


def _send_signed(transfer: Transfer, rules: Rules) -> Flow[Answer]:
    """Sends until the answer is more than "not yet". Always the same proof: its nonce makes repeats harmless."""
    proof = yield from _sign(transfer, rules)
    is_signed_anew = False
    broken = 0
    waited_s = 0.0
    for _ in range(SENDS_MAX):
        outcome = yield Send(headers=proof)
        if isinstance(outcome, Broken):
            broken += 1
            may_repeat = rules.is_repeatable or not outcome.is_sent
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                raise GatewayUnreachable(
                    outcome.detail, is_sent=outcome.is_sent, transaction=transfer.tx_hash
                )
            yield Pause(seconds=rules.patience.poll_s)
            continue
        assert isinstance(outcome, Answer)
        if outcome.code == Code.SIGNATURE_EXPIRED.value and not is_signed_anew:
            proof = yield from _sign(transfer, rules)
            is_signed_anew = True
            continue
        told_s = outcome.retry_after_s
        pause_s = RETRY_AFTER_S if told_s is None else min(told_s, RETRY_AFTER_MAX_S)
        if outcome.code not in SAME_PROOF_AGAIN or waited_s + pause_s > rules.patience.wait_s:
            return outcome
        yield Pause(seconds=pause_s)
        waited_s += pause_s
    raise PaymentPending("The gateway keeps saying: not yet.", transaction=transfer.tx_hash)


def _sign(transfer: Transfer, rules: Rules) -> Flow[Headers]:
    signed = yield SignCall(chain_id=transfer.chain_id, tx_hash=transfer.tx_hash)
    assert isinstance(signed, tuple)
    cap = rules.max_price.text_for(transfer.asset.symbol)
    if cap is None:
        raise PriceAboveMax(f"No price in {transfer.asset.symbol} is allowed; name one in max_price.")
    headers: list[tuple[str, str]] = [("Tollway-Max-Price", cap)]
    headers += [entry for entry in signed if isinstance(entry, tuple)]
    return tuple(headers)


def _judge(transfer: Transfer, answer: Answer) -> Flow[_Verdict]:
    """What the answer to a signed call means for its payment. Everything unknown is handed to the caller."""
    code = answer.code
    if code == Code.PAYMENT_ALREADY_USED.value:
        if (answer.problem or {}).get("paymentState") != "held":  # held prices come back as credit
            yield Learn(tx_hash=transfer.tx_hash, state=TransferState.CONFIRMED, rest=0)
        return _Spent()
    if code == Code.PAYMENT_INSUFFICIENT.value:
        missing = read_missing(answer.problem or {}, transfer.asset)
        return Short(transfer=transfer, missing=missing, problem=answer.problem or {})
    if code in NOT_COUNTED:
        if code in MARKED_REFUSED:
            yield Learn(tx_hash=transfer.tx_hash, state=TransferState.REFUSED)
        reason = (answer.problem or {}).get("reason")
        return _NotCounted(answer=answer, reason=reason if isinstance(reason, str) else None)
    if code == Code.PRICE_ABOVE_MAX.value:
        raise PriceAboveMax(_detail(answer), transaction=transfer.tx_hash)
    if _is_held(answer) or code == Code.NONCE_REUSED.value:
        raise _held(transfer, answer)
    if code in SAME_PROOF_AGAIN or code == Code.PAYMENT_HELD.value:
        raise PaymentPending(_detail(answer), transaction=transfer.tx_hash)
    rest = _read_rest(transfer, answer)
    if rest is not None or transfer.state is TransferState.REFUSED:
        yield Learn(tx_hash=transfer.tx_hash, state=TransferState.CONFIRMED, rest=rest)
    return Paid(answer=answer, transfer=transfer)


def _is_held(answer: Answer) -> bool:
    told = (answer.problem or {}).get("paymentState")
    is_passing = answer.code in SAME_PROOF_AGAIN and answer.code != Code.STORAGE_UNAVAILABLE.value
    is_held = answer.headers.get("tollway-payment-state") == "held" or told == "held"
    return is_held and not is_passing and answer.code != Code.PAYMENT_HELD.value


def _held(transfer: Transfer, answer: Answer) -> CallHeld:
    problem = answer.problem or {}
    call_id = problem.get("callId") or answer.headers.get("tollway-call-id")
    call_url = problem.get("call")
    return CallHeld(
        _detail(answer),
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


def _detail(answer: Answer) -> str:
    return str((answer.problem or {}).get("detail") or f"The gateway answered {answer.status}.")
