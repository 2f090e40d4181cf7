"""The contract of `ChannelLedger`, and of `Ledger` for calls that a voucher alone pays: the claim, every end, the reservation, the announced sum."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from tests.contracts.test_metered_calls import METERING, usage_of
from tests.kit.ledger_channels import (
    buy,
    config_of,
    end_call,
    facts_of,
    open_call,
    open_channel,
    open_deposit,
    reread,
    voucher_claim,
    voucher_of,
)
from tests.kit.ledger_records import (
    CHAIN,
    NOW_MS,
    PAYER,
    PROVIDER,
    USDC,
    claim_on,
    close_of,
    finish_of,
    operator_origin,
    wait_finished,
)
from tests.kit.ledger_steps import assert_balanced, pay, read_rest, read_state
from tests.kit.storage_faults import FaultyLedger, once
from tests.kit.waits import until
from tollway.chain.channel_contract import SETTLEMENT_CONTRACT
from tollway.ids import ChainId
from tollway.ledger.channels import (
    CeilingMismatch,
    ChannelBusy,
    ChannelClosed,
    ChannelFull,
    ChannelState,
)
from tollway.ledger.history import PaymentQuery
from tollway.ledger.ledger import Claim, Claimed, Fenced, Unspendable
from tollway.ledger.records import CallState, KeyTaken, PaymentState, Rail, RepeatsOpenCall
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database

HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000


# To open one


async def test_a_new_channel_begins_with_what_the_chain_has_claimed(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000, total_claimed=300, refund_nonce=2)
    assert (channel.id, channel.chain_id, channel.config) == (channel.id, CHAIN, config_of())
    assert (channel.start_units, channel.taken_units, channel.announced) == (300, 300, 300)
    assert (channel.balance_units, channel.published, channel.state) == (1_000, 0, ChannelState.OPEN)
    assert (channel.spent, channel.waiting, channel.candidate, channel.reserved_call) == (None,) * 4
    assert channel.facts == facts_of(1_000, total_claimed=300, refund_nonce=2)
    await assert_balanced(ledger)


async def test_an_open_channel_is_returned_as_it_is(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    await buy(ledger, channel)
    again = await open_channel(ledger, 5, block_number=200)
    assert again == await reread(ledger, channel)
    assert (again.key, again.announced, again.balance_units) == (channel.key, 10, 1_000)
    assert await ledger.find_channel(ChainId(1), channel.id) is None
    assert (await open_channel(ledger, 1_000, "another")).key != channel.key


async def test_gateways_that_open_one_channel_at_once_get_one_row(ledgers: Any) -> None:
    both = [await ledgers.gateway("one"), await ledgers.gateway("two")]
    found = await asyncio.gather(*(open_channel(both[number % 2]) for number in range(8)))
    assert {one.key for one in found} == {found[0].key}


@pytest.mark.parametrize(
    "facts",
    [{"balance": 2**63}, {"balance": -1}, {"balance": 5, "total_claimed": 6}, {"withdrawal_amount": 2**64}],
)
async def test_facts_that_no_contract_has_are_refused(ledger: Any, facts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"units|claimed|^$"):
        await open_channel(ledger, **{"balance": 1, **facts})
    channel = await open_channel(ledger)
    with pytest.raises(ValueError, match=r"units|claimed|^$"):
        await ledger.renew_channel(channel.key, facts_of(**{"balance": 1, **facts}), now_ms=NOW_MS)
    assert await reread(ledger, channel) == channel


async def test_the_balance_of_a_channel_is_no_credit(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    (balance,) = await ledger.find_payments(channel.id)
    assert (balance.payer, balance.payee, balance.asset) == (PAYER, SETTLEMENT_CONTRACT, USDC)
    assert (balance.state, balance.is_authorized, balance.is_escrow) == (PaymentState.FINAL, True, True)
    assert await ledger.read_payments(PaymentQuery(wallet=PAYER, role="payer")) == ()
    assert await ledger.read_payments(PaymentQuery(wallet=SETTLEMENT_CONTRACT, role="provider")) == ()
    assert await ledger.payments_in(PAYER, channel.id) == ()
    await ledger.mark_restored(origin=operator_origin())
    (balance,) = await ledger.find_payments(channel.id)
    assert balance.is_held is False
    assert (await ledger.audit()).held_payments == ()


async def test_a_channel_takes_no_call_after_a_restore(ledger: Any) -> None:
    channel = await open_channel(ledger)
    claim = await open_call(ledger, channel)
    await ledger.mark_restored(origin=operator_origin())
    await end_call(ledger, claim)  # a call that runs ends as every other
    channel = await ledger.renew_channel(channel.key, facts_of(1_000, block_number=300), now_ms=NOW_MS)
    await ledger.release_held(origin=operator_origin())
    assert await ledger.claim(voucher_claim(channel)) == ChannelClosed(state=ChannelState.DRAINING)
    await assert_balanced(ledger)


# The claim


async def test_a_voucher_takes_the_price_and_reserves_the_channel(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000, total_claimed=300)
    claim = voucher_claim(channel, 40)
    assert await ledger.claim(claim) == Claimed(epoch=1, remaining_units=660, rail=Rail.CHANNEL)
    found = await reread(ledger, channel)
    assert (found.taken_units, found.announced, found.candidate) == (340, 300, voucher_of(340))
    assert (found.spent, found.waiting) == (None, None)
    assert (found.reserved_call, found.reserved_state) == (claim.call_id, CallState.FORWARDING)
    record = await ledger.find_call(claim.call_id)
    assert (record.rail, record.state, record.price_units) == (Rail.CHANNEL, CallState.FORWARDING, 40)
    assert (record.tx_hash, record.channel_id) == (None, channel.id)
    await assert_balanced(ledger)


REFUSED = (
    ("one below the price", {"ceiling": 109}, CeilingMismatch),
    ("one above the price", {"ceiling": 111}, CeilingMismatch),
    ("the voucher of the call before", {"ceiling": 100}, CeilingMismatch),
    ("beyond the balance", {"price_units": 901}, CeilingMismatch),
    ("a payment of another account", {"payment_id": 10**6}, Unspendable),
    ("another payer", {"payer": PROVIDER}, Unspendable),
    ("another receiver", {"pay_to": PROVIDER}, Unspendable),
    ("an unknown channel", {"chain_id": ChainId(1)}, Unspendable),
)


async def test_every_other_voucher_is_refused_and_changes_nothing(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    await buy(ledger, channel, 100)
    before = await reread(ledger, channel)
    for name, fields, refusal in REFUSED:
        claim = voucher_claim(before, **fields)
        outcome = await ledger.claim(claim)
        assert isinstance(outcome, refusal), name
        if isinstance(outcome, CeilingMismatch):
            assert outcome.channel == before, name
        assert await ledger.find_call(claim.call_id) is None, name
        assert await reread(ledger, channel) == before, name
    await assert_balanced(ledger)


async def test_what_one_payer_owes_has_a_maximum(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    await buy(ledger, channel, 60)
    claim = voucher_claim(await reread(ledger, channel), 41)
    assert claim.channel is not None
    limited = replace(claim, channel=replace(claim.channel, unclaimed_max=100))
    assert await ledger.claim(limited) == ChannelFull(unclaimed_units=101)
    await ledger.renew_channel(channel.key, facts_of(1_000, total_claimed=1), now_ms=NOW_MS)
    assert isinstance(await ledger.claim(limited), Claimed)
    await assert_balanced(ledger)


def limit_claim(claim: Claim, unclaimed_max: int = 100) -> Claim:
    assert claim.channel is not None
    return replace(claim, channel=replace(claim.channel, unclaimed_max=unclaimed_max))


async def test_the_maximum_counts_every_channel_of_one_payer(ledger: Any) -> None:
    first, second = await open_channel(ledger, 1_000, "first"), await open_channel(ledger, 1_000, "second")
    await buy(ledger, first, 60)
    assert await ledger.claim(limit_claim(voucher_claim(second, 41))) == ChannelFull(unclaimed_units=101)
    assert await reread(ledger, second) == second
    await open_call(ledger, second, 40)
    # An open call owes its maximum.
    third = await open_channel(ledger, 1_000, "third")
    assert await ledger.claim(limit_claim(voucher_claim(third, 1))) == ChannelFull(unclaimed_units=101)
    # What is claimed on the chain does not count any more.
    await ledger.renew_channel(first.key, facts_of(1_000, total_claimed=60), now_ms=NOW_MS)
    assert isinstance(await ledger.claim(limit_claim(voucher_claim(third, 60))), Claimed)
    await assert_balanced(ledger)


async def test_the_maximum_counts_deposits_that_are_not_concluded(ledger: Any) -> None:
    first, second = await open_channel(ledger, 1_000, "first"), await open_channel(ledger, 1_000, "second")
    await open_deposit(ledger, first, price_units=60)
    assert await ledger.claim(limit_claim(voucher_claim(second, 41))) == ChannelFull(unclaimed_units=101)
    assert isinstance(await ledger.claim(limit_claim(voucher_claim(second, 40))), Claimed)


async def test_the_maximum_compares_tokens_of_other_decimals(ledger: Any) -> None:
    first = await open_channel(ledger, 1_000, "first")
    fine = await open_channel(ledger, 1_000_000, "fine", decimals=9)
    await buy(ledger, first, 60)
    price = voucher_claim(fine, 40_001, decimals=9)
    assert await ledger.claim(limit_claim(price, 100_000)) == ChannelFull(unclaimed_units=100_001)
    await buy(ledger, fine, 1, decimals=9)
    # A part of a unit of this token counts as a whole one.
    assert await ledger.claim(limit_claim(voucher_claim(await reread(ledger, first), 40))) == ChannelFull(
        unclaimed_units=101
    )
    assert isinstance(
        await ledger.claim(limit_claim(voucher_claim(await reread(ledger, first), 39))), Claimed
    )


async def test_another_payer_has_a_maximum_of_its_own(ledger: Any) -> None:
    first = await open_channel(ledger, 1_000, "first")
    other = await open_channel(ledger, 1_000, "other", payer=PROVIDER)
    await buy(ledger, first, 60)
    assert isinstance(await ledger.claim(limit_claim(voucher_claim(other, 100))), Claimed)


async def test_of_many_channels_at_two_gateways_a_payer_gets_the_maximum(ledgers: Any) -> None:
    both = [await ledgers.gateway("one"), await ledgers.gateway("two")]
    for turn in range(3):
        channels = [await open_channel(both[0], 1_000, f"channel {turn} {number}") for number in range(12)]
        # Each turn has what four more calls cost.
        claims = [limit_claim(voucher_claim(one, 10), 40 * (turn + 1)) for one in channels]
        outcomes = await asyncio.gather(
            *(both[number % 2].claim(claim) for number, claim in enumerate(claims))
        )
        assert len([one for one in outcomes if isinstance(one, Claimed)]) == 4
        full = [one for one in outcomes if not isinstance(one, Claimed)]
        assert full == [ChannelFull(unclaimed_units=40 * (turn + 1) + 10)] * 8
    await assert_balanced(both[0])


async def test_other_credit_of_the_payer_pays_no_voucher(ledger: Any) -> None:
    await pay(ledger, 500)
    channel = await open_channel(ledger, 5)
    assert isinstance(await ledger.claim(voucher_claim(channel, 6)), CeilingMismatch)
    assert await read_rest(ledger) == 500
    payment = await pay(ledger, 3, "small")
    outcome = await ledger.claim(
        claim_on(payment, 4)
    )  # with a unit of the large payment, and none of the channel
    assert not isinstance(outcome, Claimed)
    assert (await reread(ledger, channel)).taken_units == 0


@pytest.mark.parametrize(
    ("fields", "shown", "message"),
    [
        ({}, {"deposit_units": 1}, "and no deposit"),
        ({"payment_id": None}, {}, "names the payment of its channel"),
        ({"decimals": 19}, {}, "at most 9 decimals"),
        ({"nonce": b"\x01" * 32}, {}, "no proof of a transaction"),
        ({"is_plain": True}, {}, "no proof of a transaction"),
        ({"ends_plain": True}, {}, "no proof of a transaction"),
        ({"pay_to": None}, {}, "names its payer, chain, token and receiver"),
        ({}, {"voucher": voucher_of(2**63)}, "ledger units"),
    ],
)
async def test_a_claim_that_contradicts_itself_is_an_error(
    ledger: Any, fields: dict[str, Any], shown: dict[str, Any], message: str
) -> None:
    channel = await open_channel(ledger)
    claim = voucher_claim(channel)
    assert claim.channel is not None
    with pytest.raises(ValueError, match=message):
        await ledger.claim(replace(claim, channel=replace(claim.channel, **shown), **fields))
    assert await reread(ledger, channel) == channel


# One call at a time


async def test_of_many_vouchers_at_two_gateways_one_is_granted(ledgers: Any) -> None:
    both = [await ledgers.gateway("one"), await ledgers.gateway("two")]
    channel = await open_channel(both[0], 1_000)
    for _ in range(3):
        now = await reread(both[0], channel)
        claims = [voucher_claim(now) for _ in range(10)]
        outcomes = await asyncio.gather(
            *(both[number % 2].claim(claim) for number, claim in enumerate(claims))
        )
        (granted,) = [number for number, one in enumerate(outcomes) if isinstance(one, Claimed)]
        busy = ChannelBusy(call_id=claims[granted].call_id, state=CallState.FORWARDING)
        assert [one for one in outcomes if not isinstance(one, Claimed)] == [busy] * 9
        await end_call(both[granted % 2], claims[granted])
    assert (await reread(both[0], channel)).announced == 30
    await assert_balanced(both[0])


async def test_channels_of_one_payer_do_not_wait_for_each_other(ledger: Any) -> None:
    channels = [await open_channel(ledger, 100, f"channel {number}") for number in range(5)]
    outcomes = await asyncio.gather(*(ledger.claim(voucher_claim(one)) for one in channels))
    assert all(isinstance(one, Claimed) for one in outcomes)
    await assert_balanced(ledger)


async def test_a_key_and_a_repeat_come_before_the_ceiling(ledger: Any) -> None:
    channel = await open_channel(ledger)
    first = await buy(ledger, channel, idempotency_key="k")
    again = voucher_claim(await reread(ledger, channel), idempotency_key="k")
    outcome = await ledger.claim(again)
    assert isinstance(outcome, KeyTaken)
    assert outcome.call.call_id == first.call_id
    lost = await open_call(ledger, channel)
    await end_call(ledger, lost, CallState.UNKNOWN)
    repeat = voucher_claim(await reread(ledger, channel), digest=lost.digest)
    outcome = await ledger.claim(repeat)
    assert isinstance(outcome, RepeatsOpenCall)
    assert outcome.call.call_id == lost.call_id
    reopened = await ledger.reopen(lost.call_id, epoch=1, now_ms=NOW_MS)
    assert reopened == Claimed(epoch=2, remaining_units=990, rail=Rail.CHANNEL, before=CallState.UNKNOWN)
    found = await reread(ledger, channel)
    assert (found.reserved_call, found.reserved_state) == (lost.call_id, CallState.FORWARDING)
    closed = await ledger.close(close_of(lost, epoch=2))
    assert (closed.announced, closed.remaining_units) == (20, 980)
    await assert_balanced(ledger)


# The ends


@pytest.mark.parametrize(
    ("after", "announced", "taken"),
    [(CallState.CONSUMED, 10, 10), (CallState.RELEASED, 0, 0), (CallState.UNKNOWN, 0, 10)],
)
async def test_the_end_of_a_call(ledger: Any, after: CallState, announced: int, taken: int) -> None:
    channel = await open_channel(ledger, 1_000)
    claim = await open_call(ledger, channel)
    closed = await end_call(ledger, claim, after)
    assert (closed.announced, closed.remaining_units) == (announced, 1_000 - announced)
    found = await reread(ledger, channel)
    assert (found.announced, found.taken_units) == (announced, taken)
    is_held = after is CallState.UNKNOWN
    assert found.reserved_call == (claim.call_id if is_held else None)
    assert found.reserved_state is (after if is_held else None)
    await assert_balanced(ledger)


async def test_a_call_of_another_rail_has_no_announced_sum(ledger: Any) -> None:
    claim = claim_on(await pay(ledger, 10))
    await ledger.claim(claim)
    assert (await ledger.close(close_of(claim, CallState.RELEASED))).announced is None


async def test_a_second_end_is_fenced(ledger: Any) -> None:
    channel = await open_channel(ledger)
    claim = await buy(ledger, channel)
    assert await ledger.close(close_of(claim, CallState.RELEASED)) == Fenced()
    assert (await reread(ledger, channel)).announced == 10


async def test_vouchers_are_kept_until_their_ceiling_is_announced(ledger: Any) -> None:
    channel = await open_channel(ledger)
    kept = []
    for _ in range(3):
        await buy(ledger, channel)
        found = await reread(ledger, channel)
        kept.append((found.spent, found.waiting, found.candidate))
    assert kept == [
        (None, None, voucher_of(10)),
        (voucher_of(10), None, voucher_of(20)),
        (voucher_of(20), None, voucher_of(30)),
    ]


# Unknown calls


async def test_the_provider_cannot_charge_an_unknown_call(ledger: Any) -> None:
    channel = await open_channel(ledger)
    claim = await open_call(ledger, channel)
    await end_call(ledger, claim, CallState.UNKNOWN)
    before = await reread(ledger, channel)
    assert await ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS) is None
    assert await read_state(ledger, claim) is CallState.UNKNOWN
    assert await reread(ledger, channel) == before


async def test_the_next_voucher_releases_an_unknown_call(ledger: Any) -> None:
    channel = await open_channel(ledger)
    lost = await open_call(ledger, channel)
    await end_call(ledger, lost, CallState.UNKNOWN)
    next_claim = voucher_claim(await reread(ledger, channel))
    assert await ledger.claim(next_claim) == ChannelBusy(call_id=lost.call_id, state=CallState.UNKNOWN)
    released = await ledger.resolve(lost.call_id, CallState.RELEASED, now_ms=NOW_MS)
    assert released is CallState.RELEASED
    assert isinstance(await ledger.claim(next_claim), Claimed)
    closed = await end_call(ledger, next_claim)
    assert closed.announced == 10
    assert (await reread(ledger, channel)).taken_units == 10
    await assert_balanced(ledger)


async def test_a_dead_gateway_leaves_an_unknown_call_that_the_other_one_releases(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    channel = await open_channel(one)
    lost = await open_call(one, channel)
    await ledgers.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    found = await reread(two, channel)
    assert (found.reserved_call, found.reserved_state) == (lost.call_id, CallState.UNKNOWN)
    assert isinstance(await two.claim(voucher_claim(found)), ChannelBusy)
    await two.resolve(lost.call_id, CallState.RELEASED, now_ms=NOW_MS)
    claim = await open_call(two, channel)
    assert await one.close(close_of(lost)) == Fenced()
    assert (await end_call(two, claim)).announced == 10
    await assert_balanced(two)


async def test_the_end_of_the_hold_ends_the_reservation(ledgers: Any) -> None:
    ledger = await ledgers.gateway("one")
    channel = await open_channel(ledger)
    lost = await open_call(ledger, channel)
    await end_call(ledger, lost, CallState.UNKNOWN)
    record = await ledger.find_call(lost.call_id)
    assert record.held_until_ms == record.moved_ms + HOLD_MS
    await ledgers.set_clocks(NOW_MS + HOLD_MS + 1, ledger)
    assert await ledger.recover(now_ms=NOW_MS + HOLD_MS + 1) == 1
    found = await reread(ledger, channel)
    assert (found.reserved_call, found.taken_units, found.announced) == (None, 0, 0)
    await assert_balanced(ledger)


# Metered calls


async def stream(ledger: Any, channel: Any) -> Any:
    """A metered call of at most 20 whose head has come."""
    claim = await open_call(ledger, channel, 20, price="0.00002", metering=METERING)
    await end_call(ledger, claim, is_metered=True)
    return claim


async def test_a_stream_charges_its_maximum_and_the_next_calls_give_it_back(ledger: Any) -> None:
    channel = await open_channel(ledger)
    announced, kept = [], []
    for tokens in (0, 5, 17):  # 3, 8 and 20 units
        claim = await stream(ledger, channel)
        announced.append((await reread(ledger, channel)).announced)
        ledger.finish(finish_of(claim, usage=usage_of(tokens)))
        await wait_finished(ledger, claim.call_id)
        found = await reread(ledger, channel)
        kept.append((found.taken_units, found.spent, found.waiting, found.candidate))
    assert announced == [20, 23, 31]
    assert kept == [
        (3, None, None, voucher_of(20)),
        (11, voucher_of(20), None, voucher_of(40)),
        (31, voucher_of(20), voucher_of(40), voucher_of(43)),
    ]
    await assert_balanced(ledger)


async def test_a_price_that_is_known_at_the_head_is_announced(ledger: Any) -> None:
    channel = await open_channel(ledger)
    claim = await open_call(ledger, channel, 20, price="0.00002", metering=METERING)
    closed = await end_call(ledger, claim, is_metered=True, finish=finish_of(claim, usage=usage_of(5)))
    assert (closed.announced, closed.remaining_units) == (8, 992)
    await assert_balanced(ledger)


async def test_a_stream_of_a_dead_gateway_takes_its_base(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    channel = await open_channel(one)
    await stream(one, channel)
    await ledgers.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    found = await reread(two, channel)
    assert (found.taken_units, found.announced, found.reserved_call) == (3, 20, None)
    await assert_balanced(two)


async def test_a_repeat_of_a_cut_response_announces_nothing(ledger: Any) -> None:
    """It runs again beside the call that has the channel."""
    channel = await open_channel(ledger)
    cut = await buy(ledger, channel)
    await ledger.finish_cut(finish_of(cut, is_cut=True))
    assert isinstance(await ledger.reopen(cut.call_id, epoch=1, now_ms=NOW_MS), Claimed)
    claim = await open_call(ledger, channel)
    closed = await ledger.close(close_of(cut, epoch=2))
    assert (closed.announced, closed.remaining_units) == (10, 990)
    assert (await end_call(ledger, claim)).announced == 20
    await assert_balanced(ledger)


async def test_a_keyed_call_announces_the_price_that_is_known_at_its_head(ledger: Any) -> None:
    """Its response is not delivered yet, so its end comes later."""
    channel = await open_channel(ledger)
    claim = await open_call(ledger, channel, 20, price="0.00002", metering=METERING, idempotency_key="k")
    closed = await end_call(ledger, claim, is_metered=True, usage=usage_of(5))
    assert (closed.announced, closed.remaining_units) == (8, 992)
    ledger.finish(finish_of(claim, usage=usage_of(5)))
    await wait_finished(ledger, claim.call_id)
    found = await reread(ledger, channel)
    assert (found.taken_units, found.announced) == (8, 8)
    await assert_balanced(ledger)


# Commits


async def test_a_call_on_a_known_channel_is_one_durable_commit(faulty_ledger: FaultyLedger) -> None:
    """Its end is written without a flush, as that of every call."""
    ledger, database = faulty_ledger.ledger, faulty_ledger.database
    channel = await open_channel(ledger)
    claim = voucher_claim(channel)
    commits = []
    for step in (ledger.claim(claim), ledger.close(close_of(claim))):
        before = len(database.flushed)
        await step
        commits.append([flush for flush in database.flushed[before:] if flush])
    assert commits == [[True], []]


async def test_ends_of_many_channels_share_a_batch(faulty_ledger: FaultyLedger) -> None:
    ledger = faulty_ledger.ledger
    channels = [await open_channel(ledger, 100, f"channel {number}") for number in range(5)]
    claims = [await open_call(ledger, channel) for channel in channels]
    faulty_ledger.database.before.clear()
    blocking = claim_on(None)
    async with asyncio.TaskGroup() as group:
        group.create_task(ledger.claim(blocking))
        await until(lambda: faulty_ledger.database.begun > faulty_ledger.database.committed)
        ends = [group.create_task(ledger.close(close_of(claim))) for claim in claims]
        await asyncio.sleep(0)
        faulty_ledger.database.before.set()
    assert max(faulty_ledger.sizes) == 5
    assert [end.result().announced for end in ends] == [10] * 5
    await ledger.close(close_of(blocking, CallState.RELEASED))


# Failures


async def test_a_lost_acknowledgement_writes_claim_and_end_once(database: Database) -> None:
    faulty = FaultyLedger(database, retry_s=0.01, patience_s=60.0)
    await faulty.ledger.open()
    channel = await open_channel(faulty.ledger)
    claim = voucher_claim(channel)
    faulty.database.fail_after = once()
    assert isinstance(await faulty.ledger.claim(claim), Claimed)
    faulty.database.fail_after = once()
    closed = await end_call(faulty.ledger, claim)
    assert (closed.announced, closed.remaining_units) == (10, 990)
    await assert_balanced(faulty.ledger)
    await faulty.close()


async def test_a_cancelled_claim_leaves_the_channel_free(faulty_ledger: FaultyLedger) -> None:
    ledger = faulty_ledger.ledger
    channel = await open_channel(ledger)
    faulty_ledger.database.after.clear()
    before = faulty_ledger.database.committed
    claiming = asyncio.get_running_loop().create_task(ledger.claim(voucher_claim(channel)))
    await until(lambda: faulty_ledger.database.committed > before)
    claiming.cancel()
    faulty_ledger.database.after.set()
    await asyncio.gather(claiming, return_exceptions=True)
    await ledger.wait_closed(timeout_s=60.0)
    found = await reread(ledger, channel)
    assert (found.reserved_call, found.taken_units, found.announced) == (None, 0, 0)


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("UPDATE channel SET announced = 9", "has announced 9, its ended calls owe 10"),
        ("UPDATE channel SET announced = 11", "has announced 11, its newest voucher allows 10"),
        ("UPDATE channel SET total_claimed = 11", "has claimed 11, and announced 10"),
        ("UPDATE channel SET balance = 900", "has a balance of 900, and its payment 1000"),
        ("UPDATE channel SET reserved_call = 'call_x'", "is reserved for call call_x, which is None"),
        ("UPDATE channel SET spent_ceiling = 11", "a spent voucher of 11"),
        ("UPDATE call SET channel_id = NULL", "has another channel than its payment"),
        ("UPDATE call SET rail = 'tx'", "has another channel than its payment"),
    ],
)
async def test_the_audit_names_a_channel_that_breaks_its_laws(
    database: Database, statement: str, line: str
) -> None:
    faulty = FaultyLedger(database)
    await faulty.ledger.open()
    await buy(faulty.ledger, await open_channel(faulty.ledger))
    await assert_balanced(faulty.ledger)
    await database.write(lambda c: c.execute(text(statement)))
    wrong = (await faulty.ledger.audit()).wrong
    assert any(line in one for one in wrong), wrong
    await faulty.close()
