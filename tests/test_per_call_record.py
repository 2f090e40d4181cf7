"""Records that are made for each call: fields by name, equal by value, and frozen for the type checker."""

from dataclasses import field, replace
from pathlib import Path

import pytest
from mypy import api

from tollway.per_call_record import per_call_record


@per_call_record
class Sample:
    number: int
    name: str = "one"
    note: str = field(default="", compare=False)


def test_fields_are_given_by_name_and_are_all_there_is() -> None:
    sample = Sample(number=1)
    assert (sample.number, sample.name) == (1, "one")
    with pytest.raises(TypeError):
        Sample(1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        sample.other = 1  # type: ignore[attr-defined]


def test_equal_fields_are_equal_records() -> None:
    assert Sample(number=1, note="a") == Sample(number=1, note="b")
    assert len({Sample(number=1), Sample(number=1), replace(Sample(number=1), name="two")}) == 2


def test_the_type_checker_refuses_to_change_a_field(tmp_path: Path) -> None:
    path = tmp_path / "changes.py"
    path.write_text(
        "from tollway.per_call_record import per_call_record\n"
        "@per_call_record\n"
        "class Sample:\n"
        "    number: int\n"
        "sample = Sample(number=1)\n"
        "sample.number = 2\n"
    )
    shown, _, status = api.run(
        ["--no-incremental", f"--cache-dir={tmp_path}", "--no-error-summary", str(path)]
    )
    assert status == 1
    assert shown.endswith('changes.py:6: error: Property "number" defined in "Sample" is read-only  [misc]\n')
