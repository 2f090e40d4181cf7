"""The networks that have channels: whether the contracts are there, and what a channel is on its chain."""

from collections.abc import Awaitable, Callable, Collection, Mapping

import structlog

from tollway.chain.channel_contract import (
    SETTLEMENT_CONTRACT,
    encode_receiver_totals,
    has_channel_contracts,
    parse_receiver_totals,
)
from tollway.chain.networks import ChainRules
from tollway.chain.port import SettlementChain
from tollway.errors import ChainUnavailable
from tollway.ids import Address, ChainId, ChannelId, format_network
from tollway.ledger.channels import ChannelFacts, Receiver
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.channel_terms import DEPOSIT_MAX, ChannelRules, one_coin
from tollway.payments.channels import WITHDRAW_DELAY_S
from tollway.payments.gas import GasBudget
from tollway.payments.settlement_rules import SettlementRules

LOOK_DIVISOR = 4
"""A network takes no deposit while its last look is older than this part of the delay of a withdrawal."""

_TOTALS_GAS, _TOTALS_BYTES_MAX = 100_000, 1_024

_log = structlog.get_logger(__name__)


def make_channel_rules(
    rules: Mapping[ChainId, ChainRules],
    settlement_rules: Mapping[ChainId, SettlementRules],
) -> dict[ChainId, ChannelRules]:
    """The networks whose gas this gateway pays itself and can compare with a price."""
    return {
        chain_id: ChannelRules(
            chain_id=chain_id,
            withdraw_delay=WITHDRAW_DELAY_S[rules[chain_id].kind],
            native_price_nano=one.native_price_nano,
        )
        for chain_id, one in settlement_rules.items()
        if one.gas_keys and one.facilitator is None and one.native_price_nano is not None
    }


class ChannelNetworks:
    """Used from one event loop. `refresh` must run as a background task. `read_look_ms`: when the channels of a network were looked at last (`payments.channel_watch`).
    `list_refused`: the receivers whose settle fails (`payments.channel_claims`)."""

    def __init__(
        self,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChannelRules],
        *,
        chain_rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        limits: Limits,
        read_look_ms: Callable[[ChainId], Awaitable[int | None]],
        list_refused: Callable[[], Awaitable[Collection[Receiver]]],
        now_ms: Callable[[], int],
    ) -> None:
        self._chains = chains
        self.rules = rules
        self._chain_rules = chain_rules
        self._limits = limits
        self._gas_budget = gas_budget
        self._read_look_ms = read_look_ms
        self._list_refused = list_refused
        self._now_ms = now_ms
        self.authorizers: tuple[Address, ...] = ()
        """The addresses whose channels take calls, the one that a 402 names first. `app.channel_wiring` sets them."""
        self._deployed: set[ChainId] = set()
        self._looked_ms: dict[ChainId, int | None] = {}
        self._refused: Collection[Receiver] = frozenset()
        self._began_ms = now_ms()

    async def refresh(self) -> None:
        """Looks for the contracts, until they are seen: a contract at these addresses never changes. Reads when the channels were looked at."""
        for chain_id in self.rules:
            if chain_id not in self._deployed:
                await self._find_contracts(chain_id)
        for chain_id in self.rules:
            self._looked_ms[chain_id] = await self._read_look_ms(chain_id)
        self._refused = await self._list_refused()

    async def _find_contracts(self, chain_id: ChainId) -> None:
        try:
            has_contracts = await has_channel_contracts(
                self._chains, chain_id, deadline_s=self._limits.rpc_deadline_s
            )
        except ChainUnavailable:
            return
        if has_contracts:
            self._deployed.add(chain_id)
            _log.info("channels_available", network=format_network(chain_id))

    def is_deployed(self, chain_id: ChainId) -> bool:
        return chain_id in self._deployed

    def is_available(self, chain_id: ChainId) -> bool:
        """Whether the contracts are there, and a withdrawal would be seen in time."""
        looked_ms = self._looked_ms.get(chain_id)
        if chain_id not in self._deployed or looked_ms is None:
            return False
        fresh_ms = self.rules[chain_id].withdraw_delay * 1000 // LOOK_DIVISOR
        return self._now_ms() - looked_ms <= fresh_ms

    def is_paid_out(self, chain_id: ChainId, receiver: Address, token: Address) -> bool:
        """Whether the contract can pay this receiver, as far as is known. Where it cannot, its channels take no call."""
        return Receiver(chain_id, receiver, token) not in self._refused

    def find_look_age_s(self, chain_id: ChainId) -> float | None:
        """Seconds since the channels were looked at; since the start of this process where no gateway has ever looked. None without the contracts."""
        if chain_id not in self._deployed:
            return None
        looked_ms = self._looked_ms.get(chain_id)
        return max(0, self._now_ms() - (self._began_ms if looked_ms is None else looked_ms)) / 1000

    def gas_price_wei(self, chain_id: ChainId) -> int | None:
        fees = self._gas_budget.latest_fees(chain_id)
        return None if fees is None else fees.price_wei

    async def fetch_channel(self, chain_id: ChainId, channel_id: ChannelId, asset: Asset) -> ChannelFacts:
        """The channel on its chain now. Its balance is the one that is as deep as a large deposit must be, and its block is that balance's."""
        depth = self.count_deposit_blocks(chain_id, asset)
        found = await self._chains.fetch_channel(chain_id, channel_id, confirmations=depth)
        state = found.state
        return ChannelFacts(
            # What is claimed has been there, however young the block of the deposit is.
            balance=max(found.confirmed_balance, state.total_claimed),
            total_claimed=state.total_claimed,
            refund_nonce=state.refund_nonce,
            withdrawal_amount=state.withdrawal,
            withdrawal_since_s=state.withdrawal_initiated_at,
            block_number=max(0, found.head_number - depth + 1),
            seen_block=found.head_number,
        )

    async def fetch_receiver_totals(self, receiver: Receiver) -> tuple[int, int]:
        """What the contract has claimed for a receiver, and what of it the contract has paid out, over all its channels. Raises ChainUnavailable, also where the answer is no pair of totals."""
        result = await self._chains.call_contract(
            receiver.chain_id,
            to=SETTLEMENT_CONTRACT,
            calldata=encode_receiver_totals(receiver=receiver.receiver, token=receiver.token),
            gas=_TOTALS_GAS,
            bytes_max=_TOTALS_BYTES_MAX,
            deadline_s=self._limits.rpc_deadline_s,
        )
        try:
            return parse_receiver_totals(b"" if result.reverted else result.payload)
        except ValueError:
            raise ChainUnavailable("the totals of a receiver are unreadable") from None

    def count_deposit_blocks(self, chain_id: ChainId, asset: Asset) -> int:
        """How many blocks deep a large deposit must be."""
        return self._chain_rules[chain_id].confirmations_for(asset, DEPOSIT_MAX * one_coin(asset))
