"""The same history on both machines, and what differs."""

import asyncio
from pathlib import Path
from typing import Any

from tests.simulation.fake_books import FakeMachine
from tests.simulation.history import History
from tests.simulation.run import at_once
from tests.simulation.sqlite_books import SqliteMachine
from tollway.testing.book_samples import NOW_MS

SHOWN = 12


def compare(seed: int, number: int, *, template: Path, folder: Path) -> str | None:
    """None when the real books told the same story as the twin; else its last lines, and where the two part."""
    twin = _told_by_twin(seed, number)
    real = asyncio.run(_told_by_sqlite(seed, number, template=template, folder=folder))
    if twin == real:
        return None
    at = next((at for at, (one, two) in enumerate(zip(twin, real, strict=False)) if one != two), len(twin))
    before = "\n".join(twin[max(0, at - SHOWN) : at])
    return f"{before}\ntwin:   {twin[at : at + 1]}\nsqlite: {real[at : at + 1]}"


def _told_by_twin(seed: int, number: int) -> list[str]:
    history = History(seed, number, is_alone=True, tells=True)
    machine = FakeMachine(history.house, now_ms=NOW_MS)
    at_once(history.play(machine))
    return [*history.story.told, *at_once(_describe(history, machine))]


async def _told_by_sqlite(seed: int, number: int, *, template: Path, folder: Path) -> list[str]:
    history = History(seed, number, is_alone=True, tells=True)
    path = folder / "books.sqlite3"
    machine = SqliteMachine(history.house, path, template=template, now_ms=NOW_MS)
    try:
        await history.play(machine)
        return [*history.story.told, *await _describe(history, machine)]
    finally:
        await machine.close()


async def _describe(history: History, machine: Any) -> list[str]:
    """Everything that the books show in the end."""
    gateway = history.last_gateway
    report = await gateway.audit()
    lines = [f"audit {report.payments} {report.calls} {report.wrong} {sorted(report.held_calls)}"]
    for payer in history.truth.balances:
        payments = await gateway.payments_of(payer, limit=100, offset=0)
        lines += [str(one) for one in sorted(payments, key=lambda one: one.id)]
        lines += [str(one) for one in await gateway.debts(payer)]
    for call_id in sorted(history.truth.facts):
        lines.append(f"{call_id} {await gateway.find_call(call_id)}")
    for request in history.requests:
        if request.authorization is not None:
            lines.append(str(await gateway.find_authorized(request.authorization.key)))
    return lines
