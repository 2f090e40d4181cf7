"""The store of the idempotency keys of `POST /apis` (port: `Creations` in `registry/catalog.py`), in both SQL dialects.

Leases and ages are measured by the clock that all gateways share: PostgreSQL's clock, on SQLite that of the process.

The stored response bodies have a maximum total size. `begin` clears the oldest bodies to make space for one more; a repeat of such a
creation still gets the id of its listing. The total size is read from time to time; between these reads the process counts each body
with the maximum size. With several gateways the total can exceed its maximum for a moment.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Index,
    LargeBinary,
    Row,
    String,
    Table,
    Text,
    cast,
    delete,
    func,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert as insert_postgresql
from sqlalchemy.dialects.sqlite import insert as insert_sqlite

from tollway.ids import Address, ListingId
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.registry.catalog import (
    CREATION_KEY_TTL_S,
    CreationBegun,
    CreationInProgress,
    CreationOutcome,
    CreationResponse,
    KeyedCreation,
    OtherRequest,
    TooManyKeys,
)
from tollway.storage.engine.database import Database, metadata, write_retried
from tollway.storage.ledger.recovery import SharedClock, read_shared_clock

creation_table = Table(
    "creation_key",
    metadata,
    Column("wallet", LargeBinary(20), primary_key=True),
    Column("idempotency_key", String(255), primary_key=True),
    Column("fingerprint", LargeBinary(32), nullable=False),
    Column("claim", LargeBinary(16), nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("listing_id", String(64)),
    Column("location", Text),
    Column("etag", Text),
    Column("body", LargeBinary),
    Index("ix_creation_key_created_ms", "created_ms"),
)

CREATION_LEASE_MS = 60_000
"""A creation that takes longer loses its idempotency key to a repeat."""

CLEAR_BATCH_MAX = 500
RECOUNT_PART = 16
"""The total size is read again when the creations that this process has begun may have added one sixteenth of its maximum."""


class CreationStore:
    def __init__(
        self,
        database: Database,
        *,
        now_ms: Callable[[], int],
        limits: Limits = DEFAULT_LIMITS,
        shared_clock: SharedClock = read_shared_clock,
    ) -> None:
        self._database = database
        self._now_ms = now_ms
        self._limits = limits
        self._shared_clock = shared_clock
        self._response_bytes_max = min(limits.response_bytes_max, limits.creation_responses_bytes_max)
        self._bytes_until_recount = 0

    async def begin(self, request: KeyedCreation, *, claim: bytes) -> CreationOutcome:
        must_count = self._bytes_until_recount < self._response_bytes_max
        begin = partial(self._begin, request=request, claim=claim, must_count=must_count)
        outcome = await write_retried(self._database, begin)
        if isinstance(outcome, CreationBegun):
            part = self._limits.creation_responses_bytes_max // RECOUNT_PART
            free_bytes = part if must_count else self._bytes_until_recount
            self._bytes_until_recount = free_bytes - self._response_bytes_max
        return outcome

    async def release(self, begun: CreationBegun) -> None:
        columns = creation_table.c
        unused = delete(creation_table).where(*_is_held_by(begun), columns.listing_id.is_(None))
        await self._database.write(lambda connection: connection.execute(unused))

    async def prune(self) -> int:
        return await self._database.write(self._prune, flush=False)

    def _begin(
        self, connection: Connection, request: KeyedCreation, claim: bytes, must_count: bool
    ) -> CreationOutcome:
        outcome = self._take_key(connection, request, claim)
        if must_count and isinstance(outcome, CreationBegun):
            # Makes space for all bodies until the next count.
            most = self._limits.creation_responses_bytes_max
            _clear_oldest_bodies(connection, most - max(self._response_bytes_max, most // RECOUNT_PART))
        return outcome

    def _take_key(self, connection: Connection, request: KeyedCreation, claim: bytes) -> CreationOutcome:
        now_ms = self._shared_clock(connection, self._now_ms())
        begun = CreationBegun(wallet=request.wallet, key=request.key, claim=claim)
        taken = {
            "fingerprint": request.fingerprint,
            "claim": claim,
            "lease_until_ms": now_ms + CREATION_LEASE_MS,
            "created_ms": now_ms,
        }
        if _insert_new(connection, begun, taken):
            if not self._has_too_many(connection, request.wallet, now_ms):
                return begun
            connection.execute(delete(creation_table).where(*_is_held_by(begun)))
            return TooManyKeys()
        named = _is_named(begun)
        row = connection.execute(select(creation_table).where(*named).with_for_update()).one_or_none()
        # Another request released the key after the insert found its row.
        if row is None:
            return CreationInProgress(wait_s=1)
        if (known := self._read_known(row, request, now_ms)) is not None:
            return known
        blank = {"listing_id": None, "location": None, "etag": None, "body": None}
        connection.execute(update(creation_table).where(*named).values({**taken, **blank}))
        return begun

    def _read_known(self, row: Row[Any], request: KeyedCreation, now_ms: int) -> CreationOutcome | None:
        """The outcome for a key that exists; None when the key is free again."""
        left_ms = row.lease_until_ms - now_ms
        # A clock that was set back must not make a lease longer. A request that loses its key too early creates nothing (`finish_creation`).
        is_running = row.listing_id is None and 0 < left_ms <= CREATION_LEASE_MS
        if row.created_ms <= self._oldest_ms(now_ms) or not (is_running or row.listing_id is not None):
            return None
        if row.fingerprint != request.fingerprint:
            return OtherRequest()
        if is_running:
            return CreationInProgress(wait_s=-(-left_ms // 1000))
        return CreationResponse(
            listing_id=ListingId(row.listing_id), location=row.location, etag=row.etag, body=row.body
        )

    def _has_too_many(self, connection: Connection, wallet: Address, now_ms: int) -> bool:
        """True when the wallet has more keys than `creation_keys_max`. Two requests at the same time may exceed it by one."""
        columns = creation_table.c
        counted = select(func.count()).where(
            columns.wallet == bytes(wallet), columns.created_ms > self._oldest_ms(now_ms)
        )
        return (connection.scalar(counted) or 0) > self._limits.creation_keys_max

    def _prune(self, connection: Connection) -> int:
        oldest_ms = self._oldest_ms(self._shared_clock(connection, self._now_ms()))
        return connection.execute(
            delete(creation_table).where(creation_table.c.created_ms <= oldest_ms)
        ).rowcount

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - CREATION_KEY_TTL_S * 1000


def finish_creation(connection: Connection, begun: CreationBegun, answer: CreationResponse) -> bool:
    """Writes the response in the transaction that writes the listing. False: another request holds the key; nothing was written, and the
    listing must not be written either."""
    written = update(creation_table).where(*_is_held_by(begun), creation_table.c.listing_id.is_(None))
    values = {
        "listing_id": answer.listing_id,
        "location": answer.location,
        "etag": answer.etag,
        "body": answer.body,
    }
    return connection.execute(written.values(values)).rowcount == 1


def _insert_new(connection: Connection, begun: CreationBegun, values: Mapping[str, object]) -> bool:
    """Inserts a key. False when it exists. On PostgreSQL it first waits for a transaction that inserts the same key."""
    insert = insert_postgresql if connection.dialect.name == "postgresql" else insert_sqlite
    row = {"wallet": bytes(begun.wallet), "idempotency_key": begun.key, **values}
    return connection.execute(insert(creation_table).values(row).on_conflict_do_nothing()).rowcount == 1


def _clear_oldest_bodies(connection: Connection, bytes_max: int) -> None:
    """Reads lengths only, no bodies."""
    columns = creation_table.c
    length = func.octet_length if connection.dialect.name == "postgresql" else func.length
    total = select(cast(func.coalesce(func.sum(length(columns.body)), 0), BigInteger))
    oldest = (
        select(columns.wallet, columns.idempotency_key, length(columns.body))
        .where(columns.body.is_not(None))
        .order_by(columns.created_ms)
        .limit(CLEAR_BATCH_MAX)
        # Another gateway may clear bodies at the same time.
        .with_for_update(skip_locked=True)
    )
    surplus = int(connection.execute(total).scalar_one()) - bytes_max
    while surplus > 0:
        cleared = []
        for wallet, key, size in connection.execute(oldest).all():
            if surplus > 0:
                cleared.append((wallet, key))
                surplus -= size
        if not cleared:
            return
        named = tuple_(columns.wallet, columns.idempotency_key).in_(cleared)
        connection.execute(update(creation_table).where(named).values(body=None))


def _is_named(begun: CreationBegun) -> tuple[ColumnElement[bool], ...]:
    columns = creation_table.c
    return columns.wallet == bytes(begun.wallet), columns.idempotency_key == begun.key


def _is_held_by(begun: CreationBegun) -> tuple[ColumnElement[bool], ...]:
    return *_is_named(begun), creation_table.c.claim == begun.claim
