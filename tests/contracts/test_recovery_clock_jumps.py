"""Jumps of clocks: the database's clock and the clocks of gateways, set by the test."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import Connection

from tests.kit.ledger_records import (
    NOW_MS,
    authorization_of,
    authorized_claim,
    claim_on,
    close_of,
    finish_of,
    new_payment,
    transfer_in,
    wait_finished,
)
from tests.kit.sql_ledger import SqlLedger
from tollway.ledger.ledger import POSTPONED_MS_MAX, Claimed, Closed
from tollway.ledger.records import CallState
from tollway.limits import DEFAULT_LIMITS
from tollway.payments.settlement_recovery import POSTPONE_MAX_MS
from tollway.storage.engine.database import Database, connect_database

pytestmark = pytest.mark.dialects

HOUR = 3_600_000
HOLD_MS = DEFAULT_LIMITS.unknown_hold_s * 1000
LEASE_MS = int(DEFAULT_LIMITS.owner_lease_s * 1000)


class Clocks:
    """The clock of the database, a monotonic clock, and a clock for each gateway."""

    def __init__(self) -> None:
        self.shared = self.ticks = NOW_MS

    def pass_time(self, ms: int) -> None:
        self.shared, self.ticks = self.shared + ms, self.ticks + ms

    def read_shared(self, connection: Connection, now_ms: int) -> int:
        return self.shared


class Gateway:
    def __init__(self, database: Database, clocks: Clocks, owner_id: str, *, skew_ms: int = 0) -> None:
        self.skew_ms, self._clocks = skew_ms, clocks
        self.ledger: Any = SqlLedger(
            database,
            owner_id=owner_id,
            now_ms=self.now_ms,
            shared_clock=clocks.read_shared,
            ticks_ms=lambda: clocks.ticks,
            boot_mark=lambda connection: "one life",
        )

    def now_ms(self) -> int:
        return self._clocks.ticks + self.skew_ms

    async def renew(self) -> None:
        await self.ledger.renew_ownership(now_ms=self.now_ms())

    async def recover(self) -> int:
        await self.renew()
        return int(await self.ledger.recover(now_ms=self.now_ms()))


class Harness:
    """Gateways on one database with one shared clock, also on SQLite."""

    def __init__(self, database: Database, group: asyncio.TaskGroup) -> None:
        self.clocks = Clocks()
        self._database = database
        self._group = group
        self._gateways: list[Gateway] = []

    async def enter(self, owner_id: str, *, skew_ms: int = 0) -> Gateway:
        gateway = Gateway(self._database, self.clocks, owner_id, skew_ms=skew_ms)
        self._gateways.append(gateway)
        self._group.create_task(gateway.ledger.run())
        await gateway.ledger.open()
        return gateway

    def close(self) -> None:
        for gateway in self._gateways:
            gateway.ledger.stop()


@contextlib.asynccontextmanager
async def open_stage(database: Database) -> AsyncIterator[Harness]:
    async with asyncio.TaskGroup() as group:
        harness = Harness(database, group)
        try:
            yield harness
        finally:
            harness.close()


@contextlib.asynccontextmanager
async def open_postgres(url: str) -> AsyncIterator[Database]:
    database = connect_database(url)
    try:
        yield database
    finally:
        await database.close()


async def claim(gateway: Gateway, name: str = "tx") -> Any:
    (payment,) = await gateway.ledger.record_payments([new_payment(10, name)], now_ms=gateway.now_ms())
    wanted = claim_on(payment)
    await gateway.ledger.claim(wanted)
    return wanted


async def hold(gateway: Gateway, name: str = "tx") -> Any:
    wanted = await claim(gateway, name)
    assert isinstance(await gateway.ledger.close(close_of(wanted, CallState.UNKNOWN)), Closed)
    return wanted


async def state_of(gateway: Gateway, wanted: Any) -> CallState:
    return CallState((await gateway.ledger.find_call(wanted.call_id)).state)


@pytest.mark.parametrize("skew_ms", [HOUR, -HOUR])
async def test_a_hold_lasts_as_long_whosoever_clock_is_wrong(database: Database, skew_ms: int) -> None:
    """For the writes and the decisions of the gateway with the wrong clock."""
    async with open_stage(database) as harness:
        clocks = harness.clocks
        right, wrong = await harness.enter("right"), await harness.enter("wrong", skew_ms=skew_ms)
        held = [await hold(right, "one"), await hold(wrong, "two")]
        for _ in range(2):
            right.skew_ms += HOUR
            wrong.skew_ms -= HOUR
            for gateway in (right, wrong):
                clocks.pass_time(HOLD_MS // 4 - 1)
                await gateway.recover()
                assert [await state_of(right, one) for one in held] == [CallState.UNKNOWN] * 2
        clocks.pass_time(4)
        await wrong.recover()
        assert [await state_of(right, one) for one in held] == [CallState.RELEASED] * 2


@pytest.mark.parametrize("skew_ms", [0, HOUR, -HOUR])
async def test_a_call_is_written_in_the_time_of_the_database(database: Database, skew_ms: int) -> None:
    """Its begin, its end and the end of its settlement, with any clock of its gateway."""
    async with open_stage(database) as harness:
        gateway = await harness.enter("one", skew_ms=skew_ms)
        (payment,) = await gateway.ledger.record_payments([new_payment(10)], now_ms=gateway.now_ms())
        paid = claim_on(payment, created_ms=gateway.now_ms())
        settled = authorized_claim(authorization_of(), created_ms=gateway.now_ms())
        for one in (paid, settled):
            assert isinstance(await gateway.ledger.claim(one), Claimed)
        await gateway.ledger.close(close_of(paid))
        await gateway.ledger.settle(close_of(settled, CallState.SETTLING), attempt=None, digest=None)
        harness.clocks.pass_time(40)
        gateway.ledger.finish(finish_of(paid, completed_ms=gateway.now_ms()))
        await gateway.ledger.conclude(
            settled.call_id,
            epoch=1,
            transfer=transfer_in(),
            is_orphaned=False,
            now_ms=gateway.ledger.shared_ms(),
        )
        await wait_finished(gateway.ledger, paid.call_id)
        for one in (paid, settled):
            record = await gateway.ledger.find_call(one.call_id)
            assert (record.created_ms, record.completed_ms) == (NOW_MS, NOW_MS + 40)
        assert record.latency_ms == 12 + 40  # of the head, and of the settlement


@pytest.mark.parametrize("jumps_ms", [(HOUR,), (-HOUR, HOUR), (HOUR, -HOUR, HOUR)])
async def test_a_jump_of_the_database_s_clock_ends_no_hold_early(
    database: Database, jumps_ms: tuple[int, ...]
) -> None:
    async with open_stage(database) as harness:
        clocks, one = harness.clocks, await harness.enter("one")
        before = await hold(one)
        between = []
        for number, jump_ms in enumerate(jumps_ms):
            clocks.shared += jump_ms
            await one.recover()
            between.append(await hold(one, f"between {number}"))
        clocks.pass_time(HOLD_MS - 1)
        await one.recover()
        assert {await state_of(one, held) for held in (before, *between)} == {CallState.UNKNOWN}
        clocks.pass_time(3 * HOUR)
        await one.recover()
        assert {await state_of(one, held) for held in (before, *between)} == {CallState.RELEASED}


@pytest.mark.postgres
async def test_a_gateway_that_stopped_before_the_database_clock_was_set_back_counts_as_stopped(
    postgres_url: str,
) -> None:
    async with open_postgres(postgres_url) as database, open_stage(database) as harness:
        clocks = harness.clocks
        dead, one, two = [await harness.enter(name) for name in ("dead", "one", "two")]
        lost, kept = await claim(dead, "lost"), await claim(two, "kept")
        clocks.shared -= HOUR
        for _ in range(12):
            clocks.pass_time(LEASE_MS // 10)
            assert await state_of(one, lost) is CallState.FORWARDING
            await two.renew()
            await one.renew()
        assert await one.recover() == 1
        assert [await state_of(one, call) for call in (lost, kept)] == [
            CallState.UNKNOWN,
            CallState.FORWARDING,
        ]


def test_no_settlement_is_postponed_for_longer_than_counts() -> None:
    assert POSTPONE_MAX_MS < POSTPONED_MS_MAX < HOUR
