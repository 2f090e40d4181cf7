"""Held calls: whether the provider of one can charge it, and the provider's decision.

A call without an outcome holds its price until a repeat, the clock or its provider ends it. The provider can always release it. Where a
payment holds the price, a charge is a move in the ledger. Where an authorisation (x402, MPP) pays, the money has not moved: a charge settles the
authorisation, so it is possible only while the token still accepts it. The page, the API and the CLI use this one rule.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum

from tollway.chain.networks import ChainRules, find_asset
from tollway.chain.port import SettlementChain
from tollway.errors import ChainUnavailable
from tollway.ids import ChainId
from tollway.ledger.ledger import Ledger
from tollway.ledger.records import AUTHORIZED_RAILS, AuthorizedCall, CallRecord, CallState, Rail
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.authorization_onchain import (
    Cancelled,
    UseNotFound,
    find_use,
    simulate_transfer,
)
from tollway.payments.gas import GasBudget
from tollway.payments.lookup_quota import AuthorizationLookup


class ChargeFault(StrEnum):
    """Why a held call can only be released. Public (`reason` of a problem)."""

    EXPIRED = "authorization_expired"
    USED = "authorization_used"
    NOT_SETTLED = "network_not_settled"
    ON_CHANNEL = "channel_voucher"


class HeldCalls:
    def __init__(
        self,
        *,
        ledger: Ledger,
        chains: SettlementChain,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        open_lookup: Callable[[str], AuthorizationLookup],
        limits: Limits,
        now_ms: Callable[[], int],
    ) -> None:
        """`open_lookup`: the chain look-ups of one request, counted against the quota of its client address."""
        self._ledger = ledger
        self._chains = chains
        self._rules = rules
        self._gas_budget = gas_budget
        self._open_lookup = open_lookup
        self._limits = limits
        self._now_ms = now_ms

    async def resolve(
        self, call: CallRecord, outcome: CallState, *, client_address: str
    ) -> CallState | ChargeFault | None:
        """Ends a held call: `released`, or `consumed`. Returns the new state, which is `settling` for a charge by authorisation; the reason where it
        cannot be charged; None where the call is not held."""
        if outcome is CallState.CONSUMED:
            fault = await self.find_charge_fault(call, client_address=client_address)
            if fault is not None:
                return fault
        return await self._ledger.resolve(call.id, outcome, now_ms=self._now_ms())

    async def find_charge_fault(self, call: CallRecord, *, client_address: str) -> ChargeFault | None:
        """Why this held call cannot be charged; None where it can. Where the chain is unavailable or the quota of look-ups is used up, the clock
        alone decides: settlement recovery reads the chain before it ends the call."""
        if call.state is CallState.UNKNOWN and call.rail is Rail.CHANNEL:
            return ChargeFault.ON_CHANNEL  # its voucher pays the next call
        if call.state is not CallState.UNKNOWN or call.rail not in AUTHORIZED_RAILS:
            return None
        known = await self._ledger.find_call_authorization(call.id)
        if known is None or known.transfer is not None:
            return None  # a payment holds the price
        asset = find_asset(self._rules, known.authorization.chain_id, known.authorization.asset)
        if asset is None or asset.chain_id not in self._gas_budget.chain_ids:
            return ChargeFault.NOT_SETTLED
        is_over = known.authorization.valid_before <= self._now_ms() // 1000
        by_clock = ChargeFault.EXPIRED if is_over else None
        with self._open_lookup(client_address) as lookup:
            if await lookup.take(str(call.provider)) is not None:
                return by_clock
            try:
                return await self._read_fault(known, asset, by_clock)
            except ChainUnavailable:
                lookup.leave_unresolved()
                return by_clock

    async def _read_fault(
        self, known: AuthorizedCall, asset: Asset, by_clock: ChargeFault | None
    ) -> ChargeFault | None:
        """The fault that the chain shows. A transfer that another sender made with the same from, to and value is no fault: it pays the call."""
        authorization, rules = known.authorization, self._rules[asset.chain_id]
        units = asset.floor_to_ledger(authorization.base_units)
        quorum = rules.quorum_for(asset, units)
        simulated = await simulate_transfer(
            self._chains,
            authorization,
            sequence=self._gas_budget.choose_sequence(asset.chain_id, is_claimed=True),
            factories=(),  # only the nonce and the head count here
            limits=self._limits,
            quorum=quorum,
        )
        facts = simulated.facts
        if not facts.is_used:
            return ChargeFault.EXPIRED if facts.head_time >= authorization.valid_before else by_clock
        use = await find_use(
            self._chains,
            authorization,
            from_block=known.seen_block,
            depth=rules.confirmations_for(asset, units),
            quorum=quorum,
        )
        if isinstance(use, UseNotFound):
            return by_clock
        return ChargeFault.USED if isinstance(use, Cancelled) else None
