"""One process to fork gateways from, under the clock of the transcripts, for all replays of a test process."""

from collections.abc import Iterator

import pytest

from tests.system.transcripts.families import Run


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    run = Run(lambda: str(request.getfixturevalue("postgres_server")))
    yield run
    run.close()
