"""Counts the work of a gateway in this process: its database statements, its requests to the chain node, its
signature recoveries. Loaded by `conftest.py`.

The work is counted where it leaves the process, not where the code reports it: by SQLite's trace, the bytes to
PostgreSQL, the requests to the node. So every way of a statement counts.
"""

import asyncio
import contextlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import coincurve
from aiohttp import web

from tests.kit.gateway_process import poll
from tests.kit.node_proxy import NodeProxy
from tollway.storage.engine import database as database_module

_SSL_REQUEST = 80877103
_FRAME = re.compile(r"BEGIN|COMMIT|ROLLBACK|PRAGMA|SET LOCAL|SET TRANSACTION")
BY_THE_CLOCK = re.compile(
    r"wallet_block|listing_vector|audit_entry|schema_floor|alembic_version|UPDATE gateway_owner|INTO gateway_owner|readiness|generation"
    r"|FROM sales_|known\.provider|anon_\d\.moved_ms|FROM (?:audit_run|backup_run|page_session|viewer)\b|sqlite_master"
    r"|call_total|webhook_(?:endpoint(?!(?: AS)? w\b)|message|delivery)|SELECT webhook_event|pg_try_advisory|pg_postmaster|pg_is_in_recovery|pg_locks|FROM listing JOIN listing_ownership"
)
"""Of what a gateway does now and then by itself. The tests' settings have it do so as seldom as they can."""
BY_THE_CONNECTION = re.compile(
    r"pg_catalog|transaction isolation level|to_regclass|set_config|current_schema|standard_conforming|AS is_claimed",
    re.I,
)
"""Once for each connection, or each type on it: the driver's questions, and whether the database has gone back in time."""


@dataclass(slots=True, kw_only=True)
class Transaction:
    """As the database saw it. A row of a statement for many rows is an execution of its own."""

    statements: list[str] = field(default_factory=list)
    is_flushed: bool = True
    is_committed: bool = False
    round_trips: int = 0

    @property
    def is_by_the_clock(self) -> bool:
        return any(BY_THE_CLOCK.search(sql) for sql in self.statements)

    @property
    def is_empty(self) -> bool:
        return not self.statements


class _Session:
    """One connection's statements, in order, cut into transactions."""

    def __init__(self, counter: "WorkCounter") -> None:
        self._counter = counter
        self.is_flushing = True
        self._open: Transaction | None = None

    def note(self, sql: str) -> None:
        if BY_THE_CONNECTION.search(sql):
            return
        if not _FRAME.match(sql):
            open_one = self._open
            if open_one is None:  # on its own: a transaction by itself
                alone = Transaction(
                    statements=[sql], is_flushed=self.is_flushing, is_committed=True, round_trips=1
                )
                self._counter.end(alone)
            else:
                open_one.statements.append(sql)
        elif sql.startswith("BEGIN"):
            self._open = Transaction(is_flushed=self.is_flushing)
            self._counter.open += 1
        elif sql.startswith("PRAGMA synchronous"):
            self.is_flushing = sql.endswith("FULL")
        elif sql.startswith("SET LOCAL synchronous_commit = off") and self._open is not None:
            self._open.is_flushed = False
        elif sql.startswith(("COMMIT", "ROLLBACK")) and self._open is not None:
            self._open.is_committed = sql.startswith("COMMIT")
            self._counter.open -= 1
            self._counter.end(self._open)
            self._open = None

    def end(self) -> None:
        """The connection is closed, and its open transaction with it."""
        if self._open is not None:
            self._open = None
            self._counter.open -= 1

    def note_round_trip(self) -> None:
        if self._open is not None:
            self._open.round_trips += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work between two moments. `flushed`: durable commits; `written`: commits that the next durable one flushes;
    `read`: read-only transactions. `round_trips`: to PostgreSQL; SQLite has none."""

    flushed: int
    written: int
    read: int
    statements: int
    rpc_requests: int
    rpc_methods: "Counter[str]"
    recoveries: int
    round_trips: int
    transactions: tuple[Transaction, ...]

    @property
    def commits(self) -> int:
        return self.flushed + self.written

    def count(self, pattern: str) -> int:
        """Statements of that pattern."""
        return sum(bool(re.search(pattern, sql, re.S)) for one in self.transactions for sql in one.statements)

    @property
    def told(self) -> str:
        """For a failed assertion: what the database saw."""
        return "\n".join(
            f"{'read' if _is_read(one) else 'flushed' if one.is_flushed else 'written'}, {one.round_trips} trips\n  "
            + "\n  ".join(" ".join(sql.split())[:160] for sql in one.statements)
            for one in self.transactions
        )


class WorkCounter:
    """One for all gateways of this process."""

    def __init__(self) -> None:
        self.ended: list[Transaction] = []
        self.open = 0
        self.rpc_requests = 0
        self.rpc_methods: Counter[str] = Counter()
        self.recoveries = 0

    def end(self, transaction: Transaction) -> None:
        self.ended.append(transaction)

    @contextlib.contextmanager
    def counting(self) -> Iterator["Span"]:
        """What happens inside, and until `take`."""
        yield Span(self)


class Span:
    def __init__(self, counter: WorkCounter) -> None:
        self._counter = counter
        self._first = len(counter.ended)
        self._rpc = counter.rpc_requests
        self._methods = Counter(counter.rpc_methods)
        self._recoveries = counter.recoveries

    def take(self) -> Work:
        counter = self._counter
        done = [one for one in counter.ended[self._first :] if not (one.is_empty or one.is_by_the_clock)]
        commits = [one for one in done if one.is_committed and not _is_read(one)]
        return Work(
            flushed=sum(one.is_flushed for one in commits),
            written=sum(not one.is_flushed for one in commits),
            read=sum(_is_read(one) for one in done),
            statements=sum(len(one.statements) for one in done),
            rpc_requests=counter.rpc_requests - self._rpc,
            rpc_methods=counter.rpc_methods - self._methods,
            recoveries=counter.recoveries - self._recoveries,
            round_trips=sum(one.round_trips for one in done),
            transactions=tuple(done),
        )


_WRITES = re.compile(r"\b(INSERT INTO|UPDATE [a-z]|DELETE FROM) ?")


def _is_read(transaction: Transaction) -> bool:
    return not any(_is_write(sql) for sql in transaction.statements)


def _is_write(sql: str) -> bool:
    """A statement that begins with WITH may write in its parts."""
    start = sql.lstrip()
    return bool(_WRITES.search(sql)) if start.startswith("WITH") else not start.startswith("SELECT")


# ---- Where it is counted.


@contextlib.contextmanager
def count_sqlite(counter: WorkCounter) -> Iterator[None]:
    """Connections to SQLite that are made inside are traced, for as long as they live."""
    module: Any = vars(database_module)["sqlite_module"]
    connect = module.connect

    def connect_traced(*args: Any, **options: Any) -> Any:
        connection = connect(*args, **options)
        connection.set_trace_callback(_Session(counter).note)
        return connection

    module.connect = connect_traced
    try:
        yield
    finally:
        module.connect = connect


@contextlib.contextmanager
def count_recoveries(counter: WorkCounter) -> Iterator[None]:
    """Counts calls of the curve's own function, below every cache of the gateway."""
    recover = coincurve.PublicKey.from_signature_and_message

    def recover_counted(*args: Any, **options: Any) -> Any:
        counter.recoveries += 1
        return recover(*args, **options)

    setattr(coincurve.PublicKey, "from_signature_and_message", staticmethod(recover_counted))  # noqa: B010
    try:
        yield
    finally:
        setattr(coincurve.PublicKey, "from_signature_and_message", staticmethod(recover))  # noqa: B010


class CountedNodeProxy(NodeProxy):
    """The line to the node, counted. It answers a request for a receipt once the chain has mined the transaction, so that one look of a call finds it:
    how often a call would look is the chain's and the clock's."""

    def __init__(self, session: Any, rpc_url: str, counter: WorkCounter) -> None:
        super().__init__(session, rpc_url)
        self._counter = counter

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self._counter.rpc_requests += 1
        self._counter.rpc_methods.update(call["method"] for call in _list(await request.read()))
        return await super().handle(request)

    async def _forward(self, body: bytes) -> tuple[int, bytes]:
        receipts = [call for call in _list(body) if call["method"] == "eth_getTransactionReceipt"]

        async def is_mined() -> bool:
            _, answers = await super(CountedNodeProxy, self)._forward(json.dumps(receipts).encode())
            return all(one["result"] for one in _list(answers))

        if receipts:
            await poll(is_mined, what="the block of a transaction")
        return await super()._forward(body)


def _list(body: bytes) -> list[dict[str, Any]]:
    parsed = json.loads(body)
    return parsed if isinstance(parsed, list) else [parsed]


@contextlib.asynccontextmanager
async def count_rpc(session: Any, rpc_url: str, counter: WorkCounter) -> AsyncIterator[str]:
    """The URL of a line to that node."""
    line = CountedNodeProxy(session, rpc_url, counter)
    runner = web.ServerRunner(web.Server(line.handle, access_log=None), handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def count_postgres(url: str, counter: WorkCounter) -> AsyncIterator[str]:
    """The URL of a line to that database, which must be at a socket in a folder."""
    parts = urlsplit(url)
    folder = parse_qs(parts.query)["host"][0]
    running = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal running
        running += 1
        session = _Session(counter)
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.5432")
            await asyncio.gather(
                _pipe(reader, server_writer, _Wire(session)), _pipe(server_reader, writer, None)
            )
        finally:
            session.end()
            running -= 1

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}{parts.path}"
    finally:
        server.close()
        await poll(lambda: running == 0, what="the end of the lines to PostgreSQL")


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: "_Wire | None") -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            if wire is not None:
                wire.feed(chunk)
            writer.write(chunk)
            await writer.drain()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


class _Wire:
    """What a client says to PostgreSQL (frontend messages, protocol 3): which statements it runs, and how often it waits."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._rest = bytearray()
        self._is_started = False
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}

    def feed(self, chunk: bytes) -> None:
        self._rest += chunk
        while True:
            head = 0 if not self._is_started else 1
            if len(self._rest) < head + 4:
                return
            length = int.from_bytes(self._rest[head : head + 4], "big")
            if len(self._rest) < head + length:
                return
            kind, body = bytes(self._rest[:head]), bytes(self._rest[head + 4 : head + length])
            del self._rest[: head + length]
            if head:
                self._hear(kind, body)
            else:
                self._is_started = int.from_bytes(body[:4], "big") != _SSL_REQUEST
                if b"synchronous_commit\0off\0" in body:
                    self._session.is_flushing = False

    def _hear(self, kind: bytes, body: bytes) -> None:
        if kind == b"Q":
            self._session.note_round_trip()
            for sql in body.rstrip(b"\0").decode().split(";"):
                if sql.strip():
                    self._session.note(sql.strip())
        elif kind == b"P":
            name, query, *_ = body.split(b"\0", 2)
            self._statements[name] = query.decode()
        elif kind == b"B":
            portal, statement, *_ = body.split(b"\0", 2)
            self._portals[portal] = self._statements.get(statement, "?")
        elif kind == b"E":
            self._session.note(self._portals[body.partition(b"\0")[0]].strip())
        elif kind == b"S":
            self._session.note_round_trip()
