"""Pays by an authorisation (x402) and tracks its outcome: sub-flows of `client/flow.py`. Pure; they yield steps.

Every holder of an authorisation can settle it. So it is stored on disk before it is sent. One call has one authorisation, which is
sent again until a response gives its outcome; a second one is signed only after a 402.
An authorisation without an outcome stays `open`: it counts as spent, and the next run of the same request sends it first. One that expires
meanwhile is sent until the chain shows that it can never be settled; only then the request is signed anew.

Only the gateway reports that nothing was taken, and until `validBefore` every holder can settle an authorisation. So it
counts as spent until the chain shows it unused (`client/finality.py`), and the sum of all that one call signs stays within
`max_price`.

`validAfter` is 0, so a fast local clock does no harm. A clock that is slow by more than the gateway's slack (30 s)
leads to `payment_expired`, and no money has moved.
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
from tollway.client.finality import approve_in_budget, store_in_budget
from tollway.client.quote import Cap, to_atto
from tollway.client.response_rules import (
    NO_OUTCOME_CODES,
    REPEAT_CODES,
    CallResult,
    RepeatWait,
    is_chain_away,
    is_key_used,
    quote_refusal,
    read_detail,
    report_notice,
)
from tollway.client.steps import (
    AuthorizationState,
    Flow,
    GatewayResponse,
    HeaderPairs,
    NoResponse,
    OverBudget,
    Pause,
    PaymentProgress,
    PaymentQuote,
    RecordAuthorizationState,
    ReportProgress,
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
    explain_missing_node,
    explain_shortfall,
    fetch_balance,
    find_asset,
)
from tollway.client.x402 import X402Offer, read_receipt
from tollway.errors import Code
from tollway.money import Asset, format_decimal

SENDS_MAX = 60
BROKEN_RETRIES_MAX = 2

REPEAT_AUTHORIZATION_CODES = REPEAT_CODES | {Code.PAYMENT_OUTCOME_UNKNOWN.value}
"""Codes without a decision: the client sends the same authorisation again after `Retry-After`, and never another."""

CLAIMED_CODES = frozenset({Code.PAYMENT_OUTCOME_UNKNOWN.value, Code.IDEMPOTENCY_IN_PROGRESS.value})
"""Codes which state that the gateway holds the authorisation for this call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRejected:
    """An authorisation that the gateway refused with a new 402. By the gateway's report it moves no money. `is_chain_awaited`: its
    `validBefore` has passed, and the wallet's own node does not show that in a final block yet."""

    authorization: SignedAuthorization
    response: GatewayResponse
    is_chain_awaited: bool = False

    @property
    def is_expired(self) -> bool:
        """Whether the gateway reports it as expired."""
        return self.response.code == Code.PAYMENT_EXPIRED.value

    def build_refusal(self, why: str = "") -> PaymentRefused:
        """The failure of the call. `why`: why no other payment follows."""
        signed = self.authorization
        until = datetime.fromtimestamp(signed.valid_before, UTC).isoformat()
        receipt = read_receipt(self.response.headers)
        reason = (self.response.problem or {}).get("reason") or (receipt.reason if receipt else None)
        if self.is_chain_awaited:
            words = (
                f"The authorisation {signed.name()} of {signed.describe()} has expired at {until}, and by the gateway's report it has paid "
                f"nothing: {read_detail(self.response)} It counts as spent until your own chain node shows it unused in a final block of that time or "
                "later. Repeat the same request after that: it then signs a new authorisation. An earlier repeat sends the same one."
            )
        else:
            words = (
                f"The gateway does not accept the authorisation {signed.name()} of {signed.describe()}: "
                f"{read_detail(self.response)} It can still be settled until {until}, and counts as spent until your own "
                "chain node shows it unused after that."
            )
        return PaymentRefused(
            f"{words} {why}".rstrip(),
            transaction=None,
            reason=reason if isinstance(reason, str) else self.response.code,
            is_retryable=self.is_chain_awaited,
        )


# ---- Signing.


def make_authorization(
    offers: Sequence[X402Offer],
    source: PaymentSource,
    rules: CallRules,
    rejected: Sequence[SignedAuthorization] = (),
) -> Flow[SignedAuthorization]:
    """Signs the first offer that this wallet can pay, and stores the authorisation on disk. It is not sent yet. `rejected`: earlier
    authorisations of this call, which the gateway can still settle.

    Raises `CannotPay`, `PriceAboveMax`, `BudgetExhausted`, `NodeUnreachable`; then nothing was signed, or the signature was discarded.
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
                reasons.append(explain_shortfall(asset, offer.amount, balance, source.payer))
                continue
        quote = PaymentQuote(rail="x402", asset=asset, amount=offer.amount, pay_to=offer.pay_to)
        yield from approve_in_budget(quote)
        signed = yield SignAuthorization(offer=offer, asset=asset)
        assert isinstance(signed, SignedAuthorization)
        yield from _store(signed)
        return signed
    named = "; ".join(reasons) or "none is offered"
    raise CannotPay(f"The call cannot be paid by an authorisation (x402): {named}.")


def _check_offer(offer: X402Offer, source: PaymentSource, reasons: list[str]) -> Flow[Asset | None]:
    """The asset to pay in, by a source other than the gateway; None with a reason added to `reasons`."""
    chain_id = offer.chain_id
    if chain_id not in source.chains | source.signing_chains:
        reasons.append(
            f"{explain_missing_node(chain_id, source)}, and the chain is not allowed without one; "
            "add a node to rpc_urls (--rpc, TOLLWAY_RPC), or the chain to chains (--chain)"
        )
        return None
    known = yield from find_asset(chain_id, offer.token, source)
    if known is None:
        reasons.append(f"no source besides the gateway describes {offer.token} on chain {chain_id}")
        return None
    named = (offer.symbol or known.symbol, known.decimals if offer.decimals is None else offer.decimals)
    # With a wrong domain the token accepts no signature: it does no harm, but it pays nothing either.
    is_domain_known = known.domain is not None
    if named != (known.symbol, known.decimals) or (is_domain_known and offer.domain != known.domain):
        reasons.append(f"the gateway describes {offer.token} on chain {chain_id} wrongly")
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


# ---- Sending it.


@dataclass(slots=True, kw_only=True)
class _Submission:
    """The progress of one authorisation. `is_doubtful`: a request with it was sent and got no response.
    `is_claimed`: a gateway may hold it for this call."""

    authorization: SignedAuthorization
    patience: Patience
    is_repeatable: bool
    is_claimed: bool
    is_resubmitted: bool = False
    is_doubtful: bool = False


def submit_authorization(
    authorization: SignedAuthorization,
    *,
    patience: Patience,
    is_repeatable: bool,
    is_resubmitted: bool = False,
) -> Flow[CallResult | AuthorizationRejected]:
    """Sends the call with this authorisation until its outcome is known. `is_resubmitted`: an earlier run of this request has sent it.

    Raises a `CallerFailure` where the outcome stays unknown; the authorisation then stays open.
    """
    submission = _Submission(
        authorization=authorization,
        patience=patience,
        is_repeatable=is_repeatable,
        is_claimed=is_resubmitted,
        is_resubmitted=is_resubmitted,
    )
    try:
        response = yield from _send(submission)
        return (yield from _decide_outcome(submission, response))
    except CallerFailure:
        # Where its outcome is recorded this changes nothing: an authorisation never becomes open again.
        yield RecordAuthorizationState(nonce=authorization.nonce, state=AuthorizationState.OPEN)
        raise


def _send(submission: _Submission) -> Flow[GatewayResponse]:
    """Sends the same bytes until the response is a decision."""
    # Without Tollway-Max-Price: the signed amount is exactly what can be charged.
    headers: HeaderPairs = (("PAYMENT-SIGNATURE", submission.authorization.proof),)
    broken = 0
    wait = RepeatWait(patience=submission.patience)
    last: GatewayResponse | None = None
    yield ReportProgress(progress=PaymentProgress(payment=submission.authorization))
    for _ in range(SENDS_MAX):
        outcome = yield SendCall(headers=headers)
        if isinstance(outcome, NoResponse):
            broken += 1
            submission.is_doubtful = submission.is_doubtful or outcome.is_sent
            # The authorisation pays once in any case; but a request that must not run twice is not sent twice.
            may_repeat = submission.is_repeatable or not submission.is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                raise (yield from _end_without_response(submission, outcome))
            yield Pause(seconds=submission.patience.poll_s)
            continue
        assert isinstance(outcome, GatewayResponse)
        if outcome.code not in REPEAT_AUTHORIZATION_CODES:
            return outcome
        if outcome.code in CLAIMED_CODES:
            submission.is_claimed = True
            progress = PaymentProgress(payment=submission.authorization, is_accepted=True)
            yield ReportProgress(progress=progress)
        pause_s = wait.next_pause_s(outcome)
        if pause_s is None:
            raise _end_undecided(submission, outcome)
        last = outcome
        if is_chain_away(outcome):
            yield report_notice(submission.authorization, outcome)
        yield Pause(seconds=pause_s)
    assert last is not None, "requests without a response end the loop before"
    raise _end_undecided(submission, last, f"The gateway has not decided after {SENDS_MAX} requests.")


def _end_without_response(submission: _Submission, broken: NoResponse) -> Flow[GatewayUnreachable]:
    """The failure of a request without a response. An authorisation that was provably never sent becomes unsent."""
    if not submission.is_doubtful and not submission.is_claimed:
        yield RecordAuthorizationState(nonce=submission.authorization.nonce, state=AuthorizationState.UNSENT)
        return GatewayUnreachable(broken.detail, is_sent=False)
    failure = GatewayUnreachable(f"{broken.detail} {_advise_lookup(submission.authorization)}", is_sent=True)
    failure.is_retryable = submission.is_repeatable
    return failure


def _end_undecided(submission: _Submission, response: GatewayResponse, undecided: str = "") -> CallerFailure:
    """The failure of a call that was not decided in time. The authorisation stays open: the next run of the same request sends it again, so a gateway
    that is away for long gets one authorisation, and not one for each run. `undecided`: why the call ends."""
    if response.code == Code.PAYMENT_OUTCOME_UNKNOWN.value:
        return _build_held(submission, response, undecided or None)
    is_unused = is_chain_away(response) and not submission.is_claimed and not submission.is_doubtful
    advice = _advise_repeat if is_unused else _advise_lookup
    words = f"{undecided} {quote_refusal(response)} {advice(submission.authorization)}".strip()
    return PaymentPending(words, reason=response.code)


# ---- Responses.


def _decide_outcome(
    submission: _Submission, response: GatewayResponse
) -> Flow[CallResult | AuthorizationRejected]:
    """The outcome by a response. A response without one leaves the authorisation open."""
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
    if transaction is not None:  # a receipt with a transfer counts more than the payment state
        state = AuthorizationState.CHARGED
    yield RecordAuthorizationState(nonce=nonce, state=state, tx_hash=transaction)
    if state is AuthorizationState.CHARGED:
        progress = PaymentProgress(payment=submission.authorization, is_charged=True)
        yield ReportProgress(progress=progress)
    return CallResult(response=response, authorization=submission.authorization)


def _read_state(submission: _Submission, response: GatewayResponse) -> AuthorizationState:
    is_fresh = not (submission.is_claimed or submission.is_doubtful)
    match response.payment_state:
        case "charged":
            return AuthorizationState.CHARGED
        case "released":
            return AuthorizationState.RELEASED
        case "none" if is_fresh:  # the gateway checked no payment; it says nothing about an earlier request
            return AuthorizationState.RELEASED
        case _:
            return AuthorizationState.OPEN


def _decide_402(submission: _Submission, response: GatewayResponse) -> Flow[AuthorizationRejected]:
    """By the gateway's report no money moves. After a request without a response this does not count yet: that request may
    still arrive. The next run sends the same authorisation and gets the outcome."""
    is_ignored = response.code == Code.PAYMENT_REQUIRED.value  # as if the request had carried no payment
    if submission.is_doubtful or (is_ignored and submission.is_claimed):
        raise _build_held(submission, response)
    unpaid = AuthorizationRejected(authorization=submission.authorization, response=response)
    yield RecordAuthorizationState(
        nonce=submission.authorization.nonce,
        state=AuthorizationState.RELEASED,
        is_sent_again=submission.is_resubmitted and unpaid.is_expired,
    )
    if not submission.is_claimed and (is_ignored or response.problem is None):
        raise unpaid.build_refusal()  # a second one would be ignored too, or there is no offer to sign
    return unpaid


def _names_outcome(response: GatewayResponse) -> bool:
    """Whether the response gives the outcome of an authorisation that was sent before: a response of the upstream, or a refusal
    with the state of its price."""
    if response.problem is None:
        return True
    return response.payment_state in ("charged", "released") and response.code not in NO_OUTCOME_CODES


def _build_used(submission: _Submission, response: GatewayResponse) -> CallerFailure:
    if is_key_used(response):
        return _build_held(submission, response, retryable=False)
    if not submission.is_claimed and not submission.is_doubtful:
        return PaymentRefused(
            f"The gateway reports a new authorisation of {submission.authorization.describe()} as used. "
            f"{_advise_lookup(submission.authorization)}",
            transaction=None,
            reason=response.code,
        )
    return _build_held(
        submission, response, "The call was served and paid, and its response is not stored.", retryable=False
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


def _advise_repeat(authorization: SignedAuthorization) -> str:
    return (
        f"The authorisation {authorization.name()} of {authorization.describe()} was sent, and the gateway has settled nothing. Repeat the same request "
        "later: it sends the same authorisation, and nothing is paid twice."
    )


def _advise_lookup(authorization: SignedAuthorization) -> str:
    return (
        f"The authorisation {authorization.name()} of {authorization.describe()} can still be settled. Repeat the same request: "
        "it sends the same authorisation. /history shows the outcome."
    )
