"""Only who has renewed for a whole lease without a gap may say that another is dead."""

import pytest

from tollway.storage.recovery import Lease

LENGTH_MS = 30_000


def renewed(*moments_ms: int) -> Lease:
    lease = Lease(length_ms=LENGTH_MS)
    for at_ms in moments_ms:
        lease.note_renewed(at_ms)
    return lease


@pytest.mark.parametrize(
    ("moments_ms", "at_ms", "is_steady"),
    [
        ([], 60_000, False),
        ([0], 30_000, False),  # one renewal is not a lease of them
        (range(0, 30_000, 3_000), 30_000, True),
        (range(0, 27_000, 3_000), 29_999, False),
        (range(0, 60_001, 3_000), 75_000, True),
        (range(0, 60_001, 3_000), 75_001, False),  # stalled, and not yet renewed
        ([*range(0, 60_001, 3_000), 76_000], 76_001, False),  # renewed, but the others had no time to
        ([*range(0, 60_001, 3_000), *range(76_000, 106_000, 3_000)], 105_999, False),
        ([*range(0, 60_001, 3_000), *range(76_000, 106_001, 3_000)], 106_000, True),
        ([*range(0, 60_001, 3_000), 59_000], 60_000, False),  # the clock was set back
    ],
)
def test_judges_others_after_a_whole_lease_without_a_gap(
    moments_ms: list[int], at_ms: int, is_steady: bool
) -> None:
    assert renewed(*moments_ms).is_steady(at_ms) is is_steady


def test_tells_when_the_lease_had_lapsed_before_it_was_renewed() -> None:
    lease = Lease(length_ms=LENGTH_MS)
    told = [lease.note_renewed(at_ms) for at_ms in (0, 29_999, 59_999, 60_000, 100_000)]
    assert told == [None, None, 30_000, None, 40_000]
