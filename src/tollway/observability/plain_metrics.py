"""Counters, gauges and histograms as plain integers, which one collector reads at scrape.

The client library locks and looks up labels for each observation (0.8 to 2.7 µs). Here an observation is one look-up in a dictionary and an addition, so a paid call
can observe each of its phases. Use them from one event loop. An addition from another thread may be lost; it never breaks a series.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from tollway.observability.metric_table import SERIES, SeriesRow

LabelValues = tuple[str, ...]
PlainBucket = tuple[str, float] | tuple[str, float, Exemplar]


class PlainCounter:
    """A counter. The label sets of `known` begin at 0, so that an increase of the first event is visible to a monitoring system."""

    def __init__(self, name: str, known: Sequence[LabelValues] = ()) -> None:
        self.row = SERIES[name]
        self.counts: dict[LabelValues, float] = dict.fromkeys(known, 0)

    def add(self, *labels: str) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + 1

    def add_amount(self, amount: float, *labels: str) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + amount

    def collect(self) -> Metric:
        family = CounterMetricFamily(self.row.name, self.row.help_text, labels=self.row.label_names)
        for labels, count in list(self.counts.items()):
            family.add_metric(labels, count)
        return family


class PlainHistogram:
    """The histogram of one label set. `counts`: observations of each bucket, not cumulated; the last one is +Inf. A bucket has the last sampled trace that was
    observed in it as its exemplar; without traces no object is made for exemplars."""

    __slots__ = ("_bounds", "_exemplars", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._exemplars: dict[int, Exemplar] | None = None

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def set_exemplar(self, value: float, *, trace_id: str, at_s: float) -> None:
        """Makes a trace the exemplar of the bucket of `value`, which is observed by itself. `at_s`: unix time."""
        if self._exemplars is None:
            self._exemplars = {}
        self._exemplars[bisect_left(self._bounds, value)] = Exemplar({"trace_id": trace_id}, value, at_s)

    @property
    def buckets(self) -> list[PlainBucket]:
        """The cumulated buckets, as the exposition format has them."""
        exemplars = self._exemplars or {}
        total = 0
        buckets: list[PlainBucket] = []
        for number, (bound, count) in enumerate(zip((*self._bounds, float("inf")), self.counts, strict=True)):
            total += count
            exemplar = exemplars.get(number)
            if exemplar is None:
                buckets.append((_format_bound(bound), float(total)))
            else:
                buckets.append((_format_bound(bound), float(total), exemplar))
        return buckets


class PlainHistograms:
    """A histogram with labels. `find` returns the histogram of a label set; keep it where the labels are constant."""

    def __init__(self, name: str) -> None:
        self.row = SERIES[name]
        self._by_labels: dict[LabelValues, PlainHistogram] = {}

    def find(self, *labels: str) -> PlainHistogram:
        found = self._by_labels.get(labels)
        if found is None:
            found = self._by_labels[labels] = PlainHistogram(self.row.buckets)
        return found

    def items(self) -> Iterator[tuple[LabelValues, PlainHistogram]]:
        yield from list(self._by_labels.items())

    def collect(self) -> Metric:
        family = HistogramMetricFamily(self.row.name, self.row.help_text, labels=self.row.label_names)
        for labels, one in list(self._by_labels.items()):
            family.add_metric(labels, one.buckets, sum_value=one.sum)
        return family


class PlainGauges:
    """A gauge with labels. `read` replaces `set` where the values are computed at scrape; a label set that it leaves out is absent."""

    def __init__(self, name: str, read: Callable[[], Mapping[LabelValues, float]] | None = None) -> None:
        self.row = SERIES[name]
        self._read = read
        self._values: dict[LabelValues, float] = {}

    def set(self, value: float, *labels: str) -> None:
        self._values[labels] = value

    def find(self, *labels: str) -> float | None:
        return self._values.get(labels)

    def clear(self) -> None:
        self._values.clear()

    def collect(self) -> Metric:
        kind = CounterMetricFamily if self.row.kind == "counter" else GaugeMetricFamily
        family = kind(self.row.name, self.row.help_text, labels=self.row.label_names)
        values = self._values if self._read is None else self._read()
        for labels, value in list(values.items()):
            family.add_metric(labels, value)
        return family


PlainMetric = PlainCounter | PlainHistograms | PlainGauges


class PlainCollector(Collector):
    """The collector of all plain metrics of a gateway, in the order in which they were added."""

    def __init__(self) -> None:
        self._metrics: list[PlainMetric] = []

    def counter(self, name: str, known: Sequence[LabelValues] = ()) -> PlainCounter:
        self._metrics.append(made := PlainCounter(name, known))
        return made

    def histograms(self, name: str) -> PlainHistograms:
        self._metrics.append(made := PlainHistograms(name))
        return made

    def gauges(self, name: str, read: Callable[[], Mapping[LabelValues, float]] | None = None) -> PlainGauges:
        self._metrics.append(made := PlainGauges(name, read))
        return made

    def collect(self) -> Iterator[Metric]:
        for metric in self._metrics:
            yield metric.collect()


def _format_bound(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # the client has no annotation there


def describe(row: SeriesRow) -> str:
    """`name{label, label}`, as the pages write a series."""
    return row.name + ("{" + ", ".join(row.label_names) + "}" if row.labels else "")
