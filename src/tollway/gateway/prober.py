"""Finds out whether upstreams that are down are back; and, where the operator wants it, whether those in use are still up.

A probe is a connection (resolved, judged, with its TLS) that is closed again: no request, no secret, no payment.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from tollway.background import BackgroundTask, TaskName, describe_failure
from tollway.errors import UpstreamUnreachable
from tollway.gateway.breaker import CircuitBreaker
from tollway.outbound.policy import Endpoint, parse_endpoint

PROBES_AT_ONCE = 32
TICK_S = 0.5

_log = structlog.get_logger(__name__)


class HealthCheck:
    """One per process. `check_connection` raises UpstreamUnreachable, after a deadline of its own."""

    def __init__(
        self,
        breaker: CircuitBreaker,
        *,
        check_connection: Callable[[Endpoint], Awaitable[None]],
        tick_s: float = TICK_S,
        task: BackgroundTask | None = None,
    ) -> None:
        self._task = task or BackgroundTask(TaskName.UPSTREAM_PROBES)
        self._breaker = breaker
        self._check_connection = check_connection
        self._tick_s = tick_s
        self._probed: set[str] = set()

    async def run(self) -> None:
        """Until it is cancelled. One that hangs holds up nobody but the last of a crowd."""
        async with asyncio.TaskGroup() as group:
            while True:
                for origin in self._breaker.find_due():
                    if len(self._probed) >= PROBES_AT_ONCE:
                        break
                    if origin not in self._probed:
                        self._probed.add(origin)
                        group.create_task(self._probe(origin))
                self._task.record_success()
                await asyncio.sleep(self._tick_s)

    async def _probe(self, origin: str) -> None:
        try:
            if await self._is_reached(origin):
                if self._breaker.record_probed(origin):
                    _log.info("upstream_back", origin=origin)
            elif self._breaker.record_failed(origin):
                _log.info("upstream_down", origin=origin)
        except Exception as exc:  # noqa: BLE001 - a child of the health check's group: the next probes go on
            _log.error("probe_failed", origin=origin, **describe_failure(exc))
        finally:
            self._probed.discard(origin)

    async def _is_reached(self, origin: str) -> bool:
        endpoint = parse_endpoint(origin, allow_private=True)  # the client checks it
        if not isinstance(endpoint, Endpoint):
            return False
        try:
            await self._check_connection(endpoint)
        except UpstreamUnreachable:
            return False
        except Exception as exc:  # noqa: BLE001 - a task root: logged, and tried again
            _log.error("probe_failed", origin=origin, **describe_failure(exc))
            return False
        return True
