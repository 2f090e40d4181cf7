"""The rows of refunds: what a reorganisation of their transfer does to them, and their audit.

The moves are parts of the transactions that move the payment of a transfer, whose row is locked. The keys of the tables prove what the audit does not read: a
transfer has one row of `payment`, and a call has one refund in force.
"""

from collections.abc import Iterator

from sqlalchemy import ColumnElement, Connection, and_, exists, literal_column, or_, select, text, update

from tollway.ledger.records import CallState, PaymentState
from tollway.storage.ledger.ledger_tables import (
    call_refund_table,
    call_table,
    call_terms_table,
    due_units,
    payment_table,
)

_OF_TRANSFER = call_refund_table.c


def has_refund() -> ColumnElement[bool]:
    """The call of the row was refunded. It never runs again and keeps its charge, also where the refund was taken back: its transfer may be mined again."""
    return exists(select(_OF_TRANSFER.call_id).where(_OF_TRANSFER.call_id == call_table.c.id))


def take_back_refunds(connection: Connection, payment_id: int) -> None:
    """The transfer has left its chain."""
    taken = update(call_refund_table).where(_OF_TRANSFER.payment_id == payment_id, text("NOT is_reversed"))
    connection.execute(taken.values(is_reversed=True))


def return_refunds(connection: Connection, payment_id: int) -> None:
    """The transfer is mined again. A call that has another refund by now keeps that one: the calls are locked, so none gets one meanwhile."""
    calls = select(_OF_TRANSFER.call_id).where(_OF_TRANSFER.payment_id == payment_id)
    locked = select(call_table.c.id).where(call_table.c.id.in_(calls)).order_by(call_table.c.id)
    connection.execute(locked.with_for_update()).all()
    other = call_refund_table.alias("other")
    is_refunded = exists().where(other.c.call_id == _OF_TRANSFER.call_id, text("NOT other.is_reversed"))
    returned = update(call_refund_table).where(
        _OF_TRANSFER.payment_id == payment_id, text("call_refund.is_reversed"), ~is_refunded
    )
    connection.execute(returned.values(is_reversed=False))


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
