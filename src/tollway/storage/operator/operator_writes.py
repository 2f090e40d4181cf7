"""What an operator does, in SQL: signs in, releases balances, admits transactions; and the operators' audit log, in the transaction of each
change. Also what the gateways record beside payments and calls: restores of the database, readiness.

A restore holds every balance until the operator releases it; a channel takes no call any more. The age of a transaction does not grow while no gateway is ready.
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
    bindparam,
    delete,
    exists,
    false,
    func,
    insert,
    select,
    text,
    update,
)

from tollway.audit_log import AuditAction, AuditEntry, AuditOrigin, RecordedAuditEntry
from tollway.identity.admin_sessions import AdminSession
from tollway.ids import Address, TxHash
from tollway.ledger.channels import ChannelState
from tollway.ledger.ledger import AuditReport
from tollway.storage.engine.database import Database, metadata, partial_index, write_retried
from tollway.storage.engine.statements import Prepared, insert_for
from tollway.storage.ledger.budget_store import unbind
from tollway.storage.ledger.closed_periods import mark_wrong
from tollway.storage.ledger.ledger_audit import audit
from tollway.storage.ledger.ledger_tables import (
    RowId,
    admission_table,
    channel_table,
    outage_table,
    payment_table,
    readiness_table,
    restore_table,
)

TARGETS_MAX = 500
LOGGED_MAX = 100
LEDGER = "ledger"
"""The target of an entry on all balances."""
SALES = "sales"
"""The target of an entry on closed hours and days."""
GAP_MS = 60_000
"""Two records of readiness that are further apart than this mean an outage of all gateways."""

# The id in a table of one row.
_ROW = 1
IS_RESTORED = exists().where(restore_table.c.released_ms.is_(None))
"""True while balances are held after a restore that the operator has not released."""
_SELECT_HELD_BEFORE = select(func.max(restore_table.c.noted_ms)).where(restore_table.c.released_ms.is_(None))
_HELD_BEFORE = Prepared(_SELECT_HELD_BEFORE)
_OPERATOR_RECORDS = Prepared(
    select(
        exists().where(admission_table.c.tx_hash == bindparam("tx_hash")),
        _SELECT_HELD_BEFORE.scalar_subquery(),
    )
)

audit_entry_table = Table(
    "audit_entry",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(40), nullable=False),
    Column("target", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("is_logged", Boolean, nullable=False, server_default=false()),
    Index("ix_audit_entry_target", "target", "at_ms"),
    partial_index("ix_audit_entry_unlogged", "NOT is_logged", "id"),
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
    """Implements `OperatorLedger` and `Readiness`."""

    def __init__(self, database: Database, *, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms

    async def audit(self) -> AuditReport:
        return await self._database.read(audit, is_long=True)

    async def release_held(self, *, origin: AuditOrigin) -> int:
        restores, payments = restore_table.c, payment_table.c
        release = update(restore_table).where(restores.released_ms.is_(None))
        free = update(payment_table).where(payments.is_held).values(is_held=False)
        released_ms = self._now_ms()
        entry = AuditEntry(kind=AuditAction.RELEASE_BALANCES, target=LEDGER, origin=origin)

        def work(connection: Connection) -> int:
            ended = connection.execute(release.values(released_ms=released_ms)).rowcount
            freed = connection.execute(free).rowcount
            if ended or freed:
                record_audit_entry(connection, entry)
            return freed

        return await write_retried(self._database, work, is_long=True)

    async def admit(self, tx_hash: TxHash, *, origin: AuditOrigin) -> None:
        entry = AuditEntry(kind=AuditAction.ADMIT_TRANSACTION, target=str(tx_hash), origin=origin)
        values = {"tx_hash": tx_hash, "admitted_ms": origin.at_ms}

        def work(connection: Connection) -> None:
            statement = insert_for(connection, admission_table).values(values)
            if connection.execute(statement.on_conflict_do_nothing()).rowcount > 0:
                record_audit_entry(connection, entry)

        await write_retried(self._database, work)

    async def unbind_wallet(self, wallet: Address, *, origin: AuditOrigin) -> Address | None:
        entry = AuditEntry(kind=AuditAction.UNBIND_WALLET, target=str(wallet), origin=origin)

        def work(connection: Connection) -> Address | None:
            bound = unbind(connection, wallet)
            if bound is None:
                return None
            record_audit_entry(connection, entry)
            return bound.owner

        return await write_retried(self._database, work)

    async def mark_restored(self, *, origin: AuditOrigin) -> None:
        """Holds every balance. Gateways detect most restores themselves (`RestoreDetector`)."""
        entry = AuditEntry(kind=AuditAction.HOLD_BALANCES, target=LEDGER, origin=origin)

        def work(connection: Connection) -> None:
            mark_restored(connection, now_ms=origin.at_ms)
            record_audit_entry(connection, entry)

        await write_retried(self._database, work, is_long=True)

    async def rewrite_periods(self, starts_ms: Sequence[int], *, origin: AuditOrigin) -> int:
        if not starts_ms:
            return 0
        entry = AuditEntry(kind=AuditAction.REWRITE_PERIODS, target=SALES, origin=origin)

        def work(connection: Connection) -> None:
            mark_wrong(connection, starts_ms, now_ms=origin.at_ms)
            record_audit_entry(connection, entry)

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
        """The time before the first record counts as ready: a new gateway must not accept old transfers as new."""
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
    ((is_admitted, held_before_ms),) = _OPERATOR_RECORDS.fetch(connection, tx_hash=tx_hash)
    return bool(is_admitted), held_before_ms


def mark_restored(connection: Connection, *, now_ms: int) -> None:
    if connection.dialect.name == "postgresql":
        # One lock for the table, because this update cannot lock payments in the order of claims.
        connection.execute(text("LOCK TABLE payment IN EXCLUSIVE MODE"))
    connection.execute(insert(restore_table), {"noted_ms": now_ms})
    payments, channels = payment_table.c, channel_table.c
    connection.execute(
        update(payment_table)
        .where(~payments.is_held, ~payments.is_escrow, ~payments.is_refund)
        .values(is_held=True)
    )
    # Their keys are of the count of restores before: the channels are claimed and refunded.
    draining = ChannelState.DRAINING.value
    connection.execute(update(channel_table).where(channels.state != draining).values(state=draining))


def held_before_ms(connection: Connection) -> int | None:
    ((found,),) = _HELD_BEFORE.fetch(connection)
    return None if found is None else int(found)


class AuditLogStore:
    """Implements `AuditLog`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_audit_entries(
        self, *, limit: int, before_id: int | None = None, target: str | None = None
    ) -> tuple[RecordedAuditEntry, ...]:
        entries = audit_entry_table.c
        query = select(
            entries.id, entries.at_ms, entries.actor, entries.action, entries.target, entries.reason
        )
        if before_id is not None:
            query = query.where(entries.id < before_id)
        if target is not None:
            query = query.where(entries.target == target)
        query = query.order_by(entries.id.desc()).limit(limit)

        def work(connection: Connection) -> tuple[RecordedAuditEntry, ...]:
            return tuple(_read_entry(row) for row in connection.execute(query))

        return await self._database.read(work)

    async def record(self, entries: Sequence[AuditEntry]) -> None:
        """Writes entries that have no other change."""

        def work(connection: Connection) -> None:
            for entry in entries:
                record_audit_entry(connection, entry)

        await write_retried(self._database, work)

    async def log_new(self) -> int:
        """Writes the entries that no gateway has logged yet to the log, and returns their number. Each entry is marked before its line is written, so all
        gateways together write at most one line for it."""
        waiting = await self._database.read(_find_unlogged)
        if not waiting:
            return 0
        taken = await write_retried(self._database, partial(_mark_logged, ids=waiting))
        for entry in taken:
            _log.info(
                "audit_entry",
                action=entry.kind,
                entry_id=entry.id,
                target=entry.target,
                actor=entry.origin.actor,
                reason=entry.origin.reason,
                at_ms=entry.origin.at_ms,
            )
        return len(taken)


def record_audit_entry(connection: Connection, entry: AuditEntry) -> None:
    """Writes an entry in the transaction of its change."""
    row = {
        "at_ms": entry.origin.at_ms,
        "actor": entry.origin.actor,
        "action": entry.kind.value,
        "target": entry.target,
        "reason": entry.origin.reason,
    }
    connection.execute(insert(audit_entry_table), row)


def find_reasons(
    connection: Connection, kind: AuditAction, moments: Collection[tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """The reasons of entries by target and time, at most `TARGETS_MAX`."""
    if not moments:
        return {}
    entries = audit_entry_table.c
    query = select(entries.target, entries.at_ms, entries.reason).where(
        entries.action == kind.value, entries.target.in_({target for target, _ in moments})
    )
    wanted = frozenset(moments)
    return {
        (row.target, row.at_ms): row.reason
        for row in connection.execute(query)
        if (row.target, row.at_ms) in wanted
    }


def _find_unlogged(connection: Connection) -> list[int]:
    entries = audit_entry_table.c
    query = select(entries.id).where(~entries.is_logged).order_by(entries.id).limit(LOGGED_MAX)
    return list(connection.scalars(query))


def _mark_logged(connection: Connection, *, ids: list[int]) -> list[RecordedAuditEntry]:
    """Returns the entries that no other gateway marked first."""
    entries = audit_entry_table.c
    statement = (
        update(audit_entry_table)
        .where(entries.id.in_(ids), ~entries.is_logged)
        .values(is_logged=True)
        .returning(entries.id, entries.at_ms, entries.actor, entries.action, entries.target, entries.reason)
    )
    return sorted((_read_entry(row) for row in connection.execute(statement)), key=lambda entry: entry.id)


def _read_entry(row: Any) -> RecordedAuditEntry:
    return RecordedAuditEntry(
        id=row.id,
        kind=row.action,
        target=row.target,
        origin=AuditOrigin(actor=row.actor, at_ms=row.at_ms, reason=row.reason),
    )


class SqlAdminSessions:
    """Implements `AdminSessionStore`."""

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

        return await write_retried(self._database, work)

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
