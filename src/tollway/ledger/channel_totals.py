"""What the channels of a ledger add up to, for the operator: sums by network, token, authorizer and state, withdrawals in sight, and what the chain should agree with.

Amounts are base units of the token, which are ledger units too. What calls of a channel have taken, and no claim has moved yet, is unclaimed: it is the risk of the provider.
"""

from dataclasses import dataclass
from typing import Protocol

from tollway.ids import Address, ChainId, ChannelId
from tollway.ledger.channels import ChannelState


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTotal:
    """The channels of one network, token, authorizer and state. `unclaimed_units`: what their calls have taken and no claim has moved yet; `unclaimed_units_max`: of the
    channel that has most. `unclaimed_channels`: how many have any. `held`: how many have any, or a balance."""

    chain_id: ChainId
    token: Address
    authorizer: Address
    state: ChannelState
    channels: int
    held: int
    unclaimed_channels: int
    unclaimed_units: int
    unclaimed_units_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelWithdrawal:
    """A withdrawal in sight. `since_s`: unix seconds of its begin on the chain."""

    chain_id: ChainId
    token: Address
    channel_id: ChannelId
    unclaimed_units: int
    since_s: int
    delay_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedChannel:
    """What the ledger says a channel has claimed. `open_total`: the sum that a claim under way will have claimed; None without one."""

    key: int
    channel_id: ChannelId
    receiver: Address
    token: Address
    total_claimed: int
    open_total: int | None


class ClaimedChannels(Protocol):
    """What the ledger says that its channels have claimed."""

    async def list_claimed(
        self, chain_id: ChainId, *, after_key: int, limit: int
    ) -> tuple[ClaimedChannel, ...]:
        """The channels of a network by key. Raises StorageUnavailable."""
        ...
