"""The transaction nonces of one gas key in this process: predicts the next nonce, so that many transactions can be signed at once, and
detects that the chain mines none of them. Pure.

The ledger decides which transaction has a nonce; a sequence only predicts the decision, so that the ledger rarely refuses a nonce. A
caller must not await between `issue_nonce` and the write of its transaction to the ledger.
"""

from typing import NamedTuple

from tollway.chain.signer import GasKey
from tollway.ids import ChainId


class IssuedNonce(NamedTuple):
    nonce: int
    generation: int


CHECKS_UNTIL_STUCK = 3
"""A sequence is stuck when `mined_nonce` stays the same for this many checks in a row and for this many check intervals."""


class NonceProgress:
    """Detects a stuck sequence: transactions wait, and none of them is mined."""

    def __init__(self) -> None:
        self.is_stuck = False
        self._mined_nonce = -1
        self._since_s = 0.0
        self._checks = 0

    def record_check(self, *, mined_nonce: int, next_nonce: int, now_s: float, interval_s: float) -> None:
        """Records one check of the chain. `mined_nonce`: the first nonce without a mined transaction. `next_nonce`: the first nonce without a
        transaction in the ledger. `interval_s`: the usual time between two checks, so that checks in quick succession and checks after a
        pause of the gateway do not count."""
        if next_nonce <= mined_nonce or mined_nonce != self._mined_nonce:
            self._mined_nonce, self._since_s, self._checks, self.is_stuck = mined_nonce, now_s, 0, False
            return
        self._checks += 1
        is_late = now_s - self._since_s >= CHECKS_UNTIL_STUCK * interval_s
        self.is_stuck = is_late and self._checks >= CHECKS_UNTIL_STUCK


class NonceSequence:
    """Issues the nonces of one key. Used from one event loop. `in_flight`: settlements that have a nonce and no transaction receipt yet."""

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
        """Starts at the ledger's next nonce, unless another task has started the sequence meanwhile."""
        if self._next is None:
            self._next = nonce

    def issue_nonce(self) -> IssuedNonce:
        assert self._next is not None, "a sequence starts with the next nonce of the ledger"
        taken = IssuedNonce(self._next, self._generation)
        self._next += 1
        return taken

    def correct(self, refused: IssuedNonce, *, next_nonce: int) -> None:
        """Continues at `next_nonce`, after the ledger refused a nonce. Of several refusals together, only the first has an effect."""
        # Many transactions are signed before the first write ends, so the ledger refuses the later ones too. All have one generation:
        # the first correction ends it, and the others must not move the sequence back to a nonce that was issued since.
        if refused.generation == self._generation:
            self._generation += 1
            self._next = next_nonce

    def forget(self, lost: IssuedNonce) -> None:
        """The write of `lost` failed with unknown outcome. The caller reads the next nonce from the ledger and calls `start_at`."""
        if lost.generation == self._generation:
            self._generation += 1
            self._next = None
