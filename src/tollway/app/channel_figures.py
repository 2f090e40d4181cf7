"""The figures of channels for the metrics of the fleet: counts by state, unclaimed money, withdrawals in sight. They read every channel, so at most once a minute."""

import time
from collections.abc import Callable, Mapping

from tollway.chain.networks import ChainRules
from tollway.ids import Address, ChainId, format_network
from tollway.ledger.channel_totals import ChannelTotal, ChannelWithdrawal
from tollway.ledger.channels import ChannelState
from tollway.money import Asset
from tollway.observability.telemetry import ChannelFigures
from tollway.payments.channel_claims import COST_GAS
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_terms import ChannelRules, one_coin
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.web.operator.chains import NetworkChannels

READ_INTERVAL_S = 60.0
WITHDRAWALS_MAX = 10_000


class ChannelFiguresReader:
    """Used from one event loop. `clock`: monotonic seconds."""

    def __init__(
        self,
        totals: ChannelTotalsStore,
        networks: ChannelNetworks,
        *,
        rules: Mapping[ChainId, ChainRules],
        claim_reserve_wei: Callable[[ChainId], int],
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._totals = totals
        self._networks = networks
        self._rules = rules
        self._claim_reserve_wei = claim_reserve_wei
        self._now_ms = now_ms
        self._clock = clock
        self._figures: Mapping[str, ChannelFigures] = {}
        self._due_s = float("-inf")

    async def read(self) -> Mapping[str, ChannelFigures]:
        """By network; at most `READ_INTERVAL_S` old."""
        if self._clock() >= self._due_s:
            self._figures = await self._read_now()
            self._due_s = self._clock() + READ_INTERVAL_S
        return self._figures

    async def list_networks(self) -> tuple[NetworkChannels, ...]:
        """The same figures with what this gateway knows of each network. Raises StorageUnavailable."""
        figures = await self.read()
        return tuple(
            NetworkChannels(
                network=format_network(chain_id),
                figures=figures[format_network(chain_id)],
                withdraw_delay_s=rules.withdraw_delay,
                look_age_s=self._networks.find_look_age_s(chain_id),
                gas_reserve_wei=self._claim_reserve_wei(chain_id),
            )
            for chain_id, rules in self._networks.rules.items()
        )

    async def _read_now(self) -> Mapping[str, ChannelFigures]:
        totals = await self._totals.list_totals()
        withdrawals = await self._totals.list_withdrawals(limit=WITHDRAWALS_MAX)
        since_ms = await self._totals.find_unclaimed_since_ms()
        return {
            format_network(chain_id): self._sum_up(
                rules,
                [one for one in totals if one.chain_id == chain_id],
                [one for one in withdrawals if one.chain_id == chain_id],
                since_ms.get(chain_id),
            )
            for chain_id, rules in self._networks.rules.items()
        }

    def _sum_up(
        self,
        rules: ChannelRules,
        totals: list[ChannelTotal],
        withdrawals: list[ChannelWithdrawal],
        since_ms: int | None,
    ) -> ChannelFigures:
        now_ms, counts, unclaimed, ratio = self._now_ms(), {state.value: 0 for state in ChannelState}, {}, 0.0
        for asset in self._rules[rules.chain_id].assets:
            own = [one for one in totals if one.token == asset.token]
            if asset.token is None:
                continue
            unclaimed[asset.symbol] = sum(one.unclaimed_units for one in own) / one_coin(asset)
            largest = max((one.unclaimed_units_max for one in own), default=0)
            ratio = max(ratio, largest / rules.unclaimed_max_units(asset))
        for total in totals:
            counts[total.state.value] += total.channels
        begun_s = min((one.since_s for one in withdrawals if self._is_claimable(rules, one)), default=None)
        return ChannelFigures(
            counts=counts,
            unclaimed=unclaimed,
            unclaimed_ratio=ratio,
            unclaimed_s=0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000,
            withdrawals=len(withdrawals),
            withdrawal_s=0.0 if begun_s is None else max(0.0, now_ms / 1000 - begun_s),
        )

    def _is_claimable(self, rules: ChannelRules, withdrawal: ChannelWithdrawal) -> bool:
        """Whether a claim would bring more than it costs: anyone can begin a withdrawal of a channel that owes less."""
        asset = self._find_asset(rules.chain_id, withdrawal.token)
        gas_price_wei = self._networks.gas_price_wei(rules.chain_id) or 0
        cost_units = 0 if asset is None else rules.gas_units(asset, COST_GAS, gas_price_wei)
        return withdrawal.unclaimed_units > cost_units

    def _find_asset(self, chain_id: ChainId, token: Address) -> Asset | None:
        return next((one for one in self._rules[chain_id].assets if one.token == token), None)
