"""The contract of `CallHistory` for the calls of channels: where the price of each is on the chain, and that a page reads no more than the calls that are not claimed."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.contracts.test_call_terms import RolledBackOnce
from tests.contracts.test_metered_calls import METERING, usage_of
from tests.kit.ledger_channels import buy, config_of, end_call, facts_of, open_call, open_channel, reread
from tests.kit.ledger_records import CHAIN, NOW_MS, PAYER, finish_of, wait_finished
from tests.kit.query_plans import read_plans
from tests.kit.storage_faults import FaultyLedger
from tollway.ids import Address, ChainId
from tollway.ledger.channels import Channel, ChannelMoney, UnsettledReceiver
from tollway.ledger.history import HistoryQuery
from tollway.ledger.records import CallRecord, CallState, ClaimState, Usage
from tollway.storage.engine.database import Database
from tollway.storage.ledger import claim_states
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.history import read_history
from tollway.storage.operator.operator_reads import BookFigures

CLAIMED, LOST, SETTLED, UNCLAIMED = (
    ClaimState.CLAIMED,
    ClaimState.LOST,
    ClaimState.SETTLED,
    ClaimState.UNCLAIMED,
)
BALANCE = 1_000


async def list_oldest_first(ledger: Any, **fields: Any) -> list[CallRecord]:
    page = await ledger.history(HistoryQuery(wallet=PAYER, limit=1_000, **fields))
    return list(reversed(page.calls))


async def list_states(ledger: Any) -> list[ClaimState | None]:
    """Of all calls, the oldest first; the page of one call says the same."""
    calls = await list_oldest_first(ledger)
    for call in calls:
        assert await ledger.find_call(call.id) == call
    return [call.claim_state for call in calls]


async def read_chain(ledger: Any, channel: Channel, balance: int = BALANCE, **facts: Any) -> Channel:
    """The chain says this in a later block."""
    known = await reread(ledger, channel)
    seen = facts_of(balance, block_number=known.facts.block_number + 1, **facts)
    renewed: Channel = await ledger.renew_channel(channel.key, seen, now_ms=NOW_MS)
    return renewed


# ---- What a claim covers.


@pytest.mark.parametrize(
    ("claimed", "states"),
    [
        (0, [UNCLAIMED, UNCLAIMED, UNCLAIMED]),
        (9, [UNCLAIMED, UNCLAIMED, UNCLAIMED]),
        (10, [CLAIMED, UNCLAIMED, UNCLAIMED]),
        (29, [CLAIMED, UNCLAIMED, UNCLAIMED]),
        (30, [CLAIMED, CLAIMED, UNCLAIMED]),
        (60, [CLAIMED, CLAIMED, CLAIMED]),
    ],
)
async def test_a_claim_covers_the_oldest_calls_whole(
    ledger: Any, claimed: int, states: Sequence[ClaimState]
) -> None:
    channel = await open_channel(ledger, BALANCE)
    for units in (10, 20, 30):
        await buy(ledger, channel, units)
    await read_chain(ledger, channel, total_claimed=claimed)
    assert await list_states(ledger) == states


async def test_what_was_claimed_before_the_first_call_covers_none(ledger: Any) -> None:
    channel = await open_channel(ledger, BALANCE, total_claimed=500)
    await buy(ledger, channel, 10)
    await buy(ledger, channel, 10)
    assert await list_states(ledger) == [UNCLAIMED, UNCLAIMED]
    await read_chain(ledger, channel, total_claimed=510)
    assert await list_states(ledger) == [CLAIMED, UNCLAIMED]


async def test_each_channel_has_its_own_sum(ledger: Any) -> None:
    first, second = await open_channel(ledger, name="first"), await open_channel(ledger, name="second")
    for channel in (first, second, first, second):
        await buy(ledger, channel, 10)
    await read_chain(ledger, second, total_claimed=20)
    assert await list_states(ledger) == [UNCLAIMED, CLAIMED, UNCLAIMED, CLAIMED]


async def test_a_call_that_is_not_charged_has_no_state_and_moves_no_other(ledger: Any) -> None:
    channel = await open_channel(ledger, BALANCE)
    await buy(ledger, channel, 10)
    await end_call(ledger, await open_call(ledger, channel, 10), CallState.RELEASED, upstream_status=500)
    await buy(ledger, channel, 10)
    await open_call(ledger, channel, 10)
    await read_chain(ledger, channel, total_claimed=10)
    assert await list_states(ledger) == [CLAIMED, None, UNCLAIMED, None]


async def test_a_metered_call_has_a_state_once_its_price_is_known_and_is_not_zero(ledger: Any) -> None:
    channel = await open_channel(ledger, BALANCE)
    metered: dict[str, Any] = {"price": "0.00002", "metering": METERING}
    unmeasured = await open_call(ledger, channel, 20, **metered)
    await end_call(ledger, unmeasured)
    free = await open_call(ledger, channel, 20, **metered)
    await end_call(ledger, free)
    ledger.finish(finish_of(free, usage=Usage(actual_units=0, quantities="[[0]]")))
    await wait_finished(ledger, free.call_id)
    assert await list_states(ledger) == [None, None]
    ledger.finish(finish_of(unmeasured, usage=usage_of(5)))  # 8 units
    await wait_finished(ledger, unmeasured.call_id)
    assert await list_states(ledger) == [UNCLAIMED, None]
    await read_chain(ledger, channel, total_claimed=8)
    assert await list_states(ledger) == [CLAIMED, None]


async def test_a_balance_that_falls_loses_the_newest_calls_and_a_deposit_brings_them_back(
    ledger: Any,
) -> None:
    channel = await open_channel(ledger, BALANCE)
    for _ in range(3):
        await buy(ledger, channel, 100)
    await read_chain(ledger, channel, 250, total_claimed=100)
    assert await list_states(ledger) == [CLAIMED, UNCLAIMED, LOST]
    await read_chain(ledger, channel, 300, total_claimed=100)
    assert await list_states(ledger) == [CLAIMED, UNCLAIMED, UNCLAIMED]


async def test_a_call_that_no_channel_pays_has_no_state(ledger: Any) -> None:
    await buy(ledger, await open_channel(ledger), 10)
    (call,) = await list_oldest_first(ledger)
    assert (call.rail.value, call.claim_state) == ("channel", UNCLAIMED)
    assert await list_oldest_first(ledger, from_ms=call.created_ms + 1) == []


# ---- What the contract has paid out.


@pytest.fixture
def books(faulty_ledger: FaultyLedger) -> Any:
    return faulty_ledger.ledger


async def test_a_receiver_is_unsettled_from_its_claim_until_the_contract_has_paid_it(books: Any) -> None:
    channels = [await open_channel(books, BALANCE, name) for name in ("first", "second")]
    other = await books.open_channel(
        CHAIN,
        bytes(32),
        config_of("other", receiver=Address(b"\x77" * 20)),
        facts_of(BALANCE),
        decimals=6,
        now_ms=NOW_MS,
    )
    for channel in (*channels, other):
        await buy(books, channel, 100, pay_to=channel.config.receiver)
    assert await books.list_unsettled(CHAIN) == ()
    for channel, claimed in zip((*channels, other), (100, 60, 100), strict=True):
        await read_chain(books, channel, total_claimed=claimed)
    config = channels[0].config
    first = UnsettledReceiver(
        receiver=config.receiver,
        token=config.token,
        totals={channels[0].key: 100, channels[1].key: 60},
        claimed_units=160,
    )
    second = UnsettledReceiver(
        receiver=other.config.receiver, token=config.token, totals={other.key: 100}, claimed_units=100
    )
    found = await books.list_unsettled(CHAIN)
    assert sorted(found, key=lambda one: len(one.totals)) == [second, first]
    assert await books.list_unsettled(ChainId(1)) == ()
    await books.mark_settled(first.totals)
    assert await books.list_unsettled(CHAIN) == (second,)
    assert await list_states(books) == [SETTLED, UNCLAIMED, CLAIMED]
    await read_chain(books, channels[1], total_claimed=100)
    (later,) = [one for one in await books.list_unsettled(CHAIN) if one.receiver == config.receiver]
    assert (later.totals, later.claimed_units) == ({channels[1].key: 100}, 200)  # with what is paid out


async def test_what_is_settled_is_written_again_after_a_deadlock(books: Any, database: Database) -> None:
    channel = await open_channel(books, BALANCE)
    await buy(books, channel, 10)
    await read_chain(books, channel, total_claimed=10)
    behind = RolledBackOnce(database)
    store = ChannelClaimStore(behind)  # type: ignore[arg-type]  # it stands in for a database
    await store.mark_settled({channel.key: 10})
    assert (behind.rolled_back, await list_states(books)) == (1, [SETTLED])


async def test_a_later_claim_is_not_settled_by_an_earlier_one(books: Any) -> None:
    channel = await open_channel(books, BALANCE)
    for _ in range(3):
        await buy(books, channel, 10)
    await read_chain(books, channel, total_claimed=10)
    await books.mark_settled({channel.key: 10})
    await read_chain(books, channel, total_claimed=20)
    assert await list_states(books) == [SETTLED, CLAIMED, UNCLAIMED]
    await books.mark_settled({channel.key: 5})
    assert await list_states(books) == [SETTLED, CLAIMED, UNCLAIMED]


async def test_a_claim_that_leaves_the_chain_is_not_settled_any_more(books: Any) -> None:
    channel = await open_channel(books, BALANCE)
    await buy(books, channel, 10)
    await read_chain(books, channel, total_claimed=10)
    await books.mark_settled({channel.key: 10})
    await read_chain(books, channel, total_claimed=0)
    assert await list_states(books) == [UNCLAIMED]


async def test_a_move_of_a_call_keeps_what_is_settled(books: Any) -> None:
    channel = await open_channel(books, BALANCE)
    await buy(books, channel, 10)
    claim = await open_call(books, channel, 10)
    await read_chain(books, channel, total_claimed=10)
    await books.mark_settled({channel.key: 10})
    await end_call(books, claim)
    assert await list_states(books) == [SETTLED, UNCLAIMED]


# ---- What a page reads.


async def test_a_search_goes_on_in_slices_until_it_finds_what_is_covered(
    books: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_states, "SLICE_FIRST", 1)
    monkeypatch.setattr(claim_states, "SLICE_NEXT", 2)
    channel = await open_channel(books, BALANCE)
    for _ in range(6):
        await buy(books, channel, 10)
    await read_chain(books, channel, total_claimed=20)
    await books.mark_settled({channel.key: 10})
    assert await list_states(books) == [SETTLED, CLAIMED, UNCLAIMED, UNCLAIMED, UNCLAIMED, UNCLAIMED]


@pytest.mark.parametrize(
    ("claimed", "states"),
    [(20, [None, None, UNCLAIMED, UNCLAIMED, UNCLAIMED]), (30, [CLAIMED] * 3 + [UNCLAIMED] * 2)],
)
async def test_a_call_beyond_the_search_has_no_state_rather_than_a_wrong_one(
    books: Any, monkeypatch: pytest.MonkeyPatch, claimed: int, states: Sequence[ClaimState | None]
) -> None:
    monkeypatch.setattr(claim_states, "SLICE_FIRST", 3)
    monkeypatch.setattr(claim_states, "SEARCHED_MAX", 3)
    channel = await open_channel(books, BALANCE)
    for _ in range(5):
        await buy(books, channel, 10)
    await read_chain(books, channel, total_claimed=claimed)
    assert await list_states(books) == states


async def test_a_search_reads_the_calls_of_its_channel_by_their_index(books: Any, database: Database) -> None:
    channel = await open_channel(books, BALANCE)
    for _ in range(3):
        await buy(books, channel, 10)
    query = HistoryQuery(wallet=PAYER, limit=3)
    plans = await read_plans(
        database,
        lambda connection: read_history(connection, query, unknown_hold_ms=0),
        with_prepared=True,
    )
    assert any("ix_call_payment_time" in plan for plan in plans), plans
    assert any("uq_channel_payment_id" in plan for plan in plans), plans
    assert not [plan for plan in plans if "SCAN call" in plan or "Seq Scan on call" in plan]


# ---- Sums.


async def test_the_channels_of_a_receiver_add_up_to_its_calls(books: Any) -> None:
    first, second = await open_channel(books, BALANCE, "first"), await open_channel(books, BALANCE, "second")
    third = await open_channel(books, 500, "third", total_claimed=500)
    for channel, units in ((first, 100), (first, 200), (second, 70), (second, 30)):
        await buy(books, channel, units)
    await read_chain(books, first, total_claimed=150)
    await books.mark_settled({first.key: 100})
    await read_chain(books, second, 80, withdrawal_amount=10, withdrawal_since_s=1)
    expected = ChannelMoney(
        chain_id=CHAIN,
        token=first.config.token,
        channels=2,
        withdrawing=1,
        unclaimed_units=150 + 80,
        withdrawing_units=80,
        claimed_units=50,
        settled_units=100,
        lost_units=20,
    )
    assert third.facts.balance == third.facts.total_claimed
    assert await books.sum_channels(first.config.receiver) == (expected,)
    assert await books.sum_channels(PAYER) == ()


async def test_the_operator_sees_the_channels_of_all_receivers(books: Any, database: Database) -> None:
    await buy(books, await open_channel(books, BALANCE), 100)
    other = config_of("other", receiver=Address(b"\x77" * 20))
    await books.open_channel(CHAIN, bytes(32), other, facts_of(BALANCE), decimals=6, now_ms=NOW_MS)
    (found,) = await BookFigures(database).sum_channels()
    assert (found.channels, found.unclaimed_units) == (2, 100)
