"""Control workers as their gateway sees them: child processes that serve the control plane at `control_listen` (`app/control_app.py`).

All accept from one listening socket, which this process holds: where one dies, the others take its connections. One that ends by itself is started again, after
a pause that grows until one was ready. A worker ends when its gateway does, also one that is killed: its standard input closes.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import structlog

from tollway.config.values import Listen
from tollway.observability.background import run_all
from tollway.web.http.server import SharedListener, bind_shared

_log = structlog.get_logger(__name__)

COMMAND = (sys.executable, "-P", "-m", "tollway.app.control_app")
RETRY_S, RETRY_S_MAX = 0.5, 30.0
REPORT_INTERVAL_S = 1.0
"""Between two reports of a worker, `READY` or `NOT_READY`, on a pipe of its own."""
SILENCE_S = 10.0
"""A worker that reports nothing for so long, such as one whose event loop stands still, is not ready."""
READY, NOT_READY = b"1", b"0"


class ControlWorkers:
    """The control workers of one gateway. Used from one event loop. `config`: the settings file that they read too. `stop_s`: the longest time that one may take to
    end; after it the worker is killed."""

    def __init__(
        self,
        count: int,
        *,
        listen: Listen,
        config: Path | None,
        stop_s: float,
        command: Sequence[str] = COMMAND,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
    ) -> None:
        """`command`: of a worker, without its arguments. `clock`: monotonic seconds."""
        self._listen, self._stop_s, self._clock, self._retry_s = listen, stop_s, clock, retry_s
        self._config = () if config is None else ("--config", str(config))
        self._command = command
        self._shared: SharedListener | None = None
        self._processes: list[Process | None] = [None] * count
        self._ready_s: list[float | None] = [None] * count
        self._is_stopping = asyncio.Event()

    @contextlib.contextmanager
    def reserve(self) -> Iterator[None]:
        """Takes the port; connections wait for `run`. Raises PortTaken."""
        with bind_shared(self._listen.host, self._listen.port) as shared:
            self._shared = shared
            yield

    @property
    def are_ready(self) -> bool:
        """Whether each worker reported lately that it serves."""
        now_s = self._clock()
        return all(ready_s is not None and now_s - ready_s < SILENCE_S for ready_s in self._ready_s)

    @property
    def pids(self) -> list[int]:
        """Of the workers that run."""
        return [one.pid for one in self._processes if one is not None and one.returncode is None]

    async def run(self) -> None:
        """Runs the workers until `stop`, and returns when all have ended."""
        await run_all([partial(self._keep, number) for number in range(len(self._processes))])

    def stop(self) -> None:
        """Lets each worker complete the responses that it has begun, and end: with the last one the port closes. A second call ends the notice, as a second signal does."""
        self._is_stopping.set()
        if self._shared is not None:
            self._shared.close()
        self._send_all(signal.SIGTERM)

    def renew(self) -> None:
        """Starts each worker anew, after the responses that it has begun: after a restore its caches are those of a lost database."""
        self._send_all(signal.SIGTERM)

    def _send_all(self, number: int) -> None:
        for one in self._processes:
            if one is not None and one.returncode is None:
                one.send_signal(number)

    async def _keep(self, number: int) -> None:
        retry_s = self._retry_s
        while not self._is_stopping.is_set():
            process, was_ready = await self._run_once(number)
            if self._is_stopping.is_set():
                return
            retry_s = self._retry_s if was_ready else min(2 * retry_s, RETRY_S_MAX)
            pid, exit_code = (None, None) if process is None else (process.pid, process.returncode)
            _log.warning("control_worker_ended", pid=pid, exit_code=exit_code, retry_s=retry_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(retry_s):
                    await self._is_stopping.wait()

    async def _run_once(self, number: int) -> tuple[Process | None, bool]:
        """One process, from its start to its end, and whether it was ever ready. None: the system started none."""
        reports, report_to = os.pipe()
        try:
            process = await self._start(report_to)
        except OSError:
            os.close(reports)
            return None, False
        finally:
            os.close(report_to)
        self._processes[number] = process
        if self._is_stopping.is_set():  # `stop` came while the system started it
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.TaskGroup() as group:
                killing = group.create_task(self._kill_late(process))
                was_ready = await self._follow_reports(number, process, reports)
                await process.wait()
                killing.cancel()
        finally:
            os.close(reports)
            if process.returncode is None:
                process.kill()
        return process, was_ready

    async def _start(self, report_to: int) -> Process:
        assert self._shared is not None
        listener = self._shared.fileno()
        return await asyncio.create_subprocess_exec(
            *self._command,
            *("--listener", str(listener), "--reports", str(report_to)),
            *self._config,
            stdin=PIPE,  # nothing is written: it closes when this process ends
            pass_fds=(listener, report_to),
        )

    async def _kill_late(self, process: Process) -> None:
        await self._is_stopping.wait()
        await asyncio.sleep(self._stop_s)
        if process.returncode is None:
            process.kill()

    async def _follow_reports(self, number: int, process: Process, reports: int) -> bool:
        """Until the pipe closes, which the end of the worker does. Returns whether the worker was ever ready."""
        loop, has_ended, was_ready = asyncio.get_running_loop(), asyncio.Event(), False

        def read() -> None:
            nonlocal was_ready
            report = os.read(reports, 64)
            if not report:
                has_ended.set()
                return
            is_ready = report.endswith(READY)
            self._ready_s[number] = self._clock() if is_ready else None
            if is_ready and not was_ready:
                was_ready = True
                _log.info("control_worker_ready", pid=process.pid)

        loop.add_reader(reports, read)
        try:
            await has_ended.wait()
        finally:
            loop.remove_reader(reports)
            self._ready_s[number] = None
        return was_ready
