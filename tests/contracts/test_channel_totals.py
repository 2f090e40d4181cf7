"""The sums over channels: unclaimed money by network, token, authorizer and state, withdrawals in sight, and what the chain is compared with."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from sqlalchemy import select

from tests.contracts.test_channel_claim_store import ENDED_MS, add, claim_of, row_of
from tests.kit.databases import open_database
from tests.kit.ledger_channels import TOKEN, facts_of, owe_on
from tests.kit.ledger_records import CHAIN, NOW_MS, PROVIDER
from tests.kit.storage_faults import FaultyLedger
from tests.kit.waits import until
from tollway.errors import StorageUnavailable
from tollway.ids import Address, ChainId
from tollway.ledger.channels import ChannelState
from tollway.storage.engine import postgres
from tollway.storage.engine.database import Database
from tollway.storage.ledger.channel_claim_store import ChannelClaimStore
from tollway.storage.ledger.channel_totals import ChannelTotalsStore
from tollway.storage.ledger.ledger_tables import channel_table
from tollway.storage.operator.operator_reads import BookFigures

OTHER = Address(b"\x0f" * 20)


@pytest.fixture
def ledger(faulty_ledger: FaultyLedger) -> Any:
    return faulty_ledger.ledger


@pytest.fixture
def totals(database: Database) -> ChannelTotalsStore:
    return ChannelTotalsStore(database)


async def renew(ledger: Any, channel: Any, **facts: Any) -> None:
    given = {"balance": channel.balance_units, "block_number": channel.facts.block_number + 1, **facts}
    await ledger.renew_channel(channel.key, facts_of(**given), now_ms=NOW_MS)


async def test_an_empty_ledger_has_no_sums(totals: ChannelTotalsStore) -> None:
    assert await totals.list_totals() == ()
    assert await totals.list_withdrawals(limit=9) == ()
    assert await totals.find_unclaimed_since_ms() == {}
    assert await totals.count_unclaimed(CHAIN, TOKEN, units_min=0, authorizers=[PROVIDER]) == (0, 0)
    assert await totals.list_claimed(CHAIN, after_key=0, limit=9) == ()
    assert await totals.find_called_ms(PROVIDER) is None


async def test_the_sums_are_by_authorizer_and_state(ledger: Any, totals: ChannelTotalsStore) -> None:
    await owe_on(ledger, 100, "first")
    await owe_on(ledger, 70, "second")
    await owe_on(ledger, 0, "without a call")
    await owe_on(ledger, 0, "empty", balance=0)
    withdrawn = await owe_on(ledger, 30, "withdrawn")
    await renew(ledger, withdrawn, withdrawal_amount=5, withdrawal_since_s=7)
    await owe_on(ledger, 9, "of another key", receiver_authorizer=OTHER)
    found = {
        (one.authorizer, one.state): (
            one.channels,
            one.held,
            one.unclaimed_channels,
            one.unclaimed_units,
            one.unclaimed_units_max,
        )
        for one in await totals.list_totals()
        if (one.chain_id, one.token) == (CHAIN, TOKEN)
    }
    assert found == {
        (PROVIDER, ChannelState.OPEN): (4, 3, 2, 170, 100),
        (PROVIDER, ChannelState.WITHDRAWING): (1, 1, 1, 30, 30),
        (OTHER, ChannelState.OPEN): (1, 1, 1, 9, 9),
    }


async def test_what_the_chain_has_claimed_is_not_unclaimed(ledger: Any, totals: ChannelTotalsStore) -> None:
    channel = await owe_on(ledger, 100)
    await renew(ledger, channel, total_claimed=60)
    (total,) = await totals.list_totals()
    assert (total.unclaimed_channels, total.unclaimed_units) == (1, 40)
    await renew(ledger, channel, total_claimed=100, block_number=channel.facts.block_number + 2)
    (total,) = await totals.list_totals()
    assert (total.held, total.unclaimed_channels, total.unclaimed_units) == (1, 0, 0)


async def test_the_withdrawals_in_sight_are_listed_the_oldest_first(
    ledger: Any, totals: ChannelTotalsStore
) -> None:
    for name, units, since_s in (("young", 5, 20), ("old", 8, 10), ("without debt", 0, 30)):
        channel = await owe_on(ledger, units, name)
        await renew(ledger, channel, withdrawal_amount=1, withdrawal_since_s=since_s)
    found = await totals.list_withdrawals(limit=2)
    assert [(one.since_s, one.unclaimed_units, one.delay_s) for one in found] == [(10, 8, 900), (20, 5, 900)]
    assert len(await totals.list_withdrawals(limit=9)) == 3


async def test_the_oldest_unclaimed_call_is_the_first_after_the_last_claim_that_counted(
    ledger: Any, totals: ChannelTotalsStore
) -> None:
    channel = await owe_on(ledger, 100)
    called_ms = await totals.find_called_ms(PROVIDER)
    assert called_ms is not None
    assert await totals.find_unclaimed_since_ms() == {CHAIN: called_ms}
    failed = await add(ledger, claim_of(row_of(channel), created_ms=called_ms + 5))
    await ledger.close_claim(failed.id, now_ms=ENDED_MS)
    assert await totals.find_unclaimed_since_ms() == {CHAIN: called_ms}
    await renew(ledger, channel, total_claimed=100)
    assert await totals.find_unclaimed_since_ms() == {}


async def test_a_claim_counts_channels_with_its_gas_and_their_receivers(
    ledger: Any, totals: ChannelTotalsStore
) -> None:
    await owe_on(ledger, 100, "first")
    await owe_on(ledger, 70, "second")
    await owe_on(ledger, 70, "other receiver", receiver=OTHER)
    await owe_on(ledger, 69, "less than its gas")
    await owe_on(ledger, 100, "of another key", receiver_authorizer=OTHER)

    async def count(
        units_min: int, *authorizers: Address, chain_id: ChainId = CHAIN, token: Address = TOKEN
    ) -> tuple[int, int]:
        return await totals.count_unclaimed(chain_id, token, units_min=units_min, authorizers=authorizers)

    assert await count(70, PROVIDER) == (3, 2)
    assert await count(0, PROVIDER) == (4, 2)
    assert await count(0, PROVIDER, OTHER) == (5, 2)
    assert await count(0) == (0, 0)
    assert await count(0, PROVIDER, token=OTHER) == (0, 0)
    assert await count(0, PROVIDER, chain_id=ChainId(1)) == (0, 0)


async def test_the_claimed_sums_come_in_pages_with_the_claim_under_way(
    ledger: Any, totals: ChannelTotalsStore
) -> None:
    first, second = await owe_on(ledger, 100, "first"), await owe_on(ledger, 70, "second")
    claim = await add(ledger, claim_of(row_of(second, 70)))
    page = await totals.list_claimed(CHAIN, after_key=0, limit=1)
    assert [(one.key, one.total_claimed, one.open_total) for one in page] == [(first.key, 0, None)]
    page = await totals.list_claimed(CHAIN, after_key=first.key, limit=1)
    assert [(one.channel_id, one.open_total) for one in page] == [(second.id, 70)]
    await ledger.close_claim(claim.id, now_ms=ENDED_MS)
    (one,) = await totals.list_claimed(CHAIN, after_key=first.key, limit=1)
    assert one.open_total is None
    assert await totals.list_claimed(ChainId(1), after_key=0, limit=9) == ()


WHOLE_READS: list[tuple[str, Callable[[Database], Awaitable[Any]]]] = [
    ("list_totals", lambda database: ChannelTotalsStore(database).list_totals()),
    ("list_withdrawals", lambda database: ChannelTotalsStore(database).list_withdrawals(limit=9)),
    ("find_unclaimed_since_ms", lambda database: ChannelTotalsStore(database).find_unclaimed_since_ms()),
    ("find_called_ms", lambda database: ChannelTotalsStore(database).find_called_ms(PROVIDER)),
    (
        "count_unclaimed",
        lambda database: ChannelTotalsStore(database).count_unclaimed(
            CHAIN, TOKEN, units_min=0, authorizers=[PROVIDER]
        ),
    ),
    (
        "list_claimable",
        lambda database: ChannelClaimStore(database).list_claimable(CHAIN, unclaimed_max=5, limit=9),
    ),
    ("list_unsettled", lambda database: ChannelClaimStore(database).list_unsettled(CHAIN)),
    (
        "list_unused",
        lambda database: ChannelClaimStore(database).list_unused(CHAIN, before_ms=NOW_MS, limit=9),
    ),
    ("sum_channels", lambda database: BookFigures(database).sum_channels()),
]


@pytest.mark.postgres
async def test_reads_of_every_channel_outlast_the_deadline_of_a_request(
    postgres_url: str, operator: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lock holds them all, and then a read with that deadline, which fails while they wait."""
    monkeypatch.setattr(postgres, "COMMAND_TIMEOUT_S", 2.0)
    ended: list[str] = []

    async def run(name: str, read: Callable[[Database], Awaitable[Any]]) -> None:
        await read(database)
        ended.append(name)

    async def all_wait() -> bool:
        waiting = await operator.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(waiting == len(WHOLE_READS))

    async with open_database(postgres_url) as database, asyncio.TaskGroup() as group, operator.transaction():
        await operator.execute("LOCK TABLE channel")
        for name, read in WHOLE_READS:
            group.create_task(run(name, read))
        await until(all_wait)
        with pytest.raises(StorageUnavailable):
            await database.read(lambda connection: connection.execute(select(channel_table.c.key)))
        assert ended == []
    assert sorted(ended) == sorted(name for name, _ in WHOLE_READS)
