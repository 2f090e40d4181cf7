"""Records of the operator and of the gateways beside payments and calls: admitted transactions, restores of the database, readiness.

A restore holds every balance until the operator releases it. The age of a transaction does not grow while no gateway is ready.
"""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, exists, func, insert, select, text, update

from tollway.ids import TxHash
from tollway.ledger.ledger import AuditReport
from tollway.operator_acts import ActKind, ActOrigin, OperatorAct
from tollway.storage.closed_periods import mark_wrong
from tollway.storage.database import Database, write_retried
from tollway.storage.history import audit
from tollway.storage.ledger_tables import (
    admission_table,
    outage_table,
    payment_table,
    readiness_table,
    restore_table,
)
from tollway.storage.operator_acts import record_act
from tollway.storage.statements import insert_for

LEDGER = "ledger"
"""The target of an act on all balances."""
SALES = "sales"
"""The target of an act on closed hours and days."""
GAP_MS = 60_000
"""Two records of readiness that are further apart than this mean an outage of all gateways."""

# The id in a table of one row.
_ROW = 1
IS_RESTORED = exists().where(restore_table.c.released_ms.is_(None))
"""True while balances are held after a restore that the operator has not released."""
_HELD_BEFORE = select(func.max(restore_table.c.noted_ms)).where(restore_table.c.released_ms.is_(None))


class OperatorStore:
    """Implements `OperatorLedger` and `Readiness`. `now_ms`: the time that all gateways share."""

    def __init__(self, database: Database, *, now_ms: Callable[[], int]) -> None:
        self._database = database
        self._now_ms = now_ms

    async def audit(self) -> AuditReport:
        return await self._database.read(audit, is_long=True)

    async def release_held(self, *, origin: ActOrigin) -> int:
        restores, payments = restore_table.c, payment_table.c
        release = update(restore_table).where(restores.released_ms.is_(None))
        free = update(payment_table).where(payments.is_held).values(is_held=False)
        released_ms = self._now_ms()

        act = OperatorAct(kind=ActKind.RELEASE_BALANCES, target=LEDGER, origin=origin)

        def work(connection: Connection) -> int:
            ended = connection.execute(release.values(released_ms=released_ms)).rowcount
            freed = connection.execute(free).rowcount
            if ended or freed:
                record_act(connection, act)
            return freed

        return await write_retried(self._database, work, is_long=True)

    async def admit(self, tx_hash: TxHash, *, origin: ActOrigin) -> None:
        act = OperatorAct(kind=ActKind.ADMIT_TRANSACTION, target=str(tx_hash), origin=origin)
        values = {"tx_hash": tx_hash, "admitted_ms": origin.at_ms}

        def work(connection: Connection) -> None:
            statement = insert_for(connection, admission_table).values(values)
            if connection.execute(statement.on_conflict_do_nothing()).rowcount > 0:
                record_act(connection, act)

        await write_retried(self._database, work)

    async def mark_restored(self, *, origin: ActOrigin) -> None:
        """Holds every balance. Gateways detect most restores themselves (`RestoreDetector`)."""
        act = OperatorAct(kind=ActKind.HOLD_BALANCES, target=LEDGER, origin=origin)

        def work(connection: Connection) -> None:
            mark_restored(connection, now_ms=origin.at_ms)
            record_act(connection, act)

        await write_retried(self._database, work, is_long=True)

    async def rewrite_periods(self, starts_ms: Sequence[int], *, origin: ActOrigin) -> int:
        if not starts_ms:
            return 0
        act = OperatorAct(kind=ActKind.REWRITE_PERIODS, target=SALES, origin=origin)

        def work(connection: Connection) -> None:
            mark_wrong(connection, starts_ms, now_ms=origin.at_ms)
            record_act(connection, act)

        await write_retried(self._database, work)
        return len(starts_ms)

    async def mark_ready(self, *, now_ms: int) -> None:
        """Records that a gateway is ready. The first record after a gap also writes the outage."""
        columns = readiness_table.c
        query = select(columns.ready_ms).where(columns.id == _ROW).with_for_update()

        def work(connection: Connection) -> None:
            first = insert_for(connection, readiness_table).values(id=_ROW, ready_ms=now_ms)
            connection.execute(first.on_conflict_do_nothing())
            ready_ms = connection.execute(query).scalar_one()
            if now_ms <= ready_ms:
                return
            if now_ms - ready_ms > GAP_MS:
                outage = insert_for(connection, outage_table).values(from_ms=ready_ms, to_ms=now_ms)
                connection.execute(outage.on_conflict_do_nothing())
            connection.execute(update(readiness_table).where(columns.id == _ROW).values(ready_ms=now_ms))

        await write_retried(self._database, work)

    async def downtime_ms(self, *, since_ms: int, now_ms: int) -> int:
        """The time without a ready gateway. The time before the first record counts as ready: a new gateway must not accept old transfers as
        new."""
        columns = outage_table.c
        query = select(columns.from_ms, columns.to_ms).where(
            columns.to_ms > since_ms, columns.from_ms < now_ms
        )

        def work(connection: Connection) -> int:
            gaps = [(row.from_ms, row.to_ms) for row in connection.execute(query)]
            ready_ms = connection.execute(select(readiness_table.c.ready_ms)).scalar()
            if ready_ms is not None and now_ms - ready_ms > GAP_MS:
                gaps.append((ready_ms, now_ms))
            return sum(max(0, min(to_ms, now_ms) - max(from_ms, since_ms)) for from_ms, to_ms in gaps)

        return await self._database.read(work)


def find_operator_records(connection: Connection, tx_hash: TxHash) -> tuple[bool, int | None]:
    """Whether a transaction is admitted, and the moment of the last restore that is not released: transactions before it are held. None without
    such a restore."""
    admitted = exists().where(admission_table.c.tx_hash == tx_hash)
    is_admitted, held_before_ms = connection.execute(select(admitted, _HELD_BEFORE.scalar_subquery())).one()
    return bool(is_admitted), held_before_ms


def mark_restored(connection: Connection, *, now_ms: int) -> None:
    """Records a restore and holds every balance in the ledger."""
    if connection.dialect.name == "postgresql":
        # One lock for the table, because this update cannot lock payments in the order of claims.
        connection.execute(text("LOCK TABLE payment IN EXCLUSIVE MODE"))
    connection.execute(insert(restore_table), {"noted_ms": now_ms})
    connection.execute(update(payment_table).where(~payment_table.c.is_held).values(is_held=True))


def held_before_ms(connection: Connection) -> int | None:
    found: int | None = connection.execute(_HELD_BEFORE).scalar_one()
    return found
