"""Sign-in nonces, sessions of the API and of pages, used request signatures and blocked wallets in SQL. A token is stored only as its SHA-256.

Each decision with one winner is one statement that reports its outcome. Blocked wallets have a snapshot in memory for paid calls.
"""

from collections.abc import Mapping

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    LargeBinary,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from tollway.audit_log import AuditAction, AuditEntry, AuditOrigin
from tollway.identity.page_sessions import PageSession
from tollway.identity.sessions import Session, SignInNonce
from tollway.ids import Address, ChainId
from tollway.registry.moderation import BlockedWallet
from tollway.storage.engine.database import Database, metadata, write_retried
from tollway.storage.operator.operator_writes import record_audit_entry

signin_nonce_table = Table(
    "signin_nonce",
    metadata,
    Column("nonce", String(128), primary_key=True),
    Column("uri", Text),
    Column("expires_ms", BigInteger, nullable=False),
    Index("ix_signin_nonce_expires_ms", "expires_ms"),
)

session_table = Table(
    "session",
    metadata,
    Column("token_hash", LargeBinary(32), primary_key=True),
    Column("address", LargeBinary(20), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Index("ix_session_expires_ms", "expires_ms"),
)

page_session_table = Table(
    "page_session",
    metadata,
    Column("token_hash", LargeBinary(32), primary_key=True),
    Column("address", LargeBinary(20), nullable=False),
    Column("chain_id", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("used_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Index("ix_page_session_expires_ms", "expires_ms"),
)

signature_nonce_table = Table(
    "signature_nonce",
    metadata,
    Column("keyid", String(128), primary_key=True),
    Column("nonce", String(128), primary_key=True),
    Column("expires_ms", BigInteger, nullable=False),
    Index("ix_signature_nonce_expires_ms", "expires_ms"),
)


class SqlSessions:
    """Implements `SessionStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def issue_nonce(self, nonce: SignInNonce) -> None:
        row = {"nonce": nonce.nonce, "uri": nonce.uri, "expires_ms": nonce.expires_ms}
        # Not flushed: after a power failure the client requests another nonce.
        await self._database.write(
            lambda connection: connection.execute(insert(signin_nonce_table), row), flush=False
        )

    async def take_nonce(self, nonce: str, *, now_ms: int) -> SignInNonce | None:
        columns = signin_nonce_table.c
        statement = (
            delete(signin_nonce_table)
            .where(columns.nonce == nonce, columns.expires_ms > now_ms)
            .returning(columns.nonce, columns.uri, columns.expires_ms)
        )
        row = await write_retried(
            self._database, lambda connection: connection.execute(statement).one_or_none()
        )
        return None if row is None else SignInNonce(nonce=row.nonce, uri=row.uri, expires_ms=row.expires_ms)

    async def put_session(self, session: Session) -> None:
        row = {
            "token_hash": session.token_hash,
            "address": bytes(session.address),
            "chain_id": session.chain_id,
            "created_ms": session.created_ms,
            "expires_ms": session.expires_ms,
        }
        await self._database.write(lambda connection: connection.execute(insert(session_table), row))

    async def find_session(self, token_hash: bytes, *, now_ms: int) -> Session | None:
        columns = session_table.c
        statement = select(columns.address, columns.chain_id, columns.created_ms, columns.expires_ms).where(
            columns.token_hash == token_hash, columns.expires_ms > now_ms
        )
        row = await self._database.read(lambda connection: connection.execute(statement).one_or_none())
        if row is None:
            return None
        return Session(
            token_hash=token_hash,
            address=Address(row.address),
            chain_id=ChainId(row.chain_id),
            created_ms=row.created_ms,
            expires_ms=row.expires_ms,
        )

    async def delete_session(self, token_hash: bytes) -> None:
        statement = delete(session_table).where(session_table.c.token_hash == token_hash)
        await self._database.write(lambda connection: connection.execute(statement))

    async def remember_signature_nonce(self, keyid: str, nonce: str, *, expires_ms: int) -> bool:
        row = {"keyid": keyid, "nonce": nonce, "expires_ms": expires_ms}
        try:
            await write_retried(
                self._database, lambda connection: connection.execute(insert(signature_nonce_table), row)
            )
        except IntegrityError:
            # The primary key: another request used the nonce first.
            return False
        return True

    async def prune(self, *, now_ms: int) -> int:
        return await self._database.write(lambda connection: _prune(connection, now_ms), flush=False)


def _prune(connection: Connection, now_ms: int) -> int:
    statements = [
        delete(signin_nonce_table).where(signin_nonce_table.c.expires_ms <= now_ms),
        delete(session_table).where(session_table.c.expires_ms <= now_ms),
        delete(signature_nonce_table).where(signature_nonce_table.c.expires_ms <= now_ms),
        delete(page_session_table).where(page_session_table.c.expires_ms <= now_ms),
    ]
    return sum(connection.execute(statement).rowcount for statement in statements)


class SqlPageSessions:
    """Implements `PageSessionStore`. `SqlSessions.prune` deletes the expired sessions."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_page_session(self, session: PageSession) -> None:
        row = {
            "token_hash": session.token_hash,
            "address": bytes(session.address),
            "chain_id": session.chain_id,
            "created_ms": session.created_ms,
            "used_ms": session.used_ms,
            "expires_ms": session.expires_ms,
        }
        await self._database.write(lambda connection: connection.execute(insert(page_session_table), row))

    async def find_page_session(self, token_hash: bytes) -> PageSession | None:
        columns = page_session_table.c
        statement = select(
            columns.address, columns.chain_id, columns.created_ms, columns.used_ms, columns.expires_ms
        ).where(columns.token_hash == token_hash)
        row = await self._database.read(lambda connection: connection.execute(statement).one_or_none())
        if row is None:
            return None
        return PageSession(
            token_hash=token_hash,
            address=Address(row.address),
            chain_id=ChainId(row.chain_id),
            created_ms=row.created_ms,
            used_ms=row.used_ms,
            expires_ms=row.expires_ms,
        )

    async def mark_page_session_used(self, token_hash: bytes, *, now_ms: int) -> None:
        columns = page_session_table.c
        statement = (
            update(page_session_table)
            .where(columns.token_hash == token_hash, columns.used_ms < now_ms)
            .values(used_ms=now_ms)
        )
        # Not flushed: after a power failure the session counts as unused a little longer.
        await self._database.write(lambda connection: connection.execute(statement), flush=False)

    async def delete_page_session(self, token_hash: bytes) -> None:
        statement = delete(page_session_table).where(page_session_table.c.token_hash == token_hash)
        await self._database.write(lambda connection: connection.execute(statement))


wallet_block_table = Table(
    "wallet_block",
    metadata,
    Column("wallet", LargeBinary(20), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
)


class ModerationStore:
    """Implements `Moderation`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._blocked: Mapping[Address, BlockedWallet] = {}

    def find_block(self, wallet: Address) -> BlockedWallet | None:
        return self._blocked.get(wallet)

    async def refresh(self) -> None:
        self._blocked = {block.wallet: block for block in await self.list_blocked()}

    async def block(self, wallet: Address, *, origin: AuditOrigin) -> bool:
        row = {"wallet": bytes(wallet), "reason": origin.reason, "since_ms": origin.at_ms}
        entry = AuditEntry(kind=AuditAction.BLOCK_WALLET, target=str(wallet), origin=origin)

        def work(connection: Connection) -> None:
            connection.execute(insert(wallet_block_table), row)
            record_audit_entry(connection, entry)

        try:
            await self._database.write(work)
        except IntegrityError:
            return False
        finally:
            await self.refresh()
        return True

    async def unblock(self, wallet: Address, *, origin: AuditOrigin) -> bool:
        statement = delete(wallet_block_table).where(wallet_block_table.c.wallet == bytes(wallet))
        entry = AuditEntry(kind=AuditAction.UNBLOCK_WALLET, target=str(wallet), origin=origin)

        def work(connection: Connection) -> bool:
            was_blocked = connection.execute(statement).rowcount > 0
            if was_blocked:
                record_audit_entry(connection, entry)
            return was_blocked

        was_blocked = await self._database.write(work)
        await self.refresh()
        return was_blocked

    async def list_blocked(self) -> tuple[BlockedWallet, ...]:
        return await self._database.read(_read_blocks)


def _read_blocks(connection: Connection) -> tuple[BlockedWallet, ...]:
    columns = wallet_block_table.c
    statement = select(columns.wallet, columns.reason, columns.since_ms).order_by(
        columns.since_ms, columns.wallet
    )
    return tuple(
        BlockedWallet(wallet=Address(row.wallet), reason=row.reason, since_ms=row.since_ms)
        for row in connection.execute(statement)
    )
