"""The table of guards is complete: each guard can be removed, each names an existing test, and the runner reports its
result. `make guards` shows that the tests fail."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.long.guards.breaking import SOURCE, Breakage, Edit, Run, Workshop, is_defined, judge_group, mutate
from tests.long.guards.registry import GUARDS, Guard, read_guards, write_row


def test_there_are_many_and_each_has_a_name_of_its_own() -> None:
    names = [guard.name for guard in GUARDS]
    assert len(names) >= 40
    assert len(set(names)) == len(names)


def test_every_guard_can_be_taken_away_and_its_test_exists() -> None:
    by_place = sorted(GUARDS, key=lambda guard: guard.edits[0].place)  # each file is parsed once
    assert [problem for guard in by_place for problem in find_problems(guard)] == []


def find_problems(guard: Guard) -> Iterator[str]:
    """What keeps `make guards` from proving a guard."""
    for edit in guard.edits:
        try:
            changed = mutate(edit, SOURCE / "tollway")
            if edit.is_python:
                compile(changed, edit.place, "exec")
        except (ValueError, SyntaxError) as exc:
            yield f"{guard.name}: {exc}"
    if not is_defined(guard.test):
        yield f"{guard.name}: there is no test {guard.test}"


@pytest.mark.parametrize(
    ("edit", "first", "second"),
    [
        (Edit(place="limits", before="no such words", after=""), "there is no test", "0 times"),
        (Edit(place="limits:KIB", before="KIB = ", after="KIB = ("), "was never closed", "there is no test"),
    ],
)
def test_a_guard_that_cannot_be_proved_is_named_with_each_reason(edit: Edit, first: str, second: str) -> None:
    guard = Guard(
        threat="P1", name="a guard", edits=(edit,), test="tests/test_no_such_file.py::test_it", theme="x"
    )
    problems = list(find_problems(guard))
    assert len(problems) == 2
    assert all(one.startswith("a guard: ") for one in problems)
    assert all(any(words in one for one in problems) for words in (first, second))


ROW = "P1 | a guard\n  room:holds | True⏎ ⇒ False␣\n  test_room.py::test_it\n"


def test_a_row_is_a_guard_and_is_written_as_it_was_read(tmp_path: Path) -> None:
    (tmp_path / "room.txt").write_text(f"# A comment.\n\n{ROW}")
    (guard,) = read_guards(tmp_path)
    edit = Edit(place="room:holds", before="True\n", after="False ")
    assert guard == Guard(
        threat="P1", name="a guard", edits=(edit,), test="tests/test_room.py::test_it", theme="room"
    )
    assert "\n".join([*write_row(guard), ""]) == ROW


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("P1 a guard\n  room:holds | True ⇒ False\n  test_room.py::test_it\n", "room.txt:1: a row is"),
        ("P1 | a guard\n  test_room.py::test_it\n", "room.txt:1: a row is"),
        ("P1 | a guard\n  room:holds | True\n  test_room.py::test_it\n", "room.txt:1: an edit is"),
        ("\nP1 | a guard\n  room:holds ⇒ False\n  test_room.py::test_it\n", "room.txt:2: an edit is"),
    ],
)
def test_a_row_that_is_not_complete_is_named(tmp_path: Path, row: str, reason: str) -> None:
    (tmp_path / "room.txt").write_text(row)
    with pytest.raises(ValueError, match=re.escape(reason)):
        read_guards(tmp_path)


def test_the_mutants_are_five() -> None:
    assert len([guard for guard in GUARDS if guard.theme == "mutants"]) == 5


HOUSE = """\
one = 1
two: int = one

@mark
def three():
    return one

class Four:
    five = one

    async def six(self):
        return one
"""


@pytest.mark.parametrize(
    ("place", "changed"),
    [
        ("house:one", "{} = 1"),
        ("house:two", "two: int = {}"),
        ("house:three", "    return {}\n\nclass"),
        ("house:Four.six", "        return {}"),
        ("part:one", "{} = 2"),
    ],
)
def test_an_edit_changes_its_place_only(tmp_path: Path, place: str, changed: str) -> None:
    (tmp_path / "house.py").write_text(HOUSE)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "__init__.py").write_text("one = 2\n")
    text = mutate(Edit(place=place, before="one", after="ten"), tmp_path)
    original = "one = 2\n" if place.startswith("part") else HOUSE
    assert text == original.replace(changed.format("one"), changed.format("ten"))


@pytest.mark.parametrize(
    ("place", "before", "reason"),
    [
        ("house", "one", "5 times"),
        ("house:Four", "one", "2 times"),
        ("house:three", "two", "0 times"),
        ("house:seven", "one", "the name stands there 0 times"),
        ("house:Four.seven", "one", "the name stands there 0 times"),
        ("house:three.four", "one", "the name stands there 0 times"),
        ("elsewhere:one", "one", "no such module"),
    ],
)
def test_an_edit_that_does_not_apply_any_more_is_shown(
    tmp_path: Path, place: str, before: str, reason: str
) -> None:
    (tmp_path / "house.py").write_text(HOUSE)
    with pytest.raises(ValueError, match=f"{place}: .*{reason}"):
        mutate(Edit(place=place, before=before, after=""), tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "tests/long/guards/test_guards.py",
        "tests/long/guards/test_guards.py::GOOD",
        "tests/long/guards/test_guards.py::test_that_is_not_there",
        "tests/long/guards/test_that_is_not_there.py::test_it",
    ],
)
def test_a_name_of_nothing_is_no_test(name: str) -> None:
    assert not is_defined(name)


BEFORE, BREAKAGE = "def holds():\n    return True\n", Edit(place="room:holds", before="True", after="False")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A package of one guard, and its test."""
    source = tmp_path / "src"
    (source / "tollway").mkdir(parents=True)
    (source / "tollway" / "room.py").write_text(BEFORE)
    (tmp_path / "test_room.py").write_text(
        f"import sys\n\ndef test_it():\n    sys.path.insert(0, {str(source / 'tollway')!r})\n"
        "    from room import holds\n    assert holds(), 'it does not hold'\n"
    )
    return source


def test_the_machine_breaks_runs_and_mends(source: Path) -> None:
    breakage = Breakage(name="x", edits=(BREAKAGE,), test=f"{source.parent}/test_room.py::test_it")
    (verdict,) = judge_group(Workshop(source), [breakage])
    assert verdict.is_caught
    assert "it does not hold" in verdict.said
    assert (source / "tollway" / "room.py").read_text() == BEFORE


class Rehearsed(Workshop):
    """Its runs are known before."""

    def __init__(self, source: Path, *runs: Run) -> None:
        super().__init__(source)
        self._runs = list(runs)

    def run(self, tests: Sequence[str], *, deadline_s: float = 0.0) -> Run:
        return self._runs.pop(0)


GOOD, SKIPPED = Run(code=0, output="1 passed in 0.1s"), Run(code=0, output="1 skipped in 0.1s")
FAILING = Run(code=1, output="FAILED test_room.py::test_it[a b] - AssertionError: it does not hold\n1 failed")
ERROR = Run(code=1, output="ERROR test_room.py::test_it - OSError: no room\n1 error")
UNKNOWN_NAME = Run(code=1, output="FAILED test_room.py::test_it - NameError: name 'x' is not defined")


@pytest.mark.parametrize(
    ("runs", "edit", "said"),
    [
        ((GOOD, FAILING), BREAKAGE, None),
        ((GOOD, GOOD), BREAKAGE, "NOT NOTICED"),
        ((GOOD, ERROR), BREAKAGE, "pytest ended with 1"),
        ((GOOD, SKIPPED), BREAKAGE, "pytest ended with 0"),
        ((GOOD, Run(code=124, output="it did not end")), BREAKAGE, "pytest ended with 124: it did not end"),
        ((GOOD, Run(code=-11, output="it does not hold")), BREAKAGE, None),
        ((GOOD, UNKNOWN_NAME), BREAKAGE, "the edit breaks more than the guard: NameError"),
        ((GOOD,), Edit(place="room:holds", before="True", after="("), "the edit breaks more than the guard"),
        ((GOOD,), Edit(place="room:holds", before="no such words", after=""), "stands there 0 times"),
        ((FAILING, FAILING), BREAKAGE, "without the breakage: AssertionError"),
        ((SKIPPED, SKIPPED), BREAKAGE, "without the breakage: skipped"),
        ((FAILING, GOOD, FAILING), BREAKAGE, None),
    ],
)
def test_only_a_test_that_passes_with_the_guard_and_fails_by_itself_without_counts(
    source: Path, runs: Sequence[Run], edit: Edit, said: str | None
) -> None:
    breakage = Breakage(name="x", edits=(edit,), test="test_room.py::test_it")
    (verdict,) = judge_group(Rehearsed(source, *runs), [breakage])
    assert verdict.is_caught is (said is None)
    assert said is None or said in verdict.said
    assert (source / "tollway" / "room.py").read_text() == BEFORE
