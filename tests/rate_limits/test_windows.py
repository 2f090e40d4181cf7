"""Windows of this process, on a clock that the test sets."""

import sys
import tracemalloc

from limits import RateLimitItemPerDay, RateLimitItemPerMinute

from tollway.rate_limits.windows import SLICES_MAX, SWEEP_AFTER, LocalWindows

TWICE = RateLimitItemPerMinute(2)


class Play:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.windows = LocalWindows(lambda: self.now_s)

    def hit(self, key: str = "a", times: int = 1) -> list[bool]:
        return [self.windows.hit(TWICE, key) for _ in range(times)]


def test_a_window_slides() -> None:
    play = Play()
    assert play.hit() == [True]
    play.now_s += 30
    assert play.hit(times=2) == [True, False]
    assert play.windows.peek(TWICE, "a") == (0, 30.0)
    play.now_s += 29.9
    assert play.hit() == [False]
    play.now_s += 0.1
    assert play.hit(times=2) == [True, False]


def test_a_returned_hit_does_not_count() -> None:
    play = Play()
    play.hit()
    play.now_s += 30
    play.hit()
    play.windows.undo_hit(TWICE, "a")
    assert play.windows.peek(TWICE, "a") == (1, 30.0)  # the newest hit was returned
    play.windows.undo_hit(TWICE, "a")
    assert play.windows.peek(TWICE, "a") == (2, 0.0)


def test_at_most_the_counted_hits_are_returned() -> None:
    play = Play()
    play.windows.undo_hit(TWICE, "a")
    play.hit()
    play.now_s += 60
    play.windows.undo_hit(TWICE, "a")
    assert play.hit(times=3) == [True, True, False]


def test_keys_and_limits_do_not_mix() -> None:
    play = Play()
    assert play.hit(times=3) == [True, True, False]
    assert play.hit("b") == [True]
    assert play.windows.hit(RateLimitItemPerMinute(2, namespace="other"), "a")


def test_a_peek_counts_nothing_and_keeps_nothing() -> None:
    play = Play()
    assert play.windows.peek(TWICE, "a") == (2, 0.0)
    assert len(play.windows) == 0


def test_empty_windows_are_deleted() -> None:
    play = Play()
    for number in range(SWEEP_AFTER - 1):
        play.hit(str(number))
    play.now_s += 60
    play.hit("last")
    assert len(play.windows) == 1
    assert play.hit("0", times=3) == [True, True, False]


def test_a_window_of_a_high_limit_takes_little_memory() -> None:
    """A provider may allow a million calls a day and make them itself."""
    play, item = Play(), RateLimitItemPerDay(1_000_000)
    tracemalloc.start()
    try:
        for _ in range(100_000):
            assert play.windows.hit(item, "a")
            play.now_s += 0.8
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < (SLICES_MAX + 2) * 4 * sys.getsizeof(1.0)
    assert play.windows.peek(item, "a")[0] == 1_000_000 - 100_000


def test_hits_of_one_slot_expire_together_and_at_most_a_slot_early() -> None:
    play, item = Play(), RateLimitItemPerMinute(1_000)
    for _ in range(1_000):
        assert play.windows.hit(item, "a")
        play.now_s += 0.01
    assert not play.windows.hit(item, "a")
    began_s, left, early = play.now_s - 10.0, 0, 60.0 / SLICES_MAX / 0.01 + 1
    while left < 1_000:
        play.now_s += 0.01
        now_left = play.windows.peek(item, "a")[0]
        due = (play.now_s - began_s - 60.0) / 0.01  # the number of hits that are older than a minute
        assert due - 1 <= now_left <= max(0.0, due + early), play.now_s
        left = now_left
