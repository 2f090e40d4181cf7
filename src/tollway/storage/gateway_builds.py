"""Which release each gateway runs: a row beside the row of its lease.

A row is written at the start and again every few minutes, so that it is there after a restore.
"""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Column, Connection, String, Table, Text, delete, select

from tollway.fleet import GatewayBuild, GatewayRecord
from tollway.storage.database import Database, metadata, write_retried
from tollway.storage.ledger_tables import owner_table
from tollway.storage.statements import insert_for

GATEWAYS_MAX = 50
"""Gateways that are read, the last renewal first. The row of a lease is kept for a day."""

gateway_build_table = Table(
    "gateway_build",
    metadata,
    Column("owner_id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("schema_revision", Text, nullable=False),
)


class GatewayBuildStore:
    """Writes the row of one gateway and reads those of all. `now_ms`: the time that all gateways share."""

    def __init__(
        self, database: Database, *, owner_id: str, lease_ms: int, now_ms: Callable[[], int]
    ) -> None:
        self._database = database
        self._owner_id = owner_id
        self._lease_ms = lease_ms
        self._now_ms = now_ms

    async def record(self, build: GatewayBuild) -> None:
        """Writes the row of this gateway, and deletes those of gateways without a lease. Raises StorageUnavailable."""
        values = {"name": build.name, "version": build.version, "schema_revision": build.schema}

        def work(connection: Connection) -> None:
            statement = insert_for(connection, gateway_build_table).values(owner_id=self._owner_id, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["owner_id"], set_=values))
            owner_id = gateway_build_table.c.owner_id
            gone = owner_id.not_in(select(owner_table.c.id)) & (owner_id != self._owner_id)
            connection.execute(delete(gateway_build_table).where(gone))

        await write_retried(self._database, work)

    async def list_gateways(self) -> tuple[GatewayRecord, ...]:
        """The gateways whose lease is recorded, the last renewal first, at most `GATEWAYS_MAX`. Raises StorageUnavailable."""
        rows = await self._database.read(_read_gateways)
        alive_ms = self._now_ms() - self._lease_ms
        return tuple(
            GatewayRecord(
                owner_id=row.id,
                build=_parse_build(row),
                started_ms=row.started_ms,
                seen_ms=row.seen_ms,
                is_alive=row.seen_ms > alive_ms,
            )
            for row in rows
        )


def _read_gateways(connection: Connection) -> Sequence[Any]:
    owners, builds = owner_table.c, gateway_build_table.c
    query = (
        select(
            owners.id, owners.started_ms, owners.seen_ms, builds.name, builds.version, builds.schema_revision
        )
        .join_from(owner_table, gateway_build_table, builds.owner_id == owners.id, isouter=True)
        .order_by(owners.seen_ms.desc(), owners.id)
        .limit(GATEWAYS_MAX)
    )
    return connection.execute(query).all()


def _parse_build(row: Any) -> GatewayBuild | None:
    if row.version is None:
        return None
    return GatewayBuild(name=row.name, version=row.version, schema=row.schema_revision)
