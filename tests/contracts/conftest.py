"""Databases for the contract suites: a new one for each test, copied from one that was migrated once."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.kit.clocks import Clock
from tests.kit.databases import (
    create_database,
    drop_database,
    open_database,
    write_newer_migrations,
)
from tests.kit.ledger_records import NOW_MS
from tests.kit.ledger_steps import assert_balanced, outlive
from tests.kit.sql_ledger import SqlLedger
from tests.kit.storage_faults import FaultyLedger
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryLedger
from tests.model.stored_responses import MemoryAnswers
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.engine.database import Database
from tollway.storage.engine.encryption import Sealer
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.idempotency import ResponseStore

_NUMBERS = count(1)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, migrated database; the test runs once on each dialect."""
    found: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return found


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """An open, migrated, empty database; the test runs once on each dialect."""
    async with open_database(url) as it:
        yield it


@pytest.fixture
async def postgres_database(postgres_url: str) -> AsyncIterator[Database]:
    """An open, migrated, empty PostgreSQL database, for a test of what SQLite does not have."""
    async with open_database(postgres_url) as it:
        yield it


@pytest.fixture
async def operator(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of the operator, beside those of the gateways."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@pytest.fixture
async def faulty_ledger(database: Database) -> AsyncIterator[FaultyLedger]:
    """The open ledger of a gateway whose writes the test holds or fails; balanced at the end of the test."""
    it = FaultyLedger(database)
    await it.ledger.open()
    yield it
    await it.close()
    await assert_balanced(it.ledger)


@pytest.fixture
async def pair(database: Database) -> AsyncIterator[list[FaultyLedger]]:
    """The ledgers of two gateways over one database; balanced at the end of the test."""
    both = [FaultyLedger(database, "one"), FaultyLedger(database, "two")]
    yield both
    for it in both:
        await it.close()
    await assert_balanced(both[0].ledger)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An open database without tables; the test runs once on each dialect."""
    if request.param == "sqlite":
        async with open_database(f"sqlite:///{tmp_path}/empty.sqlite3") as it:
            yield it
        return
    server: str = request.getfixturevalue("postgres_server")
    name = f"empty_{next(_NUMBERS)}"
    async with open_database(await create_database(server, name, template=None)) as it:
        yield it
    await drop_database(server, name)


@pytest.fixture
def newer(tmp_path: Path) -> Callable[[str], Path]:
    """Makes the migrations of a later release with the given floor."""
    written: dict[str, Path] = {}

    def write(floor: str) -> Path:
        if floor not in written:
            written[floor] = write_newer_migrations(tmp_path, floor=floor)
        return written[floor]

    return write


@pytest.fixture(name="open_database")
def open_by_url() -> Callable[[str], contextlib.AbstractAsyncContextManager[Database]]:
    return open_database


class Ledgers:
    """The ledgers of one test, one for each gateway: in memory, in SQLite or in PostgreSQL."""

    def __init__(self, database: Database | None, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self._first: MemoryLedger | None = None
        self._shared = Clock(clock.ms)
        self._stores: dict[str, tuple[SqlLedger, asyncio.Task[None]]] = {}

    async def gateway(self, owner_id: str, **options: Any) -> Any:
        """The ledger of a running gateway of that name."""
        if self.database is None:
            options.pop("boot_mark", None)
            if self._first is None:
                self._first = MemoryLedger(now_ms=self.clock, owner_id=owner_id, **options)
            ledger = self._first if not self._stores_of_memory(owner_id) else self._first.another(owner_id)
            await ledger.renew_ownership(now_ms=self.clock())
            return ledger
        options.setdefault("shared_clock", lambda connection, now_ms: self._shared.ms)
        store = SqlLedger(self.database, owner_id=owner_id, now_ms=self.clock, **options)
        self._stores[owner_id] = store, asyncio.get_running_loop().create_task(store.run())
        await store.open()
        return store

    async def set_clocks(self, now_ms: int, *ledgers: Any) -> None:
        """Sets the time of the database and of every gateway; each gateway renews."""
        self.clock.ms = self._shared.ms = now_ms
        for ledger in ledgers:
            await ledger.renew_ownership(now_ms=now_ms)

    def gas(self) -> Any:
        """The nonces and costs of the gas keys, for any gateway."""
        return GasStore(self.database) if self.database is not None else MemoryGas(self._memory.rows)

    def answers(self, **limits: Any) -> Any:
        """The stored responses, for any gateway, encrypted with the key of the operator."""
        kept = replace(DEFAULT_LIMITS, **limits)
        if self.database is None:
            return MemoryAnswers(self._memory.rows, limits=kept)
        return ResponseStore(self.database, sealer=Sealer(b"\x07" * 32, entropy=os.urandom), limits=kept)

    @property
    def _memory(self) -> MemoryLedger:
        if self._first is None:
            self._first = MemoryLedger(now_ms=self.clock, owner_id="one")
        return self._first

    def _stores_of_memory(self, owner_id: str) -> bool:
        assert self._first is not None
        return self._first._owner_id != owner_id

    async def bury(self, owner_id: str) -> None:
        """Makes a gateway count as stopped for all others."""
        if self.database is None:
            assert self._first is not None
            self._first._rows.seen_ms.pop(owner_id)
        else:
            living = [store for name, (store, _) in self._stores.items() if name != owner_id]
            await outlive(self._shared, *living)

    async def close(self) -> None:
        for store, task in self._stores.values():
            store.stop()
            await task


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def ledgers(request: pytest.FixtureRequest) -> AsyncIterator[Ledgers]:
    """Empty ledgers; the test runs once on each kind."""
    clock = Clock(NOW_MS)
    if request.param == "memory":
        yield Ledgers(None, clock)
        return
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    async with open_database(url) as database:
        it = Ledgers(database, clock)
        try:
            yield it
        finally:
            await it.close()


@pytest.fixture
async def ledger(ledgers: Ledgers) -> Any:
    """The ledger of a single gateway."""
    return await ledgers.gateway("one")
