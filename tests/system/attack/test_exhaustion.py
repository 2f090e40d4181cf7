"""Attackers that want to exhaust a gateway, against a production process in its own network, beside ordinary callers
that pay: the memory that the gateway takes, the rows that it writes, the requests to its node, and that it serves all
the time.

No time is asserted: the waits of ordinary callers, quiet and attacked, go into a table (`ATTACK=long`, in `.stamps`).
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.system.attack import namespace
from tollway.limits import DEFAULT_LIMITS

IS_LONG = os.environ.get("ATTACK") == "long"
DEADLINE_S = 1_100.0 if IS_LONG else 110.0
TABLE = Path(__file__).parents[3] / ".stamps" / "exhaustion.md"
GROWTH_KIB_MAX = 64 * 1024
"""Of each kind of attack alone, but for bodies that are held."""
HELD_KIB_MAX = 2 * GROWTH_KIB_MAX + DEFAULT_LIMITS.held_bodies_bytes_max // 1024
"""Of a thousand bodies that arrive at once and end one byte early: two buffers of 64 KiB a connection (the server's, and the
message on its way to the application) until the refusal is written, and a full budget for held bodies."""
TOGETHER_KIB_MAX = 3 * GROWTH_KIB_MAX + DEFAULT_LIMITS.held_bodies_bytes_max // 1024
"""Of all kinds at once: as much for a thousand readers who stand still, and for thousands of bodies on their way, as for all
others, and the room for bodies is full."""

pytestmark = pytest.mark.timeout(DEADLINE_S + 10)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one attack has done to a gateway."""
    reason = namespace.why_not()
    if reason is not None:
        pytest.skip(f"{reason}; each limit has its own test")
    folder = tmp_path_factory.mktemp("exhaustion")
    told: dict[str, Any] = namespace.run_inside("exhaustion_inside", folder=folder, deadline_s=DEADLINE_S)
    (folder / "report.json").write_text(json.dumps(told, indent=1))
    if IS_LONG:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(format_table(told))
    return told


def format_table(report: dict[str, Any]) -> str:
    lines = [
        "| attack | how many | memory before, MiB | at most | after | calls beside it | p50 ms | p99 ms | p99 / the quiet p99 |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    quiet = report["latency"]["quiet"]
    idle = report["idleKiB"] / 1024
    lines.append(f"| none | | {idle:.1f} | | | {quiet['calls']} | {quiet['p50']} | {quiet['p99']} | 1.0 |")
    for name, move in report["moves"].items():
        beside = report["latency"][name]
        weights = " | ".join(f"{move[key] / 1024:.1f}" for key in ("beforeKiB", "peakKiB", "afterKiB"))
        times = " | ".join(str(beside.get(key, "")) for key in ("calls", "p50", "p99"))
        over = f"{beside['p99'] / quiet['p99']:.1f}" if "p99" in beside else ""
        lines.append(f"| {name.replace('_', ' ')} | {move['count']:,} | {weights} | {times} | {over} |")
    return "\n".join(lines) + "\n"


def of(report: dict[str, Any], move: str) -> Counter[str]:
    """The outcomes of one kind of move, weighed alone or, where it was not, beside all else."""
    if move in report["moves"]:
        return Counter(report["moves"][move]["outcomes"])
    told = report["moves"]["all at once"]["outcomes"].items()
    return Counter({key.partition(": ")[2]: n for key, n in told if key.startswith(move + ": ")})


def kinds(outcomes: Counter[str]) -> set[str]:
    """The outcomes of any form, by kind."""
    return {told.rpartition(": ")[2] for told in outcomes}


def test_memory_grows_by_no_more_than_its_bound(report):
    bounds = {"all at once": TOGETHER_KIB_MAX, "held_bodies": HELD_KIB_MAX}
    for name, move in report["moves"].items():
        assert move["peakKiB"] - move["beforeKiB"] <= bounds.get(name, GROWTH_KIB_MAX), name


def test_ordinary_callers_are_served_all_the_while(report):
    assert report["isRunning"]
    assert report["latency"]["quiet"]["calls"] > 0
    for phase, told in report["latency"].items():
        assert set(told["statuses"]) <= {"200"}, phase
    assert report["latency"]["all at once"]["calls"] > 0


def test_slow_heads_are_ended(report):
    outcomes = of(report, "slow_heads")
    assert sum(outcomes.values()) >= 60
    assert kinds(outcomes) <= {"ended with nothing", "ended with 200"}


def test_slow_bodies_are_ended_with_a_reason(report):
    outcomes = of(report, "slow_bodies")
    assert sum(outcomes.values()) >= 60
    # 401: the control plane reads no long body without a proof. 503: more than 256 at one origin.
    assert kinds(outcomes) <= {"ended with 400", "ended with 401", "ended with 503"}


def test_what_is_just_fast_enough_is_let(report):
    assert kinds(of(report, "patient_bodies")) <= {"still there"}


def test_bodies_that_are_held_have_room_for_a_few_and_the_rest_hear_so(report):
    outcomes = of(report, "held_bodies")
    # 401: the control plane reads no long body without a proof. 400: no byte came for as long as the least rate allows.
    assert kinds(outcomes) - {"still there", "ended with 400"} == {"ended with 401", "ended with 503"}


def test_slow_readers_have_an_answer(report):
    outcomes = of(report, "slow_readers")
    assert sum(outcomes.values()) >= 60
    assert {told.partition(",")[0] for told in outcomes} == {"200"}


def test_floods_of_headers_are_refused(report):
    assert kinds(of(report, "header_floods")) <= {"400", "431", "closed"}


def test_what_is_packed_stays_packed(report):
    outcomes = of(report, "bombs")
    down = {told for told in outcomes if told.startswith("down")}
    assert down == {"down: 200 whole, untouched"}
    assert {told for told in outcomes if told.startswith("up")} == {"up: 200 whole"}
    assert kinds(outcomes) <= {"200 whole, untouched", "200 whole", "400", "415", "422"}


def test_an_answer_without_end_has_one(report):
    """No head: a refusal. A body that lies: cut, so that it shows. A body that goes on: until its reader has enough."""
    outcomes = of(report, "upstream_floods")
    ways: dict[str, set[str]] = {}
    for told in outcomes:
        way, _, ending = told.partition(": ")
        ways.setdefault(way, set()).add(ending)
    for way in ("endless", "tiny-chunks", "huge-chunk"):
        assert ways.pop(way) == {"200 left"}
    for way in ("short", "chunk-size", "chunk-extension", "trailers", "trailer-line"):
        assert ways.pop(way) == {"200 cut"}
    assert ways.pop("long") <= {"502 whole", "200 whole"}
    assert set.union(*ways.values()) == {"502 whole"}
    assert len(ways) == 8


def test_documents_made_to_cost_are_refused_or_cost_little(report):
    outcomes = of(report, "json_bombs")
    assert sum(outcomes.values()) >= 28
    assert kinds(outcomes) <= {"201", "400", "413", "422", "503"}  # 503: the memory of bodies without a proof


def test_agents_get_answers_that_end(report):
    assert kinds(of(report, "tool_floods")) <= {"200 whole"}


def test_junk_hashes_cost_the_node_no_more_than_their_budget(report):
    """Thirty look-ups a minute of each address; the windows slide, and an attack may take more than one."""
    outcomes, addresses = of(report, "junk_hashes"), report["junkAddresses"]
    assert kinds(outcomes) <= {"409 payment_pending", "429 rate_limited"}
    asked = report["strange"].get("eth_getTransactionReceipt", 0)
    assert outcomes["409 payment_pending"] > 0
    assert asked <= 30 * addresses * (1 + report["junkMinutes"])


def test_no_unpaid_caller_leaves_a_row_beyond_its_budget(report):
    rows = report["rows"]
    assert rows["payment"] == report["callers"]
    assert rows["call"] <= report["served"] + report["seenTotal"]
    # A long body without a proof is refused with a challenge to sign in, which has a nonce of the quota of its address.
    challenges = sum(
        count
        for move in report["moves"].values()
        for told, count in move["outcomes"].items()
        if told.endswith("ended with 401")
    )
    assert rows["signin_nonce"] <= 60 * 2 * report["nonceRounds"] + 2 + challenges
    assert rows["session"] == 0
    assert rows["listing"] == report["created"]
    assert rows["signature_nonce"] <= report["signed"]


def test_no_failure_of_the_gateways_own_was_logged(report):
    assert report["failures"] == []
