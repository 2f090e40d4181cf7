"""docs/threat-model.md keeps its word: each threat has tests that exist, and what is open claims none. `tests/long/guards/rows` names the tests."""

import re
from pathlib import Path

from tests.long.guards.breaking import is_defined
from tests.long.guards.registry import GUARDS, read_held

PAGE = Path(__file__).parents[1] / "docs" / "threat-model.md"
THREAT = re.compile(r"[A-Z]\d+")
NOT_YET = "N"


def list_threats() -> list[str]:
    """The numbers of all rows of the page, those of what is open too."""
    return re.findall(r"^\| ([A-Z]\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_threat_has_a_test_and_what_is_open_has_none() -> None:
    threats = list_threats()
    assert len(set(threats)) == len(threats) > 50
    held = {guard.threat for guard in GUARDS} | {name for name, _ in read_held() if THREAT.fullmatch(name)}
    assert held == {one for one in threats if not one.startswith(NOT_YET)}


def test_open_calls_are_reported() -> None:
    assert [one for one in list_threats() if one.startswith(NOT_YET)]


def test_every_named_test_exists_and_is_named_once() -> None:
    held = read_held()
    assert sorted({test for _, test in held if not is_defined(f"tests/{test}")}) == []
    by_guards = {(guard.threat, guard.test.removeprefix("tests/").partition("[")[0]) for guard in GUARDS}
    assert sorted(row for row in set(held) if held.count(row) > 1 or row in by_guards) == []
