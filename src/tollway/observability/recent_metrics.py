"""What the metrics of this process gained in the last minutes, for the operator's pages: samples of counters and buckets, kept for an hour."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tollway.observability.plain_metrics import LabelValues, PlainCounter, PlainHistogram
from tollway.observability.telemetry import Metrics

SAMPLE_INTERVAL_S = 30.0
KEPT_S = 3_600.0
"""No window of a finding is longer (`EVENT_WINDOW_S`), and the operator's pages show the last hour."""

Counts = Mapping[LabelValues, float]
Buckets = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSample:
    """Counters and buckets at one moment, or what they gained in `seconds`. `phases`: of all rails together. Buckets are not cumulated; the last one is +Inf."""

    seconds: float
    calls: Counts
    refusals: Counts
    lease_lapses: Counts
    node_requests: Counts
    node_disagreements: Counts
    channel_steps: Counts
    phases: Mapping[str, Buckets]
    upstream: Buckets
    commits: Buckets
    loop_delay: Buckets

    @property
    def calls_count(self) -> float:
        return sum(self.calls.values())


def find_increase(before: MetricsSample, after: MetricsSample) -> MetricsSample:
    """What was gained between two samples of one process."""
    return MetricsSample(
        seconds=after.seconds - before.seconds,
        calls=_subtract(after.calls, before.calls),
        refusals=_subtract(after.refusals, before.refusals),
        lease_lapses=_subtract(after.lease_lapses, before.lease_lapses),
        node_requests=_subtract(after.node_requests, before.node_requests),
        node_disagreements=_subtract(after.node_disagreements, before.node_disagreements),
        channel_steps=_subtract(after.channel_steps, before.channel_steps),
        phases={
            phase: _subtract_buckets(buckets, before.phases.get(phase, ()))
            for phase, buckets in after.phases.items()
        },
        upstream=_subtract_buckets(after.upstream, before.upstream),
        commits=_subtract_buckets(after.commits, before.commits),
        loop_delay=_subtract_buckets(after.loop_delay, before.loop_delay),
    )


def find_quantile(quantile: float, bounds: tuple[float, ...], buckets: Buckets) -> float | None:
    """The quantile of a histogram as `histogram_quantile` of Prometheus computes it: linear within its bucket, the last bound beyond it. None without observations."""
    rank = quantile * sum(buckets)
    if not rank:
        return None
    below, lower = 0, 0.0
    for bound, count in zip(bounds, buckets, strict=False):
        if below + count >= rank:
            return lower + (bound - lower) * (rank - below) / count
        below, lower = below + count, bound
    return bounds[-1]


class RecentMetrics:
    """The samples of the metrics of one process. `clock`: monotonic seconds. Used from one event loop."""

    def __init__(self, metrics: Metrics, *, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._samples: deque[MetricsSample] = deque([self._read()])

    async def sample(self) -> None:
        """Keeps a sample, and drops those that no window needs any more."""
        samples = self._samples
        samples.append(self._read())
        while len(samples) > 1 and samples[1].seconds <= samples[-1].seconds - KEPT_S:
            samples.popleft()

    def find_increase(self, window_s: float) -> MetricsSample:
        """What was gained in the last `window_s` until now, rounded up to a sample; less after a start (`seconds` says how much)."""
        now = self._read()
        start_s = now.seconds - window_s
        first = self._samples[0]
        for one in self._samples:
            if one.seconds > start_s:
                break
            first = one
        return find_increase(first, now)

    def _read(self) -> MetricsSample:
        metrics = self._metrics
        phases: dict[str, Buckets] = {}
        for (_, phase), histogram in metrics.call_seconds.items():
            phases[phase] = _add_buckets(phases.get(phase, ()), histogram)
        commits: Buckets = ()
        for histogram in metrics.commit_seconds.values():
            commits = _add_buckets(commits, histogram)
        return MetricsSample(
            seconds=self._clock(),
            calls=_copy(metrics.calls),
            refusals=_copy(metrics.refusals),
            lease_lapses=_copy(metrics.lease_lapses),
            node_requests=_copy(metrics.node_requests),
            node_disagreements=_copy(metrics.node_disagreements),
            channel_steps=_copy(metrics.channel_steps),
            phases=phases,
            upstream=tuple(metrics.upstream_seconds.counts),
            commits=commits,
            loop_delay=tuple(metrics.loop_delay_seconds.counts),
        )


def _copy(counter: PlainCounter) -> Counts:
    return {labels: count for labels, count in counter.counts.items() if count}


def _subtract(after: Counts, before: Counts) -> Counts:
    return {labels: count - before.get(labels, 0) for labels, count in after.items()}


def _add_buckets(sums: Buckets, histogram: PlainHistogram) -> Buckets:
    if not sums:
        return tuple(histogram.counts)
    return tuple(one + other for one, other in zip(sums, histogram.counts, strict=True))


def _subtract_buckets(after: Buckets, before: Buckets) -> Buckets:
    if not before:
        return after
    return tuple(one - other for one, other in zip(after, before, strict=True))
