"""Sizes of the large tables, their oldest rows, and held payments, for the operator's page of the books. Each query reads the statistics of the server, the end of an
index or a bounded number of rows."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Column, Connection, Select, Table, bindparam, func, literal_column, select, text

from tollway.fleet import BookSizes, HeldPayment, TableSize
from tollway.ids import Address, ChainId, TxHash
from tollway.storage.database import Database
from tollway.storage.ledger_tables import (
    HELD,
    attempt_table,
    authorization_table,
    call_table,
    call_terms_table,
    payment_table,
    topup_table,
)
from tollway.storage.operator_acts import operator_act_table
from tollway.storage.operator_store import IS_RESTORED
from tollway.storage.response_pool import answer_table
from tollway.storage.webhook_tables import delivery_table, event_table, message_table

HELD_SHOWN = 50
COUNTED_MAX = 10_000
"""The rows that are counted in a table without an estimate."""
_OLDEST: Mapping[Table, tuple[Column[Any], Column[Any]] | None] = {
    call_table: (call_table.c.id, call_table.c.created_ms),
    payment_table: (payment_table.c.id, payment_table.c.recorded_ms),
    answer_table: (answer_table.c.created_ms, answer_table.c.created_ms),
    operator_act_table: (operator_act_table.c.id, operator_act_table.c.at_ms),
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
    """Reads the figures. Raises StorageUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_sizes(self) -> BookSizes:
        return await self._database.read(_read_sizes)

    async def list_held(self) -> tuple[HeldPayment, ...]:
        """Held payments in the order in which they were recorded, at most `HELD_SHOWN`."""
        return await self._database.read(_read_held)


def select_held(connection: Connection, *columns: Column[Any]) -> Select[Any]:
    """Selects held payments. Without an open restore those that nodes dispute, which have an index: without it a ledger without held payments would be read whole."""
    is_restored = bool(connection.scalar(select(IS_RESTORED)))
    return select(*columns).where(payment_table.c.is_held if is_restored else text(HELD))


def _read_held(connection: Connection) -> tuple[HeldPayment, ...]:
    columns = payment_table.c
    query = select_held(connection, *columns).order_by(columns.id).limit(HELD_SHOWN)
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
    """The rows of a table that has at most `COUNTED_MAX`; None for a larger one."""
    some = select(literal_column("1")).select_from(table).limit(COUNTED_MAX + 1).subquery()
    rows = connection.scalar(select(func.count()).select_from(some)) or 0
    return rows if rows <= COUNTED_MAX else None


_POSTGRES_TABLES = text(
    "SELECT relname AS name, reltuples AS estimate, pg_total_relation_size(oid) AS size FROM pg_class "
    "WHERE oid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:names AS text[])) AS name)"
).bindparams(bindparam("names"))
_POSTGRES_SIZE = text("SELECT pg_database_size(current_database())")
_SQLITE_SIZE = text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()")
