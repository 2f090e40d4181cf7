"""Runs histories: one with all details, or many in several processes."""

import argparse
import gc
import json
import subprocess
import sys
import traceback
from collections.abc import Coroutine, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.kit.ledger_records import NOW_MS
from tests.kit.waits import DEADLINE_S
from tests.long.simulation.breakages import BREAKAGES
from tests.long.simulation.fake_ledger import FakeGateway, FakeMachine
from tests.long.simulation.history import History, Story

T = TypeVar("T")
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The histories that ran, and the first one that broke an invariant."""

    histories: int
    steps: int
    claims: int
    broken: int | None = None
    law: str = ""


def at_once(job: Coroutine[Any, Any, T]) -> T:
    """The ledger in memory never waits, so no event loop is needed; this makes it fast."""
    try:
        job.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("the books in memory waited for something")


def play_in_memory(
    seed: int, number: int, *, gateway: type[FakeGateway] | None = None, **options: Any
) -> Story:
    """Raises LawBroken or any other failure, with the events so far as `story`."""
    history = History(seed, number, **options)
    machine = FakeMachine(history.context, now_ms=NOW_MS, gateway=gateway)
    try:
        return at_once(history.play(machine))
    except Exception as exc:
        exc.story = history.story  # type: ignore[attr-defined]  # for the printer
        exc.add_note(f"python -m tests.long.simulation --seed {seed} --history {number}")
        raise


def play_many(seed: int, numbers: Iterable[int], *, gateway: type[FakeGateway] | None = None) -> Tally:
    """Runs until the first failure: a broken invariant or a crash."""
    histories = steps = claims = 0
    for number in numbers:
        try:
            story = play_in_memory(seed, number, gateway=gateway)
        except Exception as exc:  # raised with its number, so that it can be replayed
            law = name_law(exc)
            return Tally(histories=histories + 1, steps=steps, claims=claims, broken=number, law=law)
        histories += 1
        steps += story.steps
        claims += story.claims
    return Tally(histories=histories, steps=steps, claims=claims)


def name_law(exc: Exception) -> str:
    """The failure of a history: a broken invariant, or an exception of the code."""
    return str(exc) if isinstance(exc, AssertionError) and str(exc) else repr(exc)


HISTORY_S = 0.1
"""The most that a history takes on average; it takes about 0.004."""


def play_in_processes(seed: int, histories: int, *, jobs: int) -> list[Tally]:
    """Runs histories in several processes."""
    share = -(-histories // jobs)
    starts = range(0, histories, share)
    program = [sys.executable, "-m", "tests.long.simulation", f"--seed={seed}"]
    running = [
        subprocess.Popen(
            [*program, f"--first={start}", f"--histories={min(share, histories - start)}", "--json"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for start in starts
    ]
    told = [process.communicate(timeout=DEADLINE_S + share * HISTORY_S)[0] for process in running]
    for process in running:
        assert process.returncode == 0, f"{process.args} ended with {process.returncode}"
    return [Tally(**json.loads(one)) for one in told]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.long.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--history", type=int, help="play this one, step by step")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--histories", type=int, default=100_000)
    parser.add_argument("--alone", action="store_true", help="one gateway at a time, as on SQLite")
    parser.add_argument("--broken", choices=sorted(BREAKAGES), help="with books that are broken on purpose")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    gateway = BREAKAGES[asked.broken] if asked.broken else None
    if asked.history is not None:
        _replay(asked.seed, asked.history, gateway, is_alone=asked.alone)
        return
    gc.disable()  # histories are small and make no lasting rings
    tally = play_many(asked.seed, _swept(range(asked.first, asked.first + asked.histories)), gateway=gateway)
    print(json.dumps(asdict(tally)) if asked.json else tally)
    if not asked.json and tally.broken is not None:
        sys.exit(f"python -m tests.long.simulation --seed {asked.seed} --history {tally.broken}")


def _swept(numbers: range) -> Iterable[int]:
    for number in numbers:
        if number % 2_000 == 0:
            gc.collect()
        yield number


def _replay(seed: int, number: int, gateway: type[FakeGateway] | None, *, is_alone: bool) -> None:
    try:
        story = play_in_memory(seed, number, gateway=gateway, is_alone=is_alone, tells=True)
        print(*story.told, sep="\n")
    except Exception as exc:  # only the history up to there is wanted
        print(*exc.story.told, sep="\n")  # type: ignore[attr-defined]  # set by play_in_memory
        if not isinstance(exc, AssertionError):
            traceback.print_exc()
        sys.exit(f"history {number} of seed {seed} broke a law: {name_law(exc)}")
