"""The flow of one call, from the first request to its response, with its payment, on the rail that the rules prefer: a coroutine over
`CallIo` (`client/call_io.py`).

The synchronous client, the asynchronous client and the tests run the same coroutine, each with its own `CallIo`. It has no network, no store, no
clock, no randomness and no key of its own.

Rails: `tx` is a transfer of the wallet, which costs gas, can prepay many calls, and leaves credit. `x402` is an authorisation, which
costs no gas and pays exactly one call, after that was served. `channel` is a deposit without gas, of which vouchers pay many calls
(`client/channel_payment.py`). `auto` uses x402 for one call; a channel where x402 cannot pay, and after ten calls to one payee; tx where
several calls are prepaid, or where credit covers part of the price; and the next rail where the first cannot pay. A rail by name never falls back.

Rules:

* the client never pays more than the caller allows, for any amounts that the gateway names;
* a payment is stored on disk before it is sent, and a payee with an unresolved payment of this wallet is not paid again;
* only a 402 of the gateway itself can lead to a payment; a response relayed from an upstream never does;
* a call pays once; after that only a difference, to the same payee in the same asset, and the sum stays within the limit. A second whole
  payment follows only where the wallet's store shows that the first one bought another call of this wallet;
* a signed call that may have arrived is repeated with the same proof or not at all, and nothing is paid after it;
* a call that a listing gives for free is asked for before anything is paid: the request is signed, and no money can move;
* a call has one authorisation, and a second payment only after a 402 (`client/authorization.py`). A gateway that responds with 402 can still
  settle the first: the sum of all that a call signs stays within `max_price`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from tollway.client.authorization import AuthorizationRejected, make_authorization, submit_authorization
from tollway.client.call_io import (
    PRICE_MAX_HEADER,
    AuthorizationState,
    CallIo,
    GatewayResponse,
    HeaderPairs,
    NoResponse,
    SignedAuthorization,
    Transfer,
    TransferState,
)
from tollway.client.channel_offer import OfferedChannel, read_channel_offers
from tollway.client.channel_payment import finish_pending, is_channel_cheaper, pay_by_channel
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
from tollway.client.own_channel import OwnChannel
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
    build_policy_exceeded,
    decide_outcome,
    is_chain_away,
    names_outcome,
    quote_refusal,
    read_detail,
    report_notice,
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
    channel: tuple[OfferedChannel, ...] = ()

    @classmethod
    def read(cls, response: GatewayResponse) -> Self:
        problem = response.problem or {}
        # An authorisation is settled at the amount that was signed, so it cannot pay what a metered call has used.
        is_metered = PRICE_MAX_HEADER in response.headers
        x402 = () if is_metered else read_x402_offers(response.headers, problem)
        channel = read_channel_offers(response.headers, problem)
        return cls(tx=read_transfer_offers(problem, is_metered=is_metered), x402=x402, channel=channel)

    @property
    def is_empty(self) -> bool:
        return not (self.tx or self.x402 or self.channel)

    def or_else(self, earlier: Self | None) -> Self | None:
        """These options; `earlier` where they are empty."""
        return earlier if self.is_empty else self

    @property
    def payees(self) -> tuple[Address, ...]:
        terms = [*self.x402, *(offer.terms for offer in self.channel)]
        named = [*(offer.pay_to for offer in self.tx), *(offer.pay_to for offer in terms)]
        return tuple(dict.fromkeys(named))


async def sign_payment(
    io: CallIo,
    options: PaymentOptions,
    insufficient: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer] = (),
    rejected: Sequence[SignedAuthorization] = (),
) -> StoredTransfer | SignedAuthorization | CallResult:
    """Signs one payment, on the first rail of the rules that can pay. The result is stored on disk and not sent
    yet; a channel pays the call to its end. `paid`, `rejected`: the earlier payments of this call. Raises `NotPaid` where no rail can pay."""
    reasons: list[str] = []
    is_fee_above = False
    is_cheaper = await is_channel_cheaper(io, options.channel)
    order = _order_rails(
        rules, insufficient, paid, has_channel=bool(options.channel), is_channel_cheaper=is_cheaper
    )
    for rail in order:
        try:
            if rail == "channel":
                return await pay_by_channel(io, options.channel, source, rules, rejected)
            if rail == "x402":
                return await make_authorization(io, options.x402, source, rules, rejected)
            return await make_payment(io, options.tx, insufficient, source, rules, tried, paid, rejected)
        except (CannotPay, FeeAboveMax) as failure:
            if failure.transaction is not None:
                raise
            reasons.append(failure.detail)
            is_fee_above = is_fee_above or isinstance(failure, FeeAboveMax)
    kind = FeeAboveMax if is_fee_above else CannotPay
    raise kind(" ".join(reasons))


def _order_rails(
    rules: CallRules,
    insufficient: InsufficientCredit | None,
    paid: Sequence[Transfer],
    *,
    has_channel: bool = False,
    is_channel_cheaper: bool = False,
) -> tuple[str, ...]:
    if paid:  # this call has paid by a transfer: only a difference can be left
        return ("tx",)
    if rules.rail != "auto":
        return (rules.rail,)
    channel = ("channel",) if has_channel else ()
    if rules.prepay > 1 or insufficient is not None:
        return ("tx", "x402", *channel)
    return (*channel, "x402", "tx") if is_channel_cheaper else ("x402", *channel, "tx")


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


async def pay_flow(io: CallIo, source: PaymentSource, rules: CallRules) -> CallResult:
    """The flow of one call that may be paid. Returns its response, of any status, or raises a `CallerFailure`: `PolicyExceeded` where the wallet has an owner at the gateway
    whose policy does not cover the call."""
    result = await _pay_call(io, source, rules)
    if result.response.code == Code.BUDGET_EXCEEDED.value:
        raise build_policy_exceeded(result)
    return result


async def _pay_call(io: CallIo, source: PaymentSource, rules: CallRules) -> CallResult:
    _check_rules(rules)
    left = await _submit_left_open(io, source, rules)
    if isinstance(left, CallResult):
        return left
    rejected: list[AuthorizationRejected] = [] if left is None else [left]
    queue = list(await _find_payments(io))
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
            outcome = await _call_with(io, transfer, rules)
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
            response = await _fetch_options(io, rules)
            if response.code != Code.PAYMENT_REQUIRED.value:
                return CallResult(response=response)
            options = PaymentOptions.read(response)
        elif not has_found_payments:
            queue = list(await _find_payments(io, options.payees))
            has_found_payments = True
        elif busy is not None:
            waited_s = await _wait_for(io, busy, waited_s, rules)
            tried.discard(busy.transfer.tx_hash)
            queue, busy = [busy.transfer], None
        else:
            _check_rejected(refused, options)
            if len(stored) == PAYMENTS_MAX and lost:
                break
            paid = [transfer for transfer in stored if transfer.tx_hash not in lost]
            payment = await _pay(io, options, insufficient, source, rules, frozenset(tried), paid, rejected)
            if isinstance(payment, CallResult):
                return payment
            if payment.transfer.tx_hash in tried:  # unresolved, and the gateway has just refused it
                break
            if payment.is_new:
                stored.append(payment.transfer)
            if payment.is_reserved:  # the call that made it will spend it; after that this call pays
                await wait_for_confirmation(io, payment.transfer, rules.patience)
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


async def _wait_for(io: CallIo, busy: CreditHeld, waited_s: float, rules: CallRules) -> float:
    """Pauses until the payment may be released; returns the total of seconds waited. Raises `CallHeld`."""
    retry_after_s = busy.response.retry_after_s
    pause_s = RETRY_AFTER_S if retry_after_s is None else max(1, retry_after_s)
    if waited_s + pause_s > rules.patience.wait_s:
        raise build_call_held(busy.response, transaction=busy.transfer.tx_hash)
    await io.sleep(pause_s)
    return waited_s + pause_s


async def free_flow(io: CallIo, rules: CallRules) -> CallResult:
    """The flow of one call without a wallet. Raises `CannotPay` where it costs something."""
    response = await _send_unsigned(io, rules)
    if response.code == Code.PAYMENT_REQUIRED.value:
        raise CannotPay(f"{read_detail(response)} There is no wallet to pay with. Configure a wallet.")
    return CallResult(response=response)


async def _find_payments(io: CallIo, payees: tuple[Address, ...] = ()) -> tuple[Transfer, ...]:
    return (await io.find_payments(payees))[:CREDITS_MAX]


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


async def _pay(
    io: CallIo,
    options: PaymentOptions,
    insufficient: InsufficientCredit | None,
    source: PaymentSource,
    rules: CallRules,
    tried: frozenset[TxHash],
    paid: Sequence[Transfer],
    rejected: list[AuthorizationRejected],
) -> StoredTransfer | CallResult:
    """A stored transfer, or a call that an authorisation has paid. An authorisation that the gateway refuses is added to
    `rejected`; at most one more payment follows, by the offers of the 402 that refused it."""
    for _ in range(1 + REJECTED_AUTHORIZATIONS_MAX):
        signed = [unpaid.authorization for unpaid in rejected]
        try:
            payment = await sign_payment(io, options, insufficient, source, rules, tried, paid, signed)
        except NotPaid as failure:
            if not rejected or failure.transaction is not None:
                raise
            raise rejected[-1].build_refusal(f"No other payment is signed. {failure.detail}") from failure
        if isinstance(payment, StoredTransfer | CallResult):
            return payment
        submitted = await submit_authorization(io, payment, rules)
        if isinstance(submitted, CallResult):
            return submitted
        rejected.append(submitted)
        options = PaymentOptions.read(submitted.response)
    raise rejected[-1].build_refusal()


async def _submit_left_open(
    io: CallIo, source: PaymentSource, rules: CallRules
) -> CallResult | AuthorizationRejected | None:
    """Sends the authorisation or the voucher that an earlier run of the same request left, which may have paid already. None where there is none, or
    where the gateway refuses it and the chain shows that it can never be settled. Until the chain shows it, the next run sends one again that the gateway
    reports as expired, unless this run signs another within its maximum."""
    left = await io.lease_authorization()
    if left is None:
        return None
    if isinstance(left, OwnChannel):
        return await finish_pending(io, left, source, rules)
    submitted = await submit_authorization(io, left, rules, is_resubmitted=True)
    if isinstance(submitted, CallResult):
        return submitted
    shown = await check_lapsed(io, left.nonce)
    if shown.get(left.nonce) is AuthorizationState.EXPIRED:
        return None
    if submitted.is_expired and left.nonce in shown and shown[left.nonce] is None:
        return replace(submitted, is_chain_awaited=True)
    await io.record_authorization_state(left.nonce, AuthorizationState.RELEASED)
    return submitted


# ---- Without a payment.


async def _fetch_options(io: CallIo, rules: CallRules) -> GatewayResponse:
    """The call without a payment. The 402 to a `HEAD` has no body, so a `GET` of the same price fetches the offers."""
    response = await _send_unsigned(io, rules)
    if response.is_bare_402:
        fallback = await io.send_call(method="GET")
        if isinstance(fallback, GatewayResponse):
            return fallback
    return await _send_free(io, response) or response


async def _send_free(io: CallIo, response: GatewayResponse) -> GatewayResponse | None:
    """The response to the same call with a proof of the wallet, where the 402 offers free calls. None where it offers none, and
    where the proof was refused: the call is then paid."""
    offer = (response.problem or {}).get("freeCalls") if response.is_402 else None
    headers = await io.sign_request() if isinstance(offer, Mapping) else ()
    if not isinstance(offer, Mapping) or not headers:
        return None
    outcome = await io.send_call(headers)
    if not isinstance(outcome, GatewayResponse):
        raise GatewayUnreachable(outcome.detail, is_sent=outcome.is_sent)
    if outcome.is_402 or outcome.status == 401:
        period = offer.get("perSeconds")
        await io.end_free_calls(period if isinstance(period, int) else None)
    return None if outcome.status == 401 else outcome


async def _send_unsigned(io: CallIo, rules: CallRules) -> GatewayResponse:
    cap = rules.max_price.text_for(None)
    headers: HeaderPairs = () if cap is None else (("Tollway-Max-Price", cap),)
    broken: NoResponse | None = None
    for _ in range(1 + (BROKEN_RETRIES_MAX if rules.is_repeatable else 0)):
        outcome = await io.send_call(headers)
        if isinstance(outcome, GatewayResponse):
            if outcome.code == Code.PRICE_ABOVE_MAX.value:
                raise PriceAboveMax(read_detail(outcome))
            return outcome
        broken = outcome
    assert broken is not None
    raise GatewayUnreachable(broken.detail, is_sent=broken.is_sent)


# ---- With a payment that exists.


async def _call_with(io: CallIo, transfer: Transfer, rules: CallRules) -> PaymentOutcome | None:
    """Sends the call with this payment. None: the payment failed on the chain."""
    state = await wait_for_confirmation(io, transfer, rules.patience)
    if state not in (TransferState.CONFIRMED, TransferState.REFUSED):
        return None
    sent = await _send_signed(io, transfer, rules)
    if sent.is_doubtful and not names_outcome(sent.response):
        words = f"The call was sent, and it is unknown whether it was served. {advise_lookup(transfer)}"
        raise build_call_held(sent.response, words, transaction=transfer.tx_hash)
    return await decide_outcome(io, transfer, sent.response)


async def _send_signed(io: CallIo, transfer: Transfer, rules: CallRules) -> _SignedResponse:
    """Sends the call until the response is a decision, always with the same proof: its nonce makes repeats harmless. Once it
    may have arrived, no other proof is signed, because a new nonce would be another paid call."""
    proof = await _sign(io, transfer, rules)
    is_signed_anew = False
    is_doubtful = False
    broken = 0
    wait = RepeatWait(patience=rules.patience)
    last: GatewayResponse | None = None
    for _ in range(SENDS_MAX):
        outcome = await io.send_call(proof)
        if isinstance(outcome, NoResponse):
            broken += 1
            is_doubtful = is_doubtful or outcome.is_sent
            may_repeat = rules.is_repeatable or not is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                detail = f"{outcome.detail} {advise_lookup(transfer)}" if is_doubtful else outcome.detail
                raise GatewayUnreachable(detail, is_sent=is_doubtful, transaction=transfer.tx_hash)
            await io.sleep(rules.patience.poll_s)
            continue
        is_expired = outcome.code == Code.SIGNATURE_EXPIRED.value
        if is_expired and not is_signed_anew and not is_doubtful:
            proof = await _sign(io, transfer, rules)
            is_signed_anew = True
            continue
        pause_s = wait.next_pause_s(outcome) if outcome.code in REPEAT_CODES else None
        if pause_s is None:
            return _SignedResponse(response=outcome, is_doubtful=is_doubtful)
        last = outcome
        if is_chain_away(outcome):
            await report_notice(io, transfer, outcome)
        await io.sleep(pause_s)
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


async def _sign(io: CallIo, transfer: Transfer, rules: CallRules) -> HeaderPairs:
    signed = await io.sign_call(transfer)
    cap = rules.max_price.text_for(transfer.asset.symbol)
    if cap is None:
        raise PriceAboveMax(f"max_price allows nothing in {transfer.asset.symbol}. Add this currency to it.")
    return (("Tollway-Max-Price", cap), *signed)
