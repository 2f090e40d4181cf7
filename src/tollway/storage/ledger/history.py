"""The read side of the ledger in SQL: calls and payments of a wallet, calls of a payment, totals. Writes only the totals.

Every filter has an index in the order of the page, so that no page and no total reads other rows; without one PostgreSQL would walk
the primary key and filter. Pages are ordered by (created_ms, id), the indexes by `created_ms`: both databases sort the few calls of one
millisecond by id. Failed calls and calls of unknown outcome have their own indexes; running calls are few; all other calls
succeeded.

Totals: on PostgreSQL a trigger counts each inserted call in one of a few slots of its wallets. On SQLite a trigger would cost more than
the insert, so calls are counted later in batches, in the order of their rows: the totals contain the calls up to a mark, and a
query counts the few after it. Rows of calls are never deleted, so their numbers only grow.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    Subquery,
    Tuple,
    and_,
    func,
    select,
    text,
    tuple_,
    union,
    union_all,
)

from tollway.ids import Address, CallId, TxHash
from tollway.ledger.channels import ChannelMoney
from tollway.ledger.history import (
    HistoryPage,
    HistoryQuery,
    HistoryRole,
    HistoryStatus,
    JoinedCredit,
    LastPayment,
    ListedPayment,
    PaymentPlace,
    PaymentQuery,
)
from tollway.ledger.records import CallRecord, CallState, Payment
from tollway.limits import Limits
from tollway.storage.engine.database import Database
from tollway.storage.engine.statements import hint_index
from tollway.storage.ledger.call_records import parse_call, select_records
from tollway.storage.ledger.call_terms import listing_key
from tollway.storage.ledger.channel_money import sum_channels
from tollway.storage.ledger.claim_states import find_claim_states
from tollway.storage.ledger.ledger_tables import (
    BY_TRANSFER,
    FAILED,
    REPEATABLE,
    UNKNOWN,
    UNMEASURED,
    call_table,
    call_total_table,
    parse_payment,
    payment_table,
    topup_table,
)
from tollway.storage.ledger.payment_list import find_last_payment, find_newer_place, read_payments

CALLS_PER_BATCH = 2_000
"""How many calls one transaction counts: about two milliseconds without other writes."""

_MARK = {"wallet": b"", "role": "mark", "slot": 0}

_ADD = """
INSERT INTO call_total (wallet, role, slot, calls)
SELECT {role}, '{role}', 0, count(*) FROM call NOT INDEXED
WHERE rowid > :mark AND rowid <= :upto AND {role} IS NOT NULL GROUP BY {role}
ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = calls + excluded.calls
"""
_SET_MARK = """
INSERT INTO call_total (wallet, role, slot, calls) VALUES (:wallet, :role, :slot, :upto)
ON CONFLICT (wallet, role, slot) DO UPDATE SET calls = excluded.calls
"""
_COUNT_ABOVE = "SELECT count(*) FROM call NOT INDEXED WHERE rowid > :mark AND {role} = :wallet"


def total_of(connection: Connection, wallet: Address, role: HistoryRole) -> int:
    kept = call_total_table.c
    whose = (kept.wallet == bytes(wallet), kept.role == role)
    total = int(connection.scalar(select(func.coalesce(func.sum(kept.calls), 0)).where(*whose)) or 0)
    if connection.dialect.name == "sqlite":
        above = text(_COUNT_ABOVE.format(role=role))
        values = {"mark": _read_mark(connection), "wallet": bytes(wallet)}
        total += connection.scalar(above, values) or 0
    return total


def count_batch(connection: Connection) -> bool:
    """Counts the next calls after the mark. SQLite only. Returns True while more calls are left."""
    mark = _read_mark(connection)
    last: int = connection.scalar(text("SELECT max(rowid) FROM call")) or 0
    upto = min(last, mark + CALLS_PER_BATCH)
    if upto > mark:
        for role in ("payer", "provider"):
            connection.execute(text(_ADD.format(role=role)), {"mark": mark, "upto": upto})
        connection.execute(text(_SET_MARK), {**_MARK, "upto": upto})
    return upto < last


def _read_mark(connection: Connection) -> int:
    kept = call_total_table.c
    whose = (kept.wallet == _MARK["wallet"], kept.role == _MARK["role"])
    return connection.scalar(select(kept.calls).where(*whose)) or 0


class HistoryStore:
    """Implements `CallHistory`."""

    def __init__(self, database: Database, *, limits: Limits) -> None:
        self._database = database
        self._unknown_hold_ms = limits.unknown_hold_s * 1000

    async def history(self, query: HistoryQuery) -> HistoryPage:
        return await self._database.read(
            partial(read_history, query=query, unknown_hold_ms=self._unknown_hold_ms)
        )

    async def find_call(self, call_id: CallId) -> CallRecord | None:
        work = partial(_find_call, call_id=call_id, unknown_hold_ms=self._unknown_hold_ms)
        return await self._database.read(work)

    async def read_calls(self, query: HistoryQuery) -> tuple[CallRecord, ...]:
        return await self._database.read(
            partial(read_calls, query=query, unknown_hold_ms=self._unknown_hold_ms)
        )

    async def sum_channels(self, receiver: Address) -> tuple[ChannelMoney, ...]:
        return await self._database.read(partial(sum_channels, receiver=receiver))

    async def find_last_call(self, query: HistoryQuery) -> CallRecord | None:
        work = partial(_find_last_call, query=query, unknown_hold_ms=self._unknown_hold_ms)
        return await self._database.read(work, is_long=True)

    async def find_newer_place(self, query: HistoryQuery) -> CallId | None:
        return await self._database.read(partial(_find_newer_place, query=query))

    async def find_newer_payment_place(self, query: PaymentQuery) -> PaymentPlace | None:
        return await self._database.read(partial(find_newer_place, query=query))

    async def read_payments(self, query: PaymentQuery) -> tuple[ListedPayment, ...]:
        return await self._database.read(partial(read_payments, query=query))

    async def find_last_payment(self, query: PaymentQuery) -> LastPayment | None:
        return await self._database.read(partial(find_last_payment, query=query), is_long=True)

    async def payments_in(self, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
        return await self._database.read(partial(read_payments_in, payer=payer, tx_hash=tx_hash))

    async def calls_of(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        """The calls of a payment, in every state, newest first: with it as the payment of their proof, or with units of it."""
        is_shown = call_table.c.payment_id == payment_id
        work = partial(_newest, is_of_proof=is_shown, payment_id=payment_id, limit=limit)
        return await self._database.read(work)

    async def unknown_calls(self, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
        return await self._database.read(partial(_unknown_calls, payment_id=payment_id, limit=limit))

    async def joined_credit(self, call_id: CallId, *, limit: int) -> tuple[JoinedCredit, ...]:
        payments, topups = payment_table.c, topup_table.c
        query = (
            select(payments.tx_hash, topups.units)
            .join(payment_table, payments.id == topups.payment_id)
            .where(topups.call_id == call_id)
            .order_by(payments.id)
            .limit(limit)
        )
        rows = await self._database.read(lambda connection: connection.execute(query).all())
        return tuple(JoinedCredit(tx_hash=TxHash(row.tx_hash), units=row.units) for row in rows)


TOTAL_MAX = 10_000
"""The largest exact total of a query with filters."""
FAILED_STATUS_MIN = 400
"""Upstream statuses from here on count as failed in the history."""
RUNNING_MAX = 100_000
"""More calls than run at the same time. The LIMIT also makes the databases begin with the running calls."""

_UNSUCCESSFUL: tuple[HistoryStatus, ...] = ("failed", "unknown", "pending")


def read_history(connection: Connection, query: HistoryQuery, *, unknown_hold_ms: int) -> HistoryPage:
    calls = read_calls(connection, query, unknown_hold_ms=unknown_hold_ms)
    total, is_beyond = _total(connection, query)
    return HistoryPage(calls=calls, total=total, is_lower_bound=is_beyond)


def read_calls(
    connection: Connection, query: HistoryQuery, *, unknown_hold_ms: int
) -> tuple[CallRecord, ...]:
    rows = _read_page(connection, _calls_before(connection, query), limit=query.limit, offset=query.offset)
    return _parse_calls(connection, rows, unknown_hold_ms=unknown_hold_ms)


def _find_call(connection: Connection, *, call_id: CallId, unknown_hold_ms: int) -> CallRecord | None:
    rows = connection.execute(select_records().where(call_table.c.id == call_id)).all()
    return next(iter(_parse_calls(connection, rows, unknown_hold_ms=unknown_hold_ms)), None)


def _parse_calls(
    connection: Connection, rows: Sequence[Row[Any]], *, unknown_hold_ms: int
) -> tuple[CallRecord, ...]:
    states = find_claim_states(connection, rows)
    return tuple(
        parse_call(row, unknown_hold_ms=unknown_hold_ms, claim_state=states.get(row.id)) for row in rows
    )


def _find_last_call(
    connection: Connection, query: HistoryQuery, *, unknown_hold_ms: int
) -> CallRecord | None:
    """The last call of the page is the first of the two rows at its end; the second one begins the next page."""
    end = query.offset + query.limit - 1
    rows = _read_page(connection, _calls_before(connection, query), limit=2, offset=end)
    return parse_call(rows[0], unknown_hold_ms=unknown_hold_ms) if len(rows) > 1 else None


def _find_newer_place(connection: Connection, query: HistoryQuery) -> CallId | None:
    """Reads the calls upward from `before`, the last call of the newer page: that page has `limit` calls, and the next call is its place."""
    place = _find_place(connection, query)
    if place is None:
        return None
    found = _calls(query)
    created_ms, id_ = found.calls.c.created_ms, found.calls.c.id
    newer = found.select.with_only_columns(id_).where(tuple_(created_ms, id_) >= place)
    return connection.scalar(newer.order_by(created_ms, id_).limit(1).offset(query.limit))


def _calls_before(connection: Connection, query: HistoryQuery) -> "_MatchingCalls":
    found = _calls(query)
    return replace(found, select=found.select.where(*_cursor_filters(connection, query, found.calls)))


def _newest_first(calls: FromClause) -> tuple[ColumnElement[int], ColumnElement[str]]:
    return calls.c.created_ms.desc(), calls.c.id.desc()


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatchingCalls:
    select: Select[Any]
    calls: FromClause


def _read_page(
    connection: Connection, found: _MatchingCalls, *, limit: int, offset: int
) -> Sequence[Row[Any]]:
    """Reads the rows of a page. Calls before the offset are only counted in the index, up to the millisecond in which the page begins."""
    page, created_ms = found.select, found.calls.c.created_ms
    if offset:
        times = page.with_only_columns(created_ms)
        at_ms = connection.scalar(times.order_by(created_ms.desc()).limit(1).offset(offset))
        if at_ms is None:
            return ()
        newer = times.where(created_ms > at_ms).subquery()
        offset -= connection.scalar(select(func.count()).select_from(newer)) or 0
        page = page.where(created_ms <= at_ms)
    # The page is a subquery: a planner that joins the terms first might sort all calls.
    part = page.order_by(*_newest_first(found.calls)).limit(limit).offset(offset).subquery()
    return connection.execute(select_records(part).order_by(*_newest_first(part))).all()


def _calls(query: HistoryQuery) -> _MatchingCalls:
    if query.status == "pending":
        running = _running()
        both = call_table.join(running, running.c.id == call_table.c.id)
        found = select(call_table).select_from(both).where(*_wallet_filters(query, running))
        return _MatchingCalls(select=found.where(*_time_filters(query, call_table)), calls=call_table)
    calls = hint_index(call_table, _index(query))
    found = select(calls).where(*_wallet_filters(query, calls), *_time_filters(query, calls))
    if query.status is not None:
        found = found.where(_has_ended_as(query.status, calls))
    return _MatchingCalls(select=found, calls=calls)


def _index(query: HistoryQuery) -> str:
    if query.status in ("failed", "unknown"):
        kind: str = query.status
    else:
        kind = "time" if query.listing_id is None else "listing"
    return f"ix_call_{query.role}_{kind}"


def _wallet_filters(query: HistoryQuery, calls: FromClause) -> list[ColumnElement[bool]]:
    columns = calls.c
    whose = [(columns.payer if query.role == "payer" else columns.provider) == bytes(query.wallet)]
    if query.listing_id is not None:
        whose.append(columns.listing_key == listing_key(query.listing_id))
    return whose


def _time_filters(query: HistoryQuery, calls: FromClause) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if query.from_ms is not None:
        wanted.append(calls.c.created_ms >= query.from_ms)
    if query.to_ms is not None:
        wanted.append(calls.c.created_ms <= query.to_ms)
    return wanted


def _running() -> Subquery:
    """The running calls of all wallets. Each of the two states has an index of its calls only."""
    columns = call_table.c
    states = [
        select(columns.id, columns.payer, columns.provider, columns.listing_key)
        .where(text(f"state = '{state}'"))
        .limit(RUNNING_MAX)
        .subquery()
        for state in (CallState.FORWARDING.value, CallState.SETTLING.value)
    ]
    return union_all(*(select(each) for each in states)).subquery("running")


def _has_ended_as(
    status: Literal["succeeded", "failed", "unknown"], calls: FromClause
) -> ColumnElement[bool]:
    columns = calls.c
    match status:
        case "succeeded":
            is_ended = columns.state.in_([CallState.CONSUMED.value, CallState.REORGED.value])
            return and_(is_ended, columns.upstream_status < FAILED_STATUS_MIN)
        case "failed":
            # The literal predicate of the index.
            return and_(text(f"({FAILED})"))
        case "unknown":
            return and_(text(f"({UNKNOWN})"))


def _cursor_filters(
    connection: Connection, query: HistoryQuery, calls: FromClause
) -> list[ColumnElement[bool]]:
    """A filter for calls older than the call `before`. An unknown call matches nothing."""
    if query.before is None:
        return []
    place = _find_place(connection, query)
    if place is None:
        return [calls.c.id.is_(None)]
    return [tuple_(calls.c.created_ms, calls.c.id) < place]


def _find_place(connection: Connection, query: HistoryQuery) -> Tuple | None:
    """Returns None for an unknown call."""
    columns = call_table.c
    found = select(columns.created_ms, columns.id).where(columns.id == query.before)
    row = connection.execute(found).first()
    return None if row is None else tuple_(row.created_ms, row.id)


def _total(connection: Connection, query: HistoryQuery) -> tuple[int, bool]:
    filters = (query.listing_id, query.status, query.from_ms, query.to_ms)
    if all(one is None for one in filters):
        total = total_of(connection, query.wallet, query.role)
        return total, False
    total = _count_up_to(connection, query, TOTAL_MAX + 1)
    return min(total, TOTAL_MAX), total > TOTAL_MAX


def _count_up_to(connection: Connection, query: HistoryQuery, at_most: int) -> int:
    """Counts calls up to a maximum. Succeeded calls are all calls without the others, counted in indexes, while the others are few."""
    if query.status != "succeeded":
        return _count(connection, query, at_most)
    others = sum(_count(connection, replace(query, status=other), at_most) for other in _UNSUCCESSFUL)
    if others >= at_most:
        return _count(connection, query, at_most)
    return _count(connection, replace(query, status=None), at_most + others) - others


def _count(connection: Connection, query: HistoryQuery, at_most: int) -> int:
    found = _calls(query)
    some = found.select.with_only_columns(found.calls.c.created_ms).limit(at_most).subquery()
    return connection.scalar(select(func.count()).select_from(some)) or 0


def read_payments_in(connection: Connection, *, payer: Address, tx_hash: TxHash) -> tuple[Payment, ...]:
    # By the transaction: SQLite would read and sort all payments of the payer.
    columns = hint_index(payment_table, BY_TRANSFER).c
    query = (
        select(*columns)
        .where(columns.tx_hash == tx_hash, columns.payer == payer, ~columns.is_escrow, ~columns.is_refund)
        .order_by(columns.id)
    )
    return tuple(map(parse_payment, connection.execute(query)))


def spending_calls(connection: Connection, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
    is_spending = and_(call_table.c.payment_id == payment_id, call_table.c.taken_units > 0)
    return _newest(connection, is_of_proof=is_spending, payment_id=payment_id, limit=limit)


def find_held_units(connection: Connection, payment_ids: Collection[int]) -> dict[int, int]:
    """The units of each payment that forwarding calls and calls of unknown outcome hold."""
    is_open = f"state IN ('{CallState.FORWARDING.value}', '{CallState.UNKNOWN.value}')"
    # The literal predicate of the index.
    return _sum_held(connection, payment_ids, is_open, f"{is_open} AND ({REPEATABLE})", "ix_call_repeatable")


def find_returnable_units(connection: Connection, payment_ids: Collection[int]) -> dict[int, int]:
    """The units of each payment that may come back: those of `find_held_units`, and those of charged metered calls without a price."""
    found = find_held_units(connection, payment_ids)
    unmeasured = _sum_held(connection, payment_ids, UNMEASURED, UNMEASURED, "ix_call_unmeasured")
    for payment_id, units in unmeasured.items():
        found[payment_id] = found.get(payment_id, 0) + units
    return found


def _sum_held(
    connection: Connection, payment_ids: Collection[int], which: str, which_indexed: str, index: str
) -> dict[int, int]:
    """What some calls hold of each payment. `which_indexed`: the condition `which` with the literal predicate of the index."""
    if not payment_ids:
        return {}
    calls, topups = hint_index(call_table, index).c, topup_table.c
    of_proof = select(calls.payment_id, calls.taken_units.label("units")).where(
        calls.payment_id.in_(payment_ids), text(which_indexed)
    )
    of_topups = (
        select(topups.payment_id, topups.units)
        .join(call_table, call_table.c.id == topups.call_id)
        .where(topups.payment_id.in_(payment_ids), text(which))
    )
    held: dict[int, int] = {}
    for payment_id, units in connection.execute(union_all(of_proof, of_topups)):
        held[payment_id] = held.get(payment_id, 0) + units
    return {payment_id: units for payment_id, units in held.items() if units > 0}


def _unknown_calls(connection: Connection, payment_id: int, *, limit: int) -> tuple[CallId, ...]:
    """Sorted in memory: an ORDER BY would read all calls of the payment."""
    own, calls, topups = hint_index(call_table, "ix_call_repeatable").c, call_table.c, topup_table.c
    of_proof = select(own.created_ms, own.id).where(
        own.payment_id == payment_id,
        own.taken_units > 0,
        own.state == CallState.UNKNOWN.value,
        # The literal predicate of the index.
        text(f"({REPEATABLE})"),
    )
    of_topups = (
        select(calls.created_ms, calls.id)
        .join(topup_table, calls.id == topups.call_id)
        .where(topups.payment_id == payment_id, calls.state == CallState.UNKNOWN.value)
    )
    found = {tuple(row) for query in (of_proof, of_topups) for row in connection.execute(query.limit(limit))}
    return tuple(CallId(call_id) for _, call_id in sorted(found, reverse=True)[:limit])


def _newest(
    connection: Connection, *, is_of_proof: ColumnElement[bool], payment_id: int, limit: int
) -> tuple[CallId, ...]:
    columns = call_table.c
    newest = (columns.created_ms.desc(), columns.id.desc())
    of_proof = (
        select(columns.created_ms, columns.id).where(is_of_proof).order_by(*newest).limit(limit).subquery()
    )
    of_topups = select(columns.created_ms, columns.id).join(
        topup_table, and_(topup_table.c.call_id == columns.id, topup_table.c.payment_id == payment_id)
    )
    both = union(select(of_proof), of_topups).subquery()
    query = select(both.c.id).order_by(both.c.created_ms.desc(), both.c.id.desc()).limit(limit)
    return tuple(CallId(call_id) for call_id in connection.execute(query).scalars())
