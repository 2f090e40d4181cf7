"""The present state of a process of the tests and its database, as text: printed when a test has waited in vain.

`install` runs in the process of a gateway, before its event loop; the other functions run in that of the test. A dump
changes nothing in the process.
"""

import asyncio
import contextlib
import faulthandler
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import asyncpg

SHOW_THREADS, SHOW_TASKS = signal.SIGUSR2, signal.SIGUSR1
"""The former is answered even where the main thread hangs in C code; the latter needs a main thread that runs Python."""
END = "---- end of tasks"
ANSWER_DEADLINE_S = 5.0
POLL_S = 0.02
LOG_CHARS_MAX = 60_000
_SESSIONS = """
    SELECT pid, state, wait_event_type, wait_event, pg_blocking_pids(pid) AS blocked_by, now() - xact_start AS in_transaction,
        now() - state_change AS in_state, left(query, 300) AS query
    FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid
"""
_LOCKS = """
    SELECT pid, locktype, relation::regclass::text AS relation, mode, granted, transactionid::text AS transaction,
        classid, objid, now() - waitstart AS waiting
    FROM pg_locks
    WHERE pid <> pg_backend_pid() AND (NOT granted OR locktype IN ('advisory', 'transactionid', 'tuple'))
    ORDER BY pid, granted
"""


# ---- In the dumped process.


def install() -> None:
    """From now on the two signals write to standard error."""
    faulthandler.enable(sys.stderr)
    faulthandler.register(SHOW_THREADS, file=sys.stderr, all_threads=True)
    signal.signal(SHOW_TASKS, _show_tasks)


def _show_tasks(_number: int, frame: FrameType | None) -> None:
    lines = ["---- main thread\n", *traceback.format_stack(frame)]
    with contextlib.suppress(RuntimeError):  # no loop runs
        for task in sorted(asyncio.all_tasks(), key=lambda task: task.get_name()):
            lines.append(f"---- task {task.get_name()}\n")
            lines.extend(_describe_awaited(task.get_coro()))
    sys.stderr.write("".join(lines) + END + "\n")
    sys.stderr.flush()


def _describe_awaited(awaited: Any) -> list[str]:
    """One line a coroutine, outermost first; last what it waits for."""
    lines: list[str] = []
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "ag_frame", None)
        frame = frame or getattr(awaited, "gi_frame", None)
        if frame is None:
            return [*lines, f"  {awaited!r:.300}\n"]
        lines.append(f"  {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}\n")
        awaited = (
            getattr(awaited, "cr_await", None)
            or getattr(awaited, "ag_await", None)
            or getattr(awaited, "gi_yieldfrom", None)
        )
    return lines


# ---- In the test's process.


async def dump_gateway(gateway: Any) -> str:
    """All threads and all tasks of a gateway that the zygote has forked, and the end of its log before that."""
    if not gateway.is_running:
        return f"---- {gateway.base_url} has ended: {gateway.process.returncode}\n{gateway.read_log()[-LOG_CHARS_MAX:]}"
    before = len(gateway.read_log())
    state = ""
    with contextlib.suppress(OSError):  # it ends meanwhile
        state = Path(f"/proc/{gateway.pid}/stat").read_text()
    for number in (SHOW_THREADS, SHOW_TASKS):
        gateway.process.send_signal(number)
    deadline = time.monotonic() + ANSWER_DEADLINE_S
    while END not in gateway.read_log()[before:] and time.monotonic() < deadline:
        await asyncio.sleep(POLL_S)
    log = gateway.read_log()
    return (
        f"---- log of {gateway.base_url}\n{log[max(0, before - LOG_CHARS_MAX) : before]}\n"
        f"---- /proc/{gateway.pid}/stat {state}{log[before:]}"
    )


async def dump_postgres(database_url: str) -> str:
    """The activity of each session of that database, and the sessions that wait for others."""
    connection = await asyncpg.connect(database_url, timeout=ANSWER_DEADLINE_S)
    try:
        lines: list[str] = []
        for name, query in (("sessions", _SESSIONS), ("locks", _LOCKS)):
            lines += [f"---- {name}", *(str(dict(row)) for row in await connection.fetch(query))]
        return "\n".join(lines)
    finally:
        await connection.close()
