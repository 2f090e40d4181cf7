"""How many calls each wallet has made and got, kept so that no page has to count them.

On PostgreSQL a trigger counts every call as it is inserted, in one of a few slots of its wallets. On SQLite a trigger
would cost more than the insert itself, so calls are counted afterwards, in lots, by the order in which they were written:
up to a mark they are in the totals, and whoever asks counts the few above it. Rows of calls are never deleted, so their
numbers only grow.
"""

from sqlalchemy import Connection, func, select, text

from tollway.identifiers import Address
from tollway.ledger.statement import HistoryRole
from tollway.storage.book_tables import call_total_table

CALLS_PER_BATCH = 2_000
"""Calls that are counted in one transaction: about two milliseconds in which nobody else writes."""

_MARK = {"wallet": b"", "role": "mark", "slot": 0}

_ADD = """
INSERT INTO call_total (wallet, role, slot, calls)
SELECT {role}, '{role}', 0, count(*) FROM call NOT INDEXED
WHERE rowid > :mark AND rowid <= :upto AND {role} IS NOT NULL GROUP BY {role}
ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = calls + excluded.calls
"""
_SET_MARK = """
INSERT INTO call_total (wallet, role, slot, calls) VALUES (:wallet, :role, :slot, :upto)
ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = excluded.calls
"""
_COUNT_ABOVE = "SELECT count(*) FROM call NOT INDEXED WHERE rowid > :mark AND {role} = :wallet"


def total_of(connection: Connection, wallet: Address, role: HistoryRole) -> int:
    """How many calls a wallet has, exactly."""
    kept = call_total_table.c
    whose = (kept.wallet == bytes(wallet), kept.role == role)
    total = int(connection.scalar(select(func.coalesce(func.sum(kept.calls), 0)).where(*whose)) or 0)
    if connection.dialect.name == "sqlite":
        above = text(_COUNT_ABOVE.format(role=role))
        values = {"mark": _read_mark(connection), "wallet": bytes(wallet)}
        total += connection.scalar(above, values) or 0
    return total


def count_batch(connection: Connection) -> bool:
    """Counts the next calls above the mark, on SQLite alone. Whether more are waiting."""
    mark = _read_mark(connection)
    last: int = connection.scalar(text("SELECT max(rowid) FROM call")) or 0
    upto = min(last, mark + CALLS_PER_BATCH)
    if upto > mark:
        for role in ("payer", "provider"):
            connection.execute(text(_ADD.format(role=role)), {"mark": mark, "upto": upto})
        connection.execute(text(_SET_MARK), {**_MARK, "upto": upto})
    return upto < last


def _read_mark(connection: Connection) -> int:
    kept = call_total_table.c
    whose = (kept.wallet == _MARK["wallet"], kept.role == _MARK["role"])
    return connection.scalar(select(kept.calls).where(*whose)) or 0
