"""Stands between a gateway and tables that it must not serve from: at its start, and while it serves, because a migration
may run at any time. On SQLite, where one gateway has the file, it migrates; on PostgreSQL that is the operator's to do.
"""

from pathlib import Path

import structlog

from tollway.errors import SettingsInvalid
from tollway.storage.database import Database
from tollway.storage.migrate import (
    MIGRATIONS,
    OLDEST_SERVICEABLE,
    TOO_OLD,
    SchemaState,
    schema_state,
    upgrade,
)

_log = structlog.get_logger(__name__)

_SERVED: frozenset[SchemaState] = frozenset({"current", "ahead", "serviceable"})


class SchemaCheck:
    """`is_served`: the tables, as they were last seen, are such that this code may serve from them."""

    def __init__(
        self,
        database: Database,
        *,
        migrations: Path = MIGRATIONS,
        oldest_serviceable: str = OLDEST_SERVICEABLE,
    ) -> None:
        self._database = database
        self._migrations = migrations
        self._oldest_serviceable = oldest_serviceable
        self.is_served = False

    async def prepare(self) -> None:
        """Raises `SettingsInvalid` when this code must not serve here."""
        state = await self._find_state()
        if self._database.dialect == "sqlite" and state in ("empty", "behind", "serviceable"):
            state = await upgrade(self._database, migrations=self._migrations)
        match state:
            case "current":
                pass
            case "ahead":
                _log.warning("schema_ahead", hint="this gateway is older than its tables; it can serve")
            case "serviceable":
                _log.warning("schema_serviceable", hint="the tables are one release old; run tollway migrate")
            case "foreign":
                raise SettingsInvalid(
                    ["database_url: the database needs a newer version of Tollway than this one"]
                )
            case "too_old":
                raise SettingsInvalid([f"database_url: {TOO_OLD}"])
            case _:
                raise SettingsInvalid(
                    ["database_url: the tables are missing or old; run `tollway migrate` first"]
                )
        self.is_served = True

    async def watch(self) -> None:
        """Looks again. A chore: what it finds shows in `is_served` and in the log."""
        state = await self._find_state()
        self.is_served = state in _SERVED
        if not self.is_served:
            _log.error("schema_not_served", state=state, hint="run a gateway of the version of the tables")

    async def _find_state(self) -> SchemaState:
        return await schema_state(
            self._database, migrations=self._migrations, oldest_serviceable=self._oldest_serviceable
        )
