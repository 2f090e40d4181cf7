"""`python -m tests.guards [words]`: takes each guard away from a copy of the package and shows that its test fails.

`words`: only guards whose threat, name or test holds one of them. Ends with 1 when a guard went unnoticed.
"""

import os
import sys
import time

from tests.guards.breaking import Breakage, Verdict, judge_all
from tests.guards.guard import Guard
from tests.guards.guards import GUARDS

SAID_LENGTH_MAX = 110


def wanted(words: list[str]) -> list[Guard]:
    return [
        one
        for one in GUARDS
        if not words or any(word in f"{one.threat} {one.name} {one.test}" for word in words)
    ]


def show(verdict: Verdict) -> None:
    """One row of a Markdown table."""
    guard = verdict.breakage
    assert isinstance(guard, Guard)
    said = verdict.said if not verdict.is_caught else verdict.said[:SAID_LENGTH_MAX]
    told = "fails" if verdict.is_caught else "**UNNOTICED**"
    words = " ".join(said.split()).replace("|", "\\|")
    print(f"| {guard.threat} | {guard.name} | `{guard.test}` | {told} | {words} |", flush=True)


def _place(verdict: Verdict) -> int:
    order: tuple[Breakage, ...] = GUARDS
    return order.index(verdict.breakage)


def main() -> int:
    started_s = time.monotonic()
    guards = wanted(sys.argv[1:])
    print("| threat | guard | its test | without the guard | what the test said |\n|---|---|---|---|---|")
    verdicts = judge_all(guards, workers=max(1, int(os.environ.get("WORKERS", "2"))), show=show)
    unnoticed = sorted((one for one in verdicts if not one.is_caught), key=_place)
    caught = len(verdicts) - len(unnoticed)
    print(
        f"\n{caught} of {len(guards)} guards: the test fails without them ({time.monotonic() - started_s:.0f} s)"
    )
    for verdict in unnoticed:
        print(f"UNNOTICED: {verdict.breakage.name} ({verdict.breakage.test}): {verdict.said}")
    return 0 if caught == len(guards) else 1


if __name__ == "__main__":
    sys.exit(main())
