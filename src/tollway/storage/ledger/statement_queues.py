"""Statement queues beside the writer of the ledger: one writes plain claims, one writes plain closes and finishes. A batch is one statement.

PostgreSQL only. A statement queue has its own session and waits neither for the other queue nor for the writer (`group_commit`), so a call on
known credit takes two round trips. A plain entry is one that a single statement may write (`plain_writes`). A queue hands all other entries to the
writer, including entries whose commit is in doubt. While an entry is late or in doubt the queues are closed and the writer takes
every entry: only the writer handles outages.

A statement queue holds one entry of a call at a time. A further entry of that call waits behind it, for the writer.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from tollway.errors import StorageUnavailable
from tollway.ids import CallId
from tollway.ledger.claims import is_claim_alone_plain
from tollway.ledger.ledger import Claim, Claimed, Close, Closed, Finish
from tollway.ledger.sales import is_hour_unmarked
from tollway.observability.metric_table import CommitKind
from tollway.observability.plain_metrics import PlainHistogram
from tollway.storage.engine.database import Database, is_retryable
from tollway.storage.engine.outage import ValueRefused
from tollway.storage.engine.statements import Work
from tollway.storage.ledger.batch_wait import BatchWait
from tollway.storage.ledger.call_terms import KnownTerms, TermsReference, terms_of
from tollway.storage.ledger.ledger_batch import BatchRules, Entry, Outcome, write_finishes
from tollway.storage.ledger.plain_writes import grant_plain_claims, is_plain_close, write_plain_closes
from tollway.storage.ledger.recovery import ClusterClock
from tollway.storage.operator.restore_detection import RestoreDetected, RestoreDetector
from tollway.storage.webhooks.webhook_events import EventLog

STATEMENT_BATCH_MAX = 128
"""Entries of one statement. A nested loop over two batches visits at most the square of this number."""


@dataclass(slots=True, eq=False, kw_only=True)
class WaitingEntry:
    """An entry that waits for its write. `ends_s`: the moment until which its caller waits for another try; None before the first failure.
    `due_s`: the moment of the next try when it failed alone; 0 for the next batch. `is_in_doubt`: it may be written already.
    `terms`: the reference to the terms of a claim in a statement queue. `future`: None without a caller.

    Of the entry that came first: `is_cut`: a finish of a response that the upstream cut, so the same request may run again. `is_urgent`: False for
    any other finish, which waits a moment for other entries, because alone it would cost a commit; the caller of a cut response may call again at once."""

    entry: Entry
    future: asyncio.Future[Outcome] | None
    is_cut: bool
    is_urgent: bool
    ends_s: float | None = None
    due_s: float = 0.0
    is_in_doubt: bool = False
    terms: TermsReference | None = None


def count_callers(entries: Iterable[WaitingEntry]) -> int:
    return sum(waiting.future is not None for waiting in entries)


class QueueOwner(Protocol):
    def are_statement_queues_closed(self) -> bool:
        """While it is true, the writer takes every entry."""
        ...

    def take_over(self, waiting: Sequence[WaitingEntry]) -> None:
        """Nothing of these entries is written."""
        ...

    def take_over_failed(self, waiting: Sequence[WaitingEntry], exc: Exception) -> None:
        """These entries may be written."""
        ...

    def deliver(self, waiting: WaitingEntry, outcome: Outcome) -> None: ...

    def note_batch(self, batch: Sequence[WaitingEntry]) -> None: ...


_Written = Claimed | Closed | Finish | None
"""None: the entry was not written. A finish has no outcome, so it stands for itself."""

WriteEntries = Callable[[Sequence[WaitingEntry]], Awaitable[None]]


class StatementQueue:
    """A queue of one kind of entries, in order."""

    def __init__(
        self, owner: QueueOwner, write: WriteEntries, *, batch_max: int, delay_s: float, batch_wait: BatchWait
    ) -> None:
        """`delay_s`: how long an entry without a caller waits for other entries."""
        self._batch_max = batch_max
        self._owner = owner
        self._write = write
        self._delay_s = delay_s
        self._batch_wait = batch_wait
        self._queue: deque[WaitingEntry] = deque()
        self._urgent = 0
        self._is_stopping = False
        self._wake = asyncio.Event()
        self._delayed: asyncio.TimerHandle | None = None
        # By the calls that have an entry here: the later entries of the same call.
        self.behind: dict[CallId, list[WaitingEntry]] = {}
        self.in_flight: Sequence[WaitingEntry] = ()

    def __len__(self) -> int:
        return len(self._queue) + len(self.in_flight)

    def put(self, waiting: WaitingEntry) -> None:
        """Adds an entry of a call that has no entry here (`in`)."""
        self.behind[waiting.entry.call_id] = []
        self._queue.append(waiting)
        if waiting.future is not None:
            self._batch_wait.note_waiting()
        if waiting.is_urgent or self._is_stopping:
            self._urgent += 1
            self._wake.set()
        elif self._delayed is None:
            self._delayed = asyncio.get_running_loop().call_later(self._delay_s, self._end_delay)

    def put_behind(self, waiting: WaitingEntry) -> None:
        """Keeps an entry until the entry of the same call has left this queue; then the writer gets it."""
        self.behind[waiting.entry.call_id].append(waiting)

    def stop(self) -> None:
        """Lets `run` return when each entry is written or handed to the writer."""
        self._is_stopping = True
        self._batch_wait.stop()
        self._wake.set()

    def drain(self) -> list[WaitingEntry]:
        """Removes and returns every entry, in order, after the end of `run`."""
        left = [*self.in_flight, *self._queue]
        left += [waiting for behind in self.behind.values() for waiting in behind]
        self._queue.clear()
        self.behind.clear()
        self.in_flight = ()
        return left

    async def run(self) -> None:
        """Writes until `stop` was called and the queue is empty."""
        while self._queue or not self._is_stopping:
            if not self._urgent and not (self._queue and self._is_stopping):
                await self._wake.wait()
            self._wake.clear()
            if not self._owner.are_statement_queues_closed():
                await self._batch_wait.wait()
            taken = self._take()
            if taken:
                self._owner.note_batch(taken)
                self.in_flight = taken
                try:
                    await self._write(taken)
                except Exception as exc:  # noqa: BLE001 - the root of this task: no batch may end it
                    left = [one for one in self.in_flight if one.future is None or not one.future.done()]
                    self._owner.take_over_failed(left, exc)
                still_waiting = count_callers(self._queue)
                self._batch_wait.note_written(count_callers(taken), still_waiting=still_waiting)
                self.release(self.in_flight)

    def _end_delay(self) -> None:
        self._delayed = None
        self._urgent += 1
        self._wake.set()

    def _take(self) -> list[WaitingEntry]:
        """Takes the next batch. Entries whose caller is gone go to the writer; while the queues are closed, all entries do."""
        if self._owner.are_statement_queues_closed():
            taken = [*self._queue]
            self._queue.clear()
            self._urgent = 0
            self._hand_on(taken)
            return []
        batch: list[WaitingEntry] = []
        for_writer: list[WaitingEntry] = []
        while self._queue and len(batch) < self._batch_max:
            waiting = self._queue.popleft()
            is_caller_gone = waiting.future is not None and waiting.future.cancelled()
            (for_writer if is_caller_gone else batch).append(waiting)
        self._urgent = len(self._queue)
        if for_writer:
            self._hand_on(for_writer)
        return batch

    def _hand_on(self, waiting: list[WaitingEntry]) -> None:
        self._owner.take_over(waiting)
        self.release(waiting)

    def release(self, written: Sequence[WaitingEntry]) -> None:
        """Removes entries from this queue and hands the entries that wait behind them to the writer."""
        gone = set(written)
        self.in_flight = [one for one in self.in_flight if one not in gone]
        behind = [one for waiting in written for one in self.behind.pop(waiting.entry.call_id)]
        if behind:
            self._owner.take_over(behind)


class StatementQueues:
    def __init__(
        self,
        owner: QueueOwner,
        database: Database,
        *,
        rules: BatchRules,
        clock: ClusterClock,
        restore_detector: RestoreDetector,
        batch_max: int,
        delay_s: float,
        make_batch_wait: Callable[[int], BatchWait],
        commit_seconds: Mapping[CommitKind, PlainHistogram],
        known_terms: KnownTerms,
        events: EventLog,
    ) -> None:
        """`known_terms`: terms with a committed row; a claim with other terms goes to the writer, which writes the terms too."""
        self._owner = owner
        self._commit_seconds = commit_seconds
        self._database = database
        self._rules = rules
        self._clock = clock
        self._restore_detector = restore_detector
        self._known_terms = known_terms
        self._events = events
        self._limited = frozenset(rules.unfinal_max_nano)
        batch_max = min(batch_max, STATEMENT_BATCH_MAX)
        self.claims, self.ends = (
            StatementQueue(
                owner, write, batch_max=batch_max, delay_s=delay_s, batch_wait=make_batch_wait(batch_max)
            )
            for write in (self._write_claims, self._write_ends)
        )
        self.all = (self.claims, self.ends)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *, on_end: Callable[[], None]) -> None:
        """`on_end`: called at the end of each queue."""
        for queue in self.all:
            task = asyncio.get_running_loop().create_task(queue.run())
            task.add_done_callback(lambda _: on_end())
            self._tasks.append(task)

    @property
    def are_running(self) -> bool:
        return not all(task.done() for task in self._tasks)

    async def end(self) -> list[WaitingEntry]:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return [waiting for queue in self.all for waiting in queue.drain()]

    def find_queue(self, waiting: WaitingEntry) -> StatementQueue | None:
        """The queue for this entry; None for an entry of the writer. Sets the terms of a claim."""
        entry = waiting.entry
        match entry:
            case Claim():
                waiting.terms = self._known_terms.find(terms_of(entry))
                if waiting.terms is None or not is_claim_alone_plain(entry, self._limited):
                    return None
                # The writer marks the hour of a call whose claim comes minutes after its request arrived (`ledger.sales`).
                now_ms, ahead_ms = self._clock.read_offset()
                return self.claims if is_hour_unmarked(entry.created_ms + ahead_ms, now_ms=now_ms) else None
            case Close():
                return self.ends if is_plain_close(entry) else None
            case Finish():
                # The next claim must see a cut, so the writer keeps their order. A usage gives units back.
                return None if entry.is_cut or entry.usage is not None else self.ends
            case _:
                return None

    def find_holder(self, call_id: CallId) -> StatementQueue | None:
        return next((queue for queue in self.all if call_id in queue.behind), None)

    def stop(self) -> None:
        for queue in self.all:
            queue.stop()

    async def _write_claims(self, batch: Sequence[WaitingEntry]) -> None:
        claims = [waiting.entry for waiting in batch if isinstance(waiting.entry, Claim)]
        terms = [waiting.terms for waiting in batch if waiting.terms is not None]
        now_ms, ahead_ms = self._clock.read_offset()

        def work(connection: Connection) -> list[_Written]:
            self._restore_detector.check_once(connection)
            owner_id = self._rules.owner_id
            return [
                *grant_plain_claims(
                    connection, claims, terms, owner_id=owner_id, now_ms=now_ms, ahead_ms=ahead_ms
                )
            ]

        await self._write(batch, work, "claim", flush=True)

    async def _write_ends(self, batch: Sequence[WaitingEntry]) -> None:
        """Writes the closes first: a finish of the same batch may belong to a call that one of them ends."""
        closing = [waiting for waiting in batch if isinstance(waiting.entry, Close)]
        finishing = [waiting for waiting in batch if isinstance(waiting.entry, Finish)]
        closes = [waiting.entry for waiting in closing if isinstance(waiting.entry, Close)]
        finishes = [waiting.entry for waiting in finishing if isinstance(waiting.entry, Finish)]
        owner_id = self._rules.owner_id
        now_ms, ahead_ms = self._clock.read_offset()

        def close(connection: Connection) -> list[_Written]:
            return [
                *write_plain_closes(
                    connection,
                    closes,
                    owner_id=owner_id,
                    now_ms=now_ms,
                    ahead_ms=ahead_ms,
                    events=self._events,
                )
            ]

        def finish(connection: Connection) -> list[_Written]:
            write_finishes(connection, finishes, ahead_ms=ahead_ms)
            return [*finishes]

        if closes:
            await self._write(closing, close, "close", flush=False)
            # Before the finishes: a cut of one of these calls must reach the writer before the next claim of the same request.
            self.ends.release(closing)
        if finishes:
            await self._write(finishing, finish, "other", flush=False)

    async def _write(
        self, batch: Sequence[WaitingEntry], work: Work[list[_Written]], kind: CommitKind, *, flush: bool
    ) -> None:
        """Runs `work`, which returns what was written of each entry, and hands the other entries to the writer."""
        read_clock_s = asyncio.get_running_loop().time
        started_s = read_clock_s()
        # There are two kinds of failure. After a restore, a bad entry or a rollback nothing is written, so the writer takes the entries
        # as new ones. After any other failure the statement may be committed, so the writer takes them as a retry.
        try:
            written = await self._database.write_statement(work, flush=flush)
        except RestoreDetected:
            self._known_terms.forget()
            # The connection of the writer may be older and detect nothing.
            await self._restore_detector.hold_balances()
            self._owner.take_over(batch)
        except (IntegrityError, ValueRefused):
            # The writer finds the bad entry. A restored database may lack some of the known terms.
            self._known_terms.forget()
            self._owner.take_over(batch)
        except StorageUnavailable as exc:
            self._known_terms.forget()
            if is_retryable(exc):
                self._owner.take_over(batch)
            else:
                self._owner.take_over_failed(batch, exc)
        else:
            self._commit_seconds[kind].observe(read_clock_s() - started_s)
            left = []
            for waiting, outcome in zip(batch, written, strict=True):
                if outcome is None:
                    left.append(waiting)
                else:
                    self._owner.deliver(waiting, None if isinstance(outcome, Finish) else outcome)
            if left:
                self._owner.take_over(left)
