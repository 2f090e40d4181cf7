"""The outbox of webhooks in SQL: the port `Outbox` on both dialects. Gives new events to endpoints, freezes messages, records attempts.

Everything is sent after a durable commit that has read or written it: `spread_events` commits durably and reads the new events, so the commits of
these events are durable then too (a close is flushed by the next durable commit). `begin_attempt` stores the id and the members of a message durably
before its first attempt; later attempts send the same bytes.

Two gateways may deliver at the same time for a moment. Each statement therefore takes rows that no other transaction holds (`SKIP LOCKED`), and an
attempt moves the time of the next one ahead before it begins (`ATTEMPT_MS`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any

import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.exc import DBAPIError

from tollway.ids import Address, ChainId, TxHash, format_id
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.money import Asset
from tollway.observability.background import describe_failure
from tollway.storage.catalog.catalog_tables import listing_table
from tollway.storage.engine.advisory_locks import take_advisory_locks
from tollway.storage.engine.database import Database, write_retried
from tollway.storage.engine.encryption import Sealer
from tollway.storage.engine.statements import Prepared
from tollway.storage.ledger.call_records import parse_call, select_records
from tollway.storage.ledger.ledger_tables import (
    call_table,
    parse_payment,
    payment_table,
)
from tollway.storage.ledger.refund_rows import select_refunded_call
from tollway.storage.webhooks.webhook_events import ACTIVATION_MS, EventLog, write_events_once
from tollway.storage.webhooks.webhook_pruning import prune_settled
from tollway.storage.webhooks.webhook_tables import (
    CONFIRMED,
    NEW,
    OPEN,
    PENDING,
    UNCONFIRMED,
    WAITING,
    delivery_table,
    endpoint_table,
    event_table,
    generation_table,
    message_table,
)
from tollway.storage.webhooks.webhook_turns import find_challenged, find_sending
from tollway.webhooks.endpoints import (
    NONE_TAKEN,
    Attempt,
    DeliveryState,
    DueChallenge,
    DueEndpoint,
    EndpointState,
    Reason,
    Taken,
)
from tollway.webhooks.events import (
    GAP,
    EventType,
    NewEvent,
    budget_data,
    call_data,
    gap_data,
    listing_data,
    payment_data,
    refund_data,
)
from tollway.webhooks.messages import (
    Echo,
    Recipient,
    StoredEvent,
    batch_body,
    encode_json,
    event_body,
    take_batch,
)
from tollway.webhooks.schedule import Response

SPREAD_MAX = 50
"""New events that one transaction gives to their endpoints: 500 deliveries at most, so that no other writer waits for long."""
URL_LOCK_SPACE = 0x7775
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
_endpoint, _event = endpoint_table.c, event_table.c
_delivery, _message = delivery_table.c, message_table.c


NEW_EVENTS = (
    select(event_table)
    .where(text(NEW))
    .order_by(_event.number)
    .limit(SPREAD_MAX)
    .with_for_update(skip_locked=True)
)


def secret_label(endpoint_id: str) -> bytes:
    """The associated data of its encryption."""
    return b"webhook secret " + endpoint_id.encode()


class WebhookOutbox:
    """Implements `Outbox`. `find_asset`: the asset with a ledger key on a chain. `format_time`: writes milliseconds as RFC 3339."""

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
        """Locks the endpoints of the events, then gives the events their data and their deliveries. An endpoint with too many pending deliveries stops, and
        its gap begins."""
        events = list(connection.execute(NEW_EVENTS))
        if not events:
            return 0
        wanted = sorted({event.wallet for event in events})
        locked = select(endpoint_table).where(_endpoint.wallet.in_(wanted)).order_by(_endpoint.id)
        deliveries: list[dict[str, Any]] = []
        has_stopped = False
        for endpoint in connection.execute(locked.with_for_update()).all():
            kept, lost = self._divide(connection, endpoint, events)
            deliveries += [_new_delivery(endpoint.number, one.number) for one in kept]
            if lost:
                _stop(connection, endpoint, earliest_ms=min(one.at_ms for one in lost))
                has_stopped |= endpoint.state == EndpointState.ACTIVE.value
        self._write_data(connection, events, {one["event_no"] for one in deliveries})
        if deliveries:
            connection.execute(insert(delivery_table), deliveries)
            _mark_due(connection, {one["endpoint_no"] for one in deliveries}, now_ms=self._now_ms())
        if has_stopped:
            raise_generation(connection)
        return len(events)

    def _divide(
        self, connection: Connection, endpoint: Any, events: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """The second group: events for which the endpoint has no room."""
        if endpoint.active_from_ms is None or endpoint.state == EndpointState.DISABLED.value:
            return (), ()
        types = endpoint.types.split(" ")
        named = [one for one in events if one.wallet == endpoint.wallet and one.type in types]
        events = [one for one in named if one.at_ms >= endpoint.active_from_ms]
        room = 0
        if events and endpoint.state == EndpointState.ACTIVE.value:
            room = max(0, self._limits.webhook_pending_max - _count_pending(connection, endpoint.number))
        return events[:room], events[room:]

    def _write_data(self, connection: Connection, events: Sequence[Any], delivered: set[int]) -> None:
        """Gives the events with a delivery their data, and deletes the others."""
        data = _EventData(connection, self._find_asset, self._format_time)
        rows = [self._data_row(one, data) for one in events if one.number in delivered]
        if rows:
            by_number = _event.number == bindparam("of")
            written: dict[str, Any] = {"type": bindparam("kind"), "data": bindparam("content")}
            connection.execute(update(event_table).where(by_number).values(written), rows)
        if unwanted := [one.number for one in events if one.number not in delivered]:
            connection.execute(delete(event_table).where(_event.number.in_(unwanted)))

    def _data_row(self, event: Any, data: "_EventData") -> dict[str, Any]:
        """An event whose subject cannot be read has a gap in its place: it must not hold up the events after it."""
        kind = event.type
        try:
            content = data.of(event)
        except DBAPIError:
            raise
        except Exception as exc:  # noqa: BLE001 - a defect of one event: the other ones go on
            _log.error("webhook_event_unreadable", event_id=event.id, **describe_failure(exc))
            at = self._format_time(event.at_ms)
            kind, content = GAP, gap_data(from_at=at, to_at=at)
        return {"of": event.number, "kind": kind, "content": encode_json(content)}

    async def find_challenges(
        self, *, now_ms: int, limit: int, taken: Taken = NONE_TAKEN
    ) -> Sequence[DueChallenge]:
        find = partial(find_challenged, limits=self._limits, now_ms=now_ms, limit=limit, taken=taken)
        return [
            DueChallenge(
                **_describe_due(row),
                url=row.url,
                challenge=row.challenge,
                tries=row.tries,
                secret=self._open_secret(row.id, row.secret_sealed),
            )
            for row in await self._database.read(find)
        ]

    async def find_due(self, *, now_ms: int, limit: int, taken: Taken = NONE_TAKEN) -> Sequence[DueEndpoint]:
        find = partial(find_sending, limits=self._limits, now_ms=now_ms, limit=limit, taken=taken)
        return [DueEndpoint(**_describe_due(row)) for row in await self._database.read(find)]

    async def has_work(self, *, now_ms: int) -> bool:
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
        pending = (text(PENDING), _message.endpoint_no == endpoint.number)
        due = select(message_table).where(*pending, _message.due_ms <= now_ms).order_by(_message.due_ms)
        row = connection.execute(due.limit(1)).one_or_none()
        if row is None:
            count = connection.scalar(select(func.count()).where(*pending)) or 0
            row = None if count >= OPEN_MESSAGES_MAX else self._make_message(connection, endpoint, now_ms)
        if row is None:
            schedule_endpoint(connection, endpoint.number, now_ms=now_ms)
            return None
        attempts = row.attempts + 1
        begun = {"attempts": attempts, "due_ms": now_ms + ATTEMPT_MS, "last_ms": now_ms}
        connection.execute(update(message_table).where(_message.number == row.number).values(**begun))
        schedule_endpoint(connection, endpoint.number, now_ms=now_ms)
        return Attempt(
            endpoint_id=endpoint_id,
            url=endpoint.url,
            message_id=row.id,
            body=self._make_body(connection, endpoint, row),
            attempts=attempts,
            first_ms=row.first_ms,
            secret=self._open_secret(endpoint_id, endpoint.secret_sealed),
        )

    def _make_message(self, connection: Connection, endpoint: Any, now_ms: int) -> Any | None:
        """Freezes the oldest waiting events in a message and returns its row."""
        waiting = select(_delivery.event_no).where(text(WAITING), _delivery.endpoint_no == endpoint.number)
        oldest = waiting.order_by(_delivery.event_no).limit(WAITING_READ_MAX)
        rows = list(connection.execute(_select_events(oldest)))
        if not rows:
            return None
        stored = [self._parse_stored(row) for row in rows]
        count = take_batch(stored, to=_recipient_of(endpoint), at=self._format_time(now_ms))
        message_id = stored[0].id if count == 1 else self._new_id(now_ms)
        numbers = [row.number for row in rows[:count]]
        number = put_message(connection, endpoint.number, numbers, message_id=message_id, now_ms=now_ms)
        return connection.execute(select(message_table).where(_message.number == number)).one()

    def _make_body(self, connection: Connection, endpoint: Any, message: Any) -> str:
        """The body of a pending message: the same in each attempt, because nothing that it is made of changes."""
        members = select(_delivery.event_no).where(
            text(PENDING),
            _delivery.endpoint_no == endpoint.number,
            _delivery.message_no == message.number,
        )
        stored = [self._parse_stored(row) for row in connection.execute(_select_events(members))]
        to = _recipient_of(endpoint)
        if len(stored) == 1:
            return event_body(stored[0], to=to)
        return batch_body(stored, to=to, at=self._format_time(message.first_ms))

    def _parse_stored(self, row: Any) -> StoredEvent:
        return StoredEvent(id=row.id, type=row.type, at=self._format_time(row.at_ms), data=row.data)

    async def end_attempt(
        self, attempt: Attempt, response: Response, *, next_ms: int | None, now_ms: int
    ) -> None:
        work = partial(_end_attempt, attempt=attempt, response=response, next_ms=next_ms, now_ms=now_ms)
        await write_retried(self._database, work, flush=False)

    async def end_challenge(
        self,
        challenge: DueChallenge,
        response: Response,
        *,
        echo: Echo,
        sent_ms: int,
        next_ms: int | None,
        now_ms: int,
    ) -> None:
        def work(connection: Connection) -> None:
            at = (_endpoint.id == challenge.endpoint_id, text(UNCONFIRMED))
            error = response.error or ("wallet_missing" if echo is Echo.CHALLENGE else None)
            if error is None and response.is_success:
                error = "not_echoed"
            values: dict[str, Any] = {"due_ms": next_ms, "challenge_error": error}
            if self._counts(connection, challenge, echo):
                values = {
                    "state": EndpointState.ACTIVE.value,
                    "active_from_ms": self._take_activation(connection, challenge.endpoint_id, now_ms),
                    "due_ms": None,
                    "challenge_error": None,
                }
            elif next_ms is None:
                values |= {"state": EndpointState.DISABLED.value, "reason": Reason.NOT_CONFIRMED.value}
            ended = update(endpoint_table).where(*at)
            values |= {"challenge_ms": sent_ms, "challenge_status": response.status}
            connection.execute(ended.values(tries=challenge.tries + 1, is_slow=response.is_silent, **values))

        await write_retried(self._database, work)

    def _counts(self, connection: Connection, challenge: DueChallenge, echo: Echo) -> bool:
        """Whether the echo confirms. The lock of the URL: of two wallets that confirm it at the same time, the later one must be named."""
        if echo is not Echo.CHALLENGE:
            return echo is Echo.WALLET
        take_advisory_locks(connection, [challenge.url.encode()], space=URL_LOCK_SPACE)
        return not is_active_for_another(connection, challenge.url, challenge.wallet)

    async def resume_stopped(self, *, now_ms: int) -> None:
        stopped = select(endpoint_table).where(_endpoint.state == EndpointState.STOPPED.value)

        def work(connection: Connection) -> None:
            locked = stopped.order_by(_endpoint.id).with_for_update()
            for endpoint in connection.execute(locked).all():
                if _count_pending(connection, endpoint.number) <= self._limits.webhook_pending_max // 2:
                    self._resume(connection, endpoint, now_ms=now_ms)

        if await self._database.read(lambda connection: connection.execute(stopped.limit(1)).first()):
            await write_retried(self._database, work)

    def _resume(self, connection: Connection, endpoint: Any, *, now_ms: int) -> None:
        active_from_ms = self._take_activation(connection, endpoint.id, now_ms)
        gap = gap_data(
            from_at=self._format_time(endpoint.gap_from_ms), to_at=self._format_time(active_from_ms)
        )
        event = {
            "id": self._new_id(now_ms),
            "wallet": endpoint.wallet,
            "type": GAP,
            "subject": endpoint.id,
            "at_ms": now_ms,
            "data": encode_json(gap),
        }
        event_no = connection.execute(insert(event_table).values(event).returning(_event.number)).scalar_one()
        connection.execute(insert(delivery_table).values(_new_delivery(endpoint.number, event_no)))
        active = {
            "state": EndpointState.ACTIVE.value,
            "reason": None,
            "active_from_ms": active_from_ms,
            "gap_to_ms": active_from_ms,
        }
        schedule_endpoint(connection, endpoint.number, now_ms=now_ms, **active)

    def _take_activation(self, connection: Connection, endpoint_id: str, begun_ms: int) -> int:
        """Locks an endpoint, raises the generation, and returns the time from which the endpoint gets events. The time is read after the last wait for a lock,
        so every gateway has read the new set by then."""
        connection.execute(select(_endpoint.id).where(_endpoint.id == endpoint_id).with_for_update())
        raise_generation(connection)
        return max(begun_ms, self._now_ms()) + ACTIVATION_MS

    async def prune(self, *, now_ms: int) -> None:
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
            write_events_once(connection, events)

        await write_retried(self._database, work)

    def _new_id(self, now_ms: int) -> str:
        return format_id("evt", now_ms=now_ms, entropy=self._entropy(_ID_BYTES))

    def _open_secret(self, endpoint_id: str, sealed: bytes | None) -> bytes | None:
        return None if sealed is None else self._sealer.open(bytes(sealed), label=secret_label(endpoint_id))


def put_message(
    connection: Connection, endpoint_no: int, event_nos: Sequence[int], *, message_id: str, now_ms: int
) -> int:
    """Stores a message of these events, due now, and returns its number."""
    row = {
        "endpoint_no": endpoint_no,
        "id": message_id,
        "state": DeliveryState.PENDING.value,
        "attempts": 0,
        "first_ms": now_ms,
        "due_ms": now_ms,
    }
    number = connection.execute(insert(message_table).values(row).returning(_message.number)).scalar_one()
    connection.execute(
        update(delivery_table)
        .where(_delivery.endpoint_no == endpoint_no, _delivery.event_no.in_(event_nos))
        .values(message_no=number, state=DeliveryState.PENDING.value, settled_ms=None)
    )
    return int(number)


def _mark_due(connection: Connection, endpoint_nos: Iterable[int], *, now_ms: int) -> None:
    """Records that endpoints have new events: they are due now, except those with as many open messages as an endpoint may have."""
    opened = select(func.count()).where(text(OPEN), _message.endpoint_no == _endpoint.number)
    marked = update(endpoint_table).where(
        _endpoint.number.in_(sorted(endpoint_nos)),
        or_(_endpoint.due_ms.is_(None), _endpoint.due_ms > now_ms),
        opened.correlate(endpoint_table).scalar_subquery() < OPEN_MESSAGES_MAX,
    )
    connection.execute(marked.values(due_ms=now_ms))


def schedule_endpoint(connection: Connection, endpoint_no: int, *, now_ms: int, **changed: Any) -> None:
    """Writes the time from which an endpoint has something to send: now, while events wait for a message that it may begin; else that of its next
    attempt. `changed`: further columns."""
    opened = select(func.count(), func.min(_message.due_ms)).where(
        text(PENDING), _message.endpoint_no == endpoint_no
    )
    count, due_ms = connection.execute(opened).one()
    if count < OPEN_MESSAGES_MAX:
        waiting = select(_delivery.event_no).where(text(WAITING), _delivery.endpoint_no == endpoint_no)
        if connection.execute(waiting.limit(1)).first() is not None:
            due_ms = now_ms if due_ms is None else min(due_ms, now_ms)
    scheduled = update(endpoint_table).where(_endpoint.number == endpoint_no)
    connection.execute(scheduled.values(due_ms=due_ms, **changed))


def is_active_for_another(connection: Connection, url: str, wallet: Address) -> bool:
    others = select(_endpoint.number).where(
        text(CONFIRMED), _endpoint.url == url, _endpoint.wallet != bytes(wallet)
    )
    return connection.execute(others.limit(1)).first() is not None


def raise_generation(connection: Connection) -> None:
    """Every gateway then reads the set of active endpoints again."""
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
            case EventType.CALL_REFUNDED | EventType.CALL_REFUND_REVERSED:
                call_id, of_refund = select_refunded_call(event.subject)
                by_id = select_records().where(call_table.c.id == call_id)
                call = parse_call(self._find("call", call_id, by_id), unknown_hold_ms=0)
                refund = self._find("refund", event.subject, of_refund)
                return refund_data(
                    call,
                    units=event.units,
                    tx_hash=TxHash(refund.tx_hash),
                    is_credit=bool(refund.is_credit),
                    created_at=self._format_time(call.created_ms),
                )
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
            case EventType.BUDGET_REACHED:
                return budget_data(event.subject, state=event.state, format_time=self._format_time)

    def _find(self, table: str, subject: str, query: Any) -> Any:
        """Subjects are never deleted."""
        key = (table, subject)
        if key not in self._cache:
            self._cache[key] = self._connection.execute(query).one()
        return self._cache[key]


_HAS_WORK = Prepared(
    select(generation_table.c.id).where(
        or_(
            exists(select(_event.number).where(text(NEW))),
            exists(select(_endpoint.number).where(_endpoint.due_ms <= bindparam("now_ms"))),
        )
    )
)
"""One row when a round has something to do. Prepared: most rounds have nothing."""


def _describe_due(row: Any) -> dict[str, Any]:
    return {
        "endpoint_id": row.id,
        "wallet": Address(row.wallet),
        "network": row.network,
        "origin": row.origin,
        "is_slow": row.is_slow,
    }


def _select_events(numbers: Select[Any]) -> Select[Any]:
    return select(event_table).where(_event.number.in_(numbers)).order_by(_event.number)


def _recipient_of(endpoint: Any) -> Recipient:
    return Recipient(endpoint_id=endpoint.id, wallet=Address(endpoint.wallet))


def _new_delivery(endpoint_no: int, event_no: int) -> dict[str, Any]:
    return {"endpoint_no": endpoint_no, "event_no": event_no, "state": DeliveryState.PENDING.value}


def _count_pending(connection: Connection, endpoint_no: int) -> int:
    query = select(func.count()).where(text(PENDING), _delivery.endpoint_no == endpoint_no)
    return connection.scalar(query) or 0


def _stop(connection: Connection, endpoint: Any, *, earliest_ms: int) -> None:
    """Stops an endpoint. The gap begins with the oldest event that is not kept."""
    is_open = endpoint.gap_from_ms is not None and endpoint.gap_to_ms is None
    stopped = {
        "state": EndpointState.STOPPED.value,
        "reason": Reason.TOO_MANY_PENDING.value,
        "gap_from_ms": min(earliest_ms, endpoint.gap_from_ms) if is_open else earliest_ms,
        "gap_to_ms": None,
    }
    connection.execute(update(endpoint_table).where(_endpoint.number == endpoint.number).values(**stopped))


def _end_attempt(
    connection: Connection, *, attempt: Attempt, response: Response, next_ms: int | None, now_ms: int
) -> None:
    """Writes the end of an attempt that no other gateway has begun again since. Locks the endpoint first (`webhook_tables`); of a removed one there is
    nothing to write."""
    locked = select(_endpoint.number).where(_endpoint.id == attempt.endpoint_id).with_for_update()
    endpoint_no = connection.scalar(locked)
    of_endpoint = _message.endpoint_no == endpoint_no
    number = connection.scalar(
        select(_message.number).where(
            text(PENDING),
            of_endpoint,
            _message.id == attempt.message_id,
            _message.attempts == attempt.attempts,
        )
    )
    if endpoint_no is None or number is None:
        return
    seen = {"last_ms": now_ms, "last_status": response.status, "last_error": response.error}
    at = _message.number == number
    changed: dict[str, Any] = {"is_slow": response.is_silent}
    if next_ms is not None and not response.is_success:
        connection.execute(update(message_table).where(at).values(due_ms=next_ms, **seen))
    else:
        state = DeliveryState.DELIVERED if response.is_success else DeliveryState.DEAD
        connection.execute(update(message_table).where(at).values(state=state.value, **seen))
        which: ColumnElement[bool] = _delivery.message_no == number
        if response.is_gone:
            changed |= {"state": EndpointState.DISABLED.value, "reason": Reason.GONE.value}
            last_ms = func.coalesce(_message.last_ms, now_ms)
            gone = update(message_table).where(text(PENDING), of_endpoint)
            connection.execute(gone.values(state=state.value, last_ms=last_ms))
            which = true()
        connection.execute(
            update(delivery_table)
            .where(text(PENDING), _delivery.endpoint_no == endpoint_no, which)
            .values(state=state.value, settled_ms=now_ms)
        )
    schedule_endpoint(connection, endpoint_no, now_ms=now_ms, **changed)
    if response.is_gone:
        raise_generation(connection)


def _hash_subject(subject: str) -> bytes:
    return sha256(subject.encode()).digest()[:_ID_BYTES]
