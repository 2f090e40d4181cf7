"""Alert rules, dashboards and runbooks: written from their tables, about series and labels that exist, and complete."""

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.test_docs import find_command, find_function, find_options
from tollway.chain.port import SendFault
from tollway.config.networks import NETWORK_MEMBERS
from tollway.config.settings import OPERATOR_LIMITS, SETTING_NAMES
from tollway.limits import DEFAULT_LIMITS
from tollway.observability.alert_limits import NODE_HEAD_READ_S
from tollway.observability.log_events import LOG_EVENTS
from tollway.observability.metric_table import PROCESS_SERIES, SERIES
from tollway.observability.telemetry import Metrics
from tollway.web.http.problems import PROBLEM_KINDS

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
EVENTS = {row.event for row in LOG_EVENTS}
HEADINGS = ("What it means", "What callers see", "Is money at risk", "Look", "Do", "It is over when")
FROM_PROMETHEUS = {"up"}
TARGET_LABELS = {"job", "instance"}
"""Labels that Prometheus adds to every series of a target."""
LEFT_OUT = {
    "tollway_rpc_requests_total": "replaced by tollway_node_requests_total",
    "tollway_spans_dropped_total": "traces are off by default, and no call depends on them; the log says span_export_failed",
    "process_virtual_memory_bytes": "says nothing beside the resident memory",
}
"""Series in no panel and no alert -> why."""


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


RULES, BOARDS = load("deploy/prometheus/build.py"), load("deploy/grafana/build.py")
NAMES = sorted(alert.name for alert in RULES.ALERTS)


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module in (RULES, BOARDS) for name in module.FILES],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_is_what_its_program_writes(module: Any, name: str) -> None:
    assert (module.FOLDER / name).read_text() == module.FILES[name](), f"run: python {module.__file__}"


# ---- Expressions.


def list_expressions() -> dict[str, str]:
    found = {f"alert {alert.name}": alert.expression for alert in RULES.ALERTS}
    for dashboard in BOARDS.DASHBOARDS:
        for panel in dashboard.panels:
            expression = panel.expression.replace("$job", "tollway").replace("$__rate_interval", "5m")
            found[f"{dashboard.title}, {panel.title}"] = expression
    return found


EXPRESSIONS = list_expressions()


def walk(node: Any) -> Iterator[Any]:
    yield node
    for name in ("lhs", "rhs", "expr", "vector_selector", "args"):
        inner = getattr(node, name, None)
        for one in inner if isinstance(inner, list) else [] if inner is None else [inner]:
            yield from walk(one)


def find_row(name: str) -> Any:
    """The row of an exposed sample; a histogram has three endings."""
    return SERIES.get(name) or SERIES.get(re.sub(r"_(bucket|sum|count)$", "", name))


def is_known(name: str) -> bool:
    row = find_row(name)
    if row is None:
        return name in PROCESS_SERIES or name in FROM_PROMETHEUS
    return (row.kind == "histogram") == (name != row.name)


@pytest.mark.parametrize("place", EXPRESSIONS)
def test_an_expression_is_about_series_and_labels_that_exist(place: str) -> None:
    nodes = list(walk(promql_parser.parse(EXPRESSIONS[place])))
    selectors = [node for node in nodes if type(node).__name__ == "VectorSelector"]
    assert selectors
    allowed = set(TARGET_LABELS)
    for selector in selectors:
        assert is_known(selector.name), selector.name
        row = find_row(selector.name)
        own = set() if row is None else set(row.label_names) | ({"le"} if row.buckets else set())
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= own | TARGET_LABELS, (selector.name, matched)
        for matcher in selector.matchers.matchers:
            values = {label.name: label.values for label in (row.labels if row else ())}.get(matcher.name)
            if values:
                assert set(matcher.value.split("|")) <= set(values), (selector.name, matcher.value)
        allowed |= own
    for node in nodes:
        modifier = getattr(node, "modifier", None)
        grouped = list(getattr(modifier, "labels", ())) if modifier is not None else []
        matching = getattr(modifier, "matching", None)
        grouped += list(getattr(matching, "labels", ()))
        assert set(grouped) <= allowed, (place, grouped)


def test_a_broken_expression_does_not_parse() -> None:
    with pytest.raises(ValueError):
        promql_parser.parse("sum by (network (tollway_calls_total)")


def test_every_series_stands_in_a_panel_or_an_alert_or_is_left_out_on_purpose() -> None:
    used = set()
    for expression in EXPRESSIONS.values():
        for node in walk(promql_parser.parse(expression)):
            if type(node).__name__ == "VectorSelector":
                row = find_row(node.name)
                used.add(node.name if row is None else row.name)
    assert {*SERIES, *PROCESS_SERIES} - used == set(LEFT_OUT)


# ---- Dashboards.


def test_the_links_to_dashboards_are_stable() -> None:
    assert [board.uid for board in BOARDS.DASHBOARDS] == [
        *("tollway-overview", "tollway-chains", "tollway-books", "tollway-process"),
    ]


def test_every_panel_has_a_unit_a_description_and_a_runbook_that_exists() -> None:
    for board in BOARDS.DASHBOARDS:
        assert len({panel.title for panel in board.panels}) == len(board.panels)
        for panel in board.panels:
            assert panel.unit
            assert panel.says.endswith(".")
            assert panel.runbook is BOARDS.NO_RUNBOOK or panel.runbook in NAMES
        written = json.loads((BOARDS.FOLDER / f"{board.uid}.json").read_text())
        assert {panel["datasource"]["uid"] for panel in written["panels"]} == {"$source"}


# ---- Rules and runbooks.


def test_every_alert_has_three_stories_and_a_runbook() -> None:
    stories: list[str] = []
    for name in RULES.FILES:
        if name.endswith(".test.yaml"):
            stories += [one["name"] for one in yaml.safe_load((RULES.FOLDER / name).read_text())["tests"]]
    expected = [f"{name} {story}" for name in NAMES for story in ("fires", "does not fire", "resolves")]
    for alert in RULES.ALERTS:
        for branch in alert.branches:
            ends = ("does not fire",) if branch.labels is None else ("fires", "resolves")
            expected += [f"{alert.name} {end}, {branch.says}" for end in ends]
    assert sorted(stories) == sorted(expected)
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*NAMES, "README"}


def test_every_failure_of_the_gateway_counts_in_the_alerts_about_failures() -> None:
    """Each code with a status of 500 and above is ours or is not, by the table of the rules; a new one must be put into it."""
    failures = {code.value for code, kind in PROBLEM_KINDS.items() if kind.status >= 500}
    assert failures == {*RULES.OWN_FAILURES, *RULES.OTHER_FAILURES}
    assert set(RULES.OWN_FAILURES).isdisjoint(RULES.OTHER_FAILURES)


def test_the_rate_of_the_first_failure_is_seen() -> None:
    """A counter that begins with its first failure has no increase from it."""
    counts = Metrics(CollectorRegistry()).calls.counts
    assert {code: counts.get((code,)) for code in RULES.OWN_FAILURES} == dict.fromkeys(RULES.OWN_FAILURES, 0)


def test_a_head_is_read_as_often_as_the_alert_assumes() -> None:
    assert DEFAULT_LIMITS.chain_check_interval_s == NODE_HEAD_READ_S


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_has_the_six_headings_and_commands_that_exist(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert tuple(re.findall(r"^## (.+)$", text, re.MULTILINE)) == HEADINGS
    assert len(text.splitlines()) < 60, "one screen"
    commands = re.findall(r"^(tollway .+)$", text, re.MULTILINE) + re.findall(r"`(tollway [^`]+)`", text)
    looks = re.findall(r"```sh\n(.+?)\n```", text, re.DOTALL)
    assert looks
    for line in looks[0].splitlines():
        assert line.split()[0] in ("tollway", "systemctl", "journalctl")
    for command in commands:
        words = command.split()[1:]
        name = find_command(words)
        assert name is not None, command
        options = find_options(find_function(name))
        assert [word for word in words if word.startswith("--") and word not in options] == [], command
    for unit in re.findall(r"tollway-[a-z]+(?:\.timer|\.service)", text):
        assert (ROOT / "deploy" / "systemd" / unit).exists()
    for event in re.findall(r"--grep (\S+)", text):
        assert any(event in row for row in EVENTS), event


def list_known_names() -> set[str]:
    """What a runbook may name: settings, limits, series, values of their labels, events and error codes."""
    values = {value for row in SERIES.values() for label in row.labels for value in label.values}
    limits = {limit.name for limit in OPERATOR_LIMITS}
    codes = {code.value for code in PROBLEM_KINDS}
    return {*SETTING_NAMES, *NETWORK_MEMBERS, *limits, *SERIES, *PROCESS_SERIES, *values, *EVENTS, *codes}


@pytest.mark.parametrize("path", [*sorted(RUNBOOKS.glob("*.md"))], ids=lambda path: path.stem)
def test_a_runbook_names_what_exists(path: Path) -> None:
    named = re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", path.read_text())
    assert [name for name in named if name not in list_known_names()] == []


@pytest.mark.parametrize("row", LOG_EVENTS, ids=lambda row: row.event)
def test_an_event_names_settings_and_events_that_exist(row: Any) -> None:
    named = re.findall(r"`([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`", f"{row.meaning} {row.action}")
    known = list_known_names() | set(row.fields) | {fault.value for fault in SendFault}
    assert [name for name in named if name not in known] == []
