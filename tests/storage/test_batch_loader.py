"""Questions asked together: one round at a time, the same question once, and no answer older than its question."""

import asyncio

import pytest

from tollway.storage.batch_loader import BatchLoader


class Source:
    """Answers each question with itself and the number of the round, when it is let."""

    def __init__(self) -> None:
        self.rounds: list[tuple[str, ...]] = []
        self.may_answer = asyncio.Event()
        self.failure: Exception | None = None

    async def answer(self, questions):
        self.rounds.append(tuple(questions))
        number = len(self.rounds)
        await self.may_answer.wait()
        if self.failure is not None:
            raise self.failure
        return [f"{question}{number}" for question in questions]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def loader(source: Source) -> BatchLoader[str, str]:
    return BatchLoader(source.answer)


async def start(group: asyncio.TaskGroup, loader, questions: str) -> list[asyncio.Task[str]]:
    """As many askers; when it returns, all have asked."""
    tasks = [group.create_task(loader.load(question)) for question in questions]
    await asyncio.sleep(0)
    return tasks


async def test_the_same_question_of_many_is_asked_once_more_at_most(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = await start(group, loader, "a" * 50)
        source.may_answer.set()
    assert [task.result() for task in tasks] == ["a1", *["a2"] * 49]
    assert source.rounds == [("a",), ("a",)]


async def test_what_waits_while_a_round_runs_is_the_next_round(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = await start(group, loader, "abcb")
        source.may_answer.set()
    assert [task.result() for task in tasks] == ["a1", "b2", "c2", "b2"]
    assert source.rounds == [("a",), ("b", "c")]


async def test_nobody_hears_an_answer_older_than_their_question(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        (early,) = await start(group, loader, "a")
        (late,) = await start(group, loader, "a")
        source.may_answer.set()
    assert (early.result(), late.result()) == ("a1", "a2")


async def test_a_failed_round_fails_those_who_asked_in_it(source: Source, loader) -> None:
    async def hear(question: str) -> str:
        try:
            return await loader.load(question)
        except ConnectionError:
            return "failed"

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hear(question)) for question in "abb"]
        await asyncio.sleep(0)
        source.failure = ConnectionError("away")
        source.may_answer.set()
    assert [task.result() for task in tasks] == ["failed"] * 3
    source.failure = None
    assert (await loader.load("a")).startswith("a")


async def test_when_the_one_who_asks_for_all_leaves_another_one_asks(source: Source, loader) -> None:
    async with asyncio.TaskGroup() as group:
        first, *_ = await start(group, loader, "a")
        waiting = await start(group, loader, "bb")
        first.cancel()
        while len(source.rounds) < 2:
            await asyncio.sleep(0)
        leader, *others = waiting
        leader.cancel()
        source.may_answer.set()
    assert first.cancelled()
    assert leader.cancelled()
    assert [task.result() for task in others] == ["b3"]
    assert source.rounds == [("a",), ("b",), ("b",)]
