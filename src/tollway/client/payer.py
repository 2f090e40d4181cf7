"""The payer: one call, from the first request to its answer, paying on the way. A generator without I/O.

It yields steps (`client/steps.py`) and is sent their outcomes, so the synchronous and the asynchronous client, and the
tests, drive the very same flow. It has no clock, no randomness and no key.

Rules it keeps:

* nothing is paid that exceeds what the caller allows, by amounts that the gateway cannot talk up;
* a payment is on disk before anybody can see it, and a payee with an unresolved payment of ours is not paid again;
* only a 402 of the gateway itself can lead to a payment; an answer relayed from an upstream never does;
* a call pays once; after that only a difference, to the same payee in the same asset, and all of it within the cap.
  A second whole payment follows only when the wallet's own books say that the first one bought another call of ours;
* a signed call that may have arrived is repeated with the same proof or not at all, and nothing is paid after it;
* one authorisation a call, and a second payment only after a 402 (`client/authorizing.py`). A gateway that says 402 can
  still cash the first: all that a call signs stays within `max_price`. Which rail pays: `client/rails.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tollway.client.authorizing import Unpaid, show_authorization
from tollway.client.checkout import Rules, Short
from tollway.client.failures import (
    CannotPay,
    GatewayUnreachable,
    NotPaid,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
)
from tollway.client.finality import expire_released
from tollway.client.judgement import (
    SAME_PROOF_AGAIN,
    Busy,
    NotCounted,
    Paid,
    Spent,
    Verdict,
    call_held,
    is_outcome,
    judge,
    look_up,
    tell_detail,
)
from tollway.client.rails import Terms, pay_terms
from tollway.client.steps import (
    Answer,
    Broken,
    Flow,
    Headers,
    Pause,
    Recall,
    RecallAuthorization,
    Send,
    SignCall,
    SignedAuthorization,
    Transfer,
    TransferState,
)
from tollway.client.transfer import Made, Purse, settle
from tollway.errors import Code
from tollway.ids import Address, TxHash

PAYMENTS_MAX = 2
UNPAID_MAX = 1
CREDITS_MAX = 8
ROUNDS_MAX = 500
PREPAY_MAX = 100_000
SENDS_MAX = 60
BROKEN_RETRIES_MAX = 2
RETRY_AFTER_S = 2
RETRY_AFTER_MAX_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """`is_doubtful`: an earlier sending of the same proof left and got no answer."""

    answer: Answer
    is_doubtful: bool


def pay_flow(purse: Purse, rules: Rules) -> Flow[Paid]:
    """One call. Ends with its answer, whatever that says, or raises a `CallerFailure`."""
    _check(rules)
    left = yield from _show_left_over(rules)
    if isinstance(left, Paid):
        return left
    disowned: list[Unpaid] = [] if left is None else [left]
    queue = list((yield from _recall()))
    tried: set[TxHash] = set()
    made: list[Transfer] = []
    lost: set[TxHash] = set()
    refused: list[tuple[Transfer, NotCounted]] = []
    terms: Terms | None = None
    is_recalled, waited_s = False, 0.0
    short: Short | None = None
    busy: Busy | None = None
    for _ in range(ROUNDS_MAX):
        if queue:
            transfer = queue.pop(0)
            if transfer.tx_hash in tried:
                continue
            tried.add(transfer.tx_hash)
            verdict = yield from _spend(transfer, rules)
            if transfer in made:
                _raise_if_unspendable(transfer, verdict)
            match verdict:
                case Paid():
                    return verdict
                case Short():
                    terms = Terms.read(verdict.answer).or_else(terms)
                    short = verdict
                case NotCounted():
                    refused.append((transfer, verdict))
                case Busy():
                    busy = verdict
                case Spent():
                    lost.add(transfer.tx_hash)
        elif terms is None:
            answer = yield from _ask_terms(rules)
            if answer.code != Code.PAYMENT_REQUIRED.value:
                return Paid(answer=answer)
            terms = Terms.read(answer)
        elif not is_recalled:
            queue = list((yield from _recall(terms.payees)))
            is_recalled = True
        elif busy is not None:
            waited_s = yield from _wait_for(busy, waited_s, rules)
            tried.discard(busy.transfer.tx_hash)
            queue, busy = [busy.transfer], None
        else:
            _raise_if_refused(refused, terms)
            if len(made) == PAYMENTS_MAX and lost:
                break
            paid = [transfer for transfer in made if transfer.tx_hash not in lost]
            payment = yield from _pay(terms, short, purse, rules, frozenset(tried), paid, disowned)
            if isinstance(payment, Paid):
                return payment
            if payment.transfer.tx_hash in tried:  # unresolved, and the gateway has just said no to it
                break
            if payment.is_new:
                made.append(payment.transfer)
            if payment.is_spoken_for:  # it will be spent by the call that made it; then it is our turn to pay
                yield from settle(payment.transfer, rules.patience)
                is_recalled = False
                continue
            queue = [payment.transfer]
            short = None
    raise PaymentPending(
        "Other calls of this wallet spent what was paid for this one. Repeat it, or pay for more calls at once."
    )


def _check(rules: Rules) -> None:
    """Raises ValueError for rules that make no sense."""
    if not 1 <= rules.prepay <= PREPAY_MAX:
        raise ValueError(f"prepay is a number of calls from 1 to {PREPAY_MAX}")
    if rules.prepay > 1 and rules.rail == "x402":
        raise ValueError("an authorisation pays one call; prepay needs the rail tx or auto")


def _raise_if_unspendable(transfer: Transfer, verdict: Verdict | None) -> None:
    """About a payment that this very call has made: a gateway that does not take it gets no second one."""
    match verdict:
        case None:
            raise CannotPay("The transfer failed on the chain.", transaction=transfer.tx_hash)
        case Spent(is_ours=False):
            raise PaymentRefused(
                f"The gateway calls the payment {transfer.tx_hash} of {transfer.describe()} spent, and no other call"
                f" of this wallet is known to have used it. {look_up(transfer)}",
                transaction=transfer.tx_hash,
                reason=Code.PAYMENT_ALREADY_USED.value,
            )
        case NotCounted():
            raise _not_counted(transfer, verdict)
        case _:
            pass


def _wait_for(busy: Busy, waited_s: float, rules: Rules) -> Flow[float]:
    """Pauses until the payment may be free again, and gives the seconds waited in all. Raises `CallHeld`."""
    told_s = busy.answer.retry_after_s
    pause_s = RETRY_AFTER_S if told_s is None else max(1, told_s)
    if waited_s + pause_s > rules.patience.wait_s:
        raise call_held(busy.transfer, busy.answer)
    yield Pause(seconds=pause_s)
    return waited_s + pause_s


def free_flow(rules: Rules) -> Flow[Paid]:
    """One call without a wallet: whatever costs nothing."""
    answer = yield from _send_unsigned(rules)
    if answer.code == Code.PAYMENT_REQUIRED.value:
        raise CannotPay(f"{tell_detail(answer)} There is no wallet to pay with.")
    return Paid(answer=answer)


def _recall(payees: tuple[Address, ...] = ()) -> Flow[tuple[Transfer, ...]]:
    known = yield Recall(payees=payees)
    assert isinstance(known, tuple)
    return tuple(entry for entry in known if isinstance(entry, Transfer))[:CREDITS_MAX]


def _raise_if_refused(refused: Sequence[tuple[Transfer, NotCounted]], terms: Terms) -> None:
    """A payee that holds money of ours which the gateway does not count is not sent more."""
    for transfer, verdict in refused:
        if transfer.pay_to in terms.payees:
            raise _not_counted(transfer, verdict)


def _not_counted(transfer: Transfer, verdict: NotCounted) -> PaymentRefused:
    problem = verdict.answer.problem or {}
    return PaymentRefused(
        f"The gateway does not count the payment {transfer.tx_hash} of {transfer.describe()}: "
        f"{problem.get('detail') or verdict.answer.code}",
        transaction=transfer.tx_hash,
        reason=verdict.reason,
    )


# ---- Paying.


def _pay(
    terms: Terms,
    short: Short | None,
    purse: Purse,
    rules: Rules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer],
    disowned: list[Unpaid],
) -> Flow[Made | Paid]:
    """A transfer that is on disk, or a call that an authorisation has paid. One that the gateway does not take joins
    `disowned`, and is followed by one more payment at most, by the terms of the 402 that said so."""
    for _ in range(1 + UNPAID_MAX):
        signed = [unpaid.authorization for unpaid in disowned]
        try:
            payment = yield from pay_terms(terms, short, purse, rules, tried, paid, signed)
        except NotPaid as failure:
            if not disowned or failure.transaction is not None:
                raise
            raise disowned[-1].refuse(f"No other payment is signed. {failure.detail}") from failure
        if isinstance(payment, Made):
            return payment
        shown = yield from _show(payment, rules)
        if isinstance(shown, Paid):
            return shown
        disowned.append(shown)
        terms = Terms.read(shown.answer)
    raise disowned[-1].refuse()


def _show_left_over(rules: Rules) -> Flow[Paid | Unpaid | None]:
    """What an earlier run of this very request has signed and left open comes first: it may have paid already. None as
    well where the gateway does not take it and the chain shows that it can never be cashed."""
    left = yield RecallAuthorization()
    if not isinstance(left, SignedAuthorization):
        return None
    shown = yield from _show(left, rules, is_left_over=True)
    if isinstance(shown, Paid):
        return shown
    expired = yield from expire_released()
    return None if left.nonce in expired else shown


def _show(signed: SignedAuthorization, rules: Rules, *, is_left_over: bool = False) -> Flow[Paid | Unpaid]:
    return (
        yield from show_authorization(
            signed,
            patience=rules.patience,
            is_repeatable=rules.is_repeatable,
            is_left_over=is_left_over,
        )
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
                raise PriceAboveMax(tell_detail(outcome))
            return outcome
        assert isinstance(outcome, Broken)
        broken = outcome
    assert broken is not None
    raise GatewayUnreachable(broken.detail, is_sent=broken.is_sent)


# ---- With a payment that exists.


def _spend(transfer: Transfer, rules: Rules) -> Flow[Verdict | None]:
    """Calls with this payment. None: it turned out to be worth nothing."""
    state = yield from settle(transfer, rules.patience)
    if state not in (TransferState.CONFIRMED, TransferState.REFUSED):
        return None
    sent = yield from _send_signed(transfer, rules)
    if sent.is_doubtful and not is_outcome(sent.answer):
        raise call_held(
            transfer,
            sent.answer,
            f"The call was sent, and whether it was served is unknown. {look_up(transfer)}",
        )
    return (yield from judge(transfer, sent.answer))


def _send_signed(transfer: Transfer, rules: Rules) -> Flow[_Sent]:
    """Sends until the answer is more than "not yet". Always the same proof: its nonce makes repeats harmless. Once it
    may have arrived there is no other proof, because a fresh nonce would be another call to pay for."""
    proof = yield from _sign(transfer, rules)
    is_signed_anew = False
    is_doubtful = False
    broken = 0
    waited_s = 0.0
    for _ in range(SENDS_MAX):
        outcome = yield Send(headers=proof)
        if isinstance(outcome, Broken):
            broken += 1
            is_doubtful = is_doubtful or outcome.is_sent
            may_repeat = rules.is_repeatable or not is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                detail = f"{outcome.detail} {look_up(transfer)}" if is_doubtful else outcome.detail
                raise GatewayUnreachable(detail, is_sent=is_doubtful, transaction=transfer.tx_hash)
            yield Pause(seconds=rules.patience.poll_s)
            continue
        assert isinstance(outcome, Answer)
        is_expired = outcome.code == Code.SIGNATURE_EXPIRED.value
        if is_expired and not is_signed_anew and not is_doubtful:
            proof = yield from _sign(transfer, rules)
            is_signed_anew = True
            continue
        told_s = outcome.retry_after_s
        pause_s = RETRY_AFTER_S if told_s is None else min(told_s, RETRY_AFTER_MAX_S)
        if outcome.code not in SAME_PROOF_AGAIN or waited_s + pause_s > rules.patience.wait_s:
            return _Sent(answer=outcome, is_doubtful=is_doubtful)
        yield Pause(seconds=pause_s)
        waited_s += pause_s
    if is_doubtful:
        raise GatewayUnreachable(
            f"The gateway keeps saying: not yet. {look_up(transfer)}",
            is_sent=True,
            transaction=transfer.tx_hash,
        )
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
