"""Each mutant of `make mutants` still applies, and its test is still there."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def _load(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mutants = _load("tollway_mutants", HERE / "mutants.py")


def test_there_are_five() -> None:
    assert len({mutant.name for mutant in mutants.MUTANTS}) == 5


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_and_its_test_exists(mutant: Any) -> None:
    for edit in mutant.edits:
        changed = mutants.mutate(edit, mutants.SOURCE / "tollway")
        compile(changed, edit.path, "exec")
    path, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (mutants.ROOT / path).read_text()


def test_a_mutant_that_does_not_apply_any_more_is_told(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text("one = 1\none = 1\n")
    for before in ("one = 1\n", "two"):
        with pytest.raises(ValueError, match=r"room\.py"):
            mutants.mutate(mutants.Edit(path="room.py", before=before, after=""), tmp_path)
