"""Looks daily at every origin whose ownership is proved; in the one gateway that has this duty. When a proof is no more is
decided in `registry/ownership.py`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from tollway.background import describe_failure
from tollway.identifiers import Address
from tollway.limits import Limits
from tollway.registry.ownership import Challenge, Method, Ownerships, Stake

ROUND_MAX = 200
LOOKS_AT_ONCE = 8

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """What one look answers for: a provider's listings at one origin, with one payee."""

    origin: str
    provider: Address
    pay_to: Address


class OwnershipRounds:
    """`challenge`: what would prove a stake. `look`: which proofs an origin shows now."""

    def __init__(
        self,
        ownerships: Ownerships,
        *,
        challenge: Callable[[Stake], Challenge],
        look: Callable[[Challenge], Awaitable[tuple[Method, ...]]],
        limits: Limits,
        now_ms: Callable[[], int],
        round_max: int = ROUND_MAX,
    ) -> None:
        self._ownerships = ownerships
        self._challenge = challenge
        self._look = look
        self._limits = limits
        self._now_ms = now_ms
        self._round_max = round_max

    async def check_due(self) -> None:
        """Everything that is due now, round by round. Raises StorageUnavailable: what was not written stays due."""
        while True:
            before_ms = self._now_ms() - int(self._limits.ownership_recheck_s * 1000)
            stakes = await self._ownerships.find_due(before_ms=before_ms, limit=self._round_max)
            noted = await self._check(stakes)
            if not noted or len(stakes) < self._round_max:
                return

    async def _check(self, stakes: tuple[Stake, ...]) -> int:
        """How many listings it could write about."""
        by_place: dict[_Place, list[Challenge]] = {}
        for stake in stakes:
            challenge = self._challenge(stake)
            place = _Place(origin=challenge.origin, provider=stake.provider, pay_to=stake.pay_to)
            by_place.setdefault(place, []).append(challenge)
        seats = asyncio.Semaphore(LOOKS_AT_ONCE)

        async def look(challenge: Challenge) -> tuple[Method, ...]:
            async with seats:
                try:
                    return await self._look(challenge)
                except Exception as exc:  # noqa: BLE001 - a task root: logged; one origin must not stop the others' turn
                    _log.error("ownership_look_failed", origin=challenge.origin, **describe_failure(exc))
                    return ()

        async with asyncio.TaskGroup() as group:
            looks = {place: group.create_task(look(some[0])) for place, some in by_place.items()}
        noted = 0
        for place, some in by_place.items():
            for challenge in some:
                noted += await self._note(challenge, looks[place].result())
        return noted

    async def _note(self, challenge: Challenge, proved: tuple[Method, ...]) -> bool:
        """False when the listing has changed meanwhile; it is due as what it is now."""
        known = await self._ownerships.note(
            challenge,
            proved,
            now_ms=self._now_ms(),
            failures_max=self._limits.ownership_failures_max,
        )
        if known is not None and not known.is_verified:
            _log.info("ownership_ended", listing=challenge.listing_id, origin=challenge.origin)
        return known is not None
