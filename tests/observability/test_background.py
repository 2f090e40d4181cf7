"""Background tasks: a failed run is counted and logged in one line, and never ends the loop, on every Python."""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.kit.narrowing import existing
from tests.kit.waits import until
from tollway.errors import ChainUnavailable, StorageUnavailable
from tollway.observability.background import (
    BackgroundTask,
    BackgroundTasks,
    TaskName,
    describe_failure,
    run_all,
    run_contained,
    run_loops,
)

SOURCES = Path(__file__).parents[2] / "src" / "tollway"
NAME = TaskName.GAS_CHECK


async def succeed() -> None:
    await asyncio.sleep(0)


async def fail() -> None:
    await asyncio.sleep(0)
    raise StorageUnavailable


async def fail_in_group() -> None:
    """The trap: its child fails while the group is left."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fail())


async def cancel_itself() -> None:
    raise asyncio.CancelledError


async def wait_forever() -> None:
    await asyncio.Event().wait()


def count_cancellations() -> int:
    return existing(asyncio.current_task()).cancelling()


async def test_the_trap_of_task_groups_is_there_below_python_3_13_only() -> None:
    """What this module guards against. A loop in this task could not tell it from its own cancellation."""
    with pytest.raises(ExceptionGroup):
        await fail_in_group()
    assert count_cancellations() == (1 if sys.version_info < (3, 13) else 0)


@pytest.mark.parametrize("job", [fail, fail_in_group, cancel_itself])
async def test_a_failed_run_leaves_nothing_behind_in_its_loop(job: Callable[[], Awaitable[None]]) -> None:
    assert await run_contained(job) is not None
    with pytest.raises(Exception):  # noqa: B017 - of three kinds
        await run_all([succeed, job, succeed])
    assert count_cancellations() == 0
    assert await run_contained(succeed) is None


@pytest.mark.parametrize("job", [wait_forever, fail_in_group, cancel_itself, succeed])
async def test_a_loop_ends_when_it_is_cancelled_for_every_result_of_its_job(
    job: Callable[[], Awaitable[None]],
) -> None:
    for turns in range(8):
        loop = asyncio.get_running_loop().create_task(BackgroundTask(NAME).repeat(0, job))
        for _ in range(turns):
            await asyncio.sleep(0)
        loop.cancel()
        await asyncio.wait([loop])
        assert loop.cancelled()


async def test_all_run_to_their_end_before_the_first_failure_is_raised() -> None:
    ended: list[str] = []

    async def end_late() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append("late")

    async def fail_otherwise() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        raise ChainUnavailable("no node")

    with pytest.raises(StorageUnavailable):
        await run_all([end_late, fail, fail_otherwise])
    assert ended == ["late"]
    await run_all([])


@pytest.mark.parametrize(
    ("job", "kind"), [(succeed, RuntimeError), (fail, StorageUnavailable), (cancel_itself, RuntimeError)]
)
async def test_of_loops_side_by_side_one_that_ends_ends_all(
    job: Callable[[], Awaitable[None]], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        await run_loops([wait_forever, job])
    assert count_cancellations() == 0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_failures_in_a_row_and_the_age_of_the_last_good_run() -> None:
    clock = Clock()
    task = BackgroundTask(NAME, clock=clock)
    clock.now_s += 5
    assert (task.failures, task.age_s) == (0, 5)
    assert await task.attempt(succeed)
    assert task.age_s == 0
    for number in range(1, 4):
        clock.now_s += 10
        assert not await task.attempt(fail_in_group)
        assert (task.failures, task.age_s) == (number, 10 * number)
    assert await task.attempt(succeed)
    assert (task.failures, task.age_s) == (0, 0)


async def test_a_good_run_counts_until_the_task_begins_anew() -> None:
    task = BackgroundTask(NAME)
    seen = []

    async def fail_and_succeed() -> None:
        for job in (fail_in_group, succeed, fail_in_group):
            await task.attempt(job)
            seen.append(task.has_succeeded)

    for _ in range(2):
        task.expect_end()
        await task.supervise(fail_and_succeed)
    assert seen == [False, True, True] * 2


async def test_failures_in_a_row_are_logged_in_few_lines_without_a_traceback() -> None:
    task = BackgroundTask(NAME)
    with capture_logs() as lines:
        for _ in range(20):
            await task.attempt(fail_in_group)
        await task.attempt(succeed)
        await task.attempt(succeed)
    assert [line["failures"] for line in lines] == [1, 2, 4, 8, 16, 20]
    assert {line["event"] for line in lines[:-1]} == {"background_task_failed"}
    assert lines[-1]["event"] == "background_task_recovered"
    assert all(line["task"] == "gas_check" for line in lines)
    assert all("exc_info" not in line for line in lines)
    assert lines[0]["error"].startswith("StorageUnavailable")
    assert re.fullmatch(r"test_background\.py:\d+", lines[0]["at"])


def test_a_failure_is_one_short_line_with_its_cause() -> None:
    failure = ValueError("two\nlines " + "x" * 1000)
    failure.__cause__ = OSError("refused")
    told = describe_failure(failure)
    assert told["error"].startswith("ValueError: two lines x")
    assert len(told["error"]) == 300
    failure = ValueError()
    failure.__cause__ = OSError("refused")
    assert describe_failure(failure) == {"error": "ValueError, caused by OSError: refused", "at": "unknown"}


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (succeed, "it returned"),
        (fail, "StorageUnavailable: The database cannot be read or written now. Repeat the request later."),
        (cancel_itself, "RuntimeError: it was cancelled from within"),
    ],
)
async def test_a_task_that_ends_by_itself_is_an_error(job: Callable[[], Awaitable[None]], error: str) -> None:
    tasks = BackgroundTasks()
    with capture_logs() as lines:
        await tasks[NAME].supervise(job)
    assert tasks.ended == (NAME,)
    assert not tasks[NAME].is_running
    (line,) = lines
    assert (line["event"], line["log_level"], line["error"]) == ("background_task_ended", "error", error)
    begun = asyncio.get_running_loop().create_task(tasks[NAME].supervise(wait_forever))
    await asyncio.sleep(0)
    assert tasks.ended == ()  # it began anew, with the next lead
    begun.cancel()
    await asyncio.wait([begun])


async def test_a_task_that_is_cancelled_or_expected_to_end_has_not_ended_by_itself() -> None:
    tasks = BackgroundTasks()
    with capture_logs() as lines:
        running = asyncio.get_running_loop().create_task(tasks[NAME].supervise(wait_forever))
        await asyncio.sleep(0)
        assert tasks[NAME].is_running
        running.cancel()
        await asyncio.wait([running])

        async def stop() -> None:
            tasks[NAME].expect_end()

        await tasks[NAME].supervise(stop)
    assert tasks.ended == ()
    assert not tasks[NAME].is_running
    assert lines == []


async def test_a_pause_ends_when_the_task_is_woken() -> None:
    task = BackgroundTask(NAME)
    task.wake()
    await task.pause(3600)
    pausing = asyncio.get_running_loop().create_task(task.pause(3600))
    await asyncio.sleep(0)
    task.wake()
    await pausing


async def test_a_task_on_demand_rests_after_a_failure_only() -> None:
    task = BackgroundTask(NAME)
    runs = 0

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 3:
            raise StorageUnavailable
        if runs == 5:
            await asyncio.Event().wait()

    running = asyncio.get_running_loop().create_task(task.repeat_on_demand(work))
    await until(lambda: runs >= 3 and task.failures)
    for _ in range(5):
        await asyncio.sleep(0)
    assert runs == 3
    task.wake()
    await until(lambda: runs >= 5)
    running.cancel()
    await asyncio.wait([running])


GROUPS = {
    "observability/background.py": "the only place where children of background tasks are made",
    "app/runtime.py": "the root group of the gateway: its children are supervised",
    "chain/nodes.py": "its children catch what nodes do",
    "registry/ownership_recheck.py": "its children catch everything",
    "gateway/circuit_breaker.py": "its children catch everything; in a task of its own",
    "app/control_app.py": "a worker: when its server or its reports fail, it ends, and its gateway starts another one",
    "app/control_workers.py": "the task that kills a worker after its time fails at nothing",
    "app/lifecycle.py": "the public and the admin server: when one fails, so does the gateway",
    "outbound/probes.py": "its children catch what places do",
    "payments/settlement.py": "a request; its child catches everything",
    "payments/transaction_inspection.py": "a request",
    "payments/transaction_verifier.py": "a request",
    "storage/engine/leadership.py": "in a task of its own",
    "web/api/exports.py": "a request",
    "web/calls/gateway_app.py": "a request",
    "web/api/mcp.py": "a request",
    "web/http/server.py": "a server",
    "webhooks/sender.py": "its children catch everything; in a task of its own",
}
"""Where the package makes task groups, and why a failed child is no trap there."""
APART = ("cli", "client", "sandbox", "testing")
"""They run no background task of a gateway."""


def test_task_groups_are_made_where_their_failures_are_thought_of() -> None:
    found = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if "asyncio.TaskGroup(" in path.read_text(encoding="utf-8")
        and path.relative_to(SOURCES).parts[0] not in APART
    }
    assert found == set(GROUPS)
