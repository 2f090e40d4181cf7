"""The latency that a paid call adds at one connection: over a direct call of the upstream, and beyond one bare
durable commit.

The commit is timed in every round, on the core of the gateway and on the file system or server of its database. The
load generator is the Python one, because its percentiles contain measured times only: wrk adds estimates for the
requests that a stall prevented. Its few microseconds of overhead are in the direct calls too.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import LoadGenerator
from machine import GATEWAY_CORE, prepare_child
from throughput import Cell, Sample, summarise

COMMITS = 300
COMMITS_DEADLINE_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Percentiles in ms."""

    p50: float
    p99: float


def time_commits(url: str) -> Delay:
    script = str(Path(__file__).with_name("bare_commits.py"))
    told = subprocess.run(
        (sys.executable, script, url, str(COMMITS)),
        preexec_fn=prepare_child(GATEWAY_CORE),
        capture_output=True,
        text=True,
        check=True,
        timeout=COMMITS_DEADLINE_S,
    )
    parsed = json.loads(told.stdout)
    return Delay(p50=parsed["p50Us"] / 1000, p99=parsed["p99Us"] / 1000)


def delay_of(sample: Sample) -> Delay:
    return Delay(p50=sample.outcome.p50_us / 1000, p99=sample.outcome.p99_us / 1000)


class Delays:
    """The rounds of every cell and every commit, and the difference that each adds."""

    def __init__(self, cells: Sequence[Cell], commit_urls: Mapping[str, str]) -> None:
        self._cells = cells
        self._urls = commit_urls
        self._found: dict[str, list[Delay]] = {}

    def run_rounds(
        self,
        folder: Path,
        *,
        rounds: int,
        seconds: int,
        tell: Callable[[str], None],
    ) -> None:
        generator = LoadGenerator(wrk=None)
        for number in range(rounds):
            for cell in self._cells if number % 2 == 0 else reversed(self._cells):
                sample = cell.measure(generator, folder, connections=1, seconds=seconds)
                self._note(cell.name, delay_of(sample), tell)
            for name, url in self._urls.items():
                self._note(name, time_commits(url), tell)

    def _note(self, name: str, delay: Delay, tell: Callable[[str], None]) -> None:
        self._found.setdefault(name, []).append(delay)
        tell(f"one connection: {name}: p50 {delay.p50:.3f} ms, p99 {delay.p99:.3f} ms")

    def tell(self) -> dict[str, Any]:
        return {
            name: {
                "p50Ms": summarise([delay.p50 for delay in delays]),
                "p99Ms": summarise([delay.p99 for delay in delays]),
            }
            for name, delays in self._found.items()
        }

    def tell_added(self, name: str, *, over: str, beyond: str | None) -> dict[str, Any]:
        """For each round: the percentile of one minus that of the other (and of the commit); then the median of the
        rounds. A difference of percentiles is not a percentile of differences; without pairs there is no better
        figure."""
        added: dict[str, Any] = {}
        for percentile in ("p50", "p99"):
            told = []
            for number, delay in enumerate(self._found[name]):
                rest = getattr(delay, percentile) - getattr(self._found[over][number], percentile)
                if beyond is not None:
                    rest -= getattr(self._found[beyond][number], percentile)
                told.append(rest)
            added[percentile + "Ms"] = summarise(told)
        return added
