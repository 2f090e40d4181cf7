"""The record of the operator's acts, in the transaction of each change; and their log lines."""

from collections.abc import Collection
from functools import partial
from typing import Any

import structlog
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    String,
    Table,
    Text,
    false,
    insert,
    select,
    text,
    update,
)

from tollway.operator_acts import ActKind, ActOrigin, OperatorAct, RecordedAct
from tollway.storage.database import Database, metadata, write_retried
from tollway.storage.ledger_tables import RowId

TARGETS_MAX = 500
"""Targets of one query."""
LOGGED_MAX = 100
"""Acts that one run writes to the log."""

operator_act_table = Table(
    "operator_act",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("act", String(40), nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("is_logged", Boolean, nullable=False, server_default=false()),
    Index("ix_operator_act_target", "target", "at_ms"),
    Index(
        "ix_operator_act_unlogged",
        "id",
        sqlite_where=text("NOT is_logged"),
        postgresql_where=text("NOT is_logged"),
    ),
)

_log = structlog.get_logger(__name__)


class OperatorActStore:
    """Implements `OperatorActs` over SQLite or PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_acts(
        self, *, limit: int, before_id: int | None = None, target: str | None = None
    ) -> tuple[RecordedAct, ...]:
        acts = operator_act_table.c
        query = select(acts.id, acts.at_ms, acts.actor, acts.act, acts.target, acts.reason)
        if before_id is not None:
            query = query.where(acts.id < before_id)
        if target is not None:
            query = query.where(acts.target == target)
        query = query.order_by(acts.id.desc()).limit(limit)

        def work(connection: Connection) -> tuple[RecordedAct, ...]:
            return tuple(_read_act(row) for row in connection.execute(query))

        return await self._database.read(work)

    async def log_new(self) -> int:
        """Writes the acts that no gateway has logged yet to the log, and returns their number. Each act is marked before its line is written, so all
        gateways together write at most one line for it."""
        waiting = await self._database.read(_find_unlogged)
        if not waiting:
            return 0
        taken = await write_retried(self._database, partial(_mark_logged, ids=waiting))
        for act in taken:
            _log.info(
                "operator_act",
                act=act.kind,
                act_id=act.id,
                target=act.target,
                actor=act.origin.actor,
                reason=act.origin.reason,
                at_ms=act.origin.at_ms,
            )
        return len(taken)


def record_act(connection: Connection, act: OperatorAct) -> None:
    """Writes an act in the transaction of its change."""
    row = {
        "at_ms": act.origin.at_ms,
        "actor": act.origin.actor,
        "act": act.kind.value,
        "target": act.target,
        "reason": act.origin.reason,
    }
    connection.execute(insert(operator_act_table), row)


def find_reasons(
    connection: Connection, kind: ActKind, moments: Collection[tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """The reasons of acts by target and time, at most `TARGETS_MAX`."""
    if not moments:
        return {}
    acts = operator_act_table.c
    query = select(acts.target, acts.at_ms, acts.reason).where(
        acts.act == kind.value, acts.target.in_({target for target, _ in moments})
    )
    wanted = frozenset(moments)
    return {
        (row.target, row.at_ms): row.reason
        for row in connection.execute(query)
        if (row.target, row.at_ms) in wanted
    }


def _find_unlogged(connection: Connection) -> list[int]:
    acts = operator_act_table.c
    query = select(acts.id).where(~acts.is_logged).order_by(acts.id).limit(LOGGED_MAX)
    return list(connection.scalars(query))


def _mark_logged(connection: Connection, *, ids: list[int]) -> list[RecordedAct]:
    """Marks the acts, and returns those that no other gateway marked first."""
    acts = operator_act_table.c
    statement = (
        update(operator_act_table)
        .where(acts.id.in_(ids), ~acts.is_logged)
        .values(is_logged=True)
        .returning(acts.id, acts.at_ms, acts.actor, acts.act, acts.target, acts.reason)
    )
    return sorted((_read_act(row) for row in connection.execute(statement)), key=lambda act: act.id)


def _read_act(row: Any) -> RecordedAct:
    return RecordedAct(
        id=row.id,
        kind=row.act,
        target=row.target,
        origin=ActOrigin(actor=row.actor, at_ms=row.at_ms, reason=row.reason),
    )
