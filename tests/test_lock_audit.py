"""`make audit` fails for a vulnerability and for a lock without hashes, and says in one line that it could not ask."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import lock_audit

HERE = Path(__file__).parent
LOCK = "alpha==1 \\\n    --hash=sha256:aa\nbeta==2 \\\n    --hash=sha256:bb\ngamma==3 \\\n    --hash=sha256:cc\ndelta==4 \\\n    --hash=sha256:dd\n"


class Auditor:
    """Stands in for pip-audit: knows `vulns` by package, skips `unknown`, and may be `away` after so many questions."""

    def __init__(
        self, *, vulns: dict[str, list[dict[str, Any]]], unknown: set[str], away_after: int = 99
    ) -> None:
        self.vulns, self.unknown, self.away_after = vulns, unknown, away_after
        self.asked: list[list[str]] = []

    def __call__(self, arguments: Sequence[str]) -> Any:
        lines = Path(arguments[-1]).read_text().splitlines()
        if "--dry-run" in arguments:
            bare = [line for line in lines if "==" in line and not line.endswith("\\")]
            told = f"ERROR: requirement {bare[0]} does not contain a hash\n" if bare else ""
            return lock_audit.Ran(code=1 if bare else 0, output="", complaint=told)
        names = [line.partition("==")[0] for line in lines if "==" in line]
        assert len([line for line in lines if "--hash=" in line]) >= len(names), (
            "a package without its hashes"
        )
        if len(self.asked) >= self.away_after:
            return lock_audit.Ran(code=1, output="", complaint="Traceback\nConnectionError: nobody there\n")
        self.asked.append(names)
        return lock_audit.Ran(
            code=1 if self.vulns else 0,
            output=json.dumps({"dependencies": [self._of(name) for name in names], "fixes": []}),
            complaint="",
        )

    def _of(self, name: str) -> dict[str, Any]:
        if name in self.unknown:
            return {"name": name, "skip_reason": "not found"}
        return {"name": name, "version": "1", "vulns": self.vulns.get(name, [])}


FOUND = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["9.9"], "description": "bad"}


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.txt"
    path.write_text(LOCK)
    return path


def test_what_is_known_to_be_harmless_passes(lock: Path) -> None:
    auditor = Auditor(vulns={}, unknown=set())
    code, lines = lock_audit.audit([lock], run=auditor, strict=True, accepted={})
    assert (code, lines) == (0, ["audit: gateway.txt: 4 packages, 0 vulnerabilities"])
    assert auditor.asked[-1] == ["alpha", "beta", "gamma", "delta"]


def test_a_vulnerability_fails_and_is_named(lock: Path) -> None:
    auditor = Auditor(vulns={"delta": [FOUND]}, unknown=set())
    code, lines = lock_audit.audit([lock], run=auditor, strict=False, accepted={})
    assert code == 1
    assert lines[1:] == ["  delta 1: PYSEC-1, CVE-1; fixed in 9.9"]


def test_an_accepted_advisory_is_reported_with_its_reason_and_fails_nothing(lock: Path) -> None:
    auditor = Auditor(vulns={"delta": [FOUND]}, unknown=set())
    code, lines = lock_audit.audit([lock], run=auditor, strict=True, accepted={"CVE-1": "never called"})
    assert code == 0
    assert lines[1:] == ["  delta 1: PYSEC-1, CVE-1; fixed in 9.9; accepted: never called"]


@pytest.mark.parametrize(
    ("unknown", "away_after"), [({"alpha", "beta", "gamma", "delta"}, 99), (set(), 0)], ids=["silent", "away"]
)
@pytest.mark.parametrize("strict", [True, False])
def test_an_index_without_the_data_is_one_line_and_read_once(
    lock: Path, unknown: set[str], away_after: int, strict: bool
) -> None:
    auditor = Auditor(vulns={}, unknown=unknown, away_after=away_after)
    code, lines = lock_audit.audit([lock], run=auditor, strict=strict, accepted={})
    assert code == (2 if strict else 0)
    assert len(lines) == 1
    assert "could not be audited" in lines[0]
    assert auditor.asked in ([], [["alpha", "beta", "gamma"]])


@pytest.mark.parametrize("strict", [True, False])
def test_one_package_that_is_not_known_is_named(lock: Path, strict: bool) -> None:
    auditor = Auditor(vulns={}, unknown={"delta"})
    code, lines = lock_audit.audit([lock], run=auditor, strict=strict, accepted={})
    assert code == (2 if strict else 0)
    assert lines[-1] == "  could not be audited: delta"


def test_what_was_found_before_the_index_went_away_still_fails(lock: Path, tmp_path: Path) -> None:
    other = tmp_path / "dev.txt"
    other.write_text(LOCK)
    auditor = Auditor(vulns={"delta": [FOUND]}, unknown=set(), away_after=2)
    code, lines = lock_audit.audit([lock, other], run=auditor, strict=True, accepted={})
    assert code == 1
    assert lines[-1] == "audit: dev.txt could not be audited: ConnectionError: nobody there"


def test_an_index_that_becomes_unavailable_is_reported(lock: Path) -> None:
    for strict, expected in ((True, 2), (False, 0)):
        auditor = Auditor(vulns={}, unknown=set(), away_after=1)
        code, lines = lock_audit.audit([lock], run=auditor, strict=strict, accepted={})
        assert (code, len(lines)) == (expected, 1)
        assert "could not be audited" in lines[0]


def test_a_package_without_a_hash_fails_before_any_request(lock: Path) -> None:
    lock.write_text(LOCK + "epsilon==5\n")
    auditor = Auditor(vulns={}, unknown=set())
    code, lines = lock_audit.audit([lock], run=auditor, strict=False, accepted={})
    assert code == 1
    assert lines[-1] == "gateway.txt: ERROR: requirement epsilon==5 does not contain a hash"
    assert auditor.asked == []


def test_every_lock_file_is_audited() -> None:
    assert set(lock_audit.LOCKS) == set((HERE.parent / "requirements").glob("*.txt"))
