"""Outages of PostgreSQL: sessions end, a primary becomes read-only, a commit does not wait for its standby. A commit in doubt is not
reported as durable, and a connection is not used after an outage.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import asyncpg
import pytest
from sqlalchemy import Connection, text

from tests.kit.waits import DEADLINE_S, until
from tollway.errors import StorageUnavailable
from tollway.storage.engine import postgres
from tollway.storage.engine.postgres import (
    COMMAND_TIMEOUT_S,
    PostgresConnector,
    PostgresDatabase,
)
from tollway.storage.engine.postgres_address import PostgresAddress
from tollway.storage.operator.operator_reads import read_server_settings

pytestmark = [pytest.mark.postgres, pytest.mark.dialects]


class InterruptedConnection(asyncpg.Connection):
    """A connection on which the server cancels the next statement that begins with `victim`."""

    victim: str | None = None

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        if self.victim is not None and query.startswith(self.victim):
            self.victim = None
            query = "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)"
        return await super().execute(query, *args, **options)


@pytest.fixture
def opened() -> list[InterruptedConnection]:
    """Every connection that `database` has opened."""
    return []


@pytest.fixture
async def database(postgres_url: str, opened: list[InterruptedConnection]) -> AsyncIterator[PostgresDatabase]:
    async def connect(**options: Any) -> InterruptedConnection:
        opened.append(await asyncpg.connect(**options, connection_class=InterruptedConnection))
        return opened[-1]

    it = PostgresDatabase(postgres_url)
    it.connector = PostgresConnector(PostgresAddress.parse(postgres_url), connect=connect)
    await it.write(run("CREATE TABLE t (n bigint PRIMARY KEY)"))
    yield it
    await it.close()


def run(*statements: str) -> Any:
    def work(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement))

    return work


async def numbers(database: PostgresDatabase) -> list[int]:
    return await database.read(lambda c: list(c.execute(text("SELECT n FROM t ORDER BY n")).scalars()))


async def end_sessions(operator: Any) -> None:
    """Ends all sessions of the database but the operator's."""
    others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    await operator.execute(f"SELECT pg_terminate_backend(pid) {others}")
    await until(lambda: operator.fetchval(f"SELECT count(*) = 0 {others}"))


async def test_sessions_that_ended_while_idle_cause_no_failure(
    database: PostgresDatabase, opened: list[InterruptedConnection], operator: Any
) -> None:
    await asyncio.gather(*(database.write(run(f"INSERT INTO t VALUES ({n})")) for n in range(5)))
    await end_sessions(operator)
    await until(lambda: all(one.is_closed() for one in opened))
    assert await numbers(database) == list(range(5))
    await database.write(run("INSERT INTO t VALUES (5)"))
    assert await numbers(database) == list(range(6))


async def test_a_session_that_ends_under_a_write_makes_it_unknown_and_the_next_one_works(
    database: PostgresDatabase, operator: Any
) -> None:
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(refused(database, "INSERT INTO t VALUES (1)", "SELECT pg_sleep(30)"))
        await wait_for(operator, "wait_event = 'PgSleep'")
        await end_sessions(operator)
        await writing
    await database.write(run("INSERT INTO t VALUES (2)"))
    assert await numbers(database) == [2]


async def refused(database: PostgresDatabase, *statements: str) -> StorageUnavailable:
    with pytest.raises(StorageUnavailable) as caught:
        await database.write(run(*statements))
    return caught.value


async def test_a_cancelled_read_leaves_no_connection_with_its_statement(
    database: PostgresDatabase, opened: list[InterruptedConnection], operator: Any
) -> None:
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(database.read(run("SELECT pg_sleep(60)")))
        await wait_for(operator, "wait_event = 'PgSleep'")
        (busy,) = (one for one in opened if not one.is_closed())
        reading.cancel()
    assert (reading.cancelled(), busy.is_closed()) == (True, True)
    assert await numbers(database) == []


async def test_a_connection_to_a_read_only_server_is_discarded(database: PostgresDatabase) -> None:
    await database.write(run("SET SESSION default_transaction_read_only = on"))
    await refused(database, "INSERT INTO t VALUES (1)")
    await database.write(run("INSERT INTO t VALUES (2)"))
    assert await numbers(database) == [2]


@pytest.mark.parametrize(
    ("job", "victim"),
    [
        ("read", "BEGIN"),
        ("read", "ROLLBACK"),
        ("write", "BEGIN"),
        ("write", "COMMIT"),
        ("failed write", "ROLLBACK"),
    ],
)
async def test_a_connection_whose_transaction_did_not_begin_or_not_end_is_not_used_again(
    database: PostgresDatabase, opened: list[InterruptedConnection], job: str, victim: str
) -> None:
    select = run("SELECT 1")
    jobs = {
        "read": partial(database.read, select),
        "write": partial(database.write, select),
        "failed write": partial(database.write, run("SELECT 1 FROM missing")),
    }
    opened[0].victim = victim
    with pytest.raises(StorageUnavailable):
        await jobs[job]()
    assert opened[0].victim is None
    await database.read(select)
    await database.write(select)
    assert [one.is_closed() for one in opened] == [True, False]


async def test_an_operators_default_does_not_choose_our_isolation(postgres_url: str, operator: Any) -> None:
    """A look-up after a wait for a lock must see the commit of the transaction that held it."""
    name = await operator.fetchval("SELECT current_database()")
    await operator.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")
    database = PostgresDatabase(postgres_url)
    try:
        question = text("SELECT current_setting('transaction_isolation')")
        assert await database.write(lambda c: c.execute(question).scalar_one()) == "read committed"
    finally:
        await database.close()


async def test_a_read_that_would_write_is_a_defect_and_not_an_outage(database: PostgresDatabase) -> None:
    with pytest.raises(StorageUnavailable):
        await database.read(run("INSERT INTO t VALUES (1)"))
    assert await numbers(database) == []


@pytest.fixture
async def lonely(operator: Any, postgres_url: str) -> AsyncIterator[None]:
    """A database whose durable commits wait for a missing standby."""
    await operator.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    await reload(operator, "nobody")
    await wait_until_commits_wait(operator, postgres_url)
    try:
        yield
    finally:
        await operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
        await reload(operator, "")


async def reload(operator: Any, expected: str) -> None:
    await operator.execute("SET synchronous_commit = local")
    await operator.execute("SELECT pg_reload_conf()")
    shown = "SELECT current_setting('synchronous_standby_names') = $1"
    await until(lambda: operator.fetchval(shown, expected))


async def wait_until_commits_wait(operator: Any, postgres_url: str) -> None:
    """A session waits in its commit after the checkpointer has read the setting too, possibly later than the session
    of `operator`."""
    session = await asyncpg.connect(postgres_url)
    try:
        process, is_waiting = session.get_server_pid(), False
        while not is_waiting:
            async with asyncio.TaskGroup() as group:
                commit = group.create_task(
                    session.execute("SELECT pg_logical_emit_message(true, 'test', '')")
                )
                while not (is_waiting or commit.done()):
                    is_waiting = await operator.fetchval(
                        "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1", process
                    )
                if is_waiting:
                    await operator.execute("SELECT pg_cancel_backend($1)", process)
    finally:
        await session.close()


async def wait_for(operator: Any, condition: str) -> int:
    """The process id of the gateway session that meets this condition."""
    question = f"SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND {condition}"
    async with asyncio.timeout(DEADLINE_S):
        while (found := await operator.fetchval(question)) is None:
            await asyncio.sleep(0.01)
    return int(found)


async def cancel_wait(operator: Any) -> None:
    """PostgreSQL then reports "committed", but only the primary has the commit."""
    process = await wait_for(operator, "wait_event = 'SyncRep'")
    await operator.execute("SELECT pg_cancel_backend($1)", process)


async def test_a_commit_that_did_not_wait_for_the_standby_counts_as_unknown(
    database: PostgresDatabase, operator: Any, lonely: None
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(cancel_wait(operator))
        failure = await refused(database, "INSERT INTO t VALUES (1)")
    assert "without its standby" in str(failure.__cause__)
    assert await numbers(database) == [1]  # the row is visible, but it may be lost


async def test_a_row_found_after_an_unknown_commit_counts_only_when_it_is_durable(
    database: PostgresDatabase, operator: Any, lonely: None
) -> None:
    """A batch with an interrupted commit is written again and finds its claims: they could be lost with the primary,
    and their payments be spent again."""
    for statement in ("INSERT INTO t VALUES (1)", "SELECT n FROM t", "SELECT n FROM t"):
        async with asyncio.TaskGroup() as group:
            group.create_task(cancel_wait(operator))
            await refused(database, statement)
    await operator.execute("ALTER SYSTEM RESET synchronous_standby_names")
    await reload(operator, "")
    await database.write(run("SELECT n FROM t"))


async def test_without_doubt_nothing_more_is_written(database: PostgresDatabase) -> None:
    def has_written(connection: Connection) -> bool:
        return connection.execute(text("SELECT pg_current_xact_id_if_assigned()::text")).scalar() is not None

    assert not await database.write(has_written)
    await refused(
        database,
        "SET SESSION default_transaction_read_only = on",
        "SELECT pg_terminate_backend(pg_backend_pid())",
    )
    assert await database.write(has_written)
    assert not await database.write(has_written)


async def test_reads_the_server_settings_that_can_lose_commits(database: PostgresDatabase) -> None:
    found = await read_server_settings(database)
    assert (found.fsync, found.full_page_writes) == (False, True)  # the server of the tests
    assert (found.standbys, found.is_read_only, found.hosts) == ("", False, 1)


async def test_writes_that_wait_for_a_paused_gateways_transaction_continue(
    database: PostgresDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session of the paused gateway ends before the others give up on its lock."""
    assert postgres.IDLE_S < COMMAND_TIMEOUT_S * postgres.LOCK_SHARE
    monkeypatch.setitem(postgres._SESSION, "idle_in_transaction_session_timeout", f"{postgres.IDLE_S}s")
    await database.write(run("INSERT INTO t VALUES (1)"))
    still = await database.connector.connect_writable(statement_deadline_s=COMMAND_TIMEOUT_S)
    await still.execute(
        "BEGIN; UPDATE t SET n = n + 1"
    )  # at once: a pause between both would end the session
    await database.write(run("UPDATE t SET n = n + 10"))
    assert await numbers(database) == [11]
    # The third is what asyncpg raises while the end of the session is still being read.
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        await still.execute("COMMIT")
