"""Pays by an authorisation (x402) and tracks its outcome: sub-flows of `client/flow.py`.

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
from functools import partial

from tollway.client.call_io import (
    AuthorizationState,
    CallIo,
    GatewayResponse,
    HeaderPairs,
    NoResponse,
    OverBudget,
    PaymentProgress,
    PaymentQuote,
    SignedAuthorization,
    Stored,
)
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
from tollway.client.finality import approve_in_budget, repeat_in_budget
from tollway.client.quote import Cap, to_atto
from tollway.client.response_rules import (
    NO_OUTCOME_CODES,
    REPEAT_CODES,
    CallResult,
    RepeatWait,
    build_call_held,
    is_chain_away,
    is_key_used,
    quote_refusal,
    read_detail,
    report_notice,
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


async def make_authorization(
    io: CallIo,
    offers: Sequence[X402Offer],
    source: PaymentSource,
    rules: CallRules,
    rejected: Sequence[SignedAuthorization] = (),
) -> SignedAuthorization:
    """Signs the first offer that this wallet can pay, and stores the authorisation on disk. It is not sent yet. `rejected`: earlier
    authorisations of this call, which the gateway can still settle.

    Raises `CannotPay`, `PriceAboveMax`, `BudgetExhausted`, `NodeUnreachable`; then nothing was signed, or the signature was discarded.
    """
    reasons: list[str] = []
    for offer in offers:
        asset = await check_offer(io, offer, source, reasons)
        if asset is None:
            continue
        check_price(offer, asset, rules.max_price)
        if rejected and exceeds_call(offer.amount, asset, rejected, rules):
            reasons.append(MAX_PRICE_REACHED)
            continue
        if offer.chain_id in source.chains:
            balance = await fetch_balance(io, asset, source.payer)
            if balance < offer.amount:
                reasons.append(explain_shortfall(asset, offer.amount, balance, source.payer))
                continue
        quote = PaymentQuote(rail="x402", asset=asset, amount=offer.amount, pay_to=offer.pay_to)
        await approve_in_budget(io, quote)
        signed = await io.sign_authorization(offer, asset)
        await _store(io, signed)
        return signed
    named = "; ".join(reasons) or "none is offered"
    raise CannotPay(f"The call cannot be paid by an authorisation (x402): {named}.")


async def check_offer(
    io: CallIo, offer: X402Offer, source: PaymentSource, reasons: list[str]
) -> Asset | None:
    """The asset to pay in, by a source other than the gateway; None with a reason added to `reasons`. For offers of a channel too."""
    chain_id = offer.chain_id
    if chain_id not in source.chains | source.signing_chains:
        reasons.append(
            f"{explain_missing_node(chain_id, source)}, and the chain is not allowed without one; "
            "add a node to rpc_urls (--rpc, TOLLWAY_RPC), or the chain to chains (--chain)"
        )
        return None
    known = await find_asset(io, chain_id, offer.token, source)
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


def check_price(offer: X402Offer, asset: Asset, max_price: Cap) -> None:
    """Raises `PriceAboveMax`."""
    cap = max_price.atto_for(asset.symbol)
    if cap is None or to_atto(offer.amount, asset) > cap:
        price = format_decimal(offer.amount, decimals=asset.decimals)
        limit = "nothing" if cap is None else max_price.text_for(asset.symbol)
        raise PriceAboveMax(f"The call costs {price} {asset.symbol}; allowed in {asset.symbol}: {limit}.")


async def _store(io: CallIo, signed: SignedAuthorization) -> None:
    outcome = await repeat_in_budget(io, partial(io.store_authorization, signed))
    if isinstance(outcome, OverBudget):
        raise BudgetExhausted(outcome.explain(signed))
    assert isinstance(outcome, Stored)


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


async def submit_authorization(
    io: CallIo, authorization: SignedAuthorization, rules: CallRules, *, is_resubmitted: bool = False
) -> CallResult | AuthorizationRejected:
    """Sends the call with this authorisation until its outcome is known. `is_resubmitted`: an earlier run of this request has sent it.

    Raises a `CallerFailure` where the outcome stays unknown; the authorisation then stays open.
    """
    submission = _Submission(
        authorization=authorization,
        patience=rules.patience,
        is_repeatable=rules.is_repeatable,
        is_claimed=is_resubmitted,
        is_resubmitted=is_resubmitted,
    )
    try:
        response = await _send(io, submission)
        return await _decide_outcome(io, submission, response)
    except CallerFailure:
        # Where its outcome is recorded this changes nothing: an authorisation never becomes open again.
        await io.record_authorization_state(authorization.nonce, AuthorizationState.OPEN)
        raise


async def _send(io: CallIo, submission: _Submission) -> GatewayResponse:
    """Sends the same bytes until the response is a decision."""
    # Without Tollway-Max-Price: the signed amount is exactly what can be charged.
    headers: HeaderPairs = (("PAYMENT-SIGNATURE", submission.authorization.proof),)
    broken = 0
    wait = RepeatWait(patience=submission.patience)
    last: GatewayResponse | None = None
    await io.report_progress(PaymentProgress(payment=submission.authorization))
    for _ in range(SENDS_MAX):
        outcome = await io.send_call(headers)
        if isinstance(outcome, NoResponse):
            broken += 1
            submission.is_doubtful = submission.is_doubtful or outcome.is_sent
            # The authorisation pays once in any case; but a request that must not run twice is not sent twice.
            may_repeat = submission.is_repeatable or not submission.is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                raise (await _end_without_response(io, submission, outcome))
            await io.sleep(submission.patience.poll_s)
            continue
        if outcome.code not in REPEAT_AUTHORIZATION_CODES:
            return outcome
        if outcome.code in CLAIMED_CODES:
            submission.is_claimed = True
            progress = PaymentProgress(payment=submission.authorization, is_accepted=True)
            await io.report_progress(progress)
        pause_s = wait.next_pause_s(outcome)
        if pause_s is None:
            raise _end_undecided(submission, outcome)
        last = outcome
        if is_chain_away(outcome):
            await report_notice(io, submission.authorization, outcome)
        await io.sleep(pause_s)
    assert last is not None, "requests without a response end the loop before"
    raise _end_undecided(submission, last, f"The gateway has not decided after {SENDS_MAX} requests.")


async def _end_without_response(
    io: CallIo, submission: _Submission, broken: NoResponse
) -> GatewayUnreachable:
    """The failure of a request without a response. An authorisation that was provably never sent becomes unsent."""
    if not submission.is_doubtful and not submission.is_claimed:
        await io.record_authorization_state(submission.authorization.nonce, AuthorizationState.UNSENT)
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


async def _decide_outcome(
    io: CallIo, submission: _Submission, response: GatewayResponse
) -> CallResult | AuthorizationRejected:
    """The outcome by a response. A response without one leaves the authorisation open."""
    nonce = submission.authorization.nonce
    if response.payment_state == "held" or (response.is_402 and response.payment_state == "charged"):
        raise _build_held(submission, response)
    if response.is_402:
        return await _decide_402(io, submission, response)
    if response.code == Code.PAYMENT_ALREADY_USED.value:
        await io.record_authorization_state(nonce, AuthorizationState.CHARGED)
        raise _build_used(submission, response)
    if (submission.is_doubtful or submission.is_claimed) and not names_authorization_outcome(response):
        raise _build_held(submission, response)
    receipt = read_receipt(response.headers)
    transaction = receipt.transaction if receipt is not None and receipt.is_success else None
    state = _read_state(submission, response)
    if transaction is not None:  # a receipt with a transfer counts more than the payment state
        state = AuthorizationState.CHARGED
    await io.record_authorization_state(nonce, state, transaction)
    if state is AuthorizationState.CHARGED:
        progress = PaymentProgress(payment=submission.authorization, is_charged=True)
        await io.report_progress(progress)
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


async def _decide_402(
    io: CallIo, submission: _Submission, response: GatewayResponse
) -> AuthorizationRejected:
    """By the gateway's report no money moves. After a request without a response this does not count yet: that request may
    still arrive. The next run sends the same authorisation and gets the outcome."""
    is_ignored = response.code == Code.PAYMENT_REQUIRED.value  # as if the request had carried no payment
    if submission.is_doubtful or (is_ignored and submission.is_claimed):
        raise _build_held(submission, response)
    unpaid = AuthorizationRejected(authorization=submission.authorization, response=response)
    await io.record_authorization_state(
        submission.authorization.nonce,
        AuthorizationState.RELEASED,
        is_sent_again=submission.is_resubmitted and unpaid.is_expired,
    )
    if not submission.is_claimed and (is_ignored or response.problem is None):
        raise unpaid.build_refusal()  # a second one would be ignored too, or there is no offer to sign
    return unpaid


def names_authorization_outcome(response: GatewayResponse) -> bool:
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
    is_retryable = retryable and (submission.is_repeatable or not submission.is_doubtful)
    words = f"{detail or read_detail(response)} {_advise_lookup(submission.authorization)}"
    return build_call_held(response, words, is_retryable=is_retryable)


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
