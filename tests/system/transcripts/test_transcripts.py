"""The recordings are whole, a comparison finds every difference, and only the adapter knows the product. The replays stand
in the other test files of this folder.
"""

from pathlib import Path

from tests.system.transcripts import adapter
from tests.system.transcripts.databases import KINDS
from tests.system.transcripts.families import GROUPS, NAMES
from tests.system.transcripts.recorder import RECORDINGS, compare, count_exchanges, find_codes

UNRECORDED: dict[str, str] = {
    "internal_error": "answers a fault of the gateway: no request causes it",
    "channel_busy": "channels are off in the recordings: `tests/gateway/test_channel_payment.py` has these refusals",
    **dict.fromkeys(
        ("budget_exceeded", "budget_not_found"),
        "no section has an owner of a wallet: `tests/web/api/test_budget_routes.py` has these refusals",
    ),
    **dict.fromkeys(
        ("webhook_not_found", "webhook_limit_reached"),
        "no section registers a webhook: `tests/web/api/test_webhook_routes.py` has these refusals",
    ),
}
EXCHANGES_MIN = 600


def test_each_family_has_one_test_file() -> None:
    files = {path.name for path in Path(__file__).parent.glob("test_*.py")}
    assert files == {f"test_{group}.py" for group in GROUPS} | {Path(__file__).name}
    assert len(NAMES) == len(set(NAMES))


def test_every_code_is_recorded() -> None:
    assert adapter.codes() - find_codes() == set(UNRECORDED)
    assert len(KINDS) * sum(map(count_exchanges, NAMES)) >= 2 * EXCHANGES_MIN


def test_each_recording_belongs_to_a_family() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.txt")} == set(NAMES)


def test_a_difference_is_reported_with_its_exchange() -> None:
    recorded = "section: one\n\n## first\n< 200\n< content-type: text/plain\n  row + call state=consumed\n"
    for before, after in (("200", "402"), ("text/plain", "text/html"), ("consumed", "released")):
        told = compare(recorded, recorded.replace(before, after), name="it")
        assert "section: one, ## first" in told
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
