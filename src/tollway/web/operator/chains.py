"""What the operator's page of chains shows of each network: its nodes by number, and every withdrawn rail. Pure.

`GET /api/v2/status` has what callers may know; hosts of nodes and gas keys are for operators alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tollway.chain.nodes import NodeStatus
from tollway.ids import ChainId
from tollway.ledger.channels import ChannelMoney
from tollway.observability.telemetry import ChannelFigures
from tollway.payments.gas import WithdrawnRail
from tollway.web.api.context import FindAsset
from tollway.web.http.query import format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """A node and its counters since the start of the process. `requests`: by outcome."""

    status: NodeStatus
    requests: Mapping[str, int]
    disagreements: int

    @property
    def number(self) -> int:
        """Its number in the settings, from 1."""
        return self.status.position

    @property
    def host(self) -> str:
        return self.status.host


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNodes:
    """The nodes of a network. `block_s`: the time between two blocks, by the settings."""

    network: str
    block_s: float
    nodes: Sequence[NodeFigures]


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChannels:
    """The channels of a network that offers them. `look_age_s`: since a gateway looked at them; None before the contracts were seen. `gas_reserve_wei`: what a gas key keeps for
    their claims."""

    network: str
    figures: ChannelFigures
    withdraw_delay_s: int
    look_age_s: float | None
    gas_reserve_wei: int


def node_json(node: NodeFigures, nodes: Sequence[NodeFigures], *, now_ms: int) -> dict[str, Any]:
    """A node for an operator. `nodes`: all nodes of its network. `lagSeconds`: how much older its newest block is than the newest of all of them."""
    status = node.status
    newest_s = max((one.status.head_time_s or 0 for one in nodes), default=0)
    lag_s = None if status.head_time_s is None else newest_s - status.head_time_s
    since_ms = None if status.failed_s is None else now_ms - int(status.failed_s * 1000)
    return {
        "number": status.position,
        "host": status.host,
        "state": "failing" if status.is_deferred else "used",
        "head": status.head_number,
        "headTime": None if status.head_time_s is None else format_time(status.head_time_s * 1000),
        "lagSeconds": lag_s,
        "disagreements": node.disagreements,
        "deadlineMisses": node.requests.get("timeout", 0),
        "errors": node.requests.get("error", 0) + node.requests.get("other_chain", 0),
        "requests": sum(node.requests.values()),
        "lastError": status.failure or None,
        "lastErrorSince": None if since_ms is None else format_time(since_ms),
    }


def withdrawn_json(rail: WithdrawnRail, since_ms: int) -> dict[str, Any]:
    """A withdrawn rail. `subject`: the token, listing, gas key or code hash that it concerns; None for the whole network."""
    return {
        "reason": rail.reason.value,
        "subject": rail.subject or None,
        "since": format_time(since_ms),
    }


def chain_json(
    status: Mapping[str, Any],
    nodes: Sequence[NodeFigures],
    withdrawn: Mapping[WithdrawnRail, int],
    *,
    now_ms: int,
) -> dict[str, Any]:
    """A network. `status`: as `GET /status` describes it. `withdrawn`: of all networks."""
    return {
        **status,
        "nodes": [node_json(node, nodes, now_ms=now_ms) for node in nodes],
        "withdrawn": [
            withdrawn_json(rail, since_ms)
            for rail, since_ms in withdrawn.items()
            if rail.chain_id == ChainId(status["chainId"])
        ],
    }


def channels_json(
    network: str, channels: Sequence[ChannelMoney], find_asset: FindAsset
) -> list[dict[str, Any]]:
    """The channels of a network, by token. Amounts are decimals of the token: what is charged and not claimed, the part of it that withdrawals in sight may take, and what
    is claimed and not paid out. A token that is no longer configured is left out: its decimals are unknown."""
    found = []
    for one in channels:
        asset = find_asset(one.chain_id, "0x" + one.token.hex())
        if asset is not None and asset.network == network:
            found.append(
                {
                    "currency": asset.symbol,
                    "channels": one.channels,
                    "unclaimed": asset.format_units(one.unclaimed_units),
                    "claimed": asset.format_units(one.claimed_units),
                    "withdrawing": one.withdrawing,
                    "withdrawingUnclaimed": asset.format_units(one.withdrawing_units),
                }
            )
    return found
