"""Which networks have nodes that serve them: asked at the start, and every minute after it. Remembers the last answers;
decides nothing about a payment.
"""

from collections.abc import Iterable, Mapping

import structlog

from tollway.chain.reader import ChainReader
from tollway.errors import ChainMismatch, ChainUnavailable
from tollway.identifiers import ChainId

_log = structlog.get_logger(__name__)


class RollCall:
    """Until a network was asked it counts as away."""

    def __init__(self, chains: ChainReader, chain_ids: Iterable[ChainId]) -> None:
        self._chains = chains
        self._is_served: dict[ChainId, bool] = dict.fromkeys(chain_ids, False)

    @property
    def checks(self) -> Mapping[str, bool]:
        """`chain_8453` -> whether nodes served it when they were last asked."""
        return {f"chain_{chain_id}": is_served for chain_id, is_served in self._is_served.items()}

    async def ask(self) -> None:
        await self.find_strays()

    async def find_strays(self) -> list[str]:
        """Asks every network. A line for each node that serves another chain than the one it is configured for; a node
        that is away is only noted."""
        strays: list[str] = []
        for chain_id in self._is_served:
            try:
                await self._chains.check_chain(chain_id)
                self._is_served[chain_id] = True
            except ChainUnavailable as exc:
                self._is_served[chain_id] = False
                _log.warning("chain_not_ready", chain_id=chain_id, detail=str(exc))
                if isinstance(exc, ChainMismatch):
                    strays += getattr(exc, "__notes__", [])
        return strays
