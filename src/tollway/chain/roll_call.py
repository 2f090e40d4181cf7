"""Which networks have nodes that serve them: asked at the start and every minute after it, those that are away more often.
Remembers the last answers, and since when there were none; decides nothing about a payment.
"""

import time
from collections.abc import Callable, Iterable, Mapping

import structlog

from tollway.chain.reader import ChainReader
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.identifiers import ChainId
from tollway.limits import Limits

CHECK_INTERVAL_S = 60.0
AWAY_INTERVAL_S = 10.0

_NEVER_SERVED = float("-inf")

_log = structlog.get_logger(__name__)


class NodeHealth:
    """Until a network was asked it counts as away. `clock` is monotonic seconds."""

    def __init__(
        self,
        chains: ChainReader,
        chain_ids: Iterable[ChainId],
        *,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._chains = chains
        self._limits = limits
        self._clock = clock
        self._checked_s = _NEVER_SERVED
        self._away_since: dict[ChainId, float | None] = dict.fromkeys(chain_ids, _NEVER_SERVED)

    @property
    def checks(self) -> Mapping[str, bool]:
        """`chain_8453` -> whether nodes served it when they were last asked."""
        return {f"chain_{chain_id}": since is None for chain_id, since in self._away_since.items()}

    def count_lost(self) -> int:
        """How many networks are away for so long that another gateway may do better. One that was never served is lost
        from the start: who begins without its nodes is not to take over from others."""
        longest = self._clock() - self._limits.chain_away_s
        return sum(since is not None and since <= longest for since in self._away_since.values())

    async def check_due(self) -> None:
        """To be called every `AWAY_INTERVAL_S`: most times it asks only those that are away."""
        if self._clock() - self._checked_s >= CHECK_INTERVAL_S:
            await self.find_wrong_chain_nodes()
            return
        for chain_id in [chain_id for chain_id, since in self._away_since.items() if since is not None]:
            await self._check(chain_id)

    async def find_wrong_chain_nodes(self) -> list[str]:
        """Asks every network. A line for each node that serves another chain than the one it is configured for; a node
        that is away is only noted."""
        wrong_chain: list[str] = []
        self._checked_s = self._clock()
        for chain_id in self._away_since:
            exc = await self._check(chain_id)
            if exc is not None:
                _log.warning("chain_not_ready", chain_id=chain_id, detail=str(exc))
            if isinstance(exc, ChainMismatch):
                wrong_chain += getattr(exc, "__notes__", [])
        return wrong_chain

    async def _check(self, chain_id: ChainId) -> ChainUnavailable | None:
        try:
            await self._chains.check_chain(chain_id)
        except ChainUnavailable as exc:
            if self._away_since[chain_id] is None:
                self._away_since[chain_id] = self._clock()
            return exc
        if self._away_since[chain_id] is not None:
            _log.info("chain_ready", chain_id=chain_id)
        self._away_since[chain_id] = None
        return None
