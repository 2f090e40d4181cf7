"""The balance of a channel and the calls that it pays.

The balance comes from the chain (`channel_store`). In between a concluded deposit raises it, and a deposit that leaves its chain lowers it; the next facts of the chain
replace both. A balance below what the calls of a channel hold makes charged calls `reorged`, the newest first, and the last of them keeps what is left; a higher one pays
them, the oldest first. Such a call is no debt, because the channel itself takes no voucher that its balance does not cover.

Open calls keep their units. While they hold more than the balance, the value of the payment is what they hold, and the next facts find the rest.
Each function changes locked rows: the payment of the channel is locked before, and `LockedRows.write` comes after.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    text,
    update,
)

from tollway.ids import CallId
from tollway.ledger.channels import Channel, add_deposit, remove_deposit, spread_units
from tollway.ledger.records import CallState
from tollway.storage.engine.outage import RowsChanged
from tollway.storage.engine.statements import Prepared
from tollway.storage.ledger.ledger_tables import authorization_table, call_table, channel_table, payment_table
from tollway.storage.ledger.locked_rows import LockedCall, LockedRows

CALLS_MAX = 5_000
"""How many calls one deposit moves. What is left is written with the next facts of the chain."""


def fit_calls(
    connection: Connection,
    locked_rows: LockedRows,
    key: int,
    *,
    now_ms: int,
    calls_max: int = CALLS_MAX,
) -> bool:
    """Makes what the charged calls of a channel hold fit its balance. False where more calls than `calls_max` must move."""
    channel = locked_rows.channels.find(key)
    excess_units = channel.taken_units - channel.balance_units
    if excess_units > 0:
        found = _find_charged(connection, channel.payment_id, limit=calls_max)
        calls = locked_rows.lock_calls(found)
        newest = [calls[call_id] for call_id in found if call_id in calls]
        returned = spread_units([call.parts.get(channel.payment_id, 0) for call in newest], excess_units)
        for call, units in zip(newest, returned, strict=True):
            if units:
                _hold(locked_rows, call, channel, call.parts[channel.payment_id] - units, now_ms=now_ms)
        locked_rows.channels.put(locked_rows.channels.find(key))
        return sum(returned) == excess_units or len(found) < calls_max
    if excess_units < 0 < channel.lacking_units:
        found = _find_reorged(connection, channel, limit=calls_max)
        calls = locked_rows.lock_calls(found)
        oldest = [calls[call_id] for call_id in found if call_id in calls]
        lacking = [call.due_units - call.parts.get(channel.payment_id, 0) for call in oldest]
        for call, units in zip(oldest, spread_units(lacking, -excess_units), strict=True):
            if units:
                _hold(
                    locked_rows, call, channel, call.parts.get(channel.payment_id, 0) + units, now_ms=now_ms
                )
        return len(found) < calls_max or sum(lacking) >= -excess_units
    return True


def _hold(locked_rows: LockedRows, call: LockedCall, channel: Channel, units: int, *, now_ms: int) -> None:
    """Makes a charged call hold these units of the channel. It is `reorged` while it holds less than it owes."""
    locked_rows.set_parts(call, {channel.payment_id: units} if units else {})
    after = CallState.CONSUMED if units == call.due_units else CallState.REORGED
    if after is not call.state:
        locked_rows.change(call, state=after.value, moved_ms=now_ms)


def credit_deposit(
    connection: Connection,
    locked_rows: LockedRows,
    key: int,
    units: int,
    *,
    block_number: int,
    now_ms: int,
) -> None:
    """Adds a deposit of that block to the balance of a channel, which pays its `reorged` calls first."""
    locked_rows.channels.put(add_deposit(locked_rows.channels.find(key), units, block_number=block_number))
    fit_calls(connection, locked_rows, key, now_ms=now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposit:
    """A settled deposit; the sum of those of one transaction into one channel. `counted_block`: the latest block of the other settled deposits of its
    channel; -1 without one."""

    channel_key: int
    balance_id: int
    """The payment of the channel."""
    units: int
    tx_hash: bytes
    block_number: int
    counted_block: int


Deposits = Mapping[int, Sequence[Deposit]]
"""By the payment of their transfer."""


def find_deposits(connection: Connection, payment_ids: Iterable[int]) -> Deposits:
    """The deposits that these payments are the transfers of. No other payment has one. Takes no locks."""
    columns, channels, payments = authorization_table.c, channel_table.c, payment_table.c
    other = authorization_table.alias("other")
    counted = (
        select(func.coalesce(func.max(other.c.settled_block), -1))
        .where(
            other.c.channel_id == columns.channel_id,
            other.c.channel_id.is_not(None),
            other.c.tx_hash != columns.tx_hash,
        )
        .correlate(authorization_table)
        .scalar_subquery()
    )
    query = (
        select(
            payments.id,
            columns.channel_id,
            channels.payment_id.label("balance_id"),
            columns.base_units,
            columns.tx_hash,
            columns.settled_block,
            counted.label("counted_block"),
        )
        .join(channel_table, (channels.payer == payments.payer) & (channels.chain_id == payments.chain_id))
        .join(
            authorization_table, (columns.channel_id == channels.key) & (columns.tx_hash == payments.tx_hash)
        )
        .where(payments.id.in_(list(payment_ids)), payments.is_escrow, columns.payee == payments.payee)
        .order_by(columns.call_id)
    )
    found: dict[int, dict[int, Deposit]] = {}
    for row in connection.execute(query):
        of_payment = found.setdefault(row.id, {})
        before = of_payment.get(row.channel_id)
        of_payment[row.channel_id] = Deposit(
            channel_key=row.channel_id,
            balance_id=row.balance_id,
            units=int(row.base_units) + (0 if before is None else before.units),
            tx_hash=bytes(row.tx_hash),
            block_number=row.settled_block,
            counted_block=row.counted_block,
        )
    return {payment_id: list(of_payment.values()) for payment_id, of_payment in found.items()}


def is_deposit_in(payment_id: int) -> ColumnElement[bool]:
    """A condition of authorisations: deposits that this payment is the transfer of."""
    columns, payments, channels = authorization_table.c, payment_table.c, channel_table.c
    of_payer = (
        select(channels.key)
        .join(payment_table, (channels.payer == payments.payer) & (channels.chain_id == payments.chain_id))
        .where(payments.id == payment_id, payments.is_escrow)
    )
    tx_hash = select(payments.tx_hash).where(payments.id == payment_id).scalar_subquery()
    return and_(columns.channel_id.in_(of_payer), columns.tx_hash == tx_hash)


def lock_with_channels(
    connection: Connection,
    locked_rows: LockedRows,
    payment_ids: Sequence[int],
    *,
    known_ids: Sequence[int] | None = None,
) -> Deposits:
    """Locks payments, and with them the payments of the channels that they are deposits into. Returns these deposits, as of the locks. `known_ids`: those of the payments
    that may have one; all without it. Raises `RowsChanged`: a deposit has moved during the wait for the locks."""
    wanted_ids = payment_ids if known_ids is None else known_ids
    seen = find_deposits(connection, wanted_ids) if wanted_ids else {}
    locked_rows.lock_payments([*payment_ids, *(one.balance_id for one in _list_each(seen))])
    if not seen:
        return seen
    found = find_deposits(connection, wanted_ids)
    if any(one.balance_id not in locked_rows.payments for one in _list_each(found)):
        raise RowsChanged("a deposit has moved to another payment")
    locked_rows.channels.load(one.channel_key for one in _list_each(found))
    return found


def _list_each(deposits: Deposits) -> list[Deposit]:
    return [one for of_payment in deposits.values() for one in of_payment]


def withdraw_deposit(
    connection: Connection, locked_rows: LockedRows, deposit: Deposit, *, now_ms: int
) -> None:
    """Takes a deposit that has left its chain from the balance of its channel. More calls than one transaction moves stay charged until the next facts of the chain."""
    channel = locked_rows.channels.find(deposit.channel_key)
    locked_rows.channels.put(
        remove_deposit(
            channel,
            deposit.units,
            block_number=deposit.block_number,
            counted_block=deposit.counted_block,
        )
    )
    fit_calls(connection, locked_rows, deposit.channel_key, now_ms=now_ms)


def return_deposit(
    connection: Connection, locked_rows: LockedRows, deposit: Deposit, *, block_number: int, now_ms: int
) -> None:
    """Counts a deposit again that is in a block again, and sets that block."""
    connection.execute(
        update(authorization_table)
        .where(
            authorization_table.c.channel_id == deposit.channel_key,
            text("channel_id IS NOT NULL"),
            authorization_table.c.settled_block == deposit.block_number,
            authorization_table.c.tx_hash == deposit.tx_hash,
        )
        .values(settled_block=block_number)
    )
    credit_deposit(
        connection, locked_rows, deposit.channel_key, deposit.units, block_number=block_number, now_ms=now_ms
    )


def _find_charged(connection: Connection, payment_id: int, *, limit: int) -> list[CallId]:
    rows = _CHARGED.fetch(connection, payment_id=payment_id, at_most=limit)
    return [CallId(call_id) for (call_id,) in rows]


def _find_reorged(connection: Connection, channel: Channel, *, limit: int) -> list[CallId]:
    rows = _REORGED.fetch(
        connection, payer=channel.config.payer, payment_id=channel.payment_id, at_most=limit
    )
    return [CallId(call_id) for (call_id,) in rows]


def _charged_query() -> Select[Any]:
    columns = call_table.c
    return (
        select(columns.id)
        .where(
            columns.payment_id == bindparam("payment_id"),
            columns.state.in_([literal_column("'consumed'"), literal_column("'reorged'")]),
            columns.taken_units > literal_column("0"),
        )
        .order_by(columns.created_ms.desc(), columns.id.desc())
        .limit(bindparam("at_most"))
    )


def _reorged_query() -> Select[Any]:
    columns = call_table.c
    return (
        select(columns.id)
        .where(
            # The literal predicate of the index.
            columns.state == literal_column("'reorged'"),
            columns.payer == bindparam("payer"),
            columns.payment_id == bindparam("payment_id"),
        )
        .order_by(columns.created_ms, columns.id)
        .limit(bindparam("at_most"))
    )


_CHARGED = Prepared(_charged_query())
_REORGED = Prepared(_reorged_query())
