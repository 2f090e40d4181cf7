"""Watches the channels on their chains: withdrawals of payers, deposits and refunds of others, and what claims have moved.

Each round reads every channel that still holds money. A withdrawal in sight closes its channel to calls and makes its claim urgent
(`payments.channel_claims`). One gateway does this for all. Each gateway compares the time of the last whole round: where it is older than a quarter of the
delay of a withdrawal, no channel of that network takes a deposit.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import structlog

from tollway.chain.networks import ChainRules
from tollway.errors import ChainUnavailable
from tollway.ids import ChainId, format_network
from tollway.ledger.channels import Channel
from tollway.ledger.ledger import ChannelClaimLedger, ChannelLedger
from tollway.payments.channel_networks import ChannelNetworks

PAGE = 100

_log = structlog.get_logger(__name__)


class WatchedChannels(ChannelLedger, ChannelClaimLedger, Protocol):
    """The channels, and when they were looked at."""


class ChannelWatch:
    """Run `run_once` periodically, by one gateway."""

    def __init__(
        self,
        *,
        ledger: WatchedChannels,
        networks: ChannelNetworks,
        rules: Mapping[ChainId, ChainRules],
        now_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._networks = networks
        self._rules = rules
        self._now_ms = now_ms

    async def run_once(self) -> None:
        """Looks at every channel with money. A chain that is unavailable has no whole round, and its last look gets older."""
        for chain_id in self._networks.rules:
            if not self._networks.is_deployed(chain_id):
                continue
            began_ms = self._now_ms()
            try:
                await self._look(chain_id)
            except ChainUnavailable as exc:
                _log.warning("channels_unseen", network=format_network(chain_id), detail=str(exc))
                continue
            await self._ledger.note_look(chain_id, now_ms=began_ms)

    async def _look(self, chain_id: ChainId) -> None:
        after_key = 0
        while page := await self._ledger.list_watched(chain_id, after_key=after_key, limit=PAGE):
            for channel in page:
                await self._renew(channel)
            after_key = page[-1].key

    async def _renew(self, channel: Channel) -> None:
        assets = self._rules[channel.chain_id].assets
        asset = next((one for one in assets if one.token == channel.config.token), None)
        if asset is None:
            return
        facts = await self._networks.fetch_channel(channel.chain_id, channel.id, asset)
        known = channel.facts
        if facts.is_same_state(known):
            return
        renewed = await self._ledger.renew_channel(channel.key, facts, now_ms=self._now_ms())
        if renewed.state is not channel.state:
            _log.warning(
                "channel_state_changed",
                channel="0x" + channel.id.hex(),
                network=format_network(channel.chain_id),
                state=renewed.state.value,
                unclaimed=renewed.taken_units - renewed.facts.total_claimed,
            )
