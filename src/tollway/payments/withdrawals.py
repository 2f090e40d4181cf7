"""Which rails are withdrawn now, and why: each change is logged once and noted. It withdraws nothing itself; the gas tank
says what it sees at each of its looks.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from tollway.identifiers import ChainId
from tollway.payments.settling_notes import SettlingNotes, WithdrawalReason

_log = structlog.get_logger(__name__)


class Withdrawal(NamedTuple):
    """`subject`: the token, the listing, the gas key or the code hash where it is not the whole network; empty where it
    is."""

    chain_id: ChainId
    reason: WithdrawalReason
    subject: str = ""


class Withdrawals:
    """Used from one event loop."""

    def __init__(self, chain_ids: Iterable[ChainId], notes: SettlingNotes) -> None:
        self._chain_ids = tuple(chain_ids)
        self._notes = notes
        self._seen: frozenset[Withdrawal] = frozenset()

    def update(self, seen: Iterable[Withdrawal]) -> None:
        """What is withdrawn now; the rest is not."""
        before, self._seen = self._seen, frozenset(seen)
        for withdrawal in sorted(self._seen - before):
            _log.warning("rail_withdrawn", **_describe(withdrawal))
        for withdrawal in sorted(before - self._seen):
            _log.info("rail_is_back", **_describe(withdrawal))
        counts = Counter((withdrawal.chain_id, withdrawal.reason) for withdrawal in self._seen)
        for chain_id in self._chain_ids:
            for reason in WithdrawalReason:
                self._notes.withdrawn(chain_id, reason, counts[chain_id, reason])


def _describe(withdrawal: Withdrawal) -> dict[str, object]:
    told: dict[str, object] = {"chain_id": withdrawal.chain_id, "reason": withdrawal.reason.value}
    return told | {"subject": withdrawal.subject} if withdrawal.subject else told
