"""Viewers in SQL: which wallet may read the books of which other one, until when. No cache: every read asks the table."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    LargeBinary,
    Row,
    Table,
    delete,
    func,
    select,
    update,
)

from tollway.identity.viewers import Viewer
from tollway.ids import Address
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.database import Database, metadata, write_retried
from tollway.storage.engine.statements import insert_for

viewer_table = Table(
    "viewer",
    metadata,
    Column("wallet", LargeBinary(20), primary_key=True),
    Column("viewer", LargeBinary(20), primary_key=True),
    Column("since_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Column("accepted_ms", BigInteger),
    Index("ix_viewer_viewer", "viewer", "since_ms"),
    Index("ix_viewer_accepted", "viewer", "accepted_ms"),
)

_LOCK_SPACE = 0x7669_6577
"""The advisory locks of wallets whose viewers are counted: two gateways must not both add the last one."""


class SqlViewers:
    """Implements `ViewerStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, viewer: Viewer, *, most: int) -> Viewer | None:
        return await write_retried(self._database, partial(_put, viewer=viewer, most=most))

    async def delete(self, wallet: Address, viewer: Address) -> None:
        columns = viewer_table.c
        statement = delete(viewer_table).where(
            columns.wallet == bytes(wallet), columns.viewer == bytes(viewer)
        )
        await self._database.write(lambda connection: connection.execute(statement))

    async def find(self, wallet: Address, viewer: Address, *, now_ms: int) -> Viewer | None:
        columns = viewer_table.c
        query = select(viewer_table).where(
            columns.wallet == bytes(wallet), columns.viewer == bytes(viewer), columns.until_ms > now_ms
        )
        found = await self._database.read(lambda connection: _parse(connection.execute(query)))
        return found[0] if found else None

    async def accept(self, wallet: Address, viewer: Address, *, now_ms: int) -> None:
        columns = viewer_table.c
        statement = (
            update(viewer_table)
            .where(columns.wallet == bytes(wallet), columns.viewer == bytes(viewer))
            .where(columns.accepted_ms.is_(None))
            .values(accepted_ms=now_ms)
        )
        await self._database.write(lambda connection: connection.execute(statement))

    async def list_viewers(self, wallet: Address, *, now_ms: int) -> tuple[Viewer, ...]:
        columns = viewer_table.c
        query = (
            select(viewer_table)
            .where(columns.wallet == bytes(wallet), columns.until_ms > now_ms)
            .order_by(columns.since_ms, columns.viewer)
        )
        return await self._database.read(lambda connection: _parse(connection.execute(query)))

    async def list_wallets(self, viewer: Address, *, now_ms: int, limit: int) -> tuple[Viewer, ...]:
        columns = viewer_table.c
        query = (
            select(viewer_table)
            .where(columns.viewer == bytes(viewer), columns.accepted_ms.is_not(None))
            .where(columns.until_ms > now_ms)
            .order_by(columns.accepted_ms.desc(), columns.wallet)
            .limit(limit)
        )
        return await self._database.read(lambda connection: _parse(connection.execute(query)))

    async def prune(self, *, now_ms: int) -> int:
        ended = delete(viewer_table).where(viewer_table.c.until_ms <= now_ms)
        return await self._database.write(lambda connection: connection.execute(ended).rowcount, flush=False)


def _put(connection: Connection, *, viewer: Viewer, most: int) -> Viewer | None:
    columns, wallet = viewer_table.c, bytes(viewer.wallet)
    take_advisory_locks(connection, [wallet], space=_LOCK_SPACE)
    ended = delete(viewer_table).where(columns.wallet == wallet, columns.until_ms <= viewer.since_ms)
    connection.execute(ended)
    others = select(func.count()).where(columns.wallet == wallet, columns.viewer != bytes(viewer.viewer))
    if (connection.scalar(others) or 0) >= most:
        return None
    row = {
        "wallet": wallet,
        "viewer": bytes(viewer.viewer),
        "since_ms": viewer.since_ms,
        "until_ms": viewer.until_ms,
    }
    new = insert_for(connection, viewer_table).values(row)
    stored = new.on_conflict_do_update(
        index_elements=[columns.wallet, columns.viewer], set_={"until_ms": viewer.until_ms}
    ).returning(*columns)
    (one,) = _parse(connection.execute(stored))
    return one


def _parse(rows: Iterable[Row[Any]]) -> tuple[Viewer, ...]:
    return tuple(
        Viewer(
            wallet=Address(row.wallet),
            viewer=Address(row.viewer),
            since_ms=row.since_ms,
            until_ms=row.until_ms,
            accepted_ms=row.accepted_ms,
        )
        for row in rows
    )
