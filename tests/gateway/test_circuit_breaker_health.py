"""Health checks of upstreams: their effect on the breaker, and that a slow probe delays no other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.kit.waits import until
from tollway.errors import UpstreamUnreachable
from tollway.gateway.circuit_breaker import PROBES_AT_ONCE, CircuitBreaker, HealthCheck
from tollway.limits import Limits
from tollway.outbound.policy import Endpoint

A, B = "https://a.example", "https://b.example:8443"


@dataclass
class FakeOrigins:
    """Origins of upstreams. `silent`: no response at all; `broken`: the check fails with an error that no code expects."""

    now_s: float = 0.0
    checked: list[str] = field(default_factory=list)
    up: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        limits = Limits(dial_failures_max=1, dial_pause_s=10.0)
        self.breaker = CircuitBreaker(limits=limits, clock=lambda: self.now_s)

    async def check_connection(self, endpoint: Endpoint) -> None:
        self.checked.append(endpoint.origin)
        if endpoint.origin in self.silent:
            await asyncio.Event().wait()
        if endpoint.origin in self.broken:
            raise RuntimeError("what is this")
        if endpoint.origin not in self.up:
            raise UpstreamUnreachable

    @asynccontextmanager
    async def probed(self) -> AsyncIterator[None]:
        health_check = HealthCheck(self.breaker, check_connection=self.check_connection, tick_s=0.001)
        task = asyncio.get_running_loop().create_task(health_check.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_what_is_down_is_probed_until_it_is_back_and_then_no_more() -> None:
    fake = FakeOrigins()
    fake.breaker.record_failed(B)
    async with fake.probed():
        fake.now_s = 10.0
        await until(lambda: fake.checked == [B])
        assert fake.breaker.wait_s(B) == 10
        fake.up.add(B)
        fake.now_s = 20.0
        await until(lambda: fake.breaker.wait_s(B) is None)
        fake.now_s = 5_000.0
        fake.breaker.record_failed(A)
        fake.now_s = 5_010.0
        await until(lambda: A in fake.checked)
        assert fake.checked == [B, B, A]


async def test_one_that_hangs_holds_up_no_other_and_is_not_probed_twice_at_once() -> None:
    fake = FakeOrigins(silent={A}, up={B})
    fake.breaker.record_failed(A)
    fake.now_s = 10.0
    async with fake.probed():
        await until(lambda: fake.checked == [A])
        fake.breaker.record_failed(B)
        fake.now_s = 20.0
        await until(lambda: fake.breaker.wait_s(B) is None)
        assert fake.checked == [A, B]


async def test_no_more_than_so_many_are_probed_at_once() -> None:
    origins = [f"https://{number}.example" for number in range(PROBES_AT_ONCE + 5)]
    fake = FakeOrigins(silent=set(origins))
    for origin in origins:
        fake.breaker.record_failed(origin)
    fake.now_s = 10.0
    async with fake.probed():
        await until(lambda: len(fake.checked) == PROBES_AT_ONCE)
        fake.breaker.record_failed(A)  # another task runs meanwhile
        await asyncio.sleep(0.01)
        assert len(fake.checked) == PROBES_AT_ONCE


async def test_an_unexpected_exception_is_a_failed_probe_and_ends_nothing() -> None:
    fake = FakeOrigins(broken={A}, up={B})
    for origin in (A, B):
        fake.breaker.record_failed(origin)
    async with fake.probed():
        fake.now_s = 10.0
        await until(lambda: fake.breaker.wait_s(B) is None)
        await until(lambda: A in fake.checked)
        assert fake.breaker.wait_s(A) == 10
        fake.now_s = 20.0
        await until(lambda: fake.checked.count(A) == 2)
