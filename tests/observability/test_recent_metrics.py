"""What metrics gained in a window: from counters and buckets, kept for the longest window and no longer."""

import pytest
from prometheus_client import CollectorRegistry

from tollway.observability.alert_limits import EVENT_WINDOW_S
from tollway.observability.recent_metrics import KEPT_S, SAMPLE_INTERVAL_S, RecentMetrics, find_quantile
from tollway.observability.telemetry import Metrics


class Clock:
    s = 1_000.0

    def __call__(self) -> float:
        return self.s


async def test_a_window_has_what_was_gained_in_it() -> None:
    metrics, clock = Metrics(CollectorRegistry()), Clock()
    metrics.calls.add("charged")  # before the first sample
    recent = RecentMetrics(metrics, clock=clock)
    for _ in range(4):
        metrics.calls.add("charged")
        metrics.call_seconds.find("tx", "claim").observe(0.02)
        metrics.call_seconds.find("credit", "claim").observe(0.02)
        metrics.commit_seconds["close"].observe(0.2)
        metrics.lease_lapses.add()
        metrics.node_requests.add("eip155:1", "1", "ok")
        metrics.channel_steps.add("eip155:1", "claim", "refused")
        clock.s += SAMPLE_INTERVAL_S
        await recent.sample()
    metrics.calls.add("charged")
    clock.s += 1
    gained = recent.find_increase(2 * SAMPLE_INTERVAL_S)
    assert gained.seconds == 2 * SAMPLE_INTERVAL_S + SAMPLE_INTERVAL_S + 1 - SAMPLE_INTERVAL_S
    assert gained.calls == {("charged",): 3}
    assert (sum(gained.phases["claim"]), sum(gained.commits)) == (4, 2)
    assert (gained.lease_lapses, gained.node_requests) == ({(): 2}, {("eip155:1", "1", "ok"): 2})
    assert gained.channel_steps == {("eip155:1", "claim", "refused"): 2}
    whole = recent.find_increase(EVENT_WINDOW_S)
    assert (whole.seconds, whole.calls_count) == (4 * SAMPLE_INTERVAL_S + 1, 5)


async def test_samples_are_dropped_when_no_window_needs_them() -> None:
    metrics, clock = Metrics(CollectorRegistry()), Clock()
    recent = RecentMetrics(metrics, clock=clock)
    for _ in range(1_000):
        clock.s += SAMPLE_INTERVAL_S
        await recent.sample()
    assert len(recent._samples) == KEPT_S / SAMPLE_INTERVAL_S + 1
    for window_s in (EVENT_WINDOW_S, KEPT_S):
        assert recent.find_increase(window_s).seconds == window_s


@pytest.mark.parametrize(
    ("quantile", "buckets", "found"),
    [
        (0.5, (0, 0, 0), None),
        (0.5, (10, 0, 0), 0.5),
        (0.95, (0, 10, 0), 1.95),
        (0.5, (5, 5, 0), 1.0),
        (0.99, (0, 0, 7), 2.0),
    ],
)
def test_a_quantile_is_linear_within_its_bucket(
    quantile: float, buckets: tuple[int, ...], found: float | None
) -> None:
    assert find_quantile(quantile, (1.0, 2.0), buckets) == (None if found is None else pytest.approx(found))
