"""The table of commands: its names, its examples, and that every text names only commands of the table."""

import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tollway.cli.command_group import load_command
from tollway.cli.commands import COMMANDS, GROUPS

ROOT = Path(__file__).parents[2]
NAMES = [row.name for row in COMMANDS]


def test_each_name_stands_for_one_command() -> None:
    names = [*NAMES, *(row.alias for row in COMMANDS if row.alias)]
    assert len(set(names)) == len(names)
    assert len({row.target for row in COMMANDS}) == len(COMMANDS)


def test_the_aliases_are_those_that_images_and_units_rely_on() -> None:
    assert {row.alias: row.name for row in COMMANDS if row.alias} == {
        name: f"gateway {name}" for name in ("serve", "doctor", "migrate", "backup", "restore", "audit")
    }
    assert {group.alias: words for words, group in GROUPS.items() if group.alias} == {
        "admin": "gateway admin"
    }


def test_the_help_of_a_row_is_the_first_line_of_its_function() -> None:
    first_lines = {}
    for row in COMMANDS:
        module, _, function = row.target.partition(":")
        doc = inspect.getdoc(getattr(importlib.import_module(module), function)) or ""
        first_lines[row.name] = doc.splitlines()[0]
    assert first_lines == {row.name: row.help for row in COMMANDS}


def test_an_example_is_valid() -> None:
    left_over = {}
    for row in COMMANDS:
        program, *words = shlex.split(row.example)
        name = row.name.split()
        assert [program, *words[: len(name)]] == ["tollway", *name]
        context = load_command(row).make_context(name[-1], words[len(name) :], resilient_parsing=False)
        left_over[row.name] = context.args
    assert left_over == {row.name: [] for row in COMMANDS}


def read_texts() -> Iterator[tuple[str, str]]:
    """Every text that a person reads: pages, and the strings of the package."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        if path.parent.name != "decisions":  # a decision names the commands of its day
            yield str(path.relative_to(ROOT)), path.read_text()
    for path in (ROOT / "src").rglob("*.py"):
        yield str(path.relative_to(ROOT)), path.read_text()


def test_every_command_that_a_text_names_is_in_the_table() -> None:
    aliases = [row.alias for row in COMMANDS if row.alias]
    aliases += [
        name.replace(words, group.alias, 1)
        for words, group in GROUPS.items()
        if group.alias
        for name in NAMES
        if name.startswith(f"{words} ")
    ]
    firsts = {name.split()[0] for name in NAMES} | {group.alias for group in GROUPS.values()}
    wrong = []
    for where, text in read_texts():
        for found in re.finditer(r"(?:`|\$ |; |run |^|/)tollway ((?:[a-z]+ ?)+)", text, re.MULTILINE):
            words = found[1].split()
            if words[0] == "import":
                continue
            known = any(words[: len(name.split())] == name.split() for name in [*NAMES, *GROUPS, *aliases])
            is_group_alone = words[0] in firsts and len(words) == 1
            if not known and not is_group_alone:
                wrong.append(f"{where}: {found[0].strip()}")
    assert wrong == []
