"""Ledgers that are broken on purpose, each in one way: the histories must detect every breakage."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.kit.budgets import policy_of
from tests.long.simulation.fake_ledger import FakeGateway
from tests.model.rows import MemoryCall
from tests.model.settling import Dropped
from tollway.ids import CallId, ChainId
from tollway.ledger.budgets import Budget
from tollway.ledger.claims import CreditAccount
from tollway.ledger.ledger import Claim, Claimed, ClaimOutcome, Close, Closed, Fenced, NonceUsed
from tollway.ledger.records import CallRecord, CallState, PaymentState
from tollway.ledger.refunds import NotRefundable, RefundFault

UNLIMITED = policy_of(maxTotal="1000")


class ForgetsDebits(FakeGateway):
    """A claim is granted, and nothing is taken."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        before = dict(self._rows.payments)
        outcome = await super().claim(claim)
        self._rows.payments.update(before)
        return outcome


class ForgetsNonces(FakeGateway):
    """A bound signature counts any number of times."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        return await super().claim(replace(claim, nonce=None))


class ForgetsRepeatNonces(FakeGateway):
    """A bound signature that runs a call again stays good for another call."""

    async def reopen(self, call_id: CallId, **more: Any) -> Claimed | Fenced | NonceUsed:
        return await super().reopen(call_id, **{**more, "nonce": None})


class ForgetsEnds(FakeGateway):
    """A plain signature counts after a bound one was presented."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        return await super().claim(replace(claim, is_plain=False))


class ForgetsOpenCalls(FakeGateway):
    """A safe request is charged anew while the last one of its kind waits to run again."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        return await super().claim(replace(claim, is_separate_call=True))


class CoversEverything(FakeGateway):
    """Authorisations are granted without counting other open authorisations on their balance."""

    async def claim(self, claim: Claim) -> ClaimOutcome:
        if claim.cover is not None:
            claim = replace(claim, cover=replace(claim.cover, balance_units=10**9))
        return await super().claim(claim)


class ClosesUnfenced(FakeGateway):
    """A close applies in every state of its call."""

    async def close(self, close: Close) -> Closed | Fenced:
        call = self._rows.calls.get(close.call_id)
        if call is not None and call.state is CallState.UNKNOWN:
            call.state, call.owner_id = CallState.FORWARDING, self.owner_id
        if call is not None:
            close = replace(close, epoch=call.epoch)
            call.owner_id = self.owner_id
        return await super().close(close)


class ChargesDroppedAnswers(FakeGateway):
    """A close that comes too late for its response charges the call."""

    def _drop(self, call_id: CallId, dropped: Dropped) -> None:
        if dropped.close is not None and dropped.close.after is CallState.CONSUMED:
            self._close_late(dropped.close)


class GivesBackSilence(FakeGateway):
    """A sent call without a response is released at once."""

    async def close(self, close: Close) -> Closed | Fenced:
        after = CallState.RELEASED if close.after is CallState.UNKNOWN else close.after
        return await super().close(replace(close, after=after))


class ForgetsHolds(FakeGateway):
    """Recovery does not wait until a held price may come back."""

    async def recover(self, *, now_ms: int) -> int:
        for call in self._rows.calls.values():
            if call.state is CallState.UNKNOWN:
                call.moved_ms = 0
        return await super().recover(now_ms=now_ms)


class ForgetsPowerCuts(FakeGateway):
    """The deadline releases a call that a lost close may have charged."""

    async def recover(self, *, now_ms: int) -> int:
        moved = await super().recover(now_ms=now_ms)
        for call in self._rows.calls.values():
            call.clock_releases = True
        return moved


class RunsForEver(FakeGateway):
    """A repeat is no further attempt."""

    async def reopen(self, call_id: CallId, **more: Any) -> Claimed | Fenced | NonceUsed:
        call = self._rows.calls.get(call_id)
        if call is not None:
            call.attempts = 1
        return await super().reopen(call_id, **more)


class ForgetsDebts(FakeGateway):
    """A payment that left the chain leaves no debt."""

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        payment = self._rows.payments[payment_id]
        if payment.state is PaymentState.UNFINAL:
            self._rows.payments[payment_id] = replace(payment, state=PaymentState.GONE)
            self._rows.gone_ms[payment_id] = self._rows.checked_ms[payment_id] = now_ms
        return sum(
            call.parts.get(payment_id, 0)
            for call in self._rows.calls.values()
            if call.state is CallState.CONSUMED
        )


class ForgetsTheRest(FakeGateway):
    """Nothing continues the moves that an ended gateway has left."""

    async def continue_moves(self, chain_id: ChainId, *, now_ms: int) -> int:
        return 0


class ForgetsKeptDebts(FakeGateway):
    """Calls become a debt that is not added to the kept one."""

    def _add_debt(self, call: MemoryCall, units: int) -> None: ...


class ForgetsBudgets(FakeGateway):
    """A wallet spends beyond the policy of its owner."""

    def bound_budgets(self) -> list[Budget]:
        return [
            replace(one, policy=None if one.policy is None else UNLIMITED) for one in super().bound_budgets()
        ]


class CountsNothing(FakeGateway):
    """A call of a wallet with an owner counts in no budget."""

    def bound_budgets(self) -> list[Budget]:
        return []


class RefundsTwice(FakeGateway):
    """A call that has a refund gets another one."""

    def _find_fault(self, calls: Sequence[CallRecord]) -> NotRefundable | None:
        fault = super()._find_fault(calls)
        return None if fault is not None and fault.fault is RefundFault.ALREADY_REFUNDED else fault


class RunsRefundedCalls(FakeGateway):
    """A refunded call runs again, and may be released."""

    def _keeps_charge(self, call_id: CallId) -> bool:
        return False


class KeepsRefundsOfGoneTransfers(FakeGateway):
    """A transfer that left its chain still counts."""

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        before = dict(self._rows.refunds)
        debt_units = await super().mark_gone(payment_id, now_ms=now_ms)
        self._rows.refunds.update(before)
        return debt_units


class DemandsWhatCreditPays(FakeGateway):
    """A debt refuses claims although the account has credit."""

    def _pay_debts(self, account: CreditAccount) -> int:
        return self._rows.debts.get(account, 0)


BREAKAGES: dict[str, type[FakeGateway]] = {
    kind.__name__: kind
    for kind in (
        ForgetsDebits,
        ForgetsNonces,
        ForgetsRepeatNonces,
        ForgetsEnds,
        ForgetsOpenCalls,
        CoversEverything,
        ClosesUnfenced,
        ChargesDroppedAnswers,
        GivesBackSilence,
        ForgetsHolds,
        ForgetsPowerCuts,
        RunsForEver,
        ForgetsDebts,
        ForgetsTheRest,
        ForgetsKeptDebts,
        ForgetsBudgets,
        CountsNothing,
        RefundsTwice,
        RunsRefundedCalls,
        KeepsRefundsOfGoneTransfers,
        DemandsWhatCreditPays,
    )
}
