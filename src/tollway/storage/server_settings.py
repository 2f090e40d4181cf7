"""The settings of a PostgreSQL server, and the risks of some of them. Does not load the driver."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import Connection, text

if TYPE_CHECKING:
    from tollway.storage.postgres import PostgresDatabase


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The settings of the writable server. `hosts`: how many servers the URL lists."""

    fsync: bool
    full_page_writes: bool
    standbys: str
    is_read_only: bool
    hosts: int


async def read_server_settings(database: "PostgresDatabase") -> ServerSettings:
    """Reads the settings of the writable server. Raises `StorageUnavailable`."""
    hosts = len(database.connector.address.hosts)

    def read_settings(connection: Connection) -> ServerSettings:
        row = connection.execute(_SETTINGS_QUERY).one()
        return ServerSettings(
            fsync=row.fsync == "on",
            full_page_writes=row.full_page_writes == "on",
            standbys=row.standbys,
            is_read_only=row.is_standby or row.read_only == "on",
            hosts=hosts,
        )

    return await database.read(read_settings)


def find_risks(settings: ServerSettings) -> Iterator[str]:
    """A sentence for each risk of the settings. `synchronous_commit` is no risk: every session of a gateway switches it on."""
    if settings.is_read_only:
        yield "the server is read-only: nothing can be sold"
    if not settings.fsync:
        yield "fsync is off: a power cut can lose claims, and break the database"
    if not settings.full_page_writes:
        yield "full_page_writes is off: a power cut can break the database"
    if settings.hosts > 1 and not settings.standbys.strip():
        yield (
            "there are several servers, and synchronous_standby_names is empty: a failover can lose claims that were "
            "already served, and what paid for them could be spent again"
        )


_SETTINGS_QUERY = text(
    "SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes, "
    "current_setting('synchronous_standby_names') AS standbys, pg_is_in_recovery() AS is_standby, "
    "current_setting('default_transaction_read_only') AS read_only"
)
