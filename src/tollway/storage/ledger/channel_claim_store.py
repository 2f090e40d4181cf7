"""The claims of channels in SQL: the port `ChannelClaimLedger`. A claim and its transaction are one durable commit, which takes the nonce of the gas key and
publishes the vouchers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from sqlalchemy import ColumnElement, Connection, bindparam, delete, exists, func, insert, or_, select, update

from tollway.ids import Address, CallId, ChainId, ChannelId
from tollway.ledger.channels import (
    Channel,
    ChannelActivity,
    ChannelName,
    ChannelState,
    ClaimableChannel,
    OpenClaim,
    Receiver,
    StoredRow,
    UnsettledReceiver,
    Voucher,
    claimable_units,
    is_held_up,
)
from tollway.ledger.ledger import NonceUnavailable
from tollway.ledger.records import SettlementAttempt
from tollway.money import LEDGER_DECIMALS_MAX
from tollway.storage.engine.database import write_retried
from tollway.storage.engine.statements import insert_for
from tollway.storage.ledger.channel_rows import find_channels, read_channels, sum_unclaimed
from tollway.storage.ledger.channel_store import ChannelStore
from tollway.storage.ledger.gas_store import (
    is_attempt_stored,
    lock_nonces,
    write_attempts,
    write_nonces,
)
from tollway.storage.ledger.history import find_returnable_units
from tollway.storage.ledger.ledger_tables import (
    call_table,
    channel_claim_row_table,
    channel_claim_table,
    channel_look_table,
    channel_refused_table,
    channel_table,
    payment_table,
    restore_table,
)
from tollway.storage.ledger.locked_rows import LockedRows

UNSETTLED_MAX = 10_000
"""How many channels one round asks for; nearly always those of one claim."""


class ChannelClaimStore(ChannelStore):
    """Implements `ChannelLedger` and `ChannelClaimLedger`."""

    async def find_channel_by_key(self, key: int) -> Channel | None:
        return (await self._database.read(partial(read_channels, keys=[key]))).get(key)

    async def count_restores(self) -> int:
        """How often this database was restored."""
        query = select(func.count()).select_from(restore_table)
        found = await self._database.read(lambda connection: connection.execute(query).scalar())
        return int(found or 0)

    async def list_claimable(
        self, chain_id: ChainId, *, unclaimed_max: int, limit: int
    ) -> tuple[ClaimableChannel, ...]:
        return await self._database.read(
            partial(_list_claimable, chain_id=chain_id, unclaimed_max=unclaimed_max, limit=limit),
            is_long=True,  # reads every channel of the network
        )

    async def add_claim(self, claim: OpenClaim, attempt: SettlementAttempt) -> bool | NonceUnavailable:
        return await write_retried(self._database, partial(_add_claim, claim=claim, attempt=attempt))

    async def list_open_claims(self, chain_id: ChainId) -> tuple[OpenClaim, ...]:
        return await self._database.read(partial(_list_open_claims, chain_id=chain_id))

    async def list_watched(self, chain_id: ChainId, *, after_key: int, limit: int) -> tuple[Channel, ...]:
        return await self._database.read(
            partial(_list_watched, chain_id=chain_id, after_key=after_key, limit=limit)
        )

    async def find_watched(
        self, chain_id: ChainId, channel_ids: Collection[ChannelId]
    ) -> tuple[Channel, ...]:
        names = [ChannelName(chain_id, one) for one in channel_ids]
        found = await self._database.read(partial(find_channels, names=names))
        watched = [
            one for one in found.values() if max(one.facts.balance, one.taken_units) > one.facts.total_claimed
        ]
        return tuple(sorted(watched, key=lambda one: one.key))

    async def note_look(self, chain_id: ChainId, *, now_ms: int) -> None:
        def work(connection: Connection) -> None:
            fresh = insert_for(connection, channel_look_table)
            written = fresh.on_conflict_do_update(
                index_elements=["chain_id"], set_={"looked_ms": fresh.excluded.looked_ms}
            )
            connection.execute(written, {"chain_id": chain_id, "looked_ms": now_ms})

        await self._database.write(work, flush=False)

    async def read_look_ms(self, chain_id: ChainId) -> int | None:
        columns = channel_look_table.c
        query = select(columns.looked_ms).where(columns.chain_id == chain_id)
        return await self._database.read(lambda connection: connection.execute(query).scalar())

    async def find_activity(self, key: int) -> ChannelActivity:
        return await self._database.read(partial(_find_activity, key=key))

    async def mark_refused(self, receiver: Receiver, *, now_ms: int) -> None:
        def work(connection: Connection) -> None:
            fresh = insert_for(connection, channel_refused_table).on_conflict_do_nothing()
            connection.execute(fresh, {**receiver._asdict(), "refused_ms": now_ms})

        await self._database.write(work)

    async def clear_refused(self, receiver: Receiver) -> None:
        columns = channel_refused_table.c
        gone = delete(channel_refused_table).where(
            columns.chain_id == receiver.chain_id,
            columns.receiver == receiver.receiver,
            columns.token == receiver.token,
        )
        await self._database.write(lambda connection: connection.execute(gone) and None)

    async def list_refused(self) -> dict[Receiver, int]:
        columns = channel_refused_table.c
        query = select(columns.chain_id, columns.receiver, columns.token, columns.refused_ms)

        def work(connection: Connection) -> dict[Receiver, int]:
            return {
                Receiver(ChainId(row.chain_id), Address(row.receiver), Address(row.token)): row.refused_ms
                for row in connection.execute(query)
            }

        return await self._database.read(work)

    async def mark_unused(self, key: int, since_ms: int | None) -> None:
        marked = update(channel_table).where(channel_table.c.key == key).values(unused_since_ms=since_ms)
        await self._database.write(lambda connection: connection.execute(marked) and None)

    async def list_unused(self, chain_id: ChainId, *, before_ms: int, limit: int) -> tuple[Channel, ...]:
        return await self._database.read(
            partial(_list_unused, chain_id=chain_id, before_ms=before_ms, limit=limit), is_long=True
        )

    async def drain_channel(self, key: int) -> None:
        await write_retried(self._database, partial(_drain, key=key))

    async def list_unsettled(self, chain_id: ChainId) -> tuple[UnsettledReceiver, ...]:
        return await self._database.read(partial(_list_unsettled, chain_id=chain_id), is_long=True)

    async def mark_settled(self, totals: Mapping[int, int]) -> None:
        own = channel_table.c
        written = (
            update(channel_table)
            .where(own.key == bindparam("at_key"), own.settled < bindparam("total"))
            .values(settled=bindparam("total"))
        )
        rows = [{"at_key": key, "total": total} for key, total in sorted(totals.items())]
        # Batches lock the same rows in another order.
        await write_retried(self._database, lambda connection: connection.execute(written, rows))

    async def close_claim(self, claim_id: CallId, *, now_ms: int) -> None:
        claims, own = channel_claim_table.c, channel_table.c
        ended = update(channel_claim_table).where(claims.id == claim_id, claims.ended_ms.is_(None))
        freed = update(channel_table).where(own.reserved_call == claim_id)

        def work(connection: Connection) -> None:
            keys = select(own.payment_id).where(own.reserved_call == claim_id)
            LockedRows(connection).lock_payments(connection.execute(keys).scalars().all())
            connection.execute(freed.values(reserved_call=None))
            connection.execute(ended.values(ended_ms=now_ms))

        await self._database.write(work)


def _list_unsettled(connection: Connection, *, chain_id: ChainId) -> tuple[UnsettledReceiver, ...]:
    own = channel_table.c
    query = (
        select(own.receiver, own.token, own.key, own.total_claimed)
        .where(own.chain_id == chain_id, own.settled < own.total_claimed)
        .order_by(own.receiver, own.token, own.key)
        .limit(UNSETTLED_MAX)
    )
    found: dict[tuple[bytes, bytes], dict[int, int]] = {}
    for receiver, token, key, total_claimed in connection.execute(query):
        found.setdefault((bytes(receiver), bytes(token)), {})[key] = total_claimed
    claimed = select(func.sum(own.total_claimed)).where(
        own.receiver == bindparam("receiver"), own.token == bindparam("token"), own.chain_id == chain_id
    )
    return tuple(
        UnsettledReceiver(
            receiver=Address(receiver),
            token=Address(token),
            totals=totals,
            claimed_units=int(connection.scalar(claimed, {"receiver": receiver, "token": token})),
        )
        for (receiver, token), totals in found.items()
    )


def _drain(connection: Connection, *, key: int) -> None:
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments(one.payment_id for one in read_channels(connection, [key]).values())
    locked_rows.channels.load([key])
    locked_rows.channels.put(replace(locked_rows.channels.find(key), state=ChannelState.DRAINING))
    locked_rows.write()


def _is_in_open_claim() -> ColumnElement[bool]:
    rows, claims = channel_claim_row_table.c, channel_claim_table.c
    return exists(
        select(rows.claim_id)
        .join(channel_claim_table, claims.id == rows.claim_id)
        .where(rows.channel_id == channel_table.c.key, claims.ended_ms.is_(None))
    )


def _list_claimable(
    connection: Connection, *, chain_id: ChainId, unclaimed_max: int, limit: int
) -> tuple[ClaimableChannel, ...]:
    own, payments = channel_table.c, payment_table.c
    rows, claims = channel_claim_row_table.c, channel_claim_table.c
    unclaimed = own.start_units + payments.taken_units - own.total_claimed
    claimed_ms = (
        select(func.max(claims.created_ms))
        .join(channel_claim_row_table, rows.claim_id == claims.id)
        .where(rows.channel_id == own.key)
        .scalar_subquery()
    )
    query = (
        select(own.key, own.payment_id, func.coalesce(claimed_ms, own.opened_ms).label("since_ms"))
        .join(payment_table, payments.id == own.payment_id)
        .where(own.chain_id == chain_id, unclaimed > 0, ~_is_in_open_claim())
        .order_by(unclaimed.desc(), own.key)
        .limit(limit)
    )
    found = connection.execute(query).all()
    channels = read_channels(connection, [row.key for row in found])
    open_units = find_returnable_units(connection, [row.payment_id for row in found])
    owed_nano = sum_unclaimed(connection, {one.config.payer for one in channels.values()})
    announced_units, rest_nano = {}, dict(owed_nano)
    for row in found:
        channel = channels[row.key]
        shown = claimable_units(channel, open_units=open_units.get(row.payment_id, 0))
        units = 0 if shown is None else shown[0] - channel.facts.total_claimed
        announced_units[row.key] = units
        rest_nano[channel.config.payer] -= units * 10 ** (LEDGER_DECIMALS_MAX - channel.decimals)
    claimable = []
    for row in found:
        channel = channels[row.key]
        is_near_max = is_held_up(
            channel,
            claimable=announced_units[row.key],
            rest_nano=rest_nano[channel.config.payer],
            unclaimed_max=unclaimed_max,
        )
        shown = claimable_units(
            channel, open_units=open_units.get(row.payment_id, 0), is_near_max=is_near_max
        )
        if shown is not None:
            total, voucher = shown
            claimable.append(
                ClaimableChannel(
                    channel=channel,
                    voucher=voucher,
                    total=total,
                    since_ms=row.since_ms,
                    payer_owes_nano=owed_nano.get(channel.config.payer, 0),
                )
            )
    return tuple(claimable)


def _list_unused(
    connection: Connection, *, chain_id: ChainId, before_ms: int, limit: int
) -> tuple[Channel, ...]:
    own, payments = channel_table.c, payment_table.c
    rows, claims = channel_claim_row_table.c, channel_claim_table.c
    refunded = (
        select(rows.claim_id)
        .join(channel_claim_table, claims.id == rows.claim_id)
        .where(rows.channel_id == own.key, claims.is_refund, claims.created_ms > before_ms)
    )
    query = (
        select(own.key, own.payment_id)
        .join(payment_table, payments.id == own.payment_id)
        .where(
            own.chain_id == chain_id,
            own.unused_since_ms <= before_ms,
            own.balance > own.start_units + payments.taken_units,
            own.balance > own.total_claimed,
            own.state != ChannelState.WITHDRAWING.value,
            own.reserved_call.is_(None),
            ~_is_in_open_claim(),
            ~exists(refunded),
        )
        .order_by((own.balance - own.total_claimed).desc(), own.key)
        .limit(limit)
    )
    found = connection.execute(query).all()
    open_units = find_returnable_units(connection, [row.payment_id for row in found])
    channels = read_channels(connection, [row.key for row in found])
    return tuple(channels[row.key] for row in found if not open_units.get(row.payment_id))


def _add_claim(
    connection: Connection, *, claim: OpenClaim, attempt: SettlementAttempt
) -> bool | NonceUnavailable:
    if is_attempt_stored(connection, attempt):
        return True
    keys = [row.channel_key for row in claim.rows]
    locked_rows = LockedRows(connection)
    locked_rows.lock_payments(one.payment_id for one in read_channels(connection, keys).values())
    locked_rows.channels.load(keys)
    # Under the locks of the payments no other claim takes these channels.
    busy = select(channel_table.c.key).where(channel_table.c.key.in_(keys), _is_in_open_claim())
    if keys and connection.execute(busy.limit(1)).first() is not None:
        return False
    if claim.is_refund and not all(
        _may_be_refunded(locked_rows.channels.find(row.channel_key), row) for row in claim.rows
    ):
        return False
    if any(_is_ahead_of_call(locked_rows.channels.find(row.channel_key), row) for row in claim.rows):
        return False
    signer = (attempt.sender, attempt.chain_id)
    next_nonce = lock_nonces(connection, [signer])[signer]
    if attempt.nonce != next_nonce:
        return NonceUnavailable(next_nonce=next_nonce)
    for row in claim.rows:
        channel = locked_rows.channels.find(row.channel_key)
        published = max(channel.published, row.voucher.ceiling)
        # A voucher that becomes public is announced too, so that no later call can show it.
        announced = max(channel.announced, row.voucher.ceiling)
        reserved = claim.id if claim.is_refund else channel.reserved_call
        locked_rows.channels.put(
            replace(channel, published=published, announced=announced, reserved_call=reserved)
        )
    locked_rows.write()
    write_nonces(connection, {signer: next_nonce + 1})
    connection.execute(
        insert(channel_claim_table),
        {
            "id": claim.id,
            "chain_id": claim.chain_id,
            "is_refund": claim.is_refund,
            "created_ms": claim.created_ms,
        },
    )
    stored = [
        {
            "claim_id": claim.id,
            "channel_id": row.channel_key,
            "ceiling": row.voucher.ceiling,
            "signature": row.voucher.signature,
            "total": row.total,
        }
        for row in claim.rows
    ]
    if stored:
        connection.execute(insert(channel_claim_row_table), stored)
    write_attempts(connection, [attempt])
    return True


def _is_ahead_of_call(channel: Channel, row: StoredRow) -> bool:
    """Whether a call has begun since the claim was computed, and the voucher would be announced during that call, whose charge builds on the announced sum."""
    return channel.reserved_call is not None and row.voucher.ceiling > channel.announced


def _may_be_refunded(channel: Channel, row: StoredRow) -> bool:
    """Whether no call has the channel, and none has changed what it owes since the refund was computed: the rest would leave with what that call has taken."""
    owed_units = max(channel.taken_units, channel.facts.total_claimed)
    return channel.reserved_call is None and row.total == owed_units


def _list_open_claims(connection: Connection, *, chain_id: ChainId) -> tuple[OpenClaim, ...]:
    claims, rows = channel_claim_table.c, channel_claim_row_table.c
    query = (
        select(
            claims.id,
            claims.is_refund,
            claims.created_ms,
            rows.channel_id,
            rows.ceiling,
            rows.signature,
            rows.total,
        )
        .outerjoin(channel_claim_row_table, rows.claim_id == claims.id)
        .where(claims.chain_id == chain_id, claims.ended_ms.is_(None))
        .order_by(claims.created_ms, claims.id, rows.channel_id)
    )
    found: dict[CallId, OpenClaim] = {}
    for row in connection.execute(query):
        stored: tuple[StoredRow, ...] = ()
        if row.channel_id is not None:
            voucher = Voucher(ceiling=row.ceiling, signature=bytes(row.signature))
            stored = (StoredRow(channel_key=row.channel_id, voucher=voucher, total=row.total),)
        known = found.get(CallId(row.id))
        found[CallId(row.id)] = OpenClaim(
            id=CallId(row.id),
            chain_id=chain_id,
            rows=(*(() if known is None else known.rows), *stored),
            created_ms=row.created_ms,
            is_refund=bool(row.is_refund),
        )
    return tuple(found.values())


def _find_activity(connection: Connection, *, key: int) -> ChannelActivity:
    calls, claims, rows = call_table.c, channel_claim_table.c, channel_claim_row_table.c
    payment = select(channel_table.c.payment_id).where(channel_table.c.key == key).scalar_subquery()
    called = select(func.max(calls.created_ms)).where(calls.payment_id == payment)
    refunded = (
        select(func.max(claims.created_ms))
        .join(channel_claim_row_table, rows.claim_id == claims.id)
        .where(rows.channel_id == key, claims.is_refund)
    )
    open_claim = select(rows.claim_id).join(channel_claim_table, claims.id == rows.claim_id)
    is_open = open_claim.where(rows.channel_id == key, claims.ended_ms.is_(None)).limit(1)
    channels = read_channels(connection, [key])
    payment_ids = [one.payment_id for one in channels.values()]
    return ChannelActivity(
        called_ms=connection.scalar(called),
        refunded_ms=connection.scalar(refunded),
        is_claimed_now=connection.execute(is_open).first() is not None,
        open_units=sum(find_returnable_units(connection, payment_ids).values()),
    )


def _list_watched(
    connection: Connection, *, chain_id: ChainId, after_key: int, limit: int
) -> tuple[Channel, ...]:
    own, payments = channel_table.c, payment_table.c
    query = (
        select(own.key)
        .join(payment_table, payments.id == own.payment_id)
        .where(
            own.chain_id == chain_id,
            own.key > after_key,
            or_(own.balance > own.total_claimed, own.start_units + payments.taken_units > own.total_claimed),
        )
        .order_by(own.key)
        .limit(limit)
    )
    keys = list(connection.execute(query).scalars())
    channels = read_channels(connection, keys)
    return tuple(channels[key] for key in keys)
