"""Replays calls of a gateway that is killed, and the next process on its database."""

import pytest

from tests.system.transcripts.families import Run, cases


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "kind"), cases("kills"))
def test_replays(run: Run, name: str, kind: str) -> None:
    assert run.find_difference(name, kind) == ""
