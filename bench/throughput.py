"""Responses per second: every program in turn, round by round, each round in the opposite order of the one before.

A cell is one program under one kind of request. Each figure has the used part of its core and of the core of the load
beside it: a rate is that of the program only while its own core is the full one.
"""

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from children import Child
from load import LoadGenerator, Outcome, write_requests
from machine import GATEWAY_CORE, LOAD_CORE, count_busy_s

SPARE = 1.6
"""So many more requests are signed than the best rate so far would use."""
SIGNED_MIN = 4_000
ANSWER_DEADLINE_S = 10.0
TOOL_RESPONSE_BYTES_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One load on one cell. Parts of a core: 1.0 is all of it. `cpu_us`, `database_cpu_us`: per response; the latter
    is of a database server, None without one."""

    outcome: Outcome
    own_share: float
    others_share: float
    load_share: float
    cpu_us: float
    database_cpu_us: float | None = None

    @property
    def rate(self) -> float:
        """Never zero: a cell without a response in time counts as one response, so that there is a ratio."""
        return max(1, self.outcome.in_time) / self.outcome.seconds


@dataclass(slots=True, kw_only=True)
class Cell:
    """`prepare(count)` returns the requests: as many as will be sent once, or, where `is_once` is not set, any
    number. `are_refused`: the expected response is a 402. `database`: CPU seconds of its database server so far."""

    name: str
    port: int
    child: Child
    prepare: Callable[[int], Sequence[bytes]]
    is_once: bool = False
    are_refused: bool = False
    database: Callable[[], float] | None = None
    core: int = GATEWAY_CORE
    samples: list[Sample] = field(default_factory=list)
    best: float = 0.0

    def measure(self, generator: LoadGenerator, folder: Path, *, connections: int, seconds: int) -> Sample:
        wanted = SIGNED_MIN + int(self.best * SPARE * seconds)
        while True:
            requests = write_requests(folder / "requests", self.prepare(wanted))
            sample = self._load(generator, requests, connections=connections, seconds=seconds)
            if not sample.outcome.is_exhausted:
                self._check(sample.outcome)
                self.best = max(self.best, sample.rate)
                return sample
            wanted *= 2

    def _load(self, generator: LoadGenerator, requests: Path, *, connections: int, seconds: int) -> Sample:
        before = self._count()
        outcome = generator.run(
            self.port, requests, connections=connections, seconds=seconds, is_once=self.is_once
        )
        taken, own, core, load, database = (
            now - then for now, then in zip(self._count(), before, strict=True)
        )
        answers = max(1, outcome.answers)
        return Sample(
            outcome=outcome,
            own_share=own / taken,
            others_share=max(0.0, core - own) / taken,
            load_share=load / taken,
            cpu_us=own / answers * 1e6,
            database_cpu_us=None if self.database is None else database / answers * 1e6,
        )

    def _count(self) -> tuple[float, ...]:
        return (
            time.monotonic(),
            self.child.count_cpu_s(),
            count_busy_s(self.core),
            count_busy_s(LOAD_CORE),
            0.0 if self.database is None else self.database(),
        )

    def _check(self, outcome: Outcome) -> None:
        """Checks that every response has the expected status. Raises RuntimeError: a rate of refusals is not a rate."""
        wrong = outcome.answers - outcome.refused if self.are_refused else outcome.refused
        if wrong or outcome.broken or not outcome.answers:
            raise RuntimeError(
                f"{self.name}: of {outcome.answers} answers {wrong} were others, {outcome.broken} connections broke; "
                f"one more is answered {self._ask_once()!r}; its log ends: {self.child.tell_end()}"
            )

    def _ask_once(self) -> bytes:
        """The response to one request, or as much of it as arrives at once."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=ANSWER_DEADLINE_S) as line:
                line.sendall(self.prepare(1)[0])
                return line.recv(TOOL_RESPONSE_BYTES_MAX)
        except (OSError, IndexError) as exc:
            return repr(exc).encode()

    def rates(self) -> list[float]:
        return [sample.rate for sample in self.samples]

    def tell(self) -> dict[str, Any]:
        rates = self.rates()
        database = [s.database_cpu_us for s in self.samples if s.database_cpu_us is not None]
        told: dict[str, Any] = (
            {} if not database else {"databaseCpuUsPerAnswer": round(statistics.median(database), 1)}
        )
        return told | {
            "perSecond": round(statistics.median(rates), 1),
            "min": round(min(rates), 1),
            "max": round(max(rates), 1),
            "rounds": [round(rate, 1) for rate in rates],
            "p50Ms": round(statistics.median(s.outcome.p50_us for s in self.samples) / 1000, 3),
            "p99Ms": round(statistics.median(s.outcome.p99_us for s in self.samples) / 1000, 3),
            "ownCore": round(statistics.median(s.own_share for s in self.samples), 2),
            "othersOnItsCore": round(statistics.median(s.others_share for s in self.samples), 2),
            "loadCore": round(statistics.median(s.load_share for s in self.samples), 2),
            "cpuUsPerAnswer": round(statistics.median(s.cpu_us for s in self.samples), 1),
        }


def run_rounds(
    cells: Sequence[Cell],
    generator: LoadGenerator,
    folder: Path,
    *,
    rounds: int,
    connections: int,
    seconds: int,
    warm: Sequence[Cell],
    tell: Callable[[str], None],
) -> None:
    """`warm`: each load first runs for a second that does not count."""
    for cell in warm:
        cell.measure(generator, folder, connections=connections, seconds=1)
    for number in range(rounds):
        for cell in cells if number % 2 == 0 else reversed(cells):
            sample = cell.measure(generator, folder, connections=connections, seconds=seconds)
            cell.samples.append(sample)
            tell(
                f"round {number + 1}: {cell.name}: {sample.rate:,.0f}/s, {sample.cpu_us:.0f} us CPU each, "
                f"{sample.own_share:.2f} of its core, others {sample.others_share:.2f}, load {sample.load_share:.2f}"
            )


def compare(ours: Cell, theirs: Cell) -> dict[str, Any]:
    """The rate of Tollway as a multiple of the other: per round, then the median."""
    pairs = zip(ours.rates(), theirs.rates(), strict=True)
    return summarise([mine / its for mine, its in pairs])


def compare_cpu(ours: Cell, theirs: Cell) -> dict[str, Any]:
    """The CPU per response of Tollway as a multiple of the other, in the same way: it hardly depends on other
    processes."""
    pairs = zip(ours.samples, theirs.samples, strict=True)
    return summarise([mine.cpu_us / its.cpu_us for mine, its in pairs])


def find_spread(cell: Cell) -> float:
    """How much the best round exceeds the worst: 0.1 is 10 %."""
    return max(cell.rates()) / min(cell.rates()) - 1


def summarise(numbers: Sequence[float], digits: int = 3) -> dict[str, Any]:
    return {
        "median": round(statistics.median(numbers), digits),
        "min": round(min(numbers), digits),
        "max": round(max(numbers), digits),
    }
