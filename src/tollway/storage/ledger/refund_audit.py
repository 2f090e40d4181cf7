"""The audit of refunds in SQL: each is of a charge, at most its price, to its payer, from a wallet that may refund it, and in force while its transfer is on its chain.

The keys prove the rest: a transfer has one row of `payment`, and a call has one refund in force.
"""

from collections.abc import Iterator

from sqlalchemy import Connection, and_, literal_column, or_, select

from tollway.ledger.records import PaymentState
from tollway.storage.ledger.ledger_tables import (
    call_refund_table,
    call_table,
    call_terms_table,
    due_units,
    payment_table,
)


def find_wrong_refunds(connection: Connection, *, lines_max: int) -> Iterator[str]:
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
