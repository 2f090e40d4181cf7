"""The free calls of wallets in SQL: one row for a wallet at a listing.

A call is counted by one statement that also compares, so parallel calls of several gateways never pass the maximum. New wallets of one client address are
counted under an advisory lock. The address itself is not stored: `address_day` is a digest of it, the listing and the day.
"""

from functools import partial
from hashlib import sha256

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    case,
    func,
    or_,
    select,
    update,
)

from tollway.ids import Address, ListingId
from tollway.ledger.free_calls import FreeCallTaken, FreeCallTerms, NoneLeft, TooManyWallets
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.database import Database, metadata, write_retried
from tollway.storage.engine.statements import insert_for

free_call_table = Table(
    "free_call",
    metadata,
    Column("listing_id", String(64), primary_key=True),
    Column("wallet", LargeBinary(20), primary_key=True),
    Column("used", Integer, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("address_day", LargeBinary(16), nullable=False),
    Index("ix_free_call_address_day", "address_day"),
)
"""`used`: in the period that began at `since_ms`. `address_day`: of the wallet's first call."""

_DAY_MS = 86_400_000
_LOCK_SPACE = 0x6672_6565
_NEVER_MS = -1


class SqlFreeCalls:
    """Implements `FreeCallStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_refusal(self, terms: FreeCallTerms, wallet: Address, *, now_ms: int) -> NoneLeft | None:
        return await self._database.read(
            lambda connection: _find_refusal(connection, terms, wallet, now_ms=now_ms)
        )

    async def take(
        self, terms: FreeCallTerms, wallet: Address, *, address: str, wallets_max: int, now_ms: int
    ) -> FreeCallTaken | NoneLeft | TooManyWallets:
        take = partial(_take, terms=terms, wallet=wallet, wallets_max=wallets_max, now_ms=now_ms)
        digest = sha256(f"{now_ms // _DAY_MS} {terms.listing_id} {address}".encode()).digest()[:16]
        return await write_retried(self._database, partial(take, address_day=digest))

    async def give_back(self, listing_id: ListingId, wallet: Address, taken: FreeCallTaken) -> None:
        columns = free_call_table.c
        statement = (
            update(free_call_table)
            .where(columns.listing_id == listing_id, columns.wallet == bytes(wallet), columns.used > 0)
            .where(columns.since_ms == taken.since_ms)
            .values(used=columns.used - 1)
        )
        await self._database.write(lambda connection: connection.execute(statement))


def _take(
    connection: Connection,
    *,
    terms: FreeCallTerms,
    wallet: Address,
    address_day: bytes,
    wallets_max: int,
    now_ms: int,
) -> FreeCallTaken | NoneLeft | TooManyWallets:
    taken = _count(connection, terms, wallet, now_ms=now_ms)
    if taken is not None:
        return taken
    refusal = _find_refusal(connection, terms, wallet, now_ms=now_ms)
    if refusal is not None:
        return refusal
    take_advisory_locks(connection, [address_day], space=_LOCK_SPACE)
    columns = free_call_table.c
    begun = select(func.count()).where(columns.address_day == address_day, columns.wallet != bytes(wallet))
    if (connection.scalar(begun) or 0) >= wallets_max:
        return TooManyWallets()
    row = {
        "listing_id": terms.listing_id,
        "wallet": bytes(wallet),
        "used": 0,
        "since_ms": now_ms,
        "address_day": address_day,
    }
    # The first two calls of a wallet may come at once: the second finds the row of the first.
    connection.execute(insert_for(connection, free_call_table).values(row).on_conflict_do_nothing())
    taken = _count(connection, terms, wallet, now_ms=now_ms)
    refused = None if taken is not None else _find_refusal(connection, terms, wallet, now_ms=now_ms)
    answer = taken or refused
    assert answer is not None  # the row is there: it has a call left, or none
    return answer


def _count(
    connection: Connection, terms: FreeCallTerms, wallet: Address, *, now_ms: int
) -> FreeCallTaken | None:
    """Counts one call where the wallet has a row and a call left."""
    columns, ended_ms = free_call_table.c, _find_ended_ms(terms, now_ms)
    is_ended = columns.since_ms <= ended_ms
    statement = (
        update(free_call_table)
        .where(columns.listing_id == terms.listing_id, columns.wallet == bytes(wallet))
        .where(or_(columns.used < terms.count, is_ended))
        .values(
            used=case((is_ended, 1), else_=columns.used + 1),
            since_ms=case((is_ended, now_ms), else_=columns.since_ms),
        )
        .returning(columns.since_ms)
    )
    since_ms = connection.scalar(statement)
    return None if since_ms is None else FreeCallTaken(since_ms=since_ms)


def _find_refusal(
    connection: Connection, terms: FreeCallTerms, wallet: Address, *, now_ms: int
) -> NoneLeft | None:
    columns = free_call_table.c
    query = select(columns.used, columns.since_ms).where(
        columns.listing_id == terms.listing_id, columns.wallet == bytes(wallet)
    )
    row = connection.execute(query).one_or_none()
    if row is None or row.used < terms.count or row.since_ms <= _find_ended_ms(terms, now_ms):
        return None
    return NoneLeft(until_ms=None if terms.per_ms is None else row.since_ms + terms.per_ms)


def _find_ended_ms(terms: FreeCallTerms, now_ms: int) -> int:
    """A period that began at or before this moment has ended."""
    return _NEVER_MS if terms.per_ms is None else now_ms - terms.per_ms
