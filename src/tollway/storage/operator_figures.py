"""Figures of the fleet for metrics: open calls, the last audit, the last backup, stale secrets, hours of sales, events of webhooks. The leading
gateway reads them.

Counts and ages come from the partial indexes of open calls, so that their cost does not grow with the history.
"""

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, text

from tollway.fleet import EncryptedValues
from tollway.storage.closed_periods import count_hours_behind
from tollway.storage.database import Database, write_retried
from tollway.storage.encryption import Sealer
from tollway.storage.key_rotation import KeyCounts, KeyRotation, SealCount
from tollway.storage.ledger_tables import audit_run_table, backup_run_table, call_table
from tollway.storage.statements import insert_for
from tollway.storage.webhook_tables import (
    NEW,
    PENDING,
    delivery_table,
    endpoint_table,
    event_table,
)
from tollway.telemetry import FleetFigures
from tollway.webhooks.endpoints import DeliveryState

COUNT_MAX = 10_000
STALE_INTERVAL_S = 300.0
"""Between two counts of encrypted values: each opens every secret once."""
RESPONSES_MAX = 200
OPEN_STATES = ("forwarding", "settling", "unknown")

_ROW = 1


class FleetFiguresStore:
    """Reads the figures. `now_ms`: the time that all gateways share. `has_other_keys`: whether the settings have more than one secret key; with one key nothing
    can be stale. `clock`: monotonic seconds."""

    def __init__(
        self,
        database: Database,
        *,
        sealer: Sealer,
        has_other_keys: bool,
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._rotation = KeyRotation(database, sealer=sealer)
        self._has_other_keys = has_other_keys
        self._now_ms = now_ms
        self._clock = clock
        self._counts = KeyCounts()
        self._counts_due_s = float("-inf")

    async def read(self) -> FleetFigures:
        """Raises StorageUnavailable."""
        stale = (await self._count_keys()).older if self._has_other_keys else 0
        now_ms = self._now_ms()
        return await self._database.read(
            lambda connection: read_figures(connection, now_ms=now_ms, secrets_stale=stale)
        )

    async def count_encrypted_values(self) -> tuple[EncryptedValues, ...]:
        """The encrypted values by the key that opens them, at most `STALE_INTERVAL_S` old. Raises StorageUnavailable."""
        counts = await self._count_keys()
        return (
            _describe_values("secrets", counts.secrets, is_whole=True),
            _describe_values("responses", counts.responses, is_whole=counts.responses.total < RESPONSES_MAX),
        )

    async def _count_keys(self) -> KeyCounts:
        if self._clock() >= self._counts_due_s:
            self._counts = await self._rotation.count(responses_max=RESPONSES_MAX)
            self._counts_due_s = self._clock() + STALE_INTERVAL_S
        return self._counts


def _describe_values(kind: str, count: SealCount, *, is_whole: bool) -> EncryptedValues:
    return EncryptedValues(
        kind=kind, current=count.current, older=count.older, lost=count.lost, is_whole=is_whole
    )


def read_figures(connection: Connection, *, now_ms: int, secrets_stale: int) -> FleetFigures:
    open_calls = {}
    for state in OPEN_STATES:
        count = connection.execute(count_open(state)).scalar_one()
        oldest_ms = connection.execute(find_oldest(state)).scalar_one()
        open_calls[state] = (count, 0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000)
    audit, backup = _read_row(connection, "audit_run"), _read_row(connection, "backup_run")
    return FleetFigures(
        open_calls=open_calls,
        audit_s=None if audit is None else audit.ended_ms / 1000,
        audit_differences=None if audit is None else audit.differences,
        backup_s=None if backup is None else backup.ended_ms / 1000,
        secrets_stale=secrets_stale,
        sales_hours_behind=count_hours_behind(connection, now_ms=now_ms),
        webhook_events=count_events(connection),
    )


def count_open(state: str, *, count_max: int = COUNT_MAX) -> Select[int]:
    """Counts the calls of a state to `count_max`. The predicate is literal, as in the index."""
    rows = select(call_table.c.moved_ms).where(text(f"state = '{state}'")).limit(count_max)
    return select(func.count()).select_from(rows.subquery())


def find_oldest(state: str) -> Select[int | None]:
    """When the oldest call of a state moved into it. It reads the partial index of the state, whole where that is not in this order: an alert depends on the
    oldest call, however many there are."""
    return select(func.min(call_table.c.moved_ms)).where(text(f"state = '{state}'"))


def count_events(connection: Connection) -> dict[str, int]:
    """Counts the events of webhooks to `COUNT_MAX` in each state. An event that no gateway has copied to its endpoints yet is pending."""
    new = select(event_table.c.number).where(text(NEW)).limit(COUNT_MAX)
    pending = select(delivery_table.c.event_no).where(text(PENDING)).limit(COUNT_MAX)
    endpoints = select(endpoint_table.c.number)
    dead = select(delivery_table.c.event_no).where(
        delivery_table.c.endpoint_no.in_(endpoints), delivery_table.c.state == DeliveryState.DEAD.value
    )
    counts = [
        connection.execute(select(func.count()).select_from(rows.subquery())).scalar_one()
        for rows in (new, pending, dead.limit(COUNT_MAX))
    ]
    return {"pending": min(counts[0] + counts[1], COUNT_MAX), "dead": counts[2]}


async def record_audit(database: Database, *, differences: int, now_ms: int) -> None:
    """Records the end of an audit. Raises StorageUnavailable."""
    values = {"ended_ms": now_ms, "differences": differences}
    await write_retried(database, lambda connection: _record(connection, "audit_run", values))


async def record_backup(database: Database, *, now_ms: int) -> None:
    """Records the end of a backup. Raises StorageUnavailable."""
    values = {"ended_ms": now_ms}
    await write_retried(database, lambda connection: _record(connection, "backup_run", values))


_TABLES = {"audit_run": audit_run_table, "backup_run": backup_run_table}


def _record(connection: Connection, name: str, values: dict[str, int]) -> None:
    statement = insert_for(connection, _TABLES[name]).values(id=_ROW, **values)
    connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))


def _read_row(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(_TABLES[name])).one_or_none()
