"""The budgets of the ledger model. What a budget has counted is the sum of the calls, never a counter."""

from dataclasses import replace

from tests.model.rows import MemoryCall, MemoryRows
from tollway.ids import Address
from tollway.ledger.budgets import (
    BoundToAnother,
    Budget,
    NoBudget,
    NonceTooLow,
    SpendingWindow,
    TooManyPending,
    bind_wallet,
    cost_nano_of,
    month_start_ms,
    replace_policy,
    revoke,
)
from tollway.ledger.records import CallState
from tollway.ledger.sales import DAY_MS, HOUR_MS, floor_to
from tollway.spending_policy import SpendingPolicy


class MemoryBudgets:
    """Keeps the promises of `BudgetLedger`."""

    _rows: MemoryRows

    async def find_budget(self, owner: Address, agent: Address) -> Budget | None:
        found = self._rows.budgets.get((owner, agent))
        return None if found is None else self._count(found)

    async def find_binding(self, agent: Address) -> Budget | None:
        bound = self._bound_to(agent)
        return None if bound is None else self._count(bound)

    async def list_budgets(self, agent: Address, *, limit: int) -> tuple[Budget, ...]:
        own = [self._count(one) for one in self._rows.budgets.values() if one.agent == agent]
        pending = sorted(
            (one for one in own if one.bound_ms is None and one.policy is not None),
            key=lambda one: (-one.stored_ms, one.owner),
        )
        return (*(one for one in own if one.bound_ms is not None), *pending[:limit])

    async def list_owned(self, owner: Address, *, limit: int) -> tuple[Budget, ...]:
        own = [self._count(one) for one in self._rows.budgets.values() if one.owner == owner]
        return tuple(sorted(own, key=lambda one: (-one.stored_ms, one.agent))[:limit])

    async def list_bound(self, owner: Address, *, limit: int) -> tuple[Budget, ...]:
        own = [one for one in self.bound_budgets() if one.owner == owner]
        return tuple(sorted(own, key=lambda one: (-(one.bound_ms or 0), one.agent))[:limit])

    async def store_policy(
        self, policy: SpendingPolicy, signature: str, *, pending_max: int, now_ms: int
    ) -> Budget | NonceTooLow | TooManyPending | BoundToAnother:
        key = policy.owner, policy.agent
        known = await self.find_budget(*key)
        after = replace_policy(known, policy, signature, now_ms=now_ms)
        if not isinstance(after, Budget) or after is known:
            return after
        others = [
            one
            for one in self._rows.budgets.values()
            if one.owner == policy.owner and one.agent != policy.agent
        ]
        pending = sum(one.bound_ms is None and one.policy is not None for one in others)
        is_new = known is None or known.policy is None
        if after.bound_ms is None and is_new and pending >= pending_max:
            return TooManyPending()
        if known is not None and after.since_ms != known.since_ms:
            self._forget_calls(policy.agent)
        self._rows.budgets[key] = after
        return self._count(after)

    async def accept_owner(
        self, agent: Address, owner: Address, *, nonce: int, now_ms: int
    ) -> Budget | NoBudget | BoundToAnother | NonceTooLow:
        known = await self.find_budget(owner, agent)
        last_ms = max((one.last_ms for one in self._rows.budgets.values() if one.agent == agent), default=0)
        after = bind_wallet(known, self._bound_to(agent), last_ms=last_ms, nonce=nonce, now_ms=now_ms)
        if isinstance(after, Budget):
            if after is not known:
                self._forget_calls(agent)
            self._rows.budgets[owner, agent] = after
            return self._count(after)
        return after

    def _forget_calls(self, agent: Address) -> None:
        """No call of before counts."""
        for call in self._rows.calls.values():
            if call.claim.payer == agent:
                call.budget_ms = None

    async def revoke_policy(
        self, owner: Address, agent: Address, *, nonce: int, is_unbinding: bool, now_ms: int
    ) -> Budget | NoBudget | NonceTooLow:
        known = await self.find_budget(owner, agent)
        after = revoke(known, nonce=nonce, is_unbinding=is_unbinding, now_ms=now_ms)
        if isinstance(after, Budget):
            self._rows.budgets[owner, agent] = after
            return self._count(after)
        return after

    async def prune_pending(self, *, before_ms: int) -> int:
        old = [
            key
            for key, one in self._rows.budgets.items()
            if one.bound_ms is None and one.stored_ms < before_ms and one.policy is not None
        ]
        for key in old:
            one = self._rows.budgets.pop(key)
            if one.accepted_nonce is not None:
                self._rows.budgets[key] = replace(one, policy=None, signature=None)
        return len(old)

    def bound_budgets(self) -> list[Budget]:
        return [self._count(one) for one in self._rows.budgets.values() if one.bound_ms is not None]

    def _bound_to(self, agent: Address) -> Budget | None:
        own = (one for one in self._rows.budgets.values() if one.agent == agent)
        return next((one for one in own if one.bound_ms is not None), None)

    def _count(self, budget: Budget) -> Budget:
        """The budget with the sums of its calls."""
        if budget.bound_ms is None:
            return budget
        calls = [
            (call.budget_ms, _nano_of(call))
            for call in self._rows.calls.values()
            if call.claim.payer == budget.agent and call.budget_ms is not None
        ]
        if not calls:
            return budget
        last_ms = max(budget.last_ms, *(at_ms for at_ms, _ in calls))
        starts = (floor_to(HOUR_MS, last_ms), floor_to(DAY_MS, last_ms), month_start_ms(last_ms))
        hour, day, month = (
            SpendingWindow(
                start_ms=start_ms, spent_nano=sum(nano for at_ms, nano in calls if at_ms >= start_ms)
            )
            for start_ms in starts
        )
        total_nano = sum(nano for _, nano in calls)
        return replace(budget, last_ms=last_ms, hour=hour, day=day, month=month, total_nano=total_nano)


def _nano_of(call: MemoryCall) -> int:
    """A price that is known counts once its deposit has settled."""
    if call.state is CallState.RELEASED:
        return 0
    units = call.claim.price_units if call.state is CallState.SETTLING else call.price_units
    return cost_nano_of(units, decimals=call.claim.decimals)
