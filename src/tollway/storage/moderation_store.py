"""Blocked wallets in SQL, and a snapshot of them in memory for the hot path. Decides nothing about listings."""

from sqlalchemy import BigInteger, Column, LargeBinary, Table, Text, delete, insert, select
from sqlalchemy.exc import IntegrityError

from tollway.identifiers import Address
from tollway.registry.moderation import BlockedWallet
from tollway.storage.database import Database, metadata

wallet_block_table = Table(
    "wallet_block",
    metadata,
    Column("wallet", LargeBinary(20), primary_key=True),
    Column("reason", Text, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
)


class ModerationStore:
    """A `Moderation` over SQLite or PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._blocked: frozenset[Address] = frozenset()

    def is_blocked(self, wallet: Address) -> bool:
        return wallet in self._blocked

    async def refresh(self) -> None:
        self._blocked = frozenset(block.wallet for block in await self.list_blocked())

    async def block(self, wallet: Address, *, reason: str, now_ms: int) -> bool:
        row = {"wallet": bytes(wallet), "reason": reason, "since_ms": now_ms}
        try:
            await self._database.write(lambda connection: connection.execute(insert(wallet_block_table), row))
        except IntegrityError:
            return False
        finally:
            await self.refresh()
        return True

    async def unblock(self, wallet: Address) -> bool:
        columns = wallet_block_table.c
        statement = (
            delete(wallet_block_table).where(columns.wallet == bytes(wallet)).returning(columns.wallet)
        )
        row = await self._database.write(lambda connection: connection.execute(statement).one_or_none())
        await self.refresh()
        return row is not None

    async def list_blocked(self) -> tuple[BlockedWallet, ...]:
        columns = wallet_block_table.c
        statement = select(columns.wallet, columns.reason, columns.since_ms).order_by(
            columns.since_ms, columns.wallet
        )
        rows = await self._database.read(lambda connection: connection.execute(statement).all())
        return tuple(
            BlockedWallet(wallet=Address(row.wallet), reason=row.reason, since_ms=row.since_ms)
            for row in rows
        )
