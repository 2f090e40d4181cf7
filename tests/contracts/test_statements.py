"""Prepared statements read, write, fail and roll back as SQLAlchemy's own statements do, on both databases."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import bindparam, delete, event, insert, select, text, tuple_, update
from sqlalchemy.exc import IntegrityError

from tests.kit.waits import DEADLINE_S, until
from tollway.errors import StorageUnavailable
from tollway.storage.engine.database import Database
from tollway.storage.engine.statements import Prepared, Within, execute_text
from tollway.storage.ledger.ledger_tables import owner_table

pytestmark = pytest.mark.dialects

OWNERS = owner_table.c
ADD = Prepared(insert(owner_table).values({name: bindparam(name) for name in OWNERS.keys()}))  # noqa: SIM118
FIND = Prepared(select(OWNERS.id).where(Within(OWNERS.id, "ids")).order_by(OWNERS.id))
FIND_SEEN = Prepared(
    select(OWNERS.id, OWNERS.seen_ms).where(
        Within(OWNERS.id, "ids"), OWNERS.seen_ms >= bindparam("since_ms"), Within(OWNERS.seen_ms, "times")
    )
)
RENEW = Prepared(
    update(owner_table).where(OWNERS.id == bindparam("at_id")).values(seen_ms=bindparam("seen_ms"))
)


def owner(name: str, seen_ms: int = 1) -> dict[str, Any]:
    return {"id": name, "started_ms": 0, "seen_ms": seen_ms, "boot_mark": "mark"}


async def found(database: Database, *names: str) -> list[str]:
    rows = await database.read(lambda connection: FIND.fetch(connection, ids=list(names)))
    return [row[0] for row in rows]


async def test_a_list_of_any_length_finds_what_is_in_it_and_nothing_else(database: Database) -> None:
    names = [f"owner {number:03}" for number in range(300)]
    rows = [owner(name) for name in (*names, *(f"other {number:03}" for number in range(5)))]
    await database.write(lambda connection: ADD.run(connection, rows))
    for size in (1, 2, 3, 4, 5, 63, 64, 65, 300):
        assert await found(database, *names[:size]) == names[:size]
        assert await found(database, "nobody", *names[size - 1 : size]) == names[size - 1 : size]


async def test_lists_and_values_of_one_statement_each_find_their_place(database: Database) -> None:
    rows = [owner(f"owner {number}", seen_ms=number) for number in range(10)]
    await database.write(lambda connection: ADD.run(connection, rows))
    ids = [f"owner {number}" for number in range(7)]
    for times, since_ms, expected in (([3, 4, 9], 0, [3, 4]), ([5], 0, [5]), ([1, 2, 3, 4, 5], 4, [4, 5])):
        asked = {"ids": ids, "times": times, "since_ms": since_ms}
        seen = await database.read(lambda connection, asked=asked: FIND_SEEN.fetch(connection, **asked))
        assert sorted(row[1] for row in seen) == expected


async def test_a_list_of_pairs_is_written_out_pair_by_pair(sqlite_url: str, open_database: Any) -> None:
    pairs = Prepared(
        select(OWNERS.id).where(tuple_(OWNERS.id, OWNERS.seen_ms).in_(bindparam("pairs", expanding=True)))
    )
    async with open_database(sqlite_url) as database:
        rows = [owner(f"owner {number}", seen_ms=number) for number in range(5)]
        await database.write(lambda connection: ADD.run(connection, rows))
        asked = [("owner 1", 1), ("owner 2", 1), ("owner 3", 3)]
        seen = await database.read(lambda connection: pairs.fetch(connection, pairs=asked))
    assert sorted(row[0] for row in seen) == ["owner 1", "owner 3"]


async def test_there_are_a_few_texts_for_all_lengths_and_no_value_is_in_them(database: Database) -> None:
    statement = Prepared(select(OWNERS.id).where(Within(OWNERS.id, "ids")))
    nasty = "'); DROP TABLE gateway_owner; -- ? :ids $1"
    await database.write(lambda connection: ADD.run(connection, [owner(nasty)]))
    for size in range(1, 101):
        asked = [nasty, *("nobody" for _ in range(size - 1))]
        rows = await database.read(lambda connection, asked=asked: statement.fetch(connection, ids=asked))
        assert [row[0] for row in rows] == [nasty]
    texts = [one.sql for one in statement._texts.values()]
    assert len(texts) == (1 if database.dialect == "postgresql" else 8)
    assert not any("DROP" in sql for sql in texts)


async def test_what_is_too_long_for_its_column_is_not_found_under_its_beginning(database: Database) -> None:
    name = "n" * 64
    await database.write(lambda connection: ADD.run(connection, [owner(name)]))
    assert await found(database, name + "x") == []


async def test_one_row_and_many_are_changed_and_counted_as_far_as_the_driver_counts(
    database: Database,
) -> None:
    rows = [owner(f"owner {number}") for number in range(3)]
    await database.write(lambda connection: ADD.run(connection, rows))
    one = [{"at_id": "owner 1", "seen_ms": 5}]
    missed = [{"at_id": "nobody", "seen_ms": 5}]
    many = [{"at_id": f"owner {number}", "seen_ms": 6} for number in range(3)]
    assert await database.write(lambda connection: RENEW.run(connection, one)) == 1
    assert await database.write(lambda connection: RENEW.run(connection, missed)) == 0
    assert await database.write(lambda connection: RENEW.run(connection, many)) in (3, -1)
    seen = text("SELECT count(*) FROM gateway_owner WHERE seen_ms = 6")
    assert await database.read(lambda connection: connection.execute(seen).scalar()) == 3


async def test_it_is_undone_with_its_transaction_also_as_its_first_statement(database: Database) -> None:
    def work(connection: Any) -> None:
        ADD.run(connection, [owner("gone")])
        raise IndexError

    with pytest.raises(IndexError):
        await database.write(work)
    assert await found(database, "gone") == []


@pytest.mark.parametrize("names", [["twin"], ["other", "twin"]])
async def test_a_duplicate_is_an_integrity_error_and_leaves_nothing(
    database: Database, names: list[str]
) -> None:
    await database.write(lambda connection: ADD.run(connection, [owner("twin")]))
    rows = [owner(name) for name in names]
    with pytest.raises(IntegrityError):
        await database.write(lambda connection: ADD.run(connection, rows))
    assert await found(database, *names) == ["twin"]


async def test_a_missing_table_is_storage_unavailable(empty_database: Database) -> None:
    with pytest.raises(StorageUnavailable):
        await found(empty_database, "anybody")
    assert await empty_database.read(lambda connection: connection.execute(text("SELECT 1")).scalar()) == 1


@pytest.mark.postgres
async def test_a_caller_that_leaves_during_a_statement_does_not_affect_the_next(
    postgres_database: Database,
) -> None:
    slow = Prepared(text("SELECT pg_sleep(:seconds)"))

    def work(connection: Any) -> None:
        ADD.run(connection, [owner("left")])
        slow.fetch(connection, seconds=60.0)

    asleep = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
    task = asyncio.get_running_loop().create_task(postgres_database.write(work))
    await until(lambda: postgres_database.read(lambda connection: connection.execute(asleep).scalar()))
    async with asyncio.timeout(DEADLINE_S):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await postgres_database.write(lambda connection: ADD.run(connection, [owner("stayed")]))
    assert await found(postgres_database, "left", "stayed") == ["stayed"]


@pytest.mark.postgres
async def test_a_column_type_changed_by_another_process_fails_one_statement_only(
    postgres_url: str, open_database: Any
) -> None:
    """Migrations only add; but after a manual change of a type no gateway may keep a plan that fails."""
    async with open_database(postgres_url) as database, open_database(postgres_url) as others:
        await database.write(lambda connection: ADD.run(connection, [owner("one")]))
        asked = [found(database, "one") for _ in range(4)]  # on several connections
        assert await asyncio.gather(*asked) == [["one"]] * 4
        alter = text("ALTER TABLE gateway_owner ALTER COLUMN id TYPE text")
        await others.write(lambda connection: connection.execute(alter))
        with pytest.raises(StorageUnavailable):
            await found(database, "one")
        for _ in range(3):
            assert await asyncio.gather(*(found(database, "one") for _ in range(4))) == [["one"]] * 4


async def test_event_listeners_get_prepared_statements_with_equal_results(database: Any) -> None:
    heard: list[str] = []
    engines = [
        getattr(one, "sync_engine", one)
        for name in ("_write_engine", "_read_engine", "_engine")
        if (one := getattr(database, name, None)) is not None
    ]
    for engine in engines:
        event.listen(engine, "before_cursor_execute", lambda _c, _u, sql, *_: heard.append(sql))

    def work(connection: Any) -> list[int]:
        execute_text(connection, "SELECT 1" if database.dialect == "sqlite" else "SET LOCAL jit = off")
        rows = [owner("one"), owner("two")]
        return [ADD.run(connection, rows), RENEW.run(connection, [{"at_id": "one", "seen_ms": 2}])]

    added, renewed = await database.write(work)
    assert (added in (2, -1), renewed) == (True, 1)
    assert await found(database, "one", "two", "three") == ["one", "two"]
    assert [sql.split()[0] for sql in heard if "gateway_owner" in sql] == ["INSERT", "UPDATE", "SELECT"]
    await database.write(lambda connection: connection.execute(delete(owner_table)))
