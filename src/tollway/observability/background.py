"""Background tasks of a gateway: their names, the time of the last successful run of each, and its failures since.

Each run is a task of its own, and its failure is a value. On Python 3.11 and 3.12 a `TaskGroup` whose child fails while the group exits cancels its parent and
does not undo it: `cancelling()` stays at 1, and a loop in the same task cannot distinguish this from its own cancellation. So a loop of a background task never
runs such a group in its own task, and no child of a group raises.
"""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from enum import StrEnum

import structlog

RESTART_S = 1.0
"""The pause of an on-demand task after a failure."""
ERROR_LENGTH_MAX = 300

_log = structlog.get_logger(__name__)

Job = Callable[[], Awaitable[object]]


class TaskName(StrEnum):
    """Every background task of a gateway. The value is its name in the log, in metrics and in `tollway gateway doctor`."""

    RESPONSE_PRUNING = "response_pruning"
    BLOCKED_WALLETS = "blocked_wallets"
    LEDGER_WRITER = "ledger_writer"
    CALL_RECOVERY = "call_recovery"
    CONTROL_WORKERS = "control_workers"
    CHAIN_CHECK = "chain_check"
    FLEET_FIGURES = "fleet_figures"
    GAS_CHECK = "gas_check"
    LEASE_RENEWAL = "lease_renewal"
    LOOP_DELAY = "loop_delay"
    METRIC_SAMPLES = "metric_samples"
    AUDIT_ENTRY_LOG = "audit_entry_log"
    OWNERSHIP_CHECK = "ownership_check"
    PAYMENT_CHECK = "payment_check"
    QUALITY_RENEWAL = "quality_renewal"
    QUALITY_WRITER = "quality_writer"
    READINESS_NOTE = "readiness_note"
    RECEIPT_POLLING = "receipt_polling"
    REPUTATION_ELECTION = "reputation_election"
    SALES_WRITER = "sales_writer"
    SCHEMA_CHECK = "schema_check"
    SEARCH_VECTORS = "search_vectors"
    SERVICE_WATCHDOG = "service_watchdog"
    SESSION_PRUNING = "session_pruning"
    SETTLEMENT_HANDOVER = "settlement_handover"
    SETTLEMENT_SWEEP = "settlement_sweep"
    SHARED_RATES_CHECK = "shared_rates_check"
    SHARED_RATES_WRITER = "shared_rates_writer"
    SWEEPER_ELECTION = "sweeper_election"
    UPSTREAM_PROBES = "upstream_probes"
    WATCHER_ELECTION = "watcher_election"
    WEBHOOK_DELIVERY = "webhook_delivery"
    WEBHOOK_ENDPOINTS = "webhook_endpoints"
    WEBHOOK_LISTINGS = "webhook_listings"
    WEBHOOKS_ELECTION = "webhooks_election"


class BackgroundTask:
    """One background task. Used from one event loop. `clock`: monotonic seconds.

    `interval_s`: the pause between two runs; None for a task that runs on demand. `failures`: failed runs in a row. `succeeded_s`: the end of the last successful
    run. `has_succeeded`: a run has succeeded since the task began. `has_ended`: the task ended although it was neither cancelled nor expected to end.
    """

    def __init__(self, name: TaskName, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.interval_s: float | None = None
        self.failures = 0
        self.is_running = False
        self.has_ended = False
        self.has_succeeded = False
        self._clock = clock
        self.succeeded_s = clock()
        self._is_end_expected = False
        self._is_woken = asyncio.Event()

    @property
    def age_s(self) -> float:
        """Seconds since the last successful run; before the first one, since the task began."""
        return self._clock() - self.succeeded_s

    async def supervise(self, job: Job) -> None:
        """Runs the task until it ends. Logs an end that is not expected. Raises only a cancellation from outside."""
        self.failures, self.has_ended, self.has_succeeded, self._is_end_expected = 0, False, False, False
        self.succeeded_s = self._clock()
        self.is_running = True
        try:
            failure = await run_contained(job)
        finally:
            self.is_running = False
        if failure is None and self._is_end_expected:
            return
        self.has_ended = True
        fields = {"error": "it returned"} if failure is None else describe_failure(failure)
        _log.error("background_task_ended", task=self.name.value, hint="restart this gateway", **fields)

    def expect_end(self) -> None:
        self._is_end_expected = True

    async def repeat(self, interval_s: float, job: Job) -> None:
        """Runs `job` until cancelled, with a pause after each run. A failure does not end it."""
        self.interval_s = interval_s
        while True:
            await self.attempt(job)
            await self.pause(interval_s)

    async def repeat_on_demand(self, job: Job) -> None:
        """Runs a job that waits for its own work, until cancelled. Pauses after a failure only."""
        while True:
            if not await self.attempt(job):
                await self.pause(RESTART_S)

    async def attempt(self, job: Job) -> bool:
        """Runs `job` once. True on success. Raises only a cancellation from outside."""
        failure = await run_contained(job)
        if failure is None:
            self.record_success()
        else:
            self.record_failure(failure)
        return failure is None

    def record_success(self) -> None:
        self.succeeded_s, self.has_succeeded = self._clock(), True
        if self.failures:
            _log.info("background_task_recovered", task=self.name.value, failures=self.failures)
        self.failures = 0

    def record_failure(self, failure: Exception) -> None:
        """Logs the first, second, fourth, eighth failure in a row, and so on."""
        self.failures += 1
        if self.failures.bit_count() == 1:
            fields = describe_failure(failure)
            _log.warning("background_task_failed", task=self.name.value, failures=self.failures, **fields)

    async def pause(self, seconds: float) -> None:
        """Returns after `seconds`, or at the next `wake`."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_woken.wait()
        except TimeoutError:
            return
        self._is_woken.clear()

    def wake(self) -> None:
        """Ends the current pause; without one, the next pause ends at once."""
        self._is_woken.set()


class BackgroundTasks:
    """The background tasks of one gateway by name, running or not."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks = {name: BackgroundTask(name, clock=clock) for name in TaskName}

    def __getitem__(self, name: TaskName) -> BackgroundTask:
        return self._tasks[name]

    def __iter__(self) -> Iterator[BackgroundTask]:
        return iter(self._tasks.values())

    @property
    def ended(self) -> tuple[TaskName, ...]:
        """The tasks that ended without being expected to. With one of them the gateway is not ready."""
        return tuple(task.name for task in self if task.has_ended)


async def run_contained(job: Job) -> Exception | None:
    """Runs a job in a task of its own and returns its failure. Raises only a cancellation of the caller; a job that cancels itself has failed."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_catch(job))
    return _result_of(task)


async def run_all(jobs: Iterable[Job]) -> None:
    """Runs all jobs concurrently, each in a task of its own. Raises the first failure after all have ended."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_catch(job)) for job in jobs]
    for task in tasks:
        failure = _result_of(task)
        if failure is not None:
            raise failure


async def run_loops(loops: Iterable[Job]) -> None:
    """Runs loops concurrently, each in a task of its own, until cancelled. A loop that ends cancels the others, and its failure is raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_catch(loop)) for loop in loops]
        if not tasks:
            await asyncio.Event().wait()
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    raise _result_of(ended.pop()) or RuntimeError("it returned")


async def _catch(job: Job) -> Exception | None:
    try:
        await job()
    except Exception as exc:  # noqa: BLE001 - the root of a background task: its caller logs it
        return exc
    return None


def _result_of(task: asyncio.Task[Exception | None]) -> Exception | None:
    return RuntimeError("it was cancelled from within") if task.cancelled() else task.result()


def describe_failure(failure: Exception) -> dict[str, str]:
    """The fields of a log line: the error, its cause and the place that raised it. For a group, of its first error."""
    while isinstance(failure, ExceptionGroup):
        failure = failure.exceptions[0]
    text = _describe(failure)
    if failure.__cause__ is not None:
        text += f", caused by {_describe(failure.__cause__)}"
    frames = traceback.extract_tb(failure.__traceback__)
    at = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "unknown"
    return {"error": text[:ERROR_LENGTH_MAX], "at": at}


def _describe(failure: BaseException) -> str:
    text = " ".join(str(failure).split())
    return f"{type(failure).__name__}: {text}" if text else type(failure).__name__
