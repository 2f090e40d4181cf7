"""Restore detection: a database that is restored under a running gateway holds every balance; ordinary events are no restore."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from tests.kit.clocks import Clock
from tests.kit.ledger_records import NOW_MS, claim_on, close_of, new_payment, operator_origin, tx_hash
from tests.kit.sql_ledger import SqlLedger
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import Claimed, Unspendable
from tollway.storage.engine.database import Database, SqliteDatabase
from tollway.storage.engine.postgres import PostgresDatabase
from tollway.storage.ledger.recovery import OWNER_KEPT_MS

SEEN = "UPDATE gateway_owner SET seen_ms = seen_ms - 1 WHERE id = 'one'"
ROW = "DELETE FROM gateway_owner WHERE id = 'one'"
CALLS = "DELETE FROM call"
UNTAKEN = "UPDATE payment SET taken_units = 0, calls = 0"


class Harness:
    """One gateway, and a second connection to its database for changes that the gateway does not make."""

    def __init__(self, database: Database, gateway: Any, clock: Clock, restores: list[int]) -> None:
        self.database, self.one, self.clock, self.restores = database, gateway, clock, restores
        self.payment: Any = None

    async def do(self, *statements: str) -> None:
        def work(connection: Connection) -> None:
            for statement in statements:
                connection.execute(text(statement))

        await self.database.write(work)

    async def renew_connections(self) -> None:
        """Closes the connections, as after an outage."""
        if isinstance(self.database, SqliteDatabase):
            await self.database._writer.run(self.database.disconnect_writer)
        else:
            assert isinstance(self.database, PostgresDatabase)
            for engine in (self.database._engine, *self.database._statement_engines.values()):
                await engine.dispose()

    async def pay(self, name: str = "tx") -> Any:
        (payment,) = await self.one.record_payments([new_payment(10, name)], now_ms=NOW_MS)
        return payment

    async def claim(self) -> None:
        self.payment = await self.pay()
        claim = claim_on(self.payment)
        assert isinstance(await self.one.claim(claim), Claimed)
        await self.one.close(close_of(claim))

    async def renew(self) -> None:
        self.clock.ms += 3000
        await self.one.renew_ownership(now_ms=NOW_MS)

    async def is_all_held(self) -> bool:
        report = await self.one.audit()
        return bool(len(report.held_payments) == report.payments > 0)

    async def check(self, *, is_found: bool) -> None:
        assert self.restores == [1] * is_found
        assert await self.is_all_held() is is_found
        recorded = await self.one.find_transaction(tx_hash("any"))
        assert (recorded.held_before_ms is not None) is is_found


@pytest.fixture
def restores() -> list[int]:
    return []


@pytest.fixture
async def harness(database: Database, restores: list[int]) -> AsyncIterator[Harness]:
    clock = Clock(NOW_MS)
    gateway = SqlLedger(
        database,
        owner_id="one",
        now_ms=lambda: NOW_MS,
        shared_clock=clock.read_shared,
        on_restore=lambda: restores.append(1),
    )
    writing = asyncio.get_running_loop().create_task(gateway.run())
    await gateway.open()
    yield Harness(database, gateway, clock, restores)
    gateway.stop()
    await writing


LOST: dict[str, tuple[str, ...]] = {
    "its renewal is an older one": (SEEN,),
    "its claim is gone": (CALLS, UNTAKEN),
    "its claim is gone and its renewal is an older one": (CALLS, UNTAKEN, SEEN),
    "its claim and its renewal are gone": (CALLS, UNTAKEN, ROW),
}


@pytest.mark.parametrize("lost", LOST.values(), ids=LOST.keys())
async def test_a_restored_database_holds_every_balance(harness: Harness, lost: tuple[str, ...]) -> None:
    await harness.claim()
    await harness.renew()
    await harness.do(*lost)
    with capture_logs() as logs:
        await harness.renew()
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["database_went_back"]
    await harness.check(is_found=True)
    assert await harness.one.claim(claim_on(harness.payment)) == Unspendable(is_held=True)


async def test_without_a_claim_the_renewal_alone_detects_a_restore(harness: Harness) -> None:
    await harness.pay()
    await harness.do(ROW)
    await harness.renew()
    await harness.check(is_found=True)


async def test_a_restore_is_detected_once_and_its_release_is_final(harness: Harness) -> None:
    await harness.claim()
    await harness.do(CALLS, UNTAKEN, ROW)
    for _ in range(3):
        await harness.renew()
    await harness.check(is_found=True)
    assert await harness.one.release_held(origin=operator_origin()) == 1
    await harness.renew()
    assert isinstance(await harness.one.claim(claim_on(harness.payment)), Claimed)
    assert harness.restores == [1]


async def test_the_first_claim_on_a_new_connection_detects_a_restore_before_it_takes_units(
    harness: Harness,
) -> None:
    """An open session cannot change its server; a restore or a failover ends all sessions."""
    await harness.claim()
    await harness.do(CALLS, UNTAKEN)
    await harness.renew_connections()
    assert await harness.one.claim(claim_on(harness.payment)) == Unspendable(is_held=True)
    await harness.check(is_found=True)


# ---- No false detections.


async def test_renewals_claims_and_recovery_are_no_restore(harness: Harness) -> None:
    await harness.renew()
    await harness.claim()
    await harness.renew()
    await harness.one.recover(now_ms=NOW_MS)
    await harness.renew()
    await harness.check(is_found=False)


async def test_a_clock_that_was_set_back_is_no_restore(harness: Harness) -> None:
    await harness.claim()
    harness.clock.ms -= 3_600_000
    for _ in range(3):
        await harness.renew()
    await harness.check(is_found=False)


async def test_a_renewal_of_unknown_outcome_is_no_restore(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renewal was written with an earlier time than the last known one, because the clock was set back."""
    await harness.claim()
    write = harness.database.write

    async def write_and_lose(work: Callable[[Connection], Any], **options: Any) -> Any:
        await write(work, **options)
        raise StorageUnavailable

    harness.clock.ms -= 3_600_000
    monkeypatch.setattr(harness.database, "write", write_and_lose)
    with pytest.raises(StorageUnavailable):
        await harness.one.renew_ownership(now_ms=NOW_MS)
    monkeypatch.undo()
    await harness.renew()
    await harness.check(is_found=False)


async def test_a_pruned_row_is_no_restore(harness: Harness) -> None:
    """After a pause of a day. With an existing claim, a missing row is never a restore."""
    await harness.pay()
    harness.clock.ms += OWNER_KEPT_MS
    await harness.do(ROW)
    await harness.renew()
    await harness.check(is_found=False)
    await harness.claim()
    await harness.do(ROW)
    await harness.renew()
    await harness.check(is_found=False)


async def test_concurrent_claims_and_renewals_are_no_restore(harness: Harness) -> None:
    payment = await harness.pay()
    for _ in range(10):
        await harness.renew_connections()
        await asyncio.gather(
            *(harness.one.claim(claim_on(payment, 1)) for _ in range(3)), *(harness.renew() for _ in range(3))
        )
    await harness.check(is_found=False)


async def test_concurrent_detections_record_one_restore(harness: Harness) -> None:
    await harness.claim()
    await harness.do(CALLS, UNTAKEN, SEEN)
    await harness.renew_connections()
    outcomes = await asyncio.gather(
        harness.renew(), harness.one.claim(claim_on(harness.payment)), harness.renew(), harness.renew()
    )
    assert outcomes[1] == Unspendable(is_held=True)
    await harness.check(is_found=True)
    noted = await harness.database.read(lambda c: c.execute(text("SELECT count(*) FROM restore")).scalar())
    assert noted == 1
