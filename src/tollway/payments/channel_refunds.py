"""Refunds of channels: the payer asks for what the channel holds beyond its calls, and the contract pays it back.

One transaction claims what ended calls owe and refunds the rest, with the channel reserved until it is mined. The money goes to the payer by the contract
alone. Only whole refunds, once a day for a channel. A voucher that stood in a transaction is public: with such a one, a stranger could ask, so the channel
must have had no call for an hour.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from tollway.chain.channel_contract import (
    ChannelRefunded,
    ClaimRow,
    encode_claim,
    encode_multicall,
    encode_refund,
    parse_channel_events,
)
from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts
from tollway.errors import Code, Problem, Refusal, describe_rate
from tollway.ids import Address, ChainId, ListingId, TxHash
from tollway.ledger.channels import Channel, ChannelActivity, OpenClaim, StoredRow, Voucher, find_cover
from tollway.ledger.ledger import ChannelClaimLedger, ChannelLedger
from tollway.ledger.records import SettlementAttempt
from tollway.limits import Limits
from tollway.money import Asset
from tollway.payments.channel_claims import CLAIM_GAS, ROW_GAS, ChannelClaims
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_wire import ChannelReason, explain_channel
from tollway.payments.channels import claim_batch_digest, refund_digest
from tollway.payments.gas import ChannelStep, GasBudget
from tollway.payments.nonces import NonceSequence
from tollway.payments.receipts import ReceiptPoller

REFUND_GAS = 150_000
REFUND_INTERVAL_MS = 86_400_000
"""Between two refunds of one channel: each costs the operator a claim and a refund, and the payer nothing."""
REFUNDS = ListingId("refunds")
"""All refunds together may cost what one listing may: a wallet opens any number of channels, and pays nothing for their refunds."""
IDLE_MS = 3_600_000
"""How long a channel must have had no call where the shown voucher is public."""

TURN_WAIT_S, TURN_POLL_S = 10.0, 0.25

_log = structlog.get_logger(__name__)


class RefundedChannels(ChannelLedger, ChannelClaimLedger, Protocol):
    """The channels, and their claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refunded:
    """A mined refund. `base_units`: what the contract paid back."""

    channel: Channel
    tx_hash: TxHash
    base_units: int


class ChannelRefunds:
    """One per process; safe to use from many tasks at once."""

    def __init__(
        self,
        *,
        ledger: RefundedChannels,
        claims: ChannelClaims,
        networks: ChannelNetworks,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        receipt_poller: ReceiptPoller,
        limits: Limits,
        now_ms: Callable[[], int],
        turn_wait_s: float = TURN_WAIT_S,
        turn_poll_s: float = TURN_POLL_S,
    ) -> None:
        self._ledger = ledger
        self._claims = claims
        self._networks = networks
        self._rules = rules
        self._gas_budget = gas_budget
        self._receipt_poller = receipt_poller
        self._limits = limits
        self._now_ms = now_ms
        self._turn_wait_s = turn_wait_s
        self._turn_poll_s = turn_poll_s

    def knows(self, authorizer: Address) -> bool:
        """Whether this gateway signs for channels of that authorizer, also of an older one."""
        return self._claims.has_signer(authorizer)

    async def refund(self, channel: Channel, voucher: Voucher) -> Refunded:
        """Pays back what the channel holds beyond its calls. `voucher`: of the payer, over the announced sum. Raises Refusal, ChainUnavailable,
        StorageUnavailable."""
        asset = self._find_asset(channel)
        channel = await self._take_turn(channel, voucher)
        facts = await self._networks.fetch_channel(channel.chain_id, channel.id, asset)
        channel = await self._ledger.renew_channel(channel.key, facts, now_ms=self._now_ms())
        # A call that ended meanwhile raises the announced sum: the voucher does not cover it, and the same request again is corrected.
        if voucher.ceiling != channel.announced or not channel.facts.is_same_state(facts):
            raise Refusal(BUSY)
        total = max(channel.taken_units, channel.facts.total_claimed)
        base_units = channel.balance_units - total
        if base_units <= 0:
            raise Refusal(explain_channel(ChannelReason.REFUND_NO_BALANCE))
        sequence = self._gas_budget.choose_sequence(channel.chain_id, is_claimed=True)
        claim, attempt = await self._send(channel, voucher, sequence)
        depth = self._rules[channel.chain_id].confirmations_for(asset, base_units)
        try:
            async with asyncio.timeout(self._gas_budget.wait_s(channel.chain_id, depth=depth)):
                mined = await self._receipt_poller.wait_mined(
                    attempt.chain_id, attempt.tx_hash, sender=attempt.sender, depth=depth
                )
        except TimeoutError:
            raise Refusal(UNDECIDED) from None
        await self._claims.finish(claim)
        return await self._read_refund(claim, channel, mined)

    async def refund_unused(self, channel: Channel) -> bool:
        """Sends the refund of a channel that no listing can use, within the gas budget. False where it must wait. Raises Refusal, ChainUnavailable, StorageUnavailable."""
        asset = self._find_asset(channel)
        facts = await self._networks.fetch_channel(channel.chain_id, channel.id, asset)
        channel = await self._ledger.renew_channel(channel.key, facts, now_ms=self._now_ms())
        voucher = find_cover(channel)
        base_units = channel.balance_units - max(channel.taken_units, channel.facts.total_claimed)
        is_worth = base_units > 0 and self._gas_budget.is_offered(asset, base_units, REFUNDS)
        if voucher is None or not is_worth or not channel.facts.is_same_state(facts):
            return False
        await self._send(channel, voucher, self._gas_budget.choose_sequence(channel.chain_id))
        return True

    async def _send(
        self, channel: Channel, voucher: Voucher, sequence: NonceSequence | None
    ) -> tuple[OpenClaim, SettlementAttempt]:
        """Sends the claim of all that calls owe with the refund of the rest. Raises Refusal where nothing was sent."""
        total = max(channel.taken_units, channel.facts.total_claimed)
        base_units = channel.balance_units - total
        signer = self._claims.find_signer(channel)
        if signer is None or sequence is None:
            raise Refusal(AWAY)
        calls = []
        if total > channel.facts.total_claimed:
            row = ClaimRow(
                config=channel.config,
                ceiling=voucher.ceiling,
                signature=voucher.signature,
                total_claimed=total,
            )
            signature = signer.sign(claim_batch_digest(channel.chain_id, [row]))
            calls.append(encode_claim([row], signature=signature))
        nonce = channel.facts.refund_nonce
        signature = signer.sign(refund_digest(channel.chain_id, channel.id, nonce=nonce, amount=base_units))
        calls.append(encode_refund(channel.config, base_units=base_units, nonce=nonce, signature=signature))
        if not await self._claims.simulate(channel.chain_id, encode_multicall(calls)):
            self._claims.count_refused(channel.chain_id, ChannelStep.REFUND)
            raise Refusal(explain_channel(ChannelReason.REFUND_FAILED, _REFUSED))
        if not self._gas_budget.is_within_budget(channel.chain_id, REFUNDS):
            raise Refusal(AWAY)
        stored = StoredRow(channel_key=channel.key, voucher=voucher, total=total)
        claim = self._claims.make_claim(channel.chain_id, [stored], is_refund=True)
        attempt = await self._claims.send(
            claim, calls, gas=CLAIM_GAS + ROW_GAS + REFUND_GAS, sequence=sequence, listing_id=REFUNDS
        )
        if attempt is None:
            raise Refusal(BUSY)
        return claim, attempt

    async def _take_turn(self, channel: Channel, voucher: Voucher) -> Channel:
        """Waits until no call and no claim has the channel. Raises Refusal where it may not be refunded now."""
        for _ in range(round(self._turn_wait_s / self._turn_poll_s)):
            activity = await self._ledger.find_activity(channel.key)
            problem = self._find_problem(channel, voucher, activity)
            if problem is None:
                return channel
            if problem is not BUSY:
                raise Refusal(problem)
            await asyncio.sleep(self._turn_poll_s)
            channel = await self._ledger.find_channel(channel.chain_id, channel.id) or channel
        raise Refusal(BUSY)

    async def _read_refund(self, claim: OpenClaim, channel: Channel, mined: ChainFacts) -> Refunded:
        paid = [
            event.base_units
            for event in parse_channel_events(mined.logs)
            if isinstance(event, ChannelRefunded) and event.channel_id == channel.id
        ]
        after = await self._ledger.find_channel(channel.chain_id, channel.id)
        if after is not None and not mined.succeeded:
            if after.facts.refund_nonce > channel.facts.refund_nonce:
                raise Refusal(explain_channel(ChannelReason.REFUND_FAILED, REFUNDED_BY_ANOTHER))
            # No node that has seen the transaction says yet what came of it.
            if after.reserved_call == claim.id:
                raise Refusal(UNDECIDED)
        if not mined.succeeded or not paid or after is None:
            raise Refusal(explain_channel(ChannelReason.REFUND_FAILED))
        _log.info(
            "channel_refunded", channel=str(channel.id), units=sum(paid), transaction=str(mined.tx_hash)
        )
        return Refunded(channel=after, tx_hash=mined.tx_hash, base_units=sum(paid))

    def _find_asset(self, channel: Channel) -> Asset:
        rules = self._rules.get(channel.chain_id)
        assets = () if rules is None else rules.assets
        asset = next((one for one in assets if one.token == channel.config.token), None)
        if asset is None:
            raise Refusal(explain_channel(ChannelReason.TOKEN))
        return asset

    def _find_problem(self, channel: Channel, voucher: Voucher, activity: ChannelActivity) -> Problem | None:
        now_ms = self._now_ms()
        if channel.reserved_call is not None or activity.is_claimed_now or activity.open_units:
            return BUSY
        public_ms = activity.called_ms if 0 < voucher.ceiling <= channel.published else None
        return _find_wait(
            "refunds", activity.refunded_ms, interval_ms=REFUND_INTERVAL_MS, now_ms=now_ms
        ) or _find_wait("refunds-by-public-voucher", public_ms, interval_ms=IDLE_MS, now_ms=now_ms)


def _find_wait(policy: str, since_ms: int | None, *, interval_ms: int, now_ms: int) -> Problem | None:
    left_ms = 0 if since_ms is None else since_ms + interval_ms - now_ms
    if left_ms <= 0:
        return None
    return Problem(
        code=Code.RATE_LIMITED,
        detail="A channel is refunded once a day, and where its newest voucher stood in a claim after an hour without a call. Send the same request after "
        "Retry-After, or withdraw at the contract yourself.",
        retry_after_s=-(-left_ms // 1000),
        payment_state="none",
        members=describe_rate(policy, limit=1, window_s=interval_ms // 1000),
    )


BUSY = Problem(
    code=Code.CHANNEL_BUSY,
    detail="A call or a claim has this channel. Send the same request again after Retry-After.",
    retry_after_s=5,
    payment_state="none",
)
AWAY = Problem(
    code=Code.CHANNEL_BUSY,
    detail="The gateway cannot send transactions on this network now. Send the same request again after Retry-After, or withdraw at the contract yourself.",
    reason="gas",
    retry_after_s=60,
    payment_state="none",
)
UNDECIDED = Problem(
    code=Code.PAYMENT_OUTCOME_UNKNOWN,
    detail="The transaction of the refund is sent, and its outcome is not known yet. Read the channel on the chain, or send the same request again after Retry-After.",
    retry_after_s=15,
    payment_state="none",
)
_REFUSED = "The contract refuses the refund in simulation, so that nothing is sent; check that the token does not block the payer, or withdraw at the contract yourself."
REFUNDED_BY_ANOTHER = "Another transaction has executed this refund, and the contract has paid the payer; read the channel on the chain."
