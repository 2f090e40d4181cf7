"""Watches the channels on their chains: withdrawals of payers, deposits and refunds of others, and what claims have moved.

A round reads the channels that the events of the blocks since the last round name. A whole look reads every channel that still holds money: the first round
does so, one in each quarter of the delay of a withdrawal, and each round whose nodes return no events. A withdrawal in sight closes its channel to calls and
makes its claim urgent (`payments.channel_claims`). One gateway does this for all. Each gateway compares the time of the last round: where it is older than a
quarter of the delay of a withdrawal, no channel of that network takes a deposit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tollway.chain.networks import ChainRules
from tollway.chain.port import WatchedChain
from tollway.errors import ChainUnavailable
from tollway.ids import ChainId, ChannelId, format_network
from tollway.ledger.channels import Channel
from tollway.ledger.ledger import ChannelClaimLedger, ChannelLedger
from tollway.payments.channel_networks import LOOK_DIVISOR, ChannelNetworks
from tollway.payments.reorg_watcher import REORG_BLOCKS_MAX

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
        chains: WatchedChain,
        networks: ChannelNetworks,
        rules: Mapping[ChainId, ChainRules],
        now_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._chains = chains
        self._looks: dict[ChainId, _Look] = {}
        self._networks = networks
        self._rules = rules
        self._now_ms = now_ms

    async def run_once(self) -> None:
        """Looks at the channels. A chain that is unavailable has no round, and its last look gets older."""
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
        last, now_ms = self._looks.get(chain_id), self._now_ms()
        head = (await self._chains.fetch_tip(chain_id)).head_number
        named = await self._find_named(chain_id, last, head)
        if last is None or named is None or self._is_whole_due(chain_id, last, now_ms):
            await self._renew_all(chain_id)
            whole_ms = now_ms
        else:
            # A reorganisation takes events back, so the channels of the last round are read once more.
            await self._renew_named(chain_id, only=named | last.named)
            whole_ms = last.whole_ms
        self._looks[chain_id] = _Look(head=head, whole_ms=whole_ms, named=named or frozenset())

    def _is_whole_due(self, chain_id: ChainId, last: "_Look", now_ms: int) -> bool:
        delay_ms = self._networks.rules[chain_id].withdraw_delay * 1000
        return now_ms - last.whole_ms >= delay_ms // LOOK_DIVISOR

    async def _find_named(
        self, chain_id: ChainId, last: "_Look | None", head: int
    ) -> frozenset[ChannelId] | None:
        """The channels that an event names since the last round, or in a block that may still be replaced or is not deep enough for a deposit. None: the
        nodes return no events."""
        assets = [asset for asset in self._rules[chain_id].assets if asset.token is not None]
        young = max((self._networks.count_deposit_blocks(chain_id, asset) for asset in assets), default=1)
        since = head if last is None else min(last.head, head)
        first = max(0, since - REORG_BLOCKS_MAX - young)
        try:
            return await self._chains.fetch_changed_channels(chain_id, from_block=first, to_block=head)
        except ChainUnavailable:
            return None

    async def _renew_all(self, chain_id: ChainId) -> None:
        after_key = 0
        while page := await self._ledger.list_watched(chain_id, after_key=after_key, limit=PAGE):
            for channel in page:
                await self._renew(channel)
            after_key = page[-1].key

    async def _renew_named(self, chain_id: ChainId, *, only: frozenset[ChannelId]) -> None:
        """Reads no other channel: rounds are seconds apart. Events name channels of other gateways too."""
        named = sorted(only)
        for start in range(0, len(named), PAGE):
            for channel in await self._ledger.find_watched(chain_id, named[start : start + PAGE]):
                await self._renew(channel)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The last round of a network. `named`: the channels that the events of its blocks name. `whole_ms`: the begin of the last whole look."""

    head: int
    whole_ms: int
    named: frozenset[ChannelId]
