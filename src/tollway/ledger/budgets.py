"""Spending policies: what an owner lets the wallet of an agent spend at this gateway, and the decision whether a claim stays within it. Pure.

A *budget* is the row of an owner and an agent. While the agent has accepted the owner, the wallet is *bound* to it: every paid call of the wallet counts in
that row, and without a policy in force the wallet buys nothing. A wallet has at most one budget that is bound.

Costs and limits are compared in 10^-9 of the policy's currency: a limit is rounded down, a cost up. A call counts what its claim takes, in the UTC hour, day and
calendar month of the claim, and in the total since the wallet was bound. What a call gives back leaves the total, and each window that has not ended. A policy in another
currency begins to count at zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, Protocol

from tollway.ids import Address
from tollway.ledger.ledger import BudgetExceeded, Claim
from tollway.ledger.sales import DAY_MS, HOUR_MS, floor_to
from tollway.money import LEDGER_DECIMALS_MAX, UNITS_MAX
from tollway.spending_policy import SpendingPolicy, is_target_allowed, name_targets


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingWindow:
    """What was spent since the start of an hour, a day or a month, in 10^-9."""

    start_ms: int
    spent_nano: int


PolicyState = Literal["pending", "in_force", "not_yet", "expired", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The row of an owner and an agent. `network`: of the owner, as the policy names it. `nonce`: the highest of its policies and revocations, `accepted_nonce`: that of its acceptances. `policy`: None once it is revoked.
    `bound_ms`: None before the acceptance, and once the wallet is unbound. `stored_ms`: when the policy was stored. `currency`: of the counters, that of the last policy.
    `since_ms`: the counters count the calls from then on; `last_ms`: the moment of the newest call that was ever counted, before every `since_ms` after it. `reached`: what
    has refused a call under this nonce (`reached_key`)."""

    owner: Address
    agent: Address
    network: str
    nonce: int
    policy: SpendingPolicy | None
    signature: str | None
    stored_ms: int
    currency: str
    accepted_nonce: int | None = None
    bound_ms: int | None = None
    since_ms: int = 0
    last_ms: int = 0
    hour: SpendingWindow = SpendingWindow(start_ms=0, spent_nano=0)
    day: SpendingWindow = SpendingWindow(start_ms=0, spent_nano=0)
    month: SpendingWindow = SpendingWindow(start_ms=0, spent_nano=0)
    total_nano: int = 0
    reached: tuple[str, ...] = ()

    def state_at(self, now_ms: int) -> PolicyState:
        policy = self.policy
        if policy is None:
            return "revoked"
        if now_ms >= policy.not_after * 1000:
            return "expired"
        if self.bound_ms is None:
            return "pending"
        return "not_yet" if now_ms < policy.not_before * 1000 else "in_force"

    def at(self, now_ms: int) -> "Budget":
        """The budget with the windows of that moment. A clock that was set back does not reopen a window."""
        windows = (
            (self.hour, floor_to(HOUR_MS, now_ms)),
            (self.day, floor_to(DAY_MS, now_ms)),
            (self.month, month_start_ms(now_ms)),
        )
        hour, day, month = (
            window if window.start_ms >= start_ms else SpendingWindow(start_ms=start_ms, spent_nano=0)
            for window, start_ms in windows
        )
        return replace(self, hour=hour, day=day, month=month)

    def counts_at(self, now_ms: int) -> int:
        """The moment by which a claim counts: the latest of the clocks that the budget has seen, so that what comes back finds the windows of its claim."""
        return max(now_ms, self.since_ms, self.last_ms)

    def begin_at(self, now_ms: int, *, last_ms: int) -> "Budget":
        """The budget with counters of zero, in which no earlier call counts. `last_ms`: of the newest call of the agent that was counted anywhere."""
        nothing = SpendingWindow(start_ms=0, spent_nano=0)
        since_ms = max(now_ms, last_ms + 1)
        return replace(self, since_ms=since_ms, hour=nothing, day=nothing, month=nothing, total_nano=0)

    def reach(self, key: str) -> "Budget":
        """The budget after a refusal that was announced. Of one limit the newest window stays."""
        kind = key.partition("@")[0]
        others = (one for one in self.reached if one.partition("@")[0] != kind)
        return replace(self, reached=tuple(sorted((*others, key))))

    def spend(self, cost_nano: int) -> "Budget":
        """The budget after a claim; its windows are those of the claim."""
        hour, day, month = (
            replace(window, spent_nano=window.spent_nano + cost_nano)
            for window in (self.hour, self.day, self.month)
        )
        return replace(self, hour=hour, day=day, month=month, total_nano=self.total_nano + cost_nano)

    def list_left(self) -> tuple[tuple[str, int, int | None], ...]:
        """Each limit of the policy: its name, what is left of it in 10^-9, and when its window ends; None where it does not. From the shortest to the longest."""
        if self.policy is None:
            return ()
        spent = (
            ("maxPerCall", 0, None),
            ("maxPerHour", self.hour.spent_nano, self.hour.start_ms + HOUR_MS),
            ("maxPerDay", self.day.spent_nano, self.day.start_ms + DAY_MS),
            ("maxPerMonth", self.month.spent_nano, month_start_ms(self.month.start_ms + 32 * DAY_MS)),
            ("maxTotal", self.total_nano, None),
        )
        left = []
        for name, spent_nano, until_ms in spent:
            limit_nano = self.policy.limit_nano(name)
            if limit_nano is not None:
                left.append((name, max(0, limit_nano - spent_nano), until_ms))
        return tuple(left)


def month_start_ms(ms: int) -> int:
    """The start of the UTC calendar month of that moment."""
    moment = datetime.fromtimestamp(ms // 1000, tz=UTC)
    return int(datetime(moment.year, moment.month, 1, tzinfo=UTC).timestamp()) * 1000


def cost_nano_of(units: int, *, decimals: int) -> int:
    """Ledger units of an asset in 10^-9 of its currency. Exact: no ledger unit is smaller."""
    factor: int = 10 ** (LEDGER_DECIMALS_MAX - min(decimals, LEDGER_DECIMALS_MAX))
    return units * factor


def refuse_spending(
    budget: Budget, *, cost_nano: int, currency: str, targets: frozenset[str], now_ms: int
) -> BudgetExceeded | None:
    """The refusal of a call by the budget to which its payer is bound; None where it may be granted. `budget`: with the windows of `now_ms`. `targets`: of the listing
    (`name_targets`).

    Of several limits the longest is named: the shorter ones end before it."""
    policy, state = budget.policy, budget.state_at(now_ms)
    if policy is None or state != "in_force":
        until_ms = policy.not_before * 1000 if policy is not None and state == "not_yet" else None
        return BudgetExceeded(reason="no_policy_in_force", until_ms=until_ms)
    if currency != policy.currency:
        return BudgetExceeded(reason="other_currency", currency=policy.currency)
    if not is_target_allowed(targets, allow=policy.allow, deny=policy.deny):
        return BudgetExceeded(reason="target_not_allowed", currency=policy.currency)
    for name, left_nano, until_ms in reversed(budget.list_left()):
        if cost_nano > left_nano:
            return BudgetExceeded(
                reason="limit",
                limit=name,
                left_nano=left_nano,
                currency=policy.currency,
                until_ms=until_ms,
            )
    if budget.spend(cost_nano).total_nano > UNITS_MAX:
        return BudgetExceeded(reason="limit", limit="maxTotal", currency=policy.currency)
    return None


def reached_key(refused: BudgetExceeded) -> str:
    """What refused a call, and until when: a loop of refused calls has one key for each limit and window."""
    return f"{refused.limit or refused.reason}@{refused.until_ms or 0}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What a call counts in 10^-9, and the moment whose windows count it."""

    nano: int
    at_ms: int


class BatchSpending:
    """The budgets of one batch of claims, as they are after the claims before."""

    def __init__(self, budgets: Sequence[Budget], *, now_ms: int) -> None:
        """`budgets`: those that are bound, locked. `now_ms`: of the shared clock."""
        self._now_ms = now_ms
        self._budgets = {one.agent: one.at(one.counts_at(now_ms)) for one in budgets}
        self._changed: set[Address] = set()
        self._refused: dict[tuple[Address, str], BudgetExceeded] = {}

    def refuse(self, claim: Claim) -> BudgetExceeded | None:
        """The refusal of a claim with a price. A free call is no spending."""
        budget = None if claim.payer is None else self._budgets.get(claim.payer)
        if budget is None:
            return None
        refused = refuse_spending(
            budget,
            cost_nano=cost_nano_of(claim.price_units, decimals=claim.decimals),
            currency=claim.currency,
            targets=name_targets(claim.listing_id, claim.provider, claim.tags),
            now_ms=self._now_ms,
        )
        if refused is not None:
            self._refused.setdefault((budget.agent, reached_key(refused)), refused)
        return refused

    def grant(self, claim: Claim) -> None:
        """Counts a granted claim."""
        counted = self.count_of(claim)
        if counted is not None and claim.payer is not None:
            spent = self._budgets[claim.payer].spend(counted.nano)
            self._budgets[claim.payer] = replace(spent, last_ms=counted.at_ms)
            self._changed.add(claim.payer)

    def count_of(self, claim: Claim) -> Counted | None:
        """What a granted claim counts; None for a free one, and where its payer has no owner."""
        budget = None if claim.payer is None else self._budgets.get(claim.payer)
        is_free = claim.payment_id is None and claim.authorization is None
        if budget is None or is_free:
            return None
        nano = cost_nano_of(claim.price_units, decimals=claim.decimals)
        return Counted(nano=nano, at_ms=budget.counts_at(self._now_ms))

    def changed(self) -> tuple[Budget, ...]:
        return tuple(self._budgets[agent] for agent in sorted(self._changed))

    def refused(self) -> tuple[tuple[Budget, BudgetExceeded], ...]:
        """The first refusal by each limit and window that no earlier batch has announced, by ascending wallet."""
        return tuple(
            (self._budgets[agent], refused)
            for (agent, key), refused in sorted(self._refused.items(), key=lambda one: one[0])
            if key not in self._budgets[agent].reached
        )


NO_SPENDING = BatchSpending((), now_ms=0)
"""Of a batch whose payers have no owner: it refuses nothing, and counts nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NonceTooLow:
    """The nonce of a policy, an acceptance or a revocation is not above the highest one of its signer, `nonce`. Nothing changed."""

    nonce: int


@dataclass(frozen=True, slots=True)
class TooManyPending:
    """The owner has the maximum of policies that no agent has accepted. Nothing changed."""


@dataclass(frozen=True, slots=True)
class NoBudget:
    """There is no policy of that owner for that agent to accept or to revoke. Nothing changed."""


@dataclass(frozen=True, slots=True)
class BoundToAnother:
    """The wallet has accepted another owner, or it once accepted this one on another network. Nothing changed."""


class BudgetLedger(Protocol):
    """The stored policies. A change is durable, and counts at every gateway from the next claim on. Signatures are verified before."""

    async def find_budget(self, owner: Address, agent: Address) -> Budget | None: ...

    async def find_binding(self, agent: Address) -> Budget | None:
        """The budget to which the wallet is bound."""
        ...

    async def list_budgets(self, agent: Address, *, limit: int) -> tuple[Budget, ...]:
        """The budget to which the wallet is bound, then the pending ones, the newest first."""
        ...

    async def list_owned(self, owner: Address, *, limit: int) -> tuple[Budget, ...]:
        """The budgets of an owner, the newest first."""
        ...

    async def list_bound(self, owner: Address, *, limit: int) -> tuple[Budget, ...]:
        """The budgets to which wallets are bound, of one owner, the last bound first."""
        ...

    async def store_policy(
        self, policy: SpendingPolicy, signature: str, *, pending_max: int, now_ms: int
    ) -> Budget | NonceTooLow | TooManyPending | BoundToAnother:
        """Replaces the policy of the owner for the agent. The same policy again changes nothing. What was counted stays counted, unless the currency changes."""
        ...

    async def accept_owner(
        self, agent: Address, owner: Address, *, nonce: int, now_ms: int
    ) -> Budget | NoBudget | BoundToAnother | NonceTooLow:
        """Binds the wallet to the owner, with counters of zero. A wallet that is bound to this owner stays as it is."""
        ...

    async def revoke_policy(
        self, owner: Address, agent: Address, *, nonce: int, is_unbinding: bool, now_ms: int
    ) -> Budget | NoBudget | NonceTooLow:
        """Deletes the policy. The wallet stays bound, and buys nothing, unless `is_unbinding`: then it has no owner."""
        ...

    async def prune_pending(self, *, before_ms: int) -> int:
        """Deletes the policies that were stored before and that no agent accepted. The nonces of a revocation, and of a wallet that once accepted, stay."""
        ...


def replace_policy(
    known: Budget | None, policy: SpendingPolicy, signature: str, *, now_ms: int
) -> Budget | NonceTooLow | BoundToAnother:
    """The row after a policy of that owner for that agent was stored."""
    if known is None:
        return Budget(
            owner=policy.owner,
            agent=policy.agent,
            network=policy.network,
            nonce=policy.nonce,
            policy=policy,
            signature=signature,
            stored_ms=now_ms,
            currency=policy.currency,
        )
    if policy == known.policy:
        return known
    if known.accepted_nonce is not None and policy.network != known.network:
        # A contract with the same address on another chain may have another owner. After the wallet is unbound, that one could still use up the nonces.
        return BoundToAnother()
    if policy.nonce <= known.nonce:
        return NonceTooLow(nonce=known.nonce)
    if policy.currency != known.currency:
        known = known.begin_at(now_ms, last_ms=known.last_ms)
    return replace(
        known,
        network=policy.network,
        nonce=policy.nonce,
        policy=policy,
        signature=signature,
        stored_ms=now_ms,
        currency=policy.currency,
        reached=(),
    )


def bind_wallet(
    known: Budget | None, bound: Budget | None, *, last_ms: int, nonce: int, now_ms: int
) -> Budget | NoBudget | BoundToAnother | NonceTooLow:
    """The row after the agent has accepted its owner. `bound`: the budget to which the wallet is bound now. `last_ms`: the highest one of its budgets, with any owner."""
    if known is None or (known.policy is None and known.bound_ms is None):
        return NoBudget()
    if known.bound_ms is not None:
        return known
    if bound is not None:
        return BoundToAnother()
    if known.accepted_nonce is not None and nonce <= known.accepted_nonce:
        return NonceTooLow(nonce=known.accepted_nonce)
    begun = known.begin_at(now_ms, last_ms=last_ms)
    return replace(begun, accepted_nonce=nonce, bound_ms=now_ms, reached=())


def revoke(
    known: Budget | None, *, nonce: int, is_unbinding: bool, now_ms: int
) -> Budget | NoBudget | NonceTooLow:
    """The row after its owner has revoked the policy."""
    if known is None:
        return NoBudget()
    if nonce <= known.nonce:
        return NonceTooLow(nonce=known.nonce)
    bound_ms = None if is_unbinding else known.bound_ms
    return replace(
        known, nonce=nonce, policy=None, signature=None, stored_ms=now_ms, bound_ms=bound_ms, reached=()
    )
