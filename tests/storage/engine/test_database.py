"""The SQLite database: one writer, read-only readers, translated errors, file rights."""

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from structlog.testing import capture_logs

from tests.kit.file_modes import UMASKS, read_modes, umask
from tests.kit.narrowing import existing
from tollway.errors import StorageUnavailable
from tollway.ids import Address, TxHash
from tollway.ledger.records import CallState
from tollway.storage.engine.database import (
    CACHE_KIB,
    READER_NICENESS,
    READERS,
    ProcessLock,
    SqliteDatabase,
    connect_database,
    is_retryable,
)


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    it = SqliteDatabase(tmp_path / "a.sqlite3")
    await it.open()
    await it.write(lambda c: c.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")))
    yield it
    await it.close()


def add(number: int, *, fails: bool = False) -> object:
    def work(connection: Connection) -> None:
        connection.execute(text("INSERT INTO t VALUES (:n)"), {"n": number})
        if fails:
            raise RuntimeError("stop")

    return work


async def numbers(database: SqliteDatabase) -> list[int]:
    return await database.read(lambda c: list(c.execute(text("SELECT n FROM t ORDER BY n")).scalars()))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
async def test_threads_that_read_take_the_processor_after_the_others(database: SqliteDatabase) -> None:
    def read_niceness(connection: Connection) -> int:
        return os.nice(0)

    least_urgent = 19
    assert await database.read(read_niceness) == min(os.nice(0) + READER_NICENESS, least_urgent)
    assert await database.write(read_niceness) == os.nice(0)


async def test_a_system_that_forbids_another_priority_reads_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(_increment: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "nice", forbid)
    database = SqliteDatabase(tmp_path / "b.sqlite3")
    await database.open()
    assert await database.read(lambda connection: connection.execute(text("SELECT 1")).scalar()) == 1
    await database.close()


class Opaque(bytes):
    """A subclass of bytes without an adapter."""


@pytest.mark.parametrize(
    ("value", "kind", "literal"),
    [
        (b"", "blob", "x''"),
        (b"a\0\xff", "blob", "x'6100ff'"),
        (Address(bytes(range(20))), "blob", f"x'{bytes(range(20)).hex()}'"),
        (TxHash(bytes(range(32))), "blob", f"x'{bytes(range(32)).hex()}'"),
        (Opaque(b"a"), "blob", "x'61'"),
        (bytearray(b"a"), "blob", "x'61'"),
        (memoryview(b"a"), "blob", "x'61'"),
        ("a", "text", "'a'"),
        (None, "null", "NULL"),
        (True, "integer", "1"),
        (False, "integer", "0"),
        (CallState.CONSUMED, "text", "'consumed'"),
    ],
)
async def test_a_bound_value_equals_its_literal(
    database: SqliteDatabase, value: object, kind: str, literal: str
) -> None:
    """Bytes equal a BLOB and no TEXT of the same bytes; the result has the types of SQLite."""
    compare = f"SELECT typeof(?), ? IS {literal}, ? IS CAST({literal} AS TEXT), ?"

    def work(connection: Connection) -> object:
        return tuple(connection.exec_driver_sql(compare, (value,) * 4).one())

    for run in (database.read, database.write):
        found_kind, is_equal, is_equal_text, found = await run(work)  # type: ignore[misc]  # of one row
        assert (found_kind, is_equal, is_equal_text) == (kind, 1, kind != "blob")
        expected = bytes(value) if kind == "blob" else value
        assert found == expected
        assert type(found) in (bytes, str, int, type(None))


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://host/name"])
def test_refuses_an_unsupported_url(url: str) -> None:
    with pytest.raises(ValueError, match=r"SQLite needs a file|not supported"):
        connect_database(url)


async def test_the_writer_keeps_its_connection_until_a_transaction_fails(database: SqliteDatabase) -> None:
    used: list[Connection] = []
    for _ in range(2):
        await database.write(used.append)
    for fails in (True, False):
        with contextlib.suppress(RuntimeError):
            await database.write(add(1, fails=fails))
    await database.write(used.append)
    assert (used[0] is used[1], used[1] is used[2]) == (True, False)
    assert used[1].closed
    assert await numbers(database) == [1]


async def test_concurrent_writes_are_all_committed(database: SqliteDatabase) -> None:
    await asyncio.gather(*(database.write(add(n), flush=n % 2 == 0) for n in range(50)))
    assert await numbers(database) == list(range(50))


async def test_a_reader_cannot_write(database: SqliteDatabase) -> None:
    with pytest.raises(StorageUnavailable):
        await database.read(add(1))
    assert await numbers(database) == []


async def test_the_page_caches_of_all_connections_are_bounded(database: SqliteDatabase) -> None:
    """In KiB, as a negative number. SQLite keeps the pages until the connection is closed."""
    remembered = text("PRAGMA cache_size")
    kept = [await run(lambda c: c.scalar(remembered)) for run in (database.read, database.write)]
    assert kept == [-CACHE_KIB, -CACHE_KIB]
    assert (READERS + 1) * CACHE_KIB <= 64 * 1024


async def test_other_errors_become_storage_unavailable(database: SqliteDatabase) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        await database.read(lambda c: c.execute(text("SELECT * FROM nowhere")))
    assert not is_retryable(caught.value)


@pytest.mark.parametrize("url", ["postgresql://user@127.0.0.1:1/x", "postgresql:///x?host=/nowhere"])
async def test_a_missing_server_is_storage_unavailable(url: str) -> None:
    database = connect_database(url)
    with pytest.raises(StorageUnavailable):
        await database.open()
    await database.close()


@pytest.mark.parametrize(
    ("pragma", "undo", "cause"),
    [
        ("query_only=1", "query_only=0", "read_only"),
        ("max_page_count=1", "max_page_count=1000000", "disk_full"),
    ],
)
async def test_a_full_or_read_only_file_is_logged_once_and_works_again_later(
    database: SqliteDatabase, pragma: str, undo: str, cause: str
) -> None:
    def change(connection: Connection) -> None:
        connection.execute(text("INSERT INTO t SELECT max(n) + 1 FROM t"))
        connection.execute(text("CREATE TABLE large AS SELECT zeroblob(100000) AS n"))

    await database.write(add(0))
    await set_pragma(database, pragma)
    with capture_logs() as lines:
        for flush in (True, False, True):
            with pytest.raises(StorageUnavailable):
                await database.write(change, flush=flush)
        assert await numbers(database) == [0]
        await set_pragma(database, undo)
        await database.write(change)
    assert await numbers(database) == [0, 1]
    assert [(line["event"], line["cause"]) for line in lines] == [
        ("storage_away", cause),
        ("storage_back", cause),
    ]


async def set_pragma(database: SqliteDatabase, pragma: str) -> None:
    """Sets a pragma of the writer's connection outside a transaction: a read-only connection cannot begin one."""

    def change() -> None:
        driver = existing(database.connect_writer().connection.driver_connection)
        driver.execute(f"PRAGMA {pragma}").close()

    await database._writer.run(change)


UNPRIVILEGED_USER = 65_534


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Takes the rights of root away for a moment, because root may write to read-only files."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(UNPRIVILEGED_USER)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o666, 0o555), (0o444, 0o555)])
async def test_a_file_without_write_permission_is_storage_unavailable_until_it_is_opened_again(
    file_mode: int, folder_mode: int
) -> None:
    """SQLite checks the rights of a file when it opens it."""
    # Unlike `tmp_path`, this folder is open to every user.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.sqlite3"
        owner = SqliteDatabase(path)
        await owner.open()
        await owner.write(lambda c: c.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")))
        await owner.close()
        os.chmod(path, file_mode)
        os.chmod(folder, folder_mode)
        raised: list[type[Exception]] = []
        with unprivileged():
            other = SqliteDatabase(path)
            for number in (1, 2):
                try:
                    await other.write(add(number))
                except Exception as exc:
                    raised.append(type(exc))
            await other.close()
        # SQLite gives -wal and -shm the rights of the database.
        for file in Path(folder).iterdir():
            os.chmod(file, 0o666)
        os.chmod(folder, 0o777)
        with unprivileged():
            other = SqliteDatabase(path)
            await other.open()
            await other.write(add(3))
            found = await numbers(other)
            await other.close()
        assert (raised, found) == ([StorageUnavailable, StorageUnavailable], [3])


@pytest.mark.parametrize("mask", [*UMASKS, 0o002])
@pytest.mark.parametrize("before", [None, 0o644, 0o664], ids=["new", "readable by all", "of a group"])
async def test_only_the_owner_can_read_a_database_and_its_auxiliary_files(
    tmp_path: Path, before: int | None, mask: int
) -> None:
    path = tmp_path / "a.sqlite3"
    if before is not None:
        for name in ("a.sqlite3", "a.sqlite3-wal", "a.sqlite3-shm"):
            (tmp_path / name).touch()
            (tmp_path / name).chmod(before)
    with umask(mask):
        database = SqliteDatabase(path)
        await database.open()
        await database.write(lambda c: c.execute(text("CREATE TABLE t (n INTEGER PRIMARY KEY)")))
        assert read_modes(tmp_path) == dict.fromkeys(("a.sqlite3", "a.sqlite3-wal", "a.sqlite3-shm"), 0o600)
        await database.close()
    assert set(read_modes(tmp_path).values()) == {0o600}


async def test_only_one_process_holds_the_lock(tmp_path: Path) -> None:
    first, second = ProcessLock(tmp_path / "lock"), ProcessLock(tmp_path / "lock")
    assert first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    second.release()


def test_the_location_contains_no_secret() -> None:
    assert "secret" not in connect_database("postgresql://me:secret@db.example/x").describe_location()
