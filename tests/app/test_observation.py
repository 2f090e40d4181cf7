"""What settlement and chain nodes report, as series."""

from prometheus_client import CollectorRegistry, generate_latest

from tollway.app.observation import NodeMetrics, make_settlement_metrics
from tollway.ids import Address, ChainId
from tollway.observability.telemetry import Metrics
from tollway.payments.gas import OutcomeLabel, WithdrawalReason

CHAIN, KEY = ChainId(84532), Address(b"\xab" * 20)


def test_requests_to_nodes_are_series_by_number() -> None:
    metrics = Metrics(CollectorRegistry())
    now_s = [1_000.0]
    nodes = NodeMetrics(metrics, now_s=lambda: now_s[0])
    nodes.count_request(CHAIN, 2, "timeout", 10.0, [("eth_call", [])])
    nodes.set_head_time(CHAIN, 2, 988)
    nodes.set_head_time(CHAIN, 1, 1_003)  # the clock of the node is ahead
    nodes.count_disagreement(CHAIN, 1)
    text = generate_latest(metrics.registry).decode()
    labels = 'network="eip155:84532",node="2"'
    for line in (
        f'tollway_node_requests_total{{{labels},outcome="timeout"}} 1.0',
        f"tollway_node_request_duration_seconds_sum{{{labels}}} 10.0",
        f"tollway_node_head_age_seconds{{{labels}}} 12.0",
        'tollway_node_head_age_seconds{network="eip155:84532",node="1"} 0.0',
        'tollway_node_disagreements_total{network="eip155:84532",node="1"} 1.0',
    ):
        assert line in text
    now_s[0] += 600  # the node does not answer any more
    assert f"tollway_node_head_age_seconds{{{labels}}} 612.0" in generate_latest(metrics.registry).decode()


def test_gas_is_series_by_network_and_key() -> None:
    metrics = Metrics(CollectorRegistry())
    settling = make_settlement_metrics(metrics)
    settling.end(CHAIN, OutcomeLabel.UNDECIDED)
    settling.mined(CHAIN, 0.2)
    settling.balance(CHAIN, KEY, 500)
    settling.unmined(CHAIN, KEY, 2)
    settling.withdrawn(CHAIN, WithdrawalReason.NETWORK_BUDGET, 1)
    settling.floor(CHAIN, 400)
    settling.budget_used(CHAIN, 0.5)
    settling.spent(CHAIN, KEY, 30)
    settling.spent(CHAIN, KEY, 12)
    text = generate_latest(metrics.registry).decode()
    network, key = 'network="eip155:84532"', f'key="{KEY}"'
    for line in (
        f'tollway_settlements_total{{{network},outcome="undecided"}} 1.0',
        f"tollway_gas_key_balance_wei{{{key},{network}}} 500.0",
        f"tollway_gas_lane_length{{{key},{network}}} 2.0",
        f'tollway_rails_withdrawn{{{network},reason="gas_budget"}} 1.0',
        f"tollway_gas_floor_wei{{{network}}} 400.0",
        f"tollway_gas_budget_used_ratio{{{network}}} 0.5",
        f"tollway_gas_spent_wei_total{{{key},{network}}} 42.0",
    ):
        assert line in text, line
