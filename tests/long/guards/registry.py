"""The registry of guards: which threat, which words of the code hold it, and which test fails without them.

The rows stand in the files `rows/*.txt` beside this module, a theme each. A row is three lines:

    P1 | a balance that 64 bits do not hold is refused
      storage.payments:raise_payment | .where(columns.id == payment_id, …) ⇒ .where(columns.id == payment_id)
      contracts/test_settlement.py::test_authorisations_that_add_up_to_more_than_64_bits_are_refused

The first names a threat of `docs/threat-model.md` and what the guard holds. The second is an `Edit`: place, text before, text after; `⏎` is the end
of a line of the code, `␣` a space at the end of a text, and a row with several edits has a line for each. The last is the test, below `tests/`. A line that begins with `#` is a
comment.

`held.txt` names what has no such words, a line each: `O1 | system/attack/test_outbound.py::test_…`, a further test of a threat, and
`header_bytes_max | web/http/test_middleware.py::test_…`, the test of a limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.long.guards.breaking import Breakage, Edit

ROWS = Path(__file__).parent / "rows"
HELD = ROWS / "held.txt"
LINE_END, LAST_SPACE = "⏎", "␣"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard(Breakage):
    """`threat`: its number in `docs/threat-model.md`. `name`: what the guard holds, in a few words. `theme`: the name of its file."""

    threat: str
    theme: str


def read_guards(folder: Path = ROWS) -> tuple[Guard, ...]:
    """The rows of all themes, in the order of their files. Raises ValueError with the file and the line of a row that is not complete."""
    return tuple(
        guard
        for path in sorted(folder.glob("*.txt"))
        if path.name != HELD.name
        for guard in _read_theme(path)
    )


def read_held(path: Path = HELD) -> tuple[tuple[str, str], ...]:
    """Pairs of a threat or a limit, and a test below `tests/`."""
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if line and line[0] != "#")
    return tuple((name, test) for name, _, test in (line.partition(" | ") for line in lines))


def _read_theme(path: Path) -> Iterator[Guard]:
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line or line.startswith("#"):
            continue
        if line.startswith("  "):
            rows[-1][1].append(line[2:])
        else:
            rows.append((number, [line]))
    for number, lines in rows:
        threat, separator, name = lines[0].partition(" | ")
        if len(lines) < 3 or not separator:
            raise ValueError(
                f"{path.name}:{number}: a row is a threat and a name, an edit or more, and a test"
            )
        edits = tuple(_read_edit(line, f"{path.name}:{number}") for line in lines[1:-1])
        yield Guard(threat=threat, name=name, edits=edits, test=f"tests/{lines[-1]}", theme=path.stem)


def _read_edit(line: str, where: str) -> Edit:
    place, has_place, words = line.partition(" | ")
    before, has_after, after = words.partition(" ⇒")
    if not has_place or not has_after:
        raise ValueError(f"{where}: an edit is `place | before ⇒ after`")
    return Edit(place=place, before=_unfold(before), after=_unfold(after.removeprefix(" ")))


def _unfold(text: str) -> str:
    return text.replace(LINE_END, "\n").replace(LAST_SPACE, " ")


def write_row(guard: Guard) -> Sequence[str]:
    """The lines of a row."""
    edits = (f"  {edit.place} | {_fold(edit.before)} ⇒ {_fold(edit.after)}".rstrip() for edit in guard.edits)
    return (f"{guard.threat} | {guard.name}", *edits, f"  {guard.test.removeprefix('tests/')}")


def _fold(text: str) -> str:
    kept = text[:-1] + LAST_SPACE if text.endswith(" ") else text
    return kept.replace("\n", LINE_END)


GUARDS = read_guards()
