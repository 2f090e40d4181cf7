"""Re-encryption: counts the stored values by the key that sealed them, and seals the values of older keys again with the first key.

It runs while gateways serve: each step is a transaction of its own, waits for no row lock, and changes nothing but the encrypted column. A process
that is killed leaves every value sealed with its old key or with the new one; a repeat takes what is left.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Column, Connection, Select, select, update

from tollway.audit_log import AuditAction, AuditEntry, AuditOrigin
from tollway.storage.catalog.catalog_store import forward_label, secret_label
from tollway.storage.catalog.catalog_tables import listing_table
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.encryption import KeyAge, Sealer
from tollway.storage.ledger.idempotency import response_label
from tollway.storage.ledger.response_pool import stored_response_table
from tollway.storage.operator.operator_writes import record_audit_entry
from tollway.storage.webhooks.webhook_outbox import secret_label as webhook_secret_label
from tollway.storage.webhooks.webhook_tables import endpoint_table

LOST_IDS_MAX = 20
SECRETS = "secrets"
"""The target of an entry on all encrypted values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _EncryptedColumn:
    """A column of sealed values. `row_id`: the primary key of its table. `label`: the associated data of a row's value, computed from `row_id` and
    `label_columns`. `page_size`: rows of one read and of one transaction."""

    row_id: Column[Any]
    sealed: Column[Any]
    label_columns: Sequence[Column[Any]] = ()
    label: Callable[[Any], bytes]
    page_size: int


_SECRETS = _EncryptedColumn(
    row_id=listing_table.c.id,
    sealed=listing_table.c.auth_sealed,
    label_columns=(listing_table.c.auth_location, listing_table.c.auth_name),
    label=lambda row: secret_label(row.row_id, row.auth_location, row.auth_name),
    page_size=100,
)
_FORWARD_SECRETS = _EncryptedColumn(
    row_id=listing_table.c.id,
    sealed=listing_table.c.forward_sealed,
    label=lambda row: forward_label(row.row_id),
    page_size=100,
)
_WEBHOOK_SECRETS = _EncryptedColumn(
    row_id=endpoint_table.c.id,
    sealed=endpoint_table.c.secret_sealed,
    label=lambda row: webhook_secret_label(row.row_id),
    page_size=100,
)
_RESPONSES = _EncryptedColumn(
    row_id=stored_response_table.c.call_id,
    sealed=stored_response_table.c.sealed,
    label=lambda row: response_label(row.row_id),
    page_size=16,  # of up to 256 KiB each
)


@dataclass(slots=True, kw_only=True)
class SealCount:
    """`lost`: no configured key opens the value. `lost_ids`: the row ids of such values, at most `LOST_IDS_MAX`."""

    current: int = 0
    older: int = 0
    lost: int = 0
    lost_ids: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.current + self.older + self.lost

    def add(self, ages: Mapping[str, KeyAge]) -> None:
        for row_id, age in ages.items():
            match age:
                case KeyAge.CURRENT:
                    self.current += 1
                case KeyAge.OLDER:
                    self.older += 1
                case KeyAge.LOST:
                    self.lost += 1
                    if len(self.lost_ids) < LOST_IDS_MAX:
                        self.lost_ids.append(row_id)


@dataclass(slots=True, kw_only=True)
class KeyCounts:
    """The counts of one run. `secrets`: of listings (the upstream's, and the one of forwarded calls) and of webhooks. `responses`: the responses stored for repeats. `reencrypted`: values that
    this run sealed again."""

    secrets: SealCount = field(default_factory=SealCount)
    responses: SealCount = field(default_factory=SealCount)
    reencrypted: int = 0

    @property
    def older(self) -> int:
        return self.secrets.older + self.responses.older


class KeyRotation:
    """Reads and re-encrypts the secrets of one database. Several may run at once, in one process or in many."""

    def __init__(self, database: Database, *, sealer: Sealer) -> None:
        self._database = database
        self._sealer = sealer
        # Of the entries that are recorded already: one row stands for all pages and passes of a command.
        self._recorded: set[AuditEntry] = set()

    async def count(self, *, responses_max: int | None = None) -> KeyCounts:
        """Opens every value once and changes none. `responses_max`: stops after the page that reaches this number of responses."""
        counts = KeyCounts()
        for column in (_SECRETS, _FORWARD_SECRETS, _WEBHOOK_SECRETS):
            async for ages in self._read_ages(column):
                counts.secrets.add(ages)
        async for ages in self._read_ages(_RESPONSES):
            counts.responses.add(ages)
            if responses_max is not None and counts.responses.total >= responses_max:
                break
        return counts

    async def reencrypt(self, *, origin: AuditOrigin) -> KeyCounts:
        """Seals each value of an older key again, in one pass, and counts the values as they are after it. `older` counts rows that a gateway
        held locked or had just changed: the next run takes them. The entry is recorded with the first values that change."""
        entry = AuditEntry(kind=AuditAction.REENCRYPT_SECRETS, target=SECRETS, origin=origin)
        counts = KeyCounts()
        columns = (
            (_SECRETS, counts.secrets),
            (_FORWARD_SECRETS, counts.secrets),
            (_WEBHOOK_SECRETS, counts.secrets),
            (_RESPONSES, counts.responses),
        )
        for column, count in columns:
            async for ages in self._read_ages(column):
                older = [row_id for row_id, age in ages.items() if age is KeyAge.OLDER]
                done = await self._reencrypt_page(column, older, entry) if older else []
                counts.reencrypted += len(done)
                count.add({**ages, **dict.fromkeys(done, KeyAge.CURRENT)})
        return counts

    async def _reencrypt_page(
        self, column: "_EncryptedColumn", older: list[str], entry: AuditEntry
    ) -> list[str]:
        first = None if entry in self._recorded else entry
        done = await write_retried(self._database, _Reencrypt(column, older, self._sealer, first))
        if done:
            self._recorded.add(entry)
        return done

    async def _read_ages(self, column: _EncryptedColumn) -> AsyncIterator[dict[str, KeyAge]]:
        """The age of the key of every value, by row id: a page at a time, in the order of the row ids."""
        last = ""
        while True:
            rows = await self._database.read(_Page(column, after=last))
            if rows:
                yield {
                    row.row_id: self._sealer.find_key_age(bytes(row.sealed), label=column.label(row))
                    for row in rows
                }
            if len(rows) < column.page_size:
                return
            last = rows[-1].row_id


@dataclass(frozen=True, slots=True)
class _Page:
    column: _EncryptedColumn
    after: str

    def __call__(self, connection: Connection) -> Sequence[Any]:
        column = self.column
        query = _select(column).where(column.sealed.is_not(None), column.row_id > self.after)
        return connection.execute(query.order_by(column.row_id).limit(column.page_size)).all()


@dataclass(frozen=True, slots=True)
class _Reencrypt:
    """The transaction of one page; returns the ids of the rows that it changed, and records `entry` when there are any. It skips locked rows, so that no gateway waits for it for long,
    and reads each row again: a provider may have set another secret since the page was read."""

    column: _EncryptedColumn
    row_ids: Iterable[str]
    sealer: Sealer
    entry: AuditEntry | None

    def __call__(self, connection: Connection) -> list[str]:
        column, sealer = self.column, self.sealer
        query = _select(column).where(column.sealed.is_not(None), column.row_id.in_(self.row_ids))
        done: list[str] = []
        for row in connection.execute(query.with_for_update(skip_locked=True)).all():
            sealed, label = bytes(row.sealed), column.label(row)
            if sealer.find_key_age(sealed, label=label) is not KeyAge.OLDER:
                continue
            fresh = sealer.seal(sealer.open(sealed, label=label), label=label)
            connection.execute(
                update(column.row_id.table).where(column.row_id == row.row_id).values({column.sealed: fresh})
            )
            done.append(row.row_id)
        if done and self.entry is not None:
            record_audit_entry(connection, self.entry)
        return done


def _select(column: _EncryptedColumn) -> Select[Any]:
    return select(column.row_id.label("row_id"), column.sealed.label("sealed"), *column.label_columns)
