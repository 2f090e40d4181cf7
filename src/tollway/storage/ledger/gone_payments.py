"""Payments that leave their chain, and their calls.

A payment may have paid for any number of calls, so a reorganisation is many transactions:

1. One small transaction ends the spending. The payment becomes `gone`, which makes its value what its calls hold of it, so nothing remains to spend. Each
   forwarding call that holds units of it gets `needs_locks`, so that a plain end (`storage.ledger.plain_writes`) does not charge it.
2. Its charged calls lose their units of it, oldest first, `moved_calls_max` in each transaction, and become `reorged`: a debt of their payer.

In between, and after a kill, these laws hold:

- taken = the sum of the parts, for every payment: each transaction changes calls and payment together. The kept debt changes with them.
- Nothing of the payment can be spent. A claim that was first has written its call before step 1, so that call is marked or moved.
- A call without an outcome keeps its units. Its end locks the payment: charged, it becomes `reorged` at once; released, it owes
  nothing. While the payment is gone no such call runs again. A provider's decision and recovery are such ends.
- What is left to do stands in the rows: the payment is gone, and more is taken of it than its calls without an outcome hold. Any gateway continues from
  there (`find_unmoved`). Two at once lock the payment in turn and find different calls.
- A payment that returns before all its calls are moved keeps the others as they were, paid; the moved ones are debts that its remaining
  value pays. Each chunk looks at the state of the payment first, so an earlier loop stops there. Where the payment returns with
  less value than its calls hold, it stays gone until its charged calls are moved: else its value could not be less than they hold.
- A second reorganisation begins with step 1 again. The place of an earlier loop is only a hint where to look next; a loop that ends behind calls that hold units
  again leaves them to `find_unmoved`.
- A deposit into a channel has paid for no call itself. The first step lowers the balance of its channel, and with it what the calls of the channel hold
  (`storage.ledger.channel_balance`).
- A payment of authorisations whose transfer moves to another transaction goes this way too where it has paid for more calls than one
  transaction moves (`finality.move_transfer`): the units arrive as credit, which pays the debts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, Select, bindparam, literal_column, select, text, tuple_, update

from tollway.ids import CallId, ChainId
from tollway.ledger.records import CallState, PaymentState, debits_after
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.statements import Prepared
from tollway.storage.ledger.channel_balance import lock_with_channels, withdraw_deposit
from tollway.storage.ledger.debts import BEFORE_ALL_CALLS, CallPlace
from tollway.storage.ledger.history import find_held_units
from tollway.storage.ledger.ledger_tables import GONE, REPEATABLE, call_table, payment_table, topup_table
from tollway.storage.ledger.locked_rows import LockedCall, LockedRows
from tollway.storage.ledger.refund_rows import take_back_refunds
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog
from tollway.webhooks.events import EventType

UNMOVED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class MovedCalls:
    """One chunk. `last`: the place of its last call; None where no charged call was left behind the given place."""

    debt_units: int
    last: CallPlace | None


async def mark_gone(
    database: Database, payment_id: int, *, calls_max: int, now_ms: int, events: EventLog = NO_EVENTS
) -> int:
    """Both steps, for an unfinal payment. Returns the new debt in units; 0 for a payment in another state."""
    work = partial(end_spending, payment_id=payment_id, now_ms=now_ms, events=events)
    if not await write_retried(database, work):
        return 0
    return await move_calls(database, payment_id, calls_max=calls_max, now_ms=now_ms)


async def move_calls(database: Database, payment_id: int, *, calls_max: int, now_ms: int) -> int:
    """The second step, for a gone payment: moves its charged calls in chunks. Returns the new debt in units. After `StorageUnavailable`, the chunks
    before stay moved."""
    debt_units, after = 0, BEFORE_ALL_CALLS
    while True:
        work = partial(move_chunk, payment_id=payment_id, after=after, calls_max=calls_max, now_ms=now_ms)
        moved = await write_retried(database, work)
        debt_units += moved.debt_units
        if moved.last is None:
            return debt_units
        after = moved.last


def end_spending(
    connection: Connection, payment_id: int, *, now_ms: int, events: EventLog = NO_EVENTS
) -> bool:
    """The first step. False for a payment that is not unfinal."""
    locked_rows = LockedRows(connection, events=events)
    deposits = lock_with_channels(connection, locked_rows, [payment_id])
    payment = locked_rows.payments.get(payment_id)
    if payment is None or payment.state is not PaymentState.UNFINAL:
        return False
    for deposit in deposits.get(payment_id, ()):
        withdraw_deposit(connection, locked_rows, deposit, now_ms=now_ms)
    gone = replace(payment, state=PaymentState.GONE, value_units=payment.taken_units)
    connection.execute(
        update(payment_table)
        .where(payment_table.c.id == payment_id)
        .values(state=PaymentState.GONE.value, gone_ms=now_ms, checked_ms=now_ms)
    )
    for running in (_RUNNING_OF_PROOF, _RUNNING_OF_TOPUPS):
        connection.execute(running, {"gone_id": payment_id})
    if payment.is_refund:
        take_back_refunds(connection, payment_id, now_ms=now_ms, events=events)
    elif not payment.is_escrow:
        locked_rows.note_payment(EventType.PAYMENT_REORGED, gone, units=payment.value_units, at_ms=now_ms)
    locked_rows.write()
    return True


def move_chunk(
    connection: Connection, payment_id: int, *, after: CallPlace, calls_max: int, now_ms: int
) -> MovedCalls:
    """Takes the units of a gone payment from the oldest charged calls behind `after`, `calls_max` at most."""
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments([payment_id])
    payment = locked_rows.payments.get(payment_id)
    if payment is None or payment.state is not PaymentState.GONE:
        return MovedCalls(0, None)
    order = _find_charged(connection, payment_id, after=after, limit=calls_max)
    debt_units = 0
    for call in locked_rows.lock_calls([CallId(place.call_id) for place in order]).values():
        if call.state in (CallState.CONSUMED, CallState.REORGED):
            debt_units += call.parts.get(payment_id, 0)
            _remove_part(locked_rows, call, payment_id, now_ms=now_ms)
    locked_rows.write()
    return MovedCalls(debt_units, order[-1] if len(order) == calls_max else None)


def find_unmoved(connection: Connection, chain_id: ChainId) -> list[int]:
    """Gone payments of a chain of which charged calls hold units: more is taken than calls without an outcome hold."""
    columns = payment_table.c
    query = select(columns.id, columns.taken_units).where(
        text(GONE), columns.chain_id == chain_id, columns.taken_units > 0, ~columns.is_refund
    )
    taken = {row.id: row.taken_units for row in connection.execute(query.limit(UNMOVED_MAX))}
    return _list_overdrawn(connection, taken)


def has_unmoved(connection: Connection, payment_id: int, *, taken_units: int) -> bool:
    """Whether charged calls hold units of a gone payment. Its row is locked."""
    return bool(_list_overdrawn(connection, {payment_id: taken_units}))


def _list_overdrawn(connection: Connection, taken: dict[int, int]) -> list[int]:
    held = find_held_units(connection, list(taken))
    return sorted(key for key, units in taken.items() if units > held.get(key, 0))


def _remove_part(locked_rows: LockedRows, call: LockedCall, payment_id: int, *, now_ms: int) -> None:
    if payment_id not in call.parts:
        return
    holding = debits_after(
        CallState.CONSUMED, parts=call.parts, price_units=call.due_units, gone={payment_id}
    )
    locked_rows.set_parts(call, holding.parts)
    if holding.state is not call.state:
        locked_rows.change(call, state=holding.state.value, moved_ms=now_ms)


def _find_charged(
    connection: Connection, payment_id: int, *, after: CallPlace, limit: int
) -> Sequence[CallPlace]:
    places = {
        CallPlace(created_ms, call_id)
        for query in (_CHARGED_OF_PROOF, _CHARGED_OF_TOPUPS)
        for created_ms, call_id in query.fetch(
            connection,
            payment_id=payment_id,
            after_ms=after.created_ms,
            after_id=after.call_id,
            at_most=limit,
        )
    }
    return sorted(places)[:limit]


def _charged_query(holding: Select[Any]) -> Select[Any]:
    columns = call_table.c
    after = tuple_(
        bindparam("after_ms", type_=columns.created_ms.type), bindparam("after_id", type_=columns.id.type)
    )
    return (
        holding.where(
            columns.state.in_([literal_column("'consumed'"), literal_column("'reorged'")]),
            tuple_(columns.created_ms, columns.id) > after,
        )
        .order_by(columns.created_ms, columns.id)
        .limit(bindparam("at_most"))
    )


_PLACE = (call_table.c.created_ms, call_table.c.id)
_CHARGED_OF_PROOF = Prepared(
    _charged_query(
        select(*_PLACE).where(
            call_table.c.payment_id == bindparam("payment_id"), call_table.c.taken_units > literal_column("0")
        )
    )
)
_CHARGED_OF_TOPUPS = Prepared(
    _charged_query(
        select(*_PLACE)
        .join(topup_table, topup_table.c.call_id == call_table.c.id)
        .where(topup_table.c.payment_id == bindparam("payment_id"))
    )
)


def _mark_running(which: Select[Any]) -> Any:
    """Sets `needs_locks` of forwarding calls, locked by ascending id as in a batch of ends."""
    in_order = which.order_by(call_table.c.id).with_for_update(of=call_table)
    return update(call_table).where(call_table.c.id.in_(in_order)).values(needs_locks=True)


_IS_RUNNING = call_table.c.state == literal_column("'forwarding'")
_RUNNING_OF_PROOF = _mark_running(
    select(call_table.c.id).where(
        call_table.c.payment_id == bindparam("gone_id"),
        _IS_RUNNING,
        # The literal predicate of the index.
        text(f"({REPEATABLE})"),
    )
)
_RUNNING_OF_TOPUPS = _mark_running(
    select(call_table.c.id)
    .join(topup_table, topup_table.c.call_id == call_table.c.id)
    .where(topup_table.c.payment_id == bindparam("gone_id"), _IS_RUNNING)
)
