"""Batched reads: one batch at a time, equal keys once, and no result older than its request."""

import asyncio

import pytest

from tests.kit.waits import until
from tollway.storage.engine.batch_loader import BatchLoader


class Source:
    """Returns each key with the number of its batch, once it may answer."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, ...]] = []
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None

    async def fetch(self, keys):
        self.batches.append(tuple(keys))
        number = len(self.batches)
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [f"{key}{number}" for key in keys]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def loader(source: Source) -> BatchLoader[str, str]:
    return BatchLoader(source.fetch)


async def start(group: asyncio.TaskGroup, loader, keys: str) -> list[asyncio.Task[str]]:
    """Starts a caller for each key; when it returns, all callers wait."""
    tasks = [group.create_task(loader.load(key)) for key in keys]
    await asyncio.sleep(0)
    return tasks


async def test_equal_keys_of_many_callers_are_fetched_twice_at_most(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = await start(group, loader, "a" * 50)
        source.may_answer.set()
    assert [task.result() for task in tasks] == ["a1", *["a2"] * 49]
    assert source.batches == [("a",), ("a",)]


async def test_keys_that_wait_while_a_batch_runs_are_the_next_batch(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = await start(group, loader, "abcb")
        source.may_answer.set()
    assert [task.result() for task in tasks] == ["a1", "b2", "c2", "b2"]
    assert source.batches == [("a",), ("b", "c")]


async def test_no_result_is_older_than_its_request(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        (early,) = await start(group, loader, "a")
        (late,) = await start(group, loader, "a")
        source.may_answer.set()
    assert (early.result(), late.result()) == ("a1", "a2")


async def test_a_failed_batch_fails_its_callers(source: Source, loader) -> None:
    async def load(key: str) -> str:
        try:
            return await loader.load(key)
        except ConnectionError:
            return "failed"

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(load(key)) for key in "abb"]
        await asyncio.sleep(0)
        source.failure = ConnectionError("away")
        source.may_answer.set()
    assert [task.result() for task in tasks] == ["failed"] * 3
    source.failure = None
    assert (await loader.load("a")).startswith("a")


async def test_after_the_fetching_caller_is_cancelled_another_one_fetches(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        first, *_ = await start(group, loader, "a")
        waiting = await start(group, loader, "bb")
        first.cancel()
        await until(lambda: len(source.batches) >= 2)
        leader, *others = waiting
        leader.cancel()
        source.may_answer.set()
    assert first.cancelled()
    assert leader.cancelled()
    assert [task.result() for task in others] == ["b3"]
    assert source.batches == [("a",), ("b",), ("b",)]
