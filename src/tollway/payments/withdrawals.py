"""Which rails are withdrawn now, and why: each change is logged once and noted. It withdraws nothing itself; the gas budget
says what it sees at each of its looks.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import structlog

from tollway.identifiers import ChainId
from tollway.payments.settling_notes import SettlementMetrics, WithdrawalReason

_log = structlog.get_logger(__name__)


class WithdrawnRail(NamedTuple):
    """`subject`: the token, the listing, the gas key or the code hash where it is not the whole network; empty where it
    is."""

    chain_id: ChainId
    reason: WithdrawalReason
    subject: str = ""


class RailStatus:
    """Used from one event loop."""

    def __init__(self, chain_ids: Iterable[ChainId], metrics: SettlementMetrics) -> None:
        self._chain_ids = tuple(chain_ids)
        self._metrics = metrics
        self._seen: frozenset[WithdrawnRail] = frozenset()

    def update(self, seen: Iterable[WithdrawnRail]) -> None:
        """What is withdrawn now; the rest is not."""
        before, self._seen = self._seen, frozenset(seen)
        for rail in sorted(self._seen - before):
            _log.warning("rail_withdrawn", **_describe_rail(rail))
        for rail in sorted(before - self._seen):
            _log.info("rail_is_back", **_describe_rail(rail))
        counts = Counter((rail.chain_id, rail.reason) for rail in self._seen)
        for chain_id in self._chain_ids:
            for reason in WithdrawalReason:
                self._metrics.withdrawn(chain_id, reason, counts[chain_id, reason])


def _describe_rail(rail: WithdrawnRail) -> dict[str, object]:
    told: dict[str, object] = {"chain_id": rail.chain_id, "reason": rail.reason.value}
    return told | {"subject": rail.subject} if rail.subject else told
