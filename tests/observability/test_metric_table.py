"""The table of series: what a gateway exposes, closed sets of labels, a help text that says fleet or process."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tollway.ledger.channels import ChannelState
from tollway.ledger.records import CallState, Rail
from tollway.observability.metric_table import PROCESS_SERIES, SERIES, SeriesRow
from tollway.observability.telemetry import REQUEST_SECONDS, ChannelFigures, FleetFigures, Metrics
from tollway.payments.gas import ChannelOutcome, ChannelStep, OutcomeLabel, WithdrawalReason
from tollway.registry.openapi import METHODS
from tollway.storage.engine import outage
from tollway.storage.engine.leadership import Duty
from tollway.storage.operator.operator_reads import OPEN_STATES
from tollway.web.http.contract import CONTRACT_PATH, Site, load_contract

NETWORKS = 10
SERIES_MAX, CONTROL_PLANE_SERIES_MAX = 3_000, 2_700


def label_values(series: str, label: str) -> set[str]:
    (found,) = [one for one in SERIES[series].labels if one.name == label]
    return set(found.values)


def test_a_gateway_of_ten_networks_exposes_fewer_series_than_the_limit() -> None:
    """All series but the histogram of the control plane, which the next test counts."""
    counted = {name: row.series_max(NETWORKS) for name, row in SERIES.items() if name != REQUEST_SECONDS}
    assert sum(counted.values()) + len(PROCESS_SERIES) < SERIES_MAX, counted


def test_the_histogram_of_the_control_plane_has_the_sets_of_the_contract() -> None:
    """A label set for each operation and each status that the contract declares for it, if callers cause them all. The reference for operators has the sum."""
    document = load_contract(
        CONTRACT_PATH.read_bytes(), Site(public_url="https://gateway.example.com", version="0")
    )
    sets = sum(
        len(item[method]["responses"])
        for path, item in document["paths"].items()
        for method in item
        if method in METHODS and not path.startswith("/api/v2/gateway/")
    )
    series = sets * (len(SERIES[REQUEST_SECONDS].buckets) + 3)
    assert sets > 100
    assert series < CONTROL_PLANE_SERIES_MAX, sets
    page = (Path(__file__).parents[2] / "docs" / "operators-reference.md").read_text()
    assert f"another {CONTROL_PLANE_SERIES_MAX:,}" in page


@pytest.mark.parametrize("row", SERIES.values(), ids=lambda row: row.name)
def test_the_help_text_says_fleet_or_process(row: SeriesRow) -> None:
    assert ("of the fleet" in row.help_text) == (row.scope == "fleet")
    assert ("of this process" in row.help_text) == (row.scope == "process")


@pytest.mark.parametrize(
    ("series", "label", "values"),
    [
        ("tollway_call_duration_seconds", "rail", {rail.value for rail in Rail} | {"channel"}),
        ("tollway_calls_open", "state", set(OPEN_STATES)),
        ("tollway_leading", "duty", {duty.label for duty in Duty}),
        ("tollway_rails_withdrawn", "reason", {reason.value for reason in WithdrawalReason}),
        ("tollway_channels", "state", {state.value for state in ChannelState}),
        ("tollway_channel_steps_total", "step", {step.value for step in ChannelStep}),
        ("tollway_channel_steps_total", "outcome", {outcome.value for outcome in ChannelOutcome}),
        ("tollway_settlements_total", "outcome", {outcome.value for outcome in OutcomeLabel}),
        (
            "tollway_storage_away_seconds_total",
            "cause",
            {*outage._BY_STATE.values(), *dict(outage._BY_SQLITE).values()}
            | {
                "connection_lost",
                "failed",
                "standby_not_waited_for",
                "no_connection_free",
                "no_response_in_time",
            }
            | {"unreachable"},
        ),
    ],
)
def test_the_values_of_a_label_are_those_of_the_code(series: str, label: str, values: set[str]) -> None:
    assert label_values(series, label) == values


def test_the_open_states_are_states_of_a_call() -> None:
    assert set(OPEN_STATES) <= {state.value for state in CallState}


def full_metrics() -> Metrics:
    metrics = Metrics(CollectorRegistry())
    metrics.add_storage(lambda: True, dict)
    metrics.add_background(list)
    metrics.add_node_heads(dict)
    metrics.add_shared_rates()(True)
    metrics.add_channels({"eip155:1": 900}, dict)
    channels = ChannelFigures(
        counts={"open": 3},
        unclaimed={"USDC": 1.5},
        unclaimed_ratio=0.25,
        unclaimed_s=60,
        withdrawals=1,
        withdrawal_s=30,
    )
    figures = FleetFigures(open_calls={"unknown": (1, 2.0)}, channels={"eip155:1": channels})
    metrics.set_figures(figures)
    return metrics


def test_a_gateway_exposes_the_table_and_no_other_series() -> None:
    found = {
        family.name + ("_total" if family.type == "counter" else ""): family
        for family in full_metrics().registry.collect()
    }
    assert set(found) == {*SERIES, *PROCESS_SERIES}
    for name, row in SERIES.items():
        assert (found[name].type, found[name].documentation) == (row.kind, row.help_text)
        sample_labels = {
            label
            for sample in found[name].samples
            for label in sample.labels
            if label not in ("le", "quantile")
        }
        assert sample_labels <= set(row.label_names), name


def test_the_openmetrics_format_of_all_series_is_valid() -> None:
    found = text_string_to_metric_families(generate_openmetrics(full_metrics().registry).decode())
    assert {family.name + ("_total" if family.type == "counter" else "") for family in found} == {
        *SERIES,
        *PROCESS_SERIES,
    }


def test_what_is_about_the_fleet_is_absent_where_another_gateway_leads() -> None:
    metrics = full_metrics()
    metrics.set_figures(None)
    fleet = {name for name, row in SERIES.items() if row.scope == "fleet"}
    samples = {family.name: family.samples for family in metrics.registry.collect()}
    assert {name: samples[name] for name in fleet} == {name: [] for name in fleet}


def test_the_first_event_of_a_known_label_set_is_an_increase() -> None:
    metrics = full_metrics()
    metrics.add_network("eip155:1", nodes=2, block_time_s=12, gas_keys=["0xab"])
    zero = {
        (sample.name, tuple(sample.labels.values()))
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.value == 0
    }
    assert {
        ("tollway_refusals_total", ("overloaded",)),
        ("tollway_node_disagreements_total", ("eip155:1", "2")),
        ("tollway_node_requests_total", ("eip155:1", "1", "timeout")),
        ("tollway_reorgs_total", ("eip155:1",)),
        ("tollway_gas_spent_wei_total", ("eip155:1", "0xab")),
        ("tollway_log_events_total", ("error", "database_went_back")),
        ("tollway_channel_steps_total", ("eip155:1", "claim", "refused")),
        ("tollway_channel_gas_wei_total", ("eip155:1", "deposit")),
    } <= zero
