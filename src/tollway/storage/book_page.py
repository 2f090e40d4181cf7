"""The rows that one transaction of the books may change: locked, changed in memory, written back once.

Locks are taken in one order everywhere: payments by id, then calls by id. Who moves a paid call holds the locks of
the payments that it draws from, so a payment's row and the sum of its calls change together. SQLite's writer is
alone from its BEGIN IMMEDIATE on; there `FOR UPDATE` is not rendered.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, insert, select, update

from tollway.errors import StorageUnavailable
from tollway.identifiers import CallId
from tollway.ledger.call import AUTHORIZED_RAILS, CallState, Payment, PaymentState, is_move_allowed
from tollway.ledger.claims import Debit
from tollway.ledger.parts import Parts, held_after
from tollway.storage.book_rows import parse_payment
from tollway.storage.book_tables import call_table, payment_table, topup_table


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedCall:
    """What the moves of a call look at. `cut`: '', 'cut' by its upstream, or 'repeated' after that."""

    id: CallId
    state: CallState
    epoch: int
    attempts: int
    owner_id: str
    rail: str
    cut: str
    clock_releases: bool
    moved_ms: int
    latency_ms: int | None
    payment_id: int | None
    price_units: int
    parts: Parts

    @property
    def is_unpaid(self) -> bool:
        """An authorisation is to pay it, and has not."""
        return self.payment_id is None and self.rail in AUTHORIZED_RAILS


class BookPage:
    """Belongs to one transaction and dies with it. Not shared between threads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.payments: dict[int, Payment] = {}
        self._taken_before: dict[int, int] = {}
        self._moves: dict[frozenset[str], list[dict[str, object]]] = {}
        self._parts: dict[CallId, tuple[LockedCall, Parts]] = {}

    def lock_payments(self, payment_ids: Iterable[int]) -> None:
        """Reads and locks payments, by ascending id. Call once, with all of them."""
        wanted = sorted(set(payment_ids))
        if not wanted:
            return
        query = select(payment_table).where(payment_table.c.id.in_(wanted)).order_by(payment_table.c.id)
        for row in self._connection.execute(query.with_for_update(key_share=True)):
            self.payments[row.id] = parse_payment(row)
            self._taken_before[row.id] = row.taken_units

    def read_calls(self, call_ids: Collection[CallId]) -> dict[CallId, LockedCall]:
        """Reads calls without locking: to learn which payments to lock."""
        return self._read_calls(_call_query(call_ids)) if call_ids else {}

    def lock_calls(self, call_ids: Collection[CallId]) -> dict[CallId, LockedCall]:
        """Reads and locks calls, by ascending id. The payments that they draw from are locked already."""
        return self._read_calls(_call_query(call_ids).with_for_update()) if call_ids else {}

    def lock_with_payments(
        self, call_ids: Collection[CallId], *, others: Iterable[int] = ()
    ) -> dict[CallId, LockedCall]:
        """Locks calls, and first the payments that they draw from together with `others`."""
        seen = self.read_calls(call_ids)
        self.lock_payments({*others, *(key for call in seen.values() for key in drawn_from(call))})
        return self.lock_calls(list(seen))

    def move(self, call: LockedCall, after: CallState, **columns: object) -> CallState:
        """Moves a locked call and what it holds; returns the state that it really gets (see `held_after`)."""
        assert is_move_allowed(call.state, after), f"{call.state} -> {after}"
        gone = {key for key, payment in self.payments.items() if payment.state is PaymentState.GONE}
        holding = held_after(after, parts=call.parts, price_units=call.price_units, gone=gone)
        self.hold(call, holding.parts)
        self.change(call, state=holding.state.value, **columns)
        return holding.state

    def hold(self, call: LockedCall, parts: Parts) -> None:
        """Lets a call hold `parts` instead of what it held."""
        if parts == call.parts:
            return
        for payment_id in {*call.parts, *parts}:
            added_units = parts.get(payment_id, 0) - call.parts.get(payment_id, 0)
            if added_units:
                payment = self.payments[payment_id]
                self.payments[payment_id] = _with_taken(payment, payment.taken_units + added_units)
        self._parts[call.id] = (call, parts)

    def show(self, call: LockedCall, payment_id: int, **columns: object) -> LockedCall:
        """Lets another payment be the one that was shown for a call; what the call holds stays as it is."""
        shown = replace(call, payment_id=payment_id)
        self._parts[call.id] = (shown, call.parts)
        self.change(shown, payment_id=payment_id, **columns)
        return shown

    def change(self, call: LockedCall, **columns: object) -> None:
        """Writes columns of a call, if it is still in the state and epoch in which it was locked."""
        values = {"at_id": call.id, "at_state": call.state.value, "at_epoch": call.epoch, **columns}
        self._moves.setdefault(frozenset(columns), []).append(values)

    def write(self) -> None:
        """Writes every change: balances, parts, then the moves."""
        self._write_balances()
        self._write_parts()
        for names, rows in self._moves.items():
            statement = update(call_table).where(
                call_table.c.id == bindparam("at_id"),
                call_table.c.state == bindparam("at_state"),
                call_table.c.epoch == bindparam("at_epoch"),
            )
            values: dict[str, object] = {name: bindparam(name) for name in sorted(names)}
            check_count(self._connection.execute(statement.values(values), rows).rowcount, len(rows))

    def write_debits(self, debits: Iterable[Debit]) -> None:
        """Writes what claims took, one change for each payment; assigned from the locked row, because a relative
        update beside a CHECK fails falsely on PostgreSQL."""
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
        values: dict[str, object] = {
            name: bindparam(name) for name in ("taken_units", "calls", "is_plain_ended")
        }
        check_count(self._connection.execute(_AT_BALANCE.values(values), rows).rowcount, len(rows))
        self._taken_before.update({debit.payment_id: debit.taken_units for debit in debits})

    def _write_balances(self) -> None:
        rows = [
            {"at_id": key, "at_taken": before, "taken_units": self.payments[key].taken_units}
            for key, before in self._taken_before.items()
            if self.payments[key].taken_units != before
        ]
        if rows:
            values: dict[str, object] = {"taken_units": bindparam("taken_units")}
            check_count(self._connection.execute(_AT_BALANCE.values(values), rows).rowcount, len(rows))
            self._taken_before = {key: payment.taken_units for key, payment in self.payments.items()}

    def _write_parts(self) -> None:
        if not self._parts:
            return
        self._connection.execute(
            update(call_table)
            .where(call_table.c.id == bindparam("at_id"))
            .values(taken_units=bindparam("units")),
            [
                {"at_id": call.id, "units": parts.get(call.payment_id or 0, 0)}
                for call, parts in self._parts.values()
            ],
        )
        ids = list(self._parts)
        self._connection.execute(delete(topup_table).where(topup_table.c.call_id.in_(ids)))
        rows = [
            row for call, parts in self._parts.values() for row in topup_rows(call.id, call.payment_id, parts)
        ]
        if rows:
            self._connection.execute(insert(topup_table), rows)

    def _read_calls(self, query: Select[Any]) -> dict[CallId, LockedCall]:
        rows = self._connection.execute(query).all()
        short = [row.id for row in rows if row.payment_id is not None and row.taken_units < row.price_units]
        topups: dict[str, dict[int, int]] = {}
        if short:
            columns = topup_table.c
            found = select(columns.call_id, columns.payment_id, columns.units).where(
                columns.call_id.in_(short)
            )
            for call_id, payment_id, units in self._connection.execute(found):
                topups.setdefault(call_id, {})[payment_id] = units
        return {CallId(row.id): _parse_locked(row, topups.get(row.id, {})) for row in rows}


def drawn_from(call: LockedCall) -> frozenset[int]:
    """The payments whose locks a move of this call needs."""
    return frozenset(call.parts) | ({call.payment_id} if call.payment_id is not None else set())


def topup_rows(call_id: CallId, payment_id: int | None, parts: Parts) -> list[dict[str, object]]:
    return [
        {"call_id": call_id, "payment_id": key, "units": units}
        for key, units in parts.items()
        if key != payment_id and units
    ]


_AT_BALANCE = update(payment_table).where(
    payment_table.c.id == bindparam("at_id"), payment_table.c.taken_units == bindparam("at_taken")
)


def _call_query(call_ids: Collection[CallId]) -> Select[Any]:
    columns = call_table.c
    return (
        select(
            columns.id,
            columns.state,
            columns.epoch,
            columns.attempts,
            columns.owner_id,
            columns.rail,
            columns.cut,
            columns.clock_releases,
            columns.moved_ms,
            columns.latency_ms,
            columns.payment_id,
            columns.price_units,
            columns.taken_units,
        )
        .where(columns.id.in_(list(call_ids)))
        .order_by(columns.id)
    )


def _parse_locked(row: Any, topups: Mapping[int, int]) -> LockedCall:
    parts = dict(topups)
    if row.payment_id is not None and row.taken_units:
        parts[row.payment_id] = row.taken_units
    return LockedCall(
        id=CallId(row.id),
        state=CallState(row.state),
        epoch=row.epoch,
        attempts=row.attempts,
        owner_id=row.owner_id,
        rail=row.rail,
        cut=row.cut,
        clock_releases=row.clock_releases,
        moved_ms=row.moved_ms,
        latency_ms=row.latency_ms,
        payment_id=row.payment_id,
        price_units=row.price_units,
        parts=parts,
    )


def _with_taken(payment: Payment, taken_units: int) -> Payment:
    value = taken_units if payment.state is PaymentState.GONE else payment.value_units
    return replace(payment, taken_units=taken_units, value_units=value)


def check_count(found: int, expected: int) -> None:
    """Where the driver counts rows (-1: it does not), a change that missed its row rolls the transaction back."""
    if found not in (-1, expected):
        raise StorageUnavailable("a locked row was changed by somebody else")
