"""The circuit breaker of upstream origins, and the health check that closes it again.

After several failed connection attempts in a row the breaker is open: calls to that origin are refused before payment until a health
check has connected. Each process counts for itself. Only connection attempts count, never a response. Clocks are monotonic. A health
check opens a connection (name resolution, address check, TLS) and closes it at once, without a request.
"""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from tollway.errors import UpstreamUnreachable
from tollway.limits import Limits
from tollway.observability.background import BackgroundTask, TaskName, describe_failure
from tollway.outbound.policy import Endpoint, parse_endpoint

ORIGINS_MAX = 10_000
UNREQUESTED_PAUSE_S_MAX = 900.0
"""The longest pause between probes of an origin that is down and that no caller requests. The pause doubles after each probe."""
IN_USE_S = 3600.0
"""For this long after its last call an origin is probed regularly, where `probe_interval_s` is set."""


@dataclass(slots=True)
class _FailingOrigin:
    """`failures`: failed connection attempts in a row. `is_requested`: a call was refused since the last of them."""

    failures: int = 0
    failed_s: float = 0.0
    is_requested: bool = False


@dataclass(slots=True)
class _UsedOrigin:
    called_s: float
    seen_s: float


class CircuitBreaker:
    """The circuit breaker of all origins. `clock`: monotonic seconds. `on_down`: called with each origin that is down from now on."""

    def __init__(
        self,
        *,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        on_down: Callable[[str], None] = lambda origin: None,
    ) -> None:
        self._limits = limits
        self._on_down = on_down
        self._clock = clock
        self._failing: OrderedDict[str, _FailingOrigin] = OrderedDict()
        self._used: OrderedDict[str, _UsedOrigin] = OrderedDict()

    def wait_s(self, origin: str) -> int | None:
        """Seconds until the origin is probed again; None where it may be connected to now."""
        known = self._failing.get(origin)
        if known is None or not self._is_down(known):
            return None
        known.is_requested = True
        return max(1, math.ceil(known.failed_s + self._limits.dial_pause_s - self._clock()))

    def record_reached(self, origin: str) -> None:
        """Records that a call connected to the origin."""
        self._failing.pop(origin, None)
        if self._limits.probe_interval_s:
            now_s = self._clock()
            self._used[origin] = _UsedOrigin(now_s, now_s)
            self._used.move_to_end(origin)
            if len(self._used) > ORIGINS_MAX:
                self._used.popitem(last=False)

    def record_probed(self, origin: str) -> bool:
        """Records that a probe connected to the origin. True where it was down until now."""
        known = self._failing.pop(origin, None)
        if (used := self._used.get(origin)) is not None:
            used.seen_s = self._clock()
        return known is not None and self._is_down(known)

    def record_failed(self, origin: str) -> bool:
        """Records a failed connection attempt of a call or a probe. True where the origin is down from now on."""
        known = self._failing.setdefault(origin, _FailingOrigin())
        was_down = self._is_down(known)
        known.failures += 1
        known.failed_s = self._clock()
        known.is_requested = False
        self._failing.move_to_end(origin)
        if len(self._failing) > ORIGINS_MAX:
            self._failing.popitem(last=False)
        is_down_now = self._is_down(known) and not was_down
        if is_down_now:
            self._on_down(origin)
        return is_down_now

    def count_down(self) -> int:
        """The number of origins that are down now."""
        return sum(self._is_down(known) for known in self._failing.values())

    def find_due(self) -> list[str]:
        """Origins to probe now: origins that are down and whose pause is over, then origins in use that were not reached for
        `probe_interval_s`. Origins that a caller requested come first."""
        now_s = self._clock()
        due = [
            (not known.is_requested, known.failed_s, origin)
            for origin, known in self._failing.items()
            if self._is_down(known) and now_s >= self._find_probe_s(known)
        ]
        return [origin for _, _, origin in sorted(due)] + self._find_unseen(now_s)

    def _find_unseen(self, now_s: float) -> list[str]:
        for origin in [one for one, used in self._used.items() if now_s - used.called_s > IN_USE_S]:
            del self._used[origin]
        unseen = []
        for origin, used in self._used.items():
            known = self._failing.get(origin)
            if known is None:
                is_due = now_s - used.seen_s >= self._limits.probe_interval_s
            else:  # probed soon, to learn whether the failure persists
                is_due = not self._is_down(known) and now_s - known.failed_s >= self._limits.dial_pause_s
            if is_due:
                unseen.append(origin)
        return unseen

    def _is_down(self, known: _FailingOrigin) -> bool:
        return known.failures >= self._limits.dial_failures_max

    def _find_probe_s(self, known: _FailingOrigin) -> float:
        if known.is_requested:
            return known.failed_s + self._limits.dial_pause_s
        doublings = min(known.failures - self._limits.dial_failures_max, 30)
        pause_s = self._limits.dial_pause_s * 2.0**doublings
        return known.failed_s + min(pause_s, max(UNREQUESTED_PAUSE_S_MAX, self._limits.dial_pause_s))


PROBES_AT_ONCE = 32
TICK_S = 0.5

_log = structlog.get_logger(__name__)


class HealthCheck:
    """Probes the origins that the breaker lists. One per process. `check_connection` has its own deadline and raises
    UpstreamUnreachable."""

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
        """Probes until it is cancelled. Probes run concurrently, so a slow one delays others only beyond `PROBES_AT_ONCE`."""
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
        endpoint = parse_endpoint(origin, allow_private=True)  # the HTTP client checks the address
        if not isinstance(endpoint, Endpoint):
            return False
        try:
            await self._check_connection(endpoint)
        except UpstreamUnreachable:
            return False
        except Exception as exc:  # noqa: BLE001 - a task root: logged, and probed again
            _log.error("probe_failed", origin=origin, **describe_failure(exc))
            return False
        return True
