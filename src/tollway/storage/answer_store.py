"""Stored answers in SQL: sealed, bounded in size and time. Nothing here knows what an answer cost.

The size of everything is looked up now and then, and after much was added; in between this process counts on. With
several gateways the house may so hold a little more than its maximum, for a moment.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    cast,
    delete,
    exists,
    func,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from tollway.identifiers import Address, CallId
from tollway.ledger.kept_answers import StoredResponse, decode_stored_response, encode_stored_response
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.database import Database, metadata
from tollway.storage.sealer import Sealer

answer_table = Table(
    "answer",
    metadata,
    Column("call_id", String(64), nullable=False),
    Column("payer", LargeBinary(20), nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("call_id", name="pk_answer"),
    # Both carry the sizes, so that adding them up reads no answer.
    Index("ix_answer_payer_time", "payer", "created_ms", "call_id", "bytes"),
    Index("ix_answer_time", "created_ms", "call_id", "bytes"),
)

DELETE_BATCH_MAX = 500
RECOUNT_PART = 16
"""The whole is added up again when this process has added one such part of its maximum."""


class ResponseStore:
    """Keeps the promises of `StoredResponses`."""

    def __init__(self, database: Database, *, sealer: Sealer, limits: Limits = DEFAULT_LIMITS) -> None:
        self._database = database
        self._sealer = sealer
        self._limits = limits
        self._free_bytes: int | None = None

    async def keep(self, call_id: CallId, payer: Address, answer: StoredResponse, *, now_ms: int) -> bool:
        limits, plain = self._limits, encode_stored_response(answer)
        size = len(plain)
        if size > min(limits.answer_bytes_max, limits.answers_per_payer_bytes_max, limits.answers_bytes_max):
            return False
        row = {
            "call_id": call_id,
            "payer": bytes(payer),
            "bytes": size,
            "sealed": self._sealer.seal(plain, label=response_label(call_id)),
            "created_ms": now_ms,
        }
        must_count = self._free_bytes is None or self._free_bytes < size
        await self._database.write(lambda connection: self._keep(connection, row, size, must_count))
        part = limits.answers_bytes_max // RECOUNT_PART
        self._free_bytes = part if must_count else (self._free_bytes or 0)
        self._free_bytes -= size
        return True

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredResponse | None:
        columns = answer_table.c
        query = select(columns.sealed).where(
            columns.call_id == call_id, columns.created_ms > self._oldest_ms(now_ms)
        )
        sealed = await self._database.read(lambda connection: connection.execute(query).scalar())
        if sealed is None:
            return None
        return decode_stored_response(self._sealer.open(bytes(sealed), label=response_label(call_id)))

    async def prune(self, *, now_ms: int) -> int:
        old = delete(answer_table).where(answer_table.c.created_ms <= self._oldest_ms(now_ms))
        return await self._database.write(lambda connection: connection.execute(old).rowcount, flush=False)

    def _keep(self, connection: Connection, row: dict[str, object], size: int, must_count: bool) -> None:
        columns, limits = answer_table.c, self._limits
        connection.execute(delete(answer_table).where(columns.call_id == row["call_id"]))
        own = columns.payer == row["payer"]
        _delete_oldest(connection, own, limits.answers_per_payer_bytes_max - size)
        if must_count:
            # What may be added before the next count is made room for now.
            ahead = limits.answers_bytes_max // RECOUNT_PART
            _delete_oldest(connection, None, limits.answers_bytes_max - max(size, ahead))
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        connection.execute(dialect.insert(answer_table).on_conflict_do_nothing(), row)

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - self._limits.answer_ttl_s * 1000


def has_stored_response(call_id: ColumnElement[str], *, since_ms: int) -> ColumnElement[bool]:
    columns = answer_table.c
    return exists(select(columns.call_id).where(columns.call_id == call_id, columns.created_ms > since_ms))


def _delete_oldest(connection: Connection, which: ColumnElement[bool] | None, bytes_max: int) -> None:
    """Drops the oldest until the others fit."""
    columns = answer_table.c
    total = select(cast(func.coalesce(func.sum(columns.bytes), 0), BigInteger))
    oldest = select(columns.call_id, columns.bytes).order_by(columns.created_ms, columns.call_id)
    if which is not None:
        total, oldest = total.where(which), oldest.where(which)
    # Others may be making room as well: what they hold is theirs to drop.
    oldest = oldest.limit(DELETE_BATCH_MAX).with_for_update(skip_locked=True)
    surplus = int(connection.execute(total).scalar_one()) - bytes_max
    while surplus > 0:
        deleted = []
        for call_id, size in connection.execute(oldest).all():
            if surplus > 0:
                deleted.append(call_id)
                surplus -= size
        if not deleted:
            return
        connection.execute(delete(answer_table).where(columns.call_id.in_(deleted)))


def response_label(call_id: CallId) -> bytes:
    return b"answer:" + call_id.encode()
