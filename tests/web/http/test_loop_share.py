"""The part of the event loop that the control plane and refused calls take: one begins in each turn, and while there are calls they run for a quarter of the time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.kit.waits import until
from tollway.web.http.loop_share import (
    BURST_S,
    CALLS_S,
    DEBT_S_MAX,
    REFUSED_CALL_S,
    SHARE,
    WAITING_MAX,
    ControlPlaneShare,
    LoopShare,
    run_in_share,
)

CALL = "/api/v2/gateway/api_1"
LONG_S = 0.050


class Clock:
    """Stands still. `looks`: how often it was read."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now_s

    async def wait_look(self) -> None:
        """Until the share has looked again at what waits."""
        looks = self.looks
        await until(lambda: self.looks > looks)


class Loop:
    """A share with its clock, and an app behind it whose requests do `work` and then wait. `requests`: path and turn of the loop of each beginning."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.share = LoopShare(self.clock)
        self.app = ControlPlaneShare(self._serve, share=self.share, unpaced=("/api/v2/gateway/",))
        self.work: Callable[[], Coroutine[Any, Any, None]] = asyncio.Event().wait  # type: ignore[assignment]
        self.requests: list[tuple[str, int]] = []
        self._turn = 0

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests.append((scope["path"], self._turn))
        await self.work()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]

    async def ask(self, path: str = "/api/v2/apis") -> None:
        await self.app({"type": "http", "path": path}, receive_nothing, send_nothing)

    async def use(self, seconds: float) -> None:
        """A stretch of the loop."""
        self.clock.now_s += seconds

    @asynccontextmanager
    async def asking(self, *paths: str) -> AsyncIterator[list[asyncio.Task[None]]]:
        """Requests, in this order, until the end of the block."""
        async with asyncio.TaskGroup() as group:
            counting = group.create_task(self._count_turns())
            tasks = [group.create_task(self.ask(path)) for path in paths]
            try:
                yield tasks
            finally:
                for task in (counting, *tasks):
                    task.cancel()

    async def _count_turns(self) -> None:
        while True:
            await asyncio.sleep(0)
            self._turn += 1


@pytest.fixture
def loop() -> Loop:
    return Loop()


async def receive_nothing() -> Message:
    return await asyncio.Future()


async def send_nothing(message: Message) -> None:
    """No response is looked at."""


# ---- Turns.


async def test_one_request_begins_in_each_turn_of_the_loop_in_the_order_of_arrival(loop: Loop) -> None:
    paths = [f"/api/v2/auth/{number}" for number in range(50)]
    async with loop.asking(*paths):
        await until(lambda: len(loop.requests) == len(paths))
    assert loop.paths == paths
    turns = [turn for _, turn in loop.requests]
    assert turns == sorted(set(turns))


async def test_a_call_begins_at_once_and_a_request_that_has_ended_takes_no_turn(loop: Loop) -> None:
    async with loop.asking("/first", "/gone", "/second", CALL) as tasks:
        await asyncio.sleep(0)
        assert loop.paths == ["/first", CALL]
        tasks[1].cancel()
        await until(lambda: len(loop.requests) == 3)
    assert loop.paths[-1] == "/second"


# ---- The bucket.


async def test_without_calls_nothing_waits_for_time(loop: Loop) -> None:
    loop.work = lambda: loop.use(LONG_S)
    for _ in range(10):
        await loop.ask()
    assert len(loop.requests) == 10


async def test_while_there_are_calls_the_next_request_begins_when_the_time_of_the_last_one_is_earned(
    loop: Loop,
) -> None:
    loop.work = lambda: loop.use(LONG_S)
    loop.share.calls += 1
    await loop.ask("/first")
    async with loop.asking("/second", CALL):
        await until(lambda: CALL in loop.paths)
        owed_s = (LONG_S - BURST_S) / SHARE
        passed_s = 2 * LONG_S  # in the first request and in the call
        loop.clock.now_s += owed_s - passed_s - 0.001
        await loop.clock.wait_look()
        assert "/second" not in loop.paths
        loop.clock.now_s += 0.002
        await until(lambda: "/second" in loop.paths)


async def test_a_second_after_the_last_call_the_loop_is_free(loop: Loop) -> None:
    loop.work = lambda: loop.use(10 * CALLS_S)
    loop.share.calls += 1
    await loop.ask("/first")
    loop.work = lambda: loop.use(LONG_S)
    for _ in range(10):
        await loop.ask()
    assert len(loop.requests) == 11


async def test_a_read_that_gives_way_goes_on_when_its_time_is_earned(loop: Loop) -> None:
    slices: list[int] = []

    async def read() -> None:
        for number in range(3):
            slices.append(number)
            await loop.use(LONG_S)
            await asyncio.sleep(0)

    loop.work = read
    loop.share.calls += 1
    async with loop.asking("/api/v2/history"):
        await until(lambda: slices == [0])
        await loop.clock.wait_look()
        assert slices == [0]
        loop.clock.now_s += LONG_S / SHARE
        await until(lambda: slices == [0, 1])
        loop.clock.now_s += LONG_S / SHARE
        await until(lambda: slices == [0, 1, 2])


async def test_a_wait_of_a_request_is_not_counted(loop: Loop) -> None:
    answered = asyncio.Event()
    loop.work = answered.wait  # type: ignore[assignment]
    left_s = loop.share.left_s
    async with loop.asking("/api/v2/apis"):
        await until(lambda: bool(loop.paths))
        loop.clock.now_s += LONG_S
        answered.set()
        await asyncio.sleep(0)
    assert loop.share.left_s == left_s


async def test_a_failure_passes_and_its_time_counts(loop: Loop) -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        await loop.use(LONG_S)
        raise ValueError("oh")

    loop.work = fail
    left_s = loop.share.left_s
    with pytest.raises(ValueError, match="oh"):
        await loop.ask()
    assert loop.share.left_s == pytest.approx(left_s - LONG_S)


async def test_a_cancellation_reaches_the_request_and_its_time_counts(loop: Loop) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await loop.use(LONG_S)
            ended.set()

    loop.work = work
    left_s = loop.share.left_s
    async with loop.asking("/api/v2/apis"):
        await until(lambda: loop.paths == ["/api/v2/apis"])
    assert ended.is_set()
    assert loop.share.left_s == pytest.approx(left_s - LONG_S)


async def test_refused_calls_take_their_time_of_the_same_bucket(loop: Loop) -> None:
    loop.share.calls += 1
    for _ in range(int(BURST_S / REFUSED_CALL_S)):
        await loop.share.wait_refused()
    async with asyncio.TaskGroup() as group:
        late = group.create_task(loop.share.wait_refused())
        await loop.clock.wait_look()  # as it arrives
        await loop.clock.wait_look()
        assert not late.done()
        loop.clock.now_s += REFUSED_CALL_S / SHARE
    assert late.done()


async def test_a_stretch_in_which_the_machine_stood_still_counts_in_part(loop: Loop) -> None:
    loop.work = lambda: loop.use(1000.0)
    await loop.ask()
    assert loop.share.left_s == -DEBT_S_MAX


async def test_beyond_a_number_that_waits_no_request_waits(loop: Loop) -> None:
    loop.work = lambda: loop.use(LONG_S)
    loop.share.calls += 1
    await loop.ask("/first")
    many = [f"/{number}" for number in range(WAITING_MAX + 5)]
    async with loop.asking(*many):
        await until(lambda: many[-1] in loop.paths)
        await loop.clock.wait_look()
        assert loop.paths == ["/first", *many[WAITING_MAX:]]


async def test_a_part_of_a_request_with_a_task_of_its_own_is_counted_too(loop: Loop) -> None:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_in_share(scope, partial(loop.use, LONG_S)))

    app = ControlPlaneShare(serve, share=loop.share, unpaced=())
    left_s = loop.share.left_s
    await app({"type": "http", "path": "/api/v2/history.csv"}, receive_nothing, send_nothing)
    assert loop.share.left_s == pytest.approx(left_s - LONG_S)


async def test_outside_of_the_control_plane_a_part_runs_uncounted(loop: Loop) -> None:
    await run_in_share({"type": "http"}, partial(loop.use, LONG_S))
    assert loop.share.left_s == BURST_S
