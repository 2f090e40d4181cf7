"""Owners of wallets: policies, acceptances and revocations, drawn from a random generator of their own, so that a history without an owner stays as it is."""

from typing import Any

from tests.kit.budgets import OTHER_OWNER, OWNER, policy_of, store
from tests.long.simulation.faults import Faults
from tollway.errors import StorageUnavailable
from tollway.money import format_decimal

CHANGES = ("policy", "policy", "policy", "currency", "accept", "revoke", "unbind")


class Owners(Faults):
    """Mostly one owner changes what one wallet may spend; the other owner waits for its turn."""

    async def _bind(self) -> None:
        for kind in ("policy", "accept"):
            await self._change(kind)

    async def _own(self) -> None:
        await self._change(self.owners.choice(CHANGES))

    async def _change(self, kind: str) -> None:
        if not self._gateways:
            return
        try:
            outcome = await self._write_change(self._gateways[0], kind)
        except StorageUnavailable:
            outcome = "away"
        self._tell(kind, outcome=outcome)
        self._check(kind)

    async def _write_change(self, gateway: Any, kind: str) -> object:
        owners, now_ms = self.owners, self.machine.now_ms
        owner = OTHER_OWNER if owners.random() < 0.2 else OWNER
        agent = owners.choice(self._payers)
        self._policies += 1
        match kind:
            case "accept":
                return await gateway.accept_owner(agent, owner, nonce=self._policies, now_ms=now_ms)
            case "revoke" | "unbind":
                return await gateway.revoke_policy(
                    owner, agent, nonce=self._policies, is_unbinding=kind == "unbind", now_ms=now_ms
                )
        limit = format_decimal(owners.randint(0, 25), decimals=6)
        name = owners.choice(("maxTotal", "maxPerHour", "maxPerCall"))
        fields: dict[str, Any] = {"currency": "EURC" if kind == "currency" else "USDC", name: limit}
        policy = policy_of(owner=owner, agent=agent, nonce=self._policies, **fields)
        return await store(gateway, policy, now_ms)
