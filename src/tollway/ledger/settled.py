"""What becomes of a call when its settlement is decided, or when its answer was dropped. Pure."""

from enum import StrEnum

from tollway.ledger.call import CallState

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""The same request may reach its upstream twice."""
UNKNOWN_DIGEST = bytes(32)
"""The digest of a request whose body nobody has hashed. No other request has it, and nobody can show the same again."""


class SettlementEnd(StrEnum):
    """How a call leaves `settling`."""

    BOUGHT = "bought"  # consumed: its caller has the answer, or finds it stored
    LOST = "lost"  # consumed, but its answer reached nobody: the same request may run again once
    CREDIT = "credit"  # released: what moved buys something else
    VOID = "void"  # released: nothing moved, and nothing will


def decide_settlement_end(
    *,
    is_moved: bool,
    is_orphaned: bool,
    has_stored_response: bool,
    method: str,
    digest: bytes,
    runs_left: int,
) -> SettlementEnd:
    """`is_orphaned`: nobody was waiting any more, so the caller got no answer. What cannot run again is never lost: whoever
    paid for it could not get anything for his money."""
    if not is_moved:
        return SettlementEnd.VOID
    if not is_orphaned or has_stored_response:
        return SettlementEnd.BOUGHT
    can_run_again = _can_run_again(method, digest, runs_left)
    return SettlementEnd.LOST if can_run_again else SettlementEnd.CREDIT


def decide_dropped_call(state: CallState, *, method: str, digest: bytes, runs_left: int) -> CallState | None:
    """The next state of a call whose answer its gateway dropped, because the write of its end failed. `state`: what the
    ledger says of that run now. None: it holds another end already, and it stays.

    `forwarding`: the write was lost, so the call is `unknown`. `consumed`: the write was committed, and only its
    acknowledgement was lost. Then the call stays `consumed`, marked as cut, where the same request may run again; where it
    may not, it is `unknown` too: held, then credit."""
    if state is CallState.FORWARDING:
        return CallState.UNKNOWN
    if state is not CallState.CONSUMED:
        return None
    return CallState.CONSUMED if _can_run_again(method, digest, runs_left) else CallState.UNKNOWN


def _can_run_again(method: str, digest: bytes, runs_left: int) -> bool:
    return method in SAFE_METHODS and digest != UNKNOWN_DIGEST and runs_left > 0
