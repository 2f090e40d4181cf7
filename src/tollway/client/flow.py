"""The flow of one call, from the first request to its response, with its payment, on the rail that the rules prefer. A generator
without I/O.

It yields steps (`client/steps.py`) and receives their outcomes, so the synchronous client, the asynchronous client and the tests
drive the same flow. It has no clock, no randomness and no key.

Rails: `tx` is a transfer of the wallet, which costs gas, can prepay many calls, and leaves credit. `x402` is an authorisation, which
costs no gas and pays exactly one call, after that was served. `auto` uses x402 for one call; tx where several calls are prepaid, or
where credit covers part of the price; and the other rail where the first cannot pay. `tx` and `x402` by name never fall back.

Rules:

* the client never pays more than the caller allows, for any amounts that the gateway names;
* a payment is stored on disk before it is sent, and a payee with an unresolved payment of this wallet is not paid again;
* only a 402 of the gateway itself can lead to a payment; a response relayed from an upstream never does;
* a call pays once; after that only a difference, to the same payee in the same asset, and the sum stays within the limit. A second whole
  payment follows only where the wallet's store shows that the first one bought another call of this wallet;
* a signed call that may have arrived is repeated with the same proof or not at all, and nothing is paid after it;
* a call has one authorisation, and a second payment only after a 402 (`client/authorization.py`). A gateway that responds with 402 can still
  settle the first: the sum of all that a call signs stays within `max_price`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from tollway.client.authorization import AuthorizationRejected, make_authorization, submit_authorization
from tollway.client.errors import (
    CannotPay,
    FeeAboveMax,
    GatewayUnreachable,
    NotPaid,
    PaymentPending,
    PaymentRefused,
    PriceAboveMax,
)
from tollway.client.finality import check_lapsed
from tollway.client.quote import TransferOffer, read_transfer_offers
from tollway.client.response_rules import (
    REPEAT_CODES,
    RETRY_AFTER_S,
    CallResult,
    CreditHeld,
    PaymentExhausted,
    PaymentOutcome,
    PaymentRejected,
    RepeatWait,
    advise_lookup,
    advise_repeat,
    build_call_held,
    decide_outcome,
    is_chain_away,
    names_outcome,
    quote_refusal,
    read_detail,
    report_notice,
)
from tollway.client.steps import (
    AuthorizationState,
    FindPayments,
    Flow,
    GatewayResponse,
    HeaderPairs,
    LeaseAuthorization,
    NoResponse,
    Pause,
    RecordAuthorizationState,
    SendCall,
    SignCall,
    SignedAuthorization,
    Transfer,
    TransferState,
)
from tollway.client.transfer import (
    CallRules,
    InsufficientCredit,
    PaymentSource,
    StoredTransfer,
    make_payment,
    wait_for_confirmation,
)
from tollway.client.x402 import X402Offer, read_x402_offers
from tollway.errors import Code
from tollway.ids import Address, TxHash


@dataclass(frozen=True, slots=True, kw_only=True)
class PaymentOptions:
    """The offers of a 402 that this client supports."""

    tx: tuple[TransferOffer, ...]
    x402: tuple[X402Offer, ...]

    @classmethod
    def read(cls, response: GatewayResponse) -> Self:
        problem = response.problem or {}
        return cls(tx=read_transfer_offers(problem), x402=read_x402_offers(response.headers, problem))

    @property
    def is_empty(self) -> bool:
        return not (self.tx or self.x402)

    def or_else(self, earlier: Self | None) -> Self | None:
        """These options; `earlier` where they are empty."""
        return earlier if self.is_empty else self

    @property
    def payees(self) -> tuple[Address, ...]:
        named = [*(offer.pay_to for offer in self.tx), *(offer.pay_to for offer in self.x402)]
        return tuple(dict.fromkeys(named))


def sign_payment(
    options: PaymentOptions,
    insufficient: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer] = (),
    rejected: Sequence[SignedAuthorization] = (),
) -> Flow[StoredTransfer | SignedAuthorization]:
    """Signs one payment, on the first rail of the rules that can pay. The result is stored on disk and not sent
    yet. `paid`, `rejected`: the earlier payments of this call. Raises `NotPaid` where no rail can pay."""
    reasons: list[str] = []
    is_fee_above = False
    for rail in _order_rails(rules, insufficient, paid):
        try:
            if rail == "x402":
                return (yield from make_authorization(options.x402, source, rules, rejected))
            return (yield from make_payment(options.tx, insufficient, source, rules, tried, paid, rejected))
        except (CannotPay, FeeAboveMax) as failure:
            if failure.transaction is not None:
                raise
            reasons.append(failure.detail)
            is_fee_above = is_fee_above or isinstance(failure, FeeAboveMax)
    kind = FeeAboveMax if is_fee_above else CannotPay
    raise kind(" ".join(reasons))


def _order_rails(
    rules: CallRules, insufficient: InsufficientCredit | None, paid: Sequence[Transfer]
) -> tuple[str, ...]:
    if paid:  # this call has paid by a transfer: only a difference can be left
        return ("tx",)
    if rules.rail != "auto":
        return (rules.rail,)
    return ("tx", "x402") if rules.prepay > 1 or insufficient is not None else ("x402", "tx")


PAYMENTS_MAX = 2
REJECTED_AUTHORIZATIONS_MAX = 1
CREDITS_MAX = 8
ROUNDS_MAX = 500
PREPAY_MAX = 100_000
SENDS_MAX = 60
BROKEN_RETRIES_MAX = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _SignedResponse:
    """The response to a signed call. `is_doubtful`: an earlier request with the same proof was sent and got no response."""

    response: GatewayResponse
    is_doubtful: bool


def pay_flow(source: PaymentSource, rules: CallRules) -> Flow[CallResult]:
    """The flow of one call that may be paid. Returns its response, of any status, or raises a `CallerFailure`."""
    _check_rules(rules)
    left = yield from _submit_left_open(rules)
    if isinstance(left, CallResult):
        return left
    rejected: list[AuthorizationRejected] = [] if left is None else [left]
    queue = list((yield from _find_payments()))
    tried: set[TxHash] = set()
    stored: list[Transfer] = []
    lost: set[TxHash] = set()
    refused: list[tuple[Transfer, PaymentRejected]] = []
    options: PaymentOptions | None = None
    has_found_payments, waited_s = False, 0.0
    insufficient: InsufficientCredit | None = None
    busy: CreditHeld | None = None
    for _ in range(ROUNDS_MAX):
        if queue:
            transfer = queue.pop(0)
            if transfer.tx_hash in tried:
                continue
            tried.add(transfer.tx_hash)
            outcome = yield from _call_with(transfer, rules)
            if transfer in stored:
                _check_own_payment(transfer, outcome)
            match outcome:
                case CallResult():
                    return outcome
                case InsufficientCredit():
                    options = PaymentOptions.read(outcome.response).or_else(options)
                    insufficient = outcome
                case PaymentRejected():
                    refused.append((transfer, outcome))
                case CreditHeld():
                    busy = outcome
                case PaymentExhausted():
                    lost.add(transfer.tx_hash)
        elif options is None:
            response = yield from _fetch_options(rules)
            if response.code != Code.PAYMENT_REQUIRED.value:
                return CallResult(response=response)
            options = PaymentOptions.read(response)
        elif not has_found_payments:
            queue = list((yield from _find_payments(options.payees)))
            has_found_payments = True
        elif busy is not None:
            waited_s = yield from _wait_for(busy, waited_s, rules)
            tried.discard(busy.transfer.tx_hash)
            queue, busy = [busy.transfer], None
        else:
            _check_rejected(refused, options)
            if len(stored) == PAYMENTS_MAX and lost:
                break
            paid = [transfer for transfer in stored if transfer.tx_hash not in lost]
            payment = yield from _pay(options, insufficient, source, rules, frozenset(tried), paid, rejected)
            if isinstance(payment, CallResult):
                return payment
            if payment.transfer.tx_hash in tried:  # unresolved, and the gateway has just refused it
                break
            if payment.is_new:
                stored.append(payment.transfer)
            if payment.is_reserved:  # the call that made it will spend it; after that this call pays
                yield from wait_for_confirmation(payment.transfer, rules.patience)
                has_found_payments = False
                continue
            queue = [payment.transfer]
            insufficient = None
    raise PaymentPending(
        "Other calls of this wallet spent the payments of this call. Repeat it, or prepay more calls at once."
    )


def _check_rules(rules: CallRules) -> None:
    """Raises ValueError for invalid rules."""
    if not 1 <= rules.prepay <= PREPAY_MAX:
        raise ValueError(f"prepay must be a number of calls from 1 to {PREPAY_MAX}")
    if rules.prepay > 1 and rules.rail == "x402":
        raise ValueError("an authorisation pays one call; prepay needs the rail tx or auto")


def _check_own_payment(transfer: Transfer, outcome: PaymentOutcome | None) -> None:
    """Raises where a payment of this call was refused: the gateway gets no second one."""
    match outcome:
        case None:
            raise CannotPay("The transfer failed on the chain.", transaction=transfer.tx_hash)
        case PaymentExhausted(is_ours=False):
            raise PaymentRefused(
                f"The gateway reports the payment {transfer.tx_hash} of {transfer.describe()} as spent, and no other"
                f" known call of this wallet has used it. {advise_lookup(transfer)}",
                transaction=transfer.tx_hash,
                reason=Code.PAYMENT_ALREADY_USED.value,
            )
        case PaymentRejected():
            raise _explain_rejected(transfer, outcome)
        case _:
            pass


def _wait_for(busy: CreditHeld, waited_s: float, rules: CallRules) -> Flow[float]:
    """Pauses until the payment may be released; returns the total of seconds waited. Raises `CallHeld`."""
    retry_after_s = busy.response.retry_after_s
    pause_s = RETRY_AFTER_S if retry_after_s is None else max(1, retry_after_s)
    if waited_s + pause_s > rules.patience.wait_s:
        raise build_call_held(busy.transfer, busy.response)
    yield Pause(seconds=pause_s)
    return waited_s + pause_s


def free_flow(rules: CallRules) -> Flow[CallResult]:
    """The flow of one call without a wallet. Raises `CannotPay` where it costs something."""
    response = yield from _send_unsigned(rules)
    if response.code == Code.PAYMENT_REQUIRED.value:
        raise CannotPay(f"{read_detail(response)} There is no wallet to pay with. Configure a wallet.")
    return CallResult(response=response)


def _find_payments(payees: tuple[Address, ...] = ()) -> Flow[tuple[Transfer, ...]]:
    known = yield FindPayments(payees=payees)
    assert isinstance(known, tuple)
    return tuple(entry for entry in known if isinstance(entry, Transfer))[:CREDITS_MAX]


def _check_rejected(refused: Sequence[tuple[Transfer, PaymentRejected]], options: PaymentOptions) -> None:
    """Raises where a payee already has a payment of this wallet that the gateway does not count."""
    for transfer, outcome in refused:
        if transfer.pay_to in options.payees:
            raise _explain_rejected(transfer, outcome)


def _explain_rejected(transfer: Transfer, outcome: PaymentRejected) -> PaymentRefused:
    problem = outcome.response.problem or {}
    return PaymentRefused(
        f"The gateway does not count the payment {transfer.tx_hash} of {transfer.describe()}: "
        f"{problem.get('detail') or outcome.response.code}",
        transaction=transfer.tx_hash,
        reason=outcome.reason,
    )


# ---- Paying.


def _pay(
    options: PaymentOptions,
    insufficient: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer],
    rejected: list[AuthorizationRejected],
) -> Flow[StoredTransfer | CallResult]:
    """A stored transfer, or a call that an authorisation has paid. An authorisation that the gateway refuses is added to
    `rejected`; at most one more payment follows, by the offers of the 402 that refused it."""
    for _ in range(1 + REJECTED_AUTHORIZATIONS_MAX):
        signed = [unpaid.authorization for unpaid in rejected]
        try:
            payment = yield from sign_payment(options, insufficient, source, rules, tried, paid, signed)
        except NotPaid as failure:
            if not rejected or failure.transaction is not None:
                raise
            raise rejected[-1].build_refusal(f"No other payment is signed. {failure.detail}") from failure
        if isinstance(payment, StoredTransfer):
            return payment
        submitted = yield from _submit(payment, rules)
        if isinstance(submitted, CallResult):
            return submitted
        rejected.append(submitted)
        options = PaymentOptions.read(submitted.response)
    raise rejected[-1].build_refusal()


def _submit_left_open(rules: CallRules) -> Flow[CallResult | AuthorizationRejected | None]:
    """Sends the authorisation that an earlier run of the same request left, which may have paid already. None where there is none, or
    where the gateway refuses it and the chain shows that it can never be settled. Until the chain shows it, the next run sends one again that the gateway
    reports as expired, unless this run signs another within its maximum."""
    left = yield LeaseAuthorization()
    if not isinstance(left, SignedAuthorization):
        return None
    submitted = yield from _submit(left, rules, is_resubmitted=True)
    if isinstance(submitted, CallResult):
        return submitted
    shown = yield from check_lapsed(left.nonce)
    if shown.get(left.nonce) is AuthorizationState.EXPIRED:
        return None
    if submitted.is_expired and left.nonce in shown and shown[left.nonce] is None:
        return replace(submitted, is_chain_awaited=True)
    yield RecordAuthorizationState(nonce=left.nonce, state=AuthorizationState.RELEASED)
    return submitted


def _submit(
    signed: SignedAuthorization, rules: CallRules, *, is_resubmitted: bool = False
) -> Flow[CallResult | AuthorizationRejected]:
    return (
        yield from submit_authorization(
            signed,
            patience=rules.patience,
            is_repeatable=rules.is_repeatable,
            is_resubmitted=is_resubmitted,
        )
    )


# ---- Without a payment.


def _fetch_options(rules: CallRules) -> Flow[GatewayResponse]:
    """The call without a payment. The 402 to a `HEAD` has no body, so a `GET` of the same price fetches the offers."""
    response = yield from _send_unsigned(rules)
    if response.is_bare_402:
        fallback = yield SendCall(method="GET")
        if isinstance(fallback, GatewayResponse):
            return fallback
    return response


def _send_unsigned(rules: CallRules) -> Flow[GatewayResponse]:
    cap = rules.max_price.text_for(None)
    headers: HeaderPairs = () if cap is None else (("Tollway-Max-Price", cap),)
    broken: NoResponse | None = None
    for _ in range(1 + (BROKEN_RETRIES_MAX if rules.is_repeatable else 0)):
        outcome = yield SendCall(headers=headers)
        if isinstance(outcome, GatewayResponse):
            if outcome.code == Code.PRICE_ABOVE_MAX.value:
                raise PriceAboveMax(read_detail(outcome))
            return outcome
        assert isinstance(outcome, NoResponse)
        broken = outcome
    assert broken is not None
    raise GatewayUnreachable(broken.detail, is_sent=broken.is_sent)


# ---- With a payment that exists.


def _call_with(transfer: Transfer, rules: CallRules) -> Flow[PaymentOutcome | None]:
    """Sends the call with this payment. None: the payment failed on the chain."""
    state = yield from wait_for_confirmation(transfer, rules.patience)
    if state not in (TransferState.CONFIRMED, TransferState.REFUSED):
        return None
    sent = yield from _send_signed(transfer, rules)
    if sent.is_doubtful and not names_outcome(sent.response):
        raise build_call_held(
            transfer,
            sent.response,
            f"The call was sent, and it is unknown whether it was served. {advise_lookup(transfer)}",
        )
    return (yield from decide_outcome(transfer, sent.response))


def _send_signed(transfer: Transfer, rules: CallRules) -> Flow[_SignedResponse]:
    """Sends the call until the response is a decision, always with the same proof: its nonce makes repeats harmless. Once it
    may have arrived, no other proof is signed, because a new nonce would be another paid call."""
    proof = yield from _sign(transfer, rules)
    is_signed_anew = False
    is_doubtful = False
    broken = 0
    wait = RepeatWait(patience=rules.patience)
    last: GatewayResponse | None = None
    for _ in range(SENDS_MAX):
        outcome = yield SendCall(headers=proof)
        if isinstance(outcome, NoResponse):
            broken += 1
            is_doubtful = is_doubtful or outcome.is_sent
            may_repeat = rules.is_repeatable or not is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                detail = f"{outcome.detail} {advise_lookup(transfer)}" if is_doubtful else outcome.detail
                raise GatewayUnreachable(detail, is_sent=is_doubtful, transaction=transfer.tx_hash)
            yield Pause(seconds=rules.patience.poll_s)
            continue
        assert isinstance(outcome, GatewayResponse)
        is_expired = outcome.code == Code.SIGNATURE_EXPIRED.value
        if is_expired and not is_signed_anew and not is_doubtful:
            proof = yield from _sign(transfer, rules)
            is_signed_anew = True
            continue
        pause_s = wait.next_pause_s(outcome) if outcome.code in REPEAT_CODES else None
        if pause_s is None:
            return _SignedResponse(response=outcome, is_doubtful=is_doubtful)
        last = outcome
        if is_chain_away(outcome):
            yield report_notice(transfer, outcome)
        yield Pause(seconds=pause_s)
    assert last is not None, "requests without a response end the loop before"
    undecided = f"The gateway has not decided after {SENDS_MAX} requests."
    if is_doubtful:
        raise GatewayUnreachable(
            f"{undecided} {advise_lookup(transfer)}", is_sent=True, transaction=transfer.tx_hash
        )
    raise PaymentPending(
        f"{undecided} {quote_refusal(last)} {advise_repeat(transfer)}",
        transaction=transfer.tx_hash,
        reason=last.code,
    )


def _sign(transfer: Transfer, rules: CallRules) -> Flow[HeaderPairs]:
    signed = yield SignCall(chain_id=transfer.chain_id, tx_hash=transfer.tx_hash)
    assert isinstance(signed, tuple)
    cap = rules.max_price.text_for(transfer.asset.symbol)
    if cap is None:
        raise PriceAboveMax(f"max_price allows nothing in {transfer.asset.symbol}. Add this currency to it.")
    headers: list[tuple[str, str]] = [("Tollway-Max-Price", cap)]
    headers += [entry for entry in signed if isinstance(entry, tuple)]
    return tuple(headers)
