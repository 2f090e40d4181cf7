"""Channels in the ledger: an escrow of one payer for one payee, on one chain in one token, which pays many calls (x402 `batch-settlement`). Pure.

The escrow is a contract. A deposit raises its balance, and each call shows a voucher: the payer's signature over the cumulative sum that the payee may
claim. The ledger has the balance in a payment row of its own: `value_units` is the balance, `taken_units` the sum of what calls owe, and the calls move
as calls of every other payment do. This module adds what vouchers need:

    announced    what the clients of the channel know of as charged; never falls
    ceiling      the cumulative sum of a voucher: announced + the maximum of its call
    published    the highest ceiling that stood in a transaction of the gateway; such a voucher buys nothing

Laws, at rest: taken <= balance, and totalClaimed and taken + lacking <= announced <= ceiling of the candidate. A claim shows no more than was taken; where a charged
call is given back later, because the repeat of its cut response costs nothing, the following calls charge that much less. The head of a call charges what taken and lacking
exceed `announced` by: a stream charges its maximum at its head, and the following calls charge less until the two are equal again. A balance that falls below what was
taken makes calls `reorged`, and what they lack stays announced: the next balance pays it.

One call at a time: the claim reserves the channel for its call, and the end of that call ends the reservation. A call of unknown outcome keeps its
reservation until it is released; the next voucher releases it. Amounts are base units of the token, which has at most `LEDGER_DECIMALS_MAX`
decimals, so they are ledger units too.
Source: x402 specification, schemes/batch-settlement (EVM).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from tollway.chain.channel_contract import ChannelConfig
from tollway.ids import Address, CallId, ChainId, ChannelId
from tollway.ledger.records import CallState, ClaimState
from tollway.money import LEDGER_DECIMALS_MAX


class ChannelName(NamedTuple):
    chain_id: ChainId
    channel_id: ChannelId


class Receiver(NamedTuple):
    """What one settle pays out: a receiver and a token."""

    chain_id: ChainId
    receiver: Address
    token: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Voucher:
    """A signed cumulative maximum. `ceiling`: base units; `signature`: 65 bytes, of the payer's authorizer."""

    ceiling: int
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFacts:
    """A channel on its chain, at one block. `balance`: all deposits less refunds and withdrawals; claims do not lower it. `withdrawal_since_s`: unix
    seconds of the begin of a pending withdrawal, 0 without one. `seen_block`: the head of the node that said so, which the ledger does not keep."""

    balance: int
    total_claimed: int
    refund_nonce: int
    withdrawal_amount: int
    withdrawal_since_s: int
    block_number: int
    seen_block: int = field(default=0, compare=False)

    def is_same_state(self, other: "ChannelFacts") -> bool:
        """Whether both say the same, at whichever blocks."""
        return replace(self, block_number=0) == replace(other, block_number=0)


class ChannelState(StrEnum):
    """The state of a channel. `open`: takes calls. `withdrawing`: a withdrawal is in sight. `draining`: no listing can use it any more, it is older than the
    last restore, or a refund of it has failed; it is claimed and refunded."""

    OPEN = "open"
    WITHDRAWING = "withdrawing"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """A channel in the ledger. `key`: the number of its row. `payment_id`: the payment row that has its balance.

    `decimals`: of the token. `balance_units`: the deposits that count, less refunds and withdrawals: the balance of `facts`, which a concluded deposit raises. `taken_units`: what calls owe,
    and `start_units`, what was claimed before the first of them. The payment has both without `start_units`, and a value of at least what its calls hold. `lacking_units`: what its `reorged` calls owe beyond
    that, because the balance does not cover it. `spent`: the newest voucher whose ceiling is announced, which a claim may show; `waiting`: the voucher that
    becomes `spent` once its ceiling is announced; `candidate`: the newest voucher. `published`: see the module. `reserved_call`: the call that
    has the channel, with its state. `facts`: the chain as it was read last, with the deposits that are known since. `unused_since_ms`: since when no listing can use the channel."""

    key: int
    id: ChannelId
    chain_id: ChainId
    config: ChannelConfig
    payment_id: int
    decimals: int
    start_units: int
    balance_units: int
    taken_units: int
    lacking_units: int = 0
    announced: int
    published: int
    spent: Voucher | None
    waiting: Voucher | None
    candidate: Voucher | None
    facts: ChannelFacts
    state: ChannelState
    reserved_call: CallId | None
    reserved_state: CallState | None
    unused_since_ms: int | None = None

    @property
    def name(self) -> ChannelName:
        return ChannelName(self.chain_id, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelClaim:
    """What a claim shows of a channel. `step_units`: what the voucher adds to the announced sum, a maximum of the terms; the call may cost less. `deposit_units`: the deposit that settles with the call; 0 for a voucher alone. `unclaimed_max`: how much the payer may
    owe beyond what is claimed on the chain, on all channels, after this call."""

    channel_id: ChannelId
    voucher: Voucher
    step_units: int
    deposit_units: int
    unclaimed_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBusy:
    """A refused claim: another call has the channel. Nothing changed. `state`: `forwarding` or `settling`: wait; `unknown`: release that call, then claim
    again."""

    call_id: CallId
    state: CallState


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingMismatch:
    """A refused claim: the ceiling is not the announced sum and the price, or the balance does not cover it. Nothing changed. The payer signs again over money
    that is already there."""

    channel: Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelClosed:
    """A refused claim: the channel takes no call now. Nothing changed."""

    state: ChannelState


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFull:
    """A refused claim: what this payer owes beyond the claimed sums, on all channels, would exceed its maximum until the next claim. Nothing changed."""

    unclaimed_units: int


ChannelRefusal = ChannelBusy | CeilingMismatch | ChannelClosed | ChannelFull


def decide_voucher(
    channel: Channel, shown: ChannelClaim, *, price_units: int, owed_units: int
) -> ChannelRefusal | None:
    """Why a claim on a locked channel is refused; None: it is granted. `price_units`: the maximum of the call, at most `step_units`. `owed_units`: what the payer
    owes on this channel and all others beyond what is claimed on their chains, in units of this token, rounded up."""
    if channel.state is not ChannelState.OPEN:
        return ChannelClosed(state=channel.state)
    if channel.reserved_call is not None:
        # A refund on the chain has no call.
        return ChannelBusy(
            call_id=channel.reserved_call, state=channel.reserved_state or CallState.FORWARDING
        )
    ceiling = shown.voucher.ceiling
    is_covered = channel.facts.total_claimed < ceiling <= channel.balance_units + shown.deposit_units
    if ceiling - channel.announced != shown.step_units or not is_covered:
        return CeilingMismatch(channel=channel)
    unclaimed_units = owed_units + price_units
    if unclaimed_units > shown.unclaimed_max:
        return ChannelFull(unclaimed_units=unclaimed_units)
    return None


def announce_charge(channel: Channel, *, taken_units: int) -> int:
    """The announced sum after a head that charges its call. `taken_units`: with what that call owes. The head charges the difference."""
    return max(channel.announced, taken_units)


def announce_whole(channel: Channel, *, due_units: int) -> int:
    """The announced sum after recovery has concluded the deposit of a call: the stored response says before what it charges. So it charges all that the call owes; what streams
    before it gave back goes to the following calls."""
    return channel.announced + due_units


def reserve_channel(channel: Channel, shown: ChannelClaim, call_id: CallId, *, price_units: int) -> Channel:
    """The channel after a granted claim. A claim with a deposit takes nothing until the deposit is concluded."""
    known = Vouchers(spent=channel.spent, waiting=channel.waiting, candidate=channel.candidate)
    stored = store_voucher(known, shown.voucher, announced=channel.announced)
    taken_now = 0 if shown.deposit_units else price_units
    return replace(
        channel,
        taken_units=channel.taken_units + taken_now,
        spent=stored.spent,
        waiting=stored.waiting,
        candidate=stored.candidate,
        reserved_call=call_id,
        reserved_state=CallState.FORWARDING,
    )


def move_call(channel: Channel, call_id: CallId, after: CallState, *, charged_units: int) -> Channel:
    """The channel after a move of one of its calls. `charged_units`: what its calls owe after the move, with all of this one. A call without the reservation runs again,
    and its first head has announced its charge."""
    if channel.reserved_call != call_id:
        return channel
    if after in (CallState.FORWARDING, CallState.SETTLING, CallState.UNKNOWN):
        return replace(channel, reserved_state=after)
    is_charged = after in (CallState.CONSUMED, CallState.REORGED)
    announced = announce_charge(channel, taken_units=charged_units) if is_charged else channel.announced
    return replace(channel, announced=announced, reserved_call=None, reserved_state=None)


def read_facts(channel: Channel, facts: ChannelFacts) -> Channel | None:
    """The channel with what a block says of it; None where an earlier block says it. Its calls are not changed yet."""
    if facts.block_number < channel.facts.block_number:
        return None
    state = channel.state
    if state is not ChannelState.DRAINING:
        state = ChannelState.WITHDRAWING if facts.withdrawal_since_s else ChannelState.OPEN
    return replace(channel, facts=facts, balance_units=facts.balance, state=state)


def count_lost_claims(channel: Channel) -> Channel:
    """The channel where the chain has claimed more than is announced, or after a restore more than its calls owe: the ledger has lost calls. Their sum counts as claimed before
    the first call, and the channel takes no call any more."""
    lost_units = channel.facts.total_claimed - channel.taken_units
    is_restored = channel.state is ChannelState.DRAINING
    if lost_units <= 0 or not (is_restored or channel.facts.total_claimed > channel.announced):
        return channel
    return replace(
        channel,
        start_units=channel.start_units + lost_units,
        taken_units=channel.facts.total_claimed,
        announced=max(channel.announced, channel.facts.total_claimed),
        state=ChannelState.DRAINING,
    )


def move_deposit(channel: Channel, *, block_number: int) -> Channel:
    """The channel after a counted deposit has moved to another block."""
    facts = replace(channel.facts, block_number=max(channel.facts.block_number, block_number))
    return replace(channel, facts=facts)


def add_deposit(channel: Channel, units: int, *, block_number: int) -> Channel:
    """The channel after a deposit of that block. Facts of that block or a later one have counted it."""
    if block_number <= channel.facts.block_number:
        return channel
    facts = replace(channel.facts, balance=channel.facts.balance + units, block_number=block_number)
    return replace(channel, facts=facts, balance_units=facts.balance)


def remove_deposit(channel: Channel, units: int, *, block_number: int, counted_block: int) -> Channel:
    """The channel after a deposit of that block has left the chain. What is known of the chain goes back to the block before, but not below `counted_block`, the latest
    block of its other deposits. Facts of an earlier block have not counted it."""
    if block_number > channel.facts.block_number:
        return channel
    known_block = min(channel.facts.block_number, max(block_number - 1, counted_block))
    balance = max(0, channel.facts.balance - units)
    facts = replace(
        channel.facts,
        balance=balance,
        total_claimed=min(channel.facts.total_claimed, balance),
        block_number=known_block,
    )
    return replace(channel, facts=facts, balance_units=balance)


def spread_units(missing: Sequence[int], units: int) -> list[int]:
    """How many of the units each of these gets, in order: as many as it lacks, until none is left."""
    given = []
    for lacks in missing:
        given.append(min(lacks, units))
        units -= given[-1]
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouchers:
    spent: Voucher | None
    waiting: Voucher | None
    candidate: Voucher | None


def store_voucher(vouchers: Vouchers, new: Voucher, *, announced: int) -> Vouchers:
    """The vouchers after a granted claim. A voucher whose ceiling is announced becomes `spent`; of those that are not, the lowest waits, so that a metered
    channel, whose newest ceiling is always ahead, still has one to claim with."""
    spent, waiting, candidate = vouchers.spent, vouchers.waiting, vouchers.candidate
    if waiting is not None and waiting.ceiling <= announced:
        spent, waiting = waiting, None
    if candidate is not None and candidate.ceiling <= announced:
        spent, waiting = candidate, None
    elif waiting is None:
        waiting = candidate
    return Vouchers(spent=spent, waiting=waiting, candidate=new)


def claimable_units(
    channel: Channel, *, open_units: int, is_near_max: bool = False
) -> tuple[int, Voucher] | None:
    """What a claim may show of the channel: the cumulative sum, and the voucher that covers it; None where there is nothing to claim. `open_units`: the
    maxima of calls whose end is not known. A channel that takes no call any more, or whose payer is near the maximum of what it may owe (`is_near_max`), may show a voucher that
    is not announced, where no other one covers the sum. The claim announces it, and the difference goes to the following calls, as that of a stream does."""
    known = [one for one in (channel.spent, channel.waiting, channel.candidate) if one is not None]
    shown = [one for one in known if one.ceiling <= channel.announced]
    owed_units = channel.taken_units - open_units
    if (channel.state is not ChannelState.OPEN or is_near_max) and channel.reserved_call is None:
        covering = sorted((one for one in known if one.ceiling >= owed_units), key=lambda one: one.ceiling)
        shown = shown if any(one in shown for one in covering) else [*shown, *covering[:1]]
    if not shown:
        return None
    voucher = max(shown, key=lambda one: one.ceiling)
    total = min(owed_units, voucher.ceiling)
    return (total, voucher) if total > channel.facts.total_claimed else None


def is_held_up(channel: Channel, *, claimable: int, rest_nano: int, unclaimed_max: int) -> bool:
    """Whether the payer of a metered channel stays near its maximum after each claim under an announced ceiling, so that its next call may be refused for good.
    `claimable`: the units of such a claim of this channel; `rest_nano`: what the payer owes after those of all its channels, in 10^-9 of the currency; `unclaimed_max`:
    in units of the currency. The newest voucher less what is claimed then is at least the last maximum, or what the channel owes."""
    if channel.candidate is None:
        return False
    next_units = channel.candidate.ceiling - channel.facts.total_claimed - claimable
    next_nano: int = next_units * 10 ** (LEDGER_DECIMALS_MAX - channel.decimals)
    max_nano: int = unclaimed_max * 10**LEDGER_DECIMALS_MAX
    return rest_nano + max(rest_nano, next_nano) > max_nano


def find_cover(channel: Channel) -> Voucher | None:
    """The lowest voucher that covers all that calls owe, for the last claim of a channel; it may be one that is not announced. Where nothing is left to claim, one that
    covers what is claimed, without a signature. None: the vouchers are lost."""
    if channel.taken_units <= channel.facts.total_claimed:
        return Voucher(ceiling=channel.facts.total_claimed, signature=b"")
    known = (channel.spent, channel.waiting, channel.candidate)
    covering = [one for one in known if one is not None and one.ceiling >= channel.taken_units]
    return min(covering, key=lambda one: one.ceiling, default=None)


CallPlace = tuple[int, CallId]
"""The place of a call among the calls of its channel: when it was made, and its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMarks:
    """The newest calls of a channel that a sum of the chain covers whole, together with all calls before them; None: it covers none of those that were searched.
    `searched_from`: the oldest of these; None: all calls were."""

    claimed: CallPlace | None
    settled: CallPlace | None
    searched_from: CallPlace | None = None


def decide_claim_state(
    state: CallState, *, due_units: int, place: CallPlace, marks: ClaimMarks
) -> ClaimState | None:
    """What became of the price of a call on a channel. None: nothing is charged, or the call was not searched. A claim is a sum, so it covers the calls of its channel in their order."""
    if state is CallState.REORGED:
        return ClaimState.LOST
    if state is not CallState.CONSUMED or due_units == 0:
        return None
    if marks.settled is not None and place <= marks.settled:
        return ClaimState.SETTLED
    if marks.claimed is not None and place <= marks.claimed:
        return ClaimState.CLAIMED
    if marks.searched_from is not None and place < marks.searched_from:
        return None
    return ClaimState.UNCLAIMED


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledReceiver:
    """A receiver for whom more is claimed than is known as paid out. `totals`: the claimed sums of these channels by their keys. `claimed_units`: the claimed sum of all
    its channels of the ledger, those included that are paid out: the contract has claimed at least so much."""

    receiver: Address
    token: Address
    totals: Mapping[int, int]
    claimed_units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelMoney:
    """The channels of one network and token in sums. `channels`: those that hold money; `withdrawing`: those with a withdrawal in sight. The units are those of `ClaimState`,
    `claimed_units` without what is paid out, `withdrawing_units` the unclaimed ones of channels with a withdrawal in sight."""

    chain_id: ChainId
    token: Address
    channels: int
    withdrawing: int
    unclaimed_units: int
    withdrawing_units: int
    claimed_units: int
    settled_units: int
    lost_units: int

    @property
    def units_by_state(self) -> dict[ClaimState, int]:
        return {
            ClaimState.UNCLAIMED: self.unclaimed_units,
            ClaimState.CLAIMED: self.claimed_units,
            ClaimState.SETTLED: self.settled_units,
            ClaimState.LOST: self.lost_units,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimableChannel:
    """A channel with money to claim. `total`: the cumulative sum that `voucher` covers and ended calls owe. `since_ms`: when the channel was claimed last, or opened. `payer_owes_nano`: on all channels,
    beyond what is claimed, in 10^-9 of the currency."""

    channel: Channel
    voucher: Voucher
    total: int
    since_ms: int
    payer_owes_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """A channel in a claim on the chain."""

    channel_key: int
    voucher: Voucher
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenClaim:
    """A claim of channels whose transaction is stored; one without rows settles receivers alone. `id`: in place of a call in the attempts of the transaction. `is_refund`: it also pays the rest of its one
    channel back to the payer, and has the channel until it ends, so that no call takes from what leaves."""

    id: CallId
    chain_id: ChainId
    rows: tuple[StoredRow, ...]
    created_ms: int
    is_refund: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelActivity:
    """What decides a refund. `called_ms`, `refunded_ms`: its last call and its last refund. `is_claimed_now`: an open claim has it. `open_units`: the maxima of calls
    whose end is not known."""

    called_ms: int | None
    refunded_ms: int | None
    is_claimed_now: bool
    open_units: int
