"""The worst days of a gateway, in a short form (part of `make test-all`) and a long one (`make torture`).

`torture` tells each scenario how far to go, what its seed is, and takes down what it measured. The seed stands in the
environment (`TORTURE_SEED`); without it the short form has one seed, and the long form draws one. It is printed with every figure, so that a bad day can come again.
"""

import json
import os
import random
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tests.system.live.conftest import (
    caller,
    chain,
    cluster,
    own_chain_cluster,
    playground,
    provider_account,
    scenarios,
    stranger,
)

__all__ = [
    "caller",
    "chain",
    "cluster",
    "own_chain_cluster",
    "playground",
    "provider_account",
    "scenarios",
    "stranger",
]

T = TypeVar("T")

IS_LONG = os.environ.get("TORTURE") == "long"
SEED = int(os.environ.get("TORTURE_SEED") or (secrets.randbelow(2**32) if IS_LONG else 0))

_PROPERTY = "torture"


@dataclass(frozen=True, slots=True, kw_only=True)
class Torture:
    """One scenario. `random` is its own: what happens in another scenario does not change it."""

    node: pytest.Item
    seed: int
    random: random.Random
    started: float = field(default_factory=time.monotonic)

    def pick(self, *, short: T, long: T) -> T:
        return long if IS_LONG else short

    def tell(self, **figures: object) -> None:
        """Figures for the report. Nothing is asserted here."""
        seconds = round(time.monotonic() - self.started, 1)
        self.node.user_properties.append((_PROPERTY, {**figures, "seconds": seconds, "seed": self.seed}))


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> Torture:
    print(f"TORTURE_SEED={SEED}")  # pytest prints it when the scenario fails
    scenario = random.Random(f"{SEED} {request.node.name}")
    return Torture(node=request.node, seed=SEED, random=scenario)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What belongs to the long form only is left out of the short one, and not skipped in it."""
    if IS_LONG:
        return
    left_out = [item for item in items if item.get_closest_marker("long_form")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = [
        {"scenario": report.nodeid.rpartition("::")[2], "outcome": report.outcome, **figures}
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, figures in report.user_properties
        if name == _PROPERTY
    ]
    if not told:
        return
    terminalreporter.write_sep("=", f"torture, {'long' if IS_LONG else 'short'} form")
    for row in told:
        terminalreporter.write_line(", ".join(f"{key} {value}" for key, value in row.items()))
    if path := os.environ.get("TORTURE_REPORT"):
        Path(path).write_text(json.dumps(told, indent=1, default=str) + "\n")
