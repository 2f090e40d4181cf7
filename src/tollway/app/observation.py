"""Connects the ports of settlement and of chain nodes to the metrics of a gateway. It decides nothing."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tollway.chain.nodes import NodeStatus, RpcCall
from tollway.chain.rpc import RpcReader
from tollway.ids import ChainId, format_network
from tollway.observability.call_trace import find_current_trace
from tollway.observability.metric_table import NODE_OUTCOMES, NodeOutcome
from tollway.observability.plain_metrics import LabelValues
from tollway.observability.telemetry import Metrics
from tollway.payments.gas import ChannelOutcome, ChannelStep, SettlementMetrics
from tollway.web.operator.chains import NetworkNodes, NodeFigures


def make_settlement_metrics(metrics: Metrics) -> SettlementMetrics:
    return SettlementMetrics(
        end=lambda chain_id, end: metrics.settlements.labels(format_network(chain_id), end.value).inc(),
        mined=lambda chain_id, seconds: metrics.settlement_seconds.labels(format_network(chain_id)).observe(
            max(0.0, seconds)
        ),
        balance=lambda chain_id, key, wei: metrics.gas_key_balance.labels(
            format_network(chain_id), str(key)
        ).set(wei),
        unmined=lambda chain_id, key, length: metrics.gas_lane_length.labels(
            format_network(chain_id), str(key)
        ).set(length),
        orphaned=metrics.calls_adrift.set,
        floor=lambda chain_id, wei: metrics.gas_floor.set(wei, format_network(chain_id)),
        budget_used=lambda chain_id, ratio: metrics.gas_budget_used.set(ratio, format_network(chain_id)),
        spent=lambda chain_id, key, wei: metrics.gas_spent.add_amount(
            wei, format_network(chain_id), str(key)
        ),
        claim_reserve=lambda chain_id, wei: metrics.channel_gas_reserve.set(wei, format_network(chain_id)),
        channel=partial(_count_step, metrics),
        withdrawn=lambda chain_id, reason, count: metrics.rails_withdrawn.labels(
            format_network(chain_id), reason.value
        ).set(count),
    )


def _count_step(
    metrics: Metrics, chain_id: ChainId, step: ChannelStep, outcome: ChannelOutcome, wei: int
) -> None:
    network = format_network(chain_id)
    metrics.channel_steps.add(network, step.value, outcome.value)
    if wei:
        metrics.channel_gas.add_amount(wei, network, step.value)


def read_network_nodes(chains: RpcReader, metrics: Metrics, chain_id: ChainId) -> NetworkNodes:
    """Reads memory only."""
    network = format_network(chain_id)

    def count(node: NodeStatus) -> NodeFigures:
        number = str(node.position)
        requests = metrics.node_requests.counts
        return NodeFigures(
            status=node,
            requests={outcome: int(requests.get((network, number, outcome), 0)) for outcome in NODE_OUTCOMES},
            disagreements=int(metrics.node_disagreements.counts.get((network, number), 0)),
        )

    return NetworkNodes(
        network=network,
        block_s=metrics.block_seconds.find(network) or 0.0,
        nodes=tuple(count(node) for node in chains.list_nodes(chain_id)),
    )


class NodeMetrics:
    """The metrics of the requests to chain nodes (`NodeObserver`). `now_s`: the process clock, with which the age of a block is computed at scrape."""

    def __init__(self, metrics: Metrics, *, now_s: Callable[[], float] = time.time) -> None:
        self._metrics = metrics
        self._now_s = now_s
        self._block_times: dict[tuple[str, str], int] = {}
        metrics.add_node_heads(self._read_head_ages)

    def count_request(
        self,
        chain_id: ChainId,
        position: int,
        outcome: NodeOutcome,
        seconds: float,
        calls: Sequence[RpcCall],
    ) -> None:
        network, node = format_network(chain_id), str(position)
        self._metrics.node_requests.add(network, node, outcome)
        self._metrics.node_request_seconds.find(network, node).observe(seconds)
        trace = find_current_trace()
        if trace is not None:
            trace.add_request(
                f"chain {network}",
                start_ns=time.time_ns() - int(seconds * 1e9),
                attributes={
                    "tollway.network": network,
                    "tollway.node": position,
                    "tollway.methods": ",".join(dict.fromkeys(method for method, _ in calls)),
                    "tollway.outcome": outcome,
                },
                is_error=outcome != "ok",
            )

    def set_head_time(self, chain_id: ChainId, position: int, block_time_s: int) -> None:
        self._block_times[format_network(chain_id), str(position)] = block_time_s

    def _read_head_ages(self) -> Mapping[LabelValues, float]:
        now_s = self._now_s()
        return {node: max(0.0, now_s - block_s) for node, block_s in self._block_times.items()}

    def count_disagreement(self, chain_id: ChainId, position: int) -> None:
        self._metrics.node_disagreements.add(format_network(chain_id), str(position))
