"""The read side of the ledger in SQL: calls and payments of a wallet, calls of a payment, totals, the audit. Writes only the totals.

Every filter has an index in the order of the page, so that no page and no total reads other rows; without one PostgreSQL would walk
the primary key and filter. Pages are ordered by (created_ms, id), the indexes by `created_ms`: both databases sort the few calls of one
millisecond by id. Failed calls and calls of unknown outcome have their own indexes; running calls are few; all other calls
succeeded.

Totals: on PostgreSQL a trigger counts each inserted call in one of a few slots of its wallets. On SQLite a trigger would cost more than
the insert, so calls are counted later in batches, in the order of their rows: the totals contain the calls up to a mark, and a
query counts the few after it. Rows of calls are never deleted, so their numbers only grow.

The audit checks an equation for every payment: its taken units are the units that its calls hold. It also compares the closed periods with
their calls (`closed_periods`).
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    Subquery,
    Tuple,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    tuple_,
    union,
    union_all,
)

from tollway.ids import Address, CallId, ChainId, TxHash
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
from tollway.ledger.ledger import AuditReport, HeldMoney
from tollway.ledger.records import AUTHORIZED_RAILS, TAKING, UNDECIDED, CallRecord, CallState, Payment
from tollway.limits import Limits
from tollway.registry.metering import compute_cost, read_formulas, read_measured
from tollway.storage.engine.database import Database
from tollway.storage.engine.statements import hint_index
from tollway.storage.ledger.call_terms import listing_key
from tollway.storage.ledger.closed_periods import audit_periods
from tollway.storage.ledger.ledger_tables import (
    FAILED,
    REPEATABLE,
    UNKNOWN,
    UNMEASURED,
    account_debt_table,
    call_table,
    call_terms_table,
    call_total_table,
    due_units,
    parse_call,
    parse_payment,
    payment_table,
    select_records,
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
        query = select_records().where(call_table.c.id == call_id)
        row = await self._database.read(lambda connection: connection.execute(query).first())
        return None if row is None else parse_call(row, unknown_hold_ms=self._unknown_hold_ms)

    async def read_calls(self, query: HistoryQuery) -> tuple[CallRecord, ...]:
        return await self._database.read(
            partial(read_calls, query=query, unknown_hold_ms=self._unknown_hold_ms)
        )

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
        columns = payment_table.c
        query = select(payment_table).where(columns.tx_hash == tx_hash, columns.payer == payer)
        return await self._read_payments(query.order_by(columns.id))

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

    async def _read_payments(self, query: Select[Any]) -> tuple[Payment, ...]:
        return await self._database.read(
            lambda connection: tuple(map(parse_payment, connection.execute(query)))
        )


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
    return tuple(parse_call(row, unknown_hold_ms=unknown_hold_ms) for row in rows)


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


LINES_MAX = 1_000
ROWS_AT_ONCE = 5_000


def audit(connection: Connection) -> AuditReport:
    """Audits the ledger and its closed periods in one snapshot. Reads every row: seconds for millions of calls."""
    periods = audit_periods(connection, lines_max=LINES_MAX)
    held_calls, held_payments = tuple(_held_calls(connection)), tuple(_held_payments(connection))
    return AuditReport(
        payments=_count_rows(connection, payment_table.c.id),
        calls=_count_rows(connection, call_table.c.id),
        wrong=(
            *_wrong_payments(connection),
            *_wrong_calls(connection),
            *_wrong_actuals(connection),
            *_wrong_debts(connection),
        ),
        held_calls=tuple(CallId(one.id) for one in held_calls),
        held_payments=tuple(one.id for one in held_payments),
        held=(*held_calls, *held_payments),
        closed_periods=periods.compared,
        marked_periods=periods.marked,
        wrong_periods=periods.wrong,
        wrong_period_starts=periods.wrong_starts,
    )


def _wrong_payments(connection: Connection) -> Iterator[str]:
    of_proof = _sums(call_table.c.payment_id, call_table.c.taken_units).subquery("of_proof")
    of_topups = _sums(topup_table.c.payment_id, topup_table.c.units).subquery("of_topups")
    columns = payment_table.c
    held = _halves_of(of_proof).plus(_halves_of(of_topups))
    query = (
        select(columns.id, columns.tx_hash, columns.taken_units, columns.value_units, *held.columns)
        .select_from(
            payment_table.outerjoin(of_proof, of_proof.c.key == columns.id).outerjoin(
                of_topups, of_topups.c.key == columns.id
            )
        )
        .where(
            or_(
                ~held.equals(_split(columns.taken_units)),
                columns.taken_units < 0,
                columns.taken_units > columns.value_units,
            )
        )
        .order_by(columns.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        yield (
            f"payment {row.id} in {TxHash(row.tx_hash)}: {row.taken_units} taken of {row.value_units},"
            f" its calls hold {_join_halves(row.high, row.low)}"
        )


def _wrong_calls(connection: Connection) -> Iterator[str]:
    of_topups = _sums(topup_table.c.call_id, topup_table.c.units).subquery("of_topups")
    columns = call_table.c
    held = _split(columns.taken_units).plus(_halves_of(of_topups))
    price, nothing = _split(due_units()), _Halves(literal(0), literal(0))
    is_taking = columns.state.in_([state.value for state in TAKING])
    is_authorized = columns.rail.in_([rail.value for rail in AUTHORIZED_RAILS])
    is_ended = columns.state.in_([CallState.CONSUMED.value, CallState.REORGED.value])
    is_right = case(
        # A call without a transfer yet.
        (columns.payment_id.is_(None), and_(held.equals(nothing), ~is_ended)),
        (is_taking, held.equals(price)),
        (columns.state == CallState.RELEASED.value, held.equals(nothing)),
        else_=and_(~held.is_below(nothing), held.is_below(price)),
    )
    query = (
        select(columns.id, columns.state, due_units().label("due_units"), *held.columns)
        .select_from(call_table.outerjoin(of_topups, of_topups.c.key == columns.id))
        .where(or_(columns.payment_id.is_not(None), is_authorized), is_right == literal(False))
        .order_by(columns.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        held_units = _join_halves(row.high, row.low)
        yield f"call {row.id} is {row.state} at {row.due_units} and holds {held_units}"


def _wrong_actuals(connection: Connection) -> Iterator[str]:
    """Computes the price of each metered call again, from its formulas and quantities."""
    columns, terms = call_table.c, call_terms_table.c
    query = (
        select(
            *(columns.id, columns.price_units, columns.actual_units, columns.quantities),
            *(terms.metering, terms.decimals),
        )
        .join(call_terms_table, terms.id == columns.terms_id)
        .where(columns.actual_units.is_not(None))
    )
    found = 0
    for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query):
        computed_units = None
        if row.metering is not None:
            computed_units = compute_cost(
                read_formulas(row.metering),
                read_measured(row.quantities),
                max_units=row.price_units,
                decimals=row.decimals,
            ).units
        if computed_units != row.actual_units:
            yield f"call {row.id} took {row.actual_units}, and its formula gives {computed_units}"
            found += 1
            if found == LINES_MAX:
                return


def _wrong_debts(connection: Connection) -> Iterator[str]:
    of_topups = _sums(topup_table.c.call_id, topup_table.c.units).subquery("of_topups")
    calls, terms = call_table.c, call_terms_table.c
    price, taken, helped = _split(due_units()), _split(calls.taken_units), _halves_of(of_topups)
    account = (calls.payer, terms.pay_to, terms.asset, terms.chain_id)
    halves = (price.high, price.low, taken.high, taken.low, helped.high, helped.low)
    query = (
        select(*account, *(func.sum(half) for half in halves))
        .join(call_terms_table, terms.id == calls.terms_id)
        .outerjoin(of_topups, of_topups.c.key == calls.id)
        .where(
            calls.state == literal_column("'reorged'"), calls.payer.is_not(None), terms.pay_to.is_not(None)
        )
        .group_by(*account)
    )
    owed: dict[tuple[Any, ...], int] = {}
    for *key, price_high, price_low, taken_high, taken_low, helped_high, helped_low in connection.execute(
        query
    ):
        owed[tuple(key)] = (
            _join_halves(price_high, price_low)
            - _join_halves(taken_high, taken_low)
            - _join_halves(helped_high, helped_low)
        )
    columns = account_debt_table.c
    kept_query = select(columns.payer, columns.payee, columns.asset, columns.chain_id, columns.units)
    kept: dict[tuple[Any, ...], int] = {tuple(row[:4]): int(row[4]) for row in connection.execute(kept_query)}
    wrong = sorted(key for key in owed.keys() | kept.keys() if owed.get(key, 0) != kept.get(key, 0))
    for payer, payee, asset, chain_id in wrong[:LINES_MAX]:
        account_key = (payer, payee, asset, chain_id)
        yield (
            f"the debt of {Address(payer)} to {Address(payee)} in {asset} on chain {chain_id} is {kept.get(account_key, 0)},"
            f" its reorged calls lack {owed.get(account_key, 0)}"
        )


def _held_calls(connection: Connection) -> Iterator[HeldMoney]:
    columns = call_table.c
    query = (
        select(
            columns.id,
            columns.payer,
            due_units().label("due_units"),
            columns.created_ms,
            call_terms_table.c.chain_id,
            call_terms_table.c.asset,
        )
        .join_from(call_table, call_terms_table)
        .where(columns.state.in_([state.value for state in UNDECIDED]))
        .order_by(columns.created_ms, columns.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        yield HeldMoney(
            is_call=True,
            id=row.id,
            payer=None if row.payer is None else Address(row.payer),
            chain_id=None if row.chain_id is None else ChainId(row.chain_id),
            asset=row.asset,
            units=row.due_units,
            since_ms=row.created_ms,
        )


def _held_payments(connection: Connection) -> Iterator[HeldMoney]:
    columns = payment_table.c
    query = select(payment_table).where(columns.is_held).order_by(columns.id).limit(LINES_MAX)
    for row in connection.execute(query):
        yield HeldMoney(
            is_call=False,
            id=str(TxHash(row.tx_hash)),
            payer=Address(row.payer),
            chain_id=ChainId(row.chain_id),
            asset=row.asset,
            units=row.value_units - row.taken_units,
            since_ms=row.recorded_ms,
        )


@dataclass(frozen=True, slots=True)
class _Halves:
    """A number of units in SQL as `high * 2^32 + low`: a sum of wrong rows may exceed 64 bits, and the audit must name such rows. `low` may
    exceed 32 bits."""

    high: ColumnElement[int]
    low: ColumnElement[int]

    @property
    def columns(self) -> tuple[ColumnElement[int], ColumnElement[int]]:
        return self.high.label("high"), self.low.label("low")

    def plus(self, other: "_Halves") -> "_Halves":
        return _Halves(self.high + other.high, self.low + other.low)

    def equals(self, other: "_Halves") -> ColumnElement[bool]:
        (high, low), (other_high, other_low) = self._carried, other._carried
        return and_(high == other_high, low == other_low)

    def is_below(self, other: "_Halves") -> ColumnElement[bool]:
        (high, low), (other_high, other_low) = self._carried, other._carried
        return or_(high < other_high, and_(high == other_high, low < other_low))

    @property
    def _carried(self) -> tuple[ColumnElement[int], ColumnElement[int]]:
        """With 32 bits in the lower half."""
        return self.high + self.low.bitwise_rshift(_HALF_BITS), self.low.bitwise_and(_HALF_MASK)


_HALF_BITS: ColumnElement[int] = literal_column("32")
_HALF_MASK: ColumnElement[int] = literal_column("4294967295")


def _split(units: ColumnElement[int]) -> _Halves:
    return _Halves(units.bitwise_rshift(_HALF_BITS), units.bitwise_and(_HALF_MASK))


def _join_halves(high: int, low: int) -> int:
    return (int(high) << 32) + int(low)


def _sums(key: Any, units: Any) -> Any:
    """Sums by key, in halves. The sum of integers is a numeric on PostgreSQL, so each is cast; SQLite fails at a sum beyond 64 bits."""
    halves = _split(units)
    return select(
        key.label("key"),
        cast(func.sum(halves.high), BigInteger).label("high"),
        cast(func.sum(halves.low), BigInteger).label("low"),
    ).group_by(key)


def _halves_of(sums: Any) -> _Halves:
    """The sums of an outer join: nothing where there is no row."""
    return _Halves(func.coalesce(sums.c.high, 0), func.coalesce(sums.c.low, 0))


def _count_rows(connection: Connection, key: Any) -> int:
    return int(connection.execute(select(func.count(key))).scalar_one())
