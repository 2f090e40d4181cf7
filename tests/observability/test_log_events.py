"""The catalogue of log events: equal to the calls of the loggers in the sources, and to its page."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.kit.log_event_page import PAGE, write_page
from tollway.observability.log_events import LOG_EVENTS

SOURCES = Path(__file__).parents[2] / "src" / "tollway"
LEVELS = {"debug", "info", "warning", "error", "exception"}
COMMANDS = {"cli"}
"""A command's own output is no log."""


class Calls:
    """What the sources log. `open_fields`: events with fields that are only known when they run (`**fields`)."""

    def __init__(self) -> None:
        self.levels: dict[str, set[str]] = defaultdict(set)
        self.fields: dict[str, set[str]] = defaultdict(set)
        self.open_fields: set[str] = set()
        self.unclear: list[str] = []
        for path in sorted(SOURCES.rglob("*.py")):
            tree = ast.parse(path.read_text())
            for function in ast.walk(tree):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for call in list_log_calls(function):
                        self._add(path, function, call)

    def _add(self, path: Path, function: ast.AST, call: ast.Call) -> None:
        assert isinstance(call.func, ast.Attribute)
        events = list(find_texts(call.args[0], function))
        if not events:
            self.unclear.append(f"{path.name}:{call.lineno}")
        method = call.func.attr
        for event in events:
            self.levels[event].add("error" if method == "exception" else method)
            names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            self.fields[event] |= names | ({"exc_info"} if method == "exception" else set())
            if any(keyword.arg is None for keyword in call.keywords):
                self.open_fields.add(event)


def list_log_calls(function: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(function):
        is_log = (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "_log"
            and node.func.attr in LEVELS
        )
        if is_log:
            assert isinstance(node, ast.Call)
            yield node


def find_texts(node: ast.AST, function: ast.AST) -> Iterator[str]:
    """The texts that an expression can be: a literal, one of two literals, or a name that this function gives such a value."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.IfExp(body=body, orelse=orelse):
            yield from find_texts(body, function)
            yield from find_texts(orelse, function)
        case ast.Name(id=name):
            for assigned in ast.walk(function):
                match assigned:
                    case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                        yield from find_texts(value, function)


CALLS = Calls()
ROWS = {row.event: row for row in LOG_EVENTS}


def test_every_event_is_a_literal_of_its_call() -> None:
    """So the label of `tollway_log_events_total` has a closed set of values."""
    assert CALLS.unclear == []


def test_the_catalogue_has_the_events_of_the_sources_and_no_other() -> None:
    assert len(ROWS) == len(LOG_EVENTS)
    assert set(CALLS.levels) == set(ROWS)


def test_the_catalogue_has_the_levels_of_the_sources() -> None:
    assert {event: set(row.levels) for event, row in ROWS.items()} == dict(CALLS.levels)


def test_the_catalogue_has_the_fields_of_the_sources() -> None:
    wrong = {}
    for event, row in ROWS.items():
        fields = CALLS.fields[event]
        is_equal = fields <= set(row.fields) if event in CALLS.open_fields else fields == set(row.fields)
        if not is_equal:
            wrong[event] = (sorted(fields), sorted(row.fields))
    assert wrong == {}


def test_the_page_is_the_catalogue() -> None:
    assert PAGE.read_text() == write_page(), "run: python -m tests.kit.log_event_page"
