"""The recorded transcripts replay byte for byte over both databases: requests, answers, forwarded requests, questions to
chain nodes, rows. See `README.md` in this folder.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.transcripts.databases import KINDS
from tests.transcripts.families import NAMES, Run
from tests.transcripts.recorder import RECORDINGS, compare, path_of


@pytest.fixture(scope="session")
def run() -> Iterator[Run]:
    run = Run.begin()
    yield run
    run.close()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.postgres] if kind == "postgresql" else []) for kind in KINDS],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_replays(run: Run, name: str, kind: str) -> None:
    recorded = path_of(name).read_text(encoding="utf-8")
    difference = compare(recorded, run.play(name, kind).text, name=f"{name} over {kind}")
    assert not difference, difference


def test_each_recording_belongs_to_a_family() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.txt")} == set(NAMES)


def test_a_difference_is_told_with_its_exchange() -> None:
    recorded = "scene: one\n\n## first\n< 200\n< content-type: text/plain\n  row + call state=consumed\n"
    for before, after in (("200", "402"), ("text/plain", "text/html"), ("consumed", "released")):
        told = compare(recorded, recorded.replace(before, after), name="it")
        assert "scene: one, ## first" in told
        assert before in told
        assert after in told
    assert compare(recorded, recorded, name="it") == ""


def test_prose_can_be_left_out() -> None:
    one = '< content-length: 10\n<  "title": "One",\n<  "detail": "say \\"one\\"",\n<  "code": "x"'
    two = '< content-length: 99\n<  "title": "Two",\n<  "detail": "two",\n<  "code": "x"'
    assert compare(one, two, name="it") != ""
    assert compare(one, two, name="it", ignores_prose=True) == ""
    assert compare(one, two.replace('"x"', '"y"'), name="it", ignores_prose=True) != ""


def test_nothing_but_the_adapter_knows_the_product() -> None:
    for path in Path(__file__).parent.rglob("*.py"):
        if path.name != "adapter.py":
            lines = path.read_text(encoding="utf-8").splitlines()
            assert not [
                line for line in lines if line.strip().startswith(("import tollway", "from tollway"))
            ], path
