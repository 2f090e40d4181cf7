"""The rows of refunds: which transfer and which credit can be one, what a reorganisation of their transfer does to them, their events, and their audit.

The moves are parts of the transactions that move the payment of a transfer, whose row is locked, and write their events in them. The keys of the tables prove what the audit does not read: a
transfer has one row of `payment`, and a call has one refund in force.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    exists,
    func,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    update,
)

from tollway.ids import Address, CallId
from tollway.ledger.records import CallRecord, CallState, PaymentState
from tollway.storage.catalog.catalog_tables import listing_table, read_networks
from tollway.storage.ledger.ledger_tables import (
    call_refund_table,
    call_table,
    call_terms_table,
    due_units,
    payment_table,
)
from tollway.storage.webhooks.webhook_events import EventLog, write_events
from tollway.webhooks.events import EventType

_OF_TRANSFER = call_refund_table.c


def has_refund() -> ColumnElement[bool]:
    """The call of the row was refunded. It never runs again and keeps its charge, also where the refund was taken back: its transfer may be mined again."""
    return exists(select(_OF_TRANSFER.call_id).where(_OF_TRANSFER.call_id == call_table.c.id))


def may_be_of_another(connection: Connection, call: CallRecord, sender: Address) -> bool:
    """Whether a transfer of this wallet to the payer of the call may be the refund of another provider: the wallet is another provider's, or it was paid for their
    calls by this payer in this asset. False for the wallet of the call's own provider."""
    if sender == call.provider:
        return False
    payments, calls = payment_table.c, call_table.c
    is_provider = exists().where(listing_table.c.provider == bytes(sender))
    is_paid = (
        exists()
        .where(payments.payer == call.payer, payments.payee == sender)
        .where(payments.asset == call.asset, payments.chain_id == call.chain_id, ~payments.is_refund)
        .where(calls.payment_id == payments.id, calls.provider != call.provider)
    )
    return bool(connection.scalar(select(or_(is_provider, is_paid))))


def has_listing_for_credit(connection: Connection, call: CallRecord) -> bool:
    """Whether a listing of the provider takes credit of the call's account now. That of the call does, also with another `payTo` by now: the credit is of the time of
    the call, when this one counted."""
    columns = listing_table.c
    query = select(columns.networks).where(
        columns.provider == bytes(call.provider),
        columns.retired_ms.is_(None),
        columns.suspended_ms.is_(None),
        columns.currency == call.currency,
        or_(columns.id == call.listing_id, columns.pay_to == call.pay_to),
    )
    return any(call.chain_id in read_networks(networks) for networks in connection.scalars(query))


def take_back_refunds(connection: Connection, payment_id: int, *, now_ms: int, events: EventLog) -> None:
    """The transfer has left its chain. Where another one on its chain waited, because its call had this refund, the call has that one again."""
    _lock_calls_of(connection, payment_id)
    taken = update(call_refund_table).where(_OF_TRANSFER.payment_id == payment_id, text("NOT is_reversed"))
    rows = connection.execute(taken.values(is_reversed=True).returning(*EVENT_COLUMNS)).all()
    write_refund_events(connection, EventType.CALL_REFUND_REVERSED, rows, now_ms=now_ms, events=events)
    waiting = (
        select(_OF_TRANSFER.call_id, func.min(_OF_TRANSFER.payment_id))
        .join(payment_table, payment_table.c.id == _OF_TRANSFER.payment_id)
        .where(_OF_TRANSFER.call_id.in_([row.call_id for row in rows]), text("call_refund.is_reversed"))
        .where(payment_table.c.state != PaymentState.GONE.value)
        .group_by(_OF_TRANSFER.call_id)
    )
    places = [tuple(place) for place in connection.execute(waiting)]
    if places:
        of_waiting = tuple_(_OF_TRANSFER.call_id, _OF_TRANSFER.payment_id).in_(places)
        _put_in_force(connection, of_waiting, now_ms=now_ms, events=events)


def return_refunds(connection: Connection, payment_id: int, *, now_ms: int, events: EventLog) -> None:
    """The transfer is mined again. A call that has another refund by now keeps that one: the calls are locked, so none gets one meanwhile."""
    _lock_calls_of(connection, payment_id)
    other = call_refund_table.alias("other")
    is_refunded = exists().where(other.c.call_id == _OF_TRANSFER.call_id, text("NOT other.is_reversed"))
    of_transfer = and_(_OF_TRANSFER.payment_id == payment_id, text("call_refund.is_reversed"), ~is_refunded)
    _put_in_force(connection, of_transfer, now_ms=now_ms, events=events)


def _lock_calls_of(connection: Connection, payment_id: int) -> None:
    calls = select(_OF_TRANSFER.call_id).where(_OF_TRANSFER.payment_id == payment_id)
    locked = select(call_table.c.id).where(call_table.c.id.in_(calls)).order_by(call_table.c.id)
    connection.execute(locked.with_for_update()).all()


def _put_in_force(
    connection: Connection, which: ColumnElement[bool], *, now_ms: int, events: EventLog
) -> None:
    returned = update(call_refund_table).where(which)
    rows = connection.execute(returned.values(is_reversed=False).returning(*EVENT_COLUMNS)).all()
    write_refund_events(connection, EventType.CALL_REFUNDED, rows, now_ms=now_ms, events=events)


EVENT_COLUMNS = tuple(_OF_TRANSFER[name] for name in ("call_id", "payment_id", "payer", "provider", "units"))


def write_refund_events(
    connection: Connection, kind: EventType, rows: Sequence[Any], *, now_ms: int, events: EventLog
) -> None:
    """Writes the events of refunds for both sides. `rows`: with `EVENT_COLUMNS`. The subject names the refund: its call and its payment."""
    made = [
        event
        for row in sorted(rows, key=lambda row: str(row.call_id))
        for event in events.make_events(
            kind,
            (Address(row.provider), Address(row.payer)),
            subject=f"{row.payment_id} {row.call_id}",
            state="refunded" if kind is EventType.CALL_REFUNDED else "reversed",
            at_ms=now_ms,
            units=row.units,
        )
    ]
    write_events(connection, made)


def select_refunded_call(subject: str) -> tuple[CallId, Select[tuple[bytes, bool]]]:
    """The call of the refund that the subject of an event names, and the query of its transaction and of whether it is credit."""
    payment_id, _, call_id = subject.partition(" ")
    query = (
        select(payment_table.c.tx_hash, _OF_TRANSFER.is_credit)
        .join(payment_table, payment_table.c.id == _OF_TRANSFER.payment_id)
        .where(_OF_TRANSFER.call_id == call_id, _OF_TRANSFER.payment_id == int(payment_id))
    )
    return CallId(call_id), query


def find_wrong_refunds(connection: Connection, *, lines_max: int) -> Iterator[str]:
    """Each refund is of a charge, at most its price, to its payer, from a wallet that may refund it, and in force while its transfer is on its chain."""
    refunds, calls, terms, payments = (
        call_refund_table.c,
        call_table.c,
        call_terms_table.c,
        payment_table.c,
    )
    other = call_refund_table.alias("other")
    is_gone = payments.state == PaymentState.GONE.value
    is_superseded = (
        select(literal_column("1"))
        .where(other.c.call_id == refunds.call_id, ~other.c.is_reversed)
        .correlate(call_refund_table)
        .exists()
    )
    is_transfer = and_(
        payments.is_refund,
        payments.payee == calls.payer,
        or_(payments.payer == terms.pay_to, payments.payer == calls.provider),
    )
    is_credit = and_(
        ~payments.is_refund,
        payments.payer == calls.payer,
        payments.payee == terms.pay_to,
        payments.value_units == refunds.units,
    )
    is_right = and_(
        refunds.units <= due_units(),
        refunds.payer == calls.payer,
        refunds.provider == calls.provider,
        refunds.called_ms == calls.created_ms,
        calls.state.in_((CallState.CONSUMED.value, CallState.REORGED.value)),
        payments.chain_id == terms.chain_id,
        payments.asset == terms.asset,
        or_(and_(refunds.is_credit, is_credit), and_(~refunds.is_credit, is_transfer)),
        or_(and_(refunds.is_reversed, or_(is_gone, is_superseded)), and_(~refunds.is_reversed, ~is_gone)),
    )
    query = (
        select(refunds.call_id, refunds.payment_id, refunds.units, due_units().label("due_units"))
        .join(call_table, calls.id == refunds.call_id)
        .join(call_terms_table, terms.id == calls.terms_id)
        .join(payment_table, payments.id == refunds.payment_id)
        .where(~is_right)
        .order_by(refunds.call_id, refunds.payment_id)
        .limit(lines_max)
    )
    for row in connection.execute(query):
        yield (
            f"the refund of call {row.call_id} by payment {row.payment_id} gives {row.units} of {row.due_units} back,"
            " or its payment is not of this call"
        )
