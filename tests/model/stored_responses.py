"""The stored responses of the ledger model: the counterpart of `storage.ledger.idempotency`, over the rows of a `MemoryLedger`."""

from tests.model.rows import MemoryAnswer, MemoryRows
from tollway.errors import StorageUnavailable
from tollway.ids import Address, CallId
from tollway.ledger.ledger import StoredResponse
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.storage.ledger.idempotency import encode_stored_response

HOUR_MS = 3_600_000


class MemoryAnswers:
    """Keeps the promises of `StoredResponses`. `away` makes every method raise `StorageUnavailable`."""

    def __init__(self, rows: MemoryRows, *, limits: Limits = DEFAULT_LIMITS) -> None:
        self._rows = rows
        self._limits = limits
        self.away = False

    async def keep(
        self, call_id: CallId, answer: StoredResponse, *, payer: Address, provider: Address, now_ms: int
    ) -> bool:
        self._answer()
        limits, size = self._limits, len(encode_stored_response(answer))
        most = {
            ("payer", payer): limits.responses_per_payer_bytes_max,
            ("provider", provider): limits.answers_per_provider_bytes_max,
        }
        if size > min(limits.response_bytes_max, limits.responses_bytes_max, *most.values()):
            return False
        new = MemoryAnswer(payer=payer, provider=provider, answer=answer, size=size, created_ms=now_ms)
        kept = {**self._rows.answers, call_id: new}
        for account, bytes_max in most.items():
            while sum_of(own := held_by(kept, account)) > bytes_max:
                if not drop_oldest(kept, own, call_id, share_of=own):
                    return False
        while sum_of(kept) > limits.responses_bytes_max:
            if not drop_from_largest(kept, call_id):
                return False
        self._rows.answers.clear()
        self._rows.answers.update(kept)
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

    def _oldest_ms(self, now_ms: int) -> int:
        return now_ms - self._limits.response_ttl_s * 1000

    def _answer(self) -> None:
        if self.away:
            raise StorageUnavailable


Kept = dict[CallId, MemoryAnswer]
Holder = tuple[str, Address]


def sum_of(kept: Kept) -> int:
    return sum(one.size for one in kept.values())


def held_by(kept: Kept, holder: Holder) -> Kept:
    role, wallet = holder
    return {key: one for key, one in kept.items() if getattr(one, role) == wallet}


def drop_oldest(kept: Kept, among: Kept, new_id: CallId, *, share_of: Kept) -> bool:
    """Drops the oldest response that may go for the new one. False where none may: those of the last hour stay whose payer holds less
    than an equal share of `share_of`."""
    new = kept[new_id]
    payers = {one.payer for one in share_of.values()}
    share = sum_of(share_of) // len(payers)
    for key in sorted(among, key=lambda key: (among[key].created_ms, key)):
        one = among[key]
        is_recent = one.created_ms > new.created_ms - HOUR_MS
        is_small = sum_of(held_by(share_of, ("payer", one.payer))) < share
        if key != new_id and not (is_recent and is_small and one.payer != new.payer):
            del kept[key]
            return True
    return False


def drop_from_largest(kept: Kept, new_id: CallId) -> bool:
    """Drops one response of the payer or the provider that holds most, of the next one where none of its own may go."""
    holders = {(role, getattr(one, role)) for one in kept.values() for role in ("payer", "provider")}

    def rank(holder: Holder) -> tuple[int, int, Holder]:
        own = held_by(kept, holder)
        return (-sum_of(own), min(one.created_ms for one in own.values()), holder)

    return any(
        drop_oldest(kept, held_by(kept, holder), new_id, share_of=kept)
        for holder in sorted(holders, key=rank)
    )
