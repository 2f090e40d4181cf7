"""Questions asked together: one round at a time, the same question once, and no answer older than its question."""

import asyncio

import pytest

from tollway.storage.gathering import Gathering


class Desk:
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
def desk() -> Desk:
    return Desk()


@pytest.fixture
def gathering(desk: Desk) -> Gathering[str, str]:
    return Gathering(desk.answer)


async def start(group: asyncio.TaskGroup, gathering, questions: str) -> list[asyncio.Task[str]]:
    """As many askers; when it returns, all have asked."""
    tasks = [group.create_task(gathering.ask(question)) for question in questions]
    await asyncio.sleep(0)
    return tasks


async def test_the_same_question_of_many_is_asked_once_more_at_most(desk: Desk, gathering) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = await start(group, gathering, "a" * 50)
        desk.may_answer.set()
    assert [task.result() for task in tasks] == ["a1", *["a2"] * 49]
    assert desk.rounds == [("a",), ("a",)]


async def test_what_waits_while_a_round_runs_is_the_next_round(desk: Desk, gathering) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = await start(group, gathering, "abcb")
        desk.may_answer.set()
    assert [task.result() for task in tasks] == ["a1", "b2", "c2", "b2"]
    assert desk.rounds == [("a",), ("b", "c")]


async def test_nobody_hears_an_answer_older_than_their_question(desk: Desk, gathering) -> None:
    async with asyncio.TaskGroup() as group:
        (early,) = await start(group, gathering, "a")
        (late,) = await start(group, gathering, "a")
        desk.may_answer.set()
    assert (early.result(), late.result()) == ("a1", "a2")


async def test_a_failed_round_fails_those_who_asked_in_it(desk: Desk, gathering) -> None:
    async def hear(question: str) -> str:
        try:
            return await gathering.ask(question)
        except ConnectionError:
            return "failed"

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(hear(question)) for question in "abb"]
        await asyncio.sleep(0)
        desk.failure = ConnectionError("away")
        desk.may_answer.set()
    assert [task.result() for task in tasks] == ["failed"] * 3
    desk.failure = None
    assert (await gathering.ask("a")).startswith("a")


async def test_when_the_one_who_asks_for_all_leaves_another_one_asks(desk: Desk, gathering) -> None:
    async with asyncio.TaskGroup() as group:
        first, *_ = await start(group, gathering, "a")
        waiting = await start(group, gathering, "bb")
        first.cancel()
        while len(desk.rounds) < 2:
            await asyncio.sleep(0)
        leader, *others = waiting
        leader.cancel()
        desk.may_answer.set()
    assert first.cancelled()
    assert leader.cancelled()
    assert [task.result() for task in others] == ["b3"]
    assert desk.rounds == [("a",), ("b",), ("b",)]
