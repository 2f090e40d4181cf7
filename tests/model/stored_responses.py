"""The stored responses of the ledger model: the counterpart of `storage.idempotency`, over the rows of a `MemoryLedger`."""

from collections.abc import Iterable

from tests.model.rows import MemoryAnswer, MemoryRows
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.ledger import StoredResponse
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.idempotency import encode_stored_response


class MemoryAnswers:
    """Keeps the promises of `StoredResponses`. `away` makes every method raise `StorageUnavailable`."""

    def __init__(self, rows: MemoryRows, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._rows = rows
        self._limits = limits
        self.away = False

    async def keep(self, call_id: CallId, payer: Address, answer: StoredResponse, *, now_ms: int) -> bool:
        self._answer()
        limits, size = self._limits, len(encode_stored_response(answer))
        if size > min(limits.answer_bytes_max, limits.answers_per_payer_bytes_max, limits.answers_bytes_max):
            return False
        kept = self._rows.answers
        kept.pop(call_id, None)
        own = [key for key, one in kept.items() if one.payer == payer]
        self._make_room(own, limits.answers_per_payer_bytes_max - size)
        self._make_room(list(kept), limits.answers_bytes_max - size)
        kept[call_id] = MemoryAnswer(payer=payer, answer=answer, size=size, created_ms=now_ms)
        return True

    async def find(self, call_id: CallId, *, now_ms: int) -> StoredResponse | None:
        self._answer()
        kept = self._rows.answers.get(call_id)
        return kept.answer if kept is not None and kept.created_ms > self._oldest_ms(now_ms) else None

    async def prune(self, *, now_ms: int) -> int:
        self._answer()
        old = [key for key, one in self._rows.answers.items() if one.created_ms <= self._oldest_ms(now_ms)]
        for key in old:
            del self._rows.answers[key]
        return len(old)

    def _make_room(self, among: Iterable[CallId], bytes_max: int) -> None:
        """Drops the oldest until the others fit."""
        kept = self._rows.answers
        newest_first = sorted(among, key=lambda key: (kept[key].created_ms, key), reverse=True)
        total = 0
        for key in newest_first:
            total += kept[key].size
            if total > bytes_max:
                del kept[key]

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - self._limits.answer_ttl_s * 1000

    def _answer(self) -> None:
        if self.away:
            raise StorageUnavailable
