"""What one client, in one run, may sign in all: a second limit beside the budget of the wallet's store, and never in its
place. In memory; it forgets everything when the process ends.

What is signed and stored counts for good, whatever a gateway or a node says of it later. One exception: an authorisation
of which no byte has left this machine. What earlier runs have paid or left open is theirs.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from tollway.client.quote import Cap, to_atto
from tollway.client.steps import OverBudget, Stored, StoreOutcome
from tollway.money import Asset


@dataclass(slots=True, kw_only=True)
class _SignedAmount:
    symbol: str
    atto: int


class _Reservation(Enum):
    NEW = 1
    EXISTING = 2


class SessionLimit:
    """Safe to use from many threads at once."""

    def __init__(self, cap: Cap | None) -> None:
        self.cap = cap
        self._signed: dict[bytes, _SignedAmount] = {}
        self._lock = threading.Lock()

    def store(
        self, name: bytes, asset: Asset, amount: int, *, store: Callable[[], StoreOutcome]
    ) -> StoreOutcome:
        """Stores a payment that this session can afford; it counts from before that. `name`: its hash or nonce."""
        over = self._reserve(name, asset, amount)
        if isinstance(over, OverBudget):
            return over
        is_stored = False
        try:
            outcome = store()
            is_stored = isinstance(outcome, Stored)
        finally:
            if over is _Reservation.NEW and not is_stored:
                self.release(name)
        return outcome

    def _reserve(self, name: bytes, asset: Asset, amount: int) -> "OverBudget | _Reservation":
        atto = to_atto(amount, asset)
        with self._lock:
            if name in self._signed:  # two calls at once may sign the very same transaction
                return _Reservation.EXISTING
            spent = self._sum(asset.symbol)
            limit = None if self.cap is None else self.cap.atto_for(asset.symbol) or 0
            if limit is not None and spent + atto > limit:
                return OverBudget(spent_atto=spent, budget_atto=limit, limit="limit of this session")
            self._signed[name] = _SignedAmount(symbol=asset.symbol, atto=atto)
        return _Reservation.NEW

    def release(self, name: bytes) -> None:
        """It never left this process: it was not stored, or no byte of it was sent."""
        with self._lock:
            self._signed.pop(name, None)

    def spent(self) -> Mapping[str, int]:
        """By currency, in 10^-18."""
        with self._lock:
            symbols = {signed.symbol for signed in self._signed.values()}
            return {symbol: self._sum(symbol) for symbol in sorted(symbols)}

    def _sum(self, symbol: str) -> int:
        return sum(signed.atto for signed in self._signed.values() if signed.symbol == symbol)
