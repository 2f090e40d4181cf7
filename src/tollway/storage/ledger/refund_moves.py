"""What a reorganisation does to refunds, as parts of the transactions that move the payment of their transfer. The row of that payment is locked."""

from sqlalchemy import Connection, exists, select, text, update

from tollway.storage.ledger.ledger_tables import call_refund_table, call_table

_OF_TRANSFER = call_refund_table.c


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
