"""The money of channels in sums, by network and token: what a provider's page of sales and the operator's page of chains show."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, case, func, or_, select

from tollway.ids import Address, ChainId
from tollway.ledger.channels import ChannelMoney, ChannelState
from tollway.storage.ledger.ledger_tables import channel_table, payment_table


def sum_channels(connection: Connection, receiver: Address | None) -> tuple[ChannelMoney, ...]:
    """The channels of a receiver by their index; None: of all receivers."""
    query = _query()
    if receiver is not None:
        query = query.where(channel_table.c.receiver == receiver)
    return tuple(
        ChannelMoney(
            chain_id=ChainId(row.chain_id),
            token=Address(row.token),
            channels=int(row.channels),
            withdrawing=int(row.withdrawing),
            unclaimed_units=int(row.unclaimed),
            withdrawing_units=int(row.withdrawing_unclaimed),
            claimed_units=int(row.claimed),
            settled_units=int(row.settled),
            lost_units=int(row.lost),
        )
        for row in connection.execute(query)
    )


def _query() -> Select[Any]:
    own, payments = channel_table.c, payment_table.c
    owed = own.start_units + payments.taken_units
    settled = _at_least_zero(_lesser(own.settled, own.total_claimed) - own.start_units)
    unclaimed = _at_least_zero(owed - own.total_claimed)
    is_withdrawing = own.state == ChannelState.WITHDRAWING.value
    has_money = or_(own.balance > own.total_claimed, owed > own.total_claimed)
    return (
        select(
            own.chain_id,
            own.token,
            func.sum(case((has_money, 1), else_=0)).label("channels"),
            func.sum(case((is_withdrawing, 1), else_=0)).label("withdrawing"),
            func.sum(unclaimed).label("unclaimed"),
            func.sum(case((is_withdrawing, unclaimed), else_=0)).label("withdrawing_unclaimed"),
            func.sum(_at_least_zero(own.total_claimed - own.settled)).label("claimed"),
            func.sum(settled).label("settled"),
            func.sum(own.lacking_units).label("lost"),
        )
        .join(payment_table, payments.id == own.payment_id)
        .group_by(own.chain_id, own.token)
        .order_by(own.chain_id, own.token)
    )


def _at_least_zero(units: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((units > 0, units), else_=0)


def _lesser(one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
    return case((one < other, one), else_=other)
