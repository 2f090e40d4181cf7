"""The lease of a gateway and the clock that all gateways share.

A gateway may declare another one dead only after it has renewed for a whole lease without a gap. The clock follows jumps of this gateway's clock
and of the shared one.
"""

import pytest

from tollway.storage.ledger.recovery import ClusterClock, Lease

LENGTH_MS = 30_000
HOUR = 3_600_000


def renewed(*moments_ms: int) -> Lease:
    lease = Lease(length_ms=LENGTH_MS)
    for at_ms in moments_ms:
        lease.note_renewed(at_ms)
    return lease


@pytest.mark.parametrize(
    ("moments_ms", "at_ms", "is_steady"),
    [
        ([], 60_000, False),
        ([0], 30_000, False),  # a single renewal
        (range(0, 30_000, 3_000), 30_000, True),
        (range(0, 27_000, 3_000), 29_999, False),
        (range(0, 60_001, 3_000), 75_000, True),
        (range(0, 60_001, 3_000), 75_001, False),  # paused, before the next renewal
        ([*range(0, 60_001, 3_000), 76_000], 76_001, False),  # the other gateways had no time to renew
        ([*range(0, 60_001, 3_000), *range(76_000, 106_000, 3_000)], 105_999, False),
        ([*range(0, 60_001, 3_000), *range(76_000, 106_001, 3_000)], 106_000, True),
        ([*range(0, 60_001, 3_000), 59_000], 60_000, False),  # the clock was set back
    ],
)
def test_is_steady_after_a_whole_lease_without_a_gap(
    moments_ms: list[int], at_ms: int, is_steady: bool
) -> None:
    assert renewed(*moments_ms).is_steady(at_ms) is is_steady


def test_a_renewal_returns_the_silence_of_a_whole_lease_or_more() -> None:
    lease = Lease(length_ms=LENGTH_MS)
    lapses = [lease.note_renewed(at_ms) for at_ms in (0, 29_999, 59_999, 60_000, 100_000)]
    assert lapses == [None, None, 30_000, None, 40_000]


class Clocks:
    """Three clocks with the same speed that may jump."""

    def __init__(self) -> None:
        self.own, self.shared, self.ticks = 50 * HOUR, 80 * HOUR, 7
        self.time = ClusterClock(own_ms=lambda: self.own, ticks_ms=lambda: self.ticks)

    def pass_time(self, ms: int) -> None:
        self.own, self.shared, self.ticks = self.own + ms, self.shared + ms, self.ticks + ms

    def renew(self) -> None:
        self.time.set_shared_ms(self.shared)


def test_before_the_first_renewal_it_is_the_clock_of_this_gateway() -> None:
    clocks = Clocks()
    assert (clocks.time.read(), clocks.time.ahead_ms) == (clocks.own, 0)


def test_between_two_renewals_jumps_of_this_gateways_clock_have_no_effect() -> None:
    clocks = Clocks()
    clocks.renew()
    clocks.pass_time(1_000)
    for jump_ms in (HOUR, -2 * HOUR):
        clocks.own += jump_ms
        assert clocks.time.read() == clocks.shared
        assert clocks.time.translate(clocks.own - 5) == clocks.shared - 5
        assert clocks.time.ahead_ms == 0


def test_follows_and_measures_jumps_of_the_shared_clock() -> None:
    clocks = Clocks()
    clocks.renew()
    for jump_ms, ahead_ms in ((HOUR, HOUR), (-HOUR, 0), (-HOUR, 0), (HOUR, HOUR), (HOUR, 2 * HOUR)):
        clocks.pass_time(3_000)
        clocks.shared += jump_ms
        clocks.renew()
        assert (clocks.time.read(), clocks.time.ahead_ms) == (clocks.shared, ahead_ms)


def test_without_a_monotonic_clock_no_jump_is_detected() -> None:
    clocks = Clocks()
    time = ClusterClock(own_ms=lambda: clocks.own)
    time.set_shared_ms(clocks.shared)
    clocks.pass_time(9_000)
    clocks.shared += HOUR
    time.set_shared_ms(clocks.shared)
    assert (time.read(), time.ahead_ms) == (clocks.shared, 0)
