"""A model of the ledger in memory, without persistence: the counterpart of `storage.ledger.ledger_store` for tests of other packages.

It passes the same contract suite and uses the same rules of `ledger/`. `away` makes every method raise `StorageUnavailable`. `another`
is a second gateway with the same rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Self

from tests.model.budgets import MemoryBudgets
from tests.model.channels import channel_of
from tests.model.finality import MemoryFinality
from tests.model.refunds import MemoryRefunds, bring_refund_back
from tests.model.rows import (
    MemoryCall,
    charged_holders,
    debts_of,
    find_open,
    held_of,
    holds_right,
    is_cut,
    is_unpaid,
    known_authorizations,
    payment_key,
    shown_payment,
    sum_unfinal,
    used_nonces,
)
from tests.model.settling import Dropped
from tollway.audit_log import AuditOrigin
from tollway.errors import StorageUnavailable
from tollway.ids import CallId, TxHash
from tollway.ledger.budgets import BatchSpending
from tollway.ledger.channels import ChannelState
from tollway.ledger.claims import (
    NonceKey,
    check_claim,
    check_units,
    credit_account_of,
    decide_claims,
    find_account,
    request_name,
)
from tollway.ledger.ledger import (
    AuditReport,
    Claim,
    Claimed,
    ClaimOutcome,
    Close,
    Closed,
    Exhausted,
    Fenced,
    Finish,
    InDebt,
    NonceUsed,
)
from tollway.ledger.records import (
    UNDECIDED,
    CallState,
    KeyedCall,
    KeyName,
    NewPayment,
    OpenCall,
    Payment,
    PaymentState,
    RecordedTransaction,
    RequestName,
    Usage,
    decide_resolution,
    is_move_allowed,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.registry.metering import BASE, compute_cost, read_formulas, write_measured

GAP_MS = 60_000


def _base_of(call: MemoryCall) -> Usage:
    assert call.claim.metering is not None
    cost = compute_cost(
        read_formulas(call.claim.metering),
        BASE,
        max_units=call.claim.price_units,
        decimals=call.claim.decimals or 0,
    )
    return Usage(actual_units=cost.units, quantities=write_measured(BASE))


class MemoryLedger(MemoryBudgets, MemoryRefunds, MemoryFinality):
    """Keeps the promises of `Ledger` and `CallHistory`, within one process."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        owner_id: str = "memory",
        limits: Limits = DEFAULT_LIMITS,
        unfinal_max_nano: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        super().__init__(now_ms=now_ms, owner_id=owner_id, limits=limits)
        self._unfinal_max_nano = unfinal_max_nano

    def another(self, owner_id: str) -> Self:
        """A second gateway with the same rows."""
        other = type(self)(
            now_ms=self._now_ms,
            owner_id=owner_id,
            limits=self._limits,
            unfinal_max_nano=self._unfinal_max_nano,
        )
        other._rows = self._rows
        return other

    def shared_ms(self) -> int:
        return self._now_ms()

    async def find_payments(self, tx_hash: TxHash) -> tuple[Payment, ...]:
        return self._payments_with(tx_hash)

    async def record_payments(
        self, payments: Sequence[NewPayment], *, now_ms: int, based_on: RecordedTransaction | None = None
    ) -> tuple[Payment, ...]:
        self._answer()
        if based_on is not None and self._rows.restored_ms not in (None, based_on.held_before_ms):
            raise StorageUnavailable
        for new in payments:
            check_units(new.value_units)
        added = self._add_all(payments, now_ms)
        unmoved = [key for key in added if self._rows.payments[key].state is PaymentState.GONE]
        for key in unmoved:
            self._move_gone_calls(key, now_ms=now_ms)
        if unmoved:
            added = self._add_all(payments, now_ms)
        arrived = {credit_account_of(self._rows.payments[key]) for key, is_new in added.items() if is_new}
        for account in sorted(arrived):
            self._pay_debts(account)
        return tuple(shown_payment(self._rows.payments[key]) for key in added)

    def _add_all(self, payments: Sequence[NewPayment], now_ms: int) -> dict[int, bool]:
        """The payments in one transaction, each with whether value arrived in it."""
        with self._commit():
            return dict(self._add(new, now_ms) for new in payments)

    async def claim(self, claim: Claim) -> ClaimOutcome:
        check_claim(claim)
        outcome = await self._decide(claim)
        while isinstance(outcome, InDebt) and self._pay_debts(find_account(claim)) != outcome.units:
            outcome = await self._decide(claim)
        return outcome

    async def _decide(self, claim: Claim) -> ClaimOutcome:
        self._answer()
        if claim.call_id in self._rows.calls:
            raise StorageUnavailable
        spending = BatchSpending(self.bound_budgets(), now_ms=self._now_ms())
        counted = spending.count_of(claim)
        (decision,), debits = decide_claims(
            [claim],
            payments=[shown_payment(one) for one in self._rows.payments.values()],
            nonces=used_nonces(self._rows.calls.values()),
            keys=self._keys_of(claim),
            repeats=self._repeats_of(claim),
            debts=self._rows.debts,
            unfinal_max_nano=self._unfinal_max_nano,
            unfinal_units=sum_unfinal(self._rows.payments.values()),
            now_ms=self._now_ms(),
            authorizations=known_authorizations(self._rows),
            channels=self.channels(),
            unclaimed_nano=self._unclaimed_nano(),
            spending=spending,
        )
        if isinstance(decision.outcome, Exhausted) and claim.payment_id is not None:
            held_units = decision.outcome.held_units + held_of(self._rows.calls.values(), claim.payment_id)
            return replace(decision.outcome, held_units=held_units)
        if not isinstance(decision.outcome, Claimed):
            return decision.outcome
        for debit in debits:
            self._rows.payments[debit.payment_id] = replace(
                self._rows.payments[debit.payment_id],
                taken_units=debit.taken_units,
                calls=debit.calls,
                is_plain_ended=debit.is_plain_ended,
            )
        self._rows.calls[claim.call_id] = MemoryCall(
            claim=claim,
            rail=decision.outcome.rail,
            owner_id=self._owner_id,
            parts=decision.parts,
            moved_ms=self._now_ms(),
            quantities=None if claim.metering is None else "",
            budget_ms=None if counted is None else counted.at_ms,
        )
        self._note_authorization(claim)
        self._note_voucher(claim)
        return decision.outcome

    async def close(self, close: Close) -> Closed | Fenced:
        if not is_move_allowed(CallState.FORWARDING, close.after):
            raise ValueError(f"a forwarding never ends in {close.after}")
        if self.away and close.after is CallState.CONSUMED and close.upstream_status is not None:
            self._dropped[close.call_id] = Dropped(close.epoch, close)
        self._answer()
        call = self._rows.calls.get(close.call_id)
        if call is None or (call.state, call.epoch, call.owner_id) != (
            CallState.FORWARDING,
            close.epoch,
            self._owner_id,
        ):
            return Fenced()
        if close.after is CallState.CONSUMED and is_unpaid(call):
            return Fenced()
        name = channel_of(call.claim)
        before = None if name is None else self._rows.channels[name]
        self._move(call, close.after)
        goes_back = close.after is CallState.CONSUMED and close.upstream_status is None
        if not goes_back:
            call.close, call.error = close, close.error
        if close.after in (CallState.RELEASED, CallState.CONSUMED):
            call.completed_ms = self._now_ms()
        if goes_back and call.cut == "repeated" and call.attempts < self._limits.attempts_max:
            call.cut = "cut"
        if close.usage is not None and close.after is CallState.CONSUMED and call.is_unmeasured:
            self._measure(call, close.usage)
        if close.finish is not None:
            self.finish(close.finish)
        if before is not None:
            self._announce_measured(before, call)
        return Closed(
            remaining_units=self._rest_of(call),
            is_reorged=call.state is CallState.REORGED,
            announced=None if name is None else self._rows.channels[name].announced,
            moved_ms=call.moved_ms,
        )

    def finish(self, finish: Finish) -> None:
        call = self._rows.calls.get(finish.call_id)
        if self.away or call is None or call.epoch != finish.epoch:
            return
        call.finish, call.completed_ms = finish, finish.completed_ms
        if finish.usage is not None and call.is_unmeasured:
            self._measure(call, finish.usage)
        if finish.is_cut and call.state is CallState.CONSUMED and not call.cut:
            call.cut = "cut"

    async def finish_cut(self, finish: Finish) -> None:
        self.finish(finish)

    async def find_open_call(self, payment_id: int, digest: bytes) -> OpenCall | None:
        self._answer()
        return find_open(self._rows.calls.values(), RequestName(payment_id, digest))

    async def find_exhausted(self, claim: Claim) -> Exhausted | NonceUsed | None:
        self._answer()
        payments = [shown_payment(one) for one in self._rows.payments.values() if one.id == claim.payment_id]
        if claim.payer is None or any(payment.remaining_units > 0 for payment in payments):
            return None
        calls = self._rows.calls.values()
        (decision,), _ = decide_claims(
            [claim],
            payments=payments,
            nonces=used_nonces(calls),
            keys={},
            repeats=self._repeats_of(claim),
            debts=self._rows.debts,
            unfinal_max_nano={},
            unfinal_units={},
            now_ms=self._now_ms(),
        )
        if isinstance(decision.outcome, Exhausted) and claim.payment_id is not None:
            return replace(decision.outcome, held_units=held_of(calls, claim.payment_id))
        return decision.outcome if isinstance(decision.outcome, NonceUsed) else None

    async def reopen(
        self,
        call_id: CallId,
        *,
        epoch: int,
        now_ms: int,
        is_plain: bool = False,
        nonce: bytes | None = None,
    ) -> Claimed | Fenced | NonceUsed:
        self._answer()
        call = self._rows.calls.get(call_id)
        if call is None or call.epoch != epoch or not self._is_repeatable(call, is_plain=is_plain):
            return Fenced()
        if call.state is CallState.CONSUMED and self._keeps_charge(call_id):
            return Fenced()
        used = None if nonce is None else self._take_nonce(call, nonce)
        if used is not None:
            return used
        before = call.state
        if call.state is CallState.CONSUMED:
            call.cut = "repeated"
        self._move(call, CallState.FORWARDING)
        call.epoch += 1
        call.attempts += 1
        call.owner_id, call.finish, call.completed_ms = self._owner_id, None, None
        return Claimed(
            epoch=call.epoch, remaining_units=self._rest_of(call) or 0, rail=call.rail, before=before
        )

    def _take_nonce(self, call: MemoryCall, nonce: bytes) -> NonceUsed | None:
        """Of a bound signature, with which the call runs again: returns the other call that holds it."""
        payment = self._rows.payments[call.claim.payment_id or 0]
        key = NonceKey(payment.chain_id, payment.tx_hash, nonce)
        used = used_nonces(self._rows.calls.values()).get(key)
        if used is not None and used.call_id != call.claim.call_id:
            return used
        call.repeat_nonces |= {key}
        self._rows.payments[payment.id] = replace(payment, is_plain_ended=True)
        return None

    async def resolve(self, call_id: CallId, outcome: CallState, *, now_ms: int) -> CallState | None:
        self._answer()
        call = self._rows.calls.get(call_id)
        if call is None or call.state is not CallState.UNKNOWN:
            return None
        if call.claim.channel is not None and outcome is CallState.CONSUMED:
            return None
        after, held = decide_resolution(outcome, is_unpaid=is_unpaid(call)), self._held_by(call)
        self._move(call, after)
        if call.is_unmeasured:
            self._measure(call, _base_of(call))
        if after is not CallState.SETTLING:
            call.completed_ms = now_ms
        elif held is not None:
            held.is_orphaned, held.looked_ms = True, 0
            call.close = None if call.close is None else replace(call.close, upstream_status=None)
        return self._rows.calls[call_id].state  # `reorged` where its payment is gone

    async def renew_ownership(self, *, now_ms: int) -> None:
        self._answer()
        self._rows.seen_ms[self._owner_id] = now_ms
        self._rows.lives.setdefault(self._owner_id, self._rows.life)

    async def recover(self, *, now_ms: int) -> int:
        self._answer()
        lease_ms, hold_ms = self._limits.owner_lease_s * 1000, self._limits.unknown_hold_s * 1000
        living = {owner for owner, seen in self._rows.seen_ms.items() if seen > now_ms - lease_ms}
        stranded = [
            call
            for call in self._rows.calls.values()
            if call.state is CallState.FORWARDING and call.owner_id not in {*living, self._owner_id}
        ]
        expired = [
            call
            for call in self._rows.calls.values()
            if call.state is CallState.UNKNOWN
            and call.moved_ms <= now_ms - hold_ms
            and call.clock_releases
            and not is_unpaid(call)  # a sweeper looks at the chain first
        ]
        unmeasured = [
            call
            for call in self._rows.calls.values()
            if call.is_unmeasured and call.owner_id not in {*living, self._owner_id}
        ]
        for call in unmeasured:
            self._measure(call, _base_of(call))
        for call in stranded:
            self._interrupt(call, now_ms)
        for call in expired:
            self._move(call, CallState.RELEASED)
        self._rows.lives[self._owner_id] = self._rows.life
        return len(stranded) + len(unmeasured) + len(expired) + self._mark_orphaned({*living, self._owner_id})

    async def audit(self) -> AuditReport:
        self._answer()
        held: dict[int, int] = {}
        wrong: list[str] = []
        for call in self._rows.calls.values():
            for key, units in call.parts.items():
                held[key] = held.get(key, 0) + units
            if not holds_right(call):
                wrong.append(f"call {call.claim.call_id} is {call.state}")
        for one in self._rows.refunds.values():
            if self._rows.payments[one.payment_id].is_refund:
                held[one.payment_id] = held.get(one.payment_id, 0) + one.units
        for payment in self._rows.payments.values():
            if payment.taken_units != held.get(payment.id, 0):
                wrong.append(f"payment {payment.id} in {payment.tx_hash}")
        owed = debts_of(self._rows.calls.values())
        for account in sorted(owed.keys() | self._rows.debts.keys()):
            if owed.get(account, 0) != self._rows.debts.get(account, 0):
                wrong.append(f"the debt of {account}")
        wrong += self._wrong_channels()
        undecided = [one.claim for one in self._rows.calls.values() if one.state in UNDECIDED]
        undecided.sort(key=lambda claim: (claim.created_ms, claim.call_id))
        return AuditReport(
            payments=len(self._rows.payments),
            calls=len(self._rows.calls),
            wrong=tuple(wrong),
            held_calls=tuple(claim.call_id for claim in undecided),
            held_payments=tuple(str(one.tx_hash) for one in self._rows.payments.values() if one.is_held),
        )

    async def release_held(self, *, origin: AuditOrigin) -> int:
        self._answer()
        held = [payment for payment in self._rows.payments.values() if payment.is_held]
        for payment in held:
            self._rows.payments[payment.id] = replace(payment, is_held=False)
        self._rows.restored_ms = None
        return len(held)

    async def admit(self, tx_hash: TxHash, *, origin: AuditOrigin) -> None:
        self._answer()
        self._rows.admitted.add(tx_hash)

    async def mark_ready(self, *, now_ms: int) -> None:
        self._answer()
        ready_ms = self._rows.ready_ms
        if ready_ms is not None and now_ms - ready_ms > GAP_MS:
            self._rows.outages.append((ready_ms, now_ms))
        self._rows.ready_ms = max(now_ms, ready_ms or 0)

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int:
        self._answer()
        gaps = list(self._rows.outages)
        if self._rows.ready_ms is not None and now_ms - self._rows.ready_ms > GAP_MS:
            gaps.append((self._rows.ready_ms, now_ms))
        return sum(max(0, min(to_ms, now_ms) - max(from_ms, since_ms)) for from_ms, to_ms in gaps)

    async def mark_restored(self, *, origin: AuditOrigin) -> None:
        self._answer()
        self._rows.restored_ms = origin.at_ms
        self._rows.payments = {
            key: replace(payment, is_held=payment.is_held or not (payment.is_escrow or payment.is_refund))
            for key, payment in self._rows.payments.items()
        }
        self._rows.channels = {
            name: replace(channel, state=ChannelState.DRAINING)
            for name, channel in self._rows.channels.items()
        }

    async def rewrite_periods(self, starts_ms: Sequence[int], *, origin: AuditOrigin) -> int:
        self._answer()
        return len(starts_ms)

    def _keys_of(self, claim: Claim) -> dict[KeyName, KeyedCall]:
        """Most claims have no key, and looking at every call takes a while."""
        if claim.idempotency_key is None:
            return {}
        return self._named_calls(self._now_ms() - self._limits.response_ttl_s * 1000)

    def _repeats_of(self, claim: Claim) -> dict[RequestName, OpenCall]:
        name = request_name(claim)
        found = None if name is None else find_open(self._rows.calls.values(), name)
        return {} if name is None or found is None else {name: found}

    def _add(self, new: NewPayment, now_ms: int) -> tuple[int, bool]:
        old = next(
            (one for one in self._rows.payments.values() if payment_key(one) == payment_key(new)), None
        )
        if old is not None and old.state is not PaymentState.GONE:
            return old.id, self._raise_to(new, old)
        if old is not None and old.is_refund:
            if new.value_units >= old.taken_units:
                bring_refund_back(self._rows, old, new)
            return old.id, False
        payment_id = old.id if old is not None else len(self._rows.payments) + 1
        taken_units = old.taken_units if old is not None else 0
        # What an authorisation was for is known from its call, not from the logs.
        value_units = old.value_units if old is not None and old.is_authorized else new.value_units
        if old is not None and value_units < taken_units and charged_holders(self._rows, old.id):
            return old.id, False
        self._rows.payments[payment_id] = Payment(
            id=payment_id,
            chain_id=new.chain_id,
            tx_hash=new.tx_hash,
            asset=new.asset,
            payer=new.payer,
            payee=new.payee,
            value_units=max(value_units, taken_units),
            taken_units=taken_units,
            state=PaymentState.FINAL if new.is_final else PaymentState.UNFINAL,
            block_number=new.block_number,
            block_hash=new.block_hash,
            block_time=new.block_time,
            is_plain_ended=old is not None and old.is_plain_ended,
            is_held=old is not None and old.is_held and self._rows.restored_ms is not None,
            calls=old.calls if old is not None else 0,
            is_authorized=old is not None and old.is_authorized,
            is_escrow=old is not None and old.is_escrow,
        )
        if old is not None and old.is_escrow:
            self._recount_deposits(old, block_number=new.block_number, now_ms=now_ms)
        self._rows.recorded_ms.setdefault(payment_id, now_ms)
        self._rows.checked_ms[payment_id] = 0
        return payment_id, True

    def _is_repeatable(self, call: MemoryCall, *, is_plain: bool) -> bool:
        shown = self._rows.payments.get(call.claim.payment_id or 0)
        if is_plain and shown is not None and shown.is_plain_ended:
            return False
        drawn = {*call.parts} | ({call.claim.payment_id} if call.claim.payment_id is not None else set())
        payments = [self._rows.payments[key] for key in drawn]
        is_paid = all(one.state is not PaymentState.GONE and not one.is_held for one in payments)
        is_open = call.state is CallState.UNKNOWN or is_cut(call)
        return is_open and is_paid and call.attempts < self._limits.attempts_max
