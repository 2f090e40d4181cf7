"""The rows that one transaction of the ledger may change: locked, changed in memory, and written once by `write`. The debits of claims come
after that (`write_debits`).

Every transaction takes its locks in one order: payments by id, calls by id, debts by account, budgets by wallet. A transaction that moves a paid call holds the locks
of the payments of that call, so the row of a payment and the sum of its calls change together. The payment of a channel is locked with each of its calls, also with
one whose deposit is not concluded, and stands for the row of the channel. SQLite has one writer, which is exclusive
from BEGIN IMMEDIATE on; there `FOR UPDATE` is not rendered.

Every end of a call of a channel is a move here: it announces the charge and ends the reservation (`storage.ledger.locked_channels`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    Update,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.claims import CreditAccount, Debit, credit_account_of
from tollway.ledger.records import (
    SETTLED_RAILS,
    CallState,
    Parts,
    Payment,
    PaymentState,
    Usage,
    debits_after,
    is_charged_by_provider,
    is_move_allowed,
    trim_parts,
)
from tollway.ledger.sales import HOUR_MS, SUM_STATES, floor_to, is_hour_unmarked
from tollway.storage.engine.outage import RowsChanged
from tollway.storage.engine.statements import Prepared, Rows, Within
from tollway.storage.ledger.budget_rows import GivenBack, give_back, lock_budgets
from tollway.storage.ledger.ledger_tables import (
    PAYMENT_COLUMNS,
    account_debt_table,
    call_table,
    channel_table,
    parse_payment_row,
    payment_table,
    topup_table,
)
from tollway.storage.ledger.locked_channels import LockedChannels
from tollway.storage.ledger.sales_tables import sales_mark_table
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog, write_events
from tollway.webhooks.events import EventType, NewEvent, call_event_of


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedCall:
    """A locked call: the columns that its moves read. `epoch`: the number of its run, and `owner_id`: the gateway of that run. `cut`: '' for a whole
    response, 'cut' when its upstream broke off, 'repeated' when it was sent again after that. `clock_releases`: the end of the hold releases it.
    `quantities`: empty for a metered call without a price. `parts`: the units that it holds, by payment. `channel_key`: of the channel whose voucher pays it.
    `budget_nano`, `budget_ms`: what it counts in the budget of its payer, and when (`budget_rows`)."""

    id: CallId
    provider: Address
    payer: Address | None
    state: CallState
    epoch: int
    attempts: int
    owner_id: str
    rail: str
    cut: str
    clock_releases: bool
    created_ms: int
    moved_ms: int
    latency_ms: int | None
    upstream_status: int | None
    payment_id: int | None
    price_units: int
    actual_units: int | None
    quantities: str | None
    parts: Parts
    channel_key: int | None = None
    budget_nano: int | None = None
    budget_ms: int | None = None

    @property
    def due_units(self) -> int:
        """What the call owes in a state that takes its price."""
        return self.price_units if self.actual_units is None else self.actual_units

    @property
    def is_unmeasured(self) -> bool:
        """The call is metered, and its price is not known yet."""
        return self.quantities == ""

    @property
    def is_unpaid(self) -> bool:
        return self.payment_id is None and self.rail in SETTLED_RAILS


class LockedRows:
    """The locked rows of one transaction, for one thread. A broken rule of its caller is an `AssertionError`, which rolls the transaction back.

    The debt of a credit account is a kept sum: the unpaid part of its `reorged` calls. It changes with the calls, and its row is locked last.

    The move of a call from one stored sum to another writes a mark for the hour of the call (`ledger.sales`). `shared_ms`: the shared time of a batch,
    whose moves write no mark while the hour cannot be closed yet; None: every move writes its mark. `events`: makes the webhook events of the moves.
    """

    def __init__(
        self, connection: Connection, *, shared_ms: int | None = None, events: EventLog = NO_EVENTS
    ) -> None:
        self._connection = connection
        self._shared_ms = shared_ms
        self._log = events
        self._events: list[NewEvent] = []
        self._marked_hours: dict[int, int] = {}
        self.payments: dict[int, Payment] = {}
        self._taken_before: dict[int, int] = {}
        self._channels: LockedChannels | None = None
        self._plain_ended: set[int] = set()
        self._moves: dict[frozenset[str], list[dict[str, object]]] = {}
        self._parts: dict[CallId, tuple[LockedCall, Parts]] = {}
        self._owed: dict[CreditAccount, int] = {}
        self._given_back: list[GivenBack] = []
        self._is_written = False

    def lock_payments(self, payment_ids: Iterable[int]) -> None:
        """Reads and locks payments, by ascending id. Call it once, with all payments."""
        wanted = sorted(set(payment_ids))
        if wanted:
            self._remember_payments(_LOCK_PAYMENTS.fetch(self._connection, payment_ids=wanted))

    def read_calls(self, call_ids: Collection[CallId]) -> dict[CallId, LockedCall]:
        """Reads calls without locks, to find the payments to lock."""
        return self._fetch_calls(_READ_CALLS, call_ids)

    def lock_calls(self, call_ids: Collection[CallId]) -> dict[CallId, LockedCall]:
        """Reads and locks calls, by ascending id. Their payments are locked before."""
        return self._fetch_calls(_LOCK_CALLS, call_ids)

    def lock_with_payments(
        self, call_ids: Collection[CallId], *, others: Iterable[int] = ()
    ) -> dict[CallId, LockedCall]:
        """Locks the payments of the calls together with the payments `others`, then the calls. Raises `RowsChanged`: the units of a call moved to
        another payment during the wait for the locks."""
        if not call_ids:
            self.lock_payments(others)
            return {}
        # On SQLite no other connection writes, so one read is enough.
        if self._connection.dialect.name == "sqlite":
            calls = self.read_calls(call_ids)
            self._load_channels(calls)
            of_channels = () if self._channels is None else self._channels.payment_ids()
            of_calls = (key for call in calls.values() for key in payment_ids_of(call))
            self.lock_payments({*others, *of_calls, *of_channels})
            return calls
        found = _LOCK_CALL_PAYMENTS.fetch(self._connection, payment_ids=list(others), call_ids=list(call_ids))
        self._remember_payments(found)
        calls = self.lock_calls(call_ids)
        # A lock of these payments now would break the order of the locks, so the transaction begins again.
        if any(not payment_ids_of(call) <= self.payments.keys() for call in calls.values()):
            raise RowsChanged("the units of a call have moved to another payment")
        self._load_channels(calls)
        return calls

    def _load_channels(self, calls: Mapping[CallId, LockedCall]) -> None:
        keys = [call.channel_key for call in calls.values() if call.channel_key is not None]
        if keys:
            self.channels.load(keys)

    @property
    def channels(self) -> LockedChannels:
        if self._channels is None:
            self._channels = LockedChannels(self._connection, self.payments)
        return self._channels

    def _remember_payments(self, rows: Rows) -> None:
        for row in rows:
            payment = parse_payment_row(row)
            self.payments[payment.id] = payment
            self._taken_before[payment.id] = payment.taken_units

    def move(
        self,
        call: LockedCall,
        after: CallState,
        usage: Usage | None = None,
        /,
        *,
        moved_ms: int,
        **columns: object,
    ) -> CallState:
        """Moves a locked call and its units. Returns the resulting state, which may differ from `after` (see `debits_after`). `usage`: the price of a
        metered call, where the move to `consumed` knows it."""
        assert is_move_allowed(call.state, after), f"{call.state} -> {after}"
        parts, due_units = call.parts, call.due_units
        if usage is not None:
            parts, due_units = self._trim(call, usage), usage.actual_units
            columns |= usage_columns(usage)
        if call.channel_key is not None and after is CallState.CONSUMED:
            parts = self.channels.cover(call.channel_key, parts, held_units=sum(call.parts.values()))
        gone = [key for key in parts if self.payments[key].state is PaymentState.GONE]
        holding = debits_after(after, parts=parts, price_units=due_units, gone=gone)
        self.set_parts(call, holding.parts)
        if call.channel_key is not None:
            lacking_units = due_units - sum(holding.parts.values())
            self.channels.move_call(call.channel_key, call.id, holding.state, lacking_units=lacking_units)
        # A deposit's call that knew its price before the deposit settled counts its maximum until now.
        is_priced = usage is not None or (call.state is CallState.SETTLING and call.actual_units is not None)
        if call.budget_nano and (is_priced or holding.state is CallState.RELEASED):
            left_units = 0 if holding.state is CallState.RELEASED else due_units
            columns |= self._count_less(call, left_units)
        self.change(call, state=holding.state.value, moved_ms=moved_ms, **columns)
        if not self._log.is_idle and not (call.is_unmeasured and usage is None and after in _CHARGED):
            # Without a price the charge before this run made no event.
            cut = call.cut if usage is None else ""
            self._note_move(call, holding.state, cut=cut, at_ms=moved_ms)
        return holding.state

    def measure(self, call: LockedCall, usage: Usage, *, moved_ms: int, **columns: object) -> None:
        """Writes the price of a charged metered call, and gives the rest of its maximum back. The debt of a `reorged` call falls by the same amount; it
        is `consumed` again where what it holds covers its price."""
        assert call.is_unmeasured, "a price is written once"
        assert call.state in _CHARGED, call.state
        parts = self._trim(call, usage)
        self.set_parts(call, parts)
        if call.state is CallState.REORGED:
            self._add_debt(call, parts, usage.actual_units - call.price_units)
        is_paid = sum(parts.values()) >= usage.actual_units
        after = CallState.CONSUMED if is_paid else CallState.REORGED
        if after is not call.state:
            columns |= {"state": after.value, "moved_ms": moved_ms}
        if call.channel_key is not None:
            self.channels.put(self.channels.find(call.channel_key))
        self._mark_hour(call, moved_ms)
        if call.budget_nano:
            columns |= self._count_less(call, usage.actual_units)
        self.change(call, **usage_columns(usage), **columns)
        if not self._log.is_idle:
            self._events += self._log.make_events(
                EventType.CALL_CHARGED,
                (call.provider, call.payer),
                subject=call.id,
                state=CallState.CONSUMED.value,
                at_ms=moved_ms,
            )

    def _count_less(self, call: LockedCall, left_units: int) -> dict[str, object]:
        """Gives a part of what a call counts in its payer's budget back. `left_units`: what it costs now. Returns the column of the call to write."""
        assert call.payer is not None
        assert call.budget_nano is not None
        assert call.budget_ms is not None
        left_nano = call.budget_nano // call.price_units * left_units
        if left_nano < call.budget_nano:
            nano = call.budget_nano - left_nano
            self._given_back.append(GivenBack(agent=call.payer, at_ms=call.budget_ms, nano=nano))
        return {"budget_nano": left_nano}

    def _trim(self, call: LockedCall, usage: Usage) -> Parts:
        """The parts that a price leaves. The newest payment that helped gets its units back first, the payment of the proof last."""
        helped = [key for key in call.parts if key != call.payment_id]
        helped.sort(key=lambda key: (self.payments[key].block_number, key), reverse=True)
        own = [] if call.payment_id is None else [call.payment_id]
        return trim_parts(call.parts, usage.actual_units, newest_first=[*helped, *own])

    def _note_move(self, call: LockedCall, after: CallState, *, cut: str, at_ms: int) -> None:
        # The provider's decision has moved the call from `unknown` to `settling`, so its hold ends only now.
        before = CallState.UNKNOWN if is_charged_by_provider(call.state, call.upstream_status) else call.state
        kind = call_event_of(before, after, rail=call.rail, cut=cut, attempts=call.attempts)
        if kind is not None:
            self._events += self._log.make_events(
                kind, (call.provider, call.payer), subject=call.id, state=after.value, at_ms=at_ms
            )

    def note_payment(self, kind: EventType, payment: Payment, *, units: int, at_ms: int) -> None:
        """Makes the events of a payment for its payee and its payer; `write` writes them. `units`: its value."""
        self._events += self._log.make_events(
            kind,
            (payment.payee, payment.payer),
            subject=str(payment.id),
            state=payment.state.value,
            at_ms=at_ms,
            units=units,
        )

    def set_parts(self, call: LockedCall, parts: Parts) -> None:
        if parts == call.parts:
            return
        for payment_id in {*call.parts, *parts}:
            added_units = parts.get(payment_id, 0) - call.parts.get(payment_id, 0)
            if added_units:
                payment = self.payments[payment_id]
                taken_units = payment.taken_units + added_units
                # As `parse_payment_row`: nothing remains to spend of a gone payment.
                value_units = taken_units if payment.state is PaymentState.GONE else payment.value_units
                self.payments[payment_id] = replace(payment, taken_units=taken_units, value_units=value_units)
        if call.state is CallState.REORGED:
            self._add_debt(call, parts, sum(call.parts.values()) - sum(parts.values()))
        self._parts[call.id] = (call, parts)

    def _add_debt(self, call: LockedCall, parts: Parts, units: int) -> None:
        """Adds to the debt of the call's account. All payments of a call are of that account, and the callers lock at least one of them. What a call of
        a channel lacks is no debt: the next balance of the channel pays it."""
        if units and call.channel_key is not None:
            self.channels.add_lacking(call.channel_key, units)
        elif units:
            locked = next(key for key in (*call.parts, *parts, call.payment_id) if key in self.payments)
            account = credit_account_of(self.payments[locked])
            self._owed[account] = self._owed.get(account, 0) + units

    def set_payment(self, call: LockedCall, payment_id: int, *, moved_ms: int) -> LockedCall:
        """Makes another payment the one that the call's proof names. The call keeps its state and its units. Call it before `set_parts`, whose parts it
        would replace."""
        changed = replace(call, payment_id=payment_id)
        self._parts[call.id] = (changed, call.parts)
        self.change(changed, payment_id=payment_id, moved_ms=moved_ms)
        return changed

    def end_plain(self, payment_id: int) -> None:
        """Ends the use of plain signatures for a payment: a bound signature was used (`ledger.records.Payment`)."""
        payment = self.payments[payment_id]
        if not payment.is_plain_ended:
            self.payments[payment_id] = replace(payment, is_plain_ended=True)
            self._plain_ended.add(payment_id)

    def change(self, call: LockedCall, **columns: object) -> None:
        """Writes columns of a call that is still in the state and epoch of its lock. A change of the state comes with its `moved_ms`. A call has one
        change in a transaction: `write` groups them by their columns, so a second one could miss the row."""
        if "state" in columns:
            after = CallState(str(columns["state"]))
            if SUM_STATES[call.state] != SUM_STATES[after]:
                moved_ms = columns["moved_ms"]
                assert isinstance(moved_ms, int)
                self._mark_hour(call, moved_ms)
            if after is CallState.REORGED and call.state is not CallState.REORGED:
                _, parts = self._parts.get(call.id, (call, call.parts))
                actual_units = columns.get("actual_units", call.actual_units)
                due_units = call.price_units if actual_units is None else actual_units
                assert isinstance(due_units, int)
                self._add_debt(call, parts, due_units - sum(parts.values()))
        values = {"at_id": call.id, "at_state": call.state.value, "at_epoch": call.epoch, **columns}
        self._moves.setdefault(frozenset(columns), []).append(values)

    def write(self, *, payers: Collection[Address] = ()) -> None:
        """Writes all changes, once: balances, ends of plain signatures, units of calls, then moves, debts, budgets, the marks of the hours, and events.

        `payers`: of the claims that come after. Where a budget changes, theirs are locked with it, because budgets are locked once, by ascending wallet."""
        assert not self._is_written, "the changes of a transaction are written once, before its debits"
        self._is_written = True
        if self._taken_before:
            self._write_balances()
        if self._plain_ended:
            _END_PLAIN.run(self._connection, [{"at_id": key} for key in sorted(self._plain_ended)])
        if self._parts:
            self._write_parts()
        for names, rows in self._moves.items():
            check_count(_update_call(names).run(self._connection, rows), len(rows))
        if self._channels is not None:
            self._channels.write()
        if self._owed:
            self._write_debts()
        if self._given_back:
            if payers:
                lock_budgets(self._connection, {*payers, *(one.agent for one in self._given_back)})
            give_back(self._connection, self._given_back)
        if self._marked_hours:
            write_marks(self._connection, self._marked_hours)
        if self._events:
            write_events(self._connection, self._events)

    def _mark_hour(self, call: LockedCall, moved_ms: int) -> None:
        is_open = self._shared_ms is not None and is_hour_unmarked(call.created_ms, now_ms=self._shared_ms)
        if not is_open:
            self._marked_hours[floor_to(HOUR_MS, call.created_ms)] = moved_ms

    def write_debits(self, debits: Iterable[Debit]) -> None:
        """Writes the debits of claims, one change for each payment, after `write`: `payments` has the balances of before. Values are assigned from the
        locked row and not added: PostgreSQL applies a CHECK to a sum before it finds that the row has changed."""
        self._is_written = True
        rows = [
            {
                "at_id": debit.payment_id,
                "at_taken": self._taken_before[debit.payment_id],
                "taken_units": debit.taken_units,
                "calls": debit.calls,
                "is_plain_ended": debit.is_plain_ended,
            }
            for debit in debits
        ]
        if not rows:
            return
        check_count(_DEBIT.run(self._connection, rows), len(rows))

    def _write_balances(self) -> None:
        worth = () if self._channels is None else self._channels.worth
        rows = [
            {"at_id": key, "at_taken": before, "taken_units": self.payments[key].taken_units}
            for key, before in self._taken_before.items()
            if self.payments[key].taken_units != before and key not in worth
        ]
        if rows:
            check_count(_SET_PAYMENT_TAKEN.run(self._connection, rows), len(rows))
        if worth:
            self._write_values(sorted(worth))
        if rows or worth:
            self._taken_before = {key: payment.taken_units for key, payment in self.payments.items()}

    def _write_values(self, payment_ids: Iterable[int]) -> None:
        rows = [
            {
                "at_id": key,
                "at_taken": self._taken_before[key],
                "taken_units": self.payments[key].taken_units,
                "value_units": self.payments[key].value_units,
            }
            for key in payment_ids
        ]
        check_count(_SET_PAYMENT_BALANCE.run(self._connection, rows), len(rows))

    def _write_debts(self) -> None:
        rows = [
            {**account._asdict(), "added_units": units}
            for account, units in sorted(self._owed.items())
            if units
        ]
        if rows:
            _ADD_DEBT.run(self._connection, rows)

    def _write_parts(self) -> None:
        taken = [
            {"at_id": call.id, "units": parts.get(call.payment_id or 0, 0)}  # no payment has the id 0
            for call, parts in self._parts.values()
        ]
        _SET_CALL_TAKEN.run(self._connection, taken)
        # A call that held nothing has no further payments.
        held = [call.id for call, _ in self._parts.values() if call.parts]
        if held:
            _DELETE_TOPUPS.run(self._connection, [{"at_id": call_id} for call_id in held])
        rows = [
            row for call, parts in self._parts.values() for row in topup_rows(call.id, call.payment_id, parts)
        ]
        if rows:
            ADD_TOPUPS.run(self._connection, rows)

    def _fetch_calls(self, statement: Prepared, call_ids: Collection[CallId]) -> dict[CallId, LockedCall]:
        if not call_ids:
            return {}
        rows = statement.fetch(self._connection, call_ids=list(call_ids))
        underpaid_ids = [
            row[_ID]
            for row in rows
            if row[_PAYMENT_ID] is not None
            and row[_TAKEN] < (row[_PRICE] if row[_ACTUAL] is None else row[_ACTUAL])
        ]
        topups: dict[str, dict[int, int]] = {}
        if underpaid_ids:
            for call_id, payment_id, units in _READ_TOPUPS.fetch(self._connection, call_ids=underpaid_ids):
                topups.setdefault(call_id, {})[payment_id] = units
        return {row[_ID]: _parse_locked(row, topups.get(row[_ID])) for row in rows}


def write_marks(connection: Connection, hours: Mapping[int, int]) -> None:
    """Marks hours whose calls have moved, so that the stored sums of closed hours are computed again. `hours`: the start of each, and the moment of the move; not empty. Call it after the
    rows of the calls are written, in the same transaction."""
    _ADD_MARKS.run(
        connection, [{"hour_ms": hour_ms, "marked_ms": marked_ms} for hour_ms, marked_ms in hours.items()]
    )


_CHARGED = (CallState.CONSUMED, CallState.REORGED)


def usage_columns(usage: Usage) -> dict[str, object]:
    return {"actual_units": usage.actual_units, "quantities": usage.quantities}


def payment_ids_of(call: LockedCall) -> frozenset[int]:
    return frozenset(call.parts) | ({call.payment_id} if call.payment_id is not None else set())


def topup_rows(call_id: CallId, payment_id: int | None, parts: Parts) -> list[dict[str, object]]:
    return [
        {"call_id": call_id, "payment_id": key, "units": units}
        for key, units in parts.items()
        if key != payment_id and units
    ]


_PAYMENTS = select(*(payment_table.c[name] for name in PAYMENT_COLUMNS)).order_by(payment_table.c.id)
_LOCK_PAYMENTS = Prepared(
    _PAYMENTS.where(Within(payment_table.c.id, "payment_ids")).with_for_update(key_share=True)
)


def _select_call_payments() -> Select[Any]:
    """The query that locks the payments of calls. PostgreSQL only. It looks up the ids of the payments once, before it waits for its first lock, so it
    misses a payment that a call gets meanwhile (`LockedRows.lock_with_payments`)."""
    given = select(func.unnest(bindparam("payment_ids", type_=ARRAY(BigInteger))).label("id"))
    # A call with a deposit has no payment yet, but a channel.
    of_channel = (
        select(channel_table.c.payment_id)
        .where(channel_table.c.key == call_table.c.channel_id)
        .correlate(call_table)
        .scalar_subquery()
    )
    of_proof = select(func.coalesce(call_table.c.payment_id, of_channel)).where(
        Within(call_table.c.id, "call_ids")
    )
    of_topups = select(topup_table.c.payment_id).where(Within(topup_table.c.call_id, "call_ids"))
    found = given.union(of_proof, of_topups).cte("found").prefix_with("MATERIALIZED")
    return _PAYMENTS.where(payment_table.c.id.in_(select(found.c.id))).with_for_update(
        key_share=True, of=payment_table
    )


_LOCK_CALL_PAYMENTS = Prepared(_select_call_payments())

_CALL_COLUMNS = (
    "id",
    "state",
    "epoch",
    "attempts",
    "owner_id",
    "rail",
    "cut",
    "clock_releases",
    "created_ms",
    "moved_ms",
    "latency_ms",
    "upstream_status",
    "payment_id",
    "price_units",
    "actual_units",
    "quantities",
    "taken_units",
    "provider",
    "payer",
    "channel_id",
    "budget_nano",
    "budget_ms",
)
_ID, _PAYMENT_ID, _PRICE, _ACTUAL, _TAKEN = (
    _CALL_COLUMNS.index(name) for name in ("id", "payment_id", "price_units", "actual_units", "taken_units")
)
_CALLS = (
    select(*(call_table.c[name] for name in _CALL_COLUMNS))
    .where(Within(call_table.c.id, "call_ids"))
    .order_by(call_table.c.id)
)
_READ_CALLS = Prepared(_CALLS)
_LOCK_CALLS = Prepared(_CALLS.with_for_update())
_READ_TOPUPS = Prepared(
    select(topup_table.c.call_id, topup_table.c.payment_id, topup_table.c.units).where(
        Within(topup_table.c.call_id, "call_ids")
    )
)
ADD_TOPUPS = Prepared(
    insert(topup_table).values({name: bindparam(name) for name in ("call_id", "payment_id", "units")})
)
_DELETE_TOPUPS = Prepared(delete(topup_table).where(topup_table.c.call_id == bindparam("at_id")))

_ADD_MARKS = Prepared(
    insert(sales_mark_table).values({name: bindparam(name) for name in ("hour_ms", "marked_ms")})
)

_ADD_DEBT = Prepared(
    text(
        "INSERT INTO account_debt AS d (payer, payee, asset, chain_id, units)"
        " VALUES (:payer, :payee, :asset, :chain_id, :added_units)"
        " ON CONFLICT (payer, payee, asset, chain_id) DO UPDATE SET units = d.units + excluded.units"
    ).bindparams(
        *(bindparam(name, type_=account_debt_table.c[name].type) for name in CreditAccount._fields),
        bindparam("added_units", type_=BigInteger),
    )
)

# The next statement and `_END_PLAIN` find locked rows by their ids alone, so their counts are not checked.
_SET_CALL_TAKEN = Prepared(
    update(call_table).where(call_table.c.id == bindparam("at_id")).values(taken_units=bindparam("units"))
)


def _update_payment(*names: str) -> Update:
    """Writes columns of a payment whose taken units are those of its lock."""
    return (
        update(payment_table)
        .where(payment_table.c.id == bindparam("at_id"), payment_table.c.taken_units == bindparam("at_taken"))
        .values({name: bindparam(name) for name in names})
    )


_END_PLAIN = Prepared(
    update(payment_table).where(payment_table.c.id == bindparam("at_id")).values(is_plain_ended=true())
)
_SET_PAYMENT_TAKEN = Prepared(_update_payment("taken_units"))
_SET_PAYMENT_BALANCE = Prepared(_update_payment("taken_units", "value_units"))
_DEBIT = Prepared(_update_payment("taken_units", "calls", "is_plain_ended"))


@cache
def _update_call(names: frozenset[str]) -> Prepared:
    """The statement that writes these columns of a call. The cache has one entry for each set of columns in the code."""
    locked = update(call_table).where(
        call_table.c.id == bindparam("at_id"),
        call_table.c.state == bindparam("at_state"),
        call_table.c.epoch == bindparam("at_epoch"),
    )
    return Prepared(locked.values({name: bindparam(name) for name in sorted(names)}))


def _parse_locked(row: Sequence[Any], topups: Mapping[int, int] | None) -> LockedCall:
    (
        call_id,
        state,
        epoch,
        attempts,
        owner_id,
        rail,
        cut,
        clock_releases,
        created_ms,
        moved_ms,
        latency_ms,
        upstream_status,
        payment_id,
        price_units,
        actual_units,
        quantities,
        taken_units,
        provider,
        payer,
        channel_key,
        budget_nano,
        budget_ms,
    ) = row
    parts = dict(topups) if topups else {}
    if payment_id is not None and taken_units:
        parts[payment_id] = taken_units
    return LockedCall(
        id=call_id,
        provider=Address(provider),
        payer=None if payer is None else Address(payer),
        state=CallState(state),
        epoch=epoch,
        attempts=attempts,
        owner_id=owner_id,
        rail=rail,
        cut=cut,
        clock_releases=bool(clock_releases),
        created_ms=created_ms,
        moved_ms=moved_ms,
        latency_ms=latency_ms,
        upstream_status=upstream_status,
        payment_id=payment_id,
        price_units=price_units,
        actual_units=actual_units,
        quantities=quantities,
        parts=parts,
        channel_key=channel_key,
        budget_nano=budget_nano,
        budget_ms=budget_ms,
    )


def check_count(found: int, expected: int) -> None:
    """Raises `StorageUnavailable`, which rolls the transaction back, when an update did not find its row: a defect, because the row is locked. Nothing
    is checked at -1, where the driver does not count."""
    if found not in (-1, expected):
        raise StorageUnavailable("an update did not find its locked row")
