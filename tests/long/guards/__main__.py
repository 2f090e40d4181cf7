"""`python -m tests.long.guards [words]`: takes each guard away from a copy of the package and shows that its test fails.

`words`: only guards of the theme with this name (`mutants`), or whose threat, name or test holds one of them. Without them the table is written to `build/guards.md` too.
Ends with 1 when a guard went unnoticed.
"""

import os
import sys
import time

from tests.long.guards.breaking import ROOT, Breakage, Verdict, judge_all
from tests.long.guards.registry import GUARDS, Guard

SAID_LENGTH_MAX = 110
TABLE = ROOT / "build" / "guards.md"
HEADING = "| threat | guard | its test | without the guard | what the test said |\n|---|---|---|---|---|"


def wanted(words: list[str]) -> list[Guard]:
    return [
        one
        for one in GUARDS
        if not words
        or any(word == one.theme or word in f"{one.threat} {one.name} {one.test}" for word in words)
    ]


def write_row(verdict: Verdict) -> str:
    """Of a Markdown table."""
    guard = verdict.breakage
    assert isinstance(guard, Guard)
    said = verdict.said if not verdict.is_caught else verdict.said[:SAID_LENGTH_MAX]
    told = "fails" if verdict.is_caught else "**UNNOTICED**"
    words = " ".join(said.split()).replace("|", "\\|")
    return f"| {guard.threat} | {guard.name} | `{guard.test}` | {told} | {words} |"


def _place(verdict: Verdict) -> int:
    order: tuple[Breakage, ...] = GUARDS
    return order.index(verdict.breakage)


def main() -> int:
    started_s = time.monotonic()
    guards = wanted(sys.argv[1:])
    print(HEADING)
    verdicts = judge_all(
        guards,
        workers=max(1, int(os.environ.get("WORKERS", "2"))),
        show=lambda verdict: print(write_row(verdict), flush=True),
    )
    if len(guards) == len(GUARDS):
        TABLE.parent.mkdir(exist_ok=True)
        rows = [write_row(verdict) for verdict in sorted(verdicts, key=_place)]
        TABLE.write_text("\n".join([HEADING, *rows, ""]), encoding="utf-8")
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
