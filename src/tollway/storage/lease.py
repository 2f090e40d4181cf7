"""How long this gateway has renewed without a gap, by the clock that all gateways share. Reads no clock itself.

Whoever was stalled cannot tell a dead gateway from one that was stalled too: when the database stops for everybody,
nobody renews, and the first one back would find all the others dead. So a gateway judges others only after it has
itself renewed for a whole lease; by then each living one has had a whole lease to renew as well.
"""


class Lease:
    """The renewals of one gateway. All times in milliseconds of the shared clock."""

    def __init__(self, *, length_ms: int) -> None:
        self.length_ms = length_ms
        # Half: the others may have renewed a little earlier than we did before a stall that is too short to be seen.
        self._gap_ms_max = length_ms // 2
        self._steady_from_ms: int | None = None
        self._renewed_ms: int | None = None

    def note_renewed(self, at_ms: int) -> int | None:
        """Returns for how long nothing was heard of this gateway, when that was longer than its lease: then others
        may have settled its calls."""
        before_ms, self._renewed_ms = self._renewed_ms, at_ms
        if before_ms is None or not self._is_without_gap(before_ms, at_ms):
            self._steady_from_ms = at_ms
        silent_ms = 0 if before_ms is None else at_ms - before_ms
        return silent_ms if silent_ms >= self.length_ms else None

    def is_steady(self, at_ms: int) -> bool:
        """True when this gateway may say of another that it is dead."""
        if self._renewed_ms is None or self._steady_from_ms is None:
            return False
        is_whole = at_ms - self._steady_from_ms >= self.length_ms
        return is_whole and self._is_without_gap(self._renewed_ms, at_ms)

    def _is_without_gap(self, from_ms: int, to_ms: int) -> bool:
        """A clock that was set back is a gap too."""
        return 0 <= to_ms - from_ms <= self._gap_ms_max
