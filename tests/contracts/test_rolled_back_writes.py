"""A write that the database rolled back, for a deadlock or as not serialisable, runs again; a write of unknown outcome never does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from tests.contracts.test_call_terms import SqlState
from tests.kit.catalogs import NOW_MS, numbered_listing, open_catalog
from tests.kit.ledger_records import CHAIN, GAS_KEY, PROVIDER, claim_on
from tests.kit.sql_ledger import SqlLedger
from tests.kit.stores import make_sealer
from tollway.errors import StorageUnavailable
from tollway.ledger.ledger import StoredResponse
from tollway.registry.catalog import KeyedCreation
from tollway.storage.catalog.creation_store import CreationStore
from tollway.storage.engine.database import Database, is_retryable
from tollway.storage.ledger.gas_store import GasStore
from tollway.storage.ledger.idempotency import ResponseStore
from tollway.storage.operator.operator_writes import SqlAdminSessions


class RolledBack:
    """A database that rolls each transaction back at its end, the first time, and raises an error of that state."""

    def __init__(self, database: Database, state: str) -> None:
        self._database, self._state = database, state
        self.dialect = database.dialect
        self.tries = 0

    async def read(self, work: Any, **options: Any) -> Any:
        return await self._database.read(work, **options)

    async def write(self, work: Any, **options: Any) -> Any:
        self.tries += 1
        if self.tries % 2 == 0:
            return await self._database.write(work, **options)

        def run(connection: Connection) -> None:
            work(connection)
            raise _Stopped

        with pytest.raises(_Stopped):
            await self._database.write(run, **options)
        raise StorageUnavailable from DBAPIError("", None, SqlState(self._state))


class _Stopped(Exception):
    pass


async def publish(database: Any) -> None:
    await open_catalog(database).publish(numbered_listing())


async def revise(database: Any) -> None:
    listing = numbered_listing()
    await open_catalog(database._database).publish(listing)
    await open_catalog(database).revise(listing, expected_revision=1)


async def begin_creation(database: Any) -> None:
    asked = KeyedCreation(wallet=PROVIDER, key="k", fingerprint=b"a" * 32)
    await CreationStore(database, now_ms=lambda: NOW_MS).begin(asked, claim=b"c" * 16)


async def raise_nonce(database: Any) -> None:
    assert await GasStore(database).raise_nonce(CHAIN, GAS_KEY, 7) == 7


async def lower_nonce(database: Any) -> None:
    assert await GasStore(database).lower_nonce(CHAIN, GAS_KEY, 0) == 0


async def spend_code(database: Any) -> None:
    await SqlAdminSessions(database._database).put_code(b"c" * 32, actor="alice", expires_ms=NOW_MS + 1)
    sessions = SqlAdminSessions(database)
    assert await sessions.spend_code(b"c" * 32, token_hash=b"t" * 32, now_ms=NOW_MS, expires_ms=NOW_MS + 9)


async def keep_response(database: Any) -> None:
    claim = claim_on(None, payer=PROVIDER)
    ledger = SqlLedger(database._database, owner_id="one", now_ms=lambda: NOW_MS)
    writing = asyncio.get_running_loop().create_task(ledger.run())
    await ledger.claim(claim)
    ledger.stop()
    await writing
    kept, of = StoredResponse(status=200, headers=(), body=b"{}"), {"payer": PROVIDER, "provider": PROVIDER}
    assert await ResponseStore(database, sealer=make_sealer()).keep(claim.call_id, kept, now_ms=NOW_MS, **of)


WRITES: tuple[Callable[[Any], Awaitable[None]], ...] = (
    publish,
    revise,
    begin_creation,
    raise_nonce,
    lower_nonce,
    spend_code,
    keep_response,
)


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_runs_again_after_a_rollback(database: Database, state: str) -> None:
    for write in WRITES:
        behind = RolledBack(database, state)
        await write(behind)
        assert behind.tries == 2, write


@pytest.mark.parametrize("state", ["40003", "08006", "57P01"])
async def test_never_runs_again_where_it_may_be_committed(database: Database, state: str) -> None:
    for write in WRITES:
        behind = RolledBack(database, state)
        with pytest.raises(StorageUnavailable) as caught:
            await write(behind)
        assert not is_retryable(caught.value)
        assert behind.tries == 1, write
