"""What becomes of a call when its settlement is decided, or when its answer was dropped. Pure."""

from enum import StrEnum

from tollway.ledger.call import CallState

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""The same request may reach its upstream twice."""
UNRECOGNISABLE = bytes(32)
"""The digest of a request whose body nobody has hashed. No other request has it, and nobody can show the same again."""


class Ending(StrEnum):
    """How a call leaves `settling`."""

    BOUGHT = "bought"  # consumed: its caller has the answer, or finds it stored
    LOST = "lost"  # consumed, but its answer reached nobody: the same request may run again once
    CREDIT = "credit"  # released: what moved buys something else
    VOID = "void"  # released: nothing moved, and nothing will


def judge_ending(
    *, is_moved: bool, is_adrift: bool, has_answer: bool, method: str, digest: bytes, runs_left: int
) -> Ending:
    """`is_adrift`: nobody was waiting any more, so the caller got no answer. What cannot run again is never lost: whoever
    paid for it could not get anything for his money."""
    if not is_moved:
        return Ending.VOID
    if not is_adrift or has_answer:
        return Ending.BOUGHT
    can_run_again = _can_run_again(method, digest, runs_left)
    return Ending.LOST if can_run_again else Ending.CREDIT


def judge_dropped(state: CallState, *, method: str, digest: bytes, runs_left: int) -> CallState | None:
    """The next state of a call whose answer its gateway dropped, because the write of its end failed. `state`: what the
    books say of that run now. None: they hold another end already, and it stays.

    `forwarding`: the write was lost, so the call is `unknown`. `consumed`: the write was committed, and only its
    acknowledgement was lost. Then the call stays `consumed`, marked as cut, where the same request may run again; where it
    may not, it is `unknown` too: held, then credit."""
    if state is CallState.FORWARDING:
        return CallState.UNKNOWN
    if state is not CallState.CONSUMED:
        return None
    return CallState.CONSUMED if _can_run_again(method, digest, runs_left) else CallState.UNKNOWN


def _can_run_again(method: str, digest: bytes, runs_left: int) -> bool:
    return method in SAFE_METHODS and digest != UNRECOGNISABLE and runs_left > 0
