"""The tables of closed hours and days, which stand beside the ledger and never decide about money.

`sales_hour` and `sales_day` hold the sums of closed periods. `sales_closed` has one row for each closed period; its `version` grows with each
write, so that of two leaders one writes. `sales_mark` has the hours of calls that moved late; it is never updated, only inserted and
deleted, so that no two transactions that move calls wait for each other.

The sum of many prices may exceed 64 bits, so it is stored in two parts: the sum of `price_units / UNITS_BASE` and the sum of the remainders. Both
parts are exact sums, so equal sums have equal parts.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    String,
    Table,
    func,
    select,
)

from tollway.ledger.records import CallState
from tollway.ledger.sales import STEP_MS, SUM_STATES, Step
from tollway.storage.engine.database import metadata
from tollway.storage.ledger.ledger_tables import RowId

UNITS_BASE = 2**32
"""Both parts of a sum fit 64 bits for two thousand million calls at any price."""
FREE_CHAIN, FREE_ASSET = 0, ""
"""The chain and the asset of calls of free listings: columns of a primary key cannot be null."""


def _make_table(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("provider", LargeBinary(20), primary_key=True),
        Column("start_ms", BigInteger, primary_key=True, autoincrement=False),
        Column("listing_id", String(64), primary_key=True),
        Column("chain_id", BigInteger, primary_key=True, autoincrement=False),
        Column("asset", String(42), primary_key=True),
        Column("currency", String(32), primary_key=True),
        Column("decimals", Integer, primary_key=True, autoincrement=False),
        Column("state", String(10), primary_key=True),
        Column("calls", BigInteger, nullable=False),
        Column("high_units", BigInteger, nullable=False),
        Column("low_units", BigInteger, nullable=False),
        Index(f"ix_{name}_start", "start_ms"),
        sqlite_with_rowid=False,
    )


sales_hour_table = _make_table("sales_hour")
sales_day_table = _make_table("sales_day")

sales_closed_table = Table(
    "sales_closed",
    metadata,
    Column("step", String(4), primary_key=True),
    Column("start_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("written_ms", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

sales_mark_table = Table(
    "sales_mark",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("hour_ms", BigInteger, nullable=False),
    Column("marked_ms", BigInteger, nullable=False),
    Index("ix_sales_mark_hour", "hour_ms"),
)

SALES_TABLES: dict[Step, Table] = {"hour": sales_hour_table, "day": sales_day_table}
KEY_COLUMNS = ("provider", "start_ms", "listing_id", "chain_id", "asset", "currency", "decimals", "state")
SUM_COLUMNS = ("calls", "high_units", "low_units")

_CASES = " ".join(f"WHEN '{state.value}' THEN '{SUM_STATES[state]}'" for state in CallState)
# A charged metered call holds its maximum until its price is known.
_STATE = (
    f"CASE WHEN c.state = 'consumed' AND c.quantities = '' THEN 'held' ELSE CASE c.state {_CASES} END END"
)
CALL_KEY = (
    f"coalesce(t.chain_id, {FREE_CHAIN}) AS chain_id, coalesce(t.asset, '{FREE_ASSET}') AS asset,"
    f" t.currency AS currency, t.decimals AS decimals, {_STATE} AS state"
)
_DUE = "coalesce(c.actual_units, c.price_units)"
CALL_SUMS = (
    f"count(*) AS calls, CAST(sum({_DUE} / {UNITS_BASE}) AS BIGINT) AS high_units,"
    f" CAST(sum({_DUE} % {UNITS_BASE}) AS BIGINT) AS low_units"
)
"""The columns of a sum of calls, in both dialects: `c` is the call, `t` its terms."""


def read_ends(connection: Connection) -> tuple[int | None, int | None]:
    """The end of the last closed day, and of the last closed hour or day; None before the first one."""
    columns = sales_closed_table.c
    last = select(columns.step, func.max(columns.start_ms)).group_by(columns.step)
    ends = {step: start_ms + STEP_MS[step] for step, start_ms in connection.execute(last)}
    return ends.get("day"), max(ends.values(), default=None)
