"""Sample policies of owners, and the steps that bind a wallet to one. Every member can be given."""

from typing import Any

from tests.kit.ledger_records import NOW_MS, PAYER
from tests.kit.narrowing import of_type
from tollway.ids import Address
from tollway.ledger.budgets import Budget
from tollway.ledger.ledger import BudgetExceeded
from tollway.spending_policy import LIMITS, SpendingPolicy

OWNER = Address(b"\xa1" * 20)
OTHER_OWNER = Address(b"\xa2" * 20)
GATEWAY = "http://127.0.0.1:8402"


def policy_of(**members: Any) -> SpendingPolicy:
    """A policy of OWNER for PAYER in USDC, with a century to run: a claim in PostgreSQL is judged by the clock of the database. Limits stand under their names: `maxPerDay="5"`."""
    limits = {name: members.pop(name, "") for name in LIMITS}
    defaults: dict[str, Any] = {
        "owner": OWNER,
        "agent": PAYER,
        "network": "",
        "gateway": GATEWAY,
        "currency": "USDC",
        "limits": limits,
        "allow": (),
        "deny": (),
        "not_before": 0,
        "not_after": NOW_MS // 1000 + 36_500 * 86_400,
        "nonce": 1,
    }
    return SpendingPolicy(**{**defaults, **members})


class LedgerBindings:
    """The bindings of a ledger, and the refusals that a gateway announced before a claim."""

    def __init__(self, ledger: Any) -> None:
        self._ledger = ledger
        self.announced: list[BudgetExceeded] = []

    async def find_known_binding(self, agent: Address) -> Budget | None:
        found: Budget | None = await self._ledger.find_binding(agent)
        return found

    async def announce_refusal(self, budget: Budget, refused: BudgetExceeded, *, now_ms: int) -> None:
        self.announced.append(refused)


async def store(ledger: Any, policy: SpendingPolicy, now_ms: int = NOW_MS, pending_max: int = 100) -> Any:
    return await ledger.store_policy(policy, "0x", pending_max=pending_max, now_ms=now_ms)


async def bind(ledger: Any, policy: SpendingPolicy, now_ms: int = NOW_MS, nonce: int = 1) -> Budget:
    """Stores the policy, and the agent accepts its owner."""
    assert isinstance(await store(ledger, policy, now_ms), Budget)
    return of_type(Budget, await ledger.accept_owner(policy.agent, policy.owner, nonce=nonce, now_ms=now_ms))
