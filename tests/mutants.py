"""Five ways to break the gateway, each as an exact replacement of text, and the test that must notice.

`make mutants` (or `python tests/mutants.py`) copies the package, applies one mutant at a time to the copy, runs the
named test on it, and takes the mutant back. Each test must pass before and fail with its mutant. The package itself is
never touched. `tests/test_mutants.py` asserts on every run that each mutant still applies.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
TEST_DEADLINE_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """`path` is below `src/tollway`; `before` stands there exactly once."""

    path: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A breakage, and the test (a pytest node id) that must notice it."""

    name: str
    edits: tuple[Edit, ...]
    test: str


MUTANTS = (
    Mutant(
        name="no unique key",
        edits=(
            Edit(
                path="storage/migrations/versions/0001_books.py",
                before='        sa.UniqueConstraint("tx_hash", "chain_id", "asset", "payer", "payee", name="uq_payment_transfer"),\n',
                after="",
            ),
        ),
        test="tests/contracts/test_book.py::test_records_a_payment_once[sqlite]",
    ),
    Mutant(
        name="signature not checked",
        edits=(
            Edit(
                path="payments/till.py",
                before="mine = [payment for payment in counting if payment.payer in showing.keys(payment.chain_id)]",
                after="mine = list(counting)",
            ),
        ),
        test="tests/gateway/test_serve.py::test_a_stranger_may_not_spend_a_known_payment",
    ),
    Mutant(
        name="claim after forward",
        edits=(
            Edit(
                path="outbound/dialer.py",
                before="            await before_send()\n",
                after="            pass\n",
            ),
            Edit(
                path="outbound/dialer.py",
                before="            head = await self._deliver(request, connection, progress, head_deadline_s)\n",
                after=(
                    "            head = await self._deliver(request, connection, progress, head_deadline_s)\n"
                    "            await before_send()\n"
                ),
            ),
        ),
        test="tests/gateway/test_serve.py::test_fifty_callers_and_a_payment_for_ten_make_ten_requests",
    ),
    Mutant(
        name="timeout answered with 402",
        edits=(
            Edit(
                path="web/problems.py",
                before="Code.UPSTREAM_TIMEOUT: _passing(504,",
                after="Code.UPSTREAM_TIMEOUT: _passing(402,",
            ),
        ),
        test="tests/gateway/test_forward.py::test_a_head_that_does_not_come_in_time_is_held",
    ),
    Mutant(
        name="release without fence",
        edits=(
            Edit(
                path="storage/posting.py",
                before=(
                    "        if call is None or call.owner_id != self._posting.owner_id"
                    " or call.epoch != close.epoch:\n"
                ),
                after="        if call is None:\n",
            ),
        ),
        test="tests/contracts/test_book.py::test_a_close_by_another_gateway_or_epoch_is_fenced[sqlite]",
    ),
)


def mutate(edit: Edit, package: Path) -> str:
    """The text of that file with the edit. Raises ValueError when it does not apply."""
    text = (package / edit.path).read_text()
    if text.count(edit.before) != 1:
        raise ValueError(f"{edit.path}: the text to replace stands there {text.count(edit.before)} times")
    return text.replace(edit.before, edit.after)


def run_test(test: str, source: Path) -> int:
    """pytest's exit code, with the package taken from `source`."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    told = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TEST_DEADLINE_S,
    )
    return told.returncode


def judge(mutant: Mutant, source: Path) -> str:
    """`caught`, or what went wrong."""
    if run_test(mutant.test, source) != 0:
        return "its test fails without it, too"
    package = source / "tollway"
    originals = {edit.path: (package / edit.path).read_text() for edit in mutant.edits}
    try:
        for edit in mutant.edits:
            (package / edit.path).write_text(mutate(edit, package))
        code = run_test(mutant.test, source)
    finally:
        for path, text in originals.items():
            (package / path).write_text(text)
    return {0: "SURVIVED", 1: "caught"}.get(code, f"pytest ended with {code}")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="tollway-mutants-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        where = subprocess.run(
            [sys.executable, "-c", "import tollway; print(tollway.__file__)"],
            env={**os.environ, "PYTHONPATH": str(source)},
            capture_output=True,
            text=True,
            check=True,
        )
        if not where.stdout.startswith(str(source)):
            print(f"the copy is not what is imported: {where.stdout}")
            return 1
        verdicts = []
        for mutant in MUTANTS:
            verdicts.append(judge(mutant, source))
            print(f"{mutant.name:<26} {verdicts[-1]:<10} {mutant.test}", flush=True)
    return 0 if all(verdict == "caught" for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
