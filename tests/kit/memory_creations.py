"""Idempotency keys of created listings in memory: the twin of `storage/creation_store.py`, held to the same contract
suite. Nothing survives it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tollway.errors import StorageUnavailable
from tollway.ids import Address
from tollway.limits import DEFAULT_LIMITS, Limits
from tollway.registry.catalog import (
    CreationBegun,
    CreationInProgress,
    CreationOutcome,
    CreationResponse,
    KeyedCreation,
    OtherRequest,
    TooManyKeys,
)


@dataclass(slots=True, kw_only=True)
class _Kept:
    fingerprint: bytes
    claim: bytes
    lease_until_ms: int
    created_ms: int
    answer: CreationResponse | None = None


class MemoryCreations:
    """`is_away`: the store does not answer, or does not know keys yet."""

    def __init__(self, *, now_ms: Callable[[], int] = lambda: 0, limits: Limits = DEFAULT_LIMITS) -> None:
        self._kept: dict[tuple[Address, str], _Kept] = {}
        self._now_ms = now_ms
        self._limits = limits
        self.is_away = False

    async def begin(self, request: KeyedCreation, *, claim: bytes) -> CreationOutcome:
        self._answer_or_fail()
        now_ms, lease_ms = self._now_ms(), int(self._limits.creation_lease_s * 1000)
        name = (request.wallet, request.key)
        kept = self._kept.get(name)
        if kept is not None and kept.created_ms > self._oldest_ms():
            left_ms = kept.lease_until_ms - now_ms
            is_running = kept.answer is None and 0 < left_ms <= lease_ms
            if (is_running or kept.answer is not None) and kept.fingerprint != request.fingerprint:
                return OtherRequest()
            if is_running:
                return CreationInProgress(wait_s=-(-left_ms // 1000))
            if kept.answer is not None:
                return kept.answer
        if kept is None and self._count(request.wallet) >= self._limits.creation_keys_max:
            return TooManyKeys()
        self._kept[name] = _Kept(
            fingerprint=request.fingerprint, claim=claim, lease_until_ms=now_ms + lease_ms, created_ms=now_ms
        )
        return CreationBegun(wallet=request.wallet, key=request.key, claim=claim)

    async def give_up(self, begun: CreationBegun) -> None:
        self._answer_or_fail()
        kept = self._kept.get((begun.wallet, begun.key))
        if kept is not None and kept.claim == begun.claim and kept.answer is None:
            del self._kept[begun.wallet, begun.key]

    async def prune(self) -> int:
        self._answer_or_fail()
        old = [name for name, kept in self._kept.items() if kept.created_ms <= self._oldest_ms()]
        for name in old:
            del self._kept[name]
        return len(old)

    def finish(self, begun: CreationBegun, answer: CreationResponse) -> bool:
        """False when the key is somebody else's by now. Only `MemoryCatalog` calls it."""
        self._answer_or_fail()
        kept = self._kept.get((begun.wallet, begun.key))
        if kept is None or kept.claim != begun.claim or kept.answer is not None:
            return False
        self._make_room(self._limits.creation_answers_bytes_max - len(answer.body or b""))
        kept.answer = answer
        return True

    def _make_room(self, bytes_max: int) -> None:
        """Drops the oldest bodies until the others fit."""
        for kept in sorted(self._kept.values(), key=lambda one: one.created_ms):
            bodies = [one.answer.body for one in self._kept.values() if one.answer and one.answer.body]
            if sum(map(len, bodies)) <= bytes_max:
                return
            if kept.answer is not None:
                kept.answer = replace(kept.answer, body=None)

    def _count(self, wallet: Address) -> int:
        return sum(
            name[0] == wallet and kept.created_ms > self._oldest_ms() for name, kept in self._kept.items()
        )

    def _oldest_ms(self) -> int:
        return self._now_ms() - self._limits.creation_key_ttl_s * 1000

    def _answer_or_fail(self) -> None:
        if self.is_away:
            raise StorageUnavailable
