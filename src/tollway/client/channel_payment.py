"""Pays by a payment channel (x402 `batch-settlement`) and tracks its balance: sub-flows of `client/flow.py`.

A channel is an escrow of this wallet for one payee. The first call deposits and shows a voucher; each later call shows a voucher over the charged sum and its own
maximum (`client/own_channel.py`). One call at a time has the channel, over all processes of the wallet.

A voucher and its deposit are stored on disk before they are sent. A voucher without an outcome stays pending: the next run of the same request sends the same
bytes. Another request signs over what the store knows as charged; where the earlier one was charged, one corrective 402 states it with a voucher of this
wallet, and the call is signed once more. A second corrective 402 ends the call.

A deposit pays into the wallet's own channel alone, so it is no loss: a refund or a withdrawal moves back what is left (`client/channel_exit.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tollway.chain.channel_contract import encode_channel_state, parse_channel_state
from tollway.chain.port import EscrowState
from tollway.client.authorization import (
    BROKEN_RETRIES_MAX,
    CLAIMED_CODES,
    REPEAT_AUTHORIZATION_CODES,
    SENDS_MAX,
    check_offer,
    check_price,
    names_authorization_outcome,
)
from tollway.client.call_io import (
    CallIo,
    ChannelLease,
    GatewayResponse,
    HeaderPairs,
    NodeIo,
    NoResponse,
    OverBudget,
    OwnVoucher,
    PaymentProgress,
    PaymentQuote,
    SignedAuthorization,
)
from tollway.client.channel_offer import ChannelCorrection, OfferedChannel, read_charge, read_correction
from tollway.client.errors import (
    BudgetExhausted,
    CallHeld,
    CannotPay,
    GatewayUnreachable,
    NodeUnreachable,
    NotPaid,
    PaymentPending,
    PaymentRefused,
)
from tollway.client.finality import approve_in_budget, repeat_in_budget
from tollway.client.own_channel import (
    OwnChannel,
    VoucherPlan,
    VoucherRefused,
    Withdrawal,
    apply_charge,
    heal_channel,
    plan_voucher,
)
from tollway.client.quote import ATTO_DECIMALS
from tollway.client.response_rules import (
    CallResult,
    RepeatWait,
    build_call_held,
    is_chain_away,
    quote_refusal,
    read_detail,
    report_notice,
)
from tollway.client.transfer import (
    MAX_PRICE_REACHED,
    CallRules,
    Patience,
    PaymentSource,
    eth_call,
    exceeds_call,
    explain_shortfall,
    fetch_balance,
)
from tollway.client.x402 import read_receipt
from tollway.errors import Code
from tollway.ids import ChannelId
from tollway.money import Asset
from tollway.payments.channels import SETTLEMENT_CONTRACT, ChannelConfig

REPEAT_VOUCHER_CODES = REPEAT_AUTHORIZATION_CODES | {Code.CHANNEL_BUSY.value}
"""Codes without a decision: the client sends the same voucher again after `Retry-After`, and never another."""

WITHDRAWAL_PENDING, CHANNEL_DRAINING, NO_GAS = "withdrawal_pending", "channel_draining", "gas"
"""Reasons of a busy channel that no wait of a call outlasts: another rail has to pay."""

CHEAPER_AFTER_CALLS = 10
"""So many calls to one payee make a channel cheaper than an authorisation for each: its deposit and its way back are three transactions."""


async def is_channel_cheaper(io: CallIo, offers: Sequence[OfferedChannel]) -> bool:
    """Whether the wallet calls the payee of the first offer so often that a channel costs less."""
    return bool(offers) and await io.count_calls(offers[0].terms.pay_to) >= CHEAPER_AFTER_CALLS


async def pay_by_channel(
    io: CallIo,
    offers: Sequence[OfferedChannel],
    source: PaymentSource,
    rules: CallRules,
    rejected: Sequence[SignedAuthorization] = (),
) -> CallResult:
    """Pays the call by the channel of the first offer that this wallet can use. `rejected`: authorisations of this call that the gateway refused, and can still settle.

    Raises a `NotPaid` before anything was sent; after that `PaymentRefused`, `CallHeld`, `PaymentPending` or `GatewayUnreachable`.
    """
    offer, asset = await _choose_offer(io, offers, source, rules, rejected)
    lease = await _lease(io, offer, asset, rules.patience)
    channel = lease.channel
    if lease.is_own_request:
        return await finish_pending(io, channel, source, rules)
    is_uncertain = lease.is_uncertain or channel.withdrawal is not None
    if is_uncertain and asset.chain_id in source.chains:
        channel = await _find_on_chain(io, channel)
    if channel.withdrawal is not None:
        raise CannotPay(
            f"The call cannot be paid by a channel: a withdrawal from {channel.id} has begun, and until its end the channel takes no call; "
            "tollway wallet withdraw ends it."
        )
    signed = await _sign(io, offer, channel, source, rules)
    return await _submit_and_heal(io, signed, source, rules, is_resubmitted=False)


async def finish_pending(
    io: CallIo, channel: OwnChannel, source: PaymentSource, rules: CallRules
) -> CallResult:
    """Sends the pending voucher of a channel, which an earlier run of the same request stored and perhaps sent."""
    return await _submit_and_heal(io, OwnVoucher(channel=channel), source, rules, is_resubmitted=True)


async def _submit_and_heal(
    io: CallIo, signed: OwnVoucher, source: PaymentSource, rules: CallRules, *, is_resubmitted: bool
) -> CallResult:
    outcome = await _submit(io, signed, rules, is_resubmitted=is_resubmitted)
    if isinstance(outcome, CallResult):
        return outcome
    healed = await _heal(io, outcome, source)
    try:
        check_price(outcome.correction.offer.terms, healed.asset, rules.max_price)
        again = await _sign(io, outcome.correction.offer, healed, source, rules)
    except NotPaid as failure:
        raise PaymentRefused(
            f"The gateway asks for another voucher of {healed.id}, and none is signed. {failure.detail}",
            transaction=None,
            reason=outcome.response.code,
        ) from failure
    second = await _submit(io, again, rules)
    if isinstance(second, CallResult):
        return second
    await io.record_channel(replace(second.channel, pending=None))
    raise _refuse_correction(second, "it refuses the voucher that its own report asks for")


# ---- Before anything is signed.


async def _choose_offer(
    io: CallIo,
    offers: Sequence[OfferedChannel],
    source: PaymentSource,
    rules: CallRules,
    rejected: Sequence[SignedAuthorization],
) -> tuple[OfferedChannel, Asset]:
    reasons: list[str] = []
    for offer in offers:
        asset = await check_offer(io, offer.terms, source, reasons)
        if asset is None:
            continue
        check_price(offer.terms, asset, rules.max_price)
        if rejected and exceeds_call(offer.terms.amount, asset, rejected, rules):
            reasons.append(MAX_PRICE_REACHED)
            continue
        return offer, asset
    named = "; ".join(reasons) or "none is offered"
    raise CannotPay(f"The call cannot be paid by a channel: {named}.")


async def _lease(io: CallIo, offer: OfferedChannel, asset: Asset, patience: Patience) -> ChannelLease:
    """Waits for other calls of this wallet, which use the channel one after the other."""
    for _ in range(max(1, int(patience.wait_s / patience.poll_s))):
        lease = await io.lease_channel(offer, asset)
        if lease is not None:
            return lease
        await io.sleep(patience.poll_s)
    raise CannotPay("Other calls of this wallet use the channel. Repeat the call later.")


async def _find_on_chain(io: CallIo, channel: OwnChannel) -> OwnChannel:
    """The channel with the balance of the chain. Raises `NodeUnreachable`. One that the store does not know may have vouchers of another store, up to its balance."""
    totals = await fetch_state(io, channel)
    held = channel.deposit
    has_landed = held is not None and totals.balance >= channel.balance + held.amount
    is_unknown = channel.calls == 0 and channel.pending is None and channel.ceiling == 0
    return replace(
        channel,
        balance=totals.balance,
        charged=max(channel.charged, totals.total_claimed),
        ceiling=totals.balance if is_unknown else channel.ceiling,
        deposit=None if has_landed else held,
        withdrawal=read_withdrawal(channel, totals),
    )


def read_withdrawal(channel: OwnChannel, state: EscrowState) -> Withdrawal | None:
    """The pending withdrawal of a channel by the chain."""
    since_s = state.withdrawal_initiated_at
    if not since_s:
        return None
    return Withdrawal(amount=state.withdrawal, ready_s=since_s + channel.config.withdraw_delay)


async def fetch_state(io: NodeIo, channel: OwnChannel) -> EscrowState:
    """A channel by the wallet's own node. Raises `NodeUnreachable`, `CannotPay`."""
    chain_id = channel.asset.chain_id
    result = await eth_call(io, chain_id, SETTLEMENT_CONTRACT, encode_channel_state(channel.id))
    try:
        return parse_channel_state(result)
    except ValueError as exc:
        raise NodeUnreachable(
            f"The node of chain {chain_id} returns no channels of the settlement contract."
        ) from exc


async def _sign(
    io: CallIo, offer: OfferedChannel, channel: OwnChannel, source: PaymentSource, rules: CallRules
) -> OwnVoucher:
    """Signs and stores the voucher of the call, with a deposit where the balance does not cover it. Raises `NotPaid`; then nothing was sent."""
    asset = channel.asset
    plan = plan_voucher(
        channel,
        price=offer.terms.amount,
        deposit_min=offer.deposit_min,
        deposit_max=_deposit_max(asset, rules),
    )
    if isinstance(plan, VoucherRefused):
        raise CannotPay(f"The call cannot be paid by a channel: {plan.reason}.")
    await _check_funds(io, channel, plan, source)
    quote = PaymentQuote(
        rail="channel",
        asset=asset,
        amount=offer.terms.amount,
        pay_to=offer.terms.pay_to,
        deposit=0 if plan.is_resent else plan.deposit,
        channel=channel,
    )
    await approve_in_budget(io, quote)
    signed = await io.sign_voucher(offer, channel, plan)
    outcome = await repeat_in_budget(io, partial(io.store_voucher, signed))
    if isinstance(outcome, OverBudget):
        raise BudgetExhausted(outcome.explain(quote))
    return signed


def _deposit_max(asset: Asset, rules: CallRules) -> int:
    """In base units, rounded down."""
    atto = rules.max_deposit.atto_for(asset.symbol) or 0
    shift: int = 10 ** abs(ATTO_DECIMALS - asset.decimals)
    return atto // shift if asset.decimals <= ATTO_DECIMALS else atto * shift


async def _check_funds(io: CallIo, channel: OwnChannel, plan: VoucherPlan, source: PaymentSource) -> None:
    asset = channel.asset
    if not plan.deposit or plan.is_resent or asset.chain_id not in source.chains:
        return
    balance = await fetch_balance(io, asset, source.payer)
    if balance < plan.deposit:
        reason = explain_shortfall(asset, plan.deposit, balance, source.payer)
        raise CannotPay(f"The call cannot be paid by a channel: the deposit fails, because {reason}.")


# ---- Sending it.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Corrected:
    """A voucher that the gateway did not store. `is_doubtful`: the gateway may have stored it before."""

    channel: OwnChannel
    correction: ChannelCorrection
    response: GatewayResponse
    is_doubtful: bool


@dataclass(slots=True, kw_only=True)
class _VoucherSubmission:
    """The progress of one voucher. `is_doubtful`: a request with it was sent and got no response. `is_claimed`: the gateway may hold it for this call."""

    signed: OwnVoucher
    is_repeatable: bool
    is_claimed: bool
    is_doubtful: bool = False

    @property
    def channel(self) -> OwnChannel:
        return self.signed.channel


async def _submit(
    io: CallIo, signed: OwnVoucher, rules: CallRules, *, is_resubmitted: bool = False
) -> CallResult | _Corrected:
    """Sends the call with its voucher until the outcome is known. Raises a `CallerFailure`; the voucher then stays pending, unless its outcome is known."""
    submission = _VoucherSubmission(
        signed=signed, is_repeatable=rules.is_repeatable, is_claimed=is_resubmitted
    )
    response = await _send(io, submission, rules.patience)
    return await _decide(io, submission, response)


async def _send(io: CallIo, submission: _VoucherSubmission, patience: Patience) -> GatewayResponse:
    """Sends the same bytes until the response is a decision."""
    pending = submission.channel.pending
    assert pending is not None
    headers: HeaderPairs = (("PAYMENT-SIGNATURE", pending.proof),)
    broken, wait = 0, RepeatWait(patience=patience)
    last: GatewayResponse | None = None
    await io.report_progress(PaymentProgress(payment=submission.signed))
    for _ in range(SENDS_MAX):
        outcome = await io.send_call(headers)
        if isinstance(outcome, NoResponse):
            broken += 1
            submission.is_doubtful = submission.is_doubtful or outcome.is_sent
            may_repeat = submission.is_repeatable or not submission.is_doubtful
            if not may_repeat or broken > BROKEN_RETRIES_MAX:
                raise (await _end_without_response(io, submission, outcome))
            await io.sleep(patience.poll_s)
            continue
        if outcome.code not in REPEAT_VOUCHER_CODES or _is_closed(outcome):
            return outcome
        if outcome.code in CLAIMED_CODES:
            submission.is_claimed = True
            await io.report_progress(PaymentProgress(payment=submission.signed, is_accepted=True))
        last = outcome
        pause_s = wait.next_pause_s(outcome)
        if pause_s is None:
            break
        if is_chain_away(outcome):
            await report_notice(io, submission.signed, outcome)
        await io.sleep(pause_s)
    assert last is not None, "requests without a response end the loop before"
    if last.code == Code.PAYMENT_OUTCOME_UNKNOWN.value:
        raise _build_held(submission, last)
    raise PaymentPending(f"{quote_refusal(last)} {_advise_repeat(submission)}", reason=last.code)


def _is_closed(response: GatewayResponse) -> bool:
    reason = (response.problem or {}).get("reason")
    is_busy = response.code == Code.CHANNEL_BUSY.value
    return is_busy and reason in (WITHDRAWAL_PENDING, CHANNEL_DRAINING, NO_GAS)


async def _end_without_response(
    io: CallIo, submission: _VoucherSubmission, broken: NoResponse
) -> GatewayUnreachable:
    """The failure of a request without a response. A voucher that was provably never sent is dropped, with the deposit that was signed with it."""
    if submission.is_doubtful or submission.is_claimed:
        failure = GatewayUnreachable(f"{broken.detail} {_advise_repeat(submission)}", is_sent=True)
        failure.is_retryable = submission.is_repeatable
        return failure
    await io.drop_voucher(submission.signed)
    return GatewayUnreachable(broken.detail, is_sent=False)


# ---- Responses.


async def _decide(
    io: CallIo, submission: _VoucherSubmission, response: GatewayResponse
) -> CallResult | _Corrected:
    """The outcome by a response. A successful receipt counts with every status."""
    charge = read_charge(response.headers)
    if charge is not None:
        return await _end_charged(io, submission, response)
    if response.payment_state == "held" or (response.is_402 and response.payment_state == "charged"):
        raise _build_held(submission, response)
    if _is_closed(response):
        raise (await _end_closed(io, submission, response))
    if response.is_402:
        return await _decide_402(io, submission, response)
    if response.code == Code.PAYMENT_ALREADY_USED.value:
        await io.record_channel(replace(submission.channel, pending=None))
        raise _build_held(submission, response, retryable=False)
    if (submission.is_doubtful or submission.is_claimed) and not names_authorization_outcome(response):
        raise _build_held(submission, response)
    channel = replace(submission.channel, pending=None)
    if response.payment_state == "charged":  # without its sum: the next corrective 402 states it
        channel = replace(channel, calls=channel.calls + 1)
    await io.record_channel(channel)
    return CallResult(response=response, voucher=submission.signed)


async def _end_closed(
    io: CallIo, submission: _VoucherSubmission, response: GatewayResponse
) -> PaymentRefused:
    """The channel takes no call now. Its voucher stays pending where the gateway may have stored it before. A withdrawal is recorded, so that the next call uses another
    rail until the chain shows its end."""
    channel, reason = submission.channel, (response.problem or {}).get("reason")
    if not (submission.is_doubtful or submission.is_claimed):
        channel = replace(channel, pending=None)
    if reason == WITHDRAWAL_PENDING:
        channel = replace(channel, withdrawal=channel.withdrawal or Withdrawal(amount=0, ready_s=0))
    await io.record_channel(channel)
    return PaymentRefused(
        f"{quote_refusal(response)} Pay by another rail (--rail, rail=).",
        transaction=None,
        reason=str(reason),
    )


async def _end_charged(io: CallIo, submission: _VoucherSubmission, response: GatewayResponse) -> CallResult:
    charge, channel = read_charge(response.headers), submission.channel
    assert charge is not None
    settled, held = apply_charge(channel, charge), channel.deposit
    has_landed = held is not None and settled.deposit is None
    receipt = read_receipt(response.headers)
    await io.record_channel(
        settled,
        deposit=held.nonce if held is not None and has_landed else None,
        tx_hash=receipt.transaction if receipt is not None and has_landed else None,
    )
    await io.report_progress(PaymentProgress(payment=submission.signed, is_charged=True))
    return CallResult(response=response, voucher=submission.signed)


async def _decide_402(io: CallIo, submission: _VoucherSubmission, response: GatewayResponse) -> _Corrected:
    """A corrective 402 means that the gateway did not store the voucher. Every other 402 refuses the payment: the voucher buys nothing, and a deposit in flight can only
    raise the balance of the channel."""
    channel, correction = submission.channel, read_correction(response.headers)
    if correction is not None and is_same_channel(correction.offer, channel):
        return _Corrected(
            channel=channel,
            correction=correction,
            response=response,
            is_doubtful=submission.is_doubtful or submission.is_claimed,
        )
    is_ignored = response.code == Code.PAYMENT_REQUIRED.value  # as if the request had carried no payment
    if submission.is_doubtful or (is_ignored and submission.is_claimed):
        raise _build_held(submission, response)
    await io.record_channel(replace(channel, pending=None))
    reason = (response.problem or {}).get("reason")
    raise PaymentRefused(
        f"The gateway does not accept the voucher of {submission.signed.describe()} of the channel {channel.id}: {read_detail(response)} What was deposited stays "
        "yours: tollway wallet channels lists it.",
        transaction=None,
        reason=reason if isinstance(reason, str) else response.code,
    )


def is_same_channel(offer: OfferedChannel, channel: OwnChannel) -> bool:
    """Whether an offer is of this channel."""
    named: ChannelConfig = offer.build_config(channel.config.payer, channel.config.salt)
    return (offer.terms.chain_id, named) == (channel.asset.chain_id, channel.config)


async def _heal(io: CallIo, corrected: _Corrected, source: PaymentSource) -> OwnChannel:
    """The channel by a corrective 402. Raises `PaymentRefused` without a proof of what was charged, and `CallHeld` where it shows that the voucher of this call was charged."""
    channel, pending = corrected.channel, corrected.channel.pending
    assert pending is not None
    totals: EscrowState | None = None
    if channel.asset.chain_id in source.chains:
        try:
            totals = await fetch_state(io, channel)
        except (NodeUnreachable, CannotPay):
            totals = None
    healed = heal_channel(channel, corrected.correction, totals, is_doubtful=corrected.is_doubtful)
    if isinstance(healed, VoucherRefused):
        await io.record_channel(replace(channel, pending=None))
        raise _refuse_correction(corrected, healed.reason)
    await io.record_channel(healed)
    if corrected.is_doubtful and healed.charged > pending.charged_before:
        raise CallHeld(
            f"The call was sent, and the gateway has charged its channel {channel.id} since; its response is not stored. /history shows the call. Repeat the request only if "
            "it may be paid again.",
            transaction=None,
            call_id=None,
            call_url=None,
        )
    return healed


def _refuse_correction(corrected: _Corrected, why: str) -> PaymentRefused:
    return PaymentRefused(
        f"The gateway asks for another voucher of the channel {corrected.channel.id}, and none is signed: {why}.",
        transaction=None,
        reason=corrected.response.code,
    )


def _build_held(
    submission: _VoucherSubmission, response: GatewayResponse, *, retryable: bool = True
) -> CallHeld:
    is_retryable = retryable and (submission.is_repeatable or not submission.is_doubtful)
    words = f"{read_detail(response)} {_advise_repeat(submission)}"
    return build_call_held(response, words, is_retryable=is_retryable)


def _advise_repeat(submission: _VoucherSubmission) -> str:
    channel: ChannelId = submission.channel.id
    return (
        f"A voucher of at most {submission.signed.describe()} of the channel {channel} was sent. Repeat the same request: it sends the same voucher, and nothing is paid "
        "twice. /history shows the outcome."
    )
