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

from tollway.client.errors import (
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
from tollway.client.quote import Cap, to_atto
from tollway.client.response_rules import NO_OUTCOME_CODES, REPEAT_CODES, CallResult, is_key_used, read_detail
from tollway.client.steps import (
    ApprovePayment,
    AuthorizationState,
    Flow,
    GatewayResponse,
    HeaderPairs,
    NoResponse,
    OverBudget,
    Pause,
    PaymentQuote,
    RecordAuthorizationState,
    SendCall,
    SignAuthorization,
    SignedAuthorization,
    StoreAuthorization,
)
from tollway.client.transfer import (
    MAX_PRICE_REACHED,
    CallRules,
    Patience,
    PaymentSource,
    exceeds_call,
    fetch_balance,
    find_asset,
)
from tollway.client.x402 import X402Offer, read_receipt
from tollway.errors import Code
from tollway.money import Asset, format_decimal

SENDS_MAX = 60
BROKEN_RETRIES_MAX = 2
RETRY_AFTER_S = 2
RETRY_AFTER_MAX_S = 60

REPEAT_AUTHORIZATION_CODES = REPEAT_CODES | {Code.PAYMENT_OUTCOME_UNKNOWN.value}
"""Not decided: the same authorisation again, after `Retry-After`, and never another."""

CLAIMED_CODES = frozenset({Code.PAYMENT_OUTCOME_UNKNOWN.value, Code.IDEMPOTENCY_IN_PROGRESS.value})
"""These say that the gateway holds the authorisation for this call."""

UNCHECKED_CODES = frozenset({Code.CHAIN_UNAVAILABLE.value, Code.OVERLOADED.value})
"""And these that it has not come so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRejected:
    """The gateway says that the authorisation moves nothing, and has named its terms anew."""

    authorization: SignedAuthorization
    response: GatewayResponse

    def build_refusal(self, why: str = "") -> PaymentRefused:
        """`why`: why no other payment follows."""
        signed = self.authorization
        until = datetime.fromtimestamp(signed.valid_before, UTC).isoformat()
        receipt = read_receipt(self.response.headers)
        reason = (self.response.problem or {}).get("reason") or (receipt.reason if receipt else None)
        return PaymentRefused(
            f"The gateway does not take the authorisation {signed.name()} of {signed.describe()}: "
            f"{read_detail(self.response)} It may still be cashed until {until}, and counts as spent until your own "
            f"chain node shows it unused after that. {why}".rstrip(),
            transaction=None,
            reason=reason if isinstance(reason, str) else self.response.code,
        )


# ---- Signing.


def make_authorization(
    offers: Sequence[X402Offer],
    source: PaymentSource,
    rules: CallRules,
    rejected: Sequence[SignedAuthorization] = (),
) -> Flow[SignedAuthorization]:
    """Signs the first offer that this wallet can keep, and puts it on disk. Nobody sees it yet. `rejected`: what this
    call has signed before, and the gateway can still cash.

    Raises `CannotPay`, `PriceAboveMax`, `BudgetExhausted`, `NodeUnreachable`: then nothing was signed, or kept.
    """
    reasons: list[str] = []
    for offer in offers:
        asset = yield from _check_offer(offer, source, reasons)
        if asset is None:
            continue
        _check_price(offer, asset, rules.max_price)
        if rejected and exceeds_call(offer.amount, asset, rejected, rules):
            reasons.append(MAX_PRICE_REACHED)
            continue
        if offer.chain_id in source.chains:
            balance = yield from fetch_balance(asset, source.payer)
            if balance < offer.amount:
                has = format_decimal(balance, decimals=asset.decimals)
                reasons.append(f"the wallet holds {has} {asset.symbol} on {asset.network}")
                continue
        quote = PaymentQuote(rail="x402", asset=asset, amount=offer.amount, pay_to=offer.pay_to)
        yield ApprovePayment(quote=quote)
        signed = yield SignAuthorization(offer=offer, asset=asset)
        assert isinstance(signed, SignedAuthorization)
        yield from _store(signed)
        return signed
    named = "; ".join(reasons) or "none is offered"
    raise CannotPay(f"The call cannot be paid by an authorisation (x402): {named}.")


def _check_offer(offer: X402Offer, source: PaymentSource, reasons: list[str]) -> Flow[Asset | None]:
    """The asset to pay in, as somebody other than the gateway describes it, or None with a reason."""
    chain_id = offer.chain_id
    if chain_id not in source.chains | source.signing_chains:
        reasons.append(f"no node is configured for chain {chain_id}, and it is not allowed without one")
        return None
    known = yield from find_asset(chain_id, offer.token, source)
    if known is None:
        reasons.append(f"nobody but the gateway says what {offer.token} on chain {chain_id} is")
        return None
    named = (offer.symbol or known.symbol, known.decimals if offer.decimals is None else offer.decimals)
    # A domain that is not the token's only makes a signature that nothing accepts; but then nothing is paid either.
    is_domain_known = known.domain is not None
    if named != (known.symbol, known.decimals) or (is_domain_known and offer.domain != known.domain):
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
class _Submission:
    """What this authorisation has been through. `is_doubtful`: a request with it left, and no answer came.
    `is_claimed`: a gateway may hold it for this very call."""

    authorization: SignedAuthorization
    patience: Patience
    is_repeatable: bool
    is_claimed: bool
    is_doubtful: bool = False


def submit_authorization(
    authorization: SignedAuthorization,
    *,
    patience: Patience,
    is_repeatable: bool,
    is_resubmitted: bool = False,
) -> Flow[CallResult | AuthorizationRejected]:
    """Calls with it until its outcome is known. `is_resubmitted`: an earlier run of this request has shown it already.

    Raises a `CallerFailure` where the outcome stays unknown; the authorisation then stays open.
    """
    submission = _Submission(
        authorization=authorization,
        patience=patience,
        is_repeatable=is_repeatable,
        is_claimed=is_resubmitted,
    )
    try:
        response = yield from _send(submission)
        return (yield from _decide_outcome(submission, response))
    except CallerFailure:
        # Where its outcome was learnt this changes nothing: an authorisation never becomes open again.
        yield RecordAuthorizationState(nonce=authorization.nonce, state=AuthorizationState.OPEN)
        raise


def _send(submission: _Submission) -> Flow[GatewayResponse]:
    """Sends the same bytes until the answer is more than "not yet"."""
    # No maximum beside it: what is signed is exactly what can be charged.
    headers: HeaderPairs = (("PAYMENT-SIGNATURE", submission.authorization.proof),)
    broken = 0
    waited_s = 0.0
    for _ in range(SENDS_MAX):
        outcome = yield SendCall(headers=headers)
        if isinstance(outcome, NoResponse):
            broken += 1
            submission.is_doubtful = submission.is_doubtful or outcome.is_sent
            # Paid is it once, whatever is repeated; but a request that must not run twice is not sent twice.
            may_repeat = submission.is_repeatable or not submission.is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                raise (yield from _end_without_response(submission, outcome))
            yield Pause(seconds=submission.patience.poll_s)
            continue
        assert isinstance(outcome, GatewayResponse)
        if outcome.code not in REPEAT_AUTHORIZATION_CODES:
            return outcome
        submission.is_claimed = submission.is_claimed or outcome.code in CLAIMED_CODES
        retry_after_s = outcome.retry_after_s
        pause_s = RETRY_AFTER_S if retry_after_s is None else min(retry_after_s, RETRY_AFTER_MAX_S)
        if waited_s + pause_s > submission.patience.wait_s:
            raise (yield from _end_undecided(submission, outcome))
        yield Pause(seconds=pause_s)
        waited_s += pause_s
    raise PaymentPending(f"The gateway keeps saying: not yet. {_advise_lookup(submission.authorization)}")


def _end_without_response(submission: _Submission, broken: NoResponse) -> Flow[GatewayUnreachable]:
    """No answer. What surely never left was seen by nobody."""
    if not submission.is_doubtful and not submission.is_claimed:
        yield RecordAuthorizationState(nonce=submission.authorization.nonce, state=AuthorizationState.UNSENT)
        return GatewayUnreachable(broken.detail, is_sent=False)
    failure = GatewayUnreachable(f"{broken.detail} {_advise_lookup(submission.authorization)}", is_sent=True)
    failure.is_retryable = submission.is_repeatable
    return failure


def _end_undecided(submission: _Submission, response: GatewayResponse) -> Flow[CallerFailure]:
    """Patience has ended before the gateway knew. The next run signs anew only where it says that it has not looked."""
    if response.code == Code.PAYMENT_OUTCOME_UNKNOWN.value:
        return _build_held(submission, response)
    if response.code in UNCHECKED_CODES and not submission.is_claimed and not submission.is_doubtful:
        yield RecordAuthorizationState(
            nonce=submission.authorization.nonce, state=AuthorizationState.RELEASED
        )
    return PaymentPending(read_detail(response))


# ---- What an answer means.


def _decide_outcome(
    submission: _Submission, response: GatewayResponse
) -> Flow[CallResult | AuthorizationRejected]:
    """The outcome, where the answer tells one. Whatever does not leaves the authorisation open."""
    nonce = submission.authorization.nonce
    if response.payment_state == "held" or (response.is_402 and response.payment_state == "charged"):
        raise _build_held(submission, response)
    if response.is_402:
        return (yield from _decide_402(submission, response))
    if response.code == Code.PAYMENT_ALREADY_USED.value:
        yield RecordAuthorizationState(nonce=nonce, state=AuthorizationState.CHARGED)
        raise _build_used(submission, response)
    if (submission.is_doubtful or submission.is_claimed) and not _names_outcome(response):
        raise _build_held(submission, response)
    receipt = read_receipt(response.headers)
    transaction = receipt.transaction if receipt is not None and receipt.is_success else None
    state = _read_state(submission, response)
    if transaction is not None:  # whatever else it says: it names a transfer
        state = AuthorizationState.CHARGED
    yield RecordAuthorizationState(nonce=nonce, state=state, tx_hash=transaction)
    return CallResult(response=response, authorization=submission.authorization)


def _read_state(submission: _Submission, response: GatewayResponse) -> AuthorizationState:
    is_fresh = not (submission.is_claimed or submission.is_doubtful)
    match response.payment_state:
        case "charged":
            return AuthorizationState.CHARGED
        case "released":
            return AuthorizationState.RELEASED
        case "none" if is_fresh:  # no payment was looked at; it tells nothing of an earlier showing
            return AuthorizationState.RELEASED
        case _:
            return AuthorizationState.OPEN


def _decide_402(submission: _Submission, response: GatewayResponse) -> Flow[AuthorizationRejected]:
    """By the gateway's word nothing moves. After a request without an answer that is not believed at once: its copy may
    still be on its way. The next run shows the same one, and then knows."""
    is_ignored = response.code == Code.PAYMENT_REQUIRED.value  # asked for as if none had been shown
    if submission.is_doubtful or (is_ignored and submission.is_claimed):
        raise _build_held(submission, response)
    yield RecordAuthorizationState(nonce=submission.authorization.nonce, state=AuthorizationState.RELEASED)
    unpaid = AuthorizationRejected(authorization=submission.authorization, response=response)
    if not submission.is_claimed and (is_ignored or response.problem is None):
        raise unpaid.build_refusal()  # a second one would not be seen either, or there are no terms to sign
    return unpaid


def _names_outcome(response: GatewayResponse) -> bool:
    """Whether it tells what became of an authorisation that was shown before: the upstream's answer, or a refusal
    that names what became of its price."""
    if response.problem is None:
        return True
    return response.payment_state in ("charged", "released") and response.code not in NO_OUTCOME_CODES


def _build_used(submission: _Submission, response: GatewayResponse) -> CallerFailure:
    if is_key_used(response):
        return _build_held(submission, response, retryable=False)
    if not submission.is_claimed and not submission.is_doubtful:
        return PaymentRefused(
            f"The gateway calls a fresh authorisation of {submission.authorization.describe()} used. "
            f"{_advise_lookup(submission.authorization)}",
            transaction=None,
            reason=response.code,
        )
    return _build_held(
        submission, response, "The call was served and paid, and its answer is not kept.", retryable=False
    )


def _build_held(
    submission: _Submission, response: GatewayResponse, detail: str | None = None, *, retryable: bool = True
) -> CallHeld:
    problem = response.problem or {}
    call_id = problem.get("callId") or response.headers.get("tollway-call-id")
    call_url = problem.get("call")
    return CallHeld(
        f"{detail or read_detail(response)} {_advise_lookup(submission.authorization)}",
        transaction=None,
        call_id=str(call_id) if call_id else None,
        call_url=str(call_url) if call_url else None,
        is_retryable=retryable and (submission.is_repeatable or not submission.is_doubtful),
    )


def _advise_lookup(authorization: SignedAuthorization) -> str:
    return (
        f"The authorisation {authorization.name()} of {authorization.describe()} may still be cashed; the same request "
        "again shows the same one. /history says what became of it."
    )
