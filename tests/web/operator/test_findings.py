"""What the operator's first page names, as a table: a row for each finding, at its threshold and beyond it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tollway.chain.nodes import NodeStatus
from tollway.ids import Address, ChainId
from tollway.observability import alert_limits as limits
from tollway.observability.fleet import DutyLeader, EncryptedValues, GatewayBuild, GatewayRecord
from tollway.observability.metric_table import DURATION_BUCKETS_S
from tollway.observability.recent_metrics import MetricsSample
from tollway.observability.telemetry import ChannelFigures, FleetFigures
from tollway.payments.gas import GasKeyStatus, GasSpending
from tollway.web.operator.chains import NetworkChannels, NetworkNodes, NodeFigures
from tollway.web.operator.findings import OverviewFacts, count, find_findings, format_age

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
NOW_MS = 1_800_000_000_000
BASE, NETWORK = ChainId(8453), "eip155:8453"
CHAIN = {"name": "Base", "reachable": True, "withdrawn": []}
AWAY = {**CHAIN, "reachable": False, "unreachableSince": "2026-01-01T00:00:00Z"}
GONE = {**CHAIN, "withdrawn": [{"rails": ["x402"], "reason": "gas_low", "since": "2026-01-01T00:00:00Z"}]}
NO_TIMES = (0,) * (len(DURATION_BUCKETS_S) + 1)
STILL = MetricsSample(
    seconds=300,
    calls={},
    refusals={},
    lease_lapses={(): 0},
    node_requests={},
    node_disagreements={},
    channel_steps={},
    phases={},
    upstream=NO_TIMES,
    commits=NO_TIMES,
    loop_delay=NO_TIMES,
)
BUILD = GatewayBuild(name="gw-1:8402", version="1.0", schema="0024")
GATEWAY = GatewayRecord(owner_id="a", build=BUILD, started_ms=0, seen_ms=NOW_MS, is_alive=True)
LEADER = DutyLeader(duty="watcher", is_led=True, owner_id="a")
SECRETS = EncryptedValues(kind="secrets", current=3, older=0, lost=0, is_whole=True)
KEY = GasKeyStatus(
    chain_id=BASE, address=Address(b"k" * 20), balance_wei=300, floor_wei=100, is_stuck=False, unmined=0
)
LOW = replace(KEY, balance_wei=299)
SPENDING = GasSpending(chain_id=BASE, spent_wei=80, budget_wei=100, listing_budget_wei=10, by_listing={})
DELAY_S = 86_400
CHANNELS = NetworkChannels(
    network=NETWORK,
    figures=ChannelFigures(
        counts={},
        unclaimed={},
        unclaimed_ratio=limits.CHANNEL_UNCLAIMED_MAX,
        unclaimed_s=0,
        withdrawals=1,
        withdrawal_s=limits.WITHDRAWAL_DELAY_MAX * DELAY_S,
    ),
    withdraw_delay_s=DELAY_S,
    look_age_s=limits.CHANNEL_LOOK_DELAY_MAX * DELAY_S,
    gas_reserve_wei=299,
)
QUIET = OverviewFacts(
    checks={"storage": True, "background": True, "load": True},
    networks=[CHAIN],
    nodes=(),
    channels=[CHANNELS],
    gas_keys=[KEY],
    gas_spending=[SPENDING],
    fleet=FleetFigures(
        open_calls={"settling": (1, limits.SETTLING_AGE_MAX_S), "unknown": (3, limits.HELD_AGE_MAX_S)},
        audit_s=NOW_MS / 1000 - limits.AUDIT_AGE_MAX_S,
        audit_differences=0,
        backup_s=NOW_MS / 1000 - limits.BACKUP_AGE_MAX_S,
        sales_hours_behind=limits.SALES_HOURS_BEHIND_MAX - 1,
    ),
    encrypted_values=[SECRETS],
    gateways=[GATEWAY],
    leaders=[LEADER],
    held_payments=0,
    suspended=0,
    blocked=0,
    in_flight=0,
    find_increase=lambda _: STILL,
    risks=(),
    now_ms=NOW_MS,
)


def gained(**changes: Any) -> dict[str, Any]:
    return {"find_increase": lambda _: replace(STILL, **changes)}


def fleet(**changes: Any) -> dict[str, Any]:
    return {"fleet": replace(QUIET.fleet, **changes)}


def channels(**changes: Any) -> dict[str, Any]:
    return {"channels": [replace(CHANNELS, **changes)]}


def figures(**changes: Any) -> dict[str, Any]:
    return channels(figures=replace(CHANNELS.figures, **changes))


def steps(*ended: tuple[str, str]) -> dict[str, Any]:
    return gained(channel_steps={(NETWORK, *one): 1 for one in ended})


def node(number: int, *, head_age_s: int = 0) -> NodeFigures:
    status = NodeStatus(
        position=number,
        host="a.example",
        head_number=1,
        head_time_s=NOW_MS // 1000 - head_age_s,
        failure="",
        failed_s=None,
        is_deferred=False,
    )
    return NodeFigures(status=status, requests={}, disagreements=0)


def nodes(*found: NodeFigures) -> dict[str, Any]:
    return {"nodes": [NetworkNodes(network=NETWORK, block_s=2, nodes=found)]}


def requests(**by_outcome: float) -> dict[tuple[str, ...], float]:
    return {(NETWORK, "1", outcome): number for outcome, number in by_outcome.items()}


def times(slow: int, *, bound: float) -> tuple[int, ...]:
    """A hundred observations, of which `slow` are in the bucket above `bound`."""
    buckets = [100 - slow, *NO_TIMES[1:]]
    buckets[DURATION_BUCKETS_S.index(bound) + 1] = slow
    return tuple(buckets)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"checks": {"storage": False}}, [("stopped", "StorageAway")]),
        ({"checks": {"background": False}}, [("stopped", "TollwayDown")]),
        ({"checks": {"load": False}}, [("stopped", "OverloadRefusals")]),
        ({"networks": [AWAY]}, [("stopped", "ChainAway")]),
        ({"networks": [GONE]}, [("degraded", "RailWithdrawn")]),
        ({"leaders": [LEADER, DutyLeader(duty="sweeper", is_led=False)]}, [("stopped", "NoLeader")]),
        ({"held_payments": 1}, [("money", "DatabaseWentBack")]),
        (
            fleet(open_calls={"settling": (1, limits.SETTLING_AGE_MAX_S + 1)}),
            [("money", "SettlementsUndecided")],
        ),
        (fleet(open_calls={"unknown": (1, limits.HELD_AGE_MAX_S + 1)}), [("money", "HeldMoneyOld")]),
        (fleet(audit_differences=1), [("money", "LedgerDiffers")]),
        (fleet(audit_s=QUIET.fleet.audit_s - 1), [("upkeep", "AuditOld")]),  # type: ignore[operator]  # it is set above
        (fleet(backup_s=QUIET.fleet.backup_s - 1), [("upkeep", "BackupOld")]),  # type: ignore[operator]  # it is set above
        (fleet(audit_s=None, backup_s=None), []),
        (fleet(secrets_stale=1), [("upkeep", "SecretsStale")]),
        (fleet(sales_hours_behind=limits.SALES_HOURS_BEHIND_MAX), [("upkeep", "")]),
        ({"encrypted_values": [replace(SECRETS, lost=1)]}, [("money", "SecretsStale")]),
        ({"encrypted_values": [replace(SECRETS, kind="responses", lost=1)]}, []),
        ({"gas_keys": [LOW]}, [("money", "GasKeysLow")]),
        ({"gas_keys": [KEY, LOW]}, [("degraded", "GasKeyLow")]),
        ({"gas_keys": [KEY, replace(KEY, balance_wei=None)]}, []),
        ({"gas_keys": [replace(KEY, balance_wei=None)]}, []),
        (
            figures(withdrawal_s=limits.WITHDRAWAL_DELAY_MAX * DELAY_S + 1),
            [("money", "ChannelWithdrawal")],
        ),
        (
            channels(look_age_s=limits.CHANNEL_LOOK_DELAY_MAX * DELAY_S + 1),
            [("money", "ChannelsUnwatched")],
        ),
        (channels(look_age_s=None), []),
        (channels(gas_reserve_wei=301), [("money", "ClaimGasLow")]),
        ({**channels(gas_reserve_wei=301), "gas_keys": [KEY, replace(KEY, balance_wei=301)]}, []),
        ({**channels(gas_reserve_wei=301), "gas_keys": [replace(KEY, balance_wei=None)]}, []),
        ({**channels(gas_reserve_wei=301, network="eip155:1"), "gas_keys": [KEY]}, []),
        (steps(("claim", "refused")), [("degraded", "ChannelClaimsFail")]),
        (steps(("claim", "lost"), ("settle", "refused")), [("degraded", "ChannelClaimsFail")] * 2),
        (steps(("claim", "done"), ("deposit", "reverted"), ("refund", "refused")), []),
        (
            figures(unclaimed_ratio=limits.CHANNEL_UNCLAIMED_MAX + 0.01),
            [("degraded", "ChannelUnclaimedHigh")],
        ),
        ({"gas_spending": [replace(SPENDING, spent_wei=81)]}, [("degraded", "GasBudgetNear")]),
        ({**nodes(node(1)), **gained(node_requests=requests(ok=8, timeout=2))}, []),
        (
            {**nodes(node(1)), **gained(node_requests=requests(ok=7, timeout=1, error=1))},
            [("degraded", "NodeBad")],
        ),
        # No node answers: the network is away, which is one finding and not one for each node.
        ({**nodes(node(1)), **gained(node_requests=requests(timeout=5))}, []),
        ({**nodes(node(1, head_age_s=80)), **gained(node_requests=requests(ok=1))}, []),
        (
            {**nodes(node(1, head_age_s=81)), **gained(node_requests=requests(ok=1))},
            [("degraded", "NodeBehind")],
        ),
        (nodes(node(1, head_age_s=81)), []),  # it does not answer
        (
            {**nodes(node(1), node(2)), **gained(node_disagreements={(NETWORK, "2"): 1})},
            [("degraded", "NodeDisagrees")],
        ),
        (gained(calls={("charged",): 99, ("internal_error",): 1}), []),
        (gained(calls={("charged",): 98, ("internal_error",): 2}), [("stopped", "FailuresHigh")]),
        (gained(refusals={("overloaded",): 300}), []),
        (gained(refusals={("overloaded",): 301}), [("degraded", "OverloadRefusals")]),
        (gained(phases={"claim": times(5, bound=0.25)}), []),
        (gained(phases={"claim": times(6, bound=0.25)}), [("degraded", "SlowCalls")]),
        (gained(phases={"upstream": times(6, bound=0.25)}), []),
        (gained(commits=times(2, bound=0.25)), [("degraded", "CommitsSlow")]),
        (gained(loop_delay=times(2, bound=0.5)), [("degraded", "LoopBlocked")]),
        (gained(lease_lapses={(): 1}), [("degraded", "LeaseLapsed")]),
        ({"gateways": [GATEWAY, replace(GATEWAY, build=None)]}, [("upkeep", "VersionsDiffer")]),
        (
            {"gateways": [GATEWAY, replace(GATEWAY, build=replace(BUILD, version="2.0"))]},
            [("upkeep", "VersionsDiffer")],
        ),
        ({"gateways": [GATEWAY, replace(GATEWAY, build=None, is_alive=False)]}, []),
        ({"gateways": [replace(GATEWAY, build=None)]}, []),
        ({"risks": ["public_url is not https"]}, [("upkeep", "")]),
        (
            {
                "networks": [GONE, AWAY],
                "held_payments": 1,
                "checks": {"storage": False},
                "risks": ["one", "two"],
            },
            [
                ("stopped", "StorageAway"),
                ("stopped", "ChainAway"),
                ("money", "DatabaseWentBack"),
                ("degraded", "RailWithdrawn"),
                ("upkeep", ""),
                ("upkeep", ""),
            ],
        ),
    ],
)
def test_names_what_needs_an_operator_the_worst_first(
    changes: dict[str, Any], found: list[tuple[str, str]]
) -> None:
    findings = find_findings(replace(QUIET, **changes))
    assert [(finding.level, finding.alert) for finding in findings] == found
    assert all(finding.text and (finding.command or finding.page) for finding in findings)
    assert all((RUNBOOKS / f"{finding.alert}.md").exists() for finding in findings if finding.alert)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"held_payments": 1}, "Payments held: 1, after a restore or because nodes disagree"),
        (fleet(audit_differences=1), "Differences between balances and calls in the last audit: 1"),
        (
            fleet(open_calls={"settling": (5, limits.SETTLING_AGE_MAX_S + 60)}),
            f"The oldest settlement began {format_age(limits.SETTLING_AGE_MAX_S + 60)} ago. Open: 5",
        ),
        (
            fleet(open_calls={"unknown": (1, limits.HELD_AGE_MAX_S + 60)}),
            f"The oldest call of unknown outcome began {format_age(limits.HELD_AGE_MAX_S + 60)} ago. Open: 1",
        ),
    ],
)
def test_a_count_reads_the_same_for_one_and_for_many(changes: dict[str, Any], text: str) -> None:
    (finding,) = find_findings(replace(QUIET, **changes))
    assert finding.text == text


def test_each_window_is_that_of_its_alert() -> None:
    asked: list[float] = []

    def find_increase(window_s: float) -> MetricsSample:
        asked.append(window_s)
        return STILL

    find_findings(replace(QUIET, find_increase=find_increase))
    assert set(asked) == {
        limits.NODE_WINDOW_S,
        limits.EVENT_WINDOW_S,
        limits.OWN_FAILURES_WINDOW_S,
        limits.CALL_PHASE_WINDOW_S,
        limits.COMMIT_WINDOW_S,
        limits.LOOP_DELAY_WINDOW_S,
        limits.OVERLOAD_WINDOW_S,
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")]
)
def test_ages_are_short(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


def test_a_count_at_its_limit_is_a_lower_bound() -> None:
    assert (count(10_000, 10_000), count(9_999, 10_000)) == ("at least 10000", "9999")
