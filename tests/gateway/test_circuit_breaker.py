"""The circuit breaker with a controlled clock: when an origin is down, and when it is probed."""

from tollway.gateway.circuit_breaker import IN_USE_S, ORIGINS_MAX, CircuitBreaker
from tollway.limits import Limits

A, B = "https://a.example", "https://b.example"


class Play:
    def __init__(self, *, probe_interval_s: float = 0.0) -> None:
        self.now_s = 0.0
        limits = Limits(dial_failures_max=3, dial_pause_s=10.0, probe_interval_s=probe_interval_s)
        self.breaker = CircuitBreaker(limits=limits, clock=lambda: self.now_s)

    def fail(self, origin: str = A, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.record_failed(origin)


def test_opens_after_failures_in_a_row_of_that_origin_only() -> None:
    play = Play()
    play.fail(times=2)
    assert play.breaker.wait_s(A) is None
    play.fail()
    assert play.breaker.wait_s(A) == 10
    assert play.breaker.wait_s(B) is None


def test_an_answer_between_them_starts_the_count_anew() -> None:
    play = Play()
    play.fail(times=2)
    play.breaker.record_reached(A)
    play.fail(times=2)
    assert play.breaker.wait_s(A) is None


def test_stays_down_after_its_pause_until_a_probe_has_reached_it() -> None:
    play = Play()
    play.fail(times=3)
    play.now_s = 9.001
    assert (play.breaker.wait_s(A), play.breaker.find_due()) == (1, [])
    for play.now_s in (10.0, 500.0):
        assert (play.breaker.wait_s(A), play.breaker.find_due()) == (1, [A])
    assert not play.breaker.record_failed(A), "it was down before"
    assert (play.breaker.wait_s(A), play.breaker.find_due()) == (10, [])
    play.now_s = 510.0
    assert play.breaker.find_due() == [A]
    assert play.breaker.record_probed(A)
    assert (play.breaker.wait_s(A), play.breaker.find_due()) == (None, [])


def test_a_call_that_was_under_way_and_reached_it_ends_it_too() -> None:
    play = Play()
    play.fail(times=3)
    play.breaker.record_reached(A)
    assert (play.breaker.wait_s(A), play.breaker.find_due()) == (None, [])


def test_reports_only_the_change_to_down_and_back() -> None:
    play = Play()
    assert [play.breaker.record_failed(A) for _ in range(5)] == [False, False, True, False, False]
    assert [play.breaker.record_probed(A) for _ in range(2)] == [True, False]
    play.fail(times=1)
    assert not play.breaker.record_probed(A)


def test_counts_those_that_are_down() -> None:
    play = Play()
    assert play.breaker.count_down() == 0
    play.fail(A, times=3)
    play.fail(B, times=2)
    assert play.breaker.count_down() == 1
    play.breaker.record_probed(A)
    assert play.breaker.count_down() == 0


def test_an_unrequested_origin_is_probed_with_growing_pauses() -> None:
    play = Play()
    play.fail(times=3)
    pauses = []
    for _ in range(9):
        since_s = play.now_s
        while not play.breaker.find_due():
            play.now_s += 5.0
        pauses.append(play.now_s - since_s)
        play.fail()
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 900, 900]
    assert play.breaker.wait_s(A) == 10, "and what is asked for, after its pause"
    play.now_s += 10.0
    assert play.breaker.find_due() == [A]


def test_a_requested_origin_is_probed_first() -> None:
    play = Play()
    play.fail(A, times=3)
    play.now_s = 1.0
    play.fail(B, times=3)
    play.breaker.wait_s(B)
    play.now_s = 20.0
    assert play.breaker.find_due() == [B, A]


def test_upstreams_in_use_are_probed_only_where_the_operator_wants_it() -> None:
    quiet, watchful = Play(), Play(probe_interval_s=30.0)
    for play in (quiet, watchful):
        play.breaker.record_reached(A)
        play.now_s = 29.0
        assert play.breaker.find_due() == []
        play.now_s = 30.0
    assert (quiet.breaker.find_due(), watchful.breaker.find_due()) == ([], [A])
    watchful.breaker.record_probed(A)
    assert watchful.breaker.find_due() == []
    watchful.now_s = 59.0
    watchful.breaker.record_reached(A)  # a call is as good as a probe
    watchful.now_s = 60.0
    assert watchful.breaker.find_due() == []


def test_a_used_upstream_that_fails_is_down_before_the_next_call() -> None:
    play = Play(probe_interval_s=30.0)
    play.breaker.record_reached(A)
    play.now_s = 30.0
    probes = 0
    while play.breaker.wait_s(A) is None:
        if A in play.breaker.find_due():
            play.fail()
            probes += 1
        play.now_s += 1.0
    assert (probes, play.now_s) == (3, 51.0), "three probes, a pause apart"


def test_what_was_not_called_for_an_hour_is_not_in_use() -> None:
    play = Play(probe_interval_s=30.0)
    play.breaker.record_reached(A)
    play.now_s = IN_USE_S + 1
    assert play.breaker.find_due() == []
    assert play.breaker._used == {}


def test_remembers_so_many_origins_and_forgets_the_oldest() -> None:
    play = Play()
    play.fail(times=3)
    for number in range(ORIGINS_MAX):
        play.fail(f"https://{number}.example")
    assert play.breaker.wait_s(A) is None
