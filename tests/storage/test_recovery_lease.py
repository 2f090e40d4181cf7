"""A gateway may declare another one dead only after it has renewed for a whole lease without a gap."""

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
        ([0], 30_000, False),  # a single renewal
        (range(0, 30_000, 3_000), 30_000, True),
        (range(0, 27_000, 3_000), 29_999, False),
        (range(0, 60_001, 3_000), 75_000, True),
        (range(0, 60_001, 3_000), 75_001, False),  # paused, before the next renewal
        ([*range(0, 60_001, 3_000), 76_000], 76_001, False),  # the other gateways had no time to renew
        ([*range(0, 60_001, 3_000), *range(76_000, 106_000, 3_000)], 105_999, False),
        ([*range(0, 60_001, 3_000), *range(76_000, 106_001, 3_000)], 106_000, True),
        ([*range(0, 60_001, 3_000), 59_000], 60_000, False),  # the clock was set back
    ],
)
def test_is_steady_after_a_whole_lease_without_a_gap(
    moments_ms: list[int], at_ms: int, is_steady: bool
) -> None:
    assert renewed(*moments_ms).is_steady(at_ms) is is_steady


def test_a_renewal_returns_the_silence_of_a_whole_lease_or_more() -> None:
    lease = Lease(length_ms=LENGTH_MS)
    lapses = [lease.note_renewed(at_ms) for at_ms in (0, 29_999, 59_999, 60_000, 100_000)]
    assert lapses == [None, None, 30_000, None, 40_000]
