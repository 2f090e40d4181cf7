"""docs/threat-model.md keeps its word: each threat has tests that exist, and what is open claims none."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "threat-model.md"
HEADING = "\n## Which test holds it\n"
NOT_YET = "N"


def threats() -> list[str]:
    """The numbers of all rows, those of what is open too."""
    told, _, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
    return re.findall(r"^\| ([A-Z]\d+) \|", told, re.MULTILINE)


def named_tests() -> list[tuple[str, list[str]]]:
    _, _, listed = PAGE.read_text(encoding="utf-8").partition(HEADING)
    items = re.findall(r"^- ([A-Z]\d+): (.*(?:\n  .*)*)", listed, re.MULTILINE)
    return [(number, re.findall(r"`([^`]+)`", words)) for number, words in items]


@cache
def parsed(file: str) -> list[ast.stmt]:
    return ast.parse((TESTS / file).read_text(encoding="utf-8")).body


def is_defined(name: str) -> bool:
    """`file::function` or `file::Class::function`, below this folder."""
    file, *path = name.split("::")
    if not path or not path[-1].startswith("test_") or not (TESTS / file).is_file():
        return False
    body = parsed(file)
    for step in path:
        kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        found = [node for node in body if isinstance(node, kinds) and node.name == step]
        if not found:
            return False
        body = found[-1].body
    return True


def test_every_threat_has_its_tests_and_no_other_has() -> None:
    numbers, listed = threats(), named_tests()
    assert len(set(numbers)) == len(numbers) > 50
    assert [number for number, _ in listed] == [one for one in numbers if not one.startswith(NOT_YET)]
    assert all(tests for _, tests in listed)


def test_open_calls_are_reported() -> None:
    assert [one for one in threats() if one.startswith(NOT_YET)]


def test_every_named_test_exists() -> None:
    named = {test for _, tests in named_tests() for test in tests}
    assert sorted(name for name in named if not is_defined(name)) == []


@pytest.mark.parametrize(
    "name",
    [
        "test_threat_model.py",
        "test_threat_model.py::is_defined",
        "test_threat_model.py::test_that_is_not_there",
        "test_no_such_file.py::test_every_named_test_exists",
        "payments/test_transaction_verifier.py::test_a_stolen_hash_buys_nothing",
    ],
)
def test_a_name_of_nothing_is_noticed(name: str) -> None:
    assert not is_defined(name)
