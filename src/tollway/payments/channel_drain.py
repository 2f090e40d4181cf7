"""Refunds channels that no listing can use any more: another payTo, another key, another currency or network, or a retired listing.

A review marks such a channel, and takes the mark away when a listing can use it again. A day after the mark one transaction claims what calls owe and refunds the rest to
the payer, the dearest channel first, within the gas budget of the network. The transaction is a refund like that of a payer (`payments.channel_refunds`), so it is
recovered as one: the channel is reserved until it is mined, and it is sent at most once a day. One gateway does this for all. Channels on networks that are not configured
stay as they are: this gateway has no keys there.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Protocol

import structlog

from tollway.chain.networks import ChainRules
from tollway.errors import ChainUnavailable, Refusal
from tollway.ids import Address, ChainId, format_network
from tollway.ledger.channels import Channel, ChannelState
from tollway.ledger.ledger import ChannelClaimLedger, ChannelLedger
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_refunds import ChannelRefunds
from tollway.registry.catalog import PayeeTerms

UNUSED_MS = 86_400_000
"""How long no listing could use a channel before it is refunded."""
REVIEW_INTERVAL_MS = 3_600_000
REFUNDS_MAX = 25
"""How many channels of a network one round refunds."""
PAGE = 100

_log = structlog.get_logger(__name__)


class DrainedChannels(ChannelLedger, ChannelClaimLedger, Protocol):
    """The channels, and their claims."""


class ChannelDrain:
    """Run `run_once` periodically, by one gateway."""

    def __init__(
        self,
        *,
        ledger: DrainedChannels,
        refunds: ChannelRefunds,
        networks: ChannelNetworks,
        rules: Mapping[ChainId, ChainRules],
        find_payee_terms: Callable[[Collection[Address]], Awaitable[frozenset[PayeeTerms]]],
        now_ms: Callable[[], int],
    ) -> None:
        self._ledger = ledger
        self._refunds = refunds
        self._networks = networks
        self._rules = rules
        self._find_payee_terms = find_payee_terms
        self._now_ms = now_ms
        self._reviewed_ms: dict[ChainId, int] = {}

    async def run_once(self) -> None:
        """An unavailable chain waits for the next round."""
        for chain_id in filter(self._networks.is_deployed, self._networks.rules):
            try:
                await self._review(chain_id)
                await self._refund_unused(chain_id)
            except ChainUnavailable as exc:
                _log.warning("channel_claims_unseen", network=format_network(chain_id), detail=str(exc))

    # ---- Review.

    async def _review(self, chain_id: ChainId) -> None:
        now_ms = self._now_ms()
        last_ms = self._reviewed_ms.get(chain_id)
        if last_ms is not None and now_ms - last_ms < REVIEW_INTERVAL_MS:
            return
        after_key = 0
        while page := await self._ledger.list_watched(chain_id, after_key=after_key, limit=PAGE):
            terms = await self._find_payee_terms({channel.config.receiver for channel in page})
            for channel in page:
                is_unused = not self._is_usable(channel, terms)
                if is_unused is not (channel.unused_since_ms is not None):
                    await self._ledger.mark_unused(channel.key, now_ms if is_unused else None)
                    _log.info(
                        "channel_unused",
                        channel="0x" + channel.id.hex(),
                        network=format_network(chain_id),
                        is_unused=is_unused,
                    )
            after_key = page[-1].key
        self._reviewed_ms[chain_id] = now_ms

    def _is_usable(self, channel: Channel, terms: Collection[PayeeTerms]) -> bool:
        config, rules = channel.config, self._networks.rules[channel.chain_id]
        symbols = [one.symbol for one in self._rules[channel.chain_id].assets if one.token == config.token]
        return (
            channel.state is not ChannelState.DRAINING
            and config.receiver_authorizer in self._networks.authorizers
            and config.withdraw_delay == rules.withdraw_delay
            and any(PayeeTerms(config.receiver, channel.chain_id, symbol) in terms for symbol in symbols)
        )

    # ---- Refund.

    async def _refund_unused(self, chain_id: ChainId) -> None:
        before_ms = self._now_ms() - UNUSED_MS
        for channel in await self._ledger.list_unused(chain_id, before_ms=before_ms, limit=REFUNDS_MAX):
            try:
                await self._refunds.refund_unused(channel)
            except Refusal as refusal:
                _log.warning(
                    "channel_refund_refused",
                    channel="0x" + channel.id.hex(),
                    network=format_network(chain_id),
                    reason=refusal.problem.reason or refusal.problem.code.value,
                )
