"""The owner of an agent at real gateways: it signs policies and revocations, and the agent accepts it."""

import time
from dataclasses import dataclass, field
from typing import Any

from tests.kit.budgets import policy_of
from tollway.client.wallet import Wallet
from tollway.spending_policy import acceptance_digest, policy_digest, policy_members, revocation_digest

DAY_S = 86_400


@dataclass(slots=True, kw_only=True)
class BudgetOwner:
    """`owner`, `agent`: funded accounts. `nonce`: of the last signature. A request whose answer is lost may have counted: the next one has a higher nonce."""

    cluster: Any
    owner: Any
    agent: Any
    nonce: int = field(default_factory=lambda: int(time.time() * 1000))

    async def bind(self, gateway: Any, **limits: str) -> None:
        """Stores the first policy, and the agent accepts its owner."""
        for reply in (await self.store(gateway, **limits), await self.accept(gateway)):
            assert reply.status == 200, reply.body

    async def store(self, gateway: Any, **limits: str) -> Any:
        policy = policy_of(
            owner=self.owner.address,
            agent=self.agent.address,
            gateway=gateway.public_url,
            not_after=int(time.time()) + DAY_S,
            nonce=self._next_nonce(),
            **limits,
        )
        body = {"policy": policy_members(policy), "signature": _sign(self.owner, policy_digest(policy))}
        return await self._ask(gateway, self.owner, "PUT", body)

    async def accept(self, gateway: Any) -> Any:
        wallets = {"agent": self.agent.address, "owner": self.owner.address}
        digest = acceptance_digest(**wallets, gateway=gateway.public_url, nonce=self._next_nonce())
        body = {
            "owner": str(self.owner.address),
            "nonce": self.nonce,
            "signature": _sign(self.agent, digest),
        }
        return await self._ask(gateway, self.agent, "PUT", body)

    async def revoke(self, gateway: Any) -> Any:
        wallets = {"agent": self.agent.address, "owner": self.owner.address}
        digest = revocation_digest(**wallets, gateway=gateway.public_url, nonce=self._next_nonce())
        body = {"nonce": self.nonce, "signature": _sign(self.owner, digest)}
        return await self._ask(gateway, self.owner, "DELETE", body)

    async def read_spent(self, gateway: Any) -> str:
        """The total, as the owner sees it."""
        reply = await self._ask(gateway, self.owner, "GET")
        assert reply.status == 200, reply.body
        return str(reply.json["budgets"][0]["spent"]["total"])

    async def _ask(self, gateway: Any, account: Any, method: str, body: Any = None) -> Any:
        return await self.cluster.control(gateway, account, method, f"/budgets/{self.agent.address}", body)

    def _next_nonce(self) -> int:
        self.nonce += 1
        return self.nonce


def _sign(account: Any, digest: bytes) -> str:
    return "0x" + Wallet.from_key(account.key).sign_digest(digest).hex()
