"""The table of commands: its names, its examples, and that every text names only commands of the table."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tollway.cli.command_group import load_command
from tollway.cli.commands import ALIASES, COMMANDS, GROUPS, ROLES

ROOT = Path(__file__).parents[2]


def test_each_name_stands_for_one_command() -> None:
    assert not ALIASES.keys() & {name.split()[0] for name in COMMANDS}
    assert len({row.target for row in COMMANDS.values()}) == len(COMMANDS)


def test_each_command_has_one_role() -> None:
    assert sorted(word for role in ROLES for word in role.words) == sorted(
        {name.split()[0] for name in COMMANDS}
    )


def test_the_aliases_are_those_that_images_and_units_rely_on() -> None:
    assert ALIASES == {
        "serve": "gateway serve",
        "doctor": "gateway doctor",
        "migrate": "gateway migrate",
        "backup": "gateway backup",
        "restore": "gateway restore",
        "audit": "gateway audit",
        "admin": "gateway admin",
    }


def test_an_example_is_valid() -> None:
    wrong = []
    for name, row in COMMANDS.items():
        program, *words = shlex.split(row.example)
        count = len(name.split())
        try:
            rest = load_command(name).make_context(name.split()[-1], words[count:]).args
        except Exception as exc:
            rest = [repr(exc)]
        if [program, *words[:count]] != ["tollway", *name.split()] or rest:
            wrong.append((row.example, rest))
    assert wrong == []


def read_texts() -> Iterator[tuple[str, str]]:
    """Every text that a person reads: pages, and the strings of the package."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        if path.parent.name != "decisions":  # a decision names the commands of its day
            yield str(path.relative_to(ROOT)), path.read_text()
    for path in (ROOT / "src").rglob("*.py"):
        yield str(path.relative_to(ROOT)), path.read_text()


def test_every_command_that_a_text_names_is_in_the_table() -> None:
    firsts = {name.split()[0] for name in (*COMMANDS, *ALIASES)}
    wrong = []
    for where, text in read_texts():
        for found in re.finditer(r"(?:`|\$ |; |run |^|/)tollway ((?:[a-z]+ ?)+)", text, re.MULTILINE):
            words = found[1].split()
            if words[0] == "import":
                continue
            is_group_alone = words[0] in firsts and len(words) == 1
            words = [*ALIASES.get(words[0], words[0]).split(), *words[1:]]
            known = any(words[: len(name.split())] == name.split() for name in (*COMMANDS, *GROUPS))
            if not known and not is_group_alone:
                wrong.append(f"{where}: {found[0].strip()}")
    assert wrong == []
