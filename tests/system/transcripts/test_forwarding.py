"""Replays answers of upstreams and unpaid calls."""

import pytest

from tests.system.transcripts.families import Run, cases


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "kind"), cases("forwarding"))
def test_replays(run: Run, name: str, kind: str) -> None:
    assert run.find_difference(name, kind) == ""
