"""A page of a wallet's calls in SQL, and how many there are, whatever their number. Never writes.

Every filter has an index that is in the order of the page, (created_ms, id), so that no page and no total walks what it
does not show; only an offset is walked, in the index alone. The rare ends (failed, unknown) have indexes of their own,
which hold nothing else; calls that run are few. What succeeded is the rest: it is counted as that, and found in the
order of all calls.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Subquery,
    and_,
    func,
    select,
    text,
    tuple_,
    union_all,
)

from tollway.ledger.call import CallState
from tollway.ledger.statement import HistoryPage, HistoryQuery, HistoryStatus
from tollway.storage.book_rows import parse_call
from tollway.storage.book_tables import FAILED, UNKNOWN, call_table
from tollway.storage.call_totals import total_of
from tollway.storage.named_index import IndexHint

TOTAL_MAX = 10_000
"""With filters, the total is counted up to here."""
FAILED_STATUS_MIN = 400
"""An upstream status from here on is a failed call; ours of the history, not a status that we answer."""
RUNNING_MAX = 100_000
"""More calls never run at once. A bound there also makes a database begin with them."""

_UNSUCCESSFUL: tuple[HistoryStatus, ...] = ("failed", "unknown", "pending")


def history(connection: Connection, query: HistoryQuery) -> HistoryPage:
    found = _calls(query)
    columns = found.calls.c
    newest = (columns.created_ms.desc(), columns.id.desc())
    page = found.select.where(*_cursor_filters(connection, query, found.calls)).order_by(*newest)
    page = page.limit(query.limit).offset(query.offset)
    if query.offset:  # the rows that are passed over are not even looked up
        place = page.with_only_columns(columns.id).subquery()
        newest = (call_table.c.created_ms.desc(), call_table.c.id.desc())
        page = select(call_table).join(place, place.c.id == call_table.c.id).order_by(*newest)
    calls = tuple(map(parse_call, connection.execute(page)))
    total, is_beyond = _total(connection, query)
    return HistoryPage(calls=calls, total=total, is_lower_bound=is_beyond)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MatchingCalls:
    """Calls that a query asks for, wherever its page begins. `calls`: the table as `select` names it."""

    select: Select[Any]
    calls: FromClause


def _calls(query: HistoryQuery) -> _MatchingCalls:
    if query.status == "pending":
        running = _running()
        both = call_table.join(running, running.c.id == call_table.c.id)
        found = select(call_table).select_from(both).where(*_wallet_filters(query, running))
        return _MatchingCalls(select=found.where(*_time_filters(query, call_table)), calls=call_table)
    calls = IndexHint(call_table, _index(query))
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
        whose.append(columns.listing_id == query.listing_id)
    return whose


def _time_filters(query: HistoryQuery, calls: FromClause) -> list[ColumnElement[bool]]:
    wanted: list[ColumnElement[bool]] = []
    if query.from_ms is not None:
        wanted.append(calls.c.created_ms >= query.from_ms)
    if query.to_ms is not None:
        wanted.append(calls.c.created_ms <= query.to_ms)
    return wanted


def _running() -> Subquery:
    """The calls that run, of all wallets: each state has an index that holds nothing else."""
    columns = call_table.c
    states = [
        select(columns.id, columns.payer, columns.provider, columns.listing_id)
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
            return and_(text(f"({FAILED})"))  # which is the index
        case "unknown":
            return and_(text(f"({UNKNOWN})"))


def _cursor_filters(
    connection: Connection, query: HistoryQuery, calls: FromClause
) -> list[ColumnElement[bool]]:
    """Older than the call `before`; nothing is older than a call that is not there."""
    if query.before is None:
        return []
    columns = call_table.c
    place = select(columns.created_ms, columns.id).where(columns.id == query.before)
    row = connection.execute(place).first()
    if row is None:
        return [calls.c.id.is_(None)]
    return [tuple_(calls.c.created_ms, calls.c.id) < tuple_(row.created_ms, row.id)]


def _total(connection: Connection, query: HistoryQuery) -> tuple[int, bool]:
    """How many there are, and whether there are more than that."""
    filters = (query.listing_id, query.status, query.from_ms, query.to_ms)
    if all(one is None for one in filters):
        total = total_of(connection, query.wallet, query.role)
        return total, False
    total = _count_up_to(connection, query, TOTAL_MAX + 1)
    return min(total, TOTAL_MAX), total > TOTAL_MAX


def _count_up_to(connection: Connection, query: HistoryQuery, at_most: int) -> int:
    """What succeeded is counted as all less the rest, from indexes alone, as long as the rest is not the most of it."""
    if query.status != "succeeded":
        return _count(connection, query, at_most)
    others = sum(_count(connection, replace(query, status=other), at_most) for other in _UNSUCCESSFUL)
    if others >= at_most:
        return _count(connection, query, at_most)
    return _count(connection, replace(query, status=None), at_most + others) - others


def _count(connection: Connection, query: HistoryQuery, at_most: int) -> int:
    found = _calls(query)
    some = found.select.with_only_columns(found.calls.c.id).limit(at_most).subquery()
    return connection.scalar(select(func.count()).select_from(some)) or 0
