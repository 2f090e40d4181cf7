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
from tollway.ledger.kept_answers import StoredAnswer, decode_answer, encode_answer
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

DROPPED_AT_ONCE = 500
COUNT_AGAIN_PART = 16
"""The whole is added up again when this process has added one such part of its maximum."""


class AnswerStore:
    """Keeps the promises of `Answers`."""

    def __init__(self, database: Database, *, sealer: Sealer, limits: Limits = DEFAULT_LIMITS) -> None:
        self._database = database
        self._sealer = sealer
        self._limits = limits
        self._room: int | None = None

    async def keep(self, call_id: CallId, payer: Address, answer: StoredAnswer, *, now_ms: int) -> bool:
        limits, plain = self._limits, encode_answer(answer)
        size = len(plain)
        if size > min(limits.answer_bytes_max, limits.answers_per_payer_bytes_max, limits.answers_bytes_max):
            return False
        row = {
            "call_id": call_id,
            "payer": bytes(payer),
            "bytes": size,
            "sealed": self._sealer.seal(plain, label=answer_label(call_id)),
            "created_ms": now_ms,
        }
        must_count = self._room is None or self._room < size
        await self._database.write(lambda connection: self._keep(connection, row, size, must_count))
        part = limits.answers_bytes_max // COUNT_AGAIN_PART
        self._room = part if must_count else (self._room or 0)
        self._room -= size
        return True

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredAnswer | None:
        columns = answer_table.c
        query = select(columns.sealed).where(
            columns.call_id == call_id, columns.created_ms > self._oldest_ms(now_ms)
        )
        sealed = await self._database.read(lambda connection: connection.execute(query).scalar())
        if sealed is None:
            return None
        return decode_answer(self._sealer.open(bytes(sealed), label=answer_label(call_id)))

    async def prune(self, *, now_ms: int) -> int:
        old = delete(answer_table).where(answer_table.c.created_ms <= self._oldest_ms(now_ms))
        return await self._database.write(lambda connection: connection.execute(old).rowcount, flush=False)

    def _keep(self, connection: Connection, row: dict[str, object], size: int, must_count: bool) -> None:
        columns, limits = answer_table.c, self._limits
        connection.execute(delete(answer_table).where(columns.call_id == row["call_id"]))
        own = columns.payer == row["payer"]
        _make_room(connection, own, limits.answers_per_payer_bytes_max - size)
        if must_count:
            # What may be added before the next count is made room for now.
            ahead = limits.answers_bytes_max // COUNT_AGAIN_PART
            _make_room(connection, None, limits.answers_bytes_max - max(size, ahead))
        dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
        connection.execute(dialect.insert(answer_table).on_conflict_do_nothing(), row)

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - self._limits.answer_ttl_s * 1000


def has_answer(call_id: ColumnElement[str], *, since_ms: int) -> ColumnElement[bool]:
    columns = answer_table.c
    return exists(select(columns.call_id).where(columns.call_id == call_id, columns.created_ms > since_ms))


def _make_room(connection: Connection, which: ColumnElement[bool] | None, bytes_max: int) -> None:
    """Drops the oldest until the others fit."""
    columns = answer_table.c
    total = select(cast(func.coalesce(func.sum(columns.bytes), 0), BigInteger))
    oldest = select(columns.call_id, columns.bytes).order_by(columns.created_ms, columns.call_id)
    if which is not None:
        total, oldest = total.where(which), oldest.where(which)
    # Others may be making room as well: what they hold is theirs to drop.
    oldest = oldest.limit(DROPPED_AT_ONCE).with_for_update(skip_locked=True)
    surplus = int(connection.execute(total).scalar_one()) - bytes_max
    while surplus > 0:
        doomed = []
        for call_id, size in connection.execute(oldest).all():
            if surplus > 0:
                doomed.append(call_id)
                surplus -= size
        if not doomed:
            return
        connection.execute(delete(answer_table).where(columns.call_id.in_(doomed)))


def answer_label(call_id: CallId) -> bytes:
    return b"answer:" + call_id.encode()
