"""Plain metrics: the exposition is that of the client library."""

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tollway.observability.metric_table import SERIES
from tollway.observability.plain_metrics import PlainCollector, describe

VALUES = (0.0, 0.005, 0.0050001, 0.03, 1.0, 10.0, 11.0, 1e9)


def test_a_histogram_is_exposed_as_by_the_client() -> None:
    row = SERIES["tollway_call_duration_seconds"]
    plain, theirs = CollectorRegistry(), CollectorRegistry()
    collector = PlainCollector()
    plain.register(collector)
    mine = collector.histograms(row.name).find("credit", "read_head")
    other = Histogram(row.name, row.help_text, row.label_names, buckets=row.buckets, registry=theirs)
    for value in VALUES:
        mine.observe(value)
        other.labels("credit", "read_head").observe(value)
    expected = generate_latest(theirs).decode().split("# HELP tollway_call_duration_seconds_created")[0]
    assert generate_latest(plain).decode() == expected


def test_a_bucket_has_its_last_traced_value_as_exemplar_in_openmetrics_only() -> None:
    registry, collector = CollectorRegistry(), PlainCollector()
    registry.register(collector)
    histogram = collector.histograms("tollway_call_duration_seconds").find("credit", "read_head")
    for value, trace_id in ((0.03, None), (0.03, "a1"), (0.04, "b2"), (0.05, None), (99.0, "c3")):
        histogram.observe(value)
        if trace_id is not None:
            histogram.set_exemplar(value, trace_id=trace_id, at_s=1_700_000_000.5)
    (family,) = text_string_to_metric_families(generate_openmetrics(registry).decode())
    found = {sample.labels["le"]: sample.exemplar for sample in family.samples if sample.exemplar}
    assert {bound: (one.labels, one.value, float(one.timestamp)) for bound, one in found.items()} == {
        "0.05": ({"trace_id": "b2"}, 0.04, 1_700_000_000.5),
        "+Inf": ({"trace_id": "c3"}, 99.0, 1_700_000_000.5),
    }
    assert "trace_id" not in generate_latest(registry).decode()


def test_a_counter_begins_at_zero_for_its_known_labels() -> None:
    registry, collector = CollectorRegistry(), PlainCollector()
    registry.register(collector)
    counter = collector.counter("tollway_refusals_total", [("overloaded",)])
    counter.add("payment_required")
    counter.add("payment_required")
    text = generate_latest(registry).decode()
    assert 'tollway_refusals_total{code="overloaded"} 0.0' in text
    assert 'tollway_refusals_total{code="payment_required"} 2.0' in text


def test_a_gauge_that_is_read_leaves_out_what_has_no_value() -> None:
    registry, collector = CollectorRegistry(), PlainCollector()
    registry.register(collector)
    values: dict[tuple[str, ...], float] = {("unknown",): 3.0}
    collector.gauges("tollway_calls_open", lambda: values)
    assert 'tollway_calls_open{state="unknown"} 3.0' in generate_latest(registry).decode()
    values.clear()
    assert "tollway_calls_open{" not in generate_latest(registry).decode()


def test_a_series_is_described_with_its_labels() -> None:
    assert describe(SERIES["tollway_calls_open"]) == "tollway_calls_open{state}"
    assert describe(SERIES["tollway_storage_up"]) == "tollway_storage_up"
