"""Group commit of the ledger: the entries that wait when a batch is committed are the next batch. `ledger_batch` lists the kinds of entries.

The writer is `GroupCommit.run`, a background task; each caller waits on a future. A single call waits for no timer. While many calls run
at once, the writer waits a moment for the callers of the last batch before it takes the next one (`BATCH_WAIT_S`).

Six invariants. A committed claim without a waiting caller is closed again. A bad entry fails alone. A close and a cut are not lost while
the database is unavailable. A call with a dropped response does not stay charged. A claim of unknown outcome is answered only after a read
from the database. A grant goes to one caller only.
"""

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

import structlog
from sqlalchemy import Connection, update
from sqlalchemy.exc import IntegrityError

from tollway.errors import StorageUnavailable
from tollway.ids import CallId
from tollway.ledger.claims import CreditAccount
from tollway.ledger.ledger import Claim, Claimed, Close, Closed, Finish, NonceUnavailable
from tollway.ledger.records import CallState
from tollway.observability.background import BackgroundTask, TaskName
from tollway.observability.metric_table import CommitKind
from tollway.observability.plain_metrics import PlainHistogram
from tollway.storage.engine.database import ROLLBACKS_MAX, Database, is_retryable
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.ledger.batch_wait import BATCH_WAIT_S, BatchWait
from tollway.storage.ledger.call_terms import KnownTerms
from tollway.storage.ledger.commit_traces import CommitTraces
from tollway.storage.ledger.ledger_batch import (
    AccountsShort,
    BatchRules,
    Drop,
    Entry,
    LedgerBatch,
    OpenKey,
    Outcome,
    Reopen,
    Reopened,
    close_unsent,
    ended_key,
    find_commit_kind,
    opened_key,
)
from tollway.storage.ledger.ledger_tables import owner_table
from tollway.storage.ledger.recovery import ClusterClock
from tollway.storage.ledger.settlement import Conclude, Settle
from tollway.storage.ledger.statement_queues import StatementQueues, WaitingEntry, count_callers
from tollway.storage.operator.restore_detection import RestoreDetected, RestoreDetector
from tollway.storage.webhooks.webhook_events import NO_EVENTS, EventLog

_log = structlog.get_logger(__name__)

FINISH_DELAY_S = 0.02
RETRY_S = 0.25
"""The pause between two tries to write the ends of calls after a failure."""
UNAWAITED_RETRY_S = 1.0
IN_DOUBT_MAX = 10_000
REOPENED_MAX = 10_000
HALVING_MS_MAX = 10_000
"""The time for all parts of a failed batch: a few entries that wait for a lock must not delay all later batches."""

# Tuples, because `isinstance` with a union is slow, and each call is checked twice.
_OPENING_ENTRIES = (Claim, Reopen)
_GRANTS = (Claimed, Reopened)
_DURABLE_ENTRIES = (Claim, Reopen, Settle, Conclude, Drop)
_OWN_FAULTS = (IntegrityError, ValueRefused)
"""Errors that blame an entry of the transaction. Nothing of the transaction was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchPart:
    """Entries of a failed batch that are written in one transaction. `is_retry`: they may have been committed before."""

    waiting: Sequence[WaitingEntry]
    is_retry: bool = False

    def halve(self) -> "list[_BatchPart]":
        """Two parts in order; one part for one entry, none for no entry."""
        middle = (len(self.waiting) + 1) // 2
        halves = (self.waiting[:middle], self.waiting[middle:])
        return [replace(self, waiting=some) for some in halves if some]


class GroupCommit:
    """The writer of one gateway's ledger entries.

    `in_doubt`: the runs of calls (`OpenKey`) whose claim or reopen has an unknown commit; nothing was sent upstream for them.
    """

    def __init__(
        self,
        database: Database,
        *,
        rules: BatchRules,
        clock: ClusterClock,
        batch_max: int,
        restore_detector: RestoreDetector,
        ticks_ms: Callable[[], int],
        grant_ms_max: int,
        patience_s: float,
        retry_s: float = RETRY_S,
        batch_wait_s: float = BATCH_WAIT_S,
        finish_delay_s: float = FINISH_DELAY_S,
        on_batch: Callable[[int], None] = lambda size: None,
        commit_seconds: Mapping[CommitKind, PlainHistogram],
        task: BackgroundTask | None = None,
        events: EventLog = NO_EVENTS,
        traces: CommitTraces | None = None,
    ) -> None:
        """`patience_s`: how long after its first failure the end of a call with an upstream response is tried again. `finish_delay_s`: how long a
        finish waits for other entries. `grant_ms_max`: a grant that reaches its caller later than this, by `ticks_ms` (monotonic), is given back: the
        process may have been paused, and other gateways may recover its calls."""
        self._database, self._restore_detector = database, restore_detector
        self._rules = rules
        self._clock = clock
        self._batch_max = batch_max
        self._ticks_ms, self._grant_ms_max = ticks_ms, grant_ms_max
        self._patience_s = patience_s
        self._retry_s = retry_s
        self._finish_delay_s = finish_delay_s
        self._on_batch, self._commit_seconds, self._traces = on_batch, commit_seconds, traces
        self._task = task or BackgroundTask(TaskName.LEDGER_WRITER)
        make_batch_wait = partial(BatchWait, wait_s=batch_wait_s, ticks_ms=ticks_ms)
        self._known_terms, self._events = KnownTerms(), events
        self._statement_queues: StatementQueues | None = None
        if database.dialect == "postgresql":
            self._statement_queues = StatementQueues(
                self,
                database,
                rules=rules,
                clock=clock,
                restore_detector=restore_detector,
                batch_max=batch_max,
                delay_s=finish_delay_s,
                make_batch_wait=make_batch_wait,
                commit_seconds=commit_seconds,
                known_terms=self._known_terms,
                events=events,
            )
        self._failed: deque[tuple[Sequence[WaitingEntry], Exception]] = deque()
        self._is_failing = self._has_cut_waiting = False
        self._queue: deque[WaitingEntry] = deque()
        self._batch_wait = make_batch_wait(batch_max)
        self._in_flight: list[WaitingEntry] = []
        self._wake = asyncio.Event()
        self._delayed_wake: asyncio.TimerHandle | None = None
        self._is_stopping = self._has_ended = False
        self._late: dict[CallId, WaitingEntry] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._tried: list[asyncio.Future[None]] = []
        self._open: Counter[OpenKey] = Counter()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._reopened: dict[OpenKey, None] = {}
        self.in_doubt: dict[OpenKey, None] = {}
        # Metered calls whose deposit settles: the end of the body comes after the conclusion.
        self._metered: set[OpenKey] = set()

    async def run(self) -> None:
        """Writes batches until `stop` was called and the queue is empty."""
        if self._statement_queues is not None:
            self._statement_queues.start(on_end=self._wake.set)
        try:
            while not self._is_stopping or self._queue or self._failed or self._has_running_queues():
                await self._wake.wait()
                # After the wait, not before it: an entry that became due during the last batch has set the event already.
                self._wake.clear()
                if not self._late and not self._is_stopping:
                    await self._batch_wait.wait()
                await self._write_next()
            await self._write_next()
        finally:
            self._is_stopping = self._has_ended = True
            if self._retry is not None:
                self._retry.cancel()
            left = [*self._in_flight, *(one for batch, _ in self._failed for one in batch)]
            left += await self._statement_queues.end() if self._statement_queues is not None else []
            for waiting in (*left, *self._queue, *self._late.values()):
                self._fail(waiting, StorageUnavailable("the ledger is closed"))
            self._queue.clear()
            self._failed.clear()
            _resolve_all(self._tried)

    def _has_running_queues(self) -> bool:
        return self._statement_queues is not None and self._statement_queues.are_running

    async def _write_next(self) -> None:
        failure: Exception | None = None
        if self._failed:
            failure = self._failed[0][1]
            batch = [one for failed, _ in self._failed for one in failed]
            self._failed.clear()
            self._wake.set()  # for the queue behind them
        else:
            batch = self._take_batch()
        self._in_flight = batch
        tried, self._tried = self._tried, []
        try:
            if batch and failure is None:
                self.note_batch(batch)
                failure = await self._write_part(batch, is_retry=False)
                if failure is None:
                    self._task.record_success()
            if failure is not None:
                await self._commit_failed(batch, failure)
        except Exception as exc:  # noqa: BLE001 - the root of the ledger's task: no batch may end it
            self._task.record_failure(exc)
            for waiting in batch:
                if waiting.future is None or not waiting.future.done():
                    self._fail(waiting, StorageUnavailable())
        self._batch_wait.note_written(count_callers(batch), still_waiting=count_callers(self._queue))
        self._in_flight = []
        if self._has_cut_waiting:
            self._has_cut_waiting = any(waiting.is_cut for waiting in self._queue)
        if tried:
            _resolve_all(tried)
        if self._late and self._retry is None:
            wait_s = (
                self._retry_s if self._has_waiting_callers() else self._retry_s * UNAWAITED_RETRY_S / RETRY_S
            )
            self._retry = asyncio.get_running_loop().call_later(wait_s, self._try_again)

    def _has_waiting_callers(self) -> bool:
        return any(waiting.future is not None for waiting in self._late.values())

    def _try_again(self) -> None:
        self._retry = None
        self._wake.set()

    def stop(self) -> None:
        """Lets `run` return when everything that waits is written."""
        self._is_stopping = True
        if self._statement_queues is not None:
            self._statement_queues.stop()
        self._wake.set()
        self._batch_wait.stop()

    async def wait_closed(self) -> None:
        """Returns when the end of every call that was opened here is committed."""
        await self._all_closed.wait()

    async def submit(self, entry: Entry) -> Outcome:
        """Writes the entry with the next batch and returns its outcome.

        A caller that is cancelled before the batch begins withdraws its claim or reopen; later the claim or reopen is undone as soon as it is
        written. Closes, settles, concludes and finishes are written in any case; a cancelled caller has dropped the response behind them. After the
        end of `run` nothing is written, and recovery finds the call.
        """
        if self._has_ended or (self._is_stopping and isinstance(entry, _OPENING_ENTRIES)):
            raise StorageUnavailable("the ledger is closing")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        submitted_ms = self._ticks_ms()
        waiting = self._enqueue(entry, future)
        if self._traces is not None:
            self._traces.add(waiting)
        try:
            outcome = await future
        except asyncio.CancelledError:
            # There are two cases. The future is cancelled with its caller: the writer withdraws the entry, or undoes it after the write.
            # The future has an outcome that this task did not take: it is undone here.
            if not future.cancelled() and future.exception() is None:
                self._undo(entry, future.result())
            raise
        finally:
            if self._traces is not None:
                self._traces.remove(waiting)
        if isinstance(outcome, _GRANTS) and self._ticks_ms() - submitted_ms > self._grant_ms_max:
            self._undo(entry, outcome)
            raise StorageUnavailable("the claim took too long")
        return outcome

    def submit_nowait(self, entry: Entry) -> None:
        if self._has_ended:
            _log.warning("ledger_entry_too_late", call_id=entry.call_id)
            return
        self._enqueue(entry, None)

    def is_open(self, key: OpenKey) -> bool:
        call_id, _ = key
        return key in self._open or call_id in self._late

    def retry_late(self) -> None:
        for waiting in self._late.values():
            waiting.due_s = 0.0
        if self._late:
            self._wake.set()

    def is_late(self, call_id: CallId) -> bool:
        """True while the end of this call is not written: the ledger has an older state of it."""
        return call_id in self._late

    def has_late(self) -> bool:
        return any(waiting.due_s < math.inf for waiting in self._late.values())

    async def write_late(self, call_id: CallId | None = None) -> None:
        """Returns when all late ends were tried once more, including that of `call_id` when it failed alone."""
        if self._has_ended or not self._late:
            return
        if call_id is not None:
            self._late[call_id].due_s = 0.0
        tried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tried.append(tried)
        self._wake.set()
        await tried

    def _enqueue(self, entry: Entry, future: "asyncio.Future[Outcome] | None") -> WaitingEntry:
        is_cut = isinstance(entry, Finish) and entry.is_cut
        is_urgent = is_cut or not isinstance(entry, Finish)
        waiting = WaitingEntry(entry=entry, future=future, is_cut=is_cut, is_urgent=is_urgent)
        key = opened_key(entry)
        if key is not None:
            self._open[key] = self._open.get(key, 0) + 1
            self._all_closed.clear()
        queues, queue = self._statement_queues, None
        if queues is not None:
            holder = queues.find_holder(entry.call_id)
            if holder is not None:
                holder.put_behind(waiting)
                return waiting
            if not self.are_statement_queues_closed():
                queue = queues.find_queue(waiting)
        if queue is None:
            self._put(waiting)
        else:
            queue.put(waiting)
        return waiting

    def _put(self, waiting: WaitingEntry) -> None:
        self._has_cut_waiting = self._has_cut_waiting or waiting.is_cut
        self._queue.append(waiting)
        if waiting.future is not None:
            self._batch_wait.note_waiting()
        if waiting.is_urgent or self._is_stopping:
            self._wake.set()
        elif self._delayed_wake is None:
            self._delayed_wake = asyncio.get_running_loop().call_later(self._finish_delay_s, self._wake.set)

    def are_statement_queues_closed(self) -> bool:
        """True while an entry is late, in doubt or cut, or while this writer stops. Later entries must find that entry written, or fail with it."""
        return (
            bool(self._late or self._failed) or self._is_failing or self._is_stopping or self._has_cut_waiting
        )

    def take_over(self, waiting: Sequence[WaitingEntry]) -> None:
        """Queues entries that a statement queue has not written."""
        for one in waiting:
            self._put(one)

    def take_over_failed(self, waiting: Sequence[WaitingEntry], exc: Exception) -> None:
        """Queues entries that may have been written."""
        self._is_failing = True
        self._failed.append((waiting, exc))
        self._wake.set()

    def _take_batch(self) -> list[WaitingEntry]:
        """Takes the next batch, in order. A second entry for the same call waits for the following batch."""
        if self._delayed_wake is not None:
            self._delayed_wake.cancel()
            self._delayed_wake = None
        batch = self._take_late_entries() if self._late else []
        rest: deque[WaitingEntry] = deque()
        seen: set[CallId] = {waiting.entry.call_id for waiting in batch}
        later: set[CallId] = set()
        while self._queue and len(batch) < self._batch_max:
            waiting = self._queue.popleft()
            call_id = waiting.entry.call_id
            if call_id in later or (call_id in seen and not isinstance(waiting.entry, Finish)):
                # The late entry may wait as long as the database is unavailable.
                if call_id in self._late:
                    self._fail(waiting, StorageUnavailable(), is_in_doubt=False)
                    continue
                later.add(call_id)
                rest.append(waiting)
                continue
            if waiting.future is not None and waiting.future.cancelled():
                if isinstance(waiting.entry, _OPENING_ENTRIES):  # withdrawn
                    self._forget(waiting.entry)
                    continue
                waiting.entry = _drop_response(waiting.entry)
            seen.add(call_id)
            batch.append(waiting)
        rest.extend(self._queue)
        self._queue = rest
        if any(waiting.is_urgent or self._is_stopping for waiting in rest):
            self._wake.set()
        elif rest:
            self._delayed_wake = asyncio.get_running_loop().call_later(self._finish_delay_s, self._wake.set)
        return batch

    def _take_late_entries(self) -> list[WaitingEntry]:
        """Takes the late entries that are due. They come first: a claim or a repeat of the same request must find them written."""
        now_s = 0.0 if self._is_stopping else asyncio.get_running_loop().time()
        due = (one for one in self._late.values() if self._is_stopping or one.due_s <= now_s)
        batch = list(islice(due, self._batch_max))
        for waiting in batch:
            if waiting.future is not None and waiting.future.cancelled():
                waiting.entry, waiting.future = _drop_response(waiting.entry), None
        return batch

    async def _commit_failed(self, batch: Sequence[WaitingEntry], exc: Exception) -> None:
        """Writes the entries in smaller transactions, after one transaction or one statement for all of them has raised `exc`."""
        if any(waiting.ends_s is None for waiting in batch):
            _log.warning("ledger_batch_failed", entries=len(batch), error=repr(exc))
        # There are three cases. An entry is at fault: nothing was written, and the halves find the entry. The database takes writes:
        # the batch may be committed, so its entries are written as a retry. The database takes no writes: no half is tried.
        is_retry = not isinstance(exc, _OWN_FAULTS)
        if is_retry:
            self._is_failing = True
            self._task.record_failure(exc)
        failure = await self._find_failure() if is_retry else None
        ends_ms = self._ticks_ms() + HALVING_MS_MAX
        finishes = [one for one in batch if isinstance(one.entry, Finish)]
        others = [one for one in batch if not isinstance(one.entry, Finish)]
        # A finish is written after the close of its call.
        for some in (others, finishes):
            part = _BatchPart(waiting=some, is_retry=is_retry)
            failure = await self._commit_halved(part, failure=failure, ends_ms=ends_ms)

    async def _commit_halved(
        self, batch: _BatchPart, *, failure: StorageUnavailable | None, ends_ms: int
    ) -> StorageUnavailable | None:
        """Writes the halves of a failed batch in a transaction each, and halves again what fails, so that a bad entry fails alone: one
        bad entry of n takes 2 log2(n) transactions. Returns the failure of the database, None while it takes writes.
        `failure`: the database takes no writes, so all entries fail. Halves of a failed part go behind the other parts: where they
        wait for a lock until `ends_ms`, the other parts are written before."""
        parts = deque(batch.halve())
        while parts:
            part = parts.popleft()
            if failure is None and self._ticks_ms() > ends_ms:
                failure = StorageUnavailable("the batch took too long")
            if failure is not None:
                for waiting in part.waiting:
                    self._fail(waiting, failure)
                continue
            exc = await self._write_part(part.waiting, is_retry=part.is_retry)
            if exc is None:
                continue
            is_own_fault = isinstance(exc, _OWN_FAULTS)
            if not is_own_fault:
                failure = await self._find_failure()
            if len(part.waiting) > 1:
                parts.extend(replace(part, is_retry=part.is_retry or not is_own_fault).halve())
            else:
                (waiting,) = part.waiting
                event = "ledger_entry_refused" if is_own_fault else "ledger_entry_failed"
                ids = {} if self._traces is None else self._traces.find_ids(waiting)
                _log.error(event, call_id=waiting.entry.call_id, error=repr(exc), **ids)
                if is_own_fault:
                    self._refuse(waiting)
                else:
                    self._fail(waiting, StorageUnavailable(), is_alone=failure is None)
        return failure

    async def _write_part(self, part: Sequence[WaitingEntry], *, is_retry: bool) -> Exception | None:
        """Writes the entries in one transaction and delivers their outcomes. Returns the error when nothing was written, or when the outcome is
        unknown. `is_retry`: the entries may have been committed before."""
        try:
            outcomes = await self._write(part, is_retry=is_retry)
        except Exception as exc:  # noqa: BLE001 - the root of the ledger's task: no entry may end it
            # A restored database may lack some of them.
            self._known_terms.forget()
            return exc
        self._is_failing = False
        for waiting, outcome in zip(part, outcomes, strict=True):
            self.deliver(waiting, outcome)
        return None

    async def _find_failure(self) -> StorageUnavailable | None:
        """Returns None when the database takes durable writes. A read would succeed while a commit waits for a lost standby or a disk is full."""
        owner_id = self._rules.owner_id
        same = update(owner_table).where(owner_table.c.id == owner_id).values(seen_ms=owner_table.c.seen_ms)
        try:
            await self._database.write(lambda connection: connection.execute(same))
        except StorageUnavailable as exc:
            return exc
        self._is_failing = False
        return None

    async def _write(self, part: Sequence[WaitingEntry], *, is_retry: bool) -> list[Outcome]:
        entries = [waiting.entry for waiting in part]
        is_durable = any(isinstance(waiting.entry, _DURABLE_ENTRIES) or waiting.is_cut for waiting in part)
        now_ms, ahead_ms = self._clock.read_offset()
        others = self._find_others(entries) if self._reopened or self.in_doubt else frozenset()
        retried = self._find_retried(entries) if self._late else frozenset()
        accounts: Set[CreditAccount] = frozenset()

        def write_batch(connection: Connection) -> tuple[LedgerBatch, list[Outcome]]:
            if is_durable:
                self._restore_detector.check_once(connection)
            batch = LedgerBatch(
                connection,
                self._rules,
                now_ms=now_ms,
                ahead_ms=ahead_ms,
                is_retry=is_retry,
                others=others,
                retried=retried,
                accounts=accounts,
                known_terms=self._known_terms,
                events=self._events,
            )
            return batch, batch.run(entries)

        read_clock_s = asyncio.get_running_loop().time
        started_s = read_clock_s()
        for attempt in range(ROLLBACKS_MAX):
            try:
                batch, outcomes = await self._database.write(write_batch, flush=is_durable)
                self._commit_seconds[find_commit_kind(entries)].observe(read_clock_s() - started_s)
                if batch.new_terms:
                    self._known_terms.remember(batch.new_terms)
                return outcomes
            except AccountsShort as short:
                accounts = short.accounts
            except RestoreDetected:
                self._known_terms.forget()
                await self._restore_detector.hold_balances()
            except StorageUnavailable as exc:
                if not is_retryable(exc) or attempt + 1 == ROLLBACKS_MAX:
                    raise
        raise StorageUnavailable("the batch was rolled back too often")

    def _find_others(self, entries: Sequence[Entry]) -> frozenset[CallId]:
        """The calls whose next run, if it exists, does not belong to the callers of this batch: it was granted to another caller, or
        its commit was unknown and recovery may end it."""
        keys = [key for entry in entries if isinstance(entry, Reopen) and (key := opened_key(entry))]
        return frozenset(key[0] for key in keys if key in self._reopened or key in self.in_doubt)

    def _find_retried(self, entries: Sequence[Entry]) -> frozenset[CallId]:
        late = (self._late.get(entry.call_id) for entry in entries)
        return frozenset(one.entry.call_id for one in late if one is not None and one.is_in_doubt)

    def note_batch(self, batch: Sequence[WaitingEntry]) -> None:
        self._on_batch(len(batch))
        if self._traces is not None:
            self._traces.note_taken(batch, size=len(batch))

    def deliver(self, waiting: WaitingEntry, outcome: Outcome) -> None:
        if self._traces is not None:
            self._traces.note_written(waiting)
        if self._late.get(waiting.entry.call_id) is waiting:
            del self._late[waiting.entry.call_id]
        entry = waiting.entry
        opened = opened_key(entry) if isinstance(outcome, _GRANTS) else None
        if opened is not None:
            # From here on the caller may send upstream: if the row is open later without a task here, its outcome is unknown.
            self.in_doubt.pop(opened, None)
            if isinstance(entry, Claim):
                self._restore_detector.note_claimed(entry.call_id)
            else:
                _remember_key(self._reopened, opened, at_most=REOPENED_MAX)
        if isinstance(entry, Settle) and entry.close.is_metered and isinstance(outcome, Closed):
            self._metered.add((entry.call_id, entry.close.epoch))
        # Only the conclusion of a settlement returns a state.
        is_streaming = outcome is CallState.CONSUMED and ended_key(entry) in self._metered
        if not is_streaming and not _leaves_open(entry, outcome):
            self._forget(entry)
        if waiting.future is None:
            return
        # A caller that is cancelled after `set_result` undoes the outcome in `submit`, so no grant is without a caller.
        if waiting.future.cancelled():
            self._undo(waiting.entry, outcome)
        else:
            waiting.future.set_result(outcome)

    def _undo(self, entry: Entry, outcome: Outcome) -> None:
        """Undoes a written entry whose caller is gone: for a claim nothing is sent upstream, of an end the response was dropped. Recovery
        marks a settling call orphaned."""
        if isinstance(entry, Claim) and isinstance(outcome, Claimed):
            self.submit_nowait(close_unsent(entry.call_id, outcome.epoch, CallState.RELEASED))
        elif isinstance(entry, Reopen) and isinstance(outcome, Reopened):
            self.submit_nowait(close_unsent(entry.call_id, outcome.claimed.epoch, outcome.before))
        elif isinstance(entry, Settle):
            self._forget(entry)
        elif _has_response(entry) and (outcome is CallState.CONSUMED or isinstance(outcome, Closed)):
            self.submit_nowait(_drop_response(entry))

    def _fail(
        self,
        waiting: WaitingEntry,
        failure: StorageUnavailable,
        *,
        is_in_doubt: bool = True,
        is_alone: bool = False,
    ) -> None:
        """`is_alone`: the database takes writes, but not this entry. Settlement recovery submits a failed conclude again."""
        entry = waiting.entry
        # There are three cases. The end of a call, a cut, or a usage is kept until it is written. A conclude of settlement recovery fails, and
        # recovery submits it again. Every other entry fails; a claim or a reopen that may be committed is in doubt: nothing was sent
        # upstream for it, so its call can return to the state before.
        is_measure = isinstance(entry, Finish) and entry.usage is not None
        if isinstance(entry, Close | Drop) or _has_response(entry) or waiting.is_cut or is_measure:
            waiting.is_in_doubt = waiting.is_in_doubt or is_in_doubt
            self._postpone(waiting, failure, is_alone=is_alone)
            return
        if not isinstance(entry, Conclude):
            self._forget(entry)
        key = opened_key(entry)
        if key is not None and is_in_doubt and key not in self._reopened:
            _remember_key(self.in_doubt, key, at_most=IN_DOUBT_MAX)
        if waiting.future is not None and not waiting.future.done():
            waiting.future.set_exception(failure)

    def _refuse(self, waiting: WaitingEntry) -> None:
        """Fails an entry that the database refuses: another try would fail the same way. Recovery ends the call."""
        entry, waiting.ends_s = waiting.entry, 0.0
        self._fail(waiting, StorageUnavailable(), is_in_doubt=False, is_alone=True)
        if self._late.get(entry.call_id) is waiting and waiting.entry is entry:
            del self._late[entry.call_id]
            self._forget(entry)

    def _postpone(self, waiting: WaitingEntry, failure: StorageUnavailable, *, is_alone: bool) -> None:
        """Keeps the end of a call, or the cut of its response, until it is written. Its caller waits for `patience_s`; then its response is
        dropped, and a `Drop` takes the place of the entry. A cut has no response to drop, and its caller waits for less."""
        now_s = asyncio.get_running_loop().time()
        if waiting.ends_s is None:
            has_patience = _has_response(waiting.entry) or waiting.is_cut
            waiting.ends_s = now_s + (self._patience_s if has_patience else 0.0)
        is_over = self._is_stopping or now_s >= waiting.ends_s
        waiting.due_s = 0.0 if not is_alone else math.inf if is_over else now_s + self._retry_s
        if waiting.future is not None and (is_over or waiting.future.done()):
            if not waiting.future.done():
                waiting.future.set_exception(failure)
            waiting.entry, waiting.future, before = _drop_response(waiting.entry), None, waiting.entry
            if is_alone and waiting.entry is not before:
                waiting.due_s = 0.0
                self._wake.set()
        known = self._late.get(waiting.entry.call_id)
        if known is None or not isinstance(known.entry, Drop):
            self._late[waiting.entry.call_id] = waiting
        # A dropped call has no other end.
        elif known is not waiting and waiting.future is not None:
            waiting.future.set_exception(failure)

    def forget(self, key: OpenKey) -> None:
        """Removes a run for which no task of this gateway waits any more."""
        self._open.pop(key, None)
        self._metered.discard(key)
        if not self._open:
            self._all_closed.set()

    def _forget(self, entry: Entry) -> None:
        key = opened_key(entry)
        if key is None:
            ended = ended_key(entry)
            if ended is not None:
                self.forget(ended)
        elif key in self._open:
            self._open[key] -= 1
            if self._open[key] <= 0:
                self.forget(key)


def _remember_key(keys: dict[OpenKey, None], key: OpenKey, *, at_most: int) -> None:
    keys[key] = None
    while len(keys) > at_most:
        del keys[next(iter(keys))]


def _leaves_open(entry: Entry, outcome: Outcome) -> bool:
    """True when a task of this gateway still has to end the call."""
    if isinstance(entry, Settle):
        return isinstance(outcome, Closed | NonceUnavailable)
    if isinstance(entry, Close) and entry.is_metered:
        is_measured = entry.known_usage is not None
        return isinstance(outcome, Closed) and entry.after is CallState.CONSUMED and not is_measured
    return isinstance(outcome, _GRANTS)


def _has_response(entry: Entry) -> bool:
    """True for the end of a call whose caller waits for the response of the upstream."""
    match entry:
        case Close():
            return entry.upstream_status is not None
        case Settle():
            return True
        case Conclude():
            return not entry.is_orphaned
        case _:
            return False


def _drop_response(entry: Entry) -> Entry:
    """Returns the entry that ends the call after its response was dropped. An end that costs nothing stays as it is."""
    if not _has_response(entry):
        return entry
    match entry:
        case Close(after=CallState.CONSUMED):
            return Drop(call_id=entry.call_id, epoch=entry.epoch, close=replace(entry, finish=None))
        case Settle():
            return Drop(call_id=entry.call_id, epoch=entry.close.epoch, close=entry.close)
        case Conclude():
            return Drop(call_id=entry.call_id, epoch=entry.epoch, close=None)
        case _:
            return entry


def _resolve_all(waiting: list[asyncio.Future[None]]) -> None:
    for one in waiting:
        if not one.done():
            one.set_result(None)
