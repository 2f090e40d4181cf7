"""Checks every locked Python package for known vulnerabilities (`make audit`, a part of `make check`).

It runs in the Python of `.venv-audit`, where pip-audit is installed. It must never accept a lock file that names a
package without a hash, nor a vulnerability. Where the package index has no data about vulnerabilities, as many
mirrors, it reports that in one line and fails nothing, unless it runs with `--strict`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCKS = tuple(
    ROOT / "requirements" / f"{name}.txt"
    for name in (
        "build",
        "caller",
        "mcp",
        "gateway",
        "demo",
        "redis",
        "quick",
        "dev",
        "bench",
        "audit",
        "deploy",
        "docs",
        "otel",
        "search",
        "image",
    )
)

ACCEPTED: dict[str, str] = {}
"""The id of a vulnerability -> why it cannot hurt here. Such a one is told and fails nothing."""

PROBE_PACKAGES = 3
"""An index that knows nothing of the first three packages is not asked about two hundred."""

RUN_DEADLINE_S = 300.0
OPTIONS = ("--require-hashes", "--disable-pip", "--progress-spinner", "off", "--format", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How one run of pip-audit ended."""

    code: int
    output: str
    complaint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one lock file's packages are known for. `vulnerable`: a line each; `accepted` are among those that we took."""

    known: frozenset[str]
    unknown: frozenset[str]
    vulnerable: tuple[str, ...]
    accepted: tuple[str, ...]


Run = Callable[[Sequence[str]], Ran]


def audit(
    locks: Sequence[Path], *, run: Run, strict: bool, accepted: dict[str, str]
) -> tuple[int, list[str]]:
    """The exit code, and what to print. 1: found something, or a lock is not one; 2: `strict`, and not everything was known."""
    broken = [
        f"{lock.name}: {_last_line(ran)}" for lock in locks if (ran := _only_read(lock, run=run)).code != 0
    ]
    if broken:
        return 1, ["audit: this is no lock file:", *broken]
    silence = 2 if strict else 0
    probed = _probe(locks[0], run=run, accepted=accepted)
    if isinstance(probed, Ran) or not probed.known:
        why = (
            _last_line(probed) if isinstance(probed, Ran) else "the package index tells of no vulnerabilities"
        )
        return silence, [f"audit: the dependencies could not be audited: {why}"]
    code, lines = 0, list[str]()
    for lock in locks:
        answer = _ask(lock, run=run, accepted=accepted)
        if isinstance(answer, Ran):
            code = code or silence
            lines.append(f"audit: {lock.name} could not be audited: {_last_line(answer)}")
            continue
        lines.append(
            f"audit: {lock.name}: {len(answer.known)} packages, {len(answer.vulnerable)} vulnerabilities"
        )
        lines += [f"  {line}" for line in (*answer.vulnerable, *answer.accepted)]
        if answer.unknown:
            code = code or silence
            lines.append(f"  could not be audited: {', '.join(sorted(answer.unknown))}")
        if answer.vulnerable:
            code = 1
    return code, lines


def _only_read(lock: Path, *, run: Run) -> Ran:
    """pip-audit reads the lock and sends no request: every package has a hash, or the audit names the one without."""
    return run(("--dry-run", "--requirement", str(lock)))


def _probe(lock: Path, *, run: Run, accepted: dict[str, str]) -> Answer | Ran:
    entries = re.split(r"^(?=[A-Za-z0-9])", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / "probe.txt"
        part.write_text("".join(entries[: PROBE_PACKAGES + 1]), encoding="utf-8")
        return _ask(part, run=run, accepted=accepted)


def _ask(lock: Path, *, run: Run, accepted: dict[str, str]) -> Answer | Ran:
    ran = run(("--requirement", str(lock)))
    try:
        return _read(ran.output, accepted=accepted)
    except (ValueError, KeyError, TypeError):
        return ran


def _read(report: str, *, accepted: dict[str, str]) -> Answer:
    known, unknown = set[str](), set[str]()
    vulnerable, taken = list[str](), list[str]()
    for package in json.loads(report)["dependencies"]:
        if "skip_reason" in package:
            unknown.add(package["name"])
            continue
        known.add(package["name"])
        for found in package["vulns"]:
            names = [found["id"], *found["aliases"]]
            fixed = ", ".join(found["fix_versions"]) or "nowhere yet"
            line = f"{package['name']} {package['version']}: {', '.join(names)}; fixed in {fixed}"
            reasons = [accepted[name] for name in names if name in accepted]
            if reasons:
                taken.append(f"{line}; accepted: {reasons[0]}")
            else:
                vulnerable.append(line)
    return Answer(
        known=frozenset(known),
        unknown=frozenset(unknown),
        vulnerable=tuple(vulnerable),
        accepted=tuple(taken),
    )


def _last_line(ran: Ran) -> str:
    return (ran.complaint.strip() or f"pip-audit ended with {ran.code}").splitlines()[-1][:300]


def _pip_audit(arguments: Sequence[str]) -> Ran:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip_audit", *OPTIONS, *arguments],
            capture_output=True,
            text=True,
            timeout=RUN_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ran(code=-1, output="", complaint=f"no answer in {RUN_DEADLINE_S:.0f} s")
    return Ran(code=done.returncode, output=done.stdout, complaint=done.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--strict", action="store_true", help="fail, too, where something could not be audited"
    )
    code, lines = audit(LOCKS, run=_pip_audit, strict=parser.parse_args().strict, accepted=ACCEPTED)
    print("\n".join(lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
