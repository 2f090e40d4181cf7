"""Replays listings, accounts, the site, and proofs of ownership."""

import pytest

from tests.system.transcripts.families import Run, cases


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "kind"), cases("control_plane"))
def test_replays(run: Run, name: str, kind: str) -> None:
    assert run.find_difference(name, kind) == ""
