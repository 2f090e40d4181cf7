"""The daily check of every proved origin. One gateway, the leader of this duty, runs it; `registry/ownership.py` decides when a proof ends."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from tollway.ids import Address
from tollway.limits import Limits
from tollway.observability.background import describe_failure
from tollway.registry.ownership import Challenge, Method, OwnershipClaim, Ownerships

RECHECK_BATCH_MAX = 200
CHECKS_AT_ONCE = 8

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OriginCheck:
    origin: str
    provider: Address
    pay_to: Address


class OwnershipRecheck:
    """The periodic check. `challenge`: the content that proves a claim. `check`: the proofs that an origin has now."""

    def __init__(
        self,
        ownerships: Ownerships,
        *,
        challenge: Callable[[OwnershipClaim], Challenge],
        check: Callable[[Challenge], Awaitable[tuple[Method, ...]]],
        limits: Limits,
        now_ms: Callable[[], int],
        batch_max: int = RECHECK_BATCH_MAX,
    ) -> None:
        self._ownerships = ownerships
        self._challenge = challenge
        self._check_origin = check
        self._limits = limits
        self._now_ms = now_ms
        self._batch_max = batch_max

    async def check_due(self) -> None:
        """Checks all due listings, batch by batch. After `StorageUnavailable`, listings without a written result stay due."""
        while True:
            before_ms = self._now_ms() - int(self._limits.ownership_recheck_s * 1000)
            claims = await self._ownerships.find_due(before_ms=before_ms, limit=self._batch_max)
            recorded = await self._check(claims)
            if not recorded or len(claims) < self._batch_max:
                return

    async def _check(self, claims: tuple[OwnershipClaim, ...]) -> int:
        """Returns the number of written results."""
        by_origin: dict[_OriginCheck, list[Challenge]] = {}
        for claim in claims:
            challenge = self._challenge(claim)
            origin_check = _OriginCheck(origin=challenge.origin, provider=claim.provider, pay_to=claim.pay_to)
            by_origin.setdefault(origin_check, []).append(challenge)
        semaphore = asyncio.Semaphore(CHECKS_AT_ONCE)

        async def check(challenge: Challenge) -> tuple[Method, ...]:
            async with semaphore:
                try:
                    return await self._check_origin(challenge)
                except Exception as exc:  # noqa: BLE001 - a task root: logged; the failure of one origin must not stop the others
                    _log.error("ownership_look_failed", origin=challenge.origin, **describe_failure(exc))
                    return ()

        async with asyncio.TaskGroup() as group:
            checks = {
                origin_check: group.create_task(check(some[0])) for origin_check, some in by_origin.items()
            }
        recorded = 0
        for origin_check, some in by_origin.items():
            for challenge in some:
                recorded += await self._record_check(challenge, checks[origin_check].result())
        return recorded

    async def _record_check(self, challenge: Challenge, proved: tuple[Method, ...]) -> bool:
        """False when the listing has changed since; its new state is due then."""
        known = await self._ownerships.record_check(
            challenge,
            proved,
            now_ms=self._now_ms(),
            failures_max=self._limits.ownership_failures_max,
        )
        if known is not None and not known.is_verified:
            _log.info("ownership_ended", listing=challenge.listing_id, origin=challenge.origin)
        return known is not None
