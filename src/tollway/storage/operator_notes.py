"""What the operator and the house leave in the ledger: transactions let in, when the gateway was ready, restores.

A restore of the database to an older moment forgets calls that were paid: every balance in it is held until the
operator releases it. `generation` and `setback` find it out.
"""

from sqlalchemy import Connection, exists, func, insert, select, text, update
from sqlalchemy.dialects import postgresql, sqlite

from tollway.identifiers import TxHash
from tollway.storage.book_tables import (
    admission_table,
    outage_table,
    payment_table,
    readiness_table,
    restore_table,
)

GAP_MS = 60_000
"""Between two notes of readiness further apart than this, no gateway was ready."""

_ROW = 1  # the one row of a table that has one
IS_RESTORED = exists().where(restore_table.c.released_ms.is_(None))
"""Balances are held after a restore that the operator has not released yet."""
_HELD_BEFORE = select(func.max(restore_table.c.noted_ms)).where(restore_table.c.released_ms.is_(None))


def admit(connection: Connection, tx_hash: TxHash, *, now_ms: int) -> None:
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    statement = dialect.insert(admission_table).values(tx_hash=tx_hash, admitted_ms=now_ms)
    connection.execute(statement.on_conflict_do_nothing())


def find_operator_records(connection: Connection, tx_hash: TxHash) -> tuple[bool, int | None]:
    """Whether a transaction is admitted, and before which moment everything else is held: by the last restore that is
    not released yet."""
    admitted = exists().where(admission_table.c.tx_hash == tx_hash)
    is_admitted, held_before_ms = connection.execute(select(admitted, _HELD_BEFORE.scalar_subquery())).one()
    return bool(is_admitted), held_before_ms


def mark_ready(connection: Connection, *, now_ms: int) -> None:
    """The first gateway that is back after a gap writes the outage down."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    first = dialect.insert(readiness_table).values(id=_ROW, ready_ms=now_ms).on_conflict_do_nothing()
    connection.execute(first)
    query = select(readiness_table.c.ready_ms).where(readiness_table.c.id == _ROW).with_for_update()
    ready_ms = connection.execute(query).scalar_one()
    if now_ms <= ready_ms:
        return
    if now_ms - ready_ms > GAP_MS:
        outage = dialect.insert(outage_table).values(from_ms=ready_ms, to_ms=now_ms)
        connection.execute(outage.on_conflict_do_nothing())
    connection.execute(update(readiness_table).where(readiness_table.c.id == _ROW).values(ready_ms=now_ms))


def downtime_ms(connection: Connection, *, since_ms: int, now_ms: int) -> int:
    """Time before the first note of all counts as ready: a new gateway does not take old transfers for new."""
    columns = outage_table.c
    query = select(columns.from_ms, columns.to_ms).where(columns.to_ms > since_ms, columns.from_ms < now_ms)
    gaps = [(row.from_ms, row.to_ms) for row in connection.execute(query)]
    ready_ms = connection.execute(select(readiness_table.c.ready_ms)).scalar()
    if ready_ms is not None and now_ms - ready_ms > GAP_MS:
        gaps.append((ready_ms, now_ms))
    return sum(max(0, min(to_ms, now_ms) - max(from_ms, since_ms)) for from_ms, to_ms in gaps)


def mark_restored(connection: Connection, *, now_ms: int) -> None:
    """Holds every balance that is in the ledger now."""
    if connection.dialect.name == "postgresql":
        # Claims lock payments in an order that this cannot keep: it waits for them, and they for it.
        connection.execute(text("LOCK TABLE payment IN EXCLUSIVE MODE"))
    connection.execute(insert(restore_table), {"noted_ms": now_ms})
    connection.execute(update(payment_table).where(~payment_table.c.is_held).values(is_held=True))


def held_before_ms(connection: Connection) -> int | None:
    found: int | None = connection.execute(_HELD_BEFORE).scalar_one()
    return found


def release_held(connection: Connection, *, now_ms: int) -> int:
    columns = restore_table.c
    connection.execute(update(restore_table).where(columns.released_ms.is_(None)).values(released_ms=now_ms))
    held = update(payment_table).where(payment_table.c.is_held).values(is_held=False)
    return connection.execute(held).rowcount
