"""The networks that have channels: whether the contracts are there, and what a channel is on its chain."""

from collections.abc import Mapping
from typing import Protocol

import structlog

from tollway.chain.networks import ChainRules
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, ChannelId, format_network
from tollway.ledger.channels import ChannelFacts
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.channels import WITHDRAW_DELAY_S
from tollway.payments.gas import GasBudget
from tollway.payments.settlement_rules import SettlementRules

_log = structlog.get_logger(__name__)


class ChannelReader(Protocol):
    """The reads of channels. They raise `ChainUnavailable`."""

    async def fetch_channel(self, chain_id: ChainId, channel_id: ChannelId) -> ChannelFacts:
        """The channel at the head of its chain, all members at one block."""
        ...

    async def has_channel_contracts(self, chain_id: ChainId) -> bool:
        """Whether the contract of channels and its deposit collector are there, and name each other and this chain."""
        ...


def make_channel_rules(
    rules: Mapping[ChainId, ChainRules],
    settlement_rules: Mapping[ChainId, SettlementRules],
    *,
    authorizers: tuple[Address, ...],
) -> dict[ChainId, ChannelRules]:
    """The networks whose gas this gateway pays itself and can compare with a price."""
    return {
        chain_id: ChannelRules(
            chain_id=chain_id,
            authorizers=authorizers,
            withdraw_delay=WITHDRAW_DELAY_S[rules[chain_id].kind],
            native_price_nano=one.native_price_nano,
        )
        for chain_id, one in settlement_rules.items()
        if one.gas_keys and one.facilitator is None and one.native_price_nano is not None
    }


class ChannelNetworks:
    """Used from one event loop. `refresh` must run as a background task."""

    def __init__(
        self, chains: ChannelReader, rules: Mapping[ChainId, ChannelRules], gas_budget: GasBudget
    ) -> None:
        self._chains = chains
        self.rules = rules
        self._gas_budget = gas_budget
        self._available: set[ChainId] = set()

    async def refresh(self) -> None:
        """Looks for the contracts, until they are seen: a contract at these addresses never changes."""
        for chain_id in self.rules:
            if chain_id in self._available:
                continue
            try:
                has_contracts = await self._chains.has_channel_contracts(chain_id)
            except ChainUnavailable:
                continue
            if has_contracts:
                self._available.add(chain_id)
                _log.info("channels_available", network=format_network(chain_id))

    def is_available(self, chain_id: ChainId) -> bool:
        return chain_id in self._available

    def gas_price_wei(self, chain_id: ChainId) -> int | None:
        fees = self._gas_budget.latest_fees(chain_id)
        return None if fees is None else fees.price_wei

    async def fetch_channel(self, chain_id: ChainId, channel_id: ChannelId) -> ChannelFacts:
        return await self._chains.fetch_channel(chain_id, channel_id)
