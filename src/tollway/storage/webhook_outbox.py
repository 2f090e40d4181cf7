"""The outbox of webhooks in SQL: the port `Outbox` on both dialects. Copies new events to endpoints, freezes messages, records attempts.

Everything is sent after a durable commit that has read or written it: `spread_events` commits durably and reads the new events, so the commits of
these events are durable then too (a close is flushed by the next durable commit). `begin_attempt` stores the id and the body of a message durably
before its first attempt; later attempts send the same bytes.

Two gateways may deliver at the same time for a moment. Each statement therefore takes rows that no other transaction holds (`SKIP LOCKED`), and an
attempt moves the time of the next one ahead before it begins (`ATTEMPT_MS`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from tollway.background import describe_failure
from tollway.ids import Address, ChainId, format_id
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.storage.catalog_tables import listing_table
from tollway.storage.database import Database, write_retried
from tollway.storage.encryption import Sealer
from tollway.storage.ledger_tables import call_table, parse_call, parse_payment, payment_table, select_records
from tollway.storage.statements import Prepared, insert_for
from tollway.storage.webhook_events import ACTIVATION_MS, EventLog, event_row
from tollway.storage.webhook_pruning import prune_settled
from tollway.storage.webhook_tables import (
    PENDING,
    UNCONFIRMED,
    WAITING,
    delivery_table,
    endpoint_table,
    event_table,
    generation_table,
    message_table,
)
from tollway.webhooks.endpoints import (
    Attempt,
    DeliveryState,
    DueChallenge,
    DueEndpoint,
    EndpointState,
    Reason,
)
from tollway.webhooks.events import (
    GAP,
    EventType,
    NewEvent,
    call_data,
    gap_data,
    listing_data,
    payment_data,
)
from tollway.webhooks.messages import StoredEvent, batch_body, encode_json, event_body, take_batch
from tollway.webhooks.schedule import Response

SPREAD_MAX = 500
"""New events that one transaction copies to their endpoints."""
WAITING_READ_MAX = 100
"""Waiting events that are read for one batch: more never fit into 20 kB."""
OPEN_MESSAGES_MAX = 8
"""Messages of one endpoint that are not delivered yet. Further events wait and share later messages, so a receiver that is away for hours gets few
messages, and one message that it always refuses does not hold up the others."""
ATTEMPT_MS = 60_000
"""An attempt that its gateway did not end is begun again after this: longer than its deadline."""
_ID_BYTES = 10

_log = structlog.get_logger(__name__)

_SENDING = (EndpointState.ACTIVE.value, EndpointState.STOPPED.value)
_endpoint, _delivery, _message = endpoint_table.c, delivery_table.c, message_table.c


def secret_label(endpoint_id: str) -> bytes:
    """The associated data of an endpoint's encrypted secret."""
    return b"webhook secret " + endpoint_id.encode()


class WebhookOutbox:
    """Implements `Outbox`. `now_ms`: the time that all gateways share. `find_asset`: the asset with a ledger key on a chain. `format_time`: writes
    milliseconds as RFC 3339."""

    def __init__(
        self,
        database: Database,
        *,
        events: EventLog,
        sealer: Sealer,
        now_ms: Callable[[], int],
        entropy: Callable[[int], bytes],
        find_asset: Callable[[ChainId, str], Asset | None],
        format_time: Callable[[int], str],
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._database = database
        self._events = events
        self._sealer = sealer
        self._now_ms = now_ms
        self._entropy = entropy
        self._find_asset = find_asset
        self._format_time = format_time
        self._limits = limits

    async def spread_events(self) -> int:
        return await write_retried(self._database, self._spread)

    def _spread(self, connection: Connection) -> int:
        """Locks the endpoints of the events, then copies. An endpoint with too many pending deliveries stops, and its gap begins."""
        queued = (
            select(event_table).order_by(event_table.c.id).limit(SPREAD_MAX).with_for_update(skip_locked=True)
        )
        events = list(connection.execute(queued))
        if not events:
            return 0
        data = _EventData(connection, self._find_asset, self._format_time)
        wanted = sorted({event.wallet for event in events})
        locked = select(endpoint_table).where(_endpoint.wallet.in_(wanted)).order_by(_endpoint.id)
        has_stopped = False
        for endpoint in connection.execute(locked.with_for_update()).all():
            types = endpoint.types.split(" ")
            has_stopped |= self._spread_to(
                connection,
                endpoint,
                [one for one in events if one.wallet == endpoint.wallet and one.type in types],
                data,
            )
        connection.execute(delete(event_table).where(event_table.c.id.in_([one.id for one in events])))
        if has_stopped:
            raise_generation(connection)
        return len(events)

    def _spread_to(
        self, connection: Connection, endpoint: Any, events: Sequence[Any], data: "_EventData"
    ) -> bool:
        """Copies events to one endpoint. True when it stops now."""
        if endpoint.active_from_ms is None or endpoint.state == EndpointState.DISABLED.value:
            return False
        events = [one for one in events if one.at_ms >= endpoint.active_from_ms]
        if not events:
            return False
        room = 0
        if endpoint.state == EndpointState.ACTIVE.value:
            room = max(0, self._limits.webhook_pending_max - _count_pending(connection, endpoint.id))
        if kept := events[:room]:
            rows = [self._delivery_row(endpoint.id, one, data) for one in kept]
            connection.execute(insert_for(connection, delivery_table).on_conflict_do_nothing(), rows)
        if not (lost := events[room:]):
            return False
        # The gap begins with the oldest event that is not kept.
        earliest_ms = min(one.at_ms for one in lost)
        is_open = endpoint.gap_from_ms is not None and endpoint.gap_to_ms is None
        connection.execute(
            update(endpoint_table)
            .where(_endpoint.id == endpoint.id)
            .values(
                state=EndpointState.STOPPED.value,
                reason=Reason.TOO_MANY_PENDING.value,
                gap_from_ms=min(earliest_ms, endpoint.gap_from_ms) if is_open else earliest_ms,
                gap_to_ms=None,
            )
        )
        return bool(endpoint.state == EndpointState.ACTIVE.value)

    def _delivery_row(self, endpoint_id: str, event: Any, data: "_EventData") -> dict[str, Any]:
        """An event whose subject cannot be read has a gap in its place: it must not hold up the events after it."""
        kind = event.type
        try:
            content = data.of(event)
        except DBAPIError:
            raise
        except Exception as exc:  # noqa: BLE001 - a defect of one event: the other ones go on
            _log.error(
                "webhook_event_unreadable",
                event_id=event.id,
                endpoint=endpoint_id,
                **describe_failure(exc),
            )
            at = self._format_time(event.at_ms)
            kind, content = GAP, gap_data(from_at=at, to_at=at)
        return {
            "endpoint_id": endpoint_id,
            "event_id": event.id,
            "type": kind,
            "state": DeliveryState.PENDING.value,
            "message_id": None,
            "at_ms": event.at_ms,
            "settled_ms": None,
            "data": encode_json({"endpointId": endpoint_id, **content}),
        }

    async def find_challenges(self, *, now_ms: int, limit: int) -> Sequence[DueChallenge]:
        query = (
            select(endpoint_table)
            .where(text(UNCONFIRMED), _endpoint.due_ms <= now_ms)
            .order_by(_endpoint.due_ms)
            .limit(limit)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return [
            DueChallenge(
                endpoint_id=row.id,
                url=row.url,
                origin=row.origin,
                challenge=row.challenge,
                tries=row.tries,
                secret=self._open_secret(row.id, row.secret_sealed),
            )
            for row in rows
        ]

    async def find_due(self, *, now_ms: int, limit: int) -> Sequence[DueEndpoint]:
        return await self._database.read(partial(_find_due, now_ms=now_ms, limit=limit))

    async def has_work(self, *, now_ms: int) -> bool:
        if not self._events.has_tables:
            return False
        rows = await self._database.read(lambda connection: _HAS_WORK.fetch(connection, now_ms=now_ms))
        return bool(rows)

    async def begin_attempt(self, endpoint_id: str, *, now_ms: int) -> Attempt | None:
        work = partial(self._begin_attempt, endpoint_id=endpoint_id, now_ms=now_ms)
        return await write_retried(self._database, work)

    def _begin_attempt(self, connection: Connection, endpoint_id: str, *, now_ms: int) -> Attempt | None:
        locked = select(endpoint_table).where(_endpoint.id == endpoint_id).with_for_update(skip_locked=True)
        endpoint = connection.execute(locked).one_or_none()
        if endpoint is None or endpoint.state not in _SENDING:
            return None
        pending = (text(PENDING), _message.endpoint_id == endpoint_id)
        due = select(message_table).where(*pending, _message.due_ms <= now_ms).order_by(_message.due_ms)
        row = connection.execute(due.limit(1)).one_or_none()
        if row is None:
            count = connection.scalar(select(func.count()).where(*pending)) or 0
            row = None if count >= OPEN_MESSAGES_MAX else self._make_message(connection, endpoint_id, now_ms)
        if row is None:
            return None
        attempts = row.attempts + 1
        connection.execute(
            update(message_table)
            .where(_message.endpoint_id == endpoint_id, _message.id == row.id)
            .values(attempts=attempts, due_ms=now_ms + ATTEMPT_MS, last_ms=now_ms)
        )
        return Attempt(
            endpoint_id=endpoint_id,
            url=endpoint.url,
            message_id=row.id,
            body=row.body,
            attempts=attempts,
            first_ms=row.first_ms,
            secret=self._open_secret(endpoint_id, endpoint.secret_sealed),
        )

    def _make_message(self, connection: Connection, endpoint_id: str, now_ms: int) -> Any | None:
        """Freezes the oldest waiting events in a message and returns its row."""
        waiting = (
            select(delivery_table)
            .where(text(WAITING), _delivery.endpoint_id == endpoint_id)
            .order_by(_delivery.event_id)
            .limit(WAITING_READ_MAX)
        )
        rows = list(connection.execute(waiting))
        if not rows:
            return None
        at = self._format_time(now_ms)
        stored = [parse_stored(row, self._format_time) for row in rows]
        stored = stored[: take_batch(stored, at=at)]
        message_id = stored[0].id if len(stored) == 1 else self._new_id(now_ms)
        body = event_body(stored[0]) if len(stored) == 1 else batch_body(stored, at=at)
        put_message(connection, endpoint_id, stored, message_id=message_id, body=body, now_ms=now_ms)
        of_message = and_(_message.endpoint_id == endpoint_id, _message.id == message_id)
        return connection.execute(select(message_table).where(of_message)).one()

    async def end_attempt(
        self, attempt: Attempt, response: Response, *, next_ms: int | None, now_ms: int
    ) -> None:
        work = partial(_end_attempt, attempt=attempt, response=response, next_ms=next_ms, now_ms=now_ms)
        await write_retried(self._database, work, flush=False)

    async def end_challenge(
        self, challenge: DueChallenge, *, is_echoed: bool, next_ms: int | None, now_ms: int
    ) -> None:
        def work(connection: Connection) -> None:
            at = (_endpoint.id == challenge.endpoint_id, text(UNCONFIRMED))
            if is_echoed:
                values: dict[str, Any] = {
                    "state": EndpointState.ACTIVE.value,
                    "active_from_ms": self._take_activation(connection, challenge.endpoint_id, now_ms),
                }
            elif next_ms is not None:
                values = {"due_ms": next_ms}
            else:
                values = {"state": EndpointState.DISABLED.value, "reason": Reason.NOT_CONFIRMED.value}
            connection.execute(update(endpoint_table).where(*at).values(tries=challenge.tries + 1, **values))

        await write_retried(self._database, work)

    async def resume_stopped(self, *, now_ms: int) -> None:
        stopped = select(endpoint_table).where(_endpoint.state == EndpointState.STOPPED.value)

        def work(connection: Connection) -> None:
            locked = stopped.order_by(_endpoint.id).with_for_update()
            for endpoint in connection.execute(locked).all():
                if _count_pending(connection, endpoint.id) <= self._limits.webhook_pending_max // 2:
                    self._resume(connection, endpoint, now_ms=now_ms)

        if not self._events.has_tables:
            return
        if await self._database.read(lambda connection: connection.execute(stopped.limit(1)).first()):
            await write_retried(self._database, work)

    def _resume(self, connection: Connection, endpoint: Any, *, now_ms: int) -> None:
        active_from_ms = self._take_activation(connection, endpoint.id, now_ms)
        gap = gap_data(
            from_at=self._format_time(endpoint.gap_from_ms), to_at=self._format_time(active_from_ms)
        )
        connection.execute(
            insert(delivery_table).values(
                endpoint_id=endpoint.id,
                event_id=self._new_id(now_ms),
                type=GAP,
                state=DeliveryState.PENDING.value,
                at_ms=now_ms,
                data=encode_json({"endpointId": endpoint.id, **gap}),
            )
        )
        connection.execute(
            update(endpoint_table)
            .where(_endpoint.id == endpoint.id)
            .values(
                state=EndpointState.ACTIVE.value,
                reason=None,
                active_from_ms=active_from_ms,
                gap_to_ms=active_from_ms,
            )
        )

    def _take_activation(self, connection: Connection, endpoint_id: str, begun_ms: int) -> int:
        """Locks an endpoint, raises the generation, and returns the time from which the endpoint gets events. The time is read after the last wait for a lock,
        so every gateway has read the new set by then."""
        connection.execute(select(_endpoint.id).where(_endpoint.id == endpoint_id).with_for_update())
        raise_generation(connection)
        return max(begun_ms, self._now_ms()) + ACTIVATION_MS

    async def prune(self, *, now_ms: int) -> None:
        if self._events.has_tables:
            await prune_settled(self._database, now_ms=now_ms)

    async def note_down(self, *, is_of_origin: Callable[[str], bool], window_ms: int) -> None:
        """Writes the event `listing.down` for the active listings of an origin whose provider gets it. Each listing has one event in a window of time,
        regardless of how many gateways write it."""
        providers = self._events.wallets_watching(EventType.LISTING_DOWN)
        if not providers:
            return
        now_ms = self._now_ms()
        started_ms = now_ms - now_ms % window_ms
        listing = listing_table.c
        query = select(listing.id, listing.provider, listing.endpoint).where(
            listing.retired_ms.is_(None), listing.provider.in_(sorted(providers))
        )

        def work(connection: Connection) -> None:
            events = [
                NewEvent(
                    id=format_id("evt", now_ms=started_ms, entropy=_hash_subject(row.id)),
                    wallet=Address(row.provider),
                    type=EventType.LISTING_DOWN,
                    subject=row.id,
                    state="down",
                    units=None,
                    at_ms=now_ms,
                )
                for row in connection.execute(query)
                if is_of_origin(row.endpoint)
            ]
            if events:
                row = insert_for(connection, event_table).on_conflict_do_nothing()
                connection.execute(row, [event_row(event) for event in events])

        await write_retried(self._database, work)

    def _new_id(self, now_ms: int) -> str:
        return format_id("evt", now_ms=now_ms, entropy=self._entropy(_ID_BYTES))

    def _open_secret(self, endpoint_id: str, sealed: bytes | None) -> bytes | None:
        return None if sealed is None else self._sealer.open(bytes(sealed), label=secret_label(endpoint_id))


def parse_stored(row: Any, format_time: Callable[[int], str]) -> StoredEvent:
    return StoredEvent(id=row.event_id, type=row.type, at=format_time(row.at_ms), data=row.data)


def put_message(
    connection: Connection,
    endpoint_id: str,
    events: Sequence[StoredEvent],
    *,
    message_id: str,
    body: str,
    now_ms: int,
) -> None:
    """Stores a message of these events, due now. A message of this id begins again: its body is the same, made of the same data."""
    fresh = {
        "state": DeliveryState.PENDING.value,
        "body": body,
        "attempts": 0,
        "first_ms": now_ms,
        "due_ms": now_ms,
    }
    row = insert_for(connection, message_table).values(endpoint_id=endpoint_id, id=message_id, **fresh)
    connection.execute(row.on_conflict_do_update(index_elements=("endpoint_id", "id"), set_=fresh))
    connection.execute(
        update(delivery_table)
        .where(_delivery.endpoint_id == endpoint_id, _delivery.event_id.in_([one.id for one in events]))
        .values(message_id=message_id, state=DeliveryState.PENDING.value, settled_ms=None)
    )


def raise_generation(connection: Connection) -> None:
    """Tells every gateway to read the set of active endpoints again."""
    connection.execute(update(generation_table).values(number=generation_table.c.number + 1))


class _EventData:
    """The data of events by type, from the rows of their subjects."""

    def __init__(
        self,
        connection: Connection,
        find_asset: Callable[[ChainId, str], Asset | None],
        format_time: Callable[[int], str],
    ) -> None:
        self._connection = connection
        self._find_asset = find_asset
        self._format_time = format_time
        self._cache: dict[tuple[str, str], Any] = {}

    def of(self, event: Any) -> Mapping[str, Any]:
        kind = EventType(event.type)
        match kind:
            case EventType.CALL_CHARGED | EventType.CALL_HELD | EventType.CALL_RESOLVED:
                row = self._find(
                    "call", event.subject, select_records().where(call_table.c.id == event.subject)
                )
                call = parse_call(row, unknown_hold_ms=0)
                return call_data(call, state=event.state, created_at=self._format_time(call.created_ms))
            case EventType.PAYMENT_CREDITED | EventType.PAYMENT_REORGED:
                by_id = select(payment_table).where(payment_table.c.id == int(event.subject))
                payment = parse_payment(self._find("payment", event.subject, by_id))
                asset = self._find_asset(payment.chain_id, payment.asset)
                state = "credited" if kind is EventType.PAYMENT_CREDITED else "reorged"
                return payment_data(payment, asset, state=state, units=event.units)
            case EventType.LISTING_DOWN | EventType.LISTING_OWNERSHIP_LOST:
                by_id = select(listing_table.c.name).where(listing_table.c.id == event.subject)
                row = self._find("listing", event.subject, by_id)
                return listing_data(event.subject, row.name, Address(event.wallet), state=event.state)

    def _find(self, table: str, subject: str, query: Any) -> Any:
        """The row of a subject. Subjects are never deleted."""
        key = (table, subject)
        if key not in self._cache:
            self._cache[key] = self._connection.execute(query).one()
        return self._cache[key]


_HAS_WORK = Prepared(
    select(generation_table.c.id).where(
        or_(
            exists(select(event_table.c.id)),
            exists(select(_endpoint.id).where(text(UNCONFIRMED), _endpoint.due_ms <= bindparam("now_ms"))),
            exists(select(_message.id).where(text(PENDING), _message.due_ms <= bindparam("now_ms"))),
            exists(select(_delivery.event_id).where(text(WAITING))),
        )
    )
)
"""One row when a round has something to do. Prepared: most rounds have nothing."""


def _count_pending(connection: Connection, endpoint_id: str) -> int:
    query = select(func.count()).where(text(PENDING), _delivery.endpoint_id == endpoint_id)
    return connection.scalar(query) or 0


def _find_due(connection: Connection, *, now_ms: int, limit: int) -> list[DueEndpoint]:
    due = select(_message.endpoint_id, func.min(_message.due_ms).label("since_ms")).where(
        text(PENDING), _message.due_ms <= now_ms
    )
    waiting = select(_delivery.endpoint_id, func.min(_delivery.at_ms).label("since_ms")).where(text(WAITING))
    found = (
        due.group_by(_message.endpoint_id)
        .union_all(waiting.group_by(_delivery.endpoint_id))
        .subquery("found")
    )
    open_messages = (
        select(func.count())
        .where(text(PENDING), _message.endpoint_id == found.c.endpoint_id)
        .correlate(found)
        .scalar_subquery()
    )
    is_due = exists().where(
        text(PENDING), _message.endpoint_id == found.c.endpoint_id, _message.due_ms <= now_ms
    )
    query = (
        select(found.c.endpoint_id, _endpoint.origin)
        .join(endpoint_table, _endpoint.id == found.c.endpoint_id)
        .where(_endpoint.state.in_(_SENDING), or_(is_due, open_messages < OPEN_MESSAGES_MAX))
        .order_by(found.c.since_ms)
    )
    due_endpoints: dict[str, DueEndpoint] = {}
    for endpoint_id, origin in connection.execute(query):
        due_endpoints.setdefault(origin, DueEndpoint(endpoint_id=endpoint_id, origin=origin))
        if len(due_endpoints) == limit:
            break
    return list(due_endpoints.values())


def _end_attempt(
    connection: Connection, *, attempt: Attempt, response: Response, next_ms: int | None, now_ms: int
) -> None:
    """Writes the end of an attempt that no other gateway has begun again since. Locks the endpoint first (`webhook_tables`)."""
    connection.execute(select(_endpoint.id).where(_endpoint.id == attempt.endpoint_id).with_for_update())
    of_endpoint = _message.endpoint_id == attempt.endpoint_id
    at = and_(
        of_endpoint, _message.id == attempt.message_id, _message.attempts == attempt.attempts, text(PENDING)
    )
    seen = {"last_ms": now_ms, "last_status": response.status, "last_error": response.error}
    if next_ms is not None and not response.is_success:
        connection.execute(update(message_table).where(at).values(due_ms=next_ms, **seen))
        return
    state = DeliveryState.DELIVERED if response.is_success else DeliveryState.DEAD
    ended = update(message_table).where(at).values(state=state.value, body="", **seen)
    if connection.execute(ended).rowcount == 0:
        return
    which: ColumnElement[bool] = _delivery.message_id == attempt.message_id
    if response.is_gone:
        disabled = {"state": EndpointState.DISABLED.value, "reason": Reason.GONE.value}
        connection.execute(
            update(endpoint_table).where(_endpoint.id == attempt.endpoint_id).values(**disabled)
        )
        connection.execute(
            update(message_table)
            .where(of_endpoint, text(PENDING))
            .values(state=state.value, body="", last_ms=func.coalesce(_message.last_ms, now_ms))
        )
        which = text(PENDING)  # type: ignore[assignment]  # a text is a condition too
    connection.execute(
        update(delivery_table)
        .where(_delivery.endpoint_id == attempt.endpoint_id, which)
        .values(state=state.value, settled_ms=now_ms)
    )
    if response.is_gone:
        raise_generation(connection)


def _hash_subject(subject: str) -> bytes:
    return sha256(subject.encode()).digest()[:_ID_BYTES]
