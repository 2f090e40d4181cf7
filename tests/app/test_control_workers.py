"""The workers of a gateway, each a short program here: one that ends is started again, one that reports counts as ready while it is not silent, and all end with `stop`."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.kit.ports import find_low_port
from tests.kit.waits import bounded, until
from tollway.app.control_workers import READY, SILENCE_S, ControlWorkers
from tollway.config.values import Listen
from tollway.web.http.server import PortTaken

pytestmark = pytest.mark.process

REPORTS = "import argparse, os, sys; p = argparse.ArgumentParser(); p.add_argument('--listener', type=int); p.add_argument('--reports', type=int); o = p.parse_args(); "
SERVES = REPORTS + f"os.write(o.reports, {READY!r}); sys.stdin.read()"
FAILS = REPORTS + "sys.exit(2)"
IGNORES_SIGNALS = (
    REPORTS
    + f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); os.write(o.reports, {READY!r}); sys.stdin.read()"
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make_workers(program: str, of: type[ControlWorkers] = ControlWorkers, **options: Any) -> ControlWorkers:
    given: dict[str, Any] = {"stop_s": 60.0, "retry_s": 0.0, **options}
    listen = Listen(host="127.0.0.1", port=find_low_port())
    return of(2, listen=listen, config=None, command=(sys.executable, "-c", program), **given)


@contextlib.asynccontextmanager
async def running(workers: ControlWorkers) -> AsyncIterator[None]:
    with workers.reserve():
        async with asyncio.TaskGroup() as group:
            run = group.create_task(workers.run())
            try:
                yield
            finally:
                workers.stop()
                await bounded(run)
    assert workers.pids == []


async def test_workers_are_ready_while_each_reports() -> None:
    clock = Clock()
    workers = make_workers(SERVES, clock=clock)
    assert not workers.are_ready
    async with running(workers):
        await until(lambda: workers.are_ready)
        clock.now_s = SILENCE_S
        assert not workers.are_ready


async def test_a_worker_that_ends_is_started_again_and_another_one_after_a_restore() -> None:
    workers = make_workers(SERVES)
    async with running(workers):
        await until(lambda: workers.are_ready)
        before = set(workers.pids)
        workers.renew()
        await until(lambda: workers.are_ready and len(set(workers.pids) - before) == 2)


async def test_workers_that_cannot_start_are_tried_again_and_stop_at_once() -> None:
    workers, seen = make_workers(FAILS), set[int]()
    async with running(workers):
        await until(lambda: seen.update(workers.pids) or len(seen) > 2)
        assert not workers.are_ready


async def test_a_worker_that_does_not_end_is_killed() -> None:
    workers = make_workers(IGNORES_SIGNALS, stop_s=0.0)
    async with running(workers):
        await until(lambda: workers.are_ready)


class StopsMeanwhile(ControlWorkers):
    """Its `stop` comes when the system has started a process that it does not know yet."""

    async def _start(self, report_to: int) -> Process:
        process = await super()._start(report_to)
        self.stop()
        return process


async def test_a_worker_that_starts_while_the_gateway_stops_ends_too() -> None:
    workers = make_workers(SERVES, of=StopsMeanwhile)
    with workers.reserve():
        await bounded(workers.run())


async def test_a_taken_port_is_refused() -> None:
    first = make_workers(SERVES)
    second = ControlWorkers(1, listen=first._listen, config=None, stop_s=1.0)
    with first.reserve(), pytest.raises(PortTaken), second.reserve():
        pass
