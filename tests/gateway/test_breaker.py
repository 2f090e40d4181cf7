"""When an upstream counts as down, and when it is tried again: a play with a clock."""

from tollway.gateway.breaker import ORIGINS_MAX, Breaker
from tollway.limits import Limits

A, B = "https://a.example", "https://b.example"


class Play:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.breaker = Breaker(
            limits=Limits(dial_failures_max=3, dial_pause_s=10.0), clock=lambda: self.now_s
        )

    def fail(self, origin: str = A, times: int = 1) -> None:
        for _ in range(times):
            self.breaker.note_failed(origin)


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
    play.breaker.note_reached(A)
    play.fail(times=2)
    assert play.breaker.wait_s(A) is None


def test_after_the_pause_one_failure_pauses_again_and_one_answer_ends_it() -> None:
    play = Play()
    play.fail(times=3)
    play.now_s = 9.001
    assert play.breaker.wait_s(A) == 1
    play.now_s = 10.0
    assert play.breaker.wait_s(A) is None
    play.fail()
    assert play.breaker.wait_s(A) == 10
    play.breaker.note_reached(A)
    assert play.breaker.wait_s(A) is None


def test_remembers_so_many_origins_and_forgets_the_oldest() -> None:
    play = Play()
    play.fail(times=3)
    for number in range(ORIGINS_MAX):
        play.fail(f"https://{number}.example")
    assert play.breaker.wait_s(A) is None
