"""`python -m tests.long.torture.soak [--seconds 3600] [--database sqlite|postgresql] [--seed N]`: a soak, an hour of it on each database unless told otherwise.
Exit code 1 when something is lost; the seed and the reason are printed. The checks between the rounds take about a third of the time again."""

import argparse
import os
import sys
from pathlib import Path

import pytest

TEST = Path(__file__).with_name("soak_calls.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3_600.0, help="of load, on each database")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="both unless given")
    parser.add_argument("--seed", type=int, help="drawn unless given")
    options = parser.parse_args()
    os.environ.update(TORTURE="long", SOAK_SECONDS=str(options.seconds))
    if options.seed is not None:
        os.environ["TORTURE_SEED"] = str(options.seed)
    chosen = ["-k", f"on-{options.database}"] if options.database else []
    exit_code = pytest.main(["-q", "-x", str(TEST), *chosen])
    print("Nothing is lost." if exit_code == 0 else "The soak FAILED: see the reason and TORTURE_SEED above.")
    return int(exit_code)


if __name__ == "__main__":
    sys.exit(main())
