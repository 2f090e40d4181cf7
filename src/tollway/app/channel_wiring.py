"""The objects of channels, one per gateway: the networks that have them, the watch of withdrawals, and the claims."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tollway.chain.networks import ChainRules
from tollway.chain.port import SettlementChain
from tollway.identity.signatures import ChannelAuthorizer
from tollway.ids import ChainId
from tollway.ledger.ledger import GasLedger
from tollway.limits import Limits
from tollway.payments.channel_claims import ChannelClaims
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.channel_watch import ChannelWatch
from tollway.payments.gas import GasBudget
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelParts:
    """What channels need beside settlements. `authorizers`: of every secret key, the current one first."""

    ledger: ChannelClaimStore
    rules: Mapping[ChainId, ChannelRules]
    authorizers: Sequence[ChannelAuthorizer]


class ChannelServices:
    """The channels of the networks that have them. `networks`: read by calls; `run_once`: by the gateway that leads the sweep."""

    def __init__(
        self,
        parts: ChannelParts,
        *,
        gas_ledger: GasLedger,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        limits: Limits,
        now_ms: Callable[[], int],
    ) -> None:
        self.ledger = parts.ledger
        self.networks = ChannelNetworks(
            chains,
            parts.rules,
            chain_rules=rules,
            gas_budget=gas_budget,
            limits=limits,
            read_look_ms=parts.ledger.read_look_ms,
            now_ms=now_ms,
        )
        self._watch = ChannelWatch(ledger=parts.ledger, networks=self.networks, rules=rules, now_ms=now_ms)
        self._claims = ChannelClaims(
            ledger=parts.ledger,
            gas_ledger=gas_ledger,
            chains=chains,
            networks=self.networks,
            rules=rules,
            gas_budget=gas_budget,
            signers=parts.authorizers,
            limits=limits,
            now_ms=now_ms,
            entropy=secrets.token_bytes,
        )

    async def run_once(self) -> None:
        await self._watch.run_once()
        await self._claims.run_once()
