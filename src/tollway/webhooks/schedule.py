"""The schedule of attempts of a message, and what a response means. Pure: time and randomness are arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

PAUSES_MS = (5_000, 5 * MINUTE_MS, 30 * MINUTE_MS, 2 * HOUR_MS, 5 * HOUR_MS, 10 * HOUR_MS)
"""The pause after each failed attempt. The attempt after the last pause is followed by one more, 24 hours after the first."""
ATTEMPTS_MAX = len(PAUSES_MS) + 2
JITTER = 0.2
"""Each pause is up to this part longer or shorter, so that the messages of an outage do not return together."""
RETRY_AFTER_MS_MAX = HOUR_MS

CHALLENGE_PAUSES_MS = (5_000, 30_000, 5 * MINUTE_MS, 30 * MINUTE_MS)
"""The pause after each failed challenge but the last."""
CHALLENGES_MAX = len(CHALLENGE_PAUSES_MS) + 1

_GONE = 410
_SUCCESS = range(200, 300)
TIMEOUT, UNREACHABLE = "timeout", "unreachable"
_SILENT = (TIMEOUT, UNREACHABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """The response of a receiver, or none. `error`: why there is none, for the owner. `retry_after`: the header's text. `body`: its first bytes;
    a whole one where it is short."""

    status: int | None = None
    error: str | None = None
    retry_after: str | None = None
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        """2xx only: a redirect is not followed and is a failure."""
        return self.status in _SUCCESS

    @property
    def is_silent(self) -> bool:
        """The attempt waited for a response, or for a connection, that did not come."""
        return self.status is None and self.error in _SILENT

    @property
    def is_gone(self) -> bool:
        return self.status == _GONE


def find_next_attempt(
    attempts: int, *, first_ms: int, now_ms: int, draw: Callable[[], float], retry_after: str | None = None
) -> int | None:
    """The time of the next attempt after `attempts` failed ones; None after the last. `first_ms`: the time of the first. `draw`: a random number from
    0 to 1. `Retry-After` delays the attempt, up to an hour, and never beyond the last moment."""
    ends_ms = first_ms + DAY_MS
    if attempts >= ATTEMPTS_MAX or now_ms >= ends_ms:
        return None
    if attempts > len(PAUSES_MS):
        # Earlier, never later: the last attempt is within the day.
        return max(now_ms, ends_ms - round(JITTER * draw() * max(0, ends_ms - now_ms)))
    pause_ms = round(PAUSES_MS[attempts - 1] * (1 + JITTER * (2 * draw() - 1)))
    wanted_ms = now_ms + max(pause_ms, read_retry_after_ms(retry_after, now_ms=now_ms))
    return min(wanted_ms, ends_ms)


def find_next_challenge(tries: int, *, now_ms: int) -> int | None:
    """Returns None after the last challenge."""
    return now_ms + CHALLENGE_PAUSES_MS[tries - 1] if tries <= len(CHALLENGE_PAUSES_MS) else None


def read_retry_after_ms(text: str | None, *, now_ms: int) -> int:
    """`Retry-After` in milliseconds from now (RFC 9110 §10.2.3), seconds or a date; 0 for no or a bad one; one hour at most."""
    if text is None:
        return 0
    text = text.strip()
    if text.isascii() and text.isdigit():
        wait_ms = int(text[:9]) * 1000
    else:
        try:
            wait_ms = round(parsedate_to_datetime(text).timestamp() * 1000) - now_ms
        except (ValueError, OverflowError):
            return 0
    return min(max(wait_ms, 0), RETRY_AFTER_MS_MAX)
