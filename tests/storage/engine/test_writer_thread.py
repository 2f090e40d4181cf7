"""The writer thread of SQLite: order, failures, cancellation, stop."""

import asyncio
import contextlib
import gc
import os
import threading
import weakref
from collections.abc import Iterator

import pytest

from tollway.storage.engine.writer_thread import WriterThread


@pytest.fixture
def writer() -> Iterator[WriterThread]:
    it = WriterThread("writer")
    yield it
    it.stop()


class Gate:
    """A job that runs until it may go on."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.has_ended = False

    def __call__(self) -> str:
        self.has_begun.set()
        assert self.may_end.wait(10)
        self.has_ended = True
        return "passed"


async def start_gate(writer: WriterThread) -> tuple[Gate, asyncio.Task[str]]:
    gate = Gate()
    running = asyncio.get_running_loop().create_task(writer.run(gate))
    await asyncio.to_thread(gate.has_begun.wait, 10)
    return gate, running


async def test_jobs_run_in_one_thread_in_the_order_of_their_arrival(writer: WriterThread) -> None:
    ran: list[int] = []
    threads = set()

    def run(number: int) -> int:
        ran.append(number)
        threads.add(threading.current_thread().name)
        return number

    results = await asyncio.gather(*(writer.run(lambda n=n: run(n)) for n in range(100)))  # type: ignore[misc]  # of a default
    assert results == ran == list(range(100))
    assert threads == {"writer"}


@pytest.mark.parametrize(
    "failure", [ValueError("no"), KeyError("k"), SystemExit(3), asyncio.CancelledError()]
)
async def test_the_caller_gets_the_exception_of_its_job_and_the_next_job_runs(
    writer: WriterThread, failure: BaseException
) -> None:
    def fail() -> None:
        raise failure

    with pytest.raises(type(failure)) as caught:
        await writer.run(fail)
    assert caught.value is failure
    assert await writer.run(lambda: "next") == "next"


async def test_a_stop_iteration_raises_runtime_error_for_its_caller(writer: WriterThread) -> None:
    """A coroutine cannot raise StopIteration."""
    with pytest.raises(RuntimeError, match="StopIteration"):
        await writer.run(lambda: next(iter(())))


async def test_a_job_does_not_run_after_its_caller_was_cancelled(writer: WriterThread) -> None:
    gate, running = await start_gate(writer)
    ran: list[str] = []
    gone = asyncio.get_running_loop().create_task(writer.run(lambda: ran.append("gone")))
    stays = asyncio.get_running_loop().create_task(writer.run(lambda: ran.append("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    gate.may_end.set()
    await stays
    assert (await running, ran) == ("passed", ["stays"])


async def test_a_begun_job_runs_to_its_end_without_its_caller(writer: WriterThread) -> None:
    gate, running = await start_gate(writer)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not gate.has_ended
    gate.may_end.set()
    assert await writer.run(lambda: gate.has_ended)


def test_the_thread_goes_on_after_an_event_loop_was_closed(writer: WriterThread) -> None:
    async def leave() -> Gate:
        gate, running = await start_gate(writer)
        running.cancel()
        return gate

    gate = asyncio.run(leave())
    gate.may_end.set()
    assert asyncio.run(writer.run(lambda: gate.has_ended))


async def test_stop_returns_after_all_earlier_jobs_have_run(writer: WriterThread) -> None:
    gate, running = await start_gate(writer)
    behind = asyncio.get_running_loop().create_task(writer.run(lambda: "behind"))
    await asyncio.sleep(0)
    gate.may_end.set()
    writer.stop()
    assert (await running, await behind) == ("passed", "behind")
    with pytest.raises(RuntimeError, match="has ended"):
        await writer.run(lambda: "late")


async def test_stop_closes_every_file_descriptor() -> None:
    before = len(os.listdir("/dev/fd"))
    writer = WriterThread("writer")
    await writer.run(lambda: None)
    assert len(os.listdir("/dev/fd")) == before + 2
    writer.stop()
    assert len(os.listdir("/dev/fd")) == before
    writer.stop()


def test_no_thread_starts_without_a_job() -> None:
    before = threading.active_count()
    WriterThread("idle").stop()
    assert threading.active_count() == before


class Result:
    """An object for a weak reference."""


async def test_the_thread_keeps_no_object_of_a_job_alive(writer: WriterThread) -> None:
    result = await writer.run(Result)
    watched = weakref.ref(result)
    await writer.run(lambda: None)
    del result
    assert watched() is None


async def test_a_failure_leaves_no_reference_cycle(writer: WriterThread) -> None:
    watched: list[weakref.ref[Result]] = []

    def fail() -> None:
        result = Result()
        watched.append(weakref.ref(result))
        raise ValueError(result)

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await writer.run(fail)
        await writer.run(lambda: None)
        assert watched[0]() is None
    finally:
        gc.enable()
