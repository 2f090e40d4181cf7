"""One gas key's lane in this process: which nonce the next transaction takes, so that many can be signed at once; and
whether its nonces move.

The books decide who really has a nonce; this is only the guess that makes them rarely say no. It asks nothing, signs
nothing and is never waited for: between taking a nonce and handing its transaction to the books nothing may be awaited.
"""

from typing import NamedTuple

from tollway.chain.gas_key import GasKey
from tollway.identifiers import ChainId


class LaneNonce(NamedTuple):
    """A nonce, and in which generation of the lane it was given out."""

    nonce: int
    generation: int


LOOKS_UNTIL_STUCK = 3
"""So many looks in a row, and so many times as long as two of them are apart, a lane may wait for one nonce."""


class LaneProgress:
    """Whether a lane moves: its nonces are mined while something waits. Pure."""

    def __init__(self) -> None:
        self.is_stuck = False
        self._mined_nonce = -1
        self._since_s = 0.0
        self._looks = 0

    def note_look(self, *, mined_nonce: int, next_nonce: int, now_s: float, interval_s: float) -> None:
        """One look at the chain. `next_nonce`: what the books give out next; `interval_s`: usually between two looks, so
        that looks in quick succession, and a gateway that stood still itself, say nothing."""
        if next_nonce <= mined_nonce or mined_nonce != self._mined_nonce:
            self._mined_nonce, self._since_s, self._looks, self.is_stuck = mined_nonce, now_s, 0, False
            return
        self._looks += 1
        is_late = now_s - self._since_s >= LOOKS_UNTIL_STUCK * interval_s
        self.is_stuck = is_late and self._looks >= LOOKS_UNTIL_STUCK


class GasLane:
    """Used from one event loop. `in_flight`: settlements that are between their nonce and their receipt."""

    def __init__(self, chain_id: ChainId, key: GasKey) -> None:
        self.chain_id = chain_id
        self.key = key
        self.in_flight = 0
        self.progress = LaneProgress()
        self._next: int | None = None
        self._generation = 0

    @property
    def is_known(self) -> bool:
        return self._next is not None

    def start_at(self, nonce: int) -> None:
        """What the books say, where nobody has started counting in the meantime."""
        if self._next is None:
            self._next = nonce

    def take(self) -> LaneNonce:
        assert self._next is not None, "a lane starts with what the books say"
        taken = LaneNonce(self._next, self._generation)
        self._next += 1
        return taken

    def correct(self, refused: LaneNonce, *, next_nonce: int) -> None:
        """The books refused it and say where to go on. Of several that were refused together the first corrects."""
        if refused.generation == self._generation:
            self._generation += 1
            self._next = next_nonce

    def forget(self, lost: LaneNonce) -> None:
        """Nobody knows whether it was taken: the books are asked again."""
        if lost.generation == self._generation:
            self._generation += 1
            self._next = None
