"""Finality of payments in SQL: unfinal, disputed and gone payments, and transfers that a reorganisation moved to another transaction.

Statements that change several payments lock them by ascending id, as claims do. Blocks of unfinal payments are read by jumps along an
index, one jump for each block: a block may have hundreds of payments, and an hour of blocks a million rows.

When a reorganisation moves a transfer to another transaction, the units of its authorisation move from one payment to the other, under
locks in the order of a batch. The units that calls hold of them move along, those of the authorisation's own call first, so that both
balances stay correct. Where more calls than `moved_calls_max` hold units, the first payment becomes gone before (`storage.ledger.gone_payments`), and the moved
units pay the debts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    LargeBinary,
    ScalarSelect,
    Select,
    bindparam,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    update,
)

from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.channels import move_deposit
from tollway.ledger.claims import CreditAccount, credit_account_of
from tollway.ledger.ledger import UnfinalBlock
from tollway.ledger.records import (
    AUTHORIZED_RAILS,
    AuthorizedCall,
    CallState,
    NewPayment,
    Payment,
    PaymentState,
    SettledTransfer,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.ledger.authorizations import read_authorized
from tollway.storage.ledger.channel_balance import (
    credit_deposit,
    is_deposit_in,
    lock_with_channels,
    return_deposit,
)
from tollway.storage.ledger.debts import find_payable_accounts, pay_debts
from tollway.storage.ledger.gone_payments import find_unmoved, mark_gone, move_calls
from tollway.storage.ledger.ledger_tables import (
    GONE,
    HELD,
    UNFINAL,
    authorization_table,
    call_table,
    parse_payment,
    payment_table,
    topup_table,
)
from tollway.storage.ledger.locked_rows import LockedCall, LockedRows
from tollway.storage.ledger.payments import (
    NEVER_MS,
    find_payment_id,
    insert_payment,
    payment_of_transfer,
    raise_payment,
    read_value_units,
    reinstate_payment,
)
from tollway.storage.operator.operator_writes import IS_RESTORED
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog

GONE_RECHECK_MS = 86_400_000
"""How long after a transaction left the chain it is searched again: one day."""

_IDS_MAX = 1_000
"""Both drivers have a maximum of parameters."""
_BEFORE_ALL = (-1, b"")
_other = payment_table.alias("other")


@dataclass(frozen=True, slots=True)
class TooManyCalls:
    """A move that one transaction does not make: too many calls hold units of this payment. Nothing changed."""

    payment_id: int


class FinalityStore:
    """Implements `Finality`."""

    def __init__(
        self,
        database: Database,
        *,
        now_ms: Callable[[], int],
        limits: Limits = DEFAULT_LIMITS,
        events: EventLog = NO_EVENTS,
    ) -> None:
        self._database = database
        self._events = events
        self._now_ms = now_ms
        self._limits = limits
        self._calls_max = limits.moved_calls_max

    async def unfinal_blocks(
        self, chain_id: ChainId, *, after: UnfinalBlock | None, limit: int
    ) -> tuple[UnfinalBlock, ...]:
        number, block_hash = _BEFORE_ALL if after is None else (after.number, after.block_hash)
        parameters = {"chain_id": chain_id, "number": number, "hash": block_hash, "limit": limit}
        rows = await self._database.read(lambda connection: connection.execute(_BLOCKS, parameters).all())
        return tuple(
            UnfinalBlock(
                chain_id=chain_id,
                number=row.block_number,
                block_hash=bytes(row.block_hash),
                is_agreed=row.checked_ms > NEVER_MS,
            )
            for row in rows
        )

    async def unfinal_in(
        self, block: UnfinalBlock, *, after_id: int, limit: int, is_unchecked_only: bool = False
    ) -> tuple[Payment, ...]:
        columns = payment_table.c
        query = select(payment_table).where(text(UNFINAL), *_in_block(columns, block), columns.id > after_id)
        if is_unchecked_only:
            query = query.where(columns.checked_ms <= NEVER_MS)
        return await self._read_payments(query.order_by(columns.id).limit(limit))

    async def gone_payments(
        self, chain_id: ChainId, *, after_id: int, limit: int, now_ms: int
    ) -> tuple[Payment, ...]:
        columns = payment_table.c
        query = select(payment_table).where(
            text(GONE),
            columns.chain_id == chain_id,
            columns.gone_ms > now_ms - GONE_RECHECK_MS,
            columns.id > after_id,
        )
        return await self._read_payments(query.order_by(columns.id).limit(limit))

    async def finish_block(self, block: UnfinalBlock, *, is_checked_only: bool, now_ms: int) -> int:
        # A payment that a dispute holds stays unfinal until it is freed: it could not be freed later.
        is_free = or_(~_other.c.is_held, IS_RESTORED)
        of_block = select(_other.c.id).where(
            text("other.state = 'unfinal'"), *_in_block(_other.c, block), is_free
        )
        if is_checked_only:
            of_block = of_block.where(_other.c.checked_ms > NEVER_MS)
        final = _update_in_order(of_block, state=PaymentState.FINAL.value, checked_ms=now_ms)
        return await write_retried(
            self._database, lambda connection: connection.execute(final).rowcount, flush=False
        )

    async def mark_checked(
        self, payment_ids: Sequence[int], *, block_number: int, block_hash: bytes, now_ms: int
    ) -> None:
        place = {"block_number": block_number, "block_hash": block_hash, "checked_ms": now_ms}

        def work(connection: Connection) -> None:
            for ids in _id_chunks(payment_ids):
                unfinal = select(_other.c.id).where(_other.c.id.in_(ids), text("other.state = 'unfinal'"))
                connection.execute(_update_in_order(unfinal, **place))

        await write_retried(self._database, work, flush=False)

    async def mark_gone(self, payment_id: int, *, now_ms: int) -> int:
        return await mark_gone(
            self._database, payment_id, calls_max=self._calls_max, now_ms=now_ms, events=self._events
        )

    async def continue_moves(self, chain_id: ChainId, *, now_ms: int) -> int:
        debt_units = 0
        for payment_id in await self._database.read(partial(find_unmoved, chain_id=chain_id)):
            debt_units += await move_calls(
                self._database, payment_id, calls_max=self._calls_max, now_ms=now_ms
            )
        for account in await self._database.read(partial(find_payable_accounts, chain_id=chain_id)):
            await self._pay_debts(account, now_ms=now_ms)
        return debt_units

    async def _pay_debts(self, account: CreditAccount, *, now_ms: int) -> None:
        await pay_debts(self._database, account, calls_max=self._calls_max, now_ms=now_ms)

    async def hold_disputed(self, payment_ids: Sequence[int]) -> int:
        def work(connection: Connection) -> int:
            held = 0
            for ids in _id_chunks(payment_ids):
                spendable = select(_other.c.id).where(
                    _other.c.id.in_(ids), text("other.state = 'unfinal'"), ~_other.c.is_held
                )
                held += connection.execute(_update_in_order(spendable, is_held=True)).rowcount
            return held

        return await write_retried(self._database, work)

    async def held_unfinal(self, chain_id: ChainId, *, limit: int) -> tuple[Payment, ...]:
        columns = payment_table.c
        query = select(payment_table).where(text(HELD), columns.chain_id == chain_id, ~IS_RESTORED)
        return await self._read_payments(query.order_by(columns.id).limit(limit))

    async def free_disputed(self, payment_ids: Sequence[int]) -> int:
        """Frees payments that `hold_disputed` held. Frees none while a restore is not released."""
        columns = payment_table.c

        def work(connection: Connection) -> int:
            freed = 0
            for ids in _id_chunks(payment_ids):
                # Locked first: after that `mark_restored` waits for this transaction, and the next statement sees its earlier writes.
                rows = select(columns.id).where(columns.id.in_(ids), columns.is_held).order_by(columns.id)
                locked = connection.execute(rows.with_for_update()).scalars().all()
                if locked:
                    freeing = update(payment_table).where(columns.id.in_(locked), ~IS_RESTORED)
                    freed += connection.execute(freeing.values(is_held=False)).rowcount
            return freed

        return await write_retried(self._database, work)

    async def authorizations_in(self, payment_id: int, *, limit: int) -> tuple[AuthorizedCall, ...]:
        responded_since_ms = self._now_ms() - self._limits.response_ttl_s * 1000

        def work(connection: Connection) -> tuple[AuthorizedCall, ...]:
            for which in (call_table.c.payment_id == payment_id, is_deposit_in(payment_id)):
                found = read_authorized(
                    connection, which=which, limit=limit, responded_since_ms=responded_since_ms
                )
                if found:
                    return found
            return ()

        return await self._database.read(work)

    async def move_transfer(
        self, call_id: CallId, *, before: TxHash, transfer: SettledTransfer, now_ms: int
    ) -> bool:
        work = partial(_move_transfer, call_id=call_id, before=before, transfer=transfer, now_ms=now_ms)
        moved = await write_retried(self._database, partial(work, calls_max=self._calls_max))
        if isinstance(moved, TooManyCalls):
            await self.mark_gone(moved.payment_id, now_ms=now_ms)
            await move_calls(self._database, moved.payment_id, calls_max=self._calls_max, now_ms=now_ms)
            # What is left are calls without an outcome.
            moved = await write_retried(self._database, partial(work, calls_max=None))
        if not isinstance(moved, CreditAccount):
            return False
        await self._pay_debts(moved, now_ms=now_ms)
        return True

    async def _read_payments(self, query: Select[tuple[object, ...]]) -> tuple[Payment, ...]:
        return await self._database.read(
            lambda connection: tuple(map(parse_payment, connection.execute(query)))
        )


def _first_after(number: ColumnElement[int], block_hash: ColumnElement[bytes]) -> ScalarSelect[int]:
    """The least recently checked payment of the next block."""
    row = payment_table.alias("row")
    return (
        select(row.c.id)
        .where(
            text("row.state = 'unfinal'"),
            row.c.chain_id == bindparam("chain_id"),
            tuple_(row.c.block_number, row.c.block_hash) > tuple_(number, block_hash),
        )
        .order_by(row.c.block_number, row.c.block_hash, row.c.checked_ms, row.c.id)
        .limit(1)
        .correlate_except(row)
        .scalar_subquery()
    )


def _blocks_query() -> Executable:
    first, following = payment_table.alias("first"), payment_table.alias("following")
    number, block_hash = bindparam("number", type_=BigInteger), bindparam("hash", type_=LargeBinary)
    start = select(
        first.c.block_number, first.c.block_hash, first.c.checked_ms, literal_column("1").label("place")
    ).where(first.c.id == _first_after(number, block_hash))
    block: CTE = start.cte("block", recursive=True)
    behind = block.join(following, following.c.id == _first_after(block.c.block_number, block.c.block_hash))
    step = (
        select(following.c.block_number, following.c.block_hash, following.c.checked_ms, block.c.place + 1)
        .select_from(behind)
        .where(block.c.place < bindparam("limit", type_=BigInteger))
    )
    blocks = block.union_all(step)
    return select(blocks.c.block_number, blocks.c.block_hash, blocks.c.checked_ms).order_by(blocks.c.place)


_BLOCKS = _blocks_query()


def _update_in_order(ids: Select[int], **values: object) -> Executable:
    in_order = ids.order_by(_other.c.id).with_for_update()
    return update(payment_table).where(payment_table.c.id.in_(in_order)).values(**values)


def _in_block(columns: object, block: UnfinalBlock) -> tuple[ColumnElement[bool], ...]:
    return (
        # `columns` of the table or of an alias.
        columns.chain_id == block.chain_id,  # type: ignore[attr-defined]
        columns.block_number == block.number,  # type: ignore[attr-defined]
        columns.block_hash == block.block_hash,  # type: ignore[attr-defined]
    )


def _id_chunks(ids: Sequence[int]) -> list[list[int]]:
    ordered = sorted(set(ids))
    return [ordered[start : start + _IDS_MAX] for start in range(0, len(ordered), _IDS_MAX)]


def _move_transfer(
    connection: Connection,
    *,
    call_id: CallId,
    before: TxHash,
    transfer: SettledTransfer,
    now_ms: int,
    calls_max: int | None,
) -> CreditAccount | TooManyCalls | None:
    """Moves the units of an authorisation, and returns their account. None: there is no such transfer in `before`."""
    authorization = _lock_authorization(connection, call_id, before)
    if authorization is None or transfer.tx_hash == before:
        return None
    found = payment_of_transfer(
        transfer,
        chain_id=ChainId(authorization.chain_id),
        asset=authorization.asset,
        payer=Address(authorization.payer),
        payee=Address(authorization.payee),
    )
    if authorization.channel_id is not None:
        return _move_deposit(
            connection, found, before, call_id=call_id, units=int(authorization.base_units), now_ms=now_ms
        )
    from_id = find_payment_id(connection, replace(found, tx_hash=before))
    if calls_max is not None and len(_find_holders(connection, from_id, limit=calls_max + 1)) > calls_max:
        return TooManyCalls(from_id)
    insert_payment(connection, found, now_ms, is_authorized=True)
    to_id = find_payment_id(connection, found)
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([from_id, to_id])
    if locked_rows.payments[to_id].state is PaymentState.GONE:
        locked_rows.payments[to_id] = reinstate_payment(
            connection, locked_rows.payments[to_id], found, now_ms
        )
    calls = _lock_calls(connection, locked_rows, call_id, from_id)
    own = calls.pop(call_id)
    is_bought = own.state is not CallState.RELEASED
    raise_payment(connection, locked_rows, to_id, own.price_units, calls=int(is_bought))
    left_units = read_value_units(connection, from_id) - own.price_units
    # The transaction of the call is another one now, so its next receipt needs a later time.
    own = locked_rows.set_payment(own, to_id, moved_ms=now_ms)
    _move_units(locked_rows, own, own.price_units, from_id=from_id, to_id=to_id)
    # Calls that were paid by credit move first.
    for call in sorted(calls.values(), key=_is_paid_by_its_own):
        _move_units(
            locked_rows,
            call,
            locked_rows.payments[from_id].taken_units - left_units,
            from_id=from_id,
            to_id=to_id,
        )
    locked_rows.write()
    _write_transfer(connection, call_id, found, from_id=from_id, to_id=to_id, left_units=left_units)
    return credit_account_of(locked_rows.payments[to_id])


def _move_deposit(
    connection: Connection, found: NewPayment, before: TxHash, *, call_id: CallId, units: int, now_ms: int
) -> CreditAccount:
    """Moves a deposit to the payment `found`. The balance of its channel changes only where the deposit had left the chain."""
    from_id = find_payment_id(connection, replace(found, tx_hash=before))
    insert_payment(connection, found, now_ms, is_authorized=True, is_escrow=True)
    to_id = find_payment_id(connection, found)
    locked_rows = LockedRows(connection)
    deposits = lock_with_channels(connection, locked_rows, [from_id, to_id])
    is_counted = locked_rows.payments[from_id].state is not PaymentState.GONE
    columns = authorization_table.c
    if locked_rows.payments[to_id].state is PaymentState.GONE:
        locked_rows.payments[to_id] = reinstate_payment(
            connection, locked_rows.payments[to_id], found, now_ms
        )
        for deposit in deposits.get(to_id, ()):
            return_deposit(connection, locked_rows, deposit, block_number=found.block_number, now_ms=now_ms)
    raise_payment(connection, locked_rows, to_id, units, calls=0)
    key = connection.execute(select(columns.channel_id).where(columns.call_id == call_id)).scalar_one()
    if is_counted:
        locked_rows.channels.put(
            move_deposit(locked_rows.channels.find(key), block_number=found.block_number)
        )
    else:
        credit_deposit(connection, locked_rows, key, units, block_number=found.block_number, now_ms=now_ms)
    locked_rows.write()
    # As of `_move_transfer`: the next receipt of the call needs a later time.
    connection.execute(update(call_table).where(call_table.c.id == call_id).values(moved_ms=now_ms))
    left_units = read_value_units(connection, from_id) - units
    _write_transfer(connection, call_id, found, from_id=from_id, to_id=to_id, left_units=left_units)
    return credit_account_of(locked_rows.payments[to_id])


def _lock_authorization(connection: Connection, call_id: CallId, before: TxHash) -> Any:
    """None when the transfer of the call is not recorded in `before`."""
    columns = authorization_table.c
    query = select(
        *(columns.chain_id, columns.asset, columns.payer, columns.payee),
        *(columns.base_units, columns.channel_id),
    ).where(columns.call_id == call_id, columns.tx_hash == before)
    return connection.execute(query.with_for_update()).first()


def _lock_calls(
    connection: Connection, locked_rows: LockedRows, call_id: CallId, from_id: int
) -> dict[CallId, LockedCall]:
    ids = sorted({call_id, *_find_holders(connection, from_id)})
    locked: dict[CallId, LockedCall] = {}
    for start in range(0, len(ids), _IDS_MAX):
        locked.update(locked_rows.lock_calls(ids[start : start + _IDS_MAX]))
    return locked


def _find_holders(connection: Connection, payment_id: int, *, limit: int | None = None) -> list[CallId]:
    of_proof = select(call_table.c.id).where(
        call_table.c.payment_id == payment_id, call_table.c.taken_units > 0
    )
    of_topups = select(topup_table.c.call_id).where(topup_table.c.payment_id == payment_id)
    found = connection.execute(of_proof.limit(limit)).scalars().all()
    return [CallId(one) for one in (*found, *connection.execute(of_topups.limit(limit)).scalars())]


def _is_paid_by_its_own(call: LockedCall) -> bool:
    return call.rail in AUTHORIZED_RAILS


def _move_units(locked_rows: LockedRows, call: LockedCall, units: int, *, from_id: int, to_id: int) -> None:
    moved_units = min(units, call.parts.get(from_id, 0))
    if moved_units <= 0:
        return
    parts = {
        **call.parts,
        from_id: call.parts[from_id] - moved_units,
        to_id: call.parts.get(to_id, 0) + moved_units,
    }
    locked_rows.set_parts(call, {key: held for key, held in parts.items() if held})


def _write_transfer(
    connection: Connection,
    call_id: CallId,
    transfer: NewPayment,
    *,
    from_id: int,
    to_id: int,
    left_units: int,
) -> None:
    """Writes the moved transfer. Call it after the balances are written, because no payment may have more taken units than its value. A payment
    that is held after a restore stays held."""
    payments, columns = payment_table.c, authorization_table.c
    connection.execute(update(payment_table).where(payments.id == from_id).values(value_units=left_units))
    was_held = select(payments.id).where(payments.id == from_id, payments.is_held).exists()
    connection.execute(update(payment_table).where(payments.id == to_id, was_held).values(is_held=True))
    connection.execute(
        update(authorization_table)
        .where(columns.call_id == call_id)
        .values(tx_hash=transfer.tx_hash, settled_block=transfer.block_number)
    )
