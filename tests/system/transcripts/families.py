"""All families of sections, and how one of them is run: a fresh gateway, its sections in their order, its transcript."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pytest
from _pytest.mark.structures import ParameterSet

from tests.kit.forkserver import Forkserver
from tests.system.transcripts.databases import KINDS, PostgresServer
from tests.system.transcripts.harness import Harness, settings_of, start_command
from tests.system.transcripts.recorder import Recorder, compare, path_of

GROUPS: dict[str, tuple[str, ...]] = {
    "transactions": ("transactions", "limits", "finality"),
    "authorizations": ("authorizations", "undecided", "settlements"),
    "forwarding": ("answers", "unpaid"),
    "repeats": ("repeats",),
    "kills": ("kills",),
    "control_plane": ("registry", "accounts", "site", "ownership"),
}
"""The families of each test file `test_{group}.py`: files that take about as long as one another, for two workers."""

NAMES = tuple(name for names in GROUPS.values() for name in names)


def cases(group: str) -> list[ParameterSet]:
    """Each family of the group over each database."""
    marks = {"postgresql": [pytest.mark.postgres]}
    return [
        pytest.param(name, kind, marks=marks.get(kind, []), id=f"{name}-{kind}")
        for name in GROUPS[group]
        for kind in KINDS
    ]


@dataclass
class Run:
    """What is started once and used by all families. `find_postgres`: gives the URL of a PostgreSQL server."""

    find_postgres: Callable[[], str]
    forks: Forkserver = field(default_factory=lambda: Forkserver("tests.system.transcripts.forks"))
    server: PostgresServer | None = None

    def play(self, name: str, kind: str) -> Recorder:
        """The transcript of one family over one database."""
        assert kind in KINDS
        if kind == "postgresql" and self.server is None:
            self.server = PostgresServer(self.find_postgres(), self._migrate)
        family = find(name)
        harness = Harness(
            self.forks,
            self.server if kind == "postgresql" else None,
            settings=getattr(family, "SETTINGS", None),
            outlives=getattr(family, "OUTLIVES", False),
            counts_rpc=getattr(family, "COUNTS_RPC", True),
        )
        try:
            family.play(harness)
            return harness.recorder
        finally:
            harness.close()

    def find_difference(self, name: str, kind: str) -> str:
        """Between the recording and a replay; empty if there is none."""
        recorded = path_of(name).read_text(encoding="utf-8")
        return compare(recorded, self.play(name, kind).text, name=f"{name} over {kind}")

    def _migrate(self, url: str, clock: Path) -> None:
        folder = clock.parent
        env = settings_of(
            folder, database_url=url, port=1, nodes=("http://127.0.0.1:1", "http://127.0.0.1:2")
        )
        migrating = start_command(self.forks, "migrate", env=env, folder=folder, clock=clock)
        assert migrating.wait() == 0, (folder / "log").read_text()

    def close(self) -> None:
        self.forks.close()
        if self.server is not None:
            self.server.close()


def find(name: str) -> ModuleType:
    return importlib.import_module(f"tests.system.transcripts.sections.{name}")
