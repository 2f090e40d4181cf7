"""A history of two wallets and two owners: policies, acceptances and revocations, calls of every rail with every end, and a clock that runs, leaps and is set back. Each step
is applied to every given ledger, and all of them must give the same outcome; the laws of `ledger.budgets` hold after each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit.budgets import policy_of, store
from tests.kit.ledger_history import LedgerHistory, Run, Step, equal
from tests.kit.ledger_records import (
    NOW_MS,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    transfer_in,
)
from tests.kit.ledger_steps import pay
from tollway.ids import Address, keccak256
from tollway.ledger.budgets import Budget
from tollway.ledger.ledger import Claim, Claimed
from tollway.ledger.records import CallState
from tollway.money import format_decimal
from tollway.spending_policy import LIMITS

CURRENCIES = ("USDC", "USDC", "USDC", "EURC")
LEAPS_MS = (60_000, 1_800_000, 3_600_000, 86_400_000, 31 * 86_400_000, -7_200_000)
KINDS = (
    *("claim", "stream", "authorize") * 4,
    *("end", "end", "measure") * 4,
    *("policy", "accept", "tick", "tick", "tick") * 3,
    *("resolve", "reopen", "settle", "conclude", "revoke", "unbind", "free"),
)


@dataclass(slots=True, kw_only=True)
class BudgetHistory(LedgerHistory):
    """`clocks`: of each ledger, which a step sets together. `granted`, `refused`: claims."""

    clocks: Sequence[Any]
    now_ms: int = NOW_MS
    nonce: int = 0
    payments: list[list[Any]] = field(default_factory=list)
    granted: int = 0
    refused: int = 0
    agents: list[Address] = field(init=False)
    owners: list[Address] = field(init=False)

    def __post_init__(self) -> None:
        self.agents = [self._wallet(f"agent {number}") for number in range(2)]
        self.owners = [self._wallet(f"owner {number}") for number in range(2)]

    def _wallet(self, role: str) -> Address:
        return Address(keccak256(f"{self.name} {role}".encode())[:20])

    async def run(self, steps: Sequence[Step]) -> None:
        for gateways in self.ledgers:
            self.payments.append(
                [await pay(gateways[0], 10**6, f"{self.name} {agent}", payer=agent) for agent in self.agents]
            )
        await self.walk([Step("policy", 0), Step("accept", 0), *steps])
        await self.audit()

    # ---- Policies.

    async def _policy(self, number: int) -> None:
        owner, agent = self._pair(number)
        self.nonce += 1
        limit = 20 + number % 200
        chosen = [name for index, name in enumerate(LIMITS) if number >> index & 1] or ["maxTotal"]
        limits = {name: format_decimal(limit * (1 + index), decimals=6) for index, name in enumerate(chosen)}
        currency = CURRENCIES[number % len(CURRENCIES)]
        fields: dict[str, Any] = {"owner": owner, "agent": agent, "currency": currency, **limits}
        fields["not_after"] = NOW_MS // 1000 + 20 * 365 * 86_400
        policy = policy_of(nonce=self.nonce, **fields)
        equal([await store(gateways[number % 2], policy, self.now_ms) for gateways in self.ledgers])

    async def _accept(self, number: int) -> None:
        owner, agent = self._pair(number)
        self.nonce += 1
        await self._each(number % 2, "accept_owner", agent, owner, nonce=self.nonce, now_ms=self.now_ms)

    async def _revoke(self, number: int, *, is_unbinding: bool = False) -> None:
        owner, agent = self._pair(number)
        self.nonce += 1
        nonce, now_ms = self.nonce, self.now_ms
        options: dict[str, Any] = {"nonce": nonce, "is_unbinding": is_unbinding, "now_ms": now_ms}
        await self._each(number % 2, "revoke_policy", owner, agent, **options)

    async def _unbind(self, number: int) -> None:
        await self._revoke(number, is_unbinding=True)

    async def _tick(self, number: int) -> None:
        self.now_ms += LEAPS_MS[number % len(LEAPS_MS)]
        for clocks, gateways in zip(self.clocks, self.ledgers, strict=True):
            await clocks.set_clocks(self.now_ms, *gateways)

    def _pair(self, number: int) -> tuple[Address, Address]:
        """Mostly the first owner and the first agent."""
        return self.owners[number % 5 == 4], self.agents[number % 7 == 6]

    # ---- Calls.

    async def _claim(self, number: int, **fields: Any) -> None:
        agent = number % 7 == 6
        price = fields.pop("price_units", 1 + number % 50)
        currency = CURRENCIES[number % 9 % len(CURRENCIES)]
        claim = claim_on(self.payments[0][agent], price, currency=currency, **fields)
        await self._open(claim, number, agent=agent)

    async def _authorize(self, number: int) -> None:
        authorization = authorization_of(
            1 + number % 50, payer=self.agents[0], valid_before=self.now_ms // 1000 + 300
        )
        await self._open(authorized_claim(authorization), number)

    async def _free(self, number: int) -> None:
        await self._open(claim_on(None, payer=self.agents[0]), number)

    async def _open(self, claim: Claim, number: int, *, agent: int | None = None) -> None:
        claims = [
            claim if agent is None else replace(claim, payment_id=payments[agent].id)
            for payments in self.payments
        ]
        outcomes = equal(await self._claim_each(claims, number % 2))
        if not isinstance(outcomes[0], Claimed):
            self.refused += 1
            return
        self.granted += 1
        self.runs[claim.call_id] = Run(claim=claim, owner=number % 2)
        if claim.payer is not None and claim.price_units:
            await self._check_limits(claim.payer)

    async def _check_limits(self, agent: Address) -> None:
        """No limit is exceeded at the moment of a grant."""
        for gateways in self.ledgers:
            bound: Budget | None = await gateways[0].find_binding(agent)
            if bound is None:
                continue
            assert bound.policy is not None, "a wallet without a policy bought something"
            spent = {
                "maxPerHour": bound.hour.spent_nano,
                "maxPerDay": bound.day.spent_nano,
                "maxPerMonth": bound.month.spent_nano,
                "maxTotal": bound.total_nano,
            }
            for name, nano in spent.items():
                limit_nano = bound.policy.limit_nano(name)
                assert limit_nano is None or nano <= limit_nano, (name, nano, limit_nano)

    async def _end(self, number: int) -> None:
        run = await self._find(CallState.FORWARDING, number)
        if run is not None:
            await self._close(run, number, paid_by_chain=CallState.RELEASED)

    async def _resolve(self, number: int) -> None:
        run = await self._find(CallState.UNKNOWN, number)
        if run is not None and run.claim.authorization is None:
            outcome = CallState.RELEASED if number % 4 else CallState.CONSUMED
            await self._each(number % 2, "resolve", run.claim.call_id, outcome, now_ms=self.now_ms)

    async def _reopen(self, number: int) -> None:
        await self._open_again(await self._find(CallState.UNKNOWN, number), number % 2, now_ms=self.now_ms)

    async def _settle(self, number: int) -> None:
        run = await self._find(CallState.FORWARDING, number, is_authorized=True)
        if run is not None:
            close = close_of(run.claim, CallState.SETTLING, epoch=run.epoch)
            await self._each(run.owner, "settle", close, attempt=None, digest=None)

    async def _conclude(self, number: int) -> None:
        run = await self._find(CallState.SETTLING, number)
        if run is not None:
            transfer = transfer_in(f"settled {run.claim.call_id}") if number % 3 else None
            options = {"epoch": run.epoch, "is_orphaned": False, "now_ms": self.now_ms}
            await self._each(run.owner, "conclude", run.claim.call_id, transfer=transfer, **options)

    # ---- What holds after each step.

    async def _find(self, state: CallState, number: int, *, is_authorized: bool = False) -> Run | None:
        found = []
        for run in self.runs.values():
            is_kind = run.claim.authorization is not None or not is_authorized
            if is_kind and (await self.ledgers[0][0].find_call(run.claim.call_id)).state is state:
                found.append(run)
        return found[number % len(found)] if found else None

    async def check(self, where: str) -> None:
        listed = [
            [
                await gateways[1].list_owned(self.owners[0], limit=10),
                await gateways[0].list_owned(self.owners[1], limit=10),
                *[await gateways[0].find_binding(agent) for agent in self.agents],
            ]
            for gateways in self.ledgers
        ]
        for number, one in enumerate(listed):
            assert one == listed[0], (where, number)
