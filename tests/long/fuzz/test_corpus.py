"""The committed corpus, whole, cut short and with a byte changed, and random bytes: the short form of the fuzzing. The long one is
`run.py`, guided by coverage.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.long.fuzz import targets

HERE = Path(__file__).parent
CHANGED = 40
SEED = 20_261_121

NAMES = sorted(targets.TARGETS)


def change(seed: bytes, dice: random.Random) -> Iterator[bytes]:
    """What a fuzzer would do first."""
    yield seed
    for _ in range(CHANGED):
        where = dice.randrange(len(seed) + 1)
        until = dice.randrange(where, len(seed) + 1)
        piece = seed[where:until]
        yield dice.choice(
            (
                seed[:where],
                seed[:where] + seed[until:],
                seed[:where] + piece + seed[where:],
                seed[:where] + dice.randbytes(1) + seed[where + 1 :],
                seed[:where] + dice.choice((b"\0", b"\r\n", b"\xff", b'"', b"%2e", b"\\", b"9" * 40)) + seed[where:],
            )
        )  # fmt: skip


def test_every_target_has_a_corpus_and_the_other_way_round() -> None:
    assert sorted(one.name for one in (HERE / "corpus").iterdir()) == NAMES
    for name in NAMES:
        sizes = [seed.stat().st_size for seed in (HERE / "corpus" / name).iterdir()]
        assert sizes, name
        assert max(sizes) <= 4_096


@pytest.mark.parametrize("name", NAMES)
def test_no_seed_and_no_neighbour_of_one_breaks_a_promise(name: str) -> None:
    dice = random.Random(SEED)
    for seed in sorted((HERE / "corpus" / name).iterdir()):
        for raw in change(seed.read_bytes(), dice):
            try:
                targets.TARGETS[name](raw)
            except Exception as exc:
                raise AssertionError(f"{name} is broken by {raw!r}") from exc


@pytest.mark.parametrize("name", NAMES)
def test_no_random_bytes_break_a_promise(name: str) -> None:
    @settings(max_examples=25)
    @given(st.binary(max_size=300))
    def look(raw: bytes) -> None:
        targets.TARGETS[name](raw)

    look()
