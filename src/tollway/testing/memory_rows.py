"""The rows of the books in memory, what they mean to a reader, and the statement drawn from them. Never moves one."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tollway.errors import StorageUnavailable
from tollway.identifiers import Address, CallId, TxHash
from tollway.ledger.book import Claim, Close, Debt, Finish, NonceUsed, OpenCall
from tollway.ledger.call import TAKING, CallRecord, CallState, NewPayment, Payment, PaymentState, Rail
from tollway.ledger.claims import NonceKey, Purse, nonce_key
from tollway.ledger.parts import Parts
from tollway.ledger.statement import HistoryPage, HistoryQuery, HistoryStatus

TOTAL_MAX = 10_000


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
    close: Close | None = None
    finish: Finish | None = None
    completed_ms: int | None = None

    @property
    def order(self) -> tuple[int, CallId]:
        return (self.claim.created_ms, self.claim.call_id)


@dataclass(slots=True, kw_only=True)
class MemoryRows:
    """What all gateways share. A payment is kept with its value on the chain, also when it is gone."""

    payments: dict[int, Payment] = field(default_factory=dict)
    checked_ms: dict[int, int] = field(default_factory=dict)
    gone_ms: dict[int, int] = field(default_factory=dict)
    calls: dict[CallId, MemoryCall] = field(default_factory=dict)
    seen_ms: dict[str, int] = field(default_factory=dict)
    admitted: set[TxHash] = field(default_factory=set)
    ready_ms: int | None = None
    outages: list[tuple[int, int]] = field(default_factory=list)
    restored_ms: int | None = None


class MemoryStatement:
    """Keeps the promises of `Statement`. `away` makes every method raise `StorageUnavailable`."""

    def __init__(self) -> None:
        self._rows = MemoryRows()
        self.away = False

    async def history(self, query: HistoryQuery) -> HistoryPage:
        self._answer()
        calls = [call for call in self._newest_first() if is_asked_for(call, query)]
        is_filtered = any(
            one is not None for one in (query.listing_id, query.status, query.from_ms, query.to_ms)
        )
        is_beyond = is_filtered and len(calls) > TOTAL_MAX
        total = TOTAL_MAX if is_beyond else len(calls)
        if query.before is not None:
            place = self._rows.calls.get(query.before)
            calls = [call for call in calls if place is not None and call.order < place.order]
        shown = calls[query.offset : query.offset + query.limit]
        return HistoryPage(calls=tuple(map(call_record, shown)), total=total, is_lower_bound=is_beyond)

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        self._answer()
        call = self._rows.calls.get(call_id)
        return None if call is None else call_record(call)

    async def payments_of(self, payer: Address, *, limit: int, offset: int) -> tuple[Payment, ...]:
        self._answer()
        own = [shown_payment(one) for one in self._rows.payments.values() if one.payer == payer]
        own.sort(key=lambda one: (one.block_time, one.id), reverse=True)
        return tuple(own[offset : offset + limit])

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
        return tuple(one for one in self._payments_with(tx_hash) if one.payer == payer)

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        self._answer()
        own = [
            call
            for call in self._newest_first()
            if call.claim.payment_id == payment_id or payment_id in call.parts
        ]
        return tuple(call.claim.call_id for call in own[:limit])

    async def spending_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        self._answer()
        spending = [call for call in self._newest_first() if call.parts.get(payment_id, 0)]
        return tuple(call.claim.call_id for call in spending[:limit])

    async def debts(self, payer: Address) -> tuple[Debt, ...]:
        self._answer()
        return tuple(
            Debt(chain_id=purse.chain_id, asset=purse.asset, payee=purse.payee, units=units)
            for purse, units in sorted(debts_of(self._rows.calls.values()).items())
            if purse.payer == payer
        )

    def _payments_with(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        self._answer()
        return tuple(shown_payment(one) for one in self._rows.payments.values() if one.tx_hash == tx_hash)

    def _answer(self) -> None:
        if self.away:
            raise StorageUnavailable

    def _newest_first(self) -> list[MemoryCall]:
        return sorted(self._rows.calls.values(), key=lambda call: call.order, reverse=True)


def shown_payment(payment: Payment) -> Payment:
    if payment.state is not PaymentState.GONE:
        return payment
    return replace(payment, value_units=payment.taken_units)


def payment_key(payment: Payment | NewPayment) -> tuple[object, ...]:
    return (payment.chain_id, payment.tx_hash, payment.asset, payment.payer, payment.payee)


def purse_of_claim(claim: Claim) -> Purse:
    assert claim.chain_id is not None
    assert claim.asset is not None
    assert claim.payer is not None
    assert claim.pay_to is not None
    return Purse(claim.chain_id, claim.asset, claim.payer, claim.pay_to)


def owed_units(call: MemoryCall) -> int:
    return call.claim.price_units - sum(call.parts.values())


def debts_of(calls: Iterable[MemoryCall]) -> dict[Purse, int]:
    owed: dict[Purse, int] = {}
    for call in calls:
        if call.state is CallState.REORGED:
            purse = purse_of_claim(call.claim)
            owed[purse] = owed.get(purse, 0) + owed_units(call)
    return owed


def held_of(calls: Iterable[MemoryCall], payment_id: int) -> int:
    return sum(call.parts.get(payment_id, 0) for call in calls if is_open(call))


def used_nonces(calls: Iterable[MemoryCall]) -> dict[NonceKey, NonceUsed]:
    keyed = ((nonce_key(call.claim), call) for call in calls if call.state is not CallState.RELEASED)
    return {
        key: NonceUsed(call_id=call.claim.call_id, state=call.state) for key, call in keyed if key is not None
    }


def open_call(call: MemoryCall) -> OpenCall:
    return OpenCall(
        call_id=call.claim.call_id,
        state=call.state,
        epoch=call.epoch,
        attempts=call.attempts,
        price=call.claim.price,
        price_units=call.claim.price_units,
    )


def holds_right(call: MemoryCall) -> bool:
    held_units, price_units = sum(call.parts.values()), call.claim.price_units
    if call.state in TAKING:
        return held_units == price_units
    return held_units == 0 if call.state is CallState.RELEASED else held_units < price_units


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


def call_record(call: MemoryCall) -> CallRecord:
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
        tx_hash=claim.tx_hash,
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
        error=close.error if close else None,
        created_ms=claim.created_ms,
        completed_ms=call.completed_ms,
    )
