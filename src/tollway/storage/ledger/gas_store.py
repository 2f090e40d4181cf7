"""Gas keys in SQL: their next nonces, their transactions (attempts to settle a call), and the costs of these. Signs and sends nothing.

`settlement` uses the functions over a connection: it takes a nonce in the commit that stores the transaction hash.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    case,
    cast,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects import postgresql

from tollway.ids import Address, CallId, ChainId, ListingId, TxHash
from tollway.ledger.ledger import CodeRecord, NonceUnavailable
from tollway.ledger.records import CallState, SettlementAttempt
from tollway.money import UNITS_MAX
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import Prepared, insert_for
from tollway.storage.ledger.ledger_tables import (
    attempt_table,
    channel_claim_table,
    settlement_nonce_table,
    wallet_gas_table,
)
from tollway.storage.ledger.locked_rows import LockedRows

SignerKey = tuple[Address, ChainId]
_GWEI = 10**9
_OF_WALLET_GAS = ("code_hash", "listing_id", "cost_wei", "is_reverted", "created_ms")


class GasStore:
    """Implements `GasLedger`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def next_nonce(self, chain_id: ChainId, sender: Address) -> int:
        columns = settlement_nonce_table.c
        query = select(columns.next_nonce).where(columns.sender == sender, columns.chain_id == chain_id)
        found = await self._database.read(lambda connection: connection.execute(query).scalar())
        return 0 if found is None else int(found)

    async def raise_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        def work(connection: Connection) -> int:
            signer = (sender, chain_id)
            before = lock_nonces(connection, [signer])[signer]
            after = max(before, nonce)
            write_nonces(connection, {signer: after})
            return after

        return await write_retried(self._database, work)

    async def lower_nonce(self, chain_id: ChainId, sender: Address, nonce: int) -> int:
        columns = attempt_table.c
        waiting = select(columns.nonce).where(
            columns.sender == sender, columns.chain_id == chain_id, columns.nonce >= nonce, text("is_open")
        )

        def work(connection: Connection) -> int:
            signer = (sender, chain_id)
            before = lock_nonces(connection, [signer])[signer]
            if before <= nonce or connection.execute(waiting.limit(1)).first() is not None:
                return before
            write_nonces(connection, {signer: nonce})
            return nonce

        return await write_retried(self._database, work)

    async def add_attempt(
        self, attempt: SettlementAttempt, *, is_filling: bool = False
    ) -> bool | NonceUnavailable:
        return await write_retried(
            self._database, partial(_add_attempt, attempt=attempt, is_filling=is_filling)
        )

    async def attempts_of(self, call_id: CallId) -> tuple[SettlementAttempt, ...]:
        columns = attempt_table.c
        query = select(attempt_table).where(columns.call_id == call_id)
        return await self._read_attempts(query.order_by(columns.created_ms, columns.nonce, columns.tx_hash))

    async def open_attempts(
        self, chain_id: ChainId, sender: Address, *, limit: int
    ) -> tuple[SettlementAttempt, ...]:
        columns = attempt_table.c
        query = (
            select(attempt_table)
            .where(columns.sender == sender, columns.chain_id == chain_id, text("is_open"))
            .order_by(columns.nonce, columns.created_ms, columns.tx_hash)
            .limit(limit)
        )
        return await self._read_attempts(query)

    async def mark_mined(self, chain_id: ChainId, sender: Address, *, below: int) -> None:
        columns = attempt_table.c
        at = update(attempt_table).where(
            columns.sender == sender, columns.chain_id == chain_id, columns.nonce < below, text("is_open")
        )
        await self._database.write(lambda connection: connection.execute(at.values(is_open=False)))

    async def reopen(self, chain_id: ChainId, sender: Address, *, since_nonce: int, since_ms: int) -> None:
        columns = attempt_table.c
        at = update(attempt_table).where(
            columns.chain_id == chain_id,
            columns.created_ms >= since_ms,
            columns.sender == sender,
            columns.nonce >= since_nonce,
            ~columns.is_open,
        )
        await self._database.write(lambda connection: connection.execute(at.values(is_open=True)))

    async def record_cost(self, attempt: SettlementAttempt, *, cost_wei: int) -> None:
        columns = attempt_table.c
        at = update(attempt_table).where(
            columns.call_id == attempt.call_id,
            columns.chain_id == attempt.chain_id,
            columns.sender == attempt.sender,
            columns.nonce == attempt.nonce,
        )
        cost = case((columns.tx_hash == attempt.tx_hash, min(cost_wei, UNITS_MAX)), else_=0)
        await self._database.write(
            lambda connection: connection.execute(at.values(cost_wei=cost)), flush=False
        )

    async def gas_spent_wei(self, chain_id: ChainId, *, since_ms: int) -> dict[ListingId, int]:
        columns = attempt_table.c
        of_nonce = (
            select(columns.listing_id, func.max(columns.cost_wei).label("wei"))
            .where(columns.chain_id == chain_id, columns.created_ms >= since_ms)
            .group_by(columns.listing_id, columns.sender, columns.nonce)
            .subquery()
        )
        # In two halves: the sum of a day may exceed 64 bits, the cost of one transaction never does.
        halves = (of_nonce.c.wei // _GWEI, of_nonce.c.wei % _GWEI)
        query = select(of_nonce.c.listing_id, *(cast(func.sum(half), BigInteger) for half in halves))
        rows = await self._database.read(
            lambda connection: connection.execute(query.group_by(of_nonce.c.listing_id)).all()
        )
        return {ListingId(row[0]): int(row[1]) * _GWEI + int(row[2]) for row in rows}

    async def record_wallet_cost(
        self, attempt: SettlementAttempt, *, cost_wei: int, is_reverted: bool
    ) -> None:
        columns = wallet_gas_table.c
        at = update(wallet_gas_table).where(
            columns.sender == attempt.sender,
            columns.chain_id == attempt.chain_id,
            columns.nonce == attempt.nonce,
        )
        new_values = at.values(cost_wei=min(cost_wei, UNITS_MAX), is_reverted=is_reverted)
        await self._database.write(lambda connection: connection.execute(new_values), flush=False)

    async def wallet_gas_wei(self, chain_id: ChainId, *, since_ms: int) -> dict[ListingId, int]:
        columns = wallet_gas_table.c
        halves = (columns.cost_wei // _GWEI, columns.cost_wei % _GWEI)
        query = (
            select(columns.listing_id, *(cast(func.sum(half), BigInteger) for half in halves))
            .where(columns.chain_id == chain_id, columns.created_ms >= since_ms)
            .group_by(columns.listing_id)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return {ListingId(row[0]): int(row[1]) * _GWEI + int(row[2]) for row in rows}

    async def reverting_codes(self, chain_id: ChainId, *, since_ms: int) -> dict[bytes, CodeRecord]:
        columns = wallet_gas_table.c
        reverted = func.sum(case((columns.is_reverted, 1), else_=0))
        query = (
            select(columns.code_hash, func.count(), reverted)
            .where(columns.chain_id == chain_id, columns.created_ms >= since_ms)
            .group_by(columns.code_hash)
            .having(reverted > 0)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return {bytes(row[0]): CodeRecord(signed=int(row[1]), reverted=int(row[2])) for row in rows}

    async def _read_attempts(self, query: Select[Any]) -> tuple[SettlementAttempt, ...]:
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return tuple(map(_parse_attempt, rows))


def _add_attempt(
    connection: Connection, *, attempt: SettlementAttempt, is_filling: bool
) -> bool | NonceUnavailable:
    """Stores an attempt in one transaction. A nonce of an earlier attempt of the call is a fee bump. `is_filling`: takes a nonce below the signer's
    next nonce that no open transaction has."""
    if not _may_be_sent(connection, attempt.call_id, is_filling=is_filling):
        return False
    if is_attempt_stored(connection, attempt):
        return True
    columns = attempt_table.c
    earlier = select(columns.tx_hash).where(
        columns.call_id == attempt.call_id,
        columns.chain_id == attempt.chain_id,
        columns.sender == attempt.sender,
        columns.nonce == attempt.nonce,
    )
    signer = (attempt.sender, attempt.chain_id)
    if connection.execute(earlier.limit(1)).first() is None:
        next_nonce = lock_nonces(connection, [signer])[signer]
        if is_filling:
            if attempt.nonce >= next_nonce or is_nonce_open(connection, attempt):
                return False
        elif attempt.nonce != next_nonce:
            return NonceUnavailable(next_nonce=next_nonce)
        else:
            write_nonces(connection, {signer: next_nonce + 1})
    write_attempts(connection, [attempt])
    return True


def _may_be_sent(connection: Connection, call_id: CallId, *, is_filling: bool) -> bool:
    """Locks the call, or the claim of channels, that the transaction is for."""
    call = LockedRows(connection).lock_calls([call_id]).get(call_id)
    if call is not None:
        return is_filling or call.state is CallState.SETTLING
    claims = channel_claim_table.c
    query = select(claims.ended_ms).where(claims.id == call_id).with_for_update()
    claim = connection.execute(query).first()
    return claim is not None and (is_filling or claim.ended_ms is None)


def is_attempt_stored(connection: Connection, attempt: SettlementAttempt) -> bool:
    columns = attempt_table.c
    query = select(columns.call_id).where(
        columns.tx_hash == attempt.tx_hash,
        columns.chain_id == attempt.chain_id,
        columns.call_id == attempt.call_id,
    )
    return connection.execute(query).first() is not None


def lock_nonces(connection: Connection, signers: Collection[SignerKey]) -> dict[SignerKey, int]:
    """Locks the next nonces of the signers, in one order, and returns them. A new signer begins at 0."""
    nonces: dict[SignerKey, int] = {}
    for sender, chain_id in sorted(set(signers)):
        found = _LOCK_NONCE.fetch(connection, sender=sender, chain_id=chain_id)
        if not found:
            _ADD_SIGNER.run(connection, [{"sender": sender, "chain_id": chain_id}])
            found = _LOCK_NONCE.fetch(connection, sender=sender, chain_id=chain_id)
        nonces[sender, chain_id] = found[0][0]
    return nonces


def write_nonces(connection: Connection, signers: dict[SignerKey, int]) -> None:
    rows = [
        {"sender": sender, "chain_id": chain_id, "to_nonce": nonce}
        for (sender, chain_id), nonce in sorted(signers.items())
    ]
    if rows:
        _WRITE_NONCE.run(connection, rows)


_IS_SIGNER = and_(
    settlement_nonce_table.c.sender == bindparam("sender"),
    settlement_nonce_table.c.chain_id == bindparam("chain_id"),
)
_LOCK_NONCE = Prepared(select(settlement_nonce_table.c.next_nonce).where(_IS_SIGNER).with_for_update())
_WRITE_NONCE = Prepared(
    update(settlement_nonce_table).where(_IS_SIGNER).values(next_nonce=bindparam("to_nonce"))
)
# Both dialects have the same `ON CONFLICT DO NOTHING`.
_ADD_SIGNER = Prepared(
    postgresql.insert(settlement_nonce_table)
    .values(sender=bindparam("sender"), chain_id=bindparam("chain_id"), next_nonce=0)
    .on_conflict_do_nothing()
)


def is_nonce_open(connection: Connection, attempt: SettlementAttempt) -> bool:
    """True when a call has a transaction with this nonce that is not known to be mined. The signer's next nonce is locked."""
    columns = attempt_table.c
    query = select(columns.nonce).where(
        columns.sender == attempt.sender,
        columns.chain_id == attempt.chain_id,
        columns.nonce == attempt.nonce,
        text("is_open"),
    )
    return connection.execute(query.limit(1)).first() is not None


def write_attempts(connection: Connection, attempts: Sequence[SettlementAttempt]) -> None:
    rows: list[dict[str, Any]] = [
        {
            "tx_hash": attempt.tx_hash,
            "chain_id": attempt.chain_id,
            "call_id": attempt.call_id,
            "listing_id": attempt.listing_id,
            "sender": attempt.sender,
            "nonce": attempt.nonce,
            "raw": attempt.raw,
            "fee_max_wei": str(attempt.fee_max_wei),
            "cost_wei": min(attempt.fee_max_wei, UNITS_MAX),
            "is_open": True,
            "created_ms": attempt.created_ms,
        }
        for attempt in attempts
    ]
    if rows:
        _ADD_ATTEMPTS.run(connection, rows)
    with_code = [attempt for attempt in attempts if attempt.code_hash is not None]
    if with_code:
        _write_wallet_gas(connection, with_code)


_ADD_ATTEMPTS = Prepared(
    insert(attempt_table).values({name: bindparam(name) for name in attempt_table.columns.keys()})  # noqa: SIM118
)


def _write_wallet_gas(connection: Connection, attempts: Sequence[SettlementAttempt]) -> None:
    """Writes the gas of payers with code. The row of a nonce belongs to the last transaction that was signed with it."""
    fresh = insert_for(connection, wallet_gas_table)
    new_values = {name: fresh.excluded[name] for name in _OF_WALLET_GAS}
    key = [column.name for column in wallet_gas_table.primary_key]
    rows = [
        {
            "sender": attempt.sender,
            "chain_id": attempt.chain_id,
            "nonce": attempt.nonce,
            "code_hash": attempt.code_hash,
            "listing_id": attempt.listing_id,
            "cost_wei": min(attempt.fee_max_wei, UNITS_MAX),
            "is_reverted": False,
            "created_ms": attempt.created_ms,
        }
        for attempt in attempts
    ]
    connection.execute(fresh.on_conflict_do_update(index_elements=key, set_=new_values), rows)


def _parse_attempt(row: Row[Any]) -> SettlementAttempt:
    return SettlementAttempt(
        chain_id=ChainId(row.chain_id),
        tx_hash=TxHash(row.tx_hash),
        call_id=CallId(row.call_id),
        listing_id=ListingId(row.listing_id),
        sender=Address(row.sender),
        nonce=row.nonce,
        raw=bytes(row.raw),
        fee_max_wei=int(row.fee_max_wei),
        created_ms=row.created_ms,
    )
