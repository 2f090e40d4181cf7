"""Runs the same history on both machines and compares the results."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from tests.kit.ledger_records import NOW_MS
from tests.long.simulation.fake_ledger import FakeMachine
from tests.long.simulation.history import History
from tests.long.simulation.run import at_once
from tests.long.simulation.sqlite_ledger import SqliteDisk, SqliteMachine, opened_disk
from tollway.ledger.history import PaymentQuery
from tollway.ledger.records import CallRecord

SHOWN = 12
FOUND_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first difference between the real ledger and the model, with the events before it."""

    number: int
    before: str
    twin: str
    sqlite: str


async def compare(seed: int, numbers: Iterable[int], *, folder: Path, **options: Any) -> list[Difference]:
    """The first differences; empty when the machines agree."""
    found: list[Difference] = []
    async with opened_disk(folder) as disk:
        for number in numbers:
            try:
                twin = _told_by_twin(seed, number, **options)
                real = await _told_by_sqlite(seed, number, disk, **options)
            except Exception as exc:
                exc.add_note(f"seed {seed}, history {number}, one gateway alone")
                raise
            if twin != real:
                found.append(_differ(number, twin, real))
            if len(found) == FOUND_MAX:
                break
    return found


def _differ(number: int, twin: list[str], real: list[str]) -> Difference:
    pairs = enumerate(zip_longest(twin, real, fillvalue=""))
    at, (one, two) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return Difference(number=number, before="\n".join(twin[max(0, at - SHOWN) : at]), twin=one, sqlite=two)


def _told_by_twin(seed: int, number: int, **options: Any) -> list[str]:
    history = History(seed, number, is_alone=True, tells=True, **options)
    machine = FakeMachine(history.context, now_ms=NOW_MS)
    at_once(history.play(machine))
    return [*history.story.told, *at_once(_describe(history))]


async def _told_by_sqlite(seed: int, number: int, disk: SqliteDisk, **options: Any) -> list[str]:
    history = History(seed, number, is_alone=True, tells=True, **options)
    machine = SqliteMachine(history.context, disk, now_ms=NOW_MS)
    try:
        await history.play(machine)
        return [*history.story.told, *await _describe(history)]
    finally:
        await machine.close()


async def _describe(history: History) -> list[str]:
    """The complete state of the ledger at the end."""
    gateway = history.last_gateway
    report = await gateway.audit()
    lines = [f"audit {report.payments} {report.calls} {report.wrong} {sorted(report.held_calls)}"]
    for payer in history.truth.balances:
        listed = await gateway.read_payments(PaymentQuery(wallet=payer, limit=100))
        payments = [one.payment for one in listed]
        lines += [str(one) for one in sorted(payments, key=lambda one: one.id)]
        lines += [str(one) for one in await gateway.debts(payer)]
        lines.append(str(await gateway.find_binding(payer)))
    for call_id in sorted(history.truth.facts):
        lines.append(f"{call_id} {_without_bytes(await gateway.find_call(call_id))}")
    for request in history.requests:
        if request.authorization is not None:
            lines.append(str(await gateway.find_authorized_call(request.authorization.key)))
    return lines


def _without_bytes(record: CallRecord | None) -> CallRecord | None:
    """While a call runs again, the model forgets the byte count of its earlier run, and SQL keeps it."""
    return None if record is None else replace(record, request_bytes=None, response_bytes=None)
