"""The rows of the ledger model, and reads of them. No function changes a row."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.budgets import Budget
from tollway.ledger.channels import Channel, ChannelName
from tollway.ledger.claims import (
    CreditAccount,
    KnownAuthorization,
    NonceKey,
    PayerAccount,
    credit_account_of,
    find_account,
    key_name,
    nonce_key,
)
from tollway.ledger.history import HistoryQuery, HistoryStatus
from tollway.ledger.ledger import Claim, Close, Finish, NonceUnavailable, NonceUsed, StoredResponse
from tollway.ledger.records import (
    TAKING,
    Authorization,
    AuthorizationKey,
    CallRecord,
    CallRefund,
    CallState,
    KeyedCall,
    KeyName,
    NewPayment,
    OpenCall,
    Parts,
    Payment,
    PaymentState,
    Rail,
    RequestName,
    SettlementAttempt,
    is_charged_by_provider,
)


@dataclass(slots=True, kw_only=True)
class MemoryCall:
    claim: Claim
    rail: Rail
    owner_id: str
    parts: Parts
    moved_ms: int
    state: CallState = CallState.FORWARDING
    epoch: int = 1
    attempts: int = 1
    cut: str = ""
    clock_releases: bool = True
    close: Close | None = None
    error: str | None = None
    finish: Finish | None = None
    completed_ms: int | None = None
    actual_units: int | None = None
    quantities: str | None = None
    """Of a metered call, once its price is known; the quantities are empty before."""
    repeat_nonces: frozenset[NonceKey] = frozenset()
    """Of the bound signatures with which it ran again."""
    budget_ms: int | None = None
    """When it counts in the budget of its payer; None where its wallet had no owner."""

    @property
    def is_unmeasured(self) -> bool:
        """Charged, and its price is not known yet."""
        return self.quantities == "" and self.state in (CallState.CONSUMED, CallState.REORGED)

    @property
    def price_units(self) -> int:
        """What it takes in a taking state."""
        return self.claim.price_units if self.actual_units is None else self.actual_units

    @property
    def is_charged_by_provider(self) -> bool:
        return is_charged_by_provider(self.state, None if self.close is None else self.close.upstream_status)

    @property
    def order(self) -> tuple[int, CallId]:
        return (self.claim.created_ms, self.claim.call_id)


@dataclass(slots=True, kw_only=True)
class MemoryAuthorization:
    """An authorisation and the call that it was claimed for last."""

    authorization: Authorization
    call_id: CallId
    seen_block: int
    is_orphaned: bool = False
    looked_ms: int = 0
    transfer: TxHash | None = None
    settled_block: int | None = None


@dataclass(slots=True, kw_only=True)
class MemoryAttempt:
    """`cost_wei`: what it may cost, and once it is mined, what it did."""

    attempt: SettlementAttempt
    cost_wei: int
    is_open: bool = True


@dataclass(slots=True, kw_only=True)
class MemoryWalletGas:
    """One nonce that was taken for a payer with code."""

    attempt: SettlementAttempt
    code_hash: bytes
    cost_wei: int
    is_reverted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    payer: Address
    provider: Address
    answer: StoredResponse
    size: int
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRefund:
    call_id: CallId
    payment_id: int
    units: int
    is_credit: bool
    created_ms: int
    is_reversed: bool = False


@dataclass(slots=True, kw_only=True)
class MemoryRows:
    """What all gateways share. A payment is kept with its value on the chain, also when it is gone.

    `life`: of the machine that keeps the ledger; `lives`: in which one each gateway was last looked after."""

    payments: dict[int, Payment] = field(default_factory=dict)
    recorded_ms: dict[int, int] = field(default_factory=dict)
    checked_ms: dict[int, int] = field(default_factory=dict)
    gone_ms: dict[int, int] = field(default_factory=dict)
    debts: dict[CreditAccount, int] = field(default_factory=dict)
    calls: dict[CallId, MemoryCall] = field(default_factory=dict)
    channels: dict[ChannelName, Channel] = field(default_factory=dict)
    authorizations: dict[AuthorizationKey, MemoryAuthorization] = field(default_factory=dict)
    attempts: dict[tuple[ChainId, TxHash], MemoryAttempt] = field(default_factory=dict)
    lanes: dict[tuple[ChainId, Address], int] = field(default_factory=dict)
    wallet_gas: dict[tuple[ChainId, Address, int], MemoryWalletGas] = field(default_factory=dict)
    answers: dict[CallId, MemoryAnswer] = field(default_factory=dict)
    seen_ms: dict[str, int] = field(default_factory=dict)
    life: int = 0
    lives: dict[str, int] = field(default_factory=dict)
    admitted: set[TxHash] = field(default_factory=set)
    ready_ms: int | None = None
    outages: list[tuple[int, int]] = field(default_factory=list)
    budgets: dict[tuple[Address, Address], Budget] = field(default_factory=dict)
    restored_ms: int | None = None
    refunds: dict[tuple[CallId, int], MemoryRefund] = field(default_factory=dict)


def has_refund(rows: MemoryRows, call_id: CallId, *, is_in_force: bool = False) -> bool:
    """Whether the call was ever refunded; `is_in_force`: whether it is now."""
    return any(
        one.call_id == call_id and not (is_in_force and one.is_reversed) for one in rows.refunds.values()
    )


def refund_of(rows: MemoryRows, call_id: CallId) -> CallRefund | None:
    """The refund in force, as the record of the call has it."""
    for one in rows.refunds.values():
        if one.call_id == call_id and not one.is_reversed:
            payment = rows.payments[one.payment_id]
            return CallRefund(
                units=one.units,
                tx_hash=payment.tx_hash,
                is_credit=one.is_credit,
                is_final=payment.state is PaymentState.FINAL,
                created_ms=one.created_ms,
            )
    return None


def shown_payment(payment: Payment) -> Payment:
    if payment.state is not PaymentState.GONE:
        return payment
    return replace(payment, value_units=payment.taken_units)


def payment_key(payment: Payment | NewPayment) -> tuple[object, ...]:
    return (payment.chain_id, payment.tx_hash, payment.asset, payment.payer, payment.payee)


def owed_units(call: MemoryCall) -> int:
    return call.price_units - sum(call.parts.values())


def debts_of(calls: Iterable[MemoryCall]) -> dict[CreditAccount, int]:
    """What the calls lack, by account: the kept debts must be equal."""
    owed: dict[CreditAccount, int] = {}
    for call in calls:
        if call.state is CallState.REORGED and call.claim.channel is None:
            account = find_account(call.claim)
            owed[account] = owed.get(account, 0) + owed_units(call)
    return owed


@dataclass(frozen=True, slots=True, kw_only=True)
class Debt:
    """What a payer owes a payee because paying transactions left the chain after service."""

    chain_id: ChainId
    asset: str
    payee: Address
    units: int


def debts_from(owed: Mapping[CreditAccount, int]) -> tuple[Debt, ...]:
    """One payer's debts, by account."""
    return tuple(
        Debt(chain_id=account.chain_id, asset=account.asset, payee=account.payee, units=units)
        for account, units in sorted(owed.items())
    )


def sum_unfinal(payments: Iterable[Payment]) -> dict[PayerAccount, int]:
    """What is taken from the unfinal ones, by wallet, in ledger units. The transfer of a refund buys nothing."""
    found: dict[PayerAccount, int] = {}
    for payment in payments:
        if payment.state is PaymentState.UNFINAL and not payment.is_refund:
            wallet = PayerAccount(payment.chain_id, payment.asset, payment.payer)
            found[wallet] = found.get(wallet, 0) + payment.taken_units
    return found


def held_of(calls: Iterable[MemoryCall], payment_id: int) -> int:
    return sum(call.parts.get(payment_id, 0) for call in calls if is_open(call) or call.is_unmeasured)


def used_nonces(calls: Iterable[MemoryCall]) -> dict[NonceKey, NonceUsed]:
    return {
        key: NonceUsed(call_id=call.claim.call_id, state=call.state)
        for call in calls
        if call.state is not CallState.RELEASED
        for key in (nonce_key(call.claim), *call.repeat_nonces)
        if key is not None
    }


def named_calls(
    calls: Iterable[MemoryCall], *, since_ms: int, is_answered: Callable[[CallId], bool]
) -> dict[KeyName, KeyedCall]:
    """What each key has named; of several the newest."""
    kept = [
        call for call in calls if call.state is not CallState.RELEASED and call.claim.created_ms >= since_ms
    ]
    kept.sort(key=lambda call: call.order)
    keyed = ((key_name(call.claim), call) for call in kept)
    return {
        name: _keyed_call(call, is_answered(call.claim.call_id)) for name, call in keyed if name is not None
    }


def _keyed_call(call: MemoryCall, has_stored_response: bool) -> KeyedCall:
    claim = call.claim
    return KeyedCall(
        call_id=claim.call_id,
        listing_id=claim.listing_id,
        digest=claim.digest,
        state=call.state,
        epoch=call.epoch,
        price=claim.price,
        price_units=claim.price_units,
        payment_id=claim.payment_id,
        moved_ms=call.moved_ms,
        metering=claim.metering,
        actual_units=call.actual_units,
        authorization=None if claim.authorization is None else claim.authorization.key,
        has_stored_response=has_stored_response,
        is_lost=is_cut(call),
        is_delivered=call.finish is not None,
    )


def known_authorizations(rows: MemoryRows) -> list[KnownAuthorization]:
    return [
        KnownAuthorization(
            key=key,
            call_id=held.call_id,
            state=rows.calls[held.call_id].state,
            price_units=rows.calls[held.call_id].claim.price_units,
            settled_block=held.settled_block,
            valid_before=held.authorization.valid_before,
            deposit_units=held.authorization.base_units if held.authorization.deposit else 0,
        )
        for key, held in rows.authorizations.items()
    ]


def find_open(calls: Iterable[MemoryCall], name: RequestName) -> OpenCall | None:
    """The newest call of that request without an outcome, or with half an answer."""
    found = [
        call
        for call in calls
        if call.claim.digest == name.digest
        and call.claim.payment_id == name.payment_id
        and (is_open(call) or is_cut(call))
    ]
    if not found:
        return None
    call = max(found, key=lambda one: one.order)
    return OpenCall(
        call_id=call.claim.call_id,
        state=call.state,
        epoch=call.epoch,
        attempts=call.attempts,
        price=call.claim.price,
        price_units=call.claim.price_units,
        metering=call.claim.metering,
        actual_units=call.actual_units,
    )


def holds_right(call: MemoryCall) -> bool:
    held_units, price_units = sum(call.parts.values()), call.price_units
    if call.claim.payment_id is None:
        is_ended = call.state in (CallState.CONSUMED, CallState.REORGED)
        return held_units == 0 and not (is_ended and call.claim.authorization is not None)
    if call.state in TAKING:
        return held_units == price_units
    return held_units == 0 if call.state is CallState.RELEASED else held_units < price_units


def is_unpaid(call: MemoryCall) -> bool:
    """An authorisation is to pay it, and has not."""
    return call.claim.authorization is not None and call.claim.payment_id is None


def charged_holders(rows: MemoryRows, payment_id: int) -> list[MemoryCall]:
    """The charged calls that hold units of the payment, the oldest first."""
    found = [
        call
        for call in rows.calls.values()
        if call.state in (CallState.CONSUMED, CallState.REORGED) and payment_id in call.parts
    ]
    return sorted(found, key=lambda call: call.order)


def find_credits(rows: MemoryRows, account: CreditAccount) -> list[Payment]:
    """The payments of the account with unspent credit, the oldest first."""
    found = [
        payment
        for payment in rows.payments.values()
        if credit_account_of(payment) == account
        and payment.state is not PaymentState.GONE
        and not payment.is_held
        and payment.remaining_units > 0
    ]
    return sorted(found, key=lambda payment: (payment.block_number, payment.id))


def is_open(call: MemoryCall) -> bool:
    return call.state in (CallState.FORWARDING, CallState.UNKNOWN)


def is_cut(call: MemoryCall) -> bool:
    return call.state is CallState.CONSUMED and call.cut == "cut"


def is_asked_for(call: MemoryCall, query: HistoryQuery) -> bool:
    claim = call.claim
    checks: Iterable[bool] = (
        (claim.payer if query.role == "payer" else claim.provider) == query.wallet,
        query.listing_id is None or claim.listing_id == query.listing_id,
        query.from_ms is None or claim.created_ms >= query.from_ms,
        query.to_ms is None or claim.created_ms <= query.to_ms,
        query.status is None or history_status(call) == query.status,
    )
    return all(checks)


def history_status(call: MemoryCall) -> HistoryStatus:
    if call.state in (CallState.FORWARDING, CallState.SETTLING):
        return "pending"
    if call.state is CallState.UNKNOWN:
        return "unknown"
    upstream_status = None if call.close is None else call.close.upstream_status
    is_good = call.state is not CallState.RELEASED and upstream_status is not None and upstream_status < 400
    return "succeeded" if is_good else "failed"


def call_record(call: MemoryCall, *, unknown_hold_ms: int) -> CallRecord:
    is_released = call.state is CallState.UNKNOWN and call.clock_releases and not is_unpaid(call)
    claim, close, finish = call.claim, call.close, call.finish
    return CallRecord(
        id=claim.call_id,
        listing_id=claim.listing_id,
        listing_name=claim.listing_name,
        provider=claim.provider,
        payer=claim.payer,
        method=claim.method,
        path=claim.path,
        state=call.state,
        rail=call.rail,
        price=claim.price,
        price_units=claim.price_units,
        currency=claim.currency,
        chain_id=claim.chain_id,
        asset=claim.asset,
        decimals=claim.decimals or 0,
        tx_hash=None if call.rail is Rail.CHANNEL else claim.tx_hash,
        channel_id=None if claim.channel is None or claim.payment_id is None else claim.channel.channel_id,
        pay_to=claim.pay_to,
        http_status=close.http_status if close else None,
        upstream_status=close.upstream_status if close else None,
        request_bytes=finish.request_bytes if finish else None,
        response_bytes=finish.response_bytes if finish else None,
        latency_ms=close.latency_ms if close else None,
        upstream_latency_ms=close.upstream_latency_ms if close else None,
        delivery=finish.delivery if finish else None,
        idempotency_key=claim.idempotency_key,
        request_id=claim.request_id,
        error=call.error,
        created_ms=claim.created_ms,
        completed_ms=call.completed_ms,
        moved_ms=call.moved_ms,
        held_until_ms=call.moved_ms + unknown_hold_ms if is_released else None,
        actual_units=call.actual_units,
        quantities=call.quantities,
        metering=claim.metering,
    )


# ---- Transactions of gas keys: of the ledger and of the gas ledger.


def attempts_of_call(rows: MemoryRows, call_id: CallId) -> tuple[SettlementAttempt, ...]:
    own = [one.attempt for one in rows.attempts.values() if one.attempt.call_id == call_id]
    return tuple(sorted(own, key=lambda one: (one.created_ms, one.nonce, one.tx_hash)))


def add_attempt(rows: MemoryRows, attempt: SettlementAttempt, *, is_filling: bool) -> bool | NonceUnavailable:
    call = rows.calls.get(attempt.call_id)
    if call is None or (call.state is not CallState.SETTLING and not is_filling):
        return False
    signed = (attempt.chain_id, attempt.sender, attempt.nonce)
    if (attempt.chain_id, attempt.tx_hash) in rows.attempts:
        return True
    own = [one.attempt for one in rows.attempts.values() if one.attempt.call_id == attempt.call_id]
    if signed in [(one.chain_id, one.sender, one.nonce) for one in own]:
        store_attempt(rows, attempt)
        return True
    if not is_filling:
        return take_nonce(rows, attempt) or True
    is_passed = attempt.nonce < rows.lanes.get((attempt.chain_id, attempt.sender), 0)
    waiting = [one.attempt for one in rows.attempts.values() if one.is_open]
    if not is_passed or signed in [(one.chain_id, one.sender, one.nonce) for one in waiting]:
        return False
    store_attempt(rows, attempt)
    return True


def take_nonce(rows: MemoryRows, attempt: SettlementAttempt) -> NonceUnavailable | None:
    sequence = (attempt.chain_id, attempt.sender)
    next_nonce = rows.lanes.get(sequence, 0)
    if attempt.nonce != next_nonce:
        return NonceUnavailable(next_nonce=next_nonce)
    store_attempt(rows, attempt)
    rows.lanes[sequence] = next_nonce + 1
    return None


def store_attempt(rows: MemoryRows, attempt: SettlementAttempt) -> None:
    key = (attempt.chain_id, attempt.tx_hash)
    if key in rows.attempts:
        raise StorageUnavailable
    rows.attempts[key] = MemoryAttempt(attempt=attempt, cost_wei=attempt.fee_max_wei)
    if attempt.code_hash is not None:
        rows.wallet_gas[attempt.chain_id, attempt.sender, attempt.nonce] = MemoryWalletGas(
            attempt=attempt, code_hash=attempt.code_hash, cost_wei=attempt.fee_max_wei
        )
