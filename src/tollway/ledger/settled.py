"""What becomes of a call when its settlement is decided. Pure."""

from enum import StrEnum

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
    can_run_again = method in SAFE_METHODS and digest != UNRECOGNISABLE and runs_left > 0
    return Ending.LOST if can_run_again else Ending.CREDIT
