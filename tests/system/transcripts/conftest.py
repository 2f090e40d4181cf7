"""One process to fork gateways from, and one database server, for all replays of a test worker."""

from collections.abc import Iterator

import pytest

from tests.kit.databases import postgres_server
from tests.system.transcripts.families import Run

__all__ = ["postgres_server"]


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(lambda: str(request.getfixturevalue("postgres_server")))
    yield run
    run.close()
