"""Ten thousand channels of dust: anyone opens them at the contract for gas of their own. They cost the gateway no transaction, and no work in rounds where nothing happens."""

import tracemalloc
from collections.abc import AsyncIterator
from functools import partial

import pytest
from sqlalchemy import Connection, insert, select

from tests.kit.channel_refunds import DUE, RefundHarness
from tests.kit.databases import open_database
from tests.kit.payer import CHAIN
from tollway.ids import keccak256
from tollway.payments.channel_watch import ChannelWatch
from tollway.storage.engine.database import Database
from tollway.storage.ledger.ledger_tables import channel_table, payment_table

CROWD = 10_000
WATCHED = 300
"""Of the crowd, in the test that reads each of them once."""
DUST = 1
"""What each of them owes."""
BYTES_MAX = 24 * 1024 * 1024


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    async with open_database(sqlite_url) as database:
        yield database


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[RefundHarness]:
    """One channel, which owes what a claim is worth."""
    async with RefundHarness(database).running() as harness:
        await harness.buy(DUE)
        yield harness


def copy_channel(connection: Connection, *, count: int) -> None:
    """Writes the crowd as copies of the one channel, each with an id and a balance of its own."""
    channel = dict(connection.execute(select(channel_table)).mappings().one())
    of_channel = select(payment_table).where(payment_table.c.id == channel["payment_id"])
    payment = dict(connection.execute(of_channel).mappings().one())
    payments, channels = [], []
    for number in range(count):
        channel_id = keccak256(b"a channel of dust %d" % number)
        own = {"id": payment["id"] + 1 + number, "tx_hash": channel_id, "taken_units": DUST}
        payments.append({**payment, **own})
        own = {
            "key": channel["key"] + 1 + number,
            "channel_id": channel_id,
            "payment_id": own["id"],
            "salt": channel_id,
        }
        channels.append({**channel, **own})
    connection.execute(insert(payment_table), payments)
    connection.execute(insert(channel_table), channels)


async def test_dust_is_not_claimed_and_holds_up_no_other_channel(
    harness: RefundHarness, database: Database
) -> None:
    await database.write(partial(copy_channel, count=CROWD))
    harness.chain.requests.clear()
    tracemalloc.start()
    try:
        await harness.claims.run_once()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    (claim,) = await harness.list_open()
    assert [row.total for row in claim.rows] == [DUE]
    assert harness.sent_count == 1
    assert harness.chain.requests["call_contract", CHAIN] == 2  # the claim and the settle of the one channel
    assert peak < BYTES_MAX


async def test_rounds_in_which_nothing_happens_read_no_channel(
    harness: RefundHarness, database: Database
) -> None:
    await database.write(partial(copy_channel, count=WATCHED))
    watch = ChannelWatch(
        ledger=harness.ledger,
        chains=harness.chain,
        networks=harness.networks,
        rules=harness.rules,
        now_ms=harness.read_clock,
    )
    harness.chain.requests.clear()
    await watch.run_once()
    assert harness.chain.requests["fetch_channel", CHAIN] == WATCHED + 1
    harness.chain.bury(CHAIN, 200)  # no event of this test can be replaced any more
    for _ in range(2):  # the second one reads what the events of the first one named
        await watch.run_once()
    harness.chain.requests.clear()
    for _ in range(3):
        harness.chain.requests.clear()
    await watch.run_once()
    assert harness.chain.requests["fetch_channel", CHAIN] == 0
