"""What the trace of a sampled call says about the commits that it waits for.

A gateway that traces has one `CommitTraces` for its writer. It holds the entries of sampled calls only, from their submission until their outcome, so a
batch without one costs one look at an empty dictionary.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tollway.observability.call_trace import CallTrace, Span, find_current_trace

_STEPS = frozenset({"tollway.claim", "tollway.close"})


@dataclass(slots=True, kw_only=True)
class _TracedEntry:
    trace: CallTrace
    step: Span | None
    submitted_ns: int
    taken_ns: int = 0


class CommitTraces:
    """Writes on the claim and the close of a sampled call how many entries its batch had, how long the entry waited, and how long the commit took.
    Times in microseconds."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, _TracedEntry] = {}

    def add(self, waiting: Hashable) -> None:
        """Observes an entry of the current call, where that is sampled. `remove` must follow."""
        trace = find_current_trace()
        if trace is not None:
            step = trace.step if trace.step is not None and trace.step.name in _STEPS else None
            self._entries[waiting] = _TracedEntry(trace=trace, step=step, submitted_ns=trace.now_ns())

    def note_taken(self, batch: Iterable[Hashable], *, size: int) -> None:
        """The batch begins. An entry that its batch did not write is in a later one, and that one counts."""
        if not self._entries:
            return
        for waiting in batch:
            entry = self._entries.get(waiting)
            if entry is not None and entry.step is not None:
                entry.taken_ns = entry.trace.now_ns()
                entry.step.set("tollway.commit.entries", size)
                entry.step.set("tollway.commit.wait_us", (entry.taken_ns - entry.submitted_ns) // 1000)

    def note_written(self, waiting: Hashable) -> None:
        entry = self._entries.get(waiting) if self._entries else None
        if entry is not None and entry.step is not None:
            entry.step.set("tollway.commit.write_us", (entry.trace.now_ns() - entry.taken_ns) // 1000)

    def find_ids(self, waiting: Hashable) -> dict[str, str]:
        """The ids of the trace, for a log line about an entry of a sampled call: the writer runs outside of the context of the call."""
        entry = self._entries.get(waiting)
        return {} if entry is None else entry.trace.ids

    def remove(self, waiting: Hashable) -> None:
        self._entries.pop(waiting, None)
