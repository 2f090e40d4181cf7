"""Sums over the channels in SQL. Each reads every channel: for figures once a minute, commands and the start of a gateway. They decide nothing.
At a hundred thousand channels and a cold disk one takes longer than a request may, so they read without the deadline of a request: beyond it the database would
count as away, for paid calls too."""

from collections.abc import Collection
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, case, cast, func, or_, select

from tollway.ids import Address, ChainId, ChannelId
from tollway.ledger.channel_totals import ChannelTotal, ChannelWithdrawal, ClaimedChannel
from tollway.ledger.channels import ChannelState
from tollway.storage.engine.database import Database
from tollway.storage.ledger.ledger_tables import (
    call_table,
    channel_claim_row_table,
    channel_claim_table,
    channel_table,
    payment_table,
)

_OWN = channel_table.c
_unclaimed: ColumnElement[int] = _OWN.start_units + payment_table.c.taken_units - _OWN.total_claimed
_WITH_PAYMENT = channel_table.join(payment_table, payment_table.c.id == _OWN.payment_id)


class ChannelTotalsStore:
    """The sums over the channels of one ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_totals(self) -> tuple[ChannelTotal, ...]:
        return await self._database.read(_list_totals, is_long=True)

    async def list_withdrawals(self, *, limit: int) -> tuple[ChannelWithdrawal, ...]:
        """The oldest first."""
        return await self._database.read(partial(_list_withdrawals, limit=limit), is_long=True)

    async def find_unclaimed_since_ms(self) -> dict[ChainId, int]:
        """When the oldest call was made that no claim has covered yet, by network. A network without such a call is left out."""
        return await self._database.read(_find_unclaimed_since_ms, is_long=True)

    async def find_called_ms(self, authorizer: Address) -> int | None:
        """When the last call on a channel of that authorizer was made."""
        query = (
            select(func.max(call_table.c.created_ms))
            .join(channel_table, _OWN.payment_id == call_table.c.payment_id)
            .where(_OWN.receiver_authorizer == authorizer)
        )
        return await self._database.read(lambda connection: connection.execute(query).scalar(), is_long=True)

    async def list_claimed(
        self, chain_id: ChainId, *, after_key: int, limit: int
    ) -> tuple[ClaimedChannel, ...]:
        """The channels of a network by key."""
        return await self._database.read(
            partial(_list_claimed, chain_id=chain_id, after_key=after_key, limit=limit)
        )

    async def count_unclaimed(
        self, chain_id: ChainId, token: Address, *, units_min: int, authorizers: Collection[Address]
    ) -> tuple[int, int]:
        """How many channels of a token and these authorizers have at least so much to claim, and how many receivers they have."""
        by_receiver = (
            select(func.count(_OWN.key).label("channels"))
            .select_from(_WITH_PAYMENT)
            .where(
                _OWN.chain_id == chain_id,
                _OWN.token == token,
                _OWN.receiver_authorizer.in_(authorizers),
                _unclaimed >= max(1, units_min),
            )
            .group_by(_OWN.receiver)
            .subquery("by_receiver")
        )
        query = select(cast(func.coalesce(func.sum(by_receiver.c.channels), 0), BigInteger), func.count())
        channels, receivers = await self._database.read(
            lambda connection: connection.execute(query.select_from(by_receiver)).one(), is_long=True
        )
        return int(channels), int(receivers)


def _list_totals(connection: Connection) -> tuple[ChannelTotal, ...]:
    keys = (_OWN.chain_id, _OWN.token, _OWN.receiver_authorizer, _OWN.state)
    is_unclaimed = _unclaimed > 0
    query = (
        select(
            *keys,
            func.count(_OWN.key).label("channels"),
            _count(or_(_OWN.balance > _OWN.total_claimed, is_unclaimed)).label("held"),
            _count(is_unclaimed).label("unclaimed_channels"),
            # The sum of integers is a numeric on PostgreSQL.
            cast(func.sum(case((is_unclaimed, _unclaimed), else_=0)), BigInteger).label("unclaimed_units"),
            func.max(case((is_unclaimed, _unclaimed), else_=0)).label("unclaimed_units_max"),
        )
        .select_from(_WITH_PAYMENT)
        .group_by(*keys)
        .order_by(*keys)
    )
    return tuple(
        ChannelTotal(
            chain_id=ChainId(row.chain_id),
            token=Address(row.token),
            authorizer=Address(row.receiver_authorizer),
            state=ChannelState(row.state),
            channels=int(row.channels),
            held=int(row.held),
            unclaimed_channels=int(row.unclaimed_channels),
            unclaimed_units=int(row.unclaimed_units),
            unclaimed_units_max=int(row.unclaimed_units_max),
        )
        for row in connection.execute(query)
    )


def _count(condition: ColumnElement[bool]) -> Any:
    return cast(func.sum(case((condition, 1), else_=0)), BigInteger)


def _list_withdrawals(connection: Connection, *, limit: int) -> tuple[ChannelWithdrawal, ...]:
    query = (
        select(
            *(_OWN.chain_id, _OWN.token, _OWN.channel_id, _OWN.withdrawal_since_s, _OWN.withdraw_delay),
            _unclaimed.label("unclaimed_units"),
        )
        .select_from(_WITH_PAYMENT)
        .where(_OWN.withdrawal_since_s > 0)
        .order_by(_OWN.withdrawal_since_s, _OWN.key)
        .limit(limit)
    )
    return tuple(
        ChannelWithdrawal(
            chain_id=ChainId(row.chain_id),
            token=Address(row.token),
            channel_id=ChannelId(row.channel_id),
            unclaimed_units=max(0, row.unclaimed_units),
            since_s=row.withdrawal_since_s,
            delay_s=row.withdraw_delay,
        )
        for row in connection.execute(query)
    )


def _find_unclaimed_since_ms(connection: Connection) -> dict[ChainId, int]:
    """A claim that failed covers nothing: it counts once the chain has claimed as much as it showed."""
    calls, claims, rows = call_table.c, channel_claim_table.c, channel_claim_row_table.c
    claimed_ms = (
        select(func.max(claims.created_ms))
        .join(channel_claim_row_table, rows.claim_id == claims.id)
        .where(rows.channel_id == _OWN.key, rows.total <= _OWN.total_claimed)
        .correlate(channel_table)
        .scalar_subquery()
    )
    first_ms = (
        select(func.min(calls.created_ms))
        .where(
            calls.payment_id == _OWN.payment_id,
            calls.created_ms > func.coalesce(claimed_ms, 0),
            calls.taken_units > 0,
        )
        .correlate(channel_table)
        .scalar_subquery()
    )
    unclaimed = (
        select(_OWN.chain_id, func.coalesce(first_ms, claimed_ms, _OWN.opened_ms).label("since_ms"))
        .select_from(_WITH_PAYMENT)
        .where(_unclaimed > 0)
        .subquery("unclaimed")
    )
    query = select(unclaimed.c.chain_id, func.min(unclaimed.c.since_ms)).group_by(unclaimed.c.chain_id)
    return {ChainId(chain_id): since_ms for chain_id, since_ms in connection.execute(query)}


def _list_claimed(
    connection: Connection, *, chain_id: ChainId, after_key: int, limit: int
) -> tuple[ClaimedChannel, ...]:
    claims, rows = channel_claim_table.c, channel_claim_row_table.c
    open_total = (
        select(func.max(rows.total))
        .join(channel_claim_table, claims.id == rows.claim_id)
        .where(rows.channel_id == _OWN.key, claims.ended_ms.is_(None))
        .correlate(channel_table)
        .scalar_subquery()
    )
    query = (
        select(
            *(_OWN.key, _OWN.channel_id, _OWN.receiver, _OWN.token, _OWN.total_claimed),
            open_total.label("open_total"),
        )
        .where(_OWN.chain_id == chain_id, _OWN.key > after_key)
        .order_by(_OWN.key)
        .limit(limit)
    )
    return tuple(
        ClaimedChannel(
            key=row.key,
            channel_id=ChannelId(row.channel_id),
            receiver=Address(row.receiver),
            token=Address(row.token),
            total_claimed=row.total_claimed,
            open_total=row.open_total,
        )
        for row in connection.execute(query)
    )
