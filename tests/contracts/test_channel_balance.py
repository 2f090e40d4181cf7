"""The contract of `Ledger` for the balance of a channel: deposits, whose call takes its price of them, and what the chain says."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.contracts.test_metered_calls import METERING, usage_of
from tests.kit.ledger_channels import (
    COLLECTOR,
    OPENED_BLOCK,
    buy,
    deposit_claim,
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
    NOW_MS,
    PAYER,
    PROVIDER,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    operator_origin,
    transfer_in,
    tx_hash,
    wait_finished,
)
from tests.kit.ledger_steps import assert_balanced, conclude, pay, read_rest, read_state, settle
from tests.kit.storage_faults import FaultyLedger
from tollway.ledger.channels import CeilingMismatch, Channel, ChannelBusy, ChannelClosed, ChannelState
from tollway.ledger.history import PaymentQuery
from tollway.ledger.ledger import (
    AuthorizationTaken,
    Claim,
    Claimed,
    Closed,
    Fenced,
    NotCovered,
    StoredResponse,
)
from tollway.ledger.records import CallState, Cover, PaymentState, Rail
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database

HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000
ANSWER = StoredResponse(status=200, headers=(), body=b"hello")


def numbers_of(channel: Channel) -> tuple[int, int, int]:
    return (channel.balance_units, channel.taken_units, channel.announced)


async def settling(ledger: Any, channel: Channel, deposit_units: int = 500, **fields: Any) -> Claim:
    claim = await open_deposit(ledger, channel, deposit_units, **fields)
    assert await settle(ledger, claim, None) == Closed(remaining_units=None)
    return claim


async def settled(ledger: Any, channel: Channel, name: str = "settled", **fields: Any) -> Claim:
    """A deposit of 500 that is concluded while its caller waits."""
    claim = await settling(ledger, channel, **fields)
    assert await conclude(ledger, claim, name) is CallState.CONSUMED
    return claim


# The claim


async def test_a_deposit_reserves_the_channel_and_takes_nothing_yet(ledger: Any) -> None:
    channel = await open_channel(ledger, 5)
    claim = deposit_claim(channel, 500, 10)
    outcome = await ledger.claim(claim)
    assert outcome == Claimed(epoch=1, remaining_units=495, rail=Rail.CHANNEL)
    found = await reread(ledger, channel)
    assert numbers_of(found) == (5, 0, 0)
    assert (found.candidate, found.reserved_call) == (voucher_of(10), claim.call_id)
    record = await ledger.find_call(claim.call_id)
    assert (record.rail, record.channel_id, record.tx_hash) == (Rail.CHANNEL, None, None)
    assert claim.authorization is not None
    for known in (
        await ledger.find_authorized_call(claim.authorization.key),
        await ledger.find_call_authorization(claim.call_id),
    ):
        assert known.authorization == claim.authorization
        assert known.authorization.deposit == claim.authorization.deposit
        assert (known.call_id, known.price_units, known.is_public) == (claim.call_id, 10, False)
    await assert_balanced(ledger)


async def test_a_repeat_of_a_deposit_finds_its_call_before_the_ceiling(ledger: Any) -> None:
    channel = await open_channel(ledger)
    claim = await settled(ledger, channel)
    again = replace(claim, call_id=deposit_claim(channel).call_id)
    assert await ledger.claim(again) == AuthorizationTaken(call_id=claim.call_id, state=CallState.CONSUMED)


@pytest.mark.parametrize(
    ("balance_units", "refusal"), [(499, NotCovered(held_units=0)), (500, Claimed), (10**9, Claimed)]
)
async def test_the_whole_deposit_counts_against_the_balance_of_the_payer(
    ledger: Any, balance_units: int, refusal: Any
) -> None:
    channel = await open_channel(ledger)
    claim = deposit_claim(channel, cover=Cover(balance_units=balance_units, block_number=100))
    outcome = await ledger.claim(claim)
    assert outcome == refusal or isinstance(outcome, refusal)
    found = await reread(ledger, channel)
    assert (found == channel) is isinstance(outcome, NotCovered)


async def test_a_deposit_and_other_authorisations_share_one_balance(ledger: Any) -> None:
    await open_deposit(ledger, await open_channel(ledger), 500)
    for balance_units, is_granted in ((503, False), (504, True)):
        outcome = await ledger.claim(authorized_claim(authorization_of(4), balance_units))
        assert isinstance(outcome, Claimed) is is_granted, balance_units
    other = deposit_claim(await open_channel(ledger, name="other"), 500)
    short = replace(other, cover=Cover(balance_units=1_003, block_number=100))
    assert await ledger.claim(short) == NotCovered(held_units=504)


REFUSED = (
    ("a voucher beyond balance and deposit", {"price_units": 1_501}, CeilingMismatch),
    ("a wrong ceiling", {"ceiling": 9}, CeilingMismatch),
)


async def test_a_refused_voucher_claims_no_deposit(ledger: Any) -> None:
    channel = await open_channel(ledger)
    for name, fields, refusal in REFUSED:
        claim = deposit_claim(channel, 500, fields.get("price_units", 10))
        assert claim.channel is not None
        if "ceiling" in fields:
            claim = replace(claim, channel=replace(claim.channel, voucher=voucher_of(fields["ceiling"])))
        assert isinstance(await ledger.claim(claim), refusal), name
        assert claim.authorization is not None
        assert await ledger.find_authorized_call(claim.authorization.key) is None, name
        assert await reread(ledger, channel) == channel, name


async def test_a_deposit_that_contradicts_its_claim_is_an_error(ledger: Any) -> None:
    channel = await open_channel(ledger)
    other = await open_channel(ledger, name="other")
    good, foreign = deposit_claim(channel), deposit_claim(other)
    assert good.authorization is not None
    assert good.channel is not None
    contradicting = (
        replace(good, channel=None, price_units=500, pay_to=COLLECTOR),
        replace(good, authorization=replace(good.authorization, deposit=None)),
        replace(good, authorization=foreign.authorization),
        replace(good, channel=replace(good.channel, deposit_units=499)),
        replace(good, channel=replace(good.channel, deposit_units=0)),
        replace(good, pay_to=PROVIDER),
        replace(good, payer=PROVIDER),
        replace(good, cover=None),
        replace(good, payment_id=channel.payment_id),
    )
    for claim in contradicting:
        with pytest.raises(ValueError, match=r"deposit|channel|paid by|pays"):
            await ledger.claim(claim)
    assert await reread(ledger, channel) == channel


# Settling


async def test_the_reservation_lasts_while_the_deposit_settles(ledger: Any) -> None:
    channel = await open_channel(ledger)
    claim = await settling(ledger, channel)
    found = await reread(ledger, channel)
    assert (found.reserved_call, found.reserved_state) == (claim.call_id, CallState.SETTLING)
    busy = ChannelBusy(call_id=claim.call_id, state=CallState.SETTLING)
    assert await ledger.claim(voucher_claim(found)) == busy
    assert await ledger.close(close_of(claim)) == Fenced()
    await assert_balanced(ledger)


async def test_a_deposit_is_not_consumed_without_its_transfer(ledger: Any) -> None:
    claim = await open_deposit(ledger, await open_channel(ledger))
    assert await ledger.close(close_of(claim)) == Fenced()
    assert await read_state(ledger, claim) is CallState.FORWARDING


async def test_a_voucher_alone_does_not_settle(ledger: Any) -> None:
    claim = await open_call(ledger, await open_channel(ledger))
    assert await settle(ledger, claim) == Fenced()


async def test_a_settled_deposit_raises_the_balance_and_pays_its_call(ledger: Any) -> None:
    channel = await open_channel(ledger, 5)
    claim = await settled(ledger, channel)
    found = await reread(ledger, channel)
    assert numbers_of(found) == (505, 10, 10)
    assert (found.reserved_call, found.facts.block_number) == (None, 101)
    record = await ledger.find_call(claim.call_id)
    assert (record.state, record.channel_id, record.tx_hash) == (CallState.CONSUMED, channel.id, None)
    assert (await ledger.find_call_authorization(claim.call_id)).transfer == tx_hash("settled")
    (transfer,) = await ledger.find_payments(tx_hash("settled"))
    assert (transfer.payer, transfer.payee, transfer.state) == (PAYER, COLLECTOR, PaymentState.UNFINAL)
    assert (transfer.value_units, transfer.taken_units, transfer.is_escrow) == (500, 0, True)
    assert [one.call_id for one in await ledger.authorizations_in(transfer.id, limit=9)] == [claim.call_id]
    assert await ledger.read_payments(PaymentQuery(wallet=PAYER, role="payer")) == ()
    await buy(ledger, channel, 490)
    assert isinstance(await ledger.claim(voucher_claim(await reread(ledger, channel), 6)), CeilingMismatch)
    await assert_balanced(ledger)


async def test_a_balance_that_was_read_after_the_deposit_has_it_already(ledger: Any) -> None:
    channel = await open_channel(ledger, 5)
    claim = await settling(ledger, channel)
    await ledger.renew_channel(channel.key, facts_of(505, block_number=101), now_ms=NOW_MS)
    assert await conclude(ledger, claim) is CallState.CONSUMED
    assert numbers_of(await reread(ledger, channel)) == (505, 10, 10)
    await assert_balanced(ledger)


async def test_a_deposit_that_never_moves_releases_its_call(ledger: Any) -> None:
    channel = await open_channel(ledger, 5)
    claim = await settling(ledger, channel)
    assert await conclude(ledger, claim, transfer=None) is CallState.RELEASED
    found = await reread(ledger, channel)
    assert numbers_of(found) == (5, 0, 0)
    assert found.reserved_call is None
    again = replace(claim, call_id=deposit_claim(found).call_id)
    assert isinstance(await ledger.claim(again), Claimed)  # the same deposit pays the next call
    await assert_balanced(ledger)


@pytest.mark.parametrize(
    ("method", "is_stored", "after", "taken"),
    [
        ("POST", True, CallState.CONSUMED, 10),
        ("GET", False, CallState.RELEASED, 0),
        ("POST", False, CallState.RELEASED, 0),
    ],
    ids=["bought", "safe", "unsafe"],
)
async def test_recovery_ends_a_deposit_without_a_caller(
    ledgers: Any, method: str, is_stored: bool, after: CallState, taken: int
) -> None:
    ledger = await ledgers.gateway("one")
    channel = await open_channel(ledger, 5)
    claim = await settling(ledger, channel, method=method)
    if is_stored:
        await ledgers.answers().keep(claim.call_id, ANSWER, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    assert await ledger.mark_orphaned(claim.call_id, epoch=1) is True
    (known,) = await ledger.unsettled(limit=9)
    assert known.authorization == claim.authorization
    assert await conclude(ledger, claim, is_orphaned=True) is after
    found = await reread(ledger, channel)
    assert numbers_of(found) == (505, taken, taken)
    assert found.reserved_call is None
    known = await ledger.find_call_authorization(claim.call_id)
    assert not known.is_lost
    claim = voucher_claim(found, 495 - taken)
    assert isinstance(await ledger.claim(claim), Claimed)  # the deposit is the balance of the channel
    await assert_balanced(ledger)


async def test_a_dead_gateway_leaves_its_deposit_to_recovery(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    channel = await open_channel(one, 5)
    claim = await settling(one, channel, method="POST")
    await ledgers.bury("one")
    assert await two.recover(now_ms=NOW_MS) == 1
    assert (await reread(two, channel)).reserved_state is CallState.SETTLING
    assert [one.call_id for one in await two.unsettled(limit=9)] == [claim.call_id]
    assert await conclude(two, claim, is_orphaned=True) is CallState.RELEASED
    found = await reread(two, channel)
    assert (numbers_of(found), found.reserved_call) == ((505, 0, 0), None)
    await assert_balanced(two)


async def test_the_clock_does_not_release_an_unknown_deposit(ledgers: Any) -> None:
    """Its transfer may have happened: settlement recovery reads the chain first, and may find the money in the channel."""
    ledger = await ledgers.gateway("one")
    channel = await open_channel(ledger, 5)
    claim = await open_deposit(ledger, channel, method="POST")
    await end_call(ledger, claim, CallState.UNKNOWN)
    assert (await ledger.find_call(claim.call_id)).held_until_ms is None
    assert await ledger.resolve(claim.call_id, CallState.CONSUMED, now_ms=NOW_MS) is None
    later = NOW_MS + HOLD_MS + 1
    await ledgers.set_clocks(later, ledger)
    assert await ledger.recover(now_ms=later) == 0
    assert [one.call_id for one in await ledger.unsettled(limit=9)] == [claim.call_id]
    assert await conclude(ledger, claim, is_orphaned=True) is CallState.RELEASED
    found = await reread(ledger, channel)
    assert (numbers_of(found), found.reserved_call) == ((505, 0, 0), None)
    await assert_balanced(ledger)


async def test_the_next_voucher_releases_an_unknown_deposit(ledger: Any) -> None:
    channel = await open_channel(ledger)
    lost = await open_deposit(ledger, channel)
    await end_call(ledger, lost, CallState.UNKNOWN)
    assert isinstance(await ledger.claim(voucher_claim(channel)), ChannelBusy)
    assert await ledger.resolve(lost.call_id, CallState.RELEASED, now_ms=NOW_MS) is CallState.RELEASED
    await buy(ledger, channel)
    await assert_balanced(ledger)


async def test_a_metered_call_with_a_deposit_takes_what_it_used(ledger: Any) -> None:
    channel = await open_channel(ledger, 5)
    claim = await open_deposit(ledger, channel, price_units=20, price="0.00002", metering=METERING)
    await settle(ledger, claim, None, is_metered=True)
    assert await conclude(ledger, claim) is CallState.CONSUMED
    await ledger.recover(now_ms=NOW_MS)  # its stream is not lost
    ledger.finish(finish_of(claim, usage=usage_of(5)))
    await wait_finished(ledger, claim.call_id)
    assert numbers_of(await reread(ledger, channel)) == (505, 8, 20)
    await assert_balanced(ledger)


@pytest.mark.parametrize("is_mined", [True, False])
async def test_a_price_that_is_known_at_the_head_is_taken_from_the_deposit(
    ledger: Any, is_mined: bool
) -> None:
    channel = await open_channel(ledger, 5)
    claim = await open_deposit(ledger, channel, price_units=20, price="0.00002", metering=METERING)
    await settle(ledger, claim, None, is_metered=True, usage=usage_of(5))
    if is_mined:
        assert await conclude(ledger, claim) is CallState.CONSUMED
    else:
        assert await conclude(ledger, claim, transfer=None) is CallState.RELEASED
    assert numbers_of(await reread(ledger, channel)) == ((505, 8, 8) if is_mined else (5, 0, 0))
    record = await ledger.find_call(claim.call_id)
    assert record.actual_units == (8 if is_mined else None)
    await assert_balanced(ledger)


@pytest.mark.parametrize(("is_stored", "is_mined"), [(True, True), (False, True), (True, False)])
async def test_a_price_that_is_measured_while_the_deposit_is_undecided_is_taken_by_recovery(
    ledgers: Any, is_stored: bool, is_mined: bool
) -> None:
    """It is charged whole, as the stored response says, also where a stream before it has given something back."""
    ledger = await ledgers.gateway("one")
    channel = await open_channel(ledger, 100)
    terms: dict[str, Any] = {"price": "0.00002", "metering": METERING}
    before = await open_call(ledger, channel, 20, **terms)
    await end_call(ledger, before, is_metered=True)
    claim = await open_deposit(ledger, channel, price_units=20, **terms)
    await settle(ledger, claim, None, is_metered=True)
    ledger.finish(finish_of(before, usage=usage_of(5)))
    await wait_finished(ledger, before.call_id)
    if is_stored:
        await ledgers.answers().keep(claim.call_id, ANSWER, payer=PAYER, provider=PROVIDER, now_ms=NOW_MS)
    assert await ledger.mark_orphaned(claim.call_id, epoch=1, usage=usage_of(5)) is True
    assert await ledger.mark_orphaned(claim.call_id, epoch=1, usage=usage_of(1)) is False
    is_charged = is_stored and is_mined
    transfer = {} if is_mined else {"transfer": None}
    after = await conclude(ledger, claim, is_orphaned=True, **transfer)
    assert after is (CallState.CONSUMED if is_charged else CallState.RELEASED)
    balance = 600 if is_mined else 100
    assert numbers_of(await reread(ledger, channel)) == (
        (balance, 16, 28) if is_charged else (balance, 8, 20)
    )
    assert (await ledger.find_call(claim.call_id)).actual_units == (8 if is_charged else None)
    await assert_balanced(ledger)


# Reorganisations of the deposit


async def mark_gone(ledger: Any, name: str = "settled") -> int:
    (payment,) = await ledger.find_payments(tx_hash(name))
    debt: int = await ledger.mark_gone(payment.id, now_ms=NOW_MS)
    return debt


def deposit_payment(name: str = "settled", **fields: Any) -> Any:
    return new_payment(500, name, payee=COLLECTOR, is_final=False, **fields)


async def test_a_deposit_that_leaves_the_chain_takes_the_newest_calls_with_it(ledger: Any) -> None:
    channel = await open_channel(ledger, 25)
    first = await buy(ledger, channel, 15)
    own = await settled(ledger, channel)
    later = await buy(ledger, channel, 100)
    assert await mark_gone(ledger) == 0
    states = [await read_state(ledger, one) for one in (first, own, later)]
    assert states == [CallState.CONSUMED, CallState.CONSUMED, CallState.REORGED]
    assert numbers_of(await reread(ledger, channel)) == (25, 25, 125)
    assert await ledger.debts(PAYER) == ()
    await assert_balanced(ledger)


@pytest.mark.parametrize("block_number", [101, 102, 90], ids=["same", "later", "earlier"])
async def test_a_deposit_that_returns_pays_its_calls_again(ledger: Any, block_number: int) -> None:
    channel = await open_channel(ledger, 25)
    own, later = await settled(ledger, channel), await buy(ledger, channel, 100)
    await mark_gone(ledger)
    assert await read_state(ledger, later) is CallState.REORGED
    if block_number < OPENED_BLOCK:
        await ledger.renew_channel(channel.key, facts_of(525, block_number=101), now_ms=NOW_MS)
    await ledger.record_payments([deposit_payment(block_number=block_number)], now_ms=NOW_MS)
    assert numbers_of(await reread(ledger, channel)) == (525, 110, 110)
    assert [await read_state(ledger, one) for one in (own, later)] == [CallState.CONSUMED] * 2
    await mark_gone(ledger)
    await ledger.record_payments([deposit_payment(block_number=103)], now_ms=NOW_MS)
    assert numbers_of(await reread(ledger, channel)) == (525, 110, 110)
    await assert_balanced(ledger)


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_deposit_that_moves_to_another_transaction_counts_once(ledger: Any, is_gone: bool) -> None:
    channel = await open_channel(ledger, 25)
    own, later = await settled(ledger, channel), await buy(ledger, channel, 100)
    if is_gone:
        await mark_gone(ledger)
    moved = await ledger.move_transfer(
        own.call_id,
        before=tx_hash("settled"),
        transfer=transfer_in("moved", block_number=103),
        now_ms=NOW_MS + 1,
    )
    assert moved is True
    assert numbers_of(await reread(ledger, channel)) == (525, 110, 110)
    assert await read_state(ledger, later) is CallState.CONSUMED
    (payment,) = await ledger.find_payments(tx_hash("moved"))
    assert (payment.value_units, payment.taken_units, payment.is_escrow) == (500, 0, True)
    assert (await ledger.find_call_authorization(own.call_id)).transfer == tx_hash("moved")
    assert (
        await ledger.move_transfer(
            own.call_id, before=tx_hash("settled"), transfer=transfer_in(), now_ms=NOW_MS
        )
        is False
    )
    await mark_gone(ledger, "moved")
    assert numbers_of(await reread(ledger, channel)) == (25, 25, 110)
    await assert_balanced(ledger)


async def test_a_deposit_that_was_never_counted_lowers_nothing(ledger: Any) -> None:
    """Facts of a block before it came after it: the fork without it."""
    channel = await open_channel(ledger, 25)
    await settled(ledger, channel)
    await ledger.renew_channel(channel.key, facts_of(25, block_number=102), now_ms=NOW_MS)
    await mark_gone(ledger)
    await ledger.renew_channel(channel.key, facts_of(25, block_number=102), now_ms=NOW_MS)
    assert numbers_of(await reread(ledger, channel)) == (25, 10, 10)
    await assert_balanced(ledger)


async def test_of_two_deposits_one_that_leaves_the_chain_lowers_its_part(ledger: Any) -> None:
    channel = await open_channel(ledger, 25)
    await settled(ledger, channel)
    second = await settling(ledger, channel, deposit_units=70)
    await conclude(ledger, second, transfer=transfer_in("second", block_number=105))
    assert numbers_of(await reread(ledger, channel)) == (595, 20, 20)
    await mark_gone(ledger)
    assert numbers_of(await reread(ledger, channel)) == (95, 20, 20)
    await mark_gone(ledger, "second")
    assert numbers_of(await reread(ledger, channel)) == (25, 20, 20)
    await assert_balanced(ledger)


async def test_a_deposit_becomes_final_as_every_payment(ledger: Any) -> None:
    channel = await open_channel(ledger, 25)
    await settled(ledger, channel)
    (block,) = await ledger.unfinal_blocks(channel.chain_id, after=None, limit=9)
    assert await ledger.finish_block(block, is_checked_only=False, now_ms=NOW_MS) == 1
    await ledger.mark_restored(origin=operator_origin())
    (payment,) = await ledger.find_payments(tx_hash("settled"))
    assert (payment.state, payment.is_held) == (PaymentState.FINAL, False)


async def test_a_balance_that_falls_while_a_deposit_settles_makes_its_call_a_debt_of_the_channel(
    ledger: Any,
) -> None:
    channel = await open_channel(ledger, 100)
    await buy(ledger, channel, 100)
    claim = await settling(ledger, channel, deposit_units=50, price_units=40)
    await ledger.renew_channel(channel.key, facts_of(0, block_number=100), now_ms=NOW_MS)
    assert await conclude(ledger, claim) is CallState.REORGED
    found = await reread(ledger, channel)
    assert numbers_of(found) == (50, 50, 140)
    assert found.reserved_call is None
    await ledger.renew_channel(channel.key, facts_of(150, block_number=105), now_ms=NOW_MS)
    assert await read_state(ledger, claim) is CallState.CONSUMED
    assert numbers_of(await reread(ledger, channel)) == (150, 140, 140)
    await assert_balanced(ledger)


async def test_many_deposits_at_once_settle_alone(ledgers: Any) -> None:
    one, two = await ledgers.gateway("one"), await ledgers.gateway("two")
    channels = [await open_channel(one, 5, f"channel {number}") for number in range(6)]
    claims = [await settling(one, channel) for channel in channels]
    ends = await asyncio.gather(*(conclude(one, claim, f"tx {claim.call_id}") for claim in claims))
    assert ends == [CallState.CONSUMED] * 6
    assert [numbers_of(await reread(two, channel)) for channel in channels] == [(505, 10, 10)] * 6
    assert (await reread(two, channels[0])).state is ChannelState.OPEN
    await assert_balanced(two)


# What the chain says


async def states_of(ledger: Any, claims: list[Claim]) -> str:
    """The first letter of each state."""
    return "".join([(await read_state(ledger, claim)).value[0] for claim in claims])


async def renew(ledger: Any, channel: Channel, balance: int, **facts: Any) -> Channel:
    found: Channel = await ledger.renew_channel(channel.key, facts_of(balance, **facts), now_ms=NOW_MS)
    assert found == await reread(ledger, channel)
    await assert_balanced(ledger)
    return found


async def test_a_lower_balance_takes_the_newest_calls_and_a_higher_one_pays_the_oldest(ledger: Any) -> None:
    """Three calls of 10. The last one that loses units keeps what is left."""
    channel = await open_channel(ledger, 30)
    claims = [await buy(ledger, channel) for _ in range(3)]
    seen = []
    for balance in (30, 29, 20, 11, 0, 5, 15, 20, 1_000):
        found = await renew(ledger, channel, balance)
        seen.append((balance, await states_of(ledger, claims), found.taken_units, found.lacking_units))
        assert found.announced == 30
    assert seen == [
        (30, "ccc", 30, 0),
        (29, "ccr", 29, 1),
        (20, "ccr", 20, 10),
        (11, "crr", 11, 19),
        (0, "rrr", 0, 30),
        (5, "rrr", 5, 25),
        (15, "crr", 15, 15),
        (20, "ccr", 20, 10),
        (1_000, "ccc", 30, 0),
    ]
    assert await ledger.debts(PAYER) == ()


async def test_facts_of_an_earlier_block_change_nothing(ledger: Any) -> None:
    channel = await open_channel(ledger, 30, block_number=200)
    await buy(ledger, channel, 30)
    before = await reread(ledger, channel)
    stale = facts_of(0, block_number=199, withdrawal_since_s=1, total_claimed=0)
    assert await ledger.renew_channel(channel.key, stale, now_ms=NOW_MS) == before
    assert await reread(ledger, channel) == before
    assert (await renew(ledger, channel, 0, block_number=200)).lacking_units == 30


async def test_a_withdrawal_in_sight_takes_no_call_until_it_has_ended(ledger: Any) -> None:
    channel = await open_channel(ledger, 100)
    running = await open_call(ledger, channel)
    found = await renew(ledger, channel, 100, withdrawal_since_s=7, withdrawal_amount=90, refund_nonce=3)
    assert (found.state, found.facts.withdrawal_amount, found.facts.refund_nonce) == (
        ChannelState.WITHDRAWING,
        90,
        3,
    )
    await end_call(ledger, running)  # a call that runs ends as every other
    closed = ChannelClosed(state=ChannelState.WITHDRAWING)
    assert await ledger.claim(voucher_claim(await reread(ledger, channel))) == closed
    found = await renew(ledger, channel, 10, total_claimed=10)
    assert (found.state, found.lacking_units) == (ChannelState.OPEN, 0)
    await renew(ledger, channel, 200, total_claimed=10, block_number=101)
    await buy(ledger, channel)
    assert (await renew(ledger, channel, 0 + 10, total_claimed=10, block_number=102)).lacking_units == 10


async def test_an_open_call_keeps_its_units_until_it_ends(ledger: Any) -> None:
    channel = await open_channel(ledger, 30)
    ended = await buy(ledger, channel)
    running = await open_call(ledger, channel, 20)
    found = await renew(ledger, channel, 5)
    assert (numbers_of(found), found.lacking_units) == ((5, 20, 10), 10)
    closed = await end_call(ledger, running)
    assert (closed.is_reorged, closed.announced, closed.remaining_units) == (True, 30, 0)
    found = await renew(ledger, channel, 5)
    assert (await states_of(ledger, [ended, running]), numbers_of(found)) == ("rr", (5, 5, 30))
    found = await renew(ledger, channel, 30)
    assert (await states_of(ledger, [ended, running]), numbers_of(found)) == ("cc", (30, 30, 30))


async def test_a_released_call_leaves_its_units_to_what_lacks(ledger: Any) -> None:
    channel = await open_channel(ledger, 30)
    ended = await buy(ledger, channel)
    running = await open_call(ledger, channel, 20)
    await renew(ledger, channel, 10)
    await end_call(ledger, running, CallState.RELEASED)
    assert isinstance(await ledger.claim(voucher_claim(await reread(ledger, channel), 1)), CeilingMismatch)
    found = await renew(ledger, channel, 10)
    assert (await states_of(ledger, [ended, running]), numbers_of(found)) == ("cr", (10, 10, 10))


async def test_a_call_that_lacks_units_takes_less_once_it_is_measured(ledger: Any) -> None:
    channel = await open_channel(ledger, 25)
    claim = await open_call(ledger, channel, 20, price="0.00002", metering=METERING)
    await end_call(ledger, claim, is_metered=True)
    assert (await renew(ledger, channel, 6)).lacking_units == 14
    ledger.finish(finish_of(claim, usage=usage_of(5)))  # 8 units
    await wait_finished(ledger, claim.call_id)
    found = await reread(ledger, channel)
    assert (numbers_of(found), found.lacking_units) == ((6, 6, 20), 2)
    await assert_balanced(ledger)
    found = await renew(ledger, channel, 8)
    assert (await states_of(ledger, [claim]), numbers_of(found)) == ("c", (8, 8, 20))


async def test_credit_of_the_payer_pays_no_call_of_a_channel(ledger: Any) -> None:
    """What its calls lack is no debt to the receiver, although it receives both, and the payer owes for a transfer that left."""
    channel = await open_channel(ledger, 30)
    claim = await buy(ledger, channel)
    await renew(ledger, channel, 0)
    gone = await pay(ledger, 7, "gone", is_final=False)
    owing = claim_on(gone, 7)
    await ledger.claim(owing)
    await ledger.close(close_of(owing))
    assert await ledger.mark_gone(gone.id, now_ms=NOW_MS) == 7
    await pay(ledger, 500)
    await ledger.continue_moves(channel.chain_id, now_ms=NOW_MS)
    assert await states_of(ledger, [claim, owing]) == "rc"
    assert await read_rest(ledger) == 493
    other = claim_on((await ledger.find_payments(tx_hash("tx")))[0], 4)
    assert isinstance(await ledger.claim(other), Claimed)
    await assert_balanced(ledger)


async def test_calls_that_a_restore_has_lost_count_as_claimed_before(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    await buy(ledger, channel)
    await ledger.mark_restored(origin=operator_origin())
    found = await renew(ledger, channel, 1_000, total_claimed=70)
    assert (found.start_units, numbers_of(found)) == (60, (1_000, 70, 70))
    assert found.state is ChannelState.DRAINING


async def test_a_balance_that_falls_by_more_calls_than_one_transaction_moves(
    database: Database,
) -> None:
    faulty = FaultyLedger(database, limits=replace(DEFAULT_LIMITS, moved_calls_max=2))
    await faulty.ledger.open()
    channel = await open_channel(faulty.ledger, 70)
    claims = [await buy(faulty.ledger, channel) for _ in range(7)]
    for balance, states in ((15, "crrrrrr"), (0, "rrrrrrr"), (69, "ccccccr"), (70, "ccccccc")):
        await renew(faulty.ledger, channel, balance)
        assert await states_of(faulty.ledger, claims) == states
    await faulty.close()


async def test_gateways_that_renew_and_end_calls_at_once_leave_right_sums(ledgers: Any) -> None:
    both = [await ledgers.gateway("one"), await ledgers.gateway("two")]
    channel = await open_channel(both[0], 200)
    for number in range(8):
        claim = await open_call(both[number % 2], channel)
        facts = [facts_of(balance, block_number=200 + number) for balance in (15, 200)]
        await asyncio.gather(
            both[number % 2].close(close_of(claim)),
            *(both[1 - number % 2].renew_channel(channel.key, one, now_ms=NOW_MS) for one in facts),
        )
        await assert_balanced(both[0])
        await both[0].renew_channel(channel.key, facts_of(200, block_number=200 + number), now_ms=NOW_MS)
    assert numbers_of(await reread(both[1], channel)) == (200, 80, 80)
    await assert_balanced(both[1])
