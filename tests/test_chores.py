"""Chores: they repeat, they outlive their failures, they end with their group."""

import asyncio

import pytest

from tollway.chores import Chores


async def test_a_chore_that_fails_is_done_again(capsys: pytest.CaptureFixture[str]) -> None:
    done = asyncio.Event()
    runs = 0

    async def sweep() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise OSError("the broom broke")
        done.set()

    async with Chores() as chores:
        chores.every(0.001, sweep)
        async with asyncio.timeout(5):
            await done.wait()
    assert runs >= 2
    assert "chore_failed" in capsys.readouterr().out


async def test_leaving_the_group_ends_what_still_runs() -> None:
    async with Chores() as chores:
        task = chores.start(asyncio.Event().wait())  # type: ignore[arg-type]
        await asyncio.sleep(0)
    assert task.cancelled()


async def test_a_chore_that_fails_while_it_is_ended_ends() -> None:
    async def fails() -> None:
        raise OSError("the broom broke")

    async def sweep() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            running[0].cancel()

    running: list[asyncio.Task[None]] = []
    async with asyncio.timeout(5):
        async with Chores() as chores:
            chores.every(0.001, sweep)
            running += chores._tasks
            while not running[0].done():
                await asyncio.sleep(0)
    assert running[0].cancelled()


async def test_a_task_that_must_not_fail_takes_the_house_down_with_it() -> None:
    async def breaks() -> None:
        raise RuntimeError("books closed")

    async def keep_house() -> None:
        async with Chores() as chores:
            chores.start(breaks())
            await asyncio.Event().wait()

    with pytest.raises(BaseExceptionGroup) as failure:
        await keep_house()
    assert failure.group_contains(RuntimeError, match="books closed")


async def test_what_the_house_itself_raises_passes_through_as_it_is() -> None:
    async def keep_house() -> None:
        async with Chores() as chores:
            chores.start(asyncio.Event().wait())  # type: ignore[arg-type]
            raise OSError("port taken")

    with pytest.raises(OSError, match="port taken"):
        await keep_house()
