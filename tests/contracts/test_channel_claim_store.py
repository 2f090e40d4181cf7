"""The contract of `ChannelClaimLedger`: a claim and its transaction are one commit, a channel is in one open claim, and a refund has its channel until it ends."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from tests.contracts.test_metered_calls import METERING, usage_of
from tests.kit.ledger_channels import (
    TOKEN,
    buy,
    end_call,
    facts_of,
    open_call,
    open_channel,
    reread,
    voucher_claim,
    voucher_of,
)
from tests.kit.ledger_records import (
    CHAIN,
    GAS_KEY,
    NOW_MS,
    PAYEE,
    finish_of,
    operator_origin,
    tx_hash,
    wait_finished,
)
from tests.kit.metered_gateway import TOTAL_TOKENS, make_metering
from tests.kit.storage_faults import FaultyLedger, once
from tollway.errors import StorageUnavailable
from tollway.ids import CallId, ChainId, ChannelId, ListingId
from tollway.ledger.channels import (
    Channel,
    ChannelActivity,
    ChannelBusy,
    ChannelClosed,
    ChannelState,
    OpenClaim,
    Receiver,
    StoredRow,
)
from tollway.ledger.ledger import Claimed, NonceUnavailable
from tollway.ledger.records import CallState, SettlementAttempt, Usage
from tollway.registry.metering import Measured, compute_cost, write_formulas, write_measured
from tollway.storage.engine.database import Database

ENDED_MS = NOW_MS + 1_000


@pytest.fixture
def ledger(faulty_ledger: FaultyLedger) -> Any:
    return faulty_ledger.ledger


def row_of(channel: Channel, total: int | None = None, *, ceiling: int | None = None) -> StoredRow:
    """By default what the calls of the channel owe, by a voucher over the announced sum."""
    return StoredRow(
        channel_key=channel.key,
        voucher=voucher_of(channel.announced if ceiling is None else ceiling),
        total=channel.taken_units if total is None else total,
    )


def claim_of(*rows: StoredRow, name: str = "claim_1", **fields: Any) -> OpenClaim:
    return OpenClaim(**{"id": CallId(name), "chain_id": CHAIN, "rows": rows, "created_ms": NOW_MS, **fields})


def attempt_of(claim: OpenClaim, nonce: int = 0, name: str = "", **fields: Any) -> SettlementAttempt:
    defaults: dict[str, Any] = {
        "chain_id": claim.chain_id,
        "tx_hash": tx_hash(name or f"{claim.id} {nonce}"),
        "call_id": claim.id,
        "listing_id": ListingId(""),
        "sender": GAS_KEY,
        "nonce": nonce,
        "raw": b"\x02signed",
        "fee_max_wei": 1_000,
        "created_ms": claim.created_ms,
    }
    return SettlementAttempt(**{**defaults, **fields})


async def buy_on(ledger: Any, units: int = 100, name: str = "channel", *, calls: int = 1) -> Channel:
    """A channel of 1,000 with so many ended calls."""
    channel = await open_channel(ledger, 1_000, name)
    for _ in range(calls):
        await buy(ledger, channel, units)
    return await reread(ledger, channel)


async def add(ledger: Any, claim: OpenClaim, nonce: int = 0) -> OpenClaim:
    assert await ledger.add_claim(claim, attempt_of(claim, nonce)) is True
    return claim


async def refund(ledger: Any, channel: Channel, nonce: int = 0, name: str = "refund_1") -> OpenClaim:
    return await add(ledger, claim_of(row_of(channel), name=name, is_refund=True), nonce)


# ---- The commit.


async def test_a_claim_its_transaction_its_nonce_and_its_vouchers_are_one_commit(ledger: Any) -> None:
    channels = [await buy_on(ledger, 100, "first"), await buy_on(ledger, 70, "second")]
    claim = await add(ledger, claim_of(*map(row_of, channels)))
    assert await ledger.list_open_claims(CHAIN) == (claim,)
    assert await ledger.list_open_claims(ChainId(1)) == ()
    assert await ledger.attempts_of(claim.id) == (attempt_of(claim),)
    assert await ledger.next_nonce(CHAIN, GAS_KEY) == 1
    found = [await reread(ledger, one) for one in channels]
    assert [one.published for one in found] == [100, 70]
    assert [one.reserved_call for one in found] == [None, None]


async def test_a_claim_that_is_not_stored_publishes_no_voucher_and_takes_no_nonce(ledger: Any) -> None:
    first, second = await buy_on(ledger, name="first"), await buy_on(ledger, name="second")
    claim = await add(ledger, claim_of(row_of(first)))
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    with pytest.raises(IntegrityError):
        await ledger.add_claim(claim_of(row_of(second)), attempt_of(claim, 1))  # the same id
    assert await reread(ledger, second) == second
    assert (await ledger.next_nonce(CHAIN, GAS_KEY), await ledger.list_open_claims(CHAIN)) == (1, ())


@pytest.mark.parametrize("nonce", [0, 2])
async def test_a_nonce_that_is_not_the_next_one_is_refused(ledger: Any, nonce: int) -> None:
    channels = [await buy_on(ledger, name="first"), await buy_on(ledger, name="second")]
    await add(ledger, claim_of(row_of(channels[0])))
    claim = claim_of(row_of(channels[1]), name="claim_2", is_refund=True)
    assert await ledger.add_claim(claim, attempt_of(claim, nonce)) == NonceUnavailable(next_nonce=1)
    assert await reread(ledger, channels[1]) == channels[1]
    assert await ledger.attempts_of(claim.id) == ()


async def test_a_lost_acknowledgement_stores_a_claim_once(faulty_ledger: FaultyLedger, ledger: Any) -> None:
    channel = await buy_on(ledger)
    faulty_ledger.database.fail_after = once()
    with pytest.raises(StorageUnavailable):
        await refund(ledger, channel)
    claim = await refund(ledger, channel)
    assert await ledger.list_open_claims(CHAIN) == (claim,)
    assert (await ledger.next_nonce(CHAIN, GAS_KEY), len(await ledger.attempts_of(claim.id))) == (1, 1)


async def test_a_published_voucher_stays_published(ledger: Any) -> None:
    channel = await buy_on(ledger, calls=2)
    await ledger.close_claim((await add(ledger, claim_of(row_of(channel)))).id, now_ms=ENDED_MS)
    await add(ledger, claim_of(row_of(channel, 50, ceiling=100), name="claim_2"), 1)
    assert (await reread(ledger, channel)).published == 200


async def test_a_voucher_that_becomes_public_is_announced(ledger: Any) -> None:
    """The last claim of a metered channel shows a voucher that is ahead of what was charged."""
    channel = await open_channel(ledger, 1_000)
    claim = await open_call(ledger, channel, 20, price="0.00002", metering=METERING)
    await end_call(ledger, claim, finish=finish_of(claim, usage=usage_of(5)))
    channel = await reread(ledger, channel)
    assert (channel.announced, channel.taken_units) == (8, 8)
    await refund_with(ledger, channel, ceiling=20)
    found = await reread(ledger, channel)
    assert (found.announced, found.published, found.taken_units) == (20, 20, 8)
    assert (await ledger.audit()).wrong == ()


async def refund_with(ledger: Any, channel: Channel, *, ceiling: int) -> OpenClaim:
    return await add(ledger, claim_of(row_of(channel, ceiling=ceiling), name="refund_1", is_refund=True))


# ---- Receivers whose settle fails.


async def test_a_refused_receiver_is_listed_until_it_is_cleared(pair: list[FaultyLedger]) -> None:
    one, two = (each.ledger for each in pair)
    first, second = (Receiver(ChainId(n), PAYEE, TOKEN) for n in (1, 2))
    for _ in range(2):
        await one.mark_refused(first, now_ms=NOW_MS)
    await two.mark_refused(second, now_ms=NOW_MS)
    assert await one.list_refused() == await two.list_refused() == dict.fromkeys((first, second), NOW_MS)
    await two.clear_refused(first)
    assert await one.list_refused() == {second: NOW_MS}


async def test_a_settle_alone_is_a_claim_without_channels(ledger: Any) -> None:
    claim = await add(ledger, claim_of())
    assert await ledger.list_open_claims(CHAIN) == (claim,)
    assert await ledger.attempts_of(claim.id) == (attempt_of(claim),)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert await ledger.list_open_claims(CHAIN) == ()


# ---- Channels that no listing can use.


async def test_the_dearest_unused_channel_is_listed_first(ledger: Any) -> None:
    channels = [await open_channel(ledger, units, f"channel {units}") for units in (100, 300, 200, 400)]
    for one, since_ms in zip(channels, (NOW_MS, NOW_MS, NOW_MS, NOW_MS + 1), strict=True):
        await ledger.mark_unused(one.key, since_ms)

    async def list_unused(limit: int = 9) -> list[int]:
        found = await ledger.list_unused(CHAIN, before_ms=NOW_MS, limit=limit)
        return [one.balance_units for one in found]

    assert (await list_unused(), await list_unused(2)) == ([300, 200, 100], [300, 200])
    await ledger.mark_unused(channels[1].key, None)
    assert await list_unused() == [200, 100]
    assert (await reread(ledger, channels[2])).unused_since_ms == NOW_MS
    assert await ledger.list_unused(ChainId(1), before_ms=NOW_MS, limit=9) == ()


@pytest.mark.parametrize(
    "hold", ["a call", "a price that is not known", "a claim", "a refund", "a withdrawal", "nothing left"]
)
async def test_an_unused_channel_waits_for(ledger: Any, hold: str) -> None:
    channel = await buy_on(ledger)
    await ledger.mark_unused(channel.key, NOW_MS)
    assert await ledger.list_unused(CHAIN, before_ms=NOW_MS, limit=9) == (await reread(ledger, channel),)
    match hold:
        case "a call":
            await open_call(ledger, channel)
        case "a price that is not known":
            call = await open_call(ledger, channel, 20, price="0.00002", metering=METERING)
            await end_call(ledger, call)
        case "a claim":
            await add(ledger, claim_of(row_of(channel)))
        case "a refund":
            claim = claim_of(row_of(channel), name="refund_1", is_refund=True, created_ms=NOW_MS + 1)
            await ledger.close_claim((await add(ledger, claim)).id, now_ms=ENDED_MS)
        case "a withdrawal":
            facts = facts_of(1_000, withdrawal_amount=5, withdrawal_since_s=1)
            await ledger.renew_channel(channel.key, facts, now_ms=NOW_MS)
        case _:
            await ledger.renew_channel(channel.key, facts_of(100), now_ms=NOW_MS)
    assert await ledger.list_unused(CHAIN, before_ms=NOW_MS, limit=9) == ()


# ---- One open claim for a channel.


@pytest.mark.parametrize("is_refund", [False, True])
async def test_a_channel_is_in_one_open_claim(ledger: Any, is_refund: bool) -> None:
    first, second = await buy_on(ledger, name="first"), await buy_on(ledger, name="second")
    claim = await add(ledger, claim_of(row_of(first)))
    rows = [row_of(first)] if is_refund else [row_of(second), row_of(first)]
    other = claim_of(*rows, name="claim_2", is_refund=is_refund)
    assert await ledger.add_claim(other, attempt_of(other, 1)) is False
    assert await reread(ledger, second) == second
    assert await ledger.next_nonce(CHAIN, GAS_KEY) == 1
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    await add(ledger, other, 1)


async def test_of_many_claims_of_two_gateways_one_gets_the_channel(pair: list[FaultyLedger]) -> None:
    for one in pair:
        await one.ledger.open()
    channel = await buy_on(pair[0].ledger)
    claims = [claim_of(row_of(channel), name=f"claim_{n}", is_refund=n % 2 == 0) for n in range(8)]
    outcomes = await asyncio.gather(
        *(pair[n % 2].ledger.add_claim(claim, attempt_of(claim)) for n, claim in enumerate(claims))
    )
    assert sorted(outcomes) == [False] * 7 + [True]
    (stored,) = await pair[0].ledger.list_open_claims(CHAIN)
    assert stored == claims[outcomes.index(True)]


async def test_a_claim_and_a_call_do_not_wait_for_each_other(ledger: Any) -> None:
    channel = await buy_on(ledger)
    running = await open_call(ledger, channel, 10)
    await add(ledger, claim_of(row_of(channel)))
    found = await reread(ledger, channel)
    assert (found.reserved_call, found.published) == (running.call_id, 100)
    await end_call(ledger, running)
    await buy(ledger, channel)


# ---- A refund has its channel.


async def test_a_refund_reserves_its_channel_until_it_ends(ledger: Any) -> None:
    channel = await buy_on(ledger)
    claim = await refund(ledger, channel)
    found = await reread(ledger, channel)
    assert (found.reserved_call, found.reserved_state) == (claim.id, None)
    call = voucher_claim(found)
    assert await ledger.claim(call) == ChannelBusy(call_id=claim.id, state=CallState.FORWARDING)
    assert await ledger.find_call(call.call_id) is None
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert (await reread(ledger, channel)).reserved_call is None
    assert isinstance(await ledger.claim(call), Claimed)


async def test_a_refund_does_not_take_the_channel_of_a_call(ledger: Any) -> None:
    channel = await buy_on(ledger)
    running = await open_call(ledger, channel)
    before = await reread(ledger, channel)
    claim = claim_of(row_of(before), name="refund_1", is_refund=True)
    assert await ledger.add_claim(claim, attempt_of(claim)) is False
    assert await reread(ledger, channel) == before
    await end_call(ledger, running)


async def test_a_refund_of_what_a_later_call_has_taken_is_refused(ledger: Any) -> None:
    """The call began and ended after the sum of the refund was read: the refund would pay back what that call took."""
    channel = await buy_on(ledger)
    claim = claim_of(row_of(channel), name="refund_1", is_refund=True)
    await buy(ledger, channel)
    before = await reread(ledger, channel)
    assert await ledger.add_claim(claim, attempt_of(claim)) is False
    assert await reread(ledger, channel) == before
    assert await ledger.next_nonce(CHAIN, GAS_KEY) == 0


async def test_the_end_of_a_claim_frees_no_call_and_no_other_refund(ledger: Any) -> None:
    first, second = await buy_on(ledger, name="first"), await buy_on(ledger, name="second")
    claim = await add(ledger, claim_of(row_of(first)))
    running = await open_call(ledger, first)
    held = await refund(ledger, second, 1)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert (await reread(ledger, first)).reserved_call == running.call_id
    assert (await reread(ledger, second)).reserved_call == held.id
    assert await ledger.list_open_claims(CHAIN) == (held,)
    await end_call(ledger, running)


async def test_the_audit_accepts_the_reservation_of_a_refund_and_no_foreign_one(
    database: Database, ledger: Any
) -> None:
    first, second = await buy_on(ledger, name="first"), await buy_on(ledger, name="second")
    claim = await refund(ledger, first)
    assert (await ledger.audit()).wrong == ()
    for holder in (claim.id, "refund_2"):  # the refund of another channel, and none
        await reserve(database, second.key, holder)
        (wrong,) = (await ledger.audit()).wrong
        assert f"channel {second.key} is reserved for call {holder}" in wrong
        await reserve(database, second.key, None)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    await reserve(database, first.key, claim.id)
    assert (await ledger.audit()).wrong != ()  # that refund has ended
    await reserve(database, first.key, None)


async def reserve(database: Database, key: int, holder: str | None) -> None:
    statement = text("UPDATE channel SET reserved_call = :holder WHERE key = :key")
    await database.write(lambda connection: connection.execute(statement, {"key": key, "holder": holder}))


# ---- What is due.


async def test_the_dearest_channels_are_listed_first_with_a_voucher_that_covers_what_they_owe(
    ledger: Any,
) -> None:
    await open_channel(ledger, 1_000, "without a call")
    small = await buy_on(ledger, 10, "small")
    large = await buy_on(ledger, 100, "large")
    found = await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)
    assert [(one.channel, one.voucher, one.total) for one in found] == [
        (large, voucher_of(100), 100),
        (small, voucher_of(10), 10),
    ]
    assert [one.channel for one in await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=1)] == [large]
    assert await ledger.list_claimable(ChainId(1), unclaimed_max=5, limit=5) == ()


async def test_a_channel_is_listed_until_it_is_in_a_claim_and_again_for_what_it_owes_more(
    ledger: Any,
) -> None:
    channel = await buy_on(ledger)
    (one,) = await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)
    assert one.since_ms == NOW_MS  # since it was opened
    claim = await add(ledger, claim_of(row_of(channel), created_ms=NOW_MS + 500))
    assert await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5) == ()
    await ledger.renew_channel(channel.key, facts_of(1_000, total_claimed=100), now_ms=ENDED_MS)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5) == ()
    await buy(ledger, channel, 30)
    (one,) = await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)
    assert (one.total, one.since_ms) == (130, NOW_MS + 500)


@pytest.mark.parametrize("state", [CallState.FORWARDING, CallState.UNKNOWN])
async def test_what_an_open_call_holds_is_not_claimed(ledger: Any, state: CallState) -> None:
    channel = await buy_on(ledger)
    running = await open_call(ledger, channel, 50)
    if state is CallState.UNKNOWN:
        await end_call(ledger, running, state)
    (one,) = await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)
    assert (one.total, one.voucher, one.channel.taken_units) == (100, voucher_of(100), 150)
    assert (await ledger.find_activity(channel.key)).open_units == 50


async def test_a_stream_is_claimed_at_its_price_and_not_at_its_maximum(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    call = await open_call(ledger, channel, 20, price="0.00002", metering=METERING)
    await end_call(ledger, call, is_metered=True)
    assert await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5) == ()
    ledger.finish(finish_of(call, usage=usage_of(5)))  # 8 units
    await wait_finished(ledger, call.call_id)
    (one,) = await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)
    assert (one.total, one.voucher) == (8, voucher_of(20))


# ---- What is watched, and what decides a refund.


async def test_a_channel_is_watched_while_it_has_money_or_owes_some(ledger: Any) -> None:
    full = await buy_on(ledger, name="full")
    empty = await open_channel(ledger, 0, "empty")
    claimed = await open_channel(ledger, 300, "all claimed", total_claimed=300)
    other = await open_channel(ledger, 5, "other")
    assert [one.key for one in await ledger.list_watched(CHAIN, after_key=0, limit=9)] == [
        full.key,
        other.key,
    ]
    assert await ledger.list_watched(CHAIN, after_key=0, limit=1) == (full,)
    assert await ledger.list_watched(CHAIN, after_key=full.key, limit=9) == (other,)
    assert await ledger.list_watched(ChainId(1), after_key=0, limit=9) == ()
    every = [one.id for one in (other, claimed, empty, full)]
    assert await ledger.find_watched(CHAIN, every) == (full, other)
    assert await ledger.find_watched(CHAIN, [other.id, ChannelId(b"\x99" * 32)]) == (other,)
    assert await ledger.find_watched(ChainId(1), every) == ()
    assert await ledger.find_watched(CHAIN, []) == ()
    assert {empty.key, claimed.key}.isdisjoint({full.key, other.key})


async def test_the_last_look_is_kept_for_each_network(ledger: Any) -> None:
    assert await ledger.read_look_ms(CHAIN) is None
    for now_ms in (NOW_MS, NOW_MS + 5):
        await ledger.note_look(CHAIN, now_ms=now_ms)
    assert await ledger.read_look_ms(CHAIN) == NOW_MS + 5
    assert await ledger.read_look_ms(ChainId(1)) is None


async def test_the_activity_names_the_last_call_the_last_refund_and_an_open_claim(ledger: Any) -> None:
    channel = await open_channel(ledger, 1_000)
    idle = ChannelActivity(called_ms=None, refunded_ms=None, is_claimed_now=False, open_units=0)
    assert await ledger.find_activity(channel.key) == idle
    await buy(ledger, channel, 50)
    last = await ledger.find_call((await buy(ledger, channel, 50)).call_id)
    called = replace(idle, called_ms=last.created_ms)
    assert await ledger.find_activity(channel.key) == called
    claim = await add(ledger, claim_of(row_of(await reread(ledger, channel))))
    assert await ledger.find_activity(channel.key) == replace(called, is_claimed_now=True)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert await ledger.find_activity(channel.key) == called  # a claim is no refund
    claim = await refund(ledger, await reread(ledger, channel), 1)
    refunded = replace(called, refunded_ms=NOW_MS)
    assert await ledger.find_activity(channel.key) == replace(refunded, is_claimed_now=True)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert await ledger.find_activity(channel.key) == refunded
    other = await open_channel(ledger, 1_000, "other")
    assert await ledger.find_activity(other.key) == idle


# ---- The transaction of a claim.


async def test_a_fee_bump_of_a_claim_has_its_nonce_and_none_is_stored_after_the_end(ledger: Any) -> None:
    claim = await refund(ledger, await buy_on(ledger))
    bumped = attempt_of(claim, 0, "bumped", created_ms=NOW_MS + 1)
    assert await ledger.add_attempt(bumped) is True
    assert await ledger.next_nonce(CHAIN, GAS_KEY) == 1
    assert await ledger.attempts_of(claim.id) == (attempt_of(claim), bumped)
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    assert await ledger.add_attempt(attempt_of(claim, 0, "late")) is False
    assert len(await ledger.attempts_of(claim.id)) == 2


async def test_a_transaction_of_a_claim_that_is_not_stored_is_refused(ledger: Any) -> None:
    assert await ledger.add_attempt(attempt_of(claim_of())) is False


async def test_a_channel_is_found_by_its_key_and_restores_are_counted(ledger: Any) -> None:
    channel = await buy_on(ledger)
    assert await ledger.find_channel_by_key(channel.key) == channel
    assert await ledger.find_channel_by_key(channel.key + 1) is None
    assert await ledger.count_restores() == 0
    await ledger.mark_restored(origin=operator_origin())
    assert await ledger.count_restores() == 1
    found = await ledger.find_channel_by_key(channel.key)
    assert found is not None
    assert found.state is ChannelState.DRAINING


async def test_a_drained_channel_takes_no_call_and_is_still_claimed_and_refunded(ledger: Any) -> None:
    channel = await buy_on(ledger)
    await ledger.drain_channel(channel.key)
    await ledger.renew_channel(channel.key, facts_of(1_000, block_number=300), now_ms=NOW_MS)
    found = await reread(ledger, channel)
    assert await ledger.claim(voucher_claim(found)) == ChannelClosed(state=ChannelState.DRAINING)
    assert [one.total for one in await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)] == [100]
    await refund(ledger, found)


@pytest.mark.parametrize(
    ("actual", "others", "shown"),
    [
        pytest.param(2_400_000, (), 3_000_000, id="the next maximum exceeds what it may owe"),
        pytest.param(1_900_000, (), None, id="one more call fits"),
        pytest.param(1_900_000, (1_900_000,), 3_000_000, id="with another channel that cannot be claimed"),
        pytest.param(1_900_000, (3_000_000,), None, id="another channel can be claimed"),
    ],
)
async def test_a_payer_near_its_maximum_is_claimed_under_a_voucher_that_is_not_announced(
    ledger: Any, actual: int, others: tuple[int, ...], shown: int | None
) -> None:
    """Metered calls at a maximum of 3 units of the currency; the payer may owe 5."""
    channel = await use(ledger, "metered", actual)
    for number, units in enumerate(others):
        await use(ledger, f"other {number}", units)
    found = await ledger.list_claimable(CHAIN, unclaimed_max=5, limit=5)
    own = [one for one in found if one.channel.key == channel.key]
    assert [(one.total, one.voucher.ceiling) for one in own] == ([] if shown is None else [(actual, shown)])


async def test_a_claim_ahead_of_a_call_that_has_begun_is_not_stored(ledger: Any) -> None:
    channel = await use(ledger, "metered", 2_400_000)
    await open_call(ledger, channel, 10)
    early = claim_of(row_of(channel, ceiling=3_000_000))
    assert await ledger.add_claim(early, attempt_of(early)) is False
    assert (await reread(ledger, channel)).announced == 2_400_000
    await add(ledger, claim_of(row_of(channel, 2_400_000), name="claim_2"))


async def use(ledger: Any, name: str, units: int) -> Channel:
    """A channel whose one call had a maximum of 3 units of the currency, and used so much."""
    channel = await open_channel(ledger, 10_000_000, name)
    formulas = (make_metering(TOTAL_TOKENS, base="0", unit_price="0.1"),)
    measured = Measured(((units // 100_000,),))
    assert compute_cost(formulas, measured, max_units=3_000_000, decimals=6).units == units
    call = await open_call(ledger, channel, 3_000_000, price="3", metering=write_formulas(formulas))
    usage = Usage(actual_units=units, quantities=write_measured(measured))
    await end_call(ledger, call, is_metered=True, usage=usage)
    return await reread(ledger, channel)
