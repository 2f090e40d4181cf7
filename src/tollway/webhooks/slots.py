"""The sending slots: which due endpoints may begin an attempt now. In memory, for the one gateway that delivers.

A slot is one attempt that runs. All endpoints share `webhook_in_flight_max`; challenges get a quarter of them. Endpoints whose last attempt had no
response (slow ones) get half of the slots, and of those for challenges. A wallet and the client address that registered an endpoint have a maximum
each, so no owner fills the slots alone.

An origin gets one request in `webhook_origin_interval_s`. It has one slot for slow endpoints, and a window for the others: 1 at first, one more after each
response, up to the maximum of both. A wallet leaves one slot of a larger window to other wallets. So endpoints that never respond at a host that
many wallets share delay no endpoint there that does.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tollway.ids import Address
from tollway.limits import Limits
from tollway.webhooks.endpoints import DueChallenge, DueEndpoint, Taken

ORIGIN_KEPT_S = 60.0
"""How long an origin without a response keeps its window."""
_CHALLENGE_PARTS, _SLOW_PARTS = 4, 2


@dataclass(slots=True, kw_only=True)
class _Origin:
    """`window`: attempts at once of endpoints that are not slow. `quick`, `slow`: those that run. `begun_s`: the last beginning. `responded_s`: the last
    response."""

    window: int = 1
    quick: int = 0
    slow: int = 0
    begun_s: float = float("-inf")
    responded_s: float = float("-inf")


class SendingSlots:
    """`clock`: monotonic seconds."""

    def __init__(self, *, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._origins: dict[str, _Origin] = {}
        self._wallets: Counter[Address] = Counter()
        self._networks: Counter[str] = Counter()
        self._at_origin: Counter[tuple[str, Address]] = Counter()
        self._challenged: set[str] = set()
        self._running = self._slow = self._slow_challenges = 0

    @property
    def is_full(self) -> bool:
        return self._running >= self._limits.webhook_in_flight_max

    def list_taken(self, *, after: Address | None) -> Taken:
        limits, now_s = self._limits, self._clock()
        return Taken(
            origins=frozenset(name for name, one in self._origins.items() if self._is_shut(one, now_s)),
            wallets=_full(self._wallets, limits.webhook_in_flight_per_wallet_max),
            networks=_full(self._networks, limits.webhook_in_flight_per_address_max),
            after=after,
        )

    def take(self, due: DueEndpoint) -> bool:
        """Takes a slot for an attempt that begins now. False where one of the limits is reached, or where the same challenge runs."""
        limits, now_s = self._limits, self._clock()
        origin = self._origins.setdefault(due.origin, _Origin())
        if (
            self.is_full
            or (due.is_slow and self._slow >= _part(limits.webhook_in_flight_max, _SLOW_PARTS))
            or (isinstance(due, DueChallenge) and not self._has_challenge_room(due))
            or self._wallets[due.wallet] >= limits.webhook_in_flight_per_wallet_max
            or self._networks[due.network] >= limits.webhook_in_flight_per_address_max
            or self._is_early(origin, now_s)
            or not self._has_room(origin, due)
        ):
            return False
        origin.begun_s = now_s
        self._count(due, 1)
        if isinstance(due, DueChallenge):
            self._challenged.add(due.endpoint_id)
        return True

    def free(self, due: DueEndpoint, *, has_responded: bool) -> None:
        """Gives the slot back. `has_responded`: the receiver sent a response."""
        self._count(due, -1)
        self._challenged.discard(due.endpoint_id)
        origin, now_s = self._origins[due.origin], self._clock()
        if has_responded:
            origin.responded_s = now_s
            origin.window = min(origin.window + 1, self._limits.webhook_in_flight_per_origin_max)
        elif now_s - origin.responded_s > ORIGIN_KEPT_S:
            origin.window = 1

    def forget_idle(self) -> None:
        now_s = self._clock()
        kept_s = max(ORIGIN_KEPT_S, self._limits.webhook_origin_interval_s)
        for name, origin in list(self._origins.items()):
            last_s = max(origin.begun_s, origin.responded_s)
            if not origin.quick and not origin.slow and now_s - last_s > kept_s:
                del self._origins[name]

    def _count(self, due: DueEndpoint, change: int) -> None:
        origin = self._origins[due.origin]
        self._running += change
        self._slow += change * due.is_slow
        self._slow_challenges += change * (due.is_slow and isinstance(due, DueChallenge))
        origin.slow += change * due.is_slow
        origin.quick += change * (not due.is_slow)
        _add(self._wallets, due.wallet, change)
        _add(self._networks, due.network, change)
        _add(self._at_origin, (due.origin, due.wallet), change * (not due.is_slow))

    def _has_challenge_room(self, due: DueChallenge) -> bool:
        most = _part(self._limits.webhook_in_flight_max, _CHALLENGE_PARTS)
        if due.is_slow and self._slow_challenges >= _part(most, _SLOW_PARTS):
            return False
        return len(self._challenged) < most and due.endpoint_id not in self._challenged

    def _is_early(self, origin: _Origin, now_s: float) -> bool:
        return now_s - origin.begun_s < self._limits.webhook_origin_interval_s

    def _is_shut(self, origin: _Origin, now_s: float) -> bool:
        return self._is_early(origin, now_s) or not (
            self._has_quick_room(origin) or self._has_slow_room(origin)
        )

    def _has_room(self, origin: _Origin, due: DueEndpoint) -> bool:
        if due.is_slow:
            return self._has_slow_room(origin)
        share = max(1, origin.window - 1)
        return self._has_quick_room(origin) and self._at_origin[due.origin, due.wallet] < share

    def _has_quick_room(self, origin: _Origin) -> bool:
        return origin.quick < origin.window and self._is_below_most(origin)

    def _has_slow_room(self, origin: _Origin) -> bool:
        return origin.slow == 0 and self._is_below_most(origin)

    def _is_below_most(self, origin: _Origin) -> bool:
        # One slow endpoint beside one that may respond, also at an origin without a response.
        return origin.quick + origin.slow < max(2, self._limits.webhook_in_flight_per_origin_max)


def _add(counter: Counter[Any], key: object, change: int) -> None:
    counter[key] += change
    if not counter[key]:
        del counter[key]


def _part(whole: int, parts: int) -> int:
    return max(1, whole // parts)


def _full(counter: Counter[Any], most: int) -> frozenset[Any]:
    return frozenset(key for key, count in counter.items() if count >= most)
