"""What a guard is here: a line of the threat model, the few words of code that hold it, and the test that must fail
without them.
"""

from dataclasses import dataclass

from tests.guards.breaking import Breakage, Edit


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard(Breakage):
    """`threat`: its number in `docs/threat-model.md`. `name`: what the guard holds, in a few words."""

    threat: str


def guard(threat: str, name: str, place: str, before: str, after: str, *, test: str) -> Guard:
    """A guard that one edit takes away. `place`: see `Edit`. `test` is below `tests/`."""
    edit = Edit(place=place, before=before, after=after)
    return Guard(threat=threat, name=name, edits=(edit,), test=f"tests/{test}")
