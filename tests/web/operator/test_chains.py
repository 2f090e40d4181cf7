"""What the operator's page of chains shows."""

from dataclasses import replace

from tollway.chain.nodes import NodeStatus
from tollway.ids import ChainId
from tollway.payments.gas import WithdrawalReason, WithdrawnRail
from tollway.web.operator.chains import NodeFigures, chain_json

BASE, OTHER = ChainId(8453), ChainId(10)
STATUS = NodeStatus(
    position=1,
    host="a.example",
    head_number=10,
    head_time_s=100,
    failure="",
    failed_s=None,
    is_deferred=False,
)
GOOD = NodeFigures(status=STATUS, requests={"ok": 3}, disagreements=0)
BAD = NodeFigures(
    status=replace(
        STATUS, position=2, head_number=8, head_time_s=88, failure="slow", failed_s=2.0, is_deferred=True
    ),
    requests={"ok": 1, "timeout": 2, "error": 3, "other_chain": 4},
    disagreements=5,
)


def test_a_network_has_its_nodes_and_its_own_withdrawn_rails() -> None:
    withdrawn = {
        WithdrawnRail(BASE, WithdrawalReason.LISTING_BUDGET, "api_1"): 1_000,
        WithdrawnRail(OTHER, WithdrawalReason.GAS_UNKNOWN): 1_000,
    }
    found = chain_json({"chainId": 8453, "name": "Base"}, [GOOD, BAD], withdrawn, now_ms=10_000)
    assert found["withdrawn"] == [
        {"reason": "listing_gas_budget", "subject": "api_1", "since": "1970-01-01T00:00:01.000Z"}
    ]
    good, bad = found["nodes"]
    assert (good["lagSeconds"], good["lastError"], good["lastErrorSince"]) == (0, None, None)
    assert (bad["lagSeconds"], bad["deadlineMisses"], bad["errors"], bad["requests"]) == (12, 2, 7, 10)
    assert (bad["state"], bad["lastError"], bad["lastErrorSince"]) == (
        "failing",
        "slow",
        "1970-01-01T00:00:08.000Z",
    )
