"""Where the prices of calls on channels are, in SQL: `CallRecord.claim_state` for the rows of a page.

The contract counts one sum for each channel, so it covers the calls of the channel in their order. What it does not cover are the newest calls: their sum is what the calls
owe less what is claimed. The search begins at the newest call and ends at the first one that is covered, so it reads the uncovered calls and few others, however old the
page is. A page without a call on a channel costs nothing.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, or_, select

from tollway.ids import CallId
from tollway.ledger.channels import CallPlace, ClaimMarks, decide_claim_state
from tollway.ledger.records import CallState, ClaimState, Rail
from tollway.storage.engine.statements import Prepared, Within
from tollway.storage.ledger.ledger_tables import call_table, channel_table, payment_table

SLICE_FIRST, SLICE_NEXT = 200, 2_000
SEARCHED_MAX = 10_000
"""How many calls of a channel are searched. A claim is due long before, unless a call costs less than a thousandth of the gas of a claim; older calls then have no state."""


def find_claim_states(connection: Connection, rows: Iterable[Row[Any]]) -> dict[CallId, ClaimState]:
    """The states of those of these calls that have one. `rows`: of `select_records`."""
    charged = [row for row in rows if _is_charged_on_channel(row)]
    payment_ids = sorted({row.payment_id for row in charged})
    marks = {one.payment_id: _find_marks(connection, one) for one in _read_sums(connection, payment_ids)}
    states = {}
    for row in charged:
        state = decide_claim_state(
            CallState(row.state),
            due_units=row.price_units if row.actual_units is None else row.actual_units,
            place=(row.created_ms, CallId(row.id)),
            marks=marks[row.payment_id],
        )
        if state is not None:
            states[CallId(row.id)] = state
    return states


def _is_charged_on_channel(row: Row[Any]) -> bool:
    """Whether the call takes from a channel, or lacks something of it. The price of an unmeasured call is not known yet."""
    is_charged = row.state == CallState.REORGED.value or (
        row.state == CallState.CONSUMED.value and row.quantities != ""
    )
    return is_charged and row.rail == Rail.CHANNEL.value and row.payment_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChannelSums:
    """What the calls of a channel owe beyond what is claimed, and beyond what is settled."""

    payment_id: int
    unclaimed_units: int
    unsettled_units: int


def _read_sums(connection: Connection, payment_ids: list[int]) -> list[_ChannelSums]:
    if not payment_ids:
        return []
    return [
        _ChannelSums(
            payment_id=payment_id,
            unclaimed_units=owed_units - total_claimed,
            # A claim that has left the chain takes its settlement with it.
            unsettled_units=owed_units - min(settled, total_claimed),
        )
        for payment_id, owed_units, total_claimed, settled in _SUMS.fetch(connection, payment_ids=payment_ids)
    ]


def _find_marks(connection: Connection, sums: _ChannelSums) -> ClaimMarks:
    """Walks from the newest call to the first one after which calls hold what is not settled."""
    claimed: CallPlace | None = None
    place: CallPlace | None = None
    newer_units = searched = 0
    limit = SLICE_FIRST
    while searched < SEARCHED_MAX:
        rows = _read_before(connection, sums.payment_id, place, limit=limit)
        for created_ms, call_id, taken_units in rows:
            place = (created_ms, CallId(call_id))
            if claimed is None and newer_units >= sums.unclaimed_units:
                claimed = place
            if newer_units >= sums.unsettled_units:
                return ClaimMarks(claimed=claimed, settled=place)
            newer_units += taken_units
        if len(rows) < limit:
            return ClaimMarks(claimed=claimed, settled=None)
        searched += limit
        limit = SLICE_NEXT
    return ClaimMarks(claimed=claimed, settled=None, searched_from=place)


def _read_before(
    connection: Connection, payment_id: int, place: CallPlace | None, *, limit: int
) -> Sequence[Any]:
    """The next calls of a channel, newest first."""
    if place is None:
        return list(_NEWEST.fetch(connection, payment_id=payment_id, at_most=limit))
    created_ms, call_id = place
    return list(
        _OLDER.fetch(connection, payment_id=payment_id, created_ms=created_ms, call_id=call_id, at_most=limit)
    )


def _sums_query() -> Select[Any]:
    own, payments = channel_table.c, payment_table.c
    owed_units = own.start_units + payments.taken_units
    return (
        select(own.payment_id, owed_units, own.total_claimed, own.settled)
        .join(payment_table, payments.id == own.payment_id)
        .where(Within(own.payment_id, "payment_ids"))
    )


def _calls_query() -> Select[Any]:
    columns = call_table.c
    return (
        select(columns.created_ms, columns.id, columns.taken_units)
        .where(columns.payment_id == bindparam("payment_id"))
        .order_by(columns.created_ms.desc(), columns.id.desc())
        .limit(bindparam("at_most"))
    )


def _older_query() -> Select[Any]:
    columns = call_table.c
    is_older = or_(columns.created_ms < bindparam("created_ms"), columns.id < bindparam("call_id"))
    return _calls_query().where(columns.created_ms <= bindparam("created_ms"), is_older)


_SUMS = Prepared(_sums_query())
_NEWEST = Prepared(_calls_query())
_OLDER = Prepared(_older_query())
