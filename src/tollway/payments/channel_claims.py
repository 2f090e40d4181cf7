"""Claims the money of channels for its receivers: choose -> simulate each channel alone -> sign and store -> broadcast -> read the chain.

One gateway does this for all (a leader), and two at once do no harm: a channel is in one open claim at most, and the contract skips a row that it has
claimed already. The ledger stores a claim with its transaction before any node receives it, and from that commit on its vouchers count as published:
they buy nothing any more. A claim shows the sum that ended calls owe, never the ceiling of the voucher.

One transaction claims many channels of many receivers, and settles each receiver and token once. A channel whose claim fails in simulation is left out
and looked at again each round. A receiver whose settle fails is claimed for all the same, and its channels take no call until a later round settles it alone;
any account may call `settle` before that. Neither holds up another channel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import structlog

from tollway.chain.channel_contract import (
    SETTLEMENT_CONTRACT,
    ClaimRow,
    ReceiverSettled,
    encode_claim,
    encode_multicall,
    encode_settle,
    parse_channel_events,
    read_refund_nonce,
)
from tollway.chain.networks import ChainRules
from tollway.chain.port import ChainFacts, SettlementChain
from tollway.chain.signer import read_transaction
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.ids import Address, CallId, ChainId, ListingId, format_id, format_network
from tollway.ledger.channels import (
    Channel,
    ChannelFacts,
    ChannelState,
    ClaimableChannel,
    OpenClaim,
    Receiver,
    StoredRow,
    Voucher,
)
from tollway.ledger.ledger import ChannelClaimLedger, ChannelLedger, GasLedger, NonceUnavailable
from tollway.ledger.records import SettlementAttempt
from tollway.limits import Limits
from tollway.money import LEDGER_DECIMALS_MAX, Asset
from tollway.payments.channel_networks import ChannelNetworks
from tollway.payments.channel_terms import ChannelRules
from tollway.payments.channels import claim_batch_digest
from tollway.payments.gas import NO_METRICS, ChannelOutcome, ChannelStep, GasBudget, SettlementMetrics
from tollway.payments.nonces import NonceSequence
from tollway.payments.transactions import SentCall, is_filler, resend, sign_next

ROWS_MAX = 25
"""How many channels one transaction claims: about 17,000 gas and 700 bytes each."""
TRIED_MAX = 4 * ROWS_MAX
"""How many channels one round simulates for a transaction: those that fail take no place of others."""
CLAIM_GAS, ROW_GAS, SETTLE_GAS = 60_000, 45_000, 120_000
"""The gas limit of a claim: of the transaction, of each channel, and of each settle. An estimate against a node that lags would see the path without money."""
COST_GAS = 105_000
"""What claiming and settling one channel costs, alone: measured on the sandbox's chain."""
SETTLE_COST_GAS = 65_000
"""What settling one receiver costs, alone."""
COST_FACTOR = 10
"""A channel is claimed once it has this many times the cost of its claim."""
OLD_AFTER_MS = 86_400_000
"""A channel with money this old is claimed once it has the cost of its claim."""
REFUSED_MS = 86_400_000
"""A receiver whose settle failed, and for whom nothing is left to settle, is tried again after this time."""
CHANNELS_MAX = 1_000
CLAIMS = ListingId("")
"""The gas of claims is of no listing: one transaction claims for many."""


def find_claim_gas(channels: int, receivers: int) -> int:
    """The gas limits of the transactions that claim so many channels and settle so many receivers."""
    return CLAIM_GAS * -(-channels // ROWS_MAX) + ROW_GAS * channels + SETTLE_GAS * receivers


_log = structlog.get_logger(__name__)


class ClaimSigner(Protocol):
    """A key that signs claims (`receiverAuthorizer`)."""

    @property
    def address(self) -> Address: ...

    def sign(self, digest: bytes) -> bytes: ...


class ClaimLedger(ChannelLedger, ChannelClaimLedger, Protocol):
    """The channels, and their claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A channel that the next claim may contain."""

    channel: Channel
    voucher: Voucher
    total: int

    @property
    def units(self) -> int:
        return self.total - self.channel.facts.total_claimed

    def encode(self) -> ClaimRow:
        return ClaimRow(
            config=self.channel.config,
            ceiling=self.voucher.ceiling,
            signature=self.voucher.signature,
            total_claimed=self.total,
        )


class ChannelClaims:
    """Run `run_once` periodically, by one gateway. Used from one event loop."""

    def __init__(
        self,
        *,
        ledger: ClaimLedger,
        gas_ledger: GasLedger,
        chains: SettlementChain,
        networks: ChannelNetworks,
        rules: Mapping[ChainId, ChainRules],
        gas_budget: GasBudget,
        limits: Limits,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        metrics: SettlementMetrics = NO_METRICS,
    ) -> None:
        self._ledger = ledger
        self._gas_ledger = gas_ledger
        self._chains = chains
        self._networks = networks
        self._rules = rules
        self._gas_budget = gas_budget
        self._signers: dict[Address, ClaimSigner] = {}
        self._limits = limits
        self._now_ms = now_ms
        self._entropy = entropy
        self._metrics = metrics

    async def run_once(self) -> None:
        """Finishes the open claims, then sends one more for each network and key. An unavailable chain waits for the next round."""
        for chain_id, rules in self._networks.rules.items():
            try:
                await self._run_network(chain_id, rules)
            except ChainUnavailable as exc:
                _log.warning("channel_claims_unseen", network=format_network(chain_id), detail=str(exc))

    async def _run_network(self, chain_id: ChainId, rules: ChannelRules) -> None:
        for claim in await self._ledger.list_open_claims(chain_id):
            await self.finish(claim)
        if not self._networks.is_deployed(chain_id):
            return
        for keep_books in (
            partial(self._settle_refused, chain_id, rules),
            partial(self._find_settled, chain_id),
        ):
            try:
                await keep_books()
            except (ChainUnavailable, StorageUnavailable) as exc:  # it costs the round no claim
                _log.warning("channel_claims_unseen", network=format_network(chain_id), detail=str(exc))
        found = await self._ledger.list_claimable(
            chain_id, unclaimed_max=rules.unclaimed_max, limit=CHANNELS_MAX
        )
        gas_price_wei = self._networks.gas_price_wei(chain_id)
        if not found or gas_price_wei is None:
            return
        rows = [row for one in found if (row := self._choose(one, rules, gas_price_wei)) is not None]
        for signer in self._signers.values():
            own = [row for row in rows if row.channel.config.receiver_authorizer == signer.address]
            own.sort(key=lambda row: row.units, reverse=True)
            if own:
                await self._claim(chain_id, own[:TRIED_MAX], signer)

    async def _find_settled(self, chain_id: ChainId) -> None:
        """Asks the contract which receivers have been paid all that is claimed for them, by whichever transaction. The ledger is read first: what is claimed after the answer
        of the contract is not in it. A node that has not seen all of our claims says nothing. The token pays such a receiver again."""
        for one in await self._ledger.list_unsettled(chain_id):
            receiver = Receiver(chain_id, one.receiver, one.token)
            claimed, settled = await self._networks.fetch_receiver_totals(receiver)
            if claimed == settled and claimed >= one.claimed_units:
                await self._ledger.mark_settled(one.totals)
                await self._ledger.clear_refused(receiver)

    # ---- Choose.

    def _choose(self, one: ClaimableChannel, rules: ChannelRules, gas_price_wei: int) -> _Row | None:
        channel, asset = one.channel, self._find_asset(one.channel)
        if asset is None:
            return None
        row = _Row(channel=channel, voucher=one.voucher, total=one.total)
        cost = rules.gas_units(asset, COST_GAS, gas_price_wei)
        is_urgent = channel.state is not ChannelState.OPEN and row.units > cost
        # A payer near its maximum gets no more calls soon. A channel that does not pay for its claim waits, unless it alone holds half of the maximum.
        is_near_max = (
            2 * one.payer_owes_nano >= rules.unclaimed_max * 10**LEDGER_DECIMALS_MAX
            or one.voucher.ceiling > channel.announced
        )
        is_due = (
            row.units >= max(1, COST_FACTOR * cost)
            or 2 * row.units >= rules.unclaimed_max_units(asset)
            or (is_near_max and row.units >= max(1, cost))
            or (self._now_ms() - one.since_ms >= OLD_AFTER_MS and row.units >= max(1, cost))
            or is_urgent
        )
        return row if is_due else None

    def _find_asset(self, one: Channel | Receiver) -> Asset | None:
        token = one.token if isinstance(one, Receiver) else one.config.token
        rules = self._rules.get(one.chain_id)
        assets = () if rules is None else rules.assets
        return next((asset for asset in assets if asset.token == token), None)

    # ---- Simulate, sign, store, send.

    async def _claim(self, chain_id: ChainId, rows: Sequence[_Row], signer: ClaimSigner) -> None:
        sequence = self._gas_budget.choose_sequence(chain_id, is_claimed=True)
        if sequence is None:
            return
        passing: list[_Row] = []
        for row in rows:
            if len(passing) < ROWS_MAX and await self._passes(row, signer):
                passing.append(row)
        if not passing:
            return
        settled = [
            pair for pair in _list_receivers(passing) if await self._settles(chain_id, passing, pair, signer)
        ]
        calls = [
            self._encode_claim(passing, signer),
            *(encode_settle(receiver=pair[0], token=pair[1]) for pair in settled),
        ]
        stored = [
            StoredRow(channel_key=row.channel.key, voucher=row.voucher, total=row.total) for row in passing
        ]
        claim = self.make_claim(chain_id, stored)
        await self.send(
            claim,
            calls,
            gas=find_claim_gas(len(passing), len(settled)),
            sequence=sequence,
        )

    async def _settle_refused(self, chain_id: ChainId, rules: ChannelRules) -> None:
        """Settles the receivers alone whose settle failed before and would succeed now. A receiver stays refused until the contract has paid it (`_find_settled`), would pay it
        what is not worth a transaction, or has had nothing for it in a day: a settle of nothing always succeeds."""
        refused = {
            one: at_ms
            for one, at_ms in (await self._ledger.list_refused()).items()
            if one.chain_id == chain_id
        }
        gas_price_wei = self._networks.gas_price_wei(chain_id)
        if not refused or gas_price_wei is None:
            return
        if any(not claim.rows for claim in await self._ledger.list_open_claims(chain_id)):
            return
        due = []
        for one in sorted(refused):
            claimed, settled = await self._networks.fetch_receiver_totals(one)
            unsettled = claimed - settled
            calldata = encode_settle(receiver=one.receiver, token=one.token)
            asset = self._find_asset(one)
            cost = 1 if asset is None else max(1, rules.gas_units(asset, SETTLE_COST_GAS, gas_price_wei))
            if unsettled == 0:
                if self._now_ms() - refused[one] >= REFUSED_MS:
                    await self._ledger.clear_refused(one)
            elif await self.simulate(chain_id, calldata):
                if unsettled >= cost:
                    due.append(calldata)
                else:
                    await self._ledger.clear_refused(one)
        sequence = self._gas_budget.choose_sequence(chain_id, is_claimed=True)
        if due and sequence is not None:
            due = due[:ROWS_MAX]
            claim = self.make_claim(chain_id, [])
            await self.send(claim, due, gas=CLAIM_GAS + SETTLE_GAS * len(due), sequence=sequence)

    async def send(
        self,
        claim: OpenClaim,
        calls: Sequence[bytes],
        *,
        gas: int,
        sequence: NonceSequence,
        listing_id: ListingId = CLAIMS,
    ) -> SettlementAttempt | None:
        """Signs a claim, stores it and sends it. `calls`: of the contract, all or nothing. `listing_id`: whose gas it is. None: one of its channels is in another claim, or no nonce was free."""

        async def store(attempt: SettlementAttempt) -> bool | NonceUnavailable:
            return await self._ledger.add_claim(claim, attempt)

        sequence.in_flight += 1
        try:
            attempt = await sign_next(
                SentCall(
                    chain_id=claim.chain_id,
                    call_id=claim.id,
                    listing_id=listing_id,
                    to=SETTLEMENT_CONTRACT,
                    calldata=encode_multicall(calls),
                    gas=gas,
                ),
                sequence,
                store=store,
                gas_ledger=self._gas_ledger,
                gas_budget=self._gas_budget,
                now_ms=self._now_ms,
            )
            if not isinstance(attempt, SettlementAttempt):
                return None
            _log.info(
                "channel_claim_sent",
                claim=claim.id,
                network=format_network(claim.chain_id),
                channels=len(claim.rows),
                transaction=str(attempt.tx_hash),
            )
            await resend(self._chains, attempt)
            return attempt
        finally:
            sequence.in_flight -= 1

    def make_claim(
        self, chain_id: ChainId, rows: Sequence[StoredRow], *, is_refund: bool = False
    ) -> OpenClaim:
        now_ms = self._now_ms()
        claim_id = CallId(format_id("claim", now_ms=now_ms, entropy=self._entropy(10)))
        return OpenClaim(
            id=claim_id, chain_id=chain_id, rows=tuple(rows), created_ms=now_ms, is_refund=is_refund
        )

    def set_signers(self, signers: Sequence[ClaimSigner]) -> None:
        """`signers`: also of older keys and of before a restore, so that their channels are claimed too."""
        self._signers = {signer.address: signer for signer in signers}

    def list_signers(self) -> tuple[Address, ...]:
        return tuple(self._signers)

    def has_signer(self, authorizer: Address) -> bool:
        return authorizer in self._signers

    def find_signer(self, channel: Channel) -> ClaimSigner | None:
        return self._signers.get(channel.config.receiver_authorizer)

    def _encode_claim(self, rows: Sequence[_Row], signer: ClaimSigner) -> bytes:
        encoded = [row.encode() for row in rows]
        digest = claim_batch_digest(rows[0].channel.chain_id, encoded)
        return encode_claim(encoded, signature=signer.sign(digest))

    async def _passes(self, row: _Row, signer: ClaimSigner) -> bool:
        """Whether the claim of this channel alone would succeed now."""
        passes = await self.simulate(row.channel.chain_id, self._encode_claim([row], signer))
        if not passes:
            _log.warning("channel_claim_refused", channel="0x" + row.channel.id.hex(), units=row.units)
            self.count_refused(row.channel.chain_id, ChannelStep.CLAIM)
            await self._renew(row.channel)
        return passes

    async def _settles(
        self, chain_id: ChainId, rows: Sequence[_Row], pair: tuple[Address, Address], signer: ClaimSigner
    ) -> bool:
        """Whether the settle of this receiver would succeed after the claim of its channels: a token may block a receiver."""
        own = [row for row in rows if (row.channel.config.receiver, row.channel.config.token) == pair]
        calls = [self._encode_claim(own, signer), encode_settle(receiver=pair[0], token=pair[1])]
        passes = await self.simulate(chain_id, encode_multicall(calls))
        if not passes:
            _log.warning("channel_settle_refused", receiver=str(pair[0]), token=str(pair[1]))
            await self._ledger.mark_refused(Receiver(chain_id, *pair), now_ms=self._now_ms())
            self.count_refused(chain_id, ChannelStep.SETTLE)
        return passes

    async def simulate(self, chain_id: ChainId, calldata: bytes) -> bool:
        """Whether the contract would do this now. Raises ChainUnavailable."""
        result = await self._chains.call_contract(
            chain_id,
            to=SETTLEMENT_CONTRACT,
            calldata=calldata,
            gas=CLAIM_GAS + ROW_GAS * ROWS_MAX + SETTLE_GAS,
            bytes_max=4_096,
            deadline_s=self._limits.rpc_deadline_s,
        )
        return not result.reverted

    def count_refused(self, chain_id: ChainId, step: ChannelStep) -> None:
        self._metrics.channel(chain_id, step, ChannelOutcome.REFUSED, 0)

    # ---- Finish.

    async def finish(self, claim: OpenClaim) -> None:
        """Ends a claim whose transaction is mined, or can never be: the chain then says what was claimed. Another one waits; the replacer of
        transactions sends it again. A look at a node that has not seen the block of the transaction counts for nothing. A refund has its channel until the ledger knows of its new balance: what the chain says at the depth of deposits may be older
        than the last deposit that was counted."""
        sent = await self._gas_ledger.attempts_of(claim.id)
        receipts = await self._chains.fetch_receipts(claim.chain_id, [one.tx_hash for one in sent])
        step = ChannelStep.REFUND if claim.is_refund else ChannelStep.CLAIM
        for one in sent:
            facts = receipts.get(one.tx_hash)
            if isinstance(facts, ChainFacts) and facts.fee_wei is not None:
                self._gas_budget.record_cost(
                    one,
                    facts.fee_wei,
                    is_reverted=not facts.succeeded,
                    step=None if is_filler(one) else step,
                )
        attempts = [one for one in sent if not is_filler(one)]
        mined = [one for one in attempts if isinstance(receipts.get(one.tx_hash), ChainFacts)]
        if not mined and not await self._is_passed(claim.chain_id, attempts):
            return
        facts_of_mined = [facts for one in mined if isinstance(facts := receipts[one.tx_hash], ChainFacts)]
        mined_block = max((facts.block_number for facts in facts_of_mined), default=0)
        drained: list[int] = []
        for row in claim.rows:
            channel = await self._ledger.find_channel_by_key(row.channel_key)
            if channel is None:
                continue
            seen = await self._fetch_facts(channel)
            if seen is None:
                drained += [channel.key] if claim.is_refund else []
                continue
            if seen.seen_block < mined_block:
                return
            renewed = await self._ledger.renew_channel(channel.key, seen, now_ms=self._now_ms())
            if claim.is_refund and not renewed.facts.is_same_state(seen):
                return
            if claim.is_refund and not _is_refund_used(attempts, seen):
                drained.append(channel.key)
        for facts in facts_of_mined:
            for event in parse_channel_events(facts.logs):
                if isinstance(event, ReceiverSettled):
                    self._metrics.channel(claim.chain_id, ChannelStep.SETTLE, ChannelOutcome.DONE, 0)
        if not mined:
            self._metrics.channel(claim.chain_id, step, ChannelOutcome.LOST, 0)
        if not any(facts.succeeded for facts in facts_of_mined):
            # The refund is public, and the contract accepts it from anyone until its nonce is used: its money may leave at any time.
            for key in drained:
                await self._ledger.drain_channel(key)
        await self._ledger.close_claim(claim.id, now_ms=self._now_ms())
        _log.info("channel_claim_ended", claim=claim.id, is_mined=bool(mined))

    async def _is_passed(self, chain_id: ChainId, attempts: Sequence[SettlementAttempt]) -> bool:
        """Whether another transaction has used the nonce of every attempt."""
        for one in attempts:
            account = await self._chains.fetch_account(chain_id, one.sender)
            if account.mined_nonce <= one.nonce:
                return False
        return True

    async def _renew(self, channel: Channel) -> None:
        """Writes what the chain says now."""
        facts = await self._fetch_facts(channel)
        if facts is not None:
            await self._ledger.renew_channel(channel.key, facts, now_ms=self._now_ms())

    async def _fetch_facts(self, channel: Channel) -> ChannelFacts | None:
        """None for a token that is not configured any more."""
        asset = self._find_asset(channel)
        if asset is None:
            return None
        return await self._networks.fetch_channel(channel.chain_id, channel.id, asset)


def _is_refund_used(attempts: Sequence[SettlementAttempt], seen: ChannelFacts) -> bool:
    """Whether the contract accepts the signed refund no more, by whichever transaction it was executed."""
    nonces = [read_refund_nonce(read_transaction(one.raw).calldata) for one in attempts]
    return bool(nonces) and all(nonce is not None and nonce < seen.refund_nonce for nonce in nonces)


def _list_receivers(rows: Sequence[_Row]) -> list[tuple[Address, Address]]:
    """Each receiver and token once."""
    return list(dict.fromkeys((row.channel.config.receiver, row.channel.config.token) for row in rows))
