"""What an operator reads, in SQL: open calls and held payments, the figures of the fleet for metrics, the sizes of the large tables, the release of each
gateway, the settings of a PostgreSQL server.

Counts and ages come from partial indexes, the statistics of the server or a bounded number of rows, so that their cost does not grow with the history.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    Column,
    Connection,
    Select,
    String,
    Table,
    Text,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    text,
)

from tollway.ids import Address, ChainId, TxHash
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.records import CallRecord
from tollway.limits import Limits
from tollway.observability.fleet import (
    BookSizes,
    EncryptedValues,
    GatewayBuild,
    GatewayRecord,
    HeldPayment,
    TableSize,
)
from tollway.observability.telemetry import FleetFigures
from tollway.storage.engine.database import Database, metadata, write_retried
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.statements import insert_for
from tollway.storage.ledger.call_records import parse_call, select_records
from tollway.storage.ledger.channel_money import sum_channels
from tollway.storage.ledger.closed_periods import count_hours_behind
from tollway.storage.ledger.ledger_tables import (
    HELD,
    attempt_table,
    audit_run_table,
    authorization_table,
    backup_run_table,
    call_table,
    call_terms_table,
    owner_table,
    payment_table,
    topup_table,
)
from tollway.storage.ledger.response_pool import stored_response_table
from tollway.storage.operator.key_rotation import KeyCounts, KeyRotation, SealCount
from tollway.storage.operator.operator_writes import IS_RESTORED, audit_entry_table
from tollway.storage.webhooks.webhook_tables import (
    NEW,
    PENDING,
    delivery_table,
    endpoint_table,
    event_table,
    message_table,
)
from tollway.webhooks.endpoints import DeliveryState

if TYPE_CHECKING:
    from tollway.storage.engine.postgres import PostgresDatabase


OPEN_CALLS_MAX = 100
"""Open calls of each state that a page lists, the oldest first."""
COUNT_MAX = 10_000
STALE_INTERVAL_S = 300.0
"""Between two counts of encrypted values: each opens every secret once."""
RESPONSES_MAX = 200
OPEN_STATES = ("forwarding", "settling", "unknown")
HELD_SHOWN = 50
COUNTED_MAX = 10_000
"""The rows that are counted in a table without an estimate."""
GATEWAYS_MAX = 50
"""Gateways that are read, the last renewal first. The row of a lease is kept for a day."""

_ROW = 1


class OpenCallStore:
    def __init__(self, database: Database, *, limits: Limits) -> None:
        self._database = database
        self._unknown_hold_ms = limits.unknown_hold_s * 1000

    async def list_open(self, state: str) -> tuple[CallRecord, ...]:
        """The oldest call comes first; at most `OPEN_CALLS_MAX` calls."""
        # Literal, so that the partial indexes are used.
        condition = {"settling": "state = 'settling'", "unknown": "state = 'unknown'"}[state]
        oldest = (
            select(call_table)
            .where(text(condition))
            .order_by(call_table.c.moved_ms)
            .limit(OPEN_CALLS_MAX)
            .subquery()
        )
        query = select_records(oldest).order_by(oldest.c.moved_ms)
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return tuple(parse_call(row, unknown_hold_ms=self._unknown_hold_ms) for row in rows)

    async def count_held_payments(self) -> int:
        """Counts to 10,000."""

        def work(connection: Connection) -> int:
            held = select_held(connection, payment_table.c.id).limit(10_000).subquery()
            return int(connection.scalar(select(func.count()).select_from(held)) or 0)

        return await self._database.read(work)

    async def find_last_audit(self) -> tuple[int, int] | None:
        """The end of the last audit of any gateway or command, and the number of its differences."""
        columns = audit_run_table.c
        query = select(columns.ended_ms, columns.differences)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else (row.ended_ms, row.differences)


class FleetFiguresStore:
    """`has_other_keys`: whether the settings have more than one secret key; with one key nothing can be stale. `clock`: monotonic seconds."""

    def __init__(
        self,
        database: Database,
        *,
        sealer: Sealer,
        has_other_keys: bool,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._rotation = KeyRotation(database, sealer=sealer)
        self._has_other_keys = has_other_keys
        self._now_ms = now_ms
        self._clock = clock
        self._counts = KeyCounts()
        self._counts_due_s = float("-inf")

    async def read(self) -> FleetFigures:
        stale = (await self._count_keys()).older if self._has_other_keys else 0
        now_ms = self._now_ms()
        return await self._database.read(
            lambda connection: read_figures(connection, now_ms=now_ms, secrets_stale=stale)
        )

    async def count_encrypted_values(self) -> tuple[EncryptedValues, ...]:
        """The counts by key are at most `STALE_INTERVAL_S` old."""
        counts = await self._count_keys()
        return (
            _describe_values("secrets", counts.secrets, is_whole=True),
            _describe_values("responses", counts.responses, is_whole=counts.responses.total < RESPONSES_MAX),
        )

    async def _count_keys(self) -> KeyCounts:
        if self._clock() >= self._counts_due_s:
            self._counts = await self._rotation.count(responses_max=RESPONSES_MAX)
            self._counts_due_s = self._clock() + STALE_INTERVAL_S
        return self._counts


def _describe_values(kind: str, count: SealCount, *, is_whole: bool) -> EncryptedValues:
    return EncryptedValues(
        kind=kind, current=count.current, older=count.older, lost=count.lost, is_whole=is_whole
    )


def read_figures(connection: Connection, *, now_ms: int, secrets_stale: int) -> FleetFigures:
    open_calls = {}
    for state in OPEN_STATES:
        count = connection.execute(count_open(state)).scalar_one()
        oldest_ms = connection.execute(find_oldest(state)).scalar_one()
        open_calls[state] = (count, 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000)
    audit, backup = (
        connection.execute(select(table)).one_or_none() for table in (audit_run_table, backup_run_table)
    )
    return FleetFigures(
        open_calls=open_calls,
        audit_s=None if audit is None else audit.ended_ms / 1000,
        audit_differences=None if audit is None else audit.differences,
        backup_s=None if backup is None else backup.ended_ms / 1000,
        secrets_stale=secrets_stale,
        sales_hours_behind=count_hours_behind(connection, now_ms=now_ms),
        webhook_events=count_events(connection),
    )


def count_open(state: str, *, count_max: int = COUNT_MAX) -> Select[int]:
    """The predicate is literal, as in the index."""
    rows = select(call_table.c.moved_ms).where(text(f"state = '{state}'")).limit(count_max)
    return select(func.count()).select_from(rows.subquery())


def find_oldest(state: str) -> Select[int | None]:
    """When the oldest call of a state moved into it. It reads the partial index of the state, whole where that is not in this order: an alert depends on the
    oldest call, however many there are."""
    return select(func.min(call_table.c.moved_ms)).where(text(f"state = '{state}'"))


def count_events(connection: Connection) -> dict[str, int]:
    """Counts the events of webhooks to `COUNT_MAX` in each state. An event that no gateway has copied to its endpoints yet is pending."""
    new = select(event_table.c.number).where(text(NEW)).limit(COUNT_MAX)
    pending = select(delivery_table.c.event_no).where(text(PENDING)).limit(COUNT_MAX)
    endpoints = select(endpoint_table.c.number)
    dead = select(delivery_table.c.event_no).where(
        delivery_table.c.endpoint_no.in_(endpoints), delivery_table.c.state == DeliveryState.DEAD.value
    )
    counts = [
        connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one()
        for rows in (new, pending, dead.limit(COUNT_MAX))
    ]
    return {"pending": min(counts[0] + counts[1], COUNT_MAX), "dead": counts[2]}


async def record_audit(database: Database, *, differences: int, now_ms: int) -> None:
    values = {"ended_ms": now_ms, "differences": differences}
    await write_retried(database, partial(_record, table=audit_run_table, values=values))


async def record_backup(database: Database, *, now_ms: int) -> None:
    await write_retried(database, partial(_record, table=backup_run_table, values={"ended_ms": now_ms}))


def _record(connection: Connection, *, table: Table, values: dict[str, int]) -> None:
    statement = insert_for(connection, table).values(id=_ROW, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))


_OLDEST: Mapping[Table, tuple[Column[Any], Column[Any]] | None] = {
    call_table: (call_table.c.id, call_table.c.created_ms),
    payment_table: (payment_table.c.id, payment_table.c.recorded_ms),
    stored_response_table: (stored_response_table.c.created_ms, stored_response_table.c.created_ms),
    audit_entry_table: (audit_entry_table.c.id, audit_entry_table.c.at_ms),
    event_table: (event_table.c.number, event_table.c.at_ms),
    topup_table: None,
    call_terms_table: None,
    authorization_table: None,
    attempt_table: None,
    delivery_table: None,
    message_table: None,
}
"""Tables that grow with calls -> the indexed column that orders their rows by age, and the time of a row. None: no index orders them by age."""


class BookFigures:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_sizes(self) -> BookSizes:
        return await self._database.read(_read_sizes)

    async def list_held(self) -> tuple[HeldPayment, ...]:
        """Held payments in the order in which they were recorded, at most `HELD_SHOWN`."""
        return await self._database.read(read_held)

    async def sum_channels(self) -> tuple[ChannelMoney, ...]:
        """Of all receivers."""
        return await self._database.read(partial(sum_channels, receiver=None), is_long=True)


def select_held(connection: Connection, *columns: Column[Any]) -> Select[Any]:
    """Selects held payments. Without an open restore those that nodes dispute, which have an index: without it a ledger without held payments would be read whole."""
    is_restored = bool(connection.scalar(select(IS_RESTORED)))
    return select(*columns).where(payment_table.c.is_held if is_restored else text(HELD))


def read_held(connection: Connection) -> tuple[HeldPayment, ...]:
    columns = payment_table.c
    # Not by id alone: for that order SQLite would read all payments.
    query = select_held(connection, *columns).order_by(columns.recorded_ms, columns.id).limit(HELD_SHOWN)
    return tuple(
        HeldPayment(
            chain_id=ChainId(row.chain_id),
            tx_hash=TxHash(row.tx_hash),
            asset=row.asset,
            payer=Address(row.payer),
            payee=Address(row.payee),
            units=row.value_units - row.taken_units,
            recorded_ms=row.recorded_ms,
        )
        for row in connection.execute(query)
    )


def _read_sizes(connection: Connection) -> BookSizes:
    tables = list(_OLDEST)
    is_postgres = connection.dialect.name == "postgresql"
    counts = _read_postgres(connection, tables) if is_postgres else _read_sqlite(connection, tables)
    sizes = [
        TableSize(
            name=table.name,
            rows=counts[table.name][0],
            size_bytes=counts[table.name][1],
            oldest_ms=_find_oldest(connection, table),
        )
        for table in tables
    ]
    sizes.sort(key=lambda size: (size.size_bytes or 0, size.rows or 0), reverse=True)
    whole = _POSTGRES_SIZE if is_postgres else _SQLITE_SIZE
    return BookSizes(tables=tuple(sizes), size_bytes=int(connection.execute(whole).scalar_one()))


def _find_oldest(connection: Connection, table: Table) -> int | None:
    columns = _OLDEST[table]
    if columns is None:
        return None
    order, time_ms = columns
    return connection.scalar(select(time_ms).order_by(order).limit(1))


Counts = dict[str, tuple[int | None, int | None]]


def _read_postgres(connection: Connection, tables: list[Table]) -> Counts:
    rows = connection.execute(_POSTGRES_TABLES, {"names": [table.name for table in tables]})
    found = {row.name: (int(row.estimate), row.size) for row in rows}
    # The estimate is -1 until the first ANALYZE or VACUUM of the table.
    return {
        table.name: (estimate if estimate > 0 else _count_some(connection, table), size)
        for table in tables
        if table.name in found
        for estimate, size in (found[table.name],)
    }


def _read_sqlite(connection: Connection, tables: list[Table]) -> Counts:
    def count(table: Table) -> int | None:
        if table is call_terms_table:  # its key is a hash, and no number of a row
            return _count_some(connection, table)
        # The names are those of this module. Old rows of a table may be pruned: the lowest numbers are free.
        ends = (f'(SELECT {end}(rowid) FROM "{table.name}")' for end in ("max", "min"))  # noqa: S608
        return int(connection.scalar(text(f"SELECT {' - '.join(ends)} + 1")) or 0)

    return {table.name: (count(table), None) for table in tables}


def _count_some(connection: Connection, table: Table) -> int | None:
    """Returns None for a table of more than `COUNTED_MAX` rows."""
    some = select(literal_column("1")).select_from(table).limit(COUNTED_MAX + 1).subquery()
    rows = connection.scalar(select(func.count()).select_from(some)) or 0
    return rows if rows <= COUNTED_MAX else None


_POSTGRES_TABLES = text(
    "SELECT relname AS name, reltuples AS estimate, pg_total_relation_size(oid) AS size FROM pg_class "
    "WHERE oid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:names AS text[])) AS name)"
).bindparams(bindparam("names"))
_POSTGRES_SIZE = text("SELECT pg_database_size(current_database())")
_SQLITE_SIZE = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")


gateway_build_table = Table(
    "gateway_build",
    metadata,
    Column("owner_id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("schema_revision", Text, nullable=False),
)


class GatewayBuildStore:
    def __init__(
        self, database: Database, *, owner_id: str, lease_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._database = database
        self._owner_id = owner_id
        self._lease_ms = lease_ms
        self._now_ms = now_ms

    async def record(self, build: GatewayBuild) -> None:
        """Also deletes the rows of gateways without a lease."""
        values = {"name": build.name, "version": build.version, "schema_revision": build.schema}

        def work(connection: Connection) -> None:
            statement = insert_for(connection, gateway_build_table).values(owner_id=self._owner_id, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["owner_id"], set_=values))
            owner_id = gateway_build_table.c.owner_id
            gone = owner_id.not_in(select(owner_table.c.id)) & (owner_id != self._owner_id)
            connection.execute(delete(gateway_build_table).where(gone))

        await write_retried(self._database, work)

    async def list_gateways(self) -> tuple[GatewayRecord, ...]:
        """The last renewal comes first; at most `GATEWAYS_MAX` gateways."""
        owners, builds = owner_table.c, gateway_build_table.c
        query = (
            select(
                owners.id, owners.started_ms, owners.seen_ms, *builds["name", "version", "schema_revision"]
            )
            .join_from(owner_table, gateway_build_table, builds.owner_id == owners.id, isouter=True)
            .order_by(owners.seen_ms.desc(), owners.id)
            .limit(GATEWAYS_MAX)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        alive_ms = self._now_ms() - self._lease_ms
        return tuple(
            GatewayRecord(
                owner_id=row.id,
                build=_parse_build(row),
                started_ms=row.started_ms,
                seen_ms=row.seen_ms,
                is_alive=row.seen_ms > alive_ms,
            )
            for row in rows
        )


def _parse_build(row: Any) -> GatewayBuild | None:
    if row.version is None:
        return None
    return GatewayBuild(name=row.name, version=row.version, schema=row.schema_revision)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of the writable server. `hosts`: how many servers the URL lists."""

    fsync: bool
    full_page_writes: bool
    standbys: str
    is_read_only: bool
    hosts: int


async def read_server_settings(database: "PostgresDatabase") -> ServerSettings:
    hosts = len(database.connector.address.hosts)

    def read_settings(connection: Connection) -> ServerSettings:
        row = connection.execute(_SETTINGS_QUERY).one()
        return ServerSettings(
            fsync=row.fsync == "on",
            full_page_writes=row.full_page_writes == "on",
            standbys=row.standbys,
            is_read_only=row.is_standby or row.read_only == "on",
            hosts=hosts,
        )

    return await database.read(read_settings)


def find_risks(settings: ServerSettings) -> Iterator[str]:
    """A sentence for each risk of the settings. `synchronous_commit` is no risk: every session of a gateway switches it on."""
    if settings.is_read_only:
        yield "the server is read-only: nothing can be sold"
    if not settings.fsync:
        yield "fsync is off: a power cut can lose claims, and break the database"
    if not settings.full_page_writes:
        yield "full_page_writes is off: a power cut can break the database"
    if settings.hosts > 1 and not settings.standbys.strip():
        yield (
            "there are several servers, and synchronous_standby_names is empty: a failover can lose claims that were "
            "already served, and what paid for them could be spent again"
        )


_SETTINGS_QUERY = text(
    "SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes, "
    "current_setting('synchronous_standby_names') AS standbys, pg_is_in_recovery() AS is_standby, "
    "current_setting('default_transaction_read_only') AS read_only"
)
