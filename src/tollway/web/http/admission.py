"""Limits on what the gateway admits: requests in flight, memory, bytes of buffered request bodies, and rates of sign-in and
publishing. The gateway plane and the control plane share `LoadShedder` and `BodyBudget`. No limit reads a request:
each receives sizes and client addresses.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from limits import RateLimitItemPerHour, RateLimitItemPerMinute

from tollway.errors import Code, Problem, describe_rate, refuse
from tollway.ids import Address
from tollway.limits import Limits
from tollway.rate_limits.limiter import Quota, RateLimiter, client_bucket
from tollway.web.http.loop_share import LoopShare

RETRY_BODIES_S = 2
BODY_RESERVATION = "body_reservation"
"""The key of the request's `BodyReservation` in `scope["state"]`, for the route that verifies its proof."""
LONG_BODY_INTERVAL_S = 0.2
"""The interval between two long bodies of the control plane. It leaves most of the control plane to short requests."""


class BodyPool:
    """Bytes of buffered bodies, with a maximum in all and one per client address."""

    def __init__(self, bytes_max: int, *, per_address_max: int) -> None:
        self._bytes_max = bytes_max
        self._per_address_max = per_address_max
        self._by_address: dict[str, int] = {}
        self.reserved_bytes = 0

    def reserve(self, bucket: str, size: int) -> bool:
        mine = self._by_address.get(bucket, 0) + size
        if self.reserved_bytes + size > self._bytes_max or mine > self._per_address_max:
            return False
        self._by_address[bucket] = mine
        self.reserved_bytes += size
        return True

    def release(self, bucket: str, size: int) -> None:
        self.reserved_bytes -= size
        left = self._by_address[bucket] - size
        if left:
            self._by_address[bucket] = left
        else:
            del self._by_address[bucket]


class BodyBudget:
    """A budget of memory for buffered request bodies, in all and per client address.

    Every connection may buffer `uncounted_bytes` of a body; only the bytes after them count. Bodies of requests without a verified proof of a wallet share a
    quarter of the budget, so that they never take the memory of the others. One address has at most a quarter of the budget, without a proof a quarter of that quarter.
    """

    def __init__(self, limits: Limits) -> None:
        bytes_max = limits.held_bodies_bytes_max
        quarter = bytes_max // 4
        self._next_s = 0.0
        self.uncounted_bytes = limits.buffer_bytes
        self.proven = BodyPool(bytes_max - quarter, per_address_max=quarter)
        self.unproven = BodyPool(quarter, per_address_max=quarter // 4)

    @property
    def reserved_bytes(self) -> int:
        """The sum of the counted bytes."""
        return self.proven.reserved_bytes + self.unproven.reserved_bytes

    def open(self, client_address: str) -> "BodyReservation":
        """A reservation for one body. The caller closes it in a `finally`."""
        return BodyReservation(self, client_address)

    def next_delay_s(self, now_s: float) -> float:
        """The time until the next long body may be parsed. Each call reserves one moment; the moments are `LONG_BODY_INTERVAL_S` apart."""
        begins_s = max(now_s, self._next_s)
        self._next_s = begins_s + LONG_BODY_INTERVAL_S
        return begins_s - now_s


class BodyReservation:
    """The part of a `BodyBudget` that one body takes."""

    __slots__ = ("_budget", "_client_address", "_pool", "_reserved", "_size")

    def __init__(self, budget: BodyBudget, client_address: str) -> None:
        self._budget = budget
        self._client_address = client_address
        self._size = 0
        self._pool = budget.unproven
        self._reserved: dict[BodyPool, int] = {}

    def prove(self) -> None:
        """Call it when the request has a verified proof of a wallet: further bytes count with those of other proven requests."""
        self._pool = self._budget.proven

    def may_count(self, length: int | None) -> bool:
        """Whether a body of this length may take more than the uncounted bytes. None: its length is not declared."""
        return length is None or length > self._budget.uncounted_bytes

    def reserve(self, size: int) -> Problem | None:
        """Adds `size` buffered bytes. None: they fit into the budget. A problem: they do not, and nothing more may be buffered."""
        self._size += size
        more = self._size - self._budget.uncounted_bytes - sum(self._reserved.values())
        if more <= 0:
            return None
        if not self._pool.reserve(client_bucket(self._client_address), more):
            return _BODIES_EXHAUSTED
        self._reserved[self._pool] = self._reserved.get(self._pool, 0) + more
        return None

    async def wait_interval(self, now_s: float) -> None:
        """Call it when the whole body has arrived. A long body waits, because its parsing blocks the event loop (a thread would block it
        too); a short body does not wait."""
        if self._size > self._budget.uncounted_bytes and (delay_s := self._budget.next_delay_s(now_s)):
            await asyncio.sleep(delay_s)

    def close(self) -> None:
        for pool, size in self._reserved.items():
            pool.release(client_bucket(self._client_address), size)
        self._reserved.clear()


class BodyPace:
    """The least rate of a body that arrives: `body_rate_bytes_min` a second over each `body_rate_window_s`, after `body_rate_grace_s` at its start. Only the time
    spent waiting for the client counts. A body that came faster may pause for the window, not for all the time that it is ahead."""

    __slots__ = ("_limits", "left_s")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.left_s = limits.body_rate_grace_s
        """The longest wait for the next bytes. Not above zero: the body is too slow."""

    def record(self, size: int, *, waited_s: float) -> None:
        earned_s = size / self._limits.body_rate_bytes_min
        longest_s = max(self._limits.body_rate_window_s, self._limits.body_rate_grace_s)
        self.left_s = min(self.left_s - waited_s + earned_s, longest_s)


_BODIES_EXHAUSTED = Problem(
    code=Code.OVERLOADED,
    detail="The gateway buffers as many long request bodies as it can. Send the request again after Retry-After.",
    reason="bodies",
    retry_after_s=RETRY_BODIES_S,
    payment_state="none",
)


SHED_AT_PERCENT = 95
"""From this part of `in_flight_max` and of `memory_bytes_max` on, new requests are refused. The rest stays for the requests in flight."""

MEMORY_CHECK_INTERVAL_S = 0.25
"""The shortest interval between two reads of the resident memory."""

RETRY_ADDRESS_LIMIT_S, RETRY_OVERLOADED_S = 1, 2

_STATM = Path("/proc/self/statm")


def read_resident_bytes() -> int:
    """The resident memory of this process; 0 where the system does not report it (all but Linux)."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


class LoadShedder:
    """Refuses requests when too many are in flight, in all or of one client address, or when memory is short. Each successful `enter` has one
    `leave`."""

    def __init__(
        self, *, limits: Limits, clock: Callable[[], float], read_memory_bytes: Callable[[], int]
    ) -> None:
        """`clock`: a monotonic one, in seconds."""
        self.bodies = BodyBudget(limits)
        self.loop = LoopShare(clock)
        self._limits = limits
        self._clock = clock
        self._read_memory_bytes = read_memory_bytes
        self._running_max = limits.in_flight_max * SHED_AT_PERCENT // 100
        self._memory_bytes_max = limits.memory_bytes_max * SHED_AT_PERCENT // 100
        self._by_address: dict[str, int] = {}
        self._next_check_s = 0.0
        self._is_memory_full = False
        self.running = 0

    def enter(self, client_address: str) -> Problem | None:
        """Admits one request. None: admitted, and `leave` must follow. A problem: refused, and nothing is counted."""
        if self.is_full():
            return _OVERLOADED
        bucket = client_bucket(client_address)
        mine = self._by_address.get(bucket, 0)
        if mine >= self._limits.in_flight_per_address_max:
            return _ADDRESS_LIMIT
        self._by_address[bucket] = mine + 1
        self.running += 1
        return None

    def leave(self, client_address: str) -> None:
        self.running -= 1
        bucket = client_bucket(client_address)
        left = self._by_address[bucket] - 1
        if left:
            self._by_address[bucket] = left
        else:
            del self._by_address[bucket]

    def is_full(self) -> bool:
        """Whether the gateway refuses further requests of any client address."""
        if self.running >= max(self._running_max, 1):
            return True
        if not self._memory_bytes_max:
            return False
        now_s = self._clock()
        if now_s >= self._next_check_s:
            self._next_check_s = now_s + MEMORY_CHECK_INTERVAL_S
            self._is_memory_full = self._read_memory_bytes() >= self._memory_bytes_max
        return self._is_memory_full


_OVERLOADED = Problem(
    code=Code.OVERLOADED,
    detail="The gateway is at its capacity and has not read the request. Send it again after Retry-After.",
    retry_after_s=RETRY_OVERLOADED_S,
    payment_state="none",
)
_ADDRESS_LIMIT = Problem(
    code=Code.OVERLOADED,
    detail="Too many requests from this address are in flight. Send the request again after Retry-After.",
    reason="address",
    retry_after_s=RETRY_ADDRESS_LIMIT_S,
    payment_state="none",
)


class SignInRateLimit:
    """Limits nonces, sessions and sign-in challenges per client address, each in a sliding minute."""

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        self.per_minute = limits.nonces_per_minute
        self._rate_limiter = rate_limiter
        self._item = RateLimitItemPerMinute(self.per_minute, namespace="signin")

    async def charge(self, kind: str, *, client_address: str) -> int | None:
        """Counts one request. `kind`: nonce, session or challenge; each has a quota of its own. None: allowed. Otherwise the seconds to wait."""
        return await self._rate_limiter.hit(self._item, kind, client_bucket(client_address))


PROBES_PER_LISTING = 10
"""The quota of probes is this many times the quota of listings, because a provider tries a draft several times and edits the listing later."""

HOUR_S = 3600


class PublishingLimits:
    """Limits registrations, edits and probes of endpoints, each in a sliding hour.

    Only created listings and stored edits count. A probe counts for every draft, also for one that is refused later.
    """

    def __init__(self, *, limits: Limits, rate_limiter: RateLimiter) -> None:
        per_hour = limits.registrations_per_hour
        self._rate_limiter = rate_limiter
        self._listings = Quota(
            "registrations",
            "listings",
            amount=per_hour,
            per="hour",
            rate_limiter=rate_limiter,
            namespace="registration",
        )
        self._edits = Quota(
            "edits", "edits of listings", amount=limits.edits_per_hour, per="hour", rate_limiter=rate_limiter
        )
        self._probes = RateLimitItemPerHour(per_hour * PROBES_PER_LISTING, namespace="endpoint-probes")

    async def charge(self, wallet: Address, *, client_address: str) -> None:
        """Counts one created listing. Raises Refusal (429) when the quota of the wallet or of the client address is used up."""
        await self._listings.charge(wallet, client_address=client_address)

    async def charge_edit(self, wallet: Address, *, client_address: str) -> None:
        """Counts one edit, because each may leave a version of the listing's terms in storage. Raises Refusal (429)."""
        await self._edits.charge(wallet, client_address=client_address)

    async def charge_probe(self, client_address: str) -> None:
        """Counts one probe of an endpoint or a document that a draft names. Raises Refusal (429)."""
        wait_s = await self._rate_limiter.hit(self._probes, client_bucket(client_address))
        if wait_s is not None:
            raise refuse(
                code=Code.RATE_LIMITED,
                detail=f"The gateway probes the endpoints of at most {self._probes.amount} drafts an hour for one address. Send the draft again after Retry-After.",
                retry_after_s=wait_s,
                members=describe_rate("endpoint-probes", limit=self._probes.amount, window_s=HOUR_S),
            )
