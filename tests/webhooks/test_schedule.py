"""The schedule of attempts, `Retry-After`, and what a response means."""

from itertools import pairwise

import pytest

from tollway.webhooks.schedule import (
    ATTEMPTS_MAX,
    CHALLENGE_PAUSES_MS,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    PAUSES_MS,
    Response,
    find_next_attempt,
    find_next_challenge,
    read_retry_after_ms,
)

NOW_MS = 1_795_356_000_000
NOW_TEXT = "Sun, 22 Nov 2026 14:00:00 GMT"


def middle() -> float:
    return 0.5


def test_the_attempts_of_a_message_are_within_a_day() -> None:
    now_ms, times = NOW_MS, [0]
    while (next_ms := find_next_attempt(len(times), first_ms=NOW_MS, now_ms=now_ms, draw=middle)) is not None:
        now_ms = next_ms
        times.append(now_ms - NOW_MS)
    pauses = [after - before for before, after in pairwise(times)]
    assert len(times) == ATTEMPTS_MAX
    assert pauses[:6] == [5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000]
    assert 0.95 * DAY_MS < times[-1] <= DAY_MS


@pytest.mark.parametrize(("drawn", "factor"), [(0.0, 0.8), (0.5, 1.0), (1.0, 1.2)])
def test_a_pause_is_up_to_a_fifth_longer_or_shorter(drawn: float, factor: float) -> None:
    found = [
        find_next_attempt(attempts, first_ms=NOW_MS, now_ms=NOW_MS, draw=lambda: drawn)
        for attempts in range(1, len(PAUSES_MS) + 1)
    ]
    assert found == [NOW_MS + round(pause_ms * factor) for pause_ms in PAUSES_MS]


@pytest.mark.parametrize("drawn", [0.0, 0.3, 1.0])
def test_the_last_attempt_is_never_after_a_day(drawn: float) -> None:
    now_ms = NOW_MS + 18 * HOUR_MS
    next_ms = find_next_attempt(len(PAUSES_MS) + 1, first_ms=NOW_MS, now_ms=now_ms, draw=lambda: drawn)
    assert next_ms is not None
    assert NOW_MS + 18 * HOUR_MS + 0.8 * 6 * HOUR_MS <= next_ms <= NOW_MS + DAY_MS


@pytest.mark.parametrize(
    ("attempts", "now_ms"), [(ATTEMPTS_MAX, NOW_MS), (ATTEMPTS_MAX + 3, NOW_MS), (3, NOW_MS + DAY_MS)]
)
def test_there_is_no_attempt_after_the_last(attempts: int, now_ms: int) -> None:
    assert find_next_attempt(attempts, first_ms=NOW_MS, now_ms=now_ms, draw=middle) is None


DELAYS = [("60", 60_000), ("1", 5_000), ("86400", HOUR_MS), ("-5", 5_000), ("soon", 5_000), (None, 5_000)]


def test_retry_after_delays_an_attempt_up_to_an_hour() -> None:
    for retry_after, pause_ms in DELAYS:
        next_ms = find_next_attempt(1, first_ms=NOW_MS, now_ms=NOW_MS, draw=middle, retry_after=retry_after)
        assert next_ms == NOW_MS + pause_ms, retry_after


def test_retry_after_never_delays_beyond_the_last_moment() -> None:
    now_ms = NOW_MS + DAY_MS - MINUTE_MS
    next_ms = find_next_attempt(2, first_ms=NOW_MS, now_ms=now_ms, draw=middle, retry_after="3000")
    assert next_ms == NOW_MS + DAY_MS


RETRY_AFTER = [
    (None, 0),
    ("", 0),
    ("0", 0),
    (" 12 ", 12_000),
    ("99999999999999999999", HOUR_MS),
    ("1.5", 0),
    ("\u0661\u0662", 0),
    (NOW_TEXT, 0),
    ("Sun, 22 Nov 2026 14:00:30 GMT", 30_000),
    ("Sun, 22 Nov 2026 13:00:00 GMT", 0),
    ("Sun, 22 Nov 2099 14:00:00 GMT", HOUR_MS),
    ("Sun, 99 Nov 2026 14:00:00 GMT", 0),
]


def test_retry_after_is_seconds_or_a_date() -> None:
    for text, wait_ms in RETRY_AFTER:
        assert read_retry_after_ms(text, now_ms=NOW_MS) == wait_ms


def test_a_challenge_has_five_tries() -> None:
    found = [find_next_challenge(tries, now_ms=NOW_MS) for tries in range(1, 7)]
    assert found == [*(NOW_MS + pause_ms for pause_ms in CHALLENGE_PAUSES_MS), None, None]


STATUSES = [
    (200, True, False),
    (204, True, False),
    (299, True, False),
    (199, False, False),
    (301, False, False),
    (308, False, False),
    (410, False, True),
    (429, False, False),
    (500, False, False),
    (None, False, False),
]


def test_a_success_is_2xx_only() -> None:
    for status, is_success, is_gone in STATUSES:
        response = Response(status=status)
        assert (response.is_success, response.is_gone) == (is_success, is_gone), status
