"""What an operator does, in SQL: signs in, releases balances, admits transactions; and the record of the operator's acts, in the transaction of each
change. Also what the gateways record beside payments and calls: restores of the database, readiness.

A restore holds every balance until the operator releases it. The age of a transaction does not grow while no gateway is ready.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import structlog
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
    delete,
    exists,
    false,
    func,
    insert,
    select,
    text,
    update,
)

from tollway.identity.admin_sessions import AdminSession
from tollway.ids import TxHash
from tollway.ledger.ledger import AuditReport
from tollway.operator_acts import ActKind, ActOrigin, OperatorAct, RecordedAct
from tollway.storage.engine.database import Database, metadata, write_retried
from tollway.storage.engine.statements import insert_for
from tollway.storage.ledger.closed_periods import mark_wrong
from tollway.storage.ledger.history import audit
from tollway.storage.ledger.ledger_tables import (
    RowId,
    admission_table,
    outage_table,
    payment_table,
    readiness_table,
    restore_table,
)

TARGETS_MAX = 500
"""Targets of one query."""
LOGGED_MAX = 100
"""Acts that one run writes to the log."""
LEDGER = "ledger"
"""The target of an act on all balances."""
SALES = "sales"
"""The target of an act on closed hours and days."""
GAP_MS = 60_000
"""Two records of readiness that are further apart than this mean an outage of all gateways."""

# The id in a table of one row.
_ROW = 1
IS_RESTORED = exists().where(restore_table.c.released_ms.is_(None))
"""True while balances are held after a restore that the operator has not released."""
_HELD_BEFORE = select(func.max(restore_table.c.noted_ms)).where(restore_table.c.released_ms.is_(None))

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

admin_code_table = Table(
    "admin_code",
    metadata,
    Column("code_hash", LargeBinary(32), primary_key=True),
    Column("actor", Text, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

admin_session_table = Table(
    "admin_session",
    metadata,
    Column("token_hash", LargeBinary(32), primary_key=True),
    Column("actor", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
)

_log = structlog.get_logger(__name__)


class OperatorStore:
    """Implements `OperatorLedger` and `Readiness`. `now_ms`: the time that all gateways share."""

    def __init__(self, database: Database, *, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms

    async def audit(self) -> AuditReport:
        return await self._database.read(audit, is_long=True)

    async def release_held(self, *, origin: ActOrigin) -> int:
        restores, payments = restore_table.c, payment_table.c
        release = update(restore_table).where(restores.released_ms.is_(None))
        free = update(payment_table).where(payments.is_held).values(is_held=False)
        released_ms = self._now_ms()
        act = OperatorAct(kind=ActKind.RELEASE_BALANCES, target=LEDGER, origin=origin)

        def work(connection: Connection) -> int:
            ended = connection.execute(release.values(released_ms=released_ms)).rowcount
            freed = connection.execute(free).rowcount
            if ended or freed:
                record_act(connection, act)
            return freed

        return await write_retried(self._database, work, is_long=True)

    async def admit(self, tx_hash: TxHash, *, origin: ActOrigin) -> None:
        act = OperatorAct(kind=ActKind.ADMIT_TRANSACTION, target=str(tx_hash), origin=origin)
        values = {"tx_hash": tx_hash, "admitted_ms": origin.at_ms}

        def work(connection: Connection) -> None:
            statement = insert_for(connection, admission_table).values(values)
            if connection.execute(statement.on_conflict_do_nothing()).rowcount > 0:
                record_act(connection, act)

        await write_retried(self._database, work)

    async def mark_restored(self, *, origin: ActOrigin) -> None:
        """Holds every balance. Gateways detect most restores themselves (`RestoreDetector`)."""
        act = OperatorAct(kind=ActKind.HOLD_BALANCES, target=LEDGER, origin=origin)

        def work(connection: Connection) -> None:
            mark_restored(connection, now_ms=origin.at_ms)
            record_act(connection, act)

        await write_retried(self._database, work, is_long=True)

    async def rewrite_periods(self, starts_ms: Sequence[int], *, origin: ActOrigin) -> int:
        if not starts_ms:
            return 0
        act = OperatorAct(kind=ActKind.REWRITE_PERIODS, target=SALES, origin=origin)

        def work(connection: Connection) -> None:
            mark_wrong(connection, starts_ms, now_ms=origin.at_ms)
            record_act(connection, act)

        await write_retried(self._database, work)
        return len(starts_ms)

    async def mark_ready(self, *, now_ms: int) -> None:
        """Records that a gateway is ready. The first record after a gap also writes the outage."""
        columns = readiness_table.c
        query = select(columns.ready_ms).where(columns.id == _ROW).with_for_update()

        def work(connection: Connection) -> None:
            first = insert_for(connection, readiness_table).values(id=_ROW, ready_ms=now_ms)
            connection.execute(first.on_conflict_do_nothing())
            ready_ms = connection.execute(query).scalar_one()
            if now_ms <= ready_ms:
                return
            if now_ms - ready_ms > GAP_MS:
                outage = insert_for(connection, outage_table).values(from_ms=ready_ms, to_ms=now_ms)
                connection.execute(outage.on_conflict_do_nothing())
            connection.execute(update(readiness_table).where(columns.id == _ROW).values(ready_ms=now_ms))

        await write_retried(self._database, work)

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int:
        """The time without a ready gateway. The time before the first record counts as ready: a new gateway must not accept old transfers as
        new."""
        columns = outage_table.c
        query = select(columns.from_ms, columns.to_ms).where(
            columns.to_ms > since_ms, columns.from_ms < now_ms
        )

        def work(connection: Connection) -> int:
            gaps = [(row.from_ms, row.to_ms) for row in connection.execute(query)]
            ready_ms = connection.execute(select(readiness_table.c.ready_ms)).scalar()
            if ready_ms is not None and now_ms - ready_ms > GAP_MS:
                gaps.append((ready_ms, now_ms))
            return sum(max(0, min(to_ms, now_ms) - max(from_ms, since_ms)) for from_ms, to_ms in gaps)

        return await self._database.read(work)


def find_operator_records(connection: Connection, tx_hash: TxHash) -> tuple[bool, int | None]:
    """Whether a transaction is admitted, and the moment of the last restore that is not released: transactions before it are held. None without
    such a restore."""
    admitted = exists().where(admission_table.c.tx_hash == tx_hash)
    is_admitted, held_before_ms = connection.execute(select(admitted, _HELD_BEFORE.scalar_subquery())).one()
    return bool(is_admitted), held_before_ms


def mark_restored(connection: Connection, *, now_ms: int) -> None:
    """Records a restore and holds every balance in the ledger."""
    if connection.dialect.name == "postgresql":
        # One lock for the table, because this update cannot lock payments in the order of claims.
        connection.execute(text("LOCK TABLE payment IN EXCLUSIVE MODE"))
    connection.execute(insert(restore_table), {"noted_ms": now_ms})
    connection.execute(update(payment_table).where(~payment_table.c.is_held).values(is_held=True))


def held_before_ms(connection: Connection) -> int | None:
    found: int | None = connection.execute(_HELD_BEFORE).scalar_one()
    return found


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


class SqlAdminSessions:
    """Implements `AdminSessionStore` over SQLite or PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_code(self, code_hash: bytes, *, actor: str, expires_ms: int) -> None:
        row = {"code_hash": code_hash, "actor": actor, "expires_ms": expires_ms}
        await self._database.write(lambda connection: connection.execute(insert(admin_code_table), row))

    async def spend_code(self, code_hash: bytes, *, token_hash: bytes, now_ms: int, expires_ms: int) -> bool:
        codes, sessions = admin_code_table.c, admin_session_table.c
        expired = (
            delete(admin_code_table).where(codes.expires_ms <= now_ms),
            delete(admin_session_table).where(sessions.expires_ms <= now_ms),
        )
        spend = delete(admin_code_table).where(codes.code_hash == code_hash).returning(codes.actor)

        def work(connection: Connection) -> bool:
            for statement in expired:
                connection.execute(statement)
            actor = connection.execute(spend).scalar_one_or_none()
            if actor is None:
                return False
            row = {
                "token_hash": token_hash,
                "actor": actor,
                "created_ms": now_ms,
                "expires_ms": expires_ms,
            }
            connection.execute(insert(admin_session_table), row)
            return True

        return await self._database.write(work)

    async def put_admin_session(self, session: AdminSession) -> None:
        columns = admin_session_table.c
        expired = delete(admin_session_table).where(columns.expires_ms <= session.created_ms)
        row = {
            "token_hash": session.token_hash,
            "actor": session.actor,
            "created_ms": session.created_ms,
            "expires_ms": session.expires_ms,
        }

        def work(connection: Connection) -> None:
            connection.execute(expired)
            connection.execute(insert(admin_session_table), row)

        await self._database.write(work)

    async def find_admin_session(self, token_hash: bytes, *, now_ms: int) -> AdminSession | None:
        columns = admin_session_table.c
        query = select(columns.actor, columns.created_ms, columns.expires_ms).where(
            columns.token_hash == token_hash, columns.expires_ms > now_ms
        )
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        if row is None:
            return None
        return AdminSession(
            token_hash=token_hash, actor=row.actor, created_ms=row.created_ms, expires_ms=row.expires_ms
        )

    async def delete_admin_session(self, token_hash: bytes) -> None:
        statement = delete(admin_session_table).where(admin_session_table.c.token_hash == token_hash)
        await self._database.write(lambda connection: connection.execute(statement))
