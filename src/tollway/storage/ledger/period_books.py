"""The reads of `/sales` and `/spending` in SQL: closed periods from their rows, everything else from the calls, newest first.

A question reads a bounded number of calls along the index of its wallet, and no closed periods far beyond those of its answer. It says from
which period on its sums are whole. All of one question is read in one snapshot, so an hour that is closed meanwhile counts once.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, func, select, text

from tollway.ids import Address
from tollway.ledger.sales import (
    STEP_MS,
    CallSum,
    GroupSum,
    PeriodSums,
    SalesQuery,
    SpendingQuery,
    Step,
    SumGroup,
    SumKey,
    SumQuery,
    SumState,
    floor_to,
)
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.catalog.catalog_tables import listing_table
from tollway.storage.engine.database import Database
from tollway.storage.ledger.call_terms import listing_key
from tollway.storage.ledger.sales_tables import (
    CALL_KEY,
    CALL_SUMS,
    FREE_ASSET,
    SALES_TABLES,
    SUM_COLUMNS,
    UNITS_BASE,
    read_ends,
    sales_mark_table,
)

NAMES_MAX = 500
_STATES = 4

_GROUP_COLUMNS: dict[SumGroup, str] = {"api": "t.listing_id", "provider": "c.provider", "wallet": "c.payer"}


class PeriodBookStore:
    """Implements `PeriodBooks`."""

    def __init__(self, database: Database, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._database = database
        self._limits = limits

    async def sales(self, query: SalesQuery) -> PeriodSums:
        return await self._database.read(partial(read_sales, query=query, limits=self._limits))

    async def spending(self, query: SpendingQuery) -> PeriodSums:
        return await self._database.read(partial(read_spending, query=query, limits=self._limits))


def read_sales(connection: Connection, *, query: SalesQuery, limits: Limits) -> PeriodSums:
    sums = _SumCollector(query, rows_max=limits.sum_rows_max)
    closed_until_ms = read_ends(connection)[1] or 0
    index, whose = "ix_call_provider_time", "c.provider = :wallet"
    if query.listing_id is not None:
        index, whose = "ix_call_provider_listing", f"{whose} AND c.listing_key = :listing_key"
    if closed_until_ms < query.to_ms:
        _add_calls(
            connection,
            sums,
            index=index,
            whose=whose,
            group="api",
            values={
                "wallet": bytes(query.wallet),
                "from_ms": max(query.from_ms, closed_until_ms),
                "to_ms": query.to_ms,
                **({} if query.listing_id is None else {"listing_key": listing_key(query.listing_id)}),
            },
            calls_max=limits.live_calls_max,
        )
    of_listing = {} if query.listing_id is None else {"listing_key": listing_key(query.listing_id)}
    _add_refunds(connection, sums, query, role="provider", group="api", values=of_listing, limits=limits)
    as_of_ms = None
    if query.from_ms < closed_until_ms:
        steps: tuple[Step, ...] = ("hour",) if query.step == "hour" else ("hour", "day")
        for step in steps:
            _add_closed(connection, sums, step, query, until_ms=min(query.to_ms, closed_until_ms))
        as_of_ms = _find_first_mark(connection, query, until_ms=closed_until_ms)
    return sums.finish(connection, is_of_listings=True, as_of_ms=as_of_ms)


def read_spending(connection: Connection, *, query: SpendingQuery, limits: Limits) -> PeriodSums:
    sums = _SumCollector(query, rows_max=limits.sum_rows_max)
    _add_calls(
        connection,
        sums,
        index="ix_call_payer_time",
        whose="c.payer = :wallet",
        group=query.group_by,
        values={"wallet": bytes(query.wallet), "from_ms": query.from_ms, "to_ms": query.to_ms},
        calls_max=limits.spending_calls_max,
    )
    _add_refunds(connection, sums, query, role="payer", group=query.group_by, values={}, limits=limits)
    return sums.finish(connection, is_of_listings=query.group_by == "api", as_of_ms=None)


def _add_calls(
    connection: Connection,
    sums: "_SumCollector",
    *,
    index: str,
    whose: str,
    group: SumGroup,
    values: dict[str, object],
    calls_max: int,
) -> None:
    """Adds the sums of the newest `calls_max` calls of a wallet in a range. `index`: of `whose`, in the order of time; SQLite needs its name."""
    hint = f" INDEXED BY {index}" if connection.dialect.name == "sqlite" else ""
    within = f"{whose} AND c.created_ms >= :from_ms AND c.created_ms < :to_ms"
    beyond = f"SELECT c.created_ms FROM call c{hint} WHERE {within} ORDER BY c.created_ms DESC LIMIT 1 OFFSET {calls_max}"  # noqa: S608 - texts of ours
    cut_ms = connection.scalar(text(beyond), values)
    if cut_ms is not None:
        # Other calls of that millisecond are left out too.
        values = {**values, "from_ms": cut_ms + 1}
        sums.cut_before(floor_to(sums.step_ms, cut_ms) + sums.step_ms)
    grouped = f"""SELECT c.created_ms / {sums.step_ms} * {sums.step_ms} AS start_ms,
      {_GROUP_COLUMNS[group]} AS part, {CALL_KEY}, {CALL_SUMS}
    FROM call c{hint} JOIN call_terms t ON t.id = c.terms_id WHERE {within}
    GROUP BY 1, 2, 3, 4, 5, 6, 7"""  # noqa: S608 - texts of ours
    for row in connection.execute(text(grouped), values):
        sums.add(row)


def _add_refunds(
    connection: Connection,
    sums: "_SumCollector",
    query: SumQuery,
    *,
    role: Literal["payer", "provider"],
    group: SumGroup,
    values: Mapping[str, object],
    limits: Limits,
) -> None:
    """Adds what came back of charged calls, for all periods: refunds are few, and no closed period has them. `values`: of one listing its key."""
    given = {**values, "wallet": bytes(query.wallet), "from_ms": query.from_ms, "to_ms": query.to_ms}
    within = f"r.{role} = :wallet AND r.called_ms >= :from_ms AND r.called_ms < :to_ms AND NOT r.is_reversed"
    beyond = f"SELECT r.called_ms FROM call_refund r WHERE {within} ORDER BY r.called_ms DESC LIMIT 1 OFFSET {limits.live_calls_max}"  # noqa: S608 - texts of ours
    cut_ms = connection.scalar(text(beyond), given)
    if cut_ms is not None:
        given["from_ms"] = cut_ms + 1
        sums.cut_before(floor_to(sums.step_ms, cut_ms) + sums.step_ms)
    of_listing = " AND c.listing_key = :listing_key" if values else ""
    grouped = f"""SELECT c.created_ms / {sums.step_ms} * {sums.step_ms} AS start_ms,
      {_GROUP_COLUMNS[group]} AS part, {CALL_KEY}, count(*) AS calls,
      CAST(sum(r.units / {UNITS_BASE}) AS BIGINT) AS high_units, CAST(sum(r.units % {UNITS_BASE}) AS BIGINT) AS low_units
    FROM call_refund r JOIN call c ON c.id = r.call_id JOIN call_terms t ON t.id = c.terms_id
    WHERE {within} AND c.state = 'consumed'{of_listing}
    GROUP BY 1, 2, 3, 4, 5, 6, 7"""  # noqa: S608 - texts of ours
    for row in connection.execute(text(grouped), given):
        sums.add_refund(row)


def _add_closed(
    connection: Connection, sums: "_SumCollector", step: Step, query: SalesQuery, *, until_ms: int
) -> None:
    """Adds the stored sums, newest periods first: some whole periods with about `sum_rows_max` rows at once, until older ones are not in the answer."""
    name, rows_max = SALES_TABLES[step].name, _STATES * (sums.rows_max + 1)
    within = "provider = :wallet AND start_ms >= :from_ms AND start_ms < :until_ms"
    newest_first = f"SELECT start_ms FROM {name} WHERE {within} ORDER BY start_ms DESC"  # noqa: S608 - texts of ours
    beyond = f"{newest_first} LIMIT 1 OFFSET {sums.rows_max}"
    totals = ", ".join(f"CAST(sum({column}) AS BIGINT) AS {column}" for column in SUM_COLUMNS)
    of_listing = "" if query.listing_id is None else " AND listing_id = :listing_id"
    stored = f"""SELECT start_ms / {sums.step_ms} * {sums.step_ms} AS start_ms, listing_id AS part, chain_id, asset,
      currency, decimals, state, {totals}
    FROM {name} WHERE {within}{of_listing}
    GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1 DESC LIMIT {rows_max}"""  # noqa: S608 - texts of ours
    values: dict[str, Any] = {"wallet": bytes(query.wallet)}
    if query.listing_id is not None:
        values["listing_id"] = query.listing_id
    while until_ms > query.from_ms and not sums.is_full_before(until_ms):
        values |= {"from_ms": query.from_ms, "until_ms": until_ms}
        # One listing has few rows, and no index of its own: they are read at once.
        if query.listing_id is None and (last_ms := connection.scalar(text(beyond), values)) is not None:
            values["from_ms"] = max(query.from_ms, floor_to(sums.step_ms, last_ms))
        rows = connection.execute(text(stored), values).all()
        for row in rows:
            sums.add(row)
        if len(rows) == rows_max:
            sums.cut_before(rows[-1].start_ms + sums.step_ms)
        until_ms = values["from_ms"]


def _find_first_mark(connection: Connection, query: SumQuery, *, until_ms: int) -> int | None:
    """The moment of the first late move in the range that is not in its closed period yet."""
    columns = sales_mark_table.c
    within = (columns.hour_ms >= query.from_ms, columns.hour_ms < min(query.to_ms, until_ms))
    found: int | None = connection.scalar(select(func.min(columns.marked_ms)).where(*within))
    return found


_SumPlace = tuple[int, str, SumKey]
"""The start of a period, a group and an asset."""


class _SumCollector:
    """Adds up the sums of a question. Sums of periods before `complete_from_ms` are not whole; None while all are."""

    def __init__(self, query: SumQuery, *, rows_max: int) -> None:
        self.step_ms = STEP_MS[query.step]
        self.rows_max = rows_max
        self.complete_from_ms: int | None = None
        self._groups: dict[_SumPlace, dict[SumState, CallSum]] = {}
        self._refunds: dict[_SumPlace, CallSum] = {}

    def add(self, row: Any) -> None:
        states = self._groups.setdefault(self._place_of(row), {})
        states[row.state] = states.get(row.state, CallSum()).plus(_sum_of(row))

    def add_refund(self, row: Any) -> None:
        place = self._place_of(row)
        self._refunds[place] = self._refunds.get(place, CallSum()).plus(_sum_of(row))

    def _place_of(self, row: Any) -> "_SumPlace":
        is_free = row.asset == FREE_ASSET
        key = SumKey(
            chain_id=None if is_free else row.chain_id,
            asset=None if is_free else row.asset,
            currency=row.currency,
            decimals=row.decimals,
        )
        group = row.part if isinstance(row.part, str) else str(Address(row.part))
        return row.start_ms, group, key

    def cut_before(self, start_ms: int) -> None:
        self.complete_from_ms = max(start_ms, self.complete_from_ms or 0)

    def is_full_before(self, end_ms: int) -> bool:
        """Whether no period before `end_ms` has a row in the answer, or is the first one that is left out."""
        if len(self._groups) <= self.rows_max:
            return False
        starts = sorted((start_ms for start_ms, _, _ in self._groups), reverse=True)
        return starts[self.rows_max] >= end_ms

    def finish(self, connection: Connection, *, is_of_listings: bool, as_of_ms: int | None) -> PeriodSums:
        """Newest period first. Beyond the maximum of rows, whole periods are left out at the old end."""
        keys = sorted(self._groups, key=lambda one: (-one[0], one[1], one[2].currency, repr(one[2])))
        if len(keys) > self.rows_max:
            self.cut_before(keys[self.rows_max][0] + self.step_ms)
            keys = keys[: self.rows_max]
        names = _read_names(connection, sorted({group for _, group, _ in keys})) if is_of_listings else {}
        rows = tuple(
            GroupSum(
                start_ms=start_ms,
                group=group,
                name=names.get(group),
                key=key,
                by_state=states,
                refunded=self._refunds.get((start_ms, group, key), CallSum()),
            )
            for start_ms, group, key in keys
            for states in (self._groups[start_ms, group, key],)
        )
        return PeriodSums(rows=rows, as_of_ms=as_of_ms, complete_from_ms=self.complete_from_ms)


def _sum_of(row: Any) -> CallSum:
    return CallSum(calls=row.calls, units=int(row.high_units) * UNITS_BASE + int(row.low_units))


def _read_names(connection: Connection, listing_ids: Sequence[str]) -> dict[str, str]:
    """The present names of listings, retired ones too."""
    columns = listing_table.c
    names: dict[str, str] = {}
    for start in range(0, len(listing_ids), NAMES_MAX):
        some = listing_ids[start : start + NAMES_MAX]
        found = connection.execute(select(columns.id, columns.name).where(columns.id.in_(some)))
        names.update((row.id, row.name) for row in found)
    return names
