"""Codes and sessions of the operator's pages in SQL, and the open calls that these pages list."""

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    LargeBinary,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    text,
)

from tollway.identity.admin_sessions import AdminSession
from tollway.ledger.records import CallRecord
from tollway.limits import Limits
from tollway.storage.book_sizes import select_held
from tollway.storage.database import Database, metadata
from tollway.storage.ledger_tables import (
    audit_run_table,
    call_table,
    parse_call,
    payment_table,
    select_records,
)

OPEN_CALLS_MAX = 100
"""Open calls of each state that a page lists, the oldest first."""

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


class OpenCallStore:
    """Reads what waits for an end: open calls and held payments; and the last audit."""

    def __init__(self, database: Database, *, limits: Limits) -> None:
        self._database = database
        self._unknown_hold_ms = limits.unknown_hold_s * 1000

    async def list_open(self, state: str) -> tuple[CallRecord, ...]:
        """Calls in `settling` or `unknown`, the oldest first, at most `OPEN_CALLS_MAX`."""
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
        """Payments whose balance is held; counted to 10,000."""

        def work(connection: Connection) -> int:
            held = select_held(connection, payment_table.c.id).limit(10_000).subquery()
            return int(connection.scalar(select(func.count()).select_from(held)) or 0)

        return await self._database.read(work)

    async def find_last_audit(self) -> tuple[int, int] | None:
        """When the last audit of any gateway or command ended, and how many differences it found; None before the first one."""
        columns = audit_run_table.c
        query = select(columns.ended_ms, columns.differences)
        row = await self._database.read(lambda connection: connection.execute(query).one_or_none())
        return None if row is None else (row.ended_ms, row.differences)
