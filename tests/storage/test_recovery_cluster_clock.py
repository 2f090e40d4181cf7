"""The clock that all gateways share: jumps of this gateway's clock and of the shared one."""

from tollway.storage.recovery import ClusterClock

HOUR = 3_600_000


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
