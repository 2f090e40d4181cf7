"""Windows of this process, on a clock moved by hand."""

from limits import RateLimitItemPerMinute

from tollway.own_windows import SWEEP_AFTER, OwnStanding, OwnWindows

TWICE = RateLimitItemPerMinute(2)


class Play:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.windows = OwnWindows(lambda: self.now_s)

    def hit(self, key: str = "a", times: int = 1) -> list[bool]:
        return [self.windows.hit(TWICE, key) for _ in range(times)]


def test_a_window_slides() -> None:
    play = Play()
    assert play.hit() == [True]
    play.now_s += 30
    assert play.hit(times=2) == [True, False]
    assert play.windows.look(TWICE, "a") == OwnStanding(left=0, wait_s=30.0)
    play.now_s += 29.9
    assert play.hit() == [False]
    play.now_s += 0.1
    assert play.hit(times=2) == [True, False]


def test_keys_and_limits_do_not_mix() -> None:
    play = Play()
    assert play.hit(times=3) == [True, True, False]
    assert play.hit("b") == [True]
    assert play.windows.hit(RateLimitItemPerMinute(2, namespace="other"), "a")


def test_looking_counts_nothing_and_keeps_nothing() -> None:
    play = Play()
    assert play.windows.look(TWICE, "a") == OwnStanding(left=2, wait_s=0.0)
    assert len(play.windows) == 0


def test_windows_that_have_emptied_are_forgotten() -> None:
    play = Play()
    for number in range(SWEEP_AFTER - 1):
        play.hit(str(number))
    play.now_s += 60
    play.hit("last")
    assert len(play.windows) == 1
    assert play.hit("0", times=3) == [True, True, False]
