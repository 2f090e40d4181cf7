"""Many histories of the ledger, each with its own faults, and the laws checked after each step: `SIMULATION_HISTORIES`, 10,000 in `make test`
and 100,000 in `make test-all`.

`SIMULATION_SEED` chooses others. A history that fails is named with its seed, and comes again, step by step, with
`python -m tests.long.simulation --seed N --history K`.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waits import DEADLINE_S
from tests.long.simulation.breakages import BREAKAGES
from tests.long.simulation.differential import compare
from tests.long.simulation.fake_ledger import FakeGateway
from tests.long.simulation.run import ROOT, main, play_in_memory, play_in_processes, play_many
from tollway.ids import CallId
from tollway.ledger.ledger import Claimed, Fenced
from tollway.ledger.records import CallState

SEED = int(os.environ.get("SIMULATION_SEED", "20261121"))
HISTORIES = int(os.environ.get("SIMULATION_HISTORIES", "10000"))
COMPARED = 240
UNTIL_FOUND = 30_000


@pytest.mark.timeout(600)
def test_no_law_is_broken_in_any_history() -> None:
    jobs = min(8, len(os.sched_getaffinity(0)))
    tallies = play_in_processes(SEED, HISTORIES, jobs=jobs)
    for tally in tallies:
        assert tally.broken is None, (
            f"{tally.law}\npython -m tests.long.simulation --seed {SEED} --history {tally.broken}"
        )
    assert sum(tally.histories for tally in tallies) == HISTORIES
    assert sum(tally.steps for tally in tallies) > 5 * HISTORIES


@pytest.mark.timeout(600)
async def test_the_ledger_on_sqlite_has_the_same_histories_as_its_model(tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # where syncing costs nothing, if there is such a place
    folder = tmp_path
    if memory.is_dir() and os.access(memory, os.W_OK):
        folder = memory / f"tollway-simulation-{os.getpid()}"
        folder.mkdir()
    try:
        differences = await compare(SEED, range(COMPARED), folder=folder)
    finally:
        for path in folder.glob("books.sqlite3*"):
            path.unlink()
        if folder != tmp_path:
            folder.rmdir()
    for one in differences:
        print(f"seed {SEED}, history {one.number}\n{one.before}\ntwin:   {one.twin}\nsqlite: {one.sqlite}\n")
    assert differences == []


CROWD = 1_200


@pytest.mark.parametrize("number", range(3))
def test_no_law_is_broken_where_one_payment_has_paid_for_more_than_a_thousand_calls(number: int) -> None:
    """Its block is replaced, and its gateway ends after two of the transactions; then the history goes on."""
    story = play_in_memory(SEED, number, crowd=CROWD, tells=True)
    assert any("gone outcome=away" in line for line in story.told)
    debts = [int(line.rpartition("=")[2]) for line in story.told if " continue debt=" in line]
    assert max(debts) > 500


@pytest.mark.timeout(600)
async def test_more_than_a_thousand_calls_have_the_same_history_on_sqlite(tmp_path: Path) -> None:
    assert await compare(SEED, range(1), folder=tmp_path, crowd=CROWD) == []


@pytest.mark.parametrize("name", sorted(BREAKAGES))
def test_a_corrupted_ledger_is_found(name: str) -> None:
    tally = play_many(SEED, range(UNTIL_FOUND), gateway=BREAKAGES[name])
    assert tally.broken is not None, "no history noticed"
    with pytest.raises(AssertionError) as caught:
        play_in_memory(SEED, tally.broken, gateway=BREAKAGES[name])
    assert (str(caught.value) or repr(caught.value)) == tally.law
    play_in_memory(SEED, tally.broken)  # nothing is wrong with that history itself


def test_a_history_comes_again_exactly_and_says_what_broke() -> None:
    broken = play_many(SEED, range(UNTIL_FOUND), gateway=BREAKAGES["ForgetsNonces"])
    command = [sys.executable, "-m", "tests.long.simulation", f"--seed={SEED}", f"--history={broken.broken}"]
    runs = [
        subprocess.run(
            [*command, *more], cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        for more in ([], [], ["--broken=ForgetsNonces"])
    ]
    assert runs[0].stdout == runs[1].stdout != ""
    assert [run.returncode for run in runs] == [0, 0, 1]
    assert broken.law in runs[2].stderr


class Crashes(FakeGateway):
    """A crash of the code counts as a failure too."""

    async def reopen(self, call_id: CallId, **more: Any) -> Claimed | Fenced:
        raise KeyError(call_id)


def test_code_that_falls_over_is_named_with_its_history_as_a_broken_law_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = play_many(SEED, range(UNTIL_FOUND), gateway=Crashes)
    assert tally.broken is not None
    assert "KeyError" in tally.law
    monkeypatch.setitem(BREAKAGES, "Crashes", Crashes)
    program = ["simulation", f"--seed={SEED}", "--broken=Crashes"]
    monkeypatch.setattr(sys, "argv", [*program, f"--history={tally.broken}"])
    with pytest.raises(SystemExit, match=f"history {tally.broken} of seed {SEED} broke a law: KeyError"):
        main()
    told = capsys.readouterr()
    assert told.out
    assert "Traceback" in told.err


def test_other_seeds_give_other_histories() -> None:
    told = {tuple(play_in_memory(seed, number, tells=True).told) for seed in (1, 2) for number in (0, 1)}
    assert len(told) == 4


def test_histories_reach_every_state_and_every_end() -> None:
    """An invariant that is never exercised always holds, so each must be exercised."""
    seen = {
        word for number in range(6_000) for line in _told(number) for word in line.replace("=", " ").split()
    }
    assert {state.value for state in CallState} - {"forwarding", "settling", "reorged"} <= seen
    assert {"claim", "reopen", "close", "settle", "conclude", "relocate", "gone", "power", "stall"} <= seen
    kinds = {word.partition("(")[0] for word in seen}
    assert {"Claimed", "Exhausted", "NonceUsed", "PlainEnded", "InDebt", "Unspendable"} <= kinds
    assert {
        "NotFirst",
        "NotCovered",
        "KeyTaken",
        "RepeatsOpenCall",
        "UnfinalLimit",
        "BudgetExceeded",
        "CallsRefunded",
        "NotRefundable",
        "TransferUsed",
        "Fenced",
        "away",
    } <= kinds


def _told(number: int) -> list[str]:
    return play_in_memory(SEED, number, tells=True).told
