"""What becomes of a call when its settlement is decided. Pure."""

from enum import StrEnum

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""The same request may reach its upstream twice."""


class Ending(StrEnum):
    """How a call leaves `settling`."""

    BOUGHT = "bought"  # consumed: its caller has the answer, or finds it stored
    LOST = "lost"  # consumed, but its answer reached nobody: the same request may run again once
    CREDIT = "credit"  # released: what moved buys something else
    VOID = "void"  # released: nothing moved, and nothing will


def judge_ending(*, is_moved: bool, is_adrift: bool, has_answer: bool, method: str) -> Ending:
    """`is_adrift`: nobody was waiting any more, so the caller got no answer."""
    if not is_moved:
        return Ending.VOID
    if not is_adrift or has_answer:
        return Ending.BOUGHT
    return Ending.LOST if method in SAFE_METHODS else Ending.CREDIT
