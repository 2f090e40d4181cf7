"""The history port of the ledger model: the counterpart of `storage.ledger.history`. It only reads."""

from collections.abc import Callable
from dataclasses import replace

from tests.model.rows import (
    Debt,
    MemoryCall,
    MemoryRows,
    call_record,
    debts_from,
    is_asked_for,
    named_calls,
    refund_of,
    shown_payment,
)
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId, TxHash
from tollway.ledger.history import (
    HistoryPage,
    HistoryQuery,
    HistoryRole,
    JoinedCredit,
    LastPayment,
    ListedPayment,
    PaymentPlace,
    PaymentQuery,
)
from tollway.ledger.records import CallRecord, CallState, KeyedCall, KeyName, Payment, RecordedTransaction
from tollway.limits import DEFAULT_LIMITS, Limits

TOTAL_MAX = 10_000


class MemoryStatement:
    """Keeps the promises of `CallHistory`. `away` makes every method raise `StorageUnavailable`."""

    def __init__(self, *, now_ms: Callable[[], int], limits: Limits = DEFAULT_LIMITS) -> None:
        self._rows = MemoryRows()
        self._now_ms = now_ms
        self._limits = limits
        self.away = False

    @property
    def rows(self) -> MemoryRows:
        """The rows that all users of this ledger share."""
        return self._rows

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
        return HistoryPage(calls=tuple(map(self._record, shown)), total=total, is_lower_bound=is_beyond)

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        self._answer()
        call = self._rows.calls.get(call_id)
        return None if call is None else self._record(call)

    def _record(self, call: MemoryCall) -> CallRecord:
        record = call_record(call, unknown_hold_ms=self._limits.unknown_hold_s * 1000)
        return replace(record, refund=refund_of(self._rows, record.id)) if self._rows.refunds else record

    async def read_calls(self, query: HistoryQuery) -> tuple[CallRecord, ...]:
        return (await self.history(query)).calls

    async def find_last_call(self, query: HistoryQuery) -> CallRecord | None:
        page = await self.read_calls(replace(query, limit=query.limit + 1))
        return page[-2] if len(page) > query.limit else None

    async def find_newer_place(self, query: HistoryQuery) -> CallId | None:
        calls = await self.read_calls(replace(query, before=None, offset=0, limit=TOTAL_MAX))
        ids = [one.id for one in calls]
        if query.before not in ids:
            return None
        place = ids.index(query.before) - query.limit
        return ids[place] if place >= 0 else None

    async def find_newer_payment_place(self, query: PaymentQuery) -> PaymentPlace | None:
        if query.before is None:
            return None
        everything = await self.read_payments(replace(query, before=None, offset=0, limit=TOTAL_MAX))
        older = await self.read_payments(replace(query, offset=0, limit=TOTAL_MAX))
        place = len(everything) - len(older) - 1 - query.limit
        if place < 0:
            return None
        last = await self.find_last_payment(replace(query, before=None, offset=0, limit=place + 1))
        return None if last is None else last.place

    async def read_payments(self, query: PaymentQuery) -> tuple[ListedPayment, ...]:
        self._answer()
        own = [one for one in self._payments_of(query.wallet, query.role) if self._is_recorded_in(one, query)]
        if query.before is not None or query.after is not None:
            place = self._place(query)
            own = [one for one in own if place is not None and (one.block_time, one.id) < place]
        listed = [
            ListedPayment(
                payment=one,
                recorded_ms=self._rows.recorded_ms[one.id],
                is_restored=one.is_held and self._rows.restored_ms is not None,
                has_unknown_call=bool(await self.unknown_calls(one.id, limit=1)),
            )
            for one in own[query.offset : query.offset + query.limit]
        ]
        return tuple(listed)

    async def find_last_payment(self, query: PaymentQuery) -> LastPayment | None:
        page = await self.read_payments(replace(query, limit=query.limit + 1))
        if len(page) <= query.limit:
            return None
        last = page[-2].payment
        ids = sorted(
            one.id for one in self._payments_of(query.wallet, query.role) if one.tx_hash == last.tx_hash
        )
        number = ids.index(last.id) if len(ids) > 1 else None
        return LastPayment(payment=last, place=PaymentPlace(tx_hash=last.tx_hash, number=number))

    def _payments_of(self, wallet: Address, role: HistoryRole) -> list[Payment]:
        own = [
            shown_payment(one)
            for one in self._rows.payments.values()
            if not one.is_escrow and not one.is_refund
            if (one.payer if role == "payer" else one.payee) == wallet
        ]
        return sorted(own, key=lambda one: (one.block_time, one.id), reverse=True)

    def _is_recorded_in(self, payment: Payment, query: PaymentQuery) -> bool:
        recorded_ms = self._rows.recorded_ms[payment.id]
        is_late = query.from_ms is None or recorded_ms >= query.from_ms
        return is_late and (query.to_ms is None or recorded_ms <= query.to_ms)

    def _place(self, query: PaymentQuery) -> tuple[int, int] | None:
        if query.after is not None:
            return query.after.block_time, query.after.id
        assert query.before is not None
        named = [
            one for one in self._payments_of(query.wallet, query.role) if one.tx_hash == query.before.tx_hash
        ]
        named.sort(key=lambda one: one.id)
        if query.before.number is not None:
            named = named[query.before.number : query.before.number + 1]
        return min(((one.block_time, one.id) for one in named), default=None)

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
        shown = (one for one in self._payments_with(tx_hash) if not one.is_escrow and not one.is_refund)
        return tuple(one for one in shown if one.payer == payer)

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

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        self._answer()
        holding = [
            call
            for call in self._newest_first()
            if call.state is CallState.UNKNOWN and call.parts.get(payment_id, 0)
        ]
        return tuple(call.claim.call_id for call in holding[:limit])

    async def joined_credit(self, call_id: CallId, *, limit: int) -> tuple[JoinedCredit, ...]:
        self._answer()
        call = self._rows.calls.get(call_id)
        if call is None:
            return ()
        return tuple(
            JoinedCredit(tx_hash=self._rows.payments[key].tx_hash, units=units)
            for key, units in sorted(call.parts.items())[: limit + 1]
            if key != call.claim.payment_id
        )[:limit]

    async def debts(self, payer: Address) -> tuple[Debt, ...]:
        self._answer()
        owed = self._rows.debts.items()
        return debts_from({account: units for account, units in owed if account.payer == payer and units})

    async def find_keyed_call(
        self, payer: Address, idempotency_key: str, *, since_ms: int
    ) -> KeyedCall | None:
        self._answer()
        return self._named_calls(since_ms).get(KeyName(payer, idempotency_key))

    def _named_calls(self, since_ms: int) -> dict[KeyName, KeyedCall]:
        return named_calls(self._rows.calls.values(), since_ms=since_ms, is_answered=self._has_answer)

    def _has_answer(self, call_id: CallId) -> bool:
        stored = self._rows.answers.get(call_id)
        return stored is not None and stored.created_ms > self._now_ms() - self._limits.response_ttl_s * 1000

    async def find_transaction(self, tx_hash: TxHash) -> RecordedTransaction:
        return RecordedTransaction(
            payments=self._payments_with(tx_hash),
            is_admitted=tx_hash in self._rows.admitted,
            held_before_ms=self._rows.restored_ms,
        )

    def _payments_with(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        self._answer()
        return tuple(shown_payment(one) for one in self._rows.payments.values() if one.tx_hash == tx_hash)

    def _answer(self) -> None:
        if self.away:
            raise StorageUnavailable

    def _newest_first(self) -> list[MemoryCall]:
        return sorted(self._rows.calls.values(), key=lambda call: call.order, reverse=True)
