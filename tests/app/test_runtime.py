"""Chores: they repeat, they outlive their failures, they end with their group, and none of them ends the gateway."""

import asyncio

import pytest

from tests.kit.waits import bounded, until
from tollway.app.runtime import BackgroundTaskGroup
from tollway.observability.background import TaskName

NAME = TaskName.GAS_CHECK


async def wait_forever() -> None:
    await asyncio.Event().wait()


async def test_a_chore_that_fails_is_done_again(capsys: pytest.CaptureFixture[str]) -> None:
    done = asyncio.Event()
    runs = 0

    async def sweep() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise OSError("the broom broke")
        done.set()

    async with BackgroundTaskGroup() as tasks:
        tasks.start_periodic(NAME, 0.001, sweep)
        await bounded(done.wait())
    assert runs >= 2
    output = capsys.readouterr().out
    assert "background_task_failed" in output
    assert "Traceback" not in output


async def test_leaving_the_group_ends_what_still_runs() -> None:
    async with BackgroundTaskGroup() as tasks:
        task = tasks.start(NAME, wait_forever)
        await asyncio.sleep(0)
        assert tasks.background[NAME].is_running
    assert task.cancelled()
    assert not tasks.background[NAME].is_running
    assert tasks.background.ended == ()


async def test_a_chore_that_fails_while_it_is_ended_ends() -> None:
    async def fails() -> None:
        raise OSError("the broom broke")

    async def sweep() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            running[0].cancel()

    running: list[asyncio.Task[None]] = []
    async with BackgroundTaskGroup() as tasks:
        tasks.start_periodic(NAME, 0.001, sweep)
        running += tasks._tasks
        await until(lambda: running[0].done())
    assert running[0].cancelled()


async def test_a_task_that_ends_by_itself_is_reported_and_ends_no_other() -> None:
    async def breaks() -> None:
        raise RuntimeError("books closed")

    async with BackgroundTaskGroup() as tasks:
        other = tasks.start(TaskName.CHAIN_CHECK, wait_forever)
        await tasks.start(NAME, breaks)
        assert tasks.background.ended == (NAME,)
        assert not other.done()


async def test_errors_of_the_gateway_pass_unchanged() -> None:
    async def keep_house() -> None:
        async with BackgroundTaskGroup() as tasks:
            tasks.start(NAME, wait_forever)
            raise OSError("port taken")

    with pytest.raises(OSError, match="port taken"):
        await keep_house()
