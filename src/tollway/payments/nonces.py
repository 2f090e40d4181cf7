"""The nonces of one gas key in this process: which one the next transaction takes, so that many can be signed at once; and
whether they are mined. Pure.

The ledger decides which transaction has a nonce; this is only the guess that makes it rarely refuse one. It asks nothing, signs
nothing and is never waited for: between issuing a nonce and handing its transaction to the ledger nothing may be awaited.
"""

from typing import NamedTuple

from tollway.chain.signer import GasKey
from tollway.ids import ChainId


class IssuedNonce(NamedTuple):
    """A nonce, and in which generation of the sequence it was given out."""

    nonce: int
    generation: int


CHECKS_UNTIL_STUCK = 3
"""So many looks in a row, and so many times as long as two of them are apart, a sequence may wait for one nonce."""


class NonceProgress:
    """Whether a sequence moves: its nonces are mined while something waits. Pure."""

    def __init__(self) -> None:
        self.is_stuck = False
        self._mined_nonce = -1
        self._since_s = 0.0
        self._checks = 0

    def record_check(self, *, mined_nonce: int, next_nonce: int, now_s: float, interval_s: float) -> None:
        """One look at the chain. `next_nonce`: what the ledger gives out next; `interval_s`: usually between two looks, so
        that looks in quick succession, and a gateway that stood still itself, say nothing."""
        if next_nonce <= mined_nonce or mined_nonce != self._mined_nonce:
            self._mined_nonce, self._since_s, self._checks, self.is_stuck = mined_nonce, now_s, 0, False
            return
        self._checks += 1
        is_late = now_s - self._since_s >= CHECKS_UNTIL_STUCK * interval_s
        self.is_stuck = is_late and self._checks >= CHECKS_UNTIL_STUCK


class NonceSequence:
    """Used from one event loop. `in_flight`: settlements that are between their nonce and their receipt."""

    def __init__(self, chain_id: ChainId, key: GasKey) -> None:
        self.chain_id = chain_id
        self.key = key
        self.in_flight = 0
        self.progress = NonceProgress()
        self._next: int | None = None
        self._generation = 0

    @property
    def is_known(self) -> bool:
        return self._next is not None

    def start_at(self, nonce: int) -> None:
        """What the ledger says, where nobody has started counting in the meantime."""
        if self._next is None:
            self._next = nonce

    def issue_nonce(self) -> IssuedNonce:
        assert self._next is not None, "a lane starts with what the books say"
        taken = IssuedNonce(self._next, self._generation)
        self._next += 1
        return taken

    def correct(self, refused: IssuedNonce, *, next_nonce: int) -> None:
        """The ledger refused it and says where to go on. Of several that were refused together the first corrects."""
        if refused.generation == self._generation:
            self._generation += 1
            self._next = next_nonce

    def forget(self, lost: IssuedNonce) -> None:
        """Nobody knows whether it was taken: the ledger is asked again."""
        if lost.generation == self._generation:
            self._generation += 1
            self._next = None
