"""`python -m tests.system.transcripts`: plays the sections and compares them with the recordings, over both databases.

`--record`            writes the recordings down (after both databases have told the same)
`--ignore-prose`      leaves `title` and `detail` out of the comparison
`--codes`             how many exchanges and which error codes stand in the recordings
`--database KIND`     sqlite or postgresql alone
`NAME ...`            only these families
"""

import argparse
import contextlib
import sys
import time

from tests.kit.databases import run_postgres
from tests.system.transcripts.databases import KINDS
from tests.system.transcripts.families import NAMES, Run
from tests.system.transcripts.recorder import RECORDINGS, compare, count_exchanges, find_codes, path_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.system.transcripts", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="NAME")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--ignore-prose", action="store_true")
    parser.add_argument("--codes", action="store_true")
    parser.add_argument("--database", choices=KINDS)
    wanted = parser.parse_args()
    if wanted.codes:
        return show_codes()
    failures = 0
    with contextlib.ExitStack() as stack:
        run = Run(lambda: stack.enter_context(run_postgres()))
        try:
            for name in wanted.families or NAMES:
                failures += not play(run, name, wanted)
        finally:
            run.close()
    return 1 if failures else 0


def play(run: Run, name: str, wanted: argparse.Namespace) -> bool:
    told = {}
    for kind in [wanted.database] if wanted.database else KINDS:
        started = time.monotonic()
        recorder = run.play(name, kind)
        told[kind] = recorder.text
        print(
            f"{name} over {kind}: {recorder.exchanges} exchanges, {time.monotonic() - started:.1f} s",
            flush=True,
        )
    first, *others = told.values()
    is_same = True
    if wanted.record:
        RECORDINGS.mkdir(exist_ok=True)
        path_of(name).write_text(first, encoding="utf-8")
        for other in others:
            difference = compare(first, other, name=f"{name}, the second database")
            print(difference, end="")
            is_same = is_same and not difference
        return is_same
    for kind, text in told.items():
        recorded = path_of(name).read_text(encoding="utf-8")
        difference = compare(recorded, text, name=f"{name} over {kind}", ignores_prose=wanted.ignore_prose)
        if difference:
            print(difference)
            is_same = False
    return is_same


def show_codes() -> int:
    counts = {name: count_exchanges(name) for name in NAMES}
    for name, count in counts.items():
        print(f"{name}: {count} exchanges")
    codes = find_codes()
    print(f"{sum(counts.values())} exchanges over each of {len(KINDS)} databases, {len(codes)} codes")
    print("\n".join(sorted(codes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
