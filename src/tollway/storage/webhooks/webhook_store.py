"""Endpoints and deliveries of webhooks in SQL, for their owners: the port `Webhooks` on both dialects; and the set of active endpoints that each gateway
polls. `webhook_outbox` has the part of the gateway that delivers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    Row,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    select,
    text,
    update,
)

from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.statements import Prepared
from tollway.storage.webhooks.webhook_events import EventLog
from tollway.storage.webhooks.webhook_outbox import (
    is_active_for_another,
    put_message,
    raise_generation,
    schedule_endpoint,
    secret_label,
)
from tollway.storage.webhooks.webhook_pruning import delete_settled_of
from tollway.storage.webhooks.webhook_tables import (
    NEW,
    PENDING,
    UNCONFIRMED,
    delivery_table,
    endpoint_table,
    event_table,
    generation_table,
    message_table,
)
from tollway.webhooks.endpoints import (
    DeliveryState,
    EndpointState,
    NewEndpoint,
    NotRegistered,
    Reason,
    Resent,
    SentChallenge,
    WebhookDelivery,
    WebhookEndpoint,
)
from tollway.webhooks.events import EventType

_LOCK_SPACE = 0x7768
_MESSAGE_SHOWN = ("attempts", "due_ms", "last_ms", "last_status", "last_error")

_endpoint, _event = endpoint_table.c, event_table.c
_delivery, _message = delivery_table.c, message_table.c


class WebhookStore:
    """Implements `Webhooks`. `ticks_s`: monotonic seconds. `format_time`: writes milliseconds as RFC 3339."""

    def __init__(
        self,
        database: Database,
        *,
        events: EventLog,
        sealer: Sealer,
        ticks_s: Callable[[], float],
        now_ms: Callable[[], int],
        format_time: Callable[[int], str],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._database = database
        self._events = events
        self._sealer = sealer
        self._ticks_s = ticks_s
        self._now_ms = now_ms
        self._limits = limits
        self._format_time = format_time
        self._generation: int | None = None

    # ---- The set of active endpoints in memory.

    async def refresh(self) -> None:
        """Reads the set of active endpoints where it has changed. Stops all endpoints while too many new events wait for the gateway that delivers. Call it more often than `STALE_S`."""
        read_s = self._ticks_s()
        events_max = self._limits.webhook_events_max
        ((number, is_full),) = await self._database.read(
            lambda connection: _STATE.fetch(connection, last=events_max - 1)
        )
        if is_full and not self._events.has_none_watched:
            await write_retried(self._database, partial(_stop_all, now_ms=self._now_ms()))
        elif number == self._generation:
            self._events.keep_watched(read_s=read_s)
            return
        number, watched = await self._database.read(_read_watched)
        self._events.set_watched(watched, read_s=read_s)
        self._generation = number

    # ---- For owners.

    async def register(self, new: NewEndpoint, *, count_max: int) -> WebhookEndpoint | NotRegistered:
        sealed = None
        if new.secret is not None:
            sealed = self._sealer.seal(new.secret, label=secret_label(new.id))
        row = {
            "id": new.id,
            "wallet": bytes(new.wallet),
            "network": new.network,
            "url": new.url,
            "origin": new.origin,
            "types": " ".join(new.types),
            "state": EndpointState.UNCONFIRMED.value,
            "secret_sealed": sealed,
            "challenge": new.challenge,
            "tries": 0,
            "due_ms": new.created_ms,
            "is_slow": False,
            "created_ms": new.created_ms,
        }
        counts = (
            (NotRegistered.WALLET_FULL, _endpoint.wallet == bytes(new.wallet), count_max),
            (
                NotRegistered.ADDRESS_FULL,
                and_(text(UNCONFIRMED), _endpoint.network == new.network),
                self._limits.webhooks_unconfirmed_max,
            ),
        )

        def work(connection: Connection) -> NotRegistered | None:
            take_advisory_locks(connection, [bytes(new.wallet), new.network.encode()], space=_LOCK_SPACE)
            for refusal, is_counted, most in counts:
                if (connection.scalar(select(func.count()).where(is_counted)) or 0) >= most:
                    return refusal
            if not new.is_shared and is_active_for_another(connection, new.url, new.wallet):
                return NotRegistered.URL_TAKEN
            connection.execute(insert(endpoint_table), row)
            return None

        refusal = await write_retried(self._database, work)
        if refusal is not None:
            return refusal
        return next(one for one in await self.list_of(new.wallet) if one.id == new.id)

    async def list_of(self, wallet: Address) -> tuple[WebhookEndpoint, ...]:
        def count(state: DeliveryState) -> Any:
            of_endpoint = and_(_delivery.endpoint_no == _endpoint.number, _delivery.state == state.value)
            return select(func.count()).where(of_endpoint).correlate(endpoint_table).scalar_subquery()

        query = (
            select(
                endpoint_table,
                count(DeliveryState.PENDING).label("pending"),
                count(DeliveryState.DEAD).label("dead"),
            )
            .where(_endpoint.wallet == bytes(wallet))
            .order_by(_endpoint.created_ms, _endpoint.id)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return tuple(map(_parse_endpoint, rows))

    async def remove(self, wallet: Address, endpoint_id: str) -> bool:
        def work(connection: Connection) -> int | None:
            number = _find_number(connection, wallet, endpoint_id, is_locked=True)
            if number is None:
                return None
            connection.execute(delete(endpoint_table).where(_endpoint.number == number))
            connection.execute(delete(message_table).where(text(PENDING), _message.endpoint_no == number))
            # What waits ends here, and is deleted in pages: also by a later run of pruning.
            ended = {"state": DeliveryState.DEAD.value, "settled_ms": 0}
            waiting = update(delivery_table).where(text(PENDING), _delivery.endpoint_no == number)
            connection.execute(waiting.values(**ended))
            raise_generation(connection)
            return number

        number = await write_retried(self._database, work)
        if number is not None:
            await delete_settled_of(self._database, number)
        return number is not None

    async def deliveries_of(
        self,
        wallet: Address,
        endpoint_id: str,
        *,
        state: DeliveryState | None,
        before: str | None,
        limit: int,
    ) -> tuple[WebhookDelivery, ...] | None:
        query = (
            select(
                *(_event.id.label("event_id"), _event.type, _event.at_ms, _delivery.state),
                *(_message.id.label("message_id"), *(_message[name] for name in _MESSAGE_SHOWN)),
            )
            .join(event_table, _event.number == _delivery.event_no)
            .join(message_table, _is_of_message(), isouter=True)
            .select_from(delivery_table)
            .order_by(_delivery.event_no.desc())
            .limit(limit)
        )
        if state is not None:
            query = query.where(_delivery.state == state.value)
        if before is not None:
            earlier = select(_event.number).where(_event.id == before).scalar_subquery()
            query = query.where(_delivery.event_no < earlier)

        def work(connection: Connection) -> tuple[WebhookDelivery, ...] | None:
            number = _find_number(connection, wallet, endpoint_id)
            if number is None:
                return None
            of_endpoint = query.where(_delivery.endpoint_no == number)
            return tuple(map(_parse_delivery, connection.execute(of_endpoint)))

        return await self._database.read(work)

    async def resend(self, wallet: Address, endpoint_id: str, event_id: str, *, now_ms: int) -> Resent:
        def work(connection: Connection) -> Resent:
            own = select(_endpoint.number, _endpoint.state).where(*_is_own(wallet, endpoint_id))
            endpoint = connection.execute(own.with_for_update()).one_or_none()
            if endpoint is None:
                return Resent.UNKNOWN
            event_no = select(_event.number).where(_event.id == event_id).scalar_subquery()
            at = (_delivery.endpoint_no == endpoint.number, _delivery.event_no == event_no)
            row = connection.execute(select(delivery_table).where(*at).with_for_update()).one_or_none()
            if row is None:
                return Resent.UNKNOWN
            if endpoint.state in (EndpointState.DISABLED.value, EndpointState.UNCONFIRMED.value):
                return Resent.DISABLED
            if row.state == DeliveryState.PENDING.value:
                return Resent.PENDING
            put_message(connection, endpoint.number, [row.event_no], message_id=event_id, now_ms=now_ms)
            schedule_endpoint(connection, endpoint.number, now_ms=now_ms)
            return Resent.QUEUED

        return await write_retried(self._database, work)


_STATE = Prepared(
    select(
        generation_table.c.number,
        exists(
            select(_event.number)
            .where(text(NEW))
            .order_by(_event.number)
            .offset(bindparam("last", type_=Integer))
            .limit(1)
        ),
    )
)
"""The number of the set, and whether one more new event than `last` waits."""


def _is_own(wallet: Address, endpoint_id: str) -> tuple[ColumnElement[bool], ...]:
    return (_endpoint.id == endpoint_id, _endpoint.wallet == bytes(wallet))


def _find_number(
    connection: Connection, wallet: Address, endpoint_id: str, *, is_locked: bool = False
) -> int | None:
    own = select(_endpoint.number).where(*_is_own(wallet, endpoint_id))
    return connection.scalar(own.with_for_update() if is_locked else own)


def _is_of_message() -> ColumnElement[bool]:
    return and_(_message.endpoint_no == _delivery.endpoint_no, _message.number == _delivery.message_no)


def _stop_all(connection: Connection, *, now_ms: int) -> None:
    """Stops every active endpoint; its gap begins now, and earlier when the waiting events are copied."""
    active = select(_endpoint.id).where(_endpoint.state == EndpointState.ACTIVE.value)
    ids = connection.execute(active.order_by(_endpoint.id).with_for_update()).scalars().all()
    if not ids:
        return
    stopped = {
        "state": EndpointState.STOPPED.value,
        "reason": Reason.TOO_MANY_PENDING.value,
        "gap_from_ms": now_ms,
        "gap_to_ms": None,
    }
    connection.execute(
        update(endpoint_table).where(_endpoint.state == EndpointState.ACTIVE.value).values(**stopped)
    )
    raise_generation(connection)


def _read_watched(connection: Connection) -> tuple[int, list[tuple[Address, EventType]]]:
    """The number of the set first: a change between the two reads is read again."""
    number = connection.scalar(select(generation_table.c.number)) or 0
    active = select(_endpoint.wallet, _endpoint.types).where(_endpoint.state == EndpointState.ACTIVE.value)
    watched = [
        (Address(row.wallet), EventType(name))
        for row in connection.execute(active)
        for name in row.types.split(" ")
    ]
    return int(number), watched


def _parse_endpoint(row: Row[Any]) -> WebhookEndpoint:
    return WebhookEndpoint(
        id=row.id,
        wallet=Address(row.wallet),
        url=row.url,
        origin=row.origin,
        types=tuple(map(EventType, row.types.split(" "))),
        state=EndpointState(row.state),
        reason=None if row.reason is None else Reason(row.reason),
        has_secret=row.secret_sealed is not None,
        created_ms=row.created_ms,
        active_from_ms=row.active_from_ms,
        gap_from_ms=row.gap_from_ms,
        gap_to_ms=row.gap_to_ms,
        pending=row.pending,
        dead=row.dead,
        challenge=_parse_challenge(row),
    )


def _parse_challenge(row: Row[Any]) -> SentChallenge | None:
    if row.challenge_ms is None:
        return None
    return SentChallenge(
        tries=row.tries,
        sent_ms=row.challenge_ms,
        status=row.challenge_status,
        error=row.challenge_error,
        next_ms=row.due_ms if row.state == EndpointState.UNCONFIRMED.value else None,
    )


def _parse_delivery(row: Row[Any]) -> WebhookDelivery:
    is_pending = row.state == DeliveryState.PENDING.value
    return WebhookDelivery(
        event_id=row.event_id,
        type=row.type,
        at_ms=row.at_ms,
        state=DeliveryState(row.state),
        message_id=row.message_id,
        attempts=row.attempts or 0,
        next_ms=row.due_ms if is_pending else None,
        last_ms=row.last_ms,
        last_status=row.last_status,
        last_error=row.last_error,
    )
