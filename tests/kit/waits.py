"""Waits of a test for what another task, thread, process or session does. Each has a deadline."""

import asyncio
import contextlib
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import text

from tollway.storage.engine.database import Database

DEADLINE_S = 100.0
"""The end of a wait that is over at once. It ends a test that hangs, and is longer than any pause of the machine: no test asserts it."""
T = TypeVar("T")


class ProgramResult(NamedTuple):
    code: int
    output: str
    errors: str


async def until(test: Callable[[], object], *, deadline_s: float = DEADLINE_S) -> None:
    """Returns once the result of `test`, which may be a coroutine function, is true."""
    async with asyncio.timeout(deadline_s):
        while not (await found if isinstance(found := test(), Awaitable) else found):
            await asyncio.sleep(0.001)


async def bounded(wait: Awaitable[T]) -> T:
    """The result of a wait for another task: `await bounded(event.wait())`."""
    async with asyncio.timeout(DEADLINE_S):
        return await wait


async def run_program(
    *command: str, stdin: str | None = None, deadline_s: float = DEADLINE_S, **options: Any
) -> ProgramResult:
    """Runs a program to its end. `options`: those of `create_subprocess_exec`. A program that has not ended at the deadline is killed: TimeoutError."""
    streams = {"stdin": DEVNULL if stdin is None else PIPE, "stdout": PIPE, "stderr": PIPE}
    process = await asyncio.create_subprocess_exec(*command, **{**streams, **options})
    try:
        async with asyncio.timeout(deadline_s):
            output, errors = await process.communicate(None if stdin is None else stdin.encode())
    except BaseException:
        await kill(process)
        raise
    assert process.returncode is not None
    return ProgramResult(
        process.returncode, output.decode(errors="replace"), (errors or b"").decode(errors="replace")
    )


async def kill(process: Process) -> None:
    """Kills a process that still runs, and waits for its end."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await bounded(process.wait())


def run_threads(works: Iterable[Callable[[], T]]) -> list[T]:
    """The results of functions that run at once, each in a thread of its own. A thread that has not ended at the deadline does not delay the end of the tests."""
    runs: list[tuple[Callable[[], T], Future[T]]] = [(work, Future()) for work in works]
    for run in runs:
        threading.Thread(target=_run, args=run, daemon=True).start()
    return [future.result(DEADLINE_S) for _, future in runs]


def _run(work: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(work())
    except BaseException as exc:  # it is raised in the thread of the test
        future.set_exception(exc)


async def wait_blocked(database: Database, sessions: int = 1) -> None:
    """Returns when so many sessions wait for a lock."""
    blocked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    async with asyncio.timeout(DEADLINE_S):
        while await database.read(lambda c: c.execute(blocked).scalar_one()) < sessions:
            await asyncio.sleep(0)
