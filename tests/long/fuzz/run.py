"""Coverage-guided fuzzing of every target, each for its share of the time: `python -m tests.long.fuzz.run --seconds 120`.

Needs atheris, which there is for Linux on x86_64; elsewhere it says so and ends well, and the corpus and the random inputs of
`test_corpus.py` are all there is. Each target runs in a process of its own. Nothing is added to the committed corpus: what is
found grows in a folder that is thrown away, and an input that breaks a promise is printed.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
INPUT_BYTES_MAX = 4_096
INPUT_DEADLINE_S = 5
MEMORY_MIB_MAX = 2_048
START_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together")
    parser.add_argument("--runs", type=int, default=-1, help="of each target at most")
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed here (it needs Linux on x86_64): nothing was fuzzed.")
        return 0
    if options.one:
        fuzz(options.one, seconds=options.seconds, runs=options.runs)
        return 0
    names = options.target or list_targets()
    share_s = max(1, options.seconds // len(names))
    broken = [name for name in names if not run(name, seconds=share_s, runs=options.runs)]
    print(f"{len(names)} targets, {share_s} s each; broken: {', '.join(broken) or 'none'}")
    return 1 if broken else 0


def list_targets() -> list[str]:
    """Every target has a folder of its own in the corpus; `test_corpus.py` sees to that."""
    return sorted(folder.name for folder in CORPUS.iterdir() if folder.is_dir())


def run(name: str, *, seconds: int, runs: int) -> bool:
    """One target in a process of its own; True when nothing was found."""
    command = (
        sys.executable,
        "-m",
        "tests.long.fuzz.run",
        "--one",
        name,
        "--seconds",
        str(seconds),
        "--runs",
        str(runs),
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds + START_S + INPUT_DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            print(f"{name}: did not end\n{(late.stdout or b'').decode(errors='replace')[-2_000:]}")
            return False
        found = [one.read_bytes() for one in Path(folder).iterdir() if one.is_file()]
    told = done.stdout.decode(errors="replace")
    last = next((line for line in reversed(told.splitlines()) if line.startswith("Done")), "").strip()
    print(f"{name}: {'ok' if done.returncode == 0 else 'BROKEN'}  {last}", flush=True)
    if done.returncode != 0:
        print(told[-4_000:])
        for one in found:
            print(f"{name}: by {one!r}")
    return done.returncode == 0


def fuzz(name: str, *, seconds: int, runs: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["tollway", "http_sf", "tests.long.fuzz.targets"]):
        from tests.long.fuzz.targets import TARGETS
    os.mkdir("grown")
    limits = (
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-timeout={INPUT_DEADLINE_S}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        f"-runs={runs}",
        "-print_final_stats=0",
    )
    atheris.Setup([__file__, *limits, "grown", str(CORPUS / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
