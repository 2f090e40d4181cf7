"""The audit of the ledger in SQL. Reads every row.

For every payment, its taken units are the units that its calls hold. Each call holds what its state requires, each metered price follows from its
formulas and quantities, and each kept debt is what the calls of its account lack. A refund is at most the price of its call, and each transfer refunds once. Each channel keeps the laws of `ledger.channels`. Each call counts in the budget of its payer what its
state costs, and each budget has counted the sum of its calls, in its windows and in all. The closed periods equal their calls (`closed_periods`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    and_,
    case,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
)

from tollway.ids import Address, CallId, ChainId, TxHash
from tollway.ledger.channels import ChannelState
from tollway.ledger.ledger import AuditReport, HeldMoney
from tollway.ledger.records import SETTLED_RAILS, TAKING, UNDECIDED, CallState, Rail
from tollway.money import LEDGER_DECIMALS_MAX
from tollway.registry.metering import compute_cost, read_formulas, read_measured
from tollway.storage.ledger.budget_rows import BOUND, budget_table
from tollway.storage.ledger.closed_periods import audit_periods
from tollway.storage.ledger.ledger_tables import (
    account_debt_table,
    call_refund_table,
    call_table,
    call_terms_table,
    channel_claim_row_table,
    channel_claim_table,
    channel_table,
    due_units,
    payment_table,
    topup_table,
)
from tollway.storage.ledger.refund_rows import find_wrong_refunds

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
            *_wrong_channels(connection),
            *find_wrong_refunds(connection, lines_max=LINES_MAX),
            *_misplaced_calls(connection),
            *_wrong_counts(connection),
            *_wrong_budgets(connection),
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
    of_refunds = _sums(call_refund_table.c.payment_id, _refund_units()).subquery("of_refunds")
    held = _halves_of(of_proof).plus(_halves_of(of_topups)).plus(_halves_of(of_refunds))
    query = (
        select(columns.id, columns.tx_hash, columns.taken_units, columns.value_units, *held.columns)
        .select_from(
            payment_table.outerjoin(of_proof, of_proof.c.key == columns.id)
            .outerjoin(of_topups, of_topups.c.key == columns.id)
            .outerjoin(of_refunds, of_refunds.c.key == columns.id)
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


def _refund_units() -> ColumnElement[int]:
    """What a refund takes of the payment of its transfer; nothing of a credit, which its payer spends."""
    return case((call_refund_table.c.is_credit, 0), else_=call_refund_table.c.units)


def _wrong_calls(connection: Connection) -> Iterator[str]:
    of_topups = _sums(topup_table.c.call_id, topup_table.c.units).subquery("of_topups")
    columns = call_table.c
    held = _split(columns.taken_units).plus(_halves_of(of_topups))
    price, nothing = _split(due_units()), _Halves(literal(0), literal(0))
    is_taking = columns.state.in_([state.value for state in TAKING])
    is_authorized = columns.rail.in_([rail.value for rail in SETTLED_RAILS])
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
        # The next balance of a channel pays its calls.
        .where(calls.channel_id.is_(None))
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


def _wrong_channels(connection: Connection) -> Iterator[str]:
    """The laws of channels. While a call has the channel, its units are taken and not announced yet."""
    columns, payments, calls = channel_table.c, payment_table.c, call_table.c
    claims, rows = channel_claim_table.c, channel_claim_row_table.c
    other = call_table.alias("other")
    owed = (
        select(other.c.channel_id, func.sum(due_units(other) - other.c.taken_units).label("units"))
        .where(other.c.state == literal_column("'reorged'"), other.c.channel_id.is_not(None))
        .group_by(other.c.channel_id)
        .subquery("owed")
    )
    query = (
        select(
            channel_table,
            payments.taken_units,
            payments.value_units,
            calls.state.label("reserved_state"),
            calls.channel_id.label("reserved_key"),
            calls.taken_units.label("reserved_units"),
            func.coalesce(owed.c.units, 0).label("owed_units"),
            rows.claim_id.is_not(None).label("is_refunding"),
        )
        .join(payment_table, payments.id == columns.payment_id)
        .outerjoin(call_table, calls.id == columns.reserved_call)
        .outerjoin(owed, owed.c.channel_id == columns.key)
        .outerjoin(
            channel_claim_table,
            and_(claims.id == columns.reserved_call, claims.is_refund, claims.ended_ms.is_(None)),
        )
        .outerjoin(channel_claim_row_table, and_(rows.claim_id == claims.id, rows.channel_id == columns.key))
        .order_by(columns.key)
    )
    found = 0
    for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query):
        for law in _broken_laws(row):
            yield f"channel {row.key} {law}"
            found += 1
        if found >= LINES_MAX:
            return


def _broken_laws(row: Row[Any]) -> Iterator[str]:
    taken_units = row.start_units + row.taken_units
    ended_units = taken_units - (row.reserved_units or 0)
    if row.total_claimed > row.announced:
        yield f"has claimed {row.total_claimed}, and announced {row.announced}"
    if ended_units + row.lacking_units > row.announced:
        yield f"has announced {row.announced}, its ended calls owe {ended_units + row.lacking_units}"
    if row.lacking_units != row.owed_units:
        yield f"counts {row.lacking_units} as lacking, its reorged calls lack {row.owed_units}"
    # After a restore the chain may have claimed with a voucher that is lost.
    is_draining = row.state == ChannelState.DRAINING.value
    ceiling = row.start_units if row.candidate_ceiling is None else row.candidate_ceiling
    if row.announced > ceiling and not is_draining:
        yield f"has announced {row.announced}, its newest voucher allows {ceiling}"
    if row.spent_ceiling is not None and row.spent_ceiling > row.announced:
        yield f"has announced {row.announced}, and a spent voucher of {row.spent_ceiling}"
    value_units = max(row.balance - row.start_units, row.taken_units)
    if row.value_units != value_units:
        yield f"has a balance of {row.balance}, and its payment {row.value_units} instead of {value_units}"
    is_open = (row.reserved_state in _OPEN and row.reserved_key == row.key) or row.is_refunding
    if row.reserved_call is not None and not is_open:
        yield f"is reserved for call {row.reserved_call}, which is {row.reserved_state}"


_OPEN = (CallState.FORWARDING.value, CallState.SETTLING.value, CallState.UNKNOWN.value)


def _misplaced_calls(connection: Connection) -> Iterator[str]:
    """Calls of the rail of channels without a channel, or with the payment of something else; and the reverse."""
    calls, columns = call_table.c, channel_table.c
    is_channel = calls.rail == Rail.CHANNEL.value
    is_elsewhere = and_(calls.payment_id.is_not(None), calls.payment_id != columns.payment_id)
    query = (
        select(calls.id, calls.rail)
        .outerjoin(channel_table, columns.key == calls.channel_id)
        .where(
            or_(
                and_(is_channel, columns.key.is_(None)),
                and_(~is_channel, columns.key.is_not(None)),
                is_elsewhere,
            )
        )
        .order_by(calls.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        yield f"call {row.id} of the rail {row.rail} has another channel than its payment"


def _wrong_counts(connection: Connection) -> Iterator[str]:
    """Calls that count another sum than they cost. A price that is known before its deposit settles counts its maximum until then."""
    calls, terms = call_table.c, call_terms_table.c
    units = case(
        (calls.state == CallState.RELEASED.value, 0),
        (calls.state == CallState.SETTLING.value, calls.price_units),
        else_=due_units(),
    )
    # Divided, because the product of wrong units may exceed 64 bits.
    nano_per_unit = case(
        {decimals: 10 ** (LEDGER_DECIMALS_MAX - decimals) for decimals in range(LEDGER_DECIMALS_MAX)},
        value=terms.decimals,
        else_=1,
    )
    is_right = and_(calls.budget_nano // nano_per_unit == units, calls.budget_nano % nano_per_unit == 0)
    query = (
        select(calls.id, calls.state, calls.budget_nano, units.label("units"))
        .join(call_terms_table, terms.id == calls.terms_id)
        .where(
            or_(calls.budget_nano.is_not(None), calls.budget_ms.is_not(None)),
            func.coalesce(is_right, literal(False)) == literal(False),
        )
        .order_by(calls.id)
        .limit(LINES_MAX)
    )
    for row in connection.execute(query):
        yield f"call {row.id} is {row.state} at {row.units} and counts {row.budget_nano} of its budget"


def _wrong_budgets(connection: Connection) -> Iterator[str]:
    """Budgets whose counters are not the sums of the calls that count in them, in 10^-9 of the currency."""
    columns, calls = budget_table.c, call_table.c
    windows = {name: (columns[f"{name}_ms"], columns[f"{name}_nano"]) for name in ("hour", "day", "month")}
    windows["total"] = (columns.since_ms, columns.total_nano)
    sums: list[ColumnElement[int]] = []
    for start_ms, _ in windows.values():
        halves = _split(case((calls.budget_ms >= start_ms, calls.budget_nano), else_=0))
        sums += [
            cast(func.coalesce(func.sum(half), 0), BigInteger).label(f"sum_{len(sums) + number}")
            for number, half in enumerate((halves.high, halves.low))
        ]
    counts = and_(calls.payer == columns.agent, calls.budget_ms >= columns.since_ms)
    counted = [nano for _, nano in windows.values()]
    query = (
        select(columns.owner, columns.agent, *counted, *sums)
        .select_from(budget_table.outerjoin(call_table, counts))
        .where(text(BOUND))
        .group_by(columns.owner, columns.agent)
        .order_by(columns.owner, columns.agent)
    )
    found = 0
    for row in connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query):
        owner, agent, *nanos = row
        of_windows, of_calls = nanos[: len(windows)], nanos[len(windows) :]
        for number, (name, nano) in enumerate(zip(windows, of_windows, strict=True)):
            sum_nano = _join_halves(*of_calls[2 * number : 2 * number + 2])
            if nano != sum_nano:
                yield (
                    f"the budget of {Address(owner)} for {Address(agent)} has counted {nano} in its {name},"
                    f" its calls count {sum_nano}"
                )
                found += 1
        if found >= LINES_MAX:
            return


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
