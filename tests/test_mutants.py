"""Each mutant of `make mutants` still applies, and its test is still there."""

import pytest

from tests.guards.breaking import SOURCE, Breakage, is_defined, mutate
from tests.mutants import MUTANTS


def test_there_are_five() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == 5


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_test_exists(mutant: Breakage) -> None:
    for edit in mutant.edits:
        changed = mutate(edit, SOURCE / "tollway")
        if edit.is_python:
            compile(changed, edit.place, "exec")
    assert is_defined(mutant.test)
