"""One process to fork gateways from, and one database server, for all replays of a test worker."""

from collections.abc import Iterator

import pytest

from tests.transcripts.families import Run


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    run = Run.begin()
    yield run
    run.close()
