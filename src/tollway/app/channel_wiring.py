"""The objects of channels, one per gateway: the networks that have them, the watch of withdrawals, and the claims."""

import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tollway.app.channel_keys import derive_authorizers
from tollway.chain.networks import ChainRules
from tollway.chain.port import WatchedChain
from tollway.ids import Address, ChainId
from tollway.ledger.ledger import GasLedger
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.channel_claims import COST_GAS, ChannelClaims, find_claim_gas
from tollway.payments.channel_drain import ChannelDrain
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_refunds import ChannelRefunds
from tollway.payments.channel_terms import ChannelRules, has_channels
from tollway.payments.channel_watch import ChannelWatch
from tollway.payments.gas import NO_METRICS, GasBudget, SettlementMetrics
from tollway.payments.receipts import ReceiptPoller
from tollway.registry.catalog import PayeeTerms
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.channel_totals import ChannelTotalsStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelParts:
    """What channels need beside settlements. `secrets`: every secret key, the current one first. `origin`: of the public URL.
    `find_payee_terms`: those of the listings that are not retired."""

    ledger: ChannelClaimStore
    totals: ChannelTotalsStore
    rules: Mapping[ChainId, ChannelRules]
    keys: Sequence[bytes] = field(repr=False)
    origin: str
    find_payee_terms: Callable[[Collection[Address]], Awaitable[frozenset[PayeeTerms]]]


class ChannelServices:
    """The channels of the networks that have them. `networks`: read by calls; `run_once`: by the gateway that leads the sweep."""

    def __init__(
        self,
        parts: ChannelParts,
        *,
        gas_ledger: GasLedger,
        chains: WatchedChain,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        receipt_poller: ReceiptPoller,
        limits: Limits,
        now_ms: Callable[[], int],
        metrics: SettlementMetrics = NO_METRICS,
    ) -> None:
        self.ledger, self.totals = parts.ledger, parts.totals
        self._rules, self._gas_budget = rules, gas_budget
        self._keys, self._origin, self._restores = parts.keys, parts.origin, -1
        self._limits = limits
        self._clock = time.monotonic
        self._next_claims_s = 0.0
        self._next_count_s: dict[ChainId, float] = {}
        self.networks = ChannelNetworks(
            chains,
            parts.rules,
            chain_rules=rules,
            gas_budget=gas_budget,
            limits=limits,
            read_look_ms=parts.ledger.read_look_ms,
            list_refused=parts.ledger.list_refused,
            now_ms=now_ms,
        )
        self._watch = ChannelWatch(
            ledger=parts.ledger, chains=chains, networks=self.networks, rules=rules, now_ms=now_ms
        )
        self._claims = ChannelClaims(
            ledger=parts.ledger,
            gas_ledger=gas_ledger,
            chains=chains,
            networks=self.networks,
            rules=rules,
            gas_budget=gas_budget,
            limits=limits,
            now_ms=now_ms,
            entropy=secrets.token_bytes,
            metrics=metrics,
        )
        self.refunds = ChannelRefunds(
            ledger=parts.ledger,
            claims=self._claims,
            networks=self.networks,
            rules=rules,
            gas_budget=gas_budget,
            receipt_poller=receipt_poller,
            limits=limits,
            now_ms=now_ms,
        )
        self._drain = ChannelDrain(
            ledger=parts.ledger,
            refunds=self.refunds,
            networks=self.networks,
            rules=rules,
            find_payee_terms=parts.find_payee_terms,
            now_ms=now_ms,
        )

    async def open(self) -> None:
        """Looks at the networks, so that the first 402 offers what can be paid; and at the channels, where no gateway has done so lately."""
        await self.refresh()
        if not all(map(self.networks.is_available, self.networks.rules)):
            await self._watch.run_once()
            await self.networks.refresh()

    async def refresh(self) -> None:
        """Looks at the networks, and derives the authorizers again where the database was restored: channels from before take no call, and are still claimed."""
        restores = await self.ledger.count_restores()
        if restores != self._restores:
            derived = derive_authorizers(self._keys, origin=self._origin, restores=restores)
            self.networks.authorizers = tuple(signer.address for signer in derived[0])
            self._claims.set_signers([signer for signers in derived for signer in signers])
            self._restores, self._next_count_s = restores, {}
        await self.networks.refresh()
        for chain_id, rules in self.networks.rules.items():
            await self._reserve_gas(chain_id, rules)

    async def _reserve_gas(self, chain_id: ChainId, rules: ChannelRules) -> None:
        """Once in `channel_claim_interval_s`: the count reads every channel. The budget multiplies it by the gas price of each moment."""
        now_s, gas_price_wei = self._clock(), self.networks.gas_price_wei(chain_id)
        if gas_price_wei is None or now_s < self._next_count_s.get(chain_id, now_s):
            return
        self._next_count_s[chain_id] = now_s + self._limits.channel_claim_interval_s
        gas = await count_claim_gas(
            self.totals,
            rules,
            assets=self._rules[chain_id].assets,
            gas_price_wei=gas_price_wei,
            authorizers=self._claims.list_signers(),
        )
        self._gas_budget.reserve_claims(chain_id, gas=gas)

    async def run_once(self) -> None:
        """Watches in each round; claims, and refunds channels that no listing can use, once in `channel_claim_interval_s`."""
        await self._watch.run_once()
        now_s = self._clock()
        if now_s >= self._next_claims_s:
            self._next_claims_s = now_s + self._limits.channel_claim_interval_s
            await self.claim()
            await self._drain.run_once()

    async def claim(self) -> None:
        """Claims what is due, without waiting for the next round."""
        await self._claims.run_once()


async def count_claim_gas(
    totals: ChannelTotalsStore,
    rules: ChannelRules,
    *,
    assets: Sequence[Asset],
    gas_price_wei: int,
    authorizers: Collection[Address],
) -> int:
    """The gas of a claim of every channel of a network, and of the settles of their receivers. A channel that has less to claim than the gas of its claim is not claimed, nor one
    whose authorizer this gateway does not sign for."""
    channels = receivers = 0
    for asset in filter(has_channels, assets):
        assert asset.token is not None  # `has_channels` has seen it
        units_min = rules.gas_units(asset, COST_GAS, gas_price_wei)
        counted = await totals.count_unclaimed(
            rules.chain_id, asset.token, units_min=units_min, authorizers=authorizers
        )
        channels, receivers = channels + counted[0], receivers + counted[1]
    return find_claim_gas(channels, receivers)
