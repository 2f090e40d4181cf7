"""Pays by an authorisation (x402) and follows it: sub-flows of the payer. Pure; they yield steps.

An authorisation is a promise to whoever holds it. So it is on disk before anybody sees it; for one call there is one,
shown again and again, until the gateway's answer says what became of it; and a second is signed only after a 402.
What ends without an outcome stays `open`: it counts as spent, and the next run of the same request shows it first.

That nothing is taken is the gateway's word alone: until `validBefore` every holder can cash an authorisation. So it
counts as spent until the chain shows it unused (`client/finality.py`), and all that one call signs stays within
`max_price`.

`validAfter` is 0, so a clock that is fast harms nothing; one that is slow by more than the gateway's slack (half a
minute) gets `payment_expired`, and nothing has moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tollway.client.checkout import NO_ROOM, Rules, exceeds_call
from tollway.client.failures import (
    BudgetExhausted,
    CallerFailure,
    CallHeld,
    CannotPay,
    GatewayUnreachable,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
)
from tollway.client.finality import store_in_budget
from tollway.client.judgement import NO_OUTCOME, SAME_PROOF_AGAIN, Paid, is_key_used, tell_detail
from tollway.client.quote import Cap, to_atto
from tollway.client.steps import (
    Answer,
    AuthorizationState,
    Broken,
    Flow,
    Headers,
    LearnAuthorization,
    OverBudget,
    Pause,
    PaymentQuote,
    Send,
    ShowPayment,
    SignAuthorization,
    SignedAuthorization,
    StoreAuthorization,
)
from tollway.client.transfer import Patience, Purse, fetch_balance, find_asset
from tollway.client.x402_offer import X402Offer, read_receipt
from tollway.errors import Code
from tollway.money import Asset, format_decimal

SENDS_MAX = 60
BROKEN_RETRIES_MAX = 2
RETRY_AFTER_S = 2
RETRY_AFTER_MAX_S = 60

AGAIN = SAME_PROOF_AGAIN | {Code.PAYMENT_OUTCOME_UNKNOWN.value}
"""Not decided: the same authorisation again, after `Retry-After`, and never another."""

CLAIMED = frozenset({Code.PAYMENT_OUTCOME_UNKNOWN.value, Code.IDEMPOTENCY_IN_PROGRESS.value})
"""These say that the gateway holds the authorisation for this call."""

NOT_LOOKED_AT = frozenset({Code.CHAIN_UNAVAILABLE.value, Code.OVERLOADED.value})
"""And these that it has not come so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpaid:
    """The gateway says that the authorisation moves nothing, and has named its terms anew."""

    authorization: SignedAuthorization
    answer: Answer

    def refuse(self, why: str = "") -> PaymentRefused:
        """`why`: why no other payment follows."""
        signed = self.authorization
        until = datetime.fromtimestamp(signed.valid_before, UTC).isoformat()
        receipt = read_receipt(self.answer.headers)
        reason = (self.answer.problem or {}).get("reason") or (receipt.reason if receipt else None)
        return PaymentRefused(
            f"The gateway does not take the authorisation {signed.name()} of {signed.describe()}: "
            f"{tell_detail(self.answer)} It may still be cashed until {until}, and counts as spent until your own "
            f"chain node shows it unused after that. {why}".rstrip(),
            transaction=None,
            reason=reason if isinstance(reason, str) else self.answer.code,
        )


# ---- Signing.


def make_authorization(
    offers: Sequence[X402Offer],
    purse: Purse,
    rules: Rules,
    disowned: Sequence[SignedAuthorization] = (),
) -> Flow[SignedAuthorization]:
    """Signs the first offer that this wallet can keep, and puts it on disk. Nobody sees it yet. `disowned`: what this
    call has signed before, and the gateway can still cash.

    Raises `CannotPay`, `PriceAboveMax`, `BudgetExhausted`, `NodeUnreachable`: then nothing was signed, or kept.
    """
    reasons: list[str] = []
    for offer in offers:
        asset = yield from _check(offer, purse, reasons)
        if asset is None:
            continue
        _check_price(offer, asset, rules.max_price)
        if disowned and exceeds_call(offer.amount, asset, disowned, rules):
            reasons.append(NO_ROOM)
            continue
        if offer.chain_id in purse.chains:
            balance = yield from fetch_balance(asset, purse.payer)
            if balance < offer.amount:
                has = format_decimal(balance, decimals=asset.decimals)
                reasons.append(f"the wallet holds {has} {asset.symbol} on {asset.network}")
                continue
        quote = PaymentQuote(rail="x402", asset=asset, amount=offer.amount, pay_to=offer.pay_to)
        yield ShowPayment(quote=quote)
        signed = yield SignAuthorization(offer=offer, asset=asset)
        assert isinstance(signed, SignedAuthorization)
        yield from _store(signed)
        return signed
    told = "; ".join(reasons) or "none is offered"
    raise CannotPay(f"The call cannot be paid by an authorisation (x402): {told}.")


def _check(offer: X402Offer, purse: Purse, reasons: list[str]) -> Flow[Asset | None]:
    """The asset to pay in, as somebody other than the gateway describes it, or None with a reason."""
    chain_id = offer.chain_id
    if chain_id not in purse.chains | purse.signing_chains:
        reasons.append(f"no node is configured for chain {chain_id}, and it is not allowed without one")
        return None
    known = yield from find_asset(chain_id, offer.token, purse)
    if known is None:
        reasons.append(f"nobody but the gateway says what {offer.token} on chain {chain_id} is")
        return None
    told = (offer.symbol or known.symbol, known.decimals if offer.decimals is None else offer.decimals)
    # A domain that is not the token's only makes a signature that nothing accepts; but then nothing is paid either.
    is_domain_known = known.domain is not None
    if told != (known.symbol, known.decimals) or (is_domain_known and offer.domain != known.domain):
        reasons.append(f"{offer.token} on chain {chain_id} is not what the gateway says it is")
        return None
    return Asset(chain_id=chain_id, token=offer.token, symbol=known.symbol, decimals=known.decimals)


def _check_price(offer: X402Offer, asset: Asset, max_price: Cap) -> None:
    cap = max_price.atto_for(asset.symbol)
    if cap is None or to_atto(offer.amount, asset) > cap:
        price = format_decimal(offer.amount, decimals=asset.decimals)
        limit = "nothing" if cap is None else max_price.text_for(asset.symbol)
        raise PriceAboveMax(f"The call costs {price} {asset.symbol}; allowed in {asset.symbol}: {limit}.")


def _store(signed: SignedAuthorization) -> Flow[None]:
    outcome = yield from store_in_budget(StoreAuthorization(authorization=signed))
    if isinstance(outcome, OverBudget):
        raise BudgetExhausted(outcome.explain(signed))


# ---- Showing it.


@dataclass(slots=True, kw_only=True)
class _Showing:
    """What this authorisation has been through. `is_doubtful`: a request with it left, and no answer came.
    `is_claimed`: a gateway may hold it for this very call."""

    authorization: SignedAuthorization
    patience: Patience
    is_repeatable: bool
    is_claimed: bool
    is_doubtful: bool = False


def show_authorization(
    authorization: SignedAuthorization,
    *,
    patience: Patience,
    is_repeatable: bool,
    is_left_over: bool = False,
) -> Flow[Paid | Unpaid]:
    """Calls with it until its outcome is known. `is_left_over`: an earlier run of this request has shown it already.

    Raises a `CallerFailure` where the outcome stays unknown; the authorisation then stays open.
    """
    showing = _Showing(
        authorization=authorization,
        patience=patience,
        is_repeatable=is_repeatable,
        is_claimed=is_left_over,
    )
    try:
        answer = yield from _send(showing)
        return (yield from _judge(showing, answer))
    except CallerFailure:
        # Where its outcome was learnt this changes nothing: an authorisation never becomes open again.
        yield LearnAuthorization(nonce=authorization.nonce, state=AuthorizationState.OPEN)
        raise


def _send(showing: _Showing) -> Flow[Answer]:
    """Sends the same bytes until the answer is more than "not yet"."""
    # No maximum beside it: what is signed is exactly what can be charged.
    headers: Headers = (("PAYMENT-SIGNATURE", showing.authorization.proof),)
    broken = 0
    waited_s = 0.0
    for _ in range(SENDS_MAX):
        outcome = yield Send(headers=headers)
        if isinstance(outcome, Broken):
            broken += 1
            showing.is_doubtful = showing.is_doubtful or outcome.is_sent
            # Paid is it once, whatever is repeated; but a request that must not run twice is not sent twice.
            may_repeat = showing.is_repeatable or not showing.is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                raise (yield from _give_up(showing, outcome))
            yield Pause(seconds=showing.patience.poll_s)
            continue
        assert isinstance(outcome, Answer)
        if outcome.code not in AGAIN:
            return outcome
        showing.is_claimed = showing.is_claimed or outcome.code in CLAIMED
        told_s = outcome.retry_after_s
        pause_s = RETRY_AFTER_S if told_s is None else min(told_s, RETRY_AFTER_MAX_S)
        if waited_s + pause_s > showing.patience.wait_s:
            raise (yield from _not_yet(showing, outcome))
        yield Pause(seconds=pause_s)
        waited_s += pause_s
    raise PaymentPending(f"The gateway keeps saying: not yet. {_look_up(showing.authorization)}")


def _give_up(showing: _Showing, broken: Broken) -> Flow[GatewayUnreachable]:
    """No answer. What surely never left was seen by nobody."""
    if not showing.is_doubtful and not showing.is_claimed:
        yield LearnAuthorization(nonce=showing.authorization.nonce, state=AuthorizationState.UNSENT)
        return GatewayUnreachable(broken.detail, is_sent=False)
    failure = GatewayUnreachable(f"{broken.detail} {_look_up(showing.authorization)}", is_sent=True)
    failure.is_retryable = showing.is_repeatable
    return failure


def _not_yet(showing: _Showing, answer: Answer) -> Flow[CallerFailure]:
    """Patience has ended before the gateway knew. The next run signs anew only where it says that it has not looked."""
    if answer.code == Code.PAYMENT_OUTCOME_UNKNOWN.value:
        return _held(showing, answer)
    if answer.code in NOT_LOOKED_AT and not showing.is_claimed and not showing.is_doubtful:
        yield LearnAuthorization(nonce=showing.authorization.nonce, state=AuthorizationState.RELEASED)
    return PaymentPending(tell_detail(answer))


# ---- What an answer means.


def _judge(showing: _Showing, answer: Answer) -> Flow[Paid | Unpaid]:
    """The outcome, where the answer tells one. Whatever does not leaves the authorisation open."""
    nonce = showing.authorization.nonce
    if answer.told_state == "held" or (answer.is_402 and answer.told_state == "charged"):
        raise _held(showing, answer)
    if answer.is_402:
        return (yield from _judge_402(showing, answer))
    if answer.code == Code.PAYMENT_ALREADY_USED.value:
        yield LearnAuthorization(nonce=nonce, state=AuthorizationState.CHARGED)
        raise _used(showing, answer)
    if (showing.is_doubtful or showing.is_claimed) and not _is_outcome(answer):
        raise _held(showing, answer)
    receipt = read_receipt(answer.headers)
    transaction = receipt.transaction if receipt is not None and receipt.is_success else None
    state = _read_state(showing, answer)
    if transaction is not None:  # whatever else it says: it names a transfer
        state = AuthorizationState.CHARGED
    yield LearnAuthorization(nonce=nonce, state=state, tx_hash=transaction)
    return Paid(answer=answer, authorization=showing.authorization)


def _read_state(showing: _Showing, answer: Answer) -> AuthorizationState:
    is_fresh = not (showing.is_claimed or showing.is_doubtful)
    match answer.told_state:
        case "charged":
            return AuthorizationState.CHARGED
        case "released":
            return AuthorizationState.RELEASED
        case "none" if is_fresh:  # no payment was looked at; it tells nothing of an earlier showing
            return AuthorizationState.RELEASED
        case _:
            return AuthorizationState.OPEN


def _judge_402(showing: _Showing, answer: Answer) -> Flow[Unpaid]:
    """By the gateway's word nothing moves. After a request without an answer that is not believed at once: its copy may
    still be on its way. The next run shows the same one, and then knows."""
    is_unseen = answer.code == Code.PAYMENT_REQUIRED.value  # asked for as if none had been shown
    if showing.is_doubtful or (is_unseen and showing.is_claimed):
        raise _held(showing, answer)
    yield LearnAuthorization(nonce=showing.authorization.nonce, state=AuthorizationState.RELEASED)
    unpaid = Unpaid(authorization=showing.authorization, answer=answer)
    if not showing.is_claimed and (is_unseen or answer.problem is None):
        raise unpaid.refuse()  # a second one would not be seen either, or there are no terms to sign
    return unpaid


def _is_outcome(answer: Answer) -> bool:
    """Whether it tells what became of an authorisation that was shown before: the upstream's answer, or a refusal
    that names what became of its price."""
    if answer.problem is None:
        return True
    return answer.told_state in ("charged", "released") and answer.code not in NO_OUTCOME


def _used(showing: _Showing, answer: Answer) -> CallerFailure:
    if is_key_used(answer):
        return _held(showing, answer, retryable=False)
    if not showing.is_claimed and not showing.is_doubtful:
        return PaymentRefused(
            f"The gateway calls a fresh authorisation of {showing.authorization.describe()} used. "
            f"{_look_up(showing.authorization)}",
            transaction=None,
            reason=answer.code,
        )
    return _held(
        showing, answer, "The call was served and paid, and its answer is not kept.", retryable=False
    )


def _held(
    showing: _Showing, answer: Answer, detail: str | None = None, *, retryable: bool = True
) -> CallHeld:
    problem = answer.problem or {}
    call_id = problem.get("callId") or answer.headers.get("tollway-call-id")
    call_url = problem.get("call")
    return CallHeld(
        f"{detail or tell_detail(answer)} {_look_up(showing.authorization)}",
        transaction=None,
        call_id=str(call_id) if call_id else None,
        call_url=str(call_url) if call_url else None,
        is_retryable=retryable and (showing.is_repeatable or not showing.is_doubtful),
    )


def _look_up(authorization: SignedAuthorization) -> str:
    return (
        f"The authorisation {authorization.name()} of {authorization.describe()} may still be cashed; the same request "
        "again shows the same one. /history says what became of it."
    )
